//! Bringing what waits in a lane back into memory, as much as there is room for.
//!
//! It runs in a snapshot, so that a row and its message fit together. What SQLite asks for one by one is asked for in a
//! few statements here, because each is a way to the database and back; those that do not need one another's answers go
//! out together. Where a statement names keys, each is looked up by itself (`LATERAL` with a `LIMIT`), whatever the planner
//! believes about how many there are: its figures are old while a backlog grows.

use super::{Db, Result, count, one, recover::HAS_NO_ROW, rows, settings, small};
use crate::{
    LaneFound, Letter, Loaded, Waiting,
    rows::{
        codes::{Place, trigger_code, trigger_of},
        extra::Extra,
    },
    shards::Shards,
};
use bytes::Bytes;
use futures_util::future::{try_join, try_join3};
use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp, Trigger,
    keys::time_of_key,
    policy::{Ordering, Progress},
};
use std::{sync::Arc, time::Duration};
use tokio_postgres::Row;

/// One load brings at most this much payload, whatever the number of messages.
const LOAD_BYTES_MAX: i64 = 8 * 1024 * 1024;

pub async fn load(db: &Db, endpoint: EndpointKey, ordering: Ordering, now: Timestamp, limit: usize) -> Result<Loaded> {
    let lane = Lane { db, endpoint, now: now.as_millis(), limit };
    let (mut chosen, next_due) = match ordering {
        Ordering::None => lane.without_order().await?,
        Ordering::Keyed => lane.keyed().await?,
        Ordering::Fifo => lane.fifo().await?,
    };
    let mut more = chosen.len() > limit;
    chosen.truncate(limit);
    let followers = |turns: &[Turn]| turns.iter().filter(|turn| turn.follows).count();
    let (letters, behind) = try_join(letters(db, &chosen), lane.count_behind(ordering, followers(&chosen))).await?;
    more |= letters.len() < chosen.len();
    chosen.truncate(letters.len());
    let blocked = behind > followers(&chosen);
    let mut loaded: Vec<(Turn, Arc<Letter>)> = chosen.into_iter().zip(letters).collect();
    // Nobody's turn comes before that of an earlier one of its run, so that this leaves runs in their order.
    loaded.sort_by_key(|(turn, _)| turn.at);
    Ok(Loaded {
        deliveries: loaded.into_iter().map(|(turn, letter)| turn.row.with(letter)).collect(),
        more,
        next_due: next_due.map(Timestamp::from_millis),
        blocked,
    })
}

/// One look into a lane.
///
/// First come those who wait for nobody, in the order in which they fell due; those who follow them only where room is
/// left. A long run, of which but one can be on its way at a time, would otherwise keep all others out. Every look reads
/// about as many rows as it brings, whatever waits besides.
struct Lane<'d> {
    db: &'d Db,
    endpoint: EndpointKey,
    now: i64,
    limit: usize,
}

/// One more than the limit if there are more, and when the next one falls due.
type Found = (Vec<Turn>, Option<i64>);

struct Turn {
    row: WaitingRow,
    /// When it and all before it in its run had fallen due.
    at: i64,
    /// It is not the first of its run.
    follows: bool,
}

/// Who goes one after the other.
#[derive(Clone, Copy)]
enum Run {
    Key(OrderKey),
    Lane,
}

