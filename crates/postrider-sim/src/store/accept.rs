//! Accepting a message: one row, with the payload and the list of endpoints it is owed to.
//!
//! Where this process serves the application, a delivery gets a row of its own only when its first attempt has an outcome,
//! or when it must wait. Otherwise it gets one at once and its owner is told, or the message is passed on to its owner.

use super::{
    batch::{Batch, Kind},
    cluster::{Event, To},
    tables::{Counter, Cycle, MessageRow, Seen, scheduled},
};
use postrider_engine::{
    EndpointKey, MessageKey, OrderKey, Timestamp,
    keys::{first_key_at, time_of_key},
    planted::{Bug, planted},
};
use postrider_store::{
    AcceptError, Accepted, Committed, Content, IDEMPOTENCY_MEMORY, Idempotency, Letter, NewMessage, Shard,
};
use std::sync::Arc;

/// `key`: one that was made before the transaction began; where there is one process it is made here.
pub fn accept(batch: &mut Batch<'_>, key: Option<i64>, mut message: NewMessage) -> Result<Accepted, AcceptError> {
    if let Some(idempotency) = &message.idempotency
        && let Some(earlier) = accepted_before(batch, idempotency, message.at)
    {
        let is_same = earlier.request == idempotency.request || planted(Bug::KeyReuseAccepted);
        return if idempotency.chosen && !is_same {
            Err(AcceptError::KeyReused)
        } else {
            Ok(Accepted::Before(earlier.message))
        };
    }
    if let Some(event_id) = &message.content.event_id
        && batch.tables.event_ids.get(&message.app).is_some_and(|of_app| of_app.contains_key(event_id))
    {
        return Err(AcceptError::EventIdTaken);
    }
    if batch.kind == Kind::Many
        && let Some(read_at) = message.generation
        && batch.tables.living_application(message.app).is_none_or(|row| row.generation != read_at)
    {
        return Err(AcceptError::Outdated);
    }
    if planted(Bug::FanOutCutShort) {
        message.owed.pop();
    }
    let order = message.content.ordering_key.as_deref().map(OrderKey::of);
    let key = key_for(batch, key, &message, order);
    let (sequences, behind) = count(batch, key, &message, order);
    let letter = insert(batch, key, order, sequences, &message);
    batch.tables.gallery.tell(&super::witness::Seen::Accepted { message: key, new: &message, order });
    hand_out(batch, letter, message, &behind);
    Ok(Accepted::Now(key))
}

fn accepted_before(batch: &Batch<'_>, idempotency: &Idempotency, at: Timestamp) -> Option<Seen> {
    let remembered_from = first_key_at(at.minus(IDEMPOTENCY_MEMORY));
    let seen = batch.tables.repeats.get(&idempotency.key).copied();
    seen.filter(|seen| seen.message.raw() >= remembered_from)
}

/// Greater than whatever counts it has seen, and than what may not be used any more: other nodes make keys too.
fn key_for(batch: &mut Batch<'_>, made: Option<i64>, message: &NewMessage, order: Option<OrderKey>) -> MessageKey {
    let Some(made) = made else { return MessageKey::new(batch.mint(message.at)) };
    let counters = message.owed.iter().filter_map(|endpoint| counter(message, *endpoint, order));
    let last_keys = counters.filter_map(|counter| Some(batch.tables.counters.get(&counter)?.last_key));
    let used = last_keys.max().unwrap_or(0).max(batch.tables.floor);
    if made > used {
        return MessageKey::new(made);
    }
    batch.memory.minter.catch_up(used);
    MessageKey::new(batch.mint(message.at))
}

/// What counts a message at an endpoint: all FIFO deliveries of an endpoint are counted together, the others by their key.
fn counter(
    message: &NewMessage,
    endpoint: EndpointKey,
    order: Option<OrderKey>,
) -> Option<(EndpointKey, Option<OrderKey>)> {
    if message.fifo.contains(&endpoint) { Some((endpoint, None)) } else { order.map(|order| (endpoint, Some(order))) }
}

