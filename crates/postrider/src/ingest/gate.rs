//! How much may be on its way in at once.
//!
//! The store takes as many messages as it can, and what comes faster than that waits for it. Without a limit the queue would
//! grow until nobody hears an answer in time, and every answer would come too late: all work, and no use. So whoever comes
//! when enough are waiting is told to come again, which costs little, because it is said before anything is read, and at a
//! pace (`pace.rs`). Whoever finds room when it is his turn to be told so is let in after all: a short rush is not refused,
//! only spread.
//!
//! While more is ready to be sent than the node gets sent soon, everyone waits a moment before he asks for room (decision 26).
//!
//! A batch has a place like a message, and its messages come in by groups, of as many as there is room for just then. All
//! batches together have half of it: however great and many they are, whoever brings one message finds the other half.

use super::pace::Pace;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

pub struct Gate {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    batches: AtomicUsize,
    /// What batches have of the messages besides one each, and of the bytes.
    grouped: AtomicUsize,
    batched_bytes: AtomicUsize,
    limits: GateLimits,
    pace: Mutex<Pace>,
    lags: watch::Sender<bool>,
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

/// What comes while lanes lag waits so long, or until they do not: what they keep in memory costs far less than what must be
/// given rows. It is not for longer, since a producer is to be held up less than it would notice.
const RESPITE: Duration = Duration::from_millis(20);

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
        let none = AtomicUsize::default;
        Self {
            messages: none(),
            bytes: none(),
            batches: none(),
            grouped: none(),
            batched_bytes: none(),
            limits,
            pace: Mutex::default(),
            lags: watch::Sender::new(false),
            refused,
        }
    }

    /// Waits for as long as it takes until the one who asks may be told that there is no room.
    pub async fn enter(self: &Arc<Self>, bytes: usize) -> Result<Pass, Full> {
        self.enter_if(|| self.try_enter(bytes)).await
    }

    /// The same, for a batch of so many bytes.
    pub async fn enter_batch(self: &Arc<Self>, bytes: usize) -> Result<BatchPass, Full> {
        self.enter_if(|| self.try_enter_batch(bytes)).await
    }

    async fn enter_if<P>(&self, try_enter: impl Fn() -> Option<P>) -> Result<P, Full> {
        self.wait_for_lanes().await;
        if let Some(pass) = try_enter() {
            return Ok(pass);
        }
        let full = self.wait_to_refuse().await;
        try_enter().ok_or_else(|| {
            self.refused.increment(1);
            full
        })
    }

    /// Whether more is ready to be sent than will be sent soon.
    pub fn set_lag(&self, lags: bool) {
        self.lags.send_replace(lags);
    }

    async fn wait_for_lanes(&self) {
        if *self.lags.borrow() {
            let _ = timeout(RESPITE, self.lags.subscribe().wait_for(|lags| !lags)).await;
        }
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

    /// One batch always may, if nothing but single messages is there.
    fn try_enter_batch(self: &Arc<Self>, bytes: usize) -> Option<BatchPass> {
        let batches_before = self.batches.fetch_add(1, Relaxed);
        let bytes_before = self.batched_bytes.fetch_add(bytes, Relaxed);
        let share = Share { gate: Arc::clone(self), bytes };
        let fits = batches_before < self.batches_max()
            && bytes_before.saturating_add(bytes) <= (self.limits.bytes_max / 2).max(bytes);
        if fits { Some(BatchPass { pass: self.try_enter(bytes)?, _share: share }) } else { None }
    }

    /// Kept free of groups, so that those that are there do not keep others from beginning.
    fn batches_max(&self) -> usize {
        (self.limits.messages_max / 8).max(1)
    }

    fn grouped_max(&self) -> usize {
        (self.limits.messages_max / 2).saturating_sub(self.batches_max())
    }
}

/// Takes as many as there are free of those that are wanted.
fn take(taken: &AtomicUsize, max: usize, wanted: usize) -> usize {
    let free = |taken: usize| wanted.min(max.saturating_sub(taken));
    let before = taken.fetch_update(Relaxed, Relaxed, |taken| Some(taken + free(taken)));
    free(before.unwrap_or_else(|unchanged| unchanged))
}

