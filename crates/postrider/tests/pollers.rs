//! Fetching instead of being sent to: pollers, their tokens, and where consumers are.

mod support;

use postrider::{clock, tokens::Access};
use postrider_engine::policy::Layer;
use postrider_store::{PostgresOptions, PostgresStore, postgres::DatabaseUrl};
use postrider_testbed::Cluster;
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{
    PATIENCE, POLL, eventually,
    house::{House, Reply, folder_with_keys},
    operations::{Operation, filled_with},
    server::Server,
    stores::{StoreKind, on_both_stores},
    world::{World, joined},
};
use svix::{
    Svix,
    api::{MessagePollerConsumerPollOptions, MessagePollerPollOptions, SvixOptions},
    models::{PollingEndpointConsumerSeekIn, PollingEndpointOut},
};
use tokio::{sync::watch, time::timeout};

on_both_stores! {
    async
    a_poller_lives_its_life,
    messages_come_in_order_and_are_narrowed,
    a_consumer_gets_messages_again_until_it_says_that_it_has_them,
    a_consumer_goes_where_it_wants,
    a_place_of_before_the_poller_is_reached_by_asking,
    what_is_gone_is_told,
    a_pollers_token_opens_its_poller_and_nothing_else,
    a_token_is_rotated_without_a_gap,
    bad_input_is_refused_and_changes_nothing,
    a_sources_events_can_be_fetched_and_its_pollers_stay,
    the_official_client_fetches_all_over_a_kill,
}

struct Scene {
    house: House,
    poller: String,
}

impl Scene {
    async fn set(store: StoreKind, poller: Value) -> Self {
        let house = House::start_on(store).await;
        house.post("app", json!({"name": "Acme", "uid": "acme"})).await.expect(201);
        for name in ["order.paid", "order.sent"] {
            house.post("event-type", json!({"name": name, "description": ""})).await.expect(201);
        }
        let made = house.post("app/acme/poller", poller).await.expect(201);
        Self { house, poller: made["id"].as_str().expect("an id").to_owned() }
    }

    async fn send(&self, event_type: &str, channels: &[&str]) -> String {
        let mut message = json!({"eventType": event_type, "payload": {"n": 1}});
        if !channels.is_empty() {
            message["channels"] = json!(channels);
        }
        id(&self.house.post("app/acme/msg", message).await.expect(202))
    }

    fn path(&self, more: &str) -> String {
        format!("app/acme/poller/{}{more}", self.poller)
    }

    async fn get(&self, more: &str) -> Reply {
        self.house.get(&self.path(more)).await
    }

    /// Asks until so many have come that nobody has committed, and gives the answer in which they all are.
    async fn polled(&self, more: &str, count: usize) -> Value {
        eventually("messages to fetch", async || {
            let read = self.get(more).await.expect(200);
            (ids(&read).len() >= count).then_some(read)
        })
        .await
    }

    async fn token(&self) -> String {
        let shown = self.house.get(&format!("auth/app/acme/poller/{}/token", self.poller)).await.expect(200);
        shown["token"].as_str().expect("a token").to_owned()
    }
}

fn id(value: &Value) -> String {
    value["id"].as_str().expect("an id").to_owned()
}

fn ids(read: &Value) -> Vec<String> {
    read["data"].as_array().expect("a list").iter().map(id).collect()
}

fn iterator(read: &Value) -> &str {
    read["iterator"].as_str().expect("an iterator")
}

