//! Ending deliveries on request, and counting what there would be to end.
//!
//! What is cancelled becomes a dead letter like any other, so that it can be found and replayed. A try that is on the
//! wire is not called back: if it arrives after all, the delivery counts as delivered.

use super::{
    accept::unpack,
    pieces::{Piece, first_key_at, piece_of, time_of_key},
    settle::{bury, remove_waiting},
    writer::Batch,
};
use crate::{
    Backlog, Cancelled, Committed,
    rows::{codes::trigger_code, extra::order_of},
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger, policy::DeathReason,
};
use rusqlite::Connection;
use std::collections::BTreeSet;

pub fn cancel_message(
    batch: &mut Batch<'_>,
    app: AppKey,
    message: MessageKey,
    endpoint: Option<EndpointKey>,
    at: Timestamp,
) -> rusqlite::Result<u64> {
    let Some(piece) = batch.piece_of(message.raw()) else { return Ok(0) };
    let owed = super::optional(
        piece
            .prepare(&batch.transaction, "SELECT owed FROM message_{n} WHERE key = ?1 AND app = ?2")?
            .query_row((message.raw(), app.raw()), |row| Ok(unpack(row.get_ref(0)?.as_blob()?))),
    )?;
    let mut cancelled = 0;
    for owed_to in owed.unwrap_or_default() {
        if endpoint.is_none_or(|endpoint| endpoint == owed_to) && cancel(batch, owed_to, message, at)? {
            batch.announce(Committed::Cancelled { endpoint: owed_to, which: Cancelled::One(message) });
            cancelled += 1;
        }
    }
    Ok(cancelled)
}

/// Ends one delivery, if it has not ended. Telling those who hold it in memory is up to the caller.
pub fn cancel(
    batch: &mut Batch<'_>,
    endpoint: EndpointKey,
    message: MessageKey,
    at: Timestamp,
) -> rusqlite::Result<bool> {
    let id = DeliveryId { endpoint, message, trigger: Trigger::Scheduled };
    if end_waiting(batch, id, DeathReason::Cancelled, at)? {
        return Ok(true);
    }
    if !batch.is_handed(message, endpoint) || is_delivered(&batch.transaction, batch.pieces(), id)? {
        return Ok(false);
    }
    bury(&batch.transaction, id, DeathReason::Cancelled, at, 0)?;
    // Keys tell the time to whoever remembers for a while that it was ended.
    batch.minter.mint(at);
    batch.end_handed(message, endpoint);
    Ok(true)
}

/// Moves what waits in a row to the dead letters. False if nothing does.
pub fn end_waiting(batch: &Batch<'_>, id: DeliveryId, reason: DeathReason, at: Timestamp) -> rusqlite::Result<bool> {
    let connection = &batch.transaction;
    let cycle: Option<u32> = super::optional(
        connection
            .prepare_cached("SELECT cycle FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = ?3")?
            .query_row((id.endpoint.raw(), id.message.raw(), trigger_code(id.trigger)), |row| row.get(0)),
    )?;
    let Some(cycle) = cycle else { return Ok(false) };
    remove_waiting(connection, id)?;
    // What arrived once and was to go out again stays delivered.
    if !is_delivered(connection, batch.pieces(), id)? {
        bury(connection, id, reason, at, cycle)?;
    }
    Ok(true)
}

pub fn is_delivered(connection: &Connection, pieces: &[Piece], id: DeliveryId) -> rusqlite::Result<bool> {
    let Some(piece) = piece_of(pieces, id.message.raw()) else { return Ok(false) };
    piece
        .prepare(
            connection,
            "SELECT EXISTS (SELECT 1 FROM attempt_{n} WHERE message = ?1 AND endpoint = ?2 AND class = 0)",
        )?
        .query_row((id.message.raw(), id.endpoint.raw()), |row| row.get(0))
}

/// `handed`: the messages that have been handed over to the endpoint's lane and may have no row yet.
pub fn backlog(
    connection: &Connection,
    pieces: &[Piece],
    endpoint: EndpointKey,
    since: Option<Timestamp>,
    handed: &[i64],
) -> rusqlite::Result<Backlog> {
    let snapshot = connection.unchecked_transaction()?;
    let kept_from = since.map(first_key_at);
    let (mut waiting, mut oldest, mut since, unordered): (u64, Option<i64>, u64, u64) = snapshot
        .prepare_cached(
            "SELECT count(*), min(message), count(*) FILTER (WHERE message >= ?2),
                 count(*) FILTER (WHERE order_key IS NULL)
             FROM waiting WHERE endpoint = ?1 AND trigger_code = 0",
        )?
        .query_row((endpoint.raw(), kept_from), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    let ordered: u64 = snapshot
        .prepare_cached("SELECT count(DISTINCT order_key) FROM waiting WHERE endpoint = ?1 AND order_key IS NOT NULL")?
        .query_row([endpoint.raw()], |row| row.get(0))?;
    let mut newest_per_key = unordered + ordered;
    let mut keys_handed = BTreeSet::new();
    for message in handed {
        let id = DeliveryId { endpoint, message: MessageKey::new(*message), trigger: Trigger::Scheduled };
        // Between the list and this look it may have got its row, and is counted then.
        if has_row(&snapshot, id)? || is_delivered(&snapshot, pieces, id)? {
            continue;
        }
        waiting += 1;
        oldest = Some(oldest.map_or(*message, |oldest| oldest.min(*message)));
        since += u64::from(kept_from.is_some_and(|from| *message >= from));
        newest_per_key += match order_of_message(&snapshot, pieces, *message)? {
            Some(order) => u64::from(keys_handed.insert(order.raw()) && !key_waits(&snapshot, endpoint, order)?),
            None => 1,
        };
    }
    Ok(Backlog { waiting, oldest: oldest.map(time_of_key), since: kept_from.map(|_| since), newest_per_key })
}

fn has_row(connection: &Connection, id: DeliveryId) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = 0)
                 OR EXISTS (SELECT 1 FROM dead WHERE endpoint = ?1 AND message = ?2)",
        )?
        .query_row((id.endpoint.raw(), id.message.raw()), |row| row.get(0))
}

fn key_waits(connection: &Connection, endpoint: EndpointKey, order: OrderKey) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND order_key = ?2)")?
        .query_row((endpoint.raw(), order.raw()), |row| row.get(0))
}

pub fn order_of_message(connection: &Connection, pieces: &[Piece], message: i64) -> rusqlite::Result<Option<OrderKey>> {
    let Some(piece) = piece_of(pieces, message) else { return Ok(None) };
    let found = super::optional(
        piece
            .prepare(connection, "SELECT extra FROM message_{n} WHERE key = ?1")?
            .query_row([message], |row| Ok(order_of(row.get_ref(0)?.as_str_or_null()?)?)),
    )?;
    Ok(found.flatten())
}
