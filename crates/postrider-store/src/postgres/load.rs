//! Bringing what waits in a lane back into memory, as much as there is room for.

use super::{Db, Result};
use crate::{LaneFound, Loaded, shards::Shards};
use postrider_engine::{EndpointKey, Timestamp, policy::Ordering};

pub async fn load(
    _db: &Db,
    _endpoint: EndpointKey,
    _ordering: Ordering,
    _now: Timestamp,
    _limit: usize,
) -> Result<Loaded> {
    todo!()
}

pub async fn lanes(_db: &Db, _shards: Shards) -> Result<Vec<LaneFound>> {
    todo!()
}
