//! What `/metrics` shows of a server that has had all kinds of things happen to it, by the judgement of Prometheus' own tool;
//! and that the guide, the dashboard and the alerts speak of the same metrics.

mod support;

use http::Method;
use postrider::telemetry::names::{self, Kind, METRICS};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use support::{
    eventually,
    receiver::Answer,
    stores::{StoreKind, on_both_stores},
    world::{World, hasty},
};

on_both_stores! {
    async
    everything_that_happens_is_counted_and_prometheus_has_nothing_to_say_against_it,
}

async fn everything_that_happens_is_counted_and_prometheus_has_nothing_to_say_against_it(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.always("/down", Answer::Status(500));
    world.receiver.always("/refuses", Answer::Status(400));
    world.receiver.always("/late", Answer::Status(503).on_first_try_else(Answer::Status(204)));
    for name in ["hard", "refused", "twice", "easy", "slow"] {
        world.client.create("/api/v1/event-type", &json!({"name": name, "description": name})).await;
    }
    let breaker = json!({"failures": 3, "coolDown": "1h", "coolDownMax": "1h", "whileOpen": "hold"});
    let down =
        json!({"maxInFlight": 1, "retryPolicy": hasty(1_000), "circuitBreaker": breaker, "eventTypes": ["hard"]});
    world.endpoint("/down", down).await;
    world.endpoint("/refuses", json!({"eventTypes": ["refused"]})).await;
    world.endpoint("/late", json!({"eventTypes": ["twice"]})).await;
    world.endpoint("/well", json!({"eventTypes": ["easy"]})).await;
    let slow = Answer::Status(204).after(Duration::from_millis(120));
    world.receiver.always("/slow", slow);
    world.endpoint("/slow", json!({"maxInFlight": 1, "eventTypes": ["slow"]})).await;

    world.send("hard").await;
    world.send("hard").await;
    for (event_type, endpoint, many) in
        [("refused", "refuses", 2), ("twice", "late", 3), ("easy", "well", 4), ("slow", "slow", 10)]
    {
        let mut sent = Vec::new();
        for _ in 0..many {
            sent.push(world.send(event_type).await);
        }
        for message in sent {
            world.end(&message, endpoint).await;
        }
    }
    world.health_that_is("down", "tripped").await;
    let down = world.get("endpoint/down").await["id"].as_str().expect("an id").to_owned();
    let application = world.get("").await["id"].as_str().expect("an id").to_owned();
    let labels = format!("application=\"{application}\",endpoint=\"{down}\"");
    // Some of it is looked up, every few seconds.
    let report = r#"{"csp-report": {"blocked-uri": "inline"}}"#;
    assert_eq!(world.client.send(Method::POST, "/csp-report", &[], report).await.expect("an answer").0, 204);
    let page = eventually("a breaker that is open, and what waits behind it", async || {
        let page = world.client.metrics().await;
        let is_seen = value(&page, "postrider_breakers{state=\"open\"}") == Some(1.0)
            && value(&page, "postrider_deliveries_waiting") == Some(2.0)
            && value(&page, &format!("postrider_endpoint_breaker_state{{{labels}}}")) == Some(2.0);
        is_seen.then_some(page)
    })
    .await;

    for (series, expected) in [
        ("postrider_messages_accepted_total", 21.0),
        ("postrider_attempts_total{class=\"delivered\"}", 17.0),
        ("postrider_attempts_total{class=\"permanent\"}", 2.0),
        ("postrider_attempts_total{class=\"transient\"}", 6.0),
        ("postrider_deliveries_total{result=\"delivered\"}", 17.0),
        ("postrider_deliveries_total{result=\"dead\"}", 2.0),
        ("postrider_delivery_attempts_bucket{result=\"delivered\",le=\"1\"}", 14.0),
        ("postrider_delivery_attempts_bucket{result=\"delivered\",le=\"2\"}", 17.0),
        ("postrider_delivery_duration_seconds_count{tries=\"one\"}", 14.0),
        ("postrider_delivery_duration_seconds_count{tries=\"more\"}", 3.0),
        ("postrider_dead_letters_total{reason=\"permanent\"}", 2.0),
        ("postrider_dead_letters_total{reason=\"exhausted\"}", 0.0),
        ("postrider_attempt_lateness_seconds_count{whose=\"ours\"}", 25.0),
        ("postrider_attempt_lateness_seconds_count{whose=\"theirs\"}", 25.0),
        ("postrider_breakers_opened_total", 1.0),
        ("postrider_breakers{state=\"half_open\"}", 0.0),
        ("postrider_endpoints_disabled_total{reason=\"failing\"}", 0.0),
        ("postrider_event_type_messages_accepted_total{event_type=\"easy\"}", 4.0),
        ("postrider_event_type_attempts_total{event_type=\"twice\",class=\"transient\"}", 3.0),
        ("postrider_event_type_deliveries_total{event_type=\"refused\",result=\"dead\"}", 2.0),
        ("postrider_event_type_attempt_duration_seconds_count{event_type=\"slow\"}", 10.0),
        ("postrider_event_type_delivery_duration_seconds_count{event_type=\"slow\"}", 10.0),
    ] {
        assert_eq!(value(&page, series), Some(expected), "{series}\n{page}");
    }
    // Ten one after the other, each of 120 ms: that the last ones waited was the endpoint's doing, not ours.
    let late = |whose: &str| {
        value(&page, &format!("postrider_attempt_lateness_seconds_sum{{whose=\"{whose}\"}}")).unwrap_or(0.0)
    };
    assert!(late("theirs") > 3.0, "{}", late("theirs"));
    assert!(late("ours") < late("theirs"), "{} {}", late("ours"), late("theirs"));
    assert!(value(&page, "postrider_oldest_due_seconds{whose=\"theirs\"}").is_some_and(|age| age > 0.0), "{page}");

    for (series, expected) in [
        (format!("postrider_endpoint_breaker_state{{{labels}}}"), 2.0),
        (format!("postrider_endpoint_deliveries_waiting{{{labels}}}"), 2.0),
        (format!("postrider_endpoint_attempts_total{{{labels},class=\"transient\"}}"), 3.0),
        (format!("postrider_application_messages_accepted_total{{application=\"{application}\"}}"), 21.0),
    ] {
        assert_eq!(value(&page, &series), Some(expected), "{series}\n{page}");
    }

    promtool(&["check", "metrics"], Path::new("."), &page);
    assert!(is_refused(&["check", "metrics"], "a_counter 1\n"), "the tool does look");
    let exported: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let known: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    assert!(exported.is_subset(&known), "not in the table: {:?}", exported.difference(&known));
    let missing: Vec<&&str> = known.difference(&exported).collect();
    let may_miss = |name: &str| name.starts_with("postrider_outbox_") || name.contains("_certificate");
    assert!(missing.iter().all(|name| may_miss(name)), "in the table and not shown: {missing:?}");
}

