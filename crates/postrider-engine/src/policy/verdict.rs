//! Puts the parts together: an outcome in, a verdict out.

use super::{
    backoff::{self, AfterTable, Backoff, DEFAULT_DELAYS, Jitter, Shape},
    budget::{Budget, Leash, Limit, Progress},
    classify::{Class, Rule, classify},
    overrides::Overrides,
    retry_after::{self, RetryAfterMode, RetryAfterRule},
    rules::Policy,
};
use crate::{
    keys::Trigger,
    outcome::{Control, Outcome},
    time::Timestamp,
};
use rand::Rng;
use std::time::Duration;

/// How long a delivery waits when our own machine was short of something.
const POSTPONEMENT: Duration = Duration::from_secs(5);

impl Default for Policy {
    fn default() -> Self {
        Self {
            backoff: Backoff {
                shape: Shape::Table { delays: DEFAULT_DELAYS.to_vec(), then: AfterTable::Repeat },
                cap: Duration::from_hours(24),
                jitter: Jitter::Equal,
            },
            budget: Budget { attempts_max: 10, total_max: Duration::from_hours(96) },
            ambiguous: Leash { attempts_max: 5, total_max: Duration::from_hours(1) },
            hold_max: Duration::from_hours(14 * 24),
            retry_after: RetryAfterRule { mode: RetryAfterMode::Longest, cap: Duration::from_hours(24) },
            overrides: Overrides::default(),
        }
    }
}

