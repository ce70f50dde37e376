//! What operators are to be told of: written with the change itself.

use super::writer::Batch;
use crate::{
    AlarmTurn, AlertHappened, AttemptChange, AttemptHappened, EndpointHappened, Happened, JournalEntry, JournalKey,
    OPERATIONAL, Settlement, Task, TaskHappened,
    rows::{from_json, to_json},
};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};
use rusqlite::{Connection, Row};

/// Whether anybody wants to hear of what happens in this application.
pub fn is_heard(connection: &Connection, app: AppKey) -> rusqlite::Result<bool> {
    if app == OPERATIONAL {
        return Ok(false);
    }
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM endpoint WHERE app = ?1 AND deleted_at IS NULL)")?
        .query_row([OPERATIONAL.raw()], |row| row.get(0))
}

/// The caller has asked whether it is heard.
pub fn enter(connection: &Connection, app: AppKey, what: &Happened, at: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO journal (name, at, app, what) VALUES (?1, ?2, ?3, ?4)")?
        .execute((what.name(), at.as_millis(), app.raw(), to_json(what)))?;
    Ok(())
}

pub fn enter_alert(
    batch: &Batch<'_>,
    app: Option<AppKey>,
    alert: AlertHappened,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let app = app.unwrap_or(NOBODY);
    if is_heard(&batch.transaction, app)? {
        enter(&batch.transaction, app, &Happened::Alert(alert), at)?;
    }
    Ok(())
}

pub fn turn_alarm(batch: &Batch<'_>, turn: AlarmTurn) -> rusqlite::Result<bool> {
    let has_turned = match turn.is_raised {
        true => batch
            .transaction
            .prepare_cached("INSERT OR IGNORE INTO alarm (subject, since) VALUES (?1, ?2)")?
            .execute((&turn.subject, turn.at.as_millis()))?,
        false => batch.transaction.prepare_cached("DELETE FROM alarm WHERE subject = ?1")?.execute([&turn.subject])?,
    } > 0;
    if let Some(alert) = turn.alert.filter(|_| has_turned) {
        enter_alert(batch, turn.app, alert, turn.at)?;
    }
    Ok(has_turned)
}

pub fn raised_alarms(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection.prepare_cached("SELECT subject FROM alarm ORDER BY subject")?.query_map([], |row| row.get(0))?.collect()
}

pub fn enter_endpoint(
    connection: &Connection,
    app: AppKey,
    what: impl IntoIterator<Item = EndpointHappened>,
    at: Timestamp,
) -> rusqlite::Result<()> {
    for what in what {
        enter(connection, app, &Happened::Endpoint(what), at)?;
    }
    Ok(())
}

pub fn enter_task(connection: &Connection, task: &Task, at: Timestamp) -> rusqlite::Result<()> {
    if let Some(what) = TaskHappened::of(task)
        && is_heard(connection, task.app)?
    {
        enter(connection, task.app, &Happened::Task(what), at)?;
    }
    Ok(())
}

/// What outcomes mean that were just written: a late one, of what has ended otherwise since, means nothing.
pub fn enter_outcomes(connection: &Connection, settlements: &[Settlement]) -> rusqlite::Result<()> {
    let told = settlements.iter().filter_map(|one| Some((one, AttemptHappened::of(one)?)));
    let told: Vec<(&Settlement, AttemptHappened)> = told.collect();
    if told.is_empty() || !is_heard(connection, NOBODY)? {
        return Ok(());
    }
    told.into_iter().try_for_each(|(settlement, what)| enter_fate(connection, what, settlement.at))
}

/// Deliveries of an endpoint that were tried and whose time ran out, each in its cycle.
pub fn enter_expired(
    connection: &Connection,
    endpoint: EndpointKey,
    expired: &[(MessageKey, u32)],
    at: Timestamp,
) -> rusqlite::Result<()> {
    if expired.is_empty() || !is_heard(connection, NOBODY)? {
        return Ok(());
    }
    let mut all = expired.iter().map(|(message, cycle)| AttemptHappened::expired(endpoint, *message, *cycle));
    all.try_for_each(|what| enter_fate(connection, what, at))
}

fn enter_fate(connection: &Connection, what: AttemptHappened, at: Timestamp) -> rusqlite::Result<()> {
    let app = app_of(connection, EndpointKey::new(what.endpoint))?.filter(|app| *app != OPERATIONAL);
    if let Some(app) = app {
        let holds = match what.change {
            AttemptChange::Failing => {
                "SELECT EXISTS (SELECT 1 FROM waiting
                     WHERE endpoint = ?1 AND message = ?2 AND trigger_code = 0 AND cycle = ?3 AND attempts > 0)"
            }
            AttemptChange::Exhausted => {
                "SELECT EXISTS (SELECT 1 FROM dead WHERE endpoint = ?1 AND message = ?2 AND cycle = ?3 AND open = 1)"
            }
            AttemptChange::Recovered => "SELECT ?1 IS NOT NULL AND ?2 IS NOT NULL AND ?3 IS NOT NULL",
        };
        let holds: bool =
            connection.prepare_cached(holds)?.query_row((what.endpoint, what.message, what.cycle), |row| row.get(0))?;
        if holds {
            enter(connection, app, &Happened::Attempt(what), at)?;
        }
    }
    Ok(())
}

fn app_of(connection: &Connection, endpoint: EndpointKey) -> rusqlite::Result<Option<AppKey>> {
    super::optional(
        connection
            .prepare_cached("SELECT app FROM endpoint WHERE key = ?1")?
            .query_row([endpoint.raw()], |row| Ok(AppKey::new(row.get(0)?))),
    )
}

pub fn untold(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<JournalEntry>> {
    connection
        .prepare_cached("SELECT key, at, app, what FROM journal ORDER BY key LIMIT ?1")?
        .query_map([limit], entry_from)?
        .collect()
}

fn entry_from(row: &Row<'_>) -> rusqlite::Result<JournalEntry> {
    let app = AppKey::new(row.get("app")?);
    Ok(JournalEntry {
        key: JournalKey(row.get("key")?),
        at: Timestamp::from_millis(row.get("at")?),
        app: Some(app).filter(|app| *app != NOBODY),
        what: from_json(row.get_ref("what")?.as_str()?)?,
    })
}

pub fn strike_out(batch: &Batch<'_>, entries: &[JournalKey]) -> rusqlite::Result<()> {
    let mut delete = batch.transaction.prepare_cached("DELETE FROM journal WHERE key = ?1")?;
    for entry in entries {
        delete.execute([entry.0])?;
    }
    Ok(())
}

const NOBODY: AppKey = AppKey::new(0);
