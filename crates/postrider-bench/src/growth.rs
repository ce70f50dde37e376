//! What a store costs that is full already: of deliveries that ended, of ones that wait, or of endpoints.
//!
//! It is always measured in turn with a fresh empty server, so that a ratio is taken within one round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::field::{Field, Load, Shape};
use crate::generator::Until;
use crate::receiver::{Endpoint, Temper};
use crate::report::{LoadRun, Series, ratio};
use crate::scenarios::{Bench, FILLING_CONNECTIONS, requests};
use crate::server::{Server, Stop, Store};

#[derive(Serialize)]
pub struct Growth {
    pub asked: u64,
    /// In the store before the first measurement: deliveries that ended or that wait, or endpoints.
    pub stored: u64,
    pub filling_s: f64,
    pub ready_after_stop_ms: f64,
    pub ready_after_kill_ms: f64,
    pub rss_after_restart_mib: f64,
    /// The higher of the filling's peak and the measurements'.
    pub rss_peak_mib: f64,
    pub empty: Series<LoadRun>,
    pub filled: Series<LoadRun>,
    /// Retries that came due while the filled store was measured, and so took a share of the machine.
    pub retries_meanwhile: u64,
}

impl Growth {
    /// Without them in the store, its rate and its start say nothing about the target.
    pub fn is_filled(&self) -> bool {
        self.stored * 100 >= self.asked * 99
    }

    pub fn rate_to_empty(&self) -> Option<f64> {
        let rate: fn(&LoadRun) -> f64 = |run| run.delivered_per_s;
        ratio(&self.filled.runs, rate, &self.empty.runs, rate)
    }

    pub fn ready_ms(&self) -> f64 {
        self.ready_after_stop_ms.max(self.ready_after_kill_ms)
    }
}

impl Bench {
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
    pub async fn growth_waiting(&mut self) -> Result<Growth> {
        let filling = Waiting { count: self.settings.sizes.growth_waiting, rules: UNGUARDED, failures_each: 2 };
        self.growth_by_failing(Store::Sqlite, filling).await
    }

    pub async fn growth_by_failing(&mut self, store: Store, filling: Waiting) -> Result<Growth> {
        let Waiting { count, rules, failures_each } = filling;
        self.progress.step(&format!("filling the store with {count} waiting retries"));
        let (server, _) = self.launcher.start(store).await?;
        let field = Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Failing).await?;
        for (application, endpoint) in &field.ids {
            server.api.patch_endpoint(application, endpoint, rules).await?;
        }
        let start = Instant::now();
        self.measure(&server, &field, Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) })
            .await?;
        self.wait_for_failures(&field.endpoints, failures_each * u64::from(count)).await;
        let mut waiting = 0;
        for (application, endpoint) in &field.ids {
            waiting += server.api.waiting(application, endpoint).await?;
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
        tokio::time::sleep(self.settling()).await;
    }

    pub async fn growth_endpoints(&mut self, store: Store, endpoints: u32) -> Result<Growth> {
        let applications = usize::try_from(endpoints)?.div_ceil(ENDPOINTS_EACH);
        self.progress.step(&format!("making {endpoints} endpoints in {applications} applications"));
        let (server, _) = self.launcher.start(store).await?;
        let start = Instant::now();
        let made = Field::make(&server, &self.receiver, applications, ENDPOINTS_EACH).await?;
        let took = start.elapsed();
        let filling = Filling { asked: endpoints.into(), stored: u64::try_from(made)?, took, failing: Vec::new() };
        self.against_empty(store, server, filling).await
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

/// Every delivery is to fail and wait by itself, as if its endpoint were only sometimes down.
const UNGUARDED: &str = r#"{"circuitBreaker": false, "autoDisable": false}"#;
const ENDPOINTS_EACH: usize = 10;
/// More than the first retry's delay of five seconds, less than the second's.
const RETRY_SILENCE: Duration = Duration::from_secs(12);
const RETRIES_MAX: Duration = Duration::from_secs(3600);
