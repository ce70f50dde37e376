//! Drives the engine: tells it what happened, and carries out what it says.
//!
//! One task owns the engine's state and never waits for the network or the disk; requests, loads and commits
//! run beside it and report back. The way of one delivery is in `delivery.rs`.
//!
//! Lanes come and go by the shard. A shard is *offered* by the store, *entered* by reading how its lanes stand, *owned*,
//! asked to *leave* when it is wanted elsewhere, and given up when its lanes have come to rest. Or all are lost at once:
//! whatever is begun remembers the reign in which it was, and what comes in after its end counts for nothing, because the
//! lanes may be someone else's by then, or this process's for a second time.

mod delivery;
mod found;
mod hands;
mod load;
mod meters;
mod notices;
mod settings;
mod shards;
#[cfg(test)]
mod tests;
mod told;

use crate::{
    alerts::Alerts,
    clock::Clock,
    directory::{AppEntry, Directory},
    ids::IdCodec,
    ingest::gate::Gate,
    kept_headers::KeepHeaders,
    statistics::Statistics,
    tasks::Tasks,
    telemetry::{Tops, Traces},
    transport::Post,
};
pub use delivery::LOOP_HEADER;
use delivery::{Cargo, Carrier, Leave, Settled};
use found::Found;
use hands::Hands;
use load::Load;
use notices::Notices;
pub use notices::reason_name;
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, Timestamp, Trigger,
    lanes::{Cancel, Command, Dispatcher, LaneSettings, Limits, Parcel, Rest},
    planted::{Bug, planted},
    policy::{Class, Health, Next, Progress, Standing},
};
use postrider_store::{Cancelled, Committed, Loaded, Settlement, Shards, Store, StoreError, Tenure, Waiting, step};
use rand::rngs::StdRng;
use settings::gone_lane;
use shards::Entering;
use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

/// How long to wait before asking a store again that could not answer.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Reports taken before it is asked again what to do.
const EVENTS_PER_TURN: usize = 1_024;

/// Outcomes that go into one commit. Everything else that is written waits for it, new messages as well: a commit of all
/// that hundreds of busy lanes can have would take half a second. With a thousand, though, the rows of a backlog, which are
/// written in the commits between, would halve what goes out.
const SETTLED_AT_ONCE: usize = 2_048;

/// What a delivery keeps in memory besides its payload.
const PARCEL_BYTES: usize = 512;

/// How often it is asked whether something may be sent again, while nothing may.
const SEND_RECHECK: Duration = Duration::from_millis(50);

/// A clock that says so much less than before was set back, and not only put right a little.
const SET_BACK_MIN: Duration = Duration::from_secs(1);

/// How often all lanes are looked through for such as have come to rest, while some are to.
const QUIET_RECHECK: Duration = Duration::from_millis(10);

/// The application of a deleted endpoint is not known. Nothing is sent in its lane, only ended: so it does no harm if
/// another node has the lane as well.
const NOBODY: AppKey = AppKey::new(0);

/// What the tasks beside the dispatcher report.
enum Event {
    Answered(Reign, Box<Settled>),
    Settled(Reign, Result<Arc<Vec<Settlement>>, Deposed>),
    Loaded(EndpointKey, Loaded),
    LoadFailed(EndpointKey),
    Spilled(Reign, Result<Vec<DeliveryId>, Deposed>),
    Disowned(Reign, Result<(), Deposed>),
    Found(Reign, Found),
    LaneFound {
        endpoint: EndpointKey,
        settings: LaneSettings,
        due: Timestamp,
    },
    Healed {
        endpoint: EndpointKey,
        settings: LaneSettings,
    },
    AppRead(AppKey, Option<Arc<AppEntry>>),
    /// Someone wants to know which lanes wait for their endpoints.
    Asked(oneshot::Sender<Vec<(EndpointKey, Standing)>>),
    /// An endpoint of this application was disabled.
    Disabled(AppKey),
    EndpointGone(EndpointKey),
}

/// Counts how often all lanes were lost.
type Reign = u64;

/// What was to be written is void: the lanes are someone else's.
struct Deposed;

