//! What arrived, and what it is known by.

use std::fmt;

use bytes::Bytes;

use crate::{Timestamp, sequence::Arrival};

/// Who sends, as the receiver calls it: a part of every key and the only label that metrics have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a source: 1 to 64 of a-z, 0-9, '-', '_' and '.'")]
pub struct SourceNameError(String);

impl SourceName {
    pub fn parse(text: &str) -> Result<Self, SourceNameError> {
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        match (1..=64).contains(&text.len()) && text.bytes().all(is_fine) {
            true => Ok(Self(text.to_owned())),
            false => Err(SourceNameError(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The sender's own name for one event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event's id has 1 to 256 bytes and no control characters")]
pub struct EventIdError;

impl EventId {
    pub fn parse(text: &str) -> Result<Self, EventIdError> {
        match is_short_text(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(EventIdError),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What every store can keep in an index. Control characters would include NUL, which PostgreSQL's text cannot hold.
pub(crate) fn is_short_text(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an event is known by. Two sources may use the same id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKey {
    pub source: SourceName,
    pub id: EventId,
}

impl EventKey {
    pub fn parse(source: &str, id: &str) -> Result<Self, EventKeyError> {
        Ok(Self { source: SourceName::parse(source)?, id: EventId::parse(id)? })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventKeyError {
    #[error(transparent)]
    Source(#[from] SourceNameError),
    #[error(transparent)]
    Id(#[from] EventIdError),
}

impl fmt::Display for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.source, self.id)
    }
}

/// Where an event stands among those of its ordering key, as `webhook-sequence` says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Empty where everything of the source is in one order.
    pub ordering_key: String,
    pub number: u64,
}

/// A request whose signature held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub key: EventKey,
    /// The bytes as they came.
    pub body: Bytes,
    /// Those that the door was told to keep, by their names in lower case.
    pub headers: Vec<(String, String)>,
    pub received_at: Timestamp,
    pub place: Option<Place>,
    /// How it came among those of its ordering key. Known once it was recorded, if it has a place.
    pub arrival: Option<Arrival>,
}

impl Event {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(kept, _)| kept.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// What it counts for where the inbox is bounded.
    pub fn size(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        (self.body.len() + headers) as u64
    }
}

/// As one text for a column: a line each, for no value of a header has a line feed.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) mod headers {
    pub(crate) fn to_text(headers: &[(String, String)]) -> String {
        headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    pub(crate) fn from_text(text: &str) -> Vec<(String, String)> {
        let pairs = text.split_terminator('\n').filter_map(|line| line.split_once(": "));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_are_checked_where_they_are_made() {
        for good in ["stripe", "a", "eu-1.shop_2"] {
            assert!(SourceName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "Stripe", "a b", "ä", &"x".repeat(65)] {
            assert!(SourceName::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "a\0b", "a\nb", &"x".repeat(257)] {
            assert!(EventId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(EventId::parse("msg_2 é").is_ok());
    }
}
