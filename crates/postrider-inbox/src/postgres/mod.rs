//! PostgreSQL: any number of processes on one database, which may be the one that the receiver's own tables are in.
//!
//! What survives is what the server is set to: with `synchronous_commit = off` a crash of the server takes events that were
//! answered, and a failover to a replica that was not synchronous does, too.
//!
//! Each call has a time limit, ten seconds unless told ([`PostgresStore::with_time_limit`]), from waiting for a connection to the commit's
//! answer. After it the call fails, so that a server which is gone without a word has requests answered 503 and lets a worker stop; and
//! its connection is closed, not lent again. Whether the server has carried out what it was sent is then not known: an event that was
//! recorded after all is a duplicate when it comes again. What runs on connections of the caller's own (`process`, [`clean_effects`],
//! [`migrate()`]) has the limits that the caller sets.

mod effects;

pub use deadpool_postgres;
pub use effects::{ProcessError, clean_effects, process};
pub use tokio_postgres;

use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::{Client, Pool, PoolError, Transaction};
use tokio::time::timeout;
use tokio_postgres::{Error, GenericClient, IsolationLevel, Row, types::ToSql};

use crate::{Event, EventKey, Place, Timestamp, event::headers, sequence::*, store::*};

pub struct PostgresStore {
    pool: Pool,
    time_limit: Duration,
}

impl PostgresStore {
    /// How the server is reached, and how securely, is the pool's to know. Tables are found by its `search_path`.
    pub fn new(pool: Pool) -> Self {
        Self { pool, time_limit: TIME_LIMIT_DEFAULT }
    }

    /// How long a call may take in all. Ten seconds unless told; less than the worker's lease, or what was done cannot be written down.
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    async fn call<R>(&self, verb: impl AsyncFnOnce(&mut Client) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let called = async {
            let mut loan = Loan(None);
            let result = verb(loan.0.insert(self.pool.get().await?)).await;
            loan.end();
            result
        };
        let late = |_| StoreError::unavailable(format!("PostgreSQL did not answer within {:?}", self.time_limit));
        timeout(self.time_limit, called).await.map_err(late)?
    }
}

/// A connection that a call has. If that is left in the middle, by its limit or because nobody waits for it any more, something is still on
/// its way, and whoever had the connection next would wait for that, too: it is closed.
struct Loan(Option<Client>);

impl Loan {
    fn end(&mut self) {
        self.0 = None;
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        drop(self.0.take().map(Client::take));
    }
}

/// Makes the inbox's tables, or brings them up to date, by a connection of the caller's own: for those who use nothing but
/// [`process`].
pub async fn migrate(client: &mut impl GenericClient) -> Result<(), StoreError> {
    let tx = client.transaction().await?;
    // Of several processes that start at once, one makes the tables and the others wait for it.
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
    tx.batch_execute("CREATE TABLE IF NOT EXISTS postrider_inbox_schema (version bigint NOT NULL)").await?;
    let found: i64 = tx.query_one("SELECT coalesce(max(version), 0) FROM postrider_inbox_schema", &[]).await?.get(0);
    let known = STEPS.len() as i64;
    if found > known {
        return Err(StoreError::TooNew { found, known });
    }
    for (step, version) in STEPS.iter().zip(1i64..).skip(found as usize) {
        tx.batch_execute(step).await?;
        tx.execute("INSERT INTO postrider_inbox_schema VALUES ($1)", &[&version]).await?;
    }
    Ok(tx.commit().await?)
}

