//! The examples do what they say.

#[path = "../examples/axum_postgres.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod axum_postgres;
#[path = "../examples/axum_sqlite.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod axum_sqlite;
mod common;

use std::time::Duration;

use axum::{Router, body::Body, http::Request};
use common::*;
use postrider_inbox::{Clock, Event, SystemClock, Worker, WorkerSettings, rusqlite};
use postrider_testbed::{Cluster, connect};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tower::ServiceExt;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

async fn send(app: &Router, id: &str) -> u16 {
    let (headers, body) = signed(id, r#"{"paid": 5}"#, SystemClock.now());
    let mut request = Request::post("/webhooks").body(Body::from(body)).unwrap();
    *request.headers_mut() = headers;
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn axum_with_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let (inbox, ledger) = axum_sqlite::open(&folder.path().join("shop.db")).await.unwrap();
    let app = axum_sqlite::app(&inbox, SECRET).unwrap();
    for (id, status) in [("msg_1", 202), ("msg_1", 200), ("msg_2", 202)] {
        assert_eq!(send(&app, id).await, status, "{id}");
    }
    let worker = Worker::new(inbox.clone(), WorkerSettings::default(), ChaCha8Rng::seed_from_u64(0)).unwrap();
    let file = ledger.clone();
    let handler = move |event: Event| axum_sqlite::enter(inbox.clone(), file.clone(), event);
    assert_eq!(worker.turn(handler).await.unwrap(), 2);
    let count = "SELECT count(*) FROM payments WHERE body = '{\"paid\": 5}'";
    let shop = rusqlite::Connection::open(ledger).unwrap();
    assert_eq!(shop.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
}

#[tokio::test]
async fn axum_with_postgresql() {
    let url = Cluster::shared().fresh_database().await;
    let inbox = axum_postgres::open(&url).await.unwrap();
    let app = axum_postgres::app(&inbox, SECRET).unwrap();
    for id in ["msg_1", "msg_1", "msg_2"] {
        assert_eq!(send(&app, id).await, 200, "{id}");
    }
    let client = connect(&url).await;
    let rows = client.query_one("SELECT count(*) FROM payments", &[]).await.unwrap();
    assert_eq!(rows.get::<_, i64>(0), 2);

    client.execute("UPDATE postrider_inbox_effects SET at = 0 WHERE id = 'msg_1'", &[]).await.unwrap();
    let cleaning = axum_postgres::clean_every(Duration::from_millis(10), inbox);
    let forgotten = async {
        while client.query_one("SELECT 1 FROM postrider_inbox_effects WHERE id = 'msg_1'", &[]).await.is_ok() {}
    };
    tokio::select! {
        () = cleaning => unreachable!("it goes on"),
        done = tokio::time::timeout(Duration::from_secs(30), forgotten) => done.expect("what is old is forgotten"),
    }
    assert_eq!(send(&app, "msg_2").await, 200);
    let rows = client.query_one("SELECT count(*) FROM payments", &[]).await.unwrap();
    assert_eq!(rows.get::<_, i64>(0), 2, "what is within its retention is known");
}
