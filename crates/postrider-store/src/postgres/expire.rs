//! Ending what has waited too long in a lane whose deliveries do not get their turn.
//!
//! A lane that is served ends what is past its time as its turn comes. In one that is parked (disabled, or its breaker
//! open) nothing has a turn, and the end would be as late as the lane's return.
//!
//! Such a lane is looked through again and again, and mostly in vain. So a reader looks first, and nobody has to stop
//! writing unless there is something to end.

use super::{Db, Result, cancel::end_all_waiting, jobs::Turn, journal, rows, small};
use crate::rows::codes::trigger_code;
use postrider_engine::{EndpointKey, MessageKey, Timestamp, Trigger, keys::time_of_key, policy::DeathReason};

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

pub async fn look(db: &Db, endpoint: EndpointKey, from: Option<MessageKey>, bounds: Bounds) -> Result<Found> {
    let waiting = waiting_past(db, endpoint, from, bounds, LOOK).await?;
    Ok(match waiting.iter().find(|row| row.is_over) {
        Some(first) => Found::Past(MessageKey::new(first.message.saturating_sub(1))),
        None => Found::Nothing { reached: reached(&waiting, LOOK) },
    })
}

pub async fn expire(
    turn: &mut Turn,
    endpoint: EndpointKey,
    from: MessageKey,
    bounds: Bounds,
) -> Result<Option<MessageKey>> {
    let waiting = waiting_past(turn.db(), endpoint, Some(from), bounds, STEP).await?;
    let over: Vec<i64> = waiting.iter().filter(|row| row.is_over).map(|row| row.message).collect();
    end_all_waiting(turn, endpoint, &over, DeathReason::Expired, bounds.now).await?;
    let tried = waiting.iter().filter(|row| row.is_over).filter_map(|row| Some((row.message, row.tried_in?)));
    journal::enter_expired(turn.db(), endpoint, &tried.collect::<Vec<_>>(), bounds.now).await?;
    Ok(reached(&waiting, STEP))
}

struct Waiting {
    message: i64,
    is_over: bool,
    /// The cycle, if it was tried in it.
    tried_in: Option<u32>,
}

/// Not resends: they are tried once, when their turn comes, and have no time to keep.
async fn waiting_past(
    db: &Db,
    endpoint: EndpointKey,
    from: Option<MessageKey>,
    Bounds { untried_before, now }: Bounds,
    limit: usize,
) -> Result<Vec<Waiting>> {
    let found = rows(
        db,
        "SELECT message, give_up_at, attempts, queued_at, due, cycle FROM waiting
         WHERE endpoint = $1 AND message > $2 AND trigger_code = $3 ORDER BY message LIMIT $4",
        &[
            &endpoint.raw(),
            &from.map_or(i64::MIN, MessageKey::raw),
            &small(trigger_code(Trigger::Scheduled)),
            &(limit as i64),
        ],
    )
    .await?;
    let waiting = found.iter().map(|row| {
        let message: i64 = row.get(0);
        let give_up_at = row.get::<_, Option<i64>>(1).map(Timestamp::from_millis);
        // What is to be delivered later has not begun to wait for its turn.
        let is_tried = row.get::<_, i32>(2) > 0;
        let untried = !is_tried && row.get::<_, i64>(4) <= now.as_millis();
        let queued_at = row.get::<_, Option<i64>>(3).map_or_else(|| time_of_key(message), Timestamp::from_millis);
        let is_over = give_up_at.is_some_and(|give_up_at| give_up_at <= now) || untried && queued_at < untried_before;
        let cycle = u32::try_from(row.get::<_, i32>(5)).unwrap_or(0);
        Waiting { message, is_over, tried_in: is_tried.then_some(cycle) }
    });
    Ok(waiting.collect())
}

fn reached(waiting: &[Waiting], limit: usize) -> Option<MessageKey> {
    waiting.last().filter(|_| waiting.len() == limit).map(|row| MessageKey::new(row.message))
}
