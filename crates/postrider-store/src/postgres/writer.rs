//! The one writer of this node, and group commit.
//!
//! Whoever wants something written queues a job and waits. The writer takes everything that is queued: messages and
//! outcomes together make one transaction, beside which other nodes write theirs; everything else gets a transaction of
//! its own, a *turn*, during which no other node writes.
//!
//! Every transaction begins by counting itself in the node's own row. If that row is gone, the node has been declared dead
//! and its lanes are someone else's: nothing is written, and it joins again as a new one. If a connection is lost before a
//! commit is answered, the count tells whether it was carried out.

use super::{
    Db, Error, PostgresOptions, Result, accept, describe, execute, leases,
    news::{self, Event},
    pieces::{self, Piece},
    recover, row, settle,
};
use crate::{
    AcceptError, Accepted, Cancelled, Committed, NewMessage, Settlement, StoreError,
    queued::Queued,
    rows::minter::Minter,
    shards::{Shards, Tenure},
};
use deadpool_postgres::{Client, Pool};
use futures_util::{FutureExt, future::BoxFuture, try_join};
use postrider_engine::{DeliveryId, EndpointKey, OrderKey, Timestamp};
use std::{
    collections::{BTreeMap, VecDeque, btree_map},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
};
use tokio_postgres::error::SqlState;

/// A batch is closed at this size, so that the first to queue does not wait for ever.
const BATCH_JOBS_MAX: usize = 2_048;

/// How far apart commits are, at least, after one with so many jobs: fewer and greater ones save processor time, and a
/// job that comes alone waits for nobody.
fn gap_after(jobs: usize) -> Duration {
    match jobs {
        0 | 1 => Duration::ZERO,
        2..CROWD => Duration::from_millis(1),
        CROWD.. => Duration::from_millis(2),
    }
}

const CROWD: usize = 24;

/// A transaction that collides with another one, or loses its connection, is tried so often.
const TRIES_MAX: u32 = 6;

/// Longer than the database itself lets anything take.
const PATIENCE: Duration = Duration::from_secs(20);

/// After so long without a job it is noted that everything is settled, if it was not when the last one was written.
const IDLE: Duration = Duration::from_millis(500);

/// Between attempts to reach a database that does not answer.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Nobody else in the database uses this number. Shared by those who write beside one another, alone for a turn.
const WRITE_LOCK: i64 = 0x706f_7374_7269_6465;

/// A transaction during which no other node writes, and what is to be told once it is committed.
pub struct Turn {
    client: Arc<Client>,
    tenure: Tenure,
    announced: Vec<Committed>,
}

impl Turn {
    pub fn db(&self) -> &Db {
        &self.client
    }

    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// Whoever serves the lane, or keeps the settings, is told as soon as this is committed.
    pub fn announce(&mut self, committed: Committed) {
        self.announced.push(committed);
    }

    /// Whoever does the work in the background is told, if that is another node. On this one the caller sees to it.
    pub fn announce_work(&mut self) {
        self.announced.push(Committed::Work);
    }
}

type Reply<T, E = StoreError> = oneshot::Sender<Result<T, E>>;

enum Job {
    Accept {
        message: Box<NewMessage>,
        reply: Reply<Accepted, AcceptError>,
    },
    Settle {
        tenure: Tenure,
        settlements: Arc<Vec<Settlement>>,
        reply: Reply<()>,
    },
    Spill {
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
        reply: Reply<()>,
    },
    Turn(Box<dyn TurnJob>),
    /// These shards are wanted elsewhere.
    Leave(Shards),
    /// The lease could not be renewed.
    Doubt,
    Close(oneshot::Sender<()>),
}

