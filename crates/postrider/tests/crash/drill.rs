//! A server under load, with everything that happens to it written down as it happens.
//!
//! Producers and an observer run on a runtime of their own, so that the test's thread can start and end the server
//! by the clock.

use super::{
    checker::{Arrival, End, Endpoint, Event, Logs, Message, Receipt, Run, Sighting, View},
    support::{
        PATIENCE, POLL,
        api::{Broken, Client},
        eventually,
        receiver::{Answer, Receiver},
        server::Server,
        stores::StoreKind,
    },
};
use bytes::Bytes;
use http::{Method, StatusCode};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::{
    collections::{HashMap, HashSet},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, task::JoinHandle};

pub struct Drill {
    pub server: Server,
    pub receiver: Receiver,
    pub runs: Vec<Run>,
    /// Then nothing can be said about how long a retry waited.
    pub clock_was_set: bool,
    runtime: Runtime,
    book: Arc<Book>,
    producers: Vec<JoinHandle<()>>,
    observer: JoinHandle<()>,
}

impl Drill {
    /// Everything is drawn from the seed but what the machine decides.
    pub fn start(store: StoreKind, seed: u64, flags: &[&str]) -> Self {
        let receiver = Receiver::start();
        let began = Instant::now();
        Self::start_with(Server::start_on(store, flags), receiver, began, seed)
    }

    /// With a server that has just been started.
    pub fn start_with(server: Server, receiver: Receiver, began: Instant, seed: u64) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(set_up(&server, &receiver));
        let book = Arc::<Book>::default();
        let client = || Client::new(server.address(), server.token());
        let producers = (0..PRODUCERS)
            .map(|number| runtime.spawn(produce(Arc::clone(&book), client(), seed.wrapping_add(number))))
            .collect();
        let observer = runtime.spawn(observe(Arc::clone(&book), client()));
        let runs = vec![Run { began, end: None }];
        Self { server, receiver, runs, clock_was_set: false, runtime, book, producers, observer }
    }

    /// Lets it run. This is when the fault comes, and nothing waits for it.
    pub fn run_for(&self, time: Duration) {
        thread::sleep(time);
    }

    pub fn kill(&mut self) {
        self.note_end(End::Killed { at: Instant::now() });
        self.server.kill();
    }

    pub fn stop(&mut self) -> ExitStatus {
        let status = self.server.stop();
        self.note_end(End::Stopped);
        status
    }

    pub fn start_again(&mut self) -> Duration {
        self.runs.push(Run { began: Instant::now(), end: None });
        self.server.start_again()
    }

    /// Does not wait until it is ready.
    pub fn begin_again(&mut self) {
        self.runs.push(Run { began: Instant::now(), end: None });
        self.server.begin_again();
    }

    pub fn note_end(&mut self, end: End) {
        self.runs.last_mut().expect("it was started").end = Some(end);
    }

    /// Makes an endpoint take requests and not answer, until `release`, and waits for the first of them.
    pub fn hold(&self, path: &str) {
        self.receiver.always(path, Answer::Hang);
        let is_open = async || self.receiver.arrivals_at(path).iter().any(|it| it.closed.is_none()).then_some(());
        self.runtime.block_on(eventually(&format!("a request that hangs at {path}"), is_open));
    }

    pub fn release(&self, path: &str) {
        self.receiver.always(path, Answer::Status(204));
    }

    /// Besides the load: messages that their receiver refuses for good, and replays of them, without an end to it. Each must
    /// be dead in the end, and tried once for each time that it was replayed.
    pub fn make_dead_letters(&mut self) {
        let client = || Client::new(self.server.address(), self.server.token());
        self.runtime.block_on(async {
            let mut client = client();
            client.create("/api/v1/app", &json!({ "name": SIDE, "uid": SIDE })).await;
            // It refuses everything, and would soon be given nothing more.
            let endpoint = json!({
                "url": self.receiver.url(SIDE_PATH),
                "uid": SIDE,
                "circuitBreaker": false,
                "autoDisable": false,
            });
            client.create(&format!("/api/v1/app/{SIDE}/endpoint"), &endpoint).await;
        });
        self.receiver.always(SIDE_PATH, Answer::Status(400));
        self.producers.push(self.runtime.spawn(refuse_and_replay(Arc::clone(&self.book), client())));
    }

    /// Starts it so that it ends at a mark, and waits until it has. `then` is done once it serves shards, if it gets so far.
    /// Panics if it never comes by there.
    pub fn end_at(&mut self, mark: &str, times: u32, then: impl FnOnce(&mut Server, &Receiver)) {
        let crash_at = format!("{mark}:{times}");
        self.server.set_variables(&[("CRASH_AT", &crash_at)]);
        self.begin_again();
        let began = Instant::now();
        let mut client = Client::new(self.server.address(), self.server.token());
        let mut then = Some(then);
        let status = loop {
            if let Some(status) = self.server.has_ended() {
                break status;
            }
            if then.is_some() && self.runtime.block_on(client.serves_shards()) {
                let then = then.take().expect("it was looked at");
                then(&mut self.server, &self.receiver);
            }
            assert!(began.elapsed() < PATIENCE, "it did not come by {crash_at}; its log says:\n{}", self.server.log());
            thread::sleep(POLL / 5);
        };
        self.note_end(End::Killed { at: Instant::now() });
        self.server.set_variables(&[]);
        assert_eq!(status.signal(), Some(ABORTED), "it ended otherwise than at {crash_at}: {status}");
    }

    /// Waits until the server says that it does what it was asked to.
    pub fn wait_for_word(&self, word: &str) {
        let is_said = async || self.server.log().contains(word).then_some(());
        self.runtime.block_on(eventually(&format!("the word `{word}` in the log"), is_said));
    }

    pub fn accepted(&self) -> usize {
        self.book.events().iter().filter(|event| event.accepted.is_some()).count()
    }

    /// Answers so far that said "not now".
    #[allow(dead_code, reason = "not every test asks")]
    pub fn refusals(&self) -> usize {
        self.book.refusals.load(Relaxed)
    }

    /// Ends the load, waits until nothing is left to do, and gathers what everyone has to say.
    pub fn finish(mut self) -> Logs {
        self.book.is_over.store(true, Relaxed);
        let mut client = Client::new(self.server.address(), self.server.token());
        let producers = std::mem::take(&mut self.producers);
        self.runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            for producer in producers {
                let ended = tokio::time::timeout_at(deadline, producer).await;
                ended.expect("every event is accepted in the end").expect("no producer got a strange answer");
            }
            (&mut self.observer).await.expect("the observer got no strange answer");
            // If it never comes to rest, the checker says what is missing.
            let events = self.book.events().clone();
            let _ = tokio::time::timeout(PATIENCE, rest(&mut client, &events)).await;
        });
        // A call that was given up would be in the way of the next.
        let mut client = Client::new(self.server.address(), self.server.token());
        let view = self.runtime.block_on(look(&mut client)).expect("the server answers");
        let refused = std::mem::take(&mut *self.book.refused.lock().expect("no one panics while holding it"));
        if !refused.is_empty() {
            self.runtime.block_on(self.check_dead_letters(&mut client, &refused));
        }
        Logs {
            endpoints: endpoints(),
            events: self.book.events().clone(),
            arrivals: arrivals(&self.receiver, &self.runs),
            view,
            sightings: self.book.sightings().values().cloned().collect(),
            runs: self.runs,
            clock_was_set: self.clock_was_set,
        }
    }
}

