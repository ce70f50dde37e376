//! Where the stories are played: an application on the server, and a receiver for all of them.

use super::super::{
    client::{CallError, Client, InApp, Query, ServerFlags},
    receiver::{self, Arrival, Reply, Respond, Signature},
    script::Act,
};
use crate::http::time::Time;
use anyhow::Context;
use bytes::Bytes;
use http::StatusCode;
use postrider_engine::Timestamp;
use postrider_signature::Secret;
use rand::{TryRng, rngs::SysRng};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, sleep},
};
use url::Url;

pub struct Stage {
    app: InApp,
    uid: String,
    receiver_url: String,
    secret: Secret,
    doors: Arc<Doors>,
    receiving: JoinHandle<anyhow::Result<()>>,
}

/// What stands behind each path of the receiver.
#[derive(Default)]
struct Doors(Mutex<HashMap<String, Door>>);

struct Door {
    first: VecDeque<Act>,
    then: Act,
    came: Vec<Came>,
}

/// A request that came, and what was done with it.
#[derive(Clone, Debug)]
pub struct Came {
    pub at: Timestamp,
    pub id: String,
    pub attempt: String,
    pub body: Bytes,
    pub is_signed: bool,
}

impl Doors {
    fn open(&self) -> MutexGuard<'_, HashMap<String, Door>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Respond for Arc<Doors> {
    fn respond(&self, arrival: &Arrival) -> anyhow::Result<Reply> {
        let mut doors = self.open();
        let Some(door) = doors.get_mut(&arrival.path) else { return Ok(Reply::status(StatusCode::NOT_FOUND)) };
        let act = door.first.pop_front().unwrap_or_else(|| door.then.clone());
        door.came.push(Came {
            at: arrival.at,
            id: arrival.id.clone().unwrap_or_default(),
            attempt: arrival.attempt.clone().unwrap_or_default(),
            body: arrival.body.clone(),
            is_signed: arrival.signature == Signature::Good,
        });
        Ok(act.reply(arrival.at))
    }
}

/// An endpoint of one story, and the messages that only it gets.
pub struct Lane<'s> {
    stage: &'s Stage,
    name: &'static str,
    pub endpoint: String,
}

impl Stage {
    pub async fn open(server: &ServerFlags, listen: SocketAddr, receiver_url: Option<&Url>) -> anyhow::Result<Self> {
        let client = Client::new(server)?;
        let listener = TcpListener::bind(listen).await.with_context(|| format!("listening on {listen}"))?;
        let address = listener.local_addr().context("reading the address")?;
        let receiver_url = match receiver_url {
            Some(url) => url.as_str().trim_end_matches('/').to_owned(),
            None => format!("http://{address}"),
        };
        let mut random = [0; 32];
        SysRng.try_fill_bytes(&mut random).context("the system gave no random numbers")?;
        let (name, secret) = random.split_at(8);
        let secret = Secret::from_bytes(secret).expect("24 bytes are enough");
        let uid = format!("drill-{}", name.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        client.post(&["app"], &json!({ "name": "Drill", "uid": uid })).await.context("making an application")?;
        let doors = Arc::new(Doors::default());
        let receiving = tokio::spawn(receiver::run(listener, vec![secret.clone().into()], Arc::clone(&doors)));
        Ok(Self { app: InApp::of(client, &uid), uid, receiver_url, secret, doors, receiving })
    }

    /// Leaves nothing on the server but what its own retentions keep.
    pub async fn close(&self) -> anyhow::Result<()> {
        self.receiving.abort();
        self.app.client.delete(&["app", &self.uid]).await.map(|_| ())
    }

    /// An endpoint with these rules. The receiver does with the first requests what `first` says, and `then` with all others.
    pub async fn lane(
        &self,
        name: &'static str,
        mut rules: Value,
        first: &[Act],
        then: Act,
    ) -> anyhow::Result<Lane<'_>> {
        let door = Door { first: first.iter().cloned().collect(), then, came: Vec::new() };
        self.doors.open().insert(format!("/{name}"), door);
        rules["url"] = json!(format!("{}/{name}", self.receiver_url));
        rules["channels"] = json!([name]);
        rules["secret"] = json!(self.secret.reveal());
        rules["description"] = json!("of postrider drill");
        let made = self.app.post(&["endpoint"], &rules).await.map_err(|error| self.explained(error))?;
        let endpoint = made.value()?["id"].as_str().context("the answer has no endpoint id")?.to_owned();
        Ok(Lane { stage: self, name, endpoint })
    }

