//! Long work, in short steps: each step is one commit, so that a restart goes on where the last one ended and
//! live traffic is let in between.
//!
//! A task walks messages from old to new and keeps the last one it has looked at as its cursor. What it does to a
//! message moves in the same commit as the cursor, so that nothing is done twice. Where a task is to take only what is
//! there when it begins, its own key is the bound: keys grow, so that every message accepted later has a greater one.
//!
//! What a step of each kind does is in `steps`.

use super::{
    journal, listing,
    pieces::first_key_at,
    settings::Put,
    steps::{
        Sift, Step, Then, Wanted, purge, replay_dead_of, replay_dead_of_all, replay_missing, replay_owed, resume, sift,
    },
    writer::{Batch, Shared},
};
use crate::{
    Committed, DeadFilter, Keep, Order, Page, PutError, Task, TaskFilter, TaskKey, TaskKind, TaskStatus,
    rows::{
        codes::{status_code, status_of},
        from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use rusqlite::{Connection, Row};

/// Past it, how many there are to look at stays unknown.
const TOTAL_MAX: u64 = 1_000_000;

/// The cursor of a task that has not begun.
const NOT_BEGUN: i64 = i64::MIN;

pub fn start(batch: &Batch<'_>, task: &Task) -> rusqlite::Result<Put> {
    let inserted = batch
        .transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO job
                 (key, app, kind, name, cursor, total, done, changed, status, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute((
            task.key.0,
            task.app.raw(),
            to_json(&task.kind),
            task.kind.name(),
            NOT_BEGUN,
            task.total,
            task.done,
            task.changed,
            status_code(task.status),
            task.created_at.as_millis(),
            task.updated_at.as_millis(),
        ))?;
    if inserted == 0 {
        return Ok(Err(PutError::Taken));
    }
    if task.status != TaskStatus::Running {
        journal::enter_task(&batch.transaction, task, task.updated_at)?;
    }
    Ok(Ok(()))
}

/// How many there are to look at, for a task that has not begun; counted by a reader, so that the writer is not held up.
pub fn count(connection: &Connection, shared: &Shared, key: TaskKey) -> rusqlite::Result<Option<u64>> {
    let Some(Job { task, cursor: NOT_BEGUN }) = read(connection, key)? else { return Ok(None) };
    let (low, high) = scope(&task);
    let limit = TOTAL_MAX + 1;
    let counted: u64 = match &task.kind {
        TaskKind::Recover { endpoint, .. }
        | TaskKind::ReplayDead { filter: DeadFilter { endpoint: Some(endpoint), .. } } => connection
            .prepare_cached(
                "SELECT count(*) FROM (SELECT 1 FROM dead
                         WHERE endpoint = ?1 AND message > ?2 AND message < ?3 AND open = 1 LIMIT ?4)",
            )?
            .query_row((endpoint, low, high, limit), |row| row.get(0))?,
        TaskKind::ReplayDead { filter: DeadFilter { endpoint: None, .. } } => connection
            .prepare_cached(
                "SELECT count(*) FROM (SELECT 1 FROM dead INDEXED BY dead_app
                     WHERE app = ?1 AND message > ?2 AND message < ?3 AND open = 1 LIMIT ?4)",
            )?
            .query_row((task.app.raw(), low, high, limit), |row| row.get(0))?,
        TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => {
            let span = Span { low, high, reading: Order::Ascending };
            let recent = shared.unfiled.of_app(task.app);
            listing::count_messages(connection, &shared.pieces(), (task.app, &recent), &span, limit)?
        }
        TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => connection
            .prepare_cached(
                "SELECT count(*) FROM (SELECT 1 FROM waiting
                     WHERE endpoint = ?1 AND message > ?2 AND message < ?3 AND trigger_code = 0 LIMIT ?4)",
            )?
            .query_row((endpoint, low, high, limit), |row| row.get(0))?,
    };
    Ok((counted < limit).then_some(counted))
}

/// Whether the next step is the first one, and needs `count`.
pub fn has_begun(connection: &Connection, key: TaskKey) -> rusqlite::Result<Option<bool>> {
    Ok(read(connection, key)?.map(|job| job.cursor != NOT_BEGUN))
}

