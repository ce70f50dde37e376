//! The one writer of a process, and group commit.
//!
//! Whoever wants something written queues a job and waits. The writer takes everything that is queued, waits as long as a
//! commit takes, and carries all of it out at one moment. Before that moment a death undoes all, after it nothing.
//!
//! Where nodes share, every transaction counts itself in the node's own row. If that row is gone the node has been declared
//! dead, nothing is written, and it joins again as a new one; if an answer is lost, the row tells what became of it.

use super::{
    batch::{Kind, Written},
    cluster::for_here,
    database::State,
    jobs::{Done, Job},
    log::{Refusal, What},
    memory::Life,
    node::Node,
};
use postrider_engine::planted::{Bug, planted};
use postrider_store::{Committed, StoreError};
use std::{mem::take, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};

/// A batch is closed at this size, so that the first to queue does not wait for ever.
const BATCH_JOBS_MAX: usize = 2_048;

/// After so long without a job it is noted that everything is settled, if it was not when the last one was written.
const IDLE: Duration = Duration::from_millis(500);

/// Between attempts to reach a database that does not answer.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

pub async fn write_until_closed(node: Arc<Node>) {
    let mut writer = Writer { node, noted_through: i64::MAX };
    loop {
        let Some(mut jobs) = writer.next_jobs().await else { return };
        writer.node.calm().await;
        let closing = jobs.iter().position(|job| matches!(job, Job::Close(_))).map(|found| jobs.remove(found));
        match writer.node.kind() {
            Kind::Alone => writer.write_alone(jobs).await,
            Kind::Many => writer.work_off(jobs, closing.is_some()).await,
        }
        if let Some(Job::Close(done)) = closing {
            writer.close().await;
            let _ = done.send(());
            return;
        }
    }
}

struct Writer {
    node: Arc<Node>,
    /// Up to which message it is noted that everything has a row.
    noted_through: i64,
}

/// Why nothing was written.
enum Failure {
    /// The node was declared dead; these are to be written by it as a new one.
    Deposed(Vec<Job>),
    Refused(Vec<Job>, StoreError),
}

impl Writer {
    /// `None`: the process is dead.
    async fn next_jobs(&mut self) -> Option<Vec<Job>> {
        loop {
            {
                let mut memory = self.node.memory();
                match memory.life {
                    Life::Running | Life::Closing => {}
                    Life::Closed | Life::Killed => return None,
                }
                if !memory.queue.is_empty() {
                    let count = memory.queue.len().min(BATCH_JOBS_MAX);
                    return Some(memory.queue.drain(..count).collect());
                }
            }
            if self.noted_through == i64::MAX || self.node.kind() == Kind::Alone {
                self.node.jobs.notified().await;
            } else if timeout(IDLE, self.node.jobs.notified()).await.is_err() {
                self.note_rest().await;
            }
        }
    }

    /// What the weather says against a commit.
    fn refusal(&self) -> Option<(Refusal, StoreError)> {
        self.node.base.sky(self.node.number, |sky| {
            if sky.weather.full {
                return Some((Refusal::Full, StoreError::Full));
            }
            if !sky.happens(sky.weather.fails) {
                return None;
            }
            Some(match sky.happens(5_000) {
                true => (Refusal::Busy, StoreError::Busy),
                false => (Refusal::Failed, StoreError::Database("the commit failed".to_owned())),
            })
        })
    }

    fn note(&self, what: What) {
        self.node.base.state().note(self.node.number, what);
    }

    fn refuse(&self, jobs: Vec<Job>, why: Refusal, error: &StoreError) {
        self.note(What::Refused { why, jobs: jobs.len() });
        for job in jobs {
            job.refuse(error);
        }
    }

    async fn write_alone(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let (there, back) = self.node.base.sky(self.node.number, |sky| sky.write());
        self.node.pass(there).await;
        if let Some((why, error)) = self.refusal() {
            self.node.pass(back).await;
            return self.refuse(jobs, why, &error);
        }
        let (done, written) = {
            let mut state = self.node.base.state();
            let (done, written) = self
                .node
                .transact(&mut state, |batch| jobs.into_iter().map(|job| job.apply(batch, None)).collect::<Vec<_>>());
            self.note_watermark(&mut state);
            (done, written)
        };
        self.node.tell(written.events.into_iter().map(|event| event.what).collect());
        self.node.pass(back).await;
        done.into_iter().for_each(Done::answer);
    }

