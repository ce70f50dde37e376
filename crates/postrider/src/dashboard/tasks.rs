//! Long work: how far it has come, and ending it.

use super::{
    Site,
    frame::{Frame, moment, page, to, tone},
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
use std::sync::Arc;

pub fn routes() -> Router<Arc<Site>> {
    Router::new().route("/tasks", get(show)).route("/tasks/{task}/cancel", post(cancel))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    pub id: String,
    pub status: String,
    pub task: String,
    pub data: Data,
    pub updated_at: String,
}

#[derive(Deserialize)]
pub struct Data {
    #[serde(rename = "appId")]
    pub app_id: Option<String>,
    pub done: u64,
    pub total: Option<u64>,
    #[serde(default)]
    canceled: bool,
    pub messages_sent: Option<u64>,
    messages_purged: Option<u64>,
    messages_canceled: Option<u64>,
}

impl Task {
    /// What it does. A type of a later version is shown as it is called.
    pub fn words(&self) -> &str {
        match &*self.task {
            "endpoint.recover" => "Send again what was given up",
            "endpoint.replay" => "Send what an endpoint has not got",
            "endpoint.bulk-replay" => "Send a selection again",
            "endpoint.cancel" => "Call back what waits",
            "endpoint.resume" => "Sift what waits, and resume",
            "application.purge_content" => "Expunge contents",
            "application.stats" => "Count attempts by application",
            "event-type.aggregate" => "Collect the event types that are asked for",
            other => other,
        }
    }

    pub fn changed(&self) -> String {
        let Data { messages_sent, messages_purged, messages_canceled, .. } = &self.data;
        let told = [(messages_sent, "sent again"), (messages_purged, "expunged"), (messages_canceled, "called back")];
        let told = told.into_iter().filter_map(|(count, words)| Some(format!("{} {words}", (*count)?)));
        told.collect::<Vec<_>>().join(", ")
    }

    pub fn state(&self) -> &str {
        if self.data.canceled { "ended early" } else { &self.status }
    }
}

#[derive(Template)]
#[template(path = "tasks.html")]
struct TasksPage {
    frame: Frame,
    tasks: Vec<Task>,
    next: Option<Path>,
}

async fn show(State(site): State<Arc<Site>>, session: Session, query: Fields) -> Result<Response, Fault> {
    let wanted = Path::api(&["background-task"])
        .with("task", Some("all"))
        .with("limit", Some("50"))
        .with("order", Some("descending"))
        .with("iterator", query.get("iterator"));
    let list = site.inside.list::<Task>(&session, &wanted).await?;
    let next = (!list.done).then(|| Path::page(&["tasks"]).with("iterator", list.iterator.as_deref()));
    Ok(page(&TasksPage { frame: Frame::after(&session, query.get("done")), tasks: list.data, next }))
}

async fn cancel(
    State(site): State<Arc<Site>>,
    Named(task): Named<String>,
    Sent { session, .. }: Sent,
) -> Result<Response, Fault> {
    site.inside.post(&session, &Path::api(&["background-task", &task, "cancel"]), None).await?;
    Ok(to(&Path::page(&["tasks"]).with("done", Some("ended"))))
}
