//! Compares what the producers, the receiver and the API say, and what was done to the server meanwhile.
//!
//! Only what can be seen from outside is used. The letters of the logs and the numbers of the rules (I1 ...) are
//! those of `docs` on reliability: P the producers, V the receiver, A the API, F the faults.

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
    pub deliveries: usize,
    /// Stored, though no answer to the producer came through at first.
    pub repeated_offers: usize,
    pub repeats: usize,
    pub repeats_of_a_lane_max: usize,
}

/// What can be repeated after a kill: so many per lane (`Limits::unsettled` of the engine) ...
pub const UNSETTLED_MAX: usize = 64;
/// ... and nothing that arrived longer ago than this.
pub const DURABLE_WITHIN: Duration = Duration::from_secs(2);
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
                None => self.violation("I1, an accepted message is lost", format!("{event:?}")),
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
                self.violation("I3, not seen by the receiver", format!("{message} to {path}: {status}"));
            }
        }
        for (path, message) in wanted {
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
                    if waited < RETRY_AFTER_MIN {
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
