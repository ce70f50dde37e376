//! Receivers that are down, slow, hanging, broken or unwilling: each delivery is settled as its outcome says, and
//! nobody else's waits for it.
//!
//! One run of about twenty seconds: the timeout of fifteen is a real one, and everything else happens meanwhile.

mod support;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use support::{
    api::Client,
    eventually,
    receiver::{Answer, Arrival, Receiver},
    server::Server,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_receivers_are_settled_by_the_rules_and_slow_nobody_down() {
    let server = Server::start();
    let mut client = Client::new(server.address(), server.token());
    client.create("/api/v1/app", &json!({ "name": "bad", "uid": "bad" })).await;
    let mut cases = cases().await;
    for case in &cases {
        let endpoint = json!({ "url": case.url, "uid": case.name });
        client.create("/api/v1/app/bad/endpoint", &endpoint).await;
    }
    let crowd = Crowd::gather(&mut client).await;
    let message = client.create("/api/v1/app/bad/msg", &json!({ "eventType": "a.b", "payload": { "n": 1 } })).await;
    let message = message["id"].as_str().expect("an id").to_owned();
    crowd.send(&server).await;

    // What ends soon first; whatever takes fifteen seconds goes on meanwhile.
    cases.sort_by_key(|case| case.lasts);
    for case in &mut cases {
        let first = attempt(&mut client, &message, case.name, 1).await;
        case.check_first(&first);
        case.receiver.heal();
    }
    crowd.check_that_the_healthy_did_not_wait().await;
    assert!(is_disabled(&mut client, "gone").await, "410 says that the endpoint is no more");
    for case in &cases {
        case.check_end(&mut client, &message).await;
        if case.name != "gone" {
            assert!(!is_disabled(&mut client, case.name).await, "{}", case.name);
        }
    }
    crowd.check_that_all_arrived_in_the_end(&mut client).await;
    eventually("no request in flight", async || {
        let metrics = client.metrics().await;
        metrics.lines().any(|line| line == "postrider_requests_in_flight 0").then_some(())
    })
    .await;
}

/// An endpoint that does something wrong with the first request, and nothing after that.
struct Case {
    name: &'static str,
    url: String,
    receiver: Bad,
    status: u16,
    class: &'static str,
    rule: &'static str,
    next: Next,
    lasts: Range,
}

/// In milliseconds.
type Range = (u64, u64);

enum Next {
    /// Counted from the end of the first attempt.
    Retried(Range),
    Dead,
    Delivered,
}

enum Bad {
    /// Nothing listens. The socket keeps the port from others.
    Down {
        address: SocketAddr,
        reserved: Option<Socket>,
        risen: Option<Receiver>,
    },
    Scripted(Receiver),
    /// Speaks in bytes.
    Raw {
        address: SocketAddr,
        requests: Arc<Mutex<Vec<Request>>>,
    },
}

#[derive(Clone, Debug)]
struct Request {
    at: Instant,
    head: String,
    body: Vec<u8>,
}

/// The first delay of the default schedule, 5 s, with equal jitter; times are kept in whole milliseconds.
const FIRST_RETRY: Next = Next::Retried((2_498, 5_002));
/// Soon enough not to have waited for anything.
const SOON: Range = (0, 5_000);
const TIMEOUT: Range = (15_000, 16_500);

async fn cases() -> Vec<Case> {
    let scripted = |first: Answer| {
        let receiver = Receiver::start();
        receiver.script("/", [first], Answer::Status(204));
        Bad::Scripted(receiver)
    };
    let with = |status, name, value: &str| Answer::Full {
        status,
        headers: vec![(name, value.to_owned())],
        body: "why".into(),
    };
    let case = |name, receiver: Bad, (status, class, rule), next, lasts| Case {
        name,
        url: receiver.url(),
        receiver,
        status,
        class,
        rule,
        next,
        lasts,
    };
    let connection = (0, "transient", "connection");
    let timeout = (0, "transient", "timeout");
    let delivered = (200, "delivered", "success");
    let in_the_head = "HTTP/1.1 200 OK\r\ncontent-le";
    let in_the_body = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
    vec![
        case("down", down(), connection, FIRST_RETRY, SOON),
        case(
            "slow",
            scripted(Answer::Status(200).after(Duration::from_secs(1))),
            delivered,
            Next::Delivered,
            (1_000, 5_000),
        ),
        case("hanging", scripted(Answer::Hang), timeout, FIRST_RETRY, TIMEOUT),
        case("reset-before", scripted(Answer::Reset), connection, FIRST_RETRY, SOON),
        case("reset-in-head", raw(in_the_head, Then::Reset).await, connection, FIRST_RETRY, SOON),
        case("reset-in-body", raw(in_the_body, Then::Reset).await, delivered, Next::Delivered, SOON),
        case("dripping-head", raw("HTTP/1.1 200 OK\r\nx: ", Then::Drip).await, timeout, FIRST_RETRY, TIMEOUT),
        case(
            "dripping-body",
            raw("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", Then::Drip).await,
            delivered,
            Next::Delivered,
            SOON,
        ),
        case("broken", scripted(Answer::Status(500)), (500, "transient", "server-error"), FIRST_RETRY, SOON),
        case("missing", scripted(Answer::Status(404)), (404, "ambiguous", "not-found"), FIRST_RETRY, SOON),
        case("unwilling", scripted(Answer::Status(400)), (400, "permanent", "client-error"), Next::Dead, SOON),
        case(
            "moved",
            scripted(with(301, "location", "https://elsewhere.example/new")),
            (301, "permanent", "redirect"),
            Next::Dead,
            SOON,
        ),
        case("gone", scripted(Answer::Status(410)), (410, "gone", "gone"), Next::Dead, SOON),
        // Seven seconds at least, and then what chance adds to our own delay.
        case(
            "busy",
            scripted(with(429, "retry-after", "7")),
            (429, "transient", "asked-to-wait"),
            Next::Retried((6_998, 9_502)),
            SOON,
        ),
        // A wish for less than our own delay does not hurry us.
        case("hasty", scripted(with(503, "retry-after", "1")), (503, "transient", "server-error"), FIRST_RETRY, SOON),
    ]
}

impl Case {
    fn check_first(&self, attempt: &Attempt) {
        let (name, verdict) = (self.name, &attempt.verdict);
        assert_eq!(
            (attempt.response_status_code, &*verdict.class, &*verdict.rule),
            (self.status, self.class, self.rule),
            "{name}"
        );
        let (at_least, at_most) = self.lasts;
        let lasted = attempt.response_duration_ms;
        assert!((at_least..=at_most).contains(&lasted), "{name} lasted {lasted} ms");
        let ended = attempt.timestamp + SignedDuration::from_millis(lasted as i64);
        let wait = verdict.next_attempt.map(|next| next.duration_since(ended).as_millis());
        match self.next {
            Next::Retried((at_least, at_most)) => {
                let wait = wait.unwrap_or_else(|| panic!("{name} is not tried again: {verdict:?}"));
                assert!((i128::from(at_least)..=i128::from(at_most)).contains(&wait), "{name} waits {wait} ms");
                assert_eq!((attempt.status, &verdict.death), (FAIL, &None), "{name}");
                let delay = verdict.delay.as_ref().expect("a wait has its parts");
                assert_eq!(delay.backoff_ms, 5_000, "{name}");
                let base = delay.retry_after_ms.filter(|wish| *wish > delay.backoff_ms).unwrap_or(delay.backoff_ms);
                assert_eq!(delay.wait_ms.cast_signed(), base.cast_signed() + delay.jitter_ms, "{name}: {delay:?}");
                assert!((-2_500..=2_500).contains(&delay.jitter_ms), "{name}: {delay:?}");
            }
            Next::Dead => {
                assert_eq!((attempt.status, wait, verdict.death.as_deref()), (FAIL, None, Some("permanent")), "{name}");
            }
            Next::Delivered => assert_eq!((attempt.status, wait, &verdict.death), (SUCCESS, None, &None), "{name}"),
        }
        match name {
            "busy" => assert_eq!(verdict.delay.as_ref().and_then(|delay| delay.retry_after_ms), Some(7_000)),
            "moved" => assert!(attempt.response.contains("https://elsewhere.example/new"), "{}", attempt.response),
            _ => {}
        }
    }

