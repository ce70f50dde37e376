//! What the commits of the database come to: every message, and how each of its deliveries stands.

use super::{Judge, breaker::Recorded, limits::Bucket, wire::PostId};
use crate::{
    config::EVENT_TYPES,
    settings::Settings,
    sometimes::Sometimes,
    trace::{Kind, NOBODY},
};
use postrider_engine::{keys::time_of_key, policy::DeathReason};
use postrider_store::NewMessage;
use std::{collections::BTreeSet, sync::Arc};

pub struct MessageRecord {
    pub key: i64,
    pub number: u64,
    pub app: u32,
    /// Who accepted it.
    pub node: usize,
    pub order: Option<i64>,
    /// When it was committed, in true time.
    pub at: i64,
    /// Its deliveries lie together.
    pub first: u32,
    pub owed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    Delivered,
    Dead(DeathReason),
}

/// One message owed to one endpoint. Times are the engine's, but for `changed`.
pub struct Delivery {
    pub message: u32,
    pub endpoint: u32,
    pub state: State,
    pub cycle: u32,
    /// Recorded in this cycle.
    pub attempts: u32,
    /// Not to be begun before.
    pub due: i64,
    pub give_up: Option<i64>,
    pub last_wait: Option<i64>,
    pub ambiguous: u32,
    pub ambiguous_since: Option<i64>,
    pub queued_at: i64,
    /// It arrived, in some cycle.
    pub arrived: bool,
    /// A resend was asked for and is not settled.
    pub resend: bool,
    /// When it was last put on its way, or ended.
    pub changed: i64,
    /// It was ended by a person or by a resend, of which its lane hears afterwards.
    pub recalled: bool,
    /// The last recorded attempt's, for what it is given up for.
    pub evidence: Option<u16>,
    /// Requests that were begun and neither recorded nor explained yet.
    pub unrecorded: u32,
    /// Since when nothing of its key has been before it.
    pub first_at: i64,
    /// When it was last put on its way again, in true time.
    pub requeued: Option<i64>,
    /// The last request of its own schedule.
    pub last_post: Option<PostId>,
}

pub struct App {
    pub shard: u8,
    pub rates: Vec<(i64, Option<u32>)>,
    /// When anything about it last changed.
    pub changed: i64,
    pub bucket: Bucket,
}

pub struct Endpoint {
    pub key: i64,
    pub app: u32,
    /// The receiver's.
    pub number: usize,
    pub version: i64,
    pub versions: Vec<(i64, Arc<Settings>)>,
    /// Since when it has been paused.
    pub parked: Option<i64>,
    /// When it was last not paused any more.
    pub freed: Option<i64>,
    pub gone: Option<i64>,
    pub changed: i64,
    /// When a person last set its health back.
    pub reset_at: Option<i64>,
    /// What was on record each time, until an outcome is that was reckoned after the last.
    pub set_back: Vec<Recorded>,
    pub breaker: Recorded,
    pub probe: Option<PostId>,
    /// Something was sent since the breaker was last on record that could not be judged.
    pub unjudged: bool,
    /// Requests that have been answered and are not on record yet.
    pub answered: Vec<PostId>,
    /// All messages with a smaller key were called back by a person, in one go.
    pub called_back: i64,
    /// When that was last asked for.
    pub called_back_at: i64,
    pub bucket: Bucket,
    /// Requests under way.
    pub live: Vec<PostId>,
    pub open: u64,
    pub loads: super::rest::Loads,
    pub ease: super::fairness::Ease,
}

impl Endpoint {
    pub fn new(key: i64, app: u32, number: usize) -> Self {
        Self {
            key,
            app,
            number,
            version: 0,
            versions: Vec::new(),
            parked: None,
            freed: None,
            gone: None,
            changed: 0,
            reset_at: None,
            set_back: Vec::new(),
            breaker: Recorded::default(),
            probe: None,
            unjudged: false,
            answered: Vec::new(),
            called_back: i64::MIN,
            called_back_at: i64::MIN,
            bucket: Bucket::default(),
            live: Vec::new(),
            open: 0,
            loads: Default::default(),
            ease: Default::default(),
        }
    }

