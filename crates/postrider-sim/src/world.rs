//! Everything together: nodes, receivers, producers, people and faults, in one thread and in simulated time.

use crate::{
    chance::Chance,
    checker::{Counts, EPOCH, Judge, Violation},
    config::{Config, Mode, Overrides, Sharing},
    faults::{self, pass},
    node::{Ending, Process, keys},
    people, producers,
    receivers::Receivers,
    sometimes::Tally,
    store::{self, Database, Grain, Weather},
    trace::Line,
    witness,
};
use postrider::{clock::Clock, ids::IdCodec, vault::Vault};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, task::JoinSet, time::Instant};

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub seed: u64,
    pub deliveries: u64,
    pub mode: Mode,
    pub overrides: Overrides,
    /// Keep every line, to show it.
    pub keep_trace: bool,
}

/// What came of it.
pub struct Outcome {
    pub run: Run,
    pub violations: Vec<Violation>,
    pub counts: Counts,
    pub met: Tally,
    pub hash: u128,
    pub lines: u64,
    pub trace: Vec<Line>,
}

/// Runs one seed to its end. Whoever panics has violated something as well.
pub fn run(run: Run) -> Outcome {
    std::panic::catch_unwind(|| live_once(run)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let text = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        Outcome {
            run,
            violations: vec![Violation { invariant: "panic", at: 0, message: 0, endpoint: 0, text }],
            counts: Counts::default(),
            met: Tally::default(),
            hash: 0,
            lines: 0,
            trace: Vec::new(),
        }
    })
}

fn live_once(run: Run) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without IO needs nothing of the system");
    let config = Arc::new(Config::draw(run.seed, run.deliveries, run.mode, &run.overrides));
    let judge = runtime.block_on(async {
        let world = World::new(config, run.keep_trace);
        world.live().await;
        let judge = std::mem::replace(&mut *world.judge(), Judge::new(Arc::clone(&world.config), false));
        world.over.store(true, Ordering::Relaxed);
        judge
    });
    drop(runtime);
    Outcome {
        run,
        violations: judge.violations,
        counts: judge.counts,
        met: judge.met,
        hash: judge.trace.hash(),
        lines: judge.trace.lines(),
        trace: judge.trace.kept().to_vec(),
    }
}

pub struct World {
    pub config: Arc<Config>,
    pub vault: Arc<Vault>,
    pub ids: IdCodec,
    database: Database,
    begun: Instant,
    judge: Arc<Mutex<Judge>>,
    receivers: Mutex<Receivers>,
    nodes: Mutex<Vec<Slot>>,
    apps: Mutex<Vec<AppKey>>,
    over: AtomicBool,
    weather_changed: Notify,
    /// Faults that last just now.
    faults: AtomicU64,
    /// Messages that are being offered.
    offers: AtomicI64,
    /// Messages to offer besides.
    load: AtomicU64,
    /// Nodes that die after so many more commits, and whoever waits for that.
    doomed: witness::Doom,
}

struct Slot {
    process: Option<Arc<Process>>,
    clock: Clock,
    offset: i64,
    starting: bool,
}

