//! What may be on its way into the store at once, and in memory after that.
//!
//! Whoever brings a message waits here until there is room for it, in the order of coming. Those that are owed to many wait
//! for the balance besides, and only some of them are let in here at once, so that they hold nobody else up. Nothing of a
//! message is stored yet, so whoever has waited too long is asked to come again.

mod balance;

use crate::{AcceptError, Accepted, NewMessage, StoreError};
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
    time::{Instant, sleep, timeout_at},
};

/// Payload bytes that may be queued for the writer at once. Past it, whoever comes is asked to come again.
const QUEUED_BYTES_MAX: usize = 64 * 1024 * 1024;
const QUEUED_MESSAGES_MAX: usize = 20_000;

/// Deliveries without rows, all in all: twice what lanes may hold of them. So it counts only if the dispatcher cannot take
/// them up as fast as they come.
const ROOM: usize = 1 << 18;
/// A payload takes the room of a delivery for each so many bytes: all of it is twice what lanes may hold of them too.
const BYTES_PER_PLACE: usize = 512;

/// Messages that are owed to no more are not held up by the balance. A small machine writes them no faster than it can
/// bear.
pub const FEW: usize = 10;
/// So many that are owed to more may be on their way at once: half of those that the server lets in.
const MANY_MAX: usize = 128;

/// Whoever has waited so long had better hear of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon it is noticed that something has gone out, and so the next may come in sooner.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

pub struct Intake {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    room: Arc<Semaphore>,
    balance: Mutex<Balance>,
    /// How many are on their way that are owed to many.
    many: AtomicUsize,
    /// Only the first of those that wait looks at the balance.
    turn: tokio::sync::Mutex<()>,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(ROOM)),
            balance: Mutex::new(Balance::new(Instant::now().into_std())),
            many: AtomicUsize::new(0),
            turn: tokio::sync::Mutex::default(),
        }
    }
}

impl Intake {
    /// For a message that is owed to so many.
    pub async fn enter(&self, bytes: usize, deliveries: usize) -> Result<(Place<'_>, Room), StoreError> {
        self.enter_by(Instant::now() + PATIENCE, bytes, deliveries).await
    }

    /// For a message that came with others, which all together wait no longer than one.
    pub async fn enter_by(
        &self,
        end: Instant,
        bytes: usize,
        deliveries: usize,
    ) -> Result<(Place<'_>, Room), StoreError> {
        let mut place = self.queue(bytes, deliveries)?;
        let room = timeout_at(end, self.wait_for_room(bytes, deliveries)).await.unwrap_or(Err(StoreError::Busy))?;
        self.balance(|balance, now| balance.came_in(deliveries, now));
        place.counted_in = deliveries;
        Ok((place, room))
    }

    /// Lets messages in one after the other, and hands each on before the next one comes in: so they keep their order,
    /// whoever else is waiting. With the first that finds no room it is over for those behind it as well.
    pub async fn enter_in_order<T>(
        &self,
        messages: Vec<NewMessage>,
        mut hand_on: impl FnMut(NewMessage, Room) -> T,
    ) -> Entered<'_, T> {
        let (end, count) = (Instant::now() + PATIENCE, messages.len());
        let mut handed_on = Vec::with_capacity(count);
        for message in messages {
            match self.enter_by(end, message.content.payload.len(), message.owed.len()).await {
                Ok((place, room)) => handed_on.push((place, hand_on(message, room))),
                Err(fault) => return Entered { left: vec![fault; count - handed_on.len()], handed_on },
            }
        }
        Entered { handed_on, left: Vec::new() }
    }

    fn queue(&self, bytes: usize, deliveries: usize) -> Result<Place<'_>, StoreError> {
        let is_owed_to_many = deliveries > FEW;
        let messages = self.messages.fetch_add(1, Relaxed);
        let many = self.many.fetch_add(is_owed_to_many.into(), Relaxed);
        let before = self.bytes.fetch_add(bytes, Relaxed);
        let place = Place { intake: self, bytes, is_owed_to_many, counted_in: 0 };
        if messages >= QUEUED_MESSAGES_MAX || before + bytes > QUEUED_BYTES_MAX || (is_owed_to_many && many >= MANY_MAX)
        {
            Err(StoreError::Busy)
        } else {
            Ok(place)
        }
    }

    async fn wait_for_room(&self, bytes: usize, deliveries: usize) -> Result<Room, StoreError> {
        if deliveries > FEW {
            self.wait_for_balance().await?;
        }
        // Lanes alone may hold half of the room for long.
        let places = (deliveries + bytes / BYTES_PER_PLACE).min(ROOM / 2);
        let places = u32::try_from(places).expect("far less");
        let room = Arc::clone(&self.room).acquire_many_owned(places).await.map_err(|_| StoreError::Closed)?;
        Ok(Room(room))
    }

    async fn wait_for_balance(&self) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        while let Some(wait) = self.balance(Balance::wait) {
            if self.room.is_closed() {
                return Err(StoreError::Closed);
            }
            sleep(wait.min(LOOK_AGAIN)).await;
        }
        Ok(())
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

