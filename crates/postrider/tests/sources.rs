//! Other services' webhooks come in by the URL of a source, are verified, kept, and delivered like any message. Told with a
//! real server, the official client, and signatures made here by the services' own rules.

mod support;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use postrider_signature::{SVIX_HEADERS, Secret, SigningKey, sign};
use serde_json::{Value, json};
use sha2::Sha256;
use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};
use support::{
    eventually,
    receiver::Answer,
    server::Server,
    stores::{StoreKind, on_both_stores, spoil_source},
    world::{World, hasty},
};
use svix::{
    Svix,
    api::SvixOptions,
    error::Error,
    models::{
        CronConfig, GithubConfig, IngestEndpointHeadersIn, IngestEndpointIn, IngestEndpointSecretIn,
        IngestEndpointUpsertIn, IngestSourceConsumerPortalAccessIn, IngestSourceIn, IngestSourceInConfig,
        IngestSourceOutConfig, StripeConfig,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

on_both_stores! {
    async
    the_official_client_manages_sources_and_their_endpoints,
    what_comes_to_a_source_is_delivered_as_it_came,
    each_service_is_verified_as_it_signs,
    who_signs_where_it_sends_to_is_verified_too,
    one_event_sent_many_times_at_once_makes_one_message,
    a_captured_request_makes_no_second_message_under_another_id,
    a_source_goes_on_verifying_when_what_was_shown_is_put_back,
    a_source_s_messages_come_by_its_url_alone,
    a_flood_at_one_source_leaves_room_in_the_log_of_another,
    what_is_refused_is_in_the_log_with_its_reason,
    a_service_that_asks_first_is_answered,
    a_source_that_cannot_be_read_is_listed_apart,
    a_source_takes_http2,
    bodies_that_come_in_pieces_are_taken_and_slow_ones_are_not,
    the_old_url_holds_on_after_a_rotation,
    a_source_is_not_among_the_applications,
    a_source_outlives_a_kill_and_what_it_took_can_be_replayed,
}

/// A source is an application, and what each may hand in is limited likewise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_at_once_are_told_when_to_come_again() {
    let mut server = Server::not_started(&[]);
    server.set_variables(&[("POSTRIDER_INGEST_RATE_PER_APPLICATION", "5"), ("POSTRIDER_BODY_MAX", "1KiB")]);
    server.start_again();
    server.take_token();
    let mut client = support::api::Client::new(server.address(), server.token());
    let body = json!({"name": "Any", "type": "generic-webhook"});
    let source = client.create("/ingest/api/v1/source", &body).await;
    let url = source["ingestUrl"].as_str().expect("a URL");
    let all = futures_util::future::join_all((0..50).map(|_| post(url, &[], b"{}"))).await;
    let (taken, limited): (Vec<_>, Vec<_>) = all.iter().partition(|reply| reply.status == 200);
    assert!(!taken.is_empty() && limited.len() > 20, "{} were taken", taken.len());
    for reply in limited {
        assert_eq!(reply.status, 429);
        assert!(reply.headers.contains_key("retry-after"));
    }
    let app = source["appId"].as_str().expect("an id");
    let kept: Vec<Value> = client.list(&format!("/api/v1/app/{app}/msg")).await.expect("a list");
    assert_eq!(kept.len(), taken.len(), "what was answered with yes, and nothing else");
    let large =
        eventually("room", async || Some(post(url, &[], &[b'x'; 1025]).await.status).filter(|status| *status != 429));
    assert_eq!(large.await, 413);
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

/// As a service sends: without a token of ours.
async fn send(method: Method, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::from(body.to_vec())).expect("a request");
    let (head, body) = client.request(request).await.expect("an answer").into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Reply { status: head.status.as_u16(), headers: head.headers, body: String::from_utf8_lossy(&body).into_owned() }
}

async fn post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let json = [("content-type", "application/json")];
    let has_type = headers.iter().any(|(name, _)| *name == "content-type");
    let headers: Vec<_> = headers.iter().copied().chain(json.into_iter().filter(|_| !has_type)).collect();
    send(Method::POST, url, &headers, body).await
}

fn client(world: &World) -> Svix {
    let options = SvixOptions { server_url: Some(world.server.url()), ..Default::default() };
    Svix::new(world.server.token().to_owned(), Some(options))
}

/// A source, and the URL to send to.
async fn make(world: &mut World, body: Value) -> (Value, String) {
    let source = world.client.create("/ingest/api/v1/source", &body).await;
    let url = source["ingestUrl"].as_str().expect("a URL").to_owned();
    (source, url)
}

async fn add_endpoint(world: &mut World, source: &Value, path: &str) {
    let body = json!({"url": world.receiver.url(path), "uid": &path[1..]});
    world.client.create(&format!("{}/endpoint", at(source)), &body).await;
}

fn at(source: &Value) -> String {
    format!("/ingest/api/v1/source/{}", source["id"].as_str().expect("an id"))
}

async fn messages(world: &mut World, source: &Value) -> Vec<Value> {
    let app = source["appId"].as_str().expect("an id");
    world.client.list(&format!("/api/v1/app/{app}/msg")).await.expect("a list")
}

/// What a source has refused, once there is so much of it.
async fn log(world: &mut World, source: &Value, count: usize) -> Vec<Value> {
    let path = format!("{}/log", at(source));
    eventually(&format!("{count} in the log"), async || {
        Some(world.client.list::<Value>(&path).await.expect("a list")).filter(|list| list.len() >= count)
    })
    .await
}

fn now() -> i64 {
    postrider::clock::now().as_millis() / 1_000
}

