//! One server that is filled step by step: what a delivery costs, how long lists take and how soon it is there again, with more
//! and more in the store.
//!
//! At each step it is measured in turn with a fresh empty server. What the machine does meanwhile, and how it fares after an
//! hour, is then in both, and their ratio can be drawn against what is stored.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cluster::{AFTER_END, BEFORE_END, PATIENT, TAKE_OVER_RATE};
use crate::field::{Field, Load, Shape};
use crate::generator::Until;
use crate::lists::{self, ListTimes};
use crate::looking::{IMPATIENT, WIDE};
use crate::receiver::Temper;
use crate::report::{NodeEnd, Sides};
use crate::scenarios::{Bench, CONNECTIONS, FILLING_CONNECTIONS};
use crate::server::{SHARING_OUT, Server, Stop, Store};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// Deliveries that ended, a hundredth of them as dead letters.
    Finished,
    /// Deliveries that wait for their next try.
    Waiting,
}

#[derive(Serialize)]
pub struct Curve {
    pub fill: Fill,
    pub points: Vec<Point>,
}

#[derive(Serialize)]
pub struct Point {
    pub asked: u64,
    /// In the store before it was measured, of the kind that it was filled with.
    pub stored: u64,
    pub filling_s: f64,
    pub ready_after_stop_ms: f64,
    pub ready_after_kill_ms: f64,
    /// From the start after a kill until a message that was sent then has arrived.
    pub first_delivery_after_kill_ms: f64,
    pub rss_after_restart_mib: f64,
    pub rss_peak_mib: f64,
    pub data_mib: f64,
    pub lists: Vec<ListTimes>,
    /// Without anything in the store, and beside what is in it.
    #[serde(flatten)]
    pub sides: Sides,
    /// When a node is killed beside another one. Only on PostgreSQL.
    pub take_over: Option<NodeEnd>,
}

impl Fill {
    pub fn name(self) -> &'static str {
        match self {
            Fill::Finished => "finished",
            Fill::Waiting => "waiting",
        }
    }
}

impl Curve {
    pub async fn measure(bench: &mut Bench, store: Store, fill: Fill) -> Result<Curve> {
        let mut steps = match fill {
            Fill::Finished => bench.settings.sizes.curve_finished.clone(),
            Fill::Waiting => bench.settings.sizes.curve_waiting.clone(),
        };
        steps.sort_unstable();
        let (mut server, _) = bench.launcher.start(store).await?;
        let mut stock = Stock::begin(bench, &server, fill).await?;
        let mut points = Vec::with_capacity(steps.len());
        for step in steps {
            let point = Curve::point(bench, &mut server, &mut stock, step).await;
            points.push(point.with_context(|| format!("with {step} {} in the store", fill.name()))?);
        }
        server.end(Stop::Asked).await?;
        Ok(Curve { fill, points })
    }

    async fn point(bench: &mut Bench, server: &mut Server, stock: &mut Stock, asked: u32) -> Result<Point> {
        let name = stock.fill.name();
        bench.progress.step(&format!("filling the store with {asked} {name}"));
        let start = Instant::now();
        let stored = stock.fill_to(bench, server, asked).await?;
        let filling = start.elapsed();
        let rss_filled_mib = server.memory()?.rss_peak_mib;

        bench.progress.step(&format!("{asked} {name}: restarting, listing"));
        let ready_after_stop = server.restart(Stop::Asked).await?;
        let ready_after_kill = server.restart(Stop::Killed).await?;
        let arriving = bench.first_arrival(&stock.measured).await?;
        let rss_after_restart_mib = server.memory()?.rss_mib;
        let data_mib = server.data_mib().await?;
        let lists = lists::of_history(&stock.full.ids[0], &stock.dead.ids[0]);
        let lists = lists::measure(&server.api, &lists).await.context("listing")?;

        // By number, not by time: what is measured stays in the store, and must not be more than the first steps are apart.
        let messages = bench.settings.sizes.curve_messages;
        let of = |messages| Load::Closed { connections: CONNECTIONS, until: Until::Messages(messages) };
        let load = of(messages);
        let warming = bench.measure(server, &stock.measured, of(messages.div_ceil(10))).await?;
        stock.delivered += warming.delivered + 1;
        let (mut empty, mut filled) = (vec![], vec![]);
        for round in 1..=bench.settings.runs {
            bench.progress.step(&format!("{asked} {name}, round {round}: empty store"));
            empty.push(bench.on_an_empty_server(store_of(server), Shape::InTurn, load).await?);
            bench.progress.step(&format!("{asked} {name}, round {round}: filled store"));
            let run = bench.measure(server, &stock.measured, load).await?;
            stock.delivered += run.delivered;
            filled.push(run);
        }
        let rss_peak_mib = rss_filled_mib.max(server.memory()?.rss_peak_mib);
        let take_over = match store_of(server) {
            Store::Sqlite => None,
            Store::Postgres { .. } => Some(take_over(bench, server).await.context("ending a node")?),
        };
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        Ok(Point {
            asked: asked.into(),
            stored,
            filling_s: filling.as_secs_f64(),
            ready_after_stop_ms: ms(ready_after_stop),
            ready_after_kill_ms: ms(ready_after_kill),
            first_delivery_after_kill_ms: ms(ready_after_kill + arriving),
            rss_after_restart_mib,
            rss_peak_mib,
            data_mib,
            lists,
            sides: Sides::of((empty, filled))?,
            take_over,
        })
    }
}

