//! Finds, after a crash, what had been accepted and handed over but had no row of its own yet.
//!
//! The writer notes now and then up to which message everything has a row. Only what came after that is looked
//! through, so a start costs what the last moments before the crash brought, and not what the store holds.

use super::{
    accept::unpack,
    pieces::Piece,
    settle::{Cycle, start_waiting},
    writer::{WATERMARK, note, noted},
};
use crate::rows::extra::order_of;
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger};
use rusqlite::Connection;

/// Messages looked through in one transaction.
const STEP: usize = 5_000;

/// Gives every delivery that lacks one a row, and returns how many did.
pub fn recover(connection: &mut Connection, pieces: &[Piece], now: Timestamp) -> rusqlite::Result<u64> {
    let mut found = 0;
    let mut reached = noted(connection, WATERMARK)?.unwrap_or(0);
    for (index, piece) in pieces.iter().enumerate() {
        if pieces.get(index + 1).is_some_and(|next| next.first_key <= reached) {
            continue;
        }
        loop {
            let step = connection.transaction()?;
            let messages = read_owed(&step, *piece, reached)?;
            let Some((last, ..)) = messages.last() else { break };
            reached = *last;
            for (message, owed, order) in &messages {
                for endpoint in owed {
                    if !has_row(&step, *piece, *message, *endpoint)? {
                        let id = DeliveryId {
                            endpoint: *endpoint,
                            message: MessageKey::new(*message),
                            trigger: Trigger::Scheduled,
                        };
                        start_waiting(&step, id, *order, now, Cycle::First)?;
                        found += 1;
                    }
                }
            }
            note(&step, WATERMARK, reached)?;
            step.commit()?;
        }
    }
    Ok(found)
}

type Owed = (i64, Vec<EndpointKey>, Option<OrderKey>);

fn read_owed(connection: &Connection, piece: Piece, after: i64) -> rusqlite::Result<Vec<Owed>> {
    piece
        .prepare(connection, "SELECT key, owed, extra FROM message_{n} WHERE key > ?1 ORDER BY key LIMIT ?2")?
        .query_map((after, STEP), |row| {
            Ok((row.get(0)?, unpack(row.get_ref(1)?.as_blob()?), order_of(row.get_ref(2)?.as_str_or_null()?)?))
        })?
        .collect()
}

fn has_row(connection: &Connection, piece: Piece, message: i64, endpoint: EndpointKey) -> rusqlite::Result<bool> {
    piece
        .prepare(
            connection,
            "SELECT EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = 0)
                 OR EXISTS (SELECT 1 FROM dead WHERE endpoint = ?1 AND message = ?2)
                 OR EXISTS (SELECT 1 FROM attempt_{n} WHERE message = ?2 AND endpoint = ?1
                            AND (trigger_code = 0 OR class = 0))",
        )?
        .query_row((endpoint.raw(), message), |row| row.get(0))
}
