//! How endpoints fare: breakers that trip and close, pauses, and endpoints that are disabled by a rule. What waits for
//! them is held, and nobody else waits with them.

mod support;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use support::{
    eventually,
    house::House,
    now,
    receiver::{Answer, Arrival},
    stores::{StoreKind, on_both_stores},
    world::{World, hasty, with_header},
};

on_both_stores! {
    async
    a_backlog_that_is_being_sifted_is_resumed_by_nobody_else_and_a_pause_has_the_last_word,
    a_breaker_that_trips_holds_the_lane_and_outlives_a_restart,
    one_probe_at_a_time_finds_out_when_it_is_back,
    an_open_breaker_can_send_to_the_dead_letters,
    a_busy_endpoint_does_not_trip,
    a_breaker_can_be_off,
    what_waits_for_a_paused_endpoint_is_counted_and_chosen_from,
    a_pause_outlives_a_restart,
    what_waits_too_long_behind_a_pause_is_given_up,
    an_endpoint_that_is_gone_or_asks_for_it_is_disabled,
    an_endpoint_that_refuses_everything_is_put_into_quarantine,
    an_endpoint_that_fails_for_long_is_disabled_after_a_warning,
    an_endpoint_that_was_resumed_is_given_its_time_again,
}

/// One request at a time, so that a count of failures is exact.
fn breaker(cool_down: &str, while_open: &str) -> Value {
    json!({
        "maxInFlight": 1,
        "retryPolicy": hasty(1_000),
        "circuitBreaker": {"failures": 3, "coolDown": cool_down, "coolDownMax": cool_down, "whileOpen": while_open},
    })
}

fn messages_of(arrivals: &[Arrival]) -> BTreeSet<String> {
    arrivals.iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect()
}

/// In this house nobody drives tasks on, so that a backlog stays half sifted for as long as the test looks.
async fn a_backlog_that_is_being_sifted_is_resumed_by_nobody_else_and_a_pause_has_the_last_word(store: StoreKind) {
    let house = House::start_on(store).await;
    house.call("PUT", "app/acme", json!({"name": "Acme"})).await.expect(201);
    let paused = json!({"url": "https://example.com/", "disabled": true});
    house.call("PUT", "app/acme/endpoint/hook", paused).await.expect(201);
    let resume = "app/acme/endpoint/hook/resume";
    for stop in ["pause", "patch", "put"] {
        let task = house.post(resume, json!({"deliver": "none"})).await.expect(202)["id"].clone();
        for deliver in ["none", "all"] {
            let refused = house.post(resume, json!({"deliver": deliver})).await.expect(409);
            assert!(refused["detail"].as_str().is_some_and(|text| text.contains(task.as_str().expect("an id"))));
        }
        assert_eq!(house.get("app/acme/endpoint/hook/health").await.expect(200)["resuming"], task);
        match stop {
            "pause" => house.post("app/acme/endpoint/hook/pause", json!({})).await.expect(200),
            "patch" => house.call("PATCH", "app/acme/endpoint/hook", json!({"disabled": true})).await.expect(200),
            _ => {
                let body = json!({"url": "https://example.com/", "uid": "hook", "disabled": true});
                house.call("PUT", "app/acme/endpoint/hook", body).await.expect(200)
            }
        };
        let id = task.as_str().expect("an id");
        assert_eq!(house.get(&format!("background-task/{id}")).await.expect(200)["status"], "failed", "{stop}");
        let health = house.get("app/acme/endpoint/hook/health").await.expect(200);
        assert_eq!((&health["state"], health.get("resuming")), (&json!("disabled"), None), "{stop}");
    }
}

