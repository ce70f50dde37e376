//! Which addresses and ports may be dialled.
//!
//! Customers choose the URLs we call, and we sit inside somebody's network: without this list an
//! endpoint is a way to make us talk to the operator's database or to a cloud's metadata service. So
//! whole blocks are refused, never single spellings, and what is not known to be the public Internet is
//! not called. Only the operator can open a hole, by CIDR, for the whole deployment.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Cheap to clone; everyone who vets an address shares one list.
#[derive(Clone, Debug)]
pub struct AddressGuard {
    lists: Arc<Lists>,
}

#[derive(Clone, Debug)]
struct Lists {
    allow: Vec<IpNet>,
    /// Sorted. Our own public address would be a way round to our own API.
    own: Vec<IpAddr>,
    /// That the operator opened besides the usual ones.
    ports: Vec<u16>,
}

/// Says nothing about the address, so that no message built from it can tell a stranger about our network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this address is not one that Postrider calls")]
pub struct Forbidden;

impl AddressGuard {
    /// Reads this machine's own addresses once. A machine that gains an address later keeps the old list
    /// until it starts again; its private ones are refused by their block in any case.
    pub fn new(allow: Vec<IpNet>) -> Self {
        let own = match if_addrs::get_if_addrs() {
            Ok(interfaces) => interfaces.iter().map(if_addrs::Interface::ip).collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot list this machine's own addresses; they are not refused");
                Vec::new()
            }
        };
        Self::with_own(allow, own)
    }

    /// The same, with ports besides the usual ones.
    pub fn opening_ports(self, ports: Vec<u16>) -> Self {
        let Lists { allow, own, .. } = Arc::unwrap_or_clone(self.lists);
        Self { lists: Arc::new(Lists { allow, own, ports }) }
    }

    pub fn check_port(&self, port: u16) -> Result<(), Forbidden> {
        let usual = matches!(port, 80 | 443) || (port >= 1024 && !SERVICE_PORTS.contains(&port));
        if usual || self.lists.ports.contains(&port) { Ok(()) } else { Err(Forbidden) }
    }

    pub fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        if self.allows(address) {
            // A hole for NAT64 lets the Internet in, not the private network behind the translator.
            return match nat64_inside(address) {
                Some(inside) => self.check(IpAddr::V4(inside)),
                None => Ok(()),
            };
        }
        let public = match address {
            IpAddr::V4(v4) => is_public_v4(v4),
            IpAddr::V6(v6) => is_public_v6(v6),
        };
        if public && self.lists.own.binary_search(&address).is_err() { Ok(()) } else { Err(Forbidden) }
    }

    /// Whether the operator opened any hole at all: a deployment that calls its own network has names
    /// without a dot, too.
    pub fn allows_private_names(&self) -> bool {
        !self.lists.allow.is_empty()
    }

    fn with_own(allow: Vec<IpNet>, mut own: Vec<IpAddr>) -> Self {
        own.sort_unstable();
        Self { lists: Arc::new(Lists { allow, own, ports: Vec::new() }) }
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.lists.allow.iter().any(|net| net.contains(&address))
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    // The last block that starts at or before the address is the only one that can hold it.
    let after = FORBIDDEN_V4.partition_point(|block| block.first() <= bits);
    after == 0 || !FORBIDDEN_V4[after - 1].contains(bits)
}

/// Only 2000::/3 was ever given out as public. Everything else is refused as a whole: `::/8` with every
/// way to wrap an IPv4 address (mapped, compatible, NAT64), 100::/8, 5f00::/16, fc00::/7 (which holds
/// AWS's fd00:ec2::254), fe80::/10, fec0::/10 and multicast.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    bits >> 125 == 0b001 && !FORBIDDEN_V6.iter().any(|&(network, prefix)| (bits ^ network) >> (128 - prefix) == 0)
}

fn nat64_inside(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return None };
    let bits = v6.to_bits();
    (bits >> 32 == 0x0064_ff9b_0000_0000_0000_0000).then(|| Ipv4Addr::from_bits(bits as u32))
}

struct Block {
    network: Ipv4Addr,
    prefix: u32,
}

impl Block {
    const fn new(a: u8, b: u8, c: u8, d: u8, prefix: u32) -> Self {
        Self { network: Ipv4Addr::new(a, b, c, d), prefix }
    }

    fn first(&self) -> u32 {
        self.network.to_bits()
    }

    fn contains(&self, bits: u32) -> bool {
        (bits ^ self.first()) >> (32 - self.prefix) == 0
    }
}

/// IANA's special-purpose registry, multicast and the reserved end, in order and without overlap. Blocks
/// are taken whole: the few public anycast addresses in 192.0.0.0/24 receive no webhooks.
const FORBIDDEN_V4: [Block; 16] = [
    Block::new(0, 0, 0, 0, 8),
    Block::new(10, 0, 0, 0, 8),
    // Carrier-grade NAT, and with it Alibaba's metadata service at 100.100.100.200.
    Block::new(100, 64, 0, 0, 10),
    Block::new(127, 0, 0, 0, 8),
    // Azure's wire server: looks public, answers inside.
    Block::new(168, 63, 129, 16, 32),
    Block::new(169, 254, 0, 0, 16),
    Block::new(172, 16, 0, 0, 12),
    // Holds Oracle's metadata service at 192.0.0.192.
    Block::new(192, 0, 0, 0, 24),
    Block::new(192, 0, 2, 0, 24),
    Block::new(192, 88, 99, 0, 24),
    Block::new(192, 168, 0, 0, 16),
    Block::new(198, 18, 0, 0, 15),
    Block::new(198, 51, 100, 0, 24),
    Block::new(203, 0, 113, 0, 24),
    Block::new(224, 0, 0, 0, 4),
    Block::new(240, 0, 0, 0, 4),
];

