//! The tables, and how an older database becomes a newer one.
//!
//! Hot tables hold only what is not finished. History lies in *pieces*: tables of their own for a stretch of
//! time, so that their trees and indexes stay small whatever the store has seen, and so that what is too old
//! is dropped as a whole. A message and all its attempts live in the piece that was open when it was accepted.

use super::writer::{note, noted};
use crate::step;
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
    Migration { tables: CALLERS, each_piece: "" },
    Migration { tables: TALLIES, each_piece: "" },
    Migration { tables: JOURNAL, each_piece: "" },
    Migration { tables: ALARMS, each_piece: "" },
    Migration { tables: "", each_piece: "ALTER TABLE attempt_{n} ADD COLUMN headers BLOB;" },
    Migration { tables: SOURCES, each_piece: "" },
    Migration { tables: POLLERS, each_piece: "" },
    Migration { tables: "ALTER TABLE piece ADD COLUMN repeats BLOB;", each_piece: FILED_LATER },
];

/// Indexes that are filed later, see `listing` (the note: up to which message everything is in them), and keys of requests in
/// runs, see `repeats`. `piece.repeats`: the filter of a piece that nothing more is filed into.
const FILED_LATER: &str = "
    CREATE TABLE by_app_{n} (owner INTEGER NOT NULL, listed INTEGER NOT NULL, PRIMARY KEY (owner, listed)) WITHOUT ROWID;
    INSERT INTO by_app_{n} SELECT app, key FROM message_{n} ORDER BY app, key;
    DROP INDEX IF EXISTS message_{n}_app;
    CREATE TABLE by_endpoint_{n} (
        owner          INTEGER NOT NULL,
        listed         INTEGER NOT NULL,
        listed_message INTEGER NOT NULL,
        listed_class   INTEGER NOT NULL,
        PRIMARY KEY (owner, listed)
    ) WITHOUT ROWID;
    INSERT INTO by_endpoint_{n} SELECT endpoint, key, message, class FROM attempt_{n} ORDER BY endpoint, key;
    DROP INDEX IF EXISTS attempt_{n}_endpoint;
    INSERT OR REPLACE INTO note
        SELECT 'listed_through', unhex(format('%016X', key)) FROM message_{n} ORDER BY key DESC LIMIT 1;

    ALTER TABLE idempotency_{n} RENAME TO idempotency_before_{n};
    CREATE TABLE idempotency_{n} (
        run     INTEGER NOT NULL,
        key     BLOB NOT NULL,
        message INTEGER NOT NULL,
        request BLOB NOT NULL,
        PRIMARY KEY (run, key)
    ) WITHOUT ROWID;
    INSERT INTO idempotency_{n} SELECT 0, key, message, request FROM idempotency_before_{n} ORDER BY key;
    DROP TABLE idempotency_before_{n};
";

/// `consumer.place`: the key of the last message that he has dealt with. `consumer.seeks`: how often he was set to another place.
const POLLERS: &str = "
    ALTER TABLE application ADD COLUMN pollers TEXT;

    CREATE TABLE consumer (
        poller   INTEGER NOT NULL,
        name     TEXT NOT NULL,
        app      INTEGER NOT NULL,
        place    INTEGER NOT NULL,
        seeks    INTEGER NOT NULL,
        moved_at INTEGER NOT NULL,
        PRIMARY KEY (poller, name)
    ) WITHOUT ROWID;
    CREATE INDEX consumer_app ON consumer (app);
";

/// `application.source`: what a source is, sealed; an application with it is that source's. `refused`: what came to sources
/// and was not taken.
const SOURCES: &str = "
    ALTER TABLE application ADD COLUMN source BLOB;
    CREATE INDEX application_source ON application (key) WHERE source IS NOT NULL;

    CREATE TABLE refused (
        key     INTEGER PRIMARY KEY,
        app     INTEGER NOT NULL,
        at      INTEGER NOT NULL,
        status  INTEGER NOT NULL,
        reason  TEXT NOT NULL,
        headers TEXT NOT NULL,
        body    BLOB NOT NULL
    );
    CREATE INDEX refused_app ON refused (app, key);
";

/// Time comes first: what is written now lies together, and so does what is forgotten.
const TALLIES: &str = "
    CREATE TABLE tally (
        span     INTEGER NOT NULL,
        start    INTEGER NOT NULL,
        kind     INTEGER NOT NULL,
        subject  INTEGER NOT NULL,
        what     INTEGER NOT NULL,
        count    INTEGER NOT NULL,
        PRIMARY KEY (span, start, kind, subject, what)
    ) WITHOUT ROWID;
