//! Traces from the producer by way of this server to the receiver, as a collector gets them. And that a collector which is
//! away, or hangs, costs nobody anything but the traces.

mod support;

use http::Method;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value as Attribute,
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use support::{
    api::Client,
    eventually,
    receiver::{Answer, Receiver},
    server::Server,
    stores::{StoreKind, on_both_stores},
    world::hasty,
};

on_both_stores! {
    async
    a_trace_goes_on_from_the_producer_to_every_attempt_even_after_a_restart,
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PRODUCER: &str = "00f067aa0ba902b7";

struct Scene {
    server: Server,
    client: Client,
    receiver: Receiver,
}

impl Scene {
    async fn start(store: StoreKind, variables: &[(&str, &str)], flags: &[&str]) -> Self {
        let mut server = Server::not_started_on(store);
        server.add_flags(flags);
        server.set_variables(variables);
        server.start_again();
        server.take_token();
        let mut client = Client::new(server.address(), server.token());
        client.create("/api/v1/app", &json!({"name": "Acme", "uid": "acme"})).await;
        Self { server, client, receiver: Receiver::start() }
    }

    async fn endpoint(&mut self, path: &str, policy: Value) {
        let body = json!({"url": self.receiver.url(path), "uid": &path[1..], "retryPolicy": policy});
        self.client.create("/api/v1/app/acme/endpoint", &body).await;
    }

    /// Says the message's id.
    async fn send(&mut self, headers: &[(&str, &str)]) -> String {
        let body = json!({"eventType": "invoice.paid", "payload": {"n": "canary-payload"}}).to_string();
        let sent = self.client.send(Method::POST, "/api/v1/app/acme/msg", headers, &body).await.expect("an answer");
        assert_eq!(sent.0, 202);
        let made: Value = serde_json::from_slice(&sent.1).expect("JSON");
        made["id"].as_str().expect("an id").to_owned()
    }
}

/// Every span that came to a collector.
fn spans(collector: &Receiver) -> Vec<Span> {
    let requests = collector.arrivals_at("/v1/traces").into_iter().map(|arrival| {
        assert_eq!(arrival.header("content-type"), "application/x-protobuf");
        ExportTraceServiceRequest::decode(arrival.body).expect("OTLP")
    });
    let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.clone()?.value? {
        Attribute::StringValue(text) => Some(text),
        Attribute::IntValue(number) => Some(number.to_string()),
        Attribute::BoolValue(is) => Some(is.to_string()),
        other => panic!("{name}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn a_trace_goes_on_from_the_producer_to_every_attempt_even_after_a_restart(store: StoreKind) {
    let collector = Receiver::start();
    collector.always("/v1/traces", Answer::Status(200));
    let url = collector.url("");
    let variables = [("POSTRIDER_OTLP_ENDPOINT", url.as_str()), ("POSTRIDER_TRACE_SAMPLE", "0")];
    let mut scene = Scene::start(store, &variables, &[]).await;
    scene.receiver.always("/late", Answer::Status(503));
    let slow = json!({"schedule": {"type": "fixed", "interval": "2s"}, "jitter": "none", "maxAttempts": 50});
    scene.endpoint("/late", slow).await;
    let parent = format!("00-{TRACE}-{PRODUCER}-01");
    let message = scene.send(&[("traceparent", &parent), ("tracestate", "congo=t61rcWkgMzE")]).await;
    let first = scene.receiver.wait_for("/late", 1).await;
    scene.server.stop();
    scene.receiver.always("/late", Answer::Status(204));
    scene.server.start_again();
    let arrivals = eventually("an attempt after the restart", async || {
        Some(scene.receiver.arrivals_at("/late")).filter(|all| all.len() > first.len())
    })
    .await;

    // By what the receivers saw, each attempt was a span of its own in the producer's trace.
    let seen: BTreeSet<String> = arrivals.iter().map(|arrival| arrival.header("traceparent").to_owned()).collect();
    assert_eq!(seen.len(), arrivals.len(), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.starts_with(&format!("00-{TRACE}-")) && seen.ends_with("-01")), "{seen:?}");
    assert!(!seen.contains(&parent), "{seen:?}");
    assert!(arrivals.iter().all(|arrival| arrival.header("tracestate") == "congo=t61rcWkgMzE"));

    let spans = eventually("all spans at the collector", async || {
        Some(spans(&collector)).filter(|spans| spans.len() > arrivals.len())
    })
    .await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:?}");
    let accepted: Vec<&Span> = spans.iter().filter(|span| span.name == "accept message").collect();
    let [accepted] = accepted[..] else { panic!("one was accepted: {spans:?}") };
    assert_eq!((hex(&accepted.parent_span_id).as_str(), accepted.kind()), (PRODUCER, SpanKind::Server));
    assert_eq!(attribute(accepted, "messaging.message.id"), Some(message.clone()));
    let attempts: Vec<&Span> = spans.iter().filter(|span| span.name == "deliver message").collect();
    assert_eq!(attempts.len(), arrivals.len());
    for span in &attempts {
        assert_eq!((&span.parent_span_id, span.kind()), (&accepted.span_id, SpanKind::Client), "of what was accepted");
        assert!(seen.contains(&format!("00-{TRACE}-{}-01", hex(&span.span_id))), "what the receiver was told");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        assert_eq!(attribute(span, "messaging.message.id"), Some(message.clone()));
        assert_eq!(attribute(span, "postrider.event_type").as_deref(), Some("invoice.paid"));
    }
    let failed =
        attempts.iter().find(|span| attribute(span, "postrider.attempt").as_deref() == Some("1")).expect("one");
    assert_eq!(attribute(failed, "http.response.status_code").as_deref(), Some("503"));
    assert_eq!(attribute(failed, "postrider.class").as_deref(), Some("transient"));
    assert!(attribute(failed, "postrider.next_at").is_some());
    assert!(failed.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error));
    let sent = format!("{spans:?}");
    assert!(!sent.contains("canary-payload") && !sent.contains("127.0.0.1"), "neither payloads nor addresses: {sent}");
}