    /// What was to be tried again arrived by that, no earlier than announced; the rest was left alone.
    async fn check_end(&self, client: &mut Client, message: &str) {
        let name = self.name;
        let expected = match self.next {
            Next::Retried(_) => {
                let first = attempt(client, message, name, 1).await;
                let second = attempt(client, message, name, 2).await;
                assert_eq!((second.response_status_code, second.status), (204, SUCCESS), "{name}");
                let due = first.verdict.next_attempt.expect("checked before");
                assert!(second.timestamp >= due, "{name}: {:?} is before {due}", second.timestamp);
                2
            }
            Next::Dead | Next::Delivered => 1,
        };
        assert_eq!(attempts(client, message, name).await.len(), expected, "{name}");
        // One that is down sees only the second.
        let unseen = usize::from(matches!(self.receiver, Bad::Down { .. }));
        let requests = self.receiver.requests();
        assert_eq!(requests.len(), expected - unseen, "{name}: {requests:?}");
        for (request, number) in requests.iter().zip(1 + unseen..) {
            let has = |line: &str| request.head.lines().any(|it| it.eq_ignore_ascii_case(line));
            assert!(has(&format!("webhook-id: {message}")), "{name}: {request:?}");
            assert!(has(&format!("webhook-attempt: {number}")), "{name}: {request:?}");
            assert_eq!(request.body, requests[0].body, "{name}");
        }
        if let (Next::Retried((at_least, _)), [first, second]) = (&self.next, &requests[..]) {
            // From the first request's beginning, which is before the attempt's end.
            assert!(second.at - first.at >= Duration::from_millis(*at_least), "{name}: {requests:?}");
        }
        let status = destination(client, message, name).await;
        assert_eq!(status, if matches!(self.next, Next::Dead) { FAIL } else { SUCCESS }, "{name}");
    }
}

impl Bad {
    fn url(&self) -> String {
        match self {
            Self::Down { address, .. } | Self::Raw { address, .. } => format!("http://{address}/"),
            Self::Scripted(receiver) => receiver.url("/"),
        }
    }

