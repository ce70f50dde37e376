//! `postrider sources`: URLs for other services to send their webhooks to, and what was refused there.

use super::{
    Usage,
    client::{Answer, Client, OutputFlags, ServerFlags},
    flags::{LIMIT, limit, said},
    print::{self, Form},
};
use anyhow::Context;
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider sources create --name GitHub --type github --secret S3CRET --uid github
  postrider sources list
  postrider sources log github
  postrider sources rotate github

A source's endpoints are those of its application, whose id `create --json` shows: postrider endpoints add --app app_... URL
Exit codes: 0 done, 1 not done, 2 wrong usage or settings")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a source and print its URL
    #[command(after_help = "\
Examples:
  postrider sources create --name Stripe --type stripe --secret whsec_...
  postrider sources create --name Ours --type hmac --config '{\"secret\": \"s\", \"header\": \"x-signature\"}'")]
    Create(Create),
    /// List the sources
    #[command(after_help = "Example:\n  postrider sources list")]
    List(List),
    /// Show what a source has refused and why, newest first
    #[command(after_help = "Example:\n  postrider sources log github")]
    Log(Log),
    /// Give a source another URL and print it; the old one is good for another 24 hours
    #[command(after_help = "Example:\n  postrider sources rotate github")]
    Rotate(One),
}

#[derive(clap::Args)]
struct Create {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// What it is called
    #[arg(long)]
    name: String,
    /// The service that sends, or how it signs: github, stripe, svix, hmac, ...
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,
    /// A name of your own for it
    #[arg(long)]
    uid: Option<String>,
    /// What the service signs with
    #[arg(long, conflicts_with = "config")]
    secret: Option<String>,
    /// What is to be known of the service, as JSON, where that is more than a secret
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
    /// A header that goes along to the endpoints (repeatable)
    #[arg(long = "pass-header", value_name = "NAME")]
    pass_headers: Vec<String>,
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = limit, default_value = LIMIT)]
    limit: usize,
}

#[derive(clap::Args)]
struct One {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// The source, by id or uid
    source: String,
}

#[derive(clap::Args)]
struct Log {
    #[command(flatten)]
    one: One,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = limit, default_value = LIMIT)]
    limit: usize,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Create(args) => create(args).await,
        Command::List(args) => list(args).await,
        Command::Log(args) => log(args).await,
        Command::Rotate(args) => rotate(args).await,
    }
}

async fn create(args: Create) -> anyhow::Result<()> {
    let config: Option<Value> = match (args.secret, args.config) {
        (Some(secret), _) => Some(json!({ "secret": secret })),
        (None, Some(text)) => {
            Some(serde_json::from_str(&text).map_err(|error| Usage(format!("--config is not JSON: {error}")))?)
        }
        (None, None) => None,
    };
    let pass_headers = (!args.pass_headers.is_empty()).then(|| json!(args.pass_headers));
    let body = said([
        ("name", Some(json!(args.name))),
        ("type", Some(json!(args.kind))),
        ("uid", args.uid.map(|uid| json!(uid))),
        ("config", config),
        ("passHeaders", pass_headers),
    ]);
    let made = Client::new(&args.server)?.under("ingest")?.post(&["source"], &body).await?;
    let id = made.value()?["id"].as_str().unwrap_or_default().to_owned();
    show_url(&made, args.output.form(), &format!("Made {id}. The service is to send to:"))
}

async fn rotate(args: One) -> anyhow::Result<()> {
    let client = Client::new(&args.server)?.under("ingest")?;
    let made = client.post(&["source", &args.source, "token", "rotate"], &json!({})).await?;
    show_url(&made, args.output.form(), "The service is to send to:")
}

/// The URL alone goes to standard output, so that it can be taken over.
fn show_url(made: &Answer, form: Form, said: &str) -> anyhow::Result<()> {
    match form {
        Form::Json => print::say(&print::json_line(made.raw()?.get()))?,
        Form::Text => {
            let made = made.value()?;
            let url = made["ingestUrl"].as_str().context("the answer has no URL: this key may not see it")?;
            print::tell(&print::escaped(said));
            print::say(&print::escaped_word(url, 1000))?;
        }
    }
    Ok(())
}

async fn list(args: List) -> anyhow::Result<()> {
    let found = Client::new(&args.server)?.under("ingest")?.list(&["source"], &Vec::new(), args.limit).await?;
    match args.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "there are no sources")?,
    }
    print::tell_of_more(found.more);
    Ok(())
}

async fn log(args: Log) -> anyhow::Result<()> {
    let client = Client::new(&args.one.server)?.under("ingest")?;
    let found = client.list(&["source", &args.one.source, "log"], &Vec::new(), args.limit).await?;
    match args.one.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => {
            let rows = found.values()?.iter().map(log_row).collect();
            print::rows(&LOG_HEAD, rows, "nothing was refused")?;
        }
    }
    print::tell_of_more(found.more);
    Ok(())
}

fn row(source: &Value) -> Vec<String> {
    ["id", "uid", "type", "name", "appId"]
        .map(|field| print::escaped_word(source[field].as_str().unwrap_or("-"), 100))
        .to_vec()
}

fn log_row(refused: &Value) -> Vec<String> {
    let text = |field: &str, chars_max| print::escaped_word(refused[field].as_str().unwrap_or("-"), chars_max);
    vec![text("created_at", 40), refused["status_code"].to_string(), text("error_text", 500)]
}

const HEAD: [&str; 5] = ["ID", "UID", "TYPE", "NAME", "APPLICATION"];
const LOG_HEAD: [&str; 3] = ["WHEN", "STATUS", "WHY"];
