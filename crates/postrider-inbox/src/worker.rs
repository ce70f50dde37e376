//! Works off what was taken in: claims, calls the handler, settles.
//!
//! An event is held by a lease and not by a lock or an open transaction: if this process dies, the lease runs out and another
//! one takes the event. A handler is cut off before the lease ends, so that two do not work on one event unless a process stands
//! still in between, or the clocks of two processes differ by more than what the lease has over the handler's time; the one that
//! comes late then can settle nothing, because the store counts claims.
//!
//! A lease counts from before the store was asked. Where its answer took long, the handler has what is left, and where nothing
//! is left it is not called: the event is due again. If the answer is lost, so is the attempt that the claim counted.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rand::Rng;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    Claim, Event, Failure, Inbox, Settled, Settlement, Store, StoreError, Ticket,
    causes::bounded,
    meters,
    retry::{Next, Retry},
};

/// A later version may have more of them: set what you need, and end with `..WorkerSettings::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Handlers that run at the same time in this process.
    pub concurrency: usize,
    /// A handler that takes longer has failed, and is cut off where it waits. One that keeps its thread busy is not cut off until it
    /// waits, and what it gave to `spawn`, `spawn_blocking` or another thread runs on.
    pub handler_timeout: Duration,
    /// After this time an event of a process that died is taken by another. Longer than `handler_timeout`, or a slow handler
    /// would run twice at once.
    pub lease: Duration,
    /// How often the store is asked for what other processes took in, and for what is due again.
    pub look_every: Duration,
    /// How often what is over its retention is forgotten.
    pub clean_every: Duration,
    pub retry: Retry,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            concurrency: 8,
            handler_timeout: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            look_every: Duration::from_secs(1),
            clean_every: Duration::from_hours(1),
            retry: Retry::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerSettingsError {
    #[error("a worker with a concurrency of 0 works off nothing")]
    NoConcurrency,
    #[error("the lease ({lease:?}) must be longer than a handler may take ({handler_timeout:?})")]
    ShortLease { lease: Duration, handler_timeout: Duration },
    #[error("{name} is 0: it would never rest")]
    Restless { name: &'static str },
    #[error("an event has at least one attempt")]
    NoAttempt,
}

/// Works off an inbox. Any number of them may run, in any number of processes on one store.
pub struct Worker<S> {
    inside: Arc<Inside<S>>,
}

struct Inside<S> {
    inbox: Inbox<S>,
    settings: WorkerSettings,
    rng: Mutex<Box<dyn Rng + Send>>,
}

impl<S> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self { inside: Arc::clone(&self.inside) }
    }
}

impl<S: Store> Worker<S> {
    /// `rng` draws how far apart retries are: in production a generator that the system has seeded.
    pub fn new(
        inbox: Inbox<S>,
        settings: WorkerSettings,
        rng: impl Rng + Send + 'static,
    ) -> Result<Self, WorkerSettingsError> {
        let WorkerSettings { concurrency, handler_timeout, lease, look_every, clean_every, retry } = settings;
        if concurrency == 0 {
            return Err(WorkerSettingsError::NoConcurrency);
        }
        if lease <= handler_timeout {
            return Err(WorkerSettingsError::ShortLease { lease, handler_timeout });
        }
        for (name, time) in [("look_every", look_every), ("clean_every", clean_every)] {
            if time.is_zero() {
                return Err(WorkerSettingsError::Restless { name });
            }
        }
        if retry.attempts_max == 0 {
            return Err(WorkerSettingsError::NoAttempt);
        }
        Ok(Self { inside: Arc::new(Inside { inbox, settings, rng: Mutex::new(Box::new(rng)) }) })
    }

