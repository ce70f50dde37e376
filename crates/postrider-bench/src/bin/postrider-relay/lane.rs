//! One endpoint: letters that wait for it, and connections to it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use postrider_signature::{SigningKey, sign};
use tokio::net::TcpStream;

use crate::rows::{Row, Rows};

pub struct Letter {
    pub number: u64,
    pub id: String,
    pub payload: Bytes,
}

pub struct Lane {
    number: usize,
    address: SocketAddr,
    path: Uri,
    host: HeaderValue,
    keys: [SigningKey; 1],
    rows: Option<Rows>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Letter>,
    /// The last one put back is the first one taken.
    resting: Vec<Line>,
    /// Requests at a time.
    under_way: usize,
}

impl Lane {
    pub fn new(number: usize, url: &Uri, key: SigningKey, rows: Option<Rows>) -> Result<Lane> {
        let authority = url.authority().context("the url has no address")?;
        Ok(Lane {
            number,
            address: authority.as_str().parse().context("the url's host is not an address and port")?,
            path: url.path().parse()?,
            host: HeaderValue::from_str(authority.as_str())?,
            keys: [key],
            rows,
            state: Mutex::default(),
        })
    }

    pub fn send(self: &Arc<Self>, letter: Letter) {
        let mut state = self.lock();
        if state.under_way >= IN_FLIGHT_MAX {
            state.waiting.push_back(letter);
            return;
        }
        state.under_way += 1;
        let line = state.resting.pop();
        drop(state);
        let lane = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = lane.work_off(letter, line).await {
                // The harness misses what this does not bring.
                eprintln!("the relay cannot deliver: {error:#}");
            }
        });
    }

    /// This letter, and as long as others wait, the next ones.
    async fn work_off(&self, letter: Letter, line: Option<Line>) -> Result<()> {
        let mut line = match line {
            Some(line) => line,
            None => Line::open(self.address).await?,
        };
        let mut next = Some(letter);
        while let Some(letter) = next {
            self.deliver(letter, &mut line).await?;
            let mut state = self.lock();
            next = state.waiting.pop_front();
            if next.is_none() {
                state.under_way -= 1;
                state.resting.push(line);
                return Ok(());
            }
        }
        Ok(())
    }

    async fn deliver(&self, Letter { number, id, payload }: Letter, line: &mut Line) -> Result<()> {
        let at_s = unix_seconds();
        let signature = sign(&self.keys, &id, at_s, &payload);
        let request = Request::post(self.path.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header("webhook-id", id)
            .header("webhook-timestamp", HeaderValue::from(at_s))
            .header("webhook-signature", signature)
            .body(Full::new(payload))?;
        let status = line.send(request).await?;
        if let Some(rows) = &self.rows {
            rows.note(Row::Outcome { number, lane: self.number, status, at_s });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, driven by whoever sends on it.
struct Line {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: http1::Connection<TokioIo<TcpStream>, Full<Bytes>>,
}

impl Line {
    async fn open(address: SocketAddr) -> Result<Line> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut line = Line { sender, connection };
        line.drive_once().await;
        Ok(line)
    }

    /// Tells the status of the answer, whose body is read to its end.
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<u16> {
        let Line { sender, connection } = self;
        let mut answer = pin!(sender.send_request(request));
        let response: Response<Incoming> = poll_fn(|context| {
            let _ = Pin::new(&mut *connection).poll(context)?;
            answer.as_mut().poll(context)
        })
        .await?;
        let status = response.status().as_u16();
        let mut body = pin!(response.into_body().collect());
        poll_fn(|context| {
            let _ = Pin::new(&mut *connection).poll(context)?;
            body.as_mut().poll(context)
        })
        .await?;
        self.drive_once().await;
        Ok(status)
    }

    /// Lets the connection notice that the answer is over.
    async fn drive_once(&mut self) {
        poll_fn(|context| {
            // Should it have ended, the next request says so.
            let _ = Pin::new(&mut self.connection).poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
}

#[expect(clippy::disallowed_methods, reason = "it decides nothing: it is the time of a signature")]
fn unix_seconds() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).expect("the machine's clock is set later than 1970");
    i64::try_from(elapsed.as_secs()).expect("seconds since 1970 fit")
}

/// What an endpoint of Postrider gets if nobody says otherwise.
const IN_FLIGHT_MAX: usize = 10;
