//! Effects in the receiver's own transaction happen once: on files and on a real PostgreSQL.

mod common;

use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

use common::*;
use postrider_inbox::{
    Clock, Inbox, InboxSettings, Limits, PostgresStore, Processed, Retention, Settlement, SqliteStore, Store, postgres,
    rusqlite::{self, Connection, TransactionBehavior},
    sqlite, tokio_postgres,
};
use postrider_testbed::connect;
use tokio::task::JoinSet;

fn shop(site: &Site) -> Connection {
    let shop = Connection::open(&site.address).unwrap();
    shop.busy_timeout(Duration::from_secs(30)).unwrap();
    shop.execute_batch("CREATE TABLE IF NOT EXISTS paid (id TEXT)").unwrap();
    shop
}

fn pay(inbox: &Inbox<SqliteStore>, shop: &mut Connection, id: &str) -> Processed<usize> {
    let mut tx = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let paid = inbox.process(&mut tx, &key(id), |tx| tx.execute("INSERT INTO paid VALUES (?1)", [id])).unwrap();
    tx.commit().unwrap();
    paid
}

fn a_week() -> InboxSettings {
    InboxSettings { retention: Retention::days(7).unwrap(), ..InboxSettings::default() }
}

fn paid(shop: &Connection) -> i64 {
    shop.query_row("SELECT count(*) FROM paid", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn on_sqlite_an_effect_happens_once() {
    let site = Site::fresh(Kind::Sqlite).await;
    let inbox = Inbox::new(site.sqlite(), TestClock::new());
    let mut shop = shop(&site);
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::Ran(1));
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::SeenBefore);
    assert_eq!(pay(&inbox, &mut shop, "b"), Processed::Ran(1));
    assert_eq!(paid(&shop), 2);
}

#[tokio::test]
async fn on_sqlite_fifty_at_the_same_instant_have_one_effect() {
    let site = Arc::new(Site::fresh(Kind::Sqlite).await);
    let inbox = Inbox::new(site.sqlite(), TestClock::new());
    drop(shop(&site));
    let barrier = Arc::new(Barrier::new(50));
    let threads: Vec<_> = (0..50)
        .map(|_| {
            let (site, inbox, barrier) = (Arc::clone(&site), inbox.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                let mut shop = shop(&site);
                barrier.wait();
                pay(&inbox, &mut shop, "a")
            })
        })
        .collect();
    let told: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(told.iter().filter(|told| **told == Processed::Ran(1)).count(), 1);
    assert_eq!(paid(&shop(&site)), 1);
}

#[tokio::test]
async fn on_sqlite_an_effect_that_was_rolled_back_is_not_recorded() {
    let site = Site::fresh(Kind::Sqlite).await;
    let inbox = Inbox::new(site.sqlite(), TestClock::new());
    let mut shop = shop(&site);
    let mut tx = shop.transaction().unwrap();
    inbox.process(&mut tx, &key("a"), |tx| tx.execute("INSERT INTO paid VALUES ('a')", [])).unwrap();
    tx.rollback().unwrap();
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::Ran(1));
    assert_eq!(paid(&shop), 1);
}

#[tokio::test]
async fn on_sqlite_a_failed_effect_leaves_nothing_even_if_its_caller_commits() {
    let site = Site::fresh(Kind::Sqlite).await;
    let inbox = Inbox::new(site.sqlite(), TestClock::new());
    let mut shop = shop(&site);
    let mut tx = shop.transaction().unwrap();
    tx.execute("INSERT INTO paid VALUES ('something else')", []).unwrap();
    let failed = inbox.process(&mut tx, &key("a"), |tx| {
        tx.execute("INSERT INTO paid VALUES ('a')", [])?;
        tx.execute("INSERT INTO nowhere VALUES ('a')", [])
    });
    assert!(matches!(failed, Err(sqlite::ProcessError::Effect(rusqlite::Error::SqliteFailure(..)))), "{failed:?}");
    tx.commit().unwrap();
    assert_eq!(paid(&shop), 1, "what the caller did besides stands");
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::Ran(1));
}

#[tokio::test]
async fn on_sqlite_an_effect_is_remembered_as_long_as_its_event_is_not_done() {
    let site = Site::fresh(Kind::Sqlite).await;
    let clock = TestClock::new();
    let inbox = Inbox::new(site.sqlite(), clock.clone());
    let mut shop = shop(&site);
    let _ = inbox.store().record(&event("a"), Limits::default()).await.unwrap();
    let claim = inbox.store().claim(1, LEASE, at(0)).await.unwrap().remove(0);
    pay(&inbox, &mut shop, "a");
    pay(&inbox, &mut shop, "never queued");
    clock.advance(31 * DAY);
    assert_eq!(inbox.clean().await.unwrap(), 1, "that of the event which was never queued");
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::SeenBefore, "its worker may still come back");
    let _ = inbox.store().settle(&claim.ticket, &Settlement::Done, clock.now()).await.unwrap();
    clock.advance(31 * DAY);
    assert_eq!(inbox.clean().await.unwrap(), 2);
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::Ran(1), "forgotten with its event");
}

