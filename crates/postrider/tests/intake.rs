//! Bad input, and the right answer to each: the table in docs/security.md, row by row, against the real server.
//!
//! What goes over the wire is written here byte for byte: a client library would not send most of it. No case waits for
//! luck: the server either answers or hangs up, and what must not come is known not to come when it has hung up.

#[path = "intake/bytes.rs"]
mod bytes;
#[path = "intake/caller.rs"]
mod caller;
#[path = "intake/crowds.rs"]
mod crowds;
#[path = "intake/frames.rs"]
mod frames;
#[path = "intake/json.rs"]
mod json;
#[path = "intake/values.rs"]
mod values;

mod support;
