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
use futures_util::future::try_join;
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
    let (cause, reason) = (small(trigger_code(trigger)), small(death_code(reason)));
    let gone = rows(turn.db(), END, &[&endpoint.raw(), &messages, &cause, &reason, &at.as_millis()]).await?;
    let mut runs = Runs::default();
    runs.note(&gone);
    runs.line_up(turn.db()).await?;
    Ok(gone.len() as u64)
}

/// Each is looked up by itself: where a lane has grown and was not counted since, the planner would go through all of it.
/// Nobody else writes meanwhile, so that what is found stays where it is.
///
/// What arrived once and was to go out again stays delivered.
const END: &str = "
    WITH gone AS (
        DELETE FROM waiting WHERE ctid = ANY (ARRAY(
            SELECT found.ctid FROM unnest($2::bigint[]) AS given (message) CROSS JOIN LATERAL (
                SELECT ctid FROM waiting AS lane
                WHERE lane.endpoint = $1 AND lane.message = given.message AND lane.trigger_code = $3 LIMIT 1
            ) AS found))
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
    SELECT endpoint, order_key FROM gone";

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
    let (lane, runs) =
        try_join(one(db, COUNT_LANE, &[&endpoint.raw(), &kept_from]), one(db, COUNT_RUNS, &[&endpoint.raw()])).await?;
    let [mut waiting, mut since] = [0, 2].map(|column| count(lane.get(column)));
    let mut oldest: Option<i64> = lane.get(1);
    let [ordered, keys] = [0, 1].map(|column| count(runs.get(column)));
    let mut newest_per_key = waiting.saturating_sub(ordered) + keys;

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

/// Each asks for no more than its index holds, so that the rows themselves need not be read.
const COUNT_LANE: &str = "
    SELECT count(*), min(message), count(*) FILTER (WHERE message >= $2)
    FROM waiting WHERE endpoint = $1 AND trigger_code = 0";

/// What is ordered, and by how many keys; no order binds a resend.
const COUNT_RUNS: &str = "
    SELECT coalesce(sum(length), 0)::bigint, count(*) FROM (
        SELECT count(*) AS length FROM waiting WHERE endpoint = $1 AND order_key IS NOT NULL GROUP BY order_key
    ) AS run";

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::load::tests::{connect, plans, seem_grown};

    const LANE: &str = "
        INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, order_key, place)
        SELECT 1, number, 0, number, 0, 0, number % 9, 0 FROM generate_series(1, 1000) AS number";

    /// Also when PostgreSQL has not counted it yet.
    #[tokio::test]
    async fn of_a_long_lane_only_what_ends_is_read() {
        let db = connect().await;
        db.batch_execute(LANE).await.unwrap();
        seem_grown(&db, "waiting").await;
        for plan in plans(&db, END, "1, '{1,2,3}', 0::smallint, 0::smallint, 0").await {
            assert!(plan.contains("(message = given.message)") && plan.contains("Tid Scan on waiting"), "{plan}");
            assert!(!plan.contains("Seq Scan on waiting"), "{plan}");
        }
    }

    /// The rows of a backlog are many, and wide; its indexes are not.
    #[tokio::test]
    async fn a_backlog_is_counted_in_its_indexes() {
        let db = connect().await;
        db.batch_execute(LANE).await.unwrap();
        seem_grown(&db, "waiting").await;
        for (sql, arguments, index) in [(COUNT_LANE, "1, 2", "waiting_pkey"), (COUNT_RUNS, "1", "waiting_order")] {
            for plan in plans(&db, sql, arguments).await {
                assert!(plan.contains(&format!("Index Only Scan using {index} on waiting")), "{plan}");
                assert!(!plan.contains("Sort"), "{plan}");
            }
        }
    }
}
