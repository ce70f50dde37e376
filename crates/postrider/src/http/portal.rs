//! Lets an application's owner in: a link with a token that is good for this one application.

use super::{
    Api, ApiSettings,
    applications::{ApplicationIn, find_or_create},
    auth::{Caller, Environment, InApp, InSource},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse, path_params},
    fields::{Several, TypeName},
    idempotency::json,
    time::Time,
};
use crate::{
    credentials::{Identity, scopes::Scope},
    directory::AppEntry,
    tokens::{Access, Capability, ENVIRONMENT, LEEWAY, MintError, Principal, SESSION_MAX},
};
use axum::{
    extract::{FromRequestParts, State},
    response::Response,
};
use http::{HeaderMap, StatusCode, Uri, header, request::Parts, uri::Authority};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{Revocation, TokenId};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tracing::error;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(access))
        .routes(routes!(source_access))
        .routes(routes!(expire_all))
        .routes(routes!(logout))
        .routes(routes!(revoke))
        .routes(routes!(whoami))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
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
    /// By which the token can be ended before its time, with others of the same session.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 64, pattern = "^[a-zA-Z0-9@_-]+$")]
    session_id: Option<SessionId>,
}

#[derive(Serialize, ToSchema)]
pub struct AppPortalAccessOut {
    url: String,
    token: String,
}

