//! Long work, in short steps: each step is one commit, so that a restart goes on where the last one ended and
//! live traffic is let in between.

use super::{
    pieces::first_key_at,
    settings::{Put, requeue},
    writer::Batch,
};
use crate::{Committed, PutError, Task, TaskKey, TaskStatus};
use postrider_engine::{EndpointKey, MessageKey, Timestamp};
use rusqlite::{Connection, Row};

/// Dead letters put back on their way in one step.
const STEP: usize = 200;

pub fn start(batch: &Batch<'_>, task: &Task) -> rusqlite::Result<Put> {
    let mut insert =
        batch.transaction.prepare_cached("INSERT OR IGNORE INTO task VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, ?6)")?;
    let inserted = insert.execute((
        task.key.0,
        task.endpoint.raw(),
        task.since.as_millis(),
        task.until.as_millis(),
        first_key_at(task.since) - 1,
        task.updated_at.as_millis(),
    ))?;
    Ok(if inserted == 1 { Ok(()) } else { Err(PutError::Taken) })
}

pub fn advance(batch: &mut Batch<'_>, key: TaskKey, at: Timestamp) -> rusqlite::Result<Option<Task>> {
    let connection = &batch.transaction;
    let Some(task) = find(connection, key)?.filter(|task| task.status == TaskStatus::Running) else {
        return find(connection, key);
    };
    let reached: i64 =
        connection.prepare_cached("SELECT reached FROM task WHERE key = ?1")?.query_row([key.0], |row| row.get(0))?;
    let dead: Vec<(i64, u32)> = connection
        .prepare_cached(
            "SELECT message, cycle FROM dead
             WHERE endpoint = ?1 AND message > ?2 AND message < ?3 ORDER BY message LIMIT ?4",
        )?
        .query_map((task.endpoint.raw(), reached, first_key_at(task.until), STEP), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    for (message, cycle) in &dead {
        requeue(connection, task.endpoint, MessageKey::new(*message), cycle + 1, at)?;
    }
    connection
        .prepare_cached(
            "UPDATE task SET reached = ?2, recovered = recovered + ?3, finished = ?4, updated_at = ?5 WHERE key = ?1",
        )?
        .execute((
            key.0,
            dead.last().map_or(reached, |(message, _)| *message),
            dead.len(),
            dead.len() < STEP,
            at.as_millis(),
        ))?;
    let task = find(connection, key)?;
    if let Some(task) = task.as_ref().filter(|_| !dead.is_empty()) {
        batch.announce(Committed::Waiting { endpoint: task.endpoint, due: at });
    }
    Ok(task)
}

pub fn find(connection: &Connection, key: TaskKey) -> rusqlite::Result<Option<Task>> {
    super::optional(connection.prepare_cached("SELECT * FROM task WHERE key = ?1")?.query_row([key.0], task_from))
}

fn task_from(row: &Row<'_>) -> rusqlite::Result<Task> {
    Ok(Task {
        key: TaskKey(row.get("key")?),
        endpoint: EndpointKey::new(row.get("endpoint")?),
        since: Timestamp::from_millis(row.get("since")?),
        until: Timestamp::from_millis(row.get("until")?),
        recovered: row.get("recovered")?,
        status: if row.get("finished")? { TaskStatus::Finished } else { TaskStatus::Running },
        updated_at: Timestamp::from_millis(row.get("updated_at")?),
    })
}

pub fn unfinished(connection: &Connection) -> rusqlite::Result<Vec<TaskKey>> {
    connection
        .prepare_cached("SELECT key FROM task WHERE finished = 0 ORDER BY key")?
        .query_map([], |row| Ok(TaskKey(row.get(0)?)))?
        .collect()
}
