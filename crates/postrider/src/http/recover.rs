//! Sends an endpoint once more what failed to reach it, as a task that survives a restart.

use super::{
    Api,
    auth::InApp,
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse},
    idempotency::{IdempotencyKey, answer, conclude},
    time::Time,
};
use crate::tokens::Capability;
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_store::{Task, TaskKey, TaskKind, TaskStatus};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(recover))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverIn {
    since: Time,
    /// Now, if absent.
    until: Option<Time>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoverOut {
    #[schema(example = "qtask_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    status: BackgroundTaskStatus,
    #[schema(example = "endpoint.recover")]
    task: &'static str,
    updated_at: Time,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackgroundTaskStatus {
    Running,
    Finished,
}

impl RecoverIn {
    /// The time span meant, which has a beginning before its end.
    fn span(self, now: Timestamp) -> Result<(Timestamp, Timestamp), Error> {
        let until = self.until.map_or(now, |until| until.0);
        if self.since.0 >= until {
            return Err(Error::invalid(["since"], "must be before `until`, or before now if that is not given"));
        }
        Ok((self.since.0, until))
    }
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
        (status = 202, body = RecoverOut, description = "The work has been taken on"),
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
    let now = (api.clock)();
    let (since, until) = parse::<RecoverIn>(&body)?.span(now)?;
    let endpoint = app.endpoint(&api).await?.key;
    let task = Task {
        key: TaskKey(api.store.mint(now)),
        app: app.key(),
        kind: TaskKind::Recover { endpoint: endpoint.raw(), since: since.as_millis(), until: until.as_millis() },
        total: None,
        done: 0,
        changed: 0,
        status: TaskStatus::Running,
        created_at: now,
        updated_at: now,
    };
    let prepared = answer(
        StatusCode::ACCEPTED,
        &RecoverOut {
            id: api.ids.id_of(task.key),
            status: BackgroundTaskStatus::Running,
            task: "endpoint.recover",
            updated_at: Time(now),
        },
    );
    let remember = key.remember(&app.principal, &body, &prepared);
    let written = api.store.start_task(task, remember).await;
    api.tasks.wake();
    conclude(written, prepared)
}

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
            let read = parse::<RecoverIn>(body.as_bytes()).and_then(|span| span.span(now.0));
            assert_eq!(read.is_ok(), accepted, "{body}");
        }
    }
}
