//! A token bucket that remembers one number: when the next request conforms (GCRA).

use crate::time::Timestamp;

/// Lets `per_second` requests through each second, and as many at once after a rest.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_second: u32,
    /// Microseconds since 1970 at which the bucket is full again.
    full_at: i64,
    /// When something was last taken, in the same.
    taken_at: i64,
    /// What one of those took that were taken then, at least: the rate may have changed since.
    taken: i64,
}

const SECOND: i64 = 1_000_000;

impl Bucket {
    /// `None` where there is no limit.
    pub fn new(per_second: Option<u32>) -> Option<Self> {
        let per_second = per_second.filter(|rate| *rate > 0)?;
        Some(Self { per_second, full_at: i64::MIN, taken_at: i64::MIN, taken: 0 })
    }

    /// Full no sooner than if it had been emptied then.
    pub fn emptied(self, at: Timestamp) -> Self {
        Self { full_at: self.full_at.max(at.as_millis().saturating_mul(1_000).saturating_add(SECOND)), ..self }
    }

    /// The clock says less than it did: it is full no later than if it had been emptied now, and nobody waits for the clock
    /// to catch up.
    pub fn set_back(self, now: Timestamp) -> Self {
        Self { full_at: self.full_at.min(now.as_millis().saturating_mul(1_000).saturating_add(SECOND)), ..self }
    }

    /// A changed rate keeps what has been used up: setting a limit anew is not a way around it.
    pub fn with_rate(self, per_second: Option<u32>) -> Option<Self> {
        Self::new(per_second).map(|bucket| Self { per_second: bucket.per_second, ..self })
    }

    /// Ready now, or the time from which it will be.
    pub fn ready(&self, now: Timestamp) -> Result<(), Timestamp> {
        let now = now.as_millis().saturating_mul(1_000);
        let emptied_by_one_more = self.full_at.max(now).saturating_add(self.cost());
        let wait = emptied_by_one_more.saturating_sub(now).saturating_sub(SECOND);
        if wait <= 0 {
            Ok(())
        } else {
            let ready_at = now.saturating_add(wait);
            Err(Timestamp::from_millis(ready_at.saturating_add(999).div_euclid(1_000)))
        }
    }

    /// It says nothing that a new one does not.
    pub fn is_full(&self, now: Timestamp) -> bool {
        self.full_at <= now.as_millis().saturating_mul(1_000)
    }

    pub fn take(&mut self, now: Timestamp) {
        let now = now.as_millis().saturating_mul(1_000);
        self.taken = if self.taken_at == now { self.taken.min(self.cost()) } else { self.cost() };
        self.taken_at = now;
        self.full_at = self.full_at.max(now).saturating_add(self.cost());
    }

    /// What was taken then was not used. Only as long as nothing was taken later: then it is not known any more how full the
    /// bucket would be without it.
    pub fn give_back(&mut self, taken_at: Timestamp) {
        if taken_at.as_millis().saturating_mul(1_000) == self.taken_at {
            self.full_at = self.full_at.saturating_sub(self.taken);
        }
    }

