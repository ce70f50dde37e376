//! Takes a message in: works out whom it is owed to, and hands it to the store.

pub mod content;

use crate::{
    clock,
    directory::{AppEntry, EndpointEntry},
};
use postrider_engine::{EndpointKey, Timestamp, policy::Ordering};
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
        let wants = |entry: &&Arc<EndpointEntry>| match event.only {
            Some(endpoint) => entry.key == endpoint,
            None => entry.wants(&event.content),
        };
        let wanting: Vec<&Arc<EndpointEntry>> = app.endpoints.iter().filter(wants).collect();
        let owed = match event.only {
            Some(endpoint) => vec![endpoint],
            None => wanting.iter().map(|entry| entry.key).collect(),
        };
        let fifo =
            wanting.iter().filter(|entry| entry.lane.ordering == Ordering::Fifo).map(|entry| entry.key).collect();
        let message = NewMessage {
            app: app.application.key,
            at: clock::now(),
            generation: None,
            content: event.content,
            payload_expires_at: event.payload_expires_at,
            owed,
            fifo,
            idempotency: event.idempotency,
        };
        let accepted = self.store.accept(message).await?;
        if let Accepted::Now(_) = accepted {
            self.accepted.increment(1);
        }
        Ok(accepted)
    }
}
