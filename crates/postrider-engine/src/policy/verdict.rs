//! Puts the parts together: an outcome in, a verdict out.

use super::{
    budget::{Limit, Progress},
    classify::{Class, Rule, classify},
    rules::Policy,
};
use crate::{
    keys::Trigger,
    outcome::{Control, Outcome},
    planted::{Bug, planted},
    time::Timestamp,
};
use rand::Rng;
use std::time::Duration;

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
    let (class, rule) = misjudged(classify(outcome, &policy.overrides));
    let control = match outcome {
        Outcome::Answered(answer) => answer.control,
        Outcome::Failed(_) => None,
    };
    if rule == Rule::LocalResource && !planted(Bug::ShortageCharged) {
        let next = Next::Postponed { due: ended.plus(POSTPONEMENT) };
        return Verdict { class, rule, next, progress, control };
    }
    let mut progress = progress.advanced(class, &policy.budget, started);
    let next = match (class, trigger) {
        (Class::Delivered, Trigger::Scheduled | Trigger::Manual) => Next::Delivered,
        (Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone, Trigger::Manual) => Next::Nothing,
        (Class::Permanent | Class::Gone, Trigger::Scheduled) => Next::Dead(DeathReason::Permanent),
        (Class::Transient | Class::Ambiguous, Trigger::Scheduled) => {
            match retry(policy, &mut progress, class, outcome, ended, rng) {
                Ok((due, delay)) => Next::Retry { due, delay },
                Err(Limit::Attempts) => Next::Dead(DeathReason::Exhausted),
                Err(Limit::Time) => Next::Dead(DeathReason::Expired),
            }
        }
    };
    Verdict { class, rule, next, progress, control }
}

/// When to try again, if at all. `progress` counts the attempt that has just failed.
fn retry(
    policy: &Policy,
    progress: &mut Progress,
    class: Class,
    outcome: &Outcome,
    ended: Timestamp,
    rng: &mut impl Rng,
) -> Result<(Timestamp, Delay), Limit> {
    let on_leash = class == Class::Ambiguous;
    let wait_max = if on_leash { policy.ambiguous.wait_max() } else { Duration::MAX };
    let backoff = policy.backoff.under(wait_max);
    let retry = progress.attempts;
    let nominal = backoff.nominal(retry).ok_or(Limit::Attempts)?;
    let own = backoff.draw(retry, progress.last_delay, rng).ok_or(Limit::Attempts)?;
    let wish = match outcome {
        Outcome::Answered(answer) => policy.retry_after.wish(answer.retry_after.iter().map(Vec::as_slice), ended),
        Outcome::Failed(_) => None,
    };
    let waited = policy.retry_after.reconcile(own, wish);
    let mut due = ended.plus(waited.certain).plus(waited.drawn);
    if planted(Bug::BackoffHalved) && wish.is_none() {
        due = ended.plus(waited.certain / 2);
    }
    if planted(Bug::BackoffDoubled) && wish.is_none() {
        due = ended.plus((waited.certain + waited.drawn) * 2);
    }

    // Both are set by the attempt that was counted just now, the second one if it was ambiguous.
    let give_up_at = progress.give_up_at.unwrap_or(due);
    policy.budget.allows(progress.attempts, give_up_at, due)?;
    if on_leash {
        policy.ambiguous.allows(progress.ambiguous, progress.ambiguous_since.unwrap_or(due), due)?;
    }
    // What we would have waited, not what the receiver wished: decorrelated waits grow from it, and a day that was
    // asked for once must not become three.
    progress.last_delay = Some(own.total());
    Ok((
        due,
        Delay {
            backoff: nominal,
            jitter: waited.drawn,
            retry_after: wish.map(|wish| wish.wait),
            capped: wish.is_some_and(|wish| wish.capped),
        },
    ))
}

/// As it is, unless a fault is planted here.
fn misjudged((class, rule): (Class, Rule)) -> (Class, Rule) {
    let class = match class {
        Class::Permanent if planted(Bug::PermanentRetried) => Class::Transient,
        Class::Transient if planted(Bug::ErrorTakenForSuccess) && rule == Rule::ServerError => Class::Delivered,
        Class::Delivered if planted(Bug::SuccessTakenForError) => Class::Transient,
        Class::Delivered | Class::Transient | Class::Ambiguous | Class::Permanent | Class::Gone => class,
    };
    (class, rule)
}

