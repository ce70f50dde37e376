//! A circuit breaker for one endpoint: after too many failures in a row it is left alone for a while.
//!
//! There is no third state for "half open": a breaker whose time is up lets exactly one request through, and who
//! keeps the lane knows whether that one is under way. So a crash in the middle of a probe leaves nothing behind that
//! would have to be cleared up.

use crate::{
    planted::{Bug, planted},
    time::Timestamp,
};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRules {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open at first; doubled each time the probe fails.
    pub cool_down: Duration,
    pub cool_down_max: Duration,
    pub while_open: WhileOpen,
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self {
            failures: 20,
            cool_down: Duration::from_secs(30),
            cool_down_max: Duration::from_mins(15),
            while_open: WhileOpen::Hold,
        }
    }
}

/// What becomes of deliveries whose turn comes while the breaker is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhileOpen {
    #[default]
    Hold,
    DeadLetter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    Closed {
        /// In a row, up to now.
        failures: u32,
    },
    /// Nothing is sent before `until`; after it, one probe.
    Open {
        until: Timestamp,
        /// How often it opened since it was last closed: the cool-down grows with it.
        trips: u32,
    },
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// What a breaker means for a request that would start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Closed,
    Open {
        until: Timestamp,
    },
    /// One request may find out how the endpoint is.
    HalfOpen,
}

impl Breaker {
    pub fn standing(&self, now: Timestamp) -> Standing {
        match *self {
            Self::Closed { .. } => Standing::Closed,
            Self::Open { until, .. } if now < until => Standing::Open { until },
            Self::Open { .. } => Standing::HalfOpen,
        }
    }

    /// One more failure in a row.
    pub(super) fn tripped(self, rules: &BreakerRules, now: Timestamp) -> Self {
        let trips = match self {
            Self::Closed { failures } => {
                let failures = failures.saturating_add(1);
                if failures < rules.failures {
                    return Self::Closed { failures };
                }
                1
            }
            Self::Open { trips, .. } => trips.saturating_add(1),
        };
        let cool_down = rules.cool_down_after(trips) / if planted(Bug::OpenTooShort) { 2 } else { 1 };
        Self::Open { until: now.plus(cool_down), trips }
    }
}

impl BreakerRules {
    /// How long it stays open after it has opened so often: doubled each time, up to the longest.
    pub fn cool_down_after(&self, trips: u32) -> Duration {
        let doubled = 1_u32.checked_shl(trips.saturating_sub(1)).unwrap_or(u32::MAX);
        self.cool_down.saturating_mul(doubled).min(self.cool_down_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_breaker_stands_open_until_its_time_and_then_half_open() {
        let at = Timestamp::from_millis;
        let open = Breaker::Open { until: at(100), trips: 1 };
        assert_eq!(open.standing(at(99)), Standing::Open { until: at(100) });
        assert_eq!(open.standing(at(100)), Standing::HalfOpen);
        assert_eq!(Breaker::Closed { failures: 99 }.standing(at(0)), Standing::Closed);
    }

    #[test]
    fn the_cool_down_doubles_up_to_the_longest() {
        let rules = BreakerRules::default();
        let seconds: Vec<u64> = (1..=7).map(|trips| rules.cool_down_after(trips).as_secs()).collect();
        assert_eq!(seconds, [30, 60, 120, 240, 480, 900, 900]);
    }

    proptest! {
        #[test]
        fn the_cool_down_never_shrinks_and_never_exceeds_the_longest(cool_down: u64, max: u64, trips: u32) {
            let rules = BreakerRules {
                cool_down: Duration::from_millis(cool_down),
                cool_down_max: Duration::from_millis(max),
                ..BreakerRules::default()
            };
            let (now, next) = (rules.cool_down_after(trips), rules.cool_down_after(trips.saturating_add(1)));
            prop_assert!(now <= next && next <= rules.cool_down_max);
        }
    }
}