impl Drill {
    async fn check_dead_letters(&self, client: &mut Client, refused: &[String]) {
        let side = format!("/api/v1/app/{SIDE}");
        let messages: Vec<MessageOut> = client.list(&format!("{side}/msg")).await.expect("the server answers");
        let stored: HashSet<String> = messages.into_iter().map(|message| message.id).collect();
        assert!(refused.iter().all(|id| stored.contains(id)), "of {} messages some are lost", refused.len());
        let began = Instant::now();
        let letters = loop {
            let tasks: Vec<Value> = client.list("/api/v1/background-task").await.expect("the server answers");
            let deliveries: Vec<DeliveryOut> =
                client.list(&format!("{side}/endpoint/{SIDE}/msg")).await.expect("the server answers");
            let letters: Vec<Value> =
                client.list(&format!("{side}/dead-letter?endpoint_id={SIDE}")).await.expect("the server answers");
            let running = tasks.iter().filter(|task| task["status"] == "running").count();
            let alive = deliveries.iter().filter(|delivery| delivery.status != FAILED).count();
            if running == 0 && alive == 0 && letters.len() == stored.len() {
                break letters;
            }
            assert!(
                began.elapsed() < 2 * PATIENCE,
                "of {} messages {} are dead and {alive} are not, and {running} of {} replays are under way",
                stored.len(),
                letters.len(),
                tasks.len()
            );
            tokio::time::sleep(POLL * 10).await;
        };
        let mut attempts: HashMap<String, Vec<(u64, u32, u16)>> = HashMap::new();
        let told: Vec<AttemptOut> =
            client.list(&format!("{side}/attempt/endpoint/{SIDE}")).await.expect("the server answers");
        for AttemptOut { msg_id, response_status_code, verdict } in told {
            let attempt = (verdict.cycle, verdict.attempt_number, response_status_code);
            attempts.entry(msg_id).or_default().push(attempt);
        }
        let mut arrivals: HashMap<String, usize> = HashMap::new();
        for arrival in self.receiver.arrivals_at(SIDE_PATH) {
            *arrivals.entry(arrival.header("webhook-id").to_owned()).or_default() += 1;
        }
        let kills = self.runs.iter().filter(|run| matches!(run.end, Some(End::Killed { .. }))).count();
        let replays = self.book.replays.load(Relaxed);
        let (mut tried, mut came) = (0, 0);
        for letter in &letters {
            let id = letter["msgId"].as_str().expect("an id");
            let cycle = letter["cycle"].as_u64().expect("a number");
            assert_eq!(letter["reason"], "permanent", "{letter}");
            assert!(cycle <= replays as u64, "replayed more often than anyone asked for, {replays} times: {letter}");
            let mut found = attempts.remove(id).unwrap_or_default();
            found.sort_unstable();
            let expected: Vec<_> = (0..=cycle).map(|cycle| (cycle, 1, 400)).collect();
            assert_eq!(found, expected, "{letter}");
            let arrived = arrivals.remove(id).unwrap_or_default();
            let may_come = found.len()..=found.len() + kills;
            assert!(may_come.contains(&arrived), "{arrived} arrivals, and {may_come:?} are explained: {letter}");
            tried += found.len();
            came += arrived;
        }
        assert!(attempts.is_empty() && arrivals.is_empty(), "without a dead letter: {attempts:?} {arrivals:?}");
        println!("{} dead letters, {tried} attempts, {came} arrivals, {replays} replays, {kills} kills", letters.len());
    }
}