pub struct Dispatch {
    engine: Dispatcher<Cargo>,
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    carrier: Arc<Carrier>,
    hands: Hands<Errand>,
    /// Where messages come in.
    gate: Option<Arc<Gate>>,
    lags: bool,
    tasks: Arc<Tasks>,
    clock: Clock,
    events: mpsc::UnboundedSender<Event>,
    inbox: mpsc::UnboundedReceiver<Event>,
    stopping: bool,
    /// The latest time that was seen.
    now: Timestamp,
    /// What is written is written in this one.
    tenure: Tenure,
    reign: Reign,
    /// Shards that were offered and are not being read yet.
    offered: Shards,
    entering: Option<Entering>,
    /// What was told of lanes that are not served yet, and is heard once they are.
    early: Vec<Committed>,
    /// The shards whose lanes are served.
    owned: Shards,
    /// Those whose lanes are being brought to rest.
    leaving: Shards,
    /// Those that were given up before a last message of theirs came. It is given a row, and nothing else.
    lingering: Shards,
    /// How many times shards are being given up.
    disowning: usize,
    sought_quiet_at: Option<Instant>,
    /// Settled by the engine, waiting for the commit before theirs to end.
    unsettled: Vec<Settlement>,
    committing: bool,
    /// Lanes that had something waiting when they were taken over and have not been opened since.
    unopened: BTreeMap<EndpointKey, Timestamp>,
    /// Applications whose settings are being read.
    reading: BTreeMap<AppKey, Reading>,
    notices: Notices,
    alerts: Arc<Alerts>,
    in_flight: metrics::Gauge,
    lanes_lag: metrics::Gauge,
    shards_owned: metrics::Gauge,
}

/// What a dispatcher works with.
pub struct Means {
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub post: Arc<dyn Post>,
    pub ids: IdCodec,
    pub tasks: Arc<Tasks>,
    pub clock: Clock,
    /// For the jitter of retries.
    pub rng: StdRng,
}

/// A look at a dispatcher that runs.
pub struct View {
    events: mpsc::UnboundedSender<Event>,
}

impl View {
    /// Lanes in which nothing more is sent just now because of their endpoints or of limits set for them, and how their
    /// breakers stand. All other breakers are closed. `None`: the dispatcher has ended.
    pub async fn held_lanes(&self) -> Option<Vec<(EndpointKey, Standing)>> {
        let (answer, answered) = oneshot::channel();
        self.events.send(Event::Asked(answer)).ok()?;
        answered.await.ok()
    }
}

impl Dispatch {
    pub fn new(means: Means) -> Self {
        let Means { store, directory, post, ids, tasks, clock, rng } = means;
        let (events, inbox) = mpsc::unbounded_channel();
        Self {
            engine: Dispatcher::new(Limits::default()),
            notices: Notices::new(ids.clone(), Arc::new(Alerts::silent())),
            alerts: Arc::new(Alerts::silent()),
            carrier: Arc::new(Carrier::new(Arc::clone(&store), Arc::clone(&directory), post, ids, clock.clone(), rng)),
            store,
            directory,
            hands: Hands::default(),
            gate: None,
            lags: false,
            tasks,
            clock,
            events,
            inbox,
            stopping: false,
            now: Timestamp::default(),
            tenure: Tenure::default(),
            reign: 0,
            offered: Shards::NONE,
            entering: None,
            early: Vec::new(),
            owned: Shards::NONE,
            leaving: Shards::NONE,
            lingering: Shards::NONE,
            disowning: 0,
            sought_quiet_at: None,
            unsettled: Vec::new(),
            committing: false,
            unopened: BTreeMap::new(),
            reading: BTreeMap::new(),
            in_flight: metrics::gauge!("postrider_requests_in_flight"),
            lanes_lag: metrics::gauge!("postrider_lanes_lag"),
            shards_owned: metrics::gauge!("postrider_shards_owned"),
        }
    }

    /// Tells these what it sees.
    pub fn with_alerts(mut self, alerts: Arc<Alerts>) -> Self {
        self.notices = Notices::new(self.notices.ids.clone(), Arc::clone(&alerts));
        self.alerts = alerts;
        self
    }

    /// With so many requests on the network at most, if that is less than usual.
    pub fn with_requests_max(mut self, requests_max: usize) -> Self {
        let limits = Limits::default();
        self.engine = Dispatcher::new(Limits { in_flight: limits.in_flight.min(requests_max.max(1)), ..limits });
        self
    }

