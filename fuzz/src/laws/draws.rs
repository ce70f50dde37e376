//! Values made of the fuzzer's bytes. When they run out, everything is zero or empty.

use arbitrary::{Arbitrary, Unstructured};
use postrider_engine::{
    Timestamp,
    policy::{
        Policy,
        backoff::{AfterTable, Backoff, Factor, Jitter, Shape},
        budget::{Budget, Leash},
        overrides::{Overrides, Subject, Treatment, WORDS},
        retry_after::{RetryAfterMode, RetryAfterRule},
    },
};
use std::{collections::BTreeMap, time::Duration};

pub struct Draws<'a>(Unstructured<'a>);

impl<'a> Draws<'a> {
    pub fn of(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    pub fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.any::<u16>()) % end
    }

    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        self.0.bytes(count.min(self.0.len())).unwrap_or_default()
    }

    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    /// A few characters.
    pub fn text(&mut self) -> String {
        let count = usize::from(self.any::<u8>());
        String::from_utf8_lossy(self.bytes(count)).into_owned()
    }

    pub fn maybe<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.any::<bool>().then(|| some(self))
    }

    pub fn several<T>(&mut self, max: usize, one: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(max + 1)).map(|_| one(self)).collect()
    }

    /// From nothing to absurd, and often something sensible.
    pub fn duration(&mut self) -> Duration {
        let number = u64::from(self.any::<u32>());
        match self.below(8) {
            0 => Duration::from_millis(number % 1_000),
            1 | 2 => Duration::from_millis(number),
            3 => Duration::from_secs(number % 100_000),
            4 => Duration::from_secs(number),
            5 => Duration::new(self.any(), self.any::<u32>() % 1_000_000_000),
            6 => Duration::from_nanos(number),
            _ => self.one_of(&[Duration::ZERO, Duration::MAX, Duration::from_millis(u64::MAX)]),
        }
    }

    pub fn timestamp(&mut self) -> Timestamp {
        let millis = match self.below(4) {
            0 | 1 => 1_700_000_000_000 + i64::from(self.any::<u32>()),
            2 => self.any(),
            _ => self.one_of(&[0, -1, i64::MAX, i64::MIN, i64::MAX - 1]),
        };
        Timestamp::from_millis(millis)
    }

    pub fn count(&mut self) -> u32 {
        match self.below(4) {
            0 | 1 => u32::from(self.any::<u8>()),
            2 => self.any(),
            _ => self.one_of(&[0, 1, u32::MAX]),
        }
    }

    pub fn backoff(&mut self) -> Backoff {
        let shape = match self.below(3) {
            0 => Shape::Exponential { base: self.duration(), factor: Factor(self.any()) },
            1 => Shape::Fixed { interval: self.duration() },
            _ => Shape::Table {
                delays: self.several(12, Self::duration),
                then: self.one_of(&[AfterTable::Repeat, AfterTable::End]),
            },
        };
        let percent = self.any();
        let jitter = self.one_of(&[
            Jitter::None,
            Jitter::Full,
            Jitter::Equal,
            Jitter::Decorrelated,
            Jitter::Proportional { percent },
            Jitter::Additive { percent },
        ]);
        Backoff { shape, cap: self.duration(), jitter }
    }

    pub fn policy(&mut self) -> Policy {
        let subject = |draws: &mut Self| match draws.below(3) {
            0 => Subject::Status(draws.any::<u16>() % 600),
            1 => Subject::StatusClass(draws.any::<u16>() % 7),
            _ => draws.one_of(&WORDS).1,
        };
        Policy {
            backoff: self.backoff(),
            budget: Budget { attempts_max: self.count(), total_max: self.duration() },
            ambiguous: Leash { attempts_max: self.count(), total_max: self.duration() },
            hold_max: self.duration(),
            retry_after: RetryAfterRule {
                mode: self.one_of(&[RetryAfterMode::Longest, RetryAfterMode::Override]),
                cap: self.duration(),
            },
            overrides: Overrides(self.several(3, |draws| {
                let pairs = draws.several(4, |draws| (subject(draws), draws.one_of(&Treatment::ALL)));
                BTreeMap::from_iter(pairs)
            })),
        }
    }
}
