//! Redis: quick, shared by any number of processes, and with promises of its own.
//!
//! Each verb is one script, which Redis runs without anything in between: recording and queueing are one step here, too. What
//! this store cannot promise:
//!
//! - **An answered event survives a crash of the server only with `appendonly yes` and `appendfsync always`.** With `everysec`, up
//!   to two seconds of events are lost that their senders count as delivered; without an append-only file, all since the last
//!   snapshot. [`RedisStore::durability`] tells how the server is set.
//! - **A failover may lose and repeat.** Replication is asynchronous: a replica that takes over has not got the latest events, or
//!   not that they were done. What was lost is not sent again by anybody; what was done is done again.
//! - **No effect in a transaction of yours.** There is no `process`: handlers must bear being called again, or keep
//!   the event's key with what they write. Effects in a database of your own can use `sqlite::process` or `postgres::process` there,
//!   with this store as the queue.
//! - **All of it lies in memory**, so bound it ([`Limits`]), and set `maxmemory-policy noeviction`: with any other, Redis
//!   throws away events, or the records that they were done. With it, a Redis that is full takes nothing in, and what waits is
//!   worked off.
//!
//! - **No cluster client.** All keys of an inbox are in one slot, and its commands go to the server of the URL: it must be the one
//!   that has this slot. To another one, and after the slot has moved, every call fails.
//!
//! What is done expires by Redis's own clock after the retention (a millisecond at least, a hundred years at most), also if nothing cleans up. What waits or is dead does not expire.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use redis::{
    AsyncCommands, RedisError, Script, ScriptInvocation,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

use crate::{Event, EventKey, Place, Retention, Timestamp, event::headers, sequence::*, store::*};

pub struct RedisStore {
    connection: ConnectionManager,
    prefix: String,
    retention: Retention,
    scripts: Scripts,
}

struct Scripts {
    record: Script,
    claim: Script,
    settle: Script,
    replay: Script,
    replay_dead: Script,
    forget: Script,
    standing: Script,
}

/// What survives a crash of the server, as far as it says how it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// `appendfsync always`: what was answered.
    Always,
    /// `appendfsync everysec`: what was answered two seconds ago.
    EverySecond,
    /// What the system happened to have written, or the last snapshot.
    Chance,
    /// It does not say: `CONFIG` is not allowed.
    Unknown,
}

impl RedisStore {
    /// `url` is as in `redis://:password@host:6379/0`. Connects again by itself when the connection is lost. What is done expires
    /// after `retention`; give the inbox the same one.
    pub async fn connect(url: &str, retention: Retention) -> Result<Self, StoreError> {
        Self::connect_with_prefix(url, "postrider_inbox_", retention).await
    }

    /// Another prefix is another inbox. All keys of one are in one slot, which an empty prefix, or one that begins with `}`,
    /// could not bring about: these are refused.
    pub async fn connect_with_prefix(url: &str, prefix: &str, retention: Retention) -> Result<Self, StoreError> {
        if prefix.is_empty() || prefix.starts_with('}') {
            return Err(StoreError::unavailable(format!(
                "the prefix {prefix:?} cannot hold the keys of an inbox together"
            )));
        }
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            // With `appendfsync always` the disk has a say.
            .set_response_timeout(Some(PATIENCE));
        let connection = ConnectionManager::new_with_config(redis::Client::open(url)?, config).await?;
        let scripts = Scripts {
            record: Script::new(include_str!("record.lua")),
            claim: Script::new(include_str!("claim.lua")),
            settle: Script::new(include_str!("settle.lua")),
            replay: Script::new(include_str!("replay.lua")),
            replay_dead: Script::new(include_str!("replay_dead.lua")),
            forget: Script::new(include_str!("forget.lua")),
            standing: Script::new(include_str!("standing.lua")),
        };
        Ok(Self { connection, prefix: format!("{{{prefix}}}"), retention, scripts })
    }

