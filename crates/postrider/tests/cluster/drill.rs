//! Several nodes under load, with everything that happens to them written down as it happens.
//!
//! Producers run on a runtime of their own, so that the test's thread can do harm by the clock.

use super::{
    judge::{Arrival, Endpoint, Event, Fault, Kind, Logs, Message, Refusal},
    support::{
        POLL,
        api::{Broken, Client},
        cluster::Cluster,
        eventually,
        receiver::{Answer, Receiver},
        server::Server,
    },
};
use bytes::Bytes;
use http::{Method, StatusCode};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, task::JoinHandle};

pub struct Drill {
    pub cluster: Cluster,
    pub receiver: Receiver,
    faults: Vec<Fault>,
    runtime: Runtime,
    book: Arc<Book>,
    /// The last of them offers nothing and looks.
    producers: Vec<JoinHandle<()>>,
}

impl Drill {
    /// Everything is drawn from the seed but what the machine decides.
    pub fn start(cluster: Cluster, seed: u64) -> Self {
        let receiver = Receiver::start();
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(set_up(&cluster, &receiver, seed));
        let book = Arc::<Book>::default();
        let mut producers: Vec<_> = streams()
            .into_iter()
            .enumerate()
            .map(|(number, stream)| {
                let doors = Doors::of(&cluster, stream.patience, seed.wrapping_add(number as u64));
                runtime.spawn(produce(Arc::clone(&book), doors, stream))
            })
            .collect();
        producers.push(runtime.spawn(observe(Arc::clone(&book), Doors::of(&cluster, SOME, seed))));
        Self { cluster, receiver, faults: Vec::new(), runtime, book, producers }
    }

