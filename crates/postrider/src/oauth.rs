//! Access tokens for endpoints that want one: the client credentials grant of OAuth 2.0 (RFC 6749, section 4.4).
//!
//! A token is asked for on the same guarded way out as a delivery, by one request at a time for each endpoint, and kept until
//! shortly before it ends. Whoever cannot have one does not call the endpoint: what is sent without is refused there at best,
//! and taken from anybody at worst. What the token's issuer answers is shown to no one; it may repeat our secret.

use crate::transport::{Exchange, Post, Request, UrlError, url::EndpointUrl};
use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use postrider_engine::{EndpointKey, Fault, Outcome, Timestamp, outcome::Timeouts};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout_at};
use url::form_urlencoded;
use zeroize::Zeroizing;

/// As it is sealed. No `Debug`: most of it is secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct OauthSettings {
    pub token_url: String,
    pub client_id: String,
    pub proof: Proof,
    pub scopes: Vec<String>,
    /// Sent along with each request for a token.
    pub extra_params: BTreeMap<String, String>,
    pub extra_headers: BTreeMap<String, String>,
}

/// How the issuer of tokens is shown who we are.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub enum Proof {
    /// In the header, as RFC 6749 prefers it.
    Basic { secret: Zeroizing<String> },
    /// Among the parameters.
    Post { secret: Zeroizing<String> },
    /// A claim that is signed with a private key (RFC 7523), with RS256.
    Jwt { key: JwtKey, key_id: Option<String>, lifetime: Duration },
}

/// A private RSA key, in PEM or in DER.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct JwtKey(Zeroizing<Vec<u8>>);

impl JwtKey {
    /// `None`: nothing can be signed with it.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        let key = Self(Zeroizing::new(bytes));
        encode(&Header::new(Algorithm::RS256), &serde_json::json!({}), &key.read()?).ok()?;
        Some(key)
    }

    fn read(&self) -> Option<EncodingKey> {
        if self.0.starts_with(b"-----") {
            return EncodingKey::from_rsa_pem(&self.0).ok();
        }
        Some(EncodingKey::from_rsa_der(&self.0))
    }
}

/// Settings, ready to be used.
pub struct Oauth {
    settings: OauthSettings,
    url: Result<EndpointUrl, UrlError>,
    headers: HeaderMap,
    /// Tokens that were had with other settings are not for these.
    mark: [u8; 32],
}

/// What an endpoint is called with.
pub struct Bearer {
    /// `Bearer ...`
    pub header: HeaderValue,
    /// It was had for this very attempt. If it is refused, another would be too.
    pub is_new: bool,
}

/// The tokens that there are.
#[derive(Default)]
pub struct Bearers {
    slots: Mutex<HashMap<SlotKey, Arc<Slot>>>,
}

/// An endpoint, and the mark of its settings.
type SlotKey = (EndpointKey, [u8; 32]);

#[derive(Default)]
struct Slot {
    state: tokio::sync::Mutex<State>,
    /// Counts what was asked for, so that who waited meanwhile knows that it was tried.
    rounds: AtomicU64,
}

#[derive(Default)]
struct State {
    token: Option<Kept>,
    failed: Option<NoToken>,
}

struct Kept {
    header: HeaderValue,
    until: Instant,
}

/// Why there is none, in words for the owner of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoToken {
    fault: Fault,
    detail: String,
}

/// What a request for a token needs from outside.
pub struct Means<'a> {
    pub post: &'a dyn Post,
    pub timeouts: Timeouts,
    pub now: Timestamp,
    /// Drawn at random, and used once.
    pub nonce: [u8; 16],
}

