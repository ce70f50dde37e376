//! Processes that are killed at the worst moment, and servers, too: nothing that was answered is lost, and effects in a
//! transaction happen once.

mod common;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{redis_server::RedisServer, *};
use postrider_inbox::{
    Event, Failure, Inbox, Limits, Outcome, RedisStore, Retention, Retry, Store, Worker, WorkerSettings,
    redis::Durability,
    rusqlite::{Connection, TransactionBehavior},
    tokio_postgres,
};
use postrider_testbed::{Cluster, Mode, connect};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use redis::AsyncCommands;

/// Where the victim is when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// The request was answered, and nobody works on it.
    Answered,
    /// The handler was called and has done nothing.
    BeforeEffect,
    /// The effect is there, and the event is not settled.
    AfterEffect,
    /// Record and effect are written and not committed.
    InTransaction,
    /// Record and effect are committed, and the event is not settled.
    AfterTransaction,
}

const MARKS: [Mark; 5] =
    [Mark::Answered, Mark::BeforeEffect, Mark::AfterEffect, Mark::InTransaction, Mark::AfterTransaction];

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_kill() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Redis] {
        let site = Shop::fresh(kind).await;
        kill_at(&site, Mark::Answered);
        assert_eq!(redeliver(&site).await, Outcome::Duplicate, "{kind:?}");
        work_off(&site, Way::Plain, Duration::ZERO).await;
        assert_eq!(site.effects().await, 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_between_record_and_effect_loses_nothing() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Redis] {
        let site = Shop::fresh(kind).await;
        kill_at(&site, Mark::BeforeEffect);
        assert_eq!(site.effects().await, 0, "{kind:?}");
        assert_eq!(redeliver(&site).await, Outcome::Duplicate, "{kind:?}");
        work_off(&site, Way::Plain, LEASE - Duration::from_millis(1)).await;
        assert_eq!(site.effects().await, 0, "{kind:?}: the lease still holds");
        work_off(&site, Way::Plain, LEASE).await;
        assert_eq!(site.effects().await, 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_behind_the_effect_it_happens_again_and_then_no_more() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Redis] {
        let site = Shop::fresh(kind).await;
        kill_at(&site, Mark::AfterEffect);
        assert_eq!(site.effects().await, 1, "{kind:?}");
        work_off(&site, Way::Plain, LEASE).await;
        assert_eq!(site.effects().await, 2, "{kind:?}: at least once, without a transaction");
        assert_eq!(redeliver(&site).await, Outcome::Duplicate, "{kind:?}");
        work_off(&site, Way::Plain, 10 * LEASE).await;
        assert_eq!(site.effects().await, 2, "{kind:?}: a redelivery has no effect");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_within_the_transaction_leaves_one_effect() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let site = Shop::fresh(kind).await;
        kill_at(&site, Mark::InTransaction);
        assert_eq!(site.effects().await, 0, "{kind:?}: undone");
        work_off(&site, Way::Transaction, LEASE).await;
        assert_eq!(site.effects().await, 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_after_the_transaction_leaves_one_effect() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let site = Shop::fresh(kind).await;
        kill_at(&site, Mark::AfterTransaction);
        assert_eq!(site.effects().await, 1, "{kind:?}");
        work_off(&site, Way::Transaction, LEASE).await;
        assert_eq!(site.effects().await, 1, "{kind:?}: the handler was called again and had nothing to do");
        let store = site.site.open().await;
        assert_eq!(store.standing().await.unwrap().queued, 0, "{kind:?}: and it is done");
    }
}

/// Workers that are killed after any number of steps, one after the other, until all is done.
#[tokio::test(flavor = "multi_thread")]
async fn however_often_workers_are_killed_each_event_has_its_effect() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Redis] {
        let shop = Shop::fresh(kind).await;
        let store = shop.site.open().await;
        for number in 0..60 {
            let _ = store.record(&event(&format!("{number}")), Limits::default()).await.unwrap();
        }
        let mut rng = ChaCha8Rng::seed_from_u64(kind as u64);
        let mut kills = 0;
        for round in 0.. {
            let steps = 1 + rng.next_u32() as usize % 20;
            kills += usize::from(kill_after(&shop, round, steps));
            if store.standing().await.unwrap().queued == 0 {
                break;
            }
            assert!(round < 200, "{kind:?}: it does not come to an end");
        }
        let (effects, different) = (shop.effects().await, shop.different_effects().await);
        assert!(kills > 3, "{kind:?}: {kills} kills");
        assert_eq!(different, 60, "{kind:?}: none is missing after {kills} kills");
        match kind {
            Kind::Sqlite | Kind::Postgres => assert_eq!(effects, 60, "{kind:?}: none twice after {kills} kills"),
            Kind::Memory | Kind::Redis => assert!(effects >= 60, "{kind:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_crash_of_postgresql() {
    let cluster = Cluster::start();
    let site = Site::known(Kind::Postgres, &cluster.fresh_database().await);
    let inbox = Inbox::new(site.open().await, TestClock::new());
    inbox.migrate().await.unwrap();
    let door = inbox.door("shop", source()).unwrap();
    let (headers, body) = signed("msg_1", "{}", at(0));
    assert_eq!(door.take(&headers, body.clone()).await, Outcome::Accepted { arrival: None });

    let cluster = tokio::task::spawn_blocking(move || {
        cluster.stop(Mode::Immediate);
        cluster
    });
    let cluster = cluster.await.unwrap();
    let (headers_2, body_2) = signed("msg_2", "{}", at(0));
    let answer = door.take(&headers_2, body_2).await.answer();
    assert_eq!((answer.status.as_u16(), answer.retry_after.is_some()), (503, true), "nothing is promised meanwhile");
    let _cluster = tokio::task::spawn_blocking(move || {
        cluster.resume();
        cluster
    })
    .await
    .unwrap();
    // Connections of the pool that were lost are found out one by one.
    let mut outcome = Outcome::StoreOut;
    for _ in 0..20 {
        outcome = door.take(&headers, body.clone()).await;
        if outcome != Outcome::StoreOut {
            break;
        }
    }
    assert_eq!(outcome, Outcome::Duplicate);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_crash_of_redis_that_syncs_always() {
    let mut server = tokio::task::spawn_blocking(RedisServer::start).await.unwrap();
    let store = RedisStore::connect(&server.url(), Retention::default()).await.unwrap();
    assert_eq!(store.durability().await, Durability::Always);
    let inbox = Inbox::new(store, TestClock::new());
    let door = inbox.door("shop", source()).unwrap();
    for number in 0..20 {
        let (headers, body) = signed(&format!("msg_{number}"), "{}", at(0));
        assert_eq!(door.take(&headers, body).await, Outcome::Accepted { arrival: None });
    }
    let claims = inbox.store().claim(5, LEASE, at(0)).await.unwrap();
    server = tokio::task::spawn_blocking(move || {
        server.crash_and_restart();
        server
    })
    .await
    .unwrap();
    let store = RedisStore::connect(&server.url(), Retention::default()).await.unwrap();
    assert_eq!(store.standing().await.unwrap().queued, 20);
    assert_eq!(store.claim(100, LEASE, at(1)).await.unwrap().len(), 15, "claims survive as well");
    assert_eq!(store.claim(100, LEASE, claims[0].ticket.until).await.unwrap().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_a_request_is_answered_503() {
    let server = tokio::task::spawn_blocking(RedisServer::start).await.unwrap();
    let store = RedisStore::connect(&server.url(), Retention::default()).await.unwrap();
    let door = Inbox::new(store, TestClock::new()).door("shop", source()).unwrap();
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    let (headers, body) = signed("msg_1", "{}", at(0));
    assert_eq!(door.take(&headers, body).await.answer().status, 503);
}

/// What the tests above start and kill; on its own it does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn victim() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let mut orders = orders.splitn(3, '|');
    let mut next = || orders.next().unwrap().to_owned();
    let (mark, kind, address) = (next(), next(), next());
    if let Ok(round) = mark.parse() {
        return work_in_steps(round, &kind, &address).await;
    }
    let mark = *MARKS.iter().find(|known| format!("{known:?}") == mark).unwrap();
    let shop = Shop::known(&kind, &address);

    let inbox = Inbox::new(shop.site.open().await, TestClock::new());
    let door = inbox.door("shop", source()).unwrap();
    let (headers, body) = signed(EVENT, "{}", at(0));
    assert_eq!(door.take(&headers, body).await, Outcome::Accepted { arrival: None });
    if mark == Mark::Answered {
        be_killed().await;
    }
    let worker = Worker::new(inbox, WorkerSettings::default(), ChaCha8Rng::seed_from_u64(0)).unwrap();
    let handler = move |event: Event| {
        let shop = shop.clone();
        async move {
            match mark {
                Mark::Answered | Mark::BeforeEffect => {}
                Mark::AfterEffect => shop.plain_effect(&event).await,
                Mark::InTransaction => shop.effect_in_transaction(&event, At::BeforeCommit).await,
                Mark::AfterTransaction => shop.effect_in_transaction(&event, At::End).await,
            }
            be_killed().await;
            Ok(())
        }
    };
    worker.turn(handler).await.unwrap();
    unreachable!("it is killed before");
}

/// Works off all that is due, and says before and after each effect that it has come so far.
async fn work_in_steps(round: u32, kind: &str, address: &str) {
    let shop = Shop::known(kind, address);
    let clock = TestClock::new();
    clock.advance(round * LEASE);
    let inbox = Inbox::new(shop.site.open().await, clock);
    let retry = Retry { attempts_max: u32::MAX, ..Retry::default() };
    let settings = WorkerSettings { concurrency: 4, retry, ..WorkerSettings::default() };
    let worker = Worker::new(inbox, settings, ChaCha8Rng::seed_from_u64(0)).unwrap();
    let handler = move |event: Event| {
        let shop = shop.clone();
        async move {
            println!("{STEP}");
            match shop.site.kind {
                Kind::Sqlite | Kind::Postgres => shop.effect_in_transaction(&event, At::End).await,
                Kind::Memory | Kind::Redis => shop.plain_effect(&event).await,
            }
            println!("{STEP}");
            Ok(())
        }
    };
    while worker.turn(handler.clone()).await.unwrap() > 0 {}
}

/// Whether it was killed, and had not come to the end of what was due before.
fn kill_after(shop: &Shop, round: u32, steps: usize) -> bool {
    let mut victim = start(&format!("{round}|{:?}|{}", shop.site.kind, shop.site.address));
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_killed = lines.filter(|line| line.ends_with(STEP)).take(steps).count() == steps;
    victim.kill().unwrap();
    let ended = victim.wait().unwrap();
    assert!(is_killed || ended.success(), "the victim failed");
    is_killed
}

async fn be_killed() {
    println!("{REACHED}");
    std::future::pending::<()>().await;
}

fn kill_at(shop: &Shop, mark: Mark) {
    let mut victim = start(&format!("{mark:?}|{:?}|{}", shop.site.kind, shop.site.address));
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut told = Vec::new();
    let is_reached = lines.any(|line| {
        // The test harness writes its own words in front of it.
        let is_mark = line.ends_with(REACHED);
        told.push(line);
        is_mark
    });
    // SIGKILL.
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(is_reached, "the victim ended by itself:\n{}", told.join("\n"));
}

fn start(orders: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["victim", "--exact", "--nocapture"])
        .env(ORDERS, orders)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn redeliver(shop: &Shop) -> Outcome {
    let door = Inbox::new(shop.site.open().await, TestClock::new()).door("shop", source()).unwrap();
    let (headers, body) = signed(EVENT, "{}", at(0));
    door.take(&headers, body).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Transaction,
}

/// By another process's worker, so much later.
async fn work_off(shop: &Shop, way: Way, later: Duration) {
    let clock = TestClock::new();
    clock.advance(later);
    let inbox = Inbox::new(shop.site.open().await, clock);
    let worker = Worker::new(inbox, WorkerSettings::default(), ChaCha8Rng::seed_from_u64(0)).unwrap();
    let shop = shop.clone();
    let handler = move |event: Event| {
        let shop = shop.clone();
        async move {
            match way {
                Way::Plain => shop.plain_effect(&event).await,
                Way::Transaction => shop.effect_in_transaction(&event, At::End).await,
            }
            Ok::<(), Failure>(())
        }
    };
    worker.turn(handler).await.unwrap();
}

/// What the receiver does with events: a line in a table of its own.
#[derive(Clone)]
struct Shop {
    site: Arc<Site>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    BeforeCommit,
    End,
}

impl Shop {
    async fn fresh(kind: Kind) -> Self {
        let site = Arc::new(Site::fresh(kind).await);
        match kind {
            Kind::Sqlite => Connection::open(&site.address).unwrap().execute_batch(TABLE).unwrap(),
            Kind::Postgres => connect(&site.address).await.batch_execute(TABLE).await.unwrap(),
            Kind::Memory | Kind::Redis => {}
        }
        Self { site }
    }

    fn known(kind: &str, address: &str) -> Self {
        let kinds = [Kind::Sqlite, Kind::Postgres, Kind::Redis];
        let kind = *kinds.iter().find(|known| format!("{known:?}") == kind).unwrap();
        Self { site: Arc::new(Site::known(kind, address)) }
    }

    fn sqlite(&self) -> Connection {
        let shop = Connection::open(&self.site.address).unwrap();
        shop.busy_timeout(Duration::from_secs(30)).unwrap();
        shop
    }

    async fn redis(&self) -> (redis::aio::MultiplexedConnection, String) {
        let (url, prefix) = self.site.address.split_once(' ').unwrap();
        let client = redis::Client::open(url).unwrap();
        (client.get_multiplexed_async_connection().await.unwrap(), format!("{prefix}effects"))
    }

    async fn effects(&self) -> i64 {
        match self.site.kind {
            Kind::Sqlite => self.sqlite().query_row(COUNT, [], |row| row.get(0)).unwrap(),
            Kind::Postgres => connect(&self.site.address).await.query_one(COUNT, &[]).await.unwrap().get(0),
            Kind::Redis => {
                let (mut connection, list) = self.redis().await;
                connection.llen(list).await.unwrap()
            }
            Kind::Memory => unreachable!("it cannot be killed alone"),
        }
    }

    async fn different_effects(&self) -> i64 {
        match self.site.kind {
            Kind::Sqlite => self.sqlite().query_row(COUNT_DIFFERENT, [], |row| row.get(0)).unwrap(),
            Kind::Postgres => connect(&self.site.address).await.query_one(COUNT_DIFFERENT, &[]).await.unwrap().get(0),
            Kind::Redis => {
                let (mut connection, list) = self.redis().await;
                let all: std::collections::BTreeSet<String> = connection.lrange(list, 0, -1).await.unwrap();
                all.len() as i64
            }
            Kind::Memory => unreachable!("it cannot be killed alone"),
        }
    }

    async fn plain_effect(&self, event: &Event) {
        let id = event.key.id.as_str();
        match self.site.kind {
            Kind::Sqlite => drop(self.sqlite().execute("INSERT INTO paid VALUES (?1)", [id]).unwrap()),
            Kind::Postgres => {
                connect(&self.site.address).await.execute("INSERT INTO paid VALUES ($1)", &[&id]).await.unwrap();
            }
            Kind::Redis => {
                let (mut connection, list) = self.redis().await;
                let _: i64 = connection.rpush(list, id).await.unwrap();
            }
            Kind::Memory => unreachable!("it cannot be killed alone"),
        }
    }

    async fn effect_in_transaction(&self, event: &Event, until: At) {
        let id = event.key.id.as_str();
        match self.site.kind {
            Kind::Sqlite => {
                let inbox = Inbox::new(self.site.sqlite(), TestClock::new());
                let mut shop = self.sqlite();
                let mut tx = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                inbox.process(&mut tx, &event.key, |tx| tx.execute("INSERT INTO paid VALUES (?1)", [id])).unwrap();
                if until == At::BeforeCommit {
                    println!("{REACHED}");
                    std::thread::park();
                }
                tx.commit().unwrap();
            }
            Kind::Postgres => {
                let inbox = Inbox::new(self.site.postgres(), TestClock::new());
                let mut shop = connect(&self.site.address).await;
                let mut tx = shop.transaction().await.unwrap();
                inbox
                    .process(&mut tx, &event.key, async |tx: &mut tokio_postgres::Transaction<'_>| {
                        tx.execute("INSERT INTO paid VALUES ($1)", &[&id]).await
                    })
                    .await
                    .unwrap();
                if until == At::BeforeCommit {
                    be_killed().await;
                }
                tx.commit().await.unwrap();
            }
            Kind::Memory | Kind::Redis => unreachable!("there are no transactions"),
        }
    }
}

const ORDERS: &str = "INBOX_VICTIM";
const REACHED: &str = "the mark is reached";
const EVENT: &str = "msg_1";
const TABLE: &str = "CREATE TABLE paid (id TEXT)";
const COUNT_DIFFERENT: &str = "SELECT count(DISTINCT id) FROM paid";
const STEP: &str = "a step is done";
const COUNT: &str = "SELECT count(*) FROM paid";
