//! SQLite: one file in one folder, one writer, readers apart.
//!
//! `writer` commits in groups; `accept`, `settle`, `settings`, `cancel`, `expire`, `tasks` and `tidy` are what it is
//! asked to write; `load`, `history` and `dead` are what readers look up; `pieces` and `schema` say where history
//! lies, and `recover` finds, at start, what a crash left without a row.

mod accept;
mod backup;
mod callers;
mod cancel;
mod crowd;
mod dead;
mod doctor;
mod expire;
mod filter;
mod health;
mod history;
mod journal;
mod listing;
mod load;
mod lock;
pub(crate) mod moving;
mod outstanding;
mod pieces;
mod pollers;
mod readers;
mod recover;
mod refused;
mod repeats;
mod schema;
mod settings;
mod settle;
mod steps;
mod tallies;
mod tasks;
#[cfg(test)]
mod tests;
mod tidy;
mod writer;

pub use backup::{Backup, BackupError, Contents, verify};
pub use doctor::{examine, note, was_moved};

use crate::{
    AlarmTurn,
    callers::*,
    intake::{self, Intake},
    journal::*,
    pollers::{Consumer, PollerKey, ReadOn, Stride, WasRead},
    records::*,
    refused::{Refused, RefusedKey},
    rows::{Unreadable, minter::Minter},
    shards::{Shards, Tenure},
    step,
    store::*,
    tallies::{Counted, TalliesOf, Tally, TallyCode, TallyOf, TallySpan},
};
use async_trait::async_trait;
use lock::FolderLock;
use pieces::Piece;
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{Health, Ordering},
};
use readers::Readers;
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::mpsc;
use writer::{Batch, Shared, Writer};

/// For what is found by its key, which the lanes and the ingest wait for.
const READERS: usize = 2;
/// For what is searched for, which may take as long as the history is.
const SEARCHERS: usize = 2;

pub struct SqliteStore {
    writer: Writer,
    readers: Readers,
    searchers: Readers,
    shared: Arc<Shared>,
    committed: Mutex<Option<mpsc::UnboundedReceiver<Vec<Committed>>>>,
    intake: Intake,
    _lock: FolderLock,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data folder {} cannot be used", folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
    #[error("the data folder {} is in use by {holder}; only one Postrider may run on it", folder.display())]
    Locked { folder: PathBuf, holder: String },
    #[error("the data folder {} has no database yet; it is made when the server first starts there", folder.display())]
    Empty { folder: PathBuf },
    #[error(
        "the database in {} was moved to PostgreSQL ({place}), so that nothing may run on it any more; \
         name that database with database_url",
        folder.display()
    )]
    Moved { folder: PathBuf, place: String },
    #[error(
        "the database in {} was being moved to PostgreSQL ({place}) when that was interrupted, and which of the two counts \
         can be seen only there; run `postrider move` to that database again, which finds out and ends it",
        folder.display()
    )]
    BeingMoved { folder: PathBuf, place: String },
    #[error("the database was written by a newer Postrider (version {found}, this one knows {known}); use that one")]
    TooNew { found: i64, known: i64 },
    #[error("the database cannot be opened")]
    Database(#[from] rusqlite::Error),
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// What suits most, and what tests want smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// A new piece of history is begun after so many messages, or so much time, whichever comes first.
    pub piece_messages_max: u64,
    pub piece_age_max: Duration,
    /// How stale the noted watermark may get. After a crash, what came since is looked through once.
    pub note_every: Duration,
    /// So many keys of requests are remembered before they are filed into their index.
    pub repeats_recent_max: usize,
    /// So many messages and attempts are remembered before they are filed into what lists are made of.
    pub listed_recent_max: usize,
    /// So many of each are filed with one commit, or twice as many as it brings, if that is more.
    pub filed_at_once: usize,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            piece_messages_max: 500_000,
            piece_age_max: Duration::from_hours(24),
            note_every: Duration::from_millis(500),
            repeats_recent_max: 16_384,
            listed_recent_max: 16_384,
            filed_at_once: 256,
        }
    }
}

