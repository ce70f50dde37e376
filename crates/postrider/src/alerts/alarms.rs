//! Which alarms are raised, decided by what was seen: no clock and no store, so that it can be tried.

use crate::config::AlertRules;
use postrider_engine::{
    AppKey, Timestamp,
    alarm::{Alarm, Growth, Patience, RateRule, Reading, Tally, Turn, is_stuck, read_count},
};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// What is watched, and how it stood.
#[derive(Clone, Debug)]
pub struct Alarms {
    pub rules: AlertRules,
    applications: HashMap<AppKey, Alarm>,
    work: Alarm,
    /// Before anything was done, what is due is counted from here.
    begun: Timestamp,
    /// When it was last known how work stands.
    known_at: Timestamp,
    backlog: (Alarm, Growth),
    dead: (Alarm, Growth),
    breakers: Alarm,
}

/// How a node's own work stands.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    Known {
        oldest_due: Option<Timestamp>,
        done_at: Option<Timestamp>,
    },
    /// The store does not say.
    Unknown,
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
            known_at: now,
            backlog: Default::default(),
            dead: Default::default(),
            breakers: Alarm::default(),
        }
    }

    /// Takes over which alarms are raised, by whichever node and in whichever life.
    pub fn know(&mut self, raised: &Raised, node: &str) {
        for app in raised.applications() {
            self.applications.entry(app).or_default();
        }
        for (app, alarm) in &mut self.applications {
            alarm.know(raised.has(&subject_of_application(*app)));
        }
        self.applications.retain(|_, alarm| !alarm.is_quiet());
        self.work.know(raised.has(&subject_of_work(node)));
        self.backlog.0.know(raised.has(BACKLOG_GROWING));
        self.dead.0.know(raised.has(DEAD_LETTERS_GROWING));
        self.breakers.know(raised.has(BREAKERS_OPEN));
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

    pub fn look_at_work(&mut self, work: Work, now: Timestamp) -> Option<Turn> {
        let after = self.rules.oldest_due_max?;
        let (is_bad, patience) = match work {
            Work::Known { oldest_due, done_at } => {
                self.known_at = now;
                let done_at = done_at.unwrap_or(self.begun).max(self.begun);
                // An endpoint that was just resumed, or a lane just taken over, brings work that has been due for long: it must
                // lie for as long as a request may take before that is held against us.
                (is_stuck(oldest_due, done_at, after, now), after.min(TRYING_MAX))
            }
            Work::Unknown => (now.since(self.known_at) > after, Duration::ZERO),
        };
        let reading = match (is_bad, work) {
            (true, _) => Reading::Bad,
            // What was left lying before this node began is lying still, until something is done.
            (false, Work::Known { oldest_due: Some(due), done_at: None }) if now.since(due) >= after => {
                Reading::Between
            }
            (false, Work::Known { .. }) => Reading::Good,
            (false, Work::Unknown) => Reading::Between,
        };
        self.work.look(reading, Patience { raise_after: patience, clear_after: Duration::ZERO }, now)
    }

    /// For how long work has been left lying, as far as that is known.
    pub fn lying_for(&self, work: Work, now: Timestamp) -> Duration {
        match work {
            Work::Known { oldest_due, .. } => oldest_due.map_or(Duration::ZERO, |due| now.since(due)),
            Work::Unknown => now.since(self.known_at),
        }
    }

    pub fn is_stuck(&self) -> bool {
        self.rules.oldest_due_max.is_some() && self.work.is_raised()
    }

    pub fn forget_application(&mut self, app: AppKey) {
        self.applications.remove(&app);
    }

    pub fn look_at_the_rest(&mut self, seen: Seen, now: Timestamp) -> Vec<(&'static str, Turn, u64)> {
        let AlertRules { window, backlog_growth, dead_letters_growth, breakers_open, .. } = self.rules;
        let patience = patience(&self.rules);
        let mut turns = Vec::new();
        for (what, by, (alarm, growth), count) in [
            (BACKLOG_GROWING, backlog_growth, &mut self.backlog, seen.waiting),
            (DEAD_LETTERS_GROWING, dead_letters_growth, &mut self.dead, seen.dead),
        ] {
            let Some(by) = by else { continue };
            let reading = growth.read(count, by, window, now);
            turns.extend(alarm.look(reading, patience, now).map(|turn| (what, turn, count)));
        }
        if let Some(max) = breakers_open {
            let turn = self.breakers.look(read_count(seen.breakers_open, max), patience, now);
            turns.extend(turn.map(|turn| (BREAKERS_OPEN, turn, seen.breakers_open)));
        }
        turns
    }

    pub fn forget_the_rest(&mut self) {
        (self.backlog, self.dead, self.breakers) = Default::default();
    }
}

