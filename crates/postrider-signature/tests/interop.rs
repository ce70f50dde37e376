//! The official library takes what we sign, and we take what it signs; where there is none to call from
//! here, what another implementation made of the same text.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use postrider_signature::{Secret, Signed, SigningKey, Verifier, WEBHOOK_HEADERS, scheme_header, sign, stripe_header};
use proptest::prelude::*;
use standardwebhooks::Webhook;

proptest! {
    #[test]
    fn the_official_verifier_accepts_our_signature(secrets in secrets(), id in ID, body: String) {
        let now = now();
        let altered = format!("{body} ");
        let keys: Vec<_> = secrets.iter().map(SigningKey::new).collect();
        let headers = headers(&id, now, &sign(&keys, &id, now, body.as_bytes()));

        for secret in &secrets {
            let official = Webhook::new(&secret.reveal()).expect("a revealed secret is in the official form");
            prop_assert!(official.verify(body.as_bytes(), &headers).is_ok());
            prop_assert!(official.verify(altered.as_bytes(), &headers).is_err());
        }
    }

    #[test]
    fn we_accept_the_official_signature(secrets in secrets(), id in ID, timestamp: i64, body: String) {
        let official = Webhook::new(&secrets[0].reveal()).expect("a revealed secret is in the official form");
        let signature = official.sign(&id, timestamp, body.as_bytes()).expect("the body is text");
        prop_assert_eq!(&signature, &sign(&[SigningKey::new(&secrets[0])], &id, timestamp, body.as_bytes()));

        let headers = headers(&id, timestamp, &signature);
        let signed = Signed::from_lookup(|name| headers.get(name)?.to_str().ok()).expect("all three are there");
        prop_assert_eq!(Verifier::new(secrets).verify(signed, body.as_bytes(), timestamp), Ok(()));
    }
}

/// Made with Python: `hmac.new(secret.encode(), f"{time}.".encode() + body, hashlib.sha256).hexdigest()`, which
/// is what Stripe's own verifiers compute.
#[test]
fn the_forms_with_pairs_get_the_signatures_that_python_computes() {
    let user = br#"{"email":"test@example.com","username":"test_user"}"#;
    let not_text = b"\xff\x00\xfe.not,text=\"1\"";
    for (secret, time, body, expected) in [
        (CURRENT, 1649367553, &user[..], "996637d7f89ef8f7b59f7faaf5341457472e823d8ca666d16b7bbd1dc831721d"),
        (CURRENT, 1715090123, b"", "729827660f6dd4ba8d29bbfb03cb1b11f70dbd9cae238a68d16faf9320d3092b"),
        (CURRENT, 1700000000, not_text, "2368dbeeffe0db808e4ce75e809706fa1c335c847461ceab19ce76d5c7a21a2f"),
        (OLD, 1649367553, user, "a813e3816770fde5be712f2463e41351cdcbad81004d95e9d6ca8b4cdad1e822"),
        (OLD, 1715090123, b"", "3ac0ea8d314ee9952d6435c251d747aff215faa7d0934b171f55f3a82935e3f4"),
        (OLD, 1700000000, not_text, "a4c7bc59f6fb30ae7edda2cb6715bce670da8864e354d8953eca5087db98ec88"),
        (PADDED, 1649367553, user, "bde812270abe375e9cca40da7ea4489d40c857abff074860f39609e18a973392"),
        (PADDED, 1715090123, b"", "b429bb29437c8d817545418e8d47f76dec65767e883aa10f945d2ad0f294ab26"),
        (PADDED, 1700000000, not_text, "7063f2f834dae69d0b1c7a90392778f4ad6d02c5756cf805303fd231e021e88a"),
    ] {
        let secret = Secret::parse(secret).expect("a secret");
        let keys = [SigningKey::new(&secret)];
        let stripe = format!("t={time},v1={expected}");
        let scheme = format!("scheme=v1,ts={time},sig={expected}");
        assert_eq!(stripe_header(&keys, time, body), stripe);
        assert_eq!(scheme_header(&keys, time, body), scheme);
        let verifier = Verifier::new([secret]);
        assert_eq!(verifier.verify_stripe(&stripe, body, time), Ok(()));
        assert_eq!(verifier.verify_scheme(&scheme, body, time), Ok(()));
    }
}

fn secrets() -> impl Strategy<Value = Vec<Secret>> {
    let secret = prop::collection::vec(any::<u8>(), Secret::BYTES_MIN..=Secret::BYTES_MAX)
        .prop_map(|bytes| Secret::from_bytes(&bytes).expect("the length is in range"));
    prop::collection::vec(secret, 1..4)
}

fn headers(id: &str, timestamp: i64, signature: &str) -> HeaderMap {
    [
        (WEBHOOK_HEADERS.id, id),
        (WEBHOOK_HEADERS.timestamp, &timestamp.to_string()),
        (WEBHOOK_HEADERS.signature, signature),
    ]
    .into_iter()
    .map(|(name, value)| (name.parse().expect("a header name"), value.parse().expect("visible ASCII")))
    .collect()
}

#[expect(clippy::disallowed_methods, reason = "the official verifier reads the clock itself")]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    since.as_secs().try_into().expect("seconds fit for some time yet")
}

const CURRENT: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PADDED: &str = "whsec_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ==";

const ID: &str = "msg_[0-9A-Za-z]{27}";
