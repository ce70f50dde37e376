//! Writing down what became of deliveries, and what waits.
//!
//! A batch is written kind by kind and not one after the other: many deliveries that arrived are one statement, as are
//! many that are to be tried again. No delivery is settled twice in one batch, and what a resend ends is written last, so
//! that the order of the kinds does not show.

use super::{
    Db, Result, execute, health, journal,
    pieces::{self, Piece},
    recover::is_handed,
    row, rows, small,
};
use crate::{
    AttemptRecord, Cancelled, Committed, EndpointChange, EndpointHappened, Settlement,
    rows::{
        codes::{Place, class_code, death_code, disable_code, held_code, rule_code, trigger_code},
        millis,
    },
    step,
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, OrderKey, Timestamp, Trigger,
    policy::{DeathReason, DisableReason, Health, Next},
};
use std::collections::BTreeMap;

/// What a batch has found out on the way.
#[derive(Default)]
pub struct Settled {
    pub announced: Vec<Committed>,
}

/// `keys`: for the attempts among them, in their order.
pub async fn settle(db: &Db, pieces: &[Piece], keys: &[i64], settlements: &[&Settlement]) -> Result<Settled> {
    let mut settled = Settled::default();
    let mut runs = Runs::default();
    // Whether a resend ends something that is handed over is seen as long as its own attempt is not there yet.
    let resent = ends_of_resends(db, settlements).await?;
    record_attempts(db, pieces, keys, settlements).await?;
    remove_arrived(db, settlements, &mut runs).await?;
    wait_again(db, settlements).await?;
    wait_first(db, settlements, &mut runs).await?;
    give_up(db, settlements, &mut runs).await?;
    for (id, was_handed) in resent {
        end_schedule(db, id, was_handed, &mut runs, &mut settled).await?;
    }
    runs.line_up(db).await?;
    keep_health(db, settlements, &mut settled).await?;
    journal::enter_outcomes(db, settlements).await?;
    if !settlements.is_empty() {
        step!("store.settled");
    }
    Ok(settled)
}

fn of_kind<'s>(
    settlements: &'s [&'s Settlement],
    wanted: impl Fn(&Settlement) -> bool + 's,
) -> impl Iterator<Item = &'s Settlement> + 's {
    settlements.iter().copied().filter(move |settlement| wanted(settlement))
}

/// Columns of deliveries, side by side.
#[derive(Default)]
struct Ids {
    endpoints: Vec<i64>,
    messages: Vec<i64>,
    triggers: Vec<i16>,
    cycles: Vec<i32>,
}

impl Ids {
    fn of<'s>(settlements: impl Iterator<Item = &'s Settlement>) -> Self {
        let mut ids = Self::default();
        for settlement in settlements {
            ids.endpoints.push(settlement.id.endpoint.raw());
            ids.messages.push(settlement.id.message.raw());
            ids.triggers.push(small(trigger_code(settlement.id.trigger)));
            ids.cycles.push(signed(settlement.cycle));
        }
        ids
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

fn signed(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

async fn record_attempts(db: &Db, pieces: &[Piece], keys: &[i64], settlements: &[&Settlement]) -> Result<()> {
    let mut columns = Attempts::default();
    let tried = settlements.iter().filter_map(|settlement| Some((settlement, settlement.attempt.as_ref()?)));
    for (key, (settlement, attempt)) in keys.iter().zip(tried) {
        // The message's piece may have been dropped while it was on its way; then its history is gone with it.
        if pieces::cover(pieces, settlement.id.message.raw()) {
            columns.push(*key, settlement, attempt);
        }
    }
    if columns.messages.is_empty() {
        return Ok(());
    }
    execute(
        db,
        "INSERT INTO attempt (message, key, endpoint, class, rule, trigger_code, cycle, number, started_at, duration, status,
             url, response, death, next_due, backoff, jitter, retry_after, capped, late, late_why, headers)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::smallint[], $6::smallint[],
             $7::integer[], $8::integer[], $9::bigint[], $10::bigint[], $11::smallint[], $12::text[], $13::bytea[],
             $14::smallint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::boolean[], $20::bigint[],
             $21::smallint[], $22::bytea[])",
        &[
            &columns.messages,
            &columns.keys,
            &columns.endpoints,
            &columns.classes,
            &columns.rules,
            &columns.triggers,
            &columns.cycles,
            &columns.numbers,
            &columns.started,
            &columns.durations,
            &columns.statuses,
            &columns.urls,
            &columns.responses,
            &columns.deaths,
            &columns.next_dues,
            &columns.backoffs,
            &columns.jitters,
            &columns.retry_afters,
            &columns.capped,
            &columns.lates,
            &columns.late_whys,
            &columns.headers,
        ],
    )
    .await?;
    Ok(())
}

