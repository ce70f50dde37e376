//! One process's hold on the database.

use super::{
    batch::{Batch, Kind, Written},
    database::{Base, Sharing, State},
    jobs::{Call, Job, Reply},
    keeper,
    log::What,
    memory::{Life, Memory},
    writer,
};
use postrider_store::{Committed, Shards, StoreError, Tenure};
use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

/// How long a database that cannot be reached is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The store of one process. It dies with the last handle to it, unless it was closed before.
pub struct SimStore {
    pub(super) node: Arc<Node>,
    committed: Mutex<Option<mpsc::UnboundedReceiver<Vec<Committed>>>>,
    turns: AtomicU64,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What the parts of a process's store know together.
pub struct Node {
    /// The world's number of it.
    pub number: usize,
    pub base: Arc<Base>,
    pub memory: Mutex<Memory>,
    /// Something is to be written.
    pub jobs: Notify,
    pub ears: Arc<Ears>,
    /// A transaction was told of.
    pub told: Notify,
    pub committed: mpsc::UnboundedSender<Vec<Committed>>,
}

/// More than all lanes of a world ask for in a millisecond.
const LOADS_AT_ONCE_MAX: u32 = 2_000;

/// Where a node hears that there is something to look at.
#[derive(Default)]
pub struct Ears {
    bells: Mutex<Bells>,
    pub wake: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Bells {
    /// There are news to read.
    pub news: Option<Instant>,
    /// How the nodes stand has changed.
    pub change: Option<Instant>,
}

impl Ears {
    pub fn bells(&self) -> Bells {
        *self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What rings meanwhile rings for the same.
    pub fn ring(&self, ring: impl FnOnce(&mut Bells) -> &mut Option<Instant>, at: Instant) {
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        let bell = ring(&mut bells);
        if bell.is_none_or(|rings_at| at < rings_at) {
            *bell = Some(at);
            drop(bells);
            self.wake.notify_one();
        }
    }

    pub fn silence(&self, which: impl FnOnce(&mut Bells)) {
        which(&mut self.bells.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl SimStore {
    pub(super) fn start(node: Arc<Node>, committed: mpsc::UnboundedReceiver<Vec<Committed>>) -> Self {
        let mut tasks = vec![tokio::spawn(writer::write_until_closed(Arc::clone(&node)))];
        match node.base.sharing {
            Sharing::Alone => {}
            Sharing::Many { .. } => tasks.push(tokio::spawn(keeper::keep(Arc::clone(&node)))),
        }
        Self { node, committed: Mutex::new(Some(committed)), turns: AtomicU64::new(0), tasks: Mutex::new(tasks) }
    }

    /// The process dies: what is queued is void, and whoever waits for an answer gets none. What was committed stays.
    pub fn kill(&self) {
        {
            let mut memory = self.node.memory();
            match memory.life {
                Life::Running | Life::Closing => memory.life = Life::Killed,
                Life::Closed | Life::Killed => return,
            }
            memory.queue.clear();
            memory.standing.lease_until = None;
            memory.standing.owned = Shards::NONE;
        }
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        let mut state = self.node.base.state();
        state.note(self.node.number, What::Killed);
        if state.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, &self.node)) {
            state.holder = None;
        }
        drop(state);
        self.node.base.changed.notify_waiters();
    }

    /// How often it was asked whether anything may be sent: once in each turn of a dispatcher.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    pub(super) fn turned(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn take_committed(&self) -> mpsc::UnboundedReceiver<Vec<Committed>> {
        let taken = self.committed.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.expect("what is committed is listened to once")
    }
}

impl Drop for SimStore {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Node {
    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn life(&self) -> Life {
        self.memory().life
    }

    pub fn kind(&self) -> Kind {
        match self.base.sharing {
            Sharing::Alone => Kind::Alone,
            Sharing::Many { .. } => Kind::Many,
        }
    }

    /// Waits while the process is frozen; for ever, if it is dead.
    pub async fn calm(&self) {
        loop {
            let mut changed = std::pin::pin!(self.base.changed.notified());
            changed.as_mut().enable();
            if self.life() == Life::Killed {
                return pending().await;
            }
            if !self.base.sky(self.number, |sky| sky.weather.stalled) {
                return;
            }
            changed.await;
        }
    }

    pub async fn pass(&self, time: Duration) {
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        self.calm().await;
    }

    /// Waits for the way to the database to be open, as long as there is patience.
    pub async fn reach(&self) -> Result<(), StoreError> {
        self.wait_while(|weather| weather.cut, "nothing gets through").await
    }

    /// Waits for an answer to come through.
    pub async fn hear(&self) -> Result<(), StoreError> {
        self.wait_while(|weather| weather.cut || weather.deaf, "no answer came").await
    }

    async fn wait_while(&self, hinders: impl Fn(&super::Weather) -> bool, complaint: &str) -> Result<(), StoreError> {
        if self.kind() == Kind::Alone || !self.base.sky(self.number, |sky| hinders(&sky.weather)) {
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let mut changed = std::pin::pin!(self.base.changed.notified());
            changed.as_mut().enable();
            if !self.base.sky(self.number, |sky| hinders(&sky.weather)) {
                self.calm().await;
                return Ok(());
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                self.calm().await;
                return Err(StoreError::Unreachable(complaint.to_owned()));
            }
        }
    }

