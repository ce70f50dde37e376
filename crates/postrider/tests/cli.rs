//! The real binary, by itself, against answers that a test makes up, and against a server of ours: what it prints, and
//! how it ends.

mod support;

use postrider::{
    clock,
    config::{Settings, reference},
    ids::IdCodec,
    keyring::Keyring,
    tokens::{Access, Principal, Tokens},
};
use postrider_engine::AppKey;
use postrider_signature::{Secret, SigningKey, sign};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use support::{
    api, eventually,
    receiver::{Answer, Receiver as Subscriber},
    server::Server,
};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

fn postrider(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).current_dir(folder).env_clear().stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    postrider(folder, arguments).output().expect("the binary runs")
}

fn ended(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn wrong_usage_ends_with_2_and_says_why() {
    let folder = folder();
    fs::write(folder.path().join("typo.toml"), "data = \"x\"\nlistne = \"127.0.0.1:1\"\n").expect("written");
    fs::write(folder.path().join("faults.toml"), "[[rule]]\nstatsu = 503\n").expect("written");
    for (arguments, expected) in [
        (&[][..], "Usage: postrider"),
        (&["fly"], "unrecognized subcommand"),
        (&["serve", "--lisen", "x"], "--listen"),
        (&["serve", "--config", "typo.toml"], "unknown setting `listne` (typo.toml, line 2); did you mean `listen`?"),
        (&["serve", "--config", "none.toml"], "could not read none.toml"),
        (
            &["serve", "--retention-payloads", "10"],
            "setting `retention_payloads` (flag --retention-payloads): `10` has no unit",
        ),
        (&["serve", "--retention-attempts", "10"], "setting `retention_attempts`"),
        (&["serve", "--retention-dead-letters", "10"], "setting `retention_dead_letters`"),
        (&["serve", "--allow-subnet", "ten"], "(flag --allow-subnet)"),
        (&["serve", "--https-only=maybe"], "`maybe` is neither"),
        (&["token", "--read-only"], "--app"),
        (&["token", "--expires-in", "5"], "has no unit"),
        (&["send", "--app", "a", "--event-type", "b", "{}"], "postrider token"),
        (&["send", "--token", "t", "--app", "a", "--event-type", "b", "{"], "the payload is not JSON"),
        (&["send", "--token", "t", "--app", "..", "--event-type", "b", "{}"], "`..` is not a name"),
        (
            &["send", "--token", "t", "--url", "ftp://x", "--app", "a", "--event-type", "b", "{}"],
            "must begin with http",
        ),
        (&["schedule", "slak"], "there is no preset `slak`; did you mean `slack`? There are: default, "),
        (&["schedule", "--rules", "{\"maxAttempts\": 0}"], "--rules: retryPolicy.maxAttempts: "),
        (&["schedule", "--rules", "{\"maxTries\": 1}"], "unknown field `maxTries`"),
        (&["schedule", "stripe", "--rules", "\"slack\""], "the rules name the preset `slack` already"),
        (&["schedule", "--app", "shop"], "--endpoint"),
        (&["schedule", "--app", "shop", "--endpoint", "e"], "postrider token"),
        (&["messages", "list", "--app", "shop"], "postrider token"),
        (&["messages", "list", "--app", "shop", "--limit", "0"], "a whole number from 1"),
        (&["messages", "list", "--app", "shop", "--since", "yesterday"], "a span back from now like"),
        (&["dead-letters", "list", "--app", "shop", "--reason", "bored"], "exhausted"),
        (&["dead-letters", "count", "--app", "shop", "--status", "5xx"], "a status from 100 to 599"),
        (&["endpoints", "resume", "--app", "shop", "e", "--deliver", "since"], "--since"),
        (&["endpoints", "resume", "--token", "t", "--app", "shop", "e", "--since", "2h"], "only with --deliver since"),
        (&["replay", "--app", "shop"], "--dead-letters"),
        (&["replay", "--app", "shop", "msg_1"], "--endpoint"),
        (&["replay", "--app", "shop", "msg_1", "--endpoint", "e", "--recover"], "cannot be used with"),
        (&["replay", "--app", "shop", "--recover", "--endpoint", "e"], "--since"),
        (&["replay", "--app", "shop", "--missing", "--since", "2h"], "--endpoint"),
        (&["replay", "--app", "shop", "--bulk", "--endpoint", "e", "--since", "2h", "--reason", "expired"], "--reason"),
        (
            &["replay", "--token", "t", "--app", "a", "--bulk", "--endpoint", "e", "--since", "2h", "--status", "404"],
            "--status 404 with --bulk: write success",
        ),
        (
            &["replay", "--token", "t", "--app", "a", "--dead-letters", "--status", "fail"],
            "--status with --dead-letters: write a status",
        ),
        (&["tasks", "list", "--status", "done"], "finished"),
        (&["api-keys", "create", "--name", "k"], "--scope"),
        (&["api-keys", "create", "--name", "k", "--scope", "fly"], "ingest, read, manage, replay or admin"),
        (&["receive", "--secret", "short"], "--secret"),
        (&["receive", "--status", "99"], "99"),
        (&["receive", "--share", "2"], "above 0 and at most 1"),
        (&["receive", "--hang", "--status", "500"], "cannot be used with"),
        (&["receive", "--script", "typo.toml"], "typo.toml: unknown key `data`; did you mean `"),
        (&["receive", "--script", "faults.toml"], "faults.toml: rule 1: unknown key `statsu`; did you mean `status`?"),
        (&["drill", "--story", "braker"], "there is no story `braker`; did you mean `breaker`?"),
        (&["drill"], "postrider token"),
        (&["alerts", "test"], "postrider token"),
        (&["tail"], "postrider token"),
        (&["tail", "--endpoint", "e"], "--app"),
        (&["completion", "tcsh"], "fish"),
    ] {
        let (code, stdout, stderr) = ended(&run(folder.path(), arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
    }
}

#[test]
fn a_misspelt_variable_is_refused_like_a_misspelt_key() {
    let folder = folder();
    let output = postrider(folder.path(), &["serve"]).env("POSTRIDER_LISTNE", "x").output().expect("the binary runs");
    let (code, _, stderr) = ended(&output);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("variable POSTRIDER_LISTNE") && stderr.contains("`listen`"), "{stderr}");
}

#[test]
fn help_and_version_are_no_failure() {
    for arguments in [&["--help"][..], &["serve", "--help"], &["endpoints", "add", "--help"], &["--version"]] {
        let (code, stdout, _) = ended(&run(folder().path(), arguments));
        assert_eq!(code, Some(0));
        assert!(stdout.contains("postrider"), "{stdout}");
    }
}

#[test]
fn every_setting_that_claims_a_flag_has_it() {
    let (_, help, _) = ended(&run(folder().path(), &["serve", "--help"]));
    let page = reference();
    let flags: Vec<&str> = page.split("flag `").skip(1).filter_map(|rest| rest.split('`').next()).collect();
    assert!(flags.len() > 5, "{flags:?}");
    for flag in flags {
        assert!(help.contains(flag), "{flag} in {help}");
    }
}

#[test]
fn what_talks_to_a_server_can_print_json() {
    for command in [
        "send",
        "schedule",
        "replay",
        "messages list",
        "messages show",
        "messages cancel",
        "messages resend",
        "endpoints add",
        "endpoints list",
        "endpoints secret",
        "endpoints health",
        "endpoints pause",
        "endpoints resume",
        "dead-letters list",
        "dead-letters show",
        "dead-letters count",
        "tasks list",
        "tasks show",
        "tasks cancel",
        "api-keys create",
        "api-keys list",
        "api-keys revoke",
        "api-keys rotate",
        "audit",
        "alerts test",
        "tail",
        "drill",
    ] {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let (code, stdout, _) = ended(&run(folder().path(), &arguments));
        assert_eq!(code, Some(0), "{command}");
        for flag in ["--json", "--url", "--token"] {
            assert!(stdout.contains(flag), "{command}: {stdout}");
        }
    }
}

#[test]
fn arguments_with_escapes_do_not_reach_the_terminal_raw() {
    let (code, _, stderr) = ended(&run(folder().path(), &["token", "--data", "\x1b[31mred"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("\\u{1b}[31mred") && !stderr.contains('\x1b'), "{stderr}");
}

#[test]
fn a_token_needs_the_keys_and_nothing_else() {
    let folder = folder();
    let (code, stdout, stderr) = ended(&run(folder.path(), &["token"]));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("has no keys.toml") && stderr.contains("postrider serve --data"), "{stderr}");
    assert!(!folder.path().join("postrider-data").exists());

    let keyring = Keyring::open_or_create(&folder.path().join("postrider-data")).expect("made");
    let ids = IdCodec::new(*keyring.ids());
    let tokens = Tokens::new(&Settings::defaults().tokens, &keyring, ids.clone()).expect("made");
    let app = AppKey::new(7);
    let id = ids.id_of(app);
    for (arguments, expected) in [
        (&["token"][..], Principal::Environment),
        (&["token", "--data", "./postrider-data", "--expires-in", "1h"], Principal::Environment),
        (&["token", "--app", &id], Principal::Application { app, access: Access::full() }),
        (&["token", "--app", &id, "--read-only"], Principal::Application { app, access: Access::read_only() }),
    ] {
        let (code, stdout, stderr) = ended(&run(folder.path(), arguments));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
        let token = stdout.strip_suffix('\n').expect("one line");
        let read = tokens.verify(token, clock::now()).map(|read| read.principal);
        assert_eq!(read, Ok(expected), "{arguments:?}");
    }
    let (code, _, stderr) = ended(&run(folder.path(), &["token", "--app", "shop"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("`shop` is not the id of an application"), "{stderr}");
}

#[test]
fn a_closed_pipe_is_not_a_panic() {
    let folder = folder();
    Keyring::open_or_create(&folder.path().join("postrider-data")).expect("made");
    for arguments in [&["token"][..], &["--help"], &["schedule"], &["schedule", "--list", "--json"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = postrider(folder.path(), arguments).stdout(writer).output().expect("the binary runs");
        let (code, _, stderr) = ended(&output);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn a_schedule_is_shown_without_a_server() {
    let folder = folder();
    let shown = |arguments: &[&str]| {
        let (code, stdout, stderr) = ended(&run(folder.path(), arguments));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
        stdout
    };
    let preview = |arguments: &[&str]| -> Value {
        serde_json::from_str(&shown(&[arguments, &["--json"]].concat())).expect("JSON")
    };
    assert_eq!(shown(&["schedule"]), shown(&["schedule", "default"]));
    let twilio = shown(&["schedule", "twilio"]);
    assert!(twilio.starts_with("Preset twilio: ") && twilio.contains("   2  ") && twilio.contains('|'), "{twilio}");
    assert!(twilio.contains("At most 2 attempts within "), "{twilio}");

    fs::write(folder.path().join("rules.json"), r#"{"retryPolicy": {"maxAttempts": 3}, "maxInFlight": 2}"#)
        .expect("written");
    for rules in [r#"{"maxAttempts": 3}"#, "@rules.json"] {
        let preview = preview(&["schedule", "stripe", "--rules", rules]);
        assert_eq!(preview["attempts"].as_array().map(Vec::len), Some(3), "{preview}");
    }
    let fixed = r#"{"schedule": {"type": "fixed", "interval": "1h"}, "jitter": "none", "maxAttempts": 4}"#;
    let preview = preview(&["schedule", "--rules", fixed]);
    assert_eq!(preview["attempts"][3]["nominal"], "3h", "{preview}");
    let noted = shown(&["schedule", "--rules", r#"{"maxAttempts": 1}"#]);
    assert!(noted.contains("At most 1 attempt within") && noted.contains("Note: "), "{noted}");

    let list = shown(&["schedule", "--list"]);
    let named = shown(&["schedule", "--list", "--json"]);
    let named: Vec<Value> = named.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(named.len() > 10 && list.lines().count() == named.len() + 1, "{list}");
    assert!(list.lines().all(|line| line.chars().count() < 200), "a line each: {list}");
    for preset in &named {
        let name = preset["name"].as_str().expect("a name");
        assert!(list.lines().any(|line| line.starts_with(name)), "{name}");
        shown(&["schedule", name]);
    }
}

/// Answers each request with the next of `answers`, and hands back what was asked.
fn fake_server(answers: &'static [(&'static str, &'static str)]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = thread::spawn(move || {
        let answer = |(status, body): &(&str, &str)| {
            let (mut stream, _) = listener.accept().expect("a request");
            let request = read_request(&mut stream);
            let length = body.len();
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .expect("answered");
            request
        };
        answers.iter().map(answer).collect()
    });
    (url, asked)
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    let mut length = 0;
    loop {
        let before = request.len();
        reader.read_line(&mut request).expect("a line");
        let line = request[before..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    request + str::from_utf8(&body).expect("text")
}

#[test]
fn send_hands_the_payload_over_as_it_is_and_prints_the_id() {
    let folder = folder();
    fs::write(folder.path().join("order.json"), "{\"b\": 1.50, \"a\":  1}").expect("written");
    for payload in ["{\"b\": 1.50, \"a\":  1}", "@order.json", "-"] {
        let (url, asked) = fake_server(&[("200 OK", "{\"id\":\"app_1\"}"), ("202 Accepted", "{\"id\":\"msg_1\"}")]);
        let arguments = [
            "send",
            "--url",
            &url,
            "--token",
            "secret-token",
            "--app",
            "shop",
            "--event-type",
            "order.paid",
            "--create-app",
            payload,
        ];
        let mut command = postrider(folder.path(), &arguments);
        command.stdin(fs::File::open(folder.path().join("order.json")).expect("opened"));
        let (code, stdout, stderr) = ended(&command.output().expect("the binary runs"));
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "msg_1\n", ""), "{payload}");
        let asked = asked.join().expect("both were asked");
        assert!(asked[0].starts_with("POST /api/v1/app?get_if_exists=true HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(asked[1].starts_with("POST /api/v1/app/shop/msg HTTP/1.1\r\n"), "{}", asked[1]);
        assert!(asked[1].contains("authorization: Bearer secret-token\r\n"), "{}", asked[1]);
        assert!(asked[1].ends_with(r#"{"eventType":"order.paid","payload":{"b": 1.50, "a":  1}}"#), "{}", asked[1]);
    }
}

#[test]
fn send_says_in_which_order_and_when() {
    let folder = folder();
    let (url, asked) = fake_server(&[("202 Accepted", "{\"id\":\"msg_1\"}")]);
    let arguments = [
        "send",
        "--url",
        &url,
        "--token",
        "t",
        "--app",
        "shop",
        "--event-type",
        "order.paid",
        "--ordering-key",
        "order 42",
        "--deliver-at",
        "2026-01-31T12:00:00Z",
        "{}",
    ];
    let (code, stdout, stderr) = ended(&postrider(folder.path(), &arguments).output().expect("the binary runs"));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "msg_1\n", ""));
    let said = r#""orderingKey":"order 42","deliverAt":"2026-01-31T12:00:00Z","payload":{}}"#;
    let asked = asked.join().expect("it was asked");
    assert!(asked[0].ends_with(said), "{}", asked[0]);
}

#[test]
fn a_refusal_ends_with_1_and_says_why_without_the_token() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let (token, html, gone, wrong) = (
        fake_server(&[("401 Unauthorized", "{\"code\":\"authentication_failed\",\"detail\":\"Invalid token\"}")]),
        fake_server(&[("200 OK", "<html>")]),
        fake_server(&[("404 Not Found", "{\"code\":\"not_found\",\"detail\":\"Entity not found\"}")]),
        fake_server(&[(
            "422 Unprocessable Entity",
            "{\"detail\":[{\"loc\":[\"body\",\"payload\"],\"msg\":\"must be an object\\u001b\"}]}",
        )]),
    );
    for (url, expected) in [
        (format!("http://{closed}"), "is `postrider serve` running?"),
        (token.0, "the server did not accept the token"),
        (html.0, "is not JSON; is the URL right?"),
        (gone.0, "404 Not Found: Entity not found; if there is no application `shop`, --create-app makes it"),
        (wrong.0, "422 Unprocessable Entity: body.payload: must be an object\\u{1b}"),
    ] {
        let arguments = ["send", "--url", &url, "--token", "canary", "--app", "shop", "--event-type", "e", "1"];
        let (code, stdout, stderr) = ended(&run(folder().path(), &arguments));
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{expected}");
        assert!(stderr.contains(expected) && !stderr.contains("canary"), "{stderr}");
    }
}

#[test]
fn an_endpoint_is_added_and_shown() {
    let (url, asked) = fake_server(&[
        ("201 Created", "{\"id\":\"ep_1\"}"),
        ("200 OK", "{\"key\":\"whsec_x\"}"),
        ("200 OK", "{\"data\":[{\"id\":\"ep_1\",\"url\":\"http://a/\"}],\"iterator\":\"ep_1\",\"done\":false}"),
        (
            "200 OK",
            "{\"data\":[{\"id\":\"ep_2\",\"url\":\"http://b/\",\"disabled\":true}],\"iterator\":null,\"done\":true}",
        ),
    ]);
    let server = ["--url", &url, "--token", "t", "--app", "shop"];
    let add = [&["endpoints", "add", "http://a/", "--event-type", "order.paid"][..], &server].concat();
    let list = [&["endpoints", "list"][..], &server].concat();
    let (code, stdout, stderr) = ended(&run(folder().path(), &add));
    assert_eq!((code, stdout.as_str()), (Some(0), "id      ep_1\nsecret  whsec_x\n"), "{stderr}");
    let (code, stdout, stderr) = ended(&run(folder().path(), &list));
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "ENDPOINT  STATE     URL\nep_1      enabled   http://a/\nep_2      disabled  http://b/\n"),
        "{stderr}"
    );
    let asked = asked.join().expect("all were asked");
    assert!(asked[0].ends_with(r#"{"url":"http://a/","filterTypes":["order.paid"]}"#), "{}", asked[0]);
    assert!(asked[1].starts_with("GET /api/v1/app/shop/endpoint/ep_1/secret "), "{}", asked[1]);
    assert!(asked[3].starts_with("GET /api/v1/app/shop/endpoint?limit=250&iterator=ep_1 "), "{}", asked[3]);
}

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
fn shells_and_manuals_get_what_they_need() {
    let folder = folder();
    for (shell, expected) in [("bash", "complete -F"), ("zsh", "#compdef postrider"), ("fish", "complete -c postrider")]
    {
        let (code, stdout, stderr) = ended(&run(folder.path(), &["completion", shell]));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        for expected in [expected, "dead-letters", "alerts"] {
            assert!(stdout.contains(expected), "{shell}: {expected}");
        }
    }
    let (code, page, _) = ended(&run(folder.path(), &["man"]));
    assert_eq!(code, Some(0));
    assert!(page.contains(".TH postrider 1") && page.contains("dead\\-letters"), "{page}");
    let (code, stdout, _) = ended(&run(folder.path(), &["man", "--out", "pages"]));
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    for page in ["postrider.1", "postrider-send.1", "postrider-endpoints-add.1", "postrider-alerts-test.1"] {
        assert!(folder.path().join("pages").join(page).is_file(), "{page}");
    }
}

#[test]
fn a_taken_port_is_told_in_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, _, stderr) = ended(&run(folder().path(), &["receive", "--listen", &address]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("listening on {address}")) && stderr.lines().count() == 1, "{stderr}");
}

/// A server, someone who gets its messages, and a person at a terminal.
struct World {
    server: Server,
    subscriber: Subscriber,
    api: api::Client,
    folder: TempDir,
}

impl World {
    async fn start() -> Self {
        let server = Server::start();
        let api = api::Client::new(server.address(), server.token());
        let mut world = Self { server, subscriber: Subscriber::start(), api, folder: folder() };
        world.api.create("/api/v1/app", &json!({ "name": "Shop", "uid": "shop" })).await;
        world
    }

    /// At `/uid` of the subscriber.
    async fn endpoint(&mut self, uid: &str) -> String {
        let endpoint = json!({ "url": self.subscriber.url(&format!("/{uid}")), "uid": uid });
        text(&self.api.create("/api/v1/app/shop/endpoint", &endpoint).await["id"])
    }

    async fn message(&mut self, message: Value) -> String {
        text(&self.api.create("/api/v1/app/shop/msg", &message).await["id"])
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.run_with(self.server.token(), arguments)
    }

    fn run_with(&self, token: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = postrider(self.folder.path(), arguments);
        command.env("POSTRIDER_URL", self.server.url()).env("POSTRIDER_TOKEN", token);
        ended(&command.output().expect("the binary runs"))
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stdout}{stderr}");
        stdout
    }

    /// What it prints with `--json`, line by line.
    #[track_caller]
    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let stdout = self.done(&[arguments, &["--json"]].concat());
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let lines = self.lines(arguments);
        assert_eq!(lines.len(), 1, "{arguments:?}");
        lines.into_iter().next().expect("one line")
    }

    async fn api_list(&self, path: &str) -> Vec<Value> {
        api::Client::new(self.server.address(), self.server.token()).list(path).await.expect("a list")
    }

    async fn wait_for_dead_letters(&self, count: u64) {
        let count = count.to_string();
        eventually("the dead letters", async || {
            (self.done(&["dead-letters", "count", "--app", "shop"]).trim() == count).then_some(())
        })
        .await;
    }
}

/// Ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It is asked to stop, as Ctrl-C would.
fn interrupt(child: &Child) {
    let done = Command::new("sh").args(["-c", "kill -INT \"$1\"", "sh", &child.id().to_string()]).status();
    assert!(done.expect("a shell").success());
}

#[tokio::test]
async fn a_tail_shows_attempts_as_they_are_made_and_comes_back_after_a_restart() {
    let mut world = World::start().await;
    let endpoint = world.endpoint("billing").await;
    let follow = |world: &World, flags: &[&str]| {
        let mut command = postrider(world.folder.path(), &[&["tail"][..], flags].concat());
        command.env("POSTRIDER_URL", world.server.url()).env("POSTRIDER_TOKEN", world.server.token());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut told = BufReader::new(child.stderr.take().expect("piped")).lines();
        let begun = told.next().expect("a word").expect("text");
        assert!(begun.starts_with("Following "), "{begun}");
        // Whoever speaks to a closed pipe would be disturbed.
        thread::spawn(move || told.for_each(drop));
        (Running(child), lines)
    };
    let (mut child, mut lines) = follow(&world, &["--app", "shop", "--json"]);
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON") };
    let sent = world.message(json!({"eventType": "order.paid", "payload": {"n": 0}})).await;
    let first = next();
    assert_eq!((&first["msgId"], &first["endpointId"]), (&json!(sent), &json!(endpoint)));
    assert_eq!((&first["msg"]["eventType"], &first["responseStatusCode"]), (&json!("order.paid"), &json!(204)));
    assert!(world.server.stop().success());
    world.server.start_again();
    world.api = api::Client::new(world.server.address(), world.server.token());
    let sent = world.message(json!({"eventType": "order.paid", "payload": {"n": 1}})).await;
    assert_eq!(next()["msgId"], json!(sent), "it came back, and missed nothing");
    interrupt(&child.0);
    assert_eq!(child.0.wait().expect("ended").code(), Some(0), "Ctrl-C is no failure");

    let (mut child, mut lines) = follow(&world, &["--failed", "--limit", "1"]);
    world.subscriber.always("/billing", Answer::Status(400));
    world.message(json!({"eventType": "order.refunded", "payload": {"n": 2}})).await;
    let line = lines.next().expect("a line").expect("text");
    assert!(
        line.contains("order.refunded") && line.contains(" 400 ") && line.contains("given up (permanent)"),
        "{line}"
    );
    assert!(!line.contains('\x1b'), "no colours where there is no terminal: {line}");
    assert_eq!(child.0.wait().expect("ended").code(), Some(0));
    let (code, _, stderr) = world.run(&["tail", "--app", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("nobody") && stderr.contains("404"), "{stderr}");
}

#[tokio::test]
async fn a_drill_says_what_was_seen_and_leaves_nothing_behind() {
    let world = World::start().await;
    let names = ["healthy", "exhausted", "refused", "gone", "hang", "reset", "drip", "replay", "repeated"];
    let chosen: Vec<&str> = names.iter().flat_map(|name| ["--story", name]).collect();
    let played = world.lines(&[&["drill"][..], &chosen].concat());
    assert_eq!(played.len(), names.len());
    for story in &played {
        assert!(names.contains(&story["story"].as_str().expect("a name")), "{story}");
        assert!(story["ok"] == true && story["checks"].as_array().expect("a list").len() > 2, "{story}");
    }
    let told = world.done(&["drill", "--story", "healthy"]);
    assert!(told.starts_with("healthy  ok  ") && told.ends_with("1 of 1 stories went as they should.\n"), "{told}");
    let apps = world.api_list("/api/v1/app").await;
    assert_eq!(apps.len(), 1, "only the shop is left: {apps:?}");
    let listed = world.lines(&["drill", "--list"]);
    assert!(listed.len() > 10 && listed.iter().all(|story| story["about"].is_string()), "{listed:?}");
}

#[tokio::test]
async fn a_drill_says_what_to_allow_and_what_differs() {
    let mut world = World::start().await;
    // Addresses that this server does not deliver to.
    let elsewhere = ["drill", "--story", "healthy", "--receiver-url", "http://10.0.0.1:9000"];
    let (code, stdout, stderr) = world.run(&elsewhere);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("DIFFERS") && stdout.contains("--allow-subnet"), "{stdout}");
    assert!(stderr.contains("one story did not go as it should"), "{stderr}");

    // Someone else answers in the place of the drill's receiver, so that it sees nothing.
    let stranger = world.subscriber.url("");
    let (code, stdout, _) = world.run(&["drill", "--story", "healthy", "--receiver-url", &stranger]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("requests") && stdout.contains("0, and should be 1"), "{stdout}");
    assert_eq!(world.api.list::<Value>("/api/v1/app").await.expect("a list").len(), 1, "nothing is left behind");
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

#[tokio::test]
async fn what_was_given_up_is_found_explained_and_sent_again() {
    let mut world = World::start().await;
    let endpoint = world.endpoint("billing").await;
    let refusal = Answer::Full { status: 400, headers: Vec::new(), body: "no\x1b[31m".into() };
    world.subscriber.always("/billing", refusal);
    let message = world.done(&["send", "--app", "shop", "--event-type", "order.paid", "{\"b\": 1.50, \"a\":  1}"]);
    let message = message.trim();
    world.wait_for_dead_letters(1).await;

    for (flags, count) in [
        (&[][..], 1),
        (&["--endpoint", "billing"], 1),
        (&["--endpoint", &endpoint, "--reason", "permanent", "--status", "400"], 1),
        (&["--event-type", "order.paid", "--event-type", "other", "--since", "1h"], 1),
        (&["--reason", "exhausted"], 0),
        (&["--status", "none"], 0),
        (&["--event-type", "other"], 0),
        (&["--until", "1h"], 0),
        (&["--since", "2000-01-01T00:00:00Z", "--until", "2000-01-02T00:00:00Z"], 0),
    ] {
        let listed = world.lines(&[&["dead-letters", "list", "--app", "shop"][..], flags].concat());
        assert_eq!(listed.len(), count, "{flags:?}");
        let counted = world.json(&[&["dead-letters", "count", "--app", "shop"][..], flags].concat());
        assert_eq!(counted["count"], count, "{flags:?}");
    }
    let listed = world.done(&["dead-letters", "list", "--app", "shop"]);
    let row = listed.lines().nth(1).expect("a row");
    for cell in [message, &endpoint, "order.paid", "permanent", "400"] {
        assert!(row.contains(cell), "{cell} in {listed}");
    }

    for arguments in [
        &["dead-letters", "show", "--app", "shop", message][..],
        &["dead-letters", "show", "--app", "shop", message, "--endpoint", "billing"],
        &["messages", "show", "--app", "shop", message],
    ] {
        let shown = world.done(arguments);
        for words in [
            message,
            "  #1  ",
            "answer 400 after ",
            "It is not tried again.",
            "it said: no\\u{1b}[31m",
            "payload\n{\n  \"b\": 1.50,\n  \"a\": 1\n}",
        ] {
            assert!(shown.contains(words), "{arguments:?}: {words} in {shown}");
        }
        assert!(!shown.contains('\x1b'));
    }
    let shown = world.done(&["dead-letters", "show", "--app", "shop", message]);
    assert!(shown.contains("permanent: The receiver refused it for good."), "{shown}");
    let letter = world.json(&["dead-letters", "show", "--app", "shop", message]);
    assert_eq!(
        (&letter["reason"], &letter["allAttempts"][0]["responseStatusCode"]),
        (&json!("permanent"), &json!(400))
    );
    let known = world.json(&["messages", "show", "--app", "shop", message]);
    assert_eq!(known["message"]["payload"], json!({ "b": 1.5, "a": 1 }));
    assert_eq!(known["endpoints"][0]["statusText"], "fail");
    assert_eq!(known["attempts"][0]["verdict"]["death"], "permanent");
    let raw = world.done(&["messages", "show", "--app", "shop", message, "--json"]);
    assert!(raw.contains("{\"b\": 1.50, \"a\":  1}"), "{raw}");
    let listed = world.done(&["messages", "list", "--app", "shop", "--event-type", "order.paid"]);
    assert!(listed.lines().nth(1).is_some_and(|row| row.starts_with(message)), "{listed}");
    assert_eq!(world.lines(&["messages", "list", "--app", "shop", "--event-type", "other"]).len(), 0);

    world.subscriber.always("/billing", Answer::Status(204));
    let replay = ["replay", "--app", "shop", message, "--endpoint", "billing"];
    assert_eq!(world.done(&replay), format!("{message} is on its way again\n"));
    world.subscriber.wait_for("/billing", 2).await;
    world.wait_for_dead_letters(0).await;
    assert_eq!(world.done(&replay), format!("{message} was on its way already, or has arrived\n"));
    world.done(&["messages", "resend", "--app", "shop", message, "--endpoint", "billing"]);
    let arrivals = world.subscriber.wait_for("/billing", 3).await;
    assert!(arrivals.iter().all(|arrival| arrival.header("webhook-id") == message));
}

#[tokio::test]
async fn many_are_sent_again_by_a_task_that_is_waited_for() {
    let mut world = World::start().await;
    let billing = world.endpoint("billing").await;
    world.subscriber.always("/billing", Answer::Status(400));
    for (event_type, n) in [("order.paid", 1), ("order.paid", 2), ("order.sent", 3)] {
        world.message(json!({ "eventType": event_type, "payload": { "n": n } })).await;
    }
    world.wait_for_dead_letters(3).await;
    world.subscriber.always("/billing", Answer::Status(204));

    let (code, stdout, stderr) =
        world.run(&["replay", "--app", "shop", "--dead-letters", "--event-type", "order.paid", "--status", "400"]);
    assert_eq!((code, stderr.as_str()), (Some(0), "2 dead letters match.\n"));
    let row = stdout.lines().nth(1).expect("a row");
    assert!(row.contains("  finished  ") && row.contains("2 put on their way"), "{stdout}");
    world.subscriber.wait_for("/billing", 5).await;
    world.wait_for_dead_letters(1).await;

    let of_billing = |what, more: &[&'static str]| -> Vec<&'static str> {
        [&["replay", "--app", "shop", what, "--endpoint", "billing", "--since", "1h"][..], more].concat()
    };
    let recovered = world.json(&of_billing("--recover", &[]));
    assert_eq!((&recovered["status"], &recovered["task"]), (&json!("finished"), &json!("endpoint.recover")));
    assert_eq!((&recovered["data"]["messages_sent"], &recovered["data"]["endp_id"]), (&json!(1), &json!(billing)));
    world.subscriber.wait_for("/billing", 6).await;
    world.wait_for_dead_letters(0).await;
    eventually("all three delivered", async || {
        let messages = world.lines(&["messages", "list", "--app", "shop"]);
        let states = messages.iter().map(|message| {
            world.json(&["messages", "show", "--app", "shop", &text(&message["id"])])["endpoints"][0]["statusText"]
                .clone()
        });
        (states.filter(|state| state == "success").count() == 3).then_some(())
    })
    .await;
    let bulk = world.json(&of_billing("--bulk", &["--status", "success", "--event-type", "order.sent"]));
    assert_eq!(bulk["data"]["messages_sent"], 1, "{bulk}");
    world.subscriber.wait_for("/billing", 7).await;

    let late = world.endpoint("late").await;
    let id = world.done(&["replay", "--app", "shop", "--missing", "--endpoint", "late", "--since", "1h", "--no-wait"]);
    let id = id.trim();
    let shown = world.done(&["tasks", "show", "--wait", id]);
    assert!(shown.contains(&late) && shown.contains("3 put on their way"), "{shown}");
    world.subscriber.wait_for("/late", 3).await;

    let listed = world.lines(&["tasks", "list", "--status", "finished"]);
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert_eq!(listed.iter().filter(|task| task["id"] == id).count(), 1);
    assert_eq!(world.lines(&["tasks", "list", "--limit", "2"]).len(), 2);
    assert_eq!(world.lines(&["tasks", "list", "--status", "running"]).len(), 0);
    assert_eq!(world.json(&["tasks", "cancel", id])["status"], "finished", "what has ended cannot be ended");
}

#[tokio::test]
async fn an_endpoint_is_paused_looked_at_and_resumed_with_a_choice() {
    let mut world = World::start().await;
    let billing = world.endpoint("billing").await;
    world.endpoint("mail").await;
    let paused = world.done(&["endpoints", "pause", "--app", "shop", "billing"]);
    assert!(paused.starts_with("state    disabled: Paused on request"), "{paused}");
    let mut messages = Vec::new();
    for key in ["a", "a", "b"] {
        let message = json!({ "eventType": "order.paid", "orderingKey": key, "payload": { "key": key } });
        messages.push(world.message(message).await);
    }
    world.subscriber.wait_for("/mail", 3).await;

    let table = world.done(&["endpoints", "health", "--app", "shop"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    let row = table.lines().find(|line| line.starts_with(&billing)).expect("a row");
    assert!(row.contains("  disabled  ") && row.contains("  3  "), "{table}");
    let health = world.json(&["endpoints", "health", "--app", "shop", "billing"]);
    assert_eq!((&health["disabled"]["reason"], &health["backlog"]["waiting"]), (&json!("manual"), &json!(3)));
    assert_eq!(world.lines(&["endpoints", "health", "--app", "shop"]).len(), 2);
    let shown = world.done(&["messages", "show", "--app", "shop", &messages[0]]);
    assert!(shown.contains("  pending  ") && shown.contains("Paused on request"), "{shown}");

    let resume = ["endpoints", "resume", "--app", "shop", "billing", "--deliver", "newest-per-key"];
    let (code, stdout, stderr) = world.run(&resume);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    let outlook = "3 waiting: 2 to be delivered, 1 to become dead letters.\n";
    assert!(stderr.starts_with(outlook) && stderr.contains("needs --yes"), "{stderr}");
    let (code, stdout, stderr) = world.run(&[&resume[..], &["--yes"]].concat());
    assert_eq!((code, stderr.as_str()), (Some(0), outlook));
    assert!(stdout.contains("endpoint.resume") && stdout.contains("1 called back"), "{stdout}");
    let arrived: Vec<String> =
        world.subscriber.wait_for("/billing", 2).await.iter().map(|it| it.header("webhook-id").to_owned()).collect();
    assert!(arrived.contains(&messages[1]) && arrived.contains(&messages[2]), "{arrived:?}");
    let dead = world.json(&["dead-letters", "list", "--app", "shop", "--reason", "cancelled"]);
    assert_eq!(dead["msgId"], messages[0].as_str());
    assert_eq!(world.lines(&["tasks", "list"]).len(), 1, "ours are listed too");

    world.done(&["endpoints", "pause", "--app", "shop", "mail"]);
    let called_back = world.message(json!({ "eventType": "order.paid", "payload": {} })).await;
    let cancel = ["messages", "cancel", "--app", "shop", &called_back, "--endpoint", "mail"];
    assert_eq!(world.done(&cancel), "1 delivery called back\n");
    assert_eq!(world.json(&cancel), json!({ "canceled": 0 }));
    let (code, stdout, stderr) = world.run(&["endpoints", "resume", "--app", "shop", "mail"]);
    assert_eq!(code, Some(0), "nothing is lost by it, so that nobody need be asked: {stderr}");
    assert!(stdout.starts_with("state    healthy: "), "{stdout}");
}

#[tokio::test]
async fn a_key_is_made_used_rotated_revoked_and_all_of_it_is_in_the_audit_log() {
    let world = World::start().await;
    let (code, made, told) =
        world.run(&["api-keys", "create", "--name", "k", "--scope", "read", "--scope", "ingest", "--app", "shop"]);
    assert_eq!(code, Some(0), "{told}");
    let key = made.trim().to_owned();
    assert!(key.starts_with("prk_") && !told.contains(&key), "the key alone is the result: {made} {told}");
    let send: &[&str] = &["send", "--app", "shop", "--event-type", "a.b", "{}"];
    assert_eq!(world.run_with(&key, send).0, Some(0));
    let (code, _, told) = world.run_with(&key, &["api-keys", "list"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("This token may not do that"), "{told}");

    let listed = world.json(&["api-keys", "list"]);
    assert_eq!((&listed["scopes"], &listed["name"]), (&json!(["read", "ingest"]), &json!("k")));
    let id = text(&listed["id"]);
    let new = world.done(&["api-keys", "rotate", &id, "--overlap", "1h"]);
    assert_eq!((world.run_with(&key, send).0, world.run_with(new.trim(), send).0), (Some(0), Some(0)));
    let revoked = world.done(&["api-keys", "revoke", &id]);
    assert!(revoked.contains("revoked"), "{revoked}");
    assert_eq!((world.run_with(&key, send).0, world.run_with(new.trim(), send).0), (Some(1), Some(0)));

    let operations = |entry: &Value| text(&entry["operation"]);
    let entries: Vec<String> = world.lines(&["audit", "--since", "1h"]).iter().map(operations).collect();
    let expected =
        ["v1.api-key.revoke", "v1.api-key.rotate", "v1.api-key.create", "v1.application.create"].map(str::to_owned);
    assert_eq!(entries, expected);
    let shown = world.done(&["audit", "--operation", "v1.api-key.revoke"]);
    assert!(shown.contains(&id) && shown.lines().count() == 2, "{shown}");
}

#[tokio::test]
async fn the_test_alert_ends_with_1_if_a_channel_failed() {
    const OPERATIONAL: &str = "/api/v1/operational-webhook/endpoint";
    let mut world = World::start().await;
    let good = json!({ "url": world.subscriber.url("/good") });
    let good = text(&world.api.create(OPERATIONAL, &good).await["id"]);
    let off = json!({ "url": world.subscriber.url("/off"), "disabled": true });
    let off = text(&world.api.create(OPERATIONAL, &off).await["id"]);
    let table = world.done(&["alerts", "test"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["CHANNEL", "STATUS", "DETAIL"]);
    for expected in [
        &["log", "written"][..],
        &["mail", "off", "no", "mail", "server", "is", "set"],
        &["webhook", &good, "delivered"],
        &["webhook", &off, "disabled"],
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected:?} in {table}");
    }
    assert_eq!(world.json(&["alerts", "test"])["log"], "written");

    world.subscriber.always("/bad", Answer::Status(500));
    let bad = json!({ "url": world.subscriber.url("/bad") });
    let bad = text(&world.api.create(OPERATIONAL, &bad).await["id"]);
    let (code, table, stderr) = world.run(&["alerts", "test"]);
    assert_eq!(code, Some(1), "{table}");
    assert!(table.lines().any(|line| line.contains(&bad) && line.ends_with("answered 500")), "{table}");
    assert_eq!(stderr, "postrider: 1 of 5 channels did not take the test alert\n");
    let (code, stdout, _) = world.run(&["alerts", "test", "--json"]);
    let came: Value = serde_json::from_str(&stdout).expect("one object all the same");
    assert_eq!((code, came["webhooks"].as_array().map(Vec::len)), (Some(1), Some(3)), "{came}");
}

#[tokio::test]
async fn an_endpoints_schedule_is_what_applies_there() {
    let mut world = World::start().await;
    let endpoint = json!({
        "url": world.subscriber.url("/x"), "uid": "x", "retryPolicy": { "preset": "slack", "maxAttempts": 2 },
    });
    world.api.create("/api/v1/app/shop/endpoint", &endpoint).await;
    let there = world.json(&["schedule", "--app", "shop", "--endpoint", "x"]);
    assert_eq!(there, world.json(&["schedule", "slack", "--rules", "{\"maxAttempts\": 2}"]));
    let shown = world.done(&["schedule", "--app", "shop", "--endpoint", "x"]);
    assert!(shown.starts_with("What applies to endpoint x of application shop\n"), "{shown}");
    world
        .api
        .create("/api/v1/event-type", &json!({ "name": "order.paid", "description": "", "retryPolicy": "twilio" }))
        .await;
    let of_type = world.json(&["schedule", "--app", "shop", "--endpoint", "x", "--event-type", "order.paid"]);
    assert_eq!(of_type["attempts"][1]["nominal"], world.json(&["schedule", "twilio"])["attempts"][1]["nominal"]);
}

#[tokio::test]
async fn the_name_that_is_wrong_is_the_one_that_is_told() {
    let mut world = World::start().await;
    world.endpoint("billing").await;
    let message = world.message(json!({ "eventType": "a", "eventId": "first", "payload": {} })).await;
    world.subscriber.wait_for("/billing", 1).await;
    for (arguments, expected) in [
        (&["messages", "list", "--app", "shpo"][..], "there is no application `shpo`"),
        (&["dead-letters", "count", "--app", "shpo"], "there is no application `shpo`"),
        (&["endpoints", "health", "--app", "shpo"], "there is no application `shpo`"),
        (&["replay", "--app", "shpo", "--dead-letters"], "there is no application `shpo`"),
        (&["schedule", "--app", "shpo", "--endpoint", "billing"], "there is no application `shpo`"),
        (&["endpoints", "pause", "--app", "shop", "biling"], "there is no endpoint `biling` in application `shop`"),
        (&["endpoints", "resume", "--app", "shop", "biling"], "there is no endpoint `biling`"),
        (&["schedule", "--app", "shop", "--endpoint", "biling"], "there is no endpoint `biling`"),
        (&["dead-letters", "list", "--app", "shop", "--endpoint", "biling"], "there is no endpoint `biling`"),
        (&["messages", "cancel", "--app", "shop", "first", "--endpoint", "biling"], "there is no endpoint `biling`"),
        (&["messages", "show", "--app", "shop", "msg_1"], "there is no message `msg_1` in application `shop`"),
        (&["replay", "--app", "shop", "msg_1", "--endpoint", "billing"], "there is no message `msg_1`"),
        (&["dead-letters", "show", "--app", "shop", &message], "is no dead letter of any endpoint"),
        (&["dead-letters", "show", "--app", "shop", "first", "--endpoint", "billing"], "is no dead letter of endpoint"),
        (&["tasks", "show", "qtask_1"], "404 Not Found"),
        (&["messages", "list", "--app", "shop", "--event-type", "a b"], "event_types"),
        (&["messages", "list", "--app", "..", "--limit", "1"], "`..` is not a name"),
        (&["dead-letters", "list", "--app", "shop", "--since", "1h", "--until", "2h"], "before `until`"),
        (
            &["endpoints", "resume", "--app", "shop", "billing", "--deliver", "none", "--yes"],
            "The endpoint is not paused",
        ),
    ] {
        let (code, stdout, stderr) = world.run(arguments);
        assert!(matches!(code, Some(1 | 2)) && stdout.is_empty(), "{arguments:?}: {stdout}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let (code, _, stderr) = world.run_with("canary", &["messages", "list", "--app", "shop"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("the server did not accept the token") && !stderr.contains("canary"), "{stderr}");
    let known = world.json(&["messages", "show", "--app", "shop", "first"]);
    assert_eq!(known["message"]["id"], message.as_str());
}

#[tokio::test]
async fn a_list_is_cut_at_its_limit_and_says_so() {
    let mut world = World::start().await;
    for n in 0..5 {
        world.message(json!({ "eventType": "a", "payload": { "n": n } })).await;
    }
    let (code, stdout, stderr) = world.run(&["messages", "list", "--app", "shop", "--limit", "3"]);
    assert_eq!((code, stdout.lines().count()), (Some(0), 4), "{stdout}");
    assert_eq!(stderr, "(there are more; --limit shows them)\n");
    let (_, stdout, stderr) = world.run(&["messages", "list", "--app", "shop", "--limit", "5", "--json"]);
    assert_eq!((stdout.lines().count(), stderr.as_str()), (5, ""));
    let first: Value = serde_json::from_str(stdout.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["payload"], json!({ "n": 4 }), "newest first");
    let (code, stdout, stderr) = world.run(&["dead-letters", "list", "--app", "shop"]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "", "(no dead letters match)\n"));
}

#[test]
fn whoever_stops_waiting_leaves_the_task_running() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (asked, requests) = mpsc::channel();
    // It answers until the test's process ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a request");
            let request = read_request(&mut stream);
            let body = r#"{"id":"qtask_1","status":"running","task":"endpoint.recover","data":{"messages_sent":3,"done":5,
                "total":10},"updatedAt":"2026-01-31T12:00:00Z"}"#;
            let length = body.len();
            let _ =
                write!(stream, "HTTP/1.1 202 Accepted\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _ = asked.send(request);
        }
    });
    let folder = folder();
    let arguments =
        ["replay", "--url", &url, "--token", "t", "--app", "shop", "--recover", "--endpoint", "e", "--since", "1h"];
    let child = postrider(folder.path(), &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let first = requests.recv().expect("a request");
    assert!(first.starts_with("POST /api/v1/app/shop/endpoint/e/recover "), "{first}");
    // By the second look it listens for signals in any case.
    for _ in 0..2 {
        let look = requests.recv().expect("a request");
        assert!(look.starts_with("GET /api/v1/background-task/qtask_1 "), "{look}");
    }
    let kill = Command::new("sh").args(["-c", "kill -INT \"$1\"", "sh", &child.id().to_string()]).status();
    assert!(kill.expect("a shell").success());
    let (code, stdout, stderr) = ended(&child.wait_with_output().expect("it ends"));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("no longer waiting; task qtask_1 goes on by itself"), "{stderr}");
}
