//! What the writer is asked for, and how it is asked.

use super::{DatabaseUrl, Db, Error, PostgresOptions, Result, leases, news::Event, shared::Shared, writer::State};
use crate::{
    AcceptError, Accepted, Committed, NewMessage, Settlement, StoreError,
    intake::Room,
    shards::{Shards, Tenure},
};
use futures_util::future::BoxFuture;
use postrider_engine::{DeliveryId, EndpointKey, OrderKey, Timestamp};
use std::sync::Arc;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

/// The writer as seen by those who queue.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Writer {
    pub fn start(url: DatabaseUrl, shared: Arc<Shared>, options: PostgresOptions) -> (Self, JoinHandle<()>) {
        let (jobs, queue) = mpsc::unbounded_channel();
        let state = State::new(url, Arc::clone(&shared), options, queue);
        (Self { shared, jobs }, tokio::spawn(state.write_until_closed()))
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    pub fn is_closed(&self) -> bool {
        self.jobs.is_closed()
    }

    async fn queue<T, E: From<StoreError>>(&self, job: impl FnOnce(Reply<T, E>) -> Job) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    pub async fn accept(&self, message: NewMessage) -> Result<Accepted, AcceptError> {
        let (mut place, room) = self.shared.intake.enter(message.content.payload.len(), message.owed.len()).await?;
        let accepted = self.queue(|reply| Job::Accept(Accepting { message: Box::new(message), room, reply })).await;
        if let Ok(Accepted::Now(_)) = accepted {
            place.came_in();
        }
        accepted
    }

    pub async fn accept_in_order(&self, messages: Vec<NewMessage>) -> Vec<Result<Accepted, AcceptError>> {
        let queue = |message, room| {
            let (reply, answer) = oneshot::channel();
            // If nobody takes it, the answer says so.
            let _ = self.jobs.send(Job::Accept(Accepting { message: Box::new(message), room, reply }));
            answer
        };
        let entered = self.shared.intake.enter_in_order(messages, queue).await;
        entered.answers(|answer| async { answer.await.unwrap_or(Err(StoreError::Closed.into())) }).await
    }

    pub async fn settle(&self, tenure: Tenure, settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError> {
        let outcomes = settlements.len();
        self.queue(|reply| Job::Settle { tenure, settlements, reply }).await?;
        self.shared.intake.went_out(outcomes);
        Ok(())
    }

    pub async fn spill(
        &self,
        tenure: Tenure,
        deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        due: Timestamp,
    ) -> Result<(), StoreError> {
        self.queue(|reply| Job::Spill { tenure, deliveries, due, reply }).await
    }

    pub async fn disown(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        // What is accepted from now on is not handed over, and what is being accepted is written before the turn comes.
        self.shared.leave(shards);
        self.turn(move |turn| {
            Box::pin(async move {
                if turn.tenure() != tenure {
                    return Err(Error::Deposed);
                }
                leases::free(turn.db(), tenure.0, shards).await
            })
        })
        .await
    }

    /// Asks the dispatcher to give these back.
    pub fn leave(&self, shards: Shards) {
        let _ = self.jobs.send(Job::Leave(shards));
    }

    /// The lease could not be renewed: perhaps the node was declared dead.
    pub fn doubt(&self) {
        let _ = self.jobs.send(Job::Doubt);
    }

    /// Runs a piece of work in a transaction of its own, while no other node writes.
    pub async fn turn<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Turn) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
    {
        self.queue(|reply| Job::Turn(Box::new(Call { work, outcome: None, reply }))).await
    }

    /// Finishes what is queued, and leaves the other nodes in good order.
    pub async fn close(&self) {
        self.shared.intake.close();
        let (done, closed) = oneshot::channel();
        if self.jobs.send(Job::Close(done)).is_ok() {
            let _ = closed.await;
        }
    }
}

/// A transaction during which no other node writes, and what is to be told once it is committed.
pub struct Turn {
    pub(super) client: Arc<Db>,
    pub(super) tenure: Tenure,
    pub(super) announced: Vec<Committed>,
}

impl Turn {
    pub fn db(&self) -> &Db {
        &self.client
    }

    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// Whoever serves the lane, or keeps the settings, is told as soon as this is committed.
    pub fn announce(&mut self, committed: Committed) {
        self.announced.push(committed);
    }

