//! What a lane knows of its rows in the store, which is little: the store answers late, and others write to it.

use super::{dispatcher::Cancel, order::chain_of};
use crate::{
    keys::{DeliveryId, MessageKey, OrderKey},
    planted::{Bug, planted},
    policy::Ordering,
    time::Timestamp,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Fixed, because the order of iteration over a randomly seeded one could not be repeated.
pub(super) type FixedHash = rustc_hash::FxBuildHasher;

#[derive(Debug, Default)]
pub(super) struct Stored {
    /// The earliest row that could be sent falls due then. While a load is under way: the earliest of those that it may
    /// not have seen.
    pub next_due: Option<Timestamp>,
    /// There are rows that wait behind an earlier one of their key; while a load is under way, as with `next_due`.
    pub blocked: bool,
    /// Rows being written for deliveries that memory let go of.
    pub spilling: Spilling,
    pub loading: Option<Loading>,
    /// While more than so many stand ready in memory, there is no need for a load: half of what the last one left there.
    pub refill_at: usize,
}

/// A load under way reads the store as it was at some moment since it began.
#[derive(Debug, Default)]
pub(super) struct Loading {
    /// Settled or cancelled meanwhile, and up to which cycle: the load may still show them as they were before.
    settled: HashMap<DeliveryId, u32, FixedHash>,
    cancelled_before: Option<MessageKey>,
    /// The first message of each chain that was put into the store meanwhile. The load may not have seen it, and what
    /// comes after it must not be taken for the first.
    returned: BTreeMap<OrderKey, MessageKey>,
    /// Something ended meanwhile, and what the load shows as waiting behind it may be free.
    pub freed: bool,
    /// It asked by an order that does not hold any more.
    pub void: bool,
    /// It is more than planned.
    pub begun: bool,
}

#[derive(Debug, Default)]
pub(super) struct Spilling {
    deliveries: HashMap<DeliveryId, Option<OrderKey>, FixedHash>,
    by_chain: BTreeSet<(OrderKey, MessageKey)>,
}

impl Stored {
    /// A row falls due at `due`.
    pub fn expect(&mut self, due: Timestamp) {
        self.next_due = earliest(self.next_due, Some(due));
    }

    /// A load wants to begin.
    pub fn plan_load(&mut self) {
        self.next_due = None;
        self.loading = Some(Loading::default());
    }

    /// A load begins. It sees all that was known up to now; what is noted from here on, it may not have seen.
    pub fn begin_load(&mut self) {
        self.next_due = None;
        self.loading = Some(Loading { begun: true, ..Loading::default() });
        self.blocked = false;
    }

    pub fn fail_load(&mut self, again_at: Timestamp) {
        self.loading = None;
        self.next_due = Some(again_at);
    }

    /// What others waited for is over: if any do, they are looked for at once.
    pub fn unblock(&mut self, now: Timestamp) {
        if let Some(loading) = &mut self.loading {
            loading.freed = true;
        }
        if self.blocked {
            self.expect(now);
        }
    }

    /// The rows of these are written.
    pub fn spilled(&mut self, id: DeliveryId, ordering: Ordering, now: Timestamp) {
        let Some(order) = self.spilling.remove(id, ordering) else { return };
        if planted(Bug::SpilledForgotten) {
            return;
        }
        self.expect(now);
        if let Some(chain) = chain_of(ordering, id, order) {
            self.returned(chain, id.message);
        }
    }

    /// A delivery of this chain waits in the store again.
    pub fn returned(&mut self, chain: OrderKey, message: MessageKey) {
        if let Some(loading) = &mut self.loading {
            let first = loading.returned.entry(chain).or_insert(message);
            *first = message.min(*first);
        }
    }

    /// Something is waiting in the store already, and what comes now belongs behind it.
    pub fn has_backlog(&self, now: Timestamp) -> bool {
        !self.spilling.is_empty() || self.loading.is_some() || self.next_due.is_some_and(|due| due <= now)
    }

    /// Rows wait behind others, and nothing will be read that could show that they are free.
    pub fn is_stuck(&self) -> bool {
        self.blocked && self.next_due.is_none() && self.loading.is_none() && self.spilling.is_empty()
    }

    /// All that the lane has is in memory.
    pub fn is_empty(&self) -> bool {
        self.spilling.is_empty() && self.loading.is_none() && self.next_due.is_none() && !self.blocked
    }
}

impl Loading {
    pub fn settle(&mut self, id: DeliveryId, cycle: u32) {
        let last = self.settled.entry(id).or_insert(cycle);
        *last = cycle.max(*last);
    }

    pub fn cancel(&mut self, which: Cancel, scheduled: impl Fn(MessageKey) -> DeliveryId) {
        match which {
            Cancel::One(message) => self.settle(scheduled(message), u32::MAX),
            Cancel::Before(message) => self.cancelled_before = self.cancelled_before.max(Some(message)),
        }
    }

    /// What the load shows of this delivery is no longer so.
    pub fn is_outdated(&self, id: DeliveryId, cycle: u32) -> bool {
        self.settled.get(&id).is_some_and(|last| cycle <= *last)
            || self.cancelled_before.is_some_and(|first| Cancel::Before(first).means(id))
    }

    /// An earlier one of its chain came into the store meanwhile.
    pub fn is_preceded(&self, chain: OrderKey, message: MessageKey) -> bool {
        self.returned.get(&chain).is_some_and(|first| *first < message)
    }
}

impl Spilling {
    pub fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    pub fn insert(&mut self, id: DeliveryId, order: Option<OrderKey>, ordering: Ordering) {
        self.deliveries.insert(id, order);
        if let Some(chain) = chain_of(ordering, id, order) {
            self.by_chain.insert((chain, id.message));
        }
    }

    pub fn remove(&mut self, id: DeliveryId, ordering: Ordering) -> Option<Option<OrderKey>> {
        let order = self.deliveries.remove(&id)?;
        if let Some(chain) = chain_of(ordering, id, order) {
            self.by_chain.remove(&(chain, id.message));
        }
        Some(order)
    }

    /// An earlier one of the chain has no row yet.
    pub fn precedes(&self, chain: OrderKey, message: MessageKey) -> bool {
        self.by_chain.range((chain, MessageKey::new(i64::MIN))..(chain, message)).next().is_some()
    }

    pub fn reorder(&mut self, ordering: Ordering) {
        self.by_chain = self
            .deliveries
            .iter()
            .filter_map(|(id, order)| chain_of(ordering, *id, *order).map(|chain| (chain, id.message)))
            .collect();
    }
}

pub(super) fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, None) | (None, one) => one,
    }
}