impl Job {
    fn refuse(self, error: &StoreError) {
        match self {
            Self::Accept { reply, .. } => drop(reply.send(Err(error.clone().into()))),
            Self::Settle { reply, .. } | Self::Spill { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Turn(job) => job.finish(Err(error.clone())),
            Self::Leave(_) | Self::Doubt => {}
            Self::Close(done) => drop(done.send(())),
        }
    }
}

/// Something to do in a turn: carried out, perhaps more than once, then told how it ended.
trait TurnJob: Send {
    fn run<'t>(&'t mut self, turn: &'t mut Turn) -> BoxFuture<'t, Result<()>>;
    fn finish(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Call<F, T> {
    work: F,
    outcome: Option<T>,
    reply: Reply<T>,
}

impl<F, T> TurnJob for Call<F, T>
where
    F: for<'t> Fn(&'t mut Turn) -> BoxFuture<'t, Result<T>> + Send + Sync,
    T: Send,
{
    fn run<'t>(&'t mut self, turn: &'t mut Turn) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            self.outcome = Some((self.work)(turn).await?);
            Ok(())
        })
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

/// Messages some of whose deliveries have no rows yet, with the endpoints that these are for.
type Outstanding = BTreeMap<i64, Vec<EndpointKey>>;

/// What the parts of the store know together.
pub struct Shared {
    state: Mutex<Standing>,
    outstanding: Mutex<Outstanding>,
    queued: Queued,
    committed: mpsc::UnboundedSender<Vec<Committed>>,
    /// The keeper of the lease has something to look at.
    pub wake_keeper: Notify,
}

/// How this node stands among the others.
struct Standing {
    tenure: Tenure,
    minter: Arc<Minter>,
    /// The shards whose messages are handed over.
    owned: Shards,
    /// Until then nobody else can have taken the lanes.
    lease_until: Option<Instant>,
}

impl Shared {
    pub fn new(committed: mpsc::UnboundedSender<Vec<Committed>>) -> Self {
        let standing = Standing {
            tenure: Tenure::default(),
            minter: Arc::new(Minter::of_node(0, 0)),
            owned: Shards::NONE,
            lease_until: None,
        };
        Self {
            state: Mutex::new(standing),
            outstanding: Mutex::default(),
            queued: Queued::default(),
            committed,
            wake_keeper: Notify::new(),
        }
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tenure(&self) -> Tenure {
        self.standing().tenure
    }

    pub fn owned(&self) -> Shards {
        self.standing().owned
    }

    pub fn may_send(&self) -> bool {
        self.standing().lease_until.is_some_and(|until| Instant::now() < until)
    }

    pub fn leads(&self) -> bool {
        self.standing().owned.contains(crate::shards::Shard::new(0))
    }

    pub fn minter(&self) -> Arc<Minter> {
        Arc::clone(&self.standing().minter)
    }

    /// The lease of this tenure is sure to last until then.
    pub fn renewed(&self, tenure: Tenure, until: Instant) {
        let mut standing = self.standing();
        if standing.tenure == tenure {
            standing.lease_until = Some(until);
        }
    }

    fn begin(&self, tenure: Tenure, used: i64, lease_until: Instant) {
        let used = used.max(self.minter().last());
        *self.standing() = Standing {
            tenure,
            minter: Arc::new(Minter::of_node(tenure.0, used)),
            owned: Shards::NONE,
            lease_until: Some(lease_until),
        };
    }

    fn end(&self) {
        let mut standing = self.standing();
        standing.owned = Shards::NONE;
        standing.lease_until = None;
        drop(standing);
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        let mut standing = self.standing();
        if standing.tenure != tenure {
            return Err(StoreError::Deposed);
        }
        standing.owned = standing.owned.with(shards);
        drop(standing);
        // There may be news that was kept for this.
        self.wake_keeper.notify_one();
        Ok(())
    }

    fn leave(&self, shards: Shards) {
        let mut standing = self.standing();
        standing.owned = standing.owned.without(shards);
    }

    /// Tells the dispatcher, and keeps the books on what it will not come back for.
    pub fn tell(&self, news: Vec<Committed>) {
        for committed in &news {
            if let Committed::Cancelled { endpoint, which } = committed {
                self.let_go(*endpoint, *which);
            }
        }
        if !news.is_empty() {
            // Nobody listens during a clean stop; the next start finds the same in the database.
            let _ = self.committed.send(news);
        }
    }

    fn let_go(&self, endpoint: EndpointKey, which: Cancelled) {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        match which {
            Cancelled::One(message) => land(&mut outstanding, message.raw(), endpoint),
            Cancelled::Before(end) => {
                let messages: Vec<i64> = outstanding.range(..end.raw()).map(|(message, _)| *message).collect();
                for message in messages {
                    land(&mut outstanding, message, endpoint);
                }
            }
        }
    }

    fn note_outstanding(&self, handed: Vec<(i64, Vec<EndpointKey>)>, landed: Vec<(i64, EndpointKey)>) {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        outstanding.extend(handed);
        for (message, endpoint) in landed {
            land(&mut outstanding, message, endpoint);
        }
    }

    /// Every message of this node up to this key has a row for each of its deliveries, also once those from `first` on
    /// have been accepted.
    fn settled_through(&self, first: Option<i64>) -> i64 {
        let outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = outstanding.first_key_value().map(|(oldest, _)| *oldest);
        oldest.into_iter().chain(first).min().map_or(i64::MAX, |oldest| oldest - 1)
    }
}

fn land(outstanding: &mut Outstanding, message: i64, endpoint: EndpointKey) {
    if let btree_map::Entry::Occupied(mut entry) = outstanding.entry(message) {
        entry.get_mut().retain(|owed| *owed != endpoint);
        if entry.get().is_empty() {
            entry.remove();
        }
    }
}

/// The writer as seen by those who queue.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Writer {
    pub fn start(pool: Pool, shared: Arc<Shared>, options: PostgresOptions) -> (Self, JoinHandle<()>) {
        let (jobs, queue) = mpsc::unbounded_channel();
        let state = State {
            pool,
            client: None,
            shared: Arc::clone(&shared),
            options,
            queue,
            put_back: VecDeque::new(),
            is_member: false,
            batch: 0,
            pieces: Vec::new(),
            noted_through: i64::MAX,
        };
        (Self { shared, jobs }, tokio::spawn(state.write_until_closed()))
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    async fn queue<T, E: From<StoreError>>(&self, job: impl FnOnce(Reply<T, E>) -> Job) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    pub async fn accept(&self, message: NewMessage) -> Result<Accepted, AcceptError> {
        let _place = self.shared.queued.enter(message.content.payload.len())?;
        self.queue(|reply| Job::Accept { message: Box::new(message), reply }).await
    }

    pub async fn settle(&self, tenure: Tenure, settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError> {
        self.queue(|reply| Job::Settle { tenure, settlements, reply }).await
    }

    pub async fn spill(
        &self,
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
    ) -> Result<(), StoreError> {
        self.queue(|reply| Job::Spill { tenure, deliveries, due, reply }).await
    }

    pub async fn disown(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        self.turn(move |turn| {
            Box::pin(async move {
                if turn.tenure() != tenure {
                    return Err(Error::Deposed);
                }
                leases::free(turn.db(), tenure.0, shards).await
            })
        })
        .await
    }

    /// Asks the dispatcher to give these back.
    pub fn leave(&self, shards: Shards) {
        let _ = self.jobs.send(Job::Leave(shards));
    }

    /// The lease could not be renewed: perhaps the node was declared dead.
    pub fn doubt(&self) {
        let _ = self.jobs.send(Job::Doubt);
    }

    /// Runs a piece of work in a transaction of its own, while no other node writes.
    pub async fn turn<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Turn) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
    {
        self.queue(|reply| Job::Turn(Box::new(Call { work, outcome: None, reply }))).await
    }

    /// Finishes what is queued, and leaves the other nodes in good order.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.jobs.send(Job::Close(done)).is_ok() {
            let _ = closed.await;
        }
    }
}

