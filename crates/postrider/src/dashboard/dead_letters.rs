//! What was given up, why, and sending it again: one, some, or all that match.

use super::{
    Site,
    frame::{Frame, moment, page, to, tone},
    inside::{Fault, Path},
    message::Attempt,
    session::{Fields, Sent, Session},
    tasks::Task,
};
use askama::Template;
use axum::{
    Router,
    extract::{Path as Named, State},
    response::Response,
    routing::{get, post},
};
use futures_util::StreamExt;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeSet, sync::Arc};

pub fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/apps/{app}/dead-letters", get(show))
        .route("/apps/{app}/dead-letters/replay", get(ask).post(replay_all))
        .route("/apps/{app}/dead-letters/replay-selected", post(replay_selected))
        .route("/apps/{app}/dead-letters/tasks/{task}/cancel", post(cancel))
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

impl Count {
    /// Nobody looks at thousands one by one, and to count them all would take the longer the more there are.
    pub fn of(app: &str) -> Path {
        Path::api(&["app", app, "dead-letter", "count"]).with("max", Some("1000"))
    }
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
    /// All of this page are ticked already.
    is_all_ticked: bool,
    count: Count,
    /// What is being sent again, and the task that was just begun or ended.
    tasks: Vec<Task>,
    /// This page, with all of it ticked.
    ticked: Path,
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
    let count = match list.done && query.get("iterator").is_none() {
        true => Count { count: list.data.len() as u64, capped: false },
        false => site.inside.get(&session, &filtered(Count::of(&app), names)).await?,
    };
    let tasks = tasks(&site, &session, &app, query.get("task")).await?;
    let page_from = |iterator: Option<&str>| {
        let path = Path::page(&["apps", &app, "dead-letters"]).with("iterator", iterator);
        filtered(path, ["endpoint", "type", "reason"])
    };
    let next = (!list.done).then(|| page_from(list.iterator.as_deref()));
    let ticked = page_from(query.get("iterator")).with("tick", Some("all"));
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    Ok(page(&DeadLettersPage {
        frame: Frame::after(&session, query.get("done")),
        endpoint: shown("endpoint"),
        event_type: shown("type"),
        reason: shown("reason"),
        app,
        letters: list.data,
        is_all_ticked: query.get("tick") == Some("all"),
        count,
        tasks,
        ticked,
        next,
    }))
}

