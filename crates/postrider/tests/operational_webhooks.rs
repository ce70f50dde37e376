//! Operators are told what happens, by messages like any other: the official client manages where to, the official
//! verifiers check what comes, and nothing of it is seen among the tenants' things.

mod support;

use http::{HeaderMap, Method};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::{
    eventually,
    house::House,
    receiver::{Answer, Arrival},
    stores::{StoreKind, on_both_stores},
    world::{World, hasty, joined},
};
use svix::{
    Svix,
    api::SvixOptions,
    error::Error,
    models::{
        EndpointIn, OperationalWebhookEndpointHeadersIn, OperationalWebhookEndpointIn,
        OperationalWebhookEndpointSecretIn, OperationalWebhookEndpointUpsertIn,
    },
};

on_both_stores! {
    async
    the_official_client_manages_operational_endpoints,
    no_tenant_sees_them_or_their_application,
    only_events_that_are_sent_can_be_asked_for,
    changes_of_endpoints_are_told_once_each,
    the_fate_of_a_message_is_told,
    what_was_given_up_and_sent_again_is_told_when_it_arrives,
    what_happened_before_a_kill_is_told_after_it,
    a_broken_operational_endpoint_is_not_told_of,
    what_operators_were_not_told_is_listed_and_sent_again,
}

fn client(world: &World) -> Svix {
    let options = SvixOptions { server_url: Some(world.server.url()), ..Default::default() };
    Svix::new(world.server.token().to_owned(), Some(options))
}

async fn the_official_client_manages_operational_endpoints(store: StoreKind) {
    let world = World::start_on(store).await;
    let svix = client(&world);
    let operations = svix.operational_webhook();
    let endpoints = operations.endpoint();
    assert_eq!(endpoints.list(None).await.expect("a list").data, []);

    let wanted = OperationalWebhookEndpointIn {
        uid: Some("ops".to_owned()),
        description: Some("on call".to_owned()),
        event_types: Some(["endpoint.created".to_owned()].into()),
        metadata: Some([("team".to_owned(), "infra".to_owned())].into()),
        headers: Some(
            [("x-own".to_owned(), "1".to_owned()), ("authorization".to_owned(), "Bearer s".to_owned())].into(),
        ),
        throttle_rate: Some(9),
        ..OperationalWebhookEndpointIn::new(world.receiver.url("/ops"))
    };
    let made = endpoints.create(wanted.clone(), None).await.expect("made");
    assert!(made.id.starts_with("ep_") && made.id.len() == 30, "{}", made.id);
    assert_eq!((made.uid.as_deref(), made.description.as_str(), made.disabled), (Some("ops"), "on call", Some(false)));
    assert_eq!(made.event_types, Some(["endpoint.created".to_owned()].into()));
    assert_eq!((made.throttle_rate, &made.metadata), (Some(9), wanted.metadata.as_ref().expect("given")));
    assert_eq!(refused(endpoints.create(wanted, None).await), 409);
    for name in ["ops", &made.id] {
        assert_eq!(endpoints.get(name.to_owned()).await.expect("found"), made);
    }
    assert_eq!(endpoints.list(None).await.expect("a list").data, std::slice::from_ref(&made));

    let changed = OperationalWebhookEndpointUpsertIn {
        uid: Some("ops".to_owned()),
        ..OperationalWebhookEndpointUpsertIn::new(world.receiver.url("/ops"))
    };
    let changed = endpoints.upsert("ops".to_owned(), changed).await.expect("changed");
    assert_eq!((&changed.id, &changed.event_types, changed.description.as_str()), (&made.id, &None, ""));

    let headers = endpoints.get_headers("ops".to_owned()).await.expect("headers");
    assert_eq!(headers.headers, [("x-own".to_owned(), "1".to_owned())].into());
    assert_eq!(headers.sensitive.into_iter().collect::<Vec<_>>(), ["authorization"]);
    let others = OperationalWebhookEndpointHeadersIn::new([("x-other".to_owned(), "2".to_owned())].into());
    endpoints.set_headers("ops".to_owned(), others).await.expect("set");
    assert_eq!(endpoints.get_headers("ops".to_owned()).await.expect("headers").headers.len(), 1);

    let secret = endpoints.get_secret("ops".to_owned()).await.expect("a secret").key;
    endpoints.rotate_secret("ops".to_owned(), OperationalWebhookEndpointSecretIn::new(), None).await.expect("rotated");
    let rotated = endpoints.get_secret("ops".to_owned()).await.expect("a secret").key;
    assert_ne!(rotated, secret);

    svix.endpoint()
        .create("acme".to_owned(), EndpointIn::new(world.receiver.url("/hook")), None)
        .await
        .expect("an endpoint");
    let arrived = world.receiver.wait_for("/ops", 1).await;
    for secret in [&secret, &rotated] {
        verify(&arrived[0], secret);
    }
    assert_eq!(arrived[0].header("x-other"), "2");

    endpoints.delete(made.id.clone()).await.expect("deleted");
    assert_eq!(refused(endpoints.get(made.id).await), 404);
    assert_eq!(endpoints.list(None).await.expect("a list").data, []);
}

