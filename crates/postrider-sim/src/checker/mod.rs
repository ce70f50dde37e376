//! Judges what happened, without asking the code that made it happen.
//!
//! It hears five voices in one order of time: P, the producers; V, the receivers; A, every commit of the database; E, when
//! requests were begun and who was said to own what; F, the faults. Each invariant of the list in ARCHITECTURE.md is a check
//! of its own. Where something is excused that the judge cannot know, it is explained beside the check; what that leaves
//! unseen is in `docs/proof.md`.

mod attempts;
mod breaker;
mod ending;
mod envelope;
mod fairness;
mod ingest;
mod ledger;
mod limits;
mod order;
mod ownership;
mod rest;
mod wire;

pub use ending::Found;
pub use ingest::No;
pub use ledger::{Delivery, Endpoint, MessageRecord, State, number_in};
pub use ownership::Lease;
pub use wire::{Answer, Answered, Asked, Begun, PostId, receiver_time};

use crate::{
    config::{Config, Sharing},
    faults::FaultKind,
    quick::QuickMap,
    settings::Settings,
    sometimes::{Sometimes, Tally},
    trace::{Kind, NOBODY, Trace},
};
use limits::Bucket;
use postrider_engine::AppKey;
use postrider_store::Shard;
use std::{collections::HashMap, fmt, sync::Arc};

/// Something happened that must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// As in the list in ARCHITECTURE.md.
    pub invariant: &'static str,
    pub at: i64,
    /// Keys; 0 where it is about none.
    pub message: i64,
    pub endpoint: i64,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, at, message, endpoint, text } = self;
        write!(f, "{invariant} at {at} ms: {text} (message {message}, endpoint {endpoint})")
    }
}

/// One life of a process.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub node: usize,
    pub ended: Option<i64>,
    /// It was told to stop, and did.
    pub gracefully: bool,
    /// When its writes were last refused, or its lanes lost: what it sent before that may be sent again by others.
    pub deposed: Option<i64>,
}

pub struct Judge {
    pub trace: Trace,
    pub met: Tally,
    pub violations: Vec<Violation>,
    pub counts: Counts,
    config: Arc<Config>,
    now: i64,
    /// Offsets of the nodes' clocks from true time, and when each was last set.
    clocks: Vec<Offset>,
    lives: Vec<Life>,
    /// The latest life of each node.
    current: Vec<Option<u32>>,
    messages: Vec<MessageRecord>,
    by_key: QuickMap<i64, u32>,
    /// By the number that the producer gave it.
    by_number: QuickMap<u64, u32>,
    deliveries: Vec<Delivery>,
    endpoints: Vec<Endpoint>,
    endpoint_by_key: QuickMap<i64, u32>,
    apps: Vec<ledger::App>,
    /// By which plan of the configuration each receiver's endpoint was made.
    plans: Vec<usize>,
    /// All settings that were ever written, by what was written.
    settings: HashMap<String, Arc<Settings>>,
    app_by_key: QuickMap<i64, u32>,
    posts: Vec<wire::Post>,
    owners: ownership::Owners,
    ingest: ingest::Requests,
    lines: order::Lines,
    /// There are faults on our side.
    troubled: bool,
    /// Reads may take longer than they should until then.
    slow_until: i64,
    /// When a process was last started.
    /// When each node was last started.
    started: Vec<Option<i64>>,
    /// How long a node may not know what another one has committed, or a person through it.
    news_slack: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Offset {
    now: i64,
    set_at: Option<i64>,
    /// Offset before it was last set.
    before: i64,
    /// The latest that it has said. What was due by then stays due, though it was set back.
    latest: i64,
}

#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub accepted: u64,
    pub deliveries: u64,
    pub attempts: u64,
    pub delivered: u64,
    pub dead: u64,
    pub repeated: u64,
    /// Put on their way again.
    pub queued: u64,
    pub open: u64,
    pub faults: [u64; FaultKind::COUNT],
    pub pairs: u64,
    pub simulated: i64,
}