#[tokio::test]
async fn without_a_collector_a_trace_is_passed_on_as_it_came_and_none_is_begun() {
    let mut scene = Scene::start(StoreKind::Sqlite, &[], &[]).await;
    scene.endpoint("/hook", hasty(3)).await;
    let parent = format!("00-{TRACE}-{PRODUCER}-01");
    scene.send(&[("traceparent", &parent), ("tracestate", "congo=t61rcWkgMzE")]).await;
    let [arrival] = &scene.receiver.wait_for("/hook", 1).await[..] else { panic!("one") };
    assert_eq!(arrival.header("traceparent"), parent);
    assert_eq!(arrival.header("tracestate"), "congo=t61rcWkgMzE");
    scene.send(&[]).await;
    scene.send(&[("traceparent", "00-not-a-trace-01")]).await;
    for arrival in &scene.receiver.wait_for("/hook", 3).await[1..] {
        assert!(!arrival.headers.contains_key("traceparent") && !arrival.headers.contains_key("tracestate"));
    }
    // An example is a message like any other.
    let path = "/api/v1/app/acme/endpoint/hook/send-example";
    let body = json!({"eventType": "svix.ping"}).to_string();
    let sent = scene.client.send(Method::POST, path, &[("traceparent", &parent)], &body).await.expect("an answer");
    assert_eq!(sent.0, 202);
    let arrived = scene.receiver.wait_for("/hook", 4).await;
    assert_eq!(arrived[3].header("traceparent"), parent);
}

#[tokio::test]
async fn of_what_comes_without_a_trace_a_share_is_traced() {
    let collector = Receiver::start();
    collector.always("/v1/traces", Answer::Status(200));
    let url = collector.url("");
    for (share, is_traced) in [("1", true), ("0", false)] {
        let variables = [("POSTRIDER_OTLP_ENDPOINT", url.as_str()), ("POSTRIDER_TRACE_SAMPLE", share)];
        let mut scene = Scene::start(StoreKind::Sqlite, &variables, &[]).await;
        scene.endpoint("/hook", hasty(3)).await;
        scene.send(&[]).await;
        let [arrival] = &scene.receiver.wait_for("/hook", 1).await[..] else { panic!("one") };
        assert_eq!(arrival.headers.contains_key("traceparent"), is_traced, "{share}");
        // What was not sent by then is sent before it ends.
        scene.server.stop();
        assert_eq!(spans(&collector).len(), 2, "all of the first, and none of the second");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_or_hangs_holds_nobody_up() {
    let hanging = Receiver::start();
    hanging.always("/v1/traces", Answer::Hang);
    // Nobody listens on the port of a receiver that is gone.
    let away = Receiver::start().url("");
    for url in [away, hanging.url("")] {
        let variables = [("POSTRIDER_OTLP_ENDPOINT", url.as_str()), ("POSTRIDER_TRACE_SAMPLE", "1")];
        let mut scene = Scene::start(StoreKind::Sqlite, &variables, &[]).await;
        scene.endpoint("/hook", hasty(3)).await;
        // More spans than fit into the queue, with those of the attempts.
        for _ in 0..2_500 {
            scene.send(&[]).await;
        }
        scene.receiver.wait_for("/hook", 2_500).await;
        eventually("spans that were dropped, and counted", async || {
            let metrics = scene.client.metrics().await;
            let line = metrics.lines().find_map(|line| line.strip_prefix("postrider_spans_dropped_total "))?;
            (line.parse::<u64>().ok()? > 0).then_some(())
        })
        .await;
        let asked = std::time::Instant::now();
        assert!(scene.server.stop().success());
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    }
}
