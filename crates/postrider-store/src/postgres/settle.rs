//! Writing down what became of a delivery, and what waits.

use super::{Db, Result};
use postrider_engine::{DeliveryId, OrderKey, Timestamp, policy::DeathReason};

/// Which cycle of a delivery begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    First,
    /// Its time to wait untried counts from then.
    Again {
        number: u32,
        queued_at: Timestamp,
    },
}

/// A delivery begins to wait in the store, unless it does already.
pub async fn start_waiting(
    _db: &Db,
    _id: DeliveryId,
    _order: Option<OrderKey>,
    _due: Timestamp,
    _cycle: Cycle,
) -> Result<()> {
    todo!()
}

/// A delivery waits no longer. False if it did not.
pub async fn remove_waiting(_db: &Db, _id: DeliveryId) -> Result<bool> {
    todo!()
}

/// Puts a delivery that was given up, or that has arrived, on its way again: as a new cycle, due at once.
pub async fn requeue(_db: &Db, _id: DeliveryId, _order: Option<OrderKey>, _cycle: u32, _at: Timestamp) -> Result<()> {
    todo!()
}

/// A delivery is given up. What waited of it has been removed by the caller.
pub async fn bury(_db: &Db, _id: DeliveryId, _reason: DeathReason, _at: Timestamp, _cycle: u32) -> Result<()> {
    todo!()
}
