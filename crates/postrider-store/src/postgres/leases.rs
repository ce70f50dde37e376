//! Which lanes are this node's.
//!
//! A node is a row with a lease, by the database's clock. While it renews the lease in time its shards are its own; when it
//! does not, any other node declares it dead, gives rows to what it held, and frees its shards. Whoever has fewer shards
//! than its share takes free ones; whoever has more gives some back.
//!
//! The node itself counts its lease by its own clock, from before it asked for it: so it stops sending before anybody else
//! can begin.

use super::{
    Db, Error, PostgresOptions, Result, describe,
    ears::{Ears, Heard},
    execute,
    jobs::Writer,
    news::{self, Read},
    one,
    recover::{self, Due},
    row, rows,
};
use crate::{
    Committed, Node,
    rows::minter::NODES,
    shards::{Shard, Shards, Tenure},
    step,
};
use postrider_engine::Timestamp;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Row, types::ToSql};

/// The greatest key that any node has used.
pub async fn greatest_key(db: &Db) -> Result<i64> {
    let found = one(db, "SELECT greatest(cluster.minted, (SELECT max(minted) FROM node)) FROM cluster", &[]).await?;
    Ok(found.get(0))
}

/// What the database's clock says.
pub async fn now(db: &Db) -> Result<Timestamp> {
    let found = one(db, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
    Ok(Timestamp::from_millis(found.get(0)))
}

/// How the nodes stand, as people are told.
pub async fn nodes(db: &Db, own: Tenure) -> Result<Vec<Node>> {
    let sql = "
        SELECT node.id, node.name, node.retiring,
            (extract(epoch FROM node.started_at) * 1000)::bigint AS started_at,
            (extract(epoch FROM lease.until) * 1000)::bigint AS lease_until,
            coalesce(lease.until > clock_timestamp(), false) AS alive,
            (SELECT count(*) FROM shard WHERE shard.node = node.id) AS shards
        FROM node LEFT JOIN lease ON lease.node = node.id ORDER BY node.id";
    let node = |row: &Row| Node {
        id: row.get("id"),
        name: row.get("name"),
        started_at: Some(Timestamp::from_millis(row.get("started_at"))),
        alive: row.get("alive"),
        lease_until: row.get::<_, Option<i64>>("lease_until").map(Timestamp::from_millis),
        retiring: row.get("retiring"),
        shards: usize::try_from(row.get::<_, i64>("shards")).unwrap_or(0),
        is_self: row.get::<_, i64>("id") == own.0,
    };
    Ok(rows(db, sql, &[]).await?.iter().map(node).collect())
}

pub struct Joined {
    pub node: i64,
    /// The greatest key that was in use.
    pub used: i64,
}

/// Adds a node to the others. It has no shards yet.
pub async fn join(db: &Db, options: &PostgresOptions) -> Result<Joined> {
    let used = greatest_key(db).await?;
    // Two nodes whose numbers leave the same rest would make the same keys.
    let sql = format!(
        "WITH drawn AS MATERIALIZED (SELECT nextval('node_id') AS id),
         new AS (
             INSERT INTO node (id, batch, settled_through, minted, name, started_at)
             SELECT id, 0, 9223372036854775807, $1, $2, now() FROM drawn
             WHERE NOT EXISTS (SELECT 1 FROM node WHERE node.id % {NODES} = drawn.id % {NODES}) RETURNING id),
         leased AS (
             INSERT INTO lease (node, until) SELECT id, clock_timestamp() + $3 * interval '1 millisecond' FROM new)
         SELECT id FROM new"
    );
    for _ in 0..NODES {
        if let Some(joined) = row(db, &sql, &[&used, &options.name, &millis(options.lease)]).await? {
            return Ok(Joined { node: joined.get(0), used });
        }
    }
    Err(Error::Unreachable(format!("it has {NODES} nodes already, and there can be no more")))
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// Until when a lease that was asked for then is sure to hold, with some room for a last request to get away.
pub fn sure_until(asked_at: Instant, options: &PostgresOptions) -> Instant {
    asked_at + options.lease.saturating_sub(options.lease / 10)
}

/// Gives shards back, and whatever is handed over of them a row. In a turn.
pub async fn free(db: &Db, node: i64, shards: Shards) -> Result<()> {
    let shards = numbers(shards);
    let now = now(db).await?;
    recover::give_rows(db, node, &shards, Due::AsAccepted { now }).await?;
    execute(db, "UPDATE shard SET node = NULL WHERE node = $1 AND number = ANY($2)", &[&node, &shards]).await?;
    rows(db, "SELECT pg_notify($1, '')", &[&news::EVERYONE]).await?;
    Ok(())
}

fn numbers(shards: Shards) -> Vec<i16> {
    shards.iter().map(|shard| i16::from(shard.number())).collect()
}

/// Ends a node's lease before its time.
pub async fn give_up(db: &Db, node: i64) -> Result<()> {
    execute(db, "DELETE FROM lease WHERE node = $1", &[&node]).await?;
    Ok(())
}

/// Wants no shards any more. In a turn.
pub async fn retire(db: &Db, node: i64) -> Result<()> {
    execute(db, "UPDATE node SET retiring = true WHERE id = $1", &[&node]).await?;
    rows(db, "SELECT pg_notify($1, '')", &[&news::EVERYONE]).await?;
    Ok(())
}

/// Takes free shards. In a turn.
async fn claim(db: &Db, node: i64, count: usize) -> Result<Shards> {
    let taken = rows(
        db,
        "UPDATE shard SET node = $1 WHERE number IN
             (SELECT number FROM shard WHERE node IS NULL ORDER BY number * 95 % 256 LIMIT $2 FOR UPDATE SKIP LOCKED)
         RETURNING number",
        &[&node, &(count as i64)],
    )
    .await?;
    step!("shards.claimed");
    Ok(taken.iter().map(|row| shard(row.get(0))).collect())
}

fn shard(number: i16) -> Shard {
    Shard::new(u8::try_from(number).unwrap_or(0))
}

/// How the nodes stand, as one of them sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub nodes: BTreeMap<i64, Standing>,
    pub owned: BTreeMap<i64, Shards>,
    pub free: Shards,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Serving,
    /// It wants no shards any more.
    Retiring,
    /// Its lease is over.
    Over,
}

/// What a node has to do about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// These are dead.
    pub bury: Vec<i64>,
    /// Take so many of the free shards.
    pub claim: usize,
    /// Give these back.
    pub leave: Shards,
}

