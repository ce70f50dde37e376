//! How many messages a second one application, and one token, may hand in.
//!
//! The gate keeps the server from being overrun by all; this keeps one of them from taking the place of the others. It
//! is asked for every message, so that it costs two short locks that hardly anyone else wants at the time, and nothing
//! where no limit is set. A bucket that is full again says nothing and is forgotten: what is remembered is bounded by
//! what was accepted within the last second.

use postrider_engine::{AppKey, Timestamp, policy::Bucket};
use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Messages a second; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    pub per_application: Option<u32>,
    pub per_token: Option<u32>,
}

pub struct Rates {
    applications: Option<Meter>,
    tokens: Option<Meter>,
    /// Under a key that nobody outside knows, so that no two tokens can be made to count as one.
    hasher: RandomState,
    limited: metrics::Counter,
}

impl Rates {
    pub fn new(limits: RateLimits) -> Self {
        let limited = metrics::counter!("postrider_messages_limited_total");
        limited.increment(0);
        let meter = |rate| Bucket::new(rate).map(Meter::new);
        Self {
            applications: meter(limits.per_application),
            tokens: meter(limits.per_token),
            hasher: RandomState::new(),
            limited,
        }
    }

    /// A message for this application, handed in with this token; or how long to wait. `None`: it does not exist yet.
    pub fn take(&self, app: Option<AppKey>, token: &str, now: Timestamp) -> Result<(), Duration> {
        let app = self.applications.as_ref().zip(app).map(|(meter, app)| (meter, app.raw().cast_unsigned()));
        let token = self.tokens.as_ref().map(|meter| (meter, self.hasher.hash_one(token)));
        let mut held =
            [app, token].map(|subject| subject.map(|(meter, subject)| (meter, subject, meter.lock(subject))));
        // All agree before any is taken from: whoever is refused by one has used up nothing of the other.
        let ready = held.iter_mut().flatten().try_for_each(|(meter, subject, shard)| meter.ready(shard, *subject, now));
        if let Err(wait) = ready {
            self.limited.increment(1);
            return Err(wait);
        }
        for (meter, subject, shard) in held.iter_mut().flatten() {
            meter.take(shard, *subject, now);
        }
        Ok(())
    }
}

/// A bucket for each that was seen of late.
struct Meter {
    full: Bucket,
    shards: [Mutex<HashMap<u64, Bucket>>; SHARDS],
}

type Shard<'a> = MutexGuard<'a, HashMap<u64, Bucket>>;

