//! The row of those who dawdle, and of those who are too many.

use crate::{
    caller::{MESSAGES, PATIENCE, Place, answer, connect, read_to_end},
    support::{server::Server, skip::skip},
};
use axum::{Router, routing::get};
use postrider::http::server::{Limits, serve};
use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Sends a byte now and then until the server hangs up. What it said, and how long after `start`, when the connection was opened.
fn drip(mut stream: TcpStream, start: Instant, begun: &str, byte: u8) -> (Vec<u8>, Duration) {
    let mut heard = Vec::new();
    let mut piece = [0; 4096];
    stream.set_read_timeout(Some(Duration::from_millis(250))).expect("a socket");
    stream.write_all(begun.as_bytes()).expect("it listens");
    while start.elapsed() < PATIENCE {
        match stream.read(&mut piece) {
            Ok(0) => return (heard, start.elapsed()),
            Ok(count) => heard.extend_from_slice(&piece[..count]),
            Err(fault) if fault.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return (heard, start.elapsed()),
        }
        let _ = stream.write_all(&[byte]);
    }
    panic!("it did not hang up within {PATIENCE:?}");
}

/// Beside one who hurries.
#[test]
fn row_slow_heads_and_bodies() {
    let place = Place::start();
    let body_begun = place.head("POST", MESSAGES, &[("content-length", "100000")]);
    let chunk_begun = place.head("POST", MESSAGES, &[("transfer-encoding", "chunked")]) + "fffff\r\n";
    let heads = ["G", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nhost: x\r\nx: ", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"];
    thread::scope(|scope| {
        let slow: Vec<_> = (0..40)
            .map(|number| {
                let (begun, is_head) = match number % 6 {
                    kind @ 0..4 => (heads[kind], true),
                    4 => (&*body_begun, false),
                    _ => (&*chunk_begun, false),
                };
                let start = Instant::now();
                let stream = place.connect();
                scope.spawn(move || (drip(stream, start, begun, b'x'), begun, is_head))
            })
            .collect();
        for _ in 0..20 {
            assert_eq!(place.message(r#"{"eventType":"a","payload":{}}"#).status, 202);
        }
        for slow in slow {
            let ((heard, after), begun, is_head) = slow.join().expect("it was let go");
            let shown = String::from_utf8_lossy(&heard);
            if is_head {
                // The preface alone is no head yet, but after it comes nothing that is one, which HTTP/2 tells at once.
                assert!(heard.is_empty() || begun.starts_with("PRI"), "{begun:?}: {shown}");
                assert!(after >= Duration::from_secs(10) || begun.starts_with("PRI"), "{begun:?}: after {after:?}");
            } else {
                assert!(answer(&heard).is_refusal(408), "{begun:?}: {shown}");
                assert!(after >= Duration::from_secs(5), "{begun:?}: after {after:?}");
            }
        }
    });
    assert_eq!(place.messages(), 20);
}

#[test]
fn row_more_connections_than_may_be() {
    let mut server = Server::not_started(&[]);
    server.set_variables(&[("POSTRIDER_CONNECTIONS_MAX", "200")]);
    server.start_again();
    server.take_token();
    let place = Place::new(server);
    let before = memory(place.server.pid());
    // Some of them have said something, and keep the connection for later.
    let mut held: Vec<TcpStream> = Vec::new();
    let mut refused = 0;
    while refused < 50 {
        assert!(held.len() <= 200, "there are more than may be");
        let mut stream = place.connect();
        let _ = stream.write_all(b"GET /api/v1/health HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut told = [0; 12];
        match stream.read_exact(&mut told) {
            Ok(()) if told == *b"HTTP/1.1 204" => held.push(stream),
            Ok(()) => {
                assert_eq!(String::from_utf8_lossy(&told), "HTTP/1.1 503");
                refused += 1;
            }
            // It hung up with our words unread, which may take its own along.
            Err(_) => refused += 1,
        }
    }
    assert!(held.len() >= 190, "only {} were let in", held.len());
    let each = memory(place.server.pid()).saturating_sub(before) / held.len() as u64;
    println!("{} idle connections take {each} KiB each", held.len());
    assert!(each < 64, "an idle connection takes {each} KiB");
    drop(held);
    // Their places are free again, as soon as it is noticed that they went.
    let start = Instant::now();
    loop {
        let mut stream = place.connect();
        let _ = stream.write_all(b"GET /api/v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        if read_to_end(&mut stream).starts_with(b"HTTP/1.1 204") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "nobody is let in any more");
    }
}

#[test]
fn row_more_connections_from_one_address_than_may_be() {
    let found = if_addrs::get_if_addrs().expect("a list of interfaces").into_iter().map(|interface| interface.ip());
    let Some(own) = found.into_iter().find(|ip| ip.is_ipv4() && !ip.is_loopback()) else {
        return skip("this machine has no address but loopback, whose connections are not counted by address");
    };
    let limits = Limits { connections_per_address_max: 3, ..Limits::default() };
    let address = serve_beside(limits, own);
    let mut held: Vec<TcpStream> = (0..3).map(|_| connect(address)).collect();
    for stream in &mut held {
        assert!(is_served(stream));
    }
    let mut fourth = connect(address);
    assert!(!is_served(&mut fourth), "a fourth is let in");
    let mut local = connect(SocketAddr::from(([127, 0, 0, 1], address.port())));
    assert!(is_served(&mut local), "another address is another");
    held.pop();
    let start = Instant::now();
    while !is_served(&mut connect(address)) {
        assert!(start.elapsed() < PATIENCE, "its place stays taken");
    }
}

fn is_served(stream: &mut TcpStream) -> bool {
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut told = [0; 12];
    stream.read_exact(&mut told).is_ok() && told == *b"HTTP/1.1 200"
}

/// A server with limits that no setting gives, on a thread that ends with the tests.
pub fn serve_beside(limits: Limits, own: IpAddr) -> SocketAddr {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let router =
                Router::new().route("/", get(|| async { "hello" })).route("/hang", get(std::future::pending::<()>));
            serve(listener, None, router, limits, std::future::pending()).await;
        });
    });
    SocketAddr::from((own, port))
}

