//! What the parts of the store know together: how this node stands among the others, and what it holds in memory.

use crate::{
    Cancelled, Committed, StoreError,
    queued::Queued,
    rows::minter::Minter,
    shards::{Shard, Shards, Tenure},
};
use postrider_engine::EndpointKey;
use std::{
    collections::{BTreeMap, btree_map},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use tokio::sync::{Notify, mpsc};

/// Messages some of whose deliveries have no rows yet, with the endpoints that these are for.
type Outstanding = BTreeMap<i64, Vec<EndpointKey>>;

/// What the parts of the store know together.
pub struct Shared {
    state: Mutex<Standing>,
    outstanding: Mutex<Outstanding>,
    pub queued: Queued,
    committed: mpsc::UnboundedSender<Vec<Committed>>,
    /// The keeper of the lease has something to look at.
    pub wake_keeper: Notify,
}

/// How this node stands among the others.
struct Standing {
    tenure: Tenure,
    minter: Arc<Minter>,
    /// The shards whose messages are handed over.
    owned: Shards,
    /// Until then nobody else can have taken the lanes.
    lease_until: Option<Instant>,
}

impl Shared {
    pub fn new(committed: mpsc::UnboundedSender<Vec<Committed>>) -> Self {
        let standing = Standing {
            tenure: Tenure::default(),
            minter: Arc::new(Minter::of_node(0, 0)),
            owned: Shards::NONE,
            lease_until: None,
        };
        Self {
            state: Mutex::new(standing),
            outstanding: Mutex::default(),
            queued: Queued::default(),
            committed,
            wake_keeper: Notify::new(),
        }
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tenure(&self) -> Tenure {
        self.standing().tenure
    }

    pub fn owned(&self) -> Shards {
        self.standing().owned
    }

    pub fn may_send(&self) -> bool {
        self.standing().lease_until.is_some_and(|until| Instant::now() < until)
    }

    pub fn leads(&self) -> bool {
        self.standing().owned.contains(Shard::new(0))
    }

    pub fn minter(&self) -> Arc<Minter> {
        Arc::clone(&self.standing().minter)
    }

    /// The lease of this tenure is sure to last until then.
    pub fn renewed(&self, tenure: Tenure, until: Instant) {
        let mut standing = self.standing();
        if standing.tenure == tenure {
            standing.lease_until = Some(until);
        }
    }

    pub fn begin(&self, tenure: Tenure, used: i64, lease_until: Instant) {
        let used = used.max(self.minter().last());
        *self.standing() = Standing {
            tenure,
            minter: Arc::new(Minter::of_node(tenure.0, used)),
            owned: Shards::NONE,
            lease_until: Some(lease_until),
        };
    }

    pub fn end(&self) {
        let mut standing = self.standing();
        // No node has this number, so that nothing which was begun before is taken for what is begun after.
        standing.tenure = Tenure::default();
        standing.owned = Shards::NONE;
        standing.lease_until = None;
        drop(standing);
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        let mut standing = self.standing();
        if standing.tenure != tenure {
            return Err(StoreError::Deposed);
        }
        standing.owned = standing.owned.with(shards);
        drop(standing);
        // There may be news that was kept for this.
        self.wake_keeper.notify_one();
        Ok(())
    }

    pub fn leave(&self, shards: Shards) {
        let mut standing = self.standing();
        standing.owned = standing.owned.without(shards);
    }

    /// Tells the dispatcher, and keeps the books on what it will not come back for.
    pub fn tell(&self, news: Vec<Committed>) {
        for committed in &news {
            if let Committed::Cancelled { endpoint, which } = committed {
                self.let_go(*endpoint, *which);
            }
        }
        if !news.is_empty() {
            // Nobody listens during a clean stop; the next start finds the same in the database.
            let _ = self.committed.send(news);
        }
    }

    fn let_go(&self, endpoint: EndpointKey, which: Cancelled) {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        match which {
            Cancelled::One(message) => land(&mut outstanding, message.raw(), endpoint),
            Cancelled::Before(end) => {
                let messages: Vec<i64> = outstanding.range(..end.raw()).map(|(message, _)| *message).collect();
                for message in messages {
                    land(&mut outstanding, message, endpoint);
                }
            }
        }
    }

    pub fn note_outstanding(&self, handed: Vec<(i64, Vec<EndpointKey>)>, landed: Vec<(i64, EndpointKey)>) {
        let mut outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        outstanding.extend(handed);
        for (message, endpoint) in landed {
            land(&mut outstanding, message, endpoint);
        }
    }

    /// Every message of this node up to this key has a row for each of its deliveries, also once those from `first` on
    /// have been accepted.
    pub fn settled_through(&self, first: Option<i64>) -> i64 {
        let outstanding = self.outstanding.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = outstanding.first_key_value().map(|(oldest, _)| *oldest);
        oldest.into_iter().chain(first).min().map_or(i64::MAX, |oldest| oldest - 1)
    }
}

fn land(outstanding: &mut Outstanding, message: i64, endpoint: EndpointKey) {
    if let btree_map::Entry::Occupied(mut entry) = outstanding.entry(message) {
        entry.get_mut().retain(|owed| *owed != endpoint);
        if entry.get().is_empty() {
            entry.remove();
        }
    }
}
