//! Addresses that nobody may make us call, and ways to write them. Taken from IANA's registries and the clouds' manuals, not
//! from the guard's own table.

use rand::RngExt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const BLOCKS_V4: &[&str] = &[
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "100.100.100.200/32",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "169.254.169.254/32",
    "169.254.170.2/32",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.0.192/32",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "233.252.0.0/24",
    "240.0.0.0/4",
    "255.255.255.255/32",
];

const BLOCKS_V6: &[&str] = &[
    "::/128",
    "::1/128",
    "::/96",
    "::ffff:0:0/96",
    "::ffff:0:0:0/96",
    "::5efe:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001::/32",
    "2001:2::/48",
    "2001:10::/28",
    "2001:20::/28",
    "2001:db8::/32",
    "2002::/16",
    "2002:7f00:1::/48",
    "2002:a9fe:a9fe::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "ff02::1/128",
    "4000::/3",
    "8000::/1",
];

/// Wrapped in each of these an IPv4 address is still that address to somebody on the way.
const WRAPS: &[(&str, u32)] =
    &[("::", 0), ("::ffff:0:0", 0), ("::ffff:0:0:0", 0), ("::5efe:0:0", 0), ("64:ff9b::", 0), ("2002::", 80)];

/// Both ends of each block, what is next to them, and its middle; and well-known private ones in every wrap.
pub fn forbidden() -> Vec<IpAddr> {
    let v4 = BLOCKS_V4.iter().flat_map(|block| {
        let (first, last) = ends(block);
        points(first, last).map(|point| IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(point).unwrap())))
    });
    let v6 = BLOCKS_V6.iter().flat_map(|block| {
        let (first, last) = ends(block);
        points(first, last).map(|point| IpAddr::V6(Ipv6Addr::from_bits(point)))
    });
    let wrapped = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1"].into_iter().flat_map(|inside| {
        let inside = u128::from(inside.parse::<Ipv4Addr>().unwrap().to_bits());
        WRAPS.iter().map(move |(wrap, shift)| {
            IpAddr::V6(Ipv6Addr::from_bits(wrap.parse::<Ipv6Addr>().unwrap().to_bits() | (inside << shift)))
        })
    });
    let mut all: Vec<IpAddr> = v4.chain(v6).chain(wrapped).collect();
    all.sort();
    all.dedup();
    all
}

/// All blocks of IPv4, in order, those that touch as one.
pub fn ranges_v4() -> Vec<(u32, u32)> {
    let narrow = |bits: u128| u32::try_from(bits).unwrap();
    let mut ranges: Vec<(u32, u32)> =
        BLOCKS_V4.iter().map(|block| ends(block)).map(|(first, last)| (narrow(first), narrow(last))).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// What is not among what was ever given out, or is special there.
pub fn is_forbidden_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    let is_given_out = (0x2000_u128 << 112..0x4000_u128 << 112).contains(&bits);
    !is_given_out || BLOCKS_V6.iter().map(|block| ends(block)).any(|(first, last)| (first..=last).contains(&bits))
}

/// Random ones: anywhere, in or right beside a block, and with an IPv4 address wrapped in them.
pub fn sample_v6(chance: &mut impl RngExt) -> Ipv6Addr {
    let bits: u128 = match chance.random_range(0..4) {
        0 => chance.random(),
        1 => (0b001 << 125) | (chance.random::<u128>() >> 3),
        2 => {
            let (first, last) = ends(BLOCKS_V6[chance.random_range(0..BLOCKS_V6.len())]);
            match chance.random_range(0..4) {
                0 => first.wrapping_sub(1),
                1 => last.wrapping_add(1),
                _ => chance.random_range(first..=last),
            }
        }
        _ => {
            let (wrap, shift) = WRAPS[chance.random_range(0..WRAPS.len())];
            wrap.parse::<Ipv6Addr>().unwrap().to_bits() | (u128::from(chance.random::<u32>()) << shift)
        }
    };
    Ipv6Addr::from_bits(bits)
}