async fn no_tenant_sees_them_or_their_application(store: StoreKind) {
    let house = House::start_on(store).await;
    let made =
        house.post("operational-webhook/endpoint", json!({"url": "https://example.com/ops", "uid": "ops"})).await;
    let made = made.expect(201)["id"].as_str().expect("an id").to_owned();
    let hidden = house.api.ids.encode(postrider::ids::Kind::Application, postrider_store::OPERATIONAL.raw());
    for path in [String::new(), "/endpoint".to_owned(), format!("/endpoint/{made}"), "/msg".to_owned()] {
        house.get(&format!("app/{hidden}{path}")).await.expect(404);
    }
    house.call("DELETE", &format!("app/{hidden}"), Value::Null).await.expect(404);
    house.call("PUT", &format!("app/{hidden}"), json!({"name": "mine now"})).await.expect(404);
    house.post(&format!("app/{hidden}/msg"), json!({"eventType": "a", "payload": {}})).await.expect(404);
    house.post(&format!("auth/app-portal-access/{hidden}"), json!({})).await.expect(404);

    let app = house.post("app", json!({"name": "Acme", "uid": "acme"})).await.expect(201)["id"].clone();
    house.get(&format!("app/acme/endpoint/{made}")).await.expect(404);
    let token = house.app_token(app.as_str().expect("an id"), &postrider::tokens::Access::full());
    for (method, path, body) in [
        ("GET", "operational-webhook/endpoint", Value::Null),
        ("GET", "operational-webhook/endpoint/ops", Value::Null),
        ("GET", "operational-webhook/endpoint/ops/secret", Value::Null),
        ("POST", "operational-webhook/endpoint", json!({"url": "https://example.com/"})),
        ("DELETE", "operational-webhook/endpoint/ops", Value::Null),
    ] {
        assert_eq!(house.call_as(&token, method, path, body).await.status, 403, "{method} {path}");
    }
    for number in 0..3 {
        house.post("app", json!({"name": "More", "uid": format!("more-{number}")})).await.expect(201);
    }
    for (order, limit, expected) in [
        ("ascending", 250, ["acme", "more-0", "more-1", "more-2"]),
        ("descending", 250, ["more-2", "more-1", "more-0", "acme"]),
        ("ascending", 1, ["acme", "more-0", "more-1", "more-2"]),
        ("descending", 2, ["more-2", "more-1", "more-0", "acme"]),
        ("descending", 4, ["more-2", "more-1", "more-0", "acme"]),
    ] {
        let mut listed = Vec::new();
        let mut iterator = String::new();
        loop {
            let page = house.get(&format!("app?limit={limit}&order={order}{iterator}")).await.expect(200);
            listed.extend(page["data"].as_array().expect("a list").iter().map(|app| app["uid"].clone()));
            if page["done"] == true {
                break;
            }
            iterator = format!("&iterator={}", page["iterator"].as_str().expect("there is more"));
        }
        assert_eq!(listed, expected, "{order} by {limit}");
        // And back again from the end.
        let last = house.api.ids.id_of(postrider_engine::AppKey::new(i64::MAX));
        if order == "ascending" {
            let page = house.get(&format!("app?limit=250&order={order}&iterator=-{last}")).await.expect(200);
            assert_eq!(page["data"].as_array().map(Vec::len), Some(4));
        }
    }
}

async fn only_events_that_are_sent_can_be_asked_for(store: StoreKind) {
    let house = House::start_on(store).await;
    for (types, is_taken) in [
        (json!(["endpoint.disabled", "message.attempt.exhausted"]), true),
        (json!([]), true),
        (json!(["ingest.endpoint.disabled"]), false),
        (json!(["endpoint.created", "invoice.paid"]), false),
    ] {
        let body = json!({"url": "https://example.com/ops", "eventTypes": types});
        let reply = house.post("operational-webhook/endpoint", body.clone()).await;
        assert_eq!(reply.status, if is_taken { 201 } else { 422 }, "{types}: {}", reply.text);
        let reply = house.call("PUT", &format!("operational-webhook/endpoint/put-{is_taken}"), body).await;
        assert_eq!(reply.status.is_success(), is_taken, "{types}: {}", reply.text);
    }
    let body = json!({"url": "https://example.com/ops", "channels": ["a"]});
    house.post("operational-webhook/endpoint", body).await.expect(422);
}

