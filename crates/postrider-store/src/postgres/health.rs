//! How endpoints fare. Only those that are not in perfect health have a row.

use super::{Db, Result, execute, load::shard_numbers, row, rows};
use crate::shards::Shards;
use postrider_engine::{
    EndpointKey, Timestamp,
    policy::{Breaker, Health},
};
use std::collections::BTreeMap;
use tokio_postgres::Row;

/// The last one of an endpoint counts.
pub async fn put_many(db: &Db, healths: &[(EndpointKey, Health)]) -> Result<()> {
    let newest: BTreeMap<EndpointKey, Health> = healths.iter().copied().collect();
    if newest.is_empty() {
        return Ok(());
    }
    let mut well = Vec::new();
    let mut unwell = Columns::default();
    for (endpoint, health) in newest {
        match health == Health::default() {
            true => well.push(endpoint.raw()),
            false => unwell.push(endpoint, health),
        }
    }
    let Columns { endpoints, failures, open_untils, trips, failing_sinces, permanent_streaks, warned } = &unwell;
    execute(db, PUT, &[endpoints, failures, open_untils, trips, failing_sinces, permanent_streaks, warned, &well])
        .await?;
    Ok(())
}

/// What comes in for an endpoint that was deleted meanwhile would stay for ever.
const PUT: &str = "
    WITH recovered AS (DELETE FROM health WHERE endpoint = ANY ($8::bigint[]))
    INSERT INTO health (endpoint, failures, open_until, trips, failing_since, permanent_streak, warned)
    SELECT given.* FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::integer[], $5::bigint[], $6::integer[],
        $7::boolean[]) AS given (endpoint, failures, open_until, trips, failing_since, permanent_streak, warned)
    WHERE EXISTS (SELECT 1 FROM endpoint WHERE endpoint.key = given.endpoint AND endpoint.deleted_at IS NULL)
    ON CONFLICT (endpoint) DO UPDATE SET failures = excluded.failures, open_until = excluded.open_until,
        trips = excluded.trips, failing_since = excluded.failing_since, permanent_streak = excluded.permanent_streak,
        warned = excluded.warned";

#[derive(Default)]
struct Columns {
    endpoints: Vec<i64>,
    failures: Vec<i32>,
    open_untils: Vec<Option<i64>>,
    trips: Vec<i32>,
    failing_sinces: Vec<Option<i64>>,
    permanent_streaks: Vec<i32>,
    warned: Vec<bool>,
}

impl Columns {
    fn push(&mut self, endpoint: EndpointKey, health: Health) {
        let (failures, open_until, trips) = match health.breaker {
            Breaker::Closed { failures } => (failures, None, 0),
            Breaker::Open { until, trips } => (0, Some(until.as_millis()), trips),
        };
        self.endpoints.push(endpoint.raw());
        self.failures.push(failures.cast_signed());
        self.open_untils.push(open_until);
        self.trips.push(trips.cast_signed());
        self.failing_sinces.push(health.failing_since.map(Timestamp::as_millis));
        self.permanent_streaks.push(health.permanent_streak.cast_signed());
        self.warned.push(health.warned);
    }
}

pub async fn forget(db: &Db, endpoint: EndpointKey) -> Result<()> {
    execute(db, "DELETE FROM health WHERE endpoint = $1", &[&endpoint.raw()]).await?;
    Ok(())
}

pub async fn of(db: &Db, endpoint: EndpointKey) -> Result<Health> {
    let found = row(db, "SELECT * FROM health WHERE endpoint = $1", &[&endpoint.raw()]).await?;
    Ok(found.as_ref().map(health_from).unwrap_or_default())
}

pub async fn all(db: &Db, shards: Shards) -> Result<Vec<(EndpointKey, Health)>> {
    let sql = "SELECT health.* FROM health JOIN endpoint ON endpoint.key = health.endpoint
        WHERE (endpoint.app % 65521) % 256 = ANY ($1::bigint[]) ORDER BY health.endpoint";
    let found = rows(db, sql, &[&shard_numbers(shards)]).await?;
    Ok(found.iter().map(|row| (EndpointKey::new(row.get("endpoint")), health_from(row))).collect())
}

