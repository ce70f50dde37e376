//! What is played: each story is one failure of a receiver, and what must come of it.

use super::{
    super::script::{Act, RetryAfter, RetryAfterForm},
    Check,
    stage::{BODY, Came, Lane, Stage, time},
};
use crate::config::show_duration;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use std::{collections::BTreeSet, future::Future, pin::Pin, time::Duration};

pub struct Story {
    pub name: &'static str,
    pub about: &'static str,
    pub play: Play,
}

type Play = for<'s> fn(&'s Stage) -> Pin<Box<dyn Future<Output = anyhow::Result<Vec<Check>>> + 's>>;

macro_rules! story {
    ($name:literal, $about:literal, $play:ident) => {
        Story { name: $name, about: $about, play: |stage| Box::pin($play(stage)) }
    };
}

pub const STORIES: &[Story] = &[
    story!("healthy", "A receiver that answers gets each message once, signed, byte for byte.", healthy),
    story!(
        "retries",
        "500 twice, then 200: it is tried again as the schedule says, with the same id and body.",
        retries
    ),
    story!("exhausted", "503 for ever: after the last attempt it is a dead letter.", exhausted),
    story!("retry-after-seconds", "429 with Retry-After in seconds: it is not called earlier.", retry_after_seconds),
    story!("retry-after-date", "429 with Retry-After as a date: it is not called earlier.", retry_after_date),
    story!("refused", "400: it is not tried again, and is a dead letter at once.", refused),
    story!("gone", "410: the endpoint is disabled, and the message is a dead letter.", gone),
    story!("hang", "No answer until the timeout: it is given up in time and tried again, under the same id.", hang),
    story!("reset", "The connection is broken off: it is tried again.", reset),
    story!("drip", "An answer that drips without end holds nothing up.", drip),
    story!(
        "breaker",
        "Failure after failure opens the breaker; once the receiver is back, all of it arrives.",
        breaker
    ),
    story!("replay", "A dead letter that is replayed arrives, under the same id.", replay),
    story!("repeated", "An event that is handed in twice is refused the second time, and arrives once.", repeated),
];

async fn healthy(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("healthy", json!({}), &[], ok()).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let came = lane.came();
    Ok([vec![Check::equal("state", "success", &state), Check::equal("requests", 1, came.len())], same(&came, &message)]
        .concat())
}

async fn retries(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("retries", every(SECOND, 5), &[status(500), status(500)], ok()).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let came = lane.came();
    let counted: Vec<&str> = came.iter().map(|came| came.attempt.as_str()).collect();
    let mut checks = vec![
        Check::equal("state", "success", &state),
        Check::equal("requests", 3, came.len()),
        Check::equal("webhook-attempt", "1, 2, 3", &counted.join(", ")),
    ];
    checks.extend(gaps(&came).into_iter().map(|gap| {
        let within = (SECOND..SECOND + SLACK).contains(&gap);
        Check::that("the gap", "1s, and a little more", show_duration(gap), within)
    }));
    Ok([checks, same(&came, &message)].concat())
}

async fn exhausted(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("exhausted", every(SHORT, 3), &[], status(503)).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    Ok(vec![
        Check::equal("state", "fail", &state),
        Check::equal("requests", 3, lane.came().len()),
        Check::equal("dead letter", "exhausted", &lane.dead_letters().await?.join(", ")),
    ])
}

async fn retry_after_seconds(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    wished(stage, "retry-after-seconds", RetryAfterForm::Seconds).await
}

async fn retry_after_date(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    wished(stage, "retry-after-date", RetryAfterForm::Date).await
}

async fn wished(stage: &Stage, name: &'static str, form: RetryAfterForm) -> anyhow::Result<Vec<Check>> {
    let busy = Act::Answer {
        status: StatusCode::TOO_MANY_REQUESTS,
        delay: Duration::ZERO,
        retry_after: Some(RetryAfter { wait: WISH, form }),
        body: Bytes::new(),
    };
    let lane = stage.lane(name, every(SHORT, 5), &[busy], ok()).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let came = lane.came();
    let gap = gaps(&came).first().copied().unwrap_or_default();
    let attempts = lane.attempts(&message).await?;
    let noted = attempts.first().and_then(|attempt| attempt["verdict"]["delay"]["retryAfterMs"].as_u64());
    Ok(vec![
        Check::equal("state", "success", &state),
        Check::equal("requests", 2, came.len()),
        Check::that("the gap", "3s at least", show_duration(gap), gap >= WISH && gap < WISH + SECOND + SLACK),
        Check::that(
            "the wish, as noted",
            "up to 4s",
            noted.map_or_else(|| "none".to_owned(), |noted| show_duration(Duration::from_millis(noted))),
            noted.is_some_and(|noted| (1..=4_000).contains(&noted)),
        ),
    ])
}

