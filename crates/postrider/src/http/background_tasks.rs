//! Long work that people asked for: how it stands, and how to end it early.

use super::{
    Api,
    auth::{Caller, InApp, require},
    error::{Error, HttpErrorOut},
    extract::{NoBody, Query, path_params},
    idempotency::{IdempotencyKey, answer, conclude, json},
    page::{Asked, ListOut},
    time::Time,
};
use crate::{ids::IdCodec, tasks::type_name, tokens::Capability};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use postrider_store::{AppSubscriptions, AppUsage, Order, StoreError, Task, TaskKey, TaskKind, TaskStatus};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(cancel))
}

/// A task, as far as whoever started it is told.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskOut {
    #[schema(example = "qtask_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    status: BackgroundTaskStatus,
    #[schema(example = "endpoint.recover")]
    task: &'static str,
    updated_at: Time,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackgroundTaskOut {
    #[schema(example = "qtask_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    status: BackgroundTaskStatus,
    #[schema(example = "endpoint.recover")]
    task: &'static str,
    data: DataOut,
    updated_at: Time,
}

/// How far it has come. The names with underscores are the contract's.
#[derive(Debug, Serialize, ToSchema)]
pub struct DataOut {
    /// The application that it is about; absent if it is about all.
    #[serde(rename = "appId", skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endp_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Time>,
    /// Put back on their way so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_purged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_canceled: Option<u64>,
    #[serde(rename = "appStats", skip_serializing_if = "Option::is_none")]
    app_stats: Option<Vec<AppStatsOut>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_types: Option<Vec<AppEventTypesOut>>,
    /// Looked at so far.
    done: u64,
    /// To be looked at; absent while it has not been counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// It was ended before its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    canceled: bool,
}

/// How many attempts an application had.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppStatsOut {
    app_id: String,
    app_uid: Option<String>,
    /// The contract's word for attempts.
    message_destinations: u64,
}

/// What an application's endpoints ask for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppEventTypesOut {
    app_id: String,
    explicitly_subscribed_event_types: Vec<String>,
    has_catch_all_endpoint: bool,
}

impl AppStatsOut {
    fn of(ids: &IdCodec, usage: &AppUsage) -> Self {
        let app_id = ids.id_of(AppKey::new(usage.app));
        Self { app_id, app_uid: usage.uid.clone(), message_destinations: usage.attempts }
    }
}

