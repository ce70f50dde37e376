//! What survives a process.

use super::{
    cluster::Cluster,
    log::{Entry, What},
    memory::{Life, Memory},
    node::{Ears, Node, SimStore},
    tables::{Cycle, Tables, scheduled},
    weather::{Sky, Weather},
};
use postrider::clock::Clock;
use postrider_engine::{
    EndpointKey, MessageKey, Timestamp,
    planted::{Bug, planted},
};
use postrider_store::{Shards, StoreError, Tenure};
use std::{
    collections::BTreeMap,
    ops::{Bound, Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

/// Whose the database is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One process owns all of it, as with SQLite.
    Alone,
    /// Nodes share it, as with PostgreSQL: each has a lease, which it renews with every beat.
    Many { lease: Duration, beat: Duration },
}

/// How much is done in one step of what is done in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// As in use.
    Usual,
    /// A little, so that a run crosses many borders.
    Fine,
}

/// What is on the disk, and what all nodes share. Clones are one and the same.
#[derive(Clone)]
pub struct Database(Arc<Base>);

pub struct Base {
    pub state: Mutex<State>,
    skies: Mutex<BTreeMap<usize, Sky>>,
    /// The weather has changed, or a process has died.
    pub changed: Notify,
    pub clock: Clock,
    pub sharing: Sharing,
    pub grain: Grain,
    seed: u64,
}

#[derive(Default)]
pub struct State {
    pub tables: Tables,
    pub cluster: Cluster,
    pub log: Vec<Entry>,
    /// Whoever watches has no need of it.
    pub keeps_log: bool,
    /// The one process that owns all, where there is but one.
    pub holder: Option<Arc<Node>>,
}

impl Database {
    /// `clock`: the database's own, by which leases are counted.
    pub fn new(seed: u64, sharing: Sharing, grain: Grain, clock: Clock) -> Self {
        Self(Arc::new(Base {
            state: Mutex::new(State { keeps_log: true, ..State::default() }),
            skies: Mutex::default(),
            changed: Notify::new(),
            clock,
            sharing,
            grain,
            seed,
        }))
    }

    /// A process starts on a node, and brings in order what the last one left. Within a runtime: it spawns its own tasks.
    pub fn open(&self, node: usize, now: Timestamp) -> Result<Arc<SimStore>, StoreError> {
        let weather = *self.weather(node);
        if weather.cut && self.0.sharing != Sharing::Alone {
            return Err(StoreError::Unreachable("the connection is cut".to_owned()));
        }
        let (announce, committed) = mpsc::unbounded_channel();
        if planted(Bug::KeysForgotten) {
            self.0.state().tables.repeats.clear();
        }
        let used = self.look(|tables, _| tables.minted);
        let opened = Arc::new(Node {
            number: node,
            base: Arc::clone(&self.0),
            memory: Mutex::new(Memory::new(used)),
            jobs: Notify::new(),
            ears: Arc::new(Ears::default()),
            told: Notify::new(),
            committed: announce,
        });
        match self.0.sharing {
            Sharing::Alone => self.open_alone(&opened, now)?,
            Sharing::Many { .. } => opened.open_among_many(now),
        }
        Ok(Arc::new(SimStore::start(opened, committed)))
    }

    fn open_alone(&self, node: &Arc<Node>, now: Timestamp) -> Result<(), StoreError> {
        let mut state = self.0.state();
        if state.holder.as_ref().is_some_and(|holder| !matches!(holder.life(), Life::Closed | Life::Killed)) {
            return Err(StoreError::Database("another process has the database".to_owned()));
        }
        state.holder = Some(Arc::clone(node));
        let through = state.tables.settled_through;
        let recovered = give_rows(&mut state.tables, through, Shards::ALL, |_| now);
        state.tables.settled_through = state.tables.messages.last_key_value().map_or(0, |(last, _)| last.raw());
        state.note(node.number, What::Opened { recovered });
        drop(state);
        node.tell(vec![postrider_store::Committed::Offered { tenure: Tenure::default(), shards: Shards::ALL }]);
        Ok(())
    }

