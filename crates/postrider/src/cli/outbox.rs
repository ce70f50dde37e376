//! `postrider outbox`: a producer's database gets an outbox, or is asked how it stands.
//!
//! It talks to that database and not to a server, so that it works before there is one, and while none answers.

use super::{
    Usage,
    client::OutputFlags,
    flags::{LIMIT, limit},
    print::{self, Form},
};
use crate::{
    config::{BODY_RANGE, parse_size, read_database_url, show_duration},
    deployment::read_ca,
    http::time::Time,
};
use anyhow::Context;
use postrider_store::outbox::{
    Failed, Identity, Installation, Outbox, RowsThere, SchemaName, Sent, Standing, Which, script,
};
use serde_json::json;
use std::{path::PathBuf, time::Duration};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make an outbox, or bring it up to date; harmless if it is there already
    #[command(
        after_help = "Examples:\n  postrider outbox install --database-url postgres://...\n  postrider outbox install --print --grant-send shop"
    )]
    Install(Install),
    /// Show how many rows wait, for how long, and which cannot be sent
    #[command(after_help = "Example:\n  postrider outbox status --json")]
    Status(Status),
    /// Try rows again that could not be sent
    #[command(after_help = "Examples:\n  postrider outbox retry 17 18\n  postrider outbox retry --all")]
    Retry(Choice),
    /// Delete rows that could not be sent
    #[command(after_help = "Example:\n  postrider outbox discard 17")]
    Discard(Choice),
    /// Remove an outbox
    #[command(after_help = "Example:\n  postrider outbox uninstall")]
    Uninstall(Uninstall),
}

