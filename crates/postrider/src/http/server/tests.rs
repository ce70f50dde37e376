use super::*;
use axum::{
    extract::Request,
    routing::{get, post},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    time::Instant,
};

fn limits() -> Limits {
    Limits {
        head_time_max: Duration::from_millis(200),
        idle_time_max: Duration::from_millis(600),
        request_time_max: Duration::from_millis(300),
        drain_time_max: Duration::from_secs(2),
        ..Limits::default()
    }
}

/// Seven seconds, which is longer than an idle connection may rest and say goodbye.
async fn long() -> Response {
    let stays = Stays::default();
    let pieces = futures_util::stream::unfold((0, stays.clone()), async |(count, stays)| {
        sleep(Duration::from_millis(500)).await;
        (count < 14).then(|| (Ok::<_, std::convert::Infallible>("piece "), (count + 1, stays)))
    });
    let mut response = Response::new(axum::body::Body::from_stream(pieces));
    response.extensions_mut().insert(stays);
    response
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
        .route("/long", get(long))
        .route(
            "/body",
            post(|request: Request| async {
                super::super::extract::read(request.into_body(), 8).await.map(|body| format!("{} bytes", body.len()))
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
async fn an_answer_that_goes_on_keeps_its_connection() {
    let server = start(limits()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /long HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let read = timeout(Duration::from_secs(30), stream.read_to_string(&mut answer)).await;
    read.expect("the answer ends").expect("it is text");
    assert_eq!(answer.matches("piece ").count(), 14, "{answer}");
    assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
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
