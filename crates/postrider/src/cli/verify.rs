//! `postrider verify`: whether a request that was kept is believed, and if not, why.

use super::{Usage, client::OutputFlags, print};
use crate::clock::{self, Shown};
use anyhow::Context;
use clap::ValueEnum;
use http::HeaderName;
use postrider_engine::Timestamp;
use postrider_signature::{Cause, Received, Refusal, Source, SourceKey, Verified, VerifyingSecret};
use serde_json::json;
use std::{
    fs,
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider verify --secret whsec_... request.txt
  postrider verify --source github --secret \"$SECRET\" --header 'X-Hub-Signature-256: sha256=...' --body body.json
  postrider verify --source slack --any-time request.txt

A request is kept as it came: its headers, an empty line, its body. POSTRIDER_SECRET takes the place of --secret.
Exit codes: 0 it is believed, 1 it is refused, 2 wrong usage")]
pub struct Args {
    /// The request: headers, an empty line, body; - for standard input
    #[arg(value_name = "FILE", required_unless_present = "body")]
    request: Option<PathBuf>,
    /// How its sender signs
    #[arg(long, value_enum, default_value_t = Sender::Standard)]
    source: Sender,
    /// The secret that it should be signed with (repeatable: any of them will do)
    #[arg(long = "secret", value_name = "SECRET", env = "POSTRIDER_SECRET", hide_env_values = true, required = true)]
    secrets: Vec<String>,
    /// A header of the request, `name: value` (repeatable)
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The request's body, in place of the one in FILE
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Believe it whenever it was signed
    #[arg(long)]
    any_time: bool,
    #[command(flatten)]
    output: OutputFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sender {
    /// Standard Webhooks: Postrider itself, Svix, and many others
    Standard,
    Stripe,
    Github,
    Shopify,
    Slack,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let kept = match &args.request {
        Some(file) => read(file)?,
        None => Vec::new(),
    };
    let mut request = Kept::read(&kept)?;
    for line in &args.headers {
        request.headers.push(header(line).ok_or_else(|| Usage(format!("--header: `{line}` is not `name: value`")))?);
    }
    if let Some(file) = &args.body {
        request.body = read(file)?;
    }
    let source = source(args.source, &args.secrets)?;
    let source = if args.any_time { source.with_tolerance(Duration::MAX) } else { source };
    let find = |name: &str| {
        let mut found = request.headers.iter().rev().filter(|(given, _)| given == name);
        found.next().map(|(_, value)| value.as_str())
    };
    let received = Received::new(&find, &request.body);
    let now = clock::now().as_millis().div_euclid(1_000);
    let verdict = source.verify(&received, now);
    let causes = source.explain(&received, now);
    let (json, text) = told(&verdict, &causes);
    print::result(args.output.form(), &json, &text)?;
    anyhow::ensure!(verdict.is_ok(), "the request is not believed");
    Ok(())
}

fn source(sender: Sender, secrets: &[String]) -> anyhow::Result<Source> {
    let keys = || secrets.iter().map(|secret| SourceKey::text(secret));
    Ok(match sender {
        Sender::Standard => {
            let secrets = secrets.iter().map(|text| VerifyingSecret::parse(text)).collect::<Result<Vec<_>, _>>();
            Source::standard(secrets.map_err(|error| Usage(format!("--secret: {error}")))?)
        }
        Sender::Stripe => Source::stripe(keys()),
        Sender::Github => Source::github(keys()),
        Sender::Shopify => Source::shopify(keys()),
        Sender::Slack => Source::slack(keys()),
    })
}

fn told(verdict: &Result<Verified, Refusal>, causes: &[Cause]) -> (serde_json::Value, String) {
    match verdict {
        Ok(Verified { id, signed_at }) => {
            let signed_at = signed_at.map(|at| Shown(Timestamp::from_millis(at.saturating_mul(1_000))).to_string());
            let mut text = "The signature holds.".to_owned();
            if let Some(id) = id {
                text += &format!(" Its id is {}.", print::escaped(id));
            }
            if let Some(at) = &signed_at {
                text += &format!(" It was signed at {at}.");
            }
            (json!({"verified": true, "id": id, "signedAt": signed_at}), text)
        }
        Err(refusal) => {
            let causes: Vec<String> = causes.iter().map(Cause::to_string).collect();
            let mut text = format!("Refused: {refusal}.");
            for cause in &causes {
                text += &format!("\nFound by trying: {cause}.");
            }
            (json!({"verified": false, "refusal": refusal.to_string(), "causes": causes}), text)
        }
    }
}

/// A request that was kept.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    /// Names in lower case.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Kept {
    fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let (mut headers, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
            let (line, behind) = rest.split_at(end);
            rest = behind;
            let line = str::from_utf8(line).context("a header is not text")?.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                break;
            }
            let is_first = headers.is_empty();
            match header(line) {
                // `POST /hooks HTTP/1.1`
                _ if is_first && line.contains(" HTTP/") => {}
                Some(header) => headers.push(header),
                None => {
                    let why = format!("`{line}` is not a header; keep headers, an empty line and the body");
                    return Err(Usage(why).into());
                }
            }
        }
        Ok(Self { headers, body: rest.to_vec() })
    }
}

fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
    Some((name.as_str().to_owned(), value.trim().to_owned()))
}

fn read(file: &PathBuf) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match file.as_os_str() == "-" {
        true => io::stdin().lock().take(KEPT_MAX).read_to_end(&mut bytes),
        false => fs::File::open(file).and_then(|file| file.take(KEPT_MAX).read_to_end(&mut bytes)),
    };
    read.with_context(|| format!("reading {}", file.display()))?;
    Ok(bytes)
}

/// More than any sender sends.
const KEPT_MAX: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_kept() {
        let headers = vec![("a".to_owned(), "1".to_owned()), ("b-c".to_owned(), "x: y".to_owned())];
        for (kept, body) in [
            ("POST /hooks HTTP/1.1\r\nA: 1\r\nB-C: x: y\r\n\r\n{}\n", "{}\n"),
            ("a: 1\nb-c:  x: y \n\n\nbody\n\nmore", "\nbody\n\nmore"),
            ("a: 1\nb-c: x: y", ""),
        ] {
            let read = Kept::read(kept.as_bytes()).expect("a request");
            assert_eq!(read, Kept { headers: headers.clone(), body: body.into() }, "{kept:?}");
        }
        assert!(Kept::read(b"{\"no\": \"headers\"}\n").is_err());
    }
}
