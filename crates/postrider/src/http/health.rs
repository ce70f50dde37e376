//! Tells whoever balances load that this server answers.

use super::{Api, error::Error};
use axum::extract::State;
use http::StatusCode;
use postrider_store::StoreError;
use std::{sync::Arc, time::Duration};
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get, head)).routes(routes!(ping)).routes(routes!(live)).routes(routes!(ready))
}

/// Check that the server is up.
#[utoipa::path(get, path = "/api/v1/health", operation_id = "v1.health.get", tag = "Health", security(()),
    responses((status = 204, description = "It is"), (status = 503, description = "It cannot reach its database")))]
async fn get(State(api): State<Arc<Api>>) -> Result<StatusCode, Error> {
    check(&api).await
}

/// Check that the server is up, with a HEAD request.
#[utoipa::path(head, path = "/api/v1/health", operation_id = "v1.health.head", tag = "Health", security(()),
    responses((status = 204, description = "It is"), (status = 503, description = "It cannot reach its database")))]
async fn head(State(api): State<Arc<Api>>) -> Result<StatusCode, Error> {
    check(&api).await
}

/// Check that the server is up, by the older path.
#[utoipa::path(get, path = "/api/v1/health/ping", operation_id = "v1.health.ping", tag = "Health", security(()),
    responses((status = 204, description = "It is"), (status = 503, description = "It cannot reach its database")))]
async fn ping(State(api): State<Arc<Api>>) -> Result<StatusCode, Error> {
    check(&api).await
}

/// Check that the process answers, whatever else may be wrong.
#[utoipa::path(get, path = "/api/v1/health/live", operation_id = "v1.health.live", tag = "Health", security(()),
    responses((status = 204, description = "It does")))]
async fn live() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Check that the server does its work: it reaches its database, and nothing that is due is left lying.
#[utoipa::path(get, path = "/api/v1/health/ready", operation_id = "v1.health.ready", tag = "Health", security(()),
    responses((status = 204, description = "It does"), (status = 503, description = "It does not")))]
async fn ready(State(api): State<Arc<Api>>) -> Result<StatusCode, Error> {
    if api.alerts.watch.is_stuck() {
        return Err(Error::Unavailable { retry_after: Duration::from_secs(5) });
    }
    check(&api).await
}

/// A balancer waits no longer for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A node that cannot reach its database can take nothing in, and others can: whoever balances load is to turn to them.
/// Any other trouble of the store is all nodes' alike, and turning away from this one would not help.
async fn check(api: &Api) -> Result<StatusCode, Error> {
    match tokio::time::timeout(PATIENCE, api.records.time()).await {
        Ok(Err(fault @ (StoreError::Unreachable(_) | StoreError::Closed))) => Err(fault.into()),
        Ok(Ok(_) | Err(StoreError::Busy | StoreError::Full | StoreError::Database(_) | StoreError::Deposed)) => {
            Ok(StatusCode::NO_CONTENT)
        }
        Err(_) => Err(Error::Unavailable { retry_after: Duration::from_secs(1) }),
    }
}
