//! What the figures are held against.

use super::{Faults, Figures, FloorRun, Latency, LoadRun, OnPostgres, Outcome, Series, Sides, Verdict, ratio};
use crate::growth::Growth;
use crate::looking::Looking;

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
            "PostgreSQL, one node, CPU of node and database per delivery: at most 80 us",
            one_node.map(|run| run.cpu_us()),
            80.0,
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
    let endpoints = figures.growth_endpoints.as_ref();
    let ready = |growth: Option<&Growth>| growth.map(Growth::ready_ms);
    let p99 = |loads: Option<&Series<LoadRun>>| loads.map(|loads| loads.median.latency.p99_ms);
    let loads = [figures.end_to_end.as_ref(), figures.fan_out.as_ref(), figures.steady.as_ref()];
    let costs = loads.into_iter().flatten().flat_map(|series| &series.runs).filter_map(|run| run.cost);
    let grown_peaks = grown.into_iter().flatten().map(|growth| growth.rss_peak_mib);
    let peak = costs.map(|cost| cost.rss_peak_mib).chain(grown_peaks).max_by(f64::total_cmp);
    let isolation = figures.isolation.as_ref().map(|isolation| &isolation.healthy);

    let mut verdicts = vec![
        at_least(
            "end to end / floor, deliveries per second: at least 0.30",
            to_floor(figures.end_to_end.as_ref(), |run| run.delivered_per_s, |run| run.delivered_per_s),
            0.3,
            "",
        ),
        at_most(
            "end to end / floor, CPU per delivery: at most 4",
            to_floor(figures.end_to_end.as_ref(), LoadRun::cpu_us, |run| run.cpu_us_per_delivery),
            4.0,
            "",
        ),
        at_least(
            "fan-out 1:10 / floor, deliveries per second: at least 0.6",
            to_floor(figures.fan_out.as_ref(), |run| run.delivered_per_s, |run| run.delivered_per_s),
            0.6,
            "",
        ),
        at_most("200 messages/s, p99 from send to arrival: at most 2 ms", p99(figures.steady.as_ref()), 2.0, " ms"),
        at_most(
            "5,000 messages/s, p99 from send to arrival: at most 15 ms",
            p99(figures.steady_high.as_ref()),
            15.0,
            " ms",
        ),
        at_least("finished deliveries in the store, rate / empty: at least 0.9", to_empty(finished), 0.9, ""),
        at_least("waiting retries in the store, rate / empty: at least 0.9", to_empty(waiting), 0.9, ""),
        at_least("100,000 endpoints in the store, rate / empty: at least 0.9", to_empty(endpoints), 0.9, ""),
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
        at_most("ready with the endpoints: at most 1000 ms", ready(endpoints), 1000.0, " ms"),
        within("healthy beside hanging, p50: within 10 % + 2 ms of without", isolation, |latency| latency.p50_ms, 2.0),
        within("healthy beside hanging, p99: within 10 % + 2 ms of without", isolation, |latency| latency.p99_ms, 2.0),
    ];
    for (crowd, [p99, steady, full]) in [(&figures.hundred, HUNDRED), (&figures.crowd, THOUSAND)] {
        let (steady_sides, full_sides) =
            (crowd.as_ref().map(|crowd| &crowd.steady), crowd.as_ref().map(|crowd| &crowd.full));
        verdicts.extend([
            within(p99, steady_sides, |latency| latency.p99_ms, 5.0),
            at_least(steady, steady_sides.and_then(Sides::rate_to_without), 0.95, ""),
            at_least(full, full_sides.and_then(Sides::rate_to_without), 0.95, ""),
        ]);
    }
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
    [
        at_most(at_rest, slowest(|page| page.at_rest_max), 250.0, " ms"),
        at_most(at_full_load, slowest(|page| page.under_load_max), 1000.0, " ms"),
        at_least(rate, looking.and_then(|looking| looking.full.rate_to_without()), 0.95, ""),
        within(p99, looking.map(|looking| &looking.steady), |latency| latency.p99_ms, 5.0),
    ]
}

