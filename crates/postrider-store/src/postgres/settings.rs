//! Applications, endpoints and event types.
//!
//! They are read, changed by the caller and put back with the version they were read at: whoever comes second
//! is told so, instead of undoing the first one's change. Every change of an application or of its endpoints also raises
//! the application's generation, by which other nodes notice that what they remember of it has had its time.

use super::{
    Db, Result,
    cancel::end_all_waiting,
    execute, health,
    jobs::Turn,
    journal, one, row, rows,
    settle::{Cycle, remove_waiting, start_waiting},
    small, tidy,
};
use crate::{
    Answer, AppKind, Application, Archived, Before, By, Committed, Cut, Disabled, Endpoint, EndpointChange,
    EndpointHappened, EventType, Expect, Order, Page, PutError, Remember,
    rows::{
        codes::{disable_code, disable_of, trigger_code},
        from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use bytes::Bytes;
use postrider_engine::{AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger, policy::DeathReason};
use tokio_postgres::Row;

/// Deliveries of deleted endpoints moved to the dead letters in one go. Nobody else writes meanwhile, and so many take
/// some twenty milliseconds.
const BURY_STEP: usize = 1_000;

/// What a put makes of it: carried out, or refused with nothing changed.
pub type Put = Result<(), PutError>;

/// Recognises a repeated request; otherwise keeps its answer for the repetition to come. Whoever goes on to refuse the
/// change takes that back with `conclude`.
pub async fn remember(turn: &Turn, remember: Option<&Remember>, at: Timestamp) -> Result<Put> {
    let Some(Remember { idempotency, answer }) = remember else { return Ok(Ok(())) };
    let (key, request) = (idempotency.key.as_slice(), idempotency.request.as_slice());
    let earlier = row(turn.db(), "SELECT request, status, body FROM answer WHERE key = $1", &[&key]).await?;
    if let Some(earlier) = earlier {
        if idempotency.chosen && earlier.get::<_, &[u8]>(0) != request {
            return Ok(Err(PutError::KeyReused));
        }
        let status = earlier.get::<_, i16>(1).cast_unsigned();
        return Ok(Err(PutError::Repeated(Answer { status, body: Bytes::from(earlier.get::<_, Vec<u8>>(2)) })));
    }
    execute(
        turn.db(),
        "INSERT INTO answer (key, at, request, status, body) VALUES ($1, $2, $3, $4, $5)",
        &[&key, &at.as_millis(), &request, &answer.status.cast_signed(), &answer.body.as_ref()],
    )
    .await?;
    Ok(Ok(()))
}

/// Forgets the answer that was kept for a change which was then refused.
pub async fn conclude(turn: &Turn, kept: Option<&Remember>, outcome: Put) -> Result<Put> {
    if let (Err(_), Some(kept)) = (&outcome, kept) {
        execute(turn.db(), "DELETE FROM answer WHERE key = $1", &[&kept.idempotency.key.as_slice()]).await?;
    }
    Ok(outcome)
}

/// A resend that a person asked for: one more try, beside whatever the schedule does.
pub async fn resend(
    turn: &mut Turn,
    message: MessageKey,
    endpoint: EndpointKey,
    at: Timestamp,
    kept: Option<&Remember>,
) -> Result<Put> {
    if let Err(refusal) = remember(turn, kept, at).await? {
        return Ok(Err(refusal));
    }
    tidy::expect_attempts(turn, message).await?;
    let id = DeliveryId { endpoint, message, trigger: Trigger::Manual };
    start_waiting(turn.db(), id, None, at, Cycle::First).await?;
    turn.announce(Committed::Waiting { endpoint, due: at });
    Ok(Ok(()))
}

pub async fn put_application(
    turn: &mut Turn,
    application: &Application,
    expect: Expect,
    kept: Option<&Remember>,
) -> Result<Put> {
    if let Err(refusal) = remember(turn, kept, application.updated_at).await? {
        return Ok(Err(refusal));
    }
    let outcome = write_application(turn, application, expect).await?;
    conclude(turn, kept, outcome).await
}

async fn write_application(turn: &mut Turn, application: &Application, expect: Expect) -> Result<Put> {
    let key = application.key.raw();
    let taken = "SELECT EXISTS (SELECT 1 FROM application WHERE uid = $1 AND key <> $2)";
    if one(turn.db(), taken, &[&application.uid, &key]).await?.get(0) {
        return Ok(Err(PutError::Taken));
    }
    let sql = match expect {
        Expect::Absent => {
            "INSERT INTO application (key, version, uid, name, rate_limit, rules, metadata, created_at, updated_at,
                 source, pollers)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING"
        }
        Expect::Version(_) => {
            "UPDATE application SET version = $2, generation = generation + 1, uid = $3, name = $4, rate_limit = $5,
                 rules = $6, metadata = $7, created_at = $8, updated_at = $9, source = $10, pollers = $11
             WHERE key = $1 AND version = $2::bigint - 1 AND deleted_at IS NULL"
        }
    };
    let changed = execute(
        turn.db(),
        sql,
        &[
            &key,
            &next_version(expect),
            &application.uid,
            &application.name,
            &application.rate_limit.map(i64::from),
            &application.rules,
            &to_json(&application.metadata),
            &application.created_at.as_millis(),
            &application.updated_at.as_millis(),
            &application.source,
            &application.pollers,
        ],
    )
    .await?;
    let outcome = carried_out(changed, expect);
    if outcome.is_ok() {
        turn.announce(Committed::Settings { app: application.key });
    }
    Ok(outcome)
}

/// An error would undo the turn and be reported as the store's; whoever puts what is there already gets a refusal.
fn carried_out(changed: u64, expect: Expect) -> Put {
    match (changed, expect) {
        (1.., _) => Ok(()),
        (0, Expect::Absent) => Err(PutError::Taken),
        (0, Expect::Version(_)) => Err(PutError::Changed),
    }
}

fn next_version(expect: Expect) -> i64 {
    match expect {
        Expect::Absent => 1,
        Expect::Version(read) => read + 1,
    }
}

async fn raise_generation(turn: &Turn, app: AppKey) -> Result<()> {
    let sql = "UPDATE application SET generation = generation + 1 WHERE key = $1";
    execute(turn.db(), sql, &[&app.raw()]).await?;
    Ok(())
}

fn application_from(row: &Row) -> Result<Application> {
    Ok(Application {
        key: AppKey::new(row.get("key")),
        version: row.get("version"),
        uid: row.get("uid"),
        name: row.get("name"),
        rate_limit: rate_from(row),
        rules: row.get("rules"),
        source: row.get("source"),
        pollers: row.get("pollers"),
        metadata: from_json(row.get("metadata"))?,
        created_at: Timestamp::from_millis(row.get("created_at")),
        updated_at: Timestamp::from_millis(row.get("updated_at")),
    })
}

fn rate_from(row: &Row) -> Option<u32> {
    row.get::<_, Option<i64>>("rate_limit").map(|rate| u32::try_from(rate).unwrap_or(u32::MAX))
}

pub async fn application(db: &Db, by: By<AppKey>) -> Result<Option<Application>> {
    let found = match by {
        By::Key(key) => {
            row(db, "SELECT * FROM application WHERE key = $1 AND deleted_at IS NULL", &[&key.raw()]).await?
        }
        By::Uid(uid) => row(db, "SELECT * FROM application WHERE uid = $1 AND deleted_at IS NULL", &[&uid]).await?,
    };
    found.as_ref().map(application_from).transpose()
}

pub async fn generation(db: &Db, app: AppKey) -> Result<Option<i64>> {
    let sql = "SELECT generation FROM application WHERE key = $1 AND deleted_at IS NULL";
    Ok(row(db, sql, &[&app.raw()]).await?.map(|row| row.get(0)))
}

pub async fn applications(db: &Db, page: &Page<AppKey>) -> Result<Vec<Application>> {
    let span = Span::of(page, AppKey::raw);
    let sql = format!(
        "SELECT * FROM application WHERE key > $1 AND key < $2 AND deleted_at IS NULL ORDER BY key {} LIMIT $3",
        span.direction()
    );
    let found = rows(db, &sql, &[&span.low, &span.high, &limit(page.limit)]).await?;
    Ok(in_list_order(page, found.iter().map(application_from).collect::<Result<_>>()?))
}

pub async fn applications_of(db: &Db, kind: AppKind, page: &Page<AppKey>) -> Result<Vec<Application>> {
    let span = Span::of(page, AppKey::raw);
    let choice = match kind {
        AppKind::Plain => "source IS NULL",
        AppKind::Source => "source IS NOT NULL",
    };
    let sql = format!(
        "SELECT * FROM application WHERE key > $1 AND key < $2 AND {choice} AND deleted_at IS NULL
         ORDER BY key {} LIMIT $3",
        span.direction()
    );
    let found = rows(db, &sql, &[&span.low, &span.high, &limit(page.limit)]).await?;
    Ok(in_list_order(page, found.iter().map(application_from).collect::<Result<_>>()?))
}

/// As many rows as the database can be asked for.
pub fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub async fn delete_application(turn: &mut Turn, app: AppKey, at: Timestamp) -> Result<bool> {
    let ending = ending(turn.db(), app, None).await?;
    let deleted = execute(
        turn.db(),
        "UPDATE application SET deleted_at = $2, uid = NULL, source = NULL, pollers = NULL, generation = generation + 1
         WHERE key = $1 AND deleted_at IS NULL",
        &[&app.raw(), &at.as_millis()],
    )
    .await?;
    execute(turn.db(), "DELETE FROM refused WHERE app = $1", &[&app.raw()]).await?;
    execute(turn.db(), "DELETE FROM consumer WHERE app = $1", &[&app.raw()]).await?;
    execute(
        turn.db(),
        "UPDATE endpoint SET deleted_at = $2, uid = NULL, sealed = '' WHERE app = $1 AND deleted_at IS NULL",
        &[&app.raw(), &at.as_millis()],
    )
    .await?;
    execute(
        turn.db(),
        "DELETE FROM health USING endpoint WHERE endpoint.app = $1 AND health.endpoint = endpoint.key",
        &[&app.raw()],
    )
    .await?;
    journal::enter_endpoint(turn.db(), app, ending, at).await?;
    turn.announce(Committed::Settings { app });
    turn.announce_work();
    Ok(deleted == 1)
}

pub async fn put_endpoint(
    turn: &mut Turn,
    endpoint: &Endpoint,
    expect: Expect,
    kept: Option<&Remember>,
) -> Result<Put> {
    if let Err(refusal) = remember(turn, kept, endpoint.updated_at).await? {
        return Ok(Err(refusal));
    }
    let outcome = write_endpoint(turn, endpoint, expect).await?;
    conclude(turn, kept, outcome).await
}

async fn write_endpoint(turn: &mut Turn, endpoint: &Endpoint, expect: Expect) -> Result<Put> {
    let (key, app) = (endpoint.key.raw(), endpoint.app.raw());
    let before = one(
        turn.db(),
        "SELECT EXISTS (SELECT 1 FROM endpoint WHERE app = $1 AND uid = $2 AND key <> $3),
             EXISTS (SELECT 1 FROM application WHERE key = $1 AND deleted_at IS NULL),
             EXISTS (SELECT 1 FROM endpoint WHERE key = $3 AND disabled_why IS NOT NULL),
             (SELECT updated_at FROM endpoint WHERE key = $3)",
        &[&app, &endpoint.uid, &key],
    )
    .await?;
    let (taken, application_lives, was_disabled): (bool, bool, bool) = (before.get(0), before.get(1), before.get(2));
    let updated_at: Option<i64> = before.get(3);
    if taken {
        return Ok(Err(PutError::Taken));
    }
    if !application_lives {
        return Ok(Err(PutError::Changed));
    }
    let sql = match expect {
        Expect::Absent => {
            "INSERT INTO endpoint
                 (key, app, version, uid, url, description, disabled_why, disabled_at, event_types, channels, metadata,
                  rate_limit, rules, sealed, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) ON CONFLICT DO NOTHING"
        }
        Expect::Version(_) => {
            "UPDATE endpoint SET version = $3, uid = $4, url = $5, description = $6, disabled_why = $7,
                 disabled_at = $8, event_types = $9, channels = $10, metadata = $11, rate_limit = $12, rules = $13,
                 sealed = $14, created_at = $15, updated_at = $16
             WHERE key = $1 AND app = $2 AND version = $3::bigint - 1 AND deleted_at IS NULL"
        }
    };
    let changed = execute(
        turn.db(),
        sql,
        &[
            &key,
            &app,
            &next_version(expect),
            &endpoint.uid,
            &endpoint.url,
            &endpoint.description,
            &endpoint.disabled.map(|disabled| small(disable_code(disabled.why))),
            &endpoint.disabled.map(|disabled| disabled.at.as_millis()),
            &endpoint.event_types.as_ref().map(to_json),
            &endpoint.channels.as_ref().map(to_json),
            &to_json(&endpoint.metadata),
            &endpoint.rate_limit.map(i64::from),
            &endpoint.rules,
            &endpoint.sealed,
            &endpoint.created_at.as_millis(),
            &endpoint.updated_at.as_millis(),
        ],
    )
    .await?;
    let outcome = carried_out(changed, expect);
    if outcome.is_ok() {
        raise_generation(turn, endpoint.app).await?;
        // Whoever enables an endpoint says that it is well: what led to its end must not end it again at once.
        if was_disabled && endpoint.disabled.is_none() {
            health::forget(turn.db(), endpoint.key).await?;
            turn.announce(Committed::Health { endpoint: endpoint.key });
        }
        turn.announce(Committed::Settings { app: endpoint.app });
        if journal::is_heard(turn.db(), endpoint.app).await? {
            let before =
                updated_at.map(|at| Before { is_disabled: was_disabled, updated_at: Timestamp::from_millis(at) });
            let what = EndpointHappened::of_put(before, endpoint, next_version(expect));
            journal::enter_endpoint(turn.db(), endpoint.app, what, endpoint.updated_at).await?;
        }
    }
    Ok(outcome)
}

fn endpoint_from(row: &Row) -> Result<Endpoint> {
    let list = |column: &str| row.get::<_, Option<&str>>(column).map(from_json::<Vec<String>>).transpose();
    Ok(Endpoint {
        key: EndpointKey::new(row.get("key")),
        app: AppKey::new(row.get("app")),
        version: row.get("version"),
        uid: row.get("uid"),
        url: row.get("url"),
        description: row.get("description"),
        disabled: disabled_from(row)?,
        event_types: list("event_types")?,
        channels: list("channels")?,
        metadata: from_json(row.get("metadata"))?,
        rate_limit: rate_from(row),
        rules: row.get("rules"),
        sealed: row.get("sealed"),
        created_at: Timestamp::from_millis(row.get("created_at")),
        updated_at: Timestamp::from_millis(row.get("updated_at")),
    })
}

fn disabled_from(row: &Row) -> Result<Option<Disabled>> {
    let Some(why) = row.get::<_, Option<i16>>("disabled_why") else { return Ok(None) };
    let at = row.get::<_, Option<i64>>("disabled_at").unwrap_or(0);
    Ok(Some(Disabled { why: disable_of(why.into())?, at: Timestamp::from_millis(at) }))
}

pub async fn endpoint(db: &Db, app: AppKey, by: By<EndpointKey>) -> Result<Option<Endpoint>> {
    let found = match by {
        By::Key(key) => {
            let sql = "SELECT * FROM endpoint WHERE app = $1 AND key = $2 AND deleted_at IS NULL";
            row(db, sql, &[&app.raw(), &key.raw()]).await?
        }
        By::Uid(uid) => {
            let sql = "SELECT * FROM endpoint WHERE app = $1 AND uid = $2 AND deleted_at IS NULL";
            row(db, sql, &[&app.raw(), &uid]).await?
        }
    };
    found.as_ref().map(endpoint_from).transpose()
}

pub async fn endpoints(db: &Db, app: AppKey, page: &Page<EndpointKey>) -> Result<Vec<Endpoint>> {
    let span = Span::of(page, EndpointKey::raw);
    let sql = format!(
        "SELECT * FROM endpoint WHERE app = $1 AND key > $2 AND key < $3 AND deleted_at IS NULL
         ORDER BY key {} LIMIT $4",
        span.direction()
    );
    let found = rows(db, &sql, &[&app.raw(), &span.low, &span.high, &limit(page.limit)]).await?;
    Ok(in_list_order(page, found.iter().map(endpoint_from).collect::<Result<_>>()?))
}

pub async fn endpoint_of_lane(db: &Db, endpoint: EndpointKey) -> Result<Option<Endpoint>> {
    let sql = "SELECT * FROM endpoint WHERE key = $1 AND deleted_at IS NULL";
    row(db, sql, &[&endpoint.raw()]).await?.as_ref().map(endpoint_from).transpose()
}

pub async fn delete_endpoint(turn: &mut Turn, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> Result<bool> {
    let ending = ending(turn.db(), app, Some(endpoint)).await?;
    let deleted = execute(
        turn.db(),
        "UPDATE endpoint SET deleted_at = $3, uid = NULL, sealed = ''
         WHERE app = $1 AND key = $2 AND deleted_at IS NULL",
        &[&app.raw(), &endpoint.raw(), &at.as_millis()],
    )
    .await?;
    if deleted == 1 {
        raise_generation(turn, app).await?;
        health::forget(turn.db(), endpoint).await?;
        journal::enter_endpoint(turn.db(), app, ending, at).await?;
        turn.announce_work();
    }
    turn.announce(Committed::Settings { app });
    Ok(deleted == 1)
}

/// What there is to tell of endpoints that are about to be deleted, by the names that they still have: of one, or of all.
async fn ending(db: &Db, app: AppKey, only: Option<EndpointKey>) -> Result<Vec<EndpointHappened>> {
    if !journal::is_heard(db, app).await? {
        return Ok(Vec::new());
    }
    let found = rows(
        db,
        "SELECT key, uid, version, (SELECT uid FROM application WHERE key = $1) FROM endpoint
         WHERE app = $1 AND deleted_at IS NULL AND ($2::bigint IS NULL OR key = $2)",
        &[&app.raw(), &only.map(EndpointKey::raw)],
    )
    .await?;
    let what = found.iter().map(|row| {
        let key = EndpointKey::new(row.get(0));
        let what = EndpointHappened::new(key, row.get(1), row.get(2), EndpointChange::Deleted);
        EndpointHappened { app_uid: row.get(3), ..what }
    });
    Ok(what.collect())
}

/// Whether `bury` has something to do.
pub async fn has_unburied(db: &Db) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM endpoint WHERE deleted_at IS NOT NULL AND NOT buried)";
    Ok(one(db, sql, &[]).await?.get(0))
}

