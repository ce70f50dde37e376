//! Headers that an endpoint's owner wants on each request.
//!
//! They are checked here, when they are set, so that no request can be changed by them in ways that we
//! rely on; and sealed, because they often are credentials.

use super::{
    Api,
    auth::InApp,
    endpoints::{PutOutcome, reseal},
    error::{Error, Flaw, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse},
    fields::{NullableStrings, Strings},
    idempotency::json,
};
use crate::{
    rules::headers::{is_forbidden, is_sensitive},
    tokens::Capability,
    vault::Private,
};
use axum::{extract::State, response::Response};
use http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get, put, patch))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointHeadersIn {
    #[schema(value_type = BTreeMap<String, String>)]
    pub(super) headers: Strings,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointHeadersPatchIn {
    /// A name with null is removed.
    #[schema(value_type = BTreeMap<String, Option<String>>)]
    headers: NullableStrings,
    #[serde(default)]
    delete_headers: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct EndpointHeadersOut {
    headers: BTreeMap<String, String>,
    /// The names of those whose values are not shown.
    sensitive: Vec<String>,
}

impl EndpointHeadersOut {
    pub(super) fn of(all: BTreeMap<String, String>) -> Self {
        let (sensitive, headers): (BTreeMap<_, _>, _) = all.into_iter().partition(|(name, _)| is_sensitive(name));
        Self { headers, sensitive: sensitive.into_keys().collect() }
    }
}

/// Headers that may be sent, or what is wrong with them.
pub fn check(headers: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Error> {
    if headers.len() > HEADERS_MAX {
        return Err(Error::invalid(["headers"], format!("at most {HEADERS_MAX} are allowed")));
    }
    let mut flaws = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (name, value) in &headers {
        let fault = if name.len() > NAME_MAX || HeaderName::from_bytes(name.as_bytes()).is_err() {
            "is not the name of a header"
        } else if is_forbidden(&name.to_ascii_lowercase()) {
            "cannot be set"
        } else if !seen.insert(name.to_ascii_lowercase()) {
            "is given twice"
        } else if !is_value(value) {
            "must be at most 4096 visible ASCII characters, spaces or tabs"
        } else {
            continue;
        };
        let shown: String = name.chars().take(NAME_MAX).collect();
        flaws.push(Flaw::new("body", ["headers", &shown], fault));
    }
    if flaws.is_empty() { Ok(headers) } else { Err(Error::Invalid(flaws)) }
}

fn change(
    mut headers: BTreeMap<String, String>,
    patch: &BTreeMap<String, Option<String>>,
    delete: &[String],
) -> Result<BTreeMap<String, String>, Error> {
    let named = patch.keys().chain(delete);
    let removed: Vec<&String> = named.collect();
    headers.retain(|name, _| !removed.iter().any(|other| other.eq_ignore_ascii_case(name)));
    headers.extend(patch.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?))));
    check(headers)
}

fn is_value(value: &str) -> bool {
    value.len() <= VALUE_MAX && value.bytes().all(|b| matches!(b, b'\t' | b' '..=b'~')) && value.trim() == value
}

/// Get the headers of an endpoint.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.endpoint.get-headers", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = EndpointHeadersOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let private = api.open(&app.endpoint(&api).await?)?;
    Ok(json(StatusCode::OK, &EndpointHeadersOut::of(private.headers)))
}

/// Set the headers of an endpoint.
#[utoipa::path(put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.endpoint.set-headers", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointHeadersIn,
    responses((status = 204), (status = 404, body = HttpErrorOut), (status = 422, body = HttpValidationError)))]
async fn put(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let headers = check(parse::<EndpointHeadersIn>(&body)?.headers.0)?;
    write(&api, &app, |_| Ok(headers.clone())).await
}

/// Change some headers of an endpoint.
#[utoipa::path(patch, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/headers",
    operation_id = "v1.endpoint.patch-headers", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointHeadersPatchIn,
    responses((status = 204), (status = 404, body = HttpErrorOut), (status = 422, body = HttpValidationError)))]
