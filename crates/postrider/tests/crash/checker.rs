//! Compares what the producers, the receiver and the API say, and what was done to the server meanwhile.
//!
//! Only what can be seen from outside is used. The letters of the logs and the numbers of the rules (I1 ...) are
//! those of the list in ARCHITECTURE.md: P the producers, V the receiver, A the API, F the faults.

use super::support::DURABLE_WITHIN;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

/// All four logs.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    pub endpoints: Vec<Endpoint>,
    pub events: Vec<Event>,
    pub arrivals: Vec<Arrival>,
    pub view: View,
    pub sightings: Vec<Sighting>,
    /// In order. What is left running at the end has no end.
    pub runs: Vec<Run>,
    /// Then nothing can be said about how long a retry waited.
    pub clock_was_set: bool,
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub app: usize,
    pub path: String,
    /// `None`: all of them.
    pub event_type: Option<&'static str>,
    /// Answers 503 to every first try.
    pub refuses_first: bool,
}

impl Endpoint {
    pub fn wants(&self, app: usize, event_type: &str) -> bool {
        self.app == app && self.event_type.is_none_or(|wanted| wanted == event_type)
    }

    fn answers_well(&self, attempt: u32) -> bool {
        !self.refuses_first || attempt > 1
    }

    fn attempts_needed(&self) -> u32 {
        if self.refuses_first { 2 } else { 1 }
    }
}

/// P: something that happened at the producer. Its payload is like no other's.
#[derive(Clone, Debug)]
pub struct Event {
    pub app: usize,
    pub event_type: &'static str,
    pub payload: Bytes,
    /// How often the request was made; 0 is never logged.
    pub offers: u32,
    pub accepted: Option<Receipt>,
}

/// What the first whole 2xx answer said; or, without an id, that the event's id is taken, and so stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    pub message: Option<String>,
}

/// V: one request at the receiver.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub path: String,
    pub message: String,
    pub attempt: u32,
    pub body: Bytes,
    pub at: Instant,
    /// The run of the server that it came from.
    pub run: usize,
}

/// A: everything, after all has come to rest.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub messages: Vec<Message>,
    /// By path and message, with the contract's number of the status.
    pub deliveries: Vec<(String, String, u8)>,
    /// By path and message: number of the attempt and the receiver's answer.
    pub attempts: Vec<(String, String, u32, u16)>,
}

#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    pub app: usize,
    pub event_type: String,
    pub payload: Bytes,
}

/// A, while the load ran: at this moment the API had said that the delivery has been made.
#[derive(Clone, Debug)]
pub struct Sighting {
    pub path: String,
    pub message: String,
    pub at: Instant,
}

/// F: one life of the server's process.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub began: Instant,
    pub end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// It had no chance to write anything down.
    Killed { at: Instant },
    /// It settled what was under way.
    Stopped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    pub messages: usize,
    /// Accepted, and not stored or not delivered.
    pub lost: usize,
    pub deliveries: usize,
    /// Stored, though no answer to the producer came through at first.
    pub repeated_offers: usize,
    pub repeats: usize,
    pub repeats_of_a_lane_max: usize,
}

/// So many can be repeated after a kill, per lane (`Limits::unsettled` of the engine).
pub const UNSETTLED_MAX: usize = 64;
/// The first delay of the default schedule is 5 s, of which half is certain. Times are kept in whole milliseconds.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(2_500 - 5);

pub fn check(logs: &Logs) -> Result<Summary, Vec<String>> {
    let mut checker = Checker::new(logs);
    checker.check_that_nothing_is_lost();
    checker.check_that_nothing_is_invented();
    checker.check_deliveries();
    checker.check_attempts();
    checker.check_sightings();
    checker.check_repeats();
    checker.summary.messages = logs.view.messages.len();
    checker.summary.deliveries = logs.view.deliveries.len();
    checker.summary.repeated_offers = logs.events.iter().filter(|event| event.offers > 1).count();
    if checker.violations.is_empty() { Ok(checker.summary) } else { Err(checker.violations) }
}

type DeliveryOf<'a> = (&'a str, &'a str);

struct Checker<'a> {
    logs: &'a Logs,
    endpoints: HashMap<&'a str, &'a Endpoint>,
    events: HashMap<&'a Bytes, &'a Event>,
    messages: HashMap<&'a str, &'a Message>,
    /// In the order in which they came.
    arrivals: HashMap<DeliveryOf<'a>, Vec<&'a Arrival>>,
    summary: Summary,
    violations: Vec<String>,
}

