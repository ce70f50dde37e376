//! The rules' fields on applications and endpoints: additions of ours to the contract.
//!
//! Clients that do not know them send bodies without them, also with PUT; so what is absent is kept, and only null
//! takes a rule away.

use super::{
    Api,
    error::{Error, Flaw},
    extract::Patch,
};
use crate::rules::{
    AutoDisable, CircuitBreaker, MaxInFlight, OrderingIn, RetryPolicy, Rules, Signatures, StatusOverrides, TimeoutsIn,
    Toggle,
};
use postrider_engine::policy::{self, Layer};

/// Adds the rules' fields to the struct of a body, and a way to take them out of it.
macro_rules! with_rules {
    ($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $(#[$meta])*
        pub struct $name {
            $($fields)*
            /// When to try again, and when to give up: the name of a preset, or fields, or both.
            #[serde(default)]
            #[schema(value_type = Option<$crate::rules::RetryPolicyForm>)]
            retry_policy: $crate::http::extract::Patch<$crate::rules::RetryPolicy>,
            /// What an answer means here, such as `{"404": "retry", "5xx": "retry", "timeout": "permanent"}`.
            #[serde(default)]
            #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
            status_overrides: $crate::http::extract::Patch<$crate::rules::StatusOverrides>,
            #[serde(default)]
            #[schema(value_type = Option<$crate::rules::TimeoutsIn>)]
            timeouts: $crate::http::extract::Patch<$crate::rules::TimeoutsIn>,
            /// `false`: none.
            #[serde(default)]
            #[schema(value_type = Option<$crate::rules::CircuitBreakerForm>)]
            circuit_breaker: $crate::http::extract::Patch<$crate::rules::Toggle<$crate::rules::CircuitBreaker>>,
            /// Requests at a time to one endpoint.
            #[serde(default)]
            #[schema(value_type = Option<u16>, minimum = 1, maximum = 1000)]
            max_in_flight: $crate::http::extract::Patch<$crate::rules::MaxInFlight>,
            #[serde(default)]
            #[schema(value_type = Option<$crate::rules::OrderingIn>)]
            ordering: $crate::http::extract::Patch<$crate::rules::OrderingIn>,
            #[serde(default)]
            #[schema(value_type = Option<$crate::rules::SignaturesForm>)]
            signature: $crate::http::extract::Patch<$crate::rules::Signatures>,
            /// When an endpoint is disabled by itself; `false`: never.
            #[serde(default)]
            #[schema(value_type = Option<$crate::rules::AutoDisableForm>)]
            auto_disable: $crate::http::extract::Patch<$crate::rules::Toggle<$crate::rules::AutoDisable>>,
        }

        impl $name {
            fn take_rules(&mut self) -> $crate::http::rules::RulesPatch {
                use std::mem::take;
                $crate::http::rules::RulesPatch {
                    retry_policy: take(&mut self.retry_policy),
                    status_overrides: take(&mut self.status_overrides),
                    timeouts: take(&mut self.timeouts),
                    circuit_breaker: take(&mut self.circuit_breaker),
                    max_in_flight: take(&mut self.max_in_flight),
                    ordering: take(&mut self.ordering),
                    signature: take(&mut self.signature),
                    auto_disable: take(&mut self.auto_disable),
                }
            }
        }
    };
}
pub(super) use with_rules;

/// What a body says about each rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RulesPatch {
    pub retry_policy: Patch<RetryPolicy>,
    pub status_overrides: Patch<StatusOverrides>,
    pub timeouts: Patch<TimeoutsIn>,
    pub circuit_breaker: Patch<Toggle<CircuitBreaker>>,
    pub max_in_flight: Patch<MaxInFlight>,
    pub ordering: Patch<OrderingIn>,
    pub signature: Patch<Signatures>,
    pub auto_disable: Patch<Toggle<AutoDisable>>,
}

impl RulesPatch {
    /// The rules as they will be stored.
    pub fn apply(self, stored: Option<&str>) -> Rules {
        let mut rules = Rules::stored(stored);
        self.retry_policy.apply(&mut rules.retry_policy);
        self.status_overrides.apply(&mut rules.status_overrides);
        self.timeouts.apply(&mut rules.timeouts);
        self.circuit_breaker.apply(&mut rules.circuit_breaker);
        self.max_in_flight.apply(&mut rules.max_in_flight);
        self.ordering.apply(&mut rules.ordering);
        self.signature.apply(&mut rules.signature);
        self.auto_disable.apply(&mut rules.auto_disable);
        rules
    }
}

impl Api {
    /// Refuses rules that are wrong, or that make no sense together with those further away. What was so before is not
    /// held against a change of something else: someone further away may have brought it about.
    pub(super) fn check_rules(&self, further: &[&Layer], old: Option<&str>, new: Option<&str>) -> Result<(), Error> {
        let new = Rules::read(new).map_err(|error| Error::invalid([], error.to_string()))?;
        let mut flaws = self.flaws_of(further, &new);
        if !flaws.is_empty() {
            let before = self.flaws_of(further, &Rules::stored(old));
            flaws.retain(|flaw| !before.contains(flaw));
        }
        if flaws.is_empty() {
            return Ok(());
        }
        let shown = |flaw: policy::flaws::Flaw| Flaw::new("body", crate::rules::path_of(flaw.field), flaw.words);
        Err(Error::Invalid(flaws.into_iter().map(shown).collect()))
    }

    fn flaws_of(&self, further: &[&Layer], rules: &Rules) -> Vec<policy::flaws::Flaw> {
        let own = rules.layer();
        let flaws = own.check();
        if !flaws.is_empty() {
            return flaws;
        }
        let all = std::iter::once(&*self.settings.rules).chain(further.iter().copied()).chain([&own]);
        policy::Rules::resolve(all).check()
    }
}
