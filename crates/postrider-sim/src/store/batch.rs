//! A transaction under way, and what will be made known once it is committed.

use super::{
    cluster::{Cluster, Event, To, lane},
    database::Grain,
    log::What,
    memory::Memory,
    tables::Tables,
};
use postrider_engine::{EndpointKey, MessageKey, Timestamp, keys::time_of_key};
use postrider_store::{Committed, Shard, Tenure};
use std::{collections::BTreeSet, time::Duration};

pub struct Batch<'b> {
    pub tables: &'b mut Tables,
    pub cluster: &'b mut Cluster,
    pub memory: &'b mut Memory,
    pub kind: Kind,
    pub grain: Grain,
    /// By the database's clock.
    pub now: Timestamp,
    pub written: Written,
    pub log: Vec<What>,
}

/// Whether there is one process, or several nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Alone,
    Many,
}

/// What a transaction has changed that is to be made known.
#[derive(Default)]
pub struct Written {
    pub events: Vec<Event>,
    /// Messages, and the endpoints to which they are handed over.
    pub handed: Vec<(MessageKey, Vec<EndpointKey>)>,
    pub landed: Vec<(MessageKey, EndpointKey)>,
    /// News that were taken away.
    pub heard: Vec<u64>,
    /// Who has something to read.
    pub told: BTreeSet<Tenure>,
    /// How the nodes stand has changed: all of them are to look.
    pub calls_everyone: bool,
    pub through: i64,
}

/// No try takes as long as this, and what was never tried is not heard of again.
const ENDED_MEMORY: Duration = Duration::from_hours(1);

impl Batch<'_> {
    pub fn tenure(&self) -> Tenure {
        self.memory.standing.tenure
    }

    /// Whoever serves the lane, or keeps the settings, is told as soon as this is committed.
    pub fn announce(&mut self, what: Committed) {
        match &what {
            Committed::Settings { app } => self.tables.tell_settings(*app),
            Committed::Health { endpoint } => {
                self.tables.gallery.tell(&super::witness::Seen::HealthReset { endpoint: *endpoint });
            }
            Committed::Message { .. }
            | Committed::Waiting { .. }
            | Committed::EventTypes
            | Committed::Cancelled { .. }
            | Committed::Work
            | Committed::Offered { .. }
            | Committed::Wanted { .. }
            | Committed::Deposed => {}
        }
        let to = match (self.kind, &what, lane(&what)) {
            (Kind::Alone, ..) => To::Here,
            (Kind::Many, Committed::Work, _) => To::Owner(Shard::new(0)),
            (Kind::Many, Committed::Settings { .. } | Committed::EventTypes, _) => To::Everyone,
            (Kind::Many, _, Some(endpoint)) => match self.tables.endpoints.get(&endpoint) {
                Some(row) => To::Owner(Shard::of(row.record.app)),
                None => To::Here,
            },
            (Kind::Many, _, None) => To::Here,
        };
        self.written.events.push(Event { to, what });
    }

    /// Whoever does the work in the background is told, if that is another node. On this one the caller sees to it.
    pub fn announce_work(&mut self) {
        match self.kind {
            Kind::Alone => {}
            Kind::Many => self.announce(Committed::Work),
        }
    }

    /// The message's deliveries are handed to their lanes and have no rows of their own yet.
    pub fn hand_over(&mut self, message: MessageKey, owed: Vec<EndpointKey>) {
        match self.kind {
            Kind::Alone => self.memory.outstanding.accept(message, owed),
            Kind::Many => self.written.handed.push((message, owed)),
        }
    }

    /// One of the message's hand-offs now has a row.
    pub fn land(&mut self, message: MessageKey, endpoint: EndpointKey) {
        match self.kind {
            Kind::Alone => self.memory.outstanding.land(message, endpoint),
            Kind::Many => self.written.landed.push((message, endpoint)),
        }
    }

    /// Whether the delivery is handed over, at whichever node, and has no row yet.
    pub fn is_handed(&self, message: MessageKey, endpoint: EndpointKey) -> bool {
        match self.kind {
            Kind::Alone => self.memory.outstanding.contains(message, endpoint),
            Kind::Many => self
                .tables
                .messages
                .get(&message)
                .is_some_and(|row| row.owed.contains(&endpoint) && self.tables.has_no_row(row, endpoint)),
        }
    }

    /// The messages whose delivery to this endpoint is handed over and has no row yet, oldest first.
    pub fn handed_to(&self, endpoint: EndpointKey) -> Vec<MessageKey> {
        match self.kind {
            Kind::Alone => self.memory.outstanding.of(endpoint),
            Kind::Many => super::database::handed_to(self.tables, self.cluster, endpoint),
        }
    }

    /// A hand-off ends here and now, whatever its try may bring that is perhaps on the wire. The caller has given it a
    /// row that says so.
    pub fn end_handed(&mut self, message: MessageKey, endpoint: EndpointKey) {
        match self.kind {
            Kind::Alone => {
                self.land(message, endpoint);
                let latest = self.memory.minter.last();
                let ended = &mut self.memory.ended;
                ended.retain(|_, then| time_of_key(latest).since(time_of_key(*then)) < ENDED_MEMORY);
                ended.insert((message, endpoint), latest);
            }
            // Whoever holds it hears that it was called off.
            Kind::Many => {}
        }
    }

    /// Whether a hand-off was ended before its outcome was known.
    pub fn was_ended(&self, message: MessageKey, endpoint: EndpointKey) -> bool {
        match self.kind {
            Kind::Alone => self.memory.ended.contains_key(&(message, endpoint)),
            Kind::Many => self.tables.dead.contains_key(&(endpoint, message)),
        }
    }

    /// Whether a delivery that was handed over still has to arrive. Its message may have been forgotten meanwhile, a
    /// resend may have brought it there, or a person may have ended it.
    pub fn is_owed(&self, message: MessageKey, endpoint: EndpointKey) -> bool {
        !self.was_ended(message, endpoint)
            && self.tables.messages.get(&message).is_some_and(|row| !row.has_arrived_at(endpoint))
    }

    pub fn mint(&mut self, at: Timestamp) -> i64 {
        self.memory.minter.mint(at)
    }
}
