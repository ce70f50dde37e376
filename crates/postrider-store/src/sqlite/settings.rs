//! Applications, endpoints and event types.
//!
//! They are read, changed by the caller and put back with the version they were read at: whoever comes second
//! is told so, instead of undoing the first one's change.

use super::{
    cancel::end_waiting,
    health, journal,
    settle::{Cycle, remove_waiting, start_waiting},
    writer::Batch,
};
use crate::{
    Answer, AppKind, Application, Archived, Before, By, Committed, Cut, Disabled, Endpoint, EndpointChange,
    EndpointHappened, EventType, Expect, Order, Page, PutError, Remember,
    rows::{
        codes::{disable_code, disable_of, trigger_of},
        from_json,
        paging::{Span, in_list_order},
        to_json,
    },
};
use bytes::Bytes;
use postrider_engine::{AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger, policy::DeathReason};
use rusqlite::{Connection, Row, named_params};

/// Deliveries of deleted endpoints moved to the dead letters in one go.
const BURY_STEP: usize = 500;

/// What a put makes of it: carried out, or refused with nothing changed.
pub type Put = Result<(), PutError>;

/// Recognises a repeated request; otherwise keeps its answer for the repetition to come.
pub fn remember(batch: &Batch<'_>, remember: Option<&Remember>, at: Timestamp) -> rusqlite::Result<Put> {
    let Some(Remember { idempotency, answer }) = remember else { return Ok(Ok(())) };
    let earlier = super::optional(
        batch.transaction.prepare_cached("SELECT request, status, body FROM answer WHERE key = ?1")?.query_row(
            [idempotency.key],
            |row| {
                let answer = Answer { status: row.get(1)?, body: Bytes::from(row.get::<_, Vec<u8>>(2)?) };
                Ok((row.get::<_, [u8; 16]>(0)?, answer))
            },
        ),
    )?;
    match earlier {
        Some((request, _)) if idempotency.chosen && request != idempotency.request => Ok(Err(PutError::KeyReused)),
        Some((_, answer)) => Ok(Err(PutError::Repeated(answer))),
        None => {
            batch.transaction.prepare_cached("INSERT INTO answer VALUES (?1, ?2, ?3, ?4, ?5)")?.execute((
                idempotency.key,
                at.as_millis(),
                idempotency.request,
                answer.status,
                answer.body.as_ref(),
            ))?;
            Ok(Ok(()))
        }
    }
}

/// Forgets an answer that was kept for a change which was then refused.
fn forget(batch: &Batch<'_>, remember: Option<&Remember>) -> rusqlite::Result<()> {
    if let Some(remember) = remember {
        let mut delete = batch.transaction.prepare_cached("DELETE FROM answer WHERE key = ?1")?;
        delete.execute([remember.idempotency.key])?;
    }
    Ok(())
}

/// Runs a change between recognising a repetition and keeping its answer.
pub fn put(
    batch: &mut Batch<'_>,
    kept: Option<Remember>,
    at: Timestamp,
    change: impl FnOnce(&mut Batch<'_>) -> rusqlite::Result<Put>,
) -> rusqlite::Result<Put> {
    if let Err(refusal) = remember(batch, kept.as_ref(), at)? {
        return Ok(Err(refusal));
    }
    let outcome = change(batch)?;
    if outcome.is_err() {
        forget(batch, kept.as_ref())?;
    }
    Ok(outcome)
}

pub fn put_application(batch: &mut Batch<'_>, application: &Application, expect: Expect) -> rusqlite::Result<Put> {
    let connection = &batch.transaction;
    let taken: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM application WHERE uid = ?1 AND key <> ?2)")?
        .query_row((&application.uid, application.key.raw()), |row| row.get(0))?;
    if taken {
        return Ok(Err(PutError::Taken));
    }
    let sql = match expect {
        Expect::Absent => {
            "INSERT OR IGNORE INTO application
                 (key, version, uid, name, rate_limit, rules, source, pollers, metadata, created_at, updated_at)
             VALUES (:key, :version, :uid, :name, :rate_limit, :rules, :source, :pollers, :metadata, :created_at,
                 :updated_at)"
        }
        Expect::Version(_) => {
            "UPDATE application SET version = :version, uid = :uid, name = :name, rate_limit = :rate_limit,
                 rules = :rules, source = :source, pollers = :pollers, metadata = :metadata, created_at = :created_at,
                 updated_at = :updated_at
             WHERE key = :key AND version = :version - 1 AND deleted_at IS NULL"
        }
    };
    let changed = connection.prepare_cached(sql)?.execute(named_params! {
        ":key": application.key.raw(),
        ":version": next_version(expect),
        ":uid": application.uid,
        ":name": application.name,
        ":rate_limit": application.rate_limit,
        ":rules": application.rules,
        ":source": application.source,
        ":pollers": application.pollers,
        ":metadata": to_json(&application.metadata),
        ":created_at": application.created_at.as_millis(),
        ":updated_at": application.updated_at.as_millis(),
    })?;
    let outcome = carried_out(changed, expect);
    if outcome.is_ok() {
        batch.announce(Committed::Settings { app: application.key });
    }
    Ok(outcome)
}

