//! Connections that give up in time, are the node's own, and say what stood in the way.

use super::{
    DatabaseUrl, Db, Error, OpenError, PostgresOptions,
    address::{Tls, place_of},
    describe,
    tls::Rustls,
};
use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, PoolConfig, RecyclingMethod, Runtime, Timeouts};
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{
    collections::BTreeSet,
    future::poll_fn,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, NoTls, SimpleQueryMessage, Socket,
    config::{SslMode, TargetSessionAttrs},
    error::SqlState,
    tls::{MakeTlsConnect, TlsConnect},
};

impl DatabaseUrl {
    /// One connection, and word of whatever it is notified of.
    pub(crate) async fn connect(&self, options: &PostgresOptions) -> Result<(Db, Arc<Bell>), Error> {
        let way = self.way(options).map_err(|error| Error::Unreachable(error.to_string()))?;
        tokio::time::timeout(CONNECT_MAX, way.connect()).await.unwrap_or(Err(Error::TooSlow))
    }

    /// The same, once it is sure that connections are one's own: a pooler that lends them out between transactions
    /// loses what was prepared, listened for and locked.
    pub(crate) async fn connect_surely(&self, options: &PostgresOptions) -> Result<(Db, Arc<Bell>), OpenError> {
        let way = self.way(options)?;
        let unreachable = |cause| OpenError::Unreachable { url: self.to_string(), cause };
        let failed = |error: Error| match error {
            Error::Unreachable(cause) => unreachable(cause),
            error => unreachable(describe(&error)),
        };
        let connected = async {
            // Nothing is set before that: it would stay set for whoever is lent the connection next.
            let (one, other) =
                (way.connect_plainly().await.map_err(failed)?, way.connect_plainly().await.map_err(failed)?);
            if are_lent_out(&one.0, &other.0).await.map_err(failed)? {
                return Err(OpenError::Pooled);
            }
            way.prepare(&one.0).await.map_err(|error| failed(error.into()))?;
            Ok(one)
        };
        let late = |_| Err(unreachable(format!("no answer within {CONNECT_SURELY_MAX:?}")));
        tokio::time::timeout(CONNECT_SURELY_MAX, connected).await.unwrap_or_else(late)
    }

    pub fn pool(&self, options: &PostgresOptions, size: usize) -> Result<Pool, OpenError> {
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(Config::new(), self.way(options)?, manager_config);
        let timeouts = Timeouts { wait: Some(STATEMENT_MAX), create: Some(CONNECT_MAX), recycle: Some(CONNECT_MAX) };
        Pool::builder(manager)
            .config(PoolConfig { max_size: size, timeouts, ..PoolConfig::default() })
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| OpenError::Database(error.to_string()))
    }

    fn way(&self, options: &PostgresOptions) -> Result<Way, OpenError> {
        let tls = match self.tls() {
            Tls::Off => None,
            Tls::Checked => Some(Rustls::new(tls_config(options)?)),
        };
        let hosts = self.hosts().iter().map(|host| {
            let mut host = host.clone();
            host.application_name(format!("postrider {}", options.name))
                .connect_timeout(ADDRESS_MAX)
                .keepalives_idle(Duration::from_secs(5))
                .keepalives_interval(Duration::from_secs(3))
                .keepalives_retries(3)
                .tcp_user_timeout(UNANSWERED_MAX)
                .target_session_attrs(TargetSessionAttrs::ReadWrite)
                .ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
            host
        });
        Ok(Way { hosts: hosts.collect(), tls })
    }
}

/// How connections to one database are made.
struct Way {
    hosts: Vec<Config>,
    tls: Option<Rustls>,
}

impl Way {
    async fn connect(&self) -> Result<(Db, Arc<Bell>), Error> {
        let (db, bell) = self.connect_plainly().await?;
        self.prepare(&db).await?;
        Ok((db, bell))
    }

    async fn connect_plainly(&self) -> Result<(Db, Arc<Bell>), Error> {
        match self.first_to_answer().await {
            Ok(Line { client, listening, bell }) => Ok((Db::new(client, listening), bell)),
            Err(refusals) => Err(Error::Unreachable(explain(&refusals))),
        }
    }

