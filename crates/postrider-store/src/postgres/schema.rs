//! The tables, and how an older database becomes a newer one.
//!
//! They are those of SQLite, as far as that makes sense. Hot tables hold only what is not finished; history lies in
//! partitions by time, which are dropped whole. A message and all its attempts lie in partitions of the same span, and
//! requests are recognised by tables of their own, because no unique index reaches over partitions.

use super::{Db, Result, row};
use crate::{Migrated, step};

/// Raised with every migration. An older binary refuses a database of a newer version.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// Each entry lifts the database by one version. Entries are never edited once released.
pub const MIGRATIONS: &[&str] = &[FIRST, CALLERS, TALLIES, JOURNAL, ALARMS, HEADERS, SOURCES, POLLERS];

/// `consumer.place`: the key of the last message that he has dealt with. `consumer.seeks`: how often he was set to another place.
const POLLERS: &str = "
    ALTER TABLE application ADD COLUMN pollers text;

    CREATE TABLE consumer (
        poller   bigint NOT NULL,
        name     text NOT NULL,
        app      bigint NOT NULL,
        place    bigint NOT NULL,
        seeks    bigint NOT NULL,
        moved_at bigint NOT NULL,
        PRIMARY KEY (poller, name)
    );
    CREATE INDEX consumer_app ON consumer (app);
";

/// `application.source`: what a source is, sealed; an application with it is that source's. `refused`: what came to sources
/// and was not taken.
const SOURCES: &str = "
    ALTER TABLE application ADD COLUMN source bytea;
    CREATE INDEX application_source ON application (key) WHERE source IS NOT NULL;

    CREATE TABLE refused (
        key     bigint PRIMARY KEY,
        app     bigint NOT NULL,
        at      bigint NOT NULL,
        status  smallint NOT NULL,
        reason  text NOT NULL,
        headers text NOT NULL,
        body    bytea NOT NULL
    );
    CREATE INDEX refused_app ON refused (app, key);
";

/// Time comes first: what is written now lies together, and so does what is forgotten.
const TALLIES: &str = "
    CREATE TABLE tally (
        span     smallint NOT NULL,
        start    bigint NOT NULL,
        kind     smallint NOT NULL,
        subject  bigint NOT NULL,
        what     smallint NOT NULL,
        count    bigint NOT NULL,
        PRIMARY KEY (span, start, kind, subject, what)
    );
";