#[async_trait]
impl Store for PostgresStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.call(async |client| migrate(&mut ***client).await).await
    }

    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
        self.call(async |client| {
            let tx = begin(client).await?;
            let recorded = record(&tx, event, limits).await?;
            match recorded {
                Recorded::New { .. } => tx.commit().await?,
                Recorded::Duplicate | Recorded::Full => tx.rollback().await?,
            }
            Ok(recorded)
        })
        .await
    }

    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
        self.call(async |client| {
            let tx = begin(client).await?;
            let until = now.after(lease);
            let arguments: [&(dyn ToSql + Sync); 3] = [&now.as_millis(), &(max as i64), &until.as_millis()];
            // What another worker is about to take is passed over, not waited for.
            let rows = query(
                &tx,
                "WITH due AS (
                     SELECT source, id, due_at FROM postrider_inbox_events WHERE state = 0 AND due_at <= $1
                     ORDER BY due_at, source, id LIMIT $2 FOR UPDATE SKIP LOCKED
                 ), taken AS (
                     UPDATE postrider_inbox_events AS event SET due_at = $3, attempts = attempts + 1, fence = fence + 1
                     FROM due WHERE event.source = due.source AND event.id = due.id
                     RETURNING event.source, event.id, received_at, headers, body, ordering_key, number, arrival, attempts, fence,
                         due.due_at AS was_due
                 )
                 SELECT * FROM taken ORDER BY was_due, source, id",
                &arguments,
            )
            .await?;
            tx.commit().await?;
            let claims = rows.iter().map(|row| {
                let event = event(row)?;
                let ticket = Ticket { key: event.key.clone(), fence: row.get(9), until };
                Ok(Claim { event, attempt: row.get::<_, i32>(8) as u32, ticket })
            });
            claims.collect()
        })
        .await
    }

    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
        self.call(async |client| {
            let tx = begin(client).await?;
            let (source, id, fence) = (ticket.key.source.as_str(), ticket.key.id.as_str(), ticket.fence);
            let rows = match settlement {
                // Nobody needs the bytes any more. The row stays: by it the event is known.
                Settlement::Done => {
                    let arguments: [&(dyn ToSql + Sync); 4] = [&source, &id, &fence, &now.as_millis()];
                    let statement =
                        "UPDATE postrider_inbox_events SET state = 1, finished_at = $4, headers = '', body = ''
                         WHERE source = $1 AND id = $2 AND fence = $3 AND state = 0 RETURNING size";
                    query(&tx, statement, &arguments).await?
                }
                Settlement::Again { due, reason } => {
                    let arguments: [&(dyn ToSql + Sync); 5] = [&source, &id, &fence, &due.as_millis(), &text(reason)];
                    let statement = "UPDATE postrider_inbox_events SET due_at = $4, reason = $5
                         WHERE source = $1 AND id = $2 AND fence = $3 AND state = 0 RETURNING size";
                    query(&tx, statement, &arguments).await?
                }
                Settlement::Dead { reason } => {
                    let arguments: [&(dyn ToSql + Sync); 5] = [&source, &id, &fence, &now.as_millis(), &text(reason)];
                    let statement = "UPDATE postrider_inbox_events SET state = 2, finished_at = $4, reason = $5
                         WHERE source = $1 AND id = $2 AND fence = $3 AND state = 0 RETURNING size";
                    query(&tx, statement, &arguments).await?
                }
            };
            let Some(row) = rows.first() else { return Ok(Settled::LeaseLost) };
            match settlement {
                Settlement::Done | Settlement::Dead { .. } => {
                    count(&tx, slot(&ticket.key), -1, -row.get::<_, i64>(0)).await?;
                }
                Settlement::Again { .. } => {}
            }
            tx.commit().await?;
            Ok(Settled::Written)
        })
        .await
    }

    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        self.call(async |client| {
            let (at, source, id) = match after {
                Some(cursor) => (cursor.died_at.as_millis(), cursor.key.source.as_str(), cursor.key.id.as_str()),
                None => (i64::MIN, "", ""),
            };
            let statement = client
                .prepare_cached(
                    "SELECT source, id, received_at, headers, body, ordering_key, number, arrival, attempts, finished_at, reason
                     FROM postrider_inbox_events WHERE state = 2 AND (finished_at, source, id) > ($1, $2, $3)
                     ORDER BY finished_at, source, id LIMIT $4",
                )
                .await?;
            let rows = client.query(&statement, &[&at, &source, &id, &(max as i64)]).await?;
            let dead = rows.iter().map(|row| {
                Ok(DeadEvent {
                    event: event(row)?,
                    attempts: row.get::<_, i32>(8) as u32,
                    died_at: Timestamp::from_millis(row.get(9)),
                    reason: row.get(10),
                })
            });
            dead.collect()
        })
        .await
    }

    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
        self.call(async |client| {
            let tx = begin(client).await?;
            let rows = query(
                &tx,
                "UPDATE postrider_inbox_events SET state = 0, due_at = $3, finished_at = NULL, attempts = 0, fence = fence + 1
                 WHERE source = $1 AND id = $2 AND state = 2 RETURNING size",
                &[&key.source.as_str(), &key.id.as_str(), &now.as_millis()],
            )
            .await?;
            let Some(row) = rows.first() else { return Ok(Replayed::NotDead) };
            count(&tx, slot(key), 1, row.get(0)).await?;
            tx.commit().await?;
            Ok(Replayed::Queued)
        })
        .await
    }

    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError> {
        self.call(async |client| {
            let tx = begin(client).await?;
            let rows = query(
                &tx,
                "UPDATE postrider_inbox_events AS event
                 SET state = 0, due_at = $3, finished_at = NULL, attempts = 0, fence = fence + 1
                 FROM (SELECT source, id FROM postrider_inbox_events WHERE state = 2 AND finished_at <= $1
                       ORDER BY finished_at, source, id LIMIT $2 FOR UPDATE SKIP LOCKED) AS dead
                 WHERE event.source = dead.source AND event.id = dead.id RETURNING event.source, event.id, size",
                &[&until.as_millis(), &(max as i64), &now.as_millis()],
            )
            .await?;
            let mut added = [(0, 0); SLOTS];
            for row in &rows {
                let (events, bytes) = &mut added[slot(&key(row)?) as usize];
                *events += 1;
                *bytes += row.get::<_, i64>(2);
            }
            // In one order for all, or two of these could wait for each other.
            for (slot, (events, bytes)) in (0..).zip(added).filter(|(_, (events, _))| *events > 0) {
                count(&tx, slot, events, bytes).await?;
            }
            tx.commit().await?;
            Ok(rows.len())
        })
        .await
    }

    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.call(async |client| {
            let mut forgotten = 0;
            for statement in CLEANING {
                let statement = client.prepare_cached(statement).await?;
                forgotten += client.execute(&statement, &[&before.as_millis(), &(max as i64)]).await?;
            }
            Ok(forgotten as usize)
        })
        .await
    }

    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.call(async |client| {
            let statement = client
                .prepare_cached(
                    "DELETE FROM postrider_inbox_events WHERE (source, id) IN (SELECT source, id FROM postrider_inbox_events
                     WHERE state = 2 AND finished_at < $1 ORDER BY finished_at, source, id LIMIT $2 FOR UPDATE SKIP LOCKED)",
                )
                .await?;
            Ok(client.execute(&statement, &[&before.as_millis(), &(max as i64)]).await? as usize)
        })
        .await
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        self.call(async |client| {
            let row = client
                .query_one(
                    "SELECT (SELECT sum(queued)::bigint FROM postrider_inbox_totals),
                         (SELECT sum(bytes)::bigint FROM postrider_inbox_totals),
                         (SELECT count(*) FROM postrider_inbox_events WHERE state = 2),
                         (SELECT min(due_at) FROM postrider_inbox_events WHERE state = 0)",
                    &[],
                )
                .await?;
            let number = |column| row.get::<_, i64>(column).max(0) as u64;
            let due_first = row.get::<_, Option<i64>>(3).map(Timestamp::from_millis);
            Ok(Standing { queued: number(0), queued_bytes: number(1), dead: number(2), due_first })
        })
        .await
    }
}

