//! Messages and attempts through the API's router, with the real store behind it and no network.

mod support;

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{Request, StatusCode};
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
    vault::{Private, Vault},
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
    policy::{Class, DeathReason, Delay, DisableReason, Next, Ordering, Progress, Rule},
};
use postrider_store::{Application, AttemptRecord, Disabled, Endpoint, Expect, Settlement, Store};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use support::stores::{StoreKind, on_both_stores};
use tower::ServiceExt;

on_both_stores! {
    async
    a_message_is_answered_as_it_came_and_as_it_is_stored,
    a_repetition_gets_the_first_answer_and_creates_nothing,
    a_message_can_bring_its_application_along,
    messages_are_listed_newest_first_and_filtered,
    what_was_expunged_is_gone_and_cannot_be_sent_again,
    attempts_and_deliveries_are_shown_from_every_side,
    a_resend_to_a_disabled_endpoint_is_held_and_not_forgotten,
    what_is_another_applications_looks_as_if_it_did_not_exist,
    the_holder_of_a_portal_token_reads_and_may_send_again_if_allowed,
    a_wrong_question_is_refused_by_name,
    a_payload_with_its_own_time_to_live_is_kept_that_long,
}

struct Bench {
    api: Arc<Api>,
    store: Arc<dyn Store>,
    router: Router,
    token: String,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn new(store: StoreKind) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let keyring = Keyring::open_or_create(folder.path()).expect("keys");
        let ids = IdCodec::new(*keyring.ids());
        let settings = TokenSettings { algorithm: TokenAlgorithm::HS256, key: TokenKey::Keyring };
        let tokens = Arc::new(Tokens::new(&settings, &keyring, ids.clone()).expect("a key of our own"));
        let store = store.open(folder.path()).await;
        let vault = Arc::new(Vault::new(keyring.encryption()));
        let guard = Arc::new(AddressGuard::new(Vec::new()));
        let token = tokens.mint_environment(clock::now(), Duration::from_hours(1)).expect("a token");
        let directory =
            Arc::new(Directory::new(Arc::clone(&store), Arc::clone(&vault), Arc::clone(&guard), Arc::default()));
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
            settings: ApiSettings::default(),
        });
        Self { router: router(Arc::clone(&api)), api, store, token, _folder: folder }
    }

    async fn with_application(store: StoreKind) -> (Self, AppKey) {
        let bench = Self::new(store).await;
        let app = bench.application("acme").await;
        (bench, app)
    }

    async fn application(&self, uid: &str) -> AppKey {
        let now = clock::now();
        let key = AppKey::new(self.store.mint(now).await.unwrap());
        let application = Application {
            key,
            version: 1,
            uid: Some(uid.into()),
            name: uid.into(),
            rate_limit: None,
            rules: None,
            source: None,
            pollers: None,
            metadata: BTreeMap::new(),
            created_at: now,
            updated_at: now,
        };
        self.store.put_application(application, Expect::Absent, None).await.expect("a new application");
        key
    }

    async fn endpoint(&self, app: AppKey, disabled: bool) -> EndpointKey {
        let now = clock::now();
        let key = EndpointKey::new(self.store.mint(now).await.unwrap());
        let private = Private::default();
        let endpoint = Endpoint {
            key,
            app,
            version: 1,
            uid: None,
            url: "https://example.com/hook".into(),
            description: String::new(),
            disabled: disabled.then_some(Disabled { why: DisableReason::Manual, at: now }),
            event_types: None,
            channels: None,
            metadata: BTreeMap::new(),
            rate_limit: None,
            rules: None,
            sealed: self.api.vault.seal(key, &private, &mut StdRng::seed_from_u64(1)),
            created_at: now,
            updated_at: now,
        };
        self.store.put_endpoint(endpoint, Expect::Absent, None).await.expect("a new endpoint");
        self.api.directory.changed(app);
        key
    }

    fn id_of(&self, key: impl postrider::ids::PublicKey) -> String {
        self.api.ids.id_of(key)
    }

    async fn send(&self, request: http::request::Builder, body: impl Into<Body>) -> (StatusCode, Bytes) {
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let response = self.router.clone().oneshot(request.body(body.into()).expect("a request")).await;
        let response = response.expect("the router always answers");
        let status = response.status();
        (status, response.into_body().collect().await.expect("a whole body").to_bytes())
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        let (status, body) = self.send(Request::get(format!("/api/v1/app/{path}")), "").await;
        (status, serde_json::from_slice(&body).expect("JSON, also in an error"))
    }

    async fn post(&self, path: &str, key: Option<&str>, body: &str) -> (StatusCode, Value) {
        let mut request = Request::post(format!("/api/v1/app/{path}"));
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let (status, body) = self.send(request, body.to_owned()).await;
        (status, serde_json::from_slice(&body).expect("JSON, also in an error"))
    }

    /// Creates a message and tells its id and key.
    async fn message(&self, body: &str) -> (String, MessageKey) {
        let (status, message) = self.post("acme/msg", None, body).await;
        assert_eq!(status, 202, "{message}");
        let id = message["id"].as_str().expect("an id").to_owned();
        let key = self.api.ids.key_of(&id).expect("an id of ours");
        (id, key)
    }

    /// Records an attempt as the dispatcher would.
    async fn attempt(&self, message: MessageKey, endpoint: EndpointKey, status: u16, number: u32) {
        let now = clock::now();
        let delay = Delay { backoff: Duration::from_secs(10), ..Delay::default() };
        let (class, rule, next) = match status {
            200..=299 => (Class::Delivered, Rule::Success, Next::Delivered),
            400..=499 => (Class::Permanent, Rule::ClientError, Next::Dead(DeathReason::Permanent)),
            _ => {
                let due = now.plus(Duration::from_secs(10));
                (Class::Transient, Rule::ServerError, Next::Retry { due, delay })
            }
        };
        let settlement = Settlement {
            id: DeliveryId { endpoint, message, trigger: Trigger::Scheduled },
            handed: number == 1,
            cycle: 0,
            progress: Progress {
                attempts: number,
                give_up_at: Some(now.plus(Duration::from_hours(96))),
                ..Progress::default()
            },
            at: now,
            attempt: Some(AttemptRecord {
                started_at: now,
                duration: Duration::from_millis(3),
                url: "https://example.com/hook".into(),
                status: Some(status),
                response: Bytes::from_static(b"no\xff"),
                class,
                rule,
                held: None,
                headers: Default::default(),
            }),
            next,
            order: None,
            health: None,
            disable: None,
        };
        self.store.settle(self.store.tenure(), Arc::new(vec![settlement])).await.expect("a settlement");
    }
}

