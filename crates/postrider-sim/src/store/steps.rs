//! One step of each kind of task: a bounded piece of work in one commit, and how far it came.
//!
//! Replays are slower than live traffic. They put nothing into a lane in which many are due already; the step then does
//! nothing, and whoever drives the task comes again.

use super::{
    batch::Batch,
    cancel::{cancel, is_sendable},
    history::{self, is_dead_wanted},
    tables::{Cycle, DeadRow, MessageRow, Place, Standing, Tables, scheduled},
    witness::Seen,
};
use bytes::Bytes;
use postrider_engine::{AppKey, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger, policy::Breaker};
use postrider_store::{Cancelled, Committed, DeadFilter, DeadKey, DeliveryState, EndpointChange, Keep, ReplayFilter};
use std::{collections::BTreeMap, ops::Bound};

/// Looked at in one step, and so changed at most.
const STEP: usize = 200;

/// Rows of dead letters passed over in one step because they are none any more.
const PASSED_OVER_MAX: usize = 5_000;

/// With so many due in a lane already, a replay waits.
const LANE_DUE_MAX: usize = 200;

/// What a step came to.
pub enum Step {
    /// The lane has to drain first.
    Wait,
    Done {
        reached: i64,
        looked_at: u64,
        changed: u64,
        then: Then,
    },
}

pub enum Then {
    GoOn,
    Finish,
}

impl Step {
    /// There is nothing (more) to be done.
    fn end_at(reached: i64) -> Self {
        Self::Done { reached, looked_at: 0, changed: 0, then: Then::Finish }
    }

    fn looked_through(found: &[MessageKey], cursor: i64, changed: u64) -> Self {
        Self::Done {
            reached: found.last().map_or(cursor, |last| last.raw()),
            looked_at: found.len() as u64,
            changed,
            then: if found.len() == STEP { Then::GoOn } else { Then::Finish },
        }
    }
}

/// What a replay finds at its endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// There is no such endpoint of the application (any more).
    Gone,
    /// Enough is due there already.
    Full,
    Free,
}

