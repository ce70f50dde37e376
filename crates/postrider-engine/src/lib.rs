//! Every decision that Postrider makes about a delivery, and nothing that touches the world.
//!
//! Time, chance and what happened on the wire come in as arguments; what to do next goes out as values.
//! That is why a year of retries runs in a test in milliseconds, and why the same seed gives the same
//! history again. The manifest keeps it so: no async runtime, no clock, no serde, no log.

pub mod alarm;
pub mod keys;
pub mod lanes;
pub mod outcome;
pub mod planted;
pub mod policy;
pub mod time;

pub use keys::{AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Trigger};
pub use outcome::{Answer, Control, Fault, Outcome, TimeoutPhase, TlsFault};
pub use time::Timestamp;
