//! What an endpoint wants to see of us before it listens: a certificate, a token, a password. And that it is never called
//! without.

mod support;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{RootCertStore, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use support::{
    receiver::Answer,
    stores::{StoreKind, on_both_stores},
    world::World,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

on_both_stores! {
    async
    a_certificate_and_an_authority_are_set_used_shown_and_removed,
    a_token_is_had_once_and_sent_with_each_delivery,
}

async fn a_certificate_and_an_authority_are_set_used_shown_and_removed(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let (authority, strict) = (authority("ours"), Strict::default());
    let port = strict.listen(&authority).await;
    world.endpoint("/strict", json!({"url": format!("https://localhost:{port}/")})).await;
    let place = "endpoint/strict/mtls";
    assert_eq!(world.call(Method::GET, place, Value::Null).await.0, 404);
    assert_eq!(world.call(Method::DELETE, place, Value::Null).await.0, 404);

    // Without either, the owner is told what is missing.
    assert_reason(&mut world, "authority we do not know").await;
    set(&mut world, place, json!({"ca": authority.pem()})).await;
    assert_reason(&mut world, "client certificate").await;
    let (strange, ours) = (identity(&self::authority("strange"), "us"), identity(&authority, "us"));
    set(&mut world, place, json!({"identity": strange, "ca": authority.pem()})).await;
    assert_reason(&mut world, "did not accept our client certificate").await;
    assert_eq!(strict.requests(), 0);

    set(&mut world, place, json!({"identity": ours, "ca": authority.pem()})).await;
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "strict").await;
    assert_eq!((end.as_str(), strict.requests()), ("success", 1), "{attempts:?}");

    let shown = world.get(place).await;
    assert_eq!(shown["identity"]["subject"], "CN=us");
    assert_eq!(shown["identity"]["issuer"], "CN=ours");
    assert_eq!(shown["identity"]["expires"], Value::Null);
    assert_eq!(shown["ca"][0]["subject"], "CN=ours");
    assert!(!shown.to_string().contains("BEGIN"), "{shown}");

    // The URL cannot lead away from it.
    let plain = json!({"url": "http://example.com/hook"});
    for (method, more) in [(Method::PATCH, plain.clone()), (Method::PUT, plain)] {
        let (status, answer) = world.call(method, "endpoint/strict", more).await;
        assert_eq!((status, &answer["detail"][0]["loc"]), (422, &json!(["body", "url"])), "{answer}");
    }
    assert_eq!(world.call(Method::DELETE, place, Value::Null).await.0, 204);
    assert_eq!(world.call(Method::GET, place, Value::Null).await.0, 404);
    assert_reason(&mut world, "authority we do not know").await;
    assert_eq!(strict.requests(), 1);
}

#[tokio::test]
async fn a_certificate_that_ends_soon_is_named_in_time() {
    let mut world = World::start().await;
    let mut ends = params("us");
    let now = std::time::SystemTime::UNIX_EPOCH
        + std::time::Duration::from_millis(postrider::clock::now().as_millis() as u64);
    ends.not_after = (now + std::time::Duration::from_secs(5 * 86_400)).into();
    world.endpoint("/hook", json!({"url": "https://example.com/hook", "channels": ["nobody"]})).await;
    set(&mut world, "endpoint/hook/mtls", json!({"identity": identity_of(&authority("ours"), ends)})).await;
    assert_eq!(world.get("endpoint/hook/mtls").await["identity"]["expires"], "week");
    // It is looked at once a day, and at a start.
    world.kill_and_start_again();
    let id = world.get("endpoint/hook").await["id"].as_str().expect("an id").to_owned();
    support::eventually("a warning", async || {
        let log = world.server.log();
        log.lines().any(|line| line.contains("expires within a week") && line.contains(&id)).then_some(())
    })
    .await;
    let metrics = world.client.metrics().await;
    assert!(metrics.contains("postrider_client_certificates_expiring{within=\"week\"} 1"), "{metrics}");
    let doctor = std::process::Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["doctor", "--data"])
        .arg(world.server.data())
        .args(["--url", &format!("http://{}", world.server.address()), "--token", world.server.token()])
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("1: expires within a week"), "{said}");
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_when_it_is_set() {
    let mut world = World::start().await;
    let authority = authority("ours");
    let (one, two) = (identity(&authority, "one"), identity(&authority, "two"));
    let certificate = |text: &str| text.split("-----BEGIN PRIVATE").next().unwrap().to_owned();
    let key = |text: &str| text[certificate(text).len()..].to_owned();
    let mut old = params("old");
    old.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let expired = identity_of(&authority, old);
    let encrypted = one.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    world.endpoint("/plain", json!({})).await;
    world.endpoint("/tls", json!({"url": "https://example.com/hook"})).await;
    for (endpoint, body, words) in [
        ("tls", json!({"identity": certificate(&one) + &key(&two)}), "does not belong"),
        ("tls", json!({"identity": expired}), "has expired"),
        ("tls", json!({"identity": encrypted}), "encrypted"),
        ("tls", json!({"identity": certificate(&one)}), "no private key"),
        ("tls", json!({"identity": "something"}), "not PEM"),
        (
            "tls",
            json!({"identity": format!("{}{}{}", certificate(&one), certificate(&two), key(&one))}),
            "not issued by",
        ),
        ("tls", json!({"identity": one.repeat(200)}), "longer than"),
        ("tls", json!({"ca": one}), "private key"),
        ("tls", json!({}), "must be given"),
        ("tls", json!({"identity": one, "colour": "red"}), "unknown field"),
        ("plain", json!({"identity": one}), "https"),
    ] {
        let (status, answer) = world.call(Method::PUT, &format!("endpoint/{endpoint}/mtls"), body).await;
        assert_eq!(status, 422, "{words}: {answer}");
        let said = answer["detail"][0]["msg"].as_str().expect("a reason");
        assert!(said.contains(words), "{words}: {said}");
        assert!(!said.contains("BEGIN P"), "{said}");
    }
    let huge = json!({"identity": "x".repeat(10_000_000)}).to_string();
    let refused = world.client.send(Method::PUT, "/api/v1/app/acme/endpoint/tls/mtls", &[], &huge).await;
    // It says so and hangs up in the middle of it, which the client may notice first.
    assert!(refused.is_err() || refused.is_ok_and(|(status, _)| status == 413));
    world.connect_again();
    assert_eq!(world.call(Method::GET, "endpoint/tls/mtls", Value::Null).await.0, 404, "nothing of it was kept");
}

