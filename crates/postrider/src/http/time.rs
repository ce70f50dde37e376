//! Times as the contract writes them: RFC 3339, and nothing that merely looks like it.

use crate::clock;
use postrider_engine::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr};
use utoipa::{PartialSchema, ToSchema, openapi};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a time like 2026-01-31T12:00:00Z")]
pub struct TimeError;

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        // The parser behind this takes more than RFC 3339 allows: no seconds, zone names, leap seconds.
        if !is_rfc_3339(text.as_bytes()) {
            return Err(TimeError);
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| TimeError)?;
        Ok(Self(Timestamp::from_millis(time.as_millisecond())))
    }
}

fn is_rfc_3339(text: &[u8]) -> bool {
    let shaped = |text: &[u8], shape: &[u8]| {
        text.len() == shape.len()
            && text.iter().zip(shape).all(|(b, s)| match s {
                b'0' => b.is_ascii_digit(),
                b'T' => matches!(b, b'T' | b't'),
                b'+' => matches!(b, b'+' | b'-'),
                _ => b == s,
            })
    };
    let Some((moment, rest)) = text.split_at_checked(19) else { return false };
    if !shaped(moment, b"0000-00-00T00:00:00") || &moment[17..] == b"60" {
        return false;
    }
    let zone = match rest.split_first() {
        Some((b'.', rest)) => {
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return false;
            }
            &rest[digits..]
        }
        Some(_) | None => rest,
    };
    matches!(zone, b"Z" | b"z") || (shaped(zone, b"+00:00") && zone[1..3] < b"24"[..] && zone[4..6] < b"60"[..])
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        clock::Shown(self.0).fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl ToSchema for Time {}

impl PartialSchema for Time {
    fn schema() -> openapi::RefOr<openapi::Schema> {
        openapi::ObjectBuilder::new()
            .schema_type(openapi::schema::Type::String)
            .format(Some(openapi::SchemaFormat::KnownFormat(openapi::KnownFormat::DateTime)))
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rfc_3339_is_a_time() {
        for text in [
            "2026-01-31T12:00:00Z",
            "2026-01-31t12:00:00.123456789z",
            "2026-01-31T12:00:00+05:30",
            "0001-01-01T00:00:00Z",
            "9999-12-30T00:00:00Z",
        ] {
            assert!(text.parse::<Time>().is_ok(), "{text}");
        }
        for text in [
            "",
            "2026",
            "2026-01-31",
            "2026-01-31T12:00Z",
            "2026-01-31T12:00:00",
            "2026-01-31 12:00:00Z",
            "2026-02-30T12:00:00Z",
            "2026-01-31T12:00:60Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T12:00:00+24:00",
            "2026-01-31T12:00:00Z[UTC]",
            "2026-01-31T12:00:00.Z",
            "1767225600",
            "+002026-01-31T12:00:00Z",
            "\u{0663}026-01-31T12:00:00Z",
        ] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_written_with_its_milliseconds_in_utc() {
        let time: Time = "2026-01-31T12:00:00.250+01:00".parse().unwrap();
        assert_eq!(time.to_string(), "2026-01-31T11:00:00.25Z");
        assert!(Time(Timestamp::from_millis(i64::MAX)).to_string().starts_with("9999-"));
        let last = "9999-12-30T22:00:00.968Z";
        assert_eq!(last.parse::<Time>().unwrap().to_string(), last);
    }
}
