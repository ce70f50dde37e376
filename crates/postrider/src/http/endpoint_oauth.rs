//! How an endpoint's access tokens are had. What proves who we are goes in and never comes out again.

use super::{
    Api,
    auth::InApp,
    endpoint_headers,
    endpoints::{PutOutcome, reseal},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse},
    fields::Strings,
    idempotency::json,
};
use crate::{
    oauth::{JwtKey, OauthSettings, Proof},
    tokens::Capability,
    transport::url::{EndpointUrl, UrlRules},
    vault::Private,
};
use axum::{extract::State, response::Response};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use zeroize::Zeroizing;

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get, put, delete))
}

/// No `Debug`: most of it is secret.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointOauthConfigIn {
    grant_type: GrantType,
    auth_method: AuthMethod,
    #[schema(format = "uri", example = "https://example.com/oauth/token")]
    token_url: String,
    #[schema(min_length = 1, max_length = 4096)]
    client_id: String,
    /// For `clientSecretBasic` and `clientSecretPost`, and only for these.
    #[schema(value_type = Option<String>, max_length = 4096, example = "s3cret")]
    client_secret: Option<Zeroizing<String>>,
    /// For `clientSecretJwt`, and only for that.
    jwt_params: Option<ClientSecretJwtParamsIn>,
    /// Not supported; must be absent or null.
    #[schema(value_type = Option<String>)]
    refresh_token: Option<Zeroizing<String>>,
    #[schema(max_items = 100)]
    scopes: Option<Vec<String>>,
    /// Sent along with each request for a token.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    extra_headers: Option<Strings>,
    /// Sent along with each request for a token.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    extra_params: Option<Strings>,
}

