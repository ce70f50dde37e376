//! Looking back: messages, attempts, and how deliveries fare.

use super::{Db, Result};
use crate::{Attempt, AttemptFilter, AttemptsOf, By, DeliveryState, Message, MessageFilter, Page, StateKind, Stats};
use postrider_engine::{AppKey, AttemptKey, EndpointKey, MessageKey, Timestamp};

pub async fn message(_db: &Db, _app: AppKey, _by: By<MessageKey>) -> Result<Option<Message>> {
    todo!()
}

pub async fn read_message(_db: &Db, _key: i64) -> Result<Option<Message>> {
    todo!()
}

pub async fn messages(
    _db: &Db,
    _app: AppKey,
    _filter: &MessageFilter,
    _page: &Page<MessageKey>,
) -> Result<Vec<Message>> {
    todo!()
}

pub async fn attempts(
    _db: &Db,
    _of: AttemptsOf,
    _filter: &AttemptFilter,
    _page: &Page<AttemptKey>,
) -> Result<Vec<Attempt>> {
    todo!()
}

pub async fn attempt(_db: &Db, _message: MessageKey, _attempt: AttemptKey) -> Result<Option<Attempt>> {
    todo!()
}

pub async fn deliveries(_db: &Db, _message: MessageKey) -> Result<Vec<(EndpointKey, DeliveryState)>> {
    todo!()
}

pub async fn messages_of_endpoint(
    _db: &Db,
    (_app, _endpoint): (AppKey, EndpointKey),
    _filter: &MessageFilter,
    _states: &[StateKind],
    _page: &Page<MessageKey>,
) -> Result<Vec<(Message, DeliveryState)>> {
    todo!()
}

pub async fn stats(_db: &Db, _endpoint: EndpointKey, _span: (Timestamp, Timestamp)) -> Result<Stats> {
    todo!()
}
