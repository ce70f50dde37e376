//! The one door through which time comes in.
//!
//! Everything else is handed a `Timestamp`; `clippy.toml` bans the system's clocks elsewhere, so that a
//! decision can be replayed under a clock of the test's making.
//!
//! Time goes on by the machine's monotonic clock, which nobody sets, and follows another one: the store's, where it has
//! one that counts for all nodes, or else the machine's wall clock. A jump of that clock is believed only when it lasts.
//! On the strength of a false one, whatever has a time to live would be given up, and history dropped for good.

use postrider_engine::Timestamp;
use postrider_store::{Store, StoreError};
use std::{
    fmt,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, time::Instant};

static TIME: LazyLock<Clock> = LazyLock::new(|| Clock::beginning_at(wall()));

/// This process's own time.
pub fn now() -> Timestamp {
    TIME.now()
}

/// This process's own clock.
pub fn own() -> Clock {
    TIME.clone()
}

/// A time as RFC 3339 writes it.
pub struct Shown(pub Timestamp);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0.as_millis().div_euclid(1_000), self.0.as_millis().rem_euclid(1_000));
        // Not by milliseconds: those end before the last second does.
        match jiff::Timestamp::new(seconds, millis as i32 * 1_000_000) {
            Ok(time) => write!(f, "{time}"),
            // Times of ours are far inside; sums that saturated are not.
            Err(_) if self.0.as_millis() < 0 => write!(f, "{}", jiff::Timestamp::MIN),
            Err(_) => write!(f, "{}", jiff::Timestamp::MAX),
        }
    }
}

/// A clock to go by. Clones are one and the same.
#[derive(Clone)]
pub struct Clock(Arc<Time>);

impl Clock {
    /// It goes on from there by itself.
    pub fn beginning_at(at: Timestamp) -> Self {
        Self(Arc::new(Time::beginning_at(at)))
    }

    pub fn now(&self) -> Timestamp {
        self.0.at(self.0.running())
    }

    /// Sets it, so many milliseconds ahead or back.
    pub fn set_ahead(&self, millis: i64) {
        self.0.set_ahead(millis);
    }

    /// Tells when it was set, so that whoever sleeps until some time can look again how long that is.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.set.subscribe()
    }

    fn running(&self) -> Duration {
        self.0.running()
    }
}

/// Takes the time from somebody else, before anything was decided by our own.
pub async fn begin_by<E>(ask: impl Future<Output = Result<Timestamp, E>>) -> Result<(), E> {
    let asked = now();
    let told = ask.await?;
    TIME.set_ahead(ahead(asked, told, now()));
    Ok(())
}

/// Follows the clock that counts.
pub struct Follower {
    judge: Judge,
    /// When the store was last asked, as our own time runs.
    asked_at: Option<Duration>,
    /// How far the wall clock was ahead of our own running time.
    wall_ahead: i64,
    /// The wall clock parted from our own, and the store has not been asked since.
    parted: bool,
    /// How far off the wall clock was when that was last complained of.
    complained: i64,
    jumps: metrics::Counter,
}

impl Default for Follower {
    fn default() -> Self {
        let jumps = metrics::counter!("postrider_clock_jumps_total");
        // So that it is there before the first one, for an alert to compare with.
        jumps.increment(0);
        Self { judge: Judge::default(), asked_at: None, wall_ahead: 0, parted: false, complained: 0, jumps }
    }
}

impl Follower {
    pub async fn keep(mut self, store: &dyn Store) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.look(store).await {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "the store could not say what time it is"),
            }
        }
    }

    /// Looks at the wall clock, and at the store's if it is time to.
    pub async fn look(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let (running, wall) = (TIME.running(), wall());
        let wall_ahead = difference(wall, Timestamp::default().plus(running));
        if !self.is_time_to_ask(running, wall_ahead) {
            return Ok(());
        }
        self.asked_at = Some(running);
        let asked = now();
        let told = store.time().await?;
        self.parted = false;
        match told {
            Some(told) => {
                if self.is_worth_a_word(difference(told, wall)) {
                    tracing::warn!(
                        milliseconds = difference(wall, told),
                        "this machine's clock is off by more than a second; the database's counts. Please mend it"
                    );
                }
                self.follow("the database's", told, ahead(asked, told, now()));
            }
            None => {
                // It costs nothing to ask, and a jump shall be seen before much is decided.
                self.asked_at = None;
                self.follow("this machine's", wall, difference(wall, asked));
            }
        }
        Ok(())
    }

    /// The store is asked seldom, because all nodes ask. A wall clock that has parted from our own says that the machine
    /// slept, or that somebody set it: then the store is asked at once, and while there is a doubt.
    fn is_time_to_ask(&mut self, running: Duration, wall_ahead: i64) -> bool {
        self.parted |= wall_ahead.abs_diff(self.wall_ahead) > AHEAD_TOLERATED;
        self.wall_ahead = wall_ahead;
        let is_due = self.asked_at.is_none_or(|at| running.saturating_sub(at) >= ASK_EVERY);
        is_due || self.parted || self.judge.doubt.is_some()
    }

    fn follow(&mut self, whose: &str, told: Timestamp, ahead: i64) {
        let was_in_doubt = self.judge.doubt.is_some();
        let ours = now();
        match self.judge.judge(ahead, TIME.running()) {
            Finding::Agrees | Finding::Near if was_in_doubt => {
                tracing::info!("{whose} clock is back where it was; nothing was decided by it meanwhile");
                TIME.set_ahead(ahead);
            }
            Finding::Agrees => {}
            Finding::Near => TIME.set_ahead(ahead),
            Finding::Jump => {
                self.jumps.increment(1);
                tracing::warn!(
                    expected = shown(ours),
                    told = shown(told),
                    "{whose} clock has jumped; it is followed if it stays so"
                );
            }
            Finding::Wait => {}
            Finding::Lasts => {
                tracing::warn!(
                    from = shown(ours),
                    to = shown(told),
                    "{whose} clock has stayed where it jumped to, and counts"
                );
                TIME.set_ahead(ahead);
            }
        }
    }

    /// Once per change.
    fn is_worth_a_word(&mut self, ahead: i64) -> bool {
        let is_changed = ahead.abs_diff(self.complained) > AHEAD_TOLERATED;
        if is_changed {
            self.complained = if ahead.unsigned_abs() > AHEAD_TOLERATED { ahead } else { 0 };
        }
        is_changed && self.complained != 0
    }
}

