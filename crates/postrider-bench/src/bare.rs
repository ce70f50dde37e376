//! The floor of whoever takes requests in: the same HTTP server as Postrider's, which reads each request and answers it.
//!
//! It runs as a process of its own, so that its CPU time is read the same way as the server's.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, Command};

pub struct Bare {
    child: Child,
    pub pid: u32,
    /// It serves until this is closed.
    orders: ChildStdin,
    pub address: SocketAddr,
}

impl Bare {
    pub async fn start() -> Result<Bare> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("bare-server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the bare server")?;
        let pid = child.id().context("the bare server ended at once")?;
        let orders = child.stdin.take().expect("stdin is piped");
        let mut words = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let address = words.next_line().await?.context("the bare server did not say where it is")?.parse()?;
        Ok(Bare { child, pid, orders, address })
    }

    pub async fn end(mut self) -> Result<()> {
        drop(self.orders);
        tokio::time::timeout(SLACK, self.child.wait()).await.context("the bare server did not end")??;
        Ok(())
    }
}

/// The server's side of it.
pub async fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let served = Builder::new(TokioExecutor::new());
                served.serve_connection(TokioIo::new(stream), service_fn(answer)).await.ok();
            });
        }
    };
    let mut orders = tokio::io::stdin();
    tokio::select! {
        broken = accept => broken,
        _ = orders.read_u8() => Ok(()),
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    // A body that breaks off is the client's to notice.
    let _ = request.into_body().collect().await;
    Ok(Response::new(Empty::new()))
}

const SLACK: Duration = Duration::from_secs(20);
