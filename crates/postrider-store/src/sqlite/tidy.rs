//! Forgetting what is past its time, without holding up the writer.
//!
//! A piece of history goes as a whole, once everything in it is old enough: it is first hidden from readers, then
//! emptied in slices between other people's commits, then dropped. An emptied table drops in no time.

use super::{
    load,
    pieces::{Piece, piece_of, time_of_key},
    schema::PIECE_TABLES,
    writer::Batch,
};
use crate::Retention;
use postrider_engine::Timestamp;
use rusqlite::Connection;
use std::collections::HashSet;

/// Rows forgotten in one go.
const SLICE: usize = 2_000;

pub fn tidy(batch: &mut Batch<'_>, now: Timestamp, retention: Retention) -> rusqlite::Result<bool> {
    let mut more = forget_payloads(batch, now)?;
    more |= forget_answers(batch, now.minus(retention.idempotency))?;
    more |= drop_retired(batch)?;
    // Keys tell the time to pieces. Without this, a store that nothing comes to would keep its last piece for ever.
    batch.minter.mint(now);
    batch.begin_piece_if_due()?;
    more |= retire_one(batch, now.minus(retention.payloads.max(retention.attempts)))?;
    Ok(more)
}

fn forget_payloads(batch: &Batch<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    let expired: Vec<(i64, i64)> = batch
        .transaction
        .prepare_cached("SELECT at, message FROM payload_expiry WHERE at <= ?1 LIMIT ?2")?
        .query_map((now.as_millis(), SLICE), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (at, message) in &expired {
        if let Some(piece) = piece_of(batch.pieces(), *message) {
            piece
                .prepare(&batch.transaction, "UPDATE message_{n} SET payload = NULL WHERE key = ?1")?
                .execute([message])?;
        }
        batch
            .transaction
            .prepare_cached("DELETE FROM payload_expiry WHERE at = ?1 AND message = ?2")?
            .execute((at, message))?;
    }
    Ok(expired.len() == SLICE)
}

fn forget_answers(batch: &Batch<'_>, before: Timestamp) -> rusqlite::Result<bool> {
    let forgotten = batch
        .transaction
        .prepare_cached("DELETE FROM answer WHERE key IN (SELECT key FROM answer WHERE at < ?1 LIMIT ?2)")?
        .execute((before.as_millis(), SLICE))?;
    Ok(forgotten == SLICE)
}

/// Hides one piece that ends before `before` and in which nothing waits any more: what still waits is kept, however old
/// it is, and its history with it.
fn retire_one(batch: &mut Batch<'_>, before: Timestamp) -> rusqlite::Result<bool> {
    let pieces = batch.pieces().clone();
    let old: Vec<(Piece, i64)> = pieces
        .windows(2)
        .map(|pair| (pair[0], pair[1].first_key))
        .take_while(|(_, end)| time_of_key(*end) < before && batch.oldest_handed.is_none_or(|oldest| *end <= oldest))
        .collect();
    let Some((_, end_of_all)) = old.last() else { return Ok(false) };
    let awaited = pieces_with_waiting(&batch.transaction, &pieces, *end_of_all)?;
    let Some((piece, end)) = old.iter().find(|(piece, _)| !awaited.contains(&piece.number)) else { return Ok(false) };
    batch.transaction.execute("UPDATE piece SET retired = 1 WHERE number = ?1", [piece.number])?;
    batch.transaction.execute("DELETE FROM dead WHERE message >= ?1 AND message < ?2", [piece.first_key, *end])?;
    batch.replace_pieces(pieces.iter().filter(|kept| kept.number != piece.number).copied().collect());
    Ok(true)
}

/// The pieces before `end` in which some lane has something waiting. Jumps from lane to lane and from piece to piece, so
/// that the cost does not grow with how much waits.
fn pieces_with_waiting(connection: &Connection, pieces: &[Piece], end: i64) -> rusqlite::Result<HashSet<i64>> {
    let mut next = connection.prepare_cached(
        "SELECT message FROM waiting WHERE endpoint = ?1 AND message >= ?2 AND message < ?3 ORDER BY message LIMIT 1",
    )?;
    let mut found = HashSet::new();
    for lane in load::lanes(connection)? {
        let mut from = i64::MIN;
        while let Some(message) =
            super::optional(next.query_row((lane.endpoint.raw(), from, end), |row| row.get::<_, i64>(0)))?
        {
            let after = pieces.partition_point(|piece| piece.first_key <= message);
            found.extend(after.checked_sub(1).map(|index| pieces[index].number));
            from = pieces.get(after).map_or(end, |piece| piece.first_key);
        }
    }
    Ok(found)
}

fn drop_retired(batch: &Batch<'_>) -> rusqlite::Result<bool> {
    let connection = &batch.transaction;
    let retired = super::optional(
        connection
            .prepare_cached("SELECT number, first_key FROM piece WHERE retired = 1 ORDER BY number LIMIT 1")?
            .query_row([], |row| Ok(Piece { number: row.get(0)?, first_key: row.get(1)? })),
    )?;
    let Some(piece) = retired else { return Ok(false) };
    let number = piece.number;
    connection.execute_batch(&format!(
        "DROP INDEX IF EXISTS message_{number}_app; DROP INDEX IF EXISTS attempt_{number}_endpoint;"
    ))?;
    for table in PIECE_TABLES {
        let key = match table {
            "attempt" => "message, key",
            "event_id" => "app, event_id",
            _ => "key",
        };
        let emptied = connection.execute(
            &format!(
                "DELETE FROM {table}_{number} WHERE ({key}) IN (SELECT {key} FROM {table}_{number} ORDER BY {key} LIMIT ?1)"
            ),
            [SLICE],
        )?;
        if emptied == SLICE {
            return Ok(true);
        }
    }
    for table in PIECE_TABLES {
        connection.execute_batch(&format!("DROP TABLE {table}_{number}"))?;
    }
    connection.execute("DELETE FROM piece WHERE number = ?1", [number])?;
    Ok(true)
}
