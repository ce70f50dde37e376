//! Many lanes and one question: what shall be done next?
//!
//! The shell tells the dispatcher what happened and then asks for commands until there are none. Lanes that have
//! something to send stand in a queue and take turns, one request each, so that a flooded lane delays nobody.
//! No step costs more for a lane that has more waiting in it.

use super::lane::{FixedHash, Lane, LaneSettings, Loading, Parcel, Timer, earliest};
use crate::{
    keys::{AppKey, DeliveryId, EndpointKey},
    policy::Bucket,
    time::Timestamp,
};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Deliveries that one lane keeps ready in memory.
    pub window: usize,
    /// What all lanes together keep in memory, in bytes.
    pub bytes: usize,
    /// What one lane loads into memory, in bytes.
    pub lane_bytes: usize,
    /// Loads under way at the same time.
    pub loads: usize,
    /// Requests and unwritten outcomes of one lane: what a crash can make it repeat.
    pub unsettled: usize,
    /// Requests of all lanes on the network.
    pub in_flight: usize,
    /// A handed-over delivery that has stood so long without being sent is given a row.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 1_024,
            bytes: 64 * 1024 * 1024,
            lane_bytes: 2 * 1024 * 1024,
            loads: 4,
            unsettled: 64,
            in_flight: 8_192,
            patience: Duration::from_secs(5),
        }
    }
}

/// Memory is shared by all lanes, so none of them is told when another one frees some.
const MEMORY_RECHECK: Duration = Duration::from_millis(50);

/// What a lane may load when memory is short: enough to go on, too little to matter.
const SCANT_WINDOW: usize = 16;

#[derive(Debug)]
pub enum Command<C> {
    Send(Parcel<C>),
    /// Read what is due in this lane; answer with `loaded` or `load_failed`.
    Load {
        endpoint: EndpointKey,
        ordering: crate::policy::Ordering,
        limit: usize,
    },
    Bury(Parcel<C>),
    /// Write rows for these; answer with `spilled`.
    Spill(Vec<(DeliveryId, Option<crate::OrderKey>)>),
}

pub struct Rest {
    pub more: bool,
    pub next_due: Option<Timestamp>,
    pub blocked: bool,
}

pub enum Cancel {
    One(crate::MessageKey),
    Before(crate::MessageKey),
}

#[derive(Debug)]
pub struct Dispatcher<C> {
    limits: Limits,
    lanes: HashMap<EndpointKey, Lane<C>, FixedHash>,
    apps: HashMap<AppKey, Bucket, FixedHash>,
    /// Lanes that may have something to send, in the order of their turns.
    turns: VecDeque<EndpointKey>,
    /// Lanes that want to be loaded.
    loads: VecDeque<EndpointKey>,
    loading: usize,
    timers: BTreeSet<(Timer, EndpointKey)>,
    tickets: u64,
    spills: Vec<DeliveryId>,
    in_flight: usize,
    bytes: usize,
    swept: Timestamp,
}

