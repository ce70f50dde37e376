//! API keys: opaque, limited to what they are for, and ended one by one.

use super::{
    Api,
    auth::Environment,
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse, path_params},
    fields::{Several, Title},
    idempotency::json,
    page::{Asked, ListOut},
    time::Time,
};
use crate::{credentials::scopes::Scope, ids::IdCodec};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{ApiKey, ApiKeyKey, Order, PutError};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get))
        .routes(routes!(revoke))
        .routes(routes!(rotate))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeyIn {
    /// For people, to know it again.
    #[schema(value_type = String, min_length = 1, example = "billing service")]
    name: Title,
    /// `ingest`, `read`, `manage`, `replay`, `admin`. None includes another, but for `admin`, which includes all.
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 5, example = json!(["ingest"]))]
    scopes: Several<Scope, 5>,
    /// Only this application, by its id or uid; not with `admin`.
    app_id: Option<String>,
    /// It never expires, if absent.
    #[schema(value_type = Option<Time>)]
    expires_at: Option<Time>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeyRotateIn {
    /// For how many seconds the old key goes on working; a day if absent.
    #[schema(minimum = 0, maximum = 604800)]
    overlap_seconds: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyOut {
    #[schema(example = "key_1srOrx2ZWZBpBUvZwXKQmoEYga2")]
    id: String,
    name: String,
    scopes: Vec<String>,
    app_id: Option<String>,
    created_at: Time,
    expires_at: Option<Time>,
    revoked_at: Option<Time>,
    /// To about a minute.
    last_used_at: Option<Time>,
}

/// A key at the only time that it is shown.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeyMadeOut {
    #[serde(flatten)]
    key: ApiKeyOut,
    /// The key itself. It is not stored and cannot be shown again.
    token: String,
}

impl ApiKeyOut {
    fn of(ids: &IdCodec, api_key: ApiKey) -> Self {
        Self {
            id: ids.id_of(api_key.key),
            name: api_key.name,
            scopes: api_key.scopes,
            app_id: api_key.app.map(|app| ids.id_of(app)),
            created_at: Time(api_key.created_at),
            expires_at: api_key.expires_at.map(Time),
            revoked_at: api_key.revoked_at.map(Time),
            last_used_at: api_key.used_at.map(Time),
        }
    }
}

/// List the API keys, newest first, those that have ended too.
#[utoipa::path(get, path = "/api/v1/api-key", operation_id = "v1.api-key.list", tag = "API Key",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 250),
        ("iterator" = Option<String>, Query),
        ("order" = Option<String>, Query, description = "ascending or descending (the default)"),
    ),
    responses((status = 200, body = ListOut<ApiKeyOut>)))]
async fn list(State(api): State<Arc<Api>>, environment: Environment, mut query: Query) -> Result<Response, Error> {
    let asked = Asked::take_ordered(&mut query, &api.ids, Order::Descending)?;
    query.finish()?;
    let rows = environment.store().api_keys(asked.page()).await?;
    let list = asked.answer(rows, &api.ids, |row| row.key, |row| ApiKeyOut::of(&api.ids, row));
    Ok(json(StatusCode::OK, &list))
}

/// Make an API key. The answer is the only one that shows it.
#[utoipa::path(post, path = "/api/v1/api-key", operation_id = "v1.api-key.create", tag = "API Key",
    request_body = ApiKeyIn,
    responses((status = 201, body = ApiKeyMadeOut), (status = 422, body = HttpValidationError)))]
async fn create(
    State(api): State<Arc<Api>>,
    environment: Environment,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let ApiKeyIn { name, scopes: Several(scopes), app_id, expires_at } = parse(&body)?;
    let now = (api.clock)();
    if scopes.is_empty() {
        return Err(Error::invalid(["scopes"], "must name at least one"));
    }
    if expires_at.as_ref().is_some_and(|end| end.0 <= now) {
        return Err(Error::invalid(["expiresAt"], "is past"));
    }
    let app = match app_id {
        None => None,
        Some(_) if scopes.contains(&Scope::Admin) => {
            return Err(Error::invalid(["appId"], "and the scope `admin` cannot be given together"));
        }
        Some(id) => Some(find_app(&api, &id).await?),
    };
    let wanted = Wanted {
        name: name.0,
        scopes: scopes.into_iter().map(|scope| scope.name().to_owned()).collect(),
        app,
        expires_at: expires_at.map(|end| end.0),
    };
    let (made, token) = make(&api, wanted, now).await?;
    environment.store().put_api_key(made.clone()).await?;
    Ok(json(StatusCode::CREATED, &ApiKeyMadeOut { key: ApiKeyOut::of(&api.ids, made), token }))
}

