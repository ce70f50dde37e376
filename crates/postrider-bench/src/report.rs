//! What was measured, what it is held against, and how both are shown.

use std::fmt::Write;

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

/// Targets of a store on which nothing was measured are left out.
pub fn judge(figures: &Figures, faults: Faults, is_on_sqlite: bool) -> Vec<Verdict> {
    let mut verdicts = if is_on_sqlite { judge_sqlite(figures) } else { Vec::new() };
    verdicts.extend(figures.postgres.iter().flat_map(judge_postgres));
    let Faults { lost, duplicated, misnamed, damaged } = faults;
    verdicts.push(Verdict {
        target: "lost, duplicated, misnamed, damaged: none",
        measured: format!("{lost}, {duplicated}, {misnamed}, {damaged}"),
        outcome: outcome(Some(!faults.any())),
    });
    verdicts
}

fn judge_postgres(figures: &OnPostgres) -> Vec<Verdict> {
    let one_node = figures.one_node.as_ref().map(|series| series.median);
    let waiting = figures.waiting.as_ref().filter(|growth| growth.is_filled());
    let mut verdicts = vec![
        at_least(
            "PostgreSQL, one node, deliveries per second: at least 8000",
            one_node.map(|run| run.delivered_per_s),
            8000.0,
            "",
        ),
        at_most(
            "PostgreSQL, one node, CPU of node and database per delivery: at most 150 us",
            one_node.map(|run| run.cpu_us_per_delivery),
            150.0,
            " us",
        ),
        at_least(
            "PostgreSQL, waiting retries in the store, rate / empty: at least 0.8",
            waiting.and_then(Growth::rate_to_empty),
            0.8,
            "",
        ),
    ];
    verdicts.extend(judge_looking(figures.looking.as_ref(), LOOKING_ON_POSTGRES));
    verdicts
}

