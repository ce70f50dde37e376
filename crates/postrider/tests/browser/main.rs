//! The pages in a real browser: Chromium, through WebDriver.

mod attacks;
mod driver;
mod pictures;
mod reach;
#[path = "../support/mod.rs"]
mod support;

use driver::{Browser, told_by};
use serde_json::{Value, json};
use support::{
    receiver::Answer,
    world::{World, hasty},
};

fn answer(status: u16, body: &str) -> Answer {
    Answer::Full { status, headers: Vec::new(), body: body.to_owned().into() }
}

fn at(world: &World, path: &str) -> String {
    format!("{}{path}", world.server.url().trim_end_matches('/'))
}

async fn signed_in(world: &World) -> Browser {
    let browser = Browser::open().await;
    browser.go(&world.server.url()).await;
    browser.fill("input[name=token]", world.server.token()).await;
    browser.click("main button").await;
    browser.sees("Overview").await;
    browser
}

/// The one who runs it.
#[tokio::test]
async fn an_operator_sees_it_arrive_break_and_be_sent_again() {
    let mut world = World::start().await;
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    world.receiver.always("/shop", answer(200, ""));
    world.endpoint("/shop", json!({"retryPolicy": hasty(2)})).await;
    let browser = signed_in(&world).await;

    // It arrives before one's eyes.
    browser.press("Applications").await;
    browser.press("Acme").await;
    browser.click(&format!("a[href='/apps/{app}/live']")).await;
    browser.sees("Connected.").await;
    world.send("order.paid").await;
    browser.sees("order.paid").await;
    browser.press("Pause").await;
    world.send("order.refunded").await;
    browser.sees("Paused; 1 came meanwhile.").await;
    assert!(!browser.text().await.contains("order.refunded"));
    browser.press("Go on").await;
    browser.sees("order.refunded").await;

    // The receiver breaks; the breaker opens, and what was given up is seen with its reason.
    world.receiver.always("/shop", answer(503, "the shop is closed"));
    for _ in 0..10 {
        world.send("order.shipped").await;
    }
    world.health_that_is("shop", "tripped").await;
    let endpoint = world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    browser.go(&at(&world, &format!("/apps/{app}/endpoints/{endpoint}"))).await;
    browser.sees_after_reloading("tripped").await;
    browser.press("Overview").await;
    let open = "return [...document.querySelectorAll('.figures .bad')].some((it) => it.innerText.includes('breakers'))";
    support::eventually("the breaker on the overview", async || {
        browser.client.refresh().await.expect("the page");
        (told_by(&browser, open).await == true).then_some(())
    })
    .await;

    // It is mended, and sent again with one click.
    world.receiver.always("/shop", answer(200, ""));
    let (status, _) = world.post("endpoint/shop/health/reset", Value::Null).await;
    assert!(status < 300);
    world.endpoint("/mail", json!({"retryPolicy": hasty(2)})).await;
    world.receiver.always("/mail", answer(400, "no such box"));
    let letter = world.send("letter.sent").await;
    assert_eq!(world.end(&letter, "mail").await.0, "fail");
    world.receiver.always("/mail", answer(200, ""));
    browser.go(&at(&world, &format!("/apps/{app}/dead-letters"))).await;
    browser.sees("letter.sent").await;
    browser.press("letter.sent").await;
    browser.click("summary").await;
    browser.sees("no such box").await;
    browser.go(&at(&world, &format!("/apps/{app}/dead-letters?type=letter.sent"))).await;
    browser.press("Send again").await;
    browser.sees("on its way again").await;
    assert_eq!(world.end(&letter, "mail").await.0, "success");
    browser.sees_after_reloading("success").await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn a_schedule_is_drawn_while_it_is_edited_and_can_be_set() {
    let mut world = World::start().await;
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    world.endpoint("/shop", json!({"retryPolicy": {"holdFor": "2d"}})).await;
    let endpoint = world.get("endpoint/shop").await["id"].as_str().expect("an id").to_owned();
    let browser = signed_in(&world).await;
    browser.go(&at(&world, &format!("/apps/{app}/endpoints/{endpoint}/schedule"))).await;
    browser.find("#preview table").await;
    browser.fill("#attempts", "4").await;
    browser.sees("At most 4 attempts").await;
    browser.fill("#time", "1x").await;
    browser.find("#preview .fault").await;
    browser.fill("#time", "1h").await;
    browser.sees("At most 4 attempts within 1h").await;
    assert_eq!(told_by(&browser, "return document.querySelectorAll('#preview rect').length").await, 4);
    browser.press("Save for this endpoint").await;
    browser.sees("The endpoint was changed").await;
    let policy = world.get("endpoint/shop").await["retryPolicy"].clone();
    assert_eq!(policy, json!({"maxAttempts": 4, "giveUpAfter": "1h", "holdFor": "2d"}), "and nothing else is lost");
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn text_is_not_made_markup_by_any_script_and_the_server_is_told_who_tried() {
    let mut world = World::start().await;
    let browser = signed_in(&world).await;
    let violations = "postrider_page_violations_total";
    assert!(!world.client.metrics().await.contains(&format!("{violations} ")), "pages as they are break no rule");
    let script = "try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (error) { return error.name }";
    assert_eq!(told_by(&browser, script).await, "TypeError");
    // From our own server, and yet none that the page has named.
    let script = "const other = document.createElement('script'); try { other.src = '/docs.js'; } catch (error) { return error.name }";
    assert_eq!(told_by(&browser, script).await, "TypeError");
    support::eventually("the reports", async || {
        world.client.metrics().await.contains(&format!("{violations} 2")).then_some(())
    })
    .await;
    browser.close().await;
}

#[tokio::test]
async fn a_customer_stays_within_his_application() {
    let mut world = World::start().await;
    let other = world.client.create("/api/v1/app", &json!({"name": "Other", "uid": "other"})).await;
    let other = other["id"].as_str().expect("an id");
    world.receiver.always("/shop", answer(200, ""));
    world.endpoint("/shop", json!({})).await;
    world.send("order.paid").await;
    let path = "/api/v1/auth/app-portal-access/acme";
    let wanted = json!({"capabilities": ["ViewBase", "ViewEndpointSecret"]});
    let made = world.client.create(path, &wanted).await;
    let link = made["url"].as_str().expect("a link");
    let here = world.server.url();
    let (_, rest) = link.split_once("/portal").expect("it leads to the portal");
    let browser = Browser::open().await;
    browser.go(&format!("{}/portal{rest}", here.trim_end_matches('/'))).await;
    browser.sees("Acme").await;
    assert!(!told_by(&browser, "return location.href").await.as_str().expect("a place").contains("key="));
    for path in ["/overview", "/apps", "/audit", "/api-keys", &format!("/apps/{other}"), "/apps/other/messages"] {
        browser.go(&at(&world, path)).await;
        let text = browser.text().await;
        assert!(text.contains("You may not do that") || text.contains("There is no such thing"), "{path}: {text}");
        assert!(!text.contains("Other"), "{path}");
    }
    browser.go(&here).await;
    browser.press(&world.receiver.url("/shop")).await;
    browser.press("Signing secret").await;
    browser.sees("whsec_").await;
    browser.close().await;
}

/// Without typing a path or a command.
#[tokio::test]
async fn a_customer_makes_a_poller_and_copies_its_token() {
    let mut world = World::start().await;
    let made = world.client.create("/api/v1/auth/app-portal-access/acme", &json!({})).await;
    let browser = Browser::open().await;
    browser.go(&world.server.url()).await;
    browser.fill("input[name=token]", made["token"].as_str().expect("a token")).await;
    browser.click("main button").await;
    browser.click("a[href$='/pollers']").await;
    browser.sees("There are none yet").await;
    browser.press("Make a poller").await;
    browser.fill("#uid", "till").await;
    browser.fill("#types", "no.such.type").await;
    browser.press("Make it").await;
    browser.sees("There is no event type").await;
    browser.fill("#types", "").await;
    browser.press("Make it").await;
    browser.sees("The poller was made").await;
    browser.press("Show the token").await;
    browser.sees("Token of till").await;
    browser.press("Copy").await;
    browser.sees("Copied").await;
    let shown = told_by(&browser, "return document.getElementById('token').textContent").await;
    let told: Value = world.client.get("/api/v1/auth/app/acme/poller/till/token").await.expect("an answer");
    assert_eq!(shown, told["token"], "nothing around it that would be copied along");
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    browser.close().await;
}
