//! Producers that speak HTTP/2 in the clear, from the first byte on: many requests at a time on one connection, within the
//! same limits, and finished when the server stops.
//!
//! Frames that no library would send are in `intake/frames.rs`.

mod support;

use bytes::Bytes;
use h2::{Reason, client::SendRequest};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};
use support::{
    PATIENCE, eventually,
    stores::{StoreKind, on_both_stores},
    world::World,
};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};

on_both_stores! {
    async
    a_hundred_messages_and_batches_come_at_a_time_on_one_connection,
    what_is_under_way_when_it_is_asked_to_stop_is_finished,
}

const MSG: &str = "/api/v1/app/acme/msg";
const BATCH: &str = "/api/v1/app/acme/msg-batch";

/// A connection, and how it ends.
struct Talk {
    sender: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
    address: SocketAddr,
    token: String,
}

impl Talk {
    async fn open(world: &World) -> Self {
        let address = world.server.address();
        let stream = TcpStream::connect(address).await.expect("it listens");
        let (sender, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
        Self { sender, connection: tokio::spawn(connection), address, token: world.server.token().to_owned() }
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
    }

    /// Begins a request; its body, and what comes of it.
    async fn begin(&self, path: &str, length: usize) -> (h2::SendStream<Bytes>, h2::client::ResponseFuture) {
        // Without a length each would be let in as if it were as great as may be.
        let request = self.request(Method::POST, path).header("content-length", length).body(()).expect("a request");
        let mut sender = self.sender.clone().ready().await.expect("the connection stands");
        let (answer, body) = sender.send_request(request, false).expect("a stream");
        (body, answer)
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let body = Bytes::from(body.to_string());
        let (stream, answer) = self.begin(path, body.len()).await;
        send_all(stream, body).await;
        whole(answer.await.expect("an answer")).await
    }
}

/// As much at a time as the other side takes.
async fn send_all(mut stream: h2::SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(Ok(room)) = room else { return };
        let piece = body.split_to(room.min(body.len()));
        let end = body.is_empty();
        if stream.send_data(piece, end).is_err() {
            return;
        }
    }
}

async fn whole(answer: Response<h2::RecvStream>) -> (StatusCode, Value) {
    let (head, mut body) = answer.into_parts();
    let mut text = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("a whole answer");
        body.flow_control().release_capacity(piece.len()).expect("it was counted");
        text.extend_from_slice(&piece);
    }
    (head.status, serde_json::from_slice(&text).unwrap_or(Value::Null))
}

fn message(n: usize) -> Value {
    json!({"eventType": "a.b", "payload": {"n": n}})
}

