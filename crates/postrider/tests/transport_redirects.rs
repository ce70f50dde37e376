//! A redirect is followed as far as the endpoint allows, and never where a first URL could not lead.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use postrider::transport::{
    AddressGuard, EndpointUrl, Exchange, REDIRECTS_MAX, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Answer, Control, Fault, Outcome};
use rustls::pki_types::PrivateKeyDer;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

#[tokio::test]
async fn a_redirect_is_followed_only_if_the_endpoint_asked_for_it() {
    for (redirects_max, expected) in [(0, 307), (1, 200), (5, 200)] {
        let receiver = Receiver::start(|path| match path {
            "/hooks" => redirect(307, "/new"),
            _ => OK.into(),
        });
        let receiver = receiver.await;
        let exchange = Post { redirects_max, ..Post::default() }.to(&receiver.url("/hooks")).await;
        assert_eq!(answer(&exchange).status, expected, "{redirects_max} redirects");
        assert!(!answer(&exchange).redirect_refused);
        assert_eq!(exchange.detail, None);
        assert_eq!(exchange.final_url, (expected == 200).then(|| receiver.text("/new")));
        assert_eq!(receiver.paths(), if expected == 200 { vec!["/hooks", "/new"] } else { vec!["/hooks"] });
    }
}

#[tokio::test]
async fn only_307_and_308_are_followed() {
    for (status, followed) in
        [(300, false), (301, false), (302, false), (303, false), (304, false), (305, false), (307, true), (308, true)]
    {
        let receiver = Receiver::start(move |path| match path {
            "/hooks" => redirect(status, "/new"),
            _ => OK.into(),
        });
        let receiver = receiver.await;
        let exchange = Post::default().to(&receiver.url("/hooks")).await;
        let answer = answer(&exchange);
        if followed {
            assert_eq!((answer.status, receiver.paths().len()), (200, 2), "{status}");
        } else {
            assert_eq!((answer.status, receiver.paths().len()), (status, 1));
            assert_eq!(answer.location.as_deref(), Some("/new"), "{status}");
        }
        assert!(!answer.redirect_refused, "{status}");
    }
}

#[tokio::test]
async fn every_hop_gets_the_same_method_and_the_same_bytes() {
    let body: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    let last = Receiver::start(|_| OK.into()).await;
    let onward = last.text("/last");
    let first = Receiver::start(move |path| match path {
        "/hooks" => redirect(307, "/middle"),
        _ => redirect(308, &onward),
    });
    let first = first.await;
    let post = Post { body: Bytes::from(body.clone()), ..Post::default() };
    let exchange = post.to(&first.url("/hooks")).await;
    assert_eq!(answer(&exchange).status, 200, "{exchange:?}");
    let heard = [first.heard(), last.heard()].concat();
    assert_eq!(heard.len(), 3);
    for request in heard {
        assert_eq!(request.method, "POST", "{}", request.path);
        assert!(request.body == body, "{}", request.path);
    }
}

