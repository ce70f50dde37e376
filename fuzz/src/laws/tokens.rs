//! Tokens: those we made are known again, those that differ in a letter are not, and what a token claims is believed
//! only as far as it goes.

use super::draws::Draws;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use postrider::{
    config::{Hidden, TokenAlgorithm, TokenKey, TokenSettings},
    ids::IdCodec,
    keyring::Keyring,
    tokens::{Access, Capability, ENVIRONMENT, Principal, Tokens},
};
use postrider_engine::{AppKey, Timestamp};
use serde_json::{Map, Value, json};
use std::{sync::LazyLock, time::Duration};

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let at = Timestamp::from_millis(draws.any::<i64>().rem_euclid(1 << 52));
    let life = Duration::from_secs(u64::from(draws.any::<u32>()));
    match draws.below(3) {
        0 => made(&mut draws, at, life),
        1 => claimed(&mut draws, at),
        _ => {
            let garbage = String::from_utf8_lossy(draws.rest());
            assert!(OURS.verify(&garbage, at).is_err(), "{garbage}");
        }
    }
}

fn made(draws: &mut Draws<'_>, at: Timestamp, life: Duration) {
    let app = AppKey::new(draws.any::<i64>() & i64::MAX);
    let access = Access {
        capabilities: draws.several(6, |draws| draws.one_of(&Capability::ALL)),
        feature_flags: draws.maybe(|draws| draws.several(3, Draws::text)),
        poller: None,
    };
    let flip = draws.any::<u32>();
    let (token, principal) = if draws.any() {
        (OURS.mint_environment(at, life), Principal::Environment)
    } else {
        (OURS.mint_application(app, &access, at, life), Principal::Application { app, access })
    };
    let token = token.expect("there is a key to sign with");
    let fits = token.len() <= 4096;
    let read = OURS.verify(&token, at).ok();
    assert_eq!(read.map(|read| read.principal), fits.then_some(principal), "as it was made");
    assert!(THEIRS.verify(&token, at).is_err(), "another deployment's");
    let expired = at.plus(life).plus(Duration::from_secs(61));
    assert!(OURS.verify(&token, expired).is_err());
    assert!(OURS.verify(&token, at.minus(Duration::from_secs(61))).is_err() || at.as_millis() < 61_000);

    let mut letters = token.into_bytes();
    let place = usize::try_from(flip >> 3).unwrap_or(0) % letters.len();
    letters[place] ^= 1 << (flip % 7);
    let altered = String::from_utf8(letters).expect("one of the lower seven bits");
    assert!(OURS.verify(&altered, at).is_err(), "{altered}");
}

/// Signed with the right key, whoever wrote it.
fn claimed(draws: &mut Draws<'_>, at: Timestamp) {
    let now = at.as_millis() / 1_000;
    let mut header = Header::new(draws.one_of(&[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512]));
    if draws.any() {
        header.jku = draws.maybe(Draws::text);
        header.crit = draws.maybe(|draws| draws.several(2, Draws::text));
    }
    let plain = header.jku.is_none() && header.crit.is_none() && header.alg == Algorithm::HS256;
    let id = IDS.id_of(AppKey::new(draws.any::<i64>() & i64::MAX));
    let mut claims = json!({"iss": "svix-server", "sub": ENVIRONMENT, "nbf": now, "exp": now + 5});
    let more: Map<String, Value> = {
        let subject = draws.one_of(&[id, ENVIRONMENT.to_owned(), String::new()]);
        let rest = draws.rest();
        let mut more = serde_json::from_slice::<Map<String, Value>>(rest).unwrap_or_default();
        if !subject.is_empty() {
            more.insert("sub".into(), subject.into());
        }
        more
    };
    claims.as_object_mut().expect("an object").extend(more);
    let Ok(token) = encode(&header, &claims, &EncodingKey::from_secret(SECRET.as_bytes())) else { return };
    let Ok(read) = OURS.verify(&token, at) else { return };
    assert!(plain, "{header:?}");
    assert_eq!(claims["iss"], "svix-server");
    let (from, until) = (claims["nbf"].as_u64(), claims["exp"].as_u64());
    let now = now.cast_unsigned();
    assert!(from.is_some_and(|from| from <= now + 60) && until.is_some_and(|until| now < until.saturating_add(60)));
    assert!(read.from <= at && at < read.until, "{claims}");
    match read.principal {
        Principal::Environment => {
            assert_eq!(claims["sub"], ENVIRONMENT);
            assert!(
                claims.get("read_only").is_none_or(Value::is_null)
                    && claims.get("capabilities").is_none_or(Value::is_null),
                "{claims}"
            );
        }
        Principal::Application { app, access } => {
            assert_eq!((claims["sub"].as_str(), claims["org"].as_str()), (Some(&*IDS.id_of(app)), Some(ENVIRONMENT)));
            if claims.get("read_only") == Some(&Value::Bool(true)) {
                assert!(access.capabilities.iter().all(|capability| *capability == Capability::ViewBase), "{claims}");
            }
            if let Some(list) = claims.get("capabilities").and_then(Value::as_array) {
                assert!(access.capabilities.len() <= list.len(), "{claims}");
            }
        }
    }
}

static IDS: LazyLock<IdCodec> = LazyLock::new(|| IdCodec::new([3; 16]));
static OURS: LazyLock<Tokens> = LazyLock::new(|| tokens(SECRET));
static THEIRS: LazyLock<Tokens> = LazyLock::new(|| tokens("another secret of thirty-two bytes and more"));
const SECRET: &str = "a secret that is long enough for this: 32";

fn tokens(secret: &str) -> Tokens {
    let folder = tempfile::tempdir().expect("a folder for a keyring");
    let keyring = Keyring::open_or_create(folder.path()).expect("a keyring");
    let key = TokenKey::Secret(Hidden::new(secret.to_owned()));
    let settings = TokenSettings { algorithm: TokenAlgorithm::HS256, key };
    Tokens::new(&settings, &keyring, IDS.clone()).expect("a secret needs no file")
}
