//! Several nodes on one database.

use super::{proxy::Proxy, *};
use crate::conformance::fixtures::*;
use postrider_engine::policy::Ordering;
use std::{future::Future, sync::Arc};
use tokio::{sync::watch, task::JoinHandle};

/// A node with someone who takes what it is offered and gives back what is wanted elsewhere.
pub struct Node {
    pub store: Arc<PostgresStore>,
    pub heard: watch::Receiver<Vec<Committed>>,
    serving: JoinHandle<()>,
}

impl Node {
    pub async fn join(url: &DatabaseUrl, name: &str) -> Self {
        Self::join_with(url, PostgresOptions { name: name.to_owned(), ..PostgresOptions::default() }).await
    }

    async fn join_with(url: &DatabaseUrl, options: PostgresOptions) -> Self {
        let options = PostgresOptions { heartbeat: Duration::from_millis(50), ..options };
        let store = Arc::new(open(url, START, &options).await);
        let mut committed = store.committed();
        let (tell, heard) = watch::channel(Vec::new());
        let served = Arc::clone(&store);
        let serving = tokio::spawn(async move {
            while let Some(news) = committed.recv().await {
                for one in &news {
                    match one {
                        Committed::Offered { tenure, shards } => drop(served.own(*tenure, *shards)),
                        Committed::Wanted { shards } => drop(served.disown(served.tenure(), *shards).await),
                        _ => {}
                    }
                }
                tell.send_modify(|all: &mut Vec<Committed>| all.extend(news));
            }
        });
        Self { store, heard, serving }
    }

    pub fn owned(&self) -> Shards {
        self.store.writer.shared().owned()
    }

    pub async fn hears(&mut self, wanted: impl Fn(&Committed) -> bool) -> Committed {
        let heard = self.heard.wait_for(|all| all.iter().any(&wanted));
        let heard = tokio::time::timeout(DEADLINE, heard).await.expect("it is heard in time").expect("it goes on");
        heard.iter().find(|one| wanted(one)).expect("it was just found").clone()
    }

    /// As if its process had been killed.
    pub fn die(self) {
        self.serving.abort();
    }
}

/// Far longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(60);

pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

pub async fn share(nodes: &[&Node]) {
    eventually("the shards are shared", || async {
        let shares: Vec<usize> = nodes.iter().map(|node| node.owned().len()).collect();
        shares.iter().sum::<usize>() == 256 && shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1
    })
    .await;
}

