//! Removing the contents of many messages for good.

use super::{
    Api,
    auth::InApp,
    background_tasks::{self, TaskOut},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse},
    fields::{Several, TypeName},
    idempotency::{IdempotencyKey, answer, conclude},
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_store::TaskKind;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(many)).routes(routes!(all))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkExpungeContentsIn {
    /// Ids or eventIds of messages.
    #[schema(value_type = Vec<String>)]
    #[serde(default)]
    ids: Option<Several<TypeName, IDS_MAX>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct BulkExpungeContentsOut {
    results: BTreeMap<String, BulkExpungeStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BulkExpungeStatus {
    Expunged,
    NotFound,
}

/// Remove the payloads of these messages, for good.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg/bulk-expunge",
    operation_id = "v1.message.bulk-expunge-content", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = BulkExpungeContentsIn,
    responses((status = 200, body = BulkExpungeContentsOut), (status = 422, body = HttpValidationError)))]
async fn many(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require_environment()?;
    query.finish()?;
    let asked: BulkExpungeContentsIn = parse(&body)?;
    let mut results = BTreeMap::new();
    let mut found = Vec::new();
    for TypeName(id) in asked.ids.into_iter().flat_map(|ids| ids.0) {
        let message = match api.ids.by(&id) {
            Some(by) => app.store.message(by).await?,
            None => None,
        };
        match message {
            Some(message) => found.push((id, message.key)),
            None => drop(results.insert(id, BulkExpungeStatus::NotFound)),
        }
    }
    let keys = found.iter().map(|(_, key)| *key).collect();
    let expunged = app.store.expunge_messages(keys).await?;
    for ((id, _), expunged) in found.into_iter().zip(expunged) {
        results.insert(id, if expunged { BulkExpungeStatus::Expunged } else { BulkExpungeStatus::NotFound });
    }
    // Doing it twice does no harm, so that the answer may be kept after the deed.
    let prepared = answer(StatusCode::OK, &BulkExpungeContentsOut { results });
    let written = match key.remember(&app.principal, &body, &prepared) {
        Some(remember) => api.records.remember(remember, (api.clock)()).await,
        None => Ok(()),
    };
    conclude(written, prepared)
}

/// Remove the contents of all messages of an application, and of the answers to them, for good.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/msg/expunge-all-contents",
    operation_id = "v1.message.expunge-all-contents", tag = "Message",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    responses((status = 202, body = TaskOut, description = "The work has been taken on"),
        (status = 404, body = HttpErrorOut)))]
async fn all(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    _: NoBody,
) -> Result<Response, Error> {
    app.require_environment()?;
    query.finish()?;
    background_tasks::start(&api, &app, TaskKind::Purge, (&key, &[])).await
}

const IDS_MAX: usize = 1_000;