    /// How the server is set, which decides what is lost when it crashes.
    pub async fn durability(&self) -> Durability {
        let setting = async |name: &str| -> Option<String> {
            let mut connection = self.connection.clone();
            let found: Result<HashMap<String, String>, RedisError> =
                redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut connection).await;
            found.ok()?.remove(name)
        };
        match (setting("appendonly").await.as_deref(), setting("appendfsync").await.as_deref()) {
            (Some("yes"), Some("always")) => Durability::Always,
            (Some("yes"), Some("everysec")) => Durability::EverySecond,
            (Some(_), Some(_)) => Durability::Chance,
            (None, _) | (_, None) => Durability::Unknown,
        }
    }

    /// In milliseconds, and as Redis takes it: it knows neither 0 nor times without end.
    fn kept_for(&self) -> u64 {
        self.retention.time().clamp(Duration::from_millis(1), KEPT_MAX).as_millis() as u64
    }

    fn named(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn event_key(&self, member: &str) -> String {
        format!("{}event:{member}", self.prefix)
    }

    /// Those that all scripts know, in their order.
    fn keys(&self) -> [String; 4] {
        ["due", "done", "dead", "bytes"].map(|name| self.named(name))
    }

    fn call<'s>(&self, script: &'s Script) -> ScriptInvocation<'s> {
        let mut call = script.prepare_invoke();
        call.key(&self.keys()[..]);
        call
    }

    async fn events(&self, members: &[String]) -> Result<Vec<DeadEvent>, StoreError> {
        let mut pipe = redis::pipe();
        for member in members {
            pipe.hgetall(self.event_key(member));
        }
        let hashes: Vec<Hash> = pipe.query_async(&mut self.connection.clone()).await?;
        let found = members.iter().zip(hashes).filter(|(_, hash)| hash.text("state") == "2");
        let dead = found.map(|(member, hash)| {
            Ok(DeadEvent {
                event: hash.event(member)?,
                attempts: hash.number("attempts") as u32,
                died_at: Timestamp::from_millis(hash.number("finished_at")),
                reason: hash.text("reason"),
            })
        });
        dead.collect()
    }

    async fn forget(&self, list: &str, state: &str, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        let mut call = self.scripts.forget.key(self.named(list));
        call.arg(self.event_key("")).arg(before.as_millis()).arg(max).arg(state);
        Ok(call.invoke_async(&mut self.connection.clone()).await?)
    }
}

