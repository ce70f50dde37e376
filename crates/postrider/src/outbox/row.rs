//! What a row of an outbox says, as a message, and what a server knows a row by.

use crate::{
    ids::{PublicKey, is_name},
    ingest::content::{
        CHANNELS_MAX, DELIVER_AHEAD_MAX, DEPTH_MAX, TAGS_MAX, check_object, is_channel, is_content_type,
        is_ordering_key, is_tag, too_deep,
    },
};
use bytes::Bytes;
use postrider_engine::{AppKey, MessageKey, Timestamp};
use postrider_store::{
    Content, Idempotency, Message,
    outbox::{Identity, Row},
};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, time::Duration};

/// What makes the message of a row. The error is for whoever wrote the row.
pub fn content(identity: &Identity, row: &Row, body_max: usize, now: Timestamp) -> Result<Content, String> {
    if !is_name(&row.event_type) {
        return Err("event_type must be 1 to 256 letters, digits, `-`, `_` or `.`".to_owned());
    }
    if let Some(event_id) = &row.event_id
        && (!is_name(event_id) || event_id.starts_with(MessageKey::KIND.prefix()))
    {
        return Err("event_id must be 1 to 256 letters, digits, `-`, `_` or `.`, and not begin as ids do".to_owned());
    }
    if row.channels.len() > CHANNELS_MAX || !row.channels.iter().all(|channel| is_channel(channel)) {
        return Err(format!("channels must be at most {CHANNELS_MAX} names of channels"));
    }
    if row.tags.len() > TAGS_MAX || !row.tags.iter().all(|tag| is_tag(tag)) {
        return Err(format!("tags must be at most {TAGS_MAX} words"));
    }
    if !row.ordering_key.as_deref().is_none_or(is_ordering_key) {
        return Err("ordering_key must be 1 to 256 characters".to_owned());
    }
    // The producer's clock said that it was not too far ahead. When the row is late, its time may be long past.
    if row.deliver_at.is_some_and(|at| at > now.plus(DELIVER_AHEAD_MAX).plus(CLOCKS_APART_MAX)) {
        return Err("deliver_at must be at most 24 hours ahead".to_owned());
    }
    if row.payload.len() > body_max {
        return Err(format!("payload is larger than {body_max} bytes, which is the setting `body_max`"));
    }
    let payload = match &row.content_type {
        None => object(&row.payload).map_err(|flaw| format!("payload {flaw}"))?,
        Some(content_type) if is_content_type(content_type) => row.payload.clone(),
        Some(_) => return Err("content_type is not a content type".to_owned()),
    };
    Ok(Content {
        event_type: row.event_type.clone(),
        event_id: Some(row.event_id.clone().unwrap_or_else(|| own_event_id(identity, row.id))),
        channels: unique(&row.channels),
        tags: unique(&row.tags),
        content_type: row.content_type.clone(),
        ordering_key: row.ordering_key.clone(),
        deliver_at: row.deliver_at,
        received: None,
        payload,
    })
}

/// By what the store recognises the row within a day, also if the application's name has moved meanwhile.
pub fn idempotency(identity: &Identity, row: i64, content: &Content) -> Idempotency {
    let Content { event_type, event_id, channels, tags, content_type, ordering_key, deliver_at, received: _, payload } =
        content;
    let deliver_at = deliver_at.map(Timestamp::as_millis);
    let head = (event_type, event_id, channels, tags, content_type, ordering_key, deliver_at);
    let mut request = Sha256::new();
    request.update(serde_json::to_vec(&head).expect("text and numbers become JSON"));
    request.update(payload);
    let key = Sha256::digest(format!("outbox\n{}\n{row}", identity.as_str()));
    // Chosen: the same number with other content means that the producer's database was set back, which must show.
    Idempotency { key: truncated(key), request: truncated(request.finalize()), chosen: true }
}

/// Whether a message that has the row's event id can be the row's own.
pub fn is_same(content: &Content, message: &Message) -> bool {
    let payload = if message.payload_gone { Bytes::new() } else { content.payload.clone() };
    Content { payload, ..content.clone() } == message.content
}

/// What two rows can have in common, so that one must wait for the other. Ids and names of one application count as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    OrderingKey(AppKey, String),
    EventId(AppKey, String),
}

