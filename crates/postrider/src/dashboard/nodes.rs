//! What the deployment runs on.

use super::{
    Site,
    frame::{Frame, moment, page},
    inside::{Fault, Path},
    session::Session,
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/nodes", get(show))
}

#[derive(Deserialize)]
struct Nodes {
    data: Vec<Node>,
    shards: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    id: i64,
    name: String,
    started_at: Option<String>,
    alive: bool,
    lease_until: Option<String>,
    retiring: bool,
    shards: u32,
    #[serde(rename = "self")]
    is_self: bool,
    version: Option<String>,
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct NodesPage {
    frame: Frame,
    nodes: Nodes,
}

async fn show(State(site): State<Arc<Site>>, session: Session) -> Result<Response, Fault> {
    let nodes = site.inside.get(&session, &Path::api(&["node"])).await?;
    Ok(page(&NodesPage { frame: Frame::new(&session), nodes }))
}
