//! Finds what was accepted and handed over but has no row of its own yet.
//!
//! A delivery that a message owes and that neither waits nor has ended nor was tried is in the memory of the node that
//! accepted the message. Each node notes with every commit up to which of its messages everything has a row, so that
//! only what came after that has to be looked through.

use super::{
    Db, Result, execute, one, row, rows,
    settle::{Cycle, Start, start_many},
};
use crate::rows::{extra::order_of, minter::NODES};
use postrider_engine::{DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger};

/// Deliveries that are given rows in one go.
const STEP: i64 = 5_000;

/// Of `message` and `owed.endpoint`: the delivery has no row. Written so that it is looked up message by message, in the
/// one partition that matters; NOT EXISTS would be made a join with all of them.
const HAS_NO_ROW: &str = "
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
    let through: Option<i64> = one(db, "SELECT min(settled_through) FROM node", &[]).await?.get(0);
    Ok(through.filter(|through| *through < i64::MAX).map(|through| through + 1))
}

/// Gives every delivery that a dead node held in its memory a row, and returns how many did not have one.
pub async fn recover(db: &Db, node: i64, due: Timestamp) -> Result<u64> {
    let Some(found) = row(db, "SELECT settled_through FROM node WHERE id = $1", &[&node]).await? else { return Ok(0) };
    let mut through: i64 = found.get(0);
    let mut recovered = 0;
    loop {
        let sql = format!(
            "SELECT message.key, owed.endpoint, message.extra
             FROM message CROSS JOIN LATERAL unnest(message.owed) AS owed (endpoint)
             WHERE message.key > $1 AND message.key % {NODES} = $2 AND {HAS_NO_ROW}
             ORDER BY message.key LIMIT $3"
        );
        let found = rows(db, &sql, &[&through, &node.rem_euclid(NODES), &STEP]).await?;
        let mut starts = Vec::with_capacity(found.len());
        for row in &found {
            let id = DeliveryId {
                message: MessageKey::new(row.get(0)),
                endpoint: EndpointKey::new(row.get(1)),
                trigger: Trigger::Scheduled,
            };
            starts.push(Start { id, order: order_of(row.get(2))?, due, cycle: Cycle::First });
        }
        start_many(db, &starts).await?;
        recovered += starts.len() as u64;
        if (starts.len() as i64) < STEP {
            return Ok(recovered);
        }
        // The last message may be owed to more than there was room for.
        through = starts.last().map_or(through, |last| last.id.message.raw() - 1);
    }
}

/// Ends a node: what it held gets rows, and its shards are free. Whatever it still sends is refused.
pub async fn bury_node(db: &Db, node: i64, due: Timestamp) -> Result<u64> {
    // First of all, so that it cannot write any more while the rest is done.
    if !hold_node(db, node).await? {
        return Ok(0);
    }
    let recovered = recover(db, node, due).await?;
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
