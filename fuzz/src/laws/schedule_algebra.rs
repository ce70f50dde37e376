//! Schedules, breakers and rates with any numbers at all: everything stays within its bounds and nothing wraps.

use super::draws::Draws;
use postrider_engine::{
    Timestamp,
    policy::{
        Bucket,
        backoff::{Backoff, Factor, Jitter, Shape},
        breaker::{BreakerRules, WhileOpen},
        preview::{End, Planned, preview},
    },
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let mut rng = ChaCha8Rng::seed_from_u64(draws.any());
    let policy = draws.policy();
    waits(&policy.backoff, &mut draws, &mut rng);
    let shown = preview(&policy);
    planned(&shown.attempts, policy.budget.attempts_max, policy.budget.total_max);
    assert!(shown.ends != End::Unseen || shown.attempts.len() == 1_000);
    assert!(shown.warnings.iter().all(|warning| warning.to_string().ends_with('.')));
    breaker(&mut draws);
    bucket(&mut draws);
}

fn waits(backoff: &Backoff, draws: &mut Draws<'_>, rng: &mut ChaCha8Rng) {
    let cap = backoff.cap.max(Duration::from_millis(0));
    for _ in 0..4 {
        let (retry, previous) = (draws.count(), draws.maybe(Draws::duration));
        let Some(nominal) = backoff.nominal(retry) else {
            assert!(matches!(backoff.shape, Shape::Table { .. }), "only a table ends");
            assert!(backoff.bounds(retry, previous).is_none() && backoff.draw(retry, previous, rng).is_none());
            continue;
        };
        let (shortest, longest) = backoff.bounds(retry, previous).expect("there is a wait");
        assert!(
            nominal <= cap && shortest <= longest && longest <= cap,
            "{backoff:?} {retry}: {shortest:?} {longest:?}"
        );
        match backoff.jitter {
            Jitter::None => assert_eq!((shortest, longest), (nominal, nominal)),
            Jitter::Full | Jitter::Equal => assert_eq!(longest, nominal),
            Jitter::Additive { .. } => assert_eq!(shortest, nominal),
            Jitter::Proportional { .. } => assert!(shortest <= nominal && nominal <= longest),
            Jitter::Decorrelated => assert_eq!(Some(shortest), backoff.nominal(1)),
        }
        let drawn = backoff.draw(retry, previous, rng).expect("there is a wait");
        assert!(drawn.certain == shortest && drawn.total() <= longest);
        match &backoff.shape {
            Shape::Exponential { base, factor } => {
                let next = backoff.nominal(retry.saturating_add(1)).expect("it never ends");
                assert!(next >= nominal, "waits do not shrink");
                assert!(factor.0 > Factor::MIN.0 || next == nominal, "{base:?}");
            }
            Shape::Fixed { .. } => assert_eq!(Some(nominal), backoff.nominal(1)),
            Shape::Table { delays, .. } => assert!(delays.iter().any(|delay| *delay >= nominal)),
        }
    }
}

fn planned(attempts: &[Planned], attempts_max: u32, total_max: Duration) {
    assert!(u32::try_from(attempts.len()).is_ok_and(|count| count <= attempts_max.max(1)));
    for (at, planned) in attempts.iter().enumerate() {
        assert_eq!(usize::try_from(planned.attempt).ok(), Some(at + 1));
        assert!(planned.earliest <= planned.nominal && planned.nominal <= planned.latest, "{planned:?}");
        assert!(at == 0 || planned.latest < total_max, "{planned:?} of {total_max:?}");
    }
    for two in attempts.windows(2) {
        assert!(two[0].earliest <= two[1].earliest && two[0].latest <= two[1].latest, "{two:?}");
        assert!(two[0].certain || !two[1].certain, "{two:?}");
    }
}

fn breaker(draws: &mut Draws<'_>) {
    let rules = BreakerRules {
        failures: draws.any(),
        cool_down: draws.duration(),
        cool_down_max: draws.duration(),
        while_open: WhileOpen::Hold,
    };
    let trips = draws.count();
    let (now, later) = (rules.cool_down_after(trips), rules.cool_down_after(trips.saturating_add(1)));
    assert!(now <= later && later <= rules.cool_down_max);
    assert!(now >= rules.cool_down.min(rules.cool_down_max));
}

fn bucket(draws: &mut Draws<'_>) {
    let rate = draws.maybe(Draws::count);
    let Some(mut bucket) = Bucket::new(rate) else { return assert!(rate.is_none_or(|rate| rate == 0)) };
    let rate = usize::try_from(rate.unwrap_or_default()).unwrap_or(usize::MAX);
    let mut now = draws.timestamp();
    // A clock that no machine shows would have no later moment to wait for.
    now = Timestamp::from_millis(now.as_millis().clamp(-(1 << 50), 1 << 50));
    let mut sent: Vec<i64> = Vec::new();
    for _ in 0..40 {
        match bucket.ready(now) {
            Ok(()) => {
                bucket.take(now);
                sent.push(now.as_millis());
            }
            Err(ready_at) => {
                assert!(ready_at > now, "{bucket:?} {now:?}");
                assert!(bucket.ready(ready_at).is_ok(), "{bucket:?} {ready_at:?}");
                assert!(ready_at.since(now) <= Duration::from_secs(1), "{bucket:?} {now:?}");
                now = ready_at;
            }
        }
        now = now.plus(Duration::from_millis(u64::from(draws.any::<u8>() >> 3)));
    }
    // A full bucket at once, and what flows in within the second.
    for (at, start) in sent.iter().enumerate() {
        let within = sent[at..].iter().take_while(|later| **later < start + 1_000).count();
        assert!(within <= rate.saturating_mul(2), "{within} in a second at {rate}");
    }
}