#[tokio::test]
async fn on_sqlite_a_redelivery_after_six_days_has_no_second_effect() {
    let site = Site::fresh(Kind::Sqlite).await;
    let clock = TestClock::new();
    let inbox = Inbox::with_settings(site.sqlite(), clock.clone(), a_week());
    let mut shop = shop(&site);
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::Ran(1));
    clock.advance(6 * DAY);
    inbox.clean().await.unwrap();
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::SeenBefore);
    clock.advance(2 * DAY);
    inbox.clean().await.unwrap();
    assert_eq!(pay(&inbox, &mut shop, "a"), Processed::Ran(1), "after its retention it is a new one");
}

#[tokio::test]
async fn on_sqlite_the_tables_can_be_made_by_a_connection_of_the_callers_own() {
    let mut shop = Connection::open_in_memory().unwrap();
    for _ in 0..2 {
        sqlite::migrate(&shop).unwrap();
    }
    for is_first in [true, false] {
        let mut tx = shop.transaction().unwrap();
        let done = sqlite::process(&mut tx, &key("a"), at(0), |_| Ok::<_, rusqlite::Error>(())).unwrap();
        assert_eq!(done.ran().is_some(), is_first);
        tx.commit().unwrap();
    }
    shop.execute("INSERT INTO postrider_inbox_schema VALUES (99)", []).unwrap();
    assert!(sqlite::migrate(&shop).is_err(), "tables of a newer version are left alone");
    assert!(shop.is_autocommit());
}

#[tokio::test]
async fn on_sqlite_effects_without_a_queue_are_forgotten_in_pieces() {
    let site = Site::fresh(Kind::Sqlite).await;
    let mut shop = shop(&site);
    for number in 0..7 {
        let mut tx = shop.transaction().unwrap();
        sqlite::process(&mut tx, &key(&number.to_string()), at(number), |_| Ok::<_, rusqlite::Error>(())).unwrap();
        tx.commit().unwrap();
    }
    // An inbox in the same file has not done with this one.
    let _ = site.sqlite().record(&event("2"), Limits::default()).await.unwrap();
    let pieces = [2, 2, 0].map(|_| sqlite::clean_effects(&shop, at(5), 2).unwrap());
    assert_eq!(pieces, [2, 2, 0]);
    for (number, is_known) in [(0, false), (1, false), (2, true), (3, false), (4, false), (5, true), (6, true)] {
        let mut tx = shop.transaction().unwrap();
        let again = sqlite::process(&mut tx, &key(&number.to_string()), at(9), |_| Ok::<_, rusqlite::Error>(()));
        assert_eq!(again.unwrap() == Processed::SeenBefore, is_known, "{number}");
    }
}

async fn pg_shop() -> (Site, Inbox<PostgresStore>, TestClock) {
    let site = Site::fresh(Kind::Postgres).await;
    connect(&site.address).await.batch_execute("CREATE TABLE paid (id TEXT)").await.unwrap();
    let clock = TestClock::new();
    let inbox = Inbox::new(site.postgres(), clock.clone());
    (site, inbox, clock)
}

async fn pg_pay(inbox: &Inbox<PostgresStore>, client: &mut tokio_postgres::Client, id: &str) -> Processed<u64> {
    let mut tx = client.transaction().await.unwrap();
    let paid = inbox
        .process(&mut tx, &key(id), async |tx: &mut tokio_postgres::Transaction<'_>| {
            tx.execute("INSERT INTO paid VALUES ($1)", &[&id]).await
        })
        .await
        .unwrap();
    tx.commit().await.unwrap();
    paid
}

async fn pg_paid(site: &Site) -> i64 {
    connect(&site.address).await.query_one("SELECT count(*) FROM paid", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn on_postgresql_an_effect_happens_once() {
    let (site, inbox, _) = pg_shop().await;
    let mut client = connect(&site.address).await;
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::Ran(1));
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::SeenBefore);
    assert_eq!(pg_pay(&inbox, &mut client, "b").await, Processed::Ran(1));
    assert_eq!(pg_paid(&site).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_postgresql_fifty_at_the_same_instant_have_one_effect() {
    let (site, inbox, _) = pg_shop().await;
    let barrier = Arc::new(tokio::sync::Barrier::new(50));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let mut client = connect(&site.address).await;
        let (inbox, barrier) = (inbox.clone(), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            pg_pay(&inbox, &mut client, "a").await
        });
    }
    let told = tasks.join_all().await;
    assert_eq!(told.iter().filter(|told| **told == Processed::Ran(1)).count(), 1);
    assert_eq!(pg_paid(&site).await, 1);
}

