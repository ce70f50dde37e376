//! What a process knows and nobody else: the volatile half.

use super::jobs::Job;
use postrider_engine::{EndpointKey, MessageKey, Timestamp, keys::first_key_at};
use postrider_store::{Cancelled, Committed, Shards, Tenure};
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use tokio::time::Instant;

/// Nodes that can make keys at the same time.
pub const NODES: i64 = 512;

pub struct Memory {
    pub life: Life,
    /// What is to be written.
    pub queue: VecDeque<Job>,
    pub queued_messages: usize,
    pub queued_bytes: usize,
    pub minter: Minter,
    pub outstanding: Outstanding,
    /// Hand-offs that were ended before their outcome was known, and the latest key at that time. Only where there is one
    /// process: with several, the dead letters are looked at.
    pub ended: BTreeMap<(MessageKey, EndpointKey), i64>,
    pub standing: Standing,
    pub commits: Commits,
    /// Loads at this instant.
    pub loads: (Option<Instant>, u32),
}

/// Transactions of the writer. What is read while one is not told of yet is told after it: it may belong behind it.
#[derive(Default)]
pub struct Commits {
    pub begun: u64,
    /// Told of, or given up.
    pub concluded: u64,
    pub kept: Vec<Committed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Running,
    /// Finishes what is queued.
    Closing,
    Closed,
    Killed,
}

/// How this process stands among the others.
pub struct Standing {
    pub tenure: Tenure,
    /// It has joined the others and has not been declared dead since, as far as it knows.
    pub is_member: bool,
    /// The shards whose messages are handed over.
    pub owned: Shards,
    /// Those that are to be given back: they were asked for since they were offered.
    pub leaving: Shards,
    /// Until then nobody else can have taken the lanes.
    pub lease_until: Option<Instant>,
    /// News of messages that are handed over, which are to be taken away with the next commit.
    pub heard: BTreeSet<u64>,
    /// How often deliveries were called off.
    pub cancels: u64,
    /// Counts the transactions of this tenure.
    pub batch: i64,
}

impl Memory {
    pub fn new(used: i64) -> Self {
        Self {
            life: Life::Running,
            queue: VecDeque::new(),
            queued_messages: 0,
            queued_bytes: 0,
            minter: Minter::starting_after(used),
            outstanding: Outstanding::default(),
            ended: BTreeMap::new(),
            commits: Commits::default(),
            loads: (None, 0),
            standing: Standing {
                tenure: Tenure::default(),
                is_member: false,
                owned: Shards::NONE,
                leaving: Shards::NONE,
                lease_until: None,
                heard: BTreeSet::new(),
                cancels: 0,
                batch: 0,
            },
        }
    }

    pub fn may_send(&self, tenure: Tenure) -> bool {
        let Standing { tenure: own, lease_until, .. } = &self.standing;
        self.life != Life::Killed && *own == tenure && lease_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Makes keys that only ever grow, also when the clock does not. Where several nodes make keys, each keeps to those that
/// leave its own number when divided by `NODES`.
#[derive(Clone, Copy, Debug)]
pub struct Minter {
    last: i64,
    stride: i64,
    number: i64,
}

impl Minter {
    pub fn starting_after(last: i64) -> Self {
        Self { last, stride: 1, number: 0 }
    }

    pub fn of_node(node: i64, last: i64) -> Self {
        Self { last, stride: NODES, number: node.rem_euclid(NODES) }
    }

    pub fn mint(&mut self, at: Timestamp) -> i64 {
        let earliest = first_key_at(at).max(self.last + 1);
        self.last = earliest + (self.number - earliest).rem_euclid(self.stride);
        self.last
    }

    pub fn catch_up(&mut self, used: i64) {
        self.last = self.last.max(used);
    }

    pub fn last(&self) -> i64 {
        self.last
    }
}

/// Of messages that others passed on, so much is held at once; the rest stays in the news.
const PASSED_ON_MAX: usize = 10_000;
const PASSED_ON_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What is handed over to this process's memory and has no row yet.
#[derive(Default)]
pub struct Outstanding {
    messages: BTreeMap<MessageKey, Held>,
    passed_on: usize,
    passed_on_bytes: usize,
}

struct Held {
    owed: Vec<EndpointKey>,
    /// Another node passed it on, and so many bytes are its payload.
    passed_on: Option<usize>,
}

impl Outstanding {
    pub fn accept(&mut self, message: MessageKey, owed: Vec<EndpointKey>) {
        self.messages.insert(message, Held { owed, passed_on: None });
    }

    pub fn take_in(&mut self, message: MessageKey, owed: Vec<EndpointKey>, bytes: usize) {
        self.messages.insert(message, Held { owed, passed_on: Some(bytes) });
        self.passed_on += 1;
        self.passed_on_bytes += bytes;
    }

    pub fn has_room(&self) -> bool {
        self.passed_on < PASSED_ON_MAX && self.passed_on_bytes < PASSED_ON_BYTES_MAX
    }

    pub fn contains(&self, message: MessageKey, endpoint: EndpointKey) -> bool {
        self.messages.get(&message).is_some_and(|held| held.owed.contains(&endpoint))
    }

    /// The messages whose delivery to this endpoint has no row yet, oldest first.
    pub fn of(&self, endpoint: EndpointKey) -> Vec<MessageKey> {
        let held = self.messages.iter().filter(|(_, held)| held.owed.contains(&endpoint));
        held.map(|(message, _)| *message).collect()
    }

    /// The delivery has a row.
    pub fn land(&mut self, message: MessageKey, endpoint: EndpointKey) {
        let btree_map::Entry::Occupied(mut held) = self.messages.entry(message) else { return };
        held.get_mut().owed.retain(|owed| *owed != endpoint);
        if held.get().owed.is_empty()
            && let Some(bytes) = held.remove().passed_on
        {
            self.passed_on -= 1;
            self.passed_on_bytes -= bytes;
        }
    }

    /// Deliveries to this endpoint were called off.
    pub fn let_go(&mut self, endpoint: EndpointKey, which: Cancelled) {
        match which {
            Cancelled::One(message) => self.land(message, endpoint),
            Cancelled::Before(end) => {
                let before: Vec<MessageKey> = self.messages.range(..end).map(|(message, _)| *message).collect();
                for message in before {
                    self.land(message, endpoint);
                }
            }
        }
    }

    pub fn oldest(&self) -> Option<MessageKey> {
        self.messages.first_key_value().map(|(oldest, _)| *oldest)
    }

    /// Every message up to this key that the node holds has a row for each of its deliveries, also once those from `first`
    /// on have been accepted.
    pub fn settled_through(&self, first: Option<i64>) -> i64 {
        self.oldest().map(MessageKey::raw).into_iter().chain(first).min().map_or(i64::MAX, |oldest| oldest - 1)
    }
}
