//! Forgetting what is past its time, without holding up the writer.
//!
//! A piece of history goes as a whole, once everything in it is old enough: it is first hidden from readers, then
//! emptied in slices between other people's commits, then dropped. An emptied table drops in no time.

use super::{
    pieces::{Piece, piece_of, time_of_key},
    schema::PIECE_TABLES,
    writer::Batch,
};
use crate::Retention;
use postrider_engine::Timestamp;

/// Rows forgotten in one go.
const SLICE: usize = 2_000;

pub fn tidy(batch: &mut Batch<'_>, now: Timestamp, retention: Retention) -> rusqlite::Result<bool> {
    let mut more = forget_payloads(batch, now)?;
    more |= forget_answers(batch, now.minus(retention.idempotency))?;
    more |= drop_retired(batch)?;
    // Keys tell the time to pieces. Without this, a store that nothing comes to would keep its last piece for ever.
    batch.minter.mint(now);
    batch.begin_piece_if_due()?;
    more |= retire_oldest(batch, now.minus(retention.history))?;
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

/// Hides the oldest piece if the next one begins before `before`: everything in it is older than that.
fn retire_oldest(batch: &mut Batch<'_>, before: Timestamp) -> rusqlite::Result<bool> {
    let pieces = batch.pieces().clone();
    let [oldest, next, ..] = pieces.as_slice() else { return Ok(false) };
    if time_of_key(next.first_key) >= before {
        return Ok(false);
    }
    batch.transaction.execute("UPDATE piece SET retired = 1 WHERE number = ?1", [oldest.number])?;
    // What was still owed of it, after all this time, goes with it.
    for table in ["waiting", "dead"] {
        batch.transaction.execute(&format!("DELETE FROM {table} WHERE message < ?1"), [next.first_key])?;
    }
    batch.replace_pieces(pieces[1..].to_vec());
    Ok(true)
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
