//! SQLite: one file, which may be the one that the receiver's own tables are in.
//!
//! All goes through one thread with one connection, which commits for all who wait at once: a disk that syncs a hundred
//! times a second still takes in thousands of events. If more than 512 calls wait for it, further ones fail at once: a door answers 503.

mod effects;
mod writer;

pub use effects::{ProcessError, clean_effects, process};
pub use rusqlite;

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};
use writer::Writer;

use crate::{Event, EventKey, Place, Timestamp, event::headers, sequence::*, store::*};

pub struct SqliteStore {
    writer: Writer,
}

impl SqliteStore {
    /// Opens the file, or makes it; `migrate` makes the tables. Other connections may have it open, also in other processes: those
    /// that write should have a `busy_timeout`.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // With less, a power cut takes events that were answered with 2xx.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(Self { writer: Writer::start(connection)? })
    }

    async fn write<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        self.writer.write(job).await
    }
}

/// Makes the inbox's tables, or brings them up to date, by a connection of the caller's own: for those who use nothing but
/// [`process`].
pub fn migrate(connection: &Connection) -> Result<(), StoreError> {
    // Of several processes that start at once, one makes the tables and the others wait for it.
    let is_own = connection.is_autocommit();
    if is_own {
        connection.execute_batch("BEGIN IMMEDIATE")?;
    }
    let migrated = migrate_within(connection);
    if is_own {
        connection.execute_batch(if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    }
    migrated
}

fn migrate_within(connection: &Connection) -> Result<(), StoreError> {
    connection.execute_batch("CREATE TABLE IF NOT EXISTS postrider_inbox_schema (version INTEGER NOT NULL)")?;
    let found: Option<i64> =
        connection.query_row("SELECT max(version) FROM postrider_inbox_schema", [], |row| row.get(0))?;
    let found = found.unwrap_or(0);
    let known = STEPS.len() as i64;
    if found > known {
        return Err(StoreError::TooNew { found, known });
    }
    for (step, version) in STEPS.iter().zip(1..).skip(found as usize) {
        connection.execute_batch(step)?;
        connection.execute("INSERT INTO postrider_inbox_schema VALUES (?1)", [version])?;
    }
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.write(migrate).await
    }

    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
        let event = event.clone();
        self.write(move |db| record(db, &event, limits)).await
    }

    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
        self.write(move |db| claim(db, max, now.after(lease), now)).await
    }

    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
        let (ticket, settlement) = (ticket.clone(), settlement.clone());
        self.write(move |db| settle(db, &ticket, &settlement, now)).await
    }

    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        let after = after.cloned();
        self.write(move |db| dead(db, after, max)).await
    }

    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
        let key = key.clone();
        self.write(move |db| replay(db, &key, now)).await
    }

    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError> {
        self.write(move |db| {
            let mut query = db.prepare_cached(
                "SELECT source, id FROM postrider_inbox_events WHERE state = 2 AND finished_at <= ?1
                 ORDER BY finished_at, source, id LIMIT ?2",
            )?;
            let keys = query.query_map(params![until.as_millis(), max], |row| key(row, 0))?;
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            for key in &keys {
                replay(db, key, now)?;
            }
            Ok(keys.len())
        })
        .await
    }

    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.write(move |db| {
            let mut forgotten = 0;
            for statement in CLEANING {
                forgotten += db.prepare_cached(statement)?.execute(params![before.as_millis(), max])?;
            }
            Ok(forgotten)
        })
        .await
    }

    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.write(move |db| {
            let mut statement = db.prepare_cached(
                "DELETE FROM postrider_inbox_events WHERE rowid IN (SELECT rowid FROM postrider_inbox_events
                 WHERE state = 2 AND finished_at < ?1 ORDER BY finished_at, source, id LIMIT ?2)",
            )?;
            Ok(statement.execute(params![before.as_millis(), max])?)
        })
        .await
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        self.write(|db| {
            let (queued, queued_bytes) = totals(db)?;
            let dead =
                db.query_row("SELECT count(*) FROM postrider_inbox_events WHERE state = 2", [], |row| row.get(0))?;
            let due: Option<i64> =
                db.query_row("SELECT min(due_at) FROM postrider_inbox_events WHERE state = 0", [], |row| row.get(0))?;
            Ok(Standing { queued, queued_bytes, dead, due_first: due.map(Timestamp::from_millis) })
        })
        .await
    }
}

fn record(db: &Connection, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
    let key = &event.key;
    let mut known = db.prepare_cached("SELECT 1 FROM postrider_inbox_events WHERE source = ?1 AND id = ?2")?;
    if known.exists([key.source.as_str(), key.id.as_str()])? {
        return Ok(Recorded::Duplicate);
    }
    let ((queued, bytes), size) = (totals(db)?, event.size());
    if limits.are_reached(queued, bytes, size) {
        return Ok(Recorded::Full);
    }
    let arrival = event.place.as_ref().map(|place| arrive(db, event, place)).transpose()?;
    db.prepare_cached(
        "INSERT INTO postrider_inbox_events (source, id, state, received_at, due_at, attempts, fence, size, headers, body,
             ordering_key, number, arrival)
         VALUES (?1, ?2, 0, ?3, ?3, 0, 0, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        key.source.as_str(),
        key.id.as_str(),
        event.received_at.as_millis(),
        size,
        headers::to_text(&event.headers),
        &event.body[..],
        event.place.as_ref().map(|place| &place.ordering_key),
        event.place.as_ref().map(|place| place.number),
        arrival.map(|arrival| arrival.to_string()),
    ])?;
    count(db, 1, size as i64)?;
    Ok(Recorded::New { arrival })
}

