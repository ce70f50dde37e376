//! Messages handed in many at a time: in their order, each answered by itself, each once, whoever is killed in between.

mod support;

use axum::body::Body;
use http::{Method, Request};
use postrider_store::{AppKind, MessageFilter, Order, Page};
use serde_json::{Value, json, value::RawValue};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use support::{
    api::Client,
    eventually,
    house::{House, Reply},
    receiver::{Answer, Arrival},
    stores::{StoreKind, on_both_stores},
    world::World,
};

on_both_stores! {
    async
    each_message_is_answered_by_itself,
    a_payload_stays_as_it_came_byte_for_byte,
    the_whole_is_refused_if_it_is_no_batch_and_changes_nothing,
    a_repeated_batch_creates_nothing_twice_and_answers_the_same,
    a_message_has_a_key_of_its_own,
    a_batch_can_bring_its_application_along,
    whoever_may_not_send_one_may_not_send_many,
    a_batch_arrives_in_its_order_on_a_fifo_endpoint_and_by_key,
    those_past_the_rate_are_put_off_and_none_behind_them_is_taken,
    nothing_is_lost_or_doubled_whoever_is_killed_in_the_middle,
    many_batches_at_once_leave_room_for_single_messages,
}

const PATH: &str = "app/acme/msg-batch";

async fn house(store: StoreKind) -> House {
    let house = House::start_on(store).await;
    house.post("app", json!({"name": "Acme", "uid": "acme"})).await.expect(201);
    house
}

fn message(n: usize) -> Value {
    json!({"eventType": "a.b", "payload": {"n": n}})
}

fn batch(messages: &[Value]) -> Value {
    json!({ "messages": messages })
}

fn statuses(answer: &Value) -> Vec<u64> {
    answer["data"].as_array().expect("a list").iter().map(|one| one["status"].as_u64().expect("a status")).collect()
}

fn ids(answer: &Value) -> Vec<String> {
    let ids = answer["data"].as_array().expect("a list").iter().filter_map(|one| one["message"]["id"].as_str());
    ids.map(str::to_owned).collect()
}

async fn count(house: &House) -> usize {
    house.get("app/acme/msg?limit=250").await.expect(200)["data"].as_array().expect("a list").len()
}

