//! Public ids: `msg_` and 27 letters that hold the integer key and the proof that we made it.
//!
//! An id is its key (8 bytes) and a keyed hash of it (12 bytes), in base 62. So it sorts by time as the
//! contract wants, needs no column and no index of its own, and cannot be guessed: whoever counts keys
//! up or down does not know the hash that belongs to them, and gets the answer for an unknown id.

use postrider_engine::{AppKey, AttemptKey, EndpointKey, MessageKey};
use postrider_store::{ApiKeyKey, AuditKey, By, OPERATIONAL, PollerKey, RefusedKey, TaskKey};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// What an id names. The kind is hashed along, so that the id of one thing is never the id of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Application,
    Endpoint,
    Message,
    Attempt,
    Task,
    ApiKey,
    AuditEntry,
    Source,
    Refused,
    Poller,
    Place,
}

impl Kind {
    pub const fn prefix(self) -> &'static str {
        match self {
            Kind::Application => "app_",
            Kind::Endpoint => "ep_",
            Kind::Message => "msg_",
            Kind::Attempt => "atmpt_",
            Kind::Task => "qtask_",
            Kind::ApiKey => "key_",
            Kind::AuditEntry => "audit_",
            Kind::Source => "src_",
            Kind::Refused => "log",
            Kind::Poller => "poll_",
            Kind::Place => "iter_",
        }
    }

    /// The contract has shorter ids for these: their hashes are cut to 8 bytes.
    const fn is_short(self) -> bool {
        matches!(self, Kind::Source | Kind::Refused)
    }
}

/// Turns keys into ids and back, under a secret of this deployment.
#[derive(Clone)]
pub struct IdCodec {
    hasher: SipHasher24,
}

impl IdCodec {
    pub fn new(secret: [u8; 16]) -> Self {
        Self { hasher: SipHasher24::new_with_key(&secret) }
    }

    pub fn encode(&self, kind: Kind, key: i64) -> String {
        let tag = self.tag(kind, key);
        let [k0, k1, k2, k3, k4, k5, k6, k7] = key.to_be_bytes();
        let mut words = [
            u32::from_be_bytes([k0, k1, k2, k3]),
            u32::from_be_bytes([k4, k5, k6, k7]),
            (tag >> 64) as u32,
            (tag >> 32) as u32,
            tag as u32,
        ];
        let (prefix, digits) = (kind.prefix(), digits_of(kind));
        let mut text = [0; PREFIX_MAX + DIGITS];
        text[..prefix.len()].copy_from_slice(prefix.as_bytes());
        if kind.is_short() {
            words = [0, words[0], words[1], words[3], words[4]];
        }
        write_digits(words, &mut text[prefix.len()..prefix.len() + digits]);
        str::from_utf8(&text[..prefix.len() + digits]).expect("prefix and digits are ASCII").to_owned()
    }

    /// The key in an id that this deployment made, and nothing for any other text. The application of the operational
    /// endpoints has no id, whoever works one out: it is nobody's.
    pub fn decode(&self, kind: Kind, id: &str) -> Option<i64> {
        let digits = id.strip_prefix(kind.prefix())?.as_bytes();
        let mut words = read_digits(digits, digits_of(kind))?;
        if kind.is_short() {
            let [0, first, second, third, fourth] = words else { return None };
            words = [first, second, 0, third, fourth];
        }
        let key = i64::try_from(u64::from(words[0]) << 32 | u64::from(words[1])).ok()?;
        let tag = u128::from(words[2]) << 64 | u128::from(words[3]) << 32 | u128::from(words[4]);
        // One comparison of whole words: how long it takes tells nothing about where they differ.
        let is_ours = self.tag(kind, key) ^ tag == 0;
        let is_hidden = kind == Kind::Application && key == OPERATIONAL.raw();
        (is_ours && !is_hidden).then_some(key)
    }

    pub fn id_of<K: PublicKey>(&self, key: K) -> String {
        self.encode(K::KIND, key.raw_key())
    }

    pub fn key_of<K: PublicKey>(&self, id: &str) -> Option<K> {
        self.decode(K::KIND, id).map(K::from_raw_key)
    }

    /// What this deployment is called where it must recognise itself, and nobody need know its secret.
    pub fn deployment(&self) -> String {
        let mut hasher = self.hasher;
        hasher.write(b"deployment");
        format!("{:016x}", hasher.finish128().as_u128() as u64)
    }