/// What is special inside 2000::/3: protocol assignments with Teredo, documentation (twice) and 6to4.
/// 2001::/23 has a few global parts (anycast, ORCHID); none of them receives webhooks either.
const FORBIDDEN_V6: [(u128, u32); 4] =
    [(0x2001_0000 << 96, 23), (0x2001_0db8 << 96, 32), (0x2002_0000 << 96, 16), (0x3fff_0000 << 96, 20)];

/// Databases, caches, brokers, control planes and remote desktops: a request that reaches one of them by
/// way of us is an attack, not a webhook.
const SERVICE_PORTS: [u16; 37] = [
    1433, 1434, 1521, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5432, 5433, 5671, 5672, 5900, 5984, 5985,
    5986, 6000, 6379, 6380, 6443, 6667, 8500, 9042, 9092, 9200, 9300, 10250, 10255, 11211, 27017, 27018, 27019, 50070,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allow: &[&str]) -> AddressGuard {
        let allow = allow.iter().map(|net| net.parse().unwrap()).collect();
        AddressGuard::with_own(allow, vec!["93.184.215.7".parse().unwrap()])
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_refused() {
        let guard = guard(&[]);
        for text in "
            0.0.0.0 0.255.255.255 10.0.0.1 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255
            127.0.0.1 127.255.255.255 168.63.129.16 169.254.169.254 172.16.0.0 172.31.255.255
            192.0.0.9 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.0 192.168.255.255 198.18.0.0
            198.19.255.255 198.51.100.7 203.0.113.255 224.0.0.1 239.255.255.255 240.0.0.0
            255.255.255.255 93.184.215.7 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:8.8.8.8
            ::ffff:0:7f00:1 ::5efe:7f00:1 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 100::1
            100:0:0:1::1 2001::1 2001:1::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:1ff:ffff::
            2001:db8::1 2002:7f00:1:: 3fff::1 3fff:fff:ffff::1 5f00::1 fc00::1 fd00:ec2::254 fdff::
            fe80::1 fec0::1 ff02::1 4000::1 1fff::1
        "
        .split_whitespace()
        {
            assert_eq!(guard.check(ip(text)), Err(Forbidden), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_called() {
        let guard = guard(&[]);
        for text in "
            1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255
            128.0.0.0 168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255
            172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
            93.184.215.8 2000::1 2001:200::1 2001:4860:4860::8888 2003::1 2606:4700::1111 3ffe:ffff::1
            3fff:1000::1
        "
        .split_whitespace()
        {
            assert_eq!(guard.check(ip(text)), Ok(()), "{text}");
        }
    }

    #[test]
    fn the_operators_holes_win() {
        let guard = guard(&["10.1.0.0/16", "127.0.0.0/8", "93.184.215.7/32", "64:ff9b::/96", "fd12::/16"]);
        for (text, expected) in [
            ("10.1.2.3", Ok(())),
            ("10.2.2.3", Err(Forbidden)),
            ("127.0.0.1", Ok(())),
            ("::1", Err(Forbidden)),
            ("::ffff:127.0.0.1", Err(Forbidden)),
            ("93.184.215.7", Ok(())),
            ("fd12::1", Ok(())),
            ("64:ff9b::808:808", Ok(())),
            ("64:ff9b::a01:203", Ok(())),
            ("64:ff9b::a9fe:a9fe", Err(Forbidden)),
        ] {
            assert_eq!(guard.check(ip(text)), expected, "{text}");
        }
    }

    /// Written from the registries a second time, by octets and with std's predicates, so that a slip in
    /// the table above does not check itself.
    fn is_public_by_octets(address: Ipv4Addr) -> bool {
        let special = match address.octets() {
            [0, ..] => true,
            [100, second, ..] => (64..128).contains(&second),
            [168, 63, 129, 16] => true,
            [192, 0, 0, _] | [192, 88, 99, _] => true,
            [198, 18 | 19, ..] => true,
            [240..=255, ..] => true,
            _ => false,
        };
        !(special
            || address.is_private()
            || address.is_loopback()
            || address.is_link_local()
            || address.is_documentation()
            || address.is_multicast()
            || address.is_broadcast()
            || address.is_unspecified())
    }

    #[test]
    fn two_independent_lists_agree_on_ipv4() {
        let boundaries = (0..=u32::from(u16::MAX)).flat_map(|high| {
            let start = high << 16;
            [start.wrapping_sub(1), start, start + 1]
        });
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let random = std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u32
        });
        for bits in boundaries.chain(random.take(1 << 20)) {
            let address = Ipv4Addr::from_bits(bits);
            assert_eq!(is_public_v4(address), is_public_by_octets(address), "{address}");
        }
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(FORBIDDEN_V4.is_sorted_by_key(Block::first));
        for pair in FORBIDDEN_V4.windows(2) {
            assert!(!pair[0].contains(pair[1].first()), "{} overlaps", pair[1].network);
        }
    }

    #[test]
    fn this_machines_own_addresses_are_refused() {
        let guard = AddressGuard::new(Vec::new());
        for interface in if_addrs::get_if_addrs().unwrap() {
            assert_eq!(guard.check(interface.ip()), Err(Forbidden));
        }
    }
}
