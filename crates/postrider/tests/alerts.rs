//! Alerts: found out by watching, told once, through every channel; and the button that tries them all.

#[path = "alerts/post_office.rs"]
mod post_office;
mod support;

use http::Method;
use post_office::{Authority, PostOffice, Wire};
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    net::{SocketAddr, TcpListener},
    time::Duration,
};
use support::{
    eventually,
    house::House,
    receiver::{Answer, Arrival},
    stores::{StoreKind, on_both_stores},
    world::{World, hasty, joined},
};

on_both_stores! {
    async
    an_application_whose_attempts_fail_is_told_of_once,
    the_test_alert_says_what_came_of_each_channel,
    a_node_whose_work_lies_is_not_ready_and_alive,
    what_concerns_all_is_told_once_when_it_begins_and_once_when_it_is_over,
    what_was_told_of_before_a_restart_is_told_of_again_only_when_it_is_over,
    a_breaker_that_a_person_closes_is_told_of,
    an_application_that_is_deleted_is_told_of_no_more,
    work_that_lies_turns_readiness_red_until_it_goes_on,
}

const OPERATIONAL: &str = "/api/v1/operational-webhook/endpoint";

async fn listen(world: &mut World, path: &str, more: Value) -> Value {
    let body = joined(json!({"url": world.receiver.url(path), "uid": &path[1..]}), &more);
    world.client.create(OPERATIONAL, &body).await["id"].clone()
}

fn events_at(world: &World, path: &str, name: &str) -> Vec<Value> {
    let arrivals = world.receiver.arrivals_at(path);
    let all = arrivals.iter().map(|arrival| serde_json::from_slice::<Value>(&arrival.body).expect("JSON"));
    all.filter(|event| event["type"] == name).collect()
}

fn with_variables(world: &mut World, variables: &[(&str, &str)]) {
    world.server.kill();
    world.server.set_variables(variables);
    world.start_again();
}

async fn test_alert(world: &mut World) -> Value {
    let sent = world.client.send(Method::POST, "/api/v1/alert/test", &[], "").await.expect("the server answers");
    assert_eq!(sent.0, 200, "{:?}", sent.1);
    serde_json::from_slice(&sent.1).expect("JSON")
}

async fn an_application_whose_attempts_fail_is_told_of_once(store: StoreKind) {
    let mut world = World::start_on(store).await;
    with_variables(&mut world, &[("POSTRIDER_ALERT_ATTEMPTS_MIN", "5")]);
    listen(&mut world, "/ops", json!({})).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", json!({"retryPolicy": hasty(8), "circuitBreaker": false})).await;
    world.send("a.b").await;
    let told = eventually("the alert", async || events_at(&world, "/ops", "postrider.application.failing").pop()).await;
    let data = &told["data"];
    assert_eq!((&data["appUid"], &data["successRate"]), (&json!("acme"), &json!(0.0)), "{told}");
    assert!(data["attempts"].as_u64() >= Some(5), "{told}");
    world.logs("too few attempts succeed").await;
    // More of the same is no news.
    let more = world.send("a.b").await;
    world.end(&more, "down").await;
    let exhausted = || events_at(&world, "/ops", "message.attempt.exhausted").len();
    eventually("the last event", async || (exhausted() == 2).then_some(())).await;
    assert_eq!(events_at(&world, "/ops", "postrider.application.failing").len(), 1);
}

async fn the_test_alert_says_what_came_of_each_channel(store: StoreKind) {
    let mut world = World::start_on(store).await;
    assert_eq!(test_alert(&mut world).await, json!({"log": "written", "mail": {"status": "off"}, "webhooks": []}));
    world.logs("this is a test alert").await;

    world.receiver.always("/bad", Answer::Status(500));
    let good = listen(&mut world, "/good", json!({"eventTypes": ["endpoint.disabled"]})).await;
    let bad = listen(&mut world, "/bad", json!({})).await;
    let off = listen(&mut world, "/off", json!({"disabled": true})).await;
    let came = test_alert(&mut world).await["webhooks"].clone();
    let of =
        |id: &Value| came.as_array().expect("a list").iter().find(|it| it["endpointId"] == *id).expect("it").clone();
    assert_eq!(of(&good)["status"], "delivered", "whatever it asked for");
    assert_eq!((&of(&bad)["status"], &of(&bad)["responseStatusCode"]), (&json!("failed"), &json!(500)));
    assert_eq!(of(&off)["status"], "disabled");
    assert_eq!(events_at(&world, "/good", "postrider.test").len(), 1);
}

