//! What can go wrong with TLS, and with HTTP/2 inside it.

use super::receiver::{Log, OK, Then, answer, hold, say};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use std::{io, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

#[derive(Clone, Debug)]
pub enum Secure {
    /// A certificate as it should be; then HTTP/1.1.
    Fine(Vec<u8>, Then),
    Expired,
    NotYetValid,
    WrongHost,
    SelfSigned,
    UnknownAuthority,
    /// Nobody is let in without a certificate of theirs.
    WantsCertificate,
    /// Reads the beginning of the handshake, says this, and then.
    NoHandshake(Vec<u8>, Then),
    /// The handshake succeeds, and the connection ends.
    CutAfterHandshake,
    Http2(Http2),
}

#[derive(Clone, Copy, Debug)]
pub enum Http2 {
    Fine,
    /// Refuses every stream, which invites a repetition.
    RefuseStream,
    ResetStream,
    /// Says farewell as soon as a request comes.
    GoAway,
    /// The body has no room, ever.
    NoWindow,
    /// No request may begin, ever.
    NoStreams,
    /// Says this, frame by frame, for as long as it is taken.
    Flood(&'static [u8]),
    /// Answers with bytes that are no frame.
    Garbage,
    /// A head of an answer, and its body never comes.
    NoBody,
}

impl Secure {
    pub fn host(&self) -> &'static str {
        match self {
            Self::WrongHost => "127.0.0.1",
            Self::Fine(..)
            | Self::Expired
            | Self::NotYetValid
            | Self::SelfSigned
            | Self::UnknownAuthority
            | Self::WantsCertificate
            | Self::NoHandshake(..)
            | Self::CutAfterHandshake
            | Self::Http2(_) => "localhost",
        }
    }
}

/// Whom the server under test trusts, and someone it does not know.
pub struct Authority {
    trusted: CertifiedIssuer<'static, KeyPair>,
    unknown: CertifiedIssuer<'static, KeyPair>,
}

struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Authority {
    pub fn new() -> Self {
        Self { trusted: issuer(), unknown: issuer() }
    }

    pub fn pem(&self) -> String {
        self.trusted.pem()
    }

    fn identity(&self, act: &Secure) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let signed = |params: CertificateParams, issuer: &CertifiedIssuer<'static, KeyPair>| {
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, issuer).expect("an issuer").der().clone();
            Identity { certificate, key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }
        };
        match act {
            Secure::Expired => {
                params.not_before = date_time_ymd(2019, 1, 1);
                params.not_after = date_time_ymd(2020, 1, 1);
                signed(params, &self.trusted)
            }
            Secure::NotYetValid => {
                params.not_before = date_time_ymd(2200, 1, 1);
                params.not_after = date_time_ymd(2201, 1, 1);
                signed(params, &self.trusted)
            }
            Secure::SelfSigned => {
                let key = KeyPair::generate().expect("a key");
                let certificate = params.self_signed(&key).expect("a key of its own").der().clone();
                Identity { certificate, key: PrivateKeyDer::Pkcs8(key.serialize_der().into()) }
            }
            Secure::UnknownAuthority => signed(params, &self.unknown),
            Secure::Fine(..)
            | Secure::WrongHost
            | Secure::WantsCertificate
            | Secure::NoHandshake(..)
            | Secure::CutAfterHandshake
            | Secure::Http2(_) => signed(params, &self.trusted),
        }
    }
}

fn issuer() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a key of its own")
}

pub async fn serve(listener: TcpListener, act: Secure, authority: Arc<Authority>, log: Arc<Log>) {
    let acceptor = acceptor(&authority, &act);
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (act, acceptor, log) = (act.clone(), acceptor.clone(), Arc::clone(&log));
        connections.spawn(async move { drop(play(stream, act, acceptor, &log).await) });
        while connections.try_join_next().is_some() {}
    }
}