fn judge_sqlite(figures: &Figures) -> Vec<Verdict> {
    let floor = figures.floor.as_ref();
    let to_floor = |loads: Option<&Series<LoadRun>>, load: fn(&LoadRun) -> f64, base: fn(&FloorRun) -> f64| {
        ratio(&loads?.runs, load, &floor?.runs, base)
    };
    let to_empty = |growth: Option<&Growth>| growth?.rate_to_empty();
    let grown = [figures.growth_finished.as_ref(), figures.growth_waiting.as_ref()];
    let [finished, waiting] = grown.map(|growth| growth.filter(|growth| growth.is_filled()));
    let ready =
        |growth: Option<&Growth>| growth.map(|growth| growth.ready_after_stop_ms.max(growth.ready_after_kill_ms));
    let loads = [figures.end_to_end.as_ref(), figures.fan_out.as_ref(), figures.steady.as_ref()];
    let peaks = loads.into_iter().flatten().flat_map(|series| &series.runs).map(|run| run.rss_peak_mib);
    let peak = peaks.chain(grown.into_iter().flatten().map(|growth| growth.rss_peak_mib)).max_by(f64::total_cmp);
    let isolation = |pick: fn(&Latency) -> f64| {
        figures.isolation.as_ref().map(|isolation| (pick(&isolation.without.latency), pick(&isolation.beside.latency)))
    };

    let mut verdicts = vec![
        at_least(
            "end to end / floor, deliveries per second: at least 0.15",
            to_floor(figures.end_to_end.as_ref(), |run| run.delivered_per_s, |run| run.delivered_per_s),
            0.15,
            "",
        ),
        at_most(
            "end to end / floor, CPU per delivery: at most 8",
            to_floor(figures.end_to_end.as_ref(), |run| run.cpu_us_per_delivery, |run| run.cpu_us_per_delivery),
            8.0,
            "",
        ),
        at_least(
            "fan-out 1:10 / floor, deliveries per second: at least 0.3",
            to_floor(figures.fan_out.as_ref(), |run| run.delivered_per_s, |run| run.delivered_per_s),
            0.3,
            "",
        ),
        at_most(
            "steady rate, p99 from send to arrival: at most 4 ms",
            figures.steady.as_ref().map(|steady| steady.median.latency.p99_ms),
            4.0,
            " ms",
        ),
        at_least("finished deliveries in the store, rate / empty: at least 0.9", to_empty(finished), 0.9, ""),
        at_least("waiting retries in the store, rate / empty: at least 0.9", to_empty(waiting), 0.9, ""),
        at_most("RSS idle: at most 40 MiB", figures.idle.as_ref().map(|idle| idle.median.rss_mib), 40.0, " MiB"),
        at_most("RSS under load, highest peak: at most 200 MiB", peak, 200.0, " MiB"),
        at_most(
            "ready with an empty store: at most 1000 ms",
            figures.idle.as_ref().map(|idle| idle.median.ready_ms),
            1000.0,
            " ms",
        ),
        at_most("ready with the finished deliveries: at most 1000 ms", ready(finished), 1000.0, " ms"),
        at_most("ready with the waiting retries: at most 1000 ms", ready(waiting), 1000.0, " ms"),
    ];
    for (target, pair) in [
        ("healthy beside hanging, p50: within 10 % + 2 ms of without", isolation(|latency| latency.p50_ms)),
        ("healthy beside hanging, p99: within 10 % + 2 ms of without", isolation(|latency| latency.p99_ms)),
    ] {
        verdicts.push(Verdict {
            target,
            measured: pair.map_or_else(String::new, |(without, beside)| format!("{without:.2} -> {beside:.2} ms")),
            outcome: outcome(pair.map(|(without, beside)| beside <= without * 1.1 + 2.0)),
        });
    }
    let crowd = figures.crowd.as_ref();
    let pair =
        crowd.map(|crowd| (crowd.steady.without.median.latency.p99_ms, crowd.steady.beside.median.latency.p99_ms));
    verdicts.push(Verdict {
        target: "100 healthy beside 900 bad endpoints, p99: within 10 % + 5 ms of without",
        measured: pair.map_or_else(String::new, |(without, beside)| format!("{without:.2} -> {beside:.2} ms")),
        outcome: outcome(pair.map(|(without, beside)| beside <= without * 1.1 + 5.0)),
    });
    verdicts.extend([
        at_least(
            "the same, deliveries per second at a fixed rate / without: at least 0.95",
            crowd.and_then(|crowd| crowd.steady.rate_to_without()),
            0.95,
            "",
        ),
        at_least(
            "the same, deliveries per second at full load / without: at least 0.95",
            crowd.and_then(|crowd| crowd.full.rate_to_without()),
            0.95,
            "",
        ),
    ]);
    verdicts.extend(judge_looking(figures.looking.as_ref(), LOOKING));
    let parking = figures.parking.as_ref();
    verdicts.extend([
        at_most(
            "pausing a full lane, longer than an empty one: at most 5 ms",
            parking.map(|parking| parking.full.pause_ms - parking.empty.pause_ms),
            5.0,
            " ms",
        ),
        at_most(
            "a full lane's breaker is open, CPU of one core: at most 0.01",
            parking.map(|parking| parking.cpu_share_open.max(parking.cpu_share_paused)),
            0.01,
            "",
        ),
        at_most(
            "probes when a full lane's time is up: exactly 1",
            parking.map(|parking| parking.probes as f64),
            1.0,
            "",
        ),
    ]);
    verdicts
}

