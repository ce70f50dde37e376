//! Makes keys.

use postrider_engine::{Timestamp, keys::first_key_at};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Makes keys that only ever grow, also when the clock does not.
///
/// Where several nodes make keys, each keeps to those that leave its own number when divided by `NODES`, so that no two
/// make the same one. That leaves it four million in a second.
#[derive(Debug)]
pub struct Minter {
    last: AtomicI64,
    stride: i64,
    number: i64,
}

/// Nodes that can make keys at the same time.
pub const NODES: i64 = 512;

impl Minter {
    /// The only one.
    pub fn starting_after(last: i64) -> Self {
        Self { last: last.into(), stride: 1, number: 0 }
    }

    /// One of several.
    pub fn of_node(node: i64, last: i64) -> Self {
        Self { last: last.into(), stride: NODES, number: node.rem_euclid(NODES) }
    }

    pub fn mint(&self, at: Timestamp) -> i64 {
        let earliest = first_key_at(at);
        let next = |last: i64| self.ours_from(earliest.max(last + 1));
        let last = self.last.fetch_update(Relaxed, Relaxed, |last| Some(next(last))).unwrap_or_else(|last| last);
        next(last)
    }

    /// Keys up to this one are in use.
    pub fn catch_up(&self, used: i64) {
        self.last.fetch_max(used, Relaxed);
    }

    pub fn last(&self) -> i64 {
        self.last.load(Relaxed)
    }

    /// The first key from `key` on that this node may use.
    fn ours_from(&self, key: i64) -> i64 {
        key + (self.number - key).rem_euclid(self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::keys::time_of_key;

    #[test]
    fn keys_grow_even_when_the_clock_goes_back() {
        let minter = Minter::starting_after(0);
        let late = minter.mint(Timestamp::from_millis(5_000));
        let early = minter.mint(Timestamp::from_millis(1_000));
        assert!(early > late);
        assert_eq!(time_of_key(early), Timestamp::from_millis(5_000));
    }

    #[test]
    fn nodes_make_no_key_twice() {
        let (one, other) = (Minter::of_node(3, 0), Minter::of_node(515 + 1, 0));
        let at = Timestamp::from_millis(5_000);
        let mut keys = Vec::new();
        for _ in 0..10 {
            keys.extend([one.mint(at), other.mint(at)]);
            other.catch_up(one.last());
        }
        assert!(keys.is_sorted() || keys.iter().step_by(2).is_sorted() && keys.iter().skip(1).step_by(2).is_sorted());
        assert!(keys.iter().all(|key| time_of_key(*key) == at));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 20);
        assert!(other.mint(at) > one.last(), "what has been seen elsewhere is passed");
    }
}