    /// After the first request all but one that is down are well by themselves.
    fn heal(&mut self) {
        if let Self::Down { address, reserved, risen } = self {
            drop(reserved.take());
            *risen = Some(Receiver::start_at(*address));
        }
    }

    fn requests(&self) -> Vec<Request> {
        let of = |receiver: &Receiver| receiver.arrivals().iter().map(Request::of).collect();
        match self {
            Self::Down { risen, .. } => risen.as_ref().map(of).unwrap_or_default(),
            Self::Scripted(receiver) => of(receiver),
            Self::Raw { requests, .. } => requests.lock().expect("no one panics while holding it").clone(),
        }
    }
}

impl Request {
    fn of(arrival: &Arrival) -> Self {
        let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            format!("{name}: {}\r\n", value.to_str().expect("a header of text"))
        };
        let head = arrival.headers.iter().map(line).collect();
        Self { at: arrival.opened, head, body: arrival.body.to_vec() }
    }
}

fn down() -> Bad {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    // So that the one that comes up in its place can have the port.
    socket.set_reuse_address(true).expect("an option of sockets");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a port");
    let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("a bound socket");
    Bad::Down { address, reserved: Some(socket), risen: None }
}

#[derive(Clone, Copy)]
enum Then {
    Reset,
    /// A byte every now and then, until nobody listens.
    Drip,
}

/// Answers the first request with these bytes and what then comes, and every other with 204.
async fn raw(bytes: &'static str, then: Then) -> Bad {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("a bound socket");
    let requests = Arc::<Mutex<Vec<Request>>>::default();
    let log = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_raw(stream, bytes, then, Arc::clone(&log)));
        }
    });
    Bad::Raw { address, requests }
}

