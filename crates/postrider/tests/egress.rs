//! No packet leaves for a forbidden address, by whatever way in: spelled in a URL, behind a name, behind one of a name's
//! several addresses, behind a name that changes its mind, behind a redirect, or stored when the rules were others.
//!
//! It is the kernel that counts. What is tried runs in a network namespace whose routes lead to one public block and, for all
//! else, into a trap.

#[path = "egress/addresses.rs"]
mod addresses;
#[path = "egress/names.rs"]
mod names;
#[path = "egress/namespace.rs"]
mod namespace;
mod support;

use addresses::{forbidden, is_forbidden_v6, ranges_v4, sample_v6, spellings};
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use names::{WAYS, name};
use namespace::{NAME_SERVER, Namespaces, RECEIVER, Running, is_within, sent_by};
use postrider::transport::{
    AddressGuard, EndpointUrl, Exchange, NameServers, Request, Transport, TransportConfig, UrlRules,
};
use postrider_engine::outcome::Timeouts;
use postrider_engine::{Fault, Outcome};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use std::env;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use support::skip::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

#[test]
fn every_spelling_of_a_forbidden_address_is_refused() {
    let guard = AddressGuard::new(Vec::new());
    let rules = UrlRules { https_only: false, guard: &guard };
    let mut tried = 0;
    for address in forbidden() {
        assert!(guard.check(address).is_err(), "{address}");
        for url in spellings(address) {
            assert!(EndpointUrl::parse(&url, &rules).is_err(), "{url:?}");
            tried += 1;
        }
    }
    println!("{tried} spellings of {} addresses refused", forbidden().len());
}

/// All 4,294,967,296.
#[ignore = "minutes without optimisation; scripts/exhaust runs it with"]
#[test]
fn every_ipv4_address_is_judged_as_a_second_list_says() {
    let guard = AddressGuard::new(Vec::new());
    let own: HashSet<IpAddr> = if_addrs::get_if_addrs().unwrap().iter().map(if_addrs::Interface::ip).collect();
    let halves = [0..=u32::MAX / 2, u32::MAX / 2 + 1..=u32::MAX];
    let refused: u64 = thread::scope(|scope| {
        let judged = halves.map(|half| scope.spawn(|| judge_all(half, &guard, &own)));
        judged.into_iter().map(|half| half.join().unwrap()).sum()
    });
    println!("all {} addresses of IPv4 judged, {refused} of them refused", 1u64 << 32);
}

/// How many are refused.
fn judge_all(addresses: RangeInclusive<u32>, guard: &AddressGuard, own: &HashSet<IpAddr>) -> u64 {
    let mut refused = 0;
    let mut ranges = ranges_v4().into_iter().peekable();
    for bits in addresses {
        while ranges.next_if(|(_, last)| *last < bits).is_some() {}
        let is_special = ranges.peek().is_some_and(|(first, _)| *first <= bits);
        let address = IpAddr::V4(Ipv4Addr::from_bits(bits));
        let is_refused = guard.check(address).is_err();
        refused += u64::from(is_refused);
        assert!(is_refused == is_special || own.contains(&address), "{address}");
    }
    refused
}

/// `IPV6_SAMPLES=1000000000` for more.
#[test]
fn ipv6_addresses_are_judged_as_a_second_list_says() {
    let samples = env::var("IPV6_SAMPLES").map_or(50_000, |count| count.parse().expect("how many samples"));
    let guard = AddressGuard::new(Vec::new());
    let own: HashSet<IpAddr> = if_addrs::get_if_addrs().unwrap().iter().map(if_addrs::Interface::ip).collect();
    let mut chance = ChaCha8Rng::seed_from_u64(6);
    let mut refused = 0u64;
    for _ in 0..samples {
        let address = sample_v6(&mut chance);
        let is_refused = guard.check(IpAddr::V6(address)).is_err();
        refused += u64::from(is_refused);
        assert!(is_refused == is_forbidden_v6(address) || own.contains(&IpAddr::V6(address)), "{address}");
    }
    println!("{samples} addresses of IPv6 judged, {refused} of them refused");
}

#[test]
fn no_packet_leaves_for_a_forbidden_address() {
    let namespaces = match Namespaces::make() {
        Ok(namespaces) => namespaces,
        Err(why) => return skip(&format!("no network namespace can be made here: {why}")),
    };
    let mut outside = namespaces.outside("the_internet").stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(outside.stdout.take().unwrap());
    let _outside = Running(outside);
    assert!(said.lines().map_while(Result::ok).any(|line| line.contains(READY)), "the Internet did not come up");
    let tried = namespaces.inside("a_server_that_is_lied_to").output().unwrap();
    let said = String::from_utf8_lossy(&tried.stdout);
    assert!(tried.status.success(), "{said}{}", String::from_utf8_lossy(&tried.stderr));
    assert!(said.contains(COUNTED), "nothing was tried: {said}");
    println!("{}", said.lines().find(|line| line.contains(COUNTED)).unwrap());
}