    /// Works until `stop` ends; then nothing more is claimed, and handlers that run are waited for. So is the store that has to write
    /// what became of them, for up to two minutes if it does not answer; their events are due again with their leases.
    pub async fn run<H, F>(&self, handler: H, stop: impl Future<Output = ()>)
    where
        H: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let Inside { inbox, settings, .. } = &*self.inside;
        let handler = Arc::new(handler);
        let mut stop = pin!(stop);
        let mut running = JoinSet::new();
        let mut chores = JoinSet::new();
        let (mut look, mut gauge, mut clean) =
            (interval(settings.look_every), interval(GAUGE_EVERY), interval(settings.clean_every));
        for ticks in [&mut look, &mut gauge, &mut clean] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut is_store_out = false;
        loop {
            let free = settings.concurrency - running.len();
            if free > 0 {
                // A store that does not answer keeps nobody from stopping. What it claims after that is due with its lease.
                let claimed = tokio::select! {
                    biased;
                    () = &mut stop => break,
                    claimed = inbox.inside.store.claim(free, settings.lease, inbox.inside.clock.now()) => claimed,
                };
                match claimed {
                    Ok(claims) => {
                        is_store_out = false;
                        for claim in claims {
                            let (worker, handler) = (self.clone(), Arc::clone(&handler));
                            running.spawn(async move { worker.work(claim, handler).await });
                        }
                    }
                    Err(error) if is_store_out => tracing::debug!("the inbox still cannot be worked off: {error}"),
                    Err(error) => {
                        is_store_out = true;
                        tracing::error!(cause = error.cause(), "the inbox cannot be worked off: {error}");
                    }
                }
            }
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(_) = running.join_next() => {}
                Some(_) = chores.join_next() => {}
                () = inbox.inside.arrived.notified() => {}
                _ = look.tick() => {}
                _ = gauge.tick(), if chores.len() < CHORES_MAX => {
                    let inbox = inbox.clone();
                    chores.spawn(async move { note("looked at", inbox.standing().await.map(drop)) });
                }
                _ = clean.tick(), if chores.len() < CHORES_MAX => {
                    let inbox = inbox.clone();
                    chores.spawn(async move { note("cleaned", inbox.clean().await.map(drop)) });
                }
            }
        }
        while running.join_next().await.is_some() {}
    }

    /// Claims once what is due, up to the concurrency, and works it off. Says how many events that were. For programs that
    /// are started from time to time, and for tests.
    pub async fn turn<H, F>(&self, handler: H) -> Result<usize, StoreError>
    where
        H: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let Inside { inbox, settings, .. } = &*self.inside;
        let claims = inbox.inside.store.claim(settings.concurrency, settings.lease, inbox.inside.clock.now()).await?;
        let count = claims.len();
        let handler = Arc::new(handler);
        let mut running = JoinSet::new();
        for claim in claims {
            let (worker, handler) = (self.clone(), Arc::clone(&handler));
            running.spawn(async move { worker.work(claim, handler).await });
        }
        while running.join_next().await.is_some() {}
        Ok(count)
    }

    async fn work<H, F>(&self, claim: Claim, handler: Arc<H>)
    where
        H: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let Claim { event, attempt, ticket } = claim;
        let source = ticket.key.source.clone();
        let retry = &self.inside.settings.retry;
        let result = match attempt > retry.attempts_max {
            // Its process was lost during the last one.
            true => Err(Failure::never("its worker was lost during the last attempt")),
            false => {
                let left = ticket.until.since(self.inside.inbox.inside.clock.now());
                if left.is_zero() {
                    tracing::warn!(event = %ticket.key, attempt, "the lease was over before the handler could be called");
                    return;
                }
                self.call(event, handler, left).await
            }
        };
        let settlement = match result {
            Ok(()) => Settlement::Done,
            Err(failure) => {
                meters::failed(source.as_str());
                let next = {
                    let mut rng = self.inside.rng.lock().unwrap_or_else(PoisonError::into_inner);
                    retry.after(attempt, &failure, &mut **rng)
                };
                let (Failure::Again(reason) | Failure::Never(reason)) = failure;
                let reason = bounded(reason);
                match next {
                    Next::Again { after } => {
                        Settlement::Again { due: self.inside.inbox.inside.clock.now().after(after), reason }
                    }
                    Next::Dead => Settlement::Dead { reason },
                }
            }
        };
        match self.settle(&ticket, &settlement).await {
            Ending::Written => match &settlement {
                Settlement::Done => meters::processed(source.as_str()),
                Settlement::Again { reason, .. } => {
                    tracing::info!(event = %ticket.key, attempt, reason, "an event failed and is tried again");
                }
                Settlement::Dead { reason } => {
                    meters::dead(source.as_str());
                    tracing::warn!(event = %ticket.key, attempt, reason, "an event is dead");
                }
            },
            Ending::LeaseLost => {
                meters::lease_lost(source.as_str());
                tracing::warn!(event = %ticket.key, attempt, "another worker has taken the event meanwhile");
            }
            Ending::Unknown => {
                tracing::warn!(event = %ticket.key, attempt, "whether what became of an event was written is not known");
            }
            Ending::NotWritten(error) => {
                tracing::error!(event = %ticket.key, cause = error.cause(), "what became of an event was not written: {error}");
            }
        }
    }

    /// In a task of its own: a panic is a failure like others, and is nobody else's.
    async fn call<H, F>(&self, event: Event, handler: Arc<H>, lease_left: Duration) -> Result<(), Failure>
    where
        H: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let limit = self.inside.settings.handler_timeout.min(lease_left);
        // Dropped, it ends the task.
        let mut task = JoinSet::new();
        task.spawn(async move { handler(event).await });
        match timeout(limit, task.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(Some(Err(_)) | None) => Err(Failure::again("the handler panicked")),
            Err(_) => Err(Failure::again(format!("the handler took longer than {limit:?}"))),
        }
    }

    /// Insists for a while: what was done and is not written down is done again.
    async fn settle(&self, ticket: &Ticket, settlement: &Settlement) -> Ending {
        let inbox = &self.inside.inbox.inside;
        let mut pauses = SETTLE_PAUSES.into_iter();
        let mut is_first = true;
        loop {
            let now = inbox.clock.now();
            let error = match timeout(SETTLE_PATIENCE, inbox.store.settle(ticket, settlement, now)).await {
                Ok(Ok(Settled::Written)) => return Ending::Written,
                Ok(Ok(Settled::LeaseLost)) if is_first => return Ending::LeaseLost,
                // Until the lease ends nobody else can have the event: an earlier try was written, and its answer lost.
                Ok(Ok(Settled::LeaseLost)) if inbox.clock.now() < ticket.until => return Ending::Written,
                Ok(Ok(Settled::LeaseLost)) => return Ending::Unknown,
                Ok(Err(error)) => error,
                Err(_) => StoreError::unavailable(format!("it did not answer within {SETTLE_PATIENCE:?}")),
            };
            is_first = false;
            match pauses.next().filter(|_| now < ticket.until) {
                Some(pause) => sleep(pause).await,
                None => return Ending::NotWritten(error),
            }
        }
    }
}

/// What is known of a settlement in the end.
enum Ending {
    Written,
    /// Somebody else has taken the event since.
    LeaseLost,
    /// Somebody else has taken it since, or a try whose answer was lost had written it.
    Unknown,
    /// All tries failed. One of them may have been written for all that.
    NotWritten(StoreError),
}

fn note(what: &str, result: Result<(), StoreError>) {
    if let Err(error) = result {
        tracing::warn!(cause = error.cause(), "the inbox was not {what}: {error}");
    }
}

const GAUGE_EVERY: Duration = Duration::from_secs(10);
const CHORES_MAX: usize = 2;
/// Longer than the time limits of the stores that are here. With the pauses it adds up to less than two minutes.
const SETTLE_PATIENCE: Duration = Duration::from_secs(15);
const SETTLE_PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
];
