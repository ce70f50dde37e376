//! What is handed over to this node's memory and has no row yet.

use crate::{Cancelled, intake::Room};
use postrider_engine::EndpointKey;
use std::collections::{BTreeMap, btree_map};

/// Of messages that others passed on, so much is held at once; the rest stays in the news. What this node accepts itself is
/// bounded where it is queued.
const PASSED_ON_MAX: usize = 10_000;
const PASSED_ON_BYTES_MAX: usize = 32 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Outstanding {
    messages: BTreeMap<i64, Held>,
    passed_on: usize,
    passed_on_bytes: usize,
}

#[derive(Debug)]
struct Held {
    /// Whose deliveries have no rows yet.
    owed: Vec<EndpointKey>,
    /// What they take of this node's memory, if it accepted the message.
    room: Option<Room>,
    /// Another node passed it on, and so many bytes are its payload.
    passed_on: Option<usize>,
}

impl Outstanding {
    /// This node accepted it.
    pub fn accept(&mut self, message: i64, owed: Vec<EndpointKey>, room: Option<Room>) {
        self.messages.insert(message, Held { owed, room, passed_on: None });
    }

    /// Another node passed it on.
    pub fn take_in(&mut self, message: i64, owed: Vec<EndpointKey>, bytes: usize) {
        self.messages.insert(message, Held { owed, room: None, passed_on: Some(bytes) });
        self.passed_on += 1;
        self.passed_on_bytes += bytes;
    }

    /// More of what others pass on can be taken.
    pub fn has_room(&self) -> bool {
        self.passed_on < PASSED_ON_MAX && self.passed_on_bytes < PASSED_ON_BYTES_MAX
    }

    /// The delivery has a row.
    pub fn land(&mut self, message: i64, endpoint: EndpointKey) {
        let btree_map::Entry::Occupied(mut held) = self.messages.entry(message) else { return };
        let Held { owed, room, .. } = held.get_mut();
        let before = owed.len();
        owed.retain(|owed| *owed != endpoint);
        if let Some(room) = room {
            room.give_back(before - owed.len());
        }
        if held.get().owed.is_empty()
            && let Some(bytes) = held.remove().passed_on
        {
            self.passed_on -= 1;
            self.passed_on_bytes -= bytes;
        }
    }

    /// Deliveries to this endpoint were called off.
    pub fn let_go(&mut self, endpoint: EndpointKey, which: Cancelled) {
        match which {
            Cancelled::One(message) => self.land(message.raw(), endpoint),
            Cancelled::Before(end) => {
                let before: Vec<i64> = self.messages.range(..end.raw()).map(|(message, _)| *message).collect();
                for message in before {
                    self.land(message, endpoint);
                }
            }
        }
    }

    pub fn oldest(&self) -> Option<i64> {
        self.messages.first_key_value().map(|(oldest, _)| *oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::MessageKey;

    const ONE: EndpointKey = EndpointKey::new(1);
    const TWO: EndpointKey = EndpointKey::new(2);

    #[test]
    fn a_message_is_held_until_all_its_deliveries_have_landed() {
        let mut outstanding = Outstanding::default();
        outstanding.accept(10, vec![ONE, TWO], None);
        outstanding.take_in(11, vec![ONE], 100);
        outstanding.land(10, ONE);
        assert_eq!(outstanding.oldest(), Some(10));
        outstanding.land(10, TWO);
        outstanding.land(10, TWO);
        assert_eq!(outstanding.oldest(), Some(11));
        outstanding.let_go(ONE, Cancelled::Before(MessageKey::new(12)));
        assert_eq!(outstanding.oldest(), None);
    }

    #[test]
    fn what_others_pass_on_is_bounded_by_number_and_by_bytes() {
        let mut outstanding = Outstanding::default();
        outstanding.take_in(0, vec![ONE], PASSED_ON_BYTES_MAX);
        assert!(!outstanding.has_room());
        outstanding.land(0, ONE);
        assert!(outstanding.has_room());
        for message in 0..PASSED_ON_MAX as i64 {
            assert!(outstanding.has_room());
            outstanding.take_in(message, vec![ONE], 0);
        }
        assert!(!outstanding.has_room());
        outstanding.let_go(ONE, Cancelled::One(MessageKey::new(7)));
        assert!(outstanding.has_room());
    }
}