/// What is counted of a batch besides.
struct Share {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.gate.batches.fetch_sub(1, Relaxed);
        self.gate.batched_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// A batch is on its way in, with all its bytes and one of its messages at a time, or more by `group`.
pub struct BatchPass {
    pass: Pass,
    _share: Share,
}

impl BatchPass {
    /// For a group of so many of its messages at most.
    pub fn group(&self, messages_max: usize) -> Group {
        let gate = &self.pass.gate;
        let of_batches = take(&gate.grouped, gate.grouped_max(), messages_max.saturating_sub(1));
        let more = take(&gate.messages, gate.limits.messages_max, of_batches);
        gate.grouped.fetch_sub(of_batches - more, Relaxed);
        Group { gate: Arc::clone(gate), more }
    }
}

/// Some messages of a batch are on their way in. Dropped, they are there.
pub struct Group {
    gate: Arc<Gate>,
    /// Besides the one that the batch has a place for.
    more: usize,
}

impl Group {
    pub fn messages(&self) -> usize {
        1 + self.more
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.gate.messages.fetch_sub(self.more, Relaxed);
        self.gate.grouped.fetch_sub(self.more, Relaxed);
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

    #[tokio::test(start_paused = true)]
    async fn while_lanes_lag_everyone_waits_a_moment() {
        let gate = gate(8, 1_000);
        let elapsed = async || {
            let began = Instant::now();
            assert!(gate.enter(1).await.is_ok());
            let waited = began.elapsed();
            assert!(gate.enter_batch(1).await.is_ok());
            (waited, began.elapsed() - waited)
        };
        assert_eq!(elapsed().await, (Duration::ZERO, Duration::ZERO));
        gate.set_lag(true);
        let (message, batch) = elapsed().await;
        assert!(message >= RESPITE && batch >= RESPITE && message + batch < 3 * RESPITE, "{message:?}, {batch:?}");
        let (waited, ()) = tokio::join!(elapsed(), async { gate.set_lag(false) });
        assert_eq!(waited, (Duration::ZERO, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_lanes_takes_no_room() {
        let gate = gate(1, 1_000);
        gate.set_lag(true);
        let began = Instant::now();
        let all = (0..100).map(|_| async { gate.enter(1).await.map(drop) });
        assert!(futures_util::future::join_all(all).await.iter().all(Result::is_ok));
        assert!(began.elapsed() < 2 * RESPITE, "{:?}", began.elapsed());
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

    #[test]
    fn batches_leave_half_of_it_to_single_messages() {
        let gate = gate(100, 1_000);
        let batches: Vec<_> = std::iter::from_fn(|| gate.try_enter_batch(100)).collect();
        assert_eq!(batches.len(), 5, "half of the bytes");
        drop(batches);
        let batches: Vec<_> = (0..5).map_while(|_| gate.try_enter_batch(50)).collect();
        let groups: Vec<_> = batches.iter().map(|batch| batch.group(64)).collect();
        assert_eq!(
            groups.iter().map(Group::messages).collect::<Vec<_>>(),
            [39, 1, 1, 1, 1],
            "half of the messages, but for others"
        );
        let more: Vec<_> = std::iter::from_fn(|| gate.try_enter_batch(0)).collect();
        assert_eq!(more.len(), 7, "whatever the groups have");
        let single: Vec<_> = std::iter::from_fn(|| gate.try_enter(1)).collect();
        assert_eq!(single.len(), 50);
        drop((groups, batches, more, single));
        for (counted, what) in [
            (&gate.messages, "messages"),
            (&gate.bytes, "bytes"),
            (&gate.batches, "batches"),
            (&gate.grouped, "messages of batches"),
            (&gate.batched_bytes, "bytes of batches"),
        ] {
            assert_eq!(counted.load(Relaxed), 0, "{what}");
        }
    }

    #[test]
    fn a_batch_goes_on_one_by_one_where_single_messages_have_all_the_room() {
        let gate = gate(10, 1_000);
        let batch = gate.try_enter_batch(5_000).expect("one always may");
        assert!(gate.try_enter_batch(1).is_none(), "the first is as great as all may be");
        let single: Vec<_> = std::iter::from_fn(|| gate.try_enter(0)).collect();
        assert_eq!(single.len(), 0, "so great a batch fills it");
        drop(batch);
        let batch = gate.try_enter_batch(100).expect("there is room");
        let single: Vec<_> = std::iter::from_fn(|| gate.try_enter(1)).collect();
        assert_eq!((single.len(), batch.group(64).messages()), (9, 1));
        drop(single);
        assert_eq!(batch.group(64).messages(), 5, "half of it");
        assert_eq!(batch.group(3).messages(), 3);
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
