//! One keep-alive connection, as bare as hyper offers it: HTTP/1.1, or HTTP/2 in the clear whose other side is known to speak
//! it. The floor, the generator and the harness's own API calls all use it, so none of them has an advantage.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

pub struct Connection(Sender);

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Connection> {
        let (sender, connection) = http1::handshake(TokioIo::new(dial(address).await?)).await?;
        tokio::spawn(async move { connection.await.ok() });
        Ok(Connection(Sender::Http1(sender)))
    }

    pub async fn open_http2(address: SocketAddr) -> Result<Connection> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(dial(address).await?)).await?;
        tokio::spawn(async move { connection.await.ok() });
        Ok(Connection(Sender::Http2(sender)))
    }

    /// One more stream of an HTTP/2 connection. `None` of any other.
    pub fn share(&self) -> Option<Connection> {
        match &self.0 {
            Sender::Http1(_) => None,
            Sender::Http2(sender) => Some(Connection(Sender::Http2(sender.clone()))),
        }
    }

    pub fn is_open(&self) -> bool {
        match &self.0 {
            Sender::Http1(sender) => !sender.is_closed(),
            Sender::Http2(sender) => !sender.is_closed(),
        }
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer> {
        let (head, body) = self.begin(request).await?.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body: body.collect().await?.to_bytes() })
    }

    /// Reads what goes on coming, for as long as it does.
    pub async fn follow(&mut self, request: Request<Full<Bytes>>) -> Result<()> {
        let response = self.begin(request).await?;
        ensure!(response.status() == StatusCode::OK, "the answer was {}", response.status());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        bail!("what should go on coming has ended")
    }

    pub async fn send_within(&mut self, limit: Duration, request: Request<Full<Bytes>>) -> Result<Answer> {
        tokio::time::timeout(limit, self.send(request)).await.context("no answer in time")?
    }

    async fn begin(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        Ok(match &mut self.0 {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        })
    }
}

async fn dial(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
