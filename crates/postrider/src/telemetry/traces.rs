//! Traces: a span when a message is taken in, and one for each attempt to deliver it, sent to a collector by OTLP.
//!
//! The place of a message in its trace is kept with it, so that an attempt after days, or after a restart, or on another node
//! is still part of the trace that the producer began. Spans leave through a bounded queue and a task of their own: a collector
//! that is slow or away costs spans, which are counted, and never holds up a delivery.

use super::collector::Collector;
use crate::ids::IdCodec;
use anyhow::Context as _;
use http::HeaderMap;
use opentelemetry::{
    Context, KeyValue,
    propagation::TextMapPropagator,
    trace::{Span as _, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor},
};
use postrider_engine::Timestamp;
use postrider_store::TraceContext;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use url::Url;

pub const TRACEPARENT: http::HeaderName = http::HeaderName::from_static("traceparent");
pub const TRACESTATE: http::HeaderName = http::HeaderName::from_static("tracestate");

/// Longer ones need not be passed on (W3C Trace Context, 3.3.1.5), and a row should stay small.
const TRACESTATE_LEN_MAX: usize = 512;

/// Spans that wait to be sent. A second's worth at 2,000 attempts a second that are all traced.
const QUEUE_MAX: usize = 4_096;
const BATCH_MAX: usize = 512;
/// How long it is waited for more, so that a batch is worth a request.
const GATHER: Duration = Duration::from_secs(1);
const EXPORT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a stop waits for the last spans.
const FINISH_TIME_MAX: Duration = Duration::from_secs(2);
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What an operator chose.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The collector.
    pub endpoint: Url,
    /// Of messages whose producer does not say, the share that is traced.
    pub sample: f64,
}

pub struct Traces {
    pub ids: IdCodec,
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    finish: Arc<Notify>,
    exporting: Mutex<Option<JoinHandle<()>>>,
}

impl Traces {
    /// Begins to send to the collector. It need not be there.
    pub fn start(
        settings: &TraceSettings,
        ids: IdCodec,
        node: &str,
        extra_ca_pem: Option<&[u8]>,
    ) -> anyhow::Result<Self> {
        let resource = Resource::builder()
            .with_service_name("postrider")
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", node.to_owned()),
            ])
            .build();
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(extra_ca_pem)?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(traces_url(&settings.endpoint))
            .with_timeout(EXPORT_TIME_MAX)
            .build()
            .context("preparing to send traces")?;
        exporter.set_resource(&resource);
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let finish = Arc::new(Notify::new());
        let exporting = tokio::spawn(export_all(queued, exporter, Arc::clone(&finish)));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Queue { spans: queue })
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample))))
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("postrider");
        Ok(Self { ids, tracer, provider, finish, exporting: Mutex::new(Some(exporting)) })
    }

    /// A message is being taken in. `None` if it is not traced.
    pub fn accepting(&self, given: Option<&TraceContext>, at: Timestamp) -> Option<Traced> {
        let parent = given.map_or_else(Context::new, remote);
        self.begin("accept message", SpanKind::Server, &parent, at)
    }

    /// A delivery is being tried, of a message that came with this.
    pub fn attempting(&self, message: &TraceContext, at: Timestamp) -> Option<Traced> {
        self.begin("deliver message", SpanKind::Client, &remote(message), at)
    }

    fn begin(&self, name: &'static str, kind: SpanKind, parent: &Context, at: Timestamp) -> Option<Traced> {
        let builder = self.tracer.span_builder(name).with_kind(kind).with_start_time(system_time(at));
        let span = builder.start_with_context(&self.tracer, parent);
        span.is_recording().then_some(Traced(span))
    }

    /// Sends what there is, if that can be done soon.
    pub async fn finish(&self) {
        let exporting = self.exporting.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.finish.notify_one();
        if let Some(exporting) = exporting {
            let _ = timeout(FINISH_TIME_MAX, exporting).await;
        }
        let _ = self.provider.shutdown();
    }
}

/// A part of a trace that is not over yet. It is not sent unless it is ended.
pub struct Traced(Span);

impl Traced {
    /// For whatever follows from it.
    pub fn context(&self) -> TraceContext {
        written(self.0.span_context())
    }

    pub fn id(&self) -> String {
        self.0.span_context().trace_id().to_string()
    }

    /// `failed`: why, in a word.
    pub fn end(mut self, at: Timestamp, failed: Option<&'static str>, attributes: impl IntoIterator<Item = KeyValue>) {
        self.0.set_attributes(attributes);
        if let Some(why) = failed {
            self.0.set_status(Status::error(why));
        }
        self.0.end_with_timestamp(system_time(at));
    }
}

/// The place in a trace that a request's headers name. Only what is well formed is taken over, whatever a stranger sends.
pub fn context_of(headers: &HeaderMap) -> Option<TraceContext> {
    if !headers.contains_key(TRACEPARENT) {
        return None;
    }
    let found = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
    let found = found.span().span_context().clone();
    found.is_valid().then(|| written(&found))
}