async fn patch(
    State(api): State<Arc<Api>>,
    app: InApp,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let patch: EndpointHeadersPatchIn = parse(&body)?;
    write(&api, &app, |headers| change(headers, &patch.headers.0, &patch.delete_headers)).await
}

pub(super) async fn write(
    api: &Api,
    app: &InApp,
    change: impl Fn(BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Error>,
) -> Result<StatusCode, Error> {
    let change = |private: Private| {
        let new = Private { headers: change(private.headers)?, ..private };
        if new.oauth.is_some() && new.authorization().is_some() {
            let why = "cannot be set: the endpoint is called with OAuth tokens";
            return Err(Error::invalid(["headers", "authorization"], why));
        }
        Ok(new)
    };
    match reseal(api, app, change, None).await {
        Ok(()) | Err(PutOutcome::Repeated) => Ok(StatusCode::NO_CONTENT),
        Err(PutOutcome::Failed(fault)) => Err(fault),
    }
}

const HEADERS_MAX: usize = 50;
const NAME_MAX: usize = 256;
const VALUE_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn only_harmless_headers_can_be_set() {
        for (name, value, accepted) in [
            ("X-Custom", "a b\tc", true),
            ("authorization", "Bearer abc", true),
            ("x-empty", "", true),
            ("x-a", "a\r\nb: c", false),
            ("x-a", "a\0", false),
            ("x-a", "caf\u{e9}", false),
            ("x-a", " padded", false),
            ("x a", "1", false),
            ("x:a", "1", false),
            ("", "1", false),
            ("caf\u{e9}", "1", false),
            ("Host", "x", false),
            ("Content-Length", "1", false),
            ("Content-Type", "x", false),
            ("Transfer-Encoding", "chunked", false),
            ("Connection", "close", false),
            ("Expect", "100-continue", false),
            ("Upgrade", "x", false),
            ("Proxy-Authorization", "x", false),
            ("User-Agent", "x", false),
            ("Svix-Id", "x", false),
            ("X-Svix-Foo", "x", false),
            ("webhook-signature", "x", false),
            ("X-Amz-Date", "x", false),
            ("x-google-a", "x", false),
        ] {
            assert_eq!(check(headers(&[(name, value)])).is_ok(), accepted, "{name:?}: {value:?}");
        }
        assert!(check(headers(&[("x-a", &"v".repeat(4096))])).is_ok());
        assert!(check(headers(&[("x-a", &"v".repeat(4097))])).is_err());
        assert!(check(headers(&[("x-a", "1"), ("X-A", "2")])).is_err());
        let many = |count: usize| (0..count).map(|i| (format!("x-{i}"), String::new())).collect();
        assert!(check(many(50)).is_ok());
        assert!(check(many(51)).is_err());
    }

    #[test]
    fn credentials_are_named_and_not_shown() {
        let all = headers(&[("Authorization", "canary"), ("X-Api-Key", "canary"), ("x-plain", "seen")]);
        let shown = EndpointHeadersOut::of(all);
        assert_eq!(shown.sensitive, ["Authorization", "X-Api-Key"]);
        assert_eq!(shown.headers, headers(&[("x-plain", "seen")]));
    }

    #[test]
    fn a_patch_sets_replaces_and_removes() {
        let patch = BTreeMap::from([
            ("x-new".to_owned(), Some("n".to_owned())),
            ("x-Old".to_owned(), Some("changed".to_owned())),
            ("x-gone".to_owned(), None),
        ]);
        let old = headers(&[("X-Old", "o"), ("X-Gone", "g"), ("x-kept", "k"), ("x-deleted", "d")]);
        let new = change(old.clone(), &patch, &["X-Deleted".into()]).unwrap();
        assert_eq!(new, headers(&[("x-Old", "changed"), ("x-kept", "k"), ("x-new", "n")]));
        assert!(change(old, &BTreeMap::from([("host".into(), Some("x".into()))]), &[]).is_err());
    }
}
