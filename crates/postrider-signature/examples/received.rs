//! Judges requests that others' libraries signed, a line for each: they must be accepted, and refused with one space more or with
//! another secret. `scripts/verifiers/run` does it.

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead, stdin},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use postrider_signature::{Received, Refusal, Source, SourceKey, VerifyingSecret};

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "what others have signed just now is to be judged now")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    let mut judged: BTreeMap<String, usize> = BTreeMap::new();
    for line in stdin().lock().lines() {
        let line = line.expect("text");
        let mut fields = line.split('\t');
        let mut next = || fields.next().expect("source, secret and body");
        let (name, secret, body) = (next(), next(), BASE64_STANDARD.decode(next()).expect("base64"));
        let headers: HashMap<&str, &str> = fields.filter_map(|field| field.split_once('=')).collect();
        let header = |name: &str| headers.get(name).copied();
        let judge = |secret: &str, body: &[u8]| source(name, secret).verify(&Received::new(&header, body), now);

        if let Err(refusal) = judge(secret, &body) {
            eprintln!("{name}: refused, {refusal}\n{line}");
            return ExitCode::FAILURE;
        }
        let (longer, other) = ([&body[..], b" "].concat(), turned(secret));
        for (what, verdict) in [("one space more", judge(secret, &longer)), ("another secret", judge(&other, &body))] {
            if verdict != Err(Refusal::NoMatch { secrets: 1 }) {
                eprintln!("{name}: {what} was judged {verdict:?}\n{line}");
                return ExitCode::FAILURE;
            }
        }
        *judged.entry(name.to_owned()).or_default() += 1;
    }
    for (name, count) in &judged {
        println!("received from {name}: {count} accepted, each refused with one space more and with another secret");
    }
    if judged.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn source(name: &str, secret: &str) -> Source {
    match name {
        "standard" => Source::standard([VerifyingSecret::parse(secret).expect("a secret")]),
        "stripe" => Source::stripe([SourceKey::text(secret)]),
        "github" => Source::github([SourceKey::text(secret)]),
        "slack" => Source::slack([SourceKey::text(secret)]),
        other => panic!("no such source: {other}"),
    }
}

/// Of the same length and form.
fn turned(secret: &str) -> String {
    let place = secret.len() / 2;
    let other = if secret.as_bytes()[place] == b'a' { "b" } else { "a" };
    format!("{}{other}{}", &secret[..place], &secret[place + 1..])
}
