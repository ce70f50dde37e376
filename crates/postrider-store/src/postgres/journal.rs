//! What operators are to be told of: written with the change itself.

use super::{Db, Result, execute, jobs::Turn, one, rows, settings::limit};
use crate::{
    AlarmTurn, AlertHappened, AttemptChange, AttemptHappened, EndpointHappened, Happened, JournalEntry, JournalKey,
    OPERATIONAL, Settlement, Task, TaskHappened,
    rows::{from_json, to_json},
};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};

/// Whether anybody wants to hear of what happens in this application.
pub async fn is_heard(db: &Db, app: AppKey) -> Result<bool> {
    if app == OPERATIONAL {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM endpoint WHERE app = $1 AND deleted_at IS NULL)";
    Ok(one(db, sql, &[&OPERATIONAL.raw()]).await?.get(0))
}

/// The caller has asked whether it is heard.
async fn enter(db: &Db, app: AppKey, what: &[Happened], at: Timestamp) -> Result<()> {
    if what.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = what.iter().map(Happened::name).collect();
    let texts: Vec<String> = what.iter().map(to_json).collect();
    execute(
        db,
        "INSERT INTO journal (name, at, app, what)
         SELECT name, $3::bigint, $4::bigint, what FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS new (name, what, position)
         ORDER BY position
         ON CONFLICT (name) DO NOTHING",
        &[&names, &texts, &at.as_millis(), &app.raw()],
    )
    .await?;
    Ok(())
}

pub async fn enter_alert(turn: &Turn, app: Option<AppKey>, alert: &AlertHappened, at: Timestamp) -> Result<()> {
    let app = app.unwrap_or(NOBODY);
    if is_heard(turn.db(), app).await? {
        enter(turn.db(), app, &[Happened::Alert(alert.clone())], at).await?;
    }
    Ok(())
}

pub async fn turn_alarm(turn: &Turn, alarm: &AlarmTurn) -> Result<bool> {
    let changed = match alarm.is_raised {
        true => {
            let sql = "INSERT INTO alarm (subject, since) VALUES ($1, $2) ON CONFLICT (subject) DO NOTHING";
            execute(turn.db(), sql, &[&alarm.subject, &alarm.at.as_millis()]).await?
        }
        false => execute(turn.db(), "DELETE FROM alarm WHERE subject = $1", &[&alarm.subject]).await?,
    };
    if let Some(alert) = alarm.alert.as_ref().filter(|_| changed > 0) {
        enter_alert(turn, alarm.app, alert, alarm.at).await?;
    }
    Ok(changed > 0)
}

pub async fn raised_alarms(db: &Db) -> Result<Vec<String>> {
    let found = rows(db, "SELECT subject FROM alarm ORDER BY subject", &[]).await?;
    Ok(found.iter().map(|row| row.get(0)).collect())
}

pub async fn enter_endpoint(db: &Db, app: AppKey, what: Vec<EndpointHappened>, at: Timestamp) -> Result<()> {
    let what: Vec<Happened> = what.into_iter().map(Happened::Endpoint).collect();
    enter(db, app, &what, at).await
}

pub async fn enter_task(db: &Db, task: &Task, at: Timestamp) -> Result<()> {
    if let Some(what) = TaskHappened::of(task)
        && is_heard(db, task.app).await?
    {
        enter(db, task.app, &[Happened::Task(what)], at).await?;
    }
    Ok(())
}

/// What outcomes mean that were just written: a late one, of what has ended otherwise since, means nothing.
pub async fn enter_outcomes(db: &Db, settlements: &[&Settlement]) -> Result<()> {
    let told = settlements.iter().filter_map(|one| Some((one.at, AttemptHappened::of(one)?)));
    enter_fates(db, told.collect()).await
}

/// Deliveries of an endpoint that were tried and whose time ran out, each in its cycle.
pub async fn enter_expired(db: &Db, endpoint: EndpointKey, expired: &[(i64, u32)], at: Timestamp) -> Result<()> {
    let told = expired
        .iter()
        .map(|(message, cycle)| (at, AttemptHappened::expired(endpoint, MessageKey::new(*message), *cycle)));
    enter_fates(db, told.collect()).await
}

async fn enter_fates(db: &Db, told: Vec<(Timestamp, AttemptHappened)>) -> Result<()> {
    if told.is_empty() || !is_heard(db, NOBODY).await? {
        return Ok(());
    }
    let happened = |what: &AttemptHappened| Happened::Attempt(*what);
    let names: Vec<String> = told.iter().map(|(_, what)| happened(what).name()).collect();
    let texts: Vec<String> = told.iter().map(|(_, what)| to_json(&happened(what))).collect();
    let times: Vec<i64> = told.iter().map(|(at, _)| at.as_millis()).collect();
    let endpoints: Vec<i64> = told.iter().map(|(_, what)| what.endpoint).collect();
    let messages: Vec<i64> = told.iter().map(|(_, what)| what.message).collect();
    let cycles: Vec<i32> = told.iter().map(|(_, what)| i32::try_from(what.cycle).unwrap_or(i32::MAX)).collect();
    let changes: Vec<i16> = told.iter().map(|(_, what)| change_code(what.change)).collect();
    execute(
        db,
        "INSERT INTO journal (name, at, app, what)
         SELECT new.name, new.at, endpoint.app, new.what
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::smallint[])
             WITH ORDINALITY AS new (name, what, at, endpoint, message, cycle, change, position)
         JOIN endpoint ON endpoint.key = new.endpoint AND endpoint.app <> $8
         WHERE CASE new.change
             WHEN 0 THEN EXISTS (SELECT 1 FROM waiting WHERE waiting.endpoint = new.endpoint
                 AND waiting.message = new.message AND waiting.trigger_code = 0 AND waiting.cycle = new.cycle
                 AND waiting.attempts > 0)
             WHEN 1 THEN EXISTS (SELECT 1 FROM dead WHERE dead.endpoint = new.endpoint
                 AND dead.message = new.message AND dead.cycle = new.cycle AND dead.open = 1)
             ELSE true END
         ORDER BY new.position
         ON CONFLICT (name) DO NOTHING",
        &[&names, &texts, &times, &endpoints, &messages, &cycles, &changes, &OPERATIONAL.raw()],
    )
    .await?;
    Ok(())
}

/// Within the statement above alone.
fn change_code(change: AttemptChange) -> i16 {
    match change {
        AttemptChange::Failing => 0,
        AttemptChange::Exhausted => 1,
        AttemptChange::Recovered => 2,
    }
}

pub async fn untold(db: &Db, count: usize) -> Result<Vec<JournalEntry>> {
    let found = rows(db, "SELECT key, at, app, what FROM journal ORDER BY key LIMIT $1", &[&limit(count)]).await?;
    let entry = |row: &tokio_postgres::Row| {
        let app = AppKey::new(row.get("app"));
        Ok(JournalEntry {
            key: JournalKey(row.get("key")),
            at: Timestamp::from_millis(row.get("at")),
            app: Some(app).filter(|app| *app != NOBODY),
            what: from_json(row.get("what"))?,
        })
    };
    found.iter().map(entry).collect()
}

pub async fn strike_out(turn: &Turn, entries: &[JournalKey]) -> Result<()> {
    let keys: Vec<i64> = entries.iter().map(|entry| entry.0).collect();
    execute(turn.db(), "DELETE FROM journal WHERE key = ANY($1)", &[&keys]).await?;
    Ok(())
}

const NOBODY: AppKey = AppKey::new(0);
