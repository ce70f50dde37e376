//! A small model of the world around the dispatcher: a store whose answers come late, receivers by script, a process
//! that can die, a second one to which lanes can move, and a clock that the test turns by hand.
//!
//! The world keeps its own books and checks every start against them. They are kept in the plainest way there is, so
//! that they cannot share a mistake with the lanes.

#![allow(dead_code, reason = "each test file uses its own part of the world")]

use postrider_engine::{
    Answer, AppKey, DeliveryId, EndpointKey, Fault, MessageKey, OrderKey, Outcome, Timestamp, Trigger,
    lanes::{Cancel, Command, Dispatcher, Held, LaneSettings, Limits, Parcel, Rest},
    policy::{
        Class, DisableRules, Health, Next, Ordering, Policy, Progress, Rule, Verdict, WhileOpen,
        breaker::Standing,
        health::{BreakerMove, Notice},
        judge,
    },
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub const SMALL: Limits = Limits {
    window: 6,
    beyond: 4,
    ready: 2,
    bytes: 20_000,
    lane_bytes: 8_000,
    loads: 2,
    unsettled: 8,
    in_flight: 12,
    patience: Duration::from_millis(50),
};

/// How long the store takes in timed runs.
const STORE_TAKES: Duration = Duration::from_millis(2);

pub fn lane_settings(app: i64) -> LaneSettings {
    LaneSettings {
        app: AppKey::new(app),
        app_rate: None,
        in_flight_max: 3,
        rate: None,
        parked: false,
        ordering: Ordering::None,
        breaker: None,
        disable: DisableRules { failing_for: None, permanent_streak: None },
        gone: false,
        unknown: false,
    }
}

/// What a receiver does with a request. `None`: our own task dies on the way, and nothing is learned.
pub struct Reply {
    pub outcome: Option<Outcome>,
    pub takes: Duration,
}

pub fn status(status: u16) -> Reply {
    let outcome = Some(Outcome::Answered(Answer { status, ..Answer::default() }));
    Reply { outcome, takes: Duration::from_millis(20) }
}

pub fn refused() -> Reply {
    Reply { outcome: Some(Outcome::Failed(Fault::Refused)), takes: Duration::from_millis(5) }
}

pub type Receiver = Box<dyn FnMut(DeliveryId, Timestamp, &mut ChaCha8Rng) -> Reply>;

/// When a retry comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// As the policy says.
    Real,
    /// Within 200 ms, so that much happens in a short run.
    Quick,
}

#[derive(Clone, Copy)]
pub struct Start {
    pub at: Timestamp,
    pub id: DeliveryId,
    pub held: Option<Held>,
    /// Requests of the lane on the network, this one included.
    pub in_flight: usize,
    pub is_probe: bool,
}

#[derive(Clone)]
struct Row {
    due: Timestamp,
    order: Option<OrderKey>,
    cycle: u32,
    progress: Progress,
    queued_at: Timestamp,
}

#[derive(Default)]
struct LaneRows {
    rows: BTreeMap<DeliveryId, Row>,
    by_due: BTreeSet<(Timestamp, DeliveryId)>,
}

impl LaneRows {
    fn put(&mut self, id: DeliveryId, row: Row) {
        self.remove(id);
        self.by_due.insert((row.due, id));
        self.rows.insert(id, row);
    }

    fn remove(&mut self, id: DeliveryId) {
        if let Some(row) = self.rows.remove(&id) {
            self.by_due.remove(&(row.due, id));
        }
    }
}

/// Who serves an application's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Node(usize),
    /// They are being brought to rest.
    Leaving(usize),
    Nobody,
}

/// What a node has beside its dispatcher.
#[derive(Default)]
struct Node {
    /// Counts how often it has lost everything. What was begun before that is not written down any more.
    tenure: u32,
    uncommitted: Vec<Settlement>,
    committing: bool,
}

struct Job {
    node: usize,
    tenure: u32,
    work: Pending,
}

struct Settlement {
    id: DeliveryId,
    delivered: bool,
    due: Option<Timestamp>,
    row: Row,
    health: Option<Health>,
    disable: bool,
}

/// Work that was begun and whose end the dispatcher has not heard of. Each kind of store work has two steps: the moment
/// at which it happens, and the moment at which it is heard of.
enum Pending {
    Answer(Parcel<()>, Option<Outcome>),
    Burial(Parcel<()>),
    Commit(Vec<Settlement>),
    Committed(Vec<(DeliveryId, Option<Timestamp>)>),
    Load {
        endpoint: EndpointKey,
        ordering: Ordering,
        limit: usize,
    },
    Loaded {
        endpoint: EndpointKey,
        parcels: Vec<Parcel<()>>,
        rest: Rest,
    },
    Spill(Vec<(DeliveryId, Option<OrderKey>)>),
    Spilled(Vec<DeliveryId>),
    /// A row was written by someone else.
    News(EndpointKey, Timestamp),
    Settings(EndpointKey),
    /// The lanes of this application come to the node.
    Gain(AppKey),
}

#[derive(Clone, Copy, Default)]
struct LaneBooks {
    health: Health,
    probe: Option<DeliveryId>,
    /// Allowance and successes in a row.
    ramp: Option<(usize, usize)>,
    parked: bool,
    condemned: Option<Condemned>,
}

/// An endpoint that is to be disabled, between the answer that says so and the settings that do.
#[derive(Clone, Copy)]
struct Condemned {
    by: DeliveryId,
    written: bool,
    overruled: bool,
}

impl LaneBooks {
    fn is_paused(&self) -> bool {
        self.parked || self.condemned.is_some()
    }
}

