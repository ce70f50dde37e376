//! Our own accept loop, because the ready-made one has no limits.
//!
//! What a client can hold is counted and timed: connections in all and from one address, the time for a
//! request's head, the time between requests. Over a limit it is told so and let go. Running out of file
//! handles makes the loop wait, never spin.

use super::{error::Error, guesses::Peer};
use axum::{
    Router,
    extract::Request,
    middleware::map_response,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Version, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use postrider_store::step;
use std::{
    collections::HashMap,
    convert::Infallible,
    future::Future,
    io,
    net::{IpAddr, Ipv6Addr},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower::Service;
use tracing::{debug, warn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    /// From one address (of IPv6, one /64). Loopback is not counted.
    pub connections_per_address_max: usize,
    /// From the first byte of a request's head to its last.
    pub head_time_max: Duration,
    /// Between two requests, or before the first.
    pub idle_time_max: Duration,
    /// From the head to the answer.
    pub request_time_max: Duration,
    /// What running requests get to finish once we stop.
    pub drain_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address_max: 1_000,
            head_time_max: Duration::from_secs(10),
            idle_time_max: Duration::from_secs(60),
            request_time_max: Duration::from_secs(60),
            drain_time_max: Duration::from_secs(30),
        }
    }
}

/// Serves until `shutdown` completes, then finishes the requests that run and returns.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let router = if tls.is_some() { strictly(router) } else { router };
    let crowd = Arc::new(Crowd::new(limits));
    // Dropped at the end, which every connection notices; each holds a receiver, so that we see when all are gone.
    let (stopping, stop) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    let mut troubled = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => match crowd.admit(peer.ip()) {
                Some(place) => {
                    let peer = place.address.map(Peer);
                    let (router, stop, tls) = (router.clone(), stop.clone(), tls.clone());
                    tokio::spawn(async move {
                        let _ = stream.set_nodelay(true);
                        match tls {
                            None => attend(stream, peer, router, limits, stop).await,
                            // A handshake is the head of all heads.
                            Some(tls) => match timeout(limits.head_time_max, tls.accept(stream)).await {
                                Ok(Ok(stream)) => attend(stream, peer, router, limits, stop).await,
                                Ok(Err(fault)) => debug!(error = %fault, "a TLS handshake failed"),
                                Err(_) => debug!("a TLS handshake took too long"),
                            },
                        }
                        drop(place);
                    });
                }
                None => turn_away(&stream),
            },
            Err(fault) if is_of_one_connection(&fault) => continue,
            Err(fault) => {
                // Once for each time of trouble, which may last for minutes.
                if !std::mem::replace(&mut troubled, true) {
                    warn!(error = %fault, "no connection can be accepted; trying again until one can");
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        }
        troubled = false;
    }
    drop(listener);
    drop(stop);
    stopping.send_replace(());
    if timeout(limits.drain_time_max, stopping.closed()).await.is_err() {
        warn!("some requests did not finish in time and are cut off");
    }
}

/// In the clear, or within TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Whoever has once come by TLS is told never to come without.
fn strictly(router: Router) -> Router {
    router.layer(map_response(|mut response: Response| async {
        let value = HeaderValue::from_static("max-age=31536000");
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, value);
        response
    }))
}

/// Serves one connection to its end.
async fn attend(stream: impl Stream, peer: Option<Peer>, router: Router, limits: Limits, stop: watch::Receiver<()>) {
    let activity = Arc::new(Activity::new());
    let (back, mut given_back) = oneshot::channel();
    let watched = Watched { stream: Some(stream), activity: activity.clone(), back: Some(back) };
    converse(watched, peer, activity.clone(), router, limits, stop).await;
    if activity.refused.load(Relaxed)
        && let Ok(stream) = given_back.try_recv()
    {
        let _ = timeout(LINGER_TIME_MAX, linger(stream)).await;
    }
}