/// The columns of `attempt`.
#[derive(Default)]
struct Attempts<'s> {
    messages: Vec<i64>,
    keys: Vec<i64>,
    endpoints: Vec<i64>,
    classes: Vec<i16>,
    rules: Vec<i16>,
    triggers: Vec<i16>,
    cycles: Vec<i32>,
    numbers: Vec<i32>,
    started: Vec<i64>,
    durations: Vec<i64>,
    statuses: Vec<Option<i16>>,
    urls: Vec<&'s str>,
    responses: Vec<&'s [u8]>,
    deaths: Vec<Option<i16>>,
    next_dues: Vec<Option<i64>>,
    backoffs: Vec<Option<i64>>,
    jitters: Vec<Option<i64>>,
    retry_afters: Vec<Option<i64>>,
    capped: Vec<Option<bool>>,
    lates: Vec<Option<i64>>,
    late_whys: Vec<Option<i16>>,
    headers: Vec<Option<&'s [u8]>>,
}

impl<'s> Attempts<'s> {
    fn push(&mut self, key: i64, settlement: &'s Settlement, attempt: &'s AttemptRecord) {
        let id = settlement.id;
        let (next_due, delay) = match settlement.next {
            Next::Retry { due, delay } => (Some(due.as_millis()), Some(delay)),
            Next::Delivered | Next::Dead(_) | Next::Nothing | Next::Postponed { .. } => (None, None),
        };
        let death = match settlement.next {
            Next::Dead(reason) => Some(small(death_code(reason))),
            Next::Delivered | Next::Retry { .. } | Next::Nothing | Next::Postponed { .. } => None,
        };
        self.messages.push(id.message.raw());
        self.keys.push(key);
        self.endpoints.push(id.endpoint.raw());
        self.classes.push(small(class_code(attempt.class)));
        self.rules.push(small(rule_code(attempt.rule)));
        self.triggers.push(small(trigger_code(id.trigger)));
        self.cycles.push(signed(settlement.cycle));
        self.numbers.push(signed(settlement.progress.attempts));
        self.started.push(attempt.started_at.as_millis());
        self.durations.push(millis(attempt.duration));
        self.statuses.push(attempt.status.map(|status| i16::try_from(status).unwrap_or(i16::MAX)));
        self.urls.push(&attempt.url);
        self.responses.push(&attempt.response);
        self.deaths.push(death);
        self.next_dues.push(next_due);
        self.backoffs.push(delay.map(|delay| millis(delay.backoff)));
        self.jitters.push(delay.map(|delay| millis(delay.jitter)));
        self.retry_afters.push(delay.and_then(|delay| delay.retry_after).map(millis));
        self.capped.push(delay.map(|delay| delay.capped));
        self.lates.push(attempt.held.map(|held| millis(held.late)));
        self.late_whys.push(attempt.held.map(|held| small(held_code(held.by))));
        self.headers.push(Some(attempt.headers.as_ref()).filter(|headers| !headers.is_empty()));
    }
}