fn acceptor(authority: &Authority, act: &Secure) -> TlsAcceptor {
    let identity = authority.identity(act);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = match act {
        Secure::WantsCertificate => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(authority.trusted.der().clone()).expect("a certificate of an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            verifier.build().expect("one authority at least")
        }
        Secure::Fine(..)
        | Secure::Expired
        | Secure::NotYetValid
        | Secure::WrongHost
        | Secure::SelfSigned
        | Secure::UnknownAuthority
        | Secure::NoHandshake(..)
        | Secure::CutAfterHandshake
        | Secure::Http2(_) => WebPkiClientVerifier::no_client_auth(),
    };
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions that the provider has")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![identity.certificate], identity.key)
        .expect("a key that fits");
    if let Secure::Http2(_) = act {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    TlsAcceptor::from(Arc::new(config))
}

async fn play(mut stream: TcpStream, act: Secure, acceptor: TlsAcceptor, log: &Log) -> io::Result<()> {
    if let Secure::NoHandshake(said, then) = act {
        stream.read_u8().await?;
        return say(&mut stream, &said, then).await;
    }
    let mut tls = acceptor.accept(stream).await?;
    match act {
        Secure::CutAfterHandshake => Ok(()),
        Secure::Http2(act) => play_http2(tls, act, log).await,
        Secure::Fine(said, then) => answer(&mut tls, &said, then, log).await,
        // Nobody should have come so far, and the log says so if one did.
        Secure::Expired
        | Secure::NotYetValid
        | Secure::WrongHost
        | Secure::SelfSigned
        | Secure::UnknownAuthority
        | Secure::WantsCertificate
        | Secure::NoHandshake(..) => answer(&mut tls, OK, Then::Hold, log).await,
    }
}

async fn play_http2(mut tls: TlsStream<TcpStream>, act: Http2, log: &Log) -> io::Result<()> {
    match act {
        Http2::Flood(frame) => {
            tls.write_all(SETTINGS).await?;
            return say(&mut tls, &[], Then::Repeat(frame)).await;
        }
        Http2::Garbage => return say(&mut tls, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Then::Hold).await,
        Http2::Fine
        | Http2::RefuseStream
        | Http2::ResetStream
        | Http2::GoAway
        | Http2::NoWindow
        | Http2::NoStreams
        | Http2::NoBody => {}
    }
    let mut builder = h2::server::Builder::new();
    if let Http2::NoWindow = act {
        builder.initial_window_size(0);
    }
    if let Http2::NoStreams = act {
        builder.max_concurrent_streams(0);
    }
    let mut connection = builder.handshake::<_, bytes::Bytes>(tls).await.map_err(io::Error::other)?;
    // What is not to end is kept.
    let mut kept = Vec::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let header = |name: &str| request.headers().get(name).and_then(|it| it.to_str().ok()).unwrap_or("").to_owned();
        log.note(&format!("webhook-id: {}\nwebhook-attempt: {}\n", header("webhook-id"), header("webhook-attempt")));
        match act {
            Http2::RefuseStream => respond.send_reset(h2::Reason::REFUSED_STREAM),
            Http2::ResetStream => respond.send_reset(h2::Reason::INTERNAL_ERROR),
            Http2::GoAway => connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM),
            Http2::Fine => drop(respond.send_response(http::Response::new(()), true)),
            Http2::NoBody => {
                let body = respond.send_response(http::Response::new(()), false);
                kept.push((request, respond, body.ok()));
            }
            Http2::NoWindow | Http2::NoStreams | Http2::Flood(_) | Http2::Garbage => {
                kept.push((request, respond, None))
            }
        }
    }
    hold().await
}

/// An empty frame of settings.
pub const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
pub const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
/// The head of a response that goes on, to be continued with nothing that would end it.
pub const HEADERS_WITHOUT_END: &[u8] = &[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x88];
/// More of an empty window, for the whole connection.
pub const WINDOW_UPDATE: &[u8] = &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// A warning that says nothing.
pub const TLS_WARNING: &[u8] = &[0x15, 3, 3, 0, 2, 1, 90];
pub const TLS_CHANGE_CIPHER: &[u8] = &[0x14, 3, 3, 0, 1, 1];
pub const TLS_HANDSHAKE_FAILURE: &[u8] = &[0x15, 3, 3, 0, 2, 2, 40];
pub const TLS_PROTOCOL_VERSION: &[u8] = &[0x15, 3, 1, 0, 2, 2, 70];

/// A server's first word in TLS 1.0.
pub fn tls_1_0_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 3, 1, 0, 42, 2, 0, 0, 38, 3, 1];
    hello.extend([7; 32]);
    hello.extend([0, 0, 0x2f, 0]);
    hello
}
