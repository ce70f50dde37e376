//! What people say about how endpoints are treated, as JSON: the outer form of the engine's layers.
//!
//! The same fields stand on the server, on an application, on an endpoint and, as far as they concern a single
//! delivery, on an event type; the nearest one wins, field by field. They are stored as they were said, so that an
//! owner reads back what was written and not what it came to.

mod fields;
pub mod headers;
pub mod preview;
mod retry_policy;

pub use fields::{
    AutoDisable, CircuitBreaker, MaxInFlight, OrderingIn, Signature, Signatures, StatusOverrides, TimeoutsIn, Toggle,
};
pub use retry_policy::RetryPolicy;

use postrider_engine::policy::{self, Layer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where the field stands that the engine finds a flaw in.
pub fn path_of(field: &'static str) -> Vec<&'static str> {
    match field {
        "schedule.base" => vec!["retryPolicy", "schedule", "base"],
        "schedule.factor" => vec!["retryPolicy", "schedule", "factor"],
        "schedule.interval" => vec!["retryPolicy", "schedule", "interval"],
        "schedule.delays" => vec!["retryPolicy", "schedule", "delays"],
        "schedule.cap" => vec!["retryPolicy", "schedule", "cap"],
        "schedule.jitter" => vec!["retryPolicy", "jitter"],
        "budget.attempts" => vec!["retryPolicy", "maxAttempts"],
        "budget.total" => vec!["retryPolicy", "giveUpAfter"],
        "ambiguous.attempts" => vec!["retryPolicy", "ambiguous", "maxAttempts"],
        "ambiguous.total" => vec!["retryPolicy", "ambiguous", "giveUpAfter"],
        "hold" => vec!["retryPolicy", "holdFor"],
        "retry_after.cap" => vec!["retryPolicy", "retryAfter", "cap"],
        "redirects" => vec!["retryPolicy", "followRedirects"],
        "overrides" => vec!["statusOverrides"],
        "timeouts.connect" => vec!["timeouts", "connect"],
        "timeouts.first_byte" => vec!["timeouts", "firstByte"],
        "timeouts.total" => vec!["timeouts", "total"],
        "breaker.failures" => vec!["circuitBreaker", "failures"],
        "breaker.cool_down" => vec!["circuitBreaker", "coolDown"],
        "breaker.cool_down_max" => vec!["circuitBreaker", "coolDownMax"],
        "disable.after" => vec!["autoDisable", "failingFor"],
        "disable.streak" => vec!["autoDisable", "permanentStreak"],
        "in_flight" => vec!["maxInFlight"],
        "signature.header" => vec!["signature", "header"],
        "signature.id_header" => vec!["signature", "idHeader"],
        other => vec![other],
    }
}

/// What is written in the place of signatures.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what `Signatures` reads")]
pub enum SignaturesForm {
    One(Signature),
    /// Each in a header of its own.
    Several(Vec<Signature>),
}

/// What is written in the place of a retry policy.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what `RetryPolicy` reads")]
pub enum RetryPolicyForm {
    /// The name of a preset.
    Preset(String),
    Fields(RetryPolicy),
}

/// What is written in the place of a breaker.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what `Toggle` reads")]
pub enum CircuitBreakerForm {
    /// `false`: none; `true`: with its defaults.
    Switch(bool),
    Fields(CircuitBreaker),
}

/// What is written in the place of the rule.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it only describes what `Toggle` reads")]
pub enum AutoDisableForm {
    /// `false`: never; `true`: by its defaults.
    Switch(bool),
    Fields(AutoDisable),
}

/// Everything that one level can say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rules {
    /// When to try again, and when to give up: the name of a preset, or fields, or both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RetryPolicyForm>)]
    pub retry_policy: Option<RetryPolicy>,
    /// What an answer means here, such as `{"404": "retry", "5xx": "retry", "timeout": "permanent"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub status_overrides: Option<StatusOverrides>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutsIn>,
    /// `false`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CircuitBreakerForm>)]
    pub circuit_breaker: Option<Toggle<CircuitBreaker>>,
    /// Requests at a time to one endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    pub max_in_flight: Option<MaxInFlight>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordering: Option<OrderingIn>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SignaturesForm>)]
    pub signature: Option<Signatures>,
    /// When an endpoint is disabled by itself; `false`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AutoDisableForm>)]
    pub auto_disable: Option<Toggle<AutoDisable>>,
}

impl Rules {
    /// What was stored. Only what could be read was ever stored; if it cannot be read now, a newer version wrote it,
    /// and what it said is left out with a word in the log.
    pub fn stored(text: Option<&str>) -> Self {
        Self::read(text).unwrap_or_else(|error| {
            tracing::error!(%error, "stored rules cannot be read and do not apply");
            Self::default()
        })
    }

    pub fn read(text: Option<&str>) -> Result<Self, serde_json::Error> {
        text.map_or_else(|| Ok(Self::default()), serde_json::from_str)
    }

    /// As they are stored; `None` if nothing is said.
    pub fn to_store(&self) -> Option<String> {
        (*self != Self::default()).then(|| serde_json::to_string(self).expect("names and numbers become JSON"))
    }

    pub fn layer(&self) -> Layer {
        let mut layer = Layer::default();
        if let Some(policy) = &self.retry_policy {
            policy.fill(&mut layer);
        }
        if let Some(overrides) = &self.status_overrides {
            layer.overrides = overrides.0.clone();
        }
        if let Some(timeouts) = &self.timeouts {
            layer.connect = timeouts.connect.map(|span| span.0);
            layer.first_byte = timeouts.first_byte.map(|span| span.0);
            layer.total = timeouts.total.map(|span| span.0);
        }
        layer.breaker = self.circuit_breaker.as_ref().map(CircuitBreaker::layer);
        layer.in_flight_max = self.max_in_flight.map(|max| policy::InFlightMax(max.0.into()));
        layer.ordering = self.ordering.map(OrderingIn::engine);
        layer.signature = self.signature.clone().map(Signatures::forms);
        if let Some(disable) = &self.auto_disable {
            (layer.disable_after, layer.disable_streak) = disable.layer();
        }
        layer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::policy::presets;
    use serde_json::{Value, json};

    fn read(text: Value) -> Rules {
        serde_json::from_value(text).expect("rules")
    }

    #[test]
    fn whatever_can_be_said_reaches_the_engine() {
        let policy = |inside: Value| json!({"retryPolicy": inside});
        for said in [
            policy(json!("slack")),
            policy(json!({"schedule": {"type": "exponential", "base": "1s"}})),
            policy(json!({"schedule": {"type": "exponential", "base": "1s", "factor": 1.5, "cap": "1m"}})),
            policy(json!({"schedule": {"type": "fixed", "interval": "1s"}})),
            policy(json!({"schedule": {"type": "table", "delays": ["1s"]}})),
            policy(json!({"schedule": {"type": "table", "delays": ["1s"], "then": "stop"}})),
            policy(json!({"jitter": "none"})),
            policy(json!({"jitter": "full"})),
            policy(json!({"jitter": "decorrelated"})),
            policy(json!({"jitter": {"type": "proportional", "percent": 5}})),
            policy(json!({"jitter": {"type": "additive", "percent": 5}})),
            policy(json!({"maxAttempts": 3})),
            policy(json!({"giveUpAfter": "1h"})),
            policy(json!({"ambiguous": {"maxAttempts": 3}})),
            policy(json!({"ambiguous": {"giveUpAfter": "2h"}})),
            policy(json!({"holdFor": "1h"})),
            policy(json!({"retryAfter": {"mode": "override"}})),
            policy(json!({"retryAfter": {"cap": "1h"}})),
            policy(json!({"followRedirects": 1})),
            json!({"statusOverrides": {"404": "permanent"}}),
            json!({"statusOverrides": {"4xx": "retry"}}),
            json!({"statusOverrides": {"timeout": "permanent"}}),
            json!({"timeouts": {"connect": "1s"}}),
            json!({"timeouts": {"firstByte": "1s"}}),
            json!({"timeouts": {"total": "20s"}}),
            json!({"circuitBreaker": false}),
            json!({"circuitBreaker": {"failures": 3}}),
            json!({"circuitBreaker": {"coolDown": "1s"}}),
            json!({"circuitBreaker": {"coolDownMax": "1h"}}),
            json!({"circuitBreaker": {"whileOpen": "dead-letter"}}),
            json!({"maxInFlight": 3}),
            json!({"ordering": "none"}),
            json!({"ordering": "fifo"}),
            json!({"signature": {"style": "stripe", "header": "x-a"}}),
            json!({"signature": {"style": "scheme", "header": "x-a", "idHeader": "x-b"}}),
            json!({"signature": {"style": "github", "header": "x-hub-signature-256"}}),
            json!({"signature": [{"style": "stripe", "header": "x-a"}, {"style": "github", "header": "x-b"}]}),
            json!({"autoDisable": false}),
            json!({"autoDisable": {"failingFor": "1d"}}),
            json!({"autoDisable": {"permanentStreak": 3}}),
        ] {
            let rules = read(said.clone());
            assert_eq!(rules.layer().check(), [], "{said}");
            let resolved = policy::Rules::resolve([&rules.layer()]);
            assert_ne!(resolved, policy::Rules::default(), "{said} changes nothing");
            assert_eq!(Rules::stored(rules.to_store().as_deref()), rules, "{said} is not read back");
        }
    }

    #[test]
    fn every_preset_can_be_named_and_is_itself() {
        for preset in presets::all() {
            let rules = read(json!({"retryPolicy": preset.name}));
            let (named, itself) = ([&rules.layer()], [&preset.layer]);
            assert_eq!(policy::Rules::resolve(named), policy::Rules::resolve(itself), "{}", preset.name);
        }
    }

    #[test]
    fn nothing_said_is_nothing_stored() {
        assert_eq!(Rules::default().to_store(), None);
        assert_eq!(Rules::stored(None), Rules::default());
        assert_eq!(Rules::stored(Some(r#"{"ofALaterVersion":1}"#)), Rules::default());
    }

    #[test]
    fn a_flaw_is_shown_where_the_field_stands() {
        let five_forms = ["a", "b", "c", "d", "e"].map(|header| json!({"style": "stripe", "header": header}));
        for (said, place) in [
            (json!({"retryPolicy": {"schedule": {"type": "exponential", "base": "0s"}}}), "retryPolicy.schedule.base"),
            (json!({"retryPolicy": {"retryAfter": {"cap": "31d"}}}), "retryPolicy.retryAfter.cap"),
            (json!({"retryPolicy": {"ambiguous": {"maxAttempts": 0}}}), "retryPolicy.ambiguous.maxAttempts"),
            (json!({"circuitBreaker": {"coolDownMax": "0s"}}), "circuitBreaker.coolDownMax"),
            (json!({"autoDisable": {"failingFor": "0s"}}), "autoDisable.failingFor"),
            (json!({"maxInFlight": 0}), "maxInFlight"),
            (json!({"signature": {"style": "stripe", "header": "x-a", "idHeader": "X-A"}}), "signature.idHeader"),
            (
                json!({"signature": [{"style": "stripe", "header": "x-a"}, {"style": "github", "header": "X-A"}]}),
                "signature.header",
            ),
            (json!({"signature": five_forms}), "signature"),
        ] {
            let places: Vec<String> =
                read(said.clone()).layer().check().iter().map(|flaw| path_of(flaw.field).join(".")).collect();
            assert_eq!(places, [place], "{said}");
        }
    }
}
