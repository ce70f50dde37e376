//! The record of an event and its effect, in the caller's own transaction.

use rusqlite::{Transaction, params};

use super::SqliteStore;
use crate::{EventKey, Inbox, Processed, Timestamp, meters};

#[derive(Debug, thiserror::Error)]
pub enum ProcessError<E> {
    /// What the effect said. Its record is undone, and whatever it had written.
    #[error(transparent)]
    Effect(E),
    #[error("the event's effect could not be recorded")]
    Record(#[source] rusqlite::Error),
}

impl Inbox<SqliteStore> {
    /// Calls `effect` unless that was done before for this event, and records it in the same transaction, which the caller
    /// commits: the effect happens once, however often the event comes and whatever dies in between.
    ///
    /// The transaction is of a connection to the inbox's own file. Begin it as `IMMEDIATE`, with a `busy_timeout`: of two at
    /// the same instant the second then waits for the first.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("shop.db");
    /// # let inbox = postrider_inbox::Inbox::new(postrider_inbox::SqliteStore::open(&file)?, postrider_inbox::SystemClock);
    /// use postrider_inbox::{EventKey, Processed, rusqlite::{Connection, TransactionBehavior}};
    ///
    /// let mut shop = Connection::open(&file)?;
    /// postrider_inbox::sqlite::migrate(&shop)?;
    /// shop.execute_batch("CREATE TABLE paid (amount INTEGER)")?;
    ///
    /// let key = EventKey::parse("payments", "evt_1")?;
    /// for expected in [Processed::Ran(1), Processed::SeenBefore] {
    ///     let mut tx = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     let done = inbox.process(&mut tx, &key, |tx| tx.execute("INSERT INTO paid VALUES (100)", []))?;
    ///     tx.commit()?;
    ///     assert_eq!(done, expected);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn process<T, E>(
        &self,
        tx: &mut Transaction<'_>,
        key: &EventKey,
        effect: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<Processed<T>, ProcessError<E>> {
        process(tx, key, self.inside.clock.now(), effect)
    }
}

/// As [`Inbox::process`], where the queue is elsewhere or there is none. [`migrate`](super::migrate) makes the table.
///
/// Its record stays until something forgets it: [`Inbox::clean`] of an inbox over the same database, which goes by the retention alone
/// where it has no such event. Let that be longer than an event may wait, or be dead, in a queue elsewhere.
pub fn process<T, E>(
    tx: &mut Transaction<'_>,
    key: &EventKey,
    now: Timestamp,
    effect: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
) -> Result<Processed<T>, ProcessError<E>> {
    // A caller who commits in spite of an error would otherwise keep the record without its effect, and lose the event.
    tx.execute_batch("SAVEPOINT postrider_inbox_effect").map_err(ProcessError::Record)?;
    let result = record(tx, key, now).map_err(ProcessError::Record).and_then(|is_new| match is_new {
        true => effect(tx).map(Processed::Ran).map_err(ProcessError::Effect),
        false => Ok(Processed::SeenBefore),
    });
    let end = match &result {
        Ok(_) => "RELEASE postrider_inbox_effect",
        Err(_) => "ROLLBACK TO postrider_inbox_effect; RELEASE postrider_inbox_effect",
    };
    match (tx.execute_batch(end), result) {
        (Ok(()), result) => result.inspect(|processed| meters::effect(key.source.as_str(), processed)),
        (Err(_), Err(error)) => Err(error),
        (Err(error), Ok(_)) => Err(ProcessError::Record(error)),
    }
}

fn record(tx: &Transaction<'_>, key: &EventKey, now: Timestamp) -> Result<bool, rusqlite::Error> {
    let written = tx
        .prepare_cached(
            "INSERT INTO postrider_inbox_effects (source, id, at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        )?
        .execute(params![key.source.as_str(), key.id.as_str(), now.as_millis()])?;
    Ok(written == 1)
}