/// What is written in one transaction beside others.
#[derive(Default)]
struct Hot {
    accepts: Vec<(Box<NewMessage>, Reply<Accepted, AcceptError>)>,
    settles: Vec<(Tenure, Arc<Vec<Settlement>>, Reply<()>)>,
    spills: Vec<Spilling>,
}

struct Spilling {
    tenure: Tenure,
    deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
    due: Timestamp,
    reply: Reply<()>,
}

impl Hot {
    fn len(&self) -> usize {
        self.accepts.len() + self.settles.len() + self.spills.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn refuse(self, error: &StoreError) {
        for (_, reply) in self.accepts {
            let _ = reply.send(Err(error.clone().into()));
        }
        for reply in
            self.settles.into_iter().map(|(.., reply)| reply).chain(self.spills.into_iter().map(|one| one.reply))
        {
            let _ = reply.send(Err(error.clone()));
        }
    }

    /// What was begun in another tenure is void.
    fn refuse_outdated(&mut self, tenure: Tenure) {
        for (_, _, reply) in self.settles.extract_if(.., |(of, ..)| *of != tenure) {
            let _ = reply.send(Err(StoreError::Deposed));
        }
        for spilling in self.spills.extract_if(.., |spilling| spilling.tenure != tenure) {
            let _ = spilling.reply.send(Err(StoreError::Deposed));
        }
    }

    /// Each job by itself, so that one that cannot be written does not take the others along.
    fn apart(self) -> Vec<Self> {
        let accepts = self.accepts.into_iter().map(|one| Self { accepts: vec![one], ..Self::default() });
        let settles = self.settles.into_iter().map(|one| Self { settles: vec![one], ..Self::default() });
        let spills = self.spills.into_iter().map(|one| Self { spills: vec![one], ..Self::default() });
        accepts.chain(settles).chain(spills).collect()
    }
}

/// What a transaction has written, to be made known when it is committed.
#[derive(Default)]
struct Written {
    answers: Vec<Result<Accepted, AcceptError>>,
    events: Vec<Event>,
    handed: Vec<(i64, Vec<EndpointKey>)>,
    landed: Vec<(i64, EndpointKey)>,
    through: i64,
    /// Keys of the messages, should the count be gone.
    keys: Vec<i64>,
}

/// How far a transaction came that did not end well.
enum Failure {
    /// Nothing was written.
    Undone(Error),
    /// It may have been committed.
    Unknown(Box<Written>),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Undone(error.into())
    }
}

