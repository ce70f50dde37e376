//! When to tell people that something is wrong, and when that it is over: once each, however often it is looked at.
//!
//! Between what is bad and what is good lies what changes nothing, and both must last: otherwise what hovers at a bound
//! would be told every time that it crosses it.

use crate::Timestamp;
use std::{collections::VecDeque, time::Duration};

/// One thing that is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarm {
    is_raised: bool,
    /// Since when it has looked the other way without a break.
    turning_since: Option<Timestamp>,
}

/// What it looks like just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Bad,
    /// Neither bad enough to be raised nor good enough to be over, or nothing is known.
    Between,
    Good,
}

/// How long it must look so before that is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    pub raise_after: Duration,
    pub clear_after: Duration,
}

/// What people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Raised,
    Cleared,
}

impl Alarm {
    pub fn is_raised(&self) -> bool {
        self.is_raised
    }

    /// It is known from elsewhere whether people were told.
    pub fn know(&mut self, is_raised: bool) {
        if self.is_raised != is_raised {
            *self = Self { is_raised, turning_since: None };
        }
    }

    /// Nothing is wrong, and nothing has begun to be.
    pub fn is_quiet(&self) -> bool {
        *self == Self::default()
    }

    /// Looks once more. `Some`: people are to be told.
    pub fn look(&mut self, reading: Reading, patience: Patience, now: Timestamp) -> Option<Turn> {
        let (turns, lasts) = match self.is_raised {
            false => (reading == Reading::Bad, patience.raise_after),
            true => (reading == Reading::Good, patience.clear_after),
        };
        if !turns {
            self.turning_since = None;
            return None;
        }
        // A clock that was set back begins anew.
        let since = self.turning_since.filter(|since| *since <= now).unwrap_or(now);
        if now.since(since) < lasts {
            self.turning_since = Some(since);
            return None;
        }
        *self = Self { is_raised: !self.is_raised, turning_since: None };
        Some(if self.is_raised { Turn::Raised } else { Turn::Cleared })
    }
}

/// How many attempts succeeded lately, in slots of time so that it takes the same room however many there are.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The newest last; each with the number of its slot.
    slots: VecDeque<(i64, Tally)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub succeeded: u64,
    pub failed: u64,
}

impl Tally {
    pub fn total(self) -> u64 {
        self.succeeded + self.failed
    }

    /// In hundredths of a per cent, so that it can be compared exactly.
    pub fn rate(self) -> Option<u64> {
        (self.total() > 0).then(|| self.succeeded.saturating_mul(WHOLE) / self.total())
    }
}

/// A rate at which everything succeeds.
pub const WHOLE: u64 = 10_000;

const SLOTS: i64 = 10;

impl Window {
    pub fn note(&mut self, succeeded: bool, span: Duration, now: Timestamp) {
        let slot = slot(span, now);
        match self.slots.back_mut() {
            Some((newest, tally)) if *newest == slot => tally.count(succeeded),
            Some(_) | None => {
                self.drop_old(span, now);
                let mut tally = Tally::default();
                tally.count(succeeded);
                self.slots.push_back((slot, tally));
            }
        }
    }

    /// Of the last `span`, and up to a tenth of it more.
    pub fn tally(&mut self, span: Duration, now: Timestamp) -> Tally {
        self.drop_old(span, now);
        let add = |sum: Tally, (_, tally): &(i64, Tally)| Tally {
            succeeded: sum.succeeded + tally.succeeded,
            failed: sum.failed + tally.failed,
        };
        self.slots.iter().fold(Tally::default(), add)
    }

    /// What is of another time goes, also of one to come: a clock may be set back.
    fn drop_old(&mut self, span: Duration, now: Timestamp) {
        let current = slot(span, now);
        self.slots.retain(|(slot, _)| (current - SLOTS..=current).contains(slot));
    }
}

impl Tally {
    fn count(&mut self, succeeded: bool) {
        match succeeded {
            true => self.succeeded += 1,
            false => self.failed += 1,
        }
    }
}

fn slot(span: Duration, now: Timestamp) -> i64 {
    let length = i64::try_from(span.as_millis()).unwrap_or(i64::MAX) / SLOTS;
    now.as_millis().div_euclid(length.max(1))
}

