//! Brings alerts to every channel: the log at once, the journal for the operational endpoints, and mail.
//!
//! No channel waits for another, and nobody who found something out waits for any of them. Within a channel they keep their
//! order: that something is over must not be told before that it began.

use super::{Alert, Severity};
use postrider_store::{AlertHappened, Store, StoreError};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;
use tracing::{info, warn};

pub struct Teller {
    pub store: Arc<dyn Store>,
    pub queue: mpsc::Receiver<Alert>,
    /// `None`: nobody wants mail.
    pub mail: Option<mpsc::Sender<Alert>>,
    /// For what is one application's. `None`: no owner is named.
    pub owners: Option<mpsc::Sender<Alert>>,
}

impl Teller {
    /// For as long as the server runs.
    pub async fn keep(mut self) {
        let (journal, entered) = mpsc::channel(WAITING_MAX);
        let store = Arc::clone(&self.store);
        tokio::spawn(enter_all(store, entered));
        while let Some(alert) = self.queue.recv().await {
            metrics::counter!("postrider_alerts_total").increment(1);
            match alert.severity {
                _ if alert.is_logged => {}
                Severity::Trouble => warn!(alert = alert.name, "{}", alert.words),
                Severity::Relief => info!(alert = alert.name, "{}", alert.words),
            }
            let owners = self.owners.as_ref().filter(|_| alert.app.is_some());
            for mail in self.mail.iter().chain(owners) {
                if mail.try_send(alert.clone()).is_err() {
                    metrics::counter!("postrider_alerts_dropped_total").increment(1);
                }
            }
            if let Some(event) = &alert.event {
                let happened = AlertHappened {
                    name: alert.name.clone(),
                    event_type: event.name.clone(),
                    data: event.data.to_string(),
                };
                if journal.try_send((alert, happened)).is_err() {
                    metrics::counter!("postrider_alerts_dropped_total").increment(1);
                }
            }
        }
    }
}

/// A store that cannot answer just now is asked again, for as long as the news is any.
async fn enter_all(store: Arc<dyn Store>, mut entered: mpsc::Receiver<(Alert, AlertHappened)>) {
    while let Some((alert, happened)) = entered.recv().await {
        let mut tries = 0;
        loop {
            match store.enter_alert(alert.app, happened.clone(), alert.at).await {
                Ok(()) => break,
                Err(StoreError::Closed) => return,
                Err(_) if tries < TRIES_MAX => tokio::time::sleep(TRY_AGAIN).await,
                Err(_) => {
                    warn!(alert = alert.name, "an alert could not be entered, and is not sent by webhook");
                    break;
                }
            }
            tries += 1;
        }
    }
}

/// Alerts that wait for a store which cannot be written to.
const WAITING_MAX: usize = 1_024;

const TRY_AGAIN: Duration = Duration::from_secs(5);
const TRIES_MAX: usize = 120;
