//! What was counted, put together for a chart.

use super::events::{Event, OF_ALL, TOOK_BOUNDS};
use postrider_engine::{Timestamp, policy::Class};
use postrider_store::{Counted, TallySpan};
use std::time::Duration;

/// How far back a chart goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Hour,
    Day,
    Week,
}

impl Period {
    pub fn length(self) -> Duration {
        match self {
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
            Self::Week => Duration::from_hours(24 * 7),
        }
    }

    /// What each point stands for.
    pub fn step(self) -> Duration {
        match self {
            Self::Hour => Duration::from_mins(1),
            Self::Day => Duration::from_mins(10),
            Self::Week => Duration::from_hours(1),
        }
    }

    /// By which counts it is drawn.
    pub fn span(self) -> TallySpan {
        match self {
            Self::Hour | Self::Day => TallySpan::Minute,
            Self::Week => TallySpan::Hour,
        }
    }
}

/// What was counted in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub start: Timestamp,
    /// What waited when it was last looked at; `None`: nobody looked.
    pub waiting: Option<u64>,
    /// What was dead then.
    pub dead: Option<u64>,
    counts: [u64; OF_ALL],
}

impl Point {
    pub fn empty(start: Timestamp) -> Self {
        Self { start, waiting: None, dead: None, counts: [0; OF_ALL] }
    }

    pub fn of(&self, event: Event) -> u64 {
        self.counts[event.number()]
    }

    pub fn delivered(&self) -> u64 {
        self.of(Event::Attempt(Class::Delivered))
    }

    pub fn failed(&self) -> u64 {
        let failures = [Class::Transient, Class::Ambiguous, Class::Permanent, Class::Gone];
        failures.into_iter().map(|class| self.of(Event::Attempt(class))).sum()
    }

    /// Adds everything but what stands, which does not add up over time: of that the latest counts.
    fn add(&mut self, event: Event, count: u64) {
        match event {
            Event::Waiting => self.waiting = Some(count),
            Event::Dead => self.dead = Some(count),
            _ => self.counts[event.number()] += count,
        }
    }

    /// Within how many milliseconds so many of a hundred were, counted in steps: what lies between two of them is taken for
    /// evenly spread. `None` if there was nothing.
    pub fn percentile(&self, steps: fn(u8) -> Event, percent: f64) -> Option<f64> {
        let counts: Vec<u64> = (0..=TOOK_BOUNDS.len() as u8).map(|step| self.of(steps(step))).collect();
        let total: u64 = counts.iter().sum();
        let wanted = total as f64 * percent / 100.0;
        let (mut below, mut low) = (0.0, 0.0);
        for (step, count) in counts.iter().enumerate() {
            let count = *count as f64;
            // What took longer than the last step has no upper end.
            let high = TOOK_BOUNDS.get(step).map_or(low, |bound| *bound as f64);
            if count > 0.0 && below + count >= wanted {
                return Some(low + (high - low) * ((wanted - below) / count).clamp(0.0, 1.0));
            }
            (below, low) = (below + count, high);
        }
        None
    }
}

/// A point for each step, the last of which holds `now`; and the whole.
pub fn points(counted: &[Counted], since: Timestamp, now: Timestamp, step: Duration) -> (Vec<Point>, Point) {
    let length = i64::try_from(step.as_millis()).unwrap_or(i64::MAX).max(1);
    let number = |at: Timestamp| at.as_millis().div_euclid(length);
    let first = number(since);
    let mut points: Vec<Point> =
        (first..=number(now)).map(|number| Point::empty(Timestamp::from_millis(number * length))).collect();
    let mut whole = Point::empty(since);
    for Counted { start, what, count } in counted {
        let place = usize::try_from(number(*start) - first).ok().and_then(|place| points.get_mut(place));
        let (Some(point), Some(event)) = (place, Event::of(*what)) else { continue };
        point.add(event, *count);
        whole.add(event, *count);
    }
    (points, whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    fn counted(minute: i64, event: Event, count: u64) -> Counted {
        let what = i16::try_from(event.number()).unwrap();
        Counted { start: Timestamp::from_millis(minute * MINUTE), what, count }
    }

    #[test]
    fn counts_fall_into_the_steps_they_belong_to() {
        let at = |minute: i64| Timestamp::from_millis(minute * MINUTE);
        let all = [
            counted(10, Event::Attempt(Class::Delivered), 1),
            counted(19, Event::Attempt(Class::Delivered), 2),
            counted(20, Event::Attempt(Class::Transient), 4),
            counted(20, Event::Attempt(Class::Gone), 8),
            counted(10, Event::Waiting, 5),
            counted(19, Event::Waiting, 3),
            counted(30, Event::Waiting, 0),
            counted(40, Event::Accepted, 99),
        ];
        let (points, whole) = points(&all, at(10), at(31), Duration::from_mins(10));
        assert_eq!(points.iter().map(|point| point.start).collect::<Vec<_>>(), [at(10), at(20), at(30)]);
        assert_eq!(points.iter().map(Point::delivered).collect::<Vec<_>>(), [3, 0, 0]);
        assert_eq!(points.iter().map(Point::failed).collect::<Vec<_>>(), [0, 12, 0]);
        assert_eq!(points.iter().map(|point| point.waiting).collect::<Vec<_>>(), [Some(3), None, Some(0)]);
        assert_eq!((whole.waiting, whole.dead), (Some(0), None), "the latest of what stands");
        assert_eq!((whole.delivered(), whole.failed(), whole.of(Event::Accepted)), (3, 12, 0));
    }

    #[test]
    fn percentiles_lie_within_the_step_that_holds_them() {
        let mut point = Point::empty(Timestamp::default());
        assert_eq!(point.percentile(Event::Took, 50.0), None);
        point.add(Event::Took(3), 90);
        point.add(Event::Took(5), 10);
        assert_eq!(point.percentile(Event::Took, 45.0), Some(7.5));
        assert_eq!(point.percentile(Event::Took, 90.0), Some(10.0));
        assert_eq!(point.percentile(Event::Took, 100.0), Some(50.0));
        assert_eq!(point.percentile(Event::Arrived, 99.0), None);
        point.add(Event::Took(16), 900);
        assert_eq!(point.percentile(Event::Took, 99.0), Some(3_600_000.0));
    }
}
