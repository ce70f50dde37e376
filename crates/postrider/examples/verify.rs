//! Judges the lines of `vectors` (crates/postrider-signature/examples) with the official libraries for Rust; see
//! scripts/verifiers.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use std::io::{self, BufRead};

#[derive(Deserialize)]
struct Vector {
    secret: String,
    old: String,
    id: String,
    time: String,
    body: String,
    standard: String,
}

fn main() {
    let mut count = 0;
    for line in io::stdin().lock().lines() {
        let vector: Vector = serde_json::from_str(&line.expect("a line")).expect("a vector");
        let body = BASE64_STANDARD.decode(&vector.body).expect("a body");
        let changed = [&body, &b" "[..]].concat();
        for secret in [&vector.secret, &vector.old] {
            let (standard, svix) = (
                standardwebhooks::Webhook::new(secret).expect("a secret"),
                svix::webhooks::Webhook::new(secret).expect("a secret"),
            );
            standard.verify(&body, &vector.headers("webhook")).expect("standardwebhooks accepts it");
            svix.verify(&body, &vector.headers("svix")).expect("svix accepts it");
            assert!(standard.verify(&changed, &vector.headers("webhook")).is_err(), "a changed body was accepted");
            assert!(svix.verify(&changed, &vector.headers("svix")).is_err(), "a changed body was accepted");
        }
        count += 1;
    }
    println!("Rust: {count} bodies accepted, and changed ones refused, by standardwebhooks, svix");
}

impl Vector {
    fn headers(&self, prefix: &str) -> HeaderMap {
        let fields = [("id", &self.id), ("timestamp", &self.time), ("signature", &self.standard)];
        let pairs = fields.map(|(name, value)| {
            let name = HeaderName::from_bytes(format!("{prefix}-{name}").as_bytes()).expect("a name");
            (name, HeaderValue::from_str(value).expect("a value"))
        });
        pairs.into_iter().collect()
    }
}