    /// Lets it run. This is when the fault comes, and nothing waits for it.
    pub fn run_for(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Does some harm, and waits until all lanes are served again and all nodes accept again.
    pub fn suffer(&mut self, harm: impl FnOnce(&mut Cluster) -> Kind) {
        let from = Instant::now();
        let kind = harm(&mut self.cluster);
        let healed = Instant::now();
        self.wait_for_flow();
        self.runtime.block_on(wait_for_acceptance(&self.cluster));
        let to = Instant::now();
        println!("{kind:?}: {:?} of harm, all lanes served {:?} later", healed - from, to - healed);
        self.faults.push(Fault { kind, from, to });
    }

    /// Kills a node and starts it again, and waits for nothing more than that it is ready.
    pub fn kill_and_go_on(&mut self, node: usize) {
        self.kill(node);
        self.start_again(node);
    }

    pub fn kill(&mut self, node: usize) {
        let alive = Instant::now();
        self.cluster.nodes[node].server.kill();
        self.note_kill(node, alive, alive);
    }

    /// After a kill, which has lasted until now.
    pub fn start_again(&mut self, node: usize) {
        self.cluster.nodes[node].server.start_again();
        self.prolong(node);
    }

    /// Whatever ended the node last keeps it away until now.
    fn prolong(&mut self, node: usize) {
        let ended = |fault: &&mut Fault| matches!(fault.kind, Kind::Killed { node: killed, .. } if killed == node);
        self.faults.iter_mut().rev().find(ended).expect("it was killed").to = Instant::now();
    }

    /// Starts a node, which must not be running, so that it ends at a mark, and waits until it has. `then` is done once it
    /// serves shards, if it gets so far. Panics if it never comes by there.
    pub fn end_at(&mut self, node: usize, crash_at: &str, lease: Duration, then: impl FnOnce(&mut Server)) {
        self.prolong(node);
        let from = Instant::now();
        let server = &mut self.cluster.nodes[node].server;
        server.set_variables(&[("CRASH_AT", crash_at)]);
        server.begin_again();
        let mut then = Some(then);
        let mut client = Client::new(server.address(), self.cluster.token());
        let mut has_all = false;
        let mut alive = from;
        let status = loop {
            let server = &mut self.cluster.nodes[node].server;
            let before = Instant::now();
            if let Some(status) = server.has_ended() {
                break status;
            }
            alive = before;
            if then.is_some() && self.runtime.block_on(client.serves_shards()) {
                let then = then.take().expect("it was looked at");
                then(server);
            }
            assert!(from.elapsed() < FLOW_WITHIN, "it did not come by {crash_at}; its log says:\n{}", server.log());
            // Of a few applications none may lie in its share. Then it gets the others' too.
            if !has_all && from.elapsed() > 4 * lease {
                has_all = true;
                self.restart_all_but(node);
            }
            thread::sleep(POLL / 5);
        };
        let server = &mut self.cluster.nodes[node].server;
        server.set_variables(&[]);
        assert_eq!(status.code(), None, "it ended otherwise than at {crash_at}: {status}\n{}", server.log());
        self.note_kill(node, from, alive);
    }

    /// In good order, so that their lanes are handed over.
    fn restart_all_but(&mut self, node: usize) {
        for other in (0..self.cluster.nodes.len()).filter(|other| *other != node) {
            let from = Instant::now();
            let server = &mut self.cluster.nodes[other].server;
            assert_eq!(server.stop().code(), Some(0));
            server.start_again();
            self.faults.push(Fault { kind: Kind::Stopped { node: other }, from, to: Instant::now() });
        }
    }

    /// It accepted nothing from then on, and was seen alive then; now it is dead.
    fn note_kill(&mut self, node: usize, from: Instant, alive: Instant) {
        let dead = Instant::now();
        self.faults.push(Fault { kind: Kind::Killed { node, alive, dead }, from, to: dead });
    }

    /// Waits until something new has come to every endpoint.
    pub fn wait_for_flow(&self) {
        let began = Instant::now();
        for endpoint in endpoints() {
            while self.receiver.newest_at(&endpoint.path).is_none_or(|newest| newest < began) {
                assert!(began.elapsed() < FLOW_WITHIN, "nothing comes to {} any more", endpoint.path);
                thread::sleep(POLL);
            }
        }
    }

    pub fn accepted(&self) -> usize {
        self.book.lock().events.iter().filter(|event| event.message.is_some()).count()
    }

    /// Ends the load, waits until nothing is left to do, and gathers what everyone has to say.
    pub fn finish(&mut self) -> Logs {
        self.book.is_over.store(true, Relaxed);
        let node = &self.cluster.nodes[0].server;
        let mut client = Client::new(node.address(), self.cluster.token());
        let producers = std::mem::take(&mut self.producers);
        let ended = Instant::now();
        self.runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + REST_WITHIN;
            for producer in producers {
                let ended = tokio::time::timeout_at(deadline, producer).await;
                ended.expect("every event is accepted in the end").expect("no producer got a strange answer");
            }
            let late = std::mem::take(&mut self.book.lock().late);
            for call in late {
                call.await.expect("no node gave a strange answer");
            }
            // If it never comes to rest, the judge says what is missing.
            let events = self.book.lock().events.clone();
            let _ = tokio::time::timeout_at(deadline, rest(&mut client, &events)).await;
        });
        println!("at rest {:?} after the last event", ended.elapsed());
        // A call that was given up would be in the way of the next.
        let mut client = Client::new(self.cluster.nodes[0].server.address(), self.cluster.token());
        let mut logs = self.runtime.block_on(look(&mut client)).expect("the node answers");
        let book = self.book.lock();
        println!("{} requests of producers got no answer in time", book.impatient);
        logs.endpoints = endpoints();
        logs.events = book.events.clone();
        logs.refusals = book.refusals.clone();
        logs.sightings = book.sightings.clone();
        logs.arrivals = arrivals(&self.receiver);
        logs.faults = std::mem::take(&mut self.faults);
        logs
    }
}

/// To an application that nobody listens to.
async fn wait_for_acceptance(cluster: &Cluster) {
    let path = format!("/api/v1/app/{NOBODY}/msg");
    for node in &cluster.nodes {
        let mut client = Client::new(node.server.address(), cluster.token());
        let body = json!({"eventType": "it.happened", "payload": {}}).to_string();
        eventually("a node that accepts", async || {
            client
                .send(Method::POST, &path, &[], &body)
                .await
                .ok()
                .filter(|(status, _)| *status == StatusCode::ACCEPTED)
        })
        .await;
    }
}

/// What the producers write down.
#[derive(Default)]
struct Book {
    pages: Mutex<Pages>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Pages {
    events: Vec<Event>,
    refusals: Vec<Refusal>,
    /// Requests that their producer no longer waited for. What comes of them is written down all the same: a node that is
    /// well answers in the end.
    late: Vec<JoinHandle<()>>,
    impatient: usize,
    /// The first of each delivery.
    sightings: BTreeMap<(String, String), Instant>,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("no one panics while holding the book")
    }
}

const PLAIN: [&str; 4] = ["plain-0", "plain-1", "plain-2", "plain-3"];
const NOBODY: &str = "nobody";
const CAP: usize = 4;
const RATE: u32 = 50;

