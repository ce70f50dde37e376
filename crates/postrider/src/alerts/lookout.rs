//! Looks, every few seconds, whether something is wrong that no single change shows: an application whose attempts fail, a
//! backlog or dead letters that grow, many open breakers, work that is left lying.
//!
//! What one node's applications do and whether its own work lies is looked at on every node; what concerns all, on the one
//! that does the work of all. Whether that is worth telling is decided by alarms, which tell each turn once; those that are
//! raised are kept in the store, so that it is once for all nodes and all their lives.

use super::{
    Alert, Alerts, Severity,
    alarms::{
        Alarms, BACKLOG_GROWING, DEAD_LETTERS_GROWING, Raised, Seen, Subject, WORK_STUCK, Work, subject_of,
        subject_of_application, subject_of_work,
    },
};
use crate::{
    clock::Clock,
    config::AlertRules,
    directory::Directory,
    ids::IdCodec,
    standing::{oldest_due, open_breakers},
};
use postrider_engine::{AppKey, Timestamp, alarm::Turn};
use postrider_store::{AlarmTurn, AlertHappened, By, Shards, Store, StoreError};
use serde_json::json;
use std::{collections::VecDeque, sync::Arc, time::Duration};
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
    /// What has turned and is not written down yet, in order.
    owed: VecDeque<Owed>,
}

