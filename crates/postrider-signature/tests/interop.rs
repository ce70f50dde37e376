//! The official library takes what we sign, and we take what it signs.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use postrider_signature::{Secret, Signed, SigningKey, Verifier, WEBHOOK_HEADERS, sign};
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

const ID: &str = "msg_[0-9A-Za-z]{27}";
