//! A stand-in for the server, to try the harness on: it speaks just enough of the contract, keeps everything in memory, and
//! can be told to be wrong by `STUB_FAULT` (`lose`, `duplicate`, `rename` or `damage`: every thousandth delivery).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    match args.get(1).map(String::as_str) {
        Some("token") => {
            println!("stub-token");
            Ok(())
        }
        Some("serve") => serve(option("--listen").context("--listen is missing")?.parse()?).await,
        _ => anyhow::bail!("the stub knows `serve` and `token`"),
    }
}

#[derive(Default)]
struct Stub {
    next_id: AtomicU64,
    deliveries: AtomicU64,
    applications: Mutex<HashMap<String, Vec<Arc<Endpoint>>>>,
    fault: Option<String>,
    refused: AtomicU64,
}

#[derive(serde::Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

struct Endpoint {
    id: String,
    queue: mpsc::Sender<Delivery>,
    waiting: AtomicU64,
}

struct Delivery {
    message: String,
    payload: Bytes,
}

async fn serve(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).await?;
    let stub = Arc::new(Stub { fault: std::env::var("STUB_FAULT").ok(), ..Stub::default() });
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let stub = Arc::clone(&stub);
        let service = service_fn(move |request| {
            let stub = Arc::clone(&stub);
            async move { stub.answer(request).await }
        });
        // Whichever of HTTP/1.1 and HTTP/2 it begins with.
        tokio::spawn(async move {
            let served = Builder::new(TokioExecutor::new());
            served.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

impl Stub {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        if head.uri.path() != "/api/v1/health"
            && head.headers.get("authorization").is_none_or(|token| token != "Bearer stub-token")
        {
            let refused = json!({ "code": "authentication_failed", "detail": "Invalid token" });
            let answer = Response::builder().status(StatusCode::UNAUTHORIZED);
            return Ok(answer.body(Full::new(refused.to_string().into()))?);
        }
        let path: Vec<&str> = head.uri.path().trim_start_matches("/api/v1/").split('/').collect();
        let (status, answer) = match (head.method, path.as_slice()) {
            (Method::GET, ["health"]) => (StatusCode::NO_CONTENT, None),
            (Method::POST, ["app"]) => {
                let id = self.id("app_");
                self.applications.lock().unwrap().insert(id.clone(), vec![]);
                (StatusCode::CREATED, Some(json!({ "id": id })))
            }
            (Method::POST, ["app", application, "endpoint"]) => {
                let wanted: Value = serde_json::from_slice(&body)?;
                let endpoint = Endpoint::open(self.id("ep_"), wanted["url"].as_str().context("url")?.parse()?);
                let id = endpoint.id.clone();
                self.applications.lock().unwrap().get_mut(*application).context("application")?.push(endpoint);
                (StatusCode::CREATED, Some(json!({ "id": id })))
            }
            (Method::POST, ["app", application, "msg"]) => {
                let id = self.id("msg_");
                self.send(application, &id, &body).await?;
                (StatusCode::ACCEPTED, Some(json!({ "eventType": "bench.event", "id": id })))
            }
            (Method::POST, ["app", application, "msg-batch"]) => {
                let batch: Batch<'_> = serde_json::from_slice(&body)?;
                let mut data = Vec::new();
                for (number, message) in batch.messages.iter().enumerate() {
                    // Now and then it is full for one of them.
                    if number == 1 && self.refused.fetch_add(1, Relaxed).is_multiple_of(10) {
                        data.push(json!({ "status": 429, "error": { "code": "too_many", "detail": "later" } }));
                        continue;
                    }
                    let id = self.id("msg_");
                    self.send(application, &id, message.get().as_bytes()).await?;
                    data.push(json!({ "status": 202, "message": { "eventType": "bench.event", "id": id } }));
                }
                (StatusCode::OK, Some(json!({ "data": data })))
            }
            // For those who check what was left behind.
            (Method::GET, ["app", "count"]) => {
                (StatusCode::OK, Some(json!({ "count": self.applications.lock().unwrap().len() })))
            }
            (Method::GET, ["app"]) => (StatusCode::OK, Some(json!({ "data": [], "iterator": null, "done": true }))),
            (Method::DELETE, ["app", application]) => {
                let known = self.applications.lock().unwrap().remove(*application);
                (if known.is_some() { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }, None)
            }
            (Method::GET, ["app", application, "endpoint", endpoint, "stats"]) => {
                let applications = self.applications.lock().unwrap();
                let endpoint =
                    applications[*application].iter().find(|known| known.id == *endpoint).context("endpoint")?;
                let waiting = endpoint.waiting.load(Relaxed);
                (
                    StatusCode::OK,
                    Some(json!({ "success": 0, "pending": 0, "sending": waiting, "fail": 0, "canceled": 0 })),
                )
            }
            _ => (StatusCode::NOT_FOUND, Some(json!({ "code": "not_found", "detail": "Entity not found" }))),
        };
        let body = answer.map_or_else(Bytes::new, |answer| answer.to_string().into());
        Ok(Response::builder().status(status).body(Full::new(body))?)
    }

    async fn send(&self, application: &str, message: &str, body: &[u8]) -> Result<()> {
        let fields: HashMap<&str, &RawValue> = serde_json::from_slice(body)?;
        let payload = Bytes::copy_from_slice(fields["payload"].get().as_bytes());
        let endpoints = self.applications.lock().unwrap()[application].clone();
        for endpoint in endpoints {
            let delivery = || Delivery { message: message.to_owned(), payload: payload.clone() };
            let due = self.fault.as_deref().filter(|_| self.deliveries.fetch_add(1, Relaxed).is_multiple_of(1000));
            let deliveries = match due {
                Some("lose") => vec![],
                Some("duplicate") => vec![delivery(), delivery()],
                Some("rename") => vec![Delivery { message: "msg_other".to_owned(), ..delivery() }],
                Some("damage") => vec![Delivery { payload: Bytes::from_static(b"{}"), ..delivery() }],
                Some(_) | None => vec![delivery()],
            };
            for delivery in deliveries {
                endpoint.queue.send(delivery).await.ok().context("the lane is gone")?;
            }
        }
        Ok(())
    }

    fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:027}", self.next_id.fetch_add(1, Relaxed))
    }
}

