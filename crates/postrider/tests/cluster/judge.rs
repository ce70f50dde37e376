//! Compares what the producers, the receiver and the API say about several nodes, and what was done to them meanwhile.
//!
//! Only what can be seen from outside is used. The numbers of the rules (I1 ...) are those of the list in ARCHITECTURE.md.

use super::support::DURABLE_WITHIN;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// What everyone has to say.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    pub endpoints: Vec<Endpoint>,
    /// Those of one series in the order in which they were offered, each one after the one before it was accepted.
    pub events: Vec<Event>,
    /// Requests of producers that were not answered, or with "not now".
    pub refusals: Vec<Refusal>,
    /// In the order in which they came.
    pub arrivals: Vec<Arrival>,
    pub messages: Vec<Message>,
    /// By path and message, with the contract's number of the status.
    pub deliveries: Vec<(String, String, u8)>,
    /// By path and message: number of the attempt and the receiver's answer.
    pub attempts: Vec<(String, String, u32, u16)>,
    /// By path and message: when the API had said, while the load ran, that the delivery has been made.
    pub sightings: BTreeMap<(String, String), Instant>,
    pub faults: Vec<Fault>,
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub app: &'static str,
    pub path: String,
    pub in_flight_max: Option<usize>,
    /// Requests per second, and how many may come at once.
    pub rate: Option<u32>,
    pub is_ordered: bool,
    /// It refuses some requests.
    pub is_moody: bool,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub app: &'static str,
    pub series: Option<String>,
    pub payload: Bytes,
    pub message: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Refusal {
    pub node: usize,
    pub began: Instant,
    pub ended: Instant,
    pub what: String,
}

#[derive(Clone, Debug)]
pub struct Arrival {
    pub path: String,
    pub message: String,
    pub attempt: u32,
    pub sequence: Option<u64>,
    pub body: Bytes,
    pub is_taken: bool,
    pub opened: Instant,
    pub closed: Option<Instant>,
    /// When the connection that it came on ended. A connection ends with the process that made it.
    pub hung_up: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    pub app: &'static str,
    pub payload: Bytes,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub from: Instant,
    /// Everything flowed again by then; or, if nobody waited for that, the node was ready again or had ended.
    pub to: Instant,
}

impl Fault {
    /// What was under way may come again: its outcome was lost along with the node, or with its lease. A node that is asked
    /// to stop writes down what it has done, and what cannot be written while the database is away is written later.
    fn may_undo(&self, arrival: &Arrival) -> bool {
        match self.kind {
            // Only its own requests, and those came on connections that ended with it, or before.
            Kind::Killed { alive, dead, .. } => {
                arrival.opened + DURABLE_WITHIN >= alive
                    && arrival.opened <= dead + HEARD_WITHIN
                    && arrival.hung_up.is_some_and(|hung_up| hung_up <= dead + HEARD_WITHIN)
            }
            Kind::Paused { .. } | Kind::CutOff { .. } => {
                arrival.opened + DURABLE_WITHIN >= self.from && arrival.opened <= self.to
            }
            Kind::Stopped { .. } | Kind::DatabaseAway => false,
        }
    }