async fn a_poller_lives_its_life(store: StoreKind) {
    let scene = Scene::set(store, json!({"uid": "till", "description": "Shop", "filterTypes": ["order.paid"]})).await;
    let house = &scene.house;
    assert!(scene.poller.starts_with("poll_") && scene.poller.len() == 32, "{}", scene.poller);
    let listed = house.get("app/acme/poller").await.expect(200);
    let one = &listed["data"][0];
    assert_eq!((id(one), &one["uid"], &one["description"]), (scene.poller.clone(), &json!("till"), &json!("Shop")));
    assert_eq!((&one["filterTypes"], &one["channels"]), (&json!(["order.paid"]), &Value::Null));
    assert_eq!(listed["done"], true);
    for name in ["till", &scene.poller] {
        house.get(&format!("app/acme/poller/{name}")).await.expect(200);
    }

    let first = house.post_with_key("app/acme/poller", "k", json!({"uid": "two"})).await.expect(201);
    let again = house.post_with_key("app/acme/poller", "k", json!({"uid": "two"})).await.expect(201);
    assert_eq!(first, again, "the same request is carried out once");
    house.post_with_key("app/acme/poller", "k", json!({"uid": "three"})).await.expect(409);
    house.post("app/acme/poller", json!({"uid": "till"})).await.expect(409);
    house.call("PUT", "app/acme/poller/two", json!({"uid": "till"})).await.expect(409);

    let changed = house.call("PUT", "app/acme/poller/two", json!({"uid": "due", "channels": ["a"]})).await.expect(200);
    assert_eq!((id(&changed), &changed["uid"], &changed["channels"]), (id(&first), &json!("due"), &json!(["a"])));
    assert_eq!(changed["createdAt"], first["createdAt"]);
    house.get("app/acme/poller/two").await.expect(404);
    // A change of the application's own leaves them alone.
    house.call("PATCH", "app/acme", json!({"name": "Acme & Co"})).await.expect(200);
    house.call("PUT", "app/acme", json!({"name": "Acme & Daughters", "uid": "acme"})).await.expect(200);
    assert_eq!(house.get("app/acme/poller").await.expect(200)["data"].as_array().unwrap().len(), 2);

    house.call("DELETE", "app/acme/poller/due", Value::Null).await.expect(204);
    house.call("DELETE", "app/acme/poller/due", Value::Null).await.expect(404);
    house.get("app/acme/poller/due").await.expect(404);
    for number in 1..50 {
        house.post("app/acme/poller", json!({"uid": format!("p{number}")})).await.expect(201);
    }
    let (mut found, mut back) = (Vec::new(), String::new());
    let mut path = "app/acme/poller?limit=20".to_owned();
    loop {
        let page = house.get(&path).await.expect(200);
        found.extend(ids(&page));
        back = page["prevIterator"].as_str().map_or(back, str::to_owned);
        if page["done"] == true {
            break;
        }
        path = format!("app/acme/poller?limit=20&iterator={}", iterator(&page));
    }
    assert!(found.len() == 50 && found.is_sorted(), "{found:?}");
    let before = house.get(&format!("app/acme/poller?limit=20&iterator={back}")).await.expect(200);
    assert_eq!(ids(&before), found[20..40]);
    let full = house.post("app/acme/poller", json!({})).await.expect(400);
    assert_eq!(full["code"], "limit_reached");
}

async fn messages_come_in_order_and_are_narrowed(store: StoreKind) {
    let scene = Scene::set(store, json!({"filterTypes": ["order.paid", "order.sent"], "channels": ["eu", "us"]})).await;
    let sent = [
        scene.send("order.paid", &["eu"]).await,
        scene.send("order.sent", &["us", "vip"]).await,
        scene.send("order.paid", &["cn"]).await,
        scene.send("order.other", &["eu"]).await,
        scene.send("order.paid", &[]).await,
        scene.send("order.paid", &["us"]).await,
    ];
    let read = scene.polled("", 3).await;
    assert_eq!(ids(&read), [&sent[0], &sent[1], &sent[5]].map(Clone::clone));
    let first = &read["data"][0];
    assert_eq!((&first["eventType"], &first["payload"]), (&json!("order.paid"), &json!({"n": 1})));
    assert_eq!((&first["channels"], read["done"].as_bool()), (&json!(["eu"]), Some(true)));
    assert!(first["timestamp"].is_string());

    let one = scene.get("?limit=1").await.expect(200);
    assert_eq!((ids(&one), one["done"].as_bool()), (vec![sent[0].clone()], Some(false)));
    let rest = scene.get(&format!("?iterator={}", iterator(&one))).await.expect(200);
    let both = scene.get(&format!("?iterator={}&after=2020-01-01T00:00:00Z", iterator(&one))).await;
    assert_eq!(both.status, 422, "{}", both.text);
    assert_eq!(ids(&rest), sent[1..].iter().filter(|id| ids(&read).contains(id)).cloned().collect::<Vec<_>>());
    let end = scene.get(&format!("?iterator={}", iterator(&rest))).await.expect(200);
    assert_eq!((ids(&end), end["done"].as_bool()), (vec![], Some(true)));

    for (query, expected) in [
        ("?event_type=order.sent", vec![&sent[1]]),
        ("?event_type=order.other", vec![]),
        ("?channel=vip", vec![&sent[1]]),
        ("?channel=cn", vec![]),
        ("?event_type=order.paid&channel=us", vec![&sent[5]]),
    ] {
        let read = scene.get(query).await.expect(200);
        assert_eq!(ids(&read), expected.into_iter().cloned().collect::<Vec<_>>(), "{query}");
    }

    // What comes after the end is found from there.
    let late = scene.send("order.paid", &["eu"]).await;
    let read = scene.polled(&format!("?iterator={}", iterator(&end)), 1).await;
    assert_eq!(ids(&read), [late]);
}