#[tokio::test]
async fn a_relative_location_starts_from_the_last_url() {
    let receiver = Receiver::start(|path| match path {
        "/a/b?c=d" => redirect(307, "x/y?token=1"),
        "/a/x/y?token=1" => redirect(307, "../z"),
        "/a/z" => redirect(307, "?q"),
        "/a/z?q" => redirect(307, "/end?token=2#part"),
        _ => OK.into(),
    });
    let receiver = receiver.await;
    let exchange = Post::default().to(&receiver.url("/a/b?c=d")).await;
    assert_eq!(answer(&exchange).status, 200, "{exchange:?}");
    assert_eq!(receiver.paths(), ["/a/b?c=d", "/a/x/y?token=1", "/a/z", "/a/z?q", "/end?token=2"]);
    assert_eq!(exchange.final_url, Some(receiver.text("/end")), "no query");
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn more_redirects_than_allowed_end_at_the_last_one() {
    for (redirects_max, followed) in [(1, 1), (4, 4), (5, 5), (6, 5), (u8::MAX, 5)] {
        let receiver = Receiver::start(|path| {
            let nth: u32 = path[1..].parse().unwrap();
            redirect(308, &format!("/{}", nth + 1))
        });
        let receiver = receiver.await;
        let exchange = Post { redirects_max, ..Post::default() }.to(&receiver.url("/0")).await;
        assert_eq!(receiver.paths().len(), 1 + followed, "{redirects_max} allowed");
        let answer = answer(&exchange);
        assert_eq!((answer.status, answer.redirect_refused), (308, true));
        assert_eq!(answer.location, Some(format!("/{}", followed + 1)));
        assert_eq!(exchange.final_url, Some(receiver.text(&format!("/{followed}"))));
        assert!(exchange.detail.unwrap().contains(&format!("one more than the {followed}")));
    }
}

#[tokio::test]
async fn a_loop_is_left_at_once() {
    for (paths, back) in
        [(&["/a"][..], "/a"), (&["/a"], ""), (&["/a"], "#x"), (&["/a", "/b"], "/a"), (&["/a", "/b"], "/b")]
    {
        let onward: Vec<&str> = paths.iter().skip(1).copied().chain([back]).collect();
        let receiver = Receiver::start(move |path| {
            let nth = paths.iter().position(|known| *known == path).unwrap();
            redirect(307, onward[nth])
        });
        let receiver = receiver.await;
        let exchange = Post::default().to(&receiver.url("/a")).await;
        assert!(answer(&exchange).redirect_refused, "{paths:?} and back to {back:?}");
        assert_eq!(receiver.paths(), paths);
        assert!(exchange.detail.unwrap().contains("called before"));
    }
}

#[tokio::test]
async fn a_redirect_to_nowhere_we_call_is_the_answer() {
    let target = Receiver::start(|_| OK.into()).await;
    let port = target.address.port();
    for head in [
        String::new(),
        "location: http://\r\n".into(),
        "location: http://a b/\r\n".into(),
        "location: file:///etc/passwd\r\n".into(),
        "location: http://10.0.0.1/\r\n".into(),
        "location: http://[::1]/\r\n".into(),
        "location: http://0x7f.0.0.2/\r\n".into(),
        "location: //169.254.169.254/latest/meta-data\r\n".into(),
        "location: http://127.0.0.1:22/\r\n".into(),
        format!("location: http://me:secret@127.0.0.1:{port}/\r\n"),
        format!("location: http://127.0.0.1:{port}/{}\r\n", "a".repeat(2048)),
        format!("location: http://127.0.0.1:{port}/\r\nlocation: http://127.0.0.1:{port}/\r\n"),
    ] {
        let said = format!("HTTP/1.1 307 Go\r\n{head}content-length: 4\r\n\r\nmove");
        let receiver = Receiver::start(move |_| said.clone().into()).await;
        let exchange = Post::default().to(&receiver.url("/hooks")).await;
        let answer = answer(&exchange);
        assert_eq!((answer.status, answer.redirect_refused), (307, true), "{head}");
        let location = head.lines().next().map(|line| line.trim_start_matches("location: "));
        let shown = location.map(|text| text.chars().take(2048).collect());
        assert_eq!(answer.location, shown, "{head}");
        assert_eq!(exchange.body, "move", "{head}");
        assert_eq!(exchange.final_url, None, "{head}");
        assert!(exchange.detail.as_deref().unwrap().starts_with("the redirect was not followed"), "{head}");
        assert_eq!(receiver.paths().len(), 1, "{head}");
    }
    assert!(target.was_left_alone().await);
}

#[tokio::test]
async fn bytes_that_are_no_text_lead_nowhere() {
    let said = b"HTTP/1.1 307 Go\r\nlocation: /\xff\xfe\r\ncontent-length: 0\r\n\r\n";
    let receiver = Receiver::start(|_| said.to_vec()).await;
    let exchange = Post::default().to(&receiver.url("/hooks")).await;
    assert!(answer(&exchange).redirect_refused);
    assert_eq!(receiver.paths().len(), 1);
}

#[tokio::test]
async fn a_redirect_to_a_forbidden_address_makes_no_connection() {
    // This server may call 127.0.0.1 and nothing else of the loopback.
    let inside = Receiver::bound_to("127.0.0.2:0", None, |_| OK.into()).await;
    let onward = inside.text("/admin");
    let receiver = Receiver::start(move |path| match path {
        "/hooks" => redirect(307, "/hop"),
        _ => redirect(307, &onward),
    });
    let receiver = receiver.await;
    let exchange = Post::default().to(&receiver.url("/hooks")).await;
    let answer = answer(&exchange);
    assert_eq!((answer.status, answer.redirect_refused), (307, true), "{exchange:?}");
    assert_eq!(answer.location, Some(inside.text("/admin")));
    assert_eq!(exchange.final_url, Some(receiver.text("/hop")));
    assert!(!exchange.detail.unwrap().contains("127"));
    assert!(inside.was_left_alone().await);
}

#[tokio::test]
async fn https_never_falls_to_http() {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let plain = Receiver::start(|_| OK.into()).await;
    let onward = plain.text("/plain");
    let secure = Receiver::bound_to("127.0.0.1:0", Some(acceptor(&identity)), move |path| match path {
        "/hooks" => redirect(307, "/still-secure"),
        _ => redirect(307, &onward),
    });
    let secure = secure.await;
    let post = Post { extra_ca_pem: Some(identity.cert.pem().into()), ..Post::default() };
    let exchange = post.to(&parse(&format!("https://localhost:{}/hooks", secure.address.port()))).await;
    let answer = answer(&exchange);
    assert_eq!((answer.status, answer.redirect_refused), (307, true), "{exchange:?}");
    assert!(exchange.detail.as_deref().unwrap().contains("from https to http"), "{exchange:?}");
    assert_eq!(secure.paths(), ["/hooks", "/still-secure"]);
    assert!(plain.was_left_alone().await);
}

#[tokio::test]
async fn http_may_rise_to_https_and_counts_as_another_origin() {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let secure = Receiver::bound_to("127.0.0.1:0", Some(acceptor(&identity)), |_| OK.into()).await;
    let onward = format!("https://localhost:{}/secure", secure.address.port());
    let said = redirect(308, &onward);
    let plain = Receiver::start(move |_| said.clone()).await;
    let post = Post { extra_ca_pem: Some(identity.cert.pem().into()), ..Post::default() };
    let exchange = post.to(&plain.url("/hooks")).await;
    assert_eq!(answer(&exchange).status, 200, "{exchange:?}");
    assert_eq!(exchange.final_url, Some(onward));
    assert_eq!(secure.heard()[0].own_headers(), KEPT_SENT);
}

#[tokio::test]
async fn a_deployment_without_plain_http_follows_no_redirect_to_it() {
    let target = Receiver::start(|_| OK.into()).await;
    let said = redirect(307, &target.text("/new"));
    // Made before plain http was switched off.
    let receiver = Receiver::start(move |_| said.clone()).await;
    let post = Post { https_only: true, ..Post::default() };
    assert!(answer(&post.to(&receiver.url("/hooks")).await).redirect_refused);
    assert!(target.was_left_alone().await);
}

#[tokio::test]
async fn what_proves_who_we_are_stays_with_the_endpoints_origin() {
    let home_port = Arc::new(AtomicUsize::new(0));
    let back_to = home_port.clone();
    let other = Receiver::start(move |_| redirect(307, &format!("http://127.0.0.1:{}/again", back_to.load(SeqCst))));
    let other = other.await;
    let away = other.text("/away");
    let home = Receiver::start(move |path| match path {
        "/hooks" => redirect(307, "/same-origin"),
        "/same-origin" => redirect(307, &away),
        _ => OK.into(),
    });
    let home = home.await;
    home_port.store(home.address.port().into(), SeqCst);
    let exchange = Post::default().to(&home.url("/hooks")).await;
    assert_eq!(answer(&exchange).status, 200, "{exchange:?}");

    let all: Vec<&str> = SENT.iter().map(|(name, _)| *name).collect();
    let [first, same_origin, again] = home.heard().try_into().unwrap();
    assert_eq!(first.own_headers(), all);
    assert_eq!(same_origin.own_headers(), all);
    assert_eq!(other.heard()[0].own_headers(), KEPT_SENT);
    assert_eq!(again.own_headers(), KEPT_SENT, "left behind is left behind");
    for request in [&first, &other.heard()[0], &again] {
        let host = request.headers.iter().find(|(name, _)| name == "host").map(|(_, value)| value.as_str());
        let port = if request.path == "/away" { other.address.port() } else { home.address.port() };
        assert_eq!(host, Some(format!("127.0.0.1:{port}").as_str()));
    }
}

#[tokio::test]
async fn a_host_by_another_name_is_another_host() {
    let receiver = Receiver::start(|path| match path {
        "/hooks" => redirect(307, "//localhost:PORT/new"),
        _ => OK.into(),
    });
    let receiver = receiver.await;
    let exchange = Post::default().to(&receiver.url("/hooks")).await;
    assert_eq!(answer(&exchange).status, 200, "{exchange:?}");
    assert_eq!(receiver.heard()[1].own_headers(), KEPT_SENT);
}

#[tokio::test]
async fn a_hop_that_fails_on_the_wire_is_the_outcome() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    for (hops, expected) in [(1, "after 1 redirect: "), (2, "after 2 redirects: ")] {
        let receiver = Receiver::start(move |path| match path {
            "/hooks" if hops == 2 => redirect(307, "/hop"),
            _ => redirect(307, &format!("http://{closed}/gone?token=1")),
        });
        let receiver = receiver.await;
        let exchange = Post::default().to(&receiver.url("/hooks")).await;
        assert_eq!(exchange.outcome, Outcome::Failed(Fault::Refused));
        let detail = exchange.detail.unwrap();
        assert!(detail.starts_with(expected) && detail.contains("refused"), "{detail}");
        assert_eq!(exchange.final_url, Some(format!("http://{closed}/gone")));
        assert!(exchange.body.is_empty());
    }
}

