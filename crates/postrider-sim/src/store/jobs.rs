//! What the writer is asked for, and how it is answered.

use super::{
    accept,
    batch::{Batch, Kind},
    settle,
};
use postrider_engine::{
    DeliveryId, MessageKey, OrderKey, Timestamp,
    keys::first_key_at,
    planted::{Bug, planted},
};
use postrider_store::{AcceptError, Accepted, Committed, NewMessage, Settlement, Shards, StoreError, Tenure};
use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::oneshot;

pub type Reply<T, E = StoreError> = oneshot::Sender<Result<T, E>>;

pub enum Job {
    Accept {
        message: Box<NewMessage>,
        reply: Reply<Accepted, AcceptError>,
    },
    Settle {
        tenure: Tenure,
        settlements: Arc<Vec<Settlement>>,
        reply: Reply<()>,
    },
    Spill {
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
        reply: Reply<()>,
    },
    Turn(Box<dyn TurnJob>),
    /// These shards are wanted elsewhere.
    Leave(Shards),
    /// The lease could not be renewed.
    Doubt,
    Close(oneshot::Sender<()>),
}

/// Something to do in a transaction: carried out, then told how that ended.
pub trait TurnJob: Send {
    fn run(&mut self, batch: &mut Batch<'_>);
    fn finish(self: Box<Self>, committed: Result<(), StoreError>);
}

pub struct Call<F, T> {
    pub work: Option<F>,
    pub outcome: Option<T>,
    pub reply: Reply<T>,
}

impl<F, T> TurnJob for Call<F, T>
where
    F: FnOnce(&mut Batch<'_>) -> T + Send,
    T: Send,
{
    fn run(&mut self, batch: &mut Batch<'_>) {
        self.outcome = self.work.take().map(|work| work(batch));
    }

    fn finish(self: Box<Self>, committed: Result<(), StoreError>) {
        let answer = match (committed, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Ok(()), None) => Err(StoreError::Closed),
            (Err(error), _) => Err(error),
        };
        // Whoever asked may have gone away; what was committed stays committed.
        let _ = self.reply.send(answer);
    }
}

impl Job {
    pub(super) fn settlements(&self) -> Option<Arc<Vec<Settlement>>> {
        match self {
            Self::Settle { settlements, .. } => Some(Arc::clone(settlements)),
            Self::Accept { .. }
            | Self::Spill { .. }
            | Self::Turn(_)
            | Self::Leave(_)
            | Self::Doubt
            | Self::Close(_) => None,
        }
    }

    pub fn refuse(self, error: &StoreError) {
        match self {
            Self::Accept { message, reply } if planted(Bug::RefusedCommitAnswered) => {
                drop(reply.send(Ok(Accepted::Now(MessageKey::new(first_key_at(message.at))))));
            }
            Self::Accept { reply, .. } => drop(reply.send(Err(error.clone().into()))),
            Self::Settle { reply, .. } | Self::Spill { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Turn(job) => job.finish(Err(error.clone())),
            Self::Leave(_) | Self::Doubt => {}
            Self::Close(done) => drop(done.send(())),
        }
    }

    /// `key`: of a message, where it was made before.
    pub fn apply(self, batch: &mut Batch<'_>, key: Option<i64>) -> Done {
        match self {
            Self::Accept { message, reply } => Done::Accept(reply, accept::accept(batch, key, *message)),
            Self::Settle { settlements, reply, .. } => {
                settle::settle(batch, &settlements);
                Done::Other(reply)
            }
            Self::Spill { deliveries, due, reply, .. } => {
                settle::spill(batch, &deliveries, due);
                if batch.kind == Kind::Many {
                    tell_owners_of_spilled(batch, &deliveries, due);
                }
                Done::Other(reply)
            }
            Self::Turn(mut job) => {
                job.run(batch);
                Done::Turn(job)
            }
            Self::Leave(_) | Self::Doubt | Self::Close(_) => Done::Nobody,
        }
    }
}

/// What is spilled of lanes that have been given up meanwhile: their owner has to hear of it.
fn tell_owners_of_spilled(batch: &mut Batch<'_>, deliveries: &[(DeliveryId, Option<OrderKey>)], due: Timestamp) {
    let lanes: BTreeSet<_> = deliveries.iter().map(|(id, _)| id.endpoint).collect();
    for endpoint in lanes {
        let app = batch.tables.endpoints.get(&endpoint).map(|row| row.record.app);
        if app.is_some_and(|app| !batch.memory.standing.owned.has_lanes_of(app)) {
            batch.announce(Committed::Waiting { endpoint, due });
        }
    }
}

/// Carried out, and to be answered.
pub enum Done {
    Accept(Reply<Accepted, AcceptError>, Result<Accepted, AcceptError>),
    Other(Reply<()>),
    Turn(Box<dyn TurnJob>),
    Nobody,
}

impl Done {
    pub fn answer(self) {
        match self {
            Self::Accept(reply, answer) => drop(reply.send(answer)),
            Self::Other(reply) => drop(reply.send(Ok(()))),
            Self::Turn(job) => job.finish(Ok(())),
            Self::Nobody => {}
        }
    }
}