#[test]
fn every_metric_has_a_line_in_the_guide_and_the_guide_has_no_others() {
    let guide = read("docs/guide/metrics.md") + &read("docs/guide/outbox.md");
    for metric in METRICS {
        let is_listed = guide.lines().any(|line| {
            line.starts_with(&format!("| `{}", metric.name)) && {
                let kind = line.split('|').nth(2).unwrap_or_default();
                kind.contains(metric.kind.word())
            }
        });
        assert!(is_listed, "{} ({}) is not in docs/guide/metrics.md", metric.name, metric.kind.word());
    }
    for name in named_in(&guide) {
        assert!(is_exported(&name), "the guide speaks of {name}, which there is not");
    }
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_what_there_is() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/postrider.json")).expect("JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 20));
    for (file, names_min) in [
        ("deploy/grafana/postrider.json", 25),
        ("deploy/prometheus/postrider.rules.yml", 15),
        ("deploy/prometheus/postrider.rules.test.yml", 15),
        ("docs/operations/observing.md", 1),
    ] {
        let names = named_in(&read(file));
        assert!(names.len() >= names_min, "{file} names only {names:?}");
        for name in names {
            assert!(is_exported(&name), "{file} asks for {name}, which there is not");
        }
    }
}

#[test]
fn the_dashboard_is_well_formed_and_prometheus_understands_every_panel() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/postrider.json")).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut panels = list(&dashboard["panels"]);
    let inner: Vec<Value> = panels.iter().flat_map(|panel| list(&panel["panels"])).collect();
    panels.extend(inner);
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    assert!(!word(&dashboard["uid"]).is_empty() && dashboard["id"].is_null(), "it is known by its uid");

    let variables = list(&dashboard["templating"]["list"]);
    let names: BTreeSet<String> = variables.iter().map(|variable| word(&variable["name"])).collect();
    assert_eq!(names.len(), variables.len(), "{names:?}");
    let source = variables.iter().find(|variable| variable["name"] == "datasource").expect("one for the data source");
    assert_eq!((&source["type"], &source["query"]), (&json!("datasource"), &json!("prometheus")));
    let chosen = json!({"type": "prometheus", "uid": "${datasource}"});
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        assert_eq!(variable["datasource"], chosen, "{variable}");
        assert_eq!(variable["query"]["query"], variable["definition"], "{variable}");
    }

    let mut rules = Vec::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let (id, targets) = (&panel["id"], list(&panel["targets"]));
        assert_eq!(panel["datasource"], chosen, "panel {id}");
        assert!(!targets.is_empty() && !word(&panel["title"]).is_empty(), "panel {id}");
        let letters: BTreeSet<String> = targets.iter().map(|target| word(&target["refId"])).collect();
        assert_eq!(letters.len(), targets.len(), "panel {id}");
        for target in &targets {
            let expression = filled_in(&word(&target["expr"]), &names);
            rules.push(json!({"record": format!("panel:{id}_{}", word(&target["refId"])), "expr": expression}));
        }
    }
    assert!(rules.len() > 25, "{}", rules.len());
    let folder = tempfile::tempdir().expect("a folder");
    let write = |rules: &[Value]| {
        let text = json!({"groups": [{"name": "panels", "rules": rules}]}).to_string();
        fs::write(folder.path().join("panels.yml"), text).expect("written");
    };
    write(&rules);
    promtool(&["check", "rules", "panels.yml"], folder.path(), "");
    rules.push(json!({"record": "panel:broken", "expr": "sum(rate(x[5m])"}));
    write(&rules);
    assert!(!ask_promtool(&["check", "rules", "panels.yml"], folder.path(), "").0, "the tool does look");
}

