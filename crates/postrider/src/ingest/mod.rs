//! Takes a message in: works out whom it is owed to, and hands it to the store.

use crate::{clock, directory::AppEntry};
use postrider_engine::{EndpointKey, Timestamp};
use postrider_store::{AcceptError, Accepted, Content, Idempotency, NewMessage, Store};
use std::sync::Arc;

pub struct Ingest {
    store: Arc<dyn Store>,
    accepted: metrics::Counter,
}

pub struct NewEvent {
    pub content: Content,
    pub payload_expires_at: Option<Timestamp>,
    pub idempotency: Option<Idempotency>,
    /// Goes to this endpoint alone.
    pub only: Option<EndpointKey>,
}

impl Ingest {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, accepted: metrics::counter!("postrider_messages_accepted_total") }
    }

    /// After `Ok` the message and all that it owes are on the disk.
    pub async fn accept(&self, app: &AppEntry, event: NewEvent) -> Result<Accepted, AcceptError> {
        let owed = match event.only {
            Some(endpoint) => vec![endpoint],
            None => app.endpoints.iter().filter(|entry| entry.wants(&event.content)).map(|entry| entry.key).collect(),
        };
        let message = NewMessage {
            app: app.application.key,
            at: clock::now(),
            content: event.content,
            payload_expires_at: event.payload_expires_at,
            owed,
            idempotency: event.idempotency,
        };
        let accepted = self.store.accept(message).await?;
        if let Accepted::Now(_) = accepted {
            self.accepted.increment(1);
        }
        Ok(accepted)
    }
}
