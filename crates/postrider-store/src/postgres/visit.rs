//! A look at the database by somebody who is no node: before one joins the others, and by commands beside them.

use super::{DatabaseUrl, OpenError, PostgresOptions, describe, execute, one, row};
use deadpool_postgres::Client;
use tokio_postgres::error::SqlState;

pub struct Visitor {
    client: Client,
}

impl Visitor {
    pub async fn connect(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self { client: connect(url, options).await? })
    }

    /// `None` also where there are no tables yet.
    pub async fn note(&self, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        match row(&self.client, "SELECT value FROM note WHERE name = $1", &[&name]).await {
            Ok(found) => Ok(found.map(|row| row.get(0))),
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a note where there is none, and tells which one there is then. Of several who claim it, all are told the same.
    pub async fn claim_note(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>, OpenError> {
        execute(&self.client, "INSERT INTO note VALUES ($1, $2) ON CONFLICT DO NOTHING", &[&name, &value]).await?;
        Ok(one(&self.client, "SELECT value FROM note WHERE name = $1", &[&name]).await?.get(0))
    }
}

pub async fn connect(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Client, OpenError> {
    let pool = url.pool(options, 1)?;
    pool.get().await.map_err(|error| OpenError::Unreachable { url: url.to_string(), cause: describe(&error) })
}