/// Which outbox is meant.
#[derive(clap::Args)]
struct PlaceFlags {
    /// The producer's database: postgres://user:password@host:port/name
    #[arg(long, value_name = "URL", env = "POSTRIDER_OUTBOX_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// The schema that the outbox lies in
    #[arg(long, default_value = "postrider")]
    schema: SchemaName,
    /// Certificates in PEM that the database's own may be signed by, besides the usual ones
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Install {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Print the SQL instead, to be copied into a migration
    #[arg(long)]
    print: bool,
    /// The largest payload that can be inserted; not above the server's `body_max` [default: as it is, or 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = payload_max)]
    payload_max: Option<u64>,
    /// Let commits notify the server [default: as it is, or so]
    #[arg(long, conflicts_with = "no_notify")]
    notify: bool,
    /// Let commits not notify the server; it then finds rows within a second
    #[arg(long)]
    no_notify: bool,
    /// Let this role send, and no more (repeatable)
    #[arg(long = "grant-send", value_name = "ROLE")]
    senders: Vec<String>,
    /// Let Postrider connect as this role (repeatable)
    #[arg(long = "grant-relay", value_name = "ROLE")]
    relays: Vec<String>,
}

#[derive(clap::Args)]
struct Status {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// How many rows that cannot be sent are shown
    #[arg(long, value_name = "ROWS", default_value = LIMIT, value_parser = limit)]
    limit: usize,
}

#[derive(clap::Args)]
struct Choice {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// The number of a row that could not be sent (repeatable)
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    /// All of them
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

#[derive(clap::Args)]
struct Uninstall {
    #[command(flatten)]
    place: PlaceFlags,
    /// Also if rows are still in it: they are lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputFlags,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Install(args) => install(args).await,
        Command::Status(args) => status(args).await,
        Command::Retry(args) => {
            let which = args.which()?;
            let done = args.place.connect().await?.retry(&which).await?;
            let words = format!("{} rows are tried again", done.len());
            print::result(args.output.form(), &json!({ "retried": done }), &words)?;
            all_of(&which, &done)
        }
        Command::Discard(args) => {
            let which = args.which()?;
            let done = args.place.connect().await?.discard(&which).await?;
            let words = format!("{} rows deleted", done.len());
            print::result(args.output.form(), &json!({ "discarded": done }), &words)?;
            all_of(&which, &done)
        }
        Command::Uninstall(args) => {
            let rows = if args.force { RowsThere::Discard } else { RowsThere::Keep };
            args.place.connect().await?.uninstall(rows).await.context("the outbox stays")?;
            if args.output.form() == Form::Json {
                print::say(&json!({ "uninstalled": true }).to_string())?;
            }
            print::tell("The outbox is gone. Take it out of the server's settings too.");
            Ok(())
        }
    }
}

/// Whoever names a row means one that there is.
fn all_of(which: &Which, done: &[i64]) -> anyhow::Result<()> {
    let missing: Vec<String> = match which {
        Which::All => Vec::new(),
        Which::These(ids) => ids.iter().filter(|id| !done.contains(id)).map(i64::to_string).collect(),
    };
    anyhow::ensure!(missing.is_empty(), "no row that cannot be sent has the number {}", missing.join(", "));
    Ok(())
}

async fn install(args: Install) -> anyhow::Result<()> {
    let installation = Installation {
        payload_max: args.payload_max,
        notify: (args.notify || args.no_notify).then_some(args.notify),
        senders: args.senders,
        relays: args.relays,
    };
    if args.print {
        return Ok(print::say(script(&args.place.schema, &installation).trim_end())?);
    }
    let outbox = args.place.connect().await?;
    outbox.install(&installation).await?;
    let identity = outbox.identity().await?;
    let schema = &args.place.schema;
    print::result(args.output.form(), &json!({ "identity": identity.as_str() }), identity.as_str())?;
    print::tell(&format!("The outbox is in the schema `{schema}`. In a transaction of your own:"));
    print::tell(&format!(
        "    SELECT {schema}.send('acme', 'invoice.paid', '{{\"id\": 7}}', ordering_key => 'invoice-7');"
    ));
    print::tell("and for the server: `postrider serve --outbox postgres://...`");
    Ok(())
}

async fn status(args: Status) -> anyhow::Result<()> {
    let outbox = args.place.connect().await?;
    let identity = outbox.identity().await?;
    let standing = outbox.standing().await?;
    let failed = outbox.failed(args.limit).await?;
    match args.output.form() {
        Form::Json => show_json(&identity, standing, &failed)?,
        Form::Text => show(standing, &failed)?,
    }
    print::tell_of_more(standing.failed > failed.len() as u64);
    Ok(())
}

fn show(standing: Standing, failed: &[Failed]) -> anyhow::Result<()> {
    let Standing { waiting, oldest, failed: failures } = standing;
    let oldest = oldest.map_or_else(String::new, |age| format!(", the oldest for {}", show_duration(whole(age))));
    print::say(&format!("{waiting} rows wait{oldest}; {failures} cannot be sent"))?;
    if failed.is_empty() {
        return Ok(());
    }
    let rows = failed.iter().map(|row| {
        let sent = match row.sent {
            Sent::No => "no",
            Sent::Maybe => "maybe",
        };
        vec![
            row.id.to_string(),
            print::escaped_word(&row.app, 40),
            print::escaped_word(&row.event_type, 40),
            Time(row.failed_at).to_string(),
            sent.to_owned(),
            print::escaped_word(&row.error, 200),
        ]
    });
    print::rows(&["ID", "APP", "EVENT TYPE", "SINCE", "SENT", "WHY"], rows.collect(), "none")?;
    Ok(())
}

fn show_json(identity: &Identity, standing: Standing, failed: &[Failed]) -> anyhow::Result<()> {
    let failed: Vec<_> = failed
        .iter()
        .map(|row| {
            json!({
                "id": row.id,
                "app": row.app,
                "eventType": row.event_type,
                "error": row.error,
                "failedAt": Time(row.failed_at),
                "mayHaveBeenSent": row.sent == Sent::Maybe,
            })
        })
        .collect();
    let shown = json!({
        "identity": identity.as_str(),
        "waiting": standing.waiting,
        "oldestSeconds": standing.oldest.map(|age| age.as_secs()),
        "failed": standing.failed,
        "failures": failed,
    });
    Ok(print::say(&print::json_line(&shown.to_string()))?)
}

fn payload_max(text: &str) -> Result<u64, String> {
    parse_size(text)
        .filter(|size| BODY_RANGE.contains(size))
        .ok_or_else(|| "write a size from 1KiB to 64MiB".to_owned())
}

fn whole(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

impl PlaceFlags {
    async fn connect(&self) -> anyhow::Result<Outbox> {
        let Some(url) = &self.database_url else {
            return Err(Usage("say which database with --database-url or POSTRIDER_OUTBOX_URL".to_owned()).into());
        };
        let url = read_database_url(url).map_err(|reason| Usage(format!("--database-url: {reason}")))?;
        let ca_pem = read_ca(self.ca_file.as_deref())?;
        Ok(Outbox::connect(&url, ca_pem.as_deref(), self.schema.clone(), "outbox command").await?)
    }
}

impl Choice {
    fn which(&self) -> anyhow::Result<Which> {
        match (self.all, self.ids.is_empty()) {
            (true, _) => Ok(Which::All),
            (false, false) => Ok(Which::These(self.ids.clone())),
            (false, true) => Err(Usage("name rows by their ids, or say --all".to_owned()).into()),
        }
    }
}
