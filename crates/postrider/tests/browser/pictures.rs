//! The pictures of the guide: `scripts/pictures` makes them anew.

use crate::{answer, at, signed_in};
use serde_json::json;
use std::path::Path;

#[tokio::test]
#[ignore = "makes files: run by scripts/pictures"]
async fn pictures_of_the_guide() {
    let folder = std::env::var("PICTURES").expect("where to");
    let folder = Path::new(&folder);
    let mut world = crate::World::start().await;
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    let slowly = json!({"schedule": {"type": "fixed", "interval": "1s"}, "jitter": "none", "maxAttempts": 2});
    world.receiver.always("/orders", answer(200, ""));
    world.receiver.always("/mail", answer(503, "the mail server is being moved"));
    world.receiver.always("/crm", answer(400, "unknown field: total"));
    for (path, words) in [("/orders", "The shop"), ("/mail", "Mail to customers"), ("/crm", "Customer records")] {
        world.endpoint(path, json!({"description": words, "retryPolicy": slowly})).await;
    }
    let mut last = String::new();
    for number in 0..40 {
        let kinds = ["order.paid", "order.shipped", "customer.moved"];
        let body = json!({"payload": {"order": 1_000 + number, "total": "19.90", "currency": "EUR"}});
        last = world.send_with(kinds[number % kinds.len()], body).await;
    }
    assert_eq!(world.end(&last, "crm").await.0, "fail");
    let browser = signed_in(&world).await;
    let endpoint = world.get("endpoint/mail").await["id"].as_str().expect("an id").to_owned();
    browser.go(&at(&world, "/overview")).await;
    browser.sees_after_reloading("of attempts succeeded").await;
    // What was counted is written every ten seconds.
    crate::support::eventually("counts", async || {
        browser.client.refresh().await.expect("the page");
        (!browser.text().await.contains("Nothing was sent")).then_some(())
    })
    .await;
    for (name, path) in [
        ("overview", "/overview".to_owned()),
        ("application", format!("/apps/{app}")),
        ("messages", format!("/apps/{app}/messages")),
        ("message", format!("/apps/{app}/messages/{last}")),
        ("endpoint", format!("/apps/{app}/endpoints/{endpoint}")),
        ("dead-letters", format!("/apps/{app}/dead-letters")),
        ("schedule", "/schedule?edited=yes&preset=default".to_owned()),
    ] {
        browser.go(&at(&world, &path)).await;
        let picture = browser.client.screenshot().await.expect("a picture");
        std::fs::write(folder.join(format!("{name}.png")), picture).expect("written");
    }
    browser.close().await;
}
