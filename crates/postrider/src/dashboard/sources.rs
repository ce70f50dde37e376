//! Where other services send to, and what was refused there. What was taken is on the pages of the source's application.

use super::{
    Site,
    frame::{Frame, moment, page},
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
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/sources", get(show)).route("/sources/{source}", get(show_one))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    pub id: String,
    pub uid: Option<String>,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub verified: bool,
    pub app_id: String,
    /// `None` for those who may not see it.
    pub ingest_url: Option<String>,
    #[serde(default)]
    pub pass_headers: Vec<String>,
    pub id_from: Option<String>,
    pub type_from: Option<String>,
    pub created_at: String,
}

/// Those that are there, and those of them that cannot be read.
#[derive(Deserialize)]
struct List {
    data: Vec<Source>,
    iterator: Option<String>,
    done: bool,
    #[serde(default)]
    unreadable: Vec<Unreadable>,
}

#[derive(Deserialize)]
struct Unreadable {
    id: String,
    uid: Option<String>,
    name: String,
}

#[derive(Deserialize)]
struct Refused {
    created_at: String,
    status_code: u16,
    error_text: String,
    headers: BTreeMap<String, String>,
    payload: String,
}

#[derive(Template)]
#[template(path = "sources.html")]
struct SourcesPage {
    frame: Frame,
    sources: Vec<Source>,
    unreadable: Vec<Unreadable>,
    next: Option<Path>,
}

#[derive(Template)]
#[template(path = "source.html")]
struct SourcePage {
    frame: Frame,
    source: Source,
    /// It is a credential, and shown to who asks for it or has just made it.
    shows_url: bool,
    log: Vec<Refused>,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let wanted = Path::ingest(&["source"])
        .with("limit", Some("50"))
        .with("order", Some("descending"))
        .with("iterator", query.get("iterator"));
    let List { data: sources, iterator, done, unreadable } = site.inside.get(&session, &wanted).await?;
    let next = (!done).then(|| Path::page(&["sources"]).with("iterator", iterator.as_deref()));
    Ok(page(&SourcesPage { frame: Frame::after(&session, query.get("done")), sources, unreadable, next }))
}

async fn show_one(
    State(site): State<Arc<Site>>,
    Named(source): Named<String>,
    session: Session,
    query: Fields,
) -> Result<Response, Fault> {
    let found: Source = site.inside.get(&session, &Path::ingest(&["source", &source])).await?;
    let wanted =
        Path::ingest(&["source", &source, "log"]).with("limit", Some("25")).with("iterator", query.get("iterator"));
    let list = site.inside.list::<Refused>(&session, &wanted).await?;
    let next = (!list.done).then(|| Path::page(&["sources", &source]).with("iterator", list.iterator.as_deref()));
    let done = query.get("done");
    let shows_url = query.get("show") == Some("url") || matches!(done, Some("source-made" | "source-rotated"));
    let frame = Frame::after(&session, done);
    Ok(page(&SourcePage { frame, source: found, shows_url, log: list.data, next }))
}
