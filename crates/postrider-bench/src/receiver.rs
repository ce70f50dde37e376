//! The endpoint that everything is delivered to.
//!
//! It shares two cores with what it measures, so it is a hand-written HTTP/1.1 responder and no server framework: it
//! finds the length, the id and the path, reads the stamp, and answers with fixed bytes. The floor and the server
//! are both measured against it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::clock::monotonic_ns;
use crate::ledger::Ledger;
use crate::payload::Stamp;

pub struct Receiver {
    /// Where it is reached from this machine.
    pub address: SocketAddr,
    /// What endpoints are called by.
    host: String,
    board: Arc<Board>,
}

/// Where the receiver listens, and by which name a server reaches it.
#[derive(Debug, Clone, Default)]
pub struct Place {
    pub listen: Option<IpAddr>,
    pub host: Option<String>,
}

impl Receiver {
    pub async fn start(place: &Place) -> Result<Receiver> {
        let listen = place.listen.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let listener = TcpListener::bind((listen, 0))
            .await
            .with_context(|| format!("opening the receiver's port at {listen} (--receiver-listen)"))?;
        let port = listener.local_addr()?.port();
        // Who listens everywhere also does here.
        let near = if listen.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { listen };
        let address = SocketAddr::new(near, port);
        let host = place.host.as_ref().map_or_else(|| address.to_string(), |host| format!("{host}:{port}"));
        let board = Arc::new(Board::default());
        tokio::spawn(answer_connections(listener, Arc::clone(&board)));
        Ok(Receiver { address, host, board })
    }

    /// `column` is the endpoint's place among those that one message fans out to.
    pub fn endpoint(&self, temper: Temper, column: usize) -> Endpoint {
        let door = Arc::new(Door {
            temper: AtomicU8::new(temper as u8),
            column,
            requests: AtomicU64::new(0),
            last_arrival_ns: AtomicU64::new(0),
            silence_max_ns: AtomicU64::new(0),
        });
        let mut doors = self.board.doors.write().unwrap_or_else(PoisonError::into_inner);
        doors.push(Arc::clone(&door));
        let number = doors.len() - 1;
        Endpoint { url: format!("http://{}/{number}", self.host), number, door }
    }

    /// An endpoint's address on this machine.
    pub fn near(&self, endpoint: &Endpoint) -> String {
        format!("http://{}/{}", self.address, endpoint.number)
    }

    pub fn open_ledger(&self, width: usize) -> Arc<Ledger> {
        let mut runs = self.board.runs.write().unwrap_or_else(PoisonError::into_inner);
        let run = u16::try_from(runs.len()).expect("a benchmark has a few hundred measurements");
        let ledger = Arc::new(Ledger::new(run, width));
        runs.insert(run, Some(Arc::clone(&ledger)));
        ledger
    }

    /// From here on, whatever still comes for this run comes a second time.
    pub fn close_ledger(&self, run: u16) {
        self.board.runs.write().unwrap_or_else(PoisonError::into_inner).insert(run, None);
    }

    /// Arrivals for a ledger that was closed.
    pub fn late(&self) -> u64 {
        self.board.late.load(Relaxed)
    }

    /// Requests whose bytes were not those that were sent.
    pub fn damaged(&self) -> u64 {
        self.board.damaged.load(Relaxed)
    }
}

/// How an endpoint answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Temper {
    /// 200 at once.
    Healthy = 0,
    /// 503 at once; nothing counts as arrived.
    Failing = 1,
    /// Takes the request and never answers; nothing counts as arrived.
    Hanging = 2,
    /// Takes the request and begins an answer that it never ends; nothing counts as arrived.
    Dripping = 3,
}

pub struct Endpoint {
    pub url: String,
    number: usize,
    door: Arc<Door>,
}

impl Endpoint {
    pub fn turn(&self, temper: Temper) {
        self.door.temper.store(temper as u8, Relaxed);
    }

    /// From here on, the time between its arrivals is watched.
    pub fn watch_for_silence(&self) {
        self.door.last_arrival_ns.store(monotonic_ns(), Relaxed);
        self.door.silence_max_ns.store(0, Relaxed);
    }

    /// The longest time without an arrival since it is watched.
    pub fn silence_max(&self) -> Duration {
        Duration::from_nanos(self.door.silence_max_ns.load(Relaxed))
    }

    /// Requests that reached it, however they were answered.
    pub fn requests(&self) -> u64 {
        self.door.requests.load(Relaxed)
    }
}

#[derive(Default)]
struct Board {
    doors: RwLock<Vec<Arc<Door>>>,
    runs: RwLock<HashMap<u16, Option<Arc<Ledger>>>>,
    late: AtomicU64,
    damaged: AtomicU64,
}

struct Door {
    temper: AtomicU8,
    column: usize,
    requests: AtomicU64,
    last_arrival_ns: AtomicU64,
    silence_max_ns: AtomicU64,
}

impl Door {
    fn temper(&self) -> Temper {
        match self.temper.load(Relaxed) {
            0 => Temper::Healthy,
            1 => Temper::Failing,
            2 => Temper::Hanging,
            _ => Temper::Dripping,
        }
    }
}

impl Board {
    fn receive(&self, request: &Request<'_>) -> Option<Temper> {
        let door = {
            let doors = self.doors.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(doors.get(request.door)?)
        };
        door.requests.fetch_add(1, Relaxed);
        let temper = door.temper();
        if temper == Temper::Healthy {
            self.note(&door, request);
        }
        Some(temper)
    }

