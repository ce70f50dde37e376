//! The floor: what delivering costs when nothing is stored, scheduled or looked up.
//!
//! A client that signs and posts the same body to the same receiver over keep-alive connections, and does nothing else.
//! It runs as a process of its own, so that its CPU time is read the same way as the server's.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Uri};
use http_body_util::Full;
use postrider_signature::{Secret, SigningKey, sign};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::client::Connection;
use crate::clock::unix_seconds;
use crate::payload::{self, Stamp};
use crate::process::cpu_time;
use crate::receiver::{Receiver, Temper};
use crate::report::FloorRun;

pub const CONNECTIONS: usize = 64;
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// How fast the client delivers bodies of a length to the receiver, and what that costs it.
pub async fn measure(receiver: &Receiver, duration: Duration, len: usize) -> Result<FloorRun> {
    let endpoint = receiver.endpoint(Temper::Healthy, 0);
    let ledger = receiver.open_ledger(1);
    let what = What { run: ledger.run, ids: Ids::New, len };
    let mut client = Client::start(&receiver.near(&endpoint), what, duration).await?;
    let pid = client.pid;
    let (done, cpu) = client.go(|| cpu_time(pid)).await?;
    client.end().await?;
    let arrived = ledger.arrived();
    receiver.close_ledger(ledger.run);
    ensure!(
        arrived == done.delivered,
        "the floor's client counted {} deliveries, the receiver {arrived}",
        done.delivered
    );
    Ok(FloorRun {
        delivered: arrived,
        delivered_per_s: arrived as f64 / done.seconds,
        cpu_us_per_delivery: cpu.as_secs_f64() * 1e6 / arrived.max(1) as f64,
    })
}

/// Lets the client send to a URL and reads somebody's CPU time meanwhile.
pub async fn drive(
    url: &str,
    what: What,
    duration: Duration,
    cpu: impl Fn() -> Result<Duration>,
) -> Result<(Done, Duration)> {
    let mut client = Client::start(url, what, duration).await?;
    let measured = client.go(cpu).await?;
    client.end().await?;
    Ok(measured)
}

/// What the client sends: under ids of this run, bodies of this length.
#[derive(Debug, Clone, Copy)]
pub struct What {
    pub run: u16,
    pub ids: Ids,
    pub len: usize,
}

/// Which ids the requests bear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Ids {
    /// Each its own.
    New,
    /// The first few of the run over and over.
    Known,
}

/// The client as a process of its own.
struct Client {
    child: Child,
    pid: u32,
    orders: ChildStdin,
    words: Lines<BufReader<ChildStdout>>,
    duration: Duration,
}

impl Client {
    /// It has connected when this returns.
    async fn start(url: &str, What { run, ids, len }: What, duration: Duration) -> Result<Client> {
        let ids = match ids {
            Ids::New => "new",
            Ids::Known => "known",
        };
        let mut child = Command::new(std::env::current_exe()?)
            .arg("floor-client")
            .args(["--url", url])
            .args(["--run", &run.to_string()])
            .args(["--ids", ids])
            .args(["--bytes", &len.to_string()])
            .args(["--millis", &duration.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the floor's client")?;
        let pid = child.id().context("the floor's client ended at once")?;
        let orders = child.stdin.take().expect("stdin is piped");
        let words = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut client = Client { child, pid, orders, words, duration };
        ensure!(client.hear().await? == READY, "the floor's client could not connect");
        Ok(client)
    }

    async fn hear(&mut self) -> Result<String> {
        tokio::time::timeout(self.duration + SLACK, self.words.next_line())
            .await?
            .map(Option::unwrap_or_default)
            .context("hearing from the floor's client")
    }

    /// From "go" until it says that it is done.
    async fn go(&mut self, cpu: impl Fn() -> Result<Duration>) -> Result<(Done, Duration)> {
        let before = cpu()?;
        self.orders.write_all(b"go\n").await?;
        let done = serde_json::from_str(&self.hear().await?).context("the floor's client did not finish")?;
        Ok((done, cpu()?.saturating_sub(before)))
    }

    /// It waits for this, so that its CPU time can be read while it lives.
    async fn end(mut self) -> Result<()> {
        drop(self.orders);
        tokio::time::timeout(SLACK, self.child.wait()).await.context("the floor's client did not end")??;
        Ok(())
    }
}

#[derive(clap::Args)]
pub struct ClientArgs {
    #[arg(long)]
    url: Uri,
    #[arg(long)]
    run: u16,
    #[arg(long)]
    ids: Ids,
    #[arg(long)]
    bytes: usize,
    #[arg(long)]
    millis: u64,
}

#[derive(Serialize, Deserialize)]
pub struct Done {
    pub delivered: u64,
    pub seconds: f64,
}

/// The client's side of it.
pub async fn client(args: ClientArgs) -> Result<()> {
    payload::allow(args.bytes);
    let authority = args.url.authority().context("the url has no address")?;
    let address: SocketAddr = authority.as_str().parse().context("the url's host is not an address and port")?;
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(address).await?);
    }
    let job = Arc::new(Job {
        path: args.url.path().parse()?,
        host: HeaderValue::from_str(authority.as_str())?,
        keys: [SigningKey::new(&Secret::parse(SECRET)?)],
        run: args.run,
        len: args.bytes,
    });

    println!("{READY}");
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    ensure!(orders.next_line().await?.as_deref() == Some("go"), "the harness left");
    let start = Instant::now();
    let end = start + Duration::from_millis(args.millis);
    let delivered = Arc::new(AtomicU64::new(0));
    let mut senders = JoinSet::new();
    for (lane, mut connection) in (0_u32..).zip(connections) {
        let (job, delivered) = (Arc::clone(&job), Arc::clone(&delivered));
        senders.spawn(async move {
            let (mut seq, mut sent) = (lane, 0);
            while Instant::now() < end {
                let answer = connection.send(job.request(seq)?).await?;
                ensure!(answer.status.is_success(), "the receiver answered {}", answer.status);
                delivered.fetch_add(1, Relaxed);
                sent += 1;
                seq = match args.ids {
                    Ids::Known if sent % KNOWN == 0 => lane,
                    Ids::New | Ids::Known => seq + u32::try_from(CONNECTIONS)?,
                };
            }
            Ok(())
        });
    }
    while let Some(done) = senders.join_next().await {
        done??;
    }
    let done = Done { delivered: delivered.load(Relaxed), seconds: start.elapsed().as_secs_f64() };
    println!("{}", serde_json::to_string(&done)?);
    while orders.next_line().await?.is_some() {}
    Ok(())
}

struct Job {
    path: Uri,
    host: HeaderValue,
    keys: [SigningKey; 1],
    run: u16,
    len: usize,
}

impl Job {
    fn request(&self, seq: u32) -> Result<Request<Full<Bytes>>> {
        let mut body = Vec::with_capacity(self.len);
        Stamp { run: self.run, seq, sent_ns: 0 }.write_to(self.len, &mut body);
        let id = format!("msg_{:05}{seq:022}", self.run);
        let timestamp = unix_seconds();
        let signature = sign(&self.keys, &id, timestamp, &body);
        let request = Request::post(self.path.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header("webhook-id", id)
            .header("webhook-timestamp", HeaderValue::from(timestamp))
            .header("webhook-signature", signature)
            .body(Full::new(body.into()))?;
        Ok(request)
    }
}

/// Ids of each connection that are sent over and over.
pub const KNOWN: usize = 20;

const READY: &str = "ready";
const SLACK: Duration = Duration::from_secs(20);
