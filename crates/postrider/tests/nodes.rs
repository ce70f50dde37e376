//! Several nodes on one PostgreSQL, in one process: what each of them serves, and what the others' changes mean to it.

mod support;

use http_body_util::BodyExt;
use postrider::{
    clock,
    dispatch::{Dispatch, Means},
    transport::{AddressGuard, Transport, TransportConfig},
};
use postrider_engine::policy::Layer;
use postrider_store::{PostgresOptions, PostgresStore, postgres::DatabaseUrl};
use postrider_testbed::{Client, Cluster};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use support::{eventually, house::House, receiver::Receiver};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinHandle};
use tower::ServiceExt;

/// Where the nodes of one deployment meet.
struct Place {
    address: String,
    url: DatabaseUrl,
    folder: Arc<TempDir>,
}

impl Place {
    async fn new() -> Self {
        let address = Cluster::shared().fresh_database().await;
        let url = address.parse().expect("the testbed gives proper addresses");
        Self { address, url, folder: Arc::new(tempfile::tempdir().expect("a folder")) }
    }

    async fn session(&self) -> Client {
        postrider_testbed::connect(&self.address).await
    }

    /// Nobody learns how endpoints fare until the session that comes back ends its transaction.
    async fn hide_healths(&self) -> Client {
        let session = self.session().await;
        session.batch_execute("BEGIN; LOCK TABLE health IN ACCESS EXCLUSIVE MODE").await.expect("the table is there");
        session
    }

    /// So many nodes wait to learn how endpoints fare.
    async fn are_entering(&self, nodes: i64) {
        let session = self.session().await;
        eventually("nodes that read how lanes stand", async || {
            (count(&session, "pg_locks WHERE NOT granted AND relation = 'health'::regclass").await == nodes)
                .then_some(())
        })
        .await;
    }

    /// The API of a node, without a dispatcher behind it.
    async fn house(&self) -> House {
        self.house_with(ALERT).await
    }

    async fn house_with(&self, (heartbeat, lease): (Duration, Duration)) -> House {
        let options = PostgresOptions { heartbeat, lease, ..PostgresOptions::default() };
        let store = PostgresStore::open(&self.url, clock::now(), options).await.expect("the store opens");
        House::on(Arc::new(store), Arc::clone(&self.folder), own_machine(), Layer::default())
    }

    async fn node(&self) -> Node {
        self.node_with(ALERT).await
    }

    async fn node_with(&self, times: (Duration, Duration)) -> Node {
        let house = self.house_with(times).await;
        let transport = Transport::new(TransportConfig::new(AddressGuard::new(own_machine()))).expect("a transport");
        let api = &house.api;
        let (store, directory) = (Arc::clone(&house.store), Arc::clone(&api.directory));
        let dispatch = Dispatch::new(Means {
            store,
            directory,
            post: Arc::new(transport),
            ids: api.ids.clone(),
            tasks: Arc::clone(&api.tasks),
            clock: clock::own(),
            rng: StdRng::seed_from_u64(1),
        });
        let (stop, stopped) = watch::channel(false);
        Node { house, stop, dispatching: tokio::spawn(dispatch.run(stopped)) }
    }
}

/// How often a node renews its lease, and how long that is.
const ALERT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
const SLEEPY: (Duration, Duration) = (Duration::from_hours(1), Duration::from_millis(400));

fn own_machine() -> Vec<ipnet::IpNet> {
    vec!["127.0.0.0/8".parse().expect("a network")]
}

struct Node {
    house: House,
    stop: watch::Sender<bool>,
    dispatching: JoinHandle<()>,
}

impl Node {
    async fn stop(self) {
        self.stop.send_replace(true);
        self.dispatching.await.expect("the dispatcher ends by itself");
        self.house.store.close().await;
    }
}

async fn count(session: &Client, what: &str) -> i64 {
    session.query_one(&format!("SELECT count(*) FROM {what}"), &[]).await.expect("a count").get(0)
}

/// The lanes of so many applications, each with an endpoint of its own at the receiver.
async fn subscribe(house: &House, receiver: &Receiver, apps: usize) {
    for app in 0..apps {
        house.call("PUT", &format!("app/a{app}"), json!({"name": "A"})).await.expect(201);
        let body = json!({"url": receiver.url(&format!("/a{app}")), "ordering": "fifo"});
        house.call("PUT", &format!("app/a{app}/endpoint/hook"), body).await.expect(201);
    }
}

