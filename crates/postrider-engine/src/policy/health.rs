//! How an endpoint fares: what its breaker says, how long it has been failing, how often it refused in a row.
//!
//! An endpoint that fails for days, or refuses everything, is disabled by a rule that its owner can see, after a
//! warning. What waits for it is held.

use super::{
    breaker::{Breaker, BreakerRules},
    classify::{Class, Rule},
    verdict::Verdict,
};
use crate::{
    keys::Trigger,
    outcome::Control,
    planted::{Bug, planted},
    time::Timestamp,
};
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub breaker: Breaker,
    /// The first failure that might have passed, and after which there has been no success. Refusals do not begin it:
    /// whoever refuses is there, and is counted by `permanent_streak`.
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

/// Was it the one request that a half-open breaker lets through?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Yes,
    No,
}

/// What one outcome does to an endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub health: Health,
    /// Where the breaker opened or closed.
    pub breaker: Option<BreakerMove>,
    /// What the endpoint's owner must be told, or what must be done.
    pub notice: Option<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerMove {
    /// Opened, or opened again because the probe failed.
    Opened {
        until: Timestamp,
    },
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    Warning(Warning),
    Disable(DisableReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Unless it takes something before then, it is disabled.
    FailingUntil { disable_at: Timestamp },
    /// It has refused so many in a row for good, and is disabled at `max`.
    Refusing { streak: u32, max: u32 },
}

/// How an endpoint fares after an attempt that ended `now`.
pub fn after(
    health: Health,
    (breaker_rules, disable_rules): (Option<&BreakerRules>, &DisableRules),
    trigger: Trigger,
    verdict: &Verdict,
    probe: Probe,
    now: Timestamp,
) -> Step {
    let Some(sign) = Sign::of(verdict) else { return Step { health, breaker: None, notice: None } };
    let breaker = next_breaker(health.breaker, breaker_rules, trigger, sign, probe, now);
    let mut next = Health { breaker, ..health };
    let mut notice = None;
    match (sign, trigger) {
        (Sign::Took, Trigger::Scheduled | Trigger::Manual) => next = Health { breaker, ..Health::default() },
        // A person who tries things out must not bring the endpoint closer to being disabled.
        (Sign::Answered { .. } | Sign::Failed, Trigger::Manual) => {}
        (Sign::Answered { .. } | Sign::Failed, Trigger::Scheduled) => {
            // Neither kind of failure says anything about the other: it neither adds to its count nor ends it.
            if matches!(sign, Sign::Answered { refused: true }) {
                next.permanent_streak = health.permanent_streak.saturating_add(1);
            } else {
                next.failing_since = health.failing_since.or(Some(now));
            }
            notice = notice_for(&next, disable_rules, verdict.class, now);
            next.warned |= matches!(notice, Some(Notice::Warning(_)));
        }
    }
    // Asked for in so many words, so that it counts whoever sent the request and whatever became of it.
    if verdict.control == Some(Control::Disable) {
        notice = Some(Notice::Disable(DisableReason::Asked));
    }
    Step { health: next, breaker: moved(health.breaker, breaker), notice }
}

/// What an outcome says about the endpoint, whatever it says about the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Took,
    /// It did not take it, but it is there and knows what it says: it refused for good, or is merely busy.
    Answered {
        refused: bool,
    },
    Failed,
}

impl Sign {
    /// `None`: it was our own doing, and the endpoint has not been asked.
    fn of(verdict: &Verdict) -> Option<Self> {
        if verdict.rule == Rule::LocalResource && !planted(Bug::ShortageTripsBreaker) {
            return None;
        }
        Some(match verdict.class {
            Class::Delivered => Self::Took,
            Class::Permanent | Class::Gone => Self::Answered { refused: true },
            // A busy endpoint is alive, and what it asks for already protects it.
            Class::Transient | Class::Ambiguous if verdict.rule == Rule::AskedToWait => {
                Self::Answered { refused: false }
            }
            Class::Transient | Class::Ambiguous => Self::Failed,
        })
    }
}

