//! The scenarios, each a short story: set up, load, wait until all has arrived, compare.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::crowd::{Crowd, Mix};
use crate::curve::{Curve, Fill};
use crate::field::{ENDPOINTS, Field, How, Load, Shape};
use crate::floor;
use crate::forgetting::Forgetting;
use crate::gateway::Gateway;
use crate::generator::{Manner, Protocol, Turns, Until};
use crate::ledger::{Ledger, Tally};
use crate::looking::Looking;
use crate::parking::{Lane, Parking};
use crate::payload;
use crate::progress::Progress;
use crate::receiver::{Endpoint, Receiver, Temper};
use crate::relay::{Ceiling, Keeps, Relay};
use crate::report::{Cost, Faults, Figures, IdleRun, Isolation, Large, Latency, LoadRun, Series, Sides};
use crate::server::{Launcher, Stop, Store};
use crate::settings::{Scenario, Settings};
use crate::subject::{Outside, Subject, Usage};

pub struct Bench {
    pub settings: Settings,
    pub launcher: Launcher,
    /// Somebody else's, in the place of servers of our own.
    pub outside: Option<Arc<Outside>>,
    pub receiver: Receiver,
    pub progress: Progress,
    /// What is measured so far: it is told also if the rest cannot be measured.
    pub figures: Figures,
    pub faults: Faults,
    /// Arrivals after the end of their measurement that are part of the story.
    pub late_wanted: u64,
}

impl Bench {
    pub async fn run(&mut self) -> Result<()> {
        self.rounds().await?;
        if self.wants(Scenario::GrowthFinished) {
            self.figures.growth_finished = Some(
                self.growth_finished(Store::Sqlite, self.settings.sizes.growth_finished)
                    .await
                    .context("measuring with finished deliveries in the store")?,
            );
        }
        if self.wants(Scenario::GrowthWaiting) {
            self.figures.growth_waiting =
                Some(self.growth_waiting().await.context("measuring with waiting retries in the store")?);
        }
        if self.wants(Scenario::GrowthEndpoints) {
            let grown = self.growth_endpoints(Store::Sqlite, self.settings.sizes.growth_endpoints).await;
            self.figures.growth_endpoints = Some(grown.context("measuring with many endpoints in the store")?);
        }
        for (scenario, fill) in [(Scenario::CurveFinished, Fill::Finished), (Scenario::CurveWaiting, Fill::Waiting)] {
            if self.wants(scenario) {
                let curve = Curve::measure(self, Store::Sqlite, fill).await;
                self.figures.curves.push(curve.context("measuring while a store is filled")?);
            }
        }
        if self.wants(Scenario::Forgetting) {
            let forgetting = Forgetting::measure(self, Store::Sqlite).await;
            self.figures.forgetting = Some(forgetting.context("measuring while history is forgotten")?);
        }
        if self.wants(Scenario::Isolation) {
            self.figures.isolation = Some(self.isolation().await.context("measuring isolation")?);
        }
        if self.wants(Scenario::IsolationHundred) {
            let crowd = Crowd::measure(self, Mix::HUNDRED).await;
            self.figures.hundred = Some(crowd.context("measuring beside endpoints that hang")?);
        }
        if self.wants(Scenario::IsolationThousand) {
            let crowd = Crowd::measure(self, Mix::THOUSAND).await;
            self.figures.crowd = Some(crowd.context("measuring beside a great many bad endpoints")?);
        }
        if self.wants(Scenario::Parking) {
            self.figures.parking = Some(self.parking().await.context("measuring a parked lane")?);
        }
        if self.wants(Scenario::Looking) {
            let looking = Looking::measure(self, Store::Sqlite).await;
            self.figures.looking = Some(looking.context("measuring the dashboard")?);
        }
        if self.wants(Scenario::Gateway) {
            self.figures.gateway = Some(Gateway::measure(self, Store::Sqlite).await.context("measuring a source")?);
        }
        self.on_postgres().await
    }

