//! What an endpoint's owner and the operator are told about its health, once per change.

use crate::{
    alerts::{Alert, Alerts},
    config::show_duration,
    ids::IdCodec,
};
use postrider_engine::{
    AppKey, EndpointKey, Timestamp,
    policy::{
        Breaker, DisableReason,
        health::{BreakerMove, Notice, Step, Warning},
    },
};
use std::sync::Arc;

pub struct Notices {
    pub(super) ids: IdCodec,
    alerts: Arc<Alerts>,
}

impl Notices {
    pub fn new(ids: IdCodec, alerts: Arc<Alerts>) -> Self {
        Self { ids, alerts }
    }

    /// Says what has changed, and whether the endpoint is to be disabled.
    pub fn of(&self, lane: (EndpointKey, AppKey), step: &Step, now: Timestamp) -> Option<DisableReason> {
        let (endpoint, _) = lane;
        let id = || self.ids.id_of(endpoint);
        match (step.breaker, step.health.breaker) {
            (Some(BreakerMove::Opened { until }), Breaker::Open { trips: 1, .. }) => {
                metrics::counter!("postrider_breakers_opened_total").increment(1);
                let pause = show_duration(until.since(now));
                tracing::warn!(endpoint = id(), pause, "the endpoint keeps failing: its breaker is open");
                self.tell(lane, Some("failing"), "keeps failing; its breaker is open", now);
            }
            // A probe failed: nothing has changed but the time.
            (Some(BreakerMove::Opened { .. }), Breaker::Open { .. } | Breaker::Closed { .. }) => {}
            (Some(BreakerMove::Closed), _) => {
                tracing::info!(endpoint = id(), "the endpoint answers again: its breaker is closed");
                self.tell(lane, Some("recovered"), "answers again; its breaker is closed", now);
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
                self.tell(
                    lane,
                    Some("warned"),
                    "has been failing for long and will be disabled unless it answers",
                    now,
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
                self.tell(
                    lane,
                    Some("warned"),
                    "refuses everything and will be disabled unless it takes a message",
                    now,
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
                // By webhook it is told by the contract's own event, which is written with the change.
                self.tell(lane, None, "is disabled; what it is owed is held", now);
                Some(why)
            }
        }
    }
}

impl Notices {
    /// Beside the log, which has its own line.
    fn tell(&self, lane: (EndpointKey, AppKey), event: Option<&str>, words: &str, now: Timestamp) {
        self.alerts.tell(Alert::of_endpoint(&self.ids, lane, event, words, now));
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