impl Oauth {
    pub fn new(settings: OauthSettings, url: Result<EndpointUrl, UrlError>) -> Self {
        let text = Zeroizing::new(serde_json::to_vec(&settings).expect("strings serialise"));
        let headers = settings.extra_headers.iter().filter_map(|(name, value)| {
            let mut value = HeaderValue::try_from(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name).ok()?, value))
        });
        Self { headers: headers.collect(), url, mark: Sha256::digest(&*text).into(), settings }
    }

    fn request(&self, now: Timestamp, nonce: [u8; 16]) -> Option<(HeaderMap, Bytes)> {
        let OauthSettings { client_id, proof, scopes, extra_params, token_url, .. } = &self.settings;
        let mut headers = self.headers.clone();
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if !scopes.is_empty() {
            form.append_pair("scope", &scopes.join(" "));
        }
        match proof {
            Proof::Basic { secret } => {
                let both = Zeroizing::new(format!("{}:{}", encoded(client_id), encoded(secret)));
                let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(&*both))).ok()?;
                value.set_sensitive(true);
                headers.insert(header::AUTHORIZATION, value);
            }
            Proof::Post { secret } => {
                form.append_pair("client_id", client_id).append_pair("client_secret", secret);
            }
            Proof::Jwt { key, key_id, lifetime } => {
                let issued = now.as_millis().div_euclid(1_000);
                let claims = Claims {
                    iss: client_id,
                    sub: client_id,
                    aud: token_url,
                    jti: BASE64_URL_SAFE_NO_PAD.encode(nonce),
                    iat: issued,
                    exp: issued.saturating_add_unsigned(lifetime.as_secs()),
                };
                let head = Header { kid: key_id.clone(), ..Header::new(Algorithm::RS256) };
                let assertion = encode(&head, &claims, &key.read()?).ok()?;
                form.append_pair("client_id", client_id)
                    .append_pair("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
                    .append_pair("client_assertion", &assertion);
            }
        }
        form.extend_pairs(extra_params);
        headers
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded;charset=UTF-8"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("Postrider/", env!("CARGO_PKG_VERSION"))));
        Some((headers, form.finish().into()))
    }

    async fn fetch(&self, means: Means<'_>) -> Result<Kept, NoToken> {
        let Ok(url) = &self.url else { return Err(NoToken::from(Exchange::forbidden())) };
        let (headers, body) =
            self.request(means.now, means.nonce).ok_or_else(|| NoToken::because("it could not be asked for"))?;
        let asked = Instant::now();
        let request = Request {
            url,
            headers: &|| headers.clone(),
            body,
            timeouts: means.timeouts,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        };
        let answer = means.post.post(request).await;
        let Outcome::Answered(head) = &answer.outcome else { return Err(NoToken::from(answer)) };
        if !matches!(head.status, 200 | 201) {
            let why = refusal_of(&answer.body).map_or_else(String::new, |code| format!(" ({code})"));
            return Err(NoToken::because(format!("its issuer answered {}{why}", head.status)));
        }
        if answer.body_cut || answer.body_broken {
            return Err(NoToken::because("its issuer's answer is too long, or broke off"));
        }
        let granted: Granted = serde_json::from_slice(&answer.body)
            .map_err(|_| NoToken::because("its issuer's answer has none that can be read"))?;
        granted.kept(asked)
    }
}

impl Bearers {
    /// The token that an endpoint is to be called with, within the total timeout.
    pub async fn bearer(&self, endpoint: EndpointKey, oauth: &Oauth, means: Means<'_>) -> Result<Bearer, NoToken> {
        let until = Instant::now() + means.timeouts.total;
        let slot = self.slot(endpoint, oauth);
        let seen = slot.rounds.load(Ordering::Relaxed);
        let found = async {
            let mut state = slot.state.lock().await;
            if let Some(kept) = state.token.as_ref().filter(|kept| Instant::now() < kept.until) {
                return Ok(Bearer { header: kept.header.clone(), is_new: false });
            }
            // Who waited while another was told no need not ask the same again at once.
            if let Some(failed) = state.failed.as_ref().filter(|_| slot.rounds.load(Ordering::Relaxed) != seen) {
                return Err(failed.clone());
            }
            let fetched = oauth.fetch(means).await;
            slot.rounds.fetch_add(1, Ordering::Relaxed);
            match fetched {
                Ok(kept) => {
                    let header = kept.header.clone();
                    *state = State { token: Some(kept), failed: None };
                    Ok(Bearer { header, is_new: true })
                }
                Err(failed) => {
                    *state = State { token: None, failed: Some(failed.clone()) };
                    Err(failed)
                }
            }
        };
        match timeout_at(until, found).await {
            Ok(found) => found,
            Err(_) => Err(NoToken::because("it did not come within the total timeout")),
        }
    }

    /// The endpoint did not want this one.
    pub async fn was_refused(&self, endpoint: EndpointKey, oauth: &Oauth, bearer: &Bearer) {
        let slot = self.slot(endpoint, oauth);
        let mut state = slot.state.lock().await;
        if state.token.as_ref().is_some_and(|kept| kept.header == bearer.header) {
            state.token = None;
        }
    }

