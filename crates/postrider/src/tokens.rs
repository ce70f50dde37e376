//! API tokens: JSON web tokens of the kind that the contract's libraries carry.
//!
//! The algorithm comes from the settings and never from the token. Time is an argument, so the library's
//! own checks of it are off and made here; whatever is wrong, the caller learns only that it is.

use crate::{
    config::{TokenAlgorithm, TokenKey, TokenSettings, readable_by_all},
    ids::IdCodec,
    keyring::Keyring,
    pollers,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{Issued, PollerKey, TokenId};
use rand::{TryRng, rngs::SysRng};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tracing::debug;

pub struct Tokens {
    validation: Validation,
    verifying: DecodingKey,
    /// `None`: tokens are made elsewhere.
    signing: Option<EncodingKey>,
    ids: IdCodec,
}

/// Who makes a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// The operator: everything in the environment.
    Environment,
    Application {
        app: AppKey,
        access: Access,
    },
}

/// What the holder of an application's token may do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub capabilities: Vec<Capability>,
    /// Event types behind a flag are shown only to those who have it. `None`: all are shown.
    pub feature_flags: Option<Vec<String>>,
    /// It is good for reading by this poller, and for nothing else.
    pub poller: Option<PollerKey>,
}

impl Access {
    pub fn full() -> Self {
        Self { capabilities: Capability::ALL.to_vec(), feature_flags: None, poller: None }
    }

    pub fn read_only() -> Self {
        Self { capabilities: vec![Capability::ViewBase], feature_flags: None, poller: None }
    }
}

/// In the contract's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Capability {
    ViewBase,
    ViewEndpointSecret,
    ManageEndpointSecret,
    ManageTransformations,
    CreateAttempts,
    ManageEndpoint,
}

impl Capability {
    pub const ALL: [Self; 6] = [
        Self::ViewBase,
        Self::ViewEndpointSecret,
        Self::ManageEndpointSecret,
        Self::ManageTransformations,
        Self::CreateAttempts,
        Self::ManageEndpoint,
    ];
}

/// What a token says that is signed as it should be and whose time is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub principal: Principal,
    pub issued: Issued,
    /// What it calls itself.
    pub name: Option<String>,
    /// It holds from then, and until then, some leeway included.
    pub from: Timestamp,
    pub until: Timestamp,
}

/// One for every cause: to say which would help only those who try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is not valid")]
pub struct TokenError;

