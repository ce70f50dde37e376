//! `postrider send`: one message, by hand or from a script; or many, from a file or a program.

use super::{
    Usage,
    client::{AppFlags, Client, IfMissing},
    flags,
    print::{self, Form},
    send_many::{self, Lines, Sending},
};
use crate::http::time::Time;
use anyhow::Context;
use serde::Serialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    fs,
    io::{self, IsTerminal, Read},
};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider send --app shop --event-type order.paid '{\"order\": 42}'
  postrider send --app shop --event-type order.paid @order.json
  make-orders | postrider send --app shop --event-type order.paid
  postrider send --app shop --event-type order.paid --lines orders.ndjson
  make-messages | postrider send --app shop --messages - --name nightly-7

Prints the id of the message; of many, how many were sent, or with --json what became of each line.
Exit codes: 0 accepted, 1 failed, or something was refused, 2 wrong usage")]
pub struct Args {
    #[command(flatten)]
    in_app: AppFlags,
    /// What happened, such as order.paid
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "messages",
        default_value = "",
        hide_default_value = true
    )]
    event_type: String,
    /// Your own id for the event; sending it twice is refused
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
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
    /// Send a message for each line of this file (`-`: standard input); the line is its payload
    #[arg(long, value_name = "FILE")]
    lines: Option<String>,
    /// The same, but a line is a whole message, as the API takes it
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "lines", "event_type", "event_id", "channels", "ordering_key", "deliver_at",
    ])]
    messages: Option<String>,
    /// What to call this sending of lines: again under the same name, within a day, nothing is sent twice [default: made up]
    #[arg(long, value_parser = send_many::name)]
    name: Option<String>,
    /// JSON, @FILE, or nothing for standard input
    #[arg(conflicts_with_all = ["lines", "messages", "name"])]
    payload: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageIn<'a> {
    event_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    channels: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    ordering_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<Cow<'a, str>>,
    payload: &'a RawValue,
}

impl Args {
    fn message<'a>(&'a self, payload: &'a RawValue, idempotency_key: Option<Cow<'a, str>>) -> MessageIn<'a> {
        MessageIn {
            event_type: &self.event_type,
            event_id: self.event_id.as_deref(),
            channels: &self.channels,
            ordering_key: self.ordering_key.as_deref(),
            deliver_at: self.deliver_at,
            idempotency_key,
            payload,
        }
    }
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = Client::new(&args.in_app.server)?;
    if let Some(file) = args.messages.as_deref().or(args.lines.as_deref()) {
        let sending = Sending {
            client,
            app: &args.in_app.app,
            missing: IfMissing::from_flag(args.create_app),
            form: args.in_app.output.form(),
            name: send_many::name_or_made_up(args.name.clone())?,
        };
        let lines = Lines::open(file)?;
        return match args.messages {
            Some(_) => sending.run(lines, send_many::with_key).await,
            None => {
                let message = |payload: &RawValue, key: &str| {
                    serde_json::to_string(&args.message(payload, Some(key.into()))).expect("strings become JSON")
                };
                sending.run(lines, message).await
            }
        };
    }
    if args.name.is_some() {
        return Err(Usage("--name is for --lines and --messages".to_owned()).into());
    }
    let text = read_payload(args.payload.as_deref())?;
    let payload = serde_json::from_str(&text).map_err(|error| Usage(format!("the payload is not JSON: {error}")))?;
    let message = args.message(payload, None);
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
