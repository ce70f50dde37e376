//! A message as a producer hands it in, read in one pass over the body.
//!
//! This is the hot path. The envelope's few fields are parsed, the payload is only found: what is stored,
//! and later sent, is a slice of the request's own bytes.

use super::{
    applications::ApplicationIn,
    error::Error,
    extract,
    fields::{Channel, OrderingKey, Several, TypeName, Uid},
    idempotency::KeyText,
    time::Time,
};
use crate::ingest::content::{CHANNELS_MAX, TAGS_MAX, check_object, is_content_type, is_tag};
use bytes::Bytes;
use postrider_engine::MessageKey;
use postrider_store::Content;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageIn<'a> {
    /// The name of the event's type. It need not have been created before.
    #[schema(value_type = String, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$", example = "invoice.paid")]
    event_type: TypeName,
    /// The body of the webhook. Sent byte for byte as it stands here.
    #[serde(borrow, alias = "data")]
    #[schema(value_type = Object)]
    payload: &'a RawValue,
    /// A name of your own for the message, unique in the application.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$")]
    event_id: Option<Uid<MessageKey>>,
    /// Endpoints that listen to channels get the message only if it is on one of theirs.
    #[schema(value_type = Option<Vec<String>>, min_items = 1, max_items = 10)]
    channels: Option<Several<Channel, CHANNELS_MAX>>,
    /// Words to find the message by.
    #[schema(value_type = Option<Vec<String>>, max_items = 5)]
    tags: Option<Several<Tag, TAGS_MAX>>,
    /// Creates the application on the way, if there is none under the path's name yet.
    application: Option<ApplicationIn>,
    /// How many days to keep the payload. Not together with `payloadRetentionHours`.
    #[schema(minimum = 1, maximum = 90)]
    payload_retention_period: Option<i64>,
    /// How many hours to keep the payload. Not together with `payloadRetentionPeriod`.
    #[schema(minimum = 1, maximum = 2160)]
    payload_retention_hours: Option<i64>,
    transformations_params: Option<TransformationsParams>,
    /// Not to be sent before; at most 24 hours ahead.
    deliver_at: Option<Time>,
    /// Messages of the same key reach an endpoint one after the other, in the order in which they were accepted.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    ordering_key: Option<OrderingKey>,
    /// In a batch, where a header would be for all.
    #[schema(ignore)]
    idempotency_key: Option<KeyText>,
}

/// A word to find messages by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(pub String);

impl<'de> Deserialize<'de> for Tag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if is_tag(&text) {
            Ok(Self(text))
        } else {
            Err(de::Error::custom(r"must be 1 to 128 letters, digits, `-`, `_`, `.`, `/`, `\` or `#`"))
        }
    }
}

/// How the SDKs send what is not JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TransformationsParams {
    /// Sent as it is in the place of `payload`, which must be `{}` then.
    raw_payload: Option<String>,
    headers: Option<RawHeaders>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RawHeaders {
    #[serde(rename = "content-type", alias = "Content-Type")]
    content_type: Option<String>,
}

/// A message that may be accepted.
#[derive(Debug)]
pub struct Draft<'a> {
    pub content: Content,
    /// How long the payload is to be kept, if not as long as everything is.
    pub keep_payload: Option<Duration>,
    pub application: Option<ApplicationIn>,
    /// The payload where it is JSON, as it lies in the body.
    pub json: Option<&'a RawValue>,
}

impl<'a> Draft<'a> {
    pub fn parse(body: &'a Bytes) -> Result<Self, Error> {
        match Self::parse_item(body)? {
            (draft, None) => Ok(draft),
            (_, Some(_)) => Err(Error::invalid(
                ["idempotencyKey"],
                "is for messages of a batch; send it as the header idempotency-key",
            )),
        }
    }

