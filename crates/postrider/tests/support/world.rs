//! A real server with an application `acme`, a receiver, and the calls that tests of whole stories have in common.

use super::{
    api::Client,
    eventually,
    receiver::{Answer, Receiver},
    server::Server,
    stores::StoreKind,
};
use http::Method;
use serde_json::{Value, json};

pub struct World {
    pub server: Server,
    pub receiver: Receiver,
    pub client: Client,
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub async fn start_with(flags: &[&str]) -> Self {
        Self::around(Server::start_with(flags)).await
    }

    pub async fn start_on(store: StoreKind) -> Self {
        Self::around(Server::start_on(store, &[])).await
    }

    async fn around(server: Server) -> Self {
        let mut client = Client::new(server.address(), server.token());
        client.create("/api/v1/app", &json!({"name": "Acme", "uid": "acme"})).await;
        Self { server, receiver: Receiver::start(), client }
    }

    /// Ends the server in the middle of whatever it does, and starts it again on its data.
    pub fn kill_and_start_again(&mut self) {
        self.server.kill();
        self.start_again();
    }

    pub fn start_again(&mut self) {
        self.server.start_again();
        self.connect_again();
    }

    /// For when the server has hung up.
    pub fn connect_again(&mut self) {
        self.client = Client::new(self.server.address(), self.server.token());
    }

    /// The endpoint's uid is its path without the slash. It retries at once, unless `more` says otherwise.
    pub async fn endpoint(&mut self, path: &str, more: Value) {
        let body = json!({"url": self.receiver.url(path), "uid": &path[1..], "retryPolicy": hasty(3)});
        self.client.create("/api/v1/app/acme/endpoint", &joined(body, &more)).await;
    }

    /// Waits until the server's log has these words: it is written behind what it tells of.
    pub async fn logs(&self, words: &str) {
        eventually(words, async || self.server.log().contains(words).then_some(())).await;
    }

    /// Below the application.
    pub async fn get(&mut self, path: &str) -> Value {
        self.client.get(&format!("/api/v1/app/acme/{path}")).await.expect("the server answers")
    }

    pub async fn list(&mut self, path: &str) -> Vec<Value> {
        self.client.list(&format!("/api/v1/app/acme/{path}")).await.expect("the server answers")
    }

    /// Below the application, too.
    pub async fn call(&mut self, method: Method, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let path = format!("/api/v1/app/acme/{path}");
        let (status, answer) = self.client.send(method, &path, &[], &body).await.expect("the server answers");
        (status.as_u16(), serde_json::from_slice(&answer).unwrap_or_default())
    }

    pub async fn post(&mut self, path: &str, body: Value) -> (u16, Value) {
        self.call(Method::POST, path, body).await
    }

    pub async fn send(&mut self, event_type: &str) -> String {
        self.send_with(event_type, json!({})).await
    }

    /// Says the message's id.
    pub async fn send_with(&mut self, event_type: &str, more: Value) -> String {
        let body = joined(json!({"eventType": event_type, "payload": {"n": 1}}), &more);
        let made = self.client.create("/api/v1/app/acme/msg", &body).await;
        made["id"].as_str().expect("an id").to_owned()
    }

    /// How a message stands with an endpoint: the contract's word.
    pub async fn status(&mut self, message: &str, endpoint: &str) -> Option<String> {
        let all = self.list(&format!("msg/{message}/endpoint")).await;
        Some(all.iter().find(|it| it["uid"] == endpoint)?["statusText"].as_str()?.to_owned())
    }

    /// How a message ended at an endpoint, and its attempts, oldest first.
    pub async fn end(&mut self, message: &str, endpoint: &str) -> (String, Vec<Value>) {
        let status = eventually(&format!("the end of {message} at {endpoint}"), async || {
            self.status(message, endpoint).await.filter(|status| status != "pending" && status != "sending")
        })
        .await;
        let mut attempts = self.list(&format!("attempt/msg/{message}?endpoint_id={endpoint}")).await;
        attempts.reverse();
        (status, attempts)
    }

    pub async fn health(&mut self, endpoint: &str) -> Value {
        self.get(&format!("endpoint/{endpoint}/health")).await
    }

    /// Waits until an endpoint's health is called so.
    pub async fn health_that_is(&mut self, endpoint: &str, state: &str) -> Value {
        eventually(&format!("{endpoint} to be {state}"), async || {
            Some(self.health(endpoint).await).filter(|health| health["state"] == state)
        })
        .await
    }

    pub async fn task(&mut self, id: &str) -> Value {
        self.client.get(&format!("/api/v1/background-task/{id}")).await.expect("the server answers")
    }

    /// Waits until the task of this answer has ended, and says how.
    pub async fn end_of_task(&mut self, (status, started): (u16, Value)) -> Value {
        assert_eq!(status, 202, "{started}");
        let id = started["id"].as_str().expect("an id").to_owned();
        eventually(&format!("the end of {started}"), async || {
            Some(self.task(&id).await).filter(|task| task["status"] != "running")
        })
        .await
    }
}

/// Tries again at once, so that nobody has to wait for it.
pub fn hasty(attempts_max: u32) -> Value {
    json!({"schedule": {"type": "fixed", "interval": "1ms"}, "jitter": "none", "maxAttempts": attempts_max})
}

pub fn joined(mut body: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

pub fn with_header(status: u16, name: &'static str, value: &str) -> Answer {
    Answer::Full { status, headers: vec![(name, value.to_owned())], body: "why".into() }
}
