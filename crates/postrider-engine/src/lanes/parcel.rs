//! A delivery on its way through memory.

use crate::{
    keys::{DeliveryId, OrderKey},
    policy::Progress,
    time::Timestamp,
};
use std::time::Duration;

/// A delivery on its way, with whatever its carrier needs to send it.
#[derive(Clone, Debug)]
pub struct Parcel<C> {
    pub id: DeliveryId,
    pub cycle: u32,
    pub progress: Progress,
    /// When this cycle began: when the message was accepted, or the delivery replayed.
    pub queued_at: Timestamp,
    /// When it was to be sent.
    pub due: Timestamp,
    /// It must wait for those of the same key that were accepted before it.
    pub order: Option<OrderKey>,
    /// Set when it is sent: why that is later than it was due, where it is.
    pub held: Option<Held>,
    /// Set when it is sent: for how long since it was due its endpoint was the reason that it was not sent.
    pub theirs: Duration,
    /// It came straight from being accepted and has no row of its own.
    pub handed: bool,
    /// When it entered memory: what stands too long is given a row.
    pub since: Timestamp,
    /// Bytes that it keeps in memory.
    pub weight: usize,
    pub cargo: C,
}

/// Why a delivery is sent later than it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub by: HeldBy,
    /// How much later.
    pub late: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// All of the endpoint's slots were taken, or all of ours.
    Slots,
    /// The endpoint's rate.
    Rate,
    /// The application's rate.
    AppRate,
    Breaker,
    /// The endpoint was paused or disabled.
    Pause,
    /// An earlier delivery of the same key, or of a FIFO endpoint.
    Order,
    /// We were not running, or had no room for it in memory.
    Queue,
}