async fn a_breaker_that_trips_holds_the_lane_and_outlives_a_restart(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", breaker("1h", "hold")).await;
    world.endpoint("/well", json!({})).await;
    assert_eq!(world.health("down").await["state"], "healthy");
    let mut sent = BTreeSet::new();
    for _ in 0..5 {
        sent.insert(world.send("a.b").await);
    }
    let tripped = world.health_that_is("down", "tripped").await;
    let until: Timestamp = tripped["breaker"]["openUntil"].as_str().expect("a moment").parse().expect("a time");
    assert!(until > now(), "{tripped}");
    assert_eq!((&tripped["breaker"]["state"], &tripped["breaker"]["trips"]), (&json!("open"), &json!(1)), "{tripped}");
    assert_eq!(tripped["breaker"]["failuresMax"], 3);
    assert!(tripped["summary"].as_str().expect("words").contains("left alone until"), "{tripped}");
    assert!(tripped["failingSince"].is_string() && tripped["disableAt"].is_string(), "{tripped}");

    world.kill_and_start_again();
    for _ in 0..5 {
        sent.insert(world.send("a.b").await);
    }
    eventually("all of them at the one that is well", async || {
        (messages_of(&world.receiver.arrivals_at("/well")) == sent).then_some(())
    })
    .await;
    let after = world.health("down").await;
    assert_eq!((&after["state"], &after["breaker"]), (&json!("tripped"), &tripped["breaker"]), "as it was before");
    assert_eq!(after["backlog"]["waiting"], 10, "{after}");
    assert_eq!(world.receiver.arrivals_at("/down").len(), 3, "nothing was sent while it was open");

    world.receiver.always("/down", Answer::Status(204));
    let (status, reset) = world.post("endpoint/down/health/reset", Value::Null).await;
    assert_eq!((status, &reset["state"], &reset["breaker"]["state"]), (200, &json!("healthy"), &json!("closed")));
    for message in &sent {
        assert_eq!(world.end(message, "down").await.0, "success");
    }
    assert_eq!(messages_of(&world.receiver.arrivals_at("/down")), sent);
    let health = world.health("down").await;
    assert_eq!((&health["state"], &health["backlog"]["waiting"]), (&json!("healthy"), &json!(0)), "{health}");
}

async fn one_probe_at_a_time_finds_out_when_it_is_back(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", breaker("200ms", "hold")).await;
    let mut sent = BTreeSet::new();
    for _ in 0..20 {
        sent.insert(world.send("a.b").await);
    }
    let arrivals = world.receiver.wait_for("/down", 6).await;
    world.receiver.always("/down", Answer::Status(204));
    for pair in arrivals[2..].windows(2) {
        let gap = pair[1].opened - pair[0].opened;
        // Times are kept in whole milliseconds.
        assert!(gap >= Duration::from_millis(198), "a probe after {gap:?}");
    }
    for message in &sent {
        assert_eq!(world.end(message, "down").await.0, "success");
    }
    let health = world.health_that_is("down", "healthy").await;
    assert_eq!((&health["breaker"]["state"], &health["breaker"]["trips"]), (&json!("closed"), &json!(0)), "{health}");
    assert_eq!(health.get("failingSince"), None);
    world.logs("its breaker is open").await;
    world.logs("its breaker is closed").await;
    let metrics = world.client.metrics().await;
    assert!(metrics.lines().any(|line| line == "postrider_breakers_opened_total 1"), "once per change: {metrics}");
}

async fn an_open_breaker_can_send_to_the_dead_letters(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", breaker("1h", "dead-letter")).await;
    let first = world.send("a.b").await;
    assert_eq!(world.end(&first, "down").await.0, "fail");
    let second = world.send("a.b").await;
    let (end, attempts) = world.end(&second, "down").await;
    assert_eq!((end.as_str(), attempts.len()), ("fail", 0));
    let letter = world.get(&format!("dead-letter/{second}/endpoint/down")).await;
    assert_eq!((&letter["reason"], &letter["attempts"]), (&json!("breaker"), &json!(0)), "{letter}");
    assert_eq!(world.receiver.arrivals_at("/down").len(), 3);
}

async fn a_busy_endpoint_does_not_trip(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/busy", vec![Answer::Status(429); 10], Answer::Status(204));
    world.endpoint("/busy", breaker("1h", "hold")).await;
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "busy").await;
    assert_eq!((end.as_str(), attempts.len()), ("success", 11));
}

