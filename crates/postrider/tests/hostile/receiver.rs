//! Receivers that speak in bytes, and badly. Each has a port of its own and behaves in one way.
//!
//! None of them ends by itself what it holds, drips or repeats: it goes on until the sender leaves. So an attempt at one
//! of these that ends at all was ended by us.

use super::secure::{self, Secure};
use socket2::{Domain, SockRef, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
};

/// What a receiver does.
#[derive(Clone, Debug)]
pub enum Act {
    /// Nothing listens.
    Refuse,
    /// The SYN is not answered.
    BlackHole,
    /// Takes the connection and reads nothing from it.
    NeverRead,
    /// Breaks the connection before it has read anything.
    ResetUnread,
    CloseUnread,
    /// Breaks it in the middle of the request.
    ResetInRequest,
    /// Answers before it has read the request, and never reads the rest of it.
    SayUnread(Vec<u8>),
    /// Hears the request, and answers it when the sender has left.
    SayWhenLeft(Vec<u8>),
    /// Hears the request, and then.
    Say(Vec<u8>, Then),
    /// The one to a delivery's first try, the other to its next ones; the connection is kept.
    ByTry(Vec<u8>, Vec<u8>),
    /// Answers one request on each connection as if more were welcome, and closes at once.
    CloseIdle,
    /// Answers one request on each connection and closes when the second comes, without a word.
    CloseOnSecond,
    /// Answers each request, and then with an answer that nobody asked for.
    SayMore,
    /// The name in the URL leads to no address.
    NoName(&'static str),
    Tls(Secure),
}

/// After what was said.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    Close,
    Reset,
    /// Keeps the connection, and says the same to the next request if there is one.
    Hold,
    /// Says this again and again, as fast as it is taken.
    Repeat(&'static [u8]),
    /// The same, slowly.
    Drip(&'static [u8]),
}

pub struct Receiver {
    pub url: String,
    log: Arc<Log>,
    /// Ended with this, and their sockets closed.
    _tasks: JoinSet<()>,
    _held: Vec<Held>,
}

/// What must stay open for the receiver to behave.
enum Held {
    Port(#[allow(dead_code, reason = "held, not used")] Socket),
    Listener(#[allow(dead_code, reason = "held, not used")] TcpListener),
    Stream(#[allow(dead_code, reason = "held, not used")] TcpStream),
}

/// A request that came whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Heard {
    pub message: String,
    pub attempt: String,
}

#[derive(Default)]
pub struct Log(Mutex<Vec<Heard>>);

impl Log {
    pub fn note(&self, head: &str) -> usize {
        let header = |name: &str| {
            let value = head.lines().find_map(|line| {
                let (its_name, value) = line.split_once(':')?;
                its_name.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            });
            value.unwrap_or_default()
        };
        let heard = Heard { message: header("webhook-id"), attempt: header("webhook-attempt") };
        let mut log = self.lock();
        log.push(heard);
        log.len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.0.lock().expect("no one panics while holding it")
    }
}

impl Receiver {
    pub async fn start(act: Act, secure: &Arc<secure::Authority>) -> Self {
        let log = Arc::<Log>::default();
        let (mut tasks, mut held) = (JoinSet::new(), Vec::new());
        let url = match &act {
            Act::Refuse => {
                let (port, address) = closed_port();
                held.push(Held::Port(port));
                format!("http://{address}/")
            }
            Act::BlackHole => format!("http://{}/", black_hole(&mut held).await),
            Act::NoName(host) => format!("http://{host}/"),
            Act::Tls(act) => {
                let listener = listener().await;
                let port = listener.local_addr().expect("a bound socket").port();
                tasks.spawn(secure::serve(listener, act.clone(), Arc::clone(secure), Arc::clone(&log)));
                format!("https://{}:{port}/", act.host())
            }
            Act::NeverRead
            | Act::ResetUnread
            | Act::CloseUnread
            | Act::ResetInRequest
            | Act::SayUnread(_)
            | Act::SayWhenLeft(_)
            | Act::Say(..)
            | Act::ByTry(..)
            | Act::CloseIdle
            | Act::CloseOnSecond
            | Act::SayMore => {
                let listener = listener().await;
                let address = listener.local_addr().expect("a bound socket");
                tasks.spawn(serve(listener, act, Arc::clone(&log)));
                format!("http://{address}/")
            }
        };
        Self { url, log, _tasks: tasks, _held: held }
    }

    /// All requests that came whole, in the order of their messages and attempts.
    pub fn heard(&self) -> Vec<Heard> {
        let mut heard = self.log.lock().clone();
        heard.sort();
        heard
    }
}

async fn listener() -> TcpListener {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        // The system may hand out the one port up there that an endpoint must not have.
        if listener.local_addr().expect("a bound socket").port() != REFUSED_PORT {
            return listener;
        }
    }
}

/// The socket keeps the port from others, and does not listen.
fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a port");
    let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("a bound socket");
    (socket, address)
}

/// A port whose queue is full for good: the kernel drops every further SYN.
async fn black_hole(held: &mut Vec<Held>) -> SocketAddr {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let listener = socket.listen(1).expect("a bound socket");
    let address = listener.local_addr().expect("a bound socket");
    held.push(Held::Listener(listener));
    while let Ok(queued) = tokio::time::timeout(SYN_UNANSWERED, TcpStream::connect(address)).await {
        held.push(Held::Stream(queued.expect("room in the queue, or no answer")));
    }
    address
}

async fn serve(listener: TcpListener, act: Act, log: Arc<Log>) {
    // Dropped with this task, and their sockets with them.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (act, log) = (act.clone(), Arc::clone(&log));
        // It fails when the sender leaves, and that is the point.
        connections.spawn(async move { drop(play(stream, act, &log).await) });
        while connections.try_join_next().is_some() {}
    }
}

async fn play(mut stream: TcpStream, act: Act, log: &Log) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match act {
        Act::NeverRead => hold().await,
        Act::ResetUnread => reset(&stream),
        Act::CloseUnread => Ok(()),
        Act::ResetInRequest => {
            stream.read_exact(&mut [0; 100]).await?;
            reset(&stream)
        }
        Act::SayUnread(said) => {
            stream.read_u8().await?;
            stream.write_all(&said).await?;
            hold().await
        }
        Act::SayWhenLeft(said) => {
            hear(&mut stream, log).await?;
            while stream.read(&mut [0; 4096]).await? > 0 {}
            stream.write_all(&said).await
        }
        Act::Say(said, Then::Reset) => {
            hear(&mut stream, log).await?;
            stream.write_all(&said).await?;
            // What was said must have been taken before the reset overtakes it.
            tokio::time::sleep(SAID).await;
            reset(&stream)
        }
        Act::Say(said, then) => answer(&mut stream, &said, then, log).await,
        Act::ByTry(first, later) => loop {
            let head = hear(&mut stream, log).await?;
            let is_first = head.to_ascii_lowercase().contains("webhook-attempt: 1\r\n");
            stream.write_all(if is_first { &first } else { &later }).await?;
        },
        Act::CloseIdle => {
            hear(&mut stream, log).await?;
            stream.write_all(OK).await
        }
        Act::CloseOnSecond => {
            hear(&mut stream, log).await?;
            stream.write_all(OK).await?;
            // Not in the log: it was not looked at.
            stream.read_u8().await.map(drop)
        }
        Act::SayMore => loop {
            hear(&mut stream, log).await?;
            stream.write_all(&[OK, b"HTTP/1.1 500 Unasked\r\ncontent-length: 0\r\n\r\n"].concat()).await?;
        },
        Act::Refuse | Act::BlackHole | Act::NoName(_) | Act::Tls(_) => unreachable!("served elsewhere"),
    }
}