impl Lane<'_> {
    async fn without_order(&self) -> Result<Found> {
        let places = [Place::Front, Place::Behind, Place::Beside];
        let (due, next_due) = try_join(self.due_in(&places), self.next_due_in(&places)).await?;
        Ok((self.in_turn(due), next_due))
    }

    async fn keyed(&self) -> Result<Found> {
        let places = [Place::Front, Place::Beside];
        let (due, next_due) = try_join(self.due_in(&places), self.next_due_in(&places)).await?;
        let chosen = self.in_turn(due);
        let runs = chosen.iter().enumerate().filter_map(|(index, turn)| Some((Run::Key(turn.row.order?), index)));
        let runs = runs.collect();
        Ok((self.followed(chosen, runs).await?, next_due))
    }

    async fn fifo(&self) -> Result<Found> {
        let beside = [Place::Beside];
        let (first, mut rows, next_due) =
            try_join3(self.after_in_lane(i64::MIN, 1), self.due_in(&beside), self.next_due_in(&beside)).await?;
        let (due, held): (Vec<_>, Vec<_>) = first.into_iter().partition(|row| row.due <= self.now);
        let held_until = held.first().map(|row| row.due);
        rows.extend(due);
        let chosen = self.in_turn(rows);
        let first = chosen.iter().position(|turn| turn.row.id.trigger == Trigger::Scheduled);
        let runs = first.map(|index| (Run::Lane, index)).into_iter().collect();
        Ok((self.followed(chosen, runs).await?, next_due.into_iter().chain(held_until).min()))
    }

    /// In the order in which they fell due; those of one moment by their messages.
    fn in_turn(&self, mut rows: Vec<WaitingRow>) -> Vec<Turn> {
        rows.sort_by_key(|row| (row.due, row.id.message));
        let turns = rows.into_iter().map(|row| Turn { at: row.due, row, follows: false });
        turns.take(self.limit.saturating_add(1)).collect()
    }

    /// Adds to each run its share of the room that is left, as far as it is due, until there is neither run nor room.
    async fn followed(&self, mut chosen: Vec<Turn>, mut runs: Vec<(Run, usize)>) -> Result<Vec<Turn>> {
        let full = self.limit.saturating_add(1);
        while !runs.is_empty() && chosen.len() < full {
            let share = ((full - chosen.len()) / runs.len()).max(1);
            let lasts: Vec<(Run, i64)> =
                runs.iter().map(|(run, last)| (*run, chosen[*last].row.id.message.raw())).collect();
            let mut going_on = Vec::new();
            for ((run, last), next) in runs.into_iter().zip(self.after(&lasts, share).await?) {
                let (mut at, had) = (chosen[last].at, chosen.len());
                let due = next.into_iter().take_while(|row| row.due <= self.now);
                chosen.extend(due.map(|row| {
                    at = row.due.max(at);
                    Turn { at, row, follows: true }
                }));
                if chosen.len() == had + share {
                    going_on.push((run, chosen.len() - 1));
                }
                if chosen.len() == full {
                    break;
                }
            }
            runs = going_on;
        }
        Ok(chosen)
    }

    async fn due_in(&self, places: &[Place]) -> Result<Vec<WaitingRow>> {
        let limit = settings::limit(self.limit.saturating_add(1));
        let found = rows(self.db, DUE_IN_PLACES, &[&self.endpoint.raw(), &codes(places), &self.now, &limit]).await?;
        found.iter().map(WaitingRow::read).collect()
    }

    async fn next_due_in(&self, places: &[Place]) -> Result<Option<i64>> {
        Ok(one(self.db, NEXT_DUE_IN_PLACES, &[&self.endpoint.raw(), &codes(places), &self.now]).await?.get(0))
    }

    /// For each run the next ones past a message, due or not.
    async fn after(&self, runs: &[(Run, i64)], count: usize) -> Result<Vec<Vec<WaitingRow>>> {
        let mut next: Vec<Vec<WaitingRow>> = runs.iter().map(|_| Vec::new()).collect();
        let (mut orders, mut messages, mut whose) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (run, message)) in runs.iter().enumerate() {
            match run {
                Run::Key(order) => {
                    orders.push(order.raw());
                    messages.push(*message);
                    whose.push(index);
                }
                Run::Lane => next[index] = self.after_in_lane(*message, count).await?,
            }
        }
        if !orders.is_empty() {
            let count = settings::limit(count);
            for row in rows(self.db, NEXT_OF_KEYS, &[&self.endpoint.raw(), &orders, &messages, &count]).await? {
                let number = usize::try_from(row.get::<_, i64>("number")).expect("it counts what was sent");
                next[whose[number - 1]].push(WaitingRow::read(&row)?);
            }
        }
        Ok(next)
    }

    async fn after_in_lane(&self, message: i64, count: usize) -> Result<Vec<WaitingRow>> {
        let scheduled = small(trigger_code(Trigger::Scheduled));
        let count = settings::limit(count);
        let found = rows(self.db, NEXT_OF_LANE, &[&self.endpoint.raw(), &message, &scheduled, &count]).await?;
        found.iter().map(WaitingRow::read).collect()
    }

    /// How many wait for an earlier one of their run; not counted further than one past the followers that were found.
    async fn count_behind(&self, ordering: Ordering, followers: usize) -> Result<usize> {
        let (sql, with, first, most) = match ordering {
            Ordering::None => return Ok(0),
            Ordering::Keyed => (COUNT_IN_PLACE, Place::Behind.code(), 0, followers + 1),
            // The first of them waits for nobody.
            Ordering::Fifo => (COUNT_OF_LANE, trigger_code(Trigger::Scheduled), 1, followers + 2),
        };
        let params = (self.endpoint.raw(), small(with), settings::limit(most));
        let found: i64 = one(self.db, sql, &[&params.0, &params.1, &params.2]).await?.get(0);
        Ok(usize::try_from(found).unwrap_or(0).saturating_sub(first))
    }
}

