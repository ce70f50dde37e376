//! Decides whether a request comes from someone who holds a secret, and comes in time.
//!
//! The timestamp is signed in the very text it arrived in. Reading it to a number and writing it out
//! again, as others do, would accept spellings that nobody signed.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use crate::ed25519::PUBLIC_PREFIX;
use crate::sign::{SharedKey, Tag, VERSION, VERSION_ED25519, signed_text};
use crate::{PublicKey, Secret, SecretError, Signed, SigningSecret};

/// Accepts what any of its secrets and keys has signed, so that one can be rotated without a gap.
#[derive(Debug, Clone)]
pub struct Verifier {
    keys: Vec<SharedKey>,
    public: Vec<PublicKey>,
    tolerance: Duration,
}

/// Whatever a receiver may verify with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifyingSecret {
    Shared(Secret),
    Ed25519(PublicKey),
}

impl VerifyingSecret {
    /// Reads `whpk_<base64>` as a public key, and all else as [`Secret::parse`] does.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        if text.starts_with(PUBLIC_PREFIX) {
            PublicKey::parse(text).map(Self::Ed25519)
        } else {
            Secret::parse(text).map(Self::Shared)
        }
    }
}

impl From<Secret> for VerifyingSecret {
    fn from(secret: Secret) -> Self {
        Self::Shared(secret)
    }
}

impl From<PublicKey> for VerifyingSecret {
    fn from(key: PublicKey) -> Self {
        Self::Ed25519(key)
    }
}

impl From<SigningSecret> for VerifyingSecret {
    fn from(secret: SigningSecret) -> Self {
        match secret {
            SigningSecret::Shared(secret) => Self::Shared(secret),
            SigningSecret::Ed25519(key) => Self::Ed25519(key.public()),
        }
    }
}

impl Verifier {
    pub fn new(secrets: impl IntoIterator<Item: Into<VerifyingSecret>>) -> Self {
        let mut verifier = Self { keys: Vec::new(), public: Vec::new(), tolerance: TOLERANCE_DEFAULT };
        for secret in secrets {
            match secret.into() {
                VerifyingSecret::Shared(secret) => verifier.keys.push(SharedKey::new(&secret)),
                VerifyingSecret::Ed25519(key) => verifier.public.push(key),
            }
        }
        verifier
    }

    /// How far the timestamp may lie from `now`, either way. Five minutes unless told.
    pub fn with_tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// `body` is the bytes as they arrived; JSON that was parsed and written again will not match.
    pub fn verify(&self, headers: Signed<'_>, body: &[u8], now: i64) -> Result<(), VerifyError> {
        let of_version = |version| signatures(headers.signature, version);
        // Who has no public key knows nothing of the other version.
        let is_any = of_version(VERSION).next().is_some()
            || (!self.public.is_empty() && of_version(VERSION_ED25519).next().is_some());
        if !is_any {
            return Err(VerifyError::MissingSignature);
        }
        self.check_time(headers.timestamp, now)?;

        let signed = self.keys.iter().any(|key| {
            let expected = key.tag(headers.id, headers.timestamp, body);
            of_version(VERSION).filter_map(decode).any(|given| given.ct_eq(&expected).into())
        });
        if signed || self.is_signed_by_a_private_key(headers, body) { Ok(()) } else { Err(VerifyError::NoMatch) }
    }

    fn is_signed_by_a_private_key(&self, headers: Signed<'_>, body: &[u8]) -> bool {
        if self.public.is_empty() {
            return false;
        }
        let text = signed_text(headers.id, headers.timestamp, body);
        signatures(headers.signature, VERSION_ED25519)
            .take(ED25519_TRIED_MAX)
            .filter_map(|encoded| STANDARD.decode(encoded).ok())
            .any(|given| self.public.iter().any(|key| key.has_signed(&text, &given)))
    }

    /// How many there are, of both kinds.
    pub(crate) fn secrets(&self) -> usize {
        self.keys.len() + self.public.len()
    }

    pub(crate) fn keys(&self) -> &[SharedKey] {
        &self.keys
    }

