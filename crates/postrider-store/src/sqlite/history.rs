//! Looking back: messages, attempts, and how deliveries fare.

use super::{
    accept::unpack,
    listing::{self, AttemptEntry, FiledThrough, Recent, Run, in_reading_order},
    pieces::{Piece, first_key_at, piece_of, time_of_key},
};
use crate::{
    Attempt, AttemptFilter, AttemptRecord, By, Content, Cut, DeliveryState, Message, MessageFilter, OPERATIONAL, Order,
    Page, Search, Searched, StateKind, Stats,
    rows::{
        codes::{class_code, class_of, death_code, death_of, held_of, rule_of, trigger_of},
        extra::content,
        paging::{Span, in_list_order},
    },
};
use bytes::Bytes;
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, Timestamp,
    lanes::Held,
    policy::{Class, DeathReason, Delay},
};
use rusqlite::{Connection, Row};
use std::{ops::ControlFlow, time::Duration};

pub fn message(
    connection: &Connection,
    pieces: &[Piece],
    app: AppKey,
    by: By<MessageKey>,
) -> rusqlite::Result<Option<Message>> {
    let key = match by {
        By::Key(key) => Some(key.raw()),
        By::Uid(event_id) => super::accept::message_by_event_id(connection, pieces, app.raw(), &event_id)?,
    };
    let Some((key, piece)) = key.and_then(|key| Some((key, piece_of(pieces, key)?))) else { return Ok(None) };
    read_message_of(connection, piece, app, key)
}

/// Another's is not read and then passed over: the longer it is, the longer that would take.
pub fn read_message_of(
    connection: &Connection,
    piece: Piece,
    app: AppKey,
    key: i64,
) -> rusqlite::Result<Option<Message>> {
    let sql = "SELECT key, app, event_type, owed, extra, payload FROM message_{n} WHERE key = ?1 AND app = ?2";
    super::optional(piece.prepare(connection, sql)?.query_row([key, app.raw()], message_from))
}

pub const MESSAGE_COLUMNS: &str = "key, app, event_type, owed, extra, payload";

pub fn read_message(connection: &Connection, piece: Piece, key: i64) -> rusqlite::Result<Option<Message>> {
    let sql = "SELECT key, app, event_type, owed, extra, payload FROM message_{n} WHERE key = ?1";
    super::optional(piece.prepare(connection, sql)?.query_row([key], message_from))
}

pub fn message_from(row: &Row<'_>) -> rusqlite::Result<Message> {
    let key: i64 = row.get(0)?;
    let (content, payload_gone) = content(row.get(2)?, row.get(4)?, row.get(5)?)?;
    Ok(Message {
        key: MessageKey::new(key),
        app: AppKey::new(row.get(1)?),
        accepted_at: time_of_key(key),
        content,
        payload_gone,
        owed: unpack(row.get_ref(3)?.as_blob()?),
    })
}

