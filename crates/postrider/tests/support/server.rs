//! The real binary as a process of its own: started, asked to stop, killed, started again on the same data.
//!
//! Everything here blocks its thread, and needs no runtime: what a test must not hold up meanwhile belongs on
//! another thread, as the receiver is.

use super::stores::StoreKind;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub struct Server {
    /// `None` between an end and the next start.
    child: Option<Child>,
    home: TempDir,
    flags: Vec<String>,
    /// What goes before the binary: a program that starts it under some condition, and becomes it.
    wrapper: Vec<String>,
    variables: Vec<(String, String)>,
    address: SocketAddr,
    token: String,
}

impl Server {
    /// On an empty folder, with leave to deliver to this machine.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_on(store: StoreKind, flags: &[&str]) -> Self {
        let (place, flags) = (store.flags(), flags.iter().copied());
        Self::start_with(&place.iter().map(String::as_str).chain(flags).collect::<Vec<_>>())
    }

    pub fn not_started_on(store: StoreKind) -> Self {
        let mut server = Self::not_started(&[]);
        server.flags = store.flags();
        server
    }

    /// `flags` go to `postrider serve` besides those for the place, the port and the subnet.
    pub fn start_with(flags: &[&str]) -> Self {
        let mut server = Self::not_started(flags);
        while let Err(early) = server.launch() {
            assert!(server.log().contains(PORT_TAKEN), "{early}");
            fs::remove_file(server.log_path()).expect("the log of a server that ended");
            server.address = free_address();
        }
        server.token = server.make_token(&[]);
        server
    }

    /// A place for a server. It has no token until `start_with` made one, or the test does.
    pub fn not_started(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a folder for the server");
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let (wrapper, variables) = (Vec::new(), Vec::new());
        Self { child: None, home, flags, wrapper, variables, address: free_address(), token: String::new() }
    }

    /// From the next start on: started by this program. Empty: by itself.
    pub fn wrap(&mut self, wrapper: &[&str]) {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
    }

    /// From the next start on: with these variables, and no others.
    pub fn set_variables(&mut self, variables: &[(&str, &str)]) {
        self.variables = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    }

    /// From the next start on, besides those that it has.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
    }

    /// Whether it has ended by itself, and how.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().expect("a child of ours")?;
        self.child = None;
        Some(status)
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub fn is_ready(&self) -> bool {
        is_healthy(self.address)
    }

    /// For one that was not started with `start_with`.
    pub fn take_token(&mut self) {
        self.token = self.make_token(&[]);
    }

    /// After `stop` or `kill`: on the same port and the same data. Says how long it took until it was ready.
    pub fn start_again(&mut self) -> Duration {
        assert!(self.child.is_none(), "the server still runs");
        self.launch().unwrap_or_else(|early| panic!("{early}"))
    }

    /// The same, but does not wait until it is ready.
    pub fn begin_again(&mut self) {
        assert!(self.child.is_none(), "the server still runs");
        self.spawn();
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait_for_end(STOP_TIME_MAX)
    }

    /// For one that was asked to stop.
    pub fn wait_for_end(&mut self, within: Duration) -> ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        let asked = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                return status;
            }
            if asked.elapsed() > within {
                end_now(&mut child);
                panic!("the server did not stop within {within:?}; its log says:\n{}", self.log());
            }
            thread::sleep(POLL);
        }
    }

    /// Ends it in the middle of whatever it does, as a power cut would.
    pub fn kill(&mut self) {
        end_now(&mut self.child.take().expect("the server runs"));
    }

    /// By the shell's own `kill`: the standard library can only kill for good, and this crate forbids unsafe code.
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh")
            .args(["-c", "kill -\"$1\" \"$2\"", "sh", name, &self.pid().to_string()])
            .status()
            .expect("a shell");
        assert!(status.success(), "could not send {name} to the server");
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What a page of the server's says to anyone, when it says 200.
    pub fn page(&self, path: &str) -> String {
        let answer = get(self.address, path).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        body.to_owned()
    }

    /// Of the whole environment.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// What `postrider token` prints with these flags.
    pub fn make_token(&self, flags: &[&str]) -> String {
        let output = Command::new(BINARY)
            .args(["token", "--data"])
            .arg(self.data())
            .args(flags)
            .current_dir(self.home.path())
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs");
        assert!(output.status.success(), "postrider token: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("a token is text").trim().to_owned()
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Of PostgreSQL, if it was started there.
    pub fn database_url(&self) -> Option<&str> {
        let flag = self.flags.iter().position(|flag| flag == "--database-url")?;
        Some(&self.flags[flag + 1])
    }

    /// Everything logged so far, by all runs on this data.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn spawn(&mut self) -> &mut Child {
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log for the server");
        let mut words = self.wrapper.iter().map(String::as_str).chain([BINARY]);
        let child = Command::new(words.next().expect("there is the binary at least"))
            .args(words)
            .args(["serve", "--allow-subnet", "127.0.0.0/8", "--listen", &self.address.to_string(), "--data"])
            .arg(self.data())
            .args(&self.flags)
            .current_dir(self.home.path())
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log)
            .spawn()
            .expect("the binary runs");
        self.child.insert(child)
    }

    fn launch(&mut self) -> Result<Duration, String> {
        let start = Instant::now();
        let address = self.address;
        let child = self.spawn();
        while !is_healthy(address) {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                self.child = None;
                return Err(format!(
                    "the server ended with {status} before it was ready; its log says:\n{}",
                    self.log()
                ));
            }
            if start.elapsed() > START_TIME_MAX {
                return Err(format!(
                    "the server was not ready after {START_TIME_MAX:?}; its log says:\n{}",
                    self.log()
                ));
            }
            thread::sleep(POLL);
        }
        Ok(start.elapsed())
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("server.log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            end_now(child);
        }
        // The folder goes with the server, so a failing test must show the log here or never.
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

fn end_now(child: &mut Child) {
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
}

fn is_healthy(address: SocketAddr) -> bool {
    get(address, "/api/v1/health").is_ok_and(|answer| answer.starts_with("HTTP/1.1 204 "))
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CALL_TIME_MAX)?;
    stream.set_read_timeout(Some(CALL_TIME_MAX))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Below the ports that the system gives to outgoing connections: while a killed server is away, none of those can
/// take its port, nor connect to itself in its place.
fn free_address() -> SocketAddr {
    static STEPS: AtomicU16 = AtomicU16::new(0);
    let offset = process::id() % u32::from(PORTS);
    let offset = u16::try_from(offset).expect("a remainder of a 16-bit number");
    (0..PORTS)
        .map(|_| {
            let step = STEPS.fetch_add(1, Ordering::Relaxed);
            SocketAddr::from((Ipv4Addr::LOCALHOST, PORT_MIN + offset.wrapping_add(step) % PORTS))
        })
        .find(|&address| TcpListener::bind(address).is_ok())
        .expect("a free port")
}

const BINARY: &str = env!("CARGO_BIN_EXE_postrider");
const PORT_TAKEN: &str = "is another server running there?";
const PORT_MIN: u16 = 20_000;
const PORTS: u16 = 12_000;
const POLL: Duration = Duration::from_millis(2);
const CALL_TIME_MAX: Duration = Duration::from_secs(5);
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Above the server's own time of grace.
const STOP_TIME_MAX: Duration = Duration::from_secs(45);