impl SqliteStore {
    /// The database in its folder.
    pub const FILE: &str = "postrider.db";

    /// Opens the store in `folder`, which is made if it is missing, and brings what a crash left behind in order.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Self, OpenError> {
        Self::open_with(folder, now, SqliteOptions::default())
    }

    pub fn open_with(folder: &Path, now: Timestamp, options: SqliteOptions) -> Result<Self, OpenError> {
        std::fs::create_dir_all(folder).map_err(|source| OpenError::Folder { folder: folder.to_owned(), source })?;
        let lock = FolderLock::take(folder)?;
        let file = folder.join(SqliteStore::FILE);
        let (mut connection, _) = connect_up_to_date(&file)?;
        if let Some(departure) = moving::departure(&connection)? {
            return Err(departure.refusal(folder));
        }
        let pieces = read_pieces(&mut connection)?;
        let minter = Minter::starting_after(greatest_key(&connection, &pieces)?);
        let recovered = recover::recover(&mut connection, &pieces, now)?;
        step!("start.recovered");
        if recovered > 0 {
            tracing::info!(deliveries = recovered, "found deliveries that were on their way when the last run ended");
        }

        let shared = Arc::new(Shared::new(Arc::new(pieces), minter));
        let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connections = |count| {
            (0..count).map(|_| connect(&file, read_only, READER_CACHE_KIB)).collect::<rusqlite::Result<Vec<_>>>()
        };
        let (announce, committed) = mpsc::unbounded_channel();
        let _ = announce.send(vec![Committed::Offered { tenure: Tenure::default(), shards: Shards::ALL }]);
        Ok(Self {
            readers: Readers::start(connections(READERS)?, &shared)?,
            searchers: Readers::start(connections(SEARCHERS)?, &shared)?,
            writer: Writer::start(connection, Arc::clone(&shared), announce, now, options)?,
            shared,
            committed: Mutex::new(Some(committed)),
            intake: Intake::default(),
            _lock: lock,
        })
    }
}

/// Brings the tables of a folder up to date in which no server runs.
pub fn migrate(folder: &Path) -> Result<Migrated, OpenError> {
    let file = folder.join(SqliteStore::FILE);
    if !file.exists() {
        return Err(OpenError::Empty { folder: folder.to_owned() });
    }
    let _lock = FolderLock::take(folder)?;
    connect_up_to_date(&file).map(|(_, migrated)| migrated)
}

fn connect_up_to_date(file: &Path) -> Result<(Connection, Migrated), OpenError> {
    let mut connection = connect(file, OpenFlags::default(), WRITER_CACHE_KIB)?;
    let found = schema::version(&connection)?;
    if found > schema::VERSION {
        return Err(OpenError::TooNew { found, known: schema::VERSION });
    }
    schema::migrate(&mut connection)?;
    Ok((connection, Migrated { from: found, to: schema::VERSION }))
}

const WRITER_CACHE_KIB: i64 = 16 * 1024;
const READER_CACHE_KIB: i64 = 4 * 1024;

fn connect(file: &Path, flags: OpenFlags, cache_kib: i64) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(256);
    // Else it would plan a statement anew whenever a limit or a partial index is asked for with another value than before.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "cache_size", -cache_kib)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if !flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
        connection.pragma_update(None, "page_size", 8_192)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A commit is on the disk before anyone is told so. NORMAL would lose the last ones at a power cut.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "journal_size_limit", 64 * 1024 * 1024)?;
        // A file that cannot be opened for writing just now is opened for reading without a word. Better no start than
        // one after which nothing can be accepted.
        connection.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
    }
    Ok(connection)
}

/// Plans as the others do.
#[cfg(test)]
fn open_in_memory() -> Connection {
    connect(Path::new(":memory:"), OpenFlags::default(), READER_CACHE_KIB).expect("a connection")
}

