//! The same seed makes the same history, byte for byte: in one process and in another one.

use postrider_sim::{
    config::{Mode, Overrides},
    world::{self, Run},
};
use std::process::Command;

fn run_of(seed: u64) -> Run {
    let mode = if seed.is_multiple_of(2) { Mode::Liveness } else { Mode::Safety };
    Run { seed, deliveries: 300, mode, overrides: Overrides::default(), keep_trace: true }
}

#[test]
fn the_same_seed_makes_the_same_history() {
    for seed in 0..20 {
        let (one, other) = (world::run(run_of(seed)), world::run(run_of(seed)));
        let first = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(first) = first {
            panic!("seed {seed}: line {first} is\n{}\nand then\n{}", one.trace[first], other.trace[first]);
        }
        assert_eq!((one.hash, one.lines), (other.hash, other.lines), "seed {seed}");
    }
}

#[test]
fn another_process_makes_the_same_history() {
    for seed in [3, 4] {
        let here = world::run(run_of(seed));
        let mode = if seed % 2 == 0 { "liveness" } else { "safety" };
        let output = Command::new(env!("CARGO_BIN_EXE_postrider-sim"))
            .args(["--seeds", &format!("{seed}..{}", seed + 1), "--deliveries", "300", "--mode", mode, "--trace"])
            .output()
            .expect("the simulator runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let expected = format!("trace {:032x}, {} lines", here.hash, here.lines);
        assert!(said.contains(&expected), "seed {seed}: {expected} is not in what it says");
    }
}
