//! The real binary, where it needs no server of ours: what it prints, and how it ends.

use postrider::{
    clock,
    config::Settings,
    ids::IdCodec,
    keyring::Keyring,
    tokens::{Access, Principal, Tokens},
};
use postrider_engine::AppKey;
use postrider_signature::{Secret, SigningKey, sign};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::{self, JoinHandle},
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
    for (arguments, expected) in [
        (&[][..], "Usage: postrider"),
        (&["fly"], "unrecognized subcommand"),
        (&["serve", "--lisen", "x"], "--listen"),
        (&["serve", "--config", "typo.toml"], "unknown setting `listne` (typo.toml, line 2); did you mean `listen`?"),
        (&["serve", "--config", "none.toml"], "could not read none.toml"),
        (&["serve", "--retention", "10"], "setting `retention` (flag --retention): `10` has no unit"),
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
        (&["receive", "--secret", "short"], "--secret"),
        (&["receive", "--status", "99"], "99"),
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
        assert_eq!(tokens.verify(token, clock::now()), Ok(expected), "{arguments:?}");
    }
    let (code, _, stderr) = ended(&run(folder.path(), &["token", "--app", "shop"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("`shop` is not the id of an application"), "{stderr}");
}

#[test]
fn a_closed_pipe_is_not_a_panic() {
    let folder = folder();
    Keyring::open_or_create(&folder.path().join("postrider-data")).expect("made");
    for arguments in [&["token"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = postrider(folder.path(), arguments).stdout(writer).output().expect("the binary runs");
        let (code, _, stderr) = ended(&output);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
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
        (Some(0), "ep_1  enabled   http://a/\nep_2  disabled  http://b/\n"),
        "{stderr}"
    );
    let asked = asked.join().expect("all were asked");
    assert!(asked[0].ends_with(r#"{"url":"http://a/","filterTypes":["order.paid"]}"#), "{}", asked[0]);
    assert!(asked[1].starts_with("GET /api/v1/app/shop/endpoint/ep_1/secret "), "{}", asked[1]);
    assert!(asked[3].starts_with("GET /api/v1/app/shop/endpoint?iterator=ep_1 "), "{}", asked[3]);
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
    receiver.post("", "{}");
    assert_eq!(receiver.child.wait().expect("ended").code(), Some(0));
}

#[test]
fn a_taken_port_is_told_in_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, _, stderr) = ended(&run(folder().path(), &["receive", "--listen", &address]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&format!("listening on {address}")) && stderr.lines().count() == 1, "{stderr}");
}
