//! What is kept, as plain records. They are neither wire structs nor rows; both sides translate.

use crate::{
    StateKind,
    shards::{Shards, Tenure},
};
use bytes::Bytes;
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    lanes::Held,
    policy::{Class, DeathReason, Delay, DisableReason, Health, Next, Progress, Rule},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub type Metadata = BTreeMap<String, String>;

/// Counts the changes of a record, so that two editors do not undo one another unseen.
pub type Version = i64;

#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    pub key: AppKey,
    pub version: Version,
    pub uid: Option<String>,
    pub name: String,
    /// Requests per second over all endpoints.
    pub rate_limit: Option<u32>,
    /// What it says about how its endpoints are treated: JSON, which the store does not look into.
    pub rules: Option<String>,
    /// It is a source's, and this is what the source is: sealed by the caller, who alone can open it.
    pub source: Option<Vec<u8>>,
    /// By which its messages are fetched: JSON, which the store does not look into.
    pub pollers: Option<String>,
    pub metadata: Metadata,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Which applications to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppKind {
    /// Those that are no source's.
    Plain,
    /// Those of sources.
    Source,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub key: EndpointKey,
    pub app: AppKey,
    pub version: Version,
    pub uid: Option<String>,
    pub url: String,
    pub description: String,
    /// `None`: it is enabled.
    pub disabled: Option<Disabled>,
    /// `None`: every event type.
    pub event_types: Option<Vec<String>>,
    /// `None`: messages on any channel and on none.
    pub channels: Option<Vec<String>>,
    pub metadata: Metadata,
    /// Requests per second.
    pub rate_limit: Option<u32>,
    /// What it says about how it is treated: JSON, which the store does not look into.
    pub rules: Option<String>,
    /// Signing secrets and custom headers, encrypted by the caller. The store never sees inside.
    pub sealed: Vec<u8>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Since when an endpoint gets nothing, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disabled {
    pub why: DisableReason,
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EventType {
    pub name: String,
    pub version: Version,
    pub description: String,
    pub archived: bool,
    pub deprecated: bool,
    pub feature_flags: Option<Vec<String>>,
    pub group_name: Option<String>,
    /// A JSON object, as text.
    pub schemas: Option<String>,
    /// What it says about how its messages are delivered: JSON, which the store does not look into.
    pub rules: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// An application or an endpoint, by key or by the name its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By<K> {
    Key(K),
    Uid(String),
}

/// A message as it is handed in.
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub app: AppKey,
    pub at: Timestamp,
    pub content: Content,
    /// The payload is forgotten then; the record of the message stays.
    pub payload_expires_at: Option<Timestamp>,
    /// What `Store::generation` said before that was read from which `owed` was worked out; `None`: it need not be checked.
    pub generation: Option<i64>,
    /// Every endpoint that wants it, disabled ones too: those wait.
    pub owed: Vec<EndpointKey>,
    /// Those of them that get everything in order, and count it.
    pub fifo: Vec<EndpointKey>,
    pub idempotency: Option<Idempotency>,
    pub trace: Option<TraceContext>,
}

/// What a message says, apart from when and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub event_type: String,
    pub event_id: Option<String>,
    pub channels: Vec<String>,
    pub tags: Vec<String>,
    /// `None`: `application/json`.
    pub content_type: Option<String>,
    /// Messages of one key reach an endpoint in the order in which they were accepted.
    pub ordering_key: Option<String>,
    /// Not to be sent before.
    pub deliver_at: Option<Timestamp>,
    /// What came with it, if another service sent it to a source.
    pub received: Option<Received>,
    /// The bytes as they came, and as they will be sent.
    pub payload: Bytes,
}

/// The headers of a request that another service made, in their order and without credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// They go along with every delivery.
    pub passed_on: Vec<(String, String)>,
    /// They are kept, and go nowhere.
    pub kept: Vec<(String, String)>,
}

/// Where in a trace a message was handed in: W3C's headers of that name, as they are passed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// Remembers a request, so that its repetition is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Hash of credential, key and URI.
    pub key: [u8; 16],
    /// Hash of the body.
    pub request: [u8; 16],
    /// The caller chose the key itself: another body under it is a mistake, not a repetition.
    pub chosen: bool,
}

/// A write other than a message, together with the answer that its repetition shall get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remember {
    pub idempotency: Idempotency,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    Now(MessageKey),
    /// The same request was accepted before, under this key.
    Before(MessageKey),
}

