//! How an endpoint fares, and holding it back or letting it go on. Additions of ours to the contract.
//!
//! While an endpoint is paused or disabled its messages wait. Whoever lets it go on chooses what becomes of them, and
//! can see beforehand how many each choice concerns.

use super::{
    Api,
    auth::InApp,
    background_tasks::{self, TaskOut},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse},
    idempotency::{IdempotencyKey, json},
    time::Time,
};
use crate::{alerts::Alert, config::Span, rules::Rules, tokens::Capability};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::{
    Timestamp,
    policy::{self, Breaker, DisableReason, Health, WhileOpen, breaker::Standing},
};
use postrider_store::{Disabled, Endpoint, Expect, Keep, Order, Page, PutError, Task, TaskKey, TaskKind, TaskStatus};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(reset))
        .routes(routes!(backlog))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthOut {
    /// `healthy`, `refusing`, `failing`, `tripped`, `probing` or `disabled`.
    #[schema(example = "healthy")]
    state: &'static str,
    /// What that means, in a sentence.
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled: Option<DisabledOut>,
    breaker: BreakerOut,
    /// The first failure after which there has been no success.
    #[serde(skip_serializing_if = "Option::is_none")]
    failing_since: Option<Time>,
    /// Messages in a row that it refused for good.
    permanent_streak: u32,
    /// How many would disable it.
    #[serde(skip_serializing_if = "Option::is_none")]
    permanent_streak_max: Option<u32>,
    /// How long it may fail until it is disabled; absent: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "5d")]
    disable_after: Option<Span>,
    /// If it still fails then, it is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    disable_at: Option<Time>,
    /// Its owner has been warned that it is about to be disabled.
    warned: bool,
    /// The task that sifts its backlog before it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    resuming: Option<String>,
    /// Where the health was asked for; a change is not held up by counting.
    #[serde(skip_serializing_if = "Option::is_none")]
    backlog: Option<BacklogOut>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct DisabledOut {
    /// `manual`, `gone`, `failing`, `quarantined` or `asked`.
    reason: &'static str,
    since: Time,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerOut {
    /// `closed`, `open`, `half-open` or `off`.
    state: &'static str,
    /// Failures in a row while it is closed.
    failures: u32,
    /// How many would open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open_until: Option<Time>,
    /// How often it opened since it was last closed.
    trips: u32,
}

/// What waits for an endpoint, and what of it each choice at resuming would still deliver.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BacklogOut {
    waiting: u64,
    /// When the oldest of it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest: Option<Time>,
    newest_per_key: u64,
    /// Where a moment was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResumeIn {
    #[serde(default)]
    deliver: Deliver,
    /// With `since`: what was accepted at or after this moment.
    since: Option<Time>,
}

/// What of the backlog is still delivered. The rest becomes dead letters, cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Deliver {
    #[default]
    All,
    Since,
    NewestPerKey,
    None,
}

impl ResumeIn {
    fn keep(self) -> Result<Keep, Error> {
        match (self.deliver, self.since) {
            (Deliver::Since, Some(since)) => Ok(Keep::Since(since.0.as_millis())),
            (Deliver::Since, None) => Err(Error::invalid(["since"], "is needed with \"deliver\": \"since\"")),
            (Deliver::All | Deliver::NewestPerKey | Deliver::None, Some(_)) => {
                Err(Error::invalid(["since"], "goes only with \"deliver\": \"since\""))
            }
            (Deliver::All, None) => Ok(Keep::All),
            (Deliver::NewestPerKey, None) => Ok(Keep::NewestPerKey),
            (Deliver::None, None) => Ok(Keep::None),
        }
    }
}

async fn backlog_of(app: &InApp, endpoint: &Endpoint, since: Option<Timestamp>) -> Result<BacklogOut, Error> {
    let backlog = app.store.backlog(endpoint, since).await?;
    Ok(BacklogOut {
        waiting: backlog.waiting,
        oldest: backlog.oldest.map(Time),
        newest_per_key: backlog.newest_per_key,
        since: backlog.since,
    })
}

