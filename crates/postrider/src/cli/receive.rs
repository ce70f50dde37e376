//! `postrider receive`: the other end, to see a webhook arrive before writing any code for it.

use super::{
    Usage,
    client::OutputFlags,
    print::{self, Colour, Form, paint},
    receiver::{self, Arrival, Reply, Respond, Signature},
    script::{Act, RetryAfter, RetryAfterForm, Rule, Script, When},
};
use crate::{clock, config::parse_duration, serve::system_rng};
use anyhow::Context;
use bytes::Bytes;
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_signature::VerifyingSecret;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider receive --secret whsec_...
  postrider receive --status 503 --fail-first 3
  postrider receive --status 429 --retry-after 30s --share 0.2
  postrider receive --hang --fail-first 2 --quiet
  postrider receive --script faults.toml

A script is a list of rules, of which the first that fits a request decides; without one it is answered 204:
  [[rule]]                    which requests: path, header, from, until, skip, count, share
  path = \"/orders\"
  until = \"30s\"
  status = 503                what to do: status, delay, retry_after, retry_after_form, body;
  [[rule]]                    or do = \"hang\", \"reset\" or \"drip\" (every)
  share = 0.1
  do = \"reset\"
docs/guide/drills.md explains each key.")]
pub struct Args {
    /// The address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Verify signatures with this secret, whsec_... (repeatable: any of them will do)
    #[arg(long = "secret", value_name = "SECRET", env = "POSTRIDER_SECRET", hide_env_values = true)]
    secrets: Vec<String>,
    /// A file of rules that say what becomes of which request
    #[arg(long, value_name = "FILE", conflicts_with_all = ["status", "delay", "fail_first", "share", "hang", "reset", "drip", "retry_after"])]
    script: Option<PathBuf>,
    /// The status to answer with [default: 204; 503 with --fail-first or --share; 429 with --retry-after]
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// How long to wait before answering, such as 2s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    delay: Duration,
    /// Fail the first N requests, and answer 204 from then on
    #[arg(long, value_name = "N")]
    fail_first: Option<u64>,
    /// Fail this share of the requests, such as 0.2, by chance
    #[arg(long, value_name = "SHARE", value_parser = share)]
    share: Option<f64>,
    /// Say nothing until the sender gives up
    #[arg(long, group = "fault", conflicts_with = "status")]
    hang: bool,
    /// Break the connection off
    #[arg(long, group = "fault", conflicts_with = "status")]
    reset: bool,
    /// Begin an answer and add a byte to it now and then, by default every second
    #[arg(long, group = "fault", value_name = "DURATION", value_parser = parse_duration, num_args = 0..=1, default_missing_value = "1s")]
    drip: Option<Duration>,
    /// Ask to come again after so long
    #[arg(long, group = "fault", value_name = "DURATION", value_parser = parse_duration)]
    retry_after: Option<Duration>,
    /// Say the time of --retry-after as a date instead of in seconds
    #[arg(long, requires = "retry_after")]
    retry_after_date: bool,
    /// Show one line for each request, without its body
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let secrets = args.secrets.iter().map(|text| VerifyingSecret::parse(text)).collect::<Result<Vec<_>, _>>();
    let secrets = secrets.map_err(|error| Usage(format!("--secret: {error}")))?;
    let script = match &args.script {
        Some(path) => read_script(path)?,
        None => args.as_script()?,
    };
    let rng = match script.seed {
        Some(seed) => StdRng::seed_from_u64(seed),
        None => system_rng()?,
    };
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("listening on {}", args.listen))?;
    let address = listener.local_addr().context("reading the address")?;
    let verifying =
        if secrets.is_empty() { "signatures are not verified, for want of --secret" } else { "verifying signatures" };
    let show =
        Show { script: Mutex::new((script, rng)), started: clock::now(), quiet: args.quiet, form: args.output.form() };
    print::tell(&format!("Receiving on http://{address}/ ({verifying}); Ctrl-C ends it."));
    tokio::select! {
        ended = receiver::run(listener, secrets, show) => ended,
        stopped = stop_signal() => stopped,
    }
}

fn read_script(path: &Path) -> anyhow::Result<Script> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Script::parse(&text).map_err(|error| Usage(format!("{}: {error}", path.display())))?)
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        Ok(_) | Err(_) => Err("write a number above 0 and at most 1, such as 0.2".to_owned()),
    }
}

/// Completes at Ctrl-C or SIGTERM.
pub async fn stop_signal() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for signals")?;
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