/// What the tasks write down.
#[derive(Default)]
struct Book {
    events: Mutex<Vec<Event>>,
    /// The first of each delivery.
    sightings: Mutex<HashMap<(String, String), Sighting>>,
    /// What was accepted to be refused by its receiver.
    refused: Mutex<Vec<String>>,
    /// Requests to replay it, answered or not.
    replays: AtomicUsize,
    /// Answers that said "not now".
    refusals: AtomicUsize,
    is_over: AtomicBool,
}

impl Book {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().expect("no one panics while holding the events")
    }

    fn sightings(&self) -> MutexGuard<'_, HashMap<(String, String), Sighting>> {
        self.sightings.lock().expect("no one panics while holding the sightings")
    }
}

const APPS: [&str; 3] = ["orders", "users", "flaky"];

pub fn endpoints() -> Vec<Endpoint> {
    let endpoint =
        |app, path: &str, event_type, refuses_first| Endpoint { app, path: path.to_owned(), event_type, refuses_first };
    vec![
        endpoint(0, "/orders-books", None, false),
        endpoint(0, "/orders-mail", None, false),
        endpoint(0, "/orders-slow", None, false),
        endpoint(1, "/users-all", None, false),
        endpoint(1, "/users-new", Some("user.created"), false),
        endpoint(2, "/flaky-once", None, true),
    ]
}

fn uid(endpoint: &Endpoint) -> &str {
    endpoint.path.trim_start_matches('/')
}

async fn set_up(server: &Server, receiver: &Receiver) {
    let mut client = Client::new(server.address(), server.token());
    for app in APPS {
        client.create("/api/v1/app", &json!({ "name": app, "uid": app })).await;
    }
    for name in ["order.paid", "user.created", "user.deleted", "flaky.tried"] {
        client.create("/api/v1/event-type", &json!({ "name": name, "description": "for the drill" })).await;
    }
    for endpoint in endpoints() {
        let mut body = json!({ "url": receiver.url(&endpoint.path), "uid": uid(&endpoint) });
        if let Some(event_type) = endpoint.event_type {
            body["filterTypes"] = json!([event_type]);
        }
        if endpoint.refuses_first {
            // Nothing but failures for seconds: its breaker would hold it for longer than the drill lasts.
            body["circuitBreaker"] = json!(false);
        }
        client.create(&format!("/api/v1/app/{}/endpoint", APPS[endpoint.app]), &body).await;
    }
    // Slow enough that requests are on the network at every kill, and that a backlog stands behind them.
    receiver.always("/orders-slow", Answer::Status(204).after(Duration::from_millis(20)));
    receiver.always("/flaky-once", Answer::Status(503).on_first_try_else(Answer::Status(204)));
}

