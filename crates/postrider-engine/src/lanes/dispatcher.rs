//! Many lanes and one question: what shall be done next?
//!
//! The shell tells the dispatcher what happened and then asks for commands until there are none. Lanes that have
//! something to send stand in a queue and take turns, one request each, so that a flooded lane delays nobody.
//! No step costs more for a lane that has more waiting in it.

use super::{
    gate::Gate,
    lane::{LAG_PARTS, Lane, LaneSettings, Ledger, Timer, Wanted},
    late::{Elsewhere, Span},
    pace::Pace,
    parcel::Parcel,
    stored::{FixedHash, earliest},
    turns::Turns,
};
use crate::{
    keys::{AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Trigger},
    planted::{Bug, planted},
    policy::{Health, Ordering, Standing, Verdict, health::Step},
    time::Timestamp,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::Duration,
};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deliveries that one lane keeps ready in memory.
    pub window: usize,
    /// What is handed over to a lane that gets on may stand beyond its window: as much as it sends in a second, and no more
    /// than so many.
    pub beyond: usize,
    /// What may stand ready in all lanes together before they lag. Each counts for no more than it sends in an eighth of a
    /// second, and than half of this.
    pub ready: usize,
    /// What all lanes together keep in memory, in bytes.
    pub bytes: usize,
    /// What one lane loads into memory, in bytes.
    pub lane_bytes: usize,
    /// Loads under way at the same time.
    pub loads: usize,
    /// Requests and unwritten outcomes of one lane: what a crash can make it repeat.
    pub unsettled: usize,
    /// Requests of all lanes on the network. The fewer of these slots are free, the fewer may one lane take: so lanes that
    /// hang, however many, leave some for the others.
    pub in_flight: usize,
    /// A handed-over delivery that has stood so long without being sent is given a row.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 1_024,
            beyond: 4_096,
            ready: 2_048,
            bytes: 64 * 1024 * 1024,
            lane_bytes: 2 * 1024 * 1024,
            loads: 4,
            unsettled: 64,
            in_flight: 8_192,
            patience: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// How many requests one lane may have on the network while all of them have so many.
    fn share(&self, in_flight: usize) -> usize {
        // While none is free, a lane may stand in the queue for the next one.
        let free = self.in_flight.saturating_sub(in_flight).max(1);
        (free * SHARES_OF_UNSETTLED * self.unsettled / self.in_flight.max(1)).max(1)
    }

    /// A lane with so many ready loads no more, so that half a window is kept: it does not run dry while it is loaded.
    fn low_water(&self) -> usize {
        (self.window / 2).max(1)
    }

    /// What a load brings into a lane at most. Where keys hold deliveries back it is less than what keeps the lane from
    /// loading: all of it may wait for one key, and others must find room.
    fn load_max(&self, ordering: Ordering) -> usize {
        match ordering {
            Ordering::None | Ordering::Fifo => self.window,
            Ordering::Keyed => self.low_water() - 1,
        }
    }
}

/// Of the slots that are free one lane may have so many times the part that its `unsettled` is of all slots: one in 32 as
/// the server's limits are. Then 900 lanes that hang leave 280 free, and each other one may have eight of these.
const SHARES_OF_UNSETTLED: usize = 4;

/// Memory is shared by all lanes, so none of them is told when another one frees some.
const MEMORY_RECHECK: Duration = Duration::from_millis(50);

/// What others wait for is known to the lane, unless someone else took it out of the store: so they are looked for.
const BLOCKED_RECHECK: Duration = Duration::from_secs(5);

/// Rows that are asked for at once: what else is to be written waits for them.
const SPILLED_AT_ONCE: usize = 2_048;

/// What a lane may load when memory is short: enough to go on, too little to matter.
const SCANT_WINDOW: usize = 16;

/// The part of the window that deliveries of one ordering key may take: they wait for one another, and must not fill
/// the window while others could go.
const CHAIN_SHARE: usize = 16;

