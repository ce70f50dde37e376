//! Takes requests in: verified, recorded and queued before they are answered.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use postrider_signature::{Received, Source};
use tokio::sync::Notify;

use crate::{
    Clock, DeadCursor, DeadEvent, Event, EventId, EventKey, Fault, Limits, Outcome, Place, Recorded, Replayed,
    Retention, SourceName, SourceNameError, Standing, Store, StoreError, event::is_short_text, meters,
};

/// An inbox over a store. Clones are one and the same.
pub struct Inbox<S> {
    pub(crate) inside: Arc<Inside<S>>,
}

pub(crate) struct Inside<S> {
    pub(crate) store: S,
    pub(crate) clock: Box<dyn Clock>,
    limits: Limits,
    retry_after: Duration,
    retention: Retention,
    /// A worker in this process need not wait for its next look.
    pub(crate) arrived: Notify,
}

impl<S> Clone for Inbox<S> {
    fn clone(&self) -> Self {
        Self { inside: Arc::clone(&self.inside) }
    }
}

/// What suits most. A later version may have more of them: set what you need, and end with `..InboxSettings::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxSettings {
    pub limits: Limits,
    /// What a sender is told while the inbox is full.
    pub retry_after: Duration,
    pub retention: Retention,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self { limits: Limits::default(), retry_after: Duration::from_secs(30), retention: Retention::default() }
    }
}

impl<S: Store> Inbox<S> {
    pub fn new(store: S, clock: impl Clock) -> Self {
        Self::with_settings(store, clock, InboxSettings::default())
    }

    pub fn with_settings(store: S, clock: impl Clock, settings: InboxSettings) -> Self {
        let InboxSettings { limits, retry_after, retention } = settings;
        let arrived = Notify::new();
        Self { inside: Arc::new(Inside { store, clock: Box::new(clock), limits, retry_after, retention, arrived }) }
    }

    pub fn store(&self) -> &S {
        &self.inside.store
    }

    /// Makes the tables, or brings them up to date.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.inside.store.migrate().await
    }

    /// Where the requests of one sender come in. `name` is a part of every key: another name is another sender.
    pub fn door(&self, name: &str, source: Source) -> Result<Door<S>, SourceNameError> {
        let settings = DoorSettings {
            name: SourceName::parse(name)?,
            source,
            body_max: BODY_MAX_DEFAULT,
            headers_kept: vec!["content-type".to_owned()],
            id: None,
            ordering_key: None,
        };
        Ok(Door { inbox: self.clone(), settings: Arc::new(settings) })
    }

    /// Dead events, those first that died first.
    pub async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        self.inside.store.dead(after, max).await
    }

    /// A dead event is due at once, with all its attempts before it.
    pub async fn replay(&self, key: &EventKey) -> Result<Replayed, StoreError> {
        let replayed = self.inside.store.replay(key, self.inside.clock.now()).await?;
        self.inside.arrived.notify_one();
        Ok(replayed)
    }

    /// All that are dead by now, in pieces. Says how many.
    pub async fn replay_all_dead(&self) -> Result<usize, StoreError> {
        let until = self.inside.clock.now();
        let mut replayed = 0;
        loop {
            let piece = self.inside.store.replay_dead(until, PIECE, self.inside.clock.now()).await?;
            replayed += piece;
            self.inside.arrived.notify_one();
            if piece < PIECE {
                return Ok(replayed);
            }
        }
    }

    /// Forgets what was done longer ago than the retention, in pieces of which none holds others up for long. Dead events
    /// stay. Says how many rows went. A worker does this by itself.
    pub async fn clean(&self) -> Result<usize, StoreError> {
        let before = self.inside.clock.now().before(self.inside.retention.time());
        let mut forgotten = 0;
        loop {
            let piece = self.inside.store.clean(before, PIECE).await?;
            forgotten += piece;
            if piece == 0 {
                return Ok(forgotten);
            }
            // Between two pieces others have their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Forgets events that have been dead for longer than `time`: nobody will replay them. Nothing does this by itself.
    pub async fn forget_dead_for(&self, time: Duration) -> Result<usize, StoreError> {
        let before = self.inside.clock.now().before(time);
        let mut forgotten = 0;
        loop {
            let piece = self.inside.store.forget_dead(before, PIECE).await?;
            forgotten += piece;
            if piece == 0 {
                return Ok(forgotten);
            }
            tokio::task::yield_now().await;
        }
    }

    /// How the inbox stands; told to the metrics, too.
    pub async fn standing(&self) -> Result<Standing, StoreError> {
        let standing = self.inside.store.standing().await?;
        meters::standing(&standing, self.inside.clock.now());
        Ok(standing)
    }
}

/// Where the requests of one sender come in. Clones are one and the same.
pub struct Door<S> {
    inbox: Inbox<S>,
    settings: Arc<DoorSettings>,
}

impl<S> Clone for Door<S> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone(), settings: Arc::clone(&self.settings) }
    }
}

#[derive(Clone)]
struct DoorSettings {
    name: SourceName,
    source: Source,
    body_max: usize,
    headers_kept: Vec<String>,
    id: Option<FoundIn>,
    ordering_key: Option<FoundIn>,
}

type FoundIn = Arc<dyn Fn(&HeaderMap, &[u8]) -> Option<String> + Send + Sync>;