/// The same, of a `traceparent` that came by another way.
pub fn context_from(parent: &str) -> Option<TraceContext> {
    let parent = parent.parse().ok()?;
    context_of(&HeaderMap::from_iter([(TRACEPARENT, parent)]))
}

fn written(span: &SpanContext) -> TraceContext {
    let flags = u8::from(span.is_sampled());
    let state = Some(span.trace_state().header());
    TraceContext {
        parent: format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()),
        state: state.filter(|state| !state.is_empty() && state.len() <= TRACESTATE_LEN_MAX),
    }
}

fn remote(trace: &TraceContext) -> Context {
    let parent = Some((TRACEPARENT.to_string(), trace.parent.clone()));
    let state = trace.state.clone().map(|state| (TRACESTATE.to_string(), state));
    let headers: HashMap<String, String> = parent.into_iter().chain(state).collect();
    TraceContextPropagator::new().extract_with_context(&Context::new(), &headers)
}

/// A collector is named by where it is, or by the whole address for traces.
fn traces_url(endpoint: &Url) -> String {
    let mut url = endpoint.clone();
    if url.path() == "/" {
        url.set_path("/v1/traces");
    }
    url.into()
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(at.as_millis()).unwrap_or(0))
}

#[derive(Debug)]
struct Queue {
    spans: mpsc::Sender<SpanData>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            count_dropped(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

async fn export_all(mut spans: mpsc::Receiver<SpanData>, exporter: SpanExporter, finish: Arc<Notify>) {
    let mut batch = Vec::new();
    let (mut is_last, mut warned_at) = (false, None::<Instant>);
    while !is_last || !spans.is_empty() {
        if !is_last {
            tokio::select! {
                got = spans.recv_many(&mut batch, BATCH_MAX) => if got == 0 { return },
                () = finish.notified() => is_last = true,
            }
        }
        // Taken as they come: whoever waits without taking lets the queue run over.
        let gathered = sleep(GATHER);
        tokio::pin!(gathered);
        while !is_last && batch.len() < BATCH_MAX {
            let room = BATCH_MAX - batch.len();
            tokio::select! {
                got = spans.recv_many(&mut batch, room) => if got == 0 { break },
                () = &mut gathered => break,
                () = finish.notified() => is_last = true,
            }
        }
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        let many = batch.len() as u64;
        if many == 0 {
            continue;
        }
        let failed = match timeout(EXPORT_TIME_MAX, exporter.export(std::mem::take(&mut batch))).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {EXPORT_TIME_MAX:?}"),
        };
        count_dropped(many);
        if warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            warned_at = Some(Instant::now());
            tracing::warn!(error = failed, spans = many, "traces could not be sent to the collector; they are dropped");
        }
    }
}

fn count_dropped(many: u64) {
    metrics::counter!("postrider_spans_dropped_total").increment(many);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(parent: &str, state: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [(TRACEPARENT, parent), (TRACESTATE, state)] {
            if let Ok(value) = value.parse() {
                headers.insert(name, value);
            }
        }
        headers
    }

    #[test]
    fn only_what_is_well_formed_is_taken_over() {
        let read = |parent: &str| context_of(&headers(parent, "")).map(|trace| trace.parent);
        assert_eq!(read(PARENT).as_deref(), Some(PARENT));
        assert_eq!(read(&PARENT.replace("-01", "-00")), Some(PARENT.replace("-01", "-00")));
        for bad in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01",
            "<script>alert(1)</script>",
        ] {
            assert_eq!(read(bad), None, "{bad}");
            assert_eq!(context_from(bad), None, "{bad}");
        }
        assert_eq!(context_of(&HeaderMap::new()), None);
        assert_eq!(context_from(PARENT).map(|trace| trace.parent).as_deref(), Some(PARENT));
    }

    #[test]
    fn the_state_of_other_tracers_comes_along_if_it_is_short() {
        let state = |state: &str| context_of(&headers(PARENT, state)).expect("a trace").state;
        assert_eq!(state("congo=t61rcWkgMzE").as_deref(), Some("congo=t61rcWkgMzE"));
        assert_eq!(state("no state"), None);
        let long = (0..30).map(|n| format!("k{n}={}", "v".repeat(30))).collect::<Vec<_>>().join(",");
        assert_eq!(state(&long), None);
    }

    #[test]
    fn a_collector_is_named_by_its_place_or_by_the_whole_address() {
        for (given, expected) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("https://collector.example/", "https://collector.example/v1/traces"),
            ("https://collector.example/otlp/v1/traces?x=y", "https://collector.example/otlp/v1/traces?x=y"),
        ] {
            assert_eq!(traces_url(&given.parse().expect("a URL")), expected);
        }
    }
}
