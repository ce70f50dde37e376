//! The API as a producer calls it: over one connection that is kept, byte for byte, and never repeated by itself.
//!
//! Not through the official client: that one repeats what failed and writes payloads in its own way, and these
//! tests must know of every request and of every byte.

use bytes::Bytes;
use http::{Method, Request, StatusCode, header, response::Parts};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpStream;

pub struct Client {
    address: SocketAddr,
    token: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// No whole answer came. The request may have been carried out or not.
#[derive(Debug)]
pub struct Broken(pub String);

impl Client {
    pub fn new(address: SocketAddr, token: &str) -> Self {
        Self { address, token: token.to_owned(), connection: None }
    }

    /// One request. `Ok` once the whole answer was read.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<(StatusCode, Bytes), Broken> {
        let (head, body) = self.send_whole(method, path, headers, body).await?;
        Ok((head.status, body))
    }

    /// The same, with the head of the answer.
    pub async fn send_whole(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<(Parts, Bytes), Broken> {
        let exchange = self.exchange(method, path, headers, body);
        let answer = tokio::time::timeout(CALL_TIME_MAX, exchange).await;
        let answer = answer.unwrap_or_else(|_| Err(Broken(format!("no answer within {CALL_TIME_MAX:?}"))));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Broken> {
        let (status, body) = self.send(Method::GET, path, &[], "").await?;
        assert_eq!(status, StatusCode::OK, "GET {path}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body).unwrap_or_else(|error| panic!("GET {path}: {error}")))
    }

    /// Everything on all pages of a list, newest or oldest first, as the list is.
    pub async fn list<T: DeserializeOwned>(&mut self, path: &str) -> Result<Vec<T>, Broken> {
        let mut all = Vec::new();
        let mut iterator = String::new();
        let join = if path.contains('?') { '&' } else { '?' };
        loop {
            let page: Page<T> = self.get(&format!("{path}{join}limit=250{iterator}")).await?;
            all.extend(page.data);
            match page.iterator {
                Some(next) if !page.done => iterator = format!("&iterator={next}"),
                _ => return Ok(all),
            }
        }
    }

    /// Makes something that must be made.
    pub async fn create(&mut self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send(Method::POST, path, &[], &body.to_string()).await.expect("an answer");
        assert!(status.is_success(), "POST {path}: {status} {}", String::from_utf8_lossy(&answer));
        serde_json::from_slice(&answer).expect("JSON")
    }

    pub async fn metrics(&mut self) -> String {
        let (status, body) = self.send(Method::GET, "/metrics", &[], "").await.expect("an answer");
        assert_eq!(status, StatusCode::OK);
        String::from_utf8(body.to_vec()).expect("text")
    }

    /// Whether it has been given shards, without which a node that stops has none to give up. `false` also if it is gone.
    pub async fn serves_shards(&mut self) -> bool {
        let Ok((StatusCode::OK, body)) = self.send(Method::GET, "/metrics", &[], "").await else { return false };
        let metrics = String::from_utf8_lossy(&body);
        let owned = metrics.lines().find_map(|line| line.strip_prefix("postrider_shards_owned "));
        owned.is_some_and(|owned| owned != "0")
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<(Parts, Bytes), Broken> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => connect(self.address).await?,
        };
        let connection = self.connection.insert(connection);
        connection.ready().await.map_err(broken)?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.to_string())
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).expect("a request");
        let (head, body) = connection.send_request(request).await.map_err(broken)?.into_parts();
        let body = body.collect().await.map_err(broken)?.to_bytes();
        Ok((head, body))
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, Broken> {
    let stream = TcpStream::connect(address).await.map_err(|error| Broken(error.to_string()))?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(async move {
        // Its error reaches the request that was under way.
        let _ = connection.await;
    });
    Ok(sender)
}

fn broken(error: hyper::Error) -> Broken {
    Broken(error.to_string())
}

#[derive(serde::Deserialize)]
struct Page<T> {
    data: Vec<T>,
    iterator: Option<String>,
    done: bool,
}

const CALL_TIME_MAX: Duration = Duration::from_secs(10);
