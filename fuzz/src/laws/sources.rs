//! Sources, as the API is told of them and as they lie sealed: what is taken can be read again and shown without its secrets,
//! and then makes a message of any request.

use super::message_envelope::refused;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use postrider::{
    http::{
        extract::parse,
        sources::{IngestSourceIn, IngestSourcePatch, settings as settings_of_source},
    },
    ids::is_name,
    rules::headers::is_forbidden,
    sources::{
        Source,
        fields::Kind,
        reading::{Place, is_credential, is_taken},
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub fn check(data: &[u8]) {
    if let Ok(sealed) = Source::read(data) {
        usable(&sealed, data);
    }
    read::<IngestSourceIn>(data);
    read::<IngestSourcePatch>(data);
    match settings_of_source(data, None, TOKEN) {
        Ok(settings) => {
            let source = Source::of(settings).expect("only what can be used is stored");
            assert_eq!(source.settings.token, TOKEN);
            usable(&source, data);
            put_back(&source);
        }
        Err(error) => refused(&error),
    }
    if let Ok(text) = std::str::from_utf8(data) {
        if let Some(place) = Place::parse(text) {
            assert_eq!(Place::parse(&place.shown()), Some(place));
        }
        secrets_stay(text);
    }
    is_taken(data);
}

fn read<T: DeserializeOwned>(data: &[u8]) {
    match parse::<T>(data) {
        Ok(_) => {
            // What is kept raw may hold numbers that no tree can.
            let Ok(Value::Object(mut members)) = serde_json::from_slice(data) else { panic!("it is an object") };
            members.insert("nobodyKnowsThis".to_owned(), Value::Null);
            assert!(parse::<T>(Value::Object(members).to_string().as_bytes()).is_err());
        }
        Err(error) => refused(&error),
    }
}

fn usable(source: &Source, data: &[u8]) {
    let again = Source::read(&source.settings.to_bytes()).expect("what was sealed is read again");
    assert!(again.settings == source.settings && again.shown == source.shown);
    assert_eq!(again.verifies(), source.verifies());
    let shown = source.shown.clone().unwrap_or_default();
    for field in source.preset.fields {
        assert!(field.kind != Kind::Secret || shown.get(field.name).is_none(), "{} is shown", field.name);
    }
    assert!(!format!("{:?}", source.settings).contains(&source.settings.token) || source.settings.token.len() < 20);

    let headers = headers(source, data);
    let body = Bytes::copy_from_slice(data);
    let verified = source.verify(&headers, data, Some("https://example.com/ingest/in/x"), NOW);
    if verified.is_err() {
        source.explain(&headers, data, None, NOW);
    }
    assert!(source.verifies() || matches!(verified, Ok(None)), "nothing is asked for, and nothing found wanting");
    let content = source.content(&headers, verified.ok().flatten().and_then(|verified| verified.id), body.clone());
    assert!(is_name(&content.event_type), "{}", content.event_type);
    let id = content.event_id.as_deref();
    assert!(id.is_none_or(|id| is_name(id) && !id.starts_with("msg_")), "{id:?}");
    assert_eq!(content.payload, body, "as it came");
    let received = content.received.expect("it came from outside");
    for (name, value) in received.passed_on.iter().chain(&received.kept) {
        assert!(!is_credential(name), "{name}");
        assert!(!source.settings.has_token_in(value.as_bytes()), "the URL is a secret");
    }
    for (name, value) in &received.passed_on {
        assert!(!is_forbidden(name) && HeaderValue::from_str(value).is_ok(), "{name}");
    }
    source.challenge.answer(data);
    source.challenge.answer_get(&headers, &[("hub.mode".to_owned(), "subscribe".to_owned())]);
}

/// Whoever puts back what he was shown changes nothing.
fn put_back(source: &Source) {
    let mut body = json!({"name": "again", "type": source.settings.kind});
    if let Some(shown) = &source.shown {
        body["config"] = shown.clone();
    }
    let again = settings_of_source(body.to_string().as_bytes(), Some(&source.settings), "another");
    let again = Source::of(again.unwrap_or_else(|error| panic!("{body}: {error:?}"))).expect("it can be used");
    assert_eq!((&again.settings.token, &again.shown), (&source.settings.token, &source.shown));
    assert_eq!(again.verifies(), source.verifies());
    let places = |source: &Source| (source.settings.id_from.clone(), source.settings.type_from.clone());
    assert!(places(&again) == places(source) && again.settings.pass_headers == source.settings.pass_headers);
}

/// What is refused is told, and a secret is no part of it.
fn secrets_stay(text: &str) {
    // The fuzzer learns the word, and may put it where it is no secret.
    if text.contains(SECRET) {
        return;
    }
    for (kind, name) in [("svix", "secret"), ("hmac", "secret"), ("token", "token"), ("adobe-sign", "clientId")] {
        let mut config = json!({name: format!("{SECRET}{text}")});
        if kind != "svix" && kind != "adobe-sign" {
            config["header"] = text.into();
        }
        let body = json!({"name": "any", "type": kind, "config": config}).to_string();
        match settings_of_source(body.as_bytes(), None, TOKEN) {
            Ok(settings) => {
                let source = Source::of(settings).expect("only what can be used is stored");
                assert!(!format!("{:?}{:?}", source.shown, source.settings).contains(SECRET));
            }
            Err(error) => assert!(!format!("{error:?}").contains(SECRET), "{error:?}"),
        }
    }
}

/// Some that the type looks at, with pieces of the input.
fn headers(source: &Source, data: &[u8]) -> HeaderMap {
    let places = source.preset.ids.iter().chain(source.preset.types).filter_map(|text| Place::parse(text));
    let places = places.chain(source.settings.id_from.clone()).chain(source.settings.type_from.clone());
    let looked_at = places.filter_map(|place| match place {
        Place::Header(name) => Some(name),
        Place::Body(_) => None,
    });
    let others = ["content-type", "authorization", "x-hub-signature-256", "stripe-signature", "x-forwarded-uri"];
    let names = looked_at
        .chain(source.settings.pass_headers.iter().cloned())
        .chain(source.preset.headers.iter().chain(&others).map(|name| (*name).to_owned()));
    let mut pieces = data.split(|byte| *byte == b',').cycle();
    let pairs = names.filter_map(|name| {
        let value = HeaderValue::from_bytes(pieces.next().unwrap_or_default()).ok()?;
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    });
    pairs.collect()
}

const TOKEN: &str = "0000000000000000000000this-is-in-the-URL-and-secret";
const SECRET: &str = "nobody-may-read-this";
const NOW: i64 = 1_790_000_000;