async fn a_consumer_gets_messages_again_until_it_says_that_it_has_them(store: StoreKind) {
    let scene = Scene::set(store, json!({})).await;
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.push(scene.send("order.paid", &[]).await);
    }
    scene.polled("", 5).await;
    let first = scene.get("/consumer/c1?limit=2").await.expect(200);
    assert_eq!((ids(&first), first["done"].as_bool()), (sent[..2].to_vec(), Some(false)));
    let again = scene.get("/consumer/c1?limit=2").await.expect(200);
    assert_eq!(ids(&again), sent[..2], "nobody has said that he has them");
    let second = scene.get(&format!("/consumer/c1?limit=2&iterator={}", iterator(&first))).await.expect(200);
    assert_eq!(ids(&second), sent[2..4]);
    let late = scene.get(&format!("/consumer/c1?limit=9&iterator={}", iterator(&first))).await.expect(200);
    assert_eq!(ids(&late), sent[2..], "what was said before changes nothing");
    assert_eq!(ids(&scene.get("/consumer/c2?limit=1").await.expect(200)), sent[..1], "another has a place of his own");

    let body = json!({"iterator": iterator(&second)});
    let committed = scene.house.post(&scene.path("/consumer/c1/commit"), body.clone()).await.expect(200);
    assert_eq!(committed["iterator"], second["iterator"]);
    let old = scene.house.post(&scene.path("/consumer/c1/commit"), json!({"iterator": iterator(&first)})).await;
    assert_eq!(old.expect(200)["iterator"], second["iterator"], "never back");
    assert_eq!(ids(&scene.get("/consumer/c1").await.expect(200)), sent[4..]);

    let listed = scene.get("/consumer").await.expect(200);
    let names: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|one| one["consumerId"].as_str().unwrap()).collect();
    assert_eq!(names, ["c1"], "who has committed nothing has no place yet");
    assert_eq!(listed["data"][0]["iterator"], second["iterator"]);
    // Whoever makes a poller of the same name again begins anew.
    scene.house.call("DELETE", &scene.path(""), Value::Null).await.expect(204);
    scene.get("/consumer/c1").await.expect(404);
}

