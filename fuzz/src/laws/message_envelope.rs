//! A message as it is handed in: the payload is kept byte for byte, and whatever could be taken in two ways is refused.

use bytes::Bytes;
use postrider::{
    http::{error::Error, message_in::Draft, payload::Shown},
    ids::is_name,
    ingest::content::{CHANNELS_MAX, DEPTH_MAX, TAGS_MAX},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use std::fmt;

pub fn check(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    let draft = match Draft::parse(&body) {
        Ok(draft) => draft,
        Err(error) => return refused(&error),
    };
    assert!(depth(data) <= DEPTH_MAX, "nested too deep");
    let members = serde_json::from_slice::<Members<'_>>(data).expect("the body is an object").0;
    for (at, (name, _)) in members.iter().enumerate() {
        assert!(!members[..at].iter().any(|(other, _)| other == name), "`{name}` is given twice");
    }
    let find = |wanted: &[&str]| {
        let mut found = members.iter().filter(|(name, _)| wanted.contains(&name.as_str()));
        (found.next().map(|(_, value)| value), found.next())
    };
    let (Some(given), None) = find(&["payload", "data"]) else { panic!("a payload, and one only") };

    let content = &draft.content;
    if draft.json.is_some() {
        assert_eq!(content.payload, given.get().as_bytes(), "the payload as it stands");
        let shown = serde_json::to_vec(&Shown::Stored(content.payload.clone())).expect("a payload is shown");
        assert_eq!(shown, content.payload, "a payload is shown as it came");
        assert_eq!(content.content_type, None);
        // Numbers of any size are kept; only trees have limits.
        match serde_json::from_slice::<Value>(&content.payload) {
            Ok(value) => assert!(value.is_object()),
            Err(error) => assert!(error.to_string().contains("number out of range"), "{error}"),
        }
    } else {
        let (params, _) = find(&["transformationsParams"]);
        let params: Value = serde_json::from_str(params.expect("only they can replace it").get()).expect("JSON");
        assert_eq!(params["rawPayload"].as_str().map(str::as_bytes), Some(&*content.payload));
        assert!(content.content_type.is_some());
    }
    assert!(is_name(&content.event_type));
    assert!(content.event_id.as_deref().is_none_or(|id| is_name(id) && !id.starts_with("msg_")));
    assert!(content.channels.len() <= CHANNELS_MAX && content.tags.len() <= TAGS_MAX);
    assert!(content.ordering_key.as_deref().is_none_or(|key| !key.is_empty() && !key.contains('\0')));
    let again = Draft::parse(&body).expect("as before");
    assert_eq!((again.content, again.keep_payload), (draft.content, draft.keep_payload));
}

pub fn refused(error: &Error) {
    let Error::Invalid(flaws) = error else { panic!("{error:?}") };
    assert!(!flaws.is_empty());
    for flaw in flaws {
        assert!(!flaw.loc.is_empty() && !flaw.msg.is_empty(), "{flaw:?}");
    }
}

/// How deep it is nested, by another way than the one under test: strings are skipped by a parser that knows escapes.
fn depth(json: &[u8]) -> usize {
    let (mut deepest, mut open, mut at) = (0_usize, 0_usize, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while json.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            _ => {}
        }
        deepest = deepest.max(open);
        at += 1;
    }
    deepest
}

/// The members of an object in their order, repeated ones too.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(pair) = pairs.next_entry()? {
                    members.push(pair);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}