/// When too few of an application's attempts succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateRule {
    /// Under it is bad: in hundredths of a per cent.
    pub rate_min: u64,
    /// Nothing is said of fewer.
    pub attempts_min: u64,
}

impl RateRule {
    /// Good is halfway between the bound and everything.
    pub fn read(&self, tally: Tally) -> Reading {
        let good_from = self.rate_min + (WHOLE - self.rate_min.min(WHOLE)) / 2;
        match tally.rate() {
            // Without traffic nothing is wrong, and nothing is shown to be right.
            None => Reading::Between,
            Some(_) if tally.total() < self.attempts_min => Reading::Between,
            Some(rate) if rate < self.rate_min => Reading::Bad,
            Some(rate) if rate >= good_from => Reading::Good,
            Some(_) => Reading::Between,
        }
    }
}

/// A count that is bad from `max` on, and good again under half of that.
pub fn read_count(count: u64, max: u64) -> Reading {
    if count >= max {
        Reading::Bad
    } else if count <= max / 2 {
        Reading::Good
    } else {
        Reading::Between
    }
}

/// What grows: bad if it has grown by `by` or more in `span`, good if by half of that at most.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// The oldest first.
    seen: VecDeque<(Timestamp, u64)>,
}

impl Growth {
    pub fn read(&mut self, count: u64, by: u64, span: Duration, now: Timestamp) -> Reading {
        self.seen.retain(|(at, _)| *at <= now);
        self.seen.push_back((now, count));
        // The last one that is old enough stays, as what the rest is compared with.
        while self.seen.get(1).is_some_and(|(at, _)| now.since(*at) >= span) {
            self.seen.pop_front();
        }
        let Some((since, before)) = self.seen.front().copied() else { return Reading::Between };
        match count.saturating_sub(before) {
            grown if grown >= by.max(1) => Reading::Bad,
            // Whoever has watched for less does not know that it is over.
            grown if grown <= by / 2 && now.since(since) >= span => Reading::Good,
            _ => Reading::Between,
        }
    }
}

