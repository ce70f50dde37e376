//! The one door through which time comes in.
//!
//! Everything else is handed a `Timestamp`; `clippy.toml` bans the system's clocks elsewhere, so that a
//! decision can be replayed under a clock of the test's making.

use postrider_engine::Timestamp;
use std::time::SystemTime;

#[allow(clippy::disallowed_methods)]
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}
