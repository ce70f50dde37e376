//! Every operation of the API, tried by one tenant on another's things. What is another's must answer like what does not
//! exist, to the byte, and stay as it is.
//!
//! The operations come from the API's own document, so that one that is added later is tried as well.

mod support;

use axum::body::Body;
use http::Request;
use postrider::tokens::Access;
use serde_json::{Value, json};
use support::{
    house::{House, Reply},
    operations::{Operation, filled_with},
    stores::{StoreKind, on_both_stores},
};

on_both_stores! {
    async
    what_is_anothers_looks_as_if_it_did_not_exist,
}

/// What the parameters of a path stand for, of one tenant.
struct Things {
    app: String,
    app_uid: &'static str,
    endpoint: String,
    endpoint_uid: &'static str,
    message: String,
    token: String,
}

impl Things {
    async fn make(house: &House, app_uid: &'static str, endpoint_uid: &'static str) -> Self {
        let id = |value: Value| value["id"].as_str().expect("an id").to_owned();
        let app = id(house.post("app", json!({"name": "Tenant", "uid": app_uid})).await.expect(201));
        let endpoint = json!({"url": "https://example.com/hook", "uid": endpoint_uid, "headers": {"x-mine": "yes"}});
        let endpoint = id(house.post(&format!("app/{app_uid}/endpoint"), endpoint).await.expect(201));
        let message = json!({"eventType": "a.b", "eventId": app_uid, "payload": {"whose": app_uid}});
        let message = id(house.post(&format!("app/{app_uid}/msg"), message).await.expect(202));
        let token = house.app_token(&app, &Access::full());
        Self { app, app_uid, endpoint, endpoint_uid, message, token }
    }

    /// Everything that can be seen of them.
    async fn seen(&self, house: &House) -> Vec<String> {
        let mut seen = Vec::new();
        for path in [
            "",
            "/endpoint",
            &format!("/endpoint/{}", self.endpoint),
            &format!("/endpoint/{}/secret", self.endpoint),
            &format!("/endpoint/{}/headers", self.endpoint),
            &format!("/endpoint/{}/health", self.endpoint),
            "/msg?with_content=true",
            &format!("/msg/{}", self.message),
            &format!("/msg/{}/endpoint", self.message),
            "/dead-letter",
        ] {
            seen.push(house.get(&format!("app/{}{path}", self.app)).await.text);
        }
        seen
    }
}

async fn what_is_anothers_looks_as_if_it_did_not_exist(store: StoreKind) {
    let house = House::start_on(store).await;
    let victim = Things::make(&house, "victim", "theirs").await;
    let stranger = Things::make(&house, "stranger", "ours").await;
    let gone = Things::make(&house, "gone", "went").await;
    house.call("DELETE", "app/gone", Value::Null).await.expect(204);

    let before = victim.seen(&house).await;
    let document = house.ask(Request::get("/openapi.json").body(Body::empty()).unwrap()).await.expect(200);
    let mut tried = 0;
    for operation in Operation::all(&document) {
        let Operation { method, path, name, body } = &operation;
        if !path.contains("{app_id}") {
            // What concerns all is not for the holder of one application's token, or tells nothing of another.
            let reply = ask(&house, &stranger.token, method, &filled(path, &stranger.app, &victim), body).await;
            assert!(
                !reply.text.contains(&victim.app) && !reply.text.contains(&victim.endpoint),
                "{name} tells of another: {}",
                reply.text
            );
            tried += 1;
            continue;
        }
        let unknown = ask(&house, &stranger.token, method, &filled(path, &gone.app, &gone), body).await;
        // 403 where only the holder of a token for everything may do it, to whatever.
        assert!(matches!(unknown.status.as_u16(), 403 | 404), "{name}: {} {}", unknown.status, unknown.text);
        for app in [&victim.app, victim.app_uid, gone.app_uid, "nowhere", "app_", &"app_x".repeat(50)] {
            let reply = ask(&house, &stranger.token, method, &filled(path, app, &victim), body).await;
            assert_eq!((reply.status, &reply.text), (unknown.status, &unknown.text), "{name} on {app}");
            tried += 1;
        }
        // Under one's own application another's things are not found either, whoever asks.
        if path.replace("{app_id}", "").contains('{') {
            for token in [&stranger.token, &house.token] {
                let unknown = ask(&house, token, method, &filled(path, &stranger.app, &gone), body).await;
                assert!(matches!(unknown.status.as_u16(), 403 | 404), "{name}: {} {}", unknown.status, unknown.text);
                // By their own names for it, too; but what is put under a name that is free there is made.
                let by_uid = Things { endpoint: victim.endpoint_uid.to_owned(), ..copy(&victim) };
                for things in [&victim, &by_uid].into_iter().take(if method == "PUT" { 1 } else { 2 }) {
                    let reply = ask(&house, token, method, &filled(path, &stranger.app, things), body).await;
                    assert_eq!((reply.status, &reply.text), (unknown.status, &unknown.text), "{name}, as a child");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 200, "{tried} tries");
    assert_eq!(victim.seen(&house).await, before, "something of it was changed");
    println!("{tried} tries on another's things");
}

fn copy(things: &Things) -> Things {
    Things {
        app: things.app.clone(),
        endpoint: things.endpoint.clone(),
        message: things.message.clone(),
        token: things.token.clone(),
        ..*things
    }
}

/// What it says if it is anything but a refusal of the body is compared, so the body must be one that is taken.
async fn ask(house: &House, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .body(Body::from(body));
    house.ask(request.unwrap()).await
}

fn filled(path: &str, app: &str, things: &Things) -> String {
    filled_with(
        path,
        &[
            ("{app_id}", app),
            ("{endpoint_id}", &things.endpoint),
            ("{msg_id}", &things.message),
            ("{attempt_id}", "atmpt_2cxKkTz5sBHmKnEBAOkyXpGtX6S"),
        ],
    )
}
