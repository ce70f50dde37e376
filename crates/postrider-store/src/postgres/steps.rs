//! One step of each kind of task: a bounded piece of work in one commit, and how far it came.
//!
//! All nodes stand still during a step, so that it asks for all it looks at in a few statements and not for one after
//! the other.
//!
//! Replays are slower than live traffic. They put nothing into a lane in which many are due already; the step then does
//! nothing, and whoever drives the task comes again.

use super::{
    Db, Result,
    cancel::{cancel_handed, end_all_waiting, ends, ordered_messages},
    dead::{Again, Candidate, begin_again, candidates, unsigned},
    execute, health,
    jobs::Turn,
    journal, one, recover, row, rows,
    settle::{Cycle, Start, start_many},
    small, tidy,
};
use crate::{
    Cancelled, Committed, DeadFilter, EndpointChange, EndpointHappened, Keep, Order, ReplayFilter, StateKind,
    rows::{
        codes::{Place, death_of, trigger_code},
        extra::Extra,
    },
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    policy::{Breaker, DeathReason},
};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::{Row, types::ToSql};

/// Looked at in one step, and so changed at most.
const STEP: usize = 200;

/// Rows of dead letters that are looked at in one step, most of which may be none any more.
const PASSED_OVER_MAX: i64 = 5_000;

