//! What an endpoint's owner and the operator are told about its health, once per change.

use crate::{config::show_duration, ids::IdCodec};
use postrider_engine::{
    EndpointKey, Timestamp,
    policy::{
        Breaker, DisableReason,
        health::{BreakerMove, Notice, Step, Warning},
    },
};

pub struct Notices {
    ids: IdCodec,
}

impl Notices {
    pub fn new(ids: IdCodec) -> Self {
        Self { ids }
    }

    /// Says what has changed, and whether the endpoint is to be disabled.
    pub fn of(&self, endpoint: EndpointKey, step: &Step, now: Timestamp) -> Option<DisableReason> {
        let id = || self.ids.id_of(endpoint);
        match (step.breaker, step.health.breaker) {
            (Some(BreakerMove::Opened { until }), Breaker::Open { trips: 1, .. }) => {
                metrics::counter!("postrider_breakers_opened_total").increment(1);
                let pause = show_duration(until.since(now));
                tracing::warn!(endpoint = id(), pause, "the endpoint keeps failing: its breaker is open");
            }
            // A probe failed: nothing has changed but the time.
            (Some(BreakerMove::Opened { .. }), Breaker::Open { .. } | Breaker::Closed { .. }) => {}
            (Some(BreakerMove::Closed), _) => {
                tracing::info!(endpoint = id(), "the endpoint answers again: its breaker is closed");
            }
            (None, _) => {}
        }
        match step.notice? {
            Notice::Warning(Warning::FailingUntil { disable_at }) => {
                tracing::warn!(
                    endpoint = id(),
                    left = show_duration(disable_at.since(now)),
                    "the endpoint has been failing for long and will be disabled unless it answers"
                );
                None
            }
            Notice::Warning(Warning::Refusing { streak, max }) => {
                tracing::warn!(
                    endpoint = id(),
                    streak,
                    max,
                    "the endpoint refuses one message after the other and will be disabled unless it takes one"
                );
                None
            }
            Notice::Disable(why) => {
                metrics::counter!("postrider_endpoints_disabled_total", "reason" => reason_name(why)).increment(1);
                tracing::warn!(
                    endpoint = id(),
                    reason = reason_name(why),
                    "the endpoint is disabled; what it is owed is held"
                );
                Some(why)
            }
        }
    }
}

/// The word for it, in the API, the log and the metrics.
pub fn reason_name(why: DisableReason) -> &'static str {
    match why {
        DisableReason::Manual => "manual",
        DisableReason::Gone => "gone",
        DisableReason::Failing => "failing",
        DisableReason::Quarantined => "quarantined",
        DisableReason::Asked => "asked",
    }
}
