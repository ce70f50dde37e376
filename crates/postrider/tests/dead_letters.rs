//! What was given up: found, explained and sent again; and the long work that people ask for, which goes on after a
//! restart.
//!
//! `DEAD_LETTERS=5000` makes the bulk replay that is killed in its middle smaller than the usual fifty thousand.

mod support;

use bytes::Bytes;
use http::Method;
use jiff::SignedDuration;
use postrider::{clock, ids::IdCodec, keyring::Keyring, tokens::Access};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, Trigger,
    policy::{Class, DeathReason, Next, Progress, Rule},
};
use postrider_store::{Accepted, AttemptRecord, Content, NewMessage, Settlement, Store};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{
    POLL,
    api::Client,
    eventually,
    house::House,
    now,
    receiver::Answer,
    server::Server,
    stores::{StoreKind, on_both_stores, open_database},
    world::{World, hasty},
};

on_both_stores! {
    async
    dead_letters_are_listed_filtered_and_counted,
    a_list_of_dead_letters_is_walked_to_the_end_and_back,
    a_dead_letter_tells_its_whole_story,
    what_an_endpoint_left_behind_when_it_was_deleted_is_still_found,
    a_dead_letter_that_is_replayed_twice_is_sent_once,
    what_a_person_called_back_is_sent_again_only_if_that_is_asked_for,
    a_repeated_request_for_a_replay_is_told_what_the_first_was,
    what_waits_for_an_endpoint_when_it_is_deleted_becomes_dead_letters,
    all_that_match_are_replayed_by_a_task,
    a_task_that_is_cancelled_leaves_the_rest_as_it_is,
    a_recovery_takes_what_failed_in_its_span,
    an_endpoint_gets_what_it_missed_before_it_was_made,
    a_bulk_replay_sends_again_what_matches_delivered_or_not,
    what_waits_can_be_called_back,
    a_retry_that_waits_can_be_called_back,
    contents_are_expunged_one_by_one_in_bulk_and_altogether,
    tenants_are_strangers,
    a_bulk_replay_that_is_killed_goes_on_and_sends_each_once_more,
}

fn ids_in(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| row["msgId"].as_str().expect("an id").to_owned()).collect()
}

fn words(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Two endpoints that take nothing, each in its own way, and one that takes everything.
async fn world_of_refusals(store: StoreKind) -> (World, Vec<String>) {
    let mut world = World::start_on(store).await;
    let no = Answer::Full { status: 400, headers: Vec::new(), body: "no, thank you".into() };
    world.receiver.always("/refuses", no);
    world.receiver.always("/down", Answer::Status(500));
    for path in ["/refuses", "/down", "/well"] {
        world.endpoint(path, json!({"retryPolicy": hasty(2)})).await;
    }
    let mut sent = Vec::new();
    for event_type in ["a", "b", "a", "b"] {
        let message = world.send(event_type).await;
        assert_eq!(world.end(&message, "refuses").await.0, "fail");
        assert_eq!(world.end(&message, "down").await.0, "fail");
        assert_eq!(world.end(&message, "well").await.0, "success");
        sent.push(message);
    }
    (world, sent)
}

async fn dead_letters_are_listed_filtered_and_counted(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    let all = world.list("dead-letter").await;
    assert_eq!(all.len(), 8, "what was delivered is none");
    let newest_first: Vec<String> = sent.iter().rev().flat_map(|id| [id.clone(), id.clone()]).collect();
    assert_eq!(ids_in(&all), newest_first);
    let third_died = words(&world.get(&format!("dead-letter/{}/endpoint/refuses", sent[2])).await["diedAt"]).to_owned();
    let down = words(&world.get("endpoint/down").await["id"]).to_owned();
    let picked = |numbers: &[usize]| numbers.iter().map(|n| sent[*n].clone()).collect::<Vec<_>>();
    for (query, expected) in [
        ("endpoint_id=refuses".to_owned(), picked(&[3, 2, 1, 0])),
        (format!("endpoint_id={down}"), picked(&[3, 2, 1, 0])),
        ("endpoint_id=well".to_owned(), vec![]),
        ("event_types=a&endpoint_id=down".to_owned(), picked(&[2, 0])),
        ("event_types=a,b&endpoint_id=down".to_owned(), picked(&[3, 2, 1, 0])),
        ("event_types=nothing".to_owned(), vec![]),
        ("reason=permanent".to_owned(), picked(&[3, 2, 1, 0])),
        ("reason=exhausted&event_types=b".to_owned(), picked(&[3, 1])),
        ("reason=cancelled".to_owned(), vec![]),
        ("status_code=500".to_owned(), picked(&[3, 2, 1, 0])),
        ("status_code=400&event_types=a".to_owned(), picked(&[2, 0])),
        ("status_code=0".to_owned(), vec![]),
        (format!("endpoint_id=refuses&since={third_died}"), picked(&[3, 2])),
        (format!("endpoint_id=refuses&until={third_died}"), picked(&[1, 0])),
    ] {
        assert_eq!(ids_in(&world.list(&format!("dead-letter?{query}")).await), expected, "{query}");
        let count = world.get(&format!("dead-letter/count?{query}")).await;
        assert_eq!(count, json!({"count": expected.len(), "capped": false}), "{query}");
    }
    assert_eq!(world.get("dead-letter/count?max=1").await, json!({"count": 1, "capped": true}));
    for max in ["0", "1000001"] {
        let path = format!("dead-letter/count?max={max}");
        assert_eq!(world.call(Method::GET, &path, Value::Null).await.0, 422, "{max}");
    }
    for (query, status) in [
        ("reason=bored", 422),
        ("status_code=many", 400),
        ("event_types=a%20b", 422),
        ("endpoint_id=nobody", 404),
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", 422),
        ("iterator=msg_x", 422),
        ("limit=251", 422),
        ("what=1", 400),
    ] {
        assert_eq!(world.call(Method::GET, &format!("dead-letter?{query}"), Value::Null).await.0, status, "{query}");
    }
}

async fn a_list_of_dead_letters_is_walked_to_the_end_and_back(store: StoreKind) {
    let (mut world, _) = world_of_refusals(store).await;
    let place = |row: &Value| (words(&row["msgId"]).to_owned(), words(&row["endpointId"]).to_owned());
    let all: Vec<_> = world.list("dead-letter").await.iter().map(place).collect();
    let mut pages = Vec::new();
    let mut iterator = String::new();
    loop {
        let page = world.get(&format!("dead-letter?limit=3{iterator}")).await;
        pages.push(page.clone());
        if page["done"] == true {
            break;
        }
        iterator = format!("&iterator={}", words(&page["iterator"]));
    }
    let rows = |page: &Value| page["data"].as_array().expect("rows").iter().map(place).collect::<Vec<_>>();
    assert_eq!(pages.iter().flat_map(rows).collect::<Vec<_>>(), all);
    let sizes: Vec<usize> = pages.iter().map(|page| rows(page).len()).collect();
    assert_eq!(sizes, [3, 3, 2]);
    for n in (1..pages.len()).rev() {
        let back = world.get(&format!("dead-letter?limit=3&iterator={}", words(&pages[n]["prevIterator"]))).await;
        assert_eq!(rows(&back), rows(&pages[n - 1]), "back from page {n}");
    }
}

async fn a_dead_letter_tells_its_whole_story(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    let letter = world.get(&format!("dead-letter/{}/endpoint/down", sent[0])).await;
    assert_eq!((&letter["msgId"], &letter["eventType"]), (&json!(sent[0]), &json!("a")));
    assert_eq!(letter["endpointUrl"], world.receiver.url("/down"));
    assert_eq!((&letter["reason"], &letter["attempts"], &letter["cycle"]), (&json!("exhausted"), &json!(2), &json!(0)));
    assert!(words(&letter["reasonText"]).contains("attempt"), "{letter}");
    assert_eq!(letter["msg"]["payload"], json!({"n": 1}));
    let attempts = letter["allAttempts"].as_array().expect("attempts");
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0], letter["lastAttempt"], "newest first");
    assert_eq!(attempts[0]["verdict"]["death"], "exhausted");
    assert!(words(&attempts[1]["verdict"]["reason"]).contains("answered 500"), "{}", attempts[1]);
    let refused = world.get(&format!("dead-letter/{}/endpoint/refuses", sent[0])).await;
    assert_eq!(refused["lastAttempt"]["response"], "no, thank you");
    assert!(refused.get("replayedAt").is_none());
    for path in [
        format!("dead-letter/{}/endpoint/well", sent[0]),
        format!("dead-letter/{}/endpoint/nobody", sent[0]),
        "dead-letter/msg_nothing/endpoint/down".to_owned(),
    ] {
        assert_eq!(world.call(Method::GET, &path, Value::Null).await.0, 404, "{path}");
    }
}