async fn a_node_whose_work_lies_is_not_ready_and_alive(store: StoreKind) {
    let house = House::start_on(store).await;
    for (is_stuck, ready) in [(false, 204), (true, 503), (false, 204)] {
        house.api.alerts.watch.set_stuck(is_stuck);
        assert_eq!(house.get("health/ready").await.status, ready);
        for green in ["health/live", "health", "health/ping"] {
            assert_eq!(house.get(green).await.status, 204, "{green}");
        }
    }
    house.store.close().await;
    assert_eq!(house.get("health/live").await.status, 204, "whatever else is wrong");
}

async fn what_concerns_all_is_told_once_when_it_begins_and_once_when_it_is_over(store: StoreKind) {
    let mut world = World::start_on(store).await;
    with_variables(
        &mut world,
        &[
            ("POSTRIDER_ALERT_WINDOW", "2s"),
            ("POSTRIDER_ALERT_BACKLOG_GROWTH", "20"),
            ("POSTRIDER_ALERT_DEAD_LETTERS_GROWTH", "5"),
            ("POSTRIDER_ALERT_BREAKERS_OPEN", "2"),
        ],
    );
    let system = ["postrider.system.raised", "postrider.system.cleared"];
    listen(&mut world, "/ops", json!({"eventTypes": system})).await;
    let breaker = json!({"failures": 1, "coolDown": "10m"});
    for (path, more) in [
        ("/one", json!({"channels": ["breaks"], "circuitBreaker": breaker, "retryPolicy": hasty(9)})),
        ("/two", json!({"channels": ["breaks"], "circuitBreaker": breaker, "retryPolicy": hasty(9)})),
        ("/paused", json!({"channels": ["waits"], "disabled": true})),
        ("/refusing", json!({"channels": ["dies"], "circuitBreaker": false})),
    ] {
        world.endpoint(path, more).await;
    }
    for (path, status) in [("/one", 503), ("/two", 503), ("/refusing", 400)] {
        world.receiver.always(path, Answer::Status(status));
    }
    let told = |world: &World, name: &str| -> Vec<String> {
        let events = events_at(world, "/ops", name);
        let mut alerts: Vec<String> =
            events.iter().map(|event| event["data"]["alert"].as_str().expect("a word").to_owned()).collect();
        alerts.sort();
        alerts
    };
    let [raised, cleared] = system;
    for (channel, alert) in
        [("breaks", "breakers_open"), ("waits", "backlog_growing"), ("dies", "dead_letters_growing")]
    {
        // It goes on until it is told of.
        eventually(alert, async || {
            world.send_with("a.b", json!({"channels": [channel]})).await;
            told(&world, raised).contains(&alert.to_owned()).then_some(())
        })
        .await;
    }
    for path in ["one", "two"] {
        world.receiver.always(&format!("/{path}"), Answer::Status(204));
        let (status, answer) = world.post(&format!("endpoint/{path}/health/reset"), Value::Null).await;
        assert!(status < 300, "{answer}");
    }
    let all = ["backlog_growing", "breakers_open", "dead_letters_growing"];
    eventually("all of it to be over", async || (told(&world, cleared).len() >= all.len()).then_some(())).await;
    assert_eq!(
        (told(&world, raised), told(&world, cleared)),
        (all.map(str::to_owned).to_vec(), all.map(str::to_owned).to_vec())
    );
    for about in ["the backlog grows", "many endpoints fail", "dead letters grow"] {
        for state in ["raised", "cleared"] {
            let words = format!("System, {state}: {about}");
            world.logs(&words).await;
            assert_eq!(world.server.log().matches(&words).count(), 1, "{state}: {about}");
        }
    }
}

