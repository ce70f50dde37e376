//! `postrider send` with many lines: what is sent, what is said of the rest, and that it can be run again.

mod support;

use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    thread,
};
use support::{
    api,
    command::{ended, folder, postrider},
    eventually,
    server::Server,
};
use tempfile::TempDir;

struct World {
    server: Server,
    folder: TempDir,
}

impl World {
    fn start() -> Self {
        Self { server: Server::start(), folder: folder() }
    }

    fn run(&self, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
        let arguments = [&["send", "--app", "shop"], arguments].concat();
        let mut command = postrider(self.folder.path(), &arguments);
        command.env("POSTRIDER_URL", self.server.url()).env("POSTRIDER_TOKEN", self.server.token());
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("the binary runs");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_owned();
        // It may end without having read all of it.
        let writing = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().expect("the binary runs");
        writing.join().expect("no panic");
        ended(&output)
    }

    async fn messages(&self) -> Vec<Value> {
        let mut api = api::Client::new(self.server.address(), self.server.token());
        api.list("/api/v1/app/shop/msg").await.expect("the server answers")
    }

    /// What the payloads say, oldest message first.
    async fn numbers(&self) -> Vec<u64> {
        self.messages().await.iter().rev().map(|message| message["payload"]["n"].as_u64().expect("a number")).collect()
    }
}

