//! What must hold for every message, not only for the ones we thought of.

use std::time::Duration;

use postrider_signature::{Secret, Signed, SigningKey, Verifier, VerifyError, scheme_header, sign, stripe_header};
use proptest::prelude::*;
use proptest::sample::Index;

proptest! {
    #[test]
    fn what_we_sign_we_verify(
        old in secret(), current in secret(), id in ".*", timestamp: i64, body: Vec<u8>, skew in -300..=300i64,
    ) {
        let signature = sign(&[SigningKey::new(&current), SigningKey::new(&old)], &id, timestamp, &body);
        let timestamp_text = timestamp.to_string();
        let headers = Signed { id: &id, timestamp: &timestamp_text, signature: &signature };
        for secret in [current, old] {
            let verdict = Verifier::new([secret]).verify(headers, &body, timestamp.saturating_add(skew));
            prop_assert_eq!(verdict, Ok(()));
        }
    }

    #[test]
    fn any_flipped_bit_is_refused(
        secret in secret(), id in "[ -~]{1,40}", timestamp: i64,
        body in prop::collection::vec(any::<u8>(), 1..200), at: Index, bit in 0..8u8,
    ) {
        let signature = sign(&[SigningKey::new(&secret)], &id, timestamp, &body);
        let timestamp_text = timestamp.to_string();
        // Whatever the time: the signature alone must catch it.
        let verifier = Verifier::new([secret]).with_tolerance(Duration::MAX);
        let verify = |id: &str, timestamp_text: &str, signature: &str, body: &[u8]| {
            verifier.verify(Signed { id, timestamp: timestamp_text, signature }, body, timestamp)
        };
        prop_assert_eq!(verify(&id, &timestamp_text, &signature, &body), Ok(()));

        let ascii_bit = bit % 7;
        prop_assert!(verify(&flip_text(&id, at, ascii_bit), &timestamp_text, &signature, &body).is_err());
        prop_assert!(verify(&id, &flip_text(&timestamp_text, at, ascii_bit), &signature, &body).is_err());
        prop_assert!(verify(&id, &timestamp_text, &flip_text(&signature, at, ascii_bit), &body).is_err());
        prop_assert!(verify(&id, &timestamp_text, &signature, &flip(&body, at, bit)).is_err());
    }

    #[test]
    fn another_secret_verifies_nothing(
        ours in secret(), theirs in secret(), id in ".*", timestamp: i64, body: Vec<u8>,
    ) {
        prop_assume!(ours != theirs);
        let signature = sign(&[SigningKey::new(&theirs)], &id, timestamp, &body);
        let headers = Signed { id: &id, timestamp: &timestamp.to_string(), signature: &signature };
        prop_assert!(Verifier::new([ours]).verify(headers, &body, timestamp).is_err());
    }

    #[test]
    fn no_header_makes_the_verifier_panic(id: String, timestamp: String, signature in "(v1,)?.*", body: Vec<u8>, now: i64) {
        let headers = Signed { id: &id, timestamp: &timestamp, signature: &signature };
        let secret = Secret::from_bytes(&[1; 24]).unwrap();
        prop_assert!(Verifier::new([secret]).verify(headers, &body, now).is_err());
    }

    #[test]
    fn what_we_sign_in_pairs_we_verify(
        old in secret(), current in secret(), timestamp: i64, body: Vec<u8>, skew in -300..=300i64,
    ) {
        let keys = [SigningKey::new(&current), SigningKey::new(&old)];
        for secret in [current, old] {
            let verifier = Verifier::new([secret]);
            for (sign, verify) in PAIRS {
                let header = sign(&keys, timestamp, &body);
                prop_assert_eq!(verify(&verifier, &header, &body, timestamp.saturating_add(skew)), Ok(()));
            }
        }
    }

    #[test]
    fn any_flipped_bit_is_refused_in_pairs_too(
        secret in secret(), timestamp: i64, body in prop::collection::vec(any::<u8>(), 1..200), at: Index, bit in 0..8u8,
    ) {
        let keys = [SigningKey::new(&secret)];
        // Whatever the time: the signature alone must catch it.
        let verifier = Verifier::new([secret]).with_tolerance(Duration::MAX);
        for (sign, verify) in PAIRS {
            let header = sign(&keys, timestamp, &body);
            prop_assert_eq!(verify(&verifier, &header, &body, timestamp), Ok(()));
            prop_assert!(verify(&verifier, &flip_text(&header, at, bit % 7), &body, timestamp).is_err());
            prop_assert!(verify(&verifier, &header, &flip(&body, at, bit), timestamp).is_err());
        }
    }

    #[test]
    fn another_secret_verifies_nothing_in_pairs(ours in secret(), theirs in secret(), timestamp: i64, body: Vec<u8>) {
        prop_assume!(ours != theirs);
        let keys = [SigningKey::new(&theirs)];
        let verifier = Verifier::new([ours]);
        for (sign, verify) in PAIRS {
            let verdict = verify(&verifier, &sign(&keys, timestamp, &body), &body, timestamp);
            prop_assert_eq!(verdict, Err(VerifyError::NoMatch));
        }
    }

    #[test]
    fn no_header_of_pairs_makes_the_verifier_panic(
        header in "(scheme=v1,)?((t|ts|v1|sig)=[^,]{0,70},?){0,5}.*", body: Vec<u8>, now: i64,
    ) {
        let verifier = Verifier::new([Secret::from_bytes(&[1; 24]).unwrap()]).with_tolerance(Duration::MAX);
        for (_, verify) in PAIRS {
            prop_assert!(verify(&verifier, &header, &body, now).is_err());
        }
    }

    #[test]
    fn a_revealed_secret_parses_back(secret in secret()) {
        prop_assert_eq!(Secret::parse(&secret.reveal()), Ok(secret));
    }
}

type Sign = fn(&[SigningKey], i64, &[u8]) -> String;
type Verify = fn(&Verifier, &str, &[u8], i64) -> Result<(), VerifyError>;
const PAIRS: [(Sign, Verify); 2] = [(stripe_header, Verifier::verify_stripe), (scheme_header, Verifier::verify_scheme)];

fn secret() -> impl Strategy<Value = Secret> {
    prop::collection::vec(any::<u8>(), Secret::BYTES_MIN..=Secret::BYTES_MAX)
        .prop_map(|bytes| Secret::from_bytes(&bytes).expect("the length is in range"))
}

fn flip(bytes: &[u8], at: Index, bit: u8) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[at.index(bytes.len())] ^= 1 << bit;
    flipped
}

fn flip_text(text: &str, at: Index, bit: u8) -> String {
    String::from_utf8(flip(text.as_bytes(), at, bit)).expect("ASCII stays ASCII in its lower seven bits")
}
