//! Bodies of the API: whatever comes, it is taken in or refused with the place and the reason, and a secret is never
//! part of the reason.

use super::message_envelope::refused;
use postrider::http::{
    applications::{ApplicationIn, ApplicationPatch},
    endpoint_headers::{self, EndpointHeadersIn, EndpointHeadersPatchIn},
    endpoints::{EndpointIn, EndpointPatch, EndpointUpsertIn},
    error::Error,
    event_types::{EventTypeIn, EventTypePatch, EventTypeUpsertIn},
    extract::parse,
    fields::{Metadata, Strings},
    retry_schedule::RetryScheduleInOut,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub fn check(data: &[u8]) {
    read::<EndpointIn>(data);
    read::<EndpointUpsertIn>(data);
    read::<EndpointPatch>(data);
    read::<ApplicationIn>(data);
    read::<ApplicationPatch>(data);
    read::<EventTypeIn>(data);
    read::<EventTypeUpsertIn>(data);
    read::<EventTypePatch>(data);
    read::<EndpointHeadersIn>(data);
    read::<EndpointHeadersPatchIn>(data);
    read::<RetryScheduleInOut>(data);
    if let Ok(Metadata(map)) = parse::<Metadata>(data) {
        assert!(serde_json::to_vec(&map).expect("text").len() <= 4_096);
    }
    if let Ok(Strings(headers)) = parse::<Strings>(data) {
        headers_of(headers);
    }
    // The fuzzer learns the word, and may put it where it is no secret.
    if let Some(text) = std::str::from_utf8(data).ok().filter(|text| !text.contains(SECRET)) {
        let secret = format!("{SECRET}{text}");
        let body = json!({"url": "https://example.com/", "secret": secret}).to_string();
        if let Err(error) = parse::<EndpointIn>(body.as_bytes()) {
            assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        }
    }
}

fn read<T: DeserializeOwned>(data: &[u8]) {
    match parse::<T>(data) {
        Ok(_) => {
            let value: Value = match serde_json::from_slice(data) {
                Ok(value) => value,
                // What is kept raw may hold numbers that no tree can.
                Err(error) => return assert!(error.to_string().contains("number out of range"), "{error}"),
            };
            let Value::Object(mut members) = value else { panic!("{value} is no object") };
            // What is not known is refused, never passed over.
            members.insert("nobodyKnowsThis".to_owned(), Value::Null);
            assert!(parse::<T>(Value::Object(members).to_string().as_bytes()).is_err());
        }
        Err(error) => refused(&error),
    }
}

fn headers_of(headers: std::collections::BTreeMap<String, String>) {
    match endpoint_headers::check(headers) {
        Ok(headers) => {
            for (name, value) in headers {
                http::HeaderName::from_bytes(name.as_bytes()).expect("a name that can be sent");
                http::HeaderValue::from_str(&value).expect("a value that can be sent");
                let name = name.to_ascii_lowercase();
                assert!(
                    !["host", "content-length", "transfer-encoding", "webhook-id"].contains(&name.as_str()),
                    "{name}"
                );
            }
        }
        Err(error @ Error::Invalid(_)) => refused(&error),
        Err(error) => panic!("{error:?}"),
    }
}

const SECRET: &str = "nobody-may-read-this";
