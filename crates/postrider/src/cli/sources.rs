//! `postrider sources`: URLs for other services to send their webhooks to, and what was refused there.

use super::{
    Usage,
    client::{Answer, Client, OutputFlags, ServerFlags},
    flags::{LIMIT, limit, said},
    print::{self, Form},
};
use crate::{
    config::Hidden,
    sources::{
        fields::{Field, Kind},
        presets,
    },
};
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::{
    env, fs,
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider sources create --name GitHub --type github --secret-file secret.txt --uid github
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
  postrider sources create --name Stripe --type stripe --secret-file stripe.txt
  pass show github | postrider sources create --name GitHub --type github --secret-file -
  POSTRIDER_SECRET=s postrider sources create --name Ours --type hmac --config '{\"header\": \"x-signature\"}'

What the service signs with is taken from --secret, --secret-file or, without either, from POSTRIDER_SECRET, where the type has
such a thing and --config has none. Others on the machine can read the arguments of a command: not so a file or a variable.")]
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
    /// What the service signs with; others on this machine can read it here
    #[arg(long)]
    secret: Option<String>,
    /// A file with what the service signs with, `-` for standard input; a line break at its end is left out
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,
    /// What else is to be known of the service, as JSON
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
    let config = config(&args)?;
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

/// What was said of the service, with its secret.
fn config(args: &Create) -> anyhow::Result<Option<Value>> {
    let mut config: Option<Value> = match &args.config {
        Some(text) => {
            Some(serde_json::from_str(text).map_err(|error| Usage(format!("--config is not JSON: {error}")))?)
        }
        None => None,
    };
    let known = presets::find(&args.kind).map(|preset| preset.fields).unwrap_or_default();
    let of_type: Vec<&Field> = known.iter().filter(|field| field.kind == Kind::Secret).collect();
    // Most call it that, and of a type that we do not know the server will.
    let name = of_type.first().map_or("secret", |field| field.name);
    let is_there = config.as_ref().is_some_and(|config| config.get(name).is_some());
    let secret = match (&args.secret, &args.secret_file) {
        (Some(secret), _) => Some(Hidden::new(secret.clone())),
        (None, Some(file)) => Some(Hidden::new(read_secret(file)?)),
        (None, None) if is_there || of_type.is_empty() => None,
        (None, None) => variable()?,
    };
    let Some(secret) = secret else { return Ok(config) };
    if is_there {
        return Err(Usage(format!("--config has a `{name}` already: give it once")).into());
    }
    match config.get_or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(fields) => drop(fields.insert(name.to_owned(), secret.reveal().into())),
        _ => return Err(Usage("--config must be an object".to_owned()).into()),
    }
    Ok(config)
}

fn variable() -> anyhow::Result<Option<Hidden>> {
    match env::var_os(VARIABLE).filter(|text| !text.is_empty()).map(std::ffi::OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(Hidden::new(text))),
        Some(Err(_)) => Err(Usage(format!("{VARIABLE} is not text")).into()),
    }
}

fn read_secret(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true if io::stdin().is_terminal() => {
            return Err(
                Usage("nothing comes from standard input: send the secret there, or name a file".to_owned()).into()
            );
        }
        true => io::stdin().lock().take(SECRET_MAX).read_to_string(&mut text),
        false => fs::File::open(file).and_then(|file| file.take(SECRET_MAX).read_to_string(&mut text)),
    };
    read.with_context(|| format!("reading the secret from {}", file.display()))?;
    let secret = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    match secret.is_empty() {
        true => Err(Usage(format!("there is no secret in {}", file.display())).into()),
        false => Ok(secret.to_owned()),
    }
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
        Form::Text if found.rows.is_empty() && !found.unreadable.is_empty() => {}
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "there are no sources")?,
    }
    for source in &found.unreadable {
        let [id, name] = ["id", "name"].map(|field| print::escaped_word(source[field].as_str().unwrap_or("-"), 100));
        print::tell(&format!("{id} ({name}) cannot be read, and takes nothing: the log of the server says why"));
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

const VARIABLE: &str = "POSTRIDER_SECRET";
/// Far more than the server takes, and the end of what is no secret at all.
const SECRET_MAX: u64 = 64 * 1024;
const HEAD: [&str; 5] = ["ID", "UID", "TYPE", "NAME", "APPLICATION"];
const LOG_HEAD: [&str; 3] = ["WHEN", "STATUS", "WHY"];
