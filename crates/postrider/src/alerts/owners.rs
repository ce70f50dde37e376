//! Alerts about one application, by mail to whom the operator has named as its owner. He is told of nothing else.
//!
//! An address that takes nothing is insisted on for long; meanwhile the letters of others go their way.

use super::{
    Alert,
    mail::{Mailer, Pace, gather, insist},
};
use crate::{directory::Directory, ids::IdCodec};
use lettre::Address;
use postrider_engine::AppKey;
use postrider_store::By;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use tokio::{sync::mpsc, task::JoinSet};

pub struct Owners {
    pub mailer: Arc<Mailer>,
    pub queue: mpsc::Receiver<Alert>,
    /// By the application's uid or id.
    pub named: BTreeMap<String, Vec<Address>>,
    pub directory: Arc<Directory>,
    pub ids: IdCodec,
    pub pace: Pace,
}

impl Owners {
    /// For as long as the server runs.
    pub async fn keep(mut self) {
        let mut letters = JoinSet::new();
        while let Some(alerts) = gather(&mut self.queue, self.pace).await {
            while letters.try_join_next().is_some() {}
            let mut by_app: HashMap<AppKey, Vec<Alert>> = HashMap::new();
            for alert in alerts {
                if let Some(app) = alert.app {
                    by_app.entry(app).or_default().push(alert);
                }
            }
            for (app, alerts) in by_app {
                let to = self.addresses(app).await;
                if to.is_empty() {
                    continue;
                }
                if letters.len() >= LETTERS_MAX {
                    metrics::counter!("postrider_alerts_dropped_total").increment(alerts.len() as u64);
                    continue;
                }
                let (mailer, pace) = (Arc::clone(&self.mailer), self.pace);
                letters.spawn(async move { insist(&mailer, &to, &alerts, pace).await });
            }
        }
    }

    async fn addresses(&self, app: AppKey) -> Vec<Address> {
        let entry = self.directory.application(&By::Key(app)).await.ok().flatten();
        let uid = entry.and_then(|entry| entry.application.uid.clone());
        let names = [Some(self.ids.id_of(app)), uid];
        names.into_iter().flatten().filter_map(|name| self.named.get(&name)).flatten().cloned().collect()
    }
}

/// Letters that are on their way, or tried again, at a time.
const LETTERS_MAX: usize = 64;
