//! Client certificates and private authorities, against real servers: shown to whom they are meant for, and to nobody else.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use postrider::transport::{
    AddressGuard, ClientTls, ConnectionUse, EndpointUrl, Exchange, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::{Fault, Outcome, TlsFault, outcome::Timeouts};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{RootCertStore, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

#[tokio::test]
async fn a_receiver_that_wants_a_certificate_is_shown_the_endpoints() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for protocol in [&b"h2"[..], b"http/1.1"] {
            let world = World::new();
            let receiver = world.receiver(Clients::OfOurs, protocol, version, None).await;
            let us = world.identity(&world.ours, "us");
            let shown = post(&world.transport, &receiver.url(), Some(&us)).await;
            assert_eq!(answer(&shown), Some((200, "us")), "{version:?}: {:?}", shown.detail);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_none_or_another_is_told_so() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let world = World::new();
        let receiver = world.receiver(Clients::OfOurs, b"http/1.1", version, None).await;
        let strange = world.identity(&world.strange, "us");
        let mut expired = params("us");
        expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let expired = world.identity_of(&world.ours, expired);
        for (shown, words) in
            [(None, "client certificate"), (Some(&strange), "did not accept"), (Some(&expired), "expired")]
        {
            // Often: the receiver hangs up while we write, and what it said must be found all the same.
            for _ in 0..50 {
                let refused = post(&world.transport, &receiver.url(), shown).await;
                let detail = refused.detail.expect("a reason");
                let expected = Outcome::Failed(Fault::Tls(TlsFault::Handshake));
                assert_eq!(refused.outcome, expected, "{version:?} {words}: {detail}");
                // TLS 1.2 has no word of its own for it.
                let is_bare = shown.is_none() && version.version == rustls::ProtocolVersion::TLSv1_2;
                assert!(detail.contains(words) || is_bare, "{version:?}: {detail}");
            }
        }
        assert_eq!(receiver.requests(), 0);
    }
}

/// The heart of it: a connection that was opened as one must not carry the requests of another.
#[tokio::test]
async fn connections_are_not_shared_between_those_who_show_different_certificates() {
    for protocol in [&b"h2"[..], b"http/1.1"] {
        let world = World::new();
        let receiver = world.receiver(Clients::OfOursOrNone, protocol, &rustls::version::TLS13, None).await;
        let (one, two) = (world.identity(&world.ours, "one"), world.identity(&world.ours, "two"));
        let ca_only = ClientTls::load(None, Some(&world.ours.pem())).unwrap();
        for round in 0..3 {
            for (tls, name) in [(None, "-"), (Some(&one), "one"), (Some(&two), "two"), (Some(&ca_only), "-")] {
                let exchange = post(&world.transport, &receiver.url(), tls).await;
                assert_eq!(answer(&exchange), Some((200, name)), "{:?}", exchange.detail);
                let expected = if round == 0 { ConnectionUse::Fresh } else { ConnectionUse::Reused };
                assert_eq!(exchange.connection, expected, "{name} in round {round}");
            }
        }
        assert_eq!(receiver.connections(), 4);
    }
}

#[tokio::test]
async fn an_authority_of_its_own_takes_the_place_of_the_usual_ones() {
    let world = World::new();
    // The transport trusts `ours`; the endpoint says that only `strange` may have signed its certificate.
    let receiver = world.receiver(Clients::OfOursOrNone, b"http/1.1", &rustls::version::TLS13, None).await;
    let theirs = ClientTls::load(None, Some(&world.strange.pem())).unwrap();
    let refused = post(&world.transport, &receiver.url(), Some(&theirs)).await;
    assert_eq!(refused.outcome, Outcome::Failed(Fault::Tls(TlsFault::UnknownIssuer)), "{:?}", refused.detail);
    let ours = ClientTls::load(None, Some(&world.ours.pem())).unwrap();
    let untrusting = Transport::new(TransportConfig::new(guard())).unwrap();
    let unknown = post(&untrusting, &receiver.url(), None).await;
    assert_eq!(unknown.outcome, Outcome::Failed(Fault::Tls(TlsFault::UnknownIssuer)));
    assert_eq!(answer(&post(&untrusting, &receiver.url(), Some(&ours)).await), Some((200, "-")));
}