async fn what_an_endpoint_left_behind_when_it_was_deleted_is_still_found(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    let down = words(&world.get("endpoint/down").await["id"]).to_owned();
    world.call(Method::DELETE, "endpoint/down", Value::Null).await;
    let left = world.list(&format!("dead-letter?endpoint_id={down}")).await;
    assert_eq!(left.len(), 4);
    assert!(left.iter().all(|letter| letter["endpointUrl"].is_null() && letter["reason"] == "exhausted"), "{left:?}");
    let path = format!("dead-letter/{}/endpoint/{down}", sent[0]);
    assert_eq!(world.get(&path).await["allAttempts"].as_array().map(Vec::len), Some(2));
    assert_eq!(world.post(&format!("{path}/replay"), Value::Null).await.0, 409, "there is nobody to send it to");
}

async fn a_dead_letter_that_is_replayed_twice_is_sent_once(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    let before = world.receiver.arrivals_at("/refuses");
    let path = format!("dead-letter/{}/endpoint/refuses", sent[1]);
    // It cannot end before both have been asked for.
    world.receiver.always("/refuses", Answer::Status(204).after(Duration::from_millis(300)));
    assert_eq!(world.post(&format!("{path}/replay"), Value::Null).await, (202, json!({ "replayed": true })));
    let twice = world.post(&format!("{path}/replay"), Value::Null).await;
    assert_eq!(twice, (202, json!({ "replayed": false })), "twice is as good as once");
    let letter = world.get(&path).await;
    assert_eq!((&letter["statusText"], &letter["reason"]), (&json!("sending"), &json!("permanent")), "{letter}");
    let (end, attempts) = world.end(&sent[1], "refuses").await;
    assert_eq!((end.as_str(), attempts.len()), ("success", 2));
    assert_eq!((&attempts[1]["verdict"]["cycle"], &attempts[1]["verdict"]["attemptNumber"]), (&json!(1), &json!(1)));
    let after = world.receiver.arrivals_at("/refuses");
    assert_eq!(after.len(), before.len() + 1);
    let (first, again) = (&before[1], &after[before.len()]);
    assert_eq!(again.header("webhook-id"), sent[1]);
    assert_eq!((again.header("webhook-id"), &again.body), (first.header("webhook-id"), &first.body), "the same bytes");
    assert!(!ids_in(&world.list("dead-letter?endpoint_id=refuses").await).contains(&sent[1]));

    world.receiver.always("/refuses", Answer::Status(400));
    let path = format!("dead-letter/{}/endpoint/refuses", sent[0]);
    world.post(&format!("{path}/replay"), Value::Null).await;
    let letter = eventually("its second death", async || {
        Some(world.get(&path).await).filter(|letter| letter["cycle"] == 1 && letter["attempts"] == 2)
    })
    .await;
    assert!(letter["replayedAt"].is_string(), "{letter}");
}