    /// Every message up to this key has a row for each of its deliveries.
    fn note_watermark(&self, state: &mut State) {
        let memory = self.node.memory();
        let newest = state.tables.messages.last_key_value().map_or(0, |(newest, _)| newest.raw());
        state.tables.settled_through = memory.outstanding.settled_through(Some(newest + 1));
        state.tables.minted = memory.minter.last();
    }

    /// Writes these, in order. What is written beside others is gathered up to the next turn.
    async fn work_off(&mut self, jobs: Vec<Job>, closing: bool) {
        let mut hot = Vec::new();
        for job in jobs {
            match job {
                Job::Accept { .. } | Job::Settle { .. } | Job::Spill { .. } => hot.push(job),
                Job::Turn(_) => {
                    self.write(take(&mut hot)).await;
                    self.write(vec![job]).await;
                }
                Job::Leave(shards) => {
                    self.write(take(&mut hot)).await;
                    self.node.leave(shards);
                    let tenure = self.node.memory().standing.tenure;
                    self.note(What::Wanted { tenure, shards });
                    self.node.tell(vec![Committed::Wanted { shards }]);
                }
                Job::Doubt => {
                    self.write(take(&mut hot)).await;
                    self.make_sure().await;
                }
                Job::Close(_) => {}
            }
        }
        self.write(hot).await;
        if !closing {
            // Whoever was declared dead shall be one of the others again.
            let _ = self.join().await;
        }
    }

    /// Writes a batch, again if it must be, and tells everyone.
    async fn write(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        self.node.begin_commit();
        self.write_and_tell(jobs).await;
        self.node.end_commit();
    }

    async fn write_and_tell(&mut self, mut jobs: Vec<Job>) {
        let mut tries = 0;
        loop {
            self.refuse_outdated(&mut jobs);
            if jobs.is_empty() {
                return;
            }
            match self.attempt(jobs).await {
                Ok(()) => return,
                Err(Failure::Refused(jobs, error)) => {
                    let why = match error {
                        StoreError::Busy => Refusal::Busy,
                        StoreError::Full => Refusal::Full,
                        StoreError::Unreachable(_) => Refusal::Unreachable,
                        StoreError::Database(_) | StoreError::Deposed | StoreError::Closed => Refusal::Failed,
                    };
                    return self.refuse(jobs, why, &error);
                }
                Err(Failure::Deposed(left)) => {
                    self.depose();
                    tries += 1;
                    if tries > 6 {
                        return self.refuse(left, Refusal::Failed, &StoreError::Deposed);
                    }
                    jobs = left;
                }
            }
        }
    }

    /// What was begun in another tenure is void.
    fn refuse_outdated(&self, jobs: &mut Vec<Job>) {
        let tenure = self.node.memory().standing.tenure;
        let is_outdated = |job: &mut Job| match job {
            Job::Settle { .. } if planted(Bug::UnfencedSettlement) => false,
            Job::Settle { tenure: of, .. } | Job::Spill { tenure: of, .. } => *of != tenure,
            Job::Accept { .. } | Job::Turn(_) | Job::Leave(_) | Job::Doubt | Job::Close(_) => false,
        };
        for job in jobs.extract_if(.., is_outdated).collect::<Vec<_>>() {
            match &job {
                Job::Settle { tenure, settlements, .. } => {
                    self.note(What::Stale { tenure: *tenure, settlements: settlements.len() });
                }
                Job::Spill { tenure, deliveries, .. } => {
                    self.note(What::StaleSpill { tenure: *tenure, deliveries: deliveries.len() });
                }
                Job::Accept { .. } | Job::Turn(_) | Job::Leave(_) | Job::Doubt | Job::Close(_) => {}
            }
            job.refuse(&StoreError::Deposed);
        }
    }