    /// What a path names: an id of ours, or a uid. Nothing if it can be neither.
    pub fn by<K: PublicKey>(&self, text: &str) -> Option<By<K>> {
        if text.starts_with(K::KIND.prefix()) {
            return self.key_of(text).map(By::Key);
        }
        is_name(text).then(|| By::Uid(text.to_owned()))
    }

    /// The lower 96 bits of the hash, or 64.
    fn tag(&self, kind: Kind, key: i64) -> u128 {
        let mut hasher = self.hasher;
        hasher.write(kind.prefix().as_bytes());
        hasher.write(&key.to_be_bytes());
        let bits = if kind.is_short() { 64 } else { 96 };
        hasher.finish128().as_u128() & (u128::MAX >> (128 - bits))
    }
}

/// A key that is shown to the outside as an id.
pub trait PublicKey: Copy {
    const KIND: Kind;
    fn raw_key(self) -> i64;
    fn from_raw_key(raw: i64) -> Self;
}

macro_rules! public_key {
    ($name:ident, $kind:expr) => {
        impl PublicKey for $name {
            const KIND: Kind = $kind;
            fn raw_key(self) -> i64 {
                self.raw()
            }
            fn from_raw_key(raw: i64) -> Self {
                Self::new(raw)
            }
        }
    };
}

public_key!(AppKey, Kind::Application);
public_key!(EndpointKey, Kind::Endpoint);
public_key!(MessageKey, Kind::Message);
public_key!(AttemptKey, Kind::Attempt);

macro_rules! stored_key {
    ($name:ident, $kind:expr) => {
        impl PublicKey for $name {
            const KIND: Kind = $kind;
            fn raw_key(self) -> i64 {
                self.0
            }
            fn from_raw_key(raw: i64) -> Self {
                Self(raw)
            }
        }
    };
}

stored_key!(TaskKey, Kind::Task);
stored_key!(ApiKeyKey, Kind::ApiKey);
stored_key!(AuditKey, Kind::AuditEntry);
stored_key!(RefusedKey, Kind::Refused);
stored_key!(PollerKey, Kind::Poller);

/// A place in an application's messages, which whoever reads on brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub MessageKey);

impl PublicKey for Place {
    const KIND: Kind = Kind::Place;
    fn raw_key(self) -> i64 {
        self.0.raw()
    }
    fn from_raw_key(raw: i64) -> Self {
        Self(MessageKey::new(raw))
    }
}

/// A source, which is known by its application's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceKey(pub AppKey);

impl PublicKey for SourceKey {
    const KIND: Kind = Kind::Source;
    fn raw_key(self) -> i64 {
        self.0.raw()
    }
    fn from_raw_key(raw: i64) -> Self {
        Self(AppKey::new(raw))
    }
}

/// What uids, event ids and event type names are made of.
pub fn is_name(text: &str) -> bool {
    (1..=NAME_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn write_digits(mut words: [u32; 5], out: &mut [u8]) {
    let mut end = out.len();
    while end > 0 {
        let mut rest = 0;
        for word in &mut words {
            let part = rest << 32 | u64::from(*word);
            *word = (part / CHUNK) as u32;
            rest = part % CHUNK;
        }
        for _ in 0..end.min(CHUNK_DIGITS) {
            end -= 1;
            out[end] = ALPHABET[(rest % 62) as usize];
            rest /= 62;
        }
    }
}

fn digits_of(kind: Kind) -> usize {
    if kind.is_short() { DIGITS_SHORT } else { DIGITS }
}

fn read_digits(text: &[u8], count: usize) -> Option<[u32; 5]> {
    if text.len() != count {
        return None;
    }
    let mut words = [0u32; 5];
    // As many digits at a time as one pass of multiplications can take in.
    let (first, others) = text.split_at(count % CHUNK_DIGITS);
    for chunk in std::iter::once(first).chain(others.chunks(CHUNK_DIGITS)) {
        let (mut carry, mut scale) = (0, 1);
        for &letter in chunk {
            carry = carry * 62 + u64::from(digit(letter)?);
            scale *= 62;
        }
        for word in words.iter_mut().rev() {
            let part = u64::from(*word) * scale + carry;
            *word = part as u32;
            carry = part >> 32;
        }
        if carry != 0 {
            return None;
        }
    }
    Some(words)
}

fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'A'..=b'Z' => Some(letter - b'A' + 10),
        b'a'..=b'z' => Some(letter - b'a' + 36),
        _ => None,
    }
}