impl Judge {
    pub fn new(config: Arc<Config>, keep_trace: bool) -> Self {
        let has = |kind: FaultKind| config.faults.iter().any(|(on, _)| *on == kind);
        // What an application says is read in several steps, and is as old as the first of them when it is gone by.
        let read = match (has(FaultKind::SlowReads), has(FaultKind::DatabaseStall)) {
            (false, false) => config.read.1,
            (true, _) | (_, true) => 3_000,
        };
        let frozen = if has(FaultKind::PauseShort) { 10_000 } else { 0 };
        let news_slack = READS_OF_AN_APP * read
            + frozen
            + match config.sharing {
                // Announced within the process, in the order of commits.
                Sharing::Alone => 2,
                // The news may be lost, and then the next beat brings it; or the node is cut off, and then its lease ends.
                Sharing::Many { lease, beat } => lease + 3 * beat + 2_000,
            };
        Self {
            trace: Trace::new(keep_trace),
            met: Tally::default(),
            violations: Vec::new(),
            counts: Counts::default(),
            now: 0,
            clocks: vec![Offset::default(); config.nodes],
            lives: Vec::new(),
            current: vec![None; config.nodes],
            messages: Vec::new(),
            by_key: QuickMap::default(),
            by_number: QuickMap::default(),
            deliveries: Vec::new(),
            endpoints: Vec::new(),
            endpoint_by_key: QuickMap::default(),
            apps: Vec::new(),
            plans: (0..config.endpoints.len()).collect(),
            settings: HashMap::new(),
            app_by_key: QuickMap::default(),
            posts: Vec::new(),
            owners: ownership::Owners::new(config.sharing, config.nodes),
            ingest: ingest::Requests::default(),
            lines: order::Lines::default(),
            troubled: config.faults.iter().any(|(kind, _)| kind.is_ours()),
            slow_until: i64::MIN,
            started: vec![None; config.nodes],
            news_slack,
            config,
        }
    }

    /// Everything that follows happens now.
    pub fn at(&mut self, now: i64) -> &mut Self {
        self.now = now;
        self
    }

    pub fn is_content(&self) -> bool {
        self.violations.is_empty()
    }

    fn note(&mut self, node: i8, kind: Kind, args: [i64; 4]) {
        self.trace.line(self.now, node, kind, args);
    }

