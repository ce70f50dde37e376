//! What nodes that share a database know of one another, as it stands in the database.

use super::{memory::NODES, node::Ears};
use postrider_engine::{EndpointKey, MessageKey, Timestamp};
use postrider_store::{Cancelled, Committed, Shard, Shards, Tenure};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub struct Cluster {
    pub nodes: BTreeMap<Tenure, NodeRow>,
    pub leases: BTreeMap<Tenure, Timestamp>,
    pub shards: Vec<Option<Tenure>>,
    /// By whom they are for, then in the order in which they were written.
    pub news: BTreeMap<Tenure, BTreeMap<u64, News>>,
    /// The greatest key that nodes which are gone have used.
    pub minted: i64,
    pub(super) ears: BTreeMap<Tenure, Arc<Ears>>,
    last_node: i64,
    last_news: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct NodeRow {
    /// The world's number of it.
    pub number: usize,
    /// Counts its transactions.
    pub batch: i64,
    /// Up to which message all that it holds has a row.
    pub settled_through: i64,
    pub minted: i64,
    pub retiring: bool,
}

#[derive(Clone, Debug)]
pub struct News {
    /// `None`: it concerns no lane.
    pub shard: Option<Shard>,
    pub what: Told,
}

#[derive(Clone, Debug)]
pub enum Told {
    /// Its deliveries have no rows: they are owed by the node that it is passed on to.
    Message(MessageKey),
    Other(Committed),
}

/// Something to tell, and whom.
#[derive(Clone, Debug)]
pub struct Event {
    pub to: To,
    pub what: Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Whoever serves the lanes of this shard.
    Owner(Shard),
    Everyone,
    Here,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            leases: BTreeMap::new(),
            shards: vec![None; Shard::COUNT],
            news: BTreeMap::new(),
            minted: 0,
            ears: BTreeMap::new(),
            last_node: 0,
            last_news: 0,
        }
    }
}

impl Cluster {
    /// The greatest key that any node has used.
    pub fn greatest_key(&self) -> i64 {
        self.nodes.values().map(|node| node.minted).max().unwrap_or(0).max(self.minted)
    }

    pub fn owner(&self, shard: Shard) -> Option<Tenure> {
        self.shards[usize::from(shard.number())]
    }

    pub fn owned_by(&self, owner: Option<Tenure>) -> Shards {
        let of = |(number, found): (usize, &Option<Tenure>)| (*found == owner).then(|| Shard::new(number as u8));
        self.shards.iter().enumerate().filter_map(of).collect()
    }

    pub fn give(&mut self, shards: Shards, owner: Option<Tenure>) {
        for shard in shards.iter() {
            self.shards[usize::from(shard.number())] = owner;
        }
    }

    /// Adds a node to the others. It has no shards yet.
    pub(super) fn join(&mut self, number: usize, until: Timestamp, ears: Arc<Ears>) -> Tenure {
        // Two nodes whose numbers leave the same rest would make the same keys.
        loop {
            self.last_node += 1;
            let rest = self.last_node % NODES;
            if self.nodes.keys().all(|node| node.0 % NODES != rest) {
                break;
            }
        }
        let (tenure, minted) = (Tenure(self.last_node), self.greatest_key());
        self.nodes.insert(tenure, NodeRow { number, batch: 0, settled_through: i64::MAX, minted, retiring: false });
        self.leases.insert(tenure, until);
        self.ears.insert(tenure, ears);
        tenure
    }

    /// What a dead node leaves is gone, but for what the caller has given rows to.
    pub fn remove(&mut self, tenure: Tenure) {
        if let Some(node) = self.nodes.remove(&tenure) {
            self.minted = self.minted.max(node.minted);
        }
        self.give(self.owned_by(Some(tenure)), None);
        self.news.remove(&tenure);
        self.leases.remove(&tenure);
        self.ears.remove(&tenure);
    }

    fn write_news(&mut self, to: Tenure, news: News) {
        self.last_news += 1;
        self.news.entry(to).or_default().insert(self.last_news, news);
    }

    /// Passes a message on to whoever serves its lanes. False if nobody does.
    pub fn pass_on(&mut self, shard: Shard, message: MessageKey, told: &mut BTreeSet<Tenure>) -> bool {
        let Some(owner) = self.owner(shard) else { return false };
        self.write_news(owner, News { shard: Some(shard), what: Told::Message(message) });
        told.insert(owner);
        true
    }

    /// Writes down what others must hear of, and returns who has something to read.
    pub fn publish(&mut self, me: Tenure, owned: &Shards, events: &[Event]) -> BTreeSet<Tenure> {
        let mut told = BTreeSet::new();
        for Event { to, what } in events {
            match to {
                To::Owner(shard) if !owned.contains(*shard) && concerns_others(what) => {
                    if let Some(owner) = self.owner(*shard) {
                        self.write_news(owner, News { shard: Some(*shard), what: Told::Other(what.clone()) });
                        told.insert(owner);
                    }
                }
                To::Everyone if concerns_others(what) => {
                    let others: Vec<Tenure> = self.nodes.keys().copied().filter(|node| *node != me).collect();
                    for other in others {
                        self.write_news(other, News { shard: None, what: Told::Other(what.clone()) });
                        told.insert(other);
                    }
                }
                To::Owner(_) | To::Everyone | To::Here => {}
            }
        }
        told
    }
}

fn concerns_others(what: &Committed) -> bool {
    match what {
        Committed::Waiting { .. }
        | Committed::Settings { .. }
        | Committed::EventTypes
        | Committed::Health { .. }
        | Committed::Cancelled { which: Cancelled::One(_) | Cancelled::Before(_), .. }
        | Committed::Work => true,
        Committed::Message { .. } | Committed::Offered { .. } | Committed::Wanted { .. } | Committed::Deposed => false,
    }
}

/// The lane that something is about.
pub fn lane(what: &Committed) -> Option<EndpointKey> {
    match what {
        Committed::Waiting { endpoint, .. }
        | Committed::Health { endpoint }
        | Committed::Cancelled { endpoint, .. } => Some(*endpoint),
        Committed::Message { .. }
        | Committed::Settings { .. }
        | Committed::EventTypes
        | Committed::Work
        | Committed::Offered { .. }
        | Committed::Wanted { .. }
        | Committed::Deposed => None,
    }
}

/// What a node hears of what it committed itself: all that concerns it.
pub fn for_here(owned: &Shards, events: Vec<Event>) -> Vec<Committed> {
    let concerns = |event: &Event| match event.to {
        To::Owner(shard) => owned.contains(shard) && !matches!(event.what, Committed::Work),
        To::Everyone | To::Here => true,
    };
    events.into_iter().filter(concerns).map(|event| event.what).collect()
}