";

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
///
/// `left_behind`: messages that the forgetting has passed although something of them had to stay, see `tidy`.
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

/// `revoked_session.session` is empty where all sessions are meant, and tokens of none.
///
/// `audit` is only ever added to, and that is not left to the good will of whoever writes there: `INSERT OR REPLACE`, too,
/// is refused.
const CALLERS: &str = "
    CREATE TABLE api_key (
        key        INTEGER PRIMARY KEY,
        hash       BLOB NOT NULL,
        name       TEXT NOT NULL,
        scopes     TEXT NOT NULL,
        app        INTEGER,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER,
        used_at    INTEGER
    );

    CREATE TABLE revoked_token (
        token     BLOB PRIMARY KEY,
        at        INTEGER NOT NULL,
        forget_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX revoked_token_forget_at ON revoked_token (forget_at);

    CREATE TABLE revoked_session (
        app          INTEGER NOT NULL,
        session      TEXT NOT NULL,
        issued_until INTEGER NOT NULL,
        at           INTEGER NOT NULL,
        forget_at    INTEGER,
        PRIMARY KEY (app, session, issued_until, at)
    ) WITHOUT ROWID;
    CREATE INDEX revoked_session_forget_at ON revoked_session (forget_at) WHERE forget_at IS NOT NULL;

    CREATE TABLE audit (
        key       INTEGER PRIMARY KEY,
        at        INTEGER NOT NULL,
        actor     TEXT NOT NULL,
        token     TEXT,
        operation TEXT NOT NULL,
        objects   TEXT NOT NULL,
        origin    TEXT,
        status    INTEGER NOT NULL
    );
    CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is only ever added to'); END;
    CREATE TRIGGER audit_is_not_shortened BEFORE DELETE ON audit
        BEGIN SELECT RAISE(ABORT, 'the audit log is only ever added to'); END;
    CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
        WHEN EXISTS (SELECT 1 FROM audit WHERE key = NEW.key)
        BEGIN SELECT RAISE(ABORT, 'the audit log is only ever added to'); END;
";

/// `app` is 0 where the deployment itself is meant.
const JOURNAL: &str = "
    CREATE TABLE journal (
        key  INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        at   INTEGER NOT NULL,
        app  INTEGER NOT NULL,
        what TEXT NOT NULL
    );
";

/// Those that are raised.
const ALARMS: &str = "
    CREATE TABLE alarm (subject TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID;
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
        headers      BLOB,
        PRIMARY KEY (message, key)
    ) WITHOUT ROWID;

    CREATE TABLE by_app_{n} (owner INTEGER NOT NULL, listed INTEGER NOT NULL, PRIMARY KEY (owner, listed)) WITHOUT ROWID;

    CREATE TABLE by_endpoint_{n} (
        owner          INTEGER NOT NULL,
        listed         INTEGER NOT NULL,
        listed_message INTEGER NOT NULL,
        listed_class   INTEGER NOT NULL,
        PRIMARY KEY (owner, listed)
    ) WITHOUT ROWID;

    CREATE TABLE idempotency_{n} (
        run     INTEGER NOT NULL,
        key     BLOB NOT NULL,
        message INTEGER NOT NULL,
        request BLOB NOT NULL,
        PRIMARY KEY (run, key)
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

/// Brings the database to `VERSION`, in committed steps: killed in between, it goes on from there. A version's own tables and its
/// number come first, so that no older binary takes what is half done for its own; then its pieces, one with each step, since
/// there can be much in them.
pub fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    while migrate_a_step(connection)? {}
    Ok(())
}

/// False if there was nothing to do.
fn migrate_a_step(connection: &mut Connection) -> rusqlite::Result<bool> {
    let version = version(connection)?;
    let step = match pieces_are_left(connection)? {
        false if version >= VERSION => return Ok(false),
        false => {
            let step = connection.transaction()?;
            let migration = migration_to(version + 1);
            step.execute_batch(migration.tables)?;
            step.pragma_update(None, "user_version", version + 1)?;
            if !migration.each_piece.is_empty() {
                note(&step, MIGRATED, 0)?;
            }
            step
        }
        true => {
            let step = connection.transaction()?;
            match next_piece(&step)? {
                Some(number) => {
                    let statements = migration_to(version).each_piece;
                    step.execute_batch(&statements.replace("{n}", &number.to_string()))?;
                    note(&step, MIGRATED, number)?;
                }
                None => {
                    step.execute("DELETE FROM note WHERE name = ?1", [MIGRATED])?;
                }
            }
            step
        }
    };
    step!("migration.step");
    step.commit()?;
    step!("migration.done");
    Ok(true)
}

/// While pieces are brought to the database's version: the last of them that was.
const MIGRATED: &str = "migrated_piece";

fn migration_to(version: i64) -> &'static Migration {
    let at = usize::try_from(version - 1).expect("a version is counted from 1");
    MIGRATIONS.get(at).expect("a newer version was refused before")
}

