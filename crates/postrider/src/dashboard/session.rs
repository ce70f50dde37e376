//! Who is looking: a cookie that holds the token that its session was opened with, sealed.

use super::{Site, inside::Fault, who::Who};
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
use std::{sync::Arc, time::Duration};
use subtle::ConstantTimeEq;
use url::form_urlencoded;

/// Opens sessions and recognises them. Nothing of them is kept here: every node that has the deployment's keys can.
pub struct Sessions {
    cipher: XChaCha20Poly1305,
    clock: fn() -> Timestamp,
    /// The cookie goes over TLS only.
    is_secure: bool,
    /// Those of one application may be in a frame of another site. Their cookie has a name of its own then: it is kept beside
    /// the other kind, and neither may stand in the other's way.
    in_frames: bool,
}

/// Someone who has signed in.
#[derive(Clone, Serialize, Deserialize)]
pub struct Session {
    token: String,
    /// What a form of ours brings, and a form of someone else's cannot know.
    csrf: String,
    until: i64,
    /// The application that the token is for; `None`: for all.
    app: Option<String>,
    who: Who,
    /// Where this request comes from.
    #[serde(skip)]
    peer: Option<Peer>,
    /// By what name it has reached us.
    #[serde(skip)]
    host: Option<String>,
    /// The first part of the path that it asks for.
    #[serde(skip)]
    here: String,
}

/// Whom a session is opened for.
pub struct Newcomer {
    /// The application that the token is for; `None`: for all.
    pub app: Option<String>,
    pub who: Who,
    /// When the token does.
    pub ends_at: Option<Timestamp>,
}

impl Session {
    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn csrf(&self) -> &str {
        &self.csrf
    }

    pub fn who(&self) -> &Who {
        &self.who
    }

    pub fn until(&self) -> Timestamp {
        Timestamp::from_millis(self.until)
    }

    pub fn sees_all(&self) -> bool {
        self.app.is_none()
    }

    pub fn here(&self) -> &str {
        &self.here
    }

    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }
}

impl Sessions {
    /// `key`: a secret of the deployment, from which one for this purpose alone is made.
    pub fn new(key: &[u8], clock: fn() -> Timestamp, is_secure: bool) -> Self {
        let mut made = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
        made.update(b"sessions of the dashboard");
        Self { cipher: XChaCha20Poly1305::new(&made.finalize().into_bytes()), clock, is_secure, in_frames: false }
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Whether people come by TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Lets sessions for one application be kept in frames.
    pub fn in_frames(self, in_frames: bool) -> Self {
        Self { in_frames: in_frames && self.is_secure, ..self }
    }

    /// The cookies for someone who has shown a token, for one application or for all: that of the session, and where there are
    /// two kinds, one that ends a session of the other kind. `None`: there is none that a browser would keep, or the system
    /// gives no random numbers.
    pub fn open(&self, token: &str, newcomer: Newcomer) -> Option<Vec<HeaderValue>> {
        let mut chance = [0; 24 + 16];
        rand::rngs::SysRng.try_fill_bytes(&mut chance).ok()?;
        let (nonce, csrf) = chance.split_at(24);
        let Newcomer { app, who, ends_at } = newcomer;
        let until = (self.clock)().plus(SESSION).as_millis();
        let until = ends_at.map_or(until, |end| until.min(end.as_millis()));
        let kind = if app.is_some() && self.in_frames { Kind::Framed } else { Kind::Plain };
        let session = Session {
            token: token.to_owned(),
            csrf: BASE64_URL_SAFE_NO_PAD.encode(csrf),
            until,
            app,
            who,
            peer: None,
            host: None,
            here: String::new(),
        };
        let plain = serde_json::to_vec(&session).ok()?;
        let sealed =
            self.cipher.encrypt(&XNonce::try_from(nonce).ok()?, Payload { msg: &plain, aad: COOKIE.as_bytes() });
        let text = BASE64_URL_SAFE_NO_PAD.encode([nonce, &sealed.ok()?].concat());
        if self.name(kind).len() + text.len() > COOKIE_MAX {
            return None;
        }
        let cookies = self.kinds().iter().map(|each| match *each == kind {
            true => self.cookie(kind, &text, SESSION),
            false => self.cookie(*each, "", Duration::ZERO),
        });
        cookies.collect()
    }

    /// The cookies that take away whatever session there is. In a frame of another site browsers leave the plain one alone.
    pub fn close(&self) -> Vec<HeaderValue> {
        self.kinds().iter().filter_map(|kind| self.cookie(*kind, "", Duration::ZERO)).collect()
    }

    /// Those that there may be. Of two sessions the one in a frame counts, which may do less.
    fn kinds(&self) -> &'static [Kind] {
        if self.in_frames { &[Kind::Framed, Kind::Plain] } else { &[Kind::Plain] }
    }