impl World {
    fn new(config: Arc<Config>, keep_trace: bool) -> Arc<Self> {
        let mut chance = Chance::new(config.seed, "clocks", 0);
        let database_clock = Clock::beginning_at(Timestamp::from_millis(EPOCH));
        let sharing = match config.sharing {
            Sharing::Alone => store::Sharing::Alone,
            Sharing::Many { lease, beat } => store::Sharing::Many { lease: millis(lease), beat: millis(beat) },
        };
        let grain = if chance.percent(50) { Grain::Fine } else { Grain::Usual };
        let database = Database::new(config.seed, sharing, grain, database_clock);
        let begun = Instant::now();
        let mut judge = Judge::new(Arc::clone(&config), keep_trace);
        let nodes = (0..config.nodes)
            .map(|node| {
                let offset = chance.between(-config.skew, config.skew);
                judge.clock_set(node, offset);
                let clock = Clock::beginning_at(Timestamp::from_millis(EPOCH + offset));
                Slot { process: None, clock, offset, starting: false }
            })
            .collect();
        let lives = config.endpoints.iter().map(|endpoint| endpoint.tempers.clone()).collect();
        let (vault, ids) = keys();
        let judge = Arc::new(Mutex::new(judge));
        let doomed = witness::watch(&database, begun, Arc::clone(&judge));
        Arc::new(Self {
            vault,
            ids,
            database,
            begun,
            judge,
            receivers: Mutex::new(Receivers::new(config.seed, lives, config.nodes)),
            nodes: Mutex::new(nodes),
            apps: Mutex::default(),
            over: AtomicBool::new(false),
            weather_changed: Notify::new(),
            faults: AtomicU64::new(0),
            offers: AtomicI64::new(0),
            load: AtomicU64::new(0),
            doomed,
            config,
        })
    }

    async fn live(self: &Arc<Self>) {
        for node in 0..self.config.nodes {
            self.start(node).await;
        }
        if !self.settle_in().await {
            return;
        }
        for node in 0..self.config.nodes {
            self.weather(node, |weather| *weather = self.usual_weather());
        }
        let mut troubles = JoinSet::new();
        for (kind, every) in &self.config.faults {
            troubles.spawn(faults::keep_breaking(Arc::clone(self), *kind, *every));
        }
        if let Some(every) = self.config.people {
            troubles.spawn(people::keep_touching(Arc::clone(self), every));
        }
        let looking = tokio::spawn(Arc::clone(self).keep_looking());
        let producing = tokio::spawn(producers::produce(Arc::clone(self)));
        self.until(|| producing.is_finished(), i64::MAX).await;
        match self.config.mode {
            Mode::Safety => self.until(|| false, self.now() + self.config.tail).await,
            Mode::Liveness => {
                troubles.shutdown().await;
                self.heal().await;
            }
        }
        looking.abort();
        let quiet = self.judge().is_idle();
        self.look_through();
        self.judge().close(quiet);
    }

    /// Applications, endpoints and all that is there before the first message. False: it could not be made.
    async fn settle_in(self: &Arc<Self>) -> bool {
        let Some(process) = self.some_process(&mut Chance::new(0, "first", 0)) else { return false };
        for rate in &self.config.app_rates {
            let Ok(app) = people::make_application(self, &process, *rate).await else { return false };
            self.lock_apps().push(app.key);
        }
        for (number, plan) in self.config.endpoints.iter().enumerate() {
            if people::make_endpoint(self, &process, plan.app, number, number).await.is_err() {
                return false;
            }
        }
        // Nodes share the lanes out, and read the first settings.
        pass(2_000).await;
        true
    }

    /// Waits until something holds, a violation was found, or that time has come.
    async fn until(&self, holds: impl Fn() -> bool, end: i64) {
        while !holds() && self.now() < end && self.judge().is_content() {
            pass(LOOK_EVERY).await;
        }
    }

