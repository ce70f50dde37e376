//! `postrider demo`: everything at once, on free ports and in a folder that is thrown away.
//!
//! The receiver misbehaves on purpose, because a webhook server shows what it is good for only then.

use super::{
    client::Client,
    print,
    receive::stop_signal,
    receiver::{self, Answer, Arrival, Reply, Respond, Signature},
};
use crate::{
    clock,
    config::{LogFormat, Settings},
    serve::Server,
    telemetry,
    tokens::ENVIRONMENT_TOKEN_LIFE,
};
use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use postrider_signature::Secret;
use rand::{TryRng, rngs::SysRng};
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal},
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{net::TcpListener, time::sleep};
use url::Url;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  postrider demo
  postrider demo --rate 50")]
pub struct Args {
    /// Messages a second
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("postrider-demo-").tempdir().context("making a folder")?;
    let _lines = telemetry::start_logs("error", LogFormat::Text)?;
    let settings = Settings {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        data: folder.path().join("data"),
        allow_subnets: vec!["127.0.0.0/8".parse().expect("a range")],
        shutdown_grace: Duration::from_secs(3),
        ..Settings::defaults()
    };
    let server = Server::start(settings, telemetry::start_metrics()?).await?;
    let done = show(&server, args.rate).await;
    tokio::select! {
        () = server.stop() => {}
        _ = stop_signal() => {}
    }
    folder.close().context("removing the folder")?;
    done
}

/// Receives, sends and keeps count, until a signal ends it.
async fn show(server: &Server, rate: u32) -> anyhow::Result<()> {
    let url: Url = format!("http://{}/", server.address()).parse().context("writing the server's URL")?;
    let token = server.tokens().mint_environment(clock::now(), ENVIRONMENT_TOKEN_LIFE)?;
    let receiver = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listening for deliveries")?;
    let receiver_url = format!("http://{}", receiver.local_addr().context("reading the address")?);
    let secret = random_secret()?;
    let tally = Arc::new(Tally::default());
    introduce(&url, &token, &receiver_url)?;
    let client = Client::with_token(url, token)?;
    let ended = tokio::select! {
        ended = receiver::run(receiver, vec![secret.clone().into()], Misbehave { tally: Arc::clone(&tally) }) => ended,
        ended = traffic(&client, &receiver_url, &secret, rate, &tally) => ended,
        ended = watch(&tally) => ended,
        ended = stop_signal() => ended,
    };
    print::tell(&tally.line());
    ended
}

fn introduce(server: &Url, token: &str, receiver_url: &str) -> Result<(), print::OutputError> {
    print::say(&format!(
        "\
Postrider demo: a server, a receiver that misbehaves on purpose, and traffic. Ctrl-C ends it and leaves nothing.

  in the browser  {server}  (sign in with the token below; then Applications, {APP}, Dead letters)
  API             {server}docs
  receiver        {receiver_url}  (/steady answers, /flaky fails one in three, /slow takes its time,
                  /picky wants no small orders, /broken never works)

Talk to it from another terminal:

  export POSTRIDER_URL={server}
  export POSTRIDER_TOKEN={token}
  postrider tail --app {APP}
  postrider endpoints health --app {APP}
  postrider messages list --app {APP} --limit 10
  postrider dead-letters list --app {APP}
  postrider send --app {APP} --event-type order.paid '{{\"order\": 42}}'
  curl -H \"authorization: Bearer $POSTRIDER_TOKEN\" {server}metrics
"
    ))
}

/// Sets up the application and its endpoints, then sends until the end.
async fn traffic(client: &Client, receiver_url: &str, secret: &Secret, rate: u32, tally: &Tally) -> anyhow::Result<()> {
    client.create_app(APP).await.context("making the demo's application")?;
    for path in PATHS {
        let endpoint = json!({
            "url": format!("{receiver_url}{path}"), "uid": &path[1..], "description": "demo", "secret": secret.reveal(),
        });
        client.post(&["app", APP, "endpoint"], &endpoint).await.with_context(|| format!("adding {path}"))?;
    }
    for order in 1_u64.. {
        let event_type = EVENT_TYPES[usize::try_from(order).unwrap_or(0) % EVENT_TYPES.len()];
        let message = json!({ "eventType": event_type, "payload": { "order": order, "amount": order * 7 % 1000 } });
        match client.post(&["app", APP, "msg"], &message).await {
            Ok(_) => tally.sent.fetch_add(1, Relaxed),
            Err(_) => tally.refused.fetch_add(1, Relaxed),
        };
        sleep(Duration::from_secs(1) / rate).await;
    }
    Ok(())
}

