//! Durations and sizes as people write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, time::Duration};

/// A duration in the settings: text with a unit. A bare number is refused, for nobody can tell its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in text with a unit, such as \"10s\" or \"90d\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                parse_duration(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("`{0}` has no unit; write for example `10s`, `5m`, `12h` or `90d`")]
    NoUnit(String),
    #[error("`{0}` is negative")]
    Negative(String),
    #[error("`{0}` is not a duration; write whole numbers with ms, s, m, h or d")]
    Malformed(String),
    #[error("`{0}` is longer than a hundred years")]
    TooLong(String),
}

/// Reads `10s`, `500ms`, `1h30m`.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let given = || text.to_owned();
    let mut rest = text.trim();
    if rest.starts_with('-') {
        return Err(DurationError::Negative(given()));
    }
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(DurationError::Malformed(given()));
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| DurationError::NoUnit(given()))?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let unit_ms: u64 = match unit.trim() {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => DAY_MS,
            _ => return Err(DurationError::Malformed(given())),
        };
        if number.is_empty() {
            return Err(DurationError::Malformed(given()));
        }
        // Digits alone, so the only way to fail is to be too large.
        let number: u64 = number.parse().map_err(|_| DurationError::TooLong(given()))?;
        let part = number.checked_mul(unit_ms).ok_or_else(|| DurationError::TooLong(given()))?;
        total = total.saturating_add(Duration::from_millis(part));
        rest = tail;
    }
    if total > DURATION_MAX { Err(DurationError::TooLong(given())) } else { Ok(total) }
}

/// The shortest text that [`parse_duration`] reads back.
pub fn show_duration(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, unit_ms) in [("d", DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if ms >= unit_ms {
            text += &format!("{}{unit}", ms / unit_ms);
            ms %= unit_ms;
        }
    }
    text
}

/// A number in the file, text in a variable or a flag.
pub struct Port(pub u16);

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Port;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port from 1 to 65535")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Port, E> {
                let port = u16::try_from(number).ok().filter(|port| *port > 0);
                port.map(Port).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Port, E> {
                let positive = u64::try_from(number);
                positive
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
                    .and_then(|it| self.visit_u64(it))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Port, E> {
                let number = text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))?;
                self.visit_u64(number)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Bytes: a number, or text with `KiB`, `MiB` or `GiB`.
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in bytes, or in text with a unit, such as \"1MiB\"")
            }

            fn visit_u64<E>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                parse_size(text).map(Size).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

const DAY_MS: u64 = 86_400_000;
const DURATION_MAX: Duration = Duration::from_millis(36_525 * DAY_MS);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_has_units() {
        for (text, seconds) in [
            ("10s", 10.0),
            ("500ms", 0.5),
            ("5m", 300.0),
            ("12h", 43_200.0),
            ("90d", 7_776_000.0),
            ("1h30m", 5400.0),
            ("0s", 0.0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_with_its_reason() {
        use DurationError::*;
        for (text, error) in [
            ("10", NoUnit as fn(String) -> DurationError),
            ("1h30", NoUnit),
            ("-1s", Negative),
            ("1e9d", Malformed),
            ("", Malformed),
            ("s", Malformed),
            ("1.5s", Malformed),
            ("10 parsecs", Malformed),
            ("١s", Malformed),
            ("1000000000d", TooLong),
            ("99999999999999999999s", TooLong),
            ("18446744073709551615d", TooLong),
        ] {
            assert_eq!(parse_duration(text), Err(error(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_size_is_bytes_or_has_a_unit() {
        for (text, bytes) in [
            ("1024", Some(1024)),
            ("1MiB", Some(1 << 20)),
            ("16 KiB", Some(16 << 10)),
            ("1MB", None),
            ("-1", None),
            ("", None),
            ("99999999999GiB", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_duration_is_read_back_as_it_was_shown(ms in 0..36_525 * DAY_MS) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in ".*") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
