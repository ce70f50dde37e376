//! One step of each kind of task: a bounded piece of work in one commit, and how far it came.
//!
//! Replays are slower than live traffic. They put nothing into a lane in which many are due already; the step then does
//! nothing, and whoever drives the task comes again.

use super::{
    accept::{pack, unpack},
    cancel::{cancel, is_delivered, order_of_message},
    dead::{Dead, begin_again, is_wanted, last_status, order_if_sendable},
    health, journal, listing,
    pieces::Piece,
    settle::{Cycle, start_waiting},
    tidy,
    writer::Batch,
};
use crate::{
    Cancelled, Committed, DeadFilter, DeadKey, EndpointChange, EndpointHappened, Keep, Order, ReplayFilter, StateKind,
    rows::{
        codes::{Place, death_of, trigger_code},
        extra::Extra,
        from_json,
        paging::Span,
    },
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    policy::{Breaker, DeathReason},
};
use rusqlite::Connection;
use std::{collections::BTreeMap, ops::ControlFlow};

/// Looked at in one step, and so changed at most.
const STEP: usize = 200;

/// Rows of dead letters passed over in one step because they are none any more.
const PASSED_OVER_MAX: usize = 5_000;

/// With so many due in a lane already, a replay waits.
const LANE_DUE_MAX: u64 = 200;

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

fn room(batch: &Batch<'_>, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> rusqlite::Result<Room> {
    let disabled: Option<bool> = super::optional(
        batch
            .transaction
            .prepare_cached(
                "SELECT disabled_why IS NOT NULL FROM endpoint WHERE key = ?1 AND app = ?2 AND deleted_at IS NULL",
            )?
            .query_row((endpoint.raw(), app.raw()), |row| row.get(0)),
    )?;
    match disabled {
        None => return Ok(Room::Gone),
        // What is due there is held and does not drain: waiting for that would be for ever.
        Some(true) => return Ok(Room::Free),
        Some(false) => {}
    }
    // Those behind another of their key do not count: one key that is stuck would hold up the replay of all others.
    let due: u64 = batch
        .transaction
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE endpoint = ?1 AND place = ?2 AND due <= ?3 LIMIT ?4)",
        )?
        .query_row((endpoint.raw(), Place::Front.code(), at.as_millis(), LANE_DUE_MAX + 1), |row| row.get(0))?;
    Ok(if due > LANE_DUE_MAX { Room::Full } else { Room::Free })
}

