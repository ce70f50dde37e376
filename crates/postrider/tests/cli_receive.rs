//! `postrider receive`: verifies, shows and fails as it is told.

mod support;

use postrider::clock;
use postrider_signature::{Secret, SigningKey, sign};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};
use support::command::{ended, folder, postrider, run};

/// Ends with the test, however that ends.
struct Receiver {
    child: Child,
    address: String,
}

impl Receiver {
    fn start(folder: &Path, flags: &[&str], stdout: Stdio) -> Self {
        let mut child = postrider(folder, &[&["receive", "--listen", "127.0.0.1:0"][..], flags].concat())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("a line");
        let address =
            line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
        Self { child, address }
    }

    fn post(&self, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        let length = body.len();
        write!(
            stream,
            "POST /in HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer.lines().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_receiver_verifies_shows_and_fails_as_told() {
    let folder = folder();
    let secret = Secret::from_bytes(&[7; 24]).expect("long enough");
    let body = "{\"order\":42,\"note\":\"\x1b[31m\"}".replace('\x1b', "\\u001b");
    let now = clock::now().as_millis() / 1000;
    let signature = sign(&[SigningKey::new(&secret)], "msg_1", now, body.as_bytes());
    let headers = |prefix: &str| {
        format!(
            "{prefix}-id: msg_1\r\n{prefix}-timestamp: {now}\r\n{prefix}-signature: {signature}\r\nwebhook-attempt: 3\r\n"
        )
    };
    let mut receiver =
        Receiver::start(folder.path(), &["--secret", &secret.reveal(), "--fail-first", "1"], Stdio::piped());
    assert_eq!(receiver.post(&headers("webhook"), &body), "HTTP/1.1 503 Service Unavailable");
    assert_eq!(receiver.post(&headers("svix"), &body), "HTTP/1.1 204 No Content");
    assert_eq!(receiver.post(&headers("webhook"), "forged \x1b[31m"), "HTTP/1.1 204 No Content");
    assert_eq!(receiver.post("", ""), "HTTP/1.1 204 No Content");
    receiver.child.kill().expect("killed");
    let mut shown = String::new();
    receiver.child.stdout.take().expect("piped").read_to_string(&mut shown).expect("text");
    for expected in [
        "/in  msg_1  attempt 3  signature ok  -> 503\n{\n  \"order\": 42,\n  \"note\": \"\\u001b[31m\"\n}\n",
        "/in  msg_1  attempt 3  signature ok  -> 204\n",
        "/in  msg_1  attempt 3  SIGNATURE WRONG: no signature matches  -> 204\nforged \\u{1b}[31m\n",
        "/in  no id  SIGNATURE WRONG: ",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    assert!(!shown.contains('\x1b'));
}

#[test]
fn the_receiver_ends_quietly_when_nobody_reads_it_any_more() {
    let folder = folder();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut receiver = Receiver::start(folder.path(), &["--quiet"], writer.into());
    drop(reader);
    // A process that another test starts at this moment may hold the other end of the pipe, for as long as that takes.
    let ended = loop {
        if let Some(ended) = receiver.child.try_wait().expect("a child of ours") {
            break ended;
        }
        let _ = receiver.try_post("/in");
    };
    assert_eq!(ended.code(), Some(0));
}

impl Receiver {
    /// What comes back until the connection ends, however it ends; `WouldBlock` if it has not after a while.
    fn try_post(&self, path: &str) -> (String, Result<(), ErrorKind>) {
        let begun = Instant::now();
        let mut answer = Vec::new();
        let ended = TcpStream::connect(&self.address).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n");
            stream.write_all(format!("{head}{{}}").as_bytes())?;
            let mut piece = [0; 1024];
            loop {
                match stream.read(&mut piece)? {
                    0 => return Ok(()),
                    count => answer.extend(&piece[..count]),
                }
                if begun.elapsed() > Duration::from_secs(2) {
                    return Err(ErrorKind::WouldBlock.into());
                }
            }
        });
        (String::from_utf8_lossy(&answer).into_owned(), ended.map_err(|error| error.kind()))
    }
}

#[test]
fn the_receiver_fails_by_its_script() {
    use ErrorKind::{ConnectionReset, WouldBlock};
    let folder = folder();
    let script = r#"
        [[rule]]
        path = "/hang"
        do = "hang"
        [[rule]]
        path = "/reset"
        do = "reset"
        [[rule]]
        path = "/drip"
        do = "drip"
        every = "100ms"
        [[rule]]
        path = "/seconds"
        count = 1
        status = 429
        retry_after = "5s"
        body = "later"
        [[rule]]
        path = "/date"
        status = 503
        retry_after = "5s"
        retry_after_form = "date"
        [[rule]]
        path = "/over"
        until = "1ms"
        status = 500
    "#;
    fs::write(folder.path().join("faults.toml"), script).expect("written");
    let mut receiver = Receiver::start(folder.path(), &["--script", "faults.toml", "--json"], Stdio::piped());
    assert_eq!(receiver.try_post("/hang"), (String::new(), Err(WouldBlock)), "no answer");
    assert_eq!(receiver.try_post("/reset"), (String::new(), Err(ConnectionReset)), "broken off");
    let (dripped, ended) = receiver.try_post("/drip");
    assert!(dripped.starts_with("HTTP/1.1 200 ") && ended == Err(WouldBlock), "{dripped}");
    assert!(dripped.matches("\r\n.\r\n").count() >= 3, "byte by byte: {dripped}");
    let (first, ended) = receiver.try_post("/seconds");
    assert!(first.starts_with("HTTP/1.1 429 ") && first.contains("retry-after: 5\r\n"), "{first}");
    assert!(first.ends_with("\r\n\r\nlater") && ended.is_ok(), "{first}");
    assert!(receiver.try_post("/seconds").0.starts_with("HTTP/1.1 204 "), "only the first one");
    let (dated, _) = receiver.try_post("/date");
    assert!(dated.starts_with("HTTP/1.1 503 ") && dated.contains(" GMT\r\n"), "{dated}");
    assert!(receiver.try_post("/over").0.starts_with("HTTP/1.1 204 "), "its time is over");
    receiver.child.kill().expect("killed");
    let mut shown = String::new();
    receiver.child.stdout.take().expect("piped").read_to_string(&mut shown).expect("text");
    let done: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<_> =
        done.iter().map(|told| (told["do"].as_str().expect("a word"), told["status"].as_u64())).collect();
    let expected = [
        ("hang", None),
        ("reset", None),
        ("drip", Some(200)),
        ("answer", Some(429)),
        ("answer", Some(204)),
        ("answer", Some(503)),
        ("answer", Some(204)),
    ];
    assert_eq!(told, expected);
    assert_eq!(done[0]["body"], json!({}));
}

#[test]
fn a_taken_port_is_told_in_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, _, stderr) = ended(&run(folder().path(), &["receive", "--listen", &address]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("listening on {address}")) && stderr.lines().count() == 1, "{stderr}");
}
