//! A point in time, in whole milliseconds since 1970.
//!
//! Sums saturate: a receiver may ask for a retry in the year 9999, and no arithmetic on its wish may wrap.

use std::{fmt, time::Duration};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// Zero if `earlier` is in fact later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}ms", self.0)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_instead_of_wrapping() {
        let late = Timestamp::from_millis(i64::MAX - 1);
        assert_eq!(late.plus(Duration::MAX).as_millis(), i64::MAX);
        let early = Timestamp::from_millis(i64::MIN + 1);
        assert_eq!(early.minus(Duration::MAX).as_millis(), i64::MIN);
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
