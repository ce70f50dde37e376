//! Two network namespaces with a wire between them: ours, and the Internet. Whatever we send that is not for the one block
//! that is public here goes into a trap, where the kernel counts it.

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

pub const OURS: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 1);
pub const RECEIVER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
pub const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 53);

pub struct Namespaces {
    inside: String,
    outside: String,
}

impl Namespaces {
    /// The error says why there can be none here.
    pub fn make() -> Result<Self, String> {
        let id = std::process::id();
        let made = Self { inside: format!("postrider-in-{id}"), outside: format!("postrider-out-{id}") };
        for namespace in [&made.inside, &made.outside] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        let (inside, outside) = (&made.inside, &made.outside);
        for (ours, theirs) in [("wire", "wire"), ("trap", "trap")] {
            ip(&format!("-n {inside} link add {ours} type veth peer name {theirs} netns {outside}"))?;
            for (namespace, link) in [(inside, ours), (outside, theirs)] {
                // Or the link speaks by itself, and what it says is counted.
                ip(&format!("-n {namespace} link set {link} addrgenmode none"))?;
                ip(&format!("-n {namespace} link set {link} up"))?;
            }
        }
        ip(&format!("-n {inside} addr add {OURS}/24 dev wire"))?;
        ip(&format!("-n {inside} addr add 2606:4700::1/64 dev wire nodad"))?;
        for address in [RECEIVER, NAME_SERVER] {
            ip(&format!("-n {outside} addr add {address}/24 dev wire"))?;
        }
        ip(&format!("-n {inside} route add default dev trap"))?;
        // A link that has an address of IPv6 tells its neighbours, so the trap has none and knows its neighbour by heart.
        ip(&format!("-n {inside} -6 neigh add fe80::1 lladdr 02:00:00:00:00:01 dev trap nud permanent"))?;
        ip(&format!("-n {inside} -6 route add default via fe80::1 dev trap onlink"))?;
        Ok(made)
    }

    /// This very program, with only this test, on the inside.
    pub fn inside(&self, test: &str) -> Command {
        Self::within(&self.inside, test)
    }

    pub fn outside(&self, test: &str) -> Command {
        Self::within(&self.outside, test)
    }

    fn within(namespace: &str, test: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]).env(WITHIN, "1").stdin(Stdio::null());
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.inside, &self.outside] {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

/// Ends with the test, whatever becomes of it.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this is the process that was started in a namespace. Who runs ignored tests by hand is not.
pub fn is_within() -> bool {
    std::env::var_os(WITHIN).is_some()
}

/// Packets that left by this link, as the kernel counts them.
pub fn sent_by(link: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/net/dev").unwrap();
    let counts = table.lines().find_map(|line| line.trim().strip_prefix(link)?.strip_prefix(':')).unwrap();
    counts.split_whitespace().nth(9).unwrap().parse().unwrap()
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

const WITHIN: &str = "POSTRIDER_TEST_NAMESPACE";
