//! Long work, in short steps: each step is one commit, so that a restart goes on where the last one ended.

use super::{
    batch::Batch,
    history, journal,
    settings::{Put, on_page},
    steps::{self, Sift, Step, Then},
    tables::{Tables, TaskRow},
};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp, keys::first_key_at};
use postrider_store::{Committed, DeadFilter, Keep, Page, PutError, Task, TaskFilter, TaskKey, TaskKind, TaskStatus};

/// The cursor of a task that has not begun.
const NOT_BEGUN: i64 = i64::MIN;

pub fn start(batch: &mut Batch<'_>, task: Task) -> Put {
    if batch.tables.tasks.contains_key(&task.key) {
        return Err(PutError::Taken);
    }
    // Every message accepted later has a greater key, whichever node accepts it.
    batch.tables.floor = batch.tables.floor.max(task.key.0);
    match task.status {
        TaskStatus::Running => batch.announce_work(),
        TaskStatus::Finished | TaskStatus::Cancelled => journal::enter_task(batch.tables, &task, task.updated_at),
    }
    batch.tables.tasks.insert(task.key, TaskRow { task, cursor: NOT_BEGUN });
    Ok(())
}

/// How many there are to look at.
fn count(batch: &Batch<'_>, task: &Task, (low, high): (i64, i64)) -> u64 {
    let tables = &batch.tables;
    let of_endpoint = |endpoint: i64| {
        let listed = history::listed(tables, task.app, Some(low), Some(high));
        listed.filter(|(key, _)| key.endpoint.raw() == endpoint).count()
    };
    let counted = match &task.kind {
        TaskKind::Recover { endpoint, .. }
        | TaskKind::ReplayDead { filter: DeadFilter { endpoint: Some(endpoint), .. } } => of_endpoint(*endpoint),
        TaskKind::ReplayDead { filter: DeadFilter { endpoint: None, .. } } => {
            history::listed(tables, task.app, Some(low), Some(high)).count()
        }
        TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => steps::messages_between(tables, task.app, low, high).count(),
        TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => {
            let endpoint = EndpointKey::new(*endpoint);
            let is_before = |message: &MessageKey| message.raw() < high;
            let rows = tables.lanes.get(&endpoint).into_iter().flat_map(|lane| lane.scheduled_past(None));
            let handed = batch.handed_to(endpoint).into_iter().filter(is_before).count();
            rows.map(|(message, _)| message).filter(is_before).count() + handed
        }
    };
    counted as u64
}

pub fn advance(batch: &mut Batch<'_>, key: TaskKey, at: Timestamp) -> Option<Task> {
    let TaskRow { task, cursor } = batch.tables.tasks.get(&key)?;
    let (mut task, mut cursor) = (task.clone(), *cursor);
    match task.status {
        TaskStatus::Running => {}
        TaskStatus::Finished | TaskStatus::Cancelled => return Some(task),
    }
    let (start, end) = scope(&task);
    let begins = cursor == NOT_BEGUN;
    if begins {
        cursor = start;
        task.total = Some(count(batch, &task, (start, end)));
    }
    let lane = |endpoint: i64| (task.app, EndpointKey::new(endpoint));
    let span = (cursor, end);
    let step = match &task.kind {
        TaskKind::Recover { endpoint, .. } => {
            let failed = DeadFilter { but_cancelled: true, ..DeadFilter::default() };
            steps::replay_dead_of(batch, lane(*endpoint), &failed, span, at)
        }
        TaskKind::ReplayDead { filter } => match filter.endpoint {
            Some(endpoint) => steps::replay_dead_of(batch, lane(endpoint), filter, span, at),
            None => steps::replay_dead_of_all(batch, task.app, filter, span, at),
        },
        TaskKind::BulkReplay { endpoint, filter } => steps::replay_owed(batch, lane(*endpoint), filter, span, at),
        TaskKind::ReplayMissing { endpoint, event_types, channels, .. } => {
            let wanted = (event_types.as_deref(), channels.as_deref());
            steps::replay_missing(batch, lane(*endpoint), wanted, span, at)
        }
        TaskKind::Cancel { endpoint, .. } => steps::sift(batch, lane(*endpoint), Sift::All, span, begins, at),
        TaskKind::Resume { endpoint, keep } => steps::resume(batch, lane(*endpoint), *keep, span, begins, at),
        TaskKind::Purge => steps::purge(batch.tables, task.app, span),
        // They have ended before they are written down.
        TaskKind::AppStats { .. } | TaskKind::EventTypes { .. } => {
            Step::Done { reached: end, looked_at: 0, changed: 0, then: Then::Finish }
        }
    };
    match step {
        Step::Wait => {}
        Step::Done { reached, looked_at, changed, then } => {
            cursor = reached;
            task.done += looked_at;
            task.changed += changed;
            task.updated_at = at;
            match then {
                Then::GoOn => {}
                Then::Finish => task.status = TaskStatus::Finished,
            }
        }
    }
    batch.tables.tasks.insert(key, TaskRow { task: task.clone(), cursor });
    journal::enter_task(batch.tables, &task, at);
    Some(task)
}

