//! A receiver of webhooks inside the test: answers as each path's script says, and remembers all that came.
//!
//! It runs on threads of its own, so that a test may block its runtime, for instance until the server has ended.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{self, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// One request, as it came.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    /// With the query, if there was one.
    pub path: String,
    pub method: http::Method,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What it is answered with.
    pub answer: Answer,
    /// When its head had been read.
    pub opened: Instant,
    /// When its answer was given to the connection, or the sender gave up. `None`: still open.
    pub closed: Option<Instant>,
}

impl Arrival {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name} on {:?}", self.headers))
            .to_str()
            .expect("a header of text")
    }
}

/// What to do with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    Full {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Bytes,
    },
    After(Duration, Box<Answer>),
    /// The one to a delivery's first try, the other to all that follow.
    ByTry {
        first: Box<Answer>,
        later: Box<Answer>,
    },
    /// Takes the request and says nothing, until the sender gives up.
    Hang,
    /// Takes the request and breaks the connection with a TCP reset.
    Reset,
}

impl Answer {
    pub fn after(self, delay: Duration) -> Self {
        Self::After(delay, Box::new(self))
    }

    pub fn on_first_try_else(self, later: Answer) -> Self {
        Self::ByTry { first: Box::new(self), later: Box::new(later) }
    }
}

impl Receiver {
    pub fn start() -> Self {
        let any = || Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let receiver = any();
        // The system may hand out the one port up there that an endpoint must not have.
        if receiver.address.port() == REFUSED_PORT { any() } else { receiver }
    }

    /// At a fixed address: one that was down comes back.
    pub fn start_at(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime for the receiver");
        // With SO_REUSEADDR, as the standard library sets it: the port of a receiver that is gone can be had again.
        let listener = net::TcpListener::bind(address).expect("a port for the receiver");
        listener.set_nonblocking(true).expect("a socket of ours");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<Shared>::default();
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, runtime: Some(runtime) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `path` begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// From now on, answers requests to `path` with each of `first` once, and then always with `rest`.
    /// A path without a script answers 204.
    pub fn script(&self, path: &str, first: impl IntoIterator<Item = Answer>, rest: Answer) {
        let script = Script { first: first.into_iter().collect(), rest };
        self.shared.lock().scripts.insert(path.to_owned(), script);
    }

    /// From now on, answers all requests to `path` alike.
    pub fn always(&self, path: &str, answer: Answer) {
        self.script(path, [], answer);
    }

    /// All that came, in the order in which the requests were complete.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.shared.lock().arrivals.clone()
    }

    pub fn arrivals_at(&self, path: &str) -> Vec<Arrival> {
        self.shared.lock().arrivals.iter().filter(|arrival| arrival.path == path).cloned().collect()
    }

    /// When each connection ended that has; by its number.
    pub fn hang_ups(&self) -> HashMap<usize, Instant> {
        self.shared.lock().hang_ups.clone()
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        let book = self.shared.lock();
        book.connections - book.hang_ups.len()
    }

    /// Cheaper than to ask for them all.
    pub fn count(&self) -> usize {
        self.shared.lock().arrivals.len()
    }

    /// When the newest request to `path` came.
    pub fn newest_at(&self, path: &str) -> Option<Instant> {
        self.shared.lock().arrivals.iter().rev().find(|arrival| arrival.path == path).map(|arrival| arrival.opened)
    }

    /// Waits until at least `count` requests have come to `path`, and gives them all.
    pub async fn wait_for(&self, path: &str, count: usize) -> Vec<Arrival> {
        super::eventually(&format!("{count} requests to {path}"), async || {
            Some(self.arrivals_at(path)).filter(|arrivals| arrivals.len() >= count)
        })
        .await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Not a plain drop, which would panic inside a test's own runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Default)]
struct Shared(Mutex<Book>);

#[derive(Default)]
struct Book {
    scripts: HashMap<String, Script>,
    arrivals: Vec<Arrival>,
    connections: usize,
    hang_ups: HashMap<usize, Instant>,
}

struct Script {
    first: VecDeque<Answer>,
    rest: Answer,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().expect("no one panics while holding the book")
    }

    fn note(&self, mut arrival: Arrival) -> (usize, Answer) {
        let mut book = self.lock();
        let answer = match book.scripts.get_mut(&arrival.path) {
            None => Answer::Status(204),
            Some(script) => script.first.pop_front().unwrap_or_else(|| script.rest.clone()),
        };
        arrival.answer = answer.clone();
        book.arrivals.push(arrival);
        (book.arrivals.len() - 1, answer)
    }
}

/// Notes the end of a request, also when the sender gave up and this task was dropped.
struct Open<'a> {
    shared: &'a Shared,
    index: usize,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.lock().arrivals[self.index].closed = Some(Instant::now());
    }
}

async fn accept(listener: net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("it is non-blocking");
    for connection in 0.. {
        let (stream, _) = listener.accept().await.expect("file handles for a connection");
        shared.lock().connections += 1;
        tokio::spawn(converse(stream, connection, Arc::clone(&shared)));
    }
}

async fn converse(stream: TcpStream, connection: usize, shared: Arc<Shared>) {
    let stream = stream.into_std().expect("a stream of this runtime");
    // Hyper owns its handle; this second one is for the reset.
    let handle = stream.try_clone().expect("a second handle of the connection");
    let stream = TcpStream::from_std(stream).expect("it is non-blocking already");
    let service = service_fn(|request| answer(request, connection, &shared, SockRef::from(&handle)));
    // A connection that breaks is the sender's matter, or was asked for.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    shared.lock().hang_ups.insert(connection, Instant::now());
}

async fn answer(
    request: Request<Incoming>,
    connection: usize,
    shared: &Shared,
    socket: SockRef<'_>,
) -> io::Result<Response<Full<Bytes>>> {
    let opened = Instant::now();
    let (Parts { method, uri, headers, .. }, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let is_first = headers.get("webhook-attempt").is_none_or(|number| number == "1");
    let arrival = Arrival { connection, path, method, headers, body, answer: Answer::Hang, opened, closed: None };
    let (index, mut answer) = shared.note(arrival);
    let _open = Open { shared, index };
    loop {
        answer = match answer {
            Answer::Status(status) => Answer::Full { status, headers: Vec::new(), body: Bytes::new() },
            Answer::Full { status, headers, body } => {
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = StatusCode::from_u16(status).expect("a script with a possible status");
                for (name, value) in headers {
                    response.headers_mut().append(name, value.parse().expect("a script with a possible header"));
                }
                return Ok(response);
            }
            Answer::After(delay, then) => {
                tokio::time::sleep(delay).await;
                *then
            }
            Answer::ByTry { first, later } => *if is_first { first } else { later },
            Answer::Hang => std::future::pending().await,
            Answer::Reset => {
                socket.set_linger(Some(Duration::ZERO))?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
    }
}

/// HDFS has it; see the list in `transport::url`.
const REFUSED_PORT: u16 = 50_070;