    /// What may not happen, in all that was sent until now.
    pub fn all_faults(&self) -> Faults {
        let Faults { lost, duplicated, misnamed, damaged } = self.faults;
        Faults {
            lost,
            duplicated: duplicated + (self.receiver.late() - self.late_wanted),
            misnamed,
            damaged: damaged + self.receiver.damaged(),
        }
    }

    pub fn wants(&self, scenario: Scenario) -> bool {
        self.settings.scenarios.contains(&scenario)
    }

    /// All that is compared with the floor, round by round, so that what else goes on in the machine touches both sides.
    async fn rounds(&mut self) -> Result<()> {
        let duration = self.settings.duration();
        let large_len = usize::try_from(self.settings.sizes.large_bytes)?;
        let (mut floors, mut floors_large, mut idles, mut many) = (vec![], vec![], vec![], (vec![], vec![]));
        let trials = self.trials()?;
        let mut ceilings = Keeps::ALL.map(|keeps| (keeps, vec![], vec![]));
        let mut loads: Vec<Vec<LoadRun>> = trials.iter().map(|_| Vec::new()).collect();
        for round in 1..=self.settings.runs {
            if self.wants(Scenario::Ceiling) {
                for (keeps, end_to_end, fan_out) in &mut ceilings {
                    for (shape, runs) in [(Shape::InTurn, end_to_end), (Shape::FanOut(ENDPOINTS), fan_out)] {
                        self.progress.step(&format!("round {round}: a relay that keeps {}", keeps.name()));
                        runs.push(self.through_a_relay(*keeps, shape).await.context("measuring a relay")?);
                    }
                }
            }
            // What is held against the floor comes next to it.
            if self.wants(Scenario::Floor) {
                self.progress.step(&format!("round {round}: floor"));
                let floor = floor::measure(&self.receiver, duration, payload::LEN).await;
                floors.push(floor.context("measuring the floor")?);
            }
            for (trial, runs) in trials.iter().zip(&mut loads) {
                if trial.scenario == Scenario::LargePayloads {
                    self.progress.step(&format!("round {round}: floor, large payloads"));
                    let floor = floor::measure(&self.receiver, duration, large_len).await;
                    floors_large.push(floor.context("measuring the floor with large payloads")?);
                }
                self.progress.step(&format!("round {round}: {}", trial.name));
                let run = self.try_out(Store::Sqlite, trial).await;
                runs.push(run.with_context(|| format!("measuring {}", trial.name))?);
            }
            if self.wants(Scenario::ManyEndpoints) {
                let (without, beside) = self.many_endpoints(round).await.context("measuring many endpoints")?;
                many.0.push(without);
                many.1.push(beside);
            }
            if self.wants(Scenario::Idle) {
                self.progress.step(&format!("round {round}: idle"));
                idles.push(self.idle().await.context("measuring an idle server")?);
            }
        }
        let figures = &mut self.figures;
        (figures.floor, figures.idle) = (Series::of(floors), Series::of(idles));
        figures.ceilings.extend(ceilings.into_iter().filter_map(|(keeps, end_to_end, fan_out)| {
            Some(Ceiling { keeps, end_to_end: Series::of(end_to_end)?, fan_out: Series::of(fan_out)? })
        }));
        if !many.0.is_empty() {
            figures.many_endpoints = Some(Sides::of(many)?);
        }
        for (trial, runs) in trials.iter().zip(loads) {
            let series = Series::of(runs);
            match trial.scenario {
                Scenario::FanOut => figures.fan_out = series,
                Scenario::Steady => figures.steady = series,
                Scenario::SteadyHigh => figures.steady_high = series,
                Scenario::Batches => figures.batches = series,
                Scenario::Http2 => figures.http2 = series,
                Scenario::FanOutThousand => figures.fan_out_thousand = series,
                Scenario::LargePayloads => {
                    let floor = Series::of(std::mem::take(&mut floors_large));
                    figures.large =
                        floor.zip(series).map(|(floor, loads)| Large { payload_bytes: large_len, floor, loads });
                }
                // The only one that is left.
                _ => figures.end_to_end = series,
            }
        }
        Ok(())
    }