/// Replays dead letters of one endpoint.
pub fn replay_dead_of(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &DeadFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> rusqlite::Result<Step> {
    match room(batch, app, endpoint, at)? {
        Room::Gone => return Ok(Step::end_at(cursor)),
        Room::Full => return Ok(Step::Wait),
        Room::Free => {}
    }
    let (mut found, mut reached, mut then) = (Vec::new(), cursor, Then::Finish);
    {
        let mut select = batch.transaction.prepare_cached(
            "SELECT message, endpoint, reason, at, cycle, replayed_at, open = 1 FROM dead
             WHERE endpoint = ?1 AND message > ?2 AND message < ?3 ORDER BY message",
        )?;
        let mut rows = select.query((endpoint.raw(), cursor, end))?;
        let mut passed_over = 0;
        while let Some(row) = rows.next()? {
            if found.len() == STEP || passed_over == PASSED_OVER_MAX {
                then = Then::GoOn;
                break;
            }
            let dead = Dead::from_row(row)?;
            reached = dead.key.message.raw();
            if row.get(6)? {
                found.push(dead);
            } else {
                passed_over += 1;
            }
        }
    }
    let mut changed = 0;
    for dead in &found {
        if is_wanted(&batch.transaction, batch.pieces(), filter, dead)? {
            changed += u64::from(replay_dead(batch, dead, at)?);
        }
    }
    wake_if(changed > 0, batch, endpoint, at);
    Ok(Step::Done { reached, looked_at: found.len() as u64, changed, then })
}

/// Replays dead letters of all endpoints of the application.
pub fn replay_dead_of_all(
    batch: &mut Batch<'_>,
    app: AppKey,
    filter: &DeadFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> rusqlite::Result<Step> {
    // The cursor tells messages apart, and not endpoints: all letters of a message are looked at in the same step.
    let mut letters: Vec<Dead> = Vec::new();
    let mut all_found = true;
    {
        let mut select = batch.transaction.prepare_cached(
            "SELECT message, endpoint, reason, at, cycle, replayed_at FROM dead INDEXED BY dead_app
             WHERE app = ?1 AND message > ?2 AND message < ?3 AND open = 1 ORDER BY message, endpoint",
        )?;
        let mut rows = select.query((app.raw(), cursor, end))?;
        while let Some(row) = rows.next()? {
            let dead = Dead::from_row(row)?;
            if letters.len() >= STEP && letters.last().is_some_and(|last| last.key.message != dead.key.message) {
                all_found = false;
                break;
            }
            letters.push(dead);
        }
    }
    let mut rooms = BTreeMap::new();
    let (mut reached, mut looked_at, mut changed, mut then) =
        (cursor, 0, 0, if all_found { Then::Finish } else { Then::GoOn });
    for of_message in letters.chunk_by(|a, b| a.key.message == b.key.message) {
        let mut chosen = Vec::new();
        for dead in of_message {
            if is_wanted(&batch.transaction, batch.pieces(), filter, dead)? {
                let endpoint = dead.key.endpoint;
                let found = match rooms.get(&endpoint) {
                    Some(found) => *found,
                    None => *rooms.entry(endpoint).or_insert(room_among_others(batch, app, endpoint, at)?),
                };
                chosen.push((dead, found));
            }
        }
        if chosen.iter().any(|(_, found)| *found == Room::Full) {
            if looked_at == 0 {
                return Ok(Step::Wait);
            }
            then = Then::GoOn;
            break;
        }
        for (dead, found) in chosen {
            if found == Room::Free && replay_dead(batch, dead, at)? {
                changed += 1;
                wake_if(true, batch, dead.key.endpoint, at);
            }
        }
        looked_at += of_message.len() as u64;
        reached = of_message[0].key.message.raw();
    }
    Ok(Step::Done { reached, looked_at, changed, then })
}

/// A lane whose breaker is open drains no sooner for being waited for, and the other endpoints would wait with it.
fn room_among_others(batch: &Batch<'_>, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> rusqlite::Result<Room> {
    let found = room(batch, app, endpoint, at)?;
    if found != Room::Full {
        return Ok(found);
    }
    Ok(match health::of(&batch.transaction, endpoint)?.breaker {
        Breaker::Open { .. } => Room::Free,
        Breaker::Closed { .. } => Room::Full,
    })
}

/// False if it can no longer be sent.
fn replay_dead(batch: &Batch<'_>, dead: &Dead, at: Timestamp) -> rusqlite::Result<bool> {
    let Some(order) = order_if_sendable(batch, dead.key.message)? else { return Ok(false) };
    begin_again(batch, dead.key.delivery(), order, dead.cycle, at)?;
    Ok(true)
}

fn wake_if(changed: bool, batch: &mut Batch<'_>, endpoint: EndpointKey, at: Timestamp) {
    if changed {
        batch.announce(Committed::Waiting { endpoint, due: at });
    }
}

/// Replays what the endpoint was owed, delivered or not.
pub fn replay_owed(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &ReplayFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> rusqlite::Result<Step> {
    match room(batch, app, endpoint, at)? {
        Room::Gone => return Ok(Step::end_at(cursor)),
        Room::Full => return Ok(Step::Wait),
        Room::Free => {}
    }
    let found = next_messages(batch, app, cursor, end)?;
    let mut changed = 0;
    for message in &found {
        let key = DeadKey { message: MessageKey::new(message.key), endpoint };
        let fits = message.is_sendable
            && message.owed.contains(&endpoint)
            && (filter.event_types.is_empty() || filter.event_types.contains(&message.event_type))
            && filter.channel.as_ref().is_none_or(|channel| message.extra.channels.contains(channel))
            && filter.tag.as_ref().is_none_or(|tag| message.extra.tags.contains(tag));
        if !fits || batch.is_handed(key.message, endpoint) {
            continue;
        }
        let Some(ended) = ended(batch, message.piece, key.delivery())? else { continue };
        let status_fits = match filter.status_class {
            Some(class) => last_status(&batch.transaction, message.piece, key)? / 100 == class,
            None => true,
        };
        if status_fits && filter.state.is_none_or(|state| state == ended.state) {
            begin_again(batch, key.delivery(), message.order(), ended.cycle, at)?;
            changed += 1;
        }
    }
    wake_if(changed > 0, batch, endpoint, at);
    Ok(Step::looked_through(&found, cursor, changed))
}

impl Step {
    fn looked_through(found: &[Found], cursor: i64, changed: u64) -> Self {
        Self::Done {
            reached: found.last().map_or(cursor, |last| last.key),
            looked_at: found.len() as u64,
            changed,
            then: if found.len() == STEP { Then::GoOn } else { Then::Finish },
        }
    }
}

/// How a delivery ended that has a row no longer.
struct Ended {
    state: StateKind,
    /// The last one that it was in.
    cycle: u32,
}

/// `None` if it waits.
fn ended(batch: &Batch<'_>, piece: Piece, id: DeliveryId) -> rusqlite::Result<Option<Ended>> {
    let connection = &batch.transaction;
    let both = (id.endpoint.raw(), id.message.raw());
    let waits: bool = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = 0)",
        )?
        .query_row(both, |row| row.get(0))?;
    if waits {
        return Ok(None);
    }
    let dead = super::optional(
        connection
            .prepare_cached("SELECT reason, cycle FROM dead WHERE endpoint = ?1 AND message = ?2")?
            .query_row(both, |row| Ok((death_of(row.get(0)?)?, row.get::<_, u32>(1)?))),
    )?;
    let tried_in: Option<u32> = piece
        .prepare(
            connection,
            "SELECT max(cycle) FROM attempt_{n} WHERE message = ?2 AND endpoint = ?1 AND trigger_code = 0",
        )?
        .query_row(both, |row| row.get(0))?;
    let state = match dead {
        _ if is_delivered(connection, batch.pieces(), id)? => StateKind::Delivered,
        Some((DeathReason::Cancelled, _)) => StateKind::Cancelled,
        Some((
            DeathReason::Permanent
            | DeathReason::Exhausted
            | DeathReason::Expired
            | DeathReason::EndpointGone
            | DeathReason::Breaker,
            _,
        )) => StateKind::Dead,
        None => StateKind::Pending,
    };
    let cycle = dead.map_or(0, |(_, cycle)| cycle).max(tried_in.unwrap_or(0));
    Ok(Some(Ended { state, cycle }))
}

/// What an endpoint wants of the messages it missed. `None`: anything.
pub struct Wanted<'t> {
    pub event_types: Option<&'t [String]>,
    pub channels: Option<&'t [String]>,
}

