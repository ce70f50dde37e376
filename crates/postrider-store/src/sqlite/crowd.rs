//! Whether to wait for more before the next commit.
//!
//! A commit has a price of its own, whatever it takes along, so that commits are kept apart while many write. But when
//! enough are here to share that price, to wait on lets them wait for nobody's good: those who wait for their answer before
//! they come again have nothing to bring meanwhile, and processors idle. So the last of them ends the gap, and while these
//! are written the next ones are read.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, Thread},
    time::Instant,
};

/// With 16 to 32, 64 who come again as soon as they are answered had more done than with none or with 48, at the same
/// processor time for each; 5,000 a second do not come to so many.
const ENOUGH: usize = 24;

/// Those who have queued since the last commit began.
#[derive(Default)]
pub struct Crowd {
    here: AtomicUsize,
    lags: AtomicBool,
    writer: OnceLock<Thread>,
}

impl Crowd {
    /// Told by whoever has queued a job.
    pub fn came(&self) {
        if self.here.fetch_add(1, SeqCst) + 1 == ENOUGH
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Whether deliveries are behind for want of processor time: then fewer commits help more than sooner ones.
    pub fn set_lag(&self, lags: bool) {
        self.lags.store(lags, SeqCst);
    }

    pub fn lags(&self) -> bool {
        self.lags.load(SeqCst)
    }

    /// A commit begins, which takes along who is here.
    pub fn is_taken_along(&self) {
        self.here.store(0, SeqCst);
    }

    /// Waits until then, or until enough are here; for the writer's own thread.
    pub fn wait_until(&self, end: Instant) {
        self.writer.get_or_init(thread::current);
        while (self.lags() || self.here.load(SeqCst) < ENOUGH)
            && let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
        {
            thread::park_timeout(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, time::Duration};

    #[test]
    fn the_last_of_enough_ends_the_waiting() {
        let crowd = Arc::new(Crowd::default());
        let others = Arc::clone(&crowd);
        let coming = thread::spawn(move || (0..ENOUGH).for_each(|_| others.came()));
        let end = Instant::now() + Duration::from_hours(1);
        crowd.wait_until(end);
        assert!(Instant::now() < end);
        coming.join().expect("it counts");
    }

    #[test]
    fn while_deliveries_lag_there_are_never_enough() {
        let crowd = Crowd::default();
        crowd.set_lag(true);
        (0..=ENOUGH).for_each(|_| crowd.came());
        let end = Instant::now() + Duration::from_millis(1);
        crowd.wait_until(end);
        assert!(Instant::now() >= end);
    }

    #[test]
    fn whoever_is_taken_along_is_not_waited_for_again() {
        let crowd = Crowd::default();
        (0..ENOUGH - 1).for_each(|_| crowd.came());
        crowd.is_taken_along();
        crowd.came();
        let end = Instant::now() + Duration::from_millis(1);
        crowd.wait_until(end);
        assert!(Instant::now() >= end);
    }
}
