//! Opening the store: the database must be one that can be used, and is brought up to date.

use super::{
    DatabaseUrl, Db, Error, KeeperHandle, PostgresStore, describe,
    ears::Ears,
    jobs::Writer,
    leases::{self, Keeper},
    one,
    readers::Readers,
    rows, schema,
    shared::Shared,
};
use crate::{Migrated, StoreError, step};
use postrider_engine::Timestamp;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

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
        "a pooler in transaction mode stands before the database and lends connections out; Postrider needs its own, \
         so connect to PostgreSQL directly, or let the pooler work in session mode"
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
        let failed = |error: Error| OpenError::Database(describe(&error));
        // Here and not with the tables, which are looked at twice when they are new.
        warn_of_settings(ears.db().map_err(failed)?).await.map_err(failed)?;
        let mut keeper = Keeper::new(writer.clone(), ears, options.clone());
        keeper.begin(now).await.map_err(failed)?;
        step!("start.recovered");
        let keeping = tokio::spawn(keeper.keep(stopped));
        Ok(Self {
            readers: Readers::new(pool(READERS)?, READ_MAX),
            searchers: Readers::new(pool(SEARCHERS)?, SEARCH_MAX),
            writer,
            horizon: super::pollers::Horizon::default(),
            committed: Mutex::new(Some(committed)),
            keeper: Mutex::new(Some(KeeperHandle { stop, keeping })),
            writing,
        })
    }
}

/// Brings the tables up to date. Several nodes may try at once: one does it, and the others wait.
pub async fn migrate(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Migrated, OpenError> {
    let (client, _) = url.connect_surely(options).await?;
    let failed = |error: Error| OpenError::Database(describe(&error));
    let server: i64 =
        one(&client, "SELECT current_setting('server_version_num')::bigint", &[]).await.map_err(failed)?.get(0);
    if server / 10_000 < SERVER_MIN {
        return Err(OpenError::TooOld { found: (server / 10_000).to_string() });
    }
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
        // As connections get them: ours are set otherwise where that does no harm.
        "SELECT name, reset_val FROM pg_settings
         WHERE (name, reset_val) IN (('fsync', 'off'), ('full_page_writes', 'off'), ('synchronous_commit', 'off'))
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
