//! What is SQLite's own: who waits while somebody else writes to the file.

mod common;

use common::*;
use futures_util::FutureExt;
use postrider_inbox::{Inbox, Limits, Recorded, Store, StoreError, rusqlite::Connection};
use tokio::task::JoinSet;

const NEW: Recorded = Recorded::New { arrival: None };

/// Nobody else writes until it is dropped.
fn lock(site: &Site) -> Connection {
    let other = Connection::open(&site.address).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[tokio::test]
async fn no_more_than_a_bounded_number_waits_for_the_file() {
    let site = Site::fresh(Kind::Sqlite).await;
    let inbox = Inbox::new(site.sqlite(), TestClock::new());
    let other = lock(&site);
    let mut tasks = JoinSet::new();
    for number in 0..1_000 {
        let inbox = inbox.clone();
        tasks.spawn(async move { inbox.store().record(&event(&number.to_string()), Limits::default()).await });
    }
    // 512 wait, and the thread that writes may have one in hand.
    for _ in 0..487 {
        let refused = tasks.join_next().await.unwrap().unwrap();
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    // At most one more finds room, if the thread has taken its first one only now.
    let door = inbox.door("shop", source()).unwrap();
    let answers = ["msg_1", "msg_2", "msg_3"].map(|id| {
        let (headers, body) = signed(id, "{}", at(0));
        door.take(&headers, body).now_or_never().map(|outcome| outcome.answer().status.as_u16())
    });
    assert!(answers.iter().filter(|answer| **answer == Some(503)).count() >= 2, "{answers:?}");

    drop(other);
    let told = tasks.join_all().await;
    let taken = told.into_iter().filter(|told| matches!(told, Ok(NEW))).count();
    assert!((512..=513).contains(&taken), "{taken} were taken in");
    assert_eq!(inbox.standing().await.unwrap().queued, taken as u64);
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_written() {
    let site = Site::fresh(Kind::Sqlite).await;
    let store = site.sqlite();
    let other = lock(&site);
    for id in ["gone at once", "gone, too"] {
        assert!(store.record(&event(id), Limits::default()).now_or_never().is_none(), "{id}");
    }
    drop(other);
    assert_eq!(store.record(&event("still there"), Limits::default()).await.unwrap(), NEW);
    assert_eq!(store.standing().await.unwrap().queued, 1);
}
