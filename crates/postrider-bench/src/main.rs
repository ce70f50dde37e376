//! The load harness behind every figure that Postrider publishes.
//!
//! One process holds producers and receiver; the server, and the floor's client in its place, are processes of their own, so that
//! the kernel accounts for their CPU time and memory alone. The method is described in `docs/performance.md`.

mod api;
mod bare;
mod client;
mod clock;
mod cluster;
mod crowd;
mod curve;
mod database;
mod field;
mod floor;
mod forgetting;
mod gateway;
mod generator;
mod growth;
mod ledger;
mod lists;
mod looking;
mod parking;
mod payload;
mod plots;
mod process;
mod progress;
mod receiver;
mod relay;
mod report;
mod scenarios;
mod server;
mod settings;
mod subject;

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::OnceCell;

use crate::database::Accounts;
use crate::process::Machine;
use crate::progress::Progress;
use crate::receiver::{Place, Receiver};
use crate::report::{Faults, Figures, Outcome, Report, judge};
use crate::scenarios::Bench;
use crate::server::Launcher;
use crate::settings::{Scenario, Settings, Sizes};
use crate::subject::Outside;

/// Measures a Postrider server, or any other that speaks the contract: prints a table and a verdict on each target. Fails only if
/// a message was lost, came twice, or came changed; never because of a time.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The postrider program [default: the one beside this program]
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    server: Option<PathBuf>,
    /// Measure this server, which is running already, instead of starting some
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// What that server lets us in with
    #[arg(long, value_name = "TOKEN", env = "POSTRIDER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A process of that server, its database's first one included, whose CPU time and memory are to be told; may be repeated
    #[arg(long = "pid", value_name = "PID", requires = "url")]
    pids: Vec<u32>,
    /// Where the receiver listens [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    receiver_listen: Option<IpAddr>,
    /// How that server reaches the receiver, if not by the address that it listens on
    #[arg(long, value_name = "HOST", requires = "url")]
    receiver_host: Option<String>,
    /// Measure each figure so many times and take the median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    runs: u16,
    /// Length of one measurement
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// All scenarios of this store but the long ones: curves and forgetting
    #[arg(long, value_enum, default_value_t = Stores::Sqlite, conflicts_with = "url")]
    store: Stores,
    /// All scenarios of both stores, the long ones too: some hours
    #[arg(long, conflicts_with_all = ["store", "only", "url"])]
    all: bool,
    /// Only these scenarios
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "store")]
    only: Vec<Scenario>,
    /// Also write everything, run by run, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw what was measured, as SVG files in this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
    /// Tell on which statements PostgreSQL spent its time; that costs some of it
    #[arg(long)]
    statements: bool,
    /// How long endpoints hang, and how long the same is measured without
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    hang_seconds: f64,
    /// Silence after which a message that was accepted and has not arrived counts as lost
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience_seconds: u64,
    /// Where the servers' data goes while they run [default: the system's temporary folder]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

impl Args {
    fn scenarios(&self) -> Result<BTreeSet<Scenario>> {
        let all = Scenario::value_variants().iter().copied();
        if self.url.is_none() {
            return Ok(match self {
                Args { all: true, .. } => all.collect(),
                Args { only, .. } if !only.is_empty() => only.iter().copied().collect(),
                Args { store, .. } => all.filter(|one| store.has(*one) && !one.is_long()).collect(),
            });
        }
        if self.only.is_empty() {
            return Ok([Scenario::Floor, Scenario::EndToEnd, Scenario::FanOut, Scenario::Steady].into());
        }
        if let Some(ours) = self.only.iter().find(|scenario| !scenario.is_for_any_server()) {
            let names = all.filter(|scenario| scenario.is_for_any_server()).map(name_of);
            bail!(
                "`{}` needs a server of its own, which it starts, fills and ends; with --url there are {}",
                name_of(*ours),
                names.collect::<Vec<_>>().join(", ")
            );
        }
        Ok(self.only.iter().copied().collect())
    }
}