    fn object(&mut self, invariant: &'static str, message: i64, endpoint: i64, text: impl FnOnce() -> String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { invariant, at: self.now, message, endpoint, text: text() });
        }
    }

    /// The same, about a delivery.
    fn object_to(&mut self, invariant: &'static str, delivery: usize, text: impl FnOnce() -> String) {
        let Delivery { message, endpoint, .. } = self.deliveries[delivery];
        let (message, endpoint) = (self.messages[message as usize].key, self.endpoints[endpoint as usize].key);
        self.object(invariant, message, endpoint, text);
    }

    // F: what was broken, and the lives of processes.

    pub fn fault(&mut self, kind: FaultKind, node: Option<usize>, length: i64) {
        self.counts.faults[kind as usize] += 1;
        let slows = matches!(
            kind,
            FaultKind::PauseShort
                | FaultKind::PauseLong
                | FaultKind::DatabaseStall
                | FaultKind::CutOne
                | FaultKind::CutAll
                | FaultKind::Deaf
                | FaultKind::AnswersLost
                | FaultKind::WritesRefused
                | FaultKind::DiskFull
                | FaultKind::SlowDisk
                | FaultKind::SlowReads
        );
        if slows {
            self.slow_until = self.slow_until.max(self.now + length.max(0) + SLOW_AFTER);
        }
        self.note(node.map_or(NOBODY, |node| node as i8), Kind::Fault, [0, 0, kind as i64, length]);
    }

    pub fn two_at_once(&mut self) {
        self.counts.pairs += 1;
    }

    pub fn healed(&mut self) {
        self.note(NOBODY, Kind::Healed, [0; 4]);
    }

    pub fn started(&mut self, node: usize) -> u32 {
        let life = self.lives.len() as u32;
        self.started[node] = Some(self.now);
        self.lives.push(Life { node, ended: None, gracefully: false, deposed: None });
        self.current[node] = Some(life);
        self.note(node as i8, Kind::Started, [0, 0, life.into(), 0]);
        life
    }

    pub fn died(&mut self, node: usize) {
        self.end_life(node, false);
    }

    pub fn stopped(&mut self, node: usize) {
        self.end_life(node, true);
    }

    fn end_life(&mut self, node: usize, gracefully: bool) {
        let Some(life) = self.current[node].take() else { return };
        let kind = if gracefully { Kind::Stopped } else { Kind::Died };
        self.note(node as i8, kind, [0, 0, life.into(), 0]);
        if !gracefully {
            self.note_death(node);
        }
        let now = self.now;
        let record = &mut self.lives[life as usize];
        record.ended = Some(now);
        record.gracefully = gracefully;
        if !gracefully {
            self.abandon(life);
        }
    }

    /// What a death came in the middle of.
    fn note_death(&mut self, node: usize) {
        let life = self.current_life(node);
        let probes = |endpoint: &Endpoint| {
            endpoint.probe.is_some_and(|probe| self.posts[probe].life == life && self.posts[probe].ended.is_none())
        };
        if self.endpoints.iter().any(probes) {
            self.met.met(Sometimes::ProbeWhileNodeDies);
        }
        if self.endpoints.iter().any(|endpoint| !endpoint.live.is_empty()) {
            self.met.met(Sometimes::RequestsWhileNodeDies);
        }
    }

    fn current_life(&self, node: usize) -> u32 {
        self.current[node].unwrap_or_else(|| {
            // It has just ended.
            self.lives.iter().rposition(|life| life.node == node).unwrap_or(0) as u32
        })
    }

    pub fn clock_set(&mut self, node: usize, offset: i64) {
        let clock = &mut self.clocks[node];
        let by = offset - clock.now;
        let latest = clock.latest.max(EPOCH + self.now + clock.now);
        *clock = Offset { now: offset, set_at: Some(self.now), before: clock.now, latest };
        self.note(node as i8, Kind::ClockSet, [0, 0, by, 0]);
        for endpoint in &mut self.endpoints {
            endpoint.bucket.forget();
        }
        for app in &mut self.apps {
            app.bucket.forget();
        }
    }

    /// What a node's clock says at a true time since the last time it was set.
    fn engine_time(&self, node: usize) -> i64 {
        EPOCH + self.now + self.clocks[node].now
    }

    /// A clock that was set just now may have said something else when a request was begun.
    fn was_just_set(&self, node: usize) -> bool {
        self.clocks[node].set_at.is_some_and(|at| self.now - at <= JUST_NOW)
    }

    // A: settings.

    pub fn application(&mut self, key: i64, rate: Option<u32>) {
        let now = self.now;
        match self.app_by_key.get(&key) {
            Some(app) => {
                let app = &mut self.apps[*app as usize];
                if app.rates.last().is_some_and(|(_, last)| *last != rate) {
                    app.rates.push((now, rate));
                    app.changed = now;
                }
            }
            None => {
                self.app_by_key.insert(key, self.apps.len() as u32);
                let shard = Shard::of(AppKey::new(key)).number();
                self.apps.push(ledger::App {
                    shard,
                    rates: vec![(now, rate)],
                    changed: now,
                    bucket: Bucket::default(),
                });
            }
        }
    }

    /// An endpoint was written down.
    pub fn endpoint(&mut self, endpoint: &postrider_store::Endpoint) {
        let (app, key, version) = (endpoint.app.raw(), endpoint.key.raw(), endpoint.version);
        let known = self.endpoint_by_key.get(&key).copied();
        // All endpoints of an application are told of when one changes.
        if known.is_some_and(|place| self.endpoints[place as usize].version == version) {
            return;
        }
        let (number, parked) = (crate::receivers::receiver_of(&endpoint.url), endpoint.disabled.is_some());
        let text = written(endpoint.rules.as_deref().unwrap_or_default(), endpoint.rate_limit);
        let Some(settings) = self.settings.get(&text).cloned() else {
            self.object("I5", 0, key, || "settings were stored that nobody wrote".to_owned());
            return;
        };
        self.note(NOBODY, Kind::EndpointPut, [0, key, version, i64::from(parked)]);
        let now = self.now;
        let app = self.app_by_key.get(&app).copied().unwrap_or(0);
        let place = known.unwrap_or_else(|| {
            let place = self.endpoints.len() as u32;
            self.endpoint_by_key.insert(key, place);
            self.endpoints.push(Endpoint::new(key, app, number));
            place
        });
        let endpoint = &mut self.endpoints[place as usize];
        endpoint.version = version;
        if endpoint.versions.last().is_none_or(|(_, last)| **last != *settings) {
            endpoint.versions.push((now, settings));
        }
        endpoint.set_parked(parked, now);
        endpoint.changed = now;
        self.apps[app as usize].changed = now;
    }

    /// Settings that are about to be written, so that they are recognised when they are.
    pub fn know_settings(&mut self, settings: &Arc<Settings>) {
        self.settings.insert(written(&settings.json(), settings.rate), Arc::clone(settings));
    }

    pub fn know_receiver(&mut self, receiver: usize, plan: usize) {
        if self.plans.len() <= receiver {
            self.plans.resize(receiver + 1, plan);
        }
        self.plans[receiver] = plan;
    }

    pub fn plan_of(&self, receiver: usize) -> usize {
        self.plans[receiver]
    }

    pub fn settings_of(&self, key: i64) -> Option<Arc<Settings>> {
        let place = *self.endpoint_by_key.get(&key)?;
        self.endpoints[place as usize].versions.last().map(|(_, settings)| Arc::clone(settings))
    }

    pub fn receiver_of(&self, key: i64) -> Option<usize> {
        self.endpoint_by_key.get(&key).map(|place| self.endpoints[*place as usize].number)
    }

    pub fn app_of(&self, key: i64) -> Option<usize> {
        self.endpoint_by_key.get(&key).map(|place| self.endpoints[*place as usize].app as usize)
    }

    /// An endpoint that is there, and the number of its application.
    pub fn some_endpoint(&self, at: u64) -> Option<(i64, usize)> {
        let there: Vec<&Endpoint> = self.endpoints.iter().filter(|endpoint| endpoint.gone.is_none()).collect();
        let endpoint = there.get(at as usize % there.len().max(1))?;
        Some((endpoint.key, endpoint.app as usize))
    }

    pub fn endpoint_gone(&mut self, key: i64) {
        let now = self.now;
        let there = |place: &u32| self.endpoints[*place as usize].gone.is_none();
        if let Some(place) = self.endpoint_by_key.get(&key).copied().filter(there) {
            self.note(NOBODY, Kind::EndpointGone, [0, key, 0, 0]);
            let endpoint = &mut self.endpoints[place as usize];
            endpoint.gone = Some(now);
            endpoint.changed = now;
            self.apps[endpoint.app as usize].changed = now;
        }
    }

    pub fn health_reset(&mut self, key: i64) {
        self.note(NOBODY, Kind::HealthReset, [0, key, 0, 0]);
        let now = self.now;
        if let Some(place) = self.endpoint_by_key.get(&key).copied() {
            let endpoint = &mut self.endpoints[place as usize];
            if endpoint.breaker.is_open() {
                self.met.met(Sometimes::PersonClosesBreaker);
            }
            endpoint.reset_at = Some(now);
            endpoint.set_back.push(std::mem::take(&mut endpoint.breaker));
        }
    }

    /// A person calls back all that waits for an endpoint and has a smaller key.
    pub fn calls_back(&mut self, endpoint: i64, below: i64) {
        if let Some(place) = self.endpoint_by_key.get(&endpoint) {
            let endpoint = &mut self.endpoints[*place as usize];
            endpoint.called_back = below.max(endpoint.called_back);
            endpoint.called_back_at = self.now;
        }
    }

    pub fn person(&mut self, what: i64, message: i64, endpoint: i64, outcome: i64) {
        self.note(NOBODY, Kind::Person, [message, endpoint, what, outcome]);
    }

    pub fn weather(&mut self, node: usize, what: i64) {
        self.note(node as i8, Kind::Weather, [0, 0, what, 0]);
    }
}

fn written(rules: &str, rate: Option<u32>) -> String {
    format!("{rate:?} {rules}")
}

/// True time 0, on a clock that is right.
pub const EPOCH: i64 = 1_800_000_000_000;

/// Steps in which the settings of an application are read, at most.
const READS_OF_AN_APP: i64 = 8;

/// What was begun while the store was slow is done by then.
const SLOW_AFTER: i64 = 10_000;

/// More of them say nothing more.
const VIOLATIONS_MAX: usize = 8;

/// Tasks of one millisecond may have read the clock before it was set in the same one.
const JUST_NOW: i64 = 1;
