//! PostgreSQL: any number of equal nodes on one database.
//!
//! The same rooms as in `sqlite`. `writer` commits in groups; `accept` and `settle` are what it writes in bulk, beside
//! other nodes; `settings`, `cancel`, `dead`, `expire`, `tasks`, `steps` and `tidy` are what it writes in turns, while no
//! other node writes. `readers`' connections look up what `load`, `history`, `dead` and `counts` ask for. `leases` says which lanes
//! are this node's, `news` tells nodes what others changed, `recover` finds what a dead node left without a row, and
//! `pieces` keeps the partitions.

mod accept;
mod address;
mod callers;
mod cancel;
mod connect;
mod counts;
mod dead;
mod doctor;
mod ears;
mod expire;
mod health;
mod history;
mod jobs;
mod journal;
mod leases;
mod load;
pub(crate) mod moving;
mod news;
mod outstanding;
mod pieces;
mod pollers;
mod reach;
mod readers;
mod recover;
mod refused;
mod schema;
mod settings;
mod settle;
mod shared;
mod steps;
mod tallies;
mod tasks;
#[cfg(test)]
mod tests;
mod tidy;
mod tls;
mod visit;
mod writer;

pub use address::{BadUrl, DatabaseUrl};
pub use connect::{OpenError, PostgresOptions, migrate};
pub use doctor::examine;
pub(crate) use reach::Bell;
pub use visit::Visitor;

use crate::{
    AlarmTurn,
    callers::*,
    journal::*,
    pollers::{Consumer, PollerKey, ReadOn, Stride, WasRead},
    records::*,
    refused::{Refused, RefusedKey},
    rows::Unreadable,
    shards::{Shards, Tenure},
    store::*,
    tallies::{Counted, TalliesOf, Tally, TallyCode, TallyOf, TallySpan},
};
use async_trait::async_trait;
use jobs::{Turn, Writer};
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{Health, Ordering},
};
use readers::Readers;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_postgres::{Row, error::SqlState, types::ToSql};

/// A connection, in or out of a transaction.
pub(crate) type Db = deadpool_postgres::ClientWrapper;

type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Database(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("no connection: {0}")]
    Unreachable(String),
    #[error("the database took too long")]
    TooSlow,
    #[error("this node's time as an owner is over")]
    Deposed,
    /// Greater keys are in use where keys must grow.
    #[error("keys up to {used} are in use")]
    KeyTooSmall { used: i64 },
    #[error("a part of the store broke down")]
    Panicked,
    #[error("the store is closed")]
    Closed,
}

impl Error {
    fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) => error.code(),
            Self::Unreadable(_)
            | Self::Unreachable(_)
            | Self::TooSlow
            | Self::Deposed
            | Self::KeyTooSmall { .. }
            | Self::Panicked
            | Self::Closed => None,
        }
    }

    /// The connection is of no use any more, or the server does not take writes.
    fn is_lost(&self) -> bool {
        match self {
            Self::Database(error) => match error.code() {
                None => {
                    error.is_closed()
                        || std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>())
                }
                Some(code) => {
                    code.code().starts_with("57P")
                        || code.code().starts_with("08")
                        || [SqlState::READ_ONLY_SQL_TRANSACTION, SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT]
                            .contains(code)
                }
            },
            Self::Unreachable(_) | Self::TooSlow => true,
            Self::Unreadable(_) | Self::Deposed | Self::KeyTooSmall { .. } | Self::Panicked | Self::Closed => false,
        }
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Deposed => return Self::Deposed,
            Error::Closed => return Self::Closed,
            _ => {}
        }
        if error.is_lost() {
            return Self::Unreachable(error.to_string());
        }
        match error.code() {
            Some(&SqlState::DISK_FULL) => Self::Full,
            Some(code)
                if code.code().starts_with("53")
                    || [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED].contains(code) =>
            {
                Self::Busy
            }
            _ => Self::Database(describe(&error)),
        }
    }
}