    /// Whoever does the work in the background is told, if that is another node. On this one the caller sees to it.
    pub fn announce_work(&mut self) {
        self.announced.push(Committed::Work);
    }
}

pub type Reply<T, E = StoreError> = oneshot::Sender<Result<T, E>>;

pub enum Job {
    Accept(Accepting),
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

impl Job {
    pub fn refuse(self, error: &StoreError) {
        match self {
            Self::Accept(accepting) => drop(accepting.reply.send(Err(error.clone().into()))),
            Self::Settle { reply, .. } | Self::Spill { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Turn(job) => job.finish(Err(error.clone())),
            Self::Leave(_) | Self::Doubt => {}
            Self::Close(done) => drop(done.send(())),
        }
    }
}

/// Something to do in a turn: carried out, perhaps more than once, then told how it ended.
pub trait TurnJob: Send {
    fn run<'t>(&'t mut self, turn: &'t mut Turn) -> BoxFuture<'t, Result<()>>;
    fn finish(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Call<F, T> {
    work: F,
    outcome: Option<T>,
    reply: Reply<T>,
}

impl<F, T> TurnJob for Call<F, T>
where
    F: for<'t> Fn(&'t mut Turn) -> BoxFuture<'t, Result<T>> + Send + Sync,
    T: Send,
{
    fn run<'t>(&'t mut self, turn: &'t mut Turn) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            self.outcome = Some((self.work)(turn).await?);
            Ok(())
        })
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

/// What is written in one transaction beside others.
#[derive(Default)]
pub struct Hot {
    pub accepts: Vec<Accepting>,
    pub settles: Vec<(Tenure, Arc<Vec<Settlement>>, Reply<()>)>,
    pub spills: Vec<Spilling>,
}

pub struct Accepting {
    pub message: Box<NewMessage>,
    pub room: Room,
    pub reply: Reply<Accepted, AcceptError>,
}

pub struct Spilling {
    pub tenure: Tenure,
    pub deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
    pub due: Timestamp,
    pub reply: Reply<()>,
}

impl Hot {
    pub fn len(&self) -> usize {
        self.accepts.len() + self.settles.len() + self.spills.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn refuse(self, error: &StoreError) {
        for accepting in self.accepts {
            let _ = accepting.reply.send(Err(error.clone().into()));
        }
        for reply in
            self.settles.into_iter().map(|(.., reply)| reply).chain(self.spills.into_iter().map(|one| one.reply))
        {
            let _ = reply.send(Err(error.clone()));
        }
    }

    /// What was begun in another tenure is void.
    pub fn refuse_outdated(&mut self, tenure: Tenure) {
        for (_, _, reply) in self.settles.extract_if(.., |(of, ..)| *of != tenure) {
            let _ = reply.send(Err(StoreError::Deposed));
        }
        for spilling in self.spills.extract_if(.., |spilling| spilling.tenure != tenure) {
            let _ = spilling.reply.send(Err(StoreError::Deposed));
        }
    }

    /// Each job by itself, so that one that cannot be written does not take the others along.
    pub fn apart(self) -> Vec<Self> {
        let accepts = self.accepts.into_iter().map(|one| Self { accepts: vec![one], ..Self::default() });
        let settles = self.settles.into_iter().map(|one| Self { settles: vec![one], ..Self::default() });
        let spills = self.spills.into_iter().map(|one| Self { spills: vec![one], ..Self::default() });
        accepts.chain(settles).chain(spills).collect()
    }
}

/// What a transaction has written, to be made known when it is committed.
#[derive(Default)]
pub struct Written {
    pub answers: Vec<Result<Accepted, AcceptError>>,
    pub events: Vec<Event>,
    pub handed: Vec<(i64, Vec<EndpointKey>)>,
    pub landed: Vec<(i64, EndpointKey)>,
    /// News that were taken away.
    pub heard: Vec<i64>,
    pub through: i64,
    /// Keys of the messages, should the count be gone.
    pub keys: Vec<i64>,
}

/// How far a transaction came that did not end well.
pub enum Failure {
    /// Nothing was written.
    Undone(Error),
    /// It may have been committed.
    Unknown(Box<Written>),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Undone(error.into())
    }
}
