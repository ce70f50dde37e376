//! Looks, every few seconds, whether something is wrong that no single change shows: an application whose attempts fail, a
//! backlog or dead letters that grow, many open breakers, work that is left lying.
//!
//! What one node's applications do and whether its own work lies is looked at on every node; what concerns all, on the one
//! that does the work of all. Whether that is worth telling is decided by alarms, which tell each turn once.

use super::{Alert, Alerts, Severity, events::Event};
use crate::{
    clock::Clock,
    config::AlertRules,
    directory::{Directory, EndpointEntry},
    ids::IdCodec,
};
use postrider_engine::{
    AppKey, EndpointKey, Timestamp,
    alarm::{Alarm, Growth, Patience, RateRule, Reading, Tally, Turn, is_stuck, read_count},
    policy::Breaker,
};
use postrider_store::{By, OPERATIONAL, Shards, Store, StoreError};
use serde_json::json;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
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
        let mut next_count = Instant::now();
        let (look_every, count_every_max) = (look_every(&self.alarms.rules), shortest(&self.alarms.rules));
        loop {
            let now = self.clock.now();
            self.look_at_applications(now).await;
            let begun = Instant::now();
            if next_count <= begun {
                match self.look_at_the_store(now).await {
                    Ok(()) => {}
                    Err(StoreError::Closed) => return,
                    Err(error) => warn!(%error, "it could not be looked whether something is wrong"),
                }
                // To count takes the longer the more there is: a hundredth of the time, unless that is too rare to notice.
                next_count = begun + begun.elapsed().saturating_mul(COUNTING_SHARE).min(count_every_max);
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

    async fn look_at_the_store(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let oldest_due = oldest_due(&*self.store, &self.directory, now).await?;
        let done_at = self.alerts.watch.done_at();
        let turn = self.alarms.look_at_work(oldest_due, done_at, now);
        self.alerts.watch.set_stuck(self.alarms.is_stuck());
        if let Some(turn) = turn {
            let since = oldest_due.map(|due| now.since(due).as_secs());
            self.tell_of_system("work_stuck", turn, since.unwrap_or_default(), now);
        }
        // What concerns all is one node's to tell. The others forget what they saw.
        if !self.store.leads() {
            self.alarms.forget_the_rest();
            return Ok(());
        }
        let counts = self.store.counts(Shards::ALL).await?;
        let healths = self.store.healths(Shards::ALL).await?;
        let open = healths.iter().filter(|(_, health)| matches!(health.breaker, Breaker::Open { .. })).count() as u64;
        let seen = Seen { waiting: counts.waiting, dead: counts.dead, breakers_open: open };
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

/// What is watched, and how it stood: no clock and no store, so that it can be tried.
pub struct Alarms {
    rules: AlertRules,
    applications: HashMap<AppKey, Alarm>,
    work: Alarm,
    /// Before anything was done, what is due is counted from here.
    begun: Timestamp,
    backlog: (Alarm, Growth),
    dead: (Alarm, Growth),
    breakers: Alarm,
}

/// What concerns all.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub waiting: u64,
    pub dead: u64,
    pub breakers_open: u64,
}

impl Alarms {
    pub fn new(rules: AlertRules, now: Timestamp) -> Self {
        Self {
            rules,
            applications: HashMap::new(),
            work: Alarm::default(),
            begun: now,
            backlog: Default::default(),
            dead: Default::default(),
            breakers: Alarm::default(),
        }
    }

    pub fn look_at_applications(
        &mut self,
        tallies: &HashMap<AppKey, Tally>,
        now: Timestamp,
    ) -> Vec<(AppKey, Turn, Tally)> {
        let Some(rate_min) = self.rules.success_rate_min else { return Vec::new() };
        let rule = RateRule { rate_min, attempts_min: self.rules.attempts_min };
        let patience = patience(&self.rules);
        // Those that were raised and have no traffic any more are looked at too.
        let raised =
            self.applications.keys().filter(|app| !tallies.contains_key(app)).map(|app| (*app, Tally::default()));
        let all: Vec<(AppKey, Tally)> = tallies.iter().map(|(app, tally)| (*app, *tally)).chain(raised).collect();
        let mut turns = Vec::new();
        for (app, tally) in all {
            let mut alarm = self.applications.remove(&app).unwrap_or_default();
            let turn = alarm.look(rule.read(tally), patience, now);
            if !alarm.is_quiet() {
                self.applications.insert(app, alarm);
            }
            turns.extend(turn.map(|turn| (app, turn, tally)));
        }
        turns
    }

    pub fn look_at_work(
        &mut self,
        oldest_due: Option<Timestamp>,
        done_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Turn> {
        let after = self.rules.oldest_due_max?;
        let done_at = done_at.unwrap_or(self.begun).max(self.begun);
        let reading = if is_stuck(oldest_due, done_at, after, now) { Reading::Bad } else { Reading::Good };
        self.work.look(reading, Patience { raise_after: Duration::ZERO, clear_after: Duration::ZERO }, now)
    }

    pub fn is_stuck(&self) -> bool {
        self.work.is_raised()
    }

    pub fn look_at_the_rest(&mut self, seen: Seen, now: Timestamp) -> Vec<(&'static str, Turn, u64)> {
        let AlertRules { window, backlog_growth, dead_letters_growth, breakers_open, .. } = self.rules;
        let patience = patience(&self.rules);
        let mut turns = Vec::new();
        for (what, by, (alarm, growth), count) in [
            ("backlog_growing", backlog_growth, &mut self.backlog, seen.waiting),
            ("dead_letters_growing", dead_letters_growth, &mut self.dead, seen.dead),
        ] {
            let Some(by) = by else { continue };
            let reading = growth.read(count, by, window, now);
            turns.extend(alarm.look(reading, patience, now).map(|turn| (what, turn, count)));
        }
        if let Some(max) = breakers_open {
            let turn = self.breakers.look(read_count(seen.breakers_open, max), patience, now);
            turns.extend(turn.map(|turn| ("breakers_open", turn, seen.breakers_open)));
        }
        turns
    }

    fn forget_the_rest(&mut self) {
        (self.backlog, self.dead, self.breakers) = Default::default();
    }
}

/// Of what this node serves and might send: what a person has paused, or a breaker holds, is left out, and so is what
/// operators are told.
async fn oldest_due(store: &dyn Store, directory: &Directory, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let owned = store.owned();
    let mut due: Vec<_> = store.lanes(owned).await?.into_iter().filter(|lane| lane.next_due < now).collect();
    if due.is_empty() {
        return Ok(None);
    }
    due.sort_by_key(|lane| lane.next_due);
    let healths = store.healths(owned).await?;
    let tripped: BTreeSet<EndpointKey> = healths
        .into_iter()
        .filter(|(_, health)| matches!(health.breaker, Breaker::Open { .. }))
        .map(|(endpoint, _)| endpoint)
        .collect();
    for lane in due {
        let entry = directory.endpoint(lane.endpoint).await?;
        let is_held = |entry: &EndpointEntry| entry.lane.parked || !entry.is_whole || entry.lane.app == OPERATIONAL;
        let is_held = entry.is_some_and(|entry| is_held(&entry));
        if !is_held && !tripped.contains(&lane.endpoint) {
            return Ok(Some(lane.next_due));
        }
    }
    Ok(None)
}

/// The windows are patience enough to raise an alarm; that it is over must last.
fn patience(rules: &AlertRules) -> Patience {
    Patience { raise_after: Duration::ZERO, clear_after: rules.window.min(OVER_FOR) }
}

/// Often enough for the shortest time that is watched.
fn look_every(rules: &AlertRules) -> Duration {
    (shortest(rules) / LOOKS_MIN).min(LOOK_EVERY_MAX)
}

fn shortest(rules: &AlertRules) -> Duration {
    rules.oldest_due_max.map_or(rules.window, |oldest| oldest.min(rules.window))
}

const OVER_FOR: Duration = Duration::from_mins(1);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(5);
const LOOKS_MIN: u32 = 10;
const COUNTING_SHARE: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const APP: AppKey = AppKey::new(7);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    fn rules() -> AlertRules {
        AlertRules {
            success_rate_min: Some(9_000),
            attempts_min: 100,
            window: Duration::from_mins(10),
            backlog_growth: Some(1_000),
            dead_letters_growth: Some(100),
            breakers_open: Some(10),
            oldest_due_max: Some(Duration::from_mins(5)),
        }
    }

    fn turns(alarms: &mut Alarms, succeeded: u64, failed: u64, second: i64) -> Vec<Turn> {
        let tallies = HashMap::from([(APP, Tally { succeeded, failed })]);
        alarms.look_at_applications(&tallies, at(second)).into_iter().map(|(_, turn, _)| turn).collect()
    }

    #[test]
    fn an_application_that_fails_is_told_of_once_and_once_when_it_is_well() {
        let mut alarms = Alarms::new(rules(), at(0));
        assert_eq!(turns(&mut alarms, 0, 99, 0), [], "too few to say");
        assert_eq!(turns(&mut alarms, 10, 90, 5), [Turn::Raised]);
        for second in 6..600 {
            assert_eq!(turns(&mut alarms, 500, 90, second), [], "it hovers at the bound");
        }
        assert_eq!(alarms.look_at_applications(&HashMap::new(), at(700)), [], "no traffic is no relief");
        assert_eq!(turns(&mut alarms, 1_000, 1, 800), []);
        assert_eq!(turns(&mut alarms, 1_000, 1, 859), []);
        assert_eq!(turns(&mut alarms, 1_000, 1, 860), [Turn::Cleared]);
        assert!(alarms.applications.is_empty(), "who is well takes no room");
        let mut off = Alarms::new(AlertRules { success_rate_min: None, ..rules() }, at(0));
        assert_eq!(turns(&mut off, 0, 1_000, 0), []);
    }

    #[test]
    fn work_that_is_left_lying_is_stuck_until_something_is_done() {
        let mut alarms = Alarms::new(rules(), at(0));
        for (second, due, done, expected, stuck) in [
            (10, None, None, None, false),
            (299, Some(-1_000), None, None, false),
            (300, Some(-1_000), None, Some(Turn::Raised), true),
            (310, Some(-1_000), None, None, true),
            (320, Some(-1_000), Some(315), Some(Turn::Cleared), false),
            (614, Some(-1_000), Some(315), None, false),
            (615, Some(-1_000), Some(315), Some(Turn::Raised), true),
            (616, None, Some(315), Some(Turn::Cleared), false),
        ] {
            let turn = alarms.look_at_work(due.map(at), done.map(at), at(second));
            assert_eq!((turn, alarms.is_stuck()), (expected, stuck), "at {second}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_seen_each_alarm_is_raised_and_cleared_in_turns(
            looks in prop::collection::vec((0_u64..5_000, 0_u64..500, 0_u64..30, 1_i64..120), 1..200),
        ) {
            let mut alarms = Alarms::new(rules(), at(0));
            let mut last: HashMap<&str, Turn> = HashMap::new();
            let mut now = 0;
            for (waiting, dead, breakers_open, gap) in looks {
                now += gap;
                for (what, turn, _) in alarms.look_at_the_rest(Seen { waiting, dead, breakers_open }, at(now)) {
                    let before = last.insert(what, turn).unwrap_or(Turn::Cleared);
                    prop_assert_ne!(before, turn, "{} twice", what);
                }
            }
        }
    }
}
