//! Applications, endpoints and event types. Whoever puts second is told so, instead of undoing the first one's change.

use super::{
    batch::{Batch, Kind},
    journal,
    tables::{AnswerRow, AppRow, Cycle, EndpointRow, Tables},
};
use postrider_engine::{AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger};
use postrider_store::{
    AppKind, Application, Archived, Before, By, Committed, Cut, Endpoint, EndpointHappened, EventType, Expect,
    Happened, Order, Page, PutError, Remember,
};
use std::{collections::BTreeMap, ops::Bound};

/// What a put makes of it: carried out, or refused with nothing changed.
pub type Put<T = ()> = Result<T, PutError>;

/// Runs a change between recognising a repetition and keeping its answer.
pub fn put<T>(
    batch: &mut Batch<'_>,
    kept: Option<Remember>,
    at: Timestamp,
    change: impl FnOnce(&mut Batch<'_>) -> Put<T>,
) -> Put<T> {
    let Some(Remember { idempotency, answer }) = kept else { return change(batch) };
    match batch.tables.answers.get(&idempotency.key) {
        Some(row) if idempotency.chosen && row.request != idempotency.request => return Err(PutError::KeyReused),
        Some(row) => return Err(PutError::Repeated(row.answer.clone())),
        None => {}
    }
    let outcome = change(batch)?;
    batch.tables.answers.insert(idempotency.key, AnswerRow { at, request: idempotency.request, answer });
    Ok(outcome)
}

/// The version that is put, if what is expected was found.
fn next_version(found: Option<i64>, expect: Expect) -> Put<i64> {
    match (found, expect) {
        (None, Expect::Absent) => Ok(1),
        (Some(_), Expect::Absent) => Err(PutError::Taken),
        (Some(found), Expect::Version(read)) if found == read => Ok(read + 1),
        (Some(_) | None, Expect::Version(_)) => Err(PutError::Changed),
    }
}

pub fn put_application(batch: &mut Batch<'_>, application: Application, expect: Expect) -> Put {
    let Tables { applications, application_uids, .. } = batch.tables;
    let key = application.key;
    if application.uid.as_ref().and_then(|uid| application_uids.get(uid)).is_some_and(|other| *other != key) {
        return Err(PutError::Taken);
    }
    let found = applications.get(&key);
    if expect == Expect::Absent && found.is_some() {
        return Err(PutError::Taken);
    }
    let found = found.filter(|row| row.deleted_at.is_none());
    let version = next_version(found.map(|row| row.record.version), expect)?;
    let generation = found.map_or(0, |row| row.generation + 1);
    if let Some(uid) = found.and_then(|row| row.record.uid.as_ref()) {
        application_uids.remove(uid);
    }
    if let Some(uid) = &application.uid {
        application_uids.insert(uid.clone(), key);
    }
    applications.insert(key, AppRow { record: Application { version, ..application }, generation, deleted_at: None });
    batch.announce(Committed::Settings { app: key });
    Ok(())
}

pub fn application(tables: &Tables, by: By<AppKey>) -> Option<Application> {
    let key = match by {
        By::Key(key) => key,
        By::Uid(uid) => *tables.application_uids.get(&uid)?,
    };
    tables.living_application(key).map(|row| row.record.clone())
}

pub fn applications(tables: &Tables, page: &Page<AppKey>) -> Vec<Application> {
    let living = |(_, row): &(&AppKey, &AppRow)| row.deleted_at.is_none();
    let found = on_page(&tables.applications, page, living);
    found.into_iter().map(|(_, row)| row.record.clone()).collect()
}

pub fn applications_of(tables: &Tables, kind: AppKind, page: &Page<AppKey>) -> Vec<Application> {
    let fits = |(_, row): &(&AppKey, &AppRow)| {
        row.deleted_at.is_none() && row.record.source.is_some() == (kind == AppKind::Source)
    };
    on_page(&tables.applications, page, fits).into_iter().map(|(_, row)| row.record.clone()).collect()
}

pub fn delete_application(batch: &mut Batch<'_>, app: AppKey, at: Timestamp) -> bool {
    let found = batch.tables.applications.get_mut(&app).filter(|row| row.deleted_at.is_none());
    let app_uid = found.as_ref().and_then(|row| row.record.uid.clone());
    let deleted = found.map(|row| {
        row.deleted_at = Some(at);
        row.generation += 1;
        row.record.source = None;
        row.record.pollers = None;
        row.record.uid.take()
    });
    batch.tables.refused.retain(|_, refused| refused.app != app);
    batch.tables.consumers.retain(|_, (owner, _)| *owner != app);
    if let Some(Some(uid)) = &deleted {
        batch.tables.application_uids.remove(uid);
    }
    for endpoint in batch.tables.endpoints_of.remove(&app).unwrap_or_default() {
        journal::enter_end(batch.tables, app_uid.clone(), endpoint, at);
        end_endpoint(batch.tables, endpoint, at);
    }
    batch.announce(Committed::Settings { app });
    batch.announce_work();
    deleted.is_some()
}

fn end_endpoint(tables: &mut Tables, endpoint: EndpointKey, at: Timestamp) {
    let Some(row) = tables.endpoints.get_mut(&endpoint) else { return };
    row.deleted_at = Some(at);
    row.record.sealed.clear();
    if let Some(uid) = row.record.uid.take()
        && let Some(of_app) = tables.endpoint_uids.get_mut(&row.record.app)
    {
        of_app.remove(&uid);
    }
    tables.healths.remove(&endpoint);
    tables.unburied.insert(endpoint);
}

pub fn put_endpoint(batch: &mut Batch<'_>, endpoint: Endpoint, expect: Expect) -> Put {
    let tables = &mut *batch.tables;
    let (key, app) = (endpoint.key, endpoint.app);
    let named = endpoint.uid.as_ref().and_then(|uid| tables.endpoint_uids.get(&app)?.get(uid));
    if named.is_some_and(|other| *other != key) {
        return Err(PutError::Taken);
    }
    if tables.living_application(app).is_none() {
        return Err(PutError::Changed);
    }
    let found = tables.endpoints.get(&key);
    if expect == Expect::Absent && found.is_some() {
        return Err(PutError::Taken);
    }
    let found = found.filter(|row| row.deleted_at.is_none() && row.record.app == app);
    let version = next_version(found.map(|row| row.record.version), expect)?;
    let before =
        found.map(|row| Before { is_disabled: row.record.disabled.is_some(), updated_at: row.record.updated_at });
    let was_disabled = before.is_some_and(|before| before.is_disabled);
    let what = EndpointHappened::of_put(before, &endpoint, version);
    let changed_at = endpoint.updated_at;
    let old_uid = found.and_then(|row| row.record.uid.clone());
    let is_enabled = endpoint.disabled.is_none();
    let uids = tables.endpoint_uids.entry(app).or_default();
    if let Some(uid) = old_uid {
        uids.remove(&uid);
    }
    if let Some(uid) = &endpoint.uid {
        uids.insert(uid.clone(), key);
    }
    tables.endpoints_of.entry(app).or_default().insert(key);
    tables.endpoints.insert(key, EndpointRow { record: Endpoint { version, ..endpoint }, deleted_at: None });
    raise_generation(tables, app);
    // Whoever enables an endpoint says that it is well: what led to its end must not end it again at once.
    if was_disabled && is_enabled {
        tables.healths.remove(&key);
        batch.announce(Committed::Health { endpoint: key });
    }
    journal::enter(batch.tables, Some(app), what.into_iter().map(Happened::Endpoint), changed_at);
    batch.announce(Committed::Settings { app });
    Ok(())
}

fn raise_generation(tables: &mut Tables, app: AppKey) {
    if let Some(row) = tables.applications.get_mut(&app) {
        row.generation += 1;
    }
}

pub fn endpoint(tables: &Tables, app: AppKey, by: By<EndpointKey>) -> Option<Endpoint> {
    let key = match by {
        By::Key(key) => key,
        By::Uid(uid) => *tables.endpoint_uids.get(&app)?.get(&uid)?,
    };
    tables.living_endpoint(key).filter(|row| row.record.app == app).map(|row| row.record.clone())
}

pub fn endpoints(tables: &Tables, app: AppKey, page: &Page<EndpointKey>) -> Vec<Endpoint> {
    let Some(keys) = tables.endpoints_of.get(&app) else { return Vec::new() };
    let all: BTreeMap<EndpointKey, &Endpoint> =
        keys.iter().filter_map(|key| Some((*key, &tables.living_endpoint(*key)?.record))).collect();
    on_page(&all, page, |_| true).into_iter().map(|(_, record)| Endpoint::clone(record)).collect()
}

pub fn delete_endpoint(batch: &mut Batch<'_>, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> bool {
    let found = batch.tables.living_endpoint(endpoint).is_some_and(|row| row.record.app == app);
    if found {
        let app_uid = batch.tables.living_application(app).and_then(|row| row.record.uid.clone());
        journal::enter_end(batch.tables, app_uid, endpoint, at);
        if let Some(of_app) = batch.tables.endpoints_of.get_mut(&app) {
            of_app.remove(&endpoint);
        }
        end_endpoint(batch.tables, endpoint, at);
        raise_generation(batch.tables, app);
        batch.announce_work();
    }
    batch.announce(Committed::Settings { app });
    found
}

/// A resend that a person asked for: one more try, beside whatever the schedule does.
pub fn resend(batch: &mut Batch<'_>, message: MessageKey, endpoint: EndpointKey, at: Timestamp) -> Put {
    let id = DeliveryId { endpoint, message, trigger: Trigger::Manual };
    if batch.tables.start_waiting(id, None, at, Cycle::First) {
        batch.tables.gallery.tell(&super::witness::Seen::Queued { id, cycle: 0, due: at });
    }
    batch.announce(Committed::Waiting { endpoint, due: at });
    Ok(())
}

pub fn put_event_type(batch: &mut Batch<'_>, event_type: EventType, expect: Expect) -> Put {
    let found = batch.tables.event_types.get(&event_type.name).map(|found| found.version);
    let version = next_version(found, expect)?;
    batch.tables.event_types.insert(event_type.name.clone(), EventType { version, ..event_type });
    batch.announce(Committed::EventTypes);
    Ok(())
}

pub fn event_types(tables: &Tables, page: &Page<String>, archived: Archived) -> Vec<EventType> {
    let is_shown = |(_, found): &(&String, &EventType)| archived == Archived::Show || !found.archived;
    on_page(&tables.event_types, page, is_shown).into_iter().map(|(_, found)| found.clone()).collect()
}

pub fn delete_event_type(batch: &mut Batch<'_>, name: &str) -> bool {
    let found = batch.tables.event_types.remove(name).is_some();
    if found {
        batch.announce(Committed::EventTypes);
    }
    found
}

pub fn generation(tables: &Tables, kind: Kind, app: AppKey) -> Option<i64> {
    match kind {
        Kind::Alone => None,
        Kind::Many => tables.living_application(app).map(|row| row.generation),
    }
}

/// The part of a list that a page shows, in the list's order.
pub fn on_page<'t, K: Ord + Clone, T>(
    all: &'t BTreeMap<K, T>,
    page: &Page<K>,
    is_shown: impl Fn(&(&'t K, &'t T)) -> bool,
) -> Vec<(&'t K, &'t T)> {
    let (mut low, mut high) = (Bound::Unbounded, Bound::Unbounded);
    // Paging back reads against the list's order, starting at the cut, and is turned round at the end.
    let is_back = matches!(page.from, Some(Cut::Before(_)));
    let ascending = (page.order == Order::Ascending) != is_back;
    if let Some(Cut::Past(key) | Cut::Before(key)) = &page.from {
        match ascending {
            true => low = Bound::Excluded(key.clone()),
            false => high = Bound::Excluded(key.clone()),
        }
    }
    let range = all.range((low, high));
    let mut found: Vec<_> = match ascending {
        true => range.filter(is_shown).take(page.limit).collect(),
        false => range.rev().filter(is_shown).take(page.limit).collect(),
    };
    if is_back {
        found.reverse();
    }
    found
}
