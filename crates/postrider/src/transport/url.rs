//! The URL of an endpoint, read once.
//!
//! Two parsers that disagree about a URL are how filters are walked around, so only one (WHATWG's, as in
//! browsers) ever sees the text, and its normalised form is what is stored, shown, vetted and dialled.
//! Everything a request needs from it is prepared here; sending one parses nothing.

use super::egress::AddressGuard;
use base64::{Engine, prelude::BASE64_STANDARD};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use url::{Position, Url};

/// What this deployment lets a customer configure.
#[derive(Clone, Copy, Debug)]
pub struct UrlRules<'a> {
    pub https_only: bool,
    pub guard: &'a AddressGuard,
}

#[derive(Clone)]
pub struct EndpointUrl {
    text: Arc<str>,
    destination: Arc<Destination>,
    /// `/path?query`, as HTTP/1.1 wants it.
    path: Uri,
    /// `scheme://authority/path?query`, as HTTP/2 wants it.
    absolute: Uri,
    host_header: HeaderValue,
}

/// Where connections to a URL go; URLs that differ only in their path share connections.
#[derive(Debug)]
pub(crate) struct Destination {
    pub key: Arc<str>,
    pub host: Host,
    pub port: u16,
    /// The name that the certificate must have, if the scheme is https.
    pub tls: Option<ServerName<'static>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Name(Box<str>),
    Ip(IpAddr),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("the URL has {0} characters as it would be sent; at most {LENGTH_MAX} are allowed")]
    TooLong(usize),
    #[error("this is not a complete URL ({0}); write it like https://example.com/webhooks")]
    Unreadable(#[from] url::ParseError),
    #[error("the scheme {0:?} is not supported; use https")]
    Scheme(String),
    #[error("plain http is switched off here; use https")]
    PlainHttp,
    #[error("the URL holds a user name or password; remove it and set an Authorization header on the endpoint")]
    Credentials,
    #[error("the URL's user name or password holds a colon or a control character that cannot be sent")]
    UnsendableCredentials,
    #[error("{0:?} is not a valid host name")]
    HostName(String),
    #[error(
        "{0:?} is a name of a private network; if this deployment should call it, start the server with \
         --allow-subnet and the address range it lives in"
    )]
    PrivateName(String),
    #[error(
        "the address {0} is not on the public Internet; if this deployment should call it, start the server \
         with --allow-subnet and the range that contains it"
    )]
    ForbiddenAddress(IpAddr),
    #[error("port {0} is not allowed; use 80, 443 or a port from 1024 up that no well-known service has")]
    Port(u16),
    #[error("the path or query holds characters that cannot be sent; percent-encode them")]
    Unsendable,
}

impl EndpointUrl {
    pub fn parse(text: &str, rules: &UrlRules<'_>) -> Result<Self, UrlError> {
        check_length(text)?;
        Self::vet(Url::parse(text)?, rules)
    }

    /// The same for a URL that may hold a user name and a password. They are taken out of it, so that they are shown and
    /// logged nowhere, and are to be sent as a header.
    pub fn parse_with_credentials(
        text: &str,
        rules: &UrlRules<'_>,
    ) -> Result<(Self, Option<UrlCredentials>), UrlError> {
        check_length(text)?;
        let mut url = Url::parse(text)?;
        let credentials = UrlCredentials::take(&mut url)?;
        Ok((Self::vet(url, rules)?, credentials))
    }

    /// Where a `Location` in this URL's answer points: judged as if a customer had typed it.
    pub(crate) fn join(&self, location: &str, rules: &UrlRules<'_>) -> Result<Self, UrlError> {
        check_length(location)?;
        let base = Url::parse(&self.text).expect("the parser reads what it has written");
        Self::vet(base.join(location)?, rules)
    }

    /// Without fragment or credentials, in the parser's spelling.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// For where it is kept or logged: receivers put tokens into the query.
    pub fn without_query(&self) -> &str {
        let end = self.text.find('?').unwrap_or(self.text.len());
        &self.text[..end]
    }

    pub(crate) fn destination(&self) -> &Arc<Destination> {
        &self.destination
    }

    pub(crate) fn path(&self) -> &Uri {
        &self.path
    }

    pub(crate) fn absolute(&self) -> &Uri {
        &self.absolute
    }

