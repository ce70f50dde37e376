//! Dead letters: what was given up, why, and how it gets another chance.
//!
//! A row of `dead` outlives its replay, so that it stays known that there was one; what is still a dead letter lies in
//! the index `dead_app`. A search for one endpoint follows the primary key instead. Neither has a bound: a page shorter
//! than asked for means the end of the list, so that a rare find may take a look at every dead letter there is. It does
//! so on a searcher's connection, which holds up nobody who delivers.

use super::{
    history,
    pieces::{Piece, piece_of},
    settings::{self, Put},
    settle::requeue,
    tidy,
    writer::Batch,
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
use rusqlite::{Connection, Row};
use std::ops::ControlFlow;

pub fn dead_letters(
    connection: &Connection,
    pieces: &[Piece],
    app: AppKey,
    filter: &DeadFilter,
    page: &Page<DeadKey>,
) -> rusqlite::Result<Vec<DeadLetter>> {
    // One snapshot, so that a letter and its attempts fit together.
    let snapshot = connection.unchecked_transaction()?;
    let mut found = Vec::new();
    if page.limit > 0 {
        each_open(&snapshot, app, filter, page, |dead| {
            if is_wanted(&snapshot, pieces, filter, &dead)? {
                found.extend(read_letter(&snapshot, pieces, app, dead)?);
            }
            Ok(if found.len() == page.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(in_list_order(page, found))
}

pub fn count_dead_letters(
    connection: &Connection,
    pieces: &[Piece],
    app: AppKey,
    filter: &DeadFilter,
    limit: u64,
) -> rusqlite::Result<u64> {
    let snapshot = connection.unchecked_transaction()?;
    let all = Page { from: None, order: Order::Descending, limit: 0 };
    let mut count = 0;
    if limit > 0 {
        each_open(&snapshot, app, filter, &all, |dead| {
            count += u64::from(is_wanted(&snapshot, pieces, filter, &dead)?);
            Ok(if count == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(count)
}

pub fn dead_letter(
    connection: &Connection,
    pieces: &[Piece],
    app: AppKey,
    key: DeadKey,
) -> rusqlite::Result<Option<DeadLetter>> {
    let snapshot = connection.unchecked_transaction()?;
    let found = super::optional(
        snapshot
            .prepare_cached(
                "SELECT message, endpoint, reason, at, cycle, replayed_at FROM dead
                 WHERE endpoint = ?1 AND message = ?2 AND app = ?3 AND open <> 2",
            )?
            .query_row((key.endpoint.raw(), key.message.raw(), app.raw()), Dead::from_row),
    )?;
    match found {
        Some(dead) => read_letter(&snapshot, pieces, app, dead),
        None => Ok(None),
    }
}

/// Puts one dead letter on its way again. False if it is none, or if it can no longer be sent: its endpoint or its
/// content is gone.
pub fn replay(
    batch: &mut Batch<'_>,
    app: AppKey,
    key: DeadKey,
    at: Timestamp,
    remember: Option<Remember>,
) -> rusqlite::Result<Result<bool, PutError>> {
    let mut replayed = false;
    let put = settings::put(batch, remember, at, |batch| {
        replayed = replay_one(batch, app, key, at)?;
        // What was not carried out is refused, so that its answer is not kept.
        Ok(if replayed { Ok(()) } else { Put::Err(PutError::Changed) })
    })?;
    Ok(match put {
        Ok(()) | Err(PutError::Changed) => Ok(replayed),
        Err(refusal) => Err(refusal),
    })
}

fn replay_one(batch: &mut Batch<'_>, app: AppKey, key: DeadKey, at: Timestamp) -> rusqlite::Result<bool> {
    let cycle: Option<u32> = super::optional(
        batch
            .transaction
            .prepare_cached(
                "SELECT dead.cycle FROM dead JOIN endpoint ON endpoint.key = dead.endpoint
                 WHERE dead.endpoint = ?1 AND dead.message = ?2 AND dead.app = ?3 AND dead.open = 1
                     AND endpoint.deleted_at IS NULL",
            )?
            .query_row((key.endpoint.raw(), key.message.raw(), app.raw()), |row| row.get(0)),
    )?;
    let Some(cycle) = cycle else { return Ok(false) };
    let Some(order) = order_if_sendable(batch, key.message)? else { return Ok(false) };
    begin_again(batch, key.delivery(), order, cycle, at)?;
    batch.announce(Committed::Waiting { endpoint: key.endpoint, due: at });
    Ok(true)
}

/// Puts a delivery on its way again, in the cycle after the one that it was last in.
pub fn begin_again(
    batch: &Batch<'_>,
    id: DeliveryId,
    order: Option<OrderKey>,
    last_cycle: u32,
    at: Timestamp,
) -> rusqlite::Result<()> {
    tidy::expect_attempts(batch, id.message)?;
    requeue(&batch.transaction, id, order, last_cycle.saturating_add(1), at)
}

/// What a message's deliveries are ordered by, if it still has content to be sent.
pub fn order_if_sendable(batch: &Batch<'_>, message: MessageKey) -> rusqlite::Result<Option<Option<OrderKey>>> {
    let Some(piece) = batch.piece_of(message.raw()) else { return Ok(None) };
    super::optional(
        piece
            .prepare(&batch.transaction, "SELECT extra FROM message_{n} WHERE key = ?1 AND payload IS NOT NULL")?
            .query_row([message.raw()], |row| Ok(order_of(row.get_ref(0)?.as_str_or_null()?)?)),
    )
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
    pub fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            key: DeadKey { message: MessageKey::new(row.get(0)?), endpoint: EndpointKey::new(row.get(1)?) },
            reason: death_of(row.get(2)?)?,
            at: Timestamp::from_millis(row.get(3)?),
            cycle: row.get(4)?,
            replayed_at: row.get::<_, Option<i64>>(5)?.map(Timestamp::from_millis),
        })
    }
}

/// Walks the dead letters in the page's reading order until told to stop, past those that the row itself rules out.
fn each_open(
    connection: &Connection,
    app: AppKey,
    filter: &DeadFilter,
    page: &Page<DeadKey>,
    mut visit: impl FnMut(Dead) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let span = Span::of(page, |key: DeadKey| key.message.raw());
    let cut = match page.from {
        Some(Cut::Past(key) | Cut::Before(key)) => key.endpoint.raw(),
        None => 0,
    };
    let from = match span.reading {
        Order::Ascending => span.low,
        Order::Descending => span.high,
    };
    let sql = select_open(filter.endpoint, span.reading);
    let mut select = connection.prepare_cached(&sql)?;
    let reason = filter.reason.map(|reason| death_code(reason.into()));
    let mut rows = select.query((app.raw(), from, cut, filter.endpoint, reason, filter.since, filter.until))?;
    while let Some(row) = rows.next()? {
        if visit(Dead::from_row(row)?)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

fn select_open(endpoint: Option<i64>, reading: Order) -> String {
    let (comes_later, direction) = match reading {
        Order::Ascending => (">", "ASC"),
        Order::Descending => ("<", "DESC"),
    };
    // The open state stands in the text, because only then does SQLite see that the index holds all that is wanted. The
    // plus keeps it from looking through all of the application.
    let (source, whose) = match endpoint {
        Some(_) => ("dead", "endpoint = ?4 AND +app = ?1"),
        None => ("dead INDEXED BY dead_app", "app = ?1 AND ?4 IS NULL"),
    };
    format!(
        "SELECT message, endpoint, reason, at, cycle, replayed_at FROM {source}
         WHERE {whose} AND open = 1 AND (message, endpoint) {comes_later} (?2, ?3)
             AND (?5 IS NULL OR reason = ?5) AND (?6 IS NULL OR at >= ?6) AND (?7 IS NULL OR at < ?7)
         ORDER BY message {direction}, endpoint {direction}"
    )
}

/// Whether a dead letter fits what the filter says about the row, its message and its last attempt.
pub fn is_wanted(
    connection: &Connection,
    pieces: &[Piece],
    filter: &DeadFilter,
    dead: &Dead,
) -> rusqlite::Result<bool> {
    let at = dead.at.as_millis();
    let by_itself = filter.endpoint.is_none_or(|endpoint| endpoint == dead.key.endpoint.raw())
        && (filter.messages.is_empty() || filter.messages.contains(&dead.key.message.raw()))
        && filter.reason.is_none_or(|reason| DeathReason::from(reason) == dead.reason)
        && !(filter.but_cancelled && filter.reason.is_none() && dead.reason == DeathReason::Cancelled)
        && filter.since.is_none_or(|since| at >= since)
        && filter.until.is_none_or(|until| at < until);
    let Some(piece) = piece_of(pieces, dead.key.message.raw()).filter(|_| by_itself) else { return Ok(false) };
    let event_type: Option<String> = super::optional(
        piece
            .prepare(connection, "SELECT event_type FROM message_{n} WHERE key = ?1")?
            .query_row([dead.key.message.raw()], |row| row.get(0)),
    )?;
    // A letter whose message has been forgotten is about to be forgotten too.
    let Some(event_type) = event_type else { return Ok(false) };
    if !filter.event_types.is_empty() && !filter.event_types.contains(&event_type) {
        return Ok(false);
    }
    Ok(match filter.status {
        Some(status) => last_status(connection, piece, dead.key)? == status,
        None => true,
    })
}

/// The status of the last answer; 0 if the last try got none, or if there was no try.
pub fn last_status(connection: &Connection, piece: Piece, key: DeadKey) -> rusqlite::Result<u16> {
    let last: Option<Option<u16>> = super::optional(
        piece
            .prepare(
                connection,
                "SELECT status FROM attempt_{n} WHERE message = ?1 AND endpoint = ?2 ORDER BY key DESC LIMIT 1",
            )?
            .query_row((key.message.raw(), key.endpoint.raw()), |row| row.get(0)),
    )?;
    Ok(last.flatten().unwrap_or(0))
}

fn read_letter(
    connection: &Connection,
    pieces: &[Piece],
    app: AppKey,
    dead: Dead,
) -> rusqlite::Result<Option<DeadLetter>> {
    let DeadKey { message, endpoint } = dead.key;
    let Some(piece) = piece_of(pieces, message.raw()) else { return Ok(None) };
    let Some(found) = history::read_message_of(connection, piece, app, message.raw())? else {
        return Ok(None);
    };
    let (attempts, last): (u32, Option<i64>) = piece
        .prepare(connection, "SELECT count(*), max(key) FROM attempt_{n} WHERE message = ?1 AND endpoint = ?2")?
        .query_row((message.raw(), endpoint.raw()), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let last_attempt = match last {
        Some(last) => history::attempt(connection, pieces, message, AttemptKey::new(last))?,
        None => None,
    };
    Ok(Some(DeadLetter {
        message: found,
        endpoint,
        reason: dead.reason,
        at: dead.at,
        cycle: dead.cycle,
        replayed_at: dead.replayed_at,
        attempts,
        last_attempt,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    /// With a million dead letters, a page must not cost more than what it shows.
    #[test]
    fn pages_of_dead_letters_follow_an_index() {
        let mut connection = super::super::open_in_memory();
        schema::migrate(&mut connection).unwrap();
        for (endpoint, expected) in [
            (None, "SEARCH dead USING INDEX dead_app (app=? AND (message,endpoint)<(?,?))"),
            (Some(1), "SEARCH dead USING PRIMARY KEY (endpoint=? AND message<?)"),
        ] {
            let sql = format!("EXPLAIN QUERY PLAN {}", select_open(endpoint, Order::Descending));
            let plan: Vec<String> = connection
                .prepare(&sql)
                .unwrap()
                .query_map((1, 1, 1, endpoint, None::<i64>, None::<i64>, None::<i64>), |row| row.get("detail"))
                .unwrap()
                .collect::<rusqlite::Result<_>>()
                .unwrap();
            assert_eq!(plan, [expected], "and nothing is sorted");
        }
    }
}
