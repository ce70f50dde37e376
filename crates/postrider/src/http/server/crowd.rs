//! Who is connected, and how many from where.

use super::Limits;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex},
};

/// Who is connected.
pub(super) struct Crowd {
    limits: Limits,
    here: Mutex<Here>,
}

#[derive(Default)]
struct Here {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place in the crowd, free again when dropped.
pub(super) struct Place {
    crowd: Arc<Crowd>,
    /// `None` where addresses are not counted.
    pub(super) address: Option<IpAddr>,
}

impl Crowd {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, here: Mutex::default() }
    }

    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let address = (!peer.is_loopback()).then(|| network(peer));
        let mut here = self.here.lock().expect("no one panics while counting");
        if here.all >= self.limits.connections_max {
            return None;
        }
        if let Some(address) = address {
            let count = here.by_address.entry(address).or_default();
            if *count >= self.limits.connections_per_address_max {
                return None;
            }
            *count += 1;
        }
        here.all += 1;
        Some(Place { crowd: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = self.crowd.here.lock().expect("no one panics while counting");
        here.all -= 1;
        let Some(address) = self.address else { return };
        if let Some(count) = here.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                here.by_address.remove(&address);
            }
        }
    }
}

/// One household of IPv6 has a whole /64, and would else count as 2^64 strangers.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_apart_and_loopback_not_at_all() {
        let crowd =
            Arc::new(Crowd::new(Limits { connections_per_address_max: 1, connections_max: 5, ..Limits::default() }));
        let admit = |address: &str| crowd.admit(address.parse().unwrap());
        let first = admit("192.0.2.1");
        assert!(first.is_some() && admit("192.0.2.1").is_none() && admit("::ffff:192.0.2.1").is_none());
        let _other = admit("2001:db8::1").unwrap();
        assert!(admit("2001:db8::2").is_none(), "the same /64");
        let _local = [admit("127.0.0.1").unwrap(), admit("::1").unwrap()];
        drop(first);
        assert!(admit("192.0.2.1").is_some());
        let _full = [admit("192.0.2.2").unwrap(), admit("192.0.2.3").map_or_else(|| admit("127.0.0.1"), Some).unwrap()];
        assert!(admit("127.0.0.1").is_none(), "full for everyone");
    }
}