    pub fn set_parked(&mut self, parked: bool, now: i64) {
        match (self.parked, parked) {
            (None, true) => {
                self.parked = Some(now);
                self.ease.hindered = true;
            }
            (Some(_), false) => {
                self.parked = None;
                self.freed = Some(now);
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// The settings that whoever began something at `since` may have gone by: what held then, and, because a change is heard
    /// of a little later, what held `slack` before it.
    pub fn settings_since(&self, since: i64, slack: i64) -> &[(i64, Arc<Settings>)] {
        let from = self.versions.iter().rposition(|(at, _)| *at < since - slack).unwrap_or(0);
        &self.versions[from..]
    }

    pub fn latest(&self) -> &Settings {
        &self.versions.last().expect("written down before it is owed anything").1
    }
}

impl Judge {
    /// A message was committed.
    pub fn committed(&mut self, node: usize, key: i64, new: &NewMessage, order: Option<i64>) {
        let number = number_in(&new.content.payload);
        let place = self.messages.len() as u32;
        let first = self.deliveries.len() as u32;
        self.note(node as i8, Kind::Committed, [key, order.unwrap_or(0), new.owed.len() as i64, number as i64]);
        let app = self.app_by_key.get(&new.app.raw()).copied().unwrap_or(0);
        // Whoever sends it may have a clock that is behind the one by which it was accepted; only a wish to wait binds.
        let later = new.content.deliver_at.filter(|later| *later > new.at).map(|later| later.as_millis());
        let (due, queued_at) = (later.unwrap_or(0), later.unwrap_or_else(|| time_of_key(key).as_millis()));
        if self.by_key.insert(key, place).is_some() {
            self.object("I8", key, 0, || "two messages were stored under one key".to_owned());
        }
        self.ingest_committed(key, number, new);
        self.by_number.insert(number, place);
        for owed in &new.owed {
            let Some(endpoint) = self.endpoint_by_key.get(&owed.raw()).copied() else {
                self.object("I5", key, owed.raw(), || "owed to an endpoint that never was".to_owned());
                continue;
            };
            let delivery = self.deliveries.len();
            self.deliveries.push(Delivery {
                message: place,
                endpoint,
                state: State::Open,
                cycle: 0,
                attempts: 0,
                due,
                give_up: None,
                last_wait: None,
                ambiguous: 0,
                ambiguous_since: None,
                queued_at,
                arrived: false,
                resend: false,
                changed: self.now,
                recalled: false,
                evidence: None,
                unrecorded: 0,
                first_at: self.now,
                requeued: None,
                last_post: None,
            });
            self.endpoints[endpoint as usize].open += 1;
            self.line_up(delivery, order, key);
        }
        let owed = self.deliveries.len() as u32 - first;
        self.messages.push(MessageRecord { key, number, app, node, order, at: self.now, first, owed });
        self.counts.accepted += 1;
        self.counts.deliveries += u64::from(owed);
        self.check_fan_out(place, new);
    }

    /// I2, its first half: exactly one delivery for each endpoint that matched when it was accepted. Settings that changed a
    /// moment ago may not have been heard of by the node that took it in (where the store does not count changes).
    fn check_fan_out(&mut self, place: u32, new: &NewMessage) {
        let (app, key) = (self.messages[place as usize].app, self.messages[place as usize].key);
        // Whom it is owed to is worked out before it is queued to be written.
        let queued = if self.troubled { QUEUED_MAX } else { 4 * self.config.write.1 };
        let since = self.now - self.news_slack - queued;
        let event_type = new.content.event_type.strip_prefix("type.").and_then(|text| text.parse::<usize>().ok());
        let channels: Vec<usize> =
            new.content.channels.iter().filter_map(|name| name.strip_prefix("channel.")?.parse().ok()).collect();
        // Those that must be among them, and those that may.
        let (mut surely, mut perhaps) = (BTreeSet::new(), BTreeSet::new());
        for endpoint in self.endpoints.iter().filter(|endpoint| endpoint.app == app) {
            let plan = &self.config.endpoints[self.plan_of(endpoint.number)];
            let type_fits = plan.event_types.is_empty()
                || event_type.is_some_and(|wanted| wanted < EVENT_TYPES && plan.event_types.contains(&wanted));
            let channel_fits = plan.channel.is_none_or(|wanted| channels.contains(&wanted));
            if !type_fits || !channel_fits {
                continue;
            }
            if endpoint.gone.is_none_or(|at| at >= since) {
                perhaps.insert(endpoint.key);
            }
            let created_at = endpoint.versions.first().map_or(i64::MAX, |(at, _)| *at);
            if endpoint.gone.is_none() && created_at < since {
                surely.insert(endpoint.key);
            }
        }
        let owed: BTreeSet<i64> = new.owed.iter().map(|endpoint| endpoint.raw()).collect();
        let each_once = owed.len() == new.owed.len();
        if !each_once || !surely.is_subset(&owed) || !owed.is_subset(&perhaps) {
            let owed = &new.owed;
            self.object("I2", key, 0, || format!("owed to {owed:?}; {surely:?} surely wanted it, {perhaps:?} perhaps"));
        }
    }

    pub(super) fn delivery(&self, message: i64, endpoint: i64) -> Option<usize> {
        let record = &self.messages[*self.by_key.get(&message)? as usize];
        let endpoint = *self.endpoint_by_key.get(&endpoint)?;
        let range = record.first as usize..(record.first + record.owed) as usize;
        range.clone().find(|place| self.deliveries[*place].endpoint == endpoint)
    }

    /// A row was begun by a person or a task: a resend, or a new cycle.
    pub fn queued(&mut self, message: i64, endpoint: i64, resend: bool, cycle: u32, due: i64) {
        self.note(NOBODY, Kind::Queued, [message, endpoint, cycle.into(), due]);
        self.counts.queued += 1;
        let Some(place) = self.delivery_or_adopt(message, endpoint) else { return };
        let now = self.now;
        if resend {
            self.deliveries[place].resend = true;
            self.deliveries[place].changed = now;
            return;
        }
        // I17: two replays of one delivery make one cycle.
        if self.deliveries[place].state == State::Open {
            self.object_to("I17", place, || "put on its way again while it was on its way".to_owned());
        }
        let breaker_open = self.endpoints[self.deliveries[place].endpoint as usize].breaker.is_open();
        if breaker_open {
            self.met.met(Sometimes::ReplayDuringOpenBreaker);
        }
        self.met.met(Sometimes::Replayed);
        let delivery = &mut self.deliveries[place];
        let endpoint = delivery.endpoint;
        *delivery = Delivery {
            state: State::Open,
            cycle,
            attempts: 0,
            due,
            give_up: None,
            last_wait: None,
            ambiguous: 0,
            ambiguous_since: None,
            queued_at: due,
            changed: now,
            recalled: false,
            evidence: None,
            ..*delivery
        };
        self.endpoints[endpoint as usize].open += 1;
        self.line_up_again(place);
    }

    /// A replay of what the endpoint was never owed makes a delivery that did not exist.
    fn delivery_or_adopt(&mut self, message: i64, endpoint: i64) -> Option<usize> {
        if let Some(place) = self.delivery(message, endpoint) {
            return Some(place);
        }
        self.object("I5", message, endpoint, || "a delivery was begun that nobody owes".to_owned());
        None
    }

    /// A delivery was ended by something other than its own attempt.
    pub fn ended_otherwise(&mut self, node: usize, message: i64, endpoint: i64, why: DeathReason, at: i64) {
        self.note(NOBODY, Kind::Ended, [message, endpoint, why as i64, 0]);
        let Some(place) = self.delivery(message, endpoint) else { return };
        // Only what is open can be ended.
        if self.deliveries[place].state != State::Open {
            self.object_to("I17", place, || "ended a second time".to_owned());
            return;
        }
        if why == DeathReason::Expired {
            self.met.met(Sometimes::ExpiredWhileParked);
            self.check_expired_parked(place, node, at);
        }
        self.finish(place, State::Dead(why));
        self.deliveries[place].recalled = true;
    }

    /// It comes to its end.
    pub(super) fn finish(&mut self, place: usize, state: State) {
        let now = self.now;
        let delivery = &mut self.deliveries[place];
        // What arrived once stays delivered, whatever becomes of a later cycle.
        delivery.state = if delivery.arrived { State::Delivered } else { state };
        delivery.changed = now;
        delivery.recalled = false;
        let endpoint = delivery.endpoint;
        self.endpoints[endpoint as usize].open -= 1;
        self.leave_line(place);
    }
}

/// How long a message may be queued before it is written or refused, under trouble.
const QUEUED_MAX: i64 = 20_000;

/// The first eight bytes of every payload are the producer's number.
pub fn number_in(payload: &[u8]) -> u64 {
    payload.first_chunk::<8>().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}
