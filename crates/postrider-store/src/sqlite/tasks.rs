//! Long work, in short steps: each step is one commit, so that a restart goes on where the last one ended and
//! live traffic is let in between.

use super::{settings::Put, writer::Batch};
use crate::{Task, TaskKey};
use postrider_engine::Timestamp;
use rusqlite::Connection;

pub fn start(_batch: &Batch<'_>, _task: &Task) -> rusqlite::Result<Put> {
    todo!()
}

pub fn advance(_batch: &mut Batch<'_>, _key: TaskKey, _at: Timestamp) -> rusqlite::Result<Option<Task>> {
    todo!()
}

pub fn find(_connection: &Connection, _key: TaskKey) -> rusqlite::Result<Option<Task>> {
    todo!()
}

pub fn unfinished(connection: &Connection) -> rusqlite::Result<Vec<TaskKey>> {
    connection
        .prepare_cached("SELECT key FROM job WHERE status = 0 ORDER BY key")?
        .query_map([], |row| Ok(TaskKey(row.get(0)?)))?
        .collect()
}
