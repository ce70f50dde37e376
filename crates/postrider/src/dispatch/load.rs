//! Whether the processors have much to do.

use postrider_engine::Timestamp;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeMetrics};

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Of all their time. While two processors sent as much as they could, threads were at tasks for 0.5 to 0.75 of it: looking for
/// what has come on the network is not in that, and neither is what other processes take.
const HIGH_PERCENT: u32 = 40;

/// How busy the threads are that do the work of this runtime.
pub struct Load {
    metrics: RuntimeMetrics,
    at: Timestamp,
    busy: Duration,
    is_high: bool,
}

impl Load {
    pub fn of_this_runtime(now: Timestamp) -> Self {
        let metrics = Handle::current().metrics();
        let busy = total(&metrics);
        Self { metrics, at: now, busy, is_high: false }
    }

    /// As of the last look, which is seldom.
    pub fn is_high(&mut self, now: Timestamp) -> bool {
        let passed = now.since(self.at);
        if passed >= LOOK_EVERY || now < self.at {
            let busy = total(&self.metrics);
            let workers = u32::try_from(self.metrics.num_workers()).unwrap_or(u32::MAX);
            self.is_high = is_high(busy.saturating_sub(self.busy), passed.saturating_mul(workers));
            (self.at, self.busy) = (now, busy);
        }
        self.is_high
    }
}

fn total(metrics: &RuntimeMetrics) -> Duration {
    (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
}

fn is_high(busy: Duration, all: Duration) -> bool {
    !all.is_zero() && busy.saturating_mul(100) >= all.saturating_mul(HIGH_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_high_from_two_fifths_on() {
        let millis = Duration::from_millis;
        assert!(is_high(millis(80), millis(200)));
        assert!(!is_high(millis(79), millis(200)));
        assert!(!is_high(millis(10), Duration::ZERO), "no time has passed");
    }

    #[tokio::test]
    async fn who_has_nothing_to_do_is_not_busy() {
        let mut load = Load::of_this_runtime(Timestamp::from_millis(0));
        assert!(!load.is_high(Timestamp::from_millis(10)));
        assert!(!load.is_high(Timestamp::from_millis(3_600_000)));
        assert!(!load.is_high(Timestamp::from_millis(i64::MAX)));
        assert!(!load.is_high(Timestamp::from_millis(i64::MIN)));
    }
}