    /// Looks something up. What it sees is as old as the way back is long.
    pub async fn read<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, StoreError> {
        self.refuse_if_closed()?;
        self.calm().await;
        let (there, back) = self.base.sky(self.number, |sky| sky.read());
        self.pass(there).await;
        self.reach().await?;
        let seen = look(&self.base.state());
        self.pass(back).await;
        self.hear().await?;
        Ok(seen)
    }

    pub fn refuse_if_closed(&self) -> Result<(), StoreError> {
        match self.life() {
            Life::Running | Life::Killed => Ok(()),
            Life::Closing | Life::Closed => Err(StoreError::Closed),
        }
    }

    /// Queues something to be written and waits until it is durable.
    pub async fn queue<T, E: From<StoreError>>(&self, job: impl FnOnce(Reply<T, E>) -> Job) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        {
            let mut memory = self.memory();
            match memory.life {
                Life::Running => memory.queue.push_back(job(reply)),
                Life::Closing | Life::Closed => return Err(StoreError::Closed.into()),
                Life::Killed => {}
            }
        }
        self.jobs.notify_one();
        match answer.await {
            Ok(answer) => answer,
            Err(_) if self.life() == Life::Killed => pending().await,
            Err(_) => Err(StoreError::Closed.into()),
        }
    }

    /// Queues a piece of work. Where nodes share, it is a transaction of its own.
    pub async fn turn<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Batch<'_>) -> T + Send + 'static,
    {
        self.queue(|reply| Job::Turn(Box::new(Call { work: Some(work), outcome: None, reply }))).await
    }

    /// Carries something out at the database, here and now.
    pub fn transact<T>(&self, state: &mut State, work: impl FnOnce(&mut Batch<'_>) -> T) -> (T, Written) {
        let mut memory = self.memory();
        state.tables.gallery.node = self.number;
        let mut batch = Batch {
            tables: &mut state.tables,
            cluster: &mut state.cluster,
            memory: &mut memory,
            kind: self.kind(),
            grain: self.base.grain,
            now: self.base.clock.now(),
            written: Written::default(),
            log: Vec::new(),
        };
        let outcome = work(&mut batch);
        let Batch { written, log, .. } = batch;
        for what in log {
            state.note(self.number, what);
        }
        (outcome, written)
    }

    /// Tells the dispatcher, and keeps the books on what it will not come back for.
    pub fn tell(&self, news: Vec<Committed>) {
        if news.is_empty() {
            return;
        }
        match self.kind() {
            Kind::Alone => {}
            Kind::Many => self.keep_books(&news),
        }
        // Nobody listens during a clean stop; the next start finds the same in the store.
        let _ = self.committed.send(news);
    }

    /// Where nothing takes any time, a loop without end would never let the time go on, and nobody would see it.
    pub async fn take_time_for_loads(&self) {
        let now = Instant::now();
        let many = {
            let (at, count) = &mut self.memory().loads;
            *count = if *at == Some(now) { *count + 1 } else { 0 };
            *at = Some(now);
            *count > LOADS_AT_ONCE_MAX
        };
        if many {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn begin_commit(&self) {
        self.memory().commits.begun += 1;
    }

    pub fn end_commit(&self) {
        let kept = {
            let commits = &mut self.memory().commits;
            commits.concluded += 1;
            std::mem::take(&mut commits.kept)
        };
        self.tell(kept);
        self.told.notify_waiters();
    }

    /// Tells what was read, once all is told that the writer had begun by then.
    pub fn tell_in_order(&self, news: Vec<Committed>) {
        let mut memory = self.memory();
        if memory.commits.begun == memory.commits.concluded {
            drop(memory);
            self.tell(news);
        } else {
            memory.commits.kept.extend(news);
        }
    }

    /// Waits until all is told that the writer has begun by now.
    pub async fn told_of_commits(&self) {
        let begun = self.memory().commits.begun;
        loop {
            let told = self.told.notified();
            if self.memory().commits.concluded >= begun {
                return;
            }
            told.await;
        }
    }

    fn keep_books(&self, news: &[Committed]) {
        let mut memory = self.memory();
        for committed in news {
            match committed {
                Committed::Cancelled { endpoint, which } => {
                    memory.standing.cancels += 1;
                    memory.outstanding.let_go(*endpoint, *which);
                }
                Committed::Offered { shards, .. } => {
                    memory.standing.leaving = memory.standing.leaving.without(*shards);
                }
                Committed::Message { .. }
                | Committed::Waiting { .. }
                | Committed::Settings { .. }
                | Committed::EventTypes
                | Committed::Health { .. }
                | Committed::Work
                | Committed::Wanted { .. }
                | Committed::Deposed => {}
            }
        }
    }

    pub fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        match self.kind() {
            Kind::Alone => return Ok(()),
            Kind::Many => {}
        }
        let owns = {
            let standing = &mut self.memory().standing;
            if standing.tenure != tenure {
                return Err(StoreError::Deposed);
            }
            let owns = shards.without(standing.leaving);
            standing.owned = standing.owned.with(owns);
            owns
        };
        self.base.state().note(self.number, What::Owns { tenure, shards: owns });
        // There may be news that was kept for this.
        self.ears.ring(|bells| &mut bells.change, Instant::now());
        Ok(())
    }

    /// What is accepted from now on is not handed over.
    pub fn leave(&self, shards: Shards) {
        let standing = &mut self.memory().standing;
        standing.owned = standing.owned.without(shards);
        standing.leaving = standing.leaving.with(shards);
    }
}
