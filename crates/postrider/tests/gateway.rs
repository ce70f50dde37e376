//! One deployment sends to a source of another while both are killed again and again: every event is processed, and none
//! becomes two messages.

mod support;

use http::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use support::{
    api::Client,
    eventually,
    receiver::Receiver,
    server::Server,
    stores::{StoreKind, on_both_stores},
};

on_both_stores! {
    async
    every_event_comes_through_two_deployments_that_are_killed_and_none_twice,
}

/// Tries often and soon, and is never held back.
fn untiring(url: &str) -> Value {
    json!({"url": url, "uid": "on",
        "retryPolicy": {"schedule": {"type": "fixed", "interval": "100ms"}, "jitter": "none", "maxAttempts": 500},
        "circuitBreaker": false, "autoDisable": false})
}

async fn every_event_comes_through_two_deployments_that_are_killed_and_none_twice(store: StoreKind) {
    let receiver = Receiver::start();
    let (mut sender, mut gateway) = (Server::start_on(store, &[]), Server::start_on(store, &[]));
    let mut there = Client::new(gateway.address(), gateway.token());
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let wanted = json!({"name": "Sender", "type": "svix", "config": {"secret": secret}});
    let source = there.create("/ingest/api/v1/source", &wanted).await;
    let app = source["appId"].as_str().expect("an id").to_owned();
    there.create(&format!("/api/v1/app/{app}/endpoint"), &untiring(&receiver.url("/out"))).await;
    let mut here = Client::new(sender.address(), sender.token());
    here.create("/api/v1/app", &json!({"name": "Acme", "uid": "acme"})).await;
    let mut endpoint = untiring(source["ingestUrl"].as_str().expect("a URL"));
    endpoint["secret"] = json!(secret);
    here.create("/api/v1/app/acme/endpoint", &endpoint).await;

    for number in 0..EVENTS {
        hand_in(&mut here, number).await;
        // While what was just handed in is on its way.
        match number % (2 * KILL_EVERY) {
            KILL_EVERY => {
                sender.kill();
                sender.start_again();
            }
            0 if number > 0 => {
                gateway.kill();
                gateway.start_again();
            }
            _ => {}
        }
    }

    let seen = async || {
        let mut seen: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for arrival in receiver.arrivals_at("/out") {
            let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
            let number = body["n"].as_u64().expect("a number");
            seen.entry(number).or_default().insert(arrival.header("webhook-id").to_owned());
        }
        Some(seen).filter(|seen| seen.len() as u64 == EVENTS)
    };
    let seen = eventually("every event", seen).await;
    assert!(seen.values().all(|ids| ids.len() == 1), "an event came under two ids: {seen:?}");
    let mut there = Client::new(gateway.address(), gateway.token());
    let kept: Vec<Value> = there.list(&format!("/api/v1/app/{app}/msg")).await.expect("a list");
    let ids: BTreeSet<&str> = kept.iter().map(|message| message["eventId"].as_str().expect("an id")).collect();
    assert_eq!((kept.len() as u64, ids.len() as u64), (EVENTS, EVENTS), "one message for each event");
    assert!(ids.iter().all(|id| id.starts_with("from.msg_")), "{ids:?}");
}

/// Until it is known to be stored: a connection that broke says nothing about that.
async fn hand_in(client: &mut Client, number: u64) {
    let body = json!({"eventType": "a.b", "eventId": format!("e-{number}"), "payload": {"n": number}}).to_string();
    eventually("a message that is stored", async || {
        let (status, answer) = client.send(Method::POST, "/api/v1/app/acme/msg", &[], &body).await.ok()?;
        assert!(matches!(status.as_u16(), 202 | 409 | 503), "{status} {}", String::from_utf8_lossy(&answer));
        (status != 503).then_some(())
    })
    .await;
}

const EVENTS: u64 = 120;
const KILL_EVERY: u64 = 10;