async fn what_was_told_of_before_a_restart_is_told_of_again_only_when_it_is_over(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let rules = [
        ("POSTRIDER_ALERT_WINDOW", "2s"),
        ("POSTRIDER_ALERT_BREAKERS_OPEN", "1"),
        ("POSTRIDER_ALERT_ATTEMPTS_MIN", "5"),
    ];
    with_variables(&mut world, &rules);
    listen(&mut world, "/ops", json!({})).await;
    let breaker = json!({"failures": 1, "coolDown": "10m"});
    world.endpoint("/breaks", json!({"circuitBreaker": breaker, "retryPolicy": hasty(9)})).await;
    world.endpoint("/down", json!({"circuitBreaker": false, "retryPolicy": hasty(8)})).await;
    for path in ["/breaks", "/down"] {
        world.receiver.always(path, Answer::Status(503));
    }
    // By their ids: what was on its way when the server was killed comes twice.
    let told = |world: &World, name: &str| {
        let is_meant = |arrival: &Arrival| String::from_utf8_lossy(&arrival.body).contains(name);
        let all = world.receiver.arrivals_at("/ops");
        let ids = all.iter().filter(|arrival| is_meant(arrival)).map(|arrival| arrival.headers["webhook-id"].clone());
        ids.collect::<HashSet<_>>().len()
    };
    let begun = ["postrider.system.raised", "postrider.application.failing"];
    eventually("both alerts", async || {
        world.send("a.b").await;
        begun.iter().all(|name| told(&world, name) > 0).then_some(())
    })
    .await;

    world.kill_and_start_again();
    let more = world.send("a.b").await;
    world.end(&more, "down").await;
    for path in ["/breaks", "/down"] {
        world.receiver.always(path, Answer::Status(204));
    }
    let (status, answer) = world.post("endpoint/breaks/health/reset", Value::Null).await;
    assert!(status < 300, "{answer}");
    eventually("all of it to be over", async || {
        world.send("a.b").await;
        let ended = ["postrider.system.cleared", "postrider.application.recovered"];
        ended.iter().all(|name| told(&world, name) == 1).then_some(())
    })
    .await;
    assert_eq!(begun.map(|name| told(&world, name)), [1, 1], "once, by whichever life");
}

/// Its window is bad for as long as it lasts.
async fn an_application_that_is_deleted_is_told_of_no_more(store: StoreKind) {
    let mut world = World::start_on(store).await;
    with_variables(&mut world, &[("POSTRIDER_ALERT_ATTEMPTS_MIN", "5"), ("POSTRIDER_ALERT_OLDEST_DUE", "1s")]);
    listen(&mut world, "/ops", json!({})).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", json!({"retryPolicy": hasty(8), "circuitBreaker": false})).await;
    world.send("a.b").await;
    let failing = |world: &World| events_at(world, "/ops", "postrider.application.failing").len();
    eventually("the alert", async || (failing(&world) == 1).then_some(())).await;
    let deleted = world.client.send(Method::DELETE, "/api/v1/app/acme", &[], "").await.expect("an answer");
    assert_eq!(deleted.0, 204);
    // It looks ten times a second: each of these takes longer than one look.
    for _ in 0..5 {
        test_alert(&mut world).await;
        tokio::time::sleep(LOOK).await;
    }
    assert_eq!(failing(&world), 1);
    assert_eq!(events_at(&world, "/ops", "postrider.application.recovered").len(), 0, "it did not recover");
    let log = world.server.log();
    assert_eq!(log.matches("too few attempts succeed").count(), 1, "{log}");
}

const LOOK: Duration = Duration::from_millis(150);

