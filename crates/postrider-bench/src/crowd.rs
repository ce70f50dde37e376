//! A thousand endpoints of which a hundred are well: what the others do to these.
//!
//! Both sides of each round have a server of their own with all thousand endpoints on it, which is killed afterwards: what
//! bad endpoints leave behind (backlogs, open breakers, requests that hang) would weigh on the next measurement.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::net::{TcpSocket, TcpStream};

use crate::generator::{Application, Target, Until};
use crate::receiver::{Endpoint, Receiver, Temper};
use crate::report::{LoadRun, Series, ratio};
use crate::scenarios::{Bench, Field, Load};
use crate::server::{Server, Stop, Store};

#[derive(Serialize)]
pub struct Crowd {
    pub endpoints: usize,
    pub bad: usize,
    /// By the clock. Beside: the bad ones get as many messages as the healthy ones, each.
    pub steady: Sides,
    /// As much as goes to the healthy ones. Beside: each bad one has had enough messages to use all of its slots.
    pub full: Sides,
    /// That were taken and not answered, over all measurements at a fixed rate.
    pub bad_requests: u64,
    /// When full load began, in the median.
    pub in_flight: u64,
}

/// The healthy ones alone, and beside the bad ones.
#[derive(Serialize)]
pub struct Sides {
    pub without: Series<LoadRun>,
    pub beside: Series<LoadRun>,
}

impl Sides {
    pub fn of((without, beside): (Vec<LoadRun>, Vec<LoadRun>)) -> Result<Sides> {
        let series = |runs| Series::of(runs).context("no run was asked for");
        Ok(Sides { without: series(without)?, beside: series(beside)? })
    }

    pub fn rate_to_without(&self) -> Option<f64> {
        let rate: fn(&LoadRun) -> f64 = |run| run.delivered_per_s;
        ratio(&self.beside.runs, rate, &self.without.runs, rate)
    }
}

impl Crowd {
    pub async fn measure(bench: &mut Bench) -> Result<Crowd> {
        ensure_open_files(OPEN_FILES_MIN)?;
        let bad = Bad::start().await?;
        let (mut steady, mut full) = ((vec![], vec![]), (vec![], vec![]));
        let (mut bad_requests, mut in_flight) = (0, vec![]);
        let duration = Duration::from_secs(bench.settings.hang_seconds);
        let steady_load = bench.steady_load(duration);
        let full_load = bench.full_load();
        for round in 1..=bench.settings.runs {
            bench.progress.step(&format!("round {round}: {HEALTHY} healthy endpoints, steady"));
            let scene = Scene::set(bench, &bad, steady_load).await?;
            steady.0.push(bench.measure(&scene.server, &scene.healthy, steady_load).await?);
            scene.server.end(Stop::Killed).await?;

            bench.progress.step(&format!("round {round}: the same beside {BAD} bad ones"));
            let scene = Scene::set(bench, &bad, steady_load).await?;
            let for_all = Load::Open { rate: bench.settings.rate * IN_ALL_PER_HEALTHY, duration };
            steady.1.push(bench.measure_where(&scene.server, &scene.all, for_all, is_healthy).await?);
            bad_requests += scene.bad_endpoints.iter().map(Endpoint::requests).sum::<u64>();
            scene.server.end(Stop::Killed).await?;

            bench.progress.step(&format!("round {round}: {HEALTHY} healthy endpoints, full load"));
            let scene = Scene::set(bench, &bad, full_load).await?;
            full.0.push(bench.measure(&scene.server, &scene.healthy, full_load).await?);
            scene.server.end(Stop::Killed).await?;

            bench.progress.step(&format!("round {round}: the same beside {BAD} bad ones"));
            let scene = Scene::set(bench, &bad, full_load).await?;
            let filling = Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(FILLING) };
            bench.measure(&scene.server, &scene.bad, filling).await.context("keeping the bad ones busy")?;
            in_flight.push(scene.server.requests_in_flight().await?);
            full.1.push(bench.measure(&scene.server, &scene.healthy, full_load).await?);
            scene.server.end(Stop::Killed).await?;
        }
        in_flight.sort_unstable();
        Ok(Crowd {
            endpoints: HEALTHY + BAD,
            bad: BAD,
            steady: Sides::of(steady)?,
            full: Sides::of(full)?,
            bad_requests,
            in_flight: in_flight[in_flight.len() / 2],
        })
    }
}