async fn changes_of_endpoints_are_told_once_each(store: StoreKind) {
    let mut world = World::start_on(store).await;
    listen(&mut world, "/ops", json!({})).await;
    listen(&mut world, "/some", json!({"eventTypes": ["endpoint.disabled"]})).await;
    let app = world.get("").await["id"].clone();
    world.endpoint("/hook", json!({})).await;
    let hook = world.get("endpoint/hook").await["id"].clone();
    for (method, path, body, status) in [
        (Method::PATCH, "endpoint/hook", json!({"description": "new"}), 200),
        (Method::PATCH, "endpoint/hook", json!({"disabled": true}), 200),
        (Method::POST, "endpoint/hook/secret/rotate", json!({}), 200),
        (Method::PATCH, "endpoint/hook", json!({"disabled": false}), 200),
        (Method::DELETE, "endpoint/hook", Value::Null, 204),
    ] {
        assert_eq!(world.call(method, path, body).await.0, status, "{path}");
    }
    let told = told_at(&world, "/ops", 8).await;
    let count = |word: &str| told.iter().filter(|event| event["type"] == format!("endpoint.{word}")).count();
    assert_eq!(["created", "updated", "deleted", "enabled", "disabled"].map(count), [1, 4, 1, 1, 1]);
    for event in &told {
        let data = &event["data"];
        assert_eq!(
            (&data["appId"], &data["appUid"], &data["endpointId"], &data["endpointUid"]),
            (&app, &json!("acme"), &hook, &json!("hook")),
            "{event}"
        );
    }
    let disabled = told_at(&world, "/some", 1).await;
    assert_eq!((&disabled[0]["data"]["trigger"], &disabled[0]["data"]["failSince"]), (&json!("manual"), &Value::Null));
}

async fn the_fate_of_a_message_is_told(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let wanted = [
        "message.attempt.failing",
        "message.attempt.recovered",
        "message.attempt.exhausted",
        "endpoint.disabled",
        "background_task.finished",
    ];
    listen(&mut world, "/ops", json!({"eventTypes": wanted})).await;
    let app = world.get("").await["id"].clone();
    world.receiver.script("/slow", vec![Answer::Status(500); 5], Answer::Status(204));
    world.receiver.always("/down", Answer::Status(500));
    world.receiver.always("/gone", Answer::Status(410));
    let mut endpoints = Vec::new();
    for path in ["/slow", "/down", "/gone"] {
        world.endpoint(path, json!({"retryPolicy": hasty(6), "circuitBreaker": false})).await;
        endpoints.push(world.get(&format!("endpoint{path}")).await["id"].clone());
    }
    let message = world.send_with("a.b", json!({"eventId": "order-1"})).await;
    let told = told_at(&world, "/ops", 6).await;
    let place = |event: &Value| endpoints.iter().position(|known| *known == event["data"]["endpointId"]);
    let names: BTreeSet<(&str, Option<usize>)> =
        told.iter().map(|event| (event["type"].as_str().expect("a type"), place(event))).collect();
    let expected = [
        ("message.attempt.failing", Some(0)),
        ("message.attempt.recovered", Some(0)),
        ("message.attempt.failing", Some(1)),
        ("message.attempt.exhausted", Some(1)),
        ("message.attempt.exhausted", Some(2)),
        ("endpoint.disabled", Some(2)),
    ];
    assert_eq!(names, expected.into());
    for event in told.iter().filter(|event| event["type"] != "endpoint.disabled") {
        let data = &event["data"];
        assert_eq!((&data["appId"], &data["msgId"], &data["msgEventId"]), (&app, &json!(message), &json!("order-1")));
        let attempt = data["lastAttempt"]["id"].as_str().expect("an id");
        let attempt = world.get(&format!("msg/{message}/attempt/{attempt}")).await;
        assert_eq!(attempt["responseStatusCode"], data["lastAttempt"]["responseStatusCode"]);
        assert_eq!(attempt["timestamp"], data["lastAttempt"]["timestamp"]);
        assert_eq!(attempt["endpointId"], data["endpointId"]);
    }
    let disabled = told.iter().find(|event| event["type"] == "endpoint.disabled").expect("it was seen above");
    assert_eq!(disabled["data"]["trigger"], "automatic");

    let (_, task) = world.post("endpoint/down/recover", json!({"since": "2020-01-01T00:00:00Z"})).await;
    let told = eventually("the end of the task", async || {
        events_at(&world, "/ops").into_iter().find(|event| event["type"] == "background_task.finished")
    })
    .await;
    let data = &told["data"];
    let expected = (&task["id"], &json!("finished"), &json!("endpoint.recover"));
    assert_eq!((&data["taskId"], &data["status"], &data["task"]), expected);
    assert_eq!((&data["data"]["messages_sent"], &data["data"]["endp_id"]), (&json!(1), &endpoints[1]));
}

