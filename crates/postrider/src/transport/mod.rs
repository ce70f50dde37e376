//! The way out: one POST to one endpoint, and what the wire did with it.
//!
//! Receivers are strangers. Whatever one does, an attempt ends at its deadline, holds a fixed number of
//! bytes, and becomes an `Outcome`; a head with a status was an answer, whatever happens to its body.

mod connect;
pub mod egress;
mod failure;
mod meter;
mod pool;
mod resolve;
pub mod url;

pub use connect::ExtraCaError;
pub use egress::{AddressGuard, Forbidden};
pub use resolve::NameServers;
pub use url::{EndpointUrl, UrlError, UrlRules};

use self::url::Destination;
use bytes::Bytes;
use connect::Connector;
use failure::Failure;
use http::header::{self, HeaderMap, HeaderName};
use http::{Response, StatusCode};
use hyper::body::{Body, Incoming};
use pool::{BODY_READ_MAX, Line, Pool};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Answer, Control, Fault, Outcome, TimeoutPhase};
use resolve::Resolver;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Cheap to clone; clones share connections, names and the guard.
#[derive(Clone)]
pub struct Transport {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
}

#[derive(Clone, Debug)]
pub struct TransportConfig {
    pub guard: AddressGuard,
    /// Certificate authorities to trust besides the public ones.
    pub extra_ca_pem: Option<Vec<u8>>,
    pub name_servers: NameServers,
}

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error(transparent)]
    ExtraCa(#[from] ExtraCaError),
    #[error("could not set up the name resolver: {0}")]
    Resolver(String),
}

/// No `Debug`: it holds a payload and its signature.
pub struct Request<'a> {
    pub url: &'a EndpointUrl,
    /// Host, length and everything else that frames a message is ours; what a caller sets of it is dropped.
    pub headers: HeaderMap,
    pub body: Bytes,
    pub timeouts: Timeouts,
}

#[derive(Debug)]
pub struct Exchange {
    pub outcome: Outcome,
    /// Of the response, as they came; empty without one.
    pub headers: HeaderMap,
    /// The first `BODY_KEPT_MAX` bytes of the response's body, never decompressed.
    pub body: Bytes,
    /// There was or may have been more body than is kept.
    pub body_cut: bool,
    /// The body ended against its own framing.
    pub body_broken: bool,
    /// Why there was no answer, in a sentence that may be shown to the endpoint's owner.
    pub detail: Option<String>,
    pub duration: Duration,
    pub connection: ConnectionUse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionUse {
    Fresh,
    Reused,
    /// A reused one turned out to be closed, and the request went again on a fresh one.
    Renewed,
}

impl Exchange {
    /// For a URL that may not be called any more: nothing was dialled, and nothing is told but that.
    pub fn forbidden() -> Self {
        let failure = Failure::forbidden();
        Self {
            outcome: Outcome::Failed(failure.fault),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            body_cut: false,
            body_broken: false,
            detail: Some(failure.detail),
            duration: Duration::ZERO,
            connection: ConnectionUse::Fresh,
        }
    }
}

impl TransportConfig {
    pub fn new(guard: AddressGuard) -> Self {
        Self { guard, extra_ca_pem: None, name_servers: NameServers::System }
    }
}

impl Transport {
    pub fn new(config: TransportConfig) -> Result<Self, TransportError> {
        let resolver = Resolver::new(&config.name_servers, config.guard)
            .map_err(|error| TransportError::Resolver(error.to_string()))?;
        Ok(Self {
            connector: Arc::new(Connector::new(resolver, config.extra_ca_pem.as_deref())?),
            pool: Arc::default(),
        })
    }

