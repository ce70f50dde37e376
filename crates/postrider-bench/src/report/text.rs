//! How figures and verdicts are printed: tables of Markdown, so that they can be published as they are.

use std::fmt::Write;

use super::{Growth, LoadRun, OnPostgres, Outcome, Report, TakeOver};
use crate::gateway::Gateway;
use crate::looking::Looking;
use crate::process::Machine;

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
const CPU_COLUMN: usize = 6;
