//! Which lanes are whose: the shares, the dead, and what they leave.

use super::{
    batch::Batch,
    cluster::{Cluster, Told},
    database::{State, give_rows},
    log::What,
    memory::{Life, Memory, Minter, Outstanding},
    node::{Bells, Node},
    tables::{Cycle, Tables, scheduled},
};
use postrider_engine::{
    Timestamp,
    keys::time_of_key,
    planted::{Bug, planted},
};
use postrider_store::{Committed, Shard, Shards, Tenure};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// How the nodes stand, as one of them sees it.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub nodes: BTreeMap<Tenure, Standing>,
    pub mine: Shards,
    pub free: Shards,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Serving,
    Retiring,
    /// Its lease is over.
    Over,
}

/// What a node has to do about it.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub bury: Vec<Tenure>,
    /// Take so many of the free shards.
    pub claim: usize,
    /// Give these back.
    pub leave: Shards,
}

impl View {
    /// `sure`: whoever has not renewed his lease by now could have.
    pub fn of(cluster: &Cluster, me: Tenure, sure: bool, now: Timestamp) -> Self {
        let standing = |(tenure, row): (&Tenure, &super::NodeRow)| {
            let standing = match (is_over(cluster, *tenure, sure, now), row.retiring) {
                (true, _) => Standing::Over,
                (false, true) => Standing::Retiring,
                (false, false) => Standing::Serving,
            };
            (*tenure, standing)
        };
        Self {
            nodes: cluster.nodes.iter().map(standing).collect(),
            mine: cluster.owned_by(Some(me)),
            free: cluster.owned_by(None),
        }
    }

    /// Each node's share differs by one shard at most. `leaving`: what it is giving back already.
    pub fn plan(&self, me: Tenure, leaving: Shards) -> Plan {
        let bury = self.nodes.iter().filter(|(node, standing)| **standing == Standing::Over && **node != me);
        let serves = |(node, standing): &(&Tenure, &Standing)| match standing {
            Standing::Serving => true,
            Standing::Retiring => false,
            // It renews its lease just now.
            Standing::Over => **node == me,
        };
        let serving: Vec<Tenure> = self.nodes.iter().filter(serves).map(|(node, _)| *node).collect();
        let share = match serving.iter().position(|node| *node == me) {
            Some(place) => Shard::COUNT / serving.len() + usize::from(place < Shard::COUNT % serving.len()),
            None => 0,
        };
        let kept = self.mine.without(leaving);
        let surplus = kept.len().saturating_sub(share);
        Plan {
            bury: bury.map(|(node, _)| *node).collect(),
            claim: share.saturating_sub(self.mine.len()).min(self.free.len()),
            leave: kept.iter().skip(kept.len() - surplus).collect(),
        }
    }
}

/// How the nodes stand, as people are told.
pub fn nodes(cluster: &Cluster, own: Tenure, now: Timestamp) -> Vec<postrider_store::Node> {
    let seen = cluster.nodes.iter().map(|(tenure, row)| postrider_store::Node {
        id: tenure.0,
        name: format!("node {}", row.number),
        started_at: None,
        alive: !is_over(cluster, *tenure, true, now),
        lease_until: cluster.leases.get(tenure).copied(),
        retiring: row.retiring,
        shards: cluster.owned_by(Some(*tenure)).len(),
        is_self: *tenure == own,
    });
    seen.collect()
}

pub fn is_over(cluster: &Cluster, tenure: Tenure, sure: bool, now: Timestamp) -> bool {
    let early = if planted(Bug::BuriedTooSoon) { Duration::from_secs(2) } else { Duration::ZERO };
    cluster.leases.get(&tenure).is_none_or(|until| sure && *until < now.plus(early))
}

/// Takes free shards.
pub fn claim(batch: &mut Batch<'_>, tenure: Tenure, count: usize) -> Shards {
    let shards: Shards = batch.cluster.owned_by(None).iter().take(count).collect();
    if !shards.is_empty() {
        batch.cluster.give(shards, Some(tenure));
        batch.log.push(What::Granted { tenure, shards });
        batch.announce(Committed::Offered { tenure, shards });
    }
    shards
}

/// Ends a node: what it held gets rows, and its shards are free. Whatever it still sends is refused.
pub fn bury(batch: &mut Batch<'_>, dead: Tenure, due: Timestamp) -> u64 {
    let shards = batch.cluster.owned_by(Some(dead));
    let deliveries = give_rows_of(batch.tables, batch.cluster, dead, shards, |_| due);
    batch.cluster.remove(dead);
    deliveries
}

/// Gives every delivery a row that a node holds, or that was passed on to it, of these shards: they are its own.
fn give_rows_of(
    tables: &mut Tables,
    cluster: &mut Cluster,
    node: Tenure,
    shards: Shards,
    due: impl Fn(postrider_engine::MessageKey) -> Timestamp,
) -> u64 {
    let Some(row) = cluster.nodes.get(&node) else { return 0 };
    let mut given = give_rows(tables, row.settled_through, shards, &due);
    let Some(news) = cluster.news.get_mut(&node) else { return given };
    let concerns = |_: &u64, news: &mut super::cluster::News| news.shard.is_some_and(|shard| shards.contains(shard));
    for (_, news) in news.extract_if(.., concerns) {
        let Told::Message(message) = news.what else { continue };
        let Some(row) = tables.messages.get(&message) else { continue };
        let without = row.owed.iter().filter(|endpoint| tables.has_no_row(row, **endpoint));
        let (without, order) = (without.copied().collect::<Vec<_>>(), row.letter.order);
        for endpoint in without {
            given += u64::from(tables.start_waiting(scheduled(endpoint, message), order, due(message), Cycle::First));
        }
    }
    given
}

