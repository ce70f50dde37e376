//! Reading on from a place, and the places that consumers have come to.

use super::{
    Db, Result, execute,
    history::read_messages,
    jobs::Turn,
    one, row, rows,
    settings::{self, limit},
};
use crate::{
    CONSUMERS_MAX, Consumer, PollerKey, PutError, ReadOn, Remember, StoreError, Stride, WasRead, Way,
    pollers::{Look, Reading},
    rows::extra::Extra,
};
use postrider_engine::{AppKey, MessageKey, Timestamp, keys::first_key_at};
use std::time::Duration;
use tokio_postgres::Row;

/// How far messages can be read, as it was last found out, and when.
#[derive(Default)]
pub struct Horizon(tokio::sync::Mutex<Option<(Timestamp, MessageKey)>>);

impl Horizon {
    /// One raises it, and the others wait for that. After a while only: it takes a turn.
    pub async fn see(
        &self,
        now: Timestamp,
        raise: impl AsyncFnOnce() -> Result<MessageKey, StoreError>,
    ) -> Result<MessageKey, StoreError> {
        let mut seen = self.0.lock().await;
        if let Some((at, horizon)) = *seen
            && (at..at.plus(RAISED_EVERY)).contains(&now)
        {
            return Ok(horizon);
        }
        let horizon = raise().await?;
        *seen = Some((now, horizon));
        Ok(horizon)
    }
}

/// Nodes write at the same time, and what one commits later can have the smaller key. So the floor is raised, but not up to
/// now: what is being written just then would have to be written again with greater keys. If the floor is ahead of the clock
/// that would not raise it, and nothing that comes would be seen until then; in that case it is raised to what there is.
pub async fn raise_horizon(turn: &Turn, now: Timestamp) -> Result<MessageKey> {
    let sql = "UPDATE cluster SET floor =
             greatest(floor, $1, CASE WHEN floor >= $1 THEN (SELECT max(key) FROM message) END)
         RETURNING floor";
    Ok(MessageKey::new(one(turn.db(), sql, &[&first_key_at(now.minus(BEHIND))]).await?.get(0)))
}

const BEHIND: Duration = Duration::from_millis(500);
const RAISED_EVERY: Duration = Duration::from_secs(1);

/// Rows fetched at once.
const STEP: usize = 500;

pub async fn read_on(db: &Db, app: AppKey, wanted: &ReadOn) -> Result<WasRead> {
    // The payloads are read afterwards, and only those that are given.
    let sql = "SELECT key, event_type, extra, coalesce(octet_length(payload), 0) AS size FROM message
         WHERE app = $1 AND key > $2 AND key <= $3 ORDER BY key LIMIT $4";
    let (mut reading, mut taken) = (Reading::of(wanted), Vec::new());
    let mut past = wanted.past.raw();
    loop {
        // One more than can be looked at, so that it is known whether there is more.
        let step = (reading.left() + 1).min(STEP);
        let stretch = rows(db, sql, &[&app.raw(), &past, &wanted.until.raw(), &limit(step)]).await?;
        for row in &stretch {
            past = row.get("key");
            let size = if lets_through(wanted, row)? { Some(size(row)) } else { None };
            match reading.look(MessageKey::new(past), size) {
                Look::Take => taken.push(MessageKey::new(past)),
                Look::Skip => {}
                Look::Stop => break,
            }
        }
        if reading.has_stopped() || stretch.len() < step {
            break;
        }
    }
    let messages = read_messages(db, &taken).await?;
    Ok(reading.end(messages))
}

fn lets_through(wanted: &ReadOn, row: &Row) -> Result<bool> {
    let sieve = &wanted.sieve;
    if !sieve.lets_type_through(row.get("event_type")) {
        return Ok(false);
    }
    Ok(!sieve.asks_for_channels() || sieve.lets_channels_through(&Extra::read(row.get("extra"))?.channels))
}

fn size(row: &Row) -> usize {
    usize::try_from(row.get::<_, i32>("size")).unwrap_or_default()
}

pub async fn consumer(db: &Db, poller: PollerKey, name: &str) -> Result<Option<Consumer>> {
    let sql = "SELECT * FROM consumer WHERE poller = $1 AND name = $2";
    Ok(row(db, sql, &[&poller.0, &name]).await?.as_ref().map(consumer_from))
}

pub async fn consumers(db: &Db, poller: PollerKey) -> Result<Vec<Consumer>> {
    let sql = "SELECT * FROM consumer WHERE poller = $1 ORDER BY name COLLATE \"C\"";
    Ok(rows(db, sql, &[&poller.0]).await?.iter().map(consumer_from).collect())
}

fn consumer_from(row: &Row) -> Consumer {
    Consumer {
        name: row.get("name"),
        place: MessageKey::new(row.get("place")),
        seeks: row.get("seeks"),
        moved_at: Timestamp::from_millis(row.get("moved_at")),
    }
}

/// Takes one who is known further, without holding anyone up: others write beside it. `None`: that takes a turn.
pub async fn advance(db: &Db, stride: &Stride) -> Result<Option<Consumer>> {
    let Way::Forward { seeks } = stride.how else { return Ok(None) };
    let sql = "UPDATE consumer SET place = $3, moved_at = $4
         WHERE poller = $1 AND name = $2 AND place < $3 AND ($5::bigint IS NULL OR seeks = $5)";
    let (to, at) = (stride.to.raw(), stride.at.as_millis());
    execute(db, sql, &[&stride.poller.0, &stride.consumer, &to, &at, &seeks]).await?;
    consumer(db, stride.poller, &stride.consumer).await
}

pub async fn move_consumer(
    turn: &Turn,
    stride: &Stride,
    remember: Option<&Remember>,
) -> Result<Result<Consumer, PutError>> {
    if let Err(refusal) = settings::remember(turn, remember, stride.at).await? {
        return Ok(Err(refusal));
    }
    match write_place(turn, stride).await? {
        Some(moved) => Ok(Ok(moved)),
        None => {
            let full = settings::conclude(turn, remember, Err(PutError::Full)).await?;
            Ok(full.and(Err(PutError::Full)))
        }
    }
}

/// How he stands afterwards; `None`: there is no place for one more.
async fn write_place(turn: &Turn, stride: &Stride) -> Result<Option<Consumer>> {
    let found = consumer(turn.db(), stride.poller, &stride.consumer).await?;
    let Some(moved) = stride.from(found.as_ref()) else { return Ok(found) };
    if found.is_none() {
        let sql = "SELECT count(*) FROM consumer WHERE poller = $1";
        let there: i64 = one(turn.db(), sql, &[&stride.poller.0]).await?.get(0);
        if there >= limit(CONSUMERS_MAX) {
            return Ok(None);
        }
    }
    let sql = "INSERT INTO consumer (poller, name, app, place, seeks, moved_at) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (poller, name) DO UPDATE SET place = $4, seeks = $5, moved_at = $6";
    let Consumer { name, place, seeks, moved_at } = &moved;
    let (poller, app) = (stride.poller.0, stride.app.raw());
    execute(turn.db(), sql, &[&poller, name, &app, &place.raw(), seeks, &moved_at.as_millis()]).await?;
    Ok(Some(moved))
}

pub async fn forget_consumers(turn: &Turn, poller: PollerKey, name: Option<&str>) -> Result<bool> {
    let sql = "DELETE FROM consumer WHERE poller = $1 AND ($2::text IS NULL OR name = $2)";
    Ok(execute(turn.db(), sql, &[&poller.0, &name]).await? > 0)
}
