//! Open connections, and how a request travels on one.
//!
//! An HTTP/1.1 connection belongs to one request at a time, so the task that sends is also the one that
//! drives it: no second task to wake for every byte, nothing to wait for before the connection can be
//! used again, and a request that is dropped takes its socket along. At rest nobody polls it; the next
//! taker does, once, and learns then whether the peer has closed it. An HTTP/2 connection is shared and
//! has a task of its own.

use super::connect::{Link, Protocol, Stream};
use super::failure::Failure;
use super::meter::{Meter, Metered};
use super::url::EndpointUrl;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Version, header};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use postrider_engine::Fault;
use std::collections::HashMap;
use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shelves: HashMap<Arc<str>, Shelf>,
    resting: usize,
    has_sweeper: bool,
}

/// What is kept for one destination, as whom we call it.
#[derive(Default)]
struct Shelf {
    /// The last one put back is the first one taken: it is the least likely to be stale, and those that
    /// are not needed grow old.
    resting: Vec<Resting>,
    shared: Option<Shared>,
    /// Set once the destination has spoken HTTP/2. Whoever finds no connection then waits for the one
    /// that is being opened instead of opening one more.
    gate: Option<Arc<tokio::sync::Mutex<()>>>,
}

struct Resting {
    line: Box<Http1Line>,
    since: Instant,
}

struct Shared {
    line: Http2Line,
    last_used: Instant,
}

/// A connection in the hands of one request.
pub(super) enum Line {
    Http1(Box<Http1Line>),
    Http2(Http2Line),
}

pub(super) struct Http1Line {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    connection: Option<http1::Connection<Io, Full<Bytes>>>,
    meter: Arc<Meter>,
    opened: Instant,
}

#[derive(Clone)]
pub(super) struct Http2Line {
    sender: http2::SendRequest<Full<Bytes>>,
    meter: Arc<Meter>,
    opened: Instant,
}

type Io = TokioIo<Metered<Stream>>;

/// A request that got no response head.
pub(super) struct Unanswered {
    pub failure: Failure,
    /// The peer gave up the connection before it said anything to this request. If the connection had
    /// been used before, this is most likely a close that crossed our request.
    pub is_silent: bool,
}

impl Pool {
    /// An open connection of the shelf, if there is one. A shelf is named by where its connections lead, and by what we
    /// show there of ourselves: what was opened with a certificate is for those who have the same.
    pub async fn take(&self, shelf: &Arc<str>) -> Option<Line> {
        loop {
            let mut line = self.pick(shelf, Instant::now())?;
            if line.is_open_still().await {
                return Some(line);
            }
        }
    }

    /// Keeps a connection for the next request if it can carry one.
    pub fn put_back(self: &Arc<Self>, shelf: &Arc<str>, line: Line) {
        match line {
            Line::Http1(line) if line.is_reusable() => self.rest(shelf, line),
            // Already on its shelf.
            Line::Http1(_) | Line::Http2(_) => {}
        }
    }

    /// Lets others use a new HTTP/2 connection; an HTTP/1.1 one is its opener's until it is put back.
    pub fn share(self: &Arc<Self>, shelf: &Arc<str>, line: &Line) {
        let Line::Http2(line) = line else { return };
        let now = Instant::now();
        let mut state = self.lock();
        let shelf = state.shelf(shelf);
        shelf.gate.get_or_insert_default();
        if !shelf.shared.as_ref().is_some_and(|shared| shared.is_usable(now)) {
            shelf.shared = Some(Shared { line: line.clone(), last_used: now });
        }
        self.start_sweeper(&mut state);
    }

    /// A shared connection that failed one request by its own fault is not offered to another.
    pub fn forget(&self, shelf: &Arc<str>, line: &Line) {
        let Line::Http2(line) = line else { return };
        if let Some(shelf) = self.lock().shelves.get_mut(shelf)
            && let Some(shared) = &shelf.shared
            && Arc::ptr_eq(&shared.line.meter, &line.meter)
        {
            shelf.shared = None;
        }
    }