async fn what_a_person_called_back_is_sent_again_only_if_that_is_asked_for(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/calm", json!({"disabled": true})).await;
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(world.send("a").await);
    }
    let all = json!({"createdBefore": "9999-01-01T00:00:00Z"});
    assert_eq!(world.post("endpoint/calm/cancel-msgs", all).await.0, 204);
    world.post("endpoint/calm/resume", Value::Null).await;
    let replayed = async |world: &mut World, path: &str, body: Value| {
        let started = world.post(path, body).await;
        world.end_of_task(started).await["data"]["messages_sent"].as_u64()
    };
    let since = json!({"since": "2000-01-01T00:00:00Z"});
    assert_eq!(replayed(&mut world, "endpoint/calm/recover", since).await, Some(0));
    assert_eq!(replayed(&mut world, "dead-letter/replay", json!({})).await, Some(0));
    assert_eq!(replayed(&mut world, "dead-letter/replay", json!({"msgIds": [sent[1]]})).await, Some(1));
    assert_eq!(world.end(&sent[1], "calm").await.0, "success");
    assert_eq!(replayed(&mut world, "dead-letter/replay", json!({"reason": "cancelled"})).await, Some(2));
    for id in [&sent[0], &sent[2]] {
        assert_eq!(world.end(id, "calm").await.0, "success");
    }
    let unknown = world.post("dead-letter/replay", json!({"msgIds": ["msg_nothing"]})).await;
    assert_eq!((unknown.0, &unknown.1["detail"][0]["loc"]), (422, &json!(["body", "msgIds"])));
    assert_eq!(world.receiver.arrivals_at("/calm").len(), 3, "each of them once");
}