    /// All is mended: what was broken is whole, who was dead is back, and whoever was paused goes on. Then all must end.
    async fn heal(self: &Arc<Self>) {
        self.judge().healed();
        self.receivers().heal();
        for node in 0..self.config.nodes {
            self.weather(node, |weather| *weather = self.usual_weather());
            // Whoever was being stopped or started when all was mended is started anew.
            if self.process(node).is_some_and(|process| process.is_stopping()) {
                self.end(node, Ending::Killed);
            }
            self.lock_nodes()[node].starting = false;
            self.start(node).await;
        }
        let lease = match self.config.sharing {
            Sharing::Alone => 0,
            Sharing::Many { lease, .. } => lease,
        };
        // Offers, resumptions and tasks that are under way come to their end by themselves; nothing is added after this.
        self.until(|| self.offers.load(Ordering::Relaxed) == 0, self.now() + OFFERS_MAX).await;
        pass(130_000).await;
        for round in 0.. {
            let parked = self.judge().parked();
            if parked.is_empty() || round == 5 {
                break;
            }
            for key in parked {
                let Some(app) = self.judge().app_of(key) else { continue };
                people::free(self, app, EndpointKey::new(key), key.cast_unsigned()).await;
            }
            pass(lease + 2_000).await;
        }
        // A task that is still at work puts more on its way, and all begins anew.
        loop {
            let deadline = self.judge().deadline(lease);
            let queued = self.judge().counts.queued;
            self.until(|| self.judge().open() == 0, deadline).await;
            let is_all_there = self.judge().counts.queued == queued;
            if is_all_there || self.judge().open() == 0 {
                break;
            }
        }
        if !self.judge().is_content() {
            return;
        }
        self.judge().all_ended();
        if self.judge().open() == 0 {
            self.rest().await;
        }
    }

    /// With nothing to do, nobody does anything.
    async fn rest(&self) {
        pass(REST_BEFORE).await;
        if !self.judge().is_idle() {
            return;
        }
        let turns = |node: usize| self.process(node).map(|process| process.store.turns());
        let before: Vec<Option<u64>> = (0..self.config.nodes).map(turns).collect();
        pass(REST_FOR).await;
        for (node, before) in before.into_iter().enumerate() {
            if let (Some(before), Some(after)) = (before, turns(node)) {
                self.judge().rested(node, after - before, REST_FOR);
            }
        }
    }

    /// Compares the tables with what was committed, now and then.
    async fn keep_looking(self: Arc<Self>) {
        let mut chance = Chance::new(self.config.seed, "looks", 0);
        loop {
            pass(chance.between(self.config.load.horizon / 4, self.config.load.horizon)).await;
            self.look_through();
        }
    }

    fn look_through(&self) {
        let found = witness::deliveries(&self.database);
        self.judge().looked_through(&found);
        let judge = Arc::clone(&self.judge);
        let mut judge = judge.lock().unwrap_or_else(PoisonError::into_inner);
        witness::messages(&self.database, |stored| judge.all_kept(stored));
    }

    // Time.

    /// True time, in milliseconds since the world began.
    pub fn now(&self) -> i64 {
        self.begun.elapsed().as_millis() as i64
    }

    pub fn set_clock(&self, node: usize, by: i64) {
        let offset = {
            let mut nodes = self.lock_nodes();
            nodes[node].clock.set_ahead(by);
            nodes[node].offset += by;
            nodes[node].offset
        };
        self.judge().clock_set(node, offset);
    }

    pub fn clock_offset(&self, node: usize) -> i64 {
        self.lock_nodes()[node].offset
    }

    // Nodes.

    /// Starts a process, unless one runs; tries again while it cannot.
    pub async fn start(self: &Arc<Self>, node: usize) {
        {
            let mut nodes = self.lock_nodes();
            if nodes[node].process.is_some() || nodes[node].starting {
                return;
            }
            nodes[node].starting = true;
        }
        loop {
            let clock = self.lock_nodes()[node].clock.clone();
            // Whoever took over from one that could not start was quicker.
            if self.process(node).is_some() {
                return;
            }
            match self.database.open(node, clock.now()) {
                Ok(store) => {
                    let life = self.judge().started(node);
                    let process = Arc::new(Process::start(self, node, life, store, clock));
                    let mut nodes = self.lock_nodes();
                    nodes[node].starting = false;
                    nodes[node].process = Some(process);
                    return;
                }
                Err(_) => pass(START_PAUSE).await,
            }
        }
    }

    /// Ends a process at once. False if there is none.
    pub fn end(&self, node: usize, ending: Ending) -> bool {
        let Some(process) = self.lock_nodes()[node].process.take() else { return false };
        match ending {
            Ending::Killed => {
                process.kill();
                self.judge().died(node);
            }
            Ending::Stopped => self.judge().stopped(node),
        }
        true
    }

