//! The server under test: started, spoken to, measured from outside, and ended by its process id.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use crate::client::{Answer, Connection};
use crate::database::{Accounts, Database};
use crate::floor::SECRET;
use crate::generator::Way;
use crate::process::{self, Memory};

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
    token: String,
}

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
        let home = tempfile::Builder::new()
            .prefix("postrider-bench-")
            .tempdir_in(&self.dir)
            .context("making a folder for the server")?;
        let (shared, nodes) = match store {
            Store::Sqlite => (None, 1),
            Store::Postgres { nodes } => {
                let database = self.database().await?;
                (Some(Shared { url: database.fresh().await, database }), nodes)
            }
        };
        let mut server = Server { nodes: Vec::new(), home, binary: self.binary.clone(), shared, token: String::new() };
        let mut ready = Duration::ZERO;
        for _ in 0..nodes {
            let address = free_address()?;
            let (child, took) = server.launch(address).await?;
            server.nodes.push(Node { child, address });
            ready = ready.max(took);
        }
        server.token = server.ask_for_token().await?;
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
        let (child, ready) = self.launch(self.nodes[number].address).await?;
        self.nodes[number].child = child;
        Ok(ready)
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

    /// How producers get to each node.
    pub fn ways(&self) -> Vec<Way> {
        self.nodes.iter().map(|node| Way { address: node.address, host: host(node.address) }).collect()
    }

    pub fn authorization(&self) -> HeaderValue {
        HeaderValue::from_str(&format!("Bearer {}", self.token)).expect("a token was checked when it was read")
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// The id of the newest of a list.
    pub async fn newest(&self, path: &str) -> Result<String> {
        let list = self.call(Method::GET, &format!("{path}?limit=1"), None, StatusCode::OK).await?;
        list["data"][0]["id"].as_str().map(str::to_owned).with_context(|| format!("finding an id in {list}"))
    }

    pub async fn create_application(&self, name: &str) -> Result<String> {
        self.create("/api/v1/app", json!({ "name": name })).await
    }

    pub async fn create_endpoint(&self, application: &str, url: &str) -> Result<String> {
        self.create(&format!("/api/v1/app/{application}/endpoint"), json!({ "url": url, "secret": SECRET })).await
    }

    /// A source that takes what the floor's client signs, and where it takes it.
    pub async fn create_source(&self) -> Result<String> {
        let body = json!({ "name": "bench", "type": "svix", "config": { "secret": SECRET } });
        let made = self.call(Method::POST, "/ingest/api/v1/source", Some(body), StatusCode::CREATED).await?;
        let url = made["ingestUrl"].as_str().with_context(|| format!("finding the URL in {made}"))?;
        let (_, path) = url.split_once("/ingest/").with_context(|| format!("finding the path in {url}"))?;
        Ok(format!("http://{}/ingest/{path}", self.nodes[0].address))
    }

    /// Messages that the first node has accepted.
    pub async fn accepted(&self) -> Result<u64> {
        self.metric("postrider_messages_accepted_total ").await
    }

    /// Deliveries of an endpoint that have not ended: not tried yet, or waiting for their next try.
    pub async fn waiting(&self, application: &str, endpoint: &str) -> Result<u64> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/stats");
        let stats = self.call(Method::GET, &path, None, StatusCode::OK).await?;
        let count = |name: &str| stats[name].as_u64().with_context(|| format!("finding {name} in {stats}"));
        Ok(count("pending")? + count("sending")?)
    }

    pub async fn requests_in_flight(&self) -> Result<u64> {
        self.metric("postrider_requests_in_flight ").await
    }

    async fn metric(&self, name: &str) -> Result<u64> {
        let request = Request::get("/metrics")
            .header(HOST, host(self.nodes[0].address))
            .header(AUTHORIZATION, self.authorization())
            .body(Full::default())?;
        let answer = exchange(self.nodes[0].address, request).await.context("reading the metrics")?;
        let text = String::from_utf8_lossy(&answer.body);
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        found.with_context(|| format!("finding {name}in {text}"))
    }

    /// Pauses or resumes an endpoint.
    pub async fn steer(&self, application: &str, endpoint: &str, how: &str, body: Value) -> Result<()> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/{how}");
        self.call(Method::POST, &path, Some(body), StatusCode::OK).await.map(drop)
    }

    /// The state that the API shows.
    pub async fn health(&self, application: &str, endpoint: &str) -> Result<String> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/health");
        let health = self.call(Method::GET, &path, None, StatusCode::OK).await?;
        health["state"].as_str().map(str::to_owned).with_context(|| format!("finding the state in {health}"))
    }

    pub async fn patch_endpoint(&self, application: &str, endpoint: &str, patch: &str) -> Result<()> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        self.call(Method::PATCH, &path, Some(serde_json::from_str(patch)?), StatusCode::OK).await.map(drop)
    }

    pub async fn delete_endpoint(&self, application: &str, endpoint: &str) -> Result<()> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        self.call(Method::DELETE, &path, None, StatusCode::NO_CONTENT).await.map(drop)
    }

    async fn create(&self, path: &str, body: Value) -> Result<String> {
        let made = self.call(Method::POST, path, Some(body), StatusCode::CREATED).await?;
        made["id"].as_str().map(str::to_owned).with_context(|| format!("finding the id in {made}"))
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>, expected: StatusCode) -> Result<Value> {
        let address = self.nodes[0].address;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host(address))
            .header(AUTHORIZATION, self.authorization())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.map_or_else(Bytes::new, |body| body.to_string().into())))?;
        let answer = exchange(address, request).await.with_context(|| format!("calling {path}"))?;
        ensure!(
            answer.status == expected,
            "{path} answered {} instead of {expected}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        if answer.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.body).with_context(|| format!("reading the answer of {path}"))
    }

    async fn ask_for_token(&self) -> Result<String> {
        let output = Command::new(&self.binary).arg("token").arg("--data").arg(self.home.path().join("data")).output();
        let output = tokio::time::timeout(CALL_MAX, output)
            .await
            .context("postrider token did not end")?
            .context("running postrider token")?;
        ensure!(output.status.success(), "postrider token failed: {}", String::from_utf8_lossy(&output.stderr));
        let token = String::from_utf8(output.stdout).context("the token is not text")?.trim().to_owned();
        ensure!(
            !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
            "postrider token printed something else than a token"
        );
        Ok(token)
    }

    async fn launch(&self, address: SocketAddr) -> Result<(Child, Duration)> {
        let home = self.home.path();
        let log = File::options().create(true).append(true).open(home.join(LOG)).context("opening the server's log")?;
        // Nodes of one deployment have the same keys, so they share the folder.
        let mut command = Command::new(&self.binary);
        command.arg("serve").args(["--listen", &address.to_string()]).arg("--data").arg(home.join("data"));
        if let Some(shared) = &self.shared {
            command.args(["--database-url", &shared.url]);
        }
        command.args(["--allow-subnet", "127.0.0.0/8"]).current_dir(home);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {}", self.binary.display()))?;
        until_ready(child, start, home, address).await
    }
}

async fn until_ready(mut child: Child, start: Instant, home: &Path, address: SocketAddr) -> Result<(Child, Duration)> {
    loop {
        let health = Request::get("/api/v1/health").header(HOST, address.to_string()).body(Full::default())?;
        if exchange(address, health).await.is_ok_and(|answer| answer.status == StatusCode::NO_CONTENT) {
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

async fn exchange(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<Answer> {
    Connection::open(address).await?.send_within(CALL_MAX, request).await
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
const SHARING_OUT: Duration = Duration::from_secs(5);
