//! Placeholder until ingest is merged.

use crate::directory::AppEntry;
use postrider_engine::{EndpointKey, Timestamp};
use postrider_store::{AcceptError, Accepted, Content, Idempotency, StoreError};

pub struct Ingest;

pub struct NewEvent {
    pub content: Content,
    pub payload_expires_at: Option<Timestamp>,
    pub idempotency: Option<Idempotency>,
    /// Goes to this endpoint alone.
    pub only: Option<EndpointKey>,
}

impl Ingest {
    pub async fn accept(&self, _app: &AppEntry, _event: NewEvent) -> Result<Accepted, AcceptError> {
        Err(AcceptError::Store(StoreError::Closed))
    }
}
