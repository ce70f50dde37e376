//! Ending deliveries on request, and counting what there would be to end.
//!
//! What is cancelled becomes a dead letter like any other, so that it can be found and replayed. A try that is on the
//! wire is not called back: if it arrives after all, the delivery counts as delivered.

use super::{
    Db, Result, count, execute,
    jobs::Turn,
    one, recover, row, rows,
    settle::{Runs, bury},
    small,
};
use crate::{
    Backlog, Cancelled, Committed,
    rows::{
        codes::{death_code, trigger_code},
        extra::order_of,
    },
};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    keys::{first_key_at, time_of_key},
    policy::DeathReason,
};
use std::collections::BTreeSet;

pub async fn cancel_message(
    turn: &mut Turn,
    app: AppKey,
    message: MessageKey,
    endpoint: Option<EndpointKey>,
    at: Timestamp,
) -> Result<u64> {
    let sql = "SELECT owed FROM message WHERE key = $1 AND app = $2";
    let found = row(turn.db(), sql, &[&message.raw(), &app.raw()]).await?;
    let owed: Vec<i64> = found.map_or_else(Vec::new, |row| row.get(0));
    let mut cancelled = 0;
    for owed_to in owed.into_iter().map(EndpointKey::new) {
        if endpoint.is_none_or(|endpoint| endpoint == owed_to) && cancel(turn, owed_to, message, at).await? {
            turn.announce(Committed::Cancelled { endpoint: owed_to, which: Cancelled::One(message) });
            cancelled += 1;
        }
    }
    Ok(cancelled)
}

/// Ends one delivery, if it has not ended. Telling those who hold it in memory is up to the caller.
async fn cancel(turn: &Turn, endpoint: EndpointKey, message: MessageKey, at: Timestamp) -> Result<bool> {
    let id = DeliveryId { endpoint, message, trigger: Trigger::Scheduled };
    if end_waiting(turn, id, DeathReason::Cancelled, at).await? {
        return Ok(true);
    }
    if !recover::is_handed(turn.db(), message, endpoint).await? {
        return Ok(false);
    }
    bury(turn.db(), id, DeathReason::Cancelled, at, 0).await?;
    Ok(true)
}

/// Moves what waits in a row to the dead letters. False if nothing does.
pub async fn end_waiting(turn: &Turn, id: DeliveryId, reason: DeathReason, at: Timestamp) -> Result<bool> {
    let ended = end(turn, (id.endpoint, id.trigger), &[id.message.raw()], reason, at).await?;
    Ok(ended == 1)
}

/// The same for many messages of one lane, not counting resends. Says how many waited.
pub async fn end_all_waiting(
    turn: &Turn,
    endpoint: EndpointKey,
    messages: &[i64],
    reason: DeathReason,
    at: Timestamp,
) -> Result<u64> {
    end(turn, (endpoint, Trigger::Scheduled), messages, reason, at).await
}

async fn end(
    turn: &Turn,
    (endpoint, trigger): (EndpointKey, Trigger),
    messages: &[i64],
    reason: DeathReason,
    at: Timestamp,
) -> Result<u64> {
    if messages.is_empty() {
        return Ok(0);
    }
    // What arrived once and was to go out again stays delivered.
    let gone = rows(
        turn.db(),
        "WITH gone AS (
             DELETE FROM waiting WHERE endpoint = $1 AND message = ANY($2) AND trigger_code = $3
             RETURNING endpoint, message, cycle, order_key),
         buried AS (
             INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
             SELECT gone.endpoint, gone.message, $4, $5, gone.cycle,
                 coalesce((SELECT app FROM endpoint WHERE key = $1), 0), 1
             FROM gone
             WHERE (SELECT true FROM attempt WHERE attempt.message = gone.message AND attempt.endpoint = $1
                        AND attempt.class = 0 LIMIT 1) IS NULL
             ON CONFLICT (endpoint, message) DO UPDATE
                 SET reason = excluded.reason, at = excluded.at, cycle = excluded.cycle, open = 1)
         SELECT endpoint, order_key FROM gone",
        &[&endpoint.raw(), &messages, &small(trigger_code(trigger)), &small(death_code(reason)), &at.as_millis()],
    )
    .await?;
    let mut runs = Runs::default();
    runs.note(&gone);
    runs.line_up(turn.db()).await?;
    Ok(gone.len() as u64)
}