/// Lets the client read why it was refused. To close while its bytes lie unread would reset the
/// connection, and a reset takes our last words with it.
async fn linger(mut stream: impl Stream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut scrap = vec![0; 16 * 1024];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        match stream.read(&mut scrap).await? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

/// Serves requests until the client ends it, dawdles or we are told to stop.
async fn converse(
    watched: Watched<impl Stream>,
    peer: Option<Peer>,
    activity: Arc<Activity>,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<()>,
) {
    let io = TokioIo::new(watched);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let running = Running::begin(activity.clone(), request.version());
        let (mut router, refused) = (router.clone(), activity.clone());
        async move {
            let response = timeout(limits.request_time_max, router.call(Request::new_body(request))).await;
            drop(running);
            Ok::<_, Infallible>(match response {
                Ok(Ok(response)) => {
                    if response.headers().contains_key(header::CONNECTION) {
                        refused.refused.store(true, Relaxed);
                    }
                    response
                }
                Ok(Err(never)) => match never {},
                Err(_) => Error::Unavailable { retry_after: Duration::from_secs(1) }.into_response(),
            })
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // The head is timed by `Activity`: hyper's own limit would count the pause between requests as well.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(limits.idle_time_max / 2)
        .keep_alive_timeout(limits.head_time_max);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut check = pin!(sleep_until(activity.next_check(&limits)));
    let mut end_by = None;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(fault) = ended {
                    let unreadable = fault.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
                    activity.refused.store(unreadable, Relaxed);
                    debug!(error = %fault, "a connection broke");
                }
                return;
            }
            _ = stop.changed(), if end_by.is_none() => {
                connection.as_mut().graceful_shutdown();
                end_by = Some(Instant::now() + limits.drain_time_max);
                check.as_mut().reset(Instant::now() + limits.head_time_max);
            }
            () = check.as_mut() => {
                let now = Instant::now();
                if end_by.is_some_and(|end| end <= now) {
                    return;
                }
                match activity.judge(now, &limits) {
                    Verdict::Fine => {}
                    Verdict::HeadTooSlow => return,
                    Verdict::Idle if end_by.is_some() => return,
                    Verdict::Idle => {
                        connection.as_mut().graceful_shutdown();
                        end_by = Some(now + CLOSING_TIME_MAX);
                    }
                }
                let next = activity.next_check(&limits).max(now + Duration::from_millis(100));
                check.as_mut().reset(end_by.map_or(next, |end| end.min(next)));
            }
        }
    }
}

/// hyper's request in the form that axum's router takes.
trait IntoAxum {
    fn new_body(request: hyper::Request<Incoming>) -> Request;
}

impl IntoAxum for Request {
    fn new_body(request: hyper::Request<Incoming>) -> Request {
        request.map(axum::body::Body::new)
    }
}

/// What a connection is doing, by which it is judged. Times are milliseconds since it began.
struct Activity {
    began: Instant,
    running: AtomicUsize,
    /// When the last request was answered, or the connection began.
    idle_since: AtomicU64,
    /// When the first byte after that came; `NOT_YET` if none did.
    head_since: AtomicU64,
    /// HTTP/2, where bytes between requests are no request's head: pings, windows, settings.
    multiplexed: AtomicBool,
    /// We answered without having read all that was sent.
    refused: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    HeadTooSlow,
    Idle,
}

impl Activity {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            running: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            head_since: AtomicU64::new(NOT_YET),
            multiplexed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NOT_YET)
    }

    fn bytes_came(&self) {
        let between = self.running.load(Relaxed) == 0 && !self.multiplexed.load(Relaxed);
        if between && self.head_since.load(Relaxed) == NOT_YET {
            self.head_since.store(self.clock(), Relaxed);
        }
    }

    fn judge(&self, now: Instant, limits: &Limits) -> Verdict {
        let now = u64::try_from((now - self.began).as_millis()).unwrap_or(NOT_YET);
        let since = |then: u64| Duration::from_millis(now.saturating_sub(then));
        let (head, idle) = (self.head_since.load(Relaxed), self.idle_since.load(Relaxed));
        if self.running.load(Relaxed) > 0 {
            Verdict::Fine
        } else if head != NOT_YET && since(head) >= limits.head_time_max {
            Verdict::HeadTooSlow
        } else if since(idle) >= limits.idle_time_max {
            Verdict::Idle
        } else {
            Verdict::Fine
        }
    }

    /// When to judge again. What begins in between is at worst judged half its time late.
    fn next_check(&self, limits: &Limits) -> Instant {
        let now = Instant::now();
        let regular = now + limits.head_time_max / 2;
        match self.head_since.load(Relaxed) {
            NOT_YET => regular,
            head => (self.began + Duration::from_millis(head) + limits.head_time_max).min(regular),
        }
    }
}

/// Counts a request as running for as long as it lives.
struct Running(Arc<Activity>);

