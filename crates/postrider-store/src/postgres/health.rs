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