fn judge_looking(looking: Option<&Looking>, targets: [&'static str; 4]) -> [Verdict; 4] {
    let [at_rest, at_full_load, rate, p99] = targets;
    let slowest = |pick| looking.and_then(|looking| looking.slowest(pick));
    let steady = looking.map(|looking| &looking.steady);
    let pair = steady.map(|sides| (sides.without.median.latency.p99_ms, sides.beside.median.latency.p99_ms));
    [
        at_most(at_rest, slowest(|page| page.at_rest_max), 250.0, " ms"),
        at_most(at_full_load, slowest(|page| page.under_load_max), 1000.0, " ms"),
        at_least(rate, looking.and_then(|looking| looking.full.rate_to_without()), 0.95, ""),
        Verdict {
            target: p99,
            measured: pair.map_or_else(String::new, |(without, beside)| format!("{without:.2} -> {beside:.2} ms")),
            outcome: outcome(pair.map(|(without, beside)| beside <= without * 1.1 + 5.0)),
        },
    ]
}

fn at_least(target: &'static str, value: Option<f64>, limit: f64, unit: &str) -> Verdict {
    Verdict { target, measured: show(value, unit), outcome: outcome(value.map(|value| value >= limit)) }
}

fn at_most(target: &'static str, value: Option<f64>, limit: f64, unit: &str) -> Verdict {
    Verdict { target, measured: show(value, unit), outcome: outcome(value.map(|value| value <= limit)) }
}

fn show(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(String::new, |value| format!("{value:.2}{unit}"))
}

fn outcome(met: Option<bool>) -> Outcome {
    match met {
        Some(true) => Outcome::Met,
        Some(false) => Outcome::Missed,
        None => Outcome::NotMeasured,
    }
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

impl Report {
    pub fn to_text(&self) -> String {
        let Machine { date, cores, cpu, memory_mib, kernel, data_filesystem, load_average } = &self.machine;
        let mut text = format!(
            "{}, {date}\n{cores} cores ({cpu}), {memory_mib:.0} MiB, Linux {kernel}, data on {data_filesystem}, load before {load_average}\nMedian of {}, {} s each\n\n",
            self.server, self.settings.runs, self.settings.seconds
        );
        if self.settings.is_on_sqlite() {
            text += &table(&self.load_rows());
        }
        text += &growth_lines(&self.figures.growth_finished, &self.figures.growth_waiting);
        if let Some(parking) = &self.figures.parking {
            let _ = writeln!(
                text,
                "\n{} waiting in one lane: pause {:.2} ms, resume {:.2} ms (with an empty lane {:.2} and {:.2}); CPU of one core {:.4} paused, {:.4} with its breaker open; RSS {:.1} and {:.1} MiB; open after {} failures; {} probe when its time was up",
                parking.waiting,
                parking.full.pause_ms,
                parking.full.resume_ms,
                parking.empty.pause_ms,
                parking.empty.resume_ms,
                parking.cpu_share_paused,
                parking.cpu_share_open,
                parking.rss_paused_mib,
                parking.rss_open_mib,
                parking.failures,
                parking.probes
            );
        }
        if let Some(isolation) = &self.figures.isolation {
            let _ = writeln!(
                text,
                "\n{} of {} endpoints hung; they took {} requests and answered none",
                isolation.hanging, isolation.endpoints, isolation.hung_requests
            );
        }
        if let Some(crowd) = &self.figures.crowd {
            let _ = writeln!(
                text,
                "\n{} of {} endpoints were dead, unreachable, hanging or dripping; the last two took {} requests in the measurements at a fixed rate and answered none; {} requests to all of them were under way when full load began",
                crowd.bad, crowd.endpoints, crowd.bad_requests, crowd.in_flight
            );
        }
        if let Some(looking) = &self.figures.looking {
            text += &looking_lines(looking);
        }
        text += &self.figures.gateway.as_ref().map_or_else(String::new, Gateway::lines);
        if let Some(idle) = &self.figures.idle {
            let _ = writeln!(
                text,
                "\nIdle: ready {:.0} ms after exec, RSS {:.1} MiB",
                idle.median.ready_ms, idle.median.rss_mib
            );
        }
        if let Some(figures) = &self.figures.postgres {
            text += "\nOn PostgreSQL\n\n";
            text += &figures.to_text();
        }
        text.push('\n');
        text += &table(&self.verdict_rows());
        text
    }

    fn load_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![LOAD_HEAD.map(str::to_owned).to_vec()];
        if let Some(floor) = &self.figures.floor {
            let mut row = vec!["floor".to_owned(), String::new(), format!("{:.0}", floor.median.delivered_per_s)];
            row.extend([const { String::new() }; 3]);
            row.push(format!("{:.1}", floor.median.cpu_us_per_delivery));
            row.extend([const { String::new() }; 3]);
            rows.push(row);
        }
        let figures = &self.figures;
        let growth =
            |growth: &Option<Growth>| growth.as_ref().map(|growth| (growth.empty.median, growth.filled.median));
        let (finished, waiting) = (growth(&figures.growth_finished), growth(&figures.growth_waiting));
        let loads = [
            ("end to end", figures.end_to_end.as_ref().map(|series| series.median)),
            ("fan-out 1:10", figures.fan_out.as_ref().map(|series| series.median)),
            ("steady", figures.steady.as_ref().map(|series| series.median)),
            ("empty, beside finished", finished.map(|pair| pair.0)),
            ("finished in the store", finished.map(|pair| pair.1)),
            ("empty, beside waiting", waiting.map(|pair| pair.0)),
            ("waiting in the store", waiting.map(|pair| pair.1)),
            ("isolation, all healthy", figures.isolation.as_ref().map(|isolation| isolation.without)),
            ("isolation, some hang", figures.isolation.as_ref().map(|isolation| isolation.beside)),
            ("100 healthy, steady", figures.crowd.as_ref().map(|crowd| crowd.steady.without.median)),
            ("beside 900 bad, steady", figures.crowd.as_ref().map(|crowd| crowd.steady.beside.median)),
            ("100 healthy, full load", figures.crowd.as_ref().map(|crowd| crowd.full.without.median)),
            ("beside 900 bad, full load", figures.crowd.as_ref().map(|crowd| crowd.full.beside.median)),
            ("full load, nobody looks", figures.looking.as_ref().map(|looking| looking.full.without.median)),
            ("full load, people look", figures.looking.as_ref().map(|looking| looking.full.beside.median)),
            ("steady, nobody looks", figures.looking.as_ref().map(|looking| looking.steady.without.median)),
            ("steady, people look", figures.looking.as_ref().map(|looking| looking.steady.beside.median)),
        ];
        rows.extend(loads.into_iter().filter_map(|(name, run)| Some(load_row(name, &run?))));
        rows
    }

    fn verdict_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["target", "measured", "verdict"].map(str::to_owned).to_vec()];
        rows.extend(self.verdicts.iter().map(|verdict| {
            let outcome = match verdict.outcome {
                Outcome::Met => "met",
                Outcome::Missed => "MISSED",
                Outcome::NotMeasured => "not measured",
            };
            vec![verdict.target.to_owned(), verdict.measured.clone(), outcome.to_owned()]
        }));
        rows
    }
}

