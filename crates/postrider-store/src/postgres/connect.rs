//! Getting to the database: its address, its settings, and connections that give up in time.

use super::{PostgresStore, tls::Rustls};
use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolConfig, RecyclingMethod, Runtime, Timeouts};
use postrider_engine::Timestamp;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{fmt, str::FromStr, time::Duration};
use tokio_postgres::{
    Config, NoTls,
    config::{Host, SslMode},
};

/// Where the database is. It shows itself without its password.
#[derive(Clone)]
pub struct DatabaseUrl {
    config: Config,
    /// Whether the URL itself says how TLS is to be used.
    tls_said: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("not the address of a PostgreSQL database (postgres://user:password@host:port/name): {0}")]
pub struct BadUrl(String);

impl FromStr for DatabaseUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(BadUrl("it must begin with postgres://".to_owned()));
        }
        let config: Config = text.parse().map_err(|error| BadUrl(super::describe(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(BadUrl("it names no host".to_owned()));
        }
        Ok(Self { config, tls_said: text.contains("sslmode=") })
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(folder)) => folder.display().to_string(),
            None => String::new(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        write!(f, "{} on {host}:{port}", self.config.get_dbname().unwrap_or("the user's own database"))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

impl DatabaseUrl {
    /// Its name, if the URL says it.
    pub fn database(&self) -> Option<&str> {
        self.config.get_dbname()
    }

    /// Whether the URL holds something that others must not read.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    fn is_local(&self) -> bool {
        self.config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
            Host::Unix(_) => true,
        })
    }

    /// What is said in the URL counts. Otherwise a connection that leaves the machine is secured, or not made at all.
    pub(crate) fn tls(&self) -> SslMode {
        match (self.tls_said, self.is_local()) {
            (true, _) => self.config.get_ssl_mode(),
            (false, true) => SslMode::Disable,
            (false, false) => SslMode::Require,
        }
    }
}

/// What suits most, and what tests want otherwise.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// By what name others see this node.
    pub name: String,
    /// Certificates in PEM that the database's own may be signed by, besides the usual ones.
    pub ca_pem: Option<Vec<u8>>,
    /// How long a node that is not heard of keeps its lanes.
    pub lease: Duration,
    /// How often it renews its lease, and looks for news that it was not told of.
    pub heartbeat: Duration,
    /// The span of one piece of history.
    pub piece_span: Duration,
    /// Whether the lanes it is offered are owned at once, with nobody to serve them.
    pub own_at_once: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            name: "node".to_owned(),
            ca_pem: None,
            lease: Duration::from_secs(5),
            heartbeat: Duration::from_secs(1),
            piece_span: Duration::from_hours(24),
            own_at_once: false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the database {url} cannot be reached: {cause}")]
    Unreachable { url: String, cause: String },
    #[error("the database was written by a newer Postrider (version {found}, this one knows {known}); use that one")]
    TooNew { found: i64, known: i64 },
    #[error("the database is PostgreSQL {found}; Postrider needs 15 or later")]
    TooOld { found: String },
    #[error(
        "the database does not pass on notifications, as behind a pooler in transaction mode; Postrider needs \
             direct connections, or a pooler in session mode"
    )]
    Pooled,
    #[error("the certificates for the database cannot be read: {0}")]
    Certificates(String),
    #[error("the database cannot be used: {0}")]
    Database(String),
}

impl PostgresStore {
    /// Opens the store, brings its tables up to date, and joins the other nodes.
    pub async fn open(_url: &DatabaseUrl, _now: Timestamp, _options: PostgresOptions) -> Result<Self, OpenError> {
        todo!()
    }
}

/// A statement that takes longer is called off by the server, as is a wait for a lock.
const STATEMENT_MAX: Duration = Duration::from_secs(15);
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// A transaction whose client has fallen silent is undone. It must be shorter than a lease: such a client may hold up
/// those who want to take its lanes over.
const SILENCE_MAX: Duration = Duration::from_secs(3);

const CONNECT_MAX: Duration = Duration::from_secs(5);

impl DatabaseUrl {
    /// The configuration of every connection: nothing may wait for ever.
    pub fn config(&self, name: &str) -> Config {
        let mut config = self.config.clone();
        let timeouts = format!(
            "-c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={}",
            STATEMENT_MAX.as_millis(),
            LOCK_WAIT_MAX.as_millis(),
            SILENCE_MAX.as_millis(),
        );
        let options = match config.get_options() {
            Some(given) => format!("{timeouts} {given}"),
            None => timeouts,
        };
        config
            .options(options)
            .application_name(format!("postrider {name}"))
            .connect_timeout(CONNECT_MAX)
            .keepalives_idle(Duration::from_secs(5))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(15))
            .ssl_mode(self.tls());
        config
    }

    pub fn pool(&self, options: &PostgresOptions, size: usize) -> Result<Pool, OpenError> {
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let config = self.config(&options.name);
        let manager = match self.tls() {
            SslMode::Disable => Manager::from_config(config, NoTls, manager_config),
            _ => Manager::from_config(config, Rustls::new(tls_config(options.ca_pem.as_deref())?), manager_config),
        };
        let timeouts = Timeouts { wait: Some(STATEMENT_MAX), create: Some(CONNECT_MAX), recycle: Some(CONNECT_MAX) };
        Pool::builder(manager)
            .config(PoolConfig { max_size: size, timeouts, ..PoolConfig::default() })
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| OpenError::Database(error.to_string()))
    }
}

/// `ca_pem`: certificates that the database's own may be signed by, besides the usual ones.
pub(crate) fn tls_config(ca_pem: Option<&[u8]>) -> Result<ClientConfig, OpenError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(pem) = ca_pem {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| OpenError::Certificates(error.to_string()))?;
            roots.add(certificate).map_err(|error| OpenError::Certificates(error.to_string()))?;
        }
    }
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Certificates(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