async fn refused(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("refused", every(SHORT, 5), &[], status(400)).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let attempts = lane.attempts(&message).await?;
    Ok(vec![
        Check::equal("state", "fail", &state),
        Check::equal("verdict", "permanent", &classes(&attempts)),
        Check::equal("requests", 1, lane.came().len()),
        Check::equal("dead letter", "permanent", &lane.dead_letters().await?.join(", ")),
    ])
}

async fn gone(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("gone", every(SHORT, 5), &[], status(410)).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let health = lane.health().await?;
    Ok(vec![
        Check::equal("state", "fail", &state),
        Check::equal("requests", 1, lane.came().len()),
        Check::equal("endpoint", "disabled", health["state"].as_str().unwrap_or("unknown")),
        Check::equal("why", "gone", health["disabled"]["reason"].as_str().unwrap_or("unknown")),
        Check::equal("dead letter", "permanent", &lane.dead_letters().await?.join(", ")),
    ])
}

async fn hang(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let mut rules = every(SHORT, 5);
    rules["timeouts"] = json!({ "connect": "1s", "firstByte": "1s", "total": "1s" });
    let lane = stage.lane("hang", rules, &[Act::Hang], ok()).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let (came, attempts) = (lane.came(), lane.attempts(&message).await?);
    let took = attempts.first().and_then(|attempt| attempt["responseDurationMs"].as_u64()).unwrap_or(0);
    let took = Duration::from_millis(took);
    let checks = vec![
        Check::equal("state", "success", &state),
        Check::equal("requests", 2, came.len()),
        Check::equal("rules", "timeout, success", &rules_of(&attempts)),
        Check::that("the wait", "1s, and a little more", show_duration(took), took >= SECOND && took < SECOND + SLACK),
    ];
    Ok([checks, same(&came, &message)].concat())
}

async fn reset(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    // Twice: on a connection that had been used before, a sender may try at once again on a new one, as part of the same
    // attempt.
    let broken = || Act::Reset { delay: Duration::ZERO };
    let lane = stage.lane("reset", every(SHORT, 5), &[broken(), broken()], ok()).await?;
    let message = lane.send().await?;
    let state = lane.settled(&message).await?;
    let (came, rules) = (lane.came(), rules_of(&lane.attempts(&message).await?));
    let is_right = ["connection, success", "connection, connection, success"].contains(&rules.as_str());
    let checks = vec![
        Check::equal("state", "success", &state),
        Check::equal("requests", 3, came.len()),
        Check::that("rules", "connection once or twice, success", rules, is_right),
    ];
    Ok([checks, same(&came, &message)].concat())
}

async fn drip(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let mut rules = every(SHORT, 5);
    rules["timeouts"] = json!({ "connect": "2s", "firstByte": "2s", "total": "2s" });
    rules["maxInFlight"] = json!(1);
    let dripping = Act::Drip { status: StatusCode::OK, delay: Duration::ZERO, every: Duration::from_millis(100) };
    let lane = stage.lane("drip", rules, &[dripping], ok()).await?;
    let (first, second) = (lane.send().await?, lane.send().await?);
    let states = [lane.settled(&first).await?, lane.settled(&second).await?];
    let came = lane.came();
    let gap = gaps(&came).first().copied().unwrap_or_default();
    Ok(vec![
        Check::equal("states", "success, success", &states.join(", ")),
        Check::equal("requests", 2, came.len()),
        Check::that("the next one waited", "2s at most", show_duration(gap), gap < 2 * SECOND + SLACK),
    ])
}

