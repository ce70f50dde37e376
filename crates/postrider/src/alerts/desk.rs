//! Makes messages of what is entered in the journal, for the operational endpoints.
//!
//! An entry is made a message first and struck out then, and the message's key follows from the entry's name. So what is
//! interrupted between the two is done again and found done: one entry is one message, for as long as the store
//! recognises requests.

use super::events::Event;
use crate::{
    directory::{AppEntry, Directory},
    ids::IdCodec,
    ingest::{Ingest, NewEvent},
    sources::UID_PREFIX,
};
use bytes::Bytes;
use futures_util::future::join_all;
use postrider_engine::{AppKey, EndpointKey, MessageKey, Trigger, policy::Class};
use postrider_store::{
    AcceptError, Accepted, Attempt, AttemptChange, AttemptFilter, AttemptHappened, AttemptsOf, By, Content,
    FAILING_AFTER, Happened, Idempotency, JournalEntry, JournalKey, OPERATIONAL, Order, Page, Store, StoreError,
};
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};
use tracing::{debug, warn};

pub struct Desk {
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub ingest: Arc<Ingest>,
    pub ids: IdCodec,
}

impl Desk {
    /// For as long as the server runs. Of several nodes one does it.
    pub async fn keep(self: Arc<Self>) {
        let mut looks = 0_u32;
        loop {
            // Where nobody listens nothing is entered. What is left from when someone did is cleared away now and then.
            if self.store.leads() && (self.is_heard().await || looks.is_multiple_of(CLEAR_EVERY)) {
                match self.work_off().await {
                    Ok(()) => {}
                    Err(StoreError::Closed) => return,
                    Err(error) => warn!(%error, "operators could not be told yet of all that has happened"),
                }
            }
            looks = looks.wrapping_add(1);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn is_heard(&self) -> bool {
        let found = self.directory.application(&By::Key(OPERATIONAL)).await;
        found.is_ok_and(|entry| entry.is_some_and(|entry| !entry.endpoints.is_empty()))
    }

    /// Until nothing is left.
    pub async fn work_off(&self) -> Result<(), StoreError> {
        loop {
            let entries = self.store.untold(AT_ONCE).await?;
            if entries.is_empty() {
                return Ok(());
            }
            let listeners = self.directory.application(&By::Key(OPERATIONAL)).await?;
            let listeners = listeners.as_deref();
            let mut events = Vec::new();
            for some in entries.chunks(READ_AT_ONCE) {
                let mut reading = Vec::new();
                for entry in some {
                    reading.push(self.wanted_event(listeners, entry));
                }
                events.extend(join_all(reading).await);
            }
            // All at once, so that they share commits; in the order in which they happened.
            let mut telling = Vec::new();
            for (entry, event) in entries.iter().zip(events) {
                telling.push(self.tell(listeners, entry, event));
            }
            let (mut told, mut trouble) = (Vec::new(), None);
            for one in join_all(telling).await {
                match one {
                    Ok(key) => told.push(key),
                    Err(error) => trouble = Some(error),
                }
            }
            // What could not be told holds nothing else up.
            self.store.strike_out(told).await?;
            if let Some(error) = trouble {
                return Err(error);
            }
        }
    }

    async fn tell(
        &self,
        listeners: Option<&AppEntry>,
        entry: &JournalEntry,
        event: Result<Option<Event>, StoreError>,
    ) -> Result<JournalKey, StoreError> {
        if let (Some(listeners), Some(event)) = (listeners, event?) {
            self.send(listeners, &event, &entry.what.name(), None).await?;
        }
        Ok(entry.key)
    }

    /// `None`: nobody wants it, or there is nothing left to tell of.
    async fn wanted_event(
        &self,
        listeners: Option<&AppEntry>,
        entry: &JournalEntry,
    ) -> Result<Option<Event>, StoreError> {
        // Asked before anything is read: there may be thousands that nobody wants.
        let content = content(Event::name_of(&entry.what), Bytes::new());
        if !listeners.is_some_and(|listeners| listeners.endpoints.iter().any(|endpoint| endpoint.wants(&content))) {
            return Ok(None);
        }
        let event = self.event(entry).await?;
        if event.is_none() {
            debug!(entry = entry.what.name(), "what happened is gone already; nobody is told");
        }
        Ok(event)
    }

    /// Stores an event for those who want it, or for one alone. The same name makes one message. `None`: nobody wants it.
    pub async fn send(
        &self,
        listeners: &AppEntry,
        event: &Event,
        name: &str,
        only: Option<EndpointKey>,
    ) -> Result<Option<MessageKey>, StoreError> {
        let content = content(&event.name, Bytes::from(event.body()));
        if only.is_none() && !listeners.endpoints.iter().any(|endpoint| endpoint.wants(&content)) {
            return Ok(None);
        }
        let idempotency = Some(Idempotency { key: key_of(name), request: [0; 16], chosen: false });
        let event = NewEvent { content, payload_expires_at: None, idempotency, only, trace: None };
        match self.ingest.accept(listeners, event).await {
            Ok(Accepted::Now(message) | Accepted::Before(message)) => Ok(Some(message)),
            Err(AcceptError::Store(error)) => Err(error),
            Err(error @ (AcceptError::Outdated | AcceptError::EventIdTaken | AcceptError::KeyReused)) => {
                Err(StoreError::Database(error.to_string()))
            }
        }
    }

    /// `None`: there is nothing left to tell of.
    async fn event(&self, entry: &JournalEntry) -> Result<Option<Event>, StoreError> {
        let ids = &self.ids;
        Ok(match (&entry.what, entry.app) {
            (Happened::Endpoint(happened), Some(app)) => {
                let uid = match &happened.app_uid {
                    // That of a source's application is nobody's name.
                    Some(uid) => Some(uid.clone()).filter(|uid| !uid.starts_with(UID_PREFIX)),
                    None => self.uid_of(app).await?,
                };
                Some(Event::of_endpoint(ids, (app, uid.as_deref()), happened))
            }
            (Happened::Attempt(happened), Some(app)) => {
                let Some(message) = self.store.message(app, By::Key(happened.message())).await? else {
                    return Ok(None);
                };
                let Some(attempt) = self.attempt(happened).await? else { return Ok(None) };
                let uid = self.uid_of(app).await?;
                let event_id = message.content.event_id.as_deref();
                Some(Event::of_attempt(ids, (app, uid.as_deref()), event_id, happened, &attempt))
            }
            (Happened::Task(happened), _) => Some(Event::of_task(ids, happened)),
            (Happened::Alert(alert), _) => {
                let data = serde_json::from_str(&alert.data).unwrap_or_default();
                Some(Event { name: alert.event_type.clone(), data })
            }
            (Happened::Endpoint(_) | Happened::Attempt(_), None) => None,
        })
    }

    async fn uid_of(&self, app: AppKey) -> Result<Option<String>, StoreError> {
        let found = self.directory.application(&By::Key(app)).await?;
        Ok(found.and_then(|entry| entry.application.public_uid().map(str::to_owned)))
    }

    /// The one that brought the change, and there may have been others since; the last one, if none did. `None` if there is
    /// nothing to tell after all.
    async fn attempt(&self, happened: &AttemptHappened) -> Result<Option<Attempt>, StoreError> {
        let filter = AttemptFilter { endpoint: Some(EndpointKey::new(happened.endpoint)), ..AttemptFilter::default() };
        let page = Page { from: None, order: Order::Descending, limit: ATTEMPTS_MAX };
        let tried = self.store.attempts(AttemptsOf::Message(happened.message()), filter, page).await?;
        let is_meant = |attempt: &Attempt| {
            happened.started_at.is_none_or(|started_at| attempt.record.started_at.as_millis() == started_at)
        };
        let mut tried = tried.into_iter().skip_while(|attempt| !is_meant(attempt));
        let Some(meant) = tried.next() else { return Ok(None) };
        let is_told = match happened.change {
            AttemptChange::Failing | AttemptChange::Exhausted => true,
            AttemptChange::Recovered => was_lost(&tried.collect::<Vec<_>>(), happened.cycle),
        };
        Ok(Some(meant).filter(|_| is_told))
    }
}

/// Whether operators were told that it fails, or was given up, by the attempts before the one that arrived. `cycle`: that of
/// the one that arrived.
fn was_lost(before: &[Attempt], cycle: u32) -> bool {
    let is_delivered = |attempt: &&Attempt| attempt.record.class == Class::Delivered;
    // What had arrived, and was sent once more, was not lost.
    if before.iter().any(|attempt| is_delivered(&attempt)) {
        return false;
    }
    let of_schedule = before.iter().filter(|attempt| attempt.id.trigger == Trigger::Scheduled);
    let was_given_up = before.iter().any(|attempt| attempt.death.is_some());
    // One whose time ran out while it waited was put on its way again: no attempt says so, but the new cycle does.
    was_given_up || cycle > 0 && !before.is_empty() || of_schedule.count() >= FAILING_AFTER as usize
}

fn content(event_type: &str, payload: Bytes) -> Content {
    Content {
        event_type: event_type.to_owned(),
        event_id: None,
        channels: Vec::new(),
        tags: Vec::new(),
        content_type: None,
        ordering_key: None,
        deliver_at: None,
        received: None,
        payload,
    }
}

fn key_of(name: &str) -> [u8; 16] {
    let mut hash = Sha256::new();
    // No key of a request is hashed together with this.
    hash.update(b"operational\n");
    hash.update(name);
    *hash.finalize().first_chunk().expect("SHA-256 gives 32 bytes")
}

/// How soon operators hear of something, at the latest.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks of which one is made although nobody listens.
const CLEAR_EVERY: u32 = 60;

const AT_ONCE: usize = 100;
/// Entries whose messages and attempts are looked up side by side.
const READ_AT_ONCE: usize = 8;

/// Looked through for the one that is meant.
const ATTEMPTS_MAX: usize = 100;