/// Those that send again what is this application's and run, and the one that is asked for.
async fn tasks(site: &Site, session: &Session, app: &str, chosen: Option<&str>) -> Result<Vec<Task>, Fault> {
    let running = Path::api(&["background-task"])
        .with("status", Some("running"))
        .with("task", Some("all"))
        .with("limit", Some("250"));
    let mut tasks = site.inside.list::<Task>(session, &running).await?.data;
    // The page may have been asked for by the application's uid.
    let app = site.inside.get::<Application>(session, &Path::api(&["app", app])).await?.id;
    let is_meant = |task: &Task| task.data.app_id.as_ref() == Some(&app) && task.data.messages_sent.is_some();
    tasks.retain(is_meant);
    if let Some(chosen) = chosen.filter(|chosen| tasks.iter().all(|task| task.id != **chosen)) {
        match site.inside.get::<Task>(session, &Path::api(&["background-task", chosen])).await {
            Ok(task) if is_meant(&task) => tasks.push(task),
            Ok(_) | Err(Fault::Refused { status: StatusCode::NOT_FOUND, .. }) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(tasks)
}

fn is_any_running(tasks: &[Task]) -> bool {
    tasks.iter().any(|task| task.status == "running")
}

async fn cancel(
    State(site): State<Arc<Site>>,
    Named((app, task)): Named<(String, String)>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    site.inside.post(&session, &Path::api(&["background-task", &task, "cancel"]), None).await?;
    let here = Path::page(&["apps", &app, "dead-letters"]);
    Ok(to(&here.with("task", Some(&task)).with("done", Some("ended"))))
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
#[template(path = "replayed.html")]
struct ReplayedPage {
    frame: Frame,
    app: String,
    /// How many are on their way again.
    sent: usize,
    /// How many were on their way already.
    before: usize,
    /// What could not be sent, each with the reason.
    refused: Vec<(Chosen, String)>,
}

/// A dead letter that was ticked.
struct Chosen {
    message: String,
    endpoint: String,
}

#[derive(Deserialize)]
struct Replayed {
    replayed: bool,
}

/// Each goes the way of a single one.
async fn replay_selected(
    State(site): State<Arc<Site>>,
    Named(app): Named<String>,
    Sent { session, fields }: Sent,
) -> Result<Response, Fault> {
    let chosen: BTreeSet<String> = fields.all("letter").map(str::to_owned).collect();
    if chosen.is_empty() || chosen.len() > CHOSEN_MAX {
        let detail = format!("Tick from one to {CHOSEN_MAX} dead letters first. Nothing was done.");
        return Err(Fault::Refused { status: StatusCode::BAD_REQUEST, detail });
    }
    let sending = chosen.into_iter().map(|letter| replay_chosen(&site, &session, &app, letter));
    let mut sending = futures_util::stream::iter(sending).buffered(AT_ONCE);
    let (mut sent, mut before, mut refused) = (0, 0, Vec::new());
    while let Some(one) = sending.next().await {
        match one? {
            (_, Ok(true)) => sent += 1,
            (_, Ok(false)) => before += 1,
            (chosen, Err(reason)) => refused.push((chosen, reason)),
        }
    }
    drop(sending);
    Ok(page(&ReplayedPage { frame: Frame::new(&session), app, sent, before, refused }))
}

/// Whether it is on its way by that, or why not.
async fn replay_chosen(
    site: &Site,
    session: &Session,
    app: &str,
    letter: String,
) -> Result<(Chosen, Result<bool, String>), Fault> {
    let (message, endpoint) = letter.split_once(' ').ok_or_else(Fault::unknown)?;
    let path = Path::api(&["app", app, "dead-letter", message, "endpoint", endpoint, "replay"]);
    let answer = site.inside.call((session.token(), session.peer()), Method::POST, &path, None).await;
    let chosen = Chosen { message: message.to_owned(), endpoint: endpoint.to_owned() };
    match answer {
        Ok(answer) => Ok((chosen, Ok(serde_json::from_slice::<Replayed>(&answer).is_ok_and(|it| it.replayed)))),
        // Who may not send this one again may not send any.
        Err(Fault::Refused { status, detail }) if status != StatusCode::FORBIDDEN => Ok((chosen, Err(detail))),
        Err(other) => Err(other),
    }
}

/// More than a page has.
const CHOSEN_MAX: usize = 250;
/// They share commits then.
const AT_ONCE: usize = 16;

#[derive(Template)]
#[template(path = "replay_all.html")]
struct ReplayAllPage {
    frame: Frame,
    app: String,
    endpoint: String,
    event_type: String,
    reason: String,
}

async fn ask(session: Session, Named(app): Named<String>, query: Fields) -> Result<Response, Fault> {
    session.who().require(|may| may.replay)?;
    let shown = |name: &str| query.get(name).unwrap_or_default().to_owned();
    Ok(page(&ReplayAllPage {
        frame: Frame::new(&session),
        app,
        endpoint: shown("endpoint"),
        event_type: shown("type"),
        reason: shown("reason"),
    }))
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
    let taken = (session.token(), session.peer());
    let answer = site.inside.call(taken, Method::POST, &path, Some(Value::Object(wanted))).await?;
    let task = serde_json::from_slice::<Taken>(&answer).map_err(|_| Fault::unknown())?;
    let here = Path::page(&["apps", &app, "dead-letters"]);
    Ok(to(&here.with("task", Some(&task.id)).with("done", Some("replaying"))))
}

#[derive(Deserialize)]
struct Application {
    id: String,
}

/// Work that was taken on.
#[derive(Deserialize)]
struct Taken {
    id: String,
}
