//! Forms that put signatures into one header of a name of its own, as `name=value` pairs.
//!
//! Stripe's is `t=<unix>,v1=<hex>`, and its libraries exist for every language; the other one,
//! `scheme=v1,ts=<unix>,sig=<hex>`, names its parts in full. Both sign `<unix>.<body>`, without the id.
//!
//! Both key the hash with the secret's text, `whsec_` and all, where Standard Webhooks takes the bytes that
//! the text stands for. Stripe's verifiers take it that way, and so does anyone who writes
//! `createHmac('sha256', secret)` with what they copied. The text is that of [`crate::Secret::reveal`]: padded,
//! with its prefix, however it was typed in.

use std::fmt::{self, Write};

use subtle::ConstantTimeEq;

use crate::sign::{Tag, VERSION};
use crate::{SigningKey, Verifier, VerifyError};

/// Signs an attempt in Stripe's form: `t=<unix>,v1=<hex>`, and one more `v1` for each further key.
///
/// ```
/// use postrider_signature::{Secret, SigningKey, Verifier, stripe_header};
///
/// let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?;
/// let header = stripe_header(&[SigningKey::new(&secret)], 1649367553, b"{}");
/// assert!(header.starts_with("t=1649367553,v1="));
/// assert_eq!(Verifier::new([secret]).verify_stripe(&header, b"{}", 1649367555), Ok(()));
/// # Ok::<(), postrider_signature::SecretError>(())
/// ```
pub fn stripe_header(keys: &[SigningKey], timestamp: i64, body: &[u8]) -> String {
    header(&STRIPE, keys, timestamp, body)
}

/// Signs an attempt in the form `scheme=v1,ts=<unix>,sig=<hex>`, with one more `sig` for each further key.
///
/// The first key's signature comes first. A receiver that takes all that follows `sig=` as one signature
/// understands the header only while there is one key.
pub fn scheme_header(keys: &[SigningKey], timestamp: i64, body: &[u8]) -> String {
    header(&SCHEME, keys, timestamp, body)
}

/// Signs an attempt in GitHub's form, `sha256=<hex>`, of the body alone. There is no place for the time, so whoever kept a
/// request can repeat it, and none for a second signature, so the first secret signs. `None`: there is no secret, only
/// private keys.
pub fn github_header(keys: &[SigningKey], body: &[u8]) -> Option<String> {
    let key = keys.iter().find_map(SigningKey::shared)?;
    Some(format!("{GITHUB}{}", Hex(key.body_tag(body))))
}

impl Verifier {
    /// Verifies a header in GitHub's form. `body` is the bytes as they arrived.
    pub fn verify_github(&self, header: &str, body: &[u8]) -> Result<(), VerifyError> {
        let given = header.strip_prefix(GITHUB).ok_or(VerifyError::MissingSignature)?;
        let signed = self.keys().iter().any(|key| {
            let expected = Hex(key.body_tag(body)).to_string();
            given.as_bytes().ct_eq(expected.as_bytes()).into()
        });
        if signed { Ok(()) } else { Err(VerifyError::NoMatch) }
    }

    /// Verifies a header in Stripe's form. `body` is the bytes as they arrived.
    pub fn verify_stripe(&self, header: &str, body: &[u8], now: i64) -> Result<(), VerifyError> {
        self.verify_pairs(&STRIPE, header, body, now)
    }

    /// Verifies a header that [`scheme_header`] could have made. `body` is the bytes as they arrived.
    pub fn verify_scheme(&self, header: &str, body: &[u8], now: i64) -> Result<(), VerifyError> {
        self.verify_pairs(&SCHEME, header, body, now)
    }

    fn verify_pairs(&self, form: &Form, header: &str, body: &[u8], now: i64) -> Result<(), VerifyError> {
        let named = |wanted: &'static str| {
            let pairs = header.split(',').filter_map(|pair| pair.split_once('='));
            pairs.filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
        };
        let is_known_version = form.version.is_none_or(|name| named(name).eq([VERSION]));
        if !is_known_version || named(form.signature).next().is_none() {
            return Err(VerifyError::MissingSignature);
        }
        let mut times = named(form.time);
        // Of two times, one parser believes the first and another the last.
        let (Some(timestamp), None) = (times.next(), times.next()) else {
            return Err(VerifyError::BadTimestamp);
        };
        self.check_time(timestamp, now)?;

        let signed = self.keys().iter().any(|key| {
            let expected = Hex(key.text_tag(timestamp, body)).to_string();
            // Of unequal lengths this says no, and nothing else.
            named(form.signature).any(|given| given.as_bytes().ct_eq(expected.as_bytes()).into())
        });
        if signed { Ok(()) } else { Err(VerifyError::NoMatch) }
    }
}