/// Each node's share differs by one shard at most. `leaving`: what it is giving back already.
pub fn plan(view: &View, me: i64, leaving: Shards) -> Plan {
    let of = |wanted: &dyn Fn(i64, Standing) -> bool| -> Vec<i64> {
        view.nodes.iter().filter(|(id, standing)| wanted(**id, **standing)).map(|(id, _)| *id).collect()
    };
    let bury = of(&|id, standing| standing == Standing::Over && id != me);
    let serving = of(&|id, standing| match standing {
        Standing::Serving => true,
        Standing::Retiring => false,
        // It renews its lease just now.
        Standing::Over => id == me,
    });
    let share = match serving.iter().position(|id| *id == me) {
        Some(place) => Shard::COUNT / serving.len() + usize::from(place < Shard::COUNT % serving.len()),
        None => 0,
    };
    let mine = view.owned.get(&me).copied().unwrap_or_default();
    let kept = mine.without(leaving);
    let surplus = kept.len().saturating_sub(share);
    let leave = kept.scattered().into_iter().skip(kept.len() - surplus).collect();
    let claim = share.saturating_sub(mine.len()).min(view.free.len());
    Plan { bury, claim, leave }
}

/// Renews the lease and looks around. `None`: the node was declared dead.
///
/// `sure`: whoever has not renewed his lease by now could have, see `Keeper::is_sure`.
pub async fn beat(db: &Db, me: i64, sure: bool, options: &PostgresOptions) -> Result<Option<View>> {
    let lease = millis(options.lease);
    let (renewing, looking): (&[&(dyn ToSql + Sync)], &[&(dyn ToSql + Sync)]) = (&[&me, &lease], &[&sure]);
    // The lock waits for whoever is declaring this node dead. Without it the lease of a node that is gone would be renewed,
    // and it would send on.
    let renewed = execute(
        db,
        "INSERT INTO lease (node, until)
         SELECT id, clock_timestamp() + $2 * interval '1 millisecond' FROM node WHERE id = $1 FOR KEY SHARE
         ON CONFLICT (node) DO UPDATE SET until = excluded.until",
        renewing,
    );
    let looked = rows(
        db,
        "SELECT node.id, lease.until IS NULL OR ($1 AND lease.until < clock_timestamp()) AS is_over,
             (SELECT array_agg(number) FROM shard WHERE shard.node = node.id), node.retiring
         FROM node LEFT JOIN lease ON lease.node = node.id
         UNION ALL
         SELECT 0, false, array_agg(number), false FROM shard WHERE node IS NULL",
        looking,
    );
    let (renewed, found) = futures_util::try_join!(renewed, looked)?;
    if renewed == 0 {
        return Ok(None);
    }
    let mut view = View::default();
    for row in &found {
        let numbers: Option<Vec<i16>> = row.get(2);
        let shards: Shards = numbers.unwrap_or_default().into_iter().map(shard).collect();
        match row.get(0) {
            0_i64 => view.free = shards,
            id => {
                let standing = match (row.get(1), row.get(3)) {
                    (true, _) => Standing::Over,
                    (false, true) => Standing::Retiring,
                    (false, false) => Standing::Serving,
                };
                view.nodes.insert(id, standing);
                view.owned.insert(id, shards);
            }
        }
    }
    Ok(Some(view))
}