    pub(crate) fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    fn vet(mut url: Url, rules: &UrlRules<'_>) -> Result<Self, UrlError> {
        let https = match url.scheme() {
            "https" => true,
            "http" if rules.https_only => return Err(UrlError::PlainHttp),
            "http" => false,
            other => return Err(UrlError::Scheme(other.to_owned())),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Credentials);
        }
        url.set_fragment(None);
        let host = vet_host(&mut url, rules.guard)?;
        let port = url.port_or_known_default().expect("http and https have default ports");
        rules.guard.check_port(port).map_err(|_| UrlError::Port(port))?;
        // What is stored is read again at each start, by the same rules as what was typed.
        if url.as_str().len() > LENGTH_MAX {
            return Err(UrlError::TooLong(url.as_str().len()));
        }
        Self::prepare(&url, host, port, https)
    }

    fn prepare(url: &Url, host: Host, port: u16, https: bool) -> Result<Self, UrlError> {
        let authority = &url[Position::BeforeHost..Position::AfterPort];
        let tls = match &host {
            _ if !https => None,
            Host::Ip(address) => Some(ServerName::from(*address)),
            Host::Name(name) => {
                Some(ServerName::try_from(name.to_string()).map_err(|_| UrlError::HostName(name.to_string()))?)
            }
        };
        let path_and_query = PathAndQuery::try_from(&url[Position::BeforePath..Position::AfterQuery])
            .map_err(|_| UrlError::Unsendable)?;
        let scheme = if https { Scheme::HTTPS } else { Scheme::HTTP };
        let absolute = Uri::builder()
            .scheme(scheme)
            .authority(Authority::try_from(authority).map_err(|_| UrlError::Unsendable)?)
            .path_and_query(path_and_query.clone())
            .build()
            .map_err(|_| UrlError::Unsendable)?;
        Ok(Self {
            text: url.as_str().into(),
            destination: Arc::new(Destination {
                key: format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or("")).into(),
                host,
                port,
                tls,
            }),
            path: Uri::from(path_and_query),
            absolute,
            host_header: HeaderValue::from_str(authority).map_err(|_| UrlError::Unsendable)?,
        })
    }
}

/// What stood before the `@` of a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlCredentials {
    basic: String,
}

impl UrlCredentials {
    fn take(url: &mut Url) -> Result<Option<Self>, UrlError> {
        let user: Vec<u8> = percent_decode_str(url.username()).collect();
        let password: Vec<u8> = percent_decode_str(url.password().unwrap_or_default()).collect();
        if user.is_empty() && password.is_empty() {
            return Ok(None);
        }
        // Whoever reads the header takes the first colon for the end of the name (RFC 7617).
        let has_control = user.iter().chain(&password).any(u8::is_ascii_control);
        if user.contains(&b':') || has_control {
            return Err(UrlError::UnsendableCredentials);
        }
        let is_cleared = url.set_username("").is_ok() && url.set_password(None).is_ok();
        if !is_cleared {
            return Err(UrlError::Credentials);
        }
        let both = [user.as_slice(), b":", &password].concat();
        Ok(Some(Self { basic: format!("Basic {}", BASE64_STANDARD.encode(both)) }))
    }

    /// The value of an `Authorization` header.
    pub fn header(&self) -> &str {
        &self.basic
    }
}

/// A `Debug` ends up in a log.
impl fmt::Debug for UrlCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UrlCredentials(hidden)")
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A `Debug` ends up in a log.
impl fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EndpointUrl").field(&self.without_query()).finish()
    }
}

