//! Reading on from a place, and the places that consumers have come to.

use super::{
    history::{MESSAGE_COLUMNS, message_from},
    listing::{self, Recent},
    pieces::Piece,
    settings,
    writer::Batch,
};
use crate::{
    CONSUMERS_MAX, Consumer, Order, PollerKey, PutError, ReadOn, Remember, Stride, WasRead,
    pollers::{Look, Reading},
    rows::{extra::Extra, paging::Span},
};
use postrider_engine::{AppKey, MessageKey, Timestamp};
use rusqlite::{Connection, Row};
use std::ops::ControlFlow;

pub fn read_on(
    connection: &Connection,
    pieces: &[Piece],
    of: (AppKey, &Recent<i64>),
    wanted: &ReadOn,
) -> rusqlite::Result<WasRead> {
    let snapshot = connection.unchecked_transaction()?;
    let span = Span { low: wanted.past.raw(), high: wanted.until.raw().saturating_add(1), reading: Order::Ascending };
    let (mut reading, mut messages) = (Reading::of(wanted), Vec::new());
    if !reading.has_stopped() {
        listing::each_message(&snapshot, pieces, of, &span, MESSAGE_COLUMNS, |_, row| {
            let size = if lets_through(wanted, row)? { Some(payload_size(row)?) } else { None };
            if reading.look(MessageKey::new(row.get(0)?), size) == Look::Take {
                messages.push(message_from(row)?);
            }
            Ok(if reading.has_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(reading.end(messages))
}

/// The payload, which may be long, is not looked at for that.
fn lets_through(wanted: &ReadOn, row: &Row<'_>) -> rusqlite::Result<bool> {
    let sieve = &wanted.sieve;
    if !sieve.lets_type_through(row.get_ref(2)?.as_str()?) {
        return Ok(false);
    }
    Ok(!sieve.asks_for_channels()
        || sieve.lets_channels_through(&Extra::read(row.get_ref(4)?.as_str_or_null()?)?.channels))
}

fn payload_size(row: &Row<'_>) -> rusqlite::Result<usize> {
    Ok(row.get_ref(5)?.as_bytes_or_null()?.map_or(0, <[u8]>::len))
}

pub fn consumer(connection: &Connection, poller: PollerKey, name: &str) -> rusqlite::Result<Option<Consumer>> {
    let sql = "SELECT * FROM consumer WHERE poller = ?1 AND name = ?2";
    super::optional(connection.prepare_cached(sql)?.query_row((poller.0, name), consumer_from))
}

pub fn consumers(connection: &Connection, poller: PollerKey) -> rusqlite::Result<Vec<Consumer>> {
    let sql = "SELECT * FROM consumer WHERE poller = ?1 ORDER BY name";
    connection.prepare_cached(sql)?.query_map([poller.0], consumer_from)?.collect()
}

fn consumer_from(row: &Row<'_>) -> rusqlite::Result<Consumer> {
    Ok(Consumer {
        name: row.get("name")?,
        place: MessageKey::new(row.get("place")?),
        seeks: row.get("seeks")?,
        moved_at: Timestamp::from_millis(row.get("moved_at")?),
    })
}

pub fn move_consumer(
    batch: &mut Batch<'_>,
    stride: &Stride,
    remember: Option<Remember>,
) -> rusqlite::Result<Result<Consumer, PutError>> {
    let mut moved = None;
    let put = settings::put(batch, remember, stride.at, |batch| {
        moved = write_place(batch, stride)?;
        Ok(if moved.is_some() { Ok(()) } else { Err(PutError::Full) })
    })?;
    Ok(put.and_then(|()| moved.ok_or(PutError::Full)))
}

/// How he stands afterwards; `None`: there is no place for one more.
fn write_place(batch: &Batch<'_>, stride: &Stride) -> rusqlite::Result<Option<Consumer>> {
    let transaction = &batch.transaction;
    let found = consumer(transaction, stride.poller, &stride.consumer)?;
    let Some(moved) = stride.from(found.as_ref()) else { return Ok(found) };
    if found.is_none() {
        let sql = "SELECT count(*) FROM consumer WHERE poller = ?1";
        let there: usize = transaction.prepare_cached(sql)?.query_row([stride.poller.0], |row| row.get(0))?;
        if there >= CONSUMERS_MAX {
            return Ok(None);
        }
    }
    let Consumer { name, place, seeks, moved_at } = &moved;
    let sql = "INSERT OR REPLACE INTO consumer (poller, name, app, place, seeks, moved_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let (poller, app) = (stride.poller.0, stride.app.raw());
    transaction.prepare_cached(sql)?.execute((poller, name, app, place.raw(), seeks, moved_at.as_millis()))?;
    Ok(Some(moved))
}

pub fn forget_consumers(batch: &Batch<'_>, poller: PollerKey, name: Option<&str>) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM consumer WHERE poller = ?1 AND (?2 IS NULL OR name = ?2)";
    Ok(batch.transaction.prepare_cached(sql)?.execute((poller.0, name))? > 0)
}
