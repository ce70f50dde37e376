//! Operational endpoints: where operators are told what happens here.
//!
//! They are endpoints of an application that nobody sees, so that what they are told is stored, signed, tried again and
//! given up like any message (decision 21).

use super::{
    super::{
        Api,
        auth::InOperation,
        endpoint_headers::{self, EndpointHeadersIn, EndpointHeadersOut},
        endpoint_secrets::{self, EndpointSecretOut, EndpointSecretRotateIn},
        error::{Error, HttpErrorOut, HttpValidationError},
        extract::{JsonBytes, Query, parse},
        fields::{Description, Metadata, Rate, Strings, Uid},
        idempotency::{IdempotencyKey, json},
        page::{Asked, ListOut},
        time::Time,
    },
    EndpointIn, EndpointUpsertIn, EventTypes, SecretIn, make, replace,
};
use crate::{alerts::events, ids::IdCodec};
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
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperationalWebhookEndpointIn {
    #[schema(example = "https://example.com/operations")]
    url: String,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256, pattern = r"^[a-zA-Z0-9\-_.]+$")]
    uid: Option<Uid<EndpointKey>>,
    disabled: Option<bool>,
    /// Which operational events it gets: all, if absent or empty.
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Option<EventTypes>,
    /// The older name of `eventTypes`.
    #[schema(value_type = Option<Vec<String>>)]
    filter_types: Option<EventTypes>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    /// Requests per second.
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
    /// The older name of `throttleRate`.
    #[schema(value_type = Option<u16>, minimum = 1)]
    rate_limit: Option<Rate>,
    /// Made at random if absent.
    #[schema(value_type = Option<String>, example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    secret: Option<SecretIn>,
    /// Sent along with each event.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    headers: Option<Strings>,
}

/// Without secret and headers, which have operations of their own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperationalWebhookEndpointUpsertIn {
    #[schema(example = "https://example.com/operations")]
    url: String,
    #[schema(value_type = Option<String>)]
    description: Option<Description>,
    #[schema(value_type = Option<String>)]
    uid: Option<Uid<EndpointKey>>,
    disabled: Option<bool>,
    #[schema(value_type = Option<Vec<String>>)]
    event_types: Option<EventTypes>,
    #[schema(value_type = Option<Vec<String>>)]
    filter_types: Option<EventTypes>,
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    metadata: Option<Metadata>,
    #[schema(value_type = Option<u16>, minimum = 1)]
    throttle_rate: Option<Rate>,
    #[schema(value_type = Option<u16>, minimum = 1)]
    rate_limit: Option<Rate>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationalWebhookEndpointOut {
    #[schema(example = "ep_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    uid: Option<String>,
    url: String,
    description: String,
    disabled: bool,
    event_types: Option<Vec<String>>,
    filter_types: Option<Vec<String>>,
    metadata: BTreeMap<String, String>,
    throttle_rate: Option<u32>,
    rate_limit: Option<u32>,
    created_at: Time,
    updated_at: Time,
}

impl OperationalWebhookEndpointOut {
    fn of(ids: &IdCodec, endpoint: Endpoint) -> Self {
        Self {
            id: ids.id_of(endpoint.key),
            uid: endpoint.uid,
            url: endpoint.url,
            description: endpoint.description,
            disabled: endpoint.disabled.is_some(),
            event_types: endpoint.event_types.clone(),
            filter_types: endpoint.event_types,
            metadata: endpoint.metadata,
            throttle_rate: endpoint.rate_limit,
            rate_limit: endpoint.rate_limit,
            created_at: Time(endpoint.created_at),
            updated_at: Time(endpoint.updated_at),
        }
    }
}

impl From<OperationalWebhookEndpointIn> for EndpointIn {
    fn from(wanted: OperationalWebhookEndpointIn) -> Self {
        Self {
            url: wanted.url,
            description: wanted.description,
            uid: wanted.uid,
            disabled: wanted.disabled,
            event_types: wanted.event_types,
            filter_types: wanted.filter_types,
            metadata: wanted.metadata,
            throttle_rate: wanted.throttle_rate,
            rate_limit: wanted.rate_limit,
            secret: wanted.secret,
            headers: wanted.headers,
            ..Self::default()
        }
    }
}

impl From<OperationalWebhookEndpointUpsertIn> for EndpointUpsertIn {
    fn from(wanted: OperationalWebhookEndpointUpsertIn) -> Self {
        Self {
            url: wanted.url,
            description: wanted.description,
            uid: wanted.uid,
            disabled: wanted.disabled,
            event_types: wanted.event_types,
            filter_types: wanted.filter_types,
            metadata: wanted.metadata,
            throttle_rate: wanted.throttle_rate,
            rate_limit: wanted.rate_limit,
            ..Self::default()
        }
    }
}

/// Whoever asks for something that is never sent would wait for it in vain.
fn check_sent(wanted: Option<&[String]>) -> Result<(), Error> {
    for name in wanted.unwrap_or_default() {
        if !events::NAMES.contains(&name.as_str()) {
            let known = events::NAMES.join(", ");
            return Err(Error::invalid(["eventTypes"], format!("`{name}` is none of the operational events: {known}")));
        }
    }
    Ok(())
}

/// List the operational endpoints.
#[utoipa::path(get, path = "/api/v1/operational-webhook/endpoint",
    operation_id = "v1.operational-webhook.endpoint.list", tag = "Operational Webhook Endpoint",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<OperationalWebhookEndpointOut>)))]
