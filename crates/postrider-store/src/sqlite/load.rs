//! Bringing what waits in a lane back into memory, as much as there is room for.

use super::{
    codes::trigger_of,
    history,
    pieces::{Piece, piece_of, time_of_key},
};
use crate::{LaneFound, Letter, Loaded, Waiting};
use bytes::Bytes;
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{Ordering, Progress},
};
use rusqlite::{Connection, Row};
use std::{sync::Arc, time::Duration};

/// One load brings at most this much payload, whatever the number of messages.
const LOAD_BYTES_MAX: usize = 8 * 1024 * 1024;

pub fn load(
    connection: &Connection,
    pieces: &[Piece],
    endpoint: EndpointKey,
    _ordering: Ordering,
    now: Timestamp,
    limit: usize,
) -> rusqlite::Result<Loaded> {
    // One snapshot for all that follows, so that a row and its message fit together.
    let snapshot = connection.unchecked_transaction()?;
    let mut due =
        snapshot.prepare_cached("SELECT * FROM waiting WHERE endpoint = ?1 AND due <= ?2 ORDER BY due LIMIT ?3")?;
    let mut rows = due.query((endpoint.raw(), now.as_millis(), limit.saturating_add(1)))?;
    let mut deliveries = Vec::new();
    let (mut more, mut bytes) = (false, 0);
    while let Some(row) = rows.next()? {
        if deliveries.len() == limit || bytes > LOAD_BYTES_MAX {
            more = true;
            break;
        }
        let message: i64 = row.get("message")?;
        let letter = letter(&snapshot, pieces, message)?;
        bytes += letter.payload.as_ref().map_or(0, Bytes::len);
        deliveries.push(Waiting {
            id: DeliveryId {
                endpoint,
                message: MessageKey::new(message),
                trigger: trigger_of(row.get("trigger_code")?)?,
            },
            due: Timestamp::from_millis(row.get("due")?),
            cycle: row.get("cycle")?,
            progress: progress_from(row)?,
            queued_at: moment(row, "queued_at")?.unwrap_or_else(|| time_of_key(message)),
            order: row.get::<_, Option<i64>>("order_key")?.map(OrderKey::new),
            letter: Arc::new(letter),
        });
    }
    let next_due = snapshot
        .prepare_cached("SELECT min(due) FROM waiting WHERE endpoint = ?1 AND due > ?2")?
        .query_row((endpoint.raw(), now.as_millis()), |row| row.get::<_, Option<i64>>(0))?;
    Ok(Loaded { deliveries, more, next_due: next_due.map(Timestamp::from_millis), blocked: false })
}

fn progress_from(row: &Row<'_>) -> rusqlite::Result<Progress> {
    Ok(Progress {
        attempts: row.get("attempts")?,
        give_up_at: moment(row, "give_up_at")?,
        last_delay: row.get::<_, Option<u64>>("last_delay")?.map(Duration::from_millis),
        ambiguous: row.get::<_, Option<u32>>("ambiguous")?.unwrap_or(0),
        ambiguous_since: moment(row, "ambiguous_since")?,
    })
}

fn moment(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis))
}

/// A message whose piece has been dropped is a letter without a payload: its delivery has outlived its time.
fn letter(connection: &Connection, pieces: &[Piece], message: i64) -> rusqlite::Result<Letter> {
    let found = match piece_of(pieces, message) {
        Some(piece) => history::read_message(connection, piece, message)?,
        None => None,
    };
    let key = MessageKey::new(message);
    Ok(match found {
        Some(found) => Letter {
            message: key,
            app: found.app,
            event_type: found.content.event_type,
            content_type: found.content.content_type,
            payload: (!found.payload_gone).then_some(found.content.payload),
            accepted_at: found.accepted_at,
            order: found.content.ordering_key.as_deref().map(OrderKey::of),
            sequences: Vec::new(),
        },
        None => Letter {
            message: key,
            app: AppKey::new(0),
            event_type: String::new(),
            content_type: None,
            payload: None,
            accepted_at: time_of_key(message),
            order: None,
            sequences: Vec::new(),
        },
    })
}

/// Jumps from lane to lane along the index, so that the cost is the number of lanes and not of what waits in them.
pub fn lanes(connection: &Connection) -> rusqlite::Result<Vec<LaneFound>> {
    let mut next = connection.prepare_cached(
        "SELECT endpoint, due FROM waiting INDEXED BY waiting_due WHERE endpoint > ?1 ORDER BY endpoint, due LIMIT 1",
    )?;
    let mut lanes = Vec::new();
    let mut reached = i64::MIN;
    while let Some((endpoint, due)) = super::optional(next.query_row([reached], |row| Ok((row.get(0)?, row.get(1)?))))?
    {
        lanes.push(LaneFound { endpoint: EndpointKey::new(endpoint), next_due: Timestamp::from_millis(due) });
        reached = endpoint;
    }
    Ok(lanes)
}
