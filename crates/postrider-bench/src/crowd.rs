//! Endpoints of which a tenth are well: what the others do to these.
//!
//! Both sides of each round have a server of their own with all the endpoints on it, which is killed afterwards: what
//! bad endpoints leave behind (backlogs, open breakers, requests that hang) would weigh on the next measurement.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::net::{TcpSocket, TcpStream};

use crate::field::{Field, Load, messages};
use crate::generator::{Application, Until};
use crate::receiver::{Endpoint, Place, Receiver, Temper};
use crate::report::Sides;
use crate::scenarios::Bench;
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

/// Nine times as many are bad as are well.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub healthy: usize,
    pub bad: &'static [Badness],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Badness {
    /// Nothing listens there.
    Closed,
    /// A host that does not answer a SYN.
    Unreachable,
    /// Takes a request and never answers.
    Hanging,
    /// Begins an answer that it never ends.
    Dripping,
}

impl Mix {
    /// 90 of 100 hang.
    pub const HUNDRED: Mix = Mix { healthy: 10, bad: &[Badness::Hanging] };
    /// 900 of 1,000 are bad in one way or another, in about equal parts.
    pub const THOUSAND: Mix =
        Mix { healthy: 100, bad: &[Badness::Closed, Badness::Unreachable, Badness::Hanging, Badness::Dripping] };

    fn all(self) -> usize {
        self.healthy * IN_ALL_PER_HEALTHY as usize
    }

    fn bad(self) -> usize {
        self.all() - self.healthy
    }
}

impl Crowd {
    pub async fn measure(bench: &mut Bench, mix: Mix) -> Result<Crowd> {
        ensure_open_files(OPEN_FILES_PER_ENDPOINT * u64::try_from(mix.all())?)?;
        let bad = Bad::start(mix).await?;
        let (well, unwell) = (mix.healthy, mix.bad());
        let (mut steady, mut full) = ((vec![], vec![]), (vec![], vec![]));
        let (mut bad_requests, mut in_flight) = (0, vec![]);
        let duration = Duration::from_secs_f64(bench.settings.hang_seconds);
        let steady_load = bench.steady_load(duration);
        let full_load = bench.full_load();
        for round in 1..=bench.settings.runs {
            bench.progress.step(&format!("round {round}: {well} healthy endpoints, steady"));
            let scene = Scene::set(bench, &bad, steady_load).await?;
            steady.0.push(bench.measure(&scene.server, &scene.healthy, steady_load).await?);
            scene.server.end(Stop::Killed).await?;

            bench.progress.step(&format!("round {round}: the same beside {unwell} bad ones"));
            let scene = Scene::set(bench, &bad, steady_load).await?;
            let for_all = Load::Open { rate: bench.settings.sizes.rate * IN_ALL_PER_HEALTHY, duration };
            steady.1.push(bench.measure_where(&scene.server, &scene.all, for_all, is_healthy).await?);
            bad_requests += scene.bad_endpoints.iter().map(Endpoint::requests).sum::<u64>();
            scene.server.end(Stop::Killed).await?;

            bench.progress.step(&format!("round {round}: {well} healthy endpoints, full load"));
            let scene = Scene::set(bench, &bad, full_load).await?;
            full.0.push(bench.measure(&scene.server, &scene.healthy, full_load).await?);
            scene.server.end(Stop::Killed).await?;

            bench.progress.step(&format!("round {round}: the same beside {unwell} bad ones"));
            let scene = Scene::set(bench, &bad, full_load).await?;
            let filling = Load::Closed {
                connections: FILLING_CONNECTIONS,
                until: Until::Messages(FILLING_EACH * u32::try_from(unwell)?),
            };
            bench.measure(&scene.server, &scene.bad, filling).await.context("keeping the bad ones busy")?;
            in_flight.push(scene.server.api.requests_in_flight().await?);
            full.1.push(bench.measure(&scene.server, &scene.healthy, full_load).await?);
            scene.server.end(Stop::Killed).await?;
        }
        in_flight.sort_unstable();
        Ok(Crowd {
            endpoints: mix.all(),
            bad: unwell,
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
        let (mut owed, mut urls, mut bad_endpoints) = (vec![], vec![], vec![]);
        for number in 0..bad.mix.all() {
            let (url, owes) = if is_healthy(u32::try_from(number)?) {
                (bench.receiver.endpoint(Temper::Healthy, 0).url, 1)
            } else {
                (bad.url(number, &mut bad_endpoints), 0)
            };
            urls.push(vec![url]);
            owed.push(owes);
        }
        let made = server.api.create_many(urls).await?.into_iter().zip(owed);
        let applications = made.map(|((id, _), owed)| Ok(Application { messages: messages(&id)?, owed }));
        let applications: Vec<Application> = applications.collect::<Result<_>>()?;
        let field = |wanted: fn(&Application) -> bool| Field {
            target: Field::target(&server, applications.iter().filter(|one| wanted(one)).cloned().collect()),
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

/// Those that are not well.
struct Bad {
    mix: Mix,
    /// Another port than the healthy ones have, so that no connection is shared with these.
    receiver: Receiver,
    closed: SocketAddr,
    black_hole: BlackHole,
}

impl Bad {
    async fn start(mix: Mix) -> Result<Bad> {
        let receiver = Receiver::start(&Place::default()).await?;
        // The receiver listens at one of the machine's loopback addresses, and nobody does at this one.
        let closed = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), receiver.address.port()));
        Ok(Bad { mix, receiver, closed, black_hole: BlackHole::open().await? })
    }

    fn url(&self, number: usize, endpoints: &mut Vec<Endpoint>) -> String {
        let temper = match self.mix.bad[number % self.mix.bad.len()] {
            Badness::Closed => return format!("http://{}/{number}", self.closed),
            Badness::Unreachable => return format!("http://{}/{number}", self.black_hole.address),
            Badness::Hanging => Temper::Hanging,
            Badness::Dripping => Temper::Dripping,
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

const IN_ALL_PER_HEALTHY: u32 = 10;
/// Two more than an endpoint has slots.
const FILLING_EACH: u32 = 12;
const FILLING_CONNECTIONS: usize = 64;
/// Hanging and dripping connections, and some for everything else.
const OPEN_FILES_PER_ENDPOINT: u64 = 8;
/// The kernel answers a SYN on loopback at once, or never.
const UNANSWERED: Duration = Duration::from_millis(300);