impl OnPostgres {
    fn to_text(&self) -> String {
        let loads = self.load_rows();
        let mut text = if loads.len() > 1 { table(&loads) } else { String::new() };
        text += &growth_lines(&self.finished, &self.waiting);
        if let Some(TakeOver { nodes, rate, killed, stopped }) = &self.take_over {
            for (how, end) in [("killed", &killed.median), ("stopped", &stopped.median)] {
                let _ = writeln!(
                    text,
                    "\nOne of {nodes} nodes {how} at {rate} messages/s: no lane was silent for more than {:.0} ms; {} of them for more than a second; {} requests that were under way came again",
                    end.silence_ms, end.silent, end.repeated
                );
            }
        }
        if let Some(looking) = &self.looking {
            text += &looking_lines(looking);
        }
        text += &self.gateway.as_ref().map_or_else(String::new, Gateway::lines);
        for rest in &self.idle {
            let _ = writeln!(
                text,
                "\nIdle with {} node{}: {:.1} transactions/s, CPU of one core {:.4} in nodes and {:.4} in the database; ready {:.0} ms after exec, RSS {:.1} MiB",
                rest.nodes,
                if rest.nodes == 1 { "" } else { "s" },
                rest.transactions_per_s,
                rest.cpu_share_nodes,
                rest.cpu_share_database,
                rest.ready_ms,
                rest.rss_mib
            );
        }
        text
    }

    /// As for SQLite, with a column for the database's share of the CPU time.
    fn load_rows(&self) -> Vec<Vec<String>> {
        let mut head = LOAD_HEAD.map(str::to_owned).to_vec();
        head.insert(CPU_COLUMN + 1, "database".to_owned());
        let growth =
            |growth: &Option<Growth>| growth.as_ref().map(|growth| (growth.empty.median, growth.filled.median));
        let (finished, waiting) = (growth(&self.finished), growth(&self.waiting));
        let looking = self.looking.as_ref();
        let loads = [
            ("one node", self.one_node.as_ref().map(|series| series.median)),
            ("three nodes", self.three_nodes.as_ref().map(|series| series.median)),
            ("empty, beside finished", finished.map(|pair| pair.0)),
            ("finished in the store", finished.map(|pair| pair.1)),
            ("empty, beside waiting", waiting.map(|pair| pair.0)),
            ("waiting in the store", waiting.map(|pair| pair.1)),
            ("full load, nobody looks", looking.map(|looking| looking.full.without.median)),
            ("full load, people look", looking.map(|looking| looking.full.beside.median)),
            ("steady, nobody looks", looking.map(|looking| looking.steady.without.median)),
            ("steady, people look", looking.map(|looking| looking.steady.beside.median)),
        ];
        let rows = loads.into_iter().filter_map(|(name, run)| {
            let run = run?;
            let mut row = load_row(name, &run);
            row.insert(CPU_COLUMN + 1, format!("{:.1}", run.cpu_us_of_database));
            Some(row)
        });
        std::iter::once(head).chain(rows).collect()
    }
}

