//! Forgetting what is past its time, without holding up the writer.
//!
//! A piece of history goes as a whole, once everything in it is old enough: it is first hidden from readers, then
//! emptied in slices between other people's commits, then dropped. An emptied table drops in no time.
//!
//! Where payloads or attempts are to be forgotten before the rest, a cursor moves through the messages behind that time,
//! a slice at a call, and never comes back. What it has to leave behind, because something still waits for it or is too
//! young, is written down in `left_behind` and looked at again, a slice at a call, round and round.

use super::{
    accept::{WHOLE_LANE, unpack},
    callers, load,
    pieces::{Piece, first_key_at, piece_of, time_of_key, within},
    refused,
    schema::PIECE_TABLES,
    tallies,
    writer::{Batch, note, noted},
};
use crate::Retention;
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};
use rusqlite::Connection;
use std::{collections::HashSet, time::Duration};

/// Rows forgotten in one go.
const SLICE: usize = 2_000;

/// Messages looked at in one go, where each takes several looks.
const LOOK: usize = 500;

/// How far payloads and attempts are forgotten.
const PAYLOADS_THROUGH: &str = "payloads_forgotten_through";
const ATTEMPTS_THROUGH: &str = "attempts_forgotten_through";
/// How far the rounds have come.
const PAYLOADS_ROUND: &str = "payloads_left_behind_round";
const ATTEMPTS_ROUND: &str = "attempts_left_behind_round";
const SEQUENCES_ROUND: &str = "sequences_round";
/// Of which hidden piece the dead letters are being forgotten, and through which endpoint.
const RETIRED_ROUND: &str = "retired_dead_round";
/// Up to which message pieces were old enough to go, but none could, and when that was found.
const NONE_TO_RETIRE: &str = "none_to_retire";

/// To find out which pieces can go takes a look at every lane, and what waits in an old one may do so for days.
const NEXT_LOOK_AFTER: Duration = Duration::from_mins(10);

pub fn tidy(batch: &mut Batch<'_>, now: Timestamp, retention: Retention) -> rusqlite::Result<bool> {
    let (payloads_before, attempts_before) = (now.minus(retention.payloads), now.minus(retention.attempts));
    let dead_before = now.minus(retention.dead_letters);
    // A dead letter is nothing without its message.
    let all_before = payloads_before.min(attempts_before).min(dead_before);
    let mut more = expire_payloads(batch, now)?;
    more |= forget_answers(batch, now.minus(retention.idempotency))?;
    more |= callers::forget_revocations(batch, now, SLICE)?;
    more |= tallies::forget(batch, now, SLICE)?;
    more |= refused::forget(batch, now, SLICE)?;
    more |= retire_dead_letters(batch, dead_before)?;
    more |= forget_jobs(batch, attempts_before)?;
    if payloads_before > all_before {
        more |= walk(batch, Left::Payload, payloads_before)?;
    }
    if attempts_before > all_before {
        more |= walk(batch, Left::Attempts, attempts_before)?;
    }
    look_again(batch, Left::Payload, payloads_before)?;
    look_again(batch, Left::Attempts, attempts_before)?;
    forget_sequences(batch, all_before)?;
    more |= drop_retired(batch)?;
    // Keys tell the time to pieces. Without this, a store that nothing comes to would keep its last piece for ever.
    batch.minter.mint(now);
    batch.begin_piece_if_due()?;
    more |= retire_one(batch, all_before, now)?;
    Ok(more)
}

/// Removes a payload for good, and the headers that it came with. False if there is no such message.
pub fn expunge(batch: &Batch<'_>, app: AppKey, message: MessageKey) -> rusqlite::Result<bool> {
    let Some(piece) = batch.piece_of(message.raw()) else { return Ok(false) };
    let sql =
        "UPDATE message_{n} SET payload = NULL, extra = json_remove(extra, '$.received') WHERE key = ?1 AND app = ?2";
    Ok(piece.prepare(&batch.transaction, sql)?.execute((message.raw(), app.raw()))? == 1)
}

/// A message is put on its way again. If the forgetting has passed it, its new attempts would never be forgotten.
pub fn expect_attempts(batch: &Batch<'_>, message: MessageKey) -> rusqlite::Result<()> {
    let passed = noted(&batch.transaction, ATTEMPTS_THROUGH)?.is_some_and(|through| message.raw() <= through);
    if passed {
        leave_behind(batch, Left::Attempts, message.raw())?;
    }
    Ok(())
}

