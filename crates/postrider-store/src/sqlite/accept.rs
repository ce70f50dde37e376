//! Accepting a message: one row that holds the payload and the list of endpoints it is owed to.
//!
//! A delivery gets a row of its own only when its first attempt has an outcome, or when it must wait. Until
//! then the message's row is its durable form; see `recover.rs` for how it is found again after a crash.

use super::{
    pieces::{Piece, first_key_at, time_of_key},
    repeats::{self, Seen},
    settle::{Cycle, start_waiting},
    writer::Batch,
};
use crate::{
    AcceptError, Accepted, Committed, Content, IDEMPOTENCY_MEMORY, Idempotency, Letter, NewMessage, intake::Room,
    rows::extra::Extra, step,
};
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger};
use rusqlite::Connection;
use std::sync::Arc;

pub fn accept(
    batch: &mut Batch<'_>,
    message: NewMessage,
    room: Room,
) -> rusqlite::Result<Result<Accepted, AcceptError>> {
    if let Some(idempotency) = &message.idempotency
        && let Some(earlier) = accepted_before(batch, idempotency, message.at)?
    {
        return Ok(if idempotency.chosen && earlier.request != idempotency.request {
            Err(AcceptError::KeyReused)
        } else {
            Ok(Accepted::Before(MessageKey::new(earlier.message)))
        });
    }
    if let Some(event_id) = &message.content.event_id
        && message_by_event_id(&batch.transaction, batch.pieces(), message.app.raw(), event_id)?.is_some()
    {
        return Ok(Err(AcceptError::EventIdTaken));
    }
    let key = batch.minter.mint(message.at);
    let order = message.content.ordering_key.as_deref().map(OrderKey::of);
    let sequences = count(batch, &message, order)?;
    insert(batch, key, &message, &sequences)?;
    batch.list_message(message.app, key);
    step!("store.accepted");

    let NewMessage { app, at, content, owed, idempotency, trace, .. } = message;
    if let Some(idempotency) = idempotency {
        batch.recognise(idempotency.key, Seen { message: key, request: idempotency.request });
    }
    if let Some(due) = content.deliver_at.filter(|due| *due > at) {
        batch.hand_over(key, &[], None);
        for endpoint in owed {
            let id = DeliveryId { endpoint, message: MessageKey::new(key), trigger: Trigger::Scheduled };
            // How long it may wait untried counts from when it was wanted, not from when it was handed in.
            start_waiting(&batch.transaction, id, order, due, Cycle::Again { number: 0, queued_at: due })?;
            batch.announce(Committed::Waiting { endpoint, due });
        }
        return Ok(Ok(Accepted::Now(MessageKey::new(key))));
    }
    batch.hand_over(key, &owed, Some(room));
    if !owed.is_empty() {
        let letter = Arc::new(Letter {
            message: MessageKey::new(key),
            app,
            event_type: content.event_type,
            content_type: content.content_type,
            payload: Some(content.payload),
            accepted_at: time_of_key(key),
            order,
            sequences,
            trace,
            headers: Extra::passed_on(content.received),
        });
        batch.announce(Committed::Message { letter, owed });
    }
    Ok(Ok(Accepted::Now(MessageKey::new(key))))
}

/// Which number the message has at each endpoint that counts it. All FIFO deliveries of an endpoint are counted together,
/// the others by their ordering key.
fn count(
    batch: &Batch<'_>,
    message: &NewMessage,
    order: Option<OrderKey>,
) -> rusqlite::Result<Vec<(EndpointKey, u64)>> {
    let mut sequences = Vec::new();
    for endpoint in &message.owed {
        let whole_lane = message.fifo.contains(endpoint).then_some(WHOLE_LANE);
        let Some(counter) = whole_lane.or(order.map(OrderKey::raw)) else { continue };
        let number = batch
            .transaction
            .prepare_cached(
                "INSERT INTO sequence (endpoint, order_key, last, used_at) VALUES (?1, ?2, 1, ?3)
                 ON CONFLICT DO UPDATE SET last = last + 1, used_at = ?3 RETURNING last",
            )?
            .query_row((endpoint.raw(), counter, message.at.as_millis()), |row| row.get(0))?;
        sequences.push((*endpoint, number));
    }
    Ok(sequences)
}

