//! What tests rely on: durable, separate, restartable, and gone afterwards.

use postrider_testbed::{Cluster, Mode};
use std::{
    env,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};
use tokio_postgres::{Client, NoTls};

#[tokio::test]
async fn a_fresh_database_is_empty_and_nobody_elses() {
    let cluster = Cluster::shared();
    let (one, other) = tokio::join!(cluster.fresh_database(), cluster.fresh_database());
    assert_ne!(one, other);
    connect(&one).await.batch_execute("CREATE TABLE thing (key bigint)").await.expect("it is empty");
    connect(&other).await.batch_execute("CREATE TABLE thing (key bigint)").await.expect("it is empty, too");
}

#[tokio::test]
async fn the_server_is_as_durable_as_in_production() {
    let client = connect(&Cluster::shared().url("postgres")).await;
    for setting in ["fsync", "full_page_writes", "synchronous_commit"] {
        let row = client.query_one("SELECT current_setting($1)", &[&setting]).await.expect("it is a setting");
        assert_eq!(row.get::<_, &str>(0), "on", "{setting}");
    }
}

#[tokio::test]
async fn what_was_committed_is_there_after_a_restart_at_the_same_address() {
    let cluster = Cluster::start();
    let url = cluster.fresh_database().await;
    connect(&url).await.batch_execute("CREATE TABLE thing (key bigint)").await.expect("it is empty");
    for (count, mode) in [(1, Mode::Fast), (2, Mode::Immediate)] {
        let client = connect(&url).await;
        client.batch_execute("INSERT INTO thing VALUES (1)").await.expect("the table is there");
        cluster.restart(mode);
        let row = connect(&url).await.query_one("SELECT count(*) FROM thing", &[]).await.expect("the table is there");
        assert_eq!(row.get::<_, i64>(0), count, "{mode:?}");
    }
}

#[tokio::test]
async fn a_stopped_cluster_is_not_to_be_reached_until_it_is_resumed() {
    let cluster = Cluster::start();
    let url = cluster.url("postgres");
    cluster.stop(Mode::Fast);
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    cluster.resume();
    connect(&url).await;
}

#[tokio::test]
async fn a_dropped_cluster_leaves_nothing() {
    let cluster = Cluster::start();
    let folder = cluster.folder().to_owned();
    let (_client, connection) = tokio_postgres::connect(&cluster.url("postgres"), NoTls).await.expect("it is running");
    drop(cluster);
    assert!(!folder.exists());
    assert!(connection.await.is_err(), "the server is gone");
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_nothing() {
    let mut process = Command::new(env::current_exe().expect("this is a program"))
        .args(["--exact", "only_to_be_killed", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program can be started");
    let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let mut said = |what: &str| {
        lines.find_map(|line| Some(line.split_once(what)?.1.to_owned())).expect("it says that before it waits")
    };
    let (folder, url) = (said("FOLDER "), said("URL "));
    let (_client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("it is running");

    process.kill().expect("it waits to be killed");
    // The keeper holds the other end of this until it has done its work.
    let mut errors = String::new();
    process.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("errors are text");
    process.wait().expect("it has been killed");

    assert!(!Path::new(&folder).exists(), "{errors}");
    assert!(connection.await.is_err(), "the server is gone");
}

#[test]
#[ignore = "started by another test, and killed by it"]
fn only_to_be_killed() {
    let cluster = Cluster::start();
    println!("FOLDER {}", cluster.folder().display());
    println!("URL {}", cluster.url("postgres"));
    // Ends by itself where somebody runs the ignored tests and there is nothing to read.
    let _ = std::io::stdin().read_line(&mut String::new());
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the cluster is running");
    tokio::spawn(connection);
    client
}
