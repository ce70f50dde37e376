//! Receives Postrider's deliveries without a queue: record and effect are one transaction in PostgreSQL, and the answer comes
//! after its commit.
//!
//! ```sh
//! DATABASE_URL=postgres://... WEBHOOK_SECRET=whsec_... cargo run -p postrider-inbox --example axum_postgres
//! ```
//!
//! This suits effects that are quick and all in one database. If one fails, the sender is told, and sends again.

use std::{error::Error, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use postrider_inbox::{
    Inbox, PostgresStore, Processed, SystemClock,
    axum::Genuine,
    deadpool_postgres::{Manager, Pool},
    tokio_postgres::{NoTls, Transaction},
};
use postrider_signature::{Secret, Source};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let inbox = open(&std::env::var("DATABASE_URL")?).await?;
    let app = app(&inbox, &std::env::var("WEBHOOK_SECRET")?)?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8090").await?;
    tokio::spawn(clean_every(Duration::from_hours(1), inbox));
    println!("listening on http://{}/webhooks", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

pub async fn open(url: &str) -> Result<Inbox<PostgresStore>, Box<dyn Error>> {
    // With a server that is not on this machine, something that speaks TLS in place of `NoTls`.
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls)).max_size(16).build()?;
    pool.get().await?.batch_execute("CREATE TABLE IF NOT EXISTS payments (event text, body bytea)").await?;
    let inbox = Inbox::new(PostgresStore::new(pool), SystemClock);
    inbox.migrate().await?;
    Ok(inbox)
}

/// A worker would do this by itself; here nobody else forgets what is over its retention.
pub async fn clean_every(time: Duration, inbox: Inbox<PostgresStore>) {
    let mut ticks = tokio::time::interval(time);
    loop {
        ticks.tick().await;
        if let Err(error) = inbox.clean().await {
            eprintln!("what is over its retention was not forgotten: {error}");
        }
    }
}

pub fn app(inbox: &Inbox<PostgresStore>, secret: &str) -> Result<Router, Box<dyn Error>> {
    let door = inbox.door("postrider", Source::standard([Secret::parse(secret)?]))?;
    Ok(Router::new().route("/webhooks", post(receive)).with_state(door))
}

async fn receive(genuine: Genuine<PostgresStore>) -> StatusCode {
    match enter(&genuine).await {
        Ok(Processed::Ran(_)) => StatusCode::OK,
        // It is done already, and the sender should not send it again.
        Ok(Processed::SeenBefore) => StatusCode::OK,
        // Nothing was recorded and nothing done.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn enter(Genuine { event, door }: &Genuine<PostgresStore>) -> Result<Processed<u64>, Box<dyn Error>> {
    let inbox = door.inbox();
    let mut client = inbox.store().pool().get().await?;
    let mut tx = client.transaction().await?;
    let entered = inbox
        .process(&mut tx, &event.key, async |tx: &mut Transaction<'_>| {
            tx.execute("INSERT INTO payments VALUES ($1, $2)", &[&event.key.id.as_str(), &&event.body[..]]).await
        })
        .await?;
    tx.commit().await?;
    Ok(entered)
}