    async fn attempt(&mut self, jobs: Vec<Job>) -> Result<(), Failure> {
        if let Err(error) = self.join().await {
            return Err(Failure::Refused(jobs, error));
        }
        // Other nodes make theirs meanwhile, and may be committed first.
        let keys: Vec<Option<i64>> = {
            let minter = &mut self.node.memory().minter;
            let mint = |job: &Job| match job {
                Job::Accept { message, .. } => Some(minter.mint(message.at)),
                Job::Settle { .. } | Job::Spill { .. } | Job::Turn(_) | Job::Leave(_) | Job::Doubt | Job::Close(_) => {
                    None
                }
            };
            jobs.iter().map(mint).collect()
        };
        let (there, back) = self.node.base.sky(self.node.number, |sky| sky.write());
        self.node.pass(there).await;
        if let Err(error) = self.node.reach().await {
            return Err(Failure::Refused(jobs, error));
        }
        if let Some((_, error)) = self.refusal() {
            self.node.pass(back).await;
            return Err(Failure::Refused(jobs, error));
        }
        let count = jobs.len();
        let is_turn = matches!(jobs[..], [Job::Turn(_)]);
        let accepts = keys.iter().flatten().count() > 0;
        let settled = jobs.iter().filter(|_| planted(Bug::SettledTwice)).find_map(Job::settlements);
        let (done, mut written) = self.commit(jobs, keys)?;
        self.noted_through = written.through;
        let is_lost = self.node.base.sky(self.node.number, |sky| sky.happens(sky.weather.answer_lost));
        if is_lost {
            self.note(What::AnswerLost { jobs: count });
        }
        let heard = if is_lost { Err(()) } else { self.answered(back).await };
        if heard.is_err() {
            match self.clear_up().await {
                Ok(true) => {
                    self.note(What::Resolved { jobs: count });
                    if let Some(settled) = settled {
                        let mut state = self.node.base.state();
                        self.node.transact(&mut state, |batch| super::settle::settle(batch, &settled));
                    }
                }
                // Declared dead meanwhile: what it would hold has been given rows, and is for others to hear of.
                Ok(false) => {
                    written.handed.clear();
                    written.events.clear();
                    if !accepts {
                        return self.leave_unknown(done, is_turn);
                    }
                }
                Err(closed) => return self.drop_unknown(done, &closed),
            }
        }
        self.conclude(written);
        done.into_iter().for_each(Done::answer);
        Ok(())
    }

    async fn answered(&self, back: Duration) -> Result<(), ()> {
        self.node.pass(back).await;
        self.node.hear().await.map_err(|_| ())
    }

    /// Everything at one moment, if the node is still one of the others.
    fn commit(&self, jobs: Vec<Job>, keys: Vec<Option<i64>>) -> Result<(Vec<Done>, Written), Failure> {
        let mut state = self.node.base.state();
        let tenure = self.node.memory().standing.tenure;
        if !state.cluster.nodes.contains_key(&tenure) {
            return Err(Failure::Deposed(jobs));
        }
        let first = keys.iter().flatten().copied().min();
        let (done, mut written) = self.node.transact(&mut state, |batch| {
            let through = batch.memory.outstanding.settled_through(first);
            if let Some(row) = batch.cluster.nodes.get_mut(&tenure) {
                row.batch += 1;
                row.settled_through = through;
            }
            let done: Vec<Done> = jobs.into_iter().zip(keys).map(|(job, key)| job.apply(batch, key)).collect();
            let minted = batch.memory.minter.last();
            if let Some(row) = batch.cluster.nodes.get_mut(&tenure) {
                row.minted = row.minted.max(minted);
            }
            batch.memory.standing.batch += 1;
            batch.written.through = through;
            batch.written.heard = batch.memory.standing.heard.iter().copied().collect();
            if let Some(news) = batch.cluster.news.get_mut(&tenure) {
                for id in &batch.written.heard {
                    news.remove(id);
                }
            }
            let owned = batch.memory.standing.owned;
            let told = batch.cluster.publish(tenure, &owned, &batch.written.events);
            batch.written.told.extend(told);
            done
        });
        self.node.ring_news(&mut state, take(&mut written.told));
        if written.calls_everyone {
            self.node.ring_everyone(&mut state);
        }
        Ok((done, written))
    }

    /// The answer to a commit was lost: finds out how this node stands now. Nobody shall wait meanwhile for a database that
    /// does not answer. `Ok(false)`: it was declared dead.
    async fn clear_up(&mut self) -> Result<bool, StoreError> {
        loop {
            let pause = self.node.base.sky(self.node.number, |sky| sky.between(Duration::ZERO, RECONNECT_PAUSE));
            self.node.pass(pause).await;
            match self.node.hear().await {
                Ok(()) => {
                    let tenure = self.node.memory().standing.tenure;
                    let is_member = self.node.base.state().cluster.nodes.contains_key(&tenure);
                    if !is_member {
                        self.depose();
                    }
                    return Ok(is_member);
                }
                Err(error) => {
                    if self.node.life() == Life::Closing {
                        return Err(StoreError::Closed);
                    }
                    self.refuse_queued(&error);
                }
            }
        }
    }