impl Running {
    fn begin(activity: Arc<Activity>, version: Version) -> Self {
        if version == Version::HTTP_2 {
            activity.multiplexed.store(true, Relaxed);
        }
        activity.running.fetch_add(1, Relaxed);
        activity.head_since.store(NOT_YET, Relaxed);
        Self(activity)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.clock(), Relaxed);
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// A stream that tells when bytes come in, and is given back at the end.
struct Watched<S: Stream> {
    /// There until this is dropped.
    stream: Option<S>,
    activity: Arc<Activity>,
    back: Option<oneshot::Sender<S>>,
}

impl<S: Stream> Watched<S> {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut S> {
        Pin::new(self.get_mut().stream.as_mut().expect("it is taken on drop only"))
    }
}

impl<S: Stream> Drop for Watched<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            let _ = back.send(stream);
        }
    }
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = self.as_mut().stream().poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.bytes_came();
        }
        polled
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        // Everything goes out this way or, if there is more than one piece, the other.
        let mut stream = self.stream();
        step!("answer.half_written", stream.as_mut().poll_write(cx, &data[..data.len() / 2]));
        let polled = stream.poll_write(cx, data);
        step!("answer.written");
        polled
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.stream();
        step!("answer.half_written", stream.as_mut().poll_write(cx, &data[0][..data[0].len() / 2]));
        let polled = stream.poll_write_vectored(cx, data);
        step!("answer.written");
        polled
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

/// Who is connected.
struct Crowd {
    limits: Limits,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place in the crowd, free again when dropped.
struct Place {
    crowd: Arc<Crowd>,
    /// `None` where addresses are not counted.
    address: Option<IpAddr>,
}

impl Crowd {
    fn new(limits: Limits) -> Self {
        Self { limits, here: Mutex::default() }
    }

    fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let address = (!peer.is_loopback()).then(|| network(peer));
        let mut here = self.here.lock().expect("no one panics while counting");
        if here.all >= self.limits.connections_max {
            return None;
        }
        if let Some(address) = address {
            let count = here.by_address.entry(address).or_default();
            if *count >= self.limits.connections_per_address_max {
                return None;
            }
            *count += 1;
        }
        here.all += 1;
        Some(Place { crowd: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = self.crowd.here.lock().expect("no one panics while counting");
        here.all -= 1;
        let Some(address) = self.address else { return };
        if let Some(count) = here.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                here.by_address.remove(&address);
            }
        }
    }
}

/// One household of IPv6 has a whole /64, and would else count as 2^64 strangers.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

/// Says why, if the client's buffer takes it, and hangs up.
fn turn_away(stream: &TcpStream) {
    let _ = stream.try_write(TURNED_AWAY);
}

