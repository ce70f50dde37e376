//! Work beside the deliveries: tasks that people asked for, burying what deleted endpoints left, ending what has waited
//! too long behind a paused endpoint, tidying.
//!
//! Each does a small step at a time and lets live traffic in between; each goes on after a restart.

use crate::{clock::Clock, directory::Directory};
use postrider_engine::{EndpointKey, Timestamp, policy::Breaker};
use postrider_store::{Retention, Shards, Store, StoreError, TaskKey, TaskStatus, step};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::Instant};

/// How often it is looked whether something is past its time.
const TIDY_EVERY: Duration = Duration::from_mins(1);

/// How often what waits behind parked endpoints is looked through.
const EXPIRE_EVERY: Duration = Duration::from_mins(10);

/// Between two steps, so that they take only a small part of the writer's time.
const BREATH: Duration = Duration::from_millis(20);

/// How often it is looked whether the work has come to this process, while another one does it.
const LEAD_EVERY: Duration = Duration::from_secs(1);

/// While there is nothing to do but wait for the lanes: longer and longer.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Tasks {
    work: Notify,
}

impl Tasks {
    /// There may be something to do.
    pub fn wake(&self) {
        self.work.notify_one();
    }

    /// Runs until the store is closed. Of several nodes one does the work, and the others wait.
    pub async fn run(&self, store: Arc<dyn Store>, directory: Arc<Directory>, retention: Retention, clock: Clock) {
        let mut expired_at = None;
        loop {
            if !store.leads() {
                let _ = tokio::time::timeout(LEAD_EVERY, self.work.notified()).await;
                continue;
            }
            match work_off(&*store, &directory, retention, &clock, &mut expired_at).await {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "background work stopped for now"),
            }
            let _ = tokio::time::timeout(TIDY_EVERY, self.work.notified()).await;
        }
    }
}

async fn work_off(
    store: &dyn Store,
    directory: &Directory,
    retention: Retention,
    clock: &Clock,
    expired_at: &mut Option<Instant>,
) -> Result<(), StoreError> {
    // In turns, a step each, so that nothing short waits for something long.
    let mut pause = PAUSE_MIN;
    while store.leads() {
        if expired_at.is_none_or(|at| at.elapsed() >= EXPIRE_EVERY) {
            *expired_at = Some(Instant::now());
            expire_parked(store, directory, clock).await?;
        }
        let unfinished = store.unfinished_tasks().await?;
        let mut moved = false;
        for task in &unfinished {
            moved |= match advance(store, *task, clock.now()).await {
                Err(
                    error
                    @ (StoreError::Busy | StoreError::Full | StoreError::Database(_) | StoreError::Unreachable(_)),
                ) => {
                    tracing::warn!(task = task.0, %error, "a task could not go on; it is tried again");
                    false
                }
                done => done?,
            };
        }
        let more = store.bury(clock.now()).await? | store.tidy(clock.now(), retention).await?;
        match (moved || more, unfinished.is_empty()) {
            (true, _) => {
                pause = PAUSE_MIN;
                tokio::time::sleep(BREATH).await;
            }
            // Tasks wait for their lanes to drain.
            (false, false) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            (false, true) => break,
        }
    }
    Ok(())
}

/// Does a step of a task. False if it had to wait.
async fn advance(store: &dyn Store, key: TaskKey, now: Timestamp) -> Result<bool, StoreError> {
    let Some(task) = store.advance_task(key, now).await? else { return Ok(false) };
    step!("task.stepped");
    if task.status == TaskStatus::Finished {
        tracing::info!(task = task.key.0, kind = task.kind.name(), changed = task.changed, "task finished");
    }
    Ok(task.updated_at == now)
}

/// What waits in a lane that sends nothing never has its turn, and so nobody else would see that its time is over.
async fn expire_parked(store: &dyn Store, directory: &Directory, clock: &Clock) -> Result<(), StoreError> {
    let tripped: BTreeSet<EndpointKey> = store
        .healths(Shards::ALL)
        .await?
        .into_iter()
        .filter(|(_, health)| matches!(health.breaker, Breaker::Open { .. }))
        .map(|(endpoint, _)| endpoint)
        .collect();
    for lane in store.lanes(Shards::ALL).await? {
        let Some(entry) = directory.endpoint(lane.endpoint).await? else { continue };
        if !entry.lane.parked && !tripped.contains(&lane.endpoint) {
            continue;
        }
        let untried_before = clock.now().minus(directory.hold_max(&entry).await?);
        let mut from = None;
        while let Some(reached) = store.expire(lane.endpoint, from, untried_before, clock.now()).await? {
            from = Some(reached);
            tokio::time::sleep(BREATH).await;
        }
    }
    Ok(())
}
