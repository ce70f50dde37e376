//! Every fault that is planted on purpose is found, within a bounded number of seeds.
//!
//! `PLANTED_SEEDS=1000` looks longer; `PLANTED=two-probes` looks for one alone.

use postrider_engine::planted::{Bug, plant};
use postrider_sim::{
    checker::Violation,
    config::{Mode, Overrides},
    world::{self, Run},
};
use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Enough for each, with some to spare.
const SEEDS: u64 = 120;
const DELIVERIES: u64 = 1_000;

#[test]
fn every_planted_bug_is_found() {
    let seeds = env::var("PLANTED_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    let only = env::var("PLANTED").unwrap_or_default();
    let bugs: Vec<Bug> = Bug::ALL.iter().copied().filter(|bug| only.is_empty() || bug.name() == only).collect();
    assert!(!bugs.is_empty(), "there is no planted bug {only}");
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let finding = look_for(*bug, seeds);
                    found.lock().expect("nobody panics here").push((*bug, finding));
                }
            });
        }
    });
    let mut found = found.into_inner().expect("nobody panics here");
    found.sort_by_key(|(bug, _)| *bug);
    for (bug, finding) in &found {
        match finding {
            Some((seed, violation)) => println!("{:<28} seed {seed:>4}  {violation}", bug.name()),
            None => println!("{:<28} not found in {seeds} seeds", bug.name()),
        }
    }
    let missed: Vec<&str> = found.iter().filter(|(_, finding)| finding.is_none()).map(|(bug, _)| bug.name()).collect();
    assert!(missed.is_empty(), "{} of {} were not found: {missed:?}", missed.len(), found.len());
}

fn look_for(bug: Bug, seeds: u64) -> Option<(u64, Violation)> {
    plant(Some(bug));
    let found = (0..seeds).find_map(|seed| {
        let mode = if seed.is_multiple_of(2) { Mode::Liveness } else { Mode::Safety };
        let run = Run { seed, deliveries: DELIVERIES, mode, overrides: Overrides::default(), keep_trace: false };
        let violation = world::run(run).violations.into_iter().next()?;
        // What goes wrong without it is none of its doing.
        plant(None);
        let is_its_own = world::run(run).violations.is_empty();
        plant(Some(bug));
        is_its_own.then_some((seed, violation))
    });
    plant(None);
    found
}
