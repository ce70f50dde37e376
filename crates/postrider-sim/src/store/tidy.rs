//! Forgetting what is past its time, a bounded piece at a call.
//!
//! The real stores forget whole pieces of history. Here each message goes by itself, once it is old enough and nothing of it
//! is still to be sent.

use super::{
    batch::{Batch, Kind},
    callers,
    database::{Grain, oldest_handed},
    refused,
    tables::{Standing, Tables},
    tallies,
};
use bytes::Bytes;
use postrider_engine::{
    AppKey, AttemptKey, EndpointKey, MessageKey, Timestamp, Trigger,
    keys::{first_key_at, time_of_key},
};
use postrider_store::{DeadKey, Retention, TaskKey, TaskStatus};

/// Rows forgotten in one go.
const SLICE: usize = 2_000;

/// Messages forgotten in one go.
fn look(grain: Grain) -> usize {
    match grain {
        Grain::Usual => 500,
        Grain::Fine => 3,
    }
}

pub fn tidy(batch: &mut Batch<'_>, now: Timestamp, retention: Retention) -> bool {
    let (payloads_before, attempts_before) = (now.minus(retention.payloads), now.minus(retention.attempts));
    let dead_before = now.minus(retention.dead_letters);
    // A dead letter is nothing without its message.
    let all_before = payloads_before.min(attempts_before).min(dead_before);
    let mut more = expire_payloads(batch.tables, now);
    more |= forget_answers(batch.tables, now.minus(retention.idempotency));
    more |= callers::forget_revocations(batch.tables, now, SLICE);
    tallies::forget(batch.tables, now);
    refused::forget(batch.tables, now);
    more |= retire_dead_letters(batch.tables, dead_before);
    more |= forget_tasks(batch.tables, attempts_before);
    // Where they are kept as long as the rest, they go with it.
    if payloads_before > all_before {
        more |= forget_payloads(batch, payloads_before);
    }
    if attempts_before > all_before {
        forget_attempts(batch.tables, attempts_before);
    }
    forget_counters(batch, all_before);
    more |= forget_messages(batch, all_before);
    more
}

/// Removes a payload for good. False if there is no such message.
pub fn expunge(tables: &mut Tables, app: AppKey, message: MessageKey) -> bool {
    let found = tables.messages.get_mut(&message).filter(|row| row.app == app);
    found.map(|row| row.forget_payload()).is_some()
}

pub fn expunge_attempt(tables: &mut Tables, message: MessageKey, key: AttemptKey) -> bool {
    let attempts = tables.messages.get_mut(&message).into_iter().flat_map(|row| &mut row.attempts);
    let found = attempts.into_iter().find(|attempt| attempt.key == key);
    found
        .map(|attempt| {
            attempt.expunged = true;
            (attempt.record.response, attempt.record.headers) = (Bytes::new(), Bytes::new());
        })
        .is_some()
}

/// Forgets the payloads whose senders gave them a time of their own, whether something waits for them or not.
fn expire_payloads(tables: &mut Tables, now: Timestamp) -> bool {
    let expired = tables.payload_expiry.iter().take_while(|(at, _)| *at <= now);
    let expired: Vec<(Timestamp, MessageKey)> = expired.take(SLICE).copied().collect();
    for (at, message) in &expired {
        tables.payload_expiry.remove(&(*at, *message));
        if let Some(row) = tables.messages.get_mut(message) {
            row.forget_payload();
        }
    }
    expired.len() == SLICE
}

fn forget_answers(tables: &mut Tables, before: Timestamp) -> bool {
    let old = tables.answers.iter().filter(|(_, row)| row.at < before).take(SLICE);
    let old: Vec<[u8; 16]> = old.map(|(key, _)| *key).collect();
    for key in &old {
        tables.answers.remove(key);
    }
    old.len() == SLICE
}

fn retire_dead_letters(tables: &mut Tables, before: Timestamp) -> bool {
    let is_old = |key: &DeadKey| tables.dead[&(key.endpoint, key.message)].at < before;
    let old = tables.dead_listed.iter().map(|(_, key)| *key).filter(is_old).take(SLICE);
    let old: Vec<DeadKey> = old.collect();
    for key in &old {
        tables.unlist(key.endpoint, key.message, Standing::Retired);
    }
    old.len() == SLICE
}