/// Forgets the payloads whose senders gave them a time of their own, whether something waits for them or not.
fn expire_payloads(batch: &Batch<'_>, now: Timestamp) -> rusqlite::Result<bool> {
    let expired: Vec<(i64, i64)> = batch
        .transaction
        .prepare_cached("SELECT at, message FROM payload_expiry WHERE at <= ?1 LIMIT ?2")?
        .query_map((now.as_millis(), SLICE), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (at, message) in &expired {
        if let Some(piece) = piece_of(batch.pieces(), *message) {
            let sql = "UPDATE message_{n} SET payload = NULL, extra = json_remove(extra, '$.received') WHERE key = ?1";
            piece.prepare(&batch.transaction, sql)?.execute([message])?;
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

fn retire_dead_letters(batch: &Batch<'_>, before: Timestamp) -> rusqlite::Result<bool> {
    let retired = batch
        .transaction
        .prepare_cached(
            "UPDATE dead SET open = 2 WHERE (endpoint, message) IN
                 (SELECT endpoint, message FROM dead INDEXED BY dead_at WHERE open = 1 AND at < ?1 LIMIT ?2)",
        )?
        .execute((before.as_millis(), SLICE))?;
    Ok(retired == SLICE)
}

fn forget_jobs(batch: &Batch<'_>, before: Timestamp) -> rusqlite::Result<bool> {
    let forgotten = batch
        .transaction
        .prepare_cached(
            "DELETE FROM job WHERE key IN
                 (SELECT key FROM job WHERE key < ?1 AND status <> 0 AND updated_at < ?2 LIMIT ?3)",
        )?
        .execute((first_key_at(before), before.as_millis(), SLICE))?;
    Ok(forgotten == SLICE)
}

/// What can be left behind when a message is passed; the code is its `what`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Payload = 0,
    Attempts = 1,
}

impl Left {
    fn through(self) -> &'static str {
        match self {
            Self::Payload => PAYLOADS_THROUGH,
            Self::Attempts => ATTEMPTS_THROUGH,
        }
    }

    fn round(self) -> &'static str {
        match self {
            Self::Payload => PAYLOADS_ROUND,
            Self::Attempts => ATTEMPTS_ROUND,
        }
    }
}

/// Moves the cursor on by a slice of messages.
fn walk(batch: &Batch<'_>, left: Left, before: Timestamp) -> rusqlite::Result<bool> {
    let connection = &batch.transaction;
    let reached = noted(connection, left.through())?.unwrap_or(-1);
    let end = first_key_at(before).min(batch.oldest_handed.unwrap_or(i64::MAX));
    let mut passed: Vec<(Piece, i64)> = Vec::new();
    for piece in within(batch.pieces(), reached, end) {
        let mut select = piece
            .prepare(connection, "SELECT key FROM message_{n} WHERE key > ?1 AND key < ?2 ORDER BY key LIMIT ?3")?;
        for key in select.query_map((reached, end, LOOK - passed.len()), |row| row.get(0))? {
            passed.push((piece, key?));
        }
        if passed.len() == LOOK {
            break;
        }
    }
    for (piece, message) in &passed {
        if !forget(batch, *piece, *message, left, before)? {
            leave_behind(batch, left, *message)?;
        }
    }
    if let Some((_, last)) = passed.last() {
        note(connection, left.through(), *last)?;
    }
    Ok(passed.len() == LOOK)
}

fn leave_behind(batch: &Batch<'_>, left: Left, message: i64) -> rusqlite::Result<()> {
    batch
        .transaction
        .prepare_cached("INSERT OR IGNORE INTO left_behind VALUES (?1, ?2)")?
        .execute((left as i64, message))?;
    Ok(())
}

fn look_again(batch: &Batch<'_>, left: Left, before: Timestamp) -> rusqlite::Result<()> {
    let connection = &batch.transaction;
    let reached = noted(connection, left.round())?.unwrap_or(-1);
    let found: Vec<i64> = connection
        .prepare_cached("SELECT message FROM left_behind WHERE what = ?1 AND message > ?2 ORDER BY message LIMIT ?3")?
        .query_map((left as i64, reached, LOOK), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for message in &found {
        let is_over = match piece_of(batch.pieces(), *message) {
            Some(piece) => *message < first_key_at(before) && forget(batch, piece, *message, left, before)?,
            None => true,
        };
        if is_over {
            connection
                .prepare_cached("DELETE FROM left_behind WHERE what = ?1 AND message = ?2")?
                .execute((left as i64, message))?;
        }
    }
    let next = found.last().filter(|_| found.len() == LOOK).copied().unwrap_or(-1);
    if next != reached {
        note(connection, left.round(), next)?;
    }
    Ok(())
}

/// Forgets a message's payload or attempts. False if something has to be kept for now.
fn forget(batch: &Batch<'_>, piece: Piece, message: i64, left: Left, before: Timestamp) -> rusqlite::Result<bool> {
    let connection = &batch.transaction;
    match left {
        Left::Payload => {
            if is_awaited(batch, piece, message)? {
                return Ok(false);
            }
            let sql = "UPDATE message_{n} SET payload = NULL, extra = json_remove(extra, '$.received')
                WHERE key = ?1 AND payload IS NOT NULL";
            piece.prepare(connection, sql)?.execute([message])?;
            Ok(true)
        }
        Left::Attempts => {
            let end = first_key_at(before);
            // Class, rule and status stay: how the delivery stands rests on them.
            piece
                .prepare(
                    connection,
                    "UPDATE attempt_{n} SET response = NULL, headers = NULL, url = ''
                     WHERE message = ?1 AND key < ?2 AND (response IS NOT NULL OR url <> '')",
                )?
                .execute((message, end))?;
            let has_young: bool = piece
                .prepare(connection, "SELECT EXISTS (SELECT 1 FROM attempt_{n} WHERE message = ?1 AND key >= ?2)")?
                .query_row((message, end), |row| row.get(0))?;
            Ok(!has_young && !is_awaited(batch, piece, message)?)
        }
    }
}

/// Whether a delivery of the message is still to be sent.
fn is_awaited(batch: &Batch<'_>, piece: Piece, message: i64) -> rusqlite::Result<bool> {
    let connection = &batch.transaction;
    let owed: Option<Vec<EndpointKey>> = super::optional(
        piece
            .prepare(connection, "SELECT owed FROM message_{n} WHERE key = ?1")?
            .query_row([message], |row| Ok(unpack(row.get_ref(0)?.as_blob()?))),
    )?;
    let mut waits =
        connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND message = ?2)")?;
    for endpoint in owed.unwrap_or_default() {
        if batch.is_handed(MessageKey::new(message), endpoint)
            || waits.query_row((endpoint.raw(), message), |row| row.get(0))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Forgets counters that nothing has used for as long as anything is kept. Looks at a slice of them at a call, round and
/// round. A message that still waits keeps its counter, or the next one would get the same number.
fn forget_sequences(batch: &Batch<'_>, before: Timestamp) -> rusqlite::Result<()> {
    if batch.oldest_handed.is_some_and(|oldest| time_of_key(oldest) < before) {
        return Ok(());
    }
    let connection = &batch.transaction;
    let reached = noted_pair(connection, SEQUENCES_ROUND)?;
    let found: Vec<(i64, i64, i64)> = connection
        .prepare_cached(
            "SELECT endpoint, order_key, used_at FROM sequence WHERE (endpoint, order_key) > (?1, ?2)
             ORDER BY endpoint, order_key LIMIT ?3",
        )?
        .query_map((reached.0, reached.1, LOOK), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (endpoint, order, _) in found.iter().filter(|(.., used_at)| *used_at < before.as_millis()) {
        let waits = match *order == WHOLE_LANE {
            true => "EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1)",
            false => "EXISTS (SELECT 1 FROM waiting WHERE endpoint = ?1 AND order_key = ?2)",
        };
        connection
            .prepare_cached(&format!("DELETE FROM sequence WHERE endpoint = ?1 AND order_key = ?2 AND NOT {waits}"))?
            .execute((endpoint, order))?;
    }
    let last = found.last().filter(|_| found.len() == LOOK);
    let next = last.map_or(START_OF_ROUND, |(endpoint, order, _)| (*endpoint, *order));
    if next != reached {
        note_pair(connection, SEQUENCES_ROUND, next)?;
    }
    Ok(())
}

const START_OF_ROUND: (i64, i64) = (i64::MIN, i64::MIN);

fn noted_pair(connection: &Connection, name: &str) -> rusqlite::Result<(i64, i64)> {
    let value: Option<[u8; 16]> = super::optional(
        connection.prepare_cached("SELECT value FROM note WHERE name = ?1")?.query_row([name], |row| row.get(0)),
    )?;
    let Some(value) = value else { return Ok(START_OF_ROUND) };
    let both = i128::from_be_bytes(value);
    Ok(((both >> 64) as i64, both as i64))
}

fn note_pair(connection: &Connection, name: &str, (first, second): (i64, i64)) -> rusqlite::Result<()> {
    let both = i128::from(first) << 64 | i128::from(second.cast_unsigned());
    connection.prepare_cached("INSERT OR REPLACE INTO note VALUES (?1, ?2)")?.execute((name, both.to_be_bytes()))?;
    Ok(())
}

/// Hides one piece that ends before `before` and in which nothing waits any more: what still waits is kept, however old
/// it is, and its history with it.
fn retire_one(batch: &mut Batch<'_>, before: Timestamp, now: Timestamp) -> rusqlite::Result<bool> {
    let pieces = batch.pieces().clone();
    let old: Vec<(Piece, i64)> = pieces
        .windows(2)
        .map(|pair| (pair[0], pair[1].first_key))
        .take_while(|(_, end)| time_of_key(*end) < before && batch.oldest_handed.is_none_or(|oldest| *end <= oldest))
        .collect();
    let Some((_, end_of_all)) = old.last() else { return Ok(false) };
    let (looked_through, looked_at) = noted_pair(&batch.transaction, NONE_TO_RETIRE)?;
    let looked_at = Timestamp::from_millis(looked_at);
    // A clock that was set back must not put the next look off.
    if looked_through == *end_of_all && looked_at <= now && now.since(looked_at) < NEXT_LOOK_AFTER {
        return Ok(false);
    }
    let awaited = pieces_with_waiting(&batch.transaction, &pieces, *end_of_all)?;
    let Some((piece, end)) = old.iter().find(|(piece, _)| !awaited.contains(&piece.number)) else {
        note_pair(&batch.transaction, NONE_TO_RETIRE, (*end_of_all, now.as_millis()))?;
        return Ok(false);
    };
    batch.transaction.execute("UPDATE piece SET retired = 1 WHERE number = ?1", [piece.number])?;
    forget_dead_between(&batch.transaction, i64::MIN, piece.first_key, *end)?;
    batch.replace_pieces(pieces.iter().filter(|kept| kept.number != piece.number).copied().collect());
    Ok(true)
}

/// Forgets dead letters of messages that are gone, endpoint by endpoint past `from`; there is no index by message alone.
/// Says how far it came; `None`: to the end. Those that are left are in no list, because their message is missing.
fn forget_dead_between(connection: &Connection, from: i64, first_key: i64, end: i64) -> rusqlite::Result<Option<i64>> {
    let (mut reached, mut room) = (from, SLICE);
    for _ in 0..LOOK {
        let next = super::optional(
            connection
                .prepare_cached("SELECT endpoint FROM dead WHERE endpoint > ?1 ORDER BY endpoint LIMIT 1")?
                .query_row([reached], |row| row.get::<_, i64>(0)),
        )?;
        let Some(endpoint) = next else { return Ok(None) };
        room -= connection
            .prepare_cached(
                "DELETE FROM dead WHERE endpoint = ?1 AND message IN
                     (SELECT message FROM dead WHERE endpoint = ?1 AND message >= ?2 AND message < ?3 LIMIT ?4)",
            )?
            .execute((endpoint, first_key, end, room))?;
        if room == 0 {
            break;
        }
        reached = endpoint;
    }
    Ok(Some(reached))
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
    let end: i64 = connection
        .prepare_cached("SELECT min(first_key) FROM piece WHERE number > ?1")?
        .query_row([number], |row| row.get(0))?;
    let from = match noted_pair(connection, RETIRED_ROUND)? {
        (of, reached) if of == number => reached,
        _ => i64::MIN,
    };
    if from != i64::MAX {
        let reached = forget_dead_between(connection, from, piece.first_key, end)?;
        note_pair(connection, RETIRED_ROUND, (number, reached.unwrap_or(i64::MAX)))?;
        if reached.is_some() {
            return Ok(true);
        }
    }
    for table in PIECE_TABLES {
        let key = match table {
            "attempt" => "message, key",
            "event_id" => "app, event_id",
            "idempotency" => "run, key",
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
    // Not before: a list that began when the piece was shown reads it to its end.
    connection.execute_batch(&format!("DROP TABLE by_app_{number}; DROP TABLE by_endpoint_{number};"))?;
    connection.execute("DELETE FROM piece WHERE number = ?1", [number])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        NewMessage, SqliteOptions, SqliteStore, Store, Task, TaskKey, TaskKind, TaskStatus,
        conformance::fixtures::{
            DAY, START, accept, add_application, add_endpoint, all_messages, at, delivered, failed, message, scheduled,
            settle, stats, stored, tidy_up,
        },
    };

    #[tokio::test]
    async fn a_piece_that_could_not_go_is_looked_at_again_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions { piece_messages_max: 1, ..SqliteOptions::default() };
        let store = SqliteStore::open_with(folder.path(), START, options).unwrap();
        let app = add_application(&store, None).await.key;
        let lane = add_endpoint(&store, app, None).await.key;
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(scheduled(lane, accept(&store, NewMessage { owed: vec![lane], ..message(app, START) }).await));
        }
        settle(&store, vec![failed(ids[0], at(1), at(90 * DAY)), delivered(ids[1], at(1))]).await;
        let day = Duration::from_hours(24);
        let keep = Retention { payloads: day, attempts: day, dead_letters: day, idempotency: day };
        let left_at = async |millis: i64| {
            tidy_up(&store, at(10 * DAY + millis), keep).await;
            all_messages(&store, app).await.len()
        };
        assert_eq!(left_at(0).await, 1, "the first waits for its retry");
        settle(&store, vec![stored(delivered(ids[0], at(10 * DAY)))]).await;
        let soon = NEXT_LOOK_AFTER.as_millis() as i64;
        assert_eq!((left_at(1).await, left_at(soon - 1).await), (1, 1), "there is no hurry");
        assert_eq!(left_at(soon).await, 0);
    }
    /// What is gone and had not been filed into lists yet lay between two pieces that are kept.
    #[tokio::test]
    async fn what_is_forgotten_before_it_is_filed_is_counted_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let options =
            SqliteOptions { piece_messages_max: 1, listed_recent_max: 8, filed_at_once: 1, ..SqliteOptions::default() };
        let store = SqliteStore::open_with(folder.path(), START, options).unwrap();
        let app = add_application(&store, None).await.key;
        let lane = add_endpoint(&store, app, None).await.key;
        let mut ids = Vec::new();
        let next =
            async |at| scheduled(lane, accept(&store, NewMessage { owed: vec![lane], ..message(app, at) }).await);
        for _ in 0..3 {
            ids.push(next(START).await);
        }
        settle(&store, vec![failed(ids[0], at(1), at(90 * DAY)), delivered(ids[1], at(1)), delivered(ids[2], at(1))])
            .await;
        ids.push(next(at(10 * DAY)).await);
        let day = Duration::from_hours(24);
        let keep = Retention { payloads: day, attempts: day, dead_letters: day, idempotency: day };
        tidy_up(&store, at(10 * DAY), keep).await;
        let left = [ids[0].message, ids[3].message];
        assert_eq!(all_messages(&store, app).await, left);
        assert_eq!(stats(&store, lane).await.success, 0);
        let purge = Task {
            key: TaskKey(store.mint(at(10 * DAY)).await.unwrap()),
            app,
            kind: TaskKind::Purge,
            total: None,
            done: 0,
            changed: 0,
            status: TaskStatus::Running,
            created_at: at(10 * DAY),
            updated_at: at(10 * DAY),
        };
        store.start_task(purge.clone(), None).await.unwrap();
        assert_eq!(store.advance_task(purge.key, at(10 * DAY)).await.unwrap().unwrap().total, Some(2));

        for id in &ids[2..] {
            settle(&store, vec![delivered(*id, at(10 * DAY))]).await;
        }
        for _ in 0..20 {
            next(at(10 * DAY)).await;
        }
        store.close().await;
        let raw = Connection::open(folder.path().join(SqliteStore::FILE)).unwrap();
        let listed: Vec<i64> = raw
            .prepare("SELECT listed FROM by_app_1")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<rusqlite::Result<_>>()
            .unwrap();
        assert_eq!(listed, [ids[0].message.raw()], "nobody else's is filed with the first");
    }
}