async fn a_consumer_goes_where_it_wants(store: StoreKind) {
    let scene = Scene::set(store, json!({})).await;
    let first = scene.send("order.paid", &[]).await;
    let read = scene.polled("/consumer/c", 1).await;
    scene.polled(&format!("/consumer/c?iterator={}", iterator(&read)), 0).await;
    assert_eq!(ids(&scene.get("/consumer/c").await.expect(200)), [] as [String; 0]);

    let seek = scene.path("/consumer/c/seek");
    let back = scene.house.post(&seek, json!({"after": read["data"][0]["timestamp"]})).await.expect(200);
    assert!(iterator(&back).starts_with("iter_"));
    assert_eq!(ids(&scene.get("/consumer/c").await.expect(200)), [first.as_str()], "the moment itself is included");
    let after = json!({"after": "2020-01-01T00:00:00Z"});
    scene.house.post_with_key(&seek, "k", after.clone()).await.expect(200);
    let again = scene.get("/consumer/c").await.expect(200);
    scene.get(&format!("/consumer/c?iterator={}", iterator(&again))).await.expect(200);
    scene.house.post_with_key(&seek, "k", after).await.expect(200);
    assert_eq!(ids(&scene.get("/consumer/c").await.expect(200)), [] as [String; 0], "a repetition sets nobody back");
    // Whoever runs on with what he had read before is led to where he was set.
    let stale = scene.get("/consumer/c").await.expect(200);
    scene.house.post(&seek, json!({"after": "2020-01-01T00:00:00Z"})).await.expect(200);
    let led = scene.get(&format!("/consumer/c?iterator={}", iterator(&stale))).await.expect(200);
    assert_eq!(ids(&led), [first.as_str()]);
    let end = scene.get(&format!("/consumer/c?iterator={}", iterator(&led))).await.expect(200);
    assert_eq!(ids(&end), [] as [String; 0]);

    scene.house.call("DELETE", &scene.path("/consumer/c"), Value::Null).await.expect(204);
    scene.house.call("DELETE", &scene.path("/consumer/c"), Value::Null).await.expect(404);
    assert_eq!(scene.get("/consumer").await.expect(200)["data"], json!([]));
    assert_eq!(ids(&scene.get("/consumer/c").await.expect(200)), [first], "who comes again begins anew");
    let ahead = scene.house.post(&seek, json!({"after": "2999-01-01T00:00:00Z"})).await;
    assert_eq!(ahead.status, 422, "{}", ahead.text);
}

async fn a_place_of_before_the_poller_is_reached_by_asking(store: StoreKind) {
    let scene = Scene::set(store, json!({})).await;
    let old = scene.send("order.paid", &[]).await;
    scene.polled("", 1).await;
    let made = id(&scene.house.post("app/acme/poller", json!({})).await.expect(201));
    let scene = Scene { poller: made, ..scene };
    let new = scene.send("order.paid", &[]).await;
    let read = scene.polled("", 1).await;
    // On several nodes the beginning is half a second before, so that nothing can be missed.
    assert!(ids(&read) == [new.clone()] || ids(&read) == [old.clone(), new.clone()], "{read}");
    let all = scene.polled("?after=2020-01-01T00:00:00Z", 2).await;
    assert_eq!(ids(&all), [old, new]);
}

async fn what_is_gone_is_told(store: StoreKind) {
    let scene = Scene::set(store, json!({})).await;
    let (first, second) = (scene.send("order.paid", &[]).await, scene.send("order.paid", &[]).await);
    scene.polled("", 2).await;
    scene.house.call("DELETE", &format!("app/acme/msg/{first}/content"), Value::Null).await.expect(204);
    let read = scene.get("").await.expect(200);
    assert_eq!(ids(&read), [first, second]);
    assert_eq!(read["data"][0]["payload"], json!({"expired": true}));
    assert_eq!(read["data"][1]["payload"], json!({"n": 1}));
}