/// What only the writer's own task sees.
struct State {
    pool: Pool,
    client: Option<Arc<Client>>,
    shared: Arc<Shared>,
    options: PostgresOptions,
    queue: mpsc::UnboundedReceiver<Job>,
    /// Taken from the queue and not to be written yet.
    put_back: VecDeque<Job>,
    /// It has joined the others and has not been declared dead since, as far as it knows.
    is_member: bool,
    /// Counts the transactions of this tenure.
    batch: i64,
    pieces: Vec<Piece>,
    /// Up to which message it is noted that everything has a row.
    noted_through: i64,
}

impl State {
    async fn write_until_closed(mut self) {
        loop {
            let first = match self.put_back.pop_front() {
                Some(job) => Some(job),
                None if self.noted_through == i64::MAX => self.queue.recv().await,
                None => match tokio::time::timeout(IDLE, self.queue.recv()).await {
                    Ok(job) => job,
                    Err(_) => {
                        self.note_rest().await;
                        continue;
                    }
                },
            };
            let Some(first) = first else { return };
            let begun = Instant::now();
            let mut jobs = vec![first];
            while jobs.len() < BATCH_JOBS_MAX
                && let Some(job) = self.put_back.pop_front().or_else(|| self.queue.try_recv().ok())
            {
                jobs.push(job);
            }
            let gap = gap_after(jobs.len());
            if let Some(done) = self.work_off(jobs).await {
                self.depart().await;
                let _ = done.send(());
                return;
            }
            if let Some(rest) = gap.checked_sub(begun.elapsed()) {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// Writes these, in order. What is written beside others is gathered up to the next turn.
    async fn work_off(&mut self, jobs: Vec<Job>) -> Option<oneshot::Sender<()>> {
        let (mut hot, mut names) = (Hot::default(), accept::Names::default());
        let mut later = VecDeque::new();
        let mut closing = None;
        for job in jobs {
            match job {
                Job::Accept { message, reply } => match accept::fits_together(&mut names, &message) {
                    true => hot.accepts.push((message, reply)),
                    false => later.push_back(Job::Accept { message, reply }),
                },
                Job::Settle { tenure, settlements, reply } => hot.settles.push((tenure, settlements, reply)),
                Job::Spill { tenure, deliveries, due, reply } => {
                    hot.spills.push(Spilling { tenure, deliveries, due, reply });
                }
                Job::Turn(job) => {
                    self.write(std::mem::take(&mut hot)).await;
                    names = accept::Names::default();
                    self.take_turn(job).await;
                }
                Job::Leave(shards) => {
                    self.write(std::mem::take(&mut hot)).await;
                    self.shared.leave(shards);
                    self.shared.tell(vec![Committed::Wanted { shards }]);
                }
                Job::Doubt => {
                    self.write(std::mem::take(&mut hot)).await;
                    self.make_sure().await;
                }
                Job::Close(done) => closing = Some(done),
            }
        }
        self.write(hot).await;
        while let Some(job) = later.pop_back() {
            self.put_back.push_front(job);
        }
        if closing.is_none()
            && let Err(error) = self.join().await
        {
            tracing::warn!(error = describe(&error), "this node is not one of the others yet");
        }
        closing
    }

    /// Finds out whether this node is still one of the others.
    async fn make_sure(&mut self) {
        match self.attempt(&Hot::default()).await {
            Ok(written) => self.conclude(Hot::default(), written),
            Err(Failure::Undone(Error::Deposed)) => self.depose(),
            Err(Failure::Undone(error)) => {
                tracing::warn!(error = describe(&error), "the database cannot be asked whether the lease is held");
            }
            Err(Failure::Unknown(written)) => {
                let _ = self.clear_up(&written).await;
            }
        }
    }

    /// Writes a batch, again if it must be, and tells everyone.
    async fn write(&mut self, mut hot: Hot) {
        let mut waits = VecDeque::new();
        let mut tries = 0;
        loop {
            hot.refuse_outdated(self.shared.tenure());
            if hot.is_empty() {
                match waits.pop_front() {
                    Some(next) => hot = next,
                    None => return,
                }
            }
            let failure = match self.attempt(&hot).await {
                Ok(written) => {
                    self.conclude(std::mem::take(&mut hot), written);
                    tries = 0;
                    continue;
                }
                Err(failure) => failure,
            };
            let error = match failure {
                Failure::Undone(error) => error,
                Failure::Unknown(written) => match self.clear_up(&written).await {
                    Ok(true) => {
                        self.conclude(std::mem::take(&mut hot), *written);
                        continue;
                    }
                    Ok(false) => Error::Unreachable("the connection was lost".to_owned()),
                    Err(closed) => {
                        std::mem::take(&mut hot).refuse(&closed);
                        continue;
                    }
                },
            };
            tries += 1;
            match self.mend(&mut hot, &error, tries).await {
                Mended::TryAgain => {}
                Mended::Apart => waits.extend(std::mem::take(&mut hot).apart()),
                Mended::GiveUp => {
                    tracing::error!(error = describe(&error), jobs = hot.len(), "a batch could not be written");
                    std::mem::take(&mut hot).refuse(&error.into());
                }
            }
        }
    }

    async fn mend(&mut self, hot: &mut Hot, error: &Error, tries: u32) -> Mended {
        if let Error::Deposed = error {
            self.depose();
            return Mended::TryAgain;
        }
        if error.is_lost() {
            self.client = None;
        }
        if tries >= TRIES_MAX {
            return Mended::GiveUp;
        }
        match error {
            Error::KeyTooSmall { used } => {
                self.shared.minter().catch_up(*used);
                return Mended::TryAgain;
            }
            Error::Unreachable(_) if tries > 1 => return Mended::GiveUp,
            _ if error.is_lost() => return Mended::TryAgain,
            _ => {}
        }
        match error.code() {
            Some(&SqlState::NOT_NULL_VIOLATION) if !hot.accepts.is_empty() => match self.refuse_stale(hot).await {
                Ok(true) => return Mended::TryAgain,
                Ok(false) | Err(_) => {}
            },
            // A piece was dropped, or is not there yet.
            Some(&SqlState::CHECK_VIOLATION) => {
                self.pieces.clear();
                return Mended::TryAgain;
            }
            Some(code) if is_collision(code) => {
                tokio::time::sleep(Duration::from_millis(u64::from(tries) * 3 + self.shared.tenure().0 as u64 % 5))
                    .await;
                return Mended::TryAgain;
            }
            _ => {}
        }
        if hot.len() > 1 { Mended::Apart } else { Mended::GiveUp }
    }

    /// Refuses the messages that were worked out from outdated settings. False if there were none.
    async fn refuse_stale(&mut self, hot: &mut Hot) -> Result<bool> {
        let client = self.client().await?;
        let messages: Vec<&NewMessage> = hot.accepts.iter().map(|(message, _)| &**message).collect();
        let mut outdated = accept::outdated(&client, &messages).await?.into_iter();
        let (stale, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut hot.accepts).into_iter().partition(|_| outdated.next().unwrap_or(false));
        hot.accepts = rest;
        let any = !stale.is_empty();
        for (_, reply) in stale {
            let _ = reply.send(Err(AcceptError::Outdated));
        }
        Ok(any)
    }

    async fn attempt(&mut self, hot: &Hot) -> Result<Written, Failure> {
        self.join().await?;
        let minter = self.shared.minter();
        let messages: Vec<&NewMessage> = hot.accepts.iter().map(|(message, _)| &**message).collect();
        let keys: Vec<i64> = messages.iter().map(|message| minter.mint(message.at)).collect();
        let settlements: Vec<&Settlement> = hot.settles.iter().flat_map(|(_, settlements, _)| &**settlements).collect();
        self.make_pieces(&keys).await?;
        let attempt_keys: Vec<i64> = settlements
            .iter()
            .filter(|settlement| settlement.attempt.is_some())
            .map(|settlement| minter.mint(settlement.at))
            .collect();

        let client = self.client().await?;
        let through = self.shared.settled_through(keys.first().copied());
        let tenure = self.shared.tenure();
        let (shared, pieces, batch) = (&self.shared, &self.pieces, self.batch + 1);
        let write = async {
            let begin = format!("BEGIN; SELECT pg_advisory_xact_lock_shared({WRITE_LOCK})");
            let (_, floor) = try_join!(
                client.batch_execute(&begin).map(|begun| begun.map_err(Error::from)),
                count(&client, tenure, batch, through, minter.last())
            )?;
            if keys.first().is_some_and(|first| *first <= floor) {
                return Err(Error::KeyTooSmall { used: floor });
            }
            let owned = shared.owned();
            let here = accept::Here { node: tenure.0, owned: &owned };
            let (received, settled, ()) = try_join!(
                accept::accept(&client, &here, &keys, &messages),
                settle::settle(&client, pieces, &attempt_keys, &settlements),
                spill(&client, &hot.spills),
            )?;
            let mut events = received.events;
            events.extend(news::address(&client, settled.announced).await?);
            news::publish(&client, here.node, &owned, &events).await?;
            let handed = settlements.iter().filter(|settlement| settlement.handed).map(|settlement| settlement.id);
            let spilled = hot.spills.iter().flat_map(|spilling| &spilling.deliveries).map(|(id, _)| *id);
            Ok(Written {
                answers: received.answers,
                events,
                handed: received.handed,
                landed: handed.chain(spilled).map(|id| (id.message.raw(), id.endpoint)).collect(),
                through,
                keys: keys.clone(),
            })
        };
        let written = match in_time(write).await {
            Ok(written) => written,
            Err(error) => return Err(self.roll_back(error).await),
        };
        self.commit(&client, written).await
    }

    async fn roll_back(&mut self, error: Error) -> Failure {
        if error.is_lost() {
            self.client = None;
        } else if let Some(client) = &self.client
            && in_time(async { Ok(client.batch_execute("ROLLBACK").await?) }).await.is_err()
        {
            self.client = None;
        }
        Failure::Undone(error)
    }

    async fn commit(&mut self, client: &Client, written: Written) -> Result<Written, Failure> {
        match in_time(async { Ok(client.batch_execute("COMMIT").await?) }).await {
            Ok(()) => {
                self.batch += 1;
                Ok(written)
            }
            Err(error) if error.is_lost() => {
                self.client = None;
                Err(Failure::Unknown(Box::new(written)))
            }
            Err(error) => Err(Failure::Undone(error)),
        }
    }

    fn conclude(&mut self, hot: Hot, written: Written) {
        self.noted_through = written.through;
        self.shared.note_outstanding(written.handed, written.landed);
        self.shared.tell(news::for_here(&self.shared.owned(), written.events));
        for ((_, reply), answer) in hot.accepts.into_iter().zip(written.answers) {
            let _ = reply.send(answer);
        }
        for reply in hot.settles.into_iter().map(|(.., reply)| reply).chain(hot.spills.into_iter().map(|one| one.reply))
        {
            let _ = reply.send(Ok(()));
        }
    }

    /// The answer to a commit was lost: finds out whether it was carried out. The server may still be at it; asking for
    /// the row waits until it is done.
    async fn clear_up(&mut self, written: &Written) -> Result<bool, StoreError> {
        loop {
            let asked = self.was_committed(written);
            match asked.await {
                Ok(committed) => {
                    if committed && self.is_member {
                        self.batch += 1;
                    }
                    return Ok(committed);
                }
                Err(error) => {
                    tracing::warn!(
                        error = describe(&error),
                        "the database does not say whether the last commit was carried out"
                    );
                    self.client = None;
                    self.refuse_queued(&error.into());
                    if self.queue.is_closed() {
                        return Err(StoreError::Closed);
                    }
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    }

    async fn was_committed(&mut self, written: &Written) -> Result<bool> {
        let client = self.client().await?;
        let node = self.shared.tenure().0;
        match row(&client, "SELECT batch FROM node WHERE id = $1 FOR UPDATE", &[&node]).await? {
            Some(found) => Ok(found.get::<_, i64>(0) == self.batch + 1),
            // Declared dead meanwhile. Messages that are there have been given rows by whoever did that.
            None => {
                self.depose();
                let sql = "SELECT 1 FROM message WHERE key = ANY($1) LIMIT 1";
                Ok(row(&client, sql, &[&written.keys]).await?.is_some())
            }
        }
    }

    /// Nobody shall wait for a database that does not answer.
    fn refuse_queued(&mut self, error: &StoreError) {
        while let Some(job) = self.put_back.pop_front().or_else(|| self.queue.try_recv().ok()) {
            match job {
                Job::Close(_) => {
                    self.put_back.push_front(job);
                    return;
                }
                job => job.refuse(error),
            }
        }
    }

    async fn take_turn(&mut self, mut job: Box<dyn TurnJob>) {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.attempt_turn(&mut *job).await {
                Ok(written) => {
                    self.conclude(Hot::default(), written);
                    return job.finish(Ok(()));
                }
                Err(Failure::Undone(error)) => error,
                Err(Failure::Unknown(written)) => match self.clear_up(&written).await {
                    Ok(true) => {
                        self.conclude(Hot::default(), *written);
                        return job.finish(Ok(()));
                    }
                    Ok(false) => Error::Unreachable("the connection was lost".to_owned()),
                    Err(closed) => return job.finish(Err(closed)),
                },
            };
            if let Error::Deposed = error {
                self.depose();
            }
            let again = match &error {
                Error::Deposed => tries == 1,
                Error::Unreachable(_) => tries < 2,
                _ => error.is_lost() || error.code().is_some_and(is_collision),
            };
            if !again || tries >= TRIES_MAX {
                return job.finish(Err(error.into()));
            }
        }
    }

    async fn attempt_turn(&mut self, job: &mut dyn TurnJob) -> Result<Written, Failure> {
        self.join().await?;
        let client = self.client().await?;
        let through = self.shared.settled_through(None);
        let mut turn = Turn { client: Arc::clone(&client), tenure: self.shared.tenure(), announced: Vec::new() };
        let (shared, batch) = (&self.shared, self.batch + 1);
        let write = async {
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")).await?;
            count(&client, turn.tenure, batch, through, shared.minter().last()).await?;
            // Work that panics takes its own transaction with it, and nothing else.
            let run = AssertUnwindSafe(job.run(&mut turn)).catch_unwind().await;
            run.unwrap_or_else(|_| Err(Error::Panicked))?;
            let owned = shared.owned();
            let events = news::address(&client, std::mem::take(&mut turn.announced)).await?;
            news::publish(&client, turn.tenure.0, &owned, &events).await?;
            Ok(Written { events, through, ..Written::default() })
        };
        let written = match in_time(write).await {
            Ok(written) => written,
            Err(error) => return Err(self.roll_back(error).await),
        };
        self.commit(&client, written).await
    }

    async fn client(&mut self) -> Result<Arc<Client>> {
        if let Some(client) = &self.client
            && !client.is_closed()
        {
            return Ok(Arc::clone(client));
        }
        if let Some(old) = self.client.take().and_then(Arc::into_inner) {
            let _ = Client::take(old);
        }
        let client = self.pool.get().await.map_err(|error| Error::Unreachable(describe(&error)))?;
        let client = Arc::new(client);
        self.client = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Becomes one of the nodes, unless it is one.
    async fn join(&mut self) -> Result<()> {
        if self.is_member {
            return Ok(());
        }
        let client = self.client().await?;
        let asked_at = Instant::now();
        let joined = leases::join(&client, &self.options).await?;
        self.is_member = true;
        self.batch = 0;
        self.noted_through = i64::MAX;
        self.shared.begin(Tenure(joined.node), joined.used, leases::sure_until(asked_at, &self.options));
        self.shared.wake_keeper.notify_one();
        Ok(())
    }

    /// The node was declared dead, and its lanes are someone else's.
    fn depose(&mut self) {
        if self.is_member {
            self.is_member = false;
            tracing::warn!("another node took over what this one served; joining again");
            self.shared.end();
            self.shared.tell(vec![Committed::Deposed]);
        }
    }

    async fn make_pieces(&mut self, keys: &[i64]) -> Result<()> {
        let client = self.client().await?;
        if self.pieces.is_empty() {
            self.pieces = pieces::list(&client).await?;
        }
        let is_missing = |pieces: &[Piece], key: i64| !pieces::cover(pieces, key);
        let missing: Vec<i64> = keys.iter().copied().filter(|key| is_missing(&self.pieces, *key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let span = self.options.piece_span;
        let make = async {
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")).await?;
            for key in [missing.first(), missing.last()].into_iter().flatten() {
                pieces::ensure(&client, *key, span).await?;
            }
            client.batch_execute("COMMIT").await?;
            pieces::list(&client).await
        };
        match in_time(make).await {
            Ok(pieces) => {
                self.pieces = pieces;
                Ok(())
            }
            Err(error) => {
                // Whether it was carried out shows when it is tried again.
                self.client = None;
                Err(error)
            }
        }
    }

    /// Notes that everything is settled, so that nobody has to look through it.
    async fn note_rest(&mut self) {
        if self.shared.settled_through(None) > self.noted_through && self.is_member {
            self.make_sure().await;
        } else {
            // What is outstanding will be settled, and noted with that.
            self.noted_through = i64::MAX;
        }
    }

    /// Leaves the other nodes, without a lease that they would have to wait for.
    async fn depart(&mut self) {
        if !self.is_member {
            return;
        }
        let (tenure, batch) = (self.shared.tenure(), self.batch + 1);
        let through = self.shared.settled_through(None);
        let minted = self.shared.minter().last();
        let client = self.client().await;
        let left = async {
            let client = client?;
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")).await?;
            count(&client, tenure, batch, through, minted).await?;
            match through {
                i64::MAX => drop(recover::bury_node(&client, tenure.0, Timestamp::default()).await?),
                // Whoever comes next gives rows to what is left.
                _ => leases::give_up(&client, tenure.0).await?,
            }
            execute(&client, "SELECT pg_notify($1, '')", &[&news::EVERYONE]).await?;
            client.batch_execute("COMMIT").await?;
            Ok(())
        };
        if let Err(error) = in_time(left).await {
            tracing::warn!(
                error = describe(&error),
                "could not leave the other nodes; they take over when the lease ends"
            );
        }
        self.is_member = false;
        self.shared.end();
    }
}

enum Mended {
    TryAgain,
    /// Job by job.
    Apart,
    GiveUp,
}

/// Two transactions got in one another's way.
fn is_collision(code: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNIQUE_VIOLATION,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .contains(code)
}

/// Counts a transaction in the node's own row, and tells below which key no message may be accepted any more.
async fn count(db: &Db, tenure: Tenure, batch: i64, through: i64, minted: i64) -> Result<i64> {
    let found = row(
        db,
        "UPDATE node SET batch = $2::bigint, settled_through = $3, minted = greatest(minted, $4)
         WHERE id = $1 AND batch = $2::bigint - 1 RETURNING (SELECT floor FROM cluster)",
        &[&tenure.0, &batch, &through, &minted],
    )
    .await?;
    Ok(found.ok_or(Error::Deposed)?.get(0))
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(Error::TooSlow))
}

async fn spill(db: &Db, spills: &[Spilling]) -> Result<()> {
    for spilling in spills {
        settle::spill(db, &spilling.deliveries, spilling.due).await?;
    }
    Ok(())
}