/// Get an API key, but for the key itself.
#[utoipa::path(get, path = "/api/v1/api-key/{key_id}", operation_id = "v1.api-key.get", tag = "API Key",
    params(("key_id" = String, Path)),
    responses((status = 200, body = ApiKeyOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, Named { key, environment }: Named, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let found = environment.store().api_key(key).await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &ApiKeyOut::of(&api.ids, found)))
}

/// End an API key for good: here at once, on every node within five seconds.
#[utoipa::path(post, path = "/api/v1/api-key/{key_id}/revoke", operation_id = "v1.api-key.revoke", tag = "API Key",
    params(("key_id" = String, Path)),
    responses((status = 200, body = ApiKeyOut), (status = 404, body = HttpErrorOut)))]
async fn revoke(
    State(api): State<Arc<Api>>,
    Named { key, environment }: Named,
    query: Query,
    _: NoBody,
) -> Result<Response, Error> {
    query.finish()?;
    let revoked = environment.store().revoke_api_key(key, (api.clock)()).await?.ok_or(Error::NotFound)?;
    api.credentials.forget_all();
    Ok(json(StatusCode::OK, &ApiKeyOut::of(&api.ids, revoked)))
}

/// Make a key in the place of another, which works on for a while.
///
/// It has a new id, and the name, scopes, application and length of life of the old one.
#[utoipa::path(post, path = "/api/v1/api-key/{key_id}/rotate", operation_id = "v1.api-key.rotate", tag = "API Key",
    params(("key_id" = String, Path)),
    request_body = ApiKeyRotateIn,
    responses(
        (status = 201, body = ApiKeyMadeOut),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "It has ended, or has been replaced already"),
        (status = 422, body = HttpValidationError),
    ))]
async fn rotate(
    State(api): State<Arc<Api>>,
    Named { key, environment }: Named,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted: ApiKeyRotateIn = if body.is_empty() { ApiKeyRotateIn::default() } else { parse(&body)? };
    let overlap = wanted.overlap_seconds.map_or(OVERLAP, Duration::from_secs);
    if overlap > OVERLAP_MAX {
        return Err(Error::invalid(["overlapSeconds"], "must be at most 604800 (a week)"));
    }
    let old = environment.store().api_key(key).await?.ok_or(Error::NotFound)?;
    let now = (api.clock)();
    let life = old.expires_at.map(|end| end.since(old.created_at));
    let wanted =
        Wanted { name: old.name, scopes: old.scopes, app: old.app, expires_at: life.map(|life| now.plus(life)) };
    let (made, token) = make(&api, wanted, now).await?;
    match environment.store().rotate_api_key(key, now.plus(overlap), made.clone()).await {
        Err(PutError::Changed) => {
            return Err(Error::Conflict("This key has ended, or has been replaced already; make a new one".into()));
        }
        written => written?,
    }
    api.credentials.forget_all();
    Ok(json(StatusCode::CREATED, &ApiKeyMadeOut { key: ApiKeyOut::of(&api.ids, made), token }))
}

struct Wanted {
    name: String,
    scopes: Vec<String>,
    app: Option<AppKey>,
    expires_at: Option<Timestamp>,
}

async fn make(api: &Api, wanted: Wanted, now: Timestamp) -> Result<(ApiKey, String), Error> {
    let Wanted { name, scopes, app, expires_at } = wanted;
    let key = ApiKeyKey(api.records.mint(now).await?);
    let (text, hash) = api.credentials.make_key(key).map_err(|fault| {
        error!(error = %fault, "the system gave no random numbers");
        Error::Internal
    })?;
    let made = ApiKey { key, hash, name, scopes, app, created_at: now, expires_at, revoked_at: None, used_at: None };
    Ok((made, text.reveal().to_owned()))
}

async fn find_app(api: &Api, id: &str) -> Result<AppKey, Error> {
    let unknown = || Error::invalid(["appId"], "is no application's id or uid");
    let by = api.ids.by::<AppKey>(id).ok_or_else(unknown)?;
    Ok(api.directory.application(&by).await?.ok_or_else(unknown)?.application.key)
}

/// The key that the path names, for whoever may see keys at all.
struct Named {
    key: ApiKeyKey,
    environment: Environment,
}

impl FromRequestParts<Arc<Api>> for Named {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let environment = Environment::from_request_parts(parts, api).await?;
        let params = path_params(parts).await?;
        let id = params.iter().find(|(name, _)| *name == "key_id").map(|(_, id)| id).ok_or(Error::NotFound)?;
        let key = api.ids.key_of(id).ok_or(Error::NotFound)?;
        Ok(Self { key, environment })
    }
}

const OVERLAP: Duration = Duration::from_hours(24);
const OVERLAP_MAX: Duration = Duration::from_hours(7 * 24);
