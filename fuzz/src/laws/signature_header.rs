//! What we sign verifies; what differs in one bit, or was signed with another secret, does not.

use super::draws::Draws;
use postrider_signature::{Secret, Signed, SigningKey, Verifier, VerifyError, scheme_header, sign, stripe_header};

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let secret_len = 24 + draws.below(52);
    let mut bytes = draws.bytes(secret_len).to_vec();
    bytes.resize(secret_len, 7);
    let secret = Secret::from_bytes(&bytes).expect("it has a length that is allowed");
    assert_eq!(Secret::parse(&secret.reveal()).as_ref(), Ok(&secret));
    let at = draws.below(secret_len);
    bytes[at] ^= 1 << draws.below(8);
    let other = Secret::from_bytes(&bytes).expect("it has a length that is allowed");

    let (time, flip) = (draws.any::<i64>(), draws.any::<u16>());
    let (id, garbage) = (draws.text(), draws.text());
    let body = draws.rest();
    let (keys, timestamp) = ([SigningKey::new(&secret)], time.to_string());
    let (ours, theirs) = (Verifier::new([secret.clone()]), Verifier::new([other]));
    let both = Verifier::new([Secret::from_bytes(&[1; 24]).expect("24 bytes"), secret]);

    let signature = sign(&keys, &id, time, body);
    let headers = Signed { id: &id, timestamp: &timestamp, signature: &signature };
    assert_eq!(ours.verify(headers, body, time), Ok(()));
    assert_eq!(both.verify(headers, body, time), Ok(()));
    assert_eq!(theirs.verify(headers, body, time), Err(VerifyError::NoMatch));
    let several = format!("v1,{garbage} {signature} v2,x");
    assert_eq!(ours.verify(Signed { signature: &several, ..headers }, body, time), Ok(()));
    assert_ne!(ours.verify(Signed { signature: &flipped(&signature, flip), ..headers }, body, time), Ok(()));
    assert_ne!(ours.verify(Signed { timestamp: &flipped(&timestamp, flip), ..headers }, body, time), Ok(()));
    if !id.is_empty() && id.is_ascii() {
        assert_ne!(ours.verify(Signed { id: &flipped(&id, flip), ..headers }, body, time), Ok(()));
    }
    let stripe = stripe_header(&keys, time, body);
    let scheme = scheme_header(&keys, time, body);
    assert_eq!(ours.verify_stripe(&stripe, body, time), Ok(()));
    assert_eq!(ours.verify_scheme(&scheme, body, time), Ok(()));
    assert_ne!(theirs.verify_stripe(&stripe, body, time), Ok(()));
    assert_ne!(theirs.verify_scheme(&scheme, body, time), Ok(()));
    assert_ne!(ours.verify_stripe(&flipped(&stripe, flip), body, time), Ok(()));
    assert_ne!(ours.verify_scheme(&flipped(&scheme, flip), body, time), Ok(()));
    if !body.is_empty() {
        let mut altered = body.to_vec();
        altered[usize::from(flip) % body.len()] ^= 1 << (flip >> 13);
        assert_eq!(ours.verify(headers, &altered, time), Err(VerifyError::NoMatch));
        assert_ne!(ours.verify_stripe(&stripe, &altered, time), Ok(()));
    }
    for late in [301, i64::MAX] {
        assert_ne!(ours.verify(headers, body, time.wrapping_add(late)), Ok(()));
        assert_ne!(ours.verify_stripe(&stripe, body, time.wrapping_sub(late)), Ok(()));
    }

    // Nobody gets in with what we did not write.
    let unsigned = |header: &str, written: &str| !header.contains(written);
    if unsigned(&garbage, &signature[3..]) {
        assert_ne!(ours.verify(Signed { signature: &garbage, ..headers }, body, time), Ok(()));
    }
    if unsigned(&garbage, &stripe[stripe.len() - 64..]) {
        assert_ne!(ours.verify_stripe(&garbage, body, time), Ok(()));
        assert_ne!(ours.verify_stripe(&format!("t={time},v1={garbage}"), body, time), Ok(()));
        assert_ne!(ours.verify_scheme(&garbage, body, time), Ok(()));
    }
    let _ = ours.verify(Signed { timestamp: &garbage, ..headers }, body, time);
    if let Ok(read) = Secret::parse(&garbage) {
        assert_eq!(Secret::parse(&read.reveal()), Ok(read));
    }
}

/// ASCII with one bit changed, still ASCII.
fn flipped(text: &str, flip: u16) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let at = usize::from(flip) % bytes.len();
    bytes[at] ^= 1 << (usize::from(flip >> 8) % 7);
    String::from_utf8(bytes).expect("one of the lower seven bits")
}