/// What arrived, and resends that came to their end, wait no longer. What was ended meanwhile and has arrived after all
/// is no dead letter; if it was put on its way again since, there is no need for that now.
async fn remove_arrived(db: &Db, settlements: &[&Settlement], runs: &mut Runs) -> Result<()> {
    let handed = Ids::of(of_kind(settlements, |one| {
        one.next == Next::Delivered && one.handed && one.id.trigger == Trigger::Scheduled
    }));
    if !handed.is_empty() {
        let removed = rows(
            db,
            "WITH ended AS (
                 UPDATE dead SET open = 0 FROM unnest($1::bigint[], $2::bigint[]) AS come (endpoint, message)
                 WHERE dead.endpoint = come.endpoint AND dead.message = come.message
                 RETURNING dead.endpoint, dead.message)
             DELETE FROM waiting USING ended
             WHERE waiting.endpoint = ended.endpoint AND waiting.message = ended.message AND waiting.trigger_code = 0
             RETURNING waiting.endpoint, waiting.order_key",
            &[&handed.endpoints, &handed.messages],
        )
        .await?;
        runs.note(&removed);
    }
    let stored = Ids::of(of_kind(settlements, |one| match one.next {
        Next::Delivered => !one.handed || one.id.trigger == Trigger::Manual,
        Next::Nothing => true,
        Next::Retry { .. } | Next::Postponed { .. } | Next::Dead(_) => false,
    }));
    if !stored.is_empty() {
        let removed = rows(
            db,
            "DELETE FROM waiting USING unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS come (endpoint, message, cause)
             WHERE waiting.endpoint = come.endpoint AND waiting.message = come.message
                 AND waiting.trigger_code = come.cause
             RETURNING waiting.endpoint, waiting.order_key",
            &[&stored.endpoints, &stored.messages, &stored.triggers],
        )
        .await?;
        runs.note(&removed);
    }
    let arrived = Ids::of(of_kind(settlements, |one| {
        one.next == Next::Delivered && !one.handed && one.id.trigger == Trigger::Scheduled
    }));
    if !arrived.is_empty() {
        execute(
            db,
            "UPDATE dead SET open = 0 FROM unnest($1::bigint[], $2::bigint[]) AS come (endpoint, message)
             WHERE dead.endpoint = come.endpoint AND dead.message = come.message AND dead.open <> 0",
            &[&arrived.endpoints, &arrived.messages],
        )
        .await?;
    }
    Ok(())
}

fn due_again(settlement: &Settlement) -> Option<Timestamp> {
    match settlement.next {
        Next::Retry { due, .. } | Next::Postponed { due } => Some(due),
        Next::Delivered | Next::Dead(_) | Next::Nothing => None,
    }
}

/// How far deliveries have come, side by side.
#[derive(Default)]
struct Progresses {
    dues: Vec<i64>,
    attempts: Vec<i32>,
    give_ups: Vec<Option<i64>>,
    delays: Vec<Option<i64>>,
    ambiguous: Vec<Option<i32>>,
    ambiguous_since: Vec<Option<i64>>,
}

impl Progresses {
    fn of<'s>(settlements: impl Iterator<Item = &'s Settlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let progress = settlement.progress;
            columns.dues.push(due_again(settlement).unwrap_or(settlement.at).as_millis());
            columns.attempts.push(signed(progress.attempts));
            columns.give_ups.push(progress.give_up_at.map(Timestamp::as_millis));
            columns.delays.push(progress.last_delay.map(millis));
            columns.ambiguous.push((progress.ambiguous > 0).then_some(signed(progress.ambiguous)));
            columns.ambiguous_since.push(progress.ambiguous_since.map(Timestamp::as_millis));
        }
        columns
    }
}

/// A try takes its time. What ended the delivery meanwhile also took away its row; a failure that comes in afterwards
/// does not bring it back, nor does it touch a new cycle that was begun since.
async fn wait_again(db: &Db, settlements: &[&Settlement]) -> Result<()> {
    let chosen = || of_kind(settlements, |one| !one.handed && due_again(one).is_some());
    let ids = Ids::of(chosen());
    if ids.is_empty() {
        return Ok(());
    }
    let columns = Progresses::of(chosen());
    execute(
        db,
        "UPDATE waiting SET due = again.due, attempts = again.attempts, give_up_at = again.give_up_at,
             last_delay = again.last_delay, ambiguous = again.ambiguous, ambiguous_since = again.ambiguous_since
         FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::integer[], $5::bigint[], $6::integer[], $7::bigint[],
             $8::bigint[], $9::integer[], $10::bigint[])
             AS again (endpoint, message, cause, cycle, due, attempts, give_up_at, last_delay, ambiguous, ambiguous_since)
         WHERE waiting.endpoint = again.endpoint AND waiting.message = again.message
             AND waiting.trigger_code = again.cause AND waiting.cycle = again.cycle",
        &[
            &ids.endpoints,
            &ids.messages,
            &ids.triggers,
            &ids.cycles,
            &columns.dues,
            &columns.attempts,
            &columns.give_ups,
            &columns.delays,
            &columns.ambiguous,
            &columns.ambiguous_since,
        ],
    )
    .await?;
    Ok(())
}

