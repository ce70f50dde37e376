//! Logs, metrics and traces: how they leave the process.
//!
//! What goes into them is decided where things end. Two rules hold everywhere: a payload or a secret is
//! never a field, and no attempt waits for a log line.

mod collector;
mod lines;
pub mod names;
mod panics;
pub mod tops;
pub mod traces;

pub use lines::LinesGuard;
pub use panics::hide_values_in_panics;
pub use tops::Tops;
pub use traces::{TraceSettings, Traced, Traces};

use crate::config::LogFormat;
use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::io::{self, IsTerminal};
use tracing::{Level, Metadata};
use tracing_subscriber::{EnvFilter, Layer, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

/// Sends log lines to standard error from a thread of their own. The guard writes the rest when it is dropped.
pub fn start_logs(filter: &str, format: LogFormat) -> anyhow::Result<LinesGuard> {
    let filter = EnvFilter::try_new(filter).context("reading the log filter")?;
    let (lines, guard) = lines::to(io::stderr(), format);
    let shown = tracing_subscriber::fmt::layer().with_writer(lines);
    let shown = match format {
        LogFormat::Text => shown.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => shown.json().flatten_event(true).with_ansi(false).boxed(),
    };
    let logs = tracing_subscriber::registry().with(filter).with(filter_fn(is_ours_to_show)).with(shown);
    let started = logs.try_init();
    started.map_err(|error| anyhow::anyhow!(error)).context("starting the logs")?;
    Ok(guard)
}

/// The client of the database tells with every statement what it is carried out with: payloads, addresses with their queries.
/// No filter that is set shows those.
fn is_ours_to_show(about: &Metadata<'_>) -> bool {
    *about.level() <= Level::INFO || !about.target().starts_with("tokio_postgres")
}

/// Makes the process count. The handle renders what `/metrics` shows.
///
/// Someone has to call its `run_upkeep` every few seconds: without that, the samples of histograms pile up
/// until the next scrape.
pub fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let recorder = [
        (names::ATTEMPT_DURATION, &SECONDS[..]),
        (names::LATENESS, &LATE_SECONDS[..]),
        (names::DELIVERY_DURATION, &DELIVERY_SECONDS[..]),
        (names::DELIVERY_ATTEMPTS, &ATTEMPTS[..]),
    ]
    .into_iter()
    .try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
    })
    .context("setting the buckets of the histograms")?;
    let handle = recorder.install_recorder().context("starting the metrics")?;
    names::describe();
    names::begin();
    Ok(handle)
}

/// From a fast receiver on the same network to the longest timeout.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
/// From in time to a day behind a paused endpoint.
const LATE_SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3_600.0, 86_400.0];
/// From at once to the end of a schedule of days.
const DELIVERY_SECONDS: [f64; 13] =
    [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 1_800.0, 7_200.0, 43_200.0, 259_200.0];
const ATTEMPTS: [f64; 8] = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 50.0];
