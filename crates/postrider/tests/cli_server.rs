//! The real binary against a server of ours: what it prints, and how it ends.

mod support;

use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};
use support::{
    api,
    command::{ended, folder, postrider},
    eventually,
    receiver::{Answer, Receiver as Subscriber},
    server::Server,
    stores::spoil_source,
};
use tempfile::TempDir;

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

/// A tail, and what it prints.
fn follow(world: &World, flags: &[&str]) -> (Running, Lines<BufReader<ChildStdout>>) {
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
}

#[tokio::test]
async fn a_tail_shows_attempts_as_they_are_made_and_comes_back_after_a_restart() {
    let mut world = World::start().await;
    let endpoint = world.endpoint("billing").await;
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

/// As many as this machine sends; the reader is slower than that, and catches up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tail_under_load_and_over_a_restart_shows_every_attempt_once_in_bounded_memory() {
    const ROUND: usize = 2_000;
    let mut world = World::start().await;
    world.endpoint("billing").await;
    let (child, lines) = follow(&world, &["--app", "shop", "--json"]);
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let book = Arc::clone(&seen);
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let attempt: Value = serde_json::from_str(&line).expect("JSON");
            book.lock().expect("nobody panics").push(text(&attempt["id"]));
        }
    });
    let count = || seen.lock().expect("nobody panics").len();
    world.message(json!({"eventType": "order.paid", "payload": {}})).await;
    eventually("the first attempt", async || (count() == 1).then_some(())).await;
    let memory = memory_of(&child.0);

    let begun = Instant::now();
    send_many(&world, ROUND).await;
    let rate = ROUND as f64 / begun.elapsed().as_secs_f64();
    assert!(world.server.stop().success());
    world.server.start_again();
    send_many(&world, ROUND).await;
    eventually("every attempt", async || (count() > 2 * ROUND).then_some(())).await;
    let mut recorded: Vec<String> =
        world.api_list("/api/v1/app/shop/attempt/endpoint/billing").await.iter().map(|it| text(&it["id"])).collect();
    recorded.reverse();
    assert_eq!(*seen.lock().expect("nobody panics"), recorded, "each once, in their order");
    let grown = memory_of(&child.0).saturating_sub(memory);
    println!("{rate:.0} messages a second; the tail's memory grew by {grown} KiB");
    assert!(grown < 16 * 1_024, "{grown} KiB after {memory}");
}