/// Gives shards back, and whatever is handed over of them a row.
pub fn free(batch: &mut Batch<'_>, tenure: Tenure, shards: Shards) {
    let now = batch.now;
    let shards = shards.and(batch.cluster.owned_by(Some(tenure)));
    // When its message was accepted; the key may say later than now, if a clock was ahead once.
    give_rows_of(batch.tables, batch.cluster, tenure, shards, |message| time_of_key(message.raw()).min(now));
    batch.cluster.give(shards, None);
    batch.log.push(What::Freed { tenure, shards });
    batch.written.calls_everyone = true;
}

/// Wants no shards any more.
pub fn retire(batch: &mut Batch<'_>) {
    let tenure = batch.tenure();
    if let Some(row) = batch.cluster.nodes.get_mut(&tenure) {
        row.retiring = true;
    }
    batch.log.push(What::Retiring { tenure });
    batch.written.calls_everyone = true;
}

impl Memory {
    fn begin_tenure(&mut self, tenure: Tenure, used: i64, lease_until: Instant) {
        self.minter = Minter::of_node(tenure.0, used.max(self.minter.last()));
        let standing = &mut self.standing;
        (standing.tenure, standing.is_member, standing.batch) = (tenure, true, 0);
        (standing.owned, standing.leaving) = (Shards::NONE, Shards::NONE);
        standing.lease_until = Some(lease_until);
    }

    /// Returns the one that ended.
    pub fn end_tenure(&mut self) -> Tenure {
        // No node has this number, so that nothing which was begun before is taken for what is begun after.
        let ended = std::mem::take(&mut self.standing.tenure);
        self.standing.is_member = false;
        self.standing.owned = Shards::NONE;
        self.standing.lease_until = None;
        self.standing.heard.clear();
        self.outstanding = Outstanding::default();
        self.commits.kept.clear();
        ended
    }
}

impl Node {
    /// Becomes one of the nodes, here and now.
    pub fn join_now(&self, asked_at: Instant) {
        let lease = self.base.lease();
        let mut state = self.base.state();
        let used = state.cluster.greatest_key();
        let until = self.base.clock.now().plus(lease);
        let tenure = state.cluster.join(self.number, until, std::sync::Arc::clone(&self.ears));
        // Some room for a last request to get away.
        self.memory().begin_tenure(tenure, used, asked_at + (lease - lease / 10));
        // One that is closing comes back only to give up what it has left; another process may be the node by then.
        if self.life() == Life::Running {
            state.note(self.number, What::Joined { tenure });
        }
        drop(state);
        self.ears.ring(|bells| &mut bells.change, Instant::now());
    }

    /// Before anything else: takes over from the dead, and takes its share.
    pub fn open_among_many(&self, due: Timestamp) {
        self.join_now(Instant::now());
        let mut state = self.base.state();
        let me = self.memory().standing.tenure;
        let ((offered, recovered), written) = self.transact(&mut state, |batch| {
            let view = View::of(batch.cluster, me, true, batch.now);
            let mut recovered = 0;
            for dead in view.plan(me, Shards::NONE).bury {
                let deliveries = bury(batch, dead, due);
                batch.log.push(What::Buried { tenure: dead, by: me, deliveries });
                recovered += deliveries;
            }
            let plan = View::of(batch.cluster, me, true, batch.now).plan(me, Shards::NONE);
            (claim(batch, me, plan.claim), recovered)
        });
        state.note(self.number, What::Opened { recovered });
        self.ring_everyone(&mut state);
        drop(state);
        if !offered.is_empty() {
            self.tell(written.events.into_iter().map(|event| event.what).collect());
        }
    }

    /// Leaves the others. What it still holds gets rows from whoever comes next.
    pub fn depart_now(&self) {
        let mut state = self.base.state();
        let tenure = self.memory().standing.tenure;
        self.transact(&mut state, |batch| {
            let through = batch.memory.outstanding.settled_through(None);
            let minted = batch.memory.minter.last();
            let Some(row) = batch.cluster.nodes.get_mut(&tenure) else { return };
            row.settled_through = through;
            row.minted = row.minted.max(minted);
            if through == i64::MAX {
                let deliveries = bury(batch, tenure, Timestamp::default());
                batch.log.push(What::Buried { tenure, by: tenure, deliveries });
            } else {
                batch.cluster.leases.remove(&tenure);
            }
        });
        self.ring_everyone(&mut state);
    }

    /// Calls nodes to read their news.
    pub fn ring_news(&self, state: &mut State, told: BTreeSet<Tenure>) {
        for tenure in told {
            self.ring(state, tenure, |bells| &mut bells.news);
        }
    }

    /// Calls all nodes to look how they stand.
    pub fn ring_everyone(&self, state: &mut State) {
        for tenure in state.cluster.nodes.keys().copied().collect::<Vec<_>>() {
            self.ring(state, tenure, |bells| &mut bells.change);
        }
    }

    fn ring(&self, state: &mut State, tenure: Tenure, bell: impl FnOnce(&mut Bells) -> &mut Option<Instant>) {
        let (Some(row), Some(ears)) = (state.cluster.nodes.get(&tenure), state.cluster.ears.get(&tenure)) else {
            return;
        };
        let (number, ears) = (row.number, std::sync::Arc::clone(ears));
        let (is_lost, delay) =
            self.base.sky(number, |sky| (sky.happens(sky.weather.news_lost), sky.weather.news_delay));
        if is_lost {
            if planted(Bug::LostNewsNeverFound) {
                state.cluster.news.get_mut(&tenure).and_then(|news| news.pop_last());
            }
            state.note(number, What::NewsLost);
        } else {
            ears.ring(bell, Instant::now() + delay);
        }
    }
}
