//! What is on the disk: the durable half, which all nodes share.
//!
//! Maps in the order of their keys, so that one seed gives one history. Rows that wait are kept by lane, with the same
//! queues that the real stores have as indexes.

use super::witness::{Gallery, Seen as Saw};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    keys::time_of_key,
    planted::{Bug, planted},
    policy::{Class, DeathReason, Health, Progress},
};
use postrider_store::{
    Answer, ApiKey, ApiKeyKey, Application, Attempt, AuditEntry, AuditKey, Consumer, Content, DeadKey, Endpoint,
    EventType, Idempotency, JournalEntry, JournalKey, Letter, Message, PollerKey, Refused, RefusedKey, TallyCode,
    TallyOf, TallySpan, Task, TaskKey, TokenId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Default)]
pub struct Tables {
    pub gallery: Gallery,
    /// Deleted ones too.
    pub applications: BTreeMap<AppKey, AppRow>,
    pub application_uids: BTreeMap<String, AppKey>,
    /// Deleted ones too.
    pub endpoints: BTreeMap<EndpointKey, EndpointRow>,
    /// Only those that live.
    pub endpoints_of: BTreeMap<AppKey, BTreeSet<EndpointKey>>,
    pub endpoint_uids: BTreeMap<AppKey, BTreeMap<String, EndpointKey>>,
    /// Deleted, and what waits for them is not yet among the dead letters.
    pub unburied: BTreeSet<EndpointKey>,
    pub event_types: BTreeMap<String, EventType>,
    pub notes: BTreeMap<String, Vec<u8>>,
    pub answers: BTreeMap<[u8; 16], AnswerRow>,
    pub messages: BTreeMap<MessageKey, MessageRow>,
    /// By the keys of requests.
    pub repeats: BTreeMap<[u8; 16], Seen>,
    pub event_ids: BTreeMap<AppKey, BTreeMap<String, MessageKey>>,
    pub payload_expiry: BTreeSet<(Timestamp, MessageKey)>,
    pub lanes: BTreeMap<EndpointKey, LaneRows>,
    /// A row outlives its end, so that it stays known that there was one.
    pub dead: BTreeMap<(EndpointKey, MessageKey), DeadRow>,
    /// Those that are `Standing::Listed`.
    pub dead_listed: BTreeSet<(AppKey, DeadKey)>,
    /// Of endpoints that are not in perfect health.
    pub healths: BTreeMap<EndpointKey, Health>,
    /// How far each endpoint has counted: by key, or as a whole if it is FIFO.
    pub counters: BTreeMap<(EndpointKey, Option<OrderKey>), Counter>,
    pub api_keys: BTreeMap<ApiKeyKey, ApiKey>,
    /// Since when, and until when it must be known.
    pub revoked_tokens: BTreeMap<TokenId, (Timestamp, Timestamp)>,
    /// By application and session; none: all of them.
    pub revoked_sessions: BTreeMap<(AppKey, Option<String>), Vec<RevokedRow>>,
    pub audit: BTreeMap<AuditKey, AuditEntry>,
    pub refused: BTreeMap<RefusedKey, Refused>,
    /// Each with the application that its poller is of.
    pub consumers: BTreeMap<(PollerKey, String), (AppKey, Consumer)>,
    /// By span, start, subject and event.
    pub tallies: BTreeMap<(TallySpan, Timestamp, TallyOf, TallyCode), u64>,
    pub journal: BTreeMap<JournalKey, JournalEntry>,
    /// The subjects of those that are raised.
    pub alarms: BTreeSet<String>,
    /// How many entries there ever were.
    pub journal_entries: i64,
    pub tasks: BTreeMap<TaskKey, TaskRow>,
    /// The greatest key that is in use.
    pub minted: i64,
    /// Every message up to this one has a row for each of its deliveries. Where nodes share, each notes its own.
    pub settled_through: i64,
    /// No message may be accepted with a key up to this one any more.
    pub floor: i64,
}

pub struct AppRow {
    pub record: Application,
    pub generation: i64,
    pub deleted_at: Option<Timestamp>,
}

pub struct EndpointRow {
    pub record: Endpoint,
    pub deleted_at: Option<Timestamp>,
}

pub struct RevokedRow {
    pub until: Timestamp,
    pub at: Timestamp,
    pub forget_at: Option<Timestamp>,
}

