//! Shows a schedule before it is used: when each attempt would run, within which bounds, and what ends it.
//!
//! For a receiver that fails each time at once, without a `Retry-After`, in a way that is retried. Requests that take
//! their time, and receivers that ask for more of it, make everything later than shown.

use super::{
    backoff::{Backoff, Jitter, Shape, whole_millis},
    rules::Policy,
    words::Spelt,
};
use std::{fmt, time::Duration};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    pub attempts: Vec<Planned>,
    pub ends: End,
    pub warnings: Vec<Warning>,
}

/// One attempt, by the time since the first one started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Counts from 1, the first try included.
    pub attempt: u32,
    pub earliest: Duration,
    /// Without chance, as far as the bounds allow.
    pub nominal: Duration,
    pub latest: Duration,
    /// Otherwise it is made only if chance leaves time for it.
    pub certain: bool,
}

/// What ends a delivery that never succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All attempts are used, in any case.
    Attempts,
    /// The time runs out, in any case.
    Time,
    /// Either, by chance.
    Chance,
    /// There are more attempts than a preview shows.
    Unseen,
}

/// What may not be what was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    OnlyOneAttempt,
    FirstRetryTooLate { earliest: Duration, total_max: Duration },
    AttemptsNeverAct { attempts_max: u32, possible: u32 },
    TimeNeverActs { total_max: Duration, latest: Duration },
    CapNeverReached { cap: Duration, longest: Duration },
    CapCutsTable { cap: Duration, longest: Duration },
    TableLongerThanAttempts { delays: usize, retries: u32 },
    NoSpread,
    NoSpreadAtCap { cap: Duration },
}

