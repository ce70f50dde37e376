//! `postrider send` with many: a message for each line, handed in by batches.
//!
//! Every message has an idempotency key made of the sending's name and the number of its line. So whatever was not answered
//! can be handed in again, by this process or by the next one that is given the same lines under the same name.

use super::{
    Usage,
    client::{Answer, CallError, Client, IfMissing, Offered, is_not_found, reason},
    print::{self, Form},
};
use crate::http::message_batch;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use rand::{TryRng, rngs::SysRng};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json, value::RawValue};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// The lines of a file.
pub struct Lines {
    from: Box<dyn BufRead>,
    number: u64,
    /// How many bytes there are, if that is known.
    length: Option<u64>,
    read: u64,
}

/// A line that says something.
struct Line {
    number: u64,
    /// `None`: it is longer than the server would take.
    text: Option<Vec<u8>>,
}

impl Lines {
    pub fn open(file: &str) -> anyhow::Result<Self> {
        if file == "-" {
            if io::stdin().is_terminal() {
                return Err(Usage("no lines: give a FILE, or standard input".to_owned()).into());
            }
            return Ok(Self::of(Box::new(BufReader::new(io::stdin())), None));
        }
        let opened = File::open(file).with_context(|| format!("opening {file}"))?;
        let length = opened.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        Ok(Self::of(Box::new(BufReader::new(opened)), length))
    }

    fn of(from: Box<dyn BufRead>, length: Option<u64>) -> Self {
        Self { from, number: 0, length, read: 0 }
    }

    /// The next one that is not blank.
    fn next(&mut self) -> anyhow::Result<Option<Line>> {
        loop {
            let mut text = Vec::new();
            let length = self.from.by_ref().take(LINE_MAX + 1).read_until(b'\n', &mut text);
            let length = length.context("reading the lines")? as u64;
            if length == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.read += length;
            let number = self.number;
            if length > LINE_MAX && !text.ends_with(b"\n") {
                self.read += self.from.skip_until(b'\n').context("reading the lines")? as u64;
                return Ok(Some(Line { number, text: None }));
            }
            if !text.trim_ascii().is_empty() {
                return Ok(Some(Line { number, text: Some(text) }));
            }
        }
    }
}

pub struct Sending<'s> {
    pub client: Client,
    pub app: &'s str,
    pub missing: IfMissing,
    pub form: Form,
    pub name: String,
}

/// A message that was not answered for good yet.
struct Pending {
    line: u64,
    message: String,
}

/// What the server says of each.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    status: u16,
    message: Option<Value>,
    #[serde(default)]
    error: Value,
    retry_after: Option<u64>,
}

#[derive(Default)]
struct Summary {
    sent: u64,
    refused: u64,
}

