//! The producer: posts messages as an official SDK would, an idempotency key on each.
//!
//! Closed loop asks "how much": each connection sends the next message when the last was answered. Open loop asks "how
//! long": messages leave by the clock, whatever became of the earlier ones, and their age is counted from when they
//! were due, so that a stall is seen by all that it delays.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::client::{Answer, Connection};
use crate::clock::{instant_at, monotonic_ns, salt};
use crate::ledger::Ledger;
use crate::payload::Stamp;

/// Where messages go, and how.
pub struct Target {
    /// One, or as many as there are nodes; producers are spread over them.
    pub ways: Vec<Way>,
    pub authorization: HeaderValue,
    pub applications: Vec<Application>,
    pub turns: Turns,
    pub manner: Manner,
    pub protocol: Protocol,
    /// Bytes of a payload.
    pub len: usize,
}

pub struct Way {
    pub address: SocketAddr,
    pub host: HeaderValue,
}

#[derive(Clone)]
pub struct Application {
    /// Where a message is posted.
    pub messages: Uri,
    /// Deliveries that must arrive for each message: none from an endpoint that fails or hangs.
    pub owed: u64,
}

/// How applications take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    All,
    /// So many at a time, for so many messages; then the next ones.
    Moving {
        busy: usize,
        messages: u32,
    },
}