fn ramp(settings: LaneSettings) -> Option<(usize, usize)> {
    (settings.in_flight_max > 1).then_some((1, 0))
}

pub struct World {
    pub now: Timestamp,
    pub rng: ChaCha8Rng,
    pub limits: Limits,
    pub schedule: Schedule,
    pub policy: Policy,
    /// All lanes are here, unless they are moved.
    pub dispatcher: Dispatcher<()>,
    pub second: Dispatcher<()>,
    pub receiver: Receiver,
    /// How many rows of one key a load gives at most.
    pub run_max: usize,
    /// How often a load fails, in percent.
    pub load_failures: u32,
    pub starts: Vec<Start>,
    pub accepted: BTreeMap<DeliveryId, Option<OrderKey>>,
    pub delivered: BTreeSet<DeliveryId>,
    pub buried: BTreeSet<DeliveryId>,
    pub cancelled: BTreeSet<DeliveryId>,
    /// Their end is durable, whichever it was.
    pub ended: BTreeSet<DeliveryId>,
    pub loads: usize,
    settings: BTreeMap<EndpointKey, LaneSettings>,
    /// As the dispatcher was last told.
    told: BTreeMap<EndpointKey, LaneSettings>,
    books: BTreeMap<EndpointKey, LaneBooks>,
    healths: BTreeMap<EndpointKey, Health>,
    stored: BTreeMap<EndpointKey, LaneRows>,
    /// Accepted and without a row.
    handed: BTreeMap<DeliveryId, Row>,
    /// Not ended, of lanes in which there is an order.
    open: BTreeSet<DeliveryId>,
    replayed: BTreeSet<DeliveryId>,
    pending: BTreeMap<(Timestamp, u64), Job>,
    tickets: u64,
    nodes: [Node; 2],
    owners: BTreeMap<AppKey, Owner>,
    /// Of those whose answers will be heard. What a deposed node has on the network is beyond anybody's control.
    on_the_wire: BTreeSet<DeliveryId>,
    /// Started, and its settlement not heard of.
    unsettled: BTreeSet<DeliveryId>,
}

impl World {
    pub fn new(seed: u64, limits: Limits, lanes: impl IntoIterator<Item = (i64, LaneSettings)>) -> Self {
        let settings: BTreeMap<_, _> =
            lanes.into_iter().map(|(lane, settings)| (EndpointKey::new(lane), settings)).collect();
        Self {
            now: Timestamp::from_millis(1_000_000),
            rng: ChaCha8Rng::seed_from_u64(seed),
            limits,
            schedule: Schedule::Quick,
            policy: Policy::default(),
            dispatcher: Dispatcher::new(limits),
            second: Dispatcher::new(limits),
            receiver: Box::new(|_, _, _| status(200)),
            run_max: usize::MAX,
            load_failures: 0,
            starts: Vec::new(),
            accepted: BTreeMap::new(),
            delivered: BTreeSet::new(),
            buried: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            ended: BTreeSet::new(),
            loads: 0,
            told: settings.clone(),
            books: settings.keys().map(|endpoint| (*endpoint, LaneBooks::default())).collect(),
            owners: settings.values().map(|settings| (settings.app, Owner::Node(0))).collect(),
            settings,
            healths: BTreeMap::new(),
            stored: BTreeMap::new(),
            handed: BTreeMap::new(),
            open: BTreeSet::new(),
            replayed: BTreeSet::new(),
            pending: BTreeMap::new(),
            tickets: 0,
            nodes: Default::default(),
            on_the_wire: BTreeSet::new(),
            unsettled: BTreeSet::new(),
        }
    }

    // What the people around it do.

    pub fn accept(&mut self, message: i64, lane: i64, order: Option<i64>) {
        let id = scheduled(lane, message);
        let order = order.map(OrderKey::new);
        let row = Row { due: self.now, order, cycle: 0, progress: Progress::default(), queued_at: self.now };
        self.accepted.insert(id, order);
        self.open.insert(id);
        let parcel = parcel(id, &row, true, self.now);
        let (now, settings) = (self.now, self.told[&id.endpoint]);
        match self.owner(id.endpoint) {
            Owner::Node(node) => {
                self.handed.insert(id, row);
                self.dispatcher_of(node).hand_over(parcel, settings, now);
            }
            // It was on its way when the lanes were asked to leave.
            Owner::Leaving(node) if message % 2 == 0 => {
                self.handed.insert(id, row);
                let dispatcher = self.dispatcher_of(node);
                dispatcher.hand_over(parcel, settings, now);
                dispatcher.release(|app| app == settings.app, now);
            }
            Owner::Leaving(_) | Owner::Nobody => self.stored.entry(id.endpoint).or_default().put(id, row),
        }
        self.obey();
    }

    /// The application's lanes are wanted by the other node, which gets them as soon as they are quiet.
    pub fn release(&mut self, app: i64) {
        let (app, now) = (AppKey::new(app), self.now);
        let Some(Owner::Node(node)) = self.owners.get(&app).copied() else { return };
        self.owners.insert(app, Owner::Leaving(node));
        self.dispatcher_of(node).release(|its| its == app, now);
        self.obey();
    }

