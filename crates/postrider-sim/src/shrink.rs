//! Makes a history that went wrong as short as it can: fewer deliveries, faults, nodes, endpoints, one after the other, as long as
//! the same invariant is violated.

use crate::{
    config::Overrides,
    faults::FaultKind,
    trace::Line,
    world::{self, Outcome, Run},
};
use std::fmt::Write;

/// The smallest run found that violates the same invariant, with its history.
pub fn shrink(outcome: Outcome, tries_max: usize) -> Outcome {
    let Some(invariant) = outcome.violations.first().map(|violation| violation.invariant) else { return outcome };
    let mut best = outcome;
    let mut tries = 0;
    loop {
        let mut is_smaller = false;
        for candidate in smaller(best.run) {
            if tries >= tries_max {
                return with_trace(best);
            }
            tries += 1;
            let tried = world::run(candidate);
            if tried.violations.first().is_some_and(|violation| violation.invariant == invariant) {
                best = tried;
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            return with_trace(best);
        }
    }
}

fn with_trace(outcome: Outcome) -> Outcome {
    world::run(Run { keep_trace: true, ..outcome.run })
}

/// What could be left out, the greatest parts first.
fn smaller(run: Run) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut with = |overrides: Overrides| runs.push(Run { overrides, ..run });
    let now = run.overrides;
    if !now.well {
        with(Overrides { well: true, ..now });
    }
    if !now.no_people {
        with(Overrides { no_people: true, ..now });
    }
    let left: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|kind| !now.without.has(*kind)).collect();
    let drawn = crate::config::Config::draw(run.seed, run.deliveries, run.mode, &now);
    let happening: Vec<FaultKind> =
        left.into_iter().filter(|kind| drawn.faults.iter().any(|(drawn, _)| drawn == kind)).collect();
    let mut half = happening.len();
    while half > 0 {
        for part in happening.chunks(half) {
            with(Overrides { without: part.iter().fold(now.without, |mask, kind| mask.with(*kind)), ..now });
        }
        if half == 1 {
            break;
        }
        half = half.div_ceil(2);
    }
    for nodes in 1..drawn.nodes {
        with(Overrides { nodes_max: Some(nodes), ..now });
    }
    for endpoints in [1, drawn.endpoints.len() / 2, drawn.endpoints.len().saturating_sub(1)] {
        if endpoints > 0 && endpoints < drawn.endpoints.len() {
            with(Overrides { endpoints_max: Some(endpoints), ..now });
        }
    }
    for deliveries in [run.deliveries / 10, run.deliveries / 2, run.deliveries * 4 / 5] {
        if deliveries > 0 && deliveries < run.deliveries {
            runs.push(Run { deliveries, ..run });
        }
    }
    runs
}

/// What is shown of a violation: what it is, the lines that show it, and what to run again.
pub fn report(outcome: &Outcome, planted: Option<&str>) -> String {
    let mut text = String::new();
    let Some(violation) = outcome.violations.first() else { return text };
    let _ = writeln!(text, "seed {}: {violation}", outcome.run.seed);
    for other in outcome.violations.iter().skip(1) {
        let _ = writeln!(text, "   also: {other}");
    }
    let about = |line: &&Line| {
        let [message, endpoint, ..] = line.args;
        let same_message = violation.message != 0 && message == violation.message;
        let same_endpoint = violation.endpoint != 0 && endpoint == violation.endpoint && message == 0;
        let of_all = message == 0 && endpoint == 0 && line.args[3] == 0;
        (same_message && (violation.endpoint == 0 || endpoint == violation.endpoint || endpoint == 0))
            || same_endpoint
            || (of_all && line.at <= violation.at)
    };
    let lines: Vec<&Line> = outcome.trace.iter().filter(about).filter(|line| line.at <= violation.at).collect();
    let shown = lines.len().min(LINES_SHOWN);
    if shown < lines.len() {
        let _ = writeln!(text, "   ... {} earlier lines", lines.len() - shown);
    }
    for line in &lines[lines.len() - shown..] {
        let _ = writeln!(text, "   {line}");
    }
    let _ = writeln!(text, "run again: {}", command(&outcome.run, planted));
    text
}

pub fn command(run: &Run, planted: Option<&str>) -> String {
    let Overrides { nodes_max, apps_max, endpoints_max, without, no_people, well } = run.overrides;
    let mut text = format!(
        "cargo run --release -p postrider-sim -- --seeds {}..{} --deliveries {} --mode {}",
        run.seed,
        run.seed + 1,
        run.deliveries,
        match run.mode {
            crate::config::Mode::Safety => "safety",
            crate::config::Mode::Liveness => "liveness",
        }
    );
    for (name, value) in [("nodes-max", nodes_max), ("apps-max", apps_max), ("endpoints-max", endpoints_max)] {
        if let Some(value) = value {
            let _ = write!(text, " --{name} {value}");
        }
    }
    let names: Vec<&str> = FaultKind::ALL.into_iter().filter(|kind| without.has(*kind)).map(FaultKind::name).collect();
    if !names.is_empty() {
        let _ = write!(text, " --without {}", names.join(","));
    }
    if no_people {
        text.push_str(" --no-people");
    }
    if well {
        text.push_str(" --well");
    }
    if let Some(bug) = planted {
        let _ = write!(text, " --planted {bug}");
    }
    text
}

const LINES_SHOWN: usize = 80;