/// `node.batch` counts a node's transactions, so that after a lost answer it is known whether the last one was committed;
/// changing that row also keeps the node from being declared dead in the middle of one. `node.settled_through`: every
/// message up to this key that the node holds has a row for each of its deliveries, see `recover`. `node.minted`: the
/// greatest key it has used. `node.retiring`: it is about to stop, and wants no shards any more.
///
/// `cluster.floor`: no message is accepted any more with a key up to this one. Whoever has to know that he has seen all
/// messages before a key raises it first; otherwise a node whose clock is behind could still add one.
///
/// `news`: what a commit of one node changed that another one must hear of; see `news`.
///
/// `sequence.last_key` is the last message that was counted: whoever comes next takes a greater key, whatever his clock
/// says.
const FIRST: &str = "
    CREATE TABLE note (name text PRIMARY KEY, value bytea NOT NULL);

    CREATE SEQUENCE node_id;
    CREATE TABLE node (
        id              bigint PRIMARY KEY,
        batch           bigint NOT NULL,
        settled_through bigint NOT NULL,
        minted          bigint NOT NULL,
        name            text NOT NULL,
        retiring        boolean NOT NULL DEFAULT false,
        started_at      timestamptz NOT NULL
    ) WITH (fillfactor = 20);
    CREATE TABLE lease (
        node  bigint PRIMARY KEY,
        until timestamptz NOT NULL
    ) WITH (fillfactor = 20);
    CREATE TABLE shard (
        number smallint PRIMARY KEY,
        node   bigint
    ) WITH (fillfactor = 20);
    INSERT INTO shard SELECT number, NULL FROM generate_series(0, 255) AS number;
    CREATE TABLE cluster (floor bigint NOT NULL, minted bigint NOT NULL) WITH (fillfactor = 20);
    INSERT INTO cluster VALUES (0, 0);
    CREATE TABLE news (
        id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        node     bigint NOT NULL,
        shard    smallint,
        kind     smallint NOT NULL,
        subject  bigint NOT NULL,
        detail   bigint NOT NULL
    );

    CREATE TABLE application (
        key         bigint PRIMARY KEY,
        version     bigint NOT NULL,
        generation  bigint NOT NULL DEFAULT 0,
        uid         text UNIQUE,
        name        text NOT NULL,
        rate_limit  bigint,
        rules       text,
        metadata    text NOT NULL,
        created_at  bigint NOT NULL,
        updated_at  bigint NOT NULL,
        deleted_at  bigint
    );

    CREATE TABLE endpoint (
        key          bigint PRIMARY KEY,
        app          bigint NOT NULL,
        version      bigint NOT NULL,
        uid          text,
        url          text NOT NULL,
        description  text NOT NULL,
        disabled_why smallint,
        disabled_at  bigint,
        event_types  text,
        channels     text,
        metadata     text NOT NULL,
        rate_limit   bigint,
        rules        text,
        sealed       bytea NOT NULL,
        created_at   bigint NOT NULL,
        updated_at   bigint NOT NULL,
        deleted_at   bigint,
        buried       boolean NOT NULL DEFAULT false,
        UNIQUE (app, uid)
    );
    CREATE INDEX endpoint_app ON endpoint (app, key) WHERE deleted_at IS NULL;
    CREATE INDEX endpoint_unburied ON endpoint (key) WHERE deleted_at IS NOT NULL AND NOT buried;

    CREATE TABLE event_type (
        name          text COLLATE \"C\" PRIMARY KEY,
        version       bigint NOT NULL,
        description   text NOT NULL,
        archived      boolean NOT NULL,
        deprecated    boolean NOT NULL,
        feature_flags text,
        group_name    text,
        schemas       text,
        rules         text,
        created_at    bigint NOT NULL,
        updated_at    bigint NOT NULL
    );

    CREATE TABLE waiting (
        endpoint        bigint NOT NULL,
        message         bigint NOT NULL,
        trigger_code    smallint NOT NULL,
        due             bigint NOT NULL,
        cycle           integer NOT NULL,
        attempts        integer NOT NULL,
        give_up_at      bigint,
        last_delay      bigint,
        ambiguous       integer,
        ambiguous_since bigint,
        queued_at       bigint,
        order_key       bigint,
        place           smallint NOT NULL,
        PRIMARY KEY (endpoint, message, trigger_code)
    ) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.1);
    CREATE INDEX waiting_due ON waiting (endpoint, place, due, message);
    CREATE INDEX waiting_order ON waiting (endpoint, order_key, message) WHERE order_key IS NOT NULL;

    CREATE TABLE dead (
        endpoint    bigint NOT NULL,
        message     bigint NOT NULL,
        reason      smallint NOT NULL,
        at          bigint NOT NULL,
        cycle       integer NOT NULL,
        app         bigint NOT NULL,
        open        smallint NOT NULL,
        replayed_at bigint,
        PRIMARY KEY (endpoint, message)
    ) WITH (fillfactor = 90);
    CREATE INDEX dead_app ON dead (app, message, endpoint) WHERE open = 1;
    CREATE INDEX dead_at ON dead (at) WHERE open = 1;

    CREATE TABLE health (
        endpoint         bigint PRIMARY KEY,
        failures         integer NOT NULL,
        open_until       bigint,
        trips            integer NOT NULL,
        failing_since    bigint,
        permanent_streak integer NOT NULL,
        warned           boolean NOT NULL
    ) WITH (fillfactor = 50);

    CREATE TABLE sequence (
        endpoint  bigint NOT NULL,
        order_key bigint NOT NULL,
        last      bigint NOT NULL,
        last_key  bigint NOT NULL,
        last_node bigint NOT NULL,
        used_at   bigint NOT NULL,
        PRIMARY KEY (endpoint, order_key)
    ) WITH (fillfactor = 70);

    CREATE TABLE idempotency (
        key     bytea PRIMARY KEY,
        message bigint NOT NULL,
        request bytea NOT NULL
    );
    CREATE INDEX idempotency_message ON idempotency (message);

    CREATE TABLE event_id (
        app      bigint NOT NULL,
        event_id text COLLATE \"C\" NOT NULL,
        message  bigint NOT NULL,
        PRIMARY KEY (app, event_id)
    );
    CREATE INDEX event_id_message ON event_id (message);

    CREATE TABLE answer (
        key     bytea PRIMARY KEY,
        at      bigint NOT NULL,
        request bytea NOT NULL,
        status  smallint NOT NULL,
        body    bytea NOT NULL
    );
    CREATE INDEX answer_at ON answer (at);

    CREATE TABLE job (
        key        bigint PRIMARY KEY,
        app        bigint NOT NULL,
        kind       text NOT NULL,
        name       text NOT NULL,
        cursor     bigint NOT NULL,
        total      bigint,
        done       bigint NOT NULL,
        changed    bigint NOT NULL,
        status     smallint NOT NULL,
        created_at bigint NOT NULL,
        updated_at bigint NOT NULL
    );
    CREATE INDEX job_running ON job (key) WHERE status = 0;

    CREATE TABLE payload_expiry (
        at      bigint NOT NULL,
        message bigint NOT NULL,
        PRIMARY KEY (at, message)
    );

    CREATE TABLE left_behind (
        what    smallint NOT NULL,
        message bigint NOT NULL,
        PRIMARY KEY (what, message)
    );

    CREATE TABLE message (
        key        bigint NOT NULL,
        app        bigint NOT NULL,
        event_type text NOT NULL,
        owed       bigint[] NOT NULL,
        extra      text,
        payload    bytea,
        PRIMARY KEY (key)
    ) PARTITION BY RANGE (key);
    CREATE INDEX message_app ON message (app, key);
    ALTER TABLE message ALTER COLUMN payload SET STORAGE EXTERNAL;

    CREATE TABLE attempt (
        message      bigint NOT NULL,
        key          bigint NOT NULL,
        endpoint     bigint NOT NULL,
        class        smallint NOT NULL,
        rule         smallint NOT NULL,
        trigger_code smallint NOT NULL,
        cycle        integer NOT NULL,
        number       integer NOT NULL,
        started_at   bigint NOT NULL,
        duration     bigint NOT NULL,
        status       smallint,
        url          text NOT NULL,
        response     bytea,
        death        smallint,
        next_due     bigint,
        backoff      bigint,
        jitter       bigint,
        retry_after  bigint,
        capped       boolean,
        late         bigint,
        late_why     smallint,
        PRIMARY KEY (message, key)
    ) PARTITION BY RANGE (message);
    -- For lists alone, which ask for `endpoint + 0`: whoever looks for the attempts of one delivery would otherwise be sent
    -- through the whole history of its endpoint, as long as a partition is too young to be known to the planner.
    CREATE INDEX attempt_endpoint ON attempt ((endpoint + 0), key);
    ALTER TABLE attempt ALTER COLUMN response SET STORAGE EXTERNAL;

    -- A span of history: the partitions message_<number> and attempt_<number> hold what belongs to messages with a key in
    -- [first_key, end_key).
    CREATE TABLE piece (
        number    bigint PRIMARY KEY,
        first_key bigint NOT NULL UNIQUE,
        end_key   bigint NOT NULL
    );