    /// A node has been silent for too long: its lanes are taken away, and go to whomever, itself included.
    pub fn depose(&mut self, node: usize) {
        let owned = |owner: &Owner| matches!(owner, Owner::Node(its) | Owner::Leaving(its) if *its == node);
        let lost: BTreeSet<AppKey> =
            self.owners.iter().filter(|(_, owner)| owned(owner)).map(|(app, _)| *app).collect();
        self.nodes[node] = Node {
            tenure: self.nodes[node].tenure + 1,
            committing: self.nodes[node].committing,
            uncommitted: Vec::new(),
        };
        self.dispatcher_of(node).depose();
        let settings = &self.settings;
        self.on_the_wire.retain(|id| !lost.contains(&settings[&id.endpoint].app));
        self.unsettled.retain(|id| !lost.contains(&settings[&id.endpoint].app));
        for (id, row) in std::mem::take(&mut self.handed) {
            if lost.contains(&self.settings[&id.endpoint].app) {
                self.stored.entry(id.endpoint).or_default().put(id, Row { due: self.now, ..row });
            } else {
                self.handed.insert(id, row);
            }
        }
        for app in lost {
            self.owners.insert(app, Owner::Nobody);
            let next = self.rng.random_range(0..2);
            self.later(next, STORE_TAKES, Pending::Gain(app));
        }
        self.obey();
    }

    fn gain(&mut self, node: usize, app: AppKey) {
        let now = self.now;
        assert_eq!(self.owners.insert(app, Owner::Node(node)), Some(Owner::Nobody), "one owner at a time");
        self.dispatcher_of(node).gain(now);
        let lanes: Vec<_> =
            self.settings.iter().filter(|(_, settings)| settings.app == app).map(|(key, its)| (*key, *its)).collect();
        for (endpoint, settings) in lanes {
            self.told.insert(endpoint, settings);
            self.books.insert(endpoint, LaneBooks { parked: settings.parked, ..LaneBooks::default() });
            if settings.parked {
                self.dispatcher_of(node).set_lane(endpoint, settings, now);
            }
            if let Some(health) = self.healths.get(&endpoint).copied() {
                self.tell_health(endpoint, health);
            }
            let first = self.stored.get(&endpoint).and_then(|lane| lane.by_due.first()).copied();
            if let Some((due, _)) = first {
                self.dispatcher_of(node).expect(endpoint, settings, due, now);
            }
        }
    }

    /// Lanes that have come to rest go to the other node.
    fn give_up_quiet(&mut self) {
        for (app, owner) in self.owners.clone() {
            let Owner::Leaving(node) = owner else { continue };
            if self.dispatcher_of(node).busy_apps().any(|busy| busy == app) {
                continue;
            }
            self.dispatcher_of(node).forget(|its| its == app);
            let is_of_it = |id: &DeliveryId| self.settings[&id.endpoint].app == app;
            assert!(!self.handed.keys().any(is_of_it), "handed over, and held by nobody");
            assert!(!self.unsettled.iter().any(is_of_it), "given up while something of it was under way");
            self.owners.insert(app, Owner::Nobody);
            self.later(1 - node, STORE_TAKES, Pending::Gain(app));
        }
    }

    fn owner(&self, endpoint: EndpointKey) -> Owner {
        self.owners[&self.settings[&endpoint].app]
    }

    fn dispatcher_of(&mut self, node: usize) -> &mut Dispatcher<()> {
        if node == 0 { &mut self.dispatcher } else { &mut self.second }
    }

    /// The one that has something of this lane in memory, if any.
    fn holder(&mut self, endpoint: EndpointKey) -> Option<&mut Dispatcher<()>> {
        match self.owner(endpoint) {
            Owner::Node(node) | Owner::Leaving(node) => Some(self.dispatcher_of(node)),
            Owner::Nobody => None,
        }
    }

    /// These wait in the store, and the dispatcher has not heard of them.
    pub fn fill(&mut self, lane: i64, messages: std::ops::Range<i64>) {
        for message in messages {
            let id = scheduled(lane, message);
            let row = Row { due: self.now, order: None, cycle: 0, progress: Progress::default(), queued_at: self.now };
            self.accepted.insert(id, None);
            self.open.insert(id);
            self.stored.entry(id.endpoint).or_default().put(id, row);
        }
    }

    /// A person wants it sent once more, whatever becomes of the delivery itself.
    pub fn resend(&mut self, message: i64, lane: i64) {
        let id = DeliveryId { trigger: Trigger::Manual, ..scheduled(lane, message) };
        if self.accepted.insert(id, None).is_none() {
            self.put_row_of_another(id, 0);
        }
    }

    /// Puts something on its way again that has ended.
    pub fn replay(&mut self, which: usize) {
        let candidates: Vec<_> = self.ended.iter().filter(|id| id.trigger == Trigger::Scheduled).copied().collect();
        let Some(id) = candidates.get(which % candidates.len().max(1)).copied() else { return };
        for books in [&mut self.ended, &mut self.delivered, &mut self.buried, &mut self.cancelled] {
            books.remove(&id);
        }
        self.replayed.insert(id);
        self.open.insert(id);
        self.put_row_of_another(id, self.tickets as u32 + 1);
    }

    fn put_row_of_another(&mut self, id: DeliveryId, cycle: u32) {
        let row =
            Row { due: self.now, order: self.accepted[&id], cycle, progress: Progress::default(), queued_at: self.now };
        self.stored.entry(id.endpoint).or_default().put(id, row);
        if let Owner::Node(node) = self.owner(id.endpoint) {
            self.later(node, STORE_TAKES, Pending::News(id.endpoint, self.now));
        }
    }

