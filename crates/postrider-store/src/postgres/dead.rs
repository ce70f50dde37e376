//! Dead letters: what was given up, why, and how it gets another chance.
//!
//! A row of `dead` outlives its replay, so that it stays known that there was one; what is still a dead letter lies in
//! the index `dead_app`. A search for one endpoint follows the primary key instead. Neither has a bound: a page shorter
//! than asked for means the end of the list, so that a rare find may take a look at every dead letter there is. It does
//! so on a searcher's connection, which holds up nobody who delivers.

use super::{
    Db, Result, execute,
    history::{self, ATTEMPT_COLUMNS, attempt_from},
    jobs::Turn,
    row, rows, settings,
    settle::{Cycle, Start, start_many},
    small, tidy,
};
use crate::{
    Committed, Cut, DeadFilter, DeadKey, DeadLetter, Message, Order, Page, PutError, Remember,
    rows::{
        codes::{death_code, death_of},
        extra::order_of,
        paging::{Span, in_list_order},
    },
};
use postrider_engine::{AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, policy::DeathReason};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::{Row, types::ToSql};

/// Letters looked at in one go.
const CHUNK: usize = 500;

pub async fn dead_letters(db: &Db, app: AppKey, filter: &DeadFilter, page: &Page<DeadKey>) -> Result<Vec<DeadLetter>> {
    let mut open = OpenLetters::of(app, filter, page);
    let mut found = Vec::new();
    while found.len() < page.limit
        && let Some(chunk) = open.next_chunk(db).await?
    {
        let room = page.limit - found.len();
        found.extend(read_letters(db, app, &chunk[..chunk.len().min(room)]).await?);
    }
    Ok(in_list_order(page, found))
}