async fn a_breaker_that_a_person_closes_is_told_of(store: StoreKind) {
    let mut world = World::start_on(store).await;
    listen(&mut world, "/ops", json!({"eventTypes": ["postrider.endpoint.failing", "postrider.endpoint.recovered"]}))
        .await;
    let rules = json!({"circuitBreaker": {"failures": 1, "coolDown": "10m"}, "retryPolicy": hasty(9)});
    world.endpoint("/shop", rules).await;
    let endpoint = world.get("endpoint/shop").await;
    world.receiver.always("/shop", Answer::Status(503));
    world.send("a.b").await;
    eventually("the alert", async || events_at(&world, "/ops", "postrider.endpoint.failing").pop()).await;
    world.receiver.always("/shop", Answer::Status(204));
    for _ in 0..2 {
        let (status, answer) = world.post("endpoint/shop/health/reset", Value::Null).await;
        assert!(status < 300, "{answer}");
    }
    let told = eventually("its end", async || events_at(&world, "/ops", "postrider.endpoint.recovered").pop()).await;
    assert_eq!(told["data"]["endpointId"], endpoint["id"], "{told}");
    // Whatever else was to come has come before this.
    test_alert(&mut world).await;
    assert_eq!(
        events_at(&world, "/ops", "postrider.endpoint.recovered").len(),
        1,
        "what is closed is not closed again"
    );
}

async fn work_that_lies_turns_readiness_red_until_it_goes_on(store: StoreKind) {
    let mut world = World::start_on(store).await;
    with_variables(&mut world, &[("POSTRIDER_ALERT_OLDEST_DUE", "1s")]);
    listen(&mut world, "/ops", json!({})).await;
    // The second attempt is due and has no end, and nothing else is done meanwhile.
    world.receiver.script("/shop", [Answer::Status(500)], Answer::Hang);
    world.endpoint("/shop", json!({"retryPolicy": hasty(2), "timeouts": {"firstByte": "12s", "total": "12s"}})).await;
    assert_eq!(ready(&mut world).await, 204);
    world.send("a.b").await;
    eventually("red", async || (ready(&mut world).await == 503).then_some(())).await;
    assert_eq!(world.client.send(Method::GET, "/api/v1/health/live", &[], "").await.expect("an answer").0, 204);
    let told = eventually("the alert", async || events_at(&world, "/ops", "postrider.system.raised").pop()).await;
    assert_eq!(told["data"]["alert"], "work_stuck");
    assert!(told["data"]["value"].as_u64() >= Some(1), "{told}");
    // That operators were told of it does not mean that it moves.
    assert_eq!(ready(&mut world).await, 503);
    eventually("green", async || (ready(&mut world).await == 204).then_some(())).await;
    assert!(world.receiver.arrivals_at("/shop")[1].closed.is_some(), "not before it went on");
    let over = eventually("the end", async || events_at(&world, "/ops", "postrider.system.cleared").pop()).await;
    assert_eq!(over["data"]["alert"], "work_stuck");
    assert_eq!(events_at(&world, "/ops", "postrider.system.raised").len(), 1, "once");
}

async fn ready(world: &mut World) -> u16 {
    world.client.send(Method::GET, "/api/v1/health/ready", &[], "").await.expect("an answer").0.as_u16()
}

