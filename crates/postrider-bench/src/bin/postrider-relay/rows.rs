//! What the relay keeps: all that waits is written in one transaction, synced once and answered. Commits are as far apart as
//! Postrider's are.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use rusqlite::Connection;
use tokio::sync::oneshot;

pub enum Row {
    Message { number: u64, payload: Bytes, durable: oneshot::Sender<()> },
    Outcome { number: u64, lane: usize, status: u16, at_s: i64 },
}

/// The way to the thread that writes.
#[derive(Clone)]
pub struct Rows {
    waiting: Arc<Mutex<Waiting>>,
    writer: Thread,
}

#[derive(Default)]
struct Waiting {
    rows: Vec<Row>,
    messages: usize,
    /// Nobody writes any more.
    is_over: bool,
}

impl Rows {
    pub fn open(file: &Path) -> Result<Rows> {
        let connection = Connection::open(file)?;
        connection.pragma_update(None, "page_size", 8_192)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(
            "CREATE TABLE message (number INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;
             CREATE TABLE outcome (number INTEGER, lane INTEGER, status INTEGER, at INTEGER, PRIMARY KEY (number, lane))
                 STRICT, WITHOUT ROWID;",
        )?;
        let waiting = Arc::<Mutex<Waiting>>::default();
        let shared = Arc::clone(&waiting);
        let writer = thread::Builder::new().name("relay-writer".to_owned()).spawn(move || {
            if let Err(error) = write(&connection, &shared) {
                eprintln!("the relay cannot write: {error:#}");
            }
            // Whoever waits is told so, as his answer's other half is dropped here.
            *lock(&shared) = Waiting { is_over: true, ..Waiting::default() };
        })?;
        Ok(Rows { waiting, writer: writer.thread().clone() })
    }

    /// Waits until the message is on the disk.
    pub async fn keep(&self, number: u64, payload: Bytes) -> Result<()> {
        let (durable, is_durable) = oneshot::channel();
        self.note(Row::Message { number, payload, durable });
        is_durable.await.context("nobody writes any more")
    }

    pub fn note(&self, row: Row) {
        let mut waiting = lock(&self.waiting);
        if waiting.is_over {
            return;
        }
        let is_message = matches!(row, Row::Message { .. });
        waiting.messages += usize::from(is_message);
        waiting.rows.push(row);
        let wakes = waiting.rows.len() == 1 || (is_message && waiting.messages == ENOUGH);
        drop(waiting);
        if wakes {
            self.writer.unpark();
        }
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(connection: &Connection, waiting: &Mutex<Waiting>) -> Result<()> {
    let mut message = connection.prepare("INSERT INTO message VALUES (?1, ?2)")?;
    let mut outcome = connection.prepare("INSERT INTO outcome VALUES (?1, ?2, ?3, ?4)")?;
    let mut answers = Vec::new();
    let mut next_at = Instant::now();
    loop {
        let rows = gather(waiting, next_at);
        next_at = Instant::now() + GAP;
        let transaction = connection.unchecked_transaction()?;
        for row in rows {
            match row {
                Row::Message { number, payload, durable } => {
                    message.execute((number, payload.as_ref()))?;
                    answers.push(durable);
                }
                Row::Outcome { number, lane, status, at_s } => {
                    outcome.execute((number, lane, status, at_s))?;
                }
            }
        }
        transaction.commit()?;
        for durable in answers.drain(..) {
            let _ = durable.send(());
        }
    }
}

/// Waits for something to be written, and then until the time has come or enough is there.
fn gather(waiting: &Mutex<Waiting>, until: Instant) -> Vec<Row> {
    loop {
        let mut found = lock(waiting);
        let rest = until.saturating_duration_since(Instant::now());
        if !found.rows.is_empty() && (found.messages >= ENOUGH || rest.is_zero()) {
            let count = found.rows.len().min(ROWS_MAX);
            let rows = found.rows.drain(..count).collect();
            found.messages = found.rows.iter().filter(|row| matches!(row, Row::Message { .. })).count();
            return rows;
        }
        let is_empty = found.rows.is_empty();
        drop(found);
        if is_empty { thread::park() } else { thread::park_timeout(rest) }
    }
}

/// As Postrider's are.
const ENOUGH: usize = 24;
const GAP: Duration = Duration::from_millis(2);
const ROWS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_kept_is_in_the_file_when_it_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("relay.db");
        let rows = Rows::open(&file).unwrap();
        rows.note(Row::Outcome { number: 6, lane: 1, status: 204, at_s: 9 });
        for number in [7, 8] {
            rows.keep(number, Bytes::from_static(b"text")).await.unwrap();
        }
        let reader = Connection::open(&file).unwrap();
        let one = |sql: &str| reader.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(one("SELECT group_concat(number || ' ' || CAST(payload AS TEXT)) FROM message"), "7 text,8 text");
        assert_eq!(one("SELECT concat_ws(' ', number, lane, status, at) FROM outcome"), "6 1 204 9");
    }

    #[tokio::test]
    async fn whoever_waits_is_told_if_nothing_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let rows = Rows::open(&folder.path().join("relay.db")).unwrap();
        rows.keep(7, Bytes::new()).await.unwrap();
        assert!(rows.keep(7, Bytes::new()).await.is_err(), "the number is taken");
    }
}
