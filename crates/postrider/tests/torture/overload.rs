//! Producers who offer by the clock, whatever became of what they offered before, and a receiver that takes everything.
//!
//! Both do as little as they can: what they use of the machine is taken from the server.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::Semaphore,
    task::JoinHandle,
};

/// What became of what was offered.
#[derive(Debug, Default)]
pub struct Tally {
    pub sent: AtomicUsize,
    pub accepted: AtomicUsize,
    /// "Not now", with a word on when.
    pub refused: AtomicUsize,
    /// Anything else that was said.
    pub strange: AtomicUsize,
    /// The connection broke before there was an answer.
    pub unanswered: AtomicUsize,
}

/// Per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub sent: usize,
    pub accepted: usize,
    pub refused: usize,
    pub arrived: usize,
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, accepted, refused, arrived } = self;
        write!(f, "per second sent={sent} accepted={accepted} refused={refused} delivered={arrived}")
    }
}

pub struct Crowd {
    pub tally: Arc<Tally>,
    due: Arc<Semaphore>,
    is_over: Arc<AtomicBool>,
    members: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// So many producers with a connection each, once all are connected. They offer nothing before `offer`.
    pub fn gather(runtime: &Runtime, address: SocketAddr, request: &str, count: usize) -> Self {
        let (tally, due) = (Arc::<Tally>::default(), Arc::new(Semaphore::new(0)));
        let is_over = Arc::<AtomicBool>::default();
        let request: Arc<str> = request.into();
        let members = (0..count)
            .map(|_| {
                // One after the other: the system takes on so many at once and no more.
                let connection = runtime.block_on(TcpStream::connect(address)).ok();
                let (tally, due, is_over) = (Arc::clone(&tally), Arc::clone(&due), Arc::clone(&is_over));
                runtime.spawn(produce(address, connection, Arc::clone(&request), tally, due, is_over))
            })
            .collect();
        Self { tally, due, is_over, members }
    }

    /// Lets them offer so many per second, and says what came of it in that time, and what arrived at the sink.
    pub fn offer(&self, per_second: usize, time: Duration, sink: &Sink) -> Rates {
        let count =
            || [&self.tally.sent, &self.tally.accepted, &self.tally.refused, &sink.arrived].map(|n| n.load(Relaxed));
        let (began, before) = (Instant::now(), count());
        let mut offered = 0;
        while began.elapsed() < time {
            let due = (per_second as f64 * began.elapsed().as_secs_f64()) as usize;
            // What nobody is free to send now is not made up for later, except for what is due at once.
            let free = self.members.len().saturating_sub(self.due.available_permits());
            self.due.add_permits(due.saturating_sub(offered).min(free));
            offered = due;
            std::thread::sleep(Duration::from_millis(2));
        }
        let (after, took) = (count(), began.elapsed());
        let [sent, accepted, refused, arrived] =
            std::array::from_fn(|which| ((after[which] - before[which]) as f64 / took.as_secs_f64()) as usize);
        Rates { sent, accepted, refused, arrived }
    }

    /// Waits until every answer has come.
    pub fn disperse(self, runtime: &Runtime) -> Arc<Tally> {
        self.is_over.store(true, Relaxed);
        self.due.close();
        runtime.block_on(async {
            for member in self.members {
                let _ = member.await;
            }
        });
        self.tally
    }
}

async fn produce(
    address: SocketAddr,
    mut connection: Option<TcpStream>,
    request: Arc<str>,
    tally: Arc<Tally>,
    due: Arc<Semaphore>,
    is_over: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 2_048];
    while let Ok(turn) = due.acquire().await {
        turn.forget();
        let stream = match &mut connection {
            Some(stream) => stream,
            None => match TcpStream::connect(address).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    connection.insert(stream)
                }
                Err(_) => {
                    tally.unanswered.fetch_add(1, Relaxed);
                    continue;
                }
            },
        };
        tally.sent.fetch_add(1, Relaxed);
        let exchange = async {
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut read = 0;
            loop {
                match stream.read(&mut buffer[read..]).await.ok()? {
                    0 => return None,
                    more => read += more,
                }
                if let Some(answer) = Answer::read(&buffer[..read]) {
                    return Some(answer);
                }
            }
        };
        match tokio::time::timeout(ANSWER_WITHIN, exchange).await.ok().flatten() {
            Some(answer) => {
                let counter = match answer {
                    Answer { status: 202, .. } => &tally.accepted,
                    Answer { status: 429 | 503, says_when: true, .. } => &tally.refused,
                    Answer { .. } => &tally.strange,
                };
                counter.fetch_add(1, Relaxed);
                if answer.closes {
                    connection = None;
                }
            }
            None => {
                tally.unanswered.fetch_add(1, Relaxed);
                connection = None;
            }
        }
        if is_over.load(Relaxed) {
            return;
        }
    }
}

struct Answer {
    status: u16,
    says_when: bool,
    closes: bool,
}

impl Answer {
    /// `None`: it is not whole yet.
    fn read(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).unwrap_or_default();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let header = |name: &str| {
            head.split("\r\n")
                .find_map(|line| line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name)))
        };
        let length: usize = header("content-length").and_then(|(_, length)| length.parse().ok()).unwrap_or(0);
        (body.len() >= length).then(|| Self {
            status: head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0),
            says_when: header("retry-after").is_some(),
            closes: header("connection").is_some_and(|(_, value)| value == "close"),
        })
    }
}

/// Takes every request at once.
pub struct Sink {
    pub address: SocketAddr,
    pub arrived: Arc<AtomicUsize>,
}

impl Sink {
    pub fn start(runtime: &Runtime) -> Self {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let arrived = Arc::<AtomicUsize>::default();
        runtime.spawn({
            let arrived = Arc::clone(&arrived);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(take(stream, Arc::clone(&arrived)));
                }
            }
        });
        Self { address, arrived }
    }
}

async fn take(mut stream: TcpStream, arrived: Arc<AtomicUsize>) -> Option<()> {
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0; 8_192];
    let mut read = 0;
    loop {
        match stream.read(&mut buffer[read..]).await.ok()? {
            0 => return None,
            more => read += more,
        }
        let text = str::from_utf8(&buffer[..read]).ok()?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "))?;
        if body.len() >= length.parse().ok()? {
            read = 0;
            arrived.fetch_add(1, Relaxed);
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.ok()?;
        }
    }
}

/// The most memory that a process has ever held, in MiB.
pub fn peak_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the system counts it");
    peak.split_whitespace().next().and_then(|kibibytes| kibibytes.parse::<usize>().ok()).expect("a number") / 1_024
}

/// What a patient client waits.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
