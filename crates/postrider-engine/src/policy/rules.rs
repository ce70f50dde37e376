//! The rules by which one endpoint's deliveries live, and how several levels of settings become one set of rules.
//!
//! The server, the application, the endpoint and the event type may each say something; the nearest one wins, field by
//! field. A level that names a preset starts from that preset and forgets what the levels further away said.

use super::{
    backoff::{Backoff, Jitter, Shape},
    breaker::BreakerRules,
    budget::{Budget, Leash},
    health::DisableRules,
    overrides::{Overrides, Subject, Treatment},
    presets::Preset,
    retry_after::{RetryAfterMode, RetryAfterRule},
};
use crate::outcome::Timeouts;
use std::{collections::BTreeMap, time::Duration};

/// Everything that decides how an endpoint is treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What an outcome means and when to try again. An event type may differ in this from its endpoint.
    pub policy: Policy,
    /// `None`: there is no breaker.
    pub breaker: Option<BreakerRules>,
    pub disable: DisableRules,
    pub in_flight_max: InFlightMax,
    pub ordering: Ordering,
    pub timeouts: Timeouts,
    /// Redirects that are followed; none, if 0.
    pub redirects_max: u8,
    pub signature: SignatureForm,
}

/// The rules of one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub backoff: Backoff,
    pub budget: Budget,
    /// The shorter leash of `Class::Ambiguous`.
    pub ambiguous: Leash,
    /// How long a delivery that has not been tried yet may wait behind a paused, disabled or tripped endpoint.
    pub hold_max: Duration,
    pub retry_after: RetryAfterRule,
    pub overrides: Overrides,
}

/// Requests at a time to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightMax(pub usize);

impl Default for InFlightMax {
    fn default() -> Self {
        Self(10)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ordering {
    /// Ordering keys are not looked at.
    None,
    /// Deliveries with the same ordering key go one after the other; all others side by side.
    #[default]
    Keyed,
    /// One after the other, all of them.
    Fifo,
}

/// How a request is signed besides the headers of Standard Webhooks, which are always there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SignatureForm {
    #[default]
    Standard,
    /// `t=<unix>,v1=<hex>` over `<unix>.<body>`.
    Stripe { header: String, id_header: Option<String> },
    /// `scheme=v1,ts=<unix>,sig=<hex>` over `<unix>.<body>`.
    Scheme { header: String, id_header: Option<String> },
}

/// What one level says. What is `None` is left to the levels further away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    pub preset: Option<&'static Preset>,
    pub shape: Option<Shape>,
    pub delay_cap: Option<Duration>,
    pub jitter: Option<Jitter>,
    pub attempts_max: Option<u32>,
    pub total_max: Option<Duration>,
    pub ambiguous_attempts_max: Option<u32>,
    pub ambiguous_total_max: Option<Duration>,
    pub hold_max: Option<Duration>,
    pub retry_after_mode: Option<RetryAfterMode>,
    pub retry_after_cap: Option<Duration>,
    pub overrides: BTreeMap<Subject, Treatment>,
    pub connect: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub total: Option<Duration>,
    pub redirects_max: Option<u8>,
    pub breaker: Option<BreakerLayer>,
    pub disable_after: Option<Switch<Duration>>,
    pub disable_streak: Option<Switch<u32>>,
    pub in_flight_max: Option<InFlightMax>,
    pub ordering: Option<Ordering>,
    pub signature: Option<SignatureForm>,
}

/// A setting that can also be turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch<T> {
    Off,
    On(T),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerLayer {
    Off,
    /// What is `None` comes from the level further away, or from the default where that one has no breaker.
    On {
        failures: Option<u32>,
        cool_down: Option<Duration>,
        cool_down_max: Option<Duration>,
        while_open: Option<super::breaker::WhileOpen>,
    },
}