";

/// `revoked_session.session` is empty where all sessions are meant, and tokens of none. `audit` is only ever added to, and
/// that is not left to the good will of whoever writes there.
const CALLERS: &str = "
    CREATE TABLE api_key (
        key        bigint PRIMARY KEY,
        hash       bytea NOT NULL,
        name       text NOT NULL,
        scopes     text NOT NULL,
        app        bigint,
        created_at bigint NOT NULL,
        expires_at bigint,
        revoked_at bigint,
        used_at    bigint
    ) WITH (fillfactor = 70);

    CREATE TABLE revoked_token (
        token     bytea PRIMARY KEY,
        at        bigint NOT NULL,
        forget_at bigint NOT NULL
    );
    CREATE INDEX revoked_token_forget_at ON revoked_token (forget_at);

    CREATE TABLE revoked_session (
        app          bigint NOT NULL,
        session      text COLLATE \"C\" NOT NULL,
        issued_until bigint NOT NULL,
        at           bigint NOT NULL,
        forget_at    bigint,
        PRIMARY KEY (app, session, issued_until, at)
    );
    CREATE INDEX revoked_session_forget_at ON revoked_session (forget_at) WHERE forget_at IS NOT NULL;

    CREATE TABLE audit (
        key       bigint PRIMARY KEY,
        at        bigint NOT NULL,
        actor     text NOT NULL,
        token     text,
        operation text NOT NULL,
        objects   text NOT NULL,
        origin    text,
        status    smallint NOT NULL
    );
    CREATE FUNCTION audit_is_only_added_to() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the audit log is only ever added to'; END $$;
    CREATE TRIGGER audit_is_only_added_to BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
        FOR EACH STATEMENT EXECUTE FUNCTION audit_is_only_added_to();