/// What a claim about who we are is signed with (RFC 7523).
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientSecretJwtParamsIn {
    /// A private RSA key, in PEM or PKCS #1 DER, and that in base64.
    #[schema(value_type = String, max_length = 65536)]
    secret_base64: Zeroizing<String>,
    /// The key's id, which goes into the claim's head.
    #[schema(max_length = 256)]
    secret_id: Option<String>,
    signing_algorithm: SigningAlgorithm,
    /// How long a claim holds; five minutes if absent.
    #[schema(minimum = 1, maximum = 3600)]
    token_expiry_secs: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum GrantType {
    ClientCredentials,
    /// Not supported.
    RefreshToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum AuthMethod {
    ClientSecretBasic,
    ClientSecretPost,
    ClientSecretJwt,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub enum SigningAlgorithm {
    RS256,
}

/// Without what proves who we are: of extra headers and parameters, only such as are known to be none of it, and of the token's
/// URL, no query.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointOauthConfigOut {
    grant_type: GrantType,
    auth_method: AuthMethod,
    token_url: String,
    client_id: String,
    scopes: Option<Vec<String>>,
    extra_headers: Option<BTreeMap<String, String>>,
    extra_params: Option<BTreeMap<String, String>>,
}

impl EndpointOauthConfigOut {
    fn of(settings: OauthSettings) -> Self {
        let shown = |all: BTreeMap<String, String>| {
            let is_plain = |name: &str| SHOWN.iter().any(|shown| name.eq_ignore_ascii_case(shown));
            let plain: BTreeMap<_, _> = all.into_iter().filter(|(name, _)| is_plain(name)).collect();
            Some(plain).filter(|plain| !plain.is_empty())
        };
        Self {
            grant_type: GrantType::ClientCredentials,
            auth_method: match settings.proof {
                Proof::Basic { .. } => AuthMethod::ClientSecretBasic,
                Proof::Post { .. } => AuthMethod::ClientSecretPost,
                Proof::Jwt { .. } => AuthMethod::ClientSecretJwt,
            },
            token_url: settings.token_url.split(['?', '#']).next().unwrap_or_default().to_owned(),
            client_id: settings.client_id,
            scopes: Some(settings.scopes).filter(|scopes| !scopes.is_empty()),
            extra_headers: shown(settings.extra_headers),
            extra_params: shown(settings.extra_params),
        }
    }
}

impl EndpointOauthConfigIn {
    fn check(self, rules: &UrlRules<'_>) -> Result<OauthSettings, Error> {
        if self.grant_type == GrantType::RefreshToken || self.refresh_token.is_some() {
            let why = "refresh tokens are not supported: an issuer may change them at each use; use clientCredentials";
            return Err(Error::invalid(["grantType"], why));
        }
        let url = EndpointUrl::parse(&self.token_url, rules)
            .map_err(|fault| Error::invalid(["tokenUrl"], fault.to_string()))?;
        if !is_text(&self.client_id) {
            return Err(Error::invalid(["clientId"], TEXT_WANTED));
        }
        let proof = match (self.auth_method, self.client_secret, self.jwt_params) {
            (AuthMethod::ClientSecretBasic, Some(secret), None) if is_text(&secret) => Proof::Basic { secret },
            (AuthMethod::ClientSecretPost, Some(secret), None) if is_text(&secret) => Proof::Post { secret },
            (AuthMethod::ClientSecretJwt, None, Some(params)) => params.check()?,
            (AuthMethod::ClientSecretBasic | AuthMethod::ClientSecretPost, Some(_), None) => {
                return Err(Error::invalid(["clientSecret"], TEXT_WANTED));
            }
            (AuthMethod::ClientSecretBasic | AuthMethod::ClientSecretPost, _, _) => {
                return Err(Error::invalid(["clientSecret"], "this authMethod needs it, and no jwtParams"));
            }
            (AuthMethod::ClientSecretJwt, _, _) => {
                return Err(Error::invalid(["jwtParams"], "this authMethod needs them, and no clientSecret"));
            }
        };
        let scopes = self.scopes.unwrap_or_default();
        // As RFC 6749 writes them: a blank would make two of one.
        let is_scope = |scope: &String| {
            (1..=SCOPE_MAX).contains(&scope.len())
                && scope.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
        };
        if scopes.len() > SCOPES_MAX || !scopes.iter().all(is_scope) {
            let why =
                format!("at most {SCOPES_MAX}, each of 1 to {SCOPE_MAX} visible characters without quotes or blanks");
            return Err(Error::invalid(["scopes"], why));
        }
        let extra_headers = endpoint_headers::check(self.extra_headers.unwrap_or_default().0)
            .map_err(|_| Error::invalid(["extraHeaders"], "holds a header that cannot be set"))?;
        let is_ours = |name: &String| OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own));
        if extra_headers.keys().any(is_ours) {
            return Err(Error::invalid(["extraHeaders"], "`authorization` and `accept` are set by the authMethod"));
        }
        let extra_params = self.extra_params.unwrap_or_default().0;
        check_params(&extra_params)?;
        Ok(OauthSettings {
            token_url: url.as_str().to_owned(),
            client_id: self.client_id,
            proof,
            scopes,
            extra_params,
            extra_headers,
        })
    }
}

impl ClientSecretJwtParamsIn {
    fn check(self) -> Result<Proof, Error> {
        let SigningAlgorithm::RS256 = self.signing_algorithm;
        let wrong = || {
            let why = "must be base64 of a private RSA key of 2048 bits or more, in PEM or DER, and not encrypted";
            Error::invalid(["jwtParams", "secretBase64"], why)
        };
        if self.secret_base64.len() > JWT_KEY_MAX {
            return Err(wrong());
        }
        let bytes = BASE64_STANDARD.decode(self.secret_base64.trim()).map_err(|_| wrong())?;
        let key = JwtKey::new(bytes).ok_or_else(wrong)?;
        if self.secret_id.as_ref().is_some_and(|id| !is_text(id) || id.len() > KEY_ID_MAX) {
            return Err(Error::invalid(["jwtParams", "secretId"], TEXT_WANTED));
        }
        let seconds = self.token_expiry_secs.unwrap_or(CLAIM_SECONDS);
        if !(1..=CLAIM_SECONDS_MAX).contains(&seconds) {
            let why = format!("must be between 1 and {CLAIM_SECONDS_MAX}");
            return Err(Error::invalid(["jwtParams", "tokenExpirySecs"], why));
        }
        Ok(Proof::Jwt { key, key_id: self.secret_id, lifetime: Duration::from_secs(seconds) })
    }
}

