//! Secrets that are planted, and then looked for wherever somebody might look: the log at its most talkative, metrics, answers,
//! pages, traces, the database and its backup; as they are, in base64 and in hex.

mod support;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use postrider_signature::{PrivateKey, Secret};
use postrider_testbed::program;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};
use support::{
    receiver::{Answer, Receiver},
    stores::{StoreKind, on_both_stores},
    world::World,
};

on_both_stores! {
    async
    no_secret_is_found_where_it_does_not_belong,
}

async fn no_secret_is_found_where_it_does_not_belong(store: StoreKind) {
    let place = store.flags();
    let flags = place.iter().map(String::as_str).chain(["--log", "trace"]);
    let mut world = World::start_with(&flags.collect::<Vec<_>>()).await;
    let collector = Receiver::start();
    let traces = collector.url("/v1/traces");
    world.server.stop();
    world.server.set_variables(&[("POSTRIDER_OTLP_ENDPOINT", &traces), ("POSTRIDER_TRACE_SAMPLE", "1")]);
    world.start_again();
    let (secret, new, pair) = (b"canary of a signing secret 0123", b"canary of a newer secret 456789", [0x5a; 32]);
    let (header, key, query) = ("canary-in-authorization", "canary-in-an-api-key", "canary-in-a-query");
    let (secret_text, new_text) = (shared(secret), shared(new));
    let private = PrivateKey::from_seed(&pair);

    // A receiver that sends back what it was sent.
    let echo = format!("you said: Bearer {header}, and {key}");
    let refusal = Answer::Full { status: 500, headers: vec![("x-echo", header.to_owned())], body: echo.into() };
    world.receiver.always(&format!("/plain?token={query}"), refusal);
    let url = world.receiver.url(&format!("/plain?token={query}"));
    let headers = json!({"authorization": format!("Bearer {header}"), "x-api-key": key});
    world.endpoint("/plain", json!({"url": url, "secret": secret_text, "headers": headers})).await;
    world.endpoint("/pair", json!({"secret": private.reveal()})).await;
    world.post("endpoint/plain/secret/rotate", json!({"key": new_text})).await;
    let (password, client_secret, access) =
        ("canary-in-a-url", "canary-of-an-oauth-client", "canary-of-an-access-token");
    let key_pair = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(Vec::new()).expect("no names").self_signed(&key_pair);
    let identity = format!("{}{}", certificate.expect("a key of its own").pem(), key_pair.serialize_pem());
    // What the parser of PEM takes out of it: the lines between its first and its last.
    let key_pem = key_pair.serialize_pem();
    let client_key = key_pem.lines().nth(1).expect("a line of base64").as_bytes();
    plant(&mut world, password, client_secret, access, &identity).await;
    let source_secret = "canary-of-a-source";
    let config = json!({"secret": source_secret, "header": "x-signature"});
    let wanted = json!({"name": "Source", "uid": "source", "type": "hmac", "config": config});
    let source = world.client.create("/ingest/api/v1/source", &wanted).await;
    let source_path = source["ingestUrl"].as_str().expect("a URL").splitn(4, '/').nth(3).expect("a path").to_owned();
    let source_token = source_path.rsplit('/').next().expect("a token")[22..].to_owned();
    // With the test's own token in its `authorization`.
    let signed = [("x-signature", "00")];
    let sent = world.client.send(Method::POST, &format!("/{source_path}"), &signed, "{}").await.expect("an answer");
    assert_eq!(sent.0.as_u16(), 401);
    let message = world.send("a.b").await;
    let (end, attempts) = world.end(&message, "plain").await;
    assert_eq!(end, "fail");
    world.receiver.wait_for("/pair", 1).await;
    for endpoint in ["named", "tokened"] {
        let (end, attempts) = world.end(&message, endpoint).await;
        assert_eq!(end, "fail");
        let said = attempts[0]["response"].as_str().expect("an answer").replace("***", "");
        assert_eq!(said, "you said: ", "{attempts:?}");
    }

    let mut shown = vec![("an attempt".to_owned(), Value::from(attempts.clone()).to_string().into_bytes())];
    assert!(attempts[0]["response"].as_str().unwrap().contains("you said: Bearer ***, and ***"), "{attempts:?}");
    // What is wrong is refused, and not repeated.
    for (path, body) in [
        ("endpoint", json!({"url": "https://example.com", "secret": format!("{secret_text}!")})),
        ("endpoint", json!({"url": "https://example.com", "headers": {"host": header}})),
        ("endpoint", json!({"url": "https://example.com", "secret": {"is": secret_text}})),
        ("endpoint/plain/secret/rotate", json!({"key": format!("whsk_{}", BASE64_STANDARD.encode(new))})),
        ("endpoint/plain/secret/rotate", json!({"key": new_text, "gracePeriodSeconds": -1})),
        ("endpoint", json!({"url": format!("https://me:{password}@10.0.0.1/")})),
        (
            "endpoint",
            json!({"url": format!("https://me:{password}@example.com"), "headers": {"authorization": header}}),
        ),
        ("PUT endpoint/certified/mtls", json!({"identity": identity, "ca": identity})),
        ("PUT endpoint/certified/mtls", json!({"identity": format!("{identity}-----BEGIN X-----")})),
        ("PUT endpoint/certified/mtls", json!({"identity": {"is": identity}})),
        ("PUT endpoint/tokened/oauth", json!({"clientSecret": client_secret})),
        (
            "PUT endpoint/tokened/oauth",
            json!({"grantType": "refreshToken", "authMethod": "clientSecretBasic",
            "clientId": "us", "refreshToken": client_secret, "tokenUrl": format!("https://me:{password}@example.com")}),
        ),
    ] {
        let (method, path) = path.strip_prefix("PUT ").map_or((Method::POST, path), |path| (Method::PUT, path));
        let (status, answer) = world.call(method, path, body).await;
        assert_eq!(status, 422, "{answer}");
        shown.push((format!("the refusal of {path}"), answer.to_string().into_bytes()));
    }
    for path in [
        "",
        "endpoint",
        "endpoint/plain",
        "endpoint/plain/headers",
        "endpoint/plain/health",
        "endpoint/named",
        "endpoint/named/headers",
        "endpoint/tokened/oauth",
        "endpoint/certified/mtls",
        "attempt/endpoint/named",
        "attempt/endpoint/tokened",
        "msg",
        "dead-letter",
    ] {
        let (_, answer) = world.call(Method::GET, path, Value::Null).await;
        shown.push((format!("GET {path}"), answer.to_string().into_bytes()));
    }
    for path in ["source/log", "source/endpoint"] {
        let path = format!("/ingest/api/v1/source/{path}");
        let (_, answer) = world.client.send(Method::GET, &path, &[], "").await.expect("an answer");
        shown.push((format!("GET {path}"), answer.to_vec()));
    }
    shown.extend(pages(&mut world, &message).await);
    let metrics = world.client.send(Method::GET, "/metrics", &[], "").await.expect("the server answers").1;
    shown.push(("the metrics".to_owned(), metrics.to_vec()));
    let copy = world.server.data().with_file_name("copy.db");
    let mut backup = match store {
        StoreKind::Sqlite => {
            let mut backup = Command::new(env!("CARGO_BIN_EXE_postrider"));
            backup.args(["backup", "--data"]).arg(world.server.data()).arg("--to").arg(&copy);
            backup
        }
        // Everything that is in the tables, as text.
        StoreKind::Postgresql => {
            let mut backup = Command::new(program("pg_dump"));
            backup.arg("--file").arg(&copy).arg(&place[1]);
            backup
        }
    };
    let backup = backup.output().expect("the program runs");
    assert!(backup.status.success(), "{backup:?}");
    assert!(fs::metadata(&copy).expect("a copy").len() > 10_000, "there is little in the copy");
    let token = world.server.token().to_owned();
    world.server.stop();
    let traces: Vec<u8> = collector.arrivals().iter().flat_map(|arrival| arrival.body.to_vec()).collect();
    assert!(found(&traces, message.as_bytes()), "the traces say little");
    shown.push(("the traces".to_owned(), traces));
    let log = world.server.log().into_bytes();
    assert!(log.windows(5).any(|word| word == b"DEBUG"), "the log says little");
    shown.push(("the log".to_owned(), log));

    let sealed: [(&str, &[u8]); 12] = [
        ("the secret of a source", source_secret.as_bytes()),
        ("the token in a source's URL", source_token.as_bytes()),
        ("a password in a URL", password.as_bytes()),
        ("the secret of an OAuth client", client_secret.as_bytes()),
        ("an access token", access.as_bytes()),
        ("a client's key", client_key),
        ("a secret", secret),
        ("a newer secret", new),
        ("a private key", &pair),
        ("a header", header.as_bytes()),
        ("another header", key.as_bytes()),
        ("a token", token.as_bytes()),
    ];
    for (place, bytes) in &shown {
        for (name, canary) in sealed {
            // The owner may see the name of his header's value where it is no credential; these are.
            assert!(!found(bytes, canary), "{name} in {place}");
        }
    }
    let log = &shown.last().expect("there is a log").1;
    let lines =
        String::from_utf8_lossy(log).lines().filter(|line| line.contains(query)).map(str::to_owned).collect::<Vec<_>>();
    assert!(!found(log, query.as_bytes()), "a query in the log: {lines:#?}");
    for path in files(&world.server.data()).into_iter().chain([copy]) {
        // There the deployment's own keys are, and nothing of these.
        let bytes = fs::read(&path).unwrap_or_default();
        for (name, canary) in sealed {
            assert!(!found(&bytes, canary), "{name} in {}", path.display());
        }
    }
}