#[async_trait]
impl Store for RedisStore {
    /// There are no tables.
    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
        let mut connection = self.connection.clone();
        let member = member(&event.key);
        let track_key = event.place.as_ref().map(|place| {
            let name = format!("sequence:{} {}", event.key.source, place.ordering_key);
            (self.named(&name), place)
        });
        // The script cannot count as Rust does; it is told what to write, and writes it if nobody else has meanwhile.
        loop {
            let tracked = match &track_key {
                None => None,
                Some((key, place)) => {
                    let before: Option<String> = connection.get(key).await?;
                    let before = before.unwrap_or_default();
                    let mut track = Track::parse(&before).unwrap_or_default();
                    let arrival = track.arrive(place.number);
                    Some((key, place, before, track, arrival))
                }
            };
            let mut call = self.call(&self.scripts.record);
            call.key(self.event_key(&member));
            if let Some((key, ..)) = &tracked {
                call.key(key);
            }
            call.arg(&member).arg(event.received_at.as_millis()).arg(event.size());
            call.arg(limits.events_max).arg(limits.bytes_max);
            call.arg(headers::to_text(&event.headers)).arg(&event.body[..]);
            if let Some((_, place, before, track, arrival)) = &tracked {
                call.arg(before).arg(track.to_string()).arg(self.kept_for());
                call.arg(&place.ordering_key).arg(place.number).arg(arrival.to_string());
            }
            let said: String = call.invoke_async(&mut connection).await?;
            return match said.as_str() {
                "new" => Ok(Recorded::New { arrival: tracked.map(|(.., arrival)| arrival) }),
                "duplicate" => Ok(Recorded::Duplicate),
                "full" => Ok(Recorded::Full),
                "moved" => continue,
                other => Err(StoreError::unavailable(format!("the script said {other:?}"))),
            };
        }
    }

    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
        let until = now.after(lease);
        let mut call = self.call(&self.scripts.claim);
        call.arg(self.event_key("")).arg(now.as_millis()).arg(until.as_millis()).arg(max);
        let claimed: Vec<(String, Hash)> = call.invoke_async(&mut self.connection.clone()).await?;
        let claims = claimed.into_iter().map(|(member, hash)| {
            let event = hash.event(&member)?;
            let ticket = Ticket { key: event.key.clone(), fence: hash.number("fence"), until };
            Ok(Claim { event, attempt: hash.number("attempts") as u32, ticket })
        });
        claims.collect()
    }

    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
        let member = member(&ticket.key);
        let mut call = self.call(&self.scripts.settle);
        call.key(self.event_key(&member)).arg(&member).arg(ticket.fence);
        match settlement {
            Settlement::Done => call.arg("done").arg(now.as_millis()).arg("").arg(self.kept_for()),
            Settlement::Again { due, reason } => call.arg("again").arg(due.as_millis()).arg(reason),
            Settlement::Dead { reason } => call.arg("dead").arg(now.as_millis()).arg(reason),
        };
        let is_written: bool = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(if is_written { Settled::Written } else { Settled::LeaseLost })
    }

    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        let mut connection = self.connection.clone();
        let list = self.named("dead");
        let mut members: Vec<String> = Vec::new();
        let mut from = "-inf".to_owned();
        if let Some(after) = after {
            let at = after.died_at.as_millis();
            members = connection.zrangebyscore(&list, at, at).await?;
            let last = member(&after.key);
            members.retain(|member| *member > last);
            from = format!("({at}");
        }
        members.truncate(max);
        let rest = max - members.len();
        if rest > 0 {
            let more: Vec<String> = connection.zrangebyscore_limit(&list, from, "+inf", 0, rest as isize).await?;
            members.extend(more);
        }
        if members.is_empty() {
            return Ok(Vec::new());
        }
        self.events(&members).await
    }

    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
        let member = member(key);
        let mut call = self.call(&self.scripts.replay);
        call.key(self.event_key(&member)).arg(&member).arg(now.as_millis());
        let is_queued: bool = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(if is_queued { Replayed::Queued } else { Replayed::NotDead })
    }

    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError> {
        let mut call = self.call(&self.scripts.replay_dead);
        call.arg(self.event_key("")).arg(until.as_millis()).arg(max).arg(now.as_millis());
        Ok(call.invoke_async(&mut self.connection.clone()).await?)
    }

    /// Ordering keys expire by themselves.
    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.forget("done", "1", before, max).await
    }

    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.forget("dead", "2", before, max).await
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        let (queued, queued_bytes, dead, first): (u64, u64, u64, Vec<(String, i64)>) =
            self.call(&self.scripts.standing).invoke_async(&mut self.connection.clone()).await?;
        let due_first = first.first().map(|(_, due)| Timestamp::from_millis(*due));
        Ok(Standing { queued, queued_bytes, dead, due_first })
    }
}

/// How a key is written in lists. No source has a space in its name, and it sorts before all that one has.
fn member(key: &EventKey) -> String {
    format!("{} {}", key.source, key.id)
}

struct Hash(HashMap<String, Vec<u8>>);

impl redis::FromRedisValue for Hash {
    fn from_redis_value(value: redis::Value) -> Result<Self, redis::ParsingError> {
        Ok(Self(redis::FromRedisValue::from_redis_value(value)?))
    }
}

impl Hash {
    fn text(&self, name: &str) -> String {
        self.0.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    }

    fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn event(&self, member: &str) -> Result<Event, StoreError> {
        let (source, id) = member.split_once(' ').unwrap_or((member, ""));
        let place = self
            .0
            .contains_key("number")
            .then(|| Place { ordering_key: self.text("ordering_key"), number: self.number("number") as u64 });
        Ok(Event {
            key: EventKey::parse(source, id).map_err(StoreError::unavailable)?,
            body: self.0.get("body").cloned().unwrap_or_default().into(),
            headers: headers::from_text(&self.text("headers")),
            received_at: Timestamp::from_millis(self.number("received_at")),
            place,
            arrival: Arrival::parse(&self.text("arrival")),
        })
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        Self::unavailable(error)
    }
}

/// A hundred years.
const KEPT_MAX: Duration = Duration::from_hours(24 * 36_525);
const PATIENCE: Duration = Duration::from_secs(10);