/// Whatever the database's default is: a second event of the same id must wait for the first and then see it.
async fn begin(client: &mut Client) -> Result<Transaction<'_>, StoreError> {
    Ok(client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?)
}

async fn query(
    tx: &Transaction<'_>,
    statement: &str,
    arguments: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let statement = tx.prepare_cached(statement).await?;
    Ok(tx.query(&statement, arguments).await?)
}

async fn record(tx: &Transaction<'_>, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
    let (source, id, size) = (event.key.source.as_str(), event.key.id.as_str(), event.size());
    let (ordering_key, number) = event.place.as_ref().map(|place| (&place.ordering_key, place.number as i64)).unzip();
    // Before the body is sent: one that is turned away must not cost the server what it would cost to keep it.
    let standing = query(
        tx,
        "SELECT sum(queued)::bigint, sum(bytes)::bigint,
             EXISTS (SELECT 1 FROM postrider_inbox_events WHERE source = $1 AND id = $2) FROM postrider_inbox_totals",
        &[&source, &id],
    )
    .await?;
    let total = |column| standing.first().map_or(0, |row| row.get::<_, i64>(column)).max(0) as u64;
    if standing.first().is_some_and(|row| row.get(2)) {
        return Ok(Recorded::Duplicate);
    }
    if limits.are_reached(total(0), total(1), size) {
        return Ok(Recorded::Full);
    }
    let inserted = query(
        tx,
        "INSERT INTO postrider_inbox_events (source, id, state, received_at, due_at, attempts, fence, size, headers, body,
             ordering_key, number)
         VALUES ($1, $2, 0, $3, $3, 0, 0, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING 1",
        &[
            &source,
            &id,
            &event.received_at.as_millis(),
            &(size as i64),
            &headers::to_text(&event.headers),
            &&event.body[..],
            &ordering_key,
            &number,
        ],
    )
    .await?;
    // Another one of the same id may have come in between; where it has not committed yet, it was waited for.
    if inserted.is_empty() {
        return Ok(Recorded::Duplicate);
    }
    let arrival = match &event.place {
        Some(place) => Some(arrive(tx, event, place).await?),
        None => None,
    };
    count(tx, slot(&event.key), 1, size as i64).await?;
    Ok(Recorded::New { arrival })
}

