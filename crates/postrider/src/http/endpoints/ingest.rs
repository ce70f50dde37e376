//! Endpoints of sources: where the webhooks go that come to a source. They get all of them, with the same rules as any.

use super::{
    super::{
        Api,
        auth::InSource,
        endpoint_headers::{self, EndpointHeadersIn, EndpointHeadersOut},
        endpoint_secrets::{self, EndpointSecretOut, EndpointSecretRotateIn},
        error::{Error, HttpErrorOut, HttpValidationError},
        extract::{JsonBytes, Query, parse},
        fields::{Description, Metadata, Rate, Strings, Uid},
        idempotency::{IdempotencyKey, json},
        page::{Asked, ListOut},
        time::Time,
    },
    EndpointIn, EndpointUpsertIn, SecretIn, make, replace,
};
use crate::ids::IdCodec;
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::EndpointKey;
use postrider_store::{Endpoint, Order};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, put, delete))
        .routes(routes!(get_headers, set_headers))
        .routes(routes!(get_secret))
        .routes(routes!(rotate_secret))
        .routes(routes!(get_transformation, patch_transformation))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngestEndpointIn {
    #[schema(example = "https://example.com/webhooks")]
    url: String,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$")]
    uid: Option<Uid<EndpointKey>>,
    disabled: Option<bool>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    /// Requests per second.
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
    /// Made at random if absent.
    #[schema(value_type = Option<String>, example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    secret: Option<SecretIn>,
    /// Sent along with each webhook.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    headers: Option<Strings>,
}

/// Without secret and headers, which have operations of their own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngestEndpointUpsertIn {
    #[schema(example = "https://example.com/webhooks")]
    url: String,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[schema(value_type = Option<String>)]
    uid: Option<Uid<EndpointKey>>,
    disabled: Option<bool>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngestEndpointOut {
    #[schema(example = "ep_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    uid: Option<String>,
    url: String,
    description: String,
    disabled: bool,
    metadata: BTreeMap<String, String>,
    throttle_rate: Option<u32>,
    created_at: Time,
    updated_at: Time,
}

impl IngestEndpointOut {
    fn of(ids: &IdCodec, endpoint: Endpoint) -> Self {
        Self {
            id: ids.id_of(endpoint.key),
            uid: endpoint.uid,
            url: endpoint.url,
            description: endpoint.description,
            disabled: endpoint.disabled.is_some(),
            metadata: endpoint.metadata,
            throttle_rate: endpoint.rate_limit,
            created_at: Time(endpoint.created_at),
            updated_at: Time(endpoint.updated_at),
        }
    }
}

impl From<IngestEndpointIn> for EndpointIn {
    fn from(wanted: IngestEndpointIn) -> Self {
        let IngestEndpointIn { url, description, uid, disabled, metadata, throttle_rate, secret, headers } = wanted;
        Self { url, description, uid, disabled, metadata, throttle_rate, secret, headers, ..Self::default() }
    }
}

impl From<IngestEndpointUpsertIn> for EndpointUpsertIn {
    fn from(wanted: IngestEndpointUpsertIn) -> Self {
        let IngestEndpointUpsertIn { url, description, uid, disabled, metadata, throttle_rate } = wanted;
        Self { url, description, uid, disabled, metadata, throttle_rate, ..Self::default() }
    }
}

/// List the endpoints of a source.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}/endpoint", operation_id = "v1.ingest.endpoint.list",
    tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<IngestEndpointOut>)))]
async fn list(State(api): State<Arc<Api>>, source: InSource, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    query.finish()?;
    let rows = source.app.store.endpoints(asked.page()).await?;
    let show = |row| IngestEndpointOut::of(&api.ids, row);
    Ok(json(StatusCode::OK, &asked.answer(rows, &api.ids, |row| row.key, show)))
}

/// Create an endpoint of a source.
#[utoipa::path(post, path = "/ingest/api/v1/source/{source_id}/endpoint", operation_id = "v1.ingest.endpoint.create",
    tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = IngestEndpointIn,
    responses(
        (status = 201, body = IngestEndpointOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    source: InSource,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted = EndpointIn::from(parse::<IngestEndpointIn>(&body)?);
    let made = wanted.wanted(&api.url_rules(), api.settings.default_signature_type, &mut *api.rng())?;
    make(&api, &source.app, made, (&key, &body), IngestEndpointOut::of).await
}

/// Get an endpoint of a source.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}",
    operation_id = "v1.ingest.endpoint.get", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = IngestEndpointOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &IngestEndpointOut::of(&api.ids, source.app.endpoint(&api).await?)))
}

