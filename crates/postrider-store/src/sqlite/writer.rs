//! The one writer, and group commit.
//!
//! Whoever wants something written queues a job and waits. The writer takes everything that is queued, runs it
//! in one transaction, syncs once and answers all. Alone, a job is committed at once; under load the batches
//! grow by themselves, and the cost of a sync is shared by hundreds.
//!
//! They do not grow without bound. A lane goes on only when its outcomes are written, so that deliveries are as slow as
//! commits are long: what the dispatcher has to write goes first, and of what is new only so much goes along as can be
//! handed on meanwhile, those that are owed to many last. Else whoever sends us messages fast enough would stop all that
//! go out.

use super::{
    OpenError, SqliteOptions,
    accept::INSERT_MESSAGE,
    crowd::Crowd,
    listing::{self, AttemptEntry, Listing, MessageEntry, Recent, Unfiled},
    outstanding::{HandOff, Outstanding},
    pieces::{OnPieces, Piece, Pieces, piece_of, time_of_key},
    repeats::{self, Repeats, Seen},
    schema,
    settle::INSERT_ATTEMPT,
};
use crate::{Committed, StoreError, intake::Room, rows::minter::Minter, step};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc as async_mpsc, oneshot};

/// A batch is closed at this size, so that the first to queue does not wait for ever.
const BATCH_JOBS_MAX: usize = 4_096;

/// Deliveries that the messages of one batch may bring with them. If their lanes are full, the next batch but one has to
/// write a row for each.
const BATCH_OWED_MAX: usize = 2_048;

/// Or so many for each outcome that the batch writes, if that is more: a batch that is long because much goes out must not
/// keep out what comes in. An outcome is taken for as much work as two such rows; neither was measured.
const OWED_PER_SETTLED: usize = 2;

/// How long jobs that go in order are run in one batch, unless those that go first took longer.
const BATCH_TIME_MAX: Duration = Duration::from_millis(20);

/// How far apart commits are at most, after one with so many jobs; `Crowd` says when they may be nearer. Every commit writes
/// the last page of each tree again, so that fewer and greater ones save processor time; a job that comes alone waits for
/// nobody.
fn gap_after(jobs: usize, lags: bool) -> Duration {
    match jobs {
        _ if lags => Duration::from_millis(4),
        0 | 1 => Duration::ZERO,
        2..CROWD => Duration::from_millis(1),
        CROWD.. => Duration::from_millis(2),
    }
}

const CROWD: usize = 24;

/// A disk that fails once may have a bad moment. One that goes on failing is for a person to look at.
const DISK_PATIENCE: Duration = Duration::from_secs(10);

pub const WATERMARK: &str = "settled_through";
pub const MINTED: &str = "minted_through";

/// A transaction under way, and what will be true once it is committed.
pub struct Batch<'c> {
    pub transaction: Transaction<'c>,
    pub minter: &'c Minter,
    /// Prepared once, however many rows the batch has.
    pub insert_message: OnPieces<'c>,
    pub insert_attempt: OnPieces<'c>,
    options: SqliteOptions,
    /// The oldest message with a hand-off that has no row yet.
    pub oldest_handed: Option<i64>,
    pieces: Pieces,
    piece_messages: u64,
    committed: Vec<Committed>,
    handed: Vec<(i64, HandOff)>,
    /// How many deliveries that makes.
    owed: usize,
    /// How many outcomes are written.
    pub settled: usize,
    /// Hand-offs that got a row.
    landed: Vec<(i64, EndpointKey)>,
    outstanding: &'c Mutex<Outstanding>,
    ended: &'c Ended,
    /// Hand-offs that this batch ends before their outcome is known.
    newly_ended: Vec<(i64, EndpointKey)>,
    repeats: &'c Repeats,
    /// Keys of messages that this batch accepts.
    new_repeats: HashMap<repeats::Key, Seen>,
    listing: &'c Listing,
    unfiled: &'c Unfiled,
    /// What this batch brings that is to be listed.
    new_listed: listing::New,
    /// An attempt got a key.
    attempted: bool,
}