async fn breaker(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let mut rules = every(SHORT, 50);
    // One at a time, so that the count is exact.
    rules["maxInFlight"] = json!(1);
    rules["circuitBreaker"] = json!({ "failures": 3, "coolDown": "3s", "coolDownMax": "3s", "whileOpen": "hold" });
    let lane = stage.lane("breaker", rules, &[], status(503)).await?;
    let mut messages = Vec::new();
    for _ in 0..4 {
        messages.push(lane.send().await?);
    }
    let open = lane.breaker("open").await?;
    let until_open = lane.came().len();
    let open_until = time(&open["breaker"]["openUntil"]);
    lane.change_to(ok());
    let closed = lane.breaker("closed").await?;
    let mut states = BTreeSet::new();
    for message in &messages {
        states.insert(lane.settled(message).await?);
    }
    let came = lane.came();
    let early =
        came[until_open.min(came.len())..].iter().filter(|came| open_until.is_some_and(|until| came.at < until));
    let early = early.count();
    let arrived: BTreeSet<&str> = came.iter().map(|came| came.id.as_str()).collect();
    let state = |health: &Value| health["breaker"]["state"].as_str().unwrap_or("unknown").to_owned();
    Ok(vec![
        Check::equal("breaker", "open", &state(&open)),
        Check::equal("requests until it opened", 3, until_open),
        Check::equal("requests while it was open", 0, early),
        Check::equal("breaker after recovery", "closed", &state(&closed)),
        Check::equal("states", "success", &states.into_iter().collect::<Vec<_>>().join(", ")),
        Check::equal("messages that arrived", messages.len(), arrived.len()),
    ])
}

async fn replay(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("replay", every(SHORT, 5), &[status(400)], ok()).await?;
    let message = lane.send().await?;
    let before = lane.settled(&message).await?;
    let letters = lane.dead_letters().await?;
    lane.replay(&message).await?;
    let after = settled_again(&lane, &message).await?;
    let came = lane.came();
    let checks = vec![
        Check::equal("state before", "fail", &before),
        Check::equal("dead letter", "permanent", &letters.join(", ")),
        Check::equal("state after", "success", &after),
        Check::equal("requests", 2, came.len()),
        Check::equal("dead letters left", 0, lane.dead_letters().await?.len()),
    ];
    Ok([checks, same(&came, &message)].concat())
}

/// What was given up stands so until the replay has begun.
async fn settled_again(lane: &Lane<'_>, message: &str) -> anyhow::Result<String> {
    for _ in 0..100 {
        let state = lane.settled(message).await?;
        if state != "fail" {
            return Ok(state);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lane.settled(message).await
}

async fn repeated(stage: &Stage) -> anyhow::Result<Vec<Check>> {
    let lane = stage.lane("repeated", json!({}), &[], ok()).await?;
    let message = lane.send_as(Some("drill-1")).await?;
    let again = lane.send_as(Some("drill-1")).await;
    let told = again.map_or_else(|error| format!("{error:#}"), |id| format!("accepted as {id}"));
    let state = lane.settled(&message).await?;
    let came = lane.came();
    let checks = vec![
        Check::that("the second time", "409", told.clone(), told.contains("409")),
        Check::equal("state", "success", &state),
        Check::equal("requests", 1, came.len()),
    ];
    Ok([checks, same(&came, &message)].concat())
}

/// Whatever came carried the message's id, the bytes that were handed in, and a signature that verifies.
fn same(came: &[Came], message: &str) -> Vec<Check> {
    let count = |of: fn(&Came, &str) -> bool| came.iter().filter(|came| of(came, message)).count();
    let all = came.len();
    vec![
        Check::equal("with its id", all, count(|came, message| came.id == message)),
        Check::equal("byte for byte", all, count(|came, _| came.body == BODY.as_bytes())),
        Check::equal("signatures that verify", all, count(|came, _| came.is_signed)),
    ]
}

/// Always the same wait, and no chance in it.
fn every(interval: Duration, attempts_max: u32) -> Value {
    json!({
        "retryPolicy": {
            "schedule": { "type": "fixed", "interval": show_duration(interval) },
            "jitter": "none", "maxAttempts": attempts_max, "giveUpAfter": "5m",
        },
    })
}

fn gaps(came: &[Came]) -> Vec<Duration> {
    came.windows(2).map(|pair| pair[1].at.since(pair[0].at)).collect()
}

fn rules_of(attempts: &[Value]) -> String {
    verdicts(attempts, "rule")
}

fn classes(attempts: &[Value]) -> String {
    verdicts(attempts, "class")
}

fn verdicts(attempts: &[Value], part: &str) -> String {
    let of = |attempt: &Value| attempt["verdict"][part].as_str().unwrap_or("unknown").to_owned();
    attempts.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn status(code: u16) -> Act {
    Act::status(StatusCode::from_u16(code).expect("a status of ours"))
}

fn ok() -> Act {
    Act::status(StatusCode::NO_CONTENT)
}

const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(300);
const WISH: Duration = Duration::from_secs(3);
/// For a server that has other things to do.
const SLACK: Duration = Duration::from_secs(3);