    pub fn cancel(&mut self, lane: i64, which: Cancel) {
        let endpoint = EndpointKey::new(lane);
        let meant: Vec<DeliveryId> = self
            .accepted
            .keys()
            .filter(|id| id.endpoint == endpoint && id.trigger == Trigger::Scheduled && !self.ended.contains(id))
            .filter(|id| match which {
                Cancel::One(message) => id.message == message,
                Cancel::Before(message) => id.message < message,
            })
            .copied()
            .collect();
        for id in meant {
            self.cancelled.insert(id);
            self.end(id);
        }
        let now = self.now;
        if let Some(dispatcher) = self.holder(endpoint) {
            dispatcher.cancel(endpoint, which, now);
        }
        self.obey();
    }

    pub fn park(&mut self, lane: i64, parked: bool) {
        self.change(lane, |settings| settings.parked = parked);
    }

    pub fn change(&mut self, lane: i64, how: impl FnOnce(&mut LaneSettings)) {
        let endpoint = EndpointKey::new(lane);
        how(self.settings.get_mut(&endpoint).expect("a lane of this world"));
        self.tell_settings(endpoint);
        self.obey();
    }

    fn tell_settings(&mut self, endpoint: EndpointKey) {
        let (settings, now) = (self.settings[&endpoint], self.now);
        let Owner::Node(node) = self.owner(endpoint) else { return };
        let books = self.books.get_mut(&endpoint).expect("a lane of this world");
        let was_paused = books.is_paused();
        books.parked = settings.parked;
        books.condemned = match books.condemned {
            Some(Condemned { written: false, by, .. }) if !settings.parked => {
                Some(Condemned { by, written: false, overruled: true })
            }
            Some(_) | None => None,
        };
        if was_paused && !books.is_paused() {
            books.ramp = ramp(settings);
        }
        self.told.insert(endpoint, settings);
        self.dispatcher_of(node).set_lane(endpoint, settings, now);
    }

    /// A person closes the breaker.
    pub fn reset_health(&mut self, lane: i64) {
        let endpoint = EndpointKey::new(lane);
        self.healths.remove(&endpoint);
        self.tell_health(endpoint, Health::default());
        self.obey();
    }

    pub fn set_health(&mut self, lane: i64, health: Health) {
        let endpoint = EndpointKey::new(lane);
        self.healths.insert(endpoint, health);
        self.tell_health(endpoint, health);
        self.obey();
    }

    fn tell_health(&mut self, endpoint: EndpointKey, health: Health) {
        let (settings, now) = (self.told[&endpoint], self.now);
        let Owner::Node(node) = self.owner(endpoint) else { return };
        let books = self.books.get_mut(&endpoint).expect("a lane of this world");
        let is_tripped = |health: Health| health.breaker.standing(self.now) != Standing::Closed;
        let comes_back = settings.breaker.is_some() && is_tripped(books.health) && !is_tripped(health);
        if comes_back || health.failing_since.is_some() {
            books.ramp = ramp(settings);
        }
        if !is_tripped(health) {
            books.probe = None;
        }
        books.health = health;
        self.dispatcher_of(node).set_health(endpoint, settings, health, now);
    }

    /// All processes die and are started again: what was on the network, in memory or being read is gone.
    pub fn restart(&mut self) {
        self.dispatcher = Dispatcher::new(self.limits);
        self.second = Dispatcher::new(self.limits);
        self.pending.clear();
        self.nodes = Default::default();
        self.on_the_wire.clear();
        self.unsettled.clear();
        for (id, row) in std::mem::take(&mut self.handed) {
            self.stored.entry(id.endpoint).or_default().put(id, Row { due: self.now, ..row });
        }
        for app in self.owners.keys().copied().collect::<Vec<_>>() {
            self.owners.insert(app, Owner::Nobody);
            self.gain(0, app);
        }
        self.obey();
    }

    // What the dispatcher says.

    pub fn obey(&mut self) {
        for node in 0..self.nodes.len() {
            self.obey_one(node);
        }
        self.give_up_quiet();
    }

    fn obey_one(&mut self, node: usize) {
        let (mut steps, now) = (0, self.now);
        while let Some(command) = self.dispatcher_of(node).next(now) {
            steps += 1;
            assert!(steps < 100_000, "the dispatcher goes round in circles");
            match command {
                Command::Send(parcel) => self.send(node, parcel),
                Command::Bury(parcel) => self.bury(node, parcel),
                Command::Spill(spills) => {
                    let is_spill = |work: &Pending| matches!(work, Pending::Spill(_) | Pending::Spilled(_));
                    let under_way = self.pending.values().any(|job| job.node == node && is_spill(&job.work));
                    assert!(!under_way, "one spill at a time");
                    for (id, _) in &spills {
                        assert!(!self.ended.contains(id), "{id:?} spilled after it had ended");
                    }
                    self.later(node, STORE_TAKES, Pending::Spill(spills));
                }
                Command::Load { endpoint, ordering, limit } => {
                    assert_eq!(ordering, self.told[&endpoint].ordering);
                    assert!(limit > 0);
                    assert_eq!(self.owner(endpoint), Owner::Node(node), "it loads what is not its own");
                    let is_load = |work: &Pending| {
                        matches!(work, Pending::Load { endpoint: its, .. } | Pending::Loaded { endpoint: its, .. }
                            if *its == endpoint)
                    };
                    let under_way = self.pending.values().any(|job| job.node == node && is_load(&job.work));
                    assert!(!under_way, "one load of a lane at a time");
                    self.loads += 1;
                    self.later(node, STORE_TAKES, Pending::Load { endpoint, ordering, limit });
                }
            }
        }
        if !self.nodes[node].committing && !self.nodes[node].uncommitted.is_empty() {
            self.nodes[node].committing = true;
            let batch = std::mem::take(&mut self.nodes[node].uncommitted);
            self.later(node, STORE_TAKES, Pending::Commit(batch));
        }
    }

