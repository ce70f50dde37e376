//! Tells whoever balances load that this server answers.

use super::Api;
use http::StatusCode;
use std::sync::Arc;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get, head)).routes(routes!(ping))
}

/// Check that the server is up.
#[utoipa::path(get, path = "/api/v1/health", operation_id = "v1.health.get", tag = "Health", security(()),
    responses((status = 204, description = "It is")))]
async fn get() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Check that the server is up, with a HEAD request.
#[utoipa::path(head, path = "/api/v1/health", operation_id = "v1.health.head", tag = "Health", security(()),
    responses((status = 204, description = "It is")))]
async fn head() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Check that the server is up, by the older path.
#[utoipa::path(get, path = "/api/v1/health/ping", operation_id = "v1.health.ping", tag = "Health", security(()),
    responses((status = 204, description = "It is")))]
async fn ping() -> StatusCode {
    StatusCode::NO_CONTENT
}
