//! Long work, in short steps.

use super::{Db, Result, settings::Put, writer::Turn};
use crate::{Page, Remember, Task, TaskFilter, TaskKey};
use postrider_engine::Timestamp;

pub async fn start(_turn: &mut Turn, _task: &Task, _kept: Option<&Remember>) -> Result<Put> {
    todo!()
}

pub async fn has_begun(_db: &Db, _task: TaskKey) -> Result<Option<bool>> {
    todo!()
}

pub async fn count(_db: &Db, _task: TaskKey) -> Result<Option<u64>> {
    todo!()
}

pub async fn advance(_turn: &mut Turn, _task: TaskKey, _counted: Option<u64>, _at: Timestamp) -> Result<Option<Task>> {
    todo!()
}

pub async fn find(_db: &Db, _task: TaskKey) -> Result<Option<Task>> {
    todo!()
}

pub async fn list(_db: &Db, _filter: &TaskFilter, _page: &Page<TaskKey>) -> Result<Vec<Task>> {
    todo!()
}

pub async fn cancel_task(_turn: &mut Turn, _task: TaskKey, _at: Timestamp) -> Result<Option<Task>> {
    todo!()
}

pub async fn unfinished(_db: &Db) -> Result<Vec<TaskKey>> {
    todo!()
}