async fn a_pollers_token_opens_its_poller_and_nothing_else(store: StoreKind) {
    let scene = Scene::set(store, json!({"uid": "till"})).await;
    let house = &scene.house;
    let token = scene.token().await;
    assert_eq!(token, scene.token().await, "it is the same each time");
    let other = id(&house.post("app/acme/poller", json!({"uid": "other"})).await.expect(201));
    house.post("app", json!({"name": "Rival", "uid": "rival"})).await.expect(201);
    let sent = scene.send("order.paid", &[]).await;
    scene.polled("", 1).await;
    for name in ["till", &scene.poller] {
        let read = house.call_as(&token, "GET", &format!("app/acme/poller/{name}"), Value::Null).await.expect(200);
        assert_eq!(ids(&read), [sent.as_str()]);
    }
    let document = house.ask(http::Request::get("/openapi.json").body(axum::body::Body::empty()).unwrap()).await;
    let mut opened = Vec::new();
    for Operation { method, path, name, body } in Operation::all(&document.expect(200)) {
        for app in ["acme", "rival"] {
            for poller in ["till", "other", &other] {
                let values =
                    [("{app_id}", app), ("{sink_id}", poller), ("{endpoint_id}", poller), ("{consumer_id}", "c")];
                let path = filled_with(&path, &values);
                let request = http::Request::builder().method(&*method).uri(&path);
                let request = request.header("authorization", format!("Bearer {token}"));
                let body = if body.is_null() { String::new() } else { body.to_string() };
                let reply = house.ask(request.body(body.into()).unwrap()).await;
                let is_shut = matches!(reply.status.as_u16(), 401 | 403 | 404);
                // Nobody needs a token there.
                let is_public = name.starts_with("v1.health")
                    || matches!(&*name, "v1.endpoint.public-keys" | "v1.ingest.answer" | "v1.ingest.receive");
                if !is_shut && !is_public {
                    assert!(!path.contains("rival") && !path.contains(&other), "{method} {path}: {}", reply.status);
                    opened.push(name.clone());
                }
            }
        }
    }
    opened.sort();
    opened.dedup();
    let expected = [
        "v1.message.poller.consumer-commit",
        "v1.message.poller.consumer-poll",
        "v1.message.poller.consumer-seek",
        "v1.message.poller.list-consumers",
        "v1.message.poller.poll",
    ];
    assert_eq!(opened, expected, "what is shut to it must stay shut");
    house.call_as(&token, "GET", "app/acme/poller/till", Value::Null).await.expect(200);

    // A key that may read does so, and moves nobody's place.
    let reader = json!({"name": "k", "scopes": ["read"], "appId": "acme"});
    let key = house.post("api-key", reader).await.expect(201)["token"].as_str().expect("a key").to_owned();
    house.call_as(&key, "GET", "app/acme/poller/till", Value::Null).await.expect(200);
    house.call_as(&key, "GET", "app/acme/poller/till/consumer/c", Value::Null).await.expect(403);
    house.call_as(&key, "GET", "auth/app/acme/poller/till/token", Value::Null).await.expect(403);
    let looking = house.app_token(&id(&house.get("app/acme").await.expect(200)), &Access::read_only());
    house.call_as(&looking, "GET", "app/acme/poller/till", Value::Null).await.expect(200);
    house.call_as(&looking, "POST", "app/acme/poller", json!({})).await.expect(403);
    house.call_as(&looking, "GET", "app/acme/poller/till/consumer", Value::Null).await.expect(200);
    for (method, more, body) in [
        ("GET", "", Value::Null),
        ("DELETE", "", Value::Null),
        ("POST", "/seek", json!({"after": "2020-01-01T00:00:00Z"})),
        ("POST", "/commit", json!({"iterator": "x"})),
    ] {
        let path = format!("app/acme/poller/till/consumer/c{more}");
        house.call_as(&looking, method, &path, body).await.expect(403);
    }
    house.call_as(&looking, "GET", "auth/app/acme/poller/till/token", Value::Null).await.expect(403);
}

async fn a_token_is_rotated_without_a_gap(store: StoreKind) {
    let scene = Scene::set(store, json!({"uid": "till"})).await;
    let house = &scene.house;
    let poll =
        async |token: &str| house.call_as(token, "GET", "app/acme/poller/till", Value::Null).await.status.as_u16();
    let first = scene.token().await;
    let rotate = "auth/app/acme/poller/till/token/rotate";
    let made = house.post_with_key(rotate, "k", json!({"expiry": 3600})).await.expect(201);
    let second = made["token"].as_str().expect("a token").to_owned();
    assert_ne!(first, second);
    assert_eq!((poll(&first).await, poll(&second).await), (200, 200), "five minutes for both");
    let again = house.post_with_key(rotate, "k", json!({"expiry": 3600})).await.expect(201);
    assert_eq!((again["token"].as_str(), scene.token().await), (Some(&*second), second.clone()));
    let made = house.post(rotate, json!({"oldTokenExpiry": 0})).await.expect(201);
    let third = made["token"].as_str().expect("a token");
    assert_eq!((poll(&first).await, poll(&second).await, poll(third).await), (401, 401, 200));
    // With all tokens of the application it ends, and there can be another.
    house.post("auth/app/acme/expire-all", json!({})).await.expect(204);
    assert_eq!(poll(third).await, 401);
    let ended = house.get("auth/app/acme/poller/till/token").await.expect(409);
    assert!(ended["detail"].as_str().unwrap().contains("rotate it"), "{ended}");
    let made = house.post(rotate, json!({})).await.expect(201);
    let third = made["token"].as_str().expect("a token");
    assert_eq!(poll(third).await, 200);
    // With its poller it ends.
    house.call("DELETE", "app/acme/poller/till", Value::Null).await.expect(204);
    assert_eq!(poll(third).await, 404);
    house.post("app/acme/poller", json!({"uid": "till"})).await.expect(201);
    assert_eq!(poll(third).await, 404, "another of the same name is another");
}

