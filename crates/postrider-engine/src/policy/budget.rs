//! When to give up: after so many attempts, or so long after the first one, whichever comes first.

use crate::time::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Counts the first try.
    pub attempts_max: u32,
    pub total_max: Duration,
}

/// The limits of outcomes that may be a wrong address: fewer tries, closer together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leash {
    /// Ambiguous outcomes, the first one included.
    pub attempts_max: u32,
    /// Since the first ambiguous one.
    pub total_max: Duration,
}

/// How far a delivery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Attempts made in this cycle. A replay starts a new cycle.
    pub attempts: u32,
    /// Fixed at the first attempt, however long the delivery waited before and whatever is set later.
    pub give_up_at: Option<Timestamp>,
    /// What was waited by the schedule before the latest attempt.
    pub last_delay: Option<Duration>,
    /// Ambiguous outcomes since the last one that was not.
    pub ambiguous: u32,
    pub ambiguous_since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Attempts,
    Time,
}

impl Budget {
    pub fn give_up_at(&self, first_attempt_at: Timestamp) -> Timestamp {
        first_attempt_at.plus(self.total_max)
    }

    /// May one more attempt start at `due`, when `attempts` have been made?
    pub fn allows(&self, attempts: u32, give_up_at: Timestamp, due: Timestamp) -> Result<(), Limit> {
        if attempts >= self.attempts_max {
            Err(Limit::Attempts)
        } else if due >= give_up_at {
            Err(Limit::Time)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whichever_limit_comes_first_ends_it() {
        let budget = Budget { attempts_max: 3, total_max: Duration::from_secs(10) };
        let start = Timestamp::from_millis(1_000);
        let last_moment = Timestamp::from_millis(10_999);
        let too_late = Timestamp::from_millis(11_000);
        assert_eq!(budget.allows(2, start, last_moment), Ok(()));
        assert_eq!(budget.allows(3, start, last_moment), Err(Limit::Attempts));
        assert_eq!(budget.allows(2, start, too_late), Err(Limit::Time));
    }
}