fn header(form: &Form, keys: &[SigningKey], timestamp: i64, body: &[u8]) -> String {
    let mut header = String::with_capacity(PREAMBLE_LEN_MAX + keys.len() * SIGNATURE_LEN_MAX);
    let written = (|| {
        if let Some(version) = form.version {
            write!(header, "{version}={VERSION},")?;
        }
        write!(header, "{}={timestamp}", form.time)?;
        let keys = keys.iter().filter_map(SigningKey::shared);
        keys.into_iter()
            .try_for_each(|key| write!(header, ",{}={}", form.signature, Hex(key.text_tag(timestamp, body))))
    })();
    written.expect("writing to a string does not fail");
    header
}

/// What the pairs of a form are called.
struct Form {
    version: Option<&'static str>,
    time: &'static str,
    signature: &'static str,
}

/// In lower case, as everyone who compares text expects.
struct Hex(Tag);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

const GITHUB: &str = "sha256=";
const STRIPE: Form = Form { version: None, time: "t", signature: VERSION };
const SCHEME: Form = Form { version: Some("scheme"), time: "ts", signature: "sig" };

/// `scheme=v1,ts=` and the longest number.
const PREAMBLE_LEN_MAX: usize = 13 + 20;
/// `,sig=` and 32 bytes in hex.
const SIGNATURE_LEN_MAX: usize = 5 + 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PrivateKey, Secret};
    use std::time::Duration;

    const NOW: i64 = 1_700_000_000;
    const BODY: &[u8] = br#"{"paid":true}"#;

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes(&[byte; 24]).unwrap()
    }

    fn keys(secrets: &[u8]) -> Vec<SigningKey> {
        secrets.iter().map(|byte| SigningKey::new(&secret(*byte))).collect()
    }

    fn hex(key: u8) -> String {
        Hex(keys(&[key])[0].shared().unwrap().text_tag(NOW, BODY)).to_string()
    }

    #[test]
    fn every_key_signs_in_the_order_given() {
        let (first, second) = (hex(1), hex(2));
        for (signing, stripe, scheme) in [
            (&[][..], format!("t={NOW}"), format!("scheme=v1,ts={NOW}")),
            (&[1], format!("t={NOW},v1={first}"), format!("scheme=v1,ts={NOW},sig={first}")),
            (
                &[1, 2],
                format!("t={NOW},v1={first},v1={second}"),
                format!("scheme=v1,ts={NOW},sig={first},sig={second}"),
            ),
        ] {
            assert_eq!(stripe_header(&keys(signing), NOW, BODY), stripe);
            assert_eq!(scheme_header(&keys(signing), NOW, BODY), scheme);
        }
    }

    #[test]
    fn a_header_is_allocated_once() {
        let (two, time) = (keys(&[1, 2]), i64::MIN);
        assert_eq!(scheme_header(&two, time, BODY).len(), PREAMBLE_LEN_MAX + 2 * SIGNATURE_LEN_MAX);
        assert!(stripe_header(&two, time, BODY).len() < PREAMBLE_LEN_MAX + 2 * SIGNATURE_LEN_MAX);
    }

    #[test]
    fn githubs_form_has_one_signature_of_the_body() {
        // From GitHub's documentation of webhooks, with its secret as the text that it is.
        let documented = Hex(hashed(b"It's a Secret to Everybody", b"Hello, World!")).to_string();
        assert_eq!(documented, "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17");
        let header = github_header(&keys(&[1, 2]), BODY).unwrap();
        assert_eq!(header, format!("sha256={}", Hex(keys(&[1])[0].shared().unwrap().body_tag(BODY))));
        assert_eq!(Verifier::new([secret(2), secret(1)]).verify_github(&header, BODY), Ok(()));
        assert_eq!(Verifier::new([secret(2)]).verify_github(&header, BODY), Err(VerifyError::NoMatch));
        assert_eq!(Verifier::new([secret(1)]).verify_github(&header, b"{}"), Err(VerifyError::NoMatch));
        assert_eq!(Verifier::new([secret(1)]).verify_github("sha1=00", BODY), Err(VerifyError::MissingSignature));
    }

    #[test]
    fn a_private_key_has_no_place_in_these_forms() {
        let keys = [SigningKey::Ed25519(PrivateKey::from_seed(&[1; 32]))];
        assert_eq!(stripe_header(&keys, NOW, BODY), format!("t={NOW}"));
        assert_eq!(github_header(&keys, BODY), None);
    }

    fn hashed(key: &[u8], text: &[u8]) -> Tag {
        use hmac::{Hmac, KeyInit, Mac};
        Hmac::<sha2::Sha256>::new_from_slice(key).unwrap().chain_update(text).finalize().into_bytes().into()
    }

    #[test]
    fn one_common_secret_is_enough() {
        for (sender, receiver, expected) in [
            (&[1][..], &[1][..], Ok(())),
            (&[1, 2], &[2], Ok(())),
            (&[1, 2], &[1], Ok(())),
            (&[2], &[1, 2], Ok(())),
            (&[1, 2], &[3, 4], Err(VerifyError::NoMatch)),
            (&[1], &[], Err(VerifyError::NoMatch)),
            (&[], &[1], Err(VerifyError::MissingSignature)),
        ] {
            let verifier = Verifier::new(receiver.iter().map(|byte| secret(*byte)));
            let stripe = verifier.verify_stripe(&stripe_header(&keys(sender), NOW, BODY), BODY, NOW);
            let scheme = verifier.verify_scheme(&scheme_header(&keys(sender), NOW, BODY), BODY, NOW);
            assert_eq!((stripe, scheme), (expected, expected), "signed with {sender:?}, verified with {receiver:?}");
        }
    }

    #[test]
    fn only_a_whole_signature_of_a_known_version_counts() {
        let verifier = Verifier::new([secret(1)]);
        let good = hex(1);
        let no_match = Err(VerifyError::NoMatch);
        let missing = Err(VerifyError::MissingSignature);
        let bad_time = Err(VerifyError::BadTimestamp);

        for (header, expected) in [
            (format!("t={NOW},v1={good}"), Ok(())),
            (format!("v1={good},t={NOW}"), Ok(())),
            (format!("t={NOW},v0=abc,v1=abc,v1={good},new=1"), Ok(())),
            (format!("t={NOW},v1="), no_match),
            (format!("t={NOW},v1={}", &good[..63]), no_match),
            (format!("t={NOW},v1={good}0"), no_match),
            (format!("t={NOW},v1={}", good.to_uppercase()), no_match),
            (format!("t={NOW},v1=é{good}"), no_match),
            (format!("t={NOW},v0={good}"), missing),
            (format!("t={NOW},{good}"), missing),
            (format!("t={NOW}, v1={good}"), missing),
            (format!("t={NOW}"), missing),
            (String::new(), missing),
            (format!("v1={good}"), bad_time),
            (format!("t=,v1={good}"), bad_time),
            (format!("t={NOW}.0,v1={good}"), bad_time),
            (format!("t={NOW},t={NOW},v1={good}"), bad_time),
            (format!("t=+{NOW},v1={good}"), no_match),
            (format!("t=0{NOW},v1={good}"), no_match),
        ] {
            assert_eq!(verifier.verify_stripe(&header, BODY, NOW), expected, "{header:?}");
        }
        for (header, expected) in [
            (format!("scheme=v1,ts={NOW},sig={good}"), Ok(())),
            (format!("sig={good},sig=abc,ts={NOW},scheme=v1"), Ok(())),
            (format!("scheme=v1,ts={NOW},sig={}", &good[..63]), no_match),
            (format!("scheme=v2,ts={NOW},sig={good}"), missing),
            (format!("scheme=v1,scheme=v2,ts={NOW},sig={good}"), missing),
            (format!("ts={NOW},sig={good}"), missing),
            (format!("scheme=v1,ts={NOW},v1={good}"), missing),
            (format!("scheme=v1,t={NOW},sig={good}"), bad_time),
            (format!("scheme=v1,ts={NOW},ts=1,sig={good}"), bad_time),
        ] {
            assert_eq!(verifier.verify_scheme(&header, BODY, NOW), expected, "{header:?}");
        }
    }

    #[test]
    fn a_timestamp_must_be_near_now() {
        let five_minutes = Verifier::new([secret(1)]);
        let any_time = five_minutes.clone().with_tolerance(Duration::MAX);
        for (verifier, timestamp, expected) in [
            (&five_minutes, NOW - 300, Ok(())),
            (&five_minutes, NOW - 301, Err(VerifyError::TooOld)),
            (&five_minutes, NOW + 300, Ok(())),
            (&five_minutes, NOW + 301, Err(VerifyError::TooNew)),
            (&five_minutes, i64::MIN, Err(VerifyError::TooOld)),
            (&any_time, i64::MIN, Ok(())),
            (&any_time, i64::MAX, Ok(())),
        ] {
            let stripe = verifier.verify_stripe(&stripe_header(&keys(&[1]), timestamp, BODY), BODY, NOW);
            let scheme = verifier.verify_scheme(&scheme_header(&keys(&[1]), timestamp, BODY), BODY, NOW);
            assert_eq!((stripe, scheme), (expected, expected), "{timestamp}");
        }
    }

    #[test]
    fn the_forms_do_not_pass_for_one_another() {
        let verifier = Verifier::new([secret(1)]);
        let (stripe, scheme) = (stripe_header(&keys(&[1]), NOW, BODY), scheme_header(&keys(&[1]), NOW, BODY));
        assert!(verifier.verify_stripe(&scheme, BODY, NOW).is_err());
        assert!(verifier.verify_scheme(&stripe, BODY, NOW).is_err());
    }
}