fn ends(block: &str) -> (u128, u128) {
    let (network, prefix) = block.split_once('/').unwrap();
    let prefix: u32 = prefix.parse().unwrap();
    let (first, width) = match network.parse().unwrap() {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let size_less_one = if prefix == 0 { u128::MAX } else { (1u128 << (width - prefix)).wrapping_sub(1) };
    (first, first | size_less_one)
}

fn points(first: u128, last: u128) -> impl Iterator<Item = u128> {
    let middle = first + (last - first) / 2;
    [first, (first + 1).min(last), middle, last.saturating_sub(1).max(first), last].into_iter()
}

/// URLs whose host a browser takes for this address. Each is refused, whether it is understood or not.
pub fn spellings(address: IpAddr) -> Vec<String> {
    let hosts = match address {
        IpAddr::V4(v4) => spellings_v4(v4),
        IpAddr::V6(v6) => spellings_v6(v6),
    };
    let mut urls: Vec<String> = hosts.iter().map(|host| format!("http://{host}:8080/")).collect();
    let plain = &hosts[0];
    urls.extend([
        format!("http:\\\\{plain}\\"),
        format!("http:{plain}/"),
        format!("https://{plain}/?a#b"),
        format!("hTTp://{plain}:80/"),
        format!("http://user:password@{plain}/"),
        format!("http://ok.example@{plain}/"),
        format!("http://a@b@{plain}/"),
        format!("http://{plain}#@ok.example/"),
        format!("\t http://{plain}/ "),
        format!("http://\t{plain}/"),
    ]);
    urls
}

fn spellings_v4(address: Ipv4Addr) -> Vec<String> {
    let bits = address.to_bits();
    let [a, b, c, d] = address.octets();
    let dotted = address.to_string();
    let circled: String = dotted
        .chars()
        .map(|digit| match digit {
            '0' => '⓪',
            '1'..='9' => char::from_u32('①' as u32 + digit as u32 - '1' as u32).unwrap(),
            other => other,
        })
        .collect();
    let wide: String = dotted
        .chars()
        .map(|digit| if digit.is_ascii_digit() { char::from_u32(digit as u32 + 0xfee0).unwrap() } else { digit })
        .collect();
    let percent: String = dotted.bytes().map(|byte| format!("%{byte:02x}")).collect();
    vec![
        dotted.clone(),
        format!("{dotted}."),
        format!("{bits}"),
        format!("0x{bits:x}"),
        format!("0{bits:o}"),
        format!("{a}.{}", bits & 0xff_ffff),
        format!("{a}.{b}.{}", bits & 0xffff),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("0x{a:X}.{b}.0{c:o}.{d}"),
        format!("000{a:o}.{b}.{c}.{d}"),
        dotted.replace('.', "。"),
        dotted.replace('.', "．"),
        circled,
        wide,
        percent,
        format!("[::ffff:{dotted}]"),
        format!("[::ffff:{:x}:{:x}]", bits >> 16, bits & 0xffff),
        format!("[::{dotted}]"),
        format!("[64:ff9b::{dotted}]"),
        format!("[2002:{:x}:{:x}::]", bits >> 16, bits & 0xffff),
    ]
}

fn spellings_v6(address: Ipv6Addr) -> Vec<String> {
    let long = address.segments().map(|segment| format!("{segment:04x}")).join(":");
    let dotted = {
        let [.., y, z] = address.segments();
        let head = address.segments()[..6].iter().map(|segment| format!("{segment:x}")).collect::<Vec<_>>().join(":");
        format!("{head}:{}", Ipv4Addr::from_bits(u32::from(y) << 16 | u32::from(z)))
    };
    vec![
        format!("[{address}]"),
        format!("[{long}]"),
        format!("[{}]", long.to_uppercase()),
        format!("[{dotted}]"),
        format!("[{address}%25lo]"),
        format!("[{address}%lo]"),
    ]
}
