//! The headers of an attempt that are kept with it, so that a person sees what the receiver saw and what it said.
//!
//! More people see attempts than credentials. Of a request the values that we made ourselves are kept, and of what its owner
//! set the names; of an answer the values of headers on a list, and the names of all others. See decision 17.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

/// Of which attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepHeaders {
    None,
    #[default]
    Failed,
    All,
}

impl KeepHeaders {
    pub fn wants(self, is_delivered: bool) -> bool {
        match self {
            Self::None => false,
            Self::Failed => !is_delivered,
            Self::All => true,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptHeaders {
    /// Name and value, in order.
    pub sent: Vec<(String, String)>,
    /// The names of those that were sent and whose values are not kept.
    pub hidden: Vec<String>,
    /// `None`: no answer came. A value that is not kept is `HIDDEN`.
    pub answered: Option<Vec<(String, String)>>,
}

impl KeptHeaders {
    /// `own`: those that are not of our making. `answered`: already without our own credentials.
    pub fn of(sent: &HeaderMap, own: &HeaderMap, answered: Option<&HeaderMap>) -> Self {
        let mut kept = Self::default();
        for name in sent.keys() {
            if own.contains_key(name) {
                kept.hidden.push(name.to_string());
                continue;
            }
            for value in sent.get_all(name) {
                match value.is_sensitive() {
                    true => kept.hidden.push(name.to_string()),
                    false => kept.sent.push((name.to_string(), text(value))),
                }
            }
        }
        kept.answered = answered.map(|answered| {
            let shown = |(name, value): (&HeaderName, &HeaderValue)| {
                let value = if HARMLESS.contains(&name.as_str()) { text(value) } else { HIDDEN.to_owned() };
                (name.as_str().chars().take(NAME_MAX).collect(), value)
            };
            let mut room = ANSWERED_MAX;
            let fits = |(name, value): &(String, String)| {
                let left = room.checked_sub(name.len() + value.len());
                room = left.unwrap_or(0);
                left.is_some()
            };
            answered.iter().map(shown).take_while(fits).collect()
        });
        kept.sent.sort();
        kept.hidden.sort();
        kept
    }

    pub fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// `None`: none were kept.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

fn text(value: &HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

/// In the place of a value that is not kept.
pub const HIDDEN: &str = "***";

/// Of a receiver's headers. What is not here may be somebody's cookie.
const HARMLESS: [&str; 35] = [
    "age",
    "allow",
    "cache-control",
    "cf-cache-status",
    "cf-ray",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "date",
    "etag",
    "expires",
    "keep-alive",
    "last-modified",
    "ratelimit-limit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "retry-after",
    "server",
    "server-timing",
    "strict-transport-security",
    "traceparent",
    "transfer-encoding",
    "vary",
    "via",
    "www-authenticate",
    "x-amzn-requestid",
    "x-correlation-id",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-request-id",
    "x-runtime",
];

/// In bytes, of names and values.
const ANSWERED_MAX: usize = 4 * 1_024;
const NAME_MAX: usize = 100;
const VALUE_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn what_owners_and_receivers_set_is_named_and_not_told() {
        let own = headers(&[("x-shop", "mine"), ("authorization", "Bearer of-the-owner")]);
        let mut sent =
            headers(&[("webhook-id", "msg_1"), ("x-shop", "mine"), ("authorization", "Bearer of-the-owner")]);
        let mut bearer = HeaderValue::from_static("of-oauth");
        bearer.set_sensitive(true);
        sent.insert("x-bearer", bearer);
        let answered = headers(&[("content-type", "text/plain"), ("set-cookie", "session=1"), ("x-own", "secret")]);
        let kept = KeptHeaders::of(&sent, &own, Some(&answered));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(kept.sent, [pair("webhook-id", "msg_1")]);
        assert_eq!(kept.hidden, ["authorization", "x-bearer", "x-shop"]);
        let expected = [pair("content-type", "text/plain"), pair("set-cookie", HIDDEN), pair("x-own", HIDDEN)];
        assert_eq!(kept.answered, Some(expected.to_vec()));
        assert_eq!(KeptHeaders::read(&kept.to_bytes()), Some(kept));
        assert_eq!(KeptHeaders::read(b""), None);
        assert_eq!(KeptHeaders::of(&sent, &own, None).answered, None);
    }

    #[test]
    fn a_receiver_cannot_make_us_keep_much() {
        let mut answered = HeaderMap::new();
        for number in 0..1_000 {
            let name = HeaderName::try_from(format!("{}{number}", "n".repeat(1_000))).unwrap();
            answered.insert(name, HeaderValue::from_static("x"));
        }
        let names = KeptHeaders::of(&HeaderMap::new(), &HeaderMap::new(), Some(&answered));
        let mut answered = HeaderMap::new();
        for _ in 0..1_000 {
            answered.append("via", HeaderValue::from_bytes(&[0xff; 1_000]).unwrap());
        }
        let values = KeptHeaders::of(&HeaderMap::new(), &HeaderMap::new(), Some(&answered));
        for kept in [names, values] {
            assert!(kept.to_bytes().len() < 6 * 1_024, "{}", kept.to_bytes().len());
            assert!(kept.answered.is_some_and(|some| some.len() > 2));
        }
        let long = headers(&[("server", "x")]).into_iter().map(|_| HeaderValue::try_from("ü".repeat(10_000)).unwrap());
        assert_eq!(text(&long.last().unwrap()).chars().count(), VALUE_MAX + 1);
    }

    #[test]
    fn they_are_kept_of_failed_attempts_unless_it_is_said_otherwise() {
        for (keep, failed, delivered) in
            [(KeepHeaders::None, false, false), (KeepHeaders::default(), true, false), (KeepHeaders::All, true, true)]
        {
            assert_eq!((keep.wants(false), keep.wants(true)), (failed, delivered), "{keep:?}");
        }
    }
}