/// What the process has in memory, in KiB.
pub fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has some");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn row_more_messages_than_may_be_handed_in() {
    for (limit, others_have_their_own) in
        [("POSTRIDER_INGEST_RATE_PER_APPLICATION", true), ("POSTRIDER_INGEST_RATE_PER_TOKEN", false)]
    {
        let mut server = Server::not_started(&[]);
        server.set_variables(&[(limit, "5")]);
        server.start_again();
        server.take_token();
        let place = Place::new(server);
        assert_eq!(place.post("/api/v1/app", r#"{"name":"Other","uid":"other"}"#).status, 201);
        let heard = burst(&place, "acme", 100);
        let (taken, refused) = (heard.matches("HTTP/1.1 202").count(), heard.matches("HTTP/1.1 429").count());
        assert_eq!(taken + refused, 100, "{heard}");
        assert!(taken >= 5 && refused > 0, "{limit}: {taken} taken, {refused} refused");
        assert_eq!(heard.matches("retry-after: 1\r\n").count(), refused);
        assert_eq!(heard.matches(r#""code":"rate_limit""#).count(), refused);
        assert_eq!(place.messages(), taken, "what was refused is not there");
        let heard = burst(&place, "other", 100);
        assert!(heard.matches("HTTP/1.1 202").count() >= 5 || !others_have_their_own, "{heard}");
        assert!(heard.contains("HTTP/1.1 429"), "{heard}");
    }
}

/// As fast as they are answered, on one connection: far more than five in a second, on any machine.
fn burst(place: &Place, app: &str, count: usize) -> String {
    let message = br#"{"eventType":"a","payload":{}}"#;
    let length = message.len().to_string();
    let one = place.head("POST", &format!("/api/v1/app/{app}/msg"), &[("content-length", &length)]).into_bytes();
    let mut all = [&one[..], message].concat().repeat(count);
    all.extend_from_slice(b"GET /api/v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    String::from_utf8(place.say("", &all)).expect("text")
}
