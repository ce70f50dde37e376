//! `postrider audit`: who changed what by the API.

use super::{
    client::{Client, OutputFlags, Query, ServerFlags},
    flags::{LIMIT, limit, moment},
    print::{self, Form},
};
use crate::http::time::Time;
use serde_json::Value;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider audit --since 2h
  postrider audit --operation v1.api-key.create --json
Exit codes: 0 done, 1 not done, 2 wrong usage or settings")]
pub struct Args {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Only what this one did: a key (key_...), an application (app_...) or the environment (org_...)
    #[arg(long)]
    actor: Option<String>,
    /// Only this operation, such as v1.endpoint.patch
    #[arg(long)]
    operation: Option<String>,
    /// Only what was done at or after this time (RFC 3339, or a span back such as 2h)
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Time>,
    /// Only what was done before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Time>,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = limit, default_value = LIMIT)]
    limit: usize,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let query: Query = [
        ("actor", args.actor.clone()),
        ("operation", args.operation.clone()),
        ("after", args.since.as_ref().map(Time::to_string)),
        ("before", args.until.as_ref().map(Time::to_string)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect();
    let found = Client::new(&args.server)?.list(&["audit"], &query, args.limit).await?;
    match args.output.form() {
        Form::Json => print::raw_rows(&found.rows)?,
        Form::Text => print::rows(&HEAD, found.values()?.iter().map(row).collect(), "no calls match")?,
    }
    print::tell_of_more(found.more);
    Ok(())
}

fn row(entry: &Value) -> Vec<String> {
    let text = |name: &str| print::escaped_word(entry[name].as_str().unwrap_or("-"), 100);
    let objects = entry["objects"].as_object().into_iter().flatten();
    let objects: Vec<String> =
        objects.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
    let status = entry["status"].as_u64().map_or("-".to_owned(), |status| status.to_string());
    let about = print::escaped_word(&objects.join(","), 200);
    vec![text("timestamp"), text("actor"), text("operation"), status, text("origin"), about]
}

const HEAD: [&str; 6] = ["TIME", "ACTOR", "OPERATION", "STATUS", "FROM", "ABOUT"];
