//! `postrider messages`: what was accepted, how it fares, and why it has not arrived yet.

use super::{
    client::{AppFlags, InApp, Query},
    flags::{LIMIT, limit, moment, said},
    print::{self, Form},
};
use crate::{config::show_duration, http::time::Time};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List an application's messages, newest first
    #[command(after_help = "Example:\n  postrider messages list --app shop --event-type order.paid --since 2h")]
    List(List),
    /// Show a message, how it stands with each endpoint, and every attempt with its reason
    #[command(after_help = "Example:\n  postrider messages show --app shop msg_...")]
    Show(One),
    /// Call back what has not been delivered yet; it becomes dead letters
    #[command(after_help = "Example:\n  postrider messages cancel --app shop msg_... --endpoint billing")]
    Cancel(Cancel),
    /// Send a message to an endpoint once more, whatever became of it before
    #[command(after_help = "Example:\n  postrider messages resend --app shop msg_... --endpoint billing")]
    Resend(Resend),
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    in_app: AppFlags,
    /// Only this type of event (repeatable)
    #[arg(long = "event-type", value_name = "NAME")]
    event_types: Vec<String>,
    /// Accepted after this time (RFC 3339, or a span back such as 2h) [default: 90d]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Time>,
    /// Accepted before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Time>,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = limit, default_value = LIMIT)]
    limit: usize,
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    in_app: AppFlags,
    /// The message, by id or eventId
    message: String,
}

#[derive(clap::Args)]
struct Cancel {
    #[command(flatten)]
    one: One,
    /// Only at this endpoint, by id or uid [default: all]
    #[arg(long)]
    endpoint: Option<String>,
}

#[derive(clap::Args)]
struct Resend {
    #[command(flatten)]
    one: One,
    /// The endpoint, by id or uid
    #[arg(long)]
    endpoint: String,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Show(args) => show(args).await,
        Command::Cancel(args) => cancel(args).await,
        Command::Resend(args) => resend(args).await,
    }
}

async fn list(args: List) -> anyhow::Result<()> {
    let app = InApp::new(&args.in_app)?;
    let form = args.in_app.output.form();
    let types = args.event_types.iter().map(|name| ("event_types", name.clone()));
    let span = [("after", &args.since), ("before", &args.until)];
    let span = span.into_iter().filter_map(|(name, time)| Some((name, time.as_ref()?.to_string())));
    let content = [("with_content", (form == Form::Json).to_string())];
    let query: Query = types.chain(span).chain(content).collect();
    let found = app.list(&["msg"], &query, args.limit).await?;
    match form {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "no messages match")?,
    }
    print::tell_of_more(found.more);
    Ok(())
}

fn row(message: &Value) -> Vec<String> {
    ["id", "timestamp", "eventType", "eventId"]
        .map(|name| print::escaped_word(message[name].as_str().unwrap_or("-"), 100))
        .to_vec()
}

/// All that is known of a message, each part as the server told it.
#[derive(Serialize)]
struct Known {
    message: Box<RawValue>,
    endpoints: Vec<Box<RawValue>>,
    /// Oldest first.
    attempts: Vec<Box<RawValue>>,
}

