//! The one writer of this node, and group commit.
//!
//! Whoever wants something written queues a job and waits. The writer takes everything that is queued: messages and
//! outcomes together make one transaction, beside which other nodes write theirs; everything else gets a transaction of
//! its own, a *turn*, during which no other node writes.
//!
//! Every transaction begins by counting itself in the node's own row. If that row is gone, the node has been declared dead
//! and its lanes are someone else's: nothing is written, and it joins again as a new one. If a connection is lost before a
//! commit is answered, the count tells whether it was carried out.

mod membership;
mod turns;

use super::{
    DatabaseUrl, Db, Error, PostgresOptions, Result, accept, describe,
    jobs::{Failure, Hot, Job, Spilling, Written},
    news::{self, Event, To},
    pieces::{self, Piece},
    row, settle,
    shared::Shared,
};
use crate::{
    AcceptError, Committed, NewMessage, Settlement,
    shards::{Shards, Tenure},
    step,
};
use futures_util::{FutureExt, try_join};
use postrider_engine::{EndpointKey, OrderKey, Timestamp};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::error::SqlState;

/// A batch is closed at this size, so that the first to queue does not wait for ever.
const BATCH_JOBS_MAX: usize = 2_048;

/// How far apart commits are, at least, after one with so many jobs: fewer and greater ones save processor time, and a
/// job that comes alone waits for nobody.
fn gap_after(jobs: usize) -> Duration {
    match jobs {
        0 | 1 => Duration::ZERO,
        2..CROWD => Duration::from_millis(1),
        CROWD.. => Duration::from_millis(2),
    }
}

const CROWD: usize = 24;

/// A transaction that collides with another one, or loses its connection, is tried so often.
const TRIES_MAX: u32 = 6;

/// Longer than the database itself lets anything take.
const PATIENCE: Duration = Duration::from_secs(20);

/// After so long without a job it is noted that everything is settled, if it was not when the last one was written.
const IDLE: Duration = Duration::from_millis(500);

/// Between attempts to reach a database that does not answer.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Nobody else in the database uses this number. Shared by those who write beside one another, alone for a turn.
const WRITE_LOCK: i64 = 0x706f_7374_7269_6465;

/// What only the writer's own task sees.
pub struct State {
    url: DatabaseUrl,
    /// Its own, and let go of as soon as anything is wrong with it: nobody else shall meet it in the middle of something.
    client: Option<Arc<Db>>,
    shared: Arc<Shared>,
    options: PostgresOptions,
    queue: mpsc::UnboundedReceiver<Job>,
    /// Taken from the queue and not to be written yet.
    put_back: VecDeque<Job>,
    /// It has joined the others and has not been declared dead since, as far as it knows.
    is_member: bool,
    /// Counts the transactions of this tenure.
    batch: i64,
    pieces: Vec<Piece>,
    /// Up to which message it is noted that everything has a row.
    noted_through: i64,
}

impl State {
    pub fn new(
        url: DatabaseUrl,
        shared: Arc<Shared>,
        options: PostgresOptions,
        queue: mpsc::UnboundedReceiver<Job>,
    ) -> Self {
        Self {
            url,
            client: None,
            shared,
            options,
            queue,
            put_back: VecDeque::new(),
            is_member: false,
            batch: 0,
            pieces: Vec::new(),
            noted_through: i64::MAX,
        }
    }