    pub fn gate(&self, shelf: &Arc<str>) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.lock().shelves.get(shelf)?.gate.clone()
    }

    /// Gives up every resting connection: their file handles are needed.
    pub fn shed(&self) {
        let mut state = self.lock();
        state.resting = 0;
        let shed: Vec<_> = state.shelves.values_mut().map(|shelf| std::mem::take(&mut shelf.resting)).collect();
        drop(state);
        drop(shed);
    }

    fn pick(&self, shelf: &Arc<str>, now: Instant) -> Option<Line> {
        let mut state = self.lock();
        let state = &mut *state;
        let shelf = state.shelves.get_mut(shelf)?;
        if let Some(shared) = &mut shelf.shared {
            if shared.is_usable(now) {
                shared.last_used = now;
                return Some(Line::Http2(shared.line.clone()));
            }
            shelf.shared = None;
        }
        let resting = shelf.resting.pop()?;
        state.resting -= 1;
        Some(Line::Http1(resting.line)).filter(|_| now < resting.since + IDLE_MAX)
    }

    fn rest(self: &Arc<Self>, shelf: &Arc<str>, line: Box<Http1Line>) {
        let now = Instant::now();
        if now >= line.opened + AGE_MAX {
            return;
        }
        let mut state = self.lock();
        if state.resting >= RESTING_MAX {
            return;
        }
        let shelf = state.shelf(shelf);
        if shelf.resting.len() >= RESTING_PER_DESTINATION_MAX {
            return;
        }
        shelf.resting.push(Resting { line, since: now });
        state.resting += 1;
        self.start_sweeper(&mut state);
    }

    fn start_sweeper(self: &Arc<Self>, state: &mut State) {
        if !state.has_sweeper {
            state.has_sweeper = true;
            tokio::spawn(sweep_while_alive(Arc::downgrade(self)));
        }
    }

    fn sweep(&self, now: Instant) {
        let mut ended = Vec::new();
        let mut state = self.lock();
        let mut kept = 0;
        state.shelves.retain(|_, shelf| {
            ended.extend(shelf.resting.extract_if(.., |resting| resting.is_over(now)));
            kept += shelf.resting.len();
            if shelf.shared.as_ref().is_some_and(|shared| !shared.is_usable(now)) {
                shelf.shared = None;
            }
            !shelf.resting.is_empty() || shelf.shared.is_some()
        });
        state.resting = kept;
        drop(state);
        // Closing sockets is for after the lock.
        drop(ended);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn shelf(&mut self, shelf: &Arc<str>) -> &mut Shelf {
        self.shelves.entry(Arc::clone(shelf)).or_default()
    }
}

impl Resting {
    fn is_over(&mut self, now: Instant) -> bool {
        // Nobody waits on it, so nobody needs to be woken.
        self.line.drive(&mut Context::from_waker(Waker::noop()));
        now >= self.since + IDLE_MAX || !self.line.is_reusable()
    }
}

impl Shared {
    fn is_usable(&self, now: Instant) -> bool {
        self.line.is_usable(now) && now < self.last_used + IDLE_MAX
    }
}

async fn sweep_while_alive(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.sweep(Instant::now());
    }
}

impl Line {
    pub async fn open(link: Link) -> Result<Self, Failure> {
        let meter = Arc::new(Meter::default());
        let opened = Instant::now();
        match link.protocol {
            Protocol::Http1 => {
                // hyper's own limit of 100 headers stays: setting it, even to the same number, costs an
                // allocation for every response.
                let io = TokioIo::new(Metered::new(link.stream, meter.clone()));
                let (sender, connection) = http1::Builder::new()
                    .max_buf_size(HEAD_MAX)
                    .handshake(io)
                    .await
                    .map_err(|error| Failure::from_hyper(&error))?;
                Ok(Line::Http1(Box::new(Http1Line { sender, connection: Some(connection), meter, opened })))
            }
            Protocol::Http2 => {
                meter.add(BUDGET_PER_STREAM, BUDGET_SHARED_MAX);
                let io = TokioIo::new(Metered::unpaced(link.stream, meter.clone()));
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .initial_stream_window_size(BODY_READ_MAX as u32)
                    .max_header_list_size(HEAD_MAX as u32)
                    .keep_alive_interval(Duration::from_secs(10))
                    .keep_alive_timeout(Duration::from_secs(5))
                    .handshake(io)
                    .await
                    .map_err(|error| Failure::from_hyper(&error))?;
                tokio::spawn(async move {
                    // Its error reaches every request that was under way.
                    let _ = connection.await;
                });
                Ok(Line::Http2(Http2Line { sender, meter, opened }))
            }
        }
    }