async fn show(args: One) -> anyhow::Result<()> {
    let app = InApp::new(&args.in_app)?;
    let found = app.get(&["msg", &args.message], &Vec::new()).await?;
    let message = found.value()?;
    // By its id from here on: an eventId might be a name of something else in a path.
    let id = message["id"].as_str().context("the answer has no message id")?;
    let endpoints = app.list(&["msg", id, "endpoint"], &Vec::new(), ROWS_MAX).await?;
    // Lists of attempts look back ninety days by themselves, and a message may be older.
    let accepted: Time = message["timestamp"].as_str().unwrap_or_default().parse().context("reading the message")?;
    let after = Time(accepted.0.minus(Duration::from_hours(24)));
    let mut attempts = app.list(&["attempt", "msg", id], &vec![("after", after.to_string())], ROWS_MAX).await?;
    attempts.rows.reverse();
    match args.in_app.output.form() {
        Form::Json => {
            let known = Known { message: found.raw()?, endpoints: endpoints.rows, attempts: attempts.rows };
            print::say(&print::json_line(&serde_json::to_string(&known).context("writing JSON")?))?;
        }
        Form::Text => {
            let mut lines = heading(&message);
            lines.push(format!("\nendpoints  {}", endpoints.rows.len()));
            for state in endpoints.values()? {
                lines.push(state_line(&state));
                lines.extend(why_it_waits(&app, &state).await?);
            }
            lines.push(format!("\nattempts  {}", attempts.rows.len()));
            lines.extend(attempts.values()?.iter().map(attempt_lines));
            lines.push("\npayload".to_owned());
            lines.push(payload_of(&found.raw()?)?);
            print::say(&lines.join("\n"))?;
            print::tell_of_more(attempts.more || endpoints.more);
        }
    }
    Ok(())
}

fn heading(message: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for (label, name) in [
        ("message   ", "id"),
        ("event     ", "eventType"),
        ("event id  ", "eventId"),
        ("accepted  ", "timestamp"),
        ("due from  ", "deliverAt"),
        ("order     ", "orderingKey"),
    ] {
        if let Some(text) = message[name].as_str() {
            lines.push(format!("{label}{}", print::escaped_word(text, 300)));
        }
    }
    for (label, name) in [("channels  ", "channels"), ("tags      ", "tags")] {
        if let Some(list) = message[name].as_array() {
            let all: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            lines.push(format!("{label}{}", print::escaped_word(&all.join(", "), 2_000)));
        }
    }
    lines
}

fn state_line(state: &Value) -> String {
    let text = |name: &str| print::escaped_word(state[name].as_str().unwrap_or_default(), 500);
    let next = match state["nextAttempt"].as_str() {
        Some(at) => format!("  due {}", print::escaped_word(at, 50)),
        None => String::new(),
    };
    format!("  {}  {}  {}{next}", text("id"), text("statusText"), text("url"))
}

/// What holds an endpoint back explains more than the time of the next attempt.
async fn why_it_waits(app: &InApp, state: &Value) -> anyhow::Result<Option<String>> {
    let (Some("pending" | "sending"), Some(endpoint)) = (state["statusText"].as_str(), state["id"].as_str()) else {
        return Ok(None);
    };
    let health = app.get(&["endpoint", endpoint, "health"], &Vec::new()).await?.value()?;
    Ok(match (health["state"].as_str(), health["summary"].as_str()) {
        (Some("healthy"), _) | (_, None) => None,
        (_, Some(summary)) => Some(format!("      {}", print::escaped_word(summary, 500))),
    })
}

/// What an attempt came to, why, and of what the wait after it is made.
pub fn attempt_lines(attempt: &Value) -> String {
    let verdict = &attempt["verdict"];
    let text = |value: &Value| print::escaped_word(value.as_str().unwrap_or("-"), 1_000);
    let (answer, speaker) = match attempt["responseStatusCode"].as_u64() {
        None | Some(0) => ("no answer".to_owned(), "error"),
        Some(status) => (format!("answer {status}"), "it said"),
    };
    let took = show_duration(Duration::from_millis(attempt["responseDurationMs"].as_u64().unwrap_or(0)));
    let mut lines = format!(
        "  #{}  {}  {}  {answer} after {took}  {}",
        verdict["attemptNumber"].as_u64().unwrap_or(0),
        text(&attempt["timestamp"]),
        text(&attempt["endpointId"]),
        text(&verdict["class"]),
    );
    if attempt["triggerType"] == json!(1) {
        lines += "  by hand";
    }
    if let Some(cycle @ 1..) = verdict["cycle"].as_u64() {
        lines += &format!("  replay {cycle}");
    }
    lines += &format!("\n      {}", text(&verdict["reason"]));
    lines.extend(delay_words(&verdict["delay"]).map(|words| format!("\n      {words}")));
    if let Some(response) = attempt["response"].as_str().filter(|response| !response.is_empty()) {
        lines += &format!("\n      {speaker}: {}", print::escaped_word(response, 300));
    }
    lines
}

