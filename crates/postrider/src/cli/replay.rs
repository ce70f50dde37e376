//! `postrider replay`: sending again what did not arrive, or what is asked for.

use super::{
    Usage,
    client::{AppFlags, InApp, is_not_found},
    flags::{DeadFilter, REASONS, moment, said, status_code},
    print::{self, Form},
    tasks::{self, Wait},
};
use crate::http::time::Time;
use anyhow::{Context, anyhow};
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("what").required(true),
    after_help = "\
Examples:
  postrider replay --app shop msg_... --endpoint billing
  postrider replay --app shop --dead-letters --reason exhausted --since 2d
  postrider replay --app shop --recover --endpoint billing --since 2026-01-31T12:00:00Z
  postrider replay --app shop --missing --endpoint billing --since 3d
  postrider replay --app shop --bulk --endpoint billing --since 1h --status success

Everything but a single message is done by a task of the server, which is waited for; Ctrl-C leaves it running.
Exit codes: 0 done, 1 failed, ended early or no longer waited for, 2 wrong usage"
)]
pub struct Args {
    #[command(flatten)]
    in_app: AppFlags,
    /// One dead letter: its message, by id or eventId
    #[arg(group = "what", requires = "endpoint", value_name = "MESSAGE")]
    message: Option<String>,
    /// All dead letters that match
    #[arg(long, group = "what")]
    dead_letters: bool,
    /// All messages of the time that failed to reach the endpoint
    #[arg(long, group = "what", requires_all = ["endpoint", "since"])]
    recover: bool,
    /// All messages of the time that the endpoint would get today and was never sent
    #[arg(long, group = "what", requires_all = ["endpoint", "since"])]
    missing: bool,
    /// All messages of the time that match, delivered or not
    #[arg(long, group = "what", requires_all = ["endpoint", "since"])]
    bulk: bool,
    /// The endpoint, by id or uid
    #[arg(long)]
    endpoint: Option<String>,
    /// Only this type of event (repeatable; with --dead-letters or --bulk)
    #[arg(long = "event-type", value_name = "NAME", conflicts_with_all = ["message", "recover", "missing"])]
    event_types: Vec<String>,
    /// Only those given up for this reason (with --dead-letters)
    #[arg(long, value_parser = REASONS, conflicts_with_all = ["message", "recover", "missing", "bulk"])]
    reason: Option<String>,
    /// With --dead-letters: the last answer's status, or `none`; with --bulk: success, pending, fail, sending, canceled,
    /// or the last answer's hundreds, such as 5xx
    #[arg(long, conflicts_with_all = ["message", "recover", "missing"])]
    status: Option<String>,
    /// From this time on (RFC 3339, or a span back such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "message")]
    since: Option<Time>,
    /// Up to this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with = "message")]
    until: Option<Time>,
    /// Print the task's id and leave it to itself
    #[arg(long, conflicts_with = "message")]
    no_wait: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let form = args.in_app.output.form();
    let wait = if args.no_wait { Wait::No } else { Wait::UntilDone };
    let app = InApp::new(&args.in_app)?;
    if let (Some(message), Some(endpoint)) = (&args.message, &args.endpoint) {
        return one(&app, message, endpoint, form).await;
    }
    let task = match &args.endpoint {
        _ if args.dead_letters => dead_letters(&app, args).await?,
        Some(endpoint) => {
            let (route, body) = args.task_of_endpoint()?;
            app.post(&["endpoint", endpoint, route], &body).await?.raw()?
        }
        None => return Err(Usage("--endpoint is needed".to_owned()).into()),
    };
    tasks::started(&app.client, &task, form, wait).await
}