    /// What is measured on an empty server, once in each round.
    fn trials(&self) -> Result<Vec<Trial>> {
        let usual = How::default();
        let sizes = &self.settings.sizes;
        let duration = self.settings.duration();
        let wide = Load::Closed { connections: WIDE_CONNECTIONS, until: Until::Elapsed(duration) };
        let high = Load::Open { rate: sizes.rate_high, duration };
        let full = self.full_load();
        let trials = [
            (Scenario::EndToEnd, "end to end", Shape::InTurn, full, usual),
            (Scenario::FanOut, "fan-out 1:10", Shape::FanOut(ENDPOINTS), full, usual),
            (Scenario::Steady, "steady", Shape::InTurn, self.steady_load(duration), usual),
            (Scenario::SteadyHigh, "steady, high rate", Shape::InTurn, high, usual),
            (Scenario::Batches, "batches", Shape::InTurn, wide, How { manner: Manner::Batch(sizes.batch), ..usual }),
            (Scenario::Http2, "HTTP/2", Shape::InTurn, full, How { protocol: Protocol::Http2, ..usual }),
            (
                Scenario::FanOutThousand,
                "wide fan-out",
                Shape::FanOut(usize::try_from(sizes.fan_out_wide)?),
                wide,
                usual,
            ),
            (
                Scenario::LargePayloads,
                "large payloads",
                Shape::InTurn,
                wide,
                How { len: usize::try_from(sizes.large_bytes)?, ..usual },
            ),
        ];
        let wanted = trials.into_iter().filter(|(scenario, ..)| self.wants(*scenario));
        Ok(wanted.map(|(scenario, name, shape, load, how)| Trial { scenario, name, shape, load, how }).collect())
    }

    /// The same load to a few endpoints, and to as many at a time out of a great many.
    async fn many_endpoints(&mut self, round: usize) -> Result<(LoadRun, LoadRun)> {
        let all = usize::try_from(self.settings.sizes.many_endpoints)?;
        let busy = all / MANY_PER_BUSY;
        let moving = Turns::Moving { busy, messages: u32::try_from(busy * MESSAGES_BEFORE_MOVING)? };
        let mut runs = Vec::new();
        for (name, endpoints, turns) in [("few endpoints", busy, Turns::All), ("many endpoints", all, moving)] {
            self.progress.step(&format!("round {round}: {name}"));
            let trial = Trial {
                scenario: Scenario::ManyEndpoints,
                name,
                shape: Shape::InTurnOf(endpoints),
                load: self.full_load(),
                how: How { turns, ..How::default() },
            };
            runs.push(self.try_out(Store::Sqlite, &trial).await?);
        }
        Ok((runs[0], runs[1]))
    }

    pub fn full_load(&self) -> Load {
        Load::Closed { connections: CONNECTIONS, until: Until::Elapsed(self.settings.duration()) }
    }

    pub fn steady_load(&self, duration: Duration) -> Load {
        Load::Open { rate: self.settings.sizes.rate, duration }
    }

    pub async fn on_an_empty_server(&mut self, store: Store, shape: Shape, load: Load) -> Result<LoadRun> {
        let how = How::default();
        self.try_out(store, &Trial { scenario: Scenario::EndToEnd, name: "end to end", shape, load, how }).await
    }

    /// On somebody else's server, if that is what is measured.
    async fn try_out(&mut self, store: Store, trial: &Trial) -> Result<LoadRun> {
        if let Some(outside) = self.outside.clone() {
            return self.try_out_on(&*outside, trial).await;
        }
        let variables = match trial.how.body_len() {
            ..BODY_MAX_DEFAULT => Vec::new(),
            long => vec![("POSTRIDER_BODY_MAX", long.to_string())],
        };
        let (server, _) = self.launcher.start_with(store, variables).await?;
        let run = self.try_out_on(&server, trial).await?;
        server.end(Stop::Asked).await?;
        Ok(run)
    }

    async fn try_out_on(&mut self, subject: &impl Subject, trial: &Trial) -> Result<LoadRun> {
        let mut field = Field::lay_out(subject, &self.receiver, trial.shape, Temper::Healthy).await?;
        field.send(trial.how)?;
        self.warm_up(subject, &field, trial.load).await?;
        self.measure(subject, &field, trial.load).await
    }

