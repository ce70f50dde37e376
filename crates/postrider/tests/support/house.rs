//! The API through its router, with the real store behind it and no network.

use super::stores::StoreKind;
use axum::{Router, body::Body};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use postrider::{
    alerts::{Alerts, desk::Desk, trial::Trial},
    clock,
    config::{TokenAlgorithm, TokenKey, TokenSettings},
    credentials::{Credentials, key_text::KeyTexts},
    directory::Directory,
    http::{Api, ApiSettings, auth::records::Records, router},
    ids::IdCodec,
    ingest::Ingest,
    keyring::Keyring,
    tasks::Tasks,
    tokens::{Access, Tokens},
    transport::AddressGuard,
    vault::Vault,
};
use postrider_engine::{AppKey, policy::Layer};
use postrider_store::{SqliteStore, Store};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tempfile::TempDir;
use tower::ServiceExt;

pub struct House {
    pub api: Arc<Api>,
    pub store: Arc<dyn Store>,
    pub router: Router,
    pub token: String,
    pub folder: Arc<TempDir>,
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {:?}", self.text))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }
}

impl House {
    pub fn new() -> Self {
        Self::with_rules(Layer::default())
    }

    /// With what the server itself says about how endpoints are treated.
    pub fn with_rules(rules: Layer) -> Self {
        let folder = folder_with_keys();
        let store = Arc::new(SqliteStore::open(folder.path(), clock::now()).expect("a store"));
        Self::on(store, folder, Vec::new(), rules)
    }

    pub async fn start_on(store: StoreKind) -> Self {
        let folder = folder_with_keys();
        Self::on(store.open(folder.path()).await, folder, Vec::new(), Layer::default())
    }

    /// On another store, with the keys in this folder, and with leave to deliver to these networks.
    pub fn on(store: Arc<dyn Store>, folder: Arc<TempDir>, allow: Vec<ipnet::IpNet>, rules: Layer) -> Self {
        let rules = Arc::new(rules);
        let keyring = Keyring::open_or_create(folder.path()).expect("keys");
        let ids = IdCodec::new(*keyring.ids());
        let settings = TokenSettings { algorithm: TokenAlgorithm::HS256, key: TokenKey::Keyring };
        let tokens = Arc::new(Tokens::new(&settings, &keyring, ids.clone()).expect("a key of our own"));
        let vault = Arc::new(Vault::new(keyring.encryption()));
        let guard = Arc::new(AddressGuard::new(allow));
        let token = tokens.mint_environment(clock::now(), Duration::from_hours(1)).expect("a token");
        let directory =
            Arc::new(Directory::new(Arc::clone(&store), Arc::clone(&vault), Arc::clone(&guard), Arc::clone(&rules)));
        let texts = KeyTexts::new(ids.clone(), keyring.tokens());
        let ingest = Arc::new(Ingest::new(Arc::clone(&store), Arc::clone(&directory), clock::own()));
        let desk = Desk {
            store: Arc::clone(&store),
            directory: Arc::clone(&directory),
            ingest: Arc::clone(&ingest),
            ids: ids.clone(),
        };
        let api = Arc::new(Api {
            guesses: postrider::http::guesses::Guesses::default(),
            key_guesses: postrider::http::guesses::Guesses::default(),
            tails: postrider::http::tail::Tails::default(),
            standings: postrider::standing::Standings::default(),
            refusals: postrider::http::source_log::Refusals::new(Arc::clone(&store)),
            credentials: Arc::new(Credentials::new(tokens, texts, Arc::clone(&store))),
            ingest,
            directory,
            records: Records::new(Arc::clone(&store)),
            ids,
            vault,
            tasks: Arc::new(Tasks::default()),
            alerts: Arc::new(Alerts::silent()),
            trial: Trial { desk: Arc::new(desk), mailer: None },
            guard,
            clock: clock::now,
            rng: Mutex::new(StdRng::seed_from_u64(1)),
            settings: ApiSettings { public_url: Some("https://hooks.example".into()), rules, ..ApiSettings::default() },
        });
        Self { router: router(Arc::clone(&api)), api, store, token, folder }
    }

    pub async fn ask(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.expect("the router always answers");
        let (parts, body) = response.into_parts();
        // A stream of events goes on for as long as someone listens.
        let is_endless = parts.headers.get("content-type").is_some_and(|media| media == "text/event-stream");
        let body = if is_endless { Bytes::new() } else { body.collect().await.expect("a body").to_bytes() };
        let text = String::from_utf8(body.to_vec()).expect("text");
        Reply { status: parts.status, headers: parts.headers, text }
    }

    pub async fn call(&self, method: &str, path: &str, body: Value) -> Reply {
        self.call_as(&self.token, method, path, body).await
    }

    pub async fn call_as(&self, token: &str, method: &str, path: &str, body: Value) -> Reply {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1/{path}"))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.ask(request.body(body).expect("a request")).await
    }

    pub async fn post_with_key(&self, path: &str, key: &str, body: Value) -> Reply {
        let request = Request::post(format!("/api/v1/{path}"))
            .header("authorization", format!("Bearer {}", self.token))
            .header("idempotency-key", key);
        self.ask(request.body(Body::from(body.to_string())).expect("a request")).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, Value::Null).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.call("POST", path, body).await
    }

    pub fn app_token(&self, app_id: &str, access: &Access) -> String {
        let key: AppKey = self.api.ids.key_of(app_id).expect("an id");
        self.api
            .credentials
            .tokens()
            .mint_application(key, access, clock::now(), Duration::from_hours(1))
            .expect("a token")
    }
}

/// With keys in it: beside a database that is there already none would be made.
pub fn folder_with_keys() -> Arc<TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    Keyring::open_or_create(folder.path()).expect("keys");
    Arc::new(folder)
}
