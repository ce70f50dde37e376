//! The scenarios on PostgreSQL: one node and several, a full store, the end of a node, and rest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::clock::monotonic_ns;
use crate::curve::{Curve, Fill};
use crate::field::{Field, Load, Shape};
use crate::forgetting::Forgetting;
use crate::gateway::Gateway;
use crate::growth::Waiting;
use crate::looking::Looking;
use crate::receiver::{Endpoint, Temper};
use crate::report::{LoadRun, NodeEnd, OnPostgres, Rest, RestRun, Series, TakeOver};
use crate::scenarios::Bench;
use crate::server::{Server, Stop, Store};
use crate::settings::Scenario;

impl Bench {
    pub async fn on_postgres(&mut self) -> Result<()> {
        if !self.settings.scenarios.iter().any(|scenario| scenario.is_on_postgres()) {
            return Ok(());
        }
        let (mut one_node, mut three_nodes) = (vec![], vec![]);
        for round in 1..=self.settings.runs {
            for (scenario, nodes, runs) in
                [(Scenario::PgEndToEnd, 1, &mut one_node), (Scenario::PgThreeNodes, NODES, &mut three_nodes)]
            {
                if self.wants(scenario) {
                    self.progress.step(&format!("round {round}: PostgreSQL, {nodes} node(s)"));
                    runs.push(self.end_to_end(nodes).await.with_context(|| format!("measuring {nodes} node(s)"))?);
                }
            }
        }
        let figures = self.postgres();
        (figures.one_node, figures.three_nodes) = (Series::of(one_node), Series::of(three_nodes));
        let store = Store::Postgres { nodes: 1 };
        if self.wants(Scenario::PgFinished) {
            let grown = self.growth_finished(store, self.settings.sizes.pg_finished).await;
            self.postgres().finished = Some(grown.context("measuring with finished deliveries in PostgreSQL")?);
        }
        if self.wants(Scenario::PgWaiting) {
            let waiting = Waiting { count: self.settings.sizes.pg_waiting, rules: PATIENT, failures_each: 1 };
            let grown = self.growth_by_failing(store, waiting).await;
            self.postgres().waiting = Some(grown.context("measuring with waiting retries in PostgreSQL")?);
        }
        if self.wants(Scenario::PgEndpoints) {
            let grown = self.growth_endpoints(store, self.settings.sizes.growth_endpoints).await;
            self.postgres().endpoints = Some(grown.context("measuring with many endpoints in PostgreSQL")?);
        }
        for (scenario, fill) in [(Scenario::PgCurveFinished, Fill::Finished), (Scenario::PgCurveWaiting, Fill::Waiting)]
        {
            if self.wants(scenario) {
                let curve = Curve::measure(self, store, fill).await;
                self.postgres().curves.push(curve.context("measuring while PostgreSQL is filled")?);
            }
        }
        if self.wants(Scenario::PgForgetting) {
            let forgetting = Forgetting::measure(self, store).await;
            self.postgres().forgetting =
                Some(forgetting.context("measuring while history in PostgreSQL is forgotten")?);
        }
        if self.wants(Scenario::PgTakeOver) {
            self.postgres().take_over = Some(self.take_over().await.context("measuring a node's end")?);
        }
        if self.wants(Scenario::PgIdle) {
            for nodes in [1, NODES] {
                let mut runs = Vec::new();
                for round in 1..=self.settings.runs {
                    self.progress.step(&format!("round {round}: {nodes} idle node(s)"));
                    runs.push(self.rest(nodes).await.context("measuring idle nodes")?);
                }
                let series = Series::of(runs).context("no run was asked for")?;
                self.postgres().idle.push(Rest { nodes, series });
            }
        }
        if self.wants(Scenario::PgLooking) {
            let looking = Looking::measure(self, store).await;
            self.postgres().looking = Some(looking.context("measuring the dashboard on PostgreSQL")?);
        }
        if self.wants(Scenario::PgGateway) {
            let gateway = Gateway::measure(self, store).await;
            self.postgres().gateway = Some(gateway.context("measuring a source on PostgreSQL")?);
        }
        Ok(())
    }

    fn postgres(&mut self) -> &mut OnPostgres {
        self.figures.postgres.get_or_insert_default()
    }

    async fn end_to_end(&mut self, nodes: usize) -> Result<LoadRun> {
        self.on_an_empty_server(Store::Postgres { nodes }, Shape::InTurn, self.full_load()).await
    }

