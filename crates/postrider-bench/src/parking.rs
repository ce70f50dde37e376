//! What it costs to hold a lane back and to let it go on, with a great many deliveries waiting in it.
//!
//! Nothing may be done per delivery: the calls must take as long as with an empty lane, the server must rest while the
//! lane is held, and memory must stay where it was.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use crate::{
    receiver::{Endpoint, Temper},
    server::Server,
};

/// A lane with deliveries in it, or an empty one.
pub struct Lane<'a> {
    pub server: &'a Server,
    pub application: &'a str,
    pub endpoint: &'a str,
    pub receiver: &'a Endpoint,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Parking {
    pub waiting: u64,
    pub full: Held,
    pub empty: Held,
    /// While paused, over some seconds.
    pub cpu_share_paused: f64,
    pub cpu_share_open: f64,
    pub rss_paused_mib: f64,
    pub rss_open_mib: f64,
    /// Requests until the breaker opened.
    pub failures: u64,
    /// Requests between the end of the cool-down and its closing.
    pub probes: u64,
}

/// Milliseconds of a call, the median of several.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Held {
    pub pause_ms: f64,
    pub resume_ms: f64,
}

impl Lane<'_> {
    /// Pauses and resumes some times over. The lane is paused at the end as at the beginning.
    pub async fn pause_and_resume(&self) -> Result<Held> {
        let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            self.server.api.steer(self.application, self.endpoint, "resume", json!({"deliver": "all"})).await?;
            resumes.push(start.elapsed());
            let start = Instant::now();
            self.server.api.steer(self.application, self.endpoint, "pause", json!({})).await?;
            pauses.push(start.elapsed());
        }
        Ok(Held { pause_ms: median(pauses), resume_ms: median(resumes) })
    }

    /// The share of one core that the server uses while nothing happens.
    pub async fn cpu_share_at_rest(&self) -> Result<f64> {
        tokio::time::sleep(SETTLING).await;
        let (before, start) = (self.server.cpu_time()?, Instant::now());
        tokio::time::sleep(RESTING).await;
        let used = self.server.cpu_time()?.saturating_sub(before);
        Ok(used.as_secs_f64() / start.elapsed().as_secs_f64())
    }

    /// Lets the lane run into a failing receiver until its breaker opens, and tells how many requests that took.
    pub async fn trip(&self) -> Result<u64> {
        self.receiver.turn(Temper::Failing);
        let before = self.receiver.requests();
        self.server.api.steer(self.application, self.endpoint, "resume", json!({"deliver": "all"})).await?;
        let start = Instant::now();
        while self.server.api.health(self.application, self.endpoint).await? != "tripped" {
            ensure!(start.elapsed() < PATIENCE, "the breaker did not open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(self.receiver.requests() - before)
    }

    /// Waits until the breaker has closed again, and tells how many requests that took.
    pub async fn recover(&self) -> Result<u64> {
        let before = self.receiver.requests();
        self.receiver.turn(Temper::Failing);
        let start = Instant::now();
        while self.receiver.requests() == before {
            ensure!(start.elapsed() < PATIENCE, "no probe came");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(PROBE_WATCH).await;
        let probes = self.receiver.requests() - before;
        self.receiver.turn(Temper::Healthy);
        while self.server.api.health(self.application, self.endpoint).await? != "healthy" {
            ensure!(start.elapsed() < PATIENCE, "the breaker did not close");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.server
            .api
            .steer(self.application, self.endpoint, "pause", json!({}))
            .await
            .context("pausing after the recovery")?;
        Ok(probes)
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

const ROUNDS: usize = 11;
const SETTLING: Duration = Duration::from_secs(2);
const RESTING: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);
/// Less than the cool-down after a failed probe.
const PROBE_WATCH: Duration = Duration::from_millis(500);