impl Policy {
    /// Its time ran out while it waited: no further attempt may start.
    pub fn is_expired(&self, progress: Progress, queued_at: Timestamp, now: Timestamp) -> bool {
        now >= progress.give_up_at.unwrap_or_else(|| queued_at.plus(self.hold_max))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub class: Class,
    pub rule: Rule,
    pub next: Next,
    /// How far the delivery has come, this attempt included.
    pub progress: Progress,
    /// What the receiver asked of us besides.
    pub control: Option<Control>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Delivered,
    Retry {
        due: Timestamp,
        delay: Delay,
    },
    Dead(DeathReason),
    /// A resend that failed: it is recorded, and the delivery's own schedule goes on as it was.
    Nothing,
    /// We could not even try, for want of something on our side. Charged to nobody: no attempt is recorded.
    Postponed {
        due: Timestamp,
    },
}

/// Of what parts a wait is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// What the schedule says, before chance.
    pub backoff: Duration,
    /// What chance added to the part that is certain.
    pub jitter: Duration,
    /// What the receiver asked for, after the cap.
    pub retry_after: Option<Duration>,
    /// The receiver asked for more than the cap.
    pub capped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeathReason {
    /// The receiver refused it for good.
    Permanent,
    /// All attempts were used.
    Exhausted,
    /// The time to deliver it ran out.
    Expired,
    /// The endpoint was deleted.
    EndpointGone,
    /// A person called it back.
    Cancelled,
    /// Its turn came while the breaker was open, and the rules say not to hold it.
    Breaker,
}

/// Decides what becomes of a delivery after an attempt that started at `started` and ended at `ended`.
pub fn judge(
    policy: &Policy,
    trigger: Trigger,
    progress: Progress,
    outcome: &Outcome,
    (started, ended): (Timestamp, Timestamp),
    rng: &mut impl Rng,
) -> Verdict {
    let (class, rule) = classify(outcome);
    let control = match outcome {
        Outcome::Answered(answer) => answer.control,
        Outcome::Failed(_) => None,
    };
    if rule == Rule::LocalResource {
        let next = Next::Postponed { due: ended.plus(POSTPONEMENT) };
        return Verdict { class, rule, next, progress, control };
    }
    let next = match (class, trigger) {
        (Class::Delivered, _) => Next::Delivered,
        (_, Trigger::Manual) => Next::Nothing,
        (Class::Permanent | Class::Gone, Trigger::Scheduled) => Next::Dead(DeathReason::Permanent),
        (Class::Transient | Class::Ambiguous, Trigger::Scheduled) => {
            retry(policy, progress, outcome, (started, ended), rng)
        }
    };
    let progress = Progress {
        attempts: progress.attempts.saturating_add(1),
        give_up_at: progress.give_up_at.or(Some(policy.budget.give_up_at(started))),
        ..progress
    };
    Verdict { class, rule, next, progress, control }
}

fn retry(
    policy: &Policy,
    progress: Progress,
    outcome: &Outcome,
    (started, ended): (Timestamp, Timestamp),
    rng: &mut impl Rng,
) -> Next {
    let attempts = progress.attempts.saturating_add(1);
    let backoff = backoff::delay(&DEFAULT_DELAYS, attempts);
    let spread = backoff::equal_jitter(backoff, rng);
    let wish = match outcome {
        Outcome::Answered(answer) => retry_after::parse(answer.retry_after.iter().map(Vec::as_slice), ended),
        Outcome::Failed(_) => None,
    };
    let retry_after = wish.map(|wish| wish.min(policy.retry_after.cap));
    let delay = Delay { backoff, jitter: spread.drawn, retry_after, capped: wish > retry_after };
    // Chance is added on top of the receiver's wish, so that it never comes out early.
    let certain = spread.certain.max(retry_after.unwrap_or_default());
    let due = ended.plus(certain).plus(spread.drawn);
    let give_up_at = progress.give_up_at.unwrap_or_else(|| policy.budget.give_up_at(started));
    match policy.budget.allows(attempts, give_up_at, due) {
        Ok(()) => Next::Retry { due, delay },
        Err(Limit::Attempts) => Next::Dead(DeathReason::Exhausted),
        Err(Limit::Time) => Next::Dead(DeathReason::Expired),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Fault};
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn status(status: u16) -> Outcome {
        Outcome::Answered(Answer { status, ..Answer::default() })
    }

    fn busy(retry_after: &str) -> Outcome {
        Outcome::Answered(Answer { status: 503, retry_after: vec![retry_after.into()], location: None })
    }

    fn judge_at(now: Timestamp, progress: Progress, outcome: &Outcome, seed: u64) -> Verdict {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        judge(&Policy::default(), Trigger::Scheduled, progress, outcome, (now, now), &mut rng)
    }

    /// Runs one delivery to its end against a receiver that always answers the same.
    fn run(outcome: &Outcome, seed: u64) -> (Vec<Timestamp>, DeathReason) {
        let mut starts = vec![Timestamp::from_millis(0)];
        let mut progress = Progress::default();
        loop {
            let now = *starts.last().expect("never empty");
            match judge_at(now, progress, outcome, seed ^ starts.len() as u64).next {
                Next::Retry { due, .. } => starts.push(due),
                Next::Dead(reason) => return (starts, reason),
                other @ (Next::Delivered | Next::Nothing | Next::Postponed { .. }) => panic!("unexpected {other:?}"),
            }
            progress =
                Progress { attempts: progress.attempts + 1, first_attempt_at: progress.first_attempt_at.or(Some(now)) };
        }
    }

    proptest! {
        #[test]
        fn the_default_schedule_makes_ten_attempts_within_its_jitter(seed: u64) {
            let (starts, reason) = run(&status(503), seed);
            prop_assert_eq!(reason, DeathReason::Exhausted);
            prop_assert_eq!(starts.len(), 10);
            for (gap, delay) in starts.windows(2).zip(DEFAULT_DELAYS) {
                let waited = gap[1].since(gap[0]);
                prop_assert!(delay / 2 <= waited && waited <= delay, "{:?} for {:?}", waited, delay);
            }
        }

        #[test]
        fn an_ambiguous_answer_is_tried_at_most_five_times_within_an_hour(seed: u64) {
            let (starts, _) = run(&status(404), seed);
            prop_assert!(starts.len() <= 5);
            prop_assert!(starts.last().expect("never empty").since(starts[0]) < Duration::from_hours(1));
        }

        #[test]
        fn retry_after_is_never_undercut(seed: u64, wish in 0..200_000u64, attempts in 0..9u32) {
            let now = Timestamp::from_millis(50_000);
            let progress = Progress { attempts, first_attempt_at: Some(now) };
            if let Next::Retry { due, delay } = judge_at(now, progress, &busy(&wish.to_string()), seed).next {
                let asked = Duration::from_secs(wish).min(Duration::from_hours(24));
                prop_assert!(due.since(now) >= asked);
                prop_assert!(due.since(now) >= delay.backoff / 2, "nor our own back-off");
                prop_assert_eq!(delay.capped, wish > 86_400);
            }
        }

        #[test]
        fn no_attempt_starts_at_or_after_give_up(seed: u64, attempts in 1..10u32, age_hours in 0..120u64, wish in 0..500_000u64) {
            let first = Timestamp::from_millis(0);
            let now = first.plus(Duration::from_hours(age_hours));
            let progress = Progress { attempts, first_attempt_at: Some(first) };
            if let Next::Retry { due, .. } = judge_at(now, progress, &busy(&wish.to_string()), seed).next {
                prop_assert!(due < Policy::default().budget.give_up_at(first));
            }
        }
    }

    #[test]
    fn a_wish_beyond_the_time_budget_ends_the_delivery_instead_of_hurrying_it() {
        let first = Timestamp::from_millis(0);
        let now = first.plus(Duration::from_hours(80));
        let progress = Progress { attempts: 3, first_attempt_at: Some(first) };
        let verdict = judge_at(now, progress, &busy("86400"), 1);
        assert_eq!(verdict.next, Next::Dead(DeathReason::Expired));
    }

    #[test]
    fn a_permanent_answer_ends_the_delivery_at_once() {
        for code in [400, 401, 301, 410, 501] {
            let verdict = judge_at(Timestamp::from_millis(0), Progress::default(), &status(code), 1);
            assert_eq!(verdict.next, Next::Dead(DeathReason::Permanent), "status {code}");
        }
    }

    #[test]
    fn our_own_shortage_is_charged_to_nobody() {
        let now = Timestamp::from_millis(0);
        let verdict = judge_at(now, Progress::default(), &Outcome::Failed(Fault::LocalResource), 1);
        assert_eq!(verdict.next, Next::Postponed { due: now.plus(POSTPONEMENT) });
    }

    #[test]
    fn a_failed_resend_leaves_the_schedule_alone() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let now = Timestamp::from_millis(0);
        for outcome in [status(503), status(400), status(410), Outcome::Failed(Fault::Dns)] {
            let verdict =
                judge(&Policy::default(), Trigger::Manual, Progress::default(), &outcome, (now, now), &mut rng);
            assert_eq!(verdict.next, Next::Nothing, "{outcome:?}");
        }
        let verdict =
            judge(&Policy::default(), Trigger::Manual, Progress::default(), &status(204), (now, now), &mut rng);
        assert_eq!(verdict.next, Next::Delivered);
    }
}
