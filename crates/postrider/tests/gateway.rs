//! One deployment sends to a source of another while both are killed again and again: every event is processed, and none
//! becomes two messages.

mod support;

use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use std::collections::{BTreeMap, BTreeSet};
use support::{
    api::Client,
    cluster::Cluster,
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

/// What one node is told holds at the others: a URL that has ended takes nothing any more, whoever is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_has_ended_takes_nothing_at_another_node() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(2, &[])).await.expect("two nodes");
    let [one, two] = [0, 1].map(|node| Client::new(cluster.nodes[node].server.address(), cluster.token()));
    let (mut one, mut two) = (one, two);
    let wanted = json!({"name": "GitHub", "type": "github", "config": {"secret": "s"}});
    let source = one.create("/ingest/api/v1/source", &wanted).await;
    let path_of = |url: &Value| {
        let url = url.as_str().expect("a URL");
        url[url.find("/ingest/in/").expect("a path of ours")..].to_owned()
    };
    let rotate = format!("/ingest/api/v1/source/{}/token/rotate", source["id"].as_str().expect("an id"));
    let mut paths = vec![path_of(&source["ingestUrl"])];
    let body = r#"{"ref":"main"}"#;
    let mut deliver = async |path: &str, id: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"s").expect("any length");
        mac.update(body.as_bytes());
        let signature: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let signature = format!("sha256={signature}");
        let headers = [("x-hub-signature-256", &*signature), ("x-github-delivery", id), ("x-github-event", "push")];
        two.send(Method::POST, path, &headers, body).await.expect("an answer").0.as_u16()
    };
    // So that the other node knows the source as it was.
    let known =
        eventually("a node that knows it", async || Some(deliver(&paths[0], "first").await).filter(|it| *it == 200));
    known.await;
    for round in 0..5 {
        for _ in 0..2 {
            paths.push(path_of(&one.create(&rotate, &json!({})).await["ingestUrl"]));
        }
        let [.., ended, before, now] = &paths[..] else { panic!("three at least") };
        // At once: it was answered that the URL has changed.
        assert_eq!(deliver(ended, &format!("ended-{round}")).await, 404, "round {round}");
        for (path, id) in [(before, "before"), (now, "now")] {
            let id = format!("{id}-{round}");
            eventually("the new URLs", async || Some(deliver(path, &id).await).filter(|status| *status == 200)).await;
        }
    }
    let app = source["appId"].as_str().expect("an id");
    let kept: Vec<Value> = one.list(&format!("/api/v1/app/{app}/msg")).await.expect("a list");
    assert!(kept.iter().all(|message| !message["eventId"].as_str().expect("it").starts_with("ended")), "{kept:?}");
    assert_eq!(kept.len(), 11);
    tokio::task::spawn_blocking(move || drop(cluster)).await.expect("they end");
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
