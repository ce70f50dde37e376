//! What several commands are told in the same words: moments, statuses, and which dead letters are meant.

use super::client::Query;
use crate::{clock, config::parse_duration, http::time::Time};
use serde_json::{Map, Value, json};

/// A moment: RFC 3339, or how long ago it was.
pub fn moment(text: &str) -> Result<Time, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    match parse_duration(text) {
        Ok(back) => Ok(Time(clock::now().minus(back))),
        Err(_) => Err("write a time like 2026-01-31T12:00:00Z, or a span back from now like 30m, 2h or 3d".to_owned()),
    }
}

/// A time to come: RFC 3339, or a span from now.
pub fn moment_ahead(text: &str) -> Result<Time, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    match parse_duration(text) {
        Ok(ahead) => Ok(Time(clock::now().plus(ahead))),
        Err(_) => Err("write a time like 2026-01-31T12:00:00Z, or a span from now like 30m or 2h".to_owned()),
    }
}

/// A status that a receiver answered with, or `none` where no answer came.
pub fn status_code(text: &str) -> Result<u16, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(0),
        (_, Ok(code @ (0 | 100..=599))) => Ok(code),
        (_, Ok(_) | Err(_)) => Err("write a status from 100 to 599, or `none` for no answer".to_owned()),
    }
}

/// How many rows a list shows.
pub fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows @ 1..) => Ok(rows),
        Ok(0) | Err(_) => Err("write a whole number from 1".to_owned()),
    }
}

/// Which dead letters are meant.
#[derive(clap::Args)]
pub struct DeadFilter {
    /// Only those of this endpoint, by id or uid
    #[arg(long)]
    pub endpoint: Option<String>,
    /// Only this type of event (repeatable)
    #[arg(long = "event-type", value_name = "NAME")]
    pub event_types: Vec<String>,
    /// Only those given up for this reason
    #[arg(long, value_parser = REASONS)]
    pub reason: Option<String>,
    /// Only those whose last answer had this status; `none`: no answer came
    #[arg(long, value_name = "CODE", value_parser = status_code)]
    pub status: Option<u16>,
    /// Only those given up at or after this time (RFC 3339, or a span back such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<Time>,
    /// Only those given up before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<Time>,
}

impl DeadFilter {
    pub fn query(&self) -> Query {
        let text = |name, value: &Option<String>| value.clone().map(|value| (name, value));
        let time = |name, value: &Option<Time>| value.as_ref().map(|value| (name, value.to_string()));
        let single = [
            text("endpoint_id", &self.endpoint),
            text("reason", &self.reason),
            self.status.map(|status| ("status_code", status.to_string())),
            time("since", &self.since),
            time("until", &self.until),
        ];
        let types = self.event_types.iter().map(|name| ("event_types", name.clone()));
        single.into_iter().flatten().chain(types).collect()
    }

    pub fn body(&self) -> Value {
        said([
            ("endpointId", self.endpoint.as_ref().map(|id| json!(id))),
            ("eventTypes", (!self.event_types.is_empty()).then(|| json!(self.event_types))),
            ("reason", self.reason.as_ref().map(|reason| json!(reason))),
            ("statusCode", self.status.map(|status| json!(status))),
            ("since", self.since.as_ref().map(|time| json!(time))),
            ("until", self.until.as_ref().map(|time| json!(time))),
        ])
    }
}

/// An object of what was said at all.
pub fn said<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<_, _>>())
}

pub const REASONS: [&str; 6] = ["permanent", "exhausted", "expired", "cancelled", "breaker", "endpoint-gone"];

/// How many rows a list shows that was not told how many.
pub const LIMIT: &str = "50";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_moment_is_a_time_or_a_span_back() {
        assert_eq!(moment("2026-01-31T12:00:00Z").expect("a time").to_string(), "2026-01-31T12:00:00Z");
        let before = clock::now().minus(Duration::from_secs(7_200));
        let Time(at) = moment("2h").expect("a span");
        assert!(before <= at && at <= clock::now().minus(Duration::from_secs(7_200)));
        for text in ["", "yesterday", "2026-01-31", "-2h", "2"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_answer_has_a_name() {
        for (text, expected) in [("503", Some(503)), ("none", Some(0)), ("0", Some(0)), ("5xx", None), ("99", None)] {
            assert_eq!(status_code(text).ok(), expected, "{text}");
        }
    }
}