async fn a_breaker_can_be_off(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/down", vec![Answer::Status(500); 30], Answer::Status(204));
    world.endpoint("/down", json!({"circuitBreaker": false, "retryPolicy": hasty(40)})).await;
    assert_eq!(world.health("down").await["breaker"]["state"], "off");
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "down").await;
    assert_eq!((end.as_str(), attempts.len()), ("success", 31), "the default would have tripped at twenty");
}

/// Messages of two keys and of none, each accepted in a millisecond of its own.
async fn send_backlog(world: &mut World) -> Vec<(String, String)> {
    let mut sent = Vec::new();
    for key in [Some("a"), Some("b"), None, Some("a"), Some("b"), Some("a")] {
        let more = key.map_or(json!({}), |key| json!({"orderingKey": key}));
        let id = world.send_with("a.b", more).await;
        let at = world.get(&format!("msg/{id}")).await["timestamp"].as_str().expect("a time").to_owned();
        sent.push((id, at));
    }
    sent
}

async fn what_waits_for_a_paused_endpoint_is_counted_and_chosen_from(store: StoreKind) {
    let mut world = World::start_on(store).await;
    for path in ["/all", "/since", "/newest", "/none"] {
        world.endpoint(path, json!({})).await;
        let (status, health) = world.post(&format!("endpoint{path}/pause"), Value::Null).await;
        assert_eq!(
            (status, &health["state"], &health["disabled"]["reason"]),
            (200, &json!("disabled"), &json!("manual"))
        );
        let (_, again) = world.post(&format!("endpoint{path}/pause"), Value::Null).await;
        assert_eq!(again["disabled"], health["disabled"], "a second pause changes nothing");
        assert_eq!(world.get(&format!("endpoint{path}")).await["disabled"], true);
    }
    let sent = send_backlog(&mut world).await;
    let (_, third_at) = &sent[2];
    for path in ["all", "since", "newest", "none"] {
        let backlog = world.get(&format!("endpoint/{path}/backlog?since={third_at}")).await;
        let expected = json!({"waiting": 6, "oldest": sent[0].1, "newestPerKey": 3, "since": 4});
        assert_eq!(backlog, expected);
        assert_eq!(world.health(path).await["backlog"]["waiting"], 6);
    }
    assert_eq!(world.receiver.count(), 0, "nothing is sent meanwhile");

    for body in [
        json!({"deliver": "since"}),
        json!({"deliver": "all", "since": third_at}),
        json!({"deliver": "newest-per-key", "since": third_at}),
        json!({"deliver": "some"}),
        json!({"what": "all"}),
    ] {
        let (status, refused) = world.post("endpoint/all/resume", body.clone()).await;
        assert_eq!(status, 422, "{body}: {refused}");
    }
    let (status, health) = world.post("endpoint/all/resume", json!({})).await;
    assert_eq!((status, &health["state"]), (200, &json!("healthy")), "{health}");
    let (status, refused) = world.post("endpoint/all/resume", json!({"deliver": "none"})).await;
    assert_eq!((status, &refused["code"]), (409, &json!("conflict")), "it is not paused any more");

    let ids = |numbers: &[usize]| numbers.iter().map(|n| sent[*n].0.clone()).collect::<BTreeSet<_>>();
    for (path, body, expected) in [
        ("/all", None, ids(&[0, 1, 2, 3, 4, 5])),
        ("/since", Some(json!({"deliver": "since", "since": third_at})), ids(&[2, 3, 4, 5])),
        ("/newest", Some(json!({"deliver": "newest-per-key"})), ids(&[2, 4, 5])),
        ("/none", Some(json!({"deliver": "none"})), ids(&[])),
    ] {
        let uid = &path[1..];
        if let Some(body) = body {
            let started = world.post(&format!("endpoint{path}/resume"), body).await;
            assert_eq!(started.1["task"], "endpoint.resume");
            let task = world.end_of_task(started).await;
            assert_eq!(task["status"], "finished", "{task}");
            assert_eq!(task["data"]["messages_canceled"], 6 - expected.len(), "{task}");
        }
        for (id, _) in &sent {
            let end = if expected.contains(id) { "success" } else { "canceled" };
            assert_eq!(world.end(id, uid).await.0, end, "{path}");
        }
        assert_eq!(messages_of(&world.receiver.arrivals_at(path)), expected, "{path}");
        assert_eq!(world.receiver.arrivals_at(path).len(), expected.len(), "{path}: each of them once");
        assert_eq!(world.health(uid).await["state"], "healthy");
        let dead = world.list(&format!("dead-letter?endpoint_id={uid}&reason=cancelled")).await;
        assert_eq!(dead.len(), 6 - expected.len(), "{path}: what was not chosen can still be replayed");
    }
    let later = world.send("a.b").await;
    assert_eq!(world.end(&later, "none").await.0, "success", "it goes on as before");
}

