//! Sources: where other services send their webhooks, which become messages of the source's application (decision 23).
//!
//! What a source is lies sealed in its application's row, because most of it is secret: the token in its URL and what
//! requests are verified with. `presets` knows the services and `fields` what they want
//! to know; `reading` makes a message of a request; `challenge` answers
//! what a service asks before it sends anything.

pub mod challenge;
pub mod fields;
pub mod presets;
pub mod reading;

use crate::{
    ids::{DIGITS_SHORT, IdCodec, Kind, SourceKey},
    rules::headers::is_forbidden,
};
use challenge::Challenge;
use postrider_engine::{AppKey, Timestamp};
use presets::{Flaw, Preset};
use rand::CryptoRng;
use reading::Place;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{fmt, time::Duration};
use subtle::ConstantTimeEq;

/// What is sealed.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// In the source's URL.
    pub token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_token: Option<OldToken>,
    /// Headers that go along, besides those of the preset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pass_headers: Vec<String>,
    /// Where an event's id stands, before where the preset looks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_from: Option<Place>,
    /// The same for its type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_from: Option<Place>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct OldToken {
    token: String,
    /// Milliseconds since 1970.
    until: i64,
}

impl Settings {
    pub fn read(plain: &[u8]) -> Option<Self> {
        serde_json::from_slice(plain).ok()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and JSON serialise")
    }

    /// Whether a text has a token of this source's URLs in it.
    pub fn has_token_in(&self, text: &[u8]) -> bool {
        let tokens = [Some(&self.token), self.old_token.as_ref().map(|old| &old.token)];
        let has = |token: &String| text.windows(token.len().max(1)).any(|window| window == token.as_bytes());
        tokens.into_iter().flatten().any(has)
    }

    /// The URL that was holds on for a while, so that nothing is lost until the sender has heard of the new one.
    pub fn with_new_token(self, token: String, now: Timestamp) -> Self {
        let old_token = OldToken { token: self.token, until: now.plus(GRACE).as_millis() };
        Self { token, old_token: Some(old_token), ..self }
    }
}

/// Shows what kind it is, and nothing that is secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.kind)
    }
}

/// A source, ready to take requests.
pub struct Source {
    pub settings: Settings,
    pub preset: &'static Preset,
    pub challenge: Challenge,
    /// What of the configuration may be shown.
    pub shown: Option<Value>,
    verifier: Option<postrider_signature::Source>,
    /// The header that a secret stands in: it is not kept.
    secret_header: Option<String>,
    ids: Vec<Place>,
    types: Vec<Place>,
}

/// Its application says that it is a source, and it cannot be read. The log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable;

impl Source {
    /// What was unsealed.
    pub fn read(plain: &[u8]) -> Result<Self, String> {
        let settings = Settings::read(plain).ok_or("it has a form that this version does not know")?;
        // Why a configuration is refused may quote it, and this goes into the log.
        Self::of(settings).map_err(|_| "its type or configuration is none that this version knows".to_owned())
    }

    pub fn of(settings: Settings) -> Result<Self, Flaw> {
        let preset = presets::find(&settings.kind)?;
        let prepared = preset.prepare(settings.config.as_ref())?;
        check_pass_headers(&settings.pass_headers)?;
        let places = |own: &Option<Place>, usual: &[&str]| {
            let usual = usual.iter().filter_map(|text| Place::parse(text));
            own.clone().into_iter().chain(usual).collect::<Vec<_>>()
        };
        Ok(Self {
            preset,
            challenge: prepared.challenge,
            shown: prepared.shown,
            verifier: prepared.verifier,
            secret_header: prepared.secret_header,
            ids: places(&settings.id_from, preset.ids),
            types: places(&settings.type_from, preset.types),
            settings,
        })
    }

    /// Not whoever knows the URL is believed.
    pub fn verifies(&self) -> bool {
        self.verifier.is_some()
    }

    /// Whether this is the token of its URL, or the one before in its time of grace.
    pub fn has_token(&self, given: &str, now: Timestamp) -> bool {
        let is = |token: &str| bool::from(token.as_bytes().ct_eq(given.as_bytes()));
        let old = self.settings.old_token.as_ref().filter(|old| now.as_millis() < old.until);
        is(&self.settings.token) | old.is_some_and(|old| is(&old.token))
    }
}

fn check_pass_headers(names: &[String]) -> Result<(), Flaw> {
    if names.len() > PASS_HEADERS_MAX {
        return Err(Flaw::new("passHeaders", format!("at most {PASS_HEADERS_MAX} are allowed")));
    }
    for name in names {
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(Flaw::new("passHeaders", format!("`{name:.64}` is not the name of a header")));
        }
        let name = name.to_ascii_lowercase();
        if is_forbidden(&name) || reading::is_credential(&name) {
            return Err(Flaw::new("passHeaders", format!("`{name}` cannot be passed on")));
        }
    }
    Ok(())
}

