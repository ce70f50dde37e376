//! What waits for whom, and whose turn it is: state machines that are told what happened and asked what to do.

mod dispatcher;
mod lane;

pub use dispatcher::{Cancel, Command, Dispatcher, Limits, Rest};
pub use lane::{Held, HeldBy, LaneSettings, Parcel};
