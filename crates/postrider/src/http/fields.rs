//! Values of bodies, as types that only their parsing makes.
//!
//! They check themselves while the body is parsed, so that a wrong one is refused with the path to it.

use super::error::Error;
use crate::{
    ids::{PublicKey, is_name},
    ingest::content::{is_channel, is_ordering_key, is_text},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{collections::BTreeMap, fmt, marker::PhantomData};

/// Text that a function judges as it is parsed.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $accepts:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub String);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(&text) { Ok(Self(text)) } else { Err(de::Error::custom($expected)) }
            }
        }
    };
}

text!(
    /// The name of an event type, a group of them, or a feature flag.
    TypeName,
    is_name,
    "must be 1 to 256 letters, digits, `-`, `_` or `.`"
);
text!(Channel, is_channel, "must be 1 to 128 letters, digits, `-`, `_`, `.`, `:` or `+`");
text!(
    /// What an application is called by people.
    Title,
    |text| !text.trim().is_empty() && is_text(text, 1024),
    "must be 1 to 1024 characters, not all blank, without NUL"
);
text!(Description, |text| is_text(text, 16_384), "must be at most 16384 characters, without NUL");

text!(
    /// By what messages are kept in order.
    OrderingKey,
    is_ordering_key,
    "must be 1 to 256 characters, without NUL"
);

/// A name that the owner gives: it can stand wherever the id can, and must not look like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uid<K>(pub String, PhantomData<K>);

impl<'de, K: PublicKey> Deserialize<'de> for Uid<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if !is_name(&text) {
            return Err(de::Error::custom("must be 1 to 256 letters, digits, `-`, `_` or `.`"));
        }
        let prefix = K::KIND.prefix();
        if text.starts_with(prefix) {
            return Err(de::Error::custom(format_args!("must not begin with `{prefix}`, as ids do")));
        }
        Ok(Self(text, PhantomData))
    }
}

/// Requests per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u32);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u16::deserialize(deserializer)? {
            0 => Err(de::Error::custom("must be at least 1; use null for no limit")),
            rate => Ok(Self(rate.into())),
        }
    }
}

/// A map of strings whose names must not repeat: with two values for one name, which was meant?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(deserializer.deserialize_map(UniqueMap(PhantomData))?))
    }
}

/// The same, where null is a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NullableStrings(pub BTreeMap<String, Option<String>>);

impl<'de> Deserialize<'de> for NullableStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(deserializer.deserialize_map(UniqueMap(PhantomData))?))
    }
}

struct UniqueMap<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueMap<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value()?;
            if map.contains_key(&name) {
                return Err(de::Error::custom(format_args!("`{name}` is given twice")));
            }
            map.insert(name, value);
            if map.len() > ENTRIES_MAX {
                return Err(de::Error::custom(format_args!("at most {ENTRIES_MAX} entries are allowed")));
            }
        }
        Ok(map)
    }
}

/// What the owner wants to know about a thing later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Strings(map) = Strings::deserialize(deserializer)?;
        if map.iter().any(|(name, value)| name.contains('\0') || value.contains('\0')) {
            return Err(de::Error::custom("must not hold NUL characters"));
        }
        let size = serde_json::to_vec(&map).map_err(de::Error::custom)?.len();
        if size > METADATA_BYTES_MAX {
            return Err(de::Error::custom(format_args!("has {size} bytes as JSON; at most {METADATA_BYTES_MAX}")));
        }
        Ok(Self(map))
    }
}

/// A list of at most `MAX` different values. One given twice is kept once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Several<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de> + PartialEq, const MAX: usize> Deserialize<'de> for Several<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + PartialEq, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                for _ in 0..MAX {
                    let Some(item) = items.next_element()? else { return Ok(list) };
                    if !list.contains(&item) {
                        list.push(item);
                    }
                }
                match items.next_element::<IgnoredAny>()? {
                    None => Ok(list),
                    Some(_) => Err(de::Error::custom(format_args!("at most {MAX} are allowed"))),
                }
            }
        }

        deserializer.deserialize_seq(List::<T, MAX>(PhantomData)).map(Self)
    }
}