    pub async fn send(
        &mut self,
        url: &EndpointUrl,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Unanswered> {
        match self {
            Line::Http1(line) => line.send(url, headers, body).await,
            Line::Http2(line) => line.send(url, headers, body).await,
        }
    }

    pub async fn next_frame(&mut self, body: &mut Incoming) -> Option<Result<Frame<Bytes>, hyper::Error>> {
        poll_fn(|cx| {
            let polled = Pin::new(&mut *body).poll_frame(cx);
            match self {
                Line::Http1(line) if polled.is_pending() => {
                    line.drive(cx);
                    Pin::new(&mut *body).poll_frame(cx)
                }
                Line::Http1(_) | Line::Http2(_) => polled,
            }
        })
        .await
    }

    /// Lets an HTTP/1.1 connection notice that its response is over.
    pub async fn settle(&mut self) {
        if let Line::Http1(line) = self {
            line.drive_once().await;
        }
    }

    /// Bytes that came on this connection, for this response or, where several share it, for all.
    pub fn bytes_read(&self) -> u64 {
        match self {
            Line::Http1(line) => line.meter.read(),
            Line::Http2(line) => line.meter.read(),
        }
    }

    pub fn is_over_budget(&self) -> bool {
        match self {
            Line::Http1(line) => line.meter.is_spent(),
            Line::Http2(line) => line.meter.is_spent(),
        }
    }

    async fn is_open_still(&mut self) -> bool {
        match self {
            Line::Http1(line) => {
                line.drive_once().await;
                line.is_reusable()
            }
            Line::Http2(_) => true,
        }
    }
}

impl Http1Line {
    async fn send(
        &mut self,
        url: &EndpointUrl,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.meter.start(BUDGET_HEAD);
        headers.insert(header::HOST, url.host_header().clone());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.path().clone();
        *request.headers_mut() = headers;
        let mut answer = pin!(self.sender.send_request(request));
        let connection = &mut self.connection;
        let answered = poll_fn(|cx| {
            drive(connection, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        match answered {
            Ok(response) => {
                self.meter.allow(BODY_READ_MAX as u64);
                Ok(response)
            }
            Err(error) => {
                let failure = failure_of(&error, &self.meter);
                let is_silent = failure.fault == Fault::Reset && self.meter.read() == 0;
                Err(Unanswered { failure, is_silent })
            }
        }
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.connection, cx);
    }

    async fn drive_once(&mut self) {
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(())
        })
        .await;
    }

    fn is_reusable(&self) -> bool {
        // Whoever drips is left alone for moments, so that it would not be noticed what came after the answer, or the end.
        self.connection.is_some() && self.sender.is_ready() && !self.meter.is_dripping()
    }
}

impl Http2Line {
    async fn send(
        &mut self,
        url: &EndpointUrl,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Unanswered> {
        self.meter.add(BUDGET_PER_STREAM, BUDGET_SHARED_MAX);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = url.absolute().clone();
        *request.headers_mut() = headers;
        self.sender.send_request(request).await.map_err(|error| Unanswered {
            failure: failure_of(&error, &self.meter),
            is_silent: is_refused_unseen(&error) && !self.meter.is_spent(),
        })
    }

    fn is_usable(&self, now: Instant) -> bool {
        !self.sender.is_closed() && now < self.opened + AGE_MAX
    }
}

fn drive(connection: &mut Option<http1::Connection<Io, Full<Bytes>>>, cx: &mut Context<'_>) {
    // Its error, if any, has gone to the request or the body.
    if let Some(open) = connection
        && Pin::new(open).poll(cx).is_ready()
    {
        *connection = None;
    }
}

fn failure_of(error: &hyper::Error, meter: &Meter) -> Failure {
    if meter.is_spent() {
        return Failure::protocol("too many bytes before a response head");
    }
    match meter.tls_fault() {
        Some(fault) => Failure::from_tls(fault),
        None => Failure::from_hyper(error),
    }
}

/// A stream that the peer refused, one above the last that a GOAWAY covers, or a connection that was gone.
/// Any other reset of a stream is the peer's answer to this very request.
fn is_refused_unseen(error: &hyper::Error) -> bool {
    if error.is_canceled() || error.is_closed() {
        return true;
    }
    let Some(source) = error.source() else {
        return false;
    };
    match source.downcast_ref::<h2::Error>() {
        Some(h2) => (h2.is_go_away() && h2.is_remote()) || h2.reason() == Some(h2::Reason::REFUSED_STREAM),
        None => source.is::<io::Error>(),
    }
}

/// Of a response's body, so much is read.
pub(super) const BODY_READ_MAX: usize = 64 * 1024;

const HEAD_MAX: usize = 64 * 1024;

/// Interim responses and the final head together.
const BUDGET_HEAD: u64 = 256 * 1024;

const BUDGET_PER_STREAM: u64 = BUDGET_HEAD + BODY_READ_MAX as u64;

/// A hundred streams' worth: as many as a server usually allows at once.
const BUDGET_SHARED_MAX: u64 = 100 * BUDGET_PER_STREAM;

/// Most servers close an idle connection after 60 s or more; well before that, a reuse seldom meets a close.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// As long as a DNS answer is believed: a busy connection must not outlive a move to another address.
const AGE_MAX: Duration = Duration::from_secs(5 * 60);

const SWEEP_EVERY: Duration = Duration::from_secs(10);

const RESTING_PER_DESTINATION_MAX: usize = 128;

const RESTING_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    struct Peer {
        shelf: Arc<str>,
        listener: TcpListener,
    }