struct Owed {
    turn: AlarmTurn,
    /// What people are told. `None`: nothing is left to tell of.
    alert: Option<Alert>,
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
        Self { store, directory, alerts, ids, node, clock, alarms, owed: VecDeque::new() }
    }

    /// For as long as the server runs.
    pub async fn keep(mut self) {
        let (mut next_work, mut next_rest) = (Instant::now(), Instant::now());
        let look_every = look_every(&self.alarms.rules);
        loop {
            let now = self.clock.now();
            let known = self.know_what_is_raised(now).await;
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
            let written = self.write_down().await;
            match known.and(looked).and(written) {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => warn!(%error, "it could not be looked whether something is wrong"),
            }
            tokio::time::sleep(look_every).await;
        }
    }

    /// What this node has yet to write it knows better.
    async fn know_what_is_raised(&mut self, now: Timestamp) -> Result<(), StoreError> {
        if !self.owed.is_empty() {
            return Ok(());
        }
        let raised: Raised = self.store.raised_alarms().await?.into_iter().collect();
        self.alarms.know(&raised, &self.node);
        self.sweep(&raised, now).await
    }

    /// Ends the alarms that nobody watches any more: of nodes that are gone, of deleted applications, of rules that were
    /// taken out of the settings. Each node does so with what it would watch itself, for others may have other settings.
    async fn sweep(&mut self, raised: &Raised, now: Timestamp) -> Result<(), StoreError> {
        let (owned, leads) = (self.store.owned(), self.store.leads());
        let is_own = |subject: &str| match subject_of(subject) {
            Subject::Application(app) => owned.has_lanes_of(app),
            Subject::Work(node) => node == self.node,
            Subject::All => leads,
        };
        let unwatched = raised.unwatched(&self.alarms.rules).filter(|subject| is_own(subject)).map(str::to_owned);
        let mut ended: Vec<String> = unwatched.collect();
        for app in raised.applications().filter(|app| owned.has_lanes_of(*app)) {
            if self.directory.application(&By::Key(app)).await?.is_none() {
                ended.push(subject_of_application(app));
            }
        }
        for subject in ended {
            let turn = AlarmTurn { subject, is_raised: false, app: None, alert: None, at: now };
            self.owed.push_back(Owed { turn, alert: None });
        }
        if leads && raised.stuck().any(|node| node != self.node) {
            let nodes = self.store.nodes().await?;
            let is_gone =
                |name: &&str| *name != self.node && !nodes.iter().any(|node| node.alive && node.name == *name);
            for gone in raised.stuck().filter(is_gone).map(str::to_owned).collect::<Vec<_>>() {
                self.tell_of_system(WORK_STUCK, &gone, Turn::Cleared, 0, now);
            }
        }
        Ok(())
    }

    /// In order. Whoever writes first is the one that tells; where nothing can be written people are told all the same.
    async fn write_down(&mut self) -> Result<(), StoreError> {
        while let Some(first) = self.owed.front_mut() {
            let written = tokio::time::timeout(WRITE_WITHIN, self.store.turn_alarm(first.turn.clone())).await;
            match written.unwrap_or(Err(StoreError::Busy)) {
                Ok(has_turned) => {
                    if let Some(alert) = first.alert.take().filter(|_| has_turned) {
                        self.alerts.tell(alert);
                    }
                    self.owed.pop_front();
                }
                Err(error) => {
                    self.owed.iter_mut().filter_map(|owed| owed.alert.take()).for_each(|alert| self.alerts.tell(alert));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn look_at_applications(&mut self, now: Timestamp) {
        let tallies = self.alerts.watch.tallies(self.store.owned(), now);
        for (app, turn, tally) in self.alarms.look_at_applications(&tallies, now) {
            let (name, uid) = match self.directory.application(&By::Key(app)).await {
                Ok(Some(entry)) => (entry.application.name.clone(), entry.application.public_uid().map(str::to_owned)),
                // It was deleted, and what it was told of before is swept away.
                Ok(None) => {
                    self.alarms.forget_application(app);
                    continue;
                }
                Err(_) => ("whose name cannot be read".to_owned(), None),
            };
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
            self.tell(Some(app), subject_of_application(app), turn, (event, data), words, now);
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
            let (node, seconds) = (self.node.clone(), self.alarms.lying_for(work, now).as_secs());
            self.tell_of_system(WORK_STUCK, &node, turn, seconds, now);
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
            let node = self.node.clone();
            self.tell_of_system(what, &node, turn, value, now);
        }
        Ok(())
    }

    /// `node`: whose work it is, or who saw it.
    fn tell_of_system(&mut self, what: &str, node: &str, turn: Turn, value: u64, now: Timestamp) {
        let (event, state) = match turn {
            Turn::Raised => ("postrider.system.raised", "raised"),
            Turn::Cleared => ("postrider.system.cleared", "cleared"),
        };
        let about = match what {
            WORK_STUCK => "work that is due is left lying (seconds)",
            BACKLOG_GROWING => "the backlog grows (deliveries waiting)",
            DEAD_LETTERS_GROWING => "dead letters grow (dead letters)",
            _ => "many endpoints fail (breakers open)",
        };
        let subject = if what == WORK_STUCK { subject_of_work(node) } else { what.to_owned() };
        let data = json!({"alert": what, "value": value, "node": node});
        self.tell(None, subject, turn, (event, data), format!("System, {state}: {about}: {value}."), now);
    }

    fn tell(
        &mut self,
        app: Option<AppKey>,
        subject: String,
        turn: Turn,
        (event_type, data): (&str, serde_json::Value),
        words: String,
        now: Timestamp,
    ) {
        let (severity, word) = match turn {
            Turn::Raised => (Severity::Trouble, "raised"),
            Turn::Cleared => (Severity::Relief, "cleared"),
        };
        let name = format!("{subject}:{}:{word}:{}", self.node, now.as_millis());
        if self.owed.len() >= OWED_MAX {
            metrics::counter!("postrider_alerts_dropped_total").increment(1);
            return;
        }
        let happened = AlertHappened { name: name.clone(), event_type: event_type.to_owned(), data: data.to_string() };
        let is_raised = turn == Turn::Raised;
        let turn = AlarmTurn { subject, is_raised, app, alert: Some(happened), at: now };
        // The event is entered with the turn.
        let alert = Alert { name, severity, app, words, event: None, at: now, is_logged: false };
        self.owed.push_back(Owed { turn, alert: Some(alert) });
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

/// A store that takes longer is asked again. It may have done it.
const WRITE_WITHIN: Duration = Duration::from_secs(10);

/// Turns that wait for a store which cannot be written to.
const OWED_MAX: usize = 1_024;

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