/// The second waits for the first, whichever way that ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_postgresql_the_second_waits_and_runs_if_the_first_is_rolled_back() {
    for (is_committed, expected, paid) in [(true, Processed::SeenBefore, 1), (false, Processed::Ran(1), 1)] {
        let (site, inbox, _) = pg_shop().await;
        let mut first = connect(&site.address).await;
        let mut tx = first.transaction().await.unwrap();
        inbox
            .process(&mut tx, &key("a"), async |tx: &mut tokio_postgres::Transaction<'_>| {
                tx.execute("INSERT INTO paid VALUES ('a')", &[]).await
            })
            .await
            .unwrap();
        let mut second = connect(&site.address).await;
        let second = tokio::spawn({
            let inbox = inbox.clone();
            async move { pg_pay(&inbox, &mut second, "a").await }
        });
        // Not by time: the server itself says that somebody waits for a lock.
        let looker = connect(&site.address).await;
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while looker.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(!second.is_finished(), "it did not wait");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match is_committed {
            true => tx.commit().await.unwrap(),
            false => tx.rollback().await.unwrap(),
        }
        assert_eq!(second.await.unwrap(), expected);
        assert_eq!(pg_paid(&site).await, paid);
    }
}

#[tokio::test]
async fn on_postgresql_a_failed_effect_leaves_nothing_even_if_its_caller_commits() {
    let (site, inbox, _) = pg_shop().await;
    let mut client = connect(&site.address).await;
    let mut tx = client.transaction().await.unwrap();
    tx.execute("INSERT INTO paid VALUES ('something else')", &[]).await.unwrap();
    let failed = inbox
        .process(&mut tx, &key("a"), async |tx: &mut tokio_postgres::Transaction<'_>| {
            tx.execute("INSERT INTO paid VALUES ('a')", &[]).await?;
            tx.execute("INSERT INTO nowhere VALUES ('a')", &[]).await
        })
        .await;
    assert!(matches!(failed, Err(postgres::ProcessError::Effect(_))), "{failed:?}");
    tx.commit().await.unwrap();
    assert_eq!(pg_paid(&site).await, 1, "what the caller did besides stands");
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::Ran(1));
}

#[tokio::test]
async fn on_postgresql_an_effect_is_remembered_as_long_as_its_event_is_not_done() {
    let (site, inbox, clock) = pg_shop().await;
    let mut client = connect(&site.address).await;
    let _ = inbox.store().record(&event("a"), Limits::default()).await.unwrap();
    let claim = inbox.store().claim(1, LEASE, at(0)).await.unwrap().remove(0);
    pg_pay(&inbox, &mut client, "a").await;
    pg_pay(&inbox, &mut client, "never queued").await;
    clock.advance(31 * DAY);
    assert_eq!(inbox.clean().await.unwrap(), 1, "that of the event which was never queued");
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::SeenBefore, "its worker may still come back");
    let _ = inbox.store().settle(&claim.ticket, &Settlement::Done, clock.now()).await.unwrap();
    clock.advance(31 * DAY);
    assert_eq!(inbox.clean().await.unwrap(), 2);
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::Ran(1), "forgotten with its event");
}

#[tokio::test]
async fn on_postgresql_a_redelivery_after_six_days_has_no_second_effect() {
    let (site, _, clock) = pg_shop().await;
    let inbox = Inbox::with_settings(site.postgres(), clock.clone(), a_week());
    let mut client = connect(&site.address).await;
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::Ran(1));
    clock.advance(6 * DAY);
    inbox.clean().await.unwrap();
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::SeenBefore);
    clock.advance(2 * DAY);
    inbox.clean().await.unwrap();
    assert_eq!(pg_pay(&inbox, &mut client, "a").await, Processed::Ran(1), "after its retention it is a new one");
}

#[tokio::test]
async fn on_postgresql_tables_of_a_newer_version_are_left_alone() {
    let (site, inbox, _) = pg_shop().await;
    let mut client = connect(&site.address).await;
    postgres::migrate(&mut client).await.unwrap();
    client.execute("INSERT INTO postrider_inbox_schema VALUES (99)", &[]).await.unwrap();
    assert!(inbox.migrate().await.is_err());
}

#[tokio::test]
async fn on_postgresql_effects_without_a_queue_are_forgotten_in_pieces() {
    let (site, inbox, _) = pg_shop().await;
    let mut client = connect(&site.address).await;
    async fn process(client: &mut tokio_postgres::Client, number: i64, now: i64) -> Processed<()> {
        let mut tx = client.transaction().await.unwrap();
        let effect = async |_: &mut tokio_postgres::Transaction<'_>| Ok::<_, tokio_postgres::Error>(());
        let processed = postgres::process(&mut tx, &key(&number.to_string()), at(now), effect).await.unwrap();
        tx.commit().await.unwrap();
        processed
    }
    for number in 0..7 {
        assert_eq!(process(&mut client, number, number).await, Processed::Ran(()));
    }
    // An inbox in the same database has not done with this one.
    let _ = inbox.store().record(&event("2"), Limits::default()).await.unwrap();
    for piece in [2, 2, 0] {
        assert_eq!(postgres::clean_effects(&client, at(5), 2).await.unwrap(), piece);
    }
    for (number, is_known) in [(0, false), (1, false), (2, true), (3, false), (4, false), (5, true), (6, true)] {
        assert_eq!(process(&mut client, number, 9).await == Processed::SeenBefore, is_known, "{number}");
    }
}
