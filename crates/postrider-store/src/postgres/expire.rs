//! Ending what has waited too long in a lane whose deliveries do not get their turn.

use super::{Db, Result, writer::Turn};
use postrider_engine::{EndpointKey, MessageKey, Timestamp};

/// When a delivery has waited too long.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// For what has not been tried: it was queued before.
    pub untried_before: Timestamp,
    pub now: Timestamp,
}

/// What a reader found.
pub enum Found {
    /// Nothing to end up to there; `None`: to the end of the lane.
    Nothing { reached: Option<MessageKey> },
    /// The first that is to end comes past this one.
    Past(MessageKey),
}

pub async fn look(_db: &Db, _endpoint: EndpointKey, _from: Option<MessageKey>, _bounds: Bounds) -> Result<Found> {
    todo!()
}

pub async fn expire(
    _turn: &mut Turn,
    _endpoint: EndpointKey,
    _from: MessageKey,
    _bounds: Bounds,
) -> Result<Option<MessageKey>> {
    todo!()
}