fn codes(places: &[Place]) -> Vec<i16> {
    places.iter().map(|place| small(place.code())).collect()
}

const DUE_IN_PLACES: &str = "
    SELECT found.* FROM unnest($2::smallint[]) AS given (place) CROSS JOIN LATERAL (
        SELECT * FROM waiting WHERE endpoint = $1 AND place = given.place AND due <= $3 ORDER BY due, message LIMIT $4
    ) AS found";

const NEXT_DUE_IN_PLACES: &str = "
    SELECT min(found.due) FROM unnest($2::smallint[]) AS given (place) CROSS JOIN LATERAL (
        SELECT due FROM waiting WHERE endpoint = $1 AND place = given.place AND due > $3 ORDER BY due LIMIT 1
    ) AS found";

const COUNT_IN_PLACE: &str =
    "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE endpoint = $1 AND place = $2 LIMIT $3) AS found";

const COUNT_OF_LANE: &str =
    "SELECT count(*) FROM (SELECT 1 FROM waiting WHERE endpoint = $1 AND trigger_code = $2 LIMIT $3) AS found";

const NEXT_OF_KEYS: &str = "
    SELECT given.number, found.*
    FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS given (order_key, message, number) CROSS JOIN LATERAL (
        SELECT * FROM waiting WHERE endpoint = $1 AND order_key = given.order_key AND message > given.message
        ORDER BY message LIMIT $4
    ) AS found
    ORDER BY given.number, found.message";

/// Resends among them are stepped over; there are few.
const NEXT_OF_LANE: &str = "
    SELECT * FROM waiting WHERE endpoint = $1 AND message > $2 AND trigger_code = $3 ORDER BY message LIMIT $4";

struct WaitingRow {
    id: DeliveryId,
    due: i64,
    cycle: u32,
    progress: Progress,
    queued_at: Timestamp,
    order: Option<OrderKey>,
}

impl WaitingRow {
    fn read(row: &Row) -> Result<Self> {
        let message: i64 = row.get("message");
        Ok(Self {
            id: DeliveryId {
                endpoint: EndpointKey::new(row.get("endpoint")),
                message: MessageKey::new(message),
                trigger: trigger_of(row.get::<_, i16>("trigger_code").into())?,
            },
            due: row.get("due"),
            cycle: row.get::<_, i32>("cycle").cast_unsigned(),
            progress: progress_from(row),
            queued_at: moment(row, "queued_at").unwrap_or_else(|| time_of_key(message)),
            order: row.get::<_, Option<i64>>("order_key").map(OrderKey::new),
        })
    }

    fn with(self, letter: Arc<Letter>) -> Waiting {
        let Self { id, due, cycle, progress, queued_at, order } = self;
        Waiting { id, cycle, progress, due: Timestamp::from_millis(due), queued_at, order, letter }
    }
}

fn progress_from(row: &Row) -> Progress {
    Progress {
        attempts: row.get::<_, i32>("attempts").cast_unsigned(),
        give_up_at: moment(row, "give_up_at"),
        last_delay: row.get::<_, Option<i64>>("last_delay").map(|delay| Duration::from_millis(count(delay))),
        ambiguous: row.get::<_, Option<i32>>("ambiguous").map_or(0, i32::cast_unsigned),
        ambiguous_since: moment(row, "ambiguous_since"),
    }
}

fn moment(row: &Row, column: &str) -> Option<Timestamp> {
    row.get::<_, Option<i64>>(column).map(Timestamp::from_millis)
}

/// The letters of the first of these, as many as may be brought at once.
async fn letters(db: &Db, turns: &[Turn]) -> Result<Vec<Arc<Letter>>> {
    let messages: Vec<i64> = turns.iter().map(|turn| turn.row.id.message.raw()).collect();
    let (Some(first), Some(last)) = (messages.iter().min(), messages.iter().max()) else { return Ok(Vec::new()) };
    let found = rows(db, LETTERS, &[&messages, first, last, &LOAD_BYTES_MAX]).await?;
    found.iter().zip(&messages).map(|(row, message)| Ok(Arc::new(letter_from(row, *message)?))).collect()
}

