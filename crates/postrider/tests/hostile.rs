//! Every bad receiver that we can think of at once, beside some that are well, in one server.
//!
//! Judged from outside alone: by the API, the metrics, the receivers' own logs and what the kernel knows of the process.
//! No duration is judged. A receiver that hangs, drips or floods never ends that by itself, so that an attempt which
//! ended was ended by us.

#[path = "hostile/behaviours.rs"]
mod behaviours;
#[path = "hostile/receiver.rs"]
mod receiver;
#[path = "hostile/secure.rs"]
mod secure;
mod support;

use behaviours::{Behaviour, End, behaviours};
use receiver::{Act, Heard, Receiver};
use secure::{Authority, Http2, Secure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::{Duration, Instant},
};
use support::{api::Client, eventually, server::Server, world::hasty};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_receiver_can_hurt_us_nor_anyone_else() {
    let authority = Arc::new(Authority::new());
    let (server, _settings) = server_trusting(&authority);
    let mut client = Client::new(server.address(), server.token());
    let mut well = Well::start(&mut client).await;
    well.send(&mut client, 10).await;
    well.check_that_each_came_once().await;
    let early = well.messages.len();
    println!("before: {}", well.times(0));
    let before = Footprint::of(server.pid()).without(well.receiver.open());

    let mut bad = Bad::start(&mut client, &authority).await;
    for wave in 0..WAVES {
        for _ in 0..MESSAGES_PER_WAVE {
            bad.send(&mut client, wave).await;
            well.send(&mut client, 20).await;
        }
        bad.wait_for_ends(&mut client).await;
    }
    well.send(&mut client, 20).await;
    well.check_that_each_came_once().await;
    println!("beside the bad: {}", well.times(early));
    bad.check_each(&mut client).await;
    eventually("no request in flight", async || {
        let metrics = client.metrics().await;
        metrics.lines().any(|line| line == "postrider_requests_in_flight 0").then_some(())
    })
    .await;
    check_that_metrics_equal_rows(&mut client).await;

    let during = Footprint::of(server.pid());
    // With them go all connections that they kept open.
    drop(bad);
    eventually("the connections to be given up", async || {
        let now = Footprint::of(server.pid()).without(well.receiver.open());
        (now.files <= before.files + FILES_SLACK).then_some(())
    })
    .await;
    let after = Footprint::of(server.pid()).without(well.receiver.open());
    println!("before {before:?}, during {during:?}, after {after:?}");
    assert!(after.rss_mib <= before.rss_mib + RSS_SLACK_MIB, "before {before:?}, after {after:?}");
    assert!(after.threads <= before.threads + THREADS_SLACK, "before {before:?}, after {after:?}");

    well.send(&mut client, 1).await;
    well.check_that_each_came_once().await;
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// The folder holds its settings.
fn server_trusting(authority: &Authority) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let (settings, ca) = (folder.path().join("settings.toml"), folder.path().join("ca.pem"));
    fs::write(&ca, authority.pem()).expect("a file");
    fs::write(&settings, format!("extra_ca_file = {:?}\n", ca.display().to_string())).expect("a file");
    let server = Server::start_with(&["--config", &settings.display().to_string()]);
    (server, folder)
}

/// Healthy endpoints, each owed every message of theirs.
struct Well {
    receiver: support::receiver::Receiver,
    messages: BTreeSet<String>,
    /// When each began to be offered.
    offered: Vec<(String, Instant)>,
}

impl Well {
    async fn start(client: &mut Client) -> Self {
        let receiver = support::receiver::Receiver::start();
        client.create("/api/v1/app", &json!({"name": "well", "uid": "well"})).await;
        for path in WELL {
            let endpoint = json!({"url": receiver.url(path), "uid": &path[1..]});
            client.create("/api/v1/app/well/endpoint", &endpoint).await;
        }
        Self { receiver, messages: BTreeSet::new(), offered: Vec::new() }
    }

    async fn send(&mut self, client: &mut Client, count: usize) {
        for _ in 0..count {
            let began = Instant::now();
            let message = send(client, "well", 10).await;
            self.messages.insert(message.clone());
            self.offered.push((message, began));
        }
    }

    /// From the offer to the arrivals, of all but the first so many. Told and not judged: the machine is everyone's.
    fn times(&self, skipped: usize) -> String {
        let offered: BTreeMap<&str, Instant> =
            self.offered[skipped..].iter().map(|(message, began)| (message.as_str(), *began)).collect();
        let arrivals = self.receiver.arrivals();
        let taken = arrivals.iter().filter_map(|it| Some(it.opened - *offered.get(it.header("webhook-id"))?));
        let mut all: Vec<Duration> = taken.collect();
        all.sort_unstable();
        let at = |share: usize| all.get(all.len() * share / 100).copied().unwrap_or_default();
        format!("p50 {:?}, p99 {:?}, of {} arrivals", at(50), at(99), all.len())
    }

