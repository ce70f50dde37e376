//! All behaviours, and what is to become of a delivery at each.

use super::receiver::{Act, OK, Then};
use super::secure::{self, Http2, Secure};
use Then::{Close, Drip, Hold, Repeat, Reset};

pub struct Behaviour {
    pub name: &'static str,
    pub act: Act,
    pub expected: Expected,
    /// Redirects are followed there, as far as they ever are.
    pub follows: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// 0: no answer.
    pub status: u16,
    pub class: &'static str,
    /// One of these, where what is seen first is the machine's choice.
    pub rules: &'static [&'static str],
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After so many attempts.
    Delivered(u32),
    /// Given up at once.
    Refused,
    /// Given up when all attempts were used.
    Exhausted,
    /// Put off for as long as a receiver may ask for.
    PutOff,
}

const DELIVERED: Expected = answered(200, "delivered", &["success"], End::Delivered(1));
const CONNECTION: Expected = unanswered("transient", &["connection"]);
const TIMEOUT: Expected = unanswered("transient", &["timeout"]);
const NOT_HTTP: Expected = unanswered("transient", &["not-http"]);
const HANDSHAKE: Expected = unanswered("transient", &["handshake"]);

const fn answered(status: u16, class: &'static str, rules: &'static [&'static str], end: End) -> Expected {
    Expected { status, class, rules, end }
}

const fn unanswered(class: &'static str, rules: &'static [&'static str]) -> Expected {
    Expected { status: 0, class, rules, end: End::Exhausted }
}

const fn refused(status: u16, rules: &'static [&'static str]) -> Expected {
    answered(status, "permanent", rules, End::Refused)
}

const fn failed(status: u16) -> Expected {
    answered(status, "transient", &["server-error"], End::Exhausted)
}

#[rustfmt::skip]
pub fn behaviours() -> Vec<Behaviour> {
    let mut all = vec![
        of("refused", Act::Refuse, CONNECTION),
        of("black-hole", Act::BlackHole, TIMEOUT),
        of("no-such-name", Act::NoName("no-such-name.invalid"), unanswered("transient", &["dns", "timeout"])),
        of("never-reads", Act::NeverRead, TIMEOUT),
        of("reset-unread", Act::ResetUnread, CONNECTION),
        of("closed-unread", Act::CloseUnread, CONNECTION),
        of("reset-in-request", Act::ResetInRequest, CONNECTION),
        of("refuses-unread", Act::SayUnread(text("HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")), refused(413, &["client-error"])),
        of("answers-when-we-left", Act::SayWhenLeft(OK.to_vec()), TIMEOUT),
        of("closes-idle", Act::CloseIdle, DELIVERED),
        of("closes-on-second", Act::CloseOnSecond, DELIVERED),
        of("says-more", Act::SayMore, DELIVERED),
        of("flaps", Act::ByTry(text("HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"), OK.to_vec()), answered(200, "delivered", &["success"], End::Delivered(2))),
    ];
    all.extend(unfinished());
    all.extend(malformed());
    all.extend(endless());
    all.extend(statuses());
    all.extend(redirects());
    all.extend(tls());
    all.extend(http2());
    all
}

/// Answers that end too early, or not at all.
#[rustfmt::skip]
fn unfinished() -> Vec<Behaviour> {
    vec![
        say("never-answers", "", Hold, TIMEOUT),
        say("closed-unanswered", "", Close, CONNECTION),
        say("reset-unanswered", "", Reset, CONNECTION),
        say("closed-in-head", "HTTP/1.1 200 OK\r\ncontent-le", Close, CONNECTION),
        say("reset-in-head", "HTTP/1.1 200 OK\r\ncontent-le", Reset, CONNECTION),
        say("head-stops", "HTTP/1.1 200 OK\r\ncontent-le", Hold, TIMEOUT),
        say("status-line-dripped", "", Drip(b"HTTP"), unanswered("transient", &["timeout", "not-http"])),
        say("head-dripped", "HTTP/1.1 200 OK\r\nx: ", Drip(b"a"), TIMEOUT),
        say("interim-dripped", "", Drip(b"HTTP/1.1 103 Early Hints\r\n\r\n"), TIMEOUT),
        say("body-dripped", "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", Drip(b"a"), DELIVERED),
        say("error-dripped", "HTTP/1.1 500 No\r\ncontent-length: 100000\r\n\r\n", Drip(b"a"), failed(500)),
        say("body-never-starts", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", Hold, DELIVERED),
        say("body-closed", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", Close, DELIVERED),
        say("body-reset", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", Reset, DELIVERED),
        say("body-longer-than-said", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokokok", Hold, DELIVERED),
        say("error-body-closed", "HTTP/1.1 500 No\r\ncontent-length: 10\r\n\r\nabc", Close, failed(500)),
        say("http-1.0", "HTTP/1.0 200 OK\r\n\r\nhello", Close, DELIVERED),
    ]
}

#[rustfmt::skip]
fn malformed() -> Vec<Behaviour> {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}");
    let chunked = |rest: &str| ok(&format!("transfer-encoding: chunked\r\n\r\n{rest}"));
    let headers: String = (0..100_000).map(|n| format!("x-{n}: y\r\n")).collect();
    vec![
        say("http-0.9", "<html>hello</html>", Close, NOT_HTTP),
        say("garbage", "\0\x01\x02\x03 nothing that anybody would say\r\n\r\n", Hold, NOT_HTTP),
        say("tls-on-plain-port", "\x15\x03\x03\0\x02\x02\x28", Hold, NOT_HTTP),
        say("http2-on-plain-port", "\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64", Hold, NOT_HTTP),
        say("smtp", "220 mail.example ESMTP\r\n", Hold, NOT_HTTP),
        say("status-099", "HTTP/1.1 099 Odd\r\n\r\n", Hold, NOT_HTTP),
        say("status-600", "HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n", Hold, failed(600)),
        say("status-1000", "HTTP/1.1 1000 Odd\r\n\r\n", Hold, NOT_HTTP),
        say("status-word", "HTTP/1.1 OK\r\n\r\n", Hold, NOT_HTTP),
        say("icy", "ICY 200 OK\r\n\r\n", Hold, NOT_HTTP),
        say("header-of-a-mebibyte", ok(&format!("x: {}\r\n\r\n", "a".repeat(1 << 20))), Hold, NOT_HTTP),
        say("100-headers", ok(&format!("{}content-length: 0\r\n\r\n", "x: y\r\n".repeat(99))), Hold, DELIVERED),
        say("101-headers", ok(&format!("{}content-length: 0\r\n\r\n", "x: y\r\n".repeat(100))), Hold, NOT_HTTP),
        say("100000-headers", ok(&format!("{headers}\r\n")), Hold, NOT_HTTP),
        say("nul-in-header", ok("x: a\0b\r\n\r\n"), Hold, NOT_HTTP),
        say("folded-header", ok("x: a\r\n b\r\n\r\n"), Hold, NOT_HTTP),
        say("space-before-colon", ok("content-length : 2\r\n\r\nok"), Hold, NOT_HTTP),
        say("bare-line-feeds", "HTTP/1.1 200 OK\ncontent-length: 2\n\nok", Hold, DELIVERED),
        say("length-with-plus", ok("content-length: +5\r\n\r\nhello"), Hold, NOT_HTTP),
        say("length-negative", ok("content-length: -5\r\n\r\nhello"), Hold, NOT_HTTP),
        say("length-twice", ok("content-length: 5\r\ncontent-length: 6\r\n\r\nhello"), Hold, NOT_HTTP),
        say("length-1e20", ok("content-length: 100000000000000000000\r\n\r\n"), Hold, NOT_HTTP),
        say("length-and-chunks", ok("content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"), Hold, DELIVERED),
        say("chunk-bomb", chunked("ffffffffffffffff\r\nabc"), Hold, DELIVERED),
        say("chunk-overflow", chunked("fffffffffffffffff\r\nabc"), Hold, DELIVERED),
        say("chunk-of-words", chunked("zz\r\nabc"), Hold, DELIVERED),
        say("gzip-bomb", ok(&format!("content-encoding: gzip\r\ncontent-length: 1048576\r\n\r\n\x1f{}", "\0".repeat(1 << 20))), Hold, DELIVERED),
    ]
}

#[rustfmt::skip]
fn endless() -> Vec<Behaviour> {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}");
    vec![
        say("endless-100", "", Repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), NOT_HTTP),
        say("endless-103", "", Repeat(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"), NOT_HTTP),
        say("endless-header-line", ok("x: "), Repeat(b"aaaaaaaaaaaaaaaa"), NOT_HTTP),
        say("endless-headers", ok(""), Repeat(b"x: y\r\n"), NOT_HTTP),
        say("endless-body-by-length", ok("content-length: 1000000000000\r\n\r\n"), Repeat(b"aaaaaaaaaaaaaaaa"), DELIVERED),
        say("endless-chunks", ok("transfer-encoding: chunked\r\n\r\n"), Repeat(b"10\r\naaaaaaaaaaaaaaaa\r\n"), DELIVERED),
        say("endless-chunk-extension", ok("transfer-encoding: chunked\r\n\r\n1;"), Repeat(b"aaaaaaaaaaaaaaaa"), DELIVERED),
        say("endless-trailers", ok("transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"), Repeat(b"x: y\r\n"), DELIVERED),
        say("endless-error", "HTTP/1.1 500 No\r\n\r\n", Repeat(b"aaaaaaaaaaaaaaaa"), failed(500)),
        say("endless-answers", "", Repeat(OK), DELIVERED),
    ]
}

#[rustfmt::skip]
fn statuses() -> Vec<Behaviour> {
    let busy = |value: &str| format!("HTTP/1.1 429 Busy\r\nretry-after: {value}\r\ncontent-length: 0\r\n\r\n");
    let at_once = answered(429, "transient", &["asked-to-wait"], End::Exhausted);
    let put_off = answered(429, "transient", &["asked-to-wait"], End::PutOff);
    vec![
        say("three-hints", format!("{}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(3)), Hold, DELIVERED),
        say("101", "HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", Hold, refused(101, &["protocol-switch"])),
        say("204-with-body", "HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello", Hold, answered(204, "delivered", &["success"], End::Delivered(1))),
        say("304", "HTTP/1.1 304 No\r\ncontent-length: 5\r\n\r\nhello", Hold, refused(304, &["redirect"])),
        say("999", "HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n", Hold, failed(999)),
        say("busy", "HTTP/1.1 429 Busy\r\ncontent-length: 0\r\n\r\n", Hold, at_once),
        say("busy-negative", busy("-5"), Hold, at_once),
        say("busy-garbage", busy("soon, \u{221e}"), Hold, at_once),
        say("busy-in-1969", busy("Wed, 31 Dec 1969 23:59:59 GMT"), Hold, at_once),
        say("busy-until-9999", busy("Fri, 31 Dec 9999 23:59:59 GMT"), Hold, put_off),
        say("busy-for-1e30", busy("1000000000000000000000000000000"), Hold, put_off),
    ]
}

#[rustfmt::skip]
fn redirects() -> Vec<Behaviour> {
    let to = |location: &str| format!("HTTP/1.1 308 Go\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    let led_astray = refused(308, &["redirect-refused"]);
    let following = |name, location: &str| Behaviour { follows: true, ..say(name, to(location), Hold, led_astray) };
    vec![
        say("redirect-unasked", to("http://169.254.169.254/"), Hold, refused(308, &["redirect"])),
        following("redirect-to-itself", "/"),
        following("redirect-in-circles", "?again"),
        following("redirect-to-private", "http://169.254.169.254/latest/meta-data/"),
        following("redirect-to-a-file", "file:///etc/passwd"),
        following("redirect-too-long", &format!("/{}", "a".repeat(10_000))),
        following("redirect-to-nowhere", ""),
    ]
}

#[rustfmt::skip]
fn tls() -> Vec<Behaviour> {
    let certificate = |class| unanswered(class, &["certificate"]);
    let greeted = |said: &[u8], then| Act::Tls(Secure::NoHandshake(said.to_vec(), then));
    let secret = |said: &str, then| Act::Tls(Secure::Fine(text(said), then));
    vec![
        of("tls-expired", Act::Tls(Secure::Expired), certificate("transient")),
        of("tls-not-yet-valid", Act::Tls(Secure::NotYetValid), certificate("transient")),
        of("tls-wrong-host", Act::Tls(Secure::WrongHost), certificate("ambiguous")),
        of("tls-self-signed", Act::Tls(Secure::SelfSigned), certificate("ambiguous")),
        of("tls-unknown-authority", Act::Tls(Secure::UnknownAuthority), certificate("ambiguous")),
        // In TLS 1.3 we learn of it only after the request.
        of("tls-wants-our-certificate", Act::Tls(Secure::WantsCertificate), unanswered("transient", &["handshake", "connection"])),
        of("tls-stalls", greeted(b"", Hold), TIMEOUT),
        of("tls-plain-http", greeted(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", Hold), HANDSHAKE),
        of("tls-alert", greeted(secure::TLS_HANDSHAKE_FAILURE, Hold), HANDSHAKE),
        of("tls-old-alert", greeted(secure::TLS_PROTOCOL_VERSION, Hold), HANDSHAKE),
        of("tls-1.0", greeted(&secure::tls_1_0_hello(), Hold), HANDSHAKE),
        of("tls-cut", greeted(b"\x16\x03\x03", Close), unanswered("transient", &["connection", "handshake"])),
        of("tls-endless-warnings", greeted(b"", Repeat(secure::TLS_WARNING)), unanswered("transient", &["handshake", "timeout"])),
        of("tls-endless-ciphers", greeted(b"", Repeat(secure::TLS_CHANGE_CIPHER)), unanswered("transient", &["handshake", "timeout"])),
        of("tls-then-cut", Act::Tls(Secure::CutAfterHandshake), CONNECTION),
        of("tls-never-answers", secret("", Hold), TIMEOUT),
        of("tls-then-garbage", secret("nothing that anybody would say\r\n\r\n", Hold), NOT_HTTP),
        of("tls-cut-in-body", secret("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", Close), DELIVERED),
        of("tls-endless-body", secret("HTTP/1.1 200 OK\r\n\r\n", Repeat(b"aaaaaaaaaaaaaaaa")), DELIVERED),
    ]
}

#[rustfmt::skip]
fn http2() -> Vec<Behaviour> {
    let h2 = |name, act, expected| of(name, Act::Tls(Secure::Http2(act)), expected);
    let flooded = unanswered("transient", &["not-http", "connection", "timeout"]);
    vec![
        h2("h2-fine", Http2::Fine, DELIVERED),
        h2("h2-refuses-streams", Http2::RefuseStream, CONNECTION),
        h2("h2-resets-streams", Http2::ResetStream, CONNECTION),
        h2("h2-goes-away", Http2::GoAway, CONNECTION),
        h2("h2-no-window", Http2::NoWindow, TIMEOUT),
        // A request that was sent before this was heard is refused.
        h2("h2-no-streams", Http2::NoStreams, unanswered("transient", &["timeout", "connection"])),
        h2("h2-no-body", Http2::NoBody, DELIVERED),
        h2("h2-garbage", Http2::Garbage, flooded),
        h2("h2-settings-flood", Http2::Flood(secure::SETTINGS), flooded),
        h2("h2-ping-flood", Http2::Flood(secure::PING), flooded),
        h2("h2-window-flood", Http2::Flood(secure::WINDOW_UPDATE), flooded),
        h2("h2-headers-flood", Http2::Flood(secure::HEADERS_WITHOUT_END), flooded),
    ]
}

fn of(name: &'static str, act: Act, expected: Expected) -> Behaviour {
    Behaviour { name, act, expected, follows: false }
}

fn say(name: &'static str, said: impl AsRef<str>, then: Then, expected: Expected) -> Behaviour {
    of(name, Act::Say(text(said.as_ref()), then), expected)
}

fn text(said: &str) -> Vec<u8> {
    said.as_bytes().to_vec()
}
