//! In memory, for tests: gone with the process.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::{Event, EventKey, SourceName, Timestamp, sequence::Track, store::*};

#[derive(Debug, Default)]
pub struct MemoryStore {
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    events: BTreeMap<EventKey, Row>,
    tracks: BTreeMap<(SourceName, String), (Track, Timestamp)>,
}

#[derive(Debug)]
struct Row {
    event: Event,
    size: u64,
    attempts: u32,
    fence: i64,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting { due: Timestamp },
    Done { at: Timestamp },
    Dead { at: Timestamp, reason: String },
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        for row in self.events.values() {
            match &row.state {
                State::Waiting { due } => {
                    standing.queued += 1;
                    standing.queued_bytes += row.size;
                    standing.due_first = Some(standing.due_first.map_or(*due, |first| first.min(*due)));
                }
                State::Done { .. } => {}
                State::Dead { .. } => standing.dead += 1,
            }
        }
        standing
    }

    fn dead(&self) -> Vec<DeadEvent> {
        let mut dead: Vec<DeadEvent> = self
            .events
            .values()
            .filter_map(|row| match &row.state {
                State::Waiting { .. } | State::Done { .. } => None,
                State::Dead { at, reason } => Some(DeadEvent {
                    event: row.event.clone(),
                    attempts: row.attempts,
                    died_at: *at,
                    reason: reason.clone(),
                }),
            })
            .collect();
        dead.sort_by_key(DeadEvent::cursor);
        dead
    }

    fn replay(&mut self, key: &EventKey, now: Timestamp) -> Replayed {
        match self.events.get_mut(key) {
            Some(row) if matches!(row.state, State::Dead { .. }) => {
                row.state = State::Waiting { due: now };
                row.attempts = 0;
                row.fence += 1;
                Replayed::Queued
            }
            Some(_) | None => Replayed::NotDead,
        }
    }

    fn forget(&mut self, max: usize, is_old: impl Fn(&State) -> Option<Timestamp>) -> usize {
        let mut old: Vec<(Timestamp, EventKey)> =
            self.events.iter().filter_map(|(key, row)| Some((is_old(&row.state)?, key.clone()))).collect();
        old.sort();
        old.truncate(max);
        old.iter().for_each(|(_, key)| drop(self.events.remove(key)));
        old.len()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
        let mut inside = self.inside();
        if inside.events.contains_key(&event.key) {
            return Ok(Recorded::Duplicate);
        }
        let (standing, size) = (inside.standing(), event.size());
        if limits.are_reached(standing.queued, standing.queued_bytes, size) {
            return Ok(Recorded::Full);
        }
        let arrival = event.place.as_ref().map(|place| {
            let key = (event.key.source.clone(), place.ordering_key.clone());
            let (track, at) = inside.tracks.entry(key).or_insert((Track::default(), event.received_at));
            *at = event.received_at;
            track.arrive(place.number)
        });
        let kept = Event { arrival, ..event.clone() };
        let state = State::Waiting { due: event.received_at };
        inside.events.insert(event.key.clone(), Row { event: kept, size, attempts: 0, fence: 0, state });
        Ok(Recorded::New { arrival })
    }

    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
        let mut inside = self.inside();
        let mut due: Vec<(Timestamp, EventKey)> = inside
            .events
            .iter()
            .filter_map(|(key, row)| match row.state {
                State::Waiting { due } if due <= now => Some((due, key.clone())),
                State::Waiting { .. } | State::Done { .. } | State::Dead { .. } => None,
            })
            .collect();
        due.sort();
        due.truncate(max);
        let until = now.after(lease);
        let claims = due.into_iter().map(|(_, key)| {
            let row = inside.events.get_mut(&key).expect("it was found under the same lock");
            row.state = State::Waiting { due: until };
            row.attempts += 1;
            row.fence += 1;
            let ticket = Ticket { key, fence: row.fence, until };
            Claim { event: row.event.clone(), attempt: row.attempts, ticket }
        });
        Ok(claims.collect())
    }

    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
        let mut inside = self.inside();
        let row = inside.events.get_mut(&ticket.key);
        let is_ours = |row: &&mut Row| row.fence == ticket.fence && matches!(row.state, State::Waiting { .. });
        let Some(row) = row.filter(is_ours) else { return Ok(Settled::LeaseLost) };
        row.state = match settlement {
            Settlement::Done => {
                row.event.body.clear();
                row.event.headers.clear();
                State::Done { at: now }
            }
            Settlement::Again { due, .. } => State::Waiting { due: *due },
            Settlement::Dead { reason } => State::Dead { at: now, reason: reason.clone() },
        };
        Ok(Settled::Written)
    }

    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        let dead = self.inside().dead().into_iter();
        Ok(dead.filter(|dead| after.is_none_or(|after| dead.cursor() > *after)).take(max).collect())
    }

    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
        Ok(self.inside().replay(key, now))
    }

    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError> {
        let mut inside = self.inside();
        let dead: Vec<DeadEvent> = inside.dead().into_iter().filter(|dead| dead.died_at <= until).take(max).collect();
        for dead in &dead {
            inside.replay(&dead.event.key, now);
        }
        Ok(dead.len())
    }

    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        let mut inside = self.inside();
        let events = inside.forget(max, |state| match state {
            State::Done { at } if *at < before => Some(*at),
            State::Waiting { .. } | State::Done { .. } | State::Dead { .. } => None,
        });
        let old = inside.tracks.iter().filter(|(_, (_, at))| *at < before).map(|(key, (_, at))| (*at, key.clone()));
        let mut old: Vec<_> = old.collect();
        old.sort();
        old.truncate(max);
        old.iter().for_each(|(_, key)| drop(inside.tracks.remove(key)));
        Ok(events + old.len())
    }

    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        Ok(self.inside().forget(max, |state| match state {
            State::Dead { at, .. } if *at < before => Some(*at),
            State::Waiting { .. } | State::Done { .. } | State::Dead { .. } => None,
        }))
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        Ok(self.inside().standing())
    }
}
