//! Rows about bytes: how long a body is and says it is, what a head may hold, methods and media.

use crate::caller::{CONTINUE, MESSAGES, Place, answer, read_to_end};
use std::io::{Read, Write};

const BODY_MAX: usize = 1024 * 1024;
const SMALL: &[u8] = br#"{"eventType":"a","payload":{}}"#;

/// A message whose body has this many bytes.
fn of_size(bytes: usize) -> Vec<u8> {
    let (before, after) = (r#"{"eventType":"a","payload":{"x":""#, r#""}}"#);
    let mut body = before.as_bytes().to_vec();
    body.resize(bytes - after.len(), b'x');
    body.extend_from_slice(after.as_bytes());
    body
}

#[test]
fn row_body_over_the_limit() {
    let place = Place::start();
    for fits in [350_000, BODY_MAX] {
        assert_eq!(place.message(of_size(fits)).status, 202, "{fits} bytes");
    }
    // One byte too many is told of without any of them being read.
    let head = place.head("POST", MESSAGES, &[("content-length", &(BODY_MAX + 1).to_string())]);
    let refused = answer(&place.say(&head, b""));
    assert!(refused.is_refusal(413) && refused.head.contains("connection: close"), "{}", refused.head);
    // Where no length is told, it is refused as soon as there is one byte too many; the end of the chunk never comes.
    for path in [MESSAGES, "/api/v1/app"] {
        let head = place.head("POST", path, &[("transfer-encoding", "chunked")]);
        let mut chunk = format!("{:x}\r\n", BODY_MAX + 10).into_bytes();
        chunk.resize(chunk.len() + BODY_MAX + 1, b' ');
        let refused = answer(&place.say(&head, &chunk));
        assert!(refused.is_refusal(413) && refused.head.contains("connection: close"), "{path}: {}", refused.head);
    }
    assert_eq!(place.messages(), 2);
}

#[test]
fn row_heads_that_can_be_read_in_two_ways() {
    let place = Place::start();
    let token = place.server.token();
    let authorization = format!("authorization: Bearer {token}");
    // The body is a request of its own: if the head is taken in another way than it is meant, that one is carried out.
    let inner = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: x\r\n{authorization}\r\ncontent-length: {}\r\n\r\n{}",
        SMALL.len(),
        String::from_utf8_lossy(SMALL)
    );
    let length = inner.len();
    for field in [
        "content-length: -1",
        "content-length: +1",
        "content-length: 0x10",
        "content-length: 1 1",
        "content-length: 99999999999999999999999999",
        "content-length:",
        "content-length: 0\r\ncontent-length: 5",
        "content-length: 0\r\ncontent-length: 0",
        &format!("content-length: 0, {length}"),
        &format!("content-length: {length}\r\ntransfer-encoding: chunked"),
        &format!("transfer-encoding: chunked\r\ncontent-length: {length}"),
        &format!("transfer-encoding: chunked\r\nContent-Length : {length}"),
        "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: identity",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: xchunked",
        "transfer-encoding:\u{b}chunked",
        "transfer-encoding : chunked",
        "x: a\n",
        "x: a\nx-other: b",
        "x: a\r\n folded",
        "x: a\r\n\tfolded",
        "x: a\0b",
        "x: a\rb",
        "x\0: a",
        "x\r: a",
        "x y: a",
        ": a",
        "no colon",
    ] {
        let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: x\r\n{authorization}\r\n{field}\r\n\r\n");
        let heard = place.say(&head, inner.as_bytes());
        assert!(heard.starts_with(b"HTTP/1.1 400 "), "{field:?}: {}", String::from_utf8_lossy(&heard));
        let answers = heard.windows(9).filter(|window| window == b"HTTP/1.1 ").count();
        assert_eq!(answers, 1, "{field:?}: what stood behind it was taken for a request");
    }
    for line in [
        format!("GET {MESSAGES} HTTP/1.1\nhost: x\n{authorization}\n\n"),
        format!("GET {MESSAGES} HTTP/1.1\r\nhost: x\r\n{authorization}\n\r\n"),
        format!("GET {MESSAGES} HTTP/1.1\r\nhost: x\r\n{authorization}\r\n\n"),
        format!("\nGET {MESSAGES} HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("GET  {MESSAGES} HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("GET {MESSAGES} HTTP/3.7\r\nhost: x\r\n\r\n"),
        format!("GET {MESSAGES}\r\n\r\n"),
        format!("GET {MESSAGES}\0 HTTP/1.1\r\nhost: x\r\n\r\n"),
    ] {
        let heard = place.say(&line, b"");
        assert!(heard.starts_with(b"HTTP/1.1 400 "), "{line:?}: {}", String::from_utf8_lossy(&heard));
    }
    assert_eq!(place.messages(), 0);
}

#[test]
fn row_lengths_that_lie() {
    let place = Place::start();
    // Less than comes: what is left over is no request, and its sender hears so.
    let head = place.head("POST", MESSAGES, &[("content-length", &(SMALL.len() - 1).to_string())]);
    let heard = String::from_utf8(place.say(&head, SMALL)).expect("text");
    assert!(heard.starts_with("HTTP/1.1 422") && heard.contains("HTTP/1.1 400"), "{heard}");
    // More than comes.
    let head = place.head("POST", MESSAGES, &[("content-length", &(SMALL.len() + 1).to_string())]);
    let heard = place.say_all(&head, SMALL);
    assert!(heard.is_empty() || answer(&heard).is_refusal(400), "{}", String::from_utf8_lossy(&heard));
    // Chunks that are not what they say.
    for body in ["5\r\n{}\r\n0\r\n\r\n", "2\n{}\r\n0\r\n\r\n", "-2\r\n{}\r\n0\r\n\r\n", "2;\n{}\r\n0\r\n\r\n", "zz\r\n"]
    {
        let head = place.head("POST", MESSAGES, &[("transfer-encoding", "chunked")]);
        let heard = place.say_all(&head, body.as_bytes());
        assert!(heard.is_empty() || answer(&heard).is_refusal(400), "{body:?}: {}", String::from_utf8_lossy(&heard));
    }
    assert_eq!(place.messages(), 0);
    // Two that follow each other in one piece are two.
    let length = SMALL.len().to_string();
    let first = place.head("POST", MESSAGES, &[("content-length", &length)]);
    let chunked = place.head("POST", MESSAGES, &[("transfer-encoding", "chunked"), ("connection", "close")]);
    let chunks = format!("{:x};a=b\r\n{}\r\n0\r\nx: y\r\n\r\n", SMALL.len(), String::from_utf8_lossy(SMALL));
    let heard = place.say(&first, &[SMALL, chunked.as_bytes(), chunks.as_bytes()].concat());
    let heard = String::from_utf8(heard).expect("text");
    assert_eq!(heard.matches("HTTP/1.1 202").count(), 2, "{heard}");
    assert_eq!(place.messages(), 2);
}

#[test]
fn row_compressed_bodies() {
    let place = Place::start();
    for coding in ["gzip", "br", "zstd", "deflate", "GZIP", "identity, gzip"] {
        for path in [MESSAGES, "/api/v1/app"] {
            let refused = place.ask("POST", path, &[("content-encoding", coding)], SMALL);
            assert!(refused.is_refusal(415), "{coding}: {} {}", refused.status, refused.text());
        }
    }
    assert_eq!(place.ask("POST", MESSAGES, &[("content-encoding", "identity")], SMALL).status, 202);
    assert_eq!(place.messages(), 1);
}

#[test]
fn row_methods_media_and_expectations() {
    let place = Place::start();
    for (method, path) in [
        ("DELETE", MESSAGES),
        ("PUT", "/api/v1/app"),
        ("TRACE", MESSAGES),
        ("TRACE", "/api/v1/health"),
        ("CONNECT", "/api/v1/health"),
        ("BREW", MESSAGES),
        ("POST", "/openapi.json"),
    ] {
        let refused = place.ask(method, path, &[], b"");
        assert!(refused.is_refusal(405) && refused.head.contains("allow: "), "{method} {path}: {}", refused.head);
        assert!(!refused.text().contains("Bearer"), "{method} {path} echoes");
    }
    for media in
        ["text/plain", "application/xml", "multipart/form-data", "application/x-www-form-urlencoded", "json", ""]
    {
        let refused = place.ask("POST", MESSAGES, &[("content-type", media)], SMALL);
        assert!(refused.is_refusal(415), "{media:?}: {}", refused.status);
    }
    // Whoever asks whether to go on is answered: yes, or why not.
    let length = SMALL.len().to_string();
    let expecting = [("expect", "100-continue"), ("content-length", &*length), ("connection", "close")];
    let mut stream = place.connect();
    stream.write_all(place.head("POST", MESSAGES, &expecting).as_bytes()).expect("it listens");
    let mut told = [0; CONTINUE.len()];
    stream.read_exact(&mut told).expect("an answer");
    assert_eq!(told, *CONTINUE);
    stream.write_all(SMALL).expect("it listens");
    assert_eq!(answer(&read_to_end(&mut stream)).status, 202);
    let too_long = (BODY_MAX + 1).to_string();
    let expecting = [("expect", "100-continue"), ("content-length", &*too_long)];
    assert!(answer(&place.say(&place.head("POST", MESSAGES, &expecting), b"")).is_refusal(413));
}