    /// Ends at the total timeout at the latest. Dropping the future ends the request and its connection.
    pub async fn post(&self, request: Request<'_>) -> Exchange {
        let started = Instant::now();
        let deadlines = Deadlines::from(started, &request.timeouts);
        let mut connection = ConnectionUse::Fresh;
        let sent = self.send(request, &deadlines, &mut connection).await;
        let (outcome, headers, read, detail) = match sent {
            Ok(answered) => {
                let Answered { response, line, destination } = answered;
                let (head, body) = response.into_parts();
                let outcome = Outcome::Answered(answer(head.status, &head.headers));
                let read = self.read_body(&destination, line, body, &head.status, &head.headers, &deadlines).await;
                (outcome, head.headers, read, None)
            }
            Err(failure) => {
                (Outcome::Failed(failure.fault), HeaderMap::new(), ReadBody::default(), Some(failure.detail))
            }
        };
        Exchange {
            outcome,
            headers,
            body: read.kept.into(),
            body_cut: read.cut,
            body_broken: read.broken,
            detail,
            duration: started.elapsed(),
            connection,
        }
    }

    async fn send(
        &self,
        request: Request<'_>,
        deadlines: &Deadlines,
        connection: &mut ConnectionUse,
    ) -> Result<Answered, Failure> {
        let Request { url, mut headers, body, .. } = request;
        for name in OURS_TO_SET {
            headers.remove(name);
        }
        let destination = url.destination();
        if let Some(line) = self.pool.take(destination).await {
            *connection = ConnectionUse::Reused;
            let sent = self.send_on(line, url, headers.clone(), body.clone(), deadlines);
            match sent.await {
                Ok(answered) => return Ok(answered),
                Err(unanswered) if unanswered.is_silent => {
                    *connection = ConnectionUse::Renewed;
                    metrics::counter!("postrider_stale_connection_retries_total").increment(1);
                }
                Err(unanswered) => return Err(unanswered.failure),
            }
        }
        let line = self.open(destination, deadlines, *connection).await?;
        self.send_on(line, url, headers, body, deadlines).await.map_err(|unanswered| unanswered.failure)
    }

    async fn send_on(
        &self,
        mut line: Line,
        url: &EndpointUrl,
        headers: HeaderMap,
        body: Bytes,
        deadlines: &Deadlines,
    ) -> Result<Answered, pool::Unanswered> {
        let read_before = line.bytes_read();
        match timeout_at(deadlines.head, line.send(url, headers, body)).await {
            Ok(Ok(response)) => Ok(Answered { response, line, destination: url.destination().clone() }),
            Ok(Err(unanswered)) => {
                if unanswered.is_silent {
                    self.pool.forget(url.destination(), &line);
                }
                Err(unanswered)
            }
            Err(_) => {
                // A whole timeout without a byte: the host may be gone without a word.
                if line.bytes_read() == read_before {
                    self.pool.forget(url.destination(), &line);
                }
                Err(pool::Unanswered { failure: Failure::timeout(deadlines.head_phase), is_silent: false })
            }
        }
    }

    async fn open(
        &self,
        destination: &Destination,
        deadlines: &Deadlines,
        connection: ConnectionUse,
    ) -> Result<Line, Failure> {
        let until = (Instant::now() + deadlines.connect).min(deadlines.head);
        let opening = async {
            let gate = self.pool.gate(destination);
            let _turn = match &gate {
                Some(gate) => Some(gate.lock().await),
                None => None,
            };
            // Someone may have opened one while we waited. After a stale one, only a new one will do.
            if gate.is_some()
                && connection == ConnectionUse::Fresh
                && let Some(line) = self.pool.take(destination).await
            {
                return Ok(line);
            }
            let line = Line::open(self.connector.open(destination).await?).await?;
            self.pool.share(destination, &line);
            Ok(line)
        };
        let opened = timeout_at(until, opening).await.unwrap_or_else(|_| Err(Failure::timeout(TimeoutPhase::Connect)));
        if let Err(Failure { fault: Fault::LocalResource, .. }) = &opened {
            self.pool.shed();
        }
        opened
    }

