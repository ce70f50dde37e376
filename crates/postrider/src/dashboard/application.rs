//! One application with its endpoints.

use super::{
    Site,
    applications::Application,
    dead_letters::Count,
    endpoint::{Endpoint, Health},
    frame::{Frame, page, tone},
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
    let mut endpoints = Vec::with_capacity(list.data.len());
    for endpoint in list.data {
        let health = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &endpoint.id, "health"])).await;
        endpoints.push((endpoint, health.ok()));
    }
    let count = Path::api(&["app", &app, "dead-letter", "count"]);
    let dead = site.inside.get(&session, &count).await?;
    let next = (!list.done).then(|| Path::page(&["apps", &app]).with("iterator", list.iterator.as_deref()));
    Ok(page(&ApplicationPage { frame: Frame::after(&session, query.get("done")), application, endpoints, dead, next }))
}