    /// How the node and its database get on. What is changed counts once this is dropped.
    pub fn weather(&self, node: usize) -> WeatherGuard<'_> {
        let mut skies = self.0.skies();
        skies.entry(node).or_insert_with(|| Sky::new(self.0.seed, node));
        WeatherGuard { skies, node, changed: &self.0.changed }
    }

    pub fn set_weather(&self, node: usize, weather: Weather) {
        *self.weather(node) = weather;
    }

    /// Looks at what is stored, at no cost of time. Nothing may be asked of the database meanwhile.
    pub fn look<T>(&self, look: impl FnOnce(&Tables, &Cluster) -> T) -> T {
        let state = self.0.state();
        look(&state.tables, &state.cluster)
    }

    /// From now on the witness is told of everything, and no log is kept.
    pub fn watch(&self, witness: super::witness::Witness) {
        let mut state = self.0.state();
        state.keeps_log = false;
        state.tables.gallery.invite(witness);
    }

    /// What has happened since this was last asked.
    pub fn drain_log(&self) -> Vec<Entry> {
        std::mem::take(&mut self.0.state().log)
    }

    /// Lets every lease have ended.
    pub fn end_leases(&self) {
        self.0.state().cluster.leases.clear();
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

pub struct WeatherGuard<'d> {
    skies: MutexGuard<'d, BTreeMap<usize, Sky>>,
    node: usize,
    changed: &'d Notify,
}

impl Deref for WeatherGuard<'_> {
    type Target = Weather;

    fn deref(&self) -> &Weather {
        &self.skies[&self.node].weather
    }
}

impl DerefMut for WeatherGuard<'_> {
    fn deref_mut(&mut self) -> &mut Weather {
        &mut self.skies.get_mut(&self.node).expect("it was made with the guard").weather
    }
}

impl Drop for WeatherGuard<'_> {
    fn drop(&mut self) {
        self.changed.notify_waiters();
    }
}

impl Base {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn skies(&self) -> MutexGuard<'_, BTreeMap<usize, Sky>> {
        self.skies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn sky<T>(&self, node: usize, draw: impl FnOnce(&mut Sky) -> T) -> T {
        draw(self.skies().entry(node).or_insert_with(|| Sky::new(self.seed, node)))
    }

    pub fn lease(&self) -> Duration {
        match self.sharing {
            Sharing::Alone => Duration::MAX,
            Sharing::Many { lease, .. } => lease,
        }
    }
}

impl State {
    pub fn note(&mut self, node: usize, what: What) {
        let before = std::mem::replace(&mut self.tables.gallery.node, node);
        self.tables.gallery.tell(&super::witness::Seen::Noted(what));
        self.tables.gallery.node = before;
        if self.keeps_log {
            self.log.push(Entry { at: Instant::now(), node, what });
        }
    }
}

/// Gives every delivery a row that was handed over and has none, of messages past `through` and of these shards. Tells
/// how many had none.
pub fn give_rows(tables: &mut Tables, through: i64, shards: Shards, due: impl Fn(MessageKey) -> Timestamp) -> u64 {
    let past = (Bound::Excluded(MessageKey::new(through)), Bound::Unbounded);
    let mut found = Vec::new();
    if planted(Bug::HandOffsLost) {
        return 0;
    }
    for (message, row) in tables.messages.range(past).filter(|(_, row)| shards.has_lanes_of(row.app)) {
        let without = row.owed.iter().filter(|endpoint| tables.has_no_row(row, **endpoint));
        found.extend(without.map(|endpoint| (scheduled(*endpoint, *message), row.letter.order)));
    }
    for (id, order) in &found {
        tables.start_waiting(*id, *order, due(id.message), Cycle::First);
    }
    found.len() as u64
}

/// The messages whose delivery to this endpoint is handed over, at whichever node, and has no row yet, oldest first.
pub fn handed_to(tables: &Tables, cluster: &Cluster, endpoint: EndpointKey) -> Vec<MessageKey> {
    let Some(oldest) = oldest_handed(cluster) else { return Vec::new() };
    let Some(app) = tables.endpoints.get(&endpoint).map(|row| row.record.app) else { return Vec::new() };
    let of_app = tables.messages.range(MessageKey::new(oldest)..).filter(|(_, row)| row.app == app);
    let handed = of_app.filter(|(_, row)| row.owed.contains(&endpoint) && tables.has_no_row(row, endpoint));
    handed.map(|(message, _)| *message).collect()
}

/// No message before this one has a delivery without a row. `None`: none has.
pub fn oldest_handed(cluster: &Cluster) -> Option<i64> {
    let through = cluster.nodes.values().map(|node| node.settled_through);
    let passed_on = cluster.news.values().flat_map(BTreeMap::values).filter_map(|news| match news.what {
        super::cluster::Told::Message(message) => Some(message.raw() - 1),
        super::cluster::Told::Other(_) => None,
    });
    through.chain(passed_on).min().filter(|through| *through < i64::MAX).map(|through| through + 1)
}
