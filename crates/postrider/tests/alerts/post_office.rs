//! A mail server inside the test: takes what comes, over TLS or not, and remembers all that was said to it.

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};
use tempfile::TempDir;

pub struct PostOffice {
    pub address: SocketAddr,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    letters: Vec<String>,
    /// Line by line, whoever said it.
    heard: Vec<String>,
}

/// How one talks to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Plain,
    /// TLS from the first byte.
    Always,
    /// TLS after STARTTLS.
    Started,
}

struct Manner {
    wire: Wire,
    tls: Option<Arc<ServerConfig>>,
    to_recipients: &'static str,
}

impl PostOffice {
    pub fn open() -> Self {
        Self::with(Manner { wire: Wire::Plain, tls: None, to_recipients: "250 ok" })
    }

    pub fn refusing() -> Self {
        Self::with(Manner { wire: Wire::Plain, tls: None, to_recipients: "550 not here" })
    }

    pub fn secure(wire: Wire, tls: Arc<ServerConfig>) -> Self {
        Self::with(Manner { wire, tls: Some(tls), to_recipients: "250 ok" })
    }

    fn with(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let book = Arc::<Mutex<Book>>::default();
        let (kept, manner) = (Arc::clone(&book), Arc::new(manner));
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let (kept, manner) = (Arc::clone(&kept), Arc::clone(&manner));
                thread::spawn(move || receive(caller, &manner, &kept));
            }
        });
        Self { address, book }
    }

    pub fn letters(&self) -> Vec<String> {
        self.book.lock().expect("nobody panics").letters.clone()
    }

    pub fn heard(&self) -> Vec<String> {
        self.book.lock().expect("nobody panics").heard.clone()
    }
}

/// `None` where the caller hangs up.
fn receive(caller: TcpStream, manner: &Manner, book: &Mutex<Book>) -> Option<()> {
    let secured = |caller: TcpStream| {
        let tls = ServerConnection::new(Arc::clone(manner.tls.as_ref()?)).ok()?;
        Some(StreamOwned::new(tls, caller))
    };
    match manner.wire {
        Wire::Always => talk(&mut secured(caller)?, "220 ready", false, manner, book).map(drop),
        Wire::Plain => talk(&mut { caller }, "220 ready", false, manner, book).map(drop),
        Wire::Started => {
            let mut caller = caller;
            match talk(&mut caller, "220 ready", true, manner, book)? {
                Ended::Bye => Some(()),
                Ended::StartsTls => talk(&mut secured(caller)?, "", false, manner, book).map(drop),
            }
        }
    }
}

enum Ended {
    Bye,
    StartsTls,
}

fn talk(
    caller: &mut (impl Read + Write),
    greeting: &str,
    offers_tls: bool,
    manner: &Manner,
    book: &Mutex<Book>,
) -> Option<Ended> {
    let mut seen = String::new();
    if !greeting.is_empty() {
        say(caller, greeting)?;
    }
    loop {
        let line = hear(caller)?;
        book.lock().expect("nobody panics").heard.push(line.clone());
        seen.push_str(&line);
        seen.push('\n');
        let answer = match line.split([' ', ':']).next()? {
            "EHLO" if offers_tls => "250-hello\r\n250 STARTTLS",
            "EHLO" => "250-hello\r\n250 AUTH PLAIN",
            "STARTTLS" if offers_tls => {
                say(caller, "220 go on")?;
                return Some(Ended::StartsTls);
            }
            "AUTH" => "235 welcome",
            "RCPT" if line.contains("<gone@") => "550 nobody of that name",
            "RCPT" => manner.to_recipients,
            "DATA" => {
                say(caller, "354 go on")?;
                loop {
                    let line = hear(caller)?;
                    if line == "." {
                        break;
                    }
                    seen.push_str(&line);
                    seen.push('\n');
                }
                let letter = std::mem::take(&mut seen);
                let (head, body) = letter.split_once("\n\n").expect("a head and a body");
                let body = BASE64_STANDARD.decode(body.replace('\n', "")).expect("base64");
                let read = format!("{head}\n\n{}", String::from_utf8(body).expect("text"));
                book.lock().expect("nobody panics").letters.push(read);
                "250 taken"
            }
            "QUIT" => {
                say(caller, "221 bye")?;
                return Some(Ended::Bye);
            }
            _ => "250 ok",
        };
        say(caller, answer)?;
    }
}

fn say(caller: &mut impl Write, words: &str) -> Option<()> {
    caller.write_all(format!("{words}\r\n").as_bytes()).ok()?;
    caller.flush().ok()
}

/// A byte at a time: what follows STARTTLS must be left for TLS.
fn hear(caller: &mut impl Read) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        caller.read_exact(&mut byte).ok()?;
        match byte {
            [b'\n'] => return String::from_utf8(line).ok(),
            [b'\r'] => {}
            [byte] => line.push(byte),
        }
    }
}

/// Whoever signs certificates, known by a file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("written");
        Self { issuer, folder }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// What a server at this name, or address, shows.
    pub fn issue(&self, name: &str) -> Arc<ServerConfig> {
        self.sign(CertificateParams::new(vec![name.to_owned()]).expect("a name"))
    }

    pub fn issue_expired(&self, name: &str) -> Arc<ServerConfig> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key);
        Arc::new(config.expect("it fits the key"))
    }
}
