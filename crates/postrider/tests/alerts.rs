//! Alerts: found out by watching, told once, through every channel; and the button that tries them all.

mod support;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};
use support::{
    eventually,
    house::House,
    receiver::Answer,
    stores::{StoreKind, on_both_stores},
    world::{World, hasty, joined},
};

on_both_stores! {
    async
    an_application_whose_attempts_fail_is_told_of_once,
    the_test_alert_says_what_came_of_each_channel,
    a_node_whose_work_lies_is_not_ready_and_alive,
}

const OPERATIONAL: &str = "/api/v1/operational-webhook/endpoint";

async fn listen(world: &mut World, path: &str, more: Value) -> Value {
    let body = joined(json!({"url": world.receiver.url(path), "uid": &path[1..]}), &more);
    world.client.create(OPERATIONAL, &body).await["id"].clone()
}

fn events_at(world: &World, path: &str, name: &str) -> Vec<Value> {
    let arrivals = world.receiver.arrivals_at(path);
    let all = arrivals.iter().map(|arrival| serde_json::from_slice::<Value>(&arrival.body).expect("JSON"));
    all.filter(|event| event["type"] == name).collect()
}

fn with_variables(world: &mut World, variables: &[(&str, &str)]) {
    world.server.kill();
    world.server.set_variables(variables);
    world.start_again();
}

async fn test_alert(world: &mut World) -> Value {
    let sent = world.client.send(Method::POST, "/api/v1/alert/test", &[], "").await.expect("the server answers");
    assert_eq!(sent.0, 200, "{:?}", sent.1);
    serde_json::from_slice(&sent.1).expect("JSON")
}

async fn an_application_whose_attempts_fail_is_told_of_once(store: StoreKind) {
    let mut world = World::start_on(store).await;
    with_variables(&mut world, &[("POSTRIDER_ALERT_ATTEMPTS_MIN", "5")]);
    listen(&mut world, "/ops", json!({})).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", json!({"retryPolicy": hasty(8), "circuitBreaker": false})).await;
    world.send("a.b").await;
    let told = eventually("the alert", async || events_at(&world, "/ops", "postrider.application.failing").pop()).await;
    let data = &told["data"];
    assert_eq!((&data["appUid"], &data["successRate"]), (&json!("acme"), &json!(0.0)), "{told}");
    assert!(data["attempts"].as_u64() >= Some(5), "{told}");
    assert!(world.server.log().contains("too few attempts succeed"), "and in the log");
    // More of the same is no news.
    let more = world.send("a.b").await;
    world.end(&more, "down").await;
    let exhausted = || events_at(&world, "/ops", "message.attempt.exhausted").len();
    eventually("the last event", async || (exhausted() == 2).then_some(())).await;
    assert_eq!(events_at(&world, "/ops", "postrider.application.failing").len(), 1);
}

async fn the_test_alert_says_what_came_of_each_channel(store: StoreKind) {
    let mut world = World::start_on(store).await;
    assert_eq!(test_alert(&mut world).await, json!({"log": "written", "mail": {"status": "off"}, "webhooks": []}));
    assert!(world.server.log().contains("this is a test alert"));

    world.receiver.always("/bad", Answer::Status(500));
    let good = listen(&mut world, "/good", json!({"eventTypes": ["endpoint.disabled"]})).await;
    let bad = listen(&mut world, "/bad", json!({})).await;
    let off = listen(&mut world, "/off", json!({"disabled": true})).await;
    let came = test_alert(&mut world).await["webhooks"].clone();
    let of =
        |id: &Value| came.as_array().expect("a list").iter().find(|it| it["endpointId"] == *id).expect("it").clone();
    assert_eq!(of(&good)["status"], "delivered", "whatever it asked for");
    assert_eq!((&of(&bad)["status"], &of(&bad)["responseStatusCode"]), (&json!("failed"), &json!(500)));
    assert_eq!(of(&off)["status"], "disabled");
    assert_eq!(events_at(&world, "/good", "postrider.test").len(), 1);
}

async fn a_node_whose_work_lies_is_not_ready_and_alive(store: StoreKind) {
    let house = House::start_on(store).await;
    for (is_stuck, ready) in [(false, 204), (true, 503), (false, 204)] {
        house.api.alerts.watch.set_stuck(is_stuck);
        assert_eq!(house.get("health/ready").await.status, ready);
        for green in ["health/live", "health", "health/ping"] {
            assert_eq!(house.get(green).await.status, 204, "{green}");
        }
    }
    house.store.close().await;
    assert_eq!(house.get("health/live").await.status, 204, "whatever else is wrong");
}

