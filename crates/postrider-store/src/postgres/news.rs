//! What a commit of one node changed that another one must hear of.
//!
//! It is written in the same commit, so that it cannot be lost; a notification only says that there is something to read.
//! A node reads what is addressed to it, passes it on, and takes it away afterwards: after a fault it may hear of
//! something twice, which does no harm.
//!
//! Messages whose deliveries it owes from then on are kept apart (decision 12): it takes such news away in the commit that notes
//! from where on it holds something, and does not read them twice.
//!
//! What concerns a lane is addressed to whoever owns its shard at that moment, and read once the node serves the shard. Whoever
//! gets a shard later looks through its lanes anyway.

use super::{Db, Result, execute, load, rows, shared::PassedOn};
use crate::{
    Cancelled, Committed,
    rows::Unreadable,
    shards::{Shard, Shards},
    step,
};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};
use std::collections::{HashMap, HashSet};

/// The channels that nodes listen to: each its own, and one for all.
pub const EVERYONE: &str = "postrider_all";

pub fn channel(node: i64) -> String {
    format!("postrider_{node}")
}

/// Something to tell, and whom.
#[derive(Clone, Debug)]
pub struct Event {
    pub to: To,
    pub what: Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Whoever serves the lanes of this shard.
    Owner(Shard),
    /// All nodes.
    Everyone,
    /// This node alone.
    Here,
}

/// Finds out whom the announcements of a transaction concern.
pub async fn address(db: &Db, announced: Vec<Committed>) -> Result<Vec<Event>> {
    let lanes: Vec<i64> = announced.iter().filter_map(lane).map(EndpointKey::raw).collect();
    let mut shards = HashMap::new();
    if !lanes.is_empty() {
        for row in rows(db, "SELECT key, app FROM endpoint WHERE key = ANY($1)", &[&lanes]).await? {
            shards.insert(row.get::<_, i64>(0), Shard::of(AppKey::new(row.get(1))));
        }
    }
    let to = |what: &Committed| match (what, lane(what)) {
        (Committed::Work, _) => To::Owner(Shard::new(0)),
        (Committed::Settings { .. } | Committed::EventTypes, _) => To::Everyone,
        (_, Some(lane)) => shards.get(&lane.raw()).map_or(To::Here, |shard| To::Owner(*shard)),
        (_, None) => To::Here,
    };
    Ok(announced.into_iter().map(|what| Event { to: to(&what), what }).collect())
}

fn lane(what: &Committed) -> Option<EndpointKey> {
    match what {
        Committed::Waiting { endpoint, .. }
        | Committed::Health { endpoint }
        | Committed::Cancelled { endpoint, .. } => Some(*endpoint),
        Committed::Message { .. }
        | Committed::Settings { .. }
        | Committed::EventTypes
        | Committed::Work
        | Committed::Offered { .. }
        | Committed::Wanted { .. }
        | Committed::Deposed => None,
    }
}

/// What this node hears of itself: all that concerns it.
pub fn for_here(owned: &Shards, events: Vec<Event>) -> Vec<Committed> {
    let concerns = |event: &Event| match event.to {
        To::Owner(shard) => owned.contains(shard) && !matches!(event.what, Committed::Work),
        To::Everyone | To::Here => true,
    };
    events.into_iter().filter(concerns).map(|event| event.what).collect()
}

