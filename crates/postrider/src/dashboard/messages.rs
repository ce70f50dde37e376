//! The messages of an application, newest first.

use super::{
    Site,
    frame::{Frame, moment, page, to},
    inside::{Fault, Path},
    message::Message,
    session::{Fields, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::get,
};
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps/{app}/messages", get(show))
}

#[derive(Template)]
#[template(path = "messages.html")]
struct MessagesPage {
    frame: Frame,
    app: String,
    /// What was asked for, to be shown again in the form.
    event_type: String,
    tag: String,
    channel: String,
    messages: Vec<Message>,
    next: Option<Path>,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
    query: Fields,
) -> Result<Response, Fault> {
    // An id leads to its message at once.
    if let Some(id) = query.get("id") {
        return Ok(to(&Path::page(&["apps", &app, "messages", id])));
    }
    let filtered = |path: Path, names: [&str; 3]| {
        let values = [query.get("type"), query.get("tag"), query.get("channel")];
        names.into_iter().zip(values).fold(path, |path, (name, value)| path.with(name, value))
    };
    let wanted = Path::api(&["app", &app, "msg"])
        .with("limit", Some("50"))
        .with("with_content", Some("false"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<Message>(&session, &filtered(wanted, ["event_types", "tag", "channel"])).await?;
    let next = (!list.done).then(|| {
        let path = Path::page(&["apps", &app, "messages"]).with("iterator", list.iterator.as_deref());
        filtered(path, ["type", "tag", "channel"])
    });
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    Ok(page(&MessagesPage {
        frame: Frame::new(&session),
        event_type: shown("type"),
        tag: shown("tag"),
        channel: shown("channel"),
        app,
        messages: list.data,
        next,
    }))
}
