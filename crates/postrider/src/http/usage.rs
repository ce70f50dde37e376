//! What applications use: how many attempts each had, and which types their endpoints ask for.
//!
//! In the contract both are background tasks. Here they are found out before the answer, from counts and settings that are
//! read in no time, and written down as tasks that have ended.

use super::{
    Api,
    auth::Environment,
    background_tasks::TaskOut,
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse},
    fields::{Several, TypeName},
    idempotency::{IdempotencyKey, answer, conclude},
    time::Time,
};
use crate::{statistics::Event, tokens::Principal};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::{AppKey, policy::Class};
use postrider_store::{
    AppSubscriptions, AppUsage, Application, By, Cut, Order, Page, Store, StoreError, TallyCode, TallySpan, Task,
    TaskKey, TaskKind, TaskStatus,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// As far back as hours are counted.
const SPAN_MAX: Duration = Duration::from_hours(24 * 62);
const APPS_MAX: usize = 1_000;
/// Applications that a task holds something of.
const FOUND_MAX: usize = 10_000;
/// Read from the store in one go.
const PIECE: usize = 250;

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(of_applications)).routes(routes!(of_event_types))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppUsageStatsIn {
    /// Whole hours are counted: the one in which it lies is counted with all of its attempts.
    since: Time,
    /// The same.
    until: Time,
    /// Ids or uids; all applications, if absent.
    #[schema(value_type = Option<Vec<String>>)]
    #[serde(default)]
    app_ids: Option<Several<TypeName, APPS_MAX>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppUsageStatsOut {
    #[serde(flatten)]
    task: TaskOut,
    /// Those of `appIds` that there are not.
    unresolved_app_ids: Vec<String>,
}

/// Count the attempts of applications.
///
/// The result is in the background task's `data.appStats`. Counts are kept by the hour for 62 days.
#[utoipa::path(post, path = "/api/v1/stats/usage/app", operation_id = "v1.statistics.aggregate-app-stats",
    tag = "Statistics", request_body = AppUsageStatsIn,
    responses(
        (status = 202, body = AppUsageStatsOut),
        (status = 400, body = HttpErrorOut,
            description = "The span is too long or ends before it begins, or there are more than 10,000 applications and none is named"),
        (status = 422, body = HttpValidationError),
    ))]
async fn of_applications(
    State(api): State<Arc<Api>>,
    environment: Environment,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let AppUsageStatsIn { since, until, app_ids } = parse(&body)?;
    if since.0 > until.0 {
        return Err(Error::InvalidRange("`since` must not be after `until`"));
    }
    if until.0.since(since.0) > SPAN_MAX {
        return Err(Error::InvalidRange("`since` and `until` may be 62 days apart at most"));
    }
    let store = environment.store();
    let (applications, unresolved) = match app_ids {
        None => (all_applications(store).await?, Vec::new()),
        Some(Several(wanted)) => find(&api, store, wanted).await?,
    };
    if applications.is_empty() && !unresolved.is_empty() {
        return Err(Error::invalid(["appIds"], "none of them is an application's id or uid"));
    }
    let tried = (code(Event::Attempt(Class::Delivered)), code(Event::Attempt(Class::Gone)));
    let counts = store.tallies_by_application(tried, TallySpan::Hour, since.0, until.0).await?;
    let counts: HashMap<AppKey, u64> = counts.into_iter().collect();
    let found = applications.into_iter().map(|application| AppUsage {
        app: application.key.raw(),
        attempts: counts.get(&application.key).copied().unwrap_or(0),
        uid: application.public_uid().map(str::to_owned),
    });
    let kind = TaskKind::AppStats { since: since.0.as_millis(), until: until.0.as_millis(), found: found.collect() };
    let task = ended(&api, kind).await?;
    let shown = AppUsageStatsOut { task: TaskOut::of(&api.ids, &task), unresolved_app_ids: unresolved };
    let prepared = answer(StatusCode::ACCEPTED, &shown);
    let remember = key.remember(&Principal::Environment, &body, &prepared);
    conclude(store.start_task(task, remember).await, prepared)
}