    async fn check_that_each_came_once(&self) {
        for path in WELL {
            let came = self.receiver.wait_for(path, self.messages.len()).await;
            let ids: BTreeSet<String> = came.iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect();
            assert_eq!(ids, self.messages, "{path}");
            assert_eq!(came.len(), self.messages.len(), "{path}: some came twice");
        }
    }
}

struct Bad {
    all: Vec<(Behaviour, Receiver)>,
    /// As the server calls them, and their places above.
    endpoints: BTreeMap<String, usize>,
    messages: Vec<String>,
}

impl Bad {
    async fn start(client: &mut Client, authority: &Arc<Authority>) -> Self {
        client.create("/api/v1/app", &json!({"name": "bad", "uid": "bad"})).await;
        let mut bad = Self { all: Vec::new(), endpoints: BTreeMap::new(), messages: Vec::new() };
        for behaviour in behaviours() {
            let receiver = Receiver::start(behaviour.act.clone(), authority).await;
            let mut retries = hasty(ATTEMPTS_MAX);
            retries["followRedirects"] = json!(if behaviour.follows { 5 } else { 0 });
            let endpoint = json!({
                "url": receiver.url,
                "uid": behaviour.name,
                "retryPolicy": retries,
                "timeouts": behaviour.timeouts(),
                "circuitBreaker": false,
            });
            let made = client.create("/api/v1/app/bad/endpoint", &endpoint).await;
            bad.endpoints.insert(made["id"].as_str().expect("an id").to_owned(), bad.all.len());
            bad.all.push((behaviour, receiver));
        }
        assert!(bad.all.len() >= 100, "{}", bad.all.len());
        bad
    }

    /// One of each wave is larger than what a socket takes at once.
    async fn send(&mut self, client: &mut Client, wave: usize) {
        let is_first = self.messages.len() == wave * MESSAGES_PER_WAVE;
        self.messages.push(send(client, "bad", if is_first { 500_000 } else { 10 }).await);
    }

    /// Until nothing more will be tried soon.
    async fn wait_for_ends(&self, client: &mut Client) {
        for message in &self.messages {
            let path = format!("/api/v1/app/bad/msg/{message}/endpoint");
            eventually("all deliveries to end", async || {
                let all: Vec<Destination> = client.list(&path).await.expect("the server answers");
                assert_eq!(all.len(), self.all.len());
                let is_over = |it: &Destination| match self.all[self.endpoints[&it.id]].0.expected.end {
                    End::Delivered(_) | End::Refused | End::Exhausted => matches!(it.status, SUCCESS | FAIL),
                    End::PutOff => it.status == SENDING,
                };
                all.iter().all(is_over).then_some(())
            })
            .await;
        }
    }

    async fn check_each(&self, client: &mut Client) {
        let mut wrong = Vec::new();
        let mut requests: Vec<BTreeSet<Heard>> = vec![BTreeSet::new(); self.all.len()];
        for message in &self.messages {
            let attempts: Vec<Attempt> =
                client.list(&format!("/api/v1/app/bad/attempt/msg/{message}")).await.expect("the server answers");
            for (endpoint, place) in &self.endpoints {
                let mut its: Vec<&Attempt> = attempts.iter().filter(|it| it.endpoint_id == *endpoint).collect();
                its.sort_by_key(|attempt| attempt.verdict.attempt_number);
                let behaviour = &self.all[*place].0;
                if let Some(difference) = behaviour.difference(&its) {
                    wrong.push(format!("{}: {difference}\n  {its:?}", behaviour.name));
                }
                requests[*place].extend(its.iter().map(|attempt| Heard {
                    message: message.clone(),
                    attempt: attempt.verdict.attempt_number.to_string(),
                }));
            }
        }
        for ((behaviour, receiver), attempts) in self.all.iter().zip(requests) {
            let heard = receiver.heard();
            let hops = match (behaviour.follows, behaviour.name) {
                // Each time round is one more request of the same attempt.
                (true, "redirect-in-circles") => 2,
                _ => 1,
            };
            let repeats = heard.iter().filter(|it| heard.iter().filter(|other| other == it).count() > hops).count();
            let unknown = heard.iter().filter(|it| !attempts.contains(it)).count();
            // Who refuses a stream, or goes away, says that he did not look at it: it is repeated where the connection was
            // not new.
            let may_repeat = matches!(behaviour.act, Act::Tls(Secure::Http2(Http2::RefuseStream | Http2::GoAway)));
            if (repeats > 0 && !may_repeat) || unknown > 0 {
                wrong.push(format!("{}: {repeats} repeated and {unknown} unknown among {heard:?}", behaviour.name));
            }
        }
        assert!(wrong.is_empty(), "{} of {} went wrong:\n{}", wrong.len(), self.all.len(), wrong.join("\n"));
    }
}

