//! How endpoints fare. Only those that are not in perfect health have a row.

use super::{Db, Result};
use crate::shards::Shards;
use postrider_engine::{EndpointKey, policy::Health};

pub async fn put_many(_db: &Db, _healths: &[(EndpointKey, Health)]) -> Result<()> {
    todo!()
}

pub async fn forget(_db: &Db, _endpoint: EndpointKey) -> Result<()> {
    todo!()
}

pub async fn of(_db: &Db, _endpoint: EndpointKey) -> Result<Health> {
    todo!()
}

pub async fn all(_db: &Db, _shards: Shards) -> Result<Vec<(EndpointKey, Health)>> {
    todo!()
}
