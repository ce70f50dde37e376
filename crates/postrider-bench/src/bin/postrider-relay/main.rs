//! The relay that the benchmark's scenario `ceiling` measures: it takes messages, answers with their ids, signs them and posts
//! them to the endpoints of their application, ten requests at a time for each, as Postrider does. There it ends: no token is
//! checked and no JSON of a message parsed, nothing is looked up, decided, limited, retried, counted or logged.
//!
//! What it does do it does as cheaply as Postrider: with its allocator, with connections that are driven by whoever sends on
//! them, and with commits that wait for one another.
//!
//! Of the contract's API it has as much as the harness calls to set up a measurement.

mod lane;
mod rows;

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use postrider_signature::{Secret, SigningKey};
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::lane::{Lane, Letter};
use crate::rows::Rows;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Takes messages and delivers them, for the benchmark to compare with. It ends when its standard input does.
#[derive(Parser)]
struct Args {
    /// Keeps a row for each message, synced before it is answered, and one for each outcome, in this file
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: Args) -> Result<()> {
    let rows = args.rows.map(|file| Rows::open(&file).context("opening the relay's file")).transpose()?;
    let relay = Arc::new(Relay { rows, applications: RwLock::default(), messages: AtomicU64::new(0) });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let relay = Arc::clone(&relay);
            tokio::spawn(async move {
                let answer = service_fn(move |request| answer(Arc::clone(&relay), request));
                Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await.ok();
            });
        }
    };
    let mut orders = tokio::io::stdin();
    tokio::select! {
        broken = accept => broken,
        _ = orders.read_u8() => Ok(()),
    }
}

struct Relay {
    rows: Option<Rows>,
    /// The lanes of each.
    applications: RwLock<Vec<Arc<[Arc<Lane>]>>>,
    messages: AtomicU64,
}

async fn answer(relay: Arc<Relay>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match relay.act(request).await {
        Ok(Some((status, id))) => (status, format!(r#"{{"id":"{id}"}}"#)),
        Ok(None) => (StatusCode::NOT_FOUND, String::new()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
    };
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    Ok(response)
}

impl Relay {
    /// What was made, and the status to say so with. `None`: there is no such call.
    async fn act(&self, request: Request<Incoming>) -> Result<Option<(StatusCode, String)>> {
        let (head, body) = request.into_parts();
        let Some(rest) = head.uri.path().strip_prefix("/api/v1/app").filter(|_| head.method == Method::POST) else {
            return Ok(None);
        };
        let body = body.collect().await?.to_bytes();
        let number = |id: &str| id.strip_prefix("app_").and_then(|number| number.parse::<usize>().ok());
        Ok(match rest.trim_start_matches('/').split_once('/') {
            None => Some((StatusCode::CREATED, self.make_application())),
            Some((id, call)) => match (number(id), call) {
                (Some(application), "msg") => Some((StatusCode::ACCEPTED, self.take(application, &body).await?)),
                (Some(application), "endpoint") => {
                    Some((StatusCode::CREATED, self.make_lane(application, &body).await?))
                }
                (_, _) => None,
            },
        })
    }

    fn make_application(&self) -> String {
        let mut applications = self.applications.write().unwrap_or_else(PoisonError::into_inner);
        applications.push(Arc::default());
        format!("app_{}", applications.len() - 1)
    }

    /// The harness makes those of one application one after the other, and before it sends messages.
    async fn make_lane(&self, application: usize, body: &[u8]) -> Result<String> {
        #[derive(Deserialize)]
        struct Endpoint {
            url: String,
            secret: String,
        }
        let Endpoint { url, secret } = serde_json::from_slice(body)?;
        let (url, key): (Uri, _) = (url.parse()?, SigningKey::new(&Secret::parse(&secret)?));
        let mut lanes = self.lanes(application)?.to_vec();
        let number = lanes.len();
        lanes.push(Arc::new(Lane::new(number, &url, key, self.rows.clone())?));
        self.applications.write().unwrap_or_else(PoisonError::into_inner)[application] = lanes.into();
        Ok(format!("ep_{application}_{number}"))
    }

    fn lanes(&self, application: usize) -> Result<Arc<[Arc<Lane>]>> {
        let applications = self.applications.read().unwrap_or_else(PoisonError::into_inner);
        applications.get(application).cloned().context("there is no such application")
    }

    async fn take(&self, application: usize, body: &Bytes) -> Result<String> {
        let payload = payload_of(body).context("this is no message of the harness")?;
        let number = self.messages.fetch_add(1, Relaxed);
        if let Some(rows) = &self.rows {
            rows.keep(number, payload.clone()).await?;
        }
        let id = format!("msg_{number:027}");
        for lane in &*self.lanes(application)? {
            lane.send(Letter { number, id: id.clone(), payload: payload.clone() });
        }
        Ok(id)
    }
}

/// Found by where it stands: it is the last field, as the harness sends it.
fn payload_of(body: &Bytes) -> Option<Bytes> {
    let start = body.windows(PAYLOAD.len()).position(|part| part == PAYLOAD)? + PAYLOAD.len();
    body.ends_with(b"}").then(|| body.slice(start..body.len() - 1))
}

const PAYLOAD: &[u8] = br#","payload":"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_found() {
        let body = Bytes::from_static(br#"{"eventType":"a","payload":{"a":[1, 2]}}"#);
        assert_eq!(payload_of(&body).unwrap(), br#"{"a":[1, 2]}"#.as_slice());
        assert_eq!(payload_of(&Bytes::from_static(b"{}")), None);
    }
}
