//! One endpoint: how it fares, what waits for it, its latest attempts; and stopping it and letting it go on.

use super::{
    Site,
    chart::{Bars, HEIGHT, WIDTH},
    frame::{Frame, moment, page, readable, to, tone, until},
    history::History,
    inside::{Fault, Path},
    message::Attempt,
    session::{Fields, Sent, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::{get, post},
};
use http::Method;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/endpoints/{endpoint}", get(show))
        .route("/apps/{app}/endpoints/{endpoint}/secret", get(show_secret))
        .route("/apps/{app}/endpoints/{endpoint}/delete", get(ask_to_delete).post(delete))
        .route("/apps/{app}/endpoints/{endpoint}/{deed}", post(act))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub id: String,
    pub uid: Option<String>,
    pub url: String,
    pub description: String,
    pub disabled: bool,
    pub event_types: Option<Vec<String>>,
    pub channels: Option<Vec<String>>,
    pub rate_limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    pub state: String,
    pub summary: String,
    pub breaker: Breaker,
    pub failing_since: Option<String>,
    pub permanent_streak: u32,
    pub permanent_streak_max: Option<u32>,
    pub disable_after: Option<String>,
    pub disable_at: Option<String>,
    pub backlog: Option<Backlog>,
    /// The task that sifts the backlog before it goes on.
    pub resuming: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Breaker {
    pub state: String,
    pub failures: u32,
    pub failures_max: Option<u32>,
    pub open_until: Option<String>,
    pub trips: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backlog {
    pub waiting: u64,
    pub oldest: Option<String>,
    pub newest_per_key: u64,
}

#[derive(Template)]
#[template(path = "endpoint.html")]
struct EndpointPage {
    frame: Frame,
    app: String,
    endpoint: Endpoint,
    health: Health,
    history: History,
    bars: Bars,
    /// How long until it is disabled, if it is about to be.
    countdown: Option<String>,
    attempts: Vec<Attempt>,
    next: Option<Path>,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, id)): Named<(String, String)>,
    query: Fields,
) -> Result<Response, Fault> {
    let endpoint: Endpoint = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id])).await?;
    let health: Health = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id, "health"])).await?;
    let countdown = health.disable_at.as_deref().and_then(|at| until(at, site.sessions.now()));
    let wanted = Path::api(&["app", &app, "attempt", "endpoint", &id])
        .with("limit", Some("25"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<Attempt>(&session, &wanted).await?;
    let next =
        (!list.done).then(|| Path::page(&["apps", &app, "endpoints", &id]).with("iterator", list.iterator.as_deref()));
    let history: History =
        site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id, "attempt-history"])).await?;
    let bars = history.bars();
    let frame = Frame::after(&session, query.get("done"));
    Ok(page(&EndpointPage { frame, app, endpoint, health, history, bars, countdown, attempts: list.data, next }))
}

#[derive(Template)]
#[template(path = "secret.html")]
struct SecretPage {
    frame: Frame,
    app: String,
    endpoint: String,
    key: String,
}

async fn show_secret(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, endpoint)): Named<(String, String)>,
) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    struct Secret {
        key: String,
    }

    let path = Path::api(&["app", &app, "endpoint", &endpoint, "secret"]);
    let Secret { key } = site.inside.get(&session, &path).await?;
    Ok(page(&SecretPage { frame: Frame::new(&session), app, endpoint, key }))
}

#[derive(Template)]
#[template(path = "delete.html")]
struct DeletePage {
    frame: Frame,
    app: String,
    endpoint: Endpoint,
}

async fn ask_to_delete(
    State(site): State<Arc<Site>>,
    session: Session,
    Named((app, id)): Named<(String, String)>,
) -> Result<Response, Fault> {
    let endpoint = site.inside.get(&session, &Path::api(&["app", &app, "endpoint", &id])).await?;
    session.who().require(|may| may.manage)?;
    Ok(page(&DeletePage { frame: Frame::new(&session), app, endpoint }))
}

async fn delete(
    State(site): State<Arc<Site>>,
    Named((app, id)): Named<(String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    let caller = (session.token(), session.peer());
    site.inside.call(caller, Method::DELETE, &Path::api(&["app", &app, "endpoint", &id]), None).await?;
    Ok(to(&Path::page(&["apps", &app]).with("done", Some("deleted"))))
}

async fn act(
    State(site): State<Arc<Site>>,
    Named((app, id, deed)): Named<(String, String, String)>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let endpoint = ["app", &app, "endpoint", &id];
    let [a, b, c, d] = endpoint;
    let (path, body, done) = match &*deed {
        "pause" => (Path::api(&[a, b, c, d, "pause"]), None, "paused"),
        "resume" => {
            let keep = fields.get("deliver").unwrap_or("all");
            let done = if keep == "all" { "resumed" } else { "resuming" };
            (Path::api(&[a, b, c, d, "resume"]), Some(json!({"deliver": keep})), done)
        }
        "example" => (Path::api(&[a, b, c, d, "send-example"]), Some(json!({"eventType": "svix.ping"})), "example"),
        "reset" => (Path::api(&[a, b, c, d, "health", "reset"]), None, "reset"),
        _ => return Err(Fault::unknown()),
    };
    site.inside.post(&session, &path, body).await?;
    Ok(to(&Path::page(&["apps", &app, "endpoints", &id]).with("done", Some(done))))
}