fn lines(numbers: impl IntoIterator<Item = u64>) -> String {
    numbers.into_iter().fold(String::new(), |mut text, n| {
        writeln!(text, r#"{{"n": {n}}}"#).expect("memory");
        text
    })
}

#[tokio::test]
async fn each_line_becomes_a_message_in_its_order_and_once() {
    let world = World::start();
    let sent = ["--event-type", "order.paid", "--lines", "orders.ndjson", "--create-app", "--name", "first"];
    fs::write(world.folder.path().join("orders.ndjson"), lines(0..1_500)).expect("written");
    let (code, stdout, stderr) = world.run(&sent, "");
    assert_eq!((code, &*stdout), (Some(0), "1500 sent, 0 refused\n"), "{stderr}");
    assert!(stderr.contains("--name first") && !stderr.contains('\x1b'), "{stderr}");
    assert_eq!(world.numbers().await, (0..1_500).collect::<Vec<_>>());

    // Under the same name nothing is sent twice, under another all of it.
    assert_eq!(world.run(&sent, "").1, "1500 sent, 0 refused\n");
    assert_eq!(world.messages().await.len(), 1_500);
    let (_, stdout, stderr) = world.run(&["--event-type", "order.paid", "--lines", "-"], &lines(0..3));
    assert_eq!(stdout, "3 sent, 0 refused\n", "{stderr}");
    assert_eq!(world.messages().await.len(), 1_503);
    // A line that has changed since is told, and not sent.
    let (code, stdout, stderr) =
        world.run(&["--event-type", "order.paid", "--lines", "-", "--name", "first"], &lines([0, 7]));
    assert_eq!((code, &*stdout), (Some(1), "1 sent, 1 refused\n"));
    assert!(stderr.contains("line 2: 409, "), "{stderr}");
}

#[tokio::test]
async fn what_is_refused_is_told_with_its_line_and_the_rest_is_sent() {
    let world = World::start();
    let refused = "\u{7}[]\n{\"n\": 1e400, \"n\":2}\n\n{\"n\"\n\"\\u001b[31m\"\n{\"n\":3}";
    let (code, stdout, stderr) = world.run(&["--event-type", "a.b", "--lines", "-", "--create-app"], refused);
    assert_eq!((code, &*stdout), (Some(1), "2 sent, 3 refused\n"), "{stderr}");
    for word in ["line 1: not JSON: ", "line 4: not JSON: ", "line 5: 422, body.payload: ", "3 refused"] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
    assert!(!stderr.contains(['\x1b', '\x07']), "{stderr}");
    let mut api = api::Client::new(world.server.address(), world.server.token());
    let list = api.send(http::Method::GET, "/api/v1/app/shop/msg", &[], "").await.expect("an answer").1;
    assert!(String::from_utf8_lossy(&list).contains(r#""payload":{"n": 1e400, "n":2}"#), "byte for byte");

    let messages = concat!(
        r#"{"eventType": "a.b", "eventId": "e", "payload": {"n": 4}}"#,
        "\n",
        r#"{"eventType": "a.b", "idempotencyKey": "mine", "payload": {"n": 5}}"#,
        "\n",
        r#"{"eventType": "a.b", "idempotencyKey": "mine", "payload": {"n": 5}}"#,
        "\n[]\n",
    );
    let (code, stdout, stderr) = world.run(&["--messages", "-", "--json"], messages);
    assert_eq!(code, Some(1), "{stderr}");
    let told: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let statuses: Vec<_> = told.iter().map(|line| (&line["line"], &line["status"])).collect();
    assert_eq!(
        statuses,
        [(&json!(1), &json!(202)), (&json!(2), &json!(202)), (&json!(3), &json!(202)), (&json!(4), &json!(422))]
    );
    assert!(told[1]["id"] == told[2]["id"] && told[3]["detail"].is_string(), "{stdout}");

    for (arguments, code, word) in [
        (&["--lines", "-"][..], 2, "--event-type"),
        (&["--lines", "-", "--event-type", "a.b", "{}"], 2, "--lines"),
        (&["--messages", "-", "--event-type", "a.b"], 2, "--messages"),
        (&["--event-type", "a.b", "--name", "x", "{}"], 2, "--name"),
        (&["--event-type", "a.b", "--name", "x"], 2, "--name"),
        (&["--messages", "-", "--name", "a b"], 2, "visible ASCII"),
        (&["--messages", "nowhere"], 1, "nowhere"),
    ] {
        let (ended, _, stderr) = world.run(arguments, "{}");
        assert_eq!(ended, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(word), "{arguments:?}: {stderr}");
    }
    let world = World::start();
    let (code, _, stderr) = world.run(&["--event-type", "a.b", "--lines", "-"], "{}");
    assert!(code == Some(1) && stderr.contains("--create-app"), "{stderr}");
}

/// It is killed, and so is the server; whoever is asked again goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sending_that_breaks_off_is_gone_on_with_and_waits_for_a_server_that_starts_again() {
    let mut world = World::start();
    let file = world.folder.path().join("orders.ndjson");
    fs::write(&file, lines(0..20_000)).expect("written");
    let arguments =
        ["send", "--app", "shop", "--event-type", "a.b", "--lines", "orders.ndjson", "--name", "n", "--create-app"];
    let begin = |world: &World| {
        let mut command = postrider(world.folder.path(), &arguments);
        command.env("POSTRIDER_URL", world.server.url()).env("POSTRIDER_TOKEN", world.server.token());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    };
    let has_begun = async |world: &World, past: u64| {
        eventually("some of it", async || {
            let mut api = api::Client::new(world.server.address(), world.server.token());
            let (_, newest) = api.send(http::Method::GET, "/api/v1/app/shop/msg?limit=1", &[], "").await.ok()?;
            let newest: Value = serde_json::from_slice(&newest).ok()?;
            (newest["data"][0]["payload"]["n"].as_u64()? > past).then_some(())
        })
        .await;
    };
    let mut first = begin(&world);
    has_begun(&world, 1_000).await;
    first.kill().expect("ours");
    first.wait().expect("ours");
    let second = begin(&world);
    has_begun(&world, 3_000).await;
    world.server.kill();
    world.server.start_again();
    let (code, stdout, stderr) = ended(&second.wait_with_output().expect("it runs"));
    assert_eq!((code, &*stdout), (Some(0), "20000 sent, 0 refused\n"), "{stderr}");
    let numbers = world.numbers().await;
    assert_eq!(numbers.len(), 20_000, "none twice");
    assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 20_000, "and none left out");
    assert!(numbers.is_sorted(), "in their order");
}

#[tokio::test]
async fn those_that_are_put_off_are_handed_in_again_before_the_others() {
    let mut world = World::start();
    assert!(world.server.stop().success());
    world.server.set_variables(&[("POSTRIDER_INGEST_RATE_PER_APPLICATION", "100")]);
    world.server.start_again();
    let (code, stdout, stderr) = world.run(&["--event-type", "a.b", "--lines", "-", "--create-app"], &lines(0..350));
    assert_eq!((code, &*stdout), (Some(0), "350 sent, 0 refused\n"), "{stderr}");
    assert_eq!(world.numbers().await, (0..350).collect::<Vec<_>>());
}

/// As a server that has no room says it: the whole call, and when to come again.
#[test]
fn a_whole_that_is_put_off_is_handed_in_again_as_it_was() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = thread::spawn(move || {
        let answers = [
            ("503 Service Unavailable\r\nretry-after: 1", r#"{"code":"unavailable","detail":"later"}"#),
            (
                "200 OK",
                r#"{"data":[{"status":202,"message":{"id":"msg_1"}},{"status":503,"error":{},"retryAfter":1}]}"#,
            ),
            ("200 OK", r#"{"data":[{"status":202,"message":{"id":"msg_2"}}]}"#),
        ];
        let take = |(status, body): (&str, &str)| {
            let (mut stream, _) = listener.accept().expect("a call");
            let asked = whole_request(&mut stream);
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).expect("it listens");
            asked
        };
        answers.map(take)
    });
    let folder = folder();
    fs::write(folder.path().join("two"), "{\"n\":1.0}\n{\"n\":2}").expect("written");
    let arguments =
        ["send", "--url", &url, "--token", "t", "--app", "shop", "--event-type", "a", "--lines", "two", "--name", "x"];
    let (code, stdout, stderr) = ended(&postrider(folder.path(), &arguments).output().expect("the binary runs"));
    assert_eq!((code, &*stdout), (Some(0), "2 sent, 0 refused\n"), "{stderr}");
    let [first, second, third] = asked.join().expect("three calls").map(|asked| {
        assert!(asked.starts_with("POST /api/v1/app/shop/msg-batch?with_content=false HTTP/1.1\r\n"), "{asked}");
        asked.split_once("\r\n\r\n").expect("a body").1.to_owned()
    });
    let message =
        |n: &str, line: u8| format!(r#"{{"eventType":"a","idempotencyKey":"x.{line}","payload":{{"n":{n}}}}}"#);
    assert_eq!(first, format!(r#"{{"messages":[{},{}]}}"#, message("1.0", 1), message("2", 2)));
    assert_eq!(second, first);
    assert_eq!(third, format!(r#"{{"messages":[{}]}}"#, message("2", 2)));
}

fn whole_request(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece).expect("a request");
        text.push_str(std::str::from_utf8(&piece[..count]).expect("text"));
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        if body.len() == length.parse::<usize>().expect("a number") {
            return text;
        }
    }
}
