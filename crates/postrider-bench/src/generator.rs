//! The producer: posts messages as an official SDK would, an idempotency key on each.
//!
//! Closed loop asks "how much": each connection sends the next message when the last was answered. Open loop asks "how
//! long": messages leave by the clock, whatever became of the earlier ones, and their age is counted from when they
//! were due, so that a stall is seen by all that it delays.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use tokio::task::JoinSet;

use crate::client::Connection;
use crate::clock::{instant_at, monotonic_ns};
use crate::ledger::Ledger;
use crate::payload::{self, Stamp};

/// Where messages go; applications take turns.
pub struct Target {
    /// One, or as many as there are nodes; producers are spread over them.
    pub ways: Vec<Way>,
    pub authorization: HeaderValue,
    pub applications: Vec<Application>,
}

pub struct Way {
    pub address: SocketAddr,
    pub host: HeaderValue,
}

#[derive(Clone)]
pub struct Application {
    pub messages: Uri,
    /// Deliveries that must arrive for each message: none from an endpoint that fails or hangs.
    pub owed: u64,
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
    let mut producers = JoinSet::new();
    for producer in 0..connections {
        let (target, ledger) = (Arc::clone(target), Arc::clone(ledger));
        producers.spawn(async move {
            let mut line = Line::of(producer, &target);
            while Instant::now() < end {
                let seq = ledger.next_seq();
                if seq >= messages_max {
                    break;
                }
                post(&mut line, &target, &ledger, seq, monotonic_ns(), end).await?;
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
            let seq = ledger.next_seq();
            let mut line = Line::of(usize::try_from(seq).expect("a u32 fits"), &target);
            line.connection = idle[line.way].lock().unwrap_or_else(PoisonError::into_inner).pop();
            post(&mut line, &target, &ledger, seq, due_ns, Instant::now() + POST_MAX).await?;
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

/// Posts one message until it is accepted, `give_up` comes, or nothing works any more.
///
/// A retry repeats the body and the key, as SDKs do, so the server must not make a second message of it.
async fn post(
    line: &mut Line,
    target: &Target,
    ledger: &Ledger,
    seq: u32,
    sent_ns: u64,
    give_up: Instant,
) -> Result<()> {
    let application = &target.applications[usize::try_from(seq).expect("a u32 fits") % target.applications.len()];
    let body = message(Stamp { run: ledger.run, seq, sent_ns });
    let key = idempotency_key(ledger.run, seq);
    ledger.note_sent(sent_ns);
    for _ in 0..TRIES_MAX {
        let way = &target.ways[line.way];
        let request = Request::post(application.messages.clone())
            .header(HOST, &way.host)
            .header(AUTHORIZATION, &target.authorization)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(IDEMPOTENCY_KEY, &key)
            .body(Full::new(body.clone()))?;
        match exchange(&mut line.connection, way.address, request).await {
            Ok(answer) if answer.status == StatusCode::ACCEPTED => {
                let id = message_id(&answer.body)
                    .with_context(|| format!("finding the id in {}", String::from_utf8_lossy(&answer.body)))?;
                ledger.note_accepted(seq, id, application.owed, monotonic_ns());
                return Ok(());
            }
            Ok(answer) if matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => {
                ledger.note_refused()
            }
            Ok(answer) => {
                bail!("the server answered {} to a message: {}", answer.status, String::from_utf8_lossy(&answer.body))
            }
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
    bail!("message {seq} of run {} was not accepted in {TRIES_MAX} tries", ledger.run)
}

async fn exchange(
    connection: &mut Option<Connection>,
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<crate::client::Answer> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::open(address).await?,
    };
    let answer = open.send_within(POST_MAX, request).await?;
    *connection = Some(open);
    Ok(answer)
}

fn message(stamp: Stamp) -> Bytes {
    let mut body = Vec::with_capacity(HEAD.len() + payload::LEN + 1);
    body.extend_from_slice(HEAD);
    stamp.write_to(&mut body);
    body.push(b'}');
    body.into()
}

/// `auto_` and a UUID, as SDKs send it. Drawn from run and number: no two messages of one benchmark share it, and a retry does.
fn idempotency_key(run: u16, seq: u32) -> String {
    let high = scramble(u64::from(run) << 32 | u64::from(seq));
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
const FILLING_MAX: Duration = Duration::from_secs(20 * 60);
const OPEN_LOOP_REQUESTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_json_with_the_payload_inside() {
        let stamp = Stamp { run: 3, seq: 4, sent_ns: 5 };
        let body = message(stamp);
        let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(parsed["eventType"], "bench.event");
        assert_eq!(Stamp::read_from(&body[HEAD.len()..body.len() - 1]), Some(stamp));
    }

    #[test]
    fn a_key_is_its_message_s_own() {
        let keys: std::collections::HashSet<_> =
            (0..4).flat_map(|run| (0..1000).map(move |seq| idempotency_key(run, seq))).collect();
        assert_eq!(keys.len(), 4000);
        assert!(keys.iter().all(|key| key.len() == "auto_".len() + 36));
        assert_eq!(idempotency_key(1, 2), idempotency_key(1, 2), "a retry repeats it");
    }

    #[test]
    fn the_id_is_found_among_other_fields() {
        let body = br#"{"eventId":null,"eventType":"bench.event","id":"msg_2abc","payload":{}}"#;
        assert_eq!(message_id(body), Some(&b"msg_2abc"[..]));
        assert_eq!(message_id(b"{}"), None);
    }
}