impl<C> Dispatcher<C> {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            lanes: HashMap::default(),
            apps: HashMap::default(),
            turns: VecDeque::new(),
            loads: VecDeque::new(),
            loading: 0,
            timers: BTreeSet::new(),
            tickets: 0,
            spills: Vec::new(),
            in_flight: 0,
            bytes: 0,
            swept: Timestamp::default(),
        }
    }

    /// Opens a lane, or changes how an open one works.
    pub fn set_lane(&mut self, endpoint: EndpointKey, settings: LaneSettings, now: Timestamp) {
        let lane = self.open(endpoint, settings);
        lane.change(settings);
        if settings.parked {
            // What has a row need not be kept in memory while nothing is sent.
            let let_go = lane.take_ready(|parcel| !parcel.handed);
            if !let_go.is_empty() {
                lane.stored.expect(now);
            }
            let freed: usize = let_go.into_iter().map(|id| lane.release(id)).sum();
            self.bytes -= freed;
        }
        self.set_app_rate(settings.app, settings.app_rate);
        self.review(endpoint, now);
    }

    /// The lanes of one application that are open.
    pub fn lanes_of(&self, app: AppKey) -> Vec<EndpointKey> {
        self.lanes.iter().filter(|(_, lane)| lane.settings.app == app).map(|(endpoint, _)| *endpoint).collect()
    }

    fn open(&mut self, endpoint: EndpointKey, settings: LaneSettings) -> &mut Lane<C> {
        if !self.lanes.contains_key(&endpoint) {
            self.set_app_rate(settings.app, settings.app_rate);
        }
        self.lanes.entry(endpoint).or_insert_with(|| Lane::new(settings))
    }

    fn set_app_rate(&mut self, app: AppKey, rate: Option<u32>) {
        let bucket = match self.apps.get(&app) {
            Some(bucket) => bucket.with_rate(rate),
            None => Bucket::new(rate),
        };
        match bucket {
            Some(bucket) => self.apps.insert(app, bucket),
            None => self.apps.remove(&app),
        };
    }

    /// A delivery that was just committed. It is kept if there is room, and given a row if there is not.
    /// `settings` are for a lane that is not open yet.
    pub fn hand_over(&mut self, parcel: Parcel<C>, settings: LaneSettings, now: Timestamp) {
        let endpoint = parcel.id.endpoint;
        let (limits, bytes) = (self.limits, self.bytes + parcel.weight);
        let lane = self.open(endpoint, settings);
        let no_room = lane.ready.len() >= limits.window || bytes > limits.bytes;
        if lane.settings.parked || no_room || lane.has_backlog(now) {
            lane.stored.spilling += 1;
            self.spills.push(parcel.id);
            return;
        }
        lane.hold(parcel);
        self.bytes = bytes;
        self.review(endpoint, now);
    }

    /// A row of this lane, written by someone else, falls due at `due`.
    pub fn expect(&mut self, endpoint: EndpointKey, settings: LaneSettings, due: Timestamp, now: Timestamp) {
        self.open(endpoint, settings).stored.expect(due);
        self.review(endpoint, now);
    }

    /// The rows for spilled deliveries are written.
    pub fn spilled(&mut self, deliveries: &[DeliveryId], now: Timestamp) {
        for id in deliveries {
            if let Some(lane) = self.lanes.get_mut(&id.endpoint) {
                lane.stored.spilling -= 1;
                lane.stored.expect(now);
            }
        }
        for id in deliveries {
            self.review(id.endpoint, now);
        }
    }

    /// What a load found. `more`: there is more that is due; `next_due`: when the earliest of the rest will be.
    pub fn loaded(
        &mut self,
        endpoint: EndpointKey,
        parcels: Vec<Parcel<C>>,
        Rest { more, next_due, .. }: Rest,
        now: Timestamp,
    ) {
        self.loading -= 1;
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        let Some(loading) = lane.stored.loading.take() else { return };
        if lane.settings.parked {
            lane.stored.next_due = Some(now);
            return;
        }
        for parcel in parcels {
            if !loading.settled.contains(&parcel.id) && !lane.held.contains_key(&parcel.id) {
                self.bytes += parcel.weight;
                lane.hold(parcel);
            }
        }
        let rest = if more { Some(now) } else { next_due };
        lane.stored.next_due = earliest(rest, loading.next_due);
        self.review(endpoint, now);
    }

    /// A load did not succeed: it is tried again after a while.
    pub fn load_failed(&mut self, endpoint: EndpointKey, now: Timestamp, again: Duration) {
        self.loading -= 1;
        if let Some(lane) = self.lanes.get_mut(&endpoint) {
            lane.stored.loading = None;
            lane.stored.next_due = Some(now.plus(again));
            self.review(endpoint, now);
        }
    }

    /// A request has ended; what it means is being written down.
    pub fn set_health(&mut self, _: EndpointKey, _: LaneSettings, _: crate::policy::Health, _: Timestamp) {}
    pub fn cancel(&mut self, _: EndpointKey, _: Cancel, _: Timestamp) {}
    pub fn answered(
        &mut self,
        id: DeliveryId,
        _: Option<&crate::policy::Verdict>,
        now: Timestamp,
    ) -> Option<crate::policy::health::Step> {
        self.in_flight -= 1;
        if let Some(lane) = self.lanes.get_mut(&id.endpoint) {
            lane.in_flight -= 1;
            lane.settling += 1;
        }
        self.review(id.endpoint, now);
        None
    }

    /// The settlement is durable. With `due`, the delivery waits in the store until then.
    pub fn settled(&mut self, id: DeliveryId, due: Option<Timestamp>, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&id.endpoint) else { return };
        lane.settling -= 1;
        self.bytes -= lane.release(id);
        if let Some(loading) = &mut lane.stored.loading {
            loading.settled.insert(id);
        }
        if let Some(due) = due {
            lane.stored.expect(due);
        }
        self.review(id.endpoint, now);
    }

    /// What to do next, at once. `None`: nothing before `sleep_until` or before something happens.
    pub fn next(&mut self, now: Timestamp) -> Option<Command<C>> {
        self.wake_due(now);
        self.sweep(now);
        if let Some(parcel) = self.next_send(now) {
            return Some(Command::Send(parcel));
        }
        while self.loading < self.limits.loads
            && let Some(endpoint) = self.loads.pop_front()
        {
            let Some(lane) = self.lanes.get_mut(&endpoint) else { continue };
            self.loading += 1;
            lane.stored.loading = Some(Loading::default());
            // Rows of what is held may be among those found, so they are allowed for.
            let room = if self.bytes < self.limits.bytes / 2 { self.limits.window } else { SCANT_WINDOW };
            let limit = room.saturating_sub(lane.ready.len()) + lane.held.len();
            return Some(Command::Load { endpoint, ordering: crate::policy::Ordering::None, limit });
        }
        (!self.spills.is_empty())
            .then(|| Command::Spill(std::mem::take(&mut self.spills).into_iter().map(|id| (id, None)).collect()))
    }

    pub fn sleep_until(&self) -> Option<Timestamp> {
        let timer = self.timers.first().map(|(timer, _)| timer.at);
        let sweep = (self.bytes > 0 || !self.turns.is_empty()).then(|| self.swept.plus(self.limits.patience));
        earliest(timer, sweep)
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Deliveries in memory, on the network or being written down.
    pub fn held(&self) -> usize {
        self.lanes.values().map(|lane| lane.held.len()).sum()
    }

    fn next_send(&mut self, now: Timestamp) -> Option<Parcel<C>> {
        while self.in_flight < self.limits.in_flight {
            let endpoint = self.turns.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&endpoint) else { continue };
            lane.queued = false;
            if !lane.has_free_slot(self.limits.unsettled) || lane.ready.is_empty() {
                continue;
            }
            let app_bucket = self.apps.get_mut(&lane.settings.app);
            let wait = [lane.bucket.as_ref(), app_bucket.as_deref()]
                .into_iter()
                .flatten()
                .filter_map(|bucket| bucket.ready(now).err())
                .max();
            if let Some(later) = wait {
                self.set_timer(endpoint, Some(later));
                continue;
            }
            for bucket in [lane.bucket.as_mut(), app_bucket].into_iter().flatten() {
                bucket.take(now);
            }
            let parcel = lane.ready.pop_front()?;
            lane.in_flight += 1;
            self.in_flight += 1;
            self.review(endpoint, now);
            return Some(parcel);
        }
        None
    }

    /// Looks at one lane after something changed: does it want a turn, a load, or to be woken later?
    fn review(&mut self, endpoint: EndpointKey, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&endpoint) else { return };
        if !lane.queued && !lane.ready.is_empty() && lane.has_free_slot(self.limits.unsettled) {
            lane.queued = true;
            self.turns.push_back(endpoint);
        }
        // Half a window is kept, so that a lane does not run dry while it is loaded.
        let wants_more = !lane.settings.parked
            && lane.stored.loading.is_none()
            && lane.ready.len() < self.limits.window / 2
            && lane.bytes < self.limits.lane_bytes;
        // A lane that has nothing may always load a little, so that others who fill the memory do not stop it.
        let memory_is_full = self.bytes >= self.limits.bytes / 2 && !lane.held.is_empty();
        let timer = match lane.stored.next_due {
            Some(due) if wants_more && memory_is_full => Some(due.max(now.plus(MEMORY_RECHECK))),
            Some(due) if wants_more && due <= now => {
                lane.stored.next_due = None;
                lane.stored.loading = Some(Loading::default());
                self.loads.push_back(endpoint);
                None
            }
            Some(due) if wants_more => Some(due),
            Some(_) | None => None,
        };
        let forgettable = lane.is_empty() && !lane.settings.parked;
        self.set_timer(endpoint, timer);
        if forgettable {
            self.forget(endpoint);
        }
    }

    /// An idle lane is dropped: it is opened again when something comes for it.
    fn forget(&mut self, endpoint: EndpointKey) {
        if self.lanes.get(&endpoint).is_some_and(|lane| lane.bucket.is_none() && !lane.queued) {
            self.lanes.remove(&endpoint);
        }
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
            self.review(endpoint, now);
        }
    }

    /// Gives a row to what was handed over and has not been sent for too long. Otherwise one endpoint that hangs
    /// would hold back the mark up to which a start after a crash need not look.
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept) < self.limits.patience {
            return;
        }
        self.swept = now;
        let oldest = now.minus(self.limits.patience);
        for lane in self.lanes.values_mut() {
            if lane.ready.front().is_none_or(|parcel| parcel.since > oldest) {
                continue;
            }
            for id in lane.take_ready(|parcel| parcel.handed) {
                self.bytes -= lane.release(id);
                lane.stored.spilling += 1;
                self.spills.push(id);
            }
        }
    }
}