/// What a person sees, but for the page of a secret, which is there to show it.
async fn pages(world: &mut World, message: &str) -> Vec<(String, Vec<u8>)> {
    let form = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let token = format!("token={}", world.server.token());
    let entered = world.client.send_whole(Method::POST, "/sign-in", &form, &token).await.expect("an answer").0;
    let cookie = entered.headers["set-cookie"].to_str().expect("text").split(';').next().expect("a pair").to_owned();
    let app = world.get("").await["id"].as_str().expect("an id").to_owned();
    let of_all = [
        "overview",
        "apps",
        "sources",
        "sources/source",
        "audit",
        "api-keys",
        "alerts",
        "tasks",
        "event-types",
        "schedule",
    ];
    let mut paths: Vec<String> = of_all.map(|page| format!("/{page}")).to_vec();
    paths.extend(["", "/messages", "/dead-letters"].map(|rest| format!("/apps/{app}{rest}")));
    paths.push(format!("/apps/{app}/messages/{message}"));
    for endpoint in world.list("endpoint").await {
        let id = endpoint["id"].as_str().expect("an id");
        paths.extend(["", "/edit", "/schedule"].map(|rest| format!("/apps/{app}/endpoints/{id}{rest}")));
    }
    let mut pages = Vec::new();
    for path in paths {
        let headers = [("cookie", &*cookie)];
        let (status, page) = world.client.send(Method::GET, &path, &headers, "").await.expect("an answer");
        assert_eq!(status.as_u16(), 200, "{path}");
        pages.push((format!("the page {path}"), page.to_vec()));
    }
    pages
}

