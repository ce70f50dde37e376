//! What an attempt sent and what it got back can be looked at, as it was, and without anybody's credentials.

mod support;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use support::{
    receiver::{Answer, Receiver},
    stores::{StoreKind, on_both_stores},
    world::{World, hasty},
};

on_both_stores! {
    async
    the_headers_of_a_failed_attempt_are_those_that_the_receiver_saw,
    of_which_attempts_they_are_kept_is_set,
    what_a_receiver_sends_back_of_a_token_is_not_kept,
    what_a_redirect_left_behind_is_not_shown_as_sent,
}

async fn headers(world: &mut World, message: &str, attempt: &Value) -> Value {
    let attempt = attempt["id"].as_str().expect("an id");
    world.get(&format!("msg/{message}/attempt/{attempt}/headers")).await
}

async fn the_headers_of_a_failed_attempt_are_those_that_the_receiver_saw(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let echo = Answer::Full {
        status: 503,
        headers: vec![
            ("content-type", "text/plain".to_owned()),
            ("retry-after", "0".to_owned()),
            ("server", "echo of canary-of-the-owner".to_owned()),
            ("set-cookie", "session=canary-of-the-receiver".to_owned()),
        ],
        body: Bytes::from("busy"),
    };
    world.receiver.script("/shop", [echo], Answer::Status(204));
    world.endpoint("/shop", json!({"retryPolicy": hasty(3), "headers": {"x-api-key": "canary-of-the-owner"}})).await;
    let message = world.send("a.b").await;
    let (_, attempts) = world.end(&message, "shop").await;

    let kept = headers(&mut world, &message, &attempts[0]).await;
    let seen = &world.receiver.arrivals_at("/shop")[0].headers;
    let sent = kept["sentHeaders"].as_object().expect("an object");
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature", "svix-id", "user-agent", "content-type"] {
        assert!(sent.contains_key(name), "{name} is not in {kept}");
    }
    for (name, value) in sent {
        assert_eq!(seen[name.as_str()].to_str().expect("text"), value, "{name}");
    }
    assert_eq!(kept["sensitive"], json!(["x-api-key"]));
    for name in seen.keys().map(|name| name.as_str()).filter(|name| !["host", "content-length"].contains(name)) {
        assert!(sent.contains_key(name) || name == "x-api-key", "the receiver saw {name}, too: {kept}");
    }
    let answered: Vec<(String, String)> = serde_json::from_value(kept["responseHeaders"].clone()).expect("pairs");
    let value = |name: &str| &answered.iter().find(|(of, _)| of == name).expect("it was answered").1;
    assert_eq!((value("content-type"), value("retry-after")), (&"text/plain".to_owned(), &"0".to_owned()));
    assert_eq!((value("server"), value("set-cookie")), (&"echo of ***".to_owned(), &"***".to_owned()));
    assert!(!kept.to_string().contains("canary"), "{kept}");

    let none = json!({"sentHeaders": {}, "sensitive": [], "responseHeaders": null});
    assert_eq!(headers(&mut world, &message, &attempts[1]).await, none, "it arrived");
    let attempt = attempts[0]["id"].as_str().expect("an id");
    let path = format!("/api/v1/app/acme/msg/{message}/attempt/{attempt}/content");
    assert_eq!(world.client.send(Method::DELETE, &path, &[], "").await.expect("an answer").0, 204);
    assert_eq!(headers(&mut world, &message, &attempts[0]).await, none, "what is removed is gone");
}

async fn of_which_attempts_they_are_kept_is_set(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.endpoint("/shop", json!({})).await;
    world.endpoint("/down", json!({"retryPolicy": hasty(1)})).await;
    world.receiver.always("/down", Answer::Reset);
    for (set, arrived, failed) in [("none", false, false), ("failed", false, true), ("all", true, true)] {
        world.server.kill();
        world.server.set_variables(&[("POSTRIDER_ATTEMPT_HEADERS", set)]);
        world.start_again();
        let message = world.send("a.b").await;
        for (path, is_kept) in [("shop", arrived), ("down", failed)] {
            let (_, attempts) = world.end(&message, path).await;
            let kept = headers(&mut world, &message, &attempts[0]).await;
            assert_eq!(kept["sentHeaders"]["webhook-id"] == json!(message), is_kept, "{set}, {path}: {kept}");
            assert_eq!(kept["responseHeaders"].is_array(), is_kept && path == "shop", "{set}, {path}: {kept}");
        }
    }
}

async fn what_a_receiver_sends_back_of_a_token_is_not_kept(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let granted =
        json!({"access_token": "canary-token-of-ours", "token_type": "bearer", "expires_in": 3_600}).to_string();
    let grant = Answer::Full {
        status: 200,
        headers: vec![("content-type", "application/json".to_owned())],
        body: Bytes::from(granted),
    };
    world.receiver.script("/token", [grant], Answer::Status(500));
    let echo = format!("Bearer error=\"invalid_token\", token=\"{}\"", "canary-token-of-ours");
    let refuse = Answer::Full { status: 403, headers: vec![("www-authenticate", echo)], body: Bytes::new() };
    world.receiver.always("/hook", refuse);
    world.endpoint("/hook", json!({"retryPolicy": hasty(1)})).await;
    let oauth = json!({
        "grantType": "clientCredentials",
        "clientId": "us",
        "clientSecret": "canary-secret",
        "authMethod": "clientSecretBasic",
        "tokenUrl": world.receiver.url("/token"),
    });
    let (status, answer) = world.call(Method::PUT, "endpoint/hook/oauth", oauth).await;
    assert!(status < 300, "{answer}");
    let message = world.send("a.b").await;
    let (_, attempts) = world.end(&message, "hook").await;
    let kept = headers(&mut world, &message, &attempts[0]).await;
    assert_eq!(kept["sensitive"], json!(["authorization"]), "{kept}");
    assert!(kept["responseHeaders"].to_string().contains("invalid_token"), "{kept}");
    assert!(!kept.to_string().contains("canary"), "{kept}");

    // Without a token nobody was called.
    world.kill_and_start_again();
    let message = world.send("a.b").await;
    let (_, attempts) = world.end(&message, "hook").await;
    assert_eq!(headers(&mut world, &message, &attempts[0]).await["sentHeaders"], json!({}));
}

async fn what_a_redirect_left_behind_is_not_shown_as_sent(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let elsewhere = Receiver::start();
    elsewhere.always("/there", Answer::Status(500));
    let away = Answer::Full { status: 307, headers: vec![("location", elsewhere.url("/there"))], body: Bytes::new() };
    world.receiver.always("/shop", away);
    let rules =
        json!({"retryPolicy": {"followRedirects": 1, "maxAttempts": 1}, "headers": {"x-api-key": "of-the-owner"}});
    world.endpoint("/shop", rules).await;
    let message = world.send("a.b").await;
    let (_, attempts) = world.end(&message, "shop").await;
    let kept = headers(&mut world, &message, &attempts[0]).await;
    assert_eq!((&kept["sensitive"], &kept["sentHeaders"]["webhook-id"]), (&json!([]), &json!(message)), "{kept}");
    let seen = &elsewhere.arrivals_at("/there")[0].headers;
    for (name, value) in kept["sentHeaders"].as_object().expect("an object") {
        assert_eq!(seen[name.as_str()].to_str().expect("text"), value, "{name}");
    }
    assert!(kept["sentHeaders"].get("webhook-signature").is_none(), "{kept}");
}
