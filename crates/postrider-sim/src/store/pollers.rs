//! Reading on from a place, and the places that consumers have come to.

use super::{
    batch::{Batch, Kind},
    settings::{self, Put},
    tables::Tables,
};
use postrider_engine::{AppKey, MessageKey, Timestamp, keys::first_key_at};
use postrider_store::{CONSUMERS_MAX, Consumer, Look, PollerKey, PutError, ReadOn, Reading, Remember, Stride, WasRead};
use std::time::Duration;

/// As in the store of several nodes.
const BEHIND: Duration = Duration::from_millis(500);

pub fn horizon(batch: &mut Batch<'_>, now: Timestamp) -> MessageKey {
    let tables = &mut batch.tables;
    let last = tables.messages.keys().last().map_or(0, |key| key.raw());
    if batch.kind == Kind::Alone {
        return MessageKey::new(last);
    }
    let target = first_key_at(now.minus(BEHIND));
    // A floor that is ahead of the clock is raised to what there is.
    tables.floor = tables.floor.max(if tables.floor >= target { last } else { target });
    MessageKey::new(tables.floor)
}

pub fn read_on(tables: &Tables, app: AppKey, wanted: &ReadOn) -> WasRead {
    let (mut reading, mut messages) = (Reading::of(wanted), Vec::new());
    for (key, row) in &tables.messages {
        if row.app != app || *key <= wanted.past || *key > wanted.until {
            continue;
        }
        let fits = wanted.sieve.lets_through(&row.content);
        match reading.look(*key, fits.then(|| row.message().content.payload.len())) {
            Look::Take => messages.push(row.message()),
            Look::Skip => {}
            Look::Stop => break,
        }
    }
    reading.end(messages)
}

pub fn consumer(tables: &Tables, poller: PollerKey, name: &str) -> Option<Consumer> {
    tables.consumers.get(&(poller, name.to_owned())).map(|(_, consumer)| consumer.clone())
}

pub fn consumers(tables: &Tables, poller: PollerKey) -> Vec<Consumer> {
    let of_poller = tables.consumers.iter().filter(|((owner, _), _)| *owner == poller);
    of_poller.map(|(_, (_, consumer))| consumer.clone()).collect()
}

pub fn move_consumer(batch: &mut Batch<'_>, stride: Stride, remember: Option<Remember>) -> Put<Consumer> {
    settings::put(batch, remember, stride.at, |batch| {
        let found = consumer(batch.tables, stride.poller, &stride.consumer);
        let Some(moved) = stride.from(found.as_ref()) else { return found.ok_or(PutError::Full) };
        if found.is_none() && consumers(batch.tables, stride.poller).len() >= CONSUMERS_MAX {
            return Err(PutError::Full);
        }
        batch.tables.consumers.insert((stride.poller, stride.consumer), (stride.app, moved.clone()));
        Ok(moved)
    })
}

pub fn forget_consumers(batch: &mut Batch<'_>, poller: PollerKey, name: Option<&str>) -> bool {
    let before = batch.tables.consumers.len();
    let is_meant = |(owner, named): &(PollerKey, String)| *owner == poller && name.is_none_or(|name| name == named);
    batch.tables.consumers.retain(|key, _| !is_meant(key));
    batch.tables.consumers.len() < before
}
