//! Recognises a request that is made a second time.
//!
//! Every official client sends a key with each POST and repeats the POST on a 5xx. So the key goes into
//! the same commit as the change, and the answer with it.

use super::{Api, error::Error};
use crate::tokens::Principal;
use axum::{
    body::Body,
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header, request::Parts};
use postrider_store::{Answer, Idempotency, PutError, Remember};
use serde::{Deserialize, Deserializer, Serialize, de};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The `idempotency-key` of a request, if it has one.
pub struct IdempotencyKey(Option<Given>);

struct Given {
    text: HeaderValue,
    uri: Uri,
}

impl FromRequestParts<Arc<Api>> for IdempotencyKey {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Error> {
        Self::read(&parts.headers, &parts.uri)
    }
}

impl IdempotencyKey {
    fn read(headers: &HeaderMap, uri: &Uri) -> Result<Self, Error> {
        let mut given = headers.get_all(&IDEMPOTENCY_KEY).iter();
        let Some(text) = given.next() else { return Ok(Self(None)) };
        if !is_key(text.as_bytes()) || given.next().is_some() {
            return Err(Error::invalid_header(
                IDEMPOTENCY_KEY.as_str(),
                format!("must be one value of 1 to {LENGTH_MAX} visible ASCII characters"),
            ));
        }
        Ok(Self(Some(Given { text: text.clone(), uri: uri.clone() })))
    }

    /// What the store keeps of it, for a request with this body.
    pub fn of(&self, principal: &Principal, body: &[u8]) -> Option<Idempotency> {
        let Given { text, uri } = self.0.as_ref()?;
        Some(identity(principal, text.as_bytes(), uri, b"", body))
    }

    pub fn remember(&self, principal: &Principal, body: &[u8], answer: &Answer) -> Option<Remember> {
        self.of(principal, body).map(|idempotency| Remember { idempotency, answer: answer.clone() })
    }
}

/// `part`: which part of the request it is about.
fn identity(principal: &Principal, text: &[u8], uri: &Uri, part: &[u8], body: &[u8]) -> Idempotency {
    let subject = match principal {
        Principal::Environment => 0,
        Principal::Application { app, .. } => app.raw(),
    };
    let mut hash = Sha256::new();
    hash.update(subject.to_be_bytes());
    hash.update(text);
    // No key holds a line feed, so that it cannot reach into what follows; nor does a URI.
    hash.update(b"\n");
    hash.update(uri.path());
    hash.update(b"?");
    hash.update(uri.query().unwrap_or_default());
    hash.update(part);
    let chosen = !text.starts_with(b"auto_");
    // Under a key that a client made up for one call there is only one body, so none to compare.
    let request = if chosen { truncated(Sha256::digest(body)) } else { [0; 16] };
    Idempotency { key: truncated(hash.finalize()), request, chosen }
}

/// By what each part of a request is recognised: by a key of its own, or else by the request's and its place in it.
pub struct PartKeys {
    whole: Option<HeaderValue>,
    uri: Uri,
}

impl FromRequestParts<Arc<Api>> for PartKeys {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Api>) -> Result<Self, Error> {
        let whole = IdempotencyKey::read(&parts.headers, &parts.uri)?.0.map(|given| given.text);
        Ok(Self { whole, uri: parts.uri.clone() })
    }
}

impl PartKeys {
    pub fn of(&self, principal: &Principal, own: Option<&KeyText>, place: usize, body: &[u8]) -> Option<Idempotency> {
        if let Some(KeyText(own)) = own {
            return Some(identity(principal, own.as_bytes(), &self.uri, b"", body));
        }
        let whole = self.whole.as_ref()?;
        Some(identity(principal, whole.as_bytes(), &self.uri, format!("\n{place}").as_bytes(), body))
    }
}

/// The idempotency key of a part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyText(String);

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if is_key(text.as_bytes()) {
            Ok(Self(text))
        } else {
            Err(de::Error::custom(format_args!("must be 1 to {LENGTH_MAX} visible ASCII characters")))
        }
    }
}

fn is_key(text: &[u8]) -> bool {
    (1..=LENGTH_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic)
}

/// An answer made before the write that it reports, so that both can be stored together.
pub fn answer(status: StatusCode, body: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(body).expect("what we answer has string keys only");
    Answer { status: status.as_u16(), body: Bytes::from(body) }
}

/// An answer that nobody needs to remember, and of which it is known about how long it is.
pub fn json_of_length(status: StatusCode, body: &impl Serialize, length: usize) -> Response {
    let mut text = Vec::with_capacity(length);
    serde_json::to_writer(&mut text, body).expect("what we answer has string keys only");
    response(Answer { status: status.as_u16(), body: Bytes::from(text) })
}

