//! `postrider tail`: every attempt as it is recorded, until Ctrl-C.

use super::{
    Usage,
    client::{CallError, Client, OutputFlags, Query, ServerFlags},
    flags::limit,
    print::{self, Colour, Form, paint},
    receive::stop_signal,
};
use crate::config::show_duration;
use anyhow::Context;
use http::StatusCode;
use serde_json::{Value, value::RawValue};
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider tail --app shop
  postrider tail --app shop --endpoint billing --failed
  postrider tail --json | jq -r 'select(.status == 2) | .msgId'

It goes on until Ctrl-C, comes back by itself when the connection breaks, and goes on where it was.
Exit codes: 0 ended by Ctrl-C or --limit, 1 failed, 2 wrong usage")]
pub struct Args {
    #[command(flatten)]
    server: ServerFlags,
    /// The application, by id or uid (repeatable) [default: all that the token may see, up to 16]
    #[arg(long = "app", value_name = "APP")]
    apps: Vec<String>,
    /// Only attempts to this endpoint, by id or uid
    #[arg(long, requires = "apps")]
    endpoint: Option<String>,
    /// Only this type of event (repeatable)
    #[arg(long = "event-type", value_name = "NAME")]
    event_types: Vec<String>,
    /// Only attempts that failed
    #[arg(long)]
    failed: bool,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = limit)]
    limit: Option<usize>,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    tokio::select! {
        ended = follow_all(&args) => ended,
        stopped = stop_signal() => stopped,
    }
}

async fn follow_all(args: &Args) -> anyhow::Result<()> {
    let client = Arc::new(Client::new(&args.server)?);
    let apps = if args.apps.is_empty() { all_apps(&client).await? } else { args.apps.clone() };
    let mut query: Query = args.event_types.iter().map(|name| ("event_types", name.clone())).collect();
    query.extend(args.endpoint.iter().map(|endpoint| ("endpoint_id", endpoint.clone())));
    if args.failed {
        query.push(("status", "2".to_owned()));
    }
    let (found, mut attempts) = mpsc::channel(64);
    let mut following = JoinSet::new();
    let several = apps.len() > 1;
    for app in apps {
        let (client, query, found) = (Arc::clone(&client), query.clone(), found.clone());
        following.spawn(async move { follow(&client, &app, &query, &found).await });
    }
    drop(found);
    let mut shown = 0;
    loop {
        tokio::select! {
            biased;
            Some(ended) = following.join_next() => ended.context("a part of it ended")??,
            attempt = attempts.recv() => {
                let Some((app, attempt)) = attempt else { break };
                show(&app, several, &attempt, args.output.form())?;
                shown += 1;
                if args.limit.is_some_and(|limit| shown >= limit) {
                    return Ok(());
                }
            }
        }
    }
    // All have ended, and not all may have been asked why.
    while let Some(ended) = following.join_next().await {
        ended.context("a part of it ended")??;
    }
    Ok(())
}

/// By their ids, those that the token is for.
async fn all_apps(client: &Client) -> anyhow::Result<Vec<String>> {
    let id = |value: &Value| value["id"].as_str().map(str::to_owned);
    match client.list(&["app"], &Vec::new(), APPS_MAX).await {
        Ok(found) if found.more => {
            Err(Usage(format!("there are more than {APPS_MAX} applications; name some of them with --app")).into())
        }
        Ok(found) if found.rows.is_empty() => anyhow::bail!("there is no application yet"),
        Ok(found) => found.values()?.iter().map(|app| id(app).context("the answer has no application id")).collect(),
        // A token for one application sees no list of them.
        Err(error) if status_of(&error) == Some(StatusCode::FORBIDDEN) => {
            let own = client.get(&["auth", "whoami"], &[]).await?.value()?;
            let own = own["appId"].as_str().context("name the application with --app")?;
            Ok(vec![own.to_owned()])
        }
        Err(error) => Err(error),
    }
}

fn status_of(error: &anyhow::Error) -> Option<StatusCode> {
    match error.downcast_ref() {
        Some(CallError::Refused { status, .. }) => Some(*status),
        Some(CallError::Token) => Some(StatusCode::UNAUTHORIZED),
        Some(CallError::NoServer { .. } | CallError::Missing(_)) | None => None,
    }
}

type Found = mpsc::Sender<(String, Box<RawValue>)>;

