//! What was counted over time: of everything, of an application, of an endpoint.

use super::{
    Api,
    auth::{Environment, InApp},
    error::{Error, HttpErrorOut},
    extract::Query,
    idempotency::json,
    stats::span,
    time::Time,
};
use crate::{
    standing::OpenBreaker,
    statistics::{Event, Period, Point, points},
};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_store::{Counted, OPERATIONAL, TalliesOf, TallyOf, TallySpan};
use serde::Serialize;
use std::{sync::Arc, time::Duration};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// More are not worth reading one by one.
const BREAKERS_SHOWN: usize = 20;

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(overview))
        .routes(routes!(of_application))
        .routes(routes!(of_endpoint))
        .routes(routes!(attempt_stats))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct EndpointAttemptStats {
    success: u64,
    fail: u64,
    /// Always 0: what is called back is not attempted.
    canceled: u64,
}

/// Everything, over an hour, a day or a week.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverviewOut {
    /// How many seconds each point stands for.
    step: u64,
    points: Vec<OverviewPoint>,
    /// All of it together.
    total: OverviewPoint,
    /// When it was found out how everything stands: some seconds ago, if that takes long.
    counted_at: Time,
    /// Endpoints that nothing is sent to because their breaker is open.
    breakers_open: u64,
    /// The first of them.
    breakers: Vec<OpenBreakerOut>,
    /// Deliveries that wait, those that are on their way for the first time not counted.
    waiting: u64,
    /// Since when the oldest of what could be sent has been due.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_due: Option<Time>,
    /// Since when the oldest of what waits for its endpoint has been due: paused, disabled, or with its breaker open.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_held: Option<Time>,
    /// Dead letters.
    dead: u64,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenBreakerOut {
    /// Absent: it is an operational endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    endpoint_id: String,
    url: String,
    /// Then it is tried again.
    until: Time,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverviewPoint {
    time: Time,
    /// Messages.
    accepted: u64,
    /// Attempts that delivered.
    delivered: u64,
    /// Attempts that did not.
    failed: u64,
    /// Deliveries that were given up.
    given_up: u64,
    /// Deliveries that waited when it was last looked at; absent, if nobody looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
    /// Dead letters at that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead: Option<u64>,
    /// How long attempts took.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_ms: Option<Percentiles>,
    /// How long it took from being accepted to having arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_ms: Option<Percentiles>,
}

/// Milliseconds, within the steps in which they are counted.
#[derive(Debug, Serialize, ToSchema)]
pub struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptHistoryOut {
    /// How many seconds each point stands for.
    step: u64,
    points: Vec<AttemptsPoint>,
    /// All of it together.
    total: AttemptsPoint,
}

/// Attempts by what became of them, and by the class of the status that was answered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptsPoint {
    time: Time,
    delivered: u64,
    failed: u64,
    given_up: u64,
    /// There was no answer.
    status_none: u64,
    status_1xx: u64,
    status_2xx: u64,
    status_3xx: u64,
    status_4xx: u64,
    status_5xx: u64,
}

/// See how everything goes.
///
/// Counted in memory and written every ten seconds; of what a process counted since then nothing is known if it died.
#[utoipa::path(get, path = "/api/v1/stats/overview", operation_id = "v1.statistics.overview", tag = "Statistics",
    params(("period" = Option<String>, Query, description = "`hour`, `day` or `week`: an hour, if absent")),
    responses(
        (status = 200, body = OverviewOut),
        (status = 403, body = HttpErrorOut, description = "The token is for one application"),
    ))]
async fn overview(State(api): State<Arc<Api>>, environment: Environment, mut query: Query) -> Result<Response, Error> {
    let period = period(&mut query)?.unwrap_or(Period::Hour);
    query.finish()?;
    let (now, store) = ((api.clock)(), environment.store());
    let since = now.minus(period.length());
    let counted = store.tallies(of(TallyOf::All, period.span(), since, now)).await?;
    let (points, whole) = points(&counted, since, now, period.step());
    let standing = api.standings.look(store, &api.directory, now).await?;
    let out = OverviewOut {
        step: period.step().as_secs(),
        points: points.iter().map(OverviewPoint::of).collect(),
        total: OverviewPoint::of(&whole),
        counted_at: Time(standing.at),
        breakers_open: standing.breakers.len() as u64,
        breakers: standing.breakers.iter().take(BREAKERS_SHOWN).map(|open| OpenBreakerOut::of(&api, open)).collect(),
        waiting: standing.counts.waiting,
        oldest_due: standing.oldest.ours.map(Time),
        oldest_held: standing.oldest.theirs.map(Time),
        dead: standing.counts.dead,
    };
    Ok(json(StatusCode::OK, &out))
}

/// See how an application's attempts go, hour by hour.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/attempt-history", operation_id = "v1.statistics.app-attempt-history",
    tag = "Statistics",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("period" = Option<String>, Query, description = "`day` or `week`: a day, if absent"),
    ),
    responses((status = 200, body = AttemptHistoryOut), (status = 404, body = HttpErrorOut)))]
async fn of_application(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    let (period, now) = (hours(query)?, (api.clock)());
    let counted = app.store.tallies(TallySpan::Hour, now.minus(period.length()), after(now)).await?;
    Ok(history(&counted, period, now))
}

