//! One message: what it says, whom it is owed to, and every attempt with the reason of each wait.

use super::{
    Site,
    frame::{Frame, indented, moment, page, readable, to, tone},
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
use serde_json::{json, value::RawValue};
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/messages/{message}", get(show))
        .route("/apps/{app}/messages/{message}/resend/{endpoint}", post(resend))
        .route("/apps/{app}/messages/{message}/cancel", post(cancel))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub id: String,
    pub event_type: String,
    pub event_id: Option<String>,
    #[serde(default)]
    pub channels: Vec<String>,
    #[serde(default)]
    pub tags: Vec<String>,
    pub timestamp: String,
    pub deliver_at: Option<String>,
    pub ordering_key: Option<String>,
    /// As it was handed in, its names in the same order.
    pub payload: Box<RawValue>,
}

/// An endpoint, and how the message fares there.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Destination {
    id: String,
    url: String,
    status_text: String,
    next_attempt: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    pub id: String,
    pub msg_id: String,
    pub endpoint_id: String,
    pub url: String,
    pub response: String,
    pub response_status_code: u16,
    pub response_duration_ms: u64,
    pub status_text: String,
    pub trigger_type: u8,
    pub timestamp: String,
    pub verdict: Verdict,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub reason: String,
    pub attempt_number: u32,
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage {
    frame: Frame,
    app: String,
    message: Message,
    destinations: Vec<Destination>,
    attempts: Vec<Attempt>,
    /// These are all.
    is_complete: bool,
    /// Something has not come to its end.
    is_under_way: bool,
    next: Option<Path>,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, id)): Named<(String, String)>,
    query: Fields,
) -> Result<Response, Fault> {
    let message: Message = site.inside.get(&session, &Path::api(&["app", &app, "msg", &id])).await?;
    let wanted = Path::api(&["app", &app, "msg", &id, "endpoint"]).with("limit", Some("250"));
    let destinations = site.inside.list::<Destination>(&session, &wanted).await?;
    let (destinations, is_complete) = (destinations.data, destinations.done);
    let wanted = Path::api(&["app", &app, "attempt", "msg", &id])
        .with("limit", Some("50"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<Attempt>(&session, &wanted).await?;
    let next =
        (!list.done).then(|| Path::page(&["apps", &app, "messages", &id]).with("iterator", list.iterator.as_deref()));
    let is_under_way =
        !is_complete || destinations.iter().any(|one| matches!(&*one.status_text, "pending" | "sending"));
    let frame = Frame::after(&session, query.get("done"));
    Ok(page(&MessagePage { frame, app, message, destinations, attempts: list.data, is_complete, is_under_way, next }))
}

async fn resend(
    State(site): State<Arc<Site>>,
    Named((app, message, endpoint)): Named<(String, String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    let path = Path::api(&["app", &app, "msg", &message, "endpoint", &endpoint, "resend"]);
    site.inside.post(&session, &path, None).await?;
    Ok(to(&Path::page(&["apps", &app, "messages", &message]).with("done", Some("resent"))))
}

async fn cancel(
    State(site): State<Arc<Site>>,
    Named((app, message)): Named<(String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    site.inside.post(&session, &Path::api(&["app", &app, "msg", &message, "cancel"]), Some(json!({}))).await?;
    Ok(to(&Path::page(&["apps", &app, "messages", &message]).with("done", Some("canceled"))))
}