impl<'a> Checker<'a> {
    fn new(logs: &'a Logs) -> Self {
        let mut arrivals: HashMap<_, Vec<_>> = HashMap::new();
        for arrival in &logs.arrivals {
            arrivals.entry((arrival.path.as_str(), arrival.message.as_str())).or_default().push(arrival);
        }
        for arrivals in arrivals.values_mut() {
            arrivals.sort_by_key(|arrival| arrival.at);
        }
        Self {
            logs,
            endpoints: logs.endpoints.iter().map(|endpoint| (endpoint.path.as_str(), endpoint)).collect(),
            events: logs.events.iter().map(|event| (&event.payload, event)).collect(),
            messages: logs.view.messages.iter().map(|message| (message.id.as_str(), message)).collect(),
            arrivals,
            summary: Summary::default(),
            violations: Vec::new(),
        }
    }

    fn violation(&mut self, rule: &str, what: String) {
        self.violations.push(format!("{rule}: {what}"));
    }

    /// I1, and one message for one event however often it was offered (I26, I27).
    fn check_that_nothing_is_lost(&mut self) {
        let mut stored: HashMap<&Bytes, Vec<&Message>> = HashMap::new();
        for message in &self.logs.view.messages {
            stored.entry(&message.payload).or_default().push(message);
        }
        for event in &self.logs.events {
            let found = stored.get(&event.payload).map_or(&[][..], Vec::as_slice);
            if found.len() > 1 {
                let ids: Vec<_> = found.iter().map(|message| &message.id).collect();
                self.violation("I26, one event became several messages", format!("{event:?}: {ids:?}"));
            }
            let Some(receipt) = &event.accepted else { continue };
            match found.first() {
                None => {
                    self.summary.lost += 1;
                    self.violation("I1, an accepted message is lost", format!("{event:?}"));
                }
                Some(message) if receipt.message.as_ref().is_some_and(|id| *id != message.id) => {
                    self.violation("I1, the event is stored under another id", format!("{event:?}: {message:?}"));
                }
                Some(_) => {}
            }
        }
    }

    /// I5 and I6, for what is stored and for what arrived.
    fn check_that_nothing_is_invented(&mut self) {
        if self.messages.len() != self.logs.view.messages.len() {
            self.violation("I5, an id is used twice", format!("{:?}", self.logs.view.messages));
        }
        for message in &self.logs.view.messages {
            let same = |event: &&Event| event.app == message.app && event.event_type == message.event_type;
            if !self.events.get(&message.payload).is_some_and(same) {
                self.violation("I5, a message that nobody offered", format!("{message:?}"));
            }
        }
        for arrival in &self.logs.arrivals {
            match self.messages.get(arrival.message.as_str()) {
                None => self.violation("I5, an arrival without a message", format!("{arrival:?}")),
                Some(message) if message.payload != arrival.body => {
                    self.violation("I6, other bytes arrived", format!("{arrival:?} of {message:?}"));
                }
                Some(message) => {
                    let wants = |endpoint: &&Endpoint| endpoint.wants(message.app, &message.event_type);
                    if !self.endpoints.get(arrival.path.as_str()).is_some_and(wants) {
                        self.violation("I5, an arrival where it was not wanted", format!("{arrival:?}"));
                    }
                }
            }
        }
    }

    /// I2, I3 and I8: a delivery for each endpoint that wants the message, made, and no others.
    fn check_deliveries(&mut self) {
        let mut wanted: HashSet<DeliveryOf<'a>> = HashSet::new();
        for message in &self.logs.view.messages {
            let takers = self.logs.endpoints.iter().filter(|it| it.wants(message.app, &message.event_type));
            wanted.extend(takers.map(|endpoint| (endpoint.path.as_str(), message.id.as_str())));
        }
        for (path, message, status) in &self.logs.view.deliveries {
            let delivery = (path.as_str(), message.as_str());
            if !wanted.remove(&delivery) {
                self.violation("I2, a delivery twice, or that nobody wants", format!("{message} to {path}"));
            }
            if *status != DELIVERED {
                self.violation("I29, a delivery that did not end well", format!("{message} to {path}: {status}"));
            }
            let endpoint = self.endpoints.get(path.as_str());
            let arrived = self.arrivals.get(&delivery).is_some_and(|arrivals| {
                arrivals.iter().any(|arrival| endpoint.is_some_and(|it| it.answers_well(arrival.attempt)))
            });
            if !arrived {
                self.summary.lost += 1;
                self.violation("I3, not seen by the receiver", format!("{message} to {path}: {status}"));
            }
        }
        for (path, message) in wanted {
            self.summary.lost += 1;
            self.violation("I8, a message lacks a delivery", format!("{message} to {path}"));
        }
    }

