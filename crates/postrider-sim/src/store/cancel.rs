//! Ending deliveries before they have arrived: on request, or because they have waited too long.
//!
//! What is cancelled becomes a dead letter like any other. A try that is on the wire is not called back: if it arrives after
//! all, the delivery counts as delivered.

use super::{
    batch::Batch,
    journal,
    settings::Put,
    tables::{Tables, scheduled},
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
    keys::{first_key_at, time_of_key},
    policy::DeathReason,
};
use postrider_store::{Backlog, Cancelled, Committed, DeadKey, PutError};
use std::{collections::BTreeSet, sync::Arc};

/// Deliveries of deleted endpoints moved to the dead letters in one go.
const BURY_STEP: usize = 500;

/// Rows that are looked at in one go for those that have waited too long.
const EXPIRE_STEP: usize = 500;

pub fn cancel_message(
    batch: &mut Batch<'_>,
    app: AppKey,
    message: MessageKey,
    endpoint: Option<EndpointKey>,
    at: Timestamp,
) -> u64 {
    let Some(row) = batch.tables.messages.get(&message).filter(|row| row.app == app) else { return 0 };
    let mut cancelled = 0;
    let owed = Arc::clone(&row.owed);
    for owed_to in owed.iter().copied() {
        if endpoint.is_none_or(|endpoint| endpoint == owed_to) && cancel(batch, owed_to, message, at) {
            batch.announce(Committed::Cancelled { endpoint: owed_to, which: Cancelled::One(message) });
            cancelled += 1;
        }
    }
    cancelled
}

/// Ends one delivery, if it has not ended. Telling those who hold it in memory is up to the caller.
pub fn cancel(batch: &mut Batch<'_>, endpoint: EndpointKey, message: MessageKey, at: Timestamp) -> bool {
    let id = scheduled(endpoint, message);
    if end_waiting(batch.tables, id, DeathReason::Cancelled, at) {
        return true;
    }
    if !batch.is_handed(message, endpoint) || batch.tables.has_arrived(message, endpoint) {
        return false;
    }
    batch.tables.bury(id, DeathReason::Cancelled, at, 0);
    // Keys tell the time to whoever remembers for a while that it was ended.
    batch.mint(at);
    batch.end_handed(message, endpoint);
    true
}

/// Moves what waits in a row to the dead letters. False if nothing does.
pub fn end_waiting(tables: &mut Tables, id: DeliveryId, reason: DeathReason, at: Timestamp) -> bool {
    let Some(row) = tables.remove_waiting(id) else { return false };
    // What arrived once and was to go out again stays delivered.
    if !tables.has_arrived(id.message, id.endpoint) {
        tables.bury(id, reason, at, row.cycle);
    }
    true
}

/// `handed`: the messages that have been handed over to the endpoint's lane and have no row.
pub fn backlog(tables: &Tables, endpoint: EndpointKey, since: Option<Timestamp>, handed: &[MessageKey]) -> Backlog {
    let kept_from = since.map(first_key_at);
    let mut backlog = Backlog { since: kept_from.map(|_| 0), ..Backlog::default() };
    let mut keys = BTreeSet::new();
    let rows = tables.lanes.get(&endpoint).into_iter().flat_map(|lane| lane.scheduled_past(None));
    let rows = rows.map(|(message, row)| (message, row.order));
    let handed = handed.iter().map(|message| (*message, tables.order_of(*message)));
    for (message, order) in rows.chain(handed) {
        backlog.waiting += 1;
        let accepted_at = time_of_key(message.raw());
        backlog.oldest = Some(backlog.oldest.map_or(accepted_at, |oldest| oldest.min(accepted_at)));
        if let (Some(since), Some(from)) = (&mut backlog.since, kept_from) {
            *since += u64::from(message.raw() >= from);
        }
        backlog.newest_per_key += order.map_or(1, |order| u64::from(keys.insert(order)));
    }
    backlog
}

/// Moves what waits for a deleted endpoint to the dead letters, a step at a time.
pub fn bury_step(batch: &mut Batch<'_>, at: Timestamp) -> bool {
    let Some(endpoint) = batch.tables.unburied.first().copied() else { return false };
    let lane = batch.tables.lanes.get(&endpoint);
    let rows = lane.into_iter().flat_map(|lane| lane.iter()).take(BURY_STEP);
    let waiting: Vec<DeliveryId> =
        rows.map(|(message, trigger, _)| DeliveryId { endpoint, message, trigger }).collect();
    for id in &waiting {
        match id.trigger {
            Trigger::Scheduled => {
                end_waiting(batch.tables, *id, DeathReason::EndpointGone, at);
            }
            // No delivery of its own: what it was to repeat may have arrived, or is dead for another reason.
            Trigger::Manual => {
                batch.tables.remove_waiting(*id);
            }
        }
    }
    if waiting.len() < BURY_STEP {
        batch.tables.counters.retain(|(counted, _), _| *counted != endpoint);
        batch.tables.unburied.remove(&endpoint);
    }
    true
}

/// Ends what has waited too long in a lane that is parked, and says how far it came.
pub fn expire(
    tables: &mut Tables,
    endpoint: EndpointKey,
    from: Option<MessageKey>,
    untried_before: Timestamp,
    now: Timestamp,
) -> Option<MessageKey> {
    let lane = tables.lanes.get(&endpoint)?;
    let looked_at: Vec<(MessageKey, bool, Option<u32>)> = lane
        .scheduled_past(from)
        .take(EXPIRE_STEP)
        .map(|(message, row)| {
            // What is to be delivered later has not begun to wait for its turn.
            let untried = row.progress.attempts == 0 && row.due <= now;
            let is_over = row.progress.give_up_at.is_some_and(|give_up_at| give_up_at <= now)
                || untried && row.queued_at(message) < untried_before;
            (message, is_over, (row.progress.attempts > 0).then_some(row.cycle))
        })
        .collect();
    for (message, _, tried_in) in looked_at.iter().filter(|(_, is_over, _)| *is_over) {
        let id = scheduled(endpoint, *message);
        end_waiting(tables, id, DeathReason::Expired, now);
        if let Some(cycle) = tried_in {
            journal::enter_expired(tables, id, *cycle, now);
        }
    }
    looked_at.last().filter(|_| looked_at.len() == EXPIRE_STEP).map(|(message, ..)| *message)
}

/// Puts one dead letter on its way again. Refused if it is none, or if it can no longer be sent: its endpoint or its content
/// is gone.
pub fn replay(batch: &mut Batch<'_>, app: AppKey, key: DeadKey, at: Timestamp) -> Put {
    let DeadKey { message, endpoint } = key;
    if !batch.tables.dead_listed.contains(&(app, key)) || batch.tables.living_endpoint(endpoint).is_none() {
        return Err(PutError::Changed);
    }
    let cycle = batch.tables.dead[&(endpoint, message)].cycle;
    if !is_sendable(batch.tables, message) {
        return Err(PutError::Changed);
    }
    batch.tables.requeue(scheduled(endpoint, message), cycle.saturating_add(1), at);
    batch.announce(Committed::Waiting { endpoint, due: at });
    Ok(())
}

pub fn is_sendable(tables: &Tables, message: MessageKey) -> bool {
    tables.messages.get(&message).is_some_and(|row| row.letter.payload.is_some())
}