    pub async fn write_until_closed(mut self) {
        loop {
            let first = match self.put_back.pop_front() {
                Some(job) => Some(job),
                None if self.noted_through == i64::MAX => self.queue.recv().await,
                None => match tokio::time::timeout(IDLE, self.queue.recv()).await {
                    Ok(job) => job,
                    Err(_) => {
                        self.note_rest().await;
                        continue;
                    }
                },
            };
            let Some(first) = first else { return };
            let begun = Instant::now();
            let mut jobs = vec![first];
            while jobs.len() < BATCH_JOBS_MAX
                && let Some(job) = self.put_back.pop_front().or_else(|| self.queue.try_recv().ok())
            {
                jobs.push(job);
            }
            let gap = gap_after(jobs.len());
            if let Some(done) = self.work_off(jobs).await {
                self.depart().await;
                let _ = done.send(());
                return;
            }
            if let Some(rest) = gap.checked_sub(begun.elapsed()) {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// Writes these, in order. What is written beside others is gathered up to the next turn.
    async fn work_off(&mut self, jobs: Vec<Job>) -> Option<oneshot::Sender<()>> {
        let (mut hot, mut names) = (Hot::default(), accept::Names::default());
        let mut later = VecDeque::new();
        let mut closing = None;
        for job in jobs {
            match job {
                Job::Accept(accepting) => match accept::fits_together(&mut names, &accepting.message) {
                    true => hot.accepts.push(accepting),
                    false => later.push_back(Job::Accept(accepting)),
                },
                Job::Settle { tenure, settlements, reply } => hot.settles.push((tenure, settlements, reply)),
                Job::Spill { tenure, deliveries, due, reply } => {
                    hot.spills.push(Spilling { tenure, deliveries, due, reply });
                }
                Job::Turn(job) => {
                    self.write(std::mem::take(&mut hot)).await;
                    names = accept::Names::default();
                    self.take_turn(job).await;
                }
                Job::Leave(shards) => {
                    self.write(std::mem::take(&mut hot)).await;
                    self.shared.leave(shards);
                    self.shared.tell(vec![Committed::Wanted { shards }]);
                }
                Job::Doubt => {
                    self.write(std::mem::take(&mut hot)).await;
                    self.make_sure().await;
                }
                Job::Close(done) => closing = Some(done),
            }
        }
        self.write(hot).await;
        while let Some(job) = later.pop_back() {
            self.put_back.push_front(job);
        }
        if closing.is_none()
            && let Err(error) = self.join().await
        {
            tracing::warn!(error = describe(&error), "this node is not one of the others yet");
        }
        closing
    }

    /// Writes a batch, again if it must be, and tells everyone.
    async fn write(&mut self, hot: Hot) {
        if hot.is_empty() {
            return;
        }
        self.shared.begin_commit();
        self.write_and_tell(hot).await;
        self.shared.end_commit();
    }

    async fn write_and_tell(&mut self, mut hot: Hot) {
        let mut waits = VecDeque::new();
        let mut tries = 0;
        loop {
            hot.refuse_outdated(self.shared.tenure());
            if hot.is_empty() {
                match waits.pop_front() {
                    Some(next) => hot = next,
                    None => return,
                }
            }
            let failure = match self.attempt(&hot).await {
                Ok(written) => {
                    self.conclude(std::mem::take(&mut hot), written);
                    tries = 0;
                    continue;
                }
                Err(failure) => failure,
            };
            let error = match failure {
                Failure::Undone(error) => error,
                Failure::Unknown(written) => match self.clear_up(&written).await {
                    Ok(true) => {
                        self.conclude(std::mem::take(&mut hot), *written);
                        continue;
                    }
                    Ok(false) => Error::Unreachable("the connection was lost".to_owned()),
                    Err(closed) => {
                        std::mem::take(&mut hot).refuse(&closed);
                        continue;
                    }
                },
            };
            tries += 1;
            match self.mend(&mut hot, &error, tries).await {
                Mended::TryAgain => {}
                Mended::Apart => {
                    waits.extend(std::mem::take(&mut hot).apart());
                    tries = 0;
                }
                Mended::GiveUp => {
                    tracing::error!(error = describe(&error), jobs = hot.len(), "a batch could not be written");
                    std::mem::take(&mut hot).refuse(&error.into());
                }
            }
        }
    }

    async fn mend(&mut self, hot: &mut Hot, error: &Error, tries: u32) -> Mended {
        if let Error::Deposed = error {
            self.depose();
            return Mended::TryAgain;
        }
        if error.is_lost() {
            self.client = None;
        }
        if tries >= TRIES_MAX {
            return if hot.len() > 1 && !error.is_lost() { Mended::Apart } else { Mended::GiveUp };
        }
        match error {
            Error::KeyTooSmall { used } => {
                self.shared.minter().catch_up(*used);
                return Mended::TryAgain;
            }
            Error::Unreachable(_) if tries > 1 => return Mended::GiveUp,
            _ if error.is_lost() => return Mended::TryAgain,
            _ => {}
        }
        match error.code() {
            Some(&SqlState::NOT_NULL_VIOLATION) if !hot.accepts.is_empty() => {
                if let Ok(true) = self.refuse_stale(hot).await {
                    return Mended::TryAgain;
                }
            }
            // A piece was dropped, or is not there yet.
            Some(&SqlState::CHECK_VIOLATION) => {
                self.pieces.clear();
                return Mended::TryAgain;
            }
            Some(code) if is_collision(code) => {
                tokio::time::sleep(Duration::from_millis(u64::from(tries) * 3 + self.shared.tenure().0 as u64 % 5))
                    .await;
                return Mended::TryAgain;
            }
            _ => {}
        }
        if hot.len() > 1 { Mended::Apart } else { Mended::GiveUp }
    }

    /// Refuses the messages that were worked out from outdated settings. False if there were none.
    async fn refuse_stale(&mut self, hot: &mut Hot) -> Result<bool> {
        let client = self.client().await?;
        let messages: Vec<&NewMessage> = hot.accepts.iter().map(|accepting| &*accepting.message).collect();
        let mut outdated = accept::outdated(&client, &messages).await?.into_iter();
        let (stale, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut hot.accepts).into_iter().partition(|_| outdated.next().unwrap_or(false));
        hot.accepts = rest;
        let any = !stale.is_empty();
        for accepting in stale {
            let _ = accepting.reply.send(Err(AcceptError::Outdated));
        }
        Ok(any)
    }

    async fn attempt(&mut self, hot: &Hot) -> Result<Written, Failure> {
        self.join().await?;
        let minter = self.shared.minter();
        let messages: Vec<&NewMessage> = hot.accepts.iter().map(|accepting| &*accepting.message).collect();
        let mint = || -> Vec<i64> { messages.iter().map(|message| minter.mint(message.at)).collect() };
        let mut keys = mint();
        let settlements: Vec<&Settlement> = hot.settles.iter().flat_map(|(_, settlements, _)| &**settlements).collect();
        let runs = accept::runs_of(&messages, changed_lanes(&settlements, &hot.spills));
        self.make_pieces(&keys, &settlements).await?;
        let attempt_keys: Vec<i64> = settlements
            .iter()
            .filter(|settlement| settlement.attempt.is_some())
            .map(|settlement| minter.mint(settlement.at))
            .collect();

        let client = self.client().await?;
        // In this order: what is heard meanwhile stays in the news, and what was heard before counts as held.
        let heard = self.shared.heard();
        let through = self.shared.settled_through(keys.first().copied());
        let tenure = self.shared.tenure();
        let (shared, pieces, batch) = (&self.shared, &self.pieces, self.batch + 1);
        let write = async {
            let begin = format!("BEGIN; SELECT pg_advisory_xact_lock_shared({WRITE_LOCK})");
            let begun = client.batch_execute(&begin).map(|begun| begun.map_err(Error::from));
            let floor = if runs.is_empty() {
                try_join!(begun, count(&client, tenure, batch, through, minter.last()))?.1
            } else {
                begun.await?;
                let used = accept::hold_runs(&client, &runs).await?;
                if keys.first().is_some_and(|first| *first <= used) {
                    minter.catch_up(used);
                    keys = mint();
                }
                count(&client, tenure, batch, through, minter.last()).await?
            };
            if keys.first().is_some_and(|first| *first <= floor) {
                return Err(Error::KeyTooSmall { used: floor });
            }
            step!("store.begun");
            let owned = shared.owned();
            let here = accept::Here { node: tenure.0, owned: &owned };
            let (received, settled, (), ()) = try_join!(
                accept::accept(&client, &here, &keys, &messages),
                settle::settle(&client, pieces, &attempt_keys, &settlements),
                spill(&client, &hot.spills),
                news::take_away(&client, &heard),
            )?;
            let mut events = received.events;
            events.extend(news::address(&client, settled.announced).await?);
            events.extend(spilled_elsewhere(&client, &owned, &hot.spills).await?);
            news::publish(&client, here.node, &owned, &events).await?;
            step!("store.written");
            let handed = settlements.iter().filter(|settlement| settlement.handed).map(|settlement| settlement.id);
            let spilled = hot.spills.iter().flat_map(|spilling| &spilling.deliveries).map(|(id, _)| *id);
            Ok(Written {
                answers: received.answers,
                events,
                handed: received.handed,
                landed: handed.chain(spilled).map(|id| (id.message.raw(), id.endpoint)).collect(),
                heard: heard.clone(),
                through,
                keys,
            })
        };
        let written = match in_time(write).await {
            Ok(written) => written,
            Err(error) => return Err(self.roll_back(error).await),
        };
        self.commit(&client, written).await
    }

    async fn roll_back(&mut self, error: Error) -> Failure {
        if error.is_lost() {
            self.client = None;
        } else if let Some(client) = &self.client
            && in_time(async { Ok(client.batch_execute("ROLLBACK").await?) }).await.is_err()
        {
            self.client = None;
        }
        Failure::Undone(error)
    }

    async fn commit(&mut self, client: &Db, written: Written) -> Result<Written, Failure> {
        match in_time(async { Ok(client.batch_execute("COMMIT").await?) }).await {
            Ok(()) => {
                step!("store.committed");
                self.batch += 1;
                Ok(written)
            }
            Err(error) if error.is_lost() => {
                self.client = None;
                Err(Failure::Unknown(Box::new(written)))
            }
            Err(error) => Err(Failure::Undone(error)),
        }
    }

    fn conclude(&mut self, hot: Hot, mut written: Written) {
        if !self.is_member {
            // It was declared dead meanwhile: what it would hold has been given rows, and is for others to hear of.
            written.handed.clear();
            written.events.clear();
        }
        self.noted_through = written.through;
        self.shared.took_away(&written.heard);
        let (rooms, replies): (Vec<_>, Vec<_>) = hot.accepts.into_iter().map(|one| (one.room, one.reply)).unzip();
        let rooms = written.keys.into_iter().zip(rooms).collect();
        self.shared.note_outstanding(written.handed, rooms, written.landed);
        self.shared.tell(news::for_here(&self.shared.owned(), written.events));
        step!("store.told");
        for (reply, answer) in replies.into_iter().zip(written.answers) {
            let _ = reply.send(answer);
        }
        for reply in hot.settles.into_iter().map(|(.., reply)| reply).chain(hot.spills.into_iter().map(|one| one.reply))
        {
            let _ = reply.send(Ok(()));
        }
    }

    async fn client(&mut self) -> Result<Arc<Db>> {
        if let Some(client) = &self.client
            && !client.is_closed()
        {
            return Ok(Arc::clone(client));
        }
        self.client = None;
        let connected = self.url.connect(&self.options).await;
        let (client, _) = connected.map_err(|error| Error::Unreachable(describe(&error)))?;
        let client = Arc::new(client);
        self.client = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Sees to it that these keys have pieces, and that those are known which hold the messages of the settlements: another
    /// node may have made them.
    async fn make_pieces(&mut self, keys: &[i64], settlements: &[&Settlement]) -> Result<()> {
        let client = self.client().await?;
        let is_known = |settlement: &&Settlement| pieces::cover(&self.pieces, settlement.id.message.raw());
        if self.pieces.is_empty() || !settlements.iter().all(is_known) {
            self.pieces = pieces::list(&client).await?;
        }
        let is_missing = |pieces: &[Piece], key: i64| !pieces::cover(pieces, key);
        let missing: Vec<i64> = keys.iter().copied().filter(|key| is_missing(&self.pieces, *key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let span = self.options.piece_span;
        let make = async {
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")).await?;
            for key in [missing.first(), missing.last()].into_iter().flatten() {
                pieces::ensure(&client, *key, span).await?;
            }
            step!("piece.made");
            client.batch_execute("COMMIT").await?;
            pieces::list(&client).await
        };
        match in_time(make).await {
            Ok(pieces) => {
                self.pieces = pieces;
                Ok(())
            }
            Err(error) => {
                // Whether it was carried out shows when it is tried again.
                self.client = None;
                Err(error)
            }
        }
    }
}

enum Mended {
    TryAgain,
    /// Job by job.
    Apart,
    GiveUp,
}

/// Two transactions got in one another's way.
fn is_collision(code: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNIQUE_VIOLATION,
        SqlState::LOCK_NOT_AVAILABLE,
    ]
    .contains(code)
}

/// Counts a transaction in the node's own row, and tells below which key no message may be accepted any more.
async fn count(db: &Db, tenure: Tenure, batch: i64, through: i64, minted: i64) -> Result<i64> {
    let found = row(
        db,
        "UPDATE node SET batch = $2::bigint, settled_through = $3, minted = greatest(minted, $4)
         WHERE id = $1 AND batch = $2::bigint - 1 RETURNING (SELECT floor FROM cluster)",
        &[&tenure.0, &batch, &through, &minted],
    )
    .await?;
    Ok(found.ok_or(Error::Deposed)?.get(0))
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(Error::TooSlow))
}

/// What is spilled of lanes that have been given up meanwhile: their owner has to hear of it.
async fn spilled_elsewhere(db: &Db, owned: &Shards, spills: &[Spilling]) -> Result<Vec<Event>> {
    let mut lanes: BTreeMap<EndpointKey, Timestamp> = BTreeMap::new();
    for spilling in spills {
        lanes.extend(spilling.deliveries.iter().map(|(id, _)| (id.endpoint, spilling.due)));
    }
    let waiting = lanes.into_iter().map(|(endpoint, due)| Committed::Waiting { endpoint, due });
    let events = news::address(db, waiting.collect()).await?;
    Ok(events.into_iter().filter(|event| matches!(event.to, To::Owner(shard) if !owned.contains(shard))).collect())
}

/// The lanes from which these take rows, or to which they add some, and by which key.
fn changed_lanes<'h>(
    settlements: &'h [&'h Settlement],
    spills: &'h [Spilling],
) -> impl Iterator<Item = (EndpointKey, Option<OrderKey>)> + 'h {
    let settled = settlements.iter().map(|settlement| (settlement.id.endpoint, settlement.order));
    let spilled = spills.iter().flat_map(|spilling| &spilling.deliveries).map(|(id, order)| (id.endpoint, *order));
    settled.chain(spilled)
}

async fn spill(db: &Db, spills: &[Spilling]) -> Result<()> {
    for spilling in spills {
        settle::spill(db, &spilling.deliveries, spilling.due).await?;
    }
    Ok(())
}