async fn raw(house: &House, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Reply {
    let mut request =
        Request::post(format!("/api/v1/{path}")).header("authorization", format!("Bearer {}", house.token));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    house.ask(request.body(body.into()).expect("a request")).await
}

async fn each_message_is_answered_by_itself(store: StoreKind) {
    let house = house(store).await;
    let single = json!({"eventType": "a.b", "eventId": "taken", "payload": {}});
    house.post("app/acme/msg", single.clone()).await.expect(202);
    let bad = [
        json!({"eventType": "a b", "payload": {}}),
        json!({"eventType": "a.b", "payload": []}),
        json!({"eventType": "a.b"}),
        json!({"eventType": "a.b", "payload": {}, "colour": 1}),
        json!({"eventType": "a.b", "payload": {}, "deliverAt": "2020-01-01T00:00:00Z"}),
        json!({"eventType": "a.b", "payload": {}, "channels": []}),
        json!([1]),
        json!(7),
        Value::Null,
    ];
    let mut messages = vec![message(0), single];
    messages.extend(bad.clone());
    messages.push(json!({"eventType": "a.b", "payload": {}, "idempotencyKey": "a b"}));
    messages.push(json!({"eventType": "a.b", "payload": {"x": "y".repeat(1024 * 1024)}}));
    messages
        .push(json!({"eventType": "a.b", "eventId": "mine", "tags": ["t"], "orderingKey": "k", "payload": {"n": 1}}));
    messages.push(json!({"eventType": "a.b", "eventId": "mine", "payload": {}}));
    messages.push(json!({"eventType": "a.b", "payload": {},
        "transformationsParams": {"rawPayload": "<a>", "headers": {"content-type": "text/xml"}}}));
    let answer = house.post(PATH, batch(&messages)).await.expect(200);
    let expected = [&[202, 409][..], &[422; 10], &[413, 202, 409, 202]].concat();
    assert_eq!(statuses(&answer), expected, "{answer}");

    // In the words of the single call.
    let data = answer["data"].as_array().expect("a list");
    for (n, one) in bad.iter().enumerate() {
        let alone = raw(&house, "app/acme/msg", &[], one.to_string()).await.expect(422);
        assert_eq!(data[2 + n]["error"], alone, "{one}");
    }
    assert_eq!(data[1]["error"]["code"], "conflict");
    assert_eq!(data[11]["error"]["detail"][0]["loc"], json!(["body", "idempotencyKey"]));
    assert_eq!(data[12]["error"]["code"], "payload_too_large");
    for at in [0, 13, 15] {
        let stored = house.get(&format!("app/acme/msg/{}", data[at]["message"]["id"].as_str().expect("an id"))).await;
        assert_eq!(stored.expect(200), data[at]["message"]);
    }
    assert_eq!(data[15]["message"]["payload"], json!({"rawPayload": "<a>"}));
    let bare = house.post(&format!("{PATH}?with_content=false"), batch(&[message(1)])).await.expect(200);
    assert_eq!(bare["data"][0]["message"]["payload"], json!({}));
    assert_eq!(count(&house).await, 5);
}

async fn a_payload_stays_as_it_came_byte_for_byte(store: StoreKind) {
    let house = house(store).await;
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(62), "]".repeat(62));
    let payloads = [
        r#"{ "n" : 1e400, "a":1,"a":2 , "m":123456789012345678901234567890}"#,
        "{\"a\":[1,\t2\n],\"b\":\"\\u0000 \\u00e9 \u{e9} \\/\"}",
        "{}",
        &deep,
    ];
    let messages = payloads.map(|payload| format!(r#" {{"payload":{payload} , "eventType":"a.b"}}"#));
    let body = format!(" {{ \"messages\" : [{}] }}\n", messages.join(" ,\n"));
    let reply = raw(&house, PATH, &[], body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    for payload in payloads {
        assert!(reply.text.contains(&format!(r#""payload":{payload},"#)), "{payload}: {}", reply.text);
    }
    let answer: Vec<BTreeMap<String, Box<RawValue>>> =
        serde_json::from_str::<BTreeMap<String, _>>(&reply.text).expect("JSON").remove("data").expect("a list");
    for (one, payload) in answer.iter().zip(payloads) {
        let message: BTreeMap<String, Box<RawValue>> = serde_json::from_str(one["message"].get()).expect("JSON");
        let id: String = serde_json::from_str(message["id"].get()).expect("an id");
        let stored = house.get(&format!("app/acme/msg/{id}")).await;
        assert_eq!(stored.text, one["message"].get());
        assert_eq!(message["payload"].get(), payload);
    }
}

async fn the_whole_is_refused_if_it_is_no_batch_and_changes_nothing(store: StoreKind) {
    let house = house(store).await;
    let fine = message(1).to_string();
    let many = |count: usize| format!(r#"{{"messages":[{}]}}"#, vec![&*fine; count].join(","));
    let great = format!(r#"{{"messages":[{fine},{{"payload":{{"x":"{}"}}}}]}}"#, "x".repeat(8 * 1024 * 1024));
    for (body, status) in [
        (String::new(), 422),
        ("{}".to_owned(), 422),
        (format!("[{fine}]"), 422),
        (r#"{"messages":[]}"#.to_owned(), 422),
        (r#"{"messages":null}"#.to_owned(), 422),
        (r#"{"messages":{}}"#.to_owned(), 422),
        (format!(r#"{{"messages":[{fine}],"colour":1}}"#), 422),
        (format!(r#"{{"messages":[{fine}],"messages":[{fine}]}}"#), 422),
        (format!(r#"{{"messages":[{fine},]}}"#), 422),
        (format!(r#"{{"messages":[{fine}"#), 422),
        (format!(r#"{{"messages":[{fine},{{"eventType":"a" "payload":{{}}}}]}}"#), 422),
        (many(1_001), 422),
        (many(100_000), 422),
        (great, 413),
    ] {
        let reply = raw(&house, PATH, &[], body.clone()).await;
        assert_eq!(reply.status.as_u16(), status, "{body:.100}: {}", reply.text);
        assert!(reply.json()["detail"].is_array() || status == 413, "{}", reply.text);
    }
    for (headers, query, status) in [
        (("idempotency-key", "a b"), "", 422),
        (("content-type", "text/plain"), "", 415),
        (("content-encoding", "gzip"), "", 415),
        (("accept", "*/*"), "?colour=1", 400),
        (("accept", "*/*"), "?with_content=perhaps", 400),
    ] {
        let reply = raw(&house, &format!("{PATH}{query}"), &[headers], many(1)).await;
        assert_eq!(reply.status.as_u16(), status, "{headers:?} {query}: {}", reply.text);
    }
    assert_eq!(count(&house).await, 0);
    assert_eq!(statuses(&raw(&house, PATH, &[], many(1_000)).await.expect(200)), vec![202; 1_000]);
}

async fn a_repeated_batch_creates_nothing_twice_and_answers_the_same(store: StoreKind) {
    let house = house(store).await;
    let mut messages: Vec<Value> = (0..150).map(message).collect();
    messages[7] = json!({"eventType": "a b", "payload": {}});
    let first = house.post_with_key(PATH, "mine", batch(&messages)).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let again = house.post_with_key(PATH, "mine", batch(&messages)).await;
    assert_eq!(again.text, first.text);
    assert_eq!(count(&house).await, 149);

    // What differs under the same key is refused, and the rest is what it was; what was refused may be mended.
    messages[3] = message(1_000);
    messages[7] = message(7);
    let other = house.post_with_key(PATH, "mine", batch(&messages)).await.expect(200);
    let (first, mut expected) = (first.json(), vec![202; 150]);
    expected[3] = 409;
    assert_eq!(statuses(&other), expected);
    assert_eq!(other["data"][4], first["data"][4]);
    assert_eq!(count(&house).await, 150);

    // Without a key everything is new, and a key is one for each URL.
    house.post(PATH, batch(&messages[..2])).await.expect(200);
    house.post_with_key("app/acme/msg", "mine", message(0)).await.expect(202);
    assert_eq!(count(&house).await, 153);
    // A key that a client made up for the call: bodies are not compared.
    let made_up = house.post_with_key(PATH, "auto_1", batch(&[message(1)])).await.expect(200);
    assert_eq!(house.post_with_key(PATH, "auto_1", batch(&[message(2)])).await.expect(200), made_up);
}

async fn a_message_has_a_key_of_its_own(store: StoreKind) {
    let house = house(store).await;
    let keyed = |key: &str, n: usize| json!({"eventType": "a.b", "payload": {"n": n}, "idempotencyKey": key});
    // Twice in one batch, too: once with the same body, and once with another.
    let messages = [keyed("a", 1), keyed("b", 2), keyed("a", 1), keyed("b", 3), message(4)];
    let first = house.post_with_key(PATH, "whole", batch(&messages)).await.expect(200);
    assert_eq!(statuses(&first), [202, 202, 202, 409, 202]);
    assert_eq!(first["data"][0], first["data"][2]);
    assert_eq!(count(&house).await, 3);
    // It goes with the message, wherever that stands and whatever the whole is called.
    let again = house.post(PATH, batch(&[keyed("b", 2), keyed("a", 1)])).await.expect(200);
    assert_eq!((&again["data"][0], &again["data"][1]), (&first["data"][1], &first["data"][0]));
    assert_eq!(count(&house).await, 3);
    house.post("app/acme/msg", keyed("a", 1)).await.expect(422);
}

async fn a_batch_can_bring_its_application_along(store: StoreKind) {
    let house = House::start_on(store).await;
    let bringing = |uid: &str| json!({"eventType": "a", "payload": {}, "application": {"name": "New", "uid": uid}});
    house.post("app/new/msg-batch", batch(&[message(1), message(2)])).await.expect(404);
    let made = house.post("api-key", json!({"name": "k", "scopes": ["ingest"]})).await.expect(201);
    let ingest = made["token"].as_str().expect("a key");
    let refused = house.call_as(ingest, "POST", "app/new/msg-batch", batch(&[bringing("new")])).await.expect(200);
    assert_eq!(statuses(&refused), [403]);
    house.get("app/new").await.expect(404);
    // As if they came one after the other.
    let messages = [message(1), bringing("other"), bringing("new"), message(2), bringing("new")];
    let answer = house.post("app/new/msg-batch", batch(&messages)).await.expect(200);
    assert_eq!(statuses(&answer), [404, 422, 202, 202, 202]);
    house.get("app/new").await.expect(200);
}

async fn whoever_may_not_send_one_may_not_send_many(store: StoreKind) {
    let house = house(store).await;
    let key =
        async |body: Value| house.post("api-key", body).await.expect(201)["token"].as_str().expect("a key").to_owned();
    house.post("app", json!({"name": "Theirs", "uid": "theirs"})).await.expect(201);
    let body = batch(&[message(1)]);
    let ask = async |token: &str, app: &str| {
        house.call_as(token, "POST", &format!("app/{app}/msg-batch"), body.clone()).await.status.as_u16()
    };
    assert_eq!(ask("nonsense", "acme").await, 401);
    for scope in ["read", "manage", "replay"] {
        assert_eq!(ask(&key(json!({"name": "k", "scopes": [scope]})).await, "acme").await, 403, "{scope}");
    }
    let ours = key(json!({"name": "k", "scopes": ["ingest"], "appId": "acme"})).await;
    assert_eq!((ask(&ours, "acme").await, ask(&ours, "theirs").await, ask(&ours, "nowhere").await), (200, 404, 404));
    let source = json!({"name": "Any", "type": "generic-webhook"});
    let request = Request::post("/ingest/api/v1/source")
        .header("authorization", format!("Bearer {}", house.token))
        .body(Body::from(source.to_string()));
    let made = house.ask(request.expect("a request")).await;
    assert!(made.status.is_success(), "{}", made.text);
    let page = || Page { from: None, order: Order::Ascending, limit: 10 };
    let all = house.store.applications_of(AppKind::Source, Page { from: None, order: Order::Ascending, limit: 10 });
    let all = all.await.expect("read");
    let source = house.api.ids.id_of(all[0].key);
    assert_eq!(ask(&house.token, &source).await, 409);
    assert!(house.store.messages(all[0].key, MessageFilter::default(), page()).await.expect("read").is_empty());

    let loops = json!({"eventType": "a", "payload": {}});
    let ours = house.api.ids.deployment().to_owned();
    let refused = raw(&house, PATH, &[("postrider-loop", &ours)], batch(&[loops]).to_string()).await;
    assert_eq!(refused.status, 422);
}

async fn a_batch_arrives_in_its_order_on_a_fifo_endpoint_and_by_key(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let hasty = json!({"schedule": {"type": "fixed", "interval": "5ms"}, "jitter": "none", "maxAttempts": 50});
    let stumbles = [Answer::Status(204), Answer::Status(503), Answer::Reset, Answer::Status(204), Answer::Status(503)];
    for (path, ordering) in [("/fifo", "fifo"), ("/keyed", "key")] {
        world.receiver.script(path, stumbles.clone(), Answer::Status(204));
        let more = json!({"ordering": ordering, "circuitBreaker": false, "retryPolicy": hasty});
        world.endpoint(path, more).await;
    }
    // Some are owed to many: alone, they would wait behind all that are owed to few.
    for n in 0..10 {
        world.endpoint(&format!("/crowd{n}"), json!({"channels": ["crowd"]})).await;
    }
    let mut sent = Vec::new();
    for call in 0..2 {
        let messages: Vec<Value> = (0..150)
            .map(|n| {
                let mut message = json!({"eventType": "a.b", "payload": {"n": call * 150 + n}});
                message["orderingKey"] = json!(format!("k{}", n % 3));
                if n % 7 == 0 {
                    message["channels"] = json!(["crowd"]);
                }
                message
            })
            .collect();
        let (status, answer) = world.post("msg-batch", batch(&messages)).await;
        assert_eq!((status, statuses(&answer)), (200, vec![202; 150]));
        sent.extend(ids(&answer));
        if call == 0 {
            world.kill_and_start_again();
        }
    }
    assert!(sent.is_sorted(), "ids sort by the order of acceptance");
    let last = sent.last().expect("some were sent").clone();
    for endpoint in ["fifo", "keyed"] {
        assert_eq!(world.end(&last, endpoint).await.0, "success");
    }
    // What was taken, but not written down when it was killed, comes again; nothing comes before what is before it.
    let series = |arrivals: Vec<Arrival>, expected: Vec<&String>, what: &str| {
        let mut at = 0;
        for arrival in &arrivals {
            let id = arrival.header("webhook-id");
            match expected.iter().position(|known| *known == id).expect("one of ours") {
                place if place == at => {}
                place if place == at + 1 => at += 1,
                place => panic!("{what}: {place} came when it was {at}'s turn"),
            }
            assert_eq!(arrival.header("webhook-sequence"), (at + 1).to_string(), "{what}");
        }
        assert_eq!(at + 1, expected.len(), "{what}: all of them");
    };
    series(world.receiver.arrivals_at("/fifo"), sent.iter().collect(), "fifo");
    for key in 0..3 {
        let expected: Vec<&String> = sent.iter().enumerate().filter(|(n, _)| n % 3 == key).map(|(_, id)| id).collect();
        let of_key = || {
            let all = world.receiver.arrivals_at("/keyed");
            all.into_iter().filter(|it| expected.iter().any(|id| *id == it.header("webhook-id"))).collect::<Vec<_>>()
        };
        eventually("all of a key", async || {
            let seen: BTreeSet<String> = of_key().iter().map(|it| it.header("webhook-id").to_owned()).collect();
            (seen.len() == expected.len()).then_some(())
        })
        .await;
        series(of_key(), expected.clone(), &format!("k{key}"));
    }
}

async fn those_past_the_rate_are_put_off_and_none_behind_them_is_taken(store: StoreKind) {
    let mut world = World::start_on(store).await;
    assert!(world.server.stop().success());
    world.server.set_variables(&[("POSTRIDER_INGEST_RATE_PER_APPLICATION", "20")]);
    world.start_again();
    let messages: Vec<Value> = (0..100).map(message).collect();
    let (status, answer) = world.post("msg-batch", batch(&messages)).await;
    assert_eq!(status, 200, "{answer}");
    let found = statuses(&answer);
    let taken = found.iter().position(|status| *status != 202).expect("it is limited");
    assert!((20..60).contains(&taken), "{taken} of 100");
    assert!(found[taken..].iter().all(|status| *status == 429), "{found:?}");
    let last = &answer["data"][99];
    assert_eq!((&last["error"]["code"], &last["retryAfter"]), (&json!("rate_limit"), &json!(1)));
    assert_eq!(world.list("msg").await.len(), taken);

    // Nothing is read of a batch for which there is no room at all.
    let refused = eventually("a refusal of the whole", async || {
        let body = batch(&messages).to_string();
        let path = "/api/v1/app/acme/msg-batch";
        let (head, _) = world.client.send_whole(Method::POST, path, &[], &body).await.expect("an answer");
        (head.status == 429).then_some(head)
    })
    .await;
    assert_eq!(refused.headers["retry-after"], "1");
}

/// In each round a batch is handed in, the server is killed meanwhile, and the batch is handed in until it is answered.
async fn nothing_is_lost_or_doubled_whoever_is_killed_in_the_middle(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/hook", json!({})).await;
    let rounds = match store {
        StoreKind::Sqlite => 6,
        StoreKind::Postgresql => 3,
    };
    let mut accepted: BTreeMap<u64, String> = BTreeMap::new();
    let mut cut_off = 0;
    for round in 0..rounds {
        let messages: Vec<Value> =
            (0..300).map(|n| json!({"eventType": "a.b", "payload": {"n": round * 300 + n}})).collect();
        let (body, key) = (batch(&messages).to_string(), format!("round-{round}"));
        let mut other = Client::new(world.server.address(), world.server.token());
        let (sent, key_too) = (body.clone(), key.clone());
        let handing_in = tokio::spawn(async move {
            let headers = [("idempotency-key", &*key_too)];
            other.send(Method::POST, "/api/v1/app/acme/msg-batch", &headers, &sent).await
        });
        // As much of it as gets there: from the first commit to the last.
        let begun = eventually("the first of it", async || {
            let list = world.get("msg?limit=1&with_content=true").await;
            let newest = list["data"][0]["payload"]["n"].as_u64().unwrap_or(0);
            let is_there = list["data"][0].is_object();
            newest.checked_sub(round * 300).filter(|_| is_there)
        })
        .await;
        world.kill_and_start_again();
        let first = handing_in.await.expect("no panic").ok();
        cut_off += usize::from(first.is_none());
        println!("round {round}: killed when {begun} of 300 had been seen; answered: {}", first.is_some());
        let headers = [("idempotency-key", &*key)];
        let answer = eventually("an answer", async || {
            let path = "/api/v1/app/acme/msg-batch";
            let answer = world.client.send(Method::POST, path, &headers, &body).await.ok()?;
            (answer.0 == 200).then_some(answer.1)
        })
        .await;
        if let Some((_, first)) = first {
            assert_eq!(first, answer, "what was answered before the kill is answered again");
        }
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(statuses(&answer), vec![202; 300]);
        for one in answer["data"].as_array().expect("a list") {
            let message = &one["message"];
            accepted.insert(
                message["payload"]["n"].as_u64().expect("n"),
                message["id"].as_str().expect("an id").to_owned(),
            );
        }
    }
    println!("{cut_off} of {rounds} calls were cut off");
    assert_eq!(accepted.len() as u64, rounds * 300);
    let stored = world.list("msg").await;
    assert_eq!(stored.len() as u64, rounds * 300, "none twice");
    let by_order: Vec<&String> = accepted.values().collect();
    assert!(by_order.is_sorted(), "in their order, over all rounds");
    eventually("all deliveries", async || {
        let arrived: BTreeSet<String> =
            world.receiver.arrivals_at("/hook").iter().map(|it| it.header("webhook-id").to_owned()).collect();
        (arrived.len() as u64 == rounds * 300).then_some(())
    })
    .await;
}

async fn many_batches_at_once_leave_room_for_single_messages(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let messages: Vec<Value> = (0..500).map(message).collect();
    let body = batch(&messages).to_string();
    let (address, token) = (world.server.address(), world.server.token().to_owned());
    let batches: Vec<_> = (0..8)
        .map(|_| {
            let (body, mut client) = (body.clone(), Client::new(address, &token));
            tokio::spawn(async move {
                let answer =
                    client.send(Method::POST, "/api/v1/app/acme/msg-batch", &[], &body).await.expect("an answer");
                assert_eq!(answer.0, 200);
                statuses(&serde_json::from_slice(&answer.1).expect("JSON")).iter().filter(|one| **one == 202).count()
            })
        })
        .collect();
    let mut single = 0;
    while !batches.iter().all(tokio::task::JoinHandle::is_finished) || single < 20 {
        let (status, answer) = world.post("msg", message(0)).await;
        assert_eq!(status, 202, "{answer}");
        single += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut taken = 0;
    for batch in batches {
        taken += batch.await.expect("no panic");
    }
    assert_eq!(taken, 8 * 500, "none was put off: they wait for one another");
    assert_eq!(world.list("msg").await.len(), taken + single);
}
