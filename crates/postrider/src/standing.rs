//! How everything stands just now: how much waits and how old it is, which breakers are open.
//!
//! To find that out takes the longer the more there is. Those who look at pages share one look, and it is repeated only after
//! a time that is long beside what it took, however many look and however often.

use crate::directory::{Directory, EndpointEntry};
use postrider_engine::{EndpointKey, Timestamp, policy::Breaker};
use postrider_store::{Counts, OPERATIONAL, Shards, Store, StoreError};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// What was found, for all who ask soon after.
#[derive(Default)]
pub struct Standings(Mutex<Option<Kept>>);

struct Kept {
    until: Instant,
    standing: Arc<Standing>,
}

#[derive(Clone)]
pub struct Standing {
    pub at: Timestamp,
    pub counts: Counts,
    pub oldest: OldestDue,
    pub breakers: Vec<OpenBreaker>,
}

/// Since when the oldest of what is due has been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldestDue {
    /// Of what could be sent.
    pub ours: Option<Timestamp>,
    /// Of what waits for its endpoint: paused, disabled, or held back by a breaker.
    pub theirs: Option<Timestamp>,
}

/// Of an endpoint that would be sent to, were it not for this.
#[derive(Clone)]
pub struct OpenBreaker {
    pub endpoint: Arc<EndpointEntry>,
    pub until: Timestamp,
}

impl Standings {
    pub async fn look(
        &self,
        store: &dyn Store,
        directory: &Directory,
        now: Timestamp,
    ) -> Result<Arc<Standing>, StoreError> {
        // Held while it is found out: who asks meanwhile waits for the same answer.
        let mut kept = self.0.lock().await;
        let begun = Instant::now();
        if let Some(Kept { until, standing }) = &*kept
            && begun < *until
        {
            return Ok(Arc::clone(standing));
        }
        let standing = Arc::new(Standing {
            at: now,
            counts: store.counts(Shards::ALL).await?,
            oldest: oldest_due(store, directory, Shards::ALL, now).await?,
            breakers: open_breakers(store, directory).await?,
        });
        *kept = Some(Kept { until: Instant::now() + keep_for(begun.elapsed()), standing: Arc::clone(&standing) });
        Ok(standing)
    }
}

/// A twentieth of the time is looked at most; and nobody should look at what is minutes old.
fn keep_for(took: Duration) -> Duration {
    took.saturating_mul(19).clamp(KEEP_MIN, KEEP_MAX)
}

/// Breakers that hold something back. Whoever is paused or disabled has none: that another failure opened it long ago says nothing.
pub async fn open_breakers(store: &dyn Store, directory: &Directory) -> Result<Vec<OpenBreaker>, StoreError> {
    let mut open = Vec::new();
    for (endpoint, health) in store.healths(Shards::ALL).await? {
        let Breaker::Open { until, .. } = health.breaker else { continue };
        let Some(endpoint) = directory.endpoint(endpoint).await? else { continue };
        if !endpoint.lane.parked {
            open.push(OpenBreaker { endpoint, until });
        }
    }
    Ok(open)
}

/// In lanes of these shards. Once one of each kind is found, the others are not asked for: they are younger.
pub async fn oldest_due(
    store: &dyn Store,
    directory: &Directory,
    shards: Shards,
    now: Timestamp,
) -> Result<OldestDue, StoreError> {
    let mut oldest = OldestDue::default();
    let mut due: Vec<_> = store.lanes(shards).await?.into_iter().filter(|lane| lane.next_due < now).collect();
    if due.is_empty() {
        return Ok(oldest);
    }
    due.sort_by_key(|lane| lane.next_due);
    let healths = store.healths(shards).await?.into_iter();
    let tripped: BTreeSet<EndpointKey> = healths
        .filter(|(_, health)| matches!(health.breaker, Breaker::Open { .. }))
        .map(|(endpoint, _)| endpoint)
        .collect();
    for lane in due {
        let entry = directory.endpoint(lane.endpoint).await?;
        // What operators are told is not what they wait for.
        if entry.as_ref().is_some_and(|entry| entry.lane.app == OPERATIONAL) {
            continue;
        }
        let is_parked = entry.is_some_and(|entry| entry.lane.parked || !entry.is_whole);
        let is_held = is_parked || tripped.contains(&lane.endpoint);
        let whose = if is_held { &mut oldest.theirs } else { &mut oldest.ours };
        whose.get_or_insert(lane.next_due);
        if oldest.ours.is_some() && oldest.theirs.is_some() {
            break;
        }
    }
    Ok(oldest)
}

const KEEP_MIN: Duration = Duration::from_secs(2);
const KEEP_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_to_find_out_is_kept_longer() {
        for (took, expected) in [(0, 2_000), (50, 2_000), (300, 5_700), (60_000, 60_000)] {
            assert_eq!(keep_for(Duration::from_millis(took)), Duration::from_millis(expected), "{took} ms");
        }
    }
}
