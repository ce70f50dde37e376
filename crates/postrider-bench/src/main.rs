//! The load harness behind every figure that Postrider publishes.
//!
//! One process holds producers and receiver; the server, and the floor's client in its place, are processes of their own, so that
//! the kernel accounts for their CPU time and memory alone. The method is described in `docs/performance.md`.

mod bare;
mod client;
mod clock;
mod cluster;
mod crowd;
mod database;
mod floor;
mod gateway;
mod generator;
mod ledger;
mod looking;
mod parking;
mod payload;
mod process;
mod progress;
mod receiver;
mod report;
mod scenarios;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::OnceCell;

use crate::database::Accounts;
use crate::process::Machine;
use crate::progress::Progress;
use crate::receiver::Receiver;
use crate::report::{Faults, Report, judge};
use crate::scenarios::{Bench, Scenario, Settings};
use crate::server::Launcher;

/// Measures a Postrider server: prints a table and a verdict on each target. Fails only if a message was lost, came twice, or came
/// changed; never because of a time.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The postrider program [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,
    /// Measure each figure so many times and take the median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    runs: u16,
    /// Length of one measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=120))]
    seconds: u64,
    /// All scenarios of this store
    #[arg(long, value_enum, default_value_t = Stores::Sqlite)]
    store: Stores,
    /// Only these scenarios
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "store")]
    only: Vec<Scenario>,
    /// Also write everything, run by run, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Messages per second where the rate is fixed
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Finished deliveries to fill the store with
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    growth_finished: u32,
    /// Waiting retries to fill the store with
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    growth_waiting: u32,
    /// The same two on PostgreSQL
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pg_finished: u32,
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    pg_waiting: u32,
    /// Tell on which statements PostgreSQL spent its time; that costs some of it
    #[arg(long)]
    statements: bool,
    /// Deliveries to fill a paused lane with
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=30_000_000))]
    parking: u32,
    /// Messages in the store while the dashboard is looked at
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(100..=30_000_000))]
    looking: u32,
    /// How long endpoints hang, and how long the same is measured without
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    hang_seconds: u64,
    /// Silence after which a message that was accepted and has not arrived counts as lost
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience_seconds: u64,
    /// Where the servers' data goes while they run [default: the system's temporary folder]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stores {
    Sqlite,
    Postgres,
    Both,
}

impl Stores {
    fn has(self, scenario: Scenario) -> bool {
        match self {
            Stores::Sqlite => !scenario.is_on_postgres(),
            Stores::Postgres => scenario.is_on_postgres(),
            Stores::Both => true,
        }
    }
}

#[derive(Subcommand)]
enum Role {
    /// The floor's client, started by the harness itself
    #[command(hide = true)]
    FloorClient(floor::ClientArgs),
    /// A server that does nothing, started by the harness itself
    #[command(hide = true)]
    BareServer,
}

fn main() -> Result<ExitCode> {
    let mut args = Args::parse();
    match args.role.take() {
        Some(Role::FloorClient(client)) => {
            runtime(FLOOR_WORKERS)?.block_on(floor::client(client))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Role::BareServer) => {
            runtime(FLOOR_WORKERS)?.block_on(bare::serve())?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let runtime = runtime(HARNESS_WORKERS)?;
            let report = runtime.block_on(async {
                let interrupted = interruption()?;
                // On an interruption the benchmark is dropped where it stands, and with it its servers and folders.
                tokio::select! {
                    report = benchmark(&args) => report,
                    () = interrupted => bail!("interrupted"),
                }
            })?;
            print!("{}", report.to_text());
            Ok(if report.faults.any() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn runtime(workers: usize) -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .context("starting the runtime")
}

fn interruption() -> Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

async fn benchmark(args: &Args) -> Result<Report> {
    let settings = Settings {
        runs: usize::from(args.runs),
        seconds: args.seconds,
        scenarios: if args.only.is_empty() {
            Scenario::value_variants().iter().copied().filter(|scenario| args.store.has(*scenario)).collect()
        } else {
            args.only.iter().copied().collect()
        },
        rate: args.rate,
        growth_finished: args.growth_finished,
        growth_waiting: args.growth_waiting,
        pg_finished: args.pg_finished,
        pg_waiting: args.pg_waiting,
        parking: args.parking,
        looking: args.looking,
        hang_seconds: args.hang_seconds,
        patience_seconds: args.patience_seconds,
    };
    let launcher = Launcher {
        binary: server_binary(args.server.as_deref())?,
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        accounts: if args.statements { Accounts::Kept } else { Accounts::None },
        database: OnceCell::new(),
    };
    let machine = Machine::observe(
        &fs::canonicalize(&launcher.dir).with_context(|| format!("looking for {}", launcher.dir.display()))?,
    );
    if machine.data_filesystem == "tmpfs" {
        eprintln!(
            "warning: {} is in memory, where a sync costs nothing; choose a folder on a disk with --dir",
            launcher.dir.display()
        );
    }
    let server = version(&launcher.binary).await;
    let progress = Progress::new(settings.steps());
    let mut bench = Bench {
        settings,
        launcher,
        receiver: Receiver::start().await?,
        progress,
        faults: Faults::default(),
        late_wanted: 0,
    };
    let figures = bench.run().await?;
    bench.progress.finish();
    let verdicts = judge(&figures, bench.faults, bench.settings.is_on_sqlite());
    let report = Report { machine, server, settings: bench.settings, figures, faults: bench.faults, verdicts };
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec_pretty(&report)?).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(report)
}

fn server_binary(asked: Option<&Path>) -> Result<PathBuf> {
    let path = match asked {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("postrider"),
    };
    ensure!(
        path.is_file(),
        "there is no server at {}: build it with `cargo build --release`, or name one with --server",
        path.display()
    );
    fs::canonicalize(&path).with_context(|| format!("looking for {}", path.display()))
}

async fn version(binary: &Path) -> String {
    let output = tokio::process::Command::new(binary).arg("--version").output().await;
    let text =
        output.ok().filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    text.map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| binary.display().to_string())
}

/// As many as the machine that the targets are set for has cores.
const HARNESS_WORKERS: usize = 2;
const FLOOR_WORKERS: usize = 2;
