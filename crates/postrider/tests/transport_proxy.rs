//! Deliveries that go out by way of the operator's proxy.

use bytes::Bytes;
use http::HeaderMap;
use postrider::transport::{
    AddressGuard, EndpointUrl, Exchange, NameServers, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Fault, Outcome};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn a_delivery_goes_by_way_of_the_proxy() {
    let receiver = receiver().await;
    let proxy = Proxy::start(Answer::Connects).await;
    let transport = transport(&format!("http://me:secret@{}", proxy.address), &["127.0.0.0/8"]);
    for host in ["127.0.0.1", "localhost"] {
        let called = post(&transport, &format!("http://{host}:{}/", receiver.port())).await;
        assert_eq!(seen(&called), Ok(200), "{:?}", called.detail);
    }
    // By its address, whatever the URL calls it.
    let heard = proxy.heard();
    assert_eq!(heard.len(), 2);
    for request in heard {
        assert!(request.starts_with(&format!("CONNECT {receiver} HTTP/1.1\r\nhost: {receiver}\r\n")), "{request}");
        assert!(request.contains("proxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{request}");
    }
}

#[tokio::test]
async fn the_proxy_hears_of_no_forbidden_address() {
    let proxy = Proxy::start(Answer::Connects).await;
    let transport = transport(&format!("http://{}", proxy.address), &[]);
    for host in ["10.0.0.1", "127.0.0.1", "[::1]", "169.254.169.254"] {
        assert_eq!(seen(&post(&transport, &format!("http://{host}:8080/")).await), Err(Fault::Forbidden), "{host}");
    }
    assert!(proxy.heard().is_empty());
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_charged_to_no_delivery() {
    for (answer, expected) in [
        (Answer::Says("HTTP/1.1 407 Who?\r\ncontent-length: 0\r\n\r\n"), Fault::LocalResource),
        (Answer::Says("HTTP/1.1 500 No\r\n\r\n"), Fault::LocalResource),
        (Answer::Says("SSH-2.0-OpenSSH_9.2\r\n\r\n"), Fault::LocalResource),
        (Answer::Says("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 from the proxy itself\r\n"), Fault::LocalResource),
        (Answer::Says(""), Fault::LocalResource),
        (Answer::Says("HTTP/1.1 403 Not there\r\n\r\n"), Fault::Forbidden),
        (Answer::Says("HTTP/1.1 502 Bad gateway\r\n\r\n"), Fault::Unreachable),
        (Answer::Says("HTTP/1.0 504 Gateway timeout\r\n\r\n"), Fault::Unreachable),
    ] {
        let proxy = Proxy::start(answer).await;
        let transport = transport(&format!("http://{}", proxy.address), &["127.0.0.0/8"]);
        assert_eq!(seen(&post(&transport, "http://127.0.0.1:8080/").await), Err(expected), "{answer:?}");
    }
    let transport = transport("http://127.0.0.1:1", &["127.0.0.0/8"]);
    let called = post(&transport, "http://127.0.0.1:8080/").await;
    assert_eq!(seen(&called), Err(Fault::LocalResource));
    assert!(called.detail.unwrap().contains("egress proxy"));
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Connects,
    Says(&'static str),
}

struct Proxy {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer, Arc::clone(&list)));
            }
        });
        Self { address, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, answer: Answer, heard: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
    let head = String::from_utf8(head).unwrap();
    heard.lock().unwrap().push(head.clone());
    match answer {
        Answer::Connects => {
            let mut onward = TcpStream::connect(head.split(' ').nth(1).unwrap()).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 Connection established\r\nvia: us\r\n\r\n").await.unwrap();
            let _ = copy_bidirectional(&mut stream, &mut onward).await;
        }
        Answer::Says(text) => stream.write_all(text.as_bytes()).await.unwrap(),
    }
}

async fn receiver() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                while !heard.ends_with(BODY) && stream.read_buf(&mut heard).await.is_ok_and(|read| read > 0) {}
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            });
        }
    });
    address
}

fn transport(proxy: &str, allow: &[&str]) -> Transport {
    let guard = AddressGuard::new(allow.iter().map(|net| net.parse().unwrap()).collect());
    let mut config = TransportConfig::new(guard);
    config.name_servers = NameServers::These(Vec::new());
    config.proxy = Some(proxy.parse().unwrap());
    Transport::new(config).unwrap()
}

async fn post(transport: &Transport, url: &str) -> Exchange {
    let lax = AddressGuard::new(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    let url = EndpointUrl::parse(url, &UrlRules { https_only: false, guard: &lax }).unwrap();
    let timeouts =
        Timeouts { connect: Duration::from_secs(5), first_byte: Duration::from_secs(5), total: Duration::from_secs(5) };
    transport
        .post(Request {
            url: &url,
            headers: &HeaderMap::new,
            body: Bytes::from_static(BODY),
            timeouts,
            redirects_max: 0,
            kept_across_hosts: &[],
            tls: None,
        })
        .await
}

fn seen(exchange: &Exchange) -> Result<u16, Fault> {
    match &exchange.outcome {
        Outcome::Answered(answer) => Ok(answer.status),
        Outcome::Failed(fault) => Err(fault.clone()),
    }
}

const BODY: &[u8] = b"{\"end\":true}";
