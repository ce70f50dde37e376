//! Who may go next within a lane.
//!
//! Deliveries of one ordering key form a chain: one of them is under way, the others stand behind it in the order of
//! their messages. A FIFO lane is one chain. What has no order stands in the line by itself. A chain whose key is free
//! has one place in the line, so that a long chain does not push the others back.

use super::{dispatcher::Cancel, late::Turn, parcel::Parcel};
use crate::{
    keys::{DeliveryId, MessageKey, OrderKey, Trigger},
    planted::{Bug, planted},
    policy::Ordering,
    time::Timestamp,
};
use std::collections::{BTreeMap, VecDeque};

/// The only chain of a FIFO lane.
const WHOLE_LANE: OrderKey = OrderKey::new(0);

/// The chain to which a delivery belongs. A resend belongs to none: a person wants it now.
pub(super) fn chain_of(ordering: Ordering, id: DeliveryId, order: Option<OrderKey>) -> Option<OrderKey> {
    match (id.trigger, ordering) {
        (Trigger::Manual, _) | (Trigger::Scheduled, Ordering::None) => None,
        (Trigger::Scheduled, Ordering::Keyed) => order,
        (Trigger::Scheduled, Ordering::Fifo) => Some(WHOLE_LANE),
    }
}

/// What a lane has in memory and has not sent.
#[derive(Debug)]
pub(super) struct Line<C> {
    ordering: Ordering,
    /// Those that may start. A chain stands here only while its key is free and something is in it.
    places: VecDeque<Place<C>>,
    chains: BTreeMap<OrderKey, Chain<C>>,
    len: usize,
    handed: usize,
}

#[derive(Debug)]
enum Place<C> {
    Loose(Parcel<C>),
    Chain(OrderKey),
}

#[derive(Debug)]
struct Chain<C> {
    /// On the network, or ended and not yet written down. More than one only if the order was changed meanwhile.
    under_way: usize,
    behind: BTreeMap<MessageKey, Parcel<C>>,
    has_place: bool,
    free_since: Timestamp,
}

impl<C> Chain<C> {
    fn new() -> Self {
        Self { under_way: 0, behind: BTreeMap::new(), has_place: false, free_since: Timestamp::from_millis(i64::MIN) }
    }
}

