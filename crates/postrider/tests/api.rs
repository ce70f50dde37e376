//! The API through its router, with the real store behind it and no network.

mod support;

use axum::body::Body;
use http::Request;
use postrider::http::guesses::Peer;
use postrider::tokens::{Access, Capability};
use serde_json::{Value, json};
use support::{
    house::House,
    stores::{StoreKind, on_both_stores},
};

on_both_stores! {
    async
    every_door_has_a_lock,
    a_slash_at_the_end_is_overlooked,
    a_body_must_be_small_plain_json,
    an_application_lives_its_life,
    a_list_is_walked_both_ways,
    the_same_post_is_carried_out_once,
    a_repetition_is_told_what_the_first_was_even_where_names_are_unique,
    what_is_no_id_is_not_found,
    an_endpoint_lives_its_life,
    headers_are_set_and_credentials_not_shown,
    a_secret_is_rotated_and_told,
    an_event_type_lives_its_life,
    hidden_event_types_are_passed_over_in_lists,
    recover_stats_and_examples_answer,
    a_portal_link_opens_one_application,
    others_look_as_if_they_did_not_exist,
    a_limited_token_does_what_it_was_made_for,
    the_official_client_understands_us,
}

async fn house_with_endpoint(store: StoreKind) -> (House, String, String) {
    let house = House::start_on(store).await;
    let app = house.post("app", json!({"name": "Acme", "uid": "acme"})).await.expect(201);
    let endpoint =
        house.post("app/acme/endpoint", json!({"url": "https://example.com/hook", "uid": "hook"})).await.expect(201);
    let id = |value: &Value| value["id"].as_str().expect("an id").to_owned();
    (house, id(&app), id(&endpoint))
}

/// Every operation of the document, with the path filled in.
fn operations(document: &Value, app: &str) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let mut filled = path.replace("{app_id}", app);
            while let (Some(from), Some(to)) = (filled.find('{'), filled.find('}')) {
                filled.replace_range(from..=to, "something");
            }
            all.push((method.to_uppercase(), filled, operation["operationId"].as_str().unwrap_or_default().to_owned()));
        }
    }
    all
}