impl Args {
    /// What the flags say, as a script: the fault, for those it is for, and what all others get.
    fn as_script(&self) -> anyhow::Result<Script> {
        let delay = self.delay;
        let is_for_some = self.fail_first.is_some() || self.share.is_some();
        let given = self.status.map(StatusCode::from_u16).transpose().context("reading --status")?;
        let answer = |status: StatusCode, retry_after: Option<RetryAfter>| Act::Answer {
            status,
            delay,
            retry_after,
            body: Bytes::new(),
        };
        let then = match (self.hang, self.reset, self.drip, self.retry_after) {
            (true, ..) if !delay.is_zero() => {
                return Err(Usage("--delay is of no effect with --hang".to_owned()).into());
            }
            (true, ..) => Act::Hang,
            (_, true, ..) => Act::Reset { delay },
            (.., Some(every), _) if every.is_zero() => return Err(Usage("--drip must be above 0".to_owned()).into()),
            (.., Some(every), _) => Act::Drip { status: given.unwrap_or(StatusCode::OK), delay, every },
            (.., Some(wait)) => {
                let form = if self.retry_after_date { RetryAfterForm::Date } else { RetryAfterForm::Seconds };
                answer(given.unwrap_or(StatusCode::TOO_MANY_REQUESTS), Some(RetryAfter { wait, form }))
            }
            (.., None) => match given {
                Some(status) if is_for_some && status.is_success() => {
                    let status = status.as_u16();
                    let flag = if self.fail_first.is_some() { "--fail-first" } else { "--share" };
                    return Err(Usage(format!("{flag} with --status {status}: that is no failure")).into());
                }
                Some(status) => answer(status, None),
                None if is_for_some => answer(StatusCode::SERVICE_UNAVAILABLE, None),
                None => answer(StatusCode::NO_CONTENT, None),
            },
        };
        let when = When { count: self.fail_first, share: self.share.unwrap_or(1.0), ..When::default() };
        let otherwise = Rule { when: When::default(), then: answer(StatusCode::NO_CONTENT, None) };
        Ok(Script::new(vec![Rule { when, then }, otherwise]))
    }
}

struct Show {
    script: Mutex<(Script, StdRng)>,
    started: Timestamp,
    quiet: bool,
    form: Form,
}

impl Respond for Show {
    fn respond(&self, arrival: &Arrival) -> anyhow::Result<Reply> {
        let act = {
            let (script, rng) = &mut *self.script.lock().unwrap_or_else(PoisonError::into_inner);
            script.choose(arrival, arrival.at.since(self.started), rng)
        };
        match self.form {
            Form::Json => print::say(&print::json_line(&as_json(arrival, &act).to_string()))?,
            Form::Text => {
                let line = describe(arrival, &act);
                if self.quiet || arrival.body.is_empty() {
                    print::say(&line)?;
                } else {
                    print::say(&format!("{line}\n{}\n", print::body(&arrival.body)))?;
                }
            }
        }
        Ok(act.reply(arrival.at))
    }
}

fn describe(arrival: &Arrival, act: &Act) -> String {
    let id = arrival.id.as_deref().map_or_else(|| "no id".to_owned(), |id| print::escaped_word(id, 100));
    let attempt = arrival
        .attempt
        .as_deref()
        .map_or_else(String::new, |attempt| format!("  attempt {}", print::escaped_word(attempt, 10)));
    let signature = match arrival.signature {
        Signature::Good => paint(Colour::Green, "signature ok"),
        Signature::Bad(error) => paint(Colour::Red, &format!("SIGNATURE WRONG: {error}")),
        Signature::Unverified => "not verified".to_owned(),
    };
    format!(
        "{}  {}  {id}{attempt}  {signature}  -> {}",
        shown_time(arrival.at),
        print::escaped_word(&arrival.path, 200),
        words(act)
    )
}

/// What is done with a request, for a line.
fn words(act: &Act) -> String {
    match act {
        Act::Answer { status, .. } => {
            let colour = if status.is_success() { Colour::Green } else { Colour::Yellow };
            paint(colour, &status.as_u16().to_string())
        }
        Act::Hang => paint(Colour::Yellow, "no answer"),
        Act::Reset { .. } => paint(Colour::Yellow, "reset"),
        Act::Drip { status, .. } => paint(Colour::Yellow, &format!("{}, dripping", status.as_u16())),
    }
}