pub struct AnswerRow {
    pub at: Timestamp,
    pub request: [u8; 16],
    pub answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub message: MessageKey,
    pub request: [u8; 16],
}

pub struct MessageRow {
    pub app: AppKey,
    /// The payload is in the letter.
    pub content: Content,
    /// As lanes get it; without a payload once that is gone.
    pub letter: Arc<Letter>,
    pub owed: Arc<[EndpointKey]>,
    pub expires_at: Option<Timestamp>,
    pub idempotency: Option<Idempotency>,
    /// In the order of their keys.
    pub attempts: Vec<Attempt>,
}

impl MessageRow {
    pub fn key(&self) -> MessageKey {
        self.letter.message
    }

    pub fn accepted_at(&self) -> Timestamp {
        self.letter.accepted_at
    }

    pub fn has_arrived_at(&self, endpoint: EndpointKey) -> bool {
        self.attempts.iter().any(|attempt| attempt.id.endpoint == endpoint && attempt.record.class == Class::Delivered)
    }

    /// Removes the payload for good, and the headers that it came with.
    pub fn forget_payload(&mut self) {
        if self.letter.payload.is_some() {
            self.letter = Arc::new(Letter { payload: None, headers: Vec::new(), ..Letter::clone(&self.letter) });
        }
        self.content.received = None;
    }

