//! What is worth seeing of a report, as drawings: their names, and what is in them.

mod svg;

use std::fmt::Write;

use crate::curve::{Curve, Fill};
use crate::report::{FloorRun, LoadRun, Report, Series};
use svg::{Axis, Bar, Bars, Figure, Line, Lines, Scale, Sheet, amount};

impl Report {
    /// Names and drawings. Of what was not measured there is none.
    pub fn plots(&self) -> Vec<(String, String)> {
        let mut plots = Vec::new();
        self.bars(&mut plots);
        self.latencies(&mut plots);
        for curve in &self.figures.curves {
            self.curve(curve, "", &mut plots);
        }
        for curve in self.figures.postgres.iter().flat_map(|postgres| &postgres.curves) {
            self.curve(curve, "pg-", &mut plots);
        }
        plots
    }

    fn bars(&self, plots: &mut Vec<(String, String)>) {
        let (figures, sizes) = (&self.figures, &self.settings.sizes);
        let postgres = figures.postgres.as_ref();
        let ceilings = figures.ceilings.iter();
        let ceilings =
            ceilings.map(|ceiling| (format!("a relay that keeps {}", ceiling.keeps.name()), Some(&ceiling.end_to_end)));
        let loads = [
            ("end to end".to_owned(), figures.end_to_end.as_ref()),
            ("HTTP/2 on the way in".to_owned(), figures.http2.as_ref()),
            (format!("batches of {}", sizes.batch), figures.batches.as_ref()),
            ("fan-out 1:10".to_owned(), figures.fan_out.as_ref()),
            (format!("fan-out 1:{}", sizes.fan_out_wide), figures.fan_out_thousand.as_ref()),
            (
                format!("{} endpoints, 1 % busy", amount(sizes.many_endpoints.into())),
                figures.many_endpoints.as_ref().map(|sides| &sides.beside),
            ),
            ("PostgreSQL, one node".to_owned(), postgres.and_then(|postgres| postgres.one_node.as_ref())),
            ("PostgreSQL, three nodes".to_owned(), postgres.and_then(|postgres| postgres.three_nodes.as_ref())),
        ];
        let loads: Vec<_> = ceilings.chain(loads).collect();
        let rate = |run: &LoadRun| run.delivered_per_s;
        let bars = |of_floor: fn(&FloorRun) -> f64, of_load: &dyn Fn(&LoadRun) -> f64| {
            let mut bars = Vec::new();
            if let Some(floor) = &figures.floor {
                let name = "floor: a bare client".to_owned();
                bars.push(Bar { name, figure: figure(floor, of_floor) });
            }
            for (name, loads) in &loads {
                if let Some(loads) = loads
                    && !of_load(&loads.median).is_nan()
                {
                    bars.push(Bar { name: name.clone(), figure: figure(loads, of_load) });
                }
            }
            bars
        };
        for (name, title, unit, digits, bars) in [
            ("rates", "Deliveries per second", "deliveries per second", 0, bars(|run| run.delivered_per_s, &rate)),
            (
                "cpu",
                "CPU time of a delivery, database included",
                "microseconds of CPU time per delivery",
                1,
                bars(|run| run.cpu_us_per_delivery, &LoadRun::cpu_us),
            ),
        ] {
            if bars.is_empty() {
                continue;
            }
            let said = bars.iter().map(|bar| {
                let Figure { value, least, greatest } = bar.figure;
                format!("{} {value:.digits$} ({least:.digits$} to {greatest:.digits$})", bar.name)
            });
            let words = format!("{title}: {}.", said.collect::<Vec<_>>().join("; "));
            let sheet = self.sheet(title, words);
            plots.push((name.to_owned(), Bars { sheet, unit, digits, bars }.draw()));
        }
    }

    fn latencies(&self, plots: &mut Vec<(String, String)>) {
        let (figures, sizes) = (&self.figures, &self.settings.sizes);
        let loads = [
            (format!("{} messages/s", sizes.rate), figures.steady.as_ref()),
            (format!("{} messages/s", sizes.rate_high), figures.steady_high.as_ref()),
            ("full load".to_owned(), figures.end_to_end.as_ref()),
            (
                "full load, PostgreSQL".to_owned(),
                figures.postgres.as_ref().and_then(|postgres| postgres.one_node.as_ref()),
            ),
        ];
        let lines = loads.into_iter().filter_map(|(name, loads)| {
            let loads = loads?;
            let marks = vec![
                (0.0, figure(loads, |run| run.latency.p50_ms)),
                (1.0, figure(loads, |run| run.latency.p99_ms)),
                (2.0, figure(loads, |run| run.latency.p999_ms)),
            ];
            Some(Line { name, marks })
        });
        let names = ["p50", "p99", "p99.9"];
        let lines: Vec<Line> = lines.collect();
        if lines.is_empty() {
            return;
        }
        let words = in_words(&lines, |at| names[at as usize].to_owned(), "ms");
        self.lines(
            plots,
            "latency",
            "From send to arrival",
            Axis::Names("of all messages, so many per cent were faster", names.map(str::to_owned).to_vec()),
            ("milliseconds", Scale::Log),
            (lines, words),
        );
    }