fn health_from(row: &Row) -> Health {
    let moment = |column: &str| row.get::<_, Option<i64>>(column).map(Timestamp::from_millis);
    let number = |column: &str| row.get::<_, i32>(column).cast_unsigned();
    Health {
        breaker: match moment("open_until") {
            Some(until) => Breaker::Open { until, trips: number("trips") },
            None => Breaker::Closed { failures: number("failures") },
        },
        failing_since: moment("failing_since"),
        permanent_streak: number("permanent_streak"),
        warned: row.get("warned"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{postgres::load, postgres::load::tests::connect, shards::Shard};
    use postrider_engine::AppKey;

    fn failing(failures: u32) -> Health {
        Health { breaker: Breaker::Closed { failures }, ..Health::default() }
    }

    #[tokio::test]
    async fn of_many_healths_of_an_endpoint_the_last_one_counts() {
        let db = connect().await;
        let [one, other, deleted] = [1, 2, 3].map(EndpointKey::new);
        db.batch_execute(&format!("{ENDPOINTS}; UPDATE endpoint SET deleted_at = 0 WHERE key = 3")).await.unwrap();
        for (put, expected) in [
            (vec![(one, failing(1)), (other, failing(2)), (deleted, failing(3))], vec![(one, 1), (other, 2)]),
            (vec![(one, failing(4)), (one, failing(5)), (other, Health::default())], vec![(one, 5)]),
            (
                vec![(one, Health::default()), (other, Health::default()), (other, failing(u32::MAX))],
                vec![(other, u32::MAX)],
            ),
            (vec![], vec![(other, u32::MAX)]),
        ] {
            put_many(&db, &put).await.unwrap();
            let expected: Vec<_> =
                expected.into_iter().map(|(endpoint, failures)| (endpoint, failing(failures))).collect();
            assert_eq!(all(&db, Shards::ALL).await.unwrap(), expected, "after {put:?}");
        }
    }

    #[tokio::test]
    async fn only_lanes_of_the_shards_that_were_asked_for_are_told() {
        let db = connect().await;
        db.batch_execute(ENDPOINTS).await.unwrap();
        let waiting = "INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, place)
            SELECT key, message, 0, 100 * key + message, 0, 0, message % 3 FROM endpoint, generate_series(0, 5) AS message";
        db.batch_execute(waiting).await.unwrap();
        let endpoints = [1, 2, 3].map(EndpointKey::new);
        put_many(&db, &endpoints.map(|endpoint| (endpoint, failing(1)))).await.unwrap();
        let [even, odd] = [0, 1].map(|app| [Shard::of(AppKey::new(APP + app))].into_iter().collect::<Shards>());
        for (shards, expected) in
            [(Shards::ALL, vec![1, 2, 3]), (even, vec![2]), (odd, vec![1, 3]), (Shards::NONE, vec![])]
        {
            let healths: Vec<i64> =
                all(&db, shards).await.unwrap().iter().map(|(endpoint, _)| endpoint.raw()).collect();
            assert_eq!(healths, expected, "{shards:?}");
            let lanes = load::lanes(&db, shards).await.unwrap();
            let lanes: Vec<_> = lanes.iter().map(|lane| (lane.endpoint.raw(), lane.next_due.as_millis())).collect();
            assert_eq!(lanes, expected.iter().map(|key| (*key, 100 * key)).collect::<Vec<_>>(), "{shards:?}");
        }
    }

    const APP: i64 = 1_800_000_000_000 << 21;

    /// Three, of two applications in different shards.
    const ENDPOINTS: &str = "
        INSERT INTO endpoint (key, app, version, url, description, metadata, sealed, created_at, updated_at)
        SELECT key, (1800000000000 << 21) + key % 2, 1, '', '', '{}', '', 0, 0 FROM generate_series(1, 3) AS key";
}