impl Sending<'_> {
    /// `message`: makes one of a line and an idempotency key.
    pub async fn run(&self, mut lines: Lines, message: impl Fn(&RawValue, &str) -> String) -> anyhow::Result<()> {
        match self.missing {
            IfMissing::Create => drop(self.client.create_app(self.app).await?),
            IfMissing::Fail => {}
        }
        let bar = bar(&lines)?;
        let mut told = Told { form: self.form, bar: &bar, summary: Summary::default() };
        told.word(&format!("sending as `{0}`; if this breaks off, go on with --name {0}", self.name));
        let mut carried = None;
        let done = loop {
            let batch = match self.gather(&mut lines, &mut carried, &message, &mut told) {
                Ok(batch) => batch,
                Err(fault) => break Err(fault),
            };
            if batch.is_empty() {
                break Ok(());
            }
            if let Err(fault) = self.send(batch, &mut told).await {
                break Err(fault);
            }
            bar.set_position(lines.read);
            bar.set_message(told.summary.words());
        };
        bar.finish_and_clear();
        let summary = &told.summary;
        if let Err(fault) = done {
            return Err(fault.context(format!(
                "{}, and then it broke off; --name {} goes on",
                summary.words(),
                self.name
            )));
        }
        match self.form {
            Form::Text => print::say(&summary.words())?,
            Form::Json => print::tell(&summary.words()),
        }
        anyhow::ensure!(summary.refused == 0, "not everything was sent: {} refused", summary.refused);
        Ok(())
    }

    /// As many as go in one call.
    fn gather(
        &self,
        lines: &mut Lines,
        carried: &mut Option<Pending>,
        message: &impl Fn(&RawValue, &str) -> String,
        told: &mut Told<'_>,
    ) -> anyhow::Result<Vec<Pending>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < message_batch::MESSAGES_MAX {
            let next = match carried.take() {
                Some(carried) => carried,
                None => {
                    let Some(Line { number, text }) = lines.next()? else { break };
                    let Some(text) = text else {
                        told.refused(number, None, "the line is too long for a message")?;
                        continue;
                    };
                    match serde_json::from_slice::<&RawValue>(&text) {
                        Ok(json) => {
                            Pending { line: number, message: message(json, &format!("{}.{number}", self.name)) }
                        }
                        Err(error) => {
                            told.refused(number, None, &format!("not JSON: {error}"))?;
                            continue;
                        }
                    }
                }
            };
            if !batch.is_empty() && bytes + next.message.len() > BATCH_BYTES_MAX {
                *carried = Some(next);
                break;
            }
            bytes += next.message.len() + 1;
            batch.push(next);
        }
        Ok(batch)
    }

    /// Until each is answered for good. Those that are put off are handed in again before any that come after them.
    async fn send(&self, mut batch: Vec<Pending>, told: &mut Told<'_>) -> anyhow::Result<()> {
        let path = ["app", self.app, "msg-batch"];
        let query = vec![("with_content", "false".to_owned())];
        let mut progress_at = Instant::now();
        while !batch.is_empty() {
            let messages: Vec<&str> = batch.iter().map(|pending| pending.message.as_str()).collect();
            let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
            let before = batch.len();
            let (after, why) = match self.client.offer(&path, &query, body.into()).await {
                Ok(Offered::Taken(answer)) => match self.settle(&mut batch, &answer, told)? {
                    Some(put_off) => put_off,
                    None => return Ok(()),
                },
                Ok(Offered::PutOff { after, why }) => (after, why),
                // Before anything was sent, it is rather that there is none, or another.
                Ok(Offered::Lost(why)) if told.summary.sent == 0 => return Err(why),
                Ok(Offered::Lost(why)) => (PAUSE, why),
                Err(error) if is_not_found(&error) && self.missing == IfMissing::Fail => {
                    return Err(anyhow::anyhow!(
                        "{error}; if there is no application `{}`, --create-app makes it",
                        self.app
                    ));
                }
                Err(error) => match (error.downcast_ref(), &batch[..]) {
                    // It is greater than all that the server takes.
                    (Some(CallError::Refused { status, detail }), [only]) if status.as_u16() == 413 => {
                        return told.refused(only.line, Some(413), detail);
                    }
                    _ => return Err(error),
                },
            };
            if batch.len() < before {
                progress_at = Instant::now();
            } else if progress_at.elapsed() > PATIENCE {
                return Err(why.context("nothing was taken for a while"));
            }
            told.bar.set_message(told.summary.words());
            sleep(after).await;
        }
        Ok(())
    }

    /// Tells what is answered for good, and keeps the rest. Says when and why to hand those in again.
    fn settle(
        &self,
        batch: &mut Vec<Pending>,
        answer: &Answer,
        told: &mut Told<'_>,
    ) -> anyhow::Result<Option<(Duration, anyhow::Error)>> {
        #[derive(Deserialize)]
        struct Answers {
            data: Vec<Said>,
        }

        let Answers { data } = answer.read()?;
        anyhow::ensure!(data.len() == batch.len(), "the server did not answer every message; is the URL right?");
        let mut put_off = None;
        for (pending, said) in std::mem::take(batch).into_iter().zip(data) {
            match said.status {
                202 => told.sent(pending.line, said.message.as_ref().map_or(&Value::Null, |message| &message["id"]))?,
                429 | 500.. => {
                    let after = Duration::from_secs(said.retry_after.unwrap_or(1));
                    let why = || anyhow::anyhow!("line {}: {} {}", pending.line, said.status, reason(&said.error));
                    put_off.get_or_insert_with(|| (after, why()));
                    batch.push(pending);
                }
                status => told.refused(pending.line, Some(status), &reason(&said.error))?,
            }
        }
        Ok(put_off)
    }
}

/// What the person, or the script, hears.
struct Told<'b> {
    form: Form,
    bar: &'b ProgressBar,
    summary: Summary,
}

impl Told<'_> {
    fn sent(&mut self, line: u64, id: &Value) -> anyhow::Result<()> {
        self.summary.sent += 1;
        self.each(&json!({ "line": line, "status": 202, "id": id }))
    }

    fn refused(&mut self, line: u64, status: Option<u16>, why: &str) -> anyhow::Result<()> {
        self.summary.refused += 1;
        let answered = status.map(|status| format!("{status}, ")).unwrap_or_default();
        match self.summary.refused {
            ..=REFUSED_SHOWN_MAX => self.word(&format!("line {line}: {answered}{}", print::escaped_word(why, 500))),
            // Not one word more.
            count if count == REFUSED_SHOWN_MAX + 1 => self.word("more are refused; --json tells of all"),
            _ => {}
        }
        self.each(&json!({ "line": line, "status": status, "detail": why }))
    }

    fn each(&self, what: &Value) -> anyhow::Result<()> {
        match self.form {
            Form::Json => Ok(self.bar.suspend(|| print::say(&print::json_line(&what.to_string())))?),
            Form::Text => Ok(()),
        }
    }

    fn word(&self, word: &str) {
        self.bar.suspend(|| print::tell(word));
    }
}

