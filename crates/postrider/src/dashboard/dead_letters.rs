//! What was given up, why, and sending it again: one, or all that match.

use super::{
    Site,
    frame::{Frame, moment, page, to},
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
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/dead-letters", get(show))
        .route("/apps/{app}/dead-letters/replay", get(ask).post(replay_all))
        .route("/apps/{app}/dead-letters/{message}/{endpoint}/replay", post(replay))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeadLetter {
    msg_id: String,
    event_type: String,
    endpoint_id: String,
    endpoint_url: Option<String>,
    reason: String,
    reason_text: String,
    died_at: String,
    attempts: u32,
    last_attempt: Option<Attempt>,
}

#[derive(Deserialize)]
pub struct Count {
    pub count: u64,
    pub capped: bool,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct DeadLettersPage {
    frame: Frame,
    app: String,
    endpoint: String,
    event_type: String,
    reason: String,
    letters: Vec<DeadLetter>,
    count: Count,
    next: Option<Path>,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
    query: Fields,
) -> Result<Response, Fault> {
    let filtered = |path: Path, names: [&str; 3]| {
        let values = [query.get("endpoint"), query.get("type"), query.get("reason")];
        names.into_iter().zip(values).fold(path, |path, (name, value)| path.with(name, value))
    };
    let names = ["endpoint_id", "event_types", "reason"];
    let wanted =
        Path::api(&["app", &app, "dead-letter"]).with("limit", Some("50")).with("iterator", query.get("iterator"));
    let list = site.inside.list::<DeadLetter>(&session, &filtered(wanted, names)).await?;
    let count = filtered(Path::api(&["app", &app, "dead-letter", "count"]), names);
    let count = site.inside.get(&session, &count).await?;
    let next = (!list.done).then(|| {
        let path = Path::page(&["apps", &app, "dead-letters"]).with("iterator", list.iterator.as_deref());
        filtered(path, ["endpoint", "type", "reason"])
    });
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    Ok(page(&DeadLettersPage {
        frame: Frame::after(&session, query.get("done")),
        endpoint: shown("endpoint"),
        event_type: shown("type"),
        reason: shown("reason"),
        app,
        letters: list.data,
        count,
        next,
    }))
}

async fn replay(
    State(site): State<Arc<Site>>,
    Named((app, message, endpoint)): Named<(String, String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    let path = Path::api(&["app", &app, "dead-letter", &message, "endpoint", &endpoint, "replay"]);
    site.inside.post(&session, &path, None).await?;
    Ok(to(&Path::page(&["apps", &app, "messages", &message]).with("done", Some("replayed"))))
}

#[derive(Template)]
#[template(path = "replay_all.html")]
struct ReplayAllPage {
    frame: Frame,
    app: String,
    endpoint: String,
    event_type: String,
    reason: String,
}

async fn ask(session: Session, Named(app): Named<String>, query: Fields) -> Response {
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    page(&ReplayAllPage {
        frame: Frame::new(&session),
        app,
        endpoint: shown("endpoint"),
        event_type: shown("type"),
        reason: shown("reason"),
    })
}

async fn replay_all(
    State(site): State<Arc<Site>>,
    Named(app): Named<String>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let mut wanted = Map::new();
    for (field, name) in [("endpoint", "endpointId"), ("reason", "reason")] {
        if let Some(value) = fields.get(field) {
            wanted.insert(name.to_owned(), value.into());
        }
    }
    if let Some(event_type) = fields.get("type") {
        // As in the list's own filter.
        wanted.insert("eventTypes".to_owned(), event_type.split(',').map(str::trim).collect());
    }
    let path = Path::api(&["app", &app, "dead-letter", "replay"]);
    site.inside.post(&session, &path, Some(Value::Object(wanted))).await?;
    Ok(to(&Path::page(&["apps", &app, "dead-letters"]).with("done", Some("replaying"))))
}