/// The subjects of the alarms that are raised, as the store has them.
#[derive(Debug, Default)]
pub struct Raised(BTreeSet<String>);

impl FromIterator<String> for Raised {
    fn from_iter<T: IntoIterator<Item = String>>(subjects: T) -> Self {
        Self(subjects.into_iter().collect())
    }
}

impl Raised {
    fn has(&self, subject: &str) -> bool {
        self.0.contains(subject)
    }

    pub fn applications(&self) -> impl Iterator<Item = AppKey> {
        self.0.iter().filter_map(|subject| match subject_of(subject) {
            Subject::Application(app) => Some(app),
            Subject::Work(_) | Subject::All => None,
        })
    }

    /// The nodes whose work was left lying.
    pub fn stuck(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|subject| match subject_of(subject) {
            Subject::Work(node) => Some(node),
            Subject::Application(_) | Subject::All => None,
        })
    }

    /// Those that these rules do not watch.
    pub fn unwatched(&self, rules: &AlertRules) -> impl Iterator<Item = &str> {
        let is_watched = |subject: &str| match subject {
            BACKLOG_GROWING => rules.backlog_growth.is_some(),
            DEAD_LETTERS_GROWING => rules.dead_letters_growth.is_some(),
            BREAKERS_OPEN => rules.breakers_open.is_some(),
            _ if subject.starts_with(APPLICATION) => rules.success_rate_min.is_some(),
            _ => rules.oldest_due_max.is_some(),
        };
        self.0.iter().map(String::as_str).filter(move |subject| !is_watched(subject))
    }
}

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'s> {
    Application(AppKey),
    /// A node's own.
    Work(&'s str),
    All,
}

pub fn subject_of(subject: &str) -> Subject<'_> {
    let application = subject.strip_prefix(APPLICATION).and_then(|key| key.parse().ok());
    let work = subject.strip_prefix(WORK_STUCK).and_then(|rest| rest.strip_prefix(':'));
    match (application, work) {
        (Some(key), _) => Subject::Application(AppKey::new(key)),
        (None, Some(node)) => Subject::Work(node),
        (None, None) => Subject::All,
    }
}

pub fn subject_of_application(app: AppKey) -> String {
    format!("{APPLICATION}{}", app.raw())
}

/// Each node has its own work.
pub fn subject_of_work(node: &str) -> String {
    format!("{WORK_STUCK}:{node}")
}

const APPLICATION: &str = "application:";
pub const WORK_STUCK: &str = "work_stuck";
pub const BACKLOG_GROWING: &str = "backlog_growing";
pub const DEAD_LETTERS_GROWING: &str = "dead_letters_growing";
pub const BREAKERS_OPEN: &str = "breakers_open";

/// The windows are patience enough to raise an alarm; that it is over must last.
fn patience(rules: &AlertRules) -> Patience {
    Patience { raise_after: Duration::ZERO, clear_after: rules.window.min(OVER_FOR) }
}

const OVER_FOR: Duration = Duration::from_mins(1);

