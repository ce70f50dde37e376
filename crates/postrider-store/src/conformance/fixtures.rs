//! Small things that every behaviour needs: times, records, and shorthands for the commonest steps.

use super::{Grain, Harness};
use crate::*;
use bytes::Bytes;
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    policy::{Class, DeathReason, Delay, Next, Ordering, Progress, Rule},
};
use std::{sync::Arc, time::Duration};

/// When the tests begin. The hour does not matter; that it is far from zero does.
pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub const HOUR: i64 = 3_600_000;
pub const DAY: i64 = 24 * HOUR;

/// So many milliseconds after the start.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START.as_millis() + millis)
}

/// A store with one application and some endpoints.
pub struct Stage<H> {
    pub harness: H,
    pub app: AppKey,
    pub endpoints: Vec<EndpointKey>,
}

impl<H: Harness> Stage<H> {
    pub async fn set(endpoints: usize) -> Self {
        Self::set_with(Grain::Usual, endpoints).await
    }

    pub async fn set_with(grain: Grain, endpoints: usize) -> Self {
        let harness = H::fresh(grain).await;
        let app = add_application(harness.store(), None).await.key;
        let mut keys = Vec::new();
        for _ in 0..endpoints {
            keys.push(add_endpoint(harness.store(), app, None).await.key);
        }
        Self { harness, app, endpoints: keys }
    }

    pub fn store(&self) -> &dyn Store {
        self.harness.store()
    }

    pub async fn reopen(self, now: Timestamp) -> Self {
        Self { harness: self.harness.reopen(now).await, ..self }
    }

    pub async fn crash(self, now: Timestamp) -> Self {
        Self { harness: self.harness.crash(now).await, ..self }
    }

    /// A message owed to all endpoints.
    pub fn message(&self, at: Timestamp) -> NewMessage {
        NewMessage { owed: self.endpoints.clone(), ..message(self.app, at) }
    }

    pub async fn accept(&self, at: Timestamp) -> MessageKey {
        accept(self.store(), self.message(at)).await
    }

    pub async fn accept_many(&self, count: usize, at: Timestamp) -> Vec<MessageKey> {
        let mut keys = Vec::new();
        for _ in 0..count {
            keys.push(self.accept(at).await);
        }
        keys
    }

    /// The delivery of a message to the first endpoint.
    pub fn first(&self, message: MessageKey) -> DeliveryId {
        scheduled(self.endpoints[0], message)
    }

    pub async fn settle(&self, settlement: Settlement) {
        settle(self.store(), vec![settlement]).await;
    }

    pub async fn state(&self, id: DeliveryId) -> DeliveryState {
        state(self.store(), id).await
    }
}