/// Of `new (endpoint, message)`: it was handed over and still has to arrive. Its message may have been forgotten
/// meanwhile, a resend may have brought it there, or a person may have ended it.
const IS_OWED: &str = "
    (SELECT 1 FROM message WHERE message.key = new.message LIMIT 1) IS NOT NULL
    AND (SELECT 1 FROM attempt WHERE attempt.message = new.message AND attempt.endpoint = new.endpoint
         AND attempt.class = 0 LIMIT 1) IS NULL
    AND (SELECT 1 FROM dead WHERE dead.endpoint = new.endpoint AND dead.message = new.message LIMIT 1) IS NULL";

async fn wait_first(db: &Db, settlements: &[&Settlement], runs: &mut Runs) -> Result<()> {
    let chosen = || of_kind(settlements, |one| one.handed && due_again(one).is_some());
    let ids = Ids::of(chosen());
    if ids.is_empty() {
        return Ok(());
    }
    let columns = Progresses::of(chosen());
    let orders: Vec<Option<i64>> = chosen().map(|one| binding(one.id, one.order).map(OrderKey::raw)).collect();
    let places: Vec<i16> =
        chosen().map(|one| small(place_at_first(one.id, binding(one.id, one.order)).code())).collect();
    let sql = format!(
        "INSERT INTO waiting (endpoint, message, trigger_code, cycle, due, attempts, give_up_at, last_delay, ambiguous,
             ambiguous_since, order_key, place)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::integer[], $5::bigint[], $6::integer[],
             $7::bigint[], $8::bigint[], $9::integer[], $10::bigint[], $11::bigint[], $12::smallint[])
             AS new (endpoint, message, cause, cycle, due, attempts, give_up_at, last_delay, ambiguous, ambiguous_since,
                 order_key, place)
         WHERE {IS_OWED}
         ON CONFLICT (endpoint, message, trigger_code) DO UPDATE SET due = excluded.due, cycle = excluded.cycle,
             attempts = excluded.attempts, give_up_at = excluded.give_up_at, last_delay = excluded.last_delay,
             ambiguous = excluded.ambiguous, ambiguous_since = excluded.ambiguous_since"
    );
    execute(
        db,
        &sql,
        &[
            &ids.endpoints,
            &ids.messages,
            &ids.triggers,
            &ids.cycles,
            &columns.dues,
            &columns.attempts,
            &columns.give_ups,
            &columns.delays,
            &columns.ambiguous,
            &columns.ambiguous_since,
            &orders,
            &places,
        ],
    )
    .await?;
    for one in chosen() {
        runs.changed(one.id.endpoint, binding(one.id, one.order));
    }
    Ok(())
}