pub fn advance(
    batch: &mut Batch<'_>,
    key: TaskKey,
    counted: Option<u64>,
    at: Timestamp,
) -> rusqlite::Result<Option<Task>> {
    let Some(Job { mut task, mut cursor }) = read(&batch.transaction, key)? else { return Ok(None) };
    match task.status {
        TaskStatus::Running => {}
        TaskStatus::Finished | TaskStatus::Cancelled => return Ok(Some(task)),
    }
    let (start, end) = scope(&task);
    let begins = cursor == NOT_BEGUN;
    if begins {
        cursor = start;
        task.total = counted.map(|rows| rows + count_handed(batch, &task.kind, end));
    }
    let lane = |endpoint: i64| (task.app, EndpointKey::new(endpoint));
    let span = (cursor, end);
    let step = match &task.kind {
        TaskKind::Recover { endpoint, .. } => {
            let failed = DeadFilter { but_cancelled: true, ..DeadFilter::default() };
            replay_dead_of(batch, lane(*endpoint), &failed, span, at)?
        }
        TaskKind::ReplayDead { filter } => match filter.endpoint {
            Some(endpoint) => replay_dead_of(batch, lane(endpoint), filter, span, at)?,
            None => replay_dead_of_all(batch, task.app, filter, span, at)?,
        },
        TaskKind::BulkReplay { endpoint, filter } => replay_owed(batch, lane(*endpoint), filter, span, at)?,
        TaskKind::ReplayMissing { endpoint, event_types, channels, .. } => {
            let wanted = Wanted { event_types: event_types.as_deref(), channels: channels.as_deref() };
            replay_missing(batch, lane(*endpoint), &wanted, span, at)?
        }
        TaskKind::Cancel { endpoint, .. } => sift(batch, lane(*endpoint), Sift::All, span, begins, at)?,
        TaskKind::Resume { endpoint, keep } => resume(batch, lane(*endpoint), *keep, span, begins, at)?,
        TaskKind::Purge => purge(batch, task.app, span)?,
        // They have ended before they are written down.
        TaskKind::AppStats { .. } | TaskKind::EventTypes { .. } => {
            Step::Done { reached: end, looked_at: 0, changed: 0, then: Then::Finish }
        }
    };
    match step {
        // Who waits is asked again and again, and must not cost a write each time; what was counted is kept, though.
        Step::Wait if !begins => return Ok(Some(task)),
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
    save(&batch.transaction, &task, cursor)?;
    journal::enter_task(&batch.transaction, &task, at)?;
    Ok(Some(task))
}

pub fn find(connection: &Connection, key: TaskKey) -> rusqlite::Result<Option<Task>> {
    Ok(read(connection, key)?.map(|job| job.task))
}

pub fn list(connection: &Connection, filter: &TaskFilter, page: &Page<TaskKey>) -> rusqlite::Result<Vec<Task>> {
    let span = Span::of(page, |key: TaskKey| key.0);
    let sql = format!(
        "SELECT * FROM job WHERE key > ?1 AND key < ?2 AND (?3 IS NULL OR app = ?3) AND (?4 IS NULL OR status = ?4)
             AND (?5 IS NULL OR name IN (SELECT value FROM json_each(?5)))
         ORDER BY key {} LIMIT ?6",
        span.direction()
    );
    let kinds = (!filter.kinds.is_empty()).then(|| to_json(&filter.kinds));
    let rows = connection
        .prepare_cached(&sql)?
        .query_map(
            (span.low, span.high, filter.app.map(AppKey::raw), filter.status.map(status_code), kinds, page.limit),
            |row| Ok(Job::from_row(row)?.task),
        )?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

/// What a task has done stays done. One that has ended already is left as it is.
pub fn cancel_task(batch: &mut Batch<'_>, key: TaskKey, at: Timestamp) -> rusqlite::Result<Option<Task>> {
    let Some(Job { mut task, cursor }) = read(&batch.transaction, key)? else { return Ok(None) };
    if task.status == TaskStatus::Running {
        task.status = TaskStatus::Cancelled;
        task.updated_at = at;
        save(&batch.transaction, &task, cursor)?;
        journal::enter_task(&batch.transaction, &task, at)?;
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
    }
    Ok(Some(task))
}

pub fn unfinished(connection: &Connection) -> rusqlite::Result<Vec<TaskKey>> {
    connection
        .prepare_cached("SELECT key FROM job WHERE status = 0 ORDER BY key")?
        .query_map([], |row| Ok(TaskKey(row.get(0)?)))?
        .collect()
}

struct Job {
    task: Task,
    /// The last message that was looked at.
    cursor: i64,
}

impl Job {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            task: Task {
                key: TaskKey(row.get("key")?),
                app: AppKey::new(row.get("app")?),
                kind: from_json(row.get_ref("kind")?.as_str()?)?,
                total: row.get("total")?,
                done: row.get("done")?,
                changed: row.get("changed")?,
                status: status_of(row.get("status")?)?,
                created_at: Timestamp::from_millis(row.get("created_at")?),
                updated_at: Timestamp::from_millis(row.get("updated_at")?),
            },
            cursor: row.get("cursor")?,
        })
    }
}

fn read(connection: &Connection, key: TaskKey) -> rusqlite::Result<Option<Job>> {
    super::optional(connection.prepare_cached("SELECT * FROM job WHERE key = ?1")?.query_row([key.0], Job::from_row))
}

fn save(connection: &Connection, task: &Task, cursor: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE job SET cursor = ?2, total = ?3, done = ?4, changed = ?5, status = ?6, updated_at = ?7
             WHERE key = ?1",
        )?
        .execute((
            task.key.0,
            cursor,
            task.total,
            task.done,
            task.changed,
            status_code(task.status),
            task.updated_at.as_millis(),
        ))?;
    Ok(())
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

/// What a task will look at that no reader can count: it has been handed over and has no row yet.
fn count_handed(batch: &Batch<'_>, kind: &TaskKind, end: i64) -> u64 {
    match kind {
        TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => {
            let handed = batch.handed_to(EndpointKey::new(*endpoint));
            handed.iter().filter(|message| message.raw() < end).count() as u64
        }
        TaskKind::Recover { .. }
        | TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::ReplayDead { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => 0,
    }
}