impl Endpoint {
    fn open(id: String, url: Uri) -> Arc<Endpoint> {
        let (queue, mut deliveries) = mpsc::channel(QUEUE_MAX);
        let endpoint = Arc::new(Endpoint { id, queue, waiting: AtomicU64::new(0) });
        let lane = Arc::clone(&endpoint);
        let idle = Arc::new(Mutex::new(Vec::new()));
        let slots = Arc::new(Semaphore::new(10));
        tokio::spawn(async move {
            while let Some(delivery) = deliveries.recv().await {
                let slot = Arc::clone(&slots).acquire_owned().await;
                let (url, idle, lane) = (url.clone(), Arc::clone(&idle), Arc::clone(&lane));
                tokio::spawn(async move {
                    let _slot = slot;
                    if !attempt(&url, &idle, &delivery).await.unwrap_or(false) {
                        lane.waiting.fetch_add(1, Relaxed);
                        tokio::spawn(async move {
                            tokio::time::sleep(Duration::from_secs(5)).await;
                            attempt(&url, &idle, &delivery).await.ok();
                        });
                    }
                });
            }
        });
        endpoint
    }
}

async fn attempt(url: &Uri, idle: &Mutex<Vec<SendRequest<Full<Bytes>>>>, delivery: &Delivery) -> Result<bool> {
    let authority = url.authority().context("address")?.as_str();
    let kept = idle.lock().unwrap().pop();
    let mut sender = match kept {
        Some(sender) => sender,
        None => {
            let stream = TcpStream::connect(authority).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender
        }
    };
    let request = Request::post(url.path())
        .header("host", authority)
        .header("webhook-id", &delivery.message)
        .header("webhook-timestamp", "0")
        .header("webhook-signature", "v1,none")
        .body(Full::new(delivery.payload.clone()))?;
    sender.ready().await?;
    let response = tokio::time::timeout(Duration::from_secs(15), sender.send_request(request)).await??;
    let delivered = response.status().is_success();
    response.into_body().collect().await?;
    idle.lock().unwrap().push(sender);
    Ok(delivered)
}

/// Past it, a producer waits for its 202.
const QUEUE_MAX: usize = 2000;
