//! Counts what happens, for charts and for the statistics of the API.
//!
//! It is counted in memory and added to the store every few seconds, so that an attempt costs a few additions and no row. What
//! was counted since the last time is lost if the process dies; what was sent is never told from these numbers.

mod board;
mod events;
mod series;

pub use events::Event;
pub use series::{Period, Point, points};

use board::Board;
use postrider_engine::{AppKey, EndpointKey, Timestamp, policy::Class};
use postrider_store::{Counts, Store, StoreError, Tally};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How often what was counted is written. Where many applications and endpoints have counts of their own, those follow when
/// their minute is over.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Rows in one transaction, so that nobody waits long behind them.
const ROWS_AT_ONCE: usize = 500;

/// Between two of those.
const BREATH: Duration = Duration::from_millis(20);

/// Rows that wait for a store which takes none. Beyond them counts are dropped: they are not worth the memory.
const ROWS_MAX: usize = 200_000;

#[derive(Default)]
pub struct Statistics {
    boards: Mutex<Boards>,
}

#[derive(Default)]
struct Boards {
    current: Board,
    /// Rows that were worked out and are not written yet.
    unwritten: Vec<Tally>,
    dropped: u64,
}

/// An attempt that has ended.
pub struct Tried {
    pub app: AppKey,
    pub endpoint: EndpointKey,
    pub at: Timestamp,
    pub class: Class,
    pub status: Option<u16>,
    pub took: Duration,
    /// Since the message was accepted, if it arrived with this one.
    pub arrived_after: Option<Duration>,
}

impl Statistics {
    pub fn tried(&self, tried: &Tried) {
        let mut boards = self.boards_at(tried.at);
        let of_it = [Event::Attempt(tried.class), Event::answer(tried.status)];
        boards.current.count(&of_it, Some((tried.app, tried.endpoint)));
        boards.current.count(&[Event::Took(events::bucket(tried.took))], None);
        if let Some(after) = tried.arrived_after {
            boards.current.count(&[Event::Arrived(events::bucket(after))], None);
        }
    }

    pub fn accepted(&self, at: Timestamp) {
        self.boards_at(at).current.count(&[Event::Accepted], None);
    }

    pub fn given_up(&self, app: AppKey, endpoint: EndpointKey, at: Timestamp) {
        self.boards_at(at).current.count(&[Event::GivenUp], Some((app, endpoint)));
    }

    /// What waits and what is dead everywhere. Of several looks, also of several nodes, the last one counts.
    pub fn standing(&self, counts: Counts, at: Timestamp) {
        self.boards_at(at).current.stand(counts);
    }

    /// Writes until the store is closed.
    pub async fn keep(&self, store: &dyn Store, clock: fn() -> Timestamp) {
        loop {
            tokio::time::sleep(WRITE_EVERY).await;
            let whole = self.boards().current.is_worth_writing(clock());
            match self.write(store, whole).await {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "statistics could not be written; that is tried again"),
            }
        }
    }

    /// Writes what was counted; with `whole`, also of a minute that is not over yet.
    pub async fn write(&self, store: &dyn Store, whole: bool) -> Result<(), StoreError> {
        loop {
            let rows = {
                let mut boards = self.boards();
                boards.work_out(whole);
                let rest = boards.unwritten.len().saturating_sub(ROWS_AT_ONCE);
                boards.unwritten.split_off(rest)
            };
            if rows.is_empty() {
                return Ok(());
            }
            if let Err(error) = store.add_to_tallies(rows.clone()).await {
                self.boards().unwritten.extend(rows);
                return Err(error);
            }
            tokio::time::sleep(BREATH).await;
        }
    }

    fn boards(&self) -> MutexGuard<'_, Boards> {
        self.boards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the board of that minute laid open. What comes late counts for the minute in which it is heard of.
    fn boards_at(&self, at: Timestamp) -> MutexGuard<'_, Boards> {
        let mut boards = self.boards();
        if boards.current.is_over(at) {
            boards.work_out(true);
            boards.current = Board::at(at);
        }
        boards
    }
}

impl Boards {
    /// Turns what was counted into rows.
    fn work_out(&mut self, whole: bool) {
        let rows = self.current.take(whole);
        if self.unwritten.len() + rows.len() > ROWS_MAX {
            self.dropped += rows.len() as u64;
            tracing::warn!(dropped = self.dropped, "statistics are dropped, because the store takes none");
            return;
        }
        self.unwritten.extend(rows);
    }
}

#[cfg(test)]
mod tests;
