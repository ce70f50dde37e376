//! Decides whether a request comes from someone who holds a secret, and comes in time.
//!
//! The timestamp is signed in the very text it arrived in. Reading it to a number and writing it out
//! again, as others do, would accept spellings that nobody signed.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use crate::sign::{Tag, VERSION};
use crate::{Secret, Signed, SigningKey};

/// Accepts what any of its secrets has signed, so that a secret can be rotated without a gap.
#[derive(Debug, Clone)]
pub struct Verifier {
    keys: Vec<SigningKey>,
    tolerance: Duration,
}

impl Verifier {
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let keys = secrets.into_iter().map(|secret| SigningKey::new(&secret)).collect();
        Self { keys, tolerance: TOLERANCE_DEFAULT }
    }

    /// How far the timestamp may lie from `now`, either way. Five minutes unless told.
    pub fn with_tolerance(self, tolerance: Duration) -> Self {
        Self { tolerance, ..self }
    }

    /// `body` is the bytes as they arrived; JSON that was parsed and written again will not match.
    pub fn verify(&self, headers: Signed<'_>, body: &[u8], now: i64) -> Result<(), VerifyError> {
        if v1_signatures(headers.signature).next().is_none() {
            return Err(VerifyError::MissingSignature);
        }
        self.check_time(headers.timestamp, now)?;

        let signed = self.keys.iter().any(|key| {
            let expected = key.tag(headers.id, headers.timestamp, body);
            v1_signatures(headers.signature).filter_map(decode).any(|given| given.ct_eq(&expected).into())
        });
        if signed { Ok(()) } else { Err(VerifyError::NoMatch) }
    }

    pub(crate) fn keys(&self) -> &[SigningKey] {
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

fn v1_signatures(header: &str) -> impl Iterator<Item = &str> {
    header.split(' ').filter_map(|signature| match signature.split_once(',') {
        Some((VERSION, encoded)) => Some(encoded),
        Some(_) | None => None,
    })
}

fn decode(encoded: &str) -> Option<Tag> {
    let mut tag = Tag::default();
    let len = STANDARD.decode_slice(encoded, &mut tag).ok()?;
    (len == tag.len()).then_some(tag)
}

const TOLERANCE_DEFAULT: Duration = Duration::from_secs(5 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign;

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
    fn debug_does_not_show_the_secrets() {
        let shown = format!("{:?}", Verifier::new([secret(1)]));
        assert_eq!(shown, "Verifier { keys: [SigningKey(***)], tolerance: 300s }");
    }
}
