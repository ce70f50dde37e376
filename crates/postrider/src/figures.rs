//! The figures that nobody counts as things happen: how much waits and how old it is, how breakers stand.
//!
//! They are looked up every few seconds, and less often where that takes long, so that looking costs at most a hundredth of
//! the time of whoever is asked.

use crate::{
    clock::Clock,
    dispatch::View,
    statistics::Statistics,
    telemetry::{
        Tops,
        tops::{EndpointGauges, REVIEW_EVERY},
    },
};
use metrics_exporter_prometheus::PrometheusHandle;
use postrider_engine::{EndpointKey, Timestamp, policy::Standing};
use postrider_store::{LaneFound, Shards, Store, StoreError};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// How often samples are taken into the histograms, and the store is asked how much waits if it can tell quickly.
const EVERY: Duration = Duration::from_secs(5);

/// To count takes the longer the more there is, and the store has better things to do: a hundredth of the time at most.
const SHARE: u32 = 100;

/// Looks things up for as long as the server runs.
pub struct Figures {
    pub metrics: PrometheusHandle,
    pub store: Arc<dyn Store>,
    pub view: View,
    pub tops: Arc<Tops>,
    pub statistics: Arc<Statistics>,
    pub clock: Clock,
}

impl Figures {
    /// What `/metrics` shows.
    pub fn render(metrics: &PrometheusHandle, tops: &Tops) -> String {
        let mut page = metrics.render();
        page.push_str(&tops.render());
        page
    }

    pub async fn keep(self) {
        let gauges = Gauges::new();
        let (mut next_count, mut next_review) = (Instant::now(), Instant::now() + REVIEW_EVERY);
        let mut counted = Shards::NONE;
        loop {
            let (begun, owned) = (Instant::now(), self.store.owned());
            // What has changed hands would otherwise be counted twice or not at all until the next time.
            if next_count <= begun || owned != counted {
                counted = owned;
                match self.look(&gauges, owned).await {
                    Ok(()) => {}
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "the store could not be counted"),
                }
                next_count = begun + until_next_count(begun.elapsed());
            }
            if next_review <= begun {
                next_review = begun + REVIEW_EVERY;
                self.tops.review();
            }
            self.metrics.run_upkeep();
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look(&self, gauges: &Gauges, owned: Shards) -> Result<(), StoreError> {
        let counts = self.store.counts(owned).await?;
        gauges.waiting.set(counts.waiting as f64);
        gauges.dead.set(counts.dead as f64);
        self.statistics.standing(counts, self.clock.now());
        let Some(held) = self.view.held_lanes().await else { return Ok(()) };
        let held: HashMap<EndpointKey, Standing> = held.into_iter().collect();
        let many = |stands: fn(&Standing) -> bool| held.values().filter(|standing| stands(standing)).count() as f64;
        gauges.open.set(many(|standing| matches!(standing, Standing::Open { .. })));
        gauges.half_open.set(many(|standing| matches!(standing, Standing::HalfOpen)));

        let lanes = self.store.lanes(owned).await?;
        let oldest = Oldest::of(&lanes, |endpoint| held.contains_key(&endpoint), self.clock.now());
        gauges.oldest_ours.set(oldest.ours.as_secs_f64());
        gauges.oldest_theirs.set(oldest.theirs.as_secs_f64());
        self.look_at_endpoints(&lanes, &held).await
    }

    async fn look_at_endpoints(
        &self,
        lanes: &[LaneFound],
        held: &HashMap<EndpointKey, Standing>,
    ) -> Result<(), StoreError> {
        let named: HashSet<EndpointKey> = self.tops.endpoints().into_iter().collect();
        let due: HashMap<EndpointKey, Timestamp> = lanes.iter().map(|lane| (lane.endpoint, lane.next_due)).collect();
        let mut gauges = Vec::with_capacity(named.len());
        for endpoint in named {
            let waiting = match due.get(&endpoint) {
                Some(_) => self.store.backlog(endpoint, None).await?.waiting,
                None => 0,
            };
            let oldest_due = due.get(&endpoint).map(|due| self.clock.now().since(*due)).unwrap_or_default();
            let breaker = held.get(&endpoint).copied().unwrap_or(Standing::Closed);
            gauges.push((endpoint, EndpointGauges { waiting, oldest_due, breaker }));
        }
        self.tops.set_gauges(gauges);
        Ok(())
    }
}

struct Gauges {
    waiting: metrics::Gauge,
    dead: metrics::Gauge,
    oldest_ours: metrics::Gauge,
    oldest_theirs: metrics::Gauge,
    open: metrics::Gauge,
    half_open: metrics::Gauge,
}

impl Gauges {
    fn new() -> Self {
        let oldest = |whose: &'static str| metrics::gauge!("postrider_oldest_due_seconds", "whose" => whose);
        let breakers = |state: &'static str| metrics::gauge!("postrider_breakers", "state" => state);
        Self {
            waiting: metrics::gauge!("postrider_deliveries_waiting"),
            dead: metrics::gauge!("postrider_dead_letters"),
            oldest_ours: oldest("ours"),
            oldest_theirs: oldest("theirs"),
            open: breakers("open"),
            half_open: breakers("half_open"),
        }
    }
}

/// For how long the oldest that is due has been, in lanes that wait for us and in those that wait for their endpoints.
#[derive(Debug, Default, PartialEq, Eq)]
struct Oldest {
    ours: Duration,
    theirs: Duration,
}

impl Oldest {
    fn of(lanes: &[LaneFound], is_held: impl Fn(EndpointKey) -> bool, now: Timestamp) -> Self {
        let mut oldest = Self::default();
        for lane in lanes {
            let whose = if is_held(lane.endpoint) { &mut oldest.theirs } else { &mut oldest.ours };
            *whose = (*whose).max(now.since(lane.next_due));
        }
        oldest
    }
}

fn until_next_count(took: Duration) -> Duration {
    took.saturating_mul(SHARE).max(EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_long_to_count_is_asked_less_often() {
        for (took, expected) in [(0, 5_000), (50, 5_000), (300, 30_000), (15_000, 1_500_000)] {
            assert_eq!(until_next_count(Duration::from_millis(took)), Duration::from_millis(expected), "{took} ms");
        }
        assert_eq!(until_next_count(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn what_a_paused_endpoint_keeps_waiting_is_not_held_against_us() {
        let lane = |endpoint, due: i64| LaneFound {
            endpoint: EndpointKey::new(endpoint),
            next_due: Timestamp::from_millis(due * 1_000),
        };
        let lanes = [lane(1, 100), lane(2, 10), lane(3, 150), lane(4, 900)];
        let oldest = Oldest::of(&lanes, |endpoint| endpoint.raw() == 2, Timestamp::from_millis(200_000));
        assert_eq!(oldest, Oldest { ours: Duration::from_secs(100), theirs: Duration::from_secs(190) });
        let none = Oldest::of(&lanes[3..], |_| false, Timestamp::from_millis(200_000));
        assert_eq!(none, Oldest::default(), "what is not due yet has no age");
    }
}
