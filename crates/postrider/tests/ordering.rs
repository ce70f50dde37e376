//! Order as a receiver sees it: one after the other, without gaps, whatever fails and whoever is killed in between.

mod support;

use jiff::{SignedDuration, Timestamp};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use support::{
    eventually, now,
    receiver::{Answer, Arrival},
    stores::{StoreKind, on_both_stores},
    world::World,
};

on_both_stores! {
    async
    messages_of_one_key_arrive_in_order_whatever_fails,
    a_fifo_endpoint_gets_everything_in_order_whatever_fails,
    a_key_that_is_stuck_holds_only_itself,
    a_key_is_free_again_when_its_first_message_is_given_up,
    keys_are_not_looked_at_where_order_is_not_wanted,
    a_message_can_be_put_off,
}

/// Fails at random for a while, and then takes everything.
fn moody(seed: u64, count: usize) -> Vec<Answer> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mood = |n: u32| match n {
        0..4 => Answer::Status(503),
        4 => Answer::Reset,
        5 => Answer::Status(204).after(Duration::from_millis(15)),
        _ => Answer::Status(204),
    };
    (0..count).map(|_| mood(rng.random_range(0..10))).collect()
}

/// So hasty that a retry would overtake others if nothing held them.
fn restless(ordering: &str) -> Value {
    json!({
        "ordering": ordering,
        "circuitBreaker": false,
        "retryPolicy": {"schedule": {"type": "fixed", "interval": "5ms"}, "jitter": "none", "maxAttempts": 500},
    })
}

fn number(arrival: &Arrival) -> u64 {
    arrival.header("webhook-sequence").parse().expect("a number")
}

fn is_taken(arrival: &Arrival) -> bool {
    match &arrival.answer {
        Answer::Status(status) => *status == 204,
        Answer::After(_, then) => matches!(**then, Answer::Status(204)),
        Answer::Full { .. } | Answer::ByTry { .. } | Answer::Hang | Answer::Reset => false,
    }
}

/// Checks one series: each one only after the one before it was taken, never two at a time, and none left out.
fn check_series(name: &str, arrivals: &[&Arrival], expected: &[String], kills: usize) {
    let mut repeats = 0;
    let (mut at, mut taken) = (0, true);
    for (n, arrival) in arrivals.iter().enumerate() {
        let number = number(arrival);
        if number == at + 1 {
            assert!(taken, "{name}: {number} came before {at} was taken");
            at = number;
        } else {
            assert_eq!(number, at, "{name}: out of order");
            // Taken, but the server was killed before it had written that down.
            repeats += usize::from(taken);
        }
        taken = is_taken(arrival);
        assert_eq!(arrival.header("webhook-id"), expected[at as usize - 1], "{name}: {at}");
        if let Some(before) =
            n.checked_sub(1).map(|n| arrivals[n]).filter(|before| before.connection == arrival.connection)
        {
            assert!(before.closed.is_some_and(|closed| closed <= arrival.opened), "{name}: two at a time");
        }
    }
    assert_eq!((at as usize, taken), (expected.len(), true), "{name}: all of them");
    assert!(repeats <= kills, "{name}: {repeats} came again after they were taken");
}

async fn messages_of_one_key_arrive_in_order_whatever_fails(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/keyed", moody(1, 300), Answer::Status(204));
    world.endpoint("/keyed", restless("key")).await;
    let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut kills = 0;
    for n in 0..90 {
        let key = format!("k{}", n % 3);
        let id = world.send_with("a.b", json!({"orderingKey": key})).await;
        sent.entry(key).or_default().push(id);
        if n == 40 || n == 60 {
            world.kill_and_start_again();
            kills += 1;
        }
    }
    for id in sent.values().flatten() {
        assert_eq!(world.end(id, "keyed").await.0, "success");
    }
    let arrivals = world.receiver.arrivals_at("/keyed");
    for (key, ids) in &sent {
        let series: Vec<&Arrival> =
            arrivals.iter().filter(|it| ids.iter().any(|id| id == it.header("webhook-id"))).collect();
        check_series(key, &series, ids, kills);
    }
    assert!(arrivals.iter().any(|arrival| !is_taken(arrival)), "nothing failed, so nothing was shown");
}

async fn a_fifo_endpoint_gets_everything_in_order_whatever_fails(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/fifo", moody(2, 150), Answer::Status(204));
    world.endpoint("/fifo", restless("fifo")).await;
    world.endpoint("/loose", json!({})).await;
    let mut sent = Vec::new();
    for n in 0..60 {
        // Keys make no difference there.
        let more = if n % 2 == 0 { json!({"orderingKey": "k"}) } else { json!({}) };
        sent.push(world.send_with("a.b", more).await);
        if n == 20 || n == 40 {
            world.kill_and_start_again();
        }
    }
    for id in &sent {
        assert_eq!(world.end(id, "fifo").await.0, "success");
        assert_eq!(world.end(id, "loose").await.0, "success");
    }
    let arrivals = world.receiver.arrivals_at("/fifo");
    check_series("fifo", &arrivals.iter().collect::<Vec<_>>(), &sent, 2);
    for arrival in world.receiver.arrivals_at("/loose") {
        let place = sent.iter().position(|id| id == arrival.header("webhook-id")).expect("one of ours");
        assert_eq!(arrival.headers.contains_key("webhook-sequence"), place % 2 == 0, "only what has a key is counted");
    }
}