#[derive(Debug)]
pub enum Command<C> {
    Send(Parcel<C>),
    /// End this one without a request: its turn came while the breaker was open. Answer as to `Send`, without a
    /// verdict. A resend may be among them.
    Bury(Parcel<C>),
    /// Read what is due in this lane and has nothing before it by this order but what is read along with it, and that only
    /// where those who wait for nobody leave room; answer with `loaded` or `load_failed`.
    Load {
        endpoint: EndpointKey,
        ordering: Ordering,
        limit: usize,
    },
    /// Write rows for these, due at once; answer with `spilled`. There is never more than one under way, so that what
    /// is spilled later is never there earlier.
    Spill(Vec<(DeliveryId, Option<OrderKey>)>),
}

/// What a load left in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// There is more that is due.
    pub more: bool,
    /// When the earliest of those will be due that are not, and wait for nothing else.
    pub next_due: Option<Timestamp>,
    /// There are rows that wait behind an earlier one of their key (or of the FIFO lane) and are not counted above.
    pub blocked: bool,
}

/// Which deliveries of a lane were ended by a person, or by a resend that arrived. Resends are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    One(MessageKey),
    /// All messages with a key below this one.
    Before(MessageKey),
}

impl Cancel {
    pub(super) fn means(self, id: DeliveryId) -> bool {
        let is_meant = match self {
            Self::One(message) => id.message == message,
            Self::Before(message) => id.message < message,
        };
        is_meant && id.trigger == Trigger::Scheduled
    }
}

#[derive(Debug)]
pub struct Dispatcher<C> {
    limits: Limits,
    lanes: HashMap<EndpointKey, Lane<C>, FixedHash>,
    turns: Turns,
    /// Lanes that want to be loaded.
    loads: VecDeque<EndpointKey>,
    loading: usize,
    /// Loads under way whose lanes were dropped. What they bring is not for a lane that has come back since.
    stray_loads: BTreeSet<EndpointKey>,
    timers: BTreeSet<(Timer, EndpointKey)>,
    tickets: u64,
    ledger: Ledger,
    spilling: bool,
    in_flight: usize,
    /// When all of our own slots were last taken.
    full: Span,
    swept: Timestamp,
    /// What was answered.
    pace: Pace,
    may_start: bool,
    gained_at: Option<Timestamp>,
}

