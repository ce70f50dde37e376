//! Who may call and who may not: API keys and their scopes, tokens that are ended before their time, forged ones, and what
//! is written down of all that.

mod support;

use axum::body::Body;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Request;
use jiff::Timestamp;
use postrider::{credentials::scopes::Scope, keyring::Keyring, tokens::Access};
use serde_json::{Value, json};
use std::time::Duration;
use support::{
    eventually,
    house::{House, Reply},
    operations::{Operation, filled_with},
    stores::{StoreKind, on_both_stores, open_database},
};

on_both_stores! {
    async
    a_key_does_what_its_scopes_say_and_nothing_else,
    a_key_for_one_application_is_a_stranger_to_the_others,
    a_key_is_shown_once_and_not_stored,
    a_revoked_key_is_refused_at_once,
    a_rotated_key_works_on_for_its_overlap,
    what_a_key_was_last_used_for_is_noted,
    a_portal_token_can_be_logged_out,
    all_tokens_of_an_application_can_be_ended,
    the_tokens_of_a_session_can_be_ended,
    one_token_can_be_revoked,
    management_calls_are_written_down,
}

async fn make_key(house: &House, body: Value) -> (String, String) {
    let made = house.post("api-key", body).await.expect(201);
    (made["id"].as_str().expect("an id").to_owned(), made["token"].as_str().expect("a key").to_owned())
}

async fn key_with(house: &House, scope: &str) -> String {
    make_key(house, json!({"name": scope, "scopes": [scope]})).await.1
}

async fn make_app(house: &House, uid: &str) -> String {
    let made = house.post("app", json!({"name": uid, "uid": uid})).await.expect(201);
    made["id"].as_str().expect("an id").to_owned()
}

async fn status(house: &House, token: &str) -> u16 {
    house.call_as(token, "GET", "auth/whoami", Value::Null).await.status.as_u16()
}

async fn portal_token(house: &House, app: &str, body: Value) -> String {
    let made = house.post(&format!("auth/app-portal-access/{app}"), body).await.expect(200);
    made["token"].as_str().expect("a token").to_owned()
}