/// Messages that were passed on by another node, and to whom each is still owed. As many of the first as may be brought at
/// once; `None`: it is gone.
pub async fn passed_on(db: &Db, messages: &[i64]) -> Result<Vec<Option<(Letter, Vec<EndpointKey>)>>> {
    let (Some(first), Some(last)) = (messages.iter().min(), messages.iter().max()) else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT app, event_type, extra, payload, owed FROM (
            SELECT given.number, found.*, sum(octet_length(found.payload)) OVER (
                ORDER BY given.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS bytes_before
            FROM unnest($1::bigint[]) WITH ORDINALITY AS given (key, number) LEFT JOIN LATERAL (
                SELECT app, event_type, extra, payload,
                    ARRAY(SELECT owed.endpoint FROM unnest(message.owed) AS owed (endpoint) WHERE {HAS_NO_ROW}) AS owed
                FROM message WHERE message.key = given.key AND message.key >= $2 AND message.key <= $3 LIMIT 1
            ) AS found ON true
        ) AS wanted
        WHERE coalesce(bytes_before, 0) <= $4 ORDER BY number"
    );
    let found = rows(db, &sql, &[&messages, first, last, &LOAD_BYTES_MAX]).await?;
    let read = |(row, message): (&Row, &i64)| {
        let Some(owed) = row.get::<_, Option<Vec<i64>>>("owed") else { return Ok(None) };
        Ok(Some((letter_from(row, *message)?, owed.into_iter().map(EndpointKey::new).collect())))
    };
    found.iter().zip(messages).map(read).collect()
}