#[tokio::test]
async fn alerts_are_mailed_and_a_broken_mail_server_holds_nobody_up() {
    let mut world = World::start().await;
    let post_office = PostOffice::open();
    let mail = |address: SocketAddr| format!("smtp+plain://someone:secret-canary@{address}");
    let start = |world: &mut World, server: &str| mail_by(world, server, None);
    start(&mut world, &mail(post_office.address));
    assert_eq!(test_alert(&mut world).await["mail"], json!({"status": "sent"}));
    let letters = post_office.letters();
    for to in ["RCPT TO:<ops@example.com>", "RCPT TO:<boss@example.com>"] {
        assert!(
            letters.iter().any(|letter| letter.contains(to) && letter.contains("Nothing is wrong.")),
            "{letters:?}"
        );
    }
    world.receiver.always("/gone", Answer::Status(410));
    world.endpoint("/gone", json!({})).await;
    world.send("a.b").await;
    let letter = eventually("a letter about it", async || {
        post_office.letters().into_iter().find(|letter| letter.contains("is disabled"))
    })
    .await;
    assert!(letter.contains("Endpoint ep_"), "{letter}");

    // Nobody there, one that says nothing, and one that takes nothing.
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    for server in [mail(closed), mail(silent.local_addr().expect("its address")), mail(PostOffice::refusing().address)]
    {
        start(&mut world, &server);
        let message = world.send("a.b");
        let sent = message.await;
        let failed = test_alert(&mut world).await["mail"].clone();
        assert_eq!(failed["status"], "failed", "{failed}");
        assert!(failed["detail"].as_str().is_some_and(|why| !why.contains("secret-canary")), "{failed}");
        assert!(!sent.is_empty() && !world.server.log().contains("secret-canary"));
    }
}

#[tokio::test]
async fn one_who_is_unknown_to_the_mail_server_keeps_nobody_else_from_being_told() {
    let mut world = World::start().await;
    let office = PostOffice::open();
    with_variables(
        &mut world,
        &[
            ("POSTRIDER_ALERT_MAIL_SERVER", &format!("smtp+plain://{}", office.address)),
            ("POSTRIDER_ALERT_MAIL_FROM", "alerts@example.com"),
            ("POSTRIDER_ALERT_MAIL_TO", "gone@example.com,ops@example.com"),
        ],
    );
    let tried = test_alert(&mut world).await["mail"].clone();
    assert_eq!(tried["status"], "failed", "{tried}");
    assert!(tried["detail"].as_str().is_some_and(|why| why.starts_with("gone@example.com: ")), "{tried}");
    for number in 0..2 {
        let path = format!("/gone{number}");
        world.receiver.always(&path, Answer::Status(410));
        world.endpoint(&path, json!({})).await;
        let endpoint = world.get(&format!("endpoint{path}")).await["id"].as_str().expect("an id").to_owned();
        world.send("a.b").await;
        eventually("a letter about it", async || {
            let is_it = |letter: &String| letter.contains("RCPT TO:<ops@") && letter.contains(&endpoint);
            office.letters().into_iter().find(is_it)
        })
        .await;
    }
    let tries = office.heard().iter().filter(|line| line.contains("<gone@")).count();
    assert!((1..=3).contains(&tries), "refused for good, it is not insisted on: {tries}");
}

#[tokio::test]
async fn an_owner_is_mailed_about_his_own_application_and_nothing_else() {
    let mut world = World::start().await;
    world.client.create("/api/v1/app", &json!({"name": "Other", "uid": "other"})).await;
    let office = PostOffice::open();
    with_variables(
        &mut world,
        &[
            ("POSTRIDER_ALERT_MAIL_SERVER", &format!("smtp+plain://{}", office.address)),
            ("POSTRIDER_ALERT_MAIL_FROM", "alerts@example.com"),
            ("POSTRIDER_ALERT_MAIL_TO", "ops@example.com"),
            ("POSTRIDER_ALERT_MAIL_OWNERS", "acme=owner@acme.example,third=nobody@third.example"),
        ],
    );
    assert_eq!(test_alert(&mut world).await["mail"], json!({"status": "sent"}));
    let mut endpoints = Vec::new();
    for app in ["other", "acme"] {
        let path = format!("/{app}");
        world.receiver.always(&path, Answer::Status(410));
        let endpoint = json!({"url": world.receiver.url(&path)});
        let made = world.client.create(&format!("/api/v1/app/{app}/endpoint"), &endpoint).await;
        endpoints.push(made["id"].as_str().expect("an id").to_owned());
        let message = json!({"eventType": "a.b", "payload": {}});
        world.client.create(&format!("/api/v1/app/{app}/msg"), &message).await;
    }
    let letters_to = |who: &str| -> Vec<String> {
        office.letters().into_iter().filter(|letter| letter.contains(&format!("RCPT TO:<{who}>"))).collect()
    };
    let both_told = || letters_to("ops@example.com").concat();
    eventually("the letters to operators", async || {
        endpoints.iter().all(|endpoint| both_told().contains(endpoint.as_str())).then_some(())
    })
    .await;
    let letters = eventually("the letter to the owner", async || {
        Some(letters_to("owner@acme.example")).filter(|letters| !letters.is_empty())
    })
    .await;
    let [letter] = &letters[..] else { panic!("one: {letters:?}") };
    let [other, own] = &endpoints[..] else { panic!("two") };
    assert!(letter.contains(own.as_str()) && letter.contains("is disabled"), "{letter}");
    assert!(!letter.contains(other.as_str()) && !letter.contains("test alert"), "{letter}");
    assert!(!letter.contains("ops@example.com"), "nobody else is on it: {letter}");
    assert_eq!(letters_to("nobody@third.example").len(), 0);
}