fn forget_tasks(tables: &mut Tables, before: Timestamp) -> bool {
    let ended = tables.tasks.range(..TaskKey(first_key_at(before)));
    let ended = ended.filter(|(_, row)| row.task.status != TaskStatus::Running && row.task.updated_at < before);
    let ended: Vec<TaskKey> = ended.take(SLICE).map(|(key, _)| *key).collect();
    for key in &ended {
        tables.tasks.remove(key);
    }
    ended.len() == SLICE
}

fn forget_payloads(batch: &mut Batch<'_>, before: Timestamp) -> bool {
    let old = batch.tables.messages.range(..MessageKey::new(first_key_at(before)));
    let old = old.filter(|(_, row)| row.letter.payload.is_some()).map(|(key, _)| *key);
    let old: Vec<MessageKey> = old.filter(|message| !is_awaited(batch, *message)).take(look(batch.grain)).collect();
    for message in &old {
        if let Some(row) = batch.tables.messages.get_mut(message) {
            row.forget_payload();
        }
    }
    old.len() == look(batch.grain)
}

/// Class, rule and status stay: how the delivery stands rests on them.
fn forget_attempts(tables: &mut Tables, before: Timestamp) {
    let end = first_key_at(before);
    for (_, row) in tables.messages.range_mut(..MessageKey::new(end)) {
        let old = row.attempts.iter_mut().take_while(|attempt| attempt.key.raw() < end);
        for attempt in old.filter(|attempt| !attempt.expunged || !attempt.record.url.is_empty()) {
            attempt.expunged = true;
            (attempt.record.response, attempt.record.headers) = (Bytes::new(), Bytes::new());
            attempt.record.url = "".into();
        }
    }
}

/// Whether a delivery of the message is still to be sent.
fn is_awaited(batch: &Batch<'_>, message: MessageKey) -> bool {
    let Some(row) = batch.tables.messages.get(&message) else { return false };
    let waits = |endpoint: &EndpointKey| {
        let lane = batch.tables.lanes.get(endpoint);
        batch.is_handed(message, *endpoint)
            || lane.is_some_and(|lane| {
                [Trigger::Scheduled, Trigger::Manual].iter().any(|trigger| lane.get(message, *trigger).is_some())
            })
    };
    row.owed.iter().any(waits)
}

/// Forgets counters that nothing has used for as long as anything is kept. A message that still waits keeps its counter, or
/// the next one would get the same number.
fn forget_counters(batch: &mut Batch<'_>, before: Timestamp) {
    let oldest = match batch.kind {
        Kind::Alone => batch.memory.outstanding.oldest().map(MessageKey::raw),
        Kind::Many => oldest_handed(batch.cluster),
    };
    if oldest.is_some_and(|oldest| time_of_key(oldest) < before) {
        return;
    }
    let Tables { counters, lanes, .. } = &mut *batch.tables;
    counters.retain(|(endpoint, order), counter| {
        let waits = lanes.get(endpoint).is_some_and(|lane| order.is_none_or(|order| lane.run(order).is_some()));
        counter.used_at >= before || waits
    });
}

fn forget_messages(batch: &mut Batch<'_>, before: Timestamp) -> bool {
    let old = batch.tables.messages.range(..MessageKey::new(first_key_at(before))).map(|(key, _)| *key);
    let old: Vec<MessageKey> = old.filter(|message| !is_awaited(batch, *message)).take(look(batch.grain)).collect();
    for message in &old {
        forget_message(batch.tables, *message);
    }
    old.len() == look(batch.grain)
}

fn forget_message(tables: &mut Tables, message: MessageKey) {
    let Some(row) = tables.messages.remove(&message) else { return };
    if let Some(event_id) = &row.content.event_id
        && let Some(of_app) = tables.event_ids.get_mut(&row.app)
        && of_app.get(event_id) == Some(&message)
    {
        of_app.remove(event_id);
    }
    if let Some(idempotency) = row.idempotency
        && tables.repeats.get(&idempotency.key).is_some_and(|seen| seen.message == message)
    {
        tables.repeats.remove(&idempotency.key);
    }
    if let Some(at) = row.expires_at {
        tables.payload_expiry.remove(&(at, message));
    }
    for endpoint in row.owed.iter() {
        if let Some(dead) = tables.dead.remove(&(*endpoint, message)) {
            tables.dead_listed.remove(&(dead.app, DeadKey { message, endpoint: *endpoint }));
        }
    }
}