/// A time that runs evenly, from where it was last set.
struct Time {
    begun: Instant,
    /// What it said when it was begun, in milliseconds, as far as is known by now.
    origin: AtomicI64,
    set: watch::Sender<()>,
}

impl Time {
    fn beginning_at(at: Timestamp) -> Self {
        Self { begun: Instant::now(), origin: AtomicI64::new(at.as_millis()), set: watch::Sender::new(()) }
    }

    fn running(&self) -> Duration {
        self.begun.elapsed()
    }

    fn at(&self, running: Duration) -> Timestamp {
        Timestamp::from_millis(self.origin.load(Ordering::Relaxed)).plus(running)
    }

    fn set_ahead(&self, millis: i64) {
        let origin = self.origin.load(Ordering::Relaxed);
        self.origin.store(origin.saturating_add(millis), Ordering::Relaxed);
        self.set.send_replace(());
    }
}

/// Decides whether to follow a clock that is ahead of our own, or behind it.
#[derive(Debug, Default)]
struct Judge {
    doubt: Option<Doubt>,
}

/// A jump that has been seen.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    ahead: i64,
    /// As our own time runs.
    since: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// As far as can be measured.
    Agrees,
    /// So near that it is followed at once.
    Near,
    /// It has jumped, just now.
    Jump,
    /// It is not sure yet that this lasts.
    Wait,
    /// It jumped a while ago, and has gone on from there.
    Lasts,
}

impl Judge {
    fn judge(&mut self, ahead: i64, running: Duration) -> Finding {
        if ahead.unsigned_abs() <= NEAR {
            self.doubt = None;
            return if ahead.unsigned_abs() <= NOISE { Finding::Agrees } else { Finding::Near };
        }
        match self.doubt {
            Some(doubt) if doubt.ahead.abs_diff(ahead) <= NEAR => {
                if running.saturating_sub(doubt.since) < LASTING {
                    return Finding::Wait;
                }
                self.doubt = None;
                Finding::Lasts
            }
            // It goes on jumping.
            Some(_) => {
                self.doubt = Some(Doubt { ahead, since: running });
                Finding::Wait
            }
            None => {
                self.doubt = Some(Doubt { ahead, since: running });
                Finding::Jump
            }
        }
    }
}

/// How far a clock is ahead that was asked between these two moments of ours. It looked at some moment between them; the
/// middle is wrong by half the round trip at most, and after a long one as little is believed as there must be.
fn ahead(asked: Timestamp, told: Timestamp, answered: Timestamp) -> i64 {
    let half = answered.since(asked) / 2;
    let ahead = difference(told, asked.plus(half));
    if half <= ROUND_TRIP_MAX / 2 {
        return ahead;
    }
    let doubtful = i64::try_from(half.as_millis()).unwrap_or(i64::MAX);
    ahead.signum().saturating_mul(ahead.saturating_abs().saturating_sub(doubtful).max(0))
}

fn difference(later: Timestamp, earlier: Timestamp) -> i64 {
    later.as_millis().saturating_sub(earlier.as_millis())
}

fn shown(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.as_millis()).map_or_else(|_| format!("{at:?}"), |at| at.to_string())
}

#[allow(clippy::disallowed_methods)]
fn wall() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// How often the wall clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often the store's is.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// A clock that is no further off is followed at once, in milliseconds: no deadline is so near that it would matter.
const NEAR: u64 = 5_000;

/// What may come from measuring, in milliseconds.
const NOISE: u64 = 10;

/// A jump that has lasted so long is believed.
const LASTING: Duration = Duration::from_secs(5);