    fn slot(&self, endpoint: EndpointKey, oauth: &Oauth) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= SLOTS_MAX {
            let now = Instant::now();
            let is_in_use = |slot: &Arc<Slot>| match slot.state.try_lock() {
                Ok(state) => state.token.as_ref().is_some_and(|kept| now < kept.until),
                Err(_) => true,
            };
            slots.retain(|_, slot| is_in_use(slot));
            if slots.len() >= SLOTS_MAX {
                slots.clear();
            }
        }
        Arc::clone(slots.entry((endpoint, oauth.mark)).or_default())
    }
}

impl NoToken {
    fn because(why: impl std::fmt::Display) -> Self {
        Self { fault: Fault::NoToken, detail: format!("no access token could be had: {why}") }
    }

    /// As the attempt that it ended.
    pub fn into_exchange(self, duration: Duration) -> Exchange {
        Exchange { duration, ..Exchange::failed(self.fault, self.detail) }
    }
}

/// The request for a token got no answer.
impl From<Exchange> for NoToken {
    fn from(exchange: Exchange) -> Self {
        let detail = exchange.detail.unwrap_or_default();
        match exchange.outcome {
            // Charged to nobody, as ever.
            Outcome::Failed(Fault::LocalResource) => Self { fault: Fault::LocalResource, detail },
            // It was not the endpoint that was called.
            Outcome::Failed(_) | Outcome::Answered(_) => Self::because(detail.replace("the endpoint", "its issuer")),
        }
    }
}

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    jti: String,
    iat: i64,
    exp: i64,
}

/// What of an issuer's answer is looked at.
#[derive(Deserialize)]
struct Granted {
    access_token: Zeroizing<String>,
    #[serde(default)]
    token_type: Option<String>,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Some write it as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

impl Granted {
    fn kept(self, asked: Instant) -> Result<Kept, NoToken> {
        if !self.token_type.as_deref().unwrap_or("bearer").eq_ignore_ascii_case("bearer") {
            return Err(NoToken::because("its issuer gave one that is no bearer token"));
        }
        let token = &*self.access_token;
        let is_usable = (1..=TOKEN_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .ok()
            .filter(|_| is_usable)
            .ok_or_else(|| NoToken::because("its issuer gave one that cannot be sent"))?;
        header.set_sensitive(true);
        let told = match self.expires_in {
            None => LIFETIME_UNTOLD.as_secs_f64(),
            Some(Seconds::Number(seconds)) => seconds,
            Some(Seconds::Text(text)) => text.parse().unwrap_or_default(),
        };
        let lifetime = Duration::try_from_secs_f64(told).unwrap_or_default().min(LIFETIME_MAX);
        Ok(Kept { header, until: asked + lifetime.saturating_sub(margin(lifetime)) })
    }
}

/// A token that ends while a request is on its way is refused there.
fn margin(lifetime: Duration) -> Duration {
    (lifetime / 5).min(Duration::from_secs(30))
}

/// The word that RFC 6749 has for a refusal, if it is one of its own: a stranger's text is shown to no one.
fn refusal_of(body: &[u8]) -> Option<&'static str> {
    #[derive(Deserialize)]
    struct Refused {
        error: String,
    }
    let refused: Refused = serde_json::from_slice(body).ok()?;
    REFUSALS.into_iter().find(|code| *code == refused.error)
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

const REFUSALS: [&str; 6] = [
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// Of one that does not say how long it holds.
const LIFETIME_UNTOLD: Duration = Duration::from_secs(300);

/// However long it is said to hold.
const LIFETIME_MAX: Duration = Duration::from_secs(86_400);

const TOKEN_MAX: usize = 8 * 1024;

/// Tokens that are kept before those that have ended are let go.
const SLOTS_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{AddressGuard, ConnectionUse, UrlRules};
    use async_trait::async_trait;
    use postrider_engine::Answer;
    use std::collections::VecDeque;

    const ENDPOINT: EndpointKey = EndpointKey::new(7);

    /// An issuer that answers what it is told to, and takes its time.
    struct Issuer {
        answers: Mutex<VecDeque<Exchange>>,
        asked: Mutex<Vec<(HeaderMap, String)>>,
        takes: Duration,
    }

    #[async_trait]
    impl Post for Issuer {
        async fn post(&self, request: Request<'_>) -> Exchange {
            assert_eq!(request.redirects_max, 0);
            let body = String::from_utf8(request.body.to_vec()).unwrap();
            self.asked.lock().unwrap().push(((request.headers)(), body));
            tokio::time::sleep(self.takes).await;
            self.answers.lock().unwrap().pop_front().expect("it is asked no oftener")
        }
    }

    impl Issuer {
        fn new(answers: impl IntoIterator<Item = Exchange>) -> Self {
            let answers = Mutex::new(answers.into_iter().collect());
            Self { answers, asked: Mutex::default(), takes: Duration::from_millis(10) }
        }

        fn means(&self) -> Means<'_> {
            Means { post: self, timeouts: Timeouts::default(), now: Timestamp::from_millis(5_000), nonce: [1; 16] }
        }

        fn times(&self) -> usize {
            self.asked.lock().unwrap().len()
        }
    }