async fn arrive(tx: &Transaction<'_>, event: &Event, place: &Place) -> Result<Arrival, StoreError> {
    let (source, id, ordering_key) = (event.key.source.as_str(), event.key.id.as_str(), &place.ordering_key);
    query(
        tx,
        "INSERT INTO postrider_inbox_sequences (source, ordering_key, track, at) VALUES ($1, $2, '', 0) ON CONFLICT DO NOTHING",
        &[&source, ordering_key],
    )
    .await?;
    let found = query(
        tx,
        "SELECT track FROM postrider_inbox_sequences WHERE source = $1 AND ordering_key = $2 FOR UPDATE",
        &[&source, ordering_key],
    )
    .await?;
    let mut track = found.first().and_then(|row| Track::parse(row.get(0))).unwrap_or_default();
    let arrival = track.arrive(place.number);
    query(
        tx,
        // It may have been forgotten while this waited for it.
        "INSERT INTO postrider_inbox_sequences (source, ordering_key, track, at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (source, ordering_key) DO UPDATE SET track = $3, at = $4",
        &[&source, ordering_key, &track.to_string(), &event.received_at.as_millis()],
    )
    .await?;
    query(
        tx,
        "UPDATE postrider_inbox_events SET arrival = $3 WHERE source = $1 AND id = $2",
        &[&source, &id, &arrival.to_string()],
    )
    .await?;
    Ok(arrival)
}

async fn count(tx: &Transaction<'_>, slot: i16, events: i64, bytes: i64) -> Result<(), StoreError> {
    let statement = "UPDATE postrider_inbox_totals SET queued = queued + $2, bytes = bytes + $3 WHERE slot = $1";
    query(tx, statement, &[&slot, &events, &bytes]).await.map(drop)
}

/// What waits is counted in several rows, or every commit would wait for the one before it. The same key has always the same.
fn slot(key: &EventKey) -> i16 {
    let bytes = key.source.as_str().bytes().chain(key.id.as_str().bytes());
    // FNV-1a: whatever a standard library's hash is, its next version may have another.
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash % SLOTS as u64) as i16
}

/// PostgreSQL's text holds no NUL, and what a handler says may.
fn text(reason: &str) -> String {
    reason.replace('\0', "\u{fffd}")
}

