//! One process: the real parts, put together as the server does, on a simulated store and a simulated network.

use crate::{chance::Chance, receivers::Wire, store::SimStore, world::World};
use postrider::{
    clock::Clock,
    directory::Directory,
    dispatch::{Dispatch, Means},
    ids::IdCodec,
    ingest::Ingest,
    tasks::Tasks,
    transport::AddressGuard,
    vault::Vault,
};
use postrider_engine::policy::Layer;
use postrider_store::{IDEMPOTENCY_MEMORY, Retention, Store};
use rand::{SeedableRng, rngs::StdRng};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle};

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Killed,
    Stopped,
}

pub struct Process {
    pub store: Arc<SimStore>,
    pub directory: Arc<Directory>,
    pub ingest: Arc<Ingest>,
    pub tasks: Arc<Tasks>,
    pub clock: Clock,
    wire: Arc<Wire>,
    stop: watch::Sender<bool>,
    dispatching: JoinHandle<()>,
    working: JoinHandle<()>,
}

impl Process {
    /// Starts everything on a store that has just been opened.
    pub fn start(world: &Arc<World>, node: usize, life: u32, store: Arc<SimStore>, clock: Clock) -> Self {
        let dynamic: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let guard = Arc::new(AddressGuard::new(Vec::new()));
        let directory =
            Arc::new(Directory::new(Arc::clone(&dynamic), Arc::clone(&world.vault), guard, Arc::new(Layer::default())));
        let tasks = Arc::new(Tasks::default());
        let wire = Arc::new(Wire::new(Arc::clone(world), node));
        let (stop, stopped) = watch::channel(false);
        let jitter = Chance::new(world.config.seed, "jitter", life.into()).draw();
        let dispatch = Dispatch::new(Means {
            store: Arc::clone(&dynamic),
            directory: Arc::clone(&directory),
            post: Arc::clone(&wire) as Arc<dyn postrider::transport::Post>,
            ids: world.ids.clone(),
            tasks: Arc::clone(&tasks),
            clock: clock.clone(),
            rng: StdRng::seed_from_u64(jitter),
        });
        let dispatching = tokio::spawn(dispatch.run(stopped));
        let working = tokio::spawn({
            let (tasks, store, directory, clock) =
                (Arc::clone(&tasks), Arc::clone(&dynamic), Arc::clone(&directory), clock.clone());
            async move { tasks.run(store, directory, RETENTION, clock).await }
        });
        let ingest = Arc::new(Ingest::new(dynamic, Arc::clone(&directory), clock.clone()));
        Self { store, directory, ingest, tasks, clock, wire, stop, dispatching, working }
    }

    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// At once, in the middle of everything.
    pub fn kill(&self) {
        self.wire.die();
        self.store.kill();
        self.dispatching.abort();
        self.working.abort();
    }

    /// Takes nothing new and lets what is under way finish, for as long as the time of grace. False: it did not.
    pub async fn stop(&self, grace: Duration) -> bool {
        self.stop.send_replace(true);
        let finished = async {
            while !self.dispatching.is_finished() {
                tokio::time::sleep(STOP_LOOK).await;
            }
        };
        let in_time = tokio::time::timeout(grace, finished).await.is_ok();
        self.working.abort();
        if in_time {
            self.store.close().await;
        }
        in_time
    }
}

/// What a deployment has once, however often its processes start.
pub fn keys() -> (Arc<Vault>, IdCodec) {
    (Arc::new(Vault::new(&[[7; 32]])), IdCodec::new([9; 16]))
}

/// Longer than any world lasts, but for keys.
const RETENTION: Retention = Retention {
    payloads: Duration::from_hours(24 * 90),
    attempts: Duration::from_hours(24 * 90),
    dead_letters: Duration::from_hours(24 * 90),
    idempotency: IDEMPOTENCY_MEMORY,
};

const STOP_LOOK: Duration = Duration::from_millis(5);