    /// What one request takes out, rounded up so that rounding never lets more through.
    fn cost(&self) -> i64 {
        (SECOND + i64::from(self.per_second) - 1) / i64::from(self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_bucket_gives_a_second_of_requests_at_once_and_then_one_by_one() {
        let mut bucket = Bucket::new(Some(2)).expect("a limit");
        let start = Timestamp::from_millis(10_000);
        bucket.take(start);
        assert_eq!(bucket.ready(start), Ok(()));
        bucket.take(start);
        assert_eq!(bucket.ready(start), Err(Timestamp::from_millis(10_500)));
        assert_eq!(bucket.ready(Timestamp::from_millis(10_500)), Ok(()));
    }

    #[test]
    fn an_emptied_bucket_gives_nothing_at_once_and_then_one_by_one() {
        let start = Timestamp::from_millis(10_000);
        let mut bucket = Bucket::new(Some(2)).expect("a limit").emptied(start);
        assert_eq!(bucket.ready(start), Err(Timestamp::from_millis(10_500)));
        bucket.take(Timestamp::from_millis(10_500));
        assert_eq!(bucket.ready(Timestamp::from_millis(10_500)), Err(Timestamp::from_millis(11_000)));
        let rested = Timestamp::from_millis(12_000);
        bucket.take(rested);
        assert_eq!(bucket.ready(rested), Ok(()), "it fills up like any other");
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_but_not_twice() {
        let mut bucket = Bucket::new(Some(2)).expect("a limit");
        let (start, rested) = (Timestamp::from_millis(10_000), Timestamp::from_millis(12_000));
        bucket.take(start);
        bucket.take(start);
        bucket.give_back(start);
        assert_eq!(bucket.ready(start), Ok(()));
        bucket.take(start);
        assert_eq!(bucket.ready(start), Err(Timestamp::from_millis(10_500)));
        bucket.take(rested);
        bucket.give_back(start);
        bucket.take(rested);
        assert_eq!(bucket.ready(rested), Err(Timestamp::from_millis(12_500)), "something was taken since");
    }

    #[test]
    fn no_more_is_given_back_than_was_taken_when_the_rate_was_another() {
        let start = Timestamp::from_millis(10_000);
        let mut bucket = Bucket::new(Some(100)).expect("a limit").emptied(Timestamp::from_millis(9_990));
        bucket.take(start);
        let mut slower = bucket.with_rate(Some(4)).expect("a limit");
        slower.give_back(start);
        assert_eq!(slower.ready(start), Err(Timestamp::from_millis(10_240)));
        // Both at once, and one before the change: neither gives back more than the cheaper one took.
        let mut both = bucket.with_rate(Some(4)).expect("a limit");
        both.take(start);
        both.give_back(start);
        both.give_back(start);
        assert_eq!(both.ready(start), Err(Timestamp::from_millis(10_480)));
    }

    #[test]
    fn a_bucket_does_not_wait_for_a_clock_that_was_set_back() {
        let mut bucket = Bucket::new(Some(2)).expect("a limit");
        let (late, early) = (Timestamp::from_millis(90_000_000), Timestamp::from_millis(10_000));
        bucket.take(late);
        assert_eq!(bucket.set_back(early).ready(early), Err(Timestamp::from_millis(10_500)));
        assert_eq!(bucket.set_back(late).ready(late), Ok(()), "it keeps what it has");
    }

    proptest! {
        #[test]
        fn in_every_window_at_most_rate_plus_burst(rate in 1..200u32, steps in prop::collection::vec(0..300i64, 1..400)) {
            let mut bucket = Bucket::new(Some(rate)).expect("a limit");
            let (mut now, mut starts) = (0, Vec::new());
            for step in steps {
                now += step;
                if bucket.ready(Timestamp::from_millis(now)).is_ok() {
                    bucket.take(Timestamp::from_millis(now));
                    starts.push(now);
                }
            }
            for (first, from) in starts.iter().enumerate() {
                for (last, until) in starts.iter().enumerate().skip(first) {
                    let allowed = i64::from(rate) * (until - from) / 1_000 + i64::from(rate) + 1;
                    prop_assert!((last - first + 1) as i64 <= allowed);
                }
            }
        }

        #[test]
        fn the_promised_time_is_kept(rate in 1..5_000u32, takes in 1..100usize) {
            let mut bucket = Bucket::new(Some(rate)).expect("a limit");
            let mut now = Timestamp::from_millis(0);
            for _ in 0..takes {
                if let Err(later) = bucket.ready(now) {
                    prop_assert!(later > now);
                    now = later;
                    prop_assert_eq!(bucket.ready(now), Ok(()));
                }
                bucket.take(now);
            }
        }
    }
}
