//! Ending what has waited too long in a lane whose deliveries do not get their turn.
//!
//! A lane that is served ends what is past its time as its turn comes. In one that is parked (disabled, or its breaker
//! open) nothing has a turn, and the end would be as late as the lane's return.
//!
//! Such a lane is looked through again and again, and mostly in vain. So a reader looks first, and the writer is asked
//! only from where there is something to end.

use super::{cancel::end_waiting, journal, pieces::time_of_key, writer::Batch};
use crate::rows::codes::trigger_code;
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger, policy::DeathReason};
use rusqlite::Connection;

/// Rows that a reader looks at in one go.
const LOOK: usize = 5_000;

/// Rows that the writer looks at in one go.
const STEP: usize = 500;

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

pub fn look(
    connection: &Connection,
    endpoint: EndpointKey,
    from: Option<MessageKey>,
    bounds: Bounds,
) -> rusqlite::Result<Found> {
    let rows = rows(connection, endpoint, from, bounds, LOOK)?;
    Ok(match rows.iter().find(|row| row.is_over) {
        Some(first) => Found::Past(MessageKey::new(first.message.raw().saturating_sub(1))),
        None => Found::Nothing { reached: reached(&rows, LOOK) },
    })
}

pub fn expire(
    batch: &mut Batch<'_>,
    endpoint: EndpointKey,
    from: MessageKey,
    bounds: Bounds,
) -> rusqlite::Result<Option<MessageKey>> {
    let rows = rows(&batch.transaction, endpoint, Some(from), bounds, STEP)?;
    let over = || rows.iter().filter(|row| row.is_over);
    for Row { message, .. } in over() {
        let id = DeliveryId { endpoint, message: *message, trigger: Trigger::Scheduled };
        end_waiting(batch, id, DeathReason::Expired, bounds.now)?;
    }
    let tried: Vec<_> = over().filter_map(|row| Some((row.message, row.tried_in?))).collect();
    journal::enter_expired(&batch.transaction, endpoint, &tried, bounds.now)?;
    Ok(reached(&rows, STEP))
}

struct Row {
    message: MessageKey,
    is_over: bool,
    /// The cycle, if it was tried in it.
    tried_in: Option<u32>,
}

/// Not resends: they are tried once, when their turn comes, and have no time to keep.
fn rows(
    connection: &Connection,
    endpoint: EndpointKey,
    from: Option<MessageKey>,
    Bounds { untried_before, now }: Bounds,
    limit: usize,
) -> rusqlite::Result<Vec<Row>> {
    connection
        .prepare_cached(
            "SELECT message, give_up_at, attempts, queued_at, due, cycle FROM waiting
             WHERE endpoint = ?1 AND message > ?2 AND trigger_code = ?3 ORDER BY message LIMIT ?4",
        )?
        .query_map(
            (endpoint.raw(), from.map_or(i64::MIN, MessageKey::raw), trigger_code(Trigger::Scheduled), limit),
            |row| {
                let message: i64 = row.get(0)?;
                let give_up_at = row.get::<_, Option<i64>>(1)?.map(Timestamp::from_millis);
                // What is to be delivered later has not begun to wait for its turn.
                let attempts: u32 = row.get(2)?;
                let untried = attempts == 0 && row.get::<_, i64>(4)? <= now.as_millis();
                let queued_at =
                    row.get::<_, Option<i64>>(3)?.map_or_else(|| time_of_key(message), Timestamp::from_millis);
                let is_over =
                    give_up_at.is_some_and(|give_up_at| give_up_at <= now) || untried && queued_at < untried_before;
                let cycle = row.get(5)?;
                Ok(Row { message: MessageKey::new(message), is_over, tried_in: (attempts > 0).then_some(cycle) })
            },
        )?
        .collect()
}

fn reached(rows: &[Row], limit: usize) -> Option<MessageKey> {
    rows.last().filter(|_| rows.len() == limit).map(|row| row.message)
}
