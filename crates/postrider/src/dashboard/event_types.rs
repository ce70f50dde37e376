//! Which types of events there are.

use super::{
    Site,
    frame::{Frame, indented, moment, page},
    inside::{Fault, Path},
    session::{Fields, Session},
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/event-types", get(show))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventType {
    name: String,
    description: String,
    archived: bool,
    deprecated: bool,
    schemas: Option<Box<RawValue>>,
    group_name: Option<String>,
    updated_at: String,
}

#[derive(Template)]
#[template(path = "event_types.html")]
struct EventTypesPage {
    frame: Frame,
    event_types: Vec<EventType>,
    archived: bool,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let archived = query.get("archived").is_some();
    let wanted = Path::api(&["event-type"])
        .with("limit", Some("50"))
        .with("with_content", Some("true"))
        .with("include_archived", archived.then_some("true"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<EventType>(&session, &wanted).await?;
    let next = (!list.done).then(|| {
        let path = Path::page(&["event-types"]).with("archived", query.get("archived"));
        path.with("iterator", list.iterator.as_deref())
    });
    Ok(page(&EventTypesPage { frame: Frame::new(&session), event_types: list.data, archived, next }))
}