/// The token of a source's URL: the digits of its id, which lead to it, and random ones that nobody can guess.
pub fn new_token(ids: &IdCodec, app: AppKey, rng: &mut impl CryptoRng) -> String {
    let id = ids.id_of(SourceKey(app));
    let mut token = id.strip_prefix(Kind::Source.prefix()).expect("an id begins with its prefix").to_owned();
    while token.len() < DIGITS_SHORT + RANDOM_DIGITS {
        let mut bytes = [0; 64];
        rng.fill_bytes(&mut bytes);
        let missing = DIGITS_SHORT + RANDOM_DIGITS - token.len();
        // 248 is the greatest multiple of 62 that a byte holds: what lies above would favour some digits.
        let fair = bytes.iter().filter(|byte| **byte < 248).take(missing);
        token.extend(fair.map(|byte| char::from(ALPHABET[usize::from(byte % 62)])));
    }
    token
}

/// Which source's a token can be. Made-up ones cost no look into the store.
pub fn app_of_token(ids: &IdCodec, token: &str) -> Option<AppKey> {
    let (digits, random) = token.split_at_checked(DIGITS_SHORT)?;
    if random.len() != RANDOM_DIGITS {
        return None;
    }
    ids.key_of::<SourceKey>(&format!("{}{digits}", Kind::Source.prefix())).map(|SourceKey(app)| app)
}

/// The uid of a source, as its application has it: no application's own can be like that.
pub fn app_uid(uid: &str) -> String {
    format!("{UID_PREFIX}{uid}")
}

/// The source's part of its application's uid.
pub fn source_uid(uid: &str) -> &str {
    uid.strip_prefix(UID_PREFIX).unwrap_or(uid)
}

pub const UID_PREFIX: &str = "src:";
/// 190 bits.
const RANDOM_DIGITS: usize = 32;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
pub const PASS_HEADERS_MAX: usize = 20;
pub const GRACE: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha20Rng;

    fn settings(token: &str) -> Settings {
        Settings {
            kind: "generic-webhook".to_owned(),
            config: None,
            token: token.to_owned(),
            old_token: None,
            pass_headers: Vec::new(),
            id_from: None,
            type_from: None,
        }
    }

    #[test]
    fn a_token_leads_to_its_source_and_cannot_be_made_up() {
        let (ids, mut rng) = (IdCodec::new([7; 16]), ChaCha20Rng::seed_from_u64(1));
        let (one, other) = (new_token(&ids, AppKey::new(5), &mut rng), new_token(&ids, AppKey::new(5), &mut rng));
        assert_ne!(one, other);
        assert_eq!((one.len(), app_of_token(&ids, &one)), (54, Some(AppKey::new(5))));
        let shifted = format!("z{}", &one[1..]);
        for wrong in ["", "x", &one[1..], &shifted, &format!("{one}x"), &"\u{e9}".repeat(27)] {
            assert_eq!(app_of_token(&ids, wrong), None, "{wrong}");
        }
        assert_eq!(app_of_token(&IdCodec::new([8; 16]), &one), None, "of another deployment");
    }

    #[test]
    fn the_old_token_holds_for_a_day() {
        let at = |millis| Timestamp::from_millis(millis);
        let source = Source::of(settings("old").with_new_token("new".to_owned(), at(1_000))).unwrap();
        let end = at(1_000).plus(GRACE);
        for (token, now, expected) in [
            ("new", at(1_000), true),
            ("new", end, true),
            ("old", at(end.as_millis() - 1), true),
            ("old", end, false),
            ("other", at(1_000), false),
            ("", at(1_000), false),
        ] {
            assert_eq!(source.has_token(token, now), expected, "{token} at {now:?}");
        }
    }

    #[test]
    fn credentials_and_what_we_set_ourselves_are_not_passed_on() {
        for (name, allowed) in [
            ("X-Mine", true),
            ("authorization", false),
            ("Cookie", false),
            ("webhook-id", false),
            ("content-length", false),
            ("host", false),
            ("a b", false),
        ] {
            let made = Source::of(Settings { pass_headers: vec![name.to_owned()], ..settings("t") });
            assert_eq!(made.is_ok(), allowed, "{name}");
        }
    }

    #[test]
    fn what_was_sealed_is_read_again_and_nothing_else() {
        let settings = settings("canary");
        let read = Source::read(&settings.to_bytes()).unwrap();
        assert!(read.settings == settings && !format!("{settings:?}").contains("canary"));
        assert!(Source::read(b"{}").is_err());
        let unknown = Settings { kind: "fax".to_owned(), ..settings };
        assert!(Source::read(&unknown.to_bytes()).is_err());
    }
}
