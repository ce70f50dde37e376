//! Work beside the deliveries: recoveries that people asked for, burying what deleted endpoints left, tidying.
//!
//! Each does a small step at a time and lets live traffic in between; each goes on after a restart.

use crate::clock;
use postrider_store::{Retention, Store, StoreError, TaskStatus};
use std::{sync::Arc, time::Duration};
use tokio::sync::Notify;

/// How often it is looked whether something is past its time.
const TIDY_EVERY: Duration = Duration::from_mins(1);

/// Between two steps, so that they take only a small part of the writer's time.
const BREATH: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct Tasks {
    work: Notify,
}

impl Tasks {
    /// There may be something to do.
    pub fn wake(&self) {
        self.work.notify_one();
    }

    /// Runs until the store is closed.
    pub async fn run(&self, store: Arc<dyn Store>, retention: Retention) {
        loop {
            match work_off(&*store, retention).await {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "background work stopped for now"),
            }
            let _ = tokio::time::timeout(TIDY_EVERY, self.work.notified()).await;
        }
    }
}

async fn work_off(store: &dyn Store, retention: Retention) -> Result<(), StoreError> {
    for task in store.unfinished_tasks().await? {
        while let Some(state) = store.advance_task(task, clock::now()).await? {
            if state.status == TaskStatus::Finished {
                tracing::info!(task = task.0, changed = state.changed, "recovery finished");
                break;
            }
            tokio::time::sleep(BREATH).await;
        }
    }
    while store.bury(clock::now()).await? {
        tokio::time::sleep(BREATH).await;
    }
    while store.tidy(clock::now(), retention).await? {
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}
