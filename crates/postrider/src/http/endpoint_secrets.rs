//! Signing secrets: shown to their owner, and rotated without a gap.

use super::{
    Api,
    auth::InApp,
    endpoints::{PutOutcome, SecretIn, new_secret, reseal},
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse},
    idempotency::{IdempotencyKey, json},
};
use crate::{
    tokens::Capability,
    vault::{ActiveSecret, Private},
};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_signature::SigningSecret;
use postrider_store::Answer;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get)).routes(routes!(rotate))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSecretRotateIn {
    /// Made at random if absent.
    #[schema(value_type = Option<String>)]
    key: Option<SecretIn>,
    /// How long the old secret goes on signing beside the new one; a day if absent.
    #[schema(maximum = 604800)]
    grace_period_seconds: Option<u32>,
}

#[derive(Serialize, ToSchema)]
/// What a receiver verifies with: a secret (`whsec_`), or the public half of a key (`whpk_`).
pub struct EndpointSecretOut {
    #[schema(example = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")]
    key: String,
}

impl EndpointSecretRotateIn {
    fn grace(&self) -> Result<Duration, Error> {
        match self.grace_period_seconds {
            None => Ok(GRACE_DEFAULT),
            Some(seconds) if Duration::from_secs(seconds.into()) <= GRACE_MAX => {
                Ok(Duration::from_secs(seconds.into()))
            }
            Some(_) => {
                Err(Error::invalid(["gracePeriodSeconds"], format!("must be at most {}, a week", GRACE_MAX.as_secs())))
            }
        }
    }
}

/// Puts a new secret first. The old ones keep what time they had.
fn rotated(private: Private, new: &SigningSecret, grace: Duration, now: Timestamp) -> Result<Private, Error> {
    let until = now.plus(grace);
    let mut secrets = vec![ActiveSecret { secret: new.clone(), expires_at: None }];
    for ActiveSecret { secret, expires_at } in private.secrets {
        let expires_at = expires_at.unwrap_or(until);
        if expires_at > now && secret != *new {
            secrets.push(ActiveSecret { secret, expires_at: Some(expires_at) });
        }
    }
    if secrets.len() - 1 > OLD_SECRETS_MAX {
        return Err(Error::LimitReached("Ten old secrets are still in their grace period; wait until one has expired"));
    }
    Ok(Private { secrets, ..private })
}

/// Get the signing secret of an endpoint.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret",
    operation_id = "v1.endpoint.get-secret", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
    ),
    responses((status = 200, body = EndpointSecretOut), (status = 404, body = HttpErrorOut)))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    app.require(Capability::ViewEndpointSecret)?;
    query.finish()?;
    Ok(json(StatusCode::OK, &current(&api, &app).await?))
}

/// Rotate the signing secret of an endpoint.
///
/// The old one goes on signing beside the new one for the grace period.
#[utoipa::path(post, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/secret/rotate",
    operation_id = "v1.endpoint.rotate-secret", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = EndpointSecretRotateIn,
    responses(
        (status = 200, body = EndpointSecretOut, description = "The new secret"),
        (status = 400, body = HttpErrorOut, description = "Too many old secrets still sign"),
        (status = 422, body = HttpValidationError),
    ))]
async fn rotate(
    State(api): State<Arc<Api>>,
    app: InApp,
    key: IdempotencyKey,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    app.require(Capability::ManageEndpointSecret)?;
    query.finish()?;
    Ok(json(StatusCode::OK, &rotate_now(&api, &app, &key, &body).await?))
}

/// Puts a new secret in the place of the current one, and tells which it is.
pub(super) async fn rotate_now(
    api: &Api,
    app: &InApp,
    key: &IdempotencyKey,
    body: &[u8],
) -> Result<EndpointSecretOut, Error> {
    let wanted: EndpointSecretRotateIn = parse(body)?;
    let grace = wanted.grace()?;
    let new = wanted.key.map_or_else(|| new_secret(api.settings.default_signature_type, &mut *api.rng()), |key| key.0);
    // Answers are kept as they are, and a secret must not lie open in the database. So this one is kept
    // without its body, and a repetition is told the secret that there is then.
    let remember = key.remember(&app.principal, body, &Answer { status: 200, body: Bytes::new() });
    let change = |private| rotated(private, &new, grace, (api.clock)());
    match reseal(api, app, change, remember).await {
        Ok(()) => Ok(EndpointSecretOut { key: new.reveal_to_receiver() }),
        Err(PutOutcome::Repeated) => current(api, app).await,
        Err(PutOutcome::Failed(fault)) => Err(fault),
    }
}

pub(super) async fn current(api: &Api, app: &InApp) -> Result<EndpointSecretOut, Error> {
    let private = api.open(&app.endpoint(api).await?)?;
    let secret = private.secrets.first().ok_or(Error::Internal)?;
    Ok(EndpointSecretOut { key: secret.secret.reveal_to_receiver() })
}

const GRACE_DEFAULT: Duration = Duration::from_secs(86_400);
const GRACE_MAX: Duration = Duration::from_secs(604_800);
const OLD_SECRETS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_signature::Secret;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const GRACE: Duration = Duration::from_secs(60);

    fn secret(byte: u8) -> SigningSecret {
        Secret::from_bytes(&[byte; 32]).unwrap().into()
    }

    fn private() -> Private {
        Private { secrets: vec![ActiveSecret { secret: secret(0), expires_at: None }], ..Private::default() }
    }

    #[test]
    fn the_new_secret_comes_first_and_the_old_one_stays_for_its_grace() {
        let after = rotated(private(), &secret(1), GRACE, NOW).unwrap();
        assert!(after.secrets[0] == ActiveSecret { secret: secret(1), expires_at: None });
        assert!(after.secrets[1] == ActiveSecret { secret: secret(0), expires_at: Some(NOW.plus(GRACE)) });
        let later = rotated(after, &secret(2), GRACE, NOW.plus(GRACE)).unwrap();
        assert_eq!(later.secrets.len(), 2, "what has expired is forgotten");
        assert_eq!(rotated(private(), &secret(1), Duration::ZERO, NOW).unwrap().secrets.len(), 1);
    }

    #[test]
    fn the_eleventh_old_secret_is_one_too_many() {
        let ten = (1..=10).try_fold(private(), |private, byte| rotated(private, &secret(byte), GRACE, NOW)).unwrap();
        assert_eq!(ten.secrets.len(), 11);
        assert!(matches!(rotated(ten, &secret(11), GRACE, NOW), Err(Error::LimitReached(_))));
    }

    #[test]
    fn the_grace_period_is_at_most_a_week() {
        for (body, expected) in [
            ("{}", Some(86_400)),
            (r#"{"gracePeriodSeconds":0}"#, Some(0)),
            (r#"{"gracePeriodSeconds":604800}"#, Some(604_800)),
            (r#"{"gracePeriodSeconds":604801}"#, None),
        ] {
            let read = parse::<EndpointSecretRotateIn>(body.as_bytes()).unwrap().grace();
            assert_eq!(read.ok(), expected.map(Duration::from_secs), "{body}");
        }
        assert!(parse::<EndpointSecretRotateIn>(br#"{"key":"abc"}"#).is_err());
    }
}