pub fn list(tables: &Tables, filter: &TaskFilter, page: &Page<TaskKey>) -> Vec<Task> {
    let is_shown = |(_, row): &(&TaskKey, &TaskRow)| {
        filter.app.is_none_or(|app: AppKey| app == row.task.app)
            && filter.status.is_none_or(|status| status == row.task.status)
            && (filter.kinds.is_empty() || filter.kinds.contains(&row.task.kind.name()))
    };
    on_page(&tables.tasks, page, is_shown).into_iter().map(|(_, row)| row.task.clone()).collect()
}

/// What a task has done stays done. One that has ended already is left as it is.
pub fn cancel_task(batch: &mut Batch<'_>, key: TaskKey, at: Timestamp) -> Option<Task> {
    let row = batch.tables.tasks.get_mut(&key)?;
    if row.task.status != TaskStatus::Running {
        return Some(row.task.clone());
    }
    row.task.status = TaskStatus::Cancelled;
    row.task.updated_at = at;
    let task = row.task.clone();
    journal::enter_task(batch.tables, &task, at);
    match task.kind {
        // Its lane was told at once to let go of everything; what was not reached still has rows and is to be sent.
        TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => {
            batch.announce(Committed::Waiting { endpoint: EndpointKey::new(endpoint), due: at });
        }
        TaskKind::Recover { .. }
        | TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::ReplayDead { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => {}
    }
    Some(task)
}

pub fn unfinished(tables: &Tables) -> Vec<TaskKey> {
    let running = tables.tasks.values().filter(|row| row.task.status == TaskStatus::Running);
    running.map(|row| row.task.key).collect()
}

/// The open interval of messages that a task looks at.
fn scope(task: &Task) -> (i64, i64) {
    let key_at = |millis: i64| first_key_at(Timestamp::from_millis(millis));
    match &task.kind {
        TaskKind::Recover { since, until, .. } | TaskKind::ReplayMissing { since, until, .. } => {
            (key_at(*since) - 1, key_at(*until))
        }
        TaskKind::BulkReplay { filter, .. } => (key_at(filter.since) - 1, key_at(filter.until)),
        TaskKind::Cancel { before, .. } => (-1, key_at(*before).min(task.key.0)),
        TaskKind::Resume { keep, .. } => match keep {
            Keep::All => (-1, 0),
            Keep::Since(since) => (-1, key_at(*since).min(task.key.0)),
            Keep::NewestPerKey | Keep::None => (-1, task.key.0),
        },
        TaskKind::ReplayDead { .. } | TaskKind::Purge | TaskKind::AppStats { .. } | TaskKind::EventTypes { .. } => {
            (-1, task.key.0)
        }
    }
}
