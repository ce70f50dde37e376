//! Applications, endpoints and event types.

use super::{Db, Result, writer::Turn};
use crate::{Application, Archived, By, Endpoint, EventType, Expect, Page, PutError, Remember};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};

/// What a put makes of it: carried out, or refused with nothing changed.
pub type Put = Result<(), PutError>;

/// Recognises a repeated request; otherwise keeps its answer for the repetition to come.
pub async fn remember(_turn: &Turn, _remember: Option<&Remember>, _at: Timestamp) -> Result<Put> {
    todo!()
}

pub async fn resend(
    _turn: &mut Turn,
    _message: MessageKey,
    _endpoint: EndpointKey,
    _at: Timestamp,
    _kept: Option<&Remember>,
) -> Result<Put> {
    todo!()
}

pub async fn put_application(
    _turn: &mut Turn,
    _application: &Application,
    _expect: Expect,
    _kept: Option<&Remember>,
) -> Result<Put> {
    todo!()
}

pub async fn application(_db: &Db, _by: By<AppKey>) -> Result<Option<Application>> {
    todo!()
}

pub async fn generation(_db: &Db, _app: AppKey) -> Result<Option<i64>> {
    todo!()
}

pub async fn applications(_db: &Db, _page: &Page<AppKey>) -> Result<Vec<Application>> {
    todo!()
}

pub async fn delete_application(_turn: &mut Turn, _app: AppKey, _at: Timestamp) -> Result<bool> {
    todo!()
}

pub async fn put_endpoint(
    _turn: &mut Turn,
    _endpoint: &Endpoint,
    _expect: Expect,
    _kept: Option<&Remember>,
) -> Result<Put> {
    todo!()
}

pub async fn endpoint(_db: &Db, _app: AppKey, _by: By<EndpointKey>) -> Result<Option<Endpoint>> {
    todo!()
}

pub async fn endpoints(_db: &Db, _app: AppKey, _page: &Page<EndpointKey>) -> Result<Vec<Endpoint>> {
    todo!()
}

pub async fn endpoint_of_lane(_db: &Db, _endpoint: EndpointKey) -> Result<Option<Endpoint>> {
    todo!()
}

pub async fn delete_endpoint(_turn: &mut Turn, _app: AppKey, _endpoint: EndpointKey, _at: Timestamp) -> Result<bool> {
    todo!()
}

/// Whether `bury` has something to do.
pub async fn has_unburied(_db: &Db) -> Result<bool> {
    todo!()
}

pub async fn bury(_turn: &mut Turn, _at: Timestamp) -> Result<bool> {
    todo!()
}

pub async fn put_event_type(
    _turn: &mut Turn,
    _event_type: &EventType,
    _expect: Expect,
    _kept: Option<&Remember>,
) -> Result<Put> {
    todo!()
}

pub async fn event_type(_db: &Db, _name: &str) -> Result<Option<EventType>> {
    todo!()
}

pub async fn event_types(_db: &Db, _page: &Page<String>, _archived: Archived) -> Result<Vec<EventType>> {
    todo!()
}

pub async fn delete_event_type(_turn: &mut Turn, _name: &str) -> Result<bool> {
    todo!()
}

pub async fn note(_db: &Db, _name: &str) -> Result<Option<Vec<u8>>> {
    todo!()
}

pub async fn put_note(_turn: &Turn, _name: &str, _value: &[u8]) -> Result<()> {
    todo!()
}
