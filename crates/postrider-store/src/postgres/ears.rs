//! The connection by which a node hears of what others did.

use super::{DatabaseUrl, Db, Error, PostgresOptions, connect::OpenError, describe, news, reach::Bell, rows};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A connection on which a node is told what there is to look at, and by which it keeps its lease.
pub struct Ears {
    url: DatabaseUrl,
    options: PostgresOptions,
    open: Option<Open>,
}

struct Open {
    db: Db,
    /// Whose channel it listens to.
    node: i64,
    bell: Arc<Bell>,
    since: Instant,
}

/// What there is to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Something was written down for this node.
    News,
    /// A node came or went, or shards are free.
    Change,
}

impl Ears {
    pub fn new(url: DatabaseUrl, options: PostgresOptions) -> Self {
        Self { url, options, open: None }
    }

    pub fn db(&self) -> Result<&Db, Error> {
        self.open.as_ref().map(|open| &open.db).ok_or_else(|| Error::Unreachable("no connection".to_owned()))
    }

    pub fn shut(&mut self) {
        self.open = None;
    }

    /// How long it has been in touch with the database without a break.
    pub fn in_touch_for(&self) -> Duration {
        self.open.as_ref().map_or(Duration::ZERO, |open| open.since.elapsed())
    }

    /// Waits until there is something to look at. Without a connection, for ever.
    pub async fn heard(&self) -> Heard {
        let Some(open) = &self.open else { return std::future::pending().await };
        match open.bell.heard().await.as_str() {
            news::EVERYONE => Heard::Change,
            _ => Heard::News,
        }
    }

    /// Listens on behalf of a node.
    pub async fn open(&mut self, node: i64) -> Result<(), Error> {
        if self.open.as_ref().is_some_and(|open| open.node == node && !open.db.is_closed()) {
            return Ok(());
        }
        self.open = None;
        let (db, bell) = self.url.connect(&self.options).await?;
        // What is written by this connection need not outlast the database's death: after it nobody is declared dead before
        // he could renew his lease, and to hear of something twice does no harm. The names are made of a number.
        let listen = format!("SET synchronous_commit = off; LISTEN {}; LISTEN {}", news::channel(node), news::EVERYONE);
        tokio::time::timeout(HEARD_WITHIN, db.batch_execute(&listen)).await.map_err(|_| Error::TooSlow)??;
        self.open = Some(Open { db, node, bell, since: Instant::now() });
        Ok(())
    }

    /// Makes sure that what is told is heard: a pooler that lends out connections swallows it.
    pub async fn prove(&mut self, node: i64) -> Result<(), OpenError> {
        let failed = |error: Error| OpenError::Database(describe(&error));
        self.open(node).await.map_err(failed)?;
        let db = self.db().map_err(failed)?;
        rows(db, "SELECT pg_notify($1, '')", &[&news::channel(node)]).await.map_err(failed)?;
        let own = async { while self.heard().await != Heard::News {} };
        tokio::time::timeout(HEARD_WITHIN, own).await.map_err(|_| OpenError::Pooled)
    }
}

const HEARD_WITHIN: Duration = Duration::from_secs(3);