#[tokio::test]
async fn mail_goes_over_tls_and_only_to_a_server_that_is_trusted() {
    let mut world = World::start().await;
    let (ours, strange) = (Authority::new("ours"), Authority::new("strange"));
    for (scheme, wire) in [("smtps", Wire::Always), ("smtp", Wire::Started)] {
        let server = |office: &PostOffice| format!("{scheme}://someone:secret-canary@{}", office.address);
        let office = PostOffice::secure(wire, ours.issue("127.0.0.1"));
        mail_by(&mut world, &server(&office), Some(&ours));
        assert_eq!(test_alert(&mut world).await["mail"], json!({"status": "sent"}), "{scheme}");
        assert_eq!(office.letters().len(), 2, "one to each, {scheme}");
        assert!(office.heard().iter().any(|line| line.starts_with("AUTH ")), "it is the right place for a password");

        for (certificate, trusted, flaw) in [
            (ours.issue("127.0.0.1"), None, "UnknownIssuer"),
            (strange.issue("127.0.0.1"), Some(&ours), "UnknownIssuer"),
            (ours.issue("mail.example.com"), Some(&ours), "not valid for name"),
            (ours.issue_expired("127.0.0.1"), Some(&ours), "expired"),
        ] {
            let office = PostOffice::secure(wire, certificate);
            mail_by(&mut world, &server(&office), trusted);
            let failed = test_alert(&mut world).await["mail"].clone();
            let detail = failed["detail"].as_str().expect("why");
            assert_eq!(failed["status"], "failed");
            assert!(detail.contains("certificate is not trusted") && detail.contains("extra_ca_file"), "{detail}");
            assert!(detail.contains(flaw), "{flaw} in {detail}");
            assert!(!office.heard().iter().any(|line| line.starts_with("AUTH ")), "{scheme}: {flaw}");
        }
    }
    // Whoever offers no STARTTLS, or someone between who leaves it out, gets neither password nor letter.
    let plain = PostOffice::open();
    mail_by(&mut world, &format!("smtp://someone:secret-canary@{}", plain.address), Some(&ours));
    assert_eq!(test_alert(&mut world).await["mail"]["status"], "failed");
    assert!(plain.letters().is_empty() && !plain.heard().iter().any(|line| line.starts_with("AUTH ")));
    assert!(!world.server.log().contains("secret-canary"));
}

fn mail_by(world: &mut World, server: &str, trusted: Option<&Authority>) {
    let file = trusted.map(|authority| authority.file().display().to_string());
    let mut variables = vec![
        ("POSTRIDER_ALERT_MAIL_SERVER", server),
        ("POSTRIDER_ALERT_MAIL_FROM", "alerts@example.com"),
        ("POSTRIDER_ALERT_MAIL_TO", "ops@example.com,boss@example.com"),
    ];
    variables.extend(file.as_deref().map(|file| ("POSTRIDER_EXTRA_CA_FILE", file)));
    with_variables(world, &variables);
}