#[derive(Debug, thiserror::Error)]
pub enum MintError {
    #[error("this server has no private key, so it can check tokens but not make them (see jwt_private_key_file)")]
    NoPrivateKey,
    #[error("the token could not be signed")]
    Sign(#[source] jsonwebtoken::errors::Error),
    #[error("the system gave no random numbers")]
    Random(#[source] rand::rngs::SysError),
}

#[derive(Debug, thiserror::Error)]
pub enum TokenKeyError {
    #[error("could not read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} can be read by every user of this machine; run: chmod 640 {}", path.display(), path.display())]
    TooOpen { path: PathBuf },
    #[error("{} is not a key in PEM for {algorithm:?}", path.display())]
    NotAKey { path: PathBuf, algorithm: TokenAlgorithm },
    #[error("{} and {} are not halves of one {algorithm:?} key", public.display(), private.display())]
    NotAPair { public: PathBuf, private: PathBuf, algorithm: TokenAlgorithm },
}

impl Tokens {
    pub fn new(settings: &TokenSettings, keyring: &Keyring, ids: IdCodec) -> Result<Self, TokenKeyError> {
        let algorithm = settings.algorithm;
        let (verifying, signing) = match &settings.key {
            TokenKey::Keyring => secret(keyring.tokens()),
            TokenKey::Secret(hidden) => secret(hidden.reveal().as_bytes()),
            TokenKey::Pair { public, private } => (
                read_public(public, algorithm)?,
                private.as_deref().map(|private| read_private(private, algorithm)).transpose()?,
            ),
        };
        let mut validation = Validation::new(jwt_algorithm(algorithm));
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims = HashSet::new();
        let tokens = Self { validation, verifying, signing, ids };
        if let TokenKey::Pair { public, private: Some(private) } = &settings.key
            && !tokens.verifies_its_own()
        {
            return Err(TokenKeyError::NotAPair { public: public.clone(), private: private.clone(), algorithm });
        }
        Ok(tokens)
    }

    /// Whether it was revoked is not known here.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Read, TokenError> {
        if token.len() > TOKEN_MAX {
            return Err(TokenError);
        }
        self.read(token, unix_seconds(now)).map_err(|reason| {
            debug!(reason, "token refused");
            TokenError
        })
    }

    pub fn mint_environment(&self, now: Timestamp, expires_in: Duration) -> Result<String, MintError> {
        self.mint(Claims::new(ENVIRONMENT.to_owned(), now, expires_in)?)
    }

    pub fn mint_application(
        &self,
        app: AppKey,
        access: &Access,
        now: Timestamp,
        expires_in: Duration,
    ) -> Result<String, MintError> {
        self.mint_session(app, access, None, now, expires_in)
    }

    /// One that ends with its session, too. `expires_in` is at most `SESSION_MAX` then.
    pub fn mint_session(
        &self,
        app: AppKey,
        access: &Access,
        session: Option<String>,
        now: Timestamp,
        expires_in: Duration,
    ) -> Result<String, MintError> {
        self.mint(Claims {
            session_id: session,
            org: Some(ENVIRONMENT.to_owned()),
            feature_flags: access.feature_flags.clone(),
            capabilities: Some(access.capabilities.clone()),
            ..Claims::new(self.ids.id_of(app), now, expires_in)?
        })
    }

    /// The token of a poller: the same for the same poller and the same name.
    pub fn mint_poller(&self, app: AppKey, poller: PollerKey, token: &pollers::Token) -> Result<String, MintError> {
        let at = Timestamp::from_millis;
        self.mint(Claims {
            org: Some(ENVIRONMENT.to_owned()),
            capabilities: Some(Vec::new()),
            poller: Some(self.ids.id_of(poller)),
            ..Claims::named(token.name.clone(), self.ids.id_of(app), at(token.issued_at), at(token.expires_at))
        })
    }

    fn read(&self, token: &str, now: u64) -> Result<Read, &'static str> {
        let decoded = decode::<Claims>(token, &self.verifying, &self.validation).map_err(|_| "not signed by us")?;
        let Header { jku, jwk, x5u, x5c, crit, enc, zip, .. } = decoded.header;
        if [jku.is_some(), jwk.is_some(), x5u.is_some(), x5c.is_some(), crit.is_some(), enc.is_some(), zip.is_some()]
            .contains(&true)
        {
            return Err("brings its own key or asks for more than is understood");
        }
        let claims = decoded.claims;
        if claims.iss != ISSUER {
            return Err("another issuer");
        }
        let span = Span { from: claims.nbf, until: claims.exp };
        if !span.holds(now) {
            return Err("not yet or no longer valid");
        }
        if claims.session_id.is_some() && !claims.ends_within(SESSION_MAX) {
            // What was revoked by its session is forgotten after that time.
            return Err("a session that lasts too long");
        }
        let (from, until) = span.with_leeway();
        let (id, issued_at, name) = (claims.id(token), claims.issued_at(), claims.jti.clone());
        let session = claims.session_id.clone();
        let principal = self.principal(claims)?;
        let app = match principal {
            Principal::Environment => None,
            Principal::Application { app, .. } => Some(app),
        };
        Ok(Read { principal, issued: Issued { id, app, session, at: issued_at }, name, from, until })
    }