/// Moves what waits for a deleted endpoint to the dead letters, a step at a time.
pub async fn bury(turn: &mut Turn, at: Timestamp) -> Result<bool> {
    let unburied = "SELECT key FROM endpoint WHERE deleted_at IS NOT NULL AND NOT buried LIMIT 1";
    let Some(next) = row(turn.db(), unburied, &[]).await? else { return Ok(false) };
    let endpoint = EndpointKey::new(next.get(0));
    let sql = "SELECT message FROM waiting WHERE endpoint = $1 AND trigger_code = $2 ORDER BY message LIMIT $3";
    let scheduled = small(trigger_code(Trigger::Scheduled));
    let waiting = rows(turn.db(), sql, &[&endpoint.raw(), &scheduled, &limit(BURY_STEP)]).await?;
    let messages: Vec<i64> = waiting.iter().map(|row| row.get(0)).collect();
    end_all_waiting(turn, endpoint, &messages, DeathReason::EndpointGone, at).await?;
    let db = turn.db();
    if messages.len() < BURY_STEP && drop_resends(db, endpoint).await? && forget_counters(db, endpoint).await? {
        execute(turn.db(), "UPDATE endpoint SET buried = true WHERE key = $1", &[&endpoint.raw()]).await?;
    }
    Ok(true)
}

