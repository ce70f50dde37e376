//! The one writer of this node, and group commit.

use super::{Db, Result};
use crate::{
    AcceptError, Accepted, Committed, NewMessage, Settlement, StoreError,
    rows::minter::Minter,
    shards::{Shards, Tenure},
};
use deadpool_postgres::Client;
use futures_util::future::BoxFuture;
use postrider_engine::{DeliveryId, OrderKey, Timestamp};
use std::sync::Arc;

/// A transaction during which no other node writes, and what is to be told once it is committed.
pub struct Turn {
    client: Arc<Client>,
    announced: Vec<Committed>,
}

impl Turn {
    pub fn db(&self) -> &Db {
        &self.client
    }

    /// Whoever serves the lane, or keeps the settings, is told as soon as this is committed.
    pub fn announce(&mut self, committed: Committed) {
        self.announced.push(committed);
    }

    /// Whoever does the work in the background is told, if that is another node. On this one the caller sees to it.
    pub fn announce_work(&mut self) {
        todo!()
    }
}

pub struct Writer {}

pub struct Shared {}

impl Shared {
    pub fn tenure(&self) -> Tenure {
        todo!()
    }

    pub fn may_send(&self) -> bool {
        todo!()
    }

    pub fn leads(&self) -> bool {
        todo!()
    }

    pub fn minter(&self) -> &Minter {
        todo!()
    }
}

impl Writer {
    pub fn shared(&self) -> &Shared {
        todo!()
    }

    pub async fn accept(&self, _message: NewMessage) -> Result<Accepted, AcceptError> {
        todo!()
    }

    pub async fn settle(&self, _tenure: Tenure, _settlements: Arc<Vec<Settlement>>) -> Result<(), StoreError> {
        todo!()
    }

    pub async fn spill(
        &self,
        _tenure: Tenure,
        _deliveries: Vec<(DeliveryId, Option<OrderKey>)>,
        _due: Timestamp,
    ) -> Result<(), StoreError> {
        todo!()
    }

    pub async fn own(&self, _tenure: Tenure, _shards: Shards) -> Result<(), StoreError> {
        todo!()
    }

    pub async fn disown(&self, _tenure: Tenure, _shards: Shards) -> Result<(), StoreError> {
        todo!()
    }

    /// Runs a piece of work in a transaction of its own, while no other node writes.
    pub async fn turn<T, F>(&self, _work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Turn) -> BoxFuture<'t, Result<T>> + Send + Sync + 'static,
    {
        todo!()
    }

    pub async fn close(&self) {
        todo!()
    }
}
