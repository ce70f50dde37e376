//! The ceiling: what a server reaches that takes messages in and delivers them, and does nothing else.
//!
//! It is a program of its own, `postrider-relay`, which says what it does. It keeps nothing, or what a durable server cannot do
//! without: a row for each message, synced before it is answered, and one for each outcome.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::HeaderValue;
use serde::Serialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::api::Api;
use crate::generator::Way;
use crate::process;
use crate::report::{LoadRun, Series};
use crate::subject::{Subject, Usage};

/// What is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Keeps {
    Nothing,
    /// In SQLite.
    Rows,
}

impl Keeps {
    pub const ALL: [Keeps; 2] = [Keeps::Nothing, Keeps::Rows];

    pub fn name(self) -> &'static str {
        match self {
            Keeps::Nothing => "nothing",
            Keeps::Rows => "rows",
        }
    }
}

/// What one kind of relay was measured at.
#[derive(Serialize)]
pub struct Ceiling {
    pub keeps: Keeps,
    pub end_to_end: Series<LoadRun>,
    pub fan_out: Series<LoadRun>,
}

/// A relay as a process of its own.
pub struct Relay {
    child: Child,
    pid: u32,
    /// It serves until this is closed.
    orders: ChildStdin,
    api: Arc<Api>,
    host: HeaderValue,
    _folder: TempDir,
}

impl Relay {
    pub async fn start(keeps: Keeps, dir: &Path) -> Result<Relay> {
        let folder = tempfile::Builder::new().prefix("postrider-bench-").tempdir_in(dir)?;
        let program = std::env::current_exe()?.with_file_name("postrider-relay");
        ensure!(
            program.is_file(),
            "there is no relay at {}: build it with `cargo build --release -p postrider-bench`",
            program.display()
        );
        let mut command = Command::new(program);
        if keeps == Keeps::Rows {
            command.arg("--rows").arg(folder.path().join("relay.db"));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the relay")?;
        let pid = child.id().context("the relay ended at once")?;
        let orders = child.stdin.take().expect("stdin is piped");
        let mut words = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address: SocketAddr = words.next_line().await?.context("the relay did not say where it is")?.parse()?;
        let host = HeaderValue::from_str(&address.to_string())?;
        let api = Arc::new(Api::new(address, host.clone(), "nobody-looks-at-it")?);
        Ok(Relay { child, pid, orders, api, host, _folder: folder })
    }

    /// Whatever became of the measurement.
    pub async fn end(mut self) -> Result<()> {
        drop(self.orders);
        tokio::time::timeout(SLACK, self.child.wait()).await.context("the relay did not end")??;
        Ok(())
    }
}

impl Subject for Relay {
    fn api(&self) -> &Arc<Api> {
        &self.api
    }

    fn ways(&self) -> Vec<Way> {
        vec![Way { address: self.api.address(), host: self.host.clone() }]
    }

    fn usage(&self) -> Result<Option<Usage>> {
        let rss_peak_mib = process::memory(self.pid)?.rss_peak_mib;
        Ok(Some(Usage { server: process::cpu_time(self.pid)?, database: Duration::ZERO, rss_peak_mib }))
    }
}

const SLACK: Duration = Duration::from_secs(20);
