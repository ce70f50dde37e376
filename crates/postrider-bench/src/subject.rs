//! What is measured: a server of the harness's own, or one that somebody else runs.
//!
//! Of somebody else's we know an address and a token, and perhaps its processes. It is used by the contract alone, and left as it
//! was found: what was made on it is removed again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::{HeaderValue, Method, StatusCode, Uri};
use tokio::net::TcpStream;

use crate::api::Api;
use crate::generator::Way;
use crate::process;

pub trait Subject {
    fn api(&self) -> &Arc<Api>;
    /// How producers get to each node.
    fn ways(&self) -> Vec<Way>;
    /// So far. `None` if nobody said which processes it is.
    fn usage(&self) -> Result<Option<Usage>>;
}

#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub server: Duration,
    /// Of the database that is a process of its own.
    pub database: Duration,
    /// Of the largest process.
    pub rss_peak_mib: f64,
}

pub struct Outside {
    api: Arc<Api>,
    host: HeaderValue,
    pids: Vec<u32>,
}

impl Outside {
    /// Fails with what to do about it if it cannot be measured.
    pub async fn find(url: &str, token: &str, pids: &[u32]) -> Result<Outside> {
        for pid in pids {
            let found = process::family_cpu_time(*pid).and_then(|_| process::memory(*pid));
            found.with_context(|| format!("there is no process {pid} to be measured (--pid)"))?;
        }
        let (address, host) = locate(url).await?;
        let api = Api::new(address, host.clone(), token).context("reading --token")?;
        let health = api.exchange(Method::GET, "/api/v1/health", None).await;
        let health = health.with_context(|| format!("no server answers at {url} (--url)"))?;
        ensure!(
            health.status.is_success(),
            "{url} answers {} to GET /api/v1/health, so it is not a server that speaks the contract, or it is not well",
            health.status
        );
        let list = api.exchange(Method::GET, "/api/v1/app?limit=1", None).await.context("asking for applications")?;
        match list.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                bail!(
                    "{url} answers {}: it does not take this token (--token), or not for all applications",
                    list.status
                )
            }
            status => bail!("{url} answers {status} to GET /api/v1/app: {}", String::from_utf8_lossy(&list.body)),
        }
        Ok(Outside { api: Arc::new(api), host, pids: pids.to_vec() })
    }

    /// Removes what was made for the measurements. What cannot be removed is told.
    pub async fn clean_up(&self) {
        for application in self.api.take_made() {
            if let Err(error) = self.api.delete_application(&application).await {
                eprintln!("application {application} could not be removed: {error:#}");
            }
        }
    }
}

impl Subject for Outside {
    fn api(&self) -> &Arc<Api> {
        &self.api
    }

    fn ways(&self) -> Vec<Way> {
        vec![Way { address: self.api.address(), host: self.host.clone() }]
    }

    fn usage(&self) -> Result<Option<Usage>> {
        let mut usage = Usage { server: Duration::ZERO, database: Duration::ZERO, rss_peak_mib: 0.0 };
        for pid in &self.pids {
            usage.server += process::family_cpu_time(*pid)?;
            usage.rss_peak_mib = usage.rss_peak_mib.max(process::memory(*pid)?.rss_peak_mib);
        }
        Ok((!self.pids.is_empty()).then_some(usage))
    }
}

async fn locate(url: &str) -> Result<(SocketAddr, HeaderValue)> {
    let uri: Uri = url.parse().with_context(|| format!("{url} is no URL (--url)"))?;
    ensure!(
        uri.scheme_str() == Some("http"),
        "{url} does not begin with http:// (--url): TLS is not measured, and no other protocol is spoken"
    );
    ensure!(matches!(uri.path(), "" | "/") && uri.query().is_none(), "{url} has a path (--url): the API is at /api/v1");
    let authority = uri.authority().with_context(|| format!("{url} has no host (--url)"))?;
    let port = authority.port_u16().unwrap_or(80);
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((name, port)).await;
    let addresses: Vec<SocketAddr> = found.with_context(|| format!("there is no host {name} (--url)"))?.collect();
    let host = HeaderValue::from_str(authority.as_str())?;
    // `localhost` has two, and mostly somebody listens at one of them.
    for address in &addresses {
        if TcpStream::connect(address).await.is_ok() {
            return Ok((*address, host));
        }
    }
    bail!("no server answers at {url} (--url)")
}