fn room(tables: &Tables, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Room {
    let Some(row) = tables.living_endpoint(endpoint).filter(|row| row.record.app == app) else { return Room::Gone };
    // What is due there is held and does not drain: waiting for that would be for ever.
    if row.record.disabled.is_some() {
        return Room::Free;
    }
    // Those behind another of their key do not count: one key that is stuck would hold up the replay of all others.
    let front = tables.lanes.get(&endpoint).map(|lane| lane.of_place(Place::Front));
    let due = front.into_iter().flatten().take_while(|(due, _)| *due <= at);
    if due.take(LANE_DUE_MAX + 1).count() > LANE_DUE_MAX { Room::Full } else { Room::Free }
}

/// A lane whose breaker is open drains no sooner for being waited for, and the other endpoints would wait with it.
fn room_among_others(tables: &Tables, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Room {
    let found = room(tables, app, endpoint, at);
    let is_open = tables.healths.get(&endpoint).is_some_and(|health| matches!(health.breaker, Breaker::Open { .. }));
    if found == Room::Full && is_open { Room::Free } else { found }
}

/// Replays dead letters of one endpoint.
pub fn replay_dead_of(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &DeadFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> Step {
    match room(batch.tables, app, endpoint, at) {
        Room::Gone => return Step::end_at(cursor),
        Room::Full => return Step::Wait,
        Room::Free => {}
    }
    let (mut found, mut reached, mut then, mut passed_over) = (Vec::new(), cursor, Then::Finish, 0);
    let bound = |message: i64| (endpoint, MessageKey::new(message));
    let dead = (cursor < end)
        .then(|| batch.tables.dead.range((Bound::Excluded(bound(cursor)), Bound::Excluded(bound(end)))))
        .into_iter()
        .flatten();
    for ((_, message), row) in dead {
        if found.len() == STEP || passed_over == PASSED_OVER_MAX {
            then = Then::GoOn;
            break;
        }
        reached = message.raw();
        match row.standing {
            Standing::Listed => found.push((DeadKey { message: *message, endpoint }, *row)),
            Standing::Over | Standing::Retired => passed_over += 1,
        }
    }
    let mut changed = 0;
    for (key, row) in &found {
        if is_dead_wanted(batch.tables, filter, *key, row) {
            changed += u64::from(replay_dead(batch.tables, *key, row, at));
        }
    }
    wake_if(changed > 0, batch, endpoint, at);
    Step::Done { reached, looked_at: found.len() as u64, changed, then }
}

/// Replays dead letters of all endpoints of the application.
pub fn replay_dead_of_all(
    batch: &mut Batch<'_>,
    app: AppKey,
    filter: &DeadFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> Step {
    // The cursor tells messages apart, and not endpoints: all letters of a message are looked at in the same step.
    let mut letters: Vec<(DeadKey, DeadRow)> = Vec::new();
    let mut all_found = true;
    for (key, row) in history::listed(batch.tables, app, Some(cursor), Some(end)) {
        if letters.len() >= STEP && letters.last().is_some_and(|(last, _)| last.message != key.message) {
            all_found = false;
            break;
        }
        letters.push((key, *row));
    }
    let mut rooms: BTreeMap<EndpointKey, Room> = BTreeMap::new();
    let (mut reached, mut looked_at, mut changed) = (cursor, 0, 0);
    let mut then = if all_found { Then::Finish } else { Then::GoOn };
    for of_message in letters.chunk_by(|(a, _), (b, _)| a.message == b.message) {
        let mut chosen = Vec::new();
        for (key, row) in of_message {
            if is_dead_wanted(batch.tables, filter, *key, row) {
                let found =
                    rooms.entry(key.endpoint).or_insert_with(|| room_among_others(batch.tables, app, key.endpoint, at));
                chosen.push((*key, row, *found));
            }
        }
        if chosen.iter().any(|(.., found)| *found == Room::Full) {
            if looked_at == 0 {
                return Step::Wait;
            }
            then = Then::GoOn;
            break;
        }
        for (key, row, found) in chosen {
            if found == Room::Free && replay_dead(batch.tables, key, row, at) {
                changed += 1;
                wake_if(true, batch, key.endpoint, at);
            }
        }
        looked_at += of_message.len() as u64;
        reached = of_message[0].0.message.raw();
    }
    Step::Done { reached, looked_at, changed, then }
}

/// False if it can no longer be sent.
fn replay_dead(tables: &mut Tables, key: DeadKey, row: &DeadRow, at: Timestamp) -> bool {
    let can_be_sent = is_sendable(tables, key.message);
    if can_be_sent {
        tables.requeue(scheduled(key.endpoint, key.message), row.cycle.saturating_add(1), at);
    }
    can_be_sent
}

fn wake_if(changed: bool, batch: &mut Batch<'_>, endpoint: EndpointKey, at: Timestamp) {
    if changed {
        batch.announce(Committed::Waiting { endpoint, due: at });
    }
}

/// The messages of an application in an open interval.
pub fn messages_between(
    tables: &Tables,
    app: AppKey,
    low: i64,
    high: i64,
) -> impl Iterator<Item = (MessageKey, &MessageRow)> {
    let span = (Bound::Excluded(MessageKey::new(low)), Bound::Excluded(MessageKey::new(high)));
    let all = (low < high).then(|| tables.messages.range(span)).into_iter().flatten();
    all.filter(move |(_, row)| row.app == app).map(|(key, row)| (*key, row))
}

/// The next ones, as many as a step looks at.
fn next_messages(tables: &Tables, app: AppKey, (low, high): (i64, i64)) -> Vec<MessageKey> {
    messages_between(tables, app, low, high).take(STEP).map(|(key, _)| key).collect()
}

/// Replays what the endpoint was owed, delivered or not.
pub fn replay_owed(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &ReplayFilter,
    span: (i64, i64),
    at: Timestamp,
) -> Step {
    match room(batch.tables, app, endpoint, at) {
        Room::Gone => return Step::end_at(span.0),
        Room::Full => return Step::Wait,
        Room::Free => {}
    }
    let found = next_messages(batch.tables, app, span);
    let mut changed = 0;
    for message in &found {
        if let Some(cycle) = last_cycle_if_wanted(batch, *message, endpoint, filter) {
            batch.tables.requeue(scheduled(endpoint, *message), cycle.saturating_add(1), at);
            changed += 1;
        }
    }
    wake_if(changed > 0, batch, endpoint, at);
    Step::looked_through(&found, span.0, changed)
}

/// The cycle that a delivery ended in, if it has ended and is to be replayed.
fn last_cycle_if_wanted(
    batch: &Batch<'_>,
    message: MessageKey,
    endpoint: EndpointKey,
    filter: &ReplayFilter,
) -> Option<u32> {
    let tables = &batch.tables;
    let row = tables.messages.get(&message)?;
    let content = &row.content;
    let fits = row.letter.payload.is_some()
        && row.owed.contains(&endpoint)
        && (filter.event_types.is_empty() || filter.event_types.contains(&content.event_type))
        && filter.channel.as_ref().is_none_or(|channel| content.channels.contains(channel))
        && filter.tag.as_ref().is_none_or(|tag| content.tags.contains(tag));
    if !fits || batch.is_handed(message, endpoint) || tables.waiting(scheduled(endpoint, message)).is_some() {
        return None;
    }
    let dead = tables.dead.get(&(endpoint, message));
    let state = match dead {
        _ if row.has_arrived_at(endpoint) => history::kind(DeliveryState::Delivered),
        Some(dead) => history::kind(DeliveryState::Dead { at: dead.at, reason: dead.reason }),
        None => history::kind(DeliveryState::Pending { due: None }),
    };
    let status_fits = filter.status_class.is_none_or(|class| history::last_status(row, endpoint) / 100 == class);
    if !status_fits || filter.state.is_some_and(|wanted| wanted != state) {
        return None;
    }
    let on_schedule =
        row.attempts.iter().filter(|tried| tried.id.endpoint == endpoint && tried.id.trigger == Trigger::Scheduled);
    Some(on_schedule.map(|tried| tried.cycle).chain(dead.map(|dead| dead.cycle)).max().unwrap_or(0))
}

/// Every message that the endpoint would get today and was never owed.
pub fn replay_missing(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    (event_types, channels): (Option<&[String]>, Option<&[String]>),
    span: (i64, i64),
    at: Timestamp,
) -> Step {
    match room(batch.tables, app, endpoint, at) {
        Room::Gone => return Step::end_at(span.0),
        Room::Full => return Step::Wait,
        Room::Free => {}
    }
    let found = next_messages(batch.tables, app, span);
    let mut changed = 0;
    for message in &found {
        let Some(row) = batch.tables.messages.get_mut(message) else { continue };
        let fits = row.letter.payload.is_some()
            && !row.owed.contains(&endpoint)
            && event_types.is_none_or(|types| types.contains(&row.content.event_type))
            && channels.is_none_or(|channels| row.content.channels.iter().any(|on| channels.contains(on)));
        if !fits {
            continue;
        }
        row.owed = row.owed.iter().copied().chain([endpoint]).collect();
        let (id, order) = (scheduled(endpoint, *message), row.letter.order);
        // Its first cycle, which has waited since now only, however old the message is.
        batch.tables.start_waiting(id, order, at, Cycle::Again { number: 0, queued_at: at });
        batch.tables.gallery.tell(&Seen::Queued { id, cycle: 0, due: at });
        changed += 1;
    }
    wake_if(changed > 0, batch, endpoint, at);
    Step::looked_through(&found, span.0, changed)
}

/// Which of those that wait are cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sift {
    All,
    /// Those with a newer one of the same ordering key.
    Superseded,
}

/// Cancels what waits for an endpoint in the open interval of messages. What has been handed over and has no row is
/// ended in the first step, so that nothing of it is sent any more.
pub fn sift(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    which: Sift,
    (cursor, end): (i64, i64),
    begins: bool,
    at: Timestamp,
) -> Step {
    if room(batch.tables, app, endpoint, at) == Room::Gone {
        return Step::end_at(cursor);
    }
    let lane = batch.tables.lanes.get(&endpoint);
    let rows = lane.into_iter().flat_map(|lane| lane.scheduled_past(Some(MessageKey::new(cursor))));
    let mut looked_at: Vec<(MessageKey, Option<OrderKey>)> = rows
        .take_while(|(message, _)| message.raw() < end)
        .take(STEP)
        .map(|(message, row)| (message, row.order))
        .collect();
    let reached = looked_at.last().map_or(cursor, |(last, _)| last.raw());
    let then = if looked_at.len() == STEP { Then::GoOn } else { Then::Finish };

    let mut newest_handed: BTreeMap<OrderKey, MessageKey> = BTreeMap::new();
    if begins || which == Sift::Superseded {
        for message in batch.handed_to(endpoint) {
            let order = batch.tables.order_of(message);
            newest_handed.extend(order.map(|order| (order, message)));
            if begins && message.raw() < end {
                looked_at.push((message, order));
            }
        }
    }

    let mut changed = 0;
    for (message, order) in &looked_at {
        let is_chosen = match (which, order) {
            (Sift::All, _) => true,
            (Sift::Superseded, None) => false,
            (Sift::Superseded, Some(order)) => {
                newest_handed.get(order).is_some_and(|newest| newest > message)
                    || newer_waits(batch.tables, endpoint, *order, *message)
            }
        };
        if is_chosen && cancel(batch, endpoint, *message, at) {
            changed += 1;
            if which == Sift::Superseded {
                batch.announce(Committed::Cancelled { endpoint, which: Cancelled::One(*message) });
            }
        }
    }
    if which == Sift::All && (begins || changed > 0) {
        batch.announce(Committed::Cancelled { endpoint, which: Cancelled::Before(MessageKey::new(end)) });
    }
    match (which, &then) {
        // The lane let go of all before the end at every step, also of what was put on its way again behind the cursor.
        // Not sooner: it would send what the next step is to cancel.
        (Sift::All, Then::Finish) => batch.announce(Committed::Waiting { endpoint, due: at }),
        (Sift::All, Then::GoOn) | (Sift::Superseded, _) => {}
    }
    Step::Done { reached, looked_at: looked_at.len() as u64, changed, then }
}

fn newer_waits(tables: &Tables, endpoint: EndpointKey, order: OrderKey, message: MessageKey) -> bool {
    let run = tables.lanes.get(&endpoint).and_then(|lane| lane.run(order));
    run.and_then(|run| run.last()).is_some_and(|last| *last > message)
}

pub fn resume(
    batch: &mut Batch<'_>,
    lane: (AppKey, EndpointKey),
    keep: Keep,
    span: (i64, i64),
    begins: bool,
    at: Timestamp,
) -> Step {
    let step = match keep {
        Keep::All => Step::end_at(span.0),
        Keep::Since(_) | Keep::None => sift(batch, lane, Sift::All, span, begins, at),
        Keep::NewestPerKey => sift(batch, lane, Sift::Superseded, span, begins, at),
    };
    if let Step::Done { then: Then::Finish, .. } = step {
        enable(batch, lane, at);
    }
    step
}

fn enable(batch: &mut Batch<'_>, (app, endpoint): (AppKey, EndpointKey), at: Timestamp) {
    let found = batch.tables.endpoints.get_mut(&endpoint).filter(|row| row.deleted_at.is_none());
    let Some(row) = found.filter(|row| row.record.app == app && row.record.disabled.is_some()) else { return };
    row.record.disabled = None;
    row.record.version += 1;
    row.record.updated_at = at;
    batch.tables.healths.remove(&endpoint);
    super::journal::enter_switch(batch.tables, endpoint, EndpointChange::Enabled, at);
    batch.announce(Committed::Settings { app });
    batch.announce(Committed::Health { endpoint });
    batch.announce(Committed::Waiting { endpoint, due: at });
}

/// Removes the contents of messages and of the answers to them.
pub fn purge(tables: &mut Tables, app: AppKey, span: (i64, i64)) -> Step {
    let found = next_messages(tables, app, span);
    let mut changed = 0;
    for message in &found {
        let Some(row) = tables.messages.get_mut(message) else { continue };
        let mut is_changed = row.letter.payload.is_some();
        row.forget_payload();
        for attempt in row.attempts.iter_mut().filter(|attempt| !attempt.expunged) {
            attempt.expunged = true;
            (attempt.record.response, attempt.record.headers) = (Bytes::new(), Bytes::new());
            is_changed = true;
        }
        changed += u64::from(is_changed);
    }
    Step::looked_through(&found, span.0, changed)
}