    fn principal(&self, claims: Claims) -> Result<Principal, &'static str> {
        let of_this_environment = claims.org.as_ref().map(|org| org == ENVIRONMENT);
        if claims.sub == ENVIRONMENT {
            // A limit that this kind of token cannot carry is refused, not dropped.
            let limited = claims.read_only.is_some()
                || claims.capabilities.is_some()
                || claims.session_id.is_some()
                || claims.poller.is_some();
            return match of_this_environment {
                None | Some(true) if !limited => Ok(Principal::Environment),
                None | Some(_) => Err("not a token for this environment"),
            };
        }
        if of_this_environment != Some(true) {
            return Err("another environment");
        }
        let app = self.ids.key_of::<AppKey>(&claims.sub).ok_or("another subject")?;
        let poller = match &claims.poller {
            Some(id) => Some(self.ids.key_of::<PollerKey>(id).ok_or("another poller")?),
            None => None,
        };
        // Without a list the token is one of the contract's plain ones, which may do everything in its application.
        let mut capabilities = claims.capabilities.unwrap_or_else(|| Capability::ALL.to_vec());
        if claims.read_only == Some(true) {
            capabilities.retain(|capability| *capability == Capability::ViewBase);
        }
        let access = Access { capabilities, feature_flags: claims.feature_flags, poller };
        Ok(Principal::Application { app, access })
    }

    fn mint(&self, claims: Claims) -> Result<String, MintError> {
        let signing = self.signing.as_ref().ok_or(MintError::NoPrivateKey)?;
        let algorithm = self.validation.algorithms[0];
        encode(&Header::new(algorithm), &claims, signing).map_err(MintError::Sign)
    }

    fn verifies_its_own(&self) -> bool {
        let now = Timestamp::default();
        self.mint_environment(now, Duration::from_secs(1))
            .is_ok_and(|token| self.read(&token, unix_seconds(now)).is_ok())
    }
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: u64,
    nbf: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    iat: Option<u64>,
    /// The same in milliseconds, so that a token made right after all others were ended is not one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    iat_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feature_flags: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capabilities: Option<Vec<Capability>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_only: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// Whoever brings it may read by this poller, and do nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    poller: Option<String>,
}

impl Claims {
    /// By the name that it has, or else by all that is signed of it.
    fn id(&self, token: &str) -> TokenId {
        let mut hash = Sha256::new();
        match &self.jti {
            Some(jti) => {
                hash.update(b"jti\n");
                hash.update(&self.sub);
                hash.update(b"\n");
                hash.update(jti);
            }
            None => {
                hash.update(b"token\n");
                hash.update(token.rsplit_once('.').map_or(token, |(signed, _)| signed));
            }
        }
        TokenId(*hash.finalize().first_chunk().expect("SHA-256 gives 32 bytes"))
    }

    /// Where it does not say, it is as old as it can be.
    fn issued_at(&self) -> Timestamp {
        let seconds = self.iat.unwrap_or(self.nbf);
        let precise = self.iat_ms.filter(|millis| millis / 1000 == seconds);
        let millis = precise.unwrap_or(seconds.saturating_mul(1000));
        Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
    }

    fn ends_within(&self, life: Duration) -> bool {
        self.exp.saturating_sub(self.iat.unwrap_or(0)) <= life.as_secs()
    }

    fn new(sub: String, now: Timestamp, expires_in: Duration) -> Result<Self, MintError> {
        let mut jti = [0; 16];
        SysRng.try_fill_bytes(&mut jti).map_err(MintError::Random)?;
        Ok(Self::named(BASE64_URL_SAFE_NO_PAD.encode(jti), sub, now, now.plus(expires_in)))
    }

    fn named(jti: String, sub: String, now: Timestamp, until: Timestamp) -> Self {
        Self {
            iss: ISSUER.to_owned(),
            sub,
            exp: unix_seconds(until),
            nbf: unix_seconds(now),
            iat: Some(unix_seconds(now)),
            iat_ms: u64::try_from(now.as_millis()).ok(),
            jti: Some(jti),
            org: None,
            feature_flags: None,
            capabilities: None,
            read_only: None,
            session_id: None,
            poller: None,
        }
    }
}

/// When a token holds, in unix seconds.
#[derive(Clone, Copy)]
struct Span {
    from: u64,
    until: u64,
}

impl Span {
    fn holds(self, now: u64) -> bool {
        self.from <= now.saturating_add(LEEWAY_SECONDS) && now < self.until.saturating_add(LEEWAY_SECONDS)
    }

    fn with_leeway(self) -> (Timestamp, Timestamp) {
        let millis = |seconds: u64| i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX);
        let from = millis(self.from).saturating_sub(millis(LEEWAY_SECONDS));
        (Timestamp::from_millis(from), Timestamp::from_millis(millis(self.until.saturating_add(LEEWAY_SECONDS))))
    }
}

fn secret(bytes: &[u8]) -> (DecodingKey, Option<EncodingKey>) {
    (DecodingKey::from_secret(bytes), Some(EncodingKey::from_secret(bytes)))
}

fn read_public(path: &Path, algorithm: TokenAlgorithm) -> Result<DecodingKey, TokenKeyError> {
    let pem = read(path)?;
    match algorithm {
        TokenAlgorithm::EdDSA => DecodingKey::from_ed_pem(&pem),
        TokenAlgorithm::RS256 | TokenAlgorithm::RS384 | TokenAlgorithm::RS512 => DecodingKey::from_rsa_pem(&pem),
        TokenAlgorithm::HS256 | TokenAlgorithm::HS384 | TokenAlgorithm::HS512 => {
            return Err(not_a_key(path, algorithm));
        }
    }
    .map_err(|_| not_a_key(path, algorithm))
}