pub fn endpoints() -> Vec<Endpoint> {
    let plain = |app, path: &str| Endpoint {
        app,
        path: path.to_owned(),
        in_flight_max: None,
        rate: None,
        is_ordered: false,
        is_moody: false,
    };
    let mut all: Vec<Endpoint> = Vec::new();
    for app in PLAIN {
        all.extend(["a", "b"].map(|part| plain(app, &format!("/{app}-{part}"))));
    }
    all.push(Endpoint { in_flight_max: Some(CAP), ..plain("capped", "/capped") });
    all.push(Endpoint { rate: Some(RATE), ..plain("rated", "/rated") });
    all.push(Endpoint { is_ordered: true, is_moody: true, ..plain("keyed", "/keyed") });
    all.push(Endpoint { is_ordered: true, is_moody: true, ..plain("fifo", "/fifo") });
    all.push(Endpoint { is_moody: true, ..plain("moody", "/moody") });
    all
}

/// What one producer offers.
struct Stream {
    app: &'static str,
    key: Option<String>,
    series: Option<String>,
    /// Between two events.
    thinking: Duration,
    /// After so many events without a pause, a longer one.
    burst: usize,
    patience: Duration,
}

fn streams() -> Vec<Stream> {
    let steady = |app, millis| {
        let thinking = Duration::from_millis(millis);
        Stream { app, key: None, series: None, thinking, burst: 1, patience: SOME }
    };
    // A patient one hears what a node says that was in trouble for long.
    let mut all: Vec<Stream> = PLAIN.map(|app| Stream { patience: MUCH, ..steady(app, 40) }).into();
    all.extend(PLAIN.map(|app| steady(app, 80)));
    all.push(steady("capped", 30));
    // Twice what goes at once, and a little less than the rate in the long run.
    all.push(Stream { burst: 2 * RATE as usize, ..steady("rated", 2_500) });
    for key in ["red", "green", "blue"] {
        let series = Some(key.to_owned());
        all.push(Stream { key: Some(key.to_owned()), series, ..steady("keyed", 60) });
    }
    all.push(Stream { series: Some("fifo".to_owned()), ..steady("fifo", 60) });
    all.push(steady("moody", 50));
    all
}

async fn set_up(cluster: &Cluster, receiver: &Receiver, seed: u64) {
    let mut client = Client::new(cluster.nodes[0].server.address(), cluster.token());
    client.create("/api/v1/app", &json!({ "name": NOBODY, "uid": NOBODY })).await;
    let mut made: Vec<&str> = Vec::new();
    for endpoint in endpoints() {
        let app = endpoint.app;
        if !made.contains(&app) {
            client.create("/api/v1/app", &json!({ "name": app, "uid": app })).await;
            made.push(app);
        }
        let mut body = json!({ "url": receiver.url(&endpoint.path), "uid": uid(&endpoint) });
        if let Some(cap) = endpoint.in_flight_max {
            body["maxInFlight"] = json!(cap);
        }
        if let Some(rate) = endpoint.rate {
            body["rateLimit"] = json!(rate);
        }
        if endpoint.is_moody {
            body["circuitBreaker"] = json!(false);
            let schedule = json!({"type": "fixed", "interval": "20ms"});
            body["retryPolicy"] = json!({"schedule": schedule, "jitter": "none", "maxAttempts": 500});
            receiver.script(&endpoint.path, moods(seed), Answer::Status(204));
        }
        if app == "fifo" {
            body["ordering"] = json!("fifo");
        }
        client.create(&format!("/api/v1/app/{app}/endpoint"), &body).await;
    }
    receiver.always("/capped", Answer::Status(204).after(Duration::from_millis(80)));
}

fn uid(endpoint: &Endpoint) -> &str {
    endpoint.path.trim_start_matches('/')
}

/// Refuses a request now and then.
fn moods(seed: u64) -> Vec<Answer> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mood = |n: u32| if n < 2 { Answer::Status(503) } else { Answer::Status(204) };
    (0..20_000).map(|_| mood(rng.random_range(0..10))).collect()
}

/// The nodes, as a producer knows them: it keeps to one until that one fails it, or it feels like a change.
struct Doors {
    nodes: Vec<Client>,
    fresh: Vec<(std::net::SocketAddr, String)>,
    at: usize,
    /// How long it waits before it turns to another node, with the same key.
    patience: Duration,
    rng: ChaCha8Rng,
}

impl Doors {
    fn of(cluster: &Cluster, patience: Duration, seed: u64) -> Self {
        let fresh: Vec<_> =
            cluster.nodes.iter().map(|node| (node.server.address(), cluster.token().to_owned())).collect();
        let nodes = fresh.iter().map(|(address, token)| Client::new(*address, token)).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self { at: rng.random_range(0..fresh.len()), nodes, fresh, patience, rng }
    }