impl PartialEq for EndpointUrl {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for EndpointUrl {}

impl Host {
    /// `localhost` and everything below it is this machine, by RFC 6761; no name server is asked.
    pub fn is_localhost(&self) -> bool {
        match self {
            Host::Name(name) => is_or_is_under(name, "localhost"),
            Host::Ip(_) => false,
        }
    }
}

/// Counted before parsing: the parser need not see what is refused anyway.
fn check_length(text: &str) -> Result<(), UrlError> {
    let length = text.chars().count();
    if length > LENGTH_MAX { Err(UrlError::TooLong(length)) } else { Ok(()) }
}

fn vet_host(url: &mut Url, guard: &AddressGuard) -> Result<Host, UrlError> {
    let address = match url.host() {
        Some(url::Host::Ipv4(v4)) => IpAddr::V4(v4),
        Some(url::Host::Ipv6(v6)) => IpAddr::V6(v6),
        Some(url::Host::Domain(domain)) => {
            let name = domain.strip_suffix('.').unwrap_or(domain).to_owned();
            if !is_host_name(&name) {
                return Err(UrlError::HostName(name));
            }
            vet_name(&name, guard)?;
            // One name, one spelling: certificates and pools know nothing of a trailing dot.
            url.set_host(Some(&name))?;
            return Ok(Host::Name(name.into()));
        }
        None => return Err(UrlError::HostName(String::new())),
    };
    guard.check(address).map(|()| Host::Ip(address)).map_err(|_| UrlError::ForbiddenAddress(address))
}

/// The address behind the name is vetted again at every connection; this only tells the customer early.
fn vet_name(name: &str, guard: &AddressGuard) -> Result<(), UrlError> {
    let allowed = if is_or_is_under(name, "localhost") {
        guard.check(IpAddr::V4(Ipv4Addr::LOCALHOST)).is_ok()
    } else if !name.contains('.') || PRIVATE_ZONES.iter().any(|zone| is_or_is_under(name, zone)) {
        guard.allows_private_names()
    } else {
        true
    };
    if allowed { Ok(()) } else { Err(UrlError::PrivateName(name.to_owned())) }
}

fn is_or_is_under(name: &str, zone: &str) -> bool {
    name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_host_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        })
}

const LENGTH_MAX: usize = 2048;

