//! What is handed over to memory and has no row yet.

use crate::intake::Room;
use postrider_engine::EndpointKey;
use std::collections::{BTreeMap, btree_map};

/// By message.
#[derive(Default)]
pub struct Outstanding(BTreeMap<i64, HandOff>);

/// The deliveries of a message that have no rows yet.
pub struct HandOff {
    pub owed: Vec<EndpointKey>,
    /// What they take of memory; `None` if nobody had to ask for it.
    pub room: Option<Room>,
}

impl Outstanding {
    pub fn add(&mut self, handed: Vec<(i64, HandOff)>) {
        self.0.extend(handed);
    }

    /// The delivery has a row. Told twice, it is still one.
    pub fn land(&mut self, message: i64, endpoint: EndpointKey) {
        let btree_map::Entry::Occupied(mut hand_off) = self.0.entry(message) else { return };
        hand_off.get_mut().land(endpoint);
        if hand_off.get().owed.is_empty() {
            hand_off.remove();
        }
    }

    /// Whether the delivery has no row yet.
    pub fn has(&self, message: i64, endpoint: EndpointKey) -> bool {
        self.0.get(&message).is_some_and(|hand_off| hand_off.owed.contains(&endpoint))
    }

    /// The messages whose delivery to this endpoint has no row yet, oldest first.
    pub fn of(&self, endpoint: EndpointKey) -> impl Iterator<Item = i64> {
        self.0.iter().filter(move |(_, hand_off)| hand_off.owed.contains(&endpoint)).map(|(message, _)| *message)
    }

    pub fn oldest(&self) -> Option<i64> {
        self.0.first_key_value().map(|(oldest, _)| *oldest)
    }
}

impl HandOff {
    fn land(&mut self, endpoint: EndpointKey) {
        let before = self.owed.len();
        self.owed.retain(|owed| *owed != endpoint);
        if let Some(room) = &mut self.room {
            room.give_back(before - self.owed.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::Intake;

    #[tokio::test]
    async fn room_is_free_again_as_deliveries_get_their_rows() {
        let (intake, mut outstanding) = (Intake::default(), Outstanding::default());
        let (_place, room) = intake.enter(0, 3).await.unwrap();
        let taken = intake.room_taken();
        let owed: Vec<EndpointKey> = (1..=3).map(EndpointKey::new).collect();
        outstanding.add(vec![(7, HandOff { owed: owed.clone(), room: Some(room) })]);
        for (count, endpoint) in owed.into_iter().enumerate() {
            assert!(outstanding.has(7, endpoint));
            assert_eq!(intake.room_taken(), taken - count);
            outstanding.land(7, endpoint);
            outstanding.land(7, endpoint);
        }
        assert_eq!((intake.room_taken(), outstanding.oldest()), (0, None));
    }
}