/// What a sender needs of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub message: MessageKey,
    pub app: AppKey,
    pub event_type: String,
    pub content_type: Option<String>,
    /// `None`: expired or expunged before it could be sent.
    pub payload: Option<Bytes>,
    pub accepted_at: Timestamp,
    pub order: Option<OrderKey>,
    /// Which number it has among those of its key, or of a FIFO endpoint: counted from 1, without gaps.
    pub sequences: Vec<(EndpointKey, u64)>,
    pub trace: Option<TraceContext>,
    /// What goes along of the headers that it came with.
    pub headers: Vec<(String, String)>,
}

/// What a commit changed that someone in this process must hear of.
#[derive(Clone, Debug)]
pub enum Committed {
    /// A new message, and the lanes that it goes to.
    Message { letter: Arc<Letter>, owed: Vec<EndpointKey> },
    /// Something was put into a lane's store rows and falls due then.
    Waiting { endpoint: EndpointKey, due: Timestamp },
    /// An application or one of its endpoints changed.
    Settings { app: AppKey },
    /// An event type changed.
    EventTypes,
    /// A person set the endpoint's health back.
    Health { endpoint: EndpointKey },
    /// These deliveries of a lane were ended by a person, or by a resend that arrived, whether they had rows or not.
    Cancelled { endpoint: EndpointKey, which: Cancelled },
    /// There is something to do in the background.
    Work,
    /// The lanes of these shards are this process's from now on. Whoever serves them reads how they stand, and then says
    /// so with `own`.
    Offered { tenure: Tenure, shards: Shards },
    /// The lanes of these shards are wanted elsewhere: nothing of them is handed over any more. They are to be brought to
    /// rest, and then given up with `disown`.
    Wanted { shards: Shards },
    /// All lanes are lost. What is under way is someone else's, and what becomes of it is not to be written down.
    Deposed,
}

/// Which of a lane's deliveries were cancelled. Resends are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    One(MessageKey),
    /// All messages with a key below this one.
    Before(MessageKey),
}

/// A delivery that waits in the store.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: DeliveryId,
    pub cycle: u32,
    pub progress: Progress,
    pub due: Timestamp,
    /// When this cycle began.
    pub queued_at: Timestamp,
    pub order: Option<OrderKey>,
    pub letter: Arc<Letter>,
}

#[derive(Clone, Debug)]
pub struct Loaded {
    /// In the order in which they fell due.
    pub deliveries: Vec<Waiting>,
    /// More are due than were loaded.
    pub more: bool,
    /// When the earliest of those not yet due will be.
    pub next_due: Option<Timestamp>,
    /// There are rows which wait for an earlier one of the same key (or of the FIFO lane), and are not counted above.
    pub blocked: bool,
}

/// A lane as it is found at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneFound {
    pub endpoint: EndpointKey,
    pub next_due: Timestamp,
}

/// What became of a delivery: written in one commit.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub id: DeliveryId,
    /// It came by hand-off and has no row of its own yet.
    pub handed: bool,
    pub cycle: u32,
    /// Progress including this attempt.
    pub progress: Progress,
    pub at: Timestamp,
    /// `None` if it ended without a try: expired while it waited, or its endpoint is gone.
    pub attempt: Option<AttemptRecord>,
    pub next: Next,
    /// For a delivery that has no row yet.
    pub order: Option<OrderKey>,
    /// How the endpoint fares now, where that has changed.
    pub health: Option<Health>,
    /// The endpoint is to be disabled.
    pub disable: Option<DisableReason>,
}

impl Application {
    /// The name that its owner gave it. A source's application has none of its own.
    pub fn public_uid(&self) -> Option<&str> {
        self.uid.as_deref().filter(|_| self.source.is_none())
    }
}

/// One request and what we made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    pub started_at: Timestamp,
    pub duration: Duration,
    pub url: Arc<str>,
    /// `None` if no answer came.
    pub status: Option<u16>,
    /// The body of the answer, or the error in words.
    pub response: Bytes,
    pub class: Class,
    pub rule: Rule,
    /// Why it was sent later than it was due, where it was.
    pub held: Option<Held>,
    /// The headers of request and answer that may be shown, in a form that the store does not look into. Empty: none are
    /// kept.
    pub headers: Bytes,
}

