//! How much may be on its way in at once.
//!
//! The store takes as many messages as it can, and what comes faster than that waits for it. Without a limit the queue would
//! grow until nobody hears an answer in time, and every answer would come too late: all work, and no use. So whoever comes
//! when enough are waiting is told to come again, which costs next to nothing, because it is said before anything is read.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

pub struct Gate {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    limits: GateLimits,
    refused: metrics::Counter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    pub messages_max: usize,
    pub bytes_max: usize,
}

impl Default for GateLimits {
    fn default() -> Self {
        // Some commits' worth: a commit takes what has gathered during the one before it.
        Self { messages_max: 2_048, bytes_max: 64 * 1024 * 1024 }
    }
}

/// One message is on its way in. Dropped, it is there or has been turned away.
pub struct Pass {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Gate {
    pub fn new(limits: GateLimits) -> Self {
        let refused = metrics::counter!("postrider_messages_shed_total");
        // So that it is there before the first one, for an alert to compare with.
        refused.increment(0);
        Self { messages: AtomicUsize::new(0), bytes: AtomicUsize::new(0), limits, refused }
    }

    /// `None`: not now. One message always may, however great it is.
    pub fn enter(self: &Arc<Self>, bytes: usize) -> Option<Pass> {
        let messages_before = self.messages.fetch_add(1, Relaxed);
        let bytes_before = self.bytes.fetch_add(bytes, Relaxed);
        let pass = Pass { gate: Arc::clone(self), bytes };
        let fits = messages_before < self.limits.messages_max
            && bytes_before.saturating_add(bytes) <= self.limits.bytes_max.max(bytes);
        if !fits {
            self.refused.increment(1);
        }
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
        let (first, second) = (gate.enter(1), gate.enter(1));
        assert!(first.is_some() && second.is_some());
        assert!(gate.enter(1).is_none());
        drop(first);
        assert!(gate.enter(1).is_some());
    }

    #[test]
    fn great_ones_fill_it_sooner() {
        let gate = gate(100, 1_000);
        let first = gate.enter(600);
        assert!(gate.enter(600).is_none());
        let small = gate.enter(400);
        assert!(first.is_some() && small.is_some());
    }

    #[test]
    fn one_that_is_greater_than_all_may_be_comes_in_alone() {
        let gate = gate(100, 1_000);
        let giant = gate.enter(5_000);
        assert!(giant.is_some());
        assert!(gate.enter(1).is_none());
        drop(giant);
        let small = gate.enter(1);
        assert!(small.is_some());
        assert!(gate.enter(5_000).is_none());
    }
}
