//! A receiver of webhooks for trying things out: takes a request, verifies it, and answers as told.
//!
//! It may stand on a machine that others can reach, so what one request can hold is bounded.

use crate::clock;
use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use postrider_engine::Timestamp;
use postrider_signature::{Signed, Verifier, VerifyError, VerifyingSecret};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};

/// Decides the answer to each arrival. An error ends the receiver.
pub trait Respond: Send + Sync + 'static {
    fn respond(&self, arrival: &Arrival) -> anyhow::Result<Reply>;
}

/// A request that came, before it is answered.
pub struct Arrival {
    pub at: Timestamp,
    pub path: String,
    /// As the headers say; anyone can write them.
    pub id: Option<String>,
    pub attempt: Option<String>,
    pub signature: Signature,
    pub body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    Good,
    Bad(VerifyError),
    /// There was no secret to verify it with.
    Unverified,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: StatusCode,
    pub delay: Duration,
}

/// Receives until `respond` fails; a shutdown is the caller's to race against it.
pub async fn run(listener: TcpListener, secrets: Vec<VerifyingSecret>, respond: impl Respond) -> anyhow::Result<()> {
    let verifier = if secrets.is_empty() { None } else { Some(Verifier::new(secrets)) };
    let receiver = Arc::new(Receiver { verifier, respond });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (failed, mut failure) = mpsc::channel(1);
    loop {
        let place = Arc::clone(&places).acquire_owned().await.context("the receiver is closed")?;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(error) = failure.recv() => return Err(error),
        };
        let Ok((stream, _)) = accepted else {
            // Out of file handles, mostly: wait until some come back.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (receiver, failed) = (Arc::clone(&receiver), failed.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| receiver.answer(request, &failed));
            // A connection that breaks concerns its sender alone.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME_MAX)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(place);
        });
    }
}

struct Receiver<R> {
    verifier: Option<Verifier>,
    respond: R,
}

impl<R: Respond> Receiver<R> {
    async fn answer(
        &self,
        request: Request<Incoming>,
        failed: &mpsc::Sender<anyhow::Error>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = match timeout(BODY_TIME_MAX, Limited::new(body, BODY_MAX).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE)),
            Ok(Err(_)) => return Ok(plain(StatusCode::BAD_REQUEST)),
            Err(_) => return Ok(plain(StatusCode::REQUEST_TIMEOUT)),
        };
        let at = clock::now();
        let arrival = Arrival {
            at,
            path: head.uri.path().to_owned(),
            id: text(&head.headers, "webhook-id").or_else(|| text(&head.headers, "svix-id")).map(str::to_owned),
            attempt: text(&head.headers, "webhook-attempt").map(str::to_owned),
            signature: self.check(&head.headers, &body, at),
            body,
        };
        match self.respond.respond(&arrival) {
            Ok(reply) => {
                sleep(reply.delay).await;
                Ok(plain(reply.status))
            }
            Err(error) => {
                let _ = failed.try_send(error);
                Ok(plain(StatusCode::SERVICE_UNAVAILABLE))
            }
        }
    }

    fn check(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Signature {
        let Some(verifier) = &self.verifier else { return Signature::Unverified };
        let verified = Signed::from_lookup(|name| text(headers, name))
            .and_then(|signed| verifier.verify(signed, body, now.as_millis() / 1000));
        match verified {
            Ok(()) => Signature::Good,
            Err(error) => Signature::Bad(error),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn plain(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

const CONNECTIONS_MAX: usize = 1024;
const HEAD_TIME_MAX: Duration = Duration::from_secs(60);
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
const BODY_MAX: usize = 16 * 1024 * 1024;