    async fn take_over(&mut self) -> Result<TakeOver> {
        self.progress.step("three nodes under a fixed rate");
        let (mut server, _) = self.launcher.start(Store::Postgres { nodes: NODES }).await?;
        let field = Field::lay_out(&server, &self.receiver, Shape::InTurnOfMany, Temper::Healthy).await?;
        let load = Load::Open { rate: TAKE_OVER_RATE, duration: BEFORE_END + AFTER_END };
        self.warm_up(&server, &field, load).await?;
        let (mut killed, mut stopped) = (vec![], vec![]);
        for round in 1..=self.settings.runs {
            for (name, stop, ends) in [("killed", Stop::Killed, &mut killed), ("stopped", Stop::Asked, &mut stopped)] {
                self.progress.step(&format!("round {round}: a node is {name}"));
                ends.push(self.end_of_a_node(&mut server, &field, load, round % NODES, stop).await?);
            }
        }
        server.end(Stop::Asked).await?;
        Ok(TakeOver {
            nodes: NODES,
            rate: TAKE_OVER_RATE,
            killed: Series::of(killed).context("no run was asked for")?,
            stopped: Series::of(stopped).context("no run was asked for")?,
        })
    }

    /// Ends a node under a load, and starts it again.
    pub async fn end_of_a_node(
        &mut self,
        server: &mut Server,
        field: &Field,
        load: Load,
        victim: usize,
        stop: Stop,
    ) -> Result<NodeEnd> {
        let ledger = self.receiver.open_ledger(1);
        let watch = self.progress.watch(Arc::clone(&ledger));
        let ending = async {
            tokio::time::sleep(BEFORE_END).await;
            let start_ns = monotonic_ns();
            field.endpoints.iter().for_each(Endpoint::watch_for_silence);
            server.end_node(victim, stop).await?;
            if stop == Stop::Killed {
                ledger.excuse(start_ns.saturating_sub(UNDER_WAY_NS)..monotonic_ns());
            }
            Ok(())
        };
        tokio::try_join!(load.put_on(field, &ledger), ending)?;
        self.wait_for_arrivals(&ledger).await;
        tokio::time::sleep(self.settling()).await;
        drop(watch);
        let tally = self.close(&ledger, |_| true);
        let silences: Vec<Duration> = field.endpoints.iter().map(Endpoint::silence_max).collect();

        server.start_node(victim).await?;
        tokio::time::sleep(COMING_BACK).await;
        Ok(NodeEnd {
            silence_ms: silences.iter().max().map_or(0.0, |longest| longest.as_secs_f64() * 1e3),
            silent: silences.iter().filter(|silence| **silence > NOTICEABLE).count() as u64,
            repeated: tally.repeated,
        })
    }

    async fn rest(&mut self, nodes: usize) -> Result<RestRun> {
        let (server, ready) = self.launcher.start(Store::Postgres { nodes }).await?;
        // Endpoints with nothing to deliver to are part of an idle server.
        Field::lay_out(&server, &self.receiver, Shape::InTurn, Temper::Healthy).await?;
        tokio::time::sleep(STATISTICS).await;
        let rss_mib = server.memory()?.rss_mib;
        let (transactions, cpu, database) =
            (server.transactions().await?, server.cpu_time()?, server.database_cpu_time()?);
        let (start, before) = (Instant::now(), server.at_rest()?);
        tokio::time::sleep(RESTING).await;
        let woken = server.at_rest()?.since(before).wakeups;
        let seconds = start.elapsed().as_secs_f64();
        let share = |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
        let rest = RestRun {
            ready_ms: ready.as_secs_f64() * 1e3,
            rss_mib,
            wakeups_per_s: woken as f64 / seconds,
            cpu_share_nodes: share(server.cpu_time()?, cpu),
            cpu_share_database: share(server.database_cpu_time()?, database),
            transactions_per_s: (server.transactions().await? - transactions) as f64 / seconds,
        };
        server.end(Stop::Asked).await?;
        Ok(rest)
    }
}

/// One failure, and a delivery waits for longer than any benchmark takes.
pub const PATIENT: &str = r#"{"circuitBreaker": false, "autoDisable": false,
    "retryPolicy": {"schedule": {"type": "fixed", "interval": "12h"}}}"#;
const NODES: usize = 3;
/// Far below what the nodes can do, and enough that each of thirty endpoints gets something every 30 ms.
pub const TAKE_OVER_RATE: u32 = 1000;
pub const BEFORE_END: Duration = Duration::from_secs(3);
/// Longer than a lease.
pub const AFTER_END: Duration = Duration::from_secs(9);
const COMING_BACK: Duration = Duration::from_secs(5);
/// Well above the time between two arrivals.
const NOTICEABLE: Duration = Duration::from_secs(1);
/// Whatever arrived longer before a node was killed has been written down.
const UNDER_WAY_NS: u64 = 1_000_000_000;
/// What was done before is in PostgreSQL's statistics by then: a backend at rest may keep its share for ten seconds.
const STATISTICS: Duration = Duration::from_secs(15);
const RESTING: Duration = Duration::from_secs(20);
