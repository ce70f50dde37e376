//! Whom operators' alerts go to, and trying whether they get there.

use super::{
    Site,
    frame::{Frame, page},
    inside::{Fault, Path},
    session::{Sent, Session},
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use http::Method;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/alerts", get(show).post(try_all))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    id: String,
    url: String,
    description: String,
    disabled: bool,
    filter_types: Option<Vec<String>>,
}

/// What came of a trial.
#[derive(Deserialize)]
struct Tried {
    mail: Mail,
    webhooks: Vec<Webhook>,
}

#[derive(Deserialize)]
struct Mail {
    status: String,
    detail: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Webhook {
    endpoint_id: String,
    status: String,
    response_status_code: Option<u16>,
}

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    endpoints: Vec<Endpoint>,
    tried: Option<Tried>,
}

async fn show(State(site): State<Arc<Site>>, session: Session) -> Result<Response, Fault> {
    shown(&site, &session, None).await
}

async fn try_all(State(site): State<Arc<Site>>, Sent { session, .. }: Sent) -> Result<Response, Fault> {
    let tried = site.inside.put(&session, Method::POST, &Path::api(&["alert", "test"]), json!({})).await?;
    shown(&site, &session, Some(tried)).await
}

async fn shown(site: &Site, session: &Session, tried: Option<Tried>) -> Result<Response, Fault> {
    let path = Path::api(&["operational-webhook", "endpoint"]).with("limit", Some("250"));
    let endpoints = site.inside.list::<Endpoint>(session, &path).await?.data;
    Ok(page(&AlertsPage { frame: Frame::new(session), endpoints, tried }))
}

impl AlertsPage {
    /// How the trial ended there.
    fn webhook(&self, id: &str) -> Option<&Webhook> {
        self.tried.as_ref()?.webhooks.iter().find(|webhook| webhook.endpoint_id == id)
    }
}

/// Which colour the end of a trial has.
fn ended(status: &str) -> &'static str {
    match status {
        "delivered" | "sent" => "good",
        "failed" => "bad",
        "waiting" => "wait",
        _ => "off",
    }
}
