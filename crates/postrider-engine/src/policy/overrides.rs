//! What an endpoint's owner says about outcomes: "404 is maintenance there".

use super::classify::{Class, Rule};
use crate::outcome::Outcome;
use std::{collections::BTreeMap, fmt};

/// What is spoken about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Status(u16),
    /// The hundreds: 4 for 4xx.
    StatusClass(u16),
    /// What was judged by this rule (`Dns`, `Connection`, `Certificate`, `Handshake`, `Timeout`, `NotHttp`,
    /// `ForbiddenAddress`).
    Fault(Rule),
    /// Every outcome without an answer.
    Network,
    /// Whatever would be ambiguous.
    Ambiguous,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    Success,
    Retry,
    Permanent,
}

/// What all levels say, the nearest first. The nearest one that speaks about an outcome decides; within a level, the
/// more exact word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub Vec<BTreeMap<Subject, Treatment>>);

impl Overrides {
    /// What is said about an outcome that is judged so when nothing is said.
    pub(super) fn treatment(&self, outcome: &Outcome, (class, rule): (Class, Rule)) -> Option<Treatment> {
        let exact_first = match outcome {
            Outcome::Answered(answer) => [Subject::Status(answer.status), Subject::StatusClass(answer.status / 100)],
            Outcome::Failed(_) => [Subject::Fault(rule), Subject::Network],
        };
        let ambiguous = (class == Class::Ambiguous).then_some(Subject::Ambiguous);
        self.0.iter().find_map(|layer| {
            exact_first
                .iter()
                .chain(&ambiguous)
                .find_map(|subject| layer.get(subject).copied().filter(|treatment| subject.may_be(*treatment)))
        })
    }
}

impl Subject {
    /// A word such as `404`, `4xx`, `network` or `timeout`; see `WORDS` for all of them.
    pub fn parse(text: &str) -> Option<Self> {
        let hundreds = text.strip_suffix("xx").and_then(number).filter(|hundreds| (1..=5).contains(hundreds));
        let status = number(text).filter(|status| (100..=599).contains(status));
        let word = || WORDS.iter().find(|(word, _)| *word == text).map(|(_, subject)| *subject);
        hundreds.map(Self::StatusClass).or(status.map(Self::Status)).or_else(word)
    }

    /// No answer cannot be a success. Of what is ambiguous some has no answer, so that a status must be named there.
    pub fn may_be(self, treatment: Treatment) -> bool {
        match (self, treatment) {
            (Self::Fault(_) | Self::Network | Self::Ambiguous, Treatment::Success) => false,
            (Self::Status(_) | Self::StatusClass(_), Treatment::Success)
            | (_, Treatment::Retry | Treatment::Permanent) => true,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::StatusClass(hundreds) => write!(f, "{hundreds}xx"),
            Self::Fault(_) | Self::Network | Self::Ambiguous => {
                f.write_str(WORDS.iter().find(|(_, subject)| subject == self).map_or("nothing", |(word, _)| word))
            }
        }
    }
}

impl Treatment {
    pub const ALL: [Self; 3] = [Self::Success, Self::Retry, Self::Permanent];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|treatment| treatment.word() == text)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Retry => "retry",
            Self::Permanent => "permanent",
        }
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Digits only: `+404` and `0404` are typos of something.
fn number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|number: &u16| number.to_string() == text)
}

/// The subjects that are not a status, by what they are called in settings.
pub const WORDS: [(&str, Subject); 9] = [
    ("network", Subject::Network),
    ("dns", Subject::Fault(Rule::Dns)),
    ("connection", Subject::Fault(Rule::Connection)),
    ("certificate", Subject::Fault(Rule::Certificate)),
    ("handshake", Subject::Fault(Rule::Handshake)),
    ("timeout", Subject::Fault(Rule::Timeout)),
    ("protocol", Subject::Fault(Rule::NotHttp)),
    ("forbidden-address", Subject::Fault(Rule::ForbiddenAddress)),
    ("ambiguous", Subject::Ambiguous),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn subjects_are_read_as_they_are_written() {
        for (text, expected) in [
            ("404", Subject::Status(404)),
            ("100", Subject::Status(100)),
            ("599", Subject::Status(599)),
            ("1xx", Subject::StatusClass(1)),
            ("5xx", Subject::StatusClass(5)),
        ]
        .into_iter()
        .chain(WORDS)
        {
            assert_eq!(Subject::parse(text), Some(expected), "{text}");
            assert_eq!(expected.to_string(), text);
        }
        for nonsense in
            ["", "99", "600", "0xx", "6xx", "4XX", "xx", "+404", "0404", " 404", "40x", "Network", "-1", "1e2"]
        {
            assert_eq!(Subject::parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn treatments_are_read_as_they_are_written() {
        for treatment in Treatment::ALL {
            assert_eq!(Treatment::parse(&treatment.to_string()), Some(treatment));
        }
        assert_eq!(Treatment::parse("Retry"), None);
    }

    #[test]
    fn only_an_answer_may_be_a_success() {
        for subject in [Subject::Status(404), Subject::StatusClass(4)] {
            assert!(Treatment::ALL.into_iter().all(|treatment| subject.may_be(treatment)), "{subject}");
        }
        for (_, subject) in WORDS {
            assert!(!subject.may_be(Treatment::Success), "{subject}");
            assert!(subject.may_be(Treatment::Retry) && subject.may_be(Treatment::Permanent), "{subject}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_shown_the_same(text in "[0-9x]{1,4}|[a-z-]{1,20}") {
            if let Some(subject) = Subject::parse(&text) {
                prop_assert_eq!(subject.to_string(), text);
            }
        }
    }
}
