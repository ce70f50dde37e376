//! What servers, applications, endpoints and event types say about deliveries: read back as it was written, refused
//! where it makes no sense, and obeyed on the wire.

mod support;

use postrider::rules::Rules;
use postrider_signature::{PrivateKey, Secret, Signed, Verifier};
use serde_json::{Value, json};
use std::time::Duration;
use support::{
    house::House,
    now,
    receiver::Answer,
    world::{World, hasty, joined, with_header},
};

/// Every field, each with a value that is not its default.
fn everything() -> Value {
    json!({
        "retryPolicy": {
            "preset": "stripe",
            "schedule": {"type": "exponential", "base": "30s", "factor": 1.5, "cap": "1h"},
            "jitter": {"type": "proportional", "percent": 50},
            "maxAttempts": 7,
            "giveUpAfter": "3d",
            "ambiguous": {"maxAttempts": 3, "giveUpAfter": "30m"},
            "holdFor": "10d",
            "retryAfter": {"mode": "override", "cap": "12h"},
            "followRedirects": 2,
        },
        "statusOverrides": {"200": "retry", "404": "success", "5xx": "permanent", "network": "retry", "timeout": "permanent"},
        "timeouts": {"connect": "1s", "firstByte": "2s", "total": "3s500ms"},
        "circuitBreaker": {"failures": 3, "coolDown": "1s", "coolDownMax": "1m", "whileOpen": "dead-letter"},
        "maxInFlight": 3,
        "ordering": "fifo",
        "signature": {"style": "stripe", "header": "x-acme-signature", "idHeader": "x-acme-id"},
        "autoDisable": {"failingFor": "2d", "permanentStreak": 50},
    })
}

/// The same fields, each said in another way: what is written, and what is read back.
fn other_ways() -> Vec<(&'static str, Value, Value)> {
    let same = |name, value: Value| (name, value.clone(), value);
    vec![
        ("retryPolicy", json!("asoasis-debug"), json!({"preset": "asoasis-debug"})),
        same("retryPolicy", json!({"schedule": {"type": "fixed", "interval": "10m"}, "jitter": "full"})),
        (
            "retryPolicy",
            json!({"schedule": {"type": "table", "delays": ["1s", "1m"]}, "jitter": "decorrelated"}),
            json!({"schedule": {"type": "table", "delays": ["1s", "1m"], "then": "repeat"}, "jitter": "decorrelated"}),
        ),
        same("retryPolicy", json!({"schedule": {"type": "table", "delays": ["1s"], "then": "stop"}, "jitter": "none"})),
        same("retryPolicy", json!({"jitter": {"type": "additive", "percent": 0}, "retryAfter": {"mode": "longest"}})),
        same(
            "retryPolicy",
            json!({"schedule": {"type": "exponential", "base": "5s", "factor": 100}, "jitter": "equal"}),
        ),
        same("retryPolicy", json!({})),
        same("statusOverrides", json!({})),
        same("statusOverrides", json!({"ambiguous": "permanent", "certificate": "retry", "dns": "permanent"})),
        same("timeouts", json!({"total": "1m"})),
        same("circuitBreaker", json!(false)),
        ("circuitBreaker", json!(true), json!({})),
        same("circuitBreaker", json!({"whileOpen": "hold"})),
        same("maxInFlight", json!(1_000)),
        same("ordering", json!("none")),
        same("ordering", json!("key")),
        same("signature", json!({"style": "standard"})),
        same("signature", json!({"style": "scheme", "header": "x-signature"})),
        (
            "signature",
            json!({"style": "scheme", "header": "X-Signature", "idHeader": "X-Id"}),
            json!({"style": "scheme", "header": "x-signature", "idHeader": "x-id"}),
        ),
        same("autoDisable", json!(false)),
        same("autoDisable", json!({"failingFor": false, "permanentStreak": false})),
    ]
}

/// The rules' fields of an answer.
fn rules_in(answer: &Value) -> Value {
    let fields = everything();
    let named = |(name, value): (&String, &Value)| fields.get(name).is_some().then(|| (name.clone(), value.clone()));
    Value::Object(answer.as_object().expect("an object").iter().filter_map(named).collect())
}