/// The operations come from the API's own document, and what each needs is written here a second time, by hand.
async fn a_key_does_what_its_scopes_say_and_nothing_else(store: StoreKind) {
    let house = House::start_on(store).await;
    let document = house.ask(Request::get("/openapi.json").body(Body::empty()).unwrap()).await.expect(200);
    let mut keys = Vec::new();
    for scope in Scope::ALL {
        keys.push((scope, key_with(&house, scope.name()).await));
    }
    let mut tried = 0;
    for operation in Operation::all(&document) {
        let Operation { method, path, name, body } = &operation;
        // On nothing that is there: who may do it is told that there is none, or that the body is wrong.
        let path = filled_with(path, &[]);
        for (scope, key) in &keys {
            let reply = ask(&house, key, method, &path, body).await;
            let expected = needed(name).is_none_or(|needed| *scope == Scope::Admin || *scope == needed);
            // The environment's own key may not end itself by mistake.
            let expected = expected && name != "v1.authentication.logout";
            // Those who give away what they have must have it all.
            let gives_away = matches!(
                &**name,
                "v1.authentication.app-portal-access" | "v1.ingest.authentication.consumer-portal-access"
            );
            let expected = expected && !(gives_away && *scope != Scope::Admin);
            assert_eq!(reply.status != 403, expected, "{name} with {scope:?}: {} {}", reply.status, reply.text);
            assert_ne!(reply.status, 401, "{name}");
            // What there is not says so.
            let is_fault = reply.status.is_server_error() && reply.status != 501;
            assert!(!is_fault, "{name} with {scope:?}: {} {}", reply.status, reply.text);
            if !expected {
                assert_eq!(reply.text, r#"{"code":"insufficient access","detail":"This token may not do that"}"#);
            }
            tried += 1;
        }
    }
    assert!(tried > 300, "{tried}");
    println!("{tried} tries");
}

/// `None`: whoever holds any.
fn needed(operation: &str) -> Option<Scope> {
    let (resource, verb) = operation.strip_prefix("v1.").and_then(|name| name.split_once('.')).expect("v1.thing.verb");
    match (resource, verb) {
        ("health", _) | ("schedule", _) | ("preset", _) => None,
        ("endpoint", "public-keys") | ("authentication", "whoami" | "logout") => None,
        ("api-key" | "audit" | "token" | "alert" | "settings", _) => Some(Scope::Admin),
        ("authentication", _) => Some(Scope::Manage),
        ("message", "create" | "create-batch") => Some(Scope::Ingest),
        ("endpoint", "recover" | "replay-missing" | "bulk-replay" | "send-example") => Some(Scope::Replay),
        ("message-attempt", "resend") | ("dead-letter", "replay" | "replay-all") => Some(Scope::Replay),
        ("background-task", "cancel") => Some(Scope::Replay),
        ("endpoint", "get-secret") | ("operational-webhook", "endpoint.get-secret") => Some(Scope::Manage),
        ("operational-webhook", "endpoint.list" | "endpoint.get" | "endpoint.get-headers") => Some(Scope::Read),
        ("operational-webhook", "endpoint.list-attempts" | "dead-letter.list") => Some(Scope::Read),
        ("operational-webhook", "dead-letter.replay") => Some(Scope::Replay),
        ("ingest", "receive" | "answer") => None,
        ("ingest", "source.list" | "source.get" | "log.list" | "endpoint.list" | "endpoint.get") => Some(Scope::Read),
        ("ingest", "endpoint.get-headers" | "endpoint.transformation.get") => Some(Scope::Read),
        ("application", "preview-schedule") => Some(Scope::Read),
        ("message", "find" | "search-all") => Some(Scope::Read),
        ("message", "poller.list" | "poller.poll" | "poller.list-consumers") => Some(Scope::Read),
        ("statistics", _) | (_, "list" | "get" | "count" | "tail" | "search") => Some(Scope::Read),
        (_, verb) if verb.starts_with("get-") || verb.starts_with("list-") => Some(Scope::Read),
        (_, _) => Some(Scope::Manage),
    }
}

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

async fn a_key_for_one_application_is_a_stranger_to_the_others(store: StoreKind) {
    let house = House::start_on(store).await;
    let (ours, theirs) = (make_app(&house, "ours").await, make_app(&house, "theirs").await);
    let all = json!({"name": "k", "scopes": ["ingest", "read", "manage", "replay"], "appId": "ours"});
    let (id, key) = make_key(&house, all).await;
    let shown = house.call_as(&key, "GET", "auth/whoami", Value::Null).await.expect(200);
    assert_eq!((&shown["appId"], &shown["apiKeyId"]), (&json!(ours), &json!(id)));
    assert_eq!(shown["scopes"], json!(["ingest", "read", "manage", "replay"]));

    let message = json!({"eventType": "a.b", "payload": {}});
    let endpoint = json!({"url": "https://example.com/"});
    for (method, what, body, expected) in [
        ("POST", "msg", message.clone(), 202),
        ("GET", "msg", Value::Null, 200),
        ("POST", "endpoint", endpoint.clone(), 201),
        ("GET", "endpoint", Value::Null, 200),
    ] {
        let own = house.call_as(&key, method, &format!("app/{ours}/{what}"), body.clone()).await;
        assert_eq!(own.status, expected, "{what}: {}", own.text);
        let unknown = house.call_as(&key, method, &format!("app/nowhere/{what}"), body.clone()).await;
        for app in ["theirs", &theirs] {
            let foreign = house.call_as(&key, method, &format!("app/{app}/{what}"), body.clone()).await;
            assert_eq!((foreign.status.as_u16(), &foreign.text), (404, &unknown.text), "{what}");
        }
    }
    for path in ["app", "api-key", "audit"] {
        house.call_as(&key, "GET", path, Value::Null).await.expect(403);
    }
    house.call_as(&key, "DELETE", "app/ours", Value::Null).await.expect(403);

    // A key that only sends makes no applications on the way.
    let ingest = key_with(&house, "ingest").await;
    let bringing = json!({"eventType": "a.b", "payload": {}, "application": {"name": "New", "uid": "new"}});
    house.call_as(&ingest, "POST", "app/new/msg", bringing.clone()).await.expect(403);
    house.get("app/new").await.expect(404);
    house.call_as(&ingest, "POST", "app/ours/msg", message).await.expect(202);
    let both = make_key(&house, json!({"name": "b", "scopes": ["ingest", "manage"]})).await.1;
    house.call_as(&both, "POST", "app/new/msg", bringing).await.expect(202);

    for body in [
        json!({"name": "k", "scopes": []}),
        json!({"name": "k", "scopes": ["fly"]}),
        json!({"name": "", "scopes": ["read"]}),
        json!({"name": "k", "scopes": ["read"], "appId": "nowhere"}),
        json!({"name": "k", "scopes": ["admin"], "appId": "ours"}),
        json!({"name": "k", "scopes": ["read"], "expiresAt": "2001-01-01T00:00:00Z"}),
        json!({"name": "k", "scopes": ["read"], "colour": 1}),
        json!({"name": "k"}),
    ] {
        house.post("api-key", body.clone()).await.expect(422);
    }
}

async fn a_key_is_shown_once_and_not_stored(store: StoreKind) {
    let house = House::start_on(store).await;
    let (id, key) = make_key(&house, json!({"name": "mine", "scopes": ["read"]})).await;
    assert!(key.starts_with(&format!("prk_{}_", &id["key_".len()..])), "{id}");
    let secret = &key[32..75];
    for path in ["api-key", &format!("api-key/{id}"), "audit"] {
        let shown = house.get(path).await;
        assert_eq!(shown.status, 200);
        assert!(shown.text.contains(&id) && !shown.text.contains(secret), "{}", shown.text);
    }
    house.get("api-key/key_1srOrx2ZWZBpBUvZwXKQmoEYga2").await.expect(404);
    // A slip of the pen, and a key that was made elsewhere.
    let mistyped = format!("{}{}", &key[..80], if key.ends_with('x') { 'y' } else { 'x' });
    let other = House::new();
    let (_, foreign) = make_key(&other, json!({"name": "mine", "scopes": ["admin"]})).await;
    for wrong in [mistyped, foreign, "prk_".to_owned(), key[..key.len() - 1].to_owned()] {
        let refused = house.call_as(&wrong, "GET", "app", Value::Null).await;
        assert_eq!((refused.status.as_u16(), &*refused.text), (401, INVALID));
    }
    assert_eq!(status(&house, &key).await, 200);
}

async fn a_revoked_key_is_refused_at_once(store: StoreKind) {
    let house = House::start_on(store).await;
    let (id, key) = make_key(&house, json!({"name": "k", "scopes": ["admin"]})).await;
    assert_eq!(status(&house, &key).await, 200);
    let shown = house.call_as(&key, "POST", &format!("api-key/{id}/revoke"), Value::Null).await.expect(200);
    assert!(shown["revokedAt"].is_string());
    let refused = house.call_as(&key, "GET", "app", Value::Null).await;
    assert_eq!((refused.status.as_u16(), &*refused.text), (401, INVALID));
    let again = house.post(&format!("api-key/{id}/revoke"), Value::Null).await.expect(200);
    assert_eq!(again["revokedAt"], shown["revokedAt"]);
    house.post(&format!("api-key/{id}/rotate"), json!({})).await.expect(409);
}

async fn a_rotated_key_works_on_for_its_overlap(store: StoreKind) {
    let house = House::start_on(store).await;
    let wanted = json!({"name": "k", "scopes": ["read", "replay"], "expiresAt": "2099-01-01T00:00:00Z"});
    let (old_id, old) = make_key(&house, wanted).await;
    house.post(&format!("api-key/{old_id}/rotate"), json!({"overlapSeconds": 604_801})).await.expect(422);
    let made = house.post(&format!("api-key/{old_id}/rotate"), json!({"overlapSeconds": 3600})).await.expect(201);
    assert_eq!((&made["name"], &made["scopes"]), (&json!("k"), &json!(["read", "replay"])));
    assert!(made["expiresAt"].as_str().expect("an end") > "2098");
    let new = made["token"].as_str().expect("a key").to_owned();
    assert_eq!((status(&house, &old).await, status(&house, &new).await), (200, 200));
    let shown = house.get(&format!("api-key/{old_id}")).await.expect(200);
    assert!(shown["revokedAt"].as_str().expect("an end") < "2098", "{shown}");
    assert_eq!(shown["expiresAt"], "2099-01-01T00:00:00Z");
    house.post(&format!("api-key/{old_id}/rotate"), json!({"overlapSeconds": 3600})).await.expect(409);

    let new_id = made["id"].as_str().expect("an id");
    let last = house.post(&format!("api-key/{new_id}/rotate"), json!({"overlapSeconds": 0})).await.expect(201);
    assert_eq!(status(&house, &new).await, 401, "without an overlap it ends at once");
    assert_eq!(status(&house, last["token"].as_str().expect("a key")).await, 200);
}

async fn what_a_key_was_last_used_for_is_noted(store: StoreKind) {
    let house = House::start_on(store).await;
    let (id, key) = make_key(&house, json!({"name": "k", "scopes": ["read"]})).await;
    // Compared as moments: as texts, the second `.12Z` would come after `.125Z`.
    let used_at = async || {
        let shown = house.get(&format!("api-key/{id}")).await.expect(200);
        shown["lastUsedAt"].as_str().map(|time| time.parse::<Timestamp>().expect("a time"))
    };
    assert_eq!(status(&house, &key).await, 200);
    assert_eq!(used_at().await, None, "it is not written with the call");
    house.api.credentials.note_uses().await;
    let first = used_at().await;
    assert!(first.is_some());
    tokio::time::sleep(Duration::from_millis(5)).await;
    house.api.credentials.note_uses().await;
    assert_eq!(used_at().await, first, "nothing has used it since");
    assert_eq!(status(&house, &key).await, 200);
    house.api.credentials.note_uses().await;
    assert!(used_at().await > first);
}

async fn a_portal_token_can_be_logged_out(store: StoreKind) {
    let house = House::start_on(store).await;
    make_app(&house, "acme").await;
    let (mine, other) = (portal_token(&house, "acme", json!({})).await, portal_token(&house, "acme", json!({})).await);
    house.call_as(&mine, "POST", "auth/logout", Value::Null).await.expect(204);
    let refused = house.call_as(&mine, "GET", "auth/whoami", Value::Null).await;
    assert_eq!((refused.status.as_u16(), &*refused.text), (401, INVALID));
    assert_eq!(status(&house, &other).await, 200, "others are not meant");
    let key = key_with(&house, "admin").await;
    for product in [&house.token, &key] {
        house.call_as(product, "POST", "auth/logout", Value::Null).await.expect(403);
        assert_eq!(status(&house, product).await, 200);
    }
}

async fn all_tokens_of_an_application_can_be_ended(store: StoreKind) {
    let house = House::start_on(store).await;
    let app = make_app(&house, "acme").await;
    make_app(&house, "other").await;
    let portal = portal_token(&house, "acme", json!({"sessionId": "s@1"})).await;
    let plain = house.app_token(&app, &Access::full());
    let foreign = portal_token(&house, "other", json!({"sessionId": "s@1"})).await;
    let expire = async |body: Value| house.post("auth/app/acme/expire-all", body).await;
    for wrong in [json!({"expiry": 259_201}), json!({"expiry": -1}), json!({"sessionIds": ["a b"]}), json!({"all": 1})]
    {
        expire(wrong).await.expect(422);
    }
    expire(json!({"expiry": 3600})).await.expect(204);
    for token in [&portal, &plain, &foreign] {
        assert_eq!(status(&house, token).await, 200, "their time has not come");
    }
    expire(json!({})).await.expect(204);
    for (token, expected) in [(&portal, 401), (&plain, 401), (&foreign, 200), (&house.token, 200)] {
        assert_eq!(status(&house, token).await, expected);
    }
    let fresh = portal_token(&house, "acme", json!({})).await;
    assert_eq!(status(&house, &fresh).await, 200, "made since");
    house.call_as(&fresh, "POST", "auth/app/acme/expire-all", json!({})).await.expect(403);
    house.post("auth/app/nowhere/expire-all", json!({})).await.expect(404);
}

async fn the_tokens_of_a_session_can_be_ended(store: StoreKind) {
    let house = House::start_on(store).await;
    make_app(&house, "acme").await;
    let mut tokens = Vec::new();
    for body in [json!({"sessionId": "a"}), json!({"sessionId": "b"}), json!({"sessionId": "c"}), json!({})] {
        tokens.push(portal_token(&house, "acme", body).await);
    }
    let whoami = house.call_as(&tokens[0], "GET", "auth/whoami", Value::Null).await.expect(200);
    assert_eq!(whoami["sessionId"], "a");
    house.post("auth/app/acme/expire-all", json!({"sessionIds": ["a", "c", "x"]})).await.expect(204);
    for (token, expected) in tokens.iter().zip([401, 200, 401, 200]) {
        assert_eq!(status(&house, token).await, expected);
    }
}

async fn one_token_can_be_revoked(store: StoreKind) {
    let house = House::start_on(store).await;
    let app = make_app(&house, "acme").await;
    let tokens = house.api.credentials.tokens();
    let leaked = tokens.mint_environment(postrider::clock::now(), Duration::from_hours(1)).expect("a token");
    let of_app = house.app_token(&app, &Access::full());
    assert_eq!((status(&house, &leaked).await, status(&house, &of_app).await), (200, 200));
    for token in [&leaked, &of_app] {
        house.post("token/revoke", json!({"token": token})).await.expect(204);
        assert_eq!(status(&house, token).await, 401);
    }
    house.post("token/revoke", json!({"token": "x"})).await.expect(422);
    assert_eq!(status(&house, &house.token).await, 200);
    let told = house.get("audit").await.text;
    assert!(!told.contains(&leaked) && told.contains("v1.token.revoke"), "{told}");
}

async fn management_calls_are_written_down(store: StoreKind) {
    let house = House::start_on(store).await;
    let app = make_app(&house, "acme").await;
    let (key_id, key) = make_key(&house, json!({"name": "k", "scopes": ["manage", "read"]})).await;
    let endpoint = json!({"url": "https://example.com/", "secret": CANARY_SECRET, "headers": {"x-key": CANARY}});
    let made = house.call_as(&key, "POST", "app/acme/endpoint", endpoint).await.expect(201);
    house.post("app/acme/msg", json!({"eventType": "a.b", "payload": {"x": CANARY}})).await.expect(202);
    house.call_as(&key, "GET", "app/acme/endpoint", Value::Null).await.expect(200);
    house.call_as(&key, "POST", "app/acme/dead-letter/replay", json!({})).await.expect(403);
    house.call_as("nobody", "DELETE", "app/acme", Value::Null).await.expect(401);
    let portal = portal_token(&house, "acme", json!({"capabilities": ["ViewBase"]})).await;
    house
        .call_as(&portal, "DELETE", &format!("app/acme/endpoint/{}", made["id"].as_str().unwrap()), Value::Null)
        .await
        .expect(403);
    house.call("DELETE", "app/nowhere%00x", Value::Null).await.expect(404);
    house.call("DELETE", "app/acme", Value::Null).await.expect(204);

    let listed = house.get("audit").await;
    assert!(!listed.text.contains(CANARY) && !listed.text.contains(CANARY_SECRET), "{}", listed.text);
    let environment = "org_23rb8YdGqMT0qIzpgGwdXfHirMu";
    let seen: Vec<Value> = listed.json()["data"]
        .as_array()
        .expect("a list")
        .iter()
        .rev()
        .map(|entry| json!([entry["actor"], entry["operation"], entry["status"]]))
        .collect();
    assert_eq!(
        seen,
        [
            json!([environment, "v1.application.create", 201]),
            json!([environment, "v1.api-key.create", 201]),
            json!([key_id, "v1.endpoint.create", 201]),
            json!([key_id, "v1.dead-letter.replay-all", 403]),
            json!([environment, "v1.authentication.app-portal-access", 200]),
            json!([environment, "v1.application.delete", 404]),
            json!([environment, "v1.application.delete", 204]),
        ]
    );
    let list = async |query: &str| house.get(&format!("audit?{query}")).await.expect(200)["data"].clone();
    let of_key = list(&format!("actor={key_id}&order=ascending")).await;
    assert_eq!(of_key.as_array().map(Vec::len), Some(2));
    assert_eq!(of_key[0]["objects"], json!({"app_id": "acme", "app": app, "id": made["id"]}));
    assert_eq!(list("operation=v1.application.delete&limit=1").await[0]["objects"]["app"], json!(app));
    assert_eq!(list("before=2001-01-01T00:00:00Z").await, json!([]));
    house.get("audit?colour=1").await.expect(400);
}

/// Two nodes on one database: what is revoked at one of them must not last at the other. For how long at most is tested where
/// time is made: `credentials/mod.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_reaches_the_other_nodes() {
    let url = postrider_testbed::Cluster::shared().fresh_database().await;
    let here = House::on(open_database(&url).await, support::house::folder_with_keys(), Vec::new(), Default::default());
    let there = House::on(open_database(&url).await, here.folder.clone(), Vec::new(), Default::default());
    make_app(&here, "acme").await;
    let (id, key) = make_key(&here, json!({"name": "k", "scopes": ["read"]})).await;
    let portal = portal_token(&here, "acme", json!({})).await;
    for credential in [&key, &portal] {
        assert_eq!(status(&there, credential).await, 200);
    }
    here.post(&format!("api-key/{id}/revoke"), Value::Null).await.expect(200);
    here.post("auth/app/acme/expire-all", json!({})).await.expect(204);
    for credential in [&key, &portal] {
        eventually("the end of a credential on another node", async || {
            (status(&there, credential).await == 401).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn many_wrong_secrets_for_one_key_do_not_shut_its_holder_out() {
    let house = House::new();
    let (_, key) = make_key(&house, json!({"name": "k", "scopes": ["read"]})).await;
    let mut last = 0;
    for number in 0..150 {
        last = house.call_as(&guess(&key, number), "GET", "app", Value::Null).await.status.as_u16();
        assert!(matches!(last, 401 | 429), "{last}");
    }
    assert_eq!(last, 429, "from however many addresses");
    assert_eq!(status(&house, &key).await, 200);
}

/// Another secret under the id of a key, as whoever has seen the id can write it.
fn guess(key: &str, number: u32) -> String {
    use sha2::{Digest, Sha256};
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let body = format!("{}{number:043}", &key[..32]);
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(&body));
    let mut rest = u32::from_be_bytes([a, b, c, d]);
    let check = (0..6).map(|_| {
        let digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
        char::from(digit)
    });
    format!("{body}{}", check.collect::<String>())
}

/// Whatever is wrong with a token, the answer is the same to the byte.
#[tokio::test]
async fn forged_tokens_get_one_answer() {
    let house = House::new();
    let app = make_app(&house, "acme").await;
    let keyring = Keyring::open(house.folder.path()).expect("keys");
    let now = u64::try_from(postrider::clock::now().as_millis() / 1000).expect("after 1970");
    let signed = |header: Value, claims: Value, secret: &[u8]| {
        let message = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let key = jsonwebtoken::EncodingKey::from_secret(secret);
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, jsonwebtoken::Algorithm::HS256);
        format!("{message}.{}", signature.expect("signed"))
    };
    let good = json!({"iss": "svix-server", "sub": "org_23rb8YdGqMT0qIzpgGwdXfHirMu", "nbf": now, "exp": now + 600});
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        if claims[name].is_null() {
            claims.as_object_mut().expect("an object").remove(name);
        }
        claims
    };
    let (plain, ours) = (json!({"alg": "HS256"}), keyring.tokens());
    let valid = signed(plain.clone(), good.clone(), ours);
    assert_eq!(status(&house, &valid).await, 200);
    let parts: Vec<&str> = valid.split('.').collect();
    let none = |alg: Value| format!("{}.{}.", BASE64_URL_SAFE_NO_PAD.encode(alg.to_string()), parts[1]);
    let twice = good.to_string().replacen('{', r#"{"exp":9999999999,"#, 1);
    let twice = {
        let message = format!("{}.{}", parts[0], BASE64_URL_SAFE_NO_PAD.encode(twice));
        let key = jsonwebtoken::EncodingKey::from_secret(ours);
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, jsonwebtoken::Algorithm::HS256);
        format!("{message}.{}", signature.expect("signed"))
    };
    let long_session = {
        let mut claims = with("session_id", json!("s"));
        claims["sub"] = json!(app);
        claims["org"] = json!("org_23rb8YdGqMT0qIzpgGwdXfHirMu");
        claims["iat"] = json!(now);
        claims["exp"] = json!(now + 604_801);
        claims
    };
    let stranger = House::new();
    for (what, token) in [
        ("alg none", none(json!({"alg": "none"}))),
        ("alg missing", signed(json!({"typ": "JWT"}), good.clone(), ours)),
        ("alg lower-case", signed(json!({"alg": "hs256"}), good.clone(), ours)),
        ("another alg", signed(json!({"alg": "RS256"}), good.clone(), ours)),
        ("kid", signed(json!({"alg": "HS256", "kid": "../../dev/null"}), good.clone(), b"")),
        ("jku", signed(json!({"alg": "HS256", "jku": "https://evil.example/"}), good.clone(), ours)),
        ("x5u", signed(json!({"alg": "HS256", "x5u": "https://evil.example/"}), good.clone(), ours)),
        ("wrong key", signed(plain.clone(), good.clone(), &[7; 32])),
        ("expired", signed(plain.clone(), with("exp", json!(now - 61)), ours)),
        ("not yet", signed(plain.clone(), with("nbf", json!(now + 120)), ours)),
        ("no exp", signed(plain.clone(), with("exp", Value::Null), ours)),
        ("no nbf", signed(plain.clone(), with("nbf", Value::Null), ours)),
        ("another org", signed(plain.clone(), with("sub", json!("org_00000000000SvixManagement00")), ours)),
        ("an app of no org", signed(plain.clone(), with("sub", json!(app)), ours)),
        ("a session of the environment", signed(plain.clone(), with("session_id", json!("s")), ours)),
        ("a session for too long", signed(plain.clone(), long_session, ours)),
        ("a claim twice", twice),
        ("a megabyte", "x".repeat(1 << 20)),
        ("JWS in JSON", json!({"payload": parts[1], "protected": parts[0], "signature": parts[2]}).to_string()),
        ("of another deployment", stranger.token.clone()),
        ("the signing secret", BASE64_URL_SAFE_NO_PAD.encode(ours)),
        ("a key of no deployment", format!("prk_{}", "0".repeat(77))),
        ("nothing", String::new()),
    ] {
        let refused = house.call_as(&token, "GET", "auth/whoami", Value::Null).await;
        assert_eq!((refused.status.as_u16(), &*refused.text), (401, INVALID), "{what}");
    }
}

const INVALID: &str = r#"{"code":"authentication_failed","detail":"Invalid token"}"#;
const CANARY: &str = "canary-in-a-coal-mine";
const CANARY_SECRET: &str = "whsec_Y2FuYXJ5LWluLWEtY29hbC1taW5lLS0tLS0=";