/// Parts rows into those that must go one after the other. Those that nothing links need not wait for anyone.
pub fn chains<T, L: Ord>(rows: Vec<T>, links: impl Fn(&T) -> Vec<L>) -> Vec<Vec<T>> {
    // Of each row, an earlier one of its chain, or the row itself where it is the first.
    let mut earlier: Vec<usize> = Vec::with_capacity(rows.len());
    let mut seen = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        earlier.push(at);
        for link in links(row) {
            let one = first(&earlier, *seen.entry(link).or_insert(at));
            let other = first(&earlier, at);
            earlier[one.max(other)] = one.min(other);
        }
    }
    let mut chains: BTreeMap<usize, Vec<T>> = BTreeMap::new();
    for (at, row) in rows.into_iter().enumerate() {
        chains.entry(first(&earlier, at)).or_default().push(row);
    }
    chains.into_values().collect()
}

fn first(earlier: &[usize], mut at: usize) -> usize {
    while earlier[at] != at {
        at = earlier[at];
    }
    at
}

/// How long the store can tell whether it took a row, when it keeps messages that long.
pub fn known_for(retention: Duration) -> Duration {
    // It counts by another clock than the producer's database.
    retention.saturating_sub((retention / 4).min(CLOCKS_APART_MAX))
}

/// A row without an event id gets one, by which it is recognised as long as its message is kept.
fn own_event_id(identity: &Identity, row: i64) -> String {
    format!("outbox-{}-{row}", identity.as_str())
}

fn object(payload: &Bytes) -> Result<Bytes, String> {
    if too_deep(payload).is_some() {
        return Err(format!("is nested deeper than {DEPTH_MAX} levels"));
    }
    let json: &RawValue = serde_json::from_slice(payload).map_err(|error| format!("is not JSON: {error}"))?;
    check_object(json.get())?;
    Ok(payload.slice_ref(json.get().as_bytes()))
}

fn unique(words: &[String]) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for word in words {
        if !kept.contains(word) {
            kept.push(word.clone());
        }
    }
    kept
}

fn truncated(hash: impl AsRef<[u8]>) -> [u8; 16] {
    *hash.as_ref().first_chunk().expect("SHA-256 gives 32 bytes")
}

