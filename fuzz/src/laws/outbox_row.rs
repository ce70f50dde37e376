//! A row of an outbox: what is taken over from there could have been handed in through the API, and would have become
//! the same message.

use super::draws::Draws;
use bytes::Bytes;
use postrider::{
    fuzzing::{chains, content_of_row, idempotency_of_row},
    http::{message_in::Draft, time::Time},
};
use postrider_engine::Timestamp;
use postrider_store::outbox::{Identity, Row};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, time::Duration};

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    parts(&mut draws);
    let now = Timestamp::from_millis(1_700_000_000_000);
    let identity = Identity::new("8f14e45f-ceea-467f-a1d1-f3d1b1a0c6f4".to_owned());
    let word = |draws: &mut Draws<'_>| match draws.below(4) {
        0 => draws.text(),
        _ => draws.one_of(&["a", "invoice.paid", "msg_x", "", "b c"]).to_owned(),
    };
    let row = Row {
        id: draws.any(),
        app: word(&mut draws),
        event_type: word(&mut draws),
        content_type: draws
            .maybe(|draws| if draws.any() { "text/plain; charset=utf-8".to_owned() } else { draws.text() }),
        event_id: draws.maybe(word),
        channels: draws.several(11, word),
        tags: draws.several(6, word),
        ordering_key: draws.maybe(word),
        deliver_at: draws.maybe(Draws::timestamp),
        // It is no part of what the message says.
        traceparent: None,
        payload: Bytes::copy_from_slice(draws.rest()),
        taken: None,
    };
    let body_max = 2_000;
    let content = match content_of_row(&identity, &row, body_max, now) {
        Ok(content) => content,
        Err(reason) => return assert!(!reason.is_empty()),
    };
    assert!(content.event_id.is_some() && content.payload.len() <= body_max);
    assert!(content.deliver_at.is_none_or(|at| at <= now.plus(Duration::from_hours(25))));
    let repeat = idempotency_of_row(&identity, row.id, &content);
    assert_eq!(repeat, idempotency_of_row(&identity, row.id, &content));
    assert_ne!(repeat.key, idempotency_of_row(&identity, row.id.wrapping_add(1), &content).key);
    assert_ne!(repeat.key, idempotency_of_row(&Identity::new("another".to_owned()), row.id, &content).key);

    let mut envelope = Map::new();
    envelope.insert("eventType".to_owned(), json!(content.event_type));
    envelope.insert("eventId".to_owned(), json!(content.event_id));
    let lists = [("channels", &content.channels), ("tags", &content.tags)];
    for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        envelope.insert(name.to_owned(), json!(list));
    }
    if let Some(key) = &content.ordering_key {
        envelope.insert("orderingKey".to_owned(), json!(key));
    }
    // Times that RFC 3339 cannot write are far past.
    if let Some(at) = content.deliver_at {
        let text = Time(at).to_string();
        if text.parse::<Time>() != Ok(Time(at)) {
            return;
        }
        envelope.insert("deliverAt".to_owned(), json!(text));
    }
    let payload = match &content.content_type {
        None => String::from_utf8(content.payload.to_vec()).expect("JSON is text"),
        Some(content_type) => {
            let Ok(text) = std::str::from_utf8(&content.payload) else { return };
            let params = json!({"rawPayload": text, "headers": {"content-type": content_type}});
            envelope.insert("transformationsParams".to_owned(), params);
            "{}".to_owned()
        }
    };
    let mut body = Value::Object(envelope).to_string();
    body.pop();
    // Not through a tree, which would write it anew. The envelope is a level of its own.
    body.push_str(&format!(",\"payload\":{payload}}}"));
    match Draft::parse(&Bytes::from(body.clone())) {
        Ok(draft) => assert_eq!(draft.content, content),
        Err(error) => assert!(format!("{error:?}").contains("nested deeper"), "{body}: {error:?}"),
    }
}

/// Rows that have something in common go one after the other, in their order; no row is lost.
fn parts(draws: &mut Draws<'_>) {
    let rows: Vec<(usize, Vec<u8>)> =
        draws.several(12, |draws| draws.several(3, |draws| draws.any::<u8>() % 8)).into_iter().enumerate().collect();
    let parted = chains(rows.clone(), |(_, links)| links.clone());
    let mut all: Vec<_> = parted.iter().flatten().cloned().collect();
    all.sort();
    assert_eq!(all, rows);
    let mut seen = BTreeSet::new();
    for chain in &parted {
        assert!(chain.is_sorted(), "{chain:?}");
        let links: BTreeSet<u8> = chain.iter().flat_map(|(_, links)| links.iter().copied()).collect();
        assert!(links.iter().all(|link| seen.insert(*link)), "two chains have {links:?} in common");
    }
}
