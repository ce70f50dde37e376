//! What has happened that operators may want to be told of, until they have been.
//!
//! An entry is written in the commit of the change itself, and only if there is an operational endpoint: whoever asks for
//! none pays nothing. Its name says what has changed and nothing else, so that the same change makes one entry, and later
//! one message, however often it is written down.

use crate::{Endpoint, Settlement, Task, TaskKind, TaskStatus};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
    policy::{DeathReason, Next},
};
use serde::{Deserialize, Serialize};

/// The application whose endpoints are the operational ones. No key that is given out is this small, and nobody's token
/// reaches it: nothing that happens in it is entered, or one entry would follow from the other.
pub const OPERATIONAL: AppKey = AppKey::new(1);

/// After so many failures of a delivery its owner is told, as the contract has it.
pub const FAILING_AFTER: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JournalKey(pub i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pub key: JournalKey,
    pub at: Timestamp,
    /// Whose it is. `None`: it concerns the deployment.
    pub app: Option<AppKey>,
    pub what: Happened,
}

/// Kept as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    Endpoint(EndpointHappened),
    Attempt(AttemptHappened),
    Task(TaskHappened),
    /// Something that a node found out by watching.
    Alert(AlertHappened),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointHappened {
    pub endpoint: i64,
    pub uid: Option<String>,
    /// Of the application, where that is gone by the time anybody asks.
    pub app_uid: Option<String>,
    pub version: i64,
    pub change: EndpointChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointChange {
    Created,
    Updated,
    Deleted,
    Enabled,
    DisabledByHand,
    Disabled { failing_since: Option<i64> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptHappened {
    pub endpoint: i64,
    pub message: i64,
    pub cycle: u32,
    /// When the attempt began that brought the change. `None`: no attempt did; it ended while it waited for the next one.
    pub started_at: Option<i64>,
    pub change: AttemptChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptChange {
    Failing,
    Exhausted,
    Recovered,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHappened {
    pub task: i64,
    pub kind: TaskKind,
    /// It was ended before its end.
    pub cancelled: bool,
    pub changed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertHappened {
    /// What is the same for the same change, and for no other.
    pub name: String,
    pub event_type: String,
    /// JSON, which the store does not look into.
    pub data: String,
}

/// Something that is watched turns bad, or good again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmTurn {
    /// What is watched, of which there is one alarm.
    pub subject: String,
    pub is_raised: bool,
    pub app: Option<AppKey>,
    /// What is entered in the journal. `None`: nothing is left to tell of.
    pub alert: Option<AlertHappened>,
    pub at: Timestamp,
}

impl Happened {
    /// The same for the same change, and for no other.
    pub fn name(&self) -> String {
        match self {
            Self::Endpoint(EndpointHappened { endpoint, version, change, .. }) => {
                let word = match change {
                    EndpointChange::Created => "created",
                    EndpointChange::Updated => "updated",
                    EndpointChange::Deleted => "deleted",
                    EndpointChange::Enabled => "enabled",
                    EndpointChange::DisabledByHand | EndpointChange::Disabled { .. } => "disabled",
                };
                format!("endpoint:{endpoint}:{version}:{word}")
            }
            Self::Attempt(AttemptHappened { endpoint, message, cycle, change, .. }) => {
                let word = match change {
                    AttemptChange::Failing => "failing",
                    AttemptChange::Exhausted => "exhausted",
                    AttemptChange::Recovered => "recovered",
                };
                format!("delivery:{endpoint}:{message}:{cycle}:{word}")
            }
            Self::Task(TaskHappened { task, .. }) => format!("task:{task}"),
            Self::Alert(AlertHappened { name, .. }) => format!("alert:{name}"),
        }
    }
}

impl EndpointHappened {
    /// What a put has changed, seen from outside.
    pub fn of_put(old: Option<Before>, new: &Endpoint, version: i64) -> Vec<Self> {
        let Some(old) = old else { return vec![Self::new(new.key, new.uid.clone(), version, EndpointChange::Created)] };
        let switched = match (old.is_disabled, new.disabled.is_some()) {
            (true, false) => Some(EndpointChange::Enabled),
            (false, true) => Some(EndpointChange::DisabledByHand),
            (true, true) | (false, false) => None,
        };
        // Whoever seals the same secrets again, with another key, changes nothing that anybody could see.
        let updated = (old.updated_at != new.updated_at).then_some(EndpointChange::Updated);
        let changes = updated.into_iter().chain(switched);
        changes.map(|change| Self::new(new.key, new.uid.clone(), version, change)).collect()
    }

    pub fn new(endpoint: EndpointKey, uid: Option<String>, version: i64, change: EndpointChange) -> Self {
        Self { endpoint: endpoint.raw(), uid, app_uid: None, version, change }
    }
}

/// What counts of an endpoint as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    pub is_disabled: bool,
    pub updated_at: Timestamp,
}

impl AttemptHappened {
    /// What an outcome means for its delivery: once each in a cycle. A resend is beside the schedule: that it failed means
    /// nothing, and that it arrived may mean that the delivery has recovered. So may the success of one that was put on its way
    /// again; whether there was something to recover from is in the history of its attempts.
    pub fn of(settlement: &Settlement) -> Option<Self> {
        let started_at = settlement.attempt.as_ref().map(|attempt| attempt.started_at.as_millis());
        let (attempts, cycle) = (settlement.progress.attempts, settlement.cycle);
        let change = match (settlement.id.trigger, settlement.next) {
            (Trigger::Manual, Next::Delivered) => AttemptChange::Recovered,
            (Trigger::Manual, _) => return None,
            (Trigger::Scheduled, Next::Retry { .. }) if attempts == FAILING_AFTER && started_at.is_some() => {
                AttemptChange::Failing
            }
            (Trigger::Scheduled, Next::Delivered) if attempts > FAILING_AFTER || cycle > 0 => AttemptChange::Recovered,
            // Of what was never tried there is no attempt to tell of.
            (
                Trigger::Scheduled,
                Next::Dead(
                    DeathReason::Permanent | DeathReason::Exhausted | DeathReason::Expired | DeathReason::Breaker,
                ),
            ) if attempts > 0 => AttemptChange::Exhausted,
            (
                Trigger::Scheduled,
                Next::Retry { .. } | Next::Delivered | Next::Postponed { .. } | Next::Nothing | Next::Dead(_),
            ) => return None,
        };
        let DeliveryId { endpoint, message, .. } = settlement.id;
        Some(Self { endpoint: endpoint.raw(), message: message.raw(), cycle, started_at, change })
    }

    /// A delivery that was tried, and whose time ran out before the next attempt.
    pub fn expired(endpoint: EndpointKey, message: MessageKey, cycle: u32) -> Self {
        let change = AttemptChange::Exhausted;
        Self { endpoint: endpoint.raw(), message: message.raw(), cycle, started_at: None, change }
    }

    pub fn message(&self) -> MessageKey {
        MessageKey::new(self.message)
    }
}

impl TaskHappened {
    /// `None` as long as it runs.
    pub fn of(task: &Task) -> Option<Self> {
        let cancelled = match task.status {
            TaskStatus::Running => return None,
            TaskStatus::Finished => false,
            TaskStatus::Cancelled => true,
        };
        Some(Self { task: task.key.0, kind: task.kind.clone(), cancelled, changed: task.changed })
    }
}