impl Meter {
    fn new(full: Bucket) -> Self {
        Self { full, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn lock(&self, subject: u64) -> Shard<'_> {
        // Keys of applications differ in their higher digits as well as in the lower.
        let spread = subject.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.shards[spread as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self, shard: &mut Shard<'_>, subject: u64, now: Timestamp) -> Result<(), Duration> {
        let Some(bucket) = shard.get_mut(&subject) else { return Ok(()) };
        *bucket = bucket.set_back(now);
        bucket.ready(now).map_err(|at| at.since(now))
    }

    fn take(&self, shard: &mut Shard<'_>, subject: u64, now: Timestamp) {
        if shard.len() >= SHARD_MAX && !shard.contains_key(&subject) {
            shard.retain(|_, bucket| !bucket.is_full(now));
            if shard.len() >= SHARD_MAX {
                return;
            }
        }
        shard.entry(subject).or_insert(self.full).take(now);
    }
}

const SHARDS: usize = 64;
/// In all shards together more than any server accepts in a second, so that past it nobody goes uncounted but by a clock
/// that stands still.
const SHARD_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn rates(per_application: Option<u32>, per_token: Option<u32>) -> Rates {
        Rates::new(RateLimits { per_application, per_token })
    }

    fn app(key: i64) -> Option<AppKey> {
        Some(AppKey::new(key))
    }

    /// How many of this many are taken.
    fn taken(rates: &Rates, app: Option<AppKey>, token: &str, tries: usize, now: Timestamp) -> usize {
        (0..tries).filter(|_| rates.take(app, token, now).is_ok()).count()
    }

    #[test]
    fn each_application_has_its_own_limit() {
        let rates = rates(Some(10), None);
        assert_eq!(taken(&rates, app(1), "t", 100, NOW), 10);
        assert_eq!(taken(&rates, app(2), "t", 100, NOW), 10);
        assert_eq!(rates.take(app(1), "t", NOW), Err(Duration::from_millis(100)));
        assert_eq!(taken(&rates, app(1), "t", 100, NOW.plus(Duration::from_millis(500))), 5);
        assert_eq!(taken(&rates, app(1), "t", 100, NOW.plus(Duration::from_secs(60))), 10);
    }

    #[test]
    fn each_token_has_its_own_limit_over_all_applications() {
        let rates = rates(None, Some(10));
        assert_eq!((1..=100).filter(|key| rates.take(app(*key), "one", NOW).is_ok()).count(), 10);
        assert_eq!(taken(&rates, app(1), "other", 100, NOW), 10);
        assert_eq!(taken(&rates, None, "third", 100, NOW), 10, "also for what does not exist yet");
    }

    #[test]
    fn who_is_refused_by_one_has_used_up_nothing_of_the_other() {
        let rates = rates(Some(5), Some(20));
        assert_eq!(taken(&rates, app(1), "t", 100, NOW), 5);
        assert_eq!(taken(&rates, app(2), "t", 100, NOW), 5);
        assert_eq!(taken(&rates, app(3), "t", 100, NOW), 5);
        assert_eq!(taken(&rates, app(4), "t", 100, NOW), 5);
        assert_eq!(taken(&rates, app(5), "t", 100, NOW), 0, "the token's twenty are gone");
        assert_eq!(taken(&rates, app(5), "fresh", 100, NOW), 5, "and nothing of the application's");
    }

    #[test]
    fn without_a_limit_nothing_is_remembered() {
        let rates = rates(None, None);
        assert_eq!(taken(&rates, app(1), "t", 10_000, NOW), 10_000);
        assert!(rates.applications.is_none() && rates.tokens.is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let rates = rates(Some(1_000_000), None);
        let meter = rates.applications.as_ref().unwrap();
        let remembered = || meter.shards.iter().map(|shard| shard.lock().unwrap().len()).sum::<usize>();
        for key in 0..200_000 {
            assert_eq!(rates.take(app(key), "t", NOW), Ok(()));
        }
        assert!(remembered() <= SHARDS * SHARD_MAX, "{}", remembered());
        let longest = meter.shards.iter().map(|shard| shard.lock().unwrap().len()).max();
        assert_eq!(longest, Some(SHARD_MAX), "they are spread evenly enough to fill them all");
        // A microsecond each: all are full again, and forgotten as others come.
        for key in 200_000..300_000 {
            assert_eq!(rates.take(app(key), "t", NOW.plus(Duration::from_secs(1))), Ok(()));
        }
        assert!(remembered() <= SHARDS * SHARD_MAX);
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let rates = rates(Some(2), None);
        assert_eq!(taken(&rates, app(1), "t", 10, NOW.plus(Duration::from_hours(5))), 2);
        assert!(rates.take(app(1), "t", NOW).is_err_and(|wait| wait <= Duration::from_secs(1)));
        assert_eq!(taken(&rates, app(1), "t", 10, NOW.plus(Duration::from_secs(2))), 2);
    }

    proptest! {
        #[test]
        fn in_every_second_at_most_twice_the_rate(rate in 1..50u32, gaps in prop::collection::vec(0..200u64, 1..300)) {
            let rates = rates(Some(rate), None);
            let (mut now, mut accepted) = (NOW, Vec::new());
            for gap in gaps {
                now = now.plus(Duration::from_millis(gap));
                if rates.take(app(1), "t", now).is_ok() {
                    accepted.push(now.as_millis());
                }
            }
            for (index, from) in accepted.iter().enumerate() {
                let within = accepted[index..].iter().filter(|at| **at < from + 1_000).count();
                // What had gathered during a rest, and what came in meanwhile.
                prop_assert!(within <= 2 * rate as usize, "{within} within a second");
            }
        }
    }
}