fn check_params(params: &BTreeMap<String, String>) -> Result<(), Error> {
    if params.len() > PARAMS_MAX {
        return Err(Error::invalid(["extraParams"], format!("at most {PARAMS_MAX} are allowed")));
    }
    for (name, value) in params {
        if OWN_PARAMS.contains(&name.as_str()) {
            return Err(Error::invalid(["extraParams"], "holds a parameter that is set by another field"));
        }
        if !is_text(name) || value.len() > TEXT_MAX || value.contains('\0') {
            return Err(Error::invalid(["extraParams"], TEXT_WANTED));
        }
    }
    Ok(())
}

fn is_text(text: &str) -> bool {
    (1..=TEXT_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Get how an endpoint's access tokens are had.
///
/// Secrets are not shown.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/oauth",
    operation_id = "v1.endpoint.get-oauth", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses(
        (status = 200, body = EndpointOauthConfigOut),
        (status = 404, body = HttpErrorOut, description = "There is no such endpoint, or it wants no tokens"),
    ))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let private = api.open(&app.endpoint(&api).await?)?;
    let settings = private.oauth.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &EndpointOauthConfigOut::of(settings)))
}

/// Set how an endpoint's access tokens are had, in place of how they were.
///
/// From then on it is called with a token or not at all.
#[utoipa::path(put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/oauth",
    operation_id = "v1.endpoint.set-oauth-config", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointOauthConfigIn,
    responses((status = 204), (status = 404, body = HttpErrorOut), (status = 422, body = HttpValidationError)))]
async fn put(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    // Before its body is judged: what is another's answers alike, whatever is sent to it.
    app.endpoint(&api).await?;
    let settings = parse::<EndpointOauthConfigIn>(&body)?.check(&api.url_rules())?;
    let set = |private: Private| {
        if private.authorization().is_some() {
            return Err(Error::invalid([], "the endpoint has an Authorization header; remove it first"));
        }
        Ok(Private { oauth: Some(settings.clone()), ..private })
    };
    write(&api, &app, set).await
}

/// Call an endpoint without access tokens again.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/oauth",
    operation_id = "v1.endpoint.delete-oauth-config", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses(
        (status = 204),
        (status = 404, body = HttpErrorOut, description = "There is no such endpoint, or it wants no tokens"),
    ))]
async fn delete(State(api): State<Arc<Api>>, app: InApp, query: Query, _: NoBody) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let remove = |private: Private| match private.oauth {
        Some(_) => Ok(Private { oauth: None, ..private }),
        None => Err(Error::NotFound),
    };
    write(&api, &app, remove).await
}

async fn write(
    api: &Api,
    app: &InApp,
    change: impl Fn(Private) -> Result<Private, Error>,
) -> Result<StatusCode, Error> {
    match reseal(api, app, change, None).await {
        Ok(()) | Err(PutOutcome::Repeated) => Ok(StatusCode::NO_CONTENT),
        Err(PutOutcome::Failed(fault)) => Err(fault),
    }
}