impl Behaviour {
    /// Who never ends by himself is given up soon. Nobody else may be, however busy the machine is.
    fn timeouts(&self) -> Value {
        // The body of an error is read for as long as there is time.
        let is_endless = self.expected.rules.contains(&"timeout") || self.name == "error-dripped";
        if is_endless {
            json!({"connect": "2s", "firstByte": "2s", "total": "3s"})
        } else {
            json!({"connect": "20s", "firstByte": "20s", "total": "25s"})
        }
    }

    /// What is wrong with these, if anything is.
    fn difference(&self, attempts: &[&Attempt]) -> Option<String> {
        let expected = self.expected;
        let (count, death) = match expected.end {
            End::Delivered(count) => (count, None),
            End::Refused => (1, Some("permanent")),
            End::Exhausted => (ATTEMPTS_MAX, Some("exhausted")),
            End::PutOff => (1, None),
        };
        if attempts.len() != usize::try_from(count).expect("a small number") {
            return Some(format!("{} attempts, not {count}", attempts.len()));
        }
        let last = attempts.last()?;
        let verdict = &last.verdict;
        if last.response_status_code != expected.status
            || verdict.class != expected.class
            || !expected.rules.contains(&&*verdict.rule)
            || verdict.death.as_deref() != death
        {
            let Attempt { response, response_duration_ms, .. } = last;
            return Some(format!("after {response_duration_ms} ms: {response:?}, not {expected:?}"));
        }
        let is_capped = verdict.delay.as_ref().is_some_and(|delay| delay.capped);
        (is_capped != (expected.end == End::PutOff)).then(|| "put off, or not".to_owned())
    }
}

/// Attempts are counted where they end and kept in the store: both must say the same.
async fn check_that_metrics_equal_rows(client: &mut Client) {
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    for app in ["bad", "well"] {
        let endpoints: Vec<Value> =
            client.list(&format!("/api/v1/app/{app}/endpoint")).await.expect("the server answers");
        for endpoint in endpoints {
            let path = format!("/api/v1/app/{app}/attempt/endpoint/{}", endpoint["id"].as_str().expect("an id"));
            let attempts: Vec<Attempt> = client.list(&path).await.expect("the server answers");
            for attempt in attempts {
                *rows.entry(attempt.verdict.class).or_default() += 1;
            }
        }
    }
    let metrics = client.metrics().await;
    for class in ["delivered", "transient", "ambiguous", "permanent", "gone"] {
        let line = format!("postrider_attempts_total{{class=\"{class}\"}} {}", rows.get(class).copied().unwrap_or(0));
        assert!(metrics.lines().any(|it| it == line), "no {line:?} in {metrics}");
    }
}

/// What the process takes of the machine.
#[derive(Debug)]
struct Footprint {
    files: usize,
    threads: u64,
    rss_mib: u64,
}

impl Footprint {
    fn of(pid: u32) -> Self {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process that lives").count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that lives");
        let number = |key: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line that Linux writes");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        Self { files, threads: number("Threads:"), rss_mib: number("VmRSS:") / 1024 }
    }

    /// Connections to those that are well are kept for a while, and on a busy machine there are more of them.
    fn without(self, connections: usize) -> Self {
        Self { files: self.files.saturating_sub(connections), ..self }
    }
}

/// Says the message's id.
async fn send(client: &mut Client, app: &str, length: usize) -> String {
    let body = json!({"eventType": "a.b", "payload": {"text": "x".repeat(length)}});
    let made = client.create(&format!("/api/v1/app/{app}/msg"), &body).await;
    made["id"].as_str().expect("an id").to_owned()
}

#[derive(Debug, Deserialize)]
struct Destination {
    id: String,
    status: u8,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    endpoint_id: String,
    response: String,
    response_status_code: u16,
    response_duration_ms: u64,
    verdict: Verdict,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    class: String,
    rule: String,
    attempt_number: u32,
    delay: Option<Delay>,
    death: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Delay {
    #[serde(default)]
    capped: bool,
}

const SUCCESS: u8 = 0;
const FAIL: u8 = 2;
const SENDING: u8 = 3;

const WELL: [&str; 5] = ["/a", "/b", "/c", "/d", "/e"];
/// The second finds connections that the first has left.
const WAVES: usize = 2;
const MESSAGES_PER_WAVE: usize = 3;
const ATTEMPTS_MAX: u32 = 2;

/// A few connections more to the database.
const FILES_SLACK: usize = 12;
const THREADS_SLACK: u64 = 16;
/// What the allocator keeps, and the caches of the store.
const RSS_SLACK_MIB: u64 = 64;