    /// What comes of it within the producer's patience. What comes later goes into the book.
    async fn knock(&mut self, book: &Arc<Book>, path: &str, key: &str, body: &str) -> Option<Knocked> {
        let (address, token) = &self.fresh[self.at];
        let mut client = std::mem::replace(&mut self.nodes[self.at], Client::new(*address, token));
        let (path, key, body) = (path.to_owned(), key.to_owned(), body.to_owned());
        let (node, began) = (self.at, Instant::now());
        let mut call = tokio::spawn(async move {
            let answer = client.send(Method::POST, &path, &[("idempotency-key", &key)], &body).await;
            (client, Knocked::of(answer, node, &body))
        });
        match tokio::time::timeout(self.patience, &mut call).await {
            Ok(answered) => {
                let (client, knocked) = answered.expect("no node gives a strange answer");
                self.nodes[node] = client;
                Some(knocked)
            }
            // Its connection stays with it: what is under way there would stand in the way.
            Err(_) => {
                let its_book = Arc::clone(book);
                let late = tokio::spawn(async move {
                    match call.await.expect("no node gives a strange answer").1 {
                        Knocked::Accepted(_) => {}
                        Knocked::Refused(what) => {
                            its_book.lock().refusals.push(Refusal { node, began, ended: Instant::now(), what });
                        }
                    }
                });
                let mut book = book.lock();
                book.late.push(late);
                book.impatient += 1;
                None
            }
        }
    }

    fn go_on(&mut self) {
        self.at = (self.at + self.rng.random_range(1..self.nodes.len())) % self.nodes.len();
    }
}

enum Knocked {
    Accepted(String),
    Refused(String),
}

impl Knocked {
    fn of(answer: Result<(StatusCode, Bytes), Broken>, node: usize, body: &str) -> Self {
        match answer {
            Ok((StatusCode::ACCEPTED, answer)) => {
                let answer: MessageOut = serde_json::from_slice(&answer).expect("a message");
                Self::Accepted(answer.id)
            }
            Ok((StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, answer)) => {
                Self::Refused(String::from_utf8_lossy(&answer).into_owned())
            }
            Ok((status, answer)) => {
                panic!("node {node} answered {status} {} to {body}", String::from_utf8_lossy(&answer))
            }
            Err(Broken(why)) => Self::Refused(why),
        }
    }
}

/// Offers one event after the other, each one until some node accepts it.
async fn produce(book: Arc<Book>, mut doors: Doors, stream: Stream) {
    let path = format!("/api/v1/app/{}/msg", stream.app);
    for count in 1.. {
        if book.is_over.load(Relaxed) {
            return;
        }
        let number = {
            let mut book = book.lock();
            let number = book.events.len();
            let payload = payload(number);
            book.events.push(Event { app: stream.app, series: stream.series.clone(), payload, message: None });
            number
        };
        let mut body = format!("{{\"eventType\":\"it.happened\",\"payload\":{}", text(&payload(number)));
        if let Some(key) = &stream.key {
            body.push_str(&format!(",\"orderingKey\":\"{key}\""));
        }
        body.push('}');
        loop {
            let (node, began) = (doors.at, Instant::now());
            match doors.knock(&book, &path, &format!("event-{number}"), &body).await {
                Some(Knocked::Accepted(id)) => {
                    book.lock().events[number].message = Some(id);
                    break;
                }
                Some(Knocked::Refused(what)) => {
                    book.lock().refusals.push(Refusal { node, began, ended: Instant::now(), what });
                }
                None => {}
            }
            doors.go_on();
            tokio::time::sleep(BEFORE_REPEATING).await;
        }
        if doors.rng.random_range(0..20) == 0 {
            doors.go_on();
        }
        if count % stream.burst == 0 {
            tokio::time::sleep(stream.thinking).await;
        }
    }
}

