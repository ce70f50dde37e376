//! What may be on its way into the store at once, and in memory after that.
//!
//! Whoever brings a message waits here, in the order of coming, until there is room for it. Nothing of it is stored yet, so
//! whoever has waited too long is asked to come again.

mod balance;

use crate::StoreError;
use balance::Balance;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};

/// Payload bytes that may be queued for the writer at once. Past it, whoever comes is asked to come again.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
const QUEUED_MESSAGES_MAX: usize = 20_000;

/// Deliveries without rows, all in all: twice what lanes may hold of them. So it counts only if the dispatcher cannot take
/// them up as fast as they come.
const ROOM: usize = 1 << 18;
/// A payload takes the room of a delivery for each so many bytes: all of it is twice what lanes may hold of them too.
const BYTES_PER_PLACE: usize = 512;

/// Whoever has waited so long had better hear of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon it is noticed that something has gone out, and so the next may come in sooner.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

pub struct Intake {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    room: Arc<Semaphore>,
    balance: Mutex<Balance>,
    /// Only the first in the queue looks at the balance.
    turn: tokio::sync::Mutex<()>,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(ROOM)),
            balance: Mutex::new(Balance::new(Instant::now().into_std())),
            turn: tokio::sync::Mutex::default(),
        }
    }
}

impl Intake {
    /// For a message that is owed to so many.
    pub async fn enter(&self, bytes: usize, deliveries: usize) -> Result<(Place<'_>, Room), StoreError> {
        let place = self.queue(bytes)?;
        let room = timeout(PATIENCE, self.wait_for_room(bytes, deliveries)).await.unwrap_or(Err(StoreError::Busy))?;
        Ok((place, room))
    }

    fn queue(&self, bytes: usize) -> Result<Place<'_>, StoreError> {
        let messages = self.messages.fetch_add(1, Relaxed);
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let place = Place { intake: self, bytes };
        if messages >= QUEUED_MESSAGES_MAX || before + bytes > QUEUED_BYTES_MAX {
            Err(StoreError::Busy)
        } else {
            Ok(place)
        }
    }

    async fn wait_for_room(&self, bytes: usize, deliveries: usize) -> Result<Room, StoreError> {
        let _turn = self.turn.lock().await;
        while let Some(wait) = self.balance(Balance::wait) {
            if self.room.is_closed() {
                return Err(StoreError::Closed);
            }
            sleep(wait.min(LOOK_AGAIN)).await;
        }
        let places = (deliveries + bytes / BYTES_PER_PLACE).min(ROOM);
        let places = u32::try_from(places).expect("far less");
        let room = Arc::clone(&self.room).acquire_many_owned(places).await.map_err(|_| StoreError::Closed)?;
        self.balance(|balance, now| balance.came_in(deliveries, now));
        Ok(Room(room))
    }

    /// Outcomes were written, whatever they were.
    pub fn went_out(&self, outcomes: usize) {
        self.balance(|balance, now| balance.went_out(outcomes, now));
    }

    fn balance<T>(&self, look: impl FnOnce(&mut Balance, std::time::Instant) -> T) -> T {
        look(&mut self.balance.lock().unwrap_or_else(PoisonError::into_inner), Instant::now().into_std())
    }

    /// Nobody comes in any more.
    pub fn close(&self) {
        self.room.close();
    }

    #[cfg(test)]
    pub fn room_taken(&self) -> usize {
        ROOM - self.room.available_permits()
    }
}

/// A message is on its way to the writer. Dropped, it is there.
pub struct Place<'i> {
    intake: &'i Intake,
    bytes: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.intake.messages.fetch_sub(1, Relaxed);
        self.intake.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Room in memory for a message's deliveries until each has a row. Dropped, it is free for others.
#[derive(Debug)]
pub struct Room(OwnedSemaphorePermit);

impl Room {
    /// So many have a row now.
    pub fn give_back(&mut self, deliveries: usize) {
        drop(self.0.split(deliveries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_owed_to_more_than_there_is_room_for_waits_until_there_is_nothing_else() {
        let intake = Intake::default();
        let (_place, all) = intake.enter(0, ROOM + 1).await.unwrap();
        intake.went_out(ROOM + 1);
        assert!(matches!(intake.enter(0, 1).await, Err(StoreError::Busy)));
        let (next, ()) = tokio::join!(intake.enter(0, 1), async { drop(all) });
        assert!(next.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn great_payloads_take_room_too() {
        let intake = Intake::default();
        let (_place, room) = intake.enter(10 * BYTES_PER_PLACE, 3).await.unwrap();
        assert_eq!(intake.room_taken(), 13);
        drop(room);
        assert_eq!(intake.room_taken(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_rush_they_come_in_one_after_the_other_as_something_goes_out() {
        let intake = Intake::default();
        let began = Instant::now();
        let rush = async || drop(intake.enter(0, 20_000).await.unwrap());
        for _ in 0..3 {
            rush().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        rush().await;
        assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
        let began = Instant::now();
        tokio::join!(rush(), async { intake.went_out(1_000_000) });
        assert!(began.elapsed() <= LOOK_AGAIN, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_store_that_is_closed() {
        let intake = Intake::default();
        drop(intake.enter(0, 1_000_000).await.unwrap());
        let (next, ()) = tokio::join!(intake.enter(0, 1), async { intake.close() });
        assert!(matches!(next, Err(StoreError::Closed)));
    }

    #[tokio::test]
    async fn no_more_bytes_are_queued_than_may_be() {
        let intake = Intake::default();
        let first = intake.enter(QUEUED_BYTES_MAX, 1).await;
        assert!(first.is_ok());
        assert!(matches!(intake.enter(1, 1).await, Err(StoreError::Busy)));
        drop(first);
        assert!(intake.enter(1, 1).await.is_ok());
    }
}
