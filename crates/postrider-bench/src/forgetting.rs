//! Delivering while old history is being forgotten.
//!
//! No retention is shorter than an hour, and no benchmark should be that long: so the store is filled by a server whose clock is
//! days behind. The server that is measured has the right one, and finds everything past its time.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::field::{Field, Load, Shape};
use crate::generator::Until;
use crate::looking::WIDE;
use crate::receiver::Temper;
use crate::report::Sides;
use crate::scenarios::{Bench, FILLING_CONNECTIONS};
use crate::server::{Server, Stop, Store};

#[derive(Serialize)]
pub struct Forgetting {
    /// To be forgotten when it was started.
    pub stored: u64,
    pub filling_s: f64,
    pub data_before_mib: f64,
    pub data_after_mib: f64,
    /// Measurements that ended while it was still going on.
    pub runs_meanwhile: usize,
    /// From the start until the server had nothing more to do. `None`: it went on for longer than anybody waited.
    pub took_s: Option<f64>,
    /// Of the old messages, whether some could be found in the end.
    pub some_left: bool,
    /// An empty store, and one in which it goes on.
    #[serde(flatten)]
    pub sides: Sides,
}

impl Forgetting {
    pub async fn measure(bench: &mut Bench, store: Store) -> Result<Forgetting> {
        let count = bench.settings.sizes.forgetting;
        bench.progress.step(&format!("filling a store of {FILLED_DAYS_AGO} days ago with {count} finished deliveries"));
        let mut server = bench.launcher.start_in_the_past(store, FILLED_DAYS_AGO).await?;
        let old = Field::single(&server, &bench.receiver, Temper::Healthy, WIDE).await?;
        let start = Instant::now();
        let filling = Load::Closed { connections: FILLING_CONNECTIONS, until: Until::Messages(count) };
        let stored = bench.measure(&server, &old, filling).await?.delivered;
        let filling_s = start.elapsed().as_secs_f64();
        let data_before_mib = server.data_mib().await?;

        // History is in pieces, and one ends when the next begins: with a day's first look around.
        server.come_to(ENDED_DAYS_AGO, Vec::new()).await?;
        tokio::time::sleep(FIRST_LOOK).await;
        server.come_to(0, RETENTION.map(|name| (name, "1h".to_owned())).to_vec()).await?;
        let mut busy = Instant::now();
        let field = Field::lay_out(&server, &bench.receiver, Shape::InTurn, Temper::Healthy).await?;
        let load = bench.full_load();
        let (mut empty, mut filled, mut runs_meanwhile) = (vec![], vec![], 0);
        let mut took = Duration::ZERO;
        for round in 1..=bench.settings.runs {
            // It would go on with it on the same cores, and goes on where it was.
            server.end_node(0, Stop::Asked).await?;
            took += busy.elapsed();
            bench.progress.step(&format!("round {round}: empty store"));
            empty.push(bench.on_an_empty_server(store, Shape::InTurn, load).await?);
            bench.progress.step(&format!("round {round}: a store that forgets"));
            busy = Instant::now();
            server.start_node(0).await?;
            bench.warm_up(&server, &field, load).await?;
            filled.push(bench.measure(&server, &field, load).await?);
            runs_meanwhile += usize::from(is_busy(&server).await?);
        }
        let mut quiet = 0;
        while quiet < QUIET_LOOKS && busy.elapsed() < PATIENCE {
            quiet = if is_busy(&server).await? { 0 } else { quiet + 1 };
        }
        took += busy.elapsed().saturating_sub(LOOK * QUIET_LOOKS);
        let (application, _) = &old.ids[0];
        let (_, rows) = server.api.timed(&format!("/api/v1/app/{application}/msg?limit=1")).await?;
        let data_after_mib = server.data_mib().await?;
        server.end(Stop::Asked).await?;
        Ok(Forgetting {
            stored,
            filling_s,
            data_before_mib,
            data_after_mib,
            runs_meanwhile,
            took_s: (quiet == QUIET_LOOKS).then_some(took.as_secs_f64()),
            some_left: rows > 0,
            sides: Sides::of((empty, filled))?,
        })
    }
}

/// Whether it works though nothing is asked of it.
async fn is_busy(server: &Server) -> Result<bool> {
    let used = || Ok::<_, anyhow::Error>(server.at_rest()?.cpu + server.database_cpu_time()?);
    let (before, start) = (used()?, Instant::now());
    tokio::time::sleep(LOOK).await;
    Ok(used()?.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64() > BUSY)
}

const RETENTION: [&str; 3] =
    ["POSTRIDER_RETENTION_PAYLOADS", "POSTRIDER_RETENTION_ATTEMPTS", "POSTRIDER_RETENTION_DEAD_LETTERS"];
/// More than a day before the other.
const FILLED_DAYS_AGO: u32 = 3;
const ENDED_DAYS_AGO: u32 = 1;
const FIRST_LOOK: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_secs(1);
/// Share of a core. At rest it is a hundredth of this.
const BUSY: f64 = 0.03;
/// Between two pieces of history it may be quiet for a moment.
const QUIET_LOOKS: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(30 * 60);