/// Ends deliveries that are handed over and have no row. Telling those who hold them is up to the caller.
pub async fn cancel_handed(turn: &Turn, endpoint: EndpointKey, messages: &[i64], at: Timestamp) -> Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    execute(
        turn.db(),
        "INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
         SELECT $1, message, $3, $4, 0, coalesce((SELECT app FROM endpoint WHERE key = $1), 0), 1
         FROM unnest($2::bigint[]) AS handed (message)
         ON CONFLICT (endpoint, message) DO NOTHING",
        &[&endpoint.raw(), &messages, &small(death_code(DeathReason::Cancelled)), &at.as_millis()],
    )
    .await?;
    Ok(())
}

pub async fn backlog(db: &Db, endpoint: EndpointKey, since: Option<Timestamp>) -> Result<Backlog> {
    let kept_from = since.map(first_key_at);
    let found = one(
        db,
        "SELECT count(*), min(message), count(*) FILTER (WHERE message >= $2),
             count(*) FILTER (WHERE order_key IS NULL), count(DISTINCT order_key)
         FROM waiting WHERE endpoint = $1 AND trigger_code = 0",
        &[&endpoint.raw(), &kept_from],
    )
    .await?;
    let [mut waiting, mut since, unordered, ordered] = [0, 2, 3, 4].map(|column| count(found.get(column)));
    let mut oldest: Option<i64> = found.get(1);
    let mut newest_per_key = unordered + ordered;

    let handed = ordered_messages(db, &recover::handed_to(db, endpoint).await?).await?;
    let orders: BTreeSet<i64> = handed.iter().filter_map(|(_, order)| order.map(OrderKey::raw)).collect();
    newest_per_key += orders.len() as u64 - keys_that_wait(db, endpoint, &orders).await?;
    for (message, order) in handed {
        waiting += 1;
        oldest = Some(oldest.map_or(message, |oldest| oldest.min(message)));
        since += u64::from(kept_from.is_some_and(|from| message >= from));
        newest_per_key += u64::from(order.is_none());
    }
    Ok(Backlog { waiting, oldest: oldest.map(time_of_key), since: kept_from.map(|_| since), newest_per_key })
}

async fn keys_that_wait(db: &Db, endpoint: EndpointKey, orders: &BTreeSet<i64>) -> Result<u64> {
    let sql = "SELECT count(*) FROM unnest($2::bigint[]) AS handed (order_key)
         WHERE (SELECT true FROM waiting WHERE endpoint = $1 AND waiting.order_key = handed.order_key LIMIT 1)";
    let orders: Vec<i64> = orders.iter().copied().collect();
    Ok(count(one(db, sql, &[&endpoint.raw(), &orders]).await?.get(0)))
}

/// Messages with what their deliveries are ordered by, oldest first.
pub async fn ordered_messages(db: &Db, messages: &[MessageKey]) -> Result<Vec<(i64, Option<OrderKey>)>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<i64> = messages.iter().map(|message| message.raw()).collect();
    let (first, last) = ends(&keys);
    let sql = "SELECT key, extra FROM message WHERE key = ANY($1) AND key BETWEEN $2 AND $3 ORDER BY key";
    let found = rows(db, sql, &[&keys, &first, &last]).await?;
    found.iter().map(|row| Ok((row.get(0), order_of(row.get(1))?))).collect()
}

/// The least and the greatest of some keys. Only with bounds is it seen which partitions a list of keys cannot be in.
pub fn ends(keys: &[i64]) -> (i64, i64) {
    (keys.iter().copied().min().unwrap_or(i64::MAX), keys.iter().copied().max().unwrap_or(i64::MIN))
}
