//! `postrider api-keys`: keys that are limited to what they are for, and ended one by one.

use super::{
    client::{Answer, Client, OutputFlags, ServerFlags},
    flags::{LIMIT, limit, moment_ahead, said},
    print::{self, Form},
};
use crate::{config::parse_duration, credentials::scopes::Scope, http::time::Time};
use anyhow::Context;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider api-keys create --name billing --scope ingest
  postrider api-keys create --name support --scope read --scope replay --app acme --expires 90d
  postrider api-keys rotate key_... --overlap 2h
  postrider api-keys revoke key_...

A new key is printed once and not stored. Whoever calls must hold a token for everything, or a key with the scope admin.
Exit codes: 0 done, 1 not done, 2 wrong usage or settings")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a key and print it
    #[command(after_help = "Example:\n  postrider api-keys create --name billing --scope ingest")]
    Create(Create),
    /// List the keys, newest first
    #[command(after_help = "Example:\n  postrider api-keys list")]
    List(List),
    /// End a key for good
    #[command(after_help = "Example:\n  postrider api-keys revoke key_...")]
    Revoke(One),
    /// Make a key in the place of another, which works on for a while, and print it
    #[command(after_help = "Example:\n  postrider api-keys rotate key_... --overlap 2h")]
    Rotate(Rotate),
}

#[derive(clap::Args)]
struct Create {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// To know it again by
    #[arg(long)]
    name: String,
    /// What it may do: ingest, read, manage, replay or admin (repeatable)
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = scope)]
    scopes: Vec<Scope>,
    /// Only this application, by id or uid
    #[arg(long)]
    app: Option<String>,
    /// When it ends (RFC 3339, or a span from now such as 90d); never, if not given
    #[arg(long, value_name = "TIME", value_parser = moment_ahead)]
    expires: Option<Time>,
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
    /// The key, by its id (key_...)
    key: String,
}

#[derive(clap::Args)]
struct Rotate {
    #[command(flatten)]
    one: One,
    /// For how long the old key works on
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, default_value = "24h")]
    overlap: Duration,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Create(args) => create(args).await,
        Command::List(args) => list(args).await,
        Command::Revoke(args) => revoke(args).await,
        Command::Rotate(args) => rotate(args).await,
    }
}

async fn create(args: Create) -> anyhow::Result<()> {
    let body = said([
        ("name", Some(json!(args.name))),
        ("scopes", Some(json!(args.scopes))),
        ("appId", args.app.map(|app| json!(app))),
        ("expiresAt", args.expires.map(|time| json!(time))),
    ]);
    let made = Client::new(&args.server)?.post(&["api-key"], &body).await?;
    show_made(&made, args.output.form())
}

async fn rotate(args: Rotate) -> anyhow::Result<()> {
    let body = json!({ "overlapSeconds": args.overlap.as_secs() });
    let made = Client::new(&args.one.server)?.post(&["api-key", &args.one.key, "rotate"], &body).await?;
    show_made(&made, args.one.output.form())
}

/// The key alone goes to standard output, so that it can be taken over.
fn show_made(made: &Answer, form: Form) -> anyhow::Result<()> {
    match form {
        Form::Json => print::say(&print::json_line(made.raw()?.get()))?,
        Form::Text => {
            let made = made.value()?;
            let text = |name: &str| made[name].as_str().context("the answer has no key");
            print::tell(&format!("Made {}. It is shown this once only:", print::escaped_word(text("id")?, 100)));
            print::say(&print::escaped_word(text("token")?, 200))?;
        }
    }
    Ok(())
}

async fn list(args: List) -> anyhow::Result<()> {
    let found = Client::new(&args.server)?.list(&["api-key"], &Vec::new(), args.limit).await?;
    match args.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "there are no API keys")?,
    }
    print::tell_of_more(found.more);
    Ok(())
}

async fn revoke(args: One) -> anyhow::Result<()> {
    let revoked = Client::new(&args.server)?.post(&["api-key", &args.key, "revoke"], &json!({})).await?;
    match args.output.form() {
        Form::Json => print::say(&print::json_line(revoked.raw()?.get()))?,
        Form::Text => print::rows(&HEAD, vec![row(&revoked.value()?)], "there are no API keys")?,
    }
    Ok(())
}

fn row(key: &Value) -> Vec<String> {
    let text = |name: &str| print::escaped_word(key[name].as_str().unwrap_or("-"), 100);
    let scopes: Vec<&str> = key["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let scopes = print::escaped_word(&scopes.join(","), 100);
    let ends = if key["revokedAt"].is_null() { text("expiresAt") } else { format!("revoked {}", text("revokedAt")) };
    vec![text("id"), text("name"), scopes, text("appId"), text("lastUsedAt"), ends]
}

fn scope(text: &str) -> Result<Scope, String> {
    text.parse().map_err(|error: crate::credentials::scopes::UnknownScope| error.to_string())
}

const HEAD: [&str; 6] = ["ID", "NAME", "SCOPES", "APPLICATION", "LAST USED", "ENDS"];
