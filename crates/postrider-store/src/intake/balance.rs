//! How much more may come in than goes out.
//!
//! A delivery that cannot be sent at once costs a row that is written, read again and rewritten. Messages that are owed to
//! hundreds bring more of these rows than anybody can send, at a rate that leaves no time for sending. So what comes in is set
//! off against what goes out: a rush is let in as fast as it can be written, and after that as much as goes out, and
//! `MORE_PER_SECOND` on top of it.

use std::time::{Duration, Instant};

/// Time is handed in.
#[derive(Debug)]
pub struct Balance {
    /// Deliveries that came in and were set off by nothing yet.
    open: f64,
    at: Instant,
}

impl Balance {
    pub fn new(now: Instant) -> Self {
        Self { open: 0.0, at: now }
    }

    pub fn came_in(&mut self, deliveries: usize, now: Instant) {
        self.pass(now);
        self.open += deliveries as f64;
    }

    /// Outcomes were written, whatever they were.
    pub fn went_out(&mut self, outcomes: usize, now: Instant) {
        self.pass(now);
        self.open = (self.open - outcomes as f64).max(0.0);
    }

    /// How long the next one has to wait if nothing goes out meanwhile; `None` if it may come in.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.pass(now);
        let excess = self.open - RUSH;
        (excess > 0.0).then(|| Duration::from_secs_f64(excess / MORE_PER_SECOND))
    }

    fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        self.open = (self.open - passed.as_secs_f64() * MORE_PER_SECOND).max(0.0);
    }
}

/// More than a small machine can take in of messages that are owed to one endpoint each. On PostgreSQL what goes out counts for
/// the node that sends it, which need not be the one that took it in.
const MORE_PER_SECOND: f64 = 25_000.0;
const RUSH: f64 = 50_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rush_comes_in_at_once_and_then_as_much_as_there_is_time_for() {
        let mut now = Instant::now();
        let mut balance = Balance::new(now);
        balance.came_in(RUSH as usize, now);
        assert_eq!(balance.wait(now), None);
        balance.came_in(MORE_PER_SECOND as usize, now);
        assert_eq!(balance.wait(now), Some(SECOND));
        now += SECOND;
        assert_eq!(balance.wait(now), None);
    }

    #[test]
    fn what_goes_out_lets_as_much_in() {
        let now = Instant::now();
        let mut balance = Balance::new(now);
        balance.came_in(RUSH as usize + 200, now);
        balance.went_out(199, now);
        assert!(balance.wait(now).is_some());
        balance.went_out(1, now);
        assert_eq!(balance.wait(now), None);
    }

    #[test]
    fn nothing_is_saved_up_for_later() {
        let mut now = Instant::now();
        let mut balance = Balance::new(now);
        balance.went_out(10_000_000, now);
        now += 3_600 * SECOND;
        balance.came_in(RUSH as usize + 1, now);
        assert!(balance.wait(now).is_some());
    }

    proptest! {
        #[test]
        fn whoever_waits_as_long_as_told_may_come_in(
            steps in prop::collection::vec((0..100_000usize, 0..100_000usize, 0..2_000u64), 1..50)
        ) {
            let mut now = Instant::now();
            let mut balance = Balance::new(now);
            for (came, went, millis) in steps {
                now += Duration::from_millis(millis);
                if let Some(wait) = balance.wait(now) {
                    now += wait + Duration::from_micros(1);
                    prop_assert_eq!(balance.wait(now), None);
                }
                balance.came_in(came, now);
                balance.went_out(went, now);
            }
        }
    }
}
