//! The server under test: started, spoken to, measured from outside, and ended by its process id.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::header::{HOST, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::Full;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use crate::api::Api;
use crate::client::Connection;
use crate::database::{Accounts, Database};
use crate::generator::Way;
use crate::process::{self, Memory, Rest};
use crate::subject::{Subject, Usage};

/// What starts servers: which program, and where their data goes.
pub struct Launcher {
    pub binary: PathBuf,
    pub dir: PathBuf,
    pub accounts: Accounts,
    /// Started when it is first needed.
    pub database: OnceCell<Arc<Database>>,
}

/// What a server keeps its data in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Sqlite,
    Postgres { nodes: usize },
}

/// One process, or several that share a database.
pub struct Server {
    // Dropped in this order: the processes end before their folder goes.
    nodes: Vec<Node>,
    home: TempDir,
    binary: PathBuf,
    shared: Option<Shared>,
    /// What it is started with, besides.
    variables: Variables,
    /// The first node's.
    pub api: Arc<Api>,
}

/// Names and values.
pub type Variables = Vec<(&'static str, String)>;

struct Node {
    child: Child,
    address: SocketAddr,
}

struct Shared {
    database: Arc<Database>,
    url: String,
}

/// How a server is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    Asked,
    Killed,
}

impl Launcher {
    /// Starts a server on an empty store; also says how long it took from exec until health answered.
    pub async fn start(&self, store: Store) -> Result<(Server, Duration)> {
        self.start_with(store, Vec::new()).await
    }

    /// The same with a clock that is so many days behind, until `come_to`.
    pub async fn start_in_the_past(&self, store: Store, days_ago: u32) -> Result<Server> {
        let shared = match store {
            Store::Sqlite => None,
            // Its nodes go by the database's clock.
            Store::Postgres { .. } => {
                let database = self.database().await?;
                let url = database.fresh().await;
                database.set_back(&url, days_ago).await?;
                Some(Shared { database, url })
            }
        };
        Ok(self.start_on(store, shared, interposed_clock(days_ago)?).await?.0)
    }

    pub async fn start_with(&self, store: Store, variables: Variables) -> Result<(Server, Duration)> {
        let shared = match store {
            Store::Sqlite => None,
            Store::Postgres { .. } => {
                let database = self.database().await?;
                Some(Shared { url: database.fresh().await, database })
            }
        };
        self.start_on(store, shared, variables).await
    }

    async fn start_on(&self, store: Store, shared: Option<Shared>, variables: Variables) -> Result<(Server, Duration)> {
        let home = tempfile::Builder::new()
            .prefix("postrider-bench-")
            .tempdir_in(&self.dir)
            .context("making a folder for the server")?;
        let nodes = match store {
            Store::Sqlite => 1,
            Store::Postgres { nodes } => nodes,
        };
        let address = free_address()?;
        let start = Start { binary: &self.binary, home: home.path(), shared: shared.as_ref(), variables: &variables };
        let (child, mut ready) = start.launch(address).await?;
        let api = Arc::new(Api::new(address, host(address), &start.ask_for_token().await?)?);
        let nodes_first = vec![Node { child, address }];
        let mut server = Server { nodes: nodes_first, home, binary: self.binary.clone(), shared, variables, api };
        for _ in 1..nodes {
            ready = ready.max(server.join_node().await?);
        }
        if nodes > 1 {
            tokio::time::sleep(SHARING_OUT).await;
        }
        Ok((server, ready))
    }

    async fn database(&self) -> Result<Arc<Database>> {
        let start = async || Ok::<_, anyhow::Error>(Arc::new(Database::start(&self.dir, self.accounts).await?));
        self.database.get_or_try_init(start).await.map(Arc::clone)
    }
}

impl Server {
    /// Ends all nodes and starts them again.
    pub async fn restart(&mut self, stop: Stop) -> Result<Duration> {
        for number in 0..self.nodes.len() {
            self.end_node(number, stop).await?;
        }
        let mut ready = Duration::ZERO;
        for number in 0..self.nodes.len() {
            ready = ready.max(self.start_node(number).await?);
        }
        Ok(ready)
    }

    pub async fn end_node(&mut self, number: usize, stop: Stop) -> Result<()> {
        end(&mut self.nodes[number].child, stop).await
    }

