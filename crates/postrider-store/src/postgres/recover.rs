//! Finds what was accepted and handed over but has no row of its own yet.
//!
//! A delivery that a message owes and that neither waits nor has ended nor was tried is handed over: it is in the memory of
//! the node that serves the application, or has been passed on to that node, which has not read it yet. Each node notes
//! with every commit up to which message all that it holds has a row, so that only what came after that has to be looked
//! through, besides what was passed on.

use super::{
    Db, Result, execute, news, one, row, rows,
    settle::{Cycle, Start, start_many},
};
use crate::rows::extra::order_of;
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger, keys::time_of_key};
use tokio_postgres::Row;

/// Deliveries that are given rows in one go.
const STEP: i64 = 5_000;

/// Of `message` and `owed.endpoint`: the delivery has no row. Written so that it is looked up message by message, in the
/// one partition that matters; NOT EXISTS would be made a join with all of them.
pub const HAS_NO_ROW: &str = "
    (SELECT 1 FROM waiting WHERE waiting.endpoint = owed.endpoint AND waiting.message = message.key
         AND waiting.trigger_code = 0 LIMIT 1) IS NULL
    AND (SELECT 1 FROM dead WHERE dead.endpoint = owed.endpoint AND dead.message = message.key LIMIT 1) IS NULL
    AND (SELECT 1 FROM attempt WHERE attempt.message = message.key AND attempt.endpoint = owed.endpoint
         AND (attempt.trigger_code = 0 OR attempt.class = 0) LIMIT 1) IS NULL";

/// Whether the delivery is handed over, at whichever node, and has no row yet.
pub async fn is_handed(db: &Db, message: MessageKey, endpoint: EndpointKey) -> Result<bool> {
    let sql = format!(
        "SELECT 1 FROM message CROSS JOIN (SELECT $2::bigint AS endpoint) AS owed
         WHERE message.key = $1 AND owed.endpoint = ANY(message.owed) AND {HAS_NO_ROW}"
    );
    Ok(row(db, &sql, &[&message.raw(), &endpoint.raw()]).await?.is_some())
}

/// The messages whose delivery to this endpoint is handed over and has no row yet, oldest first.
pub async fn handed_to(db: &Db, endpoint: EndpointKey) -> Result<Vec<MessageKey>> {
    let Some(oldest) = oldest_handed(db).await? else { return Ok(Vec::new()) };
    let sql = format!("{HANDED_TO} AND {HAS_NO_ROW} ORDER BY message.key");
    let found = rows(db, &sql, &[&oldest, &endpoint.raw()]).await?;
    Ok(found.iter().map(|row| MessageKey::new(row.get(0))).collect())
}

/// Of the one application whose messages the endpoint can be owed: what the others sent meanwhile may be very much.
const HANDED_TO: &str = "
    SELECT message.key FROM message CROSS JOIN (SELECT $2::bigint AS endpoint) AS owed
    WHERE message.app = (SELECT app FROM endpoint WHERE endpoint.key = $2) AND message.key >= $1
        AND owed.endpoint = ANY(message.owed)";

/// No message before this one has a delivery without a row. `None`: none has.
pub async fn oldest_handed(db: &Db) -> Result<Option<i64>> {
    let sql = "SELECT least(min(settled_through), (SELECT min(subject) - 1 FROM news WHERE kind = $1)) FROM node";
    let through: Option<i64> = one(db, sql, &[&news::MESSAGE]).await?.get(0);
    Ok(through.filter(|through| *through < i64::MAX).map(|through| through + 1))
}