impl Batch<'_> {
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    pub fn current_piece(&self) -> Piece {
        *self.pieces.last().expect("there is always a piece")
    }

    pub fn piece_of(&self, message: i64) -> Option<Piece> {
        piece_of(&self.pieces, message)
    }

    pub fn announce(&mut self, committed: Committed) {
        self.committed.push(committed);
    }

    /// The message's deliveries are handed to their lanes and have no rows of their own yet.
    pub fn hand_over(&mut self, message: i64, owed: &[EndpointKey], room: Option<Room>) {
        self.piece_messages += 1;
        if !owed.is_empty() {
            self.owed += owed.len();
            self.handed.push((message, HandOff { owed: owed.to_vec(), room }));
        }
    }

    /// One of the message's hand-offs now has a row.
    pub fn land(&mut self, message: i64, endpoint: EndpointKey) {
        self.landed.push((message, endpoint));
    }

    /// The messages whose delivery to this endpoint is handed over and has no row yet, oldest first.
    pub fn handed_to(&self, endpoint: EndpointKey) -> Vec<MessageKey> {
        let outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        let here = self.handed.iter().filter(|(_, hand_off)| hand_off.owed.contains(&endpoint));
        let all = outstanding.of(endpoint).chain(here.map(|(message, _)| *message));
        all.filter(|message| !self.landed.contains(&(*message, endpoint))).map(MessageKey::new).collect()
    }

    /// Whether the delivery is handed over and has no row yet.
    pub fn is_handed(&self, message: MessageKey, endpoint: EndpointKey) -> bool {
        let message = message.raw();
        let here = |(handed, hand_off): &(i64, HandOff)| *handed == message && hand_off.owed.contains(&endpoint);
        let outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        (outstanding.has(message, endpoint) || self.handed.iter().any(here))
            && !self.landed.contains(&(message, endpoint))
    }

    /// A hand-off ends here and now, whatever its try may bring that is perhaps on the wire. The caller has given it a
    /// row that says so.
    pub fn end_handed(&mut self, message: MessageKey, endpoint: EndpointKey) {
        self.land(message.raw(), endpoint);
        self.newly_ended.push((message.raw(), endpoint));
    }

    /// Whether a hand-off was ended before its outcome was known.
    pub fn was_ended(&self, message: i64, endpoint: EndpointKey) -> bool {
        self.ended.contains_key(&(message, endpoint)) || self.newly_ended.contains(&(message, endpoint))
    }

    /// The message that this key was used for before, if it is not in the index for certain.
    pub fn recognised(&self, key: &repeats::Key) -> Option<Seen> {
        self.new_repeats.get(key).copied().or_else(|| self.repeats.find(key))
    }

    /// False if the key is certainly not in the piece's index.
    pub fn may_be_filed(&self, piece: Piece, key: &repeats::Key) -> bool {
        self.repeats.may_be_filed(piece, key)
    }

    pub fn recognise(&mut self, key: repeats::Key, seen: Seen) {
        self.new_repeats.insert(key, seen);
    }

    /// An application has this message.
    pub fn list_message(&mut self, app: AppKey, message: i64) {
        self.new_listed.messages.push(MessageEntry { app: app.raw(), message });
    }

    /// An endpoint has this attempt.
    pub fn list_attempt(&mut self, piece: Piece, entry: AttemptEntry) -> rusqlite::Result<()> {
        self.listing.file_if_passed(&self.transaction, piece, entry)?;
        self.new_listed.attempts.push(entry);
        Ok(())
    }

    /// Those of the application's messages that are not filed yet.
    pub fn recent_of(&self, app: AppKey) -> Recent<i64> {
        self.unfiled.of_app(app).and(&self.new_listed, app)
    }

    /// A key for an attempt. At the next start it is known only from the note that the commit takes of it: unlike
    /// those of messages, keys of attempts cannot be looked up in order.
    pub fn mint_attempt(&mut self, at: Timestamp) -> i64 {
        self.attempted = true;
        self.minter.mint(at)
    }

    pub fn replace_pieces(&mut self, pieces: Vec<Piece>) {
        self.pieces = Arc::new(pieces);
    }

    /// Begins a piece if the current one is full, or old by the time of the latest key.
    pub fn begin_piece_if_due(&mut self) -> rusqlite::Result<()> {
        let current = self.current_piece();
        let age = time_of_key(self.minter.last()).since(time_of_key(current.first_key));
        let full = self.piece_messages >= self.options.piece_messages_max;
        let aged = age >= self.options.piece_age_max && self.piece_messages > 0;
        if !full && !aged {
            return Ok(());
        }
        let next = Piece { number: current.number + 1, first_key: self.minter.last() + 1 };
        schema::create_piece(&self.transaction, next.number, next.first_key)?;
        let mut pieces = Vec::clone(&self.pieces);
        pieces.push(next);
        self.pieces = Arc::new(pieces);
        self.piece_messages = 0;
        Ok(())
    }
}

