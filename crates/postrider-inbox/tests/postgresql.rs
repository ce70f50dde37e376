//! What is PostgreSQL's own: a server that is gone without a word, and what a refusal costs it.

mod common;

use std::{sync::Arc, time::Duration};

use common::{proxy::Proxy, *};
use postrider_inbox::{
    Event, Failure, Inbox, Limits, Outcome, PostgresStore, Recorded, Settlement, Store, StoreError, Worker,
    WorkerSettings, deadpool_postgres::Pool,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::Notify;

const NEW: Recorded = Recorded::New { arrival: None };
/// Only what is not answered waits for it.
const SHORT: Duration = Duration::from_millis(200);
/// For what must be there at once, on a machine that is busy.
const SOON: Duration = Duration::from_secs(8);

/// Two stores on one pool: with the usual limit, and with a short one.
async fn behind_a_proxy() -> (Proxy, Pool, PostgresStore, PostgresStore) {
    let site = Site::fresh(Kind::Postgres).await;
    let (rest, database) = site.address.rsplit_once('/').unwrap();
    let (rest, port) = rest.rsplit_once(':').unwrap();
    let proxy = Proxy::start(port.parse().unwrap()).await;
    let pool = pool(&format!("{rest}:{}/{database}", proxy.port()));
    let usual = PostgresStore::new(pool.clone());
    let hasty = PostgresStore::new(pool.clone()).with_time_limit(SHORT);
    (proxy, pool, usual, hasty)
}

#[tokio::test]
async fn a_request_is_answered_503_while_the_server_says_nothing() {
    let (proxy, pool, usual, hasty) = behind_a_proxy().await;
    let [usual, hasty] = [usual, hasty].map(|store| Inbox::new(store, TestClock::new()));
    let [usual, hasty] = [usual, hasty].map(|inbox| inbox.door("shop", source()).unwrap());
    let (headers, body) = signed("msg_1", "{}", at(0));
    assert_eq!(usual.take(&headers, body).await, Outcome::Accepted { arrival: None });

    proxy.fall_silent();
    let (headers, body) = signed("msg_2", "{}", at(0));
    for connection in ["one that was there", "a new one"] {
        let outcome = tokio::time::timeout(SOON, hasty.take(&headers, body.clone())).await.expect(connection);
        assert_eq!(outcome.answer().status, 503, "{connection}");
    }
    assert_eq!(pool.status().size, 0, "none is kept to be lent again");

    proxy.speak_again();
    let outcome = tokio::time::timeout(SOON, usual.take(&headers, body)).await.unwrap();
    assert_eq!(outcome, Outcome::Accepted { arrival: None });
}

#[tokio::test]
async fn every_verb_has_a_time_limit() {
    let (proxy, pool, usual, hasty) = behind_a_proxy().await;
    assert_eq!(usual.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    let ticket = usual.claim(1, LEASE, at(0)).await.unwrap().remove(0).ticket;
    proxy.fall_silent();
    let verbs = async {
        tokio::join!(
            async { hasty.migrate().await.err() },
            async { hasty.record(&event("b"), Limits::default()).await.err() },
            async { hasty.claim(1, LEASE, at(0)).await.err() },
            async { hasty.settle(&ticket, &Settlement::Done, at(0)).await.err() },
            async { hasty.dead(None, 1).await.err() },
            async { hasty.replay(&key("a"), at(0)).await.err() },
            async { hasty.replay_dead(at(0), 1, at(0)).await.err() },
            async { hasty.clean(at(0), 1).await.err() },
            async { hasty.forget_dead(at(0), 1).await.err() },
            async { hasty.standing().await.err() },
        )
    };
    let told = tokio::time::timeout(SOON, verbs).await.expect("each ends by itself");
    let told: [Option<StoreError>; 10] = told.into();
    for (error, verb) in told.iter().zip([
        "migrate",
        "record",
        "claim",
        "settle",
        "dead",
        "replay",
        "replay_dead",
        "clean",
        "forget_dead",
        "standing",
    ]) {
        assert!(matches!(error, Some(StoreError::Unavailable(_))), "{verb}: {error:?}");
    }
    assert_eq!(pool.status().size, 0);
}

#[tokio::test]
async fn a_connection_whose_caller_went_away_in_the_middle_is_not_lent_again() {
    let (proxy, pool, usual, _) = behind_a_proxy().await;
    assert_eq!(usual.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    proxy.fall_silent();
    let lent = async {
        while pool.status().available > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        told = usual.standing() => panic!("{told:?}"),
        () = lent => {}
    }
    proxy.speak_again();
    let standing = tokio::time::timeout(SOON, usual.standing()).await.expect("by another connection").unwrap();
    assert_eq!(standing.queued, 1);
}

#[tokio::test]
async fn a_worker_stops_though_the_server_says_nothing_to_its_settlement() {
    let (proxy, pool, usual, _) = behind_a_proxy().await;
    assert_eq!(usual.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    let clock = TestClock::new();
    // Long enough for the claim, which is answered.
    let inbox = Inbox::new(PostgresStore::new(pool).with_time_limit(Duration::from_secs(1)), clock.clone());
    let worker = Worker::new(inbox, WorkerSettings::default(), ChaCha8Rng::seed_from_u64(0)).unwrap();
    let stop = Arc::new(Notify::new());
    let (proxy, told) = (Arc::new(proxy), Arc::clone(&stop));
    let handler = move |_: Event| {
        proxy.fall_silent();
        // With its lease over, it is tried once.
        clock.advance(LEASE);
        told.notify_one();
        async { Ok::<_, Failure>(()) }
    };
    tokio::time::timeout(SOON, worker.run(handler, stop.notified())).await.expect("it stops");
}

#[tokio::test]
async fn what_is_turned_away_is_not_written_first() {
    let site = Site::fresh(Kind::Postgres).await;
    let store = site.postgres();
    let limits = Limits { events_max: 1, ..Limits::default() };
    assert_eq!(store.record(&event("a"), limits).await.unwrap(), NEW);
    let client = postrider_testbed::connect(&site.address).await;
    let size = async || {
        let row = client.query_one("SELECT pg_total_relation_size('postrider_inbox_events')", &[]).await.unwrap();
        row.get::<_, i64>(0)
    };
    let before = size().await;
    // PostgreSQL writes what is rolled back later, and bytes that cannot be made fewer take their room.
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let body: Vec<u8> = std::iter::repeat_with(|| rng.next_u32() as u8).take(1 << 20).collect();
    for (id, expected) in [("b", Recorded::Full), ("a", Recorded::Duplicate)] {
        let event = Event { body: body.clone().into(), ..event(id) };
        assert_eq!(store.record(&event, limits).await.unwrap(), expected);
    }
    assert_eq!(size().await, before);
}
