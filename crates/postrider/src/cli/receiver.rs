//! A receiver of webhooks for trying things out: takes a request, verifies it, and answers as told.
//!
//! It may stand on a machine that others can reach, so what one request can hold is bounded.

use crate::clock;
use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use postrider_engine::Timestamp;
use postrider_signature::{Signed, Verifier, VerifyError, VerifyingSecret};
use socket2::SockRef;
use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, mpsc},
    time::{sleep, timeout},
};

/// Decides the answer to each arrival. An error ends the receiver.
pub trait Respond: Send + Sync + 'static {
    fn respond(&self, arrival: &Arrival) -> anyhow::Result<Reply>;
}

/// A request that came, before it is answered.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at: Timestamp,
    pub path: String,
    pub headers: HeaderMap,
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

#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Before anything is done.
    pub delay: Duration,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Whole {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    },
    /// A head, and then a byte now and then, for as long as the sender listens.
    Drip {
        status: StatusCode,
        every: Duration,
    },
    /// Nothing, until the sender gives up.
    None,
    /// Nothing, and the connection is broken off.
    Reset,
}

impl Reply {
    pub fn status(status: StatusCode) -> Self {
        let answer = Answer::Whole { status, headers: HeaderMap::new(), body: Bytes::new() };
        Self { delay: Duration::ZERO, answer }
    }

    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
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
            receiver.attend(stream, &failed).await;
            drop(place);
        });
    }
}

struct Receiver<R> {
    verifier: Option<Verifier>,
    respond: R,
}

impl<R: Respond> Receiver<R> {
    async fn attend(&self, stream: TcpStream, failed: &mpsc::Sender<anyhow::Error>) {
        // Broken off with a reset only if told to: otherwise a last answer could be lost with it.
        let broken_off = Notify::new();
        let service = service_fn(|request| self.answer(request, failed, &broken_off));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = Some(connection);
        let served = poll_fn(|context| match &mut connection {
            Some(connection) => Pin::new(connection).poll(context),
            None => Poll::Pending,
        });
        tokio::select! {
            // A connection that breaks concerns its sender alone.
            _ = served => return,
            () = broken_off.notified() => {}
        }
        if let Some(connection) = connection {
            let stream = connection.into_parts().io.into_inner();
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        failed: &mpsc::Sender<anyhow::Error>,
        broken_off: &Notify,
    ) -> Result<Response<Body>, Infallible> {
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
            headers: head.headers,
            body,
        };
        let Reply { delay, answer } = match self.respond.respond(&arrival) {
            Ok(reply) => reply,
            Err(error) => {
                let _ = failed.try_send(error);
                return Ok(plain(StatusCode::SERVICE_UNAVAILABLE));
            }
        };
        sleep(delay).await;
        match answer {
            Answer::Whole { status, headers, body } => {
                let mut response = plain(status);
                *response.headers_mut() = headers;
                *response.body_mut() = Full::new(body).boxed_unsync();
                Ok(response)
            }
            Answer::Drip { status, every } => {
                let mut response = plain(status);
                *response.body_mut() = drip(every);
                Ok(response)
            }
            Answer::None => pending().await,
            Answer::Reset => {
                broken_off.notify_one();
                pending().await
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

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn drip(every: Duration) -> Body {
    let drops = futures_util::stream::unfold(every, async |every| {
        sleep(every).await;
        Some((Ok(Frame::data(Bytes::from_static(b"."))), every))
    });
    StreamBody::new(drops).boxed_unsync()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.status_mut() = status;
    response
}

const CONNECTIONS_MAX: usize = 1024;
const HEAD_TIME_MAX: Duration = Duration::from_secs(60);
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
const BODY_MAX: usize = 16 * 1024 * 1024;