fn store_of(server: &Server) -> Store {
    if server.is_on_postgres() { Store::Postgres { nodes: 1 } } else { Store::Sqlite }
}

/// A second node joins, and the first one is killed under a fixed rate.
async fn take_over(bench: &mut Bench, server: &mut Server) -> Result<NodeEnd> {
    bench.progress.step("a second node takes over");
    server.join_node().await?;
    tokio::time::sleep(SHARING_OUT).await;
    let field = Field::lay_out(server, &bench.receiver, Shape::InTurnOfMany, Temper::Healthy).await?;
    let load = Load::Open { rate: TAKE_OVER_RATE, duration: BEFORE_END + AFTER_END };
    bench.warm_up(server, &field, load).await?;
    let end = bench.end_of_a_node(server, &field, load, 0, Stop::Killed).await?;
    server.leave_node().await?;
    Ok(end)
}

/// What a server is filled with, and what it is measured by.
struct Stock {
    fill: Fill,
    measured: Field,
    /// Holds nearly all of it: one endpoint of what ended, ten of what waits.
    full: Field,
    /// A hundredth ends here for good.
    dead: Field,
    /// What ended or waits in `full`, and in the measured ones what ended.
    delivered: u64,
    failed: u64,
}

impl Stock {
    async fn begin(bench: &Bench, server: &Server, fill: Fill) -> Result<Stock> {
        let receiver = &bench.receiver;
        let full = match fill {
            Fill::Finished => Field::single(server, receiver, Temper::Healthy, WIDE).await?,
            Fill::Waiting => {
                let field = Field::lay_out(server, receiver, Shape::InTurn, Temper::Failing).await?;
                for (application, endpoint) in &field.ids {
                    server.api.patch_endpoint(application, endpoint, PATIENT).await?;
                }
                field
            }
        };
        let dead = Field::single(server, receiver, Temper::Failing, IMPATIENT).await?;
        let measured = Field::lay_out(server, receiver, Shape::InTurn, Temper::Healthy).await?;
        Ok(Stock { fill, measured, full, dead, delivered: 0, failed: 0 })
    }

    /// Tells how many are there then, which can be more: what was measured is there, too.
    async fn fill_to(&mut self, bench: &mut Bench, server: &Server, wanted: u32) -> Result<u64> {
        let filling = |count| Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) };
        let wanted = u64::from(wanted);
        match self.fill {
            Fill::Finished => {
                let dead = (wanted / DEAD_OF).saturating_sub(self.failed);
                if dead > 0 {
                    bench.measure(server, &self.dead, filling(u32::try_from(dead)?)).await?;
                    self.failed += dead;
                    bench.wait_for_failures(&self.dead.endpoints, self.failed).await;
                }
                let missing = wanted.saturating_sub(self.delivered + self.failed);
                if missing > 0 {
                    let run = bench.measure(server, &self.full, filling(u32::try_from(missing)?)).await?;
                    self.delivered += run.delivered;
                }
                Ok(self.delivered + self.failed)
            }
            Fill::Waiting => {
                let missing = wanted.saturating_sub(self.failed);
                if missing > 0 {
                    bench.measure(server, &self.full, filling(u32::try_from(missing)?)).await?;
                    self.failed += missing;
                    bench.wait_for_failures(&self.full.endpoints, self.failed).await;
                }
                let mut waiting = 0;
                for (application, endpoint) in &self.full.ids {
                    waiting += server.api.waiting(application, endpoint).await?;
                }
                Ok(waiting)
            }
        }
    }
}

const DEAD_OF: u64 = 100;
