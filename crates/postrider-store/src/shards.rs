//! How lanes are shared out among nodes.
//!
//! All lanes of one application lie in one shard, and a shard has one owner. So whatever is limited per endpoint or per
//! application is limited over all nodes, without anybody asking anybody else.

use postrider_engine::AppKey;
use std::fmt;

/// One of the parts into which all lanes are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u8);

impl Shard {
    pub const COUNT: usize = 256;

    /// Keys tell the time and so lie close together; the rest by a prime spreads them. The same sum is written in SQL
    /// where the database has to know, and rows rest on it, so that it must be the same in every version.
    pub fn of(app: AppKey) -> Self {
        Self((app.raw().rem_euclid(65_521) % Self::COUNT as i64) as u8)
    }

    pub fn new(number: u8) -> Self {
        Self(number)
    }

    /// Where it stands among all when they are shared out. Applications that are made one right after the other lie in
    /// neighbouring shards, and are not to fall to one node together. (95 is about 256 divided by the square of the golden
    /// ratio, so that any few neighbours are spread over all the places; the same sum is written in SQL.)
    pub fn place(self) -> u8 {
        self.0.wrapping_mul(95)
    }

    pub fn number(self) -> u8 {
        self.0
    }
}

/// A set of shards.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Shards([u64; Shard::COUNT / 64]);

impl Shards {
    pub const ALL: Self = Self([u64::MAX; Shard::COUNT / 64]);
    pub const NONE: Self = Self([0; Shard::COUNT / 64]);

    pub fn contains(&self, shard: Shard) -> bool {
        self.0[usize::from(shard.0 / 64)] & 1 << (shard.0 % 64) != 0
    }

    pub fn has_lanes_of(&self, app: AppKey) -> bool {
        self.contains(Shard::of(app))
    }

    pub fn insert(&mut self, shard: Shard) {
        self.0[usize::from(shard.0 / 64)] |= 1 << (shard.0 % 64);
    }

    pub fn with(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub fn without(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Those of both.
    pub fn and(self, other: Self) -> Self {
        self.without(Self::ALL.without(other))
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    pub fn iter(&self) -> impl Iterator<Item = Shard> + '_ {
        (0..=u8::MAX).map(Shard).filter(|shard| self.contains(*shard))
    }

    /// In an order in which neighbours lie far apart, see [`Shard::place`].
    pub fn scattered(&self) -> Vec<Shard> {
        let mut all: Vec<Shard> = self.iter().collect();
        all.sort_by_key(|shard| shard.place());
        all
    }
}

impl FromIterator<Shard> for Shards {
    fn from_iter<I: IntoIterator<Item = Shard>>(shards: I) -> Self {
        let mut set = Self::NONE;
        for shard in shards {
            set.insert(shard);
        }
        set
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shards", self.len())
    }
}

/// A node's time as an owner. What was begun in one and comes in after its end is refused: the lanes may be someone else's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenure(pub i64);

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::{Timestamp, keys::first_key_at};

    #[test]
    fn a_set_holds_what_was_put_into_it() {
        let mut some: Shards = [0, 63, 64, 255].into_iter().map(Shard::new).collect();
        assert_eq!(some.iter().map(Shard::number).collect::<Vec<_>>(), [0, 63, 64, 255]);
        some = some.without([63].into_iter().map(Shard::new).collect());
        assert!(!some.contains(Shard::new(63)) && some.contains(Shard::new(64)));
        assert_eq!((some.len(), Shards::ALL.len(), Shards::ALL.without(some).len()), (3, 256, 253));
        assert_eq!(Shards::ALL.without(some).with(some), Shards::ALL);
        assert_eq!(
            some.and([64, 65].into_iter().map(Shard::new).collect()).iter().collect::<Vec<_>>(),
            [Shard::new(64)]
        );
    }

    #[test]
    fn applications_made_one_after_the_other_are_spread_evenly() {
        for step in [1, 7, 1_000, 86_400_000] {
            let apps = (0..25_600).map(|count| first_key_at(Timestamp::from_millis(1_800_000_000_000 + count * step)));
            let mut count = [0; Shard::COUNT];
            for app in apps {
                count[usize::from(Shard::of(AppKey::new(app)).number())] += 1;
            }
            assert!(count.iter().all(|count| (40..200).contains(count)), "every {step} ms: {count:?}");
        }
    }

    /// Rows rest on it.
    #[test]
    fn the_shard_of_an_application_never_changes() {
        for (app, shard) in [(0, 0), (65_520, 240), (65_521, 0), (first_key_at(Timestamp::from_millis(1)), 224)] {
            assert_eq!(Shard::of(AppKey::new(app)).number(), shard, "{app}");
        }
    }
}