/// As Grafana would ask it: with something in place of each variable. There are no others.
fn filled_in(expression: &str, variables: &BTreeSet<String>) -> String {
    let mut filled = expression.to_owned();
    for (name, value) in [("__rate_interval", "5m"), ("__interval", "1m"), ("__range", "1h")] {
        filled = filled.replace(&format!("${name}"), value).replace(&format!("${{{name}}}"), value);
    }
    for name in variables {
        filled = filled.replace(&format!("${{{name}}}"), ".*").replace(&format!("${name}"), ".*");
    }
    assert!(!filled.contains('$') && !filled.is_empty(), "{expression}");
    filled
}

#[test]
fn the_alerts_ring_when_they_should() {
    let folder = root().join("deploy/prometheus");
    promtool(&["check", "rules", "postrider.rules.yml"], &folder, "");
    promtool(&["test", "rules", "postrider.rules.test.yml"], &folder, "");
    let tested = read("deploy/prometheus/postrider.rules.test.yml");
    let handbook = read("docs/operations/observing.md");
    for alert in
        read("deploy/prometheus/postrider.rules.yml").lines().filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(tested.contains(&format!("- name: {alert}\n")), "{alert} has no test");
        assert!(tested.contains(&format!("alertname: {alert}, exp_alerts: []")), "{alert} may ring while all is well");
        assert!(handbook.contains(&format!("`{alert}`")), "nobody is told what to do about {alert}");
    }
}

/// The value of one series.
fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Every word in a text that looks like a metric of ours.
fn named_in(text: &str) -> BTreeSet<String> {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let words = text.split(|letter: char| !is_letter(letter)).filter(|word| word.starts_with("postrider_"));
    words.filter(|word| !word.ends_with('_')).map(str::to_owned).collect()
}

fn is_exported(name: &str) -> bool {
    let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|suffix| name.strip_suffix(suffix));
    let mut of_histogram = of_histogram.filter_map(names::find);
    names::find(name).is_some() || of_histogram.any(|metric| metric.kind == Kind::Histogram)
}

/// Runs it in a folder; it must have nothing to say against it.
fn promtool(arguments: &[&str], folder: &Path, input: &str) {
    let (is_fine, said) = ask_promtool(arguments, folder, input);
    assert!(is_fine, "promtool {arguments:?}: {said}");
}

fn is_refused(arguments: &[&str], input: &str) -> bool {
    !ask_promtool(arguments, Path::new("."), input).0
}

fn ask_promtool(arguments: &[&str], folder: &Path, input: &str) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool: {error}; scripts/needs promtool brings it"));
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // What it has to say about metrics without refusing them is not welcome either.
    let is_silent = said.lines().all(|line| line.trim().is_empty() || !input.contains("# TYPE"));
    (output.status.success() && is_silent, said)
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
