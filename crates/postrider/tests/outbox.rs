//! Events written in a producer's own transaction: one message for each row that was committed, in order, whoever dies.

mod support;

use http::Method;
use postrider::keyring::Keyring;
use postrider_testbed::{Client as Session, Cluster, Mode, PoolMode, Pooler, connect};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Command, Output, Stdio},
    time::Duration,
};
use support::{api, eventually, receiver::Arrival, server::Server, world::World};

/// A producer's database with an outbox in it.
struct Producer {
    url: String,
    session: Session,
}

impl Producer {
    async fn new() -> Self {
        Self::at(Cluster::shared().fresh_database().await).await
    }

    async fn at(url: String) -> Self {
        let installed = outbox(&["install", "--database-url", &url]);
        assert!(installed.status.success(), "{installed:?}");
        let session = connect(&url).await;
        Self { url, session }
    }

    async fn run(&self, sql: &str) {
        self.session.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn send(&self, n: usize, more: &str) -> i64 {
        let sql = format!("SELECT postrider.send('acme', 'order.paid', '{{\"n\": {n}}}'{more})");
        self.session.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    /// Rows that wait, and rows that cannot be sent.
    async fn counts(&self) -> (i64, i64) {
        let sql = "SELECT count(*) FILTER (WHERE failed_at IS NULL), count(failed_at) FROM postrider.outbox";
        let row = self.session.query_one(sql, &[]).await.expect("the outbox is there");
        (row.get(0), row.get(1))
    }

    async fn wait_until_empty(&self) {
        eventually("an empty outbox", async || (self.counts().await.0 == 0).then_some(())).await;
    }

    async fn status(&self) -> Value {
        let shown = outbox(&["status", "--json", "--database-url", &self.url]);
        assert!(shown.status.success(), "{shown:?}");
        serde_json::from_slice(&shown.stdout).expect("JSON")
    }
}

fn outbox(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.arg("outbox").args(arguments).env_clear().stdin(Stdio::null());
    command.output().expect("the binary runs")
}

async fn world(producer: &Producer) -> World {
    let mut world = World::start_with(&["--outbox", &producer.url]).await;
    world.endpoint("/hooks", json!({})).await;
    world
}

fn n(arrival: &Arrival) -> usize {
    let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
    body["n"].as_u64().expect("a number") as usize
}

fn numbers(arrivals: &[Arrival]) -> Vec<usize> {
    arrivals.iter().map(n).collect()
}

/// Which message each row became. A row that became two, or two that became one, fail the test.
fn messages(arrivals: &[Arrival]) -> BTreeMap<usize, String> {
    let mut by_row = BTreeMap::new();
    for arrival in arrivals {
        let id = arrival.header("webhook-id").to_owned();
        let known = by_row.entry(n(arrival)).or_insert_with(|| id.clone());
        assert_eq!(*known, id, "row {} became two messages", n(arrival));
    }
    let ids: BTreeSet<&String> = by_row.values().collect();
    assert_eq!(ids.len(), by_row.len(), "two rows became one message");
    by_row
}

/// Writes rows in transactions of all sizes, most of them with one of seven keys.
async fn write(url: String, rows: usize, seed: u64) {
    let session = connect(&url).await;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut n = 0;
    while n < rows {
        let mut sql = "BEGIN;".to_owned();
        for _ in 0..rng.random_range(1..40).min(rows - n) {
            n += 1;
            let key = if is_keyed(n) { format!(", ordering_key => 'k{}'", n % KEYS) } else { String::new() };
            sql += &format!("SELECT postrider.send('acme', 'order.paid', '{{\"n\": {n}}}'{key});");
        }
        session.batch_execute(&(sql + "COMMIT")).await.expect("a transaction");
    }
}

fn is_keyed(n: usize) -> bool {
    !n.is_multiple_of(4)
}

const KEYS: usize = 7;

/// Of each key, each row came for the first time after all those before it.
fn check_order(arrivals: &[Arrival]) {
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for n in arrivals.iter().map(n).filter(|n| is_keyed(*n) && seen.insert(*n)) {
        let before = last.insert(n % KEYS, n).unwrap_or(0);
        assert!(before < n, "{n} came after {before}");
    }
}

/// Waits until every row has arrived.
async fn all_arrived(world: &World, rows: usize) -> Vec<Arrival> {
    eventually("a message for each row", async || {
        let arrivals = world.receiver.arrivals_at("/hooks");
        (arrivals.iter().map(n).collect::<BTreeSet<_>>().len() == rows).then_some(arrivals)
    })
    .await
}

#[tokio::test]
async fn a_row_goes_on_with_its_producers_trace() {
    let producer = Producer::new().await;
    let world = world(&producer).await;
    let [by_setting, by_column] = ["4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"]
        .map(|trace| format!("00-{trace}-00f067aa0ba902b7-01"));
    let set = |value: &str| format!("SELECT set_config('postrider.traceparent', '{value}', true)");
    let send = |n: usize| format!("SELECT postrider.send('acme', 'order.paid', '{{\"n\": {n}}}')");
    producer.run(&format!("BEGIN; {}; {}; COMMIT", set(&by_setting), send(1))).await;
    producer
        .run(&format!(
            "INSERT INTO postrider.outbox (app, event_type, payload, traceparent)
             VALUES ('acme', 'order.paid', '{{\"n\": 2}}', '{by_column}')"
        ))
        .await;
    // The setting ended with its transaction, and what is no trace is none.
    producer.run(&send(3)).await;
    producer.run(&format!("BEGIN; {}; {}; COMMIT", set("<script>"), send(4))).await;
    let arrivals = all_arrived(&world, 4).await;
    for (number, expected) in [(1, Some(&by_setting)), (2, Some(&by_column)), (3, None), (4, None)] {
        let arrival = arrivals.iter().find(|arrival| n(arrival) == number).expect("it arrived");
        let given = arrival.headers.get("traceparent").map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(given.as_ref(), expected, "row {number}");
    }
}

#[tokio::test]
async fn a_row_of_an_older_outbox_has_no_trace_and_arrives() {
    let producer = Producer::new().await;
    // As it was before there was a place for it.
    producer
        .run(
            "DO $$ BEGIN
                 EXECUTE regexp_replace(pg_get_functiondef('postrider.outbox_admit()'::regprocedure),
                     'NEW.traceparent := coalesce.*?END IF;', '');
             END $$;
             ALTER TABLE postrider.outbox DROP COLUMN traceparent",
        )
        .await;
    let world = world(&producer).await;
    producer.send(1, "").await;
    all_arrived(&world, 1).await;
    let installed = outbox(&["install", "--database-url", &producer.url]);
    assert!(installed.status.success(), "{installed:?}");
    producer.run("SELECT traceparent FROM postrider.outbox").await;
    producer.send(2, "").await;
    all_arrived(&world, 2).await;
}

#[tokio::test]
async fn what_is_committed_is_delivered_once_and_what_is_rolled_back_never() {
    let producer = Producer::new().await;
    let world = world(&producer).await;
    let payload = r#"{ "n" : 1, "n":1,  "big":123456789012345678901234567890 }"#;
    producer.run("BEGIN").await;
    producer.send(0, "").await;
    producer.run("ROLLBACK; BEGIN").await;
    producer.session.query("SELECT postrider.send('acme', 'order.paid', $1::text)", &[&payload]).await.expect("a row");
    producer.run("SAVEPOINT here").await;
    producer.send(0, "").await;
    producer.run("ROLLBACK TO here").await;
    producer.send(2, "").await;
    assert_eq!(world.receiver.count(), 0, "nothing before the commit");
    producer.run("COMMIT").await;
    world.receiver.wait_for("/hooks", 2).await;
    // What would come wrongly would come before this.
    producer.send(3, "").await;
    let arrivals = world.receiver.wait_for("/hooks", 3).await;
    let mut arrived = numbers(&arrivals);
    arrived.sort_unstable();
    assert_eq!(arrived, [1, 2, 3]);
    let first = arrivals.iter().find(|arrival| n(arrival) == 1).expect("it came");
    assert_eq!(first.body, payload, "byte for byte");
    producer.wait_until_empty().await;
}

#[tokio::test]
async fn a_row_says_all_that_a_message_can_say() {
    let producer = Producer::new().await;
    let mut world = world(&producer).await;
    world.endpoint("/red", json!({"channels": ["red"]})).await;
    producer.send(1, ", event_id => 'e-1', channels => '{blue}', tags => '{t1}'").await;
    producer.send(2, ", event_id => 'e-2', channels => '{red}', deliver_at => now() + interval '1 hour'").await;
    let sql = "SELECT postrider.send('acme', 'note', 'plain', content_type => 'text/plain', event_id => 'e-3')";
    producer.run(sql).await;
    producer.wait_until_empty().await;
    let shown = world.get("msg/e-1").await;
    assert_eq!(
        (&shown["channels"], &shown["tags"], &shown["eventType"]),
        (&json!(["blue"]), &json!(["t1"]), &json!("order.paid"))
    );
    assert_eq!(shown["payload"], json!({"n": 1}));
    assert!(world.get("msg/e-2").await["deliverAt"].is_string());
    let plain = eventually("the text", async || {
        world.receiver.arrivals_at("/hooks").into_iter().find(|arrival| arrival.body == "plain")
    })
    .await;
    assert_eq!(plain.header("content-type"), "text/plain");
    assert!(world.receiver.arrivals_at("/red").iter().all(|arrival| arrival.body == "plain"), "not yet, or not there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_each_key_arrive_in_the_order_in_which_many_producers_committed() {
    const PRODUCERS: usize = 8;
    const KEYS: usize = 5;
    const EACH: usize = 150;
    let producer = Producer::new().await;
    producer.run("CREATE TABLE ledger (place serial, key integer, n integer)").await;
    let world = world(&producer).await;
    let work = |who: usize, url: String| async move {
        let session = connect(&url).await;
        let run = async |sql: &str| session.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let mut rng = ChaCha8Rng::seed_from_u64(who as u64);
        for turn in 0..EACH {
            let (n, key) = (who * 1_000 + turn, rng.random_range(0..KEYS));
            run("BEGIN").await;
            run(&format!("SELECT postrider.send('acme', 'order.paid', '{{\"n\": {n}}}', ordering_key => 'k{key}')"))
                .await;
            // Meanwhile others draw greater numbers and commit, of other keys and of none.
            for _ in 0..rng.random_range(0..4) {
                run("SELECT postrider.send('acme', 'other', '{\"n\": 0}')").await;
            }
            // Under the key's lock, so that the ledger is in the order of the commits.
            run(&format!("INSERT INTO ledger (key, n) VALUES ({key}, {n})")).await;
            run(if rng.random_bool(0.2) { "ROLLBACK" } else { "COMMIT" }).await;
        }
    };
    let workers: Vec<_> = (1..=PRODUCERS).map(|who| tokio::spawn(work(who, producer.url.clone()))).collect();
    for worker in workers {
        worker.await.expect("it worked");
    }
    let mut committed: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for row in producer.session.query("SELECT key, n FROM ledger ORDER BY place", &[]).await.expect("a list") {
        committed.entry(row.get(0)).or_default().push(row.get::<_, i32>(1) as usize);
    }
    let total: usize = committed.values().map(Vec::len).sum();
    let arrived = eventually("all that has a key", async || {
        let mut arrived = numbers(&world.receiver.arrivals_at("/hooks"));
        arrived.retain(|n| *n > 0);
        (arrived.len() >= total).then_some(arrived)
    })
    .await;
    for (key, committed) in committed {
        assert!(committed.windows(2).any(|pair| pair[0] > pair[1]), "they took turns");
        let arrived: Vec<usize> = arrived.iter().copied().filter(|n| committed.contains(n)).collect();
        assert_eq!(arrived, committed, "key {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_makes_one_message_of_each_row() {
    const ROWS: usize = 2_000;
    let producer = Producer::new().await;
    let mut world = world(&producer).await;
    let seed = postrider::clock::now().as_millis().unsigned_abs();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let writing = tokio::spawn(write(producer.url.clone(), ROWS, seed + 1));
    for turn in 0..8 {
        // Until something has moved, so that each life does a part of the work, and then a little more.
        let before = world.receiver.count();
        eventually("progress", async || {
            let moved = world.receiver.count() > before || producer.counts().await.0 == 0;
            moved.then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..60))).await;
        if turn % 4 == 3 {
            assert_eq!(world.server.stop().code(), Some(0));
            world.start_again();
        } else {
            world.kill_and_start_again();
        }
    }
    writing.await.expect("all is written");
    producer.wait_until_empty().await;
    let arrivals = all_arrived(&world, ROWS).await;
    assert_eq!(messages(&arrivals).len(), ROWS);
    let stored = world.list("msg").await;
    assert_eq!(stored.len(), ROWS, "and none that did not arrive");
    check_order(&arrivals);
    assert_eq!(producer.counts().await, (0, 0));
}

#[tokio::test]
async fn of_two_servers_one_relays_and_the_other_takes_over() {
    let producer = Producer::new().await;
    let mut first = world(&producer).await;
    producer.send(0, "").await;
    first.receiver.wait_for("/hooks", 1).await;
    let second = Server::start_with(&["--outbox", &producer.url]);
    let mut client = api::Client::new(second.address(), second.token());
    client.create("/api/v1/app", &json!({"name": "Acme", "uid": "acme"})).await;
    let endpoint = json!({"url": first.receiver.url("/second"), "uid": "second"});
    client.create("/api/v1/app/acme/endpoint", &endpoint).await;
    for n in 1..=100 {
        producer.send(n, "").await;
    }
    producer.wait_until_empty().await;
    first.receiver.wait_for("/hooks", 101).await;
    assert!(first.receiver.arrivals_at("/second").is_empty());
    for n in 101..=200 {
        producer.send(n, "").await;
        if n == 150 {
            first.server.kill();
        }
    }
    producer.wait_until_empty().await;
    first.start_again();
    // What the first one may have had in hand the second must not send: it cannot know.
    let status = producer.status().await;
    let doubtful = status["failed"].as_u64().expect("a number") as usize;
    for row in status["failures"].as_array().expect("a list") {
        assert_eq!(row["mayHaveBeenSent"], true, "{row}");
    }
    let all = eventually("the rest", async || {
        let all = first.receiver.arrivals();
        let rows = all.iter().map(n).collect::<BTreeSet<_>>().len();
        (rows + doubtful >= 201).then_some(all)
    })
    .await;
    messages(&all);
    assert!(all.iter().any(|arrival| arrival.path == "/second"), "the second one took over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_of_which_one_is_killed_again_and_again_make_one_message_of_each_row() {
    const ROWS: usize = 1_000;
    let producer = Producer::new().await;
    let database = Cluster::shared().fresh_database().await;
    let flags = ["--database-url", &database, "--outbox", &producer.url];
    let mut world = World::start_with(&flags).await;
    world.endpoint("/hooks", json!({})).await;
    let mut other = Server::not_started(&flags);
    fs::create_dir(other.data()).expect("made");
    fs::copy(world.server.data().join(Keyring::FILE), other.data().join(Keyring::FILE)).expect("copied");
    other.start_again();
    let writing = tokio::spawn(write(producer.url.clone(), ROWS, 7));
    for turn in 0..6 {
        let before = world.receiver.count();
        eventually("progress", async || {
            let moved = world.receiver.count() > before || producer.counts().await.0 == 0;
            moved.then_some(())
        })
        .await;
        if turn % 2 == 0 {
            world.kill_and_start_again();
        } else {
            other.kill();
            other.start_again();
        }
    }
    writing.await.expect("all is written");
    producer.wait_until_empty().await;
    let arrivals = all_arrived(&world, ROWS).await;
    assert_eq!(messages(&arrivals).len(), ROWS);
    assert_eq!(world.list("msg").await.len(), ROWS, "and none that did not arrive");
    check_order(&arrivals);
    assert_eq!(producer.counts().await, (0, 0));
}

#[tokio::test]
async fn a_producers_database_may_go_away_and_come_back() {
    let cluster = Cluster::start();
    let mut producer = Producer::at(cluster.fresh_database().await).await;
    let mut world = world(&producer).await;
    for (turn, mode) in [Mode::Fast, Mode::Immediate].into_iter().enumerate() {
        for n in 0..50 {
            producer.send(turn * 100 + n, ", ordering_key => 'k'").await;
        }
        cluster.stop(mode);
        eventually("the server to notice", async || {
            let metrics = world.client.metrics().await;
            (gauge(&metrics, "postrider_outbox_up") == Some(0.0)).then_some(())
        })
        .await;
        cluster.resume();
        producer.session = connect(&producer.url).await;
        producer.send(turn * 100 + 50, ", ordering_key => 'k'").await;
        producer.wait_until_empty().await;
    }
    let arrivals = world.receiver.wait_for("/hooks", 102).await;
    let expected: Vec<usize> = (0..=50).chain(100..=150).collect();
    assert_eq!(messages(&arrivals).into_keys().collect::<Vec<_>>(), expected);
    assert_eq!(numbers(&arrivals), expected, "in order, too");
}

#[tokio::test]
async fn a_row_that_cannot_be_sent_is_set_aside_and_holds_nobody_up() {
    let producer = Producer::new().await;
    let mut world = world(&producer).await;
    world.send_with("a.b", json!({"eventId": "taken"})).await;
    world.receiver.wait_for("/hooks", 1).await;
    let deep = format!("{{\"n\": {}1{}}}", "[".repeat(70), "]".repeat(70));
    producer
        .run(&format!(
            "BEGIN;
             SELECT postrider.send('acme', 'a.b', '{deep}', ordering_key => 'k');
             SELECT postrider.send('acme', 'a.b', '{{\"n\": \"\\ud800\"}}', ordering_key => 'k');
             SELECT postrider.send('acme', 'a.b', '{{\"n\": 7}}', event_id => 'taken', ordering_key => 'k');
             SELECT postrider.send('nobody', 'a.b', '{{\"n\": 8}}', ordering_key => 'k');
             SELECT postrider.send('acme', 'a.b', '{{\"n\": 9}}', ordering_key => 'k');
             COMMIT"
        ))
        .await;
    let arrivals = world.receiver.wait_for("/hooks", 2).await;
    assert_eq!(n(&arrivals[1]), 9);
    producer.wait_until_empty().await;
    let status = producer.status().await;
    assert_eq!((&status["waiting"], &status["failed"]), (&json!(0), &json!(4)));
    let failures = status["failures"].as_array().expect("a list");
    for (failure, expected) in failures.iter().zip([
        "nested deeper",
        "surrogate",
        "another message with this event_id",
        "no application `nobody`",
    ]) {
        assert!(failure["error"].as_str().expect("text").contains(expected), "{failure}");
        assert_eq!(failure["mayHaveBeenSent"], false, "{failure}");
    }
    eventually("the metric", async || {
        let metrics = world.client.metrics().await;
        (gauge(&metrics, "postrider_outbox_failed") == Some(4.0)).then_some(())
    })
    .await;
    // Somebody makes the application that was missing.
    world.client.create("/api/v1/app", &json!({"name": "Nobody", "uid": "nobody"})).await;
    let url = world.receiver.url("/nobody");
    world.client.create("/api/v1/app/nobody/endpoint", &json!({"url": url})).await;
    let last = failures[3]["id"].to_string();
    let again = outbox(&["retry", &last, "--database-url", &producer.url]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), "1 rows are tried again\n");
    let arrivals = world.receiver.wait_for("/nobody", 1).await;
    assert_eq!(n(&arrivals[0]), 8);
    assert!(!outbox(&["uninstall", "--database-url", &producer.url]).status.success());
    for command in ["retry", "discard"] {
        let nobody = outbox(&[command, "999999", "--database-url", &producer.url]);
        assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
        assert!(String::from_utf8_lossy(&nobody.stderr).contains("has the number 999999"), "{nobody:?}");
    }
    assert!(outbox(&["discard", "--all", "--database-url", &producer.url]).status.success());
    producer.wait_until_empty().await;
    assert_eq!(producer.counts().await, (0, 0));
    assert_eq!(world.receiver.arrivals_at("/hooks").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_rows_with_one_event_id_the_older_one_is_sent() {
    const PAIRS: usize = 100;
    let producer = Producer::new().await;
    let world = world(&producer).await;
    let pairs = (0..PAIRS).map(|pair| {
        let send = |n: usize| {
            format!("SELECT postrider.send('acme', 'order.paid', '{{\"n\": {n}}}', event_id => 'e-{pair}');")
        };
        send(2 * pair) + &send(2 * pair + 1)
    });
    producer.run(&format!("BEGIN; {} COMMIT", pairs.collect::<String>())).await;
    let mut arrived = numbers(&world.receiver.wait_for("/hooks", PAIRS).await);
    arrived.sort_unstable();
    assert_eq!(arrived, (0..PAIRS).map(|pair| 2 * pair).collect::<Vec<_>>());
    producer.wait_until_empty().await;
    assert_eq!(producer.counts().await, (0, PAIRS as i64));
}

/// What is left by a server that died between storing a message and deleting its row, when so much time has passed that
/// the idempotency key is forgotten.
#[tokio::test]
async fn a_row_found_long_after_it_was_taken_is_recognised_by_its_event_id() {
    let producer = Producer::new().await;
    let mut world = world(&producer).await;
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    for event_id in ["same", "other"] {
        let (status, _) =
            world.post("msg", json!({"eventType": "a.b", "payload": {"n": 1}, "eventId": event_id})).await;
        assert_eq!(status, 202);
    }
    world.receiver.wait_for("/hooks", 2).await;
    let taken = |row: &str, app: &str, known: &str| {
        format!(
            "SELECT postrider.send('acme', 'a.b', {row}, ordering_key => NULL);
             UPDATE postrider.outbox SET taken_at = now() - interval '30 days', taken_app = '{app}',
                 known_until = now() + interval '{known}' WHERE id = currval('postrider.outbox_id');"
        )
    };
    let rows = [
        taken(r#"'{"n":1}', event_id => 'same'"#, &app, "1 day"),
        taken(r#"'{"n":2}', event_id => 'other'"#, &app, "1 day"),
        taken(r#"'{"n":3}'"#, &app, "-1 day"),
        taken(r#"'{"n":4}'"#, "app_nobody", "1 day"),
        taken(r#"'{"n":5}'"#, &app, "1 day"),
    ];
    producer.run(&format!("BEGIN; {} COMMIT", rows.concat())).await;
    producer.wait_until_empty().await;
    let arrivals = world.receiver.wait_for("/hooks", 3).await;
    assert_eq!(n(&arrivals[2]), 5, "it was taken, but not stored");
    let status = producer.status().await;
    let failures = status["failures"].as_array().expect("a list");
    let expected = ["another message with this event_id", "not known any more", "no application"];
    assert_eq!(failures.len(), expected.len(), "{status}");
    for (failure, expected) in failures.iter().zip(expected) {
        assert!(failure["error"].as_str().expect("text").contains(expected), "{failure}");
        assert_eq!(failure["mayHaveBeenSent"], true, "{failure}");
    }
    assert_eq!(world.list("msg").await.len(), 3);
}

#[tokio::test]
async fn a_number_that_comes_a_second_time_with_another_event_is_not_taken_for_a_repetition() {
    let producer = Producer::new().await;
    let mut world = world(&producer).await;
    producer.send(1, "").await;
    producer.wait_until_empty().await;
    // As after a restore of the producer's database from a backup.
    producer.run("SELECT setval('postrider.outbox_id', 1, false)").await;
    producer.send(2, "").await;
    producer.wait_until_empty().await;
    let status = producer.status().await;
    assert!(status["failures"][0]["error"].as_str().expect("text").contains("set back"), "{status}");
    assert_eq!(world.list("msg").await.len(), 1);
}

#[tokio::test]
async fn the_backlog_and_its_age_are_metrics() {
    let producer = Producer::new().await;
    producer.send(1, "").await;
    producer.run("UPDATE postrider.outbox SET created_at = now() - interval '1 hour'").await;
    // Somebody else has the right to relay, and does not.
    let key =
        "SELECT pg_advisory_lock(hashtextextended('postrider outbox relay ' || identity, 0)) FROM postrider.about";
    producer.run(key).await;
    let mut world = world(&producer).await;
    eventually("a second relay that waits", async || {
        let metrics = world.client.metrics().await;
        (gauge(&metrics, "postrider_outbox_up") == Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(producer.counts().await.0, 1);
    // One of its rows is locked, so that the relay counts it before it can take it.
    let blocker = connect(&producer.url).await;
    blocker.batch_execute("BEGIN; SELECT FROM postrider.outbox FOR UPDATE").await.expect("locked");
    producer.run("SELECT pg_advisory_unlock_all()").await;
    let metrics = eventually("the age of the row", async || {
        let metrics = world.client.metrics().await;
        (gauge(&metrics, "postrider_outbox_lag_seconds")? >= 3_600.0).then_some(metrics)
    })
    .await;
    assert_eq!(gauge(&metrics, "postrider_outbox_rows"), Some(1.0));
    assert_eq!(gauge(&metrics, "postrider_outbox_relaying"), Some(1.0));
    blocker.batch_execute("COMMIT").await.expect("let go");
    world.receiver.wait_for("/hooks", 1).await;
    let metrics = eventually("an empty outbox", async || {
        let metrics = world.client.metrics().await;
        (gauge(&metrics, "postrider_outbox_rows") == Some(0.0)).then_some(metrics)
    })
    .await;
    assert_eq!(gauge(&metrics, "postrider_outbox_lag_seconds"), Some(0.0));
    assert_eq!(gauge(&metrics, "postrider_outbox_taken_total"), Some(1.0));
}

#[tokio::test]
async fn a_printed_script_makes_what_install_makes() {
    let url = Cluster::shared().fresh_database().await;
    let printed = outbox(&["install", "--print", "--schema", "hooks"]);
    let script = String::from_utf8(printed.stdout).expect("text");
    let session = connect(&url).await;
    session.batch_execute(&script).await.expect("it runs");
    session.batch_execute("SELECT hooks.send('acme', 'a.b', '{}')").await.expect("a row");
    let status = outbox(&["status", "--schema", "hooks", "--database-url", &url]);
    let shown = String::from_utf8(status.stdout).expect("text");
    assert!(shown.starts_with("1 rows wait, the oldest for "), "{shown}");
    let identities: Vec<Vec<u8>> =
        (0..2).map(|_| outbox(&["install", "--schema", "hooks", "--database-url", &url]).stdout).collect();
    assert_eq!(identities[0], identities[1]);
    let refused = outbox(&["uninstall", "--schema", "hooks", "--database-url", &url]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(outbox(&["uninstall", "--force", "--schema", "hooks", "--database-url", &url]).status.success());
    let gone = outbox(&["status", "--schema", "hooks", "--database-url", &url]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("postrider outbox install"), "{gone:?}");
    for wrong in [&["status"][..], &["status", "--database-url", "mysql://x"], &["retry", "--database-url", &url]] {
        assert_eq!(outbox(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let unclear = outbox(&["status", "--database-url", "postgres://u:half#of-it@db/shop"]);
    let said = String::from_utf8_lossy(&unclear.stderr);
    assert!(said.contains("%23") && !said.contains("half"), "{said}");
}

#[tokio::test]
async fn a_server_starts_without_the_producers_database() {
    let url = Cluster::shared().fresh_database().await;
    let mut world = World::start_with(&["--outbox", &url]).await;
    world.endpoint("/hooks", json!({})).await;
    eventually("a word about it", async || world.server.log().contains("there is no outbox").then_some(())).await;
    let producer = Producer::at(url).await;
    producer.send(1, "").await;
    world.receiver.wait_for("/hooks", 1).await;
    let (status, _) = world.call(Method::GET, "msg", Value::Null).await;
    assert_eq!(status, 200);
}

fn gauge(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn a_pooler_that_lends_connections_out_is_refused_and_one_in_session_mode_is_not() {
    let cluster = Cluster::start();
    let producer = Producer::at(cluster.fresh_database().await).await;
    let lending = Pooler::start(&cluster, PoolMode::Transaction);
    let url = lending.url(&cluster, &producer.url);
    let shown = outbox(&["status", "--database-url", &url]);
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(!shown.status.success() && said.contains(POOLED), "{said}");

    let mut refused = World::start_with(&["--outbox", &url]).await;
    producer.send(1, "").await;
    eventually("a word on the pooler", async || refused.server.log().contains(POOLED).then_some(())).await;
    assert_eq!(producer.counts().await, (1, 0), "nothing was taken over");
    assert!(refused.server.stop().success());
    // A lock that is left with the pooler would keep every relay away.
    let locks = producer.session.query_one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", &[]).await;
    assert_eq!(locks.expect("an answer").get::<_, i64>(0), 0);

    producer.run("DELETE FROM postrider.outbox").await;
    let whole = Pooler::start(&cluster, PoolMode::Session);
    let mut world = World::start_with(&["--outbox", &whole.url(&cluster, &producer.url)]).await;
    world.endpoint("/hooks", json!({})).await;
    producer.send(2, "").await;
    producer.wait_until_empty().await;
    assert_eq!(numbers(&world.receiver.wait_for("/hooks", 1).await), [2]);
}

const POOLED: &str = "a pooler in transaction mode stands before the producer's database";
