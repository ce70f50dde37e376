//! What is counted, and under which number it is kept.

use postrider_engine::policy::Class;
use postrider_store::TallyCode;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Attempt(Class),
    /// The first digit of the status, 0 if there was none.
    Answer(u8),
    Accepted,
    GivenUp,
    /// How long an attempt took: the number of the first of `TOOK_BOUNDS` that is not shorter, or one more.
    Took(u8),
    /// How long it took from being accepted to having arrived, in the same steps.
    Arrived(u8),
    /// What waited when it was last looked at within the span.
    Waiting,
    /// What lay among the dead letters then.
    Dead,
}

/// Upper ends of the steps in which durations are counted, in milliseconds; the last one has none.
pub const TOOK_BOUNDS: [u64; 16] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 15_000, 60_000, 600_000, 3_600_000];

/// The numbers from 0 of which a subject of its own has counts.
pub const OF_SUBJECT: usize = 12;
/// All numbers.
pub const OF_ALL: usize = 64;

/// These numbers are in people's databases.
const ANSWER: u8 = 5;
const GIVEN_UP: u8 = 11;
const ACCEPTED: u8 = 12;
const WAITING: u8 = 13;
const DEAD: u8 = 14;
const TOOK: u8 = 20;
const ARRIVED: u8 = 40;

impl Event {
    pub fn answer(status: Option<u16>) -> Self {
        Self::Answer(u8::try_from(status.unwrap_or(0) / 100).unwrap_or(0).min(5))
    }

    pub fn number(self) -> usize {
        usize::from(match self {
            Self::Attempt(Class::Delivered) => 0,
            Self::Attempt(Class::Transient) => 1,
            Self::Attempt(Class::Ambiguous) => 2,
            Self::Attempt(Class::Permanent) => 3,
            Self::Attempt(Class::Gone) => 4,
            Self::Answer(class) => ANSWER + class.min(5),
            Self::GivenUp => GIVEN_UP,
            Self::Accepted => ACCEPTED,
            Self::Waiting => WAITING,
            Self::Dead => DEAD,
            Self::Took(step) => TOOK + step,
            Self::Arrived(step) => ARRIVED + step,
        })
    }

    /// `None`: written by a newer version.
    pub fn of(code: TallyCode) -> Option<Self> {
        let number = u8::try_from(code).ok()?;
        let steps = TOOK_BOUNDS.len() as u8;
        Some(match number {
            0 => Self::Attempt(Class::Delivered),
            1 => Self::Attempt(Class::Transient),
            2 => Self::Attempt(Class::Ambiguous),
            3 => Self::Attempt(Class::Permanent),
            4 => Self::Attempt(Class::Gone),
            ANSWER..GIVEN_UP => Self::Answer(number - ANSWER),
            GIVEN_UP => Self::GivenUp,
            ACCEPTED => Self::Accepted,
            WAITING => Self::Waiting,
            DEAD => Self::Dead,
            _ if (TOOK..=TOOK + steps).contains(&number) => Self::Took(number - TOOK),
            _ if (ARRIVED..=ARRIVED + steps).contains(&number) => Self::Arrived(number - ARRIVED),
            _ => return None,
        })
    }
}

pub fn bucket(took: Duration) -> u8 {
    let millis = took.as_micros().div_ceil(1_000);
    let step = TOOK_BOUNDS.iter().position(|bound| millis <= u128::from(*bound)).unwrap_or(TOOK_BOUNDS.len());
    step as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_leads_back_to_its_event() {
        let known: Vec<i16> = (i16::MIN..=i16::MAX).filter(|code| Event::of(*code).is_some()).collect();
        assert_eq!(known.len(), 15 + 2 * (TOOK_BOUNDS.len() + 1));
        for code in known {
            let number = Event::of(code).expect("it is known").number();
            assert_eq!(number, usize::try_from(code).unwrap());
            assert!(number < OF_ALL);
        }
        assert!(Event::GivenUp.number() < OF_SUBJECT && Event::answer(Some(599)).number() < OF_SUBJECT);
    }

    #[test]
    fn a_duration_is_counted_in_the_first_step_that_holds_it() {
        let step = |millis| bucket(Duration::from_millis(millis));
        assert_eq!([step(0), step(1), step(2), step(3), step(60_000), step(60_001)], [0, 0, 1, 2, 13, 14]);
        assert_eq!(bucket(Duration::from_micros(1_001)), 1);
        assert_eq!(bucket(Duration::MAX), 16);
    }

    #[test]
    fn an_answer_is_counted_by_the_first_digit_of_its_status() {
        for (status, class) in [(None, 0), (Some(204), 2), (Some(404), 4), (Some(599), 5), (Some(999), 5)] {
            assert_eq!(Event::answer(status), Event::Answer(class), "{status:?}");
        }
    }
}
