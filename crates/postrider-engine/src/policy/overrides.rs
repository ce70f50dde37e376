//! What an endpoint's owner says about outcomes: "404 is maintenance there".

use super::classify::Rule;
use std::collections::BTreeMap;

/// What is spoken about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Status(u16),
    /// The hundreds: 4 for 4xx.
    StatusClass(u16),
    /// What was judged by this rule (`Dns`, `Connection`, `Certificate`, `Handshake`, `Timeout`, `NotHttp`,
    /// `ForbiddenAddress`).
    Fault(Rule),
    /// Every outcome without an answer.
    Network,
    /// Whatever would be ambiguous.
    Ambiguous,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    Success,
    Retry,
    Permanent,
}

/// What all levels say, the nearest first. The nearest one that speaks about an outcome decides; within a level, the
/// more exact word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub Vec<BTreeMap<Subject, Treatment>>);