fn read_private(path: &Path, algorithm: TokenAlgorithm) -> Result<EncodingKey, TokenKeyError> {
    let pem = read(path)?;
    match readable_by_all(path) {
        Ok(false) => {}
        Ok(true) => return Err(TokenKeyError::TooOpen { path: path.to_owned() }),
        Err(source) => return Err(TokenKeyError::Read { path: path.to_owned(), source }),
    }
    match algorithm {
        TokenAlgorithm::EdDSA => EncodingKey::from_ed_pem(&pem),
        TokenAlgorithm::RS256 | TokenAlgorithm::RS384 | TokenAlgorithm::RS512 => EncodingKey::from_rsa_pem(&pem),
        TokenAlgorithm::HS256 | TokenAlgorithm::HS384 | TokenAlgorithm::HS512 => {
            return Err(not_a_key(path, algorithm));
        }
    }
    .map_err(|_| not_a_key(path, algorithm))
}

fn read(path: &Path) -> Result<Vec<u8>, TokenKeyError> {
    fs::read(path).map_err(|source| TokenKeyError::Read { path: path.to_owned(), source })
}

fn not_a_key(path: &Path, algorithm: TokenAlgorithm) -> TokenKeyError {
    TokenKeyError::NotAKey { path: path.to_owned(), algorithm }
}

fn jwt_algorithm(algorithm: TokenAlgorithm) -> Algorithm {
    match algorithm {
        TokenAlgorithm::HS256 => Algorithm::HS256,
        TokenAlgorithm::HS384 => Algorithm::HS384,
        TokenAlgorithm::HS512 => Algorithm::HS512,
        TokenAlgorithm::RS256 => Algorithm::RS256,
        TokenAlgorithm::RS384 => Algorithm::RS384,
        TokenAlgorithm::RS512 => Algorithm::RS512,
        TokenAlgorithm::EdDSA => Algorithm::EdDSA,
    }
}

fn unix_seconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis() / 1000).unwrap_or(0)
}

/// The contract's default environment, and the only one here.
pub const ENVIRONMENT: &str = "org_23rb8YdGqMT0qIzpgGwdXfHirMu";
/// As the contract's own server does: about ten years.
pub const ENVIRONMENT_TOKEN_LIFE: Duration = Duration::from_secs(3653 * 86_400);
pub const APPLICATION_TOKEN_LIFE: Duration = Duration::from_secs(28 * 86_400);
/// Of a token that belongs to a session.
pub const SESSION_MAX: Duration = Duration::from_secs(7 * 86_400);
pub const LEEWAY: Duration = Duration::from_secs(LEEWAY_SECONDS);

