//! A look at the database by somebody who is no node: before one joins the others, and by commands beside them.

use super::{DatabaseUrl, Db, Error, OpenError, PostgresOptions, describe, execute, leases, one, row};
use postrider_engine::Timestamp;

pub struct Visitor {
    client: Db,
}

impl Visitor {
    pub async fn connect(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Self, OpenError> {
        Ok(Self { client: connect(url, options).await? })
    }

    /// `None` also where there are no tables yet.
    pub async fn note(&self, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        // Not tried and failed: whoever reads the server's log would find an error at every first start.
        let known = one(&self.client, "SELECT to_regclass('note') IS NOT NULL", &[]).await.map_err(failed)?;
        if !known.get::<_, bool>(0) {
            return Ok(None);
        }
        let found = row(&self.client, "SELECT value FROM note WHERE name = $1", &[&name]).await.map_err(failed)?;
        Ok(found.map(|row| row.get(0)))
    }

    /// What the database's clock says.
    pub async fn time(&self) -> Result<Timestamp, OpenError> {
        leases::now(&self.client).await.map_err(failed)
    }

    /// Puts a note where there is none, and tells which one there is then. Of several who claim it, all are told the same.
    pub async fn claim_note(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>, OpenError> {
        let put = "INSERT INTO note VALUES ($1, $2) ON CONFLICT DO NOTHING";
        execute(&self.client, put, &[&name, &value]).await.map_err(failed)?;
        let found = one(&self.client, "SELECT value FROM note WHERE name = $1", &[&name]).await.map_err(failed)?;
        Ok(found.get(0))
    }
}

pub async fn connect(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Db, OpenError> {
    let (db, _) = url.connect_surely(options).await?;
    Ok(db)
}

fn failed(error: Error) -> OpenError {
    OpenError::Database(describe(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::migrate;
    use futures_util::future::join_all;
    use postrider_testbed::Cluster;

    #[tokio::test]
    async fn the_first_to_claim_a_note_has_it() {
        let url = Cluster::shared().fresh_database().await.parse().expect("an address");
        let options = PostgresOptions::default();
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
