//! What an outcome means, and when to try again. One file, one decision; all of them pure.

pub mod backoff;
pub mod budget;
pub mod classify;
pub mod rate;
pub mod retry_after;
pub mod verdict;

pub use budget::{Budget, Limit, Progress};
pub use classify::{Class, Rule, classify};
pub use rate::Bucket;
pub use verdict::{DeathReason, Delay, Next, Policy, Verdict, judge};
