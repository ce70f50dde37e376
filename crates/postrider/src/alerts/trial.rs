//! A test alert through every channel, and what came of each.

use super::{desk::Desk, events::Event, mail::Mailer};
use postrider_engine::{EndpointKey, MessageKey, Timestamp};
use postrider_store::{AttemptFilter, AttemptsOf, By, DeliveryState, OPERATIONAL, Order, Page, StoreError};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

pub struct Trial {
    pub desk: Arc<Desk>,
    pub mailer: Option<Arc<Mailer>>,
}

pub struct Outcome {
    pub mail: Mailed,
    pub webhooks: Vec<(EndpointKey, Came)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailed {
    /// No mail server is set.
    Off,
    Sent,
    Failed(String),
}

/// What came of the event at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    Delivered,
    /// It is tried again, or given up. `None`: nobody answered.
    Failed(Option<u16>),
    /// It was not tried in the time that we waited.
    Waiting,
    Disabled,
}

impl Trial {
    /// Takes some seconds at most.
    pub async fn run(&self, now: Timestamp) -> Result<Outcome, StoreError> {
        tracing::warn!("this is a test alert");
        let (mail, webhooks) = tokio::join!(self.mail(), self.webhooks(now));
        Ok(Outcome { mail, webhooks: webhooks? })
    }

    async fn mail(&self) -> Mailed {
        let Some(mailer) = &self.mailer else { return Mailed::Off };
        let text = "Somebody asked for a test alert. Nothing is wrong.\n".to_owned();
        match tokio::time::timeout(PATIENCE, mailer.send("This is a test alert", text)).await {
            Ok(Ok(())) => Mailed::Sent,
            Ok(Err(error)) => Mailed::Failed(error),
            Err(_) => Mailed::Failed("the mail server did not answer in time".to_owned()),
        }
    }

    async fn webhooks(&self, now: Timestamp) -> Result<Vec<(EndpointKey, Came)>, StoreError> {
        let Some(listeners) = self.desk.directory.application(&By::Key(OPERATIONAL)).await? else {
            return Ok(Vec::new());
        };
        let event = Event { name: "postrider.test".to_owned(), data: json!({"test": true}) };
        let mut sent = Vec::new();
        for endpoint in &listeners.endpoints {
            let name = format!("test:{}:{}", endpoint.key.raw(), now.as_millis());
            let message = match endpoint.lane.parked {
                true => None,
                false => self.desk.send(&listeners, &event, &name, Some(endpoint.key)).await?,
            };
            sent.push((endpoint.key, message));
        }
        let until = Instant::now() + PATIENCE;
        let mut outcomes = Vec::new();
        for (endpoint, message) in sent {
            let came = match message {
                None => Came::Disabled,
                Some(message) => self.wait(endpoint, message, until).await?,
            };
            outcomes.push((endpoint, came));
        }
        Ok(outcomes)
    }

    async fn wait(&self, endpoint: EndpointKey, message: MessageKey, until: Instant) -> Result<Came, StoreError> {
        loop {
            let states = self.desk.store.deliveries(message).await?;
            match states.into_iter().find(|(of, _)| *of == endpoint).map(|(_, state)| state) {
                Some(DeliveryState::Delivered) => return Ok(Came::Delivered),
                Some(DeliveryState::Sending { .. } | DeliveryState::Dead { .. }) => {
                    return self.last_status(endpoint, message).await.map(Came::Failed);
                }
                Some(DeliveryState::Pending { .. }) | None if Instant::now() >= until => return Ok(Came::Waiting),
                Some(DeliveryState::Pending { .. }) | None => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    async fn last_status(&self, endpoint: EndpointKey, message: MessageKey) -> Result<Option<u16>, StoreError> {
        let filter = AttemptFilter { endpoint: Some(endpoint), ..AttemptFilter::default() };
        let page = Page { from: None, order: Order::Descending, limit: 1 };
        let tried = self.desk.store.attempts(AttemptsOf::Message(message), filter, page).await?;
        Ok(tried.first().and_then(|attempt| attempt.record.status))
    }
}

/// Somebody waits for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