/// An error with its causes, each said once: some repeat what caused them, and the outermost ones of the driver and of
/// the pool say nothing.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |cause| cause.source()) {
        let text = cause.to_string();
        if let Some(last) = said.last_mut()
            && let Some(own) = last.strip_suffix(&text)
        {
            *last = own.trim_end_matches([':', ' ']).to_owned();
        }
        said.push(text);
    }
    let last = said.last().cloned().unwrap_or_default();
    said.retain(|text| {
        !text.is_empty() && !["db error", "Error occurred while creating a new object"].contains(&&text[..])
    });
    if said.is_empty() { last } else { said.join(": ") }
}

/// What every query is made with. Statements are prepared once per connection.
async fn rows(db: &Db, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
    let statement = db.prepare_cached(sql).await?;
    Ok(db.query(&statement, params).await?)
}

/// At most one.
async fn row(db: &Db, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>> {
    let statement = db.prepare_cached(sql).await?;
    Ok(db.query_opt(&statement, params).await?)
}

/// Exactly one.
async fn one(db: &Db, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row> {
    let statement = db.prepare_cached(sql).await?;
    Ok(db.query_one(&statement, params).await?)
}

/// How many rows were changed.
async fn execute(db: &Db, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64> {
    let statement = db.prepare_cached(sql).await?;
    Ok(db.execute(&statement, params).await?)
}

/// Codes are smaller in rows than in memory.
fn small(code: i64) -> i16 {
    i16::try_from(code).expect("codes are small")
}

/// What is counted from zero, of a column that cannot be negative.
fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub struct PostgresStore {
    writer: Writer,
    /// For what is found by its key, which the lanes and the ingest wait for.
    readers: Readers,
    /// For what is searched for, which may take as long as the history is.
    searchers: Readers,
    committed: Mutex<Option<mpsc::UnboundedReceiver<Vec<Committed>>>>,
    horizon: pollers::Horizon,
    keeper: Mutex<Option<KeeperHandle>>,
    writing: JoinHandle<()>,
}

/// Whoever keeps the lease stops when the sender is dropped.
struct KeeperHandle {
    stop: oneshot::Sender<()>,
    keeping: JoinHandle<()>,
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // The tasks end with the store, whether it was closed or not.
        self.writing.abort();
        if let Some(keeper) = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take() {
            keeper.keeping.abort();
        }
    }
}

/// Hands a piece of work to the writer, to be done while no other node writes. It may be done again if the connection is
/// lost, so that it gets copies of what it needs.
macro_rules! turn {
    ($self:ident, [$($held:ident),*], |$turn:ident| $work:expr) => {
        $self.writer.turn(move |$turn: &mut Turn| {
            $(let $held = $held.clone();)*
            Box::pin(async move { $work })
        }).await
    };
}

macro_rules! look {
    ($readers:expr, |$db:ident| $work:expr) => {
        $readers.run(move |$db| Box::pin(async move { $work })).await
    };
}

#[async_trait]
impl Store for PostgresStore {
    async fn accept(&self, message: NewMessage) -> Result<Accepted, AcceptError> {
        self.writer.accept(message).await
    }

    async fn accept_in_order(&self, messages: Vec<NewMessage>) -> Vec<Result<Accepted, AcceptError>> {
        self.writer.accept_in_order(messages).await
    }

    fn committed(&self) -> mpsc::UnboundedReceiver<Vec<Committed>> {
        let taken = self.committed.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.expect("what is committed is listened to once")
    }

    fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        self.writer.shared().own(tenure, shards)
    }

    async fn disown(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        self.writer.disown(tenure, shards).await
    }

    async fn retire(&self) -> Result<(), StoreError> {
        turn!(self, [], |turn| leases::retire(turn.db(), turn.tenure().0).await)?;
        self.writer.leave(self.writer.shared().owned());
        Ok(())
    }

    fn tenure(&self) -> Tenure {
        self.writer.shared().tenure()
    }

    fn may_send(&self, tenure: Tenure) -> bool {
        self.writer.shared().may_send(tenure)
    }

    fn leads(&self) -> bool {
        self.writer.shared().leads()
    }

    fn owned(&self) -> Shards {
        self.writer.shared().owned()
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        look!(self.readers, |db| {
            let row = one(db, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
            Ok(Some(Timestamp::from_millis(row.get(0))))
        })
    }

    async fn spill(
        &self,
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
    ) -> Result<(), StoreError> {
        self.writer.spill(tenure, deliveries, due).await
    }

    async fn load(
        &self,
        endpoint: EndpointKey,
        ordering: Ordering,
        now: Timestamp,
        limit: usize,
    ) -> Result<Loaded, StoreError> {
        let loaded = self
            .readers
            .snapshot(move |db| Box::pin(async move { load::load(db, endpoint, ordering, now, limit).await }))
            .await;
        // A row of another node may be among them, behind a message of this one whose commit is not known here yet.
        self.writer.shared().told_of_commits().await;
        loaded
    }

    async fn settle(&self, tenure: Tenure, settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError> {
        self.writer.settle(tenure, settlements).await
    }

    async fn lanes(&self, shards: Shards) -> Result<Vec<LaneFound>, StoreError> {
        look!(self.readers, |db| load::lanes(db, shards).await)
    }

    async fn healths(&self, shards: Shards) -> Result<Vec<(EndpointKey, Health)>, StoreError> {
        look!(self.readers, |db| health::all(db, shards).await)
    }

    async fn health(&self, endpoint: EndpointKey) -> Result<Health, StoreError> {
        look!(self.readers, |db| health::of(db, endpoint).await)
    }

    async fn reset_health(&self, endpoint: EndpointKey) -> Result<(), StoreError> {
        turn!(self, [], |turn| {
            health::forget(turn.db(), endpoint).await?;
            turn.announce(Committed::Health { endpoint });
            Ok(())
        })
    }

    async fn resend(
        &self,
        message: MessageKey,
        endpoint: EndpointKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        turn!(self, [remember], |turn| settings::resend(turn, message, endpoint, at, remember.as_ref()).await)?
    }

    async fn mint(&self, at: Timestamp) -> Result<i64, StoreError> {
        let used = look!(self.readers, |db| leases::greatest_key(db).await)?;
        let minter = self.writer.shared().minter();
        minter.catch_up(used);
        Ok(minter.mint(at))
    }

    async fn put_application(
        &self,
        application: Application,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        turn!(self, [application, remember], |turn| {
            settings::put_application(turn, &application, expect, remember.as_ref()).await
        })?
    }

    async fn application(&self, by: By<AppKey>) -> Result<Option<Application>, StoreError> {
        look!(self.readers, |db| settings::application(db, by).await)
    }

    async fn generation(&self, app: AppKey) -> Result<Option<i64>, StoreError> {
        look!(self.readers, |db| settings::generation(db, app).await)
    }

    async fn applications(&self, page: Page<AppKey>) -> Result<Vec<Application>, StoreError> {
        look!(self.readers, |db| settings::applications(db, &page).await)
    }

    async fn applications_of(&self, kind: AppKind, page: Page<AppKey>) -> Result<Vec<Application>, StoreError> {
        look!(self.readers, |db| settings::applications_of(db, kind, &page).await)
    }

    async fn delete_application(&self, app: AppKey, at: Timestamp) -> Result<bool, StoreError> {
        turn!(self, [], |turn| settings::delete_application(turn, app, at).await)
    }

    async fn put_endpoint(
        &self,
        endpoint: Endpoint,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        turn!(self, [endpoint, remember], |turn| {
            settings::put_endpoint(turn, &endpoint, expect, remember.as_ref()).await
        })?
    }

    async fn endpoint(&self, app: AppKey, by: By<EndpointKey>) -> Result<Option<Endpoint>, StoreError> {
        look!(self.readers, |db| settings::endpoint(db, app, by).await)
    }

    async fn endpoints(&self, app: AppKey, page: Page<EndpointKey>) -> Result<Vec<Endpoint>, StoreError> {
        look!(self.readers, |db| settings::endpoints(db, app, &page).await)
    }

    async fn endpoint_of_lane(&self, endpoint: EndpointKey) -> Result<Option<Endpoint>, StoreError> {
        look!(self.readers, |db| settings::endpoint_of_lane(db, endpoint).await)
    }

    async fn delete_endpoint(&self, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<bool, StoreError> {
        turn!(self, [], |turn| settings::delete_endpoint(turn, app, endpoint, at).await)
    }

    async fn bury(&self, at: Timestamp) -> Result<bool, StoreError> {
        // Mostly there is nothing to bury, and then nobody has to stop writing for it.
        if !look!(self.readers, |db| settings::has_unburied(db).await)? {
            return Ok(false);
        }
        turn!(self, [], |turn| settings::bury(turn, at).await)
    }

    async fn put_event_type(
        &self,
        event_type: EventType,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        turn!(self, [event_type, remember], |turn| {
            settings::put_event_type(turn, &event_type, expect, remember.as_ref()).await
        })?
    }

    async fn event_type(&self, name: &str) -> Result<Option<EventType>, StoreError> {
        let name = name.to_owned();
        look!(self.readers, |db| settings::event_type(db, &name).await)
    }

    async fn event_types(&self, page: Page<String>, archived: Archived) -> Result<Vec<EventType>, StoreError> {
        look!(self.readers, |db| settings::event_types(db, &page, archived).await)
    }

    async fn delete_event_type(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        turn!(self, [name], |turn| settings::delete_event_type(turn, &name).await)
    }

    async fn note(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let name = name.to_owned();
        look!(self.readers, |db| settings::note(db, &name).await)
    }

    async fn put_note(&self, name: &str, value: Vec<u8>) -> Result<(), StoreError> {
        let name = name.to_owned();
        turn!(self, [name, value], |turn| settings::put_note(turn, &name, &value).await)
    }

    async fn remember(&self, remember: Remember, at: Timestamp) -> Result<(), PutError> {
        turn!(self, [remember], |turn| settings::remember(turn, Some(&remember), at).await)?
    }

    async fn dead_letters(
        &self,
        app: AppKey,
        filter: DeadFilter,
        page: Page<DeadKey>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.searchers
            .snapshot(move |db| Box::pin(async move { dead::dead_letters(db, app, &filter, &page).await }))
            .await
    }

    async fn dead_letter(&self, app: AppKey, key: DeadKey) -> Result<Option<DeadLetter>, StoreError> {
        self.readers.snapshot(move |db| Box::pin(async move { dead::dead_letter(db, app, key).await })).await
    }

    async fn count_dead_letters(&self, app: AppKey, filter: DeadFilter, limit: u64) -> Result<u64, StoreError> {
        self.searchers
            .snapshot(move |db| Box::pin(async move { dead::count_dead_letters(db, app, &filter, limit).await }))
            .await
    }

    async fn replay(
        &self,
        app: AppKey,
        key: DeadKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<bool, PutError> {
        turn!(self, [remember], |turn| dead::replay(turn, app, key, at, remember.as_ref()).await)?
    }

    async fn cancel_message(
        &self,
        app: AppKey,
        message: MessageKey,
        endpoint: Option<EndpointKey>,
        at: Timestamp,
    ) -> Result<u64, StoreError> {
        turn!(self, [], |turn| cancel::cancel_message(turn, app, message, endpoint, at).await)
    }

    async fn backlog(&self, endpoint: EndpointKey, since: Option<Timestamp>) -> Result<Backlog, StoreError> {
        self.searchers.snapshot(move |db| Box::pin(async move { cancel::backlog(db, endpoint, since).await })).await
    }

    async fn expire(
        &self,
        endpoint: EndpointKey,
        from: Option<MessageKey>,
        untried_before: Timestamp,
        now: Timestamp,
    ) -> Result<Option<MessageKey>, StoreError> {
        let bounds = expire::Bounds { untried_before, now };
        match look!(self.searchers, |db| expire::look(db, endpoint, from, bounds).await)? {
            expire::Found::Nothing { reached } => Ok(reached),
            expire::Found::Past(from) => turn!(self, [], |turn| expire::expire(turn, endpoint, from, bounds).await),
        }
    }

    async fn message(&self, app: AppKey, by: By<MessageKey>) -> Result<Option<Message>, StoreError> {
        look!(self.readers, |db| history::message(db, app, by).await)
    }

    async fn messages(
        &self,
        app: AppKey,
        filter: MessageFilter,
        page: Page<MessageKey>,
    ) -> Result<Vec<Message>, StoreError> {
        look!(self.searchers, |db| history::messages(db, app, &filter, &page).await)
    }

    async fn attempts(
        &self,
        of: AttemptsOf,
        filter: AttemptFilter,
        page: Page<AttemptKey>,
    ) -> Result<Vec<Attempt>, StoreError> {
        look!(self.searchers, |db| history::attempts(db, of, &filter, &page).await)
    }

    async fn attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<Option<Attempt>, StoreError> {
        look!(self.readers, |db| history::attempt(db, message, attempt).await)
    }

    async fn deliveries(&self, message: MessageKey) -> Result<Vec<(EndpointKey, DeliveryState)>, StoreError> {
        self.readers.snapshot(move |db| Box::pin(async move { history::deliveries(db, message).await })).await
    }

    async fn messages_of_endpoint(
        &self,
        app: AppKey,
        endpoint: EndpointKey,
        filter: MessageFilter,
        states: Vec<StateKind>,
        page: Page<MessageKey>,
    ) -> Result<Vec<(Message, DeliveryState)>, StoreError> {
        self.searchers
            .snapshot(move |db| {
                Box::pin(
                    async move { history::messages_of_endpoint(db, (app, endpoint), &filter, &states, &page).await },
                )
            })
            .await
    }

    async fn search(&self, app: Option<AppKey>, search: Search) -> Result<Searched, StoreError> {
        self.searchers.snapshot(move |db| Box::pin(async move { history::search(db, app, &search).await })).await
    }

    async fn stats(&self, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Result<Stats, StoreError> {
        self.searchers
            .snapshot(move |db| Box::pin(async move { history::stats(db, endpoint, (since, until)).await }))
            .await
    }

    async fn expunge_message(&self, app: AppKey, message: MessageKey) -> Result<bool, StoreError> {
        turn!(self, [], |turn| tidy::expunge(turn, app, message).await)
    }

    async fn expunge_messages(&self, app: AppKey, messages: Vec<MessageKey>) -> Result<Vec<bool>, StoreError> {
        turn!(self, [messages], |turn| {
            let mut expunged = Vec::new();
            for message in messages {
                expunged.push(tidy::expunge(turn, app, message).await?);
            }
            Ok(expunged)
        })
    }

    async fn expunge_attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<bool, StoreError> {
        turn!(self, [], |turn| tidy::expunge_attempt(turn, message, attempt).await)
    }

    async fn put_api_key(&self, api_key: ApiKey) -> Result<(), PutError> {
        turn!(self, [api_key], |turn| callers::put_api_key(turn, &api_key).await)?
    }

    async fn api_key(&self, key: ApiKeyKey) -> Result<Option<ApiKey>, StoreError> {
        look!(self.readers, |db| callers::api_key(db, key).await)
    }

    async fn api_keys(&self, page: Page<ApiKeyKey>) -> Result<Vec<ApiKey>, StoreError> {
        look!(self.readers, |db| callers::api_keys(db, &page).await)
    }

    async fn revoke_api_key(&self, key: ApiKeyKey, at: Timestamp) -> Result<Option<ApiKey>, StoreError> {
        turn!(self, [], |turn| callers::revoke_api_key(turn, key, at).await)
    }

    async fn rotate_api_key(&self, old: ApiKeyKey, until: Timestamp, new: ApiKey) -> Result<(), PutError> {
        turn!(self, [new], |turn| callers::rotate_api_key(turn, old, until, &new).await)?
    }

    async fn note_api_key_uses(&self, uses: Vec<(ApiKeyKey, Timestamp)>) -> Result<(), StoreError> {
        turn!(self, [uses], |turn| callers::note_uses(turn, &uses).await)
    }

    async fn revoke_tokens(&self, revocations: Vec<Revocation>) -> Result<(), StoreError> {
        turn!(self, [revocations], |turn| callers::revoke_tokens(turn, &revocations).await)
    }

    async fn is_revoked(&self, token: Issued, now: Timestamp) -> Result<bool, StoreError> {
        look!(self.readers, |db| callers::is_revoked(db, &token, now).await)
    }

    async fn horizon(&self, now: Timestamp) -> Result<MessageKey, StoreError> {
        self.horizon.see(now, async || turn!(self, [], |turn| pollers::raise_horizon(turn, now).await)).await
    }

    async fn read_on(&self, app: AppKey, wanted: ReadOn) -> Result<WasRead, StoreError> {
        look!(self.searchers, |db| pollers::read_on(db, app, &wanted).await)
    }

    async fn consumer(&self, poller: PollerKey, name: &str) -> Result<Option<Consumer>, StoreError> {
        let name = name.to_owned();
        look!(self.readers, |db| pollers::consumer(db, poller, &name).await)
    }

    async fn consumers(&self, poller: PollerKey) -> Result<Vec<Consumer>, StoreError> {
        look!(self.readers, |db| pollers::consumers(db, poller).await)
    }

    async fn move_consumer(&self, stride: Stride, remember: Option<Remember>) -> Result<Consumer, PutError> {
        if remember.is_none() {
            let stride = stride.clone();
            if let Some(moved) = look!(self.readers, |db| pollers::advance(db, &stride).await)? {
                return Ok(moved);
            }
        }
        turn!(self, [stride, remember], |turn| pollers::move_consumer(turn, &stride, remember.as_ref()).await)?
    }

    async fn forget_consumers(&self, poller: PollerKey, name: Option<&str>) -> Result<bool, StoreError> {
        let name = name.map(str::to_owned);
        turn!(self, [name], |turn| pollers::forget_consumers(turn, poller, name.as_deref()).await)
    }

    async fn add_to_refused(&self, refused: Vec<Refused>) -> Result<(), StoreError> {
        turn!(self, [refused], |turn| refused::add(turn, &refused).await)
    }

    async fn refused(&self, app: AppKey, page: Page<RefusedKey>) -> Result<Vec<Refused>, StoreError> {
        look!(self.readers, |db| refused::list(db, app, &page).await)
    }

    async fn add_to_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        turn!(self, [entries], |turn| callers::add_to_audit(turn, &entries).await)
    }

    async fn audit(&self, filter: AuditFilter, page: Page<AuditKey>) -> Result<Vec<AuditEntry>, StoreError> {
        look!(self.searchers, |db| callers::audit(db, &filter, &page).await)
    }

    async fn add_to_tallies(&self, tallies: Vec<Tally>) -> Result<(), StoreError> {
        turn!(self, [tallies], |turn| tallies::add(turn, &tallies).await)
    }

    async fn tallies_by_application(
        &self,
        events: (TallyCode, TallyCode),
        span: TallySpan,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<(AppKey, u64)>, StoreError> {
        let wanted = TalliesOf { of: TallyOf::Application(AppKey::new(0)), span, since, until };
        look!(self.searchers, |db| tallies::by_application(db, events, wanted).await)
    }

    async fn tallies(&self, of: TalliesOf) -> Result<Vec<Counted>, StoreError> {
        look!(self.searchers, |db| tallies::list(db, of).await)
    }

    async fn enter_alert(&self, app: Option<AppKey>, alert: AlertHappened, at: Timestamp) -> Result<(), StoreError> {
        turn!(self, [alert], |turn| journal::enter_alert(turn, app, &alert, at).await)
    }

    async fn turn_alarm(&self, alarm: AlarmTurn) -> Result<bool, StoreError> {
        turn!(self, [alarm], |turn| journal::turn_alarm(turn, &alarm).await)
    }

    async fn raised_alarms(&self) -> Result<Vec<String>, StoreError> {
        look!(self.readers, |db| journal::raised_alarms(db).await)
    }

    async fn untold(&self, limit: usize) -> Result<Vec<JournalEntry>, StoreError> {
        look!(self.readers, |db| journal::untold(db, limit).await)
    }

    async fn strike_out(&self, entries: Vec<JournalKey>) -> Result<(), StoreError> {
        turn!(self, [entries], |turn| journal::strike_out(turn, &entries).await)
    }

    async fn start_task(&self, task: Task, remember: Option<Remember>) -> Result<(), PutError> {
        turn!(self, [task, remember], |turn| tasks::start(turn, &task, remember.as_ref()).await)?
    }

    async fn advance_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        let counted = match look!(self.readers, |db| tasks::has_begun(db, task).await)? {
            None => return Ok(None),
            Some(true) => None,
            Some(false) => look!(self.searchers, |db| tasks::count(db, task).await)?,
        };
        turn!(self, [], |turn| {
            let advanced = tasks::advance(turn, task, counted, at).await;
            crate::step!("task.stepping");
            advanced
        })
    }

    async fn task(&self, task: TaskKey) -> Result<Option<Task>, StoreError> {
        look!(self.readers, |db| tasks::find(db, task).await)
    }

    async fn tasks(&self, filter: TaskFilter, page: Page<TaskKey>) -> Result<Vec<Task>, StoreError> {
        look!(self.readers, |db| tasks::list(db, &filter, &page).await)
    }

    async fn cancel_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        turn!(self, [], |turn| tasks::cancel_task(turn, task, at).await)
    }

    async fn unfinished_tasks(&self) -> Result<Vec<TaskKey>, StoreError> {
        look!(self.readers, |db| tasks::unfinished(db).await)
    }

    async fn tidy(&self, now: Timestamp, retention: Retention) -> Result<bool, StoreError> {
        let more = turn!(self, [], |turn| tidy::tidy(turn, now, retention).await)?;
        let Some(piece) = look!(self.searchers, |db| tidy::piece_to_discard(db, now, retention).await)? else {
            return Ok(more);
        };
        Ok(more | turn!(self, [], |turn| tidy::discard(turn, piece).await)?)
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        let own = self.tenure();
        look!(self.readers, |db| leases::nodes(db, own).await)
    }

    async fn counts(&self, shards: Shards) -> Result<Counts, StoreError> {
        look!(self.searchers, |db| counts::counts(db, shards).await)
    }

    fn is_open(&self) -> bool {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        !self.writing.is_finished() && keeper.as_ref().is_some_and(|keeper| !keeper.keeping.is_finished())
    }

    async fn close(&self) {
        // First, so that nothing renews a lease that is given up.
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(KeeperHandle { stop, keeping }) = keeper {
            drop(stop);
            let _ = keeping.await;
        }
        self.writer.close().await;
        self.readers.close();
        self.searchers.close();
    }
}
