//! One thread with the connection: whatever has come since the last commit goes into the next one.
//!
//! What waits for it is bounded, and what nobody waits for any more is left out: while the file cannot be written, requests would otherwise
//! pile up with their bodies, and be worked off long after their senders have given up.

use std::{
    sync::mpsc::{self, TrySendError},
    thread,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::StoreError;

pub(super) struct Writer {
    jobs: mpsc::SyncSender<Job>,
}

/// Does its work within the transaction, if one could be begun. What it returns is called after the commit, or with what
/// kept it from happening.
type Job = Box<dyn FnOnce(Result<&Connection, String>) -> Report + Send>;
type Report = Box<dyn FnOnce(Result<(), String>)>;

impl Writer {
    pub(super) fn start(connection: Connection) -> Result<Self, StoreError> {
        let (jobs, waiting) = mpsc::sync_channel(WAITING_MAX);
        let thread = thread::Builder::new().name("postrider-inbox".to_owned());
        thread.spawn(move || work(&connection, &waiting)).map_err(StoreError::unavailable)?;
        Ok(Self { jobs })
    }

    pub(super) async fn write<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<R, StoreError> + Send + 'static,
    ) -> Result<R, StoreError> {
        let (tell, told) = oneshot::channel();
        let job: Job = Box::new(move |begun| {
            if tell.is_closed() {
                return Box::new(|_| {});
            }
            let result = begun.map_err(StoreError::unavailable).and_then(|db| in_savepoint(db, job));
            Box::new(move |committed| {
                // Nobody listens any more if the sender hung up. The commit stands.
                drop(tell.send(committed.map_err(StoreError::unavailable).and(result)));
            })
        });
        let gone = || StoreError::unavailable("the thread that writes has ended");
        self.jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::unavailable(format!("{WAITING_MAX} others wait for the file")),
            TrySendError::Disconnected(_) => gone(),
        })?;
        told.await.map_err(|_| gone())?
    }
}

fn work(db: &Connection, jobs: &mpsc::Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let batch = std::iter::once(first).chain(jobs.try_iter().take(BATCH_MAX - 1));
        let begun = db.execute_batch("BEGIN IMMEDIATE").map_err(|error| error.to_string());
        let reports: Vec<Report> = batch
            .map(|job| match &begun {
                Ok(()) if db.is_autocommit() => job(Err("SQLite has ended the transaction".to_owned())),
                Ok(()) => job(Ok(db)),
                Err(error) => job(Err(error.clone())),
            })
            .collect();
        let committed = begun.and_then(|()| {
            db.execute_batch("COMMIT").map_err(|error| {
                // After some errors the transaction is still open.
                if !db.is_autocommit() {
                    drop(db.execute_batch("ROLLBACK"));
                }
                error.to_string()
            })
        });
        reports.into_iter().for_each(|report| report(committed.clone()));
    }
}

/// A job that fails leaves nothing behind, and the others of its batch stand.
fn in_savepoint<R>(db: &Connection, job: impl FnOnce(&Connection) -> Result<R, StoreError>) -> Result<R, StoreError> {
    db.execute_batch("SAVEPOINT postrider_inbox_job")?;
    let result = job(db);
    let end = match &result {
        Ok(_) => "RELEASE postrider_inbox_job",
        Err(_) => "ROLLBACK TO postrider_inbox_job; RELEASE postrider_inbox_job",
    };
    match (db.execute_batch(end), result) {
        (Ok(()), result) => result,
        (Err(_), Err(error)) => Err(error),
        (Err(error), Ok(_)) => Err(error.into()),
    }
}

/// So that nobody waits long for what came before.
const BATCH_MAX: usize = 256;
/// Two commits' worth. With bodies of a mebibyte, which a door lets in unless told, half a gibibyte.
const WAITING_MAX: usize = 2 * BATCH_MAX;