/// A field that has an old and a new name. Both may be given if they agree.
pub fn either<T: PartialEq>(new: (&str, Option<T>), old: (&str, Option<T>)) -> Result<Option<T>, Error> {
    match (new.1, old.1) {
        (Some(one), Some(other)) if one != other => {
            Err(Error::invalid([new.0], format!("differs from `{}`, which is another name of it", old.0)))
        }
        (Some(value), _) | (None, Some(value)) => Ok(Some(value)),
        (None, None) => Ok(None),
    }
}

const ENTRIES_MAX: usize = 1_000;
const METADATA_BYTES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::{AppKey, EndpointKey};
    use serde_json::{from_str, json};

    #[test]
    fn names_hold_letters_digits_and_little_else() {
        for (text, accepted) in [
            ("user.created", true),
            ("A-b_c.9", true),
            ("..", true),
            ("", false),
            ("a/b", false),
            ("%2f", false),
            ("a b", false),
            ("caf\u{e9}", false),
            ("\u{430}", false),
            ("a\0", false),
            ("a\n", false),
        ] {
            assert_eq!(from_str::<TypeName>(&json!(text).to_string()).is_ok(), accepted, "{text:?}");
            assert_eq!(from_str::<Uid<AppKey>>(&json!(text).to_string()).is_ok(), accepted, "{text:?}");
        }
        assert!(from_str::<TypeName>(&json!("x".repeat(256)).to_string()).is_ok());
        assert!(from_str::<TypeName>(&json!("x".repeat(257)).to_string()).is_err());
    }

    #[test]
    fn a_uid_does_not_look_like_an_id_of_its_kind() {
        assert!(from_str::<Uid<AppKey>>(r#""app_1""#).is_err());
        assert!(from_str::<Uid<AppKey>>(r#""ep_1""#).is_ok());
        assert!(from_str::<Uid<EndpointKey>>(r#""ep_1""#).is_err());
    }

    #[test]
    fn titles_and_descriptions_are_text() {
        for (text, accepted) in [("Acme", true), ("caf\u{e9}", true), ("", false), ("  ", false), ("a\0b", false)] {
            assert_eq!(from_str::<Title>(&json!(text).to_string()).is_ok(), accepted, "{text:?}");
        }
        assert!(from_str::<Title>(&json!("\u{e9}".repeat(1025)).to_string()).is_err());
        assert!(from_str::<Description>(r#""""#).is_ok());
        assert!(from_str::<Description>(&json!("a".repeat(16_385)).to_string()).is_err());
    }

    #[test]
    fn metadata_is_small_and_has_each_name_once() {
        assert!(from_str::<Metadata>(r#"{"a":"1","b":"2"}"#).is_ok());
        for text in [r#"{"a":"1","a":"2"}"#, r#"{"a":1}"#, r#"{"a":null}"#, r#"{"a":"\u0000"}"#, "[]"] {
            assert!(from_str::<Metadata>(text).is_err(), "{text}");
        }
        let sized = |bytes: usize| json!({ "k": "v".repeat(bytes - 8) }).to_string();
        assert!(from_str::<Metadata>(&sized(4096)).is_ok());
        assert!(from_str::<Metadata>(&sized(4097)).is_err());
        let many: BTreeMap<String, String> = (0..10_000).map(|i| (i.to_string(), String::new())).collect();
        assert!(from_str::<Metadata>(&json!(many).to_string()).is_err());
    }

    #[test]
    fn a_list_is_bounded_and_each_value_is_kept_once() {
        assert_eq!(from_str::<Several<u8, 3>>("[1,2,1]").unwrap().0, [1, 2]);
        assert!(from_str::<Several<u8, 3>>("[1,2,3,4]").is_err());
        assert!(from_str::<Several<Channel, 10>>(&json!(vec!["c"; 100_000]).to_string()).is_err());
    }

    #[test]
    fn a_rate_is_one_to_65535() {
        for (text, accepted) in
            [("1", true), ("65535", true), ("0", false), ("-1", false), ("65536", false), ("1.5", false)]
        {
            assert_eq!(from_str::<Rate>(text).is_ok(), accepted, "{text}");
        }
    }

    #[test]
    fn two_spellings_must_agree() {
        assert_eq!(either(("a", Some(1)), ("b", None)), Ok(Some(1)));
        assert_eq!(either(("a", None), ("b", Some(1))), Ok(Some(1)));
        assert_eq!(either(("a", Some(1)), ("b", Some(1))), Ok(Some(1)));
        assert!(either(("a", Some(1)), ("b", Some(2))).is_err());
    }
}
