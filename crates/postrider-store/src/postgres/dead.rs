//! Dead letters: what was given up, why, and how it gets another chance.

use super::{Db, Result, writer::Turn};
use crate::{DeadFilter, DeadKey, DeadLetter, Page, PutError, Remember};
use postrider_engine::{AppKey, Timestamp};

pub async fn dead_letters(
    _db: &Db,
    _app: AppKey,
    _filter: &DeadFilter,
    _page: &Page<DeadKey>,
) -> Result<Vec<DeadLetter>> {
    todo!()
}

pub async fn count_dead_letters(_db: &Db, _app: AppKey, _filter: &DeadFilter, _limit: u64) -> Result<u64> {
    todo!()
}

pub async fn dead_letter(_db: &Db, _app: AppKey, _key: DeadKey) -> Result<Option<DeadLetter>> {
    todo!()
}

pub async fn replay(
    _turn: &mut Turn,
    _app: AppKey,
    _key: DeadKey,
    _at: Timestamp,
    _kept: Option<&Remember>,
) -> Result<Result<bool, PutError>> {
    todo!()
}
