//! The token of a poller: shown when a button is pressed, and replaced by another.

use super::{
    Site,
    frame::{Frame, moment, page, to},
    inside::{Fault, Path},
    poller::{Here, Rotation, shown},
    poller_form::capitalised,
    pollers::Poller,
    session::{Sent, Session},
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::{get, post},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/pollers/{poller}/token", get(back).post(show))
        .route("/apps/{app}/pollers/{poller}/rotate", post(rotate))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    token: String,
    created_at: String,
    expires_at: String,
}

#[derive(Template)]
#[template(path = "poller_token.html")]
struct TokenPage {
    frame: Frame,
    app: String,
    poller: Poller,
    token: Token,
}

/// The address of what was shown shows nothing.
async fn back(_: Session, Named((app, name)): Named<(String, String)>) -> Response {
    to(&Path::page(&["apps", &app, "pollers", &name]))
}

/// Only when a form asks for it: no link can bring a token onto a screen, and none is left in a history.
async fn show(
    State(site): State<Arc<Site>>,
    Named((app, name)): Named<(String, String)>,
    here: Here,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    let poller = Poller::find(&site, &session, &app, &name).await?;
    let path = Path::api(&["auth", "app", &app, "poller", &poller.id, "token"]);
    match site.inside.get(&session, &path).await {
        Ok(token) => Ok(page(&TokenPage { frame: Frame::new(&session), app, poller, token })),
        // It has ended: whoever may is led to where there is another.
        Err(Fault::Refused { status: StatusCode::CONFLICT, detail }) if session.who().may.rotate_secrets => {
            let rotation = Rotation::refused(String::new(), detail);
            shown(&site, &session, Frame::new(&session), (app, name), here, rotation).await
        }
        Err(other) => Err(other),
    }
}

/// Does not show the new one: whoever loads that page again would make yet another.
async fn rotate(
    State(site): State<Arc<Site>>,
    Named((app, name)): Named<(String, String)>,
    here: Here,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let overlap = fields.get("overlap").unwrap_or_default().to_owned();
    let seconds = overlap.parse::<u64>().map_or_else(|_| Value::from(&*overlap), Value::from);
    let path = Path::api(&["auth", "app", &app, "poller", &name, "token", "rotate"]);
    match site.inside.post(&session, &path, Some(json!({"oldTokenExpiry": seconds}))).await {
        Ok(()) => Ok(to(&Path::page(&["apps", &app, "pollers", &name]).with("done", Some("rotated")))),
        Err(Fault::Refused { status: StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, detail }) => {
            let fault = capitalised(detail.strip_prefix("oldTokenExpiry: ").unwrap_or(&detail));
            let rotation = Rotation::refused(overlap, fault);
            shown(&site, &session, Frame::new(&session), (app, name), here, rotation).await
        }
        Err(other) => Err(other),
    }
}
