//! How connections are made, kept and given up.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use postrider::transport::{
    AddressGuard, ConnectionUse, EndpointUrl, Exchange, NameServers, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Fault, Outcome, TimeoutPhase, TlsFault};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_rustls::TlsAcceptor;

const LOOPBACK: &[&str] = &["127.0.0.0/8"];

#[tokio::test]
async fn a_connection_is_kept_and_used_again() {
    let receiver = Receiver::plain(usize::MAX).await;
    let transport = transport(LOOPBACK);
    for nth in 0..10 {
        let exchange = post(&transport, &receiver.url("http", "127.0.0.1")).await;
        assert_eq!(status(&exchange), Some(200), "{exchange:?}");
        let expected = if nth == 0 { ConnectionUse::Fresh } else { ConnectionUse::Reused };
        assert_eq!(exchange.connection, expected);
        assert_eq!(exchange.body, "ok");
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn requests_at_once_have_a_connection_each_and_leave_them_behind() {
    let receiver = Receiver::plain(usize::MAX).await;
    let transport = transport(LOOPBACK);
    for _ in 0..2 {
        let mut posts = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (transport, url) = (transport.clone(), receiver.url("http", "127.0.0.1"));
            posts.spawn(async move { status(&post(&transport, &url).await) });
        }
        assert!(posts.join_all().await.iter().all(|status| *status == Some(200)));
    }
    assert!(receiver.connections() <= 8, "{}", receiver.connections());
}

#[tokio::test]
async fn a_connection_that_closed_at_rest_is_not_tried() {
    // One request for each connection, without saying so.
    let receiver = Receiver::plain(1).await;
    let transport = transport(LOOPBACK);
    let url = receiver.url("http", "127.0.0.1");
    assert_eq!(status(&post(&transport, &url).await), Some(200));
    receiver.closed().await;
    let exchange = post(&transport, &url).await;
    assert_eq!(status(&exchange), Some(200));
    assert_eq!(exchange.connection, ConnectionUse::Fresh);
}

#[tokio::test]
async fn a_close_that_crosses_our_request_is_tried_once_more() {
    // Closes each connection when the second request comes in.
    let receiver = Receiver::start(|stream, _| async move {
        let mut stream = stream;
        hear(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        hear(&mut stream).await;
    })
    .await;
    let transport = transport(LOOPBACK);
    let url = receiver.url("http", "127.0.0.1");
    assert_eq!(status(&post(&transport, &url).await), Some(200));
    let exchange = post(&transport, &url).await;
    assert_eq!(status(&exchange), Some(200), "{exchange:?}");
    assert_eq!(exchange.connection, ConnectionUse::Renewed);
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_fresh_connection_that_closes_is_not_tried_again() {
    let receiver = Receiver::start(|mut stream, _| async move { hear(&mut stream).await }).await;
    let exchange = post(&transport(LOOPBACK), &receiver.url("http", "127.0.0.1")).await;
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Reset));
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn a_reused_connection_that_began_to_answer_is_not_tried_again() {
    let receiver = Receiver::start(|mut stream, _| async move {
        hear(&mut stream).await;
        stream.write_all(OK).await.unwrap();
        hear(&mut stream).await;
        stream.write_all(b"HTTP/1.1 2").await.unwrap();
    })
    .await;
    let transport = transport(LOOPBACK);
    let url = receiver.url("http", "127.0.0.1");
    assert_eq!(status(&post(&transport, &url).await), Some(200));
    let exchange = post(&transport, &url).await;
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Reset));
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn the_framing_is_ours() {
    let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::start(move |mut stream, _| {
        let heard = heard.clone();
        async move {
            let mut bytes = Vec::new();
            while !bytes.ends_with(BODY) && stream.read_buf(&mut bytes).await.unwrap() > 0 {}
            stream.write_all(OK).await.unwrap();
            heard.send(String::from_utf8(bytes).unwrap()).unwrap();
        }
    })
    .await;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("host", "evil.example"),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("accept-encoding", "gzip"),
        ("expect", "100-continue"),
        ("webhook-id", "msg_1"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let url = receiver.url("http", "localhost");
    let exchange = transport(LOOPBACK)
        .post(Request {
            url: &url,
            headers: &|| headers.clone(),
            body: Bytes::from_static(BODY),
            timeouts: TIMEOUTS,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await;
    assert_eq!(status(&exchange), Some(200), "{exchange:?}");
    let (head, _) =
        hears.recv().await.unwrap().split_once("\r\n\r\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let mut lines: Vec<&str> = head.lines().collect();
    lines.sort_unstable();
    let host = format!("host: localhost:{}", receiver.address.port());
    assert_eq!(lines, ["POST /hooks?a=b HTTP/1.1", "content-length: 12", host.as_str(), "webhook-id: msg_1"]);
}

#[tokio::test]
async fn http2_is_spoken_where_it_is_offered_on_one_connection() {
    let authority = Authority::new();
    let receiver = Receiver::tls(authority.leaf("localhost"), &[b"h2", b"http/1.1"]).await;
    let transport = transport_trusting(&authority);
    let url = receiver.url("https", "localhost");
    let first = post(&transport, &url).await;
    assert_eq!(status(&first), Some(200), "{first:?}");
    assert_eq!(first.body, "HTTP/2.0 localhost");
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (transport, url) = (transport.clone(), url.clone());
        posts.spawn(async move { post(&transport, &url).await });
    }
    for exchange in posts.join_all().await {
        assert_eq!(status(&exchange), Some(200), "{exchange:?}");
        assert_eq!(exchange.connection, ConnectionUse::Reused);
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn an_http2_connection_that_is_gone_is_replaced() {
    let authority = Authority::new();
    let receiver = Receiver::tls(authority.leaf("localhost"), &[b"h2"]).await;
    let transport = transport_trusting(&authority);
    let url = receiver.url("https", "localhost");
    assert_eq!(status(&post(&transport, &url).await), Some(200));
    receiver.hang_up();
    let exchange = post(&transport, &url).await;
    assert_eq!(status(&exchange), Some(200), "{exchange:?}");
    assert_eq!(receiver.connections(), 2);
}

/// A stream that was refused or never looked at is repeated; one that failed in the receiver's hands is not.
#[tokio::test]
async fn an_http2_stream_is_repeated_only_if_it_was_not_looked_at() {
    for (reason, expected, connection) in [
        (h2::Reason::REFUSED_STREAM, Some(200), ConnectionUse::Renewed),
        (h2::Reason::INTERNAL_ERROR, None, ConnectionUse::Reused),
    ] {
        let authority = Authority::new();
        let acceptor = acceptor(authority.leaf("localhost"), &[b"h2"]);
        let receiver = Receiver::start(move |stream, _| {
            let acceptor = acceptor.clone();
            async move {
                let tls = acceptor.accept(stream).await.unwrap();
                let mut connection = h2::server::handshake(tls).await.unwrap();
                let mut is_first = true;
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    if std::mem::take(&mut is_first) {
                        respond.send_response(Response::new(()), true).unwrap();
                    } else {
                        respond.send_reset(reason);
                    }
                }
            }
        })
        .await;
        let transport = transport_trusting(&authority);
        let url = receiver.url("https", "localhost");
        assert_eq!(status(&post(&transport, &url).await), Some(200));
        let exchange = post(&transport, &url).await;
        assert_eq!(status(&exchange), expected, "{reason:?}: {exchange:?}");
        assert_eq!(exchange.connection, connection, "{reason:?}");
    }
}

#[tokio::test]
async fn endless_http2_interim_responses_end() {
    let authority = Authority::new();
    let acceptor = acceptor(authority.leaf("localhost"), &[b"h2"]);
    let receiver = Receiver::start(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let mut tls = acceptor.accept(stream).await.unwrap();
            // Settings, their acknowledgement, and then `:status: 103` on the first stream for ever.
            tls.write_all(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0").await.unwrap();
            let mut heard = [0; 24];
            tls.read_exact(&mut heard).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let many = b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103".repeat(1024);
            while tls.write_all(&many).await.is_ok() {}
        }
    })
    .await;
    let transport = transport_trusting(&authority);
    let exchange = post(&transport, &receiver.url("https", "localhost")).await;
    assert!(matches!(exchange.outcome, Outcome::Failed(Fault::Protocol(_))), "{exchange:?}");
    assert!(exchange.duration < TIMEOUTS.total, "{exchange:?}");
}

#[tokio::test]
async fn http1_over_tls_is_kept_too() {
    let authority = Authority::new();
    let receiver = Receiver::tls(authority.leaf("127.0.0.1"), &[b"http/1.1"]).await;
    let transport = transport_trusting(&authority);
    let url = receiver.url("https", "127.0.0.1");
    for _ in 0..3 {
        let exchange = post(&transport, &url).await;
        assert_eq!(exchange.body, "HTTP/1.1 127.0.0.1", "{exchange:?}");
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn a_tls_failure_says_which() {
    let authority = Authority::new();
    let unknown = Authority::new();
    let mut expired = Authority::params("localhost");
    expired.not_before = date_time_ymd(2020, 1, 1);
    expired.not_after = date_time_ymd(2020, 2, 1);
    let mut future = Authority::params("localhost");
    future.not_before = date_time_ymd(4000, 1, 1);
    let mut self_signed = Authority::params("localhost");
    self_signed.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    for (identity, expected, words) in [
        (authority.leaf("other.example"), TlsFault::WrongHost, "is for another host"),
        (unknown.leaf("localhost"), TlsFault::UnknownIssuer, "an authority we do not know"),
        (authority.sign(expired), TlsFault::Expired, "has expired"),
        (authority.sign(future), TlsFault::NotYetValid, "is not valid yet"),
        (Identity::self_signed(self_signed), TlsFault::UnknownIssuer, "is self-signed"),
        (Identity::self_signed(Authority::params("localhost")), TlsFault::UnknownIssuer, "an authority we do not know"),
    ] {
        let receiver = Receiver::tls(identity, &[b"http/1.1"]).await;
        let exchange = post(&transport_trusting(&authority), &receiver.url("https", "localhost")).await;
        assert_eq!(exchange.outcome, Outcome::Failed(Fault::Tls(expected)), "{:?}", exchange.detail);
        let said = exchange.detail.expect("a reason");
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[tokio::test]
async fn plain_http_on_a_tls_port_is_a_handshake_fault() {
    let receiver = Receiver::start(|mut stream, _| async move {
        let mut hello = [0; 64];
        stream.read_exact(&mut hello).await.unwrap();
        let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let exchange = post(&transport(LOOPBACK), &receiver.url("https", "localhost")).await;
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Tls(TlsFault::Handshake)));
    assert!(exchange.detail.unwrap().contains("plain HTTP"));
}

#[tokio::test]
async fn a_handshake_that_stalls_ends_at_the_connect_timeout() {
    let receiver = Receiver::start(|stream, _| async move {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let url = receiver.url("https", "localhost");
    let exchange = transport(LOOPBACK)
        .post(Request {
            url: &url,
            headers: &HeaderMap::new,
            body: Bytes::new(),
            timeouts: Timeouts { connect: Duration::from_millis(100), ..TIMEOUTS },
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await;
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Timeout(TimeoutPhase::Connect)));
    assert!(exchange.duration < Duration::from_secs(1));
}

#[tokio::test]
async fn a_closed_port_is_refused() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let url = parse(&format!("http://{address}/"), LOOPBACK);
    let exchange = post(&transport(LOOPBACK), &url).await;
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Refused));
}

#[tokio::test]
async fn a_forbidden_address_is_never_connected() {
    let receiver = Receiver::plain(usize::MAX).await;
    // Allowed when the endpoint was made, no longer when it is called.
    for host in ["127.0.0.1", "localhost", "a.localhost"] {
        let exchange = post(&transport(&[]), &receiver.url("http", host)).await;
        assert_eq!(exchange.outcome, Outcome::Failed(Fault::Forbidden), "{host}");
        assert!(!exchange.detail.unwrap().contains("127"));
    }
    tokio::task::yield_now().await;
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn localhost_needs_no_name_server() {
    let receiver = Receiver::plain(usize::MAX).await;
    let mut config = TransportConfig::new(guard(LOOPBACK));
    config.name_servers = NameServers::These(Vec::new());
    let transport = Transport::new(config).unwrap();
    for host in ["localhost", "LOCALHOST", "a.localhost", "localhost."] {
        let exchange = post(&transport, &receiver.url("http", host)).await;
        assert_eq!(status(&exchange), Some(200), "{host}: {exchange:?}");
    }
    let elsewhere = parse("http://example.com/", &[]);
    let exchange = post(&transport, &elsewhere).await;
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Dns));
}

#[tokio::test]
async fn every_address_of_a_name_is_vetted() {
    let receiver = Receiver::plain(usize::MAX).await;
    let mut config = TransportConfig::new(guard(LOOPBACK));
    config.name_servers = NameServers::These(vec![name_server().await]);
    let transport = Transport::new(config).unwrap();
    for (host, expected) in [
        ("good.example.com", Ok(200)),
        ("twice.example.com", Ok(200)),
        ("mixed.example.com", Err(Fault::Forbidden)),
        ("private.example.com", Err(Fault::Forbidden)),
        ("none.example.com", Err(Fault::Dns)),
        ("broken.example.com", Err(Fault::Dns)),
        ("silent.example.com", Err(Fault::Timeout(TimeoutPhase::Connect))),
    ] {
        let exchange = post(&transport, &receiver.url("http", host)).await;
        let seen = match exchange.outcome {
            Outcome::Answered(answer) => Ok(answer.status),
            Outcome::Failed(fault) => Err(fault),
        };
        assert_eq!(seen, expected, "{host}: {:?}", exchange.detail);
    }
    assert_eq!(receiver.connections(), 2);
}

/// The redirect is what went wrong then, so it is the outcome; the address behind the name is not told.
#[tokio::test]
async fn a_redirect_to_a_name_with_a_forbidden_address_is_not_followed() {
    let mut config = TransportConfig::new(guard(LOOPBACK));
    config.name_servers = NameServers::These(vec![name_server().await]);
    let transport = Transport::new(config).unwrap();
    for (name, expected) in [("mixed", Ok(true)), ("private", Ok(true)), ("none", Err(Fault::Dns))] {
        let receiver = Receiver::start(move |mut stream, _| async move {
            hear(&mut stream).await;
            let answer = format!(
                "HTTP/1.1 307 Go\r\nlocation: http://{name}.example.com:8080/\r\ncontent-length: 4\r\n\r\nmove"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let exchange = transport
            .post(Request {
                url: &receiver.url("http", "127.0.0.1"),
                headers: &HeaderMap::new,
                body: Bytes::from_static(BODY),
                timeouts: TIMEOUTS,
                redirects_max: 5,
                kept_across_hosts: &[],
                tls: None,
            })
            .await;
        let seen = match exchange.outcome {
            Outcome::Answered(answer) => {
                assert_eq!((answer.status, exchange.body.as_ref()), (307, &b"move"[..]), "{name}");
                assert_eq!(answer.location, Some(format!("http://{name}.example.com:8080/")));
                assert_eq!(exchange.final_url, None, "{name}");
                Ok(answer.redirect_refused)
            }
            Outcome::Failed(fault) => Err(fault),
        };
        assert_eq!(seen, expected, "{name}: {:?}", exchange.detail);
    }
}

#[test]
fn an_unreadable_authority_is_an_error_at_the_start() {
    for pem in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let mut config = TransportConfig::new(guard(&[]));
        config.extra_ca_pem = Some(pem.into());
        assert!(Transport::new(config).is_err(), "{pem:?}");
    }
}

const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(2), first_byte: Duration::from_secs(3), total: Duration::from_secs(3) };

const BODY: &[u8] = b"{\"end\":true}";

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

fn guard(allow: &[&str]) -> AddressGuard {
    AddressGuard::new(allow.iter().map(|net| net.parse().unwrap()).collect())
}

fn transport(allow: &[&str]) -> Transport {
    Transport::new(TransportConfig::new(guard(allow))).unwrap()
}

fn transport_trusting(authority: &Authority) -> Transport {
    let mut config = TransportConfig::new(guard(LOOPBACK));
    config.extra_ca_pem = Some(authority.issuer.pem().into_bytes());
    Transport::new(config).unwrap()
}

fn parse(text: &str, allow: &[&str]) -> EndpointUrl {
    let rules = UrlRules { https_only: false, guard: &guard(allow) };
    EndpointUrl::parse(text, &rules).unwrap()
}

async fn post(transport: &Transport, url: &EndpointUrl) -> Exchange {
    transport
        .post(Request {
            url,
            headers: &HeaderMap::new,
            body: Bytes::from_static(BODY),
            timeouts: TIMEOUTS,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await
}

fn status(exchange: &Exchange) -> Option<u16> {
    match &exchange.outcome {
        Outcome::Answered(answer) => Some(answer.status),
        Outcome::Failed(_) => None,
    }
}

async fn hear(stream: &mut TcpStream) {
    let mut heard = Vec::new();
    while !heard.ends_with(BODY) && stream.read_buf(&mut heard).await.unwrap() > 0 {}
}

struct Receiver {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    closed: Arc<tokio::sync::Notify>,
    hang_up: tokio::sync::watch::Sender<usize>,
}

impl Receiver {
    async fn start<F, S>(serve: S) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        S: Fn(TcpStream, usize) -> F + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            accepted: Arc::default(),
            closed: Arc::default(),
            hang_up: tokio::sync::watch::Sender::new(0),
        };
        let (accepted, closed) = (receiver.accepted.clone(), receiver.closed.clone());
        let mut hang_up = receiver.hang_up.subscribe();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let nth = accepted.fetch_add(1, SeqCst);
                let (served, closed) = (serve(stream, nth), closed.clone());
                let mut hang_up = {
                    hang_up.mark_unchanged();
                    hang_up.clone()
                };
                tokio::spawn(async move {
                    tokio::select! {
                        () = served => {}
                        _ = hang_up.changed() => {}
                    }
                    closed.notify_one();
                });
            }
        });
        receiver
    }

    /// Answers so many requests on a connection and then closes it.
    async fn plain(requests: usize) -> Self {
        Self::start(move |mut stream, _| async move {
            for _ in 0..requests {
                let mut heard = Vec::new();
                while !heard.ends_with(BODY) {
                    if stream.read_buf(&mut heard).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                stream.write_all(OK).await.unwrap();
            }
        })
        .await
    }

    /// A real server that says which version and host it was called with.
    async fn tls(identity: Identity, protocols: &[&[u8]]) -> Self {
        let acceptor = acceptor(identity, protocols);
        Self::start(move |stream, _| {
            let acceptor = acceptor.clone();
            async move {
                let Ok(tls) = acceptor.accept(stream).await else {
                    return;
                };
                let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(tls), service_fn(say_how_called))
                    .await;
            }
        })
        .await
    }

    fn url(&self, scheme: &str, host: &str) -> EndpointUrl {
        let port = self.address.port();
        parse(&format!("{scheme}://{host}:{port}/hooks?a=b"), LOOPBACK)
    }

    fn connections(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    async fn closed(&self) {
        self.closed.notified().await;
    }

    fn hang_up(&self) {
        self.hang_up.send_modify(|count| *count += 1);
    }
}

fn acceptor(identity: Identity, protocols: &[&[u8]]) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate], identity.key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn say_how_called(request: http::Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let host = match request.version() {
        Version::HTTP_2 => request.uri().host().unwrap_or("").to_owned(),
        _ => {
            let host = request.headers()["host"].to_str().unwrap();
            host.split(':').next().unwrap_or("").to_owned()
        }
    };
    let said = format!("{:?} {host}", request.version());
    assert_eq!(request.into_body().collect().await.unwrap().to_bytes(), BODY);
    Ok(Response::new(Full::new(Bytes::from(said))))
}

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

struct Identity {
    certificate: rustls::pki_types::CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn params(host: &str) -> CertificateParams {
        CertificateParams::new(vec![host.to_owned()]).unwrap()
    }

    fn leaf(&self, host: &str) -> Identity {
        self.sign(Self::params(host))
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        Identity {
            certificate: params.signed_by(&key, &self.issuer).unwrap().der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        }
    }
}

impl Identity {
    fn self_signed(params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        Self {
            certificate: params.self_signed(&key).unwrap().der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        }
    }
}

/// Knows a few names and answers by the letter of RFC 1035; it has no IPv6.
async fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            if let Some(answer) = name_server_answer(&buffer[..length]) {
                socket.send_to(&answer, peer).await.unwrap();
            }
        }
    });
    address
}

fn name_server_answer(query: &[u8]) -> Option<Vec<u8>> {
    let label = &query[13..13 + usize::from(query[12])];
    let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let is_ipv4 = query[name_end..name_end + 2] == [0, 1];
    let (code, addresses): (u8, &[[u8; 4]]) = match label.to_ascii_lowercase().as_slice() {
        b"good" => (0, &[[127, 0, 0, 1]]),
        // The first one listens nowhere near this port.
        b"twice" => (0, &[[127, 0, 0, 9], [127, 0, 0, 1]]),
        b"mixed" => (0, &[[127, 0, 0, 1], [10, 0, 0, 1]]),
        b"private" => (0, &[[169, 254, 169, 254]]),
        b"broken" => (2, &[]),
        b"silent" => return None,
        _ => (3, &[]),
    };
    let addresses = if is_ipv4 { addresses } else { &[] };
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]);
    answer.extend(&query[12..name_end + 4]);
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address);
    }
    Some(answer)
}
