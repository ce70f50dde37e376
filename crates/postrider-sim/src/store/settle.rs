//! Writing down what became of deliveries.

use super::{batch::Batch, journal, tables::Cycle};
use postrider_engine::{
    AttemptKey, DeliveryId, EndpointKey, OrderKey, Timestamp, Trigger,
    planted::{Bug, planted},
    policy::{DisableReason, Health, Next},
};
use postrider_store::{Attempt, AttemptRecord, Cancelled, Committed, Disabled, EndpointChange, Settlement};

pub fn settle(batch: &mut Batch<'_>, settlements: &[Settlement]) {
    let tenure = batch.tenure();
    batch.tables.gallery.settling = true;
    for settlement in settlements {
        batch.tables.gallery.tell(&super::witness::Seen::Settled { tenure, settlement });
        settle_one(batch, settlement);
        journal::enter_outcome(batch.tables, settlement);
    }
    batch.tables.gallery.settling = false;
}

fn settle_one(batch: &mut Batch<'_>, settlement: &Settlement) {
    let Settlement { id, handed, cycle, progress, at, .. } = *settlement;
    let (message, endpoint) = (id.message, id.endpoint);
    // Seen as long as its own attempt is not there yet.
    let ends_handed =
        id.trigger == Trigger::Manual && settlement.next == Next::Delivered && batch.is_handed(message, endpoint);
    if let Some(attempt) = &settlement.attempt {
        record_attempt(batch, settlement, attempt);
    }
    // A try takes its time. What ended the delivery meanwhile also took away its row; a failure that comes in afterwards
    // must not bring it back, nor may it touch a new cycle that was begun since.
    match settlement.next {
        Next::Delivered => {
            let ended_before = match handed {
                true => batch.was_ended(message, endpoint),
                false if planted(Bug::EndedRowStays) => batch.tables.waiting(id).is_none(),
                false => batch.tables.remove_waiting(id).is_none(),
            };
            if ended_before {
                // It may have been put on its way again since; there is no need for that now.
                batch.tables.remove_waiting(id);
                batch.tables.revive(endpoint, message);
            }
            match id.trigger {
                Trigger::Manual => end_schedule(batch, id, ends_handed),
                Trigger::Scheduled => {}
            }
        }
        Next::Retry { due, .. } | Next::Postponed { due } => match handed {
            true if batch.is_owed(message, endpoint) || planted(Bug::DeliveredUndone) => {
                batch.tables.wait_first(id, settlement.order, cycle, (due, progress));
            }
            true => {}
            false if planted(Bug::DeliveredUndone) => {
                batch.tables.wait_first(id, settlement.order, cycle, (due, progress));
            }
            false => batch.tables.wait_again(id, cycle, (due, progress)),
        },
        Next::Dead(reason) => {
            let ends_now = match handed {
                true => batch.is_owed(message, endpoint),
                // What arrived once and was put on its way again stays delivered.
                false => {
                    batch.tables.waiting(id).is_some_and(|row| row.cycle == cycle)
                        && batch.tables.remove_waiting(id).is_some()
                        && !batch.tables.has_arrived(message, endpoint)
                }
            };
            if ends_now {
                batch.tables.bury(id, reason, at, cycle);
            }
        }
        Next::Nothing => {
            batch.tables.remove_waiting(id);
        }
    }
    if handed {
        batch.land(message, endpoint);
    }
    if let Some(health) = settlement.health {
        put_health(batch, endpoint, health);
    }
    if let Some(why) = settlement.disable {
        let failing_since = settlement.health.and_then(|health| health.failing_since).map(Timestamp::as_millis);
        disable(batch, endpoint, why, failing_since, at);
    }
}

/// A resend that arrived ends the delivery's own schedule too: it is there now. Its lane may have the delivery in memory,
/// or hold others back until it ends.
fn end_schedule(batch: &mut Batch<'_>, resend: DeliveryId, was_handed: bool) {
    let DeliveryId { endpoint, message, .. } = resend;
    let waited = batch.tables.remove_waiting(DeliveryId { trigger: Trigger::Scheduled, ..resend }).is_some();
    batch.tables.revive(endpoint, message);
    if was_handed {
        batch.end_handed(message, endpoint);
    }
    if waited || was_handed {
        batch.announce(Committed::Cancelled { endpoint, which: Cancelled::One(message) });
    }
}

fn record_attempt(batch: &mut Batch<'_>, settlement: &Settlement, record: &AttemptRecord) {
    let key = AttemptKey::new(batch.mint(settlement.at));
    // The message may have been forgotten while it was on its way; then its history is gone with it.
    let Some(row) = batch.tables.messages.get_mut(&settlement.id.message) else { return };
    let (next, death) = match settlement.next {
        Next::Retry { due, delay } => (Some((due, delay)), None),
        Next::Dead(reason) => (None, Some(reason)),
        Next::Delivered | Next::Nothing | Next::Postponed { .. } => (None, None),
    };
    let number = settlement.progress.attempts;
    let (id, cycle, record) = (settlement.id, settlement.cycle, record.clone());
    row.attempts.push(Attempt { key, id, cycle, number, record, expunged: false, next, death });
    // Other nodes make keys too, and may have come first with a greater one.
    if let [.., before, last] = &row.attempts[..]
        && before.key > last.key
    {
        row.attempts.sort_by_key(|attempt| attempt.key);
    }
}

/// Gives deliveries that were handed over a row, so that memory can let go of them.
pub fn spill(batch: &mut Batch<'_>, deliveries: &[(DeliveryId, Option<OrderKey>)], due: Timestamp) {
    for (id, order) in deliveries {
        if batch.is_owed(id.message, id.endpoint) {
            batch.tables.start_waiting(*id, *order, due, Cycle::First);
        }
        batch.land(id.message, id.endpoint);
    }
}

/// Only of endpoints that live: what comes in for one that was deleted meanwhile would stay for ever.
fn put_health(batch: &mut Batch<'_>, endpoint: EndpointKey, health: Health) {
    if health == Health::default() {
        batch.tables.healths.remove(&endpoint);
    } else if batch.tables.living_endpoint(endpoint).is_some() {
        batch.tables.healths.insert(endpoint, health);
    }
}

fn disable(
    batch: &mut Batch<'_>,
    endpoint: EndpointKey,
    why: DisableReason,
    failing_since: Option<i64>,
    at: Timestamp,
) {
    let found = batch.tables.endpoints.get_mut(&endpoint).filter(|row| row.deleted_at.is_none());
    let Some(row) = found.filter(|row| row.record.disabled.is_none()) else { return };
    row.record.disabled = Some(Disabled { why, at });
    row.record.version += 1;
    row.record.updated_at = at;
    let app = row.record.app;
    journal::enter_switch(batch.tables, endpoint, EndpointChange::Disabled { failing_since }, at);
    batch.announce(Committed::Settings { app });
}
