//! When whoever is turned away is told so.
//!
//! A client sends its next request on a connection when it has the answer to the one before. Said at once, no would be asked
//! for again at once, and saying no would be all that gets done: it takes a good part of the work that yes does. So the
//! answers have a pace, which is then that of the questions as well.

use std::time::{Duration, Instant};

/// Time is handed in.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the next one may be told; `None` if nobody was yet.
    free_at: Option<Instant>,
    turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Not before.
    pub at: Instant,
    /// What is then said about when to come again.
    pub retry_after: Duration,
}

impl Pace {
    /// For one who comes now and finds no room.
    pub fn refuse(&mut self, now: Instant) -> Refusal {
        let at = self.free_at.map_or(now, |free| free.clamp(now, now + WAIT_MAX));
        self.free_at = Some(at + INTERVAL);
        self.turn = self.turn.wrapping_add(1);
        // They came together. In turns, so that they do not come back together as well.
        let retry_after = Duration::from_secs(1 + self.turn % RETRY_AFTER_MAX.as_secs());
        Refusal { at, retry_after }
    }
}

/// 2,000 in a second, so that as a rule saying no takes a small part of one processor.
const INTERVAL: Duration = Duration::from_micros(500);
/// However many wait. Every connection has then been quiet for that long, and connections are counted: 10,000 of them hear no
/// more than 3,400 times a second. It must be less than the shortest time that a client or a proxy may reasonably wait for an
/// answer.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// `Retry-After` is in whole seconds.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_one_after_the_other() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for place in 0..1_000 {
            assert_eq!(pace.refuse(now).at, now + place * INTERVAL);
        }
    }

    #[test]
    fn nobody_waits_for_longer_than_three_seconds() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for _ in 0..10_000 {
            assert!(pace.refuse(now).at <= now + WAIT_MAX);
        }
        let later = now + INTERVAL / 2;
        assert_eq!(pace.refuse(later).at, later + WAIT_MAX, "the crowd is still there");
    }

    #[test]
    fn when_the_crowd_is_gone_the_next_is_told_at_once() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for _ in 0..10_000 {
            pace.refuse(now);
        }
        let later = now + WAIT_MAX + INTERVAL;
        assert_eq!(pace.refuse(later).at, later);
    }

    #[test]
    fn those_who_come_together_are_not_sent_back_together() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let mut count = [0; 4];
        for _ in 0..300 {
            count[pace.refuse(now).retry_after.as_secs() as usize] += 1;
        }
        assert_eq!(count, [0, 100, 100, 100]);
    }

    proptest! {
        #[test]
        fn they_are_told_in_the_order_in_which_they_came(gaps in prop::collection::vec(0..3_000u64, 1..500)) {
            let (mut pace, mut now) = (Pace::default(), Instant::now());
            let mut last = now;
            for gap in gaps {
                now += Duration::from_micros(gap);
                let at = pace.refuse(now).at;
                prop_assert!(now <= at && last <= at && at <= now + WAIT_MAX);
                last = at;
            }
        }
    }
}
