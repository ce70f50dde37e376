//! Following an application's attempts as they are recorded: over the real binary, on both stores, and on two nodes.

mod support;

use axum::body::Body;
use http::{Method, Request};
use http_body_util::BodyExt;
use postrider::tokens::Access;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use support::{
    api::Client,
    house::House,
    receiver::{Answer, Receiver},
    server::Server,
    stores::{StoreKind, on_both_stores},
};

on_both_stores! {
    async
    every_attempt_is_told_once_and_in_order_also_to_one_who_comes_back,
    a_tail_shows_what_is_asked_for,
    a_stop_ends_a_tail_cleanly,
}

/// What a browser would have, by hand: so that every byte is seen.
struct Follower {
    reader: BufReader<TcpStream>,
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Seen {
    id: String,
    data: Value,
}

impl Follower {
    fn open(address: SocketAddr, token: &str, path: &str, last: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(support::PATIENCE)).expect("a time");
        let last = last.map_or_else(String::new, |id| format!("last-event-id: {id}\r\n"));
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{last}\r\n").expect("sent");
        Self { reader: BufReader::new(stream) }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line).expect("within the time") {
            0 => None,
            _ => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
        }
    }

    /// The lines of the head, the status first.
    fn head(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).take_while(|line| !line.is_empty()).collect()
    }

    /// The next event. Pieces of the transfer begin and end with events, so that their sizes are lines of their own.
    fn event(&mut self) -> Option<Seen> {
        let (mut seen, mut name) = (Seen::default(), None);
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("id", id)) => seen.id = id.to_owned(),
                Some(("event", event)) => name = Some(event.to_owned()),
                Some(("data", data)) => seen.data = serde_json::from_str(data).expect("JSON"),
                _ if line.is_empty() && name.take().is_some() => return Some(seen),
                _ => {}
            }
        }
    }

    fn events(&mut self, count: usize) -> Vec<Seen> {
        (0..count).map(|_| self.event().expect("an event")).collect()
    }
}

async fn shop(server: &Server, receiver: &Receiver, paths: &[&str]) -> Client {
    let mut api = Client::new(server.address(), server.token());
    api.create("/api/v1/app", &json!({"name": "Shop", "uid": "shop"})).await;
    for path in paths {
        let endpoint = json!({"url": receiver.url(path), "uid": &path[1..]});
        api.create("/api/v1/app/shop/endpoint", &endpoint).await;
    }
    api
}

async fn send(api: &mut Client, event_type: &str, number: usize) -> String {
    let message = json!({"eventType": event_type, "payload": {"number": number}});
    let made = api.create("/api/v1/app/shop/msg", &message).await;
    made["id"].as_str().expect("an id").to_owned()
}

async fn every_attempt_is_told_once_and_in_order_also_to_one_who_comes_back(store: StoreKind) {
    let (server, receiver) = (Server::start_on(store, &[]), Receiver::start());
    let mut api = shop(&server, &receiver, &["/a", "/b", "/c"]).await;
    let open = |last: Option<&str>| {
        let mut follower = Follower::open(server.address(), server.token(), "/api/v1/app/shop/tail", last);
        let head = follower.head();
        assert!(head[0].starts_with("HTTP/1.1 200 "), "{head:?}");
        assert!(head.iter().any(|line| line == "content-type: text/event-stream"), "{head:?}");
        follower
    };
    let mut first = open(None);
    let mut sent = Vec::new();
    for number in 0..20 {
        sent.push(send(&mut api, "order.paid", number).await);
    }
    let mut told = first.events(25);
    drop(first);
    // Nobody listens while these are sent.
    for number in 20..40 {
        sent.push(send(&mut api, "order.paid", number).await);
    }
    let mut second = open(Some(&told[24].id));
    told.extend(second.events(sent.len() * 3 - 25));

    assert!(told.is_sorted_by(|one, other| one.id < other.id), "ids sort by the time they were made");
    for message in &sent {
        let mut endpoints: Vec<&str> = told
            .iter()
            .filter(|seen| seen.data["msgId"] == message.as_str())
            .map(|seen| seen.data["endpointId"].as_str().expect("an id"))
            .collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        assert_eq!(endpoints.len(), 3, "{message}");
    }
    let listed: Vec<Value> = api.list("/api/v1/app/shop/attempt/endpoint/a?with_msg=true").await.expect("a list");
    for attempt in &listed {
        let seen = told.iter().find(|seen| seen.id == attempt["id"]).expect("it was told");
        assert_eq!(&seen.data, attempt, "as the list has it");
    }
    assert_eq!(told[0].data["msg"]["eventType"], "order.paid");
    assert_eq!(told[0].data["msg"]["payload"], json!({}), "no payload");
}

