//! Being one of the nodes: coming, going, and finding out whether one still is.

use super::{RECONNECT_PAUSE, State, WRITE_LOCK, count, in_time};
use crate::{
    Committed, StoreError,
    postgres::{
        Error, Result, describe, execute,
        jobs::{Failure, Hot, Job, Written},
        leases, news, recover, row,
    },
    shards::Tenure,
    step,
};
use postrider_engine::Timestamp;
use std::{collections::VecDeque, time::Instant};

impl State {
    /// Becomes one of the nodes, unless it is one.
    pub(super) async fn join(&mut self) -> Result<()> {
        if self.is_member {
            return Ok(());
        }
        let client = self.client().await?;
        let asked_at = Instant::now();
        let joined = leases::join(&client, &self.options).await?;
        step!("node.joined");
        self.is_member = true;
        self.batch = 0;
        self.noted_through = i64::MAX;
        self.shared.begin(Tenure(joined.node), joined.used, leases::sure_until(asked_at, &self.options));
        self.shared.wake_keeper.notify_one();
        Ok(())
    }

    /// The node was declared dead, and its lanes are someone else's.
    pub(super) fn depose(&mut self) {
        if self.is_member {
            self.is_member = false;
            tracing::warn!("another node took over what this one served; joining again");
            self.shared.end();
            self.shared.tell(vec![Committed::Deposed]);
        }
    }

    /// Leaves the other nodes, without a lease that they would have to wait for.
    pub(super) async fn depart(&mut self) {
        if !self.is_member {
            return;
        }
        let (tenure, batch) = (self.shared.tenure(), self.batch + 1);
        let through = self.shared.settled_through(None);
        let minted = self.shared.minter().last();
        let client = self.client().await;
        let left = async {
            let client = client?;
            client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({WRITE_LOCK})")).await?;
            count(&client, tenure, batch, through, minted).await?;
            match through {
                i64::MAX => drop(recover::bury_node(&client, tenure.0, Timestamp::default()).await?),
                // Whoever comes next gives rows to what is left.
                _ => leases::give_up(&client, tenure.0).await?,
            }
            execute(&client, "SELECT pg_notify($1, '')", &[&news::EVERYONE]).await?;
            step!("node.leaving");
            client.batch_execute("COMMIT").await?;
            Ok(())
        };
        if let Err(error) = in_time(left).await {
            tracing::warn!(
                error = describe(&error),
                "could not leave the other nodes; they take over when the lease ends"
            );
        }
        self.is_member = false;
        self.shared.end();
    }

    /// Finds out whether this node is still one of the others.
    pub(super) async fn make_sure(&mut self) {
        match self.attempt(&Hot::default()).await {
            Ok(written) => self.conclude(Hot::default(), written),
            Err(Failure::Undone(Error::Deposed)) => self.depose(),
            Err(Failure::Undone(error)) => {
                tracing::warn!(error = describe(&error), "the database cannot be asked whether the lease is held");
            }
            Err(Failure::Unknown(written)) => {
                let _ = self.clear_up(&written).await;
            }
        }
    }

    /// Notes that everything is settled, so that nobody has to look through it.
    pub(super) async fn note_rest(&mut self) {
        if self.shared.settled_through(None) > self.noted_through && self.is_member {
            self.make_sure().await;
        } else {
            // What is outstanding will be settled, and noted with that.
            self.noted_through = i64::MAX;
        }
    }

    /// The answer to a commit was lost: finds out whether it was carried out. The server may still be at it; asking for
    /// the row waits until it is done.
    pub(super) async fn clear_up(&mut self, written: &Written) -> Result<bool, StoreError> {
        loop {
            let asked = self.was_committed(written);
            match asked.await {
                Ok(committed) => {
                    if committed && self.is_member {
                        self.batch += 1;
                    }
                    return Ok(committed);
                }
                Err(error) => {
                    tracing::warn!(
                        error = describe(&error),
                        "the database does not say whether the last commit was carried out"
                    );
                    self.client = None;
                    self.refuse_queued(&error.into());
                    if self.is_closing() {
                        return Err(StoreError::Closed);
                    }
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    }

    pub(super) async fn was_committed(&mut self, written: &Written) -> Result<bool> {
        let client = self.client().await?;
        let node = self.shared.tenure().0;
        match row(&client, "SELECT batch FROM node WHERE id = $1 FOR UPDATE", &[&node]).await? {
            Some(found) => Ok(found.get::<_, i64>(0) == self.batch + 1),
            // Declared dead meanwhile. Messages that are there have been given rows by whoever did that.
            None => {
                self.depose();
                let sql = "SELECT 1 FROM message WHERE key = ANY($1) LIMIT 1";
                Ok(row(&client, sql, &[&written.keys]).await?.is_some())
            }
        }
    }

    /// Nobody shall wait for a database that does not answer. What nobody waits for is kept.
    pub(super) fn refuse_queued(&mut self, error: &StoreError) {
        let mut kept = VecDeque::new();
        while let Some(job) = self.put_back.pop_front().or_else(|| self.queue.try_recv().ok()) {
            match job {
                Job::Leave(_) | Job::Close(_) => kept.push_back(job),
                Job::Accept(_) | Job::Settle { .. } | Job::Spill { .. } | Job::Turn(_) | Job::Doubt => {
                    job.refuse(error);
                }
            }
        }
        self.put_back = kept;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.queue.is_closed() || self.put_back.iter().any(|job| matches!(job, Job::Close(_)))
    }
}
