//! A deployment moved from its folder to PostgreSQL by the real binary, and served there.

mod support;

use http::Method;
use postrider::keyring::Keyring;
use postrider_testbed::Cluster;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};
use support::{api::Client, receiver::Answer, server::Server, world::World};

fn move_it(data: &Path, url: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["move", "--data", data.to_str().expect("text")])
        .current_dir(data)
        .env_clear()
        .env("POSTRIDER_DATABASE_URL", url)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What anyone can see of a deployment, as far as it stays the same while nothing is sent.
async fn seen(client: &mut Client, messages: &[String]) -> Vec<Value> {
    let mut all = Vec::new();
    for path in ["app", "event-type", "app/acme/endpoint", "app/acme/msg", "app/acme/dead-letter"] {
        all.extend(client.list::<Value>(&format!("/api/v1/{path}")).await.expect("an answer"));
    }
    for message in messages {
        all.extend(client.list::<Value>(&format!("/api/v1/app/acme/attempt/msg/{message}")).await.expect("an answer"));
    }
    for endpoint in ["live", "dead", "held"] {
        let path = format!("/api/v1/app/acme/endpoint/{endpoint}");
        all.push(client.get(&format!("{path}/secret")).await.expect("an answer"));
        all.push(client.get(&format!("{path}/health")).await.expect("an answer"));
    }
    all
}

#[tokio::test]
async fn a_deployment_goes_on_elsewhere_with_the_same_ids_and_what_waited() {
    let mut world = World::start().await;
    world.receiver.always("/dead", Answer::Status(400));
    for (path, more) in [("/live", json!({})), ("/dead", json!({})), ("/held", json!({"disabled": true}))] {
        world.endpoint(path, more).await;
    }
    let mut sent = Vec::new();
    for number in 0..20 {
        sent.push(world.send_with("a.b", json!({"eventId": format!("evt-{number}")})).await);
    }
    for message in &sent {
        assert_eq!(world.end(message, "live").await.0, "success");
        assert_eq!(world.end(message, "dead").await.0, "fail");
    }
    let before = seen(&mut world.client, &sent).await;
    let url = Cluster::shared().fresh_database().await;
    let data = world.server.data();

    let (code, _, stderr) = move_it(&data, &url);
    assert!(code == Some(1) && stderr.contains("is in use by process"), "{stderr}");
    assert!(world.server.stop().success());
    let (code, stdout, stderr) = move_it(&data, &url);
    assert_eq!(code, Some(0), "{stderr}");
    for row in [["message", "20"], ["attempt", "40"], ["dead", "20"], ["waiting", "20"]] {
        assert!(stdout.lines().any(|line| line.split_whitespace().eq(row)), "{row:?}: {stdout}");
    }
    let (code, _, stderr) = move_it(&data, &url);
    assert!(code == Some(1) && stderr.contains("was moved to PostgreSQL"), "{stderr}");

    let mut server = Server::not_started(&["--database-url", &url]);
    fs::create_dir(server.data()).expect("made");
    fs::copy(data.join(Keyring::FILE), server.data().join(Keyring::FILE)).expect("copied");
    server.start_again();
    let mut client = Client::new(server.address(), world.server.token());
    assert_eq!(seen(&mut client, &sent).await, before, "nobody can tell");
    let again = json!({"eventType": "a.b", "eventId": "evt-3", "payload": {}}).to_string();
    let (status, _) = client.send(Method::POST, "/api/v1/app/acme/msg", &[], &again).await.expect("an answer");
    assert_eq!(status, 409, "it is remembered");
    let enable = json!({"disabled": false}).to_string();
    let path = "/api/v1/app/acme/endpoint/held";
    let (status, _) = client.send(Method::PATCH, path, &[], &enable).await.expect("an answer");
    assert!(status.is_success());
    let mut arrived: Vec<_> = world.receiver.wait_for("/held", 20).await;
    arrived.sort_by(|left, right| left.header("webhook-id").cmp(right.header("webhook-id")));
    sent.sort();
    assert!(arrived.iter().map(|arrival| arrival.header("webhook-id")).eq(sent.iter().map(|id| &id[..])));
    assert!(server.stop().success());

    world.server.begin_again();
    assert_eq!(world.server.wait_for_end(support::PATIENCE).code(), Some(1));
    assert!(world.server.log().contains("was moved to PostgreSQL"), "{}", world.server.log());
}
