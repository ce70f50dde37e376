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
use serde::Serialize;
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
        let usable = (1..=LENGTH_MAX).contains(&text.len())
            && text.as_bytes().iter().all(u8::is_ascii_graphic)
            && given.next().is_none();
        if !usable {
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
        let subject = match principal {
            Principal::Environment => 0,
            Principal::Application { app, .. } => app.raw(),
        };
        let mut hash = Sha256::new();
        hash.update(subject.to_be_bytes());
        hash.update(text.as_bytes());
        // No key holds a line feed, so that it cannot reach into what follows.
        hash.update(b"\n");
        hash.update(uri.path());
        hash.update(b"?");
        hash.update(uri.query().unwrap_or_default());
        let chosen = !text.as_bytes().starts_with(b"auto_");
        // Under a key that a client made up for one call there is only one body, so none to compare.
        let request = if chosen { truncated(Sha256::digest(body)) } else { [0; 16] };
        Some(Idempotency { key: truncated(hash.finalize()), request, chosen })
    }

    pub fn remember(&self, principal: &Principal, body: &[u8], answer: &Answer) -> Option<Remember> {
        self.of(principal, body).map(|idempotency| Remember { idempotency, answer: answer.clone() })
    }
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
const LENGTH_MAX: usize = 256;

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
    fn only_a_key_of_the_callers_own_binds_the_body() {
        assert!(of("k", "/", &Principal::Environment, b"x").chosen);
        let (one, two) =
            (of("auto_1", "/", &Principal::Environment, b"x"), of("auto_1", "/", &Principal::Environment, b"y"));
        assert!(!one.chosen);
        assert_eq!(one, two);
    }
}
