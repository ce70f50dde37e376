//! The record of an event and its effect, in the caller's own transaction.

use tokio_postgres::Transaction;

use super::PostgresStore;
use crate::{EventKey, Inbox, Processed, Timestamp, meters};

#[derive(Debug, thiserror::Error)]
pub enum ProcessError<E> {
    /// What the effect said. Its record is undone, and whatever it had written.
    #[error(transparent)]
    Effect(E),
    #[error("the event's effect could not be recorded")]
    Record(#[source] tokio_postgres::Error),
}

impl Inbox<PostgresStore> {
    /// Calls `effect` unless that was done before for this event, and records it in the same transaction, which the caller
    /// commits: the effect happens once, however often the event comes and whatever dies in between.
    ///
    /// The transaction is in the inbox's own database. Of two with the same event at the same instant the second waits for the
    /// first: if that commits, it was seen before; if it is rolled back, the second runs. With `REPEATABLE READ` or `SERIALIZABLE`
    /// the second fails with a serialization error instead, and is to be tried again.
    ///
    /// ```no_run
    /// use postrider_inbox::{Event, Failure, Inbox, PostgresStore, tokio_postgres::Transaction};
    ///
    /// async fn pay(inbox: &Inbox<PostgresStore>, event: &Event) -> Result<(), Failure> {
    ///     let mut client = inbox.store().pool().get().await?;
    ///     let mut tx = client.transaction().await?;
    ///     let effect = async |tx: &mut Transaction<'_>| {
    ///         tx.execute("INSERT INTO payments VALUES ($1)", &[&event.key.id.as_str()]).await
    ///     };
    ///     inbox.process(&mut tx, &event.key, effect).await?;
    ///     Ok(tx.commit().await?)
    /// }
    /// ```
    pub async fn process<T, E>(
        &self,
        tx: &mut Transaction<'_>,
        key: &EventKey,
        effect: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<Processed<T>, ProcessError<E>> {
        process(tx, key, self.inside.clock.now(), effect).await
    }
}

/// As [`Inbox::process`], where the queue is elsewhere or there is none. [`migrate`](super::migrate) makes the table.
///
/// Its record stays until something forgets it: [`Inbox::clean`] of an inbox over the same database, which goes by the retention alone
/// where it has no such event. Let that be longer than an event may wait, or be dead, in a queue elsewhere.
pub async fn process<T, E>(
    tx: &mut Transaction<'_>,
    key: &EventKey,
    now: Timestamp,
    effect: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
) -> Result<Processed<T>, ProcessError<E>> {
    let processed = process_within(tx, key, now, effect).await?;
    meters::effect(key.source.as_str(), &processed);
    Ok(processed)
}

async fn process_within<T, E>(
    tx: &mut Transaction<'_>,
    key: &EventKey,
    now: Timestamp,
    effect: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
) -> Result<Processed<T>, ProcessError<E>> {
    // A savepoint, which is rolled back where this is left without a commit. A caller who commits in spite of an error would
    // otherwise keep the record without its effect, and lose the event.
    let mut inner = tx.transaction().await.map_err(ProcessError::Record)?;
    let written = inner
        .execute(
            "INSERT INTO postrider_inbox_effects (source, id, at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            &[&key.source.as_str(), &key.id.as_str(), &now.as_millis()],
        )
        .await
        .map_err(ProcessError::Record)?;
    if written == 0 {
        inner.rollback().await.map_err(ProcessError::Record)?;
        return Ok(Processed::SeenBefore);
    }
    match effect(&mut inner).await {
        Ok(value) => {
            inner.commit().await.map_err(ProcessError::Record)?;
            Ok(Processed::Ran(value))
        }
        Err(error) => {
            // Of the two errors the effect's own says more. If this one fails, the connection is gone and all is undone.
            drop(inner.rollback().await);
            Err(ProcessError::Effect(error))
        }
    }
}