/// Which number the message has at each endpoint that counts it, and the endpoints at which something of its run waits
/// that another node put there: this one may not have heard of it yet, and what comes now must not overtake it.
fn count(
    batch: &mut Batch<'_>,
    key: MessageKey,
    message: &NewMessage,
    order: Option<OrderKey>,
) -> (Vec<(EndpointKey, u64)>, Vec<EndpointKey>) {
    let (mut sequences, mut behind) = (Vec::new(), Vec::new());
    let me = batch.tenure().0;
    // What it accepts for lanes that it does not serve yet it hears of when it does, and not at once: like another's.
    let from = match batch.kind {
        Kind::Alone => me,
        Kind::Many if batch.memory.standing.owned.has_lanes_of(message.app) => me,
        Kind::Many => NOBODY,
    };
    for endpoint in &message.owed {
        let Some(counter) = counter(message, *endpoint, order) else { continue };
        let fresh = Counter { last: 0, last_key: 0, last_node: me, used_at: message.at };
        let counted = batch.tables.counters.entry(counter).or_insert(fresh);
        let is_foreign = counted.last_node != me;
        *counted = Counter { last: counted.last + 1, last_key: key.raw(), last_node: from, used_at: message.at };
        sequences.push((*endpoint, counted.last));
        if is_foreign && let Some(lane) = batch.tables.lanes.get(endpoint) {
            let waits = counter.1.is_none_or(|order| lane.run(order).is_some());
            if waits {
                behind.push(*endpoint);
            }
        }
    }
    (sequences, behind)
}

/// No node has this number.
const NOBODY: i64 = 0;

fn insert(
    batch: &mut Batch<'_>,
    key: MessageKey,
    order: Option<OrderKey>,
    sequences: Vec<(EndpointKey, u64)>,
    message: &NewMessage,
) -> Arc<Letter> {
    let NewMessage { app, content, payload_expires_at, owed, idempotency, trace, .. } = message;
    let letter = Arc::new(Letter {
        message: key,
        app: *app,
        event_type: content.event_type.clone(),
        content_type: content.content_type.clone(),
        payload: Some(content.payload.clone()),
        accepted_at: time_of_key(key.raw()),
        order,
        sequences,
        trace: trace.clone(),
        headers: content.received.clone().map(|received| received.passed_on).unwrap_or_default(),
    });
    let row = MessageRow {
        app: *app,
        content: Content { payload: bytes::Bytes::new(), ..content.clone() },
        letter: Arc::clone(&letter),
        owed: owed.as_slice().into(),
        expires_at: *payload_expires_at,
        idempotency: *idempotency,
        attempts: Vec::new(),
    };
    if let Some(idempotency) = idempotency {
        batch.tables.repeats.insert(idempotency.key, Seen { message: key, request: idempotency.request });
    }
    if let Some(event_id) = &content.event_id {
        batch.tables.event_ids.entry(*app).or_default().insert(event_id.clone(), key);
    }
    if let Some(at) = payload_expires_at {
        batch.tables.payload_expiry.insert((*at, key));
    }
    batch.tables.messages.insert(key, row);
    letter
}

fn hand_out(batch: &mut Batch<'_>, letter: Arc<Letter>, message: NewMessage, behind: &[EndpointKey]) {
    let (key, order, shard) = (letter.message, letter.order, Shard::of(message.app));
    let later = message.content.deliver_at.filter(|due| *due > message.at);
    let is_ours = match batch.kind {
        Kind::Alone => true,
        Kind::Many => batch.memory.standing.owned.contains(shard),
    };
    // What an order binds gets a row: by its rows whoever accepts the next of a run knows what that must not overtake.
    let is_unbound = |endpoint: &EndpointKey| counter(&message, *endpoint, order).is_none();
    let is_passed_on = !is_ours
        && later.is_none()
        && message.owed.iter().any(is_unbound)
        && batch.cluster.pass_on(shard, key, &mut batch.written.told);
    let kept = message.owed.iter().copied().filter(|endpoint| !(is_passed_on && is_unbound(endpoint)));
    let waits = |endpoint: &EndpointKey| later.is_some() || !is_ours || behind.contains(endpoint);
    let (waiting, handed): (Vec<EndpointKey>, Vec<EndpointKey>) = kept.partition(waits);
    for endpoint in waiting {
        let (due, cycle) = match later {
            // How long it may wait untried counts from when it was wanted, not from when it was handed in.
            Some(due) => (due, Cycle::Again { number: 0, queued_at: due }),
            // The key is for order: it may be ahead of the time.
            None => (message.at, Cycle::First),
        };
        batch.tables.start_waiting(scheduled(endpoint, key), order, due, cycle);
        let to = match batch.kind {
            Kind::Alone => To::Here,
            Kind::Many => To::Owner(shard),
        };
        batch.written.events.push(Event { to, what: Committed::Waiting { endpoint, due } });
    }
    for endpoint in handed.iter().filter(|_| planted(Bug::DoubleFanOut)) {
        batch.tables.start_waiting(scheduled(*endpoint, key), order, message.at, Cycle::First);
    }
    if !handed.is_empty() {
        batch.hand_over(key, handed.clone());
        batch.written.events.push(Event { to: To::Here, what: Committed::Message { letter, owed: handed } });
    }
}
