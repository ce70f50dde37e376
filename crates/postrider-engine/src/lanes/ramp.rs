//! Slow start: an endpoint that comes back, or that only fails, is met with one request, not with everything that waits
//! for it.

use crate::policy::{Class, Rule, Verdict};

#[derive(Clone, Copy, Debug)]
pub(super) struct Ramp {
    allowance: usize,
    successes: usize,
}

/// What an outcome says of how much a receiver can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Copes,
    Fails,
    Neither,
}

impl Sign {
    pub fn of(verdict: &Verdict) -> Self {
        match verdict.class {
            Class::Delivered => Self::Copes,
            // Our own shortage tells nothing about the receiver.
            Class::Transient | Class::Ambiguous if verdict.rule == Rule::LocalResource => Self::Neither,
            Class::Transient | Class::Ambiguous => Self::Fails,
            // A refusal shows neither that it copes nor that it does not.
            Class::Permanent | Class::Gone => Self::Neither,
        }
    }
}

impl Ramp {
    /// `None` where one request at a time is the limit anyway.
    pub fn new(in_flight_max: usize) -> Option<Self> {
        (in_flight_max > 1).then_some(Self { allowance: 1, successes: 0 })
    }

    /// Requests at a time.
    pub fn allowance(&self) -> usize {
        self.allowance
    }

    /// The ramp after one more answer; `None` once it has reached the top.
    pub fn after(self, verdict: &Verdict, in_flight_max: usize) -> Option<Self> {
        let climbed = match Sign::of(verdict) {
            Sign::Copes => self.up(),
            Sign::Fails => self.down(),
            Sign::Neither => self,
        };
        (climbed.allowance < in_flight_max).then_some(climbed)
    }

    fn up(self) -> Self {
        let successes = self.successes + 1;
        if successes < self.allowance {
            Self { successes, ..self }
        } else {
            Self { allowance: self.allowance.saturating_mul(2), successes: 0 }
        }
    }

    fn down(self) -> Self {
        Self { allowance: (self.allowance / 2).max(1), successes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Next, Progress};

    fn climb(from: Option<Ramp>, class: Class, times: usize, in_flight_max: usize) -> Option<Ramp> {
        let verdict =
            Verdict { class, rule: Rule::Override, next: Next::Nothing, progress: Progress::default(), control: None };
        (0..times).fold(from, |ramp, _| ramp.and_then(|ramp| ramp.after(&verdict, in_flight_max)))
    }

    #[test]
    fn the_allowance_doubles_after_as_many_successes_in_a_row() {
        let mut ramp = Ramp::new(10);
        for (successes, allowance) in [(1, Some(2)), (1, Some(2)), (1, Some(4)), (4, Some(8)), (8, None)] {
            ramp = climb(ramp, Class::Delivered, successes, 10);
            assert_eq!(ramp.map(|ramp| ramp.allowance()), allowance, "after {successes} more");
        }
    }

    #[test]
    fn a_failure_halves_it_but_never_below_one() {
        let ramp = climb(Ramp::new(10), Class::Delivered, 3, 10);
        for (failures, allowance) in [(0, 4), (1, 2), (2, 1), (5, 1)] {
            let ramp = climb(ramp, Class::Transient, failures, 10);
            assert_eq!(ramp.map(|ramp| ramp.allowance()), Some(allowance), "after {failures} failures");
        }
    }

    #[test]
    fn a_refusal_neither_helps_nor_hurts() {
        let ramp = climb(Ramp::new(10), Class::Delivered, 1, 10);
        assert_eq!(climb(ramp, Class::Permanent, 50, 10).map(|ramp| ramp.allowance()), Some(2));
    }

    #[test]
    fn one_request_at_a_time_needs_no_ramp() {
        assert!(Ramp::new(1).is_none());
    }
}
