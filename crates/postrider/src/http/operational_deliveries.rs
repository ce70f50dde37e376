//! What became of the events that operational endpoints were sent: their attempts, what was given up, and sending it again.
//!
//! The application that these belong to is hidden, so that the ordinary operations do not reach it. These are the same ones,
//! at that application; whoever may call them needs a token for all applications.

use super::{
    Api,
    attempts::{self, MessageAttemptOut},
    auth::InOperation,
    dead_letters::{self, DeadLetterOut, ReplayedOut},
    error::{Error, HttpErrorOut},
    extract::{NoBody, Query},
    idempotency::IdempotencyKey,
    page::ListOut,
    time::Time,
};
use axum::{extract::State, response::Response};
use std::sync::Arc;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list_attempts)).routes(routes!(list_dead_letters)).routes(routes!(replay))
}

/// List the attempts to an operational endpoint, newest first.
#[utoipa::path(get, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}/attempt",
    operation_id = "v1.operational-webhook.endpoint.list-attempts", tag = "Operational Webhook Endpoint",
    params(
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("status" = Option<u8>, Query, maximum = 4),
        ("status_code_class" = Option<u16>, Query, description = "0 (no answer), 100, 200, 300, 400 or 500"),
        ("event_types" = Option<Vec<String>>, Query),
        ("channel" = Option<String>, Query),
        ("tag" = Option<String>, Query),
        ("before" = Option<Time>, Query),
        ("after" = Option<Time>, Query, description = "Ninety days back if not given"),
        ("with_content" = Option<bool>, Query),
        ("with_msg" = Option<bool>, Query, description = "Whether to show the event too, without its payload"),
        ("expanded_statuses" = Option<bool>, Query),
    ),
    responses((status = 200, body = ListOut<MessageAttemptOut>), (status = 404, body = HttpErrorOut)))]
async fn list_attempts(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    query: Query,
) -> Result<Response, Error> {
    attempts::to_endpoint(&api, &app, query).await
}

/// List the operational events that were given up, newest first.
#[utoipa::path(get, path = "/api/v1/operational-webhook/dead-letter",
    operation_id = "v1.operational-webhook.dead-letter.list", tag = "Operational Webhook Endpoint",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("endpoint_id" = Option<String>, Query, description = "An operational endpoint's id or uid"),
        ("event_types" = Option<Vec<String>>, Query),
        ("reason" = Option<String>, Query,
            description = "permanent, exhausted, expired, cancelled, breaker or endpoint-gone"),
        ("status_code" = Option<u16>, Query, description = "The last answer's status; 0 for none"),
        ("since" = Option<Time>, Query, description = "Given up at or after this moment"),
        ("until" = Option<Time>, Query, description = "Given up before this moment"),
    ),
    responses((status = 200, body = ListOut<DeadLetterOut>)))]
async fn list_dead_letters(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    query: Query,
) -> Result<Response, Error> {
    dead_letters::of(&api, &app, query).await
}

/// Replay an operational event that was given up. Replaying it twice sends it once.
#[utoipa::path(post, path = "/api/v1/operational-webhook/dead-letter/{msg_id}/endpoint/{endpoint_id}/replay",
    operation_id = "v1.operational-webhook.dead-letter.replay", tag = "Operational Webhook Endpoint",
    params(
        ("msg_id" = String, Path, description = "The event's id"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = ReplayedOut, description = "It is on its way again"),
        (status = 400, body = HttpErrorOut, description = "The payload is gone"),
        (status = 404, body = HttpErrorOut, description = "There is no such dead letter"),
        (status = 409, body = HttpErrorOut, description = "Its endpoint was deleted"),
    ))]
async fn replay(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    key: IdempotencyKey,
    query: Query,
    _: NoBody,
) -> Result<Response, Error> {
    query.finish()?;
    dead_letters::replay_one(&api, &app, &key).await
}