fn arrive(db: &Connection, event: &Event, place: &Place) -> Result<Arrival, StoreError> {
    let source = event.key.source.as_str();
    let mut query =
        db.prepare_cached("SELECT track FROM postrider_inbox_sequences WHERE source = ?1 AND ordering_key = ?2")?;
    let found: Option<String> = query.query_row([source, &place.ordering_key], |row| row.get(0)).optional()?;
    let mut track = found.and_then(|text| Track::parse(&text)).unwrap_or_default();
    let arrival = track.arrive(place.number);
    db.prepare_cached(
        "INSERT OR REPLACE INTO postrider_inbox_sequences (source, ordering_key, track, at) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![source, place.ordering_key, track.to_string(), event.received_at.as_millis()])?;
    Ok(arrival)
}

fn claim(db: &Connection, max: usize, until: Timestamp, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
    let mut due = db.prepare_cached(
        "SELECT rowid FROM postrider_inbox_events WHERE state = 0 AND due_at <= ?1 ORDER BY due_at, source, id LIMIT ?2",
    )?;
    let rows =
        due.query_map(params![now.as_millis(), max], |row| row.get::<_, i64>(0))?.collect::<Result<Vec<_>, _>>()?;
    let mut take = db.prepare_cached(
        "UPDATE postrider_inbox_events SET due_at = ?2, attempts = attempts + 1, fence = fence + 1 WHERE rowid = ?1
         RETURNING source, id, received_at, headers, body, ordering_key, number, arrival, attempts, fence",
    )?;
    let mut claims = Vec::with_capacity(rows.len());
    for rowid in rows {
        claims.push(take.query_row(params![rowid, until.as_millis()], |row| {
            let event = event(row)?;
            let ticket = Ticket { key: event.key.clone(), fence: row.get(9)?, until };
            Ok(Claim { event, attempt: row.get(8)?, ticket })
        })?);
    }
    Ok(claims)
}

fn settle(db: &Connection, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
    let key = (ticket.key.source.as_str(), ticket.key.id.as_str(), ticket.fence);
    let size: Option<i64> = match settlement {
        // Nobody needs the bytes any more. The row stays: by it the event is known.
        Settlement::Done => db
            .prepare_cached(
                "UPDATE postrider_inbox_events SET state = 1, finished_at = ?4, headers = '', body = x''
                 WHERE source = ?1 AND id = ?2 AND fence = ?3 AND state = 0 RETURNING size",
            )?
            .query_row(params![key.0, key.1, key.2, now.as_millis()], |row| row.get(0)),
        Settlement::Again { due, reason } => db
            .prepare_cached(
                "UPDATE postrider_inbox_events SET due_at = ?4, reason = ?5
                 WHERE source = ?1 AND id = ?2 AND fence = ?3 AND state = 0 RETURNING size",
            )?
            .query_row(params![key.0, key.1, key.2, due.as_millis(), reason], |row| row.get(0)),
        Settlement::Dead { reason } => db
            .prepare_cached(
                "UPDATE postrider_inbox_events SET state = 2, finished_at = ?4, reason = ?5
                 WHERE source = ?1 AND id = ?2 AND fence = ?3 AND state = 0 RETURNING size",
            )?
            .query_row(params![key.0, key.1, key.2, now.as_millis(), reason], |row| row.get(0)),
    }
    .optional()?;
    let Some(size) = size else { return Ok(Settled::LeaseLost) };
    match settlement {
        Settlement::Done | Settlement::Dead { .. } => count(db, -1, -size)?,
        Settlement::Again { .. } => {}
    }
    Ok(Settled::Written)
}

fn dead(db: &Connection, after: Option<DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
    let mut query = db.prepare_cached(
        "SELECT source, id, received_at, headers, body, ordering_key, number, arrival, attempts, finished_at, reason
         FROM postrider_inbox_events WHERE state = 2 AND (finished_at, source, id) > (?1, ?2, ?3)
         ORDER BY finished_at, source, id LIMIT ?4",
    )?;
    let (at, source, id) = match &after {
        Some(cursor) => (cursor.died_at.as_millis(), cursor.key.source.as_str(), cursor.key.id.as_str()),
        None => (i64::MIN, "", ""),
    };
    let rows = query.query_map(params![at, source, id, max], |row| {
        Ok(DeadEvent {
            event: event(row)?,
            attempts: row.get(8)?,
            died_at: Timestamp::from_millis(row.get(9)?),
            reason: row.get(10)?,
        })
    })?;
    Ok(rows.collect::<Result<Vec<_>, _>>()?)
}

fn replay(db: &Connection, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
    let mut statement = db.prepare_cached(
        "UPDATE postrider_inbox_events SET state = 0, due_at = ?3, finished_at = NULL, attempts = 0, fence = fence + 1
         WHERE source = ?1 AND id = ?2 AND state = 2 RETURNING size",
    )?;
    let arguments = params![key.source.as_str(), key.id.as_str(), now.as_millis()];
    let size: Option<i64> = statement.query_row(arguments, |row| row.get(0)).optional()?;
    match size {
        Some(size) => {
            count(db, 1, size)?;
            Ok(Replayed::Queued)
        }
        None => Ok(Replayed::NotDead),
    }
}

fn totals(db: &Connection) -> Result<(u64, u64), rusqlite::Error> {
    db.prepare_cached("SELECT queued, bytes FROM postrider_inbox_totals")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn count(db: &Connection, events: i64, bytes: i64) -> Result<(), rusqlite::Error> {
    let mut statement =
        db.prepare_cached("UPDATE postrider_inbox_totals SET queued = queued + ?1, bytes = bytes + ?2")?;
    statement.execute([events, bytes]).map(drop)
}

fn event(row: &Row<'_>) -> Result<Event, rusqlite::Error> {
    let ordering_key: Option<String> = row.get(5)?;
    let number: Option<u64> = row.get(6)?;
    let arrival: Option<String> = row.get(7)?;
    Ok(Event {
        key: key(row, 0)?,
        received_at: Timestamp::from_millis(row.get(2)?),
        headers: headers::from_text(&row.get::<_, String>(3)?),
        body: row.get::<_, Vec<u8>>(4)?.into(),
        place: ordering_key.zip(number).map(|(ordering_key, number)| Place { ordering_key, number }),
        arrival: arrival.and_then(|text| Arrival::parse(&text)),
    })
}

fn key(row: &Row<'_>, first: usize) -> Result<EventKey, rusqlite::Error> {
    let (source, id): (String, String) = (row.get(first)?, row.get(first + 1)?);
    EventKey::parse(&source, &id)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(first, rusqlite::types::Type::Text, Box::new(error)))
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::unavailable(error)
    }
}

