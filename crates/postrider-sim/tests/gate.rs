//! The gate that every change goes through: some hundred seeds, nothing wrong, and everything interesting met.

use postrider_sim::{
    config::{Mode, Overrides},
    sometimes::Tally,
    world::{self, Run},
};
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

const SEEDS: u64 = 500;
const DELIVERIES: u64 = 2_000;

fn run_of(seed: u64) -> Run {
    let mode = if seed.is_multiple_of(2) { Mode::Liveness } else { Mode::Safety };
    Run { seed, deliveries: DELIVERIES, mode, overrides: Overrides::default(), keep_trace: false }
}

#[test]
fn nothing_goes_wrong_in_five_hundred_worlds_and_every_situation_is_met() {
    let (next, met, deliveries) = (AtomicU64::new(0), Mutex::new(Tally::default()), AtomicU64::new(0));
    let wrong = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    let outcome = world::run(run_of(seed));
                    met.lock().expect("nobody panics here").add(&outcome.met);
                    deliveries.fetch_add(outcome.counts.deliveries, Ordering::Relaxed);
                    if let Some(violation) = outcome.violations.first() {
                        let command = postrider_sim::shrink::command(&outcome.run, None);
                        wrong.lock().expect("nobody panics here").push(format!("{violation}\n  {command}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("nobody panics here");
    assert!(wrong.is_empty(), "{} worlds went wrong:\n{}", wrong.len(), wrong.join("\n"));
    let never: Vec<&str> = met
        .into_inner()
        .expect("nobody panics here")
        .never_met()
        .into_iter()
        .map(|situation| situation.text())
        .collect();
    assert!(never.is_empty(), "never met: {never:?}");
    assert!(deliveries.into_inner() > SEEDS * DELIVERIES / 2, "the worlds were too small to say anything");
}
