//! The harness's two clocks.
//!
//! Generator and receiver live in one process, so one monotonic origin serves both and a latency is a plain
//! difference. The wall clock is needed thrice only: a signature has a timestamp, a report a date, and a key its like nowhere.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since this process first asked, never 0, so that 0 can mean "not yet".
pub fn monotonic_ns() -> u64 {
    let elapsed = Instant::now().saturating_duration_since(*ORIGIN).as_nanos();
    u64::try_from(elapsed).expect("a benchmark ends before 584 years are over") + 1
}

/// The moment of [`monotonic_ns`] as an `Instant`, for sleeping until it.
pub fn instant_at(ns: u64) -> Instant {
    *ORIGIN + std::time::Duration::from_nanos(ns.saturating_sub(1))
}

pub fn unix_seconds() -> i64 {
    let elapsed = system_time().duration_since(UNIX_EPOCH).expect("the machine's clock is set later than 1970");
    i64::try_from(elapsed.as_secs()).expect("seconds since 1970 fit")
}

/// Another one each time the benchmark runs.
pub fn salt() -> u64 {
    let elapsed = system_time().duration_since(UNIX_EPOCH).expect("the machine's clock is set later than 1970");
    elapsed.as_nanos() as u64 ^ u64::from(std::process::id()) << 48
}

pub fn date() -> String {
    jiff::Timestamp::try_from(system_time()).map_or_else(|_| "unknown".to_owned(), |now| format!("{now:.0}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the harness is outside the server: it measures real time and decides nothing by it"
)]
fn system_time() -> SystemTime {
    SystemTime::now()
}

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