fn read_pieces(connection: &mut Connection) -> rusqlite::Result<Vec<Piece>> {
    let pieces = list_pieces(connection)?;
    if !pieces.is_empty() {
        return Ok(pieces);
    }
    let first = connection.transaction()?;
    schema::create_piece(&first, 1, 0)?;
    first.commit()?;
    list_pieces(connection)
}

fn list_pieces(connection: &Connection) -> rusqlite::Result<Vec<Piece>> {
    connection
        .prepare("SELECT number, first_key FROM piece WHERE retired = 0 ORDER BY number")?
        .query_map([], |row| Ok(Piece { number: row.get(0)?, first_key: row.get(1)? }))?
        .collect()
}

/// No new key may be smaller than one that is in use, even if the clock has gone back since.
fn greatest_key(connection: &Connection, pieces: &[Piece]) -> rusqlite::Result<i64> {
    let mut greatest = writer::noted(connection, writer::MINTED)?.unwrap_or(0);
    for piece in pieces.iter().rev().take(2) {
        let newest: Option<i64> =
            piece.prepare(connection, "SELECT max(key) FROM message_{n}")?.query_row([], |row| row.get(0))?;
        greatest = greatest.max(newest.unwrap_or(0)).max(piece.first_key);
    }
    let settings: i64 = connection.query_row(
        "SELECT max(coalesce((SELECT max(key) FROM application), 0), coalesce((SELECT max(key) FROM endpoint), 0),
                    coalesce((SELECT max(key) FROM job), 0), coalesce((SELECT max(key) FROM api_key), 0),
                    coalesce((SELECT max(key) FROM audit), 0), coalesce((SELECT max(key) FROM refused), 0))",
        [],
        |row| row.get(0),
    )?;
    Ok(greatest.max(settings))
}

#[async_trait]
impl Store for SqliteStore {
    async fn accept(&self, message: NewMessage) -> Result<Accepted, AcceptError> {
        let is_owed_to_few = message.owed.len() <= intake::FEW;
        let (mut place, room) = self.intake.enter(message.content.payload.len(), message.owed.len()).await?;
        let accept = move |batch: &mut Batch<'_>| accept::accept(batch, message, room);
        let accepted = if is_owed_to_few { self.writer.run(accept).await } else { self.writer.run_last(accept).await }?;
        if let Ok(Accepted::Now(_)) = accepted {
            place.came_in();
        }
        accepted
    }

    async fn accept_in_order(&self, messages: Vec<NewMessage>) -> Vec<Result<Accepted, AcceptError>> {
        // All in one turn: one that is owed to few would overtake one that is owed to many.
        let turn = match messages.iter().all(|message| message.owed.len() <= intake::FEW) {
            true => writer::Turn::InOrder,
            false => writer::Turn::Last,
        };
        let queue = |message, room| self.writer.queue(turn, move |batch| accept::accept(batch, message, room));
        let entered = self.intake.enter_in_order(messages, queue).await;
        entered.answers(|queued| async { writer::outcome(queued?).await? }).await
    }

    fn committed(&self) -> mpsc::UnboundedReceiver<Vec<Committed>> {
        let taken = self.committed.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.expect("what is committed is listened to once")
    }

    fn set_lag(&self, lags: bool) {
        self.writer.set_lag(lags);
    }

    // One process owns the folder, and so everything in it.

    fn own(&self, _: Tenure, _: Shards) -> Result<(), StoreError> {
        Ok(())
    }

    async fn disown(&self, _: Tenure, _: Shards) -> Result<(), StoreError> {
        Ok(())
    }

