//! How everything goes, at a glance.

use super::{
    Site,
    chart::{Bars, HEIGHT, Lines, WIDTH, duration, short},
    frame::{Frame, moment, page},
    inside::{Fault, Path},
    session::{Fields, Session},
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/overview", get(show))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    points: Vec<Point>,
    total: Point,
    counted_at: String,
    breakers_open: u64,
    breakers: Vec<OpenBreaker>,
    waiting: u64,
    oldest_due: Option<String>,
    oldest_held: Option<String>,
    dead: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OpenBreaker {
    app_id: Option<String>,
    endpoint_id: String,
    url: String,
    until: String,
}

impl OpenBreaker {
    /// Where it can be seen why.
    fn page(&self) -> Path {
        match &self.app_id {
            Some(app) => Path::page(&["apps", app, "endpoints", &self.endpoint_id]),
            None => Path::page(&["alerts"]),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Point {
    time: String,
    accepted: u64,
    delivered: u64,
    failed: u64,
    given_up: u64,
    waiting: Option<u64>,
    attempt_ms: Option<Percentiles>,
    delivery_ms: Option<Percentiles>,
}

#[derive(Clone, Copy, Deserialize)]
struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    /// Each with its name, and whether it is shown.
    periods: Vec<(&'static str, &'static str, bool)>,
    overview: Overview,
    /// Of what was tried, what went well.
    success: Option<String>,
    /// For how long the oldest of what waits has been due: for us, and for its endpoint.
    oldest: Option<String>,
    oldest_held: Option<String>,
    attempts: Bars,
    latency: Lines,
    backlog: Lines,
}

const PERIODS: [(&str, &str); 3] = [("hour", "An hour"), ("day", "A day"), ("week", "A week")];

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let wanted = query.get("period").unwrap_or("hour");
    let path = Path::api(&["stats", "overview"]).with("period", Some(wanted));
    let overview: Overview = site.inside.get(&session, &path).await?;
    let points = &overview.points;
    let told =
        |point: &Point| format!("{}: {} delivered, {} failed", moment(&point.time), point.delivered, point.failed);
    let attempts = Bars::new(points.iter().map(|point| (point.delivered, point.failed, told(point))).collect());
    let within = |pick: fn(Percentiles) -> f64| points.iter().map(|point| point.attempt_ms.map(pick)).collect();
    let latency = Lines::new(&[within(|ms| ms.p50), within(|ms| ms.p95), within(|ms| ms.p99)], duration);
    let backlog = Lines::new(&[points.iter().map(|point| point.waiting.map(|many| many as f64)).collect()], short);
    let periods = PERIODS.map(|(name, words)| (name, words, name == wanted)).to_vec();
    let success = success(&overview.total);
    let age = |due: &Option<String>| due.as_deref().and_then(|due| age(due, &overview.counted_at));
    let (oldest, oldest_held) = (age(&overview.oldest_due), age(&overview.oldest_held));
    let frame = Frame::new(&session);
    Ok(page(&OverviewPage { frame, periods, success, oldest, oldest_held, attempts, latency, backlog, overview }))
}

/// How long ago that was.
fn age(then: &str, now: &str) -> Option<String> {
    let (then, now): (jiff::Timestamp, jiff::Timestamp) = (then.parse().ok()?, now.parse().ok()?);
    Some(duration((now.as_millisecond() - then.as_millisecond()).max(0) as f64))
}

/// Never rounded up to all.
fn success(total: &Point) -> Option<String> {
    let all = total.delivered + total.failed;
    (all > 0).then(|| {
        let tenths = total.delivered * 1_000 / all;
        format!("{}.{} %", tenths / 10, tenths % 10)
    })
}

// Templates hand over references.
fn count(count: &u64) -> String {
    short(*count as f64)
}

fn lasting(millis: &f64) -> String {
    duration(*millis)
}