    fn send(&mut self, node: usize, parcel: Parcel<()>) {
        let id = parcel.id;
        assert_eq!(self.owner(id.endpoint), Owner::Node(node), "{id:?} sent by one that does not own its lane");
        let settings = self.told[&id.endpoint];
        let books = self.books[&id.endpoint];
        assert!(!books.is_paused(), "{id:?} sent in a parked lane");
        self.check_begin(id, settings);
        self.on_the_wire.insert(id);
        let in_flight = self.in_flight(id.endpoint);
        assert!(in_flight <= settings.in_flight_max, "{in_flight} requests in one lane");
        assert!(self.dispatcher_of(node).in_flight() <= self.limits.in_flight);
        let standing = match settings.breaker {
            Some(_) => books.health.breaker.standing(self.now),
            None => Standing::Closed,
        };
        let buries = settings.breaker.is_some_and(|rules| rules.while_open == WhileOpen::DeadLetter);
        let is_probe = match standing {
            Standing::Open { .. } if buries && id.trigger == Trigger::Manual => false,
            Standing::Open { until } => panic!("{id:?} sent at {:?}, the breaker is open until {until:?}", self.now),
            Standing::HalfOpen => true,
            Standing::Closed => false,
        };
        if is_probe {
            assert_eq!(books.probe, None, "a second probe");
            self.books.get_mut(&id.endpoint).expect("a lane of this world").probe = Some(id);
        } else if let Some((allowance, _)) = books.ramp {
            assert!(in_flight <= allowance, "{in_flight} requests on a ramp that allows {allowance}");
        }
        let late = self.now.since(parcel.due);
        assert_eq!(parcel.held.map(|held| held.late), (late > Duration::from_secs(1)).then_some(late));
        self.starts.push(Start { at: self.now, id, held: parcel.held, in_flight, is_probe });
        let reply = (self.receiver)(id, self.now, &mut self.rng);
        self.later(node, reply.takes, Pending::Answer(parcel, reply.outcome));
    }

    fn bury(&mut self, node: usize, parcel: Parcel<()>) {
        let id = parcel.id;
        assert_eq!(self.owner(id.endpoint), Owner::Node(node), "{id:?} buried by one that does not own its lane");
        let settings = self.told[&id.endpoint];
        let books = self.books[&id.endpoint];
        assert!(!books.is_paused(), "{id:?} buried in a parked lane");
        assert_eq!(id.trigger, Trigger::Scheduled, "whoever asks for it wants to see it tried");
        self.check_begin(id, settings);
        assert_eq!(settings.breaker.map(|rules| rules.while_open), Some(WhileOpen::DeadLetter));
        assert!(matches!(books.health.breaker.standing(self.now), Standing::Open { .. }), "{id:?} buried for nothing");
        self.later(node, Duration::from_millis(1), Pending::Burial(parcel));
    }

    fn check_begin(&mut self, id: DeliveryId, settings: LaneSettings) {
        assert!(!self.ended.contains(&id), "{id:?} started after it had ended");
        assert!(self.unsettled.insert(id), "{id:?} started while it is under way");
        let Some(chain) = chain(settings.ordering, id, self.accepted[&id]) else { return };
        let same = |other: &DeliveryId| {
            *other != id && chain == chain_or_none(settings.ordering, *other, self.accepted[other])
        };
        let lane = scheduled(id.endpoint.raw(), i64::MIN)..id;
        if let Some(earlier) = self.open.range(lane).find(|other| same(other) && !self.replayed.contains(other)) {
            panic!("{id:?} overtakes {earlier:?}");
        }
        let in_lane = self.unsettled.iter().filter(|other| other.endpoint == id.endpoint);
        assert_eq!(in_lane.filter(|other| same(other)).count(), 0, "two of one key under way");
    }

    pub fn in_flight(&self, endpoint: EndpointKey) -> usize {
        let lane = scheduled(endpoint.raw(), i64::MIN)..scheduled(endpoint.raw() + 1, i64::MIN);
        self.on_the_wire.range(lane).count()
    }

    // What happens next.

