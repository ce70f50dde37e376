//! The two stores: a story that is told once is played on both.

use super::server::Server;
use postrider::clock;
use postrider_store::{AppKind, Application, Expect, Order, Page, PostgresOptions, PostgresStore, SqliteStore, Store};
use postrider_testbed::Cluster;
use std::{path::Path, sync::Arc, thread, time::Duration};

/// Makes two tests of each story, in the modules `on_sqlite` and `on_postgresql`. A story is a function of the store's
/// kind; one that is not listed is never called, which the compiler tells.
macro_rules! on_both_stores {
    (async $($story:ident),+ $(,)?) => {
        on_both_stores! { @async on_sqlite Sqlite $($story)+ }
        on_both_stores! { @async on_postgresql Postgresql $($story)+ }
    };
    (@async $module:ident $kind:ident $($story:ident)+) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $story() {
                    super::$story($crate::support::stores::StoreKind::$kind).await;
                }
            )+
        }
    };
    ($($story:ident),+ $(,)?) => {
        on_both_stores! { @blocking on_sqlite Sqlite $($story)+ }
        on_both_stores! { @blocking on_postgresql Postgresql $($story)+ }
    };
    (@blocking $module:ident $kind:ident $($story:ident)+) => {
        mod $module {
            $(
                #[test]
                fn $story() {
                    super::$story($crate::support::stores::StoreKind::$kind);
                }
            )+
        }
    };
}
pub(crate) use on_both_stores;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Sqlite,
    Postgresql,
}

impl StoreKind {
    /// What the server must be told to use a new store of this kind.
    pub fn flags(self) -> Vec<String> {
        match self {
            Self::Sqlite => Vec::new(),
            Self::Postgresql => {
                ["--database-url", &fresh_database(), "--lease", SHORT_LEASE].map(str::to_owned).to_vec()
            }
        }
    }

    /// A store within the test. Nothing is sent from it.
    pub async fn open(self, folder: &Path) -> Arc<dyn Store> {
        match self {
            Self::Sqlite => Arc::new(SqliteStore::open(folder, clock::now()).expect("a store")),
            Self::Postgresql => open_database(&fresh_database()).await,
        }
    }
}

/// A database that nobody else uses at the time.
pub async fn open_database(url: &str) -> Arc<dyn Store> {
    let options = PostgresOptions {
        lease: Duration::from_secs(60),
        // As if the dispatcher had begun with them, which is how SQLite's store takes it, too.
        own_at_once: true,
        ..PostgresOptions::default()
    };
    let url = url.parse().expect("an address");
    Arc::new(PostgresStore::open(&url, clock::now(), options).await.expect("a store"))
}

/// Makes a source of a server that does not run one that cannot be read.
pub async fn spoil_source(server: &Server, name: &str) {
    let store = match server.database_url() {
        None => StoreKind::Sqlite.open(&server.data()).await,
        Some(url) => open_database(url).await,
    };
    let page = Page { from: None, order: Order::Ascending, limit: 100 };
    let all = store.applications_of(AppKind::Source, page).await.expect("read");
    let old = all.into_iter().find(|source| source.name == name).expect("it is there");
    let expect = Expect::Version(old.version);
    let spoiled = Application { version: old.version + 1, source: Some(b"not what was sealed".to_vec()), ..old };
    store.put_application(spoiled, expect, None).await.expect("written");
    store.close().await;
}

/// Blocks, on a runtime that is not the caller's: whoever starts a server waits for it in the same way.
fn fresh_database() -> String {
    let make = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(Cluster::shared().fresh_database())
    };
    thread::scope(|scope| scope.spawn(make).join()).expect("a database")
}

/// Whoever starts again after a kill waits for the lease of the one that was killed.
const SHORT_LEASE: &str = "1s";