/// Whether the database has been up for so long that whoever lives has found it again, even if it had to recover first,
/// which is part of that time.
async fn is_settled(db: &Db) -> Result<bool> {
    let found = one(db, "SELECT pg_postmaster_start_time() < clock_timestamp() - interval '1 minute'", &[]).await?;
    Ok(found.get(0))
}

/// How far apart looks for news are, at least: many that come close together are read together.
const NEWS_APART: Duration = Duration::from_millis(2);

/// Keeps the lease, the share and the news of one node, beside everything else.
pub struct Keeper {
    writer: Writer,
    ears: Ears,
    options: PostgresOptions,
    /// What the dispatcher has been asked to give back.
    leaving: Shards,
    tenure: Tenure,
    /// When what a dead node held falls due, if not now.
    due: Option<Timestamp>,
    /// At start: the database has been there for all this time, as far as can be told.
    database_is_settled: bool,
    /// Taking over and taking shards, beside the heartbeat: they wait for their turn, and the lease must not.
    acting: Option<JoinHandle<()>>,
    /// News that were passed on and are to be taken away.
    passed_on: Vec<i64>,
    read_at: Option<Instant>,
    /// Between heartbeats only news past this one are looked for: to get to those, the database steps over all that were
    /// taken away. One whose commit took longer than from one heartbeat to the next may lie before it.
    past: i64,
    /// The last news that were seen, and had been seen at the last heartbeat.
    seen: i64,
    seen_before: i64,
}

impl Keeper {
    pub fn new(writer: Writer, ears: Ears, options: PostgresOptions) -> Self {
        Self {
            writer,
            ears,
            options,
            leaving: Shards::NONE,
            tenure: Tenure::default(),
            due: None,
            database_is_settled: false,
            acting: None,
            passed_on: Vec::new(),
            read_at: None,
            past: 0,
            seen: 0,
            seen_before: 0,
        }
    }

    /// Before anything else: takes over from the dead, and takes its share.
    pub async fn begin(&mut self, due: Timestamp) -> Result<()> {
        self.due = Some(due);
        self.ears.open(self.writer.shared().tenure().0).await?;
        self.database_is_settled = is_settled(self.ears.db()?).await?;
        // Once to bury the dead and once to take what they leave.
        for _ in 0..2 {
            self.look().await?;
            if let Some(acting) = self.acting.take() {
                let _ = acting.await;
            }
        }
        self.due = None;
        self.database_is_settled = false;
        Ok(())
    }

