//! What of TLS is an endpoint's own: the certificate that we show it, and the authority that its own must come from.
//!
//! The contract has `identity`; `ca` is ours. Neither is shown again: what is, is what a certificate says about itself.

use super::{
    Api,
    auth::InApp,
    endpoints::{PutOutcome, reseal},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, NoBody, Query, parse},
    idempotency::json,
    time::Time,
};
use crate::{
    expiry::{self, Soon},
    tokens::Capability,
    transport::{
        ClientTls,
        client_tls::{CertificateFacts, ClientTlsError, Part, check_times, facts},
    },
    vault::{ClientPem, Private},
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use zeroize::Zeroizing;

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get, put, delete))
}

/// One of the two, or both. No `Debug`: a private key is among it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointMtlsConfigIn {
    /// In PEM: a client certificate, those between it and its authority if there are any, and its private key, not
    /// encrypted.
    #[schema(value_type = Option<String>, max_length = 65536)]
    identity: Option<Zeroizing<String>>,
    /// In PEM: the authorities that the receiver's certificate must come from. They take the place of the public ones.
    #[schema(max_length = 65536)]
    ca: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct EndpointMtlsConfigOut {
    /// The certificate that we show. Null if there is none.
    identity: Option<CertificateOut>,
    /// The authorities that the receiver's certificate must come from. Null if those are the public ones.
    ca: Option<Vec<CertificateOut>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateOut {
    #[schema(example = "CN=postrider")]
    subject: String,
    issuer: String,
    serial_number: String,
    /// SHA-256 of the certificate, in hex.
    fingerprint: String,
    not_before: Time,
    not_after: Time,
    /// `expired`, or `day`, `week` or `month` if it expires within one. Null if it holds longer.
    expires: Option<&'static str>,
}

impl CertificateOut {
    fn of(facts: CertificateFacts, now: Timestamp) -> Self {
        Self {
            expires: expiry::soon(facts.not_after, now).map(Soon::name),
            subject: facts.subject,
            issuer: facts.issuer,
            serial_number: facts.serial,
            fingerprint: facts.fingerprint,
            not_before: Time(facts.not_before),
            not_after: Time(facts.not_after),
        }
    }
}

impl EndpointMtlsConfigOut {
    fn of(pem: &ClientPem, now: Timestamp) -> Result<Self, ClientTlsError> {
        let identity = pem.identity.as_ref().map(|text| facts(text)).transpose()?;
        let ca = pem.authorities.as_ref().map(|text| facts(text)).transpose()?;
        let out = |facts| CertificateOut::of(facts, now);
        Ok(Self {
            identity: identity.and_then(|chain| chain.into_iter().next()).map(out),
            ca: ca.map(|all| all.into_iter().map(out).collect()),
        })
    }
}

impl EndpointMtlsConfigIn {
    /// What can be used now, or what is wrong with it.
    fn check(self, now: Timestamp) -> Result<ClientPem, Error> {
        let Self { identity, ca } = self;
        if identity.is_none() && ca.is_none() {
            return Err(Error::invalid([], "`identity`, `ca` or both must be given"));
        }
        let flaw = |part, flaw: ClientTlsError| match part {
            Part::Identity => Error::invalid(["identity"], flaw.to_string()),
            Part::Authorities => Error::invalid(["ca"], flaw.to_string()),
        };
        ClientTls::load(identity.as_ref().map(|text| text.as_str()), ca.as_deref())
            .map_err(|(part, found)| flaw(part, found))?;
        for (part, text) in
            [(Part::Identity, identity.as_ref().map(|it| it.as_str())), (Part::Authorities, ca.as_deref())]
        {
            text.map_or(Ok(()), |text| check_times(text, now)).map_err(|found| flaw(part, found))?;
        }
        Ok(ClientPem { identity, authorities: ca })
    }
}

/// Get what is known of the client certificate and the authorities of an endpoint.
///
/// The certificate's key is never shown.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/mtls",
    operation_id = "v1.endpoint.get-mtls", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses(
        (status = 200, body = EndpointMtlsConfigOut),
        (status = 404, body = HttpErrorOut, description = "There is no such endpoint, or it has none"),
    ))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let private = api.open(&app.endpoint(&api).await?)?;
    let pem = private.client_tls.ok_or(Error::NotFound)?;
    let shown = EndpointMtlsConfigOut::of(&pem, (api.clock)()).map_err(|_| Error::Internal)?;
    Ok(json(StatusCode::OK, &shown))
}

/// Set the client certificate and the authorities of an endpoint, in place of those it had.
///
/// From then on it is called with them or not at all. Its URL must be https.
#[utoipa::path(put, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/mtls",
    operation_id = "v1.endpoint.set-mtls-config", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    request_body = EndpointMtlsConfigIn,
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
    let endpoint = app.endpoint(&api).await?;
    let pem = parse::<EndpointMtlsConfigIn>(&body)?.check((api.clock)())?;
    if !endpoint.url.starts_with("https://") {
        return Err(Error::invalid([], "the endpoint's URL is plain http; change it to https first"));
    }
    write(&api, &app, |private| Ok(Private { client_tls: Some(pem.clone()), ..private })).await
}

/// Remove the client certificate and the authorities of an endpoint.
#[utoipa::path(delete, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/mtls",
    operation_id = "v1.endpoint.delete-mtls-config", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses(
        (status = 204),
        (status = 404, body = HttpErrorOut, description = "There is no such endpoint, or it has none"),
    ))]
async fn delete(State(api): State<Arc<Api>>, app: InApp, query: Query, _: NoBody) -> Result<StatusCode, Error> {
    app.require(Capability::ManageEndpoint)?;
    query.finish()?;
    let remove = |private: Private| match private.client_tls {
        Some(_) => Ok(Private { client_tls: None, ..private }),
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn pem(from: i32, to: i32) -> String {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        format!("{}{}", params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn refused(identity: Option<String>, ca: Option<String>) -> Option<(Vec<String>, String)> {
        let now = Timestamp::from_millis(1_788_000_000_000);
        match (EndpointMtlsConfigIn { identity: identity.map(Zeroizing::new), ca }).check(now) {
            Ok(_) => None,
            Err(Error::Invalid(mut flaws)) => Some((flaws[0].loc.clone(), std::mem::take(&mut flaws[0].msg))),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_does_not_hold_now_is_refused_where_it_stands() {
        let certificate = |from, to| pem(from, to).split("-----BEGIN PRIVATE").next().unwrap().to_owned();
        for (identity, ca, expected) in [
            (Some(pem(2020, 2100)), None, None),
            (None, Some(certificate(2020, 2100)), None),
            (Some(pem(2020, 2100)), Some(certificate(2020, 2100)), None),
            (None, None, Some(("body", "must be given"))),
            (Some(pem(2020, 2021)), None, Some(("body.identity", "has expired"))),
            (Some(pem(2099, 2100)), None, Some(("body.identity", "not valid yet"))),
            (None, Some(certificate(2020, 2021)), Some(("body.ca", "has expired"))),
            (None, Some(pem(2020, 2100)), Some(("body.ca", "private key"))),
            (Some("x".repeat(65_537)), None, Some(("body.identity", "longer than 65536"))),
        ] {
            match (refused(identity, ca), expected) {
                (None, None) => {}
                (Some((loc, msg)), Some((place, words))) => {
                    assert!(loc.join(".") == place && msg.contains(words), "{loc:?}: {msg}");
                }
                (found, expected) => panic!("{found:?} in place of {expected:?}"),
            }
        }
    }
}
