//! When to give up: after so many attempts, or so long after the first one, whichever comes first.

use crate::time::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Counts the first try.
    pub attempts_max: u32,
    pub total_max: Duration,
}

/// How far a delivery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Attempts made in this cycle. A replay starts a new cycle.
    pub attempts: u32,
    /// The time budget runs from here, however long the delivery waited before.
    pub first_attempt_at: Option<Timestamp>,
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
    pub fn allows(&self, attempts: u32, first_attempt_at: Timestamp, due: Timestamp) -> Result<(), Limit> {
        if attempts >= self.attempts_max {
            Err(Limit::Attempts)
        } else if due >= self.give_up_at(first_attempt_at) {
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