pub fn preview(policy: &Policy) -> Preview {
    let (backoff, budget) = (&policy.backoff, &policy.budget);
    let total = Duration::from_millis(whole_millis(budget.total_max));
    let last_moment = total.saturating_sub(Duration::from_millis(1));
    let first = Planned {
        attempt: 1,
        earliest: Duration::ZERO,
        nominal: Duration::ZERO,
        latest: Duration::ZERO,
        certain: true,
    };
    let mut attempts = vec![first];
    // Sums that the budget does not cut: what chance could do if there were time for it.
    let (mut earliest, mut nominal, mut latest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut longest_before = None;
    let by_attempts = |last: &Planned| if last.certain { End::Attempts } else { End::Chance };
    let ends = loop {
        let last = *attempts.last().expect("there is a first attempt");
        if last.attempt >= budget.attempts_max {
            break by_attempts(&last);
        }
        if last.attempt >= PLANNED_MAX {
            break End::Unseen;
        }
        let retry = last.attempt;
        let (Some(wait), Some((shortest, longest))) = (backoff.nominal(retry), backoff.bounds(retry, longest_before))
        else {
            break by_attempts(&last);
        };
        earliest = earliest.saturating_add(shortest);
        nominal = nominal.saturating_add(wait);
        latest = latest.saturating_add(longest);
        longest_before = Some(longest);
        if earliest >= total {
            break End::Time;
        }
        let cut = latest.min(last_moment);
        attempts.push(Planned {
            attempt: retry + 1,
            earliest,
            nominal: nominal.clamp(earliest, cut),
            latest: cut,
            certain: latest < total,
        });
    };
    let warnings = warnings(policy, &attempts, ends, earliest);
    Preview { attempts, ends, warnings }
}

/// `next` is when the attempt after the last planned one could have come at the earliest.
fn warnings(policy: &Policy, attempts: &[Planned], ends: End, next: Duration) -> Vec<Warning> {
    let (backoff, budget) = (&policy.backoff, &policy.budget);
    let last = attempts.last().expect("there is a first attempt");
    if budget.attempts_max <= 1 {
        return vec![Warning::OnlyOneAttempt];
    }
    let mut warnings = Vec::new();
    let (attempts_max, total_max) = (budget.attempts_max, budget.total_max);
    match ends {
        End::Time if last.attempt == 1 => warnings.push(Warning::FirstRetryTooLate { earliest: next, total_max }),
        End::Time => warnings.push(Warning::AttemptsNeverAct { attempts_max, possible: last.attempt }),
        End::Attempts => warnings.push(Warning::TimeNeverActs { total_max, latest: last.latest }),
        End::Chance | End::Unseen => {}
    }
    let waits = || (1..last.attempt).filter_map(|retry| backoff.nominal(retry));
    if let Some(longest) = longest_growing_wait(backoff, last.attempt).filter(|longest| *longest < backoff.cap) {
        warnings.push(Warning::CapNeverReached { cap: backoff.cap, longest });
    }
    if let Shape::Table { delays, then: _ } = &backoff.shape {
        if let Some(longest) = delays.iter().max().copied().filter(|longest| *longest > backoff.cap) {
            warnings.push(Warning::CapCutsTable { cap: backoff.cap, longest });
        }
        let retries = attempts_max - 1;
        if u32::try_from(delays.len()).unwrap_or(u32::MAX) > retries {
            warnings.push(Warning::TableLongerThanAttempts { delays: delays.len(), retries });
        }
    }
    match backoff.jitter {
        Jitter::None | Jitter::Proportional { percent: 0 } | Jitter::Additive { percent: 0 } => {
            warnings.push(Warning::NoSpread);
        }
        Jitter::Additive { .. } if waits().any(|wait| wait >= backoff.cap) => {
            warnings.push(Warning::NoSpreadAtCap { cap: backoff.cap });
        }
        Jitter::Full | Jitter::Equal | Jitter::Decorrelated | Jitter::Proportional { .. } | Jitter::Additive { .. } => {
        }
    }
    warnings
}

/// The longest wait before an attempt up to this one, where waits grow by themselves: a cap on others is no mistake.
fn longest_growing_wait(backoff: &Backoff, attempt: u32) -> Option<Duration> {
    match (&backoff.shape, backoff.jitter) {
        (Shape::Exponential { .. }, _) | (Shape::Fixed { .. } | Shape::Table { .. }, Jitter::Decorrelated) => {
            let mut longest = None;
            for retry in 1..attempt {
                longest = backoff.bounds(retry, longest).map(|(_, longest)| longest).max(longest);
            }
            longest
        }
        (
            Shape::Fixed { .. } | Shape::Table { .. },
            Jitter::None | Jitter::Full | Jitter::Equal | Jitter::Proportional { .. } | Jitter::Additive { .. },
        ) => None,
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OnlyOneAttempt => f.write_str("There is one attempt and no retry."),
            Self::FirstRetryTooLate { earliest, total_max } => write!(
                f,
                "There is no retry: the first one would come after {} at the earliest, and the time limit is {}.",
                Spelt(earliest),
                Spelt(total_max)
            ),
            Self::AttemptsNeverAct { attempts_max, possible } => write!(
                f,
                "The limit of {attempts_max} attempts never acts: the time runs out after {possible} at most."
            ),
            Self::TimeNeverActs { total_max, latest } => write!(
                f,
                "The time limit of {} acts only if the receiver asks for longer waits, is slow, or is left alone for a \
                 while: the last attempt starts after {} at most.",
                Spelt(total_max),
                Spelt(latest)
            ),
            Self::CapNeverReached { cap, longest } => {
                write!(f, "The cap of {} never acts: the longest wait is {}.", Spelt(cap), Spelt(longest))
            }
            Self::CapCutsTable { cap, longest } => {
                write!(f, "The cap of {} shortens the table, whose longest delay is {}.", Spelt(cap), Spelt(longest))
            }
            Self::TableLongerThanAttempts { delays, retries } => {
                write!(f, "The table has {delays} delays, and there are {retries} retries at most.")
            }
            Self::NoSpread => {
                f.write_str("There is no jitter: deliveries that fail together are tried again together.")
            }
            Self::NoSpreadAtCap { cap } => write!(
                f,
                "Waits of {}, the cap, are not spread: this jitter only adds, and nothing may be added there.",
                Spelt(cap)
            ),
        }
    }
}

