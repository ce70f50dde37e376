//! Keeps the partitions that history lies in.
//!
//! A piece holds the messages of a span of time and their attempts. It is made before its first message comes, and
//! dropped whole.

use super::{Db, Result, execute, rows};
use postrider_engine::{
    Timestamp,
    keys::{first_key_at, time_of_key},
};
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// A stretch of history with partitions of its own: keys in `[first_key, end_key)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub number: i64,
    pub first_key: i64,
    pub end_key: i64,
}

/// The tables that are partitioned.
const TABLES: [&str; 2] = ["message", "attempt"];

/// How long dropping a piece may wait for those who read from it. Everyone who wants to read waits behind it meanwhile.
const DROP_WAIT_MILLIS: u32 = 200;

/// All pieces, oldest first.
pub async fn list(db: &Db) -> Result<Vec<Piece>> {
    let found = rows(db, "SELECT number, first_key, end_key FROM piece ORDER BY first_key", &[]).await?;
    Ok(found.iter().map(|row| Piece { number: row.get(0), first_key: row.get(1), end_key: row.get(2) }).collect())
}

/// Whether some piece of these, which are in order, holds the key.
pub fn cover(pieces: &[Piece], key: i64) -> bool {
    let after = pieces.partition_point(|piece| piece.first_key <= key);
    after.checked_sub(1).is_some_and(|index| key < pieces[index].end_key)
}

/// Makes the piece for a key, if there is none. Only one may do so at a time. The tables are made apart and attached
/// then: that way nobody who reads or writes the others has to wait.
pub async fn ensure(db: &Db, key: i64, span: Duration) -> Result<()> {
    let pieces = list(db).await?;
    if cover(&pieces, key) {
        return Ok(());
    }
    let (first_key, end_key) = place_for(&pieces, key, span);
    let number = pieces.iter().map(|piece| piece.number).max().unwrap_or(0) + 1;
    for table in TABLES {
        // A name cannot be a parameter, nor can a bound; all of these are numbers.
        db.batch_execute(&format!(
            "CREATE TABLE {table}_{number} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE);
             ALTER TABLE {table} ATTACH PARTITION {table}_{number} FOR VALUES FROM ({first_key}) TO ({end_key});"
        ))
        .await?;
    }
    execute(db, "INSERT INTO piece (number, first_key, end_key) VALUES ($1, $2, $3)", &[&number, &first_key, &end_key])
        .await?;
    Ok(())
}

/// Spans begin at whole multiples, and end where another piece begins: the span may have been another one before.
fn place_for(pieces: &[Piece], key: i64, span: Duration) -> (i64, i64) {
    let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(1);
    let begins = time_of_key(key).as_millis() / span * span;
    let [first_key, end_key] = [begins, begins.saturating_add(span)].map(|at| first_key_at(Timestamp::from_millis(at)));
    let before = pieces.iter().map(|piece| piece.end_key).filter(|end| *end <= key).max();
    let after = pieces.iter().map(|piece| piece.first_key).filter(|first| *first > key).min();
    (first_key.max(before.unwrap_or(0)), end_key.min(after.unwrap_or(i64::MAX)))
}

/// Drops a piece with all that lies in it. False if someone reads from it for long just now.
pub async fn discard(db: &Db, piece: Piece) -> Result<bool> {
    db.batch_execute(&format!("SAVEPOINT discarding; SET LOCAL lock_timeout = {DROP_WAIT_MILLIS}")).await?;
    let dropped = drop_tables(db, piece.number).await;
    match dropped {
        Ok(()) => {
            db.batch_execute("RELEASE SAVEPOINT discarding; SET LOCAL lock_timeout TO DEFAULT").await?;
            execute(db, "DELETE FROM piece WHERE number = $1", &[&piece.number]).await?;
            Ok(true)
        }
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            db.batch_execute("ROLLBACK TO SAVEPOINT discarding").await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

async fn drop_tables(db: &Db, number: i64) -> Result<()> {
    for table in TABLES {
        db.batch_execute(&format!(
            "ALTER TABLE {table} DETACH PARTITION {table}_{number}; DROP TABLE {table}_{number}"
        ))
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    fn day(number: i64) -> i64 {
        first_key_at(Timestamp::from_millis(number * DAY))
    }

    #[test]
    fn a_piece_is_a_whole_span() {
        let span = Duration::from_hours(24);
        assert_eq!(place_for(&[], day(7), span), (day(7), day(8)));
        assert_eq!(place_for(&[], day(8) - 1, span), (day(7), day(8)));
    }

    #[test]
    fn pieces_do_not_overlap_whatever_spans_they_were_made_with() {
        let week = Duration::from_hours(24 * 7);
        let others = [(1, day(7), day(8)), (2, day(10), day(11))];
        let others = others.map(|(number, first_key, end_key)| Piece { number, first_key, end_key });
        assert_eq!(place_for(&others, day(9), week), (day(8), day(10)));
        assert_eq!(place_for(&others, day(12), week), (day(11), day(14)));
        for (key, covered) in [(day(7), true), (day(8) - 1, true), (day(8), false), (day(10), true), (day(6), false)] {
            assert_eq!(cover(&others, key), covered);
        }
    }
}