    /// A message of a batch, and its own idempotency key.
    pub fn parse_item(body: &'a Bytes) -> Result<(Self, Option<KeyText>), Error> {
        let message: MessageIn<'a> = extract::parse(body)?;
        if message.channels.as_ref().is_some_and(|channels| channels.0.is_empty()) {
            return Err(Error::invalid(["channels"], "must be at least one; leave them out for none"));
        }
        let keep_payload = keep_payload(message.payload_retention_period, message.payload_retention_hours)?;
        let json = message.payload;
        check_object(json.get()).map_err(|flaw| Error::invalid(["payload"], flaw))?;
        let raw = message.transformations_params.map(Raw::parse).transpose()?.flatten();
        let (payload, content_type, json) = match raw {
            None => (body.slice_ref(json.get().as_bytes()), None, Some(json)),
            Some(_) if !is_empty_object(json) => {
                return Err(Error::invalid(["payload"], "must be {} beside a rawPayload"));
            }
            Some(raw) => (Bytes::from(raw.text), Some(raw.content_type), None),
        };
        let content = Content {
            event_type: message.event_type.0,
            event_id: message.event_id.map(|event_id| event_id.0),
            channels: message.channels.into_iter().flat_map(|channels| channels.0).map(|channel| channel.0).collect(),
            tags: message.tags.into_iter().flat_map(|tags| tags.0).map(|tag| tag.0).collect(),
            content_type,
            ordering_key: message.ordering_key.map(|key| key.0),
            deliver_at: message.deliver_at.map(|time| time.0),
            received: None,
            payload,
        };
        Ok((Self { content, keep_payload, application: message.application, json }, message.idempotency_key))
    }
}

fn is_empty_object(json: &RawValue) -> bool {
    // Known to be an object, and one of nothing but braces and space has no members.
    json.get().bytes().all(|byte| matches!(byte, b'{' | b'}') || byte.is_ascii_whitespace())
}

/// Text to be sent as it is.
struct Raw {
    text: String,
    /// Always set, also to the default: that is how a message remembers that its payload is not an object.
    content_type: String,
}

impl Raw {
    fn parse(params: TransformationsParams) -> Result<Option<Self>, Error> {
        let content_type = params.headers.and_then(|headers| headers.content_type);
        let Some(text) = params.raw_payload else {
            return match content_type {
                None => Ok(None),
                Some(_) => Err(Error::invalid(["transformationsParams", "headers"], "need a rawPayload")),
            };
        };
        let content_type = content_type.unwrap_or_else(|| JSON.to_owned());
        if !is_content_type(&content_type) {
            return Err(Error::invalid(["transformationsParams", "headers", "content-type"], "is not a content type"));
        }
        Ok(Some(Self { text, content_type }))
    }
}

fn keep_payload(days: Option<i64>, hours: Option<i64>) -> Result<Option<Duration>, Error> {
    let hour = Duration::from_hours(1);
    match (days, hours) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Error::invalid(["payloadRetentionHours"], "excludes payloadRetentionPeriod")),
        (Some(days @ 1..=90), None) => Ok(Some(hour * 24 * days as u32)),
        (None, Some(hours @ 1..=2160)) => Ok(Some(hour * hours as u32)),
        (Some(_), None) => Err(Error::invalid(["payloadRetentionPeriod"], "must be 1 to 90 days")),
        (None, Some(_)) => Err(Error::invalid(["payloadRetentionHours"], "must be 1 to 2160 hours")),
    }
}

