//! The scenarios, each a short story: set up, load, wait until all has arrived, compare.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::crowd::Crowd;
use crate::floor;
use crate::gateway::Gateway;
use crate::generator::{self, Application, Target, Until};
use crate::ledger::{Ledger, Tally};
use crate::looking::Looking;
use crate::parking::{Lane, Parking};
use crate::progress::Progress;
use crate::receiver::{Endpoint, Receiver, Temper};
use crate::report::{Faults, Figures, Growth, IdleRun, Isolation, Latency, LoadRun, Series};
use crate::server::{Launcher, Server, Stop, Store};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// A bare client that signs and posts to the receiver: what delivering costs without a server
    Floor,
    /// 64 producers -> server -> receiver, ten applications with an endpoint each
    EndToEnd,
    /// The same with one application of ten endpoints
    FanOut,
    /// A fixed rate: how long a message takes when the server is not pressed
    Steady,
    /// Start on an empty folder: time until ready, memory
    Idle,
    /// End to end with finished deliveries in the store, against an empty one
    GrowthFinished,
    /// End to end with waiting retries in the store, against an empty one
    GrowthWaiting,
    /// A fixed rate to ten endpoints, then three of them hang
    Isolation,
    /// 1,000 endpoints, 900 of them dead, hanging or dripping, against the other 100 alone
    IsolationThousand,
    /// Pausing, resuming and tripping a lane with a great many deliveries in it
    Parking,
    /// The dashboard's pages with a great many messages in the store, and delivering while people look at them
    Looking,
    /// Other services' requests to a source, verified, deduplicated and stored, against a bare server
    Gateway,
    /// End to end on PostgreSQL with one node
    PgEndToEnd,
    /// The same with three nodes
    PgThreeNodes,
    /// End to end on PostgreSQL with finished deliveries in the store, against an empty one
    PgFinished,
    /// End to end on PostgreSQL with waiting retries in the store, against an empty one
    PgWaiting,
    /// Three nodes at a fixed rate, and one of them ends
    PgTakeOver,
    /// What one and three nodes cost when nothing happens
    PgIdle,
    /// The dashboard on PostgreSQL
    PgLooking,
    /// A source on PostgreSQL
    PgGateway,
}