async fn give_up(db: &Db, settlements: &[&Settlement], runs: &mut Runs) -> Result<()> {
    let reason = |one: &Settlement| match one.next {
        Next::Dead(reason) => Some(reason),
        Next::Delivered | Next::Retry { .. } | Next::Postponed { .. } | Next::Nothing => None,
    };
    let chosen = |handed: bool| of_kind(settlements, move |one| one.handed == handed && reason(one).is_some());
    let reasons =
        |handed| -> Vec<i16> { chosen(handed).filter_map(reason).map(|why| small(death_code(why))).collect() };
    let ends = |handed| -> Vec<i64> { chosen(handed).map(|one| one.at.as_millis()).collect() };

    let handed = Ids::of(chosen(true));
    if !handed.is_empty() {
        let sql = format!(
            "INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
             SELECT new.endpoint, new.message, new.reason, new.at, new.cycle,
                 coalesce((SELECT app FROM endpoint WHERE key = new.endpoint), 0), 1
             FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::integer[])
                 AS new (endpoint, message, reason, at, cycle)
             WHERE {IS_OWED}
             ON CONFLICT (endpoint, message) DO NOTHING"
        );
        execute(db, &sql, &[&handed.endpoints, &handed.messages, &reasons(true), &ends(true), &handed.cycles]).await?;
        step!("dead.written");
    }
    let stored = Ids::of(chosen(false));
    if stored.is_empty() {
        return Ok(());
    }
    // What arrived once and was put on its way again stays delivered.
    let removed = rows(
        db,
        "WITH gone AS (
             DELETE FROM waiting USING unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::integer[], $5::smallint[],
                 $6::bigint[]) AS ending (endpoint, message, cause, cycle, reason, at)
             WHERE waiting.endpoint = ending.endpoint AND waiting.message = ending.message
                 AND waiting.trigger_code = ending.cause AND waiting.cycle = ending.cycle
             RETURNING waiting.endpoint, waiting.message, waiting.order_key, ending.reason, ending.at, ending.cycle),
         buried AS (
             INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
             SELECT gone.endpoint, gone.message, gone.reason, gone.at, gone.cycle,
                 coalesce((SELECT app FROM endpoint WHERE key = gone.endpoint), 0), 1
             FROM gone
             WHERE (SELECT 1 FROM attempt WHERE attempt.message = gone.message AND attempt.endpoint = gone.endpoint
                    AND attempt.class = 0 LIMIT 1) IS NULL
             ON CONFLICT (endpoint, message) DO UPDATE
                 SET reason = excluded.reason, at = excluded.at, cycle = excluded.cycle, open = 1)
         SELECT endpoint, order_key FROM gone",
        &[&stored.endpoints, &stored.messages, &stored.triggers, &stored.cycles, &reasons(false), &ends(false)],
    )
    .await?;
    runs.note(&removed);
    Ok(())
}

/// The resends that arrived, and whether the delivery's own schedule is handed over.
async fn ends_of_resends(db: &Db, settlements: &[&Settlement]) -> Result<Vec<(DeliveryId, bool)>> {
    let mut ends = Vec::new();
    for one in of_kind(settlements, |one| one.next == Next::Delivered && one.id.trigger == Trigger::Manual) {
        ends.push((one.id, is_handed(db, one.id.message, one.id.endpoint).await?));
    }
    Ok(ends)
}

/// A resend that arrived ends the delivery's own schedule too: it is there now. Its lane may have the delivery in memory,
/// or hold others back until it ends.
async fn end_schedule(
    db: &Db,
    resend: DeliveryId,
    was_handed: bool,
    runs: &mut Runs,
    settled: &mut Settled,
) -> Result<()> {
    let DeliveryId { endpoint, message, .. } = resend;
    let removed = rows(
        db,
        "DELETE FROM waiting WHERE endpoint = $1 AND message = $2 AND trigger_code = 0 RETURNING endpoint, order_key",
        &[&endpoint.raw(), &message.raw()],
    )
    .await?;
    runs.note(&removed);
    revive(db, resend).await?;
    if was_handed || !removed.is_empty() {
        settled.announced.push(Committed::Cancelled { endpoint, which: Cancelled::One(message) });
    }
    Ok(())
}

async fn keep_health(db: &Db, settlements: &[&Settlement], settled: &mut Settled) -> Result<()> {
    let healths: BTreeMap<EndpointKey, Health> =
        settlements.iter().filter_map(|one| Some((one.id.endpoint, one.health?))).collect();
    if !healths.is_empty() {
        health::put_many(db, &healths.into_iter().collect::<Vec<_>>()).await?;
        step!("store.health");
    }
    for one in settlements {
        if let Some(why) = one.disable
            && let Some(app) = disable(db, one, why).await?
        {
            settled.announced.push(Committed::Settings { app });
        }
    }
    Ok(())
}

