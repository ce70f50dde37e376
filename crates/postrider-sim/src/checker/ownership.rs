//! Who may send, and who may write: I16.

use super::{Judge, wire::PostId};
use crate::{config::Sharing, sometimes::Sometimes, trace::Kind};
use postrider_store::{Shard, Shards};

/// Who owns each shard by the database, with the tenure.
pub struct Owners {
    /// With one process for all, it is whoever is alive.
    shared: bool,
    of: Vec<Option<(usize, i64)>>,
    /// The one in which each node is.
    tenures: Vec<i64>,
    /// When each last changed hands.
    since: Vec<i64>,
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    Joined,
    Granted,
    Owned,
    Wanted,
    Freed,
    Retiring,
    Buried,
    Deposed,
}

impl Owners {
    pub fn new(sharing: Sharing, nodes: usize) -> Self {
        Self {
            shared: sharing != Sharing::Alone,
            of: vec![None; Shard::COUNT],
            tenures: vec![0; nodes],
            since: vec![i64::MIN; Shard::COUNT],
        }
    }
}

impl Judge {
    pub fn lease(&mut self, node: usize, tenure: i64, shards: Shards, what: Lease) {
        self.note(node as i8, Kind::Lease, [tenure, 0, what as i64, shards.len() as i64]);
        let now = self.now;
        match what {
            Lease::Granted => {
                for shard in shards.iter().map(|shard| usize::from(shard.number())) {
                    if let Some((owner, before)) = self.owners.of[shard]
                        && (owner, before) != (node, tenure)
                    {
                        self.object("I16", 0, 0, || {
                            format!(
                                "shard {shard} was given to node {node} while it was node {owner}'s (tenure {before})"
                            )
                        });
                    }
                    self.owners.of[shard] = Some((node, tenure));
                    self.owners.since[shard] = now;
                }
            }
            Lease::Freed => {
                for shard in shards.iter().map(|shard| usize::from(shard.number())) {
                    if self.owners.of[shard] == Some((node, tenure)) {
                        self.owners.of[shard] = None;
                    }
                }
                self.met.met(Sometimes::HandedOver);
            }
            Lease::Buried => {
                let mut held = false;
                for owner in &mut self.owners.of {
                    if owner.is_some_and(|(_, of)| of == tenure) {
                        *owner = None;
                        held = true;
                    }
                }
                if held {
                    self.met.met(Sometimes::TakenOver);
                }
                // Whoever is buried is in that tenure still, or is another process by now.
                let buried = self.owners.tenures.iter().position(|of| *of == tenure);
                if let Some(buried) = buried {
                    self.lost_lanes(buried);
                    if self.current[buried].is_some() && buried != node {
                        self.met.met(Sometimes::BuriedAlive);
                    }
                }
            }
            Lease::Deposed => self.lost_lanes(node),
            Lease::Wanted => self.met.met(Sometimes::Rebalanced),
            Lease::Joined => self.owners.tenures[node] = tenure,
            Lease::Owned | Lease::Retiring => {}
        }
    }

    fn lost_lanes(&mut self, node: usize) {
        let life = self.current_life(node);
        if self.lives.is_empty() {
            return;
        }
        self.lives[life as usize].deposed = Some(self.now);
        self.abandon(life);
    }

    /// A write of a tenure that is over was refused, as it must be.
    pub fn refused(&mut self, node: usize, tenure: i64) {
        self.note(node as i8, Kind::Refused, [0, 0, tenure, 0]);
        self.met.met(Sometimes::StaleTenureRefused);
    }

    /// I16: nothing is begun by anybody but the owner. There is no excuse: a node stops before its lease can end.
    pub(super) fn check_owner(&mut self, post: PostId) {
        let (delivery, node) = (self.posts[post].delivery, self.posts[post].node);
        if self.current[node].is_none() {
            self.object_to("I16", delivery, || format!("begun by node {node}, whose process has ended"));
        }
        if !self.owners.shared {
            return;
        }
        let shard = self.shard_of(delivery);
        match self.owners.of[shard] {
            Some(owner) if owner == (node, self.owners.tenures[node]) => {}
            owner => {
                let whose =
                    owner.map_or("nobody's".to_owned(), |(owner, tenure)| format!("node {owner}'s (tenure {tenure})"));
                self.object_to("I16", delivery, || format!("begun by node {node} while shard {shard} was {whose}"));
            }
        }
    }

    /// I16: nothing is written down by anybody but the owner.
    pub(super) fn check_fence(&mut self, delivery: usize, node: usize, tenure: i64) {
        if !self.owners.shared {
            return;
        }
        let shard = self.shard_of(delivery);
        if self.owners.of[shard] != Some((node, tenure)) {
            let owner = self.owners.of[shard];
            self.object_to("I16", delivery, || {
                format!("node {node} of tenure {tenure} wrote a settlement while the shard was {owner:?}'s")
            });
        }
    }

    fn shard_of(&self, delivery: usize) -> usize {
        let app = self.messages[self.deliveries[delivery].message as usize].app;
        usize::from(self.apps[app as usize].shard)
    }

    /// Whether the lanes of this application changed hands so lately that something may be under way.
    pub(super) fn changed_hands_at(&self, app: u32) -> i64 {
        self.owners.since[usize::from(self.apps[app as usize].shard)]
    }
}