/// An attempt as it is read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub key: AttemptKey,
    pub id: DeliveryId,
    pub cycle: u32,
    /// Counts from 1 within the cycle.
    pub number: u32,
    pub record: AttemptRecord,
    /// The content was removed on request.
    pub expunged: bool,
    /// When the next try was set for, and why then.
    pub next: Option<(Timestamp, Delay)>,
    pub death: Option<DeathReason>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub key: MessageKey,
    pub app: AppKey,
    pub accepted_at: Timestamp,
    /// Its payload is empty where `payload_gone` is set.
    pub content: Content,
    pub payload_gone: bool,
    pub owed: Vec<EndpointKey>,
}

/// How one message fares with one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Not tried yet.
    Pending {
        due: Option<Timestamp>,
    },
    /// Tried, and to be tried again.
    Sending {
        due: Timestamp,
    },
    Delivered,
    Dead {
        at: Timestamp,
        reason: DeathReason,
    },
}

impl DeliveryState {
    pub fn kind(self) -> StateKind {
        match self {
            Self::Pending { .. } => StateKind::Pending,
            Self::Sending { .. } => StateKind::Sending,
            Self::Delivered => StateKind::Delivered,
            Self::Dead { reason: DeathReason::Cancelled, .. } => StateKind::Cancelled,
            Self::Dead { .. } => StateKind::Dead,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub success: u64,
    pub pending: u64,
    pub sending: u64,
    pub fail: u64,
    pub canceled: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey(pub i64);

/// A long piece of work that survives a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub key: TaskKey,
    pub app: AppKey,
    pub kind: TaskKind,
    /// How many there are to look at, as counted when it began; `None` until then.
    pub total: Option<u64>,
    /// Looked at so far.
    pub done: u64,
    /// Of those, changed: put back on their way, cancelled or expunged.
    pub changed: u64,
    pub status: TaskStatus,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// What is to be done. Kept as JSON; times are `[since, until)` of when the message was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Every dead letter of an endpoint goes on its way again.
    Recover { endpoint: i64, since: i64, until: i64 },
    /// Every message that the endpoint would get today and was never owed.
    ReplayMissing {
        endpoint: i64,
        since: i64,
        until: i64,
        event_types: Option<Vec<String>>,
        channels: Option<Vec<String>>,
    },
    /// Every message owed to the endpoint that matches, delivered or not.
    BulkReplay { endpoint: i64, filter: ReplayFilter },
    /// Every dead letter of the application that matches.
    ReplayDead { filter: DeadFilter },
    /// Everything that waits for the endpoint and was accepted before.
    Cancel { endpoint: i64, before: i64 },
    /// What waits for a disabled endpoint is sifted, and then the endpoint is enabled.
    Resume { endpoint: i64, keep: Keep },
    /// The contents of all messages of the application, and of the answers to them.
    Purge,
    /// How many attempts each application had. Found out before it is written down.
    AppStats { since: i64, until: i64, found: Vec<AppUsage> },
    /// Which types each application's endpoints ask for. Found out before it is written down.
    EventTypes { found: Vec<AppSubscriptions> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppUsage {
    pub app: i64,
    pub uid: Option<String>,
    pub attempts: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppSubscriptions {
    pub app: i64,
    /// Sorted, each once.
    pub event_types: Vec<String>,
    /// An endpoint takes whatever comes.
    pub takes_all: bool,
}

/// What is still to be delivered when an endpoint is resumed; the rest is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    All,
    /// Accepted at or after this moment.
    Since(i64),
    /// Of each ordering key the newest; of messages without a key, all.
    NewestPerKey,
    None,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayFilter {
    pub since: i64,
    pub until: i64,
    pub event_types: Vec<String>,
    pub channel: Option<String>,
    pub tag: Option<String>,
    pub state: Option<StateKind>,
    /// The hundreds of the last answer's status; 0 for no answer.
    pub status_class: Option<u16>,
}

/// Which dead letters. An empty filter lets all through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadFilter {
    pub endpoint: Option<i64>,
    /// Only those of these messages; all, if there are none.
    #[serde(default)]
    pub messages: Vec<i64>,
    /// What a person called back is left out, unless `reason` asks for it.
    #[serde(default)]
    pub but_cancelled: bool,
    pub event_types: Vec<String>,
    pub reason: Option<DeadReason>,
    /// The last answer's status; 0 for no answer.
    pub status: Option<u16>,
    /// When it died: inclusive.
    pub since: Option<i64>,
    /// Exclusive.
    pub until: Option<i64>,
}

/// `DeathReason`, as it is kept in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    Permanent,
    Exhausted,
    Expired,
    EndpointGone,
    Cancelled,
    Breaker,
}

impl TaskKind {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Recover { .. } => "recover",
            Self::ReplayMissing { .. } => "replay_missing",
            Self::BulkReplay { .. } => "bulk_replay",
            Self::ReplayDead { .. } => "replay_dead",
            Self::Cancel { .. } => "cancel",
            Self::Resume { .. } => "resume",
            Self::Purge => "purge",
            Self::AppStats { .. } => "app_stats",
            Self::EventTypes { .. } => "event_types",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    Running,
    Finished,
    /// A person ended it before its end.
    Cancelled,
}

impl From<DeadReason> for DeathReason {
    fn from(reason: DeadReason) -> Self {
        match reason {
            DeadReason::Permanent => Self::Permanent,
            DeadReason::Exhausted => Self::Exhausted,
            DeadReason::Expired => Self::Expired,
            DeadReason::EndpointGone => Self::EndpointGone,
            DeadReason::Cancelled => Self::Cancelled,
            DeadReason::Breaker => Self::Breaker,
        }
    }
}

/// A delivery that was given up, and what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub message: Message,
    pub endpoint: EndpointKey,
    pub reason: DeathReason,
    pub at: Timestamp,
    pub cycle: u32,
    /// When it was last put on its way again.
    pub replayed_at: Option<Timestamp>,
    /// Attempts in all cycles.
    pub attempts: u32,
    pub last_attempt: Option<Attempt>,
}

/// Where a dead letter stands in a list: by message, then by endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadKey {
    pub message: MessageKey,
    pub endpoint: EndpointKey,
}

impl DeadKey {
    pub(crate) fn delivery(self) -> DeliveryId {
        DeliveryId { endpoint: self.endpoint, message: self.message, trigger: Trigger::Scheduled }
    }
}

/// What waits for an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub waiting: u64,
    /// When the oldest of it was accepted.
    pub oldest: Option<Timestamp>,
    /// What `Keep::Since` would keep, where a moment was asked for.
    pub since: Option<u64>,
    pub newest_per_key: u64,
}