/// Append only: a step that was published is not changed.
const STEPS: [&str; 1] = ["
    CREATE TABLE postrider_inbox_events (
        source TEXT NOT NULL,
        id TEXT NOT NULL,
        state INTEGER NOT NULL, -- 0 waits, 1 is done, 2 is dead
        received_at INTEGER NOT NULL,
        due_at INTEGER NOT NULL,
        finished_at INTEGER,
        attempts INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        size INTEGER NOT NULL,
        headers TEXT NOT NULL,
        body BLOB NOT NULL,
        ordering_key TEXT,
        number INTEGER,
        arrival TEXT,
        reason TEXT,
        PRIMARY KEY (source, id)
    );
    CREATE INDEX postrider_inbox_due ON postrider_inbox_events (due_at, source, id) WHERE state = 0;
    CREATE INDEX postrider_inbox_done ON postrider_inbox_events (finished_at, source, id) WHERE state = 1;
    CREATE INDEX postrider_inbox_dead ON postrider_inbox_events (finished_at, source, id) WHERE state = 2;
    CREATE TABLE postrider_inbox_effects (
        source TEXT NOT NULL,
        id TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (source, id)
    ) WITHOUT ROWID;
    CREATE INDEX postrider_inbox_effects_at ON postrider_inbox_effects (at, source, id);
    CREATE TABLE postrider_inbox_sequences (
        source TEXT NOT NULL,
        ordering_key TEXT NOT NULL,
        track TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (source, ordering_key)
    ) WITHOUT ROWID;
    CREATE INDEX postrider_inbox_sequences_at ON postrider_inbox_sequences (at, source, ordering_key);
    CREATE TABLE postrider_inbox_totals (queued INTEGER NOT NULL, bytes INTEGER NOT NULL);
    INSERT INTO postrider_inbox_totals VALUES (0, 0);
"];

const CLEANING: [&str; 3] = [
    "DELETE FROM postrider_inbox_events WHERE rowid IN (SELECT rowid FROM postrider_inbox_events
     WHERE state = 1 AND finished_at < ?1 ORDER BY finished_at, source, id LIMIT ?2)",
    FORGET_EFFECTS,
    "DELETE FROM postrider_inbox_sequences WHERE (source, ordering_key) IN (SELECT source, ordering_key
     FROM postrider_inbox_sequences WHERE at < ?1 ORDER BY at, source, ordering_key LIMIT ?2)",
];

/// An effect whose event waits or is dead is what keeps it from happening again.
const FORGET_EFFECTS: &str =
    "DELETE FROM postrider_inbox_effects WHERE (source, id) IN (SELECT source, id FROM postrider_inbox_effects AS old
     WHERE at < ?1 AND NOT EXISTS (SELECT 1 FROM postrider_inbox_events AS event
         WHERE event.source = old.source AND event.id = old.id AND event.state <> 1)
     ORDER BY at, source, id LIMIT ?2)";

const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