    /// A server may be told not to call such addresses, and mostly is.
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref() {
            Some(CallError::Refused { status: StatusCode::UNPROCESSABLE_ENTITY, detail }) => anyhow::anyhow!(
                "the server does not deliver to {}: {detail}. Let it: `postrider serve --allow-subnet 127.0.0.0/8` for a \
                 receiver on the same machine; or take --listen and --receiver-url for an address that it may call",
                self.receiver_url
            ),
            Some(_) | None => error,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageIn<'a> {
    event_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
    channels: [&'a str; 1],
    payload: &'a RawValue,
}

/// What every message says. Printed anew by a parser it would look different.
pub const BODY: &str = r#"{"b": 1.50,  "a": "drill", "list": [1,2, 3]}"#;

impl Lane<'_> {
    /// Tells the message's id.
    pub async fn send(&self) -> anyhow::Result<String> {
        self.send_as(None).await
    }

    pub async fn send_as(&self, event_id: Option<&str>) -> anyhow::Result<String> {
        let payload: &RawValue = serde_json::from_str(BODY).context("reading our own payload")?;
        let message = MessageIn { event_type: "drill.played", event_id, channels: [self.name], payload };
        let made = self.stage.app.client.post(&["app", &self.stage.uid, "msg"], &message).await?.value()?;
        Ok(made["id"].as_str().context("the answer has no message id")?.to_owned())
    }

    pub fn change_to(&self, then: Act) {
        if let Some(door) = self.stage.doors.open().get_mut(&format!("/{}", self.name)) {
            door.first.clear();
            door.then = then;
        }
    }

    pub fn came(&self) -> Vec<Came> {
        self.stage.doors.open().get(&format!("/{}", self.name)).map(|door| door.came.clone()).unwrap_or_default()
    }

    /// How a message stands once it has been delivered or given up: `success` or `fail`; as it is, if that takes too long.
    pub async fn settled(&self, message: &str) -> anyhow::Result<String> {
        let mut seen = String::new();
        self.patiently(async || {
            let found = self.stage.app.list(&["msg", message, "endpoint"], &Vec::new(), 10).await?.values()?;
            let own = found.iter().find(|state| state["id"] == self.endpoint.as_str());
            seen = own.and_then(|state| state["statusText"].as_str()).unwrap_or("unknown").to_owned();
            Ok(matches!(seen.as_str(), "success" | "fail" | "canceled"))
        })
        .await?;
        Ok(seen)
    }

    /// Oldest first.
    pub async fn attempts(&self, message: &str) -> anyhow::Result<Vec<Value>> {
        let mut found = self.stage.app.list(&["attempt", "msg", message], &Vec::new(), 250).await?.values()?;
        found.reverse();
        Ok(found)
    }

    pub async fn health(&self) -> anyhow::Result<Value> {
        self.stage.app.get(&["endpoint", &self.endpoint, "health"], &Vec::new()).await?.value()
    }

    /// Looks until its breaker stands so, or too long.
    pub async fn breaker(&self, wanted: &str) -> anyhow::Result<Value> {
        let mut seen = Value::Null;
        self.patiently(async || {
            seen = self.health().await?;
            Ok(seen["breaker"]["state"] == wanted)
        })
        .await?;
        Ok(seen)
    }

    /// Why its messages were given up.
    pub async fn dead_letters(&self) -> anyhow::Result<Vec<String>> {
        let query: Query = vec![("endpoint_id", self.endpoint.clone())];
        let found = self.stage.app.list(&["dead-letter"], &query, 250).await?.values()?;
        Ok(found.iter().map(|letter| letter["reason"].as_str().unwrap_or("unknown").to_owned()).collect())
    }

    pub async fn replay(&self, message: &str) -> anyhow::Result<()> {
        let path = ["dead-letter", message, "endpoint", &self.endpoint, "replay"];
        self.stage.app.post(&path, &json!({})).await.map(|_| ())
    }

    async fn patiently(&self, mut ask: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !ask().await? && begun.elapsed() < PATIENCE {
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// A time in one of the server's answers.
pub fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse::<Time>().ok().map(|time| time.0)
}

/// Far more than any story takes.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