    fn answered(status: u16, body: &'static str) -> Exchange {
        Exchange {
            outcome: Outcome::Answered(Answer { status, ..Answer::default() }),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
            body_cut: false,
            body_broken: false,
            detail: None,
            final_url: None,
            duration: Duration::ZERO,
            connection: ConnectionUse::Fresh,
            is_untried: false,
        }
    }

    fn oauth(proof: Proof) -> Oauth {
        let guard = AddressGuard::new(Vec::new());
        let url = EndpointUrl::parse("https://example.com/token", &UrlRules { https_only: true, guard: &guard });
        let settings = OauthSettings {
            token_url: "https://example.com/token".to_owned(),
            client_id: "a b".to_owned(),
            proof,
            scopes: vec!["read".to_owned(), "write".to_owned()],
            extra_params: BTreeMap::from([("audience".to_owned(), "x&y".to_owned())]),
            extra_headers: BTreeMap::from([("x-extra".to_owned(), "e".to_owned())]),
        };
        Oauth::new(settings, url)
    }

    fn basic() -> Oauth {
        oauth(Proof::Basic { secret: Zeroizing::new("s:t".to_owned()) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_kept_until_shortly_before_it_ends() {
        let granted = |token: &'static str| answered(200, token);
        let issuer = Issuer::new([
            granted(r#"{"access_token":"one","token_type":"Bearer","expires_in":3600}"#),
            granted(r#"{"access_token":"two","token_type":"bearer","expires_in":"10"}"#),
            granted(r#"{"access_token":"three"}"#),
        ]);
        let (bearers, oauth) = (Bearers::default(), basic());
        let mut heard = Vec::new();
        for wait in [0, 3_500, 70, 1, 8, 260] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            let bearer = bearers.bearer(ENDPOINT, &oauth, issuer.means()).await.unwrap();
            assert!(bearer.header.is_sensitive());
            heard.push(format!("{} {}", bearer.header.to_str().unwrap(), if bearer.is_new { "new" } else { "kept" }));
        }
        let expected = ["one new", "one kept", "two new", "two kept", "three new", "three kept"];
        assert_eq!(heard, expected.map(|token| format!("Bearer {token}")));
        assert_eq!(issuer.times(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_at_the_same_time_shares_one_request_and_its_refusal() {
        let issuer = Issuer::new([
            answered(401, r#"{"error":"invalid_client","error_description":"canary"}"#),
            answered(200, r#"{"access_token":"one"}"#),
        ]);
        let (bearers, oauth) = (Bearers::default(), basic());
        for round in [1, 2] {
            let all = futures(&bearers, &oauth, &issuer).await;
            for found in all {
                match found {
                    Ok(bearer) => assert_eq!((round, bearer.header.to_str().unwrap()), (2, "Bearer one")),
                    Err(failed) => {
                        assert_eq!(round, 1);
                        assert_eq!(failed.fault, Fault::NoToken);
                        assert_eq!(
                            failed.detail,
                            "no access token could be had: its issuer answered 401 (invalid_client)"
                        );
                    }
                }
            }
            assert_eq!(issuer.times(), round);
        }
    }

    async fn futures(bearers: &Bearers, oauth: &Oauth, issuer: &Issuer) -> [Result<Bearer, NoToken>; 3] {
        let ask = || bearers.bearer(ENDPOINT, oauth, issuer.means());
        let (one, two, three) = tokio::join!(ask(), ask(), ask());
        [one, two, three]
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_is_asked_for_anew_once() {
        let issuer =
            Issuer::new([answered(200, r#"{"access_token":"one"}"#), answered(200, r#"{"access_token":"two"}"#)]);
        let (bearers, oauth) = (Bearers::default(), basic());
        let one = bearers.bearer(ENDPOINT, &oauth, issuer.means()).await.unwrap();
        bearers.was_refused(ENDPOINT, &oauth, &one).await;
        let two = bearers.bearer(ENDPOINT, &oauth, issuer.means()).await.unwrap();
        assert_eq!(two.header, "Bearer two");
        // Somebody else's old one is no reason to give up the new one.
        bearers.was_refused(ENDPOINT, &oauth, &one).await;
        assert!(!bearers.bearer(ENDPOINT, &oauth, issuer.means()).await.unwrap().is_new);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_token_is_none() {
        for (answer, expected) in [
            (answered(200, "{}"), "none that can be read"),
            (answered(200, "canary"), "none that can be read"),
            (answered(200, r#"{"access_token":""}"#), "cannot be sent"),
            (answered(200, r#"{"access_token":"a b"}"#), "cannot be sent"),
            (answered(200, r#"{"access_token":"a\r\nx: y"}"#), "cannot be sent"),
            (answered(200, r#"{"access_token":"a","token_type":"mac"}"#), "no bearer token"),
            (Exchange { body_cut: true, ..answered(200, r#"{"access_token":"a"}"#) }, "too long"),
            (answered(302, ""), "answered 302"),
            (answered(400, r#"{"error":"canary"}"#), "answered 400"),
            (Exchange::failed(Fault::Dns, "the host name does not exist".into()), "the host name does not exist"),
            (Exchange::failed(Fault::Reset, "the endpoint's host fell".into()), "its issuer's host fell"),
            (Exchange::forbidden(), "its issuer's address is one that this server does not call"),
        ] {
            let failed = Bearers::default().bearer(ENDPOINT, &basic(), Issuer::new([answer]).means()).await;
            let failed = failed.err().expect(expected);
            assert_eq!(failed.fault, Fault::NoToken);
            assert!(failed.detail.contains(expected) && !failed.detail.contains("canary"), "{failed:?}");
        }
        let ours = Exchange::failed(Fault::LocalResource, "out of ports".into());
        let failed = Bearers::default().bearer(ENDPOINT, &basic(), Issuer::new([ours]).means()).await.err().unwrap();
        assert_eq!(failed.fault, Fault::LocalResource, "our own shortage stays our own");
    }

    #[tokio::test(start_paused = true)]
    async fn an_issuer_that_hangs_is_given_up_at_the_deadline() {
        let issuer = Issuer { takes: Duration::from_secs(3_600), ..Issuer::new([]) };
        let (bearers, oauth) = (Bearers::default(), basic());
        let begun = Instant::now();
        let [one, two, three] = futures(&bearers, &oauth, &issuer).await;
        assert!([one, two, three].iter().all(Result::is_err));
        assert_eq!(begun.elapsed().as_secs(), Timeouts::default().total.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn we_show_who_we_are_in_the_way_that_was_chosen() {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap().serialize_pem();
        let jwt = Proof::Jwt {
            key: JwtKey::new(pair.into_bytes()).unwrap(),
            key_id: Some("k1".into()),
            lifetime: Duration::from_secs(60),
        };
        for (proof, header, params) in [
            (Proof::Basic { secret: Zeroizing::new("s:t".into()) }, Some("Basic YStiOnMlM0F0"), vec![]),
            (
                Proof::Post { secret: Zeroizing::new("s:t".into()) },
                None,
                vec![("client_id", "a b"), ("client_secret", "s:t")],
            ),
            (jwt, None, vec![("client_id", "a b")]),
        ] {
            let issuer = Issuer::new([answered(200, r#"{"access_token":"one"}"#)]);
            Bearers::default().bearer(ENDPOINT, &oauth(proof), issuer.means()).await.unwrap();
            let (headers, body) = issuer.asked.lock().unwrap().remove(0);
            assert_eq!(headers.get("authorization").map(|it| it.to_str().unwrap()), header);
            assert_eq!(headers["x-extra"], "e");
            let form: BTreeMap<_, _> = form_urlencoded::parse(body.as_bytes()).into_owned().collect();
            for (name, value) in params.into_iter().chain([
                ("grant_type", "client_credentials"),
                ("scope", "read write"),
                ("audience", "x&y"),
            ]) {
                assert_eq!(form[name], value);
            }
            if let Some(assertion) = form.get("client_assertion") {
                let part = |at: usize| -> serde_json::Value {
                    let text = assertion.split('.').nth(at).unwrap();
                    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
                };
                assert_eq!((part(0)["alg"].as_str(), part(0)["kid"].as_str()), (Some("RS256"), Some("k1")));
                let claims = part(1);
                assert_eq!((claims["iss"].as_str(), claims["sub"].as_str()), (Some("a b"), Some("a b")));
                assert_eq!(claims["aud"], "https://example.com/token");
                assert_eq!((claims["iat"].as_i64(), claims["exp"].as_i64()), (Some(5), Some(65)));
            }
        }
    }
}