async fn what_was_given_up_and_sent_again_is_told_when_it_arrives(store: StoreKind) {
    let mut world = World::start_on(store).await;
    listen(&mut world, "/ops", json!({"eventTypes": ["message.attempt.exhausted", "message.attempt.recovered"]})).await;
    // Both are given up; the first is sent again twice, the second is replayed.
    world.receiver.script("/shop", [Answer::Status(400), Answer::Status(400)], Answer::Status(204));
    world.endpoint("/shop", json!({})).await;
    let mut messages = Vec::new();
    for number in 0..2 {
        messages.push(world.send("a.b").await);
        assert_eq!(world.end(&messages[number], "shop").await.0, "fail");
    }
    // One that arrives at once is sent again too, and was never lost.
    let arrived = world.send("a.b").await;
    assert_eq!(world.end(&arrived, "shop").await.0, "success");
    for message in [&messages[0], &arrived, &messages[0]] {
        let attempts = format!("attempt/msg/{message}?endpoint_id=shop");
        let before = world.list(&attempts).await.len();
        let (status, _) = world.post(&format!("msg/{message}/endpoint/shop/resend"), Value::Null).await;
        assert_eq!(status, 202);
        // Written down, and with it what operators are to be told.
        eventually("the resend", async || (world.list(&attempts).await.len() > before).then_some(())).await;
    }
    let (status, _) = world.post(&format!("dead-letter/{}/endpoint/shop/replay", messages[1]), Value::Null).await;
    assert_eq!(status, 202);
    // The replay came last, and messages are made of entries in their order: there are no others before it. They are on
    // their way side by side, though, and may overtake one another.
    let last = (json!("message.attempt.recovered"), json!(messages[1]));
    let told = eventually("the last event", async || {
        let told: Vec<(Value, Value)> = events_at(&world, "/ops")
            .into_iter()
            .map(|event| (event["type"].clone(), event["data"]["msgId"].clone()))
            .collect();
        (told.contains(&last) && told.len() >= 2 * messages.len()).then_some(told)
    })
    .await;
    let mut told: Vec<String> = told.iter().map(|(name, message)| format!("{name} {message}")).collect();
    told.sort();
    let mut expected: Vec<String> = messages
        .iter()
        .flat_map(|message| ["exhausted", "recovered"].map(|word| format!("\"message.attempt.{word}\" \"{message}\"")))
        .collect();
    expected.sort();
    assert_eq!(told, expected);
    let recovered = events_at(&world, "/ops").into_iter().find(|event| event["type"] == last.0).expect("it was seen");
    assert_eq!(recovered["data"]["lastAttempt"]["responseStatusCode"], 204, "{recovered}");
}

async fn what_happened_before_a_kill_is_told_after_it(store: StoreKind) {
    let mut world = World::start_on(store).await;
    listen(&mut world, "/ops", json!({})).await;
    let mut made = BTreeSet::new();
    for number in 0..20 {
        world.endpoint(&format!("/hook-{number}"), json!({})).await;
        made.insert(format!("hook-{number}"));
    }
    world.kill_and_start_again();
    eventually("all to be told", async || {
        let told = events_at(&world, "/ops");
        let names = told.iter().map(|event| event["data"]["endpointUid"].as_str().expect("a uid").to_owned());
        (names.collect::<BTreeSet<_>>() == made).then_some(())
    })
    .await;
    // What was on the network at the kill may come twice, under the same id.
    let messages: BTreeSet<String> =
        world.receiver.arrivals_at("/ops").iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect();
    assert_eq!(messages.len(), 20, "one message for each");
}