impl Scenario {
    pub fn is_on_postgres(self) -> bool {
        match self {
            Scenario::Floor
            | Scenario::EndToEnd
            | Scenario::FanOut
            | Scenario::Steady
            | Scenario::Idle
            | Scenario::GrowthFinished
            | Scenario::GrowthWaiting
            | Scenario::Isolation
            | Scenario::IsolationThousand
            | Scenario::Parking
            | Scenario::Looking
            | Scenario::Gateway => false,
            Scenario::PgEndToEnd
            | Scenario::PgThreeNodes
            | Scenario::PgFinished
            | Scenario::PgWaiting
            | Scenario::PgTakeOver
            | Scenario::PgIdle
            | Scenario::PgLooking
            | Scenario::PgGateway => true,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    pub runs: usize,
    pub seconds: u64,
    pub scenarios: BTreeSet<Scenario>,
    pub rate: u32,
    pub growth_finished: u32,
    pub growth_waiting: u32,
    pub pg_finished: u32,
    pub pg_waiting: u32,
    pub parking: u32,
    pub looking: u32,
    pub hang_seconds: u64,
    pub patience_seconds: u64,
}

impl Settings {
    /// How many steps the progress display will see.
    pub fn steps(&self) -> usize {
        let of = |scenario: &Scenario| match scenario {
            Scenario::Floor | Scenario::EndToEnd | Scenario::FanOut | Scenario::Steady | Scenario::Idle => self.runs,
            Scenario::PgEndToEnd | Scenario::PgThreeNodes => self.runs,
            Scenario::GrowthFinished | Scenario::GrowthWaiting => 2 + 2 * self.runs,
            Scenario::PgFinished | Scenario::PgWaiting | Scenario::PgTakeOver => 2 + 2 * self.runs,
            Scenario::IsolationThousand => 4 * self.runs,
            Scenario::Gateway | Scenario::PgGateway => 3 * self.runs,
            Scenario::Looking | Scenario::PgLooking => 2 + 4 * self.runs,
            Scenario::Isolation | Scenario::Parking | Scenario::PgIdle => 2,
        };
        self.scenarios.iter().map(of).sum()
    }

    pub fn is_on_sqlite(&self) -> bool {
        self.scenarios.iter().any(|scenario| !scenario.is_on_postgres())
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

pub struct Bench {
    pub settings: Settings,
    pub launcher: Launcher,
    pub receiver: Receiver,
    pub progress: Progress,
    pub faults: Faults,
    /// Arrivals after the end of their measurement that are part of the story.
    pub late_wanted: u64,
}

impl Bench {
    pub async fn run(&mut self) -> Result<Figures> {
        let mut figures = self.rounds().await?;
        if self.wants(Scenario::GrowthFinished) {
            figures.growth_finished = Some(
                self.growth_finished(Store::Sqlite, self.settings.growth_finished)
                    .await
                    .context("measuring with finished deliveries in the store")?,
            );
        }
        if self.wants(Scenario::GrowthWaiting) {
            figures.growth_waiting =
                Some(self.growth_waiting().await.context("measuring with waiting retries in the store")?);
        }
        if self.wants(Scenario::Isolation) {
            figures.isolation = Some(self.isolation().await.context("measuring isolation")?);
        }
        if self.wants(Scenario::IsolationThousand) {
            let crowd = Crowd::measure(self).await;
            figures.crowd = Some(crowd.context("measuring beside a great many bad endpoints")?);
        }
        if self.wants(Scenario::Parking) {
            figures.parking = Some(self.parking().await.context("measuring a parked lane")?);
        }
        if self.wants(Scenario::Looking) {
            let looking = Looking::measure(self, Store::Sqlite).await;
            figures.looking = Some(looking.context("measuring the dashboard")?);
        }
        if self.wants(Scenario::Gateway) {
            figures.gateway = Some(Gateway::measure(self, Store::Sqlite).await.context("measuring a source")?);
        }
        figures.postgres = self.on_postgres().await?;
        self.faults.duplicated += self.receiver.late() - self.late_wanted;
        self.faults.damaged += self.receiver.damaged();
        Ok(figures)
    }

    pub fn wants(&self, scenario: Scenario) -> bool {
        self.settings.scenarios.contains(&scenario)
    }

    /// All that is compared with the floor, round by round, so that what else goes on in the machine touches both sides.
    async fn rounds(&mut self) -> Result<Figures> {
        let (mut floors, mut ends, mut fans, mut steadies, mut idles) = (vec![], vec![], vec![], vec![], vec![]);
        for round in 1..=self.settings.runs {
            if self.wants(Scenario::Floor) {
                self.progress.step(&format!("round {round}: floor"));
                floors.push(
                    floor::measure(&self.receiver, self.settings.duration()).await.context("measuring the floor")?,
                );
            }
            if self.wants(Scenario::EndToEnd) {
                self.progress.step(&format!("round {round}: end to end"));
                ends.push(
                    self.on_an_empty_server(Store::Sqlite, Shape::InTurn, self.full_load())
                        .await
                        .context("measuring end to end")?,
                );
            }
            if self.wants(Scenario::FanOut) {
                self.progress.step(&format!("round {round}: fan-out 1:10"));
                fans.push(
                    self.on_an_empty_server(Store::Sqlite, Shape::FanOut, self.full_load())
                        .await
                        .context("measuring fan-out")?,
                );
            }
            if self.wants(Scenario::Steady) {
                self.progress.step(&format!("round {round}: steady"));
                steadies.push(
                    self.on_an_empty_server(Store::Sqlite, Shape::InTurn, self.steady_load(self.settings.duration()))
                        .await
                        .context("measuring a steady rate")?,
                );
            }
            if self.wants(Scenario::Idle) {
                self.progress.step(&format!("round {round}: idle"));
                idles.push(self.idle().await.context("measuring an idle server")?);
            }
        }
        Ok(Figures {
            floor: Series::of(floors),
            end_to_end: Series::of(ends),
            fan_out: Series::of(fans),
            steady: Series::of(steadies),
            idle: Series::of(idles),
            ..Figures::default()
        })
    }

    pub fn full_load(&self) -> Load {
        Load::Closed { connections: CONNECTIONS, until: Until::Elapsed(self.settings.duration()) }
    }

    pub fn steady_load(&self, duration: Duration) -> Load {
        Load::Open { rate: self.settings.rate, duration }
    }

    pub async fn on_an_empty_server(&mut self, store: Store, shape: Shape, load: Load) -> Result<LoadRun> {
        let (server, _) = self.launcher.start(store).await?;
        let field = Field::lay_out(&server, &self.receiver, shape, Temper::Healthy).await?;
        self.warm_up(&server, &field, load).await?;
        let run = self.measure(&server, &field, load).await?;
        server.end(Stop::Asked).await?;
        Ok(run)
    }

    async fn idle(&mut self) -> Result<IdleRun> {
        let (server, ready) = self.launcher.start(Store::Sqlite).await?;
        tokio::time::sleep(SETTLING).await;
        let rss_mib = server.memory()?.rss_mib;
        server.end(Stop::Asked).await?;
        Ok(IdleRun { ready_ms: ready.as_secs_f64() * 1e3, rss_mib })
    }

    pub async fn growth_finished(&mut self, store: Store, count: u32) -> Result<Growth> {
        self.progress.step(&format!("filling the store with {count} finished deliveries"));
        let (server, _) = self.launcher.start(store).await?;
        let field = Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Healthy).await?;
        let start = Instant::now();
        let filling = self
            .measure(&server, &field, Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) })
            .await?;
        self.against_empty(
            store,
            server,
            Filling { asked: count.into(), stored: filling.delivered, took: start.elapsed(), failing: Vec::new() },
        )
        .await
    }

    /// The first retry comes after about five seconds and the second after minutes: once every delivery has failed twice,
    /// the store holds them all waiting, and stays quiet long enough to be measured.
    async fn growth_waiting(&mut self) -> Result<Growth> {
        let filling = Waiting { count: self.settings.growth_waiting, rules: UNGUARDED, failures_each: 2 };
        self.growth_by_failing(Store::Sqlite, filling).await
    }

    pub async fn growth_by_failing(&mut self, store: Store, filling: Waiting) -> Result<Growth> {
        let Waiting { count, rules, failures_each } = filling;
        self.progress.step(&format!("filling the store with {count} waiting retries"));
        let (server, _) = self.launcher.start(store).await?;
        let field = Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Failing).await?;
        for (application, endpoint) in &field.ids {
            server.patch_endpoint(application, endpoint, rules).await?;
        }
        let start = Instant::now();
        self.measure(&server, &field, Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) })
            .await?;
        self.wait_for_failures(&field.endpoints, failures_each * u64::from(count)).await;
        let mut waiting = 0;
        for (application, endpoint) in &field.ids {
            waiting += server.waiting(application, endpoint).await?;
        }
        self.against_empty(
            store,
            server,
            Filling { asked: count.into(), stored: waiting, took: start.elapsed(), failing: field.endpoints },
        )
        .await
    }

    /// A server may hold back from an endpoint that fails all the time, so silence ends the wait too.
    pub async fn wait_for_failures(&self, endpoints: &[Endpoint], failures: u64) {
        let start = Instant::now();
        let mut last = (requests(endpoints), Instant::now());
        while last.0 < failures && last.1.elapsed() < RETRY_SILENCE && start.elapsed() < RETRIES_MAX {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = requests(endpoints);
            self.progress.tell(&format!("{now} of {failures} failures"));
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        tokio::time::sleep(SETTLING).await;
    }

    async fn against_empty(&mut self, store: Store, mut server: Server, filling: Filling) -> Result<Growth> {
        let mut rss_peak_mib = server.memory()?.rss_peak_mib;
        self.progress.step("restarting with what is stored");
        let ready_after_stop = server.restart(Stop::Asked).await?;
        let ready_after_kill = server.restart(Stop::Killed).await?;
        let rss_after_restart_mib = server.memory()?.rss_mib;

        let field = Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Healthy).await?;
        self.warm_up(&server, &field, self.full_load()).await?;
        let retries_before = requests(&filling.failing);
        let (mut empty, mut filled) = (vec![], vec![]);
        for round in 1..=self.settings.runs {
            self.progress.step(&format!("round {round}: empty store"));
            empty.push(self.on_an_empty_server(store, Shape::InTurn, self.full_load()).await?);
            self.progress.step(&format!("round {round}: filled store"));
            filled.push(self.measure(&server, &field, self.full_load()).await?);
        }
        rss_peak_mib = rss_peak_mib.max(server.memory()?.rss_peak_mib);
        let retries_meanwhile = requests(&filling.failing) - retries_before;
        server.end(Stop::Asked).await?;
        Ok(Growth {
            asked: filling.asked,
            stored: filling.stored,
            filling_s: filling.took.as_secs_f64(),
            ready_after_stop_ms: ready_after_stop.as_secs_f64() * 1e3,
            ready_after_kill_ms: ready_after_kill.as_secs_f64() * 1e3,
            rss_after_restart_mib,
            rss_peak_mib,
            empty: Series::of(empty).context("no run was asked for")?,
            filled: Series::of(filled).context("no run was asked for")?,
            retries_meanwhile,
        })
    }

    async fn isolation(&mut self) -> Result<Isolation> {
        let load = self.steady_load(Duration::from_secs(self.settings.hang_seconds));
        let (server, _) = self.launcher.start(Store::Sqlite).await?;
        let mut field = Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Healthy).await?;
        self.warm_up(&server, &field, load).await?;
        self.progress.step("all ten endpoints healthy");
        let without = self.measure_where(&server, &field, load, stays_healthy).await?;

        self.progress.step("three of ten endpoints hang");
        field.endpoints[..HANGING].iter().for_each(|endpoint| endpoint.turn(Temper::Hanging));
        let requests_before = requests(&field.endpoints[..HANGING]);
        field.expect_nothing_from_first(HANGING);
        let beside = self.measure_where(&server, &field, load, stays_healthy).await?;
        let hung_requests = requests(&field.endpoints[..HANGING]) - requests_before;
        // Asked to stop, it would rightly wait for the requests that hang.
        server.end(Stop::Killed).await?;
        Ok(Isolation { hanging: HANGING, endpoints: ENDPOINTS, without, beside, hung_requests })
    }

    async fn parking(&mut self) -> Result<Parking> {
        let count = self.settings.parking;
        self.progress.step(&format!("filling a paused lane with {count} deliveries"));
        let (server, _) = self.launcher.start(Store::Sqlite).await?;
        let field = Field::lay_out(&server, &self.receiver, Shape::FanOut, Temper::Failing).await?;
        let [full, empty] = [0, 1].map(|column: usize| Lane {
            server: &server,
            application: &field.ids[column].0,
            endpoint: &field.ids[column].1,
            receiver: &field.endpoints[column],
        });
        // One of the ten is to be filled; the others would only make the filling longer.
        for (number, (application, endpoint)) in field.ids.iter().enumerate() {
            match number {
                0 => server.patch_endpoint(application, endpoint, PARKED).await?,
                1 => server.patch_endpoint(application, endpoint, ELSEWHERE).await?,
                _ => server.delete_endpoint(application, endpoint).await?,
            }
        }
        self.measure(&server, &field, Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) })
            .await?;
        let waiting = server.waiting(full.application, full.endpoint).await?;

        self.progress.step("pausing, resuming and tripping it");
        let late_before = self.receiver.late();
        let cpu_share_paused = full.cpu_share_at_rest().await?;
        let rss_paused_mib = server.memory()?.rss_mib;
        let (full_held, empty_held) = (full.pause_and_resume().await?, empty.pause_and_resume().await?);
        let failures = full.trip().await?;
        let cpu_share_open = full.cpu_share_at_rest().await?;
        let rss_open_mib = server.memory()?.rss_mib;
        let probes = full.recover().await?;
        server.end(Stop::Killed).await?;
        self.late_wanted += self.receiver.late() - late_before;
        Ok(Parking {
            waiting,
            full: full_held,
            empty: empty_held,
            cpu_share_paused,
            cpu_share_open,
            rss_paused_mib,
            rss_open_mib,
            failures,
            probes,
        })
    }

    /// Connections open, caches fill, the allocator grows: once per server, and not part of any figure but the faults.
    pub async fn warm_up(&mut self, server: &Server, field: &Field, load: Load) -> Result<()> {
        let load = match load {
            Load::Closed { connections, until: _ } => Load::Closed { connections, until: Until::Elapsed(WARMING_UP) },
            Load::Open { rate, duration: _ } => Load::Open { rate, duration: WARMING_UP },
        };
        self.measure(server, field, load).await.context("warming up")?;
        Ok(())
    }

    pub async fn measure(&mut self, server: &Server, field: &Field, load: Load) -> Result<LoadRun> {
        self.measure_where(server, field, load, |_| true).await
    }

    /// Latencies and losses are of those messages that `keep` wants; rates and CPU are of all.
    pub async fn measure_where(
        &mut self,
        server: &Server,
        field: &Field,
        load: Load,
        keep: fn(u32) -> bool,
    ) -> Result<LoadRun> {
        let ledger = self.receiver.open_ledger(field.width);
        let watch = self.progress.watch(Arc::clone(&ledger));
        let before = (server.cpu_time()?, server.database_cpu_time()?);
        load.put_on(field, &ledger).await?;
        self.wait_for_arrivals(&ledger).await;
        // Outcomes are still being written down when the last request has been answered.
        tokio::time::sleep(SETTLING).await;
        let cpu = Cpu {
            server: server.cpu_time()?.saturating_sub(before.0),
            database: server.database_cpu_time()?.saturating_sub(before.1),
        };
        drop(watch);
        let tally = self.close(&ledger, keep);
        Ok(load_run(&tally, cpu, server.memory()?.rss_peak_mib))
    }

    /// Compares what came with what was promised, and counts what may not happen.
    pub fn close(&mut self, ledger: &Ledger, keep: fn(u32) -> bool) -> Tally {
        let tally = ledger.tally(keep);
        self.receiver.close_ledger(ledger.run);
        self.faults.lost += tally.lost;
        self.faults.duplicated += tally.duplicated;
        self.faults.misnamed += tally.misnamed;
        tally
    }

    pub async fn wait_for_arrivals(&self, ledger: &Ledger) {
        let patience = Duration::from_secs(self.settings.patience_seconds);
        let mut last = (ledger.arrived(), Instant::now());
        while !ledger.is_complete() && last.1.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = ledger.arrived();
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Load {
    Closed { connections: usize, until: Until },
    Open { rate: u32, duration: Duration },
}

impl Load {
    pub async fn put_on(self, field: &Field, ledger: &Arc<Ledger>) -> Result<()> {
        match self {
            Load::Closed { connections, until } => {
                generator::closed_loop(&field.target, ledger, connections, until).await
            }
            Load::Open { rate, duration } => generator::open_loop(&field.target, ledger, rate, duration).await,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Ten applications with an endpoint each; messages go to them in turn.
    InTurn,
    /// The same with more applications, so that each of several nodes has some.
    InTurnOfMany,
    /// One application with ten endpoints; each message goes to all.
    FanOut,
}

/// Applications and endpoints on a server, and who answers for them.
pub struct Field {
    pub target: Arc<Target>,
    pub endpoints: Vec<Endpoint>,
    /// Application and endpoint, as the server calls them.
    pub ids: Vec<(String, String)>,
    pub width: usize,
}

impl Field {
    pub async fn lay_out(server: &Server, receiver: &Receiver, shape: Shape, temper: Temper) -> Result<Field> {
        let (applications, width) = match shape {
            Shape::InTurn => (ENDPOINTS, 1),
            Shape::InTurnOfMany => (3 * ENDPOINTS, 1),
            Shape::FanOut => (1, ENDPOINTS),
        };
        let owed = match temper {
            Temper::Healthy => u64::try_from(width)?,
            Temper::Failing | Temper::Hanging | Temper::Dripping => 0,
        };
        let mut target =
            Target { ways: server.ways(), authorization: server.authorization(), applications: Vec::new() };
        let (mut endpoints, mut ids) = (vec![], vec![]);
        for number in 0..applications {
            let application = server.create_application(&format!("bench {number}")).await?;
            for column in 0..width {
                let endpoint = receiver.endpoint(temper, column);
                ids.push((application.clone(), server.create_endpoint(&application, &endpoint.url).await?));
                endpoints.push(endpoint);
            }
            target.applications.push(Application { messages: format!("/api/v1/app/{application}/msg").parse()?, owed });
        }
        Ok(Field { target: Arc::new(target), endpoints, ids, width })
    }

    /// One application with one endpoint.
    pub async fn single(server: &Server, receiver: &Receiver, temper: Temper, rules: &str) -> Result<Field> {
        let application = server.create_application("bench, alone").await?;
        let endpoint = receiver.endpoint(temper, 0);
        let id = server.create_endpoint(&application, &endpoint.url).await?;
        server.patch_endpoint(&application, &id, rules).await?;
        let messages = format!("/api/v1/app/{application}/msg").parse()?;
        let owed = u64::from(matches!(temper, Temper::Healthy));
        let target = Target {
            ways: server.ways(),
            authorization: server.authorization(),
            applications: vec![Application { messages, owed }],
        };
        Ok(Field { target: Arc::new(target), endpoints: vec![endpoint], ids: vec![(application, id)], width: 1 })
    }

    fn expect_nothing_from_first(&mut self, count: usize) {
        let target = Arc::get_mut(&mut self.target).expect("no producer outlives its measurement");
        target.applications[..count].iter_mut().for_each(|application| application.owed = 0);
    }
}

/// How a store is filled with retries that wait.
pub struct Waiting {
    pub count: u32,
    pub rules: &'static str,
    /// After so many failures a delivery waits long enough.
    pub failures_each: u64,
}

struct Filling {
    asked: u64,
    stored: u64,
    took: Duration,
    failing: Vec<Endpoint>,
}

struct Cpu {
    server: Duration,
    database: Duration,
}

fn load_run(tally: &Tally, cpu: Cpu, rss_peak_mib: f64) -> LoadRun {
    let per_s = |count: u64, duration: Duration| {
        if duration.is_zero() { 0.0 } else { count as f64 / duration.as_secs_f64() }
    };
    let us_per_delivery = |cpu: Duration| cpu.as_secs_f64() * 1e6 / tally.arrived.max(1) as f64;
    LoadRun {
        accepted: tally.accepted,
        delivered: tally.arrived,
        refused: tally.refused,
        broken: tally.broken,
        lost: tally.lost,
        duplicated: tally.duplicated,
        ingest_per_s: per_s(tally.accepted, tally.accepting),
        delivered_per_s: per_s(tally.arrived, tally.arriving),
        latency: Latency::of(&tally.latencies),
        cpu_us_per_delivery: us_per_delivery(cpu.server + cpu.database),
        cpu_us_of_database: us_per_delivery(cpu.database),
        rss_peak_mib,
    }
}

/// Messages go to the endpoints in turn, so the number tells the endpoint.
fn stays_healthy(seq: u32) -> bool {
    usize::try_from(seq).expect("a u32 fits") % ENDPOINTS >= HANGING
}

fn requests(endpoints: &[Endpoint]) -> u64 {
    endpoints.iter().map(Endpoint::requests).sum()
}

/// A breaker that opens soon and stays open long enough to be looked at.
const PARKED: &str =
    r#"{"disabled": true, "circuitBreaker": {"failures": 5, "coolDown": "10s", "coolDownMax": "10s"}}"#;
/// Takes nothing of what fills the other lane.
const ELSEWHERE: &str = r#"{"disabled": true, "channels": ["elsewhere"]}"#;
/// Every delivery is to fail and wait by itself, as if its endpoint were only sometimes down.
const UNGUARDED: &str = r#"{"circuitBreaker": false, "autoDisable": false}"#;
const CONNECTIONS: usize = 64;
const FILLING_CONNECTIONS: usize = 128;
const ENDPOINTS: usize = 10;
const HANGING: usize = 3;
const WARMING_UP: Duration = Duration::from_secs(1);
pub const SETTLING: Duration = Duration::from_millis(500);
/// More than the first retry's delay of five seconds, less than the second's.
const RETRY_SILENCE: Duration = Duration::from_secs(12);
const RETRIES_MAX: Duration = Duration::from_secs(600);