    /// Stops a process in good order, or kills it when it takes too long.
    pub async fn stop(&self, node: usize) -> bool {
        let Some(process) = self.process(node) else { return false };
        let in_time = process.stop(GRACE).await;
        let is_same = self.process(node).is_some_and(|now| Arc::ptr_eq(&now, &process));
        is_same && self.end(node, if in_time { Ending::Stopped } else { Ending::Killed })
    }

    /// Kills a node right after one of its next commits. False: there was none in time.
    pub async fn die_after_commit(&self, node: usize, commits: u32) -> bool {
        let committed = self.doomed.await_commit(node, commits);
        if tokio::time::timeout(DOOM_MAX, committed).await.is_err() {
            self.doomed.spare(node);
            return false;
        }
        self.end(node, Ending::Killed)
    }

    pub fn process(&self, node: usize) -> Option<Arc<Process>> {
        self.lock_nodes()[node].process.clone()
    }

    /// Any process that runs, or none if none does.
    pub fn some_process(&self, chance: &mut Chance) -> Option<Arc<Process>> {
        let nodes = self.lock_nodes();
        let first = chance.index(nodes.len());
        (first..nodes.len()).chain(0..first).find_map(|node| nodes[node].process.clone())
    }

    // Weather.

    pub fn usual_weather(&self) -> Weather {
        let span = |(least, most): (i64, i64)| (millis(least), millis(most));
        Weather { read: span(self.config.read), write: span(self.config.write), ..Weather::default() }
    }

    pub fn weather(&self, node: usize, change: impl FnOnce(&mut Weather)) {
        change(&mut self.database.weather(node));
        self.weather_changed.notify_waiters();
    }

    pub fn is_stalled(&self, node: usize) -> bool {
        self.database.weather(node).stalled
    }

    pub async fn weather_changed(&self) {
        self.weather_changed.notified().await;
    }

    // What happens at once.

    /// True if another fault lasts already.
    pub fn begin_fault(&self) -> bool {
        self.faults.fetch_add(1, Ordering::Relaxed) > 0
    }

    pub fn end_fault(&self) {
        self.faults.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub fn coming(&self, count: i64) {
        self.offers.fetch_add(count, Ordering::Relaxed);
    }

    /// About so many deliveries will come of what is being offered.
    pub fn under_way(&self) -> u64 {
        self.offers.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    pub fn add_load(&self, count: u64) {
        self.load.fetch_add(count, Ordering::Relaxed);
    }

    pub fn take_load(&self) -> u64 {
        self.load.swap(0, Ordering::Relaxed)
    }

    // Whom and what.

    /// Its clock is set to now by asking for it.
    pub fn judge(&self) -> MutexGuard<'_, Judge> {
        let mut judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        judge.at(self.now());
        judge
    }

    pub fn receivers(&self) -> MutexGuard<'_, Receivers> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn app(&self, number: usize) -> AppKey {
        self.lock_apps()[number]
    }

    /// An endpoint that is there, and the number of its application.
    pub fn some_endpoint(&self, chance: &mut Chance) -> Option<(EndpointKey, usize)> {
        let (key, app) = self.judge().some_endpoint(chance.draw())?;
        Some((EndpointKey::new(key), app))
    }

    fn lock_nodes(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_apps(&self) -> MutexGuard<'_, Vec<AppKey>> {
        self.apps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.max(0).cast_unsigned())
}

const LOOK_EVERY: i64 = 250;
const START_PAUSE: i64 = 500;
const GRACE: Duration = Duration::from_secs(30);
const DOOM_MAX: Duration = Duration::from_secs(20);
const OFFERS_MAX: i64 = 400_000;
const REST_BEFORE: i64 = 30_000;
const REST_FOR: i64 = 60_000;
