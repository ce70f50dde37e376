//! When each attempt would run: of an endpoint, or of a policy that someone is about to choose.

use super::{
    Api,
    auth::{Caller, InApp},
    error::{Error, HttpErrorOut, HttpValidationError},
    event_types,
    extract::{JsonBytes, Query, parse},
    idempotency::json,
};
use crate::{
    config::show_duration,
    rules::{Rules, preview::PreviewOut},
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::policy::{self, presets};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(of_endpoint))
        .routes(routes!(of_application))
        .routes(routes!(of_rules))
        .routes(routes!(list_presets))
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PresetOut {
    #[schema(example = "default")]
    name: &'static str,
    about: &'static str,
    source: &'static str,
    dated: &'static str,
    max_attempts: u32,
    #[schema(example = "4d")]
    give_up_after: String,
}

/// Preview when each attempt to an endpoint would run, if every one failed.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/schedule",
    operation_id = "v1.endpoint.get-schedule", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("event_type" = Option<String>, Query, description = "For messages of this type"),
    ),
    responses((status = 200, body = PreviewOut), (status = 404, body = HttpErrorOut)))]
async fn of_endpoint(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let event_type = query.text("event_type")?;
    query.finish()?;
    let endpoint = Rules::stored(app.endpoint(&api).await?.rules.as_deref()).layer();
    let event_type = match event_type {
        None => None,
        Some(name) => {
            let found = event_types::find(&api, &app.principal, &name).await?.ok_or(Error::NotFound)?;
            Some(Rules::stored(found.rules.as_deref()).layer())
        }
    };
    let layers = [&*api.settings.rules, &app.entry.layer, &endpoint].into_iter().chain(event_type.as_ref());
    Ok(json(StatusCode::OK, &PreviewOut::of(&policy::Rules::resolve(layers).policy)))
}

/// Preview when each attempt to an endpoint of an application would run that said this, if every one failed.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/schedule", operation_id = "v1.application.preview-schedule",
    tag = "Application",
    params(("app_id" = String, Path, description = "The application's id or uid")),
    request_body = Rules,
    responses(
        (status = 200, body = PreviewOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn of_application(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let rules: Rules = parse(&body)?;
    api.check_rules(&[&app.entry.layer], None, rules.to_store().as_deref())?;
    let resolved = policy::Rules::resolve([&*api.settings.rules, &app.entry.layer, &rules.layer()]);
    Ok(json(StatusCode::OK, &PreviewOut::of(&resolved.policy)))
}

/// Preview when each attempt under these rules would run, if every one failed.
#[utoipa::path(post, path = "/api/v1/schedule", operation_id = "v1.schedule.preview", tag = "Schedule",
    request_body = Rules,
    responses((status = 200, body = PreviewOut), (status = 422, body = HttpValidationError)))]
async fn of_rules(
    State(api): State<Arc<Api>>,
    _: Caller,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let rules: Rules = parse(&body)?;
    api.check_rules(&[], None, rules.to_store().as_deref())?;
    let resolved = policy::Rules::resolve([&*api.settings.rules, &rules.layer()]);
    Ok(json(StatusCode::OK, &PreviewOut::of(&resolved.policy)))
}

/// List the presets.
#[utoipa::path(get, path = "/api/v1/preset", operation_id = "v1.preset.list", tag = "Schedule",
    responses((status = 200, body = Vec<PresetOut>)))]
async fn list_presets(_: Caller, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let shown: Vec<PresetOut> = presets::all()
        .iter()
        .map(|preset| {
            let budget = policy::Rules::resolve([&preset.layer]).policy.budget;
            PresetOut {
                name: preset.name,
                about: preset.about,
                source: preset.source,
                dated: preset.dated,
                max_attempts: budget.attempts_max,
                give_up_after: show_duration(budget.total_max),
            }
        })
        .collect();
    Ok(json(StatusCode::OK, &shown))
}
