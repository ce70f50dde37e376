//! Several nodes on one simulated database: who owns what, who takes over, and what a death leaves.

use postrider::clock::Clock;
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp, policy::Ordering};
use postrider_sim::store::{Database, Entry, Grain, Sharing, SimStore, Weather, What};
use postrider_store::{
    Accepted, Committed, DeliveryState, NewMessage, Shards, Store, StoreError, Tenure,
    conformance::fixtures::{START, add_application, add_endpoint, delivered, message, scheduled},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{sleep, timeout},
};

const LEASE: Duration = Duration::from_secs(5);
const BEAT: Duration = Duration::from_secs(1);

/// A node with somebody who serves what it is offered, at once.
struct Served {
    store: Arc<SimStore>,
    committed: UnboundedReceiver<Vec<Committed>>,
    offered: Shards,
    wanted: Shards,
    deposed: bool,
    messages: Vec<MessageKey>,
    waiting: Vec<EndpointKey>,
}

impl Served {
    fn open(database: &Database, node: usize) -> Self {
        let store = database.open(node, database.clock().now()).expect("it opens");
        let committed = store.committed();
        let (messages, waiting) = (Vec::new(), Vec::new());
        Self { store, committed, offered: Shards::NONE, wanted: Shards::NONE, deposed: false, messages, waiting }
    }

    async fn serve_for(&mut self, time: Duration) {
        let _ = timeout(time, async {
            while let Some(news) = self.committed.recv().await {
                for news in news {
                    self.hear(news).await;
                }
            }
        })
        .await;
    }

    async fn hear(&mut self, news: Committed) {
        match news {
            Committed::Offered { tenure, shards } => {
                self.offered = self.offered.with(shards);
                self.wanted = self.wanted.without(shards);
                let _ = self.store.own(tenure, shards);
            }
            Committed::Wanted { shards } => {
                self.wanted = self.wanted.with(shards);
                self.offered = self.offered.without(shards);
                let _ = self.store.disown(self.store.tenure(), shards).await;
            }
            Committed::Deposed => {
                self.offered = Shards::NONE;
                self.deposed = true;
            }
            Committed::Message { letter, .. } => self.messages.push(letter.message),
            Committed::Waiting { endpoint, .. } => self.waiting.push(endpoint),
            Committed::Settings { .. }
            | Committed::EventTypes
            | Committed::Health { .. }
            | Committed::Cancelled { .. }
            | Committed::Work => {}
        }
    }

    /// An application whose lanes it serves, with an endpoint.
    async fn lane(&self) -> (AppKey, EndpointKey) {
        loop {
            let app = add_application(&*self.store, None).await.key;
            if self.store.owned().has_lanes_of(app) {
                return (app, add_endpoint(&*self.store, app, None).await.key);
            }
        }
    }
}

fn database() -> Database {
    Database::new(7, Sharing::Many { lease: LEASE, beat: BEAT }, Grain::Usual, Clock::beginning_at(START))
}

async fn two_nodes(database: &Database) -> (Served, Served) {
    let (mut one, mut other) = (Served::open(database, 0), Served::open(database, 1));
    settle_down(&mut one, &mut other, BEAT * 5).await;
    assert_eq!((one.store.owned().len(), other.store.owned().len()), (128, 128), "each has its share");
    (one, other)
}

async fn settle_down(one: &mut Served, other: &mut Served, time: Duration) {
    tokio::join!(one.serve_for(time), other.serve_for(time));
}

async fn accept_at(store: &dyn Store, app: AppKey, endpoint: EndpointKey, at: Timestamp) -> MessageKey {
    match store.accept(NewMessage { owed: vec![endpoint], ..message(app, at) }).await.expect("it is accepted") {
        Accepted::Now(key) => key,
        Accepted::Before(_) => panic!("nothing was repeated"),
    }
}

