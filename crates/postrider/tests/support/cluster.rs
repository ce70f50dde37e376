//! Several nodes on one PostgreSQL of their own, each behind a proxy that can cut it off from the database.

use super::{eventually, server::Server};
use postrider::keyring::Keyring;
use postrider_testbed::{Cluster as Database, connect};
use socket2::SockRef;
use std::{
    fs, io,
    net::{self, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Runtime,
    sync::watch,
};
use url::Url;

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub database: Database,
    /// What the database commits is there, too, before it is answered.
    pub standby: Option<Database>,
    _proxying: Runtime,
}

pub struct Node {
    pub server: Server,
    pub line: Line,
}

impl Cluster {
    /// `flags` go to every node.
    pub fn start(count: usize, flags: &[&str]) -> Self {
        let proxying = Runtime::new().expect("a runtime for the proxies");
        let database = Database::start();
        let url = proxying.block_on(database.fresh_database());
        Self::start_on(proxying, database, None, &url, count, flags)
    }

    /// With a standby that the nodes know of.
    pub fn start_with_standby(count: usize) -> Self {
        let proxying = Runtime::new().expect("a runtime for the proxies");
        let database = Database::start();
        let url = proxying.block_on(database.fresh_database());
        let standby = database.standby(STANDBY);
        proxying.block_on(wait_for_standby(&url));
        Self::start_on(proxying, database, Some(standby), &url, count, &[])
    }

    fn start_on(
        proxying: Runtime,
        database: Database,
        standby: Option<Database>,
        url: &str,
        count: usize,
        flags: &[&str],
    ) -> Self {
        let url = Url::parse(url).expect("an address");
        let mut nodes: Vec<Node> = Vec::with_capacity(count);
        for number in 0..count {
            let line = Line::lay(&proxying, &url);
            let name = format!("node-{number}");
            let url = match &standby {
                None => line.url.to_string(),
                Some(standby) => {
                    line.url.as_str().replace(url.path(), &format!(",127.0.0.1:{}{}", standby.port(), url.path()))
                }
            };
            let flags = [&["--database-url", &url, "--node-name", &name], flags].concat();
            let server = match nodes.first() {
                None => Server::start_with(&flags),
                Some(first) => Server::start_beside(&first.server, &flags),
            };
            nodes.push(Node { server, line });
        }
        Self { nodes, database, standby, _proxying: proxying }
    }

    /// It is the same for all nodes.
    pub fn token(&self) -> &str {
        self.nodes[0].server.token()
    }
}

/// From then on no commit is answered that the standby does not have.
async fn wait_for_standby(url: &str) {
    let client = connect(url).await;
    for sql in [&format!("ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'"), "SELECT pg_reload_conf()"] {
        client.batch_execute(sql).await.expect("a superuser may");
    }
    eventually("a standby in step", async || {
        let sql = "SELECT FROM pg_stat_replication WHERE application_name = $1 AND sync_state = 'sync'";
        client.query_opt(sql, &[&STANDBY]).await.expect("an answer").map(drop)
    })
    .await;
}

const STANDBY: &str = "second";

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
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    /// Every connection is broken as soon as it is made.
    Cut,
    /// What is said is heard, and the answers are not.
    Deaf,
    /// Nothing comes through either way.
    Silent,
    /// Everything comes late, both ways.
    Slow(Duration),
    /// The node's side of every connection ends, and the database's does not.
    HalfClosed,
    /// Every connection is reset after so many bytes of answers.
    ResetAfter(usize),
    /// A commit is carried out, and its answer is lost along with the connection.
    CommitUnanswered,
}

