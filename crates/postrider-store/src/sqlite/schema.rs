//! The tables, and how an older database becomes a newer one.
//!
//! Hot tables hold only what is not finished. History lies in *pieces*: tables of their own for a stretch of
//! time, so that their trees and indexes stay small whatever the store has seen, and so that what is too old
//! is dropped as a whole. A message and all its attempts live in the piece that was open when it was accepted.

use rusqlite::{Connection, Transaction};

/// Raised with every migration. An older binary refuses a database of a newer version.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// Each entry lifts the database by one version. Entries are never edited once released.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE note (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

    CREATE TABLE piece (
        number     INTEGER PRIMARY KEY,
        first_key  INTEGER NOT NULL,
        retired    INTEGER NOT NULL DEFAULT 0
    );

    CREATE TABLE application (
        key         INTEGER PRIMARY KEY,
        version     INTEGER NOT NULL,
        uid         TEXT UNIQUE,
        name        TEXT NOT NULL,
        rate_limit  INTEGER,
        metadata    TEXT NOT NULL,
        created_at  INTEGER NOT NULL,
        updated_at  INTEGER NOT NULL,
        deleted_at  INTEGER
    );

    CREATE TABLE endpoint (
        key         INTEGER PRIMARY KEY,
        app         INTEGER NOT NULL,
        version     INTEGER NOT NULL,
        uid         TEXT,
        url         TEXT NOT NULL,
        description TEXT NOT NULL,
        disabled    INTEGER NOT NULL,
        event_types TEXT,
        channels    TEXT,
        metadata    TEXT NOT NULL,
        rate_limit  INTEGER,
        sealed      BLOB NOT NULL,
        created_at  INTEGER NOT NULL,
        updated_at  INTEGER NOT NULL,
        deleted_at  INTEGER,
        buried      INTEGER NOT NULL DEFAULT 0,
        UNIQUE (app, uid)
    );
    CREATE INDEX endpoint_app ON endpoint (app, key) WHERE deleted_at IS NULL;
    CREATE INDEX endpoint_unburied ON endpoint (key) WHERE deleted_at IS NOT NULL AND buried = 0;

    CREATE TABLE event_type (
        name          TEXT PRIMARY KEY,
        version       INTEGER NOT NULL,
        description   TEXT NOT NULL,
        archived      INTEGER NOT NULL,
        deprecated    INTEGER NOT NULL,
        feature_flags TEXT,
        group_name    TEXT,
        schemas       TEXT,
        created_at    INTEGER NOT NULL,
        updated_at    INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE waiting (
        endpoint         INTEGER NOT NULL,
        message          INTEGER NOT NULL,
        trigger_code     INTEGER NOT NULL,
        due              INTEGER NOT NULL,
        cycle            INTEGER NOT NULL,
        attempts         INTEGER NOT NULL,
        first_attempt_at INTEGER,
        PRIMARY KEY (endpoint, message, trigger_code)
    ) WITHOUT ROWID;
    CREATE INDEX waiting_due ON waiting (endpoint, due);

    CREATE TABLE dead (
        endpoint INTEGER NOT NULL,
        message  INTEGER NOT NULL,
        reason   INTEGER NOT NULL,
        at       INTEGER NOT NULL,
        cycle    INTEGER NOT NULL,
        PRIMARY KEY (endpoint, message)
    ) WITHOUT ROWID;

    CREATE TABLE answer (
        key     BLOB PRIMARY KEY,
        at      INTEGER NOT NULL,
        request BLOB NOT NULL,
        status  INTEGER NOT NULL,
        body    BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX answer_at ON answer (at);

    CREATE TABLE task (
        key        INTEGER PRIMARY KEY,
        endpoint   INTEGER NOT NULL,
        since      INTEGER NOT NULL,
        until      INTEGER NOT NULL,
        reached    INTEGER NOT NULL,
        recovered  INTEGER NOT NULL,
        finished   INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE INDEX task_unfinished ON task (key) WHERE finished = 0;

    CREATE TABLE payload_expiry (
        at      INTEGER NOT NULL,
        message INTEGER NOT NULL,
        PRIMARY KEY (at, message)
    ) WITHOUT ROWID;
"];

/// The tables of one piece of history; `{n}` is its number.
const PIECE: &str = "
    CREATE TABLE message_{n} (
        key        INTEGER PRIMARY KEY,
        app        INTEGER NOT NULL,
        event_type TEXT NOT NULL,
        owed       BLOB NOT NULL,
        extra      TEXT,
        repeat     BLOB,
        payload    BLOB
    );
    CREATE INDEX message_{n}_app ON message_{n} (app);

    CREATE TABLE attempt_{n} (
        message      INTEGER NOT NULL,
        key          INTEGER NOT NULL,
        endpoint     INTEGER NOT NULL,
        class        INTEGER NOT NULL,
        rule         INTEGER NOT NULL,
        trigger_code INTEGER NOT NULL,
        cycle        INTEGER NOT NULL,
        number       INTEGER NOT NULL,
        started_at   INTEGER NOT NULL,
        duration     INTEGER NOT NULL,
        status       INTEGER,
        url          TEXT NOT NULL,
        response     BLOB,
        death        INTEGER,
        next_due     INTEGER,
        backoff      INTEGER,
        jitter       INTEGER,
        retry_after  INTEGER,
        capped       INTEGER,
        PRIMARY KEY (message, key)
    ) WITHOUT ROWID;
    CREATE INDEX attempt_{n}_endpoint ON attempt_{n} (endpoint, key, class);

    CREATE TABLE idempotency_{n} (
        key     BLOB PRIMARY KEY,
        message INTEGER NOT NULL,
        request BLOB NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE event_id_{n} (
        app      INTEGER NOT NULL,
        event_id TEXT NOT NULL,
        message  INTEGER NOT NULL,
        PRIMARY KEY (app, event_id)
    ) WITHOUT ROWID;
";

/// The tables of a piece, without the ones that only speed up reading: what has to be emptied.
pub const PIECE_TABLES: [&str; 4] = ["message", "attempt", "idempotency", "event_id"];

pub fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Brings the database to `VERSION`, one committed step at a time: killed in between, it goes on from there.
pub fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    while let Some(migration) = usize::try_from(version(connection)?).ok().and_then(|at| MIGRATIONS.get(at)) {
        let step = connection.transaction()?;
        let next = version(&step)? + 1;
        step.execute_batch(migration)?;
        step.pragma_update(None, "user_version", next)?;
        step.commit()?;
    }
    Ok(())
}

pub fn create_piece(transaction: &Transaction<'_>, number: i64, first_key: i64) -> rusqlite::Result<()> {
    transaction.execute_batch(&PIECE.replace("{n}", &number.to_string()))?;
    transaction.execute("INSERT INTO piece (number, first_key) VALUES (?1, ?2)", (number, first_key))?;
    Ok(())
}
