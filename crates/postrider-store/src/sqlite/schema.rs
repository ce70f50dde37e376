//! The tables, and how an older database becomes a newer one.
//!
//! Hot tables hold only what is not finished. History lies in *pieces*: tables of their own for a stretch of
//! time, so that their trees and indexes stay small whatever the store has seen, and so that what is too old
//! is dropped as a whole. A message and all its attempts live in the piece that was open when it was accepted.

use rusqlite::{Connection, Transaction};

/// Raised with every migration. An older binary refuses a database of a newer version.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

struct Migration {
    tables: &'static str,
    /// For the tables of each piece; `{n}` is its number.
    each_piece: &'static str,
}

/// Each entry lifts the database by one version. Entries are never edited once released.
const MIGRATIONS: &[Migration] = &[
    Migration { tables: FIRST, each_piece: "" },
    Migration {
        tables: RULES_HEALTH_AND_ORDER,
        each_piece: "
    ALTER TABLE attempt_{n} ADD COLUMN late INTEGER;
    ALTER TABLE attempt_{n} ADD COLUMN late_why INTEGER;
",
    },
];

const FIRST: &str = "
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
";

/// `waiting.place` says in which queue of its lane a row stands, see `codes::Place`: without it, a lane's due rows would
/// have to be looked through for those that wait for no other.
///
/// A row of `dead` outlives its end, so that it stays known that there was one. `dead.open`: 1 for a dead letter; 0 if it
/// was put on its way again or has arrived since; 2 if its time among the dead letters is over: it is not listed and not
/// replayed with the others, and dead all the same.
const RULES_HEALTH_AND_ORDER: &str = "
    ALTER TABLE application ADD COLUMN rules TEXT;
    ALTER TABLE event_type ADD COLUMN rules TEXT;
    ALTER TABLE endpoint ADD COLUMN rules TEXT;
    ALTER TABLE endpoint ADD COLUMN disabled_why INTEGER;
    ALTER TABLE endpoint ADD COLUMN disabled_at INTEGER;
    UPDATE endpoint SET disabled_why = 0, disabled_at = updated_at WHERE disabled = 1;
    ALTER TABLE endpoint DROP COLUMN disabled;

    ALTER TABLE waiting ADD COLUMN give_up_at INTEGER;
    ALTER TABLE waiting ADD COLUMN last_delay INTEGER;
    ALTER TABLE waiting ADD COLUMN ambiguous INTEGER;
    ALTER TABLE waiting ADD COLUMN ambiguous_since INTEGER;
    ALTER TABLE waiting ADD COLUMN queued_at INTEGER;
    ALTER TABLE waiting ADD COLUMN order_key INTEGER;
    ALTER TABLE waiting ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
    UPDATE waiting SET give_up_at = first_attempt_at + 345600000 WHERE first_attempt_at IS NOT NULL;
    ALTER TABLE waiting DROP COLUMN first_attempt_at;
    UPDATE waiting SET place = 2 WHERE trigger_code = 1;
    DROP INDEX waiting_due;
    CREATE INDEX waiting_due ON waiting (endpoint, place, due);
    CREATE INDEX waiting_order ON waiting (endpoint, order_key, message) WHERE order_key IS NOT NULL;

    ALTER TABLE dead ADD COLUMN app INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE dead ADD COLUMN open INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dead ADD COLUMN replayed_at INTEGER;
    UPDATE dead SET app = coalesce((SELECT app FROM endpoint WHERE key = dead.endpoint), 0);
    CREATE INDEX dead_app ON dead (app, message, endpoint) WHERE open = 1;
    CREATE INDEX dead_at ON dead (at) WHERE open = 1;

    CREATE TABLE health (
        endpoint         INTEGER PRIMARY KEY,
        failures         INTEGER NOT NULL,
        open_until       INTEGER,
        trips            INTEGER NOT NULL,
        failing_since    INTEGER,
        permanent_streak INTEGER NOT NULL,
        warned           INTEGER NOT NULL
    );

    CREATE TABLE sequence (
        endpoint  INTEGER NOT NULL,
        order_key INTEGER NOT NULL,
        last      INTEGER NOT NULL,
        used_at   INTEGER NOT NULL,
        PRIMARY KEY (endpoint, order_key)
    ) WITHOUT ROWID;

    CREATE TABLE left_behind (
        what    INTEGER NOT NULL,
        message INTEGER NOT NULL,
        PRIMARY KEY (what, message)
    ) WITHOUT ROWID;

    CREATE TABLE job (
        key        INTEGER PRIMARY KEY,
        app        INTEGER NOT NULL,
        kind       TEXT NOT NULL,
        name       TEXT NOT NULL,
        cursor     INTEGER NOT NULL,
        total      INTEGER,
        done       INTEGER NOT NULL,
        changed    INTEGER NOT NULL,
        status     INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    INSERT INTO job
        SELECT key, coalesce((SELECT app FROM endpoint WHERE endpoint.key = task.endpoint), 0),
               json_object('recover', json_object('endpoint', endpoint, 'since', since, 'until', until)),
               'recover', reached, NULL, recovered, recovered, finished, updated_at, updated_at
        FROM task;
    CREATE INDEX job_running ON job (key) WHERE status = 0;
    DROP TABLE task;
";

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
        late         INTEGER,
        late_why     INTEGER,
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
        step.execute_batch(migration.tables)?;
        for number in piece_numbers(&step, next)? {
            step.execute_batch(&migration.each_piece.replace("{n}", &number.to_string()))?;
        }
        step.pragma_update(None, "user_version", next)?;
        step.commit()?;
    }
    Ok(())
}

/// The pieces that were made by an earlier version; there are none before the first.
fn piece_numbers(step: &Transaction<'_>, version: i64) -> rusqlite::Result<Vec<i64>> {
    if version == 1 {
        return Ok(Vec::new());
    }
    step.prepare("SELECT number FROM piece")?.query_map([], |row| row.get(0))?.collect()
}

pub fn create_piece(transaction: &Transaction<'_>, number: i64, first_key: i64) -> rusqlite::Result<()> {
    transaction.execute_batch(&PIECE.replace("{n}", &number.to_string()))?;
    transaction.execute("INSERT INTO piece (number, first_key) VALUES (?1, ?2)", (number, first_key))?;
    Ok(())
}