async fn a_repeated_request_for_a_replay_is_told_what_the_first_was(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    world.receiver.always("/refuses", Answer::Status(204));
    let before = world.receiver.arrivals_at("/refuses").len();
    let path = format!("/api/v1/app/acme/dead-letter/{}/endpoint/refuses/replay", sent[0]);
    for _ in 0..2 {
        let key = [("idempotency-key", "once")];
        let (status, body) = world.client.send(Method::POST, &path, &key, "").await.expect("an answer");
        assert_eq!((status.as_u16(), body.as_ref()), (202, &br#"{"replayed":true}"#[..]));
    }
    assert_eq!(world.end(&sent[0], "refuses").await.0, "success");
    let all = "/api/v1/app/acme/dead-letter/replay";
    let mut tasks = BTreeSet::new();
    for _ in 0..2 {
        let key = [("idempotency-key", "all")];
        let (status, body) =
            world.client.send(Method::POST, all, &key, r#"{"endpointId":"refuses"}"#).await.expect("an answer");
        assert_eq!(status, 202);
        tasks.insert(words(&serde_json::from_slice::<Value>(&body).expect("a task")["id"]).to_owned());
    }
    assert_eq!(tasks.len(), 1, "one task");
    world.end_of_task((202, json!({"id": tasks.first()}))).await;
    for id in &sent {
        assert_eq!(world.end(id, "refuses").await.0, "success");
    }
    assert_eq!(world.receiver.arrivals_at("/refuses").len(), before + 4);
}

async fn what_waits_for_an_endpoint_when_it_is_deleted_becomes_dead_letters(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/held", json!({})).await;
    let endpoint = words(&world.get("endpoint/held").await["id"]).to_owned();
    world.post("endpoint/held/pause", Value::Null).await;
    let mut sent = vec![world.send("a").await, world.send("a").await];
    world.call(Method::DELETE, "endpoint/held", Value::Null).await;
    let letters = eventually("both of them", async || {
        Some(world.list("dead-letter?reason=endpoint-gone").await).filter(|letters| letters.len() == 2)
    })
    .await;
    sent.reverse();
    assert_eq!(ids_in(&letters), sent);
    for letter in &letters {
        assert_eq!((&letter["endpointId"], &letter["attempts"]), (&json!(endpoint), &json!(0)), "{letter}");
        assert!(letter["endpointUrl"].is_null() && letter.get("lastAttempt").is_none(), "{letter}");
    }
    assert_eq!(world.receiver.count(), 0);
}

async fn all_that_match_are_replayed_by_a_task(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    let before = world.receiver.arrivals_at("/down").len();
    world.receiver.always("/down", Answer::Status(204));
    world.receiver.always("/refuses", Answer::Status(204));
    let started = world.post("dead-letter/replay", json!({"endpointId": "down", "eventTypes": ["b"]})).await;
    assert_eq!((&started.1["task"], &started.1["status"]), (&json!("endpoint.recover"), &json!("running")));
    let task = world.end_of_task(started).await;
    assert_eq!((&task["status"], &task["data"]["messages_sent"]), (&json!("finished"), &json!(2)), "{task}");
    assert_eq!((&task["data"]["done"], &task["data"]["total"]), (&json!(4), &json!(4)), "{task}");
    for (n, id) in sent.iter().enumerate() {
        let end = if n % 2 == 1 { "success" } else { "fail" };
        assert_eq!(world.end(id, "down").await.0, end);
        assert_eq!(world.end(id, "refuses").await.0, "fail", "of the other endpoint nothing was asked");
    }
    assert_eq!(world.receiver.arrivals_at("/down").len(), before + 2);

    let rest = world.post("dead-letter/replay", json!({})).await;
    let task = world.end_of_task(rest).await;
    assert_eq!((&task["data"]["messages_sent"], &task["data"]["total"]), (&json!(6), &json!(6)), "{task}");
    for id in &sent {
        assert_eq!(world.end(id, "down").await.0, "success");
        assert_eq!(world.end(id, "refuses").await.0, "success");
    }
    assert_eq!(world.get("dead-letter/count").await["count"], 0);
    for body in [
        json!({"reason": "bored"}),
        json!({"endpoint": "down"}),
        json!({"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}),
        Value::Null,
    ] {
        assert_eq!(world.post("dead-letter/replay", body.clone()).await.0, 422, "{body}");
    }
}

async fn a_task_that_is_cancelled_leaves_the_rest_as_it_is(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/slow", Answer::Status(400));
    let rules = json!({
        "maxInFlight": 100,
        "autoDisable": false,
        "circuitBreaker": false,
        "timeouts": {"connect": "1s", "firstByte": "1s", "total": "1s"},
        "retryPolicy": {"schedule": {"type": "fixed", "interval": "100ms"}, "jitter": "none", "maxAttempts": 100},
    });
    world.endpoint("/slow", rules).await;
    const LETTERS: usize = 900;
    send_many(&world, LETTERS).await;
    eventually("all of them dead", async || (world.get("dead-letter/count").await["count"] == LETTERS).then_some(()))
        .await;
    // A lane in which enough is due already gets no more: the task must wait for it.
    world.receiver.always("/slow", Answer::Hang);
    let (_, started) = world.post("dead-letter/replay", json!({"endpointId": "slow"})).await;
    let id = words(&started["id"]).to_owned();
    eventually("the first steps", async || {
        (world.task(&id).await["data"]["messages_sent"].as_u64() > Some(0)).then_some(())
    })
    .await;
    let path = format!("/api/v1/background-task/{id}/cancel");
    let (status, _) = world.client.send(Method::POST, &path, &[], "").await.expect("an answer");
    assert_eq!(status, 200);
    let ended = world.task(&id).await;
    assert_eq!((&ended["status"], &ended["data"]["canceled"]), (&json!("failed"), &json!(true)), "{ended}");
    let replayed = ended["data"]["messages_sent"].as_u64().expect("a number");
    assert!(replayed < LETTERS as u64, "{ended}");
    world.receiver.always("/slow", Answer::Status(204));
    eventually("those that had been replayed", async || {
        let stats = world.get("endpoint/slow/stats").await;
        (stats["success"].as_u64() == Some(replayed)).then_some(())
    })
    .await;
    assert_eq!(world.get("dead-letter/count").await["count"], LETTERS as u64 - replayed);
    assert_eq!(world.task(&id).await["data"]["messages_sent"], replayed, "it stays ended");
    let (status, again) = world.client.send(Method::POST, &path, &[], "").await.expect("an answer");
    assert_eq!(status, 200, "{again:?}");
}

/// Over many connections at once.
async fn send_many(world: &World, count: usize) {
    let senders = (0..10).map(|sender| {
        let mut client = Client::new(world.server.address(), world.server.token());
        tokio::spawn(async move {
            for n in (sender..count).step_by(10) {
                client.create("/api/v1/app/acme/msg", &json!({"eventType": "a", "payload": {"n": n}})).await;
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.expect("all of them accepted");
    }
}

fn ago(span: SignedDuration) -> String {
    (now() - span).to_string()
}

async fn a_recovery_takes_what_failed_in_its_span(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    world.receiver.always("/down", Answer::Status(204));
    let second_at = world.get(&format!("msg/{}", sent[1])).await["timestamp"].clone();
    let third_at = world.get(&format!("msg/{}", sent[2])).await["timestamp"].clone();
    let started = world.post("endpoint/down/recover", json!({"since": second_at, "until": third_at})).await;
    let task = world.end_of_task(started).await;
    assert_eq!(task["data"]["messages_sent"], 1, "{task}");
    assert_eq!(world.end(&sent[1], "down").await.0, "success");
    let started = world.post("endpoint/down/recover", json!({"since": ago(SignedDuration::from_hours(1))})).await;
    assert_eq!(world.end_of_task(started).await["data"]["messages_sent"], 3);
    for id in &sent {
        assert_eq!(world.end(id, "down").await.0, "success");
        assert_eq!(world.end(id, "refuses").await.0, "fail");
    }
}

async fn an_endpoint_gets_what_it_missed_before_it_was_made(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.client.create("/api/v1/event-type", &json!({"name": "a", "description": ""})).await;
    world.endpoint("/early", json!({})).await;
    let mut sent = Vec::new();
    for event_type in ["a", "b", "a"] {
        sent.push(world.send(event_type).await);
    }
    world.endpoint("/late", json!({"eventTypes": ["a"]})).await;
    let since = json!({"since": ago(SignedDuration::from_hours(1))});
    let started = world.post("endpoint/late/replay-missing", since.clone()).await;
    assert_eq!(started.1["task"], "endpoint.replay");
    let task = world.end_of_task(started).await;
    assert_eq!((&task["status"], &task["data"]["messages_sent"]), (&json!("finished"), &json!(2)), "{task}");
    for id in [&sent[0], &sent[2]] {
        assert_eq!(world.end(id, "late").await.0, "success");
    }
    let arrived: BTreeSet<_> =
        world.receiver.arrivals_at("/late").iter().map(|it| it.header("webhook-id").to_owned()).collect();
    assert_eq!(arrived, [sent[0].clone(), sent[2].clone()].into());
    let started = world.post("endpoint/late/replay-missing", since).await;
    assert_eq!(world.end_of_task(started).await["data"]["messages_sent"], 0, "it misses nothing any more");
    assert_eq!(world.receiver.arrivals_at("/late").len(), 2);
    assert_eq!(world.receiver.arrivals_at("/early").len(), 3, "nobody else gets them again");
}

async fn a_bulk_replay_sends_again_what_matches_delivered_or_not(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    world.receiver.always("/down", Answer::Status(204));
    let tagged = world.send_with("c", json!({"tags": ["blue"], "channels": ["north"]})).await;
    assert_eq!(world.end(&tagged, "down").await.0, "success");
    let since = ago(SignedDuration::from_hours(1));
    let count = |world: &World, id: &str| {
        world.receiver.arrivals_at("/well").iter().filter(|it| it.header("webhook-id") == id).count()
    };
    for (endpoint, filter, expected) in [
        ("well", json!({"eventTypes": ["b"], "status": 0}), 2),
        ("well", json!({"status": 2}), 0),
        ("well", json!({"tag": "blue"}), 1),
        ("well", json!({"channel": "north"}), 1),
        ("well", json!({"channel": "south"}), 0),
        ("well", json!({"statusCodeClass": 200}), 5),
        ("well", json!({"statusCodeClass": 500}), 0),
        ("down", json!({"status": 2, "eventTypes": ["a"]}), 2),
        ("down", json!({"statusCodeClass": 500}), 2),
    ] {
        let body = support::world::joined(json!({"since": since}), &filter);
        let started = world.post(&format!("endpoint/{endpoint}/bulk-replay"), body).await;
        assert_eq!(started.1["task"], "endpoint.bulk-replay");
        let task = world.end_of_task(started).await;
        assert_eq!(task["data"]["messages_sent"], expected, "{endpoint} {filter}: {task}");
        for id in sent.iter().chain([&tagged]) {
            assert!(["success", "fail"].contains(&&*world.end(id, endpoint).await.0));
        }
    }
    eventually("all that was replayed", async || (count(&world, &tagged) == 4).then_some(())).await;
    assert_eq!((count(&world, &sent[0]), count(&world, &sent[1])), (2, 3));
    let bodies: BTreeSet<Bytes> = world.receiver.arrivals_at("/well").into_iter().map(|it| it.body).collect();
    assert_eq!(bodies.len(), 1, "the same bytes every time");
    for body in [
        json!({"since": since, "status": 5}),
        json!({"since": since, "statusCodeClass": 42}),
        json!({"since": since, "colour": "red"}),
        json!({"since": "2999-01-01T00:00:00Z"}),
        json!({}),
    ] {
        assert_eq!(world.post("endpoint/well/bulk-replay", body.clone()).await.0, 422, "{body}");
    }
}

async fn what_waits_can_be_called_back(store: StoreKind) {
    let mut world = World::start_on(store).await;
    for path in ["/one", "/two"] {
        world.endpoint(path, json!({})).await;
        world.post(&format!("endpoint{path}/pause"), Value::Null).await;
    }
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(world.send("a").await);
    }
    let answer = world.post(&format!("msg/{}/cancel", sent[0]), json!({"endpointId": "one"})).await;
    assert_eq!(answer, (200, json!({"canceled": 1})));
    assert_eq!(world.post(&format!("msg/{}/cancel", sent[1]), json!({})).await, (200, json!({"canceled": 2})));
    assert_eq!(world.post(&format!("msg/{}/cancel", sent[1]), Value::Null).await, (200, json!({"canceled": 0})));
    assert_eq!(world.post("msg/msg_nothing/cancel", json!({})).await.0, 404);
    assert_eq!(world.post(&format!("msg/{}/cancel", sent[0]), json!({"endpointId": "nobody"})).await.0, 404);
    let later = json!({"createdBefore": "9999-01-01T00:00:00Z"});
    assert_eq!(world.post("endpoint/two/cancel-msgs", later.clone()).await.0, 204);
    for (id, one, two) in
        [(&sent[0], "canceled", "canceled"), (&sent[1], "canceled", "canceled"), (&sent[2], "pending", "canceled")]
    {
        assert_eq!(world.status(id, "one").await.as_deref(), Some(one));
        assert_eq!(world.status(id, "two").await.as_deref(), Some(two));
    }
    let dead = world.list("dead-letter?reason=cancelled").await;
    assert_eq!(dead.len(), 5);
    for path in ["/one", "/two"] {
        world.post(&format!("endpoint{path}/resume"), json!({})).await;
    }
    assert_eq!(world.end(&sent[2], "one").await.0, "success");
    let well = world.send("a").await;
    for endpoint in ["one", "two"] {
        assert_eq!(world.end(&well, endpoint).await.0, "success");
    }
    assert_eq!(world.receiver.arrivals_at("/one").len(), 2);
    assert_eq!(world.receiver.arrivals_at("/two").len(), 1, "what was called back was never sent");
    // Called back is not thrown away.
    world.post(&format!("dead-letter/{}/endpoint/two/replay", sent[1]), Value::Null).await;
    assert_eq!(world.end(&sent[1], "two").await.0, "success");
}

async fn a_retry_that_waits_can_be_called_back(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(500));
    let slowly = json!({"schedule": {"type": "fixed", "interval": "1s"}, "jitter": "none"});
    world.endpoint("/down", json!({"retryPolicy": slowly})).await;
    let message = world.send("a").await;
    eventually("its first attempt", async || (world.status(&message, "down").await? == "sending").then_some(())).await;
    let (_, answer) = world.post(&format!("msg/{message}/cancel"), json!({})).await;
    assert_eq!(answer["canceled"], 1);
    let (end, attempts) = world.end(&message, "down").await;
    assert_eq!(end, "canceled");
    // The next one, which is sent after it, comes to its second attempt; the cancelled one would have come before it.
    let later = world.send("a").await;
    let second = |id: &str| {
        let all = world.receiver.arrivals_at("/down");
        all.iter().filter(|it| it.header("webhook-id") == id).count()
    };
    eventually("a second attempt of the later one", async || (second(&later) >= 2).then_some(())).await;
    assert_eq!(second(&message), attempts.len());
}

async fn contents_are_expunged_one_by_one_in_bulk_and_altogether(store: StoreKind) {
    let (mut world, sent) = world_of_refusals(store).await;
    assert_eq!(world.call(Method::DELETE, &format!("msg/{}/content", sent[0]), Value::Null).await.0, 204);
    let gone = json!({"expired": true});
    assert_eq!(world.get(&format!("msg/{}", sent[0])).await["payload"], gone);
    let letter = world.get(&format!("dead-letter/{}/endpoint/down", sent[0])).await;
    assert_eq!((&letter["msg"]["payload"], &letter["reason"]), (&gone, &json!("exhausted")), "the story is kept");
    let (status, refused) = world.post(&format!("dead-letter/{}/endpoint/down/replay", sent[0]), Value::Null).await;
    assert_eq!((status, &refused["code"]), (400, &json!("missing_payload")));

    let (status, many) = world.post("msg/bulk-expunge", json!({"ids": [sent[1], "msg_nothing", "nobody"]})).await;
    let expected = json!({"results": {sent[1].clone(): "expunged", "msg_nothing": "not-found", "nobody": "not-found"}});
    assert_eq!((status, many), (200, expected));
    assert_eq!(world.get(&format!("msg/{}", sent[1])).await["payload"], gone);
    assert_eq!(world.get(&format!("msg/{}", sent[2])).await["payload"], json!({"n": 1}));

    let started = world.post("msg/expunge-all-contents", Value::Null).await;
    assert_eq!(started.1["task"], "application.purge_content");
    let task = world.end_of_task(started).await;
    // All four: the answers to those whose payload was gone already had content too.
    assert_eq!((&task["status"], &task["data"]["messages_purged"]), (&json!("finished"), &json!(4)), "{task}");
    for id in &sent {
        assert_eq!(world.get(&format!("msg/{id}")).await["payload"], gone);
    }
    let attempts = world.list("attempt/endpoint/refuses").await;
    assert!(attempts.iter().all(|attempt| attempt["response"] == "EXPUNGED"), "{attempts:?}");
    // What has no content cannot be sent, and stays where it is.
    world.receiver.always("/down", Answer::Status(204));
    let started = world.post("dead-letter/replay", json!({})).await;
    assert_eq!(world.end_of_task(started).await["data"]["messages_sent"], 0);
}

async fn tenants_are_strangers(store: StoreKind) {
    let house = House::start_on(store).await;
    let mut tokens = BTreeMap::new();
    let mut ids = BTreeMap::new();
    let mut apps = BTreeMap::new();
    for name in ["acme", "other"] {
        let app = house.post("app", json!({"name": name, "uid": name})).await.expect(201);
        let body = json!({"url": "https://example.com", "uid": "hook", "disabled": true});
        let endpoint = house.post(&format!("app/{name}/endpoint"), body).await.expect(201);
        let message =
            house.post(&format!("app/{name}/msg"), json!({"eventType": "a", "payload": {}})).await.expect(202);
        let cancel = format!("app/{name}/msg/{}/cancel", words(&message["id"]));
        house.post(&cancel, json!({})).await.expect(200);
        let task = house.post(&format!("app/{name}/msg/expunge-all-contents"), Value::Null).await.expect(202);
        tokens.insert(name, house.app_token(words(&app["id"]), &Access::full()));
        apps.insert(name, words(&app["id"]).to_owned());
        let id = |value: &Value| words(&value["id"]).to_owned();
        ids.insert(name, [id(&endpoint), id(&message), id(&task)]);
    }
    let [endpoint, message, task] = &ids["acme"];
    let [own_endpoint, own_message, _] = &ids["other"];
    let since = json!({"since": "2026-01-01T00:00:00Z"});
    let before = house.get("app/acme/dead-letter").await.expect(200);
    assert_eq!(before["data"].as_array().map(Vec::len), Some(1));
    for (method, path, body) in [
        ("GET", "app/acme/dead-letter".to_owned(), Value::Null),
        ("GET", "app/acme/dead-letter/count".to_owned(), Value::Null),
        ("POST", "app/acme/dead-letter/replay".to_owned(), json!({})),
        ("GET", format!("app/acme/dead-letter/{message}/endpoint/{endpoint}"), Value::Null),
        ("POST", format!("app/acme/dead-letter/{message}/endpoint/{endpoint}/replay"), Value::Null),
        ("GET", format!("app/other/dead-letter/{message}/endpoint/{endpoint}"), Value::Null),
        ("GET", format!("app/other/dead-letter/{own_message}/endpoint/{endpoint}"), Value::Null),
        ("GET", format!("app/other/dead-letter/{message}/endpoint/{own_endpoint}"), Value::Null),
        ("POST", format!("app/other/dead-letter/{message}/endpoint/{endpoint}/replay"), Value::Null),
        ("POST", "app/acme/endpoint/hook/recover".to_owned(), since.clone()),
        ("POST", "app/acme/endpoint/hook/replay-missing".to_owned(), since.clone()),
        ("POST", "app/acme/endpoint/hook/bulk-replay".to_owned(), since.clone()),
        ("POST", format!("app/other/endpoint/{endpoint}/bulk-replay"), since.clone()),
        ("POST", format!("app/other/endpoint/{endpoint}/recover"), since.clone()),
        ("POST", format!("app/other/endpoint/{endpoint}/replay-missing"), since),
        ("POST", "app/acme/endpoint/hook/cancel-msgs".to_owned(), json!({"createdBefore": "9999-01-01T00:00:00Z"})),
        (
            "POST",
            format!("app/other/endpoint/{endpoint}/cancel-msgs"),
            json!({"createdBefore": "9999-01-01T00:00:00Z"}),
        ),
        ("GET", format!("app/other/endpoint/{endpoint}/health"), Value::Null),
        ("POST", format!("app/other/endpoint/{endpoint}/health/reset"), Value::Null),
        ("GET", format!("app/other/endpoint/{endpoint}/backlog"), Value::Null),
        ("GET", format!("app/other/endpoint/{endpoint}/schedule"), Value::Null),
        ("POST", format!("app/other/endpoint/{endpoint}/pause"), Value::Null),
        ("POST", format!("app/other/endpoint/{endpoint}/resume"), json!({})),
        ("GET", "app/acme/endpoint/hook/health".to_owned(), Value::Null),
        ("POST", "app/acme/endpoint/hook/resume".to_owned(), json!({})),
        ("POST", format!("app/acme/msg/{message}/cancel"), json!({})),
        ("POST", "app/acme/msg/bulk-expunge".to_owned(), json!({"ids": [message]})),
        ("POST", "app/acme/msg/expunge-all-contents".to_owned(), Value::Null),
        ("GET", format!("background-task/{task}"), Value::Null),
        ("POST", format!("background-task/{task}/cancel"), Value::Null),
    ] {
        let answer = house.call_as(&tokens["other"], method, &path, body).await;
        let told = (answer.status.as_u16(), answer.text.as_str());
        assert_eq!(told, (404, r#"{"code":"not_found","detail":"Entity not found"}"#), "{method} {path}");
    }
    let reader = house.app_token(&apps["acme"], &Access::read_only());
    for (path, body) in [
        ("app/acme/dead-letter/replay".to_owned(), json!({})),
        (format!("app/acme/dead-letter/{message}/endpoint/{endpoint}/replay"), Value::Null),
        ("app/acme/endpoint/hook/pause".to_owned(), Value::Null),
        ("app/acme/endpoint/hook/resume".to_owned(), json!({})),
        ("app/acme/endpoint/hook/health/reset".to_owned(), Value::Null),
        ("app/acme/endpoint/hook/bulk-replay".to_owned(), json!({"since": "2026-01-01T00:00:00Z"})),
        ("app/acme/endpoint/hook/cancel-msgs".to_owned(), json!({"createdBefore": "9999-01-01T00:00:00Z"})),
        (format!("app/acme/msg/{message}/cancel"), json!({})),
        (format!("background-task/{task}/cancel"), Value::Null),
    ] {
        house.call_as(&reader, "POST", &path, body).await.expect(403);
    }
    house.call_as(&reader, "GET", "app/acme/dead-letter", Value::Null).await.expect(200);
    let filter = format!("app/other/dead-letter?endpoint_id={endpoint}");
    let found = house.call_as(&tokens["other"], "GET", &filter, Value::Null).await;
    assert_eq!(found.expect(200)["data"], json!([]), "as for an endpoint that was never there");
    let tasks = house.call_as(&tokens["other"], "GET", "background-task", Value::Null).await.expect(200);
    assert_eq!(tasks["data"].as_array().map(Vec::len), Some(1), "its own and no other: {tasks}");
    assert_eq!(house.get("app/acme/dead-letter").await.expect(200), before, "and nothing has changed");
    assert_eq!(house.get("background-task").await.expect(200)["data"].as_array().map(Vec::len), Some(2));
    assert_eq!(house.get(&format!("background-task/{task}")).await.expect(200)["status"], "running");
    for path in ["background-task?status=bored", "background-task?task=bored"] {
        house.get(path).await.expect(400);
    }
    house.get("background-task/qtask_nothing").await.expect(404);
}

async fn a_bulk_replay_that_is_killed_goes_on_and_sends_each_once_more(store: StoreKind) {
    let count: usize = env::var("DEAD_LETTERS").map_or(50_000, |text| text.parse().expect("DEAD_LETTERS is a number"));
    let began = Instant::now();
    let mut world = World::start_on(store).await;
    world.endpoint("/back", json!({"maxInFlight": 100, "autoDisable": false})).await;
    let endpoint = words(&world.get("endpoint/back").await["id"]).to_owned();
    assert_eq!(world.server.stop().code(), Some(0));
    let ids = bury(&world.server, &endpoint, count).await;
    println!("{count} dead letters after {:?}", began.elapsed());
    world.start_again();
    assert_eq!(world.get("dead-letter/count").await["count"], count);

    let (status, started) = world.post("dead-letter/replay", json!({"endpointId": "back"})).await;
    assert_eq!(status, 202, "{started}");
    let task = words(&started["id"]).to_owned();
    let mut kills = Vec::new();
    let mut seen = 0;
    for share in [count / 4, count / 2] {
        loop {
            let data = world.task(&task).await["data"].clone();
            let (done, sent) = (data["done"].as_u64(), data["messages_sent"].as_u64());
            // It is counted when the task begins.
            assert!(done == Some(0) || data["total"].as_u64() == Some(count as u64), "{data}");
            assert_eq!(done, sent, "{data}");
            assert!(done >= Some(seen), "progress never goes back, not even in a restart: {data}");
            seen = done.unwrap_or_default();
            if seen >= share as u64 {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
        world.server.kill();
        kills.push(world.receiver.count());
        world.start_again();
        println!("killed at {seen} of {count}, after {:?}", began.elapsed());
    }
    // Longer than `eventually` waits: this one has much to do.
    let ended = loop {
        let state = world.task(&task).await;
        if state["status"] != "running" {
            break state;
        }
        assert!(began.elapsed() < LONG, "{state}");
        tokio::time::sleep(POLL).await;
    };
    assert_eq!(ended["status"], "finished", "{ended}");
    let figures = (&ended["data"]["done"], &ended["data"]["messages_sent"], &ended["data"]["total"]);
    assert_eq!(figures, (&json!(count), &json!(count), &json!(count)), "{ended}");
    while world.get("endpoint/back/stats").await["success"] != count {
        assert!(began.elapsed() < LONG, "{}", world.get("endpoint/back/stats").await);
        tokio::time::sleep(POLL).await;
    }
    println!("all delivered after {:?}", began.elapsed());

    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for arrival in world.receiver.arrivals() {
        *times.entry(arrival.header("webhook-id").to_owned()).or_default() += 1;
    }
    assert!(times.keys().eq(ids.iter()), "each of them, and nothing else");
    let repeats: usize = times.values().map(|times| times - 1).sum();
    // What was on the wire, or answered and not yet committed, when it was killed comes again: that is at least once.
    assert!(repeats <= kills.len() * (100 + 1_000), "{repeats} came again");
    assert!(times.values().all(|times| *times <= 1 + kills.len()), "a kill repeats a request once");
    assert_eq!(world.get("dead-letter/count").await["count"], 0);
}

/// Writes dead letters straight into the folder of a server that does not run, and tells their messages' ids.
async fn bury(server: &Server, endpoint: &str, count: usize) -> BTreeSet<String> {
    let keyring = Keyring::open_or_create(&server.data()).expect("the server's keys");
    let ids = IdCodec::new(*keyring.ids());
    let endpoint: EndpointKey = ids.key_of(endpoint).expect("an id of its");
    let store = match server.database_url() {
        None => StoreKind::Sqlite.open(&server.data()).await,
        Some(url) => open_database(url).await,
    };
    let app: AppKey = store.endpoint_of_lane(endpoint).await.expect("read").expect("an endpoint").app;
    let mut buried = BTreeSet::new();
    let mut first = 0;
    while first < count {
        let accepted = (first..count.min(first + 1_000)).map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { accept(&*store, app, endpoint, n).await })
        });
        let mut keys = Vec::new();
        for accepted in accepted.collect::<Vec<_>>() {
            keys.push(accepted.await.expect("no panic"));
        }
        let dead = keys.iter().map(|key| refused(*key, endpoint)).collect();
        store.settle(store.tenure(), Arc::new(dead)).await.expect("settled");
        buried.extend(keys.into_iter().map(|key| ids.id_of(key)));
        first += 1_000;
    }
    store.close().await;
    buried
}

async fn accept(store: &dyn Store, app: AppKey, endpoint: EndpointKey, n: usize) -> MessageKey {
    let message = NewMessage {
        app,
        at: clock::now(),
        generation: None,
        content: Content {
            event_type: "a.b".to_owned(),
            event_id: None,
            channels: Vec::new(),
            tags: Vec::new(),
            content_type: None,
            ordering_key: None,
            deliver_at: None,
            received: None,
            payload: Bytes::from(format!("{{\"n\":{n}}}")),
        },
        payload_expires_at: None,
        owed: vec![endpoint],
        fifo: Vec::new(),
        idempotency: None,
        trace: None,
    };
    match store.accept(message).await.expect("accepted") {
        Accepted::Now(key) | Accepted::Before(key) => key,
    }
}

/// As the dispatcher settles a delivery that was answered with 400.
fn refused(message: MessageKey, endpoint: EndpointKey) -> Settlement {
    let at = clock::now();
    Settlement {
        id: DeliveryId { endpoint, message, trigger: Trigger::Scheduled },
        handed: true,
        cycle: 0,
        progress: Progress { attempts: 1, ..Progress::default() },
        at,
        attempt: Some(AttemptRecord {
            started_at: at,
            duration: Duration::from_millis(1),
            url: "http://127.0.0.1/back".into(),
            status: Some(400),
            response: Bytes::new(),
            class: Class::Permanent,
            rule: Rule::ClientError,
            held: None,
            headers: Default::default(),
        }),
        next: Next::Dead(DeathReason::Permanent),
        order: None,
        health: None,
        disable: None,
    }
}

/// For fifty thousand, in a debug build, on a machine that others use too.
const LONG: Duration = Duration::from_secs(300);