/// Stands for an ordering key in the counter of a FIFO endpoint.
pub const WHOLE_LANE: i64 = 0;

fn insert(
    batch: &mut Batch<'_>,
    key: i64,
    message: &NewMessage,
    sequences: &[(EndpointKey, u64)],
) -> rusqlite::Result<()> {
    let piece = batch.current_piece();
    let Content { event_type, event_id, channels, tags, content_type, ordering_key, deliver_at, received, payload } =
        &message.content;
    let extra = Extra {
        event_id: event_id.clone(),
        channels: channels.clone(),
        tags: tags.clone(),
        content_type: content_type.clone(),
        ordering_key: ordering_key.clone(),
        deliver_at: deliver_at.map(Timestamp::as_millis),
        sequences: sequences.iter().map(|(endpoint, number)| (endpoint.raw(), *number)).collect(),
        trace: message.trace.clone(),
        received: received.clone(),
    };
    let extra = (extra != Extra::default()).then(|| serde_json::to_string(&extra).expect("strings become JSON"));
    batch.insert_message.on(piece)?.execute((
        key,
        message.app.raw(),
        event_type,
        pack(&message.owed),
        extra,
        message.idempotency.map(|repeat| repeats::pack(&repeat.key, &repeat.request)),
        payload.as_ref(),
    ))?;
    let connection = &batch.transaction;
    if let Some(event_id) = event_id {
        piece.prepare(connection, "INSERT INTO event_id_{n} VALUES (?1, ?2, ?3)")?.execute((
            message.app.raw(),
            event_id,
            key,
        ))?;
    }
    if let Some(at) = message.payload_expires_at {
        connection.prepare_cached("INSERT INTO payload_expiry VALUES (?1, ?2)")?.execute((at.as_millis(), key))?;
    }
    Ok(())
}

pub const INSERT_MESSAGE: &str = "INSERT INTO message_{n} VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

fn accepted_before(batch: &Batch<'_>, idempotency: &Idempotency, at: Timestamp) -> rusqlite::Result<Option<Seen>> {
    let pieces = batch.pieces();
    let remembered_from = first_key_at(at.minus(IDEMPOTENCY_MEMORY)).max(pieces[0].first_key);
    let is_remembered = |seen: &Seen| seen.message >= remembered_from;
    if let Some(seen) = batch.recognised(&idempotency.key).filter(is_remembered)
        && is_there(batch, seen)?
    {
        return Ok(Some(seen));
    }
    let oldest = pieces.partition_point(|piece| piece.first_key <= remembered_from).saturating_sub(1);
    for piece in pieces[oldest..].iter().rev().filter(|piece| batch.may_be_filed(**piece, &idempotency.key)) {
        let found = repeats::filed(&batch.transaction, *piece, &idempotency.key)?.filter(is_remembered);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// A piece between others may have been forgotten, and what is remembered of its messages leads nowhere.
fn is_there(batch: &Batch<'_>, seen: Seen) -> rusqlite::Result<bool> {
    let Some(piece) = batch.piece_of(seen.message) else { return Ok(false) };
    let sql = "SELECT EXISTS (SELECT 1 FROM message_{n} WHERE key = ?1)";
    piece.prepare(&batch.transaction, sql)?.query_row([seen.message], |row| row.get(0))
}

pub fn message_by_event_id(
    connection: &Connection,
    pieces: &[Piece],
    app: i64,
    event_id: &str,
) -> rusqlite::Result<Option<i64>> {
    for piece in pieces.iter().rev() {
        let mut find =
            piece.prepare(connection, "SELECT message FROM event_id_{n} WHERE app = ?1 AND event_id = ?2")?;
        let found = super::optional(find.query_row((app, event_id), |row| row.get(0)))?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Endpoint keys side by side, eight bytes each.
pub fn pack(owed: &[EndpointKey]) -> Vec<u8> {
    owed.iter().flat_map(|endpoint| endpoint.raw().to_be_bytes()).collect()
}

pub fn unpack(packed: &[u8]) -> Vec<EndpointKey> {
    let (keys, _) = packed.as_chunks::<8>();
    keys.iter().map(|key| EndpointKey::new(i64::from_be_bytes(*key))).collect()
}
