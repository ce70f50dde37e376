//! What an outcome means, and when to try again. One file, one decision; all of them pure.

pub mod backoff;
pub mod breaker;
pub mod budget;
pub mod classify;
pub mod flaws;
pub mod health;
pub mod overrides;
pub mod presets;
pub mod preview;
pub mod rate;
pub mod retry_after;
pub mod rules;
pub mod verdict;
pub mod words;

pub use breaker::{Breaker, BreakerRules, Standing, WhileOpen};
pub use budget::{Budget, Leash, Limit, Progress};
pub use classify::{Class, Rule, classify};
pub use flaws::Flaw;
pub use health::{BreakerMove, DisableReason, DisableRules, Health, Notice, Probe, Step};
pub use preview::{Preview, preview};
pub use rate::Bucket;
pub use rules::{InFlightMax, Layer, Ordering, Policy, Rules, SignatureForm, SignatureStyle};
pub use verdict::{DeathReason, Delay, Next, Verdict, judge};