async fn disable(db: &Db, settlement: &Settlement, why: DisableReason) -> Result<Option<AppKey>> {
    let (endpoint, at) = (settlement.id.endpoint, settlement.at);
    let found = row(
        db,
        "UPDATE endpoint SET disabled_why = $2, disabled_at = $3, version = version + 1, updated_at = $3
         WHERE key = $1 AND disabled_why IS NULL AND deleted_at IS NULL RETURNING app, version, uid",
        &[&endpoint.raw(), &small(disable_code(why)), &at.as_millis()],
    )
    .await?;
    let Some(found) = found else { return Ok(None) };
    let app = AppKey::new(found.get(0));
    if journal::is_heard(db, app).await? {
        let failing_since = settlement.health.and_then(|health| health.failing_since).map(Timestamp::as_millis);
        let change = EndpointChange::Disabled { failing_since };
        let what = EndpointHappened::new(endpoint, found.get(2), found.get(1), change);
        journal::enter_endpoint(db, app, vec![what], at).await?;
    }
    Ok(Some(app))
}

/// Gives deliveries that were handed over a row, so that memory can let go of them.
pub async fn spill(db: &Db, deliveries: &[(DeliveryId, Option<OrderKey>)], due: Timestamp) -> Result<()> {
    let starts: Vec<Start> =
        deliveries.iter().map(|(id, order)| Start { id: *id, order: *order, due, cycle: Cycle::First }).collect();
    begin(db, &starts, &format!("WHERE {IS_OWED}")).await
}

/// Which cycle of a delivery begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    First,
    /// Its time to wait untried counts from then.
    Again {
        number: u32,
        queued_at: Timestamp,
    },
}

/// A delivery that begins to wait.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub id: DeliveryId,
    pub order: Option<OrderKey>,
    pub due: Timestamp,
    pub cycle: Cycle,
}

/// A delivery begins to wait in the store, unless it does already.
pub async fn start_waiting(
    db: &Db,
    id: DeliveryId,
    order: Option<OrderKey>,
    due: Timestamp,
    cycle: Cycle,
) -> Result<()> {
    start_many(db, &[Start { id, order, due, cycle }]).await
}

pub async fn start_many(db: &Db, starts: &[Start]) -> Result<()> {
    begin(db, starts, "").await
}

/// `condition` is one of our own; values never come into it.
async fn begin(db: &Db, starts: &[Start], condition: &str) -> Result<()> {
    if starts.is_empty() {
        return Ok(());
    }
    let cycle = |start: &Start| match start.cycle {
        Cycle::First => (0, None),
        Cycle::Again { number, queued_at } => (signed(number), Some(queued_at.as_millis())),
    };
    let order = |start: &Start| binding(start.id, start.order);
    let sql = format!(
        "INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, queued_at, order_key, place)
         SELECT endpoint, message, cause, due, cycle, 0, queued_at, order_key, place
         FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::integer[], $6::bigint[], $7::bigint[],
             $8::smallint[]) AS new (endpoint, message, cause, due, cycle, queued_at, order_key, place)
         {condition}
         ON CONFLICT DO NOTHING"
    );
    execute(
        db,
        &sql,
        &[
            &starts.iter().map(|start| start.id.endpoint.raw()).collect::<Vec<_>>(),
            &starts.iter().map(|start| start.id.message.raw()).collect::<Vec<_>>(),
            &starts.iter().map(|start| small(trigger_code(start.id.trigger))).collect::<Vec<_>>(),
            &starts.iter().map(|start| start.due.as_millis()).collect::<Vec<_>>(),
            &starts.iter().map(|start| cycle(start).0).collect::<Vec<_>>(),
            &starts.iter().map(|start| cycle(start).1).collect::<Vec<_>>(),
            &starts.iter().map(|start| order(start).map(OrderKey::raw)).collect::<Vec<_>>(),
            &starts.iter().map(|start| small(place_at_first(start.id, order(start)).code())).collect::<Vec<_>>(),
        ],
    )
    .await?;
    let mut runs = Runs::default();
    for start in starts {
        runs.changed(start.id.endpoint, order(start));
    }
    runs.line_up(db).await
}