pub async fn count_dead_letters(db: &Db, app: AppKey, filter: &DeadFilter, limit: u64) -> Result<u64> {
    let all = Page { from: None, order: Order::Descending, limit: 0 };
    let mut open = OpenLetters::of(app, filter, &all);
    let mut count = 0;
    while count < limit
        && let Some(chunk) = open.next_chunk(db).await?
    {
        count += chunk.len() as u64;
    }
    Ok(count.min(limit))
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
        Some(row) => Ok(read_letters(db, app, &[Dead::from_row(&row)?]).await?.pop()),
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
struct Fits<'f> {
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
    fn of(filter: &'f DeadFilter) -> Self {
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
    fn params(&self) -> [&(dyn ToSql + Sync); 8] {
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

/// A dead letter, and what whoever chooses among them has to know of its message.
pub struct Candidate {
    pub dead: Dead,
    pub is_wanted: bool,
    /// What it is ordered by, if it still has content to be sent.
    pub order: Option<Option<OrderKey>>,
}

/// `letters` is a query for rows of `dead`, with parameters from `$9` on. The content is looked up letter by letter: the
/// limit keeps that from becoming a join over all history.
pub async fn candidates(
    db: &Db,
    letters: &str,
    reading: Order,
    filter: &DeadFilter,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Candidate>> {
    let direction = direction(reading);
    let sql = format!(
        "SELECT dead.message, dead.endpoint, dead.reason, dead.at, dead.cycle, dead.replayed_at, ({FITS}),
             coalesce(content.is_sendable, false), content.extra
         FROM ({letters}) AS dead
         LEFT JOIN LATERAL (SELECT event_type, extra, payload IS NOT NULL AS is_sendable FROM message
                            WHERE message.key = dead.message LIMIT 1) AS content ON true
         ORDER BY dead.message {direction}, dead.endpoint {direction}"
    );
    let fits = Fits::of(filter);
    let params = [&fits.params()[..], values].concat();
    rows(db, &sql, &params).await?.iter().map(Candidate::from_row).collect()
}

impl Candidate {
    fn from_row(row: &Row) -> Result<Self> {
        let is_sendable: bool = row.get(7);
        let order = if is_sendable { Some(order_of(row.get(8))?) } else { None };
        Ok(Self { dead: Dead::from_row(row)?, is_wanted: row.get(6), order })
    }

    /// `None` if it is not wanted, or can no longer be sent.
    pub fn again(&self) -> Option<Again> {
        let order = self.order.filter(|_| self.is_wanted)?;
        Some(Again { id: self.dead.key.delivery(), order, last_cycle: self.dead.cycle })
    }
}

/// Whether a dead letter fits what the filter says about the row, its message and its last attempt. A letter whose
/// message has been forgotten is about to be forgotten too. A last try that got no answer, or no try, is status 0.
const FITS: &str = "
    ($1::bigint IS NULL OR dead.endpoint = $1) AND (cardinality($2::bigint[]) = 0 OR dead.message = ANY($2))
    AND ($3::smallint IS NULL OR dead.reason = $3) AND ($4::smallint IS NULL OR dead.reason <> $4)
    AND ($5::bigint IS NULL OR dead.at >= $5) AND ($6::bigint IS NULL OR dead.at < $6)
    AND content.event_type IS NOT NULL AND (cardinality($7::text[]) = 0 OR content.event_type = ANY($7))
    AND ($8::integer IS NULL
         OR $8 = coalesce((SELECT status FROM attempt
                           WHERE attempt.message = dead.message AND attempt.endpoint = dead.endpoint
                           ORDER BY attempt.key DESC LIMIT 1), 0))";

fn direction(reading: Order) -> &'static str {
    match reading {
        Order::Ascending => "ASC",
        Order::Descending => "DESC",
    }
}

/// Walks the dead letters of an application in the page's reading order, a chunk at a time.
struct OpenLetters<'f> {
    app: AppKey,
    filter: &'f DeadFilter,
    reading: Order,
    /// The message and the endpoint to read on from; `None`: the end is reached.
    from: Option<(i64, i64)>,
}

impl<'f> OpenLetters<'f> {
    fn of(app: AppKey, filter: &'f DeadFilter, page: &Page<DeadKey>) -> Self {
        let span = Span::of(page, |key: DeadKey| key.message.raw());
        let cut = match page.from {
            Some(Cut::Past(key) | Cut::Before(key)) => key.endpoint.raw(),
            None => 0,
        };
        let from = match span.reading {
            Order::Ascending => span.low,
            Order::Descending => span.high,
        };
        Self { app, filter, reading: span.reading, from: Some((from, cut)) }
    }

    /// Those of the next letters that are wanted, which may be none; `None`: there are no more.
    async fn next_chunk(&mut self, db: &Db) -> Result<Option<Vec<Dead>>> {
        let Some((message, endpoint)) = self.from else { return Ok(None) };
        let letters = select_open(self.filter, self.reading);
        let app = self.app.raw();
        let found = candidates(db, &letters, self.reading, self.filter, &[&app, &message, &endpoint]).await?;
        let last = found.last().filter(|_| found.len() == CHUNK).map(|last| last.dead.key);
        self.from = last.map(|last| (last.message.raw(), last.endpoint.raw()));
        let wanted = found.into_iter().filter(|candidate| candidate.is_wanted).map(|candidate| candidate.dead);
        Ok(Some(wanted.collect()))
    }
}

/// `$9`: the application; `$10`, `$11`: message and endpoint to read on from.
///
/// What the filter does not ask for is left out, and the limit and the open state stand in the text: only then is it
/// seen that the way along the index is the shortest.
fn select_open(filter: &DeadFilter, reading: Order) -> String {
    let after = match reading {
        Order::Ascending => ">",
        Order::Descending => "<",
    };
    let direction = direction(reading);
    // The primary key is by endpoint first, and would not be read from both on.
    let comes_later = match filter.endpoint {
        Some(_) => format!("endpoint = $1 AND message {after}= $10 AND (message <> $10 OR endpoint {after} $11)"),
        None => format!("(message, endpoint) {after} ($10, $11)"),
    };
    let asked_for: String = [
        // The bounds keep it from going through all letters for those of a few messages.
        (
            !filter.messages.is_empty(),
            " AND message = ANY($2) AND message >= (SELECT min(wanted) FROM unnest($2) AS wanted)
              AND message <= (SELECT max(wanted) FROM unnest($2) AS wanted)",
        ),
        (filter.reason.is_some(), " AND reason = $3"),
        (filter.since.is_some(), " AND at >= $5"),
        (filter.until.is_some(), " AND at < $6"),
    ]
    .into_iter()
    .filter_map(|(asked, condition)| asked.then_some(condition))
    .collect();
    format!(
        "SELECT * FROM dead WHERE app = $9 AND open = 1 AND {comes_later} {asked_for}
         ORDER BY message {direction}, endpoint {direction} LIMIT {CHUNK}"
    )
}

/// Those whose messages are still there, in the order given.
async fn read_letters(db: &Db, app: AppKey, letters: &[Dead]) -> Result<Vec<DeadLetter>> {
    let of_letters = letters.iter().map(|dead| dead.key.message);
    let Some((messages, first, last)) = history::bounds(of_letters.clone()) else { return Ok(Vec::new()) };
    let endpoints: Vec<i64> = letters.iter().map(|dead| dead.key.endpoint.raw()).collect();
    let distinct: Vec<MessageKey> = of_letters.collect::<BTreeSet<_>>().into_iter().collect();
    let contents = history::read_messages(db, &distinct).await?;
    let contents: BTreeMap<MessageKey, Message> = contents.into_iter().map(|message| (message.key, message)).collect();
    let sql = format!(
        "SELECT given.letter, last.* FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY
             AS given (of_message, of_endpoint, letter)
         CROSS JOIN LATERAL (
             SELECT count(*) OVER () AS tries, {ATTEMPT_COLUMNS} FROM attempt
             WHERE message = given.of_message AND message >= $3 AND message <= $4 AND endpoint = given.of_endpoint
             ORDER BY key DESC LIMIT 1
         ) AS last"
    );
    let mut tries = BTreeMap::new();
    for row in rows(db, &sql, &[&messages, &endpoints, &first, &last]).await? {
        tries.insert(row.get::<_, i64>("letter"), (row.get::<_, i64>("tries"), attempt_from(&row)?));
    }
    let letter = |(number, dead): (i64, &Dead)| {
        let message = contents.get(&dead.key.message).filter(|found| found.app == app)?;
        let (attempts, last_attempt) = match tries.remove(&number) {
            Some((count, last)) => (u32::try_from(count).unwrap_or(u32::MAX), Some(last)),
            None => (0, None),
        };
        Some(DeadLetter {
            message: message.clone(),
            endpoint: dead.key.endpoint,
            reason: dead.reason,
            at: dead.at,
            cycle: dead.cycle,
            replayed_at: dead.replayed_at,
            attempts,
            last_attempt,
        })
    };
    Ok((1..).zip(letters).filter_map(letter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{DatabaseUrl, PostgresOptions, migrate};
    use postrider_testbed::Cluster;

    /// With a million dead letters, a page must not cost more than what it shows.
    #[tokio::test]
    async fn pages_of_dead_letters_follow_an_index() {
        let url: DatabaseUrl = Cluster::shared().fresh_database().await.parse().unwrap();
        let options = PostgresOptions::default();
        migrate(&url, &options).await.unwrap();
        let db = url.pool(&options, 1).unwrap().get().await.unwrap();
        // The plan for whatever values are asked for, which is the one that a busy connection uses.
        db.batch_execute(
            "INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
             SELECT number % 10, number, 0, number, 0, 1, 1 FROM generate_series(1, 100000) AS number;
             ANALYZE dead;
             SET plan_cache_mode = force_generic_plan",
        )
        .await
        .unwrap();
        let of_endpoint = DeadFilter { endpoint: Some(1), ..DeadFilter::default() };
        for filter in [DeadFilter::default(), of_endpoint] {
            let sql = select_open(&filter, Order::Descending);
            db.batch_execute(&format!(
                "PREPARE page (bigint, bigint[], smallint, smallint, bigint, bigint, text[], integer, bigint, bigint, bigint)
                 AS {sql}"
            ))
            .await
            .unwrap();
            let explain = "EXPLAIN EXECUTE page (1, '{}', 0, 0, 0, 0, '{}', 0, 1, 40000, 0)";
            let plan: Vec<String> = db.query(explain, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
            assert!(plan.iter().any(|step| step.contains("Index Scan Backward using dead_")), "{plan:#?}");
            assert!(!plan.iter().any(|step| step.contains("Sort")), "{plan:#?}");
            db.batch_execute("DEALLOCATE page").await.unwrap();
        }
    }
}
