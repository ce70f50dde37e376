//! A name server that lies. The first label of a name says how, the second is the address it is to lead to, in hex.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tokio::net::UdpSocket;

/// How a name leads to a forbidden address.
pub const WAYS: [&str; 5] = ["only", "after", "before", "alias", "turns"];

pub fn name(way: &str, address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{way}.{:08x}.example.com", v4.to_bits()),
        IpAddr::V6(v6) => format!("{way}.{:032x}.example.com", v6.to_bits()),
    }
}

pub async fn serve(socket: UdpSocket, public: Ipv4Addr) {
    let mut asked_before = HashSet::new();
    let mut buffer = [0; 1500];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        if let Some(answer) = answer(&buffer[..length], public, &mut asked_before) {
            socket.send_to(&answer, peer).await.unwrap();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    A,
    Aaaa,
}

fn answer(query: &[u8], public: Ipv4Addr, asked_before: &mut HashSet<Vec<u8>>) -> Option<Vec<u8>> {
    let end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let labels = labels(&query[12..end])?;
    let [way, hex, ..] = labels.as_slice() else { return None };
    let kind = match query.get(end..end + 2)? {
        [0, 1] => Kind::A,
        [0, 28] => Kind::Aaaa,
        _ => return None,
    };
    let target = address(hex)?;
    let target_kind = if target.is_ipv4() { Kind::A } else { Kind::Aaaa };
    let first_time = asked_before.insert(query[12..end + 2].to_vec());
    let target = (kind == target_kind).then_some(target);
    let public = (kind == Kind::A).then_some(IpAddr::V4(public));
    let addresses: Vec<IpAddr> = match way.as_str() {
        "only" | "alias" => target.into_iter().collect(),
        "after" => public.into_iter().chain(target).collect(),
        "before" => target.into_iter().chain(public).collect(),
        "turns" if first_time => public.into_iter().collect(),
        "turns" => target.into_iter().chain(public.filter(|_| target_kind == Kind::Aaaa)).collect(),
        _ => return None,
    };
    let aliases = u16::from(way == "alias");
    let mut text = query[..2].to_vec();
    text.extend([0x81, 0x80, 0, 1]);
    text.extend((addresses.len() as u16 + aliases).to_be_bytes());
    text.extend([0; 4]);
    text.extend(&query[12..end + 4]);
    let mut owner = 12u16;
    if way == "alias" {
        // To the rest of the same name with another first label.
        let mut alias = b"\x04only".to_vec();
        alias.extend((0xc000 | (12 + 1 + way.len() as u16)).to_be_bytes());
        text.extend((0xc000 | owner).to_be_bytes());
        text.extend([0, 5, 0, 1, 0, 0, 0, 0]);
        text.extend((alias.len() as u16).to_be_bytes());
        owner = text.len() as u16;
        text.extend(alias);
    }
    for address in addresses {
        text.extend((0xc000 | owner).to_be_bytes());
        match address {
            IpAddr::V4(v4) => {
                text.extend([0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                text.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                text.extend([0, 28, 0, 1, 0, 0, 0, 0, 0, 16]);
                text.extend(v6.octets());
            }
        }
    }
    Some(text)
}

fn labels(mut name: &[u8]) -> Option<Vec<String>> {
    let mut labels = Vec::new();
    while let [length @ 1..=63, rest @ ..] = name {
        let (label, rest) = rest.split_at_checked(usize::from(*length))?;
        labels.push(String::from_utf8(label.to_ascii_lowercase()).ok()?);
        name = rest;
    }
    Some(labels)
}

fn address(hex: &str) -> Option<IpAddr> {
    match hex.len() {
        8 => u32::from_str_radix(hex, 16).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        32 => u128::from_str_radix(hex, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into()),
        _ => None,
    }
}