fn next_breaker(
    breaker: Breaker,
    rules: Option<&BreakerRules>,
    trigger: Trigger,
    sign: Sign,
    probe: Probe,
    now: Timestamp,
) -> Breaker {
    let Some(rules) = rules else { return Breaker::default() };
    match (breaker, probe, sign) {
        (Breaker::Closed { .. }, Probe::Yes | Probe::No, Sign::Took | Sign::Answered { .. }) => Breaker::default(),
        (Breaker::Closed { .. }, Probe::Yes | Probe::No, Sign::Failed) => match trigger {
            Trigger::Scheduled => breaker.tripped(rules, now),
            Trigger::Manual => breaker,
        },
        (Breaker::Open { .. }, Probe::Yes, Sign::Took | Sign::Answered { .. }) => Breaker::default(),
        // Also when a person sent it: it went in the probe's place, and without an answer to "how is it?" the next
        // request would be a probe again, and so on without a pause.
        (Breaker::Open { .. }, Probe::Yes, Sign::Failed) => breaker.tripped(rules, now),
        (Breaker::Open { .. }, Probe::No, Sign::Took) if planted(Bug::ClosedByLateSuccess) => Breaker::default(),
        // Sent before it opened. Even a success must not close it: open to closed is no legal step, and a request that
        // was slow to succeed proves less than the failures that overtook it. The probe will tell, soon enough.
        (Breaker::Open { .. }, Probe::No, Sign::Took | Sign::Answered { .. } | Sign::Failed) => breaker,
    }
}

fn moved(before: Breaker, after: Breaker) -> Option<BreakerMove> {
    match (before, after) {
        (_, Breaker::Open { until, .. }) if before != after => Some(BreakerMove::Opened { until }),
        (Breaker::Open { .. }, Breaker::Closed { .. }) => Some(BreakerMove::Closed),
        (Breaker::Closed { .. } | Breaker::Open { .. }, Breaker::Closed { .. } | Breaker::Open { .. }) => None,
    }
}

