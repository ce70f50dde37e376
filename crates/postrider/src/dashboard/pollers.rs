//! An application's pollers: by which those fetch who cannot be sent to.

use super::{
    Site,
    applications::Application,
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
use futures_util::future::join_all;
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps/{app}/pollers", get(show))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Poller {
    pub id: String,
    pub uid: Option<String>,
    pub description: String,
    pub filter_types: Option<Vec<String>>,
    pub channels: Option<Vec<String>>,
    pub created_at: String,
    pub updated_at: String,
}

impl Poller {
    /// The API has no operation that tells of one alone; of them all there are few.
    pub async fn all(site: &Site, session: &Session, app: &str) -> Result<Vec<Self>, Fault> {
        let path = Path::api(&["app", app, "poller"]).with("limit", Some("250"));
        Ok(site.inside.list(session, &path).await?.data)
    }

    /// `name`: its id or uid.
    pub async fn find(site: &Site, session: &Session, app: &str, name: &str) -> Result<Self, Fault> {
        let all = Self::all(site, session, app).await?;
        all.into_iter()
            .find(|poller| poller.id == name || poller.uid.as_deref() == Some(name))
            .ok_or_else(Fault::unknown)
    }

    /// What people call it.
    pub fn called(&self) -> &str {
        self.uid.as_deref().unwrap_or(&self.id)
    }
}

/// Someone who fetches by a poller, and whose place is kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Consumer {
    pub consumer_id: String,
    pub iterator: String,
    pub place_at: String,
    pub moved_at: String,
}

impl Consumer {
    pub async fn all(site: &Site, session: &Session, app: &str, poller: &str) -> Result<Vec<Self>, Fault> {
        #[derive(Deserialize)]
        struct Consumers {
            data: Vec<Consumer>,
        }

        let path = Path::api(&["app", app, "poller", poller, "consumer"]);
        Ok(site.inside.get::<Consumers>(session, &path).await?.data)
    }
}

#[derive(Template)]
#[template(path = "pollers.html")]
struct PollersPage {
    frame: Frame,
    application: Application,
    /// Without the number of consumers where it could not be found out.
    pollers: Vec<(Poller, Option<usize>)>,
}

async fn show(
    State(site): State<Arc<Site>>,
    session: Session,
    Named(app): Named<String>,
    query: Fields,
) -> Result<Response, Fault> {
    let application = site.inside.get(&session, &Path::api(&["app", &app])).await?;
    let pollers = Poller::all(&site, &session, &app).await?;
    let consumers = join_all(pollers.iter().map(|poller| Consumer::all(&site, &session, &app, &poller.id))).await;
    let counts = consumers.into_iter().map(|found| found.ok().map(|consumers| consumers.len()));
    let pollers = pollers.into_iter().zip(counts).collect();
    Ok(page(&PollersPage { frame: frame_after(&session, query.get("done")), application, pollers }))
}

/// `done`: a word that a page of pollers was left with.
pub fn frame_after(session: &Session, done: Option<&str>) -> Frame {
    let notice = DONE.iter().find(|(word, _)| Some(*word) == done).map(|(_, text)| *text);
    Frame { notice, ..Frame::new(session) }
}

const DONE: [(&str, &str); 5] = [
    ("made", "The poller was made. It gives the messages that come from now on."),
    ("changed", "The poller was changed. Its token and the places of its consumers are as before."),
    ("deleted", "The poller was deleted. The messages are still there."),
    ("forgotten", "The place of the consumer is forgotten. If it comes again, it begins as a new one."),
    ("rotated", "There is a new token: whoever fetches needs it before the old one ends."),
];
