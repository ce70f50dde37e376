//! Getting to the database: its address, its settings, and connections that give up in time.

use super::{
    Db, Error, KeeperHandle, PostgresStore, describe,
    ears::Ears,
    jobs::Writer,
    leases::{self, Keeper},
    one,
    readers::Readers,
    rows, schema,
    shared::Shared,
    tls::Rustls,
};
use crate::{Migrated, StoreError};
use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolConfig, RecyclingMethod, Runtime, Timeouts};
use postrider_engine::Timestamp;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{
    fmt,
    future::poll_fn,
    str::FromStr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{
    AsyncMessage, Config, NoTls, Socket,
    config::{Host, SslMode},
    tls::{MakeTlsConnect, TlsConnect},
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
        let config: Config = text.parse().map_err(|error| BadUrl(describe(&error)))?;
        if config.get_hosts().is_empty() {
            return Err(BadUrl("it names no host".to_owned()));
        }
        // Behind the name and the password, in which it may stand by chance.
        let wishes = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        Ok(Self { config, tls_said: wishes.contains("sslmode=") })
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

    fn is_local(&self) -> bool {
        let names_this = self.config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
            Host::Unix(_) => true,
        });
        // It is the address that is gone to, whatever the name is.
        names_this && self.config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
    }

    /// What is said in the URL counts. Otherwise a connection that leaves the machine is secured, or not made at all.
    fn tls(&self) -> SslMode {
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
    #[error("no connection to the database {url}: {cause}")]
    Unreachable { url: String, cause: String },
    #[error("the database was written by a newer Postrider (version {found}, this one knows {known}); use that one")]
    TooNew { found: i64, known: i64 },
    #[error("the database is PostgreSQL {found}; Postrider needs 15 or later")]
    TooOld { found: String },
    #[error(
        "connections to the database are not Postrider's own, as behind a pooler such as PgBouncer; it needs to connect to \
         PostgreSQL directly"
    )]
    Pooled,
    #[error("the certificates for the database cannot be read: {0}")]
    Certificates(String),
    #[error("the database cannot be used: {0}")]
    Database(String),
}

impl PostgresStore {
    /// Opens the store, brings its tables up to date, and joins the other nodes.
    pub async fn open(url: &DatabaseUrl, now: Timestamp, options: PostgresOptions) -> Result<Self, OpenError> {
        migrate(url, &options).await?;
        let pool = |size| url.pool(&options, size);
        let (announce, committed) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::new(announce));
        let (writer, writing) = Writer::start(url.clone(), shared, options.clone());
        let (stop, stopped) = oneshot::channel();
        // Whatever it is asked first, it joins.
        let cannot = |error: StoreError| OpenError::Database(error.to_string());
        writer.turn(|turn| Box::pin(async { leases::now(turn.db()).await.map(drop) })).await.map_err(cannot)?;
        let mut ears = Ears::new(url.clone(), options.clone());
        ears.prove(writer.shared().tenure().0).await?;
        let mut keeper = Keeper::new(writer.clone(), ears, options.clone());
        keeper.begin(now).await.map_err(|error| OpenError::Database(describe(&error)))?;
        let keeping = tokio::spawn(keeper.keep(stopped));
        Ok(Self {
            readers: Readers::new(pool(READERS)?, READ_MAX),
            searchers: Readers::new(pool(SEARCHERS)?, SEARCH_MAX),
            writer,
            committed: Mutex::new(Some(committed)),
            keeper: Mutex::new(Some(KeeperHandle { stop, keeping })),
            writing,
        })
    }
}