async fn send(house: &House, app: &str) -> String {
    let sent = house.post(&format!("app/{app}/msg"), json!({"eventType": "a.b", "payload": {}})).await.expect(202);
    sent["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_message_is_owed_to_an_endpoint_that_another_node_has_just_added() {
    let place = Place::new().await;
    let (one, two) = (place.house().await, place.house().await);
    one.call("PUT", "app/acme", json!({"name": "Acme"})).await.expect(201);
    // Nobody tells this one of changes, as if its news were late.
    send(&two, "acme").await;
    for endpoint in ["first", "second"] {
        let body = json!({"url": "https://example.com/", "ordering": "fifo"});
        one.call("PUT", &format!("app/acme/endpoint/{endpoint}"), body).await.expect(201);
        let message = send(&two, "acme").await;
        let owed = two.get(&format!("app/acme/msg/{message}/endpoint")).await.expect(200);
        let owed = owed["data"].as_array().expect("a list").iter().any(|it| it["uid"] == endpoint);
        assert!(owed, "{endpoint}");
    }
    one.call("DELETE", "app/acme", json!(null)).await.expect(204);
    let refused = two.post("app/acme/msg", json!({"eventType": "a.b", "payload": {}})).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(two.post("app/acme/msg", json!({"eventType": "a.b", "payload": {}})).await.status, 404);
    for house in [one, two] {
        house.store.close().await;
    }
}

/// Nobody tells these nodes of changes, as if their news were late.
#[tokio::test]
async fn a_source_is_the_same_at_every_node_and_an_event_sent_to_all_is_one_message() {
    let place = Place::new().await;
    let (one, two) = (place.house().await, place.house().await);
    let ask = async |house: &House, method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let mut request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        house.ask(request.body(axum::body::Body::from(body.to_owned())).expect("a request")).await
    };
    let token = format!("Bearer {}", one.token);
    let manage = [("authorization", token.as_str())];
    let body = json!({"name": "GitHub", "uid": "gh", "type": "github"}).to_string();
    let source = ask(&one, "POST", "/ingest/api/v1/source", &manage, &body).await.expect(201);
    let url =
        source["ingestUrl"].as_str().expect("a URL").strip_prefix("https://hooks.example").expect("ours").to_owned();
    let deliver = async |house: &House, id: &str| {
        let headers = [("x-github-event", "push"), ("x-github-delivery", id)];
        ask(house, "POST", &url, &headers, "{}").await.status.as_u16()
    };
    let both: Vec<&House> = [&one, &two].into_iter().cycle().take(20).collect();
    let heard = futures_util::future::join_all(both.into_iter().map(|house| deliver(house, "same"))).await;
    assert_eq!(heard, [200; 20]);
    let app = source["appId"].as_str().expect("an id");
    let kept = two.get(&format!("app/{app}/msg")).await.expect(200);
    assert_eq!(kept["data"].as_array().expect("a list").len(), 1);

    // From now on only what is signed is taken, also where the change is not known yet.
    let body = json!({"name": "GitHub", "uid": "gh", "type": "github", "config": {"secret": "s"}}).to_string();
    ask(&one, "PUT", "/ingest/api/v1/source/gh", &manage, &body).await.expect(200);
    assert_eq!(deliver(&two, "other").await, 401);
    // The last URL but one is over.
    for _ in 0..2 {
        ask(&one, "POST", "/ingest/api/v1/source/gh/token/rotate", &manage, "").await.expect(200);
    }
    assert_eq!(deliver(&one, "other").await, 404);
    let headers = [("x-hub-signature-256", "sha256=6b9a2b2bb4cd4fb6b75f1b24bdbae31ef2d0ff3b4c8f2f5b8a5fb8ac5a3b3f11")];
    assert_eq!(ask(&two, "POST", &url, &headers, "{}").await.status, 401, "it is verified by what is known there");
    let kept = two.get(&format!("app/{app}/msg")).await.expect(200);
    assert_eq!(kept["data"].as_array().expect("a list").len(), 1, "nothing more was taken");
    for house in [one, two] {
        house.store.close().await;
    }
}

