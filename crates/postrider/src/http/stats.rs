//! How an endpoint's messages fare, counted over a time span.

use super::{
    Api,
    auth::InApp,
    error::{Error, HttpErrorOut},
    extract::Query,
    idempotency::json,
    time::Time,
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::Timestamp;
use serde::Serialize;
use std::{sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(get))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct EndpointStats {
    success: u64,
    pending: u64,
    sending: u64,
    fail: u64,
    canceled: u64,
}

/// Count an endpoint's messages by their state.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/stats",
    operation_id = "v1.endpoint.get-stats", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("since" = Option<Time>, Query, description = "28 days before `until`, if absent"),
        ("until" = Option<Time>, Query, description = "Now, if absent"),
    ),
    responses(
        (status = 200, body = EndpointStats),
        (status = 400, body = HttpErrorOut, description = "The span is longer than 28 days"),
        (status = 404, body = HttpErrorOut),
    ))]
async fn get(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let (since, until) = span(&mut query, (api.clock)())?;
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let stats = app.store.stats(&endpoint, since, until).await?;
    Ok(json(
        StatusCode::OK,
        &EndpointStats {
            success: stats.success,
            pending: stats.pending,
            sending: stats.sending,
            fail: stats.fail,
            canceled: stats.canceled,
        },
    ))
}

pub fn span(query: &mut Query, now: Timestamp) -> Result<(Timestamp, Timestamp), Error> {
    // The end is exclusive, and what was accepted in this very millisecond is to be counted.
    let until = query.time("until")?.unwrap_or_else(|| now.plus(Duration::from_millis(1)));
    let since = query.time("since")?.unwrap_or_else(|| until.minus(SPAN_MAX));
    if since > until {
        return Err(Error::InvalidRange("`since` must not be after `until`"));
    }
    if until.since(since) > SPAN_MAX {
        return Err(Error::InvalidRange("`since` and `until` may be 28 days apart at most"));
    }
    Ok((since, until))
}

const SPAN_MAX: Duration = Duration::from_secs(28 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_at_most_28_days_long() {
        let now: Time = "2026-01-31T00:00:00Z".parse().unwrap();
        let read = |text: &str| span(&mut Query::read(Some(text)), now.0);
        let end = now.0.plus(Duration::from_millis(1));
        assert_eq!(read(""), Ok((end.minus(SPAN_MAX), end)));
        assert!(read("since=2026-01-03T00:00:01Z").is_ok());
        for text in [
            "since=2026-01-02T00:00:00Z",
            "since=2026-02-01T00:00:00Z",
            "until=2026-01-01T00:00:00Z&since=2026-01-02T00:00:00Z",
        ] {
            assert!(matches!(read(text), Err(Error::InvalidRange(_))), "{text}");
        }
        assert!(matches!(read("since=now"), Err(Error::BadQuery(_))));
        assert!(read("until=9999-12-30T00:00:00Z").is_ok());
    }
}