/// An application whose lanes a node owns, with one endpoint.
pub async fn lane_of(node: &Node) -> (AppKey, EndpointKey) {
    loop {
        let app = add_application(&*node.store, None).await.key;
        if node.owned().has_lanes_of(app) {
            return (app, add_endpoint(&*node.store, app, None).await.key);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_what_there_is_and_take_over_from_those_that_leave_or_die() {
    let url = fresh_url().await;
    let one = Node::join(&url, "one").await;
    share(&[&one]).await;
    let two = Node::join(&url, "two").await;
    let three = Node::join(&url, "three").await;
    share(&[&one, &two, &three]).await;
    let apart = one.owned().without(two.owned()).without(three.owned());
    assert_eq!(apart, one.owned(), "no shard has two owners");
    two.store.close().await;
    share(&[&one, &three]).await;
    three.die();
    end_leases(&url).await;
    share(&[&one]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_declared_dead_writes_nothing_more_as_an_owner() {
    let url = fresh_url().await;
    let mut one = Node::join(&url, "one").await;
    share(&[&one]).await;
    let (app, endpoint) = lane_of(&one).await;
    let accept_at =
        async |node: &Node| accept(&*node.store, NewMessage { owed: vec![endpoint], ..message(app, START) }).await;
    let handed = accept_at(&one).await;
    let tenure = one.store.tenure();
    // Another program finds its lease over, and gives rows to what it held.
    let db = connect(&url).await;
    db.batch_execute("BEGIN").await.unwrap();
    assert_eq!(recover::bury_node(&db, tenure.0, START).await.unwrap(), 1);
    db.batch_execute("COMMIT").await.unwrap();

    let late = one.store.settle(tenure, Arc::new(vec![delivered(scheduled(endpoint, handed), at(1))])).await;
    assert!(matches!(late, Err(StoreError::Deposed)), "{late:?}");
    one.hears(|heard| matches!(heard, Committed::Deposed)).await;
    let state = state(&*one.store, scheduled(endpoint, handed)).await;
    assert_eq!(state, DeliveryState::Pending { due: Some(START) }, "its outcome was refused");

    share(&[&one]).await;
    assert!(one.store.tenure() > tenure, "it has joined again");
    let next = accept_at(&one).await;
    one.hears(|heard| matches!(heard, Committed::Message { letter, .. } if letter.message == next)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_key_is_that_of_acceptance_whatever_the_clocks_say() {
    let url = fresh_url().await;
    let (one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
    share(&[&one, &two]).await;
    let (app, endpoint) = lane_of(&one).await;
    let mut accepted = Vec::new();
    for round in 0..10 {
        // The second node's clock is a second behind.
        for (node, clock) in [(&one, at(round * 10)), (&two, at(round * 10 - 1_000))] {
            let mut new = NewMessage { owed: vec![endpoint], ..message(app, clock) };
            new.content.ordering_key = Some("a".to_owned());
            accepted.push(accept(&*node.store, new).await);
        }
    }
    assert!(accepted.is_sorted(), "{accepted:?}");
    let loaded = load_in(&*one.store, endpoint, Ordering::Keyed, at(10_000)).await;
    let numbers: Vec<u64> = loaded.deliveries.iter().map(|waiting| waiting.letter.sequences[0].1).collect();
    // The first one was handed over: nothing was there before it.
    assert_eq!(numbers, (2..=20).collect::<Vec<u64>>());
    assert_eq!(ids(&loaded), accepted[1..].iter().map(|one| scheduled(endpoint, *one)).collect::<Vec<_>>());
}

/// One node takes a row from the front of a run while another one adds one behind it: each must see what the other did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_a_run_can_always_be_loaded() {
    let url = fresh_url().await;
    let (one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
    share(&[&one, &two]).await;
    let (app, endpoint) = lane_of(&one).await;
    let keyed = |clock: i64| {
        let mut new = NewMessage { owed: vec![endpoint], ..message(app, at(clock)) };
        new.content.ordering_key = Some("a".to_owned());
        new
    };
    let order = Some(OrderKey::of("a"));
    let mut first = accept(&*two.store, keyed(0)).await;
    for round in 1..200 {
        let gone = Settlement { order, ..stored(delivered(scheduled(endpoint, first), at(round))) };
        let (next, ()) = tokio::join!(accept(&*two.store, keyed(round)), settle(&*one.store, vec![gone]));
        let loaded = load_in(&*one.store, endpoint, Ordering::Keyed, at(10_000)).await;
        assert_eq!(ids(&loaded), [scheduled(endpoint, next)], "round {round}");
        first = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_are_recorded_in_a_piece_that_another_node_made() {
    let url = fresh_url().await;
    let fine = |name: &str| PostgresOptions {
        name: name.to_owned(),
        piece_span: Duration::from_millis(1),
        ..PostgresOptions::default()
    };
    let (one, two) = (Node::join_with(&url, fine("one")).await, Node::join_with(&url, fine("two")).await);
    share(&[&one, &two]).await;
    let (app, endpoint) = lane_of(&one).await;
    accept(&*one.store, NewMessage { owed: vec![endpoint], ..message(app, START) }).await;
    let later = accept(&*two.store, NewMessage { owed: vec![endpoint], ..message(app, at(50)) }).await;
    settle(&*one.store, vec![delivered(scheduled(endpoint, later), at(51))]).await;
    assert_eq!(attempts_of(&*one.store, later).await.len(), 1);
    assert_eq!(state(&*two.store, scheduled(endpoint, later)).await, DeliveryState::Delivered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_sent_to_all_nodes_at_once_makes_one_message() {
    let url = fresh_url().await;
    let (one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
    share(&[&one, &two]).await;
    let (app, endpoint) = lane_of(&one).await;
    for round in 0..20 {
        let new = NewMessage {
            owed: vec![endpoint],
            idempotency: Some(chosen(round, 1)),
            ..message(app, at(i64::from(round)))
        };
        let send = |node: &Node| {
            let (store, new) = (Arc::clone(&node.store), new.clone());
            tokio::spawn(async move { store.accept(new).await.expect("accepted") })
        };
        let sent: Vec<_> = (0..6).map(|turn| send(if turn % 2 == 0 { &one } else { &two })).collect();
        let mut keys = Vec::new();
        let mut new = 0;
        for answer in sent {
            keys.push(match answer.await.unwrap() {
                Accepted::Now(key) => {
                    new += 1;
                    key
                }
                Accepted::Before(key) => key,
            });
        }
        keys.dedup();
        assert_eq!((keys.len(), new), (1, 1), "round {round}");
    }
    assert_eq!(all_messages(&*one.store, app).await.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_worked_out_from_outdated_settings_is_refused() {
    let url = fresh_url().await;
    let (mut one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
    let app = add_application(&*one.store, None).await.key;
    let known = two.store.generation(app).await.unwrap();
    let endpoint = add_endpoint(&*two.store, app, None).await.key;
    let stale = NewMessage { generation: known, ..message(app, START) };
    let refused = two.store.accept(stale.clone()).await;
    assert!(matches!(refused, Err(AcceptError::Outdated)), "{refused:?}");
    assert!(matches!(one.store.accept(stale).await, Err(AcceptError::Outdated)), "at any node");
    one.hears(|heard| matches!(heard, Committed::Settings { app: changed } if *changed == app)).await;
    let known = one.store.generation(app).await.unwrap();
    let fresh = NewMessage { generation: known, owed: vec![endpoint], ..message(app, START) };
    one.store.accept(fresh).await.expect("worked out anew");
    assert_eq!(all_messages(&*one.store, app).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_carried_out_once() {
    let direct = fresh_url().await;
    let database = direct.to_string();
    let (name, address) = database.split_once(" on ").expect("a name and an address");
    let proxy = Proxy::to(address.parse().expect("an address")).await;
    let url: DatabaseUrl = format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port).parse().unwrap();
    let mut one = Node::join(&url, "one").await;
    share(&[&one]).await;
    let (app, endpoint) = lane_of(&one).await;
    for round in 0..5 {
        proxy.lose_next_commit();
        let mut new = NewMessage { owed: vec![endpoint], ..message(app, at(round)) };
        new.content.ordering_key = Some("a".to_owned());
        let key = accept(&*one.store, new).await;
        eventually("a commit is lost", || async { proxy.has_lost_it() }).await;
        one.hears(|heard| matches!(heard, Committed::Message { letter, .. } if letter.message == key)).await;
        let id = scheduled(endpoint, key);
        proxy.lose_next_commit();
        settle(&*one.store, vec![delivered(id, at(round))]).await;
        assert_eq!(state(&*one.store, id).await, DeliveryState::Delivered);
    }
    assert_eq!(all_messages(&*one.store, app).await.len(), 5);
    let attempts = stats(&*one.store, endpoint).await;
    assert_eq!(attempts, Stats { success: 5, ..Stats::default() });
    let heard = one.heard.borrow().iter().filter(|one| matches!(one, Committed::Message { .. })).count();
    assert_eq!(heard, 5, "each is handed over once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_may_start_on_an_empty_database_at_once() {
    let url = fresh_url().await;
    let migrations = (0..5).map(|_| {
        let url = url.clone();
        tokio::spawn(async move { migrate(&url, &PostgresOptions::default()).await.expect("migrated") })
    });
    let mut changed = 0;
    for migration in migrations.collect::<Vec<_>>() {
        let Migrated { from, to } = migration.await.unwrap();
        assert_eq!(to, schema::VERSION);
        changed += u32::from(from < to);
    }
    assert_eq!(changed, 1);
}

#[tokio::test]
async fn what_the_database_says_when_it_ends_a_connection_is_not_held_against_what_was_written() {
    let db = connect(&fresh_url().await).await;
    // A shutdown, a crash, a start, a standby, and a client that was silent for too long.
    for code in ["57P01", "57P02", "57P03", "25006", "25P03", "08006"] {
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$");
        let error = Error::from(db.batch_execute(&raise).await.expect_err("it was raised"));
        assert!(error.is_lost(), "{code}");
        assert!(matches!(StoreError::from(error), StoreError::Unreachable(_)), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_being_declared_dead_cannot_renew_its_lease() {
    let url = fresh_url().await;
    let store = open(&url, START, &PostgresOptions { heartbeat: DEADLINE, ..PostgresOptions::default() }).await;
    let node = store.tenure().0;
    let (judge, judged, watch) = (connect(&url).await, connect(&url).await, connect(&url).await);
    judge.batch_execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0").await.unwrap();
    recover::bury_node(&judge, node, START).await.unwrap();
    let beating = tokio::spawn(async move {
        leases::beat(&judged, node, true, &PostgresOptions::default()).await.map(|view| view.is_some())
    });
    eventually("the lease is asked for", || async {
        let waiting =
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO lease%'
                       AND datname = current_database()";
        !rows(&watch, waiting, &[]).await.unwrap().is_empty()
    })
    .await;
    judge.batch_execute("COMMIT").await.unwrap();
    assert!(!beating.await.unwrap().expect("an answer"), "it has no lease any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_was_away_from_the_database_himself_declares_nobody_dead_at_once() {
    let url = fresh_url().await;
    let options =
        PostgresOptions { heartbeat: Duration::from_millis(50), lease: DEADLINE, ..PostgresOptions::default() };
    let (one, two) = (open(&url, START, &options).await, open(&url, START, &options).await);
    let (node, other) = (one.tenure().0, two.tenure().0);
    drop(two);
    // As after a time without the database that was longer than a lease.
    let away = "WITH ended AS (UPDATE lease SET until = now() - interval '1 minute')
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let db = connect(&url).await;
    rows(&db, away, &[]).await.unwrap();
    // Between one renewal and the next it has looked at the others.
    let mut renewals = std::collections::BTreeSet::new();
    while renewals.len() < 3 {
        let found =
            rows(&db, "SELECT until::text FROM lease WHERE node = $1 AND until > now()", &[&node]).await.unwrap();
        renewals.extend(found.iter().map(|row| row.get::<_, String>(0)));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(row(&db, "SELECT 1 FROM node WHERE id = $1", &[&other]).await.unwrap().is_some());
}