impl Summary {
    fn words(&self) -> String {
        format!("{} sent, {} refused", self.sent, self.refused)
    }
}

fn bar(lines: &Lines) -> anyhow::Result<ProgressBar> {
    let (bar, template) = match lines.length {
        Some(length) => (ProgressBar::new(length), "{bar:40} {percent}%, {msg}; {eta} left"),
        None => (ProgressBar::no_length(), "{spinner} {msg}"),
    };
    Ok(bar.with_style(ProgressStyle::with_template(template).context("drawing the bar")?))
}

/// A whole message with this idempotency key, if it has none. Nothing else of it is touched.
pub fn with_key(message: &RawValue, key: &str) -> String {
    let text = message.get().trim();
    let names = serde_json::from_str::<HashMap<String, IgnoredAny>>(text);
    match (names, text.strip_prefix('{')) {
        (Ok(names), Some(rest)) if !names.contains_key("idempotencyKey") => {
            let comma = if names.is_empty() { "" } else { "," };
            format!("{{\"idempotencyKey\":{}{comma}{rest}", json!(key))
        }
        // What is no message is refused with its place.
        (Ok(_) | Err(_), _) => text.to_owned(),
    }
}

/// By which a sending is known.
pub fn name(text: &str) -> Result<String, String> {
    let is_fine = (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_fine { Ok(text.to_owned()) } else { Err(format!("write 1 to {NAME_MAX} visible ASCII characters")) }
}

pub fn name_or_made_up(name: Option<String>) -> anyhow::Result<String> {
    if let Some(name) = name {
        return Ok(name);
    }
    let mut random = [0; 8];
    SysRng.try_fill_bytes(&mut random).context("the system gave no random numbers")?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

/// With the number of a line after it, it is a key.
const NAME_MAX: usize = 200;
/// No server takes a greater body.
const LINE_MAX: u64 = 64 * 1024 * 1024;
/// Half of what a batch may be.
const BATCH_BYTES_MAX: usize = message_batch::BYTES_MAX / 2;
/// Between tries to reach a server that is gone.
const PAUSE: Duration = Duration::from_secs(1);
/// A server that starts again is back by then, and one that has no room has had time to get some.
const PATIENCE: Duration = Duration::from_secs(60);
const REFUSED_SHOWN_MAX: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_added_where_there_is_none_and_the_rest_stays_as_it_is() {
        for (message, expected) in [
            (
                r#"{ "payload": {"n":1e400, "n":2}, "eventType":"a" }"#,
                r#"{"idempotencyKey":"k\"1", "payload": {"n":1e400, "n":2}, "eventType":"a" }"#,
            ),
            ("{ }", r#"{"idempotencyKey":"k\"1" }"#),
            (r#"{"idempotencyKey":null}"#, r#"{"idempotencyKey":null}"#),
            (r#"{"\u0069dempotencyKey":"mine"}"#, r#"{"\u0069dempotencyKey":"mine"}"#),
            ("[1]", "[1]"),
            ("7", "7"),
        ] {
            let message: &RawValue = serde_json::from_str(message).expect("JSON");
            assert_eq!(with_key(message, "k\"1"), expected);
        }
    }

    #[test]
    fn lines_are_numbered_and_those_that_say_nothing_left_out() {
        let mut lines = Lines::of(Box::new(&b"1\r\n\n  \n2\n3"[..]), None);
        let mut found = Vec::new();
        while let Some(Line { number, text }) = lines.next().expect("read") {
            found.push((number, String::from_utf8(text.expect("short")).expect("text").trim().to_owned()));
        }
        assert_eq!(found, [(1, "1".to_owned()), (4, "2".to_owned()), (5, "3".to_owned())]);
        assert_eq!(lines.read, 10);
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let endless = io::repeat(b'x').take(LINE_MAX + 10).chain(&b"\n{}\n"[..]);
        let mut lines = Lines::of(Box::new(BufReader::new(endless)), None);
        assert!(lines.next().expect("read").is_some_and(|line| line.number == 1 && line.text.is_none()));
        let next = lines.next().expect("read").expect("another");
        assert_eq!((next.number, next.text.as_deref()), (2, Some(&b"{}\n"[..])));
    }
}