const JSON: &str = "application/json";

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: impl AsRef<[u8]>) -> Bytes {
        Bytes::copy_from_slice(text.as_ref())
    }

    /// An envelope with these members beside the two that must be there.
    fn with(members: &str) -> Bytes {
        body(format!(r#"{{"eventType":"a","payload":{{}},{members}}}"#))
    }

    #[test]
    fn a_payload_is_a_slice_of_the_body_byte_for_byte() {
        for payload in [
            "{}",
            r#"{ "n" : 1e400, "m":123456789012345678901234567890 ,"m":2}"#,
            "{\"a\":[1,\t2\n],\"b\":\"\\u0000 \\u00e9 \u{e9} \\/\"}",
        ] {
            for name in ["payload", "data"] {
                let body = body(format!(r#"{{"eventType":"a.b","{name}": {payload} }}"#));
                let draft = Draft::parse(&body).expect(payload);
                assert_eq!(draft.content.payload, payload);
                assert_eq!(draft.json.expect("it is JSON").get(), payload);
                assert!(body.as_ptr_range().contains(&draft.content.payload.as_ptr()), "copied: {payload}");
            }
        }
    }

    #[test]
    fn an_envelope_is_read_whole() {
        let body = with(
            r##""eventId":"e-1","channels":["a:b+c","x","x"],"tags":["t/1#\\"],"payloadRetentionHours":3,
                "application":null,"transformationsParams":null,"deliverAt":null,"payloadRetentionPeriod":null"##,
        );
        let draft = Draft::parse(&body).expect("all of it is right");
        assert_eq!(draft.content.event_id.as_deref(), Some("e-1"));
        assert_eq!(draft.content.channels, ["a:b+c", "x"], "the same channel twice is one");
        assert_eq!(draft.content.tags, [r"t/1#\"]);
        assert_eq!(draft.content.content_type, None);
        assert_eq!(draft.keep_payload, Some(Duration::from_hours(3)));
    }

    #[test]
    fn a_raw_payload_is_sent_as_it_is() {
        for (params, payload, content_type) in [
            (r#"{"rawPayload":"<a>\n"}"#, "<a>\n", "application/json"),
            (r#"{"rawPayload":"","headers":{}}"#, "", "application/json"),
            (
                r#"{"rawPayload":"a=1","headers":{"content-type":"text/plain; charset=utf-8"}}"#,
                "a=1",
                "text/plain; charset=utf-8",
            ),
        ] {
            let body = with(&format!(r#""transformationsParams":{params}"#));
            let draft = Draft::parse(&body).expect(params);
            assert_eq!(draft.content.payload, payload, "{params}");
            assert_eq!(draft.content.content_type.as_deref(), Some(content_type), "{params}");
            assert!(draft.json.is_none());
        }
    }

    #[test]
    fn what_is_no_json_object_of_a_message_is_refused() {
        let deep =
            |depth| format!(r#"{{"eventType":"a","payload":{{"a":{}{}}}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(Draft::parse(&body(deep(62))).is_ok());
        let many = format!(r#"{{"eventType":"a","payload":{{}},{}"z":1}}"#, r#""payload":{},"#.repeat(10_000));
        for text in [
            &b""[..],
            b"{",
            b"null",
            b"[]",
            b"{}",
            br#"{"eventType":"a"}"#,
            br#"{"payload":{}}"#,
            br#"{"eventType":"a","payload":{}} x"#,
            br#"{"eventType":"a","payload":{}}{}"#,
            b"\xef\xbb\xbf{\"eventType\":\"a\",\"payload\":{}}",
            br#"{"eventType":"a","payload":{} /* no */}"#,
            br#"{"eventType":"a","payload":{"n":NaN}}"#,
            br#"{'eventType':'a','payload':{}}"#,
            b"{\"eventType\":\"a\",\"payload\":{\"a\":\"\xff\"}}",
            b"{\"eventType\":\"\xff\",\"payload\":{}}",
            br#"{"eventType":"a","payload":{"a":"\ud800"}}"#,
            br#"{"eventType":"\ud800","payload":{}}"#,
            br#"{"eventType":"a","payload":null}"#,
            br#"{"eventType":"a","payload":[]}"#,
            br#"{"eventType":"a","payload":"text"}"#,
            br#"{"eventType":"a","payload":1}"#,
            br#"{"eventType":"a","eventType":"a","payload":{}}"#,
            br#"{"eventType":"a","payload":{},"payload":{}}"#,
            br#"{"eventType":"a","payload":{},"data":{}}"#,
            deep(63).as_bytes(),
            deep(200_000).as_bytes(),
            many.as_bytes(),
        ] {
            let shown = String::from_utf8_lossy(&text[..text.len().min(80)]);
            assert!(Draft::parse(&body(text)).is_err(), "{shown}");
        }
    }

    #[test]
    fn a_member_out_of_bounds_is_refused() {
        let words = |count: usize| (0..count).map(|n| format!("\"w{n}\"")).collect::<Vec<_>>().join(",");
        let long = "x".repeat(257);
        for members in [
            r#""unknown":1"#.to_owned(),
            r#""endpoint":"ep_1""#.to_owned(),
            r#""idempotencyKey":"k""#.to_owned(),
            r#""ordering":"k""#.to_owned(),
            r#""eventId":"""#.to_owned(),
            r#""eventId":"msg_mine""#.to_owned(),
            r#""eventId":"a/../b""#.to_owned(),
            r#""eventId":"a%2fb""#.to_owned(),
            r#""eventId":"a\u0000""#.to_owned(),
            "\"eventId\":\"\u{430}\"".to_owned(),
            format!(r#""eventId":"{long}""#),
            r#""eventId":1"#.to_owned(),
            r#""channels":[]"#.to_owned(),
            r#""channels":[""]"#.to_owned(),
            r#""channels":["a b"]"#.to_owned(),
            r#""channels":["a/b"]"#.to_owned(),
            r#""channels":[1]"#.to_owned(),
            format!(r#""channels":["{}"]"#, &long[..129]),
            format!(r#""channels":[{}]"#, words(11)),
            format!(r#""channels":[{}]"#, words(100_000)),
            r#""tags":["a:b"]"#.to_owned(),
            format!(r#""tags":[{}]"#, words(6)),
            r#""payloadRetentionPeriod":0"#.to_owned(),
            r#""payloadRetentionPeriod":91"#.to_owned(),
            r#""payloadRetentionPeriod":-1"#.to_owned(),
            r#""payloadRetentionPeriod":1e400"#.to_owned(),
            r#""payloadRetentionPeriod":99999999999999999999"#.to_owned(),
            r#""payloadRetentionHours":0"#.to_owned(),
            r#""payloadRetentionHours":2161"#.to_owned(),
            r#""payloadRetentionHours":"1""#.to_owned(),
            r#""payloadRetentionHours":24,"payloadRetentionPeriod":1"#.to_owned(),
            r#""deliverAt":"tomorrow""#.to_owned(),
            r#""deliverAt":1893456000"#.to_owned(),
            r#""orderingKey":"""#.to_owned(),
            format!(r#""orderingKey":"{long}""#),
            r#""orderingKey":1"#.to_owned(),
            r#""transformationsParams":{"other":1}"#.to_owned(),
            r#""transformationsParams":{"rawPayload":{}}"#.to_owned(),
            r#""transformationsParams":{"headers":{"content-type":"text/plain"}}"#.to_owned(),
            r#""transformationsParams":{"rawPayload":"","headers":{"x-other":"1"}}"#.to_owned(),
            r#""transformationsParams":{"rawPayload":"","headers":{"content-type":""}}"#.to_owned(),
            r#""transformationsParams":{"rawPayload":"","headers":{"content-type":"text"}}"#.to_owned(),
            r#""transformationsParams":{"rawPayload":"","headers":{"content-type":"a/b\r\nx: y"}}"#.to_owned(),
            r#""application":{"uid":"x"}"#.to_owned(),
        ] {
            assert!(Draft::parse(&with(&members)).is_err(), "{members:.80}");
        }
    }

    #[test]
    fn an_event_type_is_a_name() {
        for (name, fine) in [
            ("invoice.paid", true),
            ("A-b_c.9", true),
            (&*"x".repeat(256), true),
            (&*"x".repeat(257), false),
            ("", false),
            ("a b", false),
            ("a/b", false),
            ("..%2f", false),
            ("\u{430}", false),
        ] {
            let body = body(format!(r#"{{"eventType":"{name}","payload":{{}}}}"#));
            assert_eq!(Draft::parse(&body).is_ok(), fine, "{name:.40}");
        }
    }

    #[test]
    fn a_raw_payload_leaves_no_room_for_another() {
        for (payload, fine) in [("{}", true), ("{ }", true), (r#"{"a":{}}"#, false)] {
            let body = body(format!(
                r#"{{"eventType":"a","payload":{payload},"transformationsParams":{{"rawPayload":"x"}}}}"#
            ));
            assert_eq!(Draft::parse(&body).is_ok(), fine, "{payload}");
        }
    }
}
