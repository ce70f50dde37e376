//! `postrider-sim`: runs seeds, shows how far it is, and says at the end what was met and what went wrong.

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use postrider_engine::planted::{self, Bug};
use postrider_sim::{
    checker::Counts,
    config::{Mode, Overrides},
    faults::{FaultKind, Mask},
    shrink,
    sometimes::{Sometimes, Tally},
    world::{self, Outcome, Run},
};
use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the real engine in a simulated world, under faults, and judges what came of it.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Which seeds to run, as `A..B`: from A to B - 1.
    #[arg(long, value_parser = parse_seeds, default_value = "0..100")]
    seeds: (u64, u64),
    /// Deliveries that each seed makes: messages, each counted once for every endpoint it is owed to.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    deliveries: u64,
    /// Seeds at a time; one per core if not given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    jobs: Option<u64>,
    /// `safety`: faults to the end. `liveness`: all is mended and everything must end. `both`: in turns.
    #[arg(long, value_enum, default_value_t = ModeArg::Both)]
    mode: ModeArg,
    /// Switches a deliberate bug on, which must be found within the seeds. `list` shows them.
    #[arg(long)]
    planted: Option<String>,
    /// Prints every line of what happened. Only sensible with one seed.
    #[arg(long)]
    trace: bool,
    /// Go on after a violation, and do not shrink it.
    #[arg(long)]
    go_on: bool,
    /// Fail if a situation of the list was never met, however few seeds are run.
    #[arg(long)]
    demand_all: bool,
    /// At most so many nodes.
    #[arg(long)]
    nodes_max: Option<usize>,
    #[arg(long)]
    apps_max: Option<usize>,
    #[arg(long)]
    endpoints_max: Option<usize>,
    /// Kinds of faults that do not happen, with commas between them; `all`: none does.
    #[arg(long, value_parser = parse_kinds)]
    without: Option<Mask>,
    /// Nobody touches anything.
    #[arg(long)]
    no_people: bool,
    /// All receivers are well.
    #[arg(long)]
    well: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    Safety,
    Liveness,
    Both,
}