const ISSUER: &str = "svix-server";
const TOKEN_MAX: usize = 4096;
const LEEWAY_SECONDS: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SECRET: &[u8; 32] = b"the secret of this deployment...";
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const APP: AppKey = AppKey::new(42);

    fn ids() -> IdCodec {
        IdCodec::new([7; 16])
    }

    fn tokens_with(algorithm: TokenAlgorithm, key: TokenKey) -> Result<Tokens, TokenKeyError> {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let keyring = Keyring::open_or_create(folder.path()).expect("made");
        Tokens::new(&TokenSettings { algorithm, key }, &keyring, ids())
    }

    fn tokens() -> Tokens {
        let (verifying, signing) = secret(SECRET);
        Tokens { verifying, signing, ..tokens_with(TokenAlgorithm::HS256, TokenKey::Keyring).expect("made") }
    }

    fn good_claims() -> serde_json::Value {
        let now = unix_seconds(NOW);
        json!({ "iss": ISSUER, "sub": ENVIRONMENT, "iat": now, "nbf": now, "exp": now + 1000 })
    }

    fn with(changes: serde_json::Value) -> String {
        let mut claims = good_claims();
        for (name, value) in changes.as_object().expect("an object") {
            if value.is_null() {
                claims.as_object_mut().expect("an object").remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        signed(r#"{"alg":"HS256","typ":"JWT"}"#, &claims.to_string(), SECRET)
    }

    fn signed(header: &str, claims: &str, key: &[u8]) -> String {
        let message = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part)).join(".");
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &EncodingKey::from_secret(key), Algorithm::HS256)
                .expect("signs");
        format!("{message}.{signature}")
    }

    fn who(tokens: &Tokens, token: &str, now: Timestamp) -> Result<Principal, TokenError> {
        tokens.verify(token, now).map(|read| read.principal)
    }

    fn pair(algorithm: &'static rcgen::SignatureAlgorithm) -> rcgen::KeyPair {
        rcgen::KeyPair::generate_for(algorithm).expect("a key pair")
    }

    #[test]
    fn what_was_minted_is_accepted_until_it_ends() {
        let tokens = tokens();
        let limited = Access {
            capabilities: vec![Capability::ViewBase, Capability::CreateAttempts],
            feature_flags: Some(vec!["beta".to_owned()]),
            poller: None,
        };
        let life = Duration::from_secs(3600);
        for (token, expected) in [
            (tokens.mint_environment(NOW, life), Principal::Environment),
            (
                tokens.mint_application(APP, &Access::full(), NOW, life),
                Principal::Application { app: APP, access: Access::full() },
            ),
            (tokens.mint_application(APP, &limited, NOW, life), Principal::Application { app: APP, access: limited }),
        ] {
            let token = token.expect("minted");
            for (at, holds) in [
                (NOW.minus(Duration::from_secs(61)), false),
                (NOW.minus(Duration::from_secs(60)), true),
                (NOW, true),
                (NOW, true),
                (NOW.plus(life), true),
                (NOW.plus(life + Duration::from_secs(59)), true),
                (NOW.plus(life + Duration::from_secs(60)), false),
                (Timestamp::from_millis(i64::MIN), false),
                (Timestamp::from_millis(i64::MAX), false),
            ] {
                let expected = if holds { Ok(expected.clone()) } else { Err(TokenError) };
                assert_eq!(who(&tokens, &token, at), expected, "{at:?}");
                if let Ok(read) = tokens.verify(&token, at) {
                    assert!(read.from <= at && at < read.until, "{at:?}");
                }
            }
        }
    }

    #[test]
    fn a_pollers_token_is_the_same_each_time_and_says_whose_it_is() {
        let tokens = tokens();
        let until = NOW.plus(Duration::from_secs(3600)).as_millis();
        let token = |name: &str| {
            let token = pollers::Token { name: name.to_owned(), issued_at: NOW.as_millis(), expires_at: until };
            tokens.mint_poller(APP, PollerKey(9), &token).expect("minted")
        };
        assert_eq!(token("a"), token("a"));
        assert_ne!(token("a"), token("b"));
        let access = Access { capabilities: vec![], feature_flags: None, poller: Some(PollerKey(9)) };
        let read = tokens.verify(&token("a"), NOW).expect("good");
        assert_eq!(read.principal, Principal::Application { app: APP, access });
        assert_eq!(read.name.as_deref(), Some("a"));
        for claims in [
            json!({ "poller": ids().id_of(PollerKey(9)) }),
            json!({ "poller": "poll_x", "sub": ids().id_of(APP), "org": ENVIRONMENT }),
            json!({ "poller": ids().id_of(APP), "sub": ids().id_of(APP), "org": ENVIRONMENT }),
        ] {
            assert_eq!(who(&tokens, &with(claims.clone()), NOW), Err(TokenError), "{claims}");
        }
    }

    #[test]
    fn a_token_of_the_contracts_server_is_accepted() {
        let now = unix_seconds(NOW);
        let app = json!({ "sub": ids().id_of(APP), "org": ENVIRONMENT, "feature_flags": [], "exp": now + 60 });
        assert_eq!(who(&tokens(), &with(json!({})), NOW), Ok(Principal::Environment));
        assert_eq!(
            who(&tokens(), &with(json!({ "jti": "x", "aud": "y", "other": 1 })), NOW),
            Ok(Principal::Environment)
        );
        assert_eq!(
            who(&tokens(), &with(app), NOW),
            Ok(Principal::Application {
                app: APP,
                access: Access { feature_flags: Some(Vec::new()), ..Access::full() }
            })
        );
        let read_only = json!({ "sub": ids().id_of(APP), "org": ENVIRONMENT, "read_only": true });
        assert_eq!(
            who(&tokens(), &with(read_only), NOW),
            Ok(Principal::Application { app: APP, access: Access::read_only() })
        );
    }

    #[test]
    fn whatever_is_wrong_the_answer_is_the_same() {
        let now = unix_seconds(NOW);
        let good = good_claims().to_string();
        let head = r#"{"alg":"HS256","typ":"JWT"}"#;
        let valid = signed(head, &good, SECRET);
        let parts: Vec<_> = valid.split('.').collect();
        let unsigned = |header: &str| format!("{}.{}.", BASE64_URL_SAFE_NO_PAD.encode(header), parts[1]);
        let rsa = pair(&rcgen::PKCS_RSA_SHA256);
        let app = ids().id_of(APP);
        let other_app = IdCodec::new([8; 16]).id_of(APP);
        let cases = [
            ("alg none", unsigned(r#"{"alg":"none"}"#)),
            ("alg None", unsigned(r#"{"alg":"None"}"#)),
            ("alg missing", signed(r#"{"typ":"JWT"}"#, &good, SECRET)),
            ("alg lower-case", signed(r#"{"alg":"hs256"}"#, &good, SECRET)),
            ("alg null", signed(r#"{"alg":null}"#, &good, SECRET)),
            ("alg twice", signed(r#"{"alg":"HS256","alg":"none"}"#, &good, SECRET)),
            ("another alg of the family", signed(r#"{"alg":"HS512"}"#, &good, SECRET)),
            ("alg RS256", signed(r#"{"alg":"RS256"}"#, &good, SECRET)),
            ("no signature", format!("{}.{}.", parts[0], parts[1])),
            ("cut signature", valid[..valid.len() - 2].to_owned()),
            ("wrong key", signed(head, &good, b"the secret of another deployment")),
            ("empty key", signed(head, &good, b"")),
            ("the RSA public key as secret", signed(head, &good, rsa.public_key_pem().as_bytes())),
            ("kid injection", signed(r#"{"alg":"HS256","kid":"/dev/null"}"#, &good, b"")),
            ("jku injection", signed(r#"{"alg":"HS256","jku":"http://evil.example/keys"}"#, &good, b"evil")),
            ("jku, signed by us", signed(r#"{"alg":"HS256","jku":"http://evil.example/keys"}"#, &good, SECRET)),
            ("x5u, signed by us", signed(r#"{"alg":"HS256","x5u":"http://evil.example/cert"}"#, &good, SECRET)),
            ("crit", signed(r#"{"alg":"HS256","crit":["exp"]}"#, &good, SECRET)),
            ("expired", with(json!({ "exp": now - 60 }))),
            ("exp 0", with(json!({ "exp": 0 }))),
            ("exp negative", with(json!({ "exp": -1 }))),
            ("exp text", with(json!({ "exp": (now + 60).to_string() }))),
            ("nbf in the future", with(json!({ "nbf": now + 61 }))),
            ("no exp", with(json!({ "exp": null }))),
            ("no nbf", with(json!({ "nbf": null }))),
            ("no sub", with(json!({ "sub": null }))),
            ("no iss", with(json!({ "iss": null }))),
            ("another iss", with(json!({ "iss": "svix" }))),
            ("iss a list", with(json!({ "iss": [ISSUER] }))),
            ("another environment", with(json!({ "sub": "org_00000000000SvixManagement00" }))),
            ("another org beside ours", with(json!({ "org": "org_00000000000SvixManagement00" }))),
            ("a user", with(json!({ "sub": "user_23rb8YdGqMT0qIzpgGwdXfHirMu" }))),
            ("empty sub", with(json!({ "sub": "" }))),
            ("an app of another org", with(json!({ "sub": app, "org": "org_00000000000SvixManagement00" }))),
            ("an app of no org", with(json!({ "sub": app }))),
            ("an app of another deployment", with(json!({ "sub": other_app, "org": ENVIRONMENT }))),
            ("an app's uid", with(json!({ "sub": "customer-7", "org": ENVIRONMENT }))),
            ("an unknown capability", with(json!({ "sub": app, "org": ENVIRONMENT, "capabilities": ["Root"] }))),
            ("a limited environment", with(json!({ "read_only": true }))),
            ("duplicated sub", signed(head, &good.replacen('{', &format!(r#"{{"sub":"{app}","#), 1), SECRET)),
            ("duplicated exp", signed(head, &good.replacen('{', r#"{"exp":9999999999,"#, 1), SECRET)),
            ("claims not an object", signed(head, "[]", SECRET)),
            ("claims not JSON", signed(head, "{", SECRET)),
            ("claims not UTF-8", {
                let message = format!("{}.{}", parts[0], BASE64_URL_SAFE_NO_PAD.encode(b"\xff\xfe"));
                format!("{message}.{}", parts[2])
            }),
            ("padded", format!("{}=.{}.{}", parts[0], parts[1], parts[2])),
            ("four parts", format!("{valid}.x")),
            ("two parts", format!("{}.{}", parts[0], parts[1])),
            ("dots", "..".to_owned()),
            ("nothing", String::new()),
            ("the secret itself", String::from_utf8_lossy(SECRET).into_owned()),
            ("spaces around", format!(" {valid} ")),
            (
                "JWS in JSON form",
                json!({ "protected": parts[0], "payload": parts[1], "signature": parts[2] }).to_string(),
            ),
            ("a megabyte", "x".repeat(1 << 20)),
            ("a megabyte, well signed", with(json!({ "padding": "x".repeat(1 << 20) }))),
            ("just over the limit", with(json!({ "padding": "x".repeat(TOKEN_MAX) }))),
        ];
        let tokens = tokens();
        assert_eq!(who(&tokens, &valid, NOW), Ok(Principal::Environment));
        for (what, token) in cases {
            assert_eq!(tokens.verify(&token, NOW), Err(TokenError), "{what}");
        }
    }

    #[test]
    fn a_token_signed_with_the_public_key_is_refused_where_pairs_are_used() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        for (algorithm, name, rcgen) in [
            (TokenAlgorithm::RS256, "RS256", &rcgen::PKCS_RSA_SHA256),
            (TokenAlgorithm::EdDSA, "EdDSA", &rcgen::PKCS_ED25519),
        ] {
            let (key, other) = (pair(rcgen), pair(rcgen));
            let path = |name: &str| folder.path().join(format!("{algorithm:?}-{name}"));
            let write = |name: &str, text: String| {
                fs::write(path(name), text).expect("written");
                #[cfg(unix)]
                {
                    use std::os::unix::fs::PermissionsExt;
                    fs::set_permissions(path(name), fs::Permissions::from_mode(0o600)).expect("changed");
                }
                path(name)
            };
            let public = write("public", key.public_key_pem());
            let private = write("private", key.serialize_pem());
            let stranger = write("stranger", other.serialize_pem());

            let with_private = |private| tokens_with(algorithm, TokenKey::Pair { public: public.clone(), private });
            let both = with_private(Some(private)).expect("a pair");
            let token = both.mint_environment(NOW, Duration::from_secs(60)).expect("minted");
            assert_eq!(who(&both, &token, NOW), Ok(Principal::Environment));

            let half = with_private(None).expect("the public half");
            assert_eq!(who(&half, &token, NOW), Ok(Principal::Environment));
            assert!(matches!(half.mint_environment(NOW, Duration::ZERO), Err(MintError::NoPrivateKey)));

            let claims = good_claims().to_string();
            let pem = key.public_key_pem();
            for header in [r#"{"alg":"HS256"}"#.to_owned(), format!(r#"{{"alg":"{name}"}}"#)] {
                for key in [pem.as_bytes(), pem.trim().as_bytes(), key.public_key_raw()] {
                    assert_eq!(both.verify(&signed(&header, &claims, key), NOW), Err(TokenError), "{header}");
                }
            }
            assert!(matches!(with_private(Some(stranger)), Err(TokenKeyError::NotAPair { .. })));
            assert!(matches!(
                with_private(Some(public.clone())),
                Err(TokenKeyError::NotAKey { .. } | TokenKeyError::NotAPair { .. })
            ));
            assert!(matches!(with_private(Some(path("none"))), Err(TokenKeyError::Read { .. })));
        }
    }

    #[test]
    fn two_deployments_do_not_take_one_anothers_tokens() {
        let [a, b] = [(); 2].map(|()| tokens_with(TokenAlgorithm::HS256, TokenKey::Keyring).expect("made"));
        let token = a.mint_environment(NOW, Duration::from_secs(60)).expect("minted");
        assert_eq!(who(&a, &token, NOW), Ok(Principal::Environment));
        assert_eq!(b.verify(&token, NOW), Err(TokenError));
    }
}
