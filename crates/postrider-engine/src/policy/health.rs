//! How an endpoint fares: what its breaker says, how long it has been failing, how often it refused in a row.
//!
//! An endpoint that fails for days, or refuses everything, is disabled by a rule that its owner can see, after a
//! warning. What waits for it is held.

use super::breaker::Breaker;
use crate::time::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub breaker: Breaker,
    /// The first failure after which there has been no success.
    pub failing_since: Option<Timestamp>,
    /// Permanent failures in a row.
    pub permanent_streak: u32,
    /// Its owner has been told that it is about to be disabled.
    pub warned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisableRules {
    /// Disabled when it has been failing for so long without one success.
    pub failing_for: Option<Duration>,
    /// Disabled after so many permanent failures in a row.
    pub permanent_streak: Option<u32>,
}

impl Default for DisableRules {
    fn default() -> Self {
        Self { failing_for: Some(Duration::from_hours(5 * 24)), permanent_streak: Some(100) }
    }
}

/// Why an endpoint is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisableReason {
    /// A person asked for it.
    Manual,
    /// It answered 410.
    Gone,
    /// It failed for too long.
    Failing,
    /// It refused too many messages in a row for good.
    Quarantined,
    /// It asked for it, in an answer's header.
    Asked,
}
