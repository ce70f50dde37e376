//! Stores of every kind on real servers, a clock of the test's making, and requests as Postrider signs them.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub mod proxy;
pub mod redis_server;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::HeaderMap;
use metrics_util::debugging::{DebugValue, Snapshotter};
use postrider_inbox::{
    Clock, Event, EventKey, MemoryStore, Place, PostgresStore, RedisStore, Retention, SqliteStore, Store, Timestamp,
    deadpool_postgres::{Manager, Pool},
    tokio_postgres::NoTls,
};
use postrider_signature::{Secret, SigningKey, Source, sign};
use postrider_testbed::Cluster;
use redis_server::RedisServer;
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Sqlite,
    Postgres,
    Redis,
}

/// Where an inbox lies, so that another process can open it, too.
pub struct Site {
    pub kind: Kind,
    pub address: String,
    memory: Arc<MemoryStore>,
    _folder: Option<TempDir>,
}

impl Site {
    pub async fn fresh(kind: Kind) -> Self {
        let mut site = Self { kind, address: String::new(), memory: Arc::new(MemoryStore::new()), _folder: None };
        match kind {
            Kind::Memory => {}
            Kind::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                site.address = folder.path().join("inbox.db").to_str().unwrap().to_owned();
                site._folder = Some(folder);
            }
            Kind::Postgres => site.address = Cluster::shared().fresh_database().await,
            Kind::Redis => {
                static COUNT: AtomicU64 = AtomicU64::new(0);
                let number = COUNT.fetch_add(1, Ordering::Relaxed);
                site.address = format!("{} test_{number}_", RedisServer::shared().url());
            }
        }
        site.open().await.migrate().await.unwrap();
        site
    }

    /// What another process was told.
    pub fn known(kind: Kind, address: &str) -> Self {
        Self { kind, address: address.to_owned(), memory: Arc::new(MemoryStore::new()), _folder: None }
    }

    pub async fn open(&self) -> Arc<dyn Store> {
        match self.kind {
            Kind::Memory => Arc::clone(&self.memory) as _,
            Kind::Sqlite => Arc::new(self.sqlite()),
            Kind::Postgres => Arc::new(self.postgres()),
            Kind::Redis => {
                let (url, prefix) = self.address.split_once(' ').unwrap();
                Arc::new(RedisStore::connect_with_prefix(url, prefix, Retention::default()).await.unwrap())
            }
        }
    }

    pub fn sqlite(&self) -> SqliteStore {
        SqliteStore::open(self.address.as_ref()).unwrap()
    }

    pub fn postgres(&self) -> PostgresStore {
        PostgresStore::new(pool(&self.address))
    }
}

pub fn pool(url: &str) -> Pool {
    Pool::builder(Manager::new(url.parse().unwrap(), NoTls)).max_size(POOL_SIZE).build().unwrap()
}

/// Each of the stories is played on each of the stores.
#[macro_export]
macro_rules! on_every_store {
    ($($story:ident),* $(,)?) => {
        $crate::on_every_store!(@ in_memory Memory $($story)*);
        $crate::on_every_store!(@ on_sqlite Sqlite $($story)*);
        $crate::on_every_store!(@ on_postgresql Postgres $($story)*);
        $crate::on_every_store!(@ on_redis Redis $($story)*);
    };
    (@ $module:ident $kind:ident $($story:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $story() {
                    super::$story($crate::common::Site::fresh($crate::common::Kind::$kind).await).await;
                }
            )*
        }
    };
}

/// Stands still until it is told.
#[derive(Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl TestClock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicI64::new(START)))
    }

    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as i64, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

pub const POOL_SIZE: usize = 8;
pub const START: i64 = 1_800_000_000_000;
pub const LEASE: Duration = Duration::from_secs(60);
pub const DAY: Duration = Duration::from_hours(24);

pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START + millis)
}

pub fn key(id: &str) -> EventKey {
    EventKey::parse("shop", id).unwrap()
}

pub fn event(id: &str) -> Event {
    Event {
        key: key(id),
        body: Bytes::from(format!("body of {id}")),
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        received_at: at(0),
        place: None,
        arrival: None,
    }
}

pub fn ordered(id: &str, ordering_key: &str, number: u64) -> Event {
    Event { place: Some(Place { ordering_key: ordering_key.to_owned(), number }), ..event(id) }
}

pub fn source() -> Source {
    Source::standard([secret()])
}

fn secret() -> Secret {
    Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap()
}

/// As Postrider signs a delivery.
pub fn signed(id: &str, body: &str, now: Timestamp) -> (HeaderMap, Bytes) {
    let signature = sign(&[SigningKey::new(&secret())], id, now.as_secs(), body.as_bytes());
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("webhook-id", id),
        ("webhook-timestamp", &now.as_secs().to_string()),
        ("webhook-signature", &signature),
        ("content-type", "application/json"),
    ] {
        headers.insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    (headers, Bytes::from(body.to_owned()))
}

/// By their names without what all have in common, and their labels.
pub fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(_) => unreachable!("there is none"),
            };
            let name = key.key().name().trim_start_matches("postrider_inbox_");
            (format!("{name} {}", labels.join(" ")).trim().to_owned(), value)
        })
        .collect()
}