fn pieces_are_left(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(version(connection)? > 0 && noted(connection, MIGRATED)?.is_some())
}

fn next_piece(step: &Transaction<'_>) -> rusqlite::Result<Option<i64>> {
    let last = noted(step, MIGRATED)?.unwrap_or(0);
    step.query_row("SELECT min(number) FROM piece WHERE number > ?1", [last], |row| row.get(0))
}

pub fn create_piece(transaction: &Transaction<'_>, number: i64, first_key: i64) -> rusqlite::Result<()> {
    transaction.execute_batch(&PIECE.replace("{n}", &number.to_string()))?;
    transaction.execute("INSERT INTO piece (number, first_key) VALUES (?1, ?2)", (number, first_key))?;
    step!("piece.made");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sqlite::pieces::first_key_at, *};
    use postrider_engine::{
        AppKey, EndpointKey, MessageKey, Timestamp,
        policy::{DeathReason, DisableReason, Health, Ordering},
    };
    use std::{path::Path, time::Duration};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// A database as the first version left it, with something in every table, and the keys of its messages.
    fn first_version(connection: &Connection) -> [i64; 4] {
        connection.execute_batch(FIRST).unwrap();
        for number in [1, 2] {
            let piece = "ALTER TABLE attempt_{n} DROP COLUMN late; ALTER TABLE attempt_{n} DROP COLUMN late_why;
                 ALTER TABLE attempt_{n} DROP COLUMN headers;
                 DROP TABLE by_app_{n}; DROP TABLE by_endpoint_{n}; DROP TABLE idempotency_{n};
                 CREATE TABLE idempotency_{n} (
                     key BLOB PRIMARY KEY, message INTEGER NOT NULL, request BLOB NOT NULL
                 ) WITHOUT ROWID;
                 CREATE INDEX message_{n}_app ON message_{n} (app);
                 CREATE INDEX attempt_{n}_endpoint ON attempt_{n} (endpoint, key, class);";
            for statements in [PIECE, piece] {
                connection.execute_batch(&statements.replace("{n}", &number.to_string())).unwrap();
            }
        }
        connection
            .execute_batch(
                "PRAGMA user_version = 1;
                 INSERT INTO piece VALUES (1, 0, 0);
                 INSERT INTO application VALUES (10, 3, 'acme', 'Acme', 7, '{\"a\":\"b\"}', 1, 2, NULL);
                 INSERT INTO endpoint VALUES
                     (20, 10, 1, 'on', 'https://on.example/', '', 0, NULL, NULL, '{}', 5, x'01', 1, 2, NULL, 0),
                     (21, 10, 4, 'off', 'https://off.example/', 'd', 1, '[\"a.b\"]', '[\"c\"]', '{}', NULL, x'02', 1, 99,
                      NULL, 0),
                     (22, 10, 1, NULL, 'https://gone.example/', '', 0, NULL, NULL, '{}', NULL, x'', 1, 2, 3, 0);
                 INSERT INTO event_type VALUES ('a.b', 2, 'd', 0, 1, NULL, 'group', '{}', 1, 2);
                 INSERT INTO answer VALUES (x'00000000000000000000000000000001', 1, x'00000000000000000000000000000002',
                     201, x'7b7d');
                 INSERT INTO task VALUES (30, 20, 5, 50, 7, 2, 0, 4), (31, 21, 5, 50, 50, 1, 1, 4);
                 INSERT INTO note VALUES ('mine', x'0708');",
            )
            .unwrap();
        let keys = [0, 1, 2, 3].map(|sequence| first_key_at(NOW) + sequence);
        let owed = [20_i64, 21, 22].map(i64::to_be_bytes).concat();
        for key in keys {
            let extra = r#"{"event_id":"evt","tags":["t"]}"#;
            let extra = (key == keys[0]).then_some(extra);
            let row = (key, 10, "a.b", &owed, extra, None::<Vec<u8>>, b"{}");
            connection.execute("INSERT INTO message_1 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", row).unwrap();
            for endpoint in [20, 21, 22] {
                connection
                    .execute(
                        "INSERT INTO attempt_1 VALUES (?1, ?2, ?3, ?4, 2, 0, 0, 1, 7, 12, 503, 'https://on.example/',
                             x'6e6f', NULL, 9, 5000, 250, NULL, 1)",
                        (key, key + 100 + endpoint, endpoint, if key == keys[3] { 0 } else { 1 }),
                    )
                    .unwrap();
            }
        }
        connection.execute("INSERT INTO piece VALUES (2, ?1, 0)", [keys[3] + 1]).unwrap();
        let minted = (keys[3] + 122).to_be_bytes();
        connection.execute("INSERT INTO note VALUES ('minted_through', ?1)", [minted]).unwrap();
        connection.execute("INSERT INTO event_id_1 VALUES (10, 'evt', ?1)", [keys[0]]).unwrap();
        connection.execute("INSERT INTO payload_expiry VALUES (?1, ?2)", (NOW.as_millis() + 5, keys[0])).unwrap();
        let idempotency = ([9_u8; 16], keys[1], [8_u8; 16]);
        connection.execute("INSERT INTO idempotency_1 VALUES (?1, ?2, ?3)", idempotency).unwrap();
        for (endpoint, message, trigger, due, attempts, first) in [
            (20, keys[0], 0, 40, 3, Some(1_000)),
            (20, keys[1], 0, 30, 0, None),
            (20, keys[3], 1, 20, 0, None),
            (21, keys[1], 0, 10, 1, Some(2_000)),
            (22, keys[1], 0, 10, 1, Some(2_000)),
        ] {
            let row = (endpoint, message, trigger, due, 0, attempts, first);
            connection.execute("INSERT INTO waiting VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", row).unwrap();
        }
        for endpoint in [20, 21, 22] {
            let row = (endpoint, keys[2], 1, 77, 2);
            connection.execute("INSERT INTO dead VALUES (?1, ?2, ?3, ?4, ?5)", row).unwrap();
        }
        keys
    }

    /// Also if the start that was to bring it up to date was killed between two of its steps.
    #[tokio::test]
    async fn what_the_first_version_stored_is_read_right() {
        let mut killed_after = 0;
        loop {
            let folder = tempfile::tempdir().unwrap();
            let mut raw = Connection::open(folder.path().join("postrider.db")).unwrap();
            let keys = first_version(&raw).map(MessageKey::new);
            let was_whole = (0..killed_after).any(|_| !migrate_a_step(&mut raw).unwrap());
            drop(raw);
            is_read_right(folder.path(), keys).await;
            if was_whole {
                break;
            }
            killed_after += 1;
        }
        assert!(killed_after > MIGRATIONS.len(), "{killed_after}");
    }

    async fn is_read_right(folder: &Path, keys: [MessageKey; 4]) {
        let file = folder.join("postrider.db");
        let store = SqliteStore::open(folder, NOW).unwrap();
        let (app, on, off) = (AppKey::new(10), EndpointKey::new(20), EndpointKey::new(21));

        let application = store.application(By::Uid("acme".to_owned())).await.unwrap().unwrap();
        assert_eq!((application.version, application.rate_limit, application.rules), (3, Some(7), None));
        let event_type = store.event_type("a.b").await.unwrap().unwrap();
        assert_eq!((event_type.version, event_type.deprecated, event_type.rules), (2, true, None));
        let enabled = store.endpoint(app, By::Uid("on".to_owned())).await.unwrap().unwrap();
        assert_eq!((enabled.disabled, enabled.rate_limit, enabled.rules), (None, Some(5), None));
        let disabled = store.endpoint_of_lane(off).await.unwrap().unwrap();
        let since = Timestamp::from_millis(99);
        assert_eq!(disabled.disabled, Some(Disabled { why: DisableReason::Manual, at: since }));
        assert_eq!((disabled.version, disabled.event_types), (4, Some(vec!["a.b".to_owned()])));
        assert_eq!(store.health(on).await.unwrap(), Health::default());
        assert_eq!(store.note("mine").await.unwrap(), Some(vec![7, 8]));

        for ordering in [Ordering::None, Ordering::Keyed] {
            let loaded = store.load(on, ordering, NOW, 10).await.unwrap();
            let found: Vec<_> = loaded.deliveries.iter().map(|delivery| (delivery.id.message, delivery.due)).collect();
            let expected = [(keys[3], 20), (keys[1], 30), (keys[0], 40)];
            assert_eq!(found, expected.map(|(key, due)| (key, Timestamp::from_millis(due))));
            let tried = loaded.deliveries[2].progress;
            let give_up_at = Timestamp::from_millis(1_000).plus(Duration::from_hours(96));
            assert_eq!((tried.attempts, tried.give_up_at), (3, Some(give_up_at)), "it was fixed at the first attempt");
            assert_eq!(loaded.deliveries[1].progress.give_up_at, None);
            assert_eq!((loaded.deliveries[1].queued_at, loaded.deliveries[1].order), (NOW, None));
            assert_eq!((loaded.more, loaded.next_due, loaded.blocked), (false, None, false));
        }
        let in_order = store.load(on, Ordering::Fifo, NOW, 10).await.unwrap();
        let found: Vec<_> = in_order.deliveries.iter().map(|delivery| delivery.id.message).collect();
        assert_eq!(found, [keys[3], keys[0], keys[1]], "a resend, and then what waits in its order");

        let dead = DeliveryState::Dead { at: Timestamp::from_millis(77), reason: DeathReason::Exhausted };
        let states = store.deliveries(keys[2]).await.unwrap();
        assert!(states.iter().all(|(_, state)| *state == dead), "{states:?}");
        assert_eq!(store.deliveries(keys[3]).await.unwrap()[0], (on, DeliveryState::Delivered));
        assert_eq!(store.counts(Shards::ALL).await.unwrap(), Counts { waiting: 5, dead: 3 });
        let attempts =
            store.attempts(AttemptsOf::Message(keys[0]), AttemptFilter::default(), first_page()).await.unwrap();
        assert_eq!((attempts.len(), attempts[0].record.status, attempts[0].record.held), (3, Some(503), None));
        let listed =
            store.attempts(AttemptsOf::Endpoint(app, on), AttemptFilter::default(), first_page()).await.unwrap();
        assert!(attempts.iter().all(|attempt| attempt.id.endpoint != on || listed.contains(attempt)), "{listed:?}");
        let listed = store.messages(app, MessageFilter::default(), first_page()).await.unwrap();
        assert_eq!(listed.iter().map(|message| message.key).collect::<Vec<_>>(), keys);
        let message = store.message(app, By::Uid("evt".to_owned())).await.unwrap().unwrap();
        assert_eq!((message.key, &message.content.tags[..]), (keys[0], ["t".to_owned()].as_slice()));
        assert_eq!(store.unfinished_tasks().await.unwrap(), [TaskKey(30)]);

        while store.bury(NOW).await.unwrap() {}
        assert_eq!(
            store.counts(Shards::ALL).await.unwrap(),
            Counts { waiting: 4, dead: 4 },
            "the deleted endpoint's goes too"
        );
        let repeat = NewMessage {
            app,
            at: NOW,
            generation: None,
            content: message.content,
            payload_expires_at: None,
            owed: vec![on],
            fifo: vec![on],
            idempotency: Some(Idempotency { key: [9; 16], request: [8; 16], chosen: true }),
            trace: None,
        };
        assert_eq!(store.accept(repeat).await.unwrap(), Accepted::Before(keys[1]));
        store.close().await;
        drop(store);

        let raw = Connection::open(&file).unwrap();
        let tasks: Vec<(String, i64, i64, i64, i64)> = raw
            .prepare("SELECT kind, app, cursor, changed, status FROM job ORDER BY key")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
            .unwrap()
            .collect::<rusqlite::Result<_>>()
            .unwrap();
        let kinds = tasks.iter().map(|task| serde_json::from_str(&task.0).unwrap()).collect::<Vec<TaskKind>>();
        let recover = |endpoint| TaskKind::Recover { endpoint, since: 5, until: 50 };
        assert_eq!(kinds, [recover(20), recover(21)]);
        let rest: Vec<_> = tasks.iter().map(|task| (task.1, task.2, task.3, task.4)).collect();
        assert_eq!(rest, [(10, 7, 2, 0), (10, 50, 1, 1)]);
    }

    fn first_page<K>() -> Page<K> {
        Page { from: None, order: Order::Ascending, limit: 100 }
    }
}