/// Offers one event after the other, each one until it is accepted, as every SDK does.
async fn produce(book: Arc<Book>, mut client: Client, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    while !book.is_over.load(Relaxed) {
        let (number, event) = {
            let mut events = book.events();
            let number = events.len();
            let event = draw(number, &mut rng);
            events.push(event.clone());
            (number, event)
        };
        let request = Request::of(number, &event);
        let receipt = offer_until_accepted(&book, &mut client, number, &request).await;
        book.events()[number].accepted = Some(receipt);
        tokio::time::sleep(THINKING).await;
    }
}

fn draw(number: usize, rng: &mut ChaCha8Rng) -> Event {
    let (app, event_type) = match rng.random_range(0..100) {
        0..60 => (0, "order.paid"),
        60..80 => (1, "user.created"),
        80..96 => (1, "user.deleted"),
        _ => (2, "flaky.tried"),
    };
    let padding = "\u{17c}".repeat(rng.random_range(0..1_000));
    // Written as no JSON library would write it: the bytes must come through, not only their meaning.
    let payload = format!("{{\"event\":  {number}, \"price\":1.50 ,\"padding\": \"{padding}\"}}");
    Event { app, event_type, payload: payload.into(), offers: 0, accepted: None }
}

struct Request {
    path: String,
    body: String,
    idempotency_key: Option<String>,
    has_event_id: bool,
}

impl Request {
    /// An event is recognised by a key that a client made up, by one that its user chose, by its own id, or by two.
    fn of(number: usize, event: &Event) -> Self {
        let idempotency_key = match number % 4 {
            0 | 3 => Some(format!("auto_{number}")),
            1 => Some(format!("event-{number}")),
            _ => None,
        };
        let has_event_id = number % 4 >= 2;
        let event_id = if has_event_id { format!(",\"eventId\":\"event-{number}\"") } else { String::new() };
        let payload = str::from_utf8(&event.payload).expect("it was made of text");
        Self {
            path: format!("/api/v1/app/{}/msg?with_content=false", APPS[event.app]),
            body: format!("{{\"eventType\":\"{}\",\"payload\":{payload}{event_id}}}", event.event_type),
            idempotency_key,
            has_event_id,
        }
    }
}

async fn offer_until_accepted(book: &Book, client: &mut Client, number: usize, request: &Request) -> Receipt {
    let key: Vec<_> = request.idempotency_key.iter().map(|key| ("idempotency-key", key.as_str())).collect();
    loop {
        book.events()[number].offers += 1;
        let is_first = book.events()[number].offers == 1;
        let Ok((head, body)) = client.send_whole(Method::POST, &request.path, &key, &request.body).await else {
            tokio::time::sleep(BEFORE_REPEATING).await;
            continue;
        };
        match head.status {
            StatusCode::ACCEPTED => {
                let answer: MessageOut = serde_json::from_slice(&body).expect("a message");
                return Receipt { message: Some(answer.id) };
            }
            StatusCode::CONFLICT if request.has_event_id && key.is_empty() && !is_first => {
                return Receipt { message: None };
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                assert!(head.headers.contains_key("retry-after"), "not now, but when? {head:?}");
                book.refusals.fetch_add(1, Relaxed);
                tokio::time::sleep(BEFORE_REPEATING).await;
            }
            status => panic!("event {number} got {status} {} for {}", String::from_utf8_lossy(&body), request.body),
        }
    }
}

async fn refuse_and_replay(book: Arc<Book>, mut client: Client) {
    let message = json!({ "eventType": "order.paid", "payload": {} }).to_string();
    let since = json!({ "since": "2020-01-01T00:00:00Z" }).to_string();
    while !book.is_over.load(Relaxed) {
        let path = format!("/api/v1/app/{SIDE}/msg");
        // All are replayed each time: a few are enough.
        let has_all = book.refused.lock().expect("no one panics while holding it").len() >= DEAD_LETTERS;
        if !has_all && let Ok((StatusCode::ACCEPTED, body)) = client.send(Method::POST, &path, &[], &message).await {
            let answer: MessageOut = serde_json::from_slice(&body).expect("a message");
            book.refused.lock().expect("no one panics while holding it").push(answer.id);
        }
        let path = format!("/api/v1/app/{SIDE}/endpoint/{SIDE}/recover");
        book.replays.fetch_add(1, Relaxed);
        let _ = client.send(Method::POST, &path, &[], &since).await;
        tokio::time::sleep(POLL * 10).await;
    }
}

