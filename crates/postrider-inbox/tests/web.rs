//! The door as a `tower` service and layer, and in `axum`; what it lets in and what it counts.

mod common;

use std::sync::Arc;

use ::axum::{Router, body::Body, extract::Request, routing::post};
use bytes::Bytes;
use common::*;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use postrider_inbox::{
    Arrival, Door, Event, Fault, Inbox, MemoryStore, Outcome, Place, Store,
    axum::{Genuine, Taken},
};
use postrider_signature::{Refusal, Source, SourceKey};
use tower::{Layer, Service, ServiceExt, service_fn};

type Memory = Arc<dyn Store>;

fn door() -> Door<Memory> {
    let store: Memory = Arc::new(MemoryStore::new());
    Inbox::new(store, TestClock::new()).door("shop", source()).unwrap().with_body_max(100)
}

fn request((headers, body): (HeaderMap, Bytes)) -> Request<Body> {
    let mut request = Request::post("/webhooks").body(Body::from(body)).unwrap();
    *request.headers_mut() = headers;
    request
}

fn forged() -> (HeaderMap, Bytes) {
    let (headers, _) = signed("msg_1", "{}", at(0));
    (headers, Bytes::from_static(b"{ }"))
}

fn long() -> (HeaderMap, Bytes) {
    signed("msg_2", &"x".repeat(101), at(0))
}