/// With so many due in a lane already, a replay waits.
const LANE_DUE_MAX: i64 = 200;

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

    fn looked_through(found: &[Found], cursor: i64, changed: usize) -> Self {
        Self::Done {
            reached: found.last().map_or(cursor, |last| last.key),
            looked_at: found.len() as u64,
            changed: changed as u64,
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

async fn room(db: &Db, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<Room> {
    let found = row(
        db,
        "SELECT disabled_why IS NOT NULL FROM endpoint WHERE key = $1 AND app = $2 AND deleted_at IS NULL",
        &[&endpoint.raw(), &app.raw()],
    )
    .await?;
    match found.map(|row| row.get(0)) {
        None => return Ok(Room::Gone),
        // What is due there is held and does not drain: waiting for that would be for ever.
        Some(true) => return Ok(Room::Free),
        Some(false) => {}
    }
    // Those behind another of their key do not count: one key that is stuck would hold up the replay of all others.
    let due: i64 = one(
        db,
        "SELECT count(*) FROM (SELECT 1 FROM waiting
             WHERE endpoint = $1 AND place = $2 AND due <= $3 LIMIT $4) AS found",
        &[&endpoint.raw(), &small(Place::Front.code()), &at.as_millis(), &(LANE_DUE_MAX + 1)],
    )
    .await?
    .get(0);
    Ok(if due > LANE_DUE_MAX { Room::Full } else { Room::Free })
}

/// Replays dead letters of one endpoint.
pub async fn replay_dead_of(
    turn: &mut Turn,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &DeadFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> Result<Step> {
    match room(turn.db(), app, endpoint, at).await? {
        Room::Gone => return Ok(Step::end_at(cursor)),
        Room::Full => return Ok(Step::Wait),
        Room::Free => {}
    }
    let letters = "SELECT * FROM (SELECT * FROM dead WHERE endpoint = $9 AND message > $10 AND message < $11
                       ORDER BY message LIMIT $12) AS looked_at
                   WHERE open = 1 ORDER BY message LIMIT $13";
    let lane = endpoint.raw();
    let values: [&(dyn ToSql + Sync); 5] = [&lane, &cursor, &end, &PASSED_OVER_MAX, &(STEP as i64)];
    let found = candidates(turn.db(), letters, Order::Ascending, filter, &values).await?;
    let (reached, then) = match found.last() {
        Some(last) if found.len() == STEP => (last.dead.key.message.raw(), Then::GoOn),
        Some(_) | None => passed_over(turn.db(), lane, (cursor, end)).await?,
    };
    let chosen: Vec<Again> = found.iter().filter_map(Candidate::again).collect();
    begin_again(turn, &chosen, at).await?;
    wake_if(!chosen.is_empty(), turn, endpoint, at);
    Ok(Step::Done { reached, looked_at: found.len() as u64, changed: chosen.len() as u64, then })
}

/// How far a step came that looked at as many rows as it may.
async fn passed_over(db: &Db, endpoint: i64, (cursor, end): (i64, i64)) -> Result<(i64, Then)> {
    let found = one(
        db,
        "SELECT count(*), max(message) FROM (SELECT message FROM dead
             WHERE endpoint = $1 AND message > $2 AND message < $3 ORDER BY message LIMIT $4) AS looked_at",
        &[&endpoint, &cursor, &end, &PASSED_OVER_MAX],
    )
    .await?;
    let then = if found.get::<_, i64>(0) == PASSED_OVER_MAX { Then::GoOn } else { Then::Finish };
    Ok((found.get::<_, Option<i64>>(1).unwrap_or(cursor), then))
}

/// Replays dead letters of all endpoints of the application.
pub async fn replay_dead_of_all(
    turn: &mut Turn,
    app: AppKey,
    filter: &DeadFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> Result<Step> {
    // The cursor tells messages apart, and not endpoints: all letters of a message are looked at in the same step.
    let letters = "SELECT * FROM dead WHERE app = $9 AND message > $10 AND message < $11 AND open = 1
                   ORDER BY message FETCH FIRST $12 ROWS WITH TIES";
    let values: [&(dyn ToSql + Sync); 4] = [&app.raw(), &cursor, &end, &(STEP as i64)];
    let found = candidates(turn.db(), letters, Order::Ascending, filter, &values).await?;
    let mut rooms = BTreeMap::new();
    let (mut reached, mut looked_at, mut chosen) = (cursor, 0, Vec::new());
    let mut then = if found.len() < STEP { Then::Finish } else { Then::GoOn };
    for of_message in found.chunk_by(|a, b| a.dead.key.message == b.dead.key.message) {
        let mut of_these = Vec::new();
        for candidate in of_message.iter().filter(|candidate| candidate.is_wanted) {
            let endpoint = candidate.dead.key.endpoint;
            let found = match rooms.get(&endpoint) {
                Some(found) => *found,
                None => *rooms.entry(endpoint).or_insert(room_among_others(turn.db(), app, endpoint, at).await?),
            };
            of_these.push((candidate, found));
        }
        if of_these.iter().any(|(_, found)| *found == Room::Full) {
            if looked_at == 0 {
                return Ok(Step::Wait);
            }
            then = Then::GoOn;
            break;
        }
        chosen.extend(of_these.iter().filter(|(_, found)| *found == Room::Free).filter_map(|(one, _)| one.again()));
        looked_at += of_message.len() as u64;
        reached = of_message[0].dead.key.message.raw();
    }
    begin_again(turn, &chosen, at).await?;
    for endpoint in chosen.iter().map(|again| again.id.endpoint).collect::<BTreeSet<_>>() {
        wake_if(true, turn, endpoint, at);
    }
    Ok(Step::Done { reached, looked_at, changed: chosen.len() as u64, then })
}

/// A lane whose breaker is open drains no sooner for being waited for, and the other endpoints would wait with it.
async fn room_among_others(db: &Db, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<Room> {
    let found = room(db, app, endpoint, at).await?;
    if found != Room::Full {
        return Ok(found);
    }
    Ok(match health::of(db, endpoint).await?.breaker {
        Breaker::Open { .. } => Room::Free,
        Breaker::Closed { .. } => Room::Full,
    })
}

fn wake_if(changed: bool, turn: &mut Turn, endpoint: EndpointKey, at: Timestamp) {
    if changed {
        turn.announce(Committed::Waiting { endpoint, due: at });
    }
}

/// Replays what the endpoint was owed, delivered or not.
pub async fn replay_owed(
    turn: &mut Turn,
    (app, endpoint): (AppKey, EndpointKey),
    filter: &ReplayFilter,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> Result<Step> {
    match room(turn.db(), app, endpoint, at).await? {
        Room::Gone => return Ok(Step::end_at(cursor)),
        Room::Full => return Ok(Step::Wait),
        Room::Free => {}
    }
    let found = next_messages(turn.db(), app, cursor, end).await?;
    let fits = |message: &&Found| {
        message.is_sendable
            && message.owed.contains(&endpoint)
            && (filter.event_types.is_empty() || filter.event_types.contains(&message.event_type))
            && filter.channel.as_ref().is_none_or(|channel| message.extra.channels.contains(channel))
            && filter.tag.as_ref().is_none_or(|tag| message.extra.tags.contains(tag))
    };
    let fitting: BTreeMap<i64, &Found> = found.iter().filter(fits).map(|message| (message.key, message)).collect();
    let mut chosen = Vec::new();
    for ended in ended(turn.db(), endpoint, fitting.keys().copied().collect()).await? {
        let status_fits = filter.status_class.is_none_or(|class| ended.last_status / 100 == class);
        if status_fits && filter.state.is_none_or(|state| state == ended.state) {
            let id = DeliveryId { endpoint, message: MessageKey::new(ended.message), trigger: Trigger::Scheduled };
            chosen.push(Again { id, order: fitting[&ended.message].extra.order(), last_cycle: ended.cycle });
        }
    }
    begin_again(turn, &chosen, at).await?;
    wake_if(!chosen.is_empty(), turn, endpoint, at);
    Ok(Step::looked_through(&found, cursor, chosen.len()))
}

/// How a delivery ended that has a row no longer.
struct Ended {
    message: i64,
    state: StateKind,
    /// The last one that it was in.
    cycle: u32,
    /// Of the last answer; 0 if the last try got none, or if there was no try.
    last_status: u16,
}

/// Those of the messages, all owed to the endpoint, that neither wait for it nor are handed over to its lane.
async fn ended(db: &Db, endpoint: EndpointKey, messages: Vec<i64>) -> Result<Vec<Ended>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    // Who has neither waited nor ended nor been tried is handed over, see `recover`.
    let found = rows(
        db,
        "SELECT owed.message, dead.reason, greatest(dead.cycle, tried.last_cycle, 0), coalesce(tried.arrived, false),
             coalesce(tried.last_status, 0)::integer
         FROM unnest($2::bigint[]) AS owed (message)
         LEFT JOIN LATERAL (SELECT reason, cycle FROM dead
                            WHERE dead.endpoint = $1 AND dead.message = owed.message LIMIT 1) AS dead ON true
         LEFT JOIN LATERAL (SELECT max(cycle) FILTER (WHERE trigger_code = 0) AS last_cycle, bool_or(class = 0) AS arrived,
                                (array_agg(status ORDER BY key DESC))[1] AS last_status
                            FROM attempt WHERE attempt.message = owed.message AND attempt.endpoint = $1) AS tried ON true
         WHERE (SELECT true FROM waiting WHERE waiting.endpoint = $1 AND waiting.message = owed.message
                    AND waiting.trigger_code = 0) IS NULL
             AND (dead.reason IS NOT NULL OR tried.last_cycle IS NOT NULL OR tried.arrived)
         ORDER BY owed.message",
        &[&endpoint.raw(), &messages],
    )
    .await?;
    found.iter().map(Ended::from_row).collect()
}

impl Ended {
    fn from_row(row: &Row) -> Result<Self> {
        let reason = row.get::<_, Option<i16>>(1).map(|code| death_of(code.into())).transpose()?;
        let arrived: bool = row.get(3);
        let state = match reason {
            _ if arrived => StateKind::Delivered,
            Some(DeathReason::Cancelled) => StateKind::Cancelled,
            Some(
                DeathReason::Permanent
                | DeathReason::Exhausted
                | DeathReason::Expired
                | DeathReason::EndpointGone
                | DeathReason::Breaker,
            ) => StateKind::Dead,
            None => StateKind::Pending,
        };
        let last_status = u16::try_from(row.get::<_, i32>(4)).unwrap_or(0);
        Ok(Self { message: row.get(0), state, cycle: unsigned(row.get(2)), last_status })
    }
}

/// What an endpoint wants of the messages it missed. `None`: anything.
pub struct Wanted<'t> {
    pub event_types: Option<&'t [String]>,
    pub channels: Option<&'t [String]>,
}

pub async fn replay_missing(
    turn: &mut Turn,
    (app, endpoint): (AppKey, EndpointKey),
    wanted: &Wanted<'_>,
    (cursor, end): (i64, i64),
    at: Timestamp,
) -> Result<Step> {
    match room(turn.db(), app, endpoint, at).await? {
        Room::Gone => return Ok(Step::end_at(cursor)),
        Room::Full => return Ok(Step::Wait),
        Room::Free => {}
    }
    let found = next_messages(turn.db(), app, cursor, end).await?;
    let fits = |message: &&Found| {
        message.is_sendable
            && !message.owed.contains(&endpoint)
            && wanted.event_types.is_none_or(|types| types.contains(&message.event_type))
            && wanted.channels.is_none_or(|channels| message.extra.channels.iter().any(|on| channels.contains(on)))
    };
    let missed: Vec<&Found> = found.iter().filter(fits).collect();
    if !missed.is_empty() {
        let keys: Vec<i64> = missed.iter().map(|message| message.key).collect();
        let sql = "UPDATE message SET owed = owed || $2::bigint WHERE key = ANY($1) AND key BETWEEN $3 AND $4";
        let (first, last) = ends(&keys);
        execute(turn.db(), sql, &[&keys, &endpoint.raw(), &first, &last]).await?;
        tidy::expect_attempts_of(turn, &keys).await?;
        // The first cycle, which has waited since now only, however old the message is.
        let cycle = Cycle::Again { number: 0, queued_at: at };
        let start = |message: &&Found| {
            let id = DeliveryId { endpoint, message: MessageKey::new(message.key), trigger: Trigger::Scheduled };
            Start { id, order: message.extra.order(), due: at, cycle }
        };
        start_many(turn.db(), &missed.iter().map(start).collect::<Vec<_>>()).await?;
        wake_if(true, turn, endpoint, at);
    }
    Ok(Step::looked_through(&found, cursor, missed.len()))
}

/// A message, without its payload.
struct Found {
    key: i64,
    event_type: String,
    owed: Vec<EndpointKey>,
    extra: Extra,
    is_sendable: bool,
}

/// The next messages of an application, as many as a step looks at.
async fn next_messages(db: &Db, app: AppKey, low: i64, high: i64) -> Result<Vec<Found>> {
    let found = rows(
        db,
        "SELECT key, event_type, owed, extra, payload IS NOT NULL FROM message
         WHERE app = $1 AND key > $2 AND key < $3 ORDER BY key LIMIT $4",
        &[&app.raw(), &low, &high, &(STEP as i64)],
    )
    .await?;
    let message = |row: &Row| {
        Ok(Found {
            key: row.get(0),
            event_type: row.get(1),
            owed: row.get::<_, Vec<i64>>(2).into_iter().map(EndpointKey::new).collect(),
            extra: Extra::read(row.get(3))?,
            is_sendable: row.get(4),
        })
    };
    found.iter().map(message).collect()
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
pub async fn sift(
    turn: &mut Turn,
    (app, endpoint): (AppKey, EndpointKey),
    which: Sift,
    (cursor, end): (i64, i64),
    begins: bool,
    at: Timestamp,
) -> Result<Step> {
    if room(turn.db(), app, endpoint, at).await? == Room::Gone {
        return Ok(Step::end_at(cursor));
    }
    let waiting: Vec<(i64, Option<i64>)> = rows(
        turn.db(),
        "SELECT message, order_key FROM waiting
         WHERE endpoint = $1 AND message > $2 AND message < $3 AND trigger_code = $4 ORDER BY message LIMIT $5",
        &[&endpoint.raw(), &cursor, &end, &small(trigger_code(Trigger::Scheduled)), &(STEP as i64)],
    )
    .await?
    .iter()
    .map(|row| (row.get(0), row.get(1)))
    .collect();
    let reached = waiting.last().map_or(cursor, |(last, _)| *last);
    let then = if waiting.len() == STEP { Then::GoOn } else { Then::Finish };

    let mut handed = Vec::new();
    let mut newest = BTreeMap::new();
    if begins || which == Sift::Superseded {
        let all = recover::handed_to(turn.db(), endpoint).await?;
        for (message, order) in ordered_messages(turn.db(), &all).await? {
            let order = order.map(OrderKey::raw);
            newest.extend(order.map(|order| (order, message)));
            if begins && message < end {
                handed.push((message, order));
            }
        }
    }
    if which == Sift::Superseded {
        let orders: BTreeSet<i64> = waiting.iter().chain(&handed).filter_map(|(_, order)| *order).collect();
        for (order, message) in newest_waiting(turn.db(), endpoint, orders).await? {
            let newest = newest.entry(order).or_insert(message);
            *newest = message.max(*newest);
        }
    }
    let is_chosen = |(message, order): &&(i64, Option<i64>)| match which {
        Sift::All => true,
        Sift::Superseded => order.and_then(|order| newest.get(&order)).is_some_and(|newest| newest > message),
    };
    let chosen = |from: &[(i64, Option<i64>)]| -> Vec<i64> {
        from.iter().filter(is_chosen).map(|(message, _)| *message).collect()
    };
    let (rows_chosen, handed_chosen) = (chosen(&waiting), chosen(&handed));
    end_all_waiting(turn, endpoint, &rows_chosen, DeathReason::Cancelled, at).await?;
    cancel_handed(turn, endpoint, &handed_chosen, at).await?;

    let changed = rows_chosen.len() + handed_chosen.len();
    match which {
        Sift::Superseded => {
            for message in rows_chosen.into_iter().chain(handed_chosen).map(MessageKey::new) {
                turn.announce(Committed::Cancelled { endpoint, which: Cancelled::One(message) });
            }
        }
        Sift::All if begins || changed > 0 => {
            turn.announce(Committed::Cancelled { endpoint, which: Cancelled::Before(MessageKey::new(end)) });
        }
        Sift::All => {}
    }
    match (which, &then) {
        // The lane let go of all before the end at every step, also of what was put on its way again behind the cursor.
        // Not sooner: it would send what the next step is to cancel.
        (Sift::All, Then::Finish) => turn.announce(Committed::Waiting { endpoint, due: at }),
        (Sift::All, Then::GoOn) | (Sift::Superseded, _) => {}
    }
    Ok(Step::Done { reached, looked_at: (waiting.len() + handed.len()) as u64, changed: changed as u64, then })
}

/// Of each ordering key that has something waiting, the newest of it.
async fn newest_waiting(db: &Db, endpoint: EndpointKey, orders: BTreeSet<i64>) -> Result<Vec<(i64, i64)>> {
    if orders.is_empty() {
        return Ok(Vec::new());
    }
    let found = rows(
        db,
        "SELECT run.order_key, newest.message FROM unnest($2::bigint[]) AS run (order_key)
         CROSS JOIN LATERAL (SELECT message FROM waiting WHERE endpoint = $1 AND waiting.order_key = run.order_key
                             ORDER BY message DESC LIMIT 1) AS newest",
        &[&endpoint.raw(), &orders.into_iter().collect::<Vec<_>>()],
    )
    .await?;
    Ok(found.iter().map(|row| (row.get(0), row.get(1))).collect())
}

pub async fn resume(
    turn: &mut Turn,
    lane: (AppKey, EndpointKey),
    keep: Keep,
    span: (i64, i64),
    begins: bool,
    at: Timestamp,
) -> Result<Step> {
    let step = match keep {
        Keep::All => Step::end_at(span.0),
        Keep::Since(_) | Keep::None => sift(turn, lane, Sift::All, span, begins, at).await?,
        Keep::NewestPerKey => sift(turn, lane, Sift::Superseded, span, begins, at).await?,
    };
    if let Step::Done { then: Then::Finish, .. } = step {
        enable(turn, lane, at).await?;
    }
    Ok(step)
}

async fn enable(turn: &mut Turn, (app, endpoint): (AppKey, EndpointKey), at: Timestamp) -> Result<()> {
    let enabled = row(
        turn.db(),
        "UPDATE endpoint SET disabled_why = NULL, disabled_at = NULL, version = version + 1, updated_at = $3
         WHERE key = $1 AND app = $2 AND disabled_why IS NOT NULL AND deleted_at IS NULL RETURNING version, uid",
        &[&endpoint.raw(), &app.raw(), &at.as_millis()],
    )
    .await?;
    if let Some(enabled) = enabled {
        health::forget(turn.db(), endpoint).await?;
        if journal::is_heard(turn.db(), app).await? {
            let what = EndpointHappened::new(endpoint, enabled.get(1), enabled.get(0), EndpointChange::Enabled);
            journal::enter_endpoint(turn.db(), app, vec![what], at).await?;
        }
        turn.announce(Committed::Settings { app });
        turn.announce(Committed::Health { endpoint });
        turn.announce(Committed::Waiting { endpoint, due: at });
    }
    Ok(())
}

/// Removes the contents of messages and of the answers to them.
pub async fn purge(turn: &mut Turn, app: AppKey, (cursor, end): (i64, i64)) -> Result<Step> {
    let found = next_messages(turn.db(), app, cursor, end).await?;
    let keys: Vec<i64> = found.iter().map(|message| message.key).collect();
    let mut changed = BTreeSet::new();
    if !keys.is_empty() {
        let (first, last) = ends(&keys);
        for sql in [
            "UPDATE message SET payload = NULL,
            extra = CASE WHEN extra LIKE '%\"received\"%' THEN (extra::jsonb - 'received')::text ELSE extra END
             WHERE key = ANY($1) AND key BETWEEN $2 AND $3 AND payload IS NOT NULL RETURNING key",
            "UPDATE attempt SET response = NULL, headers = NULL
             WHERE message = ANY($1) AND message BETWEEN $2 AND $3 AND response IS NOT NULL RETURNING message",
        ] {
            changed.extend(rows(turn.db(), sql, &[&keys, &first, &last]).await?.iter().map(|row| row.get::<_, i64>(0)));
        }
    }
    Ok(Step::looked_through(&found, cursor, changed.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{DatabaseUrl, PostgresOptions, migrate};
    use postrider_testbed::Cluster;

    /// A step is bounded also where hardly anything is left to be replayed.
    #[tokio::test]
    async fn a_step_passes_over_a_bounded_number_of_letters() {
        let url: DatabaseUrl = Cluster::shared().fresh_database().await.parse().unwrap();
        let options = PostgresOptions::default();
        migrate(&url, &options).await.unwrap();
        let db = url.pool(&options, 1).unwrap().get().await.unwrap();
        db.batch_execute(
            "INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
             SELECT 1, number, 0, 0, 0, 1, 0 FROM generate_series(1, 5002) AS number",
        )
        .await
        .unwrap();
        let steps = [((0, 9_000), 5_000, true), ((5_000, 9_000), 5_002, false), ((5_002, 9_000), 5_002, false)];
        for (span, expected, goes_on) in steps {
            let (reached, then) = passed_over(&db, 1, span).await.unwrap();
            assert_eq!((reached, matches!(then, Then::GoOn)), (expected, goes_on), "{span:?}");
        }
    }
}
