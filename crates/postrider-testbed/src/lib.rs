//! A real PostgreSQL for tests, as durable as in production and gone with the process that wanted it.
//!
//! Everything that starts or ends the server is done by a shell of its own, the keeper, which reads orders from a pipe.
//! However the test process ends, its end of the pipe is closed then, and the keeper leaves nothing behind.

mod pooler;
mod programs;

pub use pooler::{PoolMode, Pooler};

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio_postgres::NoTls;

pub use tokio_postgres::{Client, SimpleQueryMessage};

/// A connection of a test's own, for what no verb of the store does.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the cluster is running");
    // Its error reaches whoever waits for an answer.
    tokio::spawn(connection);
    client
}

/// A cluster in PostgreSQL's sense: one server with its databases. Dropped, it is stopped and its folder removed.
///
/// What starts and stops it blocks the thread. A test that goes on meanwhile calls that from `spawn_blocking`.
pub struct Cluster {
    keeper: Mutex<Keeper>,
    folder: PathBuf,
    port: u16,
    databases: AtomicU64,
}

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Connections are ended, what they had not committed is undone, and all is written to the files.
    Fast,
    /// As in a crash: the next start recovers from the log.
    Immediate,
}

/// The cluster that the tests of one process share. None of them may stop it under the others.
pub struct Shared(Cluster);

impl Cluster {
    /// # Panics
    ///
    /// If there is no PostgreSQL on this machine, or it does not start.
    pub fn start() -> Self {
        Self::start_in(&std::env::temp_dir())
    }

    /// In a folder of its own in `place`, which the user `postgres` must be able to enter and write to if root asks.
    ///
    /// # Panics
    ///
    /// If there is no PostgreSQL on this machine, or it does not start.
    pub fn start_in(place: &Path) -> Self {
        Self::make("create", place)
    }

    /// A standby that follows this cluster, under a name by which it can be waited for
    /// (`synchronous_standby_names`). Its own `promote` makes it a primary.
    ///
    /// # Panics
    ///
    /// If this cluster is not running.
    pub fn standby(&self, name: &str) -> Self {
        let copy = program("pg_basebackup");
        Self::make(&format!("copy {} {name} {}", self.port, copy.display()), &std::env::temp_dir())
    }

    fn make(order: &str, place: &Path) -> Self {
        let (mut keeper, folder) = Keeper::spawn(include_str!("keeper.sh"), &[&programs::folder(), place]);
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        assert!(keeper.obeys(order), "{order} failed:\n{}", log());
        for _ in 0..PORTS_TRIED_MAX {
            let port = free_port();
            if keeper.obeys(&format!("start {port}")) {
                return Self { keeper: Mutex::new(keeper), folder, port, databases: AtomicU64::new(0) };
            }
            // Another process may have taken the port since.
            assert!(log().contains("could not create any TCP/IP sockets"), "PostgreSQL did not start:\n{}", log());
        }
        panic!("PostgreSQL found no free port:\n{}", log());
    }

    /// The cluster of this process, started by whoever asks first. It lies in memory where there is room for it: its
    /// tests ask what is written, not how fast a disk is.
    pub fn shared() -> &'static Shared {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        SHARED.get_or_init(|| {
            let memory = PathBuf::from("/dev/shm");
            let place = if has_room(&memory) { memory } else { std::env::temp_dir() };
            Shared(Self::start_in(&place))
        })
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of a new, empty database.
    pub async fn fresh_database(&self) -> String {
        let name = format!("fresh_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let (client, connection) =
            tokio_postgres::connect(&self.url("postgres"), NoTls).await.expect("the cluster is running");
        let connection = tokio::spawn(connection);
        // Nobody can be connected to template0, which would stand in the way of copying it.
        client
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await
            .expect("no other database has this name");
        drop(client);
        connection.await.expect("the connection does not panic").expect("the server keeps the connection");
        self.url(&name)
    }

    pub fn stop(&self, mode: Mode) {
        self.order(match mode {
            Mode::Fast => "stop fast",
            Mode::Immediate => "stop immediate",
        });
    }

    /// Starts it again after a `stop`, at the same address.
    pub fn resume(&self) {
        self.order(&format!("start {}", self.port));
    }

    pub fn restart(&self, mode: Mode) {
        self.stop(mode);
        self.resume();
    }

    /// Of a standby: from now on it takes writes.
    pub fn promote(&self) {
        self.order("promote");
    }

    /// Replaces one of the server's own files, which it reads with the next restart.
    pub fn write(&self, file: &str, text: &str) {
        self.order(&format!("write {file} {}", text.replace('\n', "\\n")));
    }

    /// A line for `postgresql.conf`, which counts from the next restart on.
    pub fn set(&self, setting: &str) {
        self.order(&format!("append postgresql.conf {setting}"));
    }

    /// Where its files are, and the server's `log`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn order(&self, order: &str) {
        let obeyed = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).obeys(order);
        assert!(
            obeyed,
            "PostgreSQL did not {order}:\n{}",
            fs::read_to_string(self.folder.join("log")).unwrap_or_default()
        );
    }
}