/// A resend is no delivery of its own: what it was to repeat may have arrived, or is dead for another reason. There are
/// few, so that they go one by one. True when none is left.
async fn drop_resends(db: &Db, endpoint: EndpointKey) -> Result<bool> {
    let sql = "SELECT message FROM waiting WHERE endpoint = $1 AND trigger_code = $2 LIMIT $3";
    let manual = small(trigger_code(Trigger::Manual));
    let found = rows(db, sql, &[&endpoint.raw(), &manual, &limit(RESENDS_STEP)]).await?;
    for row in &found {
        let id = DeliveryId { endpoint, message: MessageKey::new(row.get(0)), trigger: Trigger::Manual };
        remove_waiting(db, id).await?;
    }
    Ok(found.len() < RESENDS_STEP)
}

const RESENDS_STEP: usize = 100;

/// There may be one for every ordering key. True when none is left.
async fn forget_counters(db: &Db, endpoint: EndpointKey) -> Result<bool> {
    let forgotten = execute(
        db,
        "DELETE FROM sequence WHERE ctid = ANY (ARRAY(SELECT ctid FROM sequence WHERE endpoint = $1 LIMIT $2))",
        &[&endpoint.raw(), &limit(COUNTERS_STEP)],
    )
    .await?;
    Ok(forgotten < COUNTERS_STEP as u64)
}