/// An error would undo everything that shares the commit; whoever puts what is there already gets a refusal.
fn carried_out(changed: usize, expect: Expect) -> Put {
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

fn application_from(row: &Row<'_>) -> rusqlite::Result<Application> {
    Ok(Application {
        key: AppKey::new(row.get("key")?),
        version: row.get("version")?,
        uid: row.get("uid")?,
        name: row.get("name")?,
        rate_limit: row.get("rate_limit")?,
        rules: row.get("rules")?,
        source: row.get("source")?,
        pollers: row.get("pollers")?,
        metadata: from_json(row.get_ref("metadata")?.as_str()?)?,
        created_at: Timestamp::from_millis(row.get("created_at")?),
        updated_at: Timestamp::from_millis(row.get("updated_at")?),
    })
}

pub fn application(connection: &Connection, by: By<AppKey>) -> rusqlite::Result<Option<Application>> {
    super::optional(match by {
        By::Key(key) => connection
            .prepare_cached("SELECT * FROM application WHERE key = ?1 AND deleted_at IS NULL")?
            .query_row([key.raw()], application_from),
        By::Uid(uid) => connection
            .prepare_cached("SELECT * FROM application WHERE uid = ?1 AND deleted_at IS NULL")?
            .query_row([uid], application_from),
    })
}

pub fn applications(connection: &Connection, page: &Page<AppKey>) -> rusqlite::Result<Vec<Application>> {
    let span = Span::of(page, AppKey::raw);
    let sql = format!(
        "SELECT * FROM application WHERE key > ?1 AND key < ?2 AND deleted_at IS NULL ORDER BY key {} LIMIT ?3",
        span.direction()
    );
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((span.low, span.high, page.limit), application_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

pub fn applications_of(
    connection: &Connection,
    kind: AppKind,
    page: &Page<AppKey>,
) -> rusqlite::Result<Vec<Application>> {
    let span = Span::of(page, AppKey::raw);
    let choice = match kind {
        AppKind::Plain => "source IS NULL",
        AppKind::Source => "source IS NOT NULL",
    };
    let sql = format!(
        "SELECT * FROM application WHERE key > ?1 AND key < ?2 AND {choice} AND deleted_at IS NULL
         ORDER BY key {} LIMIT ?3",
        span.direction()
    );
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((span.low, span.high, page.limit), application_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

pub fn delete_application(batch: &mut Batch<'_>, app: AppKey, at: Timestamp) -> rusqlite::Result<bool> {
    let ending = ending(&batch.transaction, app, None)?;
    let deleted = batch
        .transaction
        .prepare_cached(
            "UPDATE application SET deleted_at = ?2, uid = NULL, source = NULL, pollers = NULL
             WHERE key = ?1 AND deleted_at IS NULL",
        )?
        .execute((app.raw(), at.as_millis()))?;
    batch.transaction.prepare_cached("DELETE FROM refused WHERE app = ?1")?.execute([app.raw()])?;
    batch.transaction.prepare_cached("DELETE FROM consumer WHERE app = ?1")?.execute([app.raw()])?;
    batch
        .transaction
        .prepare_cached(
            "UPDATE endpoint SET deleted_at = ?2, uid = NULL, sealed = x'' WHERE app = ?1 AND deleted_at IS NULL",
        )?
        .execute((app.raw(), at.as_millis()))?;
    batch
        .transaction
        .prepare_cached("DELETE FROM health WHERE endpoint IN (SELECT key FROM endpoint WHERE app = ?1)")?
        .execute([app.raw()])?;
    journal::enter_endpoint(&batch.transaction, app, ending, at)?;
    batch.announce(Committed::Settings { app });
    Ok(deleted == 1)
}

pub fn put_endpoint(batch: &mut Batch<'_>, endpoint: &Endpoint, expect: Expect) -> rusqlite::Result<Put> {
    let connection = &batch.transaction;
    let taken: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM endpoint WHERE app = ?1 AND uid = ?2 AND key <> ?3)")?
        .query_row((endpoint.app.raw(), &endpoint.uid, endpoint.key.raw()), |row| row.get(0))?;
    if taken {
        return Ok(Err(PutError::Taken));
    }
    let application_lives: bool = connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM application WHERE key = ?1 AND deleted_at IS NULL)")?
        .query_row([endpoint.app.raw()], |row| row.get(0))?;
    if !application_lives {
        return Ok(Err(PutError::Changed));
    }
    let before: Option<Before> = super::optional(
        connection
            .prepare_cached("SELECT disabled_why IS NOT NULL, updated_at FROM endpoint WHERE key = ?1")?
            .query_row([endpoint.key.raw()], |row| {
                Ok(Before { is_disabled: row.get(0)?, updated_at: Timestamp::from_millis(row.get(1)?) })
            }),
    )?;
    let sql = match expect {
        Expect::Absent => {
            "INSERT OR IGNORE INTO endpoint
                 (key, app, version, uid, url, description, disabled_why, disabled_at, event_types, channels, metadata,
                  rate_limit, rules, sealed, created_at, updated_at)
             VALUES (:key, :app, :version, :uid, :url, :description, :disabled_why, :disabled_at, :event_types,
                  :channels, :metadata, :rate_limit, :rules, :sealed, :created_at, :updated_at)"
        }
        Expect::Version(_) => {
            "UPDATE endpoint SET version = :version, uid = :uid, url = :url, description = :description,
                 disabled_why = :disabled_why, disabled_at = :disabled_at, event_types = :event_types,
                 channels = :channels, metadata = :metadata, rate_limit = :rate_limit, rules = :rules,
                 sealed = :sealed, created_at = :created_at, updated_at = :updated_at
             WHERE key = :key AND app = :app AND version = :version - 1 AND deleted_at IS NULL"
        }
    };
    let changed = connection.prepare_cached(sql)?.execute(named_params! {
        ":key": endpoint.key.raw(),
        ":app": endpoint.app.raw(),
        ":version": next_version(expect),
        ":uid": endpoint.uid,
        ":url": endpoint.url,
        ":description": endpoint.description,
        ":disabled_why": endpoint.disabled.map(|disabled| disable_code(disabled.why)),
        ":disabled_at": endpoint.disabled.map(|disabled| disabled.at.as_millis()),
        ":event_types": endpoint.event_types.as_ref().map(to_json),
        ":channels": endpoint.channels.as_ref().map(to_json),
        ":metadata": to_json(&endpoint.metadata),
        ":rate_limit": endpoint.rate_limit,
        ":rules": endpoint.rules,
        ":sealed": endpoint.sealed,
        ":created_at": endpoint.created_at.as_millis(),
        ":updated_at": endpoint.updated_at.as_millis(),
    })?;
    let outcome = carried_out(changed, expect);
    if outcome.is_ok() {
        // Whoever enables an endpoint says that it is well: what led to its end must not end it again at once.
        if before.is_some_and(|before| before.is_disabled) && endpoint.disabled.is_none() {
            health::forget(connection, endpoint.key)?;
            batch.announce(Committed::Health { endpoint: endpoint.key });
        }
        batch.announce(Committed::Settings { app: endpoint.app });
        if journal::is_heard(&batch.transaction, endpoint.app)? {
            let what = EndpointHappened::of_put(before, endpoint, next_version(expect));
            journal::enter_endpoint(&batch.transaction, endpoint.app, what, endpoint.updated_at)?;
        }
    }
    Ok(outcome)
}

fn endpoint_from(row: &Row<'_>) -> rusqlite::Result<Endpoint> {
    let list = |column: &str| -> rusqlite::Result<Option<Vec<String>>> {
        Ok(row.get_ref(column)?.as_str_or_null()?.map(from_json).transpose()?)
    };
    Ok(Endpoint {
        key: EndpointKey::new(row.get("key")?),
        app: AppKey::new(row.get("app")?),
        version: row.get("version")?,
        uid: row.get("uid")?,
        url: row.get("url")?,
        description: row.get("description")?,
        disabled: disabled_from(row)?,
        event_types: list("event_types")?,
        channels: list("channels")?,
        metadata: from_json(row.get_ref("metadata")?.as_str()?)?,
        rate_limit: row.get("rate_limit")?,
        rules: row.get("rules")?,
        sealed: row.get("sealed")?,
        created_at: Timestamp::from_millis(row.get("created_at")?),
        updated_at: Timestamp::from_millis(row.get("updated_at")?),
    })
}

fn disabled_from(row: &Row<'_>) -> rusqlite::Result<Option<Disabled>> {
    let why: Option<i64> = row.get("disabled_why")?;
    let at: Option<i64> = row.get("disabled_at")?;
    why.map(|why| Ok(Disabled { why: disable_of(why)?, at: Timestamp::from_millis(at.unwrap_or(0)) })).transpose()
}

pub fn endpoint(connection: &Connection, app: AppKey, by: By<EndpointKey>) -> rusqlite::Result<Option<Endpoint>> {
    super::optional(match by {
        By::Key(key) => connection
            .prepare_cached("SELECT * FROM endpoint WHERE app = ?1 AND key = ?2 AND deleted_at IS NULL")?
            .query_row((app.raw(), key.raw()), endpoint_from),
        By::Uid(uid) => connection
            .prepare_cached("SELECT * FROM endpoint WHERE app = ?1 AND uid = ?2 AND deleted_at IS NULL")?
            .query_row((app.raw(), uid), endpoint_from),
    })
}

pub fn endpoint_of_lane(connection: &Connection, endpoint: EndpointKey) -> rusqlite::Result<Option<Endpoint>> {
    super::optional(
        connection
            .prepare_cached("SELECT * FROM endpoint WHERE key = ?1 AND deleted_at IS NULL")?
            .query_row([endpoint.raw()], endpoint_from),
    )
}

pub fn endpoints(connection: &Connection, app: AppKey, page: &Page<EndpointKey>) -> rusqlite::Result<Vec<Endpoint>> {
    let span = Span::of(page, EndpointKey::raw);
    let sql = format!(
        "SELECT * FROM endpoint WHERE app = ?1 AND key > ?2 AND key < ?3 AND deleted_at IS NULL ORDER BY key {} LIMIT ?4",
        span.direction()
    );
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((app.raw(), span.low, span.high, page.limit), endpoint_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

pub fn delete_endpoint(
    batch: &mut Batch<'_>,
    app: AppKey,
    endpoint: EndpointKey,
    at: Timestamp,
) -> rusqlite::Result<bool> {
    let ending = ending(&batch.transaction, app, Some(endpoint))?;
    let deleted = batch
        .transaction
        .prepare_cached(
            "UPDATE endpoint SET deleted_at = ?3, uid = NULL, sealed = x''
             WHERE app = ?1 AND key = ?2 AND deleted_at IS NULL",
        )?
        .execute((app.raw(), endpoint.raw(), at.as_millis()))?;
    if deleted == 1 {
        health::forget(&batch.transaction, endpoint)?;
        journal::enter_endpoint(&batch.transaction, app, ending, at)?;
    }
    batch.announce(Committed::Settings { app });
    Ok(deleted == 1)
}

/// What there is to tell of endpoints that are about to be deleted, by the names that they still have: of one, or of all.
fn ending(connection: &Connection, app: AppKey, only: Option<EndpointKey>) -> rusqlite::Result<Vec<EndpointHappened>> {
    if !journal::is_heard(connection, app)? {
        return Ok(Vec::new());
    }
    connection
        .prepare_cached(
            "SELECT key, uid, version, (SELECT uid FROM application WHERE key = ?1) FROM endpoint
             WHERE app = ?1 AND deleted_at IS NULL AND (?2 IS NULL OR key = ?2)",
        )?
        .query_map((app.raw(), only.map(EndpointKey::raw)), |row| {
            let (key, uid, version) = (EndpointKey::new(row.get(0)?), row.get(1)?, row.get(2)?);
            let what = EndpointHappened::new(key, uid, version, EndpointChange::Deleted);
            Ok(EndpointHappened { app_uid: row.get(3)?, ..what })
        })?
        .collect()
}

/// Moves what waits for a deleted endpoint to the dead letters, a step at a time.
pub fn bury_step(batch: &mut Batch<'_>, at: Timestamp) -> rusqlite::Result<bool> {
    let connection = &batch.transaction;
    let next = super::optional(
        connection
            .prepare_cached("SELECT key FROM endpoint WHERE deleted_at IS NOT NULL AND buried = 0 LIMIT 1")?
            .query_row([], |row| row.get::<_, i64>(0)),
    )?;
    let Some(endpoint) = next else { return Ok(false) };
    let waiting: Vec<(i64, i64)> = connection
        .prepare_cached("SELECT message, trigger_code FROM waiting WHERE endpoint = ?1 LIMIT ?2")?
        .query_map((endpoint, BURY_STEP), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (message, trigger) in &waiting {
        let (endpoint, message) = (EndpointKey::new(endpoint), MessageKey::new(*message));
        let id = DeliveryId { endpoint, message, trigger: trigger_of(*trigger)? };
        match id.trigger {
            Trigger::Scheduled => end_waiting(batch, id, DeathReason::EndpointGone, at)?,
            // No delivery of its own: what it was to repeat may have arrived, or is dead for another reason.
            Trigger::Manual => remove_waiting(connection, id)?,
        };
    }
    if waiting.len() < BURY_STEP && forget_counters(connection, endpoint)? {
        connection.execute("UPDATE endpoint SET buried = 1 WHERE key = ?1", [endpoint])?;
    }
    Ok(true)
}

/// There may be one for every ordering key. True when none is left.
fn forget_counters(connection: &Connection, endpoint: i64) -> rusqlite::Result<bool> {
    let forgotten = connection
        .prepare_cached(
            "DELETE FROM sequence WHERE endpoint = ?1
                 AND order_key IN (SELECT order_key FROM sequence WHERE endpoint = ?1 LIMIT ?2)",
        )?
        .execute((endpoint, BURY_STEP))?;
    Ok(forgotten < BURY_STEP)
}

/// A resend that a person asked for: one more try, beside whatever the schedule does.
pub fn resend(
    batch: &mut Batch<'_>,
    message: MessageKey,
    endpoint: EndpointKey,
    at: Timestamp,
) -> rusqlite::Result<Put> {
    let id = DeliveryId { endpoint, message, trigger: Trigger::Manual };
    start_waiting(&batch.transaction, id, None, at, Cycle::First)?;
    batch.announce(Committed::Waiting { endpoint, due: at });
    Ok(Ok(()))
}

pub fn put_event_type(batch: &mut Batch<'_>, event_type: &EventType, expect: Expect) -> rusqlite::Result<Put> {
    let connection = &batch.transaction;
    let sql = match expect {
        Expect::Absent => {
            "INSERT OR IGNORE INTO event_type
                 (name, version, description, archived, deprecated, feature_flags, group_name, schemas, rules,
                  created_at, updated_at)
             VALUES (:name, :version, :description, :archived, :deprecated, :feature_flags, :group_name, :schemas,
                  :rules, :created_at, :updated_at)"
        }
        Expect::Version(_) => {
            "UPDATE event_type SET version = :version, description = :description, archived = :archived,
                 deprecated = :deprecated, feature_flags = :feature_flags, group_name = :group_name,
                 schemas = :schemas, rules = :rules, created_at = :created_at, updated_at = :updated_at
             WHERE name = :name AND version = :version - 1"
        }
    };
    let changed = connection.prepare_cached(sql)?.execute(named_params! {
        ":name": event_type.name,
        ":version": next_version(expect),
        ":description": event_type.description,
        ":archived": event_type.archived,
        ":deprecated": event_type.deprecated,
        ":feature_flags": event_type.feature_flags.as_ref().map(to_json),
        ":group_name": event_type.group_name,
        ":schemas": event_type.schemas,
        ":rules": event_type.rules,
        ":created_at": event_type.created_at.as_millis(),
        ":updated_at": event_type.updated_at.as_millis(),
    })?;
    let outcome = carried_out(changed, expect);
    if outcome.is_ok() {
        batch.announce(Committed::EventTypes);
    }
    Ok(outcome)
}

fn event_type_from(row: &Row<'_>) -> rusqlite::Result<EventType> {
    Ok(EventType {
        name: row.get("name")?,
        version: row.get("version")?,
        description: row.get("description")?,
        archived: row.get("archived")?,
        deprecated: row.get("deprecated")?,
        feature_flags: row.get_ref("feature_flags")?.as_str_or_null()?.map(from_json).transpose()?,
        group_name: row.get("group_name")?,
        schemas: row.get("schemas")?,
        rules: row.get("rules")?,
        created_at: Timestamp::from_millis(row.get("created_at")?),
        updated_at: Timestamp::from_millis(row.get("updated_at")?),
    })
}

pub fn event_type(connection: &Connection, name: &str) -> rusqlite::Result<Option<EventType>> {
    super::optional(
        connection.prepare_cached("SELECT * FROM event_type WHERE name = ?1")?.query_row([name], event_type_from),
    )
}

pub fn event_types(
    connection: &Connection,
    page: &Page<String>,
    archived: Archived,
) -> rusqlite::Result<Vec<EventType>> {
    let (comparison, direction, from) = match (&page.from, page.order) {
        (Some(Cut::Past(name)), Order::Ascending) => (">", "ASC", Some(name)),
        (Some(Cut::Past(name)), Order::Descending) => ("<", "DESC", Some(name)),
        (Some(Cut::Before(name)), Order::Ascending) => ("<", "DESC", Some(name)),
        (Some(Cut::Before(name)), Order::Descending) => (">", "ASC", Some(name)),
        (None, Order::Ascending) => (">", "ASC", None),
        (None, Order::Descending) => (">", "DESC", None),
    };
    let sql = format!(
        "SELECT * FROM event_type WHERE (?1 IS NULL OR name {comparison} ?1) AND (?2 OR NOT archived)
         ORDER BY name {direction} LIMIT ?3"
    );
    let rows = connection
        .prepare_cached(&sql)?
        .query_map((from, archived == Archived::Show, page.limit), event_type_from)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(in_list_order(page, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Content, NewMessage, SqliteStore, Store,
        conformance::fixtures::{START, accept, add_application, add_endpoint, at, bury_all, content, message},
    };

    #[tokio::test]
    async fn a_deleted_endpoint_leaves_no_counters() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path(), START).unwrap();
        let app = add_application(&store, None).await.key;
        let (gone, other) = (add_endpoint(&store, app, None).await.key, add_endpoint(&store, app, None).await.key);
        for number in 0..=BURY_STEP {
            let content = Content { ordering_key: Some(number.to_string()), ..content(b"") };
            accept(&store, NewMessage { content, owed: vec![gone], ..message(app, START) }).await;
        }
        accept(&store, NewMessage { owed: vec![gone, other], fifo: vec![gone, other], ..message(app, START) }).await;
        store.delete_endpoint(app, gone, at(1)).await.unwrap();
        bury_all(&store, at(2)).await;
        let left = store.writer.run(|batch| {
            let mut select = batch.transaction.prepare("SELECT endpoint FROM sequence")?;
            let left = select.query_map([], |row| Ok(EndpointKey::new(row.get(0)?)))?;
            left.collect::<rusqlite::Result<Vec<_>>>()
        });
        assert_eq!(left.await.unwrap(), [other]);
    }
}
