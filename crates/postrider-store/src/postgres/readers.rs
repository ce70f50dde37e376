//! Connections to read by, apart from the writer's: a long list does not hold up a commit.
//!
//! A consumer's place is also moved by them (`pollers::advance`): one row that hangs on nothing else needs nobody's turn.

use super::{Db, Error, Result};
use crate::StoreError;
use deadpool_postgres::{Client, Pool, PoolError};
use futures_util::future::BoxFuture;
use std::time::Duration;

pub struct Readers {
    pool: Pool,
    /// A look that takes longer is called off.
    patience: Duration,
}

impl Readers {
    pub fn new(pool: Pool, patience: Duration) -> Self {
        Self { pool, patience }
    }

    /// Runs `look` on a connection of its own. Each statement sees everything that was committed before it.
    pub async fn run<T, F>(&self, look: F) -> Result<T, StoreError>
    where
        F: for<'d> FnOnce(&'d Db) -> BoxFuture<'d, Result<T>>,
    {
        Ok(self.attempt(look).await.inspect_err(complain)?)
    }

    /// The same, with one view of the database for all statements.
    pub async fn snapshot<T, F>(&self, look: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'d> FnOnce(&'d Db) -> BoxFuture<'d, Result<T>> + Send + 'static,
    {
        self.run(move |db| {
            Box::pin(async move {
                db.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
                let found = look(db).await;
                db.batch_execute("COMMIT").await?;
                found
            })
        })
        .await
    }

    async fn attempt<T, F>(&self, look: F) -> Result<T>
    where
        F: for<'d> FnOnce(&'d Db) -> BoxFuture<'d, Result<T>>,
    {
        let client = self.pool.get().await.map_err(|error| match error {
            PoolError::Closed => Error::Closed,
            error => Error::Unreachable(super::describe(&error)),
        })?;
        let mut lent = Lent { client: Some(client) };
        let db = lent.client.as_deref().expect("it was just put there");
        let found = tokio::time::timeout(self.patience, look(db)).await.unwrap_or(Err(Error::TooSlow));
        if found.is_ok() {
            // Back to the others.
            drop(lent.client.take());
        }
        found
    }

    pub fn close(&self) {
        self.pool.close();
    }
}

/// A connection that nobody else shall meet if its look was not finished: it may be in the middle of anything.
struct Lent {
    client: Option<Client>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            let _ = Client::take(client);
        }
    }
}

fn complain(error: &Error) {
    tracing::error!(error = super::describe(error), "could not read from the database");
}
