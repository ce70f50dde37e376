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
use tracing_subscriber::EnvFilter;

/// Sends log lines to standard error from a thread of their own. The guard writes the rest when it is dropped.
pub fn start_logs(filter: &str, format: LogFormat) -> anyhow::Result<LinesGuard> {
    let filter = EnvFilter::try_new(filter).context("reading the log filter")?;
    let (lines, guard) = lines::to(io::stderr(), format);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines);
    let started = match format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!(error)).context("starting the logs")?;
    Ok(guard)
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
