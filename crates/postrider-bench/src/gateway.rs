//! How many requests of another service a source takes in, verified, deduplicated and on the disk: against the same client
//! and the same HTTP server, which does nothing but read and answer.
//!
//! The source has no endpoints, so that nothing but taking in is measured. Every request that was answered must have become
//! a message, and one that came before none.

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::bare::Bare;
use crate::floor::{self, CONNECTIONS, Ids, What};
use crate::payload;
use crate::process::cpu_time;
use crate::report::{By, Series, Summary};
use crate::scenarios::Bench;
use crate::server::{Stop, Store};

#[derive(Serialize)]
pub struct Gateway {
    pub floor: Series<GatewayRun>,
    /// Requests that had not come before.
    pub taken: Series<GatewayRun>,
    /// The same, over and over.
    pub again: Series<GatewayRun>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct GatewayRun {
    pub requests: u64,
    pub per_s: f64,
    /// Of the server, and of the database if that is a process of its own.
    pub cpu_us: f64,
}

impl Summary for GatewayRun {
    fn summary(runs: &[Self], by: By) -> Self {
        GatewayRun {
            requests: by.count(runs, |run| run.requests),
            per_s: by.of(runs, |run| run.per_s),
            cpu_us: by.of(runs, |run| run.cpu_us),
        }
    }
}

impl Gateway {
    pub async fn measure(bench: &mut Bench, store: Store) -> Result<Gateway> {
        let duration = bench.settings.duration();
        let (server, _) = bench.launcher.start(store).await?;
        let url = server.api.create_source().await.context("making a source")?;
        let run = |cpu_us: f64, done: floor::Done| GatewayRun {
            requests: done.delivered,
            per_s: done.delivered as f64 / done.seconds,
            cpu_us: cpu_us / done.delivered.max(1) as f64,
        };
        let nothing = Bare::start().await?;
        let bare_url = format!("http://{}/", nothing.address);
        let (mut bare, mut taken, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=bench.settings.runs {
            bench.progress.step(&format!("gateway, round {round}: a bare server"));
            let number = u16::try_from(round)?;
            let what = What { run: number, ids: Ids::New, len: payload::LEN };
            let (done, cpu) = floor::drive(&bare_url, what, duration, || cpu_time(nothing.pid)).await?;
            bare.push(run(cpu.as_secs_f64() * 1e6, done));

            for (ids, runs, name) in [(Ids::New, &mut taken, "new"), (Ids::Known, &mut again, "again")] {
                bench.progress.step(&format!("gateway, round {round}: {name}"));
                let before = server.api.accepted().await?;
                let cpu = || Ok(server.cpu_time()? + server.database_cpu_time()?);
                let (done, cpu) = floor::drive(&url, What { ids, ..what }, duration, cpu).await?;
                let accepted = server.api.accepted().await? - before;
                match ids {
                    Ids::New => ensure!(accepted == done.delivered, "{} answered, {accepted} stored", done.delivered),
                    // As far as the first ones went.
                    Ids::Known => ensure!(accepted <= KNOWN_MAX, "{accepted} were stored that had been before"),
                }
                runs.push(run(cpu.as_secs_f64() * 1e6, done));
            }
        }
        nothing.end().await?;
        server.end(Stop::Asked).await?;
        let series = |runs| Series::of(runs).context("nothing was measured");
        Ok(Gateway { floor: series(bare)?, taken: series(taken)?, again: series(again)? })
    }

    pub fn lines(&self) -> String {
        let row = |name: &str, series: &Series<GatewayRun>| {
            let GatewayRun { per_s, cpu_us, .. } = series.median;
            vec![
                name.to_owned(),
                format!("{per_s:.0}"),
                format!("{:.2}", per_s / self.floor.median.per_s),
                format!("{cpu_us:.1}"),
            ]
        };
        let mut rows = vec![["gateway", "requests/s", "of the floor", "CPU us/request"].map(str::to_owned).to_vec()];
        rows.push(row("bare server", &self.floor));
        rows.push(row("source: verified, new, on the disk", &self.taken));
        rows.push(row("source: verified, seen before", &self.again));
        format!("\n{CONNECTIONS} connections, a signed body of 1 KiB each\n\n{}", crate::report::table(&rows))
    }
}

/// Ids that are sent again and again, of all connections together. In a very short run some of them are new.
const KNOWN_MAX: u64 = (CONNECTIONS * floor::KNOWN) as u64;
