//! The real binary, by itself and against answers that a test makes up: what it prints, and how it ends.

mod support;

use postrider::{
    clock,
    config::{Settings, reference},
    ids::IdCodec,
    keyring::Keyring,
    tokens::{Access, Capability, Principal, Tokens},
};
use postrider_engine::AppKey;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
};
use support::command::{ended, folder, postrider, run};

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
        (&["token", "--scope", "view"], "--app"),
        (&["token", "--app", "app_x", "--scope", "everything"], "create-attempts"),
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
        (
            &["token", "--app", &id, "--scope", "manage-endpoint", "--scope", "create-attempts"],
            Principal::Application {
                app,
                access: Access {
                    capabilities: vec![Capability::ViewBase, Capability::CreateAttempts, Capability::ManageEndpoint],
                    feature_flags: None,
                    poller: None,
                },
            },
        ),
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
fn a_kept_request_is_believed_or_it_is_said_why_not() {
    let folder = folder();
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let keep = |name: &str, body: &str| {
        let request =
            format!("POST / HTTP/1.1\r\nX-GitHub-Delivery: d-1\r\nX-Hub-Signature-256: {signature}\r\n\r\n{body}");
        fs::write(folder.path().join(name), request).expect("written");
    };
    keep("good", "Hello, World!");
    keep("longer", "Hello, World!\n");
    let verify = |file: &str, secret: &str| {
        ended(&run(folder.path(), &["verify", "--source", "github", "--secret", secret, file]))
    };
    let (code, stdout, stderr) = verify("good", "It's a Secret to Everybody");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(stdout, "The signature holds. Its id is d-1.\n");
    let (code, stdout, stderr) = verify("longer", "It's a Secret to Everybody");
    assert_eq!(code, Some(1));
    assert!(stdout.contains("Refused: no signature matches") && stdout.contains("were added at the end"), "{stdout}");
    assert!(stderr.contains("not believed"), "{stderr}");
    let (code, stdout, _) = verify("good", " It's a Secret to Everybody");
    assert!(code == Some(1) && stdout.contains("the secret has spaces") && !stdout.contains("Everybody"), "{stdout}");
    let (code, _, stderr) = verify("missing", "s");
    assert!(code == Some(1) && stderr.contains("reading missing"), "{stderr}");
    let (code, _, _) = ended(&run(folder.path(), &["verify", "good", "--secret", "not a secret"]));
    assert_eq!(code, Some(2));
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
