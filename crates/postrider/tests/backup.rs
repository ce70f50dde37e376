//! A backup of the real server under load, restored elsewhere: what had been accepted before it is there, and goes out.

mod support;

use http::Method;
use postrider::keyring::Keyring;
use postrider_store::SqliteStore;
use postrider_testbed::{Cluster, program};
use serde_json::json;
use std::{
    collections::HashSet,
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use support::{api::Client, eventually, server::Server, world::World};
use tempfile::TempDir;

fn postrider(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A server with much to deliver: to an endpoint that takes it at once, and to one that is paused.
async fn busy_world(flags: &[&str]) -> (World, Vec<String>) {
    let mut world = World::start_with(flags).await;
    world.endpoint("/live", json!({})).await;
    world.endpoint("/held", json!({"disabled": true})).await;
    let mut sent = Vec::new();
    for _ in 0..40 {
        sent.push(world.send("a.b").await);
    }
    (world, sent)
}

/// Does something while messages keep coming in.
async fn under_load<T: Send + 'static>(world: &World, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (address, token) = (world.server.address(), world.server.token().to_owned());
    let over = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let over = Arc::clone(&over);
        async move {
            let mut client = Client::new(address, &token);
            while !over.load(Ordering::Relaxed) {
                let body = json!({"eventType": "a.b", "payload": {"n": 2}});
                client.create("/api/v1/app/acme/msg", &body).await;
            }
        }
    });
    let done = tokio::task::spawn_blocking(work).await.expect("it does not panic");
    over.store(true, Ordering::Relaxed);
    load.await.expect("every message was accepted");
    done
}

/// Starts a server on what was restored, lets the paused endpoint go on, and waits for what had been sent before.
async fn arrives(mut world: World, mut restored: Server, sent: &[String]) {
    world.server.kill();
    let before = world.receiver.arrivals_at("/held").len();
    assert_eq!(before, 0, "it was paused");
    restored.start_again();
    // The same keys, so that the same token is right.
    let mut client = Client::new(restored.address(), world.server.token());
    let (status, answer) = client
        .send(Method::PATCH, "/api/v1/app/acme/endpoint/held", &[], &json!({"disabled": false}).to_string())
        .await
        .expect("an answer");
    assert!(status.is_success(), "{status} {}", String::from_utf8_lossy(&answer));
    let receiver = &world.receiver;
    eventually("everything that was sent before the backup", async || {
        let arrived: HashSet<_> =
            receiver.arrivals_at("/held").iter().map(|arrival| arrival.header("webhook-id").to_owned()).collect();
        sent.iter().all(|id| arrived.contains(id)).then_some(())
    })
    .await;
    assert!(restored.stop().success());
}

#[tokio::test]
async fn a_backup_under_load_is_restored_and_delivers_what_waited() {
    let (world, sent) = busy_world(&[]).await;
    let (data, place) = (world.server.data(), tempfile::tempdir().expect("a folder"));
    let to = place.path().join("copy.db");
    let arguments = ["backup", "--data", text(&data), "--to", text(&to), "--with-keys"].map(str::to_owned);
    let said = under_load(&world, move || {
        succeeds(postrider(&arguments.each_ref().map(|argument| &argument[..])).current_dir("/"))
    })
    .await;
    assert!(said.contains("read again and found sound"), "{said}");
    let restored = Server::not_started(&[]);
    fs::create_dir(restored.data()).expect("made");
    fs::copy(&to, restored.data().join(SqliteStore::FILE)).expect("copied");
    fs::copy(place.path().join("copy.db.keys.toml"), restored.data().join(Keyring::FILE)).expect("copied");
    assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 2, "no drafts are left");
    arrives(world, restored, &sent).await;
}

#[tokio::test]
async fn a_dump_under_load_is_restored_and_delivers_what_waited() {
    let url = Cluster::shared().fresh_database().await;
    let (world, sent) = busy_world(&["--database-url", &url]).await;
    let place: TempDir = tempfile::tempdir().expect("a folder");
    let dump = place.path().join("postrider.dump");
    let (from, to) = (url.clone(), dump.clone());
    under_load(&world, move || {
        succeeds(Command::new(program("pg_dump")).args(["--format=custom", "--file", text(&to), &from]))
    })
    .await;
    let elsewhere = Cluster::shared().fresh_database().await;
    succeeds(Command::new(program("pg_restore")).args(["--no-owner", "--dbname", &elsewhere, text(&dump)]));
    let restored = Server::not_started(&["--database-url", &elsewhere]);
    fs::create_dir(restored.data()).expect("made");
    fs::copy(world.server.data().join(Keyring::FILE), restored.data().join(Keyring::FILE)).expect("copied");
    arrives(world, restored, &sent).await;
}

#[test]
fn a_backup_with_keys_that_are_not_there_leaves_nothing_behind() {
    let mut server = Server::start();
    let (data, place) = (server.data(), tempfile::tempdir().expect("a folder"));
    assert!(server.stop().success());
    fs::remove_file(data.join(Keyring::FILE)).expect("removed");
    let to = place.path().join("copy.db");
    let mut command = postrider(&["backup", "--data", text(&data), "--to", text(&to), "--with-keys"]);
    let output = command.current_dir("/").output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 0);
}

#[test]
fn a_backup_overwrites_nothing_and_leaves_postgresql_to_its_own_tools() {
    let mut server = Server::start();
    let (data, place) = (server.data(), tempfile::tempdir().expect("a folder"));
    let to = place.path().join("copy.db");
    fs::write(&to, "precious").expect("written");
    let refused = |arguments: &[&str]| {
        let output = postrider(arguments).current_dir(place.path()).output().expect("the binary runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, told) = refused(&["backup", "--data", text(&data), "--to", text(&to)]);
    assert!(code == Some(2) && told.contains("is not overwritten"), "{told}");
    assert_eq!(fs::read_to_string(&to).expect("there"), "precious");

    let (code, told) = refused(&["backup", "--data", "nowhere", "--to", "other.db"]);
    assert!(code == Some(1) && told.contains("nowhere has no database yet"), "{told}");
    let (code, told) = refused(&["backup", "--database-url", "postgres://u:p@127.0.0.1:1/hooks", "--to", "other.db"]);
    assert!(code == Some(2) && told.contains("pg_dump --format=custom"), "{told}");
    assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 1, "nothing was made");
    assert!(server.stop().success());
}
