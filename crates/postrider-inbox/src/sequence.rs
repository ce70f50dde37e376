//! Tells what is missing and what came late, from the numbers that ordered deliveries carry.
//!
//! Postrider counts `webhook-sequence` from 1 without gaps, per endpoint and ordering key. A number that is skipped was given
//! up or is still to come; one that comes after a greater one was replayed, or was on its way when this receiver was down. Nothing
//! waits here: what to do about a gap is the handler's to decide.

use std::fmt;

/// How an event came among those of its ordering key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The number after the greatest one that was seen.
    InOrder,
    /// The numbers from `first` to `last` were skipped by this one.
    Gap { first: u64, last: u64 },
    /// It was missing until now, and greater ones came before.
    Late,
    /// Number 1 again: the sender has begun to count anew.
    Restarted,
    /// Another event had this number, or it was missing for so long that it is no longer remembered.
    Repeated,
}

impl Arrival {
    /// Whether a handler that relies on the order must look twice.
    pub fn is_in_order(self) -> bool {
        matches!(self, Self::InOrder)
    }
}

/// What was seen of one ordering key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    greatest: u64,
    /// Ascending, apart from one another, all below `greatest`.
    missing: Vec<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    last: u64,
}

impl Track {
    /// `number` is from 1 on; it is of an event that has not been seen before.
    pub fn arrive(&mut self, number: u64) -> Arrival {
        if number > self.greatest {
            let skipped = Span { first: self.greatest + 1, last: number - 1 };
            self.greatest = number;
            if skipped.first > skipped.last {
                return Arrival::InOrder;
            }
            self.missing.push(skipped);
            self.forget_oldest();
            return Arrival::Gap { first: skipped.first, last: skipped.last };
        }
        match self.missing.iter().position(|span| (span.first..=span.last).contains(&number)) {
            Some(index) => {
                let span = self.missing[index];
                let rest = [Span { last: number - 1, ..span }, Span { first: number + 1, ..span }];
                self.missing.splice(index..=index, rest.into_iter().filter(|rest| rest.first <= rest.last));
                self.forget_oldest();
                Arrival::Late
            }
            None if number == 1 => {
                *self = Self { greatest: 1, missing: Vec::new() };
                Arrival::Restarted
            }
            None => Arrival::Repeated,
        }
    }

    /// How many numbers are missing that are remembered.
    pub fn missing(&self) -> u64 {
        self.missing.iter().map(|span| span.last - span.first + 1).sum()
    }

    fn forget_oldest(&mut self) {
        if self.missing.len() > SPANS_MAX {
            self.missing.remove(0);
        }
    }

    /// What `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let (greatest, spans) = text.split_once(';')?;
        let span = |text: &str| {
            let (first, last) = text.split_once('-')?;
            Some(Span { first: first.parse().ok()?, last: last.parse().ok()? })
        };
        let missing = spans.split(',').filter(|text| !text.is_empty()).map(span).collect::<Option<Vec<_>>>()?;
        Some(Self { greatest: greatest.parse().ok()?, missing })
    }
}

impl fmt::Display for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{};", self.greatest)?;
        for (index, span) in self.missing.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}-{}", span.first, span.last)?;
        }
        Ok(())
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOrder => f.write_str("in-order"),
            Self::Gap { first, last } => write!(f, "gap {first}-{last}"),
            Self::Late => f.write_str("late"),
            Self::Restarted => f.write_str("restarted"),
            Self::Repeated => f.write_str("repeated"),
        }
    }
}

impl Arrival {
    /// What `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "in-order" => Some(Self::InOrder),
            "late" => Some(Self::Late),
            "restarted" => Some(Self::Restarted),
            "repeated" => Some(Self::Repeated),
            gap => {
                let (first, last) = gap.strip_prefix("gap ")?.split_once('-')?;
                Some(Self::Gap { first: first.parse().ok()?, last: last.parse().ok()? })
            }
        }
    }
}

/// Spans of missing numbers that are remembered per key: the text stays under three kilobytes.
const SPANS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_arrival_is_told_from_the_others() {
        let mut track = Track::default();
        for (number, expected) in [
            (1, Arrival::InOrder),
            (2, Arrival::InOrder),
            (6, Arrival::Gap { first: 3, last: 5 }),
            (4, Arrival::Late),
            (4, Arrival::Repeated),
            (7, Arrival::InOrder),
            (3, Arrival::Late),
            (5, Arrival::Late),
            (1, Arrival::Restarted),
            (2, Arrival::InOrder),
        ] {
            assert_eq!(track.arrive(number), expected, "number {number}");
            assert_eq!(Track::parse(&track.to_string()), Some(track.clone()));
            assert_eq!(Arrival::parse(&expected.to_string()), Some(expected));
        }
    }

    #[test]
    fn a_first_number_above_one_is_a_gap() {
        assert_eq!(Track::default().arrive(3), Arrival::Gap { first: 1, last: 2 });
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut track = Track::default();
        for number in 0..10_000 {
            track.arrive(u64::MAX - 100_000 + number * 2);
        }
        assert!(track.to_string().len() < 3_000, "{} bytes", track.to_string().len());
        assert_eq!(track.arrive(5), Arrival::Repeated, "the oldest gap was forgotten");
    }

    #[test]
    fn the_greatest_number_of_all_is_no_trouble() {
        let mut track = Track::default();
        assert_eq!(track.arrive(u64::MAX), Arrival::Gap { first: 1, last: u64::MAX - 1 });
        assert_eq!(track.arrive(u64::MAX), Arrival::Repeated);
        assert_eq!(track.arrive(1), Arrival::Late);
    }

    proptest! {
        /// The model is the set of all numbers that were seen since the last restart.
        #[test]
        fn arrivals_agree_with_a_set_of_numbers(numbers in prop::collection::vec(1..40u64, 0..200)) {
            let mut track = Track::default();
            let mut seen = BTreeSet::new();
            for number in numbers {
                let greatest = seen.last().copied().unwrap_or(0);
                let expected = match seen.contains(&number) {
                    true if number == 1 => Arrival::Restarted,
                    true => Arrival::Repeated,
                    false if number == greatest + 1 => Arrival::InOrder,
                    false if number > greatest => Arrival::Gap { first: greatest + 1, last: number - 1 },
                    false => Arrival::Late,
                };
                if expected == Arrival::Restarted {
                    seen.clear();
                }
                seen.insert(number);
                prop_assert_eq!(track.arrive(number), expected);
                let missing = (1..*seen.last().unwrap()).filter(|number| !seen.contains(number)).count();
                prop_assert_eq!(track.missing(), missing as u64);
                prop_assert_eq!(Track::parse(&track.to_string()), Some(track.clone()));
            }
        }
    }
}