    /// By statements and not by the startup parameter `options`, which PgBouncer does not pass on.
    async fn prepare(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let given = self.hosts.first().and_then(Config::get_options).unwrap_or_default();
        // What the address sets is meant.
        let ours = SETTINGS.iter().filter(|(name, _)| !given.contains(name));
        let sql: Vec<String> = ours.map(|(name, value)| format!("SET {name} = {value}")).collect();
        client.batch_execute(&sql.join("; ")).await
    }

    /// All hosts are asked at once: the machine of one may be dead and not answer at all, and to wait for that with every
    /// connection would cost the lease. At most one of them takes writes.
    async fn first_to_answer(&self) -> Result<Line, Vec<Refusal>> {
        let mut asked: FuturesUnordered<_> = self
            .hosts
            .iter()
            .map(|host| {
                let answer = match &self.tls {
                    None => connect_and_listen(host, NoTls).boxed(),
                    Some(tls) => connect_and_listen(host, tls.clone()).boxed(),
                };
                answer.map(|answer| answer.map_err(|error| Refusal { place: place_of(host), error }))
            })
            .collect();
        let mut refusals = Vec::new();
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(line) => return Ok(line),
                Err(refusal) => refusals.push(refusal),
            }
        }
        Err(refusals)
    }
}

impl Connect for Way {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async {
            let answered = self.first_to_answer().await;
            // One of their errors, since nobody else can make one.
            let Line { client, listening, .. } =
                answered.map_err(|mut refusals| refusals.pop().expect("an address names a host").error)?;
            self.prepare(&client).await?;
            Ok((client, listening))
        })
    }
}

struct Line {
    client: Client,
    listening: JoinHandle<()>,
    bell: Arc<Bell>,
}

/// On which channels a connection was notified: each is as good once as often.
#[derive(Debug, Default)]
pub struct Bell {
    channels: Mutex<BTreeSet<String>>,
    rung: Notify,
}

impl Bell {
    fn ring(&self, channel: &str) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.to_owned());
        self.rung.notify_one();
    }

    /// The next channel. If the connection is lost, it waits for ever: whoever asks that next will see.
    pub async fn heard(&self) -> String {
        loop {
            if let Some(channel) = self.channels.lock().unwrap_or_else(PoisonError::into_inner).pop_first() {
                return channel;
            }
            self.rung.notified().await;
        }
    }
}

struct Refusal {
    place: String,
    error: tokio_postgres::Error,
}

async fn connect_and_listen<T>(config: &Config, tls: T) -> Result<Line, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket> + Send + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, mut connection) = config.connect(tls).await?;
    let bell = Arc::new(Bell::default());
    let rung = Arc::clone(&bell);
    let listening = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                rung.ring(notification.channel());
            }
        }
    });
    Ok(Line { client, listening, bell })
}

/// Whether somebody between us and the server gives the same connection of his to several of ours.
async fn are_lent_out(one: &Db, other: &Db) -> Result<bool, Error> {
    // Others may be lent something in between, so that once proves nothing.
    for _ in 0..PROOFS {
        let before = backend(one).await?;
        match other.batch_execute("BEGIN").await {
            Err(error) if describe(&error).contains("statement pooling mode") => return Ok(true),
            begun => begun?,
        }
        // As long as its transaction lasts, what it was lent is its own.
        if backend(other).await? == before || backend(one).await? != before {
            return Ok(true);
        }
        other.batch_execute("COMMIT").await?;
    }
    Ok(false)
}

