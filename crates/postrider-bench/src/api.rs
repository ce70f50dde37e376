//! The harness's own calls of the API: few, and never part of a figure but where a call's time is the figure.
//!
//! Applications, endpoints and messages are made by the contract's plain calls, so that they work on any server that speaks
//! it; what only ours has (pausing, health, metrics) is asked of servers of our own alone.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Answer, Connection};
use crate::floor::SECRET;

pub struct Api {
    address: SocketAddr,
    host: HeaderValue,
    authorization: HeaderValue,
    token: String,
    idle: Mutex<Vec<Connection>>,
    made: Mutex<Vec<String>>,
}

impl Api {
    pub fn new(address: SocketAddr, host: HeaderValue, token: &str) -> Result<Api> {
        ensure!(
            !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
            "that is no token: it is empty, or has other characters than letters, digits and signs"
        );
        let mut authorization = HeaderValue::from_str(&format!("Bearer {token}"))?;
        authorization.set_sensitive(true);
        Ok(Api {
            address,
            host,
            authorization,
            token: token.to_owned(),
            idle: Mutex::default(),
            made: Mutex::default(),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn authorization(&self) -> HeaderValue {
        self.authorization.clone()
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// The id of the newest of a list.
    pub async fn newest(&self, path: &str) -> Result<String> {
        let list = self.get(&format!("{path}?limit=1")).await?;
        list["data"][0]["id"].as_str().map(str::to_owned).with_context(|| format!("finding an id in {list}"))
    }

    pub async fn create_application(&self, name: &str) -> Result<String> {
        let made = self.create("/api/v1/app", json!({ "name": name })).await?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(made.clone());
        Ok(made)
    }

    /// The applications that were made here since this was last asked.
    pub fn take_made(&self) -> Vec<String> {
        std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub async fn create_endpoint(&self, application: &str, url: &str) -> Result<String> {
        self.create(&format!("/api/v1/app/{application}/endpoint"), json!({ "url": url, "secret": SECRET })).await
    }

    /// Applications with endpoints at these addresses, several at a time. In the order in which they were asked for.
    pub async fn create_many(self: &Arc<Self>, wanted: Vec<Vec<String>>) -> Result<Vec<(String, Vec<String>)>> {
        let mut made: Vec<(String, Vec<String>)> = vec![Default::default(); wanted.len()];
        let waiting = Arc::new(Mutex::new(wanted.into_iter().enumerate()));
        let mut makers = JoinSet::new();
        let makers_count = if made.len() < MANY { 1 } else { MAKERS };
        for _ in 0..makers_count {
            let (api, waiting) = (Arc::clone(self), Arc::clone(&waiting));
            makers.spawn(async move {
                let mut made = Vec::new();
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, urls)) = next else { return Ok::<_, anyhow::Error>(made) };
                    let application = api.create_application(&format!("bench {number}")).await?;
                    let mut endpoints = Vec::with_capacity(urls.len());
                    for url in &urls {
                        endpoints.push(api.create_endpoint(&application, url).await?);
                    }
                    made.push((number, application, endpoints));
                }
            });
        }
        while let Some(done) = makers.join_next().await {
            for (number, application, endpoints) in done.context("making endpoints")?? {
                made[number] = (application, endpoints);
            }
        }
        Ok(made)
    }

    /// A source that takes what the floor's client signs, and where it takes it.
    pub async fn create_source(&self) -> Result<String> {
        let body = json!({ "name": "bench", "type": "svix", "config": { "secret": SECRET } });
        let made = self.call(Method::POST, "/ingest/api/v1/source", Some(body), StatusCode::CREATED).await?;
        let url = made["ingestUrl"].as_str().with_context(|| format!("finding the URL in {made}"))?;
        let (_, path) = url.split_once("/ingest/").with_context(|| format!("finding the path in {url}"))?;
        Ok(format!("http://{}/ingest/{path}", self.address))
    }

    /// Messages that the first node has accepted.
    pub async fn accepted(&self) -> Result<u64> {
        self.metric("postrider_messages_accepted_total ").await
    }

    /// Deliveries of an endpoint that have not ended: not tried yet, or waiting for their next try.
    pub async fn waiting(&self, application: &str, endpoint: &str) -> Result<u64> {
        let stats = self.get(&format!("/api/v1/app/{application}/endpoint/{endpoint}/stats")).await?;
        let count = |name: &str| stats[name].as_u64().with_context(|| format!("finding {name} in {stats}"));
        Ok(count("pending")? + count("sending")?)
    }

    pub async fn requests_in_flight(&self) -> Result<u64> {
        self.metric("postrider_requests_in_flight ").await
    }

    async fn metric(&self, name: &str) -> Result<u64> {
        let answer = self.exchange(Method::GET, "/metrics", None).await.context("reading the metrics")?;
        let text = String::from_utf8_lossy(&answer.body);
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        found.with_context(|| format!("finding {name}in {text}"))
    }

    /// Pauses or resumes an endpoint.
    pub async fn steer(&self, application: &str, endpoint: &str, how: &str, body: Value) -> Result<()> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}/{how}");
        self.call(Method::POST, &path, Some(body), StatusCode::OK).await.map(drop)
    }

