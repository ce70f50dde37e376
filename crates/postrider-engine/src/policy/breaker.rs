//! A circuit breaker for one endpoint: after too many failures in a row it is left alone for a while.
//!
//! There is no third state for "half open": a breaker whose time is up lets exactly one request through, and who
//! keeps the lane knows whether that one is under way. So a crash in the middle of a probe leaves nothing behind that
//! would have to be cleared up.

use crate::time::Timestamp;
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

/// What a breaker says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Closed,
    Open { until: Timestamp },
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
}