async fn one(app: &InApp, message: &str, endpoint: &str, form: Form) -> anyhow::Result<()> {
    let asked = app.post(&["dead-letter", message, "endpoint", endpoint, "replay"], &json!({})).await;
    let answer = asked.map_err(|error| match is_not_found(&error) {
        true => anyhow!(
            "message `{message}` is no dead letter of endpoint `{endpoint}`; \
             `postrider messages resend` sends any message once more"
        ),
        false => error,
    })?;
    let replayed = answer.value()?["replayed"] != json!(false);
    let outcome = if replayed { "is on its way again" } else { "was on its way already, or has arrived" };
    print::say(&match form {
        Form::Json => {
            print::json_line(&json!({ "message": message, "endpoint": endpoint, "replayed": replayed }).to_string())
        }
        Form::Text => format!("{} {outcome}", print::escaped_word(message, 256)),
    })?;
    Ok(())
}

async fn dead_letters(app: &InApp, args: Args) -> anyhow::Result<Box<serde_json::value::RawValue>> {
    let status = args.status.as_deref().map(status_code).transpose();
    let filter = DeadFilter {
        endpoint: args.endpoint,
        event_types: args.event_types,
        reason: args.reason,
        status: status.map_err(|words| Usage(format!("--status with --dead-letters: {words}")))?,
        since: args.since,
        until: args.until,
    };
    let counted = app.get(&["dead-letter", "count"], &filter.query()).await?.value()?;
    print::tell(&matching(&counted)?);
    app.post(&["dead-letter", "replay"], &filter.body()).await?.raw()
}

fn matching(counted: &Value) -> anyhow::Result<String> {
    let count = counted["count"].as_u64().context("the answer has no count")?;
    Ok(match (count, counted["capped"] == Value::Bool(true)) {
        (count, true) => format!("More than {count} dead letters match."),
        (1, false) => "1 dead letter matches.".to_owned(),
        (count, false) => format!("{count} dead letters match."),
    })
}

impl Args {
    /// The route of an endpoint that takes on what was asked for, and what to tell it.
    fn task_of_endpoint(&self) -> anyhow::Result<(&'static str, Value)> {
        let (since, until) = (self.since.as_ref().map(|time| json!(time)), self.until.as_ref().map(|time| json!(time)));
        if !self.bulk {
            let route = if self.recover { "recover" } else { "replay-missing" };
            return Ok((route, said([("since", since), ("until", until)])));
        }
        let (status, class) = match self.status.as_deref().map(bulk_status).transpose()? {
            None => (None, None),
            Some(BulkStatus::State(number)) => (Some(json!(number)), None),
            Some(BulkStatus::Class(hundreds)) => (None, Some(json!(hundreds))),
        };
        let body = said([
            ("since", since),
            ("until", until),
            ("eventTypes", (!self.event_types.is_empty()).then(|| json!(self.event_types))),
            ("status", status),
            ("statusCodeClass", class),
        ]);
        Ok(("bulk-replay", body))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkStatus {
    /// How the message stands with the endpoint, in the contract's numbers.
    State(u8),
    Class(u16),
}

fn bulk_status(text: &str) -> Result<BulkStatus, Usage> {
    Ok(match text {
        "success" => BulkStatus::State(0),
        "pending" => BulkStatus::State(1),
        "fail" => BulkStatus::State(2),
        "sending" => BulkStatus::State(3),
        "canceled" => BulkStatus::State(4),
        "none" => BulkStatus::Class(0),
        "1xx" => BulkStatus::Class(100),
        "2xx" => BulkStatus::Class(200),
        "3xx" => BulkStatus::Class(300),
        "4xx" => BulkStatus::Class(400),
        "5xx" => BulkStatus::Class(500),
        _ => {
            return Err(Usage(format!(
                "--status {text} with --bulk: write success, pending, fail, sending, canceled, none, or hundreds such \
                 as 5xx"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_told_in_words() {
        for (counted, expected) in [
            (json!({ "count": 0, "capped": false }), "0 dead letters match."),
            (json!({ "count": 1, "capped": false }), "1 dead letter matches."),
            (json!({ "count": 1_000_000, "capped": true }), "More than 1000000 dead letters match."),
        ] {
            assert_eq!(matching(&counted).expect("a count"), expected);
        }
        assert!(matching(&json!({})).is_err());
    }
}
