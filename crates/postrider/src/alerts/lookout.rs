//! Looks, every few seconds, whether something is wrong that no single change shows: an application whose attempts fail, a
//! backlog or dead letters that grow, many open breakers, work that is left lying.
//!
//! What one node's applications do and whether its own work lies is looked at on every node; what concerns all, on the one
//! that does the work of all. Whether that is worth telling is decided by alarms, which tell each turn once.

use super::{
    Alert, Alerts, Severity,
    alarms::{Alarms, Seen, Work},
    events::Event,
};
use crate::{
    clock::Clock,
    config::AlertRules,
    directory::Directory,
    ids::IdCodec,
    standing::{oldest_due, open_breakers},
};
use postrider_engine::{AppKey, Timestamp, alarm::Turn};
use postrider_store::{By, Shards, Store, StoreError};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::warn;

pub struct Lookout {
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    alerts: Arc<Alerts>,
    ids: IdCodec,
    node: String,
    clock: Clock,
    alarms: Alarms,
}

impl Lookout {
    pub fn new(
        store: Arc<dyn Store>,
        directory: Arc<Directory>,
        alerts: Arc<Alerts>,
        ids: IdCodec,
        (rules, node): (AlertRules, String),
        clock: Clock,
    ) -> Self {
        let alarms = Alarms::new(rules, clock.now());
        Self { store, directory, alerts, ids, node, clock, alarms }
    }

    /// For as long as the server runs.
    pub async fn keep(mut self) {
        let (mut next_work, mut next_rest) = (Instant::now(), Instant::now());
        let look_every = look_every(&self.alarms.rules);
        loop {
            let now = self.clock.now();
            self.look_at_applications(now).await;
            let begun = Instant::now();
            let looked = if next_work <= begun {
                let looked = self.look_at_work(now).await;
                next_work = begun + pause_after(begun.elapsed(), &self.alarms.rules);
                looked
            } else {
                Ok(())
            };
            // Apart from the other, because to count takes longer.
            let begun = Instant::now();
            let looked = if looked.is_ok() && next_rest <= begun {
                let looked = self.look_at_the_rest(now).await;
                next_rest = begun + pause_after(begun.elapsed(), &self.alarms.rules);
                looked
            } else {
                looked
            };
            match looked {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => warn!(%error, "it could not be looked whether something is wrong"),
            }
            tokio::time::sleep(look_every).await;
        }
    }

    async fn look_at_applications(&mut self, now: Timestamp) {
        let tallies = self.alerts.watch.tallies(now);
        for (app, turn, tally) in self.alarms.look_at_applications(&tallies, now) {
            let entry = self.directory.application(&By::Key(app)).await.ok().flatten();
            let uid = entry.as_ref().and_then(|entry| entry.application.uid.clone());
            let name = entry.map_or_else(|| "a deleted application".to_owned(), |entry| entry.application.name.clone());
            let percent = tally.rate().unwrap_or_default() as f64 / 100.0;
            let data = json!({
                "appId": self.ids.id_of(app),
                "appUid": uid,
                "successRate": percent,
                "attempts": tally.total(),
                "failed": tally.failed,
            });
            let (event, words) = match turn {
                Turn::Raised => ("postrider.application.failing", "too few attempts succeed"),
                Turn::Cleared => ("postrider.application.recovered", "attempts succeed again"),
            };
            let words = format!("Application {name} ({}): {words}, {percent:.1} % lately.", self.ids.id_of(app));
            self.tell(Some(app), &format!("application:{}", app.raw()), turn, (event, data), words, now);
        }
    }

    async fn look_at_work(&mut self, now: Timestamp) -> Result<(), StoreError> {
        // What waits for its endpoint is left out.
        let found = oldest_due(&*self.store, &self.directory, self.store.owned(), now).await;
        let work = match &found {
            Ok(oldest) => Work::Known { oldest_due: oldest.ours, done_at: self.alerts.watch.done_at() },
            Err(_) => Work::Unknown,
        };
        let turn = self.alarms.look_at_work(work, now);
        self.alerts.watch.set_stuck(self.alarms.is_stuck());
        if let Some(turn) = turn {
            self.tell_of_system("work_stuck", turn, self.alarms.lying_for(work, now).as_secs(), now);
        }
        found.map(drop)
    }

    async fn look_at_the_rest(&mut self, now: Timestamp) -> Result<(), StoreError> {
        // What concerns all is one node's to tell. The others forget what they saw.
        if !self.store.leads() {
            self.alarms.forget_the_rest();
            return Ok(());
        }
        let counts = self.store.counts(Shards::ALL).await?;
        let open = open_breakers(&*self.store, &self.directory).await?;
        let seen = Seen { waiting: counts.waiting, dead: counts.dead, breakers_open: open.len() as u64 };
        for (what, turn, value) in self.alarms.look_at_the_rest(seen, now) {
            self.tell_of_system(what, turn, value, now);
        }
        Ok(())
    }

    fn tell_of_system(&self, what: &'static str, turn: Turn, value: u64, now: Timestamp) {
        let (event, state) = match turn {
            Turn::Raised => ("postrider.system.raised", "raised"),
            Turn::Cleared => ("postrider.system.cleared", "cleared"),
        };
        let about = match what {
            "work_stuck" => "work that is due is left lying (seconds)",
            "backlog_growing" => "the backlog grows (deliveries waiting)",
            "dead_letters_growing" => "dead letters grow (dead letters)",
            _ => "many endpoints fail (breakers open)",
        };
        let data = json!({"alert": what, "value": value, "node": self.node});
        self.tell(None, what, turn, (event, data), format!("System, {state}: {about}: {value}."), now);
    }

    fn tell(
        &self,
        app: Option<AppKey>,
        subject: &str,
        turn: Turn,
        (event, data): (&str, serde_json::Value),
        words: String,
        now: Timestamp,
    ) {
        let (severity, word) = match turn {
            Turn::Raised => (Severity::Trouble, "raised"),
            Turn::Cleared => (Severity::Relief, "cleared"),
        };
        let name = format!("{subject}:{}:{word}:{}", self.node, now.as_millis());
        let event = Some(Event { name: event.to_owned(), data });
        self.alerts.tell(Alert { name, severity, app, words, event, at: now, is_logged: false });
    }
}

/// Often enough for the shortest time that is watched.
fn look_every(rules: &AlertRules) -> Duration {
    (shortest(rules) / LOOKS_MIN).min(LOOK_EVERY_MAX)
}

fn shortest(rules: &AlertRules) -> Duration {
    rules.oldest_due_max.map_or(rules.window, |oldest| oldest.min(rules.window))
}

/// To look takes the longer the more there is: a hundredth of the time, while it takes less than a second. One look that
/// took very long must not make us blind for an hour, or for longer than what is watched takes.
fn pause_after(took: Duration, rules: &AlertRules) -> Duration {
    took.saturating_mul(100).min(PAUSE_MAX).min(shortest(rules))
}

const LOOK_EVERY_MAX: Duration = Duration::from_secs(5);
const LOOKS_MIN: u32 = 10;
const PAUSE_MAX: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::{super::alarms::tests::rules, *};

    #[test]
    fn one_look_that_took_long_does_not_blind_for_long() {
        for (took, pause) in [(1, 100), (300, 30_000), (15_000, 60_000)] {
            assert_eq!(pause_after(Duration::from_millis(took), &rules()), Duration::from_millis(pause), "{took} ms");
        }
    }
}