    pub async fn keep(mut self, mut stop: oneshot::Receiver<()>) {
        let mut beat_at = Instant::now() + self.options.heartbeat;
        loop {
            let heard = tokio::select! {
                _ = &mut stop => return,
                () = tokio::time::sleep_until(beat_at.into()) => Heard::Change,
                heard = self.ears.heard() => heard,
                () = self.writer.shared().wake_keeper.notified() => Heard::Change,
            };
            if self.writer.is_closed() {
                // Nothing can be written any more: the lanes are better off elsewhere.
                return;
            }
            let patience = self.options.lease.min(Duration::from_secs(3));
            let looking = async {
                match heard {
                    Heard::Change => {
                        beat_at = Instant::now() + self.options.heartbeat;
                        self.look().await
                    }
                    Heard::News => self.hear_news().await,
                }
            };
            if let Err(error) = tokio::time::timeout(patience, looking).await.unwrap_or(Err(Error::TooSlow)) {
                tracing::warn!(error = describe(&error), "the lease could not be renewed; trying again");
                self.ears.shut();
                beat_at = Instant::now() + self.options.heartbeat / 5;
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        let shared = self.writer.shared();
        let tenure = shared.tenure();
        if tenure != self.tenure {
            self.tenure = tenure;
            self.leaving = Shards::NONE;
            self.passed_on.clear();
        }
        self.ears.open(tenure.0).await?;
        // By what was seen before it was done, it would be done again.
        let is_free = self.acting.as_ref().is_none_or(JoinHandle::is_finished);
        let asked_at = Instant::now();
        let Some(view) = beat(self.ears.db()?, tenure.0, self.is_sure(), &self.options).await? else {
            self.writer.doubt();
            return Ok(());
        };
        step!("node.renewed");
        let sure_until = sure_until(asked_at, &self.options);
        // A node that was out of touch has missed what others changed, pauses among it: it sends nothing before it has heard.
        let was_away = !shared.may_send(tenure);
        if !was_away {
            shared.renewed(tenure, sure_until);
        }
        self.past = 0;
        self.hear_news().await?;
        if was_away {
            let shared = self.writer.shared();
            shared.told_of_commits().await;
            shared.renewed(tenure, sure_until);
        }
        self.past = std::mem::replace(&mut self.seen_before, self.seen);
        if is_free {
            self.act(&view, tenure);
        }
        Ok(())
    }

    /// Whether a lease that is over means a death. When the database was away, from all nodes or only from this one, the
    /// leases of others may be over because nobody could renew them, or because it has not been long since they can. So
    /// whoever judges must have been in touch himself for as long as a lease lasts.
    fn is_sure(&self) -> bool {
        self.database_is_settled || self.ears.in_touch_for() >= self.options.lease
    }

    async fn hear_news(&mut self) -> Result<()> {
        if let Some(early) = self.read_at.and_then(|at| NEWS_APART.checked_sub(at.elapsed())) {
            tokio::time::sleep(early).await;
        }
        let shared = self.writer.shared();
        loop {
            self.read_at = Some(Instant::now());
            let (cancels, owned, heard) = (shared.cancels(), shared.owned(), shared.heard());
            let (passed_on, past) = (&self.passed_on, self.past);
            let messages = shared.has_room();
            let wanted = news::Wanted { node: self.tenure.0, owned, past, messages, passed_on, heard: &heard };
            let Read { news, messages, ids, more, last } = news::read(self.ears.db()?, &wanted).await?;
            self.seen = self.seen.max(last);
            self.passed_on.clear();
            let Some(taken) = shared.take_in(self.tenure, cancels, messages) else {
                if shared.tenure() != self.tenure {
                    return Ok(());
                }
                continue;
            };
            let is_stuck = taken.is_empty() && ids.is_empty();
            if !taken.is_empty() {
                step!("news.heard");
            }
            // What ends a delivery comes after its message.
            shared.tell_in_order(taken);
            shared.tell_in_order(news);
            self.passed_on = ids;
            if !more || is_stuck {
                return Ok(());
            }
        }
    }

    fn act(&mut self, view: &View, tenure: Tenure) {
        let Plan { bury, claim, leave } = plan(view, tenure.0, self.leaving);
        if !leave.is_empty() {
            self.leaving = self.leaving.with(leave);
            self.writer.leave(leave);
        }
        let mine = view.owned.get(&tenure.0).copied().unwrap_or_default();
        self.leaving = self.leaving.without(Shards::ALL.without(mine));
        if bury.is_empty() && claim == 0 {
            return;
        }
        let act = Act { writer: self.writer.clone(), tenure, due: self.due, sure: self.is_sure() };
        let own_at_once = self.options.own_at_once;
        self.acting = Some(tokio::spawn(async move {
            for node in bury {
                act.bury(node).await;
            }
            if claim > 0 {
                act.claim(claim, own_at_once).await;
            }
        }));
    }
}

/// What a node does about the others.
struct Act {
    writer: Writer,
    tenure: Tenure,
    due: Option<Timestamp>,
    sure: bool,
}

impl Act {
    async fn bury(&self, node: i64) {
        let (due, sure) = (self.due, self.sure);
        let buried = self.writer.turn(move |turn| {
            Box::pin(async move {
                // It may have come back meanwhile; from here on it cannot.
                recover::hold_node(turn.db(), node).await?;
                let is_over = rows(
                    turn.db(),
                    "SELECT 1 FROM node LEFT JOIN lease ON lease.node = node.id
                     WHERE node.id = $1 AND (lease.until IS NULL OR ($2 AND lease.until < clock_timestamp()))",
                    &[&node, &sure],
                )
                .await?;
                if is_over.is_empty() {
                    return Ok(None);
                }
                let due = match due {
                    Some(due) => due,
                    None => now(turn.db()).await?,
                };
                let buried = recover::bury_node(turn.db(), node, due).await;
                step!("node.burying");
                buried.map(Some)
            })
        });
        match buried.await {
            Ok(Some(deliveries)) => {
                tracing::warn!(node, deliveries, "a node was not heard of any more; its lanes are taken over");
                self.writer.shared().wake_keeper.notify_one();
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(node, %error, "a dead node could not be taken over from yet"),
        }
    }

    async fn claim(&self, count: usize, own_at_once: bool) {
        let tenure = self.tenure;
        let claimed = self.writer.turn(move |turn| {
            Box::pin(async move {
                if turn.tenure() != tenure {
                    return Ok(Shards::NONE);
                }
                let shards = claim(turn.db(), tenure.0, count).await?;
                if !shards.is_empty() {
                    turn.announce(Committed::Offered { tenure, shards });
                }
                Ok(shards)
            })
        });
        match claimed.await {
            Ok(shards) if own_at_once => drop(self.writer.shared().own(tenure, shards)),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "free lanes could not be taken yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(numbers: impl IntoIterator<Item = u8>) -> Shards {
        numbers.into_iter().map(Shard::new).collect()
    }

    /// Lets all nodes act on their plans, in turn, until nobody has anything to do.
    fn settle(mut view: View) -> View {
        for round in 0.. {
            assert!(round < 10, "the nodes do not come to rest: {view:?}");
            let before = view.clone();
            for me in view.nodes.keys().copied().collect::<Vec<_>>() {
                if view.nodes.get(&me).is_none_or(|standing| *standing == Standing::Over) {
                    continue;
                }
                let Plan { bury, claim, leave } = plan(&view, me, Shards::NONE);
                for dead in bury {
                    view.nodes.remove(&dead);
                    view.free = view.free.with(view.owned.remove(&dead).unwrap_or_default());
                }
                let taken: Shards = view.free.scattered().into_iter().take(claim).collect();
                view.free = view.free.without(taken).with(leave);
                let mine = view.owned.entry(me).or_default();
                *mine = mine.with(taken).without(leave);
            }
            if view == before {
                break;
            }
        }
        view
    }

    fn shares(view: &View) -> Vec<usize> {
        view.nodes.keys().map(|node| view.owned.get(node).map_or(0, Shards::len)).collect()
    }

    #[test]
    fn shards_are_shared_evenly_whoever_comes_and_goes() {
        let mut view = View { free: Shards::ALL, nodes: [(7, Standing::Serving)].into(), ..View::default() };
        view = settle(view);
        assert_eq!(shares(&view), [256]);
        view.nodes.extend([8, 9].map(|id| (id, Standing::Serving)));
        view = settle(view);
        assert_eq!((shares(&view), view.free.len()), (vec![86, 85, 85], 0));
        view.nodes.insert(8, Standing::Over);
        view = settle(view);
        assert_eq!((shares(&view), view.free.len()), (vec![128, 128], 0), "the dead one is gone: {view:?}");
        view.nodes.insert(9, Standing::Retiring);
        view = settle(view);
        assert_eq!((shares(&view), view.free.len()), (vec![256, 0], 0), "the other one wants nothing: {view:?}");
    }

    #[test]
    fn neighbours_do_not_fall_to_one_node_together() {
        const RUN: usize = 24;
        let mut view = View { free: Shards::ALL, ..View::default() };
        for nodes in 1..=6 {
            view.nodes.insert(nodes as i64, Standing::Serving);
            view = settle(view);
            for first in 0..Shard::COUNT {
                let run = some((first..first + RUN).map(|number| (number % Shard::COUNT) as u8));
                let shares = view.owned.values().map(|its| its.and(run).len());
                assert!(shares.min() >= Some(RUN / nodes / 2), "{nodes} nodes, from {first}: {view:?}");
            }
        }
    }

    #[test]
    fn a_node_does_not_declare_itself_dead_nor_gives_back_twice() {
        let view = View {
            nodes: [(1, Standing::Over), (2, Standing::Serving)].into(),
            owned: [(1, Shards::ALL)].into(),
            free: Shards::NONE,
        };
        let first = plan(&view, 1, Shards::NONE);
        assert_eq!((first.bury.len(), first.leave.len()), (0, 128));
        assert_eq!(plan(&view, 1, first.leave).leave, Shards::NONE);
    }

    #[test]
    fn nobody_takes_more_than_is_free() {
        let view = View { nodes: [(1, Standing::Serving)].into(), free: some([3, 4]), ..View::default() };
        assert_eq!(plan(&view, 1, Shards::NONE).claim, 2);
    }
}