async fn a_token_is_had_once_and_sent_with_each_delivery(store: StoreKind) {
    let mut world = World::start_on(store).await;
    world.receiver.script("/token", [granted("first")], granted("second"));
    world.endpoint("/hook", json!({})).await;
    let place = "endpoint/hook/oauth";
    assert_eq!(world.call(Method::GET, place, Value::Null).await.0, 404);
    let oauth = settings(&world, "/token");
    set(&mut world, place, oauth).await;
    for _ in 0..3 {
        let message = world.send("a.b").await;
        assert_eq!(world.end(&message, "hook").await.0, "success");
    }
    let calls = world.receiver.arrivals_at("/hook");
    assert!(calls.iter().all(|call| call.header("authorization") == "Bearer first"));
    let asked = world.receiver.arrivals_at("/token");
    assert_eq!((calls.len(), asked.len()), (3, 1));
    assert_eq!(asked[0].header("authorization"), "Basic dXM6c2VjcmV0");
    assert_eq!(asked[0].body, "grant_type=client_credentials&scope=read+write");

    // It was revoked: another is had, and the same attempt goes on with it.
    world.receiver.script("/hook", [Answer::Status(401)], Answer::Status(204));
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "hook").await;
    assert_eq!((end.as_str(), attempts.len()), ("success", 1), "{attempts:?}");
    let calls = world.receiver.arrivals_at("/hook");
    let seen: Vec<&str> = calls[3..].iter().map(|call| call.header("authorization")).collect();
    assert_eq!(seen, ["Bearer first", "Bearer second"]);

    // Once, and not for ever.
    world.receiver.always("/hook", Answer::Status(401));
    let message = world.send("a.b").await;
    assert_eq!(world.end(&message, "hook").await.0, "fail");
    assert_eq!(world.receiver.arrivals_at("/hook").len(), 7);

    let shown = world.get(place).await;
    assert_eq!((shown["clientId"].as_str(), shown["authMethod"].as_str()), (Some("us"), Some("clientSecretBasic")));
    assert!(!shown.to_string().contains("secret"), "{shown}");
    // It cannot be had together with another header of that name.
    for (method, path, body) in [
        (Method::PUT, "endpoint/hook/headers", json!({"headers": {"Authorization": "x"}})),
        (Method::PATCH, "endpoint/hook", json!({"url": format!("http://me:x@{}/hook", world.receiver.address())})),
    ] {
        assert_eq!(world.call(method, path, body).await.0, 422, "{path}");
    }
    assert_eq!(world.call(Method::DELETE, place, Value::Null).await.0, 204);
    assert_eq!(world.call(Method::DELETE, place, Value::Null).await.0, 404);
    world.receiver.always("/hook", Answer::Status(204));
    let message = world.send("a.b").await;
    assert_eq!(world.end(&message, "hook").await.0, "success");
    assert!(!world.receiver.arrivals_at("/hook")[7].headers.contains_key("authorization"));
}

