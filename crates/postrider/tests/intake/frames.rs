//! The row of those who speak HTTP/2 and mean ill: frames that no library would send, as many as it takes.
//!
//! For each, what the server holds is measured while it lasts, and it must end: by the server's word (GOAWAY) or its
//! hanging up, or because it stops reading what nobody takes the answers to.

use crate::{
    caller::{MESSAGES, PATIENCE, Place, connect},
    crowds::{memory, serve_beside},
};
use postrider::http::server::Limits;
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
/// The method, as HPACK numbers it.
const POST: u8 = 0x83;
const ENHANCE_YOUR_CALM: u32 = 11;
const REFUSED_STREAM: u32 = 7;
/// What a flood may make the server hold, in KiB: far less than was sent, far more than is noise.
const HELD_MAX: u64 = 24 * 1024;

#[derive(Debug, PartialEq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn number(&self, at: usize) -> u32 {
        self.payload.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().expect("four")))
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a request, in HPACK without a table.
fn request(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(4, path), (1, "x")] {
        block.extend([name, u8::try_from(value.len()).expect("a short value")]);
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// A field with a name of its own, beside the table.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        // Seven bits and the rest in groups of seven, the lowest first.
        let mut length = text.len();
        if length < 127 {
            block.push(u8::try_from(length).expect("it is short"));
        } else {
            block.push(127);
            length -= 127;
            while length >= 128 {
                block.push(0x80 | u8::try_from(length % 128).expect("seven bits"));
                length /= 128;
            }
            block.push(u8::try_from(length).expect("seven bits"));
        }
        block.extend_from_slice(text.as_bytes());
    }
    block
}

/// The `number`th stream that a client opens.
fn stream(number: u32) -> u32 {
    number * 2 + 1
}

struct Talk {
    wire: TcpStream,
    unread: Vec<u8>,
}

enum Heard {
    Frame(Frame),
    Nothing,
    End,
}

impl Talk {
    fn open(address: SocketAddr) -> Self {
        let mut wire = connect(address);
        wire.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("it listens");
        wire.write_all(&frame(SETTINGS, 0, 0, &[])).expect("it listens");
        Self { wire, unread: Vec::new() }
    }

    fn say(&mut self, bytes: &[u8]) -> bool {
        self.wire.write_all(bytes).is_ok()
    }

    /// The next frame, if it comes within this time.
    fn hear(&mut self, within: Duration) -> Heard {
        self.wire.set_read_timeout(Some(within.max(Duration::from_millis(1)))).expect("a socket");
        loop {
            if let Some(&[a, b, c, kind, flags]) = self.unread.first_chunk::<5>() {
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                if self.unread.len() >= 9 + length {
                    let whole: Vec<u8> = self.unread.drain(..9 + length).collect();
                    let stream = u32::from_be_bytes(whole[5..9].try_into().expect("four"));
                    return Heard::Frame(Frame { kind, flags, stream, payload: whole[9..].to_vec() });
                }
            }
            let mut piece = [0; 16 * 1024];
            match self.wire.read(&mut piece) {
                Ok(0) => return Heard::End,
                Ok(count) => self.unread.extend_from_slice(&piece[..count]),
                Err(fault) if fault.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
    }

    /// The frame that is wanted, which must come.
    fn await_frame(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            match self.hear(PATIENCE) {
                Heard::Frame(frame) if wanted(&frame) => return frame,
                Heard::Frame(_) => {}
                Heard::Nothing => panic!("it did not come within {PATIENCE:?}"),
                Heard::End => panic!("the server hung up before"),
            }
        }
    }

    /// Goes on with this until the server ends it. The reason in its GOAWAY, if that reached us, and how often it was said.
    fn flood(mut self, times: u32, mut more: impl FnMut(u32) -> Vec<u8>) -> (Option<u32>, u32) {
        let mut reason = None;
        let mut said = times;
        for number in 0..times {
            if !self.say(&more(number)) {
                said = number;
                break;
            }
            if let Heard::Frame(frame) = self.hear(Duration::ZERO)
                && frame.kind == GOAWAY
            {
                reason = Some(frame.number(4));
            }
        }
        let start = Instant::now();
        loop {
            match self.hear(PATIENCE) {
                Heard::Frame(frame) if frame.kind == GOAWAY => reason = Some(frame.number(4)),
                Heard::Frame(_) => assert!(start.elapsed() < PATIENCE, "it goes on for {PATIENCE:?}"),
                Heard::Nothing => panic!("it did not hang up within {PATIENCE:?}"),
                Heard::End => return (reason, said),
            }
        }
    }
}

/// The server is still there for others.
fn is_well(place: &Place) {
    assert_eq!(place.get("/api/v1/health").status, 204);
    let mut talk = Talk::open(place.address());
    assert!(talk.say(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &request("/api/v1/health"))));
    talk.await_frame(|frame| frame.kind == HEADERS && frame.stream == 1);
}

