//! One attempt: the request as it was sent and the answer as it came.

use super::{
    Site,
    frame::{Frame, indented, moment, page, readable},
    inside::{Fault, Path},
    message::{Attempt, Message},
    session::Session,
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::get,
};
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps/{app}/messages/{message}/attempts/{attempt}", get(show))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Headers {
    sent_headers: BTreeMap<String, String>,
    sensitive: Vec<String>,
    response_headers: Option<Vec<(String, String)>>,
}

impl Headers {
    fn are_kept(&self) -> bool {
        !self.sent_headers.is_empty() || !self.sensitive.is_empty()
    }
}

#[derive(Template)]
#[template(path = "attempt.html")]
struct AttemptPage {
    frame: Frame,
    app: String,
    message: Message,
    attempt: Attempt,
    headers: Headers,
}

async fn show(
    State(site): State<Arc<Site>>,
    Named((app, message, attempt)): Named<(String, String, String)>,
    session: Session,
) -> Result<Response, Fault> {
    let of_message = Path::api(&["app", &app, "msg", &message]);
    let of_attempt = Path::api(&["app", &app, "msg", &message, "attempt", &attempt]);
    let of_headers = Path::api(&["app", &app, "msg", &message, "attempt", &attempt, "headers"]);
    let (message, attempt, headers) = tokio::try_join!(
        site.inside.get(&session, &of_message),
        site.inside.get(&session, &of_attempt),
        site.inside.get(&session, &of_headers),
    )?;
    Ok(page(&AttemptPage { frame: Frame::new(&session), app, message, attempt, headers }))
}
