//! What operators are told without having asked: by operational webhooks, by mail and in the log.
//!
//! What the contract has events for is entered in the store's journal with the change itself; `desk` makes messages of it.
//! What is found out by watching (`watch` is told, `lookout` looks) goes through `Alerts`, which never makes anybody wait,
//! to `teller`, which brings it to every channel. When something is worth telling is decided in the engine (`alarm`).

mod alarms;
pub mod desk;
pub mod events;
pub mod lookout;
pub mod mail;
pub mod owners;
pub mod teller;
pub mod trial;
pub mod watch;

use crate::ids::IdCodec;
use events::Event;
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use tokio::sync::mpsc;
use watch::Watch;

/// Something to tell.
#[derive(Clone, Debug)]
pub struct Alert {
    /// The same for the same change, and for no other.
    pub name: String,
    pub severity: Severity,
    /// Whose it is. `None`: it concerns the deployment.
    pub app: Option<AppKey>,
    /// A sentence for people.
    pub words: String,
    /// What is sent by webhook. `None`: an event of the contract says it.
    pub event: Option<Event>,
    pub at: Timestamp,
    /// Whoever found it out has written a line of its own.
    pub is_logged: bool,
}

impl Alert {
    /// What becomes of an endpoint. `event`: the last part of its name; `None`: an event of the contract says it. The log has
    /// a line of its own.
    pub fn of_endpoint(
        ids: &IdCodec,
        (endpoint, app): (EndpointKey, AppKey),
        event: Option<&str>,
        words: &str,
        at: Timestamp,
    ) -> Self {
        let id = ids.id_of(endpoint);
        let severity = if event == Some("recovered") { Severity::Relief } else { Severity::Trouble };
        let name = format!("endpoint:{}:{}:{}", endpoint.raw(), event.unwrap_or("disabled"), at.as_millis());
        let event = event.map(|word| Event {
            name: format!("postrider.endpoint.{word}"),
            data: serde_json::json!({"appId": ids.id_of(app), "endpointId": id}),
        });
        let words = format!("Endpoint {id} {words}.");
        Self { name, severity, app: Some(app), words, event, at, is_logged: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Trouble,
    /// Something that was wrong is over.
    Relief,
}

/// The way from those who find something out to those who tell.
pub struct Alerts {
    pub watch: Watch,
    queue: Option<mpsc::Sender<Alert>>,
}

/// Alerts that may wait to be told. There are few, unless everything breaks at once, and then the first ones do.
const QUEUE_MAX: usize = 1_024;

impl Alerts {
    pub fn new(watch: Watch) -> (Self, mpsc::Receiver<Alert>) {
        let (queue, told) = mpsc::channel(QUEUE_MAX);
        (Self { watch, queue: Some(queue) }, told)
    }

    /// Where nobody listens.
    pub fn silent() -> Self {
        Self { watch: Watch::default(), queue: None }
    }

    /// Never waits. Past what may wait, alerts are dropped and counted.
    pub fn tell(&self, alert: Alert) {
        if let Some(queue) = &self.queue
            && queue.try_send(alert).is_err()
        {
            metrics::counter!("postrider_alerts_dropped_total").increment(1);
        }
    }
}
