//! What operators are to be told of: written with the change itself.

use super::{batch::Batch, tables::Tables};
use postrider_engine::{AppKey, DeliveryId, EndpointKey, Timestamp, Trigger};
use postrider_store::{
    AlarmTurn, AlertHappened, AttemptChange, AttemptHappened, EndpointChange, EndpointHappened, Happened, JournalEntry,
    JournalKey, OPERATIONAL, Settlement, Task, TaskHappened,
};

/// What has happened in this application, if anybody wants to hear of it. The same change makes one entry.
pub fn enter(tables: &mut Tables, app: Option<AppKey>, what: impl IntoIterator<Item = Happened>, at: Timestamp) {
    let is_heard = tables.endpoints_of.get(&OPERATIONAL).is_some_and(|endpoints| !endpoints.is_empty());
    if !is_heard || app == Some(OPERATIONAL) {
        return;
    }
    for what in what {
        let name = what.name();
        if tables.journal.values().all(|entry| entry.what.name() != name) {
            tables.journal_entries += 1;
            let key = JournalKey(tables.journal_entries);
            tables.journal.insert(key, JournalEntry { key, at, app, what });
        }
    }
}

pub fn enter_alert(batch: &mut Batch<'_>, app: Option<AppKey>, alert: AlertHappened, at: Timestamp) {
    enter(batch.tables, app, [Happened::Alert(alert)], at);
}

pub fn turn_alarm(batch: &mut Batch<'_>, turn: AlarmTurn) -> bool {
    let alarms = &mut batch.tables.alarms;
    let has_turned = match turn.is_raised {
        true => alarms.insert(turn.subject),
        false => alarms.remove(&turn.subject),
    };
    if let Some(alert) = turn.alert.filter(|_| has_turned) {
        enter_alert(batch, turn.app, alert, turn.at);
    }
    has_turned
}

pub fn enter_task(tables: &mut Tables, task: &Task, at: Timestamp) {
    enter(tables, Some(task.app), TaskHappened::of(task).map(Happened::Task), at);
}

/// An endpoint that is about to be deleted, by the name that it still has.
pub fn enter_end(tables: &mut Tables, app_uid: Option<String>, endpoint: EndpointKey, at: Timestamp) {
    let Some(row) = tables.living_endpoint(endpoint) else { return };
    let (app, record) = (row.record.app, &row.record);
    let what = EndpointHappened::new(endpoint, record.uid.clone(), record.version, EndpointChange::Deleted);
    enter(tables, Some(app), [Happened::Endpoint(EndpointHappened { app_uid, ..what })], at);
}

/// A change that this store made to an endpoint itself.
pub fn enter_switch(tables: &mut Tables, endpoint: EndpointKey, change: EndpointChange, at: Timestamp) {
    let Some(row) = tables.living_endpoint(endpoint) else { return };
    let (app, record) = (row.record.app, &row.record);
    let what = EndpointHappened::new(endpoint, record.uid.clone(), record.version, change);
    enter(tables, Some(app), [Happened::Endpoint(what)], at);
}

/// What an outcome means that was just written: a late one, of what has ended otherwise since, means nothing.
pub fn enter_outcome(tables: &mut Tables, settlement: &Settlement) {
    if let Some(what) = AttemptHappened::of(settlement) {
        enter_fate(tables, what, settlement.at);
    }
}

/// A delivery that was tried, and whose time ran out.
pub fn enter_expired(tables: &mut Tables, id: DeliveryId, cycle: u32, at: Timestamp) {
    enter_fate(tables, AttemptHappened::expired(id.endpoint, id.message, cycle), at);
}

fn enter_fate(tables: &mut Tables, what: AttemptHappened, at: Timestamp) {
    let (endpoint, message) = (EndpointKey::new(what.endpoint), what.message());
    let scheduled = DeliveryId { endpoint, message, trigger: Trigger::Scheduled };
    let holds = match what.change {
        AttemptChange::Failing => {
            tables.waiting(scheduled).is_some_and(|row| row.cycle == what.cycle && row.progress.attempts > 0)
        }
        AttemptChange::Exhausted => tables
            .dead
            .get(&(endpoint, message))
            .is_some_and(|row| row.cycle == what.cycle && row.standing == super::tables::Standing::Listed),
        AttemptChange::Recovered => true,
    };
    let Some(app) = tables.endpoints.get(&endpoint).map(|row| row.record.app).filter(|_| holds) else { return };
    enter(tables, Some(app), [Happened::Attempt(what)], at);
}

pub fn untold(tables: &Tables, limit: usize) -> Vec<JournalEntry> {
    tables.journal.values().take(limit).cloned().collect()
}

pub fn strike_out(batch: &mut Batch<'_>, entries: &[JournalKey]) {
    for entry in entries {
        batch.tables.journal.remove(entry);
    }
}