async fn a_tail_shows_what_is_asked_for(store: StoreKind) {
    let (server, receiver) = (Server::start_on(store, &[]), Receiver::start());
    receiver.always("/bad", Answer::Status(400));
    let mut api = shop(&server, &receiver, &["/good", "/bad"]).await;
    let open = |query: &str| {
        let path = format!("/api/v1/app/shop/tail?with_content=false&{query}");
        let mut follower = Follower::open(server.address(), server.token(), &path, None);
        let head = follower.head();
        assert!(head[0].starts_with("HTTP/1.1 200 "), "{head:?}");
        follower
    };
    let (mut good, mut failed, mut typed) =
        (open("endpoint_id=good"), open("status=2"), open("event_types=order.paid,x&status=0"));
    for number in 0..3 {
        send(&mut api, "order.placed", number).await;
        send(&mut api, "order.paid", number).await;
    }
    let endpoint: Value = api.get("/api/v1/app/shop/endpoint/good").await.expect("an endpoint");
    assert!(good.events(6).iter().all(|seen| seen.data["endpointId"] == endpoint["id"]));
    assert!(failed.events(6).iter().all(|seen| seen.data["responseStatusCode"] == 400));
    let typed = typed.events(3);
    assert!(typed.iter().all(|seen| seen.data["msg"]["eventType"] == "order.paid" && seen.data["status"] == 0));
    assert!(typed.iter().all(|seen| seen.data["response"] == "{}"), "no content was asked for");

    // From the first one on, as a page that was shown before would ask.
    let mut again = open(&format!("iterator={}", typed[0].id));
    assert!(again.event().expect("an event").id > typed[0].id);

    // For whoever watches: the newest, and that there were others.
    let mut watching = open(&format!("iterator={}&latest=2", typed[0].id));
    let seen = watching.events(3);
    assert_eq!(seen[0].data, json!({}), "{seen:?}");
    let newest = [&seen[1], &seen[2]].map(|seen| seen.data["id"].clone());
    let all: Value = api.get("/api/v1/app/shop/attempt/endpoint/good?limit=1").await.expect("a list");
    assert!(newest.contains(&all["data"][0]["id"]), "{newest:?}, {all}");

    for (path, status) in [
        ("shop/tail?latest=0", 422),
        ("shop/tail?latest=101", 422),
        ("shop/tail?iterator=x", 422),
        ("shop/tail?status=1", 422),
        ("shop/tail?status=up", 400),
        ("shop/tail?colour=red", 400),
        ("shop/tail?endpoint_id=nobody", 404),
        ("nobody/tail", 404),
    ] {
        let answer = api.send(Method::GET, &format!("/api/v1/app/{path}"), &[], "").await.expect("an answer");
        assert_eq!(answer.0, status, "{path}");
    }
    let wrong = [("last-event-id", "x")];
    assert_eq!(api.send(Method::GET, "/api/v1/app/shop/tail", &wrong, "").await.expect("an answer").0, 422);
}

async fn a_stop_ends_a_tail_cleanly(store: StoreKind) {
    let (mut server, receiver) = (Server::start_on(store, &[]), Receiver::start());
    shop(&server, &receiver, &["/a"]).await;
    let mut follower = Follower::open(server.address(), server.token(), "/api/v1/app/shop/tail", None);
    follower.head();
    let begun = std::time::Instant::now();
    assert!(server.stop().success());
    assert!(begun.elapsed() < Duration::from_secs(10), "it was not waited for: {:?}", begun.elapsed());
    let rest: Vec<String> = std::iter::from_fn(|| follower.line()).collect();
    assert_eq!(rest.last().map(String::as_str), Some(""), "{rest:?}");
    assert!(rest.iter().any(|line| line == "0"), "the last piece of the transfer came: {rest:?}");
}

/// An answer within the test, read piece by piece.
async fn open(house: &House, token: &str) -> (http::StatusCode, http::HeaderMap, Body) {
    use tower::ServiceExt;
    let request = Request::get("/api/v1/app/shop/tail").header("authorization", format!("Bearer {token}"));
    let response = house.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.expect("an answer");
    let (head, body) = response.into_parts();
    (head.status, head.headers, body)
}

async fn next(body: &mut Body) -> Option<String> {
    let frame = body.frame().await?.expect("a piece");
    Some(String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text"))
}

#[tokio::test]
async fn a_tail_says_something_now_and_then_and_ends_with_its_token() {
    let house = House::new();
    let app = house.post("app", json!({"name": "Shop", "uid": "shop"})).await.expect(201);
    let app = app["id"].as_str().expect("an id");
    let key = house.post("api-key", json!({"name": "k", "scopes": ["read"]})).await.expect(201);
    let (key, token) = (key["id"].as_str().expect("an id"), key["token"].as_str().expect("a token"));
    let (status, _, mut body) = open(&house, token).await;
    assert_eq!(status, 200);
    let first = next(&mut body).await.expect("a first word");
    assert!(first.starts_with("id: atmpt_") && first.contains("retry: 2000"), "{first}");
    // From here on the clock of the tail runs ahead whenever it waits.
    tokio::time::pause();
    let waited = tokio::time::Instant::now();
    let word = next(&mut body).await.expect("a word");
    let id = first.lines().next().expect("an id");
    assert_eq!(word, format!(": \n{id}\n\n"), "and where to go on from");
    assert!(waited.elapsed().as_secs() >= 15, "no sooner than it says");
    tokio::time::resume();
    house.post(&format!("api-key/{key}/revoke"), Value::Null).await.expect(200);
    tokio::time::pause();
    assert_eq!(next(&mut body).await, None, "its token was revoked");
    tokio::time::resume();

    let own = house.app_token(app, &Access::read_only());
    let (status, _, mut body) = open(&house, &own).await;
    assert_eq!(status, 200, "who may read may follow");
    next(&mut body).await.expect("a first word");
    house.call("DELETE", "app/shop", Value::Null).await.expect(204);
    assert_eq!(next(&mut body).await, None, "its application is gone");
}

#[tokio::test]
async fn more_tails_than_may_be_are_told_when_to_come_again() {
    let house = House::new();
    house.post("app", json!({"name": "Shop", "uid": "shop"})).await.expect(201);
    let mut held = Vec::new();
    let refused = loop {
        let (status, headers, body) = open(&house, &house.token).await;
        if status != 200 {
            break (status, headers, body);
        }
        held.push(body);
        assert!(held.len() < 1_000, "nobody is refused");
    };
    assert_eq!((refused.0.as_u16(), refused.1["retry-after"].to_str().unwrap()), (503, "10"));
    let text = refused.2.collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("As many tails are open as may be"), "{text:?}");
    held.clear();
    support::eventually("a place that was given back", async || {
        (open(&house, &house.token).await.0 == 200).then_some(())
    })
    .await;
}
