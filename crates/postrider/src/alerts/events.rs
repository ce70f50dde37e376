//! Operational events by name, and what they say: the contract's, and some of our own behind a prefix.

use crate::{clock::Shown, ids::IdCodec, tasks::type_name};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};
use postrider_store::{
    Attempt, AttemptChange, AttemptHappened, EndpointChange, EndpointHappened, Happened, TaskHappened, TaskKey,
    TaskKind,
};
use serde_json::{Value, json};

/// Every event that is ever sent.
pub const NAMES: [&str; 17] = [
    "background_task.finished",
    "endpoint.created",
    "endpoint.deleted",
    "endpoint.disabled",
    "endpoint.enabled",
    "endpoint.updated",
    "message.attempt.exhausted",
    "message.attempt.failing",
    "message.attempt.recovered",
    "postrider.application.failing",
    "postrider.application.recovered",
    "postrider.endpoint.failing",
    "postrider.endpoint.recovered",
    "postrider.endpoint.warned",
    "postrider.system.cleared",
    "postrider.system.raised",
    "postrider.test",
];

/// An event, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub name: String,
    pub data: Value,
}

impl Event {
    /// What is sent.
    pub fn body(&self) -> String {
        json!({"type": self.name, "data": self.data}).to_string()
    }

    pub fn of_endpoint(ids: &IdCodec, app: (AppKey, Option<&str>), happened: &EndpointHappened) -> Self {
        let (app, app_uid) = app;
        let mut data = json!({
            "appId": ids.id_of(app),
            "appUid": app_uid,
            "endpointId": ids.id_of(EndpointKey::new(happened.endpoint)),
            "endpointUid": happened.uid,
        });
        match happened.change {
            EndpointChange::DisabledByHand => {
                data["failSince"] = Value::Null;
                data["trigger"] = "manual".into();
            }
            EndpointChange::Disabled { failing_since } => {
                data["failSince"] = failing_since.map(|at| Shown(Timestamp::from_millis(at)).to_string()).into();
                data["trigger"] = "automatic".into();
            }
            EndpointChange::Created | EndpointChange::Updated | EndpointChange::Deleted | EndpointChange::Enabled => {}
        }
        Self { name: of_endpoint(happened.change).to_owned(), data }
    }

    /// `event_id`: the message's; `attempt`: the one that brought the change.
    pub fn of_attempt(
        ids: &IdCodec,
        (app, app_uid): (AppKey, Option<&str>),
        event_id: Option<&str>,
        happened: &AttemptHappened,
        attempt: &Attempt,
    ) -> Self {
        let data = json!({
            "appId": ids.id_of(app),
            "appUid": app_uid,
            "endpointId": ids.id_of(EndpointKey::new(happened.endpoint)),
            "msgId": ids.id_of(MessageKey::new(happened.message)),
            "msgEventId": event_id,
            "lastAttempt": {
                "id": ids.id_of(attempt.key),
                // The contract has a number here, also where nobody answered.
                "responseStatusCode": attempt.record.status.unwrap_or(0),
                "timestamp": Shown(attempt.record.started_at).to_string(),
            },
        });
        Self { name: of_attempt(happened.change).to_owned(), data }
    }

    pub fn of_task(ids: &IdCodec, happened: &TaskHappened) -> Self {
        let counted = match happened.kind {
            TaskKind::Recover { .. }
            | TaskKind::ReplayMissing { .. }
            | TaskKind::BulkReplay { .. }
            | TaskKind::ReplayDead { .. } => "messages_sent",
            TaskKind::Cancel { .. } | TaskKind::Resume { .. } => "messages_canceled",
            TaskKind::Purge => "messages_purged",
            // What was found is in the task.
            TaskKind::AppStats { .. } | TaskKind::EventTypes { .. } => "applications",
        };
        let endpoint = match &happened.kind {
            TaskKind::Recover { endpoint, .. }
            | TaskKind::ReplayMissing { endpoint, .. }
            | TaskKind::BulkReplay { endpoint, .. }
            | TaskKind::Cancel { endpoint, .. }
            | TaskKind::Resume { endpoint, .. } => Some(*endpoint),
            TaskKind::ReplayDead { filter } => filter.endpoint,
            TaskKind::Purge | TaskKind::AppStats { .. } | TaskKind::EventTypes { .. } => None,
        };
        let mut data = json!({counted: happened.changed});
        if let Some(endpoint) = endpoint {
            data["endp_id"] = ids.id_of(EndpointKey::new(endpoint)).into();
        }
        if happened.cancelled {
            data["canceled"] = true.into();
        }
        let data = json!({
            "taskId": ids.id_of(TaskKey(happened.task)),
            "task": type_name(&happened.kind),
            "status": if happened.cancelled { "failed" } else { "finished" },
            "data": data,
        });
        Self { name: TASK_FINISHED.to_owned(), data }
    }

    /// What an entry's event will be called.
    pub fn name_of(what: &Happened) -> &str {
        match what {
            Happened::Endpoint(happened) => of_endpoint(happened.change),
            Happened::Attempt(happened) => of_attempt(happened.change),
            Happened::Task(_) => TASK_FINISHED,
            Happened::Alert(alert) => &alert.event_type,
        }
    }
}

fn of_endpoint(change: EndpointChange) -> &'static str {
    match change {
        EndpointChange::Created => "endpoint.created",
        EndpointChange::Updated => "endpoint.updated",
        EndpointChange::Deleted => "endpoint.deleted",
        EndpointChange::Enabled => "endpoint.enabled",
        EndpointChange::DisabledByHand | EndpointChange::Disabled { .. } => "endpoint.disabled",
    }
}

fn of_attempt(change: AttemptChange) -> &'static str {
    match change {
        AttemptChange::Failing => "message.attempt.failing",
        AttemptChange::Exhausted => "message.attempt.exhausted",
        AttemptChange::Recovered => "message.attempt.recovered",
    }
}

const TASK_FINISHED: &str = "background_task.finished";
