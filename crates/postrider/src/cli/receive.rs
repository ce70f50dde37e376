//! `postrider receive`: the other end, to see a webhook arrive before writing any code for it.

use super::{
    Usage, print,
    receiver::{self, Arrival, Reply, Respond, Signature},
};
use crate::config::parse_duration;
use anyhow::Context;
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_signature::VerifyingSecret;
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
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
  postrider receive --delay 20s --quiet")]
pub struct Args {
    /// The address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// Verify signatures with this secret, whsec_... (repeatable: any of them will do)
    #[arg(long = "secret", value_name = "SECRET", env = "POSTRIDER_SECRET", hide_env_values = true)]
    secrets: Vec<String>,
    /// The status to answer with [default: 204]
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// How long to wait before answering, such as 2s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "0s")]
    delay: Duration,
    /// Fail the first N requests, with --status or 503, and answer 204 from then on
    #[arg(long, value_name = "N")]
    fail_first: Option<u64>,
    /// Show one line for each request, without its body
    #[arg(long)]
    quiet: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let secrets = args.secrets.iter().map(|text| VerifyingSecret::parse(text)).collect::<Result<Vec<_>, _>>();
    let secrets = secrets.map_err(|error| Usage(format!("--secret: {error}")))?;
    let show = Show { plan: Plan::from(&args)?, quiet: args.quiet, seen: AtomicU64::new(0) };
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("listening on {}", args.listen))?;
    let address = listener.local_addr().context("reading the address")?;
    let verifying =
        if secrets.is_empty() { "signatures are not verified, for want of --secret" } else { "verifying signatures" };
    print::tell(&format!("Receiving on http://{address}/ ({verifying}); Ctrl-C ends it."));
    tokio::select! {
        ended = receiver::run(listener, secrets, show) => ended,
        stopped = stop_signal() => stopped,
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

/// What the n-th request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    fail_first: u64,
    first: StatusCode,
    then: StatusCode,
    delay: Duration,
}

impl Plan {
    fn from(args: &Args) -> anyhow::Result<Self> {
        let given = args.status.map(StatusCode::from_u16).transpose().context("reading --status")?;
        let (first, then) = match (args.fail_first, given) {
            (None, status) => (StatusCode::NO_CONTENT, status.unwrap_or(StatusCode::NO_CONTENT)),
            (Some(_), Some(status)) if status.is_success() => {
                return Err(Usage(format!("--fail-first with --status {}: that is no failure", status.as_u16())).into());
            }
            (Some(_), status) => (status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), StatusCode::NO_CONTENT),
        };
        Ok(Self { fail_first: args.fail_first.unwrap_or(0), first, then, delay: args.delay })
    }

    fn reply(&self, before: u64) -> Reply {
        let status = if before < self.fail_first { self.first } else { self.then };
        Reply { status, delay: self.delay }
    }
}

struct Show {
    plan: Plan,
    quiet: bool,
    seen: AtomicU64,
}

impl Respond for Show {
    fn respond(&self, arrival: &Arrival) -> anyhow::Result<Reply> {
        let reply = self.plan.reply(self.seen.fetch_add(1, Ordering::Relaxed));
        let line = describe(arrival, reply);
        if self.quiet || arrival.body.is_empty() {
            print::say(&line)?;
        } else {
            print::say(&format!("{line}\n{}\n", print::body(&arrival.body)))?;
        }
        Ok(reply)
    }
}

fn describe(arrival: &Arrival, reply: Reply) -> String {
    let id = arrival.id.as_deref().map_or_else(|| "no id".to_owned(), |id| print::escaped_word(id, 100));
    let attempt = arrival
        .attempt
        .as_deref()
        .map_or_else(String::new, |attempt| format!("  attempt {}", print::escaped_word(attempt, 10)));
    let signature = match arrival.signature {
        Signature::Good => "signature ok".to_owned(),
        Signature::Bad(error) => format!("SIGNATURE WRONG: {error}"),
        Signature::Unverified => "not verified".to_owned(),
    };
    format!(
        "{}  {}  {id}{attempt}  {signature}  -> {}",
        shown_time(arrival.at),
        print::escaped_word(&arrival.path, 200),
        reply.status.as_u16()
    )
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

    fn plan(flags: &str) -> anyhow::Result<Plan> {
        Plan::from(&Line::try_parse_from(["x"].into_iter().chain(flags.split_whitespace()))?.args)
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
        ] {
            let plan = plan(flags).expect(flags);
            assert_eq!([0, 1, 2].map(|before| plan.reply(before).status.as_u16()), expected, "{flags}");
        }
        for flags in ["--status 99", "--status 600", "--fail-first 1 --status 200", "--delay 2", "--listen x"] {
            assert!(plan(flags).is_err(), "{flags}");
        }
    }

    #[test]
    fn a_line_tells_the_story_and_escapes_it() {
        let arrival = Arrival {
            at: Timestamp::from_millis(1_700_000_000_123),
            path: "/in".to_owned(),
            id: Some("msg_1\x1b[31m".to_owned()),
            attempt: Some("2".to_owned()),
            signature: Signature::Bad(VerifyError::NoMatch),
            body: Bytes::new(),
        };
        let reply = Reply { status: StatusCode::OK, delay: Duration::ZERO };
        assert_eq!(
            describe(&arrival, reply),
            "2023-11-14T22:13:20.123Z  /in  msg_1\\u{1b}[31m  attempt 2  SIGNATURE WRONG: no signature matches  -> 200"
        );
        let arrival = Arrival { id: None, attempt: None, signature: Signature::Unverified, ..arrival };
        assert_eq!(describe(&arrival, reply), "2023-11-14T22:13:20.123Z  /in  no id  not verified  -> 200");
    }
}