/// Writes down what others must hear of. It is told with the commit.
pub async fn publish(db: &Db, node: i64, owned: &Shards, events: &[Event]) -> Result<()> {
    let (mut to_owners, mut to_all) = (Rows::default(), Rows::default());
    for Event { to, what } in events {
        match to {
            To::Owner(shard) if !owned.contains(*shard) => to_owners.push(Some(*shard), what),
            To::Everyone => to_all.push(None, what),
            To::Owner(_) | To::Here => {}
        }
    }
    if !to_owners.kinds.is_empty() {
        rows(
            db,
            "WITH told AS (
                 INSERT INTO news (node, shard, kind, subject, detail)
                 SELECT shard.node, new.shard, new.kind, new.subject, new.detail
                 FROM unnest($1::smallint[], $2::smallint[], $3::bigint[], $4::bigint[])
                     WITH ORDINALITY AS new (shard, kind, subject, detail, position)
                 JOIN shard ON shard.number = new.shard AND shard.node IS NOT NULL
                 ORDER BY new.position
                 RETURNING node)
             SELECT pg_notify('postrider_' || node, '') FROM (SELECT DISTINCT node FROM told) AS nodes",
            &[&to_owners.shards, &to_owners.kinds, &to_owners.subjects, &to_owners.details],
        )
        .await?;
        step!("news.published");
    }
    if !to_all.kinds.is_empty() {
        rows(
            db,
            "WITH told AS (
                 INSERT INTO news (node, shard, kind, subject, detail)
                 SELECT node.id, NULL, new.kind, new.subject, new.detail
                 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[])
                     WITH ORDINALITY AS new (kind, subject, detail, position)
                 JOIN node ON node.id <> $4
                 ORDER BY new.position
                 RETURNING node)
             SELECT pg_notify('postrider_' || node, '') FROM (SELECT DISTINCT node FROM told) AS nodes",
            &[&to_all.kinds, &to_all.subjects, &to_all.details, &node],
        )
        .await?;
    }
    Ok(())
}

/// Passes messages on to whoever serves their lanes, and returns which ones somebody does.
pub async fn pass_on(db: &Db, messages: &[(Shard, i64)]) -> Result<HashSet<i64>> {
    if messages.is_empty() {
        return Ok(HashSet::new());
    }
    let shards: Vec<i16> = messages.iter().map(|(shard, _)| i16::from(shard.number())).collect();
    let keys: Vec<i64> = messages.iter().map(|(_, key)| *key).collect();
    let told = rows(
        db,
        "WITH told AS (
             INSERT INTO news (node, shard, kind, subject, detail)
             SELECT shard.node, new.shard, $3, new.message, 0
             FROM unnest($1::smallint[], $2::bigint[]) AS new (shard, message)
             JOIN shard ON shard.number = new.shard AND shard.node IS NOT NULL
             RETURNING node, subject)
         SELECT array_agg(subject), pg_notify('postrider_' || node, '') FROM told GROUP BY node",
        &[&shards, &keys, &MESSAGE],
    )
    .await?;
    Ok(told.iter().flat_map(|row| row.get::<_, Vec<i64>>(0)).collect())
}

/// What is read at once.
const READ_MAX: i64 = 1_000;

/// What a node found written down for it.
#[derive(Default)]
pub struct Read {
    /// In their order, those about messages apart: what came before a message comes before it.
    pub news: Vec<Committed>,
    pub messages: Vec<PassedOn>,
    /// To take away once the news are passed on. Those of messages are kept until these are the node's own.
    pub ids: Vec<i64>,
    /// There is more to read.
    pub more: bool,
    /// The last of all these.
    pub last: i64,
}

/// Which news are looked for.
pub struct Wanted<'k> {
    pub node: i64,
    pub owned: Shards,
    /// Past this one only.
    pub past: i64,
    /// Messages too: there is room for them.
    pub messages: bool,
    /// They were read before and have been passed on since: they are taken away.
    pub passed_on: &'k [i64],
    /// They were read before, and are not to be read again.
    pub heard: &'k [i64],
}

