//! From a host to addresses that may be dialled.
//!
//! The system's resolver would block a thread, add search domains and hide how long an answer lives, so
//! we ask the name servers ourselves. The guard sees every address of an answer, and one forbidden address
//! refuses the name as a whole: a name that mixes public and private ones is an attack or a mistake.

use super::egress::{AddressGuard, Forbidden};
use super::failure::Failure;
use super::url::Host;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf::read_system_conf;
use postrider_engine::Fault;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

#[derive(Clone, Debug, Default)]
pub enum NameServers {
    /// As `/etc/resolv.conf` says, without its search domains.
    #[default]
    System,
    These(Vec<SocketAddr>),
}

pub(super) struct Resolver {
    dns: TokioResolver,
    guard: AddressGuard,
    /// A dead name server may hold this many attempts, not all of them.
    slots: Semaphore,
    /// Names that are being looked up.
    names: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Resolver {
    pub fn new(servers: &NameServers, guard: AddressGuard) -> Result<Self, NetError> {
        let (servers, mut options) = match servers {
            NameServers::System => system_servers(),
            NameServers::These(addresses) => {
                (addresses.iter().copied().map(name_server).collect(), ResolverOpts::default())
            }
        };
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.timeout = Duration::from_secs(2);
        options.attempts = 2;
        options.cache_size = 4096;
        options.positive_max_ttl = Some(Duration::from_secs(5 * 60));
        options.negative_max_ttl = Some(Duration::from_secs(30));
        options.max_active_requests = 2 * LOOKUPS_MAX;
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self { dns: builder.build()?, guard, slots: Semaphore::new(LOOKUPS_MAX), names: Mutex::default() })
    }

    /// Never empty.
    pub async fn vetted(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        let addresses = match host {
            Host::Ip(address) => vec![*address],
            Host::Name(_) if host.is_localhost() => self.loopback(),
            Host::Name(name) => self.lookup(name).await?,
        };
        self.vet_all(&addresses).map_err(|Forbidden| Failure::forbidden())?;
        Ok(addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    fn vet_all(&self, addresses: &[IpAddr]) -> Result<(), Forbidden> {
        if addresses.is_empty() {
            return Err(Forbidden);
        }
        addresses.iter().try_for_each(|&address| self.guard.check(address))
    }

    /// An operator who opened 127.0.0.0/8 means `localhost`, whether or not `::1` is open too.
    fn loopback(&self) -> Vec<IpAddr> {
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
            .into_iter()
            .filter(|&address| self.guard.check(address).is_ok())
            .collect()
    }

    /// A name waits for its own earlier lookups first, so that names whose servers are silent take few of the slots
    /// that all share.
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, Failure> {
        let deadline = Instant::now() + LOOKUP_MAX;
        let too_late = |_| Failure::new(Fault::Dns, "the name servers did not answer in time");
        let own_slots = self.slots_of(name);
        let _own = timeout_at(deadline, own_slots.acquire()).await.map_err(too_late)?;
        // That others took all slots is no fault of this name.
        let _slot = timeout_at(deadline, self.slots.acquire()).await.map_err(|_| Failure::local_shortage())?;
        timeout_at(deadline, self.ask(name)).await.map_err(too_late)?
    }

    fn slots_of(&self, name: &str) -> Arc<Semaphore> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, slots| slots.strong_count() > 0);
        match names.get(name).and_then(Weak::upgrade) {
            Some(slots) => slots,
            None => {
                let slots = Arc::new(Semaphore::new(LOOKUPS_PER_NAME_MAX));
                names.insert(name.to_owned(), Arc::downgrade(&slots));
                slots
            }
        }
    }

    async fn ask(&self, name: &str) -> Result<Vec<IpAddr>, Failure> {
        let mut name = Name::from_ascii(name)
            .map_err(|_| Failure::new(Fault::Dns, "the host name is not one that DNS can hold"))?;
        // Fully qualified: looked up as it stands, or not at all.
        name.set_fqdn(true);
        let answer = self.dns.lookup_ip(name).await.map_err(|error| {
            let detail = if error.is_nx_domain() {
                "the host name does not exist"
            } else if error.is_no_records_found() {
                "the host name has no address"
            } else {
                "the host name could not be looked up"
            };
            Failure::new(Fault::Dns, detail)
        })?;
        let addresses: Vec<IpAddr> = answer.iter().collect();
        if addresses.is_empty() {
            return Err(Failure::new(Fault::Dns, "the host name has no address"));
        }
        Ok(addresses)
    }
}

/// Without any server, names fail as DNS faults and addresses still work; that is better than not starting.
fn system_servers() -> (Vec<NameServerConfig>, ResolverOpts) {
    match read_system_conf() {
        Ok((config, options)) => (config.name_servers().to_vec(), options),
        Err(error) => {
            tracing::warn!(%error, "cannot read the system's name servers; only addresses can be called");
            (Vec::new(), ResolverOpts::default())
        }
    }
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()]
        .map(|mut connection| {
            connection.port = address.port();
            connection
        })
        .to_vec();
    NameServerConfig::new(address.ip(), true, connections)
}

/// Covers the wait for slots, too.
const LOOKUP_MAX: Duration = Duration::from_secs(4);

const LOOKUPS_MAX: usize = 64;

const LOOKUPS_PER_NAME_MAX: usize = 2;