async fn health_of(api: &Api, app: &InApp, endpoint: &Endpoint) -> Result<HealthOut, Error> {
    let health = app.store.health(endpoint).await?;
    let own = Rules::stored(endpoint.rules.as_deref()).layer();
    let rules = policy::Rules::resolve([&*api.settings.rules, &app.entry.layer, &own]);
    let now = (api.clock)();
    let disable_at = match (health.failing_since, rules.disable.failing_for, endpoint.disabled) {
        (Some(since), Some(after), None) => Some(since.plus(after)),
        (_, _, _) => None,
    };
    let resuming = running_resume(app, endpoint).await?.map(|task| api.ids.id_of(task));
    let (state, summary) = summary(endpoint.disabled, health, &rules, disable_at, now);
    Ok(HealthOut {
        state,
        summary,
        disabled: endpoint
            .disabled
            .map(|disabled| DisabledOut { reason: reason_name(disabled.why), since: Time(disabled.at) }),
        breaker: BreakerOut::of(health.breaker, rules.breaker.map(|breaker| breaker.failures), now),
        failing_since: health.failing_since.map(Time),
        permanent_streak: health.permanent_streak,
        permanent_streak_max: rules.disable.permanent_streak,
        disable_after: rules.disable.failing_for.map(Span),
        disable_at: disable_at.map(Time),
        warned: health.warned,
        resuming,
        backlog: None,
    })
}

impl BreakerOut {
    fn of(breaker: Breaker, failures_max: Option<u32>, now: Timestamp) -> Self {
        let (failures, trips) = match breaker {
            Breaker::Closed { failures } => (failures, 0),
            Breaker::Open { trips, .. } => (0, trips),
        };
        let (state, open_until) = match breaker.standing(now) {
            Standing::Closed if failures_max.is_none() => ("off", None),
            Standing::Closed => ("closed", None),
            Standing::Open { until } => ("open", Some(Time(until))),
            Standing::HalfOpen => ("half-open", None),
        };
        Self { state, failures, failures_max, open_until, trips }
    }
}

fn summary(
    disabled: Option<Disabled>,
    health: Health,
    rules: &policy::Rules,
    disable_at: Option<Timestamp>,
    now: Timestamp,
) -> (&'static str, String) {
    if let Some(disabled) = disabled {
        let why = match disabled.why {
            DisableReason::Manual => "Paused on request",
            DisableReason::Gone => "Disabled because it answered 410, gone",
            DisableReason::Failing => "Disabled because it failed for too long",
            DisableReason::Quarantined => "Disabled because it refused too many messages in a row",
            DisableReason::Asked => "Disabled because it asked for that in an answer",
        };
        return ("disabled", format!("{why}. Its messages wait until it is resumed."));
    }
    match health.breaker.standing(now) {
        Standing::Open { until } => {
            let meanwhile = match rules.breaker.map(|breaker| breaker.while_open) {
                Some(WhileOpen::DeadLetter) => "What comes meanwhile goes to the dead letters",
                Some(WhileOpen::Hold) | None => "Its messages wait",
            };
            ("tripped", format!("It kept failing and is left alone until {}. {meanwhile}.", Time(until)))
        }
        Standing::HalfOpen => {
            ("probing", "It kept failing; one request is let through to see if it is back.".to_owned())
        }
        Standing::Closed => match (health.failing_since, disable_at, health.permanent_streak) {
            (Some(since), Some(at), _) => (
                "failing",
                format!("No success since {}. If it still fails after {}, it is disabled.", Time(since), Time(at)),
            ),
            (Some(since), None, _) => ("failing", format!("No success since {}.", Time(since))),
            (None, _, 0) => ("healthy", "It takes its messages.".to_owned()),
            (None, _, streak) => {
                let limit = match rules.disable.permanent_streak {
                    Some(max) => format!("; at {max} it is disabled"),
                    None => String::new(),
                };
                ("refusing", format!("It refused the last {streak} messages for good{limit}."))
            }
        },
    }
}

fn reason_name(why: DisableReason) -> &'static str {
    crate::dispatch::reason_name(why)
}

/// Get how an endpoint fares.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/health",
    operation_id = "v1.endpoint.get-health", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = HealthOut), (status = 404, body = HttpErrorOut)))]
async fn health(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let backlog = Some(backlog_of(&app, &endpoint, None).await?);
    Ok(json(StatusCode::OK, &HealthOut { backlog, ..health_of(&api, &app, &endpoint).await? }))
}

/// Set an endpoint's health back: its breaker is closed, and its failures are forgotten.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/health/reset",
    operation_id = "v1.endpoint.reset-health", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = HealthOut), (status = 404, body = HttpErrorOut)))]
