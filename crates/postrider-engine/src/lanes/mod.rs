//! What waits for whom, and whose turn it is: state machines that are told what happened and asked what to do.

mod dispatcher;
mod gate;
mod lane;
mod late;
mod order;
mod pace;
mod parcel;
mod ramp;
mod stored;
mod turns;

pub use dispatcher::{Cancel, Command, Dispatcher, Limits, Rest};
pub use lane::LaneSettings;
pub use parcel::{Held, HeldBy, Parcel};
