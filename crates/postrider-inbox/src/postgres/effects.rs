//! The record of an event and its effect, in the caller's own transaction.

use tokio_postgres::{GenericClient, Transaction};

use super::{FORGET_EFFECTS, PostgresStore};
use crate::{EventKey, Inbox, Processed, StoreError, Timestamp, meters};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
/// Its record stays until something forgets it: [`clean_effects`], or [`Inbox::clean`] of an inbox over the same database.
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

/// Forgets up to `max` effects that were recorded before `before`, and says how many: for those who use [`process`] without an
/// inbox, which cleans by itself. Call it from time to time, until it says 0.
///
/// **`before` must be older than any event that can still come again.** What is forgotten and comes after all has its effect a second
/// time: a sender's last attempt (Postrider's within four days by default and thirty at most), what people send again later, and whatever
/// waits or is dead in a queue elsewhere. Only of an inbox in this database is it known what waits or is dead, and such effects stay.
///
/// ```no_run
/// use std::time::Duration;
/// use postrider_inbox::{Clock, StoreError, SystemClock, postgres::clean_effects, tokio_postgres::Client};
///
/// async fn clean(client: &Client) -> Result<(), StoreError> {
///     let before = SystemClock.now().before(Duration::from_hours(24 * 30));
///     while clean_effects(client, before, 500).await? > 0 {}
///     Ok(())
/// }
/// ```
pub async fn clean_effects(client: &impl GenericClient, before: Timestamp, max: usize) -> Result<usize, StoreError> {
    Ok(client.execute(FORGET_EFFECTS, &[&before.as_millis(), &(max as i64)]).await? as usize)
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