impl AppEventTypesOut {
    fn of(ids: &IdCodec, app: &AppSubscriptions) -> Self {
        Self {
            app_id: ids.id_of(AppKey::new(app.app)),
            explicitly_subscribed_event_types: app.event_types.clone(),
            has_catch_all_endpoint: app.takes_all,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackgroundTaskStatus {
    Running,
    Finished,
    /// It was ended early; `data.canceled` tells so.
    Failed,
}

impl BackgroundTaskStatus {
    fn of(status: TaskStatus) -> Self {
        match status {
            TaskStatus::Running => Self::Running,
            TaskStatus::Finished => Self::Finished,
            TaskStatus::Cancelled => Self::Failed,
        }
    }
}

impl TaskOut {
    pub fn of(ids: &IdCodec, task: &Task) -> Self {
        Self {
            id: ids.id_of(task.key),
            status: BackgroundTaskStatus::of(task.status),
            task: type_name(&task.kind),
            updated_at: Time(task.updated_at),
        }
    }
}

impl BackgroundTaskOut {
    fn of(ids: &IdCodec, task: Task) -> Self {
        Self {
            id: ids.id_of(task.key),
            status: BackgroundTaskStatus::of(task.status),
            task: type_name(&task.kind),
            data: DataOut::of(ids, &task),
            updated_at: Time(task.updated_at),
        }
    }
}

impl BackgroundTaskOut {
    /// Among others: what was found for each of thousands of applications is shown with the task alone.
    fn listed(ids: &IdCodec, task: Task) -> Self {
        let whole = Self::of(ids, task);
        Self { data: DataOut { app_stats: None, event_types: None, ..whole.data }, ..whole }
    }
}

impl DataOut {
    fn of(ids: &IdCodec, task: &Task) -> Self {
        let moment = |millis: i64| Some(Time(Timestamp::from_millis(millis)));
        let endpoint = |raw: i64| Some(ids.id_of(EndpointKey::new(raw)));
        let mut data = Self {
            app_id: Some(task.app).filter(|app| *app != EVERYBODY).map(|app| ids.id_of(app)),
            endp_id: None,
            since: None,
            until: None,
            messages_sent: None,
            messages_purged: None,
            messages_canceled: None,
            app_stats: None,
            event_types: None,
            done: task.done,
            total: task.total,
            canceled: task.status == TaskStatus::Cancelled,
        };
        match &task.kind {
            TaskKind::Recover { endpoint: of, since, until }
            | TaskKind::ReplayMissing { endpoint: of, since, until, .. } => {
                (data.endp_id, data.since, data.until) = (endpoint(*of), moment(*since), moment(*until));
                data.messages_sent = Some(task.changed);
            }
            TaskKind::BulkReplay { endpoint: of, filter } => {
                (data.endp_id, data.since, data.until) = (endpoint(*of), moment(filter.since), moment(filter.until));
                data.messages_sent = Some(task.changed);
            }
            TaskKind::ReplayDead { filter } => {
                data.endp_id = filter.endpoint.and_then(endpoint);
                data.since = filter.since.and_then(moment);
                data.until = filter.until.and_then(moment);
                data.messages_sent = Some(task.changed);
            }
            TaskKind::Cancel { endpoint: of, before } => {
                (data.endp_id, data.until) = (endpoint(*of), moment(*before));
                data.messages_canceled = Some(task.changed);
            }
            TaskKind::Resume { endpoint: of, .. } => {
                data.endp_id = endpoint(*of);
                data.messages_canceled = Some(task.changed);
            }
            TaskKind::Purge => data.messages_purged = Some(task.changed),
            TaskKind::AppStats { since, until, found } => {
                (data.since, data.until) = (moment(*since), moment(*until));
                data.app_stats = Some(found.iter().map(|usage| AppStatsOut::of(ids, usage)).collect());
            }
            TaskKind::EventTypes { found } => {
                data.event_types = Some(found.iter().map(|app| AppEventTypesOut::of(ids, app)).collect());
            }
        }
        data
    }
}

/// The kinds that a type stands for; none: all. Clients of the contract know a closed list of types, so that ours are listed
/// only for those who ask for them, or for everything.
fn kinds_of(task: Option<&str>) -> Result<Vec<&'static str>, Error> {
    match task {
        None => {
            Ok(vec!["recover", "replay_dead", "replay_missing", "bulk_replay", "purge", "app_stats", "event_types"])
        }
        Some("all") => Ok(Vec::new()),
        Some("endpoint.recover") => Ok(vec!["recover", "replay_dead"]),
        Some("endpoint.replay") => Ok(vec!["replay_missing"]),
        Some("endpoint.bulk-replay") => Ok(vec!["bulk_replay"]),
        Some("application.purge_content") => Ok(vec!["purge"]),
        Some("endpoint.cancel") => Ok(vec!["cancel"]),
        Some("endpoint.resume") => Ok(vec!["resume"]),
        Some("application.stats") => Ok(vec!["app_stats"]),
        Some("event-type.aggregate") => Ok(vec!["event_types"]),
        // Types of the contract that there are no tasks of here.
        Some("message.broadcast" | "sdk.generate") => Ok(vec!["nothing"]),
        Some(_) => Err(Error::BadQuery("`task` is not a type of task".into())),
    }
}

/// Takes on a task and answers with how it stands.
pub async fn start(
    api: &Api,
    app: &InApp,
    kind: TaskKind,
    (key, body): (&IdempotencyKey, &[u8]),
) -> Result<Response, Error> {
    let task = new_task(api, app, kind).await?;
    let prepared = answer(StatusCode::ACCEPTED, &TaskOut::of(&api.ids, &task));
    let remember = key.remember(&app.principal, body, &prepared);
    let written = app.store.start_task(task, remember).await;
    api.tasks.wake();
    conclude(written, prepared)
}

pub async fn new_task(api: &Api, app: &InApp, kind: TaskKind) -> Result<Task, StoreError> {
    let now = (api.clock)();
    Ok(Task {
        key: TaskKey(api.records.mint(now).await?),
        app: app.key(),
        kind,
        total: None,
        done: 0,
        changed: 0,
        status: TaskStatus::Running,
        created_at: now,
        updated_at: now,
    })
}

/// The task that the path names, for someone who may see it.
struct Named {
    task: Task,
    caller: Caller,
}

impl FromRequestParts<Arc<Api>> for Named {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let params = path_params(parts).await?;
        let id = params.iter().find(|(name, _)| *name == "task_id").map(|(_, id)| id).ok_or(Error::NotFound)?;
        let key = api.ids.key_of(id).ok_or(Error::NotFound)?;
        let task = caller.tasks(api).find(key).await?.ok_or(Error::NotFound)?;
        Ok(Self { task, caller })
    }
}

/// List the background tasks, newest first.
#[utoipa::path(get, path = "/api/v1/background-task", operation_id = "v1.background-task.list",
    tag = "Background Task",
    params(
        ("status" = Option<String>, Query, description = "running, finished or failed"),
        ("task" = Option<String>, Query, description = "A type of task, or `all`. If absent: every type that the contract knows, \
            which leaves out endpoint.cancel and endpoint.resume"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<BackgroundTaskOut>)))]
async fn list(State(api): State<Arc<Api>>, caller: Caller, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    let status = match query.text("status")?.as_deref() {
        None => None,
        Some("running") => Some(TaskStatus::Running),
        Some("finished") => Some(TaskStatus::Finished),
        Some("failed") => Some(TaskStatus::Cancelled),
        Some(_) => return Err(Error::BadQuery("`status` must be running, finished or failed".into())),
    };
    let kinds = kinds_of(query.text("task")?.as_deref())?;
    query.finish()?;
    let rows = caller.tasks(&api).list(status, kinds, asked.page()).await?;
    let list = asked.answer(rows, &api.ids, |task| task.key, |task| BackgroundTaskOut::listed(&api.ids, task));
    Ok(json(StatusCode::OK, &list))
}

/// Get a background task.
#[utoipa::path(get, path = "/api/v1/background-task/{task_id}", operation_id = "v1.background-task.get",
    tag = "Background Task",
    params(("task_id" = String, Path)),
    responses((status = 200, body = BackgroundTaskOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, named: Named, query: Query) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &BackgroundTaskOut::of(&api.ids, named.task)))
}

/// End a background task early. What it has done stays done.
#[utoipa::path(post, path = "/api/v1/background-task/{task_id}/cancel", operation_id = "v1.background-task.cancel",
    tag = "Background Task",
    params(("task_id" = String, Path)),
    responses((status = 200, body = BackgroundTaskOut), (status = 404, body = HttpErrorOut)))]
async fn cancel(State(api): State<Arc<Api>>, named: Named, query: Query, _: NoBody) -> Result<Response, Error> {
    query.finish()?;
    require(named.caller.principal(), Capability::CreateAttempts)?;
    let task = named.caller.tasks(&api).cancel(named.task.key, (api.clock)()).await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &BackgroundTaskOut::of(&api.ids, task)))
}

/// A task that is about all applications belongs to none.
const EVERYBODY: AppKey = AppKey::new(0);