async fn a_pause_outlives_a_restart(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/held", json!({})).await;
    let before = world.send("a.b").await;
    assert_eq!(world.end(&before, "held").await.0, "success");
    world.post("endpoint/held/pause", Value::Null).await;
    let held = world.send("a.b").await;
    world.kill_and_start_again();
    let later = world.send("a.b").await;
    let health = world.health("held").await;
    assert_eq!((&health["state"], &health["backlog"]["waiting"]), (&json!("disabled"), &json!(2)), "{health}");
    assert_eq!(world.receiver.count(), 1);
    world.post("endpoint/held/resume", json!({"deliver": "all"})).await;
    for message in [&held, &later] {
        assert_eq!(world.end(message, "held").await.0, "success");
    }
}

async fn what_waits_too_long_behind_a_pause_is_given_up(store: StoreKind) {
    let mut world = World::start_on(store).await;
    for (path, hold) in [("/short", "1ms"), ("/long", "1h")] {
        world.endpoint(path, json!({"retryPolicy": {"holdFor": hold}})).await;
        world.post(&format!("endpoint{path}/pause"), Value::Null).await;
    }
    let message = world.send("a.b").await;
    // It is looked for every few minutes, and at each start.
    world.kill_and_start_again();
    let (end, attempts) = world.end(&message, "short").await;
    assert_eq!((end.as_str(), attempts.len()), ("fail", 0));
    let letter = world.get(&format!("dead-letter/{message}/endpoint/short")).await;
    assert_eq!(letter["reason"], "expired", "{letter}");
    assert_eq!(world.status(&message, "long").await.as_deref(), Some("pending"));
    assert_eq!(world.health("short").await["backlog"]["waiting"], 0);
}

async fn an_endpoint_that_is_gone_or_asks_for_it_is_disabled(store: StoreKind) {
    let mut world = World::start_on(store).await;
    for (path, answer, reason, end) in [
        ("/gone", Answer::Status(410), "gone", "fail"),
        ("/asks", with_header(200, "webhook-delivery", "disable"), "asked", "success"),
        ("/begs", with_header(503, "webhook-delivery", "disable"), "asked", "pending"),
    ] {
        world.receiver.script(path, [answer], Answer::Status(204));
        world
            .endpoint(path, json!({"retryPolicy": {"schedule": {"type": "fixed", "interval": "1s"}, "jitter": "none"}}))
            .await;
        let first = world.send("a.b").await;
        let health = world.health_that_is(&path[1..], "disabled").await;
        assert_eq!(health["disabled"]["reason"], reason, "{health}");
        if end != "pending" {
            assert_eq!(world.end(&first, &path[1..]).await.0, end, "{path}");
        }
        let second = world.send("a.b").await;
        assert_eq!(world.status(&second, &path[1..]).await.as_deref(), Some("pending"), "{path}: it is held");
        assert_eq!(world.receiver.arrivals_at(path).len(), 1, "{path}");
        let (status, _) = world.call(Method::PATCH, &format!("endpoint{path}"), json!({"disabled": false})).await;
        assert_eq!(status, 200);
        assert_eq!(world.end(&second, &path[1..]).await.0, "success", "{path}");
        if end == "pending" {
            assert_eq!(world.end(&first, &path[1..]).await.0, "success", "{path}: what was tried goes on too");
        }
        assert_eq!(world.health(&path[1..]).await["state"], "healthy");
        let metrics = world.client.metrics().await;
        let line = format!("postrider_endpoints_disabled_total{{reason=\"{reason}\"}} ");
        assert!(metrics.lines().any(|it| it.starts_with(&line)), "{metrics}");
        world.call(Method::DELETE, &format!("endpoint{path}"), Value::Null).await;
    }
}