pub fn messages(
    connection: &Connection,
    pieces: &[Piece],
    of: (AppKey, &Recent<i64>),
    filter: &MessageFilter,
    page: &Page<MessageKey>,
) -> rusqlite::Result<Vec<Message>> {
    let mut found = Vec::new();
    each_message(connection, pieces, of, filter, page, |message| {
        found.push(message);
        Ok(if found.len() == page.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(in_list_order(page, found))
}

/// Walks an application's messages in the page's reading order until told to stop.
fn each_message(
    connection: &Connection,
    pieces: &[Piece],
    of: (AppKey, &Recent<i64>),
    filter: &MessageFilter,
    page: &Page<MessageKey>,
    mut visit: impl FnMut(Message) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    if page.limit == 0 {
        return Ok(());
    }
    let span = Span::of(page, MessageKey::raw).within(filter.after, filter.before);
    listing::each_message(connection, pieces, of, &span, MESSAGE_COLUMNS, |_, row| {
        let message = message_from(row)?;
        if wanted(filter, &message.content) { visit(message) } else { Ok(ControlFlow::Continue(())) }
    })
}

fn wanted(filter: &MessageFilter, content: &Content) -> bool {
    let has = |list: &[String], wanted: &Option<String>| wanted.as_ref().is_none_or(|wanted| list.contains(wanted));
    (filter.event_types.is_empty() || filter.event_types.contains(&content.event_type))
        && has(&content.channels, &filter.channel)
        && has(&content.tags, &filter.tag)
}

const ATTEMPT_COLUMNS: &str = "message, key, endpoint, class, rule, trigger_code, cycle, number, started_at, duration,
    status, url, response, death, next_due, backoff, jitter, retry_after, capped, late, late_why,
    headers";

fn attempt_from(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let duration = |index| Ok::<_, rusqlite::Error>(row.get::<_, Option<u64>>(index)?.map(Duration::from_millis));
    let response: Option<Vec<u8>> = row.get(12)?;
    let delay = Delay {
        backoff: duration(15)?.unwrap_or_default(),
        jitter: duration(16)?.unwrap_or_default(),
        retry_after: duration(17)?,
        capped: row.get::<_, Option<bool>>(18)?.unwrap_or_default(),
    };
    Ok(Attempt {
        key: AttemptKey::new(row.get(1)?),
        id: DeliveryId {
            endpoint: EndpointKey::new(row.get(2)?),
            message: MessageKey::new(row.get(0)?),
            trigger: trigger_of(row.get(5)?)?,
        },
        cycle: row.get(6)?,
        number: row.get(7)?,
        expunged: response.is_none(),
        record: AttemptRecord {
            started_at: Timestamp::from_millis(row.get(8)?),
            duration: Duration::from_millis(row.get(9)?),
            url: row.get::<_, String>(11)?.into(),
            status: row.get(10)?,
            response: response.map(Bytes::from).unwrap_or_default(),
            class: class_of(row.get(3)?)?,
            rule: rule_of(row.get(4)?)?,
            held: match (duration(19)?, row.get::<_, Option<i64>>(20)?) {
                (Some(late), Some(by)) => Some(Held { by: held_of(by)?, late }),
                (None, _) | (_, None) => None,
            },
            headers: row.get::<_, Option<Vec<u8>>>(21)?.map(Bytes::from).unwrap_or_default(),
        },
        next: row.get::<_, Option<i64>>(14)?.map(|due| (Timestamp::from_millis(due), delay)),
        death: row.get::<_, Option<i64>>(13)?.map(death_of).transpose()?,
    })
}

pub fn attempt(
    connection: &Connection,
    pieces: &[Piece],
    message: MessageKey,
    attempt: AttemptKey,
) -> rusqlite::Result<Option<Attempt>> {
    let Some(piece) = piece_of(pieces, message.raw()) else { return Ok(None) };
    let sql = format!("SELECT {ATTEMPT_COLUMNS} FROM attempt_{{n}} WHERE message = ?1 AND key = ?2");
    super::optional(piece.prepare(connection, &sql)?.query_row((message.raw(), attempt.raw()), attempt_from))
}

/// Whose attempts are listed.
pub enum Of {
    Message(MessageKey),
    Endpoint(EndpointKey, Recent<AttemptEntry>),
}

pub fn attempts(
    connection: &Connection,
    pieces: &[Piece],
    of: &Of,
    filter: &AttemptFilter,
    page: &Page<AttemptKey>,
) -> rusqlite::Result<Vec<Attempt>> {
    let span = Span::of(page, AttemptKey::raw).within(filter.message.after, filter.message.before);
    // Of each run as many as are wanted of all: they are put in order only then.
    let (mut found, mut taken) = (Vec::new(), (None, 0));
    let mut take = |run: Run, piece: Piece, row: &Row<'_>| {
        if taken.0 != Some(run) {
            taken = (Some(run), 0);
        }
        if taken.1 == page.limit {
            return Ok(ControlFlow::Break(()));
        }
        let attempt = attempt_from(row)?;
        if attempt_wanted(connection, piece, filter, &attempt)? {
            found.push(attempt);
            taken.1 += 1;
        }
        Ok(ControlFlow::Continue(()))
    };
    match of {
        Of::Message(message) => {
            let Some(piece) = piece_of(pieces, message.raw()) else { return Ok(Vec::new()) };
            let sql = format!(
                "SELECT {ATTEMPT_COLUMNS} FROM attempt_{{n}} WHERE message = ?1 AND key > ?2 AND key < ?3 ORDER BY key {}",
                span.direction()
            );
            let mut select = piece.prepare(connection, &sql)?;
            let mut rows = select.query((message.raw(), span.low, span.high))?;
            while let Some(row) = rows.next()?
                && take(Run::Piece(piece.number), piece, row)?.is_continue()
            {}
        }
        Of::Endpoint(endpoint, recent) => {
            listing::each_attempt(connection, pieces, (*endpoint, recent), &span, ATTEMPT_COLUMNS, take)?;
        }
    }
    match span.reading {
        Order::Ascending => found.sort_by_key(|attempt| attempt.key),
        Order::Descending => found.sort_by_key(|attempt| std::cmp::Reverse(attempt.key)),
    }
    found.truncate(page.limit);
    Ok(in_list_order(page, found))
}

fn attempt_wanted(
    connection: &Connection,
    piece: Piece,
    filter: &AttemptFilter,
    attempt: &Attempt,
) -> rusqlite::Result<bool> {
    let succeeded = attempt.record.class == Class::Delivered;
    let status_class = attempt.record.status.map_or(0, |status| status / 100);
    let by_itself = filter.endpoint.is_none_or(|endpoint| endpoint == attempt.id.endpoint)
        && filter.succeeded.is_none_or(|wanted| wanted == succeeded)
        && filter.status_class.is_none_or(|class| class == status_class);
    let asks_message =
        !filter.message.event_types.is_empty() || filter.message.channel.is_some() || filter.message.tag.is_some();
    if !by_itself || !asks_message {
        return Ok(by_itself);
    }
    let message = read_message(connection, piece, attempt.id.message.raw())?;
    Ok(message.is_some_and(|message| wanted(&filter.message, &message.content)))
}

pub fn deliveries(
    connection: &Connection,
    pieces: &[Piece],
    message: MessageKey,
) -> rusqlite::Result<Vec<(EndpointKey, DeliveryState)>> {
    let snapshot = connection.unchecked_transaction()?;
    let Some(piece) = piece_of(pieces, message.raw()) else { return Ok(Vec::new()) };
    let Some(found) = read_message(&snapshot, piece, message.raw())? else { return Ok(Vec::new()) };
    let mut owed = found.owed;
    owed.sort_unstable();
    owed.into_iter().map(|endpoint| Ok((endpoint, state(&snapshot, piece, message, endpoint)?))).collect()
}

pub fn messages_of_endpoint(
    connection: &Connection,
    pieces: &[Piece],
    (of, endpoint): ((AppKey, &Recent<i64>), EndpointKey),
    filter: &MessageFilter,
    states: &[StateKind],
    page: &Page<MessageKey>,
) -> rusqlite::Result<Vec<(Message, DeliveryState)>> {
    let mut found = Vec::new();
    each_message(connection, pieces, of, filter, page, |message| {
        let Some(piece) = piece_of(pieces, message.key.raw()).filter(|_| message.owed.contains(&endpoint)) else {
            return Ok(ControlFlow::Continue(()));
        };
        let state = state(connection, piece, message.key, endpoint)?;
        if states.is_empty() || states.contains(&state.kind()) {
            found.push((message, state));
        }
        Ok(if found.len() == page.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(in_list_order(page, found))
}

pub fn search(
    connection: &Connection,
    pieces: &[Piece],
    app: Option<(AppKey, &Recent<i64>)>,
    search: &Search,
) -> rusqlite::Result<Searched> {
    let snapshot = connection.unchecked_transaction()?;
    let page = Page { from: search.past.map(Cut::Past), order: Order::Descending, limit: search.limit };
    let span = Span::of(&page, MessageKey::raw).within(search.filter.after, search.filter.before);
    let (mut found, mut looked, mut last, mut until) = (Vec::new(), 0, search.past, None);
    let look = |piece: Piece, row: &Row<'_>| {
        if found.len() == search.limit || looked >= search.look_max {
            until = last;
            return Ok(ControlFlow::Break(()));
        }
        let message = message_from(row)?;
        (looked, last) = (looked + 1, Some(message.key));
        if app.is_none() && message.app == OPERATIONAL {
            return Ok(ControlFlow::Continue(()));
        }
        let Some(concerned) = search.concerned(&message.owed).filter(|_| wanted(&search.filter, &message.content))
        else {
            return Ok(ControlFlow::Continue(()));
        };
        looked += concerned.len().saturating_sub(1);
        let states = concerned.into_iter().map(|endpoint| {
            let state = state(&snapshot, piece, message.key, endpoint)?;
            Ok((endpoint, state))
        });
        let states = states.collect::<rusqlite::Result<Vec<_>>>()?;
        if search.finds(&states) {
            found.push((message, states));
        }
        Ok(ControlFlow::Continue(()))
    };
    match app {
        Some(of) => listing::each_message(&snapshot, pieces, of, &span, MESSAGE_COLUMNS, look)?,
        None => each_of_all(&snapshot, pieces, &span, look)?,
    }
    Ok(Searched { found, until })
}

/// Walks the messages of all applications, the latest first, until told to stop.
fn each_of_all(
    connection: &Connection,
    pieces: &[Piece],
    span: &Span,
    mut visit: impl FnMut(Piece, &Row<'_>) -> rusqlite::Result<ControlFlow<()>>,
) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT {MESSAGE_COLUMNS} FROM message_{{n}} WHERE key > ?1 AND key < ?2 ORDER BY key {}",
        span.direction()
    );
    for piece in in_reading_order(pieces, span) {
        let mut select = piece.prepare(connection, &sql)?;
        let mut rows = select.query((span.low, span.high))?;
        while let Some(row) = rows.next()? {
            if visit(piece, row)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A success once is a success for good; otherwise what waits counts, then what is dead.
fn state(
    connection: &Connection,
    piece: Piece,
    message: MessageKey,
    endpoint: EndpointKey,
) -> rusqlite::Result<DeliveryState> {
    let both = (endpoint.raw(), message.raw());
    let delivered: bool = piece.prepare(connection, IS_DELIVERED)?.query_row(both, |row| row.get(0))?;
    if delivered {
        return Ok(DeliveryState::Delivered);
    }
    let waiting = super::optional(
        connection
            .prepare_cached(
                "SELECT due, attempts + cycle FROM waiting WHERE endpoint = ?1 AND message = ?2 AND trigger_code = 0",
            )?
            .query_row(both, |row| Ok((Timestamp::from_millis(row.get(0)?), row.get::<_, i64>(1)?))),
    )?;
    if let Some((due, tried)) = waiting {
        return Ok(if tried > 0 { DeliveryState::Sending { due } } else { DeliveryState::Pending { due: Some(due) } });
    }
    let dead = super::optional(
        connection
            .prepare_cached("SELECT at, reason FROM dead WHERE endpoint = ?1 AND message = ?2 AND open <> 0")?
            .query_row(both, |row| Ok((Timestamp::from_millis(row.get(0)?), death_of(row.get(1)?)?))),
    )?;
    Ok(match dead {
        Some((at, reason)) => DeliveryState::Dead { at, reason },
        None => DeliveryState::Pending { due: None },
    })
}

const IS_DELIVERED: &str =
    "SELECT EXISTS (SELECT 1 FROM attempt_{n} WHERE message = ?2 AND endpoint = ?1 AND class = 0)";

pub fn stats(
    connection: &Connection,
    pieces: &[Piece],
    (endpoint, filed): (EndpointKey, FiledThrough),
    (since, until): (Timestamp, Timestamp),
    outstanding: &[i64],
) -> rusqlite::Result<Stats> {
    let snapshot = connection.unchecked_transaction()?;
    let (from, to) = (first_key_at(since), first_key_at(until));
    let mut stats = Stats::default();
    let delivered = class_code(Class::Delivered);
    stats.success = listing::count_messages_tried(&snapshot, pieces, (endpoint, filed), (from, to), delivered)?;
    (stats.pending, stats.sending) = snapshot
        .prepare_cached(
            "SELECT count(*) FILTER (WHERE attempts + cycle = 0), count(*) FILTER (WHERE attempts + cycle > 0)
             FROM waiting WHERE endpoint = ?1 AND message >= ?2 AND message < ?3 AND trigger_code = 0",
        )?
        .query_row((endpoint.raw(), from, to), |row| Ok((row.get(0)?, row.get(1)?)))?;
    // What arrived and was put on its way again is counted as delivered already.
    let again: Vec<i64> = snapshot
        .prepare_cached(
            "SELECT message FROM waiting
             WHERE endpoint = ?1 AND message >= ?2 AND message < ?3 AND trigger_code = 0 AND cycle > 0",
        )?
        .query_map((endpoint.raw(), from, to), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for message in again {
        let Some(piece) = piece_of(pieces, message) else { continue };
        if state(&snapshot, piece, MessageKey::new(message), endpoint)? == DeliveryState::Delivered {
            stats.sending -= 1;
        }
    }
    (stats.fail, stats.canceled) = snapshot
        .prepare_cached(
            "SELECT count(*) FILTER (WHERE reason <> ?4), count(*) FILTER (WHERE reason = ?4)
             FROM dead WHERE endpoint = ?1 AND message >= ?2 AND message < ?3 AND open <> 0",
        )?
        .query_row((endpoint.raw(), from, to, death_code(DeathReason::Cancelled)), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    for message in outstanding.iter().filter(|message| (from..to).contains(message)) {
        let Some(piece) = piece_of(pieces, *message) else { continue };
        // Between the list and this look it may have got its row, and is counted then.
        if state(&snapshot, piece, MessageKey::new(*message), endpoint)? == (DeliveryState::Pending { due: None }) {
            stats.pending += 1;
        }
    }
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn how_a_delivery_stands_is_looked_up_by_its_message() {
        let mut connection = super::super::open_in_memory();
        schema::migrate(&mut connection).unwrap();
        let transaction = connection.transaction().unwrap();
        schema::create_piece(&transaction, 1, 0).unwrap();
        let plan: Vec<String> = transaction
            .prepare(&format!("EXPLAIN QUERY PLAN {}", IS_DELIVERED.replace("{n}", "1")))
            .unwrap()
            .query_map((1, 1), |row| row.get("detail"))
            .unwrap()
            .collect::<rusqlite::Result<_>>()
            .unwrap();
        assert!(plan.contains(&"SEARCH attempt_1 USING PRIMARY KEY (message=?)".to_owned()), "{plan:?}");
    }
}
