//! The one door to what is stored.

use crate::{
    AlarmTurn,
    callers::*,
    journal::*,
    pollers::*,
    records::*,
    refused::*,
    shards::{Shards, Tenure},
    tallies::{Counted, TalliesOf, Tally, TallyCode, TallySpan},
};
use async_trait::async_trait;
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{Health, Ordering},
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// What Postrider asks of a store. All of it returns only after the change is durable.
///
/// Nothing here takes a transaction: each verb is one, shared with whoever else is waiting.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    // The way of a message.

    /// Stores a message with everything it owes. After `Ok` it survives whatever dies.
    async fn accept(&self, message: NewMessage) -> Result<Accepted, AcceptError>;

    /// Stores messages in this order, each by itself, and answers each in its place: what is said of one holds when all of
    /// this returns. They share commits where they can. Where there is no room for one there is none for those behind it.
    async fn accept_in_order(&self, messages: Vec<NewMessage>) -> Vec<Result<Accepted, AcceptError>> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(match answers.last() {
                Some(Err(AcceptError::Store(StoreError::Busy))) => Err(StoreError::Busy.into()),
                Some(Ok(_) | Err(_)) | None => self.accept(message).await,
            });
        }
        answers
    }

    /// Everything that this store object commits, in the order of commit. To be taken once, by the
    /// dispatcher. It does not hang on the caller of a verb, who may have gone away by then.
    fn committed(&self) -> mpsc::UnboundedReceiver<Vec<Committed>>;

    /// Says whether deliveries are behind for our own sake, so that a store may write less often.
    fn set_lag(&self, _lags: bool) {}

    /// Says that the lanes of these shards, which were offered in `committed`, are ready to be handed messages.
    fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError>;
    /// Gives up shards whose lanes are quiet: nothing of them is in memory, on the network or being written down.
    async fn disown(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError>;
    /// This process is about to stop: it is offered nothing more, and what it has is wanted elsewhere.
    async fn retire(&self) -> Result<(), StoreError>;
    /// The one that began last.
    fn tenure(&self) -> Tenure;
    /// Whether this process can be sure, just now, that nobody else owns the lanes it was offered in this tenure.
    fn may_send(&self, tenure: Tenure) -> bool;
    /// Whether this process does the work that is done once for all nodes.
    fn leads(&self) -> bool;
    /// The shards whose lanes this process serves just now.
    fn owned(&self) -> Shards;
    /// What the store's own clock says, where it has one that counts for everybody.
    async fn time(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Gives handed-off deliveries rows of their own, so that they need not be kept in memory.
    async fn spill(
        &self,
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
    ) -> Result<(), StoreError>;

    /// The deliveries of one lane that are due by `now` and, where there is an order, have nothing before them that is
    /// not part of the answer: of each key (or of the whole lane, if it is FIFO) a run in the order of the messages,
    /// from the first one that waits. Those who follow others come only where the first ones leave room.
    async fn load(
        &self,
        endpoint: EndpointKey,
        ordering: Ordering,
        now: Timestamp,
        limit: usize,
    ) -> Result<Loaded, StoreError>;

    async fn settle(&self, tenure: Tenure, settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError>;

    /// Every lane of these shards that has something waiting.
    async fn lanes(&self, shards: Shards) -> Result<Vec<LaneFound>, StoreError>;

    /// Every endpoint of these shards that is not in perfect health.
    async fn healths(&self, shards: Shards) -> Result<Vec<(EndpointKey, Health)>, StoreError>;
    /// How one endpoint fares.
    async fn health(&self, endpoint: EndpointKey) -> Result<Health, StoreError>;
    /// Sets an endpoint's health back: its breaker is closed, its failures are forgotten.
    async fn reset_health(&self, endpoint: EndpointKey) -> Result<(), StoreError>;

    /// Puts one message on its way to one endpoint once more, now.
    async fn resend(
        &self,
        message: MessageKey,
        endpoint: EndpointKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<(), PutError>;

    // Settings.

    /// A new key, greater than every key that was in use before it.
    async fn mint(&self, at: Timestamp) -> Result<i64, StoreError>;

    async fn put_application(
        &self,
        application: Application,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError>;
    async fn application(&self, by: By<AppKey>) -> Result<Option<Application>, StoreError>;
    /// Counts the changes of an application and of its endpoints, where others can make them without this process knowing
    /// at once. Whoever keeps what he reads asks for it first.
    async fn generation(&self, app: AppKey) -> Result<Option<i64>, StoreError>;
    async fn applications(&self, page: Page<AppKey>) -> Result<Vec<Application>, StoreError>;
    /// Those of sources, or all others.
    async fn applications_of(&self, kind: AppKind, page: Page<AppKey>) -> Result<Vec<Application>, StoreError>;
    /// Deletes an application with its endpoints. False if there was none.
    async fn delete_application(&self, app: AppKey, at: Timestamp) -> Result<bool, StoreError>;

    async fn put_endpoint(
        &self,
        endpoint: Endpoint,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError>;
    async fn endpoint(&self, app: AppKey, by: By<EndpointKey>) -> Result<Option<Endpoint>, StoreError>;
    async fn endpoints(&self, app: AppKey, page: Page<EndpointKey>) -> Result<Vec<Endpoint>, StoreError>;
    /// One endpoint, whosever it is: for the dispatcher, which knows lanes and not applications.
    async fn endpoint_of_lane(&self, endpoint: EndpointKey) -> Result<Option<Endpoint>, StoreError>;
    /// What still waits for it becomes dead letters, a piece at a time: see `bury`.
    async fn delete_endpoint(&self, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<bool, StoreError>;
    /// Moves some deliveries of deleted endpoints to the dead letters. True while there is more to do.
    async fn bury(&self, at: Timestamp) -> Result<bool, StoreError>;

    async fn put_event_type(
        &self,
        event_type: EventType,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError>;
    async fn event_type(&self, name: &str) -> Result<Option<EventType>, StoreError>;
    async fn event_types(&self, page: Page<String>, archived: Archived) -> Result<Vec<EventType>, StoreError>;
    async fn delete_event_type(&self, name: &str) -> Result<bool, StoreError>;

    /// Small facts about the deployment itself.
    async fn note(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;
    async fn put_note(&self, name: &str, value: Vec<u8>) -> Result<(), StoreError>;

    /// Keeps an answer that no other verb stores along with its change.
    async fn remember(&self, remember: Remember, at: Timestamp) -> Result<(), PutError>;

    // Dead letters, and what waits.

    /// Newest message first. Those that were put on their way again are not shown.
    async fn dead_letters(
        &self,
        app: AppKey,
        filter: DeadFilter,
        page: Page<DeadKey>,
    ) -> Result<Vec<DeadLetter>, StoreError>;
    /// Also one that was put on its way again since; not one whose time among the dead letters is over.
    async fn dead_letter(&self, app: AppKey, key: DeadKey) -> Result<Option<DeadLetter>, StoreError>;
    /// How many there are, up to `limit`.
    async fn count_dead_letters(&self, app: AppKey, filter: DeadFilter, limit: u64) -> Result<u64, StoreError>;
    /// Puts one dead letter on its way again, as a new cycle. `Ok(false)`: it is no dead letter (any more), or its
    /// endpoint or its content is gone.
    async fn replay(
        &self,
        app: AppKey,
        key: DeadKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<bool, PutError>;
    /// Ends what is not finished of a message, at one endpoint or at all; tells how many deliveries that were.
    async fn cancel_message(
        &self,
        app: AppKey,
        message: MessageKey,
        endpoint: Option<EndpointKey>,
        at: Timestamp,
    ) -> Result<u64, StoreError>;
    /// What waits for an endpoint in the store.
    async fn backlog(&self, endpoint: EndpointKey, since: Option<Timestamp>) -> Result<Backlog, StoreError>;
    /// Moves some of what has waited too long in a lane that is parked to the dead letters: what is past its
    /// `give_up_at`, and what has not been tried, is due, and was queued before `untried_before`. Looks at messages past `from`
    /// and says how far it came; `None`: to the end.
    async fn expire(
        &self,
        endpoint: EndpointKey,
        from: Option<MessageKey>,
        untried_before: Timestamp,
        now: Timestamp,
    ) -> Result<Option<MessageKey>, StoreError>;

    // Looking back.

    async fn message(&self, app: AppKey, by: By<MessageKey>) -> Result<Option<Message>, StoreError>;
    async fn messages(
        &self,
        app: AppKey,
        filter: MessageFilter,
        page: Page<MessageKey>,
    ) -> Result<Vec<Message>, StoreError>;
    async fn attempts(
        &self,
        of: AttemptsOf,
        filter: AttemptFilter,
        page: Page<AttemptKey>,
    ) -> Result<Vec<Attempt>, StoreError>;
    async fn attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<Option<Attempt>, StoreError>;
    /// How a message fares with each endpoint it is owed to, in the order of the endpoints' keys.
    async fn deliveries(&self, message: MessageKey) -> Result<Vec<(EndpointKey, DeliveryState)>, StoreError>;
    /// The messages owed to one endpoint, newest first.
    async fn messages_of_endpoint(
        &self,
        app: AppKey,
        endpoint: EndpointKey,
        filter: MessageFilter,
        states: Vec<StateKind>,
        page: Page<MessageKey>,
    ) -> Result<Vec<(Message, DeliveryState)>, StoreError>;
    /// The messages of an application that fit, or of all but the operational one, newest first. Stops when it has looked at `look_max` of them, each counted as
    /// often as it had to be looked how it stands with an endpoint, and says how far it came, so that whoever looks for something rare is answered in time, and can go on.
    async fn search(&self, app: Option<AppKey>, search: Search) -> Result<Searched, StoreError>;
    /// Counts deliveries by the time their message was accepted.
    async fn stats(&self, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Result<Stats, StoreError>;

    /// Removes the payload for good. False if there is no such message.
    async fn expunge_message(&self, app: AppKey, message: MessageKey) -> Result<bool, StoreError>;
    /// The same for many, in the order given.
    async fn expunge_messages(&self, app: AppKey, messages: Vec<MessageKey>) -> Result<Vec<bool>, StoreError>;
    /// Removes the kept response for good. False if there is no such attempt.
    async fn expunge_attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<bool, StoreError>;

    // Who may call, and who did.

    /// `Taken`, if there is one with this key.
    async fn put_api_key(&self, api_key: ApiKey) -> Result<(), PutError>;
    async fn api_key(&self, key: ApiKeyKey) -> Result<Option<ApiKey>, StoreError>;
    /// Those that have ended, too.
    async fn api_keys(&self, page: Page<ApiKeyKey>) -> Result<Vec<ApiKey>, StoreError>;
    /// Ends one for good, and tells how it stands. `None` if there is no such key.
    async fn revoke_api_key(&self, key: ApiKeyKey, at: Timestamp) -> Result<Option<ApiKey>, StoreError>;
    /// Puts `new` in the place of `old`, which holds until then at most. `Changed`, if it does not hold at `new.created_at`.
    async fn rotate_api_key(&self, old: ApiKeyKey, until: Timestamp, new: ApiKey) -> Result<(), PutError>;
    /// Notes when keys were used last. An earlier use does not take the place of a later one.
    async fn note_api_key_uses(&self, uses: Vec<(ApiKeyKey, Timestamp)>) -> Result<(), StoreError>;

    async fn revoke_tokens(&self, revocations: Vec<Revocation>) -> Result<(), StoreError>;
    async fn is_revoked(&self, token: Issued, now: Timestamp) -> Result<bool, StoreError>;

    /// Adds to the audit log. Nothing takes anything out of it again.
    async fn add_to_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError>;
    async fn audit(&self, filter: AuditFilter, page: Page<AuditKey>) -> Result<Vec<AuditEntry>, StoreError>;

    // Fetching instead of being sent to.

    /// No message is accepted any more with a key up to this one, and it is as great as can be had without
    /// holding anyone up.
    async fn horizon(&self, now: Timestamp) -> Result<MessageKey, StoreError>;
    /// Reads an application's messages on from a place.
    async fn read_on(&self, app: AppKey, wanted: ReadOn) -> Result<WasRead, StoreError>;
    async fn consumer(&self, poller: PollerKey, name: &str) -> Result<Option<Consumer>, StoreError>;
    /// All of a poller, by name.
    async fn consumers(&self, poller: PollerKey) -> Result<Vec<Consumer>, StoreError>;
    /// Keeps where a consumer is, and tells how he stands now. `Full`, if he is new and there are `CONSUMERS_MAX` already.
    async fn move_consumer(&self, stride: Stride, remember: Option<Remember>) -> Result<Consumer, PutError>;
    /// One, or all. False if there was none.
    async fn forget_consumers(&self, poller: PollerKey, name: Option<&str>) -> Result<bool, StoreError>;

    // What sources did not take.

    /// Notes requests that were refused. Of each source, the newest `REFUSED_MAX` are kept.
    async fn add_to_refused(&self, refused: Vec<Refused>) -> Result<(), StoreError>;
    async fn refused(&self, app: AppKey, page: Page<RefusedKey>) -> Result<Vec<Refused>, StoreError>;

    // What operators are told.

    /// Enters what a node found out by watching, if there is an operational endpoint. What has the name of an entry that
    /// is there is entered once.
    async fn enter_alert(&self, app: Option<AppKey>, alert: AlertHappened, at: Timestamp) -> Result<(), StoreError>;
    /// Keeps that an alarm is raised, or is not any more, and enters it. False if it was so already: then somebody else has
    /// told of it, and nothing is entered.
    async fn turn_alarm(&self, turn: AlarmTurn) -> Result<bool, StoreError>;
    /// The subjects of the alarms that are raised.
    async fn raised_alarms(&self) -> Result<Vec<String>, StoreError>;
    /// The entries that nobody has been told of yet, the oldest first.
    async fn untold(&self, limit: usize) -> Result<Vec<JournalEntry>, StoreError>;
    /// These are dealt with, and go.
    async fn strike_out(&self, entries: Vec<JournalKey>) -> Result<(), StoreError>;

    // Work in the background.

    /// Adds to what was counted.
    async fn add_to_tallies(&self, tallies: Vec<Tally>) -> Result<(), StoreError>;
    /// How much was counted of each application: of events from the first to the last of these, in `[since, until)`, widened
    /// to whole spans. In no order.
    async fn tallies_by_application(
        &self,
        events: (TallyCode, TallyCode),
        span: TallySpan,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<(AppKey, u64)>, StoreError>;
    /// In order of time. Where nothing was counted there is nothing.
    async fn tallies(&self, of: TalliesOf) -> Result<Vec<Counted>, StoreError>;

    async fn start_task(&self, task: Task, remember: Option<Remember>) -> Result<(), PutError>;
    /// Does a bounded piece of a task and tells how it stands now.
    async fn advance_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError>;
    async fn task(&self, task: TaskKey) -> Result<Option<Task>, StoreError>;
    async fn tasks(&self, filter: TaskFilter, page: Page<TaskKey>) -> Result<Vec<Task>, StoreError>;
    /// Ends a task before its end; what it has done stays done. `None` if there is no such task.
    async fn cancel_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError>;
    async fn unfinished_tasks(&self) -> Result<Vec<TaskKey>, StoreError>;
    /// Forgets some of what is past its time. True while there is more to do.
    async fn tidy(&self, now: Timestamp, retention: Retention) -> Result<bool, StoreError>;

    /// The nodes that share this store, in the order in which they came. None, if it is never shared.
    async fn nodes(&self) -> Result<Vec<Node>, StoreError>;
    /// How much lies in these shards. Takes as long as there is much.
    async fn counts(&self, shards: Shards) -> Result<Counts, StoreError>;
    /// False once it was closed, or if a part of it has died, so that it will never answer again.
    fn is_open(&self) -> bool;
    /// Finishes what is queued and closes. Nothing may be asked of the store afterwards.
    async fn close(&self);
}

/// What a put expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Absent,
    /// The record as it was read; what is put carries the next version.
    Version(Version),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archived {
    Hide,
    Show,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateKind {
    Pending,
    Sending,
    Delivered,
    Dead,
    Cancelled,
}

/// Which tasks to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskFilter {
    pub app: Option<AppKey>,
    pub status: Option<TaskStatus>,
    /// Names of kinds, as in `TaskKind::name`; empty: all.
    pub kinds: Vec<&'static str>,
}

/// How long finished things are kept. A message and what became of it stay known for the longest of the first three; what
/// it and its attempts contained goes by their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub payloads: Duration,
    pub attempts: Duration,
    pub dead_letters: Duration,
    /// Of answers; keys of messages are looked for in `IDEMPOTENCY_MEMORY`.
    pub idempotency: Duration,
}

/// How long a request is remembered, so that its repetition is recognised.
pub const IDEMPOTENCY_MEMORY: Duration = Duration::from_hours(24);

/// What the metrics show of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: u64,
    pub dead: u64,
}

/// A node, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: i64,
    pub name: String,
    pub started_at: Option<Timestamp>,
    /// Its lease is not over.
    pub alive: bool,
    pub lease_until: Option<Timestamp>,
    pub retiring: bool,
    /// How many it has.
    pub shards: usize,
    /// It is the one that was asked.
    pub is_self: bool,
}

/// What was done to the tables, by version. Nothing, if both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// 0: there were none.
    pub from: i64,
    pub to: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    #[error("the application already has a message with this event id")]
    EventIdTaken,
    #[error("the idempotency key was used before with another request")]
    KeyReused,
    /// Whom the message is owed to was worked out from settings that have changed since. Nothing was stored.
    #[error("the settings have changed meanwhile")]
    Outdated,
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// There are as many as there can be.
    #[error("there are as many as there can be")]
    Full,
    /// A uid or a name that must be unique is in use.
    #[error("the name is taken")]
    Taken,
    /// Someone else changed or removed the record in between.
    #[error("the record has changed meanwhile")]
    Changed,
    #[error("the idempotency key was used before with another request")]
    KeyReused,
    /// The same request was carried out before; this was its answer.
    #[error("the request was carried out before")]
    Repeated(Answer),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// More is queued than may be. Nothing was stored; try again shortly.
    #[error("the store is busy")]
    Busy,
    /// The disk is full, or the database is out of room.
    #[error("there is no room left to store anything")]
    Full,
    #[error("the store could not carry this out: {0}")]
    Database(String),
    /// The database cannot be reached just now.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The lanes are, or may be, someone else's by now. What was handed in is void.
    #[error("this node's time as an owner is over")]
    Deposed,
    #[error("the store is closed")]
    Closed,
}
