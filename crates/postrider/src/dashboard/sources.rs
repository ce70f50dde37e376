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
    Router::new().route("/sources", get(show)).route("/sources/{source}", get(show_log))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    id: String,
    uid: Option<String>,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    verified: bool,
    app_id: String,
    created_at: String,
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
    next: Option<Path>,
}

#[derive(Template)]
#[template(path = "source_log.html")]
struct LogPage {
    frame: Frame,
    source: Source,
    log: Vec<Refused>,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let wanted = Path::ingest(&["source"])
        .with("limit", Some("50"))
        .with("order", Some("descending"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<Source>(&session, &wanted).await?;
    let next = (!list.done).then(|| Path::page(&["sources"]).with("iterator", list.iterator.as_deref()));
    Ok(page(&SourcesPage { frame: Frame::new(&session), sources: list.data, next }))
}

async fn show_log(
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
    Ok(page(&LogPage { frame: Frame::new(&session), source: found, log: list.data, next }))
}
