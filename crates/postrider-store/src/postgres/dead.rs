//! Dead letters: what was given up, why, and how it gets another chance.
//!
//! A row of `dead` outlives its replay, so that it stays known that there was one; what is still a dead letter lies in
//! the index `dead_app`. A search for one endpoint follows the primary key instead. Neither has a bound: a page shorter
//! than asked for means the end of the list, so that a rare find may take a look at every dead letter there is. It does
//! so on a searcher's connection, which holds up nobody who delivers.

use super::{
    Db, Result, count, execute, history,
    jobs::Turn,
    one, row, rows, settings,
    settle::{Cycle, Start, start_many},
    small, tidy,
};
use crate::{
    Committed, Cut, DeadFilter, DeadKey, DeadLetter, Order, Page, PutError, Remember,
    rows::{
        codes::{death_code, death_of},
        extra::order_of,
        paging::{Span, in_list_order},
    },
};
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, policy::DeathReason,
};
use tokio_postgres::{Row, types::ToSql};

pub async fn dead_letters(db: &Db, app: AppKey, filter: &DeadFilter, page: &Page<DeadKey>) -> Result<Vec<DeadLetter>> {
    let span = Span::of(page, |key: DeadKey| key.message.raw());
    let cut = match page.from {
        Some(Cut::Past(key) | Cut::Before(key)) => key.endpoint.raw(),
        None => 0,
    };
    let from = match span.reading {
        Order::Ascending => span.low,
        Order::Descending => span.high,
    };
    let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
    let fits = Fits::of(filter);
    let mut params = fits.params().to_vec();
    let app_raw = app.raw();
    params.extend::<[&(dyn ToSql + Sync); 4]>([&app_raw, &from, &cut, &limit]);
    let mut found = Vec::new();
    for row in rows(db, &select_open(filter, span.reading), &params).await? {
        found.extend(read_letter(db, app, Dead::from_row(&row)?).await?);
    }
    Ok(in_list_order(page, found))
}

pub async fn count_dead_letters(db: &Db, app: AppKey, filter: &DeadFilter, limit: u64) -> Result<u64> {
    let sql = format!("SELECT count(*) FROM ({}) AS found", select_open(filter, Order::Descending));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let fits = Fits::of(filter);
    let mut params = fits.params().to_vec();
    let app = app.raw();
    params.extend::<[&(dyn ToSql + Sync); 4]>([&app, &i64::MAX, &0i64, &limit]);
    Ok(count(one(db, &sql, &params).await?.get(0)))
}

pub async fn dead_letter(db: &Db, app: AppKey, key: DeadKey) -> Result<Option<DeadLetter>> {
    let found = row(
        db,
        "SELECT message, endpoint, reason, at, cycle, replayed_at FROM dead
         WHERE endpoint = $1 AND message = $2 AND app = $3 AND open <> 2",
        &[&key.endpoint.raw(), &key.message.raw(), &app.raw()],
    )
    .await?;
    match found {
        Some(row) => read_letter(db, app, Dead::from_row(&row)?).await,
        None => Ok(None),
    }
}

/// Puts one dead letter on its way again. False if it is none, or if it can no longer be sent: its endpoint or its
/// content is gone.
pub async fn replay(
    turn: &mut Turn,
    app: AppKey,
    key: DeadKey,
    at: Timestamp,
    kept: Option<&Remember>,
) -> Result<Result<bool, PutError>> {
    if let Err(refusal) = settings::remember(turn, kept, at).await? {
        return Ok(Err(refusal));
    }
    let replayed = replay_one(turn, app, key, at).await?;
    if !replayed {
        // What was not carried out is refused, so that its answer is not kept.
        let _ = settings::conclude(turn, kept, Err(PutError::Changed)).await?;
    }
    Ok(Ok(replayed))
}

