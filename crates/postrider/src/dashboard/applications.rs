//! All applications, for whoever may see them.

use super::{
    Site,
    frame::{Frame, moment, page},
    inside::{Fault, Path},
    session::{Fields, Session},
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps", get(show))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    pub id: String,
    pub uid: Option<String>,
    pub name: String,
    pub created_at: String,
}

#[derive(Template)]
#[template(path = "applications.html")]
struct ApplicationsPage {
    frame: Frame,
    applications: Vec<Application>,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let wanted = Path::api(&["app"])
        .with("limit", Some("50"))
        .with("order", Some("descending"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<Application>(&session, &wanted).await?;
    let next = (!list.done).then(|| Path::page(&["apps"]).with("iterator", list.iterator.as_deref()));
    Ok(page(&ApplicationsPage { frame: Frame::new(&session), applications: list.data, next }))
}
