//! The real binary on a real PostgreSQL: the keys that belong to a database, and its tables.

mod support;

use postrider::{config::Settings, deployment::keys_of_shared, keyring::Keyring};
use postrider_store::PostgresOptions;
use postrider_testbed::{Cluster, connect, program};
use serde_json::json;
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};
use support::{server::Server, world::World};
use tempfile::TempDir;

/// The test cluster asks nobody for a password, so that any will do.
const PASSWORD: &str = "canary-7306092581937";

async fn empty_database() -> String {
    Cluster::shared().fresh_database().await.replace("postgres@", &format!("postgres:{PASSWORD}@"))
}

/// A database whose keys are in a folder, as after a first start there.
async fn deployment() -> (String, TempDir) {
    let (url, folder) = (empty_database().await, folder());
    make_keys(&url, folder.path()).await.expect("an empty database takes any keys");
    (url, folder)
}

/// It is made at the start, for the kernel to know what is ours.
fn holds_nothing(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

async fn make_keys(url: &str, folder: &Path) -> anyhow::Result<Keyring> {
    let settings = Settings { data: folder.to_owned(), ..Settings::defaults() };
    keys_of_shared(&settings, &url.parse().expect("an address"), &PostgresOptions::default()).await
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

fn keys(folder: &Path) -> Option<Vec<u8>> {
    fs::read(folder.join(Keyring::FILE)).ok()
}

fn postrider(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).current_dir(folder).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    ended(postrider(folder, arguments).output().expect("the binary runs"))
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn serve(url: &str, data: &Path) -> (Option<i32>, String, String) {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().expect("text"), "--log", "trace"];
    let mut command = postrider(data.parent().expect("it has one"), &arguments);
    ended(command.env("POSTRIDER_DATABASE_URL", url).output().expect("the binary runs"))
}

#[tokio::test]
async fn two_nodes_with_the_same_keys_serve_the_same_database() {
    let url = empty_database().await;
    let mut first = Server::start_with(&["--database-url", &url, "--node-name", "first"]);
    let kept: Vec<_> =
        fs::read_dir(first.data()).expect("a folder").map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(kept, [Keyring::FILE], "everything else is in the database");
    let said = postrider(&first.data(), &["endpoints", "add", "--url", &first.url(), "--create-app"])
        .args(["--app", "shop", "http://127.0.0.1:9999/hook"])
        .env("POSTRIDER_TOKEN", first.token())
        .output();
    let (code, stdout, stderr) = ended(said.expect("the binary runs"));
    assert_eq!(code, Some(0), "{stderr}");

    let mut second = Server::not_started(&["--database-url", &url, "--node-name", "second"]);
    fs::create_dir(second.data()).expect("made");
    fs::copy(first.data().join(Keyring::FILE), second.data().join(Keyring::FILE)).expect("copied");
    second.start_again();
    let list = ["endpoints", "list", "--url", &second.url(), "--app", "shop", "--json"];
    let listed = postrider(&second.data(), &list).env("POSTRIDER_TOKEN", first.token()).output();
    let (code, list, stderr) = ended(listed.expect("the binary runs"));
    assert_eq!(code, Some(0), "{stderr}");
    let id = stdout.split_whitespace().find(|word| word.starts_with("ep_")).expect("an id");
    assert!(list.contains(id), "{list}");

    assert!(first.stop().success() && second.stop().success());
    for server in [first, second] {
        assert!(!server.log().contains(PASSWORD), "{}", server.log());
    }
}

#[tokio::test]
async fn a_first_start_says_each_thing_once() {
    let url = empty_database().await + "?options=-csynchronous_commit%3Doff";
    let server = Server::start_with(&["--database-url", &url]);
    let log = server.log();
    for once in ["synchronous_commit = off", "made the keys of this deployment", "listening on"] {
        assert_eq!(log.matches(once).count(), 1, "{once}: {log}");
    }
}

#[tokio::test]
async fn a_database_whose_keys_are_elsewhere_is_refused_before_new_ones_are_made() {
    let (url, _) = deployment().await;
    let elsewhere = folder();
    let data = elsewhere.path().join("data");
    let (code, stdout, stderr) = serve(&url, &data);
    assert_eq!(code, Some(1), "{stderr}");
    let expected = format!(
        "this database belongs to a deployment whose keys.toml is not in {}; copy it from another node",
        data.display()
    );
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(!stdout.contains(PASSWORD) && !stderr.contains(PASSWORD), "{stdout} {stderr}");
    assert!(holds_nothing(&data), "nothing was made");
}

#[tokio::test]
async fn a_database_of_other_keys_is_refused() {
    let (url, _) = deployment().await;
    let (_, other) = deployment().await;
    let before = keys(other.path());
    let (code, _, stderr) = serve(&url, other.path());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("not those that this database was made with"), "{stderr}");
    assert_eq!(keys(other.path()), before);
}