/// Over several connections, as fast as they go.
async fn send_many(world: &World, count: usize) {
    const SENDERS: usize = 8;
    let senders = (0..SENDERS).map(|_| {
        let mut client = api::Client::new(world.server.address(), world.server.token());
        tokio::spawn(async move {
            for number in 0..count / SENDERS {
                let body = json!({"eventType": "order.paid", "payload": {"n": number}});
                client.create("/api/v1/app/shop/msg", &body).await;
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.expect("all were accepted");
    }
}

/// The most that it has had in memory, in KiB.
fn memory_of(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test]
async fn a_drill_says_what_was_seen_and_leaves_nothing_behind() {
    let world = World::start().await;
    let listed = world.lines(&["drill", "--list"]);
    assert!(listed.iter().all(|story| story["about"].is_string()), "{listed:?}");
    let names = |stories: &[Value]| stories.iter().map(|story| text(&story["story"])).collect::<BTreeSet<_>>();
    // All of them, side by side: it takes as long as the longest.
    let played = world.lines(&["drill"]);
    assert_eq!((names(&played), played.len()), (names(&listed), 13));
    for story in &played {
        assert!(story["ok"] == true && story["checks"].as_array().expect("a list").len() > 2, "{story}");
    }
    let told = world.done(&["drill", "--story", "healthy"]);
    assert!(told.starts_with("healthy  ok  ") && told.ends_with("1 of 1 stories went as they should.\n"), "{told}");
    let apps = world.api_list("/api/v1/app").await;
    assert_eq!(apps.len(), 1, "only the shop is left: {apps:?}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_is_made_listed_and_given_another_url_and_its_log_read() {
    let mut world = World::start().await;
    let (code, stdout, stderr) =
        world.run(&["sources", "create", "--name", "GitHub", "--type", "github", "--secret", "s", "--uid", "gh"]);
    assert_eq!(code, Some(0), "{stderr}");
    let url = stdout.trim();
    assert!(
        url.starts_with(&format!("{}/ingest/in/", world.server.url())) && stderr.contains("Made src_"),
        "{stdout}{stderr}"
    );
    let [listed] = &world.lines(&["sources", "list"])[..] else { panic!("one source") };
    assert_eq!((&listed["uid"], &listed["type"], &listed["ingestUrl"]), (&json!("gh"), &json!("github"), &json!(url)));
    assert!(world.done(&["sources", "list"]).contains("GitHub"));
    assert!(world.done(&["sources", "log", "gh"]).is_empty());

    let path = url.strip_prefix(&world.server.url()).expect("it is ours").to_owned();
    let (status, _) = world.api.send(http::Method::POST, &path, &[], "{}").await.expect("an answer");
    assert_eq!(status.as_u16(), 401);
    let logged = eventually("the log", async || world.lines(&["sources", "log", "gh"]).pop()).await;
    assert_eq!(logged["status_code"], 401);
    assert!(world.done(&["sources", "log", "gh"]).contains("x-hub-signature-256 is missing"));
    let rotated = world.json(&["sources", "rotate", "gh"]);
    assert_ne!(text(&rotated["ingestUrl"]), url);

    for (arguments, code, said) in [
        (&["sources", "create", "--name", "Xy", "--type", "fax"][..], 1, "is none of generic-webhook"),
        (&["sources", "create", "--name", "Xy", "--type", "hmac", "--config", "{"], 2, "--config is not JSON"),
        (&["sources", "log", "nowhere"], 1, "404"),
    ] {
        let (ended, _, stderr) = world.run(arguments);
        assert!(ended == Some(code) && stderr.contains(said), "{arguments:?}: {ended:?} {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poller_is_made_and_fetched_by_and_deleted() {
    let world = World::start().await;
    world.done(&["send", "--app", "shop", "--create-app", "--event-type", "order.paid", "{}"]);
    let made = world.done(&["pollers", "create", "--app", "shop", "--uid", "till", "--description", "Shop till"]);
    assert!(made.starts_with("poll_"), "{made}");
    let [listed] = &world.lines(&["pollers", "list", "--app", "shop"])[..] else { panic!("one poller") };
    assert_eq!((&listed["id"], &listed["uid"]), (&json!(made.trim()), &json!("till")));
    assert!(world.done(&["pollers", "list", "--app", "shop"]).contains("Shop till"));
    for number in 0..3 {
        world.done(&["send", "--app", "shop", "--event-type", "order.paid", &format!("{{\"n\": {number}}}")]);
    }
    let token = world.done(&["pollers", "token", "--app", "shop", "till"]);
    let fetch = ["pollers", "fetch", "--app", "shop", "till", "--consumer", "me", "--token", token.trim()];
    let first = world.lines(&[&fetch[..], &["--limit", "2"]].concat());
    assert_eq!(first.iter().map(|message| &message["payload"]["n"]).collect::<Vec<_>>(), [0, 1]);
    let rest = world.lines(&fetch);
    assert_eq!(rest.iter().map(|message| &message["payload"]["n"]).collect::<Vec<_>>(), [2]);
    assert!(world.lines(&fetch).is_empty());
    let [consumer] = &world.lines(&["pollers", "consumers", "--app", "shop", "till"])[..] else { panic!("one") };
    assert_eq!(consumer["consumerId"], "me");
    assert!(world.done(&["pollers", "consumers", "--app", "shop", "till"]).contains("me"));
    world.done(&["pollers", "seek", "--app", "shop", "till", "--consumer", "me", "--after", "1h"]);
    assert_eq!(world.lines(&fetch).len(), 4, "what was before it, too");

    let another = world.done(&["pollers", "token", "--app", "shop", "till", "--rotate", "--overlap", "0"]);
    assert_ne!(another, token);
    for (arguments, code, said) in [
        (&fetch[..], 1, "did not accept the token"),
        (&["pollers", "fetch", "--app", "shop", "nowhere", "--consumer", "me"], 1, "404"),
        (&["pollers", "create", "--app", "shop", "--uid", "till"], 1, "has this uid"),
        (&["pollers", "create", "--app", "shop", "--event-type", "never.heard"], 1, "never.heard"),
        (&["pollers", "token", "--app", "shop", "till", "--overlap", "5"], 2, "--rotate"),
    ] {
        let (ended, _, stderr) = world.run(arguments);
        assert!(ended == Some(code) && stderr.contains(said), "{arguments:?}: {ended:?} {stderr}");
    }
    world.done(&["pollers", "forget", "--app", "shop", "till", "--consumer", "me"]);
    assert!(world.lines(&["pollers", "consumers", "--app", "shop", "till"]).is_empty());
    world.done(&["pollers", "delete", "--app", "shop", "till"]);
    assert!(world.lines(&["pollers", "list", "--app", "shop"]).is_empty());
}

/// Not on the command line, which others on the machine can read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_secret_of_a_source_comes_by_a_file_standard_input_or_a_variable() {
    let mut world = World::start().await;
    let file = world.folder.path().join("secret.txt");
    fs::write(&file, "s3cret\r\n").expect("written");
    let empty = world.folder.path().join("empty.txt");
    fs::write(&empty, "\n").expect("written");
    let (file, empty) = (file.to_str().expect("text"), empty.to_str().expect("text"));
    let run = |world: &World, more: &[&str], variable: &str, input: &str| {
        let arguments = [&["sources", "create", "--name", "Some"], more].concat();
        let mut command = postrider(world.folder.path(), &arguments);
        command.env("POSTRIDER_URL", world.server.url()).env("POSTRIDER_TOKEN", world.server.token());
        command.env("POSTRIDER_SECRET", variable).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        // It may end without having read.
        let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
        ended(&child.wait_with_output().expect("it ends"))
    };
    let token = r#"{"header": "x-vapi-secret"}"#;
    for (more, variable, input) in [
        (&["--type", "vapi", "--secret-file", file][..], "", ""),
        (&["--type", "vapi", "--secret-file", file], "another", ""),
        (&["--type", "vapi", "--secret-file", "-"], "", "s3cret\n"),
        (&["--type", "vapi", "--secret-file", "-"], "another", "s3cret"),
        (&["--type", "vapi"], "s3cret", ""),
        (&["--type", "vapi", "--secret", "s3cret"], "another", ""),
        (&["--type", "vapi", "--config", r#"{"secret": "s3cret"}"#], "another", ""),
        // What the type calls it, beside what else it wants.
        (&["--type", "token", "--config", token, "--secret-file", file], "", ""),
        (&["--type", "token", "--config", token], "s3cret", ""),
    ] {
        let (code, stdout, stderr) = run(&world, more, variable, input);
        assert_eq!(code, Some(0), "{more:?}: {stderr}");
        let path = stdout.trim().strip_prefix(&world.server.url()).expect("it is ours").to_owned();
        for (given, expected) in [("s3cret", 200), ("another", 401)] {
            let headers = [("x-vapi-secret", given)];
            let (status, _) = world.api.send(http::Method::POST, &path, &headers, "{}").await.expect("an answer");
            assert_eq!(status.as_u16(), expected, "{more:?} {given:?}");
        }
    }
    let before = world.lines(&["sources", "list"]).len();
    for (more, code, said) in [
        (&["--type", "vapi", "--secret-file", empty][..], 2, "there is no secret in"),
        (&["--type", "vapi", "--secret-file", "-"], 2, "there is no secret in -"),
        (&["--type", "vapi", "--secret-file", "nowhere.txt"], 1, "reading the secret from nowhere.txt"),
        (&["--type", "vapi", "--secret-file", file, "--secret", "x"], 2, "cannot be used with"),
        (&["--type", "vapi", "--secret-file", file, "--config", r#"{"secret": "x"}"#], 2, "give it once"),
        (&["--type", "vapi", "--secret-file", file, "--config", "[]"], 2, "must be an object"),
        (&["--type", "generic-webhook", "--secret-file", file], 1, "this type has none"),
    ] {
        let (ended, stdout, stderr) = run(&world, more, "", "");
        assert!(ended == Some(code) && stderr.contains(said), "{more:?}: {ended:?} {stderr}");
        assert!(!format!("{stdout}{stderr}").contains("s3cret"), "{more:?}: {stderr}");
    }
    assert_eq!(world.lines(&["sources", "list"]).len(), before, "nothing was made");
    let (code, _, stderr) = run(&world, &["--type", "generic-webhook"], "for something else", "");
    assert_eq!(code, Some(0), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_cannot_be_read_is_told_of() {
    let mut world = World::start().await;
    world.done(&["sources", "create", "--name", "Spoiled", "--type", "generic-webhook"]);
    world.server.stop();
    spoil_source(&world.server, "Spoiled").await;
    world.server.start_again();
    for more in [&[][..], &["--json"]] {
        let (code, stdout, stderr) = world.run(&[&["sources", "list"], more].concat());
        assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
        assert!(stderr.contains("(Spoiled) cannot be read") && !stderr.contains("there are no"), "{stderr}");
    }
}