impl<S: Store> Door<S> {
    /// Bodies of more bytes are answered 413. A mebibyte unless told.
    pub fn with_body_max(self, bytes: usize) -> Self {
        self.with(|settings| settings.body_max = bytes)
    }

    /// Headers that the handler gets to see. `content-type` unless told.
    pub fn keeping_headers<'n>(self, names: impl IntoIterator<Item = &'n str>) -> Self {
        let names = names.into_iter().map(str::to_ascii_lowercase).collect();
        self.with(|settings| settings.headers_kept = names)
    }

    /// Where the event's id is, for senders that have it in no header: Stripe's is `id` in the body.
    ///
    /// It is asked for verified requests only. What is not signed can be changed by whoever replays a request: take the id from
    /// what the signature covers.
    pub fn with_id(self, find: impl Fn(&HeaderMap, &[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.id = Some(Arc::new(find)))
    }

    /// What events are ordered by, for gaps. Postrider's requests say the number and not the key: it is something in the
    /// payload, such as a customer's id. Without this, all of the source is one order, as for a FIFO endpoint.
    ///
    /// An event of which this says `None`, or a text of more than 256 bytes or with control characters, has no place in any
    /// order.
    pub fn with_ordering_key(self, find: impl Fn(&HeaderMap, &[u8]) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.ordering_key = Some(Arc::new(find)))
    }

    fn with(mut self, change: impl FnOnce(&mut DoorSettings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    pub fn inbox(&self) -> &Inbox<S> {
        &self.inbox
    }

    pub fn name(&self) -> &SourceName {
        &self.settings.name
    }

    pub fn body_max(&self) -> usize {
        self.settings.body_max
    }

    /// Verifies the request, records the event and queues it in one commit, and says what became of it.
    /// [`Outcome::answer`] is what to answer.
    ///
    /// `body` is the bytes as they came, before anything read them.
    pub async fn take(&self, headers: &HeaderMap, body: Bytes) -> Outcome {
        let outcome = match self.judge(headers, body) {
            Ok(event) => self.record(&event).await,
            Err(outcome) => outcome,
        };
        self.note(&outcome);
        outcome
    }

    /// Verifies and records nothing: for those who call `process` in a transaction of their own before they answer.
    pub fn verify(&self, headers: &HeaderMap, body: Bytes) -> Result<Event, Outcome> {
        self.judge(headers, body).inspect_err(|outcome| self.note(outcome))
    }

    /// What became of a request, to be counted and logged.
    pub(crate) fn note(&self, outcome: &Outcome) {
        meters::outcome(self.settings.name.as_str(), outcome);
        if let Outcome::Refused(fault) = outcome {
            tracing::info!(source = %self.settings.name, reason = fault.reason(), "a webhook was refused: {fault}");
        }
    }

    fn judge(&self, headers: &HeaderMap, body: Bytes) -> Result<Event, Outcome> {
        let DoorSettings { name, source, body_max, headers_kept, id, ordering_key } = &*self.settings;
        if body.len() > *body_max {
            return Err(Outcome::TooLarge { max: *body_max });
        }
        let now = self.inbox.inside.clock.now();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let verified = source.verify(&Received::new(&header, &body), now.as_secs());
        let verified = verified.map_err(|refusal| Outcome::Refused(Fault::Signature(refusal)))?;
        let id = match id {
            Some(find) => find(headers, &body),
            None => verified.id,
        };
        let id = id.ok_or(Outcome::Refused(Fault::NoId))?;
        let id = EventId::parse(&id).map_err(|error| Outcome::Refused(Fault::BadId(error)))?;
        let kept = headers_kept.iter().filter_map(|name| Some((name.clone(), header(name)?.to_owned()))).collect();
        let place = number(header(SEQUENCE_HEADER)).and_then(|number| {
            let ordering_key = match ordering_key {
                Some(find) => find(headers, &body).filter(|key| is_short_text(key))?,
                None => String::new(),
            };
            Some(Place { ordering_key, number })
        });
        let key = EventKey { source: name.clone(), id };
        Ok(Event { key, body, headers: kept, received_at: now, place, arrival: None })
    }

    async fn record(&self, event: &Event) -> Outcome {
        let inside = &self.inbox.inside;
        match inside.store.record(event, inside.limits).await {
            Ok(Recorded::New { arrival }) => {
                inside.arrived.notify_one();
                Outcome::Accepted { arrival }
            }
            Ok(Recorded::Duplicate) => Outcome::Duplicate,
            Ok(Recorded::Full) => Outcome::Full { retry_after: inside.retry_after },
            Err(error) => {
                tracing::error!(source = %self.settings.name, cause = error.cause(), "a webhook was not recorded: {error}");
                Outcome::StoreOut
            }
        }
    }
}

/// Numbers begin at 1, and every store can keep one that is not negative in 64 bits.
fn number(header: Option<&str>) -> Option<u64> {
    header?.parse().ok().filter(|number| (1..=i64::MAX as u64).contains(number))
}

/// What Postrider sends with ordered deliveries.
const SEQUENCE_HEADER: &str = "webhook-sequence";
const BODY_MAX_DEFAULT: usize = 1 << 20;
/// Rows that are written in one commit where many are to be.
const PIECE: usize = 500;
