//! The messages of an application, or of all, newest first, and looking for some of them.

use super::{
    Site,
    endpoint::Endpoint,
    frame::{Frame, moment, page, to, tone},
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
use http::StatusCode;
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/apps/{app}/messages", get(show)).route("/messages", get(show_all))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    data: Vec<Standing>,
    iterator: Option<String>,
    searched_to: Option<String>,
}

/// A message, and with how many endpoints it stands how.
#[derive(Deserialize)]
struct Standing {
    #[serde(flatten)]
    message: Listed,
    statuses: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    id: String,
    app_id: String,
    event_type: String,
    event_id: Option<String>,
    #[serde(default)]
    channels: Vec<String>,
    #[serde(default)]
    tags: Vec<String>,
    timestamp: String,
}

#[derive(Template)]
#[template(path = "messages.html")]
struct MessagesPage {
    frame: Frame,
    /// `None`: those of all.
    app: Option<String>,
    asked: Asked,
    /// To choose from.
    endpoints: Vec<Endpoint>,
    /// Why nothing could be looked for.
    fault: Option<String>,
    found: Found,
    next: Option<Path>,
}

/// What was asked for, to be shown again in the form.
struct Asked {
    values: [String; FIELDS.len()],
}

/// Names here, and in the API.
const FIELDS: [(&str, &str); 7] = [
    ("type", "event_types"),
    ("tag", "tag"),
    ("channel", "channel"),
    ("endpoint", "endpoint_id"),
    ("status", "status"),
    ("from", "after"),
    ("to", "before"),
];

/// The contract's numbers.
const STATUSES: [(&str, &str); 5] =
    [("0", "delivered"), ("1", "not tried yet"), ("3", "being tried again"), ("2", "given up"), ("4", "called back")];

impl Asked {
    fn of(query: &Fields) -> Self {
        Self { values: FIELDS.map(|(name, _)| query.get(name).unwrap_or_default().to_owned()) }
    }

    fn get(&self, wanted: &str) -> &str {
        let place = FIELDS.iter().position(|(name, _)| *name == wanted);
        place.map_or("", |place| &self.values[place])
    }

    fn is_empty(&self) -> bool {
        self.values.iter().all(String::is_empty)
    }

    /// The same search elsewhere.
    fn on_page(&self, path: Path) -> Path {
        FIELDS.iter().zip(&self.values).fold(path, |path, ((name, _), value)| path.with(name, Some(value)))
    }

    fn of_api(&self, path: Path) -> Path {
        FIELDS.iter().zip(&self.values).fold(path, |path, ((name, field), value)| match *name {
            "from" | "to" => path.with(field, in_utc(value).as_deref()),
            _ => path.with(field, Some(value)),
        })
    }
}

/// What a browser's field for a moment holds, which names no zone. The API says what is wrong with anything else.
fn in_utc(text: &str) -> Option<String> {
    let is_local = text.len() >= 10 && !text.ends_with('Z') && !text.contains('+');
    match text.len() {
        0 => None,
        10 if is_local => Some(format!("{text}T00:00:00Z")),
        16 if is_local => Some(format!("{text}:00Z")),
        _ if is_local => Some(format!("{text}Z")),
        _ => Some(text.to_owned()),
    }
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
    let some = Path::api(&["app", &app, "endpoint"]).with("limit", Some("100"));
    let endpoints = site.inside.list::<Endpoint>(&session, &some).await?.data;
    let (api, here) = (Path::api(&["app", &app, "message-search"]), Path::page(&["apps", &app, "messages"]));
    list(&site, &session, (Some(app), endpoints), (api, here), &query).await
}

async fn show_all(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let (api, here) = (Path::api(&["message-search"]), Path::page(&["messages"]));
    let Some(id) = query.get("id") else { return list(&site, &session, (None, Vec::new()), (api, here), &query).await };
    match site.inside.get::<Listed>(&session, &Path::api(&["message", id])).await {
        Ok(found) => Ok(to(&Path::page(&["apps", &found.app_id, "messages", &found.id]))),
        Err(Fault::Refused { status: StatusCode::NOT_FOUND, .. }) => {
            let fault = "There is no message of this id. An event id is known within its application: look there.";
            let (frame, asked) = (Frame::new(&session), Asked::of(&query));
            let (endpoints, found, fault) = (Vec::new(), Found::default(), Some(fault.to_owned()));
            Ok(page(&MessagesPage { frame, app: None, asked, endpoints, fault, found, next: None }))
        }
        Err(other) => Err(other),
    }
}

async fn list(
    site: &Site,
    session: &Session,
    (app, endpoints): (Option<String>, Vec<Endpoint>),
    (api, here): (Path, Path),
    query: &Fields,
) -> Result<Response, Fault> {
    let asked = Asked::of(query);
    let wanted =
        api.with("limit", Some("50")).with("with_content", Some("false")).with("iterator", query.get("iterator"));
    let (found, fault) = match site.inside.get::<Found>(session, &asked.of_api(wanted)).await {
        Ok(found) => (found, None),
        Err(Fault::Refused { status: StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, detail }) => {
            (Found::default(), Some(detail))
        }
        Err(Fault::Refused { status: StatusCode::NOT_FOUND, .. }) if !asked.get("endpoint").is_empty() => {
            (Found::default(), Some("There is no such endpoint.".to_owned()))
        }
        Err(other) => return Err(other),
    };
    let next = found.iterator.as_deref().map(|iterator| asked.on_page(here).with("iterator", Some(iterator)));
    Ok(page(&MessagesPage { frame: Frame::new(session), app, asked, endpoints, fault, found, next }))
}

// Templates hand over references to references.
fn is_same(one: &str, other: &str) -> bool {
    one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_without_a_zone_is_utc() {
        for (text, sent) in [
            ("", None),
            ("2026-11-16", Some("2026-11-16T00:00:00Z")),
            ("2026-11-16T09:30", Some("2026-11-16T09:30:00Z")),
            ("2026-11-16T09:30:12", Some("2026-11-16T09:30:12Z")),
            ("2026-11-16T09:30:12Z", Some("2026-11-16T09:30:12Z")),
            ("2026-11-16T09:30:12+01:00", Some("2026-11-16T09:30:12+01:00")),
            ("nonsense", Some("nonsense")),
        ] {
            assert_eq!(in_utc(text).as_deref(), sent, "{text}");
        }
    }
}