    /// The state that the API shows.
    pub async fn health(&self, application: &str, endpoint: &str) -> Result<String> {
        let health = self.get(&format!("/api/v1/app/{application}/endpoint/{endpoint}/health")).await?;
        health["state"].as_str().map(str::to_owned).with_context(|| format!("finding the state in {health}"))
    }

    pub async fn patch_endpoint(&self, application: &str, endpoint: &str, patch: &str) -> Result<()> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        self.call(Method::PATCH, &path, Some(serde_json::from_str(patch)?), StatusCode::OK).await.map(drop)
    }

    pub async fn delete_endpoint(&self, application: &str, endpoint: &str) -> Result<()> {
        let path = format!("/api/v1/app/{application}/endpoint/{endpoint}");
        self.call(Method::DELETE, &path, None, StatusCode::NO_CONTENT).await.map(drop)
    }

    pub async fn delete_application(&self, application: &str) -> Result<()> {
        let path = format!("/api/v1/app/{application}");
        self.call(Method::DELETE, &path, None, StatusCode::NO_CONTENT).await.map(drop)
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        self.call(Method::GET, path, None, StatusCode::OK).await
    }

    /// How long a call takes, and how many are in the list that is answered.
    pub async fn timed(&self, path: &str) -> Result<(Duration, usize)> {
        let start = Instant::now();
        let list = self.get(path).await?;
        let took = start.elapsed();
        Ok((took, list["data"].as_array().map_or(0, Vec::len)))
    }

    async fn create(&self, path: &str, body: Value) -> Result<String> {
        let made = self.call(Method::POST, path, Some(body), StatusCode::CREATED).await?;
        made["id"].as_str().map(str::to_owned).with_context(|| format!("finding the id in {made}"))
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>, expected: StatusCode) -> Result<Value> {
        let answer = self.exchange(method, path, body).await.with_context(|| format!("calling {path}"))?;
        ensure!(
            answer.status == expected,
            "{path} answered {} instead of {expected}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        if answer.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.body).with_context(|| format!("reading the answer of {path}"))
    }

    /// Whatever is answered.
    pub async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.host)
            .header(AUTHORIZATION, &self.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.map_or_else(Bytes::new, |body| body.to_string().into())))?;
        let kept = std::iter::from_fn(|| self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop());
        // One that the server has closed meanwhile, because it was restarted, is of no use.
        let kept = kept.into_iter().find(Connection::is_open);
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let answer = connection.send_within(CALL_MAX, request).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(answer)
    }
}

const CALL_MAX: Duration = Duration::from_secs(30);
/// A store that commits for all who wait takes several at a time as fast as one.
const MAKERS: usize = 32;
/// Fewer are made one by one: which node serves an application follows from the time that it was made at, and such that are made
/// all at once may be served by one.
const MANY: usize = 100;