/// Update an endpoint of a source, or create it.
#[utoipa::path(put, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}",
    operation_id = "v1.ingest.endpoint.upsert", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = IngestEndpointUpsertIn,
    responses(
        (status = 200, body = IngestEndpointOut, description = "It was updated"),
        (status = 201, body = IngestEndpointOut, description = "It was created"),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    source: InSource,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted = EndpointUpsertIn::from(parse::<IngestEndpointUpsertIn>(&body)?);
    replace(&api, &source.app, wanted.wanted(&api.url_rules())?, IngestEndpointOut::of).await
}

/// Delete an endpoint of a source.
#[utoipa::path(delete, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}",
    operation_id = "v1.ingest.endpoint.delete", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<StatusCode, Error> {
    query.finish()?;
    let endpoint = source.app.endpoint(&api).await?;
    let deleted = source.app.store.delete_endpoint(endpoint.key, (api.clock)()).await?;
    api.directory.changed(source.app.key());
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(Error::NotFound) }
}

/// Get the headers of an endpoint of a source.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.ingest.endpoint.get-headers", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = EndpointHeadersOut), (status = 404, body = HttpErrorOut)))]
async fn get_headers(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let private = api.open(&source.app.endpoint(&api).await?)?;
    Ok(json(StatusCode::OK, &EndpointHeadersOut::of(private.headers)))
}

/// Set the headers of an endpoint of a source.
#[utoipa::path(put, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.ingest.endpoint.set-headers", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointHeadersIn,
    responses((status = 204), (status = 404, body = HttpErrorOut), (status = 422, body = HttpValidationError)))]
async fn set_headers(
    State(api): State<Arc<Api>>,
    source: InSource,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    query.finish()?;
    let headers = endpoint_headers::check(parse::<EndpointHeadersIn>(&body)?.headers.0)?;
    endpoint_headers::write(&api, &source.app, |_| Ok(headers.clone())).await
}

/// Get the signing secret of an endpoint of a source.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/secret",
    operation_id = "v1.ingest.endpoint.get-secret", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = EndpointSecretOut), (status = 404, body = HttpErrorOut)))]
async fn get_secret(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &endpoint_secrets::current(&api, &source.app).await?))
}

/// Rotate the signing secret of an endpoint of a source.
///
/// The old one goes on signing beside the new one for the grace period.
#[utoipa::path(post, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/secret/rotate",
    operation_id = "v1.ingest.endpoint.rotate-secret", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = EndpointSecretRotateIn,
    responses(
        (status = 204, description = "It was rotated"),
        (status = 400, body = HttpErrorOut, description = "Too many old secrets still sign"),
        (status = 422, body = HttpValidationError),
    ))]
async fn rotate_secret(
    State(api): State<Arc<Api>>,
    source: InSource,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    query.finish()?;
    endpoint_secrets::rotate_now(&api, &source.app, &key, &body).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get the transformation of an endpoint: there are none here.
#[utoipa::path(get, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/transformation",
    operation_id = "v1.ingest.endpoint.transformation.get", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 404, body = HttpErrorOut), (status = 501, body = HttpErrorOut)))]
async fn get_transformation(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<Response, Error> {
    query.finish()?;
    source.app.endpoint(&api).await?;
    Err(Error::NotImplemented(NO_TRANSFORMATIONS))
}

/// Set the transformation of an endpoint: there are none here.
#[utoipa::path(patch, path = "/ingest/api/v1/source/{source_id}/endpoint/{endpoint_id}/transformation",
    operation_id = "v1.ingest.endpoint.transformation.patch", tag = "Ingest Endpoint",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 404, body = HttpErrorOut), (status = 501, body = HttpErrorOut)))]
async fn patch_transformation(State(api): State<Arc<Api>>, source: InSource, query: Query) -> Result<Response, Error> {
    query.finish()?;
    source.app.endpoint(&api).await?;
    Err(Error::NotImplemented(NO_TRANSFORMATIONS))
}

const NO_TRANSFORMATIONS: &str = "Webhooks go to endpoints as they came; there are no transformations";
