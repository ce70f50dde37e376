//! Ending what has waited too long in a lane whose deliveries do not get their turn.
//!
//! A lane that is served ends what is past its time as its turn comes. In one that is parked (disabled, or its breaker
//! open) nothing has a turn, and the end would be as late as the lane's return.

use super::{cancel::end_waiting, codes::trigger_code, pieces::time_of_key, writer::Batch};
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger, policy::DeathReason};

/// Rows looked at in one go.
const STEP: usize = 500;

pub fn expire(
    batch: &mut Batch<'_>,
    endpoint: EndpointKey,
    from: Option<MessageKey>,
    untried_before: Timestamp,
    now: Timestamp,
) -> rusqlite::Result<Option<MessageKey>> {
    // Not resends: they are tried once, when their turn comes, and have no time to keep.
    let looked_at: Vec<(i64, bool)> = batch
        .transaction
        .prepare_cached(
            "SELECT message, give_up_at, attempts, queued_at, due FROM waiting
             WHERE endpoint = ?1 AND message > ?2 AND trigger_code = ?3 ORDER BY message LIMIT ?4",
        )?
        .query_map(
            (endpoint.raw(), from.map_or(i64::MIN, MessageKey::raw), trigger_code(Trigger::Scheduled), STEP),
            |row| {
                let message: i64 = row.get(0)?;
                let give_up_at = row.get::<_, Option<i64>>(1)?.map(Timestamp::from_millis);
                // What is to be delivered later has not begun to wait for its turn.
                let untried = row.get::<_, u32>(2)? == 0 && row.get::<_, i64>(4)? <= now.as_millis();
                let queued_at =
                    row.get::<_, Option<i64>>(3)?.map_or_else(|| time_of_key(message), Timestamp::from_millis);
                let is_over =
                    give_up_at.is_some_and(|give_up_at| give_up_at <= now) || untried && queued_at < untried_before;
                Ok((message, is_over))
            },
        )?
        .collect::<rusqlite::Result<_>>()?;
    for (message, _) in looked_at.iter().filter(|(_, is_over)| *is_over) {
        let id = DeliveryId { endpoint, message: MessageKey::new(*message), trigger: Trigger::Scheduled };
        end_waiting(batch, id, DeathReason::Expired, now)?;
    }
    Ok(looked_at.last().filter(|_| looked_at.len() == STEP).map(|(last, _)| MessageKey::new(*last)))
}