/// Between the producer's database and this server.
const CLOCKS_APART_MAX: Duration = Duration::from_hours(1);

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_store::outbox::{Installation, Outbox, SchemaName};
    use postrider_testbed::{Cluster, connect};
    use proptest::prelude::*;

    fn identity() -> Identity {
        Identity::new("6f1c".to_owned())
    }

    fn row(payload: &'static str) -> Row {
        Row {
            id: 7,
            app: "acme".into(),
            event_type: "a.b".into(),
            payload: Bytes::from_static(payload.as_bytes()),
            content_type: None,
            event_id: None,
            channels: Vec::new(),
            tags: Vec::new(),
            ordering_key: None,
            deliver_at: None,
            traceparent: None,
            taken: None,
        }
    }

    fn made(row: &Row) -> Result<Content, String> {
        content(&identity(), row, 1_000, Timestamp::from_millis(0))
    }

    fn message(content: &Content) -> Message {
        Message {
            key: MessageKey::new(2),
            app: AppKey::new(1),
            accepted_at: Timestamp::from_millis(5),
            content: content.clone(),
            payload_gone: false,
            owed: Vec::new(),
        }
    }

    #[test]
    fn a_payload_keeps_its_bytes() {
        for (given, expected) in [
            (r#"{ "n" : 1e400 ,"n":2}"#, r#"{ "n" : 1e400 ,"n":2}"#),
            (" {}\n", "{}"),
            ("{\"a\":\"\u{e9}\\u00e9\"}", "{\"a\":\"\u{e9}\\u00e9\"}"),
        ] {
            assert_eq!(made(&row(given)).expect(given).payload, expected);
        }
        let text = Row { content_type: Some("text/plain".into()), ..row(" <a> ") };
        assert_eq!(made(&text).expect("text").payload, " <a> ");
    }

    #[test]
    fn a_row_without_an_event_id_gets_one_of_its_own() {
        assert_eq!(made(&row("{}")).expect("fine").event_id.as_deref(), Some("outbox-6f1c-7"));
        let named = Row { event_id: Some("e-1".into()), ..row("{}") };
        assert_eq!(made(&named).expect("fine").event_id.as_deref(), Some("e-1"));
    }

    #[test]
    fn what_the_api_would_refuse_is_refused() {
        let word = |text: &str| vec![text.to_owned()];
        let hours = |hours: i64| Some(Timestamp::from_millis(hours * 3_600_000));
        for bad in [
            row("{"),
            row(""),
            row("[]"),
            row("null"),
            row("{} {}"),
            row(r#"{"a":"\ud800"}"#),
            Row { payload: Bytes::from(format!(r#"{{"a":"{}"}}"#, "x".repeat(1_000))), ..row("") },
            Row { payload: Bytes::from(format!(r#"{{"a":{}{}}}"#, "[".repeat(99), "]".repeat(99))), ..row("") },
            Row { content_type: Some("text".into()), ..row("{}") },
            Row { event_type: "a b".into(), ..row("{}") },
            Row { event_id: Some("msg_1".into()), ..row("{}") },
            Row { event_id: Some("a/b".into()), ..row("{}") },
            Row { channels: word("a b"), ..row("{}") },
            Row { channels: (0..11).map(|n| n.to_string()).collect(), ..row("{}") },
            Row { tags: word("a b"), ..row("{}") },
            Row { ordering_key: Some(String::new()), ..row("{}") },
            Row { deliver_at: hours(26), ..row("{}") },
        ] {
            assert!(made(&bad).is_err(), "{bad:?}");
        }
        for fine in [
            Row { deliver_at: hours(24), ..row("{}") },
            Row { deliver_at: hours(-1_000), ..row("{}") },
            Row { channels: word("a:b"), tags: word("a#b"), ordering_key: Some("k".into()), ..row("{}") },
        ] {
            assert!(made(&fine).is_ok(), "{fine:?}");
        }
    }

    /// What the outbox makes of a row, and the server after it.
    #[derive(Debug, PartialEq, Eq)]
    enum Fate {
        Sent,
        RefusedAtInsert,
        SetAside,
        /// By the outbox, although the server would take it.
        RefusedForNothing,
    }

    #[tokio::test]
    async fn what_the_outbox_lets_in_is_sent_but_for_what_postgresql_cannot_tell() {
        let url = Cluster::shared().fresh_database().await;
        let outbox = Outbox::connect(&url.parse().expect("an address"), None, SchemaName::default(), "test").await;
        outbox.expect("it is up").install(&Installation::default()).await.expect("installed");
        let client = connect(&url).await;
        let word = |text: &str| vec![text.to_owned()];
        let long = "x".repeat(257);
        let typed = |content_type: &str| Row { content_type: Some(content_type.into()), ..row("<a>") };
        let named = |event_id: &str| Row { event_id: Some(event_id.into()), ..row("{}") };
        let keyed = |key: &str| Row { ordering_key: Some(key.into()), ..row("{}") };
        let deep = |levels: usize| {
            let text = format!(r#"{{"a":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1));
            Row { payload: Bytes::from(text), ..row("") }
        };
        for (row, expected) in [
            (row("{}"), Fate::Sent),
            (row(" {\"a\" : 1e400, \"a\":\"\\u0000 \\ud83d\\ude00\"}\n"), Fate::Sent),
            (row(""), Fate::RefusedAtInsert),
            (row("{"), Fate::RefusedAtInsert),
            (row("[]"), Fate::RefusedAtInsert),
            (row("null"), Fate::RefusedAtInsert),
            (row("{} {}"), Fate::RefusedAtInsert),
            (row("{\"a\":\"\\ud800\"}"), Fate::SetAside),
            (deep(64), Fate::Sent),
            (deep(65), Fate::SetAside),
            (Row { event_type: "a/b".into(), ..row("{}") }, Fate::RefusedAtInsert),
            (Row { event_type: "a\n".into(), ..row("{}") }, Fate::RefusedAtInsert),
            (Row { event_type: long.clone(), ..row("{}") }, Fate::RefusedAtInsert),
            (named("e-1"), Fate::Sent),
            (named(""), Fate::RefusedAtInsert),
            (named("é"), Fate::RefusedAtInsert),
            (named("msg_1"), Fate::RefusedAtInsert),
            (keyed(&"é".repeat(256)), Fate::Sent),
            (keyed("a\nb"), Fate::Sent),
            (keyed(""), Fate::RefusedAtInsert),
            (keyed(&long), Fate::RefusedAtInsert),
            (Row { channels: word("a:b+c"), tags: word(r"a/b\#"), ..row("{}") }, Fate::Sent),
            (Row { channels: word("a b"), ..row("{}") }, Fate::RefusedAtInsert),
            (Row { channels: word("é"), ..row("{}") }, Fate::RefusedAtInsert),
            (Row { channels: word(&long), ..row("{}") }, Fate::RefusedAtInsert),
            (Row { tags: word("a:b"), ..row("{}") }, Fate::RefusedAtInsert),
            (typed("text/plain"), Fate::Sent),
            (typed("application/vnd.a+xml \t;\tcharset=\"utf-8\""), Fate::Sent),
            (typed("text/plain;"), Fate::Sent),
            (typed("!#$%&'*+-.^_`|~/a"), Fate::Sent),
            (typed(""), Fate::RefusedAtInsert),
            (typed("text"), Fate::RefusedAtInsert),
            (typed(" text/plain"), Fate::RefusedAtInsert),
            (typed("text/plain/x"), Fate::RefusedAtInsert),
            (typed("text/pl(ain)"), Fate::RefusedAtInsert),
            (typed("text/pläin"), Fate::RefusedAtInsert),
            (typed("text/plain; a=é"), Fate::RefusedAtInsert),
            (typed("text/plain\r\nx: y"), Fate::RefusedAtInsert),
            (typed("text/plain;\u{7f}"), Fate::RefusedAtInsert),
            (typed(&format!("a/{long}")), Fate::RefusedAtInsert),
        ] {
            let payload = String::from_utf8(row.payload.to_vec()).expect("text");
            let some = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
            let inserted = client
                .execute(
                    "INSERT INTO postrider.outbox
                         (app, event_type, payload, content_type, event_id, ordering_key, channels, tags)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                    &[
                        &row.app,
                        &row.event_type,
                        &payload,
                        &row.content_type,
                        &row.event_id,
                        &row.ordering_key,
                        &some(&row.channels),
                        &some(&row.tags),
                    ],
                )
                .await
                .is_ok();
            let fate = match (inserted, made(&row).is_ok()) {
                (true, true) => Fate::Sent,
                (false, false) => Fate::RefusedAtInsert,
                (true, false) => Fate::SetAside,
                (false, true) => Fate::RefusedForNothing,
            };
            assert_eq!(fate, expected, "{row:?}");
        }
    }

    #[test]
    fn a_row_is_known_by_its_outbox_and_its_number() {
        let content = made(&row("{}")).expect("fine");
        let first = idempotency(&identity(), 7, &content);
        assert_eq!(first, idempotency(&identity(), 7, &content));
        assert_ne!(first.key, idempotency(&identity(), 8, &content).key);
        assert_ne!(first.key, idempotency(&Identity::new("other".into()), 7, &content).key);
        let other = Content { payload: Bytes::from_static(b"{ }"), ..content };
        let second = idempotency(&identity(), 7, &other);
        assert_eq!((first.key == second.key, first.request == second.request, first.chosen), (true, false, true));
    }

    #[test]
    fn a_message_is_a_rows_own_if_it_says_the_same() {
        let content = made(&row(r#"{"a":1}"#)).expect("fine");
        let own = message(&content);
        assert!(is_same(&content, &own));
        let expunged =
            Message { content: Content { payload: Bytes::new(), ..content.clone() }, payload_gone: true, ..own };
        assert!(is_same(&content, &expunged));
        for other in [
            Content { payload: Bytes::from_static(b"{}"), ..content.clone() },
            Content { event_type: "b".into(), ..content.clone() },
            Content { ordering_key: Some("k".into()), ..content.clone() },
        ] {
            assert!(!is_same(&content, &message(&other)), "{other:?}");
        }
    }

    #[test]
    fn the_store_is_trusted_for_a_little_less_than_it_keeps_things() {
        let hours = Duration::from_hours;
        for (kept, known) in [(hours(24), hours(23)), (hours(2_160), hours(2_159)), (hours(1), Duration::from_mins(45))]
        {
            assert_eq!(known_for(kept), known);
        }
    }

    proptest! {
        #[test]
        fn rows_with_a_link_are_in_one_chain_and_in_order(
            rows in prop::collection::vec((prop::option::of(0..4u8), prop::option::of(10..16u8)), 0..40),
        ) {
            let rows: Vec<_> = rows.into_iter().enumerate().collect();
            let links = |row: &(usize, (Option<u8>, Option<u8>))| row.1.0.into_iter().chain(row.1.1).collect::<Vec<_>>();
            let chains = chains(rows.clone(), links);
            let mut all: Vec<_> = chains.concat();
            all.sort_unstable();
            prop_assert_eq!(all, rows);
            for chain in &chains {
                prop_assert!(chain.is_sorted());
                let is_linked = |row: &(usize, _)| {
                    let mut others = chain.iter().filter(|other| other.0 != row.0);
                    others.any(|other| links(row).iter().any(|link| links(other).contains(link)))
                };
                prop_assert!(chain.len() == 1 || chain.iter().all(is_linked), "nobody waits without a reason");
            }
            for link in 0..16u8 {
                let with = chains.iter().filter(|chain| chain.iter().any(|row| links(row).contains(&link))).count();
                prop_assert!(with <= 1, "{} is in {} chains", link, with);
            }
        }
    }
}
