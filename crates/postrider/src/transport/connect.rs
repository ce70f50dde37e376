//! From a destination to an open stream: vetted address, TCP, TLS.
//!
//! Only addresses that the guard saw are dialled, and the peer is compared with the one we meant, so a
//! name that changes its answer between lookup and connect gains nothing. Proxies from the environment are
//! ignored: they would dial for us, unvetted. One that the settings name is told vetted addresses only.

use super::client_tls::ClientTls;
use super::failure::Failure;
use super::proxy::EgressProxy;
use super::resolve::Resolver;
use super::url::Destination;
use postrider_store::step;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(super) struct Connector {
    resolver: Resolver,
    tls: TlsConnector,
    /// Whom we trust where an endpoint does not say otherwise.
    roots: Arc<RootCertStore>,
    proxy: Option<EgressProxy>,
}

pub(super) struct Link {
    pub stream: Stream,
    pub protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

#[derive(Debug, thiserror::Error)]
pub enum ExtraCaError {
    #[error("the extra certificate authorities are not readable as PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("an extra certificate authority cannot be used")]
    Certificate(#[source] rustls::Error),
    #[error("the extra certificate authorities hold no certificate")]
    Empty,
}

impl Connector {
    pub fn new(
        resolver: Resolver,
        extra_ca_pem: Option<&[u8]>,
        proxy: Option<EgressProxy>,
    ) -> Result<Self, ExtraCaError> {
        let roots = Arc::new(trusted(extra_ca_pem)?);
        Ok(Self { resolver, tls: tls_connector(Arc::clone(&roots), None), roots, proxy })
    }

    pub async fn open(&self, destination: &Destination, client: Option<&ClientTls>) -> Result<Link, Failure> {
        if client.is_some() && destination.tls.is_none() {
            return Err(Failure::unprotected());
        }
        step!("send.connecting");
        let addresses = self.resolver.vetted(&destination.host, destination.port).await?;
        let tcp = match &self.proxy {
            None => dial_first(&addresses).await?,
            Some(proxy) => proxy.tunnel(&addresses).await?,
        };
        let Some(name) = &destination.tls else {
            return Ok(Link { stream: Stream::Plain(tcp), protocol: Protocol::Http1 });
        };
        let connector = match client {
            None => &self.tls,
            Some(client) => client.connector(|client| {
                let roots = Arc::clone(client.roots().unwrap_or(&self.roots));
                tls_connector(roots, Some(client))
            }),
        };
        let tls = connector.connect(name.clone(), tcp).await.map_err(|error| Failure::from_io(&error))?;
        let protocol = match tls.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok(Link { stream: Stream::Tls(Box::new(tls)), protocol })
    }
}

/// One after the other, each with a head start, the first to connect wins: one dead address of several
/// must not cost the whole connect timeout.
async fn dial_first(addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    if let [only] = addresses {
        return dial(*only).await;
    }
    let mut waiting = addresses.iter().copied().take(DIALS_MAX);
    let mut dialling = JoinSet::new();
    let mut failed: Option<Failure> = None;
    loop {
        match waiting.next() {
            Some(address) => drop(dialling.spawn(dial(address))),
            None if dialling.is_empty() => return Err(failed.unwrap_or_else(Failure::reset)),
            None => {}
        }
        let landed = if waiting.len() == 0 {
            dialling.join_next().await
        } else {
            timeout(HEAD_START, dialling.join_next()).await.ok().flatten()
        };
        match landed {
            Some(Ok(Ok(stream))) => return Ok(stream),
            Some(Ok(Err(failure))) => {
                if failed.as_ref().is_none_or(|known| known.weight() < failure.weight()) {
                    failed = Some(failure);
                }
            }
            Some(Err(_)) | None => {}
        }
    }
}

pub(super) async fn dial(address: SocketAddr) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(address).await.map_err(|error| {
        // On IPv6 this says that the machine has no IPv6; on IPv4, that its ports are used up.
        if error.kind() == io::ErrorKind::AddrNotAvailable && address.is_ipv4() {
            Failure::local_shortage()
        } else {
            Failure::from_io(&error)
        }
    })?;
    let settled = stream.peer_addr().and_then(|peer| {
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
        Ok(peer)
    });
    match settled {
        Ok(peer) if peer == address => Ok(stream),
        Ok(_) => Err(Failure::forbidden()),
        Err(error) => Err(Failure::from_io(&error)),
    }
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5)).with_retries(3)
}

pub(crate) fn trusted(extra_ca_pem: Option<&[u8]>) -> Result<RootCertStore, ExtraCaError> {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(pem) = extra_ca_pem {
        let known = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(ExtraCaError::Pem)?).map_err(ExtraCaError::Certificate)?;
        }
        if roots.len() == known {
            return Err(ExtraCaError::Empty);
        }
    }
    Ok(roots)
}

/// Each has a memory of its own for sessions that can be resumed: one that began with a certificate goes on only with that.
fn tls_connector(roots: Arc<RootCertStore>, client: Option<&ClientTls>) -> TlsConnector {
    // Named here rather than taken from the process: whoever else links rustls cannot change it.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("aws-lc-rs has cipher suites for both versions")
        .with_root_certificates(roots);
    let mut config = match client.and_then(ClientTls::resolver) {
        None => config.with_no_client_auth(),
        Some(resolver) => config.with_client_cert_resolver(resolver),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}

impl Stream {
    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Unpin + Send)> {
        match self {
            Stream::Plain(tcp) => Pin::new(tcp),
            Stream::Tls(tls) => Pin::new(tls),
        }
    }

    /// Whoever does not want our certificate says so after the handshake in TLS 1.3, and hangs up. If we were about to write
    /// by then, what it said lies unread, and it tells more than that we cannot write.
    fn or_last_words<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let (Poll::Ready(Err(_)), Stream::Tls(tls)) = (&polled, self) else { return polled };
        match last_words(tls) {
            Some(said) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, said))),
            None => polled,
        }
    }
}

/// Read past the runtime, which does not know yet that there is something to read.
fn last_words(tls: &mut TlsStream<TcpStream>) -> Option<rustls::Error> {
    let (tcp, session) = tls.get_mut();
    let socket = SockRef::from(&*tcp);
    for _ in 0..LAST_READS_MAX {
        session.read_tls(&mut &*socket).ok().filter(|read| *read > 0)?;
        if let Err(said) = session.process_new_packets() {
            return Some(said);
        }
    }
    None
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let mut write = stream.writer();
        step!("send.half_written", write.as_mut().poll_write(cx, &buf[..buf.len() / 2]));
        let polled = write.poll_write(cx, buf);
        step!("send.written");
        stream.or_last_words(polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let mut write = stream.writer();
        step!("send.half_written", write.as_mut().poll_write(cx, &bufs[0][..bufs[0].len() / 2]));
        let polled = write.poll_write_vectored(cx, bufs);
        step!("send.written");
        stream.or_last_words(polled)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(tcp) => tcp.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let polled = stream.writer().poll_flush(cx);
        stream.or_last_words(polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// Tickets for later sessions may come before it.
const LAST_READS_MAX: usize = 8;

/// As RFC 8305 recommends.
const HEAD_START: Duration = Duration::from_millis(250);

/// A name may have a thousand addresses. All are vetted; so many are tried.
const DIALS_MAX: usize = 8;
