//! The retry schedule of an event type, in the contract's own form: a list of delays after which it ends.
//!
//! It is one of the things that the event type's `retryPolicy` can say, and is kept there.

use super::{
    Api,
    auth::{Caller, Environment},
    error::{Error, HttpErrorOut, HttpValidationError},
    event_types::{self, PathName},
    extract::{JsonBytes, Query, parse},
    idempotency::json,
};
use crate::rules::Rules;
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

    /// The delays, if they can be kept.
    fn delays(self) -> Result<Option<Vec<Duration>>, Error> {
        let refused = |msg: String| Error::invalid(["retrySchedule"], msg);
        let Some(delays) = self.retry_schedule else { return Ok(None) };
        if delays.len() > DELAYS_MAX {
            return Err(refused(format!("at most {DELAYS_MAX} delays are allowed")));
        }
        let mut total = Duration::ZERO;
        let mut read = Vec::with_capacity(delays.len());
        for delay in delays {
            if delay.nanos >= 1_000_000_000 || !delay.nanos.is_multiple_of(1_000_000) {
                return Err(refused("nanos must be whole milliseconds, and less than a second".to_owned()));
            }
            let delay = Duration::new(delay.secs, delay.nanos);
            total = total.saturating_add(delay);
            read.push(delay);
        }
        if total > TOTAL_MAX {
            return Err(refused("the delays must not add up to more than 30 days".to_owned()));
        }
        Ok(Some(read))
    }
}

/// Get the retry schedule of an event type.
#[utoipa::path(get, path = "/api/v1/event-type/{event_type_name}/retry-schedule",
    operation_id = "v1.event-type.get-retry-schedule", tag = "Event Type",
    params(("event_type_name" = String, Path)),
    responses((status = 200, body = RetryScheduleInOut), (status = 404, body = HttpErrorOut)))]
async fn get(
    State(api): State<Arc<Api>>,
    caller: Caller,
    PathName(name): PathName,
    query: Query,
) -> Result<Response, Error> {
    query.finish()?;
    let found =
        event_types::find(&api, caller.principal(), &name.ok_or(Error::NotFound)?).await?.ok_or(Error::NotFound)?;
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
    environment: Environment,
    PathName(name): PathName,
    query: Query,
    JsonBytes(body): JsonBytes,
) -> Result<Response, Error> {
    query.finish()?;
    let delays = parse::<RetryScheduleInOut>(&body)?.delays()?;
    let changed = event_types::change(&api, &environment, &name.ok_or(Error::NotFound)?, |old, now| {
        let mut rules = Rules::stored(old.rules.as_deref());
        rules.retry_policy = rules.retry_policy.unwrap_or_default().with_table(delays.clone());
        let rules = rules.to_store();
        Ok(EventType { rules, ..event_types::next(old, old.clone(), now) })
    })
    .await?;
    Ok(json(StatusCode::OK, &RetryScheduleInOut::of(&changed)))
}

const DELAYS_MAX: usize = 100;
const TOTAL_MAX: Duration = Duration::from_hours(30 * 24);
