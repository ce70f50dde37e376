//! What was measured, as it is written down: `judge` holds it against the targets, `text` shows it.

mod judge;
mod text;

pub use judge::judge;
pub use text::table;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::crowd::Crowd;
use crate::curve::Curve;
use crate::forgetting::Forgetting;
use crate::gateway::Gateway;
use crate::growth::Growth;
use crate::looking::Looking;
use crate::parking::Parking;
use crate::process::Machine;
use crate::relay::Ceiling;
use crate::settings::Settings;

#[derive(Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Of the source that the harness was started in, if it can be told.
    pub commit: Option<String>,
    pub server: String,
    pub settings: Settings,
    /// Why it ended before all was measured, if it did.
    pub ended: Option<String>,
    pub figures: Figures,
    pub faults: Faults,
    pub verdicts: Vec<Verdict>,
}

#[derive(Default, Serialize)]
pub struct Figures {
    pub floor: Option<Series<FloorRun>>,
    pub ceilings: Vec<Ceiling>,
    pub end_to_end: Option<Series<LoadRun>>,
    pub fan_out: Option<Series<LoadRun>>,
    pub steady: Option<Series<LoadRun>>,
    pub steady_high: Option<Series<LoadRun>>,
    pub batches: Option<Series<LoadRun>>,
    pub http2: Option<Series<LoadRun>>,
    pub fan_out_thousand: Option<Series<LoadRun>>,
    pub large: Option<Large>,
    /// A few endpoints, and the same load moving over a great many.
    pub many_endpoints: Option<Sides>,
    pub idle: Option<Series<IdleRun>>,
    pub growth_finished: Option<Growth>,
    pub growth_waiting: Option<Growth>,
    pub growth_endpoints: Option<Growth>,
    pub curves: Vec<Curve>,
    pub forgetting: Option<Forgetting>,
    pub isolation: Option<Isolation>,
    pub hundred: Option<Crowd>,
    pub crowd: Option<Crowd>,
    pub parking: Option<Parking>,
    pub looking: Option<Looking>,
    pub gateway: Option<Gateway>,
    pub postgres: Option<OnPostgres>,
}

impl Figures {
    pub fn are_none(&self) -> bool {
        serde_json::to_value(self).ok() == serde_json::to_value(Figures::default()).ok()
    }
}

/// Each figure's own median, least and greatest: the median rate and the median latency may come from different runs.
#[derive(Serialize)]
pub struct Series<T> {
    pub median: T,
    pub least: T,
    pub greatest: T,
    pub runs: Vec<T>,
}

impl<T: Summary> Series<T> {
    /// `None` without runs.
    pub fn of(runs: Vec<T>) -> Option<Series<T>> {
        (!runs.is_empty()).then(|| Series {
            median: T::summary(&runs, By::Median),
            least: T::summary(&runs, By::Least),
            greatest: T::summary(&runs, By::Greatest),
            runs,
        })
    }
}

pub trait Summary: Sized {
    /// Figure by figure.
    fn summary(runs: &[Self], by: By) -> Self;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Median,
    Least,
    Greatest,
}

impl By {
    pub fn of<T>(self, runs: &[T], pick: impl Fn(&T) -> f64) -> f64 {
        let picked = runs.iter().map(&pick);
        match self {
            By::Median => median(runs, pick),
            By::Least => picked.min_by(f64::total_cmp).unwrap_or(f64::NAN),
            By::Greatest => picked.max_by(f64::total_cmp).unwrap_or(f64::NAN),
        }
    }

