//! Rows about JSON: what is none, what is too deep, too long or there twice; and what of a payload is kept as it is.

use crate::{
    caller::{MESSAGES, Place},
    support::{
        server::Server,
        stores::{StoreKind, on_both_stores},
    },
};
use serde_json::json;

on_both_stores! {
    row_nul_in_strings,
}

#[test]
fn row_what_is_not_json() {
    let place = Place::start();
    for body in [
        &b""[..],
        b" ",
        b"{",
        b"nonsense",
        b"{\"eventType\":\"a\",\"payload\":{}} tail",
        b"{\"eventType\":\"a\",\"payload\":{}}{}",
        b"\xef\xbb\xbf{\"eventType\":\"a\",\"payload\":{}}",
        b"{\"eventType\":\"a\",\"payload\":{}, /* a comment */ \"tags\":[]}",
        b"{\"eventType\":\"a\",\"payload\":{}} // a comment",
        b"{\"eventType\":\"a\",\"payload\":{\"n\":NaN}}",
        b"{\"eventType\":\"a\",\"payload\":{\"n\":Infinity}}",
        b"{\"eventType\":\"a\",\"payload\":{\"n\":+1}}",
        b"{\"eventType\":\"a\",\"payload\":{\"n\":01}}",
        b"{'eventType':'a','payload':{}}",
        b"{eventType:\"a\",payload:{}}",
        b"{\"eventType\":\"a\",\"payload\":{},}",
        b"{\"eventType\":\"a\",\"payload\":{\"a\":\"line\nbreak\"}}",
    ] {
        for path in [MESSAGES, "/api/v1/app"] {
            let refused = place.post(path, body);
            let (text, shown) = (refused.text(), String::from_utf8_lossy(body));
            assert!(refused.is_refusal(422), "{shown}: {} {text}", refused.status);
            let says_where = ["line ", "column ", "byte "].iter().any(|place| text.contains(place));
            assert!(says_where || body.is_empty() || path != MESSAGES, "{shown}: {text}");
        }
    }
    assert_eq!(place.messages(), 0);
}

