//! One keep-alive HTTP/1.1 connection, as bare as hyper offers it. The floor, the generator and the harness's own API calls
//! all use it, so none of them has an advantage.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

pub struct Answer {
    pub status: StatusCode,
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
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, body })
    }

    pub async fn send_within(&mut self, limit: Duration, request: Request<Full<Bytes>>) -> Result<Answer> {
        tokio::time::timeout(limit, self.send(request)).await.context("no answer in time")?
    }
}
