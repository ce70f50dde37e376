//! No receiver can hurt us: whatever it answers, an attempt ends in time, keeps little, and says what
//! happened.

use bytes::Bytes;
use http::HeaderMap;
use postrider::transport::{
    AddressGuard, BODY_KEPT_MAX, ConnectionUse, EndpointUrl, Exchange, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Control, Fault, Outcome, TimeoutPhase};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// What a receiver does after it has heard the request. When it is done, it closes.
#[derive(Clone)]
enum Then {
    Close,
    /// Says it again until nobody listens.
    Repeat(&'static str),
    /// The same, slowly.
    Drip(&'static str),
    /// Keeps the connection open.
    Hold,
    Reset,
}
use Then::{Close, Drip, Hold, Repeat, Reset};

#[derive(Debug, PartialEq)]
enum Seen {
    /// This status, and a body that is whole.
    Status(u16),
    /// This status, and a body that ended against its framing.
    Broken(u16),
    /// This status, and only a part of the body.
    Cut(u16),
    Protocol,
    Reset,
    Late,
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[rustfmt::skip]
fn answers() -> Vec<(&'static str, String, Then, Seen)> {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}");
    let chunked = |rest: &str| format!("{CHUNKED}{rest}");
    let early = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let headers = |count: usize| {
        let lines: String = (0..count).map(|n| format!("x-{n}: y\r\n")).collect();
        ok(&format!("{lines}content-length: 0\r\n\r\n"))
    };
    let one_mebi = "a".repeat(1 << 20);
    vec![
        ("a plain 200", ok("content-length: 2\r\n\r\nok"), Hold, Seen::Status(200)),
        ("endless 100 Continue", String::new(), Repeat("HTTP/1.1 100 Continue\r\n\r\n"), Seen::Protocol),
        ("endless 103", String::new(), Repeat("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"), Seen::Protocol),
        ("three 103, then 200", early.repeat(3) + &ok("content-length: 0\r\n\r\n"), Hold, Seen::Status(200)),
        ("204 with a body", "HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello".into(), Hold, Seen::Status(204)),
        ("304 with a body", "HTTP/1.1 304 No\r\ncontent-length: 5\r\n\r\nhello".into(), Hold, Seen::Status(304)),
        ("HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nhello".into(), Close, Seen::Status(200)),
        ("bare LF", "HTTP/1.1 200 OK\ncontent-length: 2\n\nok".into(), Hold, Seen::Status(200)),
        ("101", "HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".into(), Hold, Seen::Status(101)),
        ("status 099", "HTTP/1.1 099 Odd\r\n\r\n".into(), Hold, Seen::Protocol),
        ("status 1000", "HTTP/1.1 1000 Odd\r\n\r\n".into(), Hold, Seen::Protocol),
        ("status 600", "HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n".into(), Hold, Seen::Status(600)),
        ("status 999", "HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n".into(), Hold, Seen::Status(999)),
        ("ICY", "ICY 200 OK\r\n\r\n".into(), Hold, Seen::Protocol),
        ("raw HTML", "<html><body>hello</body></html>".into(), Hold, Seen::Protocol),
        ("an HTTP/2 frame", "\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64".into(), Hold, Seen::Protocol),
        ("100 headers", headers(99), Hold, Seen::Status(200)),
        ("101 headers", headers(100), Hold, Seen::Protocol),
        ("a header of 1 MiB", ok(&format!("x: {one_mebi}\r\n\r\n")), Hold, Seen::Protocol),
        ("an endless header line", ok("x: "), Repeat("aaaaaaaaaaaaaaaa"), Seen::Protocol),
        ("endless headers", ok(""), Repeat("x: y\r\n"), Seen::Protocol),
        ("a dripped header", ok("x: "), Drip("a"), Seen::Late),
        ("a dripped body", ok("content-length: 10000\r\n\r\n"), Drip("a"), Seen::Cut(200)),
        ("a dripped error", "HTTP/1.1 500 No\r\ncontent-length: 10000\r\n\r\n".into(), Drip("a"), Seen::Cut(500)),
        ("a body that never starts", ok("content-length: 10\r\n\r\n"), Hold, Seen::Cut(200)),
        ("length 10^20", ok("content-length: 100000000000000000000\r\n\r\n"), Hold, Seen::Protocol),
        ("length -5", ok("content-length: -5\r\n\r\nhello"), Hold, Seen::Protocol),
        ("length +5", ok("content-length: +5\r\n\r\nhello"), Hold, Seen::Protocol),
        ("two lengths", ok("content-length: 5\r\ncontent-length: 6\r\n\r\nhello"), Hold, Seen::Protocol),
        ("length and chunked", ok("content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"), Hold, Seen::Status(200)),
        ("a chunk size that overflows", chunked("fffffffffffffffff\r\nabc"), Hold, Seen::Broken(200)),
        ("a chunk size that is none", chunked("zz\r\nabc"), Hold, Seen::Broken(200)),
        ("an endless chunk extension", chunked("1;"), Repeat("aaaaaaaaaaaaaaaa"), Seen::Broken(200)),
        ("endless trailers", chunked("1\r\na\r\n0\r\n"), Repeat("x: y\r\n"), Seen::Broken(200)),
        ("an endless body by length", ok("content-length: 1000000000000\r\n\r\n"), Repeat("aaaaaaaaaaaaaaaa"), Seen::Cut(200)),
        ("an endless body by chunks", chunked(""), Repeat("10\r\naaaaaaaaaaaaaaaa\r\n"), Seen::Cut(200)),
        ("an endless body until close", "HTTP/1.1 500 No\r\n\r\n".into(), Repeat("aaaaaaaaaaaaaaaa"), Seen::Cut(500)),
        ("a body of 20 KiB", ok(&format!("content-length: 20480\r\n\r\n{}", &one_mebi[..20480])), Hold, Seen::Cut(200)),
        ("a body cut off", ok("content-length: 10\r\n\r\nabc"), Close, Seen::Broken(200)),
        ("a body reset", ok("content-length: 10\r\n\r\nabc"), Reset, Seen::Broken(200)),
        ("an error's body cut off", "HTTP/1.1 500 No\r\ncontent-length: 10\r\n\r\nabc".into(), Close, Seen::Broken(500)),
        ("a NUL in a header", ok("x: a\0b\r\n\r\n"), Hold, Seen::Protocol),
        ("a folded header", ok("x: a\r\n b\r\n\r\n"), Hold, Seen::Protocol),
        ("a space before the colon", ok("x : a\r\n\r\n"), Hold, Seen::Protocol),
        ("closed without a byte", String::new(), Close, Seen::Reset),
        ("closed in the head", ok("content-le"), Close, Seen::Reset),
        ("reset without a byte", String::new(), Reset, Seen::Reset),
        ("reset in the head", ok("content-le"), Reset, Seen::Reset),
        ("reads and never answers", String::new(), Hold, Seen::Late),
        ("a redirect", "HTTP/1.1 308 Go\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n".into(), Hold, Seen::Status(308)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_receiver_answers_an_attempt_ends_well() {
    let transport = transport();
    for (name, answer, then, expected) in answers() {
        let receiver = receiver(answer, then).await;
        let started = Instant::now();
        let exchange = post(&transport, receiver).await;
        let took = started.elapsed();
        assert!(took < TIMEOUTS.total + SLACK, "{name}: took {took:?}");
        assert!(exchange.body.len() <= BODY_KEPT_MAX, "{name}");
        assert_eq!(seen(&exchange), expected, "{name}: {:?}", exchange.detail);

        let after = post(&transport, good_receiver().await).await;
        assert_eq!(seen(&after), Seen::Status(200), "after {name}");
    }
}

#[tokio::test]
async fn a_receiver_that_resets_before_it_reads_is_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { reset(&listener.accept().await.unwrap().0) });
    assert_eq!(seen(&post(&transport(), address).await), Seen::Reset);
}

#[tokio::test]
async fn a_receiver_that_never_reads_is_left_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = url(listener.local_addr().unwrap());
    let started = Instant::now();
    let exchange = transport()
        .post(Request {
            url: &url,
            headers: &HeaderMap::new,
            body: Bytes::from(vec![b'a'; 16 << 20]),
            timeouts: TIMEOUTS,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await;
    assert_eq!(seen(&exchange), Seen::Late);
    assert!(started.elapsed() < TIMEOUTS.total + SLACK);
}

#[tokio::test]
async fn an_early_refusal_of_a_large_body_is_heard() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = url(listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        std::future::pending::<()>().await;
    });
    let exchange = transport()
        .post(Request {
            url: &url,
            headers: &HeaderMap::new,
            body: Bytes::from(vec![b'a'; 16 << 20]),
            timeouts: TIMEOUTS,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await;
    assert_eq!(seen(&exchange), Seen::Status(413));
}

#[tokio::test]
async fn a_connection_of_doubtful_state_is_not_used_again() {
    for answer in [
        "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let transport = transport();
        let receiver = receiver(answer, Hold).await;
        for _ in 0..2 {
            let exchange = post(&transport, receiver).await;
            assert!(matches!(seen(&exchange), Seen::Status(_)), "{answer:?}: {exchange:?}");
            assert_eq!(exchange.connection, ConnectionUse::Fresh, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn what_steers_us_is_handed_on() {
    let answer = "HTTP/1.1 503 Busy\r\nretry-after: 120\r\nretry-after: 240\r\nwebhook-delivery: disable\r\n\
                  location: https://no.redirect/\r\ncontent-length: 4\r\n\r\nbusy";
    let exchange = post(&transport(), receiver(answer, Hold).await).await;
    assert_eq!(exchange.headers["webhook-delivery"], "disable");
    assert_eq!(exchange.body, "busy");
    let Outcome::Answered(answer) = exchange.outcome else { panic!("{:?}", exchange.outcome) };
    assert_eq!(answer.retry_after, [b"120".to_vec(), b"240".to_vec()]);
    assert_eq!(answer.location, None);
    assert_eq!(answer.control, Some(Control::Disable));
}

#[tokio::test]
async fn a_receiver_may_ask_for_no_more() {
    let (disable, abort) = (Some(Control::Disable), Some(Control::AbortMessage));
    for (head, expected) in [
        ("", None),
        ("webhook-delivery: disable\r\n", disable),
        ("Webhook-Delivery:  DISABLE \r\n", disable),
        ("webhook-delivery: abort-message\r\n", abort),
        ("webhook-delivery: Abort-Message\t\r\n", abort),
        ("webhook-delivery: abort-message\r\nwebhook-delivery: disable\r\n", disable),
        ("webhook-delivery: disable\r\nwebhook-delivery: abort-message\r\n", disable),
        ("webhook-delivery: what\r\nwebhook-delivery: abort-message\r\n", abort),
        ("webhook-delivery:\r\n", None),
        ("webhook-delivery: disabled\r\n", None),
        ("webhook-delivery: abort message\r\n", None),
        ("webhook-delivery: pause\r\n", None),
        ("x-webhook-delivery: disable\r\n", None),
    ] {
        for status in [200, 410, 500] {
            let said = format!("HTTP/1.1 {status} Word\r\n{head}content-length: 0\r\n\r\n");
            let exchange = post(&transport(), receiver(said, Hold).await).await;
            let Outcome::Answered(answer) = exchange.outcome else { panic!("{head:?}: {:?}", exchange.outcome) };
            assert_eq!(answer.control, expected, "{status} {head:?}");
        }
    }
}

#[tokio::test]
async fn a_compressed_body_is_kept_as_it_came() {
    // The beginning of what gzip makes of 64 KiB of one letter.
    let packed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x81\x00\x00\x00\x00\x80\x20\xd6\xfd\x25\x16\xa9";
    let mut answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 24\r\n\r\n".to_vec();
    answer.extend(packed);
    let exchange = post(&transport(), receiver(answer, Hold).await).await;
    assert_eq!(seen(&exchange), Seen::Status(200));
    assert_eq!(exchange.body, packed.as_slice());
}

fn seen(exchange: &Exchange) -> Seen {
    match &exchange.outcome {
        Outcome::Answered(answer) if exchange.body_broken => Seen::Broken(answer.status),
        Outcome::Answered(answer) if exchange.body_cut => Seen::Cut(answer.status),
        Outcome::Answered(answer) => Seen::Status(answer.status),
        Outcome::Failed(Fault::Protocol(_)) => Seen::Protocol,
        Outcome::Failed(Fault::Reset) => Seen::Reset,
        Outcome::Failed(Fault::Timeout(TimeoutPhase::FirstByte)) => Seen::Late,
        Outcome::Failed(other) => panic!("{other:?}: {:?}", exchange.detail),
    }
}

/// Short, so that waiting for one is short; the slack is for a machine that does other work, too.
const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_millis(300),
    first_byte: Duration::from_millis(300),
    total: Duration::from_millis(300),
};
const SLACK: Duration = Duration::from_millis(300);

const BODY: &[u8] = b"{\"end\":true}";

fn guard() -> AddressGuard {
    AddressGuard::new(vec!["127.0.0.0/8".parse().unwrap()])
}

fn transport() -> Transport {
    Transport::new(TransportConfig::new(guard())).unwrap()
}

fn url(receiver: SocketAddr) -> EndpointUrl {
    let rules = UrlRules { https_only: false, guard: &guard() };
    EndpointUrl::parse(&format!("http://{receiver}/hooks"), &rules).unwrap()
}

async fn post(transport: &Transport, receiver: SocketAddr) -> Exchange {
    transport
        .post(Request {
            url: &url(receiver),
            headers: &HeaderMap::new,
            body: Bytes::from_static(BODY),
            timeouts: TIMEOUTS,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await
}

async fn good_receiver() -> SocketAddr {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    receiver(answer, Hold).await
}

/// Answers the same on every connection, once.
async fn receiver(answer: impl Into<Vec<u8>>, then: Then) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = answer.into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // It fails when we hang up, and that is the point.
            tokio::spawn(play(stream, answer.clone(), then.clone()));
        }
    });
    address
}

async fn play(mut stream: TcpStream, answer: Vec<u8>, then: Then) -> std::io::Result<()> {
    let mut heard = Vec::new();
    while !heard.ends_with(BODY) && stream.read_buf(&mut heard).await? > 0 {}
    stream.write_all(&answer).await?;
    match then {
        Close => Ok(()),
        Repeat(text) => {
            let many = text.repeat(1024);
            loop {
                stream.write_all(many.as_bytes()).await?;
            }
        }
        Drip(text) => loop {
            stream.write_all(text.as_bytes()).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        },
        Hold => std::future::pending().await,
        Reset => {
            // A reset overtakes what was said before it; let that be read first.
            tokio::time::sleep(Duration::from_millis(20)).await;
            reset(&stream);
            Ok(())
        }
    }
}

fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}
