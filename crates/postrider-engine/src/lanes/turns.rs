//! Whose turn it is: applications take turns, and within an application its lanes.
//!
//! Two rounds, one inside the other, so that an application with a thousand lanes has no more turns than one with a
//! single lane. An application that is at its rate steps out of the round as a whole: its lanes keep their order, and
//! waking it costs the same however many they are.

use super::{late::Span, stored::FixedHash};
use crate::{
    keys::{AppKey, EndpointKey},
    policy::Bucket,
    time::Timestamp,
};
use std::collections::{BTreeSet, HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Turns {
    apps: HashMap<AppKey, App, FixedHash>,
    round: VecDeque<AppKey>,
    resting: BTreeSet<(Timestamp, AppKey)>,
}

#[derive(Debug, Default)]
struct App {
    bucket: Option<Bucket>,
    /// Lanes that may have something to send, in the order of their turns.
    lanes: VecDeque<EndpointKey>,
    place: Place,
    rated: Span,
}

#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Away,
    InRound,
    Resting(Timestamp),
}

impl Turns {
    /// Whoever had the application before may have used up its rate at `gained_at`.
    pub fn set_rate(&mut self, app: AppKey, rate: Option<u32>, gained_at: Option<Timestamp>) {
        let entry = self.apps.entry(app).or_default();
        entry.bucket = match (entry.bucket, gained_at) {
            (Some(bucket), _) => bucket.with_rate(rate),
            (None, Some(at)) => Bucket::new(rate).map(|bucket| bucket.emptied(at)),
            (None, None) => Bucket::new(rate),
        };
        match entry.place {
            // It may not have to wait so long any more.
            Place::Resting(until) => {
                entry.place = Place::InRound;
                self.resting.remove(&(until, app));
                self.round.push_back(app);
            }
            Place::Away if entry.bucket.is_none() => {
                self.apps.remove(&app);
            }
            Place::Away | Place::InRound => {}
        }
    }

    pub fn join(&mut self, app: AppKey, endpoint: EndpointKey) {
        let entry = self.apps.entry(app).or_default();
        entry.lanes.push_back(endpoint);
        match entry.place {
            Place::Away => {
                entry.place = Place::InRound;
                self.round.push_back(app);
            }
            Place::InRound | Place::Resting(_) => {}
        }
    }

    /// These applications are served elsewhere.
    pub fn forget(&mut self, apps: impl Fn(AppKey) -> bool) {
        self.apps.retain(|app, _| !apps(*app));
        self.round.retain(|app| !apps(*app));
        self.resting.retain(|(_, app)| !apps(*app));
    }

    /// The lane whose turn it is, taken out of the round.
    pub fn next(&mut self, now: Timestamp) -> Option<EndpointKey> {
        self.wake(now);
        loop {
            let app = self.round.pop_front()?;
            let Some(entry) = self.apps.get_mut(&app) else { continue };
            if let Some(Err(later)) = entry.bucket.map(|bucket| bucket.ready(now)) {
                entry.place = Place::Resting(later);
                entry.rated.begin(now);
                self.resting.insert((later, app));
                continue;
            }
            entry.rated.end(now);
            let lane = entry.lanes.pop_front();
            if !entry.lanes.is_empty() {
                self.round.push_back(app);
            } else if entry.bucket.is_some() {
                entry.place = Place::Away;
            } else {
                self.apps.remove(&app);
            }
            if lane.is_some() {
                return lane;
            }
        }
    }

    pub fn set_back(&mut self, now: Timestamp) {
        for entry in self.apps.values_mut() {
            entry.bucket = entry.bucket.map(|bucket| bucket.set_back(now));
        }
        // How long they have to rest is found out anew.
        while let Some((_, app)) = self.resting.pop_first() {
            self.rejoin(app);
        }
    }

    /// A request of this application is sent.
    pub fn spend(&mut self, app: AppKey, now: Timestamp) {
        if let Some(bucket) = self.apps.get_mut(&app).and_then(|entry| entry.bucket.as_mut()) {
            bucket.take(now);
        }
    }

    /// What was spent then was not sent.
    pub fn give_back(&mut self, app: AppKey, spent_at: Timestamp) {
        let Some(entry) = self.apps.get_mut(&app) else { return };
        if let Some(bucket) = &mut entry.bucket {
            bucket.give_back(spent_at);
        }
        match entry.place {
            Place::Resting(until) => {
                self.resting.remove(&(until, app));
                self.rejoin(app);
            }
            Place::InRound | Place::Away => {}
        }
    }

    /// When the application was last held up by its rate.
    pub fn rated(&self, app: AppKey) -> Span {
        self.apps.get(&app).map(|entry| entry.rated).unwrap_or_default()
    }

    /// Whether it is at its rate.
    pub fn is_rated(&self, app: AppKey) -> bool {
        self.apps.get(&app).is_some_and(|entry| matches!(entry.place, Place::Resting(_)))
    }

    pub fn are_waiting(&self) -> bool {
        !self.round.is_empty()
    }

    pub fn wake_at(&self) -> Option<Timestamp> {
        self.resting.first().map(|(at, _)| *at)
    }

    fn wake(&mut self, now: Timestamp) {
        while let Some((_, app)) = self.resting.first().copied().filter(|(at, _)| *at <= now) {
            self.resting.pop_first();
            self.rejoin(app);
        }
    }

    fn rejoin(&mut self, app: AppKey) {
        if let Some(entry) = self.apps.get_mut(&app) {
            entry.place = Place::InRound;
            self.round.push_back(app);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_millis(1_000_000)
    }

    #[test]
    fn many_lanes_of_one_application_do_not_outweigh_one_of_another() {
        let mut turns = Turns::default();
        for lane in 0..100 {
            turns.join(AppKey::new(1), EndpointKey::new(lane));
        }
        turns.join(AppKey::new(2), EndpointKey::new(1_000));
        turns.next(now());
        assert_eq!(turns.next(now()), Some(EndpointKey::new(1_000)));
    }

    #[test]
    fn an_application_at_its_rate_steps_aside_and_its_lanes_keep_their_order() {
        let mut turns = Turns::default();
        turns.set_rate(AppKey::new(1), Some(1), None);
        for lane in 0..3 {
            turns.join(AppKey::new(1), EndpointKey::new(lane));
        }
        assert_eq!(turns.next(now()), Some(EndpointKey::new(0)));
        turns.spend(AppKey::new(1), now());
        assert_eq!(turns.next(now()), None);
        let later = turns.wake_at().expect("it waits for its rate");
        assert_eq!(turns.next(later), Some(EndpointKey::new(1)));
    }

    #[test]
    fn an_application_that_is_forgotten_has_no_turn_and_can_come_back() {
        let mut turns = Turns::default();
        for (app, rate) in [(1, None), (2, Some(1)), (3, None)] {
            turns.set_rate(AppKey::new(app), rate, None);
            turns.join(AppKey::new(app), EndpointKey::new(app));
        }
        turns.spend(AppKey::new(2), now());
        turns.join(AppKey::new(2), EndpointKey::new(20));
        assert_eq!(turns.next(now()), Some(EndpointKey::new(1)));
        turns.join(AppKey::new(1), EndpointKey::new(10));
        turns.forget(|app| app != AppKey::new(3));
        assert_eq!(turns.next(now()), Some(EndpointKey::new(3)));
        assert_eq!((turns.next(now()), turns.wake_at()), (None, None));
        turns.join(AppKey::new(2), EndpointKey::new(21));
        assert_eq!(turns.next(now()), Some(EndpointKey::new(21)));
        assert_eq!(turns.next(now()), None, "and stands in the round once");
    }
}
