//! An address in any spelling: what must not be called is refused in all of them.

use super::{
    draws::Draws,
    url_and_host::{holds, is_special, usual},
};
use postrider::transport::{EndpointUrl, UrlError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let v4 = Ipv4Addr::from_bits(draws.any());
    let address = if draws.any() {
        IpAddr::V4(v4)
    } else {
        let [a, b, c, d] = v4.octets();
        let low = u128::from(v4.to_bits());
        let wrapped = draws.one_of(&[
            low,
            0xffff << 32 | low,
            0xffff << 48 | low,
            0x64_ff9b << 96 | low,
            0x2002 << 112 | low << 80,
            0xfd00_0ec2 << 96 | low,
            0xfe80 << 112 | low,
            u128::from_be_bytes([0x26, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ]);
        IpAddr::V6(Ipv6Addr::from_bits(wrapped))
    };
    let host = match address {
        IpAddr::V4(v4) => spelt(v4, &mut draws),
        IpAddr::V6(v6) => spelt_v6(v6, &mut draws),
    };
    let before = draws.one_of(&["http://", "https://", "HTTP:", "http:\\\\", " https:/", "http:///"]);
    let after =
        draws.one_of(&["", "/", ":8080/x", "?@example.com/", "#@example.com", "\\@example.com/", "/%2e%2e/..//"]);
    let text = format!("{before}{host}{after}");
    match EndpointUrl::parse(&text, &usual()) {
        Ok(url) => {
            assert!(!is_special(address), "{text} lets {address} in");
            holds(&url);
        }
        Err(UrlError::ForbiddenAddress(refused)) => assert_eq!(refused, address, "{text}"),
        Err(error) => panic!("{text} is the spelling of an address: {error}"),
    }
}

fn spelt(v4: Ipv4Addr, draws: &mut Draws<'_>) -> String {
    let [a, b, c, d] = v4.octets().map(u64::from);
    let parts = match draws.below(4) {
        0 => vec![a, b, c, d],
        1 => vec![a, b, c << 8 | d],
        2 => vec![a, b << 16 | c << 8 | d],
        _ => vec![a << 24 | b << 16 | c << 8 | d],
    };
    let encoded = |c: char| if c.is_ascii_digit() { format!("%{:02X}", u32::from(c)) } else { c.to_string() };
    let parts: Vec<String> = parts
        .into_iter()
        .map(|part| {
            let text = match draws.below(4) {
                0 => format!("0x{part:x}"),
                1 => format!("0X{part:X}"),
                2 => format!("0{part:o}"),
                _ => part.to_string(),
            };
            match draws.below(4) {
                0 => text.chars().map(wide).collect(),
                1 => text.chars().map(encoded).collect(),
                2 => text.chars().flat_map(|c| [c, '\t']).collect(),
                _ => text,
            }
        })
        .collect();
    let host = parts.join(draws.one_of(&[".", "。", "．", "%2e"]));
    if draws.any() { format!("{host}.") } else { host }
}

/// A full-width digit is a digit to those who normalise names.
fn wide(c: char) -> char {
    match c {
        '0'..='9' => char::from_u32(u32::from(c) - u32::from('0') + 0xff10).unwrap_or(c),
        _ => c,
    }
}

fn spelt_v6(v6: Ipv6Addr, draws: &mut Draws<'_>) -> String {
    let segments = v6.segments();
    let [.., high, low] = segments;
    let all = segments.map(|segment| format!("{segment:x}")).join(":");
    let mixed = format!("{}:{}", segments[..6].iter().map(|s| format!("{s:04X}")).collect::<Vec<_>>().join(":"), {
        Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
    });
    format!("[{}]", draws.one_of(&[v6.to_string(), all.clone(), all.to_uppercase(), mixed]))
}