async fn bad_input_is_refused_and_changes_nothing(store: StoreKind) {
    let scene = Scene::set(store, json!({"uid": "till"})).await;
    let house = &scene.house;
    let before = house.get("app/acme/poller").await.text;
    for body in [
        json!({"url": "https://example.com"}),
        json!({"uid": "poll_x"}),
        json!({"uid": ""}),
        json!({"uid": "a b"}),
        json!({"filterTypes": ["never.heard.of"]}),
        json!({"channels": ["a b"]}),
        json!({"channels": (0..11).map(|n| n.to_string()).collect::<Vec<_>>()}),
        json!({"description": "\u{0}"}),
        json!([]),
    ] {
        let reply = house.post("app/acme/poller", body.clone()).await;
        assert_eq!(reply.status, 422, "{body}: {}", reply.text);
        let reply = house.call("PUT", "app/acme/poller/till", body.clone()).await;
        assert_eq!(reply.status, 422, "{body}: {}", reply.text);
    }
    for (query, status) in [
        ("?limit=0", 422),
        ("?limit=251", 422),
        ("?limit=x", 400),
        ("?iterator=msg_x", 422),
        ("?iterator=iter_000000000000000000000000000", 422),
        ("?event_type=a b", 422),
        ("?event_type=a%20b", 422),
        ("?channel=%00", 400),
        ("?after=yesterday", 400),
        ("?order=ascending", 400),
        ("?after=2999-01-01T00:00:00Z", 422),
    ] {
        let Ok(uri) = format!("/api/v1/app/acme/poller/till{query}").parse::<http::Uri>() else { continue };
        let request = http::Request::get(uri).header("authorization", format!("Bearer {}", house.token));
        let reply = house.ask(request.body(axum::body::Body::empty()).unwrap()).await;
        assert_eq!(reply.status, status, "{query}: {}", reply.text);
    }
    assert_eq!(house.get("app/acme/poller/till/consumer/a%20b").await.status, 422);
    for (path, body) in [
        ("seek", json!({})),
        ("seek", json!({"after": "2020-01-01T00:00:00Z", "before": 1})),
        ("commit", json!({"iterator": "x"})),
        ("commit", json!({})),
    ] {
        let reply = house.post(&format!("app/acme/poller/till/consumer/c/{path}"), body.clone()).await;
        assert_eq!(reply.status, 422, "{path} {body}: {}", reply.text);
    }
    for body in [json!({"expiry": 0}), json!({"oldTokenExpiry": 90_000}), json!({"more": 1})] {
        let reply = house.post("auth/app/acme/poller/till/token/rotate", body.clone()).await;
        assert_eq!(reply.status, 422, "{body}: {}", reply.text);
    }
    assert_eq!(house.get("app/acme/poller").await.text, before);
    assert_eq!(house.get("app/acme/poller/till/consumer").await.expect(200)["data"], json!([]));
}

