//! One application with its endpoints.

use super::{
    Site,
    applications::Application,
    chart::{Bars, HEIGHT, WIDTH},
    dead_letters::Count,
    endpoint::{Endpoint, Health},
    frame::{Frame, page, tone},
    history::History,
    inside::{Fault, Path},
    session::{Fields, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::get,
};
use futures_util::future::join_all;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps/{app}", get(show))
}

#[derive(Template)]
#[template(path = "application.html")]
struct ApplicationPage {
    frame: Frame,
    application: Application,
    /// Without the health of those of which it could not be found out.
    endpoints: Vec<(Endpoint, Option<Health>)>,
    dead: Count,
    history: History,
    bars: Bars,
    next: Option<Path>,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
    query: Fields,
) -> Result<Response, Fault> {
    let application: Application = site.inside.get(&session, &Path::api(&["app", &app])).await?;
    let wanted =
        Path::api(&["app", &app, "endpoint"]).with("limit", Some("25")).with("iterator", query.get("iterator"));
    let list = site.inside.list::<Endpoint>(&session, &wanted).await?;
    let healths = list.data.iter().map(|endpoint| health_of(&site, &session, &app, &endpoint.id));
    let (count, past) = (Count::of(&app), Path::api(&["app", &app, "attempt-history"]));
    let (healths, dead, history) = futures_util::join!(
        join_all(healths),
        site.inside.get(&session, &count),
        site.inside.get::<History>(&session, &past),
    );
    let (dead, history) = (dead?, history?);
    let endpoints = list.data.into_iter().zip(healths).collect();
    let bars = history.bars();
    let next = (!list.done).then(|| Path::page(&["apps", &app]).with("iterator", list.iterator.as_deref()));
    let frame = Frame::after(&session, query.get("done"));
    Ok(page(&ApplicationPage { frame, application, endpoints, dead, history, bars, next }))
}

/// A page that shows many does without those that cannot be found out.
async fn health_of(site: &Site, session: &Session, app: &str, endpoint: &str) -> Option<Health> {
    site.inside.get(session, &Path::api(&["app", app, "endpoint", endpoint, "health"])).await.ok()
}