    /// Lets one piece of pending work, chosen at random, take its next step.
    pub fn finish_one(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..self.pending.len());
        let key = *self.pending.keys().nth(index).expect("one of them");
        let pending = self.pending.remove(&key).expect("it is there");
        self.take(pending);
    }

    pub fn finish_all(&mut self) {
        while !self.pending.is_empty() {
            self.finish_one();
        }
    }

    pub fn advance(&mut self, millis: u64) {
        self.now = self.now.plus(Duration::from_millis(millis));
        self.obey();
    }

    /// Everything takes its time, up to then.
    pub fn run_until(&mut self, until: Timestamp) {
        loop {
            let work = self.pending.first_key_value().map(|((at, _), _)| *at);
            let wake = self.sleep_until();
            let Some(at) = [work, wake].into_iter().flatten().min().filter(|at| *at <= until) else { break };
            assert!(at > self.now || work.is_some_and(|work| work <= self.now), "asked to sleep until the past");
            self.now = at.max(self.now);
            match work.filter(|work| *work <= self.now) {
                Some(_) => {
                    let (_, pending) = self.pending.pop_first().expect("there is work");
                    self.take(pending);
                }
                None => self.obey(),
            }
        }
        self.now = until.max(self.now);
        self.obey();
    }

    /// Everyone is healthy again: runs until nothing is left to do.
    pub fn settle_down(&mut self) {
        self.receiver = Box::new(|_, _, _| status(200));
        self.load_failures = 0;
        for round in 0..400_000 {
            if !self.pending.is_empty() {
                self.finish_one();
            } else if self.settings.values().any(|settings| settings.parked) {
                for lane in self.settings.keys().map(|endpoint| endpoint.raw()).collect::<Vec<_>>() {
                    self.park(lane, false);
                }
            } else if let Some(at) = self.sleep_until() {
                assert!(at > self.now, "asked to sleep until the past");
                assert!(at.since(self.now) <= Duration::from_secs(1), "nothing in a quick world takes so long");
                self.advance(at.since(self.now).as_millis() as u64);
            } else {
                assert!(round > 0 || self.open.is_empty());
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn sleep_until(&self) -> Option<Timestamp> {
        [&self.dispatcher, &self.second].into_iter().filter_map(Dispatcher::sleep_until).min()
    }

    fn take(&mut self, Job { node, tenure, work }: Job) {
        let now = self.now;
        let is_current = tenure == self.nodes[node].tenure;
        match work {
            Pending::Answer(..) | Pending::Burial(_) if !is_current => self.dispatcher_of(node).lost(),
            Pending::Commit(_) | Pending::Committed(_) if !is_current => self.nodes[node].committing = false,
            Pending::Spill(_) if !is_current => self.dispatcher_of(node).spilled(&[], now),
            Pending::Answer(parcel, outcome) => self.answer(node, parcel, outcome),
            Pending::Burial(parcel) => {
                self.buried.insert(parcel.id);
                assert_eq!(self.dispatcher_of(node).answered(parcel.id, None, now), None);
                self.nodes[node].uncommitted.push(Settlement {
                    id: parcel.id,
                    delivered: false,
                    due: None,
                    row: row_of(&parcel, parcel.progress),
                    health: None,
                    disable: false,
                });
            }
            Pending::Commit(batch) => {
                let told = batch.iter().map(|settlement| (settlement.id, settlement.due)).collect();
                for settlement in batch {
                    self.write(node, settlement);
                }
                self.later(node, STORE_TAKES, Pending::Committed(told));
            }
            Pending::Committed(told) => {
                self.nodes[node].committing = false;
                for (id, due) in told {
                    self.unsettled.remove(&id);
                    self.hear_of(id);
                    self.dispatcher_of(node).settled(id, due, now);
                }
            }
            Pending::Load { endpoint, ordering, limit } => {
                if self.rng.random_range(0..100) < self.load_failures {
                    self.dispatcher_of(node).load_failed(endpoint, now, Duration::from_millis(30));
                } else {
                    let (parcels, rest) = self.read(endpoint, ordering, limit);
                    self.later_of(node, tenure, STORE_TAKES, Pending::Loaded { endpoint, parcels, rest });
                }
            }
            Pending::Loaded { endpoint, parcels, rest } => {
                let parcels = parcels.into_iter().map(|parcel| Parcel { since: self.now, ..parcel }).collect();
                self.dispatcher_of(node).loaded(endpoint, parcels, rest, now);
            }
            Pending::Spill(spills) => {
                for (id, order) in &spills {
                    if let Some(row) = self.handed.remove(id) {
                        assert_eq!(row.order, *order);
                        self.stored.entry(id.endpoint).or_default().put(*id, Row { due: self.now, ..row });
                    } else {
                        let is_known = self.ended.contains(id) || self.replayed.contains(id);
                        assert!(is_known, "{id:?} spilled although it has a row");
                    }
                }
                let ids = spills.into_iter().map(|(id, _)| id).collect();
                self.later(node, STORE_TAKES, Pending::Spilled(ids));
            }
            Pending::Spilled(ids) => self.dispatcher_of(node).spilled(&ids, now),
            Pending::News(endpoint, due) => {
                if self.owner(endpoint) == Owner::Node(node) {
                    let settings = self.told[&endpoint];
                    self.dispatcher_of(node).expect(endpoint, settings, due, now);
                }
            }
            Pending::Settings(endpoint) => self.tell_settings(endpoint),
            Pending::Gain(app) => self.gain(node, app),
        }
        self.obey();
    }

    fn answer(&mut self, node: usize, parcel: Parcel<()>, outcome: Option<Outcome>) {
        let (id, now) = (parcel.id, self.now);
        self.on_the_wire.remove(&id);
        let verdict = outcome.map(|outcome| self.judge(&parcel, &outcome));
        let step = self.dispatcher_of(node).answered(id, verdict.as_ref(), now);

        let books = self.books.get_mut(&id.endpoint).expect("a lane of this world");
        if books.probe == Some(id) {
            books.probe = None;
        }
        let in_flight_max = self.told[&id.endpoint].in_flight_max;
        if let Some(verdict) = &verdict {
            books.ramp = books.ramp.and_then(|ramp| climbed(ramp, verdict)).filter(|ramp| ramp.0 < in_flight_max);
        }
        let mut disable = false;
        if let Some(step) = step {
            books.health = step.health;
            if step.breaker == Some(BreakerMove::Closed) {
                books.ramp = ramp(self.told[&id.endpoint]);
            }
            disable = matches!(step.notice, Some(Notice::Disable(_)));
            if disable {
                books.condemned = Some(Condemned { by: id, written: false, overruled: false });
            }
        }
        let delivered = verdict.as_ref().is_some_and(|verdict| verdict.next == Next::Delivered);
        let (due, progress) = match verdict.map(|verdict| (verdict.next, verdict.progress)) {
            None => (Some(self.now.plus(Duration::from_millis(500))), parcel.progress),
            Some((Next::Delivered, progress)) => {
                self.delivered.insert(id);
                (None, progress)
            }
            Some((Next::Retry { due, .. } | Next::Postponed { due }, progress)) => (Some(due), progress),
            Some((Next::Dead(_) | Next::Nothing, progress)) => (None, progress),
        };
        let row = row_of(&parcel, progress);
        let health = step.map(|step| step.health);
        self.nodes[node].uncommitted.push(Settlement { id, delivered, due, row, health, disable });
    }

    fn hear_of(&mut self, id: DeliveryId) {
        let settings = self.told[&id.endpoint];
        let books = self.books.get_mut(&id.endpoint).expect("a lane of this world");
        if let Some(condemned) = books.condemned.as_mut().filter(|condemned| condemned.by == id) {
            condemned.written = true;
            if condemned.overruled {
                books.condemned = None;
                if !books.is_paused() {
                    books.ramp = ramp(settings);
                }
            }
        }
    }

    fn judge(&mut self, parcel: &Parcel<()>, outcome: &Outcome) -> Verdict {
        let times = (self.now, self.now);
        let verdict = judge(&self.policy, parcel.id.trigger, parcel.progress, outcome, times, &mut self.rng);
        let soon = self.now.plus(Duration::from_millis(self.rng.random_range(1..200)));
        let next = match (self.schedule, verdict.next) {
            (Schedule::Quick, Next::Retry { delay, .. }) => Next::Retry { due: soon, delay },
            (Schedule::Quick, Next::Postponed { .. }) => Next::Postponed { due: soon },
            (Schedule::Quick | Schedule::Real, next) => next,
        };
        Verdict { next, ..verdict }
    }

    fn write(&mut self, node: usize, settlement: Settlement) {
        let Settlement { id, delivered, due, row, health, disable } = settlement;
        // What was cancelled meanwhile stays ended.
        let is_replayed =
            self.stored.get(&id.endpoint).and_then(|lane| lane.rows.get(&id)).is_some_and(|now| now.cycle > row.cycle);
        if !self.ended.contains(&id) && !is_replayed {
            match due {
                Some(due) => {
                    self.handed.remove(&id);
                    self.stored.entry(id.endpoint).or_default().put(id, Row { due, ..row });
                }
                None => self.end(id),
            }
        }
        if delivered && id.trigger == Trigger::Manual {
            self.end_schedule(DeliveryId { trigger: Trigger::Scheduled, ..id });
        }
        match health {
            Some(health) if health == Health::default() => {
                self.healths.remove(&id.endpoint);
            }
            Some(health) => {
                self.healths.insert(id.endpoint, health);
            }
            None => {}
        }
        if disable {
            self.settings.get_mut(&id.endpoint).expect("a lane of this world").parked = true;
            self.later(node, STORE_TAKES * 2, Pending::Settings(id.endpoint));
        }
    }

    /// A resend arrived: there is no need for the delivery's own tries any more.
    fn end_schedule(&mut self, id: DeliveryId) {
        if self.accepted.contains_key(&id) && !self.ended.contains(&id) {
            self.delivered.insert(id);
            self.end(id);
            let now = self.now;
            if let Some(dispatcher) = self.holder(id.endpoint) {
                dispatcher.cancel(id.endpoint, Cancel::One(id.message), now);
            }
        }
    }

    fn end(&mut self, id: DeliveryId) {
        self.handed.remove(&id);
        self.stored.entry(id.endpoint).or_default().remove(id);
        self.open.remove(&id);
        self.ended.insert(id);
    }

    /// What the store finds: of each chain a run from its first row, as far as it is due.
    fn read(&self, endpoint: EndpointKey, ordering: Ordering, limit: usize) -> (Vec<Parcel<()>>, Rest) {
        let Some(lane) = self.stored.get(&endpoint) else { return (Vec::new(), Rest::default()) };
        let found: Vec<(Timestamp, DeliveryId)>;
        let rest;
        if ordering == Ordering::None {
            let due = lane.by_due.range(..=(self.now, LAST));
            let next_due = lane.by_due.range((self.now.plus(Duration::from_millis(1)), FIRST)..).next();
            found = due.take(limit.saturating_add(1)).copied().collect();
            rest = Rest { more: found.len() > limit, next_due: next_due.map(|(at, _)| *at), blocked: false };
        } else {
            let (mut due, mut next_due, mut blocked) = (Vec::new(), None, false);
            let mut chains: BTreeMap<Option<i64>, Vec<DeliveryId>> = BTreeMap::new();
            for (id, row) in &lane.rows {
                chains.entry(chain(ordering, *id, row.order)).or_default().push(*id);
            }
            for (chain, ids) in chains {
                // A row counts as due no sooner than those before it, so that a run is cut only at its end.
                let (mut since, mut run) = (Timestamp::from_millis(i64::MIN), 0);
                for (place, id) in ids.iter().enumerate() {
                    let at = lane.rows[id].due;
                    if chain.is_none() || (run == place && run < self.run_max && at <= self.now) || place == 0 {
                        if at > self.now {
                            next_due = next_due.into_iter().chain([at]).min();
                        } else {
                            since = if chain.is_none() { at } else { at.max(since) };
                            due.push((chain.is_some() && run > 0, since, *id));
                            run += 1;
                        }
                    } else {
                        blocked = true;
                    }
                }
            }
            // Who waits for nobody goes before those who follow.
            due.sort();
            rest = Rest { more: due.len() > limit, next_due, blocked };
            due.truncate(limit);
            let mut chosen: Vec<_> = due.into_iter().map(|(_, since, id)| (since, id)).collect();
            chosen.sort();
            found = chosen;
        }
        let parcels =
            found.into_iter().take(limit).map(|(_, id)| parcel(id, &lane.rows[&id], false, self.now)).collect();
        (parcels, rest)
    }

    fn later(&mut self, node: usize, takes: Duration, work: Pending) {
        self.later_of(node, self.nodes[node].tenure, takes, work);
    }

    fn later_of(&mut self, node: usize, tenure: u32, takes: Duration, work: Pending) {
        self.tickets += 1;
        self.pending.insert((self.now.plus(takes), self.tickets), Job { node, tenure, work });
    }

    // What is asked of it.

    pub fn rows(&self) -> usize {
        self.stored.values().map(|lane| lane.rows.len()).sum()
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn spills_under_way(&self) -> usize {
        let spilled = |pending: &Pending| match pending {
            Pending::Spill(spills) => spills.len(),
            Pending::Spilled(ids) => ids.len(),
            Pending::Answer(..)
            | Pending::Burial(_)
            | Pending::Commit(_)
            | Pending::Committed(_)
            | Pending::Load { .. }
            | Pending::Loaded { .. }
            | Pending::News(..)
            | Pending::Settings(_)
            | Pending::Gain(_) => 0,
        };
        self.pending.values().map(|job| spilled(&job.work)).sum()
    }

    pub fn only_requests_are_under_way(&self) -> bool {
        self.pending.values().all(|job| matches!(job.work, Pending::Answer(..)))
    }

    pub fn messages_sent(&self, lane: i64) -> Vec<i64> {
        let sent = self.starts.iter().filter(|start| start.id.endpoint == EndpointKey::new(lane));
        sent.map(|start| start.id.message.raw()).collect()
    }

    pub fn books_of(&self, lane: i64) -> Health {
        self.books[&EndpointKey::new(lane)].health
    }

    /// In every window, at most a second's worth more than the rate, whoever died or took over meanwhile.
    pub fn check_rates(&self) {
        let mut by_lane: BTreeMap<EndpointKey, Vec<i64>> = BTreeMap::new();
        let mut by_app: BTreeMap<AppKey, Vec<i64>> = BTreeMap::new();
        for start in &self.starts {
            let at = start.at.as_millis();
            by_lane.entry(start.id.endpoint).or_default().push(at);
            by_app.entry(self.settings[&start.id.endpoint].app).or_default().push(at);
        }
        for (endpoint, starts) in by_lane {
            check_rate(self.settings[&endpoint].rate, &starts);
        }
        for (app, starts) in by_app {
            let mut lanes = self.settings.values();
            check_rate(lanes.find(|lane| lane.app == app).and_then(|lane| lane.app_rate), &starts);
        }
    }
}

fn check_rate(rate: Option<u32>, starts: &[i64]) {
    let Some(rate) = rate.map(i64::from) else { return };
    // What a window holds beyond its rate, in thousandths: the greatest over all windows that end at each start.
    let mut least = i64::MAX;
    for (count, at) in (0..).zip(starts) {
        let before = count * 1_000 - rate * at;
        least = least.min(before);
        let beyond = before + 1_000 - least;
        assert!(beyond <= (rate + 1) * 1_000 + 999, "a window with {beyond} thousandths beyond a rate of {rate}");
    }
}

fn climbed((allowance, successes): (usize, usize), verdict: &Verdict) -> Option<(usize, usize)> {
    Some(match (verdict.class, verdict.rule) {
        (Class::Delivered, _) if successes + 1 >= allowance => (allowance * 2, 0),
        (Class::Delivered, _) => (allowance, successes + 1),
        (Class::Permanent | Class::Gone, _) | (_, Rule::LocalResource) => (allowance, successes),
        (Class::Transient | Class::Ambiguous, _) => ((allowance / 2).max(1), 0),
    })
}

const FIRST: DeliveryId = DeliveryId {
    endpoint: EndpointKey::new(i64::MIN),
    message: MessageKey::new(i64::MIN),
    trigger: Trigger::Scheduled,
};

const LAST: DeliveryId =
    DeliveryId { endpoint: EndpointKey::new(i64::MAX), message: MessageKey::new(i64::MAX), trigger: Trigger::Manual };

pub fn scheduled(lane: i64, message: i64) -> DeliveryId {
    DeliveryId { endpoint: EndpointKey::new(lane), message: MessageKey::new(message), trigger: Trigger::Scheduled }
}

/// What must wait for what: by its number, those with the same one.
fn chain(ordering: Ordering, id: DeliveryId, order: Option<OrderKey>) -> Option<i64> {
    match (id.trigger, ordering) {
        (Trigger::Manual, _) | (_, Ordering::None) => None,
        (Trigger::Scheduled, Ordering::Keyed) => order.map(OrderKey::raw),
        (Trigger::Scheduled, Ordering::Fifo) => Some(0),
    }
}

fn chain_or_none(ordering: Ordering, id: DeliveryId, order: Option<OrderKey>) -> i64 {
    chain(ordering, id, order).unwrap_or(i64::MIN)
}

fn row_of(parcel: &Parcel<()>, progress: Progress) -> Row {
    Row { due: parcel.due, order: parcel.order, cycle: parcel.cycle, progress, queued_at: parcel.queued_at }
}

fn parcel(id: DeliveryId, row: &Row, handed: bool, since: Timestamp) -> Parcel<()> {
    Parcel {
        id,
        cycle: row.cycle,
        progress: row.progress,
        queued_at: row.queued_at,
        due: row.due,
        order: row.order,
        held: None,
        theirs: Duration::ZERO,
        handed,
        since,
        weight: 1_000,
        cargo: (),
    }
}