    /// In a frame of another site, browsers keep only a cookie that says it may be there, and keep it for that site alone.
    fn cookie(&self, kind: Kind, value: &str, life: Duration) -> Option<HeaderValue> {
        let kept = match (kind, self.is_secure) {
            (Kind::Framed, _) => "SameSite=None; Secure; Partitioned",
            (Kind::Plain, true) => "SameSite=Strict; Secure",
            (Kind::Plain, false) => "SameSite=Strict",
        };
        let text = format!("{}={value}; Path=/; Max-Age={}; HttpOnly; {kept}", self.name(kind), life.as_secs());
        HeaderValue::from_str(&text).ok()
    }

    /// With the prefix, browsers take it from nobody but this host, and by TLS only.
    fn name(&self, kind: Kind) -> &'static str {
        match (kind, self.is_secure) {
            (Kind::Framed, _) => "__Host-postrider_portal",
            (Kind::Plain, true) => "__Host-postrider_session",
            (Kind::Plain, false) => COOKIE,
        }
    }

    pub fn find(&self, headers: &HeaderMap) -> Option<Session> {
        self.kinds().iter().find_map(|kind| {
            let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
            let mut values = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
            let (_, text) = values.find(|(name, _)| *name == self.name(*kind))?;
            self.unseal(text)
        })
    }

    fn unseal(&self, text: &str) -> Option<Session> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(24)?;
        let sealed = Payload { msg: sealed, aad: COOKIE.as_bytes() };
        let plain = self.cipher.decrypt(&XNonce::try_from(nonce).ok()?, sealed).ok()?;
        let session: Session = serde_json::from_slice(&plain).ok()?;
        ((self.clock)().as_millis() < session.until).then_some(session)
    }
}

/// Where a session's cookie is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// By the site whose frame it is in.
    Framed,
}

impl FromRequestParts<Arc<Site>> for Session {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Fault> {
        let session = site.sessions.find(&parts.headers).ok_or(Fault::SignedOut)?;
        let here = parts.uri.path().split('/').nth(1).unwrap_or_default().to_owned();
        // HTTP/2 says it in the address.
        let host = match parts.headers.get(header::HOST) {
            Some(host) => host.to_str().ok().map(str::to_owned),
            None => parts.uri.authority().map(ToString::to_string),
        };
        Ok(Self { peer: parts.extensions.get().copied(), host, here, ..session })
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

/// What a form contains. Of a name that is there twice the last one counts, unless all are asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// What another page made a browser send is not looked at.
    pub async fn read(parts: &Parts, body: Body) -> Result<Self, Fault> {
        debug_assert_eq!(parts.method, Method::POST);
        if !is_from_here(&parts.headers) {
            return Err(Fault::Forged);
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
        let (_, value) = self.0.iter().rev().find(|(given, _)| given == name)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    /// Everything that was sent under a name.
    pub fn all(&self, name: &'static str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.trim())
    }
}

/// Browsers say whether a page of the same origin sent a form; by plain HTTP they only say of which origin it was. What says
/// neither is no browser.
fn is_from_here(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, b"same-origin" | b"none"),
        (None, Some(origin)) => {
            let here = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
            here.is_some() && here == text("host")
        }
        (None, None) => true,
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
/// Browsers keep no longer ones, name and value together.
const COOKIE_MAX: usize = 4096;
const FORM_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::{super::who::May, *};
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    static NOW: AtomicI64 = AtomicI64::new(1_000);

    fn sessions(key: &[u8]) -> Sessions {
        Sessions::new(key, || Timestamp::from_millis(NOW.load(Relaxed)), true)
    }

    fn newcomer(app: Option<&str>) -> Newcomer {
        let who = Who { name: "someone".to_owned(), may: May::default() };
        Newcomer { app: app.map(str::to_owned), who, ends_at: None }
    }

    fn headers(cookie: &str) -> HeaderMap {
        [(header::COOKIE, HeaderValue::from_str(cookie).unwrap())].into_iter().collect()
    }

    #[test]
    fn a_session_is_recognised_by_whoever_has_the_key_and_ends_at_its_time() {
        let cookies = sessions(b"key").open("a token", newcomer(Some("app_1"))).unwrap();
        let [cookie] = &cookies[..] else { panic!("one kind, one cookie") };
        let cookie = cookie.to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.ends_with("; Secure"));
        assert!(!cookie.contains("a token"));
        let given = format!("other=1; {}", cookie.split_once(';').unwrap().0);
        let found = sessions(b"key").find(&headers(&given)).unwrap();
        assert_eq!((found.token(), found.csrf().len(), found.sees_all()), ("a token", 22, false));
        assert!(sessions(b"key").open(&"x".repeat(3_500), newcomer(None)).is_none(), "no browser would keep it");
        assert!(sessions(b"another key").find(&headers(&given)).is_none());
        assert!(sessions(b"key").find(&headers(&given.replace("session=", "session=A"))).is_none());
        for nonsense in ["", "__Host-postrider_session", "__Host-postrider_session=", "__Host-postrider_session=AAAA"] {
            assert!(sessions(b"key").find(&headers(nonsense)).is_none(), "{nonsense}");
        }
        NOW.store(1_000 + i64::try_from(SESSION.as_millis()).unwrap(), Relaxed);
        assert!(sessions(b"key").find(&headers(&given)).is_none());
        NOW.store(1_000, Relaxed);
    }