async fn a_hundred_messages_and_batches_come_at_a_time_on_one_connection(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/hook", json!({})).await;
    let talk = Talk::open(&world).await;
    let mut open = Vec::new();
    // All are begun before any of them is ended, so that all of them are there at once.
    for n in 0..100 {
        let (path, body) = match n % 10 {
            0 => (BATCH, json!({"messages": (0..20).map(|m| message(1_000 + n * 20 + m)).collect::<Vec<_>>()})),
            _ => (MSG, message(n)),
        };
        let body = Bytes::from(body.to_string());
        let (mut stream, answer) = talk.begin(path, body.len()).await;
        stream.send_data(body.slice(..10), false).expect("it takes some");
        open.push((stream, answer, body.slice(10..)));
    }
    let mut ids = BTreeSet::new();
    let mut answers = Vec::new();
    for (stream, answer, rest) in open {
        send_all(stream, rest).await;
        answers.push(answer);
    }
    for answer in answers {
        let (status, answer) = whole(answer.await.expect("an answer")).await;
        assert!(matches!(status.as_u16(), 200 | 202), "{status} {answer}");
        let all = answer["data"].as_array().cloned();
        let one = all.unwrap_or_else(|| vec![json!({"status": 202, "message": answer})]);
        for one in one {
            assert_eq!(one["status"], 202, "{one}");
            ids.insert(one["message"]["id"].as_str().expect("an id").to_owned());
        }
    }
    assert_eq!(ids.len(), 90 + 10 * 20);
    assert_eq!(world.list("msg").await.len(), ids.len());
    eventually("all deliveries", async || {
        let arrived: BTreeSet<String> =
            world.receiver.arrivals().iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect();
        (arrived == ids).then_some(())
    })
    .await;

    // A batch that is greater than any window, and one that is too great.
    let great = json!({"messages": (0..10).map(|_| json!({"eventType": "a.b", "payload": {"x": "y".repeat(700_000)}})).collect::<Vec<_>>()});
    let (status, answer) = talk.post(&format!("{BATCH}?with_content=false"), &great).await;
    assert_eq!(status, 200, "{answer}");
    let giant = json!({"messages": [{"x": "y".repeat(9 * 1024 * 1024)}]});
    let giant = Bytes::from(giant.to_string());
    let (stream, answer) = talk.begin(BATCH, giant.len()).await;
    let (_, answer) = tokio::join!(send_all(stream, giant), answer);
    assert_eq!(answer.expect("an answer").status(), 413);
    // Neither spoils the connection.
    assert_eq!(talk.post(MSG, &message(1)).await.0, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_great_and_a_body_that_dawdles_end_their_stream_and_no_other() {
    let world = World::start().await;
    let talk = Talk::open(&world).await;
    let slow: Vec<_> = {
        let mut slow = Vec::new();
        for _ in 0..50 {
            let (mut stream, answer) = talk.begin(MSG, 100).await;
            stream.send_data(Bytes::from_static(b"{"), false).expect("it takes some");
            slow.push((stream, answer));
        }
        slow
    };
    let request = talk.request(Method::POST, MSG).header("x-long", "y".repeat(70 * 1024)).body(()).expect("a request");
    let mut sender = talk.sender.clone().ready().await.expect("the connection stands");
    let refused = match sender.send_request(request, true) {
        Ok((answer, _)) => answer.await.map(|answer| answer.status().as_u16()).map_err(|error| error.reason()),
        // The library knows what the server said that it takes.
        Err(_) => Ok(431),
    };
    assert!(matches!(refused, Ok(431) | Err(Some(Reason::REFUSED_STREAM | Reason::PROTOCOL_ERROR))), "{refused:?}");
    assert_eq!(talk.post(MSG, &message(1)).await.0, 202, "the others go on");
    for (_stream, answer) in slow {
        let answer = timeout(PATIENCE, answer).await.expect("it is not waited for").expect("an answer");
        let (status, why) = whole(answer).await;
        assert_eq!((status.as_u16(), &why["code"]), (408, &json!("request_timeout")));
    }
    assert_eq!(talk.post(MSG, &message(2)).await.0, 202, "on the same connection");
}

async fn what_is_under_way_when_it_is_asked_to_stop_is_finished(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let talk = Talk::open(&world).await;
    let mut open = Vec::new();
    for n in 0..100 {
        let (path, body) = match n % 10 {
            0 => (BATCH, json!({"messages": [message(n), message(n)]})),
            _ => (MSG, message(n)),
        };
        let body = Bytes::from(body.to_string());
        let (mut stream, answer) = talk.begin(path, body.len()).await;
        stream.send_data(body.slice(..10), false).expect("it takes some");
        open.push((stream, answer, body.slice(10..)));
    }
    // It has seen all of them, as streams are begun in their order.
    assert_eq!(talk.post(MSG, &message(1)).await.0, 202);
    world.server.signal("TERM");
    // From now on it takes no new ones, and says so.
    eventually("the word that it stops", async || {
        let request = talk.request(Method::GET, "/api/v1/health").body(()).expect("a request");
        let Ok(mut sender) = talk.sender.clone().ready().await else { return Some(()) };
        match sender.send_request(request, true) {
            Ok((answer, _)) => answer.await.is_err().then_some(()),
            Err(_) => Some(()),
        }
    })
    .await;
    let mut ids = BTreeSet::new();
    let mut answers = Vec::new();
    for (stream, answer, rest) in open {
        send_all(stream, rest).await;
        answers.push(answer);
    }
    for answer in answers {
        let (status, answer) = whole(answer.await.expect("what is under way is finished")).await;
        assert!(matches!(status.as_u16(), 200 | 202), "{status} {answer}");
        let all = answer["data"].as_array().cloned();
        for one in all.unwrap_or_else(|| vec![json!({"message": answer})]) {
            ids.insert(one["message"]["id"].as_str().expect("an id").to_owned());
        }
    }
    assert_eq!(ids.len(), 90 + 10 * 2);
    let ended = timeout(PATIENCE, talk.connection).await.expect("it hangs up").expect("no panic");
    assert!(ended.is_ok(), "in good order: {ended:?}");
    assert!(world.server.wait_for_end(Duration::from_secs(45)).success());
    world.start_again();
    let stored = world.list("msg").await;
    assert_eq!(stored.len(), ids.len() + 1);
}