fn notice_for(health: &Health, rules: &DisableRules, class: Class, now: Timestamp) -> Option<Notice> {
    if class == Class::Gone {
        return Some(Notice::Disable(DisableReason::Gone));
    }
    let streak = health.permanent_streak;
    let refusing = rules.permanent_streak.filter(|_| streak > 0);
    if refusing.is_some_and(|max| streak >= max) {
        return Some(Notice::Disable(DisableReason::Quarantined));
    }
    let failing = rules.failing_for.zip(health.failing_since);
    // Where nothing was sent for so long that the time for a warning went by unseen, the warning comes first all the
    // same, and the next failure disables.
    if health.warned && failing.is_some_and(|(failing_for, since)| since.plus(failing_for) <= now) {
        return Some(Notice::Disable(DisableReason::Failing));
    }
    if health.warned {
        return None;
    }
    let warning = match (refusing, failing) {
        (Some(max), _) if streak.saturating_mul(2) >= max => Warning::Refusing { streak, max },
        (_, Some((failing_for, since))) if since.plus(failing_for / 2) <= now => {
            Warning::FailingUntil { disable_at: since.plus(failing_for).max(now) }
        }
        (Some(_) | None, Some(_) | None) => return None,
    };
    Some(Notice::Warning(warning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{
        breaker::Standing,
        budget::Progress,
        verdict::{DeathReason, Next},
    };
    use proptest::prelude::*;

    const BREAKER: BreakerRules = BreakerRules {
        failures: 3,
        cool_down: Duration::from_secs(30),
        cool_down_max: Duration::from_mins(5),
        while_open: crate::policy::WhileOpen::Hold,
    };
    const NEVER: DisableRules = DisableRules { failing_for: None, permanent_streak: None };
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn verdict(class: Class, rule: Rule) -> Verdict {
        let next = Next::Dead(DeathReason::Permanent);
        Verdict { class, rule, next, progress: Progress::default(), control: None }
    }

    fn took() -> Verdict {
        verdict(Class::Delivered, Rule::Success)
    }

    fn failed() -> Verdict {
        verdict(Class::Transient, Rule::ServerError)
    }

    fn refused() -> Verdict {
        verdict(Class::Permanent, Rule::ClientError)
    }

    fn busy() -> Verdict {
        verdict(Class::Transient, Rule::AskedToWait)
    }

    fn shortage() -> Verdict {
        verdict(Class::Transient, Rule::LocalResource)
    }

    fn step(health: Health, verdict: &Verdict, probe: Probe) -> Step {
        after(health, (Some(&BREAKER), &NEVER), Trigger::Scheduled, verdict, probe, NOW)
    }

    fn open(trips: u32) -> Health {
        Health { breaker: Breaker::Open { until: NOW, trips }, failing_since: Some(NOW), ..Health::default() }
    }

    fn closed(failures: u32) -> Breaker {
        Breaker::Closed { failures }
    }

    #[test]
    fn it_opens_at_the_threshold_and_not_before() {
        let mut health = Health::default();
        for failures in 1..3 {
            let step = step(health, &failed(), Probe::No);
            assert_eq!((step.health.breaker, step.breaker), (closed(failures), None));
            health = step.health;
        }
        let until = NOW.plus(BREAKER.cool_down);
        let opened = step(health, &failed(), Probe::No);
        assert_eq!(opened.health.breaker, Breaker::Open { until, trips: 1 });
        assert_eq!(opened.breaker, Some(BreakerMove::Opened { until }));
    }

    #[test]
    fn any_sign_of_life_ends_the_row_of_failures() {
        let failing = Health { breaker: closed(2), failing_since: Some(NOW), ..Health::default() };
        for alive in [took(), refused(), busy()] {
            assert_eq!(step(failing, &alive, Probe::No).health.breaker, closed(0), "{alive:?}");
        }
    }

    #[test]
    fn the_probe_decides() {
        for (outcome, expected) in [
            (took(), (closed(0), Some(BreakerMove::Closed))),
            (refused(), (closed(0), Some(BreakerMove::Closed))),
            (busy(), (closed(0), Some(BreakerMove::Closed))),
            (shortage(), (open(2).breaker, None)),
        ] {
            let step = step(open(2), &outcome, Probe::Yes);
            assert_eq!((step.health.breaker, step.breaker), expected, "{outcome:?}");
        }
        let until = NOW.plus(Duration::from_secs(120));
        for outcome in [failed(), verdict(Class::Ambiguous, Rule::NotFound)] {
            let step = step(open(2), &outcome, Probe::Yes);
            assert_eq!(step.health.breaker, Breaker::Open { until, trips: 3 });
            assert_eq!(step.breaker, Some(BreakerMove::Opened { until }));
        }
    }

    #[test]
    fn late_outcomes_do_not_move_an_open_breaker() {
        for outcome in [took(), failed(), refused(), busy(), shortage()] {
            let step = step(open(2), &outcome, Probe::No);
            assert_eq!((step.health.breaker, step.breaker), (open(2).breaker, None), "{outcome:?}");
        }
        let late_success = step(open(2), &took(), Probe::No);
        assert_eq!(late_success.health, Health { breaker: open(2).breaker, ..Health::default() });
    }

    #[test]
    fn a_success_makes_everything_well() {
        let poor = Health { breaker: closed(2), failing_since: Some(NOW), permanent_streak: 70, warned: true };
        for trigger in [Trigger::Scheduled, Trigger::Manual] {
            let step = after(poor, (Some(&BREAKER), &NEVER), trigger, &took(), Probe::No, NOW);
            assert_eq!(step.health, Health::default(), "{trigger:?}");
        }
        assert_eq!(step(open(4), &took(), Probe::Yes).health, Health::default());
    }

    #[test]
    fn our_own_shortage_changes_nothing() {
        let poor = Health { breaker: closed(2), failing_since: None, permanent_streak: 7, warned: false };
        for probe in [Probe::Yes, Probe::No] {
            assert_eq!(step(poor, &shortage(), probe), Step { health: poor, breaker: None, notice: None });
        }
    }

    #[test]
    fn a_failed_resend_does_not_count_but_answers_for_the_probe() {
        let resent = |health, verdict: &Verdict, probe| {
            let strict = DisableRules { failing_for: Some(Duration::ZERO), permanent_streak: Some(1) };
            after(health, (Some(&BREAKER), &strict), Trigger::Manual, verdict, probe, NOW)
        };
        let poor = Health { breaker: closed(2), failing_since: Some(NOW), permanent_streak: 7, warned: false };
        for outcome in [failed(), verdict(Class::Ambiguous, Rule::NotFound)] {
            assert_eq!(resent(poor, &outcome, Probe::No), Step { health: poor, breaker: None, notice: None });
        }
        for outcome in [refused(), verdict(Class::Gone, Rule::Gone)] {
            let expected = Health { breaker: closed(0), ..poor };
            assert_eq!(resent(poor, &outcome, Probe::No), Step { health: expected, breaker: None, notice: None });
        }
        let reopened = resent(open(1), &failed(), Probe::Yes);
        let until = NOW.plus(Duration::from_secs(60));
        assert_eq!(reopened.health, Health { breaker: Breaker::Open { until, trips: 2 }, ..open(1) });
    }

    #[test]
    fn without_rules_the_breaker_stays_closed() {
        let mut health = Health::default();
        for _ in 0..1_000 {
            let step = after(health, (None, &NEVER), Trigger::Scheduled, &failed(), Probe::No, NOW);
            assert_eq!((step.health.breaker, step.breaker), (closed(0), None));
            health = step.health;
        }
        let turned_off = after(open(3), (None, &NEVER), Trigger::Scheduled, &failed(), Probe::No, NOW);
        assert_eq!((turned_off.health.breaker, turned_off.breaker), (closed(0), Some(BreakerMove::Closed)));
    }

    #[test]
    fn an_endpoint_that_fails_for_days_is_warned_once_and_then_disabled() {
        let rules = DisableRules { failing_for: Some(Duration::from_hours(120)), permanent_streak: None };
        let disable_at = NOW.plus(Duration::from_hours(120));
        let warning = Notice::Warning(Warning::FailingUntil { disable_at });
        let mut health = Health::default();
        for (hour, expected) in [
            (0, None),
            (59, None),
            (60, Some(warning)),
            (61, None),
            (119, None),
            (120, Some(Notice::Disable(DisableReason::Failing))),
        ] {
            let now = NOW.plus(Duration::from_hours(hour));
            let step = after(health, (None, &rules), Trigger::Scheduled, &failed(), Probe::No, now);
            assert_eq!(step.notice, expected, "after {hour} h");
            assert_eq!(step.health.failing_since, Some(NOW));
            health = step.health;
        }
    }

    #[test]
    fn an_endpoint_that_refuses_everything_is_warned_once_and_then_quarantined() {
        let rules = DisableRules { failing_for: None, permanent_streak: Some(5) };
        let mut health = Health::default();
        let warning = Notice::Warning(Warning::Refusing { streak: 3, max: 5 });
        for (outcome, expected) in [
            (refused(), None),
            (refused(), None),
            (failed(), None),
            (refused(), Some(warning)),
            (refused(), None),
            (busy(), None),
            (refused(), Some(Notice::Disable(DisableReason::Quarantined))),
        ] {
            let step = after(health, (None, &rules), Trigger::Scheduled, &outcome, Probe::No, NOW);
            assert_eq!(step.notice, expected, "after {} refusals", step.health.permanent_streak);
            health = step.health;
        }
        let recovered = after(health, (None, &rules), Trigger::Scheduled, &took(), Probe::No, NOW);
        assert_eq!(recovered.health.permanent_streak, 0);
    }

    #[test]
    fn the_warning_comes_at_half_of_the_streak() {
        for (max, expected) in [(1, None), (2, Some(1)), (3, Some(2)), (4, Some(2)), (100, Some(50))] {
            let rules = DisableRules { failing_for: None, permanent_streak: Some(max) };
            let mut health = Health::default();
            let mut warned_at = None;
            for _ in 0..max {
                let step = after(health, (None, &rules), Trigger::Scheduled, &refused(), Probe::No, NOW);
                if let Some(Notice::Warning(Warning::Refusing { streak, .. })) = step.notice {
                    assert_eq!(warned_at.replace(streak), None, "warned twice");
                }
                health = step.health;
            }
            assert_eq!(warned_at, expected, "of {max}");
        }
    }

    #[test]
    fn whoever_has_refused_nothing_is_not_quarantined() {
        let absurd = DisableRules { failing_for: None, permanent_streak: Some(0) };
        let step = after(Health::default(), (None, &absurd), Trigger::Scheduled, &failed(), Probe::No, NOW);
        assert_eq!(step.notice, None);
    }

    #[test]
    fn refusals_neither_begin_nor_end_the_time_of_failing() {
        let rules = DisableRules { failing_for: Some(Duration::from_hours(10)), permanent_streak: None };
        let at = |hours| NOW.plus(Duration::from_hours(hours));
        let judged = |health, verdict: &Verdict, hours| {
            after(health, (None, &rules), Trigger::Scheduled, verdict, Probe::No, at(hours))
        };
        let refusing = judged(Health::default(), &refused(), 0).health;
        assert_eq!(refusing.failing_since, None, "two bad messages a week apart are not a week of failing");
        assert_eq!(judged(refusing, &refused(), 1_000).notice, None);
        let failing = judged(Health::default(), &busy(), 0).health;
        assert_eq!(failing.failing_since, Some(at(0)), "nothing was taken");
        let still_failing = judged(failing, &refused(), 6).health;
        let at_last = judged(still_failing, &refused(), 10);
        assert_eq!(at_last.notice, Some(Notice::Disable(DisableReason::Failing)));
    }

    #[test]
    fn nobody_is_disabled_for_failing_without_a_warning_before() {
        let rules = DisableRules { failing_for: Some(Duration::from_hours(10)), permanent_streak: None };
        let at = |hours| NOW.plus(Duration::from_hours(hours));
        let judged = |health, hours| after(health, (None, &rules), Trigger::Scheduled, &failed(), Probe::No, at(hours));
        let silent_for_a_month = judged(judged(Health::default(), 0).health, 720);
        assert_eq!(silent_for_a_month.notice, Some(Notice::Warning(Warning::FailingUntil { disable_at: at(720) })));
        let next = judged(silent_for_a_month.health, 721);
        assert_eq!(next.notice, Some(Notice::Disable(DisableReason::Failing)));
    }

    #[test]
    fn gone_and_asked_disable_at_once() {
        let notice = |verdict: &Verdict, trigger| {
            after(Health::default(), (None, &NEVER), trigger, verdict, Probe::No, NOW).notice
        };
        let gone = verdict(Class::Gone, Rule::Gone);
        assert_eq!(notice(&gone, Trigger::Scheduled), Some(Notice::Disable(DisableReason::Gone)));
        for outcome in [took(), failed(), refused(), gone] {
            let asking = Verdict { control: Some(Control::Disable), ..outcome };
            for trigger in [Trigger::Scheduled, Trigger::Manual] {
                assert_eq!(notice(&asking, trigger), Some(Notice::Disable(DisableReason::Asked)), "{outcome:?}");
            }
            let aborting = Verdict { control: Some(Control::AbortMessage), ..outcome };
            assert_ne!(notice(&aborting, Trigger::Scheduled), Some(Notice::Disable(DisableReason::Asked)));
        }
    }

    fn any_verdict() -> impl Strategy<Value = Verdict> {
        prop_oneof![
            2 => Just(took()),
            6 => Just(failed()),
            2 => Just(refused()),
            1 => Just(busy()),
            1 => Just(shortage()),
            1 => Just(verdict(Class::Ambiguous, Rule::NotFound)),
            1 => Just(verdict(Class::Gone, Rule::Gone)),
        ]
    }

    proptest! {
        /// A lane that asks the breaker before each start, with late outcomes of earlier requests in between (I23).
        #[test]
        fn only_legal_steps_are_taken(
            outcomes in prop::collection::vec((any_verdict(), 0..40_000u64, any::<bool>(), any::<bool>()), 1..300),
            threshold in 1..6u32,
        ) {
            let rules = BreakerRules { failures: threshold, ..BREAKER };
            let (mut health, mut now, mut in_a_row) = (Health::default(), NOW, 0);
            for (verdict, wait, late, manual) in outcomes {
                now = now.plus(Duration::from_millis(wait));
                let trigger = if manual { Trigger::Manual } else { Trigger::Scheduled };
                let standing = health.breaker.standing(now);
                let probe = match standing {
                    Standing::HalfOpen if !late => Probe::Yes,
                    Standing::HalfOpen | Standing::Open { .. } | Standing::Closed => Probe::No,
                };
                let step = after(health, (Some(&rules), &NEVER), trigger, &verdict, probe, now);
                match (standing, step.breaker) {
                    (Standing::Closed, None) => {
                        prop_assert_eq!(step.health.breaker.standing(now), Standing::Closed);
                    }
                    (Standing::Closed, Some(BreakerMove::Opened { until })) => {
                        prop_assert!(in_a_row + 1 >= threshold, "opened below the threshold");
                        prop_assert_eq!(until, now.plus(rules.cool_down));
                    }
                    (Standing::Open { .. }, moved) => prop_assert_eq!(moved, None),
                    (Standing::HalfOpen, None) => prop_assert_eq!(step.health.breaker, health.breaker),
                    (Standing::HalfOpen, Some(BreakerMove::Opened { until })) => {
                        prop_assert!(probe == Probe::Yes);
                        let rest = until.since(now);
                        prop_assert!(rest >= rules.cool_down && rest <= rules.cool_down_max);
                    }
                    (Standing::HalfOpen, Some(BreakerMove::Closed)) => prop_assert!(probe == Probe::Yes),
                    (Standing::Closed, Some(BreakerMove::Closed)) => prop_assert!(false, "closed twice"),
                }
                in_a_row = match step.health.breaker {
                    Breaker::Closed { failures } => failures,
                    Breaker::Open { .. } => 0,
                };
                prop_assert!(in_a_row < threshold);
                health = step.health;
            }
        }

        #[test]
        fn failing_probes_wait_longer_and_longer_up_to_the_longest(failures in 1..40usize) {
            let (mut health, mut now, mut last) = (open(1), NOW, Duration::ZERO);
            for _ in 0..failures {
                let step = after(health, (Some(&BREAKER), &NEVER), Trigger::Scheduled, &failed(), Probe::Yes, now);
                let Some(BreakerMove::Opened { until }) = step.breaker else { panic!("{step:?}") };
                prop_assert!(until.since(now) >= last && until.since(now) <= BREAKER.cool_down_max);
                (last, now, health) = (until.since(now), until, step.health);
            }
        }

        #[test]
        fn no_health_and_no_rules_make_it_panic(
            verdict in any_verdict(), failures: u32, trips: u32, until: i64, since: Option<i64>, streak: u32, now: i64,
            threshold: u32, is_open: bool, seconds: u64, max: Option<u32>,
        ) {
            let at = Timestamp::from_millis;
            let breaker = if is_open { Breaker::Open { until: at(until), trips } } else { closed(failures) };
            let health = Health { breaker, failing_since: since.map(at), permanent_streak: streak, warned: false };
            let long = Duration::from_secs(seconds);
            let rules = BreakerRules { failures: threshold, cool_down: long, cool_down_max: Duration::MAX, ..BREAKER };
            let disable = DisableRules { failing_for: Some(long), permanent_streak: max };
            for probe in [Probe::Yes, Probe::No] {
                after(health, (Some(&rules), &disable), Trigger::Scheduled, &verdict, probe, at(now));
            }
        }
    }
}
