//! For how long an event that is done stays known.

use std::time::Duration;

/// How long a redelivery is recognised after its event was done.
///
/// Senders repeat for days: Postrider for four by default and for thirty at most, and people send again later still. Below seven
/// days a late repetition would be worked off a second time; above thirty, tables only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(Duration);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{days} days: events are remembered for 7 to 30 days; `Retention::unusual` takes any time")]
pub struct RetentionError {
    days: u64,
}

impl Retention {
    /// 7 to 30.
    pub fn days(days: u64) -> Result<Self, RetentionError> {
        match (7..=30).contains(&days) {
            true => Ok(Self(Duration::from_hours(24 * days))),
            false => Err(RetentionError { days }),
        }
    }

    /// Any time at all: for a sender of whom it is known that it gives up sooner, or never.
    pub fn unusual(time: Duration) -> Self {
        Self(time)
    }

    pub fn time(self) -> Duration {
        self.0
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self(Duration::from_hours(24 * 30))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_outside_of_seven_to_thirty_days_must_be_said_by_name() {
        for (days, is_fine) in [(0, false), (6, false), (7, true), (30, true), (31, false), (u64::MAX, false)] {
            assert_eq!(Retention::days(days).is_ok(), is_fine, "{days} days");
        }
        assert_eq!(Retention::unusual(Duration::from_secs(1)).time(), Duration::from_secs(1));
    }
}