const TEXT_WANTED: &str = "must be 1 to 4096 bytes of text without control characters";
const TEXT_MAX: usize = 4_096;
/// Extra headers and parameters that say for whom a token is to be, and prove nothing.
const SHOWN: [&str; 6] = ["accept", "audience", "realm", "resource", "tenant", "x-tenant"];
const SCOPES_MAX: usize = 100;
const SCOPE_MAX: usize = 256;
const PARAMS_MAX: usize = 50;
const KEY_ID_MAX: usize = 256;
const JWT_KEY_MAX: usize = 64 * 1024;
const CLAIM_SECONDS: u64 = 300;
const CLAIM_SECONDS_MAX: u64 = 3_600;
const OWN_HEADERS: [&str; 2] = ["authorization", "accept"];
const OWN_PARAMS: [&str; 6] =
    ["grant_type", "scope", "client_id", "client_secret", "client_assertion", "client_assertion_type"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::AddressGuard;
    use serde_json::{Value, json};

    fn read(body: &Value) -> Result<OauthSettings, Error> {
        let guard = AddressGuard::new(Vec::new());
        let rules = UrlRules { https_only: true, guard: &guard };
        parse::<EndpointOauthConfigIn>(body.to_string().as_bytes())?.check(&rules)
    }

    fn basic(more: Value) -> Value {
        let mut body = json!({
            "grantType": "clientCredentials",
            "authMethod": "clientSecretBasic",
            "clientId": "us",
            "clientSecret": "canary",
            "tokenUrl": "https://example.com/token",
        });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    #[test]
    fn what_is_set_is_shown_without_its_secrets() {
        let body = basic(json!({
            "scopes": ["read"],
            "extraHeaders": {"x-tenant": "acme", "x-api-key": "canary"},
            "extraParams": {"audience": "them", "some_token": "canary", "api_key": "canary", "whatever": "canary"},
            "tokenUrl": "https://example.com/token?code=canary",
        }));
        let shown = serde_json::to_value(EndpointOauthConfigOut::of(read(&body).ok().unwrap())).unwrap();
        let expected = json!({
            "grantType": "clientCredentials",
            "authMethod": "clientSecretBasic",
            "clientId": "us",
            "tokenUrl": "https://example.com/token",
            "scopes": ["read"],
            "extraHeaders": {"x-tenant": "acme"},
            "extraParams": {"audience": "them"},
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
        let rsa = BASE64_STANDARD.encode(key.serialize_pem());
        let other = BASE64_STANDARD.encode(rcgen::KeyPair::generate().unwrap().serialize_pem());
        let jwt = |key: &str, more: Value| {
            let mut params = json!({"secretBase64": key, "signingAlgorithm": "RS256"});
            for (name, value) in more.as_object().unwrap() {
                params[name] = value.clone();
            }
            json!({"authMethod": "clientSecretJwt", "clientSecret": null, "jwtParams": params})
        };
        for (more, place) in [
            (json!({}), None),
            (
                json!({"authMethod": "clientSecretPost", "scopes": null, "extraParams": null, "refreshToken": null}),
                None,
            ),
            (jwt(&rsa, json!({})), None),
            (jwt(&rsa, json!({"secretId": "k", "tokenExpirySecs": 60})), None),
            (jwt(&other, json!({})), Some("body.jwtParams.secretBase64")),
            (jwt("!", json!({})), Some("body.jwtParams.secretBase64")),
            (jwt("AAAA", json!({})), Some("body.jwtParams.secretBase64")),
            (jwt(&rsa, json!({"tokenExpirySecs": 0})), Some("body.jwtParams.tokenExpirySecs")),
            (jwt(&rsa, json!({"tokenExpirySecs": 3601})), Some("body.jwtParams.tokenExpirySecs")),
            (json!({"authMethod": "clientSecretJwt"}), Some("body.jwtParams")),
            (json!({"authMethod": "privateKeyJwt"}), Some("body.authMethod")),
            (json!({"clientSecret": null}), Some("body.clientSecret")),
            (json!({"clientSecret": ""}), Some("body.clientSecret")),
            (json!({"grantType": "refreshToken", "refreshToken": "x"}), Some("body.grantType")),
            (json!({"refreshToken": "x"}), Some("body.grantType")),
            (json!({"grantType": "password"}), Some("body.grantType")),
            (json!({"tokenUrl": "http://example.com/token"}), Some("body.tokenUrl")),
            (json!({"tokenUrl": "https://127.0.0.1/token"}), Some("body.tokenUrl")),
            (json!({"tokenUrl": "https://me:canary@example.com/"}), Some("body.tokenUrl")),
            (json!({"clientId": ""}), Some("body.clientId")),
            (json!({"clientId": "a\nb"}), Some("body.clientId")),
            (json!({"scopes": ["a b"]}), Some("body.scopes")),
            (json!({"scopes": [""]}), Some("body.scopes")),
            (json!({"extraHeaders": {"host": "x"}}), Some("body.extraHeaders")),
            (json!({"extraHeaders": {"Authorization": "x"}}), Some("body.extraHeaders")),
            (json!({"extraParams": {"grant_type": "x"}}), Some("body.extraParams")),
            (json!({"colour": "red"}), Some("body")),
        ] {
            let found = match read(&basic(more.clone())) {
                Ok(_) => None,
                Err(Error::Invalid(flaws)) => {
                    assert!(!flaws[0].msg.contains("canary"), "{flaws:?}");
                    Some(flaws[0].loc.join("."))
                }
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(found.as_deref().map(|loc| loc.trim_end_matches(".colour")), place, "{more}");
        }
    }
}
