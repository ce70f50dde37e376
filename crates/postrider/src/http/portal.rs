//! Lets an application's owner in: a link with a token that is good for this one application.

use super::{
    Api, ApiSettings,
    applications::{ApplicationIn, find_or_create},
    auth::{Caller, Environment},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse, path_params},
    fields::{Several, TypeName},
    idempotency::json,
    openapi::{page, script, style},
};
use crate::{
    directory::AppEntry,
    tokens::{Access, Capability, ENVIRONMENT, MintError, Principal},
};
use axum::{
    Router,
    extract::{FromRequestParts, State},
    response::Response,
    routing::get,
};
use http::{HeaderMap, StatusCode, header, request::Parts, uri::Authority};
use postrider_engine::AppKey;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(access)).routes(routes!(logout)).routes(routes!(whoami))
}

/// The page itself. It holds nothing; all that it shows it asks the API for, with the token it was given.
pub fn pages() -> Router<Arc<Api>> {
    Router::new()
        .route("/portal", get(|| async { page(include_str!("assets/portal.html")) }))
        .route("/portal.js", get(|| async { script(include_str!("assets/portal.js")) }))
        .route("/page.css", get(|| async { style(include_str!("assets/page.css")) }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppPortalAccessIn {
    /// Creates the application on the way, if there is none under the path's name yet.
    application: Option<ApplicationIn>,
    /// Event types behind these flags are shown too.
    #[schema(value_type = Option<Vec<String>>, max_items = 25)]
    feature_flags: Option<Several<TypeName, FLAGS_MAX>>,
    /// In seconds, from an hour to a week; a week if absent.
    #[schema(minimum = 3600, maximum = 604800)]
    expiry: Option<u64>,
    /// Everything, if absent.
    #[schema(value_type = Option<Vec<String>>)]
    capabilities: Option<Several<Capability, 6>>,
    #[schema(deprecated)]
    read_only: Option<bool>,
    /// Not supported yet, and refused.
    #[schema(ignore)]
    session_id: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct AppPortalAccessOut {
    url: String,
    token: String,
}

impl AppPortalAccessIn {
    fn access(&self) -> Result<(Access, Duration), Error> {
        if self.session_id.is_some() {
            return Err(Error::invalid(["sessionId"], "is not supported yet"));
        }
        let capabilities = match (&self.capabilities, self.read_only) {
            (None, Some(true)) => Access::read_only().capabilities,
            (None, Some(false) | None) => Capability::ALL.to_vec(),
            (Some(_), Some(true)) => {
                return Err(Error::invalid(["readOnly"], "and `capabilities` cannot be given together"));
            }
            (Some(Several(list)), Some(false) | None) if list.contains(&Capability::ViewBase) => list.clone(),
            (Some(_), Some(false) | None) => {
                return Err(Error::invalid(["capabilities"], "must include ViewBase"));
            }
        };
        let expiry = self.expiry.map_or(EXPIRY_MAX, Duration::from_secs);
        if !(EXPIRY_MIN..=EXPIRY_MAX).contains(&expiry) {
            return Err(Error::invalid(["expiry"], "must be between 3600 (an hour) and 604800 (a week)"));
        }
        let flags = self.feature_flags.iter().flat_map(|flags| flags.0.iter().map(|flag| flag.0.clone()));
        Ok((Access { capabilities, feature_flags: Some(flags.collect()) }, expiry))
    }
}

/// Make a link to the portal of an application.
#[utoipa::path(post, path = "/api/v1/auth/app-portal-access/{app_id}",
    operation_id = "v1.authentication.app-portal-access", tag = "Authentication",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = AppPortalAccessIn,
    responses(
        (status = 200, body = AppPortalAccessOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn access(
    State(api): State<Arc<Api>>,
    AppName(name): AppName,
    headers: HeaderMap,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted: AppPortalAccessIn = parse(&body)?;
    let (access, expiry) = wanted.access()?;
    let app = find(&api, &name, wanted.application).await?.application.key;
    // A repetition gets a token of its own. It changes nothing, and a kept answer would lay a credential open.
    let token = api.tokens.mint_application(app, &access, (api.clock)(), expiry).map_err(|fault| match fault {
        MintError::NoPrivateKey => Error::NotImplemented("This server checks tokens and cannot make them"),
        MintError::Sign(_) | MintError::Random(_) => {
            error!(error = %fault, "a token could not be made");
            Error::Internal
        }
    })?;
    let base = base_url(&api.settings, &headers).ok_or(Error::Internal)?;
    Ok(json(StatusCode::OK, &AppPortalAccessOut { url: format!("{base}/portal#key={token}"), token }))
}

/// End a session before its time.
#[utoipa::path(post, path = "/api/v1/auth/logout", operation_id = "v1.authentication.logout", tag = "Authentication",
    params(("idempotency-key" = Option<String>, Header)),
    responses((status = 501, body = HttpErrorOut, description = "Tokens cannot be revoked yet; they expire")))]
async fn logout(_: Caller) -> Error {
    // To answer 204 would be a promise that the token is worthless now, and it is not.
    Error::NotImplemented("Tokens cannot be revoked yet; they end by their expiry")
}

/// Who the caller is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhoamiOut {
    permission_source: &'static str,
    env_id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    /// What a token for one application may do there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    capabilities: Option<Vec<Capability>>,
}

/// Find out whose token it is.
#[utoipa::path(get, path = "/api/v1/auth/whoami", operation_id = "v1.authentication.whoami", tag = "Authentication",
    responses((status = 200, body = WhoamiOut), (status = 401, body = HttpErrorOut)))]
async fn whoami(State(api): State<Arc<Api>>, Caller(principal): Caller, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let (app_id, capabilities) = match principal {
        Principal::Environment => (None, None),
        Principal::Application { app, access } => (Some(api.ids.id_of(app)), Some(access.capabilities)),
    };
    let answer = WhoamiOut { permission_source: "SvixJwt", env_id: ENVIRONMENT, app_id, capabilities };
    Ok(json(StatusCode::OK, &answer))
}

async fn find(api: &Api, name: &str, application: Option<ApplicationIn>) -> Result<Arc<AppEntry>, Error> {
    match application {
        Some(application) => find_or_create(api, name, application).await,
        None => {
            let by = api.ids.by::<AppKey>(name).ok_or(Error::NotFound)?;
            api.directory.application(&by).await?.ok_or(Error::NotFound)
        }
    }
}

/// Where the outside reaches us: as it is set, or else as the caller did.
fn base_url(settings: &ApiSettings, headers: &HeaderMap) -> Option<String> {
    if let Some(url) = &settings.public_url {
        return Some(url.trim_end_matches('/').to_owned());
    }
    let host: Authority = headers.get(header::HOST)?.to_str().ok()?.parse().ok()?;
    let scheme = if settings.within_tls { "https" } else { "http" };
    Some(format!("{scheme}://{host}"))
}

/// What the path has for an application, for whoever may create it.
struct AppName(String);

impl FromRequestParts<Arc<Api>> for AppName {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        Environment::from_request_parts(parts, api).await?;
        let params = path_params(parts).await?;
        let name = params.iter().find(|(key, _)| *key == "app_id").map(|(_, name)| name.to_owned());
        name.map(Self).ok_or(Error::NotFound)
    }
}

