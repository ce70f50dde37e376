//! An application's attempts, as they happen.

use super::{
    Site,
    frame::{Frame, page},
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
use http::HeaderMap;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps/{app}/live", get(show)).route("/apps/{app}/live/events", get(follow))
}

#[derive(Template)]
#[template(path = "live.html")]
struct LivePage {
    frame: Frame,
    app: String,
    event_type: String,
    endpoint: String,
    /// Where the events come from.
    events: Path,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
    query: Fields,
) -> Result<Response, Fault> {
    // Whether it is there, and whether one may look at it.
    site.inside.get::<serde_json::Value>(&session, &Path::api(&["app", &app])).await?;
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    let (event_type, endpoint) = (shown("type"), shown("endpoint"));
    let events = Path::page(&["apps", &app, "live", "events"]);
    let events = events.with("type", Some(&event_type)).with("endpoint", Some(&endpoint));
    Ok(page(&LivePage { frame: Frame::new(&session), app, event_type, endpoint, events }))
}

async fn follow(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
    query: Fields,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    // Nobody reads hundreds a second. Whoever looks for a type may look for a rare one, and gets all of them.
    let latest = query.get("type").is_none().then_some("25");
    let path = Path::api(&["app", &app, "tail"])
        .with("event_types", query.get("type"))
        .with("endpoint_id", query.get("endpoint"))
        .with("latest", latest);
    site.inside.follow(&session, &path, headers.get("last-event-id").cloned()).await
}