pub fn application(key: AppKey, uid: Option<&str>) -> Application {
    Application {
        key,
        version: 1,
        uid: uid.map(str::to_owned),
        name: "Nörd & Söhne".to_owned(),
        rate_limit: Some(7),
        rules: Some(r#"{"in_flight_max":3}"#.to_owned()),
        source: Some(vec![0, 1, 255]),
        pollers: Some("[{}]".to_owned()),
        metadata: [("tier".to_owned(), "gold".to_owned())].into(),
        created_at: START,
        updated_at: START,
    }
}

pub fn endpoint(key: EndpointKey, app: AppKey, uid: Option<&str>) -> Endpoint {
    Endpoint {
        key,
        app,
        version: 1,
        uid: uid.map(str::to_owned),
        url: "https://example.com/hook?a=1".to_owned(),
        description: "a \"quoted\" description".to_owned(),
        disabled: None,
        event_types: None,
        channels: None,
        metadata: Metadata::new(),
        rate_limit: None,
        rules: Some(r#"{"preset":"stripe"}"#.to_owned()),
        sealed: vec![0, 1, 2, 255],
        created_at: START,
        updated_at: START,
    }
}

pub fn event_type(name: &str) -> EventType {
    EventType {
        name: name.to_owned(),
        version: 1,
        description: "what happened".to_owned(),
        archived: false,
        deprecated: false,
        feature_flags: None,
        group_name: None,
        schemas: None,
        rules: Some(r#"{"jitter":"none"}"#.to_owned()),
        created_at: START,
        updated_at: START,
    }
}

pub async fn add_application(store: &dyn Store, uid: Option<&str>) -> Application {
    let application = application(AppKey::new(store.mint(START).await.unwrap()), uid);
    store.put_application(application.clone(), Expect::Absent, None).await.expect("a new application is put");
    application
}

pub async fn add_endpoint(store: &dyn Store, app: AppKey, uid: Option<&str>) -> Endpoint {
    let endpoint = endpoint(EndpointKey::new(store.mint(START).await.unwrap()), app, uid);
    store.put_endpoint(endpoint.clone(), Expect::Absent, None).await.expect("a new endpoint is put");
    endpoint
}

pub fn message(app: AppKey, at: Timestamp) -> NewMessage {
    NewMessage {
        app,
        at,
        content: content(b"{}"),
        payload_expires_at: None,
        generation: None,
        owed: Vec::new(),
        fifo: Vec::new(),
        idempotency: None,
        trace: None,
    }
}

/// The same, not to be sent before `deliver_at`.
pub fn later(message: NewMessage, deliver_at: Option<Timestamp>) -> NewMessage {
    NewMessage { content: Content { deliver_at, ..message.content }, ..message }
}

pub fn content(payload: &'static [u8]) -> Content {
    Content {
        event_type: "invoice.paid".to_owned(),
        event_id: None,
        channels: Vec::new(),
        tags: Vec::new(),
        content_type: None,
        ordering_key: None,
        deliver_at: None,
        received: None,
        payload: Bytes::from_static(payload),
    }
}

pub async fn accept(store: &dyn Store, message: NewMessage) -> MessageKey {
    match store.accept(message).await.expect("a message is accepted") {
        Accepted::Now(key) => key,
        Accepted::Before(key) => panic!("taken for a repetition of {key:?}"),
    }
}

pub fn chosen(key: u8, request: u8) -> Idempotency {
    Idempotency { key: [key; 16], request: [request; 16], chosen: true }
}

pub fn derived(key: u8, request: u8) -> Idempotency {
    Idempotency { chosen: false, ..chosen(key, request) }
}

pub fn remember(idempotency: Idempotency, status: u16, body: &'static [u8]) -> Remember {
    Remember { idempotency, answer: Answer { status, body: Bytes::from_static(body) } }
}

pub fn scheduled(endpoint: EndpointKey, message: MessageKey) -> DeliveryId {
    DeliveryId { endpoint, message, trigger: Trigger::Scheduled }
}

pub fn manual(endpoint: EndpointKey, message: MessageKey) -> DeliveryId {
    DeliveryId { endpoint, message, trigger: Trigger::Manual }
}

/// It came by hand-off, was tried once and arrived.
pub fn delivered(id: DeliveryId, at: Timestamp) -> Settlement {
    Settlement {
        id,
        handed: true,
        cycle: 0,
        progress: Progress { attempts: 1, give_up_at: Some(give_up_at(at)), ..Progress::default() },
        at,
        attempt: Some(record(at, Some(200))),
        next: Next::Delivered,
        order: None,
        health: None,
        disable: None,
    }
}

/// Of a delivery that is first tried then.
pub fn give_up_at(first_attempt_at: Timestamp) -> Timestamp {
    first_attempt_at.plus(Duration::from_hours(96))
}

/// It came by hand-off and failed at its first try.
pub fn failed(id: DeliveryId, at: Timestamp, due: Timestamp) -> Settlement {
    let delay = Delay {
        backoff: Duration::from_secs(5),
        jitter: Duration::from_millis(250),
        retry_after: Some(Duration::from_secs(9)),
        capped: true,
    };
    Settlement { attempt: Some(record(at, Some(503))), next: Next::Retry { due, delay }, ..delivered(id, at) }
}

/// It came by hand-off and was refused for good.
pub fn refused(id: DeliveryId, at: Timestamp) -> Settlement {
    let next = Next::Dead(DeathReason::Permanent);
    Settlement { attempt: Some(record(at, Some(400))), next, ..delivered(id, at) }
}

/// The same, of a delivery that came from the store.
pub fn stored(settlement: Settlement) -> Settlement {
    Settlement { handed: false, ..settlement }
}

pub fn record(started_at: Timestamp, status: Option<u16>) -> AttemptRecord {
    let (class, rule) = match status {
        Some(200..300) => (Class::Delivered, Rule::Success),
        Some(500..) => (Class::Transient, Rule::ServerError),
        Some(_) => (Class::Permanent, Rule::ClientError),
        None => (Class::Transient, Rule::Timeout),
    };
    AttemptRecord {
        started_at,
        duration: Duration::from_millis(12),
        url: "https://example.com/hook".into(),
        status,
        response: Bytes::from_static(b"\x00answer\xff"),
        class,
        rule,
        held: None,
        headers: Bytes::from_static(b"\x01a: b\xfe"),
    }
}

pub async fn settle(store: &dyn Store, settlements: Vec<Settlement>) {
    store.settle(store.tenure(), Arc::new(settlements)).await.expect("settlements are written");
}

pub async fn load(store: &dyn Store, endpoint: EndpointKey, now: Timestamp) -> Vec<DeliveryId> {
    ids(&load_in(store, endpoint, Ordering::Keyed, now).await)
}

pub async fn load_in(store: &dyn Store, endpoint: EndpointKey, ordering: Ordering, now: Timestamp) -> Loaded {
    store.load(endpoint, ordering, now, 1_000).await.expect("a lane is loaded")
}

pub fn ids(loaded: &Loaded) -> Vec<DeliveryId> {
    loaded.deliveries.iter().map(|delivery| delivery.id).collect()
}

/// Deliveries that no order binds.
pub fn unordered(deliveries: Vec<DeliveryId>) -> Vec<(DeliveryId, Option<OrderKey>)> {
    deliveries.into_iter().map(|id| (id, None)).collect()
}

/// Everything that waits in any lane, whenever it is due, in order.
pub async fn all_waiting(store: &dyn Store) -> Vec<DeliveryId> {
    let mut found = Vec::new();
    for lane in store.lanes(Shards::ALL).await.expect("lanes are found") {
        found.extend(ids(&load_in(store, lane.endpoint, Ordering::None, Timestamp::from_millis(i64::MAX)).await));
    }
    found.sort_unstable();
    found
}

pub async fn state(store: &dyn Store, id: DeliveryId) -> DeliveryState {
    let deliveries = store.deliveries(id.message).await.expect("deliveries are read");
    let found = deliveries.into_iter().find(|(endpoint, _)| *endpoint == id.endpoint);
    found.expect("the message is owed to the endpoint").1
}

pub async fn stats(store: &dyn Store, endpoint: EndpointKey) -> Stats {
    let ever = (Timestamp::from_millis(0), at(1_000 * DAY));
    store.stats(endpoint, ever.0, ever.1).await.expect("statistics are read")
}

pub fn whole<K>() -> Page<K> {
    Page { from: None, order: Order::Ascending, limit: 1_000 }
}

pub async fn all_messages(store: &dyn Store, app: AppKey) -> Vec<MessageKey> {
    let messages = store.messages(app, MessageFilter::default(), whole()).await.expect("messages are listed");
    messages.iter().map(|message| message.key).collect()
}

pub async fn attempts_of(store: &dyn Store, message: MessageKey) -> Vec<Attempt> {
    let of = AttemptsOf::Message(message);
    store.attempts(of, AttemptFilter::default(), whole()).await.expect("attempts are listed")
}

/// Far more steps than anything here takes: work that does not end is to fail, not to hang.
pub const STEPS_MAX: usize = 1_000;

/// Tidies until there is nothing left to do.
pub async fn tidy_up(store: &dyn Store, now: Timestamp, retention: Retention) {
    for _ in 0..STEPS_MAX {
        if !store.tidy(now, retention).await.expect("tidying works") {
            return;
        }
    }
    panic!("tidying does not end");
}

pub async fn bury_all(store: &dyn Store, now: Timestamp) {
    for _ in 0..STEPS_MAX {
        if !store.bury(now).await.expect("burying works") {
            return;
        }
    }
    panic!("burying does not end");
}

/// Advances a task until it is finished.
pub async fn finish_task(store: &dyn Store, task: TaskKey, now: Timestamp) -> Task {
    for _ in 0..STEPS_MAX {
        let stands = store.advance_task(task, now).await.expect("a task advances").expect("it exists");
        if stands.status == TaskStatus::Finished {
            return stands;
        }
    }
    panic!("the task does not end");
}

/// Checks a paged list against all of it: forwards and back, both orders, several sizes of page.
pub async fn check_paging<K, T, F>(all_ascending: &[K], fetch: F, key: impl Fn(&T) -> K)
where
    K: Clone + PartialEq + std::fmt::Debug,
    F: AsyncFn(Page<K>) -> Vec<T>,
{
    for order in [Order::Ascending, Order::Descending] {
        let mut all = all_ascending.to_vec();
        if order == Order::Descending {
            all.reverse();
        }
        for limit in [1, 2, 3, all.len() + 1] {
            let page = |from| Page { from, order, limit };
            let first: Vec<K> = fetch(page(None)).await.iter().map(&key).collect();
            assert_eq!(first, all[..limit.min(all.len())], "the first {limit}, {order:?}");
            for (index, cut) in all.iter().enumerate() {
                let past: Vec<K> = fetch(page(Some(Cut::Past(cut.clone())))).await.iter().map(&key).collect();
                let rest = &all[index + 1..];
                assert_eq!(past, rest[..limit.min(rest.len())], "{limit} past {cut:?}, {order:?}");
                let before: Vec<K> = fetch(page(Some(Cut::Before(cut.clone())))).await.iter().map(&key).collect();
                assert_eq!(before, all[index.saturating_sub(limit)..index], "{limit} before {cut:?}, {order:?}");
            }
        }
    }
}
