//! When a failed event is tried again, and when not any more: a pure function of the attempt and of chance.

use std::time::Duration;

use rand::Rng;

use crate::causes::chain;

/// Why a handler did not bring an event to its end.
///
/// Any error becomes one that is tried again, so that `?` does in a handler. Its reason is what the error says and all that it came from
/// ([`source`](std::error::Error::source)). Of a reason the first two kilobytes are kept.
#[derive(Debug)]
pub enum Failure {
    /// Tried again, up to [`Retry::attempts_max`] times.
    Again(String),
    /// Never tried again by itself: the event is dead at once, until it is replayed.
    Never(String),
}

impl Failure {
    /// It will fail in the same way however often it is tried. For an error with all that it came from: `Failure::from(error).for_good()`.
    pub fn never(reason: impl std::fmt::Display) -> Self {
        Self::Never(reason.to_string())
    }

    pub fn again(reason: impl std::fmt::Display) -> Self {
        Self::Again(reason.to_string())
    }

    /// The same reason, but never tried again.
    pub fn for_good(self) -> Self {
        let (Self::Again(reason) | Self::Never(reason)) = self;
        Self::Never(reason)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Again(chain(&error))
    }
}

/// How often, and how far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The first try counts.
    pub attempts_max: u32,
    /// After the first failure.
    pub delay_first: Duration,
    /// Each delay is twice the one before, up to this.
    pub delay_max: Duration,
}

impl Default for Retry {
    /// Ten attempts; the waits between them add up to half an hour at most.
    fn default() -> Self {
        Self { attempts_max: 10, delay_first: Duration::from_secs(5), delay_max: Duration::from_mins(9) }
    }
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Again { after: Duration },
    Dead,
}

impl Retry {
    /// `attempt` is the one that failed, from 1.
    pub fn after(&self, attempt: u32, failure: &Failure, rng: &mut (impl Rng + ?Sized)) -> Next {
        match failure {
            Failure::Never(_) => Next::Dead,
            Failure::Again(_) if attempt >= self.attempts_max => Next::Dead,
            Failure::Again(_) => Next::Again { after: jittered(self.delay(attempt), rng) },
        }
    }

    fn delay(&self, attempt: u32) -> Duration {
        let doubled = 2u32.checked_pow(attempt.saturating_sub(1)).and_then(|times| self.delay_first.checked_mul(times));
        doubled.unwrap_or(self.delay_max).min(self.delay_max)
    }
}

/// Half is certain and half is drawn: events that failed together come back apart, and none at once.
fn jittered(delay: Duration, rng: &mut (impl Rng + ?Sized)) -> Duration {
    let certain = delay / 2;
    let share = f64::from(rng.next_u32()) / f64::from(u32::MAX);
    certain + (delay - certain).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn delays_double_up_to_their_bound() {
        let retry = Retry { attempts_max: 99, delay_first: Duration::from_secs(5), delay_max: Duration::from_secs(60) };
        for (attempt, seconds) in [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (40, 60), (u32::MAX, 60)] {
            assert_eq!(retry.delay(attempt), Duration::from_secs(seconds), "attempt {attempt}");
        }
    }

    #[test]
    fn what_is_permanent_or_was_tried_often_enough_is_dead() {
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let retry = Retry { attempts_max: 3, ..Retry::default() };
        assert_eq!(retry.after(1, &Failure::never("no such order"), &mut rng), Next::Dead);
        assert_eq!(retry.after(3, &Failure::again("busy"), &mut rng), Next::Dead);
        assert_eq!(retry.after(9, &Failure::again("busy"), &mut rng), Next::Dead);
        assert!(matches!(retry.after(2, &Failure::again("busy"), &mut rng), Next::Again { .. }));
    }

    #[test]
    fn an_error_that_is_for_good_keeps_its_reason() {
        let failure = Failure::from(crate::StoreError::unavailable("no such table")).for_good();
        let Failure::Never(reason) = failure else { panic!("{failure:?}") };
        assert!(reason.ends_with(": no such table"), "{reason}");
    }

    proptest! {
        #[test]
        fn a_delay_stays_in_its_upper_half(first in 1..100_000u64, max in 1..10_000_000u64, attempt in 1..100u32, seed: u64) {
            let retry = Retry {
                attempts_max: u32::MAX,
                delay_first: Duration::from_millis(first),
                delay_max: Duration::from_millis(max),
            };
            let next = retry.after(attempt, &Failure::again(""), &mut ChaCha8Rng::seed_from_u64(seed));
            let Next::Again { after } = next else { panic!("{next:?}") };
            prop_assert!(retry.delay(attempt) / 2 <= after && after <= retry.delay(attempt), "{after:?}");
        }
    }
}