async fn an_endpoint_that_refuses_everything_is_put_into_quarantine(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/unwilling", Answer::Status(400));
    world.endpoint("/unwilling", json!({"autoDisable": {"permanentStreak": 4}})).await;
    for n in 1..=3 {
        let message = world.send("a.b").await;
        assert_eq!(world.end(&message, "unwilling").await.0, "fail");
        let health = world.health("unwilling").await;
        assert_eq!((&health["permanentStreak"], health.get("disabled")), (&json!(n), None), "{health}");
        assert_eq!((&health["state"], &health["permanentStreakMax"]), (&json!("refusing"), &json!(4)), "{health}");
        assert_eq!(health["warned"], n >= 2, "{health}");
        let words = "refuses one message after the other";
        match n >= 2 {
            true => world.logs(words).await,
            false => assert!(!world.server.log().contains(words), "its owner is warned at the half"),
        }
    }
    world.send("a.b").await;
    let health = world.health_that_is("unwilling", "disabled").await;
    assert_eq!(health["disabled"]["reason"], "quarantined");
    assert_eq!(world.server.log().matches("refuses one message after the other").count(), 1, "once");

    world.receiver.always("/unwilling", Answer::Status(204));
    world.post("endpoint/unwilling/resume", json!({})).await;
    let message = world.send("a.b").await;
    assert_eq!(world.end(&message, "unwilling").await.0, "success");
    assert_eq!(world.health("unwilling").await["permanentStreak"], 0);
}

async fn an_endpoint_that_fails_for_long_is_disabled_after_a_warning(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(500));
    let rules = json!({
        "circuitBreaker": false,
        "retryPolicy": {"schedule": {"type": "fixed", "interval": "50ms"}, "jitter": "none", "maxAttempts": 1_000},
        "autoDisable": {"failingFor": "2s"},
    });
    world.endpoint("/down", rules).await;
    let message = world.send("a.b").await;
    let failing = world.health_that_is("down", "failing").await;
    let moment = |field: &str| failing[field].as_str().expect("a moment").parse::<Timestamp>().expect("a time");
    assert_eq!(moment("disableAt").duration_since(moment("failingSince")).as_millis(), 2_000, "{failing}");
    assert!(failing["summary"].as_str().expect("words").contains("it is disabled"), "{failing}");
    let health = world.health_that_is("down", "disabled").await;
    assert_eq!(health["disabled"]["reason"], "failing", "{health}");
    world.logs("the endpoint is disabled").await;
    let log = world.server.log();
    let (warned, disabled) = (log.find("will be disabled unless it answers"), log.find("the endpoint is disabled"));
    assert!(warned.is_some() && warned < disabled, "{log}");
    assert_eq!(world.status(&message, "down").await.as_deref(), Some("sending"), "what it is owed is held");

    world.receiver.always("/down", Answer::Status(204));
    world.post("endpoint/down/resume", json!({})).await;
    assert_eq!(world.end(&message, "down").await.0, "success");
    assert_eq!(world.health("down").await["state"], "healthy");
}

async fn an_endpoint_that_was_resumed_is_given_its_time_again(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(400));
    world.endpoint("/down", json!({"autoDisable": {"permanentStreak": 2}})).await;
    for _ in 0..2 {
        world.send("a.b").await;
    }
    world.health_that_is("down", "disabled").await;
    world.post("endpoint/down/resume", json!({})).await;
    assert_eq!(world.health("down").await["permanentStreak"], 0, "what led to it is forgotten");
    let message = world.send("a.b").await;
    assert_eq!(world.end(&message, "down").await.0, "fail");
    assert_eq!(world.health("down").await.get("disabled"), None, "one refusal is not two");
}
