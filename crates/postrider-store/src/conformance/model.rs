//! The store as it would be if nothing could go wrong and nothing had to be quick: plain maps.
//!
//! Same verbs, same answers. Where a store is free to choose (the keys it makes, how much history it forgets at
//! once), the model is told what the store chose.

use crate::*;
use bytes::Bytes;
use postrider_engine::{
    AppKey, AttemptKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    policy::{Class, DeathReason, Health, Next, Ordering, Progress},
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Model {
    applications: BTreeMap<AppKey, Application>,
    endpoints: BTreeMap<EndpointKey, Endpoint>,
    /// Deleted, and what waits for them is not yet among the dead letters.
    unburied: BTreeSet<EndpointKey>,
    event_types: BTreeMap<String, EventType>,
    notes: BTreeMap<String, Vec<u8>>,
    answers: BTreeMap<[u8; 16], (Timestamp, [u8; 16], Answer)>,
    messages: BTreeMap<MessageKey, Kept>,
    /// In the order in which they were settled, which is also that of their keys.
    attempts: Vec<(Timestamp, Attempt)>,
    /// Handed over and without a row: known to whoever heard the announcement, and to the message.
    handed: BTreeSet<DeliveryId>,
    waiting: BTreeMap<DeliveryId, Wait>,
    dead: BTreeMap<(EndpointKey, MessageKey), Dead>,
    /// Of endpoints that are not in perfect health.
    healths: BTreeMap<EndpointKey, Health>,
    /// How far each endpoint has counted, by key or, if it is FIFO, as a whole.
    counters: BTreeMap<(EndpointKey, Option<OrderKey>), Counter>,
    tasks: BTreeMap<TaskKey, Task>,
}

struct Counter {
    last: u64,
    used_at: Timestamp,
}

struct Kept {
    message: Message,
    expires_at: Option<Timestamp>,
    idempotency: Option<Idempotency>,
    sequences: Vec<(EndpointKey, u64)>,
    trace: Option<TraceContext>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    pub due: Timestamp,
    pub cycle: u32,
    pub progress: Progress,
    pub queued_at: Timestamp,
    pub order: Option<OrderKey>,
}

/// What a load may bring.
#[derive(Default)]
pub struct Due {
    /// Those who wait for nobody, in the order in which they fell due.
    pub fronts: Vec<(DeliveryId, Wait)>,
    /// Those who follow somebody, with whom, and when their turn came.
    pub followers: Vec<(DeliveryId, Wait, DeliveryId, Timestamp)>,
    pub next_due: Option<Timestamp>,
    /// All who wait for an earlier one, due or not.
    pub behind: usize,
}

struct Dead {
    at: Timestamp,
    reason: DeathReason,
    cycle: u32,
    /// Its time among the dead letters is over; it is dead all the same.
    retired: bool,
}

impl Dead {
    fn new(at: Timestamp, reason: DeathReason, cycle: u32) -> Self {
        Self { at, reason, cycle, retired: false }
    }
}

/// What is to be answered to a message that is handed in.
#[derive(Debug)]
pub enum Reception {
    New,
    Before(MessageKey),
    Refused(AcceptError),
}

impl Model {
    // The way of a message.

    pub fn receive(&self, message: &NewMessage) -> Reception {
        if let Some(asked) = message.idempotency {
            let remembered_from = message.at.minus(IDEMPOTENCY_MEMORY);
            let earlier = self.messages.values().rev().find_map(|kept| {
                let known = kept.idempotency.filter(|known| known.key == asked.key)?;
                (kept.message.accepted_at >= remembered_from).then_some((kept.message.key, known))
            });
            match earlier {
                Some((_, known)) if asked.chosen && known.request != asked.request => {
                    return Reception::Refused(AcceptError::KeyReused);
                }
                Some((key, _)) => return Reception::Before(key),
                None => {}
            }
        }
        match &message.content.event_id {
            Some(event_id) if self.message_by_event_id(message.app, event_id).is_some() => {
                Reception::Refused(AcceptError::EventIdTaken)
            }
            Some(_) | None => Reception::New,
        }
    }

    pub fn accept(&mut self, key: MessageKey, message: NewMessage) {
        let NewMessage { app, at, content, payload_expires_at, owed, fifo, idempotency, generation: _, trace } =
            message;
        let order = content.ordering_key.as_deref().map(OrderKey::of);
        let deliver_at = content.deliver_at;
        let mut sequences = Vec::new();
        for endpoint in owed.iter().filter(|endpoint| order.is_some() || fifo.contains(endpoint)) {
            let counter = order.filter(|_| !fifo.contains(endpoint));
            let new = Counter { last: 0, used_at: at };
            let Counter { last, used_at } = self.counters.entry((*endpoint, counter)).or_insert(new);
            *used_at = at;
            *last += 1;
            sequences.push((*endpoint, *last));
        }
        let deliveries: Vec<_> = owed.iter().map(|endpoint| scheduled(*endpoint, key)).collect();
        let message = Message { key, app, accepted_at: at, content, payload_gone: false, owed };
        self.messages.insert(key, Kept { message, expires_at: payload_expires_at, idempotency, sequences, trace });
        match deliver_at.filter(|due| *due > at) {
            Some(due) => deliveries.into_iter().for_each(|id| self.start_waiting(id, due, 0, due)),
            None => self.handed.extend(deliveries),
        }
    }

    pub fn spill(&mut self, deliveries: &[DeliveryId], due: Timestamp) {
        for id in deliveries {
            if self.handed.remove(id) && !self.has_arrived(*id) {
                self.start_waiting(*id, due, 0, self.accepted_at(id.message));
            }
        }
    }

    pub fn due(&self, endpoint: EndpointKey, ordering: Ordering, now: Timestamp) -> Due {
        let mut runs: BTreeMap<_, Vec<(DeliveryId, Wait)>> = BTreeMap::new();
        for (id, wait) in self.waiting.iter().filter(|(id, _)| id.endpoint == endpoint) {
            let run = match (ordering, id.trigger, wait.order) {
                (Ordering::Keyed, Trigger::Scheduled, Some(order)) => (None, Some(order)),
                (Ordering::Fifo, Trigger::Scheduled, _) => (None, None),
                (Ordering::None | Ordering::Keyed, Trigger::Scheduled, _) | (_, Trigger::Manual, _) => {
                    (Some(*id), None)
                }
            };
            runs.entry(run).or_default().push((*id, *wait));
        }
        let mut found = Due::default();
        for run in runs.into_values() {
            found.behind += run.len() - 1;
            let (first, wait) = run[0];
            if wait.due > now {
                found.next_due = found.next_due.into_iter().chain([wait.due]).min();
                continue;
            }
            found.fronts.push((first, wait));
            let (mut last, mut turn) = (first, wait.due);
            for (id, wait) in run[1..].iter().take_while(|(_, wait)| wait.due <= now) {
                turn = turn.max(wait.due);
                found.followers.push((*id, *wait, last, turn));
                last = *id;
            }
        }
        found.fronts.sort_by_key(|(_, wait)| wait.due);
        found
    }

    pub fn letter(&self, message: MessageKey) -> Option<Letter> {
        let Kept { message, sequences, trace, .. } = self.messages.get(&message)?;
        Some(Letter {
            message: message.key,
            app: message.app,
            event_type: message.content.event_type.clone(),
            content_type: message.content.content_type.clone(),
            payload: (!message.payload_gone).then(|| message.content.payload.clone()),
            accepted_at: message.accepted_at,
            order: message.content.ordering_key.as_deref().map(OrderKey::of),
            sequences: sequences.clone(),
            trace: trace.clone(),
            headers: message.content.received.clone().map(|received| received.passed_on).unwrap_or_default(),
        })
    }

    pub fn settle(&mut self, settlement: &Settlement) {
        let Settlement { id, handed, cycle, progress, at, next, .. } = *settlement;
        self.record_attempt(settlement);
        match next {
            Next::Delivered => {
                self.waiting.remove(&id);
                self.waiting.remove(&scheduled(id.endpoint, id.message));
                self.dead.remove(&(id.endpoint, id.message));
            }
            Next::Retry { due, .. } | Next::Postponed { due } => {
                if handed && self.handed.contains(&id) && !self.has_arrived(id) {
                    self.start_waiting(id, due, cycle, self.accepted_at(id.message));
                }
                if let Some(wait) = self.waiting.get_mut(&id).filter(|wait| wait.cycle == cycle) {
                    (wait.due, wait.progress) = (due, progress);
                }
            }
            Next::Dead(reason) => {
                let ends = if handed { self.handed.contains(&id) } else { self.waits_in(id, cycle) };
                if ends {
                    self.waiting.remove(&id);
                }
                if ends && !self.has_arrived(id) {
                    self.dead.insert((id.endpoint, id.message), Dead::new(at, reason, cycle));
                }
            }
            Next::Nothing => {
                self.waiting.remove(&id);
            }
        }
        if handed {
            self.handed.remove(&id);
        }
        if let Some(health) = settlement.health.filter(|_| self.endpoints.contains_key(&id.endpoint)) {
            self.healths.insert(id.endpoint, health);
            self.healths.retain(|_, health| *health != Health::default());
        }
        if let Some(endpoint) = self.endpoints.get_mut(&id.endpoint)
            && let Some(why) = settlement.disable
            && endpoint.disabled.is_none()
        {
            endpoint.disabled = Some(Disabled { why, at });
            endpoint.version += 1;
            endpoint.updated_at = at;
        }
    }

    fn waits_in(&self, id: DeliveryId, cycle: u32) -> bool {
        self.waiting.get(&id).is_some_and(|wait| wait.cycle == cycle)
    }

    pub fn healths(&self) -> Vec<(EndpointKey, Health)> {
        self.healths.iter().map(|(endpoint, health)| (*endpoint, *health)).collect()
    }

    pub fn reset_health(&mut self, endpoint: EndpointKey) {
        self.healths.remove(&endpoint);
    }

    fn record_attempt(&mut self, settlement: &Settlement) {
        let Some(record) = settlement.attempt.clone() else { return };
        let (next, death) = match settlement.next {
            Next::Retry { due, delay } => (Some((due, delay)), None),
            Next::Dead(reason) => (None, Some(reason)),
            Next::Delivered | Next::Nothing | Next::Postponed { .. } => (None, None),
        };
        let attempt = Attempt {
            key: AttemptKey::new(0),
            id: settlement.id,
            cycle: settlement.cycle,
            number: settlement.progress.attempts,
            record,
            expunged: false,
            next,
            death,
        };
        self.attempts.push((settlement.at, attempt));
    }

    /// Learns the key that the store gave to an attempt: the first one of its message that has none yet.
    pub fn learn_key(&mut self, message: MessageKey, key: AttemptKey) {
        let greatest = self.attempts.iter().map(|(_, attempt)| attempt.key).max();
        assert!(greatest < Some(key), "keys of attempts grow: {key:?} after {greatest:?}");
        let unnamed = self.attempts.iter_mut().find(|(_, known)| known.id.message == message && known.key.raw() == 0);
        unnamed.expect("the store has no attempt that was not made").1.key = key;
    }

    pub fn resend(&mut self, id: DeliveryId, at: Timestamp, remember: Option<Remember>) -> Result<(), PutError> {
        self.put(remember, at, |model| {
            model.start_waiting(id, at, 0, model.accepted_at(id.message));
            Ok(())
        })
    }

    /// Whether it is handed over, and not ended.
    pub fn is_handed(&self, id: DeliveryId) -> bool {
        self.handed.contains(&id)
    }

    pub fn cancel(&mut self, message: MessageKey, endpoint: Option<EndpointKey>, at: Timestamp) -> u64 {
        let Some(kept) = self.messages.get(&message) else { return 0 };
        let owed: Vec<_> = kept.message.owed.iter().map(|endpoint| scheduled(*endpoint, message)).collect();
        let mut cancelled = 0;
        for id in owed.into_iter().filter(|id| endpoint.is_none_or(|endpoint| endpoint == id.endpoint)) {
            let arrived = self.has_arrived(id);
            let cycle = match self.waiting.remove(&id) {
                Some(wait) => wait.cycle,
                None if !arrived && self.handed.remove(&id) => 0,
                None => continue,
            };
            cancelled += 1;
            if !arrived {
                self.dead.insert((id.endpoint, message), Dead::new(at, DeathReason::Cancelled, cycle));
            }
        }
        cancelled
    }

    pub fn replay(&mut self, key: DeadKey, at: Timestamp, remember: Option<Remember>) -> Result<bool, PutError> {
        let both = (key.endpoint, key.message);
        let put = self.put(remember, at, |model| {
            let can_be_sent = model.endpoints.contains_key(&key.endpoint)
                && model.messages.get(&key.message).is_some_and(|kept| !kept.message.payload_gone);
            let is_open = model.dead.get(&both).is_some_and(|dead| !dead.retired);
            let dead = if can_be_sent && is_open { model.dead.remove(&both) } else { None };
            let Some(dead) = dead else { return Err(PutError::Changed) };
            model.start_waiting(scheduled(key.endpoint, key.message), at, dead.cycle + 1, at);
            Ok(())
        });
        match put {
            Ok(()) => Ok(true),
            Err(PutError::Changed) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// By message, then by endpoint.
    pub fn dead_letters(&self, app: AppKey) -> Vec<(DeadKey, DeathReason, u32)> {
        let of_app = |message: &MessageKey| self.messages.get(message).is_some_and(|kept| kept.message.app == app);
        let found = self.dead.iter().filter(|((_, message), dead)| of_app(message) && !dead.retired);
        let mut found: Vec<_> = found
            .map(|((endpoint, message), dead)| {
                (DeadKey { message: *message, endpoint: *endpoint }, dead.reason, dead.cycle)
            })
            .collect();
        found.sort_by_key(|(key, ..)| *key);
        found
    }

    pub fn lanes(&self) -> Vec<LaneFound> {
        let mut lanes = BTreeMap::new();
        for (id, wait) in &self.waiting {
            let next_due = lanes.entry(id.endpoint).or_insert(wait.due);
            *next_due = wait.due.min(*next_due);
        }
        lanes.into_iter().map(|(endpoint, next_due)| LaneFound { endpoint, next_due }).collect()
    }

    /// Whoever had been told is gone: what was handed over waits from now on.
    pub fn reopen(&mut self, now: Timestamp) {
        for id in std::mem::take(&mut self.handed) {
            if !self.has_arrived(id) {
                self.start_waiting(id, now, 0, self.accepted_at(id.message));
            }
        }
    }

    fn start_waiting(&mut self, id: DeliveryId, due: Timestamp, cycle: u32, queued_at: Timestamp) {
        let key = self.messages.get(&id.message).and_then(|kept| kept.message.content.ordering_key.as_deref());
        let order = key.map(OrderKey::of).filter(|_| id.trigger == Trigger::Scheduled);
        let progress = Progress::default();
        self.waiting.entry(id).or_insert(Wait { due, cycle, progress, queued_at, order });
    }

    fn accepted_at(&self, message: MessageKey) -> Timestamp {
        self.messages[&message].message.accepted_at
    }

    fn has_arrived(&self, id: DeliveryId) -> bool {
        self.attempts.iter().any(|(_, attempt)| {
            (attempt.id.endpoint, attempt.id.message) == (id.endpoint, id.message)
                && attempt.record.class == Class::Delivered
        })
    }

    // Settings.

    pub fn put_application(
        &mut self,
        application: Application,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.put(remember, application.updated_at, |model| {
            let taken = |other: &Application| other.key != application.key && other.uid == application.uid;
            if application.uid.is_some() && model.applications.values().any(taken) {
                return Err(PutError::Taken);
            }
            let found = model.applications.get(&application.key).map(|found| found.version);
            let version = next_version(found, expect)?;
            model.applications.insert(application.key, Application { version, ..application });
            Ok(())
        })
    }

    pub fn put_endpoint(
        &mut self,
        endpoint: Endpoint,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.put(remember, endpoint.updated_at, |model| {
            let same_name = |other: &Endpoint| (other.app, &other.uid) == (endpoint.app, &endpoint.uid);
            let taken = |other: &Endpoint| other.key != endpoint.key && same_name(other);
            if endpoint.uid.is_some() && model.endpoints.values().any(taken) {
                return Err(PutError::Taken);
            }
            if !model.applications.contains_key(&endpoint.app) {
                return Err(PutError::Changed);
            }
            let found = model.endpoints.get(&endpoint.key).map(|found| found.version);
            let version = next_version(found, expect)?;
            let key = endpoint.key;
            let before = model.endpoints.insert(key, Endpoint { version, ..endpoint });
            if before.is_some_and(|before| before.disabled.is_some()) && model.endpoints[&key].disabled.is_none() {
                model.healths.remove(&key);
            }
            Ok(())
        })
    }

    pub fn put_event_type(
        &mut self,
        event_type: EventType,
        expect: Expect,
        remember: Option<Remember>,
    ) -> Result<(), PutError> {
        self.put(remember, event_type.updated_at, |model| {
            let found = model.event_types.get(&event_type.name).map(|found| found.version);
            let version = next_version(found, expect)?;
            model.event_types.insert(event_type.name.clone(), EventType { version, ..event_type });
            Ok(())
        })
    }

    pub fn remember(&mut self, remember: Remember, at: Timestamp) -> Result<(), PutError> {
        self.put(Some(remember), at, |_| Ok(()))
    }

    fn put(
        &mut self,
        remember: Option<Remember>,
        at: Timestamp,
        change: impl FnOnce(&mut Self) -> Result<(), PutError>,
    ) -> Result<(), PutError> {
        let Some(Remember { idempotency, answer }) = remember else { return change(self) };
        match self.answers.get(&idempotency.key) {
            Some((_, request, _)) if idempotency.chosen && *request != idempotency.request => Err(PutError::KeyReused),
            Some((_, _, answer)) => Err(PutError::Repeated(answer.clone())),
            None => {
                change(self)?;
                self.answers.insert(idempotency.key, (at, idempotency.request, answer));
                Ok(())
            }
        }
    }

    pub fn delete_application(&mut self, app: AppKey) -> bool {
        let endpoints: Vec<_> = self.endpoints_of(app).iter().map(|endpoint| endpoint.key).collect();
        for endpoint in endpoints {
            self.delete_endpoint(endpoint);
        }
        self.applications.remove(&app).is_some()
    }

    pub fn delete_endpoint(&mut self, endpoint: EndpointKey) -> bool {
        let found = self.endpoints.remove(&endpoint).is_some();
        if found {
            self.unburied.insert(endpoint);
            self.healths.remove(&endpoint);
        }
        found
    }

    /// All of it at once; how much a store does in one step is its own affair.
    pub fn bury(&mut self, at: Timestamp) {
        let unburied = std::mem::take(&mut self.unburied);
        self.counters.retain(|(endpoint, _), _| !unburied.contains(endpoint));
        let ends: Vec<_> = self.waiting.extract_if(.., |id, _| unburied.contains(&id.endpoint)).collect();
        for (id, wait) in ends.into_iter().filter(|(id, _)| id.trigger == Trigger::Scheduled) {
            if !self.has_arrived(id) {
                let dead = Dead::new(at, DeathReason::EndpointGone, wait.cycle);
                self.dead.insert((id.endpoint, id.message), dead);
            }
        }
    }

    pub fn delete_event_type(&mut self, name: &str) -> bool {
        self.event_types.remove(name).is_some()
    }

    pub fn put_note(&mut self, name: &str, value: Vec<u8>) {
        self.notes.insert(name.to_owned(), value);
    }

    pub fn note(&self, name: &str) -> Option<Vec<u8>> {
        self.notes.get(name).cloned()
    }

    pub fn applications(&self) -> Vec<Application> {
        self.applications.values().cloned().collect()
    }

    pub fn endpoints_of(&self, app: AppKey) -> Vec<Endpoint> {
        self.endpoints.values().filter(|endpoint| endpoint.app == app).cloned().collect()
    }

    pub fn endpoint(&self, endpoint: EndpointKey) -> Option<Endpoint> {
        self.endpoints.get(&endpoint).cloned()
    }

    pub fn event_types(&self, archived: Archived) -> Vec<EventType> {
        let shown = |found: &&EventType| archived == Archived::Show || !found.archived;
        self.event_types.values().filter(shown).cloned().collect()
    }

    // Looking back.

    pub fn message(&self, key: MessageKey) -> Option<&Message> {
        self.messages.get(&key).map(|kept| &kept.message)
    }

    pub fn message_by_event_id(&self, app: AppKey, event_id: &str) -> Option<&Message> {
        let named = |message: &&Message| message.app == app && message.content.event_id.as_deref() == Some(event_id);
        self.every_message().find(named)
    }

    /// Of all applications, oldest first.
    pub fn every_message(&self) -> impl Iterator<Item = &Message> {
        self.messages.values().map(|kept| &kept.message)
    }

    pub fn messages(&self, app: AppKey, filter: &MessageFilter, page: &Page<MessageKey>) -> Vec<Message> {
        let of_app = self.every_message().filter(|message| message.app == app);
        let found = of_app.filter(|message| is_wanted(filter, &message.content, message.accepted_at));
        on_page(found.cloned().collect(), |message| message.key, page)
    }

    pub fn messages_of_endpoint(
        &self,
        app: AppKey,
        endpoint: EndpointKey,
        filter: &MessageFilter,
        states: &[StateKind],
        page: &Page<MessageKey>,
    ) -> Vec<(Message, DeliveryState)> {
        let all = Page { from: None, order: Order::Ascending, limit: usize::MAX };
        let owed = self.messages(app, filter, &all).into_iter().filter(|message| message.owed.contains(&endpoint));
        let with_state = owed.map(|message| {
            let state = self.state(endpoint, message.key);
            (message, state)
        });
        let found = with_state.filter(|(_, state)| states.is_empty() || states.contains(&kind(*state)));
        on_page(found.collect(), |(message, _)| message.key, page)
    }

    pub fn attempts(&self, of: AttemptsOf, filter: &AttemptFilter, page: &Page<AttemptKey>) -> Vec<Attempt> {
        let found = self.attempts.iter().filter(|(at, attempt)| {
            let belongs = match of {
                AttemptsOf::Message(message) => attempt.id.message == message,
                AttemptsOf::Endpoint(_, endpoint) => attempt.id.endpoint == endpoint,
            };
            let status_class = attempt.record.status.map_or(0, |status| status / 100);
            let content = &self.messages[&attempt.id.message].message.content;
            belongs
                && filter.endpoint.is_none_or(|wanted| wanted == attempt.id.endpoint)
                && filter.succeeded.is_none_or(|wanted| wanted == (attempt.record.class == Class::Delivered))
                && filter.status_class.is_none_or(|wanted| wanted == status_class)
                && is_wanted(&filter.message, content, *at)
        });
        on_page(found.map(|(_, attempt)| attempt.clone()).collect(), |attempt| attempt.key, page)
    }

    pub fn deliveries(&self, message: MessageKey) -> Vec<(EndpointKey, DeliveryState)> {
        let mut owed = self.message(message).map(|message| message.owed.clone()).unwrap_or_default();
        owed.sort_unstable();
        owed.into_iter().map(|endpoint| (endpoint, self.state(endpoint, message))).collect()
    }

    fn state(&self, endpoint: EndpointKey, message: MessageKey) -> DeliveryState {
        let id = scheduled(endpoint, message);
        match (self.waiting.get(&id), self.dead.get(&(endpoint, message))) {
            _ if self.has_arrived(id) => DeliveryState::Delivered,
            (Some(wait), _) if is_tried(wait) => DeliveryState::Sending { due: wait.due },
            (Some(wait), _) => DeliveryState::Pending { due: Some(wait.due) },
            (None, Some(dead)) => DeliveryState::Dead { at: dead.at, reason: dead.reason },
            (None, None) => DeliveryState::Pending { due: None },
        }
    }

    pub fn stats(&self, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Stats {
        let mut stats = Stats::default();
        for message in self.every_message() {
            let in_time = since <= message.accepted_at && message.accepted_at < until;
            if !in_time || !message.owed.contains(&endpoint) {
                continue;
            }
            match self.state(endpoint, message.key) {
                DeliveryState::Delivered => stats.success += 1,
                DeliveryState::Pending { .. } => stats.pending += 1,
                DeliveryState::Sending { .. } => stats.sending += 1,
                DeliveryState::Dead { reason: DeathReason::Cancelled, .. } => stats.canceled += 1,
                DeliveryState::Dead { .. } => stats.fail += 1,
            }
        }
        stats
    }

    pub fn counts(&self) -> Counts {
        let dead = self.dead.values().filter(|dead| !dead.retired).count();
        Counts { waiting: self.waiting.len() as u64, dead: dead as u64 }
    }

    pub fn expunge_message(&mut self, message: MessageKey) -> bool {
        let found = self.messages.get_mut(&message);
        found.map(|kept| forget_payload(&mut kept.message)).is_some()
    }

    pub fn expunge_attempt(&mut self, message: MessageKey, key: AttemptKey) -> bool {
        let found = self.attempts.iter_mut().find(|(_, known)| (known.id.message, known.key) == (message, key));
        let expunge = |(_, attempt): &mut (Timestamp, Attempt)| {
            attempt.expunged = true;
            (attempt.record.response, attempt.record.headers) = (Bytes::new(), Bytes::new());
        };
        found.map(expunge).is_some()
    }

    // Work in the background.

    pub fn start_task(&mut self, task: Task, remember: Option<Remember>) -> Result<(), PutError> {
        self.put(remember, task.updated_at, |model| {
            model.tasks.insert(task.key, task);
            Ok(())
        })
    }

    /// All steps of a task at once.
    pub fn finish_task(&mut self, key: TaskKey, at: Timestamp) -> Option<Task> {
        let mut task = self.tasks.get(&key)?.clone();
        let TaskKind::Recover { endpoint, since, until } = task.kind else { panic!("only recoveries are played") };
        if task.status == TaskStatus::Running {
            let (lane, span) = (EndpointKey::new(endpoint), since..until);
            let is_there = self.endpoints.contains_key(&lane);
            let is_taken = |message: &Message| !message.payload_gone && span.contains(&message.accepted_at.as_millis());
            let taken: Vec<_> = self
                .dead
                .extract_if(.., |(endpoint, message), dead| {
                    is_there
                        && *endpoint == lane
                        && dead.reason != DeathReason::Cancelled
                        && !dead.retired
                        && is_taken(&self.messages[message].message)
                })
                .collect();
            task.changed = taken.len() as u64;
            task.status = TaskStatus::Finished;
            task.updated_at = at;
            for ((endpoint, message), dead) in taken {
                self.start_waiting(scheduled(endpoint, message), at, dead.cycle + 1, at);
            }
            self.tasks.insert(key, task.clone());
        }
        Some(task)
    }

    /// The store decides when it forgets tasks that have ended.
    pub fn forget_task(&mut self, key: TaskKey) {
        self.tasks.remove(&key);
    }

    pub fn task(&self, key: TaskKey) -> Option<Task> {
        self.tasks.get(&key).cloned()
    }

    pub fn unfinished_tasks(&self) -> Vec<TaskKey> {
        self.tasks.values().filter(|task| task.status == TaskStatus::Running).map(|task| task.key).collect()
    }

    /// All but old messages, of which the store decides.
    pub fn tidy(&mut self, now: Timestamp, retention: Retention) {
        for kept in self.messages.values_mut().filter(|kept| kept.expires_at.is_some_and(|at| at <= now)) {
            forget_payload(&mut kept.message);
        }
        let oldest = now.minus(retention.idempotency);
        self.answers.retain(|_, (at, ..)| *at >= oldest);
        let oldest = now.minus(retention.dead_letters);
        for dead in self.dead.values_mut() {
            dead.retired |= dead.at < oldest;
        }
        let oldest = now.minus(retention.payloads.max(retention.attempts).max(retention.dead_letters));
        // What a resend brought there is not held any more.
        let mut held = self.handed.iter().filter(|id| !self.has_arrived(**id));
        if held.all(|id| self.accepted_at(id.message) >= oldest) {
            let waiting = &self.waiting;
            self.counters.retain(|(endpoint, order), counter| {
                let counts = |(id, wait): (&DeliveryId, &Wait)| {
                    id.endpoint == *endpoint && (order.is_none() || wait.order == *order)
                };
                counter.used_at >= oldest || waiting.iter().any(counts)
            });
        }
    }

    /// The messages of which something is still to be sent. A resend that arrived ends what was handed over.
    pub fn undelivered(&self) -> BTreeSet<MessageKey> {
        let handed = self.handed.iter().filter(|id| !self.has_arrived(**id));
        handed.chain(self.waiting.keys()).map(|id| id.message).collect()
    }

    pub fn forget(&mut self, gone: &BTreeSet<MessageKey>) {
        self.messages.retain(|key, _| !gone.contains(key));
        self.attempts.retain(|(_, attempt)| !gone.contains(&attempt.id.message));
        self.handed.retain(|id| !gone.contains(&id.message));
        self.waiting.retain(|id, _| !gone.contains(&id.message));
        self.dead.retain(|(_, message), _| !gone.contains(message));
    }
}

/// The part of a list that a page shows. `found` is in ascending order.
pub fn on_page<K: PartialOrd, T>(mut found: Vec<T>, key: impl Fn(&T) -> K, page: &Page<K>) -> Vec<T> {
    if page.order == Order::Descending {
        found.reverse();
    }
    let comes_before = |item: &T, cut: &K| match page.order {
        Order::Ascending => key(item) < *cut,
        Order::Descending => key(item) > *cut,
    };
    match &page.from {
        None => {}
        Some(Cut::Past(cut)) => found.retain(|item| !comes_before(item, cut) && key(item) != *cut),
        Some(Cut::Before(cut)) => {
            found.retain(|item| comes_before(item, cut));
            let surplus = found.len().saturating_sub(page.limit);
            found.drain(..surplus);
        }
    }
    found.truncate(page.limit);
    found
}

fn scheduled(endpoint: EndpointKey, message: MessageKey) -> DeliveryId {
    DeliveryId { endpoint, message, trigger: Trigger::Scheduled }
}

fn next_version(found: Option<Version>, expect: Expect) -> Result<Version, PutError> {
    match (found, expect) {
        (None, Expect::Absent) => Ok(1),
        (Some(_), Expect::Absent) => Err(PutError::Taken),
        (Some(found), Expect::Version(read)) if found == read => Ok(read + 1),
        (Some(_) | None, Expect::Version(_)) => Err(PutError::Changed),
    }
}

fn is_wanted(filter: &MessageFilter, content: &Content, at: Timestamp) -> bool {
    (filter.event_types.is_empty() || filter.event_types.contains(&content.event_type))
        && filter.channel.as_ref().is_none_or(|wanted| content.channels.contains(wanted))
        && filter.tag.as_ref().is_none_or(|wanted| content.tags.contains(wanted))
        && filter.after.is_none_or(|after| at >= after)
        && filter.before.is_none_or(|before| at < before)
}

fn is_tried(wait: &Wait) -> bool {
    wait.cycle > 0 || wait.progress.attempts > 0
}

fn kind(state: DeliveryState) -> StateKind {
    match state {
        DeliveryState::Pending { .. } => StateKind::Pending,
        DeliveryState::Sending { .. } => StateKind::Sending,
        DeliveryState::Delivered => StateKind::Delivered,
        DeliveryState::Dead { reason: DeathReason::Cancelled, .. } => StateKind::Cancelled,
        DeliveryState::Dead { .. } => StateKind::Dead,
    }
}

fn forget_payload(message: &mut Message) {
    message.payload_gone = true;
    (message.content.payload, message.content.received) = (Bytes::new(), None);
}
