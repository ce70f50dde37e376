//! How much may be on its way in at once.
//!
//! The store takes as many messages as it can, and what comes faster than that waits for it. Without a limit the queue would
//! grow until nobody hears an answer in time, and every answer would come too late: all work, and no use. So whoever comes
//! when enough are waiting is told to come again, which costs little, because it is said before anything is read, and at a
//! pace (`pace.rs`). Whoever finds room when it is his turn to be told so is let in after all: a short rush is not refused,
//! only spread.

use super::pace::Pace;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

pub struct Gate {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    limits: GateLimits,
    pace: Mutex<Pace>,
    refused: metrics::Counter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    pub messages_max: usize,
    pub bytes_max: usize,
}

impl Default for GateLimits {
    fn default() -> Self {
        // As many as make the best of a commit, which takes what has gathered during the one before it. With more the commits
        // only get longer, and lanes are handed more at a time than they keep in memory.
        Self { messages_max: 256, bytes_max: 64 * 1024 * 1024 }
    }
}

/// One message is on its way in. Dropped, it is there or has been turned away.
pub struct Pass {
    gate: Arc<Gate>,
    bytes: usize,
}

/// Not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub retry_after: Duration,
}

impl Gate {
    pub fn new(limits: GateLimits) -> Self {
        let refused = metrics::counter!("postrider_messages_shed_total");
        // So that it is there before the first one, for an alert to compare with.
        refused.increment(0);
        let (messages, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { messages, bytes, limits, pace: Mutex::default(), refused }
    }

    /// Waits for as long as it takes until the one who asks may be told that there is no room.
    pub async fn enter(self: &Arc<Self>, bytes: usize) -> Result<Pass, Full> {
        if let Some(pass) = self.try_enter(bytes) {
            return Ok(pass);
        }
        let full = self.wait_to_refuse().await;
        self.try_enter(bytes).ok_or_else(|| {
            self.refused.increment(1);
            full
        })
    }

    /// The store has no room, which was found out only behind the gate. The pass should be dropped before: others may come in
    /// meanwhile.
    pub async fn turn_away(&self) -> Full {
        self.refused.increment(1);
        self.wait_to_refuse().await
    }

    async fn wait_to_refuse(&self) -> Full {
        let refusal = self.pace.lock().expect("no one panics while reckoning").refuse(Instant::now().into_std());
        tokio::time::sleep_until(refusal.at.into()).await;
        Full { retry_after: refusal.retry_after }
    }

    /// One message always may, however great it is.
    fn try_enter(self: &Arc<Self>, bytes: usize) -> Option<Pass> {
        let messages_before = self.messages.fetch_add(1, Relaxed);
        let bytes_before = self.bytes.fetch_add(bytes, Relaxed);
        let pass = Pass { gate: Arc::clone(self), bytes };
        let fits = messages_before < self.limits.messages_max
            && bytes_before.saturating_add(bytes) <= self.limits.bytes_max.max(bytes);
        fits.then_some(pass)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.messages.fetch_sub(1, Relaxed);
        self.gate.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(messages_max: usize, bytes_max: usize) -> Arc<Gate> {
        Arc::new(Gate::new(GateLimits { messages_max, bytes_max }))
    }

    #[test]
    fn as_many_as_may_come_in_and_the_next_when_one_is_through() {
        let gate = gate(2, 1_000);
        let (first, second) = (gate.try_enter(1), gate.try_enter(1));
        assert!(first.is_some() && second.is_some());
        assert!(gate.try_enter(1).is_none());
        drop(first);
        assert!(gate.try_enter(1).is_some());
    }

    #[test]
    fn great_ones_fill_it_sooner() {
        let gate = gate(100, 1_000);
        let first = gate.try_enter(600);
        assert!(gate.try_enter(600).is_none());
        let small = gate.try_enter(400);
        assert!(first.is_some() && small.is_some());
    }

    #[test]
    fn one_that_is_greater_than_all_may_be_comes_in_alone() {
        let gate = gate(100, 1_000);
        let giant = gate.try_enter(5_000);
        assert!(giant.is_some());
        assert!(gate.try_enter(1).is_none());
        drop(giant);
        let small = gate.try_enter(1);
        assert!(small.is_some());
        assert!(gate.try_enter(5_000).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rush_is_let_in_one_after_the_other_as_room_is_made() {
        let gate = gate(1, 1_000);
        let first = gate.enter(1).await;
        // Some are before it, so that it has to wait.
        for _ in 0..1_000 {
            gate.pace.lock().unwrap().refuse(Instant::now().into_std());
        }
        let (second, ()) = tokio::join!(gate.enter(1), async { drop(first) });
        assert!(second.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_get_in_is_told_when_to_come_again() {
        let gate = gate(1, 1_000);
        let _first = gate.enter(1).await;
        let refused = gate.enter(1).await.err().expect("it is full");
        assert!(refused.retry_after >= Duration::from_secs(1), "{refused:?}");
    }
}