impl AppPortalAccessIn {
    fn access(&self) -> Result<(Access, Duration), Error> {
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
        Ok((Access { capabilities, feature_flags: Some(flags.collect()), poller: None }, expiry))
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
    AppName { name, caller, environment }: AppName,
    here: Here,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let wanted: AppPortalAccessIn = parse(&body)?;
    let (access, expiry) = wanted.access()?;
    check_covers(&caller, &access)?;
    let session = wanted.session_id.map(|session| session.0);
    let app = find(&api, &environment, &name, wanted.application).await?.application.key;
    link(&api, app, &access, session, expiry, &here)
}

pub(super) fn mint_failed(fault: MintError) -> Error {
    match fault {
        MintError::NoPrivateKey => Error::NotImplemented("This server checks tokens and cannot make them"),
        MintError::Sign(_) | MintError::Random(_) => {
            error!(error = %fault, "a token could not be made");
            Error::Internal
        }
    }
}

fn link(
    api: &Api,
    app: AppKey,
    access: &Access,
    session: Option<String>,
    expiry: Duration,
    here: &Here,
) -> Result<Response, Error> {
    // A repetition gets a token of its own. It changes nothing, and a kept answer would lay a credential open.
    let minted = api.credentials.tokens().mint_session(app, access, session, (api.clock)(), expiry);
    let token = minted.map_err(mint_failed)?;
    let base = here.0.clone().ok_or(Error::Internal)?;
    Ok(json(StatusCode::OK, &AppPortalAccessOut { url: format!("{base}/portal#key={token}"), token }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngestSourceConsumerPortalAccessIn {
    /// In seconds, from an hour to a week; a week if absent.
    #[schema(minimum = 3600, maximum = 604800)]
    expiry: Option<u64>,
    read_only: Option<bool>,
}

/// Make a link to the portal of a source.
#[utoipa::path(post, path = "/ingest/api/v1/source/{source_id}/dashboard",
    operation_id = "v1.ingest.authentication.consumer-portal-access", tag = "Ingest Authentication",
    params(
        ("source_id" = String, Path, description = "The source's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = IngestSourceConsumerPortalAccessIn,
    responses(
        (status = 200, body = AppPortalAccessOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn source_access(
    State(api): State<Arc<Api>>,
    source: InSource,
    here: Here,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let IngestSourceConsumerPortalAccessIn { expiry, read_only } = parse(&body)?;
    let wanted = AppPortalAccessIn { expiry, read_only, ..AppPortalAccessIn::default() };
    let (access, expiry) = wanted.access()?;
    check_covers(&source.caller, &access)?;
    link(&api, source.app.key(), &access, None, expiry, &here)
}

/// Nobody gives away more than he has.
fn check_covers(caller: &Caller, access: &Access) -> Result<(), Error> {
    caller.require(Scope::Read)?;
    if access.capabilities.contains(&Capability::CreateAttempts) {
        caller.require(Scope::Replay)?;
    }
    Ok(())
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApplicationTokenExpireIn {
    /// The tokens end in so many seconds; at once if absent.
    #[schema(minimum = 0, maximum = 259200)]
    expiry: Option<u64>,
    /// Only the tokens of these sessions; all, if absent.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 1000)]
    session_ids: Option<Several<SessionId, SESSIONS_MAX>>,
}

/// End the tokens of an application that were made until now.
#[utoipa::path(post, path = "/api/v1/auth/app/{app_id}/expire-all", operation_id = "v1.authentication.expire-all",
    tag = "Authentication",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = ApplicationTokenExpireIn,
    responses(
        (status = 204, description = "They end on every node within five seconds of their time"),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn expire_all(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    app.require_environment()?;
    query.finish()?;
    let wanted: ApplicationTokenExpireIn = parse(&body)?;
    let delay = Duration::from_secs(wanted.expiry.unwrap_or(0));
    if delay > EXPIRE_WITHIN_MAX {
        return Err(Error::invalid(["expiry"], "must be at most 259200 (three days)"));
    }
    let now = (api.clock)();
    let end = |session: Option<String>| Revocation::Issued {
        app: app.key(),
        // Tokens of a session last for a week at most; others may have been made elsewhere, for longer.
        forget_at: session.is_some().then(|| now.plus(SESSION_MAX + LEEWAY)),
        session,
        until: now,
        at: now.plus(delay),
    };
    let revocations = match wanted.session_ids {
        Some(Several(sessions)) if !sessions.is_empty() => {
            sessions.into_iter().map(|session| end(Some(session.0))).collect()
        }
        Some(_) | None => vec![end(None)],
    };
    api.records.revoke_tokens(revocations).await?;
    api.credentials.forget_all();
    // A token that is made after this answer is made in a later millisecond, and so not among those that end.
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(StatusCode::NO_CONTENT)
}

/// End the token that this request is made with, which must be one for an application.
#[utoipa::path(post, path = "/api/v1/auth/logout", operation_id = "v1.authentication.logout", tag = "Authentication",
    params(("idempotency-key" = Option<String>, Header)),
    responses((status = 204, description = "It ends on every node within five seconds")))]
async fn logout(
    State(api): State<Arc<Api>>,
    Caller(bearer): Caller,
    query: Query,
    _: NoBody,
) -> Result<StatusCode, Error> {
    query.finish()?;
    // A product that logs itself out by mistake would stand outside.
    match (&bearer.principal, &bearer.identity) {
        (Principal::Application { .. }, Identity::Token { issued, ends_at, .. }) => {
            revoke_one(&api, issued.id, *ends_at).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        (Principal::Environment, _) | (_, Identity::ApiKey(_)) => Err(Error::InsufficientAccess),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRevokeIn {
    /// The token, for everything or for an application. API keys have an operation of their own.
    token: String,
}

/// End a token before its time.
#[utoipa::path(post, path = "/api/v1/token/revoke", operation_id = "v1.token.revoke", tag = "Authentication",
    request_body = TokenRevokeIn,
    responses(
        (status = 204, description = "It ends on every node within five seconds"),
        (status = 422, body = HttpValidationError, description = "It is no token that holds here"),
    ))]
async fn revoke(
    State(api): State<Arc<Api>>,
    _: Environment,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    query.finish()?;
    let wanted: TokenRevokeIn = parse(&body)?;
    let read = api.credentials.tokens().verify(&wanted.token, (api.clock)());
    let read = read.map_err(|_| Error::invalid(["token"], "is not a token that holds here"))?;
    revoke_one(&api, read.issued.id, read.until).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn revoke_one(api: &Api, id: TokenId, forget_at: Timestamp) -> Result<(), Error> {
    let at = (api.clock)();
    api.records.revoke_tokens(vec![Revocation::Token { id, at, forget_at }]).await?;
    api.credentials.forget_all();
    Ok(())
}

/// Who the caller is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhoamiOut {
    /// `SvixJwt` for a token, `RegionalAuthToken` for an API key: the contract's words.
    permission_source: &'static str,
    env_id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key_id: Option<String>,
    /// What an API key is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// When it ends, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
    /// What an API key may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    scopes: Option<Vec<Scope>>,
    /// What a token for one application may do there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    capabilities: Option<Vec<Capability>>,
}

/// Find out whose token it is.
#[utoipa::path(get, path = "/api/v1/auth/whoami", operation_id = "v1.authentication.whoami", tag = "Authentication",
    responses((status = 200, body = WhoamiOut), (status = 401, body = HttpErrorOut)))]
async fn whoami(State(api): State<Arc<Api>>, Caller(bearer): Caller, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let (app_id, capabilities) = match &bearer.principal {
        Principal::Environment => (None, None),
        Principal::Application { app, access } => (Some(api.ids.id_of(*app)), Some(access.capabilities.clone())),
    };
    let answer = match &bearer.identity {
        Identity::Token { issued, ends_at, .. } => WhoamiOut {
            permission_source: "SvixJwt",
            env_id: ENVIRONMENT,
            app_id,
            session_id: issued.session.clone(),
            api_key_id: None,
            name: None,
            expires_at: Some(Time(*ends_at)),
            scopes: None,
            capabilities,
        },
        Identity::ApiKey(key) => {
            let stored = api.records.api_key(*key).await?;
            WhoamiOut {
                permission_source: "RegionalAuthToken",
                env_id: ENVIRONMENT,
                app_id,
                session_id: None,
                api_key_id: Some(api.ids.id_of(*key)),
                expires_at: stored.as_ref().and_then(|stored| stored.expires_at).map(Time),
                name: stored.map(|stored| stored.name),
                scopes: Some(bearer.scopes.list()),
                capabilities: None,
            }
        }
    };
    Ok(json(StatusCode::OK, &answer))
}

async fn find(
    api: &Api,
    environment: &Environment,
    name: &str,
    application: Option<ApplicationIn>,
) -> Result<Arc<AppEntry>, Error> {
    match application {
        Some(application) => find_or_create(api, environment, name, application).await,
        None => {
            let by = api.ids.by::<AppKey>(name).ok_or(Error::NotFound)?;
            api.directory.application(&by).await?.ok_or(Error::NotFound)
        }
    }
}

/// Where the caller has reached us.
pub(super) struct Here(pub(super) Option<String>);

impl FromRequestParts<Arc<Api>> for Here {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Infallible> {
        Ok(Self(base_url(&api.settings, &parts.headers, &parts.uri)))
    }
}

/// Where the outside reaches us: as it is set, or else as the caller did. HTTP/2 has no `Host`, and says it in the address.
pub(super) fn base_url(settings: &ApiSettings, headers: &HeaderMap, uri: &Uri) -> Option<String> {
    if let Some(url) = &settings.public_url {
        return Some(url.trim_end_matches('/').to_owned());
    }
    let host: Authority = match headers.get(header::HOST) {
        Some(host) => host.to_str().ok()?.parse().ok()?,
        None => uri.authority()?.clone(),
    };
    let scheme = if settings.within_tls { "https" } else { "http" };
    Some(format!("{scheme}://{host}"))
}

/// What the path has for an application, for whoever may create it.
struct AppName {
    name: String,
    caller: Caller,
    environment: Environment,
}

impl FromRequestParts<Arc<Api>> for AppName {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, api).await?;
        let environment = caller.environment(api)?;
        let params = path_params(parts).await?;
        let name = params.iter().find(|(key, _)| *key == "app_id").map(|(_, name)| name.to_owned());
        Ok(Self { name: name.ok_or(Error::NotFound)?, caller, environment })
    }
}

/// What ties tokens together that are to end together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId(String);

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'@' | b'_' | b'-'));
        if fits { Ok(Self(text)) } else { Err(de::Error::custom("must be 1 to 64 letters, digits, `@`, `_` or `-`")) }
    }
}

const FLAGS_MAX: usize = 25;
const SESSIONS_MAX: usize = 1000;
const EXPIRE_WITHIN_MAX: Duration = Duration::from_secs(259_200);
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
            r#"{"sessionId":""}"#,
            r#"{"sessionId":"a b"}"#,
            r#"{"sessionId":7}"#,
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
        let nowhere = Uri::from_static("/x");
        assert_eq!(base_url(&named, &host("evil"), &nowhere).as_deref(), Some("https://hooks.example"));
        assert_eq!(base_url(&plain, &host("localhost:8071"), &nowhere).as_deref(), Some("http://localhost:8071"));
        assert_eq!(base_url(&within_tls, &host("localhost:8071"), &nowhere).as_deref(), Some("https://localhost:8071"));
        assert_eq!(base_url(&plain, &host("a b"), &nowhere), None);
        assert_eq!(base_url(&plain, &HeaderMap::new(), &nowhere), None);
        let named_by_http2 = Uri::from_static("https://localhost:8071/x");
        let found = base_url(&within_tls, &HeaderMap::new(), &named_by_http2);
        assert_eq!(found.as_deref(), Some("https://localhost:8071"));
    }
}
