//! Work beside the deliveries: tasks that people asked for, burying what deleted endpoints left, ending what has waited
//! too long behind a paused endpoint, tidying.
//!
//! Each does a small step at a time and lets live traffic in between; each goes on after a restart.

use crate::{clock::Clock, directory::Directory};
use postrider_engine::{EndpointKey, MessageKey, Timestamp, policy::Breaker};
use postrider_store::{Retention, Shards, Store, StoreError, TaskKey, TaskKind, TaskStatus, step};
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

/// The contract's names, and two of ours for what it does not know.
pub fn type_name(kind: &TaskKind) -> &'static str {
    match kind {
        TaskKind::Recover { .. } | TaskKind::ReplayDead { .. } => "endpoint.recover",
        TaskKind::ReplayMissing { .. } => "endpoint.replay",
        TaskKind::BulkReplay { .. } => "endpoint.bulk-replay",
        TaskKind::Purge => "application.purge_content",
        TaskKind::AppStats { .. } => "application.stats",
        TaskKind::EventTypes { .. } => "event-type.aggregate",
        TaskKind::Cancel { .. } => "endpoint.cancel",
        TaskKind::Resume { .. } => "endpoint.resume",
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
        let mut from = None;
        while let Some(reached) = expire_step(store, directory, clock, lane.endpoint, from).await? {
            from = Some(reached);
            tokio::time::sleep(BREATH).await;
        }
    }
    Ok(())
}

/// Ends a piece of what waits there, and says how far it came. The settings are looked up for each piece: in a lane of a
/// million the breaths alone take 40 seconds, and whoever lets them wait longer meanwhile is not to lose the rest.
async fn expire_step(
    store: &dyn Store,
    directory: &Directory,
    clock: &Clock,
    endpoint: EndpointKey,
    from: Option<MessageKey>,
) -> Result<Option<MessageKey>, StoreError> {
    let Some(entry) = directory.endpoint(endpoint).await? else { return Ok(None) };
    let hold_max = directory.hold_max(&entry).await?;
    let now = clock.now();
    store.expire(endpoint, from, now.minus(hold_max), now).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{transport::AddressGuard, vault::Vault};
    use bytes::Bytes;
    use postrider_engine::{AppKey, policy::Layer};
    use postrider_store::{Application, Content, Counts, Endpoint, Expect, Metadata, NewMessage, SqliteStore};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// As many as are ended in one step, and some more.
    const WAITING: u64 = 510;

    #[tokio::test]
    async fn a_longer_hold_saves_what_a_pass_has_not_come_to_yet() {
        let folder = tempfile::tempdir().expect("a folder");
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(folder.path(), NOW).expect("a store"));
        let (vault, guard) = (Arc::new(Vault::new(&[[7; 32]])), Arc::new(AddressGuard::new(Vec::new())));
        let directory = Directory::new(Arc::clone(&store), vault, guard, Arc::new(Layer::default()));
        let application = application(AppKey::new(store.mint(NOW).await.expect("a key")));
        store.put_application(application.clone(), Expect::Absent, None).await.expect("an application");
        let endpoint = holding("1h", EndpointKey::new(store.mint(NOW).await.expect("a key")), application.key);
        store.put_endpoint(endpoint.clone(), Expect::Absent, None).await.expect("an endpoint");
        let accepted = (0..WAITING).map(|_| {
            let (store, message) = (Arc::clone(&store), in_a_row(application.key, endpoint.key));
            tokio::spawn(async move { store.accept(message).await.map(drop) })
        });
        for accepted in accepted.collect::<Vec<_>>() {
            accepted.await.expect("it does not panic").expect("it is accepted");
        }

        let clock = Clock::beginning_at(NOW.plus(Duration::from_hours(2)));
        let reached = expire_step(&*store, &directory, &clock, endpoint.key, None).await.expect("a first step");
        assert!(reached.is_some(), "there is more");
        let Counts { dead, waiting } = store.counts(Shards::ALL).await.expect("counts");
        assert!(dead > 0 && waiting > 0, "{dead} ended, {waiting} wait");
        let patient = Endpoint { version: 2, ..holding("3h", endpoint.key, application.key) };
        store.put_endpoint(patient, Expect::Version(1), None).await.expect("a change");
        directory.changed(application.key);

        assert_eq!(expire_step(&*store, &directory, &clock, endpoint.key, reached).await.expect("the last"), None);
        assert_eq!(store.counts(Shards::ALL).await.expect("counts"), Counts { dead, waiting });
        clock.set_ahead(Duration::from_hours(2).as_millis() as i64);
        assert_eq!(expire_step(&*store, &directory, &clock, endpoint.key, reached).await.expect("another"), None);
        assert_eq!(store.counts(Shards::ALL).await.expect("counts"), Counts { dead: WAITING, waiting: 0 });
    }

    fn application(key: AppKey) -> Application {
        Application {
            key,
            version: 1,
            uid: None,
            name: "Patience".to_owned(),
            rate_limit: None,
            rules: None,
            source: None,
            pollers: None,
            metadata: Metadata::new(),
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn holding(hold: &str, key: EndpointKey, app: AppKey) -> Endpoint {
        Endpoint {
            key,
            app,
            version: 1,
            uid: None,
            url: "https://example.com/hook".to_owned(),
            description: String::new(),
            disabled: None,
            event_types: None,
            channels: None,
            metadata: Metadata::new(),
            rate_limit: None,
            rules: Some(format!(r#"{{"retryPolicy":{{"holdFor":"{hold}"}}}}"#)),
            sealed: Vec::new(),
            created_at: NOW,
            updated_at: NOW,
        }
    }

    /// One that is wanted a moment later has a row at once, and needs no lane to give it one.
    fn in_a_row(app: AppKey, endpoint: EndpointKey) -> NewMessage {
        let content = Content {
            event_type: "invoice.paid".to_owned(),
            event_id: None,
            channels: Vec::new(),
            tags: Vec::new(),
            content_type: None,
            ordering_key: None,
            deliver_at: Some(NOW.plus(Duration::from_millis(1))),
            received: None,
            payload: Bytes::from_static(b"{}"),
        };
        NewMessage {
            app,
            at: NOW,
            content,
            payload_expires_at: None,
            generation: None,
            owed: vec![endpoint],
            fifo: Vec::new(),
            idempotency: None,
            trace: None,
        }
    }
}