/// As many as settings allow.
const PLANNED_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keys::Trigger,
        outcome::{Answer, Outcome},
        policy::{
            backoff::{
                AfterTable, Factor,
                tests::{any_backoff, doubling},
            },
            budget::{Budget, Progress},
            verdict::{DeathReason, Next, judge},
        },
        time::Timestamp,
    };
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const MINUTE: Duration = Duration::from_mins(1);
    const DAY: Duration = Duration::from_hours(24);

    fn policy(backoff: Backoff, attempts_max: u32, total_max: Duration) -> Policy {
        Policy { backoff, budget: Budget { attempts_max, total_max }, ..Policy::default() }
    }

    fn table(delays: &[Duration], then: AfterTable) -> Shape {
        Shape::Table { delays: delays.to_vec(), then }
    }

    fn simulate(policy: &Policy, seed: u64) -> (Vec<Duration>, DeathReason) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let unavailable = Outcome::Answered(Answer { status: 503, ..Answer::default() });
        let start = Timestamp::from_millis(0);
        let (mut now, mut starts, mut progress) = (start, vec![Duration::ZERO], Progress::default());
        loop {
            let verdict = judge(policy, Trigger::Scheduled, progress, &unavailable, (now, now), &mut rng);
            progress = verdict.progress;
            match verdict.next {
                Next::Retry { due, .. } => {
                    now = due;
                    starts.push(due.since(start));
                }
                Next::Dead(reason) => return (starts, reason),
                other @ (Next::Delivered | Next::Nothing | Next::Postponed { .. }) => panic!("unexpected {other:?}"),
            }
        }
    }

    #[test]
    fn the_default_is_shown_with_its_bounds() {
        let shown = preview(&Policy::default());
        assert_eq!(shown.attempts.len(), 10);
        assert!(shown.attempts.iter().all(|planned| planned.certain));
        let last = shown.attempts[9];
        let nominal = Duration::from_secs(5 + 300 + 1_800 + 3_600 * (2 + 5 + 10 + 14 + 20 + 24));
        assert_eq!((last.earliest, last.nominal, last.latest), (nominal / 2, nominal, nominal));
        assert_eq!(shown.ends, End::Attempts);
        assert_eq!(shown.warnings, [Warning::TimeNeverActs { total_max: 4 * DAY, latest: nominal }]);
    }

    #[test]
    fn an_attempt_that_depends_on_chance_says_so() {
        let shown = preview(&policy(doubling(MINUTE, DAY, Jitter::Full), 4, 3 * MINUTE));
        let certain: Vec<bool> = shown.attempts.iter().map(|planned| planned.certain).collect();
        assert_eq!(certain, [true, true, false, false]);
        assert_eq!(shown.attempts[3].latest, 3 * MINUTE - Duration::from_millis(1));
        assert_eq!(shown.ends, End::Chance);
    }

    #[test]
    fn a_limit_that_can_never_act_is_named() {
        let minutely = |attempts, total| {
            let backoff = Backoff { shape: Shape::Fixed { interval: MINUTE }, cap: DAY, jitter: Jitter::Full };
            preview(&policy(backoff, attempts, total))
        };
        let certain = |attempts, total| {
            let backoff = Backoff { shape: Shape::Fixed { interval: MINUTE }, cap: DAY, jitter: Jitter::Equal };
            preview(&policy(backoff, attempts, total))
        };
        assert_eq!(minutely(5, 3 * MINUTE).warnings, [], "either may act");
        assert_eq!(
            minutely(5, 5 * MINUTE).warnings,
            [Warning::TimeNeverActs { total_max: 5 * MINUTE, latest: 4 * MINUTE }]
        );
        assert_eq!(certain(50, 5 * MINUTE).warnings, [Warning::AttemptsNeverAct { attempts_max: 50, possible: 10 }]);
        assert_eq!(certain(50, 5 * MINUTE).ends, End::Time);
    }

    #[test]
    fn other_oddities_are_named() {
        let warnings = |backoff, attempts, total| preview(&policy(backoff, attempts, total)).warnings;
        assert_eq!(warnings(doubling(MINUTE, DAY, Jitter::Full), 1, DAY), [Warning::OnlyOneAttempt]);
        assert!(
            warnings(doubling(MINUTE, DAY, Jitter::None), 3, MINUTE)
                .contains(&Warning::FirstRetryTooLate { earliest: MINUTE, total_max: MINUTE })
        );
        assert!(
            warnings(doubling(MINUTE, DAY, Jitter::Full), 4, DAY)
                .contains(&Warning::CapNeverReached { cap: DAY, longest: 4 * MINUTE })
        );
        assert!(
            !warnings(doubling(MINUTE, 4 * MINUTE, Jitter::Full), 4, DAY)
                .iter()
                .any(|warning| matches!(warning, Warning::CapNeverReached { .. }))
        );
        assert!(warnings(doubling(MINUTE, DAY, Jitter::None), 4, DAY).contains(&Warning::NoSpread));
        assert!(
            warnings(doubling(MINUTE, 2 * MINUTE, Jitter::Additive { percent: 20 }), 4, DAY)
                .contains(&Warning::NoSpreadAtCap { cap: 2 * MINUTE })
        );
        let long_table = Backoff {
            shape: table(&[MINUTE, 3 * MINUTE, MINUTE], AfterTable::End),
            cap: 2 * MINUTE,
            jitter: Jitter::Equal,
        };
        let named = warnings(long_table, 3, DAY);
        assert!(named.contains(&Warning::CapCutsTable { cap: 2 * MINUTE, longest: 3 * MINUTE }));
        assert!(named.contains(&Warning::TableLongerThanAttempts { delays: 3, retries: 2 }));
    }

    #[test]
    fn a_table_that_ends_uses_up_the_attempts() {
        let backoff = Backoff { shape: table(&[MINUTE, MINUTE], AfterTable::End), cap: DAY, jitter: Jitter::Equal };
        let shown = preview(&policy(backoff, 10, DAY));
        assert_eq!((shown.attempts.len(), shown.ends), (3, End::Attempts));
    }

    #[test]
    fn decorrelated_bounds_follow_the_longest_path() {
        let shown = preview(&policy(doubling(MINUTE, 10 * MINUTE, Jitter::Decorrelated), 5, DAY));
        let minutes = |of: fn(&Planned) -> Duration| -> Vec<u64> {
            shown.attempts.iter().map(|planned| of(planned).as_secs() / 60).collect()
        };
        assert_eq!(minutes(|planned| planned.earliest), [0, 1, 2, 3, 4]);
        assert_eq!(minutes(|planned| planned.latest), [0, 3, 12, 22, 32]);
    }

    #[test]
    fn warnings_are_sentences() {
        let warning = Warning::AttemptsNeverAct { attempts_max: 50, possible: 10 };
        assert_eq!(warning.to_string(), "The limit of 50 attempts never acts: the time runs out after 10 at most.");
    }

    #[test]
    fn absurd_policies_have_a_preview() {
        let shape = Shape::Exponential { base: Duration::MAX, factor: Factor(u32::MAX) };
        for jitter in [Jitter::None, Jitter::Decorrelated, Jitter::Proportional { percent: u8::MAX }] {
            for total in [Duration::ZERO, Duration::MAX] {
                for attempts_max in [0, u32::MAX] {
                    let backoff = Backoff { shape: shape.clone(), cap: Duration::MAX, jitter };
                    let shown = preview(&policy(backoff, attempts_max, total));
                    assert!(!shown.attempts.is_empty() && shown.attempts.len() <= 1_000);
                }
            }
        }
        let at_once = Backoff { shape: Shape::Fixed { interval: Duration::ZERO }, cap: DAY, jitter: Jitter::None };
        let shown = preview(&policy(at_once, u32::MAX, DAY));
        assert_eq!((shown.attempts.len(), shown.ends), (1_000, End::Unseen));
    }

    proptest! {
        #[test]
        fn every_run_lies_within_its_preview(
            backoff in any_backoff(), attempts_max in 1..60u32, total in 1..2_000_000_000u64, seed: u64,
        ) {
            let policy = policy(backoff, attempts_max, Duration::from_millis(total));
            let shown = preview(&policy);
            let (starts, reason) = simulate(&policy, seed);
            let certain = shown.attempts.iter().filter(|planned| planned.certain).count();
            prop_assert!((certain..=shown.attempts.len()).contains(&starts.len()));
            for (start, planned) in starts.iter().zip(&shown.attempts) {
                prop_assert!(planned.earliest <= *start && *start <= planned.latest, "{:?} for {:?}", start, planned);
                prop_assert!(planned.earliest <= planned.nominal && planned.nominal <= planned.latest);
            }
            match shown.ends {
                End::Attempts => prop_assert_eq!(reason, DeathReason::Exhausted),
                End::Time => prop_assert_eq!(reason, DeathReason::Expired),
                End::Chance => {}
                End::Unseen => prop_assert!(false, "sixty attempts are shown"),
            }
        }
    }
}