impl<C> Line<C> {
    pub fn new(ordering: Ordering) -> Self {
        Self { ordering, places: VecDeque::new(), chains: BTreeMap::new(), len: 0, handed: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// How many of them have no row of their own.
    pub fn handed(&self) -> usize {
        self.handed
    }

    pub fn can_start(&self) -> bool {
        !self.places.is_empty()
    }

    /// A person asked for the one that is next.
    pub fn is_next_asked_for(&self) -> bool {
        match self.places.front() {
            Some(Place::Loose(parcel)) => parcel.id.trigger == Trigger::Manual,
            // What a person asks for waits for nobody.
            Some(Place::Chain(_)) | None => false,
        }
    }

    pub fn ordering(&self) -> Ordering {
        self.ordering
    }

    pub fn chain_of(&self, id: DeliveryId, order: Option<OrderKey>) -> Option<OrderKey> {
        chain_of(self.ordering, id, order)
    }

    /// How many stand behind the one of this chain that is under way.
    pub fn behind(&self, chain: OrderKey) -> usize {
        self.chains.get(&chain).map_or(0, |chain| chain.behind.len())
    }

    /// This message would have to wait for others of its chain, and none for it.
    pub fn is_at_the_end(&self, chain: OrderKey, message: MessageKey) -> bool {
        self.chains
            .get(&chain)
            .is_some_and(|chain| chain.behind.last_key_value().is_none_or(|(last, _)| *last < message))
    }

    /// Something is under way or waits in an order, and its end will be heard of.
    pub fn has_chains(&self) -> bool {
        !self.chains.is_empty()
    }

    pub fn push(&mut self, parcel: Parcel<C>) {
        self.len += 1;
        self.handed += usize::from(parcel.handed);
        match self.chain_of(parcel.id, parcel.order) {
            None => self.places.push_back(Place::Loose(parcel)),
            Some(key) => {
                let chain = self.chains.entry(key).or_insert_with(Chain::new);
                chain.behind.insert(parcel.id.message, parcel);
                if chain.under_way == 0 && !chain.has_place {
                    chain.has_place = true;
                    self.places.push_back(Place::Chain(key));
                }
            }
        }
    }

    /// The next one to go, and whether its turn depended on others.
    pub fn pop(&mut self) -> Option<(Parcel<C>, Turn)> {
        let (parcel, turn) = match self.places.pop_front()? {
            Place::Loose(parcel) => (parcel, Turn::Unordered),
            Place::Chain(key) => {
                let chain = self.chains.get_mut(&key)?;
                chain.has_place = false;
                let newest_first = planted(Bug::NewestOfKeyFirst);
                let (_, parcel) = if newest_first { chain.behind.pop_last()? } else { chain.behind.pop_first()? };
                chain.under_way += 1;
                (parcel, Turn::Ordered { free_since: chain.free_since })
            }
        };
        self.count_out(&parcel);
        Some((parcel, turn))
    }

    /// One that was under way has ended for good.
    pub fn end(&mut self, key: OrderKey, now: Timestamp) {
        let Some(chain) = self.chains.get_mut(&key) else { return };
        chain.under_way = chain.under_way.saturating_sub(1);
        if chain.under_way > 0 {
            return;
        }
        chain.free_since = now;
        if chain.behind.is_empty() {
            self.chains.remove(&key);
        } else if !chain.has_place {
            chain.has_place = true;
            self.places.push_back(Place::Chain(key));
        }
    }

    /// One that was under way waits in the store again, and with it all that must not overtake it.
    pub fn put_off(&mut self, key: OrderKey, message: MessageKey, now: Timestamp) -> Vec<Parcel<C>> {
        let leaving = self.take_behind(key, message);
        self.end(key, now);
        leaving
    }

    /// Takes out of a chain what comes after this message.
    pub fn take_behind(&mut self, key: OrderKey, message: MessageKey) -> Vec<Parcel<C>> {
        let Some(chain) = self.chains.get_mut(&key) else { return Vec::new() };
        let after = MessageKey::new(message.raw().saturating_add(1));
        let leaving: Vec<_> = chain.behind.split_off(&after).into_values().collect();
        let is_placed_for_nothing = chain.has_place && chain.behind.is_empty();
        for parcel in &leaving {
            self.count_out(parcel);
        }
        if is_placed_for_nothing {
            self.drop_empty();
        }
        leaving
    }

    /// Takes out all that waits. What is under way still keeps its chain.
    pub fn clear(&mut self) -> Vec<Parcel<C>> {
        self.take(|_| true)
    }

    pub fn cancel(&mut self, which: Cancel) -> Vec<Parcel<C>> {
        self.take(|parcel| which.means(parcel.id))
    }

    /// If something that was handed over has stood since `oldest` or longer: takes out all that was handed over, and
    /// what stands in one chain with it, because a later one must not stay where an earlier one leaves.
    pub fn take_stale(&mut self, oldest: Timestamp) -> Vec<Parcel<C>> {
        if self.handed == 0 || !self.parcels().any(|parcel| parcel.handed && parcel.since <= oldest) {
            return Vec::new();
        }
        let ordering = self.ordering;
        let mixed: Vec<OrderKey> = self
            .chains
            .iter()
            .filter(|(_, chain)| chain.behind.values().any(|parcel| parcel.handed))
            .map(|(key, _)| *key)
            .collect();
        self.take(|parcel| match chain_of(ordering, parcel.id, parcel.order) {
            Some(key) => mixed.binary_search(&key).is_ok(),
            None => parcel.handed,
        })
    }

    /// From now on another order holds. Nothing may wait; `under_way` are those that are.
    pub fn reorder(&mut self, ordering: Ordering, under_way: impl Iterator<Item = (DeliveryId, Option<OrderKey>)>) {
        debug_assert_eq!(self.len, 0, "the line is empty when its order changes");
        self.ordering = ordering;
        self.places.clear();
        self.chains.clear();
        for (id, order) in under_way {
            if let Some(key) = chain_of(ordering, id, order) {
                self.chains.entry(key).or_insert_with(Chain::new).under_way += 1;
            }
        }
    }

    fn take(&mut self, which: impl Fn(&Parcel<C>) -> bool) -> Vec<Parcel<C>> {
        let mut taken = Vec::new();
        for place in std::mem::take(&mut self.places) {
            match place {
                Place::Loose(parcel) if which(&parcel) => taken.push(parcel),
                Place::Loose(_) | Place::Chain(_) => self.places.push_back(place),
            }
        }
        for chain in self.chains.values_mut() {
            taken.extend(chain.behind.extract_if(.., |_, parcel| which(parcel)).map(|(_, parcel)| parcel));
        }
        for parcel in &taken {
            self.count_out(parcel);
        }
        self.drop_empty();
        taken
    }

    /// A chain in which nothing waits has no place, and without anything under way it is none.
    fn drop_empty(&mut self) {
        for chain in self.chains.values_mut() {
            chain.has_place &= !chain.behind.is_empty();
        }
        let chains = &mut self.chains;
        self.places.retain(|place| match place {
            Place::Loose(_) => true,
            Place::Chain(key) => chains.get(key).is_some_and(|chain| chain.has_place),
        });
        chains.retain(|_, chain| chain.under_way > 0 || !chain.behind.is_empty());
    }

    fn parcels(&self) -> impl Iterator<Item = &Parcel<C>> {
        let loose = self.places.iter().filter_map(|place| match place {
            Place::Loose(parcel) => Some(parcel),
            Place::Chain(_) => None,
        });
        loose.chain(self.chains.values().flat_map(|chain| chain.behind.values()))
    }

    fn count_out(&mut self, parcel: &Parcel<C>) {
        self.len -= 1;
        self.handed -= usize::from(parcel.handed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{keys::EndpointKey, policy::Progress};

    const KEY: OrderKey = OrderKey::new(7);
    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn parcel(message: i64, order: Option<OrderKey>) -> Parcel<()> {
        Parcel {
            id: DeliveryId {
                endpoint: EndpointKey::new(1),
                message: MessageKey::new(message),
                trigger: Trigger::Scheduled,
            },
            cycle: 0,
            progress: Progress::default(),
            queued_at: NOW,
            due: NOW,
            order,
            held: None,
            theirs: std::time::Duration::ZERO,
            handed: message % 2 == 0,
            since: NOW,
            weight: 1,
            cargo: (),
        }
    }

    fn line(ordering: Ordering, messages: &[(i64, Option<OrderKey>)]) -> Line<()> {
        let mut line = Line::new(ordering);
        for (message, order) in messages {
            line.push(parcel(*message, *order));
        }
        line
    }

    fn pop(line: &mut Line<()>) -> Option<i64> {
        line.pop().map(|(parcel, _)| parcel.id.message.raw())
    }

    fn messages(parcels: Vec<Parcel<()>>) -> Vec<i64> {
        parcels.into_iter().map(|parcel| parcel.id.message.raw()).collect()
    }

    #[test]
    fn a_key_goes_one_by_one_and_the_others_pass() {
        let mut line = line(Ordering::Keyed, &[(1, Some(KEY)), (2, Some(KEY)), (3, None), (4, Some(OrderKey::new(8)))]);
        assert_eq!([pop(&mut line), pop(&mut line), pop(&mut line)], [Some(1), Some(3), Some(4)]);
        assert!(!line.can_start(), "message 2 waits for message 1");
        line.end(KEY, NOW);
        assert_eq!(pop(&mut line), Some(2));
    }

    #[test]
    fn an_earlier_message_that_comes_later_goes_first() {
        let mut line = line(Ordering::Fifo, &[(5, None), (7, None), (3, None)]);
        assert_eq!(pop(&mut line), Some(3));
        assert!(!line.can_start());
    }

    #[test]
    fn what_is_put_off_takes_along_only_what_comes_after_it() {
        let mut line = line(Ordering::Fifo, &[(5, None)]);
        pop(&mut line);
        for message in [3, 7, 9] {
            line.push(parcel(message, None));
        }
        assert_eq!(messages(line.put_off(WHOLE_LANE, MessageKey::new(5), NOW)), [7, 9]);
        assert_eq!(pop(&mut line), Some(3), "which was earlier, and need not wait for it");
    }

    #[test]
    fn what_stood_too_long_leaves_with_its_whole_chain() {
        let other = Some(OrderKey::new(8));
        let mut line = line(Ordering::Keyed, &[(1, Some(KEY)), (2, Some(KEY)), (3, Some(KEY)), (5, other), (7, None)]);
        assert!(line.take_stale(NOW.minus(std::time::Duration::from_millis(1))).is_empty(), "not yet");
        assert_eq!(messages(line.take_stale(NOW)), [1, 2, 3], "message 2 was handed over");
        assert_eq!([pop(&mut line), pop(&mut line), pop(&mut line)], [Some(5), Some(7), None]);
    }

    #[test]
    fn a_chain_that_is_cancelled_leaves_no_place_behind() {
        let mut line = line(Ordering::Keyed, &[(1, Some(KEY)), (2, None)]);
        line.cancel(Cancel::One(MessageKey::new(1)));
        assert_eq!([pop(&mut line), pop(&mut line)], [Some(2), None]);
        assert!(!line.has_chains());
    }
}