/// Brings the tables up to date. Several nodes may try at once: one does it, and the others wait.
pub async fn migrate(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Migrated, OpenError> {
    let pool = url.pool(options, 1)?;
    let unreachable = |cause: String| OpenError::Unreachable { url: url.to_string(), cause };
    let client = pool.get().await.map_err(|error| match describe(&error) {
        cause if cause.contains("unsupported startup parameter") => OpenError::Pooled,
        cause => unreachable(cause),
    })?;
    let failed = |error: Error| OpenError::Database(describe(&error));
    let server: i64 =
        one(&client, "SELECT current_setting('server_version_num')::bigint", &[]).await.map_err(failed)?.get(0);
    if server / 10_000 < SERVER_MIN {
        return Err(OpenError::TooOld { found: (server / 10_000).to_string() });
    }
    // Whoever stands in between and drops what a connection asks for also lends it out between transactions.
    let sql = "SELECT current_setting('plan_cache_mode') = 'force_generic_plan'";
    if !one(&client, sql, &[]).await.map_err(failed)?.get::<_, bool>(0) {
        return Err(OpenError::Pooled);
    }
    warn_of_settings(&client).await.map_err(failed)?;
    let migrated = schema::migrate(&client).await.map_err(failed)?;
    if migrated.from > schema::VERSION {
        return Err(OpenError::TooNew { found: migrated.from, known: schema::VERSION });
    }
    Ok(migrated)
}

/// What is set so that a commit may be lost although it was answered.
async fn warn_of_settings(db: &Db) -> Result<(), Error> {
    for (name, value, danger) in careless_settings(db).await? {
        tracing::warn!("the database has {name} = {value}: {danger}");
    }
    Ok(())
}

/// Settings of the database under which it does not keep what it promised, and what can happen.
pub async fn careless_settings(db: &Db) -> Result<Vec<(String, String, &'static str)>, Error> {
    let found = rows(
        db,
        "SELECT name, setting FROM pg_settings
         WHERE (name, setting) IN (('fsync', 'off'), ('full_page_writes', 'off'), ('synchronous_commit', 'off'))
         ORDER BY name",
        &[],
    )
    .await?;
    let danger = |name: &str| match name {
        "synchronous_commit" => "an accepted message can be lost when the database's machine fails",
        _ => "the whole database can be lost when its machine fails",
    };
    Ok(found.iter().map(|row| (row.get(0), row.get(1), danger(row.get(0)))).collect())
}

pub const SERVER_MIN: i64 = 15;
const READERS: usize = 3;
const SEARCHERS: usize = 2;
/// The writer's and the ears besides.
pub const NODE_CONNECTIONS: usize = READERS + SEARCHERS + 2;
/// A look takes no longer than a statement may; a search may be several.
const READ_MAX: Duration = Duration::from_secs(20);
const SEARCH_MAX: Duration = Duration::from_secs(60);

async fn connect_and_listen<T>(config: &Config, tls: T, hear: impl Fn(&str) + Send + 'static) -> Result<Db, Error>
where
    T: MakeTlsConnect<Socket> + Send + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, mut connection) = config.connect(tls).await?;
    let listening = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                hear(notification.channel());
            }
        }
    });
    Ok(Db::new(client, listening))
}

/// A statement that takes longer is called off by the server, as is a wait for a lock.
const STATEMENT_MAX: Duration = Duration::from_secs(15);
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// A transaction whose client has fallen silent is undone. It is shorter than the usual lease: such a client may hold up
/// those who want to take its lanes over.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// What is asked here is asked along an index. By figures that are old while a table grows, the planner would rather read
/// and sort all of it, and keep to that. Where it has no choice, such a way counts as dear beyond measure, for which the
/// server would otherwise compile it first.
///
/// Each statement is planned once per connection: with many partitions that takes longer than carrying it out.
const PLANNER: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off -c plan_cache_mode=force_generic_plan";

const CONNECT_MAX: Duration = Duration::from_secs(5);

impl DatabaseUrl {
    /// The configuration of every connection: nothing may wait for ever.
    pub fn config(&self, name: &str) -> Config {
        let mut config = self.config.clone();
        let timeouts = format!(
            "{PLANNER} -c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={}",
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

    /// One connection. `hear` is told the channel of whatever it is notified of.
    pub(crate) async fn connect(
        &self,
        options: &PostgresOptions,
        hear: impl Fn(&str) + Send + 'static,
    ) -> Result<Db, Error> {
        let config = self.config(&options.name);
        let connecting = async {
            match self.tls() {
                SslMode::Disable => connect_and_listen(&config, NoTls, hear).await,
                _ => {
                    let tls = tls_config(options).map_err(|error| Error::Unreachable(error.to_string()))?;
                    connect_and_listen(&config, Rustls::new(tls), hear).await
                }
            }
        };
        tokio::time::timeout(CONNECT_MAX, connecting).await.unwrap_or(Err(Error::TooSlow))
    }

    pub fn pool(&self, options: &PostgresOptions, size: usize) -> Result<Pool, OpenError> {
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let config = self.config(&options.name);
        let manager = match self.tls() {
            SslMode::Disable => Manager::from_config(config, NoTls, manager_config),
            _ => Manager::from_config(config, Rustls::new(tls_config(options)?), manager_config),
        };
        let timeouts = Timeouts { wait: Some(STATEMENT_MAX), create: Some(CONNECT_MAX), recycle: Some(CONNECT_MAX) };
        Pool::builder(manager)
            .config(PoolConfig { max_size: size, timeouts, ..PoolConfig::default() })
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| OpenError::Database(error.to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_leaves_the_machine_is_encrypted_whatever_it_is_called() {
        for (address, mode) in [
            ("u:p@localhost/hooks", SslMode::Disable),
            ("u:p@localhost/hooks?hostaddr=127.0.0.1", SslMode::Disable),
            ("u:p@localhost/hooks?hostaddr=192.0.2.7", SslMode::Require),
            ("u:p@db.example.com/hooks?hostaddr=127.0.0.1", SslMode::Require),
            ("u:sslmode=disable@db.example.com/hooks", SslMode::Require),
            ("u:p@db.example.com/hooks?sslmode=disable", SslMode::Disable),
        ] {
            let url: DatabaseUrl = format!("postgres://{address}").parse().expect(address);
            assert_eq!(url.tls(), mode, "{address}");
        }
    }
}