/// What became of messages that came together.
pub struct Entered<'i, T> {
    pub handed_on: Vec<(Place<'i>, T)>,
    /// One for each that was not let in: the last ones.
    pub left: Vec<StoreError>,
}

impl<T> Entered<'_, T> {
    /// Waits for what becomes of those that were let in, and says it of all.
    pub async fn answers<F>(self, mut end_of: impl FnMut(T) -> F) -> Vec<Result<Accepted, AcceptError>>
    where
        F: Future<Output = Result<Accepted, AcceptError>>,
    {
        let mut answers = Vec::with_capacity(self.handed_on.len() + self.left.len());
        for (mut place, handed_on) in self.handed_on {
            let answer = end_of(handed_on).await;
            if let Ok(Accepted::Now(_)) = answer {
                place.came_in();
            }
            answers.push(answer);
        }
        answers.extend(self.left.into_iter().map(|fault| Err(fault.into())));
        answers
    }
}

/// A message is on its way to the writer. Dropped, it is there, or has been turned away.
pub struct Place<'i> {
    intake: &'i Intake,
    bytes: usize,
    is_owed_to_many: bool,
    /// Deliveries that are in the balance, and perhaps will not be there.
    counted_in: usize,
}

impl Place<'_> {
    /// The message is stored, and new.
    pub fn came_in(&mut self) {
        self.counted_in = 0;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.intake.messages.fetch_sub(1, Relaxed);
        self.intake.bytes.fetch_sub(self.bytes, Relaxed);
        self.intake.many.fetch_sub(self.is_owed_to_many.into(), Relaxed);
        if self.counted_in > 0 {
            self.intake.went_out(self.counted_in);
        }
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

    /// A message that is stored then.
    async fn store(intake: &Intake, deliveries: usize) -> Result<Room, StoreError> {
        let (mut place, room) = intake.enter(0, deliveries).await?;
        place.came_in();
        Ok(room)
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_no_room_one_waits_until_there_is() {
        let intake = Intake::default();
        let half = store(&intake, ROOM).await.unwrap();
        intake.went_out(ROOM);
        let other_half = store(&intake, ROOM).await.unwrap();
        assert!(matches!(store(&intake, 1).await, Err(StoreError::Busy)));
        let (next, ()) = tokio::join!(store(&intake, 1), async { drop(half) });
        assert!(next.is_ok());
        drop(other_half);
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
        let rush = async || store(&intake, 20_000).await.map(drop);
        for _ in 0..3 {
            rush().await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        rush().await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
        let began = Instant::now();
        let (next, ()) = tokio::join!(rush(), async { intake.went_out(1_000_000) });
        assert!(next.is_ok() && began.elapsed() <= LOOK_AGAIN, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_owed_to_few_is_not_held_up_by_what_is_owed_to_many() {
        let intake = Intake::default();
        store(&intake, 1_000_000).await.unwrap();
        let began = Instant::now();
        let many = async {
            let all = (0..=MANY_MAX).map(|_| store(&intake, FEW + 1));
            let refused = futures_util::future::join_all(all).await.into_iter().filter(Result::is_err).count();
            assert_eq!(refused, MANY_MAX + 1, "there was no place for one, and for the others it took too long");
        };
        let few = async {
            assert!(store(&intake, FEW).await.is_ok());
            assert_eq!(began.elapsed(), Duration::ZERO);
        };
        tokio::join!(many, few);
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_did_not_come_in_after_all_counts_for_nothing() {
        let intake = Intake::default();
        let began = Instant::now();
        for _ in 0..100 {
            drop(intake.enter(0, 20_000).await.unwrap());
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_store_that_is_closed() {
        let intake = Intake::default();
        store(&intake, 1_000_000).await.unwrap();
        let (next, ()) = tokio::join!(store(&intake, FEW + 1), async { intake.close() });
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
