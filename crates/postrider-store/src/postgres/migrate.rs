//! Bringing the tables up to date, whoever comes first.

use super::{DatabaseUrl, Db, Error, OpenError, PostgresOptions, Result, describe, one, row, schema, visit};
use crate::Migrated;
use deadpool_postgres::Client;
use tokio_postgres::error::SqlState;

/// Brings the tables up to date. Of several who want that at once one does it, and the others wait for him.
pub async fn migrate(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Migrated, OpenError> {
    lift(&mut visit::connect(url, options).await?).await
}

/// The same on a connection that there is already.
pub async fn lift(client: &mut Client) -> Result<Migrated, OpenError> {
    let sql = "SELECT current_setting('server_version_num')::bigint, current_setting('server_version')";
    let server = one(client, sql, &[]).await?;
    if server.get::<_, i64>(0) < SERVER_MIN {
        return Err(OpenError::TooOld { found: server.get(1) });
    }
    match version(client).await? {
        schema::VERSION => Ok(Migrated { from: schema::VERSION, to: schema::VERSION }),
        _ => raise(client).await,
    }
}

/// Of the tables; 0 where there are none.
pub async fn version(db: &Db) -> Result<i64> {
    match row(db, "SELECT max(version) FROM schema_version", &[]).await {
        Ok(found) => Ok(found.and_then(|row| row.get(0)).unwrap_or(0)),
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(0),
        Err(error) => Err(error),
    }
}

async fn raise(client: &mut Client) -> Result<Migrated, OpenError> {
    let transaction = client.transaction().await?;
    // Large tables take their time, and so does waiting for somebody who is changing them.
    transaction.batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    transaction.batch_execute("CREATE TABLE IF NOT EXISTS schema_version (version bigint NOT NULL)").await?;
    let found: i64 = transaction.query_one("SELECT coalesce(max(version), 0) FROM schema_version", &[]).await?.get(0);
    if found > schema::VERSION {
        return Err(OpenError::TooNew { found, known: schema::VERSION });
    }
    for migration in schema::MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.batch_execute(migration).await?;
    }
    transaction.batch_execute("DELETE FROM schema_version").await?;
    transaction.execute("INSERT INTO schema_version VALUES ($1)", &[&schema::VERSION]).await?;
    transaction.commit().await?;
    Ok(Migrated { from: found, to: schema::VERSION })
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self::Database(describe(&error))
    }
}

impl From<tokio_postgres::Error> for OpenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(describe(&error))
    }
}

const SERVER_MIN: i64 = 150_000;
/// Any number, as long as nobody else in this database uses it.
const LOCK: i64 = 0x706f_7374_7269_6465;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Visitor;
    use futures_util::future::join_all;
    use postrider_testbed::Cluster;

    async fn empty() -> (DatabaseUrl, PostgresOptions) {
        let url = Cluster::shared().fresh_database().await.parse().expect("the testbed's addresses are right");
        (url, PostgresOptions::default())
    }

    #[tokio::test]
    async fn of_several_at_once_one_makes_the_tables() {
        let (url, options) = empty().await;
        let all = join_all((0..8).map(|_| migrate(&url, &options))).await;
        let changed: Vec<_> = all.into_iter().map(|done| done.unwrap()).filter(|done| done.from != done.to).collect();
        assert_eq!(changed, [Migrated { from: 0, to: schema::VERSION }]);
    }

    #[tokio::test]
    async fn tables_of_a_newer_version_are_left_alone() {
        let (url, options) = empty().await;
        migrate(&url, &options).await.unwrap();
        let client = visit::connect(&url, &options).await.unwrap();
        client.execute("UPDATE schema_version SET version = version + 1", &[]).await.unwrap();
        let refused = migrate(&url, &options).await.unwrap_err();
        assert!(matches!(refused, OpenError::TooNew { found, known } if found == known + 1), "{refused}");
    }

    #[tokio::test]
    async fn the_first_to_claim_a_note_has_it() {
        let (url, options) = empty().await;
        let visitors = join_all((0..4).map(|_| Visitor::connect(&url, &options))).await;
        let visitors: Vec<_> = visitors.into_iter().map(|visitor| visitor.unwrap()).collect();
        assert_eq!(visitors[0].note("mine").await.unwrap(), None, "no tables, no note");
        migrate(&url, &options).await.unwrap();
        assert_eq!(visitors[0].note("mine").await.unwrap(), None);
        let claims = visitors.iter().zip(0u8..).map(|(visitor, number)| visitor.claim_note("mine", vec![number]));
        let found: Vec<_> = join_all(claims).await.into_iter().map(|found| found.unwrap()).collect();
        assert!(found.iter().all(|value| *value == found[0]), "{found:?}");
        assert_eq!(visitors[3].note("mine").await.unwrap().as_ref(), Some(&found[0]));
    }
}