#[test]
fn row_invalid_utf_8_and_lone_surrogates() {
    let place = Place::start();
    for text in
        [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", br"\ud800", br"\udc00\ud800", br"\ud800x"]
    {
        for (before, after) in [
            (&br#"{"eventType":"a","payload":{"a":""#[..], &br#""}}"#[..]),
            (br#"{"eventType":"a","payload":{""#, br#"":1}}"#),
            (br#"{"eventType":""#, br#"","payload":{}}"#),
            (br#"{"eventType":"a","payload":{},""#, br#"":1}"#),
        ] {
            let refused = place.message([before, text, after].concat());
            assert!(refused.is_refusal(422), "{}: {}", String::from_utf8_lossy(text), refused.status);
        }
        let refused = place.post("/api/v1/app", [br#"{"name":""#, text, br#""}"#].concat());
        assert!(refused.is_refusal(422), "{}: {}", String::from_utf8_lossy(text), refused.status);
    }
    assert_eq!(place.messages(), 0);
}

fn row_nul_in_strings(store: StoreKind) {
    let place = Place::new(Server::start_on(store, &[]));
    let payload = r#"{"a\u0000":"b\u0000c","d":"\u0000"}"#;
    let accepted = place.message(format!(r#"{{"eventType":"a","eventId":"e","payload":{payload}}}"#));
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    assert!(place.get(&format!("{MESSAGES}/e")).text().contains(payload), "as it came");
    for (path, body) in [
        (MESSAGES, r#"{"eventType":"a\u0000","payload":{}}"#),
        (MESSAGES, r#"{"eventType":"a","payload":{},"eventId":"a\u0000"}"#),
        (MESSAGES, r#"{"eventType":"a","payload":{},"channels":["a\u0000"]}"#),
        (MESSAGES, r#"{"eventType":"a","payload":{},"tags":["a\u0000"]}"#),
        (MESSAGES, r#"{"eventType":"a","payload":{},"orderingKey":"a\u0000"}"#),
        ("/api/v1/app", r#"{"name":"a\u0000"}"#),
        ("/api/v1/app", r#"{"name":"a","uid":"a\u0000"}"#),
        ("/api/v1/app", r#"{"name":"a","metadata":{"a\u0000":"b"}}"#),
        ("/api/v1/app", r#"{"name":"a","metadata":{"a":"b\u0000"}}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/\u0000"}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","description":"\u0000"}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","uid":"\u0000"}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","headers":{"a":"\u0000"}}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","headers":{"\u0000":"a"}}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","filterTypes":["\u0000"]}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","channels":["\u0000"]}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","secret":"whsec_\u0000"}"#),
        ("/api/v1/event-type", r#"{"name":"a\u0000","description":""}"#),
        ("/api/v1/event-type", r#"{"name":"a","description":"\u0000"}"#),
        ("/api/v1/event-type", r#"{"name":"a","description":"","groupName":"\u0000"}"#),
    ] {
        let refused = place.post(path, body);
        assert!(refused.is_refusal(422), "{path} {body}: {} {}", refused.status, refused.text());
    }
    for path in ["/api/v1/app/a%00", "/api/v1/app/acme/msg/%00", "/api/v1/event-type/%00"] {
        assert!(place.get(path).is_refusal(404), "{path}");
    }
    for path in ["/api/v1/app/acme/msg?tag=%00", "/api/v1/app/acme/msg?channel=a%00"] {
        let refused = place.get(path);
        assert!(refused.is_refusal(400) || refused.is_refusal(422), "{path}: {}", refused.status);
    }
}

#[test]
fn row_depth() {
    let place = Place::start();
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(place.message(format!(r#"{{"eventType":"a","payload":{{"a":{}}}}}"#, nested(62))).status, 202);
    for depth in [63, 128, 10_000, 200_000] {
        let objects = format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        for body in [
            format!(r#"{{"eventType":"a","payload":{{"a":{}}}}}"#, nested(depth)),
            format!(r#"{{"eventType":"a","payload":{{}},"unknown":{}}}"#, nested(depth)),
            format!(r#"{{"eventType":"a","payload":{{"a":{objects}}}}}"#),
            "[".repeat(depth),
        ] {
            if body.len() < 1024 * 1024 {
                assert!(place.message(&body).is_refusal(422), "{depth}: {body:.60}");
            }
        }
        let schema = format!(r#"{{"name":"a","description":"","schemas":{{"1":{{"a":{}}}}}}}"#, nested(depth));
        assert!(place.post("/api/v1/event-type", schema).is_refusal(422), "{depth}");
    }
    assert_eq!(place.messages(), 1);
}

#[test]
fn row_duplicate_keys() {
    let place = Place::start();
    for (path, body) in [
        (MESSAGES, r#"{"eventType":"a","eventType":"b","payload":{}}"#),
        (MESSAGES, r#"{"eventType":"a","payload":{},"payload":{}}"#),
        (MESSAGES, r#"{"eventType":"a","payload":{},"data":{}}"#),
        (MESSAGES, r#"{"eventType":"a","event\u0054ype":"b","payload":{}}"#),
        ("/api/v1/app", r#"{"name":"a","name":"b"}"#),
        ("/api/v1/app", r#"{"name":"a","metadata":{"a":"1","a":"2"}}"#),
        ("/api/v1/app", r#"{"name":"a","rateLimit":1,"throttleRate":2}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","url":"https://example.org/"}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","headers":{"a":"1","a":"2"}}"#),
        ("/api/v1/app/acme/endpoint", r#"{"url":"https://example.com/","headers":{"a":"1","A":"2"}}"#),
        ("/api/v1/event-type", r#"{"name":"a","description":"","description":"b"}"#),
    ] {
        let refused = place.post(path, body);
        assert!(refused.is_refusal(422), "{path} {body}: {} {}", refused.status, refused.text());
    }
    let payload = r#"{"a":1, "a":{"b":1,"b":2},"a" :1}"#;
    assert_eq!(place.message(format!(r#"{{"eventType":"a","eventId":"e","payload":{payload}}}"#)).status, 202);
    assert!(place.get(&format!("{MESSAGES}/e")).text().contains(payload), "as it came");
}

#[test]
fn row_huge_numbers() {
    let place = Place::start();
    let payload =
        r#"{"a":1e400,"b":-1e-400,"c":123456789012345678901234567890,"d":0.1000000000000000055511151231257827}"#;
    assert_eq!(place.message(format!(r#"{{"eventType":"a","eventId":"e","payload":{payload}}}"#)).status, 202);
    assert!(place.get(&format!("{MESSAGES}/e")).text().contains(payload), "as it came");
    for number in
        ["1e400", "-1", "0", "1.5", "4294967296", "18446744073709551616", "123456789012345678901234567890", "1e2"]
    {
        for (path, body) in [
            (MESSAGES, format!(r#"{{"eventType":"a","payload":{{}},"payloadRetentionPeriod":{number}}}"#)),
            ("/api/v1/app", format!(r#"{{"name":"a","rateLimit":{number}}}"#)),
            ("/api/v1/app/acme/endpoint", format!(r#"{{"url":"https://example.com/","rateLimit":{number}}}"#)),
            ("/api/v1/app/acme/endpoint", format!(r#"{{"url":"https://example.com/","maxInFlight":{number}}}"#)),
        ] {
            let refused = place.post(path, &body);
            assert!(refused.is_refusal(422), "{body}: {} {}", refused.status, refused.text());
        }
    }
}

#[test]
fn row_much_of_everything() {
    let mut server = Server::not_started(&[]);
    server.set_variables(&[("POSTRIDER_BODY_MAX", "64MiB")]);
    server.start_again();
    server.take_token();
    let place = Place::new(server);
    let members = |count: usize| (0..count).map(|n| format!(r#""k{n}":"""#)).collect::<Vec<_>>().join(",");
    let words = |count: usize| (0..count).map(|n| format!(r#""w{n}""#)).collect::<Vec<_>>().join(",");
    let million = members(1_000_000);
    let key = format!(r#""{}":"""#, "k".repeat(1024 * 1024));
    for payload in [&million, &key] {
        let accepted = place.message(format!(r#"{{"eventType":"a","payload":{{{payload}}}}}"#));
        assert_eq!(accepted.status, 202, "a payload may say what it likes: {:.200}", accepted.text());
    }
    for (path, body) in [
        (MESSAGES, format!(r#"{{"eventType":"a","payload":{{}},{million}}}"#)),
        (MESSAGES, format!(r#"{{"eventType":"a","payload":{{}},{key}}}"#)),
        (MESSAGES, format!(r#"{{"eventType":"{}","payload":{{}}}}"#, "a".repeat(1024 * 1024))),
        (MESSAGES, format!(r#"{{"eventType":"a","payload":{{}},"channels":[{}]}}"#, words(100_000))),
        (MESSAGES, format!(r#"{{"eventType":"a","payload":{{}},"tags":[{}]}}"#, words(100_000))),
        ("/api/v1/app", format!(r#"{{"name":"a","metadata":{{{}}}}}"#, members(10_000))),
        ("/api/v1/app", format!(r#"{{"name":"a","metadata":{{{million}}}}}"#)),
        ("/api/v1/app", format!(r#"{{"name":"a","metadata":{{{key}}}}}"#)),
        ("/api/v1/app", format!(r#"{{"name":"a",{key}}}"#)),
        ("/api/v1/app", format!(r#"{{"name":"{}"}}"#, "a".repeat(1024 * 1024))),
        ("/api/v1/app/acme/endpoint", format!(r#"{{"url":"https://example.com/","channels":[{}]}}"#, words(100_000))),
        (
            "/api/v1/app/acme/endpoint",
            format!(r#"{{"url":"https://example.com/","filterTypes":[{}]}}"#, words(100_000)),
        ),
        ("/api/v1/app/acme/endpoint", format!(r#"{{"url":"https://example.com/","headers":{{{}}}}}"#, members(10_000))),
        ("/api/v1/app/acme/endpoint", format!(r#"{{"url":"https://example.com/{}"}}"#, "a".repeat(1024 * 1024))),
        (
            "/api/v1/app/acme/endpoint",
            format!(r#"{{"url":"https://example.com/","description":"{}"}}"#, "a".repeat(20_000)),
        ),
        ("/api/v1/event-type", format!(r#"{{"name":"a","description":"{}"}}"#, "a".repeat(20_000))),
        ("/api/v1/event-type", format!(r#"{{"name":"a","description":"","featureFlags":[{}]}}"#, words(100_000))),
    ] {
        let refused = place.post(path, &body);
        assert!(
            refused.is_refusal(422),
            "{path} {body:.80}: {}, {} bytes: {:.200}",
            refused.status,
            refused.body.len(),
            refused.text()
        );
    }
    let apps = place.get("/api/v1/app").json();
    assert_eq!(apps["data"].as_array().map(Vec::len), Some(1), "{apps}");
    assert_eq!(apps["data"][0]["uid"], json!("acme"));
}