/// Find out which event types each application's endpoints ask for.
///
/// The result is in the background task's `data.event_types`.
#[utoipa::path(put, path = "/api/v1/stats/usage/event-types", operation_id = "v1.statistics.aggregate-event-types",
    tag = "Statistics", responses(
        (status = 202, body = TaskOut),
        (status = 400, body = HttpErrorOut, description = "There are more than 10,000 applications"),
    ))]
async fn of_event_types(
    State(api): State<Arc<Api>>,
    environment: Environment,
    query: Query,
    _: NoBody,
) -> Result<Response, Error> {
    query.finish()?;
    let store = environment.store();
    let mut found = Vec::new();
    for application in all_applications(store).await? {
        found.push(subscriptions(store, application.key).await?);
    }
    let task = ended(&api, TaskKind::EventTypes { found }).await?;
    let prepared = answer(StatusCode::ACCEPTED, &TaskOut::of(&api.ids, &task));
    conclude(store.start_task(task, None).await, prepared)
}

async fn ended(api: &Api, kind: TaskKind) -> Result<Task, StoreError> {
    let now = (api.clock)();
    Ok(Task {
        key: TaskKey(api.records.mint(now).await?),
        // Nobody's: only who sees everything sees it.
        app: AppKey::new(0),
        kind,
        total: None,
        done: 0,
        changed: 0,
        status: TaskStatus::Finished,
        created_at: now,
        updated_at: now,
    })
}

/// No more than fit into one task.
async fn all_applications(store: &dyn Store) -> Result<Vec<Application>, Error> {
    let (mut all, mut from) = (Vec::new(), None);
    loop {
        let page = store.applications(Page { from, order: Order::Ascending, limit: PIECE }).await?;
        let is_last = page.len() < PIECE;
        from = page.last().map(|application| Cut::Past(application.key));
        all.extend(page);
        if all.len() > FOUND_MAX {
            return Err(Error::InvalidRange(
                "there are more than 10,000 applications, too many for one task: name up to 1,000 in `appIds`, or count endpoint by endpoint",
            ));
        }
        if is_last {
            return Ok(all);
        }
    }
}

/// And the names of which there are none.
async fn find(
    api: &Api,
    store: &dyn Store,
    wanted: Vec<TypeName>,
) -> Result<(Vec<Application>, Vec<String>), StoreError> {
    let (mut found, mut unresolved) = (Vec::<Application>::new(), Vec::new());
    for TypeName(name) in wanted {
        let by = api.ids.key_of(&name).map_or_else(|| By::Uid(name.clone()), By::Key);
        match store.application(by).await? {
            Some(application) if found.iter().any(|known| known.key == application.key) => {}
            Some(application) => found.push(application),
            None => unresolved.push(name),
        }
    }
    Ok((found, unresolved))
}

async fn subscriptions(store: &dyn Store, app: AppKey) -> Result<AppSubscriptions, StoreError> {
    let (mut event_types, mut takes_all, mut from) = (BTreeSet::new(), false, None);
    loop {
        let page = store.endpoints(app, Page { from, order: Order::Ascending, limit: PIECE }).await?;
        let is_last = page.len() < PIECE;
        from = page.last().map(|endpoint| Cut::Past(endpoint.key));
        for endpoint in page {
            match endpoint.event_types {
                Some(types) => event_types.extend(types),
                None => takes_all = true,
            }
        }
        if is_last {
            return Ok(AppSubscriptions { app: app.raw(), event_types: event_types.into_iter().collect(), takes_all });
        }
    }
}

fn code(event: Event) -> TallyCode {
    TallyCode::try_from(event.number()).unwrap_or(TallyCode::MAX)
}