    impl Peer {
        async fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            Self { shelf: format!("http://{address}").into(), listener }
        }

        async fn connect(&self) -> (Line, TcpStream) {
            let stream = TcpStream::connect(self.listener.local_addr().unwrap());
            let (stream, accepted) = tokio::join!(stream, self.listener.accept());
            let link = Link { stream: Stream::Plain(stream.unwrap()), protocol: Protocol::Http1 };
            let mut line = Line::open(link).await.unwrap();
            line.settle().await;
            (line, accepted.unwrap().0)
        }
    }

    fn resting(pool: &Pool) -> usize {
        let state = pool.lock();
        let counted = state.shelves.values().map(|shelf| shelf.resting.len()).sum();
        assert_eq!(state.resting, counted);
        counted
    }

    #[tokio::test]
    async fn a_connection_rests_only_so_long() {
        let (pool, peer) = (Arc::new(Pool::default()), Peer::new().await);
        let (line, _accepted) = peer.connect().await;
        pool.put_back(&peer.shelf, line);
        let now = Instant::now();
        pool.sweep(now + IDLE_MAX / 2);
        assert_eq!(resting(&pool), 1);
        assert!(pool.pick(&peer.shelf, now + 2 * IDLE_MAX).is_none());
        assert_eq!(resting(&pool), 0);

        let (line, _accepted) = peer.connect().await;
        pool.put_back(&peer.shelf, line);
        pool.sweep(Instant::now() + IDLE_MAX);
        assert_eq!(resting(&pool), 0);
        assert!(pool.lock().shelves.is_empty());
    }

    #[tokio::test]
    async fn a_connection_that_the_peer_closed_is_swept() {
        let (pool, peer) = (Arc::new(Pool::default()), Peer::new().await);
        let (line, accepted) = peer.connect().await;
        pool.put_back(&peer.shelf, line);
        drop(accepted);
        // Loopback delivers at once; the runtime still has to look.
        while resting(&pool) > 0 {
            tokio::task::yield_now().await;
            pool.sweep(Instant::now());
        }
        assert!(pool.take(&peer.shelf).await.is_none());
    }

    #[tokio::test]
    async fn one_destination_keeps_only_so_many() {
        let (pool, peer) = (Arc::new(Pool::default()), Peer::new().await);
        let mut held = Vec::new();
        for _ in 0..RESTING_PER_DESTINATION_MAX + 3 {
            let (line, accepted) = peer.connect().await;
            pool.put_back(&peer.shelf, line);
            held.push(accepted);
        }
        assert_eq!(resting(&pool), RESTING_PER_DESTINATION_MAX);
        pool.shed();
        assert_eq!(resting(&pool), 0);
    }
}
