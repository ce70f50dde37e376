//! Several nodes on one PostgreSQL of their own, each behind a proxy that can cut it off from the database.

use super::server::Server;
use postrider::keyring::Keyring;
use postrider_testbed::Cluster as Database;
use std::{
    fs, io,
    net::{self, Ipv4Addr, SocketAddr},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::watch,
};
use url::Url;

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub database: Database,
    _proxying: Runtime,
}

pub struct Node {
    pub server: Server,
    pub line: Line,
}

impl Cluster {
    /// `flags` go to every node.
    pub fn start(count: usize, flags: &[&str]) -> Self {
        let database = Database::start();
        let proxying = Runtime::new().expect("a runtime for the proxies");
        let url = Url::parse(&proxying.block_on(database.fresh_database())).expect("an address");
        let mut nodes: Vec<Node> = Vec::with_capacity(count);
        for number in 0..count {
            let line = Line::lay(&proxying, &url);
            let name = format!("node-{number}");
            let flags = [&["--database-url", line.url.as_str(), "--node-name", &name], flags].concat();
            let server = match nodes.first() {
                None => Server::start_with(&flags),
                Some(first) => Server::start_beside(&first.server, &flags),
            };
            nodes.push(Node { server, line });
        }
        Self { nodes, database, _proxying: proxying }
    }

    /// It is the same for all nodes.
    pub fn token(&self) -> &str {
        self.nodes[0].server.token()
    }
}

impl Server {
    /// With the keys of one that has been started, for the same database.
    fn start_beside(other: &Self, flags: &[&str]) -> Self {
        let mut server = Self::not_started(flags);
        fs::create_dir(server.data()).expect("a folder that is not there yet");
        fs::copy(other.data().join(Keyring::FILE), server.data().join(Keyring::FILE)).expect("the other has keys");
        server.start_again();
        server
    }
}

/// What a node's connections to the database run through.
pub struct Line {
    url: Url,
    is_cut: watch::Sender<bool>,
}

impl Line {
    fn lay(runtime: &Runtime, database: &Url) -> Self {
        let socket = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let mut url = database.clone();
        url.set_port(Some(socket.local_addr().expect("it is bound").port())).expect("the address has a port");
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, database.port().expect("the address has a port")));
        let is_cut = watch::Sender::new(false);
        runtime.spawn(pass_all_on(socket, server, is_cut.subscribe()));
        Self { url, is_cut }
    }

    /// Breaks all connections, and every new one as soon as it is made, until `mend`.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub fn mend(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn pass_all_on(socket: net::TcpListener, server: SocketAddr, is_cut: watch::Receiver<bool>) {
    socket.set_nonblocking(true).expect("a socket of ours");
    let listener = TcpListener::from_std(socket).expect("it is non-blocking");
    loop {
        let (client, _) = listener.accept().await.expect("file handles for a connection");
        let mut is_cut = is_cut.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = pass_on(client, server) => {}
                _ = is_cut.wait_for(|is_cut| *is_cut) => {}
            }
        });
    }
}

async fn pass_on(mut client: TcpStream, server: SocketAddr) -> io::Result<(u64, u64)> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await
}