fn state(database: &Database, message: MessageKey, endpoint: EndpointKey) -> DeliveryState {
    let mut found = None;
    database.look(|tables, _| {
        tables.each_delivery(|of, to, state| {
            if (of, to) == (message, endpoint) {
                found = Some(state);
            }
        });
    });
    found.expect("it is owed")
}

#[tokio::test(start_paused = true)]
async fn the_lanes_of_a_killed_node_are_taken_over_when_its_lease_ends() {
    let database = database();
    let (mut one, mut other) = two_nodes(&database).await;
    let (app, endpoint) = one.lane().await;
    let held = accept_at(&*one.store, app, endpoint, database.clock().now()).await;
    assert_eq!(state(&database, held, endpoint), DeliveryState::Pending { due: None }, "it is in memory");
    let tenure = one.store.tenure();
    one.store.kill();
    assert!(!one.store.may_send(tenure));
    other.serve_for(LEASE - BEAT * 2).await;
    assert_eq!(other.store.owned().len(), 128, "not before its lease is over");
    other.serve_for(BEAT * 5).await;
    assert_eq!(other.store.owned(), Shards::ALL);
    assert!(matches!(state(&database, held, endpoint), DeliveryState::Pending { due: Some(_) }), "it has a row");
    let loaded = other.store.load(endpoint, Ordering::None, database.clock().now(), 10).await.unwrap();
    assert_eq!(loaded.deliveries.len(), 1);
    one.serve_for(Duration::ZERO).await;
    let log = database.drain_log();
    let is_burial =
        |entry: &Entry| matches!(entry.what, What::Buried { tenure: of, deliveries: 1, .. } if of == tenure);
    assert_eq!(log.iter().filter(|entry| is_burial(entry)).count(), 1, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn what_a_stalled_node_brings_too_late_is_refused() {
    let database = database();
    let (mut one, mut other) = two_nodes(&database).await;
    let (app, endpoint) = one.lane().await;
    let sent = accept_at(&*one.store, app, endpoint, database.clock().now()).await;
    let tenure = one.store.tenure();
    assert!(one.store.may_send(tenure));
    database.weather(0).stalled = true;
    other.serve_for(LEASE * 2).await;
    assert_eq!(other.store.owned(), Shards::ALL, "it was declared dead");
    database.weather(0).stalled = false;
    assert!(!one.store.may_send(tenure), "its lease is over, and it knows");
    let outcome = Arc::new(vec![delivered(scheduled(endpoint, sent), database.clock().now())]);
    let settled = one.store.settle(tenure, Arc::clone(&outcome)).await;
    assert!(matches!(settled, Err(StoreError::Deposed)), "{settled:?}");
    assert!(matches!(state(&database, sent, endpoint), DeliveryState::Pending { due: Some(_) }));
    settle_down(&mut one, &mut other, BEAT * 5).await;
    assert!(one.deposed);
    assert_ne!(one.store.tenure(), tenure);
    assert_ne!(one.store.tenure(), Tenure::default());
    assert_eq!((one.store.owned().len(), other.store.owned().len()), (128, 128), "it is one of them again");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_retires_hands_over_without_a_gap() {
    let database = database();
    let (mut one, mut other) = two_nodes(&database).await;
    let (app, endpoint) = one.lane().await;
    one.store.retire().await.unwrap();
    settle_down(&mut one, &mut other, BEAT * 3).await;
    assert_eq!((one.store.owned(), other.store.owned()), (Shards::NONE, Shards::ALL));
    // It accepts still, for whoever serves the lane.
    let passed_on = accept_at(&*one.store, app, endpoint, database.clock().now()).await;
    settle_down(&mut one, &mut other, BEAT).await;
    assert_eq!(other.messages, [passed_on]);
    assert_eq!(one.messages, []);
    one.store.close().await;
    other.serve_for(BEAT).await;
    assert_eq!(database.look(|_, cluster| cluster.nodes.len()), 1, "it is gone at once");
}

#[tokio::test(start_paused = true)]
async fn news_that_were_not_heard_are_read_at_the_next_beat() {
    let database = database();
    let (mut one, mut other) = two_nodes(&database).await;
    let (app, endpoint) = one.lane().await;
    database.weather(0).news_lost = 10_000;
    sleep(Duration::from_millis(10)).await;
    let passed_on = accept_at(&*other.store, app, endpoint, database.clock().now()).await;
    settle_down(&mut one, &mut other, Duration::ZERO).await;
    assert_eq!(one.messages, []);
    settle_down(&mut one, &mut other, BEAT).await;
    assert_eq!(one.messages, [passed_on]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_found_out_about_and_nothing_is_done_twice() {
    let database = database();
    let (mut one, _other) = two_nodes(&database).await;
    let (app, endpoint) = one.lane().await;
    database.weather(0).answer_lost = 10_000;
    let sent = accept_at(&*one.store, app, endpoint, database.clock().now()).await;
    let outcome = Arc::new(vec![delivered(scheduled(endpoint, sent), database.clock().now())]);
    one.store.settle(one.store.tenure(), outcome).await.unwrap();
    assert_eq!(state(&database, sent, endpoint), DeliveryState::Delivered);
    assert_eq!(database.look(|tables, _| tables.messages[&sent].attempts.len()), 1);
    one.serve_for(Duration::ZERO).await;
    assert_eq!(one.messages, [sent]);
}

#[tokio::test(start_paused = true)]
async fn a_death_between_commit_and_answer_leaves_what_was_committed() {
    for sharing in [Sharing::Alone, Sharing::Many { lease: LEASE, beat: BEAT }] {
        let slow = Duration::from_millis(100);
        for (waits, is_stored) in [(0, false), (99, true)] {
            let database = Database::new(7, sharing, Grain::Usual, Clock::beginning_at(START));
            let node = Served::open(&database, 0);
            node.store.own(node.store.tenure(), Shards::ALL).unwrap();
            let (app, endpoint) = node.lane().await;
            // The second half of it is the way back, in one of a hundred draws at most not so.
            database.set_weather(0, Weather { write: (slow, slow), ..Weather::default() });
            let store = Arc::clone(&node.store);
            let at = database.clock().now();
            let asked = tokio::spawn(async move { accept_at(&*store, app, endpoint, at).await });
            sleep(Duration::from_millis(waits)).await;
            node.store.kill();
            sleep(LEASE * 2).await;
            assert!(!asked.is_finished(), "nobody answers for the dead");
            assert_eq!(database.look(|tables, _| tables.messages.len()), usize::from(is_stored), "{sharing:?}");
            let node = Served::open(&database, 0);
            node.store.own(node.store.tenure(), Shards::ALL).unwrap();
            let lanes = node.store.lanes(Shards::ALL).await.unwrap();
            assert_eq!(lanes.len(), usize::from(is_stored), "{sharing:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_gets_through_while_the_way_is_cut_and_all_goes_on_after() {
    let database = database();
    let (mut one, mut other) = two_nodes(&database).await;
    let (app, endpoint) = one.lane().await;
    database.weather(0).cut = true;
    let refused = one.store.load(endpoint, Ordering::None, START, 1).await;
    assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
    database.weather(0).cut = false;
    settle_down(&mut one, &mut other, LEASE * 3).await;
    accept_at(&*one.store, app, endpoint, database.clock().now()).await;
    let owned = [&one, &other].map(|node| node.store.owned());
    assert_eq!((owned[0].with(owned[1]), owned[0].and(owned[1])), (Shards::ALL, Shards::NONE));
}

#[tokio::test(start_paused = true)]
async fn a_database_of_ones_own_has_one_process() {
    let database = Database::new(7, Sharing::Alone, Grain::Usual, Clock::beginning_at(START));
    let first = database.open(0, START).unwrap();
    assert!(database.open(0, START).is_err());
    first.kill();
    database.open(0, START).expect("it is free again");
}
