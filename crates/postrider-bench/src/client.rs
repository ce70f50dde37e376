//! One keep-alive HTTP/1.1 connection, as bare as hyper offers it. The floor, the generator and the harness's own API calls
//! all use it, so none of them has an advantage.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { connection.await.ok() });
        Ok(Connection { sender })
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Answer> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        Ok(Answer { status: head.status, headers: head.headers, body: body.collect().await?.to_bytes() })
    }

    /// Reads what goes on coming, for as long as it does.
    pub async fn follow(&mut self, request: Request<Full<Bytes>>) -> Result<()> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
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
}
