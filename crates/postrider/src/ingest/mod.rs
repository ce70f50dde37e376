//! Takes a message in: works out whom it is owed to, and hands it to the store.

pub mod batch;
pub mod content;
pub mod gate;
pub mod pace;
pub mod rates;

use crate::{
    clock::Clock,
    directory::{AppEntry, Directory, EndpointEntry},
    statistics::Statistics,
    telemetry::{Tops, Traced, Traces},
};
use gate::{Gate, GateLimits};
use opentelemetry::KeyValue;
use postrider_engine::{EndpointKey, Timestamp, policy::Ordering};
use postrider_store::{AcceptError, Accepted, By, Content, Idempotency, NewMessage, Store, TraceContext};
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
    tops: Arc<Tops>,
    traces: Option<Arc<Traces>>,
}

#[derive(Clone)]
pub struct NewEvent {
    pub content: Content,
    pub payload_expires_at: Option<Timestamp>,
    pub idempotency: Option<Idempotency>,
    /// Goes to this endpoint alone.
    pub only: Option<EndpointKey>,
    /// Where in a trace its producer was.
    pub trace: Option<TraceContext>,
}

impl Ingest {
    pub fn new(store: Arc<dyn Store>, directory: Arc<Directory>, clock: Clock) -> Self {
        let gate = Arc::new(Gate::new(GateLimits::default()));
        let rates = Rates::new(RateLimits::default());
        let accepted = metrics::counter!("postrider_messages_accepted_total");
        Self { store, directory, clock, gate, rates, accepted, tops: Arc::default(), traces: None, statistics: None }
    }

    /// Without this there are none.
    pub fn with_rates(self, limits: RateLimits) -> Self {
        Self { rates: Rates::new(limits), ..self }
    }

    /// Counts what is accepted, for the charts.
    pub fn with_statistics(self, statistics: Arc<Statistics>) -> Self {
        Self { statistics: Some(statistics), ..self }
    }

    /// Counts also by name.
    pub fn with_tops(self, tops: Arc<Tops>) -> Self {
        Self { tops, ..self }
    }

    /// Without this nothing is traced; what a producer says about its trace is passed on nevertheless.
    pub fn with_traces(self, traces: Option<Arc<Traces>>) -> Self {
        Self { traces, ..self }
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
    pub async fn accept(&self, app: &AppEntry, event: NewEvent) -> Result<Accepted, AcceptError> {
        self.accept_within(TRIES_MAX, app, event).await
    }

    /// The same, but `Outdated` if the application is not what it was taken for: whoever let the message in by what the
    /// application says has to look at that again.
    pub async fn accept_if_current(&self, app: &AppEntry, event: NewEvent) -> Result<Accepted, AcceptError> {
        let accepted = self.accept_within(1, app, event).await;
        if let Err(AcceptError::Outdated) = accepted {
            self.directory.outdated(app);
        }
        accepted
    }

    async fn accept_within(&self, tries: usize, app: &AppEntry, mut event: NewEvent) -> Result<Accepted, AcceptError> {
        let Some(traces) = &self.traces else { return self.accept_untraced(tries, app, event).await };
        let span = traces.accepting(event.trace.as_ref(), self.clock.now());
        let Some(span) = span else { return self.accept_untraced(tries, app, event).await };
        event.trace = Some(span.context());
        let event_type = event.content.event_type.clone();
        let answer = self.accept_untraced(tries, app, event).await;
        self.end_span(traces, span, app, event_type, &answer);
        answer
    }

    fn end_span(
        &self,
        traces: &Traces,
        span: Traced,
        app: &AppEntry,
        event_type: String,
        answer: &Result<Accepted, AcceptError>,
    ) {
        let (message, is_repeated, failed) = match answer {
            Ok(Accepted::Now(message)) => (Some(*message), false, None),
            Ok(Accepted::Before(message)) => (Some(*message), true, None),
            Err(AcceptError::Store(_)) => (None, false, Some("the store could not take it")),
            Err(AcceptError::EventIdTaken | AcceptError::KeyReused | AcceptError::Outdated) => {
                (None, false, Some("refused"))
            }
        };
        let known = [
            KeyValue::new("postrider.application", traces.ids.id_of(app.application.key)),
            KeyValue::new("postrider.event_type", event_type),
            KeyValue::new("postrider.repeated", is_repeated),
        ];
        let message = message.map(|message| KeyValue::new("messaging.message.id", traces.ids.id_of(message)));
        span.end(self.clock.now(), failed, known.into_iter().chain(message));
    }

    async fn accept_untraced(
        &self,
        tries: usize,
        app: &AppEntry,
        mut event: NewEvent,
    ) -> Result<Accepted, AcceptError> {
        let mut newer: Option<Arc<AppEntry>> = None;
        let event_type = event.content.event_type.clone();
        for tries_left in (0..tries).rev() {
            let entry = newer.as_deref().unwrap_or(app);
            // Only an entry that is counted can be found outdated.
            let copy = entry.generation.filter(|_| tries_left > 0).map(|_| event.clone());
            match (self.store.accept(message(entry, event, self.clock.now())).await, copy) {
                (Err(AcceptError::Outdated), Some(copy)) => event = copy,
                (Ok(accepted), _) => {
                    self.count(app, &event_type, accepted);
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

    fn count(&self, app: &AppEntry, event_type: &str, accepted: Accepted) {
        match accepted {
            Accepted::Now(_) => {
                self.accepted.increment(1);
                if let Some(statistics) = &self.statistics {
                    statistics.accepted(self.clock.now());
                }
                self.tops.accepted(app.application.key, event_type);
            }
            Accepted::Before(_) => {}
        }
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
        trace: event.trace,
    }
}