const FLAGS_MAX: usize = 25;
const EXPIRY_MIN: Duration = Duration::from_secs(3_600);
const EXPIRY_MAX: Duration = Duration::from_secs(604_800);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(Access, Duration), Error> {
        parse::<AppPortalAccessIn>(body.as_bytes())?.access()
    }

    #[test]
    fn a_link_opens_what_it_was_made_for() {
        let (all, expiry) = read("{}").unwrap();
        assert_eq!((all.capabilities.len(), all.feature_flags, expiry), (6, Some(vec![]), EXPIRY_MAX));
        let (some, expiry) =
            read(r#"{"capabilities":["ViewBase","CreateAttempts"],"featureFlags":["beta"],"expiry":3600}"#).unwrap();
        assert_eq!(some.capabilities, [Capability::ViewBase, Capability::CreateAttempts]);
        assert_eq!((some.feature_flags, expiry), (Some(vec!["beta".to_owned()]), EXPIRY_MIN));
        assert_eq!(read(r#"{"readOnly":true}"#).unwrap().0.capabilities, [Capability::ViewBase]);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        for body in [
            r#"{"expiry":3599}"#,
            r#"{"expiry":604801}"#,
            r#"{"sessionId":"s"}"#,
            r#"{"capabilities":["CreateAttempts"]}"#,
            r#"{"capabilities":["Everything"]}"#,
            r#"{"capabilities":["ViewBase"],"readOnly":true}"#,
            r#"{"application":{"uid":"a"}}"#,
            r#"{"colour":1}"#,
        ] {
            assert!(matches!(read(body), Err(Error::Invalid(_))), "{body}");
        }
    }

    #[test]
    fn the_link_leads_to_where_we_are_known() {
        let host = |host: &str| HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        let named = ApiSettings { public_url: Some("https://hooks.example/".to_owned()), ..ApiSettings::default() };
        let plain = ApiSettings::default();
        let within_tls = ApiSettings { within_tls: true, ..ApiSettings::default() };
        assert_eq!(base_url(&named, &host("evil")).as_deref(), Some("https://hooks.example"));
        assert_eq!(base_url(&plain, &host("localhost:8071")).as_deref(), Some("http://localhost:8071"));
        assert_eq!(base_url(&within_tls, &host("localhost:8071")).as_deref(), Some("https://localhost:8071"));
        assert_eq!(base_url(&plain, &host("a b")), None);
        assert_eq!(base_url(&plain, &HeaderMap::new()), None);
    }
}
