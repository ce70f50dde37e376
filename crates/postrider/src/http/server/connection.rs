//! One connection, from its first byte to its last.

use super::{
    super::{error::Error, guesses::Peer},
    Limits,
    activity::{Activity, END_OF_HEAD, Running, Stays, Verdict, Watched},
    framing::Framing,
};
use axum::{Router, extract::Request, response::IntoResponse};
use http::header;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{oneshot, watch},
    time::{Instant, sleep_until, timeout},
};
use tower::Service;
use tracing::debug;

/// In the clear, or within TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Serves one connection to its end.
pub(super) async fn attend(
    stream: impl Stream,
    peer: Option<Peer>,
    router: Router,
    limits: Limits,
    stop: watch::Receiver<()>,
) {
    let activity = Arc::new(Activity::new());
    let (back, mut given_back) = oneshot::channel();
    let watched = Watched {
        stream: Some(stream),
        activity: activity.clone(),
        framing: Framing::new(),
        ending: END_OF_HEAD,
        back: Some(back),
    };
    converse(watched, peer, activity.clone(), router, limits, stop).await;
    if activity.refused.load(Relaxed)
        && let Ok(stream) = given_back.try_recv()
    {
        let _ = timeout(LINGER_TIME_MAX, linger(stream)).await;
    }
}

/// Lets the client read why it was refused. To close while its bytes lie unread would reset the
/// connection, and a reset takes our last words with it.
async fn linger(mut stream: impl Stream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut scrap = vec![0; 16 * 1024];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        match stream.read(&mut scrap).await? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

/// Serves requests until the client ends it, dawdles or we are told to stop.
async fn converse(
    watched: Watched<impl Stream>,
    peer: Option<Peer>,
    activity: Arc<Activity>,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<()>,
) {
    let io = TokioIo::new(watched);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let running = Running::begin(activity.clone(), request.version());
        let (mut router, refused) = (router.clone(), activity.clone());
        async move {
            let response = timeout(limits.request_time_max, router.call(Request::new_body(request))).await;
            Ok::<_, Infallible>(match response {
                Ok(Ok(mut response)) => {
                    if let Some(stays) = response.extensions_mut().remove::<Stays>() {
                        stays.hold(running);
                    }
                    if response.headers().contains_key(header::CONNECTION) {
                        refused.refused.store(true, Relaxed);
                    }
                    response
                }
                Ok(Err(never)) => match never {},
                Err(_) => Error::Unavailable { retry_after: Duration::from_secs(1) }.into_response(),
            })
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // The head is timed by `Activity`: hyper's own limit would count the pause between requests as well.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(limits.idle_time_max / 2)
        .keep_alive_timeout(limits.head_time_max);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut check = pin!(sleep_until(activity.next_check(&limits)));
    let mut end_by = None;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(fault) = ended {
                    let unreadable = fault.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
                    activity.refused.store(unreadable, Relaxed);
                    debug!(error = %fault, "a connection broke");
                }
                return;
            }
            _ = stop.changed(), if end_by.is_none() => {
                connection.as_mut().graceful_shutdown();
                end_by = Some(Instant::now() + limits.drain_time_max);
                check.as_mut().reset(Instant::now() + limits.head_time_max);
            }
            () = check.as_mut() => {
                let now = Instant::now();
                if end_by.is_some_and(|end| end <= now) {
                    return;
                }
                match activity.judge(now, &limits) {
                    Verdict::Fine => {}
                    Verdict::HeadTooSlow => return,
                    Verdict::Idle if end_by.is_some() => return,
                    Verdict::Idle => {
                        connection.as_mut().graceful_shutdown();
                        end_by = Some(now + CLOSING_TIME_MAX);
                    }
                }
                let next = activity.next_check(&limits).max(now + Duration::from_millis(100));
                check.as_mut().reset(end_by.map_or(next, |end| end.min(next)));
            }
        }
    }
}

/// hyper's request in the form that axum's router takes.
trait IntoAxum {
    fn new_body(request: hyper::Request<Incoming>) -> Request;
}

impl IntoAxum for Request {
    fn new_body(request: hyper::Request<Incoming>) -> Request {
        request.map(axum::body::Body::new)
    }
}

/// What a connection gets to say goodbye.
const CLOSING_TIME_MAX: Duration = Duration::from_secs(5);
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 1024 * 1024;
const HEAD_BYTES_MAX: usize = 64 * 1024;
const HTTP2_STREAMS_MAX: u32 = 256;