/// Follows one application, over however many connections it takes. Only a refusal ends it.
async fn follow(client: &Client, app: &str, query: &Query, found: &Found) -> anyhow::Result<()> {
    let mut last: Option<String> = None;
    let mut pause = PAUSE_MIN;
    loop {
        match follow_once(client, app, query, found, &mut last, &mut pause).await {
            Ok(Ended::Unread) => return Ok(()),
            Ok(Ended::ByServer) => {}
            Err(error) if last.is_none() => {
                return Err(match status_of(&error) {
                    Some(StatusCode::NOT_FOUND) => error.context(format!("following application `{app}`")),
                    _ => error,
                });
            }
            Err(error) => match status_of(&error) {
                Some(status) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                    return Err(error);
                }
                Some(_) | None => print::tell(&format!(
                    "(trying again in {}: {})",
                    show_duration(pause),
                    print::escaped_word(&format!("{error:#}"), 300)
                )),
            },
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

enum Ended {
    ByServer,
    /// Nobody wants to see any more.
    Unread,
}

async fn follow_once(
    client: &Client,
    app: &str,
    query: &Query,
    found: &Found,
    last: &mut Option<String>,
    pause: &mut Duration,
) -> anyhow::Result<Ended> {
    let mut events = client.follow(&["app", app, "tail"], query, last.as_deref()).await?;
    while let Some(event) = events.next().await? {
        *pause = PAUSE_MIN;
        if last.is_none() {
            print::tell(&format!("Following {}; Ctrl-C ends it.", print::escaped_word(app, 100)));
        }
        if let Some(data) = event.data {
            let attempt = RawValue::from_string(data).context("the server's event is not JSON; is the URL right?")?;
            if found.send((app.to_owned(), attempt)).await.is_err() {
                return Ok(Ended::Unread);
            }
        }
        *last = event.id.or(last.take());
    }
    Ok(Ended::ByServer)
}

fn show(app: &str, several: bool, attempt: &RawValue, form: Form) -> anyhow::Result<()> {
    print::say(&match form {
        Form::Json => print::json_line(attempt.get()),
        Form::Text => {
            let attempt: Value = serde_json::from_str(attempt.get()).context("reading an attempt")?;
            let app = if several { format!("{}  ", print::escaped_word(app, 60)) } else { String::new() };
            app + &line(&attempt)
        }
    })?;
    Ok(())
}

/// When, of what type, to whom, with what answer, how long it took and what follows.
fn line(attempt: &Value) -> String {
    let text = |value: &Value, max: usize| print::escaped_word(value.as_str().unwrap_or("-"), max);
    let verdict = &attempt["verdict"];
    let answer = match attempt["responseStatusCode"].as_u64() {
        None | Some(0) => "none".to_owned(),
        Some(status) => status.to_string(),
    };
    let took = show_duration(Duration::from_millis(attempt["responseDurationMs"].as_u64().unwrap_or(0)));
    let (colour, follows) = match (verdict["class"].as_str(), verdict["death"].as_str()) {
        (Some("delivered"), _) => (Colour::Green, "delivered".to_owned()),
        (_, Some(death)) => {
            (Colour::Red, format!("given up ({}): {}", print::escaped_word(death, 30), text(&verdict["reason"], 300)))
        }
        (_, None) => (Colour::Yellow, text(&verdict["reason"], 300)),
    };
    format!(
        "{}  {:20}  {}  #{:<2}  {}  {took:>7}  {}",
        paint(Colour::Dim, &text(&attempt["timestamp"], 40)),
        text(&attempt["msg"]["eventType"], 60),
        text(&attempt["endpointId"], 60),
        verdict["attemptNumber"].as_u64().unwrap_or(0),
        paint(colour, &format!("{answer:4}")),
        paint(colour, &follows),
    )
}

const APPS_MAX: usize = 16;
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_what_came_of_an_attempt() {
        let attempt = |status: u16, verdict: Value| {
            json!({
                "timestamp": "2026-01-31T12:00:00Z", "endpointId": "ep_1", "responseStatusCode": status,
                "responseDurationMs": 12, "msg": { "eventType": "order.paid\u{1b}" }, "verdict": verdict,
            })
        };
        for (attempt, expected) in [
            (
                attempt(204, json!({ "class": "delivered", "attemptNumber": 1, "reason": "Answered." })),
                "2026-01-31T12:00:00Z  order.paid\\u{1b}      ep_1  #1   204      12ms  delivered",
            ),
            (
                attempt(503, json!({ "class": "transient", "attemptNumber": 2, "reason": "It answered 503." })),
                "2026-01-31T12:00:00Z  order.paid\\u{1b}      ep_1  #2   503      12ms  It answered 503.",
            ),
            (
                attempt(0, json!({ "class": "permanent", "attemptNumber": 10, "reason": "No.", "death": "permanent" })),
                "2026-01-31T12:00:00Z  order.paid\\u{1b}      ep_1  #10  none     12ms  given up (permanent): No.",
            ),
        ] {
            assert_eq!(line(&attempt), expected);
        }
    }
}