/// They go in one statement, so that there can be more of them.
const COUNTERS_STEP: usize = 2_000;

pub async fn put_event_type(
    turn: &mut Turn,
    event_type: &EventType,
    expect: Expect,
    kept: Option<&Remember>,
) -> Result<Put> {
    if let Err(refusal) = remember(turn, kept, event_type.updated_at).await? {
        return Ok(Err(refusal));
    }
    let outcome = write_event_type(turn, event_type, expect).await?;
    conclude(turn, kept, outcome).await
}

async fn write_event_type(turn: &mut Turn, event_type: &EventType, expect: Expect) -> Result<Put> {
    let sql = match expect {
        Expect::Absent => {
            "INSERT INTO event_type
                 (name, version, description, archived, deprecated, feature_flags, group_name, schemas, rules,
                  created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING"
        }
        Expect::Version(_) => {
            "UPDATE event_type SET version = $2, description = $3, archived = $4, deprecated = $5, feature_flags = $6,
                 group_name = $7, schemas = $8, rules = $9, created_at = $10, updated_at = $11
             WHERE name = $1 AND version = $2::bigint - 1"
        }
    };
    let changed = execute(
        turn.db(),
        sql,
        &[
            &event_type.name,
            &next_version(expect),
            &event_type.description,
            &event_type.archived,
            &event_type.deprecated,
            &event_type.feature_flags.as_ref().map(to_json),
            &event_type.group_name,
            &event_type.schemas,
            &event_type.rules,
            &event_type.created_at.as_millis(),
            &event_type.updated_at.as_millis(),
        ],
    )
    .await?;
    let outcome = carried_out(changed, expect);
    if outcome.is_ok() {
        turn.announce(Committed::EventTypes);
    }
    Ok(outcome)
}

fn event_type_from(row: &Row) -> Result<EventType> {
    Ok(EventType {
        name: row.get("name"),
        version: row.get("version"),
        description: row.get("description"),
        archived: row.get("archived"),
        deprecated: row.get("deprecated"),
        feature_flags: row.get::<_, Option<&str>>("feature_flags").map(from_json).transpose()?,
        group_name: row.get("group_name"),
        schemas: row.get("schemas"),
        rules: row.get("rules"),
        created_at: Timestamp::from_millis(row.get("created_at")),
        updated_at: Timestamp::from_millis(row.get("updated_at")),
    })
}

pub async fn event_type(db: &Db, name: &str) -> Result<Option<EventType>> {
    let found = row(db, "SELECT * FROM event_type WHERE name = $1", &[&name]).await?;
    found.as_ref().map(event_type_from).transpose()
}

pub async fn event_types(db: &Db, page: &Page<String>, archived: Archived) -> Result<Vec<EventType>> {
    let (comparison, direction, from) = match (&page.from, page.order) {
        (Some(Cut::Past(name)), Order::Ascending) => (">", "ASC", Some(name)),
        (Some(Cut::Past(name)), Order::Descending) => ("<", "DESC", Some(name)),
        (Some(Cut::Before(name)), Order::Ascending) => ("<", "DESC", Some(name)),
        (Some(Cut::Before(name)), Order::Descending) => (">", "ASC", Some(name)),
        (None, Order::Ascending) => (">", "ASC", None),
        (None, Order::Descending) => (">", "DESC", None),
    };
    let sql = format!(
        "SELECT * FROM event_type WHERE ($1::text IS NULL OR name {comparison} $1) AND ($2 OR NOT archived)
         ORDER BY name {direction} LIMIT $3"
    );
    let found = rows(db, &sql, &[&from, &(archived == Archived::Show), &limit(page.limit)]).await?;
    Ok(in_list_order(page, found.iter().map(event_type_from).collect::<Result<_>>()?))
}

pub async fn delete_event_type(turn: &mut Turn, name: &str) -> Result<bool> {
    let deleted = execute(turn.db(), "DELETE FROM event_type WHERE name = $1", &[&name]).await? == 1;
    if deleted {
        turn.announce(Committed::EventTypes);
    }
    Ok(deleted)
}

pub async fn note(db: &Db, name: &str) -> Result<Option<Vec<u8>>> {
    Ok(row(db, "SELECT value FROM note WHERE name = $1", &[&name]).await?.map(|row| row.get(0)))
}

pub async fn put_note(turn: &Turn, name: &str, value: &[u8]) -> Result<()> {
    let sql = "INSERT INTO note (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    execute(turn.db(), sql, &[&name, &value]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Content, Counts, NewMessage, Settlement, Shards, Store,
        conformance::fixtures::{
            START, accept, add_application, add_endpoint, at, bury_all, content, failed, message, scheduled, settle,
        },
        postgres::{PostgresOptions, PostgresStore},
    };
    use postrider_engine::policy::DisableReason;
    use postrider_testbed::Cluster;

    async fn open() -> PostgresStore {
        let url = Cluster::shared().fresh_database().await.parse().unwrap();
        let options = PostgresOptions { own_at_once: true, ..PostgresOptions::default() };
        PostgresStore::open(&url, START, options).await.unwrap()
    }

    #[tokio::test]
    async fn a_generation_counts_the_changes_of_an_application_and_its_endpoints() {
        let store = open().await;
        let (application, other) = (add_application(&store, None).await, add_application(&store, None).await.key);
        let app = application.key;
        let counted = async || store.generation(app).await.unwrap();
        assert_eq!(counted().await, Some(0));
        store.put_application(application, Expect::Version(1), None).await.unwrap();
        assert_eq!(counted().await, Some(1));
        let endpoint = add_endpoint(&store, app, None).await;
        assert_eq!(counted().await, Some(2));
        let stale = store.put_endpoint(endpoint.clone(), Expect::Version(9), None).await;
        assert!(matches!(stale, Err(PutError::Changed)), "{stale:?}");
        assert_eq!(counted().await, Some(2), "nothing was changed");
        store.put_endpoint(endpoint.clone(), Expect::Version(1), None).await.unwrap();
        assert_eq!(counted().await, Some(3));
        let key = accept(&store, NewMessage { owed: vec![endpoint.key], ..message(app, START) }).await;
        let gone =
            Settlement { disable: Some(DisableReason::Gone), ..failed(scheduled(endpoint.key, key), at(1), at(9)) };
        settle(&store, vec![gone]).await;
        assert_eq!(counted().await, Some(3), "what is disabled still wants its messages");
        assert!(store.delete_endpoint(app, endpoint.key, at(2)).await.unwrap());
        assert!(!store.delete_endpoint(app, endpoint.key, at(2)).await.unwrap());
        assert_eq!(counted().await, Some(4));
        assert_eq!(store.generation(other).await.unwrap(), Some(0), "each has its own");
        store.delete_application(app, at(3)).await.unwrap();
        assert_eq!(counted().await, None);
    }

    #[tokio::test]
    async fn a_deleted_endpoint_leaves_no_counters() {
        let store = open().await;
        let app = add_application(&store, None).await.key;
        let (gone, other) = (add_endpoint(&store, app, None).await.key, add_endpoint(&store, app, None).await.key);
        for number in 0..3 {
            let content = Content { ordering_key: Some(number.to_string()), ..content(b"") };
            accept(&store, NewMessage { content, owed: vec![gone], ..message(app, START) }).await;
        }
        accept(&store, NewMessage { owed: vec![gone, other], fifo: vec![gone, other], ..message(app, START) }).await;
        store.delete_endpoint(app, gone, at(1)).await.unwrap();
        bury_all(&store, at(2)).await;
        let left = store.writer.turn(|turn| {
            Box::pin(async {
                let left = rows(turn.db(), "SELECT endpoint FROM sequence", &[]).await?;
                Ok(left.iter().map(|row| EndpointKey::new(row.get(0))).collect::<Vec<_>>())
            })
        });
        assert_eq!(left.await.unwrap(), [other]);
    }

    #[tokio::test]
    async fn a_lane_is_in_order_after_each_step_of_its_burial() {
        let store = open().await;
        let app = add_application(&store, None).await.key;
        let gone = add_endpoint(&store, app, None).await.key;
        let (lane, step) = (gone.raw(), BURY_STEP);
        let fill = format!(
            "INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, order_key, place)
             SELECT {lane}, number, 0, 0, 0, 0, 1, CASE WHEN number = 1 THEN 0 ELSE 1 END
             FROM generate_series(1, {step} + 2) AS number;
             INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, place)
             SELECT {lane}, number, 1, 0, 0, 0, 2 FROM generate_series(1, 3) AS number"
        );
        let filled = store.writer.turn(move |turn| {
            let fill = fill.clone();
            Box::pin(async move { Ok(turn.db().batch_execute(&fill).await?) })
        });
        filled.await.unwrap();
        assert!(store.delete_endpoint(app, gone, at(1)).await.unwrap());
        let left = async || {
            let found = store.writer.turn(|turn| {
                let sql = "SELECT message, trigger_code, place FROM waiting ORDER BY message, trigger_code";
                Box::pin(async move { rows(turn.db(), sql, &[]).await })
            });
            let found = found.await.unwrap();
            found.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect::<Vec<(i64, i16, i16)>>()
        };
        assert!(store.bury(at(2)).await.unwrap());
        let [first, second] = [step as i64 + 1, step as i64 + 2];
        assert_eq!(left().await, [(1, 1, 2), (2, 1, 2), (3, 1, 2), (first, 0, 0), (second, 0, 1)]);
        bury_all(&store, at(3)).await;
        assert_eq!(left().await, []);
        assert_eq!(store.counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: step as u64 + 2 });
    }
}
