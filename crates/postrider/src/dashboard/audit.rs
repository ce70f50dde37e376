//! Who changed what.

use super::{
    Site,
    frame::{Frame, moment, page},
    inside::{Fault, Path},
    session::{Fields, Session},
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/audit", get(show))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    timestamp: String,
    actor: String,
    operation: String,
    objects: BTreeMap<String, String>,
    origin: Option<String>,
    status: u16,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    actor: String,
    operation: String,
    entries: Vec<Entry>,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let filtered = |path: Path| path.with("actor", query.get("actor")).with("operation", query.get("operation"));
    let wanted = Path::api(&["audit"]).with("limit", Some("50")).with("order", Some("descending"));
    let wanted = filtered(wanted).with("iterator", query.get("iterator"));
    let list = site.inside.list::<Entry>(&session, &wanted).await?;
    let next = (!list.done).then(|| filtered(Path::page(&["audit"])).with("iterator", list.iterator.as_deref()));
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    let (actor, operation) = (shown("actor"), shown("operation"));
    Ok(page(&AuditPage { frame: Frame::new(&session), actor, operation, entries: list.data, next }))
}