    #[test]
    fn a_session_does_not_outlast_its_token() {
        let ends_at = Some(Timestamp::from_millis(i64::MAX));
        let long = sessions(b"key").open("a token", Newcomer { ends_at, ..newcomer(None) }).unwrap();
        let ends_at = Some(Timestamp::from_millis(2_000));
        let short = sessions(b"key").open("a token", Newcomer { ends_at, ..newcomer(None) }).unwrap();
        let until = |cookies: Vec<HeaderValue>| {
            let given = cookies[0].to_str().unwrap().split_once(';').unwrap().0.to_owned();
            sessions(b"key").find(&headers(&given)).unwrap().until()
        };
        assert_eq!(until(short), Timestamp::from_millis(2_000));
        assert!(until(long) < Timestamp::from_millis(i64::MAX));
    }

    #[test]
    fn where_there_are_frames_one_session_takes_the_place_of_the_other() {
        let sessions = sessions(b"key").in_frames(true);
        let texts = |cookies: Vec<HeaderValue>| cookies.iter().map(|one| one.to_str().unwrap().to_owned()).collect();
        let framed: Vec<String> = texts(sessions.open("portal", newcomer(Some("app_1"))).unwrap());
        let plain: Vec<String> = texts(sessions.open("operator", newcomer(None)).unwrap());
        let is_end = |text: &String| text.contains("=; ") && text.contains("Max-Age=0");
        assert!(framed[0].starts_with("__Host-postrider_portal=") && framed[0].ends_with("Partitioned"), "{framed:?}");
        assert!(!is_end(&framed[0]) && framed[1].starts_with("__Host-postrider_session=;") && is_end(&framed[1]));
        assert!(plain[0].starts_with("__Host-postrider_portal=;") && plain[0].ends_with("Partitioned"), "{plain:?}");
        assert!(is_end(&plain[0]) && !is_end(&plain[1]) && plain[1].contains("SameSite=Strict; Secure"));
        let left: Vec<String> = texts(sessions.close());
        assert!(left.len() == 2 && left.iter().all(is_end), "{left:?}");

        let pair = |text: &str| text.split_once(';').unwrap().0.to_owned();
        let both = format!("{}; {}", pair(&plain[1]), pair(&framed[0]));
        assert_eq!(sessions.find(&headers(&both)).unwrap().token(), "portal");
        assert_eq!(sessions.find(&headers(&pair(&plain[1]))).unwrap().token(), "operator");
        let broken = format!("{}; __Host-postrider_portal=AAAA", pair(&plain[1]));
        assert_eq!(sessions.find(&headers(&broken)).unwrap().token(), "operator");
    }

    #[test]
    fn a_form_of_another_page_is_known_by_what_browsers_say() {
        for (headers, is_ours) in [
            (&[("sec-fetch-site", "same-origin"), ("origin", "null")][..], true),
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://here:1")], false),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("origin", "http://here:1")], true),
            (&[("origin", "http://there")], false),
            (&[("origin", "null")], false),
            (&[], true),
        ] {
            let mut given: HeaderMap = headers
                .iter()
                .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
                .collect();
            given.insert(header::HOST, HeaderValue::from_static("here:1"));
            assert_eq!(is_from_here(&given), is_ours, "{headers:?}");
        }
    }

    #[test]
    fn an_empty_field_is_none() {
        let fields = Fields::of(b"a=1&b=&c=+&d=x%26y&a=2");
        assert_eq!(
            [fields.get("a"), fields.get("b"), fields.get("c"), fields.get("d")],
            [Some("2"), None, None, Some("x&y")]
        );
        assert_eq!(fields.all("a").collect::<Vec<_>>(), ["1", "2"]);
    }
}