    /// Starts a node that was ended, at the same address.
    pub async fn start_node(&mut self, number: usize) -> Result<Duration> {
        let (child, ready) = self.start_of().launch(self.nodes[number].address).await?;
        self.nodes[number].child = child;
        Ok(ready)
    }

    /// Starts one more node on the same database.
    pub async fn join_node(&mut self) -> Result<Duration> {
        let address = free_address()?;
        let (child, ready) = self.start_of().launch(address).await?;
        self.nodes.push(Node { child, address });
        Ok(ready)
    }

    /// Ends the node that joined last.
    pub async fn leave_node(&mut self) -> Result<()> {
        let mut last = self.nodes.pop().context("there is no node")?;
        end(&mut last.child, Stop::Asked).await
    }

    /// Starts it again by a clock that is only so many days behind, and with these variables from then on.
    pub async fn come_to(&mut self, days_ago: u32, variables: Variables) -> Result<()> {
        for number in 0..self.nodes.len() {
            self.end_node(number, Stop::Asked).await?;
        }
        self.variables = variables;
        if let Some(shared) = &self.shared {
            shared.database.set_back(&shared.url, days_ago).await?;
        }
        if days_ago > 0 {
            self.variables.extend(interposed_clock(days_ago)?);
        }
        self.restart(Stop::Asked).await.map(drop)
    }

    pub fn is_on_postgres(&self) -> bool {
        self.shared.is_some()
    }

    fn start_of(&self) -> Start<'_> {
        Start { binary: &self.binary, home: self.home.path(), shared: self.shared.as_ref(), variables: &self.variables }
    }

    /// What its data takes on the disk.
    pub async fn data_mib(&self) -> Result<f64> {
        let bytes = match &self.shared {
            Some(shared) => shared.database.size(&shared.url).await?,
            None => process::folder_size(&self.home.path().join("data"))?,
        };
        Ok(bytes as f64 / 1_048_576.0)
    }

    /// What its processes have used so far while they had little to do: exact, and with how often they woke up.
    pub fn at_rest(&self) -> Result<Rest> {
        self.nodes.iter().map(|node| process::at_rest(self.pid(node)?)).sum()
    }

    pub async fn end(mut self, stop: Stop) -> Result<()> {
        for node in &mut self.nodes {
            end(&mut node.child, stop).await?;
        }
        match self.shared.take() {
            Some(Shared { database, url }) => database.discard(&url).await,
            None => Ok(()),
        }
    }

    /// Of the server's own processes.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.nodes.iter().map(|node| process::cpu_time(self.pid(node)?)).sum()
    }

    /// Of the database that is a process of its own.
    pub fn database_cpu_time(&self) -> Result<Duration> {
        self.shared.as_ref().map_or(Ok(Duration::ZERO), |shared| shared.database.cpu_time())
    }

    /// Transactions in the database that is a process of its own.
    pub async fn transactions(&self) -> Result<u64> {
        match &self.shared {
            Some(shared) => shared.database.transactions(&shared.url).await,
            None => Ok(0),
        }
    }

    /// Of the largest node.
    pub fn memory(&self) -> Result<Memory> {
        let mut largest = Memory { rss_mib: 0.0, rss_peak_mib: 0.0 };
        for node in &self.nodes {
            let Memory { rss_mib, rss_peak_mib } = process::memory(self.pid(node)?)?;
            largest.rss_mib = largest.rss_mib.max(rss_mib);
            largest.rss_peak_mib = largest.rss_peak_mib.max(rss_peak_mib);
        }
        Ok(largest)
    }

    fn pid(&self, node: &Node) -> Result<u32> {
        node.child.id().with_context(|| format!("the server has ended; its log says:\n{}", log_tail(self.home.path())))
    }
}

impl Subject for Server {
    fn api(&self) -> &Arc<Api> {
        &self.api
    }

    fn ways(&self) -> Vec<Way> {
        self.nodes.iter().map(|node| Way { address: node.address, host: host(node.address) }).collect()
    }

    fn usage(&self) -> Result<Option<Usage>> {
        Ok(Some(Usage {
            server: self.cpu_time()?,
            database: self.database_cpu_time()?,
            rss_peak_mib: self.memory()?.rss_peak_mib,
        }))
    }
}