    async fn retire(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn tenure(&self) -> Tenure {
        Tenure::default()
    }

    fn may_send(&self, _: Tenure) -> bool {
        true
    }

    fn leads(&self) -> bool {
        true
    }

    fn owned(&self) -> Shards {
        Shards::ALL
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    async fn spill(
        &self,
        _: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
    ) -> Result<(), StoreError> {
        self.writer.run_first(move |batch| settle::spill(batch, &deliveries, due)).await
    }

    async fn load(
        &self,
        endpoint: EndpointKey,
        ordering: Ordering,
        now: Timestamp,
        limit: usize,
    ) -> Result<Loaded, StoreError> {
        self.readers.run(move |connection, pieces| load::load(connection, pieces, endpoint, ordering, now, limit)).await
    }

    async fn settle(&self, _: Tenure, settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError> {
        let outcomes = settlements.len();
        self.writer
            .run_first(move |batch| {
                batch.settled += settlements.len();
                settle::settle(batch, &settlements)
            })
            .await?;
        self.intake.went_out(outcomes);
        Ok(())
    }

    async fn lanes(&self, _: Shards) -> Result<Vec<LaneFound>, StoreError> {
        self.readers.run(|connection, _| load::lanes(connection)).await
    }

    async fn healths(&self, _: Shards) -> Result<Vec<(EndpointKey, Health)>, StoreError> {
        self.readers.run(|connection, _| health::all(connection)).await
    }

    async fn health(&self, endpoint: EndpointKey) -> Result<Health, StoreError> {
        self.readers.run(move |connection, _| health::of(connection, endpoint)).await
    }

    async fn reset_health(&self, endpoint: EndpointKey) -> Result<(), StoreError> {
        self.writer
            .run(move |batch| {
                health::forget(&batch.transaction, endpoint)?;
                batch.announce(Committed::Health { endpoint });
                Ok(())
            })
            .await
    }

    async fn resend(
        &self,
        message: MessageKey,
        endpoint: EndpointKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.writer
            .run(move |batch| {
                settings::put(batch, remember, at, |batch| {
                    tidy::expect_attempts(batch, message)?;
                    settings::resend(batch, message, endpoint, at)
                })
            })
            .await?
    }

    async fn mint(&self, at: Timestamp) -> Result<i64, StoreError> {
        Ok(self.shared.minter.mint(at))
    }

    async fn put_application(
        &self,
        application: Application,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.writer
            .run(move |batch| {
                settings::put(batch, remember, application.updated_at, |batch| {
                    settings::put_application(batch, &application, expect)
                })
            })
            .await?
    }

    async fn application(&self, by: By<AppKey>) -> Result<Option<Application>, StoreError> {
        self.readers.run(move |connection, _| settings::application(connection, by)).await
    }

    async fn generation(&self, _: AppKey) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    async fn applications(&self, page: Page<AppKey>) -> Result<Vec<Application>, StoreError> {
        self.readers.run(move |connection, _| settings::applications(connection, &page)).await
    }

    async fn applications_of(&self, kind: AppKind, page: Page<AppKey>) -> Result<Vec<Application>, StoreError> {
        self.readers.run(move |connection, _| settings::applications_of(connection, kind, &page)).await
    }

    async fn delete_application(&self, app: AppKey, at: Timestamp) -> Result<bool, StoreError> {
        self.writer.run(move |batch| settings::delete_application(batch, app, at)).await
    }

    async fn put_endpoint(
        &self,
        endpoint: Endpoint,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.writer
            .run(move |batch| {
                settings::put(batch, remember, endpoint.updated_at, |batch| {
                    settings::put_endpoint(batch, &endpoint, expect)
                })
            })
            .await?
    }

    async fn endpoint(&self, app: AppKey, by: By<EndpointKey>) -> Result<Option<Endpoint>, StoreError> {
        self.readers.run(move |connection, _| settings::endpoint(connection, app, by)).await
    }

    async fn endpoints(&self, app: AppKey, page: Page<EndpointKey>) -> Result<Vec<Endpoint>, StoreError> {
        self.readers.run(move |connection, _| settings::endpoints(connection, app, &page)).await
    }

    async fn endpoint_of_lane(&self, endpoint: EndpointKey) -> Result<Option<Endpoint>, StoreError> {
        self.readers.run(move |connection, _| settings::endpoint_of_lane(connection, endpoint)).await
    }

    async fn delete_endpoint(&self, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<bool, StoreError> {
        self.writer.run(move |batch| settings::delete_endpoint(batch, app, endpoint, at)).await
    }

    async fn bury(&self, at: Timestamp) -> Result<bool, StoreError> {
        self.writer.run(move |batch| settings::bury_step(batch, at)).await
    }

    async fn put_event_type(
        &self,
        event_type: EventType,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.writer
            .run(move |batch| {
                settings::put(batch, remember, event_type.updated_at, |batch| {
                    settings::put_event_type(batch, &event_type, expect)
                })
            })
            .await?
    }

    async fn event_type(&self, name: &str) -> Result<Option<EventType>, StoreError> {
        let name = name.to_owned();
        self.readers.run(move |connection, _| settings::event_type(connection, &name)).await
    }

    async fn event_types(&self, page: Page<String>, archived: Archived) -> Result<Vec<EventType>, StoreError> {
        self.readers.run(move |connection, _| settings::event_types(connection, &page, archived)).await
    }

    async fn delete_event_type(&self, name: &str) -> Result<bool, StoreError> {
        let name = name.to_owned();
        self.writer
            .run(move |batch| {
                let deleted = batch.transaction.execute("DELETE FROM event_type WHERE name = ?1", [name])? == 1;
                if deleted {
                    batch.announce(Committed::EventTypes);
                }
                Ok(deleted)
            })
            .await
    }

    async fn note(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let name = name.to_owned();
        self.readers
            .run(move |connection, _| {
                optional(connection.query_row("SELECT value FROM note WHERE name = ?1", [name], |row| row.get(0)))
            })
            .await
    }

    async fn put_note(&self, name: &str, value: Vec<u8>) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.writer
            .run(move |batch| {
                batch.transaction.execute("INSERT OR REPLACE INTO note VALUES (?1, ?2)", (name, value))?;
                Ok(())
            })
            .await
    }

    async fn remember(&self, remember: Remember, at: Timestamp) -> Result<(), PutError> {
        self.writer.run(move |batch| settings::remember(batch, Some(&remember), at)).await?
    }

    async fn dead_letters(
        &self,
        app: AppKey,
        filter: DeadFilter,
        page: Page<DeadKey>,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.searchers.run(move |connection, pieces| dead::dead_letters(connection, pieces, app, &filter, &page)).await
    }

    async fn dead_letter(&self, app: AppKey, key: DeadKey) -> Result<Option<DeadLetter>, StoreError> {
        self.readers.run(move |connection, pieces| dead::dead_letter(connection, pieces, app, key)).await
    }

    async fn count_dead_letters(&self, app: AppKey, filter: DeadFilter, limit: u64) -> Result<u64, StoreError> {
        self.searchers
            .run(move |connection, pieces| dead::count_dead_letters(connection, pieces, app, &filter, limit))
            .await
    }

    async fn replay(
        &self,
        app: AppKey,
        key: DeadKey,
        at: Timestamp,
        remember: Option<Remember>,
    ) -> Result<bool, PutError> {
        self.writer.run(move |batch| dead::replay(batch, app, key, at, remember)).await?
    }

    async fn cancel_message(
        &self,
        app: AppKey,
        message: MessageKey,
        endpoint: Option<EndpointKey>,
        at: Timestamp,
    ) -> Result<u64, StoreError> {
        self.writer.run(move |batch| cancel::cancel_message(batch, app, message, endpoint, at)).await
    }

    async fn backlog(&self, endpoint: EndpointKey, since: Option<Timestamp>) -> Result<Backlog, StoreError> {
        self.searchers
            .run_beside(move |connection, shared| {
                let handed = shared.outstanding_of(endpoint);
                cancel::backlog(connection, &shared.pieces(), endpoint, since, &handed)
            })
            .await
    }

    async fn expire(
        &self,
        endpoint: EndpointKey,
        from: Option<MessageKey>,
        untried_before: Timestamp,
        now: Timestamp,
    ) -> Result<Option<MessageKey>, StoreError> {
        let bounds = expire::Bounds { untried_before, now };
        let found = self.searchers.run(move |connection, _| expire::look(connection, endpoint, from, bounds)).await?;
        match found {
            expire::Found::Nothing { reached } => Ok(reached),
            expire::Found::Past(from) => {
                self.writer.run(move |batch| expire::expire(batch, endpoint, from, bounds)).await
            }
        }
    }

    async fn message(&self, app: AppKey, by: By<MessageKey>) -> Result<Option<Message>, StoreError> {
        self.readers.run(move |connection, pieces| history::message(connection, pieces, app, by)).await
    }

    async fn messages(
        &self,
        app: AppKey,
        filter: MessageFilter,
        page: Page<MessageKey>,
    ) -> Result<Vec<Message>, StoreError> {
        self.searchers
            .run_beside(move |connection, shared| {
                let recent = shared.unfiled.of_app(app);
                history::messages(connection, &shared.pieces(), (app, &recent), &filter, &page)
            })
            .await
    }

    async fn attempts(
        &self,
        of: AttemptsOf,
        filter: AttemptFilter,
        page: Page<AttemptKey>,
    ) -> Result<Vec<Attempt>, StoreError> {
        self.searchers
            .run_beside(move |connection, shared| {
                let of = match of {
                    AttemptsOf::Message(message) => history::Of::Message(message),
                    AttemptsOf::Endpoint(_, endpoint) => {
                        history::Of::Endpoint(endpoint, shared.unfiled.of_endpoint(endpoint))
                    }
                };
                history::attempts(connection, &shared.pieces(), &of, &filter, &page)
            })
            .await
    }

    async fn attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<Option<Attempt>, StoreError> {
        self.readers.run(move |connection, pieces| history::attempt(connection, pieces, message, attempt)).await
    }

    async fn deliveries(&self, message: MessageKey) -> Result<Vec<(EndpointKey, DeliveryState)>, StoreError> {
        self.readers.run(move |connection, pieces| history::deliveries(connection, pieces, message)).await
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
            .run_beside(move |connection, shared| {
                let recent = shared.unfiled.of_app(app);
                let of = ((app, &recent), endpoint);
                history::messages_of_endpoint(connection, &shared.pieces(), of, &filter, &states, &page)
            })
            .await
    }

    async fn search(&self, app: Option<AppKey>, search: Search) -> Result<Searched, StoreError> {
        self.searchers
            .run_beside(move |connection, shared| {
                let of = app.map(|app| (app, shared.unfiled.of_app(app)));
                let of = of.as_ref().map(|(app, recent)| (*app, recent));
                history::search(connection, &shared.pieces(), of, &search)
            })
            .await
    }

    async fn stats(&self, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Result<Stats, StoreError> {
        self.searchers
            .run_beside(move |connection, shared| {
                let (filed, outstanding) = (shared.unfiled.filed_through(), shared.outstanding_of(endpoint));
                history::stats(connection, &shared.pieces(), (endpoint, filed), (since, until), &outstanding)
            })
            .await
    }

    async fn expunge_message(&self, app: AppKey, message: MessageKey) -> Result<bool, StoreError> {
        self.writer.run(move |batch| tidy::expunge(batch, app, message)).await
    }

    async fn expunge_messages(&self, app: AppKey, messages: Vec<MessageKey>) -> Result<Vec<bool>, StoreError> {
        self.writer
            .run(move |batch| messages.into_iter().map(|message| tidy::expunge(batch, app, message)).collect())
            .await
    }

    async fn expunge_attempt(&self, message: MessageKey, attempt: AttemptKey) -> Result<bool, StoreError> {
        self.writer
            .run(move |batch| {
                let Some(piece) = batch.piece_of(message.raw()) else { return Ok(false) };
                let sql = "UPDATE attempt_{n} SET response = NULL, headers = NULL WHERE message = ?1 AND key = ?2";
                Ok(piece.prepare(&batch.transaction, sql)?.execute((message.raw(), attempt.raw()))? == 1)
            })
            .await
    }

    async fn put_api_key(&self, api_key: ApiKey) -> Result<(), PutError> {
        self.writer.run(move |batch| callers::put_api_key(batch, &api_key)).await?
    }

    async fn api_key(&self, key: ApiKeyKey) -> Result<Option<ApiKey>, StoreError> {
        self.readers.run(move |connection, _| callers::api_key(connection, key)).await
    }

    async fn api_keys(&self, page: Page<ApiKeyKey>) -> Result<Vec<ApiKey>, StoreError> {
        self.readers.run(move |connection, _| callers::api_keys(connection, &page)).await
    }

    async fn revoke_api_key(&self, key: ApiKeyKey, at: Timestamp) -> Result<Option<ApiKey>, StoreError> {
        self.writer.run(move |batch| callers::revoke_api_key(batch, key, at)).await
    }

    async fn rotate_api_key(&self, old: ApiKeyKey, until: Timestamp, new: ApiKey) -> Result<(), PutError> {
        self.writer.run(move |batch| callers::rotate_api_key(batch, old, until, &new)).await?
    }

    async fn note_api_key_uses(&self, uses: Vec<(ApiKeyKey, Timestamp)>) -> Result<(), StoreError> {
        self.writer.run(move |batch| callers::note_uses(batch, &uses)).await
    }

    async fn revoke_tokens(&self, revocations: Vec<Revocation>) -> Result<(), StoreError> {
        self.writer.run(move |batch| callers::revoke_tokens(batch, &revocations)).await
    }

    async fn is_revoked(&self, token: Issued, now: Timestamp) -> Result<bool, StoreError> {
        self.readers.run(move |connection, _| callers::is_revoked(connection, &token, now)).await
    }

    async fn add_to_refused(&self, refused: Vec<Refused>) -> Result<(), StoreError> {
        self.writer.run(move |batch| refused::add(batch, &refused)).await
    }

    async fn refused(&self, app: AppKey, page: Page<RefusedKey>) -> Result<Vec<Refused>, StoreError> {
        self.readers.run(move |connection, _| refused::list(connection, app, &page)).await
    }

    async fn horizon(&self, _: Timestamp) -> Result<MessageKey, StoreError> {
        // Not by a look into the tables: what is in there is not listed before it is told.
        Ok(self.shared.unfiled.newest_message())
    }

    async fn read_on(&self, app: AppKey, wanted: ReadOn) -> Result<WasRead, StoreError> {
        self.searchers
            .run_beside(move |connection, shared| {
                let recent = shared.unfiled.of_app(app);
                pollers::read_on(connection, &shared.pieces(), (app, &recent), &wanted)
            })
            .await
    }

    async fn consumer(&self, poller: PollerKey, name: &str) -> Result<Option<Consumer>, StoreError> {
        let name = name.to_owned();
        self.readers.run(move |connection, _| pollers::consumer(connection, poller, &name)).await
    }

    async fn consumers(&self, poller: PollerKey) -> Result<Vec<Consumer>, StoreError> {
        self.readers.run(move |connection, _| pollers::consumers(connection, poller)).await
    }

    async fn move_consumer(&self, stride: Stride, remember: Option<Remember>) -> Result<Consumer, PutError> {
        self.writer.run(move |batch| pollers::move_consumer(batch, &stride, remember)).await?
    }

    async fn forget_consumers(&self, poller: PollerKey, name: Option<&str>) -> Result<bool, StoreError> {
        let name = name.map(str::to_owned);
        self.writer.run(move |batch| pollers::forget_consumers(batch, poller, name.as_deref())).await
    }

    async fn add_to_audit(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.writer.run(move |batch| callers::add_to_audit(batch, &entries)).await
    }

    async fn audit(&self, filter: AuditFilter, page: Page<AuditKey>) -> Result<Vec<AuditEntry>, StoreError> {
        self.searchers.run(move |connection, _| callers::audit(connection, &filter, &page)).await
    }

    async fn add_to_tallies(&self, tallies: Vec<Tally>) -> Result<(), StoreError> {
        self.writer.run(move |batch| tallies::add(batch, &tallies)).await
    }

    async fn tallies_by_application(
        &self,
        events: (TallyCode, TallyCode),
        span: TallySpan,
        since: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<(AppKey, u64)>, StoreError> {
        let wanted = TalliesOf { of: TallyOf::Application(AppKey::new(0)), span, since, until };
        self.searchers.run(move |connection, _| tallies::by_application(connection, events, wanted)).await
    }

    async fn tallies(&self, of: TalliesOf) -> Result<Vec<Counted>, StoreError> {
        self.searchers.run(move |connection, _| tallies::list(connection, of)).await
    }

    async fn enter_alert(&self, app: Option<AppKey>, alert: AlertHappened, at: Timestamp) -> Result<(), StoreError> {
        self.writer.run(move |batch| journal::enter_alert(batch, app, alert, at)).await
    }

    async fn turn_alarm(&self, turn: AlarmTurn) -> Result<bool, StoreError> {
        self.writer.run(move |batch| journal::turn_alarm(batch, turn)).await
    }

    async fn raised_alarms(&self) -> Result<Vec<String>, StoreError> {
        self.readers.run(|connection, _| journal::raised_alarms(connection)).await
    }

    async fn untold(&self, limit: usize) -> Result<Vec<JournalEntry>, StoreError> {
        self.readers.run(move |connection, _| journal::untold(connection, limit)).await
    }

    async fn strike_out(&self, entries: Vec<JournalKey>) -> Result<(), StoreError> {
        self.writer.run(move |batch| journal::strike_out(batch, &entries)).await
    }

    async fn start_task(&self, task: Task, remember: Option<Remember>) -> Result<(), PutError> {
        self.writer
            .run(move |batch| settings::put(batch, remember, task.updated_at, |batch| tasks::start(batch, &task)))
            .await?
    }

    async fn advance_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        let counted = match self.readers.run(move |connection, _| tasks::has_begun(connection, task)).await? {
            None => return Ok(None),
            Some(true) => None,
            Some(false) => {
                let count = move |connection: &Connection, shared: &Shared| tasks::count(connection, shared, task);
                self.searchers.run_beside(count).await?
            }
        };
        let advance = move |batch: &mut Batch<'_>| {
            let advanced = tasks::advance(batch, task, counted, at);
            step!("task.stepping");
            advanced
        };
        self.writer.run(advance).await
    }

    async fn task(&self, task: TaskKey) -> Result<Option<Task>, StoreError> {
        self.readers.run(move |connection, _| tasks::find(connection, task)).await
    }

    async fn tasks(&self, filter: TaskFilter, page: Page<TaskKey>) -> Result<Vec<Task>, StoreError> {
        self.readers.run(move |connection, _| tasks::list(connection, &filter, &page)).await
    }

    async fn cancel_task(&self, task: TaskKey, at: Timestamp) -> Result<Option<Task>, StoreError> {
        self.writer.run(move |batch| tasks::cancel_task(batch, task, at)).await
    }

    async fn unfinished_tasks(&self) -> Result<Vec<TaskKey>, StoreError> {
        self.readers.run(|connection, _| tasks::unfinished(connection)).await
    }

    async fn tidy(&self, now: Timestamp, retention: Retention) -> Result<bool, StoreError> {
        self.writer.run(move |batch| tidy::tidy(batch, now, retention)).await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        Ok(Vec::new())
    }

    async fn counts(&self, _: Shards) -> Result<Counts, StoreError> {
        self.searchers
            .run(|connection, _| {
                connection.query_row(
                    "SELECT (SELECT count(*) FROM waiting), (SELECT count(*) FROM dead WHERE open = 1)",
                    [],
                    |row| Ok(Counts { waiting: row.get(0)?, dead: row.get(1)? }),
                )
            })
            .await
    }

    fn is_open(&self) -> bool {
        self.writer.is_open()
    }

    async fn close(&self) {
        self.readers.close();
        self.searchers.close();
        self.intake.close();
        self.writer.close();
    }
}

fn optional<T>(found: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
        Err(error) => Err(error),
    }
}

impl From<Unreadable> for rusqlite::Error {
    fn from(unreadable: Unreadable) -> Self {
        Self::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(unreadable))
    }
}
