//! The relay's side of it: as much of the contract's API as the harness calls to set up a measurement, and the way of a message.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use postrider_signature::{Secret, SigningKey, sign};
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::Keeps;
use super::rows::{Row, Rows};
use crate::client::Connection;
use crate::clock::unix_seconds;
use crate::floor::SECRET;
use crate::generator::payload_of;

#[derive(clap::Args)]
pub struct RelayArgs {
    #[arg(long)]
    keeps: Keeps,
    #[arg(long)]
    file: PathBuf,
}

pub async fn serve(args: RelayArgs) -> Result<()> {
    let rows = match args.keeps {
        Keeps::Nothing => None,
        Keeps::Rows => Some(Rows::open(&args.file).context("opening the relay's file")?),
    };
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
    applications: RwLock<Vec<Arc<[Lane]>>>,
    messages: AtomicU64,
}

/// One endpoint, and its connections.
#[derive(Clone)]
struct Lane {
    lines: Arc<[Sender<Letter>]>,
    turn: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Letter {
    number: u64,
    payload: Bytes,
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
        let path = request.uri().path().to_owned();
        let Some(rest) = path.strip_prefix("/api/v1/app").filter(|_| request.method() == Method::POST) else {
            return Ok(None);
        };
        let body = request.into_body().collect().await?.to_bytes();
        let application = |id: &str| id.strip_prefix("app_").and_then(|number| number.parse::<usize>().ok());
        let made = match rest.trim_start_matches('/').split_once('/') {
            None => self.make_application(),
            Some((id, "msg")) => {
                return Ok(match application(id) {
                    Some(number) => Some((StatusCode::ACCEPTED, self.take(number, &body).await?)),
                    None => None,
                });
            }
            Some((id, "endpoint")) => match application(id) {
                Some(number) => self.make_lane(number, &body).await?,
                None => return Ok(None),
            },
            Some(_) => return Ok(None),
        };
        Ok(Some((StatusCode::CREATED, made)))
    }

    fn make_application(&self) -> String {
        let mut applications = self.applications.write().unwrap_or_else(PoisonError::into_inner);
        applications.push(Arc::default());
        format!("app_{}", applications.len() - 1)
    }

    async fn make_lane(&self, application: usize, body: &[u8]) -> Result<String> {
        #[derive(Deserialize)]
        struct Endpoint {
            url: String,
        }
        let url: Uri = serde_json::from_slice::<Endpoint>(body)?.url.parse()?;
        let mut lanes = self.lanes(application)?.to_vec();
        let number = lanes.len();
        lanes.push(Lane::open(number, &url, self.rows.as_ref()).await?);
        self.applications.write().unwrap_or_else(PoisonError::into_inner)[application] = lanes.into();
        Ok(format!("ep_{application}_{number}"))
    }

    fn lanes(&self, application: usize) -> Result<Arc<[Lane]>> {
        let applications = self.applications.read().unwrap_or_else(PoisonError::into_inner);
        applications.get(application).cloned().context("there is no such application")
    }

    async fn take(&self, application: usize, body: &Bytes) -> Result<String> {
        let payload = payload_of(body).context("this is no message of the harness")?;
        let letter = Letter { number: self.messages.fetch_add(1, Relaxed), payload };
        if let Some(rows) = &self.rows {
            rows.keep(letter.number, letter.payload.clone()).await?;
        }
        let id = id_of(letter.number);
        for lane in &*self.lanes(application)? {
            lane.send(letter.clone()).await;
        }
        Ok(id)
    }
}

impl Lane {
    async fn open(number: usize, url: &Uri, rows: Option<&Rows>) -> Result<Lane> {
        let authority = url.authority().context("the url has no address")?;
        let address: SocketAddr = authority.as_str().parse().context("the url's host is not an address and port")?;
        let mut lines = Vec::new();
        for _ in 0..LINES {
            let (letters, queue) = mpsc::channel(QUEUE_MAX);
            let line = Line {
                lane: number,
                connection: Connection::open(address).await?,
                path: url.path().parse()?,
                host: HeaderValue::from_str(authority.as_str())?,
                keys: [SigningKey::new(&Secret::parse(SECRET)?)],
                rows: rows.cloned(),
            };
            tokio::spawn(async move {
                if let Err(error) = line.deliver(queue).await {
                    eprintln!("the relay cannot deliver: {error:#}");
                }
            });
            lines.push(letters);
        }
        Ok(Lane { lines: lines.into(), turn: Arc::default() })
    }

    async fn send(&self, letter: Letter) {
        let turn = self.turn.fetch_add(1, Relaxed) % self.lines.len();
        // If the line has broken, that has been told, and the harness misses what it does not bring.
        let _ = self.lines[turn].send(letter).await;
    }
}

struct Line {
    lane: usize,
    connection: Connection,
    path: Uri,
    host: HeaderValue,
    keys: [SigningKey; 1],
    rows: Option<Rows>,
}

impl Line {
    async fn deliver(mut self, mut queue: Receiver<Letter>) -> Result<()> {
        while let Some(Letter { number, payload }) = queue.recv().await {
            let (id, timestamp) = (id_of(number), unix_seconds());
            let signature = sign(&self.keys, &id, timestamp, &payload);
            let request = Request::post(self.path.clone())
                .header(HOST, &self.host)
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .header("webhook-id", id)
                .header("webhook-timestamp", HeaderValue::from(timestamp))
                .header("webhook-signature", signature)
                .body(Full::new(payload))?;
            let status = self.connection.send(request).await?.status.as_u16();
            if let Some(rows) = &self.rows {
                rows.note(Row::Outcome { number, lane: self.lane, status, at_s: timestamp });
            }
        }
        Ok(())
    }
}

fn id_of(number: u64) -> String {
    format!("msg_{number:027}")
}

/// As many requests at a time as an endpoint of Postrider gets if nobody says otherwise.
const LINES: usize = 10;
/// What may wait for each of these, so that a backlog of minutes does not take all memory: some 300 MiB.
const QUEUE_MAX: usize = 16_384;