/// After a longer one it is hardly known when the store looked at its clock.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(500);

/// A wall clock that is further off, in milliseconds, is worth a word.
const AHEAD_TOLERATED: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    const DAY: i64 = 86_400_000;

    /// In which second it is looked, how far the other clock is ahead, and what is found.
    type Look = (u64, i64, Finding);

    #[test]
    fn a_jump_is_followed_only_when_it_lasts() {
        use Finding::{Agrees, Jump, Lasts, Near, Wait};
        let stories: &[(&str, &[Look])] = &[
            ("it runs evenly", &[(0, 0, Agrees), (1, 3, Agrees), (2, -10, Agrees), (3, 0, Agrees)]),
            ("it is mended in small steps", &[(0, 11, Near), (1, 5_000, Near), (2, -5_000, Near), (3, 0, Agrees)]),
            (
                "it jumps and stays",
                &[(0, DAY, Jump), (1, DAY, Wait), (4, DAY + 20, Wait), (5, DAY, Lasts), (6, 0, Agrees)],
            ),
            ("it jumps back and stays", &[(0, -5_001, Jump), (5, -5_001, Lasts)]),
            (
                "it is put right in time",
                &[(0, 3_650 * DAY, Jump), (4, 3_650 * DAY, Wait), (5, 0, Agrees), (6, DAY, Jump)],
            ),
            ("it is put nearly right", &[(0, DAY, Jump), (3, -300, Near), (9, DAY, Jump), (10, DAY, Wait)]),
            (
                "it jumps about",
                &[(0, DAY, Jump), (4, -DAY, Wait), (6, DAY, Wait), (10, DAY + 4_000, Wait), (11, DAY, Lasts)],
            ),
            ("it is absurd", &[(0, i64::MAX, Jump), (1, i64::MIN, Wait), (6, i64::MIN, Lasts)]),
            ("the machine slept before it could be asked again", &[(0, DAY, Jump), (3_600, DAY, Lasts)]),
        ];
        for (story, looks) in stories {
            let mut judge = Judge::default();
            for (second, ahead, expected) in *looks {
                assert_eq!(judge.judge(*ahead, seconds(*second)), *expected, "{story}, second {second}");
            }
        }
    }

    #[test]
    fn a_reading_is_compared_with_the_middle_of_its_round_trip() {
        for (asked, told, answered, expected) in [
            (1_000, 1_000, 1_000, 0),
            (1_000, 1_050, 1_100, 0),
            (1_000, 6_050, 1_100, 5_000),
            (9_000, 1_000, 9_500, -8_250),
            (9_000, 9_000, 8_999, 0),
            (0, i64::MIN, 500, i64::MIN),
        ] {
            assert_eq!(ahead(at(asked), at(told), at(answered)), expected, "{asked} {told} {answered}");
        }
    }

    #[test]
    fn a_slow_reading_tells_only_what_is_sure() {
        for (told, expected) in
            [(10_000, 0), (12_000, 0), (14_000, 0), (14_001, 1), (9_999, -1), (100_000, 86_000), (-100_000, -110_000)]
        {
            assert_eq!(ahead(at(10_000), at(told), at(14_000)), expected, "{told}");
        }
    }

    #[test]
    fn time_runs_on_from_where_it_was_set() {
        let time = Time::beginning_at(at(1_000));
        let mut set = time.set.subscribe();
        assert_eq!((time.at(seconds(0)), time.at(seconds(2))), (at(1_000), at(3_000)));
        time.set_ahead(-500);
        assert_eq!(time.at(seconds(2)), at(2_500));
        assert!(set.has_changed().expect("it is there"), "whoever sleeps is told");
        set.mark_unchanged();
        time.set_ahead(i64::MAX);
        assert_eq!(time.at(seconds(2)), at(i64::MAX));
    }

    #[test]
    fn the_store_is_asked_seldom_unless_the_wall_clock_parts_from_ours() {
        let mut follower = Follower::default();
        let mut asks = Vec::new();
        for second in 0..40 {
            let jumped = if second >= 23 { 60_000 } else { 0 };
            if follower.is_time_to_ask(seconds(second), jumped + i64::try_from(second).expect("it is small")) {
                asks.push(second);
                follower.asked_at = Some(seconds(second));
                follower.parted = false;
            }
        }
        assert_eq!(asks, [0, 10, 20, 23, 33]);
        follower.judge.judge(DAY, seconds(40));
        assert!((40..44).all(|second| follower.is_time_to_ask(seconds(second), 60_040)), "a doubt is looked into");
    }

    #[test]
    fn a_clock_that_is_off_is_complained_of_once_per_change() {
        let mut follower = Follower::default();
        let told = [0, 900, 1_500, 1_600, 800, 5_000, 5_200, -3_000, 100, 200, 1_100];
        let worth: Vec<i64> = told.into_iter().filter(|ahead| follower.is_worth_a_word(*ahead)).collect();
        assert_eq!(worth, [1_500, 5_000, -3_000, 1_100]);
    }
}
