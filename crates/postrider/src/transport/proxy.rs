//! The way out by way of the operator's proxy, where a network lets nothing else out.
//!
//! The proxy is asked to connect to an address that the guard has seen, never to a name: a proxy that looks names up itself
//! would call what we refuse. That it cannot be used is our own fault and charged to no delivery.

use super::connect::dial;
use super::failure::Failure;
use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use postrider_engine::Fault;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::Instant;
use url::Url;

#[derive(Clone)]
pub struct EgressProxy {
    host: String,
    port: u16,
    /// `Basic ...`
    authorization: Option<String>,
    complaints: Arc<Complaints>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write it as http://host:port or http://user:password@host:port; other kinds of proxies are not spoken to")]
pub struct NotAProxy;

impl FromStr for EgressProxy {
    type Err = NotAProxy;

    fn from_str(text: &str) -> Result<Self, NotAProxy> {
        let url = Url::parse(text).map_err(|_| NotAProxy)?;
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let (Some(host), "http", true) = (url.host(), url.scheme(), is_bare) else { return Err(NotAProxy) };
        let host = match host {
            url::Host::Ipv6(v6) => v6.to_string(),
            url::Host::Domain(_) | url::Host::Ipv4(_) => host.to_string(),
        };
        let user: Vec<u8> = percent_decode_str(url.username()).collect();
        let password: Vec<u8> = percent_decode_str(url.password().unwrap_or_default()).collect();
        let is_named = !user.is_empty() || !password.is_empty();
        let authorization = is_named.then(|| {
            let credentials = [user.as_slice(), b":", &password].concat();
            format!("Basic {}", BASE64_STANDARD.encode(credentials))
        });
        let port = url.port_or_known_default().ok_or(NotAProxy)?;
        Ok(Self { host, port, authorization, complaints: Arc::default() })
    }
}

/// A `Debug` ends up in a log.
impl fmt::Debug for EgressProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EgressProxy({}:{})", self.host, self.port)
    }
}

impl EgressProxy {
    /// A connection to the first of these that the proxy can reach.
    pub(super) async fn tunnel(&self, addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
        let tunnelled = self.tunnel_to_first(addresses).await;
        if let Err(Failure { fault: Fault::LocalResource, detail }) = &tunnelled {
            self.complaints.hear(detail);
        }
        tunnelled
    }

    async fn tunnel_to_first(&self, addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
        let mut failed = Failure::reset();
        for address in addresses {
            match self.tunnel_to(*address).await {
                Ok(stream) => return Ok(stream),
                // Another address is as far away.
                Err(failure) if failure.fault == Fault::LocalResource => return Err(failure),
                Err(failure) => failed = failure,
            }
        }
        Err(failed)
    }

    async fn tunnel_to(&self, address: SocketAddr) -> Result<TcpStream, Failure> {
        let mut stream = self.dial().await?;
        stream.write_all(self.request(address).as_bytes()).await.map_err(|_| unusable("it closed the connection"))?;
        let mut head = Vec::new();
        while !head.ends_with(END_OF_HEAD) {
            let read = stream.read_buf(&mut head).await.map_err(|_| unusable("it closed the connection"))?;
            // Whoever connected has nothing to say before we do.
            let is_surplus =
                head.windows(END_OF_HEAD.len()).any(|at| at == END_OF_HEAD) && !head.ends_with(END_OF_HEAD);
            if read == 0 || head.len() > HEAD_MAX || is_surplus {
                return Err(unusable("its answer is not usable HTTP"));
            }
        }
        match status(&head) {
            Some(200..=299) => Ok(stream),
            Some(403) => Err(Failure::forbidden()),
            Some(502..=504) => Err(Failure::new(Fault::Unreachable, "the endpoint's host could not be reached")),
            Some(407) => Err(unusable("it wants other credentials")),
            Some(_) => Err(unusable("it refused")),
            None => Err(unusable("its answer is not usable HTTP")),
        }
    }