    /// Counts what happens, for the charts.
    pub fn with_statistics(mut self, statistics: Arc<Statistics>) -> Self {
        let carrier = Arc::into_inner(self.carrier).expect("nobody else has it before it runs");
        self.carrier = Arc::new(carrier.with_statistics(statistics));
        self
    }

    /// Counts also by name, and traces.
    pub fn watched(mut self, tops: Arc<Tops>, traces: Option<Arc<Traces>>) -> Self {
        let carrier = Arc::into_inner(self.carrier).expect("nobody else has it before it runs");
        self.carrier = Arc::new(carrier.with_tops(tops).with_traces(traces));
        self
    }

    /// Lets those wait a moment who bring messages here while lanes lag.
    pub fn holding_up(self, gate: Arc<Gate>) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// With the headers of these attempts.
    pub fn keeping(mut self, keep_headers: KeepHeaders) -> Self {
        let carrier = Arc::into_inner(self.carrier).expect("nobody else has it before it runs");
        self.carrier = Arc::new(carrier.keeping(keep_headers));
        self
    }

    /// For whoever watches while it runs.
    pub fn view(&self) -> View {
        View { events: self.events.clone() }
    }

    /// Runs until told to stop and everything is given up: what was handed over has rows, and what was on the network has
    /// been settled.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut committed = self.store.committed();
        let mut clock_set = self.clock.changes();
        let mut load = Load::of_this_runtime(self.clock.now());
        loop {
            let now = self.look_at_the_clock();
            if !self.stopping && *stop.borrow() {
                self.stop(now);
            }
            let may_send = self.store.may_send(self.tenure) || planted(Bug::SendsWithoutLease);
            // Whoever may send again has been told before what has changed meanwhile.
            self.hear_all(&mut committed);
            self.engine.let_start(may_send && !self.stopping);
            while let Some(command) = self.engine.next(now) {
                self.carry_out(command, now);
            }
            self.commit();
            self.give_up_quiet();
            self.enter_offered();
            let is_busy = load.is_high(now);
            self.tell_lag(is_busy && self.engine.lags(now));
            self.in_flight.set(self.engine.in_flight() as f64);
            self.shards_owned.set(self.owned.len() as f64);
            if self.stopping && self.is_at_rest() {
                step!("stop.at_rest");
                self.tell_lag(false);
                return;
            }
            let nap = pin!(nap_until(self.wake_at(may_send)));
            tokio::select! {
                // In a fixed order, so that the same inputs always lead the same way.
                biased;
                Some(news) = committed.recv() => self.hear(news),
                Some(event) = self.inbox.recv() => {
                    self.hear_all(&mut committed);
                    self.take(event);
                }
                Ok(()) = stop.changed(), if !self.stopping => {}
                Ok(()) = clock_set.changed() => {}
                () = nap => {}
            }
            // What else has come meanwhile is taken along, from both sides, so that neither waits for the other.
            for _ in 0..EVENTS_PER_TURN {
                let Ok(event) = self.inbox.try_recv() else { break };
                self.hear_all(&mut committed);
                self.take(event);
            }
            self.hear_all(&mut committed);
        }
    }

    fn tell_lag(&mut self, lags: bool) {
        if std::mem::replace(&mut self.lags, lags) == lags {
            return;
        }
        self.store.set_lag(lags);
        if let Some(gate) = &self.gate {
            gate.set_lag(lags);
        }
        self.lanes_lag.set(u8::from(lags));
    }

    /// Before anything that a look into the store has brought: what it shows may belong behind what was committed before.
    /// What is committed meanwhile is not waited for: it may come as fast as it can be heard, and then nothing else would
    /// ever be done.
    fn hear_all(&mut self, committed: &mut mpsc::UnboundedReceiver<Vec<Committed>>) {
        for _ in 0..committed.len() {
            let Ok(news) = committed.try_recv() else { break };
            self.hear(news);
        }
    }

    fn look_at_the_clock(&mut self) -> Timestamp {
        let now = self.clock.now();
        if now.plus(SET_BACK_MIN) < self.now {
            self.engine.set_back(now);
        }
        self.now = now;
        now
    }

    /// What is served comes to rest, and what is not served yet never is.
    fn stop(&mut self, now: Timestamp) {
        self.stopping = true;
        self.retire();
        self.turn_down(Shards::ALL);
        self.leave(self.owned, now);
        self.engine.release(|_| true, now);
    }

    fn wake_at(&self, may_send: bool) -> Option<Instant> {
        let engine = self.engine.sleep_until().map(|at| Instant::now() + at.since(self.clock.now()));
        let keeps_looking = !may_send || planted(Bug::NeverRests);
        let resume = (keeps_looking && !self.owned.is_empty()).then(|| Instant::now() + SEND_RECHECK);
        let quiet = (!self.ending().is_empty()).then(|| Instant::now() + QUIET_RECHECK);
        [engine, resume, quiet].into_iter().flatten().min()
    }

    /// Nothing is served any more, and nothing that counts is under way.
    fn is_at_rest(&self) -> bool {
        let is_served = !self.ending().is_empty() || self.engine.busy_apps().next().is_some();
        !is_served && self.disowning == 0 && !self.committing
    }

    fn carry_out(&mut self, command: Command<Cargo>, now: Timestamp) {
        match command {
            Command::Send(parcel) => {
                let promise = Promise::new(self.events.clone(), self.reign, &parcel, now);
                let lane_is_gone = self.engine.settings_of(parcel.id.endpoint).is_some_and(|lane| lane.gone);
                let leave = Leave { tenure: self.tenure, lane_is_gone };
                self.hands.give(Errand { promise, parcel, leave }, |mut hand| {
                    let carrier = Arc::clone(&self.carrier);
                    async move {
                        while let Some(Errand { promise, parcel, leave }) = hand.errand().await {
                            let settled = carrier.deliver(parcel, leave).await;
                            hand.rest();
                            promise.keep(settled);
                        }
                    }
                });
            }
            Command::Bury(parcel) => {
                let ended = Box::new(self.carrier.end_by_breaker(parcel));
                let _ = self.events.send(Event::Answered(self.reign, ended));
            }
            Command::Load { endpoint, ordering, limit } => {
                let (store, events) = (Arc::clone(&self.store), self.events.clone());
                tokio::spawn(async move {
                    let event = match store.load(endpoint, ordering, now, limit).await {
                        Ok(loaded) => Event::Loaded(endpoint, loaded),
                        Err(_) => Event::LoadFailed(endpoint),
                    };
                    let _ = events.send(event);
                });
            }
            Command::Spill(deliveries) => {
                let (store, events) = (Arc::clone(&self.store), self.events.clone());
                let (tenure, reign) = (self.tenure, self.reign);
                tokio::spawn(async move {
                    let written = insist_as_owner(|| store.spill(tenure, deliveries.clone(), now)).await;
                    step!("spill.done");
                    let spilled = written.map(|()| deliveries.into_iter().map(|(id, _)| id).collect());
                    let _ = events.send(Event::Spilled(reign, spilled));
                });
            }
        }
    }

    /// Nobody's, once its endpoint is gone.
    fn app_of(&self, endpoint: EndpointKey) -> AppKey {
        self.engine.settings_of(endpoint).map_or(NOBODY, |lane| lane.app)
    }

    /// One commit at a time: what is settled meanwhile goes with the next one.
    fn commit(&mut self) {
        if self.committing || self.unsettled.is_empty() {
            return;
        }
        self.committing = true;
        let mut rest = self.unsettled.split_off(self.unsettled.len().min(SETTLED_AT_ONCE));
        // The next ones will be about as many.
        rest.reserve(self.unsettled.len());
        let batch = Arc::new(std::mem::replace(&mut self.unsettled, rest));
        let (store, events) = (Arc::clone(&self.store), self.events.clone());
        let (tenure, reign) = (self.tenure, self.reign);
        tokio::spawn(async move {
            step!("settle.begun");
            let written = insist_as_owner(|| store.settle(tenure, Arc::clone(&batch))).await;
            step!("settle.done");
            let _ = events.send(Event::Settled(reign, written.map(|()| batch)));
        });
    }

    fn take(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Answered(reign, settled) if reign != self.reign => {
                self.engine.lost();
                if planted(Bug::StaleOutcomeWritten) {
                    self.unsettled.push(settled.settlement);
                }
            }
            Event::Answered(_, settled) => {
                let Settled { mut settlement, verdict, is_sent, is_misplaced } = *settled;
                if is_misplaced {
                    self.reread_endpoint(settlement.id.endpoint);
                }
                if !is_sent {
                    self.engine.unsent(settlement.id, now);
                } else {
                    let endpoint = settlement.id.endpoint;
                    let app = self.app_of(endpoint);
                    if let Some(verdict) = &verdict {
                        self.alerts.watch.attempted(app, verdict.class == Class::Delivered, now);
                    }
                    if let Some(step) = self.engine.answered(settlement.id, verdict.as_ref(), now) {
                        settlement.health = Some(step.health);
                        settlement.disable = self.notices.of((endpoint, app), &step, now);
                    }
                }
                self.unsettled.push(settlement);
            }
            Event::Settled(reign, written) => {
                self.committing = false;
                let Ok(batch) = written else { return self.refused(reign) };
                self.alerts.watch.settled(batch.iter().map(|settlement| self.app_of(settlement.id.endpoint)), now);
                for settlement in batch.iter().filter(|_| reign == self.reign) {
                    self.engine.settled(settlement.id, due(settlement.next), now);
                    // The lane has shut itself already; what holds from now on is what was written.
                    if settlement.disable.is_some() {
                        self.reread_endpoint(settlement.id.endpoint);
                    }
                }
            }
            Event::Loaded(endpoint, loaded) => {
                step!("lane.loaded");
                let parcels = loaded.deliveries.into_iter().map(|waiting| stored_parcel(waiting, now)).collect();
                let rest = Rest { more: loaded.more, next_due: loaded.next_due, blocked: loaded.blocked };
                self.engine.loaded(endpoint, parcels, rest, now);
            }
            Event::LoadFailed(endpoint) => self.engine.load_failed(endpoint, now, STORE_PAUSE),
            Event::Spilled(reign, written) => {
                self.engine.spilled(written.as_deref().unwrap_or_default(), now);
                if written.is_err() {
                    self.refused(reign);
                }
            }
            Event::Disowned(reign, written) => {
                self.disowning -= 1;
                if written.is_err() {
                    self.refused(reign);
                }
            }
            Event::Found(reign, found) => {
                if reign == self.reign {
                    self.enter(found, now);
                }
            }
            Event::LaneFound { endpoint, settings, due } => {
                self.unopened.remove(&endpoint);
                if self.serves(settings.app) {
                    self.engine.expect(endpoint, self.newest(endpoint, settings), due, now);
                }
            }
            Event::Healed { endpoint, settings } => {
                if self.serves(settings.app) {
                    self.engine.set_health(endpoint, self.newest(endpoint, settings), Health::default(), now);
                }
            }
            Event::AppRead(app, entry) => match self.reading.remove(&app) {
                Some(Reading::Outdated) => self.read(app),
                Some(Reading::Current) | None => self.adopt(app, entry, now),
            },
            Event::Asked(answer) => {
                let _ = answer.send(self.engine.held_lanes(now));
            }
            Event::Disabled(app) => self.reread(app),
            Event::EndpointGone(endpoint) => {
                if let Some(lane) = self.engine.settings_of(endpoint) {
                    self.engine.set_lane(endpoint, gone_lane(lane.app, None), now);
                }
            }
        }
    }

    /// What was just committed: new messages go straight to their lanes.
    fn hear(&mut self, news: Vec<Committed>) {
        for committed in news {
            let now = self.clock.now();
            if self.is_early(&committed) {
                self.early.push(committed);
                continue;
            }
            match committed {
                Committed::Message { letter, owed } => {
                    let weight = PARCEL_BYTES + letter.payload.as_ref().map_or(0, bytes::Bytes::len);
                    for endpoint in owed {
                        let settings = self.settings_of(endpoint, letter.app);
                        if let Some(due) = self.unopened.remove(&endpoint) {
                            self.engine.expect(endpoint, settings, due, now);
                        }
                        let parcel = Parcel {
                            id: DeliveryId { endpoint, message: letter.message, trigger: Trigger::Scheduled },
                            cycle: 0,
                            progress: Progress::default(),
                            queued_at: letter.accepted_at,
                            due: letter.accepted_at,
                            order: letter.order,
                            held: None,
                            theirs: Duration::ZERO,
                            handed: true,
                            since: now,
                            weight,
                            cargo: Arc::clone(&letter),
                        };
                        self.engine.hand_over(parcel, settings, now);
                    }
                    if !self.serves(letter.app) {
                        self.send_off(letter.app, now);
                    }
                }
                Committed::Waiting { endpoint, due } => match self.lane_at_hand(endpoint) {
                    // At once, because what is committed next may belong behind it.
                    Some(lane) if self.serves(lane.app) => self.engine.expect(endpoint, lane, due, now),
                    // Whoever takes the lane over will find it.
                    Some(_) => {}
                    None => {
                        let before = self.unopened.get(&endpoint).copied().unwrap_or(due);
                        self.unopened.insert(endpoint, before.min(due));
                        self.find_lane(endpoint, due);
                    }
                },
                Committed::Settings { app } => {
                    self.reread(app);
                    // What is being read of its lanes may be older.
                    if self.arriving().has_lanes_of(app) {
                        self.early.push(committed);
                    }
                }
                Committed::EventTypes => self.directory.event_types_changed(),
                Committed::Work => self.tasks.wake(),
                Committed::Offered { tenure, shards } => self.take_over(tenure, shards),
                Committed::Wanted { shards } => {
                    self.turn_down(shards);
                    self.leave(shards.and(self.owned), now);
                }
                Committed::Deposed => self.depose(),
                // Whoever set it back means now; what is read later may be what an outcome under way wrote since.
                Committed::Health { endpoint } => match self.lane_at_hand(endpoint) {
                    // Also a lane that is about to go: what is still on the network there is judged by it.
                    Some(lane) if self.serves(lane.app) || self.engine.settings_of(endpoint).is_some() => {
                        self.engine.set_health(endpoint, lane, Health::default(), now);
                    }
                    Some(_) => {}
                    None => self.find_healed(endpoint),
                },
                Committed::Cancelled { endpoint, which } => {
                    let which = match which {
                        Cancelled::One(message) => Cancel::One(message),
                        Cancelled::Before(message) => Cancel::Before(message),
                    };
                    self.engine.cancel(endpoint, which, now);
                }
            }
        }
    }
}