async fn replay_one(turn: &mut Turn, app: AppKey, key: DeadKey, at: Timestamp) -> Result<bool> {
    let found = row(
        turn.db(),
        "SELECT dead.cycle, message.extra
         FROM dead JOIN endpoint ON endpoint.key = dead.endpoint JOIN message ON message.key = dead.message
         WHERE dead.endpoint = $1 AND dead.message = $2 AND dead.app = $3 AND dead.open = 1
             AND endpoint.deleted_at IS NULL AND message.key = $2 AND message.payload IS NOT NULL",
        &[&key.endpoint.raw(), &key.message.raw(), &app.raw()],
    )
    .await?;
    let Some(row) = found else { return Ok(false) };
    let again = Again { id: key.delivery(), order: order_of(row.get(1))?, last_cycle: unsigned(row.get(0)) };
    begin_again(turn, &[again], at).await?;
    turn.announce(Committed::Waiting { endpoint: key.endpoint, due: at });
    Ok(true)
}

/// A delivery that is to be put on its way again.
#[derive(Clone, Copy, Debug)]
pub struct Again {
    pub id: DeliveryId,
    pub order: Option<OrderKey>,
    /// The cycle that it was last in; the next one begins.
    pub last_cycle: u32,
}

pub async fn begin_again(turn: &Turn, deliveries: &[Again], at: Timestamp) -> Result<()> {
    if deliveries.is_empty() {
        return Ok(());
    }
    let endpoints: Vec<i64> = deliveries.iter().map(|again| again.id.endpoint.raw()).collect();
    let messages: Vec<i64> = deliveries.iter().map(|again| again.id.message.raw()).collect();
    tidy::expect_attempts_of(turn, &messages).await?;
    execute(
        turn.db(),
        "UPDATE dead SET open = 0, replayed_at = $3
         FROM unnest($1::bigint[], $2::bigint[]) AS again (endpoint, message)
         WHERE dead.endpoint = again.endpoint AND dead.message = again.message",
        &[&endpoints, &messages, &at.as_millis()],
    )
    .await?;
    let starts: Vec<Start> = deliveries
        .iter()
        .map(|again| {
            let cycle = Cycle::Again { number: again.last_cycle.saturating_add(1), queued_at: at };
            Start { id: again.id, order: again.order, due: at, cycle }
        })
        .collect();
    start_many(turn.db(), &starts).await
}

/// A row of `dead`.
#[derive(Clone, Copy)]
pub struct Dead {
    pub key: DeadKey,
    pub reason: DeathReason,
    pub at: Timestamp,
    pub cycle: u32,
    pub replayed_at: Option<Timestamp>,
}

impl Dead {
    /// From `message, endpoint, reason, at, cycle, replayed_at`.
    pub fn from_row(row: &Row) -> Result<Self> {
        Ok(Self {
            key: DeadKey { message: MessageKey::new(row.get(0)), endpoint: EndpointKey::new(row.get(1)) },
            reason: death_of(row.get::<_, i16>(2).into())?,
            at: Timestamp::from_millis(row.get(3)),
            cycle: unsigned(row.get(4)),
            replayed_at: row.get::<_, Option<i64>>(5).map(Timestamp::from_millis),
        })
    }
}

/// Cycles are counted from zero.
pub fn unsigned(cycle: i32) -> u32 {
    u32::try_from(cycle).unwrap_or(0)
}

/// A filter as `FITS` takes it.
pub struct Fits<'f> {
    endpoint: Option<i64>,
    messages: &'f [i64],
    reason: Option<i16>,
    other_than: Option<i16>,
    since: Option<i64>,
    until: Option<i64>,
    event_types: &'f [String],
    status: Option<i32>,
}

impl<'f> Fits<'f> {
    pub fn of(filter: &'f DeadFilter) -> Self {
        let spares_cancelled = filter.but_cancelled && filter.reason.is_none();
        Self {
            endpoint: filter.endpoint,
            messages: &filter.messages,
            reason: filter.reason.map(|reason| small(death_code(reason.into()))),
            other_than: spares_cancelled.then(|| small(death_code(DeathReason::Cancelled))),
            since: filter.since,
            until: filter.until,
            event_types: &filter.event_types,
            status: filter.status.map(i32::from),
        }
    }

