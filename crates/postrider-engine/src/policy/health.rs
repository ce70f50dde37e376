//! How an endpoint fares: what its breaker says, how long it has been failing, how often it refused in a row.
//!
//! An endpoint that fails for days, or refuses everything, is disabled by a rule that its owner can see, after a
//! warning. What waits for it is held.

use super::{
    breaker::{Breaker, BreakerRules},
    classify::{Class, Rule},
    verdict::Verdict,
};
use crate::{keys::Trigger, outcome::Control, time::Timestamp};
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

/// Whether an outcome is that of the one request that a half-open breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub health: Health,
    pub breaker: Option<BreakerMove>,
    pub notice: Option<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerMove {
    Opened { until: Timestamp },
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    Warning(Warning),
    Disable(DisableReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    FailingUntil { disable_at: Timestamp },
    Refusing { streak: u32, max: u32 },
}

/// How the endpoint fares after one more outcome.
pub fn after(
    health: Health,
    (breaker, disable): (Option<&BreakerRules>, &DisableRules),
    trigger: Trigger,
    verdict: &Verdict,
    probe: Probe,
    now: Timestamp,
) -> Step {
    if verdict.rule == Rule::LocalResource {
        return Step { health, breaker: None, notice: None };
    }
    let asked = verdict.control == Some(Control::Disable);
    let was_open = matches!(health.breaker, Breaker::Open { .. });
    let mut next = health;
    let mut reason = asked.then_some(DisableReason::Asked);
    match (verdict.class, trigger) {
        (Class::Delivered, _) => next = Health::default(),
        (Class::Permanent | Class::Gone, _) => {
            if !was_open || probe == Probe::Yes {
                next.breaker = Breaker::default();
            }
            if trigger == Trigger::Scheduled {
                next.permanent_streak = next.permanent_streak.saturating_add(1);
                next.failing_since = next.failing_since.or(Some(now));
                if verdict.class == Class::Gone {
                    reason = Some(DisableReason::Gone);
                } else if disable.permanent_streak.is_some_and(|max| next.permanent_streak >= max) {
                    reason = Some(DisableReason::Quarantined);
                }
            }
        }
        (Class::Transient | Class::Ambiguous, _) => {
            let busy = verdict.rule == Rule::AskedToWait;
            match (health.breaker, breaker) {
                (_, None) => next.breaker = Breaker::default(),
                (Breaker::Open { .. }, Some(_)) if busy && probe == Probe::Yes => next.breaker = Breaker::default(),
                (Breaker::Closed { .. }, Some(_)) if busy || trigger == Trigger::Manual => {}
                (Breaker::Open { trips, .. }, Some(rules)) if probe == Probe::Yes => {
                    let factor = 2u32.saturating_pow(trips);
                    let cool_down = rules.cool_down.saturating_mul(factor).min(rules.cool_down_max);
                    next.breaker = Breaker::Open { until: now.plus(cool_down), trips: trips.saturating_add(1) };
                }
                (Breaker::Open { .. }, Some(_)) => {}
                (Breaker::Closed { failures }, Some(rules)) => {
                    let failures = failures.saturating_add(1);
                    next.breaker = if failures >= rules.failures {
                        Breaker::Open { until: now.plus(rules.cool_down.min(rules.cool_down_max)), trips: 1 }
                    } else {
                        Breaker::Closed { failures }
                    };
                }
            }
            if trigger == Trigger::Scheduled {
                let since = next.failing_since.unwrap_or(now);
                next.failing_since = Some(since);
                if disable.failing_for.is_some_and(|longest| now.since(since) >= longest) {
                    reason = Some(DisableReason::Failing);
                }
            }
        }
    }
    let breaker = match (health.breaker, next.breaker) {
        (Breaker::Open { .. }, Breaker::Closed { .. }) => Some(BreakerMove::Closed),
        (before, Breaker::Open { until, .. }) if before != next.breaker => Some(BreakerMove::Opened { until }),
        (Breaker::Open { .. } | Breaker::Closed { .. }, Breaker::Open { .. } | Breaker::Closed { .. }) => None,
    };
    Step { health: next, breaker, notice: reason.map(Notice::Disable) }
}