#[tokio::test]
async fn the_last_answer_is_the_one_that_counts() {
    let receiver = Receiver::start(|path| match path {
        "/hooks" => b"HTTP/1.1 307 Go\r\nlocation: /new\r\nretry-after: 9\r\nwebhook-delivery: disable\r\n\
                      content-length: 4\r\n\r\nmove"
            .to_vec(),
        _ => {
            b"HTTP/1.1 503 Busy\r\nretry-after: 120\r\nwebhook-delivery: abort-message\r\ncontent-length: 4\r\n\r\nbusy"
                .to_vec()
        }
    });
    let receiver = receiver.await;
    let exchange = Post::default().to(&receiver.url("/hooks")).await;
    let answer = answer(&exchange);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.retry_after, [b"120".to_vec()]);
    assert_eq!(answer.control, Some(Control::AbortMessage));
    assert_eq!(answer.location, None);
    assert_eq!(exchange.body, "busy");
    assert!(!exchange.headers.contains_key("location"));
}

#[tokio::test]
async fn a_redirects_unfinished_body_is_not_waited_for() {
    let receiver = Receiver::start(|path| match path {
        "/hooks" => b"HTTP/1.1 307 Go\r\nlocation: /new\r\ncontent-length: 10\r\n\r\n".to_vec(),
        _ => OK.into(),
    });
    let receiver = receiver.await;
    let exchange = Post::default().to(&receiver.url("/hooks")).await;
    assert_eq!(answer(&exchange).status, 200, "{exchange:?}");
    assert_eq!(receiver.connections(), 2, "what may still hold a body is not used again");
}