/// Which part of a list to show. Lists are cut at keys, so that a page stays the same page while rows are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<K> {
    pub from: Option<Cut<K>>,
    pub order: Order,
    pub limit: usize,
}

/// Where a page begins: just past a key, seen in the list's order, or just before it (paging back).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut<K> {
    Past(K),
    Before(K),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

/// Which messages to list. An empty filter lets all through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    pub event_types: Vec<String>,
    pub channel: Option<String>,
    pub tag: Option<String>,
    /// Inclusive.
    pub after: Option<Timestamp>,
    /// Exclusive.
    pub before: Option<Timestamp>,
}

/// What to look for among an application's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    pub filter: MessageFilter,
    /// Owed to this one.
    pub endpoint: Option<EndpointKey>,
    /// That stand so with the endpoint, or with any if none is named. Empty: however they stand.
    pub states: Vec<StateKind>,
    /// Only what is older than this one.
    pub past: Option<MessageKey>,
    /// How many to find at most.
    pub limit: usize,
    /// How many to look at, about.
    pub look_max: usize,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Searched {
    /// Each with how it stands with the endpoints it is owed to, in the order of their keys; only with the one that was asked
    /// for, if one was.
    pub found: Vec<(Message, Vec<(EndpointKey, DeliveryState)>)>,
    /// The last message that was looked at, if there may be more behind it.
    pub until: Option<MessageKey>,
}

impl Search {
    /// The endpoints of a message that this is about, or `None` if it is not about that message.
    pub fn concerned(&self, owed: &[EndpointKey]) -> Option<Vec<EndpointKey>> {
        let mut concerned: Vec<EndpointKey> =
            owed.iter().copied().filter(|key| self.endpoint.is_none_or(|wanted| wanted == *key)).collect();
        concerned.sort_unstable();
        (self.endpoint.is_none() || !concerned.is_empty()).then_some(concerned)
    }

    /// Whether a message is found that stands so.
    pub fn finds(&self, states: &[(EndpointKey, DeliveryState)]) -> bool {
        self.states.is_empty() || states.iter().any(|(_, state)| self.states.contains(&state.kind()))
    }
}

/// Which attempts to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptFilter {
    pub message: MessageFilter,
    pub endpoint: Option<EndpointKey>,
    pub succeeded: Option<bool>,
    /// The hundreds of the answer's status: 2 for 2xx; 0 for no answer.
    pub status_class: Option<u16>,
}

/// Whose attempts to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptsOf {
    Message(MessageKey),
    Endpoint(AppKey, EndpointKey),
}