async fn answer_raw(mut stream: TcpStream, bytes: &str, then: Then, log: Arc<Mutex<Vec<Request>>>) {
    // A connection that ends without a request is not one.
    let Some(request) = read_request(&mut stream).await else { return };
    let is_first = {
        let mut log = log.lock().expect("no one panics while holding it");
        log.push(request);
        log.len() == 1
    };
    if !is_first {
        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        return;
    }
    // What the sender makes of it is seen elsewhere.
    let _ = stream.write_all(bytes.as_bytes()).await;
    match then {
        Then::Reset => {
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
        Then::Drip => {
            while stream.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let at = Instant::now();
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(read[..end].to_vec()).expect("a head of text");
        let length = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok();
        let length = head.lines().find_map(length).expect("a request with a length");
        if read.len() >= end + 4 + length {
            return Some(Request { at, head, body: read[end + 4..].to_vec() });
        }
    }
}

/// One healthy endpoint among three that hang, each of them owed every message.
struct Crowd {
    receiver: Receiver,
}

const HEALTHY: &str = "/healthy";
const HANGING: [&str; 3] = ["/hanging-1", "/hanging-2", "/hanging-3"];
const MESSAGES: usize = 200;
const IN_FLIGHT_MAX: usize = 10;

impl Crowd {
    async fn gather(client: &mut Client) -> Self {
        let receiver = Receiver::start();
        // As long as a request takes to be counted with others.
        receiver.always(HEALTHY, Answer::Status(204).after(Duration::from_millis(10)));
        client.create("/api/v1/app", &json!({ "name": "crowd", "uid": "crowd" })).await;
        for path in HANGING {
            receiver.script(path, vec![Answer::Hang; IN_FLIGHT_MAX], Answer::Status(204));
        }
        for path in [HEALTHY].into_iter().chain(HANGING) {
            let endpoint = json!({ "url": receiver.url(path), "uid": &path[1..] });
            client.create("/api/v1/app/crowd/endpoint", &endpoint).await;
        }
        Self { receiver }
    }

    /// The first messages fill every slot of those that hang before the rest is sent.
    async fn send(&self, server: &Server) {
        let mut client = Client::new(server.address(), server.token());
        for number in 0..MESSAGES {
            if number == IN_FLIGHT_MAX {
                for path in HANGING {
                    self.receiver.wait_for(path, IN_FLIGHT_MAX).await;
                }
            }
            let message = json!({ "eventType": "a.b", "payload": { "number": number } });
            client.create("/api/v1/app/crowd/msg", &message).await;
        }
        self.receiver.wait_for(HEALTHY, MESSAGES).await;
    }

    async fn check_that_the_healthy_did_not_wait(&self) {
        let healthy = self.receiver.arrivals_at(HEALTHY);
        assert_eq!(healthy.len(), MESSAGES, "each one once");
        let last = healthy.iter().map(|arrival| arrival.opened).max().expect("some came");
        for path in HANGING {
            let first_end = eventually("a request that hung to time out", async || {
                self.receiver.arrivals_at(path).iter().filter_map(end).min()
            })
            .await;
            let hanging = self.receiver.arrivals_at(path);
            assert!(last < first_end, "the healthy ones ended {:?} after the first at {path}", last - first_end);
            let held = hanging.iter().filter(|arrival| arrival.opened < first_end).count();
            assert_eq!(held, IN_FLIGHT_MAX, "no more than these were sent to {path} before one of them ended");
        }
    }

    async fn check_that_all_arrived_in_the_end(&self, client: &mut Client) {
        for path in HANGING {
            // Those that hung come a second time.
            self.receiver.wait_for(path, MESSAGES + IN_FLIGHT_MAX).await;
        }
        for path in [HEALTHY].into_iter().chain(HANGING) {
            let all = format!("/api/v1/app/crowd/endpoint/{}/msg", &path[1..]);
            eventually(&format!("all delivered to {path}"), async || {
                let deliveries: Vec<Value> = client.list(&all).await.expect("the server answers");
                assert_eq!(deliveries.len(), MESSAGES, "{path}");
                deliveries.iter().all(|delivery| delivery["status"] == SUCCESS).then_some(())
            })
            .await;
            let arrivals = self.receiver.arrivals_at(path);
            assert_eq!(arrivals.len(), MESSAGES + if path == HEALTHY { 0 } else { IN_FLIGHT_MAX }, "{path}");
            let most = open_at_once_max(&arrivals);
            assert!(most <= IN_FLIGHT_MAX, "{most} requests at once at {path}");
        }
    }
}

fn open_at_once_max(arrivals: &[Arrival]) -> usize {
    let open_at =
        |at: Instant| arrivals.iter().filter(|it| it.opened <= at && end(it).is_none_or(|end| at < end)).count();
    arrivals.iter().map(|arrival| open_at(arrival.opened)).max().unwrap_or_default()
}

/// A sender that gives up may have begun its next request before the receiver notices that the last one is over.
fn end(arrival: &Arrival) -> Option<Instant> {
    const SURELY_WAITED_FOR: Duration = Duration::from_secs(14);
    arrival.closed.map(|closed| closed.min(arrival.opened + SURELY_WAITED_FOR))
}

const SUCCESS: u8 = 0;
const FAIL: u8 = 2;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    status: u8,
    response: String,
    response_status_code: u16,
    response_duration_ms: u64,
    timestamp: Timestamp,
    verdict: Verdict,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    class: String,
    rule: String,
    attempt_number: u32,
    next_attempt: Option<Timestamp>,
    delay: Option<Delay>,
    death: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delay {
    backoff_ms: u64,
    jitter_ms: i64,
    wait_ms: u64,
    retry_after_ms: Option<u64>,
}

async fn attempts(client: &mut Client, message: &str, endpoint: &str) -> Vec<Attempt> {
    let path = format!("/api/v1/app/bad/attempt/msg/{message}?endpoint_id={endpoint}");
    client.list(&path).await.expect("the server answers")
}

async fn attempt(client: &mut Client, message: &str, endpoint: &str, number: u32) -> Attempt {
    eventually(&format!("attempt {number} at {endpoint}"), async || {
        let all = attempts(client, message, endpoint).await;
        all.into_iter().find(|attempt| attempt.verdict.attempt_number == number)
    })
    .await
}

async fn destination(client: &mut Client, message: &str, endpoint: &str) -> u8 {
    let all: Vec<Value> =
        client.list(&format!("/api/v1/app/bad/msg/{message}/endpoint")).await.expect("the server answers");
    let found = all.iter().find(|it| it["uid"] == endpoint).unwrap_or_else(|| panic!("{endpoint} is owed it"));
    found["status"].as_u64().and_then(|status| u8::try_from(status).ok()).expect("a status")
}

async fn is_disabled(client: &mut Client, endpoint: &str) -> bool {
    let endpoint: Value =
        client.get(&format!("/api/v1/app/bad/endpoint/{endpoint}")).await.expect("the server answers");
    endpoint["disabled"].as_bool().expect("a switch")
}
