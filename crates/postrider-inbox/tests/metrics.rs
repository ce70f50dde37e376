//! What is counted of what happens.

mod common;

use std::time::Duration;

use common::*;
use metrics_util::debugging::DebuggingRecorder;
use postrider_inbox::{
    Event, Failure, Inbox, InboxSettings, Limits, MemoryStore, Retry, Worker, WorkerSettings, rusqlite, sqlite,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[tokio::test(flavor = "current_thread")]
async fn everything_that_happens_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // Tasks of the worker run on this thread, too.
    let _guard = metrics::set_default_local_recorder(&recorder);
    let clock = TestClock::new();
    let settings = InboxSettings { limits: Limits { events_max: 4, ..Limits::default() }, ..InboxSettings::default() };
    let inbox = Inbox::with_settings(MemoryStore::new(), clock.clone(), settings);
    let door = inbox.door("shop", source()).unwrap().with_body_max(10);
    for (id, body, number) in [
        ("good", "{}", "1"),
        ("good", "{}", "1"),
        ("bad", "{}", "2"),
        ("awry", "{}", "5"),
        ("late", "{}", "3"),
        ("over", "{}", "6"),
        ("long", "more than ten", "6"),
    ] {
        let (mut headers, body) = signed(id, body, at(0));
        headers.insert("webhook-sequence", number.parse().unwrap());
        let _ = door.take(&headers, body).await;
    }
    let (headers, _) = signed("forged", "{}", at(0));
    let _ = door.take(&headers, "[]".into()).await;
    let _ = door.take(&http::HeaderMap::new(), "[]".into()).await;

    let retry = Retry { attempts_max: 2, ..Retry::default() };
    let worker_settings = WorkerSettings { retry, ..WorkerSettings::default() };
    let worker = Worker::new(inbox.clone(), worker_settings, ChaCha8Rng::seed_from_u64(0)).unwrap();
    let handle = async |event: Event| match event.key.id.as_str() {
        "bad" => Err(Failure::never("bad")),
        "awry" => Err(Failure::again("awry")),
        _ => Ok(()),
    };
    worker.turn(handle).await.unwrap();
    clock.advance(Duration::from_secs(60));
    inbox.standing().await.unwrap();

    let counted = counted(&snapshotter);
    let lag = counted["lag_seconds"];
    assert!((55.0..60.0).contains(&lag), "due again within five seconds, a minute ago: {lag}");
    let expected = [
        ("accepted_total source=shop", 4.0),
        ("dead", 1.0),
        ("dead_total source=shop", 1.0),
        ("duplicates_total source=shop", 1.0),
        ("failed_total source=shop", 2.0),
        ("gaps_total source=shop", 1.0),
        ("lag_seconds", lag),
        ("out_of_order_total source=shop", 1.0),
        ("processed_total source=shop", 2.0),
        ("queued", 1.0),
        ("queued_bytes", 30.0),
        ("refused_total source=shop reason=full", 1.0),
        ("refused_total source=shop reason=missing-header", 1.0),
        ("refused_total source=shop reason=no-match", 1.0),
        ("refused_total source=shop reason=too-large", 1.0),
        ("skipped_total source=shop", 2.0),
    ];
    assert_eq!(counted, expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
}

#[test]
fn effects_in_a_transaction_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut shop = rusqlite::Connection::open_in_memory().unwrap();
    sqlite::migrate(&shop).unwrap();
    for _ in 0..3 {
        let mut tx = shop.transaction().unwrap();
        sqlite::process(&mut tx, &key("a"), at(0), |_| Ok::<_, rusqlite::Error>(())).unwrap();
        tx.commit().unwrap();
    }
    let expected = [("effects_total source=shop", 1.0), ("effects_seen_total source=shop", 2.0)];
    assert_eq!(counted(&snapshotter), expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
}