    fn note(&self, door: &Door, request: &Request<'_>) {
        let (Some(stamp), Some(id)) = (Stamp::read_from(request.body), request.id) else {
            self.damaged.fetch_add(1, Relaxed);
            return;
        };
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        match runs.get(&stamp.run) {
            Some(Some(ledger)) => {
                let now_ns = monotonic_ns();
                ledger.note_arrival(stamp.seq, door.column, id, stamp.sent_ns, now_ns);
                let last_ns = door.last_arrival_ns.swap(now_ns, Relaxed);
                door.silence_max_ns.fetch_max(now_ns.saturating_sub(last_ns), Relaxed);
            }
            Some(None) => {
                self.late.fetch_add(1, Relaxed);
            }
            None => {
                self.damaged.fetch_add(1, Relaxed);
            }
        }
    }
}

async fn answer_connections(listener: TcpListener, board: Arc<Board>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // An error ends this connection only: the sender closed or reset it, which the ledger will tell if it mattered.
                let connection = answer_requests(stream, Arc::clone(&board));
                tokio::spawn(async move { connection.await.ok() });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn answer_requests(mut stream: TcpStream, board: Arc<Board>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; REQUEST_USUAL];
    let mut filled = 0;
    loop {
        match Request::parse(&buffer[..filled]) {
            Parsed::Whole(request) => {
                let answer: &[u8] = match board.receive(&request) {
                    Some(Temper::Healthy) => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                    Some(Temper::Failing) => b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
                    Some(Temper::Hanging) => return wait_for_close(stream).await,
                    Some(Temper::Dripping) => return drip(stream).await,
                    None => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
                };
                let used = request.len;
                stream.write_all(answer).await?;
                buffer.copy_within(used..filled, 0);
                filled -= used;
            }
            Parsed::Partial if filled < REQUEST_MAX => {
                if filled == buffer.len() {
                    buffer.resize((buffer.len() * 4).min(REQUEST_MAX), 0);
                }
                match stream.read(&mut buffer[filled..]).await? {
                    0 => return Ok(()),
                    read => filled += read,
                }
            }
            Parsed::Partial | Parsed::Malformed => {
                board.damaged.fetch_add(1, Relaxed);
                return stream
                    .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .await;
            }
        }
    }
}

async fn wait_for_close(mut stream: TcpStream) -> std::io::Result<()> {
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// Until the other side has had enough.
async fn drip(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await?;
    loop {
        tokio::time::sleep(DRIP).await;
        stream.write_all(b"a").await?;
    }
}

struct Request<'a> {
    door: usize,
    id: Option<&'a [u8]>,
    body: &'a [u8],
    len: usize,
}

enum Parsed<'a> {
    Whole(Request<'a>),
    Partial,
    Malformed,
}

impl Request<'_> {
    /// Reads the little that we need. A body without a length is malformed here: a sender that holds the whole payload has no
    /// reason for chunks.
    fn parse(bytes: &[u8]) -> Parsed<'_> {
        let mut lines = Lines { bytes, at: 0 };
        let Some(first) = lines.next() else {
            return Parsed::Partial;
        };
        let door =
            first.strip_prefix(b"POST /").and_then(|rest| rest.split(|byte| *byte == b' ').next()).and_then(decimal);
        let Some(door) = door else {
            return Parsed::Malformed;
        };
        let mut id = None;
        let mut body_len = None;
        loop {
            let Some(line) = lines.next() else {
                return Parsed::Partial;
            };
            if line.is_empty() {
                break;
            }
            if let Some(value) = header(line, b"content-length") {
                body_len = decimal(value);
            } else if let Some(value) = header(line, b"webhook-id").or_else(|| header(line, b"svix-id")) {
                id = Some(value);
            }
        }
        let Some(body_len) = body_len else {
            return Parsed::Malformed;
        };
        match bytes.get(lines.at..).and_then(|rest| rest.get(..body_len)) {
            Some(body) => Parsed::Whole(Request { door, id, body, len: lines.at + body_len }),
            None => Parsed::Partial,
        }
    }
}

struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        self.at += end + 1;
        Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]))
    }
}

fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, value) = line.split_at_checked(name.len())?;
    head.eq_ignore_ascii_case(name).then_some(value)?.strip_prefix(b":").map(<[u8]>::trim_ascii)
}

fn decimal(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

const DRIP: Duration = Duration::from_secs(1);

/// A 1 KiB body and its headers, several times over.
const REQUEST_USUAL: usize = 16 * 1024;
const REQUEST_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_whole_or_awaited() {
        let bytes = b"POST /7 HTTP/1.1\r\nHost: x\r\nWebhook-Id: msg_1\r\nContent-Length: 2\r\n\r\nhiPOST";
        for cut in 0..bytes.len() - 4 {
            assert!(matches!(Request::parse(&bytes[..cut]), Parsed::Partial), "cut at {cut}");
        }
        let Parsed::Whole(request) = Request::parse(bytes) else { panic!("the request is complete") };
        assert_eq!((request.door, request.id, request.body), (7, Some(&b"msg_1"[..]), &b"hi"[..]));
        assert_eq!(request.len, bytes.len() - 4, "what follows belongs to the next request");
    }

    #[test]
    fn a_request_that_we_cannot_place_is_malformed() {
        for bytes in [
            &b"GET /1 HTTP/1.1\r\n\r\n"[..],
            b"POST /x HTTP/1.1\r\n\r\n",
            b"POST /1 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            assert!(matches!(Request::parse(bytes), Parsed::Malformed), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