impl Turns {
    fn application(self, seq: u32, applications: usize) -> usize {
        let seq_all = usize::try_from(seq).expect("a u32 fits");
        match self {
            Turns::All => seq_all % applications,
            Turns::Moving { busy, messages } => {
                let busy = busy.clamp(1, applications);
                let turn = usize::try_from(seq / messages.max(1)).expect("a u32 fits") % (applications / busy);
                turn * busy + seq_all % busy
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// A request for each message.
    Single,
    /// So many messages of one application in a request.
    Batch(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// In the clear and without asking first. Producers share a few connections, as clients of HTTP/2 do.
    Http2,
}

#[derive(Debug, Clone, Copy)]
pub enum Until {
    Elapsed(Duration),
    Messages(u32),
}

pub async fn closed_loop(target: &Arc<Target>, ledger: &Arc<Ledger>, connections: usize, until: Until) -> Result<()> {
    let end = match until {
        Until::Elapsed(duration) => Instant::now() + duration,
        Until::Messages(_) => Instant::now() + FILLING_MAX,
    };
    let messages_max = match until {
        Until::Elapsed(_) => u32::MAX,
        Until::Messages(count) => count,
    };
    let shared = Shared::open(target).await?;
    let mut producers = JoinSet::new();
    for producer in 0..connections {
        let (target, ledger) = (Arc::clone(target), Arc::clone(ledger));
        let mut line = Line::of(producer, &target);
        line.connection = shared.share(producer);
        producers.spawn(async move {
            let batch = match target.manner {
                Manner::Single => 1,
                Manner::Batch(size) => size.max(1),
            };
            while Instant::now() < end {
                let first = ledger.next_seqs(batch);
                if first >= messages_max {
                    break;
                }
                let seqs = first..first.saturating_add(batch).min(messages_max);
                post(&mut line, &target, &ledger, seqs, monotonic_ns(), end).await?;
            }
            Ok(())
        });
    }
    join_all(producers).await?;
    if let Until::Messages(count) = until
        && ledger.accepted() < u64::from(count)
    {
        bail!("only {} of {count} messages were accepted within {FILLING_MAX:?}", ledger.accepted());
    }
    Ok(())
}

pub async fn open_loop(target: &Arc<Target>, ledger: &Arc<Ledger>, rate: u32, duration: Duration) -> Result<()> {
    let (due, mut dues) = tokio::sync::mpsc::unbounded_channel();
    let gap = Duration::from_secs(1) / rate.max(1);
    // A thread, because tokio's timer ticks in milliseconds and what we measure is not much longer.
    let pacer = std::thread::spawn(move || {
        let start_ns = monotonic_ns();
        let mut offset = Duration::ZERO;
        while offset < duration {
            let due_ns = start_ns + u64::try_from(offset.as_nanos()).expect("a measurement is short");
            std::thread::sleep(instant_at(due_ns).saturating_duration_since(Instant::now()));
            if due.send(due_ns).is_err() {
                return;
            }
            offset += gap;
        }
    });
    let idle: Arc<[Mutex<Vec<Connection>>]> = target.ways.iter().map(|_| Mutex::default()).collect();
    let mut posts = JoinSet::new();
    while let Some(due_ns) = dues.recv().await {
        while let Some(done) = posts.try_join_next() {
            done??;
        }
        if posts.len() >= OPEN_LOOP_REQUESTS_MAX {
            bail!("{OPEN_LOOP_REQUESTS_MAX} messages wait for their 202: the server cannot take {rate} a second");
        }
        let (target, ledger, idle) = (Arc::clone(target), Arc::clone(ledger), Arc::clone(&idle));
        posts.spawn(async move {
            let seq = ledger.next_seqs(1);
            let mut line = Line::of(usize::try_from(seq).expect("a u32 fits"), &target);
            line.connection = idle[line.way].lock().unwrap_or_else(PoisonError::into_inner).pop();
            post(&mut line, &target, &ledger, seq..seq + 1, due_ns, Instant::now() + POST_MAX).await?;
            idle[line.way].lock().unwrap_or_else(PoisonError::into_inner).extend(line.connection);
            Ok(())
        });
    }
    pacer.join().expect("the pacer does nothing that could panic");
    join_all(posts).await
}

async fn join_all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(done) = tasks.join_next().await {
        done.context("a producer panicked")??;
    }
    Ok(())
}

/// A producer's connection, and to which node.
struct Line {
    way: usize,
    connection: Option<Connection>,
}

impl Line {
    fn of(number: usize, target: &Target) -> Line {
        Line { way: number % target.ways.len(), connection: None }
    }

    /// When a node does not answer, the next is asked, as behind a load balancer.
    fn turn_to_next(&mut self, target: &Target) {
        *self = Line::of(self.way + 1, target);
    }
}

/// HTTP/2 connections that producers share. None with HTTP/1.1, where each has its own.
struct Shared(Vec<Connection>);

impl Shared {
    async fn open(target: &Target) -> Result<Shared> {
        let mut open = Vec::new();
        if target.protocol == Protocol::Http2 {
            for number in 0..HTTP2_CONNECTIONS.next_multiple_of(target.ways.len()) {
                open.push(Connection::open_http2(target.ways[number % target.ways.len()].address).await?);
            }
        }
        Ok(Shared(open))
    }

    fn share(&self, producer: usize) -> Option<Connection> {
        self.0.get(producer % self.0.len().max(1))?.share()
    }
}

/// Posts messages until they are accepted, `give_up` comes, or nothing works any more.
///
/// A retry repeats the body and the key, as SDKs do, so the server must not make a second message of it.
async fn post(
    line: &mut Line,
    target: &Target,
    ledger: &Ledger,
    seqs: Range<u32>,
    sent_ns: u64,
    give_up: Instant,
) -> Result<()> {
    let batch = u32::try_from(seqs.len()).expect("a batch is small");
    let turn = if batch > 1 { seqs.start / batch } else { seqs.start };
    let application = &target.applications[target.turns.application(turn, target.applications.len())];
    let mut left: Vec<u32> = seqs.collect();
    let mut content = Content::of(target, ledger.run, &left, sent_ns, 0);
    ledger.note_sent(sent_ns);
    for attempt in 1..=TRIES_MAX {
        let way = &target.ways[line.way];
        let request = Request::post(application.messages.clone());
        let request = match target.protocol {
            Protocol::Http1 => request.header(HOST, &way.host),
            // It is part of the address.
            Protocol::Http2 => request,
        };
        let request = request
            .header(AUTHORIZATION, &target.authorization)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(IDEMPOTENCY_KEY, &content.key)
            .body(Full::new(content.body.clone()))?;
        match exchange(&mut line.connection, way.address, target.protocol, request).await {
            Ok(answer) if answer.status == StatusCode::ACCEPTED && target.manner == Manner::Single => {
                let id = message_id(&answer.body)
                    .with_context(|| format!("finding the id in {}", String::from_utf8_lossy(&answer.body)))?;
                ledger.note_accepted(left[0], id, application.owed, monotonic_ns());
                return Ok(());
            }
            Ok(answer) if answer.status == StatusCode::OK && target.manner != Manner::Single => {
                let refused = note_batch(&answer.body, &left, application, ledger)?;
                if refused.is_empty() {
                    return Ok(());
                }
                // Not the same request any more, so it has a key of its own.
                left = refused;
                content = Content::of(target, ledger.run, &left, sent_ns, u16::try_from(attempt)?);
            }
            Ok(answer) if is_full(answer.status.as_u16()) => ledger.note_refused(),
            Ok(answer) => bail!(
                "the server answered {} to POST {}: {}",
                answer.status,
                application.messages.path(),
                String::from_utf8_lossy(&answer.body)
            ),
            Err(_) => {
                ledger.note_broken();
                line.turn_to_next(target);
            }
        }
        if Instant::now() >= give_up {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("message {} of run {} was not accepted in {TRIES_MAX} tries", left[0], ledger.run)
}

/// Notes what became of each, and tells which were refused because the server was full.
fn note_batch(answer: &[u8], seqs: &[u32], application: &Application, ledger: &Ledger) -> Result<Vec<u32>> {
    let told = || format!("reading the answer to a batch: {}", String::from_utf8_lossy(answer));
    let BatchAnswer { data } = serde_json::from_slice(answer).with_context(told)?;
    if data.len() != seqs.len() {
        bail!("a batch of {} messages was answered with {} results", seqs.len(), data.len());
    }
    let mut refused = Vec::new();
    for (seq, item) in seqs.iter().zip(data) {
        match (item.status, item.message) {
            (202, Some(message)) => {
                let id = message_id(message.get().as_bytes()).with_context(told)?;
                ledger.note_accepted(*seq, id, application.owed, monotonic_ns());
            }
            (status, _) if is_full(status) => {
                ledger.note_refused();
                refused.push(*seq);
            }
            (status, _) => bail!("a message of a batch was answered {status}: {}", String::from_utf8_lossy(answer)),
        }
    }
    Ok(refused)
}

#[derive(Deserialize)]
struct BatchAnswer<'a> {
    #[serde(borrow)]
    data: Vec<BatchItem<'a>>,
}

#[derive(Deserialize)]
struct BatchItem<'a> {
    status: u16,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

fn is_full(status: u16) -> bool {
    matches!(status, 429 | 503)
}

async fn exchange(
    connection: &mut Option<Connection>,
    address: SocketAddr,
    protocol: Protocol,
    request: Request<Full<Bytes>>,
) -> Result<Answer> {
    let mut open = match (connection.take(), protocol) {
        (Some(open), _) => open,
        (None, Protocol::Http1) => Connection::open(address).await?,
        (None, Protocol::Http2) => Connection::open_http2(address).await?,
    };
    let answer = open.send_within(POST_MAX, request).await?;
    *connection = Some(open);
    Ok(answer)
}

/// What a request says: made once, and the same each time it is sent.
struct Content {
    key: String,
    body: Bytes,
}

impl Content {
    fn of(target: &Target, run: u16, seqs: &[u32], sent_ns: u64, again: u16) -> Content {
        let stamps = seqs.iter().map(|seq| Stamp { run, seq: *seq, sent_ns });
        let mut body = Vec::with_capacity((HEAD.len() + target.len + 2) * seqs.len() + 16);
        match target.manner {
            Manner::Single => stamps.for_each(|stamp| message(stamp, target.len, &mut body)),
            Manner::Batch(_) => {
                body.extend_from_slice(br#"{"messages":["#);
                for (number, stamp) in stamps.enumerate() {
                    if number > 0 {
                        body.push(b',');
                    }
                    message(stamp, target.len, &mut body);
                }
                body.extend_from_slice(b"]}");
            }
        }
        Content { key: idempotency_key(run, seqs[0], again), body: body.into() }
    }
}

fn message(stamp: Stamp, len: usize, body: &mut Vec<u8>) {
    body.extend_from_slice(HEAD);
    stamp.write_to(len, body);
    body.push(b'}');
}

/// `auto_` and a UUID, as SDKs send it. Drawn from run and number: no two messages of one benchmark share it, and a retry does.
/// A server that is measured twice has not seen it before either.
fn idempotency_key(run: u16, seq: u32, again: u16) -> String {
    static SALT: LazyLock<u64> = LazyLock::new(salt);
    let high = scramble((u64::from(again) << 48 | u64::from(run) << 32 | u64::from(seq)) ^ *SALT);
    let low = scramble(high);
    format!(
        "auto_{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

/// SplitMix64: one to one, so distinct inputs stay distinct.
fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Found by its look instead of by a JSON parser: this runs once per message on the cores that are being measured.
fn message_id(body: &[u8]) -> Option<&[u8]> {
    let start = body.windows(5).position(|window| window == b"\"msg_")? + 1;
    let len = body[start..].iter().position(|byte| *byte == b'"')?;
    Some(&body[start..start + len])
}

const HEAD: &[u8] = br#"{"eventType":"bench.event","payload":"#;
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const POST_MAX: Duration = Duration::from_secs(30);
/// A full server is asked again soon, not after the whole seconds that `Retry-After` can say: what counts is how much it takes.
const PAUSE: Duration = Duration::from_millis(20);
const TRIES_MAX: usize = 1000;
const HTTP2_CONNECTIONS: usize = 4;
/// Of ten million on a slow machine.
const FILLING_MAX: Duration = Duration::from_secs(60 * 60);
const OPEN_LOOP_REQUESTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload;

    #[test]
    fn a_message_is_json_with_the_payload_inside() {
        let stamp = Stamp { run: 3, seq: 4, sent_ns: 5 };
        let mut body = Vec::new();
        message(stamp, payload::LEN, &mut body);
        let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(parsed["eventType"], "bench.event");
        assert_eq!(Stamp::read_from(&body[HEAD.len()..body.len() - 1]), Some(stamp));
    }

    #[test]
    fn a_key_is_its_message_s_own() {
        let keys: std::collections::HashSet<_> =
            (0..4).flat_map(|run| (0..1000).map(move |seq| idempotency_key(run, seq, 0))).collect();
        assert_eq!(keys.len(), 4000);
        assert!(keys.iter().all(|key| key.len() == "auto_".len() + 36));
        assert_eq!(idempotency_key(1, 2, 0), idempotency_key(1, 2, 0), "a retry repeats it");
    }

    #[test]
    fn the_id_is_found_among_other_fields() {
        let body = br#"{"eventId":null,"eventType":"bench.event","id":"msg_2abc","payload":{}}"#;
        assert_eq!(message_id(body), Some(&b"msg_2abc"[..]));
        assert_eq!(message_id(b"{}"), None);
    }

    #[test]
    fn turns_go_round_all_applications() {
        let visited = |turns: Turns| (0..24).map(|seq| turns.application(seq, 6)).collect::<Vec<_>>();
        assert_eq!(visited(Turns::All)[..8], [0, 1, 2, 3, 4, 5, 0, 1]);
        let moving = Turns::Moving { busy: 2, messages: 4 };
        assert_eq!(visited(moving)[..14], [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 0, 1]);
    }

    #[test]
    fn of_a_batch_only_what_was_refused_is_sent_again() {
        let ledger = Ledger::new(1, 1);
        let application = Application { messages: Uri::from_static("/"), owed: 1 };
        let answer = br#"{"data":[{"status":202,"message":{"id":"msg_a"}},{"status":429,"error":{"code":"x"}},
            {"status":202,"message":{"eventId":null,"id":"msg_b"}}]}"#;
        assert_eq!(note_batch(answer, &[7, 8, 9], &application, &ledger).unwrap(), [8]);
        assert_eq!(ledger.accepted(), 2);
        assert!(note_batch(answer, &[7, 8], &application, &ledger).is_err(), "one answer for each");
        let error = note_batch(br#"{"data":[{"status":422,"error":{}}]}"#, &[7], &application, &ledger).unwrap_err();
        assert!(error.to_string().contains("422"), "{error}");
    }
}