/// Keeps one line up to date on a terminal; elsewhere adds one now and then.
async fn watch(tally: &Tally) -> anyhow::Result<()> {
    if !io::stderr().is_terminal() {
        loop {
            sleep(Duration::from_secs(5)).await;
            print::tell(&tally.line());
        }
    }
    let style = ProgressStyle::with_template("{spinner} {msg}").context("drawing the line")?;
    let line = ProgressBar::new_spinner().with_style(style);
    loop {
        line.set_message(tally.line());
        line.tick();
        sleep(Duration::from_millis(200)).await;
    }
}

#[derive(Default)]
struct Tally {
    sent: AtomicU64,
    refused: AtomicU64,
    arrived: AtomicU64,
    delivered: AtomicU64,
    failed: AtomicU64,
    forged: AtomicU64,
}

impl Tally {
    fn line(&self) -> String {
        let [sent, refused, arrived, delivered, failed, forged] =
            [&self.sent, &self.refused, &self.arrived, &self.delivered, &self.failed, &self.forged]
                .map(|count| count.load(Relaxed));
        let mut line = format!(
            "{sent} messages sent, {arrived} attempts arrived: {delivered} delivered, {failed} failed on purpose"
        );
        for (count, what) in [(forged, "with a wrong signature"), (refused, "messages refused")] {
            if count > 0 {
                line += &format!(", {count} {what}");
            }
        }
        line
    }
}

struct Misbehave {
    tally: Arc<Tally>,
}

impl Respond for Misbehave {
    fn respond(&self, arrival: &Arrival) -> anyhow::Result<Reply> {
        let nth = self.tally.arrived.fetch_add(1, Relaxed);
        let reply = match arrival.signature {
            Signature::Good => misbehave(&arrival.path, nth, &arrival.body),
            Signature::Bad(_) | Signature::Unverified => {
                self.tally.forged.fetch_add(1, Relaxed);
                Reply::status(StatusCode::UNAUTHORIZED)
            }
        };
        let count = if is_success(&reply) { &self.tally.delivered } else { &self.tally.failed };
        count.fetch_add(1, Relaxed);
        Ok(reply)
    }
}

fn misbehave(path: &str, nth: u64, body: &[u8]) -> Reply {
    // It says no for good, and why: such a delivery is a dead letter at once.
    if path == "/picky" && amount(body).is_some_and(|amount| amount < SMALL) {
        let body = Bytes::from(json!({"error": format!("orders below {SMALL} are not taken")}).to_string());
        let answer = Answer::Whole { status: StatusCode::UNPROCESSABLE_ENTITY, headers: HeaderMap::new(), body };
        return Reply { delay: Duration::ZERO, answer };
    }
    let (status, delay_ms) = match path {
        "/flaky" if nth.is_multiple_of(3) => (StatusCode::INTERNAL_SERVER_ERROR, 0),
        "/slow" => (StatusCode::OK, 800 + nth * 37 % 1700),
        "/broken" => (StatusCode::SERVICE_UNAVAILABLE, 0),
        _ => (StatusCode::OK, 0),
    };
    Reply::status(status).after(Duration::from_millis(delay_ms))
}

fn amount(body: &[u8]) -> Option<u64> {
    serde_json::from_slice::<Value>(body).ok()?["amount"].as_u64()
}

fn is_success(reply: &Reply) -> bool {
    matches!(reply.answer, Answer::Whole { status, .. } if status.is_success())
}

fn random_secret() -> anyhow::Result<Secret> {
    let mut bytes = [0; 24];
    SysRng.try_fill_bytes(&mut bytes).context("the system gave no random numbers")?;
    Ok(Secret::from_bytes(&bytes).expect("24 bytes are enough"))
}

const APP: &str = "demo";
const PATHS: [&str; 5] = ["/steady", "/flaky", "/slow", "/picky", "/broken"];
/// One of ten orders, and the first ones.
const SMALL: u64 = 100;
const EVENT_TYPES: [&str; 4] = ["order.placed", "order.paid", "order.shipped", "refund.created"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_misbehaves_in_its_own_way() {
        for (path, failures, slow) in [
            ("/steady", 0, false),
            ("/flaky", 10, false),
            ("/slow", 0, true),
            ("/picky", 30, false),
            ("/broken", 30, false),
        ] {
            let replies: Vec<_> = (0..30).map(|nth| misbehave(path, nth, br#"{"amount": 7}"#)).collect();
            assert_eq!(replies.iter().filter(|reply| !is_success(reply)).count(), failures, "{path}");
            assert_eq!(replies.iter().all(|reply| reply.delay >= Duration::from_millis(800)), slow, "{path}");
        }
        assert!(is_success(&misbehave("/picky", 0, br#"{"amount": 100}"#)));
    }
}
