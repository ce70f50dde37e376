//! Long work, in short steps: each step is one commit, so that a restart goes on where the last one ended and
//! live traffic is let in between.
//!
//! A task walks messages from old to new and keeps the last one it has looked at as its cursor. What it does to a
//! message moves in the same commit as the cursor, so that nothing is done twice. Where a task is to take only what is
//! there when it begins, its own key is the bound: the cluster's floor is raised to it, so that every message accepted
//! later has a greater one, whichever node accepts it.
//!
//! What a step of each kind does is in `steps`.

use super::{
    Db, Result, count as unsigned, execute,
    jobs::Turn,
    journal, one, recover, row, rows, settings,
    settings::Put,
    small,
    steps::{
        Sift, Step, Then, Wanted, purge, replay_dead_of, replay_dead_of_all, replay_missing, replay_owed, resume, sift,
    },
};
use crate::{
    Committed, DeadFilter, Keep, Page, PutError, Remember, Task, TaskFilter, TaskKey, TaskKind, TaskStatus,
    rows::{
        codes::{status_code, status_of},
        from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use postrider_engine::{AppKey, EndpointKey, Timestamp, keys::first_key_at};
use tokio_postgres::Row;

/// Past it, how many there are to look at stays unknown.
const TOTAL_MAX: u64 = 1_000_000;

/// The cursor of a task that has not begun.
const NOT_BEGUN: i64 = i64::MIN;

pub async fn start(turn: &mut Turn, task: &Task, kept: Option<&Remember>) -> Result<Put> {
    if let Err(refusal) = settings::remember(turn, kept, task.updated_at).await? {
        return Ok(Err(refusal));
    }
    let inserted = execute(
        turn.db(),
        "INSERT INTO job (key, app, kind, name, cursor, total, done, changed, status, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING",
        &[
            &task.key.0,
            &task.app.raw(),
            &to_json(&task.kind),
            &task.kind.name(),
            &NOT_BEGUN,
            &task.total.map(signed),
            &signed(task.done),
            &signed(task.changed),
            &small(status_code(task.status)),
            &task.created_at.as_millis(),
            &task.updated_at.as_millis(),
        ],
    )
    .await?;
    if inserted == 0 {
        return settings::conclude(turn, kept, Err(PutError::Taken)).await;
    }
    execute(turn.db(), "UPDATE cluster SET floor = greatest(floor, $1)", &[&task.key.0]).await?;
    match task.status {
        TaskStatus::Running => turn.announce_work(),
        TaskStatus::Finished | TaskStatus::Cancelled => journal::enter_task(turn.db(), task, task.updated_at).await?,
    }
    Ok(Ok(()))
}

/// How many there are to look at, for a task that has not begun; counted by a reader, so that nobody is held up.
pub async fn count(db: &Db, key: TaskKey) -> Result<Option<u64>> {
    let Some(Job { task, cursor: NOT_BEGUN }) = read(db, key).await? else { return Ok(None) };
    let (low, high) = scope(&task);
    let limit = TOTAL_MAX + 1;
    let (sql, whose) = match &task.kind {
        TaskKind::Recover { endpoint, .. }
        | TaskKind::ReplayDead { filter: DeadFilter { endpoint: Some(endpoint), .. } } => (
            "SELECT count(*) FROM (SELECT 1 FROM dead
                 WHERE endpoint = $1 AND message > $2 AND message < $3 AND open = 1 LIMIT $4) AS found",
            *endpoint,
        ),
        TaskKind::ReplayDead { filter: DeadFilter { endpoint: None, .. } } => (
            "SELECT count(*) FROM (SELECT 1 FROM dead
                 WHERE app = $1 AND message > $2 AND message < $3 AND open = 1 LIMIT $4) AS found",
            task.app.raw(),
        ),
        TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => (
            "SELECT count(*) FROM (SELECT 1 FROM message
                 WHERE app = $1 AND key > $2 AND key < $3 LIMIT $4) AS found",
            task.app.raw(),
        ),
        TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => (
            "SELECT count(*) FROM (SELECT 1 FROM waiting
                 WHERE endpoint = $1 AND message > $2 AND message < $3 AND trigger_code = 0 LIMIT $4) AS found",
            *endpoint,
        ),
    };
    let counted = unsigned(one(db, sql, &[&whose, &low, &high, &signed(limit)]).await?.get(0));
    Ok((counted < limit).then_some(counted))
}

/// Whether the next step is the first one, and needs `count`.
pub async fn has_begun(db: &Db, key: TaskKey) -> Result<Option<bool>> {
    Ok(read(db, key).await?.map(|job| job.cursor != NOT_BEGUN))
}

