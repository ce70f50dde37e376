//! Who is looking: a cookie that holds the token that its session was opened with, sealed.

use super::{Site, inside::Fault};
use crate::http::guesses::Peer;
use axum::{
    body::{Body, to_bytes},
    extract::{FromRequest, FromRequestParts, Request},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use hmac::{Hmac, Mac};
use http::{HeaderMap, HeaderValue, Method, header, request::Parts};
use postrider_engine::Timestamp;
use rand::TryRng;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use subtle::ConstantTimeEq;
use url::form_urlencoded;

/// Opens sessions and recognises them. Nothing of them is kept here: every node that has the deployment's keys can.
pub struct Sessions {
    cipher: XChaCha20Poly1305,
    clock: fn() -> Timestamp,
    /// The cookie goes over TLS only.
    is_secure: bool,
}

/// Someone who has signed in.
#[derive(Clone, Serialize, Deserialize)]
pub struct Session {
    token: String,
    /// What a form of ours brings, and a form of someone else's cannot know.
    csrf: String,
    until: i64,
    /// Where this request comes from.
    #[serde(skip)]
    peer: Option<Peer>,
}

impl Session {
    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn csrf(&self) -> &str {
        &self.csrf
    }

    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }
}

impl Sessions {
    /// `key`: a secret of the deployment, from which one for this purpose alone is made.
    pub fn new(key: &[u8], clock: fn() -> Timestamp, is_secure: bool) -> Self {
        let mut made = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
        made.update(b"sessions of the dashboard");
        Self { cipher: XChaCha20Poly1305::new(&made.finalize().into_bytes()), clock, is_secure }
    }

    /// The cookie for someone who has shown a token. `None`: the system gives no random numbers.
    pub fn open(&self, token: &str) -> Option<HeaderValue> {
        let mut chance = [0; 24 + 16];
        rand::rngs::SysRng.try_fill_bytes(&mut chance).ok()?;
        let (nonce, csrf) = chance.split_at(24);
        let until = (self.clock)().plus(SESSION).as_millis();
        let session = Session { token: token.to_owned(), csrf: BASE64_URL_SAFE_NO_PAD.encode(csrf), until, peer: None };
        let plain = serde_json::to_vec(&session).ok()?;
        let sealed =
            self.cipher.encrypt(&XNonce::try_from(nonce).ok()?, Payload { msg: &plain, aad: COOKIE.as_bytes() });
        let text = BASE64_URL_SAFE_NO_PAD.encode([nonce, &sealed.ok()?].concat());
        self.cookie(&text, SESSION)
    }

    /// The cookie that takes the other one away.
    pub fn close(&self) -> Option<HeaderValue> {
        self.cookie("", Duration::ZERO)
    }

    fn cookie(&self, value: &str, life: Duration) -> Option<HeaderValue> {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let text = format!("{COOKIE}={value}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}", life.as_secs());
        HeaderValue::from_str(&text).ok()
    }

    fn find(&self, headers: &HeaderMap) -> Option<Session> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut values = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, text) = values.find(|(name, _)| *name == COOKIE)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(24)?;
        let sealed = Payload { msg: sealed, aad: COOKIE.as_bytes() };
        let plain = self.cipher.decrypt(&XNonce::try_from(nonce).ok()?, sealed).ok()?;
        let session: Session = serde_json::from_slice(&plain).ok()?;
        ((self.clock)().as_millis() < session.until).then_some(session)
    }
}

impl FromRequestParts<Arc<Site>> for Session {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Fault> {
        let session = site.sessions.find(&parts.headers).ok_or(Fault::SignedOut)?;
        Ok(Self { peer: parts.extensions.get().copied(), ..session })
    }
}

/// What someone who has signed in sent with a form of ours.
pub struct Sent {
    pub session: Session,
    pub fields: Fields,
}

impl FromRequest<Arc<Site>> for Sent {
    type Rejection = Fault;

    async fn from_request(request: Request, site: &Arc<Site>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        let session = Session::from_request_parts(&mut parts, site).await?;
        let fields = Fields::read(&parts, body).await?;
        let given = fields.get("csrf").unwrap_or_default();
        if !bool::from(given.as_bytes().ct_eq(session.csrf.as_bytes())) {
            return Err(Fault::Forged);
        }
        Ok(Self { session, fields })
    }
}

/// What a form contains. Of a name that is there twice the last one counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    /// Browsers say where a request comes from; one that another page made is not looked at.
    pub async fn read(parts: &Parts, body: Body) -> Result<Self, Fault> {
        debug_assert_eq!(parts.method, Method::POST);
        match parts.headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
            None | Some(b"same-origin" | b"none") => {}
            Some(_) => return Err(Fault::Forged),
        }
        let bytes = to_bytes(body, FORM_MAX).await.map_err(|_| Fault::Forged)?;
        Ok(Self::of(&bytes))
    }

    /// Those of a query too.
    pub fn of(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).into_owned().collect())
    }

    /// `None` also where the field was left empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}

impl FromRequestParts<Arc<Site>> for Fields {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Site>) -> Result<Self, Fault> {
        Ok(Self::of(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

const COOKIE: &str = "postrider_session";
/// A working day.
const SESSION: Duration = Duration::from_hours(12);
const FORM_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    static NOW: AtomicI64 = AtomicI64::new(1_000);

    fn sessions(key: &[u8]) -> Sessions {
        Sessions::new(key, || Timestamp::from_millis(NOW.load(Relaxed)), true)
    }

    fn headers(cookie: &str) -> HeaderMap {
        [(header::COOKIE, HeaderValue::from_str(cookie).unwrap())].into_iter().collect()
    }

    #[test]
    fn a_session_is_recognised_by_whoever_has_the_key_and_ends_at_its_time() {
        let cookie = sessions(b"key").open("a token").unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.ends_with("; Secure"));
        assert!(!cookie.contains("a token"));
        let given = format!("other=1; {}", cookie.split_once(';').unwrap().0);
        let found = sessions(b"key").find(&headers(&given)).unwrap();
        assert_eq!((found.token(), found.csrf().len()), ("a token", 22));
        assert!(sessions(b"another key").find(&headers(&given)).is_none());
        assert!(sessions(b"key").find(&headers(&given.replace("session=", "session=A"))).is_none());
        for nonsense in ["", "postrider_session", "postrider_session=", "postrider_session=AAAA"] {
            assert!(sessions(b"key").find(&headers(nonsense)).is_none(), "{nonsense}");
        }
        NOW.store(1_000 + i64::try_from(SESSION.as_millis()).unwrap(), Relaxed);
        assert!(sessions(b"key").find(&headers(&given)).is_none());
        NOW.store(1_000, Relaxed);
    }

    #[test]
    fn an_empty_field_is_none() {
        let fields = Fields::of(b"a=1&b=&c=+&d=x%26y&a=2");
        assert_eq!(
            [fields.get("a"), fields.get("b"), fields.get("c"), fields.get("d")],
            [Some("2"), None, None, Some("x&y")]
        );
    }
}