/// The bounds tell the planner which partitions to look into. A payload's length is known without reading it.
const LETTERS: &str = "
    SELECT app, event_type, extra, payload FROM (
        SELECT given.number, found.*, sum(octet_length(found.payload)) OVER (
            ORDER BY given.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS bytes_before
        FROM unnest($1::bigint[]) WITH ORDINALITY AS given (key, number) LEFT JOIN LATERAL (
            SELECT app, event_type, extra, payload FROM message
            WHERE message.key = given.key AND message.key >= $2 AND message.key <= $3 LIMIT 1
        ) AS found ON true
    ) AS wanted
    WHERE coalesce(bytes_before, 0) <= $4 ORDER BY number";

fn letter_from(row: &Row, message: i64) -> Result<Letter> {
    let key = MessageKey::new(message);
    let Some(app) = row.get::<_, Option<i64>>("app") else {
        // A message whose piece has been dropped is a letter without a payload: its delivery has outlived its time.
        return Ok(Letter {
            message: key,
            app: AppKey::new(0),
            event_type: String::new(),
            content_type: None,
            payload: None,
            accepted_at: time_of_key(message),
            order: None,
            sequences: Vec::new(),
            trace: None,
            headers: Vec::new(),
        });
    };
    let extra = Extra::read(row.get("extra"))?;
    Ok(Letter {
        message: key,
        app: AppKey::new(app),
        event_type: row.get("event_type"),
        order: extra.order(),
        content_type: extra.content_type,
        payload: row.get::<_, Option<Vec<u8>>>("payload").map(Bytes::from),
        accepted_at: time_of_key(message),
        sequences: extra.sequences.into_iter().map(|(endpoint, number)| (EndpointKey::new(endpoint), number)).collect(),
        trace: extra.trace,
        headers: Extra::passed_on(extra.received),
    })
}

/// Jumps from lane to lane along the index, so that the cost is the number of lanes and not of what waits in them. Whether
/// an order binds what waits is not looked at: a lane may be due before anything of it may be loaded.
pub async fn lanes(db: &Db, shards: Shards) -> Result<Vec<LaneFound>> {
    let places = codes(&[Place::Front, Place::Behind, Place::Beside]);
    let found = rows(db, LANES, &[&shard_numbers(shards), &places]).await?;
    let lane =
        |row: &Row| LaneFound { endpoint: EndpointKey::new(row.get(0)), next_due: Timestamp::from_millis(row.get(1)) };
    Ok(found.iter().map(lane).collect())
}

/// As `Shard::of` has them, to compare with `(app % 65521) % 256`.
pub fn shard_numbers(shards: Shards) -> Vec<i64> {
    shards.iter().map(|shard| shard.number().into()).collect()
}

const LANES: &str = "
    WITH RECURSIVE lane (endpoint) AS (
        (SELECT endpoint FROM waiting ORDER BY endpoint LIMIT 1)
        UNION ALL
        SELECT next.endpoint FROM lane CROSS JOIN LATERAL (
            SELECT waiting.endpoint FROM waiting WHERE waiting.endpoint > lane.endpoint
            ORDER BY waiting.endpoint LIMIT 1
        ) AS next
    )
    SELECT lane.endpoint, min(found.due)
    FROM lane JOIN endpoint ON endpoint.key = lane.endpoint CROSS JOIN unnest($2::smallint[]) AS given (place)
    CROSS JOIN LATERAL (
        SELECT due FROM waiting WHERE waiting.endpoint = lane.endpoint AND waiting.place = given.place
        ORDER BY due LIMIT 1
    ) AS found
    WHERE (endpoint.app % 65521) % 256 = ANY ($1::bigint[])
    GROUP BY lane.endpoint ORDER BY lane.endpoint";

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::postgres::{DatabaseUrl, PostgresOptions, connect::migrate, execute};
    use deadpool_postgres::Client;
    use postrider_testbed::Cluster;
    use tokio_postgres::SimpleQueryMessage;

    /// A connection as the store makes them.
    pub async fn connect() -> Client {
        let url: DatabaseUrl = Cluster::shared().fresh_database().await.parse().unwrap();
        migrate(&url, &PostgresOptions::default()).await.unwrap();
        url.pool(&PostgresOptions::default(), 1).unwrap().get().await.unwrap()
    }

    /// Makes the planner believe that a table has a million rows, about which it knows nothing else.
    pub async fn seem_grown(db: &Db, table: &str) {
        let sql = "UPDATE pg_class SET reltuples = 1000000, relpages = pg_relation_size(oid) / 8192 WHERE relname = $1";
        assert_eq!(execute(db, sql, &[&table]).await.unwrap(), 1);
        db.batch_execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await.unwrap();
    }

    /// How a statement is carried out: with these arguments known, and without.
    pub async fn plans(db: &Db, sql: &str, arguments: &str) -> Vec<String> {
        let mut plans = Vec::new();
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let prepare = format!("SET plan_cache_mode = {mode}; DEALLOCATE ALL; PREPARE asked AS {sql}");
            db.batch_execute(&prepare).await.unwrap();
            let steps = db.simple_query(&format!("EXPLAIN (COSTS OFF) EXECUTE asked ({arguments})")).await.unwrap();
            let steps = steps.iter().filter_map(|step| match step {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            plans.push(steps.collect::<Vec<_>>().join("\n"));
        }
        plans
    }

    /// Also when a lane has grown and PostgreSQL has not counted it yet: each step of a load is one way down an index, and
    /// what waits is not sorted.
    #[tokio::test]
    async fn a_load_reads_no_more_than_it_brings() {
        let db = connect().await;
        let some = "
            INSERT INTO waiting (endpoint, message, trigger_code, due, cycle, attempts, order_key, place)
            SELECT 1, number, 0, number, 0, 0, number % 9, 0 FROM generate_series(1, 1000) AS number";
        db.batch_execute(some).await.unwrap();
        seem_grown(&db, "waiting").await;
        for (sql, arguments, index, condition) in [
            (DUE_IN_PLACES, "1, '{0}', 9000, 500", "waiting_due", "(place = given.place) AND (due <= "),
            (NEXT_DUE_IN_PLACES, "1, '{0}', 9000", "waiting_due", "(place = given.place) AND (due > "),
            (COUNT_IN_PLACE, "1, 0::smallint, 500", "waiting_due", "(place = "),
            (COUNT_OF_LANE, "1, 0::smallint, 500", "waiting_pkey", "(endpoint = "),
            (NEXT_OF_KEYS, "1, '{1}', '{1}', 500", "waiting_order", "(order_key = given.order_key) AND (message > "),
            (NEXT_OF_LANE, "1, 9000, 0::smallint, 500", "waiting_pkey", "(message > "),
            (LANES, "'{0}', '{0}'", "waiting_due", "(endpoint = lane.endpoint) AND (place = given.place)"),
        ] {
            for plan in plans(&db, sql, arguments).await {
                assert!(plan.contains(&format!("using {index} on waiting")), "{sql}: {plan}");
                assert!(plan.contains(condition), "{sql}: {plan}");
                assert!(!plan.contains("Seq Scan on waiting") && !plan.contains("Bitmap"), "{sql}: {plan}");
                assert!(!plan.contains("Sort Key: waiting.due"), "{sql}: {plan}");
            }
        }
    }
}