/// See how an endpoint's attempts go, hour by hour.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/attempt-history",
    operation_id = "v1.statistics.endpoint-attempt-history", tag = "Statistics",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("period" = Option<String>, Query, description = "`day` or `week`: a day, if absent"),
    ),
    responses((status = 200, body = AttemptHistoryOut), (status = 404, body = HttpErrorOut)))]
async fn of_endpoint(State(api): State<Arc<Api>>, app: InApp, query: Query) -> Result<Response, Error> {
    let (period, now) = (hours(query)?, (api.clock)());
    let endpoint = app.endpoint(&api).await?;
    let since = now.minus(period.length());
    let counted = app.store.endpoint_tallies(&endpoint, TallySpan::Hour, since, after(now)).await?;
    Ok(history(&counted, period, now))
}

/// Count an endpoint's attempts by whether they delivered.
///
/// By whole hours: the one in which `since` lies counts with all of its attempts, and so does that of `until`.
#[utoipa::path(get, path = "/api/v1/app/{app_id}/endpoint/{endpoint_id}/attempt-stats",
    operation_id = "v1.endpoint.get-attempt-stats", tag = "Endpoint",
    params(
        ("app_id" = String, Path, description = "The application's id or uid"),
        ("endpoint_id" = String, Path, description = "The endpoint's id or uid"),
        ("since" = Option<Time>, Query, description = "28 days before `until`, if absent"),
        ("until" = Option<Time>, Query, description = "Now, if absent"),
    ),
    responses(
        (status = 200, body = EndpointAttemptStats),
        (status = 400, body = HttpErrorOut, description = "The span is longer than 28 days"),
        (status = 404, body = HttpErrorOut),
    ))]
async fn attempt_stats(State(api): State<Arc<Api>>, app: InApp, mut query: Query) -> Result<Response, Error> {
    let (since, until) = span(&mut query, (api.clock)())?;
    query.finish()?;
    let endpoint = app.endpoint(&api).await?;
    let counted = app.store.endpoint_tallies(&endpoint, TallySpan::Hour, since, until).await?;
    let first = TallySpan::Hour.start_of(since);
    let (_, whole) = points(&counted, first, until, TallySpan::Hour.length());
    Ok(json(StatusCode::OK, &EndpointAttemptStats { success: whole.delivered(), fail: whole.failed(), canceled: 0 }))
}

fn period(query: &mut Query) -> Result<Option<Period>, Error> {
    match query.text("period")?.as_deref() {
        None => Ok(None),
        Some("hour") => Ok(Some(Period::Hour)),
        Some("day") => Ok(Some(Period::Day)),
        Some("week") => Ok(Some(Period::Week)),
        Some(_) => Err(Error::BadQuery("`period` is `hour`, `day` or `week`".into())),
    }
}

/// For what is counted by the hour.
fn hours(mut query: Query) -> Result<Period, Error> {
    let period = period(&mut query)?.unwrap_or(Period::Day);
    query.finish()?;
    match period {
        Period::Hour => Err(Error::BadQuery("`period` is `day` or `week`: this is counted by the hour".into())),
        Period::Day | Period::Week => Ok(period),
    }
}

fn of(of: TallyOf, span: TallySpan, since: Timestamp, now: Timestamp) -> TalliesOf {
    TalliesOf { of, span, since, until: after(now) }
}

/// The end is exclusive, and this very moment is to be seen.
fn after(now: Timestamp) -> Timestamp {
    now.plus(Duration::from_millis(1))
}

fn history(counted: &[Counted], period: Period, now: Timestamp) -> Response {
    let step = TallySpan::Hour.length();
    let (points, whole) = points(counted, now.minus(period.length()), now, step);
    let out = AttemptHistoryOut {
        step: step.as_secs(),
        points: points.iter().map(AttemptsPoint::of).collect(),
        total: AttemptsPoint::of(&whole),
    };
    json(StatusCode::OK, &out)
}

impl OpenBreakerOut {
    fn of(api: &Api, OpenBreaker { endpoint, until }: &OpenBreaker) -> Self {
        let app = endpoint.lane.app;
        Self {
            app_id: (app != OPERATIONAL).then(|| api.ids.id_of(app)),
            endpoint_id: api.ids.id_of(endpoint.key),
            url: endpoint.shown_url.to_string(),
            until: Time(*until),
        }
    }
}

impl OverviewPoint {
    fn of(point: &Point) -> Self {
        Self {
            time: Time(point.start),
            accepted: point.of(Event::Accepted),
            delivered: point.delivered(),
            failed: point.failed(),
            given_up: point.of(Event::GivenUp),
            waiting: point.waiting,
            dead: point.dead,
            attempt_ms: Percentiles::of(point, Event::Took),
            delivery_ms: Percentiles::of(point, Event::Arrived),
        }
    }
}

impl Percentiles {
    fn of(point: &Point, steps: fn(u8) -> Event) -> Option<Self> {
        let within = |percent| point.percentile(steps, percent);
        Some(Self { p50: within(50.0)?, p95: within(95.0)?, p99: within(99.0)? })
    }
}

impl AttemptsPoint {
    fn of(point: &Point) -> Self {
        let status = |class| point.of(Event::Answer(class));
        Self {
            time: Time(point.start),
            delivered: point.delivered(),
            failed: point.failed(),
            given_up: point.of(Event::GivenUp),
            status_none: status(0),
            status_1xx: status(1),
            status_2xx: status(2),
            status_3xx: status(3),
            status_4xx: status(4),
            status_5xx: status(5),
        }
    }
}