    fn curve(&self, curve: &Curve, prefix: &str, plots: &mut Vec<(String, String)>) {
        let kind = curve.fill.name();
        let on = if prefix.is_empty() { "SQLite" } else { "PostgreSQL" };
        let stored = match curve.fill {
            Fill::Finished => "finished deliveries in the store",
            Fill::Waiting => "waiting deliveries in the store",
        };
        let points = &curve.points;
        let line = |name: &str, of: &dyn Fn(&crate::curve::Point) -> Figure| Line {
            name: name.to_owned(),
            marks: points.iter().map(|point| (point.stored as f64, of(point))).collect(),
        };
        let sides = |pick: fn(&LoadRun) -> f64| {
            vec![
                line("with these in the store", &|point| figure(&point.sides.beside, pick)),
                line("an empty store, in the same rounds", &|point| figure(&point.sides.without, pick)),
            ]
        };
        let lists = points.first().map(|first| {
            let lines = first.lists.iter().enumerate().map(|(number, list)| {
                line(list.list, &|point| {
                    let list = &point.lists[number];
                    Figure { value: list.median_ms, least: list.median_ms, greatest: list.greatest_ms }
                })
            });
            lines.collect::<Vec<_>>()
        });
        let ms = |pick: fn(&crate::curve::Point) -> f64| move |point: &crate::curve::Point| Figure::exact(pick(point));
        let mut starts = vec![
            line("ready after a stop", &ms(|point| point.ready_after_stop_ms)),
            line("ready after kill -9", &ms(|point| point.ready_after_kill_ms)),
            line("first delivery after kill -9", &ms(|point| point.first_delivery_after_kill_ms)),
        ];
        if points.iter().all(|point| point.take_over.is_some()) {
            let silence = |point: &crate::curve::Point| point.take_over.map_or(0.0, |end| end.silence_ms);
            starts.push(line("longest silence when a node is killed", &ms(silence)));
        }
        let amounts = || Axis::Amounts(stored);
        for (name, title, up, lines) in [
            ("cost", "CPU time of a delivery", ("microseconds per delivery", Scale::Linear), sides(LoadRun::cpu_us)),
            ("rate", "Deliveries per second", ("per second", Scale::Linear), sides(|run| run.delivered_per_s)),
            (
                "lists",
                "Lists and searches",
                ("milliseconds, up to the slowest of 11", Scale::Log),
                lists.unwrap_or_default(),
            ),
            ("start", "Starting", ("milliseconds", Scale::Log), starts),
            (
                "size",
                "Data on the disk, and memory",
                ("MiB", Scale::Log),
                vec![
                    line("data", &ms(|point| point.data_mib)),
                    line("memory after a restart", &ms(|point| point.rss_after_restart_mib)),
                ],
            ),
        ] {
            let words = in_words(&lines, amount, up.0);
            let name = format!("{prefix}curve-{kind}-{name}");
            self.lines(plots, &name, &format!("{title}: {kind} deliveries, {on}"), amounts(), up, (lines, words));
        }
    }

    fn lines(
        &self,
        plots: &mut Vec<(String, String)>,
        name: &str,
        title: &str,
        across: Axis,
        up: (&'static str, Scale),
        (lines, words): (Vec<Line>, String),
    ) {
        let sheet = self.sheet(title, format!("{title}. {words}"));
        plots.push((name.to_owned(), Lines { sheet, across, up, lines }.draw()));
    }

    fn sheet(&self, title: &str, words: String) -> Sheet {
        let commit = self.commit.as_deref().unwrap_or("unknown");
        let source = format!(
            "{}, commit {commit}, {} cores, median of {} with least and greatest",
            self.server, self.machine.cores, self.settings.runs
        );
        Sheet { title: title.to_owned(), source, words }
    }
}

fn figure<T>(series: &Series<T>, pick: impl Fn(&T) -> f64) -> Figure {
    Figure { value: pick(&series.median), least: pick(&series.least), greatest: pick(&series.greatest) }
}

fn in_words(lines: &[Line], at: impl Fn(f64) -> String, unit: &str) -> String {
    let mut words = String::new();
    for line in lines {
        let marks = line.marks.iter().map(|(x, figure)| format!("{} at {}", amount(figure.value), at(*x)));
        let _ = write!(words, "{}, in {unit}: {}. ", line.name, marks.collect::<Vec<_>>().join(", "));
    }
    words.trim_end().to_owned()
}
