//! Which messages and attempts a list is asked for.

use super::{
    error::Error,
    extract::Query,
    fields::{Channel, TypeName},
    message_in::Tag,
};
use crate::ids::PublicKey;
use postrider_engine::{Timestamp, keys::time_of_key};
use postrider_store::{Cut, MessageFilter};
use serde::{
    Deserialize,
    de::{IntoDeserializer, value},
};
use std::time::Duration;

/// Reads what all lists of messages and attempts can be narrowed by. `from` is where the list goes on, if it
/// was begun before.
pub fn message_filter<K: PublicKey>(
    query: &mut Query,
    from: Option<Cut<K>>,
    now: Timestamp,
) -> Result<MessageFilter, Error> {
    let event_types = query.list("event_types");
    if event_types.len() > EVENT_TYPES_MAX {
        return Err(Error::invalid_query("event_types", format!("must be at most {EVENT_TYPES_MAX}")));
    }
    for event_type in &event_types {
        valid::<TypeName>("event_types", event_type)?;
    }
    let channel = query.text("channel")?.map(|text| valid::<Channel>("channel", &text)).transpose()?;
    let tag = query.text("tag")?.map(|text| valid::<Tag>("tag", &text)).transpose()?;
    let before = query.time("before")?;
    if before.is_some_and(|before| before > now.plus(AHEAD_MAX)) {
        return Err(Error::invalid_query("before", "must be at most an hour ahead"));
    }
    let after = query.time("after")?;
    let from = from.map(|cut| match cut {
        Cut::Past(key) | Cut::Before(key) => made_at(key),
    });
    let look_back = || from.or(before).unwrap_or(now).minus(LOOK_BACK);
    Ok(MessageFilter {
        event_types,
        channel: channel.map(|channel| channel.0),
        tag: tag.map(|tag| tag.0),
        after: Some(after.unwrap_or_else(look_back)),
        before,
    })
}

/// When a thing was made: its key tells.
pub fn made_at(key: impl PublicKey) -> Timestamp {
    time_of_key(key.raw_key())
}

/// A value that is judged as if it stood in a body.
pub fn valid<'a, T: Deserialize<'a>>(name: &str, text: &'a str) -> Result<T, Error> {
    T::deserialize(text.into_deserializer())
        .map_err(|fault: value::Error| Error::invalid_query(name, fault.to_string()))
}

/// The contract's: how far a list looks back that was not told how far.
const LOOK_BACK: Duration = Duration::from_hours(90 * 24);
const AHEAD_MAX: Duration = Duration::from_hours(1);
const EVENT_TYPES_MAX: usize = 250;

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::MessageKey;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000); // 2026-01-01T00:00:00Z

    fn read(query: &str, from: Option<Timestamp>) -> Result<MessageFilter, Error> {
        let key = |at: Timestamp| Cut::Past(MessageKey::new(at.as_millis() << 21 | 7));
        message_filter(&mut Query::read(Some(query)), from.map(key), NOW)
    }

    #[test]
    fn a_list_looks_back_ninety_days_from_where_it_begins() {
        let earlier = NOW.minus(Duration::from_hours(240));
        for (query, from, begins) in [
            ("", None, NOW),
            ("", Some(earlier), earlier),
            ("before=2025-12-22T00:00:00Z", None, earlier),
            ("before=2025-12-31T00:00:00Z", Some(earlier), earlier),
        ] {
            assert_eq!(read(query, from).expect(query).after, Some(begins.minus(LOOK_BACK)), "{query}");
        }
        let told = read("after=1999-12-31T00:00:00Z", Some(earlier)).expect("a time");
        assert_eq!(told.after, Some(Timestamp::from_millis(946_598_400_000)));
    }

    #[test]
    fn every_filter_is_read() {
        let filter =
            read("event_types=a,b.c&channel=x:y&tag=t%23&before=2026-01-01T01:00:00Z", None).expect("all right");
        assert_eq!(filter.event_types, ["a", "b.c"]);
        assert_eq!(filter.channel.as_deref(), Some("x:y"));
        assert_eq!(filter.tag.as_deref(), Some("t#"));
        assert_eq!(filter.before, Some(NOW.plus(AHEAD_MAX)));
    }

    #[test]
    fn a_filter_that_can_match_nothing_is_refused() {
        for (query, status) in [
            ("before=2026-01-01T01:00:01Z", 422),
            ("before=9999-01-01T00:00:00Z", 422),
            ("before=yesterday", 400),
            ("after=2026-01-01T24:00:00Z", 400),
            ("channel=", 422),
            ("channel=a%20b", 422),
            ("tag=%00", 400),
            ("event_types=a%2Fb", 422),
        ] {
            assert_eq!(read(query, None).expect_err(query).status(), status, "{query}");
        }
    }
}