/// A server with all thousand endpoints, of which the healthy ones have been called already.
struct Scene {
    server: Server,
    healthy: Field,
    bad: Field,
    all: Field,
    bad_endpoints: Vec<Endpoint>,
}

impl Scene {
    async fn set(bench: &mut Bench, bad: &Bad, load: Load) -> Result<Scene> {
        let (server, _) = bench.launcher.start(Store::Sqlite).await?;
        let (mut applications, mut bad_endpoints) = (vec![], vec![]);
        for number in 0..HEALTHY + BAD {
            let application = server.create_application(&format!("crowd {number}")).await?;
            let (url, owed) = if is_healthy(u32::try_from(number)?) {
                (bench.receiver.endpoint(Temper::Healthy, 0).url, 1)
            } else {
                (bad.url(number, &mut bad_endpoints), 0)
            };
            server.create_endpoint(&application, &url).await?;
            applications.push(Application { messages: format!("/api/v1/app/{application}/msg").parse()?, owed });
        }
        let field = |wanted: fn(&Application) -> bool| Field {
            target: Arc::new(Target {
                ways: server.ways(),
                authorization: server.authorization(),
                applications: applications.iter().filter(|application| wanted(application)).cloned().collect(),
            }),
            endpoints: Vec::new(),
            ids: Vec::new(),
            width: 1,
        };
        let healthy = field(|application| application.owed > 0);
        bench.warm_up(&server, &healthy, load).await?;
        let (bad, all) = (field(|application| application.owed == 0), field(|_| true));
        Ok(Scene { server, healthy, bad, all, bad_endpoints })
    }
}

/// Those that are not well, in equal parts: nothing listens; a host that does not answer a SYN; a request is taken and never
/// answered; an answer begins and never ends.
struct Bad {
    /// Another port than the healthy ones have, so that no connection is shared with these.
    receiver: Receiver,
    closed: SocketAddr,
    black_hole: BlackHole,
}

impl Bad {
    async fn start() -> Result<Bad> {
        let receiver = Receiver::start().await?;
        // The receiver listens at one of the machine's loopback addresses, and nobody does at this one.
        let closed = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), receiver.address.port()));
        Ok(Bad { receiver, closed, black_hole: BlackHole::open().await? })
    }

    fn url(&self, number: usize, endpoints: &mut Vec<Endpoint>) -> String {
        let temper = match number % 4 {
            0 => return format!("http://{}/{number}", self.closed),
            1 => return format!("http://{}/{number}", self.black_hole.address),
            2 => Temper::Hanging,
            _ => Temper::Dripping,
        };
        let endpoint = self.receiver.endpoint(temper, 0);
        let url = endpoint.url.clone();
        endpoints.push(endpoint);
        url
    }
}

/// A port whose queue is full for good: the kernel drops every further SYN.
struct BlackHole {
    address: SocketAddr,
    _listener: tokio::net::TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    async fn open() -> Result<BlackHole> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(1).context("opening a port that nobody answers")?;
        let address = listener.local_addr()?;
        let mut queued = Vec::new();
        let start = Instant::now();
        while let Ok(connected) = tokio::time::timeout(UNANSWERED, TcpStream::connect(address)).await {
            queued.push(connected?);
            ensure!(start.elapsed() < Duration::from_secs(10), "a port that nobody answers still takes connections");
        }
        Ok(BlackHole { address, _listener: listener, _queued: queued })
    }
}

/// Every connection is an open file here, and again in the server.
fn ensure_open_files(wanted: u64) -> Result<()> {
    let limits = fs::read_to_string("/proc/self/limits").context("reading the limit of open files")?;
    let soft =
        limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
    ensure!(
        soft.is_none_or(|soft: u64| soft >= wanted),
        "this measurement needs {wanted} open files: run `ulimit -n {wanted}` first"
    );
    Ok(())
}

/// Applications take turns by a message's number, and every tenth is healthy.
fn is_healthy(number: u32) -> bool {
    number.is_multiple_of(IN_ALL_PER_HEALTHY)
}

const HEALTHY: usize = 100;
const BAD: usize = 900;
const IN_ALL_PER_HEALTHY: u32 = 10;
/// Two more for each than an endpoint has slots.
const FILLING: u32 = 12 * BAD as u32;
const FILLING_CONNECTIONS: usize = 64;
/// Hanging and dripping connections, and some for everything else.
const OPEN_FILES_MIN: u64 = 8192;
/// The kernel answers a SYN on loopback at once, or never.
const UNANSWERED: Duration = Duration::from_millis(300);