    pub fn message(&self) -> Message {
        Message {
            key: self.key(),
            app: self.app,
            accepted_at: self.accepted_at(),
            content: Content { payload: self.letter.payload.clone().unwrap_or_default(), ..self.content.clone() },
            payload_gone: self.letter.payload.is_none(),
            owed: self.owed.to_vec(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct DeadRow {
    pub app: AppKey,
    pub reason: DeathReason,
    pub at: Timestamp,
    pub cycle: u32,
    pub standing: Standing,
    pub replayed_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A dead letter.
    Listed,
    /// It was put on its way again, or has arrived since.
    Over,
    /// Its time among the dead letters is over. It is dead all the same.
    Retired,
}

#[derive(Clone, Copy, Debug)]
pub struct Counter {
    pub last: u64,
    pub last_key: i64,
    /// Which node counted last: its tenure.
    pub last_node: i64,
    pub used_at: Timestamp,
}

pub struct TaskRow {
    pub task: Task,
    pub cursor: i64,
}

/// What waits in one lane.
#[derive(Default)]
pub struct LaneRows {
    rows: BTreeMap<(MessageKey, Trigger), WaitRow>,
    /// For each place: when they fall due.
    due: [BTreeSet<(Timestamp, MessageKey)>; 3],
    runs: BTreeMap<OrderKey, BTreeSet<MessageKey>>,
}

#[derive(Clone, Copy, Debug)]
pub struct WaitRow {
    pub due: Timestamp,
    pub cycle: u32,
    pub progress: Progress,
    /// `None`: when its message was accepted.
    pub queued_at: Option<Timestamp>,
    pub order: Option<OrderKey>,
    pub place: Place,
}

/// Where a waiting row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has no ordering key, or is the first of its key.
    Front,
    /// An earlier message of the same key waits too.
    Behind,
    /// A resend, which no order binds.
    Beside,
}

impl WaitRow {
    pub fn queued_at(&self, message: MessageKey) -> Timestamp {
        self.queued_at.unwrap_or_else(|| time_of_key(message.raw()))
    }
}

impl LaneRows {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn get(&self, message: MessageKey, trigger: Trigger) -> Option<&WaitRow> {
        self.rows.get(&(message, trigger))
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (MessageKey, Trigger, &WaitRow)> {
        self.rows.iter().map(|((message, trigger), row)| (*message, *trigger, row))
    }

    /// Those on their schedule, past a message.
    pub fn scheduled_past(&self, message: Option<MessageKey>) -> impl Iterator<Item = (MessageKey, &WaitRow)> {
        let from = message.map_or((MessageKey::new(i64::MIN), Trigger::Scheduled), |past| (past, Trigger::Manual));
        let past = self.rows.range(from..);
        past.filter(move |((found, trigger), _)| *trigger == Trigger::Scheduled && Some(*found) != message)
            .map(|((message, _), row)| (*message, row))
    }

    pub fn of_place(&self, place: Place) -> &BTreeSet<(Timestamp, MessageKey)> {
        &self.due[place as usize]
    }

    /// The messages of a key, oldest first.
    pub fn run(&self, order: OrderKey) -> Option<&BTreeSet<MessageKey>> {
        self.runs.get(&order)
    }

    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    pub fn earliest_due(&self) -> Option<Timestamp> {
        self.due.iter().filter_map(|due| due.first()).map(|(due, _)| *due).min()
    }

    /// Unless it is there already.
    fn insert(&mut self, message: MessageKey, trigger: Trigger, row: WaitRow) -> bool {
        if self.rows.contains_key(&(message, trigger)) {
            return false;
        }
        let place = match (trigger, row.order) {
            (Trigger::Manual, _) => Place::Beside,
            (Trigger::Scheduled, None) => Place::Front,
            (Trigger::Scheduled, Some(order)) => {
                let run = self.runs.entry(order).or_default();
                let first = run.first().copied();
                run.insert(message);
                match first {
                    Some(first) if first < message => Place::Behind,
                    Some(first) => {
                        self.move_to(first, Place::Behind);
                        Place::Front
                    }
                    None => Place::Front,
                }
            }
        };
        self.due[place as usize].insert((row.due, message));
        self.rows.insert((message, trigger), WaitRow { place, ..row });
        true
    }

    fn move_to(&mut self, message: MessageKey, place: Place) {
        let row = self.rows.get_mut(&(message, Trigger::Scheduled)).expect("what is in a run has a row");
        self.due[row.place as usize].remove(&(row.due, message));
        self.due[place as usize].insert((row.due, message));
        row.place = place;
    }

    fn remove(&mut self, message: MessageKey, trigger: Trigger) -> Option<WaitRow> {
        let row = self.rows.remove(&(message, trigger))?;
        self.due[row.place as usize].remove(&(row.due, message));
        if let Some(order) = row.order
            && let Some(run) = self.runs.get_mut(&order)
        {
            run.remove(&message);
            match run.first().copied() {
                Some(next) if row.place == Place::Front => self.move_to(next, Place::Front),
                Some(_) => {}
                None => drop(self.runs.remove(&order)),
            }
        }
        Some(row)
    }

    fn put_off(&mut self, message: MessageKey, trigger: Trigger, due: Timestamp, progress: Progress) {
        let Some(row) = self.rows.get_mut(&(message, trigger)) else { return };
        let queue = &mut self.due[row.place as usize];
        queue.remove(&(row.due, message));
        queue.insert((due, message));
        (row.due, row.progress) = (due, progress);
    }

    fn set_cycle(&mut self, message: MessageKey, trigger: Trigger, cycle: u32) {
        if let Some(row) = self.rows.get_mut(&(message, trigger)) {
            row.cycle = cycle;
        }
    }
}

/// Which cycle of a delivery begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    First,
    /// Its time to wait untried counts from then.
    Again {
        number: u32,
        queued_at: Timestamp,
    },
}

impl Tables {
    pub fn waiting(&self, id: DeliveryId) -> Option<&WaitRow> {
        self.lanes.get(&id.endpoint)?.get(id.message, id.trigger)
    }

    /// A delivery begins to wait, unless it does already. True if it did not.
    pub fn start_waiting(&mut self, id: DeliveryId, order: Option<OrderKey>, due: Timestamp, cycle: Cycle) -> bool {
        let (cycle, queued_at) = match cycle {
            Cycle::First => (0, None),
            Cycle::Again { number, queued_at } => (number, Some(queued_at)),
        };
        let order = binding(id, order);
        let row = WaitRow { due, cycle, progress: Progress::default(), queued_at, order, place: Place::Front };
        self.lanes.entry(id.endpoint).or_default().insert(id.message, id.trigger, row)
    }

    /// A delivery waits no longer. `None` if it did not.
    pub fn remove_waiting(&mut self, id: DeliveryId) -> Option<WaitRow> {
        let lane = self.lanes.get_mut(&id.endpoint)?;
        let removed = lane.remove(id.message, id.trigger);
        if lane.is_empty() {
            self.lanes.remove(&id.endpoint);
        }
        removed
    }

    /// A delivery without a row gets one; one that has a row is brought to this state.
    pub fn wait_first(
        &mut self,
        id: DeliveryId,
        order: Option<OrderKey>,
        cycle: u32,
        (due, progress): (Timestamp, Progress),
    ) {
        let order = binding(id, order);
        let row = WaitRow { due, cycle, progress, queued_at: None, order, place: Place::Front };
        let lane = self.lanes.entry(id.endpoint).or_default();
        if !lane.insert(id.message, id.trigger, row) {
            lane.put_off(id.message, id.trigger, due, progress);
            lane.set_cycle(id.message, id.trigger, cycle);
        }
    }

    /// A delivery that waits in this cycle goes on waiting.
    pub fn wait_again(&mut self, id: DeliveryId, cycle: u32, (due, progress): (Timestamp, Progress)) {
        if let Some(lane) = self.lanes.get_mut(&id.endpoint)
            && lane.get(id.message, id.trigger).is_some_and(|row| row.cycle == cycle)
        {
            lane.put_off(id.message, id.trigger, due, progress);
        }
    }

    pub fn has_arrived(&self, message: MessageKey, endpoint: EndpointKey) -> bool {
        self.messages.get(&message).is_some_and(|row| row.has_arrived_at(endpoint))
    }

    pub fn order_of(&self, message: MessageKey) -> Option<OrderKey> {
        self.messages.get(&message)?.letter.order
    }

    /// A delivery is given up. What waited of it has been removed by the caller.
    pub fn bury(&mut self, id: DeliveryId, reason: DeathReason, at: Timestamp, cycle: u32) {
        let app = self.endpoints.get(&id.endpoint).map_or(AppKey::new(0), |endpoint| endpoint.record.app);
        let fresh = DeadRow { app, reason, at, cycle, standing: Standing::Listed, replayed_at: None };
        let row = self.dead.entry((id.endpoint, id.message)).or_insert(fresh);
        *row = DeadRow { app: row.app, replayed_at: row.replayed_at, ..fresh };
        self.dead_listed.insert((row.app, DeadKey { message: id.message, endpoint: id.endpoint }));
        if !self.gallery.settling {
            self.gallery.tell(&Saw::Ended { id, why: reason, at });
        }
    }

    /// A dead letter is listed no longer.
    pub fn unlist(&mut self, endpoint: EndpointKey, message: MessageKey, standing: Standing) {
        if let Some(row) = self.dead.get_mut(&(endpoint, message)) {
            row.standing = standing;
            self.dead_listed.remove(&(row.app, DeadKey { message, endpoint }));
        }
    }

    /// A dead letter that arrived after all is one no longer.
    pub fn revive(&mut self, endpoint: EndpointKey, message: MessageKey) {
        self.unlist(endpoint, message, Standing::Over);
    }

    /// Puts a delivery that was given up, or that has arrived, on its way again: as a new cycle, due at once.
    pub fn requeue(&mut self, id: DeliveryId, cycle: u32, at: Timestamp) {
        if let Some(row) = self.dead.get_mut(&(id.endpoint, id.message)) {
            row.replayed_at = Some(at);
        }
        if !planted(Bug::ReplayedTwice) {
            self.unlist(id.endpoint, id.message, Standing::Over);
        }
        self.start_waiting(id, self.order_of(id.message), at, Cycle::Again { number: cycle, queued_at: at });
        self.gallery.tell(&Saw::Queued { id, cycle, due: at });
    }

    /// Whether a delivery that is owed neither waits nor has ended nor was tried: it is in the memory of some node, or
    /// on its way to one.
    pub fn has_no_row(&self, row: &MessageRow, endpoint: EndpointKey) -> bool {
        let message = row.key();
        let tried = |attempt: &Attempt| {
            attempt.id.endpoint == endpoint
                && (attempt.id.trigger == Trigger::Scheduled || attempt.record.class == Class::Delivered)
        };
        !row.attempts.iter().any(tried)
            && self.lanes.get(&endpoint).is_none_or(|lane| lane.get(message, Trigger::Scheduled).is_none())
            && !self.dead.contains_key(&(endpoint, message))
    }

    pub fn living_endpoint(&self, endpoint: EndpointKey) -> Option<&EndpointRow> {
        self.endpoints.get(&endpoint).filter(|row| row.deleted_at.is_none())
    }

    pub fn living_application(&self, app: AppKey) -> Option<&AppRow> {
        self.applications.get(&app).filter(|row| row.deleted_at.is_none())
    }
}

/// No order binds a resend.
fn binding(id: DeliveryId, order: Option<OrderKey>) -> Option<OrderKey> {
    order.filter(|_| id.trigger == Trigger::Scheduled)
}

pub fn scheduled(endpoint: EndpointKey, message: MessageKey) -> DeliveryId {
    DeliveryId { endpoint, message, trigger: Trigger::Scheduled }
}
