//! What was measured, as it is written down: `judge` holds it against the targets, `text` shows it.

mod judge;
mod text;

pub use judge::judge;
pub use text::table;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::crowd::Crowd;
use crate::gateway::Gateway;
use crate::looking::Looking;
use crate::parking::Parking;
use crate::process::Machine;
use crate::scenarios::Settings;

#[derive(Serialize)]
pub struct Report {
    pub machine: Machine,
    pub server: String,
    pub settings: Settings,
    pub figures: Figures,
    pub faults: Faults,
    pub verdicts: Vec<Verdict>,
}

#[derive(Default, Serialize)]
pub struct Figures {
    pub floor: Option<Series<FloorRun>>,
    pub end_to_end: Option<Series<LoadRun>>,
    pub fan_out: Option<Series<LoadRun>>,
    pub steady: Option<Series<LoadRun>>,
    pub idle: Option<Series<IdleRun>>,
    pub growth_finished: Option<Growth>,
    pub growth_waiting: Option<Growth>,
    pub isolation: Option<Isolation>,
    pub crowd: Option<Crowd>,
    pub parking: Option<Parking>,
    pub looking: Option<Looking>,
    pub gateway: Option<Gateway>,
    pub postgres: Option<OnPostgres>,
}

/// Each figure's own median: the median rate and the median latency may come from different runs.
#[derive(Serialize)]
pub struct Series<T> {
    pub median: T,
    pub runs: Vec<T>,
}

impl<T: Median> Series<T> {
    /// `None` without runs.
    pub fn of(runs: Vec<T>) -> Option<Series<T>> {
        (!runs.is_empty()).then(|| Series { median: T::median(&runs), runs })
    }
}

pub trait Median: Sized {
    fn median(runs: &[Self]) -> Self;
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct FloorRun {
    pub delivered: u64,
    pub delivered_per_s: f64,
    pub cpu_us_per_delivery: f64,
}

impl Median for FloorRun {
    fn median(runs: &[Self]) -> Self {
        FloorRun {
            delivered: median_count(runs, |run| run.delivered),
            delivered_per_s: median(runs, |run| run.delivered_per_s),
            cpu_us_per_delivery: median(runs, |run| run.cpu_us_per_delivery),
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
    /// Of the server, and of the database if that is a process of its own.
    pub cpu_us_per_delivery: f64,
    pub cpu_us_of_database: f64,
    /// Of the largest node.
    pub rss_peak_mib: f64,
}

impl Median for LoadRun {
    fn median(runs: &[Self]) -> Self {
        LoadRun {
            accepted: median_count(runs, |run| run.accepted),
            delivered: median_count(runs, |run| run.delivered),
            refused: median_count(runs, |run| run.refused),
            broken: median_count(runs, |run| run.broken),
            lost: runs.iter().map(|run| run.lost).sum(),
            duplicated: runs.iter().map(|run| run.duplicated).sum(),
            ingest_per_s: median(runs, |run| run.ingest_per_s),
            delivered_per_s: median(runs, |run| run.delivered_per_s),
            latency: Latency {
                p50_ms: median(runs, |run| run.latency.p50_ms),
                p99_ms: median(runs, |run| run.latency.p99_ms),
                p999_ms: median(runs, |run| run.latency.p999_ms),
            },
            cpu_us_per_delivery: median(runs, |run| run.cpu_us_per_delivery),
            cpu_us_of_database: median(runs, |run| run.cpu_us_of_database),
            rss_peak_mib: median(runs, |run| run.rss_peak_mib),
        }
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
}

impl Median for IdleRun {
    fn median(runs: &[Self]) -> Self {
        IdleRun { ready_ms: median(runs, |run| run.ready_ms), rss_mib: median(runs, |run| run.rss_mib) }
    }
}

#[derive(Serialize)]
pub struct Growth {
    pub asked: u64,
    /// Deliveries in the store before the first measurement: finished ones, or those that wait.
    pub stored: u64,
    pub filling_s: f64,
    pub ready_after_stop_ms: f64,
    pub ready_after_kill_ms: f64,
    pub rss_after_restart_mib: f64,
    /// The higher of the filling's peak and the measurements'.
    pub rss_peak_mib: f64,
    pub empty: Series<LoadRun>,
    pub filled: Series<LoadRun>,
    /// Retries that came due while the filled store was measured, and so took a share of the machine.
    pub retries_meanwhile: u64,
}

impl Growth {
    /// Without them in the store, its rate and its start say nothing about the target.
    fn is_filled(&self) -> bool {
        self.stored * 100 >= self.asked * 99
    }

    fn rate_to_empty(&self) -> Option<f64> {
        let rate: fn(&LoadRun) -> f64 = |run| run.delivered_per_s;
        ratio(&self.filled.runs, rate, &self.empty.runs, rate)
    }
}

#[derive(Serialize)]
pub struct Isolation {
    pub hanging: usize,
    pub endpoints: usize,
    /// The endpoints that stay healthy, while all are.
    pub without: LoadRun,
    /// The same endpoints, while the others hang.
    pub beside: LoadRun,
    /// Requests that were taken and never answered.
    pub hung_requests: u64,
}

/// The same product with PostgreSQL under it.
#[derive(Default, Serialize)]
pub struct OnPostgres {
    pub one_node: Option<Series<LoadRun>>,
    pub three_nodes: Option<Series<LoadRun>>,
    pub finished: Option<Growth>,
    pub waiting: Option<Growth>,
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

impl Median for NodeEnd {
    fn median(runs: &[Self]) -> Self {
        NodeEnd {
            silence_ms: median(runs, |run| run.silence_ms),
            silent: median_count(runs, |run| run.silent),
            repeated: median_count(runs, |run| run.repeated),
        }
    }
}

/// Nodes that have nothing to do.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Rest {
    pub nodes: usize,
    pub ready_ms: f64,
    pub rss_mib: f64,
    pub transactions_per_s: f64,
    /// Shares of one core, of all nodes together and of the database.
    pub cpu_share_nodes: f64,
    pub cpu_share_database: f64,
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

pub fn median_count<T>(runs: &[T], pick: impl Fn(&T) -> u64) -> u64 {
    median(runs, |run| pick(run) as f64) as u64
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
    fn a_ratio_is_taken_round_by_round() {
        let same: fn(&f64) -> f64 = |value| *value;
        assert_eq!(ratio(&[10.0, 20.0, 90.0], same, &[100.0, 100.0, 100.0], same), Some(0.2));
        assert_eq!(ratio(&[], same, &[1.0], same), None);
    }
}
