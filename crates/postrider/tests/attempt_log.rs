//! One line in the log for each attempt, with all that a person asks about it and nothing that must not be there.

mod support;

use serde_json::{Value, json};
use support::{eventually, receiver::Answer, world::World};

const CANARIES: [&str; 4] = ["canary-payload", "canary-header", "canary-query", "canary-answer"];

async fn world(log: &str) -> World {
    let mut world = World::start_with(&["--log", log, "--log-format", "json"]).await;
    let answer =
        Answer::Full { status: 503, headers: vec![("retry-after", "1".to_owned())], body: "canary-answer".into() };
    world.receiver.script("/busy?key=canary-query", [answer], Answer::Status(204));
    let url = world.receiver.url("/busy?key=canary-query");
    world.endpoint("/busy", json!({"url": url, "headers": {"x-key": "canary-header"}})).await;
    world
}

fn lines(world: &World) -> Vec<Value> {
    let log = world.server.log();
    let lines =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    lines.filter(|line| line["target"] == "postrider::attempts").collect()
}

#[tokio::test]
async fn an_attempt_is_one_line_with_everything_in_it() {
    let mut world = world("info,postrider::attempts=debug").await;
    let message = world.send_with("invoice.paid", json!({"payload": {"secret": "canary-payload"}})).await;
    let (end, attempts) = world.end(&message, "busy").await;
    assert_eq!((end.as_str(), attempts.len()), ("success", 2));
    let told = eventually("both lines", async || Some(lines(&world)).filter(|lines| lines.len() == 2)).await;
    let endpoint = world.get("endpoint/busy").await["id"].clone();
    let application = world.get("").await["id"].clone();
    for line in &told {
        assert_eq!(line["message"], "attempt", "{line}");
        assert_eq!((&line["message_id"], &line["endpoint_id"]), (&json!(message), &endpoint), "{line}");
        assert_eq!((&line["application_id"], &line["event_type"]), (&application, &json!("invoice.paid")), "{line}");
        assert_eq!((&line["trigger"], &line["cycle"]), (&json!("scheduled"), &json!(0)), "{line}");
        for number in ["duration_ms", "late_ours_ms", "late_theirs_ms"] {
            assert!(line[number].is_u64(), "{number}: {line}");
        }
    }
    let [first, second] = &told[..] else { unreachable!("two were awaited") };
    let expected = [
        ("attempt", json!(1)),
        ("status", json!(503)),
        ("class", json!("transient")),
        ("next", json!("retry")),
        ("retry_after_ms", json!(1_000)),
    ];
    for (name, value) in expected {
        assert_eq!(first[name], value, "{first}");
    }
    assert_eq!(first["rule"], attempts[0]["verdict"]["rule"]);
    let delay = &attempts[0]["verdict"]["delay"];
    assert_eq!((&first["wait_ms"], &first["backoff_ms"]), (&delay["waitMs"], &delay["backoffMs"]), "{first}");
    assert_eq!(first["next_at"], attempts[0]["verdict"]["nextAttempt"], "when, as the API says it: {first}");
    assert_eq!(
        (&second["attempt"], &second["class"], &second["next"]),
        (&json!(2), &json!("delivered"), &json!("delivered"))
    );
    assert!(second.get("next_at").is_none() && second.get("death").is_none(), "{second}");
    let log = world.server.log();
    for canary in CANARIES {
        assert!(!log.contains(canary), "{canary} in {log}");
    }
}

#[tokio::test]
async fn a_delivery_that_is_given_up_says_why() {
    let mut world = world("info,postrider::attempts=debug").await;
    world.receiver.always("/refuses", Answer::Status(400));
    world.endpoint("/refuses", json!({})).await;
    let message = world.send("a.b").await;
    world.end(&message, "refuses").await;
    let told =
        eventually("the last line", async || lines(&world).into_iter().find(|line| line["next"] == "dead")).await;
    assert_eq!((&told["death"], &told["class"]), (&json!("permanent"), &json!("permanent")), "{told}");
}

#[tokio::test]
async fn without_being_asked_for_there_is_none() {
    let mut world = world("info").await;
    let message = world.send("a.b").await;
    world.end(&message, "busy").await;
    assert_eq!(lines(&world).len(), 0);
}