async fn every_door_has_a_lock(store: StoreKind) {
    let (house, app, _) = house_with_endpoint(store).await;
    let document = house.ask(Request::get("/openapi.json").body(Body::empty()).unwrap()).await.expect(200);
    let operations = operations(&document, &app);
    assert!(operations.len() >= 40, "{} operations", operations.len());
    let wrong = house.token.clone() + "x";
    for (method, path, name) in operations {
        for header in [None, Some("Bearer "), Some("Bearer x.y.z"), Some("Basic abc"), Some(wrong.as_str())] {
            let mut request = Request::builder().method(method.as_str()).uri(&path);
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let reply = house.ask(request.body(Body::empty()).unwrap()).await;
            if name.starts_with("v1.health") {
                assert_eq!(reply.status, 204, "{method} {path}");
            } else if matches!(&*name, "v1.ingest.receive" | "v1.ingest.answer") {
                // The token is in the path, and this one is none.
                assert_eq!(reply.status, 404, "{method} {path}");
                assert_eq!(reply.text, r#"{"code":"not_found","detail":"Entity not found"}"#);
            } else if name == "v1.endpoint.public-keys" {
                assert_eq!(reply.status, 200, "{method} {path}");
                assert_eq!(reply.text, r#"{"keys":[]}"#, "{method} {path}");
            } else {
                assert_eq!(reply.status, 401, "{method} {path} with {header:?}");
                assert_eq!(reply.text, r#"{"code":"authentication_failed","detail":"Invalid token"}"#);
            }
        }
    }
}

#[tokio::test]
async fn who_is_wrong_too_often_waits_and_others_at_his_address_do_not() {
    let house = House::new();
    let app = house.post("app", json!({"name": "Acme"})).await.expect(201);
    let ask = async |token: &str| {
        let peer = Peer("203.0.113.7".parse().unwrap());
        let request = Request::get("/api/v1/app").header("authorization", format!("Bearer {token}")).extension(peer);
        house.ask(request.body(Body::empty()).unwrap()).await
    };
    assert_eq!(ask(&house.token).await.status, 200);
    let mut refused = 0;
    while ask(&format!("{}{refused}", house.token)).await.status == 401 {
        refused += 1;
        assert!(refused < 1_000, "nobody is stopped");
    }
    let stopped = ask("another.wrong.one").await;
    assert_eq!((stopped.status.as_u16(), stopped.json()["code"].as_str()), (429, Some("rate_limit")));
    assert!(stopped.headers.contains_key("retry-after"));
    assert_eq!(ask(&house.token).await.status, 200, "a token that is known to be good");
    let fresh = house.app_token(app["id"].as_str().unwrap(), &Access::full());
    assert_eq!(ask(&fresh).await.status, 429, "it cannot be told from a guess without looking");
}

#[tokio::test]
async fn every_operation_of_the_contracts_first_tier_is_there() {
    let house = House::new();
    let document = house.ask(Request::get("/openapi.json").body(Body::empty()).unwrap()).await.expect(200);
    let here: Vec<String> = operations(&document, "x").into_iter().map(|(_, _, name)| name).collect();
    for name in [
        "v1.application.list",
        "v1.application.create",
        "v1.application.get",
        "v1.application.upsert",
        "v1.application.patch",
        "v1.application.delete",
        "v1.endpoint.list",
        "v1.endpoint.create",
        "v1.endpoint.get",
        "v1.endpoint.upsert",
        "v1.endpoint.patch",
        "v1.endpoint.delete",
        "v1.endpoint.get-headers",
        "v1.endpoint.set-headers",
        "v1.endpoint.patch-headers",
        "v1.endpoint.get-secret",
        "v1.endpoint.rotate-secret",
        "v1.endpoint.recover",
        "v1.endpoint.send-example",
        "v1.endpoint.get-stats",
        "v1.event-type.list",
        "v1.event-type.create",
        "v1.event-type.get",
        "v1.event-type.upsert",
        "v1.event-type.patch",
        "v1.event-type.delete",
        "v1.message.list",
        "v1.message.create",
        "v1.message.get",
        "v1.message.expunge-content",
        "v1.message-attempt.list-by-endpoint",
        "v1.message-attempt.list-by-msg",
        "v1.message-attempt.get",
        "v1.message-attempt.get-headers",
        "v1.message-attempt.list-attempted-messages",
        "v1.message-attempt.list-attempted-destinations",
        "v1.message-attempt.expunge-content",
        "v1.message-attempt.resend",
        "v1.authentication.app-portal-access",
        "v1.authentication.logout",
        "v1.health.get",
    ] {
        assert!(here.iter().any(|there| there == name), "{name} is missing");
    }
}

#[tokio::test]
async fn what_no_route_takes_is_told_in_json() {
    let house = House::new();
    for (method, path, status, code) in [
        ("GET", "/", 404, "not_found"),
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("GET", "/api/v1/nothing/", 404, "not_found"),
        ("DELETE", "/api/v1/app", 405, "method_not_allowed"),
        ("DELETE", "/api/v1/app/", 405, "method_not_allowed"),
        ("TRACE", "/api/v1/app", 405, "method_not_allowed"),
        ("POST", "/api/v1/health", 405, "method_not_allowed"),
    ] {
        let reply = house.ask(Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["code"]), (status, &json!(code)), "{method} {path}");
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(reply.headers.contains_key("allow"), status == 405, "{method} {path}");
    }
}

async fn a_slash_at_the_end_is_overlooked(store: StoreKind) {
    let (house, ..) = house_with_endpoint(store).await;
    assert_eq!(house.get("app/acme/").await.expect(200), house.get("app/acme").await.expect(200));
    assert_eq!(house.get("app/?limit=1").await.expect(200)["data"].as_array().unwrap().len(), 1);
    house.get("health/").await.expect(204);
}

#[tokio::test]
async fn any_page_may_call_us() {
    let house = House::new();
    let preflight = Request::options("/api/v1/app")
        .header("origin", "https://portal.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    let reply = house.ask(preflight.body(Body::empty()).unwrap()).await;
    assert!(reply.status.is_success());
    assert_eq!(reply.headers["access-control-allow-origin"], "*");
    assert_eq!(reply.headers["access-control-allow-headers"], "authorization,content-type");
}

async fn a_body_must_be_small_plain_json(store: StoreKind) {
    let house = House::start_on(store).await;
    let post = |name: &str, value: &str, body: Vec<u8>| {
        Request::post("/api/v1/app")
            .header("authorization", format!("Bearer {}", house.token))
            .header(name, value)
            .body(Body::from(body))
            .unwrap()
    };
    let valid = br#"{"name":"a"}"#.to_vec();
    assert_eq!(house.ask(post("content-type", "text/plain", valid.clone())).await.status, 415);
    assert_eq!(house.ask(post("content-encoding", "gzip", valid.clone())).await.status, 415);
    assert_eq!(house.ask(post("content-type", "application/json", vec![b' '; 1024 * 1024 + 1])).await.status, 413);
    assert_eq!(house.ask(post("content-type", "application/json", b"{\"name\":\"\xff\"}".to_vec())).await.status, 422);
    assert_eq!(house.ask(post("idempotency-key", &"k".repeat(257), valid.clone())).await.status, 422);
    assert_eq!(house.ask(post("content-type", "application/json", valid)).await.status, 201);
}

async fn an_application_lives_its_life(store: StoreKind) {
    let house = House::start_on(store).await;
    let created = house.post("app", json!({"name": "Acme", "uid": "acme", "throttleRate": 5})).await.expect(201);
    let id = created["id"].as_str().unwrap();
    assert_eq!((&created["uid"], &created["rateLimit"]), (&json!("acme"), &json!(5)));
    assert_eq!(house.get(&format!("app/{id}")).await.expect(200), created);
    assert_eq!(house.get("app/acme").await.expect(200), created);

    house.post("app", json!({"name": "Other", "uid": "acme"})).await.expect(409);
    let existing = house.post("app?get_if_exists=true", json!({"name": "Other", "uid": "acme"})).await.expect(200);
    assert_eq!(existing, created);

    let patched = house.call("PATCH", "app/acme", json!({"name": "New", "throttleRate": null})).await.expect(200);
    assert_eq!((&patched["name"], &patched["throttleRate"]), (&json!("New"), &Value::Null));
    assert_eq!(house.get("app/acme").await.expect(200)["name"], "New");
    house.call("PATCH", "app/acme", json!({"colour": "red"})).await.expect(422);

    house.call("PUT", "app/acme", json!({"name": "Put"})).await.expect(200);
    let made = house.call("PUT", "app/second", json!({"name": "Second"})).await.expect(201);
    assert_eq!(made["uid"], "second");
    house.call("PUT", "app/third", json!({"name": "Third", "uid": "fourth"})).await.expect(422);
    house.call("PATCH", "app/second", json!({"uid": "acme"})).await.expect(409);

    house.call("DELETE", "app/acme", Value::Null).await.expect(204);
    house.get("app/acme").await.expect(404);
    house.get(&format!("app/{id}")).await.expect(404);
    house.call("DELETE", "app/acme", Value::Null).await.expect(404);
    house.post("app", json!({"name": "Again", "uid": "acme"})).await.expect(201);
}

async fn a_list_is_walked_both_ways(store: StoreKind) {
    let house = House::start_on(store).await;
    for i in 0..5 {
        house.post("app", json!({"name": format!("{i}")})).await.expect(201);
    }
    let names = |page: &Value| -> Vec<String> {
        page["data"].as_array().unwrap().iter().map(|app| app["name"].as_str().unwrap().to_owned()).collect()
    };
    let first = house.get("app?limit=2").await.expect(200);
    assert_eq!((names(&first), &first["done"]), (vec!["0".into(), "1".into()], &json!(false)));
    let second = house.get(&format!("app?limit=2&iterator={}", first["iterator"].as_str().unwrap())).await.expect(200);
    assert_eq!(names(&second), ["2", "3"]);
    let third = house.get(&format!("app?limit=2&iterator={}", second["iterator"].as_str().unwrap())).await.expect(200);
    assert_eq!((names(&third), &third["done"]), (vec!["4".into()], &json!(true)));
    let back =
        house.get(&format!("app?limit=2&iterator={}", third["prevIterator"].as_str().unwrap())).await.expect(200);
    assert_eq!(names(&back), ["2", "3"]);
    assert_eq!(names(&house.get("app?order=descending&limit=2").await.expect(200)), ["4", "3"]);
    house.get("app?limit=251").await.expect(422);
    house.get("app?limit=ten").await.expect(400);
    house.get("app?iterator=ep_000000000000000000000000000").await.expect(422);
    house.get("app?colour=red").await.expect(400);
}

async fn the_same_post_is_carried_out_once(store: StoreKind) {
    let house = House::start_on(store).await;
    for key in ["auto_1", "chosen"] {
        let first = house.post_with_key("app", key, json!({"name": "a"})).await.expect(201);
        let second = house.post_with_key("app", key, json!({"name": "a"})).await.expect(201);
        assert_eq!(first, second);
    }
    assert_eq!(house.get("app").await.expect(200)["data"].as_array().unwrap().len(), 2);
    house.post_with_key("app", "chosen", json!({"name": "b"})).await.expect(409);
    assert_eq!(house.post_with_key("app", "auto_1", json!({"name": "b"})).await.expect(201)["name"], "a");
}

async fn a_repetition_is_told_what_the_first_was_even_where_names_are_unique(store: StoreKind) {
    let (house, ..) = house_with_endpoint(store).await;
    for (path, body) in [
        ("app", json!({"name": "a", "uid": "once"})),
        ("event-type", json!({"name": "once", "description": ""})),
        ("app/acme/endpoint", json!({"url": "https://example.com", "uid": "once"})),
        ("app/acme/endpoint/hook/recover", json!({"since": "2026-01-01T00:00:00Z"})),
        ("app/acme/endpoint/hook/send-example", json!({"eventType": "svix.ping"})),
    ] {
        let first = house.post_with_key(path, "auto_k", body.clone()).await;
        let second = house.post_with_key(path, "auto_k", body).await;
        assert!(first.status.is_success(), "{path}: {}", first.text);
        assert_eq!((first.status, first.text), (second.status, second.text), "{path}");
    }
}

async fn what_is_no_id_is_not_found(store: StoreKind) {
    let (house, app, _) = house_with_endpoint(store).await;
    let long = "x".repeat(10_000);
    let forged = format!("{}{}", &app[..30], if app.ends_with('0') { '1' } else { '0' });
    for id in ["..", "..%2f..", "%2e%2e%2f", "%00", "%ff", "app_", "ep_x", "a%20b", "%F0%9F%92%A9", &long, &forged] {
        for path in [
            format!("app/{id}"),
            format!("app/{id}/endpoint"),
            format!("app/acme/endpoint/{id}"),
            format!("event-type/{id}"),
        ] {
            let reply = house.get(&path).await;
            assert_eq!((reply.status.as_u16(), &reply.json()["code"]), (404, &json!("not_found")), "{path:.60}");
        }
    }
}

#[tokio::test]
async fn the_document_refers_to_nothing_that_it_lacks() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let house = House::new();
    let document = house.ask(Request::get("/openapi.json").body(Body::empty()).unwrap()).await.expect(200);
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("a reference within the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

async fn an_endpoint_lives_its_life(store: StoreKind) {
    let (house, _, id) = house_with_endpoint(store).await;
    let path = "app/acme/endpoint";
    let endpoint = house.get(&format!("{path}/{id}")).await.expect(200);
    assert_eq!((&endpoint["version"], &endpoint["eventTypes"]), (&json!(1), &Value::Null));
    house.post(path, json!({"url": "https://example.com", "uid": "hook"})).await.expect(409);
    house.post(path, json!({"url": "https://example.com", "eventTypes": ["unknown"]})).await.expect(422);
    house.post(path, json!({"url": "http://localhost/"})).await.expect(422);

    house.post("event-type", json!({"name": "paid", "description": ""})).await.expect(201);
    let body = json!({"url": "https://example.org", "filterTypes": ["paid"], "rateLimit": 3, "version": 1});
    let put = house.call("PUT", &format!("{path}/hook"), body.clone()).await.expect(200);
    assert_eq!((&put["eventTypes"], &put["throttleRate"], &put["uid"]), (&json!(["paid"]), &json!(3), &json!("hook")));
    house.call("PUT", &format!("{path}/new"), body).await.expect(201);
    let patched = house.call("PATCH", &format!("{path}/hook"), json!({"eventTypes": [], "disabled": true})).await;
    let patched = patched.expect(200);
    assert_eq!((&patched["filterTypes"], &patched["disabled"]), (&Value::Null, &json!(true)));
    assert_eq!(house.get(path).await.expect(200)["data"].as_array().unwrap().len(), 2);

    house.call("DELETE", &format!("{path}/hook"), Value::Null).await.expect(204);
    house.get(&format!("{path}/{id}")).await.expect(404);
}

async fn headers_are_set_and_credentials_not_shown(store: StoreKind) {
    let (house, ..) = house_with_endpoint(store).await;
    let path = "app/acme/endpoint/hook/headers";
    assert_eq!(house.get(path).await.expect(200), json!({"headers": {}, "sensitive": []}));
    house.call("PUT", path, json!({"headers": {"X-A": "1", "Authorization": "canary"}})).await.expect(204);
    assert_eq!(house.get(path).await.expect(200), json!({"headers": {"X-A": "1"}, "sensitive": ["Authorization"]}));
    let patch = json!({"headers": {"x-b": "2", "x-a": null}, "deleteHeaders": ["authorization"]});
    house.call("PATCH", path, patch).await.expect(204);
    assert_eq!(house.get(path).await.expect(200), json!({"headers": {"x-b": "2"}, "sensitive": []}));
    house.call("PUT", path, json!({"headers": {"host": "evil"}})).await.expect(422);
}

async fn a_secret_is_rotated_and_told(store: StoreKind) {
    let (house, ..) = house_with_endpoint(store).await;
    let path = "app/acme/endpoint/hook/secret";
    let first = house.get(path).await.expect(200);
    assert!(first["key"].as_str().unwrap().starts_with("whsec_"));
    let rotated = house.post_with_key(&format!("{path}/rotate"), "auto_r", json!({})).await.expect(200);
    assert_ne!(rotated, first);
    assert_eq!(house.get(path).await.expect(200), rotated);
    assert_eq!(house.post_with_key(&format!("{path}/rotate"), "auto_r", json!({})).await.expect(200), rotated);
    let own = json!({"key": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "gracePeriodSeconds": 0});
    assert_eq!(house.post(&format!("{path}/rotate"), own.clone()).await.expect(200)["key"], own["key"]);
    for _ in 0..9 {
        house.post(&format!("{path}/rotate"), json!({})).await.expect(200);
    }
    assert_eq!(house.post(&format!("{path}/rotate"), json!({})).await.expect(400)["code"], "limit_reached");
}

#[tokio::test]
async fn secrets_and_headers_do_not_lie_open_on_the_disk() {
    let (house, ..) = house_with_endpoint(StoreKind::Sqlite).await;
    let secret = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5";
    let body = json!({"url": "https://example.com", "secret": secret, "headers": {"authorization": "headercanary"}});
    house.post_with_key("app/acme/endpoint", "auto_s", body).await.expect(201);
    house.post_with_key("app/acme/endpoint/hook/secret/rotate", "auto_t", json!({"key": secret})).await.expect(200);
    house.store.close().await;
    for file in std::fs::read_dir(house.folder.path()).unwrap() {
        let path = file.unwrap().path();
        let Ok(bytes) = std::fs::read(&path) else { continue };
        for canary in [&b"Y2FuYXJ5"[..], b"canarycanary", b"headercanary"] {
            assert!(!bytes.windows(canary.len()).any(|window| window == canary), "{}", path.display());
        }
    }
}

async fn an_event_type_lives_its_life(store: StoreKind) {
    let house = House::start_on(store).await;
    let body = json!({"name": "user.signup", "description": "d", "schemas": {"1": {"example": {"a": 1}}}});
    let created = house.post("event-type", body.clone()).await.expect(201);
    assert_eq!((&created["archived"], &created["schemas"]), (&json!(false), &body["schemas"]));
    assert_eq!(house.post("event-type", body.clone()).await.expect(409)["code"], "event_type_exists");
    let listed = house.get("event-type").await.expect(200);
    assert_eq!((&listed["data"][0]["name"], &listed["data"][0]["schemas"]), (&json!("user.signup"), &Value::Null));
    let listed = house.get("event-type?with_content=true").await.expect(200);
    assert_eq!(listed["data"][0]["schemas"], body["schemas"]);

    house.call("DELETE", "event-type/user.signup", Value::Null).await.expect(204);
    assert_eq!(house.get("event-type/user.signup").await.expect(200)["archived"], true);
    assert_eq!(house.get("event-type").await.expect(200)["data"], json!([]));
    assert_eq!(house.get("event-type?include_archived=true").await.expect(200)["data"][0]["archived"], true);
    assert_eq!(house.post("event-type", body).await.expect(201)["archived"], false);

    house.call("PUT", "event-type/user.signup", json!({"description": "x"})).await.expect(200);
    house.call("PUT", "event-type/new", json!({"description": "x"})).await.expect(201);
    let patched = house.call("PATCH", "event-type/new", json!({"groupName": "g"})).await.expect(200);
    assert_eq!((&patched["groupName"], &patched["description"]), (&json!("g"), &json!("x")));
    house.call("DELETE", "event-type/new?expunge=true", Value::Null).await.expect(204);
    house.get("event-type/new").await.expect(404);
}

async fn hidden_event_types_are_passed_over_in_lists(store: StoreKind) {
    let (house, app, _) = house_with_endpoint(store).await;
    for i in 0..12 {
        let flags = if i % 3 == 0 { Value::Null } else { json!(["beta"]) };
        let body = json!({"name": format!("t{i:02}"), "description": "", "featureFlags": flags});
        house.post("event-type", body).await.expect(201);
    }
    let token = house.app_token(&app, &Access { feature_flags: Some(Vec::new()), ..Access::full() });
    let list = async |query: &str| {
        let page = house.call_as(&token, "GET", &format!("event-type?{query}"), Value::Null).await.expect(200);
        let names: Vec<_> =
            page["data"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap().to_owned()).collect();
        (names.join(" "), page)
    };
    let (names, first) = list("limit=2").await;
    assert_eq!((names.as_str(), &first["done"]), ("t00 t03", &json!(false)));
    let (names, second) = list(&format!("limit=2&iterator={}", first["iterator"].as_str().unwrap())).await;
    assert_eq!((names.as_str(), &second["done"]), ("t06 t09", &json!(true)));
    let (names, back) = list(&format!("limit=2&iterator={}", second["prevIterator"].as_str().unwrap())).await;
    assert_eq!((names.as_str(), &back["done"]), ("t00 t03", &json!(true)));
    house.call_as(&token, "GET", "event-type/t01", Value::Null).await.expect(404);
    let body = json!({"url": "https://example.com", "eventTypes": ["t01"]});
    house.call_as(&token, "POST", &format!("app/{app}/endpoint"), body).await.expect(422);
}

async fn recover_stats_and_examples_answer(store: StoreKind) {
    let (house, ..) = house_with_endpoint(store).await;
    let path = "app/acme/endpoint/hook";
    let task = house
        .post_with_key(&format!("{path}/recover"), "auto_1", json!({"since": "2026-01-01T00:00:00Z"}))
        .await
        .expect(202);
    assert!(task["id"].as_str().unwrap().starts_with("qtask_"));
    assert_eq!((&task["status"], &task["task"]), (&json!("running"), &json!("endpoint.recover")));
    house.post(&format!("{path}/recover"), json!({"since": "2999-01-01T00:00:00Z"})).await.expect(422);

    let ping = house.post(&format!("{path}/send-example"), json!({"eventType": "svix.ping"})).await.expect(202);
    assert_eq!((&ping["eventType"], &ping["payload"]), (&json!("svix.ping"), &json!({"success": true})));
    house.post(&format!("{path}/send-example"), json!({"eventType": "unknown"})).await.expect(422);
    let body = json!({"name": "t", "description": "", "schemas": {"1": {"examples": [{"n": 1}, {"n": 2}]}}});
    house.post("event-type", body).await.expect(201);
    let sent =
        house.post(&format!("{path}/send-example"), json!({"eventType": "t", "exampleIndex": 1})).await.expect(202);
    assert_eq!(sent["payload"], json!({"n": 2}));

    let stats = house.get(&format!("{path}/stats")).await.expect(200);
    for name in ["success", "pending", "sending", "fail", "canceled"] {
        assert!(stats[name].is_u64(), "{stats}");
    }
    for span in [
        "until=9999-12-30T00:00:00Z",
        "until=0001-01-31T00:00:00Z",
        "since=0001-01-01T00:00:00Z&until=0001-01-02T00:00:00Z",
    ] {
        house.get(&format!("{path}/stats?{span}")).await.expect(200);
    }
    house
        .post(&format!("{path}/recover"), json!({"since": "0001-01-01T00:00:00Z", "until": "9999-12-30T00:00:00Z"}))
        .await
        .expect(202);
    assert_eq!(
        house.get(&format!("{path}/stats?since=2020-01-01T00:00:00Z")).await.expect(400)["code"],
        "invalid_range"
    );
}

async fn a_portal_link_opens_one_application(store: StoreKind) {
    let (house, app, _) = house_with_endpoint(store).await;
    house.post("app", json!({"name": "Other", "uid": "other"})).await.expect(201);
    let link = house.post("auth/app-portal-access/acme", json!({})).await.expect(200);
    let token = link["token"].as_str().unwrap().to_owned();
    assert_eq!(link["url"], format!("https://hooks.example/portal#key={token}"));
    let as_owner = async |method: &str, path: &str, body: Value| house.call_as(&token, method, path, body).await;

    assert_eq!(as_owner("GET", "app/acme", Value::Null).await.expect(200)["id"], app.as_str());
    as_owner("GET", "app/acme/endpoint/hook/secret", Value::Null).await.expect(200);
    as_owner("GET", "event-type", Value::Null).await.expect(200);
    for (method, path) in [
        ("GET", "app"),
        ("POST", "app"),
        ("POST", "event-type"),
        ("PUT", "app/acme"),
        ("DELETE", "app/acme"),
        ("PATCH", "app/acme"),
        ("POST", "auth/app-portal-access/acme"),
    ] {
        assert_eq!(
            as_owner(method, path, json!({"name": "x", "description": ""})).await.expect(403)["code"],
            "insufficient access",
            "{method} {path}"
        );
    }
    let who = as_owner("GET", "auth/whoami", Value::Null).await.expect(200);
    assert_eq!((&who["permissionSource"], &who["appId"]), (&json!("SvixJwt"), &json!(app)));
    let who = house.get("auth/whoami").await.expect(200);
    assert!(who["envId"].as_str().unwrap().starts_with("org_") && who["appId"].is_null(), "{who}");

    house.post("auth/app-portal-access/unknown", json!({})).await.expect(404);
    house.post("auth/app-portal-access/brought", json!({"application": {"name": "Brought"}})).await.expect(200);
    assert_eq!(house.get("app/brought").await.expect(200)["name"], "Brought");
    house.post("auth/app-portal-access/x", json!({"application": {"name": "X", "uid": "y"}})).await.expect(422);
}

async fn others_look_as_if_they_did_not_exist(store: StoreKind) {
    let (house, app, endpoint) = house_with_endpoint(store).await;
    let other = house.post("app", json!({"name": "Other", "uid": "other"})).await.expect(201);
    let token = house.app_token(other["id"].as_str().unwrap(), &Access::full());
    for suffix in [
        "",
        "/endpoint",
        "/endpoint/hook",
        "/endpoint/hook/secret",
        "/endpoint/hook/headers",
        "/endpoint/hook/stats",
        "/msg",
    ] {
        let foreign = house.call_as(&token, "GET", &format!("app/acme{suffix}"), Value::Null).await;
        let by_id = house.call_as(&token, "GET", &format!("app/{app}{suffix}"), Value::Null).await;
        let unknown = house.call_as(&token, "GET", &format!("app/nowhere{suffix}"), Value::Null).await;
        assert_eq!((foreign.status, &foreign.text), (unknown.status, &unknown.text), "{suffix}");
        assert_eq!((by_id.status, &by_id.text), (unknown.status, &unknown.text), "{suffix}");
        assert_eq!(foreign.status, 404);
    }
    // An endpoint of one application is not found under another, whoever asks.
    house.get(&format!("app/other/endpoint/{endpoint}")).await.expect(404);
    house.call("DELETE", &format!("app/other/endpoint/{endpoint}"), Value::Null).await.expect(404);
    house.get(&format!("app/acme/endpoint/{endpoint}")).await.expect(200);
}

async fn a_limited_token_does_what_it_was_made_for(store: StoreKind) {
    let (house, app, _) = house_with_endpoint(store).await;
    let only = |capability| {
        house.app_token(
            &app,
            &Access { capabilities: vec![Capability::ViewBase, capability], feature_flags: None, poller: None },
        )
    };
    let (view, secret) = (only(Capability::ViewBase), only(Capability::ViewEndpointSecret));
    let (manage, attempt) = (only(Capability::ManageEndpoint), only(Capability::CreateAttempts));
    let ping = json!({"eventType": "svix.ping"});
    for (token, method, path, body, status) in [
        (&view, "GET", "", Value::Null, 200),
        (&view, "GET", "/secret", Value::Null, 403),
        (&view, "PATCH", "", json!({}), 403),
        (&view, "POST", "/send-example", ping.clone(), 403),
        (&view, "POST", "/secret/rotate", json!({}), 403),
        (&secret, "GET", "/secret", Value::Null, 200),
        (&secret, "POST", "/secret/rotate", json!({}), 403),
        (&manage, "PATCH", "", json!({}), 200),
        (&manage, "POST", "/secret/rotate", json!({}), 200),
        (&manage, "POST", "/send-example", ping.clone(), 403),
        (&attempt, "POST", "/send-example", ping, 202),
    ] {
        house.call_as(token, method, &format!("app/acme/endpoint/hook{path}"), body).await.expect(status);
    }
}

#[tokio::test]
async fn pages_are_ours_alone() {
    let house = House::new();
    let reply = house.ask(Request::get("/docs").body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status, 200);
    let policy = reply.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(!reply.text.contains("://"), "it loads something from elsewhere");
    for path in ["/docs.js", "/page.css"] {
        let reply = house.ask(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, 200);
        assert!(!reply.text.contains("://") && !reply.text.contains("innerHTML"), "{path}");
    }
}

/// The official client, over a real connection: what it sends is accepted, and it can read what we answer.
async fn the_official_client_understands_us(store: StoreKind) {
    use svix::{api::*, models::*};

    let house = House::start_on(store).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let limits = postrider::http::server::Limits::default();
    tokio::spawn(postrider::http::server::serve(listener, None, house.router.clone(), limits, std::future::pending()));
    let options = SvixOptions { server_url: Some(url), num_retries: Some(0), ..SvixOptions::default() };
    let svix = Svix::new(house.token.clone(), Some(options));

    svix.health().get().await.unwrap();
    let apps = svix.application();
    let app_in =
        ApplicationIn { uid: Some("acme".into()), throttle_rate: Some(9), ..ApplicationIn::new("Acme".into()) };
    let app = apps.create(app_in.clone(), None).await.unwrap();
    assert_eq!(apps.get_or_create(app_in.clone(), None).await.unwrap().id, app.id);
    assert_eq!(apps.get("acme".into()).await.unwrap(), app);
    assert_eq!(apps.upsert("acme".into(), app_in).await.unwrap().throttle_rate, Some(9));
    let patched = apps.patch(app.id.clone(), ApplicationPatch { name: Some("New".into()), ..Default::default() }).await;
    assert_eq!(patched.unwrap().name, "New");
    assert_eq!(apps.list(None).await.unwrap().data.len(), 1);
    let id = || app.id.clone();

    let types = svix.event_type();
    types.create(EventTypeIn::new("paid".into(), "A payment".into()), None).await.unwrap();
    types.upsert("paid".into(), EventTypeUpsertIn::new("A payment".into())).await.unwrap();
    types.patch("paid".into(), EventTypePatch { deprecated: Some(true), ..Default::default() }).await.unwrap();
    assert!(types.get("paid".into()).await.unwrap().deprecated);
    assert_eq!(types.list(None).await.unwrap().data.len(), 1);

    let endpoints = svix.endpoint();
    let endpoint_in = EndpointIn {
        event_types: Some(["paid".to_owned()].into()),
        headers: Some([("x-a".to_owned(), "1".to_owned())].into()),
        uid: Some("hook".into()),
        ..EndpointIn::new("https://example.com/hook".into())
    };
    let endpoint = endpoints.create(id(), endpoint_in, None).await.unwrap();
    let hook = || endpoint.id.clone();
    let upsert = EndpointUpsertIn::new("https://example.com/other".into());
    assert_eq!(endpoints.upsert(id(), "hook".into(), upsert).await.unwrap().url, "https://example.com/other");
    let patch = EndpointPatch { disabled: Some(true), ..Default::default() };
    assert_eq!(endpoints.patch(id(), hook(), patch).await.unwrap().disabled, Some(true));
    assert_eq!(endpoints.get(id(), hook()).await.unwrap().uid.as_deref(), Some("hook"));
    assert_eq!(endpoints.list(id(), None).await.unwrap().data.len(), 1);
    assert_eq!(endpoints.get_headers(id(), hook()).await.unwrap().headers["x-a"], "1");
    let headers = [("authorization".to_owned(), "x".to_owned())].into();
    endpoints.set_headers(id(), hook(), EndpointHeadersIn { headers }).await.unwrap();
    let headers = EndpointHeadersPatchIn::new([("x-b".to_owned(), "2".to_owned())].into());
    endpoints.patch_headers(id(), hook(), headers).await.unwrap();
    let headers = endpoints.get_headers(id(), hook()).await.unwrap();
    assert_eq!((headers.headers.len(), headers.sensitive.len()), (1, 1));
    let old = endpoints.get_secret(id(), hook()).await.unwrap();
    let new = endpoints.rotate_secret(id(), hook(), EndpointSecretRotateIn::new(), None).await.unwrap();
    assert_ne!(old, new);
    assert_eq!(endpoints.get_secret(id(), hook()).await.unwrap(), new);
    endpoints.get_stats(id(), hook(), None).await.unwrap();
    let example = EventExampleIn::new("svix.ping".into());
    assert!(endpoints.send_example(id(), hook(), example, None).await.unwrap().id.starts_with("msg_"));
    let recover = RecoverIn { since: "2026-01-01T00:00:00Z".parse().unwrap(), until: None };
    assert!(endpoints.recover(id(), hook(), recover, None).await.unwrap().id.starts_with("qtask_"));

    let message_in = MessageIn::new("paid".into(), json!({"amount": 1}));
    let message = svix.message().create(id(), message_in, None).await.unwrap();
    assert_eq!(svix.message().get(id(), message.id.clone(), None).await.unwrap().id, message.id);
    assert_eq!(svix.message().list(id(), None).await.unwrap().data.len(), 2);
    let attempts = svix.message_attempt();
    assert!(attempts.list_by_endpoint(id(), hook(), None).await.unwrap().done);
    assert!(attempts.list_by_msg(id(), message.id.clone(), None).await.unwrap().done);
    assert_eq!(attempts.list_attempted_destinations(id(), message.id.clone(), None).await.unwrap().data.len(), 1);
    attempts.list_attempted_messages(id(), hook(), None).await.unwrap();
    svix.message().expunge_content(id(), message.id).await.unwrap();

    let access = svix.authentication().app_portal_access(id(), AppPortalAccessIn::new(), None).await.unwrap();
    assert!(access.url.ends_with(&access.token));
    endpoints.delete(id(), hook()).await.unwrap();
    apps.delete(id()).await.unwrap();
    assert!(matches!(apps.get(id()).await, Err(svix::error::Error::Http(fault)) if fault.status == 404));
}
