//! The simulated store holds to what every store must hold to, alone and as one of many.

use async_trait::async_trait;
use postrider::clock::Clock;
use postrider_engine::Timestamp;
use postrider_sim::store::{Database, Grain, Sharing, SimStore};
use postrider_store::{
    Shards, Store,
    conformance::{self, Harness, fixtures::START},
};
use std::{sync::Arc, time::Duration};

#[path = "conformance/nodes.rs"]
mod nodes;

struct Alone(Process);
struct Many(Process);

struct Process {
    database: Database,
    store: Arc<SimStore>,
}

impl Process {
    fn fresh(sharing: Sharing, grain: conformance::Grain) -> Self {
        let grain = match grain {
            conformance::Grain::Usual => Grain::Usual,
            conformance::Grain::Fine => Grain::Fine,
        };
        Self::open(Database::new(1, sharing, grain, Clock::beginning_at(START)), START)
    }

    fn open(database: Database, now: Timestamp) -> Self {
        let store = database.open(0, now).expect("the store opens");
        // Nobody serves the lanes here.
        store.own(store.tenure(), Shards::ALL).expect("nobody else is there");
        Self { database, store }
    }

    async fn reopen(self, now: Timestamp) -> Self {
        self.store.close().await;
        Self::open(self.database, now)
    }

    fn crash(self, now: Timestamp) -> Self {
        self.store.kill();
        self.database.end_leases();
        Self::open(self.database, now)
    }
}

#[async_trait]
impl Harness for Alone {
    async fn fresh(grain: conformance::Grain) -> Self {
        Self(Process::fresh(Sharing::Alone, grain))
    }

    fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    async fn reopen(self, now: Timestamp) -> Self {
        Self(self.0.reopen(now).await)
    }

    async fn crash(self, now: Timestamp) -> Self {
        Self(self.0.crash(now))
    }
}

#[async_trait]
impl Harness for Many {
    async fn fresh(grain: conformance::Grain) -> Self {
        let sharing = Sharing::Many { lease: Duration::from_secs(5), beat: Duration::from_secs(1) };
        Self(Process::fresh(sharing, grain))
    }

    fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    async fn reopen(self, now: Timestamp) -> Self {
        Self(self.0.reopen(now).await)
    }

    async fn crash(self, now: Timestamp) -> Self {
        Self(self.0.crash(now))
    }
}

mod alone {
    use super::*;
    postrider_store::conformance!(Alone);
}

mod many {
    use super::*;
    postrider_store::conformance!(Many);
}
