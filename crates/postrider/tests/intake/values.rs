//! Rows about values: names, ids, queries, dates, SQL, headers, idempotency keys.

use crate::{
    caller::{MESSAGES, Place},
    support::{
        server::Server,
        stores::{StoreKind, on_both_stores},
    },
};
use serde_json::{Value, json};

on_both_stores! {
    row_sql_in_any_field,
    row_iterators_of_others,
    row_idempotency_keys,
}

const ENDPOINTS: &str = "/api/v1/app/acme/endpoint";

#[test]
fn row_names() {
    let place = Place::start();
    let long = "x".repeat(257);
    for name in [
        "a/../b",
        "../..",
        "a/b",
        "a%2fb",
        "a%2Fb",
        "%2e%2e",
        "a b",
        "a\tb",
        "caf\u{e9}",
        "\u{430}\u{440}\u{440}",
        "\u{ff21}",
        "a\u{200b}b",
        "a\u{202e}b",
        "\u{1f4a9}",
        "",
        " ",
        "a;b",
        "a'b",
        "a\"b",
        "a\\b",
        "a?b",
        "a#b",
        "a&b",
        "a=b",
        "a<b>",
        &long,
    ] {
        let told = json!(name);
        for (path, body) in [
            (MESSAGES, json!({"eventType": told, "payload": {}})),
            (MESSAGES, json!({"eventType": "a", "payload": {}, "eventId": told})),
            (MESSAGES, json!({"eventType": "a", "payload": {}, "channels": [told]})),
            ("/api/v1/app", json!({"name": "a", "uid": told})),
            (ENDPOINTS, json!({"url": "https://example.com/", "uid": told})),
            (ENDPOINTS, json!({"url": "https://example.com/", "channels": [told]})),
            (ENDPOINTS, json!({"url": "https://example.com/", "filterTypes": [told]})),
            ("/api/v1/event-type", json!({"name": told, "description": ""})),
        ] {
            let refused = place.post(path, body.to_string());
            assert!(refused.is_refusal(422), "{path} {name:?}: {} {}", refused.status, refused.text());
        }
    }
    // What looks like an id of the same kind.
    for (path, body) in [
        (MESSAGES, json!({"eventType": "a", "payload": {}, "eventId": "msg_mine"})),
        ("/api/v1/app", json!({"name": "a", "uid": "app_mine"})),
        (ENDPOINTS, json!({"url": "https://example.com/", "uid": "ep_mine"})),
    ] {
        assert!(place.post(path, body.to_string()).is_refusal(422), "{body}");
    }
    // Names are compared byte for byte.
    assert_eq!(place.post("/api/v1/app", r#"{"name":"a","uid":"ACME"}"#).status, 201);
    assert!(place.post("/api/v1/app", r#"{"name":"a","uid":"acme"}"#).is_refusal(409));
    assert!(place.get("/api/v1/app/Acme").is_refusal(404));
    assert_eq!(place.messages(), 0);
}

#[test]
fn row_ids() {
    let place = Place::start();
    let id_of = |body: &Value| body["id"].as_str().expect("an id").to_owned();
    let app = id_of(&place.get("/api/v1/app/acme").json());
    let endpoint = id_of(&place.get("/api/v1/app/acme/endpoint/hook").json());
    let other = id_of(&place.post("/api/v1/app", r#"{"name":"Other","uid":"other"}"#).json());
    let foreign =
        id_of(&place.post(&format!("/api/v1/app/{other}/endpoint"), r#"{"url":"https://example.com/"}"#).json());
    let gone = id_of(&place.post(ENDPOINTS, r#"{"url":"https://example.com/"}"#).json());
    assert_eq!(place.ask("DELETE", &format!("{ENDPOINTS}/{gone}"), &[], b"").status, 204);
    let unknown = place.get(&format!("{ENDPOINTS}/ep_{}", &"0".repeat(27)));
    assert!(unknown.is_refusal(404), "{}", unknown.text());
    let (long, upper) = ("x".repeat(10_000), endpoint.to_ascii_uppercase());
    for id in [
        &foreign,
        &gone,
        &app,
        &endpoint[..endpoint.len() - 1],
        &upper,
        &long,
        "..",
        "%2e%2e",
        "..%2f..%2f..%2fetc%2fpasswd",
        "..%5c..",
        "%00",
        "%ff",
        "%c0%ae",
        "ep_",
        "msg_x",
        "a%20b",
        "%F0%9F%92%A9",
        ".",
        "~",
        "*",
        "'",
        "hook%00",
    ] {
        let answer = place.get(&format!("{ENDPOINTS}/{id}"));
        assert_eq!((answer.status, answer.text()), (404, unknown.text()), "{id:.60}");
    }
    for id in [&long[..], &endpoint, "..%2f..", "%ff", "app_"] {
        let answer = place.get(&format!("/api/v1/app/{id}/endpoint"));
        assert_eq!((answer.status, answer.text()), (404, unknown.text()), "{id:.60}");
    }
    // More than a head may have.
    let answer = place.get(&format!("{ENDPOINTS}/{}", "x".repeat(100_000)));
    assert!(matches!(answer.status, 414 | 431), "{}", answer.status);
}

#[test]
fn row_queries() {
    let place = Place::start();
    for list in [
        MESSAGES,
        "/api/v1/app",
        ENDPOINTS,
        "/api/v1/event-type",
        "/api/v1/app/acme/dead-letter",
        "/api/v1/app/acme/attempt/endpoint/hook",
    ] {
        for query in [
            "limit=0",
            "limit=-1",
            "limit=251",
            "limit=1e9",
            "limit=1000000000",
            "limit=99999999999999999999",
            "limit=",
            "limit=1.5",
            "limit=0x10",
            "limit=1&limit=2",
            "iterator=x",
            "iterator=%00",
            "iterator=app_000000000000000000000000000x",
            "iterator=-",
            "iterator=msg_'%20or%201=1",
            "unknown=1",
            "order=sideways",
        ] {
            // Event types are told apart by their names, and any name may be where a page begins.
            if list.ends_with("event-type") && query.starts_with("iterator=") && !query.contains('%') {
                continue;
            }
            let refused = place.get(&format!("{list}?{query}"));
            assert!(
                refused.is_refusal(400) || refused.is_refusal(422),
                "{list}?{query}: {} {}",
                refused.status,
                refused.text()
            );
        }
        assert_eq!(place.get(&format!("{list}?limit=250")).status, 200, "{list}");
    }
}

/// An iterator is an id, and leads into a list only for whoever may see that list: it tells of nothing there.
fn row_iterators_of_others(store: StoreKind) {
    let place = Place::new(Server::start_on(store, &[]));
    place.post("/api/v1/app", r#"{"name":"Other","uid":"other"}"#);
    let theirs = "/api/v1/app/other/msg";
    for number in 0..3 {
        let body = format!(r#"{{"eventType":"a","payload":{{"n":{number}}}}}"#);
        assert_eq!(place.post(theirs, &body).status, 202);
        assert_eq!(place.message(&body).status, 202);
    }
    let ids = |list: &Value| -> Vec<String> {
        let rows = list["data"].as_array().expect("a list").iter();
        rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    let ours = ids(&place.get(MESSAGES).json());
    let foreign = place.get(&format!("{theirs}?limit=1")).json()["iterator"].as_str().expect("more").to_owned();
    let answer = place.get(&format!("{MESSAGES}?iterator={foreign}"));
    if answer.status == 200 {
        assert!(ids(&answer.json()).iter().all(|id| ours.contains(id)), "{}", answer.text());
    } else {
        assert!(answer.is_refusal(422), "{}", answer.text());
    }
    // Of another list, whose ids are of another kind.
    for list in ["/api/v1/app", ENDPOINTS] {
        assert!(place.get(&format!("{list}?iterator={foreign}")).is_refusal(422), "{list}");
    }
}

#[test]
fn row_dates() {
    let place = Place::start();
    for date in [
        "0000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "9999-12-31T23:59:60Z",
        "2026-06-30T23:59:60Z",
        "2026-01-01T00:00:00%2B24:00",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00Z",
        "2026-01-01",
        "2026-02-30T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:00.0000000001Z",
        "now",
        "1767225600",
        "",
        "Z",
        "2026-01-01T00:00:00Z[Europe/Vienna]",
        "9999-01-01T00:00:00Z",
    ] {
        for path in [format!("{MESSAGES}?before={date}"), format!("{ENDPOINTS}/hook/stats?since={date}")] {
            // What is a time, and only too early or too late for there to be anything, may be asked about.
            let answer = place.get(&path.replace(' ', "%20").replace('[', "%5B").replace(']', "%5D"));
            let is_time = date.starts_with("9999-01") || date.starts_with("0000");
            assert!(
                answer.is_refusal(400) || answer.is_refusal(422) || (is_time && answer.status == 200),
                "{path}: {} {}",
                answer.status,
                answer.text()
            );
        }
        let date = date.replace("%2B", "+");
        for (path, body) in [
            (MESSAGES.to_owned(), json!({"eventType": "a", "payload": {}, "deliverAt": date})),
            (format!("{ENDPOINTS}/hook/recover"), json!({"since": date})),
        ] {
            let refused = place.post(&path, body.to_string());
            let is_time = date.starts_with("9999-01") || date.starts_with("0000");
            let may_be = is_time && refused.status == 202 && path.ends_with("recover");
            assert!(refused.is_refusal(422) || may_be, "{path} {body}: {} {}", refused.status, refused.text());
        }
    }
    for date in [
        "2026-01-31T12:00:00.123456789Z",
        "2026-01-31t12:00:00z",
        "2026-01-31T12:00:00%2B05:30",
        "0001-01-01T00:00:00Z",
    ] {
        let answer = place.get(&format!("{MESSAGES}?after={date}"));
        assert_eq!(answer.status, 200, "{date}: {}", answer.text());
    }
    assert_eq!(place.messages(), 0);
}

fn row_sql_in_any_field(store: StoreKind) {
    let place = Place::new(Server::start_on(store, &[]));
    let hostile = "x'); DROP TABLE application; -- \" ; DELETE FROM endpoint WHERE 1=1 /* $1 ?1 \\' %s {n} */";
    let app = json!({"name": hostile, "uid": "bobby", "metadata": {hostile: hostile}});
    assert_eq!(place.post("/api/v1/app", app.to_string()).status, 201);
    let endpoint = json!({"url": "https://example.com/?q='%20or%201=1--", "uid": "table", "description": hostile,
        "metadata": {hostile: hostile}, "headers": {"x-a": hostile}});
    assert_eq!(place.post("/api/v1/app/bobby/endpoint", endpoint.to_string()).status, 201);
    let event_type = json!({"name": "drop.table", "description": hostile, "schemas": {"1": {"description": hostile}}});
    assert_eq!(place.post("/api/v1/event-type", event_type.to_string()).status, 201);
    let message = json!({"eventType": "a", "orderingKey": hostile, "payload": {hostile: hostile}, "eventId": "m"});
    let accepted = place.post("/api/v1/app/bobby/msg", message.to_string());
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let key = "';drop-table-message;--";
    assert_eq!(
        place
            .ask("POST", "/api/v1/app/bobby/msg", &[("idempotency-key", key)], br#"{"eventType":"a","payload":{}}"#)
            .status,
        202
    );
    for path in ["/api/v1/app/%27%20or%20%271%27=%271", "/api/v1/app/bobby/msg/1%20or%201=1", "/api/v1/event-type/';--"]
    {
        assert!(place.get(path).is_refusal(404), "{path}");
    }
    for query in ["tag=%27%20or%201=1", "channel=a%27;--", "event_types=a%27%20or%20%27a%27=%27a"] {
        let answer = place.get(&format!("/api/v1/app/bobby/msg?{query}"));
        let nothing = answer.status == 200 && answer.json()["data"] == json!([]);
        assert!(nothing || answer.is_refusal(400) || answer.is_refusal(422), "{query}: {}", answer.text());
    }
    // All is there, as it was given.
    let read = place.get("/api/v1/app/bobby").json();
    assert_eq!((&read["name"], &read["metadata"]), (&app["name"], &app["metadata"]));
    let read = place.get("/api/v1/app/bobby/endpoint/table").json();
    assert_eq!((&read["description"], &read["metadata"]), (&endpoint["description"], &endpoint["metadata"]));
    let read = place.get("/api/v1/app/bobby/msg/m").json();
    assert_eq!((&read["payload"], &read["orderingKey"]), (&message["payload"], &message["orderingKey"]));
    assert_eq!(place.get("/api/v1/event-type/drop.table").json()["description"], hostile);
    assert_eq!(place.get("/api/v1/app").json()["data"].as_array().map(Vec::len), Some(2));
}

#[test]
fn row_custom_headers() {
    let place = Place::start();
    let many: Value = (0..10_000).map(|n| (format!("x-{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let one = |name: &str, value: &str| json!({name: value});
    let long = "v".repeat(64 * 1024);
    for headers in [
        one("x-a", "a\r\nb: c"),
        one("x-a", "a\nb"),
        one("x-a", "a\rb"),
        one("x-a", "a\0"),
        one("x-a", "caf\u{e9}"),
        one("x-a", " a"),
        one("x-a", "\u{7f}"),
        one("", "a"),
        one("x a", "a"),
        one("x:a", "a"),
        one("x\r\na", "a"),
        one("x\u{e9}", "a"),
        one("Host", "a"),
        one("Content-Length", "1"),
        one("content-type", "a"),
        one("TRANSFER-ENCODING", "chunked"),
        one("Connection", "close"),
        one("Expect", "a"),
        one("Upgrade", "a"),
        one("Proxy-Authorization", "a"),
        one("proxy-connection", "a"),
        one("TE", "a"),
        one("Trailer", "a"),
        one("Keep-Alive", "a"),
        one("svix-id", "a"),
        one("Svix-Signature", "a"),
        one("webhook-id", "a"),
        one("webhook-timestamp", "a"),
        one("Webhook-Signature", "a"),
        one("x-a", &long),
        one("x-a", &long[..4_097]),
        many,
    ] {
        let shown = headers.to_string();
        let body = json!({"url": "https://example.com/", "headers": headers}).to_string();
        let refused = place.post(ENDPOINTS, body);
        assert!(refused.is_refusal(422), "{shown:.80}: {} {:.300}", refused.status, refused.text());
        let set = json!({"headers": headers}).to_string();
        for method in ["PUT", "PATCH"] {
            let refused = place.ask(method, &format!("{ENDPOINTS}/hook/headers"), &[], set.as_bytes());
            assert!(refused.is_refusal(422), "{method} {shown:.80}: {} {:.300}", refused.status, refused.text());
        }
    }
    assert_eq!(place.get(&format!("{ENDPOINTS}/hook/headers")).json()["headers"], json!({}));
    let fifty: Value =
        (0..50).map(|n| (format!("x-{n}"), json!("v".repeat(4_096)))).collect::<serde_json::Map<_, _>>().into();
    let set = json!({"headers": fifty}).to_string();
    assert_eq!(place.ask("PUT", &format!("{ENDPOINTS}/hook/headers"), &[], set.as_bytes()).status, 204);
}

fn row_idempotency_keys(store: StoreKind) {
    let place = Place::new(Server::start_on(store, &[]));
    let post =
        |path: &str, key: &str, body: &str| place.ask("POST", path, &[("idempotency-key", key)], body.as_bytes());
    let (body, other) = (r#"{"eventType":"a","payload":{"n":1}}"#, r#"{"eventType":"a","payload":{"n":2}}"#);
    let first = post(MESSAGES, "mine", body);
    assert_eq!(first.status, 202);
    assert_eq!(post(MESSAGES, "mine", body).body, first.body);
    assert!(post(MESSAGES, "mine", other).is_refusal(409));
    assert_eq!(place.messages(), 1);
    for key in ["k".repeat(257), "k".repeat(10_000), String::new(), "a b".to_owned(), "caf\u{e9}".to_owned()] {
        for path in [MESSAGES, "/api/v1/app"] {
            let refused = post(path, &key, body);
            assert!(refused.is_refusal(422), "{key:.20}: {} {}", refused.status, refused.text());
        }
    }
    let twice = place.ask("POST", MESSAGES, &[("idempotency-key", "a"), ("idempotency-key", "b")], body.as_bytes());
    assert!(twice.is_refusal(422), "{}", twice.text());
    assert_eq!(post(MESSAGES, &"k".repeat(256), body).status, 202);
    // The same word of another tenant is another key.
    place.post("/api/v1/app", r#"{"name":"Other","uid":"other"}"#);
    let theirs = post("/api/v1/app/other/msg", "mine", other);
    assert_eq!(theirs.status, 202, "{}", theirs.text());
}
