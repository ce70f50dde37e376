//! What is counted of attempts and of the deliveries that end with them. All handles are looked up once.

use super::delivery::Cargo;
use crate::telemetry::{
    Tops, names,
    tops::{CLASSES, Whose, class_index},
};
use crate::words::class_name;
use metrics::{Counter, Histogram};
use postrider_engine::{
    Timestamp, Trigger,
    lanes::Parcel,
    policy::{DeathReason, Next, Verdict},
};
use std::{sync::Arc, time::Duration};

pub struct Meters {
    tops: Arc<Tops>,
    attempts: [Counter; CLASSES.len()],
    attempt_duration: Histogram,
    late_by_us: Histogram,
    late_by_them: Histogram,
    delivered: Ended,
    dead: Ended,
    delivered_at_once: Histogram,
    delivered_later: Histogram,
    deaths: [Counter; REASONS.len()],
}

struct Ended {
    deliveries: Counter,
    attempts: Histogram,
}

/// How much later than it was due an attempt began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// We had no slot, no room in memory, too much else to do, or did not run.
    pub ours: Duration,
    /// The endpoint was paused, tripped, busy or at its rate, or an earlier one of the key was not through.
    pub theirs: Duration,
}

impl Lateness {
    pub fn of(parcel: &Parcel<Cargo>, started: Timestamp) -> Self {
        let late = started.since(parcel.due);
        let theirs = parcel.theirs.min(late);
        Self { ours: late.saturating_sub(theirs), theirs }
    }
}

impl Meters {
    pub fn new(tops: Arc<Tops>) -> Self {
        let attempts = CLASSES.map(|class| metrics::counter!("postrider_attempts_total", "class" => class_name(class)));
        let lateness = |whose: &'static str| metrics::histogram!(names::LATENESS, "whose" => whose);
        let ended = |result: &'static str| Ended {
            deliveries: metrics::counter!("postrider_deliveries_total", "result" => result),
            attempts: metrics::histogram!(names::DELIVERY_ATTEMPTS, "result" => result),
        };
        let delivery = |tries: &'static str| metrics::histogram!(names::DELIVERY_DURATION, "tries" => tries);
        Self {
            tops,
            attempts,
            attempt_duration: metrics::histogram!(names::ATTEMPT_DURATION),
            late_by_us: lateness("ours"),
            late_by_them: lateness("theirs"),
            delivered: ended("delivered"),
            dead: ended("dead"),
            delivered_at_once: delivery("one"),
            delivered_later: delivery("more"),
            deaths: REASONS
                .map(|reason| metrics::counter!("postrider_dead_letters_total", "reason" => death_label(reason))),
        }
    }

    pub fn count(
        &self,
        parcel: &Parcel<Cargo>,
        verdict: &Verdict,
        lateness: Lateness,
        took: Duration,
        ended: Timestamp,
    ) {
        let whose = whose(parcel);
        self.attempts[class_index(verdict.class)].increment(1);
        self.attempt_duration.record(took);
        self.late_by_us.record(lateness.ours);
        self.late_by_them.record(lateness.theirs);
        let mut arrived_after = None;
        match (verdict.next, parcel.id.trigger) {
            (Next::Delivered, Trigger::Scheduled) => {
                let after = ended.since(parcel.queued_at);
                self.delivered.count(verdict.progress.attempts);
                let is_first = verdict.progress.attempts == 1;
                if is_first { &self.delivered_at_once } else { &self.delivered_later }.record(after);
                arrived_after = Some(after);
            }
            (Next::Dead(reason), _) => self.count_death(parcel, reason, verdict.progress.attempts),
            // A resend is no delivery of its own.
            (Next::Delivered, Trigger::Manual) | (Next::Retry { .. } | Next::Nothing | Next::Postponed { .. }, _) => {}
        }
        self.tops.attempt(whose, verdict.class, took, arrived_after);
    }

    pub fn count_death(&self, parcel: &Parcel<Cargo>, reason: DeathReason, attempts: u32) {
        self.deaths[reason_index(reason)].increment(1);
        self.dead.count(attempts);
        self.tops.dead(whose(parcel));
    }
}

impl Ended {
    fn count(&self, attempts: u32) {
        self.deliveries.increment(1);
        self.attempts.record(attempts);
    }
}

fn whose(parcel: &Parcel<Cargo>) -> Whose<'_> {
    Whose { endpoint: parcel.id.endpoint, app: parcel.cargo.app, event_type: &parcel.cargo.event_type }
}

/// The word for it in metrics.
pub fn death_label(reason: DeathReason) -> &'static str {
    match reason {
        DeathReason::Permanent => "permanent",
        DeathReason::Exhausted => "exhausted",
        DeathReason::Expired => "expired",
        DeathReason::EndpointGone => "endpoint_gone",
        DeathReason::Cancelled => "cancelled",
        DeathReason::Breaker => "breaker",
    }
}

fn reason_index(reason: DeathReason) -> usize {
    match reason {
        DeathReason::Permanent => 0,
        DeathReason::Exhausted => 1,
        DeathReason::Expired => 2,
        DeathReason::EndpointGone => 3,
        DeathReason::Cancelled => 4,
        DeathReason::Breaker => 5,
    }
}

const REASONS: [DeathReason; 6] = [
    DeathReason::Permanent,
    DeathReason::Exhausted,
    DeathReason::Expired,
    DeathReason::EndpointGone,
    DeathReason::Cancelled,
    DeathReason::Breaker,
];

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::policy::Class;

    #[test]
    fn every_class_and_reason_has_a_place_of_its_own() {
        assert!(CLASSES.iter().enumerate().all(|(index, class)| class_index(*class) == index));
        assert!(REASONS.iter().enumerate().all(|(index, reason)| reason_index(*reason) == index));
        assert_eq!(class_name(Class::Delivered), "delivered");
    }
}
