//! The key that seals secrets is changed while the server runs, and is killed in the middle of it.

mod support;

use http::Method;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use std::process::{Command, Output};
use support::{eventually, world::World};

#[tokio::test]
async fn a_new_key_takes_over_and_the_old_one_can_be_forgotten() {
    let mut world = World::start().await;
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
    let shown = (world.get("endpoint/certified/mtls").await, world.get("endpoint/tokened/oauth").await);
    let first = keys(&world, "list");
    assert!(!keys(&world, "promote").status.success(), "there is nothing to promote");
    assert!(keys(&world, "rotate").status.success());
    assert!(!keys(&world, "forget-old").status.success(), "nothing is sealed with the new one yet");

    // In the middle of sealing everything anew, or just before or after: whatever is half done is gone on with.
    logged(&world, "other encryption keys were taken over").await;
    world.kill_and_start_again();
    logged(&world, "everything is sealed with the current key").await;

    let rotated = keys(&world, "list");
    let names = |output: &Output| String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!((names(&first), names(&rotated)), (2, 3), "a line for each, and the heading");
    let forgotten = keys(&world, "forget-old");
    assert!(forgotten.status.success(), "{forgotten:?}");
    world.kill_and_start_again();
    for number in 0..ENDPOINTS {
        assert_eq!(world.get(&format!("endpoint/{number}/secret")).await["key"], secret);
    }
    assert_eq!((world.get("endpoint/certified/mtls").await, world.get("endpoint/tokened/oauth").await), shown);
    world.send("a.b").await;
    let arrival = world.receiver.wait_for("/7", 1).await.remove(0);
    assert_eq!(arrival.header("authorization"), "x");
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

fn keys(world: &World, command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["keys", command, "--data"])
        .arg(world.server.data())
        .output()
        .expect("the program runs")
}

const ENDPOINTS: usize = 200;
