//! How endpoints fare. Only those that are not in perfect health have a row.

use postrider_engine::{
    EndpointKey, Timestamp,
    policy::{Breaker, Health},
};
use rusqlite::{Connection, Row};

pub fn put(connection: &Connection, endpoint: EndpointKey, health: Health) -> rusqlite::Result<()> {
    if health == Health::default() {
        return forget(connection, endpoint);
    }
    let (failures, open_until, trips) = match health.breaker {
        Breaker::Closed { failures } => (failures, None, 0),
        Breaker::Open { until, trips } => (0, Some(until.as_millis()), trips),
    };
    connection
        .prepare_cached(
            // What comes in for an endpoint that was deleted meanwhile would stay for ever.
            "INSERT OR REPLACE INTO health SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
             WHERE EXISTS (SELECT 1 FROM endpoint WHERE key = ?1 AND deleted_at IS NULL)",
        )?
        .execute((
            endpoint.raw(),
            failures,
            open_until,
            trips,
            health.failing_since.map(Timestamp::as_millis),
            health.permanent_streak,
            health.warned,
        ))?;
    Ok(())
}

pub fn forget(connection: &Connection, endpoint: EndpointKey) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM health WHERE endpoint = ?1")?.execute([endpoint.raw()])?;
    Ok(())
}

pub fn of(connection: &Connection, endpoint: EndpointKey) -> rusqlite::Result<Health> {
    let found = super::optional(
        connection.prepare_cached("SELECT * FROM health WHERE endpoint = ?1")?.query_row([endpoint.raw()], health_from),
    )?;
    Ok(found.unwrap_or_default())
}

pub fn all(connection: &Connection) -> rusqlite::Result<Vec<(EndpointKey, Health)>> {
    connection
        .prepare_cached("SELECT * FROM health ORDER BY endpoint")?
        .query_map([], |row| Ok((EndpointKey::new(row.get("endpoint")?), health_from(row)?)))?
        .collect()
}

fn health_from(row: &Row<'_>) -> rusqlite::Result<Health> {
    let moment =
        |column: &str| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_millis));
    Ok(Health {
        breaker: match moment("open_until")? {
            Some(until) => Breaker::Open { until, trips: row.get("trips")? },
            None => Breaker::Closed { failures: row.get("failures")? },
        },
        failing_since: moment("failing_since")?,
        permanent_streak: row.get("permanent_streak")?,
        warned: row.get("warned")?,
    })
}
