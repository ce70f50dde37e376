//! Ending deliveries on request, and counting what there would be to end.

use super::{Db, Result, writer::Turn};
use crate::Backlog;
use postrider_engine::{AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, policy::DeathReason};

pub async fn cancel_message(
    _turn: &mut Turn,
    _app: AppKey,
    _message: MessageKey,
    _endpoint: Option<EndpointKey>,
    _at: Timestamp,
) -> Result<u64> {
    todo!()
}

/// Moves what waits in a row to the dead letters. False if nothing does.
pub async fn end_waiting(_turn: &Turn, _id: DeliveryId, _reason: DeathReason, _at: Timestamp) -> Result<bool> {
    todo!()
}

pub async fn is_delivered(_db: &Db, _id: DeliveryId) -> Result<bool> {
    todo!()
}

pub async fn backlog(_db: &Db, _endpoint: EndpointKey, _since: Option<Timestamp>) -> Result<Backlog> {
    todo!()
}