fn hmac256(secret: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> u16 {
    match answer.expect_err("refused") {
        Error::Http(error) => error.status.as_u16(),
        Error::Validation(error) => error.status.as_u16(),
        other => panic!("{other:?}"),
    }
}

async fn the_official_client_manages_sources_and_their_endpoints(store: StoreKind) {
    let world = World::start_on(store).await;
    let svix = client(&world);
    let ingest = svix.ingest();
    let sources = ingest.source();
    assert_eq!(sources.list(None).await.expect("a list").data, []);

    let wanted = |name: &str, uid: Option<&str>, config| IngestSourceIn {
        name: name.to_owned(),
        uid: uid.map(str::to_owned),
        metadata: Some([("team".to_owned(), "a".to_owned())].into()),
        config,
    };
    let github = IngestSourceInConfig::Github(GithubConfig { secret: Some("canary".to_owned()) });
    let made = sources.create(wanted("GitHub", Some("gh"), github.clone()), None).await.expect("made");
    assert!(made.id.starts_with("src_") && made.id.len() == 26, "{}", made.id);
    assert_eq!((made.uid.as_deref(), made.name.as_str()), (Some("gh"), "GitHub"));
    assert!(matches!(made.config, IngestSourceOutConfig::Github(_)));
    let url = made.ingest_url.clone().expect("a URL");
    assert!(url.starts_with(&format!("{}/ingest/in/", world.server.url())), "{url}");
    assert_eq!(refused(sources.create(wanted("Other", Some("gh"), github.clone()), None).await), 409);
    for name in ["gh", &made.id] {
        assert_eq!(sources.get(name.to_owned()).await.expect("found"), made);
    }
    let generic = sources.create(wanted("Generic", None, IngestSourceInConfig::GenericWebhook), None).await;
    let generic = generic.expect("made");
    assert!(matches!(generic.config, IngestSourceOutConfig::GenericWebhook));
    assert_eq!(sources.list(None).await.expect("a list").data, [made.clone(), generic.clone()]);
    let cron = IngestSourceInConfig::Cron(CronConfig {
        payload: "x".to_owned(),
        schedule: "* * * * *".to_owned(),
        content_type: None,
    });
    assert_eq!(refused(sources.create(wanted("Cron", None, cron), None).await), 422);

    let stripe = IngestSourceInConfig::Stripe(StripeConfig { secret: "s".to_owned() });
    let changed = sources.upsert("gh".to_owned(), wanted("Stripe", Some("gh"), stripe.clone())).await.expect("changed");
    assert_eq!((&changed.id, changed.name.as_str(), &changed.ingest_url), (&made.id, "Stripe", &made.ingest_url));
    assert!(matches!(changed.config, IngestSourceOutConfig::Stripe(_)));
    let other = sources.upsert("new".to_owned(), wanted("New", Some("new"), stripe)).await.expect("made");
    assert_ne!(other.id, made.id);
    sources.delete("new".to_owned()).await.expect("deleted");
    assert_eq!(refused(sources.get("new".to_owned()).await), 404);
    let rotated = sources.rotate_token("gh".to_owned(), None).await.expect("rotated").ingest_url;
    assert_ne!(rotated, url);
    assert_eq!(sources.get("gh".to_owned()).await.expect("found").ingest_url, Some(rotated));

    let endpoints = ingest.endpoint();
    let in_gh = || "gh".to_owned();
    let wanted = IngestEndpointIn {
        uid: Some("hook".to_owned()),
        headers: Some([("x-own".to_owned(), "1".to_owned())].into()),
        ..IngestEndpointIn::new(world.receiver.url("/hook"))
    };
    let endpoint = endpoints.create(in_gh(), wanted, None).await.expect("made");
    assert_eq!(endpoints.get(in_gh(), "hook".to_owned()).await.expect("found"), endpoint);
    assert_eq!(endpoints.list(in_gh(), None).await.expect("a list").data, std::slice::from_ref(&endpoint));
    assert_eq!(refused(endpoints.get(generic.id.clone(), endpoint.id.clone()).await), 404, "it is another's");
    let changed = IngestEndpointUpsertIn {
        uid: Some("hook".to_owned()),
        ..IngestEndpointUpsertIn::new(world.receiver.url("/new"))
    };
    let changed = endpoints.upsert(in_gh(), "hook".to_owned(), changed).await.expect("changed");
    assert_eq!((&changed.id, changed.url.as_str()), (&endpoint.id, world.receiver.url("/new").as_str()));
    let headers = IngestEndpointHeadersIn::new([("x-other".to_owned(), "2".to_owned())].into());
    endpoints.set_headers(in_gh(), "hook".to_owned(), headers).await.expect("set");
    let headers = endpoints.get_headers(in_gh(), "hook".to_owned()).await.expect("headers").headers;
    assert_eq!(headers, [("x-other".to_owned(), "2".to_owned())].into());
    let secret = endpoints.get_secret(in_gh(), "hook".to_owned()).await.expect("a secret").key;
    endpoints.rotate_secret(in_gh(), "hook".to_owned(), IngestEndpointSecretIn::new(), None).await.expect("rotated");
    assert_ne!(endpoints.get_secret(in_gh(), "hook".to_owned()).await.expect("a secret").key, secret);
    assert_eq!(refused(endpoints.transformation().get(in_gh(), "hook".to_owned()).await), 501);

    let portal = ingest.authentication();
    let access = portal.consumer_portal_access(in_gh(), IngestSourceConsumerPortalAccessIn::new(), None);
    let access = access.await.expect("a link");
    let theirs = SvixOptions { server_url: Some(world.server.url()), ..Default::default() };
    let theirs = Svix::new(access.token, Some(theirs));
    assert_eq!(refused(theirs.ingest().source().list(None).await), 403, "it opens one application");
    endpoints.delete(in_gh(), endpoint.id).await.expect("deleted");
    assert_eq!(endpoints.list(in_gh(), None).await.expect("a list").data, []);
}

async fn what_comes_to_a_source_is_delivered_as_it_came(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let wanted = json!({"name": "Any", "type": "generic-webhook", "passHeaders": ["X-Mine"],
        "idFrom": "header:x-id", "typeFrom": "body:/kind"});
    let (source, url) = make(&mut world, wanted).await;
    add_endpoint(&mut world, &source, "/in").await;
    let odd = br#"{"kind": "order.paid", "n": 1e2, "a":1,"a":2 }"#;
    let headers = [("x-mine", "yes"), ("x-other", "no"), ("authorization", "Bearer canary"), ("x-id", "1")];
    let reply = post(&url, &headers, odd).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    let arrived = &world.receiver.wait_for("/in", 1).await[0];
    assert_eq!((&arrived.body[..], arrived.header("content-type")), (&odd[..], "application/json"));
    assert_eq!((arrived.header("x-mine"), arrived.header("webhook-attempt")), ("yes", "1"));
    assert!(!arrived.headers.contains_key("x-other") && !arrived.headers.contains_key("authorization"));

    let kept = messages(&mut world, &source).await;
    assert_eq!((&kept[0]["eventType"], &kept[0]["eventId"]), (&json!("order.paid"), &json!("1")));
    let shown = &kept[0]["receivedHeaders"];
    assert_eq!(
        (&shown["x-other"], &shown["x-mine"], &shown["authorization"]),
        (&json!("no"), &json!("yes"), &json!(null))
    );

    // Whatever the bytes are.
    let bytes = [0, 255, 254, b'x', b'\n'];
    assert_eq!(post(&url, &[("content-type", "text/plain; charset=latin1")], &bytes).await.status, 200);
    let form = b"a=1&b=%C3%A9";
    assert_eq!(post(&url, &[("content-type", "application/x-www-form-urlencoded")], form).await.status, 200);
    let arrived = world.receiver.wait_for("/in", 3).await;
    let found = |body: &[u8]| {
        arrived.iter().find(|arrival| arrival.body == body).expect("it came").header("content-type").to_owned()
    };
    assert_eq!(found(&bytes), "text/plain; charset=latin1");
    assert_eq!(found(form), "application/x-www-form-urlencoded");

    let metrics = world.client.metrics().await;
    assert!(metrics.contains("postrider_source_requests_total{outcome=\"accepted\"} 3"), "{metrics}");
}

/// How a request is signed.
type Signed = Vec<(&'static str, String)>;

async fn each_service_is_verified_as_it_signs(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let time = now();
    let body = br#"{"id":"evt_1","type":"invoice.paid","event_id":"Ev1","event":{"type":"app_mention"}}"#;
    let seconds = time.to_string();
    let millis = format!("{time}123");
    let whsec = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let svix_key = SigningKey::new(&Secret::parse(whsec).expect("a secret"));
    let own = |name, value: String| vec![(name, value)];
    let secret = json!({"secret": "s"});
    let cases: Vec<(&str, Value, Signed, &str)> = vec![
        (
            "svix",
            json!({"secret": whsec}),
            vec![
                (SVIX_HEADERS.id, "msg_1".to_owned()),
                (SVIX_HEADERS.timestamp, seconds.clone()),
                (SVIX_HEADERS.signature, sign(&[svix_key], "msg_1", time, body)),
            ],
            "invoice.paid",
        ),
        (
            "github",
            secret.clone(),
            vec![
                ("x-hub-signature-256", format!("sha256={}", hex(&hmac256("s", &[body])))),
                ("x-github-event", "push".to_owned()),
                ("x-github-delivery", "d-1".to_owned()),
            ],
            "push",
        ),
        (
            "stripe",
            secret.clone(),
            own(
                "stripe-signature",
                format!("t={seconds},v1={}", hex(&hmac256("s", &[seconds.as_bytes(), b".", body]))),
            ),
            "invoice.paid",
        ),
        (
            "shopify",
            secret.clone(),
            vec![
                ("x-shopify-hmac-sha256", BASE64_STANDARD.encode(hmac256("s", &[body]))),
                ("x-shopify-topic", "orders/create".to_owned()),
                ("x-shopify-webhook-id", "w-1".to_owned()),
            ],
            "orders.create",
        ),
        (
            "slack",
            secret.clone(),
            vec![
                ("x-slack-signature", format!("v0={}", hex(&hmac256("s", &[b"v0:", seconds.as_bytes(), b":", body])))),
                ("x-slack-request-timestamp", seconds.clone()),
            ],
            "app_mention",
        ),
        (
            "zoom",
            secret.clone(),
            vec![
                ("x-zm-signature", format!("v0={}", hex(&hmac256("s", &[b"v0:", seconds.as_bytes(), b":", body])))),
                ("x-zm-request-timestamp", seconds.clone()),
            ],
            "ingest.zoom",
        ),
        (
            "airwallex",
            secret.clone(),
            vec![("x-signature", hex(&hmac256("s", &[millis.as_bytes(), body]))), ("x-timestamp", millis.clone())],
            "ingest.airwallex",
        ),
        (
            "docusign",
            secret.clone(),
            own("x-docusign-signature-1", BASE64_STANDARD.encode(hmac256("s", &[body]))),
            "ingest.docusign",
        ),
        (
            "easypost",
            secret.clone(),
            own("x-hmac-signature", format!("hmac-sha256-hex={}", hex(&hmac256("s", &[body])))),
            "ingest.easypost",
        ),
        ("veriff", secret.clone(), own("x-hmac-signature", hex(&hmac256("s", &[body]))), "ingest.veriff"),
        (
            "port-io",
            secret.clone(),
            vec![
                (
                    "x-port-signature",
                    format!("v1,{}", BASE64_STANDARD.encode(hmac256("s", &[seconds.as_bytes(), b".", body]))),
                ),
                ("x-port-timestamp", seconds.clone()),
            ],
            "ingest.port-io",
        ),
        (
            "tailscale",
            secret.clone(),
            own(
                "tailscale-webhook-signature",
                format!("t={seconds},v1={}", hex(&hmac256("s", &[seconds.as_bytes(), b".", body]))),
            ),
            "ingest.tailscale",
        ),
        (
            "meta",
            json!({"secret": "s", "verifyToken": "v"}),
            own("x-hub-signature-256", format!("sha256={}", hex(&hmac256("s", &[body])))),
            "ingest.meta",
        ),
        (
            "token",
            json!({"header": "X-Gitlab-Token", "token": "s"}),
            own("x-gitlab-token", "s".to_owned()),
            "ingest.token",
        ),
        (
            "hmac",
            json!({"secret": "s", "header": "x-sig", "prefix": "v1=", "signed": "{timestamp}|{body}", "timestampHeader": "x-at"}),
            vec![
                ("x-sig", format!("v1={}", hex(&hmac256("s", &[seconds.as_bytes(), b"|", body])))),
                ("x-at", seconds.clone()),
            ],
            "ingest.hmac",
        ),
    ];
    for (kind, config, headers, event_type) in cases {
        let (source, url) = make(&mut world, json!({"name": kind, "type": kind, "config": config})).await;
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let reply = post(&url, &headers, body).await;
        let why = if reply.status == 200 { Vec::new() } else { log(&mut world, &source, 1).await };
        assert_eq!(reply.status, 200, "{kind}: {why:?}");
        assert_eq!(messages(&mut world, &source).await[0]["eventType"], event_type, "{kind}");
        // A token proves nothing about the body.
        if kind != "token" {
            let tampered = post(&url, &headers, b"{\"id\":\"evt_2\"}").await;
            assert_eq!(tampered.status, 401, "{kind}");
            assert!(tampered.body.contains("verification_failed"), "{}", tampered.body);
        }
        assert_eq!(post(&url, &[], body).await.status, 401, "{kind} without a signature");
        assert_eq!(messages(&mut world, &source).await.len(), 1, "{kind}");
        let shown = world.client.get::<Value>(&at(&source)).await.expect("it is there");
        assert!(!shown["config"].to_string().contains("\"s\""), "{shown}");
    }
}

async fn who_signs_where_it_sends_to_is_verified_too(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let sha1 = |parts: &[&[u8]]| {
        let mut mac = Hmac::<sha1::Sha1>::new_from_slice(b"s").expect("any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    };
    let config = json!({"authToken": "s"});
    let (source, url) = make(&mut world, json!({"name": "Twilio", "type": "twilio", "config": config})).await;
    let form = ("content-type", "application/x-www-form-urlencoded");
    let signature = BASE64_STANDARD.encode(sha1(&[url.as_bytes(), b"Body", "h\u{e9}".as_bytes(), b"From", b"+1"]));
    let headers = [form, ("x-twilio-signature", signature.as_str()), ("i-twilio-idempotency-token", "t-1")];
    let body = b"From=%2B1&Body=h%C3%A9";
    assert_eq!(post(&url, &headers, body).await.status, 200);
    assert_eq!(post(&format!("{url}?a=1"), &headers, body).await.status, 401, "it was sent elsewhere");
    assert_eq!(post(&url, &headers, b"From=%2B2&Body=h%C3%A9").await.status, 401);
    let kept = messages(&mut world, &source).await;
    assert_eq!((kept.len(), &kept[0]["eventId"], &kept[0]["eventType"]), (1, &json!("t-1"), &json!("ingest.twilio")));

    let secret = json!({"secret": "s"});
    let wanted = |kind: &str| json!({"name": kind, "type": kind, "config": secret});
    let (_, url) = make(&mut world, wanted("hubspot")).await;
    let (millis, body) = (format!("{}000", now()), br#"[{"subscriptionType":"contact.creation"}]"#);
    let signature = BASE64_STANDARD.encode(hmac256("s", &[b"POST", url.as_bytes(), body, millis.as_bytes()]));
    let headers = [("x-hubspot-signature-v3", signature.as_str()), ("x-hubspot-request-timestamp", &millis)];
    assert_eq!(post(&url, &headers, body).await.status, 200);
    assert_eq!(post(&url, &headers, b"[]").await.status, 401);

    let (_, url) = make(&mut world, wanted("segment")).await;
    let signature = hex(&sha1(&[b"{}"]));
    assert_eq!(post(&url, &[("x-signature", signature.as_str())], b"{}").await.status, 200);
    assert_eq!(post(&url, &[("x-signature", signature.as_str())], b"[]").await.status, 401);
}

/// The id that is signed is the one that counts, whatever is added beside it.
async fn a_captured_request_makes_no_second_message_under_another_id(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (source, url) = make(&mut world, json!({"name": "Svix", "type": "svix", "config": {"secret": secret}})).await;
    let keys = [SigningKey::new(&Secret::parse(secret).expect("a secret"))];
    let (body, at) = (br#"{"type":"a.b"}"#, now());
    let (signature, at) = (sign(&keys, "evt_1", at, body), at.to_string());
    let signed = [("svix-id", "evt_1"), ("svix-timestamp", &*at), ("svix-signature", &*signature)];
    assert_eq!(post(&url, &signed, body).await.status, 200);
    for other in ["evt_2", "evt_3"] {
        let more = [&signed[..], &[("webhook-id", other)]].concat();
        assert_eq!(post(&url, &more, body).await.status, 200, "it is one that came before");
    }
    let kept = messages(&mut world, &source).await;
    assert_eq!((kept.len(), &kept[0]["eventId"]), (1, &json!("evt_1")), "{kept:?}");
}

async fn a_source_goes_on_verifying_when_what_was_shown_is_put_back(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let wanted = json!({"name": "GitHub", "uid": "gh", "type": "github", "config": {"secret": "s"}});
    let (source, url) = make(&mut world, wanted).await;
    assert_eq!(source["verified"], true, "{source}");
    for (put, verified) in [
        (json!({"name": "New name", "type": "github", "config": source["config"]}), true),
        (json!({"name": "New name", "type": "github"}), true),
        (json!({"name": "New name", "type": "github", "config": {"secret": null}}), false),
        (json!({"name": "New name", "type": "github", "config": {"secret": "s"}}), true),
    ] {
        let path = "/ingest/api/v1/source/gh";
        let (status, answer) = world.client.send(Method::PUT, path, &[], &put.to_string()).await.expect("an answer");
        assert_eq!(status, 200, "{answer:?}");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer["verified"], verified, "{put}");
        let expected = if verified { 401 } else { 200 };
        assert_eq!(post(&url, &[("x-github-delivery", "1")], b"{}").await.status, expected, "{put}");
    }
    let odd = json!({"name": "Odd", "type": "generic-webhook"}).to_string();
    let made = world.client.send(Method::PUT, "/ingest/api/v1/source/my.app", &[], &odd).await.expect("an answer");
    assert_eq!(made.0, 422, "a uid that the contract does not have");
}

/// Whoever may hand in messages must not pass for the service, nor take the id of what is still to come.
async fn a_source_s_messages_come_by_its_url_alone(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, _) = make(&mut world, json!({"name": "Any", "type": "generic-webhook"})).await;
    let app = source["appId"].as_str().expect("an id");
    let body = json!({"eventType": "a.b", "eventId": "evt_9", "payload": {}}).to_string();
    let path = format!("/api/v1/app/{app}/msg");
    let refused = world.client.send(Method::POST, &path, &[], &body).await.expect("an answer");
    assert_eq!(refused.0, 409, "{:?}", refused.1);
    assert_eq!(messages(&mut world, &source).await.len(), 0);
}

async fn a_flood_at_one_source_leaves_room_in_the_log_of_another(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let wanted = |name: &str| json!({"name": name, "type": "github", "config": {"secret": "s"}});
    let (_, flooded) = make(&mut world, wanted("Flooded")).await;
    let (other, url) = make(&mut world, wanted("Other")).await;
    let long = "x".repeat(20_000);
    let headers = [("x-long", &*long)];
    let flood = (0..100).map(|_| post(&flooded, &headers, b"{}"));
    let all = futures_util::future::join_all(flood).await;
    assert!(all.iter().all(|reply| reply.status == 401));
    let long_too = [("x-hub-signature-256", "sha256=00"), ("x-long", &*long), ("x-short", "here")];
    assert_eq!(post(&url, &long_too, b"{}").await.status, 401);
    let kept = log(&mut world, &other, 1).await;
    assert_eq!((&kept[0]["headers"]["x-long"], &kept[0]["headers"]["x-short"]), (&json!(null), &json!("here")));
}

async fn one_event_sent_many_times_at_once_makes_one_message(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, url) = make(&mut world, json!({"name": "GitHub", "type": "github"})).await;
    add_endpoint(&mut world, &source, "/in").await;
    let deliver = async |id: &str| post(&url, &[("x-github-event", "push"), ("x-github-delivery", id)], b"{}").await;
    let all = futures_util::future::join_all((0..20).map(|_| deliver("same"))).await;
    assert!(all.iter().all(|reply| (reply.status, reply.body.as_str()) == (200, "")), "every one hears the same");
    assert_eq!(deliver("same").await.status, 200);
    assert_eq!(deliver("other").await.status, 200);
    let kept = messages(&mut world, &source).await;
    let ids: Vec<_> = kept.iter().map(|message| message["eventId"].as_str().expect("an id")).collect();
    assert_eq!(ids, ["other", "same"]);
    let arrived = world.receiver.wait_for("/in", 2).await;
    assert_eq!(arrived.len(), 2);
    assert_eq!(arrived[0].header("x-github-event"), "push");
    let metrics = world.client.metrics().await;
    assert!(metrics.contains("postrider_source_requests_total{outcome=\"repeated\"} 20"), "{metrics}");
}

async fn what_is_refused_is_in_the_log_with_its_reason(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let secret = json!({"secret": "canary"});
    let (source, url) = make(&mut world, json!({"name": "GitHub", "type": "github", "config": secret})).await;
    let large = vec![b'x'; 1024 * 1024 + 1];
    let signed = hex(&hmac256("canary", &[b"{}"]));
    for (headers, body, status, reason) in [
        (vec![], &b"{}"[..], 401, "x-hub-signature-256 is missing"),
        (vec![("x-hub-signature-256", format!("sha256={}", hex(&[0; 32])))], b"{}", 401, "no signature matches"),
        (vec![("x-hub-signature-256", format!("sha1={signed}"))], b"{}", 401, "does not hold `sha256=`"),
        (
            vec![("x-hub-signature-256", format!("sha256={signed}"))],
            b"{}\n",
            401,
            "spaces or line breaks were added at the end of the body",
        ),
        (vec![("content-type", "image/png".to_owned())], b"{}", 415, "must be JSON, a form, text or XML"),
        (vec![("content-encoding", "gzip".to_owned())], b"{}", 415, "Compressed"),
        (vec![], &large[..], 413, "larger than 1048576 bytes"),
    ] {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let headers: Vec<_> =
            headers.into_iter().chain([("authorization", "Bearer canary"), ("x-seen", "yes")]).collect();
        let before = world.client.list::<Value>(&format!("{}/log", at(&source))).await.expect("a list").len();
        let reply = post(&url, &headers, body).await;
        assert_eq!(reply.status, status, "{reason}: {}", reply.body);
        let log = log(&mut world, &source, before + 1).await;
        assert_eq!(log[0]["status_code"], status);
        assert!(log[0]["error_text"].as_str().expect("text").contains(reason), "{}", log[0]);
        assert_eq!((&log[0]["source_id"], &log[0]["headers"]["x-seen"]), (&source["id"], &json!("yes")));
        assert_eq!(log[0]["payload"], if status == 401 { str::from_utf8(body).expect("text") } else { "" });
        assert!(!log[0].to_string().contains("canary"), "{}", log[0]);
    }
    assert_eq!(messages(&mut world, &source).await.len(), 0);

    // Nobody learns whether there is one.
    let unknown = post(&format!("{}x", &url[..url.len() - 1]), &[], b"{}").await;
    let made_up = post(&format!("{}/ingest/in/{}", world.server.url(), "x".repeat(54)), &[], b"{}").await;
    let short = post(&format!("{}/ingest/in/x", world.server.url()), &[], b"{}").await;
    for reply in [&unknown, &made_up, &short] {
        assert_eq!((reply.status, reply.body.as_str()), (404, r#"{"code":"not_found","detail":"Entity not found"}"#));
        assert_eq!(reply.headers.len(), unknown.headers.len());
    }
    world.client.send(Method::DELETE, &at(&source), &[], "").await.expect("deleted");
    assert_eq!(post(&url, &[], b"{}").await.status, 404);
}

async fn a_service_that_asks_first_is_answered(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let secret = json!({"secret": "s"});
    let (source, url) = make(&mut world, json!({"name": "Slack", "type": "slack", "config": secret})).await;
    let (time, body) = (now().to_string(), br#"{"type":"url_verification","challenge":"3eZbrw1"}"#);
    let signature = format!("v0={}", hex(&hmac256("s", &[b"v0:", time.as_bytes(), b":", body])));
    let headers = [("x-slack-signature", signature.as_str()), ("x-slack-request-timestamp", time.as_str())];
    let reply = post(&url, &headers, body).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "3eZbrw1"));
    assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(post(&url, &[], body).await.status, 401, "not to anybody");
    assert_eq!(messages(&mut world, &source).await.len(), 0, "a question is no event");

    let (source, url) = make(&mut world, json!({"name": "Zoom", "type": "zoom", "config": secret})).await;
    let body = br#"{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event_ts":1654503849680}"#;
    let signature = format!("v0={}", hex(&hmac256("s", &[b"v0:", time.as_bytes(), b":", body])));
    let headers = [("x-zm-signature", signature.as_str()), ("x-zm-request-timestamp", time.as_str())];
    let reply = post(&url, &headers, body).await;
    assert_eq!((reply.status, &reply.headers["content-type"]), (200, &"application/json".parse().expect("a value")));
    let signed = hex(&hmac256("s", &[b"qgg8vlvZRS6UYooatFL8Aw"]));
    let expected = json!({"plainToken": "qgg8vlvZRS6UYooatFL8Aw", "encryptedToken": signed});
    assert_eq!(serde_json::from_str::<Value>(&reply.body).expect("JSON"), expected);
    assert_eq!(post(&url, &[], body).await.status, 401, "not to anybody");
    let stale = (now() - 600).to_string();
    let signature = format!("v0={}", hex(&hmac256("s", &[b"v0:", stale.as_bytes(), b":", body])));
    let headers = [("x-zm-signature", signature.as_str()), ("x-zm-request-timestamp", stale.as_str())];
    assert_eq!(post(&url, &headers, body).await.status, 401, "nor to whom has kept an old one");
    assert_eq!(messages(&mut world, &source).await.len(), 0, "a question is no event");

    let meta = json!({"secret": "s", "verifyToken": "agreed"});
    let (_, url) = make(&mut world, json!({"name": "Meta", "type": "meta", "config": meta})).await;
    let ask = async |token: &str| {
        let query = format!("hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token={token}");
        send(Method::GET, &format!("{url}?{query}"), &[], b"").await
    };
    let reply = ask("agreed").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "1158201444"));
    assert_eq!(ask("guessed").await.status, 404);

    let adobe = json!({"clientId": "ours"});
    let (_, url) = make(&mut world, json!({"name": "Adobe", "type": "adobe-sign", "config": adobe})).await;
    let client_id = [("x-adobesign-clientid", "ours")];
    assert_eq!(send(Method::GET, &url, &client_id, b"").await.headers["x-adobesign-clientid"], "ours");
    assert_eq!(post(&url, &client_id, b"{}").await.headers["x-adobesign-clientid"], "ours");
    assert_eq!(post(&url, &[("x-adobesign-clientid", "theirs")], b"{}").await.status, 401);
}

async fn the_old_url_holds_on_after_a_rotation(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, first) = make(&mut world, json!({"name": "Any", "type": "generic-webhook"})).await;
    let mut urls = vec![first];
    for _ in 0..2 {
        let rotated = world.client.create(&format!("{}/token/rotate", at(&source)), &json!({})).await;
        urls.push(rotated["ingestUrl"].as_str().expect("a URL").to_owned());
    }
    let mut answers = Vec::new();
    for url in &urls {
        answers.push(post(url, &[], b"{}").await.status);
    }
    assert_eq!(answers, [404, 200, 200], "the current one, and the one before");
    // The repetition of a request rotates nothing.
    let path = format!("{}/token/rotate", at(&source));
    let mut again = Vec::new();
    for _ in 0..2 {
        let (status, body) =
            world.client.send(Method::POST, &path, &[("idempotency-key", "k")], "").await.expect("an answer");
        assert_eq!(status, StatusCode::OK);
        again.push(serde_json::from_slice::<Value>(&body).expect("JSON"));
    }
    assert_eq!(again[0], again[1]);
    let made = json!({"name": "Once", "type": "generic-webhook"}).to_string();
    let mut made_twice = Vec::new();
    for _ in 0..2 {
        let key = [("idempotency-key", "k2")];
        let (status, body) =
            world.client.send(Method::POST, "/ingest/api/v1/source", &key, &made).await.expect("an answer");
        assert_eq!(status, StatusCode::CREATED);
        made_twice.push(serde_json::from_slice::<Value>(&body).expect("JSON"));
    }
    assert_eq!(made_twice[0], made_twice[1]);
}

async fn a_source_is_not_among_the_applications(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, _) = make(&mut world, json!({"name": "Any", "type": "generic-webhook", "uid": "acme"})).await;
    let app = source["appId"].as_str().expect("an id").to_owned();
    let all = world.client.list::<Value>("/api/v1/app").await.expect("a list");
    assert_eq!(
        all.iter().map(|app| app["uid"].as_str()).collect::<Vec<_>>(),
        [Some("acme")],
        "the application of that name"
    );
    assert_ne!(all[0]["id"], json!(app));
    let own = world.client.get::<Value>(&format!("/api/v1/app/{app}")).await.expect("it is there by its id");
    assert_eq!((&own["name"], &own["uid"]), (&json!("Any"), &json!(null)));
    for (method, path, body) in [
        (Method::DELETE, format!("/api/v1/app/{app}"), ""),
        (Method::PATCH, format!("/api/v1/app/{app}"), r#"{"name":"Other"}"#),
        (Method::PUT, format!("/api/v1/app/{app}"), r#"{"name":"Other"}"#),
    ] {
        let (status, _) = world.client.send(method.clone(), &path, &[], body).await.expect("an answer");
        assert_eq!(status, StatusCode::CONFLICT, "{method}");
    }
    // And an application is no source.
    let plain = all[0]["id"].as_str().expect("an id").replace("app_", "src_");
    for path in [plain.as_str(), "src_0000000000000000000000", "nowhere", "src:acme"] {
        let (status, _) =
            world.client.send(Method::GET, &format!("/ingest/api/v1/source/{path}"), &[], "").await.expect("an answer");
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    for (body, field) in [
        (json!({"name": "x", "type": "generic-webhook"}), "name"),
        (json!({"name": "xy", "type": "fax"}), "type"),
        (json!({"name": "xy", "type": "github", "config": {"secret": 1}}), "config"),
        (json!({"name": "xy", "type": "generic-webhook", "uid": "src_x"}), "uid"),
        (json!({"name": "xy", "type": "generic-webhook", "passHeaders": ["cookie"]}), "passHeaders"),
        (json!({"name": "xy", "type": "generic-webhook", "idFrom": "anywhere"}), "idFrom"),
        (json!({"name": "xy", "type": "generic-webhook", "colour": 1}), "colour"),
    ] {
        let (status, answer) =
            world.client.send(Method::POST, "/ingest/api/v1/source", &[], &body.to_string()).await.expect("an answer");
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        assert!(String::from_utf8_lossy(&answer).contains(field), "{body}");
    }
}

async fn a_source_outlives_a_kill_and_what_it_took_can_be_replayed(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, url) = make(&mut world, json!({"name": "GitHub", "type": "github"})).await;
    add_endpoint(&mut world, &source, "/in").await;
    let app = source["appId"].as_str().expect("an id").to_owned();
    let (status, _) = world
        .client
        .send(
            Method::PATCH,
            &format!("/api/v1/app/{app}/endpoint/in"),
            &[],
            &json!({"retryPolicy": hasty(1)}).to_string(),
        )
        .await
        .expect("an answer");
    assert_eq!(status, StatusCode::OK, "its endpoints are treated as any");
    world.receiver.script("/in", [Answer::Status(400)], Answer::Status(204));
    let headers = [("x-github-event", "push"), ("x-github-delivery", "d-1")];
    assert_eq!(post(&url, &headers, b"{\"n\": 1 }").await.status, 200);
    let letter = eventually("a dead letter", async || {
        world.client.list::<Value>(&format!("/api/v1/app/{app}/dead-letter")).await.expect("a list").pop()
    })
    .await;
    world.kill_and_start_again();
    assert_eq!(
        post(&url.replace(&old_address(&url), &world.server.address().to_string()), &headers, b"{}").await.status,
        200,
        "it is known again"
    );
    let path = format!("/api/v1/app/{app}/dead-letter/{}/endpoint/in/replay", letter["msgId"].as_str().expect("an id"));
    let (status, _) = world.client.send(Method::POST, &path, &[], "").await.expect("an answer");
    assert!(status.is_success(), "{status}");
    let arrived = world.receiver.wait_for("/in", 2).await;
    assert_eq!(arrived.len(), 2, "the same event made no second message");
    assert_eq!((&arrived[1].body[..], arrived[1].header("x-github-event")), (&b"{\"n\": 1 }"[..], "push"));
    assert_eq!(arrived[1].header("webhook-id"), arrived[0].header("webhook-id"));
}

fn old_address(url: &str) -> String {
    url.split('/').nth(2).expect("an address").to_owned()
}

/// Its type is not known, without which the contract has no source. So it is in no list that a client of the contract reads.
async fn a_source_that_cannot_be_read_is_listed_apart(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (good, good_url) = make(&mut world, json!({"name": "Good", "type": "generic-webhook"})).await;
    let wanted = json!({"name": "Spoiled", "uid": "bad", "type": "generic-webhook", "metadata": {"team": "a"}});
    let (spoiled, url) = make(&mut world, wanted.clone()).await;
    let list: Value = world.client.get("/ingest/api/v1/source").await.expect("a list");
    assert_eq!(list.get("unreadable"), None, "{list}");
    world.server.stop();
    spoil_source(&world.server, "Spoiled").await;
    world.start_again();

    let list: Value = world.client.get("/ingest/api/v1/source").await.expect("a list");
    let ids: Vec<&Value> = list["data"].as_array().expect("a list").iter().map(|source| &source["id"]).collect();
    assert_eq!((ids, &list["done"]), (vec![&good["id"]], &json!(true)), "{list}");
    let told = &list["unreadable"][0];
    for field in ["id", "uid", "name", "metadata", "appId", "createdAt"] {
        assert_eq!(told[field], spoiled[field], "{field}: {list}");
    }
    assert_eq!((list["unreadable"].as_array().map(Vec::len), told.get("ingestUrl")), (Some(1), None), "{list}");
    let official = client(&world).ingest().source().list(None).await.expect("the official client reads it");
    assert_eq!(official.data.len(), 1);
    // One at a time.
    let first: Value = world.client.get("/ingest/api/v1/source?limit=1").await.expect("a list");
    let next = first["iterator"].as_str().expect("more");
    let second: Value = world.client.get(&format!("/ingest/api/v1/source?limit=1&iterator={next}")).await.expect("it");
    assert_eq!((&second["data"], &second["unreadable"][0]["id"]), (&json!([]), &spoiled["id"]), "{second}");

    let there = |url: &str| url.replace(&old_address(url), &world.server.address().to_string());
    assert_eq!(post(&there(&url), &[], b"{}").await.status, 503);
    assert_eq!(post(&there(&good_url), &[], b"{}").await.status, 200, "the others go on");
    // Put back, it is one again, with another URL.
    let put = world.client.send(Method::PUT, "/ingest/api/v1/source/bad", &[], &wanted.to_string()).await;
    let (status, answer) = put.expect("an answer");
    assert_eq!(status, 200, "{answer:?}");
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(answer["id"], spoiled["id"]);
    assert_eq!(post(answer["ingestUrl"].as_str().expect("a URL"), &[], b"{}").await.status, 200);
    let list: Value = world.client.get("/ingest/api/v1/source").await.expect("a list");
    assert_eq!(list.get("unreadable"), None, "{list}");
}

/// Where the address says what `Host` does otherwise, which some services sign.
async fn a_source_takes_http2(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, url) =
        make(&mut world, json!({"name": "HubSpot", "type": "hubspot", "config": {"secret": "s"}})).await;
    add_endpoint(&mut world, &source, "/in").await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let send = async |url: &str, signature: &str, at: &str, body: &'static [u8]| {
        let request = Request::post(url)
            .header("content-type", "application/json")
            .header("x-hubspot-signature-v3", signature)
            .header("x-hubspot-request-timestamp", at)
            .body(Full::from(body))
            .expect("a request");
        let answer = client.request(request).await.expect("an answer");
        assert_eq!(answer.version(), http::Version::HTTP_2);
        answer.status().as_u16()
    };
    let (at, body) = (format!("{}000", now()), br#"[{"subscriptionType":"contact.creation"}]"#);
    let signature = BASE64_STANDARD.encode(hmac256("s", &[b"POST", url.as_bytes(), body, at.as_bytes()]));
    assert_eq!(send(&url, &signature, &at, body).await, 200, "{:?}", log(&mut world, &source, 0).await);
    assert_eq!(send(&url, &signature, &at, b"[]").await, 401);
    assert_eq!(send(&format!("{}x", &url[..url.len() - 1]), &signature, &at, body).await, 404);
    let arrived = world.receiver.wait_for("/in", 1).await;
    assert_eq!(arrived[0].body, body[..]);
    let kept = messages(&mut world, &source).await;
    assert_eq!((kept.len(), &kept[0]["eventType"]), (1, &json!("contact.creation")));
}

async fn bodies_that_come_in_pieces_are_taken_and_slow_ones_are_not(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (source, url) = make(&mut world, json!({"name": "Any", "type": "generic-webhook"})).await;
    let path = url.strip_prefix(&world.server.url()).expect("ours");
    let address = world.server.address();
    let head =
        |more: &str| format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}\r\n\r\n");
    let chunked = head("transfer-encoding: chunked\r\nconnection: close");
    let whole = format!("{chunked}2\r\n{{\"\r\n5;ext=1\r\na\":1}}\r\n0\r\n\r\n");
    assert!(say(address, &whole).await.starts_with("HTTP/1.1 200"));
    assert_eq!(messages(&mut world, &source).await[0]["payload"], json!({"a": 1}), "as one piece");
    let too_large = format!("{chunked}{:x}\r\n{}\r\n0\r\n\r\n", 1024 * 1024 + 1, "x".repeat(1024 * 1024 + 1));
    assert!(say(address, &too_large).await.starts_with("HTTP/1.1 413"));
    let broken = say(address, &format!("{chunked}2\r\n{{}}\r\nnonsense\r\n")).await;
    assert!(broken.starts_with("HTTP/1.1 400"), "{broken}");

    let (told, begun) = (head("content-length: 100000"), format!("{}fffff\r\n", head("transfer-encoding: chunked")));
    let slow = futures_util::future::join(drip(address, &told), drip(address, &begun)).await;
    for (heard, took) in [slow.0, slow.1] {
        assert!(heard.starts_with("HTTP/1.1 408") && heard.contains("request_timeout"), "{heard}");
        assert!(took >= Duration::from_secs(5), "after {took:?}");
    }
    assert_eq!(messages(&mut world, &source).await.len(), 1, "nothing else was stored");
    let kept = log(&mut world, &source, 4).await;
    let statuses: BTreeSet<u64> = kept.iter().map(|refused| refused["status_code"].as_u64().expect("it")).collect();
    assert_eq!(statuses, [400, 408, 413].into());
}

/// All that is said before the other side hangs up.
async fn say(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // It may have hung up before all is said.
    let _ = stream.write_all(text.as_bytes()).await;
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard).await;
    String::from_utf8_lossy(&heard).into_owned()
}

/// Sends a byte now and then until the server hangs up, and tells what it said and how long that took.
async fn drip(address: SocketAddr, begun: &str) -> (String, Duration) {
    let start = Instant::now();
    let (mut reader, mut writer) = TcpStream::connect(address).await.expect("it listens").into_split();
    writer.write_all(begun.as_bytes()).await.expect("it listens");
    let dripping = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(250));
        loop {
            pace.tick().await;
            if writer.write_all(b"x").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    });
    let mut heard = Vec::new();
    let _ = reader.read_to_end(&mut heard).await;
    dripping.abort();
    (String::from_utf8_lossy(&heard).into_owned(), start.elapsed())
}