pub fn replay_missing(
    batch: &mut Batch<'_>,
    (app, endpoint): (AppKey, EndpointKey),
    wanted: &Wanted<'_>,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> rusqlite::Result<Step> {
    match room(batch, app, endpoint, at)? {
        Room::Gone => return Ok(Step::end_at(cursor)),
        Room::Full => return Ok(Step::Wait),
        Room::Free => {}
    }
    let mut found = next_messages(batch, app, cursor, end)?;
    let mut changed = 0;
    for message in &mut found {
        let fits = message.is_sendable
            && !message.owed.contains(&endpoint)
            && wanted.event_types.is_none_or(|types| types.contains(&message.event_type))
            && wanted.channels.is_none_or(|channels| message.extra.channels.iter().any(|on| channels.contains(on)));
        if !fits {
            continue;
        }
        message.owed.push(endpoint);
        message
            .piece
            .prepare(&batch.transaction, "UPDATE message_{n} SET owed = ?2 WHERE key = ?1")?
            .execute((message.key, pack(&message.owed)))?;
        let id = DeliveryId { endpoint, message: MessageKey::new(message.key), trigger: Trigger::Scheduled };
        tidy::expect_attempts(batch, id.message)?;
        // Its first cycle, which has waited since now only, however old the message is.
        start_waiting(&batch.transaction, id, message.order(), at, Cycle::Again { number: 0, queued_at: at })?;
        changed += 1;
    }
    wake_if(changed > 0, batch, endpoint, at);
    Ok(Step::looked_through(&found, cursor, changed))
}

/// A message, without its payload.
struct Found {
    piece: Piece,
    key: i64,
    event_type: String,
    owed: Vec<EndpointKey>,
    extra: Extra,
    is_sendable: bool,
}

impl Found {
    fn order(&self) -> Option<OrderKey> {
        self.extra.ordering_key.as_deref().map(OrderKey::of)
    }
}

