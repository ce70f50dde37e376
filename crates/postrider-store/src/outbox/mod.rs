//! The outbox in a producer's own database: a table that it writes to in its own transactions, and that Postrider
//! empties.
//!
//! One connection does everything: it holds the lock by which one of many nodes relays, hears when rows come, reads,
//! marks and deletes. So whoever can still delete a row is whoever has the lock, and when the connection is lost, all of
//! it is.

mod schema;
#[cfg(test)]
mod tests;

pub use schema::{Installation, VERSION, script};

use crate::postgres::{Bell, DatabaseUrl, Db, OpenError, PostgresOptions, describe};
use bytes::Bytes;
use postrider_engine::Timestamp;
use schema::CHANNEL;
use std::{fmt, future::Future, str::FromStr, sync::Arc, time::Duration};
use tokio::sync::OnceCell;
use tokio_postgres::{error::SqlState, types::ToSql};

/// The schema that an outbox lies in. It stands in SQL as it is, so only plain names are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaName(String);

impl SchemaName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        Self("postrider".to_owned())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a schema's name must be 1 to 63 small letters, digits or `_`, begin with neither a digit nor `pg_`, and be no word of SQL"
)]
pub struct BadName;

impl FromStr for SchemaName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let begins_well = !text.starts_with(|c: char| c.is_ascii_digit()) && !text.starts_with("pg_");
        let is_word = schema::RESERVED.split_whitespace().any(|word| word == text);
        let is_fine = plain && begins_well && !is_word && (1..=63).contains(&text.len());
        if is_fine { Ok(Self(text.to_owned())) } else { Err(BadName) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    #[error("no connection to the producer's database: {0}")]
    Unreachable(String),
    #[error(
        "a pooler in transaction mode stands before the producer's database and lends connections out; Postrider needs \
         its own, so connect to PostgreSQL directly, or let the pooler work in session mode"
    )]
    Pooled,
    #[error("there is no outbox in the schema `{0}`; make one with `postrider outbox install`")]
    NotInstalled(SchemaName),
    #[error("the outbox was installed by a newer Postrider (version {found}, this one knows {VERSION}); use that one")]
    TooNew { found: i32 },
    #[error("{waiting} rows wait in the outbox, and {failed} cannot be sent")]
    NotEmpty { waiting: u64, failed: u64 },
    #[error("the producer's database refused: {0}")]
    Database(String),
}

impl From<OpenError> for OutboxError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Pooled => Self::Pooled,
            OpenError::Unreachable { cause, .. } => Self::Unreachable(cause),
            OpenError::Certificates(_)
            | OpenError::Database(_)
            | OpenError::TooNew { .. }
            | OpenError::TooOld { .. } => Self::Unreachable(error.to_string()),
        }
    }
}

/// What tells one outbox from all others, wherever it is reached from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(String);

impl Identity {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn new(text: String) -> Self {
        Self(text)
    }
}

/// One event, as the producer wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: i64,
    pub app: String,
    pub event_type: String,
    pub payload: Bytes,
    pub content_type: Option<String>,
    pub event_id: Option<String>,
    pub channels: Vec<String>,
    pub tags: Vec<String>,
    pub ordering_key: Option<String>,
    pub deliver_at: Option<Timestamp>,
    /// Where in a trace its producer was, as W3C writes it.
    pub traceparent: Option<String>,
    /// It was offered to the store before, and what came of it was not written down.
    pub taken: Option<Taken>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The id of the application that it was offered for.
    pub app: String,
    /// So long ago that the store may have forgotten whether it took it.
    pub is_forgotten: bool,
}

/// A row, or the number of one that cannot be read, and why.
pub type Found = Result<Row, (i64, String)>;

/// A row that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub id: i64,
    pub error: String,
    pub sent: Sent,
}

/// What is known of a row that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    No,
    /// It was offered before, and what came of it was not written down.
    Maybe,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub id: i64,
    pub app: String,
    pub event_type: String,
    pub error: String,
    pub failed_at: Timestamp,
    pub sent: Sent,
}

/// How an outbox stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub waiting: u64,
    /// How long ago the transaction of the oldest row that waits began.
    pub oldest: Option<Duration>,
    pub failed: u64,
}

/// A connection to a producer's database.
pub struct Outbox {
    db: Db,
    schema: SchemaName,
    bell: Arc<Bell>,
    /// Whether rows have a place for a trace: those of an older outbox have not.
    has_trace: OnceCell<bool>,
}