#[tokio::test]
async fn of_two_first_starts_with_keys_of_their_own_one_is_refused() {
    let url = empty_database().await;
    let (left, right) = (folder(), folder());
    let (one, other) = tokio::join!(make_keys(&url, left.path()), make_keys(&url, right.path()));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    let (winner, loser) = if one.is_ok() { (left, right) } else { (right, left) };
    fs::copy(winner.path().join(Keyring::FILE), loser.path().join(Keyring::FILE)).expect("copied");
    make_keys(&url, loser.path()).await.expect("the copied keys are right");
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_named_and_its_password_is_not() {
    let folder = folder();
    let data = folder.path().join("data");
    let url = format!("postgres://u:{PASSWORD}@127.0.0.1:1/hooks");
    let (code, stdout, stderr) = serve(&url, &data);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no connection to the database hooks on 127.0.0.1:1: "), "{stderr}");
    assert!(!stdout.contains(PASSWORD) && !stderr.contains(PASSWORD), "{stdout} {stderr}");
    assert!(holds_nothing(&data), "no keys for nothing");
}

#[tokio::test]
async fn a_role_without_rights_leaves_no_keys_behind() {
    let (url, folder) = (Cluster::shared().fresh_database().await, folder());
    let data = folder.path().join("data");
    connect(&url).await.batch_execute("CREATE ROLE powerless LOGIN").await.expect("a role");
    let (code, _, stderr) = serve(&url.replace("postgres@", "powerless@"), &data);
    assert!(code == Some(1) && stderr.contains("permission denied"), "{stderr}");
    assert!(holds_nothing(&data), "no keys for nothing");
}

#[tokio::test]
async fn what_the_database_answers_is_said_once() {
    let (url, folder) = (Cluster::shared().fresh_database().await, folder());
    let (code, _, stderr) = serve(&url.replace("postgres@", "nobody_at_all@"), folder.path());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(": FATAL: role \"nobody_at_all\" does not exist"), "{stderr}");
    assert!(!stderr.contains("db error") && !stderr.contains("Error occurred"), "{stderr}");
}