/// The prepared answer if the write went through, or the one that its first time got.
pub fn conclude(written: Result<(), PutError>, prepared: Answer) -> Result<Response, Error> {
    match written {
        Ok(()) => Ok(response(prepared)),
        Err(PutError::Repeated(before)) => Ok(response(before)),
        Err(fault) => Err(fault.into()),
    }
}

pub fn response(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    if answer.body.is_empty() {
        return status.into_response();
    }
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer that nobody needs to remember.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    response(answer(status, body))
}

fn truncated(hash: impl AsRef<[u8]>) -> [u8; 16] {
    *hash.as_ref().first_chunk().expect("SHA-256 gives 32 bytes")
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub const LENGTH_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Access;
    use postrider_engine::AppKey;

    fn key(text: &str, uri: &str) -> Result<IdempotencyKey, Error> {
        let headers = HeaderMap::from_iter([(IDEMPOTENCY_KEY, HeaderValue::from_bytes(text.as_bytes()).unwrap())]);
        IdempotencyKey::read(&headers, &uri.parse().unwrap())
    }

    fn of(text: &str, uri: &str, principal: &Principal, body: &[u8]) -> Idempotency {
        key(text, uri).unwrap().of(principal, body).unwrap()
    }

    #[test]
    fn a_key_is_short_and_visible() {
        assert!(key(&"k".repeat(256), "/").is_ok());
        for text in ["", "a b", "a\tb", "\u{e9}", &"k".repeat(257), &"k".repeat(10_000)] {
            assert!(matches!(key(text, "/"), Err(Error::Invalid(_))), "{text:.20}");
        }
        assert_eq!(
            IdempotencyKey::read(&HeaderMap::new(), &"/".parse().unwrap()).unwrap().of(&Principal::Environment, b""),
            None
        );
    }

    #[test]
    fn credential_key_and_uri_make_the_identity() {
        let everyone = Principal::Environment;
        let someone = Principal::Application {
            app: AppKey::new(4),
            access: Access { capabilities: vec![], feature_flags: None, poller: None },
        };
        let first = of("k", "/a?b=1", &everyone, b"x");
        assert_eq!(first, of("k", "/a?b=1", &everyone, b"x"));
        for other in
            [of("l", "/a?b=1", &everyone, b"x"), of("k", "/a?b=2", &everyone, b"x"), of("k", "/a?b=1", &someone, b"x")]
        {
            assert_ne!(first.key, other.key);
        }
        assert_ne!(first.request, of("k", "/a?b=1", &everyone, b"y").request);
    }

    #[test]
    fn each_part_of_a_request_has_an_identity_of_its_own() {
        let keys = |whole: Option<&'static str>, uri: &str| PartKeys {
            whole: whole.map(HeaderValue::from_static),
            uri: uri.parse().unwrap(),
        };
        let (everyone, own) = (Principal::Environment, KeyText("k".to_owned()));
        let part = |keys: &PartKeys, own, place| keys.of(&everyone, own, place, b"x").unwrap();
        let whole = keys(Some("k"), "/a?b=1");
        assert_eq!(part(&whole, None, 3), part(&keys(Some("k"), "/a?b=1"), None, 3));
        let others = [
            part(&whole, None, 4),
            part(&whole, None, 33),
            part(&whole, Some(&own), 3),
            part(&keys(Some("l"), "/a?b=1"), None, 3),
            part(&keys(Some("k"), "/a?b=2"), None, 3),
            of("k", "/c?b=1", &everyone, b"x"),
        ];
        for (n, other) in others.iter().enumerate() {
            assert_ne!(other.key, part(&whole, None, 3).key, "{n}");
        }
        // A key of its own goes with the message, wherever it stands.
        assert_eq!(part(&whole, Some(&own), 3), part(&keys(None, "/a?b=1"), Some(&own), 9));
        assert_eq!(keys(None, "/").of(&everyone, None, 0, b"x"), None);
        assert_ne!(part(&whole, None, 3).request, whole.of(&everyone, None, 3, b"y").unwrap().request);
    }

    #[test]
    fn only_a_key_of_the_callers_own_binds_the_body() {
        assert!(of("k", "/", &Principal::Environment, b"x").chosen);
        let (one, two) =
            (of("auto_1", "/", &Principal::Environment, b"x"), of("auto_1", "/", &Principal::Environment, b"y"));
        assert!(!one.chosen);
        assert_eq!(one, two);
    }
}