/// Whichever of them owns the lane: the other one shows what it has not sent.
#[tokio::test]
async fn a_tail_shows_what_another_node_sends() {
    let (place, receiver) = (Place::new().await, Receiver::start());
    let (one, two) = (place.node().await, place.node().await);
    subscribe(&one.house, &receiver, 1).await;
    let mut tails = Vec::new();
    for node in [&one, &two] {
        let token = format!("Bearer {}", node.house.token);
        let request = http::Request::get("/api/v1/app/a0/tail").header("authorization", token);
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let response = node.house.router.clone().oneshot(request).await.expect("the router always answers");
        assert_eq!(response.status(), 200);
        tails.push(response.into_body());
    }
    let mut sent = vec!["id: ".to_owned()];
    for _ in 0..3 {
        sent.push(send(&one.house, "a0").await);
    }
    for tail in &mut tails {
        for expected in &sent {
            let piece = tokio::time::timeout(support::PATIENCE, tail.frame()).await.expect("in time").expect("a piece");
            let told = piece.expect("a piece").into_data().expect("data");
            assert!(String::from_utf8_lossy(&told).contains(expected), "{told:?} instead of {expected}");
        }
    }
    drop(tails);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn lanes_that_move_to_another_node_deliver_everything_once_and_in_order() {
    const APPS: usize = 24;
    let (place, receiver) = (Place::new().await, Receiver::start());
    let one = place.node().await;
    subscribe(&one.house, &receiver, APPS).await;
    let mut sent = 0;
    let mut send_to_all = async |houses: &[&House]| {
        for app in 0..APPS {
            send(houses[sent % houses.len()], &format!("a{app}")).await;
            sent += 1;
        }
        sent
    };
    for _ in 0..5 {
        send_to_all(&[&one.house]).await;
    }
    let two = place.node().await;
    for _ in 0..10 {
        send_to_all(&[&one.house, &two.house]).await;
    }
    one.stop().await;
    for _ in 0..4 {
        send_to_all(&[&two.house]).await;
    }
    let sent = send_to_all(&[&two.house]).await;
    eventually("all that was sent", async || (receiver.count() >= sent).then_some(())).await;
    two.stop().await;
    for app in 0..APPS {
        let arrivals = receiver.arrivals_at(&format!("/a{app}"));
        let numbers: Vec<usize> =
            arrivals.iter().map(|arrival| arrival.header("webhook-sequence").parse().expect("a number")).collect();
        assert_eq!(numbers, (1..=sent / APPS).collect::<Vec<_>>(), "a{app}");
    }
}

#[tokio::test]
async fn what_a_node_held_that_lost_its_lease_is_delivered_by_another_one_and_it_comes_back() {
    let (place, receiver) = (Place::new().await, Receiver::start());
    let sleepy = place.node_with(SLEEPY).await;
    sleepy.house.call("PUT", "app/acme", json!({"name": "Acme"})).await.expect(201);
    let body = json!({"url": receiver.url("/hook"), "ordering": "fifo"});
    sleepy.house.call("PUT", "app/acme/endpoint/hook", body).await.expect(201);
    let first = sleepy.house.store.tenure();
    eventually("the end of its lease", async || (!sleepy.house.store.may_send(first)).then_some(())).await;
    for _ in 0..20 {
        send(&sleepy.house, "acme").await;
    }
    let sent_before = receiver.count();
    let alert = place.node().await;
    let arrived = |receiver: &Receiver, number: usize| {
        receiver.arrivals().iter().any(|arrival| arrival.header("webhook-sequence") == number.to_string())
    };
    eventually("what the other one held", async || arrived(&receiver, 20).then_some(())).await;
    eventually("the news that it is over", async || {
        send(&sleepy.house, "acme").await;
        (sleepy.house.store.tenure() != first).then_some(())
    })
    .await;
    let message = send(&sleepy.house, "acme").await;
    eventually("what it took in afterwards", async || {
        receiver.arrivals().iter().any(|arrival| arrival.header("webhook-id") == message).then_some(())
    })
    .await;
    sleepy.stop().await;
    alert.stop().await;
    let mut numbers: Vec<usize> = (receiver.arrivals().iter().skip(sent_before))
        .map(|arrival| arrival.header("webhook-sequence").parse().expect("a number"))
        .collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    numbers.dedup();
    assert_eq!(numbers.last().copied(), Some(numbers.len() + numbers[0] - 1), "none is missing: {numbers:?}");
}

#[tokio::test]
async fn what_changed_while_a_node_was_not_one_of_them_holds_when_it_comes_back() {
    let place = Place::new().await;
    let (before, after) = (Receiver::start(), Receiver::start());
    let node = place.node().await;
    node.house.call("PUT", "app/acme", json!({"name": "Acme"})).await.expect(201);
    node.house.call("PUT", "app/acme/endpoint/hook", json!({"url": before.url("/hook")})).await.expect(201);
    send(&node.house, "acme").await;
    before.wait_for("/hook", 1).await;
    let tenure = node.house.store.tenure();
    // As another node would, that found its lease over: nobody tells it of what is changed then.
    let change = format!(
        "BEGIN; UPDATE shard SET node = NULL; DELETE FROM lease; DELETE FROM node;
         UPDATE endpoint SET url = '{}'; COMMIT",
        after.url("/hook")
    );
    postrider_testbed::connect(&place.address).await.batch_execute(&change).await.expect("changed");
    eventually("its return", async || (node.house.store.tenure() != tenure).then_some(())).await;
    eventually("that it serves again", async || {
        let store = &node.house.store;
        store.may_send(store.tenure()).then_some(())
    })
    .await;
    send(&node.house, "acme").await;
    after.wait_for("/hook", 1).await;
    assert_eq!(before.count(), 1);
    node.stop().await;
}

#[tokio::test]
async fn a_node_serves_its_lanes_while_it_reads_how_others_stand_that_it_takes_over() {
    const APPS: usize = 24;
    let (place, receiver) = (Place::new().await, Receiver::start());
    let (one, two) = (place.node().await, place.node().await);
    subscribe(&one.house, &receiver, APPS).await;
    let session = place.session().await;
    let shared = "(SELECT node FROM shard GROUP BY node HAVING node IS NOT NULL AND count(*) = 128) AS even";
    eventually("an even share", async || (count(&session, shared).await == 2).then_some(())).await;
    let tenure = two.house.store.tenure().0;
    let apps = session.query("SELECT (key % 65521) % 256, uid FROM application", &[]).await.expect("applications");
    let shards = session.query("SELECT number FROM shard WHERE node = $1", &[&tenure]).await.expect("shards");
    let shards: Vec<i64> = shards.iter().map(|row| i64::from(row.get::<_, i16>(0))).collect();
    let apps = apps.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, String>(1)));
    let (served, taken_over): (Vec<_>, Vec<_>) = apps.partition(|(shard, _)| shards.contains(shard));
    assert!(!served.is_empty() && !taken_over.is_empty(), "24 applications lie in both halves");
    for (_, app) in served.iter().chain(&taken_over) {
        send(&one.house, app).await;
    }
    eventually("both at work", async || (receiver.count() == APPS).then_some(())).await;

    let hidden = place.hide_healths().await;
    one.stop().await;
    place.are_entering(1).await;
    for (_, app) in taken_over.iter().chain(&served) {
        send(&two.house, app).await;
    }
    let all_got = |apps: &[(i64, String)], count: usize| {
        apps.iter().all(|(_, app)| receiver.arrivals_at(&format!("/{app}")).len() == count)
    };
    eventually("what was served all along", async || all_got(&served, 2).then_some(())).await;
    assert!(all_got(&taken_over, 1), "nothing was sent blindly");
    hidden.batch_execute("COMMIT").await.expect("it is let go");
    eventually("what was taken over", async || all_got(&taken_over, 2).then_some(())).await;
    two.stop().await;
}