fn growth_lines(finished: &Option<Growth>, waiting: &Option<Growth>) -> String {
    let mut text = String::new();
    for (name, growth) in [("finished", finished), ("waiting", waiting)] {
        if let Some(growth) = growth {
            let _ = writeln!(
                text,
                "\n{} of {} {name} in the store after {:.0} s of filling: ready {:.0} ms after a stop, {:.0} ms after kill -9; RSS {:.1} MiB after the restart, {:.1} MiB at its peak; {} retries came due meanwhile",
                growth.stored,
                growth.asked,
                growth.filling_s,
                growth.ready_after_stop_ms,
                growth.ready_after_kill_ms,
                growth.rss_after_restart_mib,
                growth.rss_peak_mib,
                growth.retries_meanwhile
            );
        }
    }
    text
}

fn looking_lines(looking: &Looking) -> String {
    let mut rows = vec![["page", "at rest ms", "slowest", "at full load", "slowest"].map(str::to_owned).to_vec()];
    rows.extend(looking.pages.iter().map(|page| {
        let times = [page.at_rest_median, page.at_rest_max, page.under_load_median, page.under_load_max];
        let mut row = vec![page.page.to_owned()];
        row.extend(times.map(|time| format!("{time:.1}")));
        row
    }));
    format!(
        "\n{} messages, of which {} wait and {} are dead; {} people opened {} pages while it was measured, one page a second each\n\n{}",
        looking.messages,
        looking.waiting,
        looking.dead,
        looking.lookers,
        looking.opened,
        table(&rows)
    )
}

fn load_row(name: &str, run: &LoadRun) -> Vec<String> {
    vec![
        name.to_owned(),
        format!("{:.0}", run.ingest_per_s),
        format!("{:.0}", run.delivered_per_s),
        format!("{:.2}", run.latency.p50_ms),
        format!("{:.2}", run.latency.p99_ms),
        format!("{:.2}", run.latency.p999_ms),
        format!("{:.1}", run.cpu_us_per_delivery),
        format!("{:.1}", run.rss_peak_mib),
        run.lost.to_string(),
        run.duplicated.to_string(),
    ]
}

/// Markdown, so that a run's output can go into `docs/performance.md` as it is.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column == 0 { write!(text, "| {cell:<width$} ") } else { write!(text, "| {cell:>width$} ") };
        }
        text += "|\n";
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = write!(text, "|{}{}", "-".repeat(width + 1), if column == 0 { "-" } else { ":" });
            }
            text += "|\n";
        }
    }
    text
}

const LOAD_HEAD: [&str; 10] =
    ["", "ingest/s", "delivered/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU us", "RSS peak", "lost", "dup"];
