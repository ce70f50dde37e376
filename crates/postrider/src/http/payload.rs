//! A payload on its way in and out: raw bytes, looked at but never parsed into a tree and printed again.
//!
//! What a producer signs off on is the text, not the tree: numbers of thirty digits, the order of keys and
//! keys given twice must reach the receiver as they came.

use super::{error::Error, extract::Query};
use bytes::Bytes;
use postrider_store::{Content, Message};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;

/// Whether an answer carries what messages and responses say, or only what is known about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    WithContent,
    WithoutContent,
}

impl Detail {
    pub fn take(query: &mut Query) -> Result<Self, Error> {
        Ok(match query.flag("with_content")? {
            None | Some(true) => Self::WithContent,
            Some(false) => Self::WithoutContent,
        })
    }
}

/// What an answer shows in the place of a payload. It is an object in every case, as the SDKs expect.
#[derive(Clone, Debug)]
pub enum Shown<'a> {
    /// As it lies in the request that is being answered.
    Json(&'a RawValue),
    Stored(Bytes),
    /// Handed in as text to be sent as it is. Shown the way it came: `{"rawPayload": "…"}`.
    Text(Bytes),
    /// The caller asked for no content.
    Withheld,
    /// Expired, or expunged on request.
    Gone,
}

impl Shown<'_> {
    pub fn of(message: &Message, detail: Detail) -> Self {
        match (detail, message.payload_gone) {
            (Detail::WithoutContent, _) => Self::Withheld,
            (Detail::WithContent, true) => Self::Gone,
            (Detail::WithContent, false) => Self::content(&message.content),
        }
    }

    fn content(content: &Content) -> Self {
        match content.content_type {
            None => Self::Stored(content.payload.clone()),
            Some(_) => Self::Text(content.payload.clone()),
        }
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Json(json) => json.serialize(serializer),
            // Looked at once more: a damaged payload must not break the answer that it stands in.
            Self::Stored(bytes) => match serde_json::from_slice::<&RawValue>(bytes) {
                Ok(json) => json.serialize(serializer),
                Err(_) => one_entry(serializer, RAW, &String::from_utf8_lossy(bytes)),
            },
            Self::Text(bytes) => one_entry(serializer, RAW, &String::from_utf8_lossy(bytes)),
            Self::Withheld => serializer.serialize_map(Some(0))?.end(),
            Self::Gone => one_entry(serializer, "expired", &true),
        }
    }
}

fn one_entry<S: Serializer>(serializer: S, key: &str, value: &impl Serialize) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(key, value)?;
    map.end()
}

/// The contract's name for a payload that is text.
const RAW: &str = "rawPayload";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_payload_is_always_an_object() {
        let json = serde_json::from_str(r#"{"n": 1e400, "a":1,"a":2 }"#).expect("valid");
        for (shown, expected) in [
            (Shown::Json(json), r#"{"n": 1e400, "a":1,"a":2 }"#),
            (Shown::Stored(Bytes::from(r#"{"n": 1e400, "a":1,"a":2 }"#)), r#"{"n": 1e400, "a":1,"a":2 }"#),
            (Shown::Stored(Bytes::from("{damaged")), r#"{"rawPayload":"{damaged"}"#),
            (Shown::Text(Bytes::from("<a>\"\u{0}")), r#"{"rawPayload":"<a>\"\u0000"}"#),
            (Shown::Withheld, "{}"),
            (Shown::Gone, r#"{"expired":true}"#),
        ] {
            assert_eq!(serde_json::to_string(&shown).expect("can be written"), expected);
        }
    }
}
