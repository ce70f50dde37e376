//! Why something is late: a lane remembers when each cause last held it, and asks afterwards which of them covers most
//! of the time that a delivery waited. So nothing has to be noted for each delivery while it waits.
//!
//! From the same spans it is told how much of that time was spent waiting for the endpoint, or because somebody wanted it
//! so. The rest is our own: we had no slot, no room in memory, or were not running.

use super::parcel::{Held, HeldBy};
use crate::time::Timestamp;
use std::time::Duration;

/// What is sent no later than this after it was due needs no reason.
const PUNCTUAL: Duration = Duration::from_secs(1);

/// A cause that comes back so soon was never gone: between two requests of a lane that has no slot to spare, or is at its
/// rate, it is free for as long as it takes to begin the next one.
const MOMENT: Duration = Duration::from_millis(50);

const LASTING: Timestamp = Timestamp::from_millis(i64::MAX);

/// The latest time during which something held a lane up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    from: Timestamp,
    to: Timestamp,
}

impl Span {
    pub fn begin(&mut self, now: Timestamp) {
        // What ended a moment ago and begins anew has lasted all the while.
        if self.to.plus(MOMENT) < now {
            self.from = now;
        }
        self.to = LASTING;
    }

    pub fn began_at(at: Timestamp) -> Self {
        Self { from: at, to: LASTING }
    }

    pub fn end(&mut self, now: Timestamp) {
        self.to = self.to.min(now);
    }

    pub fn set(&mut self, lasts: bool, now: Timestamp) {
        if lasts { self.begin(now) } else { self.end(now) }
    }

    fn within(&self, from: Timestamp, to: Timestamp) -> Duration {
        self.to.min(to).since(self.from.max(from))
    }
}

/// What can hold up all of a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spans {
    pub breaker: Span,
    pub pause: Span,
    /// Something in the store waited behind an earlier one of its key.
    pub order: Span,
    pub rate: Span,
    pub slots: Span,
    /// The part of `slots` that is the endpoint's own: it has as many requests as it may have at a time.
    pub busy: Span,
}

/// What held up more than this lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    pub app_rate: Span,
    pub slots: Span,
}

/// Whether one delivery had to wait for others of its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Unordered,
    /// Its key was free from then on.
    Ordered {
        free_since: Timestamp,
    },
}

impl Spans {
    /// Why what was due then is sent only now; `None` if it is in time.
    pub fn held(&self, due: Timestamp, now: Timestamp, turn: Turn, elsewhere: Elsewhere) -> Option<Held> {
        let late = now.since(due);
        if late <= PUNCTUAL {
            return None;
        }
        let order = match turn {
            Turn::Unordered => Duration::ZERO,
            Turn::Ordered { free_since } => free_since.min(now).since(due).max(self.order.within(due, now)),
        };
        let known = [
            (HeldBy::Breaker, self.breaker.within(due, now)),
            (HeldBy::Pause, self.pause.within(due, now)),
            (HeldBy::Order, order),
            (HeldBy::Rate, self.rate.within(due, now)),
            (HeldBy::AppRate, elsewhere.app_rate.within(due, now)),
            (HeldBy::Slots, self.slots.within(due, now).max(elsewhere.slots.within(due, now))),
        ];
        let explained = known.iter().fold(Duration::ZERO, |sum, (_, share)| sum.saturating_add(*share));
        let mut longest = (HeldBy::Queue, late.saturating_sub(explained));
        // From the last to the first, so that of equals the one that is named first wins.
        for cause in known.into_iter().rev() {
            if !cause.1.is_zero() && cause.1 >= longest.1 {
                longest = cause;
            }
        }
        Some(Held { by: longest.0, late })
    }