impl ModeArg {
    fn of(self, seed: u64) -> Mode {
        match self {
            Self::Safety => Mode::Safety,
            Self::Liveness => Mode::Liveness,
            Self::Both if seed.is_multiple_of(2) => Mode::Liveness,
            Self::Both => Mode::Safety,
        }
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let planted = match args.planted.as_deref() {
        None => None,
        Some("list") => {
            for bug in Bug::ALL {
                println!("{:<32} {}", bug.name(), bug.story());
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(name) => {
            let found = Bug::ALL.iter().copied().find(|bug| bug.name() == name);
            Some(found.with_context(|| format!("there is no planted bug `{name}`; `--planted list` shows them"))?)
        }
    };
    if args.trace && args.seeds.1 - args.seeds.0 > 1 {
        bail!("--trace prints every line: give it one seed, such as --seeds 7..8");
    }
    let sum = run_all(&args, planted);
    sum.print(&args, planted);
    Ok(sum.verdict(&args, planted))
}

/// Everything that came of all seeds.
#[derive(Default)]
struct Sum {
    seeds: u64,
    counts: Counts,
    met: Tally,
    violations: Vec<Outcome>,
    took: Duration,
}

impl Sum {
    fn add(&mut self, outcome: Outcome) {
        let Counts {
            accepted,
            deliveries,
            attempts,
            delivered,
            dead,
            repeated,
            queued,
            open,
            faults,
            pairs,
            simulated,
        } = outcome.counts;
        self.seeds += 1;
        self.counts.accepted += accepted;
        self.counts.deliveries += deliveries;
        self.counts.attempts += attempts;
        self.counts.delivered += delivered;
        self.counts.dead += dead;
        self.counts.repeated += repeated;
        self.counts.queued += queued;
        self.counts.open += open;
        self.counts.pairs += pairs;
        self.counts.simulated += simulated;
        for (mine, theirs) in self.counts.faults.iter_mut().zip(faults) {
            *mine += theirs;
        }
        self.met.add(&outcome.met);
        if !outcome.violations.is_empty() {
            self.violations.push(outcome);
        }
    }

    fn print(&self, args: &Args, planted: Option<Bug>) {
        let Counts {
            accepted,
            deliveries,
            attempts,
            delivered,
            dead,
            repeated,
            queued,
            open,
            faults,
            pairs,
            simulated,
        } = &self.counts;
        let seconds = self.took.as_secs_f64();
        println!("seeds            {:>14}", self.seeds);
        println!("messages         {accepted:>14}");
        println!(
            "deliveries       {deliveries:>14}   ({delivered} delivered, {dead} dead by their own attempts, {open} open at the end)"
        );
        println!("attempts         {attempts:>14}   ({repeated} not on record: cut off, or lost with their process)");
        println!("again            {queued:>14}   (resends and replays)");
        println!("simulated time   {:>14.1} h", *simulated as f64 / 3_600_000.0);
        println!("wall time        {seconds:>14.1} s   ({:.0} deliveries/s)", *deliveries as f64 / seconds.max(0.001));
        println!("faults           {:>14}   ({pairs} of them while another lasted)", faults.iter().sum::<u64>());
        for kind in FaultKind::ALL {
            println!("  {:<28} {:>10}", kind.name(), faults[kind as usize]);
        }
        let all = Sometimes::ALL.len();
        println!("situations met   {:>14}   of {all}", all - self.met.never_met().len());
        for situation in Sometimes::ALL {
            println!("  {:>10}  {}", self.met.count(*situation), situation.text());
        }
        println!("violations       {:>14}", self.violations.len());
        for outcome in self.violations.iter().take(if args.go_on { 20 } else { 1 }) {
            println!("{}", shrink::report(outcome, planted.map(Bug::name)));
        }
    }

    fn verdict(&self, args: &Args, planted: Option<Bug>) -> ExitCode {
        if let Some(bug) = planted {
            if self.violations.is_empty() {
                eprintln!("the planted bug `{}` was not found", bug.name());
                return ExitCode::FAILURE;
            }
            return ExitCode::SUCCESS;
        }
        let never = self.met.never_met();
        let enough = self.seeds * args.deliveries >= ENOUGH || args.demand_all;
        if enough && !never.is_empty() && self.violations.is_empty() {
            for situation in &never {
                eprintln!("never met: {}", situation.text());
            }
            return ExitCode::FAILURE;
        }
        if self.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn run_all(args: &Args, planted: Option<Bug>) -> Sum {
    let (first, end) = args.seeds;
    let (next, stop) = (AtomicU64::new(first), AtomicBool::new(false));
    let sum = Mutex::new(Sum::default());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = args.jobs.unwrap_or(cores).min(end - first);
    let bar = ProgressBar::new(end - first).with_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left, {msg}").expect("a template of our own"),
    );
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    // Each thread has its own switch.
                    planted::plant(planted);
                    let outcome = run_one(args, seed);
                    let mut sum = sum.lock().expect("nobody panics while adding");
                    if !outcome.violations.is_empty() && !args.go_on {
                        stop.store(true, Ordering::Relaxed);
                    }
                    sum.add(outcome);
                    bar.set_message(format!(
                        "{} deliveries, {} violations",
                        sum.counts.deliveries,
                        sum.violations.len()
                    ));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut sum = sum.into_inner().expect("nobody panics while adding");
    sum.took = began.elapsed();
    // Which of several came first depends on the threads; the lowest seed does not.
    sum.violations.sort_by_key(|outcome| outcome.run.seed);
    if !args.go_on && !sum.violations.is_empty() {
        planted::plant(planted);
        let found = sum.violations.swap_remove(0);
        eprintln!("seed {} went wrong: {}", found.run.seed, found.violations[0]);
        let tries = if planted.is_some() { 60 } else { SHRINK_TRIES };
        sum.violations = vec![shrink::shrink(found, tries)];
    }
    sum
}

fn run_one(args: &Args, seed: u64) -> Outcome {
    let overrides = Overrides {
        nodes_max: args.nodes_max,
        apps_max: args.apps_max,
        endpoints_max: args.endpoints_max,
        without: args.without.unwrap_or_default(),
        no_people: args.no_people,
        well: args.well,
    };
    let run = Run { seed, deliveries: args.deliveries, mode: args.mode.of(seed), overrides, keep_trace: args.trace };
    let outcome = world::run(run);
    if args.trace {
        for line in &outcome.trace {
            println!("{line}");
        }
        println!("trace {:032x}, {} lines", outcome.hash, outcome.lines);
    }
    outcome
}

fn parse_seeds(text: &str) -> Result<(u64, u64), String> {
    let range = || "write a range such as 0..100".to_owned();
    let (first, end) = text.split_once("..").ok_or_else(range)?;
    let (first, end) = (first.parse::<u64>().map_err(|_| range())?, end.parse::<u64>().map_err(|_| range())?);
    if first < end { Ok((first, end)) } else { Err("the range is empty".to_owned()) }
}

fn parse_kinds(text: &str) -> Result<Mask, String> {
    if text == "all" {
        return Ok(FaultKind::ALL.into_iter().fold(Mask::default(), Mask::with));
    }
    text.split(',').try_fold(Mask::default(), |mask, name| {
        let known = || FaultKind::ALL.map(FaultKind::name).join(", ");
        let kind =
            FaultKind::named(name).ok_or_else(|| format!("there is no fault `{name}`; there are {}", known()))?;
        Ok(mask.with(kind))
    })
}

/// So many deliveries must have met everything.
const ENOUGH: u64 = 1_000_000;

const SHRINK_TRIES: usize = 200;
