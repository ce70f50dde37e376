//! Says that a key is certainly not in an index, without reading it (a Bloom filter).
//!
//! Nearly every key that is looked for is new. Looking it up would read pages all over an index that is too great for
//! the cache; a megabyte per half a million keys answers instead, and errs in less than one of a hundred cases, on the
//! side of looking.

use super::repeats::Key;

pub struct Filter {
    bits: Vec<u64>,
    /// The number of bits is a power of two; this is one less.
    mask: u64,
}

/// Of a filter that is stored. It changes with whatever says which bits a key sets: by another rule, one would deny what it holds.
const FORMAT: u8 = 1;
const BITS_PER_KEY: usize = 12;
const PROBES: u64 = 6;

impl Filter {
    pub fn with_room_for(keys: usize) -> Self {
        let bits = keys.max(64).saturating_mul(BITS_PER_KEY).next_power_of_two();
        Self { bits: vec![0; bits / 64], mask: bits as u64 - 1 }
    }

    /// As `to_bytes` wrote it; `None` if it did not.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.strip_prefix(&[FORMAT])?.as_chunks::<8>();
        let is_whole = rest.is_empty() && words.len().is_power_of_two();
        let bits: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        is_whole.then(|| Self { mask: bits.len() as u64 * 64 - 1, bits })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.bits.iter().flat_map(|word| word.to_le_bytes());
        std::iter::once(FORMAT).chain(words).collect()
    }

    pub fn insert(&mut self, key: &Key) {
        for bit in probes(key) {
            let bit = bit & self.mask;
            self.bits[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }

    pub fn may_hold(&self, key: &Key) -> bool {
        probes(key).all(|bit| {
            let bit = bit & self.mask;
            self.bits[(bit / 64) as usize] & (1 << (bit % 64)) != 0
        })
    }
}

/// Keys are hashes already, so that their two halves give as many positions as are wanted.
fn probes(key: &Key) -> impl Iterator<Item = u64> {
    let key = u128::from_be_bytes(*key);
    let (first, step) = ((key >> 64) as u64, key as u64 | 1);
    (0..PROBES).map(move |probe| first.wrapping_add(probe.wrapping_mul(step)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn it_never_denies_what_it_holds_and_seldom_claims_what_it_does_not() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut keys = || (0..10_000).map(|_| rng.random::<Key>()).collect::<Vec<_>>();
        let (held, others) = (keys(), keys());
        let mut filter = Filter::with_room_for(held.len());
        held.iter().for_each(|key| filter.insert(key));
        assert!(held.iter().all(|key| filter.may_hold(key)));
        let read = Filter::from_bytes(&filter.to_bytes()).expect("as it was written");
        assert!(held.iter().chain(&others).all(|key| read.may_hold(key) == filter.may_hold(key)));
        for bytes in [&[][..], &[FORMAT; 8], &[FORMAT; 25], &[FORMAT + 1; 17]] {
            assert!(Filter::from_bytes(bytes).is_none(), "{bytes:?}");
        }
        let claimed = others.iter().filter(|key| filter.may_hold(key)).count();
        assert!(claimed < 200, "{claimed} of {}", others.len());
    }
}