fn event(row: &Row) -> Result<Event, StoreError> {
    let (ordering_key, number): (Option<String>, Option<i64>) = (row.get(5), row.get(6));
    Ok(Event {
        key: key(row)?,
        received_at: Timestamp::from_millis(row.get(2)),
        headers: headers::from_text(row.get(3)),
        body: row.get::<_, Vec<u8>>(4).into(),
        place: ordering_key.zip(number).map(|(ordering_key, number)| Place { ordering_key, number: number as u64 }),
        arrival: row.get::<_, Option<&str>>(7).and_then(Arrival::parse),
    })
}

fn key(row: &Row) -> Result<EventKey, StoreError> {
    EventKey::parse(row.get(0), row.get(1)).map_err(StoreError::unavailable)
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        Self::unavailable(error)
    }
}

impl From<PoolError> for StoreError {
    fn from(error: PoolError) -> Self {
        Self::unavailable(error)
    }
}

/// Append only: a step that was published is not changed. Keys sort by bytes, as in every store.
const STEPS: [&str; 1] = [r#"
    CREATE TABLE postrider_inbox_events (
        source text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        state smallint NOT NULL, -- 0 waits, 1 is done, 2 is dead
        received_at bigint NOT NULL,
        due_at bigint NOT NULL,
        finished_at bigint,
        attempts integer NOT NULL,
        fence bigint NOT NULL,
        size bigint NOT NULL,
        headers text NOT NULL,
        body bytea NOT NULL,
        ordering_key text,
        number bigint,
        arrival text,
        reason text,
        PRIMARY KEY (source, id)
    );
    CREATE INDEX postrider_inbox_due ON postrider_inbox_events (due_at, source, id) WHERE state = 0;
    CREATE INDEX postrider_inbox_done ON postrider_inbox_events (finished_at, source, id) WHERE state = 1;
    CREATE INDEX postrider_inbox_dead ON postrider_inbox_events (finished_at, source, id) WHERE state = 2;
    CREATE TABLE postrider_inbox_effects (
        source text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        at bigint NOT NULL,
        PRIMARY KEY (source, id)
    );
    CREATE INDEX postrider_inbox_effects_at ON postrider_inbox_effects (at, source, id);
    CREATE TABLE postrider_inbox_sequences (
        source text COLLATE "C" NOT NULL,
        ordering_key text COLLATE "C" NOT NULL,
        track text NOT NULL,
        at bigint NOT NULL,
        PRIMARY KEY (source, ordering_key)
    );
    CREATE INDEX postrider_inbox_sequences_at ON postrider_inbox_sequences (at, source, ordering_key);
    CREATE TABLE postrider_inbox_totals (slot smallint PRIMARY KEY, queued bigint NOT NULL, bytes bigint NOT NULL);
    INSERT INTO postrider_inbox_totals SELECT slot, 0, 0 FROM generate_series(0, 15) AS slot;
"#];

const CLEANING: [&str; 3] = [
    "DELETE FROM postrider_inbox_events WHERE (source, id) IN (SELECT source, id FROM postrider_inbox_events
     WHERE state = 1 AND finished_at < $1 ORDER BY finished_at, source, id LIMIT $2 FOR UPDATE SKIP LOCKED)",
    FORGET_EFFECTS,
    // Asked again outside: it may have been used since it was found.
    "DELETE FROM postrider_inbox_sequences WHERE at < $1 AND (source, ordering_key) IN (SELECT source, ordering_key
     FROM postrider_inbox_sequences WHERE at < $1 ORDER BY at, source, ordering_key LIMIT $2 FOR UPDATE SKIP LOCKED)",
];

/// An effect whose event waits or is dead is what keeps it from happening again.
const FORGET_EFFECTS: &str =
    "DELETE FROM postrider_inbox_effects WHERE (source, id) IN (SELECT source, id FROM postrider_inbox_effects AS old
     WHERE at < $1 AND NOT EXISTS (SELECT 1 FROM postrider_inbox_events AS event
         WHERE event.source = old.source AND event.id = old.id AND event.state <> 1)
     ORDER BY at, source, id LIMIT $2 FOR UPDATE SKIP LOCKED)";

/// As many as the table has rows.
const SLOTS: usize = 16;
const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(10);
/// "inbox" in ASCII.
const MIGRATION_LOCK: i64 = 0x69_6e_62_6f_78;