/// How long a delivery waits when our own machine was short of something.
const POSTPONEMENT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        outcome::{Answer, Fault, TlsFault},
        policy::{
            Budget, Leash,
            backoff::{Backoff, DEFAULT_DELAYS, Jitter, Shape, tests::any_backoff},
            overrides::{Overrides, Subject, Treatment},
            retry_after::{RetryAfterMode, RetryAfterRule},
        },
    };
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeMap;

    const START: Timestamp = Timestamp::from_millis(0);

    fn status(status: u16) -> Outcome {
        Outcome::Answered(Answer { status, ..Answer::default() })
    }

    fn busy(retry_after: &str) -> Outcome {
        Outcome::Answered(Answer { status: 503, retry_after: vec![retry_after.into()], ..Answer::default() })
    }

    fn judge_at(now: Timestamp, progress: Progress, outcome: &Outcome, seed: u64) -> Verdict {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        judge(&Policy::default(), Trigger::Scheduled, progress, outcome, (now, now), &mut rng)
    }

    /// A delivery that has made some attempts, the first of them at the start.
    fn after_attempts(attempts: u32) -> Progress {
        let give_up_at = (attempts > 0).then(|| Policy::default().budget.give_up_at(START));
        Progress { attempts, give_up_at, ..Progress::default() }
    }

    /// Runs one delivery to its end against a receiver that answers by script; the last answer is repeated.
    fn run(policy: &Policy, script: &[Outcome], takes: Duration, seed: u64) -> (Vec<Timestamp>, Next) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut starts = vec![START];
        let mut progress = Progress::default();
        loop {
            let now = *starts.last().expect("never empty");
            let outcome = script.get(starts.len() - 1).or(script.last()).expect("a script has answers");
            let verdict = judge(policy, Trigger::Scheduled, progress, outcome, (now, now.plus(takes)), &mut rng);
            assert_eq!(verdict.progress.attempts as usize, starts.len());
            match verdict.next {
                Next::Retry { due, .. } => starts.push(due),
                end @ (Next::Dead(_) | Next::Delivered) => return (starts, end),
                other @ (Next::Nothing | Next::Postponed { .. }) => panic!("unexpected {other:?}"),
            }
            progress = verdict.progress;
        }
    }

    fn run_default(outcome: &Outcome, seed: u64) -> (Vec<Timestamp>, Next) {
        run(&Policy::default(), std::slice::from_ref(outcome), Duration::ZERO, seed)
    }

    proptest! {
        #[test]
        fn the_default_schedule_makes_ten_attempts_within_its_jitter(seed: u64) {
            let (starts, end) = run_default(&status(503), seed);
            prop_assert_eq!(end, Next::Dead(DeathReason::Exhausted));
            prop_assert_eq!(starts.len(), 10);
            for (gap, delay) in starts.windows(2).zip(DEFAULT_DELAYS) {
                let waited = gap[1].since(gap[0]);
                prop_assert!(delay / 2 <= waited && waited <= delay, "{:?} for {:?}", waited, delay);
            }
        }

        #[test]
        fn an_ambiguous_answer_is_tried_exactly_five_times_within_an_hour(seed: u64, takes in 0..=60u64) {
            for outcome in [status(404), Outcome::Failed(Fault::Tls(TlsFault::WrongHost))] {
                let (starts, end) = run(&Policy::default(), &[outcome], Duration::from_secs(takes), seed);
                prop_assert_eq!(starts.len(), 5);
                prop_assert_eq!(end, Next::Dead(DeathReason::Exhausted));
                prop_assert!(starts[4].since(starts[0]) < Duration::from_hours(1));
            }
        }

        #[test]
        fn retry_after_is_never_undercut(seed: u64, wish in 0..200_000u64, attempts in 0..9u32) {
            let now = Timestamp::from_millis(50_000);
            let verdict = judge_at(now, after_attempts(attempts), &busy(&wish.to_string()), seed);
            if let Next::Retry { due, delay } = verdict.next {
                let asked = Duration::from_secs(wish).min(Duration::from_hours(24));
                prop_assert!(due.since(now) >= asked);
                prop_assert!(due.since(now) >= delay.backoff / 2, "nor our own back-off");
                prop_assert_eq!(delay.capped, wish > 86_400);
                prop_assert_eq!(delay.retry_after, Some(asked));
            }
        }

        #[test]
        fn no_attempt_starts_at_or_after_give_up(
            seed: u64, attempts in 1..10u32, age_hours in 0..120u64, wish in 0..500_000u64,
        ) {
            let now = START.plus(Duration::from_hours(age_hours));
            let verdict = judge_at(now, after_attempts(attempts), &busy(&wish.to_string()), seed);
            if let Next::Retry { due, .. } = verdict.next {
                prop_assert!(due < Policy::default().budget.give_up_at(START));
            }
        }

        #[test]
        fn any_policy_keeps_its_budget_and_its_bounds(
            backoff in any_backoff(), attempts_max in 1..40u32, total in 1..1_000_000_000u64,
            statuses in prop::collection::vec(prop_oneof![Just(503u16), Just(404), Just(429), Just(302)], 1..20), seed: u64,
        ) {
            let policy = Policy {
                backoff,
                budget: Budget { attempts_max, total_max: Duration::from_millis(total) },
                ..Policy::default()
            };
            let script: Vec<Outcome> = statuses.into_iter().map(status).collect();
            let (starts, end) = run(&policy, &script, Duration::ZERO, seed);
            prop_assert!(starts.len() as u32 <= attempts_max);
            prop_assert!(starts.iter().all(|start| start.since(START) < policy.budget.total_max || *start == START));
            prop_assert!(starts.windows(2).all(|gap| gap[1].since(gap[0]) <= policy.backoff.cap));
            prop_assert!(matches!(end, Next::Dead(_)));
        }

        #[test]
        fn no_policy_and_no_progress_make_it_panic(
            base: u64, factor: u32, cap: u64, percent: u8, attempts: u32, ambiguous: u32, total: u64, now: i64, since: i64,
            wish: u64, code: u16, seed: u64,
        ) {
            use crate::policy::backoff::Factor;
            let shape = Shape::Exponential { base: Duration::from_secs(base), factor: Factor(factor) };
            for jitter in [Jitter::Decorrelated, Jitter::Proportional { percent }] {
                let policy = Policy {
                    backoff: Backoff { shape: shape.clone(), cap: Duration::from_secs(cap), jitter },
                    budget: Budget { attempts_max: u32::MAX, total_max: Duration::from_secs(total) },
                    ambiguous: Leash { attempts_max: 0, total_max: Duration::MAX },
                    retry_after: RetryAfterRule { mode: RetryAfterMode::Override, cap: Duration::MAX },
                    ..Policy::default()
                };
                let progress = Progress {
                    attempts,
                    ambiguous,
                    ambiguous_since: Some(Timestamp::from_millis(since)),
                    last_delay: Some(Duration::from_secs(cap)),
                    give_up_at: None,
                };
                let answer = Answer { status: code, retry_after: vec![wish.to_string().into()], ..Answer::default() };
                let times = (Timestamp::from_millis(now), Timestamp::from_millis(since));
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                judge(&policy, Trigger::Scheduled, progress, &Outcome::Answered(answer), times, &mut rng);
            }
        }
    }

    #[test]
    fn a_wish_beyond_the_time_budget_ends_the_delivery_instead_of_hurrying_it() {
        let now = START.plus(Duration::from_hours(80));
        let verdict = judge_at(now, after_attempts(3), &busy("86400"), 1);
        assert_eq!(verdict.next, Next::Dead(DeathReason::Expired));
        let wish_on_the_leash =
            Outcome::Answered(Answer { status: 404, retry_after: vec!["3600".into()], ..Answer::default() });
        let verdict = judge_at(START, Progress::default(), &wish_on_the_leash, 1);
        assert_eq!(verdict.next, Next::Dead(DeathReason::Expired));
    }

    #[test]
    fn a_permanent_answer_ends_the_delivery_at_once() {
        for code in [400, 401, 301, 410, 501] {
            let verdict = judge_at(START, Progress::default(), &status(code), 1);
            assert_eq!(verdict.next, Next::Dead(DeathReason::Permanent), "status {code}");
            assert_eq!(verdict.progress.attempts, 1);
        }
    }

    #[test]
    fn our_own_shortage_is_charged_to_nobody() {
        let progress = after_attempts(3);
        let verdict = judge_at(START, progress, &Outcome::Failed(Fault::LocalResource), 1);
        assert_eq!(verdict.next, Next::Postponed { due: START.plus(POSTPONEMENT) });
        assert_eq!(verdict.progress, progress);
    }

    #[test]
    fn a_failed_resend_leaves_the_schedule_alone() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let times = (START, START);
        for outcome in [status(503), status(404), status(400), status(410), Outcome::Failed(Fault::Dns)] {
            let verdict = judge(&Policy::default(), Trigger::Manual, Progress::default(), &outcome, times, &mut rng);
            assert_eq!(verdict.next, Next::Nothing, "{outcome:?}");
        }
        let verdict = judge(&Policy::default(), Trigger::Manual, Progress::default(), &status(204), times, &mut rng);
        assert_eq!(verdict.next, Next::Delivered);
    }

    #[test]
    fn what_the_receiver_asks_besides_is_passed_on() {
        for control in [None, Some(Control::Disable), Some(Control::AbortMessage)] {
            for code in [200, 503] {
                let outcome = Outcome::Answered(Answer { status: code, control, ..Answer::default() });
                assert_eq!(judge_at(START, Progress::default(), &outcome, 1).control, control);
            }
        }
    }

    #[test]
    fn a_receiver_that_recovers_from_404_gets_the_whole_budget_again() {
        let mut script = vec![status(404); 4];
        script.push(status(503));
        script.extend(vec![status(404); 5]);
        let (starts, end) = run(&Policy::default(), &script, Duration::ZERO, 1);
        assert_eq!((starts.len(), end), (10, Next::Dead(DeathReason::Exhausted)), "the leash began anew");
        let (starts, _) = run(&Policy::default(), &[status(404), status(503)], Duration::ZERO, 1);
        assert_eq!(starts.len(), 10);
    }

    #[test]
    fn a_404_that_its_owner_calls_maintenance_has_the_whole_schedule() {
        let said = BTreeMap::from([(Subject::Status(404), Treatment::Retry)]);
        let policy = Policy { overrides: Overrides(vec![said]), ..Policy::default() };
        let (starts, end) = run(&policy, &[status(404)], Duration::ZERO, 1);
        assert_eq!((starts.len(), end), (10, Next::Dead(DeathReason::Exhausted)));
    }

    #[test]
    fn a_wish_that_overrides_is_followed_to_the_millisecond() {
        let policy = Policy {
            retry_after: RetryAfterRule { mode: RetryAfterMode::Override, cap: Duration::from_hours(1) },
            ..Policy::default()
        };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for (wish, waited, capped) in [("1", 1, false), ("600", 600, false), ("7200", 3_600, true)] {
            let verdict = judge(&policy, Trigger::Scheduled, after_attempts(3), &busy(wish), (START, START), &mut rng);
            let Next::Retry { due, delay } = verdict.next else { panic!("{:?}", verdict.next) };
            assert_eq!(due.since(START), Duration::from_secs(waited));
            assert_eq!((delay.jitter, delay.capped), (Duration::ZERO, capped));
        }
        let verdict = judge(&policy, Trigger::Scheduled, after_attempts(3), &busy("0"), (START, START), &mut rng);
        let Next::Retry { due, .. } = verdict.next else { panic!("{:?}", verdict.next) };
        assert!(due.since(START) >= Duration::from_hours(1), "our own wait of two hours, halved at most");
    }

    #[test]
    fn a_long_wish_does_not_stretch_decorrelated_waits() {
        let shape = Shape::Fixed { interval: Duration::from_secs(1) };
        let policy = Policy {
            backoff: Backoff { shape, cap: Duration::from_hours(24), jitter: Jitter::Decorrelated },
            ..Policy::default()
        };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let judged = judge(&policy, Trigger::Scheduled, Progress::default(), &busy("36000"), (START, START), &mut rng);
        assert!(judged.progress.last_delay.is_some_and(|delay| delay <= Duration::from_secs(3)));
    }

    #[test]
    fn decorrelated_waits_grow_from_one_another() {
        let shape = Shape::Fixed { interval: Duration::from_secs(1) };
        let policy = Policy {
            backoff: Backoff { shape, cap: Duration::from_hours(24), jitter: Jitter::Decorrelated },
            budget: Budget { attempts_max: 20, total_max: Duration::from_hours(96) },
            ..Policy::default()
        };
        let (starts, _) = run(&policy, &[status(503)], Duration::ZERO, 1);
        let waits: Vec<Duration> = starts.windows(2).map(|gap| gap[1].since(gap[0])).collect();
        assert!(waits.windows(2).all(|pair| pair[1] <= pair[0] * 3), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait > Duration::from_secs(30)), "{waits:?}");
    }

    #[test]
    fn an_untried_delivery_expires_by_its_own_clock() {
        let policy = Policy::default();
        let queued = START;
        let untried = Progress::default();
        assert!(!policy.is_expired(untried, queued, queued.plus(Duration::from_hours(14 * 24 - 1))));
        assert!(policy.is_expired(untried, queued, queued.plus(Duration::from_hours(14 * 24))));
        assert!(!policy.is_expired(after_attempts(1), queued, queued.plus(Duration::from_hours(95))));
        assert!(policy.is_expired(after_attempts(1), queued, queued.plus(Duration::from_hours(96))));
    }
}