async fn a_broken_operational_endpoint_is_not_told_of(store: StoreKind) {
    let mut world = World::start_on(store).await;
    listen(&mut world, "/ops", json!({})).await;
    world.receiver.always("/broken", Answer::Status(410));
    listen(&mut world, "/broken", json!({})).await;
    world.endpoint("/one", json!({})).await;
    eventually("the broken one to be disabled", async || {
        let all: Vec<Value> = world.client.list(OPERATIONAL).await.expect("a list");
        all.iter().any(|endpoint| endpoint["disabled"] == true).then_some(())
    })
    .await;
    world.endpoint("/two", json!({})).await;
    let told = told_at(&world, "/ops", 2).await;
    assert!(told.iter().all(|event| event["type"] == "endpoint.created"), "{told:?}");
}

async fn what_operators_were_not_told_is_listed_and_sent_again(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/ops", [Answer::Status(400)], Answer::Status(204));
    listen(&mut world, "/ops", json!({})).await;
    world.endpoint("/one", json!({})).await;
    let dead = eventually("the dead letter", async || {
        let all: Vec<Value> = world.client.list(DEAD_LETTERS).await.expect("a list");
        all.into_iter().next()
    })
    .await;
    assert_eq!((&dead["eventType"], &dead["reason"]), (&json!("endpoint.created"), &json!("permanent")), "{dead}");
    assert_eq!(dead["endpointUrl"], world.receiver.url("/ops"));
    let attempts = format!("{OPERATIONAL}/ops/attempt");
    let tried: Vec<Value> = world.client.list(&format!("{attempts}?with_msg=true")).await.expect("a list");
    assert_eq!(tried.len(), 1, "{tried:?}");
    let (status, event) = (&tried[0]["responseStatusCode"], &tried[0]["msg"]["eventType"]);
    assert_eq!((status, event), (&json!(400), &json!("endpoint.created")));
    let none: Vec<Value> = world.client.list(&format!("{DEAD_LETTERS}?reason=expired")).await.expect("a list");
    assert_eq!(none, Vec::<Value>::new());

    let replay = format!("{DEAD_LETTERS}/{}/endpoint/ops/replay", dead["msgId"].as_str().expect("an id"));
    assert_eq!(world.client.create(&replay, &json!({})).await, json!({"replayed": true}));
    let arrived = world.receiver.wait_for("/ops", 2).await;
    assert_eq!(arrived[0].header("webhook-id"), arrived[1].header("webhook-id"), "the same event");
    eventually("the second attempt", async || {
        let tried: Vec<Value> = world.client.list(&attempts).await.expect("a list");
        (tried.len() == 2 && tried[0]["responseStatusCode"] == 204).then_some(())
    })
    .await;

    // A tenant has no part in it, and its messages are none of these.
    let message = world.send("a.b").await;
    let foreign = format!("{DEAD_LETTERS}/{message}/endpoint/ops/replay");
    assert_eq!(world.client.send(Method::POST, &foreign, &[], "").await.expect("an answer").0, 404);
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    let mut tenant = support::api::Client::new(world.server.address(), &world.server.make_token(&["--app", &app]));
    for (method, path) in [(Method::GET, DEAD_LETTERS), (Method::GET, &attempts), (Method::POST, &replay)] {
        assert_eq!(tenant.send(method, path, &[], "").await.expect("an answer").0, 403, "{path}");
    }
}

const DEAD_LETTERS: &str = "/api/v1/operational-webhook/dead-letter";
const OPERATIONAL: &str = "/api/v1/operational-webhook/endpoint";

async fn listen(world: &mut World, path: &str, more: Value) {
    let body = joined(json!({"url": world.receiver.url(path), "uid": &path[1..]}), &more);
    world.client.create(OPERATIONAL, &body).await;
}

fn events_at(world: &World, path: &str) -> Vec<Value> {
    let arrivals = world.receiver.arrivals_at(path);
    arrivals.iter().map(|arrival| serde_json::from_slice(&arrival.body).expect("JSON")).collect()
}

async fn told_at(world: &World, path: &str, count: usize) -> Vec<Value> {
    let arrivals = world.receiver.wait_for(path, count).await;
    assert_eq!(arrivals.len(), count, "more came to {path}: {:?}", events_at(world, path));
    events_at(world, path)
}

fn verify(arrival: &Arrival, secret: &str) {
    let headers: HeaderMap = arrival.headers.clone();
    let verifier = svix::webhooks::Webhook::new(secret).expect("a secret");
    verifier.verify(&arrival.body, &headers).expect("it is signed");
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result {
        Err(Error::Http(error)) => error.status.as_u16(),
        other => panic!("not refused: {other:?}"),
    }
}
