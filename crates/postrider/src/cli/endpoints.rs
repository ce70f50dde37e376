//! `postrider endpoints`: who gets an application's messages, how each fares, and holding one back.

use super::{
    Usage,
    client::{AppFlags, Client, IfMissing, InApp, Query},
    flags::{moment, said},
    print::{self, Form},
    tasks::{self, Wait},
};
use crate::http::time::Time;
use anyhow::{Context, anyhow};
use http::StatusCode;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Add an endpoint; prints its id and its secret
    Add(Add),
    /// List an application's endpoints
    #[command(after_help = "Example:\n  postrider endpoints list --app shop")]
    List(AppFlags),
    /// Print an endpoint's secret
    #[command(after_help = "Example:\n  postrider endpoints secret --app shop billing")]
    Secret(One),
    /// Show how an endpoint fares, or all of them
    #[command(
        after_help = "Examples:\n  postrider endpoints health --app shop\n  postrider endpoints health --app shop billing --json"
    )]
    Health(Health),
    /// Hold an endpoint back; its messages wait
    #[command(after_help = "Example:\n  postrider endpoints pause --app shop billing")]
    Pause(One),
    /// Let an endpoint go on, and choose what becomes of what has been waiting
    Resume(Resume),
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  postrider endpoints add --app shop --create-app http://127.0.0.1:9000/")]
struct Add {
    #[command(flatten)]
    in_app: AppFlags,
    /// Where to deliver
    #[arg(value_name = "ENDPOINT_URL")]
    endpoint_url: String,
    /// Deliver only this type of event (repeatable; none: all)
    #[arg(long = "event-type", value_name = "NAME")]
    event_types: Vec<String>,
    /// The signing secret, whsec_... [default: the server makes one]
    #[arg(long, env = "POSTRIDER_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// Make the application, with --app as its uid, if there is none
    #[arg(long)]
    create_app: bool,
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    in_app: AppFlags,
    /// The endpoint, by id or uid
    endpoint: String,
}

#[derive(clap::Args)]
struct Health {
    #[command(flatten)]
    in_app: AppFlags,
    /// The endpoint, by id or uid [default: all]
    endpoint: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
What is not delivered becomes dead letters, cancelled, and can be replayed.

Examples:
  postrider endpoints resume --app shop billing
  postrider endpoints resume --app shop billing --deliver newest-per-key --yes
  postrider endpoints resume --app shop billing --deliver since --since 2h")]
struct Resume {
    #[command(flatten)]
    one: One,
    /// What is delivered of what has been waiting
    #[arg(long, value_enum, default_value_t = Deliver::All)]
    deliver: Deliver,
    /// With --deliver since: what was accepted from this time on (RFC 3339, or a span back such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment, required_if_eq("deliver", "since"))]
    since: Option<Time>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print the task's id and leave it to itself
    #[arg(long)]
    no_wait: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Deliver {
    All,
    None,
    /// The latest message of each ordering key
    NewestPerKey,
    Since,
}

impl Deliver {
    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::None => "none",
            Self::NewestPerKey => "newest-per-key",
            Self::Since => "since",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointIn<'a> {
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_types: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Add(args) => add(args).await,
        Command::List(args) => list(args).await,
        Command::Secret(args) => {
            let key = secret(&Client::new(&args.in_app.server)?, &args.in_app.app, &args.endpoint).await?;
            print::say(&match args.in_app.output.form() {
                Form::Json => print::json_line(&json!({ "key": key }).to_string()),
                Form::Text => print::escaped_word(&key, 500),
            })?;
            Ok(())
        }
        Command::Health(Health { in_app, endpoint: Some(endpoint) }) => {
            let answer = InApp::new(&in_app)?.get(&["endpoint", &endpoint, "health"], &Vec::new()).await?;
            show_health(&answer, in_app.output.form())
        }
        Command::Health(Health { in_app, endpoint: None }) => health_of_all(in_app).await,
        Command::Pause(args) => {
            let answer = InApp::new(&args.in_app)?.post(&["endpoint", &args.endpoint, "pause"], &json!({})).await?;
            show_health(&answer, args.in_app.output.form())
        }
        Command::Resume(args) => resume(args).await,
    }
}

async fn add(args: Add) -> anyhow::Result<()> {
    let client = Client::new(&args.in_app.server)?;
    let app = &args.in_app.app;
    let endpoint = EndpointIn {
        url: &args.endpoint_url,
        filter_types: (!args.event_types.is_empty()).then_some(&args.event_types),
        secret: args.secret.as_deref(),
    };
    let made = client.post_in_app(app, IfMissing::from_flag(args.create_app), "endpoint", &endpoint).await?.value()?;
    let id = made["id"].as_str().context("the answer has no endpoint id")?;
    let secret = secret(&client, app, id).await?;
    match args.in_app.output.form() {
        Form::Json => print::say(&print::json_line(&json!({ "id": id, "secret": secret }).to_string()))?,
        Form::Text => {
            print::say(&format!("id      {}", print::escaped_word(id, 100)))?;
            print::say(&format!("secret  {}", print::escaped_word(&secret, 500)))?;
        }
    }
    Ok(())
}

async fn list(args: AppFlags) -> anyhow::Result<()> {
    let found = InApp::new(&args)?.list(&["endpoint"], &Vec::new(), usize::MAX).await?;
    match args.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "no endpoints")?,
    }
    Ok(())
}

