//! What an endpoint's owner and the operator are told about its health, once per change.

use crate::ids::IdCodec;
use postrider_engine::{
    EndpointKey,
    policy::{
        DisableReason,
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
    pub fn of(&self, endpoint: EndpointKey, step: &Step) -> Option<DisableReason> {
        let id = || self.ids.id_of(endpoint);
        match step.breaker {
            Some(BreakerMove::Opened { until }) => {
                metrics::counter!("postrider_breakers_opened_total").increment(1);
                tracing::warn!(
                    endpoint = id(),
                    until = until.as_millis(),
                    "the endpoint keeps failing: its breaker is open"
                );
            }
            Some(BreakerMove::Closed) => {
                tracing::info!(endpoint = id(), "the endpoint answers again: its breaker is closed")
            }
            None => {}
        }
        match step.notice? {
            Notice::Warning(Warning::FailingUntil { disable_at }) => {
                tracing::warn!(
                    endpoint = id(),
                    disable_at = disable_at.as_millis(),
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