/// Longer than a request may take, unless its endpoint's rules say otherwise.
const TRYING_MAX: Duration = Duration::from_mins(1);

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    const APP: AppKey = AppKey::new(7);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    pub fn rules() -> AlertRules {
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

    fn raised(subjects: &[&str]) -> Raised {
        subjects.iter().map(|subject| (*subject).to_owned()).collect()
    }

    #[test]
    fn what_another_node_or_life_has_told_of_is_told_of_again_only_when_it_is_over() {
        let mut alarms = Alarms::new(rules(), at(0));
        alarms.know(&raised(&["application:7", "work_stuck:one", "backlog_growing", "breakers_open"]), "one");
        assert_eq!(turns(&mut alarms, 10, 90, 0), [], "another has told of it");
        let seen = |waiting, breakers_open| Seen { waiting, dead: 0, breakers_open };
        assert_eq!(alarms.look_at_the_rest(seen(5_000, 30), at(0)), []);
        assert!(alarms.is_stuck());
        let lying = Work::Known { oldest_due: Some(at(-900)), done_at: None };
        assert_eq!(alarms.look_at_work(lying, at(1)), None, "it lies as it lay");
        assert_eq!(alarms.look_at_the_rest(seen(9_000, 30), at(300)), [], "it grows as it grew");

        assert_eq!(turns(&mut alarms, 1_000, 1, 400), []);
        assert_eq!(turns(&mut alarms, 1_000, 1, 460), [Turn::Cleared]);
        let done = Work::Known { oldest_due: Some(at(-900)), done_at: Some(at(400)) };
        assert_eq!(alarms.look_at_work(done, at(460)), Some(Turn::Cleared));
        assert_eq!(alarms.look_at_the_rest(seen(9_000, 2), at(960)), []);
        let over = [(BACKLOG_GROWING, Turn::Cleared, 9_000), (BREAKERS_OPEN, Turn::Cleared, 2)];
        assert_eq!(alarms.look_at_the_rest(seen(9_000, 2), at(1_020)), over);

        alarms.know(&raised(&["application:7", "work_stuck:two"]), "one");
        assert!(!alarms.is_stuck(), "that is another's");
        alarms.know(&raised(&["work_stuck:one"]), "one");
        let off = AlertRules { oldest_due_max: None, ..rules() };
        assert!(
            alarms.is_stuck() && !Alarms { rules: off, ..alarms.clone() }.is_stuck(),
            "who does not watch is not stuck"
        );
        alarms.know(&raised(&[]), "one");
        assert!(alarms.applications.is_empty());
        assert_eq!(turns(&mut alarms, 10, 90, 2_000), [Turn::Raised], "another told that it was over");
    }

    #[test]
    fn what_nobody_watches_any_more_is_known_by_its_subject() {
        let all =
            raised(&["application:7", "backlog_growing", "breakers_open", "dead_letters_growing", "work_stuck:one"]);
        assert_eq!(all.unwatched(&rules()).count(), 0);
        assert_eq!(all.stuck().collect::<Vec<_>>(), ["one"]);
        assert_eq!(all.applications().collect::<Vec<_>>(), [APP]);
        for (off, expected) in [
            (AlertRules { success_rate_min: None, ..rules() }, "application:7"),
            (AlertRules { backlog_growth: None, ..rules() }, "backlog_growing"),
            (AlertRules { breakers_open: None, ..rules() }, "breakers_open"),
            (AlertRules { dead_letters_growth: None, ..rules() }, "dead_letters_growing"),
            (AlertRules { oldest_due_max: None, ..rules() }, "work_stuck:one"),
        ] {
            assert_eq!(all.unwatched(&off).collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn work_that_is_left_lying_is_stuck_until_something_is_done() {
        let mut alarms = Alarms::new(rules(), at(0));
        for (second, due, done, expected, stuck) in [
            (10, None, None, None, false),
            (299, Some(-1_000), None, None, false),
            (300, Some(-1_000), None, None, false),
            (359, Some(-1_000), None, None, false),
            (360, Some(-1_000), None, Some(Turn::Raised), true),
            (370, Some(-1_000), None, None, true),
            (380, Some(-1_000), Some(375), Some(Turn::Cleared), false),
            (674, Some(-1_000), Some(375), None, false),
            (675, Some(-1_000), Some(375), None, false),
            (735, Some(-1_000), Some(375), Some(Turn::Raised), true),
            (736, None, Some(375), Some(Turn::Cleared), false),
        ] {
            let work = Work::Known { oldest_due: due.map(at), done_at: done.map(at) };
            let turn = alarms.look_at_work(work, at(second));
            assert_eq!((turn, alarms.is_stuck()), (expected, stuck), "at {second}");
        }
    }

    #[test]
    fn old_work_that_a_resumed_endpoint_brings_is_given_time_to_be_tried() {
        let mut alarms = Alarms::new(rules(), at(0));
        let look = |alarms: &mut Alarms, due: Option<i64>, done: i64, second| {
            let work = Work::Known { oldest_due: due.map(at), done_at: Some(at(done)) };
            alarms.look_at_work(work, at(second))
        };
        assert_eq!(look(&mut alarms, None, 0, 3_600), None);
        for second in [3_605, 3_610, 3_640] {
            assert_eq!(look(&mut alarms, Some(100), 0, second), None, "its first request is under way");
        }
        assert_eq!(look(&mut alarms, Some(100), 3_644, 3_645), None);
        assert!(!alarms.is_stuck());
    }

    #[test]
    fn a_store_that_says_nothing_for_long_is_work_left_lying() {
        let mut alarms = Alarms::new(rules(), at(0));
        let known = Work::Known { oldest_due: None, done_at: None };
        assert_eq!(alarms.look_at_work(known, at(100)), None);
        assert_eq!(alarms.look_at_work(Work::Unknown, at(400)), None);
        assert_eq!(alarms.look_at_work(Work::Unknown, at(401)), Some(Turn::Raised));
        assert_eq!(alarms.lying_for(Work::Unknown, at(401)), Duration::from_secs(301));
        assert_eq!(alarms.look_at_work(Work::Unknown, at(405)), None);
        assert_eq!(alarms.look_at_work(known, at(410)), Some(Turn::Cleared));
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
