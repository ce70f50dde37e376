-- Postrider's outbox, version {version}, in the schema {schema}. Safe to run again, also while it is in use.
-- Needs PostgreSQL 13 or later, and one transaction for the whole of it (psql --single-transaction).
DO $$
BEGIN
    -- Who waits for a lock holds up all who come after him, so not for long.
    PERFORM set_config('postrider.lock_timeout', current_setting('lock_timeout'), true);
    PERFORM set_config('lock_timeout', '5s', true);
    -- Two that install at once, as two nodes of a producer might, would stumble over each other's new names.
    PERFORM pg_advisory_xact_lock(hashtextextended('postrider outbox install', 0));
    IF current_setting('server_version_num')::integer < 130000 THEN
        RAISE EXCEPTION 'the outbox needs PostgreSQL 13 or later';
    END IF;
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS {schema}.about (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- By this and a row's number Postrider recognises a row that it has seen before.
    identity uuid NOT NULL DEFAULT gen_random_uuid(),
    version integer NOT NULL,
    -- Bytes of a payload.
    payload_max bigint NOT NULL DEFAULT 1048576,
    -- Whether a commit wakes the relay at once.
    notify boolean NOT NULL DEFAULT true
);

DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM {schema}.about WHERE version > {version}) THEN
        RAISE EXCEPTION 'the outbox was installed by a newer Postrider; use that one';
    END IF;
END $$;

INSERT INTO {schema}.about (version) VALUES ({version})
    ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
{choices}
-- No cache: numbers drawn in advance by a session would not follow the order of commits.
CREATE SEQUENCE IF NOT EXISTS {schema}.outbox_id AS bigint CACHE 1;

CREATE TABLE IF NOT EXISTS {schema}.outbox (
    id bigint PRIMARY KEY,
    app text NOT NULL,
    event_type text NOT NULL,
    payload text NOT NULL,
    content_type text,
    event_id text,
    channels text[],
    tags text[],
    ordering_key text,
    deliver_at timestamptz,
    -- Where in a trace the producer was, as W3C writes it.
    traceparent text,
    created_at timestamptz NOT NULL,
    -- When Postrider first offered it to its own store, for which application, and until when that store can tell
    -- whether it took it.
    taken_at timestamptz,
    taken_app text,
    known_until timestamptz,
    -- It cannot be sent, and why.
    failed_at timestamptz,
    error text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Each of these would wait for all who write to the table, even if there is nothing to do.
DO $$
BEGIN
    -- To compress what is gone within a second is wasted work.
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{schema}.outbox'::regclass AND attname = 'payload'
                   AND attstorage <> 'e') THEN
        ALTER TABLE {schema}.outbox ALTER COLUMN payload SET STORAGE EXTERNAL;
    END IF;
    -- Older outboxes have no place for it.
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{schema}.outbox'::regclass AND attname = 'traceparent'
                       AND NOT attisdropped) THEN
        ALTER TABLE {schema}.outbox ADD COLUMN traceparent text;
    END IF;
    IF to_regclass('{schema}.outbox_waiting') IS NULL THEN
        CREATE INDEX outbox_waiting ON {schema}.outbox (id) WHERE failed_at IS NULL;
    END IF;
END $$;

-- Checks a row and gives it its number. Not by constraints, which would parse each payload again at every update.
CREATE OR REPLACE FUNCTION {schema}.outbox_admit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bytes_max bigint := (SELECT about.payload_max FROM {schema}.about);
    flaw text;
