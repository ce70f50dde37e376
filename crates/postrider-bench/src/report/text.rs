//! How figures and verdicts are printed: tables of Markdown, so that they can be published as they are.

use std::fmt::Write;

use super::{By, FloorRun, LoadRun, OnPostgres, Outcome, Report, Series, Sides, TakeOver};
use crate::curve::{Curve, Point};
use crate::forgetting::Forgetting;
use crate::gateway::Gateway;
use crate::growth::Growth;
use crate::looking::Looking;
use crate::process::Machine;
use crate::relay::Ceiling;

impl Report {
    pub fn to_text(&self) -> String {
        let Machine { date, cores, cpu, memory_mib, kernel, data_filesystem, load_average } = &self.machine;
        let mut text = format!(
            "{}{}, {date}\n{cores} cores ({cpu}), {memory_mib:.0} MiB, Linux {kernel}, data on {data_filesystem}, load before {load_average}\nMedian of {} (least to greatest), {} s each\n\n",
            self.server,
            self.commit.as_ref().map_or_else(String::new, |commit| format!(" at commit {commit}")),
            self.settings.runs,
            self.settings.seconds
        );
        if let Some(why) = &self.ended {
            let _ = writeln!(text, "**It ended before all was measured**: {why}\n");
        }
        if self.settings.is_on_sqlite() {
            text += &self.load_table();
        }
        let figures = &self.figures;
        text += &self.ceiling_table();
        text += &growth_lines([
            ("finished", &figures.growth_finished),
            ("waiting", &figures.growth_waiting),
            ("endpoints", &figures.growth_endpoints),
        ]);
        text += &curve_lines(&figures.curves);
        text += &figures.forgetting.as_ref().map_or_else(String::new, forgetting_lines);
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
        if let Some(crowd) = &self.figures.hundred {
            let _ = writeln!(
                text,
                "\n{} of {} endpoints hung; they took {} requests in the measurements at a fixed rate and answered none; {} requests to them were under way when full load began",
                crowd.bad, crowd.endpoints, crowd.bad_requests, crowd.in_flight
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
                "\nIdle: ready {} ms after exec, RSS {} MiB, CPU of one core {}, woken up {} times a second; the program has {:.1} MiB",
                spread(idle, 0, |run| run.ready_ms),
                spread(idle, 1, |run| run.rss_mib),
                spread(idle, 5, |run| run.cpu_share),
                spread(idle, 1, |run| run.wakeups_per_s),
                idle.median.binary_mib
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

    fn load_table(&self) -> String {
        let figures = &self.figures;
        let mut rows = Loads::new(Database::Inside);
        rows.floor("floor", figures.floor.as_ref());
        for Ceiling { keeps, end_to_end, fan_out } in &figures.ceilings {
            rows.add(&format!("relay that keeps {}", keeps.name()), Some(end_to_end));
            rows.add(&format!("relay that keeps {}, fan-out 1:10", keeps.name()), Some(fan_out));
        }
        rows.add("end to end", figures.end_to_end.as_ref());
        rows.add("fan-out 1:10", figures.fan_out.as_ref());
        rows.add(&format!("steady, {}/s", self.settings.sizes.rate), figures.steady.as_ref());
        rows.add(&format!("steady, {}/s", self.settings.sizes.rate_high), figures.steady_high.as_ref());
        rows.add(&format!("batches of {}", self.settings.sizes.batch), figures.batches.as_ref());
        rows.add("HTTP/2 on the way in", figures.http2.as_ref());
        rows.add(&format!("fan-out 1:{}", self.settings.sizes.fan_out_wide), figures.fan_out_thousand.as_ref());
        if let Some(large) = &figures.large {
            rows.floor(&format!("floor, {} KiB each", large.payload_bytes / 1024), Some(&large.floor));
            rows.add(&format!("end to end, {} KiB each", large.payload_bytes / 1024), Some(&large.loads));
        }
        let many = self.settings.sizes.many_endpoints;
        rows.sides(
            figures.many_endpoints.as_ref(),
            [&format!("{} endpoints", many / 100), &format!("{many}, 1 % at a time")],
        );
        rows.growths(&figures.growth_finished, &figures.growth_waiting, &figures.growth_endpoints);
        let forgetting = figures.forgetting.as_ref().map(|forgetting| &forgetting.sides);
        rows.sides(forgetting, ["empty, beside forgetting", "while forgetting"]);
        let isolation = figures.isolation.as_ref().map(|isolation| &isolation.healthy);
        rows.sides(isolation, ["isolation, all healthy", "isolation, some hang"]);
        for (crowd, bad) in [(&figures.hundred, "that hang"), (&figures.crowd, "bad")] {
            if let Some(crowd) = crowd {
                let healthy = crowd.endpoints - crowd.bad;
                for (sides, load) in [(&crowd.steady, "steady"), (&crowd.full, "full load")] {
                    rows.sides(
                        Some(sides),
                        [&format!("{healthy} healthy, {load}"), &format!("beside {} {bad}, {load}", crowd.bad)],
                    );
                }
            }
        }
        rows.looking(figures.looking.as_ref());
        rows.table()
    }

    /// How near the ceiling it is: ratios within each round, with the least and the greatest.
    fn ceiling_table(&self) -> String {
        let figures = &self.figures;
        if figures.ceilings.is_empty() {
            return String::new();
        }
        let rate: fn(&LoadRun) -> f64 = |run| run.delivered_per_s;
        let mut rows = vec![["", "delivered/s", "CPU us", "fan-out 1:10, delivered/s"].map(str::to_owned).to_vec()];
        let mut add = |name: String, [rate, cpu, wide]: [String; 3]| rows.push(vec![name, rate, cpu, wide]);
        for Ceiling { keeps, end_to_end, fan_out } in &figures.ceilings {
            let relay = format!("relay that keeps {}", keeps.name());
            if let Some(floor) = &figures.floor {
                let of_floor =
                    |loads: &Series<LoadRun>| ratios(&loads.runs, rate, &floor.runs, |run| run.delivered_per_s);
                let cpu = ratios(&end_to_end.runs, LoadRun::cpu_us, &floor.runs, |run| run.cpu_us_per_delivery);
                add(format!("{relay}, of the floor"), [of_floor(end_to_end), cpu, of_floor(fan_out)]);
            }
            let of_relay = |ours: &Option<Series<LoadRun>>, relay: &Series<LoadRun>, pick: fn(&LoadRun) -> f64| {
                ours.as_ref().map_or_else(String::new, |ours| ratios(&ours.runs, pick, &relay.runs, pick))
            };
            let ours = [
                of_relay(&figures.end_to_end, end_to_end, rate),
                of_relay(&figures.end_to_end, end_to_end, LoadRun::cpu_us),
                of_relay(&figures.fan_out, fan_out, rate),
            ];
            add(format!("Postrider, of the {relay}"), ours);
        }
        format!("\n{}", table(&rows))
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
        let mut text = self.load_table();
        text +=
            &growth_lines([("finished", &self.finished), ("waiting", &self.waiting), ("endpoints", &self.endpoints)]);
        text += &curve_lines(&self.curves);
        text += &self.forgetting.as_ref().map_or_else(String::new, forgetting_lines);
        if let Some(TakeOver { nodes, rate, killed, stopped }) = &self.take_over {
            for (how, end) in [("killed", killed), ("stopped", stopped)] {
                let _ = writeln!(
                    text,
                    "\nOne of {nodes} nodes {how} at {rate} messages/s: no lane was silent for more than {} ms; {} of them for more than a second; {} requests that were under way came again",
                    spread(end, 0, |run| run.silence_ms),
                    spread(end, 0, |run| run.silent as f64),
                    spread(end, 0, |run| run.repeated as f64)
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
                "\nIdle with {} node{}: {} transactions/s, CPU of one core {} in nodes and {} in the database, nodes woken up {} times a second; ready {} ms after exec, RSS {} MiB",
                rest.nodes,
                if rest.nodes == 1 { "" } else { "s" },
                spread(&rest.series, 1, |run| run.transactions_per_s),
                spread(&rest.series, 4, |run| run.cpu_share_nodes),
                spread(&rest.series, 4, |run| run.cpu_share_database),
                spread(&rest.series, 1, |run| run.wakeups_per_s),
                spread(&rest.series, 0, |run| run.ready_ms),
                spread(&rest.series, 1, |run| run.rss_mib)
            );
        }
        text
    }

    fn load_table(&self) -> String {
        let mut rows = Loads::new(Database::Beside);
        rows.add("one node", self.one_node.as_ref());
        rows.add("three nodes", self.three_nodes.as_ref());
        rows.growths(&self.finished, &self.waiting, &self.endpoints);
        let forgetting = self.forgetting.as_ref().map(|forgetting| &forgetting.sides);
        rows.sides(forgetting, ["empty, beside forgetting", "while forgetting"]);
        rows.looking(self.looking.as_ref());
        rows.table()
    }
}

/// Whether the database is a process of its own, which is told apart then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Database {
    Inside,
    Beside,
}

/// Rows of the table of loads.
struct Loads {
    database: Database,
    rows: Vec<(String, [String; COLUMNS])>,
}

impl Loads {
    fn new(database: Database) -> Loads {
        Loads { database, rows: Vec::new() }
    }

    fn floor(&mut self, name: &str, floor: Option<&Series<FloorRun>>) {
        if let Some(floor) = floor {
            let mut cells = [const { String::new() }; COLUMNS];
            cells[DELIVERED] = spread(floor, 0, |run| run.delivered_per_s);
            cells[CPU] = spread(floor, 1, |run| run.cpu_us_per_delivery);
            self.rows.push((name.to_owned(), cells));
        }
    }

    fn add(&mut self, name: &str, loads: Option<&Series<LoadRun>>) {
        let Some(loads) = loads else { return };
        let cost = |digits, pick: fn(&LoadRun) -> Option<f64>| match pick(&loads.median) {
            Some(_) => spread(loads, digits, |run| pick(run).unwrap_or(f64::NAN)),
            None => String::new(),
        };
        let cells = [
            spread(loads, 0, |run| run.ingest_per_s),
            spread(loads, 0, |run| run.delivered_per_s),
            spread(loads, 2, |run| run.latency.p50_ms),
            spread(loads, 2, |run| run.latency.p99_ms),
            spread(loads, 2, |run| run.latency.p999_ms),
            cost(1, |run| Some(run.cost?.cpu_us_per_delivery)),
            cost(1, |run| Some(run.cost?.cpu_us_of_database)),
            cost(1, |run| Some(run.cost?.rss_peak_mib)),
            loads.median.lost.to_string(),
            loads.median.duplicated.to_string(),
        ];
        self.rows.push((name.to_owned(), cells));
    }

    fn sides(&mut self, sides: Option<&Sides>, [without, beside]: [&str; 2]) {
        self.add(without, sides.map(|sides| &sides.without));
        self.add(beside, sides.map(|sides| &sides.beside));
    }

    fn growths(&mut self, finished: &Option<Growth>, waiting: &Option<Growth>, endpoints: &Option<Growth>) {
        for (name, growth) in [("finished", finished), ("waiting", waiting), ("endpoints", endpoints)] {
            self.add(&format!("empty, beside {name}"), growth.as_ref().map(|growth| &growth.empty));
            self.add(&format!("{name} in the store"), growth.as_ref().map(|growth| &growth.filled));
        }
    }

    fn looking(&mut self, looking: Option<&Looking>) {
        let full = looking.map(|looking| &looking.full);
        self.sides(full, ["full load, nobody looks", "full load, people look"]);
        self.sides(looking.map(|looking| &looking.steady), ["steady, nobody looks", "steady, people look"]);
    }

    /// Without the columns that nobody has anything for.
    fn table(self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let is_shown = |column: usize| match column {
            OF_DATABASE => self.database == Database::Beside,
            CPU | RSS_PEAK => self.rows.iter().any(|(_, cells)| !cells[column].is_empty()),
            _ => true,
        };
        let pick = |name: &str, cells: &[String]| {
            let cells = cells.iter().enumerate().filter(|(column, _)| is_shown(*column)).map(|(_, cell)| cell.clone());
            std::iter::once(name.to_owned()).chain(cells).collect()
        };
        let head = pick("", &HEAD.map(str::to_owned));
        let rows: Vec<Vec<String>> =
            std::iter::once(head).chain(self.rows.iter().map(|(name, cells)| pick(name, cells))).collect();
        table(&rows)
    }
}

/// A median, and between which figures its runs lie: `15653 (14902-16010)`.
pub fn spread<T>(series: &Series<T>, digits: usize, pick: impl Fn(&T) -> f64) -> String {
    let [median, least, greatest] =
        [&series.median, &series.least, &series.greatest].map(|run| format!("{:.digits$}", pick(run)));
    if least == greatest { median } else { format!("{median} ({least}-{greatest})") }
}

/// The median of the ratios within each round, and between which they lie: `0.31 (0.29-0.33)`.
fn ratios<A, B>(over: &[A], of_over: fn(&A) -> f64, under: &[B], of_under: fn(&B) -> f64) -> String {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| of_over(over) / of_under(under)).collect();
    let [median, least, greatest] =
        [By::Median, By::Least, By::Greatest].map(|by| format!("{:.2}", by.of(&ratios, |ratio| *ratio)));
    if least == greatest { median } else { format!("{median} ({least}-{greatest})") }
}

fn growth_lines(growths: [(&str, &Option<Growth>); 3]) -> String {
    let mut text = String::new();
    for (name, growth) in growths {
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

fn curve_lines(curves: &[Curve]) -> String {
    let mut text = String::new();
    for curve in curves {
        let head = [
            curve.fill.name(),
            "delivered/s",
            "of empty",
            "CPU us",
            "of empty",
            "ready ms, stopped",
            "killed",
            "first delivery",
            "RSS",
            "peak",
            "data MiB",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(curve.points.iter().map(|point| {
            let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            vec![
                point.stored.to_string(),
                spread(&point.sides.beside, 0, |run| run.delivered_per_s),
                ratio(point.sides.rate_to_without()),
                spread(&point.sides.beside, 1, LoadRun::cpu_us),
                ratio(point.sides.cpu_to_without()),
                format!("{:.0}", point.ready_after_stop_ms),
                format!("{:.0}", point.ready_after_kill_ms),
                format!("{:.0}", point.first_delivery_after_kill_ms),
                format!("{:.1}", point.rss_after_restart_mib),
                format!("{:.1}", point.rss_peak_mib),
                format!("{:.0}", point.data_mib),
            ]
        }));
        let _ = writeln!(text, "\nA store filled step by step, {} deliveries:\n\n{}", curve.fill.name(), table(&rows));
        text += &list_table(&curve.points);
        for point in &curve.points {
            if let Some(end) = point.take_over {
                let _ = writeln!(
                    text,
                    "\nWith {} {} a node was killed beside another one: no lane was silent for more than {:.0} ms; {} of them for more than a second",
                    point.stored,
                    curve.fill.name(),
                    end.silence_ms,
                    end.silent
                );
            }
        }
    }
    text
}

/// A row for each list, a column for each step.
fn list_table(points: &[Point]) -> String {
    let Some(first) = points.first() else { return String::new() };
    let head = std::iter::once("list, ms (slowest)".to_owned()).chain(points.iter().map(|at| at.stored.to_string()));
    let mut rows = vec![head.collect::<Vec<_>>()];
    rows.extend(first.lists.iter().enumerate().map(|(number, list)| {
        let times = points.iter().map(|point| {
            let list = &point.lists[number];
            format!("{:.1} ({:.1})", list.median_ms, list.greatest_ms)
        });
        std::iter::once(list.list.to_owned()).chain(times).collect()
    }));
    table(&rows)
}

fn forgetting_lines(forgetting: &Forgetting) -> String {
    let took = match forgetting.took_s {
        Some(seconds) => format!("was done after {seconds:.0} s"),
        None => "was not done in half an hour".to_owned(),
    };
    format!(
        "\nForgetting {} finished deliveries {took}{}; {} of {} measurements ended before; the data had {:.0} MiB before and {:.0} MiB after\n",
        forgetting.stored,
        if forgetting.some_left { ", and some were left" } else { "" },
        forgetting.runs_meanwhile,
        forgetting.sides.beside.runs.len(),
        forgetting.data_before_mib,
        forgetting.data_after_mib
    )
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

const COLUMNS: usize = 10;
const HEAD: [&str; COLUMNS] =
    ["ingest/s", "delivered/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU us", "database", "RSS peak", "lost", "dup"];
const DELIVERED: usize = 1;
const CPU: usize = 5;
const OF_DATABASE: usize = 6;
const RSS_PEAK: usize = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_shown_where_there_is_one() {
        let run = |rate| FloorRun { delivered: 1, delivered_per_s: rate, cpu_us_per_delivery: 10.0 };
        let series = Series::of(vec![run(3.0), run(1.0), run(2.0)]).unwrap();
        assert_eq!(spread(&series, 0, |run| run.delivered_per_s), "2 (1-3)");
        assert_eq!(spread(&series, 1, |run| run.cpu_us_per_delivery), "10.0");
    }

    #[test]
    fn what_nobody_could_see_has_no_column() {
        let floor = Series::of(vec![FloorRun { delivered: 1, delivered_per_s: 5.0, cpu_us_per_delivery: 1.0 }]);
        let mut loads = Loads::new(Database::Inside);
        loads.floor("floor", floor.as_ref());
        let text = loads.table();
        assert!(text.contains("CPU us") && !text.contains("RSS peak") && !text.contains("database"), "{text}");
    }
}