    async fn dial(&self) -> Result<TcpStream, Failure> {
        let found =
            lookup_host((self.host.as_str(), self.port)).await.map_err(|_| unusable("its name is not known"))?;
        for address in found {
            if let Ok(stream) = dial(address).await {
                return Ok(stream);
            }
        }
        Err(unusable("it does not answer"))
    }

    fn request(&self, address: SocketAddr) -> String {
        let authorization =
            self.authorization.as_ref().map_or_else(String::new, |given| format!("proxy-authorization: {given}\r\n"));
        format!("CONNECT {address} HTTP/1.1\r\nhost: {address}\r\n{authorization}\r\n")
    }
}

fn unusable(why: &'static str) -> Failure {
    Failure::new(Fault::LocalResource, format!("this server's egress proxy cannot be used: {why}"))
}

fn status(head: &[u8]) -> Option<u16> {
    let rest = head.strip_prefix(b"HTTP/1.1 ").or_else(|| head.strip_prefix(b"HTTP/1.0 "))?;
    let (digits, rest) = rest.split_at_checked(3)?;
    let is_whole = matches!(rest, [b' ' | b'\r', ..]) && digits.iter().all(u8::is_ascii_digit);
    is_whole.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

/// Nothing goes out while the proxy is away, and every delivery would say so. The operator is told now and then.
#[derive(Default)]
struct Complaints(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    told: Option<Instant>,
    since: u64,
}

impl Complaints {
    fn hear(&self, why: &str) {
        if let Some(tries) = self.count(Instant::now()) {
            tracing::warn!(why, tries, "the egress proxy cannot be used; deliveries wait until it can");
        }
    }

    /// How many there were since somebody was told, if it is time to tell.
    fn count(&self, now: Instant) -> Option<u64> {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.since += 1;
        if heard.told.is_some_and(|told| now < told + TELL_AGAIN) {
            return None;
        }
        heard.told = Some(now);
        Some(std::mem::take(&mut heard.since))
    }
}

const TELL_AGAIN: Duration = Duration::from_secs(60);
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
const HEAD_MAX: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_or_without_credentials_is_read() {
        let plain: EgressProxy = "http://proxy.internal:3128".parse().unwrap();
        assert_eq!((plain.host.as_str(), plain.port, plain.authorization), ("proxy.internal", 3128, None));
        let named: EgressProxy = "http://me:p%40ss@[fd00::1]:3128/".parse().unwrap();
        assert_eq!((named.host.as_str(), named.port), ("fd00::1", 3128));
        assert_eq!(named.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        assert!(!format!("{named:?}").contains("bWU6"));
        let odd: EgressProxy = "http://100%25:a%zz@proxy".parse().unwrap();
        assert_eq!(odd.authorization.as_deref(), Some("Basic MTAwJTphJXp6"), "what is no escape is meant as it is");
    }

    #[tokio::test]
    async fn the_operator_hears_of_a_proxy_that_is_away_once_a_minute() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let told = |seconds| complaints.count(start + Duration::from_secs(seconds));
        assert_eq!([0, 1, 30, 59, 60, 61, 200].map(told), [Some(1), None, None, None, Some(4), None, Some(2)]);
    }

    #[test]
    fn what_is_no_proxy_is_refused() {
        for text in ["proxy:3128", "https://proxy:3128", "socks5://proxy:1080", "http://proxy/path", "http://a?b", ""] {
            assert_eq!(EgressProxy::from_str(text).err(), Some(NotAProxy), "{text}");
        }
    }

    #[test]
    fn a_status_is_three_digits() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407\r\n\r\n"), Some(407));
        for head in [&b"HTTP/2 200\r\n\r\n"[..], b"HTTP/1.1 2000\r\n", b"HTTP/1.1 +20 OK", b"200", b""] {
            assert_eq!(status(head), None);
        }
    }
}