async fn a_sources_events_can_be_fetched_and_its_pollers_stay(store: StoreKind) {
    let house = House::start_on(store).await;
    let ask = async |method: &str, path: &str, body: Value| {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {}", house.token));
        house.ask(request.header("content-type", "application/json").body(body.to_string().into()).unwrap()).await
    };
    let body = json!({"name": "Ours", "uid": "ours", "type": "generic-webhook"});
    let made = ask("POST", "/ingest/api/v1/source", body.clone()).await.expect(201);
    let app = made["appId"].as_str().expect("an application").to_owned();
    house.post(&format!("app/{app}/poller"), json!({"uid": "till"})).await.expect(201);
    let url = made["ingestUrl"].as_str().expect("a URL").replace("https://hooks.example", "");
    ask("POST", &url, json!({"n": 1})).await.expect(200);
    ask("PUT", "/ingest/api/v1/source/ours", body).await.expect(200);
    ask("PATCH", "/ingest/api/v1/source/ours", json!({"name": "Mine"})).await.expect(200);
    ask("POST", "/ingest/api/v1/source/ours/token/rotate", json!({})).await.expect(200);
    let read = eventually("what came to the source", async || {
        let read = house.get(&format!("app/{app}/poller/till")).await.expect(200);
        (!ids(&read).is_empty()).then_some(read)
    })
    .await;
    assert_eq!(read["data"][0]["payload"], json!({"n": 1}));
}

async fn the_official_client_fetches_all_over_a_kill(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let app = "acme".to_owned();
    let (status, _) = world.post("poller", json!({"uid": "till"})).await;
    assert_eq!(status, 201);
    let shown: Value =
        world.client.get(&format!("/api/v1/auth/app/{app}/poller/till/token")).await.expect("the poller's token");
    let token = shown["token"].as_str().expect("a token").to_owned();
    let svix = |server: &Server| {
        let options = SvixOptions { server_url: Some(server.url()), ..Default::default() };
        Svix::new(token.clone(), Some(options))
    };
    let mut sent = Vec::new();
    for _ in 0..9 {
        sent.push(world.send("order.paid").await);
    }
    let (mut found, mut options) = (Vec::new(), MessagePollerConsumerPollOptions { limit: Some(2), iterator: None });
    let mut client = svix(&world.server);
    let began = Instant::now();
    while found.len() < sent.len() {
        assert!(began.elapsed() < PATIENCE, "{found:?}");
        if found.len() == 4 {
            // It forgets where it was, and so does the server if it can.
            options.iterator = None;
            world.kill_and_start_again();
            client = svix(&world.server);
            let again = poll(&client, &app, &options).await;
            assert_eq!(again.data.iter().map(|message| message.id.clone()).collect::<Vec<_>>(), found[2..]);
            options.iterator = Some(again.iterator);
        }
        let page = poll(&client, &app, &options).await;
        found.extend(page.data.into_iter().map(|message| message.id));
        options.iterator = Some(page.iterator);
    }
    assert_eq!(found, sent);
    let after = "2020-01-01T00:00:00Z".to_owned();
    let seek = PollingEndpointConsumerSeekIn { after: after.parse().expect("a time") };
    let poller = client.message().poller();
    let place = poller.consumer_seek(app.clone(), "till".into(), "c".into(), seek, None).await.expect("it seeks");
    assert!(place.iterator.starts_with("iter_"));
    let again = poll(&client, &app, &MessagePollerConsumerPollOptions { limit: None, iterator: None }).await;
    assert_eq!((again.data.len(), again.done), (9, true));
    let all = MessagePollerPollOptions { limit: Some(3), ..Default::default() };
    let page = poller.poll(app.clone(), "till".into(), Some(all)).await.expect("it polls");
    assert_eq!((page.data.len(), page.done), (3, false));
}

async fn poll(client: &Svix, app: &str, options: &MessagePollerConsumerPollOptions) -> PollingEndpointOut {
    let MessagePollerConsumerPollOptions { limit, iterator } = options;
    let options = MessagePollerConsumerPollOptions { limit: *limit, iterator: iterator.clone() };
    let poller = client.message().poller();
    poller.consumer_poll(app.to_owned(), "till".into(), "c".into(), Some(options)).await.expect("it polls")
}

