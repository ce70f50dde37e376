//! The key that seals secrets is changed while the server runs, and is killed in the middle of it.

mod support;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use std::process::{Command, Output};
use support::{
    eventually,
    stores::{StoreKind, on_both_stores},
    world::World,
};

on_both_stores! {
    async
    a_new_key_takes_over_and_the_old_one_can_be_forgotten,
    keys_from_the_settings_take_over_at_the_next_start,
}

async fn a_new_key_takes_over_and_the_old_one_can_be_forgotten(store: StoreKind) {
    let place = store.flags();
    let mut world = World::start_with(&place.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let keys = |world: &World, command: &str| keys(world, command, &place);
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    for number in 0..ENDPOINTS {
        world.endpoint(&format!("/{number}"), json!({"secret": secret, "headers": {"authorization": "x"}})).await;
    }
    // Nothing is sent to these two.
    let (identity, ca) = identity();
    for (uid, what, body) in [
        ("certified", "mtls", json!({"identity": identity, "ca": ca})),
        (
            "tokened",
            "oauth",
            json!({"grantType": "clientCredentials", "authMethod": "clientSecretBasic", "clientId": "us",
                "clientSecret": "secret", "tokenUrl": "https://example.com/token"}),
        ),
    ] {
        let url = "https://example.com/hook";
        world.endpoint(&format!("/{uid}"), json!({"url": url, "channels": ["nobody"]})).await;
        assert_eq!(world.call(Method::PUT, &format!("endpoint/{uid}/{what}"), body).await.0, 204);
    }
    let config = json!({"secret": "s"});
    let wanted = json!({"name": "Source", "uid": "source", "type": "github", "config": config});
    let source = world.client.create("/ingest/api/v1/source", &wanted).await;
    let shown = (world.get("endpoint/certified/mtls").await, world.get("endpoint/tokened/oauth").await);
    let first = keys(&world, "list");
    assert!(!keys(&world, "promote").status.success(), "there is nothing to promote");
    match store {
        StoreKind::Sqlite => assert!(keys(&world, "rotate").status.success()),
        // Other nodes may be there: each is to know the key before one of them uses it.
        StoreKind::Postgresql => {
            let refused = keys(&world, "rotate");
            assert_eq!(refused.status.code(), Some(2), "{refused:?}");
            assert!(keys(&world, "stage").status.success());
            assert_eq!(names(&keys(&world, "list")), 3);
            logged(&world, "other encryption keys were taken over").await;
            assert!(keys(&world, "promote").status.success());
        }
    }
    assert!(!keys(&world, "forget-old").status.success(), "nothing is sealed with the new one yet");

    // In the middle of sealing everything anew, or just before or after: whatever is half done is gone on with.
    logged(&world, "other encryption keys were taken over").await;
    world.kill_and_start_again();
    logged(&world, "everything is sealed with the current key").await;

    let rotated = keys(&world, "list");
    assert_eq!((names(&first), names(&rotated)), (2, 3), "a line for each, and the heading");
    let forgotten = keys(&world, "forget-old");
    assert!(forgotten.status.success(), "{forgotten:?}");
    world.kill_and_start_again();
    for number in 0..ENDPOINTS {
        assert_eq!(world.get(&format!("endpoint/{number}/secret")).await["key"], secret);
    }
    assert_eq!((world.get("endpoint/certified/mtls").await, world.get("endpoint/tokened/oauth").await), shown);
    let kept: serde_json::Value = world.client.get("/ingest/api/v1/source/source").await.expect("an answer");
    assert_eq!(kept["ingestUrl"], source["ingestUrl"]);
    world.send("a.b").await;
    let arrival = world.receiver.wait_for("/7", 1).await.remove(0);
    assert_eq!(arrival.header("authorization"), "x");
}

async fn keys_from_the_settings_take_over_at_the_next_start(store: StoreKind) {
    let mut world = World::start_on(store).await;
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    world.endpoint("/hook", json!({"secret": secret})).await;
    let file = std::fs::read_to_string(world.server.data().join("keys.toml")).expect("keys");
    let first = file.split('"').find(|text| text.len() == 44 && text.ends_with('=')).expect("a key in base64");
    let new = BASE64_STANDARD.encode([7; 32]);
    let start_with = |world: &mut World, keys: &str| {
        world.server.kill();
        world.server.set_variables(&[("POSTRIDER_ENCRYPTION_KEYS", keys)]);
        world.start_again();
    };
    // The new one seals, the old one still opens.
    start_with(&mut world, &format!("{new},{first}"));
    assert_eq!(world.get("endpoint/hook/secret").await["key"], secret);
    logged(&world, "everything is sealed with the current key").await;
    // Then the old one is not needed any more.
    start_with(&mut world, &new);
    assert_eq!(world.get("endpoint/hook/secret").await["key"], secret);
    world.send("a.b").await;
    world.receiver.wait_for("/hook", 1).await;

    // With a key that opens nothing it does not start, and says so.
    world.server.kill();
    world.server.set_variables(&[("POSTRIDER_ENCRYPTION_KEYS", &BASE64_STANDARD.encode([8; 32]))]);
    world.server.begin_again();
    let status = eventually("its end", async || world.server.has_ended()).await;
    assert!(!status.success());
    assert!(world.server.log().contains("key"), "{}", world.server.log());
}

fn identity() -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let certificate =
        CertificateParams::new(Vec::new()).expect("no names").self_signed(&key).expect("a key of its own");
    (format!("{}{}", certificate.pem(), key.serialize_pem()), certificate.pem())
}

async fn logged(world: &World, words: &str) {
    eventually(words, async || world.server.log().contains(words).then_some(())).await;
}

fn names(output: &Output) -> usize {
    String::from_utf8_lossy(&output.stdout).lines().count()
}

fn keys(world: &World, command: &str, place: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["keys", command, "--data"])
        .arg(world.server.data())
        // Where the store is; how long a lease lasts is for the server alone.
        .args(place.iter().take(2))
        .output()
        .expect("the program runs")
}

const ENDPOINTS: usize = 200;