    /// `$1` to `$8`.
    pub fn params(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.endpoint,
            &self.messages,
            &self.reason,
            &self.other_than,
            &self.since,
            &self.until,
            &self.event_types,
            &self.status,
        ]
    }
}

/// Joined to `dead`, one way down an index for each letter. The limit keeps it from becoming a join over all history.
pub const WITH_CONTENT: &str = "
    LEFT JOIN LATERAL (SELECT event_type, extra, payload IS NOT NULL AS is_sendable FROM message
                       WHERE message.key = dead.message LIMIT 1) AS content ON true";

/// Whether a dead letter fits what the filter says about the row, its message and its last attempt. A letter whose
/// message has been forgotten is about to be forgotten too. A last try that got no answer, or no try, is status 0.
pub const FITS: &str = "
    ($1::bigint IS NULL OR dead.endpoint = $1) AND (cardinality($2::bigint[]) = 0 OR dead.message = ANY($2))
    AND ($3::smallint IS NULL OR dead.reason = $3) AND ($4::smallint IS NULL OR dead.reason <> $4)
    AND ($5::bigint IS NULL OR dead.at >= $5) AND ($6::bigint IS NULL OR dead.at < $6)
    AND content.event_type IS NOT NULL AND (cardinality($7::text[]) = 0 OR content.event_type = ANY($7))
    AND ($8::integer IS NULL
         OR $8 = coalesce((SELECT status FROM attempt
                           WHERE attempt.message = dead.message AND attempt.endpoint = dead.endpoint
                           ORDER BY attempt.key DESC LIMIT 1), 0))";

/// `$9`: the application; `$10`, `$11`: message and endpoint to read on from; `$12`: how many.
fn select_open(filter: &DeadFilter, reading: Order) -> String {
    let (comes_later, direction) = match reading {
        Order::Ascending => (">", "ASC"),
        Order::Descending => ("<", "DESC"),
    };
    let of_endpoint = if filter.endpoint.is_some() { "AND dead.endpoint = $1" } else { "" };
    let of_messages = if filter.messages.is_empty() { "" } else { "AND dead.message = ANY($2)" };
    // The open state stands in the text, because only then is it seen that the index holds all that is wanted.
    format!(
        "SELECT dead.message, dead.endpoint, dead.reason, dead.at, dead.cycle, dead.replayed_at FROM dead {WITH_CONTENT}
         WHERE dead.app = $9 AND dead.open = 1 {of_endpoint} {of_messages}
             AND dead.message {comes_later}= $10 AND (dead.message, dead.endpoint) {comes_later} ($10, $11) AND {FITS}
         ORDER BY dead.message {direction}, dead.endpoint {direction} LIMIT $12"
    )
}

async fn read_letter(db: &Db, app: AppKey, dead: Dead) -> Result<Option<DeadLetter>> {
    let DeadKey { message, endpoint } = dead.key;
    let Some(found) = history::read_message(db, message.raw()).await?.filter(|found| found.app == app) else {
        return Ok(None);
    };
    let sql = "SELECT count(*), max(key) FROM attempt WHERE message = $1 AND endpoint = $2";
    let tried = one(db, sql, &[&message.raw(), &endpoint.raw()]).await?;
    let last_attempt = match tried.get::<_, Option<i64>>(1) {
        Some(last) => history::attempt(db, message, AttemptKey::new(last)).await?,
        None => None,
    };
    Ok(Some(DeadLetter {
        message: found,
        endpoint,
        reason: dead.reason,
        at: dead.at,
        cycle: dead.cycle,
        replayed_at: dead.replayed_at,
        attempts: u32::try_from(tried.get::<_, i64>(0)).unwrap_or(u32::MAX),
        last_attempt,
    }))
}