/// News for a node, oldest first.
pub async fn read(db: &Db, wanted: &Wanted<'_>) -> Result<Read> {
    let Wanted { node, owned, past, messages, passed_on, heard } = wanted;
    let served: Vec<i16> = owned.iter().map(|shard| i16::from(shard.number())).collect();
    let found = rows(
        db,
        "WITH gone AS (DELETE FROM news WHERE id = ANY($3))
         SELECT id, kind, subject, detail FROM news
         WHERE id > $5 AND node = $1 AND (shard IS NULL OR shard = ANY($2)) AND (kind <> $7 OR $8)
             AND id NOT IN (SELECT unnest($3::bigint[] || $4::bigint[]))
         ORDER BY id LIMIT $6",
        &[node, &served, passed_on, heard, past, &READ_MAX, &MESSAGE, messages],
    )
    .await?;
    let last = found.last().map_or(0, |row| row.get("id"));
    let mut read = Read { more: found.len() as i64 == READ_MAX, last, ..Read::default() };
    let of_messages = found.iter().filter(|row| row.get::<_, i16>("kind") == MESSAGE).map(|row| row.get("subject"));
    let mut messages = load::passed_on(db, &of_messages.collect::<Vec<i64>>()).await?.into_iter();
    for row in &found {
        let (id, kind): (i64, i16) = (row.get("id"), row.get("kind"));
        if kind != MESSAGE {
            match decode(kind, row.get("subject"), row.get("detail")) {
                Ok(news) => read.news.push(news),
                Err(error) => tracing::warn!(%error, "news that a newer node wrote are passed over"),
            }
            read.ids.push(id);
            continue;
        }
        match messages.next() {
            Some(Some((letter, owed))) if !owed.is_empty() => read.messages.push(PassedOn { id, letter, owed }),
            // Somebody has seen to it.
            Some(_) => read.ids.push(id),
            None => {
                read.more = true;
                break;
            }
        }
    }
    Ok(read)
}

/// Takes away news of messages that are this node's own by now.
pub async fn take_away(db: &Db, ids: &[i64]) -> Result<()> {
    if !ids.is_empty() {
        execute(db, "DELETE FROM news WHERE id = ANY($1)", &[&ids]).await?;
    }
    Ok(())
}

#[derive(Default)]
struct Rows {
    shards: Vec<Option<i16>>,
    kinds: Vec<i16>,
    subjects: Vec<i64>,
    details: Vec<i64>,
}

impl Rows {
    fn push(&mut self, shard: Option<Shard>, what: &Committed) {
        let Some((kind, subject, detail)) = encode(what) else { return };
        self.shards.push(shard.map(|shard| i16::from(shard.number())));
        self.kinds.push(kind);
        self.subjects.push(subject);
        self.details.push(detail);
    }
}

/// A message whose deliveries have no rows: they are owed by the node that it is passed on to.
pub const MESSAGE: i16 = 7;

/// `None`: it concerns nobody else, or is passed on in another way.
fn encode(what: &Committed) -> Option<(i16, i64, i64)> {
    Some(match what {
        Committed::Waiting { endpoint, due } => (0, endpoint.raw(), due.as_millis()),
        Committed::Settings { app } => (1, app.raw(), 0),
        Committed::EventTypes => (2, 0, 0),
        Committed::Health { endpoint } => (3, endpoint.raw(), 0),
        Committed::Cancelled { endpoint, which: Cancelled::One(message) } => (4, endpoint.raw(), message.raw()),
        Committed::Cancelled { endpoint, which: Cancelled::Before(message) } => (5, endpoint.raw(), message.raw()),
        Committed::Work => (6, 0, 0),
        Committed::Message { .. } | Committed::Offered { .. } | Committed::Wanted { .. } | Committed::Deposed => {
            return None;
        }
    })
}

fn decode(kind: i16, subject: i64, detail: i64) -> Result<Committed, Unreadable> {
    let (endpoint, message) = (EndpointKey::new(subject), MessageKey::new(detail));
    Ok(match kind {
        0 => Committed::Waiting { endpoint, due: Timestamp::from_millis(detail) },
        1 => Committed::Settings { app: AppKey::new(subject) },
        2 => Committed::EventTypes,
        3 => Committed::Health { endpoint },
        4 => Committed::Cancelled { endpoint, which: Cancelled::One(message) },
        5 => Committed::Cancelled { endpoint, which: Cancelled::Before(message) },
        6 => Committed::Work,
        other => return Err(Unreadable(format!("{other} stands for no news"))),
    })
}