struct Post {
    body: Bytes,
    redirects_max: u8,
    https_only: bool,
    extra_ca_pem: Option<Vec<u8>>,
}

impl Default for Post {
    fn default() -> Self {
        Self {
            body: Bytes::from_static(b"{\"end\":true}"),
            redirects_max: REDIRECTS_MAX,
            https_only: false,
            extra_ca_pem: None,
        }
    }
}

impl Post {
    async fn to(self, url: &EndpointUrl) -> Exchange {
        let config = TransportConfig {
            https_only: self.https_only,
            extra_ca_pem: self.extra_ca_pem,
            ..TransportConfig::new(guard())
        };
        let headers = SENT.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Transport::new(config)
            .unwrap()
            .post(Request {
                url,
                headers: &|| headers.clone().collect(),
                body: self.body,
                timeouts: TIMEOUTS,
                redirects_max: self.redirects_max,
                kept_across_hosts: &KEPT.map(HeaderName::from_static),
                tls: None,
            })
            .await
    }
}

/// None of them is meant to be reached.
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(30), first_byte: Duration::from_secs(30), total: Duration::from_secs(30) };

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const SENT: [(&str, &str); 9] = [
    ("authorization", "Bearer secret"),
    ("content-type", "application/json"),
    ("svix-signature", "v1,secret"),
    ("user-agent", "Postrider/0"),
    ("webhook-attempt", "1"),
    ("webhook-id", "msg_1"),
    ("webhook-signature", "v1,secret"),
    ("webhook-timestamp", "1700000000"),
    ("x-own", "secret"),
];