fn as_json(arrival: &Arrival, act: &Act) -> Value {
    let signature = match arrival.signature {
        Signature::Good => "ok",
        Signature::Bad(_) => "wrong",
        Signature::Unverified => "unverified",
    };
    let (done, status) = match act {
        Act::Answer { status, .. } => ("answer", Some(status.as_u16())),
        Act::Hang => ("hang", None),
        Act::Reset { .. } => ("reset", None),
        Act::Drip { status, .. } => ("drip", Some(status.as_u16())),
    };
    let body = serde_json::from_slice(&arrival.body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&arrival.body).into_owned()));
    json!({
        "timestamp": shown_time(arrival.at), "path": arrival.path, "id": arrival.id, "attempt": arrival.attempt,
        "signature": signature, "do": done, "status": status, "body": body,
    })
}

fn shown_time(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.as_millis()).map_or_else(|_| String::new(), |at| format!("{at:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use clap::Parser;
    use postrider_signature::VerifyError;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// What the first requests get.
    fn told(flags: &str) -> anyhow::Result<[Act; 3]> {
        let mut script = Line::try_parse_from(["x"].into_iter().chain(flags.split_whitespace()))?.args.as_script()?;
        let mut rng = StdRng::seed_from_u64(1);
        Ok([(); 3].map(|()| script.choose(&arrival(), Duration::ZERO, &mut rng)))
    }

    fn arrival() -> Arrival {
        Arrival {
            at: Timestamp::from_millis(1_700_000_000_123),
            path: "/in".to_owned(),
            headers: http::HeaderMap::new(),
            id: Some("msg_1\x1b[31m".to_owned()),
            attempt: Some("2".to_owned()),
            signature: Signature::Bad(VerifyError::NoMatch),
            body: Bytes::from_static(b"{\"n\": 1}"),
        }
    }

    #[test]
    fn it_answers_as_told() {
        for (flags, expected) in [
            ("", [204, 204, 204]),
            ("--status 503", [503, 503, 503]),
            ("--status 200", [200, 200, 200]),
            ("--fail-first 2", [503, 503, 204]),
            ("--fail-first 1 --status 429", [429, 204, 204]),
            ("--fail-first 0", [204, 204, 204]),
            ("--share 1", [503, 503, 503]),
            ("--retry-after 5s --fail-first 1", [429, 204, 204]),
            ("--retry-after 5s --status 503", [503, 503, 503]),
        ] {
            let statuses = told(flags).expect(flags).map(|act| match act {
                Act::Answer { status, .. } => status.as_u16(),
                Act::Hang | Act::Reset { .. } | Act::Drip { .. } => 0,
            });
            assert_eq!(statuses, expected, "{flags}");
        }
        let none = Duration::ZERO;
        assert_eq!(told("--hang --fail-first 2").expect("a fault")[..2], [Act::Hang, Act::Hang]);
        assert_eq!(told("--reset").expect("a fault")[0], Act::Reset { delay: none });
        let drip = Act::Drip { status: StatusCode::OK, delay: none, every: Duration::from_secs(1) };
        assert_eq!(told("--drip").expect("a fault")[0], drip);
        for flags in [
            "--status 99",
            "--status 600",
            "--fail-first 1 --status 200",
            "--share 0.5 --status 200",
            "--share 2",
            "--delay 2",
            "--listen x",
            "--hang --reset",
            "--hang --status 500",
            "--hang --delay 1s",
            "--drip 0s",
            "--retry-after-date",
            "--script x --status 500",
        ] {
            assert!(told(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn a_line_tells_the_story_and_escapes_it() {
        let ok = Act::status(StatusCode::OK);
        assert_eq!(
            describe(&arrival(), &ok),
            "2023-11-14T22:13:20.123Z  /in  msg_1\\u{1b}[31m  attempt 2  SIGNATURE WRONG: no signature matches  -> 200"
        );
        let told = as_json(&arrival(), &ok);
        assert_eq!(
            told,
            json!({
                "timestamp": "2023-11-14T22:13:20.123Z", "path": "/in", "id": "msg_1\u{1b}[31m", "attempt": "2",
                "signature": "wrong", "do": "answer", "status": 200, "body": { "n": 1 },
            })
        );
        let arrival = Arrival { id: None, attempt: None, signature: Signature::Unverified, ..arrival() };
        assert_eq!(describe(&arrival, &Act::Hang), "2023-11-14T22:13:20.123Z  /in  no id  not verified  -> no answer");
    }
}
