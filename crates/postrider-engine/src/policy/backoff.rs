//! How long to wait before the next try: a shape that grows, a cap, and chance.

use rand::{Rng, RngExt};
use std::time::Duration;

/// The schedule that Standard Webhooks recommends: nine retries over a little more than three days.
pub const DEFAULT_DELAYS: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
    Duration::from_hours(14),
    Duration::from_hours(20),
    Duration::from_hours(24),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub shape: Shape,
    /// No wait of ours is longer, chance included.
    pub cap: Duration,
    pub jitter: Jitter,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Exponential { base: Duration, factor: Factor },
    Fixed { interval: Duration },
    Table { delays: Vec<Duration>, then: AfterTable },
}

/// By what an exponential wait grows, in thousandths: schedules are computed without floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor(pub u32);

/// What comes after the last delay of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTable {
    /// It is repeated until the budget ends.
    Repeat,
    /// Nothing: all attempts are used.
    End,
}

/// What chance does to a delay `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    None,
    /// `[0, d]`
    Full,
    /// `[d/2, d]`
    Equal,
    /// `[base, 3 * previous]`
    Decorrelated,
    /// `[d * (1 - p), d * (1 + p)]`
    Proportional {
        percent: u8,
    },
    /// `[d, d * (1 + p)]`
    Additive {
        percent: u8,
    },
}

/// The delay before retry number `retry`, counted from 1. The last one repeats; what ends a delivery is
/// its budget, not the end of a table.
pub fn delay(delays: &[Duration], retry: u32) -> Duration {
    let last = delays.len().saturating_sub(1);
    let index = usize::try_from(retry.saturating_sub(1)).unwrap_or(last).min(last);
    delays.get(index).copied().unwrap_or(Duration::ZERO)
}

/// A delay in two parts: what is waited for certain, and what chance adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub certain: Duration,
    pub drawn: Duration,
}

/// Half the delay is certain, half is drawn: enough to part a herd, and never an instant retry.
pub fn equal_jitter(delay: Duration, rng: &mut impl Rng) -> Spread {
    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    let certain = millis / 2;
    Spread {
        certain: Duration::from_millis(certain),
        drawn: Duration::from_millis(rng.random_range(0..=millis - certain)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn the_default_table_is_walked_in_order_and_its_last_delay_repeats() {
        let seconds: Vec<u64> = (1..=11).map(|retry| delay(&DEFAULT_DELAYS, retry).as_secs()).collect();
        assert_eq!(seconds, [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400, 86_400, 86_400]);
    }

    proptest! {
        #[test]
        fn a_jittered_delay_stays_in_its_upper_half(ms in 0..86_400_000u64, seed: u64) {
            let delay = Duration::from_millis(ms);
            let spread = equal_jitter(delay, &mut ChaCha8Rng::seed_from_u64(seed));
            let waited = spread.certain + spread.drawn;
            prop_assert!(Duration::from_millis(ms / 2) <= waited && waited <= delay);
        }

        #[test]
        fn a_seed_gives_the_same_delay_again(ms in 0..86_400_000u64, seed: u64) {
            let draw = || equal_jitter(Duration::from_millis(ms), &mut ChaCha8Rng::seed_from_u64(seed));
            prop_assert_eq!(draw(), draw());
        }
    }
}