/// Whether work that is due is left lying: it has been due for long, and nothing at all has been done for as long.
pub fn is_stuck(oldest_due: Option<Timestamp>, done_at: Timestamp, after: Duration, now: Timestamp) -> bool {
    oldest_due.is_some_and(|due| now.since(due) >= after) && now.since(done_at) >= after
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Patience = Patience { raise_after: Duration::from_secs(60), clear_after: Duration::from_secs(120) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    #[test]
    fn an_alarm_is_told_once_when_it_lasts_and_once_when_it_is_over() {
        use Reading::*;
        let mut alarm = Alarm::default();
        for (second, reading, expected) in [
            (0, Bad, None),
            (30, Bad, None),
            (40, Between, None),
            (50, Bad, None),
            (109, Bad, None),
            (110, Bad, Some(Turn::Raised)),
            (111, Bad, None),
            (500, Bad, None),
            (510, Good, None),
            (600, Between, None),
            (610, Good, None),
            (729, Good, None),
            (730, Good, Some(Turn::Cleared)),
            (731, Good, None),
            (9_000, Good, None),
        ] {
            assert_eq!(alarm.look(reading, PATIENCE, at(second)), expected, "{reading:?} at {second}");
        }
        assert!(alarm.is_quiet());
    }

    #[test]
    fn who_has_no_patience_is_told_at_once() {
        let none = Patience { raise_after: Duration::ZERO, clear_after: Duration::ZERO };
        let mut alarm = Alarm::default();
        assert_eq!(alarm.look(Reading::Bad, none, at(0)), Some(Turn::Raised));
        assert_eq!(alarm.look(Reading::Good, none, at(0)), Some(Turn::Cleared));
    }

    fn reading() -> impl Strategy<Value = Reading> {
        prop_oneof![Just(Reading::Bad), Just(Reading::Between), Just(Reading::Good)]
    }

    proptest! {
        #[test]
        fn what_is_told_takes_turns_and_is_never_sooner_than_patience_allows(
            looks in prop::collection::vec((0_i64..100, reading()), 1..400),
        ) {
            let (mut alarm, mut now, mut told) = (Alarm::default(), 0, Vec::new());
            let mut lasted: Option<(Reading, i64)> = None;
            for (gap, reading) in looks {
                now += gap;
                lasted = lasted.filter(|(before, _)| *before == reading).or(Some((reading, now)));
                if let Some(turn) = alarm.look(reading, PATIENCE, at(now)) {
                    let (reading, since) = lasted.expect("it was just set");
                    let (expected, least) = match turn {
                        Turn::Raised => (Reading::Bad, 60),
                        Turn::Cleared => (Reading::Good, 120),
                    };
                    prop_assert_eq!(reading, expected);
                    prop_assert!(now - since >= least);
                    told.push(turn);
                }
                prop_assert_eq!(alarm.is_raised(), told.last() == Some(&Turn::Raised));
            }
            for (number, turn) in told.iter().enumerate() {
                prop_assert_eq!(*turn, if number % 2 == 0 { Turn::Raised } else { Turn::Cleared });
            }
        }

        #[test]
        fn a_window_counts_what_lies_in_it(gaps in prop::collection::vec((0_i64..20, any::<bool>()), 0..200)) {
            let span = Duration::from_secs(100);
            let (mut window, mut now, mut all) = (Window::default(), 0, Vec::new());
            for (gap, succeeded) in gaps {
                now += gap;
                window.note(succeeded, span, at(now));
                all.push((now, succeeded));
                let tally = window.tally(span, at(now));
                let within = |least: i64| all.iter().filter(|(then, _)| now - then <= least).count() as u64;
                prop_assert!(within(100) <= tally.total(), "nothing of the span is left out");
                prop_assert!(tally.total() <= within(110), "and nothing older than a slot before it counted");
                let good = all.iter().filter(|(then, good)| *good && now - then <= 100).count() as u64;
                prop_assert!(good <= tally.succeeded && window.slots.len() <= 11);
            }
            prop_assert_eq!(window.tally(span, at(now + 1_000)), Tally::default());
        }
    }

    #[test]
    fn a_rate_is_bad_under_its_bound_and_good_halfway_above_it() {
        let rule = RateRule { rate_min: 9_000, attempts_min: 20 };
        for (succeeded, failed, expected) in [
            (0, 0, Reading::Between),
            (0, 19, Reading::Between),
            (0, 20, Reading::Bad),
            (899, 101, Reading::Bad),
            (900, 100, Reading::Between),
            (949, 51, Reading::Between),
            (950, 50, Reading::Good),
            (1_000, 0, Reading::Good),
        ] {
            assert_eq!(rule.read(Tally { succeeded, failed }), expected, "{succeeded} and {failed}");
        }
        let all = RateRule { rate_min: WHOLE, attempts_min: 1 };
        assert_eq!(all.read(Tally { succeeded: 10, failed: 0 }), Reading::Good);
        assert_eq!(all.read(Tally { succeeded: 9_999, failed: 1 }), Reading::Bad);
    }

    #[test]
    fn a_count_is_bad_from_its_bound_on_and_good_under_half_of_it() {
        for (count, expected) in
            [(0, Reading::Good), (5, Reading::Good), (6, Reading::Between), (9, Reading::Between), (10, Reading::Bad)]
        {
            assert_eq!(read_count(count, 10), expected, "{count}");
        }
    }

    #[test]
    fn what_grows_by_enough_in_its_span_is_bad_until_it_grows_by_half_of_that() {
        let span = Duration::from_secs(60);
        let mut growth = Growth::default();
        for (second, count, expected) in [
            (0, 1_000, Reading::Between),
            (30, 1_050, Reading::Between),
            (60, 1_100, Reading::Bad),
            (90, 1_120, Reading::Between),
            (120, 1_120, Reading::Good),
            (150, 1_120, Reading::Good),
            (180, 500, Reading::Good),
            (210, 540, Reading::Good),
            (240, 600, Reading::Bad),
        ] {
            assert_eq!(growth.read(count, 100, span, at(second)), expected, "at {second}");
        }
        assert!(growth.seen.len() <= 4);
    }

    #[test]
    fn work_is_stuck_if_it_is_long_due_and_nothing_is_done() {
        let minute = Duration::from_secs(60);
        for (due, done, expected) in [
            (None, 0, false),
            (Some(0), 0, true),
            (Some(41), 0, false),
            (Some(0), 41, false),
            (Some(40), 40, true),
            (Some(500), 0, false),
        ] {
            assert_eq!(is_stuck(due.map(at), at(done), minute, at(100)), expected, "due {due:?}, done {done}");
        }
    }
}
