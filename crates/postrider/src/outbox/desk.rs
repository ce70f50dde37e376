//! Offers rows to the store so that each becomes one message, and those that belong together one after the other.

use super::row::{self, Link};
use crate::{
    clock,
    directory::{AppEntry, Directory},
    ids::IdCodec,
    ingest::{Ingest, NewEvent},
    telemetry::traces::context_from,
};
use postrider_engine::AppKey;
use postrider_store::{
    AcceptError, By, Content, Idempotency, Retention, Store, StoreError, TraceContext,
    outbox::{Found, Identity, Refusal, Row, Sent},
};
use std::{sync::Arc, time::Duration};

/// Where rows are offered.
pub struct Desk {
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub ingest: Arc<Ingest>,
    pub ids: IdCodec,
    /// Bytes of a payload.
    pub body_max: usize,
    pub retention: Retention,
}

/// What can be done with a row.
pub enum Prepared {
    Offer(Box<Offer>),
    Refused(Refusal),
}

/// A row that may become a message.
pub struct Offer {
    pub id: i64,
    pub past: Past,
    app: Arc<AppEntry>,
    content: Content,
    named_by: NamedBy,
    idempotency: Idempotency,
    trace: Option<TraceContext>,
}

/// What happened to a row before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Past {
    New,
    /// It was offered, and what came of that was not written down: the store may have it.
    Offered,
}

/// Who chose the event id.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedBy {
    /// Any other message may have it as well.
    Producer,
    /// It has the row's number in it, so that only this row's message can have it.
    Us,
}

/// What became of an offer.
pub enum End {
    Stored,
    Refused(Refusal),
    /// It cannot be decided now, and why.
    Held(String),
}

impl Desk {
    /// How long the store can tell whether it took a row.
    pub fn known_for(&self) -> Duration {
        let Retention { payloads, attempts, dead_letters, idempotency: _ } = self.retention;
        row::known_for(payloads.max(attempts).max(dead_letters))
    }

    pub async fn prepare(&self, identity: &Identity, found: Found) -> Result<Prepared, StoreError> {
        let row = match found {
            Ok(row) => row,
            Err((id, error)) => return Ok(Prepared::Refused(Refusal { id, error, sent: Sent::Maybe })),
        };
        let past = if row.taken.is_some() { Past::Offered } else { Past::New };
        let refused = |error| Ok(Prepared::Refused(past.refusal(row.id, error)));
        if row.taken.as_ref().is_some_and(|taken| taken.is_forgotten) {
            return refused(FORGOTTEN.to_owned());
        }
        // What was offered for an application is offered for the same one again, also if its name is another's now.
        let name = row.taken.as_ref().map_or(&row.app, |taken| &taken.app);
        let app = match self.ids.by::<AppKey>(name) {
            Some(by) => self.directory.application(&by).await?,
            None => None,
        };
        let Some(app) = app else { return refused(format!("there is no application `{name}`")) };
        match row::content(identity, &row, self.body_max, clock::now()) {
            Err(flaw) => refused(flaw),
            Ok(content) => Ok(Prepared::Offer(Box::new(Offer::new(identity, &row, past, app, content)))),
        }
    }

    /// Offers rows one after the other, until one cannot be decided.
    pub async fn offer_in_order(self: Arc<Self>, chain: Vec<Offer>) -> Vec<(i64, End)> {
        let mut ends = Vec::with_capacity(chain.len());
        for offer in chain {
            let id = offer.id;
            let end = self.offer(offer).await.unwrap_or_else(|error| End::Held(error.to_string()));
            let is_held = matches!(end, End::Held(_));
            ends.push((id, end));
            if is_held {
                break;
            }
        }
        ends
    }

    async fn offer(&self, offer: Offer) -> Result<End, StoreError> {
        let Offer { id, past, app, content, named_by, idempotency, trace } = offer;
        let refused = |error: &str| Ok(End::Refused(past.refusal(id, error.to_owned())));
        let event = NewEvent {
            content: content.clone(),
            payload_expires_at: None,
            idempotency: Some(idempotency),
            only: None,
            trace,
        };
        match self.ingest.accept(&app, event).await {
            Ok(_) => Ok(End::Stored),
            // Looked up anew with the next walk, where it shows if the application is gone.
            Err(AcceptError::Outdated) => Ok(End::Held("the settings of its application have changed".to_owned())),
            Err(AcceptError::KeyReused) => refused(SET_BACK),
            Err(AcceptError::EventIdTaken) => match (past, named_by) {
                (Past::New, NamedBy::Producer) => refused(EVENT_ID_TAKEN),
                // The message may be the row's own, of so long ago that its idempotency key is forgotten.
                (Past::Offered, NamedBy::Producer) | (Past::New | Past::Offered, NamedBy::Us) => {
                    let by = By::Uid(content.event_id.clone().unwrap_or_default());
                    match (self.store.message(app.application.key, by).await?, named_by) {
                        (Some(message), _) if row::is_same(&content, &message) => Ok(End::Stored),
                        (Some(_), NamedBy::Us) => refused(SET_BACK),
                        (Some(_), NamedBy::Producer) => refused(EVENT_ID_TAKEN),
                        // Forgotten since; the name is free again.
                        (None, _) => Ok(End::Held("a message with its event id was being forgotten".to_owned())),
                    }
                }
            },
            Err(AcceptError::Store(error)) => Err(error),
        }
    }
}

impl Offer {
    fn new(identity: &Identity, row: &Row, past: Past, app: Arc<AppEntry>, content: Content) -> Self {
        let idempotency = row::idempotency(identity, row.id, &content);
        let named_by = if row.event_id.is_some() { NamedBy::Producer } else { NamedBy::Us };
        let trace = row.traceparent.as_deref().and_then(context_from);
        Self { id: row.id, past, app, content, named_by, idempotency, trace }
    }

    pub fn app(&self) -> AppKey {
        self.app.application.key
    }

    /// By what other rows have to wait for this one.
    pub fn links(&self) -> Vec<Link> {
        let Content { ordering_key, event_id, .. } = &self.content;
        let ordered = ordering_key.clone().map(|key| Link::OrderingKey(self.app(), key));
        // Of two with the same id, the older one gets it.
        let named = match self.named_by {
            NamedBy::Producer => event_id.clone().map(|id| Link::EventId(self.app(), id)),
            NamedBy::Us => None,
        };
        ordered.into_iter().chain(named).collect()
    }
}

impl Past {
    fn refusal(self, id: i64, error: String) -> Refusal {
        let sent = match self {
            Self::New => Sent::No,
            Self::Offered => Sent::Maybe,
        };
        Refusal { id, error, sent }
    }
}

const FORGOTTEN: &str =
    "it was taken so long ago that it is not known any more whether it was sent; retry or discard it";
const SET_BACK: &str =
    "its number was used before for another event; was the producer's database set back to an earlier state?";
const EVENT_ID_TAKEN: &str = "the application has another message with this event_id";
