//! How long to wait before the next try: a shape that grows, a cap, and chance.
//!
//! Everything is computed in whole milliseconds and saturates: a schedule is the same on every machine, and an absurd
//! setting gives a long wait, not a wrapped one.

use rand::{Rng, RngExt};
use std::{borrow::Cow, time::Duration};

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

impl Factor {
    /// Waits that shrink would turn a failing endpoint into a busy one.
    pub const MIN: Self = Self(1_000);
    pub const MAX: Self = Self(100_000);
    pub const DOUBLE: Self = Self(2_000);
}

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

/// A delay in two parts: what is waited for certain, and what chance adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    pub certain: Duration,
    pub drawn: Duration,
}

impl Spread {
    pub fn total(self) -> Duration {
        self.certain.saturating_add(self.drawn)
    }
}

impl Backoff {
    /// The wait before a retry, before chance. Retries count from 1. `None`: the table is used up.
    pub fn nominal(&self, retry: u32) -> Option<Duration> {
        self.nominal_millis(retry).map(Duration::from_millis)
    }

    /// The shortest and the longest wait that chance can make of it. `previous` is what was waited before the
    /// attempt that has just failed, if it was a retry itself.
    pub fn bounds(&self, retry: u32, previous: Option<Duration>) -> Option<(Duration, Duration)> {
        let nominal = self.nominal_millis(retry)?;
        // The cap bounds what is drawn from, not what was drawn: cutting afterwards would gather all that lies above
        // it in one moment, which is the herd that chance is there to part.
        let cap = whole_millis(self.cap);
        let (shortest, longest) = match self.jitter {
            Jitter::None => (nominal, nominal),
            Jitter::Full => (0, nominal),
            Jitter::Equal => (nominal / 2, nominal),
            Jitter::Decorrelated => {
                let base = self.nominal_millis(1)?;
                let previous = previous.map_or(base, whole_millis);
                (base, previous.saturating_mul(3).clamp(base, cap))
            }
            Jitter::Proportional { percent } => {
                let swing = share(nominal, percent);
                (nominal - swing, nominal.saturating_add(swing).min(cap))
            }
            Jitter::Additive { percent } => (nominal, nominal.saturating_add(share(nominal, percent)).min(cap)),
        };
        Some((Duration::from_millis(shortest), Duration::from_millis(longest)))
    }

    pub fn draw(&self, retry: u32, previous: Option<Duration>, rng: &mut impl Rng) -> Option<Spread> {
        let (shortest, longest) = self.bounds(retry, previous)?;
        let room = whole_millis(longest.saturating_sub(shortest));
        Some(Spread { certain: shortest, drawn: Duration::from_millis(rng.random_range(0..=room)) })
    }

    /// The same with a lower cap.
    pub(super) fn under(&self, cap: Duration) -> Cow<'_, Self> {
        if cap >= self.cap { Cow::Borrowed(self) } else { Cow::Owned(Self { cap, ..self.clone() }) }
    }

    fn nominal_millis(&self, retry: u32) -> Option<u64> {
        let cap = whole_millis(self.cap);
        let millis = match &self.shape {
            Shape::Exponential { base, factor } => grown(whole_millis(*base), *factor, retry.saturating_sub(1), cap),
            Shape::Fixed { interval } => whole_millis(*interval),
            Shape::Table { delays, then } => {
                let index = usize::try_from(retry.saturating_sub(1)).unwrap_or(usize::MAX);
                let delay = match then {
                    AfterTable::Repeat => delays.get(index).or(delays.last()),
                    AfterTable::End => delays.get(index),
                };
                whole_millis(*delay?)
            }
        };
        Some(millis.min(cap))
    }
}