async fn a_key_that_is_stuck_holds_only_itself(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/keyed", [Answer::Status(503)], Answer::Status(204));
    let rarely = json!({"schedule": {"type": "fixed", "interval": "1h"}, "jitter": "none"});
    world.endpoint("/keyed", json!({"retryPolicy": rarely})).await;
    let first = world.send_with("a.b", json!({"orderingKey": "stuck"})).await;
    eventually("its first attempt", async || (world.status(&first, "keyed").await? == "sending").then_some(())).await;
    let second = world.send_with("a.b", json!({"orderingKey": "stuck"})).await;
    let mut others = Vec::new();
    for n in 0..20 {
        let more = if n % 2 == 0 { json!({"orderingKey": format!("k{n}")}) } else { json!({}) };
        others.push(world.send_with("a.b", more).await);
    }
    for id in &others {
        assert_eq!(world.end(id, "keyed").await.0, "success");
    }
    world.kill_and_start_again();
    let later = world.send_with("a.b", json!({"orderingKey": "free"})).await;
    assert_eq!(world.end(&later, "keyed").await.0, "success");
    assert_eq!(world.status(&second, "keyed").await.as_deref(), Some("pending"));
    assert_eq!(
        world.receiver.arrivals_at("/keyed").len(),
        22,
        "the one that failed, and those that had nothing to do with it"
    );

    // Whoever cannot wait calls the first one back; the way is free then.
    assert_eq!(world.post(&format!("msg/{first}/cancel"), json!({})).await.1["canceled"], 1);
    assert_eq!(world.end(&second, "keyed").await.0, "success");
    let last = world.receiver.arrivals_at("/keyed").pop().expect("arrivals");
    assert_eq!((last.header("webhook-id"), number(&last)), (&*second, 2));
}

async fn a_key_is_free_again_when_its_first_message_is_given_up(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/keyed", [Answer::Status(400)], Answer::Status(204));
    world.endpoint("/keyed", restless("key")).await;
    let first = world.send_with("a.b", json!({"orderingKey": "k"})).await;
    let second = world.send_with("a.b", json!({"orderingKey": "k"})).await;
    assert_eq!(world.end(&first, "keyed").await.0, "fail");
    assert_eq!(world.end(&second, "keyed").await.0, "success");
    let numbers: Vec<u64> = world.receiver.arrivals_at("/keyed").iter().map(number).collect();
    assert_eq!(numbers, [1, 2]);
}

async fn keys_are_not_looked_at_where_order_is_not_wanted(store: StoreKind) {
    let mut world = World::start_on(store).await;
    // The first one shows that the endpoint takes something: until then it may get one request at a time.
    world.receiver.script("/loose", [Answer::Status(204), Answer::Hang], Answer::Status(204));
    world.endpoint("/loose", json!({"ordering": "none"})).await;
    let fine = world.send("a.b").await;
    assert_eq!(world.end(&fine, "loose").await.0, "success");
    let first = world.send_with("a.b", json!({"orderingKey": "k"})).await;
    world.receiver.wait_for("/loose", 2).await;
    let second = world.send_with("a.b", json!({"orderingKey": "k"})).await;
    assert_eq!(world.end(&second, "loose").await.0, "success");
    assert_eq!(world.status(&first, "loose").await.as_deref(), Some("pending"));
}

async fn a_message_can_be_put_off(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/", json!({"uid": "hook"})).await;
    let at = now() + SignedDuration::from_millis(1_500);
    let put_off = world.send_with("a.b", json!({"deliverAt": at.to_string()})).await;
    let shown = world.get(&format!("msg/{put_off}")).await["deliverAt"].as_str().map(str::parse::<Timestamp>);
    assert_eq!(shown.and_then(Result::ok), Some(at));
    let at_once = world.send("a.b").await;
    assert_eq!(world.end(&at_once, "hook").await.0, "success");
    world.kill_and_start_again();
    let (end, attempts) = world.end(&put_off, "hook").await;
    assert_eq!((end.as_str(), attempts.len()), ("success", 1));
    let sent: Timestamp = attempts[0]["timestamp"].as_str().expect("a time").parse().expect("a time");
    assert!(sent >= at, "{sent} is before {at}");
    let arrived: Vec<String> =
        world.receiver.arrivals().iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect();
    assert_eq!(arrived, [at_once, put_off.clone()]);

    for wrong in ["2020-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "tomorrow"] {
        let body = json!({"eventType": "a.b", "payload": {}, "deliverAt": wrong});
        let (status, refused) = world.post("msg", body).await;
        assert_eq!((status, &refused["detail"][0]["loc"]), (422, &json!(["body", "deliverAt"])), "{refused}");
    }
    let far = (now() + SignedDuration::from_hours(20)).to_string();
    let far = world.send_with("a.b", json!({"deliverAt": far})).await;
    assert_eq!(world.status(&far, "hook").await.as_deref(), Some("pending"));
    assert_eq!(world.post(&format!("msg/{far}/cancel"), json!({})).await.1["canceled"], 1, "it can be called back");
}