#[test]
fn row_rapid_reset() {
    let place = Place::start();
    let before = memory(place.server.pid());
    let talk = Talk::open(place.address());
    let (reason, said) = talk.flood(2_000, |round| {
        let each = (0..100).flat_map(|number| {
            let stream = stream(round * 100 + number);
            let open = frame(HEADERS, END_STREAM | END_HEADERS, stream, &request("/api/v1/app"));
            [open, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
        });
        each.collect()
    });
    let held = memory(place.server.pid()).saturating_sub(before);
    println!(
        "rapid reset: ended by {reason:?} after at most {} streams, {held} KiB held",
        said.saturating_add(1) * 100
    );
    assert!(reason.is_none_or(|reason| reason == ENHANCE_YOUR_CALM), "{reason:?}");
    assert!(held < HELD_MAX, "{held} KiB");
    is_well(&place);
}

/// Reset slowly enough not to be noticed, requests are dropped with their streams. Each of these is a message whose body
/// does not come, and has one of 256 places at the gate for as long as it runs.
#[test]
fn row_patient_reset() {
    let place = Place::start();
    let before = memory(place.server.pid());
    let mut talk = Talk::open(place.address());
    let mut head = request(MESSAGES);
    head[0] = POST;
    head.extend(field("authorization", &format!("Bearer {}", place.server.token())));
    for number in 0..3_000 {
        let (stream, ping) = (stream(number), u64::from(number).to_be_bytes());
        assert!(talk.say(&frame(HEADERS, END_HEADERS, stream, &head)));
        assert!(talk.say(&frame(PING, 0, 0, &ping)));
        talk.await_frame(|frame| frame.kind == PING && frame.flags == ACK && frame.payload == ping);
        assert!(talk.say(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())), "stream {number}");
    }
    let held = memory(place.server.pid()).saturating_sub(before);
    println!("patient reset: 3000 streams on one connection, {held} KiB held");
    assert!(held < HELD_MAX, "{held} KiB");
    assert_eq!(place.message(r#"{"eventType":"a","payload":{}}"#).status, 202, "their places are free again");
    is_well(&place);
}

#[test]
fn row_more_streams_than_may_be() {
    let limits = Limits { request_time_max: PATIENCE * 2, ..Limits::default() };
    let address = serve_beside(limits, Ipv4Addr::LOCALHOST.into());
    let mut talk = Talk::open(address);
    // It says how many, before it can have seen any.
    let told = talk.await_frame(|frame| frame.kind == SETTINGS && frame.flags == 0);
    let streams_max = told
        .payload
        .chunks(6)
        .find(|setting| setting[..2] == [0, 3])
        .map(|setting| u32::from_be_bytes(setting[2..].try_into().expect("four")));
    assert_eq!(streams_max, Some(256));
    for number in 0..300 {
        assert!(talk.say(&frame(HEADERS, END_STREAM | END_HEADERS, stream(number), &request("/hang"))));
    }
    let refused = talk.await_frame(|frame| frame.kind == RST_STREAM && frame.number(0) == REFUSED_STREAM);
    assert_eq!(refused.stream, stream(256), "the first one too many");
}

#[test]
fn row_continuation_flood() {
    let place = Place::start();
    let before = memory(place.server.pid());
    for (name, piece) in [("empty", 0), ("short", 16), ("long", 16 * 1024)] {
        let mut talk = Talk::open(place.address());
        // A head that never ends.
        assert!(talk.say(&frame(HEADERS, END_STREAM, 1, &request("/api/v1/health"))));
        // Each a literal of a name and a value of no length, or part of a long one.
        let block = frame(CONTINUATION, 0, 1, &vec![0; piece]);
        let (reason, said) = talk.flood(200_000, |_| block.clone());
        let held = memory(place.server.pid()).saturating_sub(before);
        println!("continuation flood, {name} frames: ended by {reason:?} after at most {said}, {held} KiB held");
        assert!(said < 200_000, "{name}: it takes whatever comes");
        assert!(held < HELD_MAX, "{name}: {held} KiB");
        is_well(&place);
    }
}

/// One long field in the table, and a head that names it again and again: little on the wire, much in memory.
#[test]
fn row_header_bomb() {
    let place = Place::start();
    let before = memory(place.server.pid());
    let mut talk = Talk::open(place.address());
    for round in 0..200 {
        let mut block = request("/api/v1/health");
        // A literal with a new name that goes into the table, and 10,000 times the newest entry of the table.
        block.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
        block.extend([b'v'; 4_000]);
        block.extend([0xbe; 10_000]);
        if !talk.say(&frame(HEADERS, END_STREAM | END_HEADERS, stream(round), &block)) {
            break;
        }
    }
    // It may answer each with 431, reset them, or hang up; what it may not is to unfold them.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        match talk.hear(Duration::from_millis(200)) {
            Heard::Frame(frame) => {
                assert!(matches!(frame.kind, HEADERS | RST_STREAM | GOAWAY | SETTINGS | 0 | 8), "{frame:?}")
            }
            Heard::Nothing | Heard::End => break,
        }
    }
    let held = memory(place.server.pid()).saturating_sub(before);
    println!("header bomb: 200 heads of 40 MB unfolded, {held} KiB held");
    assert!(held < HELD_MAX, "{held} KiB");
    is_well(&place);
}