/// What a node is started with.
struct Start<'a> {
    binary: &'a Path,
    home: &'a Path,
    shared: Option<&'a Shared>,
    variables: &'a Variables,
}

impl Start<'_> {
    async fn ask_for_token(&self) -> Result<String> {
        let mut command = Command::new(self.binary);
        command.arg("token").arg("--data").arg(self.home.join("data")).envs(self.variables.iter().cloned());
        let output = tokio::time::timeout(CALL_MAX, command.output())
            .await
            .context("postrider token did not end")?
            .context("running postrider token")?;
        ensure!(output.status.success(), "postrider token failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout).context("the token is not text")?.trim().to_owned())
    }

    async fn launch(&self, address: SocketAddr) -> Result<(Child, Duration)> {
        let home = self.home;
        let log = File::options().create(true).append(true).open(home.join(LOG)).context("opening the server's log")?;
        // Nodes of one deployment have the same keys, so they share the folder.
        let mut command = Command::new(self.binary);
        command.arg("serve").args(["--listen", &address.to_string()]).arg("--data").arg(home.join("data"));
        if let Some(shared) = self.shared {
            command.args(["--database-url", &shared.url]);
        }
        command.args(["--allow-subnet", "127.0.0.0/8"]).current_dir(home).envs(self.variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {}", self.binary.display()))?;
        until_ready(child, start, home, address).await
    }
}

async fn until_ready(mut child: Child, start: Instant, home: &Path, address: SocketAddr) -> Result<(Child, Duration)> {
    loop {
        let health = Request::get("/api/v1/health").header(HOST, address.to_string()).body(Full::default())?;
        let answer = async { Connection::open(address).await?.send_within(CALL_MAX, health).await };
        if answer.await.is_ok_and(|answer| answer.status == StatusCode::NO_CONTENT) {
            return Ok((child, start.elapsed()));
        }
        if let Some(status) = child.try_wait()? {
            bail!("the server ended with {status} before it was ready; its log says:\n{}", log_tail(home));
        }
        if start.elapsed() > READY_MAX {
            bail!("the server was not ready after {READY_MAX:?}; its log says:\n{}", log_tail(home));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn end(child: &mut Child, stop: Stop) -> Result<()> {
    let Some(pid) = child.id() else { return Ok(()) };
    match stop {
        Stop::Asked => {
            // The shell's own kill: the standard library can only kill for good, and a signal by hand would need unsafe code.
            let asked = Command::new("sh").args(["-c", "kill -TERM \"$1\"", "sh", &pid.to_string()]).status().await?;
            if !asked.success() || tokio::time::timeout(STOP_MAX, child.wait()).await.is_err() {
                child.kill().await?;
                bail!("the server did not stop within {STOP_MAX:?} of being asked");
            }
        }
        Stop::Killed => child.kill().await?,
    }
    Ok(())
}

/// A library that tells whoever is started with it another time than it is, where Debian's packages put it.
fn interposed_clock(days_behind: u32) -> Result<Variables> {
    let library = PathBuf::from(format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH));
    ensure!(
        library.is_file(),
        "a server cannot be started in the past without {}: `apt-get install libfaketime`",
        library.display()
    );
    Ok(vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME", format!("-{days_behind}d")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ])
}

fn host(address: SocketAddr) -> HeaderValue {
    HeaderValue::from_str(&address.to_string()).expect("an address is plain ASCII")
}

/// Free when asked for. Somebody else could take it before the server does; the server would then say so and end.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?.local_addr()?)
}

fn log_tail(home: &Path) -> String {
    let log = fs::read(home.join(LOG)).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(LOG_TAIL_LEN)..];
    String::from_utf8_lossy(tail).into_owned()
}

const LOG: &str = "server.log";
const LOG_TAIL_LEN: usize = 4096;
const CALL_MAX: Duration = Duration::from_secs(30);
/// Far above the target of one second: a server that misses it should still be measured.
const READY_MAX: Duration = Duration::from_secs(120);
const STOP_MAX: Duration = Duration::from_secs(60);
/// Nodes look around every second, and lanes change hands in a few rounds of that.
pub const SHARING_OUT: Duration = Duration::from_secs(5);