/// In the order of ASCII, so that ids sort as their keys do.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// 62^27 is just above 2^160: 20 bytes.
const DIGITS: usize = 27;
/// 62^22 is above 2^128: 16 bytes.
pub const DIGITS_SHORT: usize = 22;
/// 62^5 is the greatest power of 62 below 2^32: five digits for one pass of divisions, or of multiplications.
const CHUNK: u64 = 62u64.pow(CHUNK_DIGITS as u32);
const CHUNK_DIGITS: usize = 5;
const PREFIX_MAX: usize = 6;
const NAME_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Kind; 11] = [
        Kind::Application,
        Kind::Endpoint,
        Kind::Message,
        Kind::Attempt,
        Kind::Task,
        Kind::ApiKey,
        Kind::AuditEntry,
        Kind::Source,
        Kind::Refused,
        Kind::Poller,
        Kind::Place,
    ];

    fn codec() -> IdCodec {
        IdCodec::new(*b"sixteen bytes!!!")
    }

    #[test]
    fn an_id_looks_as_the_contract_says() {
        for (kind, length) in KINDS.into_iter().zip([31, 30, 31, 33, 33, 31, 33, 26, 25]) {
            for key in [0, 1, i64::MAX] {
                let id = codec().encode(kind, key);
                assert_eq!(id.len(), length, "{id}");
                assert!(id[kind.prefix().len()..].bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            }
        }
    }

    #[test]
    fn what_is_no_id_of_ours_is_refused() {
        let ids = codec();
        let id = ids.encode(Kind::Message, 7);
        let long = format!("{id}0");
        let huge = format!("msg_{}", "z".repeat(10_000));
        for text in [
            "",
            "msg_",
            "app_",
            &id[4..],
            &id[..30],
            &long,
            &huge,
            "msg_zzzzzzzzzzzzzzzzzzzzzzzzzzz",
            "msg_000000000000000000000000000",
            "msg_../../../../../../etc/passwd",
            "msg_\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}0",
        ] {
            assert_eq!(ids.decode(Kind::Message, text), None, "{text:.40}");
        }
        assert_eq!(IdCodec::new([0; 16]).decode(Kind::Message, &id), None, "of another deployment");
    }

    #[test]
    fn a_path_names_an_id_or_a_uid() {
        let ids = codec();
        let key = AppKey::new(12);
        assert_eq!(ids.by(&ids.id_of(key)), Some(By::Key(key)));
        assert_eq!(ids.by::<AppKey>("customer-7"), Some(By::Uid("customer-7".into())));
        for text in ["", "app_customer", "a/b", "..%2f", "a b", "caf\u{e9}", &"x".repeat(257)] {
            assert_eq!(ids.by::<AppKey>(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_id_gives_its_key_back(key in 0..=i64::MAX) {
            for kind in KINDS {
                prop_assert_eq!(codec().decode(kind, &codec().encode(kind, key)), Some(key));
            }
        }

        #[test]
        fn ids_sort_as_their_keys_do(a in 0..=i64::MAX, b in 0..=i64::MAX) {
            let ids = codec();
            prop_assert_eq!(a.cmp(&b), ids.encode(Kind::Message, a).cmp(&ids.encode(Kind::Message, b)));
        }

        #[test]
        fn a_changed_letter_makes_it_no_id(key in 0..=i64::MAX, at in 0..DIGITS, letter in 0..62usize) {
            let ids = codec();
            let mut id = ids.encode(Kind::Endpoint, key).into_bytes();
            prop_assume!(id[3 + at] != ALPHABET[letter]);
            id[3 + at] = ALPHABET[letter];
            prop_assert_eq!(ids.decode(Kind::Endpoint, str::from_utf8(&id).unwrap()), None);
            let mut id = ids.encode(Kind::Source, key).into_bytes();
            let at = 4 + at % DIGITS_SHORT;
            prop_assume!(id[at] != ALPHABET[letter]);
            id[at] = ALPHABET[letter];
            prop_assert_eq!(ids.decode(Kind::Source, str::from_utf8(&id).unwrap()), None);
        }

        #[test]
        fn an_id_of_one_kind_is_none_of_another(key in 0..=i64::MAX) {
            let ids = codec();
            let id = ids.encode(Kind::Application, key).replace("app_", "msg_");
            prop_assert_eq!(ids.decode(Kind::Message, &id), None);
        }
    }
}