/// An endpoint with a password in its URL, one that wants tokens, and one that wants a certificate. The first two send back
/// what they are sent.
async fn plant(world: &mut World, password: &str, client_secret: &str, token: &str, identity: &str) {
    let basic = BASE64_STANDARD.encode(format!("me:{password}"));
    for (path, echo) in [("/named", format!("{basic}{password}")), ("/tokened", token.to_owned())] {
        let body = format!("you said: {echo}").into();
        world.receiver.always(path, Answer::Full { status: 500, headers: Vec::new(), body });
    }
    let granted = json!({"access_token": token, "token_type": "Bearer", "note": client_secret}).to_string();
    world.receiver.always("/token", Answer::Full { status: 200, headers: Vec::new(), body: granted.into() });
    let address = world.receiver.address();
    world.endpoint("/named", json!({"url": format!("http://me:{password}@{address}/named")})).await;
    world.endpoint("/tokened", json!({"disabled": true})).await;
    let oauth = json!({"grantType": "clientCredentials", "authMethod": "clientSecretPost", "clientId": "us",
        "clientSecret": client_secret, "tokenUrl": world.receiver.url("/token")});
    assert_eq!(world.call(Method::PUT, "endpoint/tokened/oauth", oauth).await.0, 204);
    world.call(Method::PATCH, "endpoint/tokened", json!({"disabled": false})).await;
    // Nothing is sent to this one.
    world.endpoint("/certified", json!({"url": "https://example.com/hook", "channels": ["nobody"]})).await;
    assert_eq!(world.call(Method::PUT, "endpoint/certified/mtls", json!({"identity": identity})).await.0, 204);
}

fn shared(bytes: &[u8]) -> String {
    Secret::from_bytes(bytes).expect("long enough").reveal()
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.is_file()).collect()
}

/// As it is, in base64 wherever in a longer text it begins, and in hex.
fn found(text: &[u8], canary: &[u8]) -> bool {
    let hex: String = canary.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![canary.to_vec(), hex.to_uppercase().into_bytes(), hex.into_bytes()];
    for before in 0..3 {
        // What the neighbours have a part in is left out.
        let encoded = BASE64_STANDARD.encode([&vec![0; before][..], canary].concat());
        let whole = (before + canary.len()) / 3 * 4;
        forms.push(encoded.as_bytes()[before.div_ceil(3) * 4..whole].to_vec());
    }
    forms.iter().any(|form| text.windows(form.len()).any(|window| window == form))
}
