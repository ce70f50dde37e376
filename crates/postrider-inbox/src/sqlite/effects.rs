//! The record of an event and its effect, in the caller's own transaction.

use rusqlite::{Connection, Transaction, params};

use super::{FORGET_EFFECTS, SqliteStore};
use crate::{EventKey, Inbox, Processed, StoreError, Timestamp, meters};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
/// Its record stays until something forgets it: [`clean_effects`], or [`Inbox::clean`] of an inbox over the same database.
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

/// Forgets up to `max` effects that were recorded before `before`, and says how many: for those who use [`process`] without an
/// inbox, which cleans by itself. Call it from time to time, until it says 0; between two calls other writers have their turn.
///
/// **`before` must be older than any event that can still come again.** What is forgotten and comes after all has its effect a second
/// time: a sender's last attempt (Postrider's within four days by default and thirty at most), what people send again later, and whatever
/// waits or is dead in a queue elsewhere. Only of an inbox in this file is it known what waits or is dead, and such effects stay.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let shop = postrider_inbox::rusqlite::Connection::open_in_memory()?;
/// # postrider_inbox::sqlite::migrate(&shop)?;
/// use std::time::Duration;
/// use postrider_inbox::{Clock, SystemClock, sqlite::clean_effects};
///
/// let before = SystemClock.now().before(Duration::from_hours(24 * 30));
/// while clean_effects(&shop, before, 500)? > 0 {}
/// # Ok(())
/// # }
/// ```
pub fn clean_effects(connection: &Connection, before: Timestamp, max: usize) -> Result<usize, StoreError> {
    Ok(connection.prepare_cached(FORGET_EFFECTS)?.execute(params![before.as_millis(), max])?)
}

fn record(tx: &Transaction<'_>, key: &EventKey, now: Timestamp) -> Result<bool, rusqlite::Error> {
    let written = tx
        .prepare_cached(
            "INSERT INTO postrider_inbox_effects (source, id, at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
        )?
        .execute(params![key.source.as_str(), key.id.as_str(), now.as_millis()])?;
    Ok(written == 1)
}