/// Without preparing anything, which somebody else might be lent.
async fn backend(db: &Db) -> Result<Option<String>, Error> {
    let said = db.simple_query("SELECT pg_backend_pid()").await?;
    Ok(said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

/// What each host said, and what to do about it where that is known.
fn explain(refusals: &[Refusal]) -> String {
    let told = |refusal: &Refusal| {
        let words = describe(&refusal.error);
        match remedy(&refusal.error, &words) {
            Some(remedy) => format!("{words}; {remedy}"),
            None => words,
        }
    };
    match refusals {
        [only] => told(only),
        several => {
            let lines: Vec<String> = several.iter().map(|one| format!("{}: {}", one.place, told(one))).collect();
            lines.join("; ")
        }
    }
}

fn remedy(error: &tokio_postgres::Error, words: &str) -> Option<&'static str> {
    if let Some(flaw) = certificate_flaw(error) {
        return match flaw {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Some(
                "name the certificate of the authority that signed it by the setting database_ca_file (of an outbox, ca_file)",
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Some("use the name that it is valid for in the address")
            }
            _ => None,
        };
    }
    let is_refused = error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    [
        (
            words.contains("server does not support TLS"),
            "turn `ssl` on there; where nobody can listen in, sslmode=disable in the address does without",
        ),
        (
            is_refused && words.contains("no encryption"),
            "if it wants encryption, write sslmode=verify-full in the address",
        ),
        (words.contains("does not allow writes"), "it is a standby, and Postrider must write"),
        (
            words.contains("unsupported startup parameter"),
            "a pooler stands in between; leave that out of the address, or connect to PostgreSQL directly",
        ),
    ]
    .into_iter()
    .find_map(|(is_so, remedy)| is_so.then_some(remedy))
}

/// What is wrong with the certificate that the server showed.
fn certificate_flaw(error: &tokio_postgres::Error) -> Option<&CertificateError> {
    let cause = std::error::Error::source(error)?.downcast_ref::<io::Error>()?.get_ref()?;
    match cause.downcast_ref()? {
        rustls::Error::InvalidCertificate(flaw) => Some(flaw),
        _ => None,
    }
}

fn tls_config(options: &PostgresOptions) -> Result<ClientConfig, OpenError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = &options.ca_pem {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| OpenError::Certificates(error.to_string()))?;
            roots.add(certificate).map_err(|error| OpenError::Certificates(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Certificates(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// In milliseconds. A statement that takes longer is called off by the server, as is a wait for a lock. A transaction whose
/// client has fallen silent is undone, sooner than the usual lease ends: such a client may hold up those who want to take
/// its lanes over.
///
/// What is asked here is asked along an index. By figures that are old while a table grows, the planner would rather read
/// and sort all of it, and keep to that. Where it has no choice, such a way counts as dear beyond measure, for which the
/// server would otherwise compile it first. Each statement is planned once per connection: with many partitions that
/// takes longer than carrying it out.
const SETTINGS: [(&str, &str); 7] = [
    ("statement_timeout", "15000"),
    ("lock_timeout", "10000"),
    ("idle_in_transaction_session_timeout", "3000"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// What is sent and not even received by the other machine for so long means that it is gone. A server that is busy receives.
const UNANSWERED_MAX: Duration = Duration::from_secs(5);

/// As in `SETTINGS`.
const STATEMENT_MAX: Duration = Duration::from_secs(15);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Two connections, and some questions.
const CONNECT_SURELY_MAX: Duration = Duration::from_secs(12);
/// A name may have several addresses, and they are tried one after the other.
const ADDRESS_MAX: Duration = Duration::from_secs(2);
const PROOFS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::one;
    use postrider_testbed::Cluster;
    use std::net::TcpListener;

    async fn shown(url: &str, setting: &str) -> String {
        let url: DatabaseUrl = url.parse().expect("an address");
        let (db, _) = url.connect(&PostgresOptions::default()).await.expect("a connection");
        one(&db, "SELECT current_setting($1)", &[&setting]).await.expect("it is a setting").get(0)
    }

    #[tokio::test]
    async fn nothing_waits_for_ever_unless_the_address_says_so() {
        let url = Cluster::shared().url("postgres");
        for (setting, value) in [("statement_timeout", "15s"), ("lock_timeout", "10s"), ("enable_seqscan", "off")] {
            assert_eq!(shown(&url, setting).await, value, "{setting}");
        }
        let longer = format!("{url}?options=-cstatement_timeout%3D1min");
        assert_eq!(shown(&longer, "statement_timeout").await, "1min");
        assert_eq!(shown(&longer, "lock_timeout").await, "10s");
    }

    #[tokio::test]
    async fn a_host_that_does_not_answer_does_not_stand_in_the_way() {
        // It is connected to, and nobody reads.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = silent.local_addr().expect("it is bound");
        let url = Cluster::shared().url("postgres").replace("@", &format!("@{silent},"));
        assert_eq!(shown(&url, "transaction_read_only").await, "off");
    }

    #[tokio::test]
    async fn of_several_hosts_each_says_why_not() {
        let url = Cluster::shared().url("nowhere").replace("@", "@127.0.0.1:1,");
        let url: DatabaseUrl = url.parse().expect("an address");
        let refused = url.connect(&PostgresOptions::default()).await.expect_err("neither is there").to_string();
        assert!(refused.contains("127.0.0.1:1: error connecting to server"), "{refused}");
        assert!(refused.contains("database \"nowhere\" does not exist"), "{refused}");
    }
}
