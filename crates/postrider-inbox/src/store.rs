//! What a store must do. The four that are here hold to one suite (`tests/stores.rs`).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{Event, EventKey, Timestamp, causes::chain, sequence::Arrival};

/// Where events lie from their arrival to the end of their retention.
///
/// The row of an event is its record, too: as long as it is there, the event is known. So recording and queueing cannot come
/// apart.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes the tables, or brings those of an older version up to date. May be called at every start, by several processes.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Records the event and queues it, in one commit; changes nothing unless it says [`Recorded::New`].
    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError>;

    /// Takes up to `max` events that are due, those first that have been due for longest. Until `lease` has passed nobody
    /// else gets them. This counts as an attempt, so that an event which ends its process each time is dead one day.
    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError>;

    /// Changes nothing if somebody else has taken the event since.
    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError>;

    /// Dead events, those first that died first.
    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError>;

    /// A dead event is due at once, with all its attempts before it.
    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError>;

    /// As `replay`, up to `max` of those that died up to `until`; says how many.
    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError>;

    /// Forgets up to `max` of each: events that were done, effects that were recorded, and ordering keys that were last seen
    /// before `before`. Says how many. An effect stays as long as its event waits or is dead in this store. Of a queue elsewhere it
    /// knows nothing: with one, `before` must be older than any event that can still come from there.
    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError>;

    /// Forgets up to `max` events that died before `before`.
    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError>;

    async fn standing(&self) -> Result<Standing, StoreError>;
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("the inbox's store cannot be reached, or refused")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the inbox's tables are of a newer version ({found}, this one knows {known})")]
    TooNew { found: i64, known: i64 },
}

impl StoreError {
    pub fn unavailable(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(source.into())
    }

    /// What it came from, for the log.
    pub(crate) fn cause(&self) -> String {
        std::error::Error::source(self).map(chain).unwrap_or_default()
    }
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub events_max: u64,
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { events_max: 100_000, bytes_max: 1 << 30 }
    }
}

impl Limits {
    /// Whether there is no room for one more of `size` bytes. Into an empty inbox everything goes that the door lets through.
    pub fn are_reached(self, queued: u64, bytes: u64, size: u64) -> bool {
        queued >= self.events_max || (queued > 0 && bytes.saturating_add(size) > self.bytes_max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only a new one was queued"]
pub enum Recorded {
    New { arrival: Option<Arrival> },
    Duplicate,
    Full,
}

/// An event that this process may work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub event: Event,
    /// From 1.
    pub attempt: u32,
    pub ticket: Ticket,
}

/// What shows that a claim is still the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub key: EventKey,
    /// Greater with every claim and replay.
    pub fence: i64,
    pub until: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    Done,
    Again { due: Timestamp, reason: String },
    Dead { reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "another worker may have taken the event"]
pub enum Settled {
    Written,
    /// Somebody else has taken the event since, or it is no longer there.
    LeaseLost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadEvent {
    pub event: Event,
    pub attempts: u32,
    pub died_at: Timestamp,
    pub reason: String,
}

impl DeadEvent {
    /// Where a list goes on after this one.
    pub fn cursor(&self) -> DeadCursor {
        DeadCursor { died_at: self.died_at, key: self.event.key.clone() }
    }
}

/// A place in the list of dead events.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadCursor {
    pub died_at: Timestamp,
    pub key: EventKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    Queued,
    /// There is no dead event of this key.
    NotDead,
}

/// How an inbox stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What waits or is being worked on.
    pub queued: u64,
    pub queued_bytes: u64,
    pub dead: u64,
    /// When the first of what waits is due, or was. A claimed event is due when its lease ends.
    pub due_first: Option<Timestamp>,
}

impl Standing {
    /// For how long the oldest due event has been waiting.
    pub fn lag(&self, now: Timestamp) -> Duration {
        self.due_first.map(|due| now.since(due)).unwrap_or_default()
    }
}

#[async_trait]
impl<T: Store + ?Sized> Store for Arc<T> {
    async fn migrate(&self) -> Result<(), StoreError> {
        (**self).migrate().await
    }

    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
        (**self).record(event, limits).await
    }

    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
        (**self).claim(max, lease, now).await
    }

    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
        (**self).settle(ticket, settlement, now).await
    }

    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        (**self).dead(after, max).await
    }

    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
        (**self).replay(key, now).await
    }

    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError> {
        (**self).replay_dead(until, max, now).await
    }

    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        (**self).clean(before, max).await
    }

    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        (**self).forget_dead(before, max).await
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        (**self).standing().await
    }
}
