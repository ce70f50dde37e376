//! Sending an endpoint once more what failed, what it missed, or what is asked for; and calling back what waits for it.
//!
//! All of it is work for a task that survives a restart: the answer says only that it was taken on.

use super::{
    Api,
    auth::InApp,
    background_tasks::{self, TaskOut},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse},
    fields::{Channel, Several, TypeName},
    idempotency::{IdempotencyKey, conclude},
    message_in::Tag,
    status::{MessageStatus, StatusClass},
    time::Time,
};
use crate::tokens::Capability;
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_store::{Answer, ReplayFilter, TaskKind, TaskStatus};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(recover))
        .routes(routes!(replay_missing))
        .routes(routes!(bulk_replay))
        .routes(routes!(cancel))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverIn {
    since: Time,
    /// Now, if absent.
    until: Option<Time>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BulkReplayIn {
    since: Time,
    /// Now, if absent.
    until: Option<Time>,
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Option<Several<TypeName, EVENT_TYPES_MAX>>,
    #[schema(value_type = Option<String>)]
    channel: Option<Channel>,
    #[schema(value_type = Option<String>)]
    tag: Option<Tag>,
    /// Only those that stand so with the endpoint.
    #[schema(value_type = Option<u8>, maximum = 4)]
    status: Option<MessageStatus>,
    /// Only those whose last answer was of these hundreds; 0 for none.
    #[schema(value_type = Option<u16>)]
    status_code_class: Option<StatusClass>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelMsgsIn {
    /// Everything older that still waits is called back.
    created_before: Time,
}

/// The time span meant, which has a beginning before its end.
fn span(since: Time, until: Option<Time>, now: Timestamp) -> Result<(i64, i64), Error> {
    let until = until.map_or(now, |until| until.0);
    if since.0 >= until {
        return Err(Error::invalid(["since"], "must be before `until`, or before now if that is not given"));
    }
    Ok((since.0.as_millis(), until.as_millis()))
}

/// Resend all messages of a time span that failed to reach an endpoint.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/recover",
    operation_id = "v1.endpoint.recover", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = RecoverIn,
    responses(
        (status = 202, body = TaskOut, description = "The work has been taken on"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn recover(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::CreateAttempts)?;
    query.finish()?;
    let RecoverIn { since, until } = parse(&body)?;
    let (since, until) = span(since, until, (api.clock)())?;
    let endpoint = app.endpoint(&api).await?.key.raw();
    let kind = TaskKind::Recover { endpoint, since, until };
    background_tasks::start(&api, &app, kind, (&key, &body)).await
}

/// Send all messages of a time span that an endpoint would get today and was never sent.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/replay-missing",
    operation_id = "v1.endpoint.replay-missing", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = RecoverIn,
    responses(
        (status = 202, body = TaskOut, description = "The work has been taken on"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn replay_missing(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::CreateAttempts)?;
    query.finish()?;
    let RecoverIn { since, until } = parse(&body)?;
    let (since, until) = span(since, until, (api.clock)())?;
    let endpoint = app.endpoint(&api).await?;
    let kind = TaskKind::ReplayMissing {
        endpoint: endpoint.key.raw(),
        since,
        until,
        event_types: endpoint.event_types,
        channels: endpoint.channels,
    };
    background_tasks::start(&api, &app, kind, (&key, &body)).await
}

/// Send an endpoint all its messages that match once more, delivered or not.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/bulk-replay",
    operation_id = "v1.endpoint.bulk-replay", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = BulkReplayIn,
    responses(
        (status = 202, body = TaskOut, description = "The work has been taken on"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn bulk_replay(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::CreateAttempts)?;
    query.finish()?;
    let asked: BulkReplayIn = parse(&body)?;
    let (since, until) = span(asked.since, asked.until, (api.clock)())?;
    let filter = ReplayFilter {
        since,
        until,
        event_types: asked.event_types.into_iter().flat_map(|list| list.0).map(|name| name.0).collect(),
        channel: asked.channel.map(|channel| channel.0),
        tag: asked.tag.map(|tag| tag.0),
        state: asked.status.map(MessageStatus::state),
        status_class: asked.status_code_class.map(|class| class.hundreds()),
    };
    let endpoint = app.endpoint(&api).await?.key.raw();
    let kind = TaskKind::BulkReplay { endpoint, filter };
    background_tasks::start(&api, &app, kind, (&key, &body)).await
}

/// Call back everything older that still waits for an endpoint. It becomes dead letters, and can be replayed.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/cancel-msgs",
    operation_id = "v1.endpoint.cancel-msgs", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = CancelMsgsIn,
    responses((status = 204), (status = 404, body = HttpErrorOut), (status = 422, body = HttpValidationError)))]
async fn cancel(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let CancelMsgsIn { created_before } = parse(&body)?;
    // A time ahead means all that there is now: the task's own key is the end of it. By the clock, what came in this very
    // millisecond would be left out.
    let before = created_before.0;
    let endpoint = app.endpoint(&api).await?.key.raw();
    let task =
        background_tasks::new_task(&api, &app, TaskKind::Cancel { endpoint, before: before.as_millis() }).await?;
    let prepared = Answer { status: StatusCode::NO_CONTENT.as_u16(), body: bytes::Bytes::new() };
    let remember = key.remember(&app.principal, &body, &prepared);
    let written = app.store.start_task(task.clone(), remember).await;
    // Whoever calls messages back wants to know that none of them goes out any more. Only where there are very many is
    // the rest done behind.
    let began = (api.clock)();
    while written.is_ok() && (api.clock)().since(began) < CANCEL_WAIT_MAX {
        let state = app.store.advance_task(&task, (api.clock)()).await?;
        if state.is_none_or(|task| task.status != TaskStatus::Running) {
            break;
        }
    }
    api.tasks.wake();
    conclude(written, prepared)
}

const EVENT_TYPES_MAX: usize = 250;
const CANCEL_WAIT_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_begins_before_it_ends() {
        let now: Time = "2026-01-31T00:00:00Z".parse().unwrap();
        for (body, accepted) in [
            (r#"{"since":"2026-01-01T00:00:00Z"}"#, true),
            (r#"{"since":"2026-01-01T00:00:00Z","until":"2026-01-02T00:00:00Z"}"#, true),
            (r#"{"since":"2026-01-01T00:00:00Z","until":null}"#, true),
            (r#"{"since":"2026-02-01T00:00:00Z"}"#, false),
            (r#"{"since":"2026-01-02T00:00:00Z","until":"2026-01-01T00:00:00Z"}"#, false),
            (r#"{"since":"yesterday"}"#, false),
            (r#"{"since":"2026-01-01T00:00:00"}"#, false),
            (r#"{}"#, false),
        ] {
            let read = parse::<RecoverIn>(body.as_bytes()).and_then(|asked| span(asked.since, asked.until, now.0));
            assert_eq!(read.is_ok(), accepted, "{body}");
        }
    }
}