#[tokio::test]
async fn without_a_token_an_endpoint_is_not_called_and_its_owner_hears_why() {
    let mut world = World::start().await;
    let elsewhere = world.receiver.url("/elsewhere");
    let full = |status, headers, body: &'static str| Answer::Full {
        status,
        headers,
        body: Bytes::from_static(body.as_bytes()),
    };
    for (number, (answer, words)) in [
        (full(401, Vec::new(), r#"{"error":"invalid_client"}"#), "its issuer answered 401 (invalid_client)"),
        (full(500, Vec::new(), "no"), "its issuer answered 500"),
        (full(307, vec![("location", elsewhere)], ""), "its issuer answered 307"),
        (full(200, Vec::new(), "{}"), "none that can be read"),
        (Answer::Reset, "closed before"),
        (Answer::Hang, "timeout"),
    ]
    .into_iter()
    .enumerate()
    {
        let (token, hook) = (format!("/token-{number}"), format!("/hook-{number}"));
        world.receiver.always(&token, answer);
        let policy = json!({"schedule": {"type": "fixed", "interval": "1ms"}, "jitter": "none", "maxAttempts": 2});
        let timeouts = json!({"connect": "1s", "firstByte": "1s", "total": "1s"});
        let body = json!({"channels": [&hook[1..]], "retryPolicy": policy, "timeouts": timeouts});
        world.endpoint(&hook, body).await;
        let oauth = settings(&world, &token);
        set(&mut world, &format!("endpoint/{}/oauth", &hook[1..]), oauth).await;
        let message = world.send_with("a.b", json!({"channels": [&hook[1..]]})).await;
        let (end, attempts) = world.end(&message, &hook[1..]).await;
        assert_eq!((end.as_str(), attempts.len()), ("fail", 2), "{words}: {attempts:?}");
        for attempt in &attempts {
            let said = attempt["response"].as_str().expect("a reason");
            assert!(said.starts_with("no access token could be had: ") && said.contains(words), "{words}: {said}");
            assert_eq!(attempt["verdict"]["rule"], "no-token", "{attempt}");
            assert_eq!(attempt["verdict"]["class"], "transient", "{attempt}");
        }
        assert_eq!(world.receiver.arrivals_at(&hook).len(), 0, "{words}");
    }
    assert_eq!(world.receiver.arrivals_at("/elsewhere").len(), 0, "a redirect is not followed with our secret");
}

#[tokio::test]
async fn a_password_in_a_url_is_sent_and_shown_nowhere() {
    let mut world = World::start().await;
    let address = world.receiver.address();
    let url = |password: &str| format!("http://me:{password}@{address}/hook");
    let body = json!({"url": url("p%40ss-of-mine"), "uid": "hook"});
    let made = world.client.create("/api/v1/app/acme/endpoint", &body).await;
    assert_eq!(made["url"], world.receiver.url("/hook"));
    let echo = Answer::Full { status: 200, headers: Vec::new(), body: "bWU6cEBzcy1vZi1taW5l was sent".into() };
    world.receiver.always("/hook", echo);
    let message = world.send("a.b").await;
    let (_, attempts) = world.end(&message, "hook").await;
    let basic = |at: usize| world.receiver.arrivals_at("/hook")[at].header("authorization").to_owned();
    assert_eq!(basic(0), "Basic bWU6cEBzcy1vZi1taW5l");
    assert_eq!(attempts[0]["response"], "*** was sent");
    assert_eq!(world.get("endpoint/hook/headers").await, json!({"headers": {}, "sensitive": ["authorization"]}));

    // Another URL leaves it; another password takes its place.
    for (at, (method, body, expected)) in [
        (Method::PATCH, json!({"description": "x", "url": world.receiver.url("/hook")}), "Basic bWU6cEBzcy1vZi1taW5l"),
        (Method::PATCH, json!({"url": url("other")}), "Basic bWU6b3RoZXI="),
        (Method::PUT, json!({"url": url("third")}), "Basic bWU6dGhpcmQ="),
        (Method::PUT, json!({"url": url("third")}), "Basic bWU6dGhpcmQ="),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, answer) = world.call(method, "endpoint/hook", body).await;
        assert_eq!((status, &answer["url"]), (200, &json!(world.receiver.url("/hook"))), "{answer}");
        let message = world.send("a.b").await;
        world.end(&message, "hook").await;
        assert_eq!(world.receiver.arrivals_at("/hook")[at + 1].header("authorization"), expected);
    }
    let upserted = world.call(Method::PUT, "endpoint/new", json!({"url": url("fourth"), "disabled": true})).await;
    assert_eq!((upserted.0, &upserted.1["url"]), (201, &json!(world.receiver.url("/hook"))));
    assert_eq!(world.get("endpoint/new/headers").await["sensitive"], json!(["authorization"]));

    // Two of them are one too many.
    set(&mut world, "endpoint/hook/headers", json!({"headers": {"Authorization": "Bearer mine"}})).await;
    for (method, path, body) in [
        (Method::PATCH, "endpoint/hook", json!({"url": url("x")})),
        (Method::PUT, "endpoint/hook", json!({"url": url("x")})),
        (Method::POST, "endpoint", json!({"url": url("x"), "headers": {"authorization": "Bearer mine"}})),
    ] {
        let (status, answer) = world.call(method, path, body).await;
        assert_eq!((status, &answer["detail"][0]["loc"]), (422, &json!(["body", "url"])), "{answer}");
    }
}

