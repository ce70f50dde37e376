//! The figures that nobody counts as things happen: how much waits and how old it is, how breakers stand.
//!
//! They are looked up every few seconds, and less often where that takes long, up to a minute, so that looking costs little
//! of the time of whoever is asked.

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
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often samples are taken into the histograms, and the store is asked how much waits if it can tell quickly.
const EVERY: Duration = Duration::from_secs(5);

/// How often what stands is noted for the charts, the finest of which have a point for each minute.
const NOTE_EVERY: Duration = Duration::from_secs(30);

/// Nobody should wait longer for new figures because one look took very long: the next may be quicker.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// To count takes the longer the more there is, and the store has better things to do: the two looks that are taken often, at all
/// and at single endpoints, have a hundredth of the time between them, while each takes less than a third of a second.
const SHARE: u32 = 200;

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
        let (mut counting, mut naming) = (Pace::new(EVERY), Pace::new(EVERY));
        let mut noting = Pace::new(NOTE_EVERY);
        let mut reviewing = Pace::new(REVIEW_EVERY);
        let (mut counted, mut lanes) = (Shards::NONE, Lanes::default());
        loop {
            let owned = self.store.owned();
            // What has changed hands would otherwise be counted twice or not at all until the next time.
            let looked = if counting.is_due() || owned != counted {
                counted = owned;
                counting.measure(self.look(&gauges, &mut lanes, owned)).await
            } else {
                Ok(())
            };
            // Apart from the others, because it takes longer, and these should not be old for that.
            let looked = match looked {
                Ok(()) if naming.is_due() => naming.measure(self.look_at_endpoints(&lanes)).await,
                looked => looked,
            };
            let looked = match looked {
                Ok(()) if noting.is_due() && self.store.leads() => noting.measure(self.note_what_stands()).await,
                looked => looked,
            };
            match looked {
                Ok(()) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "the store could not be counted"),
            }
            if reviewing.is_due() {
                reviewing.measure(async { self.tops.review() }).await;
            }
            self.metrics.run_upkeep();
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look(&self, gauges: &Gauges, lanes: &mut Lanes, owned: Shards) -> Result<(), StoreError> {
        let counts = self.store.counts(owned).await?;
        gauges.waiting.set(counts.waiting as f64);
        gauges.dead.set(counts.dead as f64);
        let Some(held) = self.view.held_lanes().await else { return Ok(()) };
        *lanes = Lanes { held: held.into_iter().collect(), waiting: self.store.lanes(owned).await? };
        let held = &lanes.held;
        let many = |stands: fn(&Standing) -> bool| held.values().filter(|standing| stands(standing)).count() as f64;
        gauges.open.set(many(|standing| matches!(standing, Standing::Open { .. })));
        gauges.half_open.set(many(|standing| matches!(standing, Standing::HalfOpen)));
        let oldest = Oldest::of(&lanes.waiting, |endpoint| held.contains_key(&endpoint), self.clock.now());
        gauges.oldest_ours.set(oldest.ours.as_secs_f64());
        gauges.oldest_theirs.set(oldest.theirs.as_secs_f64());
        Ok(())
    }

    /// For the charts: of everything, so that it is one node's to do.
    async fn note_what_stands(&self) -> Result<(), StoreError> {
        let counts = self.store.counts(Shards::ALL).await?;
        self.statistics.standing(counts, self.clock.now());
        Ok(())
    }

    async fn look_at_endpoints(&self, lanes: &Lanes) -> Result<(), StoreError> {
        let due = lanes.waiting.iter().map(|lane| (lane.endpoint, lane.next_due));
        let due: HashMap<EndpointKey, Timestamp> = due.collect();
        let mut gauges = Vec::new();
        for endpoint in self.tops.endpoints() {
            let (waiting, oldest_due) = match due.get(&endpoint) {
                Some(due) => (self.store.backlog(endpoint, None).await?.waiting, self.clock.now().since(*due)),
                None => (0, Duration::ZERO),
            };
            let breaker = lanes.held.get(&endpoint).copied().unwrap_or(Standing::Closed);
            gauges.push((endpoint, EndpointGauges { waiting, oldest_due, breaker }));
        }
        self.tops.set_gauges(gauges);
        Ok(())
    }
}

/// How lanes stood at the last look.
#[derive(Default)]
struct Lanes {
    /// Those that wait for their endpoints.
    held: HashMap<EndpointKey, Standing>,
    /// Those with something waiting.
    waiting: Vec<LaneFound>,
}

/// When something is done again: the later, the longer it takes.
struct Pace {
    every: Duration,
    next: Instant,
}

impl Pace {
    fn new(every: Duration) -> Self {
        Self { every, next: Instant::now() }
    }

    fn is_due(&self) -> bool {
        self.next <= Instant::now()
    }

    async fn measure<T>(&mut self, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = work.await;
        self.next = begun + until_next(begun.elapsed(), self.every);
        done
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

fn until_next(took: Duration, every: Duration) -> Duration {
    took.saturating_mul(SHARE).min(PAUSE_MAX).max(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_long_to_count_is_asked_less_often() {
        for (took, expected) in [(0, 5_000), (25, 5_000), (50, 10_000), (15_000, 60_000)] {
            assert_eq!(until_next(Duration::from_millis(took), EVERY), Duration::from_millis(expected), "{took} ms");
        }
        assert_eq!(until_next(Duration::MAX, EVERY), PAUSE_MAX);
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
