//! Receives Postrider's deliveries with `axum`, keeps them in SQLite and works them off behind.
//!
//! ```sh
//! WEBHOOK_SECRET=whsec_... cargo run -p postrider-inbox --example axum_sqlite
//! ```
//!
//! Each payment is entered in a table of the same file, in one transaction with the record that it was: however often one
//! comes, and whatever is killed when, it is entered once.

use std::{error::Error, path::Path};

use axum::{Router, routing::post};
use postrider_inbox::{
    Event, Failure, Inbox, SqliteStore, SystemClock, Worker, WorkerSettings,
    axum::Taken,
    rusqlite::{Connection, TransactionBehavior},
};
use postrider_signature::{Secret, Source};
use rand::{
    SeedableRng,
    rngs::{StdRng, SysRng},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (inbox, ledger) = open(Path::new("shop.db")).await?;
    let app = app(&inbox, &std::env::var("WEBHOOK_SECRET")?)?;

    let rng = StdRng::try_from_rng(&mut SysRng)?;
    let worker = Worker::new(inbox.clone(), WorkerSettings::default(), rng)?;
    let stop = async || tokio::signal::ctrl_c().await.unwrap_or_default();
    let work = tokio::spawn({
        let stop = stop();
        async move { worker.run(move |event| enter(inbox.clone(), ledger.clone(), event), stop).await }
    });

    let listener = tokio::net::TcpListener::bind("127.0.0.1:8090").await?;
    println!("listening on http://{}/webhooks", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(stop()).await?;
    Ok(work.await?)
}

/// The inbox, and where the ledger is: in the same file, so that one transaction can be about both.
pub async fn open(file: &Path) -> Result<(Inbox<SqliteStore>, String), Box<dyn Error>> {
    let inbox = Inbox::new(SqliteStore::open(file)?, SystemClock);
    inbox.migrate().await?;
    Connection::open(file)?.execute_batch("CREATE TABLE IF NOT EXISTS payments (event TEXT, body TEXT)")?;
    Ok((inbox, file.to_str().ok_or("the file's name is not text")?.to_owned()))
}

/// Verifies, records and queues; then it is answered.
pub fn app(inbox: &Inbox<SqliteStore>, secret: &str) -> Result<Router, Box<dyn Error>> {
    let door = inbox.door("postrider", Source::standard([Secret::parse(secret)?]))?;
    Ok(Router::new().route("/webhooks", post(async |taken: Taken<SqliteStore>| taken)).with_state(door))
}

/// Called for every event at least once.
pub async fn enter(inbox: Inbox<SqliteStore>, ledger: String, event: Event) -> Result<(), Failure> {
    // SQLite blocks the thread that calls it.
    let entered = tokio::task::spawn_blocking(move || {
        let mut ledger = Connection::open(ledger)?;
        ledger.busy_timeout(std::time::Duration::from_secs(10))?;
        let body = std::str::from_utf8(&event.body).map_err(Failure::never)?;
        let mut tx = ledger.transaction_with_behavior(TransactionBehavior::Immediate)?;
        inbox.process(&mut tx, &event.key, |tx| {
            tx.execute("INSERT INTO payments VALUES (?1, ?2)", [event.key.id.as_str(), body])
        })?;
        Ok(tx.commit()?)
    });
    entered.await?
}