#[tokio::test]
async fn lanes_that_are_wanted_elsewhere_are_given_back_before_they_are_known() {
    const APPS: usize = 24;
    let (place, receiver) = (Place::new().await, Receiver::start());
    let house = place.house().await;
    subscribe(&house, &receiver, APPS).await;
    house.store.close().await;
    let hidden = place.hide_healths().await;
    let one = place.node().await;
    place.are_entering(1).await;
    let two = place.node().await;
    place.are_entering(2).await;
    for app in 0..APPS {
        send(if app % 2 == 0 { &one.house } else { &two.house }, &format!("a{app}")).await;
    }
    assert_eq!(receiver.count(), 0, "nothing was sent blindly");
    hidden.batch_execute("COMMIT").await.expect("it is let go");
    eventually("what was sent", async || (receiver.count() == APPS).then_some(())).await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_node_that_stops_while_it_reads_gives_back_what_it_was_offered() {
    let place = Place::new().await;
    place.house().await.store.close().await;
    let (hidden, session) = (place.hide_healths().await, place.session().await);
    let node = place.node().await;
    place.are_entering(1).await;
    let Node { house, stop, dispatching } = node;
    stop.send_replace(true);
    dispatching.await.expect("the dispatcher ends by itself");
    assert_eq!(count(&session, "shard WHERE node IS NOT NULL").await, 0);
    house.store.close().await;
    drop(hidden);
}