/// `base * factor^times`, or `cap` if that is less.
fn grown(base: u64, factor: Factor, times: u32, cap: u64) -> u64 {
    // A base of a few milliseconds would not grow at all if each step were rounded to whole ones.
    const FINE: u128 = 1_000_000;
    let factor = u128::from(factor.0.clamp(Factor::MIN.0, Factor::MAX.0));
    if base == 0 || factor == u128::from(Factor::MIN.0) {
        return base.min(cap);
    }
    let (mut value, end) = (u128::from(base) * FINE, u128::from(cap) * FINE);
    for _ in 0..times {
        if value >= end {
            break;
        }
        value = value * factor / 1_000;
    }
    u64::try_from(value.min(end) / FINE).unwrap_or(u64::MAX)
}

pub(super) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn share(millis: u64, percent: u8) -> u64 {
    let share = u128::from(millis) * u128::from(percent.min(100)) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_hours(24);

    pub fn doubling(base: Duration, cap: Duration, jitter: Jitter) -> Backoff {
        Backoff { shape: Shape::Exponential { base, factor: Factor::DOUBLE }, cap, jitter }
    }

    pub fn any_jitter() -> impl Strategy<Value = Jitter> {
        prop_oneof![
            Just(Jitter::None),
            Just(Jitter::Full),
            Just(Jitter::Equal),
            Just(Jitter::Decorrelated),
            (0..=100u8).prop_map(|percent| Jitter::Proportional { percent }),
            (0..=100u8).prop_map(|percent| Jitter::Additive { percent }),
        ]
    }

    pub fn any_shape() -> impl Strategy<Value = Shape> {
        let delay = || (1..100_000_000u64).prop_map(Duration::from_millis);
        let then = prop_oneof![Just(AfterTable::Repeat), Just(AfterTable::End)];
        prop_oneof![
            (delay(), 1_000..=100_000u32)
                .prop_map(|(base, factor)| Shape::Exponential { base, factor: Factor(factor) }),
            delay().prop_map(|interval| Shape::Fixed { interval }),
            (prop::collection::vec(delay(), 1..15), then).prop_map(|(delays, then)| Shape::Table { delays, then }),
        ]
    }

    pub fn any_backoff() -> impl Strategy<Value = Backoff> {
        (any_shape(), 1..100_000_000u64, any_jitter()).prop_map(|(shape, cap, jitter)| Backoff {
            shape,
            cap: Duration::from_millis(cap),
            jitter,
        })
    }

    fn seconds(backoff: &Backoff, retries: std::ops::RangeInclusive<u32>) -> Vec<Option<u64>> {
        retries.map(|retry| backoff.nominal(retry).map(|delay| delay.as_secs())).collect()
    }

    #[test]
    fn a_doubling_wait_doubles_from_its_base_until_the_cap() {
        let backoff = doubling(Duration::from_mins(1), Duration::from_hours(1), Jitter::None);
        let expected = [60, 120, 240, 480, 960, 1920, 3600, 3600].map(Some);
        assert_eq!(seconds(&backoff, 1..=8), expected);
    }

    #[test]
    fn other_factors_grow_without_losing_their_fractions() {
        let tripling = Shape::Exponential { base: Duration::from_secs(30), factor: Factor(3_000) };
        let backoff = Backoff { shape: tripling, cap: Duration::from_hours(6), jitter: Jitter::None };
        assert_eq!(seconds(&backoff, 1..=7), [30, 90, 270, 810, 2430, 7290, 21_600].map(Some));
        let by_half = Shape::Exponential { base: Duration::from_millis(1), factor: Factor(1_500) };
        let backoff = Backoff { shape: by_half, cap: SECOND, jitter: Jitter::None };
        let millis: Vec<u128> = (1..=6).filter_map(|retry| backoff.nominal(retry)).map(|d| d.as_millis()).collect();
        assert_eq!(millis, [1, 1, 2, 3, 5, 7]);
    }

    #[test]
    fn a_fixed_wait_stays_and_is_capped() {
        let backoff = Backoff { shape: Shape::Fixed { interval: 80 * SECOND }, cap: DAY, jitter: Jitter::None };
        assert_eq!(seconds(&backoff, 1..=3), [80, 80, 80].map(Some));
        let capped = Backoff { cap: 70 * SECOND, ..backoff };
        assert_eq!(seconds(&capped, 1..=2), [70, 70].map(Some));
    }

    #[test]
    fn a_table_is_walked_in_order_and_then_repeats_or_ends() {
        let table = |then| Backoff {
            shape: Shape::Table { delays: DEFAULT_DELAYS.to_vec(), then },
            cap: DAY,
            jitter: Jitter::None,
        };
        let walked = [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400].map(Some);
        assert_eq!(seconds(&table(AfterTable::Repeat), 1..=9), walked);
        assert_eq!(seconds(&table(AfterTable::End), 1..=9), walked);
        assert_eq!(seconds(&table(AfterTable::Repeat), 10..=11), [86_400, 86_400].map(Some));
        assert_eq!(seconds(&table(AfterTable::End), 10..=11), [None, None]);
        assert_eq!(table(AfterTable::Repeat).nominal(u32::MAX), Some(DAY));
        assert_eq!(table(AfterTable::End).nominal(u32::MAX), None);
    }

    #[test]
    fn a_table_without_delays_has_no_retry() {
        for then in [AfterTable::Repeat, AfterTable::End] {
            let backoff =
                Backoff { shape: Shape::Table { delays: Vec::new(), then }, cap: DAY, jitter: Jitter::Decorrelated };
            assert_eq!(backoff.nominal(1), None);
            assert_eq!(backoff.bounds(1, None), None);
        }
    }

    #[test]
    fn each_jitter_has_its_own_bounds() {
        let ms = Duration::from_millis;
        // Of a wait of 4 s (the third retry of 1 s doubled), after one of 2.5 s.
        for (jitter, cap, expected) in [
            (Jitter::None, 60, (4_000, 4_000)),
            (Jitter::Full, 60, (0, 4_000)),
            (Jitter::Equal, 60, (2_000, 4_000)),
            (Jitter::Decorrelated, 60, (1_000, 7_500)),
            (Jitter::Decorrelated, 6, (1_000, 6_000)),
            (Jitter::Proportional { percent: 50 }, 60, (2_000, 6_000)),
            (Jitter::Proportional { percent: 50 }, 5, (2_000, 5_000)),
            (Jitter::Proportional { percent: 100 }, 60, (0, 8_000)),
            (Jitter::Additive { percent: 20 }, 60, (4_000, 4_800)),
            (Jitter::Additive { percent: 20 }, 4, (4_000, 4_000)),
        ] {
            let backoff = doubling(SECOND, cap * SECOND, jitter);
            let (shortest, longest) = backoff.bounds(3, Some(ms(2_500))).expect("there is a third retry");
            assert_eq!((shortest, longest), (ms(expected.0), ms(expected.1)), "{jitter:?} under {cap} s");
        }
    }

    #[test]
    fn decorrelated_waits_begin_between_the_base_and_three_times_the_base() {
        let backoff = doubling(SECOND, DAY, Jitter::Decorrelated);
        assert_eq!(backoff.bounds(1, None), Some((SECOND, 3 * SECOND)));
        assert_eq!(backoff.bounds(2, Some(Duration::ZERO)), Some((SECOND, SECOND)));
    }

    /// A thousand deliveries that fail together must not come back together (seed 0's example).
    #[test]
    fn a_herd_is_parted_by_every_jitter_that_spreads() {
        let delay = Duration::from_mins(10);
        for (jitter, window) in [
            (Jitter::Full, 600),
            (Jitter::Equal, 300),
            (Jitter::Proportional { percent: 50 }, 600),
            (Jitter::Decorrelated, 1_200),
        ] {
            let backoff = doubling(delay, DAY, jitter);
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            let mut buckets = std::collections::BTreeMap::new();
            for _ in 0..1_000 {
                let waited = backoff.draw(1, None, &mut rng).expect("there is a first retry").total();
                *buckets.entry(waited.as_secs()).or_insert(0u32) += 1;
            }
            let fullest = buckets.values().max().expect("there are a thousand");
            let fair = 1_000_u32.div_ceil(window);
            assert!(*fullest <= 5 * fair, "{jitter:?}: {fullest} in one second, where {fair} would be fair");
            assert!(buckets.len() as u32 > window.min(1_000) / 2, "{jitter:?}: {} seconds in use", buckets.len());
        }
    }

    #[test]
    fn absurd_settings_saturate() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let most = Duration::from_millis(u64::MAX);
        for shape in [
            Shape::Exponential { base: Duration::MAX, factor: Factor(u32::MAX) },
            Shape::Exponential { base: Duration::from_millis(1), factor: Factor::MAX },
            Shape::Exponential { base: Duration::from_millis(1), factor: Factor(1_001) },
            Shape::Fixed { interval: Duration::MAX },
            Shape::Table { delays: vec![Duration::MAX], then: AfterTable::Repeat },
        ] {
            for jitter in [
                Jitter::None,
                Jitter::Full,
                Jitter::Equal,
                Jitter::Decorrelated,
                Jitter::Proportional { percent: u8::MAX },
                Jitter::Additive { percent: u8::MAX },
            ] {
                let backoff = Backoff { shape: shape.clone(), cap: Duration::MAX, jitter };
                assert_eq!(backoff.nominal(u32::MAX), Some(most), "{shape:?}");
                for retry in [0, 1, 2, u32::MAX] {
                    let spread = backoff.draw(retry, Some(Duration::MAX), &mut rng).expect("it does not end");
                    assert!(spread.total() <= most);
                }
                let at_once = Backoff { cap: Duration::ZERO, ..backoff };
                assert_eq!(at_once.draw(3, None, &mut rng), Some(Spread::default()));
            }
        }
        for factor in [Factor(0), Factor(1)] {
            let backoff =
                Backoff { shape: Shape::Exponential { base: SECOND, factor }, cap: DAY, jitter: Jitter::None };
            assert_eq!(backoff.nominal(u32::MAX), Some(SECOND), "a wait never shrinks");
        }
    }

    proptest! {
        #[test]
        fn what_is_drawn_lies_within_the_bounds_and_under_the_cap(
            backoff in any_backoff(), retry in 1..2_000u32, previous in prop::option::of(0..100_000_000u64), seed: u64,
        ) {
            let previous = previous.map(Duration::from_millis);
            let bounds = backoff.bounds(retry, previous);
            let drawn = backoff.draw(retry, previous, &mut ChaCha8Rng::seed_from_u64(seed));
            prop_assert_eq!(bounds.is_some(), backoff.nominal(retry).is_some());
            prop_assert_eq!(bounds.is_some(), drawn.is_some());
            if let (Some((shortest, longest)), Some(spread)) = (bounds, drawn) {
                prop_assert!(shortest <= longest && longest <= backoff.cap);
                prop_assert_eq!(spread.certain, shortest);
                prop_assert!(spread.total() <= longest);
            }
        }

        #[test]
        fn waits_never_shrink_and_stop_at_the_cap(
            base in 1..1_000_000u64, factor in 1_000..=100_000u32, cap in 1..100_000_000u64,
        ) {
            let shape = Shape::Exponential { base: Duration::from_millis(base), factor: Factor(factor) };
            let backoff = Backoff { shape, cap: Duration::from_millis(cap), jitter: Jitter::None };
            let waits: Vec<Duration> = (1..200).filter_map(|retry| backoff.nominal(retry)).collect();
            prop_assert!(waits.is_sorted());
            prop_assert!(waits.iter().all(|wait| *wait <= backoff.cap));
        }

        #[test]
        fn a_seed_gives_the_same_wait_again(backoff in any_backoff(), retry in 1..100u32, seed: u64) {
            let draw = || backoff.draw(retry, None, &mut ChaCha8Rng::seed_from_u64(seed));
            prop_assert_eq!(draw(), draw());
        }
    }
}
