//! The way out: one POST to one endpoint, and what the wire did with it.
//!
//! Receivers are strangers. Whatever one does, an attempt ends at its deadline, holds a fixed number of
//! bytes, and becomes an `Outcome`; a head with a status was an answer, whatever happens to its body.

pub mod client_tls;
mod connect;
pub mod egress;
mod failure;
mod meter;
mod pool;
mod proxy;
mod redirect;
mod resolve;
pub mod url;

pub use client_tls::ClientTls;
pub use connect::ExtraCaError;
pub(crate) use connect::trusted;
pub use egress::{AddressGuard, Forbidden};
pub use proxy::{EgressProxy, NotAProxy};
pub use redirect::REDIRECTS_MAX;
pub use resolve::NameServers;
pub use url::{EndpointUrl, UrlCredentials, UrlError, UrlRules};

use async_trait::async_trait;
use bytes::Bytes;
use connect::Connector;
use failure::Failure;
use http::header::{self, HeaderMap, HeaderName};
use http::{Response, StatusCode};
use hyper::body::{Body, Incoming};
use pool::{BODY_READ_MAX, Line, Pool};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Answer, Control, Fault, Outcome, TimeoutPhase};
use postrider_store::step;
use redirect::{Refusal, Step, Trail, carry_over, is_same_origin};
use resolve::Resolver;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Cheap to clone; clones share connections, names and the guard.
#[derive(Clone)]
pub struct Transport {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    rules: Arc<RedirectRules>,
}

#[derive(Clone, Debug)]
pub struct TransportConfig {
    pub guard: AddressGuard,
    /// Certificate authorities to trust besides the public ones.
    pub extra_ca_pem: Option<Vec<u8>>,
    pub name_servers: NameServers,
    /// Everything goes out by way of it.
    pub proxy: Option<EgressProxy>,
    /// As for the URL of an endpoint: a redirect leads nowhere that a customer could not have named.
    pub https_only: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error(transparent)]
    ExtraCa(#[from] ExtraCaError),
    #[error("could not set up the name resolver: {0}")]
    Resolver(String),
}

/// Whoever carries a request to its receiver and comes back with what happened.
#[async_trait]
pub trait Post: Send + Sync {
    async fn post(&self, request: Request<'_>) -> Exchange;
}

#[async_trait]
impl Post for Transport {
    async fn post(&self, request: Request<'_>) -> Exchange {
        Self::post(self, request).await
    }
}

/// No `Debug`: it holds a payload and its signature.
pub struct Request<'a> {
    pub url: &'a EndpointUrl,
    /// Made once for each request that goes out, and always the same. Host, length and everything else that frames a message
    /// is ours; what a caller sets of it is dropped.
    pub headers: &'a (dyn Fn() -> HeaderMap + Sync),
    pub body: Bytes,
    /// Each counts as a minute if it is longer. Over redirects, connect and first byte begin anew with
    /// each request; the total does not.
    pub timeouts: Timeouts,
    /// So many redirects are followed, 307 and 308 only, and never more than `REDIRECTS_MAX`.
    pub redirects_max: u8,
    /// The headers that go along when a redirect leads to another scheme, host or port. All others stay
    /// behind: a list of what to drop would leak whatever it forgot.
    pub kept_across_hosts: &'a [HeaderName],
    /// What of TLS is the endpoint's own. It, too, stays behind when a redirect leads elsewhere.
    pub tls: Option<&'a ClientTls>,
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
    /// Why there was no answer, or why a redirect was not followed, in a sentence that may be shown to the
    /// endpoint's owner.
    pub detail: Option<String>,
    /// The URL that gave the outcome, if redirects led away from the endpoint's own; without its query.
    pub final_url: Option<String>,
    pub duration: Duration,
    /// Of the last request, if there were redirects.
    pub connection: ConnectionUse,
    /// It was not even tried to call anybody.
    pub is_untried: bool,
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
        let Failure { fault, detail } = Failure::forbidden();
        Self::failed(fault, detail)
    }

    /// Nobody was called, and why.
    pub fn failed(fault: Fault, detail: String) -> Self {
        Self {
            outcome: Outcome::Failed(fault),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            body_cut: false,
            body_broken: false,
            detail: Some(detail),
            final_url: None,
            duration: Duration::ZERO,
            connection: ConnectionUse::Fresh,
            is_untried: true,
        }
    }
}

impl TransportConfig {
    pub fn new(guard: AddressGuard) -> Self {
        Self { guard, extra_ca_pem: None, name_servers: NameServers::System, proxy: None, https_only: false }
    }
}

impl Transport {
    pub fn new(config: TransportConfig) -> Result<Self, TransportError> {
        let resolver = Resolver::new(&config.name_servers, config.guard.clone())
            .map_err(|error| TransportError::Resolver(error.to_string()))?;
        Ok(Self {
            connector: Arc::new(Connector::new(resolver, config.extra_ca_pem.as_deref(), config.proxy)?),
            pool: Arc::default(),
            rules: Arc::new(RedirectRules { https_only: config.https_only, guard: config.guard }),
        })
    }

