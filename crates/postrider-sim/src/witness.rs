//! Stands by while the database commits, and tells the judge.

use crate::{
    checker::{Found, Judge, Lease, number_in},
    sometimes::Sometimes,
    store::{Database, Seen, What},
};
use postrider_engine::{MessageKey, Trigger};
use postrider_store::Shards;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{sync::Notify, time::Instant};

/// Nodes that shall die right after one of their next commits.
#[derive(Clone, Default)]
pub struct Doom(Arc<Mutex<Vec<Sentence>>>);

struct Sentence {
    node: usize,
    commits_left: u32,
    come: Arc<Notify>,
}

impl Doom {
    /// Completes when the node has committed so many messages more.
    pub async fn await_commit(&self, node: usize, commits: u32) {
        let come = Arc::new(Notify::new());
        self.lock().push(Sentence { node, commits_left: commits, come: Arc::clone(&come) });
        come.notified().await;
    }

    pub fn spare(&self, node: usize) {
        self.lock().retain(|sentence| sentence.node != node);
    }

    fn committed(&self, node: usize) {
        self.lock().retain_mut(|sentence| {
            if sentence.node != node {
                return true;
            }
            sentence.commits_left -= 1;
            if sentence.commits_left == 0 {
                sentence.come.notify_one();
            }
            sentence.commits_left > 0
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Sentence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the judge of everything that the database decides, at the moment at which it does.
pub fn watch(database: &Database, begun: Instant, judge: Arc<Mutex<Judge>>) -> Doom {
    let doom = Doom::default();
    let doomed = doom.clone();
    database.watch(Arc::new(move |node: usize, seen: &Seen<'_>| {
        let mut judge = judge.lock().unwrap_or_else(PoisonError::into_inner);
        judge.at(begun.elapsed().as_millis() as i64);
        if let Seen::Accepted { .. } = seen {
            doomed.committed(node);
        }
        tell(&mut judge, node, seen);
    }));
    doom
}

fn tell(judge: &mut Judge, node: usize, seen: &Seen<'_>) {
    match *seen {
        Seen::Noted(what) => note(judge, node, what),
        Seen::Accepted { message, new, order } => {
            judge.committed(node, message.raw(), new, order.map(|order| order.raw()));
        }
        Seen::Settled { tenure, settlement } => judge.settled(node, tenure.0, settlement),
        Seen::Queued { id, cycle, due } => {
            let resend = id.trigger == Trigger::Manual;
            judge.queued(id.message.raw(), id.endpoint.raw(), resend, cycle, due.as_millis());
        }
        Seen::Ended { id, why, at } => {
            judge.ended_otherwise(node, id.message.raw(), id.endpoint.raw(), why, at.as_millis());
        }
        Seen::HealthReset { endpoint } => judge.health_reset(endpoint.raw()),
        Seen::Endpoint(endpoint) => judge.endpoint(endpoint),
        Seen::EndpointGone { endpoint } => judge.endpoint_gone(endpoint.raw()),
        Seen::Application(application) => judge.application(application.key.raw(), application.rate_limit),
        Seen::Loaded { endpoint, count } => judge.loaded(node, endpoint.raw(), count),
    }
}

fn note(judge: &mut Judge, node: usize, what: What) {
    match what {
        What::Joined { tenure } => judge.lease(node, tenure.0, Shards::NONE, Lease::Joined),
        What::Granted { tenure, shards } => judge.lease(node, tenure.0, shards, Lease::Granted),
        What::Owns { tenure, shards } => judge.lease(node, tenure.0, shards, Lease::Owned),
        What::Wanted { tenure, shards } => judge.lease(node, tenure.0, shards, Lease::Wanted),
        What::Freed { tenure, shards } => judge.lease(node, tenure.0, shards, Lease::Freed),
        What::Retiring { tenure } => judge.lease(node, tenure.0, Shards::NONE, Lease::Retiring),
        What::Buried { tenure, .. } => judge.lease(node, tenure.0, Shards::NONE, Lease::Buried),
        What::Deposed { tenure } => judge.lease(node, tenure.0, Shards::NONE, Lease::Deposed),
        What::Stale { tenure, .. } | What::StaleSpill { tenure, .. } => judge.refused(node, tenure.0),
        What::Refused { why, .. } => judge.weather(node, why as i64),
        What::AnswerLost { .. } => judge.weather(node, 10),
        What::Resolved { .. } => {
            judge.weather(node, 11);
            judge.met.met(Sometimes::AnswerLostAndResolved);
        }
        What::NewsLost => judge.weather(node, 12),
        What::Opened { .. } | What::Killed | What::Closed | What::Renewed { .. } => {}
    }
}

/// Every delivery in the tables, and how it stands.
pub fn deliveries(database: &Database) -> Vec<Found> {
    let mut found = Vec::new();
    database.look(|tables, _| {
        tables.each_delivery(|message, endpoint, state| {
            found.push(Found { message: message.raw(), endpoint: endpoint.raw(), state });
        });
    });
    found
}

/// Hands out a way to look messages up: the number in the payload of each.
pub fn messages(database: &Database, look: impl FnOnce(&mut dyn FnMut(i64) -> Option<u64>)) {
    database.look(|tables, _| {
        look(&mut |key| {
            let row = tables.messages.get(&MessageKey::new(key))?;
            row.letter.payload.as_deref().map(number_in)
        });
    });
}