/// Two nodes on one database.
async fn two_houses(address: &str) -> [Arc<House>; 2] {
    let url: DatabaseUrl = address.parse().expect("the testbed gives proper addresses");
    let folder = folder_with_keys();
    let open = async || {
        let options = PostgresOptions { heartbeat: Duration::from_millis(50), ..PostgresOptions::default() };
        let store = PostgresStore::open(&url, clock::now(), options).await.expect("the store opens");
        Arc::new(House::on(Arc::new(store), Arc::clone(&folder), Vec::new(), Layer::default()))
    };
    let houses = [open().await, open().await];
    houses[0].post("app", json!({"name": "Acme", "uid": "acme"})).await.expect(201);
    houses[0].post("app/acme/poller", json!({"uid": "till"})).await.expect(201);
    houses
}

/// Fetches until so many have come.
async fn fetch_all(house: Arc<House>, count: usize, fetched: watch::Sender<Vec<String>>) {
    let mut place = None::<String>;
    while fetched.borrow().len() < count {
        let from = place.map(|place| format!("&iterator={place}")).unwrap_or_default();
        let read = house.get(&format!("app/acme/poller/till/consumer/c?limit=50{from}")).await.expect(200);
        fetched.send_modify(|all| all.extend(ids(&read)));
        place = Some(iterator(&read).to_owned());
        tokio::time::sleep(POLL).await;
    }
}

async fn send_plain(house: &House, more: Value) -> String {
    id(&house.post("app/acme/msg", joined(json!({"eventType": "a.b", "payload": {}}), &more)).await.expect(202))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_consumer_misses_nothing_that_several_nodes_take_at_once() {
    const SENDERS: usize = 8;
    const EACH: usize = 60;
    let houses = two_houses(&Cluster::shared().fresh_database().await).await;
    let mut senders = Vec::new();
    for sender in 0..SENDERS {
        let house = Arc::clone(&houses[sender % 2]);
        senders.push(tokio::spawn(async move {
            let mut sent = Vec::new();
            for _ in 0..EACH {
                sent.push(send_plain(&house, json!({})).await);
            }
            sent
        }));
    }
    let (fetched, found) = watch::channel(Vec::new());
    timeout(PATIENCE, fetch_all(Arc::clone(&houses[0]), SENDERS * EACH, fetched)).await.expect("all that was sent");
    let mut sent = HashSet::new();
    for sender in senders {
        sent.extend(sender.await.expect("the sender ends"));
    }
    let found = found.borrow().clone();
    assert!(found.is_sorted(), "ids sort by when they were stored");
    assert_eq!(found.len(), SENDERS * EACH, "none came twice");
    assert_eq!(found.into_iter().collect::<HashSet<_>>(), sent);
}

/// One node has chosen a key and is not done with writing while the other writes, and is asked, behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_consumer_waits_for_what_another_node_is_still_writing() {
    let address = Cluster::shared().fresh_database().await;
    let [slow, quick] = two_houses(&address).await;
    let session = postrider_testbed::connect(&address).await;
    session
        .batch_execute("BEGIN; INSERT INTO event_id SELECT key, 'busy', 1 FROM application WHERE uid = 'acme'")
        .await
        .expect("the table is there");
    let sending = tokio::spawn(async move { send_plain(&slow, json!({"eventId": "busy"})).await });
    let watcher = postrider_testbed::connect(&address).await;
    let waits = async |kind: &str| {
        let sql = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = '{kind}'");
        watcher.query_one(&sql, &[]).await.expect("a count").get::<_, i64>(0) > 0
    };
    eventually("a node that is in the middle of it", async || waits("transactionid").await.then_some(())).await;
    let second = send_plain(&quick, json!({})).await;
    let (fetched, found) = watch::channel(Vec::new());
    let fetching = tokio::spawn(fetch_all(quick, 2, fetched));
    eventually("a consumer that waits, or has been given something", async || {
        (waits("advisory").await || !found.borrow().is_empty()).then_some(())
    })
    .await;
    session.batch_execute("ROLLBACK").await.expect("it ends");
    let first = sending.await.expect("the sender ends");
    timeout(PATIENCE, fetching).await.expect("both are fetched").expect("it ends");
    assert!(first < second, "the one that came later was begun before");
    assert_eq!(*found.borrow(), [first, second]);
}
