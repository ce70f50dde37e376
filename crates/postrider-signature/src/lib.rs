//! Signs and verifies webhooks as [Standard Webhooks](https://www.standardwebhooks.com) describes.
//!
//! A crate of its own, because both ends need it: the server signs each attempt, and whoever receives
//! one wants to verify it without taking on a server. So it does no IO and reads no clock; the time is
//! an argument, in unix seconds.

mod secret;
mod sign;

pub use secret::{Secret, SecretError};
pub use sign::{SigningKey, sign};
