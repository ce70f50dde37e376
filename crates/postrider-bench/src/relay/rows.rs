//! What the relay keeps: all that waits is written in one transaction, synced once and answered.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::Result;
use bytes::Bytes;
use rusqlite::Connection;
use tokio::sync::oneshot;

pub enum Row {
    Message { number: u64, payload: Bytes, durable: oneshot::Sender<()> },
    Outcome { number: u64, lane: usize, status: u16, at_s: i64 },
}

/// The way to the thread that writes. It ends with the last of these.
#[derive(Clone)]
pub struct Rows(Sender<Row>);

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
        let (rows, queue) = mpsc::channel();
        std::thread::spawn(move || {
            if let Err(error) = write(&connection, &queue) {
                // Whoever waits is never answered, and the harness tells what is missing.
                eprintln!("the relay cannot write: {error:#}");
            }
        });
        Ok(Rows(rows))
    }

    /// Waits until the message is on the disk.
    pub async fn keep(&self, number: u64, payload: Bytes) -> Result<()> {
        let (durable, is_durable) = oneshot::channel();
        self.0.send(Row::Message { number, payload, durable })?;
        Ok(is_durable.await?)
    }

    pub fn note(&self, outcome: Row) {
        // If nobody writes any more, that has been told.
        let _ = self.0.send(outcome);
    }
}

fn write(connection: &Connection, queue: &Receiver<Row>) -> Result<()> {
    let mut message = connection.prepare("INSERT INTO message VALUES (?1, ?2)")?;
    let mut outcome = connection.prepare("INSERT INTO outcome VALUES (?1, ?2, ?3, ?4)")?;
    let mut answers = Vec::new();
    while let Ok(first) = queue.recv() {
        let transaction = connection.unchecked_transaction()?;
        for row in std::iter::once(first).chain(queue.try_iter()) {
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_kept_is_in_the_file_when_it_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("relay.db");
        let rows = Rows::open(&file).unwrap();
        rows.note(Row::Outcome { number: 6, lane: 1, status: 204, at_s: 9 });
        rows.keep(7, Bytes::from_static(b"seven")).await.unwrap();
        let reader = Connection::open(&file).unwrap();
        let one = |sql: &str| reader.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(one("SELECT number || ' ' || CAST(payload AS TEXT) FROM message"), "7 seven");
        assert_eq!(one("SELECT concat_ws(' ', number, lane, status, at) FROM outcome"), "6 1 204 9");
    }
}