pub async fn advance(turn: &mut Turn, key: TaskKey, counted: Option<u64>, at: Timestamp) -> Result<Option<Task>> {
    let Some(Job { mut task, mut cursor }) = read(turn.db(), key).await? else { return Ok(None) };
    match task.status {
        TaskStatus::Running => {}
        TaskStatus::Finished | TaskStatus::Cancelled => return Ok(Some(task)),
    }
    let (start, end) = scope(&task);
    let begins = cursor == NOT_BEGUN;
    if begins {
        cursor = start;
        task.total = match counted {
            Some(rows) => Some(rows + count_handed(turn.db(), &task.kind, end).await?),
            None => None,
        };
    }
    let lane = |endpoint: i64| (task.app, EndpointKey::new(endpoint));
    let span = (cursor, end);
    let step = match &task.kind {
        TaskKind::Recover { endpoint, .. } => {
            let failed = DeadFilter { but_cancelled: true, ..DeadFilter::default() };
            replay_dead_of(turn, lane(*endpoint), &failed, span, at).await?
        }
        TaskKind::ReplayDead { filter } => match filter.endpoint {
            Some(endpoint) => replay_dead_of(turn, lane(endpoint), filter, span, at).await?,
            None => replay_dead_of_all(turn, task.app, filter, span, at).await?,
        },
        TaskKind::BulkReplay { endpoint, filter } => replay_owed(turn, lane(*endpoint), filter, span, at).await?,
        TaskKind::ReplayMissing { endpoint, event_types, channels, .. } => {
            let wanted = Wanted { event_types: event_types.as_deref(), channels: channels.as_deref() };
            replay_missing(turn, lane(*endpoint), &wanted, span, at).await?
        }
        TaskKind::Cancel { endpoint, .. } => sift(turn, lane(*endpoint), Sift::All, span, begins, at).await?,
        TaskKind::Resume { endpoint, keep } => resume(turn, lane(*endpoint), *keep, span, begins, at).await?,
        TaskKind::Purge => purge(turn, task.app, span).await?,
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
    save(turn.db(), &task, cursor).await?;
    journal::enter_task(turn.db(), &task, at).await?;
    Ok(Some(task))
}

pub async fn find(db: &Db, key: TaskKey) -> Result<Option<Task>> {
    Ok(read(db, key).await?.map(|job| job.task))
}

pub async fn list(db: &Db, filter: &TaskFilter, page: &Page<TaskKey>) -> Result<Vec<Task>> {
    let span = Span::of(page, |key: TaskKey| key.0);
    let sql = format!(
        "SELECT * FROM job WHERE key > $1 AND key < $2 AND ($3::bigint IS NULL OR app = $3)
             AND ($4::smallint IS NULL OR status = $4) AND (cardinality($5::text[]) = 0 OR name = ANY($5))
         ORDER BY key {} LIMIT $6",
        span.direction()
    );
    let status = filter.status.map(|status| small(status_code(status)));
    let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
    let found =
        rows(db, &sql, &[&span.low, &span.high, &filter.app.map(AppKey::raw), &status, &filter.kinds, &limit]).await?;
    let tasks = found.iter().map(|row| Ok(Job::from_row(row)?.task)).collect::<Result<_>>()?;
    Ok(in_list_order(page, tasks))
}

/// What a task has done stays done. One that has ended already is left as it is.
pub async fn cancel_task(turn: &mut Turn, key: TaskKey, at: Timestamp) -> Result<Option<Task>> {
    let Some(Job { mut task, cursor }) = read(turn.db(), key).await? else { return Ok(None) };
    if task.status == TaskStatus::Running {
        task.status = TaskStatus::Cancelled;
        task.updated_at = at;
        save(turn.db(), &task, cursor).await?;
        journal::enter_task(turn.db(), &task, at).await?;
        match task.kind {
            // Its lane was told at once to let go of everything; what was not reached still has rows and is to be sent.
            TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => {
                turn.announce(Committed::Waiting { endpoint: EndpointKey::new(endpoint), due: at });
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

pub async fn unfinished(db: &Db) -> Result<Vec<TaskKey>> {
    let found = rows(db, "SELECT key FROM job WHERE status = 0 ORDER BY key", &[]).await?;
    Ok(found.iter().map(|row| TaskKey(row.get(0))).collect())
}

struct Job {
    task: Task,
    /// The last message that was looked at.
    cursor: i64,
}

impl Job {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(Self {
            task: Task {
                key: TaskKey(row.get("key")),
                app: AppKey::new(row.get("app")),
                kind: from_json(row.get("kind"))?,
                total: row.get::<_, Option<i64>>("total").map(unsigned),
                done: unsigned(row.get("done")),
                changed: unsigned(row.get("changed")),
                status: status_of(row.get::<_, i16>("status").into())?,
                created_at: Timestamp::from_millis(row.get("created_at")),
                updated_at: Timestamp::from_millis(row.get("updated_at")),
            },
            cursor: row.get("cursor"),
        })
    }
}

async fn read(db: &Db, key: TaskKey) -> Result<Option<Job>> {
    let found = row(db, "SELECT * FROM job WHERE key = $1", &[&key.0]).await?;
    found.as_ref().map(Job::from_row).transpose()
}

async fn save(db: &Db, task: &Task, cursor: i64) -> Result<()> {
    execute(
        db,
        "UPDATE job SET cursor = $2, total = $3, done = $4, changed = $5, status = $6, updated_at = $7 WHERE key = $1",
        &[
            &task.key.0,
            &cursor,
            &task.total.map(signed),
            &signed(task.done),
            &signed(task.changed),
            &small(status_code(task.status)),
            &task.updated_at.as_millis(),
        ],
    )
    .await?;
    Ok(())
}

/// There are no unsigned columns.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
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
async fn count_handed(db: &Db, kind: &TaskKind, end: i64) -> Result<u64> {
    Ok(match kind {
        TaskKind::Cancel { endpoint, .. } | TaskKind::Resume { endpoint, .. } => {
            let handed = recover::handed_to(db, EndpointKey::new(*endpoint)).await?;
            handed.iter().filter(|message| message.raw() < end).count() as u64
        }
        TaskKind::Recover { .. }
        | TaskKind::ReplayMissing { .. }
        | TaskKind::BulkReplay { .. }
        | TaskKind::ReplayDead { .. }
        | TaskKind::Purge
        | TaskKind::AppStats { .. }
        | TaskKind::EventTypes { .. } => 0,
    })
}
