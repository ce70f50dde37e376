//! Logs and metrics: how they leave the process.
//!
//! What goes into them is decided where things end. Two rules hold everywhere: a payload or a secret is
//! never a field, and no attempt waits for a log line.

mod lines;
mod panics;

pub use lines::LinesGuard;
pub use panics::hide_values_in_panics;

use crate::config::LogFormat;
use anyhow::Context;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
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
    PrometheusBuilder::new()
        .set_buckets(&SECONDS)
        .context("setting the buckets of the histograms")?
        .install_recorder()
        .context("starting the metrics")
}

/// From a fast receiver on the same network to the longest timeout.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