    /// I9 and I13: as many attempts as were needed, each written down once.
    fn check_attempts(&mut self) {
        let mut recorded: HashMap<DeliveryOf<'a>, Vec<(u32, u16)>> = HashMap::new();
        for (path, message, number, status) in &self.logs.view.attempts {
            recorded.entry((path, message)).or_default().push((*number, *status));
        }
        for (path, message, _) in &self.logs.view.deliveries {
            let Some(endpoint) = self.endpoints.get(path.as_str()) else { continue };
            let mut found = recorded.remove(&(path.as_str(), message.as_str())).unwrap_or_default();
            found.sort_unstable();
            let expected: Vec<_> = (1..=endpoint.attempts_needed())
                .map(|number| (number, if endpoint.answers_well(number) { 204 } else { 503 }))
                .collect();
            if found != expected {
                let what = format!("{message} to {path}: {found:?} instead of {expected:?}");
                self.violation("I9, the attempts are not those that were needed", what);
            }
        }
        for (path, message) in recorded.into_keys() {
            self.violation("I9, attempts without a delivery", format!("{message} to {path}"));
        }
    }

    /// What the API has called delivered is never sent again, however soon the server was killed.
    fn check_sightings(&mut self) {
        for Sighting { path, message, at } in &self.logs.sightings {
            let arrivals = self.arrivals.get(&(path.as_str(), message.as_str())).map_or(&[][..], Vec::as_slice);
            if let Some(late) = arrivals.iter().find(|arrival| arrival.at > *at) {
                let late = format!("{message} to {path}, {:?} later, from run {}", late.at - *at, late.run);
                self.violation("I17, sent again after the API had said that it was delivered", late);
            }
        }
    }

    /// I9: whatever came twice was under way when the server was killed.
    fn check_repeats(&mut self) {
        let mut by_kill: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        let mut violations = Vec::new();
        for ((path, message), arrivals) in &self.arrivals {
            let Some(endpoint) = self.endpoints.get(path) else { continue };
            for (index, arrival) in arrivals.iter().enumerate() {
                let Some(earlier) = arrivals[..index].last() else { continue };
                let is_retry = !endpoint.answers_well(earlier.attempt) && arrival.attempt == earlier.attempt + 1;
                if is_retry {
                    let waited = arrival.at - earlier.at;
                    if waited < RETRY_AFTER_MIN && !self.logs.clock_was_set {
                        violations.push(format!("I12, a retry after only {waited:?}: {message} to {path}"));
                    }
                    continue;
                }
                *by_kill.entry((earlier.run, path)).or_default() += 1;
                let unsettled = match self.logs.runs.get(earlier.run).and_then(|run| run.end) {
                    Some(End::Killed { at }) if earlier.run < arrival.run => {
                        at.saturating_duration_since(earlier.at) <= DURABLE_WITHIN
                    }
                    Some(End::Killed { .. } | End::Stopped) | None => false,
                };
                if !unsettled {
                    let ends: Vec<_> = self.logs.runs.iter().enumerate().skip(earlier.run).take(3).collect();
                    violations
                        .push(format!("I9, sent twice without cause: {earlier:?}, then {arrival:?}; runs {ends:?}"));
                }
            }
        }
        for ((run, path), repeats) in by_kill {
            self.summary.repeats += repeats;
            self.summary.repeats_of_a_lane_max = self.summary.repeats_of_a_lane_max.max(repeats);
            if repeats > UNSETTLED_MAX {
                violations.push(format!("I9, {repeats} repeats at {path} after the end of run {run}"));
            }
        }
        self.violations.extend(violations);
    }
}

const DELIVERED: u8 = 0;

/// A checker that finds nothing has to show that it could have.
mod tests {
    use super::*;

    type Breach = fn(&mut Logs);