impl Line {
    fn lay(runtime: &Runtime, database: &Url) -> Self {
        let socket = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let mut url = database.clone();
        url.set_port(Some(socket.local_addr().expect("it is bound").port())).expect("the address has a port");
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, database.port().expect("the address has a port")));
        let state = watch::Sender::new(State::Whole);
        runtime.spawn(pass_all_on(socket, server, state.subscribe()));
        Self { url, state }
    }

    /// Breaks all connections, and every new one, until `mend`.
    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Holds back what the database answers, until `mend`.
    pub fn deafen(&self) {
        self.state.send_replace(State::Deaf);
    }

    /// Holds back everything, until `mend`.
    pub fn silence(&self) {
        self.state.send_replace(State::Silent);
    }

    /// Holds everything back for a while, until `mend`.
    pub fn slow_down(&self, by: Duration) {
        self.state.send_replace(State::Slow(by));
    }

    /// Ends what the node says on every connection, and lets it hear on, until `mend`.
    pub fn half_close(&self) {
        self.state.send_replace(State::HalfClosed);
    }

    /// Resets every connection when the database has said so much on it, until `mend`.
    pub fn reset_after(&self, bytes: usize) {
        self.state.send_replace(State::ResetAfter(bytes));
    }

    /// Lets every commit through and then breaks its connection, until `mend`.
    pub fn lose_answers_to_commits(&self) {
        self.state.send_replace(State::CommitUnanswered);
    }

    /// What was held back comes now, as after a loss of packets.
    pub fn mend(&self) {
        self.state.send_replace(State::Whole);
    }
}

async fn pass_all_on(socket: net::TcpListener, server: SocketAddr, state: watch::Receiver<State>) {
    socket.set_nonblocking(true).expect("a socket of ours");
    let listener = TcpListener::from_std(socket).expect("it is non-blocking");
    loop {
        let (client, _) = listener.accept().await.expect("file handles for a connection");
        let mut cut = state.clone();
        let lines = (state.clone(), state.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = pass_on(client, server, lines) => {}
                _ = cut.wait_for(|state| *state == State::Cut) => {}
            }
        });
    }
}

async fn pass_on(
    client: TcpStream,
    server: SocketAddr,
    (there, back): (watch::Receiver<State>, watch::Receiver<State>),
) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (asks, hears) = client.into_split();
    let (answers, listens) = server.into_split();
    let committing = AtomicBool::new(false);
    tokio::try_join!(ask(asks, listens, there, &committing), answer(answers, hears, back, &committing))?;
    Ok(())
}

/// From the node to the database.
async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    committing: &AtomicBool,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let mut ending = state.clone();
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            _ = ending.wait_for(|state| *state == State::HalfClosed) => 0,
        };
        let now = *state.wait_for(|state| *state != State::Silent).await.map_err(io::Error::other)?;
        match now {
            State::Slow(by) => tokio::time::sleep(by).await,
            State::CommitUnanswered => {
                let is_commit = buffer[..read].windows(6).any(|word| word == b"COMMIT");
                committing.fetch_or(is_commit, Relaxed);
            }
            State::Whole | State::Cut | State::Deaf | State::Silent | State::HalfClosed | State::ResetAfter(_) => {}
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}

/// From the database to the node.
async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    committing: &AtomicBool,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut passed = 0;
    loop {
        let read = from.read(&mut buffer).await?;
        let goes = |state: &State| !matches!(state, State::Silent | State::Deaf);
        let now = *state.wait_for(goes).await.map_err(io::Error::other)?;
        match now {
            State::Slow(by) => tokio::time::sleep(by).await,
            State::ResetAfter(bytes) if passed + read > bytes => {
                to.write_all(&buffer[..bytes.saturating_sub(passed).min(read)]).await?;
                // Closed like this, the other side is told at once and loses what it has not read.
                SockRef::from(to.as_ref()).set_linger(Some(Duration::ZERO))?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            State::CommitUnanswered if committing.load(Relaxed) => return Err(io::ErrorKind::ConnectionReset.into()),
            State::ResetAfter(_)
            | State::CommitUnanswered
            | State::Whole
            | State::Cut
            | State::Deaf
            | State::Silent
            | State::HalfClosed => {}
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        passed += read;
    }
}
