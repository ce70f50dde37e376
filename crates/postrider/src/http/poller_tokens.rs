//! The token that a poller is read with, which is good for nothing else.

use super::{
    Api,
    auth::InApp,
    error::{Error, HttpErrorOut, HttpValidationError},
    extract::{JsonBytes, Query, parse},
    idempotency::{IdempotencyKey, json},
    pollers::{Undone, by, change, named, of},
    portal::mint_failed,
    time::Time,
};
use crate::{
    credentials::{InDoubt, Refusal},
    pollers::{self, Poller, Token},
    tokens::Capability,
};
use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::StatusCode;
use postrider_engine::Timestamp;
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
pub struct RotatePollerTokenIn {
    /// In seconds; about ten years if absent.
    #[schema(minimum = 1, maximum = 31536000)]
    expiry: Option<u64>,
    /// How many seconds the old one still holds; five minutes if absent. 0: every older one ends at once.
    #[schema(minimum = 0, maximum = 86400)]
    old_token_expiry: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiTokenOut {
    id: String,
    token: String,
    created_at: Time,
    expires_at: Time,
}

impl RotatePollerTokenIn {
    /// How long the new one holds, and the old one.
    fn lives(&self) -> Result<(Option<Duration>, Duration), Error> {
        let expiry = match self.expiry {
            None => None,
            Some(seconds @ 1..=EXPIRY_MAX) => Some(Duration::from_secs(seconds)),
            Some(_) => return Err(Error::invalid(["expiry"], "must be 1 to 31536000 (a year)")),
        };
        match self.old_token_expiry {
            None => Ok((expiry, GRACE_DEFAULT)),
            Some(seconds @ ..=GRACE_MAX) => Ok((expiry, Duration::from_secs(seconds))),
            Some(_) => Err(Error::invalid(["oldTokenExpiry"], "must be at most 86400 (a day)")),
        }
    }
}

fn shown(api: &Api, app: &InApp, poller: &Poller) -> Result<ApiTokenOut, Error> {
    let token = poller.token();
    Ok(ApiTokenOut {
        id: token.name.clone(),
        token: api.credentials.tokens().mint_poller(app.key(), poller.key(), token).map_err(mint_failed)?,
        created_at: Time(Timestamp::from_millis(token.issued_at)),
        expires_at: Time(Timestamp::from_millis(token.expires_at)),
    })
}

/// Get the token of a poller.
#[utoipa::path(get, path = "/api/v1/auth/app/{app_id}/poller/{endpoint_id}/token",
    operation_id = "v1.authentication.get-poller-token", tag = "Authentication",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The poller's id or uid"),
    ),
    responses(
        (status = 200, body = ApiTokenOut),
        (status = 404, body = HttpErrorOut),
        (status = 409, body = HttpErrorOut, description = "It has ended"),
    ))]
async fn get(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    app.require(Capability::ViewEndpointSecret)?;
    query.finish()?;
    let shown = shown(&api, &app, &named(&api, &app, "endpoint_id")?)?;
    match api.credentials.verify(&shown.token, (api.clock)(), InDoubt::Refuse).await {
        Ok(_) => Ok(json(StatusCode::OK, &shown)),
        // With all tokens of the application, or by itself.
        Err(Refusal::Invalid | Refusal::WrongSecret(_)) => {
            Err(Error::Conflict("This poller's token has ended; rotate it for another".into()))
        }
        Err(Refusal::Unknown(fault)) => Err(fault.into()),
    }
}

/// Put a new token in the place of a poller's token.
#[utoipa::path(post, path = "/api/v1/auth/app/{app_id}/poller/{endpoint_id}/token/rotate",
    operation_id = "v1.authentication.rotate-poller-token", tag = "Authentication",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The poller's id or uid"),
        ("idempotency-key" = Option<String>, Header),
    ),
    request_body = RotatePollerTokenIn,
    responses(
        (status = 201, body = ApiTokenOut, description = "The new token"),
        (status = 400, body = HttpErrorOut, description = "Ten old ones still hold"),
        (status = 404, body = HttpErrorOut),
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
    let (life, grace) = parse::<RotatePollerTokenIn>(&body)?.lives()?;
    let by = by(&api, &app, "endpoint_id")?;
    let now = (api.clock)();
    let new = Token::new(&mut *api.rng(), now, life);
    // A token must not lie open in the database, so that the answer is kept without it, and a repetition is told the one
    // that there is then.
    let remember = key.remember(&app.principal, &body, &Answer { status: 201, body: Bytes::new() });
    let rotate = |all: &mut Vec<Poller>| {
        let poller = pollers::find_mut(all, &by).ok_or(Error::NotFound)?;
        poller.rotate_token(new.clone(), grace, now)?;
        Ok(poller.clone())
    };
    let poller = match change(&api, &app, remember, rotate).await {
        Ok(poller) => poller,
        Err(Undone::Repeated(_)) => {
            let application = app.store.application().await?.ok_or(Error::NotFound)?;
            pollers::find(&of(&application)?, &by).cloned().ok_or(Error::NotFound)?
        }
        Err(Undone::Failed(error)) => return Err(error),
    };
    Ok(json(StatusCode::CREATED, &shown(&api, &app, &poller)?))
}

const EXPIRY_MAX: u64 = 31_536_000;
const GRACE_MAX: u64 = 86_400;
const GRACE_DEFAULT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lasts_for_a_year_at_most_and_the_old_one_for_a_day() {
        let seconds = Duration::from_secs;
        for (body, expected) in [
            ("{}", Some((None, seconds(300)))),
            (r#"{"expiry":1,"oldTokenExpiry":0}"#, Some((Some(seconds(1)), Duration::ZERO))),
            (r#"{"expiry":31536000,"oldTokenExpiry":86400}"#, Some((Some(seconds(31_536_000)), seconds(86_400)))),
            (r#"{"expiry":0}"#, None),
            (r#"{"expiry":31536001}"#, None),
            (r#"{"oldTokenExpiry":86401}"#, None),
        ] {
            let read = parse::<RotatePollerTokenIn>(body.as_bytes()).unwrap().lives();
            assert_eq!(read.ok(), expected, "{body}");
        }
    }
}
