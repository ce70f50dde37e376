//! Killed while it accepts and delivers, started again, and again: nothing accepted is lost, and nothing arrives
//! twice but what was under way at a kill.
//!
//! `KILL_CYCLES=200` makes the long run of it. A failure prints the seed; `KILL_SEED` draws the same load and the same
//! moments again, though not what the machine makes of them.

#[path = "crash/checker.rs"]
mod checker;
#[path = "crash/drill.rs"]
mod drill;
mod support;

use checker::{Logs, Summary, check};
use drill::Drill;
use postrider::clock;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{env, ops::Range, time::Duration};

#[test]
fn a_server_that_is_killed_again_and_again_loses_nothing_and_repeats_only_what_was_under_way() {
    let cycles: usize = variable("KILL_CYCLES").unwrap_or(20);
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(seed);
    for cycle in 1..=cycles {
        // A short life is killed amid its start of the backlog; a long one has much that must stay settled.
        let life = if cycle % 5 == 0 { 2_200..2_800 } else { 50..400 };
        let life = draw(life, &mut rng);
        drill.run_for(life);
        drill.kill();
        let starts = if cycle % 4 == 0 { 3 } else { 0 };
        for _ in 0..starts {
            drill.start_and_kill(draw(0..80, &mut rng));
        }
        let ready = drill.start_again();
        println!(
            "cycle {cycle}: killed after {life:?}, then {starts} times while starting; ready in {ready:?}; \
             {} events accepted, {} requests received",
            drill.accepted(),
            drill.receiver.count()
        );
        assert!(ready < READY_WITHIN, "seed {seed}, cycle {cycle}: ready only after {ready:?}");
    }
    let summary = verdict(&drill.finish(), seed);
    assert!(summary.messages > 10 * cycles, "there was hardly any load: {summary:?}");
}

fn verdict(logs: &Logs, seed: u64) -> Summary {
    match check(logs) {
        Ok(summary) => {
            println!("{summary:?}");
            summary
        }
        Err(violations) => {
            for violation in violations.iter().take(20) {
                println!("{violation}");
            }
            panic!("{} violations, the first of them above; KILL_SEED={seed}", violations.len());
        }
    }
}

fn draw(millis: Range<u64>, rng: &mut impl Rng) -> Duration {
    Duration::from_millis(rng.random_range(millis))
}

fn seed() -> u64 {
    let seed = variable("KILL_SEED").unwrap_or_else(|| clock::now().as_millis().unsigned_abs());
    println!("KILL_SEED={seed}");
    seed
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

const READY_WITHIN: Duration = Duration::from_secs(2);