#[tokio::test]
async fn a_file_without_a_certificate_is_not_taken_for_an_authority() {
    let (url, folder) = (Cluster::shared().fresh_database().await, folder());
    fs::write(folder.path().join("ca.pem"), "no certificate\n").expect("written");
    let outbox = format!("[{{\"url\": \"{url}\", \"ca_file\": \"ca.pem\"}}]");
    for variables in [
        &[("POSTRIDER_DATABASE_URL", &url[..]), ("POSTRIDER_DATABASE_CA_FILE", "ca.pem")][..],
        &[("POSTRIDER_OUTBOXES", &outbox)],
    ] {
        let mut command = postrider(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        let (code, _, stderr) = ended(command.envs(variables.iter().copied()).output().expect("the binary runs"));
        assert!(code == Some(1) && stderr.contains("ca.pem has no certificate in it"), "{stderr}");
    }
}

#[tokio::test]
async fn a_token_needs_the_keys_and_not_the_database() {
    let (_, folder) = deployment().await;
    let data = folder.path().to_str().expect("text");
    let arguments = ["token", "--database-url", "postgres://u:p@127.0.0.1:1/hooks", "--data", data];
    let (code, stdout, stderr) = run(folder.path(), &arguments);
    assert_eq!((code, stdout.trim().split('.').count()), (Some(0), 3), "{stderr}");
}

#[tokio::test]
async fn migrate_makes_the_tables_once() {
    let (url, folder) = (empty_database().await, folder());
    let all: Vec<_> = (0..4)
        .map(|_| postrider(folder.path(), &["migrate", "--database-url", &url]).spawn().expect("the binary runs"))
        .collect();
    let mut said: Vec<_> = all
        .into_iter()
        .map(|child| {
            let (code, stdout, stderr) = ended(child.wait_with_output().expect("a child of ours"));
            assert_eq!((code, &stderr[..]), (Some(0), ""));
            stdout
        })
        .collect();
    said.sort();
    assert!(said[0].starts_with("made the tables, in version "), "{said:?}");
    assert!(said[1..].iter().all(|line| line.ends_with("already; there was nothing to do\n")), "{said:?}");
    assert!(fs::read_dir(folder.path()).expect("a folder").next().is_none(), "it needs no keys and makes none");
}

#[tokio::test]
async fn tables_of_a_newer_version_serve_who_is_there_and_are_refused_to_who_comes() {
    let url = empty_database().await;
    let mut world = World::start_with(&["--database-url", &url]).await;
    world.endpoint("/hooks", json!({})).await;
    let client = connect(&url).await;
    let raise = "UPDATE note SET value = set_byte(value, 7, get_byte(value, 7) + 1) WHERE name = 'schema_version'";
    assert_eq!(client.execute(raise, &[]).await.expect("there is a version"), 1);

    let message = world.send("order.paid").await;
    assert_eq!(world.end(&message, "hooks").await.0, "success", "one that is running goes on");
    assert!(world.server.stop().success());

    let before = (dump(&url), keys(&world.server.data()));
    let data = world.server.data();
    let refused = "the database was written by a newer Postrider";
    let (code, _, stderr) = serve(&url, &data);
    assert!(code == Some(1) && stderr.contains(refused), "{stderr}");
    let (code, _, stderr) = run(&data, &["migrate", "--database-url", &url]);
    assert!(code == Some(1) && stderr.contains(refused), "{stderr}");
    assert!(before == (dump(&url), keys(&data)), "nothing was changed");
}

/// Everything in a database, as text.
fn dump(url: &str) -> String {
    let output = Command::new(program("pg_dump")).arg(url).output().expect("it is there with the server");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    // Some versions of it draw a word for each run, against what may be hidden in the text.
    text.lines().filter(|line| !line.contains("restrict ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn migrate_keeps_off_a_folder_in_use_or_without_a_database() {
    let mut server = Server::start();
    let data = server.data();
    let arguments = ["migrate", "--data", data.to_str().expect("text")];
    let (code, _, stderr) = run(&data, &arguments);
    assert!(code == Some(1) && stderr.contains(&format!("is in use by process {}", server.pid())), "{stderr}");
    assert!(server.stop().success());
    let (code, stdout, stderr) = run(&data, &arguments);
    assert!(code == Some(0) && stdout.ends_with("already; there was nothing to do\n"), "{stdout} {stderr}");

    let (code, _, stderr) = run(&data, &["migrate", "--data", "nowhere"]);
    assert!(code == Some(1) && stderr.contains("nowhere has no database yet"), "{stderr}");
    assert!(!data.join("nowhere").exists());
}

#[tokio::test]
async fn the_doctor_finds_a_running_node_well_and_what_is_wrong_without_it() {
    let url = empty_database().await;
    let mut server = Server::start_with(&["--database-url", &url, "--node-name", "north"]);
    let data = server.data();
    let see = |extra: &[&str]| {
        let place = ["doctor", "--data", data.to_str().expect("text")];
        let mut command = postrider(&data, &[&place, extra].concat());
        ended(command.env("POSTRIDER_DATABASE_URL", &url).output().expect("the binary runs"))
    };
    let (code, stdout, stderr) = see(&["--url", &server.url(), "--token", server.token()]);
    assert_eq!((code, &stderr[..]), (Some(0), ""), "{stdout}");
    for line in ["ok       keys", "nodes          north is", "ok       metrics        0 deliveries wait"] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    assert!(!stdout.contains(PASSWORD), "{stdout}");
    assert!(server.stop().success());

    let outbox = Cluster::shared().fresh_database().await;
    let mut command = postrider(&data, &["doctor"]);
    let (code, stdout, _) = ended(command.env("POSTRIDER_OUTBOXES", &outbox).output().expect("the binary runs"));
    assert!(code == Some(1) && stdout.contains("there is no outbox in the schema"), "{stdout}");

    let (code, stdout, _) = see(&["--json"]);
    assert_eq!(code, Some(0), "a warning is no problem: {stdout}");
    let nodes = stdout.lines().find(|line| line.contains(r#""check":"nodes""#)).expect("a finding");
    assert!(nodes.contains(r#""verdict":"warning""#), "{nodes}");
    let (code, stdout, stderr) = see(&["--url", &server.url()]);
    assert_eq!(code, Some(1), "nobody answers: {stdout}");
    assert!(stderr.contains("there is a problem"), "{stderr}");

    fs::remove_file(data.join(Keyring::FILE)).expect("removed");
    let (code, stdout, _) = see(&[]);
    assert!(code == Some(1) && stdout.contains("problem  keys"), "{stdout}");
}

#[test]
fn the_doctor_looks_at_a_folder_while_the_server_runs_on_it() {
    let mut server = Server::start();
    let data = server.data();
    let place = ["doctor", "--data", data.to_str().expect("text")];
    let (code, stdout, stderr) = run(&data, &place);
    assert_eq!((code, &stderr[..]), (Some(0), ""), "{stdout}");
    for line in ["ok       keys           those of this database", "ok       damage         none found"] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
    assert!(server.stop().success());
    let mut command = postrider(&data, &["doctor", "--data", "nowhere"]);
    let (code, stdout, stderr) = ended(command.env("POSTRIDER_TOKEN", "t").output().expect("the binary runs"));
    assert!(code == Some(0) && stdout.contains("the first start makes it"), "{stdout} {stderr}");
    assert!(!stdout.contains("migrate"), "which would be refused: {stdout}");
    assert!(!data.join("nowhere").exists(), "it changes nothing");
}