    /// Nothing comes again before it has happened.
    fn happens(&self) -> Instant {
        match self.kind {
            Kind::Killed { alive, .. } => alive,
            Kind::Paused { .. } | Kind::CutOff { .. } | Kind::Stopped { .. } | Kind::DatabaseAway => self.from,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was seen alive then, and dead then.
    Killed {
        node: usize,
        alive: Instant,
        dead: Instant,
    },
    Paused {
        node: usize,
        woken: Instant,
    },
    CutOff {
        node: usize,
    },
    Stopped {
        node: usize,
    },
    DatabaseAway,
}

impl Kind {
    fn explains_refusal_by(self, refusing: usize) -> bool {
        match self {
            Self::Killed { node, .. } | Self::Paused { node, .. } | Self::CutOff { node } | Self::Stopped { node } => {
                node == refusing
            }
            Self::DatabaseAway => true,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    pub messages: usize,
    /// Accepted, and not stored or not delivered.
    pub lost: usize,
    pub deliveries: usize,
    pub refusals: usize,
    pub sightings: usize,
    pub repeats: usize,
    /// Of one lane after one fault.
    pub repeats_max: usize,
    /// Arrivals that nothing would have excused if they had come twice.
    pub unexcused: usize,
    pub in_flight_max: usize,
    /// How far the busiest time went beyond the rate, in requests.
    pub above_rate_max: usize,
}

/// A lane has one owner, and no more than so many of its deliveries are under way or not yet written down
/// (`Limits::unsettled` of the engine): so many a fault can make it repeat.
pub const UNSETTLED_MAX: usize = 64;

/// A node that was stopped between deciding on a request and writing it writes it when it wakes.
const AFTER_WAKING: Duration = Duration::from_secs(1);

/// So late may the receiver read a request, because the machine is busy.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// So late may it hear that a sender is gone. It is less than what lies between two kills, so that it shows which of them it
/// was.
const HEARD_WITHIN: Duration = Duration::from_millis(500);

pub fn judge(logs: &Logs) -> Result<Summary, Vec<String>> {
    let mut judge = Judge::new(logs);
    judge.nothing_is_lost();
    judge.nothing_is_invented();
    judge.every_delivery_is_made_and_told();
    judge.attempts_are_those_that_were_needed();
    judge.repeats_are_what_was_under_way();
    judge.what_is_told_to_be_made_is_not_made_again();
    judge.caps_hold();
    judge.rates_hold();
    judge.order_holds();
    judge.only_nodes_in_trouble_refuse();
    judge.summary.messages = logs.messages.len();
    judge.summary.deliveries = logs.deliveries.len();
    judge.summary.refusals = logs.refusals.len();
    judge.summary.sightings = logs.sightings.len();
    if judge.violations.is_empty() { Ok(judge.summary) } else { Err(judge.violations) }
}

type DeliveryOf<'a> = (&'a str, &'a str);

struct Judge<'a> {
    logs: &'a Logs,
    endpoints: BTreeMap<&'a str, &'a Endpoint>,
    events: HashMap<&'a Bytes, &'a Event>,
    messages: HashMap<&'a str, &'a Message>,
    arrivals: BTreeMap<DeliveryOf<'a>, Vec<&'a Arrival>>,
    summary: Summary,
    violations: Vec<String>,
}

impl<'a> Judge<'a> {
    fn new(logs: &'a Logs) -> Self {
        let mut arrivals: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for arrival in &logs.arrivals {
            arrivals.entry((arrival.path.as_str(), arrival.message.as_str())).or_default().push(arrival);
        }
        Self {
            logs,
            endpoints: logs.endpoints.iter().map(|endpoint| (endpoint.path.as_str(), endpoint)).collect(),
            events: logs.events.iter().map(|event| (&event.payload, event)).collect(),
            messages: logs.messages.iter().map(|message| (message.id.as_str(), message)).collect(),
            arrivals,
            summary: Summary::default(),
            violations: Vec::new(),
        }
    }

    fn violation(&mut self, rule: &str, what: String) {
        self.violations.push(format!("{rule}: {what}"));
    }

    /// I1, and I26: one message for one event, however often and wherever it was offered.
    fn nothing_is_lost(&mut self) {
        let mut stored: HashMap<&Bytes, Vec<&str>> = HashMap::new();
        for message in &self.logs.messages {
            stored.entry(&message.payload).or_default().push(&message.id);
        }
        for event in &self.logs.events {
            let found = stored.get(&event.payload).map_or(&[][..], Vec::as_slice);
            if found.len() > 1 {
                self.violation("I26, one event became several messages", format!("{event:?}: {found:?}"));
            }
            match (&event.message, found.first()) {
                (Some(_), None) => {
                    self.summary.lost += 1;
                    self.violation("I1, an accepted message is lost", format!("{event:?}"));
                }
                (Some(told), Some(id)) if told != id => {
                    self.violation("I1, the event is stored under another id", format!("{event:?}: {id}"));
                }
                (Some(_), Some(_)) | (None, _) => {}
            }
        }
    }

    /// I5 and I6.
    fn nothing_is_invented(&mut self) {
        for message in &self.logs.messages {
            if self.events.get(&message.payload).is_none_or(|event| event.app != message.app) {
                self.violation("I5, a message that nobody offered", format!("{message:?}"));
            }
        }
        for arrival in &self.logs.arrivals {
            match (self.messages.get(arrival.message.as_str()), self.endpoints.get(arrival.path.as_str())) {
                (Some(message), Some(endpoint)) if message.app == endpoint.app => {
                    if message.payload != arrival.body {
                        self.violation("I6, other bytes arrived", format!("{arrival:?} of {message:?}"));
                    }
                }
                _ => self.violation("I5, an arrival that nobody asked for", format!("{arrival:?}")),
            }
        }
    }

    /// I2, I3, I8 and I29.
    fn every_delivery_is_made_and_told(&mut self) {
        let mut told: HashMap<DeliveryOf<'a>, Vec<u8>> = HashMap::new();
        for (path, message, status) in &self.logs.deliveries {
            told.entry((path, message)).or_default().push(*status);
        }
        for message in &self.logs.messages {
            for endpoint in self.logs.endpoints.iter().filter(|endpoint| endpoint.app == message.app) {
                let delivery = (endpoint.path.as_str(), message.id.as_str());
                let statuses = told.remove(&delivery).unwrap_or_default();
                if statuses != [DELIVERED] {
                    self.violation("I29, a delivery that did not end well", format!("{delivery:?}: {statuses:?}"));
                }
                let arrivals = self.arrivals.get(&delivery).map_or(&[][..], Vec::as_slice);
                if !arrivals.iter().any(|arrival| arrival.is_taken) {
                    self.summary.lost += 1;
                    self.violation("I3, never taken by the receiver", format!("{delivery:?}"));
                }
            }
        }
        for delivery in told.into_keys() {
            self.violation("I2, a delivery that nobody wants", format!("{delivery:?}"));
        }
    }

    /// I9 and I14: each attempt is written down once, and what a fault undid is not counted.
    fn attempts_are_those_that_were_needed(&mut self) {
        let mut recorded: BTreeMap<DeliveryOf<'a>, Vec<(u32, u16)>> = BTreeMap::new();
        for (path, message, number, status) in &self.logs.attempts {
            recorded.entry((path, message)).or_default().push((*number, *status));
        }
        for (path, message, _) in &self.logs.deliveries {
            let delivery = (path.as_str(), message.as_str());
            let mut found = recorded.remove(&delivery).unwrap_or_default();
            found.sort_unstable();
            let last = found.len() as u32;
            let is_moody = self.endpoints.get(delivery.0).is_some_and(|endpoint| endpoint.is_moody);
            let expected: Vec<_> = (1..=last).map(|number| (number, if number == last { 204 } else { 503 })).collect();
            if found.is_empty() || found != expected || (last > 1 && !is_moody) {
                self.violation("I9, the attempts are not those that were needed", format!("{delivery:?}: {found:?}"));
            }
        }
        for delivery in recorded.into_keys() {
            self.violation("I9, attempts without a delivery", format!("{delivery:?}"));
        }
    }

    /// I9: what came twice was under way at a fault that can have lost its outcome, and that is no more than a lane can
    /// have under way.
    fn repeats_are_what_was_under_way(&mut self) {
        let mut by_fault: BTreeMap<(usize, &str), usize> = BTreeMap::new();
        let mut violations = Vec::new();
        for ((path, message), arrivals) in &self.arrivals {
            for (index, arrival) in arrivals.iter().enumerate() {
                self.summary.unexcused += usize::from(!self.logs.faults.iter().any(|fault| fault.may_undo(arrival)));
                let Some(earlier) = arrivals[..index].last() else { continue };
                let is_retry = !earlier.is_taken && arrival.attempt == earlier.attempt + 1;
                if is_retry {
                    continue;
                }
                let explains = |fault: &Fault| fault.may_undo(earlier) && arrival.opened >= fault.happens();
                let faults = self.logs.faults.iter().enumerate().filter(|(_, fault)| explains(fault));
                // The one at which its connection ended, where there are several.
                let ended = earlier.hung_up.unwrap_or(earlier.opened);
                let apart = |fault: &Fault| ended.max(fault.happens()) - ended.min(fault.happens());
                match faults.min_by_key(|(_, fault)| apart(fault)) {
                    Some((fault, _)) => *by_fault.entry((fault, path)).or_default() += 1,
                    None => violations.push(format!(
                        "I9, sent twice without cause: {message} to {path}, {}; {}",
                        self.moment(earlier.opened),
                        self.moment(arrival.opened)
                    )),
                }
            }
        }
        for ((fault, path), repeats) in by_fault {
            self.summary.repeats += repeats;
            self.summary.repeats_max = self.summary.repeats_max.max(repeats);
            if repeats > UNSETTLED_MAX {
                violations.push(format!("I9, {repeats} repeats at {path} after {:?}", self.logs.faults[fault].kind));
            }
        }
        self.violations.extend(violations);
    }

    /// I17: what is written down is written down for whoever takes over.
    fn what_is_told_to_be_made_is_not_made_again(&mut self) {
        for ((path, message), told) in &self.logs.sightings {
            let arrivals = self.arrivals.get(&(path.as_str(), message.as_str())).map_or(&[][..], Vec::as_slice);
            let late = arrivals.iter().find(|arrival| arrival.opened > *told && !self.is_waking(arrival.opened));
            if let Some(late) = late {
                let what =
                    format!("{message} to {path}, {:?} later, {}", late.opened - *told, self.moment(late.opened));
                self.violation("I17, sent again after the API had said that it was delivered", what);
            }
        }
    }

    /// A node that was paused may do then what it had decided on before.
    fn is_waking(&self, at: Instant) -> bool {
        self.logs.faults.iter().any(|fault| match fault.kind {
            Kind::Paused { woken, .. } => woken <= at && at <= woken + AFTER_WAKING,
            Kind::Killed { .. } | Kind::CutOff { .. } | Kind::Stopped { .. } | Kind::DatabaseAway => false,
        })
    }

    /// I20: as the receiver counts open requests, over all nodes.
    fn caps_hold(&mut self) {
        for endpoint in &self.logs.endpoints {
            let Some(cap) = endpoint.in_flight_max else { continue };
            let arrivals: Vec<_> = self.logs.arrivals.iter().filter(|it| it.path == endpoint.path).collect();
            let mut changes: Vec<(Instant, i64)> = arrivals.iter().map(|arrival| (arrival.opened, 1)).collect();
            changes.extend(arrivals.iter().filter_map(|arrival| Some((arrival.closed?, -1))));
            // What ends and begins in the same instant is not open together.
            changes.sort_unstable();
            let mut open = 0;
            for (at, change) in changes {
                open += change;
                let seen = usize::try_from(open).unwrap_or(0);
                self.summary.in_flight_max = self.summary.in_flight_max.max(seen);
                let allowed = if self.is_waking(at) { 2 * cap } else { cap };
                if seen > allowed {
                    let what = format!("{seen} at {}, {}", endpoint.path, self.moment(at));
                    self.violation("I20, more requests open than allowed", what);
                }
            }
        }
    }

    /// I21, in every window from one arrival to another. No change of owner brings more: buckets start empty.
    fn rates_hold(&mut self) {
        for endpoint in &self.logs.endpoints {
            let Some(rate) = endpoint.rate else { continue };
            let rate = f64::from(rate);
            let allowed = rate + rate * READ_WITHIN.as_secs_f64();
            // The most that any window which ends here has above the rate.
            let mut above: f64 = 0.0;
            let mut before: Option<Instant> = None;
            for arrival in self.logs.arrivals.iter().filter(|arrival| arrival.path == endpoint.path) {
                let passed = before.map_or(Duration::ZERO, |before| arrival.opened.duration_since(before));
                above = (above - rate * passed.as_secs_f64()).max(0.0) + 1.0;
                before = Some(arrival.opened);
                self.summary.above_rate_max = self.summary.above_rate_max.max(above as usize);
                if above > allowed {
                    let what = format!("{above} at {}, {}", endpoint.path, self.moment(arrival.opened));
                    self.violation("I21, more requests than the rate and a burst", what);
                    above = 0.0;
                }
            }
        }
    }

    /// I18: of every series, first arrivals in order, each after the one before it was taken, counted without gaps.
    fn order_holds(&mut self) {
        let mut series: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for event in &self.logs.events {
            let (Some(name), Some(message)) = (&event.series, &event.message) else { continue };
            for endpoint in self.logs.endpoints.iter().filter(|it| it.app == event.app && it.is_ordered) {
                series.entry((&endpoint.path, name)).or_default().push(message);
            }
        }
        for ((path, name), messages) in series {
            let mut taken_at: Option<Instant> = None;
            for (index, message) in messages.iter().enumerate() {
                let Some(arrivals) = self.arrivals.get(&(path, message)).cloned() else { continue };
                let is_early = |taken: Instant| arrivals[0].opened < taken;
                if index > 0 && taken_at.is_none_or(is_early) {
                    let what = format!(
                        "{message}, number {} of {name} at {path}, {}; the one before it was taken {}",
                        index + 1,
                        self.moment(arrivals[0].opened),
                        taken_at.map_or("never".to_owned(), |at| self.moment(at))
                    );
                    self.violation("I18, before its turn", what);
                }
                if let Some(wrong) = arrivals.iter().find(|arrival| arrival.sequence != Some(index as u64 + 1)) {
                    let what = format!("{message} of {name} at {path} is number {}: {wrong:?}", index + 1);
                    self.violation("I18, counted wrongly", what);
                }
                taken_at = arrivals.iter().filter(|arrival| arrival.is_taken).filter_map(|it| it.closed).min();
            }
        }
    }

    /// F7 and F26: whoever is not in trouble takes what it is offered.
    fn only_nodes_in_trouble_refuse(&mut self) {
        for refusal in &self.logs.refusals {
            let explains = |fault: &Fault| {
                fault.kind.explains_refusal_by(refusal.node) && fault.from <= refusal.ended && refusal.began <= fault.to
            };
            if !self.logs.faults.iter().any(explains) {
                let what = format!("node {}, {}: {}", refusal.node, self.moment(refusal.ended), refusal.what);
                self.violation("F7, refused without cause", what);
            }
        }
    }

    /// Where in the course of the faults it was.
    fn moment(&self, at: Instant) -> String {
        match self.logs.faults.iter().rev().find(|fault| fault.from <= at) {
            Some(fault) => format!("{:?} after {:?}", at - fault.from, fault.kind),
            None => "before the first fault".to_owned(),
        }
    }
}

const DELIVERED: u8 = 0;

/// A judge that finds nothing has to show that he could have.
mod tests {
    use super::*;

    type Breach = fn(&mut Logs);

    fn endpoint(app: &'static str, path: &str) -> Endpoint {
        let path = path.to_owned();
        Endpoint { app, path, in_flight_max: None, rate: None, is_ordered: false, is_moody: false }
    }

    /// Two messages of a series at an endpoint that takes one request at a time and refused the second one once. A kill
    /// made the first one come again.
    fn clean() -> Logs {
        let start = Instant::now() + Duration::from_secs(100);
        let at = |millis| start + Duration::from_millis(millis);
        let payload = |number: u64| Bytes::from(format!("{{\"event\": {number}}}"));
        let event = |number: u64| Event {
            app: "shop",
            series: Some("k".into()),
            payload: payload(number),
            message: Some(format!("msg_{number}")),
        };
        let arrival = |number: u64, attempt, is_taken, millis, hung_up: Option<u64>| Arrival {
            path: "/keyed".into(),
            message: format!("msg_{number}"),
            attempt,
            sequence: Some(number),
            body: payload(number),
            is_taken,
            opened: at(millis),
            closed: Some(at(millis + 5)),
            hung_up: hung_up.map(at),
        };
        let message = |number| Message { id: format!("msg_{number}"), app: "shop", payload: payload(number) };
        let of = |number: u64| ("/keyed".to_owned(), format!("msg_{number}"));
        let attempt = |number, tried, status| (of(number).0, of(number).1, tried, status);
        Logs {
            endpoints: vec![Endpoint {
                in_flight_max: Some(1),
                rate: Some(1),
                is_ordered: true,
                is_moody: true,
                ..endpoint("shop", "/keyed")
            }],
            events: vec![event(1), event(2)],
            refusals: vec![Refusal { node: 0, began: at(5), ended: at(20), what: "refused".into() }],
            arrivals: vec![
                arrival(1, 1, true, 0, Some(11)),
                arrival(1, 1, true, 6_000, None),
                arrival(2, 1, false, 8_000, None),
                arrival(2, 2, true, 10_000, None),
            ],
            messages: vec![message(1), message(2)],
            deliveries: [1, 2].map(|number| (of(number).0, of(number).1, DELIVERED)).to_vec(),
            attempts: vec![attempt(1, 1, 204), attempt(2, 1, 503), attempt(2, 2, 204)],
            sightings: BTreeMap::from([(of(1), at(6_100))]),
            faults: vec![Fault {
                kind: Kind::Killed { node: 0, alive: at(10), dead: at(12) },
                from: at(10),
                to: at(7_000),
            }],
        }
    }

    #[test]
    fn what_went_well_is_not_held_against_the_nodes() {
        let summary = judge(&clean()).expect("no violations");
        let expected = Summary {
            messages: 2,
            lost: 0,
            deliveries: 2,
            refusals: 1,
            sightings: 1,
            repeats: 1,
            repeats_max: 1,
            unexcused: 3,
            in_flight_max: 1,
            above_rate_max: 1,
        };
        assert_eq!(summary, expected);
    }

    #[test]
    fn every_breach_is_seen() {
        let breaches: [(&str, Breach); 27] = [
            ("I1, an accepted", |logs| drop(logs.messages.remove(0))),
            ("I1, the event", |logs| logs.events[0].message = Some("msg_9".into())),
            ("I26", |logs| logs.messages.push(Message { id: "msg_3".into(), ..logs.messages[0].clone() })),
            ("I5, a message", |logs| drop(logs.events.remove(0))),
            ("I5, an arrival", |logs| logs.arrivals[0].message = "msg_9".into()),
            ("I5, an arrival", |logs| logs.endpoints[0].app = "other"),
            ("I6", |logs| logs.arrivals[0].body = "{}".into()),
            ("I29", |logs| logs.deliveries[0].2 = 1),
            ("I29", |logs| drop(logs.deliveries.pop())),
            ("I29", |logs| logs.deliveries.push(logs.deliveries[0].clone())),
            ("I3", |logs| logs.arrivals[3].is_taken = false),
            ("I2", |logs| logs.deliveries.push(("/other".into(), "msg_1".into(), DELIVERED))),
            ("I9, the attempts", |logs| logs.attempts.push(logs.attempts[0].clone())),
            ("I9, the attempts", |logs| logs.endpoints[0].is_moody = false),
            ("I9, the attempts", |logs| drop(logs.attempts.remove(0))),
            ("I9, attempts without", |logs| drop(logs.deliveries.remove(0))),
            ("I9, sent twice", |logs| logs.faults[0].kind = Kind::Stopped { node: 0 }),
            ("I9, sent twice", |logs| logs.arrivals[3].attempt = 1),
            ("I9, sent twice", |logs| logs.arrivals[0].opened -= Duration::from_secs(6)),
            ("I9, sent twice", |logs| logs.arrivals[0].hung_up = None),
            ("I9, sent twice", |logs| logs.arrivals[1].opened = logs.arrivals[0].opened),
            ("I17", |logs| {
                logs.sightings.insert(("/keyed".into(), "msg_1".into()), logs.faults[0].from);
            }),
            ("I20", |logs| logs.arrivals[2].closed = None),
            ("I21", |logs| {
                for arrival in &mut logs.arrivals[1..] {
                    arrival.opened = logs.faults[0].to;
                }
            }),
            ("I18, before", |logs| logs.events.swap(0, 1)),
            ("I18, counted", |logs| logs.arrivals[1].sequence = Some(2)),
            ("F7", |logs| logs.refusals[0].node = 1),
        ];
        for (rule, breach) in breaches {
            let mut logs = clean();
            breach(&mut logs);
            let found = judge(&logs).expect_err(rule);
            assert!(found.iter().any(|violation| violation.starts_with(rule)), "{rule}: {found:#?}");
        }
    }

    /// A node is killed every second, and something arrives every 50 ms, at each node in turn.
    #[test]
    fn arrivals_that_are_doubled_are_seen_however_often_nodes_are_killed() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let kill = |second: u64| Fault {
            kind: Kind::Killed { node: second as usize % 3, alive: at(second * 1_000), dead: at(second * 1_000 + 5) },
            from: at(second * 1_000),
            to: at(second * 1_000 + 500),
        };
        let arrival = |number: u64, later: u64, node: u64| {
            let millis = number * 50 + 20 + later;
            let killed = (millis / 1_000 + 1..).find(|second| second % 3 == node).expect("its turn comes");
            let came =
                Arrival { message: format!("msg_{number}"), attempt: 1, is_taken: true, ..clean().arrivals[0].clone() };
            Arrival { opened: at(millis), closed: Some(at(millis + 5)), hung_up: Some(at(killed * 1_000 + 2)), ..came }
        };
        let sent_twice = |later: Option<u64>| {
            let mut logs = Logs { faults: (1..=60).map(kill).collect(), ..Logs::default() };
            for number in 0..1_200 {
                logs.arrivals.push(arrival(number, 0, number % 3));
                // By whoever has it when it comes again.
                logs.arrivals.extend(later.map(|later| arrival(number, later, (number + 1) % 3)));
            }
            let found = judge(&logs).err().unwrap_or_default();
            found.iter().filter(|violation| violation.starts_with("I9, sent twice")).count()
        };
        assert_eq!(sent_twice(None), 0);
        for (later, least) in [(0, 1_200), (10, 1_200), (400, 900), (1_000, 700)] {
            let found = sent_twice(Some(later));
            assert!(found >= least, "{later} ms apart: {found} of 1200");
        }
    }

    #[test]
    fn a_fault_explains_only_so_many_repeats() {
        let mut logs = clean();
        let (first, again) = (logs.arrivals[0].clone(), logs.arrivals[1].clone());
        for number in 1..=UNSETTLED_MAX {
            for arrival in [&first, &again] {
                logs.arrivals.push(Arrival { message: format!("more_{number}"), ..arrival.clone() });
            }
        }
        let found = judge(&logs).expect_err("messages that nobody knows");
        assert!(found.iter().any(|violation| violation.starts_with("I9, 65 repeats at /keyed")), "{found:#?}");
    }
}