    /// Full load on what stands in a server's place.
    async fn through_a_relay(&mut self, keeps: Keeps, shape: Shape) -> Result<LoadRun> {
        let relay = Relay::start(keeps, &self.launcher.dir).await?;
        let (load, how) = (self.full_load(), How::default());
        let trial = Trial { scenario: Scenario::Ceiling, name: "a relay", shape, load, how };
        let run = self.try_out_on(&relay, &trial).await;
        relay.end().await?;
        run
    }

    async fn idle(&mut self) -> Result<IdleRun> {
        let (server, ready) = self.launcher.start(Store::Sqlite).await?;
        tokio::time::sleep(self.settling()).await;
        let (before, start) = (server.at_rest()?, Instant::now());
        tokio::time::sleep(self.settings.duration()).await;
        let (rest, seconds) = (server.at_rest()?.since(before), start.elapsed().as_secs_f64());
        // A start takes memory that is given back only seconds later.
        tokio::time::sleep(GIVEN_BACK.saturating_sub(start.elapsed())).await;
        let rss_mib = server.memory()?.rss_mib;
        server.end(Stop::Asked).await?;
        let binary = std::fs::metadata(&self.launcher.binary).context("looking at the program")?;
        Ok(IdleRun {
            ready_ms: ready.as_secs_f64() * 1e3,
            rss_mib,
            cpu_share: rest.cpu.as_secs_f64() / seconds,
            wakeups_per_s: rest.wakeups as f64 / seconds,
            binary_mib: binary.len() as f64 / 1_048_576.0,
        })
    }