const PRIVATE_ZONES: [&str; 4] = ["local", "internal", "localdomain", "home.arpa"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_with(text: &str, allow: &[&str]) -> Result<EndpointUrl, UrlError> {
        let guard = AddressGuard::new(allow.iter().map(|net| net.parse().unwrap()).collect());
        let rules = UrlRules { https_only: false, guard: &guard };
        EndpointUrl::parse(text, &rules)
    }

    fn parse(text: &str) -> Result<EndpointUrl, UrlError> {
        parse_with(text, &[])
    }

    #[test]
    fn every_spelling_of_a_private_ipv4_address_is_refused() {
        let loopback = UrlError::ForbiddenAddress("127.0.0.1".parse().unwrap());
        for text in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://127。0。0。1/",
            "http://①②⑦.0.0.1/",
            "http://%31%32%37.0.0.1/",
            "http://127.0\t.0.1/",
        ] {
            assert_eq!(parse(text), Err(loopback.clone()), "{text}");
        }
        let metadata = UrlError::ForbiddenAddress("169.254.169.254".parse().unwrap());
        for text in ["http:169.254.169.254", "http:\\\\169.254.169.254\\", "http://169.254.169.254#@ok.com/"] {
            assert_eq!(parse(text), Err(metadata.clone()), "{text}");
        }
    }

    #[test]
    fn ipv4_inside_ipv6_is_refused() {
        for text in [
            "http://[::ffff:127.0.0.1]/",
            "http://[0:0:0:0:0:ffff:a9fe:a9fe]/",
            "http://[::ffff:8.8.8.8]/",
            "http://[::127.0.0.1]/",
            "http://[::ffff:0:7f00:1]/",
            "http://[::5efe:7f00:1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[64:ff9b:1::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
            "http://[::1]/",
        ] {
            assert!(matches!(parse(text), Err(UrlError::ForbiddenAddress(_))), "{text}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "http://[::1%25lo]/",
            "http://256.0.0.1/",
            "http://1.2.3.4.5/",
            "http://4294967296/",
            "http://a%00b.com/",
            "http://a b.com/",
            "http://xn--/",
            "http://example.com:65536/",
            "example.com/hooks",
            "/hooks",
            "",
            "http://",
        ] {
            assert!(matches!(parse(text), Err(UrlError::Unreadable(_))), "{text}");
        }
    }

    #[test]
    fn private_names_are_refused_unless_the_operator_calls_its_own_network() {
        for (text, allow, ok) in [
            ("http://localhost/", "", false),
            ("http://LOCALHOST/", "", false),
            ("http://ⓛocalhost/", "", false),
            ("http://localhost./", "", false),
            ("http://a.localhost/", "", false),
            ("http://localhost/", "10.0.0.0/8", false),
            ("http://localhost/", "127.0.0.0/8", true),
            ("http://a.localhost/", "127.0.0.0/8", true),
            ("http://printer.local/", "", false),
            ("http://metadata.google.internal/", "", false),
            ("http://api.internal/", "10.0.0.0/8", true),
            ("http://billing/", "", false),
            ("http://billing/", "10.0.0.0/8", true),
            ("http://notlocalhost.com/", "", true),
            ("http://internal.example.com/", "", true),
        ] {
            let allow: Vec<&str> = Some(allow).filter(|net| !net.is_empty()).into_iter().collect();
            match parse_with(text, &allow) {
                Ok(_) => assert!(ok, "{text} with {allow:?}"),
                Err(UrlError::PrivateName(_)) => assert!(!ok, "{text} with {allow:?}"),
                Err(other) => panic!("{text} with {allow:?}: {other}"),
            }
        }
    }

    #[test]
    fn host_names_are_checked_label_by_label() {
        let long_label = format!("http://{}.com/", "a".repeat(64));
        let long_name = format!("http://{}com/", "abcdefgh.".repeat(28) + "a.");
        for text in [
            "http://a.b..c/",
            "http://.a/",
            "http://-a.com/",
            "http://a-.com/",
            "http://a.com../",
            "http://a!b.com/",
            &long_label,
            &long_name,
        ] {
            assert!(matches!(parse(text), Err(UrlError::HostName(_))), "{text}");
        }
        assert!(parse("http://my_hooks.a-b.example.com/").is_ok());
    }

    #[test]
    fn the_host_is_the_one_a_browser_would_call() {
        assert_eq!(parse("http://a@b@169.254.169.254/"), Err(UrlError::Credentials));
        assert_eq!(parse("http://user:secret@example.com/"), Err(UrlError::Credentials));
        let url = parse("http://ok.com\\@169.254.169.254/").unwrap();
        assert_eq!(url.destination().host, Host::Name("ok.com".into()));
    }

    #[test]
    fn a_name_and_a_password_are_taken_out_of_a_url() {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: false, guard: &guard };
        let parse = |text: &str| EndpointUrl::parse_with_credentials(text, &rules);
        for (text, url, header) in [
            ("https://example.com/a", "https://example.com/a", None),
            ("https://@example.com/a", "https://example.com/a", None),
            ("https://me:secret@example.com/a?b", "https://example.com/a?b", Some("Basic bWU6c2VjcmV0")),
            ("https://me@example.com/", "https://example.com/", Some("Basic bWU6")),
            ("https://:secret@example.com/", "https://example.com/", Some("Basic OnNlY3JldA==")),
            ("https://me:p%40s%3As@example.com:8443/", "https://example.com:8443/", Some("Basic bWU6cEBzOnM=")),
            ("https://a@b:c@example.com/", "https://example.com/", Some("Basic YUBiOmM=")),
            ("https://m%C3%A9:100%@example.com/", "https://example.com/", Some("Basic bcOpOjEwMCU=")),
        ] {
            let (found, credentials) = parse(text).unwrap();
            assert_eq!((found.as_str(), credentials.as_ref().map(UrlCredentials::header)), (url, header), "{text}");
            assert!(!format!("{found:?} {credentials:?}").contains("Basic"));
        }
        for text in ["https://m%3Ae:x@example.com/", "https://me:%00@example.com/", "https://me:%0a@example.com/"] {
            assert_eq!(parse(text).err(), Some(UrlError::UnsendableCredentials), "{text}");
        }
        assert!(matches!(parse("https://me:secret@10.0.0.1/"), Err(UrlError::ForbiddenAddress(_))));
    }

    #[test]
    fn only_ports_that_receive_webhooks_are_called() {
        for port in [0, 22, 25, 53, 110, 143, 445, 3306, 5432, 6379, 9200, 11211] {
            let text = format!("http://example.com:{port}/");
            assert_eq!(parse(&text), Err(UrlError::Port(port)));
        }
        for port in [80, 443, 1024, 8080, 8443, 65535] {
            assert!(parse(&format!("http://example.com:{port}/")).is_ok(), "{port}");
        }
        let guard = AddressGuard::new(Vec::new()).opening_ports(vec![81, 5432]);
        let opened = UrlRules { https_only: false, guard: &guard };
        for (port, expected) in [(81, true), (5432, true), (82, false), (8080, true)] {
            assert_eq!(EndpointUrl::parse(&format!("http://example.com:{port}/"), &opened).is_ok(), expected, "{port}");
        }
    }

    #[test]
    fn only_http_and_https_are_spoken() {
        for text in ["file:///etc/passwd", "gopher://a.com/", "ftp://a.com/", "unix:/run/x", "javascript:1"] {
            assert!(matches!(parse(text), Err(UrlError::Scheme(_))), "{text}");
        }
        let guard = AddressGuard::new(Vec::new());
        let strict = UrlRules { https_only: true, guard: &guard };
        assert_eq!(EndpointUrl::parse("http://example.com/", &strict), Err(UrlError::PlainHttp));
        assert!(EndpointUrl::parse("https://example.com/", &strict).is_ok());
    }

    #[test]
    fn a_url_is_normalised_once() {
        for (text, expected) in [
            ("HTTPS://EXAMPLE.com:443/a/../b?c=d#frag", "https://example.com/b?c=d"),
            ("https://example.com.:8443", "https://example.com:8443/"),
            ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ] {
            assert_eq!(parse(text).unwrap().as_str(), expected);
        }
        let long = format!("https://example.com/{}", "a".repeat(65_536));
        assert!(matches!(parse(&long), Err(UrlError::TooLong(_))));
    }

    #[test]
    fn what_is_too_long_once_it_is_encoded_is_refused_when_it_is_set_and_not_when_it_is_called() {
        let long = format!("https://example.com/{}", "ü".repeat(400));
        assert_eq!(parse(&long), Err(UrlError::TooLong(20 + 6 * 400)));
        let longest = format!("https://example.com/{}", "ü".repeat(338));
        let stored = parse(&longest).unwrap();
        assert_eq!(stored.as_str().len(), 2048);
        assert_eq!(parse(stored.as_str()), Ok(stored));
    }

    #[test]
    fn what_a_request_needs_is_prepared() {
        let url = parse("https://example.com:8443/hooks?token=1").unwrap();
        assert_eq!(url.path(), "/hooks?token=1");
        assert_eq!(url.absolute(), "https://example.com:8443/hooks?token=1");
        assert_eq!(url.host_header(), "example.com:8443");
        assert_eq!(&*url.destination().key, "https://example.com:8443");
        assert_eq!(format!("{url:?}"), r#"EndpointUrl("https://example.com:8443/hooks")"#);
        let url = parse("http://[2606:4700::1111]/").unwrap();
        assert_eq!(url.host_header(), "[2606:4700::1111]");
        assert_eq!(&*url.destination().key, "http://[2606:4700::1111]:80");
    }

    #[test]
    fn a_location_is_read_from_where_it_stands_and_vetted_like_any_url() {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: true, guard: &guard };
        let from = parse("https://example.com:8443/a/b?c=d").unwrap();
        for (location, expected) in [
            ("/x", Ok("https://example.com:8443/x")),
            ("x?y", Ok("https://example.com:8443/a/x?y")),
            ("../x", Ok("https://example.com:8443/x")),
            ("?y", Ok("https://example.com:8443/a/b?y")),
            ("#part", Ok("https://example.com:8443/a/b?c=d")),
            ("", Ok("https://example.com:8443/a/b?c=d")),
            ("//other.example/x", Ok("https://other.example/x")),
            ("https://other.example/x", Ok("https://other.example/x")),
            ("http://other.example/", Err(UrlError::PlainHttp)),
            ("https://user@other.example/", Err(UrlError::Credentials)),
            ("//127.1/", Err(UrlError::ForbiddenAddress("127.0.0.1".parse().unwrap()))),
            ("//localhost/", Err(UrlError::PrivateName("localhost".into()))),
            ("//other.example:22/", Err(UrlError::Port(22))),
            ("file:///etc/passwd", Err(UrlError::Scheme("file".into()))),
        ] {
            let joined = from.join(location, &rules);
            assert_eq!(joined.as_ref().map(EndpointUrl::as_str), expected.as_ref().map(|text| *text), "{location}");
        }
        assert!(matches!(from.join(&"a".repeat(2049), &rules), Err(UrlError::TooLong(2049))));
        assert!(matches!(from.join("https://", &rules), Err(UrlError::Unreadable(_))));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        assert!(parse("http://10.0.0.1/").unwrap_err().to_string().contains("--allow-subnet"));
        assert!(parse("http://billing/").unwrap_err().to_string().contains("--allow-subnet"));
    }
}