fn row(endpoint: &Value) -> Vec<String> {
    let text = |name: &str| print::escaped_word(endpoint[name].as_str().unwrap_or_default(), 500);
    let state = if endpoint["disabled"] == Value::Bool(true) { "disabled" } else { "enabled" };
    vec![text("id"), state.to_owned(), text("url")]
}

async fn secret(client: &Client, app: &str, endpoint: &str) -> anyhow::Result<String> {
    let answer = client.get(&["app", app, "endpoint", endpoint, "secret"], &[]).await?.value()?;
    Ok(answer["key"].as_str().context("the answer has no secret")?.to_owned())
}

async fn health_of_all(flags: AppFlags) -> anyhow::Result<()> {
    let app = InApp::new(&flags)?;
    let endpoints = app.list(&["endpoint"], &Vec::new(), usize::MAX).await?.values()?;
    let mut rows = Vec::new();
    // Where standard error is no terminal, a bar draws nothing by itself.
    let bar = match flags.output.form() {
        Form::Text => ProgressBar::new(endpoints.len() as u64),
        Form::Json => ProgressBar::hidden(),
    };
    for endpoint in &endpoints {
        let id = endpoint["id"].as_str().context("the answer has no endpoint id")?;
        let answer = app.get(&["endpoint", id, "health"], &Vec::new()).await?;
        bar.inc(1);
        match flags.output.form() {
            Form::Json => {
                let mut health = answer.value()?;
                health["endpointId"] = json!(id);
                print::say(&print::json_line(&health.to_string()))?;
            }
            Form::Text => rows.push(health_row(endpoint, &answer.value()?)),
        }
    }
    bar.finish_and_clear();
    match flags.output.form() {
        Form::Json => {}
        Form::Text => print::rows(&HEALTH_HEAD, rows, "no endpoints")?,
    }
    Ok(())
}

fn health_row(endpoint: &Value, health: &Value) -> Vec<String> {
    let text = |value: &Value| print::escaped_word(value.as_str().unwrap_or("-"), 200);
    vec![
        text(&endpoint["id"]),
        text(&health["state"]),
        text(&health["breaker"]["state"]),
        text(&health["failingSince"]),
        health["backlog"]["waiting"].as_u64().unwrap_or(0).to_string(),
        text(&endpoint["url"]),
    ]
}

fn show_health(answer: &super::client::Answer, form: Form) -> anyhow::Result<()> {
    print::say(&match form {
        Form::Json => print::json_line(answer.raw()?.get()),
        Form::Text => health_lines(&answer.value()?),
    })?;
    Ok(())
}