/// Whoever holds the connection answers all requests on it alike.
pub async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    said: &[u8],
    then: Then,
    log: &Log,
) -> io::Result<()> {
    loop {
        hear(stream, log).await?;
        match then {
            Then::Hold => {
                stream.write_all(said).await?;
                stream.flush().await?;
            }
            Then::Close | Then::Reset | Then::Repeat(_) | Then::Drip(_) => return say(stream, said, then).await,
        }
    }
}

pub async fn say(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), said: &[u8], then: Then) -> io::Result<()> {
    stream.write_all(said).await?;
    stream.flush().await?;
    match then {
        Then::Close | Then::Reset => Ok(()),
        Then::Hold => {
            // Until the sender leaves; what it says meanwhile is not answered.
            let mut ignored = [0; 4096];
            while stream.read(&mut ignored).await? > 0 {}
            Ok(())
        }
        Then::Repeat(again) => {
            let many = again.repeat(4096_usize.div_ceil(again.len()));
            loop {
                stream.write_all(&many).await?;
                stream.flush().await?;
            }
        }
        Then::Drip(again) => loop {
            stream.write_all(again).await?;
            stream.flush().await?;
            tokio::time::sleep(DRIP).await;
        },
    }
}

/// A whole request; its head.
pub async fn hear(stream: &mut (impl AsyncRead + Unpin), log: &Log) -> io::Result<String> {
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(read[..end + 2].to_vec()).map_err(io::Error::other)?;
        let length = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok();
        let length = head.lines().find_map(length).ok_or(io::ErrorKind::InvalidData)?;
        let mut left = (end + 4 + length).saturating_sub(read.len());
        while left > 0 {
            let mut ignored = [0; 16 * 1024];
            let part = left.min(ignored.len());
            left -= stream.read_exact(&mut ignored[..part]).await?;
        }
        log.note(&head);
        return Ok(head);
    }
}

pub async fn hold() -> io::Result<()> {
    std::future::pending().await
}

fn reset(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const DRIP: Duration = Duration::from_millis(100);
const SAID: Duration = Duration::from_millis(50);
/// The kernel answers a SYN on loopback at once, or never.
const SYN_UNANSWERED: Duration = Duration::from_millis(300);
/// HDFS has it; see the list in `transport::url`.
const REFUSED_PORT: u16 = 50_070;