async fn text<B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>>(response: Response<B>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_tower_service_answers_for_the_inbox() {
    let door = door();
    let service = door.service();
    for (sent, status, word) in [
        (signed("msg_1", "{}", at(0)), 202, "accepted"),
        (signed("msg_1", "{}", at(0)), 200, "known"),
        (forged(), 401, "no signature matches"),
        (long(), 413, "100 bytes"),
        ((HeaderMap::new(), Bytes::new()), 400, "missing"),
    ] {
        let answer = text(service.clone().oneshot(request(sent)).await.unwrap()).await;
        assert!(answer.0 == status && answer.1.contains(word), "{answer:?} is not {status} {word}");
    }
    assert_eq!(door.inbox().standing().await.unwrap().queued, 1);
}

#[tokio::test]
async fn a_tower_layer_lets_only_verified_requests_through_with_their_bytes() {
    let door = door();
    let inner = service_fn(async |request: Request<Body>| {
        let event = request.extensions().get::<Event>().unwrap().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(event.body, body);
        Ok::<_, std::convert::Infallible>(Response::new(Body::from(format!("inside: {}", event.key))))
    });
    let mut service = door.verify_layer().layer(inner);
    for (sent, status, word) in [
        (signed("msg_1", "{}", at(0)), 200, "inside: shop/msg_1"),
        (forged(), 401, "no signature"),
        (long(), 413, "bytes"),
    ] {
        let answer = text(service.ready().await.unwrap().call(request(sent)).await.unwrap()).await;
        assert!(answer.0 == status && answer.1.contains(word), "{answer:?} is not {status} {word}");
    }
    assert_eq!(door.inbox().standing().await.unwrap().queued, 0, "nothing is recorded");
}

#[tokio::test]
async fn axum_takes_in_what_its_handler_names() {
    let door = door();
    let app = Router::new()
        .route("/webhooks", post(async |taken: Taken<Memory>| taken))
        .route("/careless", post(async |_: Taken<Memory>| "fine"))
        .route("/verified", post(async |genuine: Genuine<Memory>| genuine.event.key.to_string()))
        .with_state(door.clone());
    for (path, sent, status, word) in [
        ("/webhooks", signed("msg_1", "{}", at(0)), 202, "accepted"),
        ("/webhooks", signed("msg_1", "{}", at(0)), 200, "known"),
        ("/webhooks", forged(), 401, "no signature"),
        ("/webhooks", long(), 413, "bytes"),
        ("/careless", signed("msg_1", "{}", at(0)), 200, "fine"),
        ("/careless", forged(), 401, "no signature"),
        ("/careless", long(), 413, "bytes"),
        ("/verified", signed("msg_1", "{}", at(0)), 200, "shop/msg_1"),
        ("/verified", forged(), 401, "no signature"),
        ("/verified", long(), 413, "bytes"),
    ] {
        let mut request = request(sent);
        *request.uri_mut() = path.parse().unwrap();
        let answer = text(app.clone().oneshot(request).await.unwrap()).await;
        assert!(answer.0 == status && answer.1.contains(word), "{path}: {answer:?} is not {status} {word}");
    }
    assert_eq!(door.inbox().standing().await.unwrap().queued, 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused() {
    let broken = Body::new(http_body_util::StreamBody::new(futures_util::stream::iter([
        Ok(http_body::Frame::data(Bytes::from_static(b"{"))),
        Err(std::io::Error::other("reset")),
    ])));
    let mut request = request(signed("msg_1", "{}", at(0)));
    *request.body_mut() = broken;
    let answer = text(door().service().oneshot(request).await.unwrap()).await;
    assert_eq!(answer.0, 400);
}

#[tokio::test]
async fn an_old_signature_is_refused_and_nothing_recorded() {
    let door = door();
    let (headers, body) = signed("msg_1", "{}", at(-301_000));
    let outcome = door.take(&headers, body).await;
    assert!(matches!(outcome, Outcome::Refused(Fault::Signature(Refusal::TooOld { .. }))), "{outcome:?}");
    assert_eq!(door.inbox().standing().await.unwrap().queued, 0);
}

#[tokio::test]
async fn an_id_can_be_found_in_the_body() {
    let inbox = Inbox::new(MemoryStore::new(), TestClock::new());
    let token = Source::token("x-token", [SourceKey::text("secret")]);
    let door = inbox.door("plain", token).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("x-token", "secret".parse().unwrap());
    let body = |text: &'static str| Bytes::from_static(text.as_bytes());
    assert_eq!(door.take(&headers, body("{}")).await, Outcome::Refused(Fault::NoId));

    let door = door.with_id(|_, body| {
        let json: serde_json::Value = serde_json::from_slice(body).ok()?;
        Some(json["id"].as_str()?.to_owned())
    });
    for (text, expected) in [
        (r#"{"id": "evt_1"}"#, Outcome::Accepted { arrival: None }),
        (r#"{"id": "evt_1", "again": true}"#, Outcome::Duplicate),
        ("{}", Outcome::Refused(Fault::NoId)),
        (r#"{"id": ""}"#, Outcome::Refused(Fault::BadId(postrider_inbox::EventIdError))),
        (r#"{"id": "a\u0000b"}"#, Outcome::Refused(Fault::BadId(postrider_inbox::EventIdError))),
    ] {
        assert_eq!(door.take(&headers, body(text)).await, expected, "{text}");
    }
}

#[tokio::test]
async fn the_sequence_header_gives_an_event_its_place() {
    let store: Memory = Arc::new(MemoryStore::new());
    let inbox = Inbox::new(Arc::clone(&store), TestClock::new());
    let fifo = inbox.door("fifo", source()).unwrap();
    let by_customer = inbox.door("keyed", source()).unwrap().with_ordering_key(|_, body| {
        let json: serde_json::Value = serde_json::from_slice(body).ok()?;
        Some(json["customer"].as_str()?.to_owned())
    });
    let mut told = Vec::new();
    for (door, id, body, number) in [
        (&fifo, "1", "{}", "1"),
        (&fifo, "2", "{}", "3"),
        (&fifo, "3", "{}", "2"),
        (&fifo, "4", "{}", "0"),
        (&fifo, "5", "{}", "many"),
        (&by_customer, "1", r#"{"customer": "kim"}"#, "1"),
        (&by_customer, "2", r#"{"customer": "ada"}"#, "1"),
        (&by_customer, "3", r#"{"customer": "kim"}"#, "2"),
        (&by_customer, "4", "{}", "9"),
    ] {
        let (mut headers, body) = signed(id, body, at(0));
        headers.insert("webhook-sequence", number.parse().unwrap());
        match door.take(&headers, body).await {
            Outcome::Accepted { arrival } => told.push(arrival),
            other => panic!("{other:?}"),
        }
    }
    let in_order = Some(Arrival::InOrder);
    let gap = Some(Arrival::Gap { first: 2, last: 2 });
    assert_eq!(told, [in_order, gap, Some(Arrival::Late), None, None, in_order, in_order, in_order, None]);
    let claims = store.claim(100, LEASE, at(0)).await.unwrap();
    let kim =
        claims.iter().find(|claim| claim.event.key.source.as_str() == "keyed" && claim.event.key.id.as_str() == "3");
    assert_eq!(kim.unwrap().event.place, Some(Place { ordering_key: "kim".to_owned(), number: 2 }));
}

#[tokio::test]
async fn only_headers_that_were_asked_for_are_kept() {
    let store: Memory = Arc::new(MemoryStore::new());
    let inbox = Inbox::new(Arc::clone(&store), TestClock::new());
    let usual = inbox.door("usual", source()).unwrap();
    let (headers, body) = signed("msg_1", "{}", at(0));
    let _ = usual.take(&headers, body).await;
    let event = store.claim(1, LEASE, at(0)).await.unwrap().remove(0).event;
    assert_eq!(event.headers, [("content-type".to_owned(), "application/json".to_owned())]);

    let door = inbox.door("shop", source()).unwrap().keeping_headers(["X-Kind", "absent"]);
    let (mut headers, body) = signed("msg_1", "{}", at(0));
    headers.insert("x-kind", "paid".parse().unwrap());
    headers.insert("authorization", "secret".parse().unwrap());
    let _ = door.take(&headers, body).await;
    let event = store.claim(1, LEASE, at(0)).await.unwrap().remove(0).event;
    assert_eq!(event.headers, [("x-kind".to_owned(), "paid".to_owned())]);
    assert_eq!(event.header("X-Kind"), Some("paid"));
}