/// The fault of one connection that died before we took it, rather than of ours.
fn is_of_one_connection(fault: &io::Error) -> bool {
    matches!(
        fault.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 64\r\n\r\n{\"code\":\"unavailable\",\"detail\":\"Too many connections are open.\"}";
/// Time for the machine to get file handles back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What a connection gets to say goodbye.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(5);
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;
const HEAD_BYTES_MAX: usize = 64 * 1024;
const HTTP2_STREAMS_MAX: u32 = 256;
const NOT_YET: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};

    fn limits() -> Limits {
        Limits {
            head_time_max: Duration::from_millis(200),
            idle_time_max: Duration::from_millis(600),
            request_time_max: Duration::from_millis(300),
            drain_time_max: Duration::from_secs(2),
            ..Limits::default()
        }
    }

    struct Server {
        address: std::net::SocketAddr,
        stop: oneshot::Sender<()>,
        done: tokio::task::JoinHandle<()>,
    }

    async fn start(limits: Limits) -> Server {
        start_within(None, limits).await
    }

    async fn start_within(tls: Option<TlsAcceptor>, limits: Limits) -> Server {
        let router = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/slow", get(|| async { sleep(Duration::from_millis(150)).await }))
            .route("/hang", get(std::future::pending::<()>))
            .route(
                "/body",
                post(|request: Request| async {
                    super::super::extract::read(request.into_body(), 8)
                        .await
                        .map(|body| format!("{} bytes", body.len()))
                }),
            );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let done = tokio::spawn(serve(listener, tls, router, limits, async {
            let _ = stopped.await;
        }));
        Server { address, stop, done }
    }

    /// Sends, and reads until the server hangs up.
    async fn talk(server: &Server, request: &str) -> String {
        String::from_utf8(talk_bytes(server, request).await).unwrap()
    }

    async fn talk_bytes(server: &Server, request: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await.expect("the server hangs up");
        answer
    }

    #[tokio::test]
    async fn a_head_that_drips_is_cut_off_unanswered() {
        let server = start(limits()).await;
        for begun in ["G", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nhost: x\r\na:", "PRI * HTTP/2.0\r\n\r\nSM\r\n"] {
            assert_eq!(talk(&server, begun).await, "", "{begun}");
        }
    }

    #[tokio::test]
    async fn within_tls_all_is_as_without() {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let ours = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let server = start_within(Some(TlsAcceptor::from(Arc::new(ours))), limits()).await;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let theirs = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(theirs));
        let stream = TcpStream::connect(server.address).await.unwrap();
        let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await.expect("the server hangs up");
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
        assert!(answer.contains("strict-transport-security: max-age=31536000"), "{answer}");
        for begun in ["", "GET / HTTP/1.1\r\nhost: x\r\n\r\n", "\u{16}\u{3}\u{1}"] {
            assert!(!talk_bytes(&server, begun).await.starts_with(b"HTTP"), "{begun:?} is no handshake");
        }
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_later_than_a_slow_head() {
        let server = start(limits()).await;
        let began = Instant::now();
        let answer = talk(&server, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(answer.ends_with("hello"));
        assert!(began.elapsed() >= Duration::from_millis(590), "{:?}", began.elapsed());
        assert_eq!(talk(&server, "").await, "");
    }

    #[tokio::test]
    async fn an_http_2_connection_may_pause_between_requests() {
        let server = start(limits()).await;
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (mut requests, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        for pause in [0, 350, 350] {
            sleep(Duration::from_millis(pause)).await;
            let request = hyper::Request::get("http://x/").body(axum::body::Body::empty()).unwrap();
            assert_eq!(requests.send_request(request).await.unwrap().status(), 200);
        }
        timeout(Duration::from_secs(3), connection).await.expect("it is closed when idle").unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_request_that_hangs_is_answered() {
        let server = start(limits()).await;
        let answer = talk(&server, "GET /hang HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("retry-after: 1"), "{answer}");
    }

    #[tokio::test]
    async fn too_large_a_body_is_not_waited_for() {
        let server = start(limits()).await;
        for head in ["content-length: 1000000", "transfer-encoding: chunked"] {
            let answer =
                talk(&server, &format!("POST /body HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n9\r\n123456789\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 413"), "{head}: {answer}");
            assert!(answer.contains("payload_too_large"), "{answer}");
            assert!(answer.contains("connection: close"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_client_that_asks_first_is_told_to_continue() {
        let server = start(limits()).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head =
            b"POST /body HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\nconnection: close\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let mut told = [0; 25];
        stream.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"abc").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("3 bytes"), "{answer}");
    }

    #[tokio::test]
    async fn what_could_smuggle_a_request_is_refused() {
        let server = start(limits()).await;
        for head in [
            "content-length: 3\r\ncontent-length: 4",
            "content-length: -1",
            "content-length: 3\r\nx: a\0b",
            "transfer-encoding: chunked, identity",
            "x : a",
            "x: a\r\n b",
        ] {
            let answer = talk(&server, &format!("POST /body HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\nabc")).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{head:?}: {answer}");
        }
    }

    #[tokio::test]
    async fn one_too_many_is_told_and_let_go() {
        let server = start(Limits { connections_max: 1, ..limits() }).await;
        let _first = TcpStream::connect(server.address).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        let answer = talk(&server, "").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        sleep(Duration::from_millis(900)).await;
        assert!(talk(&server, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn running_requests_are_finished_when_we_stop() {
        let server = start(limits()).await;
        let address = server.address;
        let mut running = TcpStream::connect(address).await.unwrap();
        running.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let _idle = TcpStream::connect(address).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        server.stop.send(()).unwrap();
        let mut answer = String::new();
        running.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        timeout(Duration::from_secs(3), server.done).await.expect("serve returns").unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[test]
    fn addresses_are_counted_apart_and_loopback_not_at_all() {
        let crowd =
            Arc::new(Crowd::new(Limits { connections_per_address_max: 1, connections_max: 5, ..Limits::default() }));
        let admit = |address: &str| crowd.admit(address.parse().unwrap());
        let first = admit("192.0.2.1");
        assert!(first.is_some() && admit("192.0.2.1").is_none() && admit("::ffff:192.0.2.1").is_none());
        let _other = admit("2001:db8::1").unwrap();
        assert!(admit("2001:db8::2").is_none(), "the same /64");
        let _local = [admit("127.0.0.1").unwrap(), admit("::1").unwrap()];
        drop(first);
        assert!(admit("192.0.2.1").is_some());
        let _full = [admit("192.0.2.2").unwrap(), admit("192.0.2.3").map_or_else(|| admit("127.0.0.1"), Some).unwrap()];
        assert!(admit("127.0.0.1").is_none(), "full for everyone");
    }
}