    /// Ends at the total timeout at the latest. Dropping the future ends the request and its connection.
    pub async fn post(&self, request: Request<'_>) -> Exchange {
        let started = Instant::now();
        let mut trail = Trail::new(request.url, request.redirects_max);
        let arrival = self.arrive(request, started, &mut trail).await;
        let final_url = (trail.followed() > 0).then(|| trail.here().without_query().to_owned());
        let (outcome, headers, read, detail, connection) = match arrival {
            Ok(Reply { answer, headers, body, connection, refusal }) => {
                (Outcome::Answered(answer), headers, body, refusal.map(|refusal| refusal.to_string()), connection)
            }
            Err((failure, connection)) => {
                let Failure { fault, detail } = failure.after_redirects(trail.followed());
                (Outcome::Failed(fault), HeaderMap::new(), ReadBody::default(), Some(detail), connection)
            }
        };
        Exchange {
            outcome,
            headers,
            body: read.kept.into(),
            body_cut: read.cut,
            body_broken: read.broken,
            detail,
            final_url,
            duration: started.elapsed(),
            connection,
            is_untried: false,
        }
    }

    /// Calls the endpoint and then whatever its redirects lead to.
    async fn arrive(
        &self,
        request: Request<'_>,
        started: Instant,
        trail: &mut Trail<'_>,
    ) -> Result<Reply, (Failure, ConnectionUse)> {
        let Request { headers, body, timeouts, kept_across_hosts, mut tls, .. } = request;
        // Since the first redirect.
        let mut carried: Option<HeaderMap> = None;
        let total = started + timeouts.total.min(TIMEOUT_MAX);
        let mut hop_started = started;
        let mut led_here: Option<Reply> = None;
        loop {
            let deadlines = Deadlines::new(hop_started, total, &timeouts);
            let headers = || match &carried {
                Some(carried) => carried.clone(),
                None => without_ours(headers()),
            };
            let mut connection = ConnectionUse::Fresh;
            let way = Way::new(trail.here(), tls);
            let sent = self.send(&way, &headers, body.clone(), &deadlines, &mut connection).await;
            let answered = match (sent, led_here) {
                (Ok(answered), _) => answered,
                // Not the endpoint's address, but that of a redirect: the redirect is what went wrong.
                (Err(Failure { fault: Fault::Forbidden, .. }), Some(redirect)) => {
                    trail.go_back();
                    return Ok(redirect.refused(Refusal::Unusable));
                }
                (Err(failure), _) => return Err((failure, connection)),
            };
            step!("send.head_read");
            let Answered { response, line } = answered;
            let (head, incoming) = response.into_parts();
            let step = trail.step(&head, &self.rules.as_url_rules());
            let is_settled = head.status.is_success() || matches!(step, Step::Follow(_));
            let body_until = if is_settled { total.min(Instant::now() + SETTLED_BODY_WAIT) } else { total };
            let read = self.read_body(&way.shelf, line, incoming, &head.headers, body_until).await;
            let reply = Reply {
                answer: answer(head.status, &head.headers),
                headers: head.headers,
                body: read,
                connection,
                refusal: None,
            };
            match step {
                Step::Stay => return Ok(reply),
                Step::Refuse(refusal) => return Ok(reply.refused(refusal)),
                Step::Follow(url) => {
                    let mut headers_next = headers();
                    carry_over(&mut headers_next, trail.here(), &url, kept_across_hosts);
                    if !is_same_origin(trail.here(), &url) {
                        tls = None;
                    }
                    trail.go(*url);
                    carried = Some(headers_next);
                    led_here = Some(reply);
                    hop_started = Instant::now();
                }
            }
        }
    }

    async fn send(
        &self,
        way: &Way<'_>,
        headers: &(dyn Fn() -> HeaderMap + Sync),
        body: Bytes,
        deadlines: &Deadlines,
        connection: &mut ConnectionUse,
    ) -> Result<Answered, Failure> {
        if let Some(line) = self.pool.take(&way.shelf).await {
            *connection = ConnectionUse::Reused;
            let sent = self.send_on(line, way, headers(), body.clone(), deadlines);
            match sent.await {
                Ok(answered) => return Ok(answered),
                Err(unanswered) if unanswered.is_silent => {
                    *connection = ConnectionUse::Renewed;
                    metrics::counter!("postrider_stale_connection_retries_total").increment(1);
                }
                Err(unanswered) => return Err(unanswered.failure),
            }
        }
        // In a box of its own: it is large, and those that find a connection would carry it along.
        let line = Box::pin(self.open(way, deadlines, *connection)).await?;
        self.send_on(line, way, headers(), body, deadlines).await.map_err(|unanswered| unanswered.failure)
    }

