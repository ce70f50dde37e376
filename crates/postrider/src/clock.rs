//! The one door through which time comes in.
//!
//! Everything else is handed a `Timestamp`; `clippy.toml` bans the system's clocks elsewhere, so that a
//! decision can be replayed under a clock of the test's making.
//!
//! Where the store has a clock that counts for all nodes, this one follows it: a node whose own clock is wrong would
//! otherwise send early or late, and stamp what others read.

use postrider_engine::Timestamp;
use postrider_store::{Store, StoreError};
use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime},
};

/// How far the store's clock is ahead of this machine's, in milliseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// A reading that took longer says too little about when the store looked at its clock.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(500);

/// A clock that is further off is worth a word.
const AHEAD_TOLERATED: i64 = 1_000;

pub fn now() -> Timestamp {
    shifted(local(), AHEAD.load(Ordering::Relaxed))
}

/// Follows the store's clock.
#[derive(Default)]
pub struct Follower {
    /// What was last complained of.
    complained: i64,
}

impl Follower {
    /// Looks at the store's clock once. `Ok(false)`: it has none.
    pub async fn follow(&mut self, store: &dyn Store) -> Result<bool, StoreError> {
        let before = local();
        let Some(told) = store.time().await? else { return Ok(false) };
        if let Some(ahead) = ahead(before, told, local()) {
            AHEAD.store(ahead, Ordering::Relaxed);
            if self.is_worth_a_word(ahead) {
                tracing::warn!(
                    milliseconds = -ahead,
                    "this machine's clock is off by more than a second; the database's counts. Please mend it"
                );
            }
        }
        Ok(true)
    }

    /// Once per change.
    fn is_worth_a_word(&mut self, ahead: i64) -> bool {
        let is_changed = ahead.abs_diff(self.complained) > AHEAD_TOLERATED.unsigned_abs();
        if is_changed {
            self.complained = if ahead.unsigned_abs() > AHEAD_TOLERATED.unsigned_abs() { ahead } else { 0 };
        }
        is_changed && self.complained != 0
    }
}

/// How far the store's clock is ahead, if it was asked between these two moments. It looked at some moment between them;
/// the middle is wrong by half the round trip at most.
fn ahead(before: Timestamp, told: Timestamp, after: Timestamp) -> Option<i64> {
    let round_trip = after.since(before);
    let middle = before.plus(round_trip / 2);
    // Our own clock may have been set back in between.
    (before <= after && round_trip <= ROUND_TRIP_MAX).then(|| told.as_millis().saturating_sub(middle.as_millis()))
}

fn shifted(at: Timestamp, millis: i64) -> Timestamp {
    Timestamp::from_millis(at.as_millis().saturating_add(millis))
}

#[allow(clippy::disallowed_methods)]
fn local() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_reading_is_compared_with_the_middle_of_its_round_trip() {
        for (before, told, after, expected) in [
            (1_000, 1_000, 1_000, Some(0)),
            (1_000, 1_050, 1_100, Some(0)),
            (1_000, 6_050, 1_100, Some(5_000)),
            (9_000, 1_000, 9_500, Some(-8_250)),
            (9_000, 9_000, 9_501, None),
            (9_000, 9_000, 8_999, None),
            (0, i64::MIN, 500, Some(i64::MIN)),
        ] {
            assert_eq!(ahead(at(before), at(told), at(after)), expected, "{before} {told} {after}");
        }
        assert_eq!(shifted(at(10), i64::MAX), at(i64::MAX));
    }

    #[test]
    fn a_clock_that_is_off_is_complained_of_once_per_change() {
        let mut follower = Follower::default();
        let told = [0, 900, 1_500, 1_600, 800, 5_000, 5_200, -3_000, 100, 200, 1_100];
        let worth: Vec<i64> = told.into_iter().filter(|ahead| follower.is_worth_a_word(*ahead)).collect();
        assert_eq!(worth, [1_500, 5_000, -3_000, 1_100]);
    }
}
