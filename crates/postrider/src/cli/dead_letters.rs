//! `postrider dead-letters`: what was given up, and why.

use super::{
    Usage,
    client::{AppFlags, InApp, is_not_found},
    flags::{DeadFilter, LIMIT, limit},
    messages::{attempt_lines, payload_of},
    print::{self, Form},
};
use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List dead letters, the newest message first
    List(List),
    /// Count dead letters
    #[command(after_help = "Example:\n  postrider dead-letters count --app shop --since 1d")]
    Count(Count),
    /// Show a dead letter: the reason, every attempt, the payload
    #[command(after_help = "Example:\n  postrider dead-letters show --app shop msg_... --endpoint billing")]
    Show(Show),
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  postrider dead-letters list --app shop --reason exhausted --since 2d")]
struct List {
    #[command(flatten)]
    in_app: AppFlags,
    #[command(flatten)]
    filter: DeadFilter,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = limit, default_value = LIMIT)]
    limit: usize,
}

#[derive(clap::Args)]
struct Count {
    #[command(flatten)]
    in_app: AppFlags,
    #[command(flatten)]
    filter: DeadFilter,
}

#[derive(clap::Args)]
struct Show {
    #[command(flatten)]
    in_app: AppFlags,
    /// The message, by id or eventId
    message: String,
    /// The endpoint, by id or uid; needed if the message is a dead letter of several, or of a deleted one
    #[arg(long)]
    endpoint: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Count(args) => count(args).await,
        Command::Show(args) => show(args).await,
    }
}

async fn list(args: List) -> anyhow::Result<()> {
    let app = InApp::new(&args.in_app)?;
    let found = app.list(&["dead-letter"], &args.filter.query(), args.limit).await?;
    match args.in_app.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "no dead letters match")?,
    }
    print::tell_of_more(found.more);
    Ok(())
}

fn row(letter: &Value) -> Vec<String> {
    let text = |name: &str| print::escaped_word(letter[name].as_str().unwrap_or("-"), 100);
    let answer = match letter["lastAttempt"]["responseStatusCode"].as_u64() {
        Some(0) => "none".to_owned(),
        Some(status) => status.to_string(),
        None => "-".to_owned(),
    };
    let attempts = letter["attempts"].as_u64().unwrap_or(0).to_string();
    vec![text("msgId"), text("endpointId"), text("eventType"), text("reason"), answer, attempts, text("diedAt")]
}

async fn count(args: Count) -> anyhow::Result<()> {
    let app = InApp::new(&args.in_app)?;
    let answer = app.get(&["dead-letter", "count"], &args.filter.query()).await?;
    match args.in_app.output.form() {
        Form::Json => print::say(&print::json_line(answer.raw()?.get()))?,
        Form::Text => {
            let counted = answer.value()?;
            print::say(&counted["count"].as_u64().context("the answer has no count")?.to_string())?;
            if counted["capped"] == Value::Bool(true) {
                print::tell("There are more; they were not counted to the end.");
            }
        }
    }
    Ok(())
}

async fn show(args: Show) -> anyhow::Result<()> {
    let app = InApp::new(&args.in_app)?;
    let message = &args.message;
    let endpoint = match args.endpoint {
        Some(endpoint) => endpoint,
        None => only_endpoint(&app, message).await?,
    };
    let answer = app.get(&["dead-letter", message, "endpoint", &endpoint], &Vec::new()).await;
    let answer = answer.map_err(|error| match is_not_found(&error) {
        true => anyhow!("message `{message}` is no dead letter of endpoint `{endpoint}`"),
        false => error,
    })?;
    match args.in_app.output.form() {
        Form::Json => print::say(&print::json_line(answer.raw()?.get()))?,
        Form::Text => print::say(&described(&answer.value()?, &answer.read::<WithMessage>()?.msg)?)?,
    }
    Ok(())
}

#[derive(Deserialize)]
struct WithMessage {
    msg: Box<RawValue>,
}

/// The one endpoint that the message is a dead letter of.
async fn only_endpoint(app: &InApp, message: &str) -> anyhow::Result<String> {
    let states = app.list(&["msg", message, "endpoint"], &Vec::new(), ENDPOINTS_MAX).await?.values()?;
    let dead: Vec<&str> = states
        .iter()
        .filter(|state| matches!(state["statusText"].as_str(), Some("fail" | "canceled")))
        .filter_map(|state| state["id"].as_str())
        .collect();
    match dead[..] {
        [only] => Ok(only.to_owned()),
        [] => Err(anyhow!("message `{message}` is no dead letter of any endpoint that there is")),
        [..] => {
            Err(Usage(format!("`{message}` is a dead letter of several; choose: --endpoint {}", dead.join(", ")))
                .into())
        }
    }
}

fn described(letter: &Value, message: &RawValue) -> anyhow::Result<String> {
    let text = |name: &str| print::escaped_word(letter[name].as_str().unwrap_or("-"), 2_000);
    let mut lines = vec![
        format!("message   {}", text("msgId")),
        format!("event     {}", text("eventType")),
        format!("endpoint  {}  {}", text("endpointId"), text("endpointUrl")),
        format!("accepted  {}", text("timestamp")),
        format!("given up  {}  {}: {}", text("diedAt"), text("reason"), text("reasonText")),
    ];
    if letter["replayedAt"].is_string() {
        lines.push(format!("replayed  {}", text("replayedAt")));
    }
    let attempts = letter["allAttempts"].as_array().context("the answer has no attempts")?;
    lines.push(format!("\nattempts  {}", attempts.len()));
    lines.extend(attempts.iter().rev().map(attempt_lines));
    lines.push("\npayload".to_owned());
    lines.push(payload_of(message)?);
    Ok(lines.join("\n"))
}

const HEAD: [&str; 7] = ["MESSAGE", "ENDPOINT", "EVENT", "REASON", "ANSWER", "ATTEMPTS", "GIVEN UP"];
const ENDPOINTS_MAX: usize = 10_000;