/// One of PostgreSQL's own programs, such as `pg_dump`.
pub fn program(name: &str) -> PathBuf {
    let folder = programs::folder();
    // Where only some of them are linked into the path, the others are where the links lead to.
    let linked = fs::canonicalize(folder.join("postgres")).ok().and_then(|path| Some(path.parent()?.join(name)));
    let found = [Some(folder.join(name)), linked].into_iter().flatten().find(|program| program.is_file());
    found.unwrap_or_else(|| name.into())
}

impl Shared {
    pub fn url(&self, database: &str) -> String {
        self.0.url(database)
    }

    /// The address of a new, empty database.
    pub async fn fresh_database(&self) -> String {
        self.0.fresh_database().await
    }
}

/// The shell that does it all; see `keeper.sh` and `pooler.sh`.
struct Keeper {
    process: Child,
    /// Taken when dropped.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    /// A keeper and the folder it has made.
    fn spawn(script: &str, arguments: &[&Path]) -> (Self, PathBuf) {
        let mut process = programs::shell(script).args(arguments).spawn().expect("a shell can be started");
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("its answers are piped"));
        let mut keeper = Self { process, orders, answers };
        let folder = keeper.answer();
        assert!(!folder.is_empty(), "no folder could be made: {arguments:?}");
        (keeper, folder.into())
    }

    fn obeys(&mut self, order: &str) -> bool {
        let orders = self.orders.as_mut().expect("orders are taken until it is dropped");
        writeln!(orders, "{order}").expect("the keeper lives as long as this process");
        self.answer() == "done"
    }

    /// The next line, or nothing if the keeper has ended.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the keeper answers in UTF-8");
        line.truncate(line.trim_end().len());
        line
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It can only fail if somebody else has waited for it, and a panic while panicking would hide the first one.
        let _ = self.process.wait();
    }
}

/// A container is often given 64 MiB of memory to keep files in.
fn has_room(place: &Path) -> bool {
    // The standard library cannot tell. The second line is of the place, and the fourth word of it what is left.
    let output = Command::new("df").arg("-Pk").arg(place).output();
    let told = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let left = told.lines().nth(1).and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    left.is_some_and(|kibibytes: u64| kibibytes >= ROOM_MIN)
}

/// A port that nobody listens on, below those which the system hands out: a cluster that is stopped must get its own
/// port back, though others open sockets meanwhile.
fn free_port() -> u16 {
    let start = RandomState::new().hash_one(std::process::id());
    (0..u64::from(PORT_COUNT))
        .map(|step| PORT_FIRST + ((start % u64::from(PORT_COUNT) + step) % u64::from(PORT_COUNT)) as u16)
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .expect("some of ten thousand ports is free")
}

/// In KiB: for the server's log, which grows to a gigabyte, and for some dozens of databases.
const ROOM_MIN: u64 = 4 * 1024 * 1024;
const PORT_FIRST: u16 = 20_000;
const PORT_COUNT: u16 = 10_000;
const PORTS_TRIED_MAX: usize = 5;
