//! What was counted over time, for charts: small numbers beside the history, so that a week of it is read in no time.

use postrider_engine::{AppKey, EndpointKey, Timestamp};
use std::time::Duration;

/// One count of one event in one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tally {
    pub span: TallySpan,
    /// A whole multiple of the span.
    pub start: Timestamp,
    pub of: TallyOf,
    pub what: TallyCode,
    pub count: TallyCount,
}

/// What becomes of what is there for the same span, subject and event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TallyCount {
    /// So many happened: they are added to it.
    More(u64),
    /// So many were found: they take its place, and none is written down, too.
    Found(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TallySpan {
    Minute,
    Hour,
}

impl TallySpan {
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    pub fn length(self) -> Duration {
        match self {
            Self::Minute => Duration::from_mins(1),
            Self::Hour => Duration::from_hours(1),
        }
    }

    /// When the span that holds `at` began.
    pub fn start_of(self, at: Timestamp) -> Timestamp {
        let length = self.millis();
        Timestamp::from_millis(at.as_millis().div_euclid(length) * length)
    }

    /// How long its counts are kept: a day of minutes, and two months of hours, so that during one month there is all of the
    /// one before.
    pub fn retention(self) -> Duration {
        match self {
            Self::Minute => Duration::from_hours(26),
            Self::Hour => Duration::from_hours(24 * 62),
        }
    }

    pub(crate) fn millis(self) -> i64 {
        match self {
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
        }
    }

    /// As it is stored.
    pub fn code(self) -> i16 {
        match self {
            Self::Minute => 0,
            Self::Hour => 1,
        }
    }
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TallyOf {
    All,
    Application(AppKey),
    Endpoint(EndpointKey),
}

impl TallyOf {
    /// As it is stored: what it is, and which one.
    pub fn code(self) -> (i16, i64) {
        match self {
            Self::All => (0, 0),
            Self::Application(app) => (1, app.raw()),
            Self::Endpoint(endpoint) => (2, endpoint.raw()),
        }
    }
}

/// What is counted. Its meaning is the caller's.
pub type TallyCode = i16;

/// Which counts are asked for: of one subject, in `[since, until)`, which are widened to whole spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TalliesOf {
    pub of: TallyOf,
    pub span: TallySpan,
    pub since: Timestamp,
    pub until: Timestamp,
}

impl TalliesOf {
    /// When the spans begin that are asked for: the first and the last one.
    pub fn starts(&self) -> (i64, i64) {
        let last = Timestamp::from_millis(self.until.as_millis().saturating_sub(1));
        (self.span.start_of(self.since).as_millis(), self.span.start_of(last).as_millis())
    }
}

/// What was counted in one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counted {
    pub start: Timestamp,
    pub what: TallyCode,
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_widened_to_whole_ones() {
        let of = |since, until| TalliesOf {
            of: TallyOf::All,
            span: TallySpan::Minute,
            since: Timestamp::from_millis(since),
            until: Timestamp::from_millis(until),
        };
        assert_eq!(of(60_000, 120_000).starts(), (60_000, 60_000));
        assert_eq!(of(60_001, 120_001).starts(), (60_000, 120_000));
        assert_eq!(of(-1, 1).starts(), (-60_000, 0));
    }
}