#[tokio::test]
async fn alerts_are_mailed_and_a_broken_mail_server_holds_nobody_up() {
    let mut world = World::start().await;
    let post_office = PostOffice::open();
    let mail = |address: SocketAddr| format!("smtp+plain://someone:secret-canary@{address}");
    let settings = |server: &str| {
        [
            ("POSTRIDER_ALERT_MAIL_SERVER", server.to_owned()),
            ("POSTRIDER_ALERT_MAIL_FROM", "alerts@example.com".to_owned()),
            ("POSTRIDER_ALERT_MAIL_TO", "ops@example.com,boss@example.com".to_owned()),
        ]
    };
    let start = |world: &mut World, server: &str| {
        let settings = settings(server);
        with_variables(world, &settings.each_ref().map(|(name, value)| (*name, value.as_str())));
    };
    start(&mut world, &mail(post_office.address));
    assert_eq!(test_alert(&mut world).await["mail"], json!({"status": "sent"}));
    let letter = post_office.letters().pop().expect("a letter");
    for part in ["RCPT TO:<ops@example.com>", "RCPT TO:<boss@example.com>", "Nothing is wrong."] {
        assert!(letter.contains(part), "{part} in {letter}");
    }
    world.receiver.always("/gone", Answer::Status(410));
    world.endpoint("/gone", json!({})).await;
    world.send("a.b").await;
    let letter = eventually("a letter about it", async || {
        post_office.letters().into_iter().find(|letter| letter.contains("is disabled"))
    })
    .await;
    assert!(letter.contains("Endpoint ep_"), "{letter}");

    // Nobody there, one that says nothing, and one that takes nothing.
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    for server in [mail(closed), mail(silent.local_addr().expect("its address")), mail(PostOffice::refusing().address)]
    {
        start(&mut world, &server);
        let message = world.send("a.b");
        let sent = message.await;
        let failed = test_alert(&mut world).await["mail"].clone();
        assert_eq!(failed["status"], "failed", "{failed}");
        assert!(failed["detail"].as_str().is_some_and(|why| !why.contains("secret-canary")), "{failed}");
        assert!(!sent.is_empty() && !world.server.log().contains("secret-canary"));
    }
}

/// A mail server inside the test.
struct PostOffice {
    address: SocketAddr,
    letters: Arc<Mutex<Vec<String>>>,
}

impl PostOffice {
    fn open() -> Self {
        Self::answering("250 ok")
    }

    fn refusing() -> Self {
        Self::answering("550 not here")
    }

    fn answering(to_recipients: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let letters = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&letters);
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || serve(caller, to_recipients, &kept));
            }
        });
        Self { address, letters }
    }

    fn letters(&self) -> Vec<String> {
        self.letters.lock().expect("nobody panics").clone()
    }
}

fn serve(caller: TcpStream, to_recipients: &str, letters: &Mutex<Vec<String>>) -> Option<()> {
    let mut writer = caller.try_clone().ok()?;
    let mut lines = BufReader::new(caller).lines();
    let mut seen = String::new();
    writer.write_all(b"220 ready\r\n").ok()?;
    loop {
        let line = lines.next()?.ok()?;
        seen.push_str(&line);
        seen.push('\n');
        let answer = match line.split([' ', ':']).next()? {
            "EHLO" => "250-hello\r\n250 AUTH PLAIN",
            "AUTH" => "235 welcome",
            "RCPT" => to_recipients,
            "DATA" => {
                writer.write_all(b"354 go on\r\n").ok()?;
                loop {
                    let line = lines.next()?.ok()?;
                    if line == "." {
                        break;
                    }
                    seen.push_str(&line);
                    seen.push('\n');
                }
                let letter = std::mem::take(&mut seen);
                let (head, body) = letter.split_once("\n\n").expect("a head and a body");
                let body = BASE64_STANDARD.decode(body.replace('\n', "")).expect("base64");
                let read = format!("{head}\n\n{}", String::from_utf8(body).expect("text"));
                letters.lock().expect("nobody panics").push(read);
                "250 taken"
            }
            "QUIT" => "221 bye",
            _ => "250 ok",
        };
        writer.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
    }
}