/// Notes what the API calls delivered, at one endpoint after the other.
async fn observe(book: Arc<Book>, mut client: Client) {
    let endpoints = endpoints();
    for endpoint in endpoints.iter().cycle() {
        if book.is_over.load(Relaxed) {
            return;
        }
        let path = format!("/api/v1/app/{}/attempt/endpoint/{}?status=0", APPS[endpoint.app], uid(endpoint));
        match client.get::<Data<AttemptOut>>(&path).await {
            Ok(newest) => {
                let at = Instant::now();
                for attempt in newest.data {
                    let delivery = (endpoint.path.clone(), attempt.msg_id);
                    let (path, message) = delivery.clone();
                    book.sightings().entry(delivery).or_insert(Sighting { path, message, at });
                }
            }
            Err(Broken(_)) => tokio::time::sleep(BEFORE_REPEATING).await,
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Every event was accepted, so every endpoint has as many deliveries to make as there are events that it wants.
async fn rest(client: &mut Client, events: &[Event]) {
    for endpoint in endpoints() {
        let owed = events.iter().filter(|event| endpoint.wants(event.app, event.event_type)).count();
        let path = format!("/api/v1/app/{}/endpoint/{}/stats", APPS[endpoint.app], uid(&endpoint));
        while client.get::<StatsOut>(&path).await.map_or(true, |stats| stats.success < owed) {
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn look(client: &mut Client) -> Result<View, Broken> {
    let mut view = View::default();
    for (app, name) in APPS.into_iter().enumerate() {
        for message in client.list::<MessageOut>(&format!("/api/v1/app/{name}/msg?with_content=true")).await? {
            let payload = Bytes::from(message.payload.get().to_owned());
            view.messages.push(Message { id: message.id, app, event_type: message.event_type, payload });
        }
    }
    for endpoint in endpoints() {
        let (app, uid) = (APPS[endpoint.app], uid(&endpoint));
        for delivery in client.list::<DeliveryOut>(&format!("/api/v1/app/{app}/endpoint/{uid}/msg")).await? {
            view.deliveries.push((endpoint.path.clone(), delivery.id, delivery.status));
        }
        for attempt in client.list::<AttemptOut>(&format!("/api/v1/app/{app}/attempt/endpoint/{uid}")).await? {
            let AttemptOut { msg_id, response_status_code, verdict } = attempt;
            view.attempts.push((endpoint.path.clone(), msg_id, verdict.attempt_number, response_status_code));
        }
    }
    Ok(view)
}

/// A connection belongs to the run that opened it: what the receiver reads late from it does so too.
fn arrivals(receiver: &Receiver, runs: &[Run]) -> Vec<Arrival> {
    let mut run_of: HashMap<usize, usize> = HashMap::new();
    let mut arrivals = receiver.arrivals();
    arrivals.retain(|arrival| arrival.path != SIDE_PATH);
    arrivals.sort_by_key(|arrival| arrival.opened);
    arrivals
        .into_iter()
        .map(|arrival| {
            let run = *run_of.entry(arrival.connection).or_insert_with(|| {
                runs.iter().rposition(|run| run.began <= arrival.opened).expect("nothing comes before the first run")
            });
            let message = arrival.header("webhook-id").to_owned();
            let attempt = arrival.header("webhook-attempt").parse().expect("a number");
            Arrival { path: arrival.path, message, attempt, body: arrival.body, at: arrival.opened, run }
        })
        .collect()
}

#[derive(Deserialize)]
struct Data<T> {
    data: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MessageOut {
    id: String,
    event_type: String,
    payload: Box<RawValue>,
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
    cycle: u64,
    attempt_number: u32,
}

const FAILED: u8 = 2;
const DEAD_LETTERS: usize = 30;
const SIDE: &str = "side";
const SIDE_PATH: &str = "/side";
/// SIGABRT.
const ABORTED: i32 = 6;
const PRODUCERS: u64 = 8;
/// Between two events of one producer; with it, a machine of two cores is busy and not swamped.
const THINKING: Duration = Duration::from_millis(5);
const BEFORE_REPEATING: Duration = Duration::from_millis(5);
