//! Server-sent events, as the server's tail sends them.

use anyhow::Context;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::{collections::VecDeque, time::Duration};
use tokio::time::timeout;

/// An open stream.
pub struct Events {
    body: Incoming,
    parser: Parser,
    ready: VecDeque<SentEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentEvent {
    /// The last one that was told, with this event or before.
    pub id: Option<String>,
    /// `None`: only the id was told.
    pub data: Option<String>,
}

impl Events {
    pub fn of(body: Incoming) -> Self {
        Self { body, parser: Parser::default(), ready: VecDeque::new() }
    }

    /// The next one; `None` when the server has ended the stream.
    pub async fn next(&mut self) -> anyhow::Result<Option<SentEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            // Comments come every 15 seconds.
            let frame = timeout(SILENCE_MAX, self.body.frame()).await.context("nothing has come for too long")?;
            let Some(frame) = frame else { return Ok(None) };
            if let Ok(bytes) = frame.context("the connection to the server broke")?.into_data() {
                self.ready.extend(self.parser.take(&bytes)?);
            }
        }
    }
}

/// What has come of the event that is not complete yet.
#[derive(Default)]
struct Parser {
    line: Vec<u8>,
    id: Option<String>,
    told_id: bool,
    data: Option<String>,
}

impl Parser {
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<SentEvent>> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                anyhow::ensure!(self.line.len() < LINE_MAX, "the server sent an event that is too long");
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            events.extend(self.end_line(String::from_utf8_lossy(&line).trim_end_matches('\r')));
        }
        Ok(events)
    }

    fn end_line(&mut self, line: &str) -> Option<SentEvent> {
        if line.is_empty() {
            let data = self.data.take();
            let told = std::mem::take(&mut self.told_id) || data.is_some();
            return told.then(|| SentEvent { id: self.id.clone(), data });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => {
                self.id = Some(value.to_owned());
                self.told_id = true;
            }
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // Comments, names and how soon to come back are of no use here.
            _ => {}
        }
        None
    }
}

const SILENCE_MAX: Duration = Duration::from_secs(45);
const LINE_MAX: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut_up() {
        let text =
            "id: a\nretry: 2000\n\n: \n\nevent: attempt\nid: b\ndata: {\"n\":\ndata: 1}\n\ndata:x\r\n\r\nid: c\n";
        let event = |id: &str, data: Option<&str>| SentEvent { id: Some(id.to_owned()), data: data.map(str::to_owned) };
        let expected = [event("a", None), event("b", Some("{\"n\":\n1}")), event("b", Some("x"))];
        for size in [1, 2, 7, text.len()] {
            let mut parser = Parser::default();
            let pieces = text.as_bytes().chunks(size);
            let found: Vec<SentEvent> = pieces.flat_map(|piece| parser.take(piece).expect("short enough")).collect();
            assert_eq!(found, expected, "pieces of {size}");
        }
    }
}