    async fn send_on(
        &self,
        mut line: Line,
        way: &Way<'_>,
        headers: HeaderMap,
        body: Bytes,
        deadlines: &Deadlines,
    ) -> Result<Answered, pool::Unanswered> {
        let read_before = line.bytes_read();
        match timeout_at(deadlines.head, line.send(way.url, headers, body)).await {
            Ok(Ok(response)) => Ok(Answered { response, line }),
            Ok(Err(unanswered)) => {
                if unanswered.is_silent {
                    self.pool.forget(&way.shelf, &line);
                }
                Err(unanswered)
            }
            Err(_) => {
                // A whole timeout without a byte: the host may be gone without a word.
                if line.bytes_read() == read_before {
                    self.pool.forget(&way.shelf, &line);
                }
                Err(pool::Unanswered { failure: Failure::timeout("response", deadlines.head_limit), is_silent: false })
            }
        }
    }

    async fn open(&self, way: &Way<'_>, deadlines: &Deadlines, connection: ConnectionUse) -> Result<Line, Failure> {
        let connect_until = Instant::now() + deadlines.connect;
        let (until, limit) = if connect_until <= deadlines.head {
            (connect_until, TimeoutPhase::Connect)
        } else {
            (deadlines.head, deadlines.head_limit)
        };
        let opening = async {
            let gate = self.pool.gate(&way.shelf);
            let _turn = match &gate {
                Some(gate) => Some(gate.lock().await),
                None => None,
            };
            // Someone may have opened one while we waited. After a stale one, only a new one will do.
            if gate.is_some()
                && connection == ConnectionUse::Fresh
                && let Some(line) = self.pool.take(&way.shelf).await
            {
                return Ok(line);
            }
            let line = Line::open(self.connector.open(way.url.destination(), way.tls).await?).await?;
            self.pool.share(&way.shelf, &line);
            Ok(line)
        };
        let opened = timeout_at(until, opening).await.unwrap_or_else(|_| Err(Failure::timeout("connection", limit)));
        if let Err(Failure { fault: Fault::LocalResource, .. }) = &opened {
            self.pool.shed();
        }
        opened
    }

    /// Reads what the log keeps, and gives the connection back if the response is over by then.
    async fn read_body(
        &self,
        shelf: &Arc<str>,
        mut line: Line,
        mut body: Incoming,
        headers: &HeaderMap,
        until: Instant,
    ) -> ReadBody {
        let mut read = ReadBody::default();
        let mut bytes = 0;
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
            self.pool.put_back(shelf, line);
        }
        read
    }
}

struct RedirectRules {
    https_only: bool,
    guard: AddressGuard,
}

impl RedirectRules {
    fn as_url_rules(&self) -> UrlRules<'_> {
        UrlRules { https_only: self.https_only, guard: &self.guard }
    }
}

/// Of one request; with redirects, an attempt has several.
struct Deadlines {
    /// Counted from when a connection is needed.
    connect: Duration,
    head: Instant,
    /// Which of the limits `head` is.
    head_limit: TimeoutPhase,
}

impl Deadlines {
    fn new(started: Instant, total: Instant, timeouts: &Timeouts) -> Self {
        let first_byte = started + timeouts.first_byte.min(TIMEOUT_MAX);
        let (head, head_limit) =
            if first_byte <= total { (first_byte, TimeoutPhase::FirstByte) } else { (total, TimeoutPhase::Total) };
        Self { connect: timeouts.connect.min(TIMEOUT_MAX), head, head_limit }
    }
}

struct Answered {
    response: Response<Incoming>,
    line: Line,
}

/// Where one request goes, and as whom.
struct Way<'a> {
    url: &'a EndpointUrl,
    tls: Option<&'a ClientTls>,
    /// Where its connections are kept.
    shelf: Arc<str>,
}

impl<'a> Way<'a> {
    fn new(url: &'a EndpointUrl, tls: Option<&'a ClientTls>) -> Self {
        let key = &url.destination().key;
        let shelf = match tls {
            None => Arc::clone(key),
            Some(tls) => format!("{key} as {}", tls.mark()).into(),
        };
        Self { url, tls, shelf }
    }
}

/// An answer as far as it was read.
struct Reply {
    answer: Answer,
    headers: HeaderMap,
    body: ReadBody,
    connection: ConnectionUse,
    /// Why it was not followed, if it is a redirect that asked for it.
    refusal: Option<Refusal>,
}

impl Reply {
    fn refused(mut self, refusal: Refusal) -> Self {
        self.answer.redirect_refused = true;
        Self { refusal: Some(refusal), ..self }
    }
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

fn without_ours(mut headers: HeaderMap) -> HeaderMap {
    // Hardly ever is there one, and to look is cheaper than to remove what is not there.
    if headers.keys().any(|name| OURS_TO_SET.contains(name)) {
        for name in OURS_TO_SET {
            headers.remove(name);
        }
    }
    headers
}

/// So much of a response's body goes to the log.
pub const BODY_KEPT_MAX: usize = 16 * 1024;

/// The longest that an endpoint may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// A 2xx, or a redirect that is followed, is settled by its head; its body is worth this much waiting.
const SETTLED_BODY_WAIT: Duration = Duration::from_secs(1);

/// A body that pauses for longer is given up, its status stands.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(5);

const LOCATION_MAX: usize = 2048;