impl Args {
    /// The server that somebody else runs, if it is to be measured.
    async fn outside(&self) -> Result<Option<Arc<Outside>>> {
        let Some(url) = &self.url else { return Ok(None) };
        self.scenarios()?;
        let token = self.token.as_deref().context("--url needs --token, or the variable POSTRIDER_TOKEN")?;
        Ok(Some(Arc::new(Outside::find(url, token, &self.pids).await?)))
    }
}

fn name_of(scenario: Scenario) -> String {
    scenario.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.1..=600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.1 to 600".to_owned()) }
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
                let outside = args.outside().await?;
                let report = benchmark(&args, outside.clone(), interrupted).await;
                if let Some(outside) = outside {
                    outside.clean_up().await;
                }
                report
            })?;
            print!("{}", report.to_text());
            Ok(if report.faults.any() || report.ended.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

async fn benchmark(args: &Args, outside: Option<Arc<Outside>>, interrupted: impl Future) -> Result<Report> {
    let settings = Settings {
        runs: usize::from(args.runs),
        seconds: args.seconds,
        scenarios: args.scenarios()?,
        hang_seconds: args.hang_seconds,
        patience_seconds: args.patience_seconds,
        sizes: args.sizes.clone(),
    };
    payload::allow(usize::try_from(settings.sizes.large_bytes)?);
    let launcher = Launcher {
        binary: match &outside {
            Some(_) => PathBuf::new(),
            None => server_binary(args.server.as_deref())?,
        },
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        accounts: if args.statements { Accounts::Kept } else { Accounts::None },
        database: OnceCell::new(),
    };
    let machine = Machine::observe(
        &fs::canonicalize(&launcher.dir).with_context(|| format!("looking for {}", launcher.dir.display()))?,
    );
    if machine.data_filesystem == "tmpfs" && outside.is_none() {
        eprintln!(
            "warning: {} is in memory, where a sync costs nothing; choose a folder on a disk with --dir",
            launcher.dir.display()
        );
    }
    let server = match &args.url {
        Some(url) => url.clone(),
        None => version(&launcher.binary).await,
    };
    let place = Place { listen: args.receiver_listen, host: args.receiver_host.clone() };
    let progress = Progress::new(settings.steps());
    let mut bench = Bench {
        settings,
        launcher,
        outside,
        receiver: Receiver::start(&place).await?,
        progress,
        figures: Figures::default(),
        faults: Faults::default(),
        late_wanted: 0,
    };
    // On an interruption what is being measured is dropped where it stands, and with it its servers and folders.
    let outcome = tokio::select! {
        outcome = bench.run() => outcome,
        _ = interrupted => Err(anyhow!("interrupted")),
    };
    bench.progress.finish();
    let (figures, faults) = (std::mem::take(&mut bench.figures), bench.all_faults());
    let ended = match outcome {
        Ok(()) => None,
        Err(error) if figures.are_none() => return Err(error),
        Err(error) => Some(format!("{error:#}")),
    };
    let mut verdicts = judge(&figures, faults, bench.settings.is_on_sqlite());
    if bench.outside.is_some() {
        verdicts.retain(|verdict| verdict.outcome != Outcome::NotMeasured);
    }
    let commit = commit().await;
    let report = Report { machine, commit, server, settings: bench.settings, ended, figures, faults, verdicts };
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_vec_pretty(&report)?).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(folder) = &args.plots {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        for (name, drawing) in report.plots() {
            let path = folder.join(format!("{name}.svg"));
            fs::write(&path, drawing).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(report)
}

/// Of the source around us: what was built from it is what is measured, unless somebody asked for something else.
async fn commit() -> Option<String> {
    let asked = ["describe", "--always", "--dirty", "--exclude", "*"];
    let output = tokio::process::Command::new("git").args(asked).output().await.ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
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