/// The next messages of an application, as many as a step looks at.
fn next_messages(batch: &Batch<'_>, app: AppKey, low: i64, high: i64) -> rusqlite::Result<Vec<Found>> {
    let mut found = Vec::new();
    let (span, recent) = (Span { low, high, reading: Order::Ascending }, batch.recent_of(app));
    let columns = "key, event_type, owed, extra, payload IS NOT NULL";
    listing::each_message(&batch.transaction, batch.pieces(), (app, &recent), &span, columns, |piece, row| {
        found.push(Found {
            piece,
            key: row.get(0)?,
            event_type: row.get(1)?,
            owed: unpack(row.get_ref(2)?.as_blob()?),
            extra: row.get_ref(3)?.as_str_or_null()?.map(from_json).transpose()?.unwrap_or_default(),
            is_sendable: row.get(4)?,
        });
        Ok(if found.len() == STEP { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
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
) -> rusqlite::Result<Step> {
    if room(batch, app, endpoint, at)? == Room::Gone {
        return Ok(Step::end_at(cursor));
    }
    let waiting: Vec<(i64, Option<i64>)> = batch
        .transaction
        .prepare_cached(
            "SELECT message, order_key FROM waiting
             WHERE endpoint = ?1 AND message > ?2 AND message < ?3 AND trigger_code = ?4 ORDER BY message LIMIT ?5",
        )?
        .query_map((endpoint.raw(), cursor, end, trigger_code(Trigger::Scheduled), STEP), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let reached = waiting.last().map_or(cursor, |(last, _)| *last);
    let then = if waiting.len() == STEP { Then::GoOn } else { Then::Finish };

    let mut looked_at = waiting;
    let mut newest_handed = BTreeMap::new();
    if begins || which == Sift::Superseded {
        let mut handed = Vec::new();
        for message in batch.handed_to(endpoint) {
            let order = order_of_message(&batch.transaction, batch.pieces(), message.raw())?.map(OrderKey::raw);
            newest_handed.extend(order.map(|order| (order, message.raw())));
            if message.raw() < end {
                handed.push((message.raw(), order));
            }
        }
        if begins {
            looked_at.extend(handed);
        }
    }

    let mut changed = 0;
    for (message, order) in &looked_at {
        let is_chosen = match (which, order) {
            (Sift::All, _) => true,
            (Sift::Superseded, None) => false,
            (Sift::Superseded, Some(order)) => {
                newest_handed.get(order).is_some_and(|newest| newest > message)
                    || newer_waits(&batch.transaction, endpoint, *order, *message)?
            }
        };
        let message = MessageKey::new(*message);
        if is_chosen && cancel(batch, endpoint, message, at)? {
            changed += 1;
            if which == Sift::Superseded {
                batch.announce(Committed::Cancelled { endpoint, which: Cancelled::One(message) });
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
    Ok(Step::Done { reached, looked_at: looked_at.len() as u64, changed, then })
}

fn newer_waits(connection: &Connection, endpoint: EndpointKey, order: i64, message: i64) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND order_key = ?2 AND message > ?3)",
        )?
        .query_row((endpoint.raw(), order, message), |row| row.get(0))
}

pub fn resume(
    batch: &mut Batch<'_>,
    lane: (AppKey, EndpointKey),
    keep: Keep,
    span: (i64, i64),
    begins: bool,
    at: Timestamp,
) -> rusqlite::Result<Step> {
    let step = match keep {
        Keep::All => Step::end_at(span.0),
        Keep::Since(_) | Keep::None => sift(batch, lane, Sift::All, span, begins, at)?,
        Keep::NewestPerKey => sift(batch, lane, Sift::Superseded, span, begins, at)?,
    };
    if let Step::Done { then: Then::Finish, .. } = step {
        enable(batch, lane, at)?;
    }
    Ok(step)
}

fn enable(batch: &mut Batch<'_>, (app, endpoint): (AppKey, EndpointKey), at: Timestamp) -> rusqlite::Result<()> {
    let enabled: Option<(i64, Option<String>)> = super::optional(
        batch
            .transaction
            .prepare_cached(
                "UPDATE endpoint SET disabled_why = NULL, disabled_at = NULL, version = version + 1, updated_at = ?3
                 WHERE key = ?1 AND app = ?2 AND disabled_why IS NOT NULL AND deleted_at IS NULL RETURNING version, uid",
            )?
            .query_row((endpoint.raw(), app.raw(), at.as_millis()), |row| Ok((row.get(0)?, row.get(1)?))),
    )?;
    if let Some((version, uid)) = enabled {
        health::forget(&batch.transaction, endpoint)?;
        if journal::is_heard(&batch.transaction, app)? {
            let what = EndpointHappened::new(endpoint, uid, version, EndpointChange::Enabled);
            journal::enter_endpoint(&batch.transaction, app, [what], at)?;
        }
        batch.announce(Committed::Settings { app });
        batch.announce(Committed::Health { endpoint });
        batch.announce(Committed::Waiting { endpoint, due: at });
    }
    Ok(())
}

/// Removes the contents of messages and of the answers to them.
pub fn purge(batch: &mut Batch<'_>, app: AppKey, (cursor, end): (i64, i64)) -> rusqlite::Result<Step> {
    let found = next_messages(batch, app, cursor, end)?;
    let mut changed = 0;
    for message in &found {
        let connection = &batch.transaction;
        let sql = "UPDATE message_{n} SET payload = NULL, extra = json_remove(extra, '$.received')
            WHERE key = ?1 AND payload IS NOT NULL";
        let payloads = message.piece.prepare(connection, sql)?.execute([message.key])?;
        let responses = message
            .piece
            .prepare(
                connection,
                "UPDATE attempt_{n} SET response = NULL, headers = NULL WHERE message = ?1 AND response IS NOT NULL",
            )?
            .execute([message.key])?;
        changed += u64::from(payloads + responses > 0);
    }
    Ok(Step::looked_through(&found, cursor, changed))
}