    pub(crate) fn check_time(&self, timestamp: &str, now: i64) -> Result<(), VerifyError> {
        let timestamp: i64 = timestamp.parse().map_err(|_| VerifyError::BadTimestamp)?;
        if Duration::from_secs(now.abs_diff(timestamp)) > self.tolerance {
            return Err(if timestamp < now { VerifyError::TooOld } else { VerifyError::TooNew });
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the request carries no signature of a known version")]
    MissingSignature,
    #[error("no signature matches")]
    NoMatch,
    #[error("the timestamp is too old")]
    TooOld,
    #[error("the timestamp is too far in the future")]
    TooNew,
    #[error("the timestamp is not a number of seconds")]
    BadTimestamp,
}

fn signatures<'a>(header: &'a str, version: &'static str) -> impl Iterator<Item = &'a str> {
    header
        .split(' ')
        .filter_map(|signature| signature.split_once(','))
        .filter(move |(of, _)| *of == version)
        .map(|(_, encoded)| encoded)
}

fn decode(encoded: &str) -> Option<Tag> {
    let mut tag = Tag::default();
    let len = STANDARD.decode_slice(encoded, &mut tag).ok()?;
    (len == tag.len()).then_some(tag)
}

/// Each costs as much as thousands of hashes, and a stranger chooses how many there are. No sender has more active keys.
const ED25519_TRIED_MAX: usize = 16;

const TOLERANCE_DEFAULT: Duration = Duration::from_secs(5 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PrivateKey, SigningKey, sign};

    const NOW: i64 = 1_700_000_000;
    const BODY: &[u8] = br#"{"paid":true}"#;

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes(&[byte; 24]).unwrap()
    }

    fn signature(secrets: &[u8], timestamp: i64) -> String {
        let keys: Vec<_> = secrets.iter().map(|byte| SigningKey::new(&secret(*byte))).collect();
        sign(&keys, "msg_1", timestamp, BODY)
    }

    fn check(verifier: &Verifier, timestamp: &str, signature: &str) -> Result<(), VerifyError> {
        verifier.verify(Signed { id: "msg_1", timestamp, signature }, BODY, NOW)
    }

    #[test]
    fn one_common_secret_is_enough() {
        for (sender, receiver, expected) in [
            (&[1][..], &[1][..], Ok(())),
            (&[1, 2], &[2], Ok(())),
            (&[1, 2], &[1], Ok(())),
            (&[2], &[1, 2], Ok(())),
            (&[1, 2], &[2, 3], Ok(())),
            (&[1, 2], &[3, 4], Err(VerifyError::NoMatch)),
            (&[1], &[], Err(VerifyError::NoMatch)),
        ] {
            let verifier = Verifier::new(receiver.iter().map(|byte| secret(*byte)));
            let verdict = check(&verifier, &NOW.to_string(), &signature(sender, NOW));
            assert_eq!(verdict, expected, "signed with {sender:?}, verified with {receiver:?}");
        }
    }

    #[test]
    fn only_a_whole_v1_signature_counts() {
        let verifier = Verifier::new([secret(1)]);
        let good = signature(&[1], NOW);
        let tag = good.strip_prefix("v1,").unwrap();
        let bare = tag.trim_end_matches('=');
        let no_match = Err(VerifyError::NoMatch);
        let missing = Err(VerifyError::MissingSignature);

        for (header, expected) in [
            (good.clone(), Ok(())),
            (format!("v1a,{tag} v2,x {good}"), Ok(())),
            (format!("v1,AAAA v1,{tag}{tag} {good}"), Ok(())),
            (format!(" {good} "), Ok(())),
            ("v1,".into(), no_match),
            ("v1,not/base64!".into(), no_match),
            (format!("v1,{}", &tag[..40]), no_match),
            (format!("v1,{bare}"), no_match),
            (format!("v1,{tag},"), no_match),
            (String::new(), missing),
            ("v1".into(), missing),
            (tag.into(), missing),
            (format!("v1a,{tag}"), missing),
            (format!("V1,{tag}"), missing),
            (format!("v2,{tag} v1a,{tag}"), missing),
        ] {
            assert_eq!(check(&verifier, &NOW.to_string(), &header), expected, "{header:?}");
        }
    }