    /// In each round on a server of its own: what hangs, and the backlog that it makes, is not part of the next one.
    async fn isolation(&mut self) -> Result<Isolation> {
        let load = self.steady_load(Duration::from_secs_f64(self.settings.hang_seconds));
        let (mut healthy, mut hung_requests) = ((vec![], vec![]), 0);
        for round in 1..=self.settings.runs {
            let (server, _) = self.launcher.start(Store::Sqlite).await?;
            let mut field = Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Healthy).await?;
            self.warm_up(&server, &field, load).await?;
            self.progress.step(&format!("round {round}: all ten endpoints healthy"));
            healthy.0.push(self.measure_where(&server, &field, load, stays_healthy).await?);

            self.progress.step(&format!("round {round}: three of ten endpoints hang"));
            field.endpoints[..HANGING].iter().for_each(|endpoint| endpoint.turn(Temper::Hanging));
            let requests_before = requests(&field.endpoints[..HANGING]);
            field.expect_nothing_from_first(HANGING);
            healthy.1.push(self.measure_where(&server, &field, load, stays_healthy).await?);
            hung_requests += requests(&field.endpoints[..HANGING]) - requests_before;
            // Asked to stop, it would rightly wait for the requests that hang.
            server.end(Stop::Killed).await?;
        }
        Ok(Isolation { hanging: HANGING, endpoints: ENDPOINTS, healthy: Sides::of(healthy)?, hung_requests })
    }

    async fn parking(&mut self) -> Result<Parking> {
        let count = self.settings.sizes.parking;
        self.progress.step(&format!("filling a paused lane with {count} deliveries"));
        let (server, _) = self.launcher.start(Store::Sqlite).await?;
        let field = Field::lay_out(&server, &self.receiver, Shape::FanOut(ENDPOINTS), Temper::Failing).await?;
        let [full, empty] = [0, 1].map(|column: usize| Lane {
            server: &server,
            application: &field.ids[column].0,
            endpoint: &field.ids[column].1,
            receiver: &field.endpoints[column],
        });
        // One of the ten is to be filled; the others would only make the filling longer.
        for (number, (application, endpoint)) in field.ids.iter().enumerate() {
            match number {
                0 => server.api.patch_endpoint(application, endpoint, PARKED).await?,
                1 => server.api.patch_endpoint(application, endpoint, ELSEWHERE).await?,
                _ => server.api.delete_endpoint(application, endpoint).await?,
            }
        }
        self.measure(&server, &field, Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) })
            .await?;
        let waiting = server.api.waiting(full.application, full.endpoint).await?;

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
    pub async fn warm_up(&mut self, subject: &impl Subject, field: &Field, load: Load) -> Result<()> {
        self.measure(subject, field, load.briefly(self.settings.duration())).await.context("warming up")?;
        Ok(())
    }

    pub async fn measure(&mut self, subject: &impl Subject, field: &Field, load: Load) -> Result<LoadRun> {
        self.measure_where(subject, field, load, |_| true).await
    }

    /// Latencies and losses are of those messages that `keep` wants; rates and CPU are of all.
    pub async fn measure_where(
        &mut self,
        subject: &impl Subject,
        field: &Field,
        load: Load,
        keep: fn(u32) -> bool,
    ) -> Result<LoadRun> {
        let ledger = self.receiver.open_ledger(field.width);
        let watch = self.progress.watch(Arc::clone(&ledger));
        let before = subject.usage()?;
        load.put_on(field, &ledger).await?;
        self.wait_for_arrivals(&ledger).await;
        // Outcomes are still being written down when the last request has been answered.
        tokio::time::sleep(self.settling()).await;
        let after = subject.usage()?;
        drop(watch);
        let tally = self.close(&ledger, keep);
        Ok(load_run(&tally, before.zip(after)))
    }

    /// Until what was done is written down. Not longer than it was done: who measures for a moment only tries whether it works.
    pub fn settling(&self) -> Duration {
        SETTLING.min(self.settings.duration())
    }

    /// How long a single message takes.
    pub async fn first_arrival(&mut self, field: &Field) -> Result<Duration> {
        let ledger = self.receiver.open_ledger(field.width);
        let start = Instant::now();
        Load::Closed { connections: 1, until: Until::Messages(1) }.put_on(field, &ledger).await?;
        self.wait_for_arrivals(&ledger).await;
        let took = start.elapsed();
        self.close(&ledger, |_| true);
        Ok(took)
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

/// What is measured on an empty server.
struct Trial {
    scenario: Scenario,
    name: &'static str,
    shape: Shape,
    load: Load,
    how: How,
}

fn load_run(tally: &Tally, usage: Option<(Usage, Usage)>) -> LoadRun {
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
        cost: usage.map(|(before, after)| {
            let server = after.server.saturating_sub(before.server);
            let database = after.database.saturating_sub(before.database);
            Cost {
                cpu_us_per_delivery: us_per_delivery(server + database),
                cpu_us_of_database: us_per_delivery(database),
                rss_peak_mib: after.rss_peak_mib,
            }
        }),
    }
}

/// Messages go to the endpoints in turn, so the number tells the endpoint.
fn stays_healthy(seq: u32) -> bool {
    usize::try_from(seq).expect("a u32 fits") % ENDPOINTS >= HANGING
}

pub fn requests(endpoints: &[Endpoint]) -> u64 {
    endpoints.iter().map(Endpoint::requests).sum()
}

/// A breaker that opens soon and stays open long enough to be looked at.
const PARKED: &str =
    r#"{"disabled": true, "circuitBreaker": {"failures": 5, "coolDown": "10s", "coolDownMax": "10s"}}"#;
/// Takes nothing of what fills the other lane.
const ELSEWHERE: &str = r#"{"disabled": true, "channels": ["elsewhere"]}"#;
pub const CONNECTIONS: usize = 64;
pub const FILLING_CONNECTIONS: usize = 128;
/// Where each request brings as much as many others.
const WIDE_CONNECTIONS: usize = 16;
const HANGING: usize = 3;
/// Of how many endpoints one is busy.
const MANY_PER_BUSY: usize = 100;
/// That an endpoint gets before it is others' turn: over all of them within a few seconds.
const MESSAGES_BEFORE_MOVING: usize = 5;
/// The server's.
const BODY_MAX_DEFAULT: usize = 1 << 20;
const GIVEN_BACK: Duration = Duration::from_secs(3);
const SETTLING: Duration = Duration::from_millis(500);