    /// Two events at three endpoints; one delivery was under way at a kill, and one was tried twice as it had to be.
    fn clean() -> Logs {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let endpoint =
            |path: &str, app, refuses_first| Endpoint { app, path: path.into(), event_type: None, refuses_first };
        let event = |number: usize, app| Event {
            app,
            event_type: "a.b",
            payload: format!("{{\"event\": {number}}}").into(),
            offers: 1,
            accepted: Some(Receipt { message: Some(format!("msg_{number}")) }),
        };
        let events = vec![event(0, 0), event(1, 1)];
        let arrival = |path: &str, number: usize, attempt, millis, run| Arrival {
            path: path.into(),
            message: format!("msg_{number}"),
            attempt,
            body: events[number].payload.clone(),
            at: at(millis),
            run,
        };
        let message = |number: usize, event: &Event| Message {
            id: format!("msg_{number}"),
            app: event.app,
            event_type: event.event_type.into(),
            payload: event.payload.clone(),
        };
        let of = |path: &str, number: usize| (path.to_owned(), format!("msg_{number}"));
        let delivered = |(path, message)| (path, message, DELIVERED);
        let attempt = |(path, message), number, status| (path, message, number, status);
        Logs {
            endpoints: vec![endpoint("/a", 0, false), endpoint("/b", 0, false), endpoint("/once", 1, true)],
            arrivals: vec![
                arrival("/a", 0, 1, 10_000, 0),
                arrival("/b", 0, 1, 10_000, 0),
                arrival("/b", 0, 1, 11_000, 1),
                arrival("/once", 1, 1, 10_000, 0),
                arrival("/once", 1, 2, 13_000, 1),
            ],
            view: View {
                messages: events.iter().enumerate().map(|(number, event)| message(number, event)).collect(),
                deliveries: [of("/a", 0), of("/b", 0), of("/once", 1)].map(delivered).to_vec(),
                attempts: vec![
                    attempt(of("/a", 0), 1, 204),
                    attempt(of("/b", 0), 1, 204),
                    attempt(of("/once", 1), 1, 503),
                    attempt(of("/once", 1), 2, 204),
                ],
            },
            sightings: vec![Sighting { path: "/a".into(), message: "msg_0".into(), at: at(10_100) }],
            clock_was_set: false,
            runs: vec![
                Run { began: start, end: Some(End::Killed { at: at(10_500) }) },
                Run { began: at(10_600), end: None },
            ],
            events,
        }
    }

    #[test]
    fn what_went_well_is_not_held_against_the_server() {
        let summary =
            Summary { messages: 2, lost: 0, deliveries: 3, repeated_offers: 0, repeats: 1, repeats_of_a_lane_max: 1 };
        assert_eq!(check(&clean()), Ok(summary));
    }

    #[test]
    fn every_breach_is_seen() {
        let breaches: [(&str, Breach); 17] = [
            ("I1, an accepted", |logs| drop(logs.view.messages.remove(0))),
            ("I1, the event", |logs| logs.events[0].accepted = Some(Receipt { message: Some("msg_9".into()) })),
            ("I5, a message", |logs| drop(logs.events.remove(0))),
            ("I5, an id", |logs| logs.view.messages[1].id = "msg_0".into()),
            ("I5, an arrival without", |logs| logs.arrivals[0].message = "msg_9".into()),
            ("I5, an arrival where", |logs| logs.endpoints[0].app = 1),
            ("I6", |logs| logs.arrivals[0].body = "{\"event\":0}".into()),
            ("I26", |logs| {
                let again = Message { id: "msg_2".into(), ..logs.view.messages[0].clone() };
                logs.view.messages.push(again);
            }),
            ("I2", |logs| logs.view.deliveries.push(logs.view.deliveries[0].clone())),
            ("I3", |logs| drop(logs.arrivals.pop())),
            ("I8", |logs| drop(logs.view.deliveries.pop())),
            ("I29", |logs| logs.view.deliveries[0].2 = 1),
            ("I9, the attempts", |logs| logs.view.attempts.push(logs.view.attempts[0].clone())),
            ("I9, sent twice", |logs| logs.runs[0].end = Some(End::Stopped)),
            ("I9, sent twice", |logs| logs.arrivals[1].at -= DURABLE_WITHIN),
            ("I12", |logs| logs.arrivals[4].at -= Duration::from_secs(1)),
            ("I17", |logs| logs.sightings[0].path = "/b".into()),
        ];
        for (rule, breach) in breaches {
            let mut logs = clean();
            breach(&mut logs);
            let found = check(&logs).expect_err(rule);
            assert!(found.iter().any(|violation| violation.starts_with(rule)), "{rule}: {found:#?}");
        }
    }

    #[test]
    fn a_kill_explains_only_so_many_repeats() {
        let mut logs = clean();
        for number in 2..=UNSETTLED_MAX {
            for earlier in [1, 2] {
                let message = format!("msg_{number}");
                logs.arrivals.push(Arrival { message, ..logs.arrivals[earlier].clone() });
            }
        }
        let found = check(&logs).expect_err("messages that nobody knows");
        assert!(!found.iter().any(|violation| violation.contains(" repeats at ")), "{found:#?}");
        for earlier in [1, 2] {
            logs.arrivals.push(Arrival { message: "msg_999".into(), ..logs.arrivals[earlier].clone() });
        }
        let found = check(&logs).expect_err("one repeat too many");
        assert!(found.iter().any(|violation| violation.starts_with("I9, 65 repeats at /b")), "{found:#?}");
    }
}