    /// For how much of the time since it was due something was the reason that is not ours: its endpoint, a limit that was
    /// set for it, or the one before it of its key.
    pub fn theirs(&self, due: Timestamp, now: Timestamp, turn: Turn, elsewhere: Elsewhere) -> Duration {
        if now <= due {
            return Duration::ZERO;
        }
        let order = match turn {
            Turn::Unordered => Span::default(),
            Turn::Ordered { free_since } => Span { from: due, to: free_since },
        };
        let stored = match turn {
            Turn::Unordered => Span::default(),
            Turn::Ordered { .. } => self.order,
        };
        let mut spans = [self.breaker, self.pause, self.rate, self.busy, elsewhere.app_rate, order, stored];
        spans.sort_unstable_by_key(|span| span.from);
        let (mut theirs, mut counted) = (Duration::ZERO, due);
        for span in spans {
            theirs += span.within(counted, now);
            counted = counted.max(span.to.min(now));
        }
        theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn span(from: i64, to: i64) -> Span {
        Span { from: at(from), to: at(to) }
    }

    const NOWHERE: Elsewhere = Elsewhere {
        app_rate: Span { from: Timestamp::from_millis(0), to: Timestamp::from_millis(0) },
        slots: Span { from: Timestamp::from_millis(0), to: Timestamp::from_millis(0) },
    };

    #[test]
    fn the_cause_that_lasted_longest_is_named() {
        let spans = Spans { breaker: span(100, 140), pause: span(140, 150), rate: span(130, 160), ..Spans::default() };
        let by = |due, now| spans.held(at(due), at(now), Turn::Unordered, NOWHERE).map(|held| held.by);
        for (due, now, expected) in [
            (90, 160, Some(HeldBy::Breaker)),
            (135, 160, Some(HeldBy::Rate)),
            (141, 150, Some(HeldBy::Pause)),
            (10, 160, Some(HeldBy::Queue)),
            (165, 170, Some(HeldBy::Queue)),
            (165, 166, None),
        ] {
            assert_eq!(by(due, now), expected, "due {due}, sent {now}");
        }
    }

    #[test]
    fn one_that_waited_for_its_key_says_so() {
        let turn = Turn::Ordered { free_since: at(50) };
        let held = Spans::default().held(at(10), at(52), turn, NOWHERE);
        assert_eq!(held, Some(Held { by: HeldBy::Order, late: Duration::from_secs(42) }));
    }

    #[test]
    fn what_two_causes_hold_up_at_once_is_counted_once() {
        let spans = Spans { breaker: span(100, 140), pause: span(130, 150), busy: span(155, 160), ..Spans::default() };
        let theirs = |due, now| spans.theirs(at(due), at(now), Turn::Unordered, NOWHERE).as_secs();
        for (due, now, expected) in
            [(90, 170, 55), (120, 135, 15), (145, 158, 8), (150, 155, 0), (165, 170, 0), (170, 160, 0)]
        {
            assert_eq!(theirs(due, now), expected, "due {due}, sent {now}");
        }
    }

    #[test]
    fn who_waits_for_the_one_before_it_does_not_wait_for_us() {
        let theirs = |free_since| {
            let turn = Turn::Ordered { free_since: at(free_since) };
            Spans::default().theirs(at(10), at(52), turn, NOWHERE).as_secs()
        };
        assert_eq!([theirs(0), theirs(50), theirs(60)], [0, 40, 42]);
    }

    #[test]
    fn a_lane_that_is_free_for_a_moment_between_two_requests_was_busy_all_the_while() {
        let (mut span, millis) = (Span::default(), Timestamp::from_millis);
        for request in 100..200 {
            span.begin(millis(request * 100 + 10));
            span.end(millis(request * 100 + 99));
        }
        assert_eq!(span.within(millis(0), millis(i64::MAX)), Duration::from_millis(9_989));
    }

    #[test]
    fn what_goes_on_without_a_gap_is_one_span() {
        let mut span = Span::default();
        for second in 10..20 {
            span.begin(at(second));
            span.end(at(second + 1));
        }
        assert_eq!(span.within(at(0), at(100)), Duration::from_secs(10));
        span.begin(at(30));
        span.end(at(31));
        assert_eq!(span.within(at(0), at(100)), Duration::from_secs(1), "only the latest is remembered");
    }
}
