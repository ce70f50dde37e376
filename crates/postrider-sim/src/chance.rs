//! Chance that comes again: every purpose has a stream of its own, derived from the seed by name.
//!
//! One stream for all would tie everything together: a fault more or less would change what the producers send, and no
//! history could be shrunk.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub struct Chance(ChaCha8Rng);

impl Chance {
    pub fn new(seed: u64, purpose: &str, number: u64) -> Self {
        let name = purpose.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        let mut key = [0; 32];
        for (place, word) in [seed, name, number, 0].into_iter().enumerate() {
            key[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Less than `end`; 0 if there is nothing less.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Both ends included.
    pub fn between(&mut self, least: i64, most: i64) -> i64 {
        least + self.below((most - least + 1).max(1) as u64) as i64
    }

    /// Both ends included, and every order of magnitude as likely as any other.
    pub fn spread(&mut self, least: i64, most: i64) -> i64 {
        let (low, high) = (least.max(1).ilog2(), most.max(1).ilog2());
        let power = self.between(low.into(), high.into());
        self.between(1 << power, (2 << power) - 1).clamp(least, most)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purpose_has_its_own_stream_and_always_the_same() {
        let drawn = |seed, purpose, number| Chance::new(seed, purpose, number).draw();
        assert_eq!(drawn(1, "load", 0), drawn(1, "load", 0));
        let all = [drawn(1, "load", 0), drawn(2, "load", 0), drawn(1, "faults", 0), drawn(1, "load", 1)];
        assert!((0..4).all(|one| (0..one).all(|other| all[one] != all[other])));
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut chance = Chance::new(7, "test", 0);
        for _ in 0..10_000 {
            assert!((-3..=5).contains(&chance.between(-3, 5)));
            assert!((200..=70_000).contains(&chance.spread(200, 70_000)));
            assert!(chance.below(3) < 3);
        }
    }
}