const LOOKING: [&str; 4] = [
    "the dashboard's slowest page at rest: at most 250 ms",
    "the same at full load: at most 1000 ms",
    "people look, deliveries per second at full load / without: at least 0.95",
    "people look, p99 at a fixed rate: within 10 % + 5 ms of without",
];
const LOOKING_ON_POSTGRES: [&str; 4] = [
    "PostgreSQL, the dashboard's slowest page at rest: at most 250 ms",
    "PostgreSQL, the same at full load: at most 1000 ms",
    "PostgreSQL, people look, deliveries per second at full load / without: at least 0.95",
    "PostgreSQL, people look, p99 at a fixed rate: within 10 % + 5 ms of without",
];
const CPU_COLUMN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::Sides;

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

    fn load(rate: f64, p99_ms: f64) -> LoadRun {
        let latency = Latency { p50_ms: p99_ms / 2.0, p99_ms, p999_ms: p99_ms };
        LoadRun {
            accepted: 1,
            delivered: 1,
            refused: 0,
            broken: 0,
            lost: 0,
            duplicated: 0,
            ingest_per_s: rate,
            delivered_per_s: rate,
            latency,
            cpu_us_per_delivery: 90.0,
            cpu_us_of_database: 0.0,
            rss_peak_mib: 201.0,
        }
    }

    #[test]
    fn a_store_that_could_not_be_filled_gets_no_verdict() {
        let series = || Series::of(vec![load(100.0, 1.0)]).unwrap();
        let growth = |stored| Growth {
            asked: 1000,
            stored,
            filling_s: 1.0,
            ready_after_stop_ms: 1.0,
            ready_after_kill_ms: 1.0,
            rss_after_restart_mib: 1.0,
            rss_peak_mib: 1.0,
            empty: series(),
            filled: series(),
            retries_meanwhile: 0,
        };
        let figures =
            Figures { growth_finished: Some(growth(1000)), growth_waiting: Some(growth(10)), ..Figures::default() };
        let verdicts = judge(&figures, Faults::default(), true);
        for (start, expected) in [("finished deliveries", Outcome::Met), ("waiting retries", Outcome::NotMeasured)] {
            let verdict = verdicts.iter().find(|verdict| verdict.target.starts_with(start)).expect(start);
            assert_eq!(verdict.outcome, expected, "{start}");
        }
    }

    #[test]
    fn only_a_store_that_was_measured_is_judged() {
        let one_node = Series::of(vec![LoadRun { cpu_us_per_delivery: 151.0, ..load(8000.0, 1.0) }]);
        let figures =
            Figures { postgres: Some(OnPostgres { one_node, ..OnPostgres::default() }), ..Figures::default() };
        let outcomes: Vec<Outcome> =
            judge(&figures, Faults::default(), false).iter().map(|verdict| verdict.outcome).collect();
        assert_eq!(outcomes[..3], [Outcome::Met, Outcome::Missed, Outcome::NotMeasured]);
        assert_eq!(outcomes[3..7], [Outcome::NotMeasured; 4]);
        assert_eq!(outcomes[7..], [Outcome::Met], "nothing was lost");
        let on_sqlite = judge(&Figures::default(), Faults::default(), true);
        assert!(on_sqlite.iter().all(|verdict| !verdict.target.starts_with("PostgreSQL")));
    }

    fn sides(without: [(f64, f64); 3], beside: [(f64, f64); 3]) -> Sides {
        let series =
            |runs: [(f64, f64); 3]| Series::of(runs.map(|(rate, p99_ms)| load(rate, p99_ms)).to_vec()).unwrap();
        Sides { without: series(without), beside: series(beside) }
    }

    #[test]
    fn a_verdict_says_met_missed_or_not_measured() {
        let figures = Figures {
            floor: Series::of(vec![FloorRun { delivered: 1, delivered_per_s: 1000.0, cpu_us_per_delivery: 10.0 }]),
            end_to_end: Series::of(vec![load(150.0, 9.0)]),
            isolation: Some(Isolation {
                hanging: 3,
                endpoints: 10,
                without: load(1.0, 10.0),
                beside: load(1.0, 13.1),
                hung_requests: 0,
            }),
            crowd: Some(Crowd {
                endpoints: 1000,
                bad: 900,
                steady: sides([(100.0, 2.0), (100.0, 2.0), (100.0, 900.0)], [(96.0, 7.0), (96.0, 7.1), (96.0, 7.3)]),
                full: sides([(100.0, 1.0), (200.0, 1.0), (300.0, 1.0)], [(96.0, 1.0), (188.0, 1.0), (282.0, 1.0)]),
                bad_requests: 0,
                in_flight: 0,
            }),
            ..Figures::default()
        };
        let verdicts = judge(&figures, Faults { lost: 1, ..Faults::default() }, true);
        for (start, expected) in [
            ("end to end / floor, deliveries", Outcome::Met),
            ("end to end / floor, CPU", Outcome::Missed),
            ("fan-out", Outcome::NotMeasured),
            ("RSS under load", Outcome::Missed),
            ("healthy beside hanging, p50", Outcome::Met),
            ("healthy beside hanging, p99", Outcome::Missed),
            ("100 healthy beside 900 bad endpoints, p99", Outcome::Met),
            ("the same, deliveries per second at a fixed rate", Outcome::Met),
            ("the same, deliveries per second at full load", Outcome::Missed),
            ("lost", Outcome::Missed),
        ] {
            let verdict = verdicts.iter().find(|verdict| verdict.target.starts_with(start)).expect(start);
            assert_eq!(verdict.outcome, expected, "{start}");
        }
    }
}
