//! Signs random bodies in every form, a line of JSON for each, for verifiers in other languages to judge:
//! `cargo run -p postrider-signature --example vectors -- <unix time> <how many>`. See `scripts/verifiers`.

use base64::{Engine, prelude::BASE64_STANDARD};
use postrider_signature::{PrivateKey, Secret, SigningKey, github_header, sign, stripe_header};

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<i64>().expect("a number"));
    let (Some(time), Some(count)) = (words.next(), words.next()) else { panic!("the time, and how many") };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ time.unsigned_abs();
    let mut chance = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for number in 0..count {
        let mut bytes = |count: usize| -> Vec<u8> { (0..count).map(|_| (chance() >> 24) as u8).collect() };
        let secret = Secret::from_bytes(&bytes(24 + number as usize % 41)).expect("24 to 64 bytes");
        let old = Secret::from_bytes(&bytes(32)).expect("32 bytes");
        let pair = PrivateKey::from_seed(&bytes(32).try_into().expect("32 bytes"));
        // Any text, with what is awkward in JSON, URLs and terminals among it.
        let text: String = bytes(number as usize % 600).iter().map(|byte| escaped(char::from(*byte))).collect();
        let body = format!("{{\"number\":{number},\"text\":\"{text}\"}}");
        let id = format!("msg_{number:027}");
        let keys = [SigningKey::new(&secret), SigningKey::new(&old)];
        let both = [SigningKey::Ed25519(pair.clone()), SigningKey::new(&old)];
        println!(
            r#"{{"secret":"{}","old":"{}","public":"{}","id":"{id}","time":"{time}","body":"{}","standard":"{}","ed25519":"{}","stripe":"{}","github":"{}"}}"#,
            secret.reveal(),
            old.reveal(),
            pair.public(),
            BASE64_STANDARD.encode(&body),
            sign(&keys, &id, time, body.as_bytes()),
            sign(&both, &id, time, body.as_bytes()),
            stripe_header(&keys, time, body.as_bytes()),
            github_header(&keys, body.as_bytes()).expect("there is a secret"),
        );
    }
}

/// As JSON has it.
fn escaped(letter: char) -> String {
    match letter {
        '"' | '\\' => format!("\\{letter}"),
        '\0'..' ' => format!("\\u{:04x}", letter as u32),
        other => other.to_string(),
    }
}