/// Not more than a tenth and so many milliseconds longer.
fn within(target: &'static str, sides: Option<&Sides>, pick: fn(&Latency) -> f64, slack_ms: f64) -> Verdict {
    let pair = sides.map(|sides| (pick(&sides.without.median.latency), pick(&sides.beside.median.latency)));
    Verdict {
        target,
        measured: pair.map_or_else(String::new, |(without, beside)| format!("{without:.2} -> {beside:.2} ms")),
        outcome: outcome(pair.map(|(without, beside)| beside <= without * 1.1 + slack_ms)),
    }
}

fn at_least(target: &'static str, value: Option<f64>, limit: f64, unit: &str) -> Verdict {
    let value = value.filter(|value| !value.is_nan());
    Verdict { target, measured: show(value, unit), outcome: outcome(value.map(|value| value >= limit)) }
}

fn at_most(target: &'static str, value: Option<f64>, limit: f64, unit: &str) -> Verdict {
    let value = value.filter(|value| !value.is_nan());
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

const HUNDRED: [&str; 3] = [
    "10 healthy beside 90 that hang, p99: within 10 % + 5 ms of without",
    "the same 10, deliveries per second at a fixed rate / without: at least 0.95",
    "the same 10, deliveries per second at full load / without: at least 0.95",
];
const THOUSAND: [&str; 3] = [
    "100 healthy beside 900 bad endpoints, p99: within 10 % + 5 ms of without",
    "the same 100, deliveries per second at a fixed rate / without: at least 0.95",
    "the same 100, deliveries per second at full load / without: at least 0.95",
];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::Crowd;
    use crate::report::{Cost, Isolation};

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
            cost: Some(Cost { cpu_us_per_delivery: 45.0, cpu_us_of_database: 0.0, rss_peak_mib: 201.0 }),
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
        let one_node = Series::of(vec![LoadRun {
            cost: Some(Cost { cpu_us_per_delivery: 81.0, cpu_us_of_database: 20.0, rss_peak_mib: 40.0 }),
            ..load(8000.0, 1.0)
        }]);
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
    fn what_nobody_could_see_is_not_judged() {
        let figures = Figures {
            floor: Series::of(vec![FloorRun { delivered: 1, delivered_per_s: 1000.0, cpu_us_per_delivery: 10.0 }]),
            end_to_end: Series::of(vec![LoadRun { cost: None, ..load(100.0, 1.0) }]),
            ..Figures::default()
        };
        let outcomes = judge(&figures, Faults::default(), true).into_iter().map(|verdict| verdict.outcome);
        assert_eq!(outcomes.take(2).collect::<Vec<_>>(), [Outcome::Missed, Outcome::NotMeasured]);
    }

    #[test]
    fn a_verdict_says_met_missed_or_not_measured() {
        let figures = Figures {
            floor: Series::of(vec![FloorRun { delivered: 1, delivered_per_s: 1000.0, cpu_us_per_delivery: 10.0 }]),
            end_to_end: Series::of(vec![load(300.0, 9.0)]),
            steady: Series::of(vec![load(200.0, 2.0)]),
            steady_high: Series::of(vec![load(5000.0, 15.1)]),
            isolation: Some(Isolation {
                hanging: 3,
                endpoints: 10,
                healthy: sides([(1.0, 10.0); 3], [(1.0, 13.1); 3]),
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
            ("200 messages/s", Outcome::Met),
            ("5,000 messages/s", Outcome::Missed),
            ("RSS under load", Outcome::Missed),
            ("healthy beside hanging, p50", Outcome::Met),
            ("healthy beside hanging, p99", Outcome::Missed),
            ("100 healthy beside 900 bad endpoints, p99", Outcome::Met),
            ("the same 100, deliveries per second at a fixed rate", Outcome::Met),
            ("the same 100, deliveries per second at full load", Outcome::Missed),
            ("lost", Outcome::Missed),
        ] {
            let verdict = verdicts.iter().find(|verdict| verdict.target.starts_with(start)).expect(start);
            assert_eq!(verdict.outcome, expected, "{start}");
        }
    }
}