BEGIN
    IF NEW.app IS NULL OR length(NEW.app) > 256 OR NEW.app !~ '^[A-Za-z0-9._-]+$' THEN
        flaw := 'app must be the id or uid of an application: 1 to 256 letters, digits, -, _ or .';
    ELSIF NEW.event_type IS NULL OR length(NEW.event_type) > 256 OR NEW.event_type !~ '^[A-Za-z0-9._-]+$' THEN
        flaw := 'event_type must be 1 to 256 letters, digits, -, _ or .';
    ELSIF NEW.event_id IS NOT NULL AND (length(NEW.event_id) > 256 OR NEW.event_id !~ '^[A-Za-z0-9._-]+$') THEN
        flaw := 'event_id must be 1 to 256 letters, digits, -, _ or .';
    ELSIF starts_with(NEW.event_id, 'msg_') THEN
        flaw := 'event_id must not begin with msg_, as ids do';
    ELSIF length(NEW.ordering_key) NOT BETWEEN 1 AND 256 THEN
        flaw := 'ordering_key must be 1 to 256 characters';
    ELSIF cardinality(NEW.channels) NOT BETWEEN 1 AND 10 THEN
        flaw := 'channels must be 1 to 10; leave them out for none';
    ELSIF EXISTS (SELECT FROM unnest(NEW.channels) AS given(channel)
                  WHERE channel IS NULL OR length(channel) > 128 OR channel !~ '^[A-Za-z0-9._:+-]+$') THEN
        flaw := 'each of the channels must be 1 to 128 letters, digits, -, _, ., : or +';
    ELSIF cardinality(NEW.tags) > 5 THEN
        flaw := 'tags must be at most 5';
    ELSIF EXISTS (SELECT FROM unnest(NEW.tags) AS given(tag)
                  WHERE tag IS NULL OR length(tag) > 128 OR tag !~ '^[A-Za-z0-9._/\\#-]+$') THEN
        flaw := 'each of the tags must be 1 to 128 letters, digits, -, _, ., /, \ or #';
    ELSIF NEW.payload IS NULL OR octet_length(NEW.payload) > bytes_max THEN
        flaw := format('payload must be at most %s bytes', bytes_max);
    ELSIF (CASE WHEN NEW.content_type IS NULL THEN json_typeof(NEW.payload::json) <> 'object' ELSE false END) THEN
        flaw := 'payload must be a JSON object, or have a content_type';
    ELSIF length(NEW.content_type) > 256 OR NEW.content_type !~
        '^[A-Za-z0-9!#$%&''*+.^_`|~-]+/[A-Za-z0-9!#$%&''*+.^_`|~-]+[ \t]*(;[ -~\t]*)?$' THEN
        flaw := 'content_type must be like text/plain';
    ELSIF NOT NEW.deliver_at BETWEEN now() - interval '24 hours' AND now() + interval '24 hours' THEN
        flaw := 'deliver_at must be at most 24 hours ahead';
    END IF;
    IF flaw IS NOT NULL THEN
        RAISE EXCEPTION '%', flaw USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
    END IF;
    -- A sequence hands numbers out before the commit. The lock comes first and is held until the commit, and so among
    -- the rows of one key the numbers follow the order of the commits.
    IF NEW.ordering_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(NEW.app || ' ' || NEW.ordering_key, TG_RELID::bigint));
    END IF;
    -- Of the row, or of the transaction. What is not well formed is as good as none: a trace is no reason to fail.
    NEW.traceparent := coalesce(NEW.traceparent, current_setting('postrider.traceparent', true));
    IF length(NEW.traceparent) <> 55 OR NEW.traceparent !~ '^[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$' THEN
        NEW.traceparent := NULL;
    END IF;
    NEW.id := nextval('{schema}.outbox_id');
    NEW.created_at := now();
    NEW.taken_at := NULL;
    NEW.taken_app := NULL;
    NEW.known_until := NULL;
    NEW.failed_at := NULL;
    NEW.error := NULL;
    RETURN NEW;
END $$;

-- Wakes the relay, once per transaction however many rows it has: PostgreSQL sends equal notifications once.
CREATE OR REPLACE FUNCTION {schema}.outbox_ring() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (SELECT about.notify FROM {schema}.about) THEN
        PERFORM pg_notify('postrider_outbox', '{schema}');
    END IF;
    RETURN NULL;
END $$;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{schema}.outbox'::regclass AND tgname = 'outbox_admit') THEN
        CREATE TRIGGER outbox_admit BEFORE INSERT ON {schema}.outbox
            FOR EACH ROW EXECUTE FUNCTION {schema}.outbox_admit();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{schema}.outbox'::regclass AND tgname = 'outbox_ring') THEN
        CREATE TRIGGER outbox_ring AFTER INSERT ON {schema}.outbox
            FOR EACH STATEMENT EXECUTE FUNCTION {schema}.outbox_ring();
    END IF;
END $$;

-- Sends an event if and when the transaction commits that this is called in. Text is sent byte for byte.
CREATE OR REPLACE FUNCTION {schema}.send(
    app text, event_type text, payload text, event_id text DEFAULT NULL, channels text[] DEFAULT NULL,
    tags text[] DEFAULT NULL, ordering_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
    content_type text DEFAULT NULL
) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {schema}.outbox
        (app, event_type, payload, content_type, event_id, channels, tags, ordering_key, deliver_at)
    VALUES
        (send.app, send.event_type, send.payload, send.content_type, send.event_id, send.channels, send.tags,
         send.ordering_key, send.deliver_at)
    RETURNING id
$$;

CREATE OR REPLACE FUNCTION {schema}.send(
    app text, event_type text, payload json, event_id text DEFAULT NULL, channels text[] DEFAULT NULL,
    tags text[] DEFAULT NULL, ordering_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT {schema}.send(app, event_type, payload::text, event_id, channels, tags, ordering_key, deliver_at)
$$;

CREATE OR REPLACE FUNCTION {schema}.send(
    app text, event_type text, payload jsonb, event_id text DEFAULT NULL, channels text[] DEFAULT NULL,
    tags text[] DEFAULT NULL, ordering_key text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT {schema}.send(app, event_type, payload::text, event_id, channels, tags, ordering_key, deliver_at)
$$;

-- They act with the rights of whoever installed them, so not for everyone.
REVOKE ALL ON FUNCTION {send_functions} FROM PUBLIC;
{grants}
-- Whatever is done next in this transaction waits as long as it did before.
DO $$
BEGIN
    PERFORM set_config('lock_timeout', coalesce(nullif(current_setting('postrider.lock_timeout', true), ''),
                                                current_setting('lock_timeout')), true);
END $$;
