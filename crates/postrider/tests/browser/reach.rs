//! Pages for small screens and without a mouse; and choosing among dead letters.

use crate::{
    World, answer, at,
    driver::told_by,
    signed_in,
    support::{self, world::hasty},
};
use fantoccini::{Locator, key::Key};
use serde_json::json;

#[tokio::test]
async fn pages_fit_a_small_screen_and_are_reached_by_keyboard() {
    let mut world = World::start().await;
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    let path = "/a/rather/long/path/that/goes/on/and/on/and/does/not/want/to/end/before/the/screen/does";
    world.receiver.always(path, answer(400, "no"));
    world
        .client
        .create(
            "/api/v1/app/acme/endpoint",
            &json!({"url": world.receiver.url(path), "uid": "long", "retryPolicy": hasty(1)}),
        )
        .await;
    let message = world.send(&"a.long.event.type.that.has.no.place.to.break".repeat(3)).await;
    assert_eq!(world.end(&message, "long").await.0, "fail");
    let endpoint = world.get("endpoint/long").await["id"].as_str().expect("an id").to_owned();
    let poller = json!({"uid": "a-long-name-that-does-not-break".repeat(4), "description": "x".repeat(200)});
    let poller =
        world.client.create("/api/v1/app/acme/poller", &poller).await["id"].as_str().expect("an id").to_owned();
    let back = json!({"after": "2020-01-01T00:00:00Z"});
    world.post(&format!("poller/{poller}/consumer/{}/seek", "worker".repeat(20)), back).await;
    let source = json!({"name": "x".repeat(200), "uid": "long", "type": "github", "config": {"secret": "s"}});
    let source = world.client.create("/ingest/api/v1/source", &source).await;
    let source = format!("/sources/{}", source["id"].as_str().expect("an id"));
    let browser = signed_in(&world).await;
    browser.client.set_window_size(500, 900).await.expect("a small one");
    let own = ["", "/messages", "/dead-letters", "/new-endpoint", "/live", "/pollers", "/new-poller"]
        .map(|rest| format!("/apps/{app}{rest}"));
    let deeper = [
        format!("/apps/{app}/messages/{message}"),
        format!("/apps/{app}/endpoints/{endpoint}"),
        format!("/apps/{app}/endpoints/{endpoint}/edit"),
        format!("/apps/{app}/endpoints/{endpoint}/schedule"),
        format!("/apps/{app}/pollers/{poller}"),
        format!("/apps/{app}/pollers/{poller}/edit"),
    ];
    let of_all = [
        "/overview",
        "/apps",
        "/sources",
        "/sources/new?type=hmac",
        &source,
        "/event-types",
        "/tasks",
        "/alerts",
        "/nodes",
        "/settings",
        "/api-keys",
        "/audit",
    ];
    for page in own.iter().chain(&deeper).map(String::as_str).chain(of_all) {
        browser.go(&at(&world, page)).await;
        let over = told_by(&browser, "return document.documentElement.scrollWidth - innerWidth").await;
        assert!(over.as_i64().is_some_and(|over| over <= 0), "{page} is {over} too wide");
        browser.client.active_element().await.expect("the page").send_keys(&Key::Tab.to_string()).await.expect("a key");
        let focused = "const it = document.activeElement; return [it.className, getComputedStyle(it).outlineStyle]";
        let focused = told_by(&browser, focused).await;
        // Of a form the first field may have asked for it.
        assert_eq!(focused, json!(["skip", "solid"]), "{page}");
    }
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn ticked_dead_letters_are_sent_again() {
    let mut world = World::start().await;
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    world.receiver.always("/mail", answer(400, "no such box"));
    world.endpoint("/mail", json!({"retryPolicy": hasty(1)})).await;
    let mut letters = Vec::new();
    for _ in 0..3 {
        let letter = world.send("letter.sent").await;
        assert_eq!(world.end(&letter, "mail").await.0, "fail");
        letters.push(letter);
    }
    world.receiver.always("/mail", answer(200, ""));
    let browser = signed_in(&world).await;
    browser.go(&at(&world, &format!("/apps/{app}/dead-letters"))).await;
    browser.press("Select all on this page").await;
    let ticked = "return [...document.getElementsByName('letter')].filter((it) => it.checked).length";
    assert_eq!(told_by(&browser, ticked).await, 3);
    let first = browser.client.find(Locator::Css("input[name=letter]")).await.expect("a box");
    first.click().await.expect("unticked");
    browser.press("Send the selected again").await;
    browser.sees("2 of 2 put on their way again").await;
    // The newest is the first.
    assert_eq!(world.end(&letters[0], "mail").await.0, "success");
    assert_eq!(world.end(&letters[1], "mail").await.0, "success");
    assert_eq!(world.end(&letters[2], "mail").await.0, "fail");
    // What is followed is drawn anew until it has ended.
    browser.go(&at(&world, &format!("/apps/{app}/dead-letters"))).await;
    let stale = "const place = document.getElementById('tasks'); place.append('out of date'); \
                 place.setAttribute('data-refresh', ''); follow(place)";
    told_by(&browser, stale).await;
    support::eventually("the new state", async || (!browser.text().await.contains("out of date")).then_some(())).await;
    browser.go(&at(&world, &format!("/apps/{app}/messages"))).await;
    browser
        .client
        .find(Locator::Css("#status"))
        .await
        .expect("a choice")
        .select_by_value("2")
        .await
        .expect("one of it");
    browser.press("Search").await;
    browser.sees(&letters[2]).await;
    assert!(!browser.text().await.contains(&letters[0]));
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.close().await;
}