    pub fn count<T>(self, runs: &[T], pick: impl Fn(&T) -> u64) -> u64 {
        self.of(runs, |run| pick(run) as f64) as u64
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct FloorRun {
    pub delivered: u64,
    pub delivered_per_s: f64,
    pub cpu_us_per_delivery: f64,
}

impl Summary for FloorRun {
    fn summary(runs: &[Self], by: By) -> Self {
        FloorRun {
            delivered: by.count(runs, |run| run.delivered),
            delivered_per_s: by.of(runs, |run| run.delivered_per_s),
            cpu_us_per_delivery: by.of(runs, |run| run.cpu_us_per_delivery),
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct LoadRun {
    pub accepted: u64,
    pub delivered: u64,
    /// Answered 429 or 503, and sent again.
    pub refused: u64,
    /// The connection failed, and the message was sent again with the same key.
    pub broken: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub ingest_per_s: f64,
    pub delivered_per_s: f64,
    pub latency: Latency,
    /// `None` of a server of which nobody said which processes it is.
    #[serde(flatten)]
    pub cost: Option<Cost>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// Of the server, and of the database if that is a process of its own.
    pub cpu_us_per_delivery: f64,
    pub cpu_us_of_database: f64,
    /// Of the largest node.
    pub rss_peak_mib: f64,
}

impl Summary for LoadRun {
    fn summary(runs: &[Self], by: By) -> Self {
        let costs: Vec<Cost> = runs.iter().filter_map(|run| run.cost).collect();
        LoadRun {
            accepted: by.count(runs, |run| run.accepted),
            delivered: by.count(runs, |run| run.delivered),
            refused: by.count(runs, |run| run.refused),
            broken: by.count(runs, |run| run.broken),
            lost: runs.iter().map(|run| run.lost).sum(),
            duplicated: runs.iter().map(|run| run.duplicated).sum(),
            ingest_per_s: by.of(runs, |run| run.ingest_per_s),
            delivered_per_s: by.of(runs, |run| run.delivered_per_s),
            latency: Latency {
                p50_ms: by.of(runs, |run| run.latency.p50_ms),
                p99_ms: by.of(runs, |run| run.latency.p99_ms),
                p999_ms: by.of(runs, |run| run.latency.p999_ms),
            },
            cost: (!costs.is_empty()).then(|| Cost {
                cpu_us_per_delivery: by.of(&costs, |cost| cost.cpu_us_per_delivery),
                cpu_us_of_database: by.of(&costs, |cost| cost.cpu_us_of_database),
                rss_peak_mib: by.of(&costs, |cost| cost.rss_peak_mib),
            }),
        }
    }
}

impl LoadRun {
    /// NaN, which no target is met by, if it is not known.
    pub fn cpu_us(&self) -> f64 {
        self.cost.map_or(f64::NAN, |cost| cost.cpu_us_per_delivery)
    }
}

/// From send to arrival.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
}

impl Latency {
    pub fn of(nanoseconds: &Histogram<u64>) -> Latency {
        let ms = |quantile| nanoseconds.value_at_quantile(quantile) as f64 / 1e6;
        Latency { p50_ms: ms(0.5), p99_ms: ms(0.99), p999_ms: ms(0.999) }
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct IdleRun {
    pub ready_ms: f64,
    pub rss_mib: f64,
    /// A share of one core.
    pub cpu_share: f64,
    pub wakeups_per_s: f64,
    pub binary_mib: f64,
}

impl Summary for IdleRun {
    fn summary(runs: &[Self], by: By) -> Self {
        IdleRun {
            ready_ms: by.of(runs, |run| run.ready_ms),
            rss_mib: by.of(runs, |run| run.rss_mib),
            cpu_share: by.of(runs, |run| run.cpu_share),
            wakeups_per_s: by.of(runs, |run| run.wakeups_per_s),
            binary_mib: by.of(runs, |run| run.binary_mib),
        }
    }
}

#[derive(Serialize)]
pub struct Isolation {
    pub hanging: usize,
    pub endpoints: usize,
    /// The endpoints that stay healthy: while all are, and while the others hang.
    #[serde(flatten)]
    pub healthy: Sides,
    /// Requests that were taken and never answered.
    pub hung_requests: u64,
}

/// The same load twice in each round, one after the other.
#[derive(Serialize)]
pub struct Sides {
    pub without: Series<LoadRun>,
    pub beside: Series<LoadRun>,
}

impl Sides {
    pub fn of((without, beside): (Vec<LoadRun>, Vec<LoadRun>)) -> Result<Sides> {
        let series = |runs| Series::of(runs).context("no run was asked for");
        Ok(Sides { without: series(without)?, beside: series(beside)? })
    }

    pub fn rate_to_without(&self) -> Option<f64> {
        let rate: fn(&LoadRun) -> f64 = |run| run.delivered_per_s;
        ratio(&self.beside.runs, rate, &self.without.runs, rate)
    }

    pub fn cpu_to_without(&self) -> Option<f64> {
        ratio(&self.beside.runs, LoadRun::cpu_us, &self.without.runs, LoadRun::cpu_us)
    }
}

/// Payloads far larger than usual, and what delivering them costs without a server.
#[derive(Serialize)]
pub struct Large {
    pub payload_bytes: usize,
    pub floor: Series<FloorRun>,
    pub loads: Series<LoadRun>,
}

/// The same product with PostgreSQL under it.
#[derive(Default, Serialize)]
pub struct OnPostgres {
    pub one_node: Option<Series<LoadRun>>,
    pub three_nodes: Option<Series<LoadRun>>,
    pub finished: Option<Growth>,
    pub waiting: Option<Growth>,
    pub endpoints: Option<Growth>,
    pub curves: Vec<Curve>,
    pub forgetting: Option<Forgetting>,
    pub take_over: Option<TakeOver>,
    pub idle: Vec<Rest>,
    pub looking: Option<Looking>,
    pub gateway: Option<Gateway>,
}

#[derive(Serialize)]
pub struct TakeOver {
    pub nodes: usize,
    pub rate: u32,
    pub killed: Series<NodeEnd>,
    pub stopped: Series<NodeEnd>,
}

/// What receivers saw of a node's end.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct NodeEnd {
    /// From the end of the node until the last endpoint got something again.
    pub silence_ms: f64,
    /// Endpoints that got nothing for more than a second.
    pub silent: u64,
    /// Requests that were under way and came again.
    pub repeated: u64,
}

impl Summary for NodeEnd {
    fn summary(runs: &[Self], by: By) -> Self {
        NodeEnd {
            silence_ms: by.of(runs, |run| run.silence_ms),
            silent: by.count(runs, |run| run.silent),
            repeated: by.count(runs, |run| run.repeated),
        }
    }
}

/// Nodes that have nothing to do.
#[derive(Serialize)]
pub struct Rest {
    pub nodes: usize,
    #[serde(flatten)]
    pub series: Series<RestRun>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct RestRun {
    pub ready_ms: f64,
    pub rss_mib: f64,
    pub transactions_per_s: f64,
    pub wakeups_per_s: f64,
    /// Shares of one core, of all nodes together and of the database.
    pub cpu_share_nodes: f64,
    pub cpu_share_database: f64,
}

impl Summary for RestRun {
    fn summary(runs: &[Self], by: By) -> Self {
        RestRun {
            ready_ms: by.of(runs, |run| run.ready_ms),
            rss_mib: by.of(runs, |run| run.rss_mib),
            transactions_per_s: by.of(runs, |run| run.transactions_per_s),
            wakeups_per_s: by.of(runs, |run| run.wakeups_per_s),
            cpu_share_nodes: by.of(runs, |run| run.cpu_share_nodes),
            cpu_share_database: by.of(runs, |run| run.cpu_share_database),
        }
    }
}

/// What may not happen at any speed. Over the whole benchmark, warm-ups and fillings included.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Faults {
    /// Accepted and never arrived.
    pub lost: u64,
    /// Arrived again.
    pub duplicated: u64,
    /// Arrived under another id than the producer was told.
    pub misnamed: u64,
    /// Arrived with other bytes than were sent.
    pub damaged: u64,
}

impl Faults {
    pub fn any(self) -> bool {
        let Faults { lost, duplicated, misnamed, damaged } = self;
        lost + duplicated + misnamed + damaged > 0
    }
}

#[derive(Serialize)]
pub struct Verdict {
    pub target: &'static str,
    pub measured: String,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Met,
    Missed,
    NotMeasured,
}

/// The median of the rounds' ratios, not the ratio of medians: both sides of a round ran one after the other, so what else
/// went on in the machine touched both.
pub fn ratio<A, B>(over: &[A], of_over: fn(&A) -> f64, under: &[B], of_under: fn(&B) -> f64) -> Option<f64> {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| of_over(over) / of_under(under)).collect();
    (!ratios.is_empty()).then(|| median(&ratios, |ratio| *ratio))
}

pub fn median<T>(runs: &[T], pick: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(pick).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one_or_between_the_two() {
        for (values, expected) in [(vec![3.0], 3.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0, 2.0, 3.0], 2.5)] {
            assert_eq!(median(&values, |value| *value), expected, "{values:?}");
        }
    }

    #[test]
    fn a_series_says_how_far_its_runs_lie_apart() {
        let run = |rate| FloorRun { delivered: 1, delivered_per_s: rate, cpu_us_per_delivery: 100.0 - rate };
        let series = Series::of(vec![run(9.0), run(1.0), run(2.0)]).unwrap();
        let rates = [series.least, series.median, series.greatest].map(|run| run.delivered_per_s);
        let costs = [series.least, series.median, series.greatest].map(|run| run.cpu_us_per_delivery);
        assert_eq!((rates, costs), ([1.0, 2.0, 9.0], [91.0, 98.0, 99.0]));
        assert!(Series::<FloorRun>::of(vec![]).is_none());
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let same: fn(&f64) -> f64 = |value| *value;
        assert_eq!(ratio(&[10.0, 20.0, 90.0], same, &[100.0, 100.0, 100.0], same), Some(0.2));
        assert_eq!(ratio(&[], same, &[1.0], same), None);
    }
}
