//! What the node that answers runs with, and where each of it was written.

use super::{
    Site,
    frame::{Frame, page},
    inside::{Fault, Path},
    session::{Fields, Session},
};
use askama::Template;
use axum::{Router, extract::State, response::Response, routing::get};
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/settings", get(show))
}

#[derive(Deserialize)]
struct Settings {
    data: Vec<Setting>,
    version: String,
    node: String,
}

#[derive(Deserialize)]
struct Setting {
    name: String,
    value: Option<String>,
    hidden: bool,
    source: String,
    place: String,
    about: String,
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    settings: Settings,
    /// Only what someone has written somewhere.
    only_chosen: bool,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let mut settings: Settings = site.inside.get(&session, &Path::api(&["settings"])).await?;
    let only_chosen = query.get("only") == Some("chosen");
    if only_chosen {
        settings.data.retain(|setting| setting.source != "default");
    }
    Ok(page(&SettingsPage { frame: Frame::new(&session), settings, only_chosen }))
}

/// What stands in marks of code in the reference page is read as well without them.
fn plain(about: &str) -> String {
    about.replace('`', "")
}