/// Notes what some node calls delivered, at one endpoint after the other.
async fn observe(book: Arc<Book>, mut doors: Doors) {
    for endpoint in endpoints().iter().cycle() {
        if book.is_over.load(Relaxed) {
            return;
        }
        let path = format!("/api/v1/app/{}/attempt/endpoint/{}?status=0", endpoint.app, uid(endpoint));
        let call = doors.nodes[doors.at].send(Method::GET, &path, &[], "");
        match tokio::time::timeout(doors.patience, call).await {
            Ok(Ok((StatusCode::OK, answer))) => {
                let at = Instant::now();
                let newest: Newest = serde_json::from_slice(&answer).expect("a list");
                let mut book = book.lock();
                for attempt in newest.data {
                    book.sightings.entry((endpoint.path.clone(), attempt.msg_id)).or_insert(at);
                }
            }
            // Only what producers are told is judged.
            Ok(Ok(_) | Err(Broken(_))) => doors.go_on(),
            Err(_) => {
                let (address, token) = &doors.fresh[doors.at];
                doors.nodes[doors.at] = Client::new(*address, token);
                doors.go_on();
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

fn payload(number: usize) -> Bytes {
    Bytes::from(format!("{{\"event\":  {number}, \"price\":1.50 }}"))
}

fn text(payload: &Bytes) -> &str {
    str::from_utf8(payload).expect("it was made of text")
}

/// Every event was accepted, so every endpoint has as many deliveries to make as its application has events.
async fn rest(client: &mut Client, events: &[Event]) {
    let began = Instant::now();
    for endpoint in endpoints() {
        let owed = events.iter().filter(|event| event.app == endpoint.app).count();
        let path = format!("/api/v1/app/{}/endpoint/{}/stats", endpoint.app, uid(&endpoint));
        while client.get::<StatsOut>(&path).await.map_or(true, |stats| stats.success < owed) {
            tokio::time::sleep(POLL * 5).await;
        }
        println!("{} has everything {:?} after the last event", endpoint.path, began.elapsed());
    }
}

async fn look(client: &mut Client) -> Result<Logs, Broken> {
    let mut logs = Logs::default();
    let mut seen: Vec<&str> = Vec::new();
    for endpoint in endpoints() {
        let (app, uid) = (endpoint.app, uid(&endpoint));
        if !seen.contains(&app) {
            seen.push(app);
            for message in client.list::<MessageOut>(&format!("/api/v1/app/{app}/msg?with_content=true")).await? {
                let payload = Bytes::from(message.payload.get().to_owned());
                logs.messages.push(Message { id: message.id, app, payload });
            }
        }
        for delivery in client.list::<DeliveryOut>(&format!("/api/v1/app/{app}/endpoint/{uid}/msg")).await? {
            logs.deliveries.push((endpoint.path.clone(), delivery.id, delivery.status));
        }
        for attempt in client.list::<AttemptOut>(&format!("/api/v1/app/{app}/attempt/endpoint/{uid}")).await? {
            let AttemptOut { msg_id, response_status_code, verdict } = attempt;
            logs.attempts.push((endpoint.path.clone(), msg_id, verdict.attempt_number, response_status_code));
        }
    }
    Ok(logs)
}

fn arrivals(receiver: &Receiver) -> Vec<Arrival> {
    let mut arrivals = receiver.arrivals();
    arrivals.sort_by_key(|arrival| arrival.opened);
    let hang_ups = receiver.hang_ups();
    let read = |arrival: super::support::receiver::Arrival| Arrival {
        message: arrival.header("webhook-id").to_owned(),
        attempt: arrival.header("webhook-attempt").parse().expect("a number"),
        sequence: arrival
            .headers
            .get("webhook-sequence")
            .map(|number| number.to_str().ok().and_then(|number| number.parse().ok()).expect("a number")),
        is_taken: is_taken(&arrival.answer),
        path: arrival.path,
        body: arrival.body,
        opened: arrival.opened,
        closed: arrival.closed,
        hung_up: hang_ups.get(&arrival.connection).copied(),
    };
    arrivals.into_iter().map(read).collect()
}

fn is_taken(answer: &Answer) -> bool {
    match answer {
        Answer::Status(status) => *status == 204,
        Answer::After(_, then) => is_taken(then),
        Answer::Full { .. } | Answer::ByTry { .. } | Answer::Hang | Answer::Reset => false,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageOut {
    id: String,
    payload: Box<RawValue>,
}

#[derive(Deserialize)]
struct Newest {
    data: Vec<AttemptOut>,
}

#[derive(Deserialize)]
struct StatsOut {
    success: usize,
}

#[derive(Deserialize)]
struct DeliveryOut {
    id: String,
    status: u8,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttemptOut {
    msg_id: String,
    response_status_code: u16,
    verdict: VerdictOut,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VerdictOut {
    attempt_number: u32,
}

const SOME: Duration = Duration::from_secs(2);
const MUCH: Duration = Duration::from_secs(9);
const BEFORE_REPEATING: Duration = Duration::from_millis(20);
/// With much room for a busy machine: a lease, and what was put off meanwhile.
const FLOW_WITHIN: Duration = Duration::from_secs(60);
const REST_WITHIN: Duration = Duration::from_secs(120);