#[ignore = "the other end of no_packet_leaves_for_a_forbidden_address, which starts it"]
#[tokio::test]
async fn the_internet() {
    if !is_within() {
        return;
    }
    let names = UdpSocket::bind((NAME_SERVER, 53)).await.unwrap();
    let receiver = TcpListener::bind((RECEIVER, 8080)).await.unwrap();
    println!("{READY}");
    tokio::spawn(names::serve(names, RECEIVER));
    loop {
        let (stream, _) = receiver.accept().await.unwrap();
        tokio::spawn(answer(stream));
    }
}

/// 200, or a redirect to where the request asks for one. The connection is not used again, or a name that is looked up once
/// would be enough.
async fn answer(mut stream: TcpStream) {
    let mut heard = Vec::new();
    while !heard.ends_with(BODY) && stream.read_buf(&mut heard).await.is_ok_and(|read| read > 0) {}
    let heard = String::from_utf8_lossy(&heard);
    let answer = match heard.lines().find_map(|line| line.strip_prefix(GO_TO)?.strip_prefix(": ")) {
        Some(url) => format!("HTTP/1.1 307 Go\r\nlocation: {url}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
        None => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
    };
    let _ = stream.write_all(answer.as_bytes()).await;
}

#[ignore = "the inner part of no_packet_leaves_for_a_forbidden_address, which starts it"]
#[tokio::test]
async fn a_server_that_is_lied_to() {
    if !is_within() {
        return;
    }
    let lax = AddressGuard::new(vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()]);
    let lax = UrlRules { https_only: false, guard: &lax };
    let url = |host: &str| EndpointUrl::parse(&format!("http://{host}:8080/"), &lax).unwrap();
    let transport = {
        let mut config = TransportConfig::new(AddressGuard::new(Vec::new()));
        config.name_servers = NameServers::These(vec![SocketAddr::from((NAME_SERVER, 53))]);
        Transport::new(config).unwrap()
    };
    let receiver = url(&RECEIVER.to_string());
    assert_eq!(seen(&post(&transport, &receiver, None).await), Ok(200), "the way that is open is not");

    let (trapped, to_ourselves) = (sent_by("trap"), sent_by("lo"));
    let mut tried = 0;
    for address in forbidden() {
        let host = match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        let stored = post(&transport, &url(&host), None).await;
        assert_eq!(seen(&stored), Err(Fault::Forbidden), "{host}, stored under other rules");
        let detail = stored.detail.expect("a sentence for the owner");

        for way in WAYS {
            let name = name(way, address);
            if way == "turns" {
                assert_eq!(seen(&post(&transport, &url(&name), None).await), Ok(200), "{name}, at first");
            }
            let called = post(&transport, &url(&name), None).await;
            assert_eq!(seen(&called), Err(Fault::Forbidden), "{name}");
            assert_eq!(called.detail.as_ref(), Some(&detail), "{name}: the owner can tell one from another");
        }
        for target in [host.clone(), name("only", address), name("after", address)] {
            let led = post(&transport, &receiver, Some(&format!("http://{target}:8080/"))).await;
            assert_eq!(seen(&led), Ok(307), "a redirect to {target}");
        }
        tried += WAYS.len() + 4;
    }
    let escaped = (sent_by("trap") - trapped, sent_by("lo") - to_ourselves);
    assert_eq!(escaped, (0, 0), "packets into the trap, and to ourselves");

    // The trap works: what is dialled without asking the guard is counted.
    for address in ["10.0.0.1:80", "[fd00:ec2::254]:80", "169.254.169.254:80"] {
        let before = sent_by("trap");
        let _ = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await;
        assert!(sent_by("trap") > before, "{address} is not counted");
    }
    let before = sent_by("lo");
    let _ = TcpStream::connect("127.0.0.1:80").await;
    assert!(sent_by("lo") > before, "what goes to ourselves is not counted");
    println!("{COUNTED} {tried} ways to {} forbidden addresses: 0 packets", forbidden().len());
}

async fn post(transport: &Transport, url: &EndpointUrl, go_to: Option<&str>) -> Exchange {
    let headers: HeaderMap = go_to
        .map(|target| (HeaderName::from_static(GO_TO), HeaderValue::from_str(target).unwrap()))
        .into_iter()
        .collect();
    transport
        .post(Request {
            url,
            headers: &|| headers.clone(),
            body: Bytes::from_static(BODY),
            timeouts: TIMEOUTS,
            redirects_max: 5,
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

const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(5), first_byte: Duration::from_secs(5), total: Duration::from_secs(10) };
const BODY: &[u8] = b"{\"end\":true}";
const GO_TO: &str = "x-go-to";
const READY: &str = "the Internet is up";
const COUNTED: &str = "counted by the kernel:";