/// Whoever asks for answers and never takes them is not read any further.
#[test]
fn row_pings_and_settings_that_nobody_takes_the_answers_to() {
    let place = Place::start();
    for (name, said) in [("pings", frame(PING, 0, 0, &[7; 8])), ("settings", frame(SETTINGS, 0, 0, &[]))] {
        let before = memory(place.server.pid());
        let mut talk = Talk::open(place.address());
        talk.wire.set_write_timeout(Some(Duration::from_secs(2))).expect("a socket");
        let flood = said.repeat(1_000);
        let mut sent = 0;
        while sent < 64 * 1024 * 1024 {
            match talk.wire.write(&flood) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        let held = memory(place.server.pid()).saturating_sub(before);
        println!("{name} without reading: {} KiB sent, {held} KiB held", sent / 1024);
        assert!(held < HELD_MAX, "{name}: {held} KiB");
        is_well(&place);
    }
}

#[test]
fn row_pings_do_not_keep_an_idle_connection() {
    let limits = Limits {
        head_time_max: Duration::from_millis(500),
        idle_time_max: Duration::from_secs(1),
        ..Limits::default()
    };
    let address = serve_beside(limits, Ipv4Addr::LOCALHOST.into());
    let mut talk = Talk::open(address);
    // It is idle from its answer on, and that comes later than this.
    let start = Instant::now();
    assert!(talk.say(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &request("/"))));
    talk.await_frame(|frame| frame.kind == HEADERS);
    while start.elapsed() < PATIENCE {
        match talk.hear(Duration::from_millis(50)) {
            Heard::End => return assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed()),
            Heard::Frame(_) | Heard::Nothing => {
                let _ = talk.say(&frame(PING, 0, 0, &[7; 8]));
            }
        }
    }
    panic!("it lives on pings");
}
