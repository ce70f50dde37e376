//! Whether the time of an answer tells what the answer does not: Welch's t over interleaved samples of two kinds.
//!
//! Left out of the ordinary run: what is measured in microseconds must have the machine to itself, and an optimised build.
//!
//! ```sh
//! cargo test --profile torture --locked -p postrider --test timing -- --ignored --nocapture --test-threads 1
//! SAMPLES=10000 ...        # fewer than the 100,000 of each kind
//! ```

mod support;

use axum::body::Body;
use http::Request;
use postrider::{clock, tokens::Access};
use postrider_engine::{AppKey, EndpointKey, MessageKey};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{hint::black_box, time::Instant};
use support::house::House;

#[tokio::test]
#[ignore = "needs the machine for itself, and an optimised build"]
async fn the_time_of_a_refusal_does_not_tell_what_exists() {
    let house = House::new();
    house.post("app", json!({"name": "own", "uid": "own"})).await.expect(201);
    let mut foreign = Vec::new();
    for number in 0..THINGS {
        foreign.push(Foreign::make(&house, &format!("foreign-{number}")).await);
    }
    let ids = &house.api.ids;
    let all = |pick: fn(&Foreign) -> &String| foreign.iter().map(pick).cloned().collect::<Vec<_>>();
    let named = |prefix: &str, suffix: &str| (0..THINGS).map(|n| format!("{prefix}-{n}{suffix}")).collect::<Vec<_>>();
    let token = house.app_token("own", &Access::full());
    // Many of each: how long it takes to read one id differs from another's by more than is looked for here.
    for (name, path, there, not_there) in [
        (
            "an application's id",
            "app/{}",
            all(|it| &it.app),
            nobodys(&all(|it| &it.app), |id| {
                ids.id_of(AppKey::new(ids.key_of::<AppKey>(id).expect("an id").raw() + FAR))
            }),
        ),
        ("an application's uid", "app/{}/endpoint", named("foreign", ""), named("unknown", "")),
        (
            "an endpoint's id",
            "app/own/endpoint/{}",
            all(|it| &it.endpoint),
            nobodys(&all(|it| &it.endpoint), |id| {
                ids.id_of(EndpointKey::new(ids.key_of::<EndpointKey>(id).expect("an id").raw() + FAR))
            }),
        ),
        ("an endpoint's uid", "app/own/endpoint/{}", named("foreign", "-hook"), named("unknown", "-hook")),
        (
            "a message's id",
            "app/own/msg/{}",
            all(|it| &it.message),
            nobodys(&all(|it| &it.message), |id| {
                ids.id_of(MessageKey::new(ids.key_of::<MessageKey>(id).expect("an id").raw() + FAR))
            }),
        ),
        ("a message's eventId", "app/own/msg/{}", named("foreign", "-message"), named("unknown", "-message")),
    ] {
        let paths = [there, not_there].map(|list| list.iter().map(|id| path.replace("{}", id)).collect::<Vec<_>>());
        let mut samples = Samples::new();
        while let Some(kind) = samples.next() {
            let path = &paths[kind][samples.rng.random_range(0..THINGS)];
            let request = Request::get(format!("/api/v1/{path}")).header("authorization", format!("Bearer {token}"));
            let request = request.body(Body::empty()).expect("a request");
            let start = Instant::now();
            let reply = house.ask(request).await;
            samples.took(kind, start);
            assert_eq!(reply.status, 404, "{name}");
        }
        samples.judge(&format!("{name}, another's or nobody's"));
    }
}

/// What another application has.
struct Foreign {
    app: String,
    endpoint: String,
    message: String,
}

impl Foreign {
    async fn make(house: &House, uid: &str) -> Self {
        let id = |value: Value| value["id"].as_str().expect("an id").to_owned();
        let app = id(house.post("app", json!({"name": uid, "uid": uid})).await.expect(201));
        let endpoint = json!({"url": "https://example.com/", "uid": format!("{uid}-hook")});
        let endpoint = id(house.post(&format!("app/{uid}/endpoint"), endpoint).await.expect(201));
        let message = json!({"eventType": "a", "eventId": format!("{uid}-message"), "payload": {}});
        let message = id(house.post(&format!("app/{uid}/msg"), message).await.expect(202));
        Self { app, endpoint, message }
    }
}