async fn reset(State(api): State<Arc<Api>>, app: InApp, query: Query, _: NoBody) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let before = app.store.health(&endpoint).await?;
    app.store.reset_health(&endpoint).await?;
    if matches!(before.breaker, Breaker::Open { .. }) {
        let id = api.ids.id_of(endpoint.key);
        tracing::info!(endpoint = id, "the endpoint's breaker was closed by a person");
        let words = "is tried again; its breaker was closed by a person";
        let lane = (endpoint.key, endpoint.app);
        api.alerts.tell(Alert::of_endpoint(&api.ids, lane, Some("recovered"), words, (api.clock)()));
    }
    Ok(json(StatusCode::OK, &health_of(&api, &app, &endpoint).await?))
}

/// Count what waits for an endpoint.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/backlog",
    operation_id = "v1.endpoint.get-backlog", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("since" = Option<Time>, Query, description = "Also count what was accepted at or after this moment"),
    ),
    responses((status = 200, body = BacklogOut), (status = 404, body = HttpErrorOut)))]
async fn backlog(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let since = query.time("since")?;
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    Ok(json(StatusCode::OK, &backlog_of(&app, &endpoint, since).await?))
}

/// Pause an endpoint. Its messages wait.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/pause",
    operation_id = "v1.endpoint.pause", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = HealthOut), (status = 404, body = HttpErrorOut)))]
async fn pause(State(api): State<Arc<Api>>, app: InApp, query: Query, _: NoBody) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let now = (api.clock)();
    let disabled = Some(Disabled { why: DisableReason::Manual, at: now });
    end_resume(&api, &app, &app.endpoint(&api).await?).await?;
    let endpoint = change(&api, &app, now, |old| old.disabled.or(disabled)).await?;
    Ok(json(StatusCode::OK, &health_of(&api, &app, &endpoint).await?))
}

/// Resume an endpoint, and choose what becomes of what has been waiting.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/resume",
    operation_id = "v1.endpoint.resume", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = ResumeIn,
    responses(
        (status = 200, body = HealthOut, description = "With `all`: it goes on at once"),
        (status = 202, body = TaskOut, description = "The backlog is sifted first, then it goes on"),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "It is not paused, or is being resumed already"),
        (status = 422, body = HttpValidationError),
    ))]
async fn resume(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let asked = if body.is_empty() { ResumeIn { deliver: Deliver::All, since: None } } else { parse(&body)? };
    let keep = asked.keep()?;
    let endpoint = app.endpoint(&api).await?;
    if let Some(task) = running_resume(&app, &endpoint).await? {
        let task = api.ids.id_of(task);
        let detail = format!("{task} is resuming it; wait for that, or cancel it");
        return Ok(json(StatusCode::CONFLICT, &HttpErrorOut { code: "conflict", detail: detail.into() }));
    }
    if keep == Keep::All {
        let endpoint = change(&api, &app, (api.clock)(), |_| None).await?;
        return Ok(json(StatusCode::OK, &health_of(&api, &app, &endpoint).await?));
    }
    if endpoint.disabled.is_none() {
        let detail = "The endpoint is not paused; pause it first, or cancel what waits for it".into();
        return Ok(json(StatusCode::CONFLICT, &HttpErrorOut { code: "conflict", detail }));
    }
    let kind = TaskKind::Resume { endpoint: endpoint.key.raw(), keep };
    background_tasks::start(&api, &app, kind, (&key, &body)).await
}

/// The task that is resuming an endpoint, if there is one.
async fn running_resume(app: &InApp, endpoint: &Endpoint) -> Result<Option<TaskKey>, Error> {
    let page = Page { from: None, order: Order::Descending, limit: 1_000 };
    let tasks = app.store.tasks().list(Some(TaskStatus::Running), vec!["resume"], page).await?;
    let resumes = |task: &Task| matches!(task.kind, TaskKind::Resume { endpoint: of, .. } if of == endpoint.key.raw());
    Ok(tasks.into_iter().find(resumes).map(|task| task.key))
}

/// Whoever says now whether an endpoint is to be disabled has the last word over a task that would enable it later.
pub(super) async fn end_resume(api: &Api, app: &InApp, endpoint: &Endpoint) -> Result<(), Error> {
    if let Some(task) = running_resume(app, endpoint).await? {
        app.store.tasks().cancel(task, (api.clock)()).await?;
    }
    Ok(())
}