async fn list(State(api): State<Arc<Api>>, InOperation(app): InOperation, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    query.finish()?;
    let rows = app.store.endpoints(asked.page()).await?;
    let show = |row| OperationalWebhookEndpointOut::of(&api.ids, row);
    Ok(json(StatusCode::OK, &asked.answer(rows, &api.ids, |row| row.key, show)))
}

/// Create an operational endpoint.
#[utoipa::path(post, path = "/api/v1/operational-webhook/endpoint",
    operation_id = "v1.operational-webhook.endpoint.create", tag = "Operational Webhook Endpoint",
    params(("idempotency-key" = Option<String>, Header)),
    request_body = OperationalWebhookEndpointIn,
    responses(
        (status = 201, body = OperationalWebhookEndpointOut),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn create(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted = EndpointIn::from(parse::<OperationalWebhookEndpointIn>(&body)?);
    let made = wanted.wanted(&api.url_rules(), api.settings.default_signature_type, &mut *api.rng())?;
    check_sent(made.0.event_types.as_deref())?;
    make(&api, &app, made, (&key, &body), OperationalWebhookEndpointOut::of).await
}

/// Get an operational endpoint.
#[utoipa::path(get, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}",
    operation_id = "v1.operational-webhook.endpoint.get", tag = "Operational Webhook Endpoint",
    params(("endpoint_id" = String, Path, description = "The endpoint's id or uid")),
    responses((status = 200, body = OperationalWebhookEndpointOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, InOperation(app): InOperation, query: Query) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &OperationalWebhookEndpointOut::of(&api.ids, app.endpoint(&api).await?)))
}

/// Update an operational endpoint, or create it.
#[utoipa::path(put, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}",
    operation_id = "v1.operational-webhook.endpoint.upsert", tag = "Operational Webhook Endpoint",
    params(("endpoint_id" = String, Path, description = "The endpoint's id or uid")),
    request_body = OperationalWebhookEndpointUpsertIn,
    responses(
        (status = 200, body = OperationalWebhookEndpointOut, description = "It was updated"),
        (status = 201, body = OperationalWebhookEndpointOut, description = "It was created"),
        (status = 409, body = HttpErrorOut, description = "The uid is in use"),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted = EndpointUpsertIn::from(parse::<OperationalWebhookEndpointUpsertIn>(&body)?);
    let wanted = wanted.wanted(&api.url_rules())?;
    check_sent(wanted.event_types.as_deref())?;
    replace(&api, &app, wanted, OperationalWebhookEndpointOut::of).await
}

/// Delete an operational endpoint.
#[utoipa::path(delete, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}",
    operation_id = "v1.operational-webhook.endpoint.delete", tag = "Operational Webhook Endpoint",
    params(("endpoint_id" = String, Path, description = "The endpoint's id or uid")),
    responses((status = 204), (status = 404, body = HttpErrorOut)))]
async fn delete(State(api): State<Arc<Api>>, InOperation(app): InOperation, query: Query) -> Result<StatusCode, Error> {
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let deleted = app.store.delete_endpoint(endpoint.key, (api.clock)()).await?;
    api.directory.changed(app.key());
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(Error::NotFound) }
}

/// Get the headers of an operational endpoint.
#[utoipa::path(get, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}/headers",
    operation_id = "v1.operational-webhook.endpoint.get-headers", tag = "Operational Webhook Endpoint",
    params(("endpoint_id" = String, Path, description = "The endpoint's id or uid")),
    responses((status = 200, body = EndpointHeadersOut), (status = 404, body = HttpErrorOut)))]
async fn get_headers(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    query: Query,
) -> Result<Response, Error> {
    query.finish()?;
    let private = api.open(&app.endpoint(&api).await?)?;
    Ok(json(StatusCode::OK, &EndpointHeadersOut::of(private.headers)))
}

/// Set the headers of an operational endpoint.
#[utoipa::path(put, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}/headers",
    operation_id = "v1.operational-webhook.endpoint.set-headers", tag = "Operational Webhook Endpoint",
    params(("endpoint_id" = String, Path, description = "The endpoint's id or uid")),
    request_body = EndpointHeadersIn,
    responses((status = 204), (status = 404, body = HttpErrorOut), (status = 422, body = HttpValidationError)))]
async fn set_headers(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    query.finish()?;
    let headers = endpoint_headers::check(parse::<EndpointHeadersIn>(&body)?.headers.0)?;
    endpoint_headers::write(&api, &app, |_| Ok(headers.clone())).await
}

/// Get the signing secret of an operational endpoint.
#[utoipa::path(get, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}/secret",
    operation_id = "v1.operational-webhook.endpoint.get-secret", tag = "Operational Webhook Endpoint",
    params(("endpoint_id" = String, Path, description = "The endpoint's id or uid")),
    responses((status = 200, body = EndpointSecretOut), (status = 404, body = HttpErrorOut)))]
async fn get_secret(
    State(api): State<Arc<Api>>,
    InOperation(app): InOperation,
    query: Query,
) -> Result<Response, Error> {
    query.finish()?;
    Ok(json(StatusCode::OK, &endpoint_secrets::current(&api, &app).await?))
}

/// Rotate the signing secret of an operational endpoint.
///
/// The old one goes on signing beside the new one for the grace period.
#[utoipa::path(post, path = "/api/v1/operational-webhook/endpoint/{endpoint_id}/secret/rotate",
    operation_id = "v1.operational-webhook.endpoint.rotate-secret", tag = "Operational Webhook Endpoint",
    params(
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
    InOperation(app): InOperation,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    query.finish()?;
    endpoint_secrets::rotate_now(&api, &app, &key, &body).await?;
    Ok(StatusCode::NO_CONTENT)
}
