//! The PostgreSQL under the servers: a throw-away one of the harness's own, as durable as it comes, and measured from
//! outside as the servers are.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use postrider_testbed::{Client, Cluster, Mode};

use crate::process;

pub struct Database {
    cluster: Cluster,
    /// The process whose children do all the work.
    postmaster: u32,
    accounts: Accounts,
}

/// Whether the database keeps account of each statement, which costs some of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accounts {
    Kept,
    None,
}

impl Database {
    pub async fn start(dir: &Path, accounts: Accounts) -> Result<Database> {
        let dir = fs::canonicalize(dir).with_context(|| format!("looking for {}", dir.display()))?;
        let cluster = on_a_thread(move || Cluster::start_in(&dir)).await?;
        let cluster = match accounts {
            Accounts::Kept => keep_accounts(cluster).await?,
            Accounts::None => cluster,
        };
        let note = cluster.folder().join("data/postmaster.pid");
        let text = fs::read_to_string(&note).with_context(|| format!("reading {}", note.display()))?;
        let postmaster = text.lines().next().and_then(|line| line.trim().parse().ok());
        Ok(Database { cluster, postmaster: postmaster.context("finding PostgreSQL's process")?, accounts })
    }

    /// The address of a new, empty database.
    pub async fn fresh(&self) -> String {
        self.cluster.fresh_database().await
    }

    /// Removes a database, so that nothing is done for it behind the next measurement.
    pub async fn discard(&self, url: &str) -> Result<()> {
        let client = self.connect().await;
        if self.accounts == Accounts::Kept {
            tell_accounts(&client, name_of(url)).await?;
        }
        let order = format!("DROP DATABASE {} WITH (FORCE)", name_of(url));
        client.batch_execute(&order).await.with_context(|| format!("dropping {}", name_of(url)))
    }

    pub fn cpu_time(&self) -> Result<Duration> {
        process::family_cpu_time(self.postmaster)
    }

    /// Transactions in a database since it was made. The question is asked in another one.
    pub async fn transactions(&self, url: &str) -> Result<u64> {
        let client = self.connect().await;
        let asked = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
        let row = client.query_one(asked, &[&name_of(url)]).await.context("counting transactions")?;
        Ok(u64::try_from(row.get::<_, i64>(0))?)
    }

    /// Bytes on the disk.
    pub async fn size(&self, url: &str) -> Result<u64> {
        let row = self.connect().await.query_one("SELECT pg_database_size($1::name)", &[&name_of(url)]).await;
        Ok(u64::try_from(row.context("measuring the database")?.get::<_, i64>(0))?)
    }

    /// From the next connection on, this database says that it is so many days ago: what is asked for the time is found among
    /// the tables before it is found in the system. With none, it is right again.
    pub async fn set_back(&self, url: &str, days: u32) -> Result<()> {
        let name = name_of(url);
        let orders = if days == 0 {
            format!(
                "ALTER DATABASE {name} RESET search_path;
                 DROP FUNCTION IF EXISTS public.clock_timestamp(), public.now()"
            )
        } else {
            format!(
                "CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
                     $$ SELECT pg_catalog.clock_timestamp() - interval '{days} days' $$;
                 CREATE OR REPLACE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS
                     $$ SELECT pg_catalog.now() - interval '{days} days' $$;
                 ALTER DATABASE {name} SET search_path = public, pg_catalog"
            )
        };
        let client = postrider_testbed::connect(url).await;
        client.batch_execute(&orders).await.context("setting the database's clock")
    }

    async fn connect(&self) -> Client {
        connect(&self.cluster).await
    }
}

async fn connect(cluster: &Cluster) -> Client {
    postrider_testbed::connect(&cluster.url("postgres")).await
}

async fn keep_accounts(cluster: Cluster) -> Result<Cluster> {
    let client = connect(&cluster).await;
    client.batch_execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'").await?;
    drop(client);
    let cluster = on_a_thread(move || {
        cluster.restart(Mode::Fast);
        cluster
    })
    .await?;
    connect(&cluster).await.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
    Ok(cluster)
}

/// What starts and stops PostgreSQL blocks.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("PostgreSQL could not be started")
}

async fn tell_accounts(client: &Client, database: &str) -> Result<()> {
    let asked = "SELECT calls, total_exec_time, rows, wal_bytes::bigint, regexp_replace(query, '\\s+', ' ', 'g')
                 FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid
                 WHERE datname = $1 ORDER BY total_exec_time DESC LIMIT 20";
    eprintln!("\n{database}: calls, ms, ms each, rows, MiB of log, statement");
    for row in client.query(asked, &[&database]).await? {
        let (calls, ms): (i64, f64) = (row.get(0), row.get(1));
        let (rows, log, text): (i64, i64, &str) = (row.get(2), row.get(3), row.get(4));
        let each = ms / calls.max(1) as f64;
        eprintln!("{calls:9} {ms:9.0} {each:9.3} {rows:10} {:8.1} {text:.300}", log as f64 / 1048576.0);
    }
    Ok(())
}

fn name_of(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}