    #[test]
    fn a_timestamp_must_be_near_now() {
        let five_minutes = Verifier::new([secret(1)]);
        let a_second = five_minutes.clone().with_tolerance(Duration::from_secs(1));
        let any_time = five_minutes.clone().with_tolerance(Duration::MAX);

        for (verifier, timestamp, expected) in [
            (&five_minutes, NOW - 300, Ok(())),
            (&five_minutes, NOW - 301, Err(VerifyError::TooOld)),
            (&five_minutes, NOW + 300, Ok(())),
            (&five_minutes, NOW + 301, Err(VerifyError::TooNew)),
            (&five_minutes, i64::MIN, Err(VerifyError::TooOld)),
            (&five_minutes, i64::MAX, Err(VerifyError::TooNew)),
            (&a_second, NOW - 1, Ok(())),
            (&a_second, NOW - 2, Err(VerifyError::TooOld)),
            (&any_time, i64::MIN, Ok(())),
            (&any_time, i64::MAX, Ok(())),
        ] {
            let verdict = check(verifier, &timestamp.to_string(), &signature(&[1], timestamp));
            assert_eq!(verdict, expected, "{timestamp} within {:?}", verifier.tolerance);
        }
    }

    #[test]
    fn a_timestamp_counts_only_as_it_was_signed() {
        let verifier = Verifier::new([secret(1)]);
        for (timestamp, expected) in [
            (format!("{NOW}"), Ok(())),
            (format!("+{NOW}"), Err(VerifyError::NoMatch)),
            (format!("0{NOW}"), Err(VerifyError::NoMatch)),
            (format!(" {NOW}"), Err(VerifyError::BadTimestamp)),
            (format!("{NOW}.0"), Err(VerifyError::BadTimestamp)),
            ("2023-11-14T22:13:20Z".into(), Err(VerifyError::BadTimestamp)),
            ("9223372036854775808".into(), Err(VerifyError::BadTimestamp)),
            (String::new(), Err(VerifyError::BadTimestamp)),
        ] {
            assert_eq!(check(&verifier, &timestamp, &signature(&[1], NOW)), expected, "{timestamp:?}");
        }
    }

    #[test]
    fn a_public_key_verifies_what_its_private_half_signed() {
        let (key, other) = (PrivateKey::from_seed(&[1; 32]), PrivateKey::from_seed(&[2; 32]));
        let both = [SigningKey::Ed25519(key.clone()), SigningKey::new(&secret(1))];
        let signature = sign(&both, "msg_1", NOW, BODY);
        assert!(signature.starts_with("v1a,") && signature.contains(" v1,"), "{signature}");
        let now = NOW.to_string();
        assert_eq!(check(&Verifier::new([key.public()]), &now, &signature), Ok(()));
        assert_eq!(check(&Verifier::new([secret(1)]), &now, &signature), Ok(()));
        assert_eq!(check(&Verifier::new([other.public()]), &now, &signature), Err(VerifyError::NoMatch));
        let alone = sign(&both[..1], "msg_1", NOW, BODY);
        assert_eq!(check(&Verifier::new([secret(1)]), &now, &alone), Err(VerifyError::MissingSignature));
        let renamed = alone.replace("v1a,", "v1,");
        assert_eq!(check(&Verifier::new([key.public()]), &now, &renamed), Err(VerifyError::NoMatch));
        let many = format!("{}{alone}", "v1a,AAAA ".repeat(ED25519_TRIED_MAX));
        assert_eq!(check(&Verifier::new([key.public()]), &now, &many), Err(VerifyError::NoMatch), "one too many");
    }

    #[test]
    fn debug_does_not_show_the_secrets() {
        let shown = format!("{:?}", Verifier::new([secret(1)]));
        assert_eq!(shown, "Verifier { keys: [SharedKey(***)], public: [], tolerance: 300s }");
    }
}
