//! What the metrics show of the store.
//!
//! Each node counts what is in the shards that it serves: so the sum over all nodes is what there is, and the work is
//! shared as well. It reads an index and no rows, as far as these have not been changed just now; still it takes as long
//! as there is much, and whoever asks has to see to it that he does not ask too often.

use super::{Db, Result, count, load::shard_numbers, one};
use crate::{Counts, shards::Shards};

pub async fn counts(db: &Db, shards: Shards) -> Result<Counts> {
    let shards = shard_numbers(shards);
    if shards.is_empty() {
        return Ok(Counts::default());
    }
    let waiting = one(db, COUNT_WAITING, &[&shards]).await?;
    let dead = one(db, COUNT_DEAD, &[&shards]).await?;
    Ok(Counts { waiting: count(waiting.get(0)), dead: count(dead.get(0)) })
}

/// Jumps from lane to lane, and counts those that lie in the shards.
const COUNT_WAITING: &str = "
    WITH RECURSIVE lane (endpoint) AS (
        (SELECT endpoint FROM waiting ORDER BY endpoint LIMIT 1)
        UNION ALL
        SELECT next.endpoint FROM lane CROSS JOIN LATERAL (
            SELECT waiting.endpoint FROM waiting WHERE waiting.endpoint > lane.endpoint
            ORDER BY waiting.endpoint LIMIT 1
        ) AS next
    )
    SELECT coalesce(sum(found.rows), 0)::bigint
    FROM lane JOIN endpoint ON endpoint.key = lane.endpoint CROSS JOIN LATERAL (
        SELECT count(*) AS rows FROM waiting WHERE waiting.endpoint = lane.endpoint
    ) AS found
    WHERE (endpoint.app % 65521) % 256 = ANY ($1::bigint[])";

/// The same from application to application.
const COUNT_DEAD: &str = "
    WITH RECURSIVE tenant (app) AS (
        (SELECT app FROM dead WHERE open = 1 ORDER BY app LIMIT 1)
        UNION ALL
        SELECT next.app FROM tenant CROSS JOIN LATERAL (
            SELECT dead.app FROM dead WHERE dead.app > tenant.app AND open = 1 ORDER BY dead.app LIMIT 1
        ) AS next
    )
    SELECT coalesce(sum(found.rows), 0)::bigint
    FROM tenant CROSS JOIN LATERAL (
        SELECT count(*) AS rows FROM dead WHERE dead.app = tenant.app AND open = 1
    ) AS found
    WHERE (tenant.app % 65521) % 256 = ANY ($1::bigint[])";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        postgres::load::tests::{connect, plans, seem_grown},
        shards::Shard,
    };
    use postrider_engine::AppKey;

    /// Two applications in different shards: the first with 3 that wait in two lanes and 2 dead letters, the second with
    /// 4 and 1. Another letter has been replayed.
    const ROWS: &str = "
        INSERT INTO endpoint (key, app, version, url, description, metadata, sealed, created_at, updated_at)
        SELECT key, 1000 + key % 2, 1, '', '', '{}', '', 0, 0 FROM generate_series(1, 4) AS key;
        INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, place)
        SELECT lane, message, 0, 0, 0, 0, 0
        FROM (VALUES (2, 1), (4, 2), (1, 4)) AS given (lane, many), generate_series(1, many) AS message;
        INSERT INTO dead (endpoint, message, reason, at, cycle, app, open)
        VALUES (2, 7, 0, 0, 0, 1000, 1), (4, 7, 0, 0, 0, 1000, 1), (2, 8, 0, 0, 0, 1000, 0), (1, 7, 0, 0, 0, 1001, 1)";

    #[tokio::test]
    async fn each_shard_is_counted_once() {
        let db = connect().await;
        assert_eq!(counts(&db, Shards::ALL).await.unwrap(), Counts::default());
        db.batch_execute(ROWS).await.unwrap();
        let shard_of = |app| [Shard::of(AppKey::new(app))].into_iter().collect::<Shards>();
        for (shards, waiting, dead) in [
            (shard_of(1000), 3, 2),
            (shard_of(1001), 4, 1),
            (Shards::ALL.without(shard_of(1001)), 3, 2),
            (Shards::ALL, 7, 3),
            (Shards::NONE, 0, 0),
        ] {
            assert_eq!(counts(&db, shards).await.unwrap(), Counts { waiting, dead }, "{shards:?}");
        }
    }

    #[tokio::test]
    async fn an_index_is_enough_to_count() {
        let db = connect().await;
        db.batch_execute(ROWS).await.unwrap();
        seem_grown(&db, "waiting").await;
        seem_grown(&db, "dead").await;
        for (sql, table) in [(COUNT_WAITING, "waiting"), (COUNT_DEAD, "dead")] {
            for plan in plans(&db, sql, "'{0}'").await {
                let ways = plan.lines().filter(|step| step.contains(&format!(" on {table}")));
                let ways: Vec<bool> = ways.map(|step| step.contains("Index Only Scan")).collect();
                assert_eq!(ways, [true; 3], "{plan}");
            }
        }
    }
}