async fn nap_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Whether what is being read will still be right when it comes.
enum Reading {
    Current,
    Outdated,
}

/// What one task does for one parcel.
struct Errand {
    promise: Promise,
    parcel: Parcel<Cargo>,
    leave: Leave,
}

/// That something will be heard of every parcel that is sent out, even if its task dies on the way.
struct Promise {
    events: mpsc::UnboundedSender<Event>,
    reign: Reign,
    settled: Option<Box<Settled>>,
}

impl Promise {
    fn new(events: mpsc::UnboundedSender<Event>, reign: Reign, parcel: &Parcel<Cargo>, now: Timestamp) -> Self {
        let settled = Settled { is_sent: true, ..Settled::untouched(parcel, now) };
        Self { events, reign, settled: Some(Box::new(settled)) }
    }

    fn keep(mut self, settled: Settled) {
        if let Some(slot) = &mut self.settled {
            **slot = settled;
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(settled) = self.settled.take() {
            let _ = self.events.send(Event::Answered(self.reign, settled));
        }
    }
}

fn stored_parcel(waiting: Waiting, now: Timestamp) -> Parcel<Cargo> {
    Parcel {
        id: waiting.id,
        cycle: waiting.cycle,
        progress: waiting.progress,
        queued_at: waiting.queued_at,
        due: waiting.due,
        order: waiting.order,
        held: None,
        theirs: Duration::ZERO,
        handed: false,
        since: now,
        weight: PARCEL_BYTES + waiting.letter.payload.as_ref().map_or(0, bytes::Bytes::len),
        cargo: waiting.letter,
    }
}

fn due(next: Next) -> Option<Timestamp> {
    match next {
        Next::Retry { due, .. } | Next::Postponed { due } => Some(due),
        Next::Delivered | Next::Dead(_) | Next::Nothing => None,
    }
}

/// The store's trouble is not the delivery's: what has happened is kept in memory until it can be written.
async fn insist<T, F>(mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => pause_after(error).await,
        }
    }
}

/// The same for what only the owner of the lanes may write.
async fn insist_as_owner<T, F>(mut ask: impl FnMut() -> F) -> Result<T, Deposed>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(StoreError::Deposed) => return Err(Deposed),
            Err(error) => pause_after(error).await,
        }
    }
}

async fn pause_after(error: StoreError) {
    if let StoreError::Closed = error {
        // The store closes last, when nobody needs the answer any more.
        std::future::pending::<()>().await;
    }
    tracing::warn!(%error, "the store could not answer; asking again");
    tokio::time::sleep(STORE_PAUSE).await;
}