#[tokio::test]
async fn nothing_goes_out_in_the_clear_where_a_certificate_is_to_be_shown() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = url(&format!("http://127.0.0.1:{}/", listener.local_addr().unwrap().port()));
    let us = world.identity(&world.ours, "us");
    let refused = post(&world.transport, &url, Some(&us)).await;
    assert_eq!(refused.outcome, Outcome::Failed(Fault::Tls(TlsFault::Handshake)));
    assert!(refused.detail.unwrap().contains("plain http"));
    let came = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(came.is_err(), "it was not even dialled");
}

#[tokio::test]
async fn a_redirect_to_another_origin_gets_neither_certificate_nor_credentials() {
    let world = World::new();
    let other = world.receiver(Clients::OfOursOrNone, b"http/1.1", &rustls::version::TLS13, None).await;
    let led_to = Some(other.url().to_string());
    let receiver = world.receiver(Clients::OfOurs, b"http/1.1", &rustls::version::TLS13, led_to).await;
    let us = world.identity(&world.ours, "us");
    let followed = post(&world.transport, &receiver.url(), Some(&us)).await;
    assert_eq!(answer(&followed), Some((200, "-")), "{:?}", followed.detail);
    assert_eq!((receiver.requests(), other.requests()), (1, 1));
    assert_eq!((receiver.credentials(), other.credentials()), (1, 0));

    // On the same origin both go along.
    let receiver = world.receiver(Clients::OfOurs, b"http/1.1", &rustls::version::TLS13, Some("/next".into())).await;
    let followed = post(&world.transport, &receiver.url(), Some(&us)).await;
    assert_eq!(answer(&followed), Some((200, "us")), "{:?}", followed.detail);
    assert_eq!((receiver.requests(), receiver.credentials()), (2, 2));
}

#[tokio::test]
async fn old_versions_of_tls_are_not_spoken() {
    // What a server says that knows nothing newer than TLS 1.0 or 1.1: its hello, or an alert.
    let hello = |minor: u8| {
        let mut hello = vec![0x16, 3, minor, 0, 42, 2, 0, 0, 38, 3, minor];
        hello.extend([7; 32]);
        hello.extend([0, 0, 0x2f, 0]);
        hello
    };
    let alert = vec![0x15, 3, 1, 0, 2, 2, 70];
    for said in [hello(1), hello(2), alert] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url(&format!("https://localhost:{}/", listener.local_addr().unwrap().port()));
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).await.unwrap();
            stream.write_all(&said).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let refused = post(&World::new().transport, &url, None).await;
        assert_eq!(refused.outcome, Outcome::Failed(Fault::Tls(TlsFault::Handshake)), "{:?}", refused.detail);
        let detail = refused.detail.unwrap();
        assert!(detail.contains("neither TLS 1.2 nor 1.3"), "{detail}");
    }
}

struct World {
    ours: CertifiedIssuer<'static, KeyPair>,
    strange: CertifiedIssuer<'static, KeyPair>,
    transport: Transport,
}

#[derive(Clone, Copy)]
enum Clients {
    OfOurs,
    OfOursOrNone,
}

impl World {
    /// Whose transport trusts `ours`.
    fn new() -> Self {
        let (ours, strange) = (authority("ours"), authority("strange"));
        let mut config = TransportConfig::new(guard());
        config.extra_ca_pem = Some(ours.pem().into_bytes());
        Self { ours, strange, transport: Transport::new(config).unwrap() }
    }

    fn identity(&self, issuer: &CertifiedIssuer<'static, KeyPair>, name: &str) -> ClientTls {
        self.identity_of(issuer, params(name))
    }

    fn identity_of(&self, issuer: &CertifiedIssuer<'static, KeyPair>, params: CertificateParams) -> ClientTls {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        ClientTls::load(Some(&format!("{}{}", certificate.pem(), key.serialize_pem())), None).unwrap()
    }