/// Gives every delivery a row that a node holds, or that was passed on to it, of these shards. They are the node's own:
/// what it holds is always of such. Returns how many did not have one. In a turn.
pub async fn give_rows(db: &Db, node: i64, shards: &[i16], due: Due) -> Result<u64> {
    let Some(found) = row(db, "SELECT settled_through FROM node WHERE id = $1", &[&node]).await? else { return Ok(0) };
    let through: i64 = found.get(0);
    let held = format!(
        "SELECT message.key, message.key AS message, owed.endpoint, message.extra
         FROM message CROSS JOIN LATERAL unnest(message.owed) AS owed (endpoint)
         WHERE message.key >= $1 AND (message.app % 65521) % 256 = ANY($2::smallint[]) AND {HAS_NO_ROW}
         ORDER BY message.key LIMIT $3"
    );
    let passed_on = format!(
        "SELECT news.id, message.key AS message, owed.endpoint, message.extra
         FROM news CROSS JOIN LATERAL (SELECT key, extra, owed FROM message WHERE key = news.subject LIMIT 1) AS message
         CROSS JOIN LATERAL unnest(message.owed) AS owed (endpoint)
         WHERE news.id >= $1 AND news.shard = ANY($2) AND news.node = $4 AND news.kind = $5 AND {HAS_NO_ROW}
         ORDER BY news.id LIMIT $3"
    );
    let mut given = 0;
    for (place, first) in [(Place::Memory, through.saturating_add(1)), (Place::News, 0)] {
        // Step by step, each from where the last one ended.
        let mut from = first;
        loop {
            let found = match place {
                Place::Memory => rows(db, &held, &[&from, &shards, &STEP]).await?,
                Place::News => rows(db, &passed_on, &[&from, &shards, &STEP, &node, &news::MESSAGE]).await?,
            };
            start(db, &found, due).await?;
            given += found.len() as u64;
            match found.last() {
                Some(last) if found.len() as i64 == STEP => from = last.get(0),
                _ => break,
            }
        }
    }
    execute(db, "DELETE FROM news WHERE node = $1 AND shard = ANY($2)", &[&node, &shards]).await?;
    Ok(given)
}

/// Where a delivery that has no row is.
#[derive(Clone, Copy)]
enum Place {
    Memory,
    News,
}

/// When a delivery that is given a row falls due.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    At(Timestamp),
    /// When its message was accepted. Its key may say later than now, if a clock was ahead once.
    AsAccepted {
        now: Timestamp,
    },
}

async fn start(db: &Db, found: &[Row], due: Due) -> Result<()> {
    let mut starts = Vec::with_capacity(found.len());
    for row in found {
        let message: i64 = row.get("message");
        let id = DeliveryId {
            message: MessageKey::new(message),
            endpoint: EndpointKey::new(row.get("endpoint")),
            trigger: Trigger::Scheduled,
        };
        let due = match due {
            Due::At(due) => due,
            Due::AsAccepted { now } => time_of_key(message).min(now),
        };
        starts.push(Start { id, order: order_of(row.get("extra"))?, due, cycle: Cycle::First });
    }
    start_many(db, &starts).await
}

/// Ends a node: what it held gets rows, and its shards are free. Whatever it still sends is refused.
pub async fn bury_node(db: &Db, node: i64, due: Timestamp) -> Result<u64> {
    // First of all, so that it cannot write any more while the rest is done.
    if !hold_node(db, node).await? {
        return Ok(0);
    }
    let shards: Vec<i16> =
        rows(db, "SELECT number FROM shard WHERE node = $1", &[&node]).await?.iter().map(|row| row.get(0)).collect();
    let recovered = give_rows(db, node, &shards, Due::At(due)).await?;
    execute(db, "UPDATE cluster SET minted = greatest(minted, (SELECT minted FROM node WHERE id = $1))", &[&node])
        .await?;
    execute(db, "UPDATE shard SET node = NULL WHERE node = $1", &[&node]).await?;
    execute(db, "DELETE FROM news WHERE node = $1", &[&node]).await?;
    execute(db, "DELETE FROM lease WHERE node = $1", &[&node]).await?;
    execute(db, "DELETE FROM node WHERE id = $1", &[&node]).await?;
    Ok(recovered)
}

/// Keeps a node from writing and from renewing its lease until the end of the transaction. False if it is gone.
pub async fn hold_node(db: &Db, node: i64) -> Result<bool> {
    Ok(row(db, "SELECT 1 FROM node WHERE id = $1 FOR UPDATE", &[&node]).await?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{
        load::tests::{connect, plans, seem_grown},
        pieces,
    };
    use postrider_engine::keys::first_key_at;
    use std::time::Duration;

    /// Whatever other applications send meanwhile.
    #[tokio::test]
    async fn what_is_handed_to_an_endpoint_is_looked_for_in_its_application() {
        let db = connect().await;
        let key = first_key_at(Timestamp::from_millis(1_800_000_000_000));
        pieces::ensure(&db, key, Duration::from_hours(24)).await.unwrap();
        seem_grown(&db, "message_1").await;
        for plan in
            plans(&db, &format!("{HANDED_TO} AND {HAS_NO_ROW} ORDER BY message.key"), &format!("{key}, 1")).await
        {
            assert!(plan.contains("using message_1_app_key_idx"), "{plan}");
            assert!(!plan.contains("Sort") && !plan.contains("message_1_pkey"), "{plan}");
        }
    }
}