fn delay_words(delay: &Value) -> Option<String> {
    let span = |name: &str| delay[name].as_u64().map(|millis| show_duration(Duration::from_millis(millis)));
    let mut words = format!(
        "The schedule waits {} before chance; chance added {} to the part that is certain",
        span("backoffMs")?,
        span("jitterMs")?
    );
    if let Some(wish) = span("retryAfterMs") {
        words += &format!("; Retry-After asked for {wish}");
        if delay["capped"] == Value::Bool(true) {
            words += " (capped)";
        }
    }
    Some(words + ".")
}

/// As it was handed in, indented if it is JSON.
pub fn payload_of(message: &RawValue) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct WithPayload {
        payload: Box<RawValue>,
    }
    let message: WithPayload = serde_json::from_str(message.get()).context("the answer has no payload")?;
    Ok(print::body(message.payload.get().as_bytes()))
}

async fn cancel(args: Cancel) -> anyhow::Result<()> {
    let app = InApp::new(&args.one.in_app)?;
    let body = said([("endpointId", args.endpoint.map(|endpoint| json!(endpoint)))]);
    let answer = app.post(&["msg", &args.one.message, "cancel"], &body).await?;
    match args.one.in_app.output.form() {
        Form::Json => print::say(&print::json_line(answer.raw()?.get()))?,
        Form::Text => {
            let canceled = answer.value()?["canceled"].as_u64().context("the answer has no count")?;
            print::say(&match canceled {
                0 => "nothing of it was waiting".to_owned(),
                1 => "1 delivery called back".to_owned(),
                more => format!("{more} deliveries called back"),
            })?;
        }
    }
    Ok(())
}

async fn resend(args: Resend) -> anyhow::Result<()> {
    let app = InApp::new(&args.one.in_app)?;
    let message = &args.one.message;
    app.post(&["msg", message, "endpoint", &args.endpoint, "resend"], &json!({})).await?;
    print::say(&match args.one.in_app.output.form() {
        Form::Json => print::json_line(&json!({ "message": message, "endpoint": args.endpoint }).to_string()),
        Form::Text => format!("{} is sent once more", print::escaped_word(message, 256)),
    })?;
    Ok(())
}

const HEAD: [&str; 4] = ["MESSAGE", "ACCEPTED", "EVENT", "EVENT ID"];
const ROWS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_says_why_it_waits() {
        let attempt = json!({
            "timestamp": "2026-01-31T12:00:00Z", "endpointId": "ep_1", "responseStatusCode": 503,
            "responseDurationMs": 12, "response": "busy\u{1b}[31m\nnow", "triggerType": 0,
            "verdict": {
                "class": "transient", "reason": "The receiver answered 503.", "attemptNumber": 2, "cycle": 1,
                "delay": { "backoffMs": 300_000, "jitterMs": 1_500, "retryAfterMs": 86_400_000, "capped": true },
            },
        });
        assert_eq!(
            attempt_lines(&attempt),
            "  #2  2026-01-31T12:00:00Z  ep_1  answer 503 after 12ms  transient  replay 1\n      \
             The receiver answered 503.\n      \
             The schedule waits 5m before chance; chance added 1s500ms to the part that is certain; \
             Retry-After asked for 1d (capped).\n      \
             it said: busy\\u{1b}[31m now"
        );
        assert_eq!(
            attempt_lines(&json!({ "responseStatusCode": 0, "triggerType": 1, "verdict": {} })),
            "  #0  -  -  no answer after 0s  -  by hand\n      -"
        );
    }
}