/// Ids that were never given, near those that were.
fn nobodys(given: &[String], near: impl Fn(&str) -> String) -> Vec<String> {
    given.iter().map(|id| near(id)).collect()
}

#[test]
#[ignore = "needs the machine for itself, and an optimised build"]
fn the_time_of_a_refusal_does_not_tell_how_much_of_a_token_is_right() {
    let house = House::new();
    let (head, signature) = house.token.rsplit_once('.').expect("a token has a signature");
    let flipped = |at: usize| {
        let mut letters: Vec<char> = signature.chars().collect();
        letters[at] = if letters[at] == 'A' { 'B' } else { 'A' };
        format!("{head}.{}", letters.into_iter().collect::<String>())
    };
    let tokens = [flipped(0), flipped(signature.len() - 2)];
    let now = clock::now();
    let mut samples = Samples::new();
    while let Some(kind) = samples.next() {
        let start = Instant::now();
        let refused = black_box(house.api.credentials.tokens().verify(black_box(&tokens[kind]), now)).is_err();
        samples.took(kind, start);
        assert!(refused);
    }
    samples.judge("a token wrong in its signature's first or last letter");
}

/// That the judge can tell a difference, where there is one of a hundredth.
#[test]
#[ignore = "needs the machine for itself, and an optimised build"]
fn a_difference_would_be_seen() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut kind = |mean: f64| (0..100_000).map(|_| mean + rng.random_range(0.0..mean)).collect::<Vec<f64>>();
    let (one, same, other) = (kind(1_000.0), kind(1_000.0), kind(1_010.0));
    assert!(welch(&one, &same).abs() < T_MAX);
    assert!(welch(&one, &other).abs() > T_MAX);
}

struct Samples {
    rng: StdRng,
    left: usize,
    nanos: [Vec<f64>; 2],
}

impl Samples {
    fn new() -> Self {
        let each = std::env::var("SAMPLES").map_or(100_000, |text| text.parse().expect("a number"));
        Self { rng: StdRng::seed_from_u64(7), left: each * 2, nanos: [Vec::new(), Vec::new()] }
    }

    /// Which of the two to try next, by chance: what else the machine does then befalls both alike.
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        Some(usize::from(self.rng.random::<bool>()))
    }

    fn took(&mut self, kind: usize, start: Instant) {
        self.nanos[kind].push(start.elapsed().as_nanos() as f64);
    }

    /// What took longest is left out of both, by the same bound: there the machine did something else.
    fn judge(self, what: &str) {
        let mut all: Vec<f64> = self.nanos.iter().flatten().copied().collect();
        all.sort_by(f64::total_cmp);
        let bound = all[all.len() * 9 / 10];
        let [one, other] = self.nanos.map(|list| list.into_iter().filter(|nanos| *nanos <= bound).collect::<Vec<_>>());
        let t = welch(&one, &other);
        println!(
            "{what}: {} and {} samples, {:.0} and {:.0} ns on average, t = {t:.2}",
            one.len(),
            other.len(),
            mean(&one),
            mean(&other)
        );
        assert!(t.abs() < T_MAX, "{what}: the time tells, t = {t:.2}");
    }
}

fn welch(one: &[f64], other: &[f64]) -> f64 {
    let spread = |list: &[f64]| {
        let mean = mean(list);
        list.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (list.len() - 1) as f64 / list.len() as f64
    };
    (mean(one) - mean(other)) / (spread(one) + spread(other)).sqrt()
}

fn mean(list: &[f64]) -> f64 {
    list.iter().sum::<f64>() / list.len() as f64
}

/// So many of each kind there are, and so far from them are those that nobody has.
const THINGS: usize = 200;
const FAR: i64 = 1_000_003;

/// What is usual for such tests: one in a hundred thousand by chance.
const T_MAX: f64 = 4.5;
