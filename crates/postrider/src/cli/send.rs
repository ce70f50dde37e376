//! `postrider send`: one message, by hand or from a script.

use super::{
    Usage,
    client::{AppFlags, Client, IfMissing},
    flags,
    print::{self, Form},
};
use crate::http::time::Time;
use anyhow::Context;
use serde::Serialize;
use serde_json::value::RawValue;
use std::{
    fs,
    io::{self, IsTerminal, Read},
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider send --app shop --event-type order.paid '{\"order\": 42}'
  postrider send --app shop --event-type order.paid @order.json
  make-orders | postrider send --app shop --event-type order.paid

Prints the id of the message. Exit codes: 0 accepted, 1 failed, 2 wrong usage")]
pub struct Args {
    #[command(flatten)]
    in_app: AppFlags,
    /// What happened, such as order.paid
    #[arg(long, value_name = "NAME")]
    event_type: String,
    /// Your own id for the event; sending it twice is refused
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// Only for endpoints that listen on this channel (repeatable)
    #[arg(long = "channel", value_name = "NAME")]
    channels: Vec<String>,
    /// Messages of the same key reach an endpoint one after the other, in this order
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// Not to be sent before: a time like 2026-01-31T12:00:00Z, or a span from now like 30m; at most a day ahead
    #[arg(long, value_name = "TIME", value_parser = flags::moment_ahead)]
    deliver_at: Option<Time>,
    /// Make the application, with --app as its uid, if there is none
    #[arg(long)]
    create_app: bool,
    /// JSON, @FILE, or nothing for standard input
    payload: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageIn<'a> {
    event_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    channels: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_at: Option<Time>,
    payload: &'a RawValue,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = Client::new(&args.in_app.server)?;
    let text = read_payload(args.payload.as_deref())?;
    let payload = serde_json::from_str(&text).map_err(|error| Usage(format!("the payload is not JSON: {error}")))?;
    let message = MessageIn {
        event_type: &args.event_type,
        event_id: args.event_id.as_deref(),
        channels: &args.channels,
        ordering_key: args.ordering_key.as_deref(),
        deliver_at: args.deliver_at,
        payload,
    };
    let made = client.post_in_app(&args.in_app.app, IfMissing::from_flag(args.create_app), "msg", &message).await?;
    match args.in_app.output.form() {
        Form::Json => print::say(&print::json_line(made.raw()?.get()))?,
        Form::Text => {
            let made = made.value()?;
            let id = made["id"].as_str().context("the answer has no message id")?;
            print::say(&print::escaped_word(id, 100))?;
        }
    }
    Ok(())
}

fn read_payload(given: Option<&str>) -> anyhow::Result<String> {
    match given.map(|given| (given, given.strip_prefix('@'))) {
        Some((_, Some(path))) => fs::read_to_string(path).with_context(|| format!("reading {path}")),
        None | Some(("-", _)) => {
            if io::stdin().is_terminal() {
                return Err(Usage("no payload: give JSON, @FILE, or standard input".to_owned()).into());
            }
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("reading standard input")?;
            Ok(text)
        }
        Some((json, None)) => Ok(json.to_owned()),
    }
}
