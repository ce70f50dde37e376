//! Takes a message in: works out whom it is owed to, and hands it to the store.

pub mod content;
pub mod gate;
pub mod pace;
pub mod rates;

use crate::{
    clock::Clock,
    directory::{AppEntry, Directory, EndpointEntry},
    statistics::Statistics,
};
use gate::{Gate, GateLimits};
use postrider_engine::{EndpointKey, Timestamp, policy::Ordering};
use postrider_store::{AcceptError, Accepted, By, Content, Idempotency, NewMessage, Store};
use rates::{RateLimits, Rates};
use std::sync::Arc;

/// How often whom a message is owed to is worked out anew, because settings have changed meanwhile.
const TRIES_MAX: usize = 3;

pub struct Ingest {
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    clock: Clock,
    gate: Arc<Gate>,
    rates: Rates,
    accepted: metrics::Counter,
    statistics: Option<Arc<Statistics>>,
}

#[derive(Clone)]
pub struct NewEvent {
    pub content: Content,
    pub payload_expires_at: Option<Timestamp>,
    pub idempotency: Option<Idempotency>,
    /// Goes to this endpoint alone.
    pub only: Option<EndpointKey>,
}

impl Ingest {
    pub fn new(store: Arc<dyn Store>, directory: Arc<Directory>, clock: Clock) -> Self {
        let gate = Arc::new(Gate::new(GateLimits::default()));
        let rates = Rates::new(RateLimits::default());
        Self {
            store,
            directory,
            clock,
            gate,
            rates,
            accepted: metrics::counter!("postrider_messages_accepted_total"),
            statistics: None,
        }
    }

    /// Without this there are none.
    pub fn with_rates(self, limits: RateLimits) -> Self {
        Self { rates: Rates::new(limits), ..self }
    }

    /// Counts what is accepted, for the charts.
    pub fn with_statistics(self, statistics: Arc<Statistics>) -> Self {
        Self { statistics: Some(statistics), ..self }
    }

    /// What a message from outside must be within, once it is known whose it is.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// What a message from outside must go through before anything of it is read.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// After `Ok` the message and all that it owes are on the disk.
    pub async fn accept(&self, app: &AppEntry, mut event: NewEvent) -> Result<Accepted, AcceptError> {
        let mut newer: Option<Arc<AppEntry>> = None;
        for tries_left in (0..TRIES_MAX).rev() {
            let entry = newer.as_deref().unwrap_or(app);
            // Only an entry that is counted can be found outdated.
            let copy = entry.generation.filter(|_| tries_left > 0).map(|_| event.clone());
            match (self.store.accept(message(entry, event, self.clock.now())).await, copy) {
                (Err(AcceptError::Outdated), Some(copy)) => event = copy,
                (Ok(accepted), _) => {
                    if let Accepted::Now(_) = accepted {
                        self.accepted.increment(1);
                        if let Some(statistics) = &self.statistics {
                            statistics.accepted(self.clock.now());
                        }
                    }
                    return Ok(accepted);
                }
                (Err(error), _) => return Err(error),
            }
            self.directory.outdated(entry);
            let found = self.directory.application(&By::Key(app.application.key)).await?;
            let has = |entry: &AppEntry, only| entry.endpoints.iter().any(|endpoint| endpoint.key == only);
            // Whoever asks again hears that it is gone.
            let Some(entry) = found.filter(|entry| event.only.is_none_or(|only| has(entry, only))) else { break };
            newer = Some(entry);
        }
        Err(AcceptError::Outdated)
    }
}

fn message(app: &AppEntry, event: NewEvent, at: Timestamp) -> NewMessage {
    let wants = |entry: &&Arc<EndpointEntry>| match event.only {
        Some(endpoint) => entry.key == endpoint,
        None => entry.wants(&event.content),
    };
    let wanting: Vec<&Arc<EndpointEntry>> = app.endpoints.iter().filter(wants).collect();
    let owed = match event.only {
        Some(endpoint) => vec![endpoint],
        None => wanting.iter().map(|entry| entry.key).collect(),
    };
    let fifo = wanting.iter().filter(|entry| entry.lane.ordering == Ordering::Fifo).map(|entry| entry.key).collect();
    NewMessage {
        app: app.application.key,
        at,
        generation: app.generation,
        content: event.content,
        payload_expires_at: event.payload_expires_at,
        owed,
        fifo,
        idempotency: event.idempotency,
    }
}