async fn change(
    api: &Api,
    app: &InApp,
    now: Timestamp,
    disabled: impl Fn(&Endpoint) -> Option<Disabled>,
) -> Result<Endpoint, Error> {
    for _ in 0..TRIES_MAX {
        let old = app.endpoint(api).await?;
        let new = Endpoint { version: old.version + 1, disabled: disabled(&old), updated_at: now, ..old.clone() };
        if new.disabled == old.disabled {
            return Ok(old);
        }
        match app.store.put_endpoint(new.clone(), Expect::Version(old.version), None).await {
            Err(PutError::Changed) => continue,
            written => written?,
        }
        api.directory.changed(app.key());
        return Ok(new);
    }
    Err(PutError::Changed.into())
}

/// How often a change is begun anew when someone else is faster.
const TRIES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    #[test]
    fn how_an_endpoint_fares_is_one_word_and_a_sentence() {
        let later = NOW.plus(Duration::from_mins(5));
        let open = |until| Health { breaker: Breaker::Open { until, trips: 2 }, ..Health::default() };
        let failing = Health { failing_since: Some(NOW), ..Health::default() };
        let paused = |why| Some(Disabled { why, at: NOW });
        for (disabled, health, disable_at, word, part) in [
            (None, Health::default(), None, "healthy", "takes its messages"),
            (None, failing, None, "failing", "No success since 2026-01-01T00:00:00Z."),
            (None, failing, Some(later), "failing", "still fails after 2026-01-01T00:05:00Z"),
            (None, Health { permanent_streak: 3, ..Health::default() }, None, "refusing", "the last 3 messages"),
            (None, open(later), None, "tripped", "left alone until 2026-01-01T00:05:00Z"),
            (None, open(NOW), None, "probing", "one request"),
            (paused(DisableReason::Manual), open(later), None, "disabled", "on request"),
            (paused(DisableReason::Gone), failing, None, "disabled", "410"),
            (paused(DisableReason::Failing), failing, None, "disabled", "too long"),
            (paused(DisableReason::Quarantined), failing, None, "disabled", "refused"),
            (paused(DisableReason::Asked), failing, None, "disabled", "asked"),
        ] {
            let (state, sentence) = summary(disabled, health, &policy::Rules::default(), disable_at, NOW);
            assert_eq!(state, word, "{sentence}");
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    #[test]
    fn a_breaker_is_shown_as_it_stands() {
        let open = Breaker::Open { until: NOW, trips: 3 };
        let before = Timestamp::from_millis(NOW.as_millis() - 1);
        for (breaker, failures_max, now, state, trips) in [
            (Breaker::Closed { failures: 2 }, Some(20), NOW, "closed", 0),
            (Breaker::Closed { failures: 0 }, None, NOW, "off", 0),
            (open, Some(20), before, "open", 3),
            (open, Some(20), NOW, "half-open", 3),
        ] {
            let shown = BreakerOut::of(breaker, failures_max, now);
            assert_eq!((shown.state, shown.trips, shown.open_until.is_some()), (state, trips, state == "open"));
        }
    }

    #[test]
    fn a_moment_goes_with_since_and_with_nothing_else() {
        for (body, keep) in [
            ("{}", Some(Keep::All)),
            (r#"{"deliver":"all"}"#, Some(Keep::All)),
            (r#"{"deliver":"none"}"#, Some(Keep::None)),
            (r#"{"deliver":"newest-per-key"}"#, Some(Keep::NewestPerKey)),
            (r#"{"deliver":"since","since":"2026-01-01T00:00:00Z"}"#, Some(Keep::Since(NOW.as_millis()))),
            (r#"{"deliver":"since"}"#, None),
            (r#"{"since":"2026-01-01T00:00:00Z"}"#, None),
            (r#"{"deliver":"none","since":"2026-01-01T00:00:00Z"}"#, None),
            (r#"{"deliver":"newest"}"#, None),
            (r#"{"deliver":"all","which":1}"#, None),
        ] {
            let read = parse::<ResumeIn>(body.as_bytes()).and_then(ResumeIn::keep);
            assert_eq!(read.ok(), keep, "{body}");
        }
    }
}