const KEPT: [&str; 6] = ["content-type", "user-agent", "webhook-attempt", "webhook-id", "webhook-timestamp", "svix-id"];

const KEPT_SENT: [&str; 5] = ["content-type", "user-agent", "webhook-attempt", "webhook-id", "webhook-timestamp"];

fn redirect(status: u16, location: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Go\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").into()
}

fn answer(exchange: &Exchange) -> &Answer {
    match &exchange.outcome {
        Outcome::Answered(answer) => answer,
        Outcome::Failed(fault) => panic!("{fault:?}: {:?}", exchange.detail),
    }
}

fn guard() -> AddressGuard {
    AddressGuard::new(vec!["127.0.0.1/32".parse().unwrap()])
}

fn parse(text: &str) -> EndpointUrl {
    let rules = UrlRules { https_only: false, guard: &guard() };
    EndpointUrl::parse(text, &rules).unwrap()
}

/// Hears requests on kept connections and answers by their path. `PORT` in an answer is its own.
struct Receiver {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    heard: Arc<Mutex<Vec<Heard>>>,
}

#[derive(Clone, Debug)]
struct Heard {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Receiver {
    async fn start(say: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::bound_to("127.0.0.1:0", None, say).await
    }

    async fn bound_to(
        address: &str,
        tls: Option<TlsAcceptor>,
        say: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let receiver =
            Self { address: listener.local_addr().unwrap(), accepted: Arc::default(), heard: Arc::default() };
        let (accepted, heard, say) = (receiver.accepted.clone(), receiver.heard.clone(), Arc::new(say));
        let port = receiver.address.port().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, SeqCst);
                let (tls, heard, say, port) = (tls.clone(), heard.clone(), say.clone(), port.clone());
                tokio::spawn(async move {
                    let say = |path: &str| {
                        let said = say(path);
                        match String::from_utf8(said) {
                            Ok(text) => text.replace("PORT", &port).into_bytes(),
                            Err(bytes) => bytes.into_bytes(),
                        }
                    };
                    match tls {
                        Some(tls) => serve(tls.accept(stream).await.unwrap(), &heard, say).await,
                        None => serve(stream, &heard, say).await,
                    }
                });
            }
        });
        receiver
    }

    fn text(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn url(&self, path: &str) -> EndpointUrl {
        parse(&self.text(path))
    }

    fn connections(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    /// Connections are accepted in the order they came: if this one is the first, there was none before.
    async fn was_left_alone(&self) -> bool {
        let mut probe = TcpStream::connect(self.address).await.unwrap();
        probe.write_all(b"POST /probe HTTP/1.1\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        probe.read_u8().await.unwrap();
        self.connections() == 1
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    fn paths(&self) -> Vec<String> {
        self.heard().into_iter().map(|request| request.path).collect()
    }
}

impl Heard {
    /// The names of what the caller gave us to send, sorted.
    fn own_headers(&self) -> Vec<&str> {
        let names = self.headers.iter().map(|(name, _)| name.as_str());
        let mut own: Vec<&str> = names.filter(|name| !["host", "content-length"].contains(name)).collect();
        own.sort_unstable();
        own
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    heard: &Mutex<Vec<Heard>>,
    say: impl Fn(&str) -> Vec<u8>,
) {
    while let Some(request) = hear(&mut stream).await {
        let said = say(&request.path);
        heard.lock().unwrap().push(request);
        stream.write_all(&said).await.unwrap();
    }
}

async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> Option<Heard> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    };
    let mut body = bytes.split_off(head_end + 4);
    let head = String::from_utf8(bytes).unwrap();
    let mut lines = head.trim_end().lines();
    let mut request = lines.next().unwrap().split(' ').map(str::to_owned);
    let headers: Vec<(String, String)> =
        lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.into(), value.into())).collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
    while body.len() < length {
        assert!(stream.read_buf(&mut body).await.unwrap() > 0, "closed within a body");
    }
    Some(Heard { method: request.next().unwrap(), path: request.next().unwrap(), headers, body })
}

fn acceptor(identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::Pkcs8(identity.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