/// An application and an endpoint: the path of each, and the least that must be said of it.
fn places() -> [(&'static str, Value); 2] {
    [
        ("app/acme", json!({"name": "Acme", "uid": "acme"})),
        ("app/acme/endpoint/hook", json!({"url": "https://example.com/hook", "uid": "hook"})),
    ]
}

async fn house() -> House {
    let house = House::new();
    for (path, least) in places() {
        house.call("PUT", path, least).await.expect(201);
    }
    house.post("event-type", json!({"name": "a.b", "description": ""})).await.expect(201);
    house
}

#[tokio::test]
async fn what_was_written_is_read_back() {
    let house = house().await;
    for (path, least) in places() {
        let written = house.call("PUT", path, joined(least.clone(), &everything())).await.expect(200);
        assert_eq!(rules_in(&written), everything(), "{path}");
        assert_eq!(rules_in(&house.get(path).await.expect(200)), everything(), "{path}");
        for (field, said, shown) in other_ways() {
            let answer = house.call("PATCH", path, json!({field: said})).await.expect(200);
            assert_eq!(answer[field], shown, "{path}");
            assert_eq!(house.get(path).await.expect(200)[field], shown, "{path}");
        }
    }
    let made = house.post("app", joined(json!({"name": "New", "uid": "new"}), &everything())).await.expect(201);
    assert_eq!(rules_in(&made), everything());
    let body = joined(json!({"url": "https://example.com", "uid": "new"}), &everything());
    assert_eq!(rules_in(&house.post("app/new/endpoint", body).await.expect(201)), everything());
    let listed = house.get("app/new/endpoint").await.expect(200);
    assert_eq!(rules_in(&listed["data"][0]), everything());
}

#[tokio::test]
async fn what_is_absent_stays_and_null_takes_it_away() {
    let house = house().await;
    for (path, least) in places() {
        house.call("PATCH", path, everything()).await.expect(200);
        // Clients of the contract know nothing of our fields and must not undo them.
        assert_eq!(rules_in(&house.call("PUT", path, least.clone()).await.expect(200)), everything(), "{path}");
        assert_eq!(rules_in(&house.call("PATCH", path, json!({})).await.expect(200)), everything(), "{path}");
        let mut left = everything();
        for (n, field) in everything().as_object().expect("fields").keys().enumerate() {
            let (method, body) = if n % 2 == 0 {
                ("PATCH", json!({field: null}))
            } else {
                ("PUT", joined(least.clone(), &json!({field: null})))
            };
            left.as_object_mut().expect("fields").remove(field);
            assert_eq!(rules_in(&house.call(method, path, body).await.expect(200)), left, "{path} {field}");
        }
        assert_eq!(rules_in(&house.get(path).await.expect(200)), json!({}), "{path}");
    }
}

#[tokio::test]
async fn an_event_type_says_what_concerns_one_delivery_and_nothing_else() {
    let house = house().await;
    let all = everything();
    let said = json!({
        "retryPolicy": all["retryPolicy"],
        "statusOverrides": all["statusOverrides"],
        "timeouts": all["timeouts"],
    });
    let made = house.post("event-type", joined(json!({"name": "c", "description": ""}), &said)).await.expect(201);
    assert_eq!(rules_in(&made), said);
    let without = |field: &str| {
        let mut left = said.clone();
        left.as_object_mut().expect("fields").remove(field);
        left
    };
    let changed = joined(without("timeouts"), &json!({"retryPolicy": {"preset": "twilio"}}));
    for (method, path, body, status, expected) in [
        ("PUT", "event-type/c", json!({"description": "x"}), 200, said.clone()),
        ("PATCH", "event-type/c", json!({"deprecated": true}), 200, said.clone()),
        ("PUT", "event-type/c", json!({"description": "x", "timeouts": null}), 200, without("timeouts")),
        ("PATCH", "event-type/c", json!({"retryPolicy": "twilio"}), 200, changed),
        ("PATCH", "event-type/c", json!({"retryPolicy": null, "statusOverrides": null}), 200, json!({})),
        (
            "PUT",
            "event-type/d",
            json!({"description": "x", "retryPolicy": "github"}),
            201,
            json!({"retryPolicy": {"preset": "github"}}),
        ),
    ] {
        house.call(method, path, body.clone()).await.expect(status);
        assert_eq!(rules_in(&house.get(path).await.expect(200)), expected, "{method} {body}");
    }
    for field in ["circuitBreaker", "maxInFlight", "ordering", "signature", "autoDisable"] {
        house.call("PATCH", "event-type/c", json!({field: all[field]})).await.expect(422);
    }
    for (body, place, word) in nonsense() {
        let concerns_one = ["retryPolicy", "statusOverrides", "timeouts"].iter().any(|field| body.get(field).is_some());
        if concerns_one {
            let refused = house.call("PATCH", "event-type/c", body).await.expect(422);
            let flaw = &refused["detail"][0];
            assert!(flaw["msg"].as_str().is_some_and(|text| text.contains(word)), "{place} {word}: {refused}");
        }
    }
    assert_eq!(rules_in(&house.get("event-type/c").await.expect(200)), json!({}));
}

/// What is wrong, the place that is named, and a word of the reason.
fn nonsense() -> Vec<(Value, &'static str, &'static str)> {
    let policy = |inside: Value| json!({"retryPolicy": inside});
    let schedule = |inside: Value| json!({"retryPolicy": {"schedule": inside}});
    let exponential = |base: &str, factor: Value| json!({"type": "exponential", "base": base, "factor": factor});
    let signed = |header: &str| json!({"signature": {"style": "stripe", "header": header}});
    vec![
        (policy(json!("nobody")), "retryPolicy", "there is no preset `nobody`"),
        (policy(json!({"preset": "nobody"})), "retryPolicy.preset", "there is no preset `nobody`"),
        (policy(json!(5)), "retryPolicy", "the name of a preset, or an object"),
        (policy(json!({"attempts": 5})), "retryPolicy.attempts", "unknown field `attempts`"),
        (policy(json!({"maxAttempts": 0})), "retryPolicy.maxAttempts", "must be from 1 to 1000, and is 0"),
        (policy(json!({"maxAttempts": 1_001})), "retryPolicy.maxAttempts", "must be from 1 to 1000"),
        (policy(json!({"maxAttempts": -1})), "retryPolicy.maxAttempts", "-1"),
        (policy(json!({"maxAttempts": 1.5})), "retryPolicy.maxAttempts", "1.5"),
        (policy(json!({"giveUpAfter": 60})), "retryPolicy.giveUpAfter", "with a unit"),
        (policy(json!({"giveUpAfter": "60"})), "retryPolicy.giveUpAfter", "has no unit"),
        (policy(json!({"giveUpAfter": "soon"})), "retryPolicy.giveUpAfter", "`soon` is not a duration"),
        (policy(json!({"giveUpAfter": "-1s"})), "retryPolicy.giveUpAfter", "negative"),
        (policy(json!({"giveUpAfter": "0s"})), "retryPolicy.giveUpAfter", "must be from 1 ms"),
        (policy(json!({"giveUpAfter": "31d"})), "retryPolicy.giveUpAfter", "to 30 d, and is 31 d"),
        (policy(json!({"giveUpAfter": "999999999999999d"})), "retryPolicy.giveUpAfter", "hundred years"),
        (policy(json!({"holdFor": "1000d"})), "retryPolicy.holdFor", "must be from"),
        (policy(json!({"jitter": "some"})), "retryPolicy.jitter", "`some`"),
        (policy(json!({"jitter": "additive"})), "retryPolicy.jitter", "needs a percentage"),
        (policy(json!({"jitter": {"type": "additive", "percent": 101}})), "retryPolicy.jitter", "from 0 to 100"),
        (policy(json!({"jitter": {"type": "full", "percent": 10}})), "retryPolicy.jitter", "has no percentage"),
        (policy(json!({"followRedirects": 6})), "retryPolicy.followRedirects", "must be from 0 to 5"),
        (policy(json!({"ambiguous": {"maxAttempts": 0}})), "retryPolicy.ambiguous.maxAttempts", "must be from 1"),
        (policy(json!({"ambiguous": {"after": "1s"}})), "retryPolicy.ambiguous.after", "unknown field"),
        (policy(json!({"retryAfter": {"mode": "ignore"}})), "retryPolicy.retryAfter.mode", "`ignore`"),
        (policy(json!({"retryAfter": {"cap": "31d"}})), "retryPolicy.retryAfter.cap", "must be from"),
        (schedule(json!({"type": "linear"})), "retryPolicy.schedule.type", "`linear`"),
        (schedule(json!({"base": "1s"})), "retryPolicy.schedule", "`type`"),
        (schedule(json!({"type": "exponential"})), "retryPolicy.schedule", "`base`"),
        (
            schedule(json!({"type": "fixed", "interval": "1s", "base": "1s"})),
            "retryPolicy.schedule",
            "unknown field `base`",
        ),
        (schedule(exponential("1s", json!(0))), "retryPolicy.schedule", "from 1 to 100"),
        (schedule(exponential("1s", json!(0.5))), "retryPolicy.schedule", "from 1 to 100"),
        (schedule(exponential("1s", json!(101))), "retryPolicy.schedule", "from 1 to 100"),
        (schedule(exponential("1s", json!(1.2345))), "retryPolicy.schedule", "three decimals"),
        (schedule(exponential("0s", json!(2))), "retryPolicy.schedule.base", "must be from 1 ms"),
        (schedule(exponential("x", json!(2))), "retryPolicy.schedule", "`x` is not a duration"),
        (
            schedule(json!({"type": "exponential", "base": "2h", "cap": "1h"})),
            "retryPolicy.schedule.base",
            "longer than the cap",
        ),
        (schedule(json!({"type": "fixed", "interval": "31d"})), "retryPolicy.schedule.interval", "must be from"),
        (schedule(json!({"type": "table", "delays": []})), "retryPolicy.schedule.delays", "at least one"),
        (schedule(json!({"type": "table", "delays": ["31d"]})), "retryPolicy.schedule.delays", "must be from"),
        (schedule(json!({"type": "table", "delays": vec!["1s"; 1_001]})), "retryPolicy.schedule.delays", "1000"),
        (schedule(json!({"type": "table", "delays": ["1s"], "then": "again"})), "retryPolicy.schedule", "`again`"),
        (json!({"statusOverrides": {"666": "retry"}}), "statusOverrides", "`666` is no outcome"),
        (json!({"statusOverrides": {"6xx": "retry"}}), "statusOverrides", "`6xx` is no outcome"),
        (json!({"statusOverrides": {"weather": "retry"}}), "statusOverrides", "`weather` is no outcome"),
        (json!({"statusOverrides": {"404": "ignore"}}), "statusOverrides", "`success`, `retry` or `permanent`"),
        (json!({"statusOverrides": {"404": 1}}), "statusOverrides.404", "string"),
        (json!({"statusOverrides": {"timeout": "success"}}), "statusOverrides", "cannot be a success"),
        (json!({"statusOverrides": {"network": "success"}}), "statusOverrides", "cannot be a success"),
        (json!({"statusOverrides": ["404"]}), "statusOverrides", "an object"),
        (json!({"timeouts": {"total": "61s"}}), "timeouts.total", "to 1 min, and is 1 min 1 s"),
        (json!({"timeouts": {"connect": "0s"}}), "timeouts.connect", "must be from 1 ms"),
        (
            json!({"timeouts": {"firstByte": "16s"}}),
            "timeouts.firstByte",
            "longer than the timeout of the whole attempt",
        ),
        (json!({"timeouts": {"connect": "10s", "total": "9s", "firstByte": "9s"}}), "timeouts.connect", "longer than"),
        (json!({"timeouts": {"read": "1s"}}), "timeouts.read", "unknown field"),
        (json!({"timeouts": "1s"}), "timeouts", "an object with connect"),
        (json!({"circuitBreaker": {"failures": 0}}), "circuitBreaker.failures", "must be from 1"),
        (json!({"circuitBreaker": {"coolDown": "0s"}}), "circuitBreaker.coolDown", "must be from"),
        (json!({"circuitBreaker": {"coolDown": "1h"}}), "circuitBreaker.coolDown", "longer than the longest cool-down"),
        (json!({"circuitBreaker": {"whileOpen": "drop"}}), "circuitBreaker.whileOpen", "`drop`"),
        (json!({"circuitBreaker": "off"}), "circuitBreaker", "`false`, `true` or an object"),
        (json!({"maxInFlight": 0}), "maxInFlight", "must be from 1 to 1000, and is 0"),
        (json!({"maxInFlight": 1_001}), "maxInFlight", "must be from 1 to 1000"),
        (json!({"maxInFlight": 70_000}), "maxInFlight", "70000"),
        (json!({"ordering": "random"}), "ordering", "`random`"),
        (json!({"autoDisable": {"failingFor": "0s"}}), "autoDisable.failingFor", "must be from 1 s"),
        (json!({"autoDisable": {"failingFor": true}}), "autoDisable.failingFor", "`false`"),
        (json!({"autoDisable": {"permanentStreak": 0}}), "autoDisable.permanentStreak", "must be from 1"),
        (json!({"autoDisable": {"permanentStreak": -1}}), "autoDisable.permanentStreak", "-1"),
        (json!({"autoDisable": {"after": "1d"}}), "autoDisable.after", "unknown field"),
        (json!({"signature": {"style": "paypal"}}), "signature.style", "`paypal`"),
        (json!({"signature": {"style": "stripe"}}), "signature", "`header`"),
        (json!({"signature": {"style": "standard", "header": "x-a"}}), "signature", "unknown field `header`"),
        (signed("host"), "signature", "`host` cannot be set"),
        (signed("Content-Type"), "signature", "`content-type` cannot be set"),
        (signed("webhook-signature"), "signature", "`webhook-signature` cannot be set"),
        (signed("svix-id"), "signature", "cannot be set"),
        (signed("authorization"), "signature", "cannot be set"),
        (signed("a b"), "signature", "not the name of a header"),
        (signed("a\r\nb: c"), "signature", "not the name of a header"),
        (signed(""), "signature", "not the name of a header"),
        (
            json!({"signature": {"style": "scheme", "header": "x-a", "idHeader": "transfer-encoding"}}),
            "signature",
            "cannot be set",
        ),
        (
            json!({"signature": {"style": "scheme", "header": "x-a", "idHeader": "X-A"}}),
            "signature.idHeader",
            "carries the signature",
        ),
    ]
}

#[tokio::test]
async fn nonsense_is_refused_by_name_and_changes_nothing() {
    let house = house().await;
    let mut missed = Vec::new();
    for (path, least) in places() {
        house.call("PATCH", path, json!({"maxInFlight": 7})).await.expect(200);
        let before = house.get(path).await.expect(200);
        for (body, place, word) in nonsense() {
            for (method, body) in [("PATCH", body.clone()), ("PUT", joined(least.clone(), &body))] {
                let answer = house.call(method, path, body.clone()).await;
                let flaw = answer.json()["detail"][0].clone();
                let loc: Vec<&str> = flaw["loc"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let as_told = answer.status == 422
                    && loc.join(".") == format!("body.{place}")
                    && flaw["msg"].as_str().is_some_and(|text| text.contains(word));
                if !as_told {
                    missed.push(format!(
                        "{method} {body:.120}\n    {place}: {word}\n    {} {}",
                        answer.status, answer.text
                    ));
                }
            }
        }
        assert_eq!(house.get(path).await.expect(200), before, "{path}");
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    let doubled = r#"{"statusOverrides":{"404":"retry","404":"success"}}"#;
    let request = http::Request::patch("/api/v1/app/acme").header("authorization", format!("Bearer {}", house.token));
    let answer = house.ask(request.body(doubled.into()).expect("a request")).await.expect(422);
    assert_eq!(answer["detail"][0]["loc"], json!(["body", "statusOverrides"]));
}

#[tokio::test]
async fn what_contradicts_a_level_further_away_is_refused() {
    let house = house().await;
    house.call("PATCH", "app/acme", json!({"timeouts": {"firstByte": "10s"}})).await.expect(200);
    let path = "app/acme/endpoint/hook";
    let refused = house.call("PATCH", path, json!({"timeouts": {"total": "5s"}})).await.expect(422);
    assert_eq!(refused["detail"][0]["loc"], json!(["body", "timeouts", "firstByte"]));
    house.call("PATCH", path, json!({"timeouts": {"total": "5s", "firstByte": "5s"}})).await.expect(200);
}

#[tokio::test]
async fn what_someone_further_away_brought_about_is_not_held_against_another_change() {
    let house = house().await;
    let path = "app/acme/endpoint/hook";
    house.call("PATCH", path, json!({"timeouts": {"firstByte": "10s"}})).await.expect(200);
    house.call("PATCH", "app/acme", json!({"timeouts": {"total": "6s", "firstByte": "6s"}})).await.expect(200);
    house.call("PATCH", path, json!({"maxInFlight": 3})).await.expect(200);
    house.call("PUT", path, json!({"url": "https://example.com/", "uid": "hook"})).await.expect(200);
    house.call("PATCH", path, json!({"timeouts": {"firstByte": "9s"}})).await.expect(422);
}

#[tokio::test]
async fn a_schedule_is_not_cut_by_a_cap_that_was_meant_for_another() {
    let house = house().await;
    let path = "app/acme/endpoint/hook";
    let capped = json!({"type": "exponential", "base": "1s", "cap": "1m"});
    house.call("PATCH", "app/acme", json!({"retryPolicy": {"schedule": capped, "jitter": "none"}})).await.expect(200);
    let second = async |query: &str| {
        house.get(&format!("{path}/schedule{query}")).await.expect(200)["attempts"][1]["nominal"].clone()
    };
    for (schedule, expected) in [
        (json!({"type": "fixed", "interval": "10m"}), "10m"),
        (json!({"type": "exponential", "base": "10m"}), "10m"),
        (json!({"type": "table", "delays": ["2d"]}), "2d"),
        (json!({"type": "fixed", "interval": "10m", "cap": "20m"}), "10m"),
    ] {
        house.call("PATCH", path, json!({"retryPolicy": {"schedule": schedule}})).await.expect(200);
        assert_eq!(second("").await, expected, "{schedule}");
    }
    let two_hours = json!({"retrySchedule": [{"secs": 7_200, "nanos": 0}]});
    house.call("PATCH", path, json!({"retryPolicy": {"schedule": capped}})).await.expect(200);
    house.call("PUT", "event-type/a.b/retry-schedule", two_hours).await.expect(200);
    assert_eq!(second("?event_type=a.b").await, "2h");
}

#[tokio::test]
async fn the_contracts_retry_schedule_is_kept_in_the_policy() {
    let house = house().await;
    let path = "event-type/a.b/retry-schedule";
    assert_eq!(house.get(path).await.expect(200), json!({"retrySchedule": null}));
    let schedule = json!({"retrySchedule": [{"secs": 5, "nanos": 0}, {"secs": 300, "nanos": 500_000_000}]});
    assert_eq!(house.call("PUT", path, schedule.clone()).await.expect(200), schedule);
    assert_eq!(house.get(path).await.expect(200), schedule);
    let policy = house.get("event-type/a.b").await.expect(200)["retryPolicy"].clone();
    let table = json!({"type": "table", "delays": ["5s", "5m500ms"], "then": "stop"});
    assert_eq!(policy, json!({"schedule": table, "maxAttempts": 3, "giveUpAfter": "4d"}));

    let never = json!({"retrySchedule": []});
    assert_eq!(house.call("PUT", path, never.clone()).await.expect(200), never, "no retry at all");
    assert_eq!(
        house.get("event-type/a.b").await.expect(200)["retryPolicy"],
        json!({"maxAttempts": 1, "giveUpAfter": "4d"})
    );
    house.call("PUT", path, json!({"retrySchedule": null})).await.expect(200);
    assert_eq!(house.get("event-type/a.b").await.expect(200).get("retryPolicy"), None);

    house.call("PATCH", "event-type/a.b", json!({"retryPolicy": "stripe"})).await.expect(200);
    assert_eq!(house.get(path).await.expect(200), json!({"retrySchedule": null}), "no table, so there is none to show");
    for body in [
        json!({"retrySchedule": [{"secs": 5, "nanos": 1_000_000_000}]}),
        json!({"retrySchedule": [{"secs": 5, "nanos": 1}]}),
        json!({"retrySchedule": vec![json!({"secs": 86_400, "nanos": 0}); 31]}),
        json!({"retrySchedule": [{"secs": -5, "nanos": 0}]}),
        json!({"retrySchedule": [{"secs": 5}]}),
        json!({"retrySchedule": [{"secs": 5_000_000_000_u64, "nanos": 0}]}),
        json!({"retrySchedule": vec![json!({"secs": 5, "nanos": 0}); 101]}),
        json!({"schedule": null}),
    ] {
        house.call("PUT", path, body).await.expect(422);
    }
    assert_eq!(house.get("event-type/a.b").await.expect(200)["retryPolicy"], json!({"preset": "stripe"}));
    house.get("event-type/nobody/retry-schedule").await.expect(404);
}

#[tokio::test]
async fn the_nearest_one_wins_field_by_field() {
    let every = |interval: &str| json!({"retryPolicy": {"schedule": {"type": "fixed", "interval": interval}}});
    let server = json!({
        "retryPolicy": {"schedule": {"type": "fixed", "interval": "1s"}, "jitter": "none", "maxAttempts": 3}
    });
    let server: Rules = serde_json::from_value(server).expect("rules");
    let house = House::with_rules(server.layer());
    for (path, least) in places() {
        house.call("PUT", path, least).await.expect(201);
    }
    house.post("event-type", json!({"name": "a.b", "description": ""})).await.expect(201);
    let schedule = async |query: &str| {
        let shown = house.get(&format!("app/acme/endpoint/hook/schedule{query}")).await.expect(200);
        let second = shown["attempts"][1]["nominal"].as_str().expect("a second attempt").to_owned();
        (second, shown["maxAttempts"].as_u64().expect("a number"))
    };
    assert_eq!(schedule("").await, ("1s".to_owned(), 3));
    house.call("PATCH", "app/acme", every("2s")).await.expect(200);
    assert_eq!(schedule("").await, ("2s".to_owned(), 3), "what the application leaves out is the server's");
    house.call("PATCH", "app/acme/endpoint/hook", every("3s")).await.expect(200);
    assert_eq!(schedule("").await, ("3s".to_owned(), 3));
    let four = joined(every("4s"), &json!({}));
    house.call("PATCH", "event-type/a.b", four).await.expect(200);
    assert_eq!(schedule("?event_type=a.b").await, ("4s".to_owned(), 3));
    assert_eq!(schedule("").await, ("3s".to_owned(), 3), "of other types");
    house.call("PATCH", "app/acme/endpoint/hook", json!({"retryPolicy": {"maxAttempts": 4}})).await.expect(200);
    assert_eq!(schedule("").await, ("2s".to_owned(), 4));
    assert_eq!(schedule("?event_type=a.b").await, ("4s".to_owned(), 4));
    house.call("PATCH", "app/acme", json!({"retryPolicy": null})).await.expect(200);
    assert_eq!(schedule("").await, ("1s".to_owned(), 4));
    house.call("PATCH", "app/acme/endpoint/hook", json!({"retryPolicy": "twilio"})).await.expect(200);
    assert_eq!(schedule("").await, ("15s".to_owned(), 2), "a preset starts from itself");
    house.get("app/acme/endpoint/hook/schedule?event_type=nobody").await.expect(404);
}

#[tokio::test]
async fn a_schedule_is_previewed_before_it_is_chosen() {
    let house = House::new();
    let presets = house.get("preset").await.expect(200);
    let names: Vec<&str> = presets.as_array().expect("a list").iter().filter_map(|it| it["name"].as_str()).collect();
    assert!(names.len() >= 18 && names.contains(&"default") && names.contains(&"shopify-2024"), "{names:?}");
    for preset in presets.as_array().expect("a list") {
        let shown = house.post("schedule", json!({"retryPolicy": preset["name"]})).await.expect(200);
        assert_eq!(shown["maxAttempts"], preset["maxAttempts"], "{preset}");
        assert_eq!(shown["giveUpAfter"], preset["giveUpAfter"], "{preset}");
        assert_eq!(shown["attempts"][0]["nominal"], "0s", "{preset}");
    }
    let policy = json!({"schedule": {"type": "fixed", "interval": "1h"}, "jitter": "equal", "maxAttempts": 100, "giveUpAfter": "2h"});
    let shown = house.post("schedule", json!({"retryPolicy": policy})).await.expect(200);
    assert_eq!((&shown["attempts"][1]["earliest"], &shown["attempts"][1]["latest"]), (&json!("30m"), &json!("1h")));
    assert!(!shown["warnings"].as_array().expect("a list").is_empty(), "a hundred attempts can never be used: {shown}");
    house.post("schedule", json!({"retryPolicy": "nobody"})).await.expect(422);
    house.post("schedule", json!({"maxInFlight": 0})).await.expect(422);
}

#[tokio::test]
async fn an_override_moves_an_outcome() {
    let mut world = World::start().await;
    let overrides = json!({"404": "success", "5xx": "permanent", "503": "retry", "400": "retry", "200": "retry"});
    for (path, status, expected, attempts) in [
        ("/404", 404, "success", 1),
        ("/500", 500, "fail", 1),
        ("/503", 503, "fail", 3),
        ("/400", 400, "fail", 3),
        ("/200", 200, "fail", 3),
        ("/201", 201, "success", 1),
        ("/403", 403, "fail", 1),
    ] {
        world.receiver.always(path, Answer::Status(status));
        world.endpoint(path, json!({"statusOverrides": overrides})).await;
        let message = world.send("a.b").await;
        let (end, tried) = world.end(&message, &path[1..]).await;
        assert_eq!((end.as_str(), tried.len()), (expected, attempts), "{path}: {tried:?}");
        let said = world.receiver.arrivals_at(path).iter().filter(|it| it.header("webhook-id") == message).count();
        assert_eq!(said, attempts, "{path}");
        // What agrees with what would have been done anyway is not worth a word.
        let is_moved = ![201, 403, 503].contains(&status);
        assert_eq!(tried[0]["verdict"]["rule"] == "override", is_moved, "{path}: {}", tried[0]);
    }
}

#[tokio::test]
async fn an_event_types_policy_goes_before_the_endpoints() {
    let mut world = World::start().await;
    let once = json!({"name": "once", "description": "", "retryPolicy": {"maxAttempts": 1}});
    world.client.create("/api/v1/event-type", &once).await;
    world.receiver.always("/down", Answer::Status(500));
    world.endpoint("/down", json!({})).await;
    let (rare, common) = (world.send("once").await, world.send("often").await);
    assert_eq!(world.end(&rare, "down").await.1.len(), 1);
    assert_eq!(world.end(&common, "down").await.1.len(), 3);
    let twice = r#"{"retryPolicy":{"maxAttempts":2}}"#;
    let changed = world.client.send(http::Method::PATCH, "/api/v1/event-type/once", &[], twice).await;
    assert_eq!(changed.expect("an answer").0, 200);
    let again = world.send("once").await;
    assert_eq!(world.end(&again, "down").await.1.len(), 2, "a change acts at once");

    let fine = json!({"name": "fine", "description": "", "statusOverrides": {"500": "success"}});
    world.client.create("/api/v1/event-type", &fine).await;
    let fine = world.send("fine").await;
    assert_eq!(world.end(&fine, "down").await.0, "success");
    let there = world.receiver.url("/there");
    world.receiver.always("/moved", with_header(307, "location", &there));
    world.endpoint("/moved", json!({})).await;
    let follows = json!({"name": "follows", "description": "", "retryPolicy": {"followRedirects": 1}});
    world.client.create("/api/v1/event-type", &follows).await;
    let (stays, follows) = (world.send("stays").await, world.send("follows").await);
    assert_eq!(world.end(&stays, "moved").await.0, "fail");
    assert_eq!(world.end(&follows, "moved").await.0, "success");
}

#[tokio::test]
async fn a_timeout_is_the_endpoints_own() {
    let mut world = World::start().await;
    world.receiver.always("/hanging", Answer::Hang);
    let timeouts = json!({"total": "300ms", "firstByte": "200ms", "connect": "100ms"});
    world.endpoint("/hanging", json!({"timeouts": timeouts, "retryPolicy": hasty(1)})).await;
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "hanging").await;
    assert_eq!((end.as_str(), attempts.len()), ("fail", 1));
    assert_eq!(attempts[0]["verdict"]["rule"], "timeout", "{attempts:?}");
    let lasted = attempts[0]["responseDurationMs"].as_u64().expect("a number");
    // The default would be fifteen seconds.
    assert!((200..14_000).contains(&lasted), "{lasted} ms");
}

#[tokio::test]
async fn redirects_are_followed_where_that_is_asked_for() {
    let mut world = World::start().await;
    let to = world.receiver.url("/there");
    for (path, status, follows, arrives) in
        [("/refused", 307, 0, false), ("/followed", 307, 1, true), ("/kept", 308, 5, true), ("/changed", 302, 5, false)]
    {
        world.receiver.always(path, with_header(status, "location", &to));
        let rules = json!({"retryPolicy": {"followRedirects": follows}});
        world.endpoint(path, rules).await;
        let message = world.send("a.b").await;
        let (end, attempts) = world.end(&message, &path[1..]).await;
        assert_eq!(end, if arrives { "success" } else { "fail" }, "{path}: {attempts:?}");
        let there = world.receiver.arrivals_at("/there");
        let came: Vec<_> = there.iter().filter(|it| it.header("webhook-id") == message).collect();
        assert_eq!(came.len(), usize::from(arrives), "{path}");
        for arrival in came {
            assert_eq!((&arrival.method, arrival.body.as_ref()), (&http::Method::POST, &br#"{"n":1}"#[..]), "{path}");
        }
        world.call(http::Method::DELETE, &format!("endpoint{path}"), Value::Null).await;
    }
    for (from, to) in [("/1", "/2"), ("/2", "/3"), ("/3", "/4"), ("/4", "/5")] {
        world.receiver.always(from, with_header(307, "location", &world.receiver.url(to)));
    }
    world.endpoint("/1", json!({"retryPolicy": {"followRedirects": 3, "maxAttempts": 1}})).await;
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "1").await;
    assert_eq!((end.as_str(), attempts.len()), ("fail", 1), "{attempts:?}");
    let came = ["/1", "/2", "/3", "/4", "/5"].map(|path| world.receiver.arrivals_at(path).len());
    assert_eq!(came, [1, 1, 1, 1, 0], "the first and three more");
}

#[tokio::test]
async fn a_signature_stands_in_the_header_that_was_chosen() {
    let mut world = World::start().await;
    for (path, style) in [("/stripe", "stripe"), ("/scheme", "scheme"), ("/github", "github")] {
        let signature = json!({"style": style, "header": "X-Acme-Signature", "idHeader": "X-Acme-Id"});
        world.endpoint(path, json!({"signature": signature})).await;
    }
    let message = world.send("a.b").await;
    for (path, style) in [("/stripe", "stripe"), ("/scheme", "scheme"), ("/github", "github")] {
        let arrival = world.receiver.wait_for(path, 1).await.remove(0);
        let secret = world.get(&format!("endpoint{path}/secret")).await;
        let secret = Secret::parse(secret["key"].as_str().expect("a key")).expect("a secret");
        let verifier = Verifier::new([secret]);
        let (header, now) = (arrival.header("x-acme-signature"), now().as_second());
        let verified = match style {
            "stripe" => verifier.verify_stripe(header, &arrival.body, now),
            "scheme" => verifier.verify_scheme(header, &arrival.body, now),
            _ => verifier.verify_github(header, &arrival.body),
        };
        verified.unwrap_or_else(|error| panic!("{path}: {error} in {header}"));
        assert_eq!((arrival.header("x-acme-id"), arrival.header("webhook-id")), (&*message, &*message));
        assert!(arrival.headers.contains_key("webhook-signature"), "the standard one is always there");
        let wrong = [arrival.body.as_ref(), b" "].concat();
        assert!(verifier.verify_stripe(header, &wrong, now).and(verifier.verify_scheme(header, &wrong, now)).is_err());
        assert!(verifier.verify_github(header, &wrong).is_err());
    }
}

#[tokio::test]
async fn receivers_can_move_from_one_form_to_another() {
    let mut world = World::start().await;
    let forms = json!([
        {"style": "stripe", "header": "x-old", "idHeader": "x-id"},
        {"style": "github", "header": "x-hub-signature-256"},
    ]);
    world.endpoint("/both", json!({"signature": forms})).await;
    assert_eq!(world.get("endpoint/both").await["signature"], forms);
    let message = world.send("a.b").await;
    let arrival = world.receiver.wait_for("/both", 1).await.remove(0);
    let secret = world.get("endpoint/both/secret").await;
    let verifier = Verifier::new([Secret::parse(secret["key"].as_str().expect("a key")).expect("a secret")]);
    assert_eq!(verifier.verify_stripe(arrival.header("x-old"), &arrival.body, now().as_second()), Ok(()));
    assert_eq!(verifier.verify_github(arrival.header("x-hub-signature-256"), &arrival.body), Ok(()));
    assert_eq!(arrival.header("x-id"), message);
}

#[tokio::test]
async fn what_a_private_key_signs_is_verified_with_the_public_one() {
    let mut world = World::start().await;
    let pair = PrivateKey::from_seed(&[7; 32]);
    world
        .endpoint("/pair", json!({"secret": pair.reveal(), "signature": {"style": "stripe", "header": "x-old"}}))
        .await;
    let shown = world.get("endpoint/pair/secret").await;
    assert_eq!(shown["key"], pair.public().to_string(), "the private half is told nobody");
    let message = world.send("a.b").await;
    let arrival = world.receiver.wait_for("/pair", 1).await.remove(0);
    let verifier = Verifier::new([pair.public()]);
    let signed = |arrival: &support::receiver::Arrival| {
        let headers = Signed {
            id: arrival.header("webhook-id"),
            timestamp: arrival.header("webhook-timestamp"),
            signature: arrival.header("webhook-signature"),
        };
        verifier.verify(headers, &arrival.body, now().as_second())
    };
    assert_eq!((arrival.header("webhook-id"), signed(&arrival)), (&*message, Ok(())));
    assert!(!arrival.headers.contains_key("x-old"), "there is no secret to make it with");

    let id = world.get("endpoint/pair").await["id"].as_str().expect("an id").to_owned();
    let keys = public_keys(&mut world, &id).await;
    assert_eq!((keys.len(), keys[0]["crv"].as_str()), (1, Some("Ed25519")));
    // Rotated to a secret: both sign until the old one's time is over.
    let own = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    world.post("endpoint/pair/secret/rotate", json!({"key": own})).await;
    world.send("a.b").await;
    let arrival = world.receiver.wait_for("/pair", 2).await.remove(1);
    assert_eq!(signed(&arrival), Ok(()));
    let signature = arrival.header("webhook-signature");
    assert!(signature.starts_with("v1,") && signature.contains(" v1a,"), "{signature}");
    assert_eq!(public_keys(&mut world, &id).await.len(), 1);
    assert!(arrival.headers.contains_key("x-old"));
}

async fn public_keys(world: &mut World, endpoint: &str) -> Vec<Value> {
    let set: Value = world.client.get(&format!("/.well-known/jwks/{endpoint}")).await.expect("the server answers");
    set["keys"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_receiver_can_call_off_a_message() {
    let mut world = World::start().await;
    world.receiver.always("/abort", with_header(503, "webhook-delivery", "abort-message"));
    world.endpoint("/abort", json!({})).await;
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "abort").await;
    assert_eq!((end.as_str(), attempts.len()), ("fail", 1), "{attempts:?}");
    assert_eq!(world.get("endpoint/abort").await["disabled"], false, "only the message is called off");
}

#[tokio::test]
async fn no_more_requests_are_open_than_the_endpoint_allows() {
    let mut world = World::start().await;
    world.receiver.always("/two", Answer::Status(204).after(Duration::from_millis(20)));
    world.endpoint("/two", json!({"maxInFlight": 2})).await;
    for _ in 0..30 {
        world.send("a.b").await;
    }
    let arrivals = world.receiver.wait_for("/two", 30).await;
    let open_at = |at| arrivals.iter().filter(|it| it.opened <= at && it.closed.is_none_or(|end| at < end)).count();
    let most = arrivals.iter().map(|arrival| open_at(arrival.opened)).max();
    assert!(most <= Some(2), "{most:?} at once");
}

#[tokio::test]
async fn the_servers_own_rules_come_from_its_settings() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, "[rules]\nretryPolicy = \"twilio\"\n").expect("written");
    let mut world = World::start_with(&["--config", file.path().to_str().expect("a path of text")]).await;
    world.endpoint("/plain", json!({"retryPolicy": null})).await;
    let shown = world.get("endpoint/plain/schedule").await;
    assert_eq!(shown["maxAttempts"], 2, "{shown}");
}

/// What can be turned off is answered as `false`, which a client made from the document must be able to read.
#[tokio::test]
async fn the_document_allows_for_what_is_turned_off() {
    let house = house().await;
    let request = http::Request::get("/openapi.json").body(axum::body::Body::empty()).unwrap();
    let document = house.ask(request).await.expect(200);
    for (name, form) in [("failingFor", "FailingForForm"), ("permanentStreak", "PermanentStreakForm")] {
        let field = &document["components"]["schemas"]["AutoDisable"]["properties"][name];
        assert!(field.to_string().contains(form), "{field}");
        let forms = document["components"]["schemas"][form]["oneOf"].as_array().expect("one of several");
        assert!(forms.iter().any(|form| form["type"] == "boolean"), "{forms:?}");
    }
}
