//! What one node sees of its own work, told by the dispatcher at every outcome.
//!
//! An application is served by one node at a time, so that its window here has all its attempts. A node that takes it over
//! begins with an empty one, and the one before forgets its own.

use postrider_engine::{
    AppKey, Timestamp,
    alarm::{Tally, Window},
};
use postrider_store::{OPERATIONAL, Shards};
use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

pub struct Watch {
    span: Duration,
    windows: Mutex<HashMap<AppKey, Window>>,
    /// When outcomes were last written down, in milliseconds.
    done_at: AtomicI64,
    is_stuck: AtomicBool,
}

impl Default for Watch {
    fn default() -> Self {
        Self::over(Duration::from_mins(10))
    }
}

impl Watch {
    /// With windows of this length.
    pub fn over(span: Duration) -> Self {
        let (windows, done_at) = (Mutex::default(), AtomicI64::new(i64::MIN));
        Self { span, windows, done_at, is_stuck: AtomicBool::new(false) }
    }

    /// An attempt for this application has an outcome.
    pub fn attempted(&self, app: AppKey, succeeded: bool, now: Timestamp) {
        // Nobody is told that telling fails: one alert would follow from the other.
        if app == OPERATIONAL || app == NOBODY {
            return;
        }
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.entry(app).or_default().note(succeeded, self.span, now);
    }

    /// Outcomes were written down, of these applications. That somebody was told of what lies does not mean that it moves.
    pub fn settled(&self, apps: impl IntoIterator<Item = AppKey>, now: Timestamp) {
        if apps.into_iter().all(|app| app == OPERATIONAL) {
            return;
        }
        self.done_at.store(now.as_millis(), Ordering::Relaxed);
    }

    /// When that was last. `None`: not yet.
    pub fn done_at(&self) -> Option<Timestamp> {
        let millis = self.done_at.load(Ordering::Relaxed);
        (millis != i64::MIN).then(|| Timestamp::from_millis(millis))
    }

    /// How the attempts of each application went lately that is served here. Those that made none, and those that are another
    /// node's by now, are forgotten.
    pub fn tallies(&self, owned: Shards, now: Timestamp) -> HashMap<AppKey, Tally> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|app, _| owned.has_lanes_of(*app));
        let tallies: HashMap<AppKey, Tally> =
            windows.iter_mut().map(|(app, window)| (*app, window.tally(self.span, now))).collect();
        windows.retain(|app, _| tallies.get(app).is_some_and(|tally| tally.total() > 0));
        tallies
    }

    /// Whether work that is due is left lying, as it was last found.
    pub fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    pub fn set_stuck(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
    }
}

/// The application of a deleted endpoint.
const NOBODY: AppKey = AppKey::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
    }

    #[test]
    fn telling_operators_is_not_the_work_that_they_are_told_of() {
        let watch = Watch::default();
        for (apps, now, expected) in [
            (&[OPERATIONAL][..], 1, None),
            (&[], 2, None),
            (&[OPERATIONAL, AppKey::new(5)], 3, Some(at(3))),
            (&[OPERATIONAL], 4, Some(at(3))),
            (&[AppKey::new(5)], 5, Some(at(5))),
        ] {
            watch.settled(apps.iter().copied(), at(now));
            assert_eq!(watch.done_at(), expected, "{apps:?}");
        }
    }

    #[test]
    fn each_application_has_its_own_window_and_the_operational_one_has_none() {
        let watch = Watch::over(Duration::from_secs(100));
        for (app, succeeded) in [(5, true), (5, false), (6, true), (1, false), (0, false)] {
            watch.attempted(AppKey::new(app), succeeded, at(0));
        }
        let tallies = watch.tallies(Shards::ALL, at(1));
        assert_eq!(tallies.len(), 2);
        assert_eq!(tallies[&AppKey::new(5)], Tally { succeeded: 1, failed: 1 });
        watch.tallies(Shards::ALL, at(1_000));
        assert!(watch.windows.lock().unwrap().is_empty(), "what is past is forgotten");
        watch.attempted(AppKey::new(5), false, at(1_000));
        assert_eq!(watch.tallies(Shards::NONE, at(1_001)).len(), 0);
        assert_eq!(watch.tallies(Shards::ALL, at(1_002)).len(), 0, "what another node took over is forgotten");
    }
}