/// Something queued: first run, then told whether it was committed.
trait Job: Send {
    fn run(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()>;
    fn finish(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Call<F, T> {
    run: Option<F>,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Job for Call<F, T>
where
    F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn run(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()> {
        if let Some(run) = self.run.take() {
            self.outcome = Some(run(batch)?);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, committed: Result<(), StoreError>) {
        let answer = match (committed, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Ok(()), None) => Err(StoreError::Closed),
            (Err(error), _) => Err(error),
        };
        // Whoever asked may have gone away; what was committed stays committed.
        let _ = self.reply.send(answer);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// What frees memory and slots.
    First,
    InOrder,
    /// What is owed to many.
    Last,
}

/// What waits to be written.
#[derive(Default)]
struct Waiting {
    first: Vec<Box<dyn Job>>,
    in_order: VecDeque<Box<dyn Job>>,
    last: VecDeque<Box<dyn Job>>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.in_order.is_empty() && self.last.is_empty()
    }
}

type Queued = (Turn, Box<dyn Job>);

/// What comes of a job that is queued.
pub type Queueing<T> = oneshot::Receiver<Result<T, StoreError>>;

/// Waits until a job is durable.
pub async fn outcome<T>(queued: Queueing<T>) -> Result<T, StoreError> {
    queued.await.unwrap_or(Err(StoreError::Closed))
}

impl Extend<Queued> for Waiting {
    fn extend<I: IntoIterator<Item = Queued>>(&mut self, jobs: I) {
        for (turn, job) in jobs {
            match turn {
                Turn::First => self.first.push(job),
                Turn::InOrder => self.in_order.push_back(job),
                Turn::Last => self.last.push_back(job),
            }
        }
    }
}

/// The writer as seen by those who queue.
pub struct Writer {
    jobs: Mutex<Option<Sender<Queued>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    crowd: Arc<Crowd>,
}

/// Hand-offs that were ended before their outcome was known, and the latest key at that time. If a try was on the wire
/// its outcome still comes; keeping this in memory saves every other settlement a look at the dead letters.
type Ended = BTreeMap<(i64, EndpointKey), i64>;

/// No try takes as long as this, and what was never tried is not heard of again.
const ENDED_MEMORY: Duration = Duration::from_hours(1);

/// What the writer shows to readers and to the dispatcher.
pub struct Shared {
    pub pieces: Mutex<Pieces>,
    pub minter: Minter,
    pub outstanding: Mutex<Outstanding>,
    pub unfiled: Unfiled,
}

impl Shared {
    pub fn new(pieces: Pieces, minter: Minter) -> Self {
        Self { pieces: Mutex::new(pieces), minter, outstanding: Mutex::default(), unfiled: Unfiled::default() }
    }

    pub fn pieces(&self) -> Pieces {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The messages whose delivery to this endpoint has no row yet.
    pub fn outstanding_of(&self, endpoint: EndpointKey) -> Vec<i64> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner).of(endpoint).collect()
    }

    fn oldest_outstanding(&self) -> Option<i64> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner).oldest()
    }

    fn note_outstanding(&self, handed: Vec<(i64, HandOff)>, landed: Vec<(i64, EndpointKey)>) {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        outstanding.add(handed);
        for (message, endpoint) in landed {
            outstanding.land(message, endpoint);
        }
    }
}

impl Writer {
    pub fn start(
        connection: Connection,
        shared: Arc<Shared>,
        committed: async_mpsc::UnboundedSender<Vec<Committed>>,
        now: Timestamp,
        options: SqliteOptions,
    ) -> Result<Self, OpenError> {
        let piece_messages = count_current_piece(&connection, &shared.pieces())?;
        let repeats = Repeats::recall(&connection, &shared.pieces(), now, options)?;
        let listing = Listing::recall(&connection, &shared.pieces(), shared.minter.last(), options, &shared.unfiled)?;
        let (jobs, queue) = mpsc::channel();
        let state = State {
            connection,
            shared,
            committed,
            options,
            piece_messages,
            repeats,
            listing,
            ended: Ended::new(),
            crowd: Arc::default(),
            newest: 0,
            noted_at: Instant::now(),
            noted: None,
            failing_since: None,
        };
        let crowd = Arc::clone(&state.crowd);
        let thread = std::thread::Builder::new()
            .name("postrider-writer".into())
            .spawn(move || state.write_until_closed(&queue))
            .map_err(OpenError::Thread)?;
        Ok(Self { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)), crowd })
    }

    /// Queues a job and waits until it is durable. If it goes wrong, nothing of its batch was written.
    pub async fn run<T, F>(&self, job: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run_in_turn(Turn::InOrder, job).await
    }

    /// The same, before all that waits in order: for the dispatcher, which never has more than two of them waiting.
    pub async fn run_first<T, F>(&self, job: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run_in_turn(Turn::First, job).await
    }

    /// The same, behind those that wait in order: for what takes long, so that it holds up nobody but its like.
    pub async fn run_last<T, F>(&self, job: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.run_in_turn(Turn::Last, job).await
    }

    async fn run_in_turn<T, F>(&self, turn: Turn, job: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        outcome(self.queue(turn, job)?).await
    }

    /// Queues a job now, so that it goes before all that is queued later, and leaves the waiting to the caller.
    pub fn queue<T, F>(&self, turn: Turn, job: F) -> Result<Queueing<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let call = Box::new(Call { run: Some(job), outcome: None, reply });
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_ref().ok_or(StoreError::Closed)?.send((turn, call)).map_err(|_| StoreError::Closed)?;
        drop(jobs);
        self.crowd.came();
        Ok(answer)
    }

    /// Whether deliveries are behind.
    pub fn set_lag(&self, lags: bool) {
        self.crowd.set_lag(lags);
    }

    pub fn is_open(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Lets what is queued finish, then ends the thread.
    pub fn close(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

fn count_current_piece(connection: &Connection, pieces: &Pieces) -> rusqlite::Result<u64> {
    let current = pieces.last().expect("there is always a piece");
    current.prepare(connection, "SELECT count(*) FROM message_{n}")?.query_row([], |row| row.get(0))
}

/// What only the writer's own thread sees.
struct State {
    connection: Connection,
    shared: Arc<Shared>,
    committed: async_mpsc::UnboundedSender<Vec<Committed>>,
    options: SqliteOptions,
    piece_messages: u64,
    repeats: Repeats,
    listing: Listing,
    ended: Ended,
    crowd: Arc<Crowd>,
    /// The greatest message key committed by this process.
    newest: i64,
    noted_at: Instant,
    noted: Option<i64>,
    /// Since when every commit has failed for the disk's sake.
    failing_since: Option<Instant>,
}

impl State {
    fn write_until_closed(mut self, queue: &Receiver<Queued>) {
        let (mut waiting, mut run) = (Waiting::default(), Vec::new());
        loop {
            if waiting.is_empty() {
                let Ok(next) = queue.recv() else { break };
                waiting.extend([next]);
            }
            let begun = Instant::now();
            self.crowd.is_taken_along();
            waiting.extend(queue.try_iter());
            let changes = self.connection.total_changes();
            let result = self.commit(&mut waiting, &mut run);
            let is_lost = self.is_disk_lost(&result, self.connection.total_changes() > changes);
            let gap = gap_after(run.len(), self.crowd.lags());
            for job in run.drain(..) {
                job.finish(result.clone());
            }
            if is_lost {
                tracing::error!("the disk has failed every write for {DISK_PATIENCE:?}; nothing more is written");
                return;
            }
            if !gap.is_zero() {
                self.crowd.wait_until(begun + gap);
            }
        }
        if let Err(error) = self.note_watermark_now() {
            tracing::warn!(%error, "could not note how far everything is settled; the next start looks through more");
        }
    }

    /// Whether the disk has failed for so long that it is better to end than to go on without it.
    fn is_disk_lost(&mut self, result: &Result<(), StoreError>, wrote: bool) -> bool {
        match result {
            Err(StoreError::Unreachable(_)) => {
                self.failing_since.get_or_insert_with(Instant::now).elapsed() >= DISK_PATIENCE
            }
            // Nothing was asked of the disk.
            Ok(()) if !wrote => false,
            // A full disk may have room again, and that is not for a restart to bring about.
            Ok(()) | Err(_) => {
                self.failing_since = None;
                false
            }
        }
    }

    /// Moves what it has written from `waiting` to `run`, or everything if it could not write.
    fn commit(&mut self, waiting: &mut Waiting, run: &mut Vec<Box<dyn Job>>) -> Result<(), StoreError> {
        // A job that panics takes its batch with it, and nothing else.
        let attempted = catch_unwind(AssertUnwindSafe(|| self.attempt(waiting, run)));
        let attempted = attempted.unwrap_or_else(|_| Err(rusqlite::Error::InvalidQuery));
        let (pieces, piece_messages, changes) = attempted.map_err(|error| {
            // They would fare no better, and whoever waits for nothing should hear of it soon.
            run.append(&mut waiting.first);
            run.extend(waiting.in_order.drain(..));
            run.extend(waiting.last.drain(..));
            tracing::error!(%error, jobs = run.len(), "a batch could not be written and was rolled back");
            translate(&error)
        })?;
        self.piece_messages = piece_messages;
        // Before anybody is told what is in them.
        *self.shared.pieces.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&pieces);
        self.repeats.committed(&pieces, changes.filed, changes.new_repeats);
        let owed = [self.shared.oldest_outstanding(), changes.handed.first().map(|(message, _)| *message)];
        let owed_from = owed.into_iter().flatten().min().unwrap_or(i64::MAX);
        self.listing.committed(&self.shared.unfiled, &pieces, changes.listed, changes.new_listed, owed_from);
        self.newest = self.newest.max(changes.handed.last().map_or(0, |(newest, _)| *newest));
        self.shared.note_outstanding(changes.handed, changes.landed);
        self.note_ended(changes.newly_ended);
        if !changes.committed.is_empty() {
            // Nobody listens during a clean stop; the next start finds the same in the store.
            let _ = self.committed.send(changes.committed);
        }
        step!("store.told");
        Ok(())
    }

    fn attempt(
        &mut self,
        waiting: &mut Waiting,
        run: &mut Vec<Box<dyn Job>>,
    ) -> rusqlite::Result<(Pieces, u64, Changes)> {
        let begun = Instant::now();
        run.append(&mut waiting.first);
        let watermark = self.watermark_to_note();
        let mut batch = Batch {
            transaction: Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?,
            minter: &self.shared.minter,
            insert_message: OnPieces::new(&self.connection, INSERT_MESSAGE),
            insert_attempt: OnPieces::new(&self.connection, INSERT_ATTEMPT),
            options: self.options,
            oldest_handed: self.shared.oldest_outstanding(),
            pieces: self.shared.pieces(),
            piece_messages: self.piece_messages,
            committed: Vec::new(),
            handed: Vec::new(),
            owed: 0,
            settled: 0,
            landed: Vec::new(),
            outstanding: &self.shared.outstanding,
            ended: &self.ended,
            newly_ended: Vec::new(),
            repeats: &self.repeats,
            new_repeats: HashMap::new(),
            listing: &self.listing,
            unfiled: &self.shared.unfiled,
            new_listed: listing::New::default(),
            attempted: false,
        };
        batch.begin_piece_if_due()?;
        step!("store.begun");
        for job in run.iter_mut() {
            job.run(&mut batch)?;
        }
        let end = begun.elapsed() + begun.elapsed().max(BATCH_TIME_MAX);
        let owed_max = BATCH_OWED_MAX.max(OWED_PER_SETTLED * batch.settled);
        let mut run_in_turn = |queue: &mut VecDeque<Box<dyn Job>>, at_least: usize| {
            let mut count = 0;
            while count < at_least || (run.len() < BATCH_JOBS_MAX && batch.owed < owed_max && begun.elapsed() < end) {
                let Some(job) = queue.pop_front() else { break };
                run.push(job);
                run.last_mut().expect("it was just put there").run(&mut batch)?;
                count += 1;
            }
            Ok::<_, rusqlite::Error>(())
        };
        run_in_turn(&mut waiting.in_order, 1)?;
        // However much comes before it, one gets its turn.
        run_in_turn(&mut waiting.last, 1)?;
        if let Some(watermark) = watermark {
            note(&batch.transaction, WATERMARK, watermark)?;
        }
        if batch.attempted {
            note(&batch.transaction, MINTED, batch.minter.last())?;
        }
        let filed = batch.repeats.file(&batch.transaction, &batch.pieces, batch.new_repeats.len())?;
        let listed = batch.listing.file(&batch.transaction, &batch.pieces, &batch.new_listed)?;
        let Batch {
            transaction,
            pieces,
            piece_messages,
            committed,
            handed,
            landed,
            newly_ended,
            new_repeats,
            new_listed,
            ..
        } = batch;
        step!("store.written");
        transaction.commit()?;
        step!("store.committed");
        if let Some(watermark) = watermark {
            self.noted_at = Instant::now();
            self.noted = Some(watermark);
        }
        let changes = Changes { committed, handed, landed, newly_ended, filed, new_repeats, listed, new_listed };
        Ok((pieces, piece_messages, changes))
    }

    fn note_ended(&mut self, newly_ended: Vec<(i64, EndpointKey)>) {
        if newly_ended.is_empty() {
            return;
        }
        let latest = self.shared.minter.last();
        self.ended.retain(|_, then| time_of_key(latest).since(time_of_key(*then)) < ENDED_MEMORY);
        self.ended.extend(newly_ended.into_iter().map(|hand_off| (hand_off, latest)));
    }

    /// Every message up to this key has a row for each of its deliveries.
    fn watermark(&self) -> i64 {
        self.shared.oldest_outstanding().map_or(self.newest, |oldest| oldest - 1)
    }

    fn watermark_to_note(&self) -> Option<i64> {
        let watermark = self.watermark();
        let news = watermark > 0 && self.noted != Some(watermark);
        (news && self.noted_at.elapsed() >= self.options.note_every).then_some(watermark)
    }

    fn note_watermark_now(&self) -> rusqlite::Result<()> {
        let watermark = self.watermark();
        if watermark > 0 {
            note(&self.connection, WATERMARK, watermark)?;
        }
        note(&self.connection, MINTED, self.shared.minter.last())
    }
}

struct Changes {
    committed: Vec<Committed>,
    handed: Vec<(i64, HandOff)>,
    landed: Vec<(i64, EndpointKey)>,
    newly_ended: Vec<(i64, EndpointKey)>,
    filed: usize,
    new_repeats: HashMap<repeats::Key, Seen>,
    listed: usize,
    new_listed: listing::New,
}

pub fn note(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO note VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value")?
        .execute((name, value.to_be_bytes()))?;
    Ok(())
}

pub fn noted(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let value: Option<[u8; 8]> = super::optional(
        connection.prepare_cached("SELECT value FROM note WHERE name = ?1")?.query_row([name], |row| row.get(0)),
    )?;
    Ok(value.map(i64::from_be_bytes))
}

pub fn translate(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        // Of the disk, not of what was asked: it may go better next time.
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
            StoreError::Unreachable(error.to_string())
        }
        _ => StoreError::Database(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::SqliteStore, *};
    use std::sync::mpsc::channel;

    /// The jobs run while the writer is held up, so that all of them wait when it goes on.
    async fn queue_while_busy<F: Future>(writer: &Writer, jobs: F) -> F::Output {
        let (release, held) = channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let busy = writer.run(move |_| {
            let _ = begun.send(());
            let _ = held.recv();
            Ok(())
        });
        let others = async {
            has_begun.await.expect("the writer runs");
            // Polled in order: all of them are queued when the last one is polled.
            tokio::join!(jobs, async { drop(release) }).0
        };
        let (busy, others) = tokio::join!(busy, others);
        busy.expect("it is written");
        others
    }

    fn open() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path(), Timestamp::from_millis(1_700_000_000_000)).expect("a store");
        (folder, store)
    }

    #[test]
    fn a_file_that_can_only_be_read_is_a_fault_of_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.db");
        Connection::open(&file).and_then(|made| made.execute_batch("CREATE TABLE t (a)")).expect("a file");
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let reading = Connection::open_with_flags(&file, flags).expect("it opens");
        let refused = reading.execute_batch("INSERT INTO t VALUES (1)").expect_err("it is not written");
        assert!(matches!(translate(&refused), StoreError::Unreachable(_)), "{refused}");
    }

    #[tokio::test]
    async fn what_frees_slots_goes_before_what_is_new_and_what_is_owed_to_many_behind_it() {
        let (_folder, store) = open();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = Arc::clone(&order);
            move |_: &mut Batch<'_>| {
                order.lock().unwrap().push(what);
                Ok(())
            }
        };
        let writer = &store.writer;
        queue_while_busy(writer, async {
            let (one, two) = (writer.run(note("new")), writer.run(note("newer")));
            let (many, settled) = (writer.run_last(note("owed to many")), writer.run_first(note("settled")));
            let (many, one, two, settled) = tokio::join!(many, one, two, settled);
            assert!(many.is_ok() && one.is_ok() && two.is_ok() && settled.is_ok());
        })
        .await;
        assert_eq!(*order.lock().unwrap(), ["settled", "new", "newer", "owed to many"]);
    }

    #[tokio::test]
    async fn a_batch_takes_no_more_deliveries_along_than_can_be_handed_on() {
        let (_folder, store) = open();
        let accept = |message: i64| {
            move |batch: &mut Batch<'_>| {
                let before = batch.owed;
                batch.hand_over(message, &[EndpointKey::new(1); BATCH_OWED_MAX / 2], None);
                Ok(before)
            }
        };
        let writer = &store.writer;
        let [first, second, third] = queue_while_busy(writer, async {
            let (first, second) = (writer.run(accept(1)), writer.run(accept(2)));
            let (first, second, third) = tokio::join!(first, second, writer.run(accept(3)));
            [first, second, third].map(|owed| owed.expect("it is written"))
        })
        .await;
        assert_eq!([first, second, third], [0, BATCH_OWED_MAX / 2, 0]);
    }

    #[tokio::test]
    async fn what_is_owed_to_many_gets_its_turn_however_much_goes_before_it() {
        let (_folder, store) = open();
        let writer = &store.writer;
        let accept = |message: i64| {
            move |batch: &mut Batch<'_>| {
                let before = batch.owed;
                batch.hand_over(message, &[EndpointKey::new(1); BATCH_OWED_MAX], None);
                Ok(before)
            }
        };
        let [light, heavy, heavier] = queue_while_busy(writer, async {
            let (light, heavy) = (writer.run(accept(1)), writer.run_last(accept(2)));
            let (light, heavy, heavier) = tokio::join!(light, heavy, writer.run_last(accept(3)));
            [light, heavy, heavier].map(|owed| owed.expect("it is written"))
        })
        .await;
        assert_eq!([light, heavy, heavier], [0, BATCH_OWED_MAX, 0]);
    }

    #[tokio::test]
    async fn the_more_goes_out_with_a_batch_the_more_may_come_in() {
        let (_folder, store) = open();
        let writer = &store.writer;
        let accept = |message: i64| {
            move |batch: &mut Batch<'_>| {
                let before = batch.owed;
                batch.hand_over(message, &[EndpointKey::new(1); BATCH_OWED_MAX], None);
                Ok(before)
            }
        };
        let owed = queue_while_busy(writer, async {
            let settle = writer.run_first(|batch| {
                batch.settled += BATCH_OWED_MAX;
                Ok(())
            });
            let (settled, one, two, three) =
                tokio::join!(settle, writer.run(accept(1)), writer.run(accept(2)), writer.run(accept(3)));
            settled.expect("it is written");
            [one, two, three].map(|owed| owed.expect("it is written"))
        })
        .await;
        assert_eq!(owed, [0, BATCH_OWED_MAX, 0]);
    }

    #[tokio::test]
    async fn a_batch_that_fails_fails_for_all_who_wait_and_the_next_one_is_well() {
        let (_folder, store) = open();
        let writer = &store.writer;
        queue_while_busy(writer, async {
            let broken = writer.run(|_| -> rusqlite::Result<()> { Err(rusqlite::Error::InvalidQuery) });
            let (broken, other) = tokio::join!(broken, writer.run(|_| Ok(())));
            assert!(broken.is_err() && other.is_err());
        })
        .await;
        assert!(writer.run(|_| Ok(())).await.is_ok());
    }
}