impl<C> Dispatcher<C> {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            lanes: HashMap::default(),
            turns: Turns::default(),
            loads: VecDeque::new(),
            loading: 0,
            stray_loads: BTreeSet::new(),
            timers: BTreeSet::new(),
            tickets: 0,
            ledger: Ledger::default(),
            spilling: false,
            in_flight: 0,
            full: Span::default(),
            swept: Timestamp::default(),
            pace: Pace::default(),
            may_start: true,
            gained_at: None,
        }
    }

    /// Whether anything may be started. What else there is to do goes on.
    pub fn let_start(&mut self, may_start: bool) {
        self.may_start = may_start;
    }

    /// Lanes that are opened from now on may have been someone else's until now, and what he used up of their rates is not
    /// known. So their buckets start empty: a take-over costs a lane less than a second, and never brings a receiver more
    /// than its rate and one burst. It holds for lanes that were this dispatcher's all along, too; for them it is the
    /// price of knowing nothing of each lane that is not open.
    pub fn gain(&mut self, now: Timestamp) {
        if !planted(Bug::RateRefilled) {
            self.gained_at = self.gained_at.max(Some(now));
        }
    }

    /// The clock says less than it did. What is counted from a moment that has not come yet is counted from now: nothing is
    /// to wait for as long as the clock went back, but what has a due time of its own.
    pub fn set_back(&mut self, now: Timestamp) {
        self.swept = self.swept.min(now);
        self.pace.set_back(now);
        self.gained_at = self.gained_at.map(|at| at.min(now));
        self.turns.set_back(now);
        for endpoint in self.lanes_that(|_| true) {
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                lane.set_back(now);
            }
            self.review(endpoint, now);
        }
    }

    /// The lanes of these applications are wanted elsewhere. They start and load nothing any more, and keep nothing that
    /// is not under way. Others of these applications must not be opened before `forget`.
    pub fn release(&mut self, apps: impl Fn(AppKey) -> bool, now: Timestamp) {
        for endpoint in self.lanes_that(apps) {
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                lane.leave(&mut self.ledger, now);
            }
            self.review(endpoint, now);
        }
    }

    /// Applications of which something is in memory, on the network, or being written or read; each as often as it has
    /// such lanes. What they have in the store is not counted.
    pub fn busy_apps(&self) -> impl Iterator<Item = AppKey> + '_ {
        self.lanes.values().filter(|lane| !lane.is_quiet()).map(|lane| lane.settings.app)
    }

    /// Drops the lanes of these applications with all they hold. Of requests under way `lost` is to be told, and of loads
    /// and spills what is always told of them; it is ignored, even if the lane has come back by then.
    pub fn forget(&mut self, apps: impl Fn(AppKey) -> bool) {
        for endpoint in self.lanes_that(&apps) {
            let Some(lane) = self.lanes.remove(&endpoint) else { continue };
            self.ledger.ready -= lane.ready;
            self.ledger.bytes -= lane.bytes();
            self.ledger.handed -= lane.line.handed();
            if let Some(timer) = lane.timer {
                self.timers.remove(&(timer, endpoint));
            }
            if lane.stored.loading.is_some_and(|loading| loading.begun) {
                self.stray_loads.insert(endpoint);
            }
        }
        let lanes = &self.lanes;
        self.ledger.spills.retain(|(id, _)| lanes.contains_key(&id.endpoint));
        self.loads.retain(|endpoint| lanes.contains_key(endpoint));
        self.turns.forget(apps);
    }

    /// All lanes are someone else's, whatever they hold.
    pub fn depose(&mut self) {
        self.forget(|_| true);
    }

    /// A request has ended whose lane was dropped meanwhile.
    pub fn lost(&mut self) {
        self.in_flight -= 1;
    }

    /// Opens a lane, or changes how an open one works.
    pub fn set_lane(&mut self, endpoint: EndpointKey, settings: LaneSettings, now: Timestamp) {
        self.open(endpoint, settings);
        // A deleted endpoint's settings are made up, and must not change the limit for the others.
        if !settings.gone {
            self.turns.set_rate(settings.app, settings.app_rate, self.gained_at);
        }
        if let Some(lane) = self.lanes.get_mut(&endpoint) {
            lane.change(settings, &mut self.ledger, now);
        }
        self.review(endpoint, now);
    }

    /// How the endpoint fares, as it was stored: at start, before anything is handed over, and when a person sets it
    /// back. `settings` are for a lane that is not open yet.
    pub fn set_health(&mut self, endpoint: EndpointKey, settings: LaneSettings, health: Health, now: Timestamp) {
        self.open(endpoint, settings);
        if let Some(lane) = self.lanes.get_mut(&endpoint) {
            lane.set_health(health, &mut self.ledger, now);
        }
        self.review(endpoint, now);
    }

    /// How an endpoint fares. One whose lane is not open is well.
    pub fn health(&self, endpoint: EndpointKey) -> Health {
        self.lanes.get(&endpoint).map(|lane| lane.watch.health).unwrap_or_default()
    }

    /// Lanes in which nothing more is sent just now, and not for want of anything of ours: they are paused, their breaker is
    /// not closed, they have as many requests as they may have, or are at a rate. And how their breakers stand.
    pub fn held_lanes(&self, now: Timestamp) -> Vec<(EndpointKey, Standing)> {
        let stands = self.lanes.iter().map(|(endpoint, lane)| {
            let standing = match lane.settings.breaker {
                Some(_) => lane.watch.health.breaker.standing(now),
                None => Standing::Closed,
            };
            let gate = lane.gate(now);
            let is_held = gate != Gate::Open
                || standing != Standing::Closed
                || lane.is_busy()
                || lane.rate_bound(gate, now).is_some()
                || self.turns.is_rated(lane.settings.app);
            (*endpoint, standing, is_held)
        });
        stands.filter(|(_, _, is_held)| *is_held).map(|(endpoint, standing, _)| (endpoint, standing)).collect()
    }

    /// The lanes of one application that are open.
    pub fn lanes_of(&self, app: AppKey) -> Vec<EndpointKey> {
        self.lanes_that(|its| its == app)
    }

    /// What a lane goes by, if it is open.
    pub fn settings_of(&self, endpoint: EndpointKey) -> Option<LaneSettings> {
        self.lanes.get(&endpoint).map(|lane| lane.settings)
    }

    fn lanes_that(&self, apps: impl Fn(AppKey) -> bool) -> Vec<EndpointKey> {
        self.lanes.iter().filter(|(_, lane)| apps(lane.settings.app)).map(|(endpoint, _)| *endpoint).collect()
    }

    fn open(&mut self, endpoint: EndpointKey, settings: LaneSettings) -> &mut Lane<C> {
        // A lane whose settings are not known yet is opened parked: they must not lift the application's limit.
        if !settings.parked && !settings.gone && !self.lanes.contains_key(&endpoint) {
            self.turns.set_rate(settings.app, settings.app_rate, self.gained_at);
        }
        self.lanes.entry(endpoint).or_insert_with(|| Lane::new(settings, self.gained_at))
    }

    /// A delivery that was just committed. It is kept if there is room, and given a row if there is not.
    /// `settings` are for a lane that is not open yet.
    ///
    /// After a start, what waits in the store must have been announced (`expect`) before anything is handed over:
    /// a lane that does not know of its rows would send what is new before them.
    pub fn hand_over(&mut self, parcel: Parcel<C>, settings: LaneSettings, now: Timestamp) {
        let endpoint = parcel.id.endpoint;
        self.open(endpoint, settings);
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        // What it will have sent in about a second, as long as that leaves memory for the others.
        let beyond = match self.ledger.bytes < self.limits.bytes / 2 {
            true => lane.pace.per_second(now).min(self.limits.beyond),
            false => 0,
        };
        let has_room =
            lane.line.len() < self.limits.window + beyond && self.ledger.bytes + parcel.weight <= self.limits.bytes;
        let is_next = match lane.line.chain_of(parcel.id, parcel.order) {
            None => !lane.stored.has_backlog(now),
            // Any row may be one that it must wait for.
            Some(chain) => {
                let share = match lane.settings.ordering {
                    Ordering::Fifo | Ordering::None => self.limits.window,
                    Ordering::Keyed => (self.limits.window / CHAIN_SHARE).max(1),
                };
                let is_first = lane.stored.is_empty() || planted(Bug::OvertakenAfterCrash);
                is_first && lane.line.behind(chain) < share
            }
        };
        match lane.gate(now) {
            Gate::Bury | Gate::Probe | Gate::Open if has_room && is_next => lane.hold(parcel, &mut self.ledger),
            Gate::Shut { .. } if planted(Bug::HandedToShutLaneDropped) => return,
            Gate::Shut { .. } | Gate::Bury | Gate::Probe | Gate::Open => {
                lane.spill(parcel.id, parcel.order, &mut self.ledger);
                return;
            }
        }
        self.review(endpoint, now);
    }

    /// A row of this lane, written by someone else, falls due at `due`.
    pub fn expect(&mut self, endpoint: EndpointKey, settings: LaneSettings, due: Timestamp, now: Timestamp) {
        self.open(endpoint, settings).stored.expect(due);
        self.review(endpoint, now);
    }

    /// The rows for spilled deliveries are written.
    pub fn spilled(&mut self, deliveries: &[DeliveryId], now: Timestamp) {
        self.spilling = false;
        for id in deliveries {
            if let Some(lane) = self.lanes.get_mut(&id.endpoint) {
                lane.stored.spilled(*id, lane.settings.ordering, now);
            }
        }
        for id in deliveries {
            self.review(id.endpoint, now);
        }
    }

    /// What a load found.
    pub fn loaded(&mut self, endpoint: EndpointKey, parcels: Vec<Parcel<C>>, rest: Rest, now: Timestamp) {
        if self.end_load(endpoint) {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let Some(loading) = lane.stored.loading.take() else { return };
        match lane.gate(now) {
            Gate::Bury | Gate::Probe | Gate::Open if !loading.void => {}
            Gate::Shut { .. } | Gate::Bury | Gate::Probe | Gate::Open => {
                let pause = if planted(Bug::ShutLaneLoaded) { MEMORY_RECHECK } else { Duration::ZERO };
                lane.stored.next_due = Some(now.plus(pause));
                self.review(endpoint, now);
                return;
            }
        }
        let (mut is_news, mut waits_for_a_spill, mut blocked) = (false, false, rest.blocked || lane.stored.blocked);
        let is_keyed = lane.settings.ordering == Ordering::Keyed;
        let mut came: BTreeSet<OrderKey> = BTreeSet::new();
        let mut with_followers = false;
        // The last message that came of each chain into which something was put before others.
        let mut inserted: BTreeMap<OrderKey, MessageKey> = BTreeMap::new();
        for parcel in parcels {
            if loading.is_outdated(parcel.id, parcel.cycle) {
                continue;
            }
            let is_new = !lane.recognizes(&parcel);
            if let Some(chain) = lane.line.chain_of(parcel.id, parcel.order) {
                let is_spilled_past = lane.stored.spilling.precedes(chain, parcel.id.message);
                waits_for_a_spill |= is_spilled_past;
                with_followers |= is_keyed && !came.insert(chain);
                let finds_no_room = is_keyed
                    && is_new
                    && lane.line.len() >= self.limits.load_max(Ordering::Keyed)
                    && lane.line.is_at_the_end(chain, parcel.id.message);
                if is_spilled_past || finds_no_room || loading.is_preceded(chain, parcel.id.message) {
                    blocked = true;
                    continue;
                }
                if (is_new && lane.line.behind(chain) > 0) || inserted.contains_key(&chain) {
                    inserted.insert(chain, parcel.id.message);
                }
            }
            if is_new {
                is_news = true;
                lane.hold(parcel, &mut self.ledger);
            }
        }
        // Once there are followers among them, all that is left follows others of its key: it is asked for when what came of
        // its key has gone.
        let more = rest.more && !with_followers;
        blocked |= rest.more && with_followers;
        lane.stored.blocked = blocked;
        lane.stored.refill_at = lane.line.len() / 2;
        lane.spans.order.set(blocked, now);
        if rest != Rest::default() || blocked {
            // Something in the store may belong between what came and what was there before.
            for (chain, last) in inserted {
                let leaving = lane.line.take_behind(chain, last);
                lane.let_go(leaving, Wanted::AtOnce, &mut self.ledger, now);
            }
        }
        // When all that came must wait for rows being written, there is no use in asking again before they are.
        let at_once = (more && (is_news || !waits_for_a_spill)) || (lane.stored.blocked && loading.freed);
        let found = if at_once { Some(now) } else { rest.next_due };
        lane.stored.next_due = earliest(lane.stored.next_due, found);
        self.review(endpoint, now);
    }

    /// A load did not succeed: it is tried again after a while.
    pub fn load_failed(&mut self, endpoint: EndpointKey, now: Timestamp, again: Duration) {
        if self.end_load(endpoint) {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&endpoint) {
            lane.stored.fail_load(now.plus(again));
            self.review(endpoint, now);
        }
    }

    /// True if it was a load of a lane that has been dropped since.
    fn end_load(&mut self, endpoint: EndpointKey) -> bool {
        self.loading -= 1;
        let is_stray = self.stray_loads.remove(&endpoint);
        // The lane that came back may have waited for this.
        let wants_one = self.lanes.get(&endpoint).is_some_and(|lane| lane.stored.loading.is_some());
        if is_stray && wants_one && !self.loads.contains(&endpoint) {
            self.loads.push_back(endpoint);
        }
        is_stray
    }

    /// A request has ended; what it means is being written down. Without a verdict nothing was learned of the
    /// endpoint. What comes back is to be written down along with it, and outcomes in the order in which they were told.
    ///
    /// When the endpoint is to be disabled, its lane is shut from now on, until `set_lane` says otherwise. Settings that
    /// come before `settled` may not know of it, and count only from then on.
    pub fn answered(&mut self, id: DeliveryId, verdict: Option<&Verdict>, now: Timestamp) -> Option<Step> {
        self.in_flight -= 1;
        if verdict.is_some() {
            self.pace.step(now);
        }
        let lane = self.lanes.get_mut(&id.endpoint)?;
        let step = lane.answered(id, verdict, &mut self.ledger, now);
        self.review(id.endpoint, now);
        step
    }

    /// The same, where nothing was sent: it counts against no rate. Much that has expired would use up all of it.
    pub fn unsent(&mut self, id: DeliveryId, now: Timestamp) {
        if let Some(lane) = self.lanes.get_mut(&id.endpoint)
            && let Some(started_at) = lane.give_back(id)
        {
            self.turns.give_back(lane.settings.app, started_at);
        }
        self.answered(id, None, now);
    }

    /// The settlement is durable. With `due`, the delivery waits in the store until then.
    pub fn settled(&mut self, id: DeliveryId, due: Option<Timestamp>, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&id.endpoint) else { return };
        lane.settled(id, due, &mut self.ledger, now);
        self.review(id.endpoint, now);
    }

    /// These deliveries were ended, durably, by someone else. What is on the network goes on.
    pub fn cancel(&mut self, endpoint: EndpointKey, which: Cancel, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        if !planted(Bug::CancelIgnored) {
            let ended = lane.line.cancel(which);
            lane.drop_ended(ended, &mut self.ledger);
        }
        lane.note_ended_under_way(which);
        let ordering = lane.settings.ordering;
        self.ledger.spills.retain(|(id, _)| {
            let is_meant = id.endpoint == endpoint && which.means(*id);
            if is_meant {
                lane.stored.spilling.remove(*id, ordering);
            }
            !is_meant
        });
        if let Some(loading) = &mut lane.stored.loading {
            loading.cancel(which, |message| DeliveryId { endpoint, message, trigger: Trigger::Scheduled });
        }
        match ordering {
            Ordering::None => {}
            // A lane that has not been read since the start does not know whether others wait behind what was ended.
            Ordering::Keyed | Ordering::Fifo if lane.stored.next_due.is_some() => lane.stored.expect(now),
            Ordering::Keyed | Ordering::Fifo => {}
        }
        lane.stored.unblock(now);
        self.review(endpoint, now);
    }

    /// What to do next, at once. `None`: nothing before `sleep_until` or before something happens.
    pub fn next(&mut self, now: Timestamp) -> Option<Command<C>> {
        self.wake_due(now);
        self.sweep(now);
        self.next_start(now).or_else(|| self.next_load(now)).or_else(|| self.next_spill())
    }

    pub fn sleep_until(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(timer, _)| timer.at);
        let sweep = (self.ledger.handed > 0).then(|| self.swept.plus(self.limits.patience));
        // While all slots are taken or nothing may start, an application whose turn comes has none.
        let turn = self.turns.wake_at().filter(|_| self.may_start && self.in_flight < self.limits.in_flight);
        earliest(earliest(timer, sweep), turn)
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether too much stands ready in lanes that get on: then it is not an endpoint that is slow, but we are.
    pub fn lags(&self, now: Timestamp) -> bool {
        // What was counted of lanes of which nothing was heard since may be no longer so.
        let sends_so_much = self.pace.per_second(now) > LAG_PARTS * self.limits.ready;
        self.ledger.ready > self.limits.ready && sends_so_much
    }

    /// Deliveries in memory, on the network or being written down.
    pub fn held(&self) -> usize {
        self.lanes.values().map(Lane::held).sum()
    }

    fn next_start(&mut self, now: Timestamp) -> Option<Command<C>> {
        while self.may_start && self.in_flight < self.limits.in_flight {
            let endpoint = self.turns.next(now)?;
            let Some(lane) = self.lanes.get_mut(&endpoint) else { continue };
            lane.queued = false;
            let gate = lane.gate(now);
            let app = lane.settings.app;
            let share = self.limits.share(self.in_flight);
            let may_start = lane.has_free_slot(gate, &self.limits, share) && lane.rate_bound(gate, now).is_none();
            let elsewhere = Elsewhere { app_rate: self.turns.rated(app), slots: self.full };
            let parcel = if may_start { lane.start(gate, elsewhere, &mut self.ledger, now) } else { None };
            if parcel.is_some() {
                self.in_flight += 1;
                self.full.end(now);
            }
            self.review(endpoint, now);
            let Some(parcel) = parcel else { continue };
            return Some(match gate {
                Gate::Bury => Command::Bury(parcel),
                Gate::Shut { .. } | Gate::Probe | Gate::Open => {
                    if !planted(Bug::AppRateNotSpent) {
                        self.turns.spend(app, now);
                    }
                    Command::Send(parcel)
                }
            });
        }
        if self.may_start && self.turns.are_waiting() {
            self.full.begin(now);
        }
        None
    }

    fn next_load(&mut self, now: Timestamp) -> Option<Command<C>> {
        while self.loading < self.limits.loads {
            let endpoint = self.loads.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&endpoint) else { continue };
            if self.stray_loads.contains(&endpoint) {
                continue;
            }
            let room = match lane.gate(now) {
                Gate::Shut { .. } if planted(Bug::ShutLaneLoaded) => SCANT_WINDOW,
                Gate::Shut { .. } => {
                    lane.stored.loading = None;
                    lane.stored.expect(now);
                    self.review(endpoint, now);
                    continue;
                }
                // Many would be read in vain if the probe fails.
                Gate::Probe => 1,
                Gate::Bury | Gate::Open if self.ledger.bytes < self.limits.bytes / 2 => {
                    self.limits.load_max(lane.settings.ordering)
                }
                Gate::Bury | Gate::Open => SCANT_WINDOW,
            };
            self.loading += 1;
            lane.stored.begin_load();
            // Rows of what is held may be among those found, so they are allowed for.
            let limit = room.saturating_sub(lane.line.len()).max(1) + lane.held();
            return Some(Command::Load { endpoint, ordering: lane.settings.ordering, limit });
        }
        None
    }

    fn next_spill(&mut self) -> Option<Command<C>> {
        if self.spilling || self.ledger.spills.is_empty() {
            return None;
        }
        self.spilling = true;
        let rest = self.ledger.spills.split_off(self.ledger.spills.len().min(SPILLED_AT_ONCE));
        Some(Command::Spill(std::mem::replace(&mut self.ledger.spills, rest)))
    }

    /// Looks at one lane after something changed: does it want a turn, a load, or to be woken later?
    fn review(&mut self, endpoint: EndpointKey, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let gate = lane.gate(now);
        lane.count_ready(gate, self.limits.ready / 2, &mut self.ledger, now);
        let mut timer = None;
        // A lane that has its share is looked at again when one of its own requests ends; it has at least one.
        let has_free_slot = lane.has_free_slot(gate, &self.limits, self.limits.share(self.in_flight));
        let wants_a_slot = lane.line.can_start() && !has_free_slot && gate == Gate::Open;
        lane.spans.slots.set(wants_a_slot, now);
        lane.spans.busy.set(wants_a_slot && lane.is_busy(), now);
        if lane.line.can_start() && has_free_slot && !lane.queued {
            timer = lane.rate_bound(gate, now);
            lane.spans.rate.set(timer.is_some(), now);
            if timer.is_none() {
                lane.queued = true;
                self.turns.join(lane.settings.app, endpoint);
            }
        }
        let has_room = lane.line.len() < self.limits.low_water() && lane.bytes() < self.limits.lane_bytes;
        // A load reads again what the lane has already. A lane that gets on with nothing, because its receiver hangs,
        // would read more and more each time that one more message comes.
        let has_enough = lane.line.can_start() && lane.line.len() > lane.stored.refill_at;
        let wants_more = lane.stored.loading.is_none()
            && match gate {
                Gate::Shut { .. } => planted(Bug::ShutLaneLoaded),
                // One is enough, and a few more if those that came must wait for others of their key.
                Gate::Probe => {
                    lane.watch.probe.is_none() && !lane.line.can_start() && lane.line.len() < SCANT_WINDOW && has_room
                }
                Gate::Bury | Gate::Open => has_room && !has_enough,
            };
        // A lane that has nothing may always load a little, so that others who fill the memory do not stop it.
        let memory_is_full = self.ledger.bytes >= self.limits.bytes / 2 && lane.held() > 0;
        if lane.stored.is_stuck() && !lane.line.has_chains() {
            lane.stored.expect(now.plus(BLOCKED_RECHECK));
        }
        let load_at = match (gate, lane.stored.next_due) {
            (Gate::Shut { .. }, Some(due)) if planted(Bug::ShutLaneLoaded) && due <= now && wants_more => {
                lane.stored.plan_load();
                self.loads.push_back(endpoint);
                None
            }
            (Gate::Shut { .. }, Some(due)) if planted(Bug::ShutLaneLoaded) => Some(due.max(now)),
            (Gate::Shut { until }, Some(due)) => until.map(|until| until.max(due)),
            (Gate::Bury | Gate::Probe | Gate::Open, Some(due)) if wants_more && memory_is_full => {
                Some(due.max(now.plus(MEMORY_RECHECK)))
            }
            (Gate::Bury | Gate::Probe | Gate::Open, Some(due)) if wants_more && due <= now => {
                lane.stored.plan_load();
                self.loads.push_back(endpoint);
                None
            }
            (Gate::Bury | Gate::Probe | Gate::Open, Some(due)) => wants_more.then_some(due),
            (Gate::Shut { .. } | Gate::Bury | Gate::Probe | Gate::Open, None) => None,
        };
        let forget_at = lane.forgettable_at(now);
        if forget_at.is_some_and(|at| at <= now) {
            self.set_timer(endpoint, None);
            self.lanes.remove(&endpoint);
            return;
        }
        self.set_timer(endpoint, earliest(earliest(timer, load_at), forget_at));
    }

    fn set_timer(&mut self, endpoint: EndpointKey, at: Option<Timestamp>) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        if lane.timer.map(|timer| timer.at) == at {
            return;
        }
        if let Some(old) = lane.timer.take() {
            self.timers.remove(&(old, endpoint));
        }
        if let Some(at) = at {
            self.tickets += 1;
            let timer = Timer { at, ticket: self.tickets };
            self.timers.insert((timer, endpoint));
            lane.timer = Some(timer);
        }
    }

    fn wake_due(&mut self, now: Timestamp) {
        while let Some((_, endpoint)) = self.timers.first().copied().filter(|(timer, _)| timer.at <= now) {
            self.timers.pop_first();
            if let Some(lane) = self.lanes.get_mut(&endpoint) {
                lane.timer = None;
            }
            if !planted(Bug::LaneNeverWoken) {
                self.review(endpoint, now);
            }
        }
    }

    /// Gives a row to what was handed over and has not been sent for too long. Otherwise one endpoint that hangs
    /// would hold back the mark up to which a start after a crash need not look.
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept) < self.limits.patience {
            return;
        }
        self.swept = now;
        if self.ledger.handed == 0 {
            return;
        }
        let oldest = now.minus(self.limits.patience);
        for lane in self.lanes.values_mut() {
            let leaving = lane.line.take_stale(oldest);
            lane.let_go(leaving, Wanted::AtOnce, &mut self.ledger, now);
            lane.count_ready(lane.gate(now), self.limits.ready / 2, &mut self.ledger, now);
        }
    }
}
