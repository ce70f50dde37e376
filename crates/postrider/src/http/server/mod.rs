//! Our own accept loop, because the ready-made one has no limits.
//!
//! What a client can hold is counted and timed: connections in all and from one address, the time for a
//! request's head, the time between requests. Over a limit it is told so and let go. Running out of file
//! handles makes the loop wait, never spin.

mod activity;
mod connection;
mod crowd;
mod framing;

use super::guesses::Peer;
pub use activity::Stays;
use axum::{Router, middleware::map_response, response::Response};
use connection::attend;
use crowd::Crowd;
use http::{HeaderValue, header};
use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    /// From one address (of IPv6, one /64). Loopback is not counted.
    pub connections_per_address_max: usize,
    /// From the first byte of a request's head to its last.
    pub head_time_max: Duration,
    /// Between two requests, or before the first.
    pub idle_time_max: Duration,
    /// From the head to the answer.
    pub request_time_max: Duration,
    /// What running requests get to finish once we stop.
    pub drain_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address_max: 1_000,
            head_time_max: Duration::from_secs(10),
            idle_time_max: Duration::from_secs(60),
            request_time_max: Duration::from_secs(60),
            drain_time_max: Duration::from_secs(30),
        }
    }
}

/// Serves until `shutdown` completes, then finishes the requests that run and returns.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let router = if tls.is_some() { strictly(router) } else { router };
    let crowd = Arc::new(Crowd::new(limits));
    // Dropped at the end, which every connection notices; each holds a receiver, so that we see when all are gone.
    let (stopping, stop) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    let mut troubled = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => match crowd.admit(peer.ip()) {
                Some(place) => {
                    let peer = place.address.map(Peer);
                    let (router, stop, tls) = (router.clone(), stop.clone(), tls.clone());
                    tokio::spawn(async move {
                        let _ = stream.set_nodelay(true);
                        match tls {
                            None => attend(stream, peer, router, limits, stop).await,
                            // A handshake is the head of all heads.
                            Some(tls) => match timeout(limits.head_time_max, tls.accept(stream)).await {
                                Ok(Ok(stream)) => attend(stream, peer, router, limits, stop).await,
                                Ok(Err(fault)) => debug!(error = %fault, "a TLS handshake failed"),
                                Err(_) => debug!("a TLS handshake took too long"),
                            },
                        }
                        drop(place);
                    });
                }
                None => turn_away(&stream),
            },
            Err(fault) if is_of_one_connection(&fault) => continue,
            Err(fault) => {
                // Once for each time of trouble, which may last for minutes.
                if !std::mem::replace(&mut troubled, true) {
                    warn!(error = %fault, "no connection can be accepted; trying again until one can");
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        }
        troubled = false;
    }
    drop(listener);
    drop(stop);
    stopping.send_replace(());
    if timeout(limits.drain_time_max, stopping.closed()).await.is_err() {
        warn!("some requests did not finish in time and are cut off");
    }
}

/// Whoever has once come by TLS is told never to come without.
fn strictly(router: Router) -> Router {
    router.layer(map_response(|mut response: Response| async {
        let value = HeaderValue::from_static("max-age=31536000");
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, value);
        response
    }))
}

/// Says why, if the client's buffer takes it, and hangs up.
fn turn_away(stream: &TcpStream) {
    let _ = stream.try_write(TURNED_AWAY);
}

/// The fault of one connection that died before we took it, rather than of ours.
fn is_of_one_connection(fault: &io::Error) -> bool {
    matches!(
        fault.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 64\r\n\r\n{\"code\":\"unavailable\",\"detail\":\"Too many connections are open.\"}";
/// Time for the machine to get file handles back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
