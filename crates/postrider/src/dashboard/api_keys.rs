//! Keys of the API that were made, and ending them.

use super::{
    Site,
    frame::{Frame, moment, page, to},
    inside::{Fault, Path},
    session::{Fields, Sent, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::{get, post},
};
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/api-keys", get(show)).route("/api-keys/{key}/revoke", post(revoke))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiKey {
    id: String,
    name: String,
    scopes: Vec<String>,
    app_id: Option<String>,
    created_at: String,
    expires_at: Option<String>,
    revoked_at: Option<String>,
    last_used_at: Option<String>,
}

#[derive(Template)]
#[template(path = "api_keys.html")]
struct ApiKeysPage {
    frame: Frame,
    keys: Vec<ApiKey>,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let wanted = Path::api(&["api-key"])
        .with("limit", Some("50"))
        .with("order", Some("descending"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<ApiKey>(&session, &wanted).await?;
    let next = (!list.done).then(|| Path::page(&["api-keys"]).with("iterator", list.iterator.as_deref()));
    Ok(page(&ApiKeysPage { frame: Frame::after(&session, query.get("done")), keys: list.data, next }))
}

async fn revoke(
    State(site): State<Arc<Site>>,
    Named(key): Named<String>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    site.inside.post(&session, &Path::api(&["api-key", &key, "revoke"]), None).await?;
    Ok(to(&Path::page(&["api-keys"]).with("done", Some("revoked"))))
}