/// A delivery waits no longer. False if it did not.
pub async fn remove_waiting(db: &Db, id: DeliveryId) -> Result<bool> {
    let removed = rows(
        db,
        "DELETE FROM waiting WHERE endpoint = $1 AND message = $2 AND trigger_code = $3 RETURNING endpoint, order_key",
        &[&id.endpoint.raw(), &id.message.raw(), &small(trigger_code(id.trigger))],
    )
    .await?;
    let mut runs = Runs::default();
    runs.note(&removed);
    runs.line_up(db).await?;
    Ok(!removed.is_empty())
}

/// No order binds a resend.
fn binding(id: DeliveryId, order: Option<OrderKey>) -> Option<OrderKey> {
    order.filter(|_| id.trigger == Trigger::Scheduled)
}

/// Where a new row stands until its key is lined up.
fn place_at_first(id: DeliveryId, order: Option<OrderKey>) -> Place {
    match (id.trigger, order) {
        (Trigger::Manual, _) => Place::Beside,
        (Trigger::Scheduled, None) => Place::Front,
        (Trigger::Scheduled, Some(_)) => Place::Behind,
    }
}

/// Ordering keys of lanes to which rows have come or from which some have gone, and how many.
#[derive(Default)]
pub struct Runs {
    changed: BTreeMap<(i64, i64), i64>,
}

impl Runs {
    pub fn changed(&mut self, endpoint: EndpointKey, order: Option<OrderKey>) {
        if let Some(order) = order {
            *self.changed.entry((endpoint.raw(), order.raw())).or_default() += 1;
        }
    }

    /// Rows of `(endpoint, order_key)` that have gone.
    pub fn note(&mut self, removed: &[tokio_postgres::Row]) {
        for row in removed {
            self.changed(EndpointKey::new(row.get(0)), row.get::<_, Option<i64>>(1).map(OrderKey::new));
        }
    }

    /// Puts the first row of each key to the front and those next to it behind. As many are looked at as have come: no
    /// other can be in the wrong place.
    pub async fn line_up(self, db: &Db) -> Result<()> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let mut columns: (Vec<i64>, Vec<i64>, Vec<i64>) = Default::default();
        for ((endpoint, order), count) in self.changed {
            columns.0.push(endpoint);
            columns.1.push(order);
            columns.2.push(count.saturating_add(2));
        }
        execute(
            db,
            "UPDATE waiting SET place = foremost.place
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS run (endpoint, order_key, looked_at)
             CROSS JOIN LATERAL (
                 SELECT first.message, CASE WHEN row_number() OVER (ORDER BY first.message) = 1 THEN 0 ELSE 1 END AS place
                 FROM (SELECT message FROM waiting AS others
                       WHERE others.endpoint = run.endpoint AND others.order_key = run.order_key
                       ORDER BY others.message LIMIT run.looked_at) AS first) AS foremost
             WHERE waiting.endpoint = run.endpoint AND waiting.message = foremost.message AND waiting.trigger_code = 0
                 AND waiting.place <> foremost.place",
            &[&columns.0, &columns.1, &columns.2],
        )
        .await?;
        Ok(())
    }
}

/// A delivery is given up. What waited of it has been removed by the caller.
pub async fn bury(db: &Db, id: DeliveryId, reason: DeathReason, at: Timestamp, cycle: u32) -> Result<()> {
    execute(
        db,
        "INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
         VALUES ($1, $2, $3, $4, $5, coalesce((SELECT app FROM endpoint WHERE key = $1), 0), 1)
         ON CONFLICT (endpoint, message) DO UPDATE SET reason = $3, at = $4, cycle = $5, open = 1",
        &[&id.endpoint.raw(), &id.message.raw(), &small(death_code(reason)), &at.as_millis(), &signed(cycle)],
    )
    .await?;
    Ok(())
}

/// A dead letter that arrived after all is one no longer.
async fn revive(db: &Db, id: DeliveryId) -> Result<()> {
    execute(
        db,
        "UPDATE dead SET open = 0 WHERE endpoint = $1 AND message = $2",
        &[&id.endpoint.raw(), &id.message.raw()],
    )
    .await?;
    Ok(())
}