";

/// `app` is 0 where the deployment itself is meant.
const JOURNAL: &str = "
    CREATE TABLE journal (
        key  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text COLLATE \"C\" NOT NULL UNIQUE,
        at   bigint NOT NULL,
        app  bigint NOT NULL,
        what text NOT NULL
    );
";

/// Those that are raised.
const ALARMS: &str = "
    CREATE TABLE alarm (subject text COLLATE \"C\" PRIMARY KEY, since bigint NOT NULL);
";

const HEADERS: &str = "ALTER TABLE attempt ADD COLUMN headers bytea";

/// Where the version is kept: the first eight bytes of this note.
pub const VERSION_NOTE: &str = "schema_version";

/// Nobody else in the database uses this number.
pub const MIGRATION_LOCK: i64 = 0x706f_7374_7269_6466;

/// Brings the tables to `VERSION`, all or nothing. A newer database is left as it is.
pub async fn migrate(db: &Db) -> Result<Migrated> {
    // A migration may take its time, and so may waiting for another node that is at it.
    db.batch_execute(&format!(
        "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
         SET LOCAL idle_in_transaction_session_timeout = 0; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"
    ))
    .await?;
    let from = version(db).await?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        db.batch_execute(migration).await?;
        step!("migration.step");
    }
    let to = VERSION.max(from);
    if from < to {
        db.execute(
            "INSERT INTO note VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            &[&VERSION_NOTE, &&to.to_be_bytes()[..]],
        )
        .await?;
    }
    db.batch_execute("COMMIT").await?;
    step!("migration.done");
    Ok(Migrated { from, to })
}

/// 0 for a database without our tables.
pub async fn version(db: &Db) -> Result<i64> {
    let known: bool =
        super::one(db, "SELECT to_regclass('cluster') IS NOT NULL AND to_regclass('note') IS NOT NULL", &[])
            .await?
            .get(0);
    if !known {
        return Ok(0);
    }
    let found = row(db, "SELECT value FROM note WHERE name = $1", &[&VERSION_NOTE]).await?;
    let value: Option<[u8; 8]> = found.and_then(|row| row.get::<_, &[u8]>(0).try_into().ok());
    Ok(value.map_or(0, i64::from_be_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{DatabaseUrl, OpenError, PostgresOptions, migrate, visit};
    use futures_util::future::join_all;
    use postrider_testbed::Cluster;

    async fn empty_database() -> (DatabaseUrl, PostgresOptions) {
        let url = Cluster::shared().fresh_database().await;
        (url.parse().expect("an address"), PostgresOptions::default())
    }

    #[tokio::test]
    async fn of_several_at_once_one_makes_the_tables() {
        let (url, options) = empty_database().await;
        let all = join_all((0..8).map(|_| migrate(&url, &options))).await;
        let changed: Vec<_> = all.into_iter().map(|done| done.unwrap()).filter(|done| done.from != done.to).collect();
        assert_eq!(changed, [Migrated { from: 0, to: VERSION }]);
    }

    #[tokio::test]
    async fn tables_of_a_newer_version_are_left_alone() {
        let (url, options) = empty_database().await;
        migrate(&url, &options).await.unwrap();
        let client = visit::connect(&url, &options).await.unwrap();
        let newer = &(VERSION + 1).to_be_bytes()[..];
        client.execute("UPDATE note SET value = $2 WHERE name = $1", &[&VERSION_NOTE, &newer]).await.unwrap();
        let refused = migrate(&url, &options).await.unwrap_err();
        assert!(matches!(refused, OpenError::TooNew { found, known } if found == known + 1), "{refused}");
        assert_eq!(version(&client).await.unwrap(), VERSION + 1);
    }
}
