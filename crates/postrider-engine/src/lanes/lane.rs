//! Everything that waits for one endpoint.
//!
//! A lane keeps only a window in memory: what is ready to go and what is under way. The rest waits in the
//! store, and the lane knows no more of it than when the earliest falls due. So a lane that is parked costs
//! nothing however much waits in it, and a lane can be dropped and loaded again at any moment.

use crate::{
    keys::{AppKey, DeliveryId, OrderKey},
    policy::{BreakerRules, Bucket, DisableRules, Ordering, Progress},
    time::Timestamp,
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

/// A delivery on its way, with whatever its carrier needs to send it.
#[derive(Clone, Debug)]
pub struct Parcel<C> {
    pub id: DeliveryId,
    pub cycle: u32,
    pub progress: Progress,
    /// When this cycle began: when the message was accepted, or the delivery replayed.
    pub queued_at: Timestamp,
    /// When it was to be sent.
    pub due: Timestamp,
    /// It must wait for those of the same key that were accepted before it.
    pub order: Option<OrderKey>,
    /// Set when it is sent: why that is later than it was due, where it is.
    pub held: Option<Held>,
    /// It came straight from being accepted and has no row of its own.
    pub handed: bool,
    /// When it entered memory: what stands too long is given a row.
    pub since: Timestamp,
    /// Bytes that it keeps in memory.
    pub weight: usize,
    pub cargo: C,
}

/// Why a delivery is sent later than it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub by: HeldBy,
    /// How much later.
    pub late: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// All of the endpoint's slots were taken, or all of ours.
    Slots,
    /// The endpoint's rate.
    Rate,
    /// The application's rate.
    AppRate,
    Breaker,
    /// The endpoint was paused or disabled.
    Pause,
    /// An earlier delivery of the same key, or of a FIFO endpoint.
    Order,
    /// We were not running, or had no room for it in memory.
    Queue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSettings {
    pub app: AppKey,
    /// Requests per second over all lanes of the application.
    pub app_rate: Option<u32>,
    /// Requests at a time.
    pub in_flight_max: usize,
    /// Requests per second.
    pub rate: Option<u32>,
    /// Nothing is sent; everything waits.
    pub parked: bool,
    pub ordering: Ordering,
    pub breaker: Option<BreakerRules>,
    pub disable: DisableRules,
}

/// Fixed, because the order of iteration over a randomly seeded one could not be repeated.
pub(super) type FixedHash = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

#[derive(Debug)]
pub(super) struct Lane<C> {
    pub settings: LaneSettings,
    pub bucket: Option<Bucket>,
    pub ready: VecDeque<Parcel<C>>,
    /// Requests on the network.
    pub in_flight: usize,
    /// Outcomes that are not yet durable.
    pub settling: usize,
    /// All that this lane has in memory, with its weight: a load must not bring it a second time.
    pub held: HashMap<DeliveryId, usize, FixedHash>,
    /// The weight of all that is held.
    pub bytes: usize,
    pub stored: Stored,
    /// It stands in the queue for a turn.
    pub queued: bool,
    pub timer: Option<Timer>,
}

/// When a lane is to be looked at, and whether before or after others of the same moment: who has waited longer is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub at: Timestamp,
    pub ticket: u64,
}

/// What the lane knows of its rows in the store.
#[derive(Debug, Default)]
pub(super) struct Stored {
    /// The earliest of them falls due then.
    pub next_due: Option<Timestamp>,
    /// Rows being written for deliveries that memory let go of.
    pub spilling: usize,
    pub loading: Option<Loading>,
}

/// A load under way reads the store as it was at some moment since it began.
#[derive(Debug, Default)]
pub(super) struct Loading {
    /// Settled meanwhile: the load may still show them as they were before.
    pub settled: HashSet<DeliveryId, FixedHash>,
    /// The earliest that was put into the store meanwhile, which the load may not have seen.
    pub next_due: Option<Timestamp>,
}

impl<C> Lane<C> {
    pub fn new(settings: LaneSettings) -> Self {
        Self {
            settings,
            bucket: Bucket::new(settings.rate),
            ready: VecDeque::new(),
            in_flight: 0,
            settling: 0,
            held: HashMap::default(),
            bytes: 0,
            stored: Stored::default(),
            queued: false,
            timer: None,
        }
    }

    pub fn change(&mut self, settings: LaneSettings) {
        self.bucket = match self.bucket {
            Some(bucket) => bucket.with_rate(settings.rate),
            None => Bucket::new(settings.rate),
        };
        self.settings = settings;
    }

    pub fn hold(&mut self, parcel: Parcel<C>) {
        self.held.insert(parcel.id, parcel.weight);
        self.bytes += parcel.weight;
        self.ready.push_back(parcel);
    }

    /// Gives back the weight of what is let go.
    pub fn release(&mut self, id: DeliveryId) -> usize {
        let weight = self.held.remove(&id).unwrap_or(0);
        self.bytes -= weight;
        weight
    }

    /// Takes out of the window what answers `true`; it is still held.
    pub fn take_ready(&mut self, which: impl Fn(&Parcel<C>) -> bool) -> Vec<DeliveryId> {
        let (taken, kept): (VecDeque<_>, VecDeque<_>) = self.ready.drain(..).partition(which);
        self.ready = kept;
        taken.into_iter().map(|parcel| parcel.id).collect()
    }

    /// Something is waiting in the store already, and what comes now belongs behind it.
    pub fn has_backlog(&self, now: Timestamp) -> bool {
        self.stored.spilling > 0 || self.stored.loading.is_some() || self.stored.next_due.is_some_and(|due| due <= now)
    }

    pub fn has_free_slot(&self, unsettled_max: usize) -> bool {
        !self.settings.parked
            && self.in_flight < self.settings.in_flight_max
            && self.in_flight + self.settling < unsettled_max
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
            && self.stored.next_due.is_none()
            && self.stored.spilling == 0
            && self.stored.loading.is_none()
    }
}

impl Stored {
    /// A row falls due at `due`.
    pub fn expect(&mut self, due: Timestamp) {
        self.next_due = earliest(self.next_due, Some(due));
        if let Some(loading) = &mut self.loading {
            loading.next_due = earliest(loading.next_due, Some(due));
        }
    }
}

pub(super) fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}
