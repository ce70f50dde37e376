//! When to give up: after so many attempts, or so long after the first one, whichever comes first.

use super::classify::Class;
use crate::{
    planted::{Bug, planted},
    time::Timestamp,
};
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
        let attempts = attempts.saturating_sub(u32::from(planted(Bug::OneAttemptTooMany)));
        if attempts >= self.attempts_max {
            Err(Limit::Attempts)
        } else if due >= give_up_at && !planted(Bug::GiveUpIgnored) {
            Err(Limit::Time)
        } else {
            Ok(())
        }
    }
}

impl Leash {
    /// No wait of our own is longer on the leash, so that the tries it allows do fit into the time it allows: the
    /// usual schedule would be at its third or fourth try when the hour is over. With `n` tries there are `n - 1`
    /// waits, so that one share of the time is left for the requests themselves.
    pub fn wait_max(&self) -> Duration {
        self.total_max / self.attempts_max.max(1)
    }

    /// May one more attempt start at `due`, when the last `ambiguous` outcomes were, the first of them `since`?
    pub fn allows(&self, ambiguous: u32, since: Timestamp, due: Timestamp) -> Result<(), Limit> {
        Budget { attempts_max: self.attempts_max, total_max: self.total_max }.allows(
            ambiguous,
            since.plus(self.total_max),
            due,
        )
    }
}

impl Progress {
    /// One more attempt was made, whatever comes next.
    pub fn advanced(self, class: Class, budget: &Budget, started: Timestamp) -> Self {
        let (ambiguous, ambiguous_since) = match class {
            Class::Ambiguous => (self.ambiguous.saturating_add(1), self.ambiguous_since.or(Some(started))),
            Class::Delivered | Class::Transient | Class::Permanent | Class::Gone => (0, None),
        };
        Self {
            attempts: self.attempts.saturating_add(1),
            give_up_at: self.give_up_at.filter(|_| !planted(Bug::GiveUpMovesOn)).or(Some(budget.give_up_at(started))),
            last_delay: self.last_delay,
            ambiguous,
            ambiguous_since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Timestamp = Timestamp::from_millis(1_000);

    #[test]
    fn whichever_limit_comes_first_ends_it() {
        let budget = Budget { attempts_max: 3, total_max: Duration::from_secs(10) };
        let give_up_at = budget.give_up_at(START);
        let last_moment = Timestamp::from_millis(10_999);
        let too_late = Timestamp::from_millis(11_000);
        assert_eq!(budget.allows(2, give_up_at, last_moment), Ok(()));
        assert_eq!(budget.allows(3, give_up_at, last_moment), Err(Limit::Attempts));
        assert_eq!(budget.allows(2, give_up_at, too_late), Err(Limit::Time));
        assert_eq!(budget.allows(3, give_up_at, too_late), Err(Limit::Attempts));
    }

    #[test]
    fn the_leash_has_both_limits_as_well() {
        let leash = Leash { attempts_max: 5, total_max: Duration::from_hours(1) };
        let last_moment = START.plus(Duration::from_millis(3_599_999));
        let too_late = START.plus(Duration::from_hours(1));
        assert_eq!(leash.allows(4, START, last_moment), Ok(()));
        assert_eq!(leash.allows(5, START, last_moment), Err(Limit::Attempts));
        assert_eq!(leash.allows(4, START, too_late), Err(Limit::Time));
    }

    #[test]
    fn the_tries_of_a_leash_fit_into_its_time() {
        assert_eq!(Leash { attempts_max: 5, total_max: Duration::from_hours(1) }.wait_max(), Duration::from_mins(12));
        assert_eq!(Leash { attempts_max: 0, total_max: Duration::MAX }.wait_max(), Duration::MAX);
    }

    #[test]
    fn give_up_is_fixed_at_the_first_attempt() {
        let short = Budget { attempts_max: 3, total_max: Duration::from_secs(10) };
        let first = Progress::default().advanced(Class::Transient, &short, START);
        assert_eq!(first.give_up_at, Some(Timestamp::from_millis(11_000)));
        let long = Budget { attempts_max: 30, total_max: Duration::from_hours(10) };
        let second = first.advanced(Class::Transient, &long, Timestamp::from_millis(5_000));
        assert_eq!((second.attempts, second.give_up_at), (2, first.give_up_at), "whatever is set later");
    }

    #[test]
    fn ambiguous_outcomes_count_from_the_last_clear_one() {
        let budget = Budget { attempts_max: 10, total_max: Duration::from_hours(96) };
        let at = Timestamp::from_millis;
        let mut progress = Progress::default();
        for (class, started, expected) in [
            (Class::Ambiguous, 10, (1, Some(at(10)))),
            (Class::Ambiguous, 20, (2, Some(at(10)))),
            (Class::Transient, 30, (0, None)),
            (Class::Ambiguous, 40, (1, Some(at(40)))),
        ] {
            progress = progress.advanced(class, &budget, at(started));
            assert_eq!((progress.ambiguous, progress.ambiguous_since), expected, "{class:?} at {started}");
        }
        assert_eq!(progress.attempts, 4);
    }

    #[test]
    fn absurd_budgets_saturate() {
        let endless = Budget { attempts_max: u32::MAX, total_max: Duration::MAX };
        let spent = Progress { attempts: u32::MAX, ambiguous: u32::MAX, ..Progress::default() };
        let late = Timestamp::from_millis(i64::MAX);
        let next = spent.advanced(Class::Ambiguous, &endless, late);
        assert_eq!((next.attempts, next.ambiguous, next.give_up_at), (u32::MAX, u32::MAX, Some(late)));
        assert_eq!(endless.allows(u32::MAX, late, START), Err(Limit::Attempts));
    }

    proptest! {
        #[test]
        fn an_attempt_is_allowed_exactly_while_both_limits_are(
            max in 0..20u32, total in 0..1_000u64, made in 0..20u32, due in 0..3_000i64,
        ) {
            let budget = Budget { attempts_max: max, total_max: Duration::from_millis(total) };
            let due = Timestamp::from_millis(due);
            let allowed = budget.allows(made, budget.give_up_at(START), due).is_ok();
            prop_assert_eq!(allowed, made < max && due < START.plus(budget.total_max));
        }
    }
}
