//! A caller that says what it is told to, and reads what comes.

use crate::support::server::Server;
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

/// A real server, with an application called `acme` that has an endpoint called `hook`.
pub struct Place {
    pub server: Server,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{} with no JSON: {:.300}", self.status, self.text()))
    }

    /// One shape for all errors, and nothing of what came in at any length.
    pub fn is_refusal(&self, status: u16) -> bool {
        let told = self.json();
        let shaped = match told["detail"].as_array() {
            Some(flaws) => flaws.iter().all(|flaw| flaw["loc"].is_array() && flaw["msg"].is_string()),
            None => told["code"].is_string() && told["detail"].is_string(),
        };
        self.status == status && shaped && self.body.len() < 16 * 1024
    }
}

impl Place {
    pub fn new(server: Server) -> Self {
        let place = Self { server };
        let app = place.post("/api/v1/app", r#"{"name":"Acme","uid":"acme"}"#);
        assert_eq!(app.status, 201, "{}", app.text());
        let endpoint = r#"{"url":"https://example.com/hook","uid":"hook","disabled":true}"#;
        assert_eq!(place.post("/api/v1/app/acme/endpoint", endpoint).status, 201);
        place
    }

    pub fn start() -> Self {
        Self::new(Server::start())
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.ask("POST", path, &[("content-type", "application/json")], body.as_ref())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn message(&self, body: impl AsRef<[u8]>) -> Answer {
        self.post(MESSAGES, body)
    }

    /// A proper request, on a connection of its own.
    pub fn ask(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        let length = body.len().to_string();
        let fields = [fields, &[("content-length", &length), ("connection", "close")]].concat();
        answer(&self.say(&self.head(method, path, &fields), body))
    }

    /// The head of a request with the right token.
    pub fn head(&self, method: &str, path: &str, fields: &[(&str, &str)]) -> String {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let token = self.server.token();
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{fields}\r\n")
    }

    /// What comes until the server hangs up, which it must.
    pub fn say(&self, head: &str, body: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // It may hang up before it has taken all.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        read_to_end(&mut stream)
    }

    /// The same, and lets it be known that there is no more to come.
    pub fn say_all(&self, head: &str, body: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("it listens");
        stream.shutdown(Shutdown::Write).expect("it listens");
        read_to_end(&mut stream)
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.address())
    }

    /// How many messages there are, of at most a page.
    pub fn messages(&self) -> usize {
        self.get(&format!("{MESSAGES}?limit=250")).json()["data"].as_array().expect("a list").len()
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// A reset is an end as well: it comes when we had more to say.
pub fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(fault) if fault.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("it did not hang up within {PATIENCE:?}")
            }
            Err(_) => return all,
        }
    }
}

pub fn answer(bytes: &[u8]) -> Answer {
    let bytes = bytes.strip_prefix(CONTINUE).unwrap_or(bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = &bytes[end + 4..];
    let told = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = told.map_or(body.len(), |told| told.parse().expect("a length"));
    Answer { status, head, body: body[..length.min(body.len())].to_vec() }
}

pub const MESSAGES: &str = "/api/v1/app/acme/msg";
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// For a busy machine. No case depends on it but those that fail.
pub const PATIENCE: Duration = Duration::from_secs(60);
