//! What the tests of the real binary share: the server as a process, and a receiver for what it sends.

// Each test binary uses its own part of this.
#![allow(dead_code, unused_imports, unused_macros)]

pub mod api;
pub mod chance;
pub mod cluster;
pub mod command;
pub mod house;
pub mod operations;
pub mod receiver;
pub mod server;
pub mod skip;
pub mod stores;
pub mod world;

use std::time::{Duration, Instant};

/// Asks again until there is an answer. What never comes fails the test, with a word on what was awaited.
pub async fn eventually<T>(awaited: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for: {awaited}");
        tokio::time::sleep(POLL).await;
    }
}

/// By the server's clock, to the millisecond that it keeps.
pub fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(postrider::clock::now().as_millis()).expect("a time that can be shown")
}

/// What has arrived this long ago has been written down, and is not repeated. It is far more than a commit takes, on any
/// machine: what is judged by it must not depend on who else uses this one.
pub const DURABLE_WITHIN: Duration = Duration::from_secs(5);
/// Long enough for a busy machine and for the first retry, which comes within seconds.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const POLL: Duration = Duration::from_millis(10);