    /// Reads what the log keeps, and gives the connection back if the response is over by then.
    async fn read_body(
        &self,
        destination: &Destination,
        mut line: Line,
        mut body: Incoming,
        status: &StatusCode,
        headers: &HeaderMap,
        deadlines: &Deadlines,
    ) -> ReadBody {
        let mut read = ReadBody::default();
        let mut bytes = 0;
        let until =
            if status.is_success() { deadlines.total.min(Instant::now() + SUCCESS_BODY_WAIT) } else { deadlines.total };
        while !body.is_end_stream() {
            let frame_until = until.min(Instant::now() + BODY_SILENCE_MAX);
            match timeout_at(frame_until, line.next_frame(&mut body)).await {
                Ok(Some(Ok(frame))) => {
                    let Some(data) = frame.data_ref() else {
                        continue;
                    };
                    bytes += data.len();
                    let room = BODY_KEPT_MAX - read.kept.len();
                    read.kept.extend_from_slice(&data[..data.len().min(room)]);
                    read.cut |= data.len() > room;
                    if bytes > BODY_READ_MAX {
                        return read;
                    }
                }
                Ok(Some(Err(_))) => {
                    // Out of budget with the log's share already full is only a long body.
                    read.broken = !(read.cut && line.is_over_budget());
                    return read;
                }
                Ok(None) => break,
                Err(_) => {
                    read.cut = true;
                    return read;
                }
            }
        }
        // Two framings in one head: whoever sits between may have believed the other one.
        let is_ambiguous =
            headers.contains_key(header::TRANSFER_ENCODING) && headers.contains_key(header::CONTENT_LENGTH);
        if !is_ambiguous {
            drop(body);
            line.settle().await;
            self.pool.put_back(destination, line);
        }
        read
    }
}

struct Deadlines {
    /// Counted from when a connection is needed.
    connect: Duration,
    head: Instant,
    head_phase: TimeoutPhase,
    total: Instant,
}

impl Deadlines {
    fn from(started: Instant, timeouts: &Timeouts) -> Self {
        let (head, head_phase) = if timeouts.first_byte <= timeouts.total {
            (timeouts.first_byte, TimeoutPhase::FirstByte)
        } else {
            (timeouts.total, TimeoutPhase::Total)
        };
        Self { connect: timeouts.connect, head: started + head, head_phase, total: started + timeouts.total }
    }
}

struct Answered {
    response: Response<Incoming>,
    line: Line,
    destination: Arc<Destination>,
}

#[derive(Default)]
struct ReadBody {
    kept: Vec<u8>,
    cut: bool,
    broken: bool,
}

fn answer(status: StatusCode, headers: &HeaderMap) -> Answer {
    Answer {
        status: status.as_u16(),
        retry_after: headers.get_all(header::RETRY_AFTER).iter().map(|value| value.as_bytes().to_vec()).collect(),
        location: headers.get(header::LOCATION).filter(|_| status.is_redirection()).map(|value| {
            let text = String::from_utf8_lossy(value.as_bytes());
            text.chars().take(LOCATION_MAX).collect()
        }),
        control: control(headers),
        redirect_refused: false,
    }
}

/// What is neither of the two words is none of ours. Of both, the one that stops more wins.
fn control(headers: &HeaderMap) -> Option<Control> {
    let asked = |word: &str| {
        let mut values = headers.get_all(CONTROL_HEADER).iter();
        values.any(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    if asked("disable") {
        Some(Control::Disable)
    } else if asked("abort-message") {
        Some(Control::AbortMessage)
    } else {
        None
    }
}

const CONTROL_HEADER: HeaderName = HeaderName::from_static("webhook-delivery");

/// What a caller may not decide: framing, the connection, and encodings that we would have to undo.
const OURS_TO_SET: [HeaderName; 10] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::EXPECT,
    header::ACCEPT_ENCODING,
    HeaderName::from_static("keep-alive"),
];

/// So much of a response's body goes to the log.
pub const BODY_KEPT_MAX: usize = 16 * 1024;

/// A 2xx is settled by its head; its body is worth this much waiting.
const SUCCESS_BODY_WAIT: Duration = Duration::from_secs(1);

/// A body that pauses for longer is given up, its status stands.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(5);

const LOCATION_MAX: usize = 2048;
