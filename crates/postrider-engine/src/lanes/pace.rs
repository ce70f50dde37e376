//! How many a second.

use crate::time::Timestamp;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Counts by the second, so that it costs the same however many there are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    since: Timestamp,
    count: usize,
    /// In the second before.
    before: usize,
}

impl Pace {
    /// One more.
    pub fn step(&mut self, now: Timestamp) {
        let passed = now.since(self.since);
        if passed >= SECOND {
            self.before = if passed < 2 * SECOND { self.count } else { 0 };
            (self.since, self.count) = (now, 0);
        }
        self.count += 1;
    }

    /// How many there were in the last second, or about that.
    pub fn per_second(&self, now: Timestamp) -> usize {
        match now.since(self.since) {
            passed if passed < SECOND => self.count.max(self.before),
            passed if passed < 2 * SECOND => self.count,
            _ => 0,
        }
    }

    /// The clock says less than it did.
    pub fn set_back(&mut self, now: Timestamp) {
        self.since = self.since.min(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn it_is_what_came_in_the_second_before_or_in_this_one() {
        let mut pace = Pace::default();
        assert_eq!(pace.per_second(at(10_000)), 0);
        for millis in 10_000..10_300 {
            pace.step(at(millis));
        }
        assert_eq!(pace.per_second(at(10_999)), 300);
        for millis in 11_000..11_010 {
            pace.step(at(millis));
        }
        assert_eq!(pace.per_second(at(11_010)), 300);
        for millis in 12_000..12_020 {
            pace.step(at(millis));
        }
        assert_eq!(pace.per_second(at(12_020)), 20);
    }

    #[test]
    fn after_a_second_without_any_there_are_none() {
        let mut pace = Pace::default();
        pace.step(at(10_000));
        assert_eq!(pace.per_second(at(11_999)), 1);
        assert_eq!(pace.per_second(at(12_000)), 0);
        pace.step(at(20_000));
        assert_eq!(pace.per_second(at(20_000)), 1);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_stop_the_count() {
        let mut pace = Pace::default();
        pace.step(at(50_000));
        pace.set_back(at(10_000));
        pace.step(at(12_000));
        assert_eq!(pace.per_second(at(12_000)), 1);
    }
}
