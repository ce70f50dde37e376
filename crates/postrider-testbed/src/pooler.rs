//! A real PgBouncer before a cluster.

use super::{Cluster, Keeper, PORTS_TRIED_MAX, free_port, programs};
use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

/// Dropped, it is ended.
pub struct Pooler {
    _keeper: Keeper,
    port: u16,
}

/// For how long a client is lent a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    Session,
    Transaction,
    Statement,
}

impl Pooler {
    /// With PgBouncer's own defaults, where there is a choice.
    ///
    /// # Panics
    ///
    /// If there is no PgBouncer on this machine, or it does not start.
    pub fn start(cluster: &Cluster, mode: PoolMode) -> Self {
        let (mut keeper, folder) =
            Keeper::spawn(include_str!("pooler.sh"), &[&programs::pooler(), &std::env::temp_dir()]);
        for _ in 0..PORTS_TRIED_MAX {
            let port = free_port();
            keeper.obeys(&format!("start {}", settings(cluster.port(), port, mode)));
            while keeper.obeys("alive") {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Self { _keeper: keeper, port };
                }
                thread::sleep(POLL);
            }
        }
        panic!("PgBouncer did not start:\n{}", log(&folder));
    }

    /// Of a database of the cluster, by way of this.
    pub fn url(&self, cluster: &Cluster, url: &str) -> String {
        url.replace(&format!(":{}/", cluster.port()), &format!(":{}/", self.port))
    }
}

fn settings(server: u16, own: u16, mode: PoolMode) -> String {
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
        PoolMode::Statement => "statement",
    };
    [
        "[databases]",
        &format!("* = host=127.0.0.1 port={server} user=postgres"),
        "[pgbouncer]",
        "listen_addr = 127.0.0.1",
        &format!("listen_port = {own}"),
        "unix_socket_dir =",
        "auth_type = any",
        &format!("pool_mode = {mode}"),
    ]
    .join("\\n")
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

const POLL: Duration = Duration::from_millis(5);