fn health_lines(health: &Value) -> String {
    let text = |value: &Value| print::escaped_word(value.as_str().unwrap_or("-"), 500);
    let mut lines = vec![format!("state    {}: {}", text(&health["state"]), text(&health["summary"]))];
    if health["disabled"].is_object() {
        let disabled = &health["disabled"];
        lines.push(format!("stopped  {}, since {}", text(&disabled["reason"]), text(&disabled["since"])));
    }
    let breaker = &health["breaker"];
    let mut words = format!("breaker  {}", text(&breaker["state"]));
    if let (Some(failures), Some(failures_max)) = (breaker["failures"].as_u64(), breaker["failuresMax"].as_u64()) {
        words += &format!(", {failures} failures in a row of {failures_max}");
    }
    if breaker["openUntil"].is_string() {
        words += &format!(", until {}", text(&breaker["openUntil"]));
    }
    lines.push(words);
    if health["failingSince"].is_string() {
        lines.push(format!("failing  since {}", text(&health["failingSince"])));
    }
    if health["backlog"].is_object() {
        lines.push(waiting_line(&health["backlog"]));
    }
    lines.join("\n")
}

fn waiting_line(backlog: &Value) -> String {
    let waiting = backlog["waiting"].as_u64().unwrap_or(0);
    match backlog["oldest"].as_str() {
        Some(oldest) => format!("waiting  {waiting}, the oldest accepted {}", print::escaped_word(oldest, 50)),
        None => format!("waiting  {waiting}"),
    }
}

async fn resume(args: Resume) -> anyhow::Result<()> {
    if args.since.is_some() && args.deliver != Deliver::Since {
        return Err(Usage("--since goes only with --deliver since".to_owned()).into());
    }
    let form = args.one.in_app.output.form();
    let app = InApp::new(&args.one.in_app)?;
    let endpoint = &args.one.endpoint;
    let since: Query = args.since.iter().map(|time| ("since", time.to_string())).collect();
    let backlog = app.get(&["endpoint", endpoint, "backlog"], &since).await?.value()?;
    print::tell(&outlook(&backlog, args.deliver));
    if !args.yes {
        may_go_on(args.deliver)?;
    }
    let body = said([("deliver", Some(json!(args.deliver.name()))), ("since", args.since.map(|time| json!(time)))]);
    let answer = app.post(&["endpoint", endpoint, "resume"], &body).await?;
    if answer.status == StatusCode::ACCEPTED {
        let wait = if args.no_wait { Wait::No } else { Wait::UntilDone };
        return tasks::started(&app.client, &answer.raw()?, form, wait).await;
    }
    show_health(&answer, form)
}

/// What a choice means for what waits.
fn outlook(backlog: &Value, deliver: Deliver) -> String {
    let count = |name: &str| backlog[name].as_u64().unwrap_or(0);
    let waiting = count("waiting");
    let delivered = match deliver {
        Deliver::All => waiting,
        Deliver::None => 0,
        Deliver::NewestPerKey => count("newestPerKey"),
        Deliver::Since => count("since"),
    };
    format!(
        "{waiting} waiting: {delivered} to be delivered, {} to become dead letters.",
        waiting.saturating_sub(delivered)
    )
}

/// Asks whoever sits there. Where nobody does, only what loses nothing goes on without --yes.
fn may_go_on(deliver: Deliver) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        return match deliver {
            Deliver::All => Ok(()),
            Deliver::None | Deliver::NewestPerKey | Deliver::Since => {
                Err(Usage(format!("--deliver {} needs --yes where nobody can be asked", deliver.name())).into())
            }
        };
    }
    let _ = write!(io::stderr(), "Go on? [y/N] ");
    let _ = io::stderr().flush();
    let mut said = String::new();
    io::stdin().read_line(&mut said).context("reading the answer")?;
    match said.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(anyhow!("nothing was changed")),
    }
}

const HEAD: [&str; 3] = ["ENDPOINT", "STATE", "URL"];
const HEALTH_HEAD: [&str; 6] = ["ENDPOINT", "STATE", "BREAKER", "FAILING SINCE", "WAITING", "URL"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_tells_what_it_costs() {
        let backlog = json!({ "waiting": 5, "newestPerKey": 2, "since": 3 });
        for (deliver, expected) in [
            (Deliver::All, "5 waiting: 5 to be delivered, 0 to become dead letters."),
            (Deliver::None, "5 waiting: 0 to be delivered, 5 to become dead letters."),
            (Deliver::NewestPerKey, "5 waiting: 2 to be delivered, 3 to become dead letters."),
            (Deliver::Since, "5 waiting: 3 to be delivered, 2 to become dead letters."),
        ] {
            assert_eq!(outlook(&backlog, deliver), expected);
        }
    }
}
