//! A URL that an endpoint may have: what is accepted reads back the same, by us and by others, and leads to the public
//! Internet only.

use postrider::{
    fuzzing::{Dialled, dialled},
    transport::{AddressGuard, EndpointUrl, UrlError, UrlRules},
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::LazyLock,
};
use url::Url;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let strict = UrlRules { https_only: true, ..usual() };
    match EndpointUrl::parse(text, &usual()) {
        Ok(url) => {
            holds(&url);
            assert_eq!(EndpointUrl::parse(text, &strict).is_ok(), dialled(&url).tls, "{url}");
        }
        Err(_) => {
            let secure = EndpointUrl::parse(text, &strict);
            assert!(secure.is_err(), "https_only lets {text:?} in");
        }
    }
}

/// No hole is open.
pub fn usual() -> UrlRules<'static> {
    static GUARD: LazyLock<AddressGuard> = LazyLock::new(|| AddressGuard::new(Vec::new()));
    UrlRules { https_only: false, guard: &GUARD }
}

pub fn holds(url: &EndpointUrl) {
    let text = url.as_str();
    let Dialled { host, port, tls, path, absolute, host_header } = dialled(url);
    let again = EndpointUrl::parse(text, &usual()).unwrap_or_else(|error: UrlError| panic!("{text}: {error}"));
    assert_eq!(again.as_str(), text);
    assert_eq!(dialled(&again), dialled(url));

    let read = Url::parse(text).expect("it was read before");
    assert_eq!((read.username(), read.password(), read.fragment()), ("", None, None), "{text}");
    assert!(text.len() <= 2048 && text.is_ascii(), "{text}");
    match host {
        Ok(address) => assert!(!is_special(address), "{text} leads to {address}"),
        Err(name) => {
            assert!(name.contains('.') && !name.ends_with('.'), "{text}");
            let private = ["localhost", "local", "internal", "localdomain", "home.arpa"];
            assert!(!private.iter().any(|zone| name.ends_with(&format!(".{zone}"))), "{text}");
            assert!(classic_ipv4(name).is_none(), "{text}: a resolver may take the name for an address");
            assert!(name.parse::<IpAddr>().is_err(), "{text}");
        }
    }
    assert!(matches!(port, 80 | 443 | 1024..), "{text}");
    assert_eq!(tls, text.starts_with("https://"));

    // The other parser, which writes the request, must see what ours has vetted.
    assert!(path.path().starts_with('/') && path.scheme().is_none() && path.host().is_none(), "{text}");
    assert_eq!(absolute.to_string(), text);
    let authority = absolute.authority().expect("an absolute URI has an authority");
    assert_eq!(authority.as_str().as_bytes(), host_header.as_bytes());
    assert_eq!(authority.port_u16().unwrap_or(if tls { 443 } else { 80 }), port, "{text}");
    let named = authority.host().trim_start_matches('[').trim_end_matches(']');
    match host {
        Ok(address) => assert_eq!(named.parse::<IpAddr>(), Ok(address), "{text}"),
        Err(name) => assert_eq!(named, name, "{text}"),
    }
    if let Some(query) = read.query().filter(|query| query.len() > 3) {
        assert!(!url.without_query().contains(&format!("?{query}")));
        assert!(!format!("{url:?}").contains(&format!("?{query}")));
    }
}

/// What is not the public Internet, as the standard library and the registries have it. Less than our own list.
pub fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_special_v4(v4),
        IpAddr::V6(v6) => {
            let [first, second, ..] = v6.segments();
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || (first, second) == (0x2001, 0xdb8)
                || inside(v6).is_some_and(is_special_v4)
        }
    }
}

fn is_special_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_multicast()
        || v4.is_broadcast()
        || v4.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a == 198 && (b == 18 || b == 19))
}

/// The IPv4 address in one of IPv6: mapped, compatible, translated (twice), NAT64, 6to4.
fn inside(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let at = |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff | 0, a, b] | [0, 0, 0, 0, 0xffff, 0, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => {
            at(a, b)
        }
        [0x2002, a, b, ..] => at(a, b),
        _ => None,
    }
}

/// As `inet_aton` reads it: one to four parts, each decimal, octal or hexadecimal, the last one filling what is left.
fn classic_ipv4(name: &str) -> Option<u32> {
    let parts: Vec<&str> = name.split('.').collect();
    let numbers: Vec<u64> = parts.iter().map(|part| number(part)).collect::<Option<_>>()?;
    let (last, first) = numbers.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) || *last >= 1 << (8 * (4 - first.len())) {
        return None;
    }
    let high = first.iter().enumerate().fold(0, |sum, (at, part)| sum | part << (24 - 8 * at));
    u32::try_from(high | last).ok()
}

fn number(part: &str) -> Option<u64> {
    let lower = part.to_ascii_lowercase();
    match lower.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if lower.starts_with('0') => u64::from_str_radix(&lower, 8).ok(),
        None => lower.parse().ok(),
    }
}