#[tokio::test]
async fn a_delivery_that_comes_back_as_a_message_is_not_taken() {
    let mut world = World::start().await;
    world.endpoint("/hook", json!({})).await;
    world.send("a.b").await;
    let ours = world.receiver.wait_for("/hook", 1).await[0].header("postrider-loop").to_owned();
    let body = json!({"eventType": "a.b", "payload": {}}).to_string();
    for (value, expected) in [(ours.as_str(), 422), ("0123456789abcdef", 202), ("", 202)] {
        let headers = [("postrider-loop", value)];
        let (status, answer) =
            world.client.send(Method::POST, "/api/v1/app/acme/msg", &headers, &body).await.expect("an answer");
        assert_eq!(status, expected, "{}", String::from_utf8_lossy(&answer));
    }
}

/// Answers only those who show a certificate of its authority.
#[derive(Clone, Default)]
struct Strict {
    requests: Arc<AtomicUsize>,
}

impl Strict {
    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    /// Says its port.
    async fn listen(&self, authority: &CertifiedIssuer<'static, KeyPair>) -> u16 {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, authority).unwrap().der().clone();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::clone(&self.requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, requests) = (acceptor.clone(), Arc::clone(&requests));
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(stream).await else { return };
                    let service = service_fn(|request: http::Request<Incoming>| {
                        requests.fetch_add(1, SeqCst);
                        async {
                            request.into_body().collect().await.unwrap();
                            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
                        }
                    });
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(tls), service)
                        .await;
                });
            }
        });
        port
    }
}

async fn set(world: &mut World, path: &str, body: Value) {
    let (status, answer) = world.call(Method::PUT, path, body).await;
    assert_eq!(status, 204, "{path}: {answer}");
}

/// The owner of the endpoint finds these words in the attempt.
async fn assert_reason(world: &mut World, words: &str) {
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "strict").await;
    assert_eq!(end, "fail");
    let said = attempts[0]["response"].as_str().expect("a reason");
    assert!(said.contains(words), "{words}: {said}");
}

fn settings(world: &World, path: &str) -> Value {
    json!({
        "grantType": "clientCredentials",
        "authMethod": "clientSecretBasic",
        "clientId": "us",
        "clientSecret": "secret",
        "tokenUrl": world.receiver.url(path),
        "scopes": ["read", "write"],
    })
}

fn granted(token: &str) -> Answer {
    let body = json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600}).to_string();
    Answer::Full { status: 200, headers: Vec::new(), body: body.into() }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn identity(issuer: &CertifiedIssuer<'static, KeyPair>, name: &str) -> String {
    identity_of(issuer, params(name))
}

fn identity_of(issuer: &CertifiedIssuer<'static, KeyPair>, params: CertificateParams) -> String {
    let key = KeyPair::generate().unwrap();
    format!("{}{}", params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}