fn ids_in(list: &Value) -> Vec<String> {
    list["data"].as_array().expect("a list").iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
}

async fn a_message_is_answered_as_it_came_and_as_it_is_stored(store: StoreKind) {
    let (bench, _) = Bench::with_application(store).await;
    let payload = r#"{ "n" : 1e400, "a":1,"a":"\u0000" }"#;
    let body = format!(r#"{{"eventType":"a.b","eventId":"e-1","channels":["c"],"tags":["t"],"payload":{payload}}}"#);
    let (status, created) = bench.send(Request::post("/api/v1/app/acme/msg"), body.clone()).await;
    assert_eq!(status, 202);
    assert!(created.windows(payload.len()).any(|part| part == payload.as_bytes()), "{created:?}");
    let (status, read) = bench.send(Request::get("/api/v1/app/acme/msg/e-1"), "").await;
    assert_eq!((status, &read), (StatusCode::OK, &created), "by its eventId, the same bytes");

    let (status, error) = bench.post("acme/msg", None, &body).await;
    assert_eq!((status, &error["code"]), (StatusCode::CONFLICT, &json!("conflict")));
    let (_, bare) = bench.get("acme/msg/e-1?with_content=false").await;
    assert_eq!(bare["payload"], json!({}));
}

async fn a_repetition_gets_the_first_answer_and_creates_nothing(store: StoreKind) {
    let (bench, _) = Bench::with_application(store).await;
    let body = r#"{"eventType":"a","eventId":"once","payload":{"x":1}}"#;
    let other = r#"{"eventType":"a","payload":{"x":2}}"#;
    let first = bench.post("acme/msg", Some("mine"), body).await;
    assert_eq!(first.0, 202);
    assert_eq!(bench.post("acme/msg", Some("mine"), body).await, first);
    assert_eq!(bench.post("acme/msg", Some("mine"), other).await.0, 409);
    let first = bench.post("acme/msg", Some("auto_1"), other).await;
    assert_eq!(bench.post("acme/msg", Some("auto_1"), r#"{"eventType":"b","payload":{}}"#).await, first);
    let (_, list) = bench.get("acme/msg").await;
    assert_eq!(ids_in(&list).len(), 2);
}

async fn a_message_can_bring_its_application_along(store: StoreKind) {
    let bench = Bench::new(store).await;
    let body =
        |uid: &str| format!(r#"{{"eventType":"a","payload":{{}},"application":{{"name":"New","uid":"{uid}"}}}}"#);
    assert_eq!(bench.post("new/msg", None, r#"{"eventType":"a","payload":{}}"#).await.0, 404);
    assert_eq!(bench.post("new/msg", None, &body("other")).await.0, 422);
    assert_eq!(bench.post("new/msg", None, &body("new")).await.0, 202);
    assert_eq!(bench.post("new/msg", None, &body("new")).await.0, 202, "there is one now");
    assert_eq!(ids_in(&bench.get("new/msg").await.1).len(), 2);
}

async fn messages_are_listed_newest_first_and_filtered(store: StoreKind) {
    let (bench, _) = Bench::with_application(store).await;
    let mut ids = Vec::new();
    for (event_type, extra) in [("a", ""), ("b", r#","channels":["c"]"#), ("a", r#","tags":["t"]"#)] {
        ids.insert(0, bench.message(&format!(r#"{{"eventType":"{event_type}","payload":{{}}{extra}}}"#)).await.0);
    }
    for (query, expected) in [
        ("", &ids[..]),
        ("?event_types=b", &ids[1..2]),
        ("?event_types=a&event_types=b", &ids[..]),
        ("?channel=c", &ids[1..2]),
        ("?tag=t", &ids[..1]),
        ("?before=2020-01-01T00:00:00Z", &[]),
        ("?limit=2", &ids[..2]),
    ] {
        let (status, list) = bench.get(&format!("acme/msg{query}")).await;
        assert_eq!((status, ids_in(&list)), (StatusCode::OK, expected.to_vec()), "{query}");
    }
    let (_, first) = bench.get("acme/msg?limit=2").await;
    assert_eq!(first["done"], false);
    let (_, second) =
        bench.get(&format!("acme/msg?limit=2&iterator={}", first["iterator"].as_str().expect("more"))).await;
    assert_eq!((ids_in(&second), &second["done"]), (ids[2..].to_vec(), &json!(true)));
}

async fn what_was_expunged_is_gone_and_cannot_be_sent_again(store: StoreKind) {
    let (bench, app) = Bench::with_application(store).await;
    let endpoint = bench.id_of(bench.endpoint(app, false).await);
    let (id, _) = bench.message(r#"{"eventType":"a","payload":{"secret":1}}"#).await;
    let (status, body) = bench.send(Request::delete(format!("/api/v1/app/acme/msg/{id}/content")), "").await;
    assert_eq!((status, body.len()), (StatusCode::NO_CONTENT, 0));
    assert_eq!(bench.get(&format!("acme/msg/{id}")).await.1["payload"], json!({"expired": true}));
    let (status, error) = bench.post(&format!("acme/msg/{id}/endpoint/{endpoint}/resend"), None, "").await;
    assert_eq!((status, &error["code"]), (StatusCode::BAD_REQUEST, &json!("missing_payload")));
}

async fn attempts_and_deliveries_are_shown_from_every_side(store: StoreKind) {
    let (bench, app) = Bench::with_application(store).await;
    let (one, two) = (bench.endpoint(app, false).await, bench.endpoint(app, true).await);
    let (one_id, two_id) = (bench.id_of(one), bench.id_of(two));
    let (id, message) = bench.message(r#"{"eventType":"a","payload":{"x":1}}"#).await;
    bench.attempt(message, one, 503, 1).await;

    let path = format!("acme/msg/{id}/endpoint");
    let (_, destinations) = bench.get(&path).await;
    let shown: Vec<_> = destinations["data"].as_array().expect("a list").iter().map(|row| &row["statusText"]).collect();
    assert_eq!(ids_in(&destinations), [one_id.clone(), two_id.clone()]);
    assert_eq!(shown, ["sending", "pending"]);
    let (_, first) = bench.get(&format!("{path}?limit=1")).await;
    assert_eq!((ids_in(&first), &first["done"]), (vec![one_id.clone()], &json!(false)));
    let (_, second) = bench.get(&format!("{path}?limit=1&iterator={one_id}")).await;
    assert_eq!((ids_in(&second), &second["done"]), (vec![two_id.clone()], &json!(true)));
    let (_, back) = bench.get(&format!("{path}?limit=1&iterator=-{two_id}")).await;
    assert_eq!(ids_in(&back), std::slice::from_ref(&one_id));

    bench.attempt(message, one, 204, 2).await;
    let (_, by_message) = bench.get(&format!("acme/attempt/msg/{id}")).await;
    let statuses: Vec<_> = by_message["data"].as_array().expect("a list").iter().map(|row| &row["status"]).collect();
    assert_eq!(statuses, [0, 2], "newest first");
    assert_eq!(by_message["data"][1]["verdict"]["delay"]["backoffMs"], 10_000);
    assert_eq!(by_message["data"][1]["response"], "no\u{fffd}");

    for (query, count) in [
        ("", 2),
        ("?status=0", 1),
        ("?status=2", 1),
        ("?status=3", 0),
        ("?status_code_class=500", 1),
        ("?event_types=b", 0),
        ("?with_content=false&with_msg=true&expanded_statuses=true&event_types=a", 2),
    ] {
        let (status, list) = bench.get(&format!("acme/attempt/endpoint/{one_id}{query}")).await;
        assert_eq!((status, ids_in(&list).len()), (StatusCode::OK, count), "{query}");
        if query.contains("with_msg") {
            assert_eq!(list["data"][0]["msg"]["id"], json!(id));
            assert_eq!(list["data"][0]["msg"]["payload"], json!({}));
            assert_eq!(list["data"][0]["response"], "{}");
        }
    }
    for (endpoint, status, count) in [
        (&one_id, "", 1),
        (&one_id, "?status=0", 1),
        (&one_id, "?status=2", 0),
        (&two_id, "?status=1", 1),
        (&two_id, "?status=4", 0),
    ] {
        let (_, list) = bench.get(&format!("acme/endpoint/{endpoint}/msg{status}")).await;
        assert_eq!(ids_in(&list).len(), count, "{endpoint} {status}");
    }

    let attempt = &ids_in(&by_message)[0];
    let path = format!("acme/msg/{id}/attempt/{attempt}");
    assert_eq!(bench.get(&path).await.1["response"], "no\u{fffd}");
    let (status, _) = bench.send(Request::delete(format!("/api/v1/app/{path}/content")), "").await;
    assert_eq!(status, 204);
    assert_eq!(bench.get(&path).await.1["response"], "EXPUNGED");
}

async fn a_resend_to_a_disabled_endpoint_is_held_and_not_forgotten(store: StoreKind) {
    let (bench, app) = Bench::with_application(store).await;
    let (id, message) = bench.message(r#"{"eventType":"a","payload":{}}"#).await;
    let endpoint = bench.endpoint(app, true).await;
    let path = format!("acme/msg/{id}/endpoint/{}/resend", bench.id_of(endpoint));
    for _ in 0..2 {
        assert_eq!(bench.post(&path, Some("once"), "").await, (StatusCode::ACCEPTED, json!({})));
    }
    let waiting = bench.store.load(endpoint, Ordering::None, clock::now(), 10).await.expect("the lane");
    let found: Vec<_> = waiting.deliveries.iter().map(|waiting| waiting.id).collect();
    assert_eq!(found, [DeliveryId { endpoint, message, trigger: Trigger::Manual }]);
}

async fn what_is_another_applications_looks_as_if_it_did_not_exist(store: StoreKind) {
    let (bench, _) = Bench::with_application(store).await;
    let stranger = bench.application("other").await;
    let foreign = bench.id_of(bench.endpoint(stranger, false).await);
    let (id, _) = bench.message(r#"{"eventType":"a","payload":{}}"#).await;
    let unknown = bench.id_of(MessageKey::new(7));
    for path in [
        format!("other/msg/{id}"),
        format!("acme/msg/{unknown}"),
        "acme/msg/msg_nonsense".to_owned(),
        "acme/msg/..%2f..%2fetc".to_owned(),
        format!("other/attempt/msg/{id}"),
        format!("acme/attempt/endpoint/{foreign}"),
        format!("acme/attempt/msg/{id}?endpoint_id={foreign}"),
        format!("acme/endpoint/{foreign}/msg"),
        format!("acme/msg/{id}/attempt/{id}"),
        format!("other/msg/{id}/endpoint"),
    ] {
        let (status, error) = bench.get(&path).await;
        assert_eq!((status, &error["code"]), (StatusCode::NOT_FOUND, &json!("not_found")), "{path}");
    }
}

async fn the_holder_of_a_portal_token_reads_and_may_send_again_if_allowed(store: StoreKind) {
    let (mut bench, app) = Bench::with_application(store).await;
    let endpoint = bench.id_of(bench.endpoint(app, false).await);
    let (id, _) = bench.message(r#"{"eventType":"a","payload":{}}"#).await;
    let resend = format!("acme/msg/{id}/endpoint/{endpoint}/resend");
    for (access, status) in [(Access::full(), 202), (Access::read_only(), 403)] {
        let minted =
            bench.api.credentials.tokens().mint_application(app, &access, clock::now(), Duration::from_hours(1));
        bench.token = minted.expect("a token");
        assert_eq!(bench.get(&format!("acme/msg/{id}")).await.0, 200);
        assert_eq!(bench.post("acme/msg", None, r#"{"eventType":"a","payload":{}}"#).await.0, 403);
        assert_eq!(bench.post(&resend, None, "").await.0, status);
    }
    bench.token = "none".into();
    assert_eq!(bench.post("acme/msg", None, "{}").await.0, 401);
    assert_eq!(bench.get("nobody/msg").await.0, 401);
}

async fn a_wrong_question_is_refused_by_name(store: StoreKind) {
    let (bench, _) = Bench::with_application(store).await;
    for (query, status) in [
        ("limit=0", 422),
        ("limit=251", 422),
        ("limit=x", 400),
        ("iterator=msg_x", 422),
        ("before=9999-01-01T00:00:00Z", 422),
        ("before=now", 400),
        ("with_content=yes", 400),
        ("unknown=1", 400),
    ] {
        assert_eq!(bench.get(&format!("acme/msg?{query}")).await.0, status, "{query}");
    }
    let (status, error) =
        bench.post("acme/msg", None, r#"{"eventType":"a","payload":{},"channels":["a","b c"]}"#).await;
    assert_eq!(status, 422);
    assert_eq!((&error["detail"][0]["loc"][0], &error["detail"][0]["loc"][1]), (&json!("body"), &json!("channels")));
}

async fn a_payload_with_its_own_time_to_live_is_kept_that_long(store: StoreKind) {
    let (bench, app) = Bench::with_application(store).await;
    let (id, key) = bench.message(r#"{"eventType":"a","payload":{"x":1},"payloadRetentionHours":1}"#).await;
    let later = |hours| Timestamp::from_millis(clock::now().as_millis()).plus(Duration::from_hours(hours));
    let long = Duration::from_hours(1_000);
    let retention =
        postrider_store::Retention { payloads: long, attempts: long, dead_letters: long, idempotency: long };
    while bench.store.tidy(later(2), retention).await.expect("tidied") {}
    assert_eq!(bench.get(&format!("acme/msg/{id}")).await.1["payload"], json!({"expired": true}));
    assert!(bench.store.message(app, postrider_store::By::Key(key)).await.expect("read").is_some());
}

#[tokio::test]
async fn a_stored_header_that_may_not_be_set_any_more_is_not_sent() {
    let (bench, app) = Bench::with_application(StoreKind::Sqlite).await;
    let key = bench.endpoint(app, false).await;
    let stored = bench.store.endpoint(app, postrider_store::By::Key(key)).await.unwrap().expect("it was made");
    let headers = [("Host", "elsewhere"), ("transfer-encoding", "chunked"), ("webhook-id", "x"), ("X-Mine", "1")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let private = Private { headers, ..Private::default() };
    let sealed = bench.api.vault.seal(key, &private, &mut StdRng::seed_from_u64(2));
    let version = stored.version;
    let endpoint = Endpoint { sealed, version: version + 1, ..stored };
    bench.store.put_endpoint(endpoint, Expect::Version(version), None).await.expect("a change");
    bench.api.directory.changed(app);
    let entry = bench.api.directory.application(&postrider_store::By::Key(app)).await.unwrap().expect("it is there");
    let sent: Vec<_> = entry.endpoints[0].headers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(sent, ["x-mine"]);
}