impl Outbox {
    /// `name`: what the connection is called in the producer's database.
    pub async fn connect(
        url: &DatabaseUrl,
        ca_pem: Option<&[u8]>,
        schema: SchemaName,
        name: &str,
    ) -> Result<Self, OutboxError> {
        let options =
            PostgresOptions { name: name.to_owned(), ca_pem: ca_pem.map(<[u8]>::to_vec), ..PostgresOptions::default() };
        // The lock by which one of many nodes relays, and word of new rows, are bound to a connection.
        let (db, bell) = url.connect_surely(&options).await?;
        Ok(Self { db, schema, bell, has_trace: OnceCell::new() })
    }

    /// Makes the outbox, or brings it up to date.
    pub async fn install(&self, installation: &Installation) -> Result<(), OutboxError> {
        // Several statements in one message are one transaction.
        self.batch(&script(&self.schema, installation)).await
    }

    /// Removes the outbox. With rows in it, only if that is meant.
    pub async fn uninstall(&self, rows: RowsThere) -> Result<(), OutboxError> {
        let refuse = match rows {
            RowsThere::Keep => {
                let Standing { waiting, failed, .. } = self.standing().await?;
                if waiting + failed > 0 {
                    return Err(OutboxError::NotEmpty { waiting, failed });
                }
                // Looked at again where nobody can add one any more.
                format!(
                    "IF EXISTS (SELECT FROM {0}.outbox) THEN RAISE EXCEPTION 'rows wait in the outbox'; END IF;",
                    self.schema
                )
            }
            RowsThere::Discard => String::new(),
        };
        self.batch(&format!(
            "DO $$ BEGIN
                LOCK TABLE {0}.outbox IN ACCESS EXCLUSIVE MODE;
                {refuse}
                DROP FUNCTION {1};
                DROP TABLE {0}.outbox, {0}.about;
                DROP FUNCTION {0}.outbox_admit(), {0}.outbox_ring();
                DROP SEQUENCE {0}.outbox_id;
                IF NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = '{0}'::regnamespace)
                    AND NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = '{0}'::regnamespace)
                THEN
                    DROP SCHEMA {0};
                END IF;
            END $$",
            self.schema,
            schema::send_functions(&self.schema).join(", ")
        ))
        .await
    }

    pub async fn identity(&self) -> Result<Identity, OutboxError> {
        let rows = self.query("SELECT identity::text, version FROM {schema}.about", &[]).await?;
        let Some(row) = rows.first() else { return Err(OutboxError::NotInstalled(self.schema.clone())) };
        match row.get(1) {
            version if version > VERSION => Err(OutboxError::TooNew { found: version }),
            _ => Ok(Identity(row.get(0))),
        }
    }

    /// Asks for the right to relay. It lasts as long as this connection does.
    pub async fn lead(&self, identity: &Identity) -> Result<bool, OutboxError> {
        let sql = "SELECT pg_try_advisory_lock(hashtextextended('postrider outbox relay ' || $1, 0))";
        let rows = self.query(sql, &[&identity.as_str()]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// From now on, `rung` tells of new rows.
    pub async fn listen(&self) -> Result<(), OutboxError> {
        self.batch(&format!("LISTEN {CHANNEL}")).await
    }

    /// Returns when there may be new rows, also if that was told before this was called.
    pub async fn rung(&self) {
        self.bell.heard().await;
    }

    /// The numbers of the oldest rows that can be sent, all as of one moment.
    ///
    /// A row may be committed after others with greater numbers, but not of its own key. So in one moment's list the rows of
    /// a key are those that were committed first, which cannot be said of several lists that go on from one another.
    pub async fn waiting(&self, rows_max: i64) -> Result<Vec<i64>, OutboxError> {
        let sql = "SELECT id FROM {schema}.outbox WHERE failed_at IS NULL ORDER BY id LIMIT $1";
        Ok(self.query(sql, &[&rows_max]).await?.iter().map(|row| row.get(0)).collect())
    }

    /// Of rows that were seen to wait, those that still do, oldest first: as many as are no larger together, and at least one
    /// if there is any.
    ///
    /// `known_for`: how long the store can tell now whether it took a row.
    pub async fn read(&self, ids: &[i64], bytes_max: i64, known_for: Duration) -> Result<Vec<Found>, OutboxError> {
        let trace = if self.has_trace().await? { "traceparent" } else { "NULL::text AS traceparent" };
        let rows = self
            .query(
                &"SELECT id, app, event_type, payload, content_type, event_id, channels, tags, ordering_key, {trace},
                        (extract(epoch FROM deliver_at) * 1000)::bigint AS deliver_at, taken_app,
                        coalesce(known_until < now() OR taken_at < now() - $3 * interval '1 millisecond', false)
                            AS is_forgotten
                 FROM (SELECT *, sum(octet_length(payload)) OVER in_order AS bytes, row_number() OVER in_order AS place
                       FROM {schema}.outbox WHERE failed_at IS NULL AND id = ANY($1)
                       WINDOW in_order AS (ORDER BY id)) AS measured
                 WHERE bytes <= $2 OR place = 1 ORDER BY id"
                    .replace("{trace}", trace),
                &[&ids, &bytes_max, &millis(known_for)],
            )
            .await?;
        Ok(rows.iter().map(found).collect())
    }

    async fn has_trace(&self) -> Result<bool, OutboxError> {
        let look = async || {
            let sql = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{schema}.outbox'::regclass
                           AND attname = 'traceparent' AND NOT attisdropped)";
            Ok(self.query(sql, &[]).await?.first().is_some_and(|row| row.get(0)))
        };
        self.has_trace.get_or_try_init(look).await.copied()
    }

    /// Writes down for which application each of these rows is about to be offered to the store for the first time. Tells
    /// which of them that was true for: the others are gone, or somebody else has taken them meanwhile.
    pub async fn take(&self, rows: &[(i64, String)], known_for: Duration) -> Result<Vec<i64>, OutboxError> {
        let (ids, apps): (Vec<i64>, Vec<&str>) = rows.iter().map(|(id, app)| (*id, app.as_str())).unzip();
        let taken = self
            .query(
                "UPDATE {schema}.outbox
                 SET taken_at = now(), taken_app = given.app, known_until = now() + $3 * interval '1 millisecond'
                 FROM unnest($1::bigint[], $2::text[]) AS given(id, app)
                 WHERE outbox.id = given.id AND taken_at IS NULL AND failed_at IS NULL RETURNING outbox.id",
                &[&ids, &apps, &millis(known_for)],
            )
            .await?;
        Ok(taken.iter().map(|row| row.get(0)).collect())
    }

    /// Removes rows whose messages are in the store.
    pub async fn remove(&self, ids: &[i64]) -> Result<(), OutboxError> {
        self.query("DELETE FROM {schema}.outbox WHERE id = ANY($1)", &[&ids]).await.map(drop)
    }

    /// Sets rows aside that cannot be sent.
    pub async fn refuse(&self, refusals: &[Refusal]) -> Result<(), OutboxError> {
        let ids: Vec<i64> = refusals.iter().map(|refusal| refusal.id).collect();
        let errors: Vec<&str> = refusals.iter().map(|refusal| refusal.error.as_str()).collect();
        let certain: Vec<bool> = refusals.iter().map(|refusal| refusal.sent == Sent::No).collect();
        self.query(
            "UPDATE {schema}.outbox SET failed_at = now(), error = given.error,
                 taken_at = CASE WHEN certain THEN NULL ELSE taken_at END,
                 taken_app = CASE WHEN certain THEN NULL ELSE taken_app END,
                 known_until = CASE WHEN certain THEN NULL ELSE known_until END
             FROM unnest($1::bigint[], $2::text[], $3::boolean[]) AS given(id, error, certain)
             WHERE outbox.id = given.id",
            &[&ids, &errors, &certain],
        )
        .await
        .map(drop)
    }

    pub async fn standing(&self) -> Result<Standing, OutboxError> {
        let rows = self
            .query(
                "SELECT count(*) FILTER (WHERE failed_at IS NULL), count(failed_at),
                        (extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE failed_at IS NULL)) * 1000)
                            ::bigint
                 FROM {schema}.outbox",
                &[],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(Standing::default()) };
        let count = |column: usize| u64::try_from(row.get::<_, i64>(column)).unwrap_or_default();
        let oldest = row.get::<_, Option<i64>>(2);
        Ok(Standing {
            waiting: count(0),
            failed: count(1),
            oldest: oldest.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or_default())),
        })
    }

    /// The rows that cannot be sent, oldest first.
    pub async fn failed(&self, limit: usize) -> Result<Vec<Failed>, OutboxError> {
        let rows = self
            .query(
                "SELECT id, app, event_type, coalesce(error, ''), (extract(epoch FROM failed_at) * 1000)::bigint,
                        taken_at IS NOT NULL
                 FROM {schema}.outbox WHERE failed_at IS NOT NULL ORDER BY id LIMIT $1",
                &[&i64::try_from(limit).unwrap_or(i64::MAX)],
            )
            .await?;
        let failed = |row: &tokio_postgres::Row| Failed {
            id: row.get(0),
            app: row.get(1),
            event_type: row.get(2),
            error: row.get(3),
            failed_at: Timestamp::from_millis(row.get(4)),
            sent: if row.get(5) { Sent::Maybe } else { Sent::No },
        };
        Ok(rows.iter().map(failed).collect())
    }

    /// Lets rows that could not be sent be tried as if they were new. Says which they are.
    pub async fn retry(&self, which: &Which) -> Result<Vec<i64>, OutboxError> {
        let rows = self
            .query(
                "UPDATE {schema}.outbox
                 SET failed_at = NULL, error = NULL, taken_at = NULL, taken_app = NULL, known_until = NULL
                 WHERE failed_at IS NOT NULL AND ($1::bigint[] IS NULL OR id = ANY($1)) RETURNING id",
                &[&which.ids()],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Removes rows that could not be sent. Says which they are.
    pub async fn discard(&self, which: &Which) -> Result<Vec<i64>, OutboxError> {
        let rows = self
            .query(
                "DELETE FROM {schema}.outbox
                 WHERE failed_at IS NOT NULL AND ($1::bigint[] IS NULL OR id = ANY($1)) RETURNING id",
                &[&which.ids()],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<tokio_postgres::Row>, OutboxError> {
        let sql = sql.replace("{schema}", self.schema.as_str());
        let answered = async {
            let statement = self.db.prepare_cached(&sql).await?;
            self.db.query(&statement, params).await
        };
        let answered = async { answered.await.map_err(|error| self.judge(&error)) };
        in_time(ANSWER_MAX, answered).await
    }

    async fn batch(&self, sql: &str) -> Result<(), OutboxError> {
        let answered = async { self.db.batch_execute(sql).await.map_err(|error| self.judge(&error)) };
        in_time(ANSWER_MAX, answered).await
    }

    fn judge(&self, error: &tokio_postgres::Error) -> OutboxError {
        match error.code() {
            None => unreachable(error),
            Some(code) if code.code().starts_with("57P") || code.code().starts_with("08") => unreachable(error),
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => {
                OutboxError::NotInstalled(self.schema.clone())
            }
            Some(_) => OutboxError::Database(describe(error)),
        }
    }
}

/// What becomes of rows that lie in an outbox that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsThere {
    /// The outbox stays.
    Keep,
    Discard,
}

/// Which of the rows that could not be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    These(Vec<i64>),
}

impl Which {
    fn ids(&self) -> Option<&[i64]> {
        match self {
            Self::All => None,
            Self::These(ids) => Some(ids),
        }
    }
}

fn found(row: &tokio_postgres::Row) -> Found {
    let id = row.get("id");
    // In a database without an encoding, text can be anything.
    let unreadable = |error: tokio_postgres::Error| (id, format!("the row cannot be read: {}", describe(&error)));
    let text = |name| row.try_get::<_, Option<String>>(name).map_err(unreadable);
    let words = |name| row.try_get::<_, Option<Vec<String>>>(name).map(Option::unwrap_or_default).map_err(unreadable);
    let taken = text("taken_app")?.map(|app| Taken { app, is_forgotten: row.get("is_forgotten") });
    Ok(Row {
        id,
        app: text("app")?.unwrap_or_default(),
        event_type: text("event_type")?.unwrap_or_default(),
        payload: Bytes::from(text("payload")?.unwrap_or_default()),
        content_type: text("content_type")?,
        event_id: text("event_id")?,
        channels: words("channels")?,
        tags: words("tags")?,
        ordering_key: text("ordering_key")?,
        deliver_at: row.get::<_, Option<i64>>("deliver_at").map(Timestamp::from_millis),
        traceparent: text("traceparent")?,
        taken,
    })
}

async fn in_time<T>(time_max: Duration, work: impl Future<Output = Result<T, OutboxError>>) -> Result<T, OutboxError> {
    let late = |_| Err(OutboxError::Unreachable(format!("no answer within {time_max:?}")));
    tokio::time::timeout(time_max, work).await.unwrap_or_else(late)
}

fn unreachable(error: &tokio_postgres::Error) -> OutboxError {
    OutboxError::Unreachable(describe(error))
}

fn millis(duration: Duration) -> f64 {
    duration.as_millis() as f64
}

/// Somewhat longer than the server itself lets a statement run.
const ANSWER_MAX: Duration = Duration::from_secs(20);
