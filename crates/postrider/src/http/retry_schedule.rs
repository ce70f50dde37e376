//! The retry schedule of an event type, in the contract's own form: a list of delays after which it ends.
//!
//! It is one of the things that the event type's `retryPolicy` can say, and is kept there.

use super::{
    Api,
    auth::{Caller, Environment},
    error::{Error, HttpErrorOut, HttpValidationError},
    event_types::{self, PathName},
    extract::{JsonBytes, Patch, Query, parse},
    idempotency::json,
    rules::RulesPatch,
};
use crate::rules::{RetryPolicy, Rules};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_store::EventType;
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get, put))
}

#[derive(Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryScheduleInOut {
    /// The wait before each retry; null: the schedule of the endpoint.
    retry_schedule: Option<Vec<DelayInOut>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DelayInOut {
    secs: u64,
    nanos: u32,
}

impl RetryScheduleInOut {
    fn of(event_type: &EventType) -> Self {
        let policy = Rules::stored(event_type.rules.as_deref()).retry_policy;
        let delays = policy.and_then(|policy| policy.as_table());
        let delay = |delay: Duration| DelayInOut { secs: delay.as_secs(), nanos: delay.subsec_nanos() };
        Self { retry_schedule: delays.map(|delays| delays.into_iter().map(delay).collect()) }
    }

    fn policy(self) -> Result<Patch<RetryPolicy>, Error> {
        let Some(delays) = self.retry_schedule else { return Ok(Patch::Clear) };
        if delays.len() > DELAYS_MAX {
            return Err(Error::invalid(["retrySchedule"], format!("at most {DELAYS_MAX} delays are allowed")));
        }
        let read = |delay: &DelayInOut| {
            if delay.nanos >= 1_000_000_000 {
                Err(Error::invalid(["retrySchedule"], "nanos must be less than a second"))
            } else if delay.secs >= DELAY_MAX.as_secs() {
                Err(Error::invalid(["retrySchedule"], "no delay may be longer than 30 days"))
            } else {
                Ok(Duration::new(delay.secs, delay.nanos / 1_000_000 * 1_000_000))
            }
        };
        Ok(Patch::Set(RetryPolicy::of_table(delays.iter().map(read).collect::<Result<_, _>>()?)))
    }
}

/// Get the retry schedule of an event type.
#[utoipa::path(get, path = "/api/v1/event-type/{event_type_name}/retry-schedule",
    operation_id = "v1.event-type.get-retry-schedule", tag = "Event Type",
    params(("event_type_name" = String, Path)),
    responses((status = 200, body = RetryScheduleInOut), (status = 404, body = HttpErrorOut)))]
async fn get(
    State(api): State<Arc<Api>>,
    Caller(principal): Caller,
    PathName(name): PathName,
    query: Query,
) -> Result<Response, Error> {
    query.finish()?;
    let found = event_types::find(&api, &principal, &name.ok_or(Error::NotFound)?).await?.ok_or(Error::NotFound)?;
    Ok(json(StatusCode::OK, &RetryScheduleInOut::of(&found)))
}

/// Set the retry schedule of an event type.
#[utoipa::path(put, path = "/api/v1/event-type/{event_type_name}/retry-schedule",
    operation_id = "v1.event-type.set-retry-schedule", tag = "Event Type",
    params(("event_type_name" = String, Path)),
    request_body = RetryScheduleInOut,
    responses(
        (status = 200, body = RetryScheduleInOut),
        (status = 404, body = HttpErrorOut),
        (status = 422, body = HttpValidationError),
    ))]
async fn put(
    State(api): State<Arc<Api>>,
    _: Environment,
    PathName(name): PathName,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let policy = parse::<RetryScheduleInOut>(&body)?.policy()?;
    let changed = event_types::change(&api, &name.ok_or(Error::NotFound)?, |old, now| {
        let rules = RulesPatch { retry_policy: policy.clone(), ..RulesPatch::default() };
        let rules = rules.apply(old.rules.as_deref()).to_store();
        Ok(EventType { rules, ..event_types::next(old, old.clone(), now) })
    })
    .await?;
    Ok(json(StatusCode::OK, &RetryScheduleInOut::of(&changed)))
}

const DELAYS_MAX: usize = 100;
const DELAY_MAX: Duration = Duration::from_hours(30 * 24);
