//! The conformance suite, on a real PostgreSQL, and what only PostgreSQL has: other nodes.

use super::*;
use crate::conformance::{Grain, Harness, fixtures::START};
use postrider_testbed::Cluster;
use std::time::Duration;

#[test]
fn an_error_says_each_of_its_causes_once() {
    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl std::fmt::Display for Layer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Layer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    for (layers, expected) in [
        (&["Error occurred while creating a new object: db error", "db error", "FATAL: no"][..], "FATAL: no"),
        (&["error connecting to server", "Connection refused"], "error connecting to server: Connection refused"),
        (&["outer: inner", "inner"], "outer: inner"),
        (&["same", "same"], "same"),
        (&["db error"], "db error"),
    ] {
        let error = layers.iter().rev().fold(None, |cause, text| Some(Box::new(Layer(text, cause)))).expect("a layer");
        assert_eq!(describe(&error), expected);
    }
}

struct Postgres {
    store: PostgresStore,
    url: DatabaseUrl,
    options: PostgresOptions,
}

async fn open(url: &DatabaseUrl, now: Timestamp, options: &PostgresOptions) -> PostgresStore {
    PostgresStore::open(url, now, options.clone()).await.expect("the store opens")
}

async fn fresh_url() -> DatabaseUrl {
    Cluster::shared().fresh_database().await.parse().expect("the testbed gives proper addresses")
}

/// What another program would see.
async fn connect(url: &DatabaseUrl) -> deadpool_postgres::Client {
    url.pool(&PostgresOptions::default(), 1).unwrap().get().await.expect("a connection")
}

/// Lets every lease have ended.
async fn end_leases(url: &DatabaseUrl) {
    let db = connect(url).await;
    execute(&db, "DELETE FROM lease", &[]).await.unwrap();
}

#[async_trait]
impl Harness for Postgres {
    /// Each takes about a second.
    const SEQUENCES: u32 = 30;

    async fn fresh(grain: Grain) -> Self {
        let usual = PostgresOptions { own_at_once: true, ..PostgresOptions::default() };
        let options = match grain {
            Grain::Usual => PostgresOptions { piece_span: Duration::from_hours(24), ..usual },
            Grain::Fine => PostgresOptions { piece_span: Duration::from_millis(1), ..usual },
        };
        let url = fresh_url().await;
        Self { store: open(&url, START, &options).await, url, options }
    }

    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn reopen(self, now: Timestamp) -> Self {
        self.store.close().await;
        Self { store: open(&self.url, now, &self.options).await, ..self }
    }

    async fn crash(self, now: Timestamp) -> Self {
        let Self { store, url, options } = self;
        drop(store);
        end_leases(&url).await;
        Self { store: open(&url, now, &options).await, url, options }
    }
}

mod nodes;
mod passed_on;
mod proxy;

crate::conformance!(Postgres);