    /// What nobody waits for is kept.
    fn refuse_queued(&self, error: &StoreError) {
        let queued = take(&mut self.node.memory().queue);
        let is_kept = |job: &Job| matches!(job, Job::Leave(_) | Job::Close(_));
        let (kept, refused): (Vec<Job>, Vec<Job>) = queued.into_iter().partition(is_kept);
        self.node.memory().queue.extend(kept);
        if !refused.is_empty() {
            self.refuse(refused, Refusal::Unreachable, error);
        }
    }

    /// Whoever declared the node dead left nothing by which it could be told what became of this.
    fn leave_unknown(&self, done: Vec<Done>, is_turn: bool) -> Result<(), Failure> {
        let unknown = "the connection was lost, and it is not known whether this was carried out";
        let error = match is_turn {
            true => StoreError::Unreachable(unknown.to_owned()),
            false => StoreError::Deposed,
        };
        self.drop_unknown(done, &error)
    }

    fn drop_unknown(&self, done: Vec<Done>, error: &StoreError) -> Result<(), Failure> {
        for one in done {
            match one {
                Done::Accept(reply, _) => drop(reply.send(Err(error.clone().into()))),
                Done::Other(reply) => drop(reply.send(Err(error.clone()))),
                Done::Turn(job) => job.finish(Err(error.clone())),
                Done::Nobody => {}
            }
        }
        Ok(())
    }

    fn conclude(&self, written: Written) {
        let (news, has_room) = {
            let mut memory = self.node.memory();
            for id in &written.heard {
                memory.standing.heard.remove(id);
            }
            let had_room = memory.outstanding.has_room();
            for (message, owed) in written.handed {
                memory.outstanding.accept(message, owed);
            }
            for (message, endpoint) in written.landed {
                memory.outstanding.land(message, endpoint);
            }
            let has_room = !had_room && memory.outstanding.has_room();
            (for_here(&memory.standing.owned, written.events), has_room)
        };
        if has_room {
            self.node.ears.ring(|bells| &mut bells.change, Instant::now());
        }
        self.node.tell(news);
    }

    /// Becomes one of the nodes, unless it is one.
    async fn join(&mut self) -> Result<(), StoreError> {
        if self.node.memory().standing.is_member {
            return Ok(());
        }
        let asked_at = Instant::now();
        let (there, back) = self.node.base.sky(self.node.number, |sky| sky.read());
        self.node.pass(there).await;
        self.node.reach().await?;
        self.node.join_now(asked_at);
        self.noted_through = i64::MAX;
        self.node.pass(back).await;
        self.node.hear().await
    }

    /// The node was declared dead, and its lanes are someone else's.
    fn depose(&self) {
        let tenure = {
            let mut memory = self.node.memory();
            if !memory.standing.is_member {
                return;
            }
            memory.end_tenure()
        };
        self.note(What::Deposed { tenure });
        self.node.tell(vec![Committed::Deposed]);
    }

    /// Finds out whether this node is still one of the others, and notes how far everything is settled.
    async fn make_sure(&mut self) {
        match self.attempt(Vec::new()).await {
            Ok(()) => {}
            Err(Failure::Deposed(_)) => self.depose(),
            Err(Failure::Refused(..)) => {}
        }
    }

    /// Notes that everything is settled, so that nobody has to look through it.
    async fn note_rest(&mut self) {
        let (through, is_member) = {
            let memory = self.node.memory();
            (memory.outstanding.settled_through(None), memory.standing.is_member)
        };
        if through > self.noted_through && is_member {
            self.make_sure().await;
        } else {
            // What is outstanding will be settled, and noted with that.
            self.noted_through = i64::MAX;
        }
    }

    async fn close(&mut self) {
        match self.node.kind() {
            Kind::Alone => {
                let mut state = self.node.base.state();
                self.note_watermark(&mut state);
                state.holder = None;
            }
            Kind::Many => self.depart().await,
        }
        self.note(What::Closed);
        let mut memory = self.node.memory();
        memory.life = Life::Closed;
        // What came after the end.
        let left = take(&mut memory.queue);
        drop(memory);
        for job in left {
            job.refuse(&StoreError::Closed);
        }
    }

    /// Leaves the other nodes, without a lease that they would have to wait for.
    async fn depart(&mut self) {
        if !self.node.memory().standing.is_member {
            return;
        }
        let (there, back) = self.node.base.sky(self.node.number, |sky| sky.write());
        self.node.pass(there).await;
        if self.node.reach().await.is_ok() && self.refusal().is_none() {
            self.node.depart_now();
            self.node.pass(back).await;
        }
        self.node.memory().end_tenure();
    }
}