    /// Says whose certificate it was shown, and which credentials.
    async fn receiver(
        &self,
        clients: Clients,
        protocol: &[u8],
        version: &'static rustls::SupportedProtocolVersion,
        redirect: Option<String>,
    ) -> Receiver {
        let mut roots = RootCertStore::empty();
        roots.add(self.ours.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = match clients {
            Clients::OfOurs => verifier,
            Clients::OfOursOrNone => verifier.allow_unauthenticated(),
        };
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, &self.ours).unwrap().der().clone();
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        Receiver::start(TlsAcceptor::from(Arc::new(config)), redirect).await
    }
}

struct Receiver {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    /// Requests that came with an `Authorization` header.
    credentials: Arc<AtomicUsize>,
}

impl Receiver {
    async fn start(acceptor: TlsAcceptor, redirect: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let [connections, requests, credentials] = [(); 3].map(|()| Arc::<AtomicUsize>::default());
        let counts = [&connections, &requests, &credentials].map(Arc::clone);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, redirect) = (acceptor.clone(), redirect.clone());
                let [connections, requests, credentials] = counts.each_ref().map(Arc::clone);
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(stream).await else { return };
                    connections.fetch_add(1, SeqCst);
                    let name =
                        tls.get_ref().1.peer_certificates().map_or("-".to_owned(), |chain| common_name(&chain[0]));
                    let service = service_fn(|request: http::Request<Incoming>| {
                        requests.fetch_add(1, SeqCst);
                        let has_credentials = request.headers().contains_key(header::AUTHORIZATION);
                        credentials.fetch_add(usize::from(has_credentials), SeqCst);
                        say(request, name.clone(), redirect.clone())
                    });
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(tls), service)
                        .await;
                });
            }
        });
        Self { address, connections, requests, credentials }
    }

    fn url(&self) -> EndpointUrl {
        url(&format!("https://localhost:{}/", self.address.port()))
    }

    fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    fn credentials(&self) -> usize {
        self.credentials.load(SeqCst)
    }
}

async fn say(
    request: http::Request<Incoming>,
    name: String,
    redirect: Option<String>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_led_on = request.uri().path() == "/" && redirect.is_some();
    request.into_body().collect().await.unwrap();
    let mut response = Response::new(Full::new(Bytes::from(name)));
    if let Some(place) = redirect.filter(|_| is_led_on) {
        *response.status_mut() = http::StatusCode::TEMPORARY_REDIRECT;
        response.headers_mut().insert(header::LOCATION, place.parse().unwrap());
    }
    Ok(response)
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn common_name(der: &[u8]) -> String {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).unwrap();
    let name = certificate.subject().iter_common_name().next().unwrap();
    name.as_str().unwrap().to_owned()
}

fn guard() -> AddressGuard {
    AddressGuard::new(vec!["127.0.0.0/8".parse().unwrap()])
}

fn url(text: &str) -> EndpointUrl {
    EndpointUrl::parse(text, &UrlRules { https_only: false, guard: &guard() }).unwrap()
}

async fn post(transport: &Transport, url: &EndpointUrl, tls: Option<&ClientTls>) -> Exchange {
    let limit = Duration::from_secs(5);
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
    headers.insert("webhook-id", HeaderValue::from_static("msg_1"));
    transport
        .post(Request {
            url,
            headers: &|| headers.clone(),
            body: Bytes::from_static(b"{}"),
            timeouts: Timeouts { connect: limit, first_byte: limit, total: limit },
            redirects_max: 2,
            kept_across_hosts: &[HeaderName::from_static("webhook-id")],
            tls,
        })
        .await
}

fn answer(exchange: &Exchange) -> Option<(u16, &str)> {
    match &exchange.outcome {
        Outcome::Answered(answer) => Some((answer.status, std::str::from_utf8(&exchange.body).unwrap())),
        Outcome::Failed(_) => None,
    }
}
