//! Each request keeps its own three limits, and the one that was reached is the one that is named.
//!
//! The clock is virtual, so a minute costs nothing. The sockets are real, and the clock must not run ahead
//! of them: it is held while bytes travel, and let go only while somebody waits on purpose.

use bytes::Bytes;
use http::HeaderMap;
use postrider::transport::{
    AddressGuard, EndpointUrl, Exchange, REDIRECTS_MAX, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Fault, Outcome, TimeoutPhase};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test(start_paused = true)]
async fn a_silent_receiver_is_left_at_the_limit_that_comes_first() {
    for (connect, first_byte, total, limit, at) in [
        (5, 15, 15, TimeoutPhase::FirstByte, 15),
        (1, 2, 60, TimeoutPhase::FirstByte, 2),
        (60, 60, 60, TimeoutPhase::FirstByte, 60),
        (5, 60, 60, TimeoutPhase::FirstByte, 60),
        (5, 60, 59, TimeoutPhase::Total, 59),
        (5, 15, 3, TimeoutPhase::Total, 3),
        (60, 60, 1, TimeoutPhase::Total, 1),
        // Nobody may ask for more than a minute, nor make the arithmetic fall over.
        (61, 61, 61, TimeoutPhase::FirstByte, 60),
        (u64::MAX, u64::MAX, u64::MAX, TimeoutPhase::FirstByte, 60),
    ] {
        let receiver = Receiver::start(vec![Turn::Silence]).await;
        let exchange = receiver.post("http", timeouts(connect, first_byte, total)).await;
        assert_ended(&exchange, limit, at);
        assert!(exchange.detail.unwrap().starts_with("no response within the"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_stands_ends_at_the_limit_that_comes_first() {
    for (connect, first_byte, total, limit, at) in [
        (5, 15, 15, TimeoutPhase::Connect, 5),
        (60, 59, 60, TimeoutPhase::FirstByte, 59),
        (59, 60, 60, TimeoutPhase::Connect, 59),
        (20, 10, 30, TimeoutPhase::FirstByte, 10),
        (20, 30, 10, TimeoutPhase::Total, 10),
        (u64::MAX, 15, 15, TimeoutPhase::FirstByte, 15),
    ] {
        // What comes in is the start of a TLS handshake, and nothing answers it.
        let receiver = Receiver::start(vec![Turn::Silence]).await;
        let exchange = receiver.post("https", timeouts(connect, first_byte, total)).await;
        assert_ended(&exchange, limit, at);
        assert!(exchange.detail.unwrap().starts_with("no connection within the"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_within_a_long_limit_is_heard() {
    let receiver = Receiver::start(vec![Turn::After(Duration::from_secs(59), OK)]).await;
    let exchange = receiver.post("http", timeouts(5, 60, 60)).await;
    assert_eq!(status(&exchange), Some(200), "{exchange:?}");
    assert_took(&exchange, 59);
}

#[tokio::test(start_paused = true)]
async fn an_answer_after_the_limit_is_none() {
    let receiver = Receiver::start(vec![Turn::After(Duration::from_secs(11), OK)]).await;
    let exchange = receiver.post("http", timeouts(5, 10, 60)).await;
    assert_ended(&exchange, TimeoutPhase::FirstByte, 10);
}

#[tokio::test(start_paused = true)]
async fn each_hop_has_its_own_first_byte_and_all_share_the_total() {
    let slow = |seconds, said| Turn::After(Duration::from_secs(seconds), said);
    let receiver = Receiver::start(vec![slow(8, REDIRECT), slow(8, REDIRECT_ON), slow(8, OK)]).await;
    let exchange = receiver.post("http", timeouts(5, 10, 30)).await;
    assert_eq!(status(&exchange), Some(200), "{exchange:?}");
    assert_took(&exchange, 24);

    let receiver = Receiver::start(vec![slow(8, REDIRECT), slow(8, REDIRECT_ON), slow(8, OK)]).await;
    let exchange = receiver.post("http", timeouts(5, 10, 20)).await;
    assert_ended(&exchange, TimeoutPhase::Total, 20);
    assert_eq!(exchange.detail.as_deref(), Some("after 2 redirects: no response within the total timeout"));

    let receiver = Receiver::start(vec![slow(8, REDIRECT), Turn::Silence]).await;
    let exchange = receiver.post("http", timeouts(5, 10, 60)).await;
    assert_ended(&exchange, TimeoutPhase::FirstByte, 18);
    assert_eq!(exchange.detail.as_deref(), Some("after 1 redirect: no response within the first-byte timeout"));
}

#[derive(Clone, Copy)]
enum Turn {
    After(Duration, &'static [u8]),
    Silence,
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const REDIRECT: &[u8] = b"HTTP/1.1 307 Go\r\nlocation: /1\r\ncontent-length: 0\r\n\r\n";
const REDIRECT_ON: &[u8] = b"HTTP/1.1 307 Go\r\nlocation: /2\r\ncontent-length: 0\r\n\r\n";

fn timeouts(connect: u64, first_byte: u64, total: u64) -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(connect),
        first_byte: Duration::from_secs(first_byte),
        total: Duration::from_secs(total),
    }
}

fn status(exchange: &Exchange) -> Option<u16> {
    match &exchange.outcome {
        Outcome::Answered(answer) => Some(answer.status),
        Outcome::Failed(_) => None,
    }
}

fn assert_ended(exchange: &Exchange, limit: TimeoutPhase, seconds: u64) {
    assert_eq!(exchange.outcome, Outcome::Failed(Fault::Timeout(limit)), "{exchange:?}");
    assert_took(exchange, seconds);
}

/// Virtual timers are rounded up to the millisecond, once for each wait.
fn assert_took(exchange: &Exchange, seconds: u64) {
    let (least, most) = (Duration::from_secs(seconds), Duration::from_millis(seconds * 1_000 + 10));
    assert!((least..=most).contains(&exchange.duration), "{:?} is not {least:?}", exchange.duration);
}

/// Takes its turns one after the other, on one connection or several.
struct Receiver {
    address: SocketAddr,
}

impl Receiver {
    /// From here on the clock stands still, except in the receiver's turns.
    async fn start(turns: Vec<Turn>) -> Self {
        let clock = Clock::default();
        clock.hold();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut turns = turns.into_iter();
            let (mut stream, _) = listener.accept().await.unwrap();
            while hear(&mut stream).await {
                match turns.next().expect("no more requests than turns") {
                    Turn::After(wait, said) => {
                        clock.release();
                        tokio::time::sleep(wait).await;
                        clock.hold();
                        // Too late, perhaps, and nobody is there.
                        let _ = stream.write_all(said).await;
                    }
                    Turn::Silence => {
                        clock.release();
                        std::future::pending::<()>().await;
                    }
                }
            }
        });
        Self { address }
    }

    async fn post(&self, scheme: &str, timeouts: Timeouts) -> Exchange {
        let guard = AddressGuard::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let rules = UrlRules { https_only: false, guard: &guard };
        let url = EndpointUrl::parse(&format!("{scheme}://{}/hooks", self.address), &rules).unwrap();
        Transport::new(TransportConfig::new(guard.clone()))
            .unwrap()
            .post(Request {
                url: &url,
                headers: &HeaderMap::new,
                body: Bytes::new(),
                timeouts,
                redirects_max: REDIRECTS_MAX,
                kept_across_hosts: &[],
                tls: None,
            })
            .await
    }
}

/// A whole request, or the first bytes of something else.
async fn hear(stream: &mut TcpStream) -> bool {
    let mut heard = Vec::new();
    loop {
        if stream.read_buf(&mut heard).await.unwrap_or(0) == 0 {
            return false;
        }
        if heard.ends_with(b"\r\n\r\n") || !heard.starts_with(b"POST") {
            return true;
        }
    }
}

/// tokio moves its virtual clock when nothing else is left to do, but not while a blocking task runs.
#[derive(Clone, Default)]
struct Clock {
    held: Arc<Mutex<Option<mpsc::Sender<()>>>>,
}

impl Clock {
    fn hold(&self) {
        let (release, released) = mpsc::channel::<()>();
        *self.held.lock().unwrap() = Some(release);
        drop(tokio::task::spawn_blocking(move || released.recv()));
    }

    fn release(&self) {
        *self.held.lock().unwrap() = None;
    }
}
