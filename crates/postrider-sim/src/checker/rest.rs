//! What must not cost anything: I24, I30.

use super::Judge;
use crate::trace::Kind;

/// Looks into the store for a lane that is paused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loads {
    /// Since when it has been paused.
    parked: Option<i64>,
    count: u32,
}

impl Judge {
    /// A lane was read from the store.
    pub fn loaded(&mut self, node: usize, endpoint: i64, count: usize) {
        self.note(node as i8, Kind::Loaded, [0, endpoint, count as i64, 0]);
        let Some(place) = self.endpoint_by_key.get(&endpoint).copied() else { return };
        let (now, slack) = (self.now, self.news_slack);
        let endpoint = &mut self.endpoints[place as usize];
        let parked = endpoint.parked.filter(|at| now - at > slack && endpoint.gone.is_none());
        if endpoint.loads.parked != parked {
            endpoint.loads = Loads { parked, count: 0 };
        }
        if parked.is_some() {
            endpoint.loads.count += 1;
            let (count, key) = (endpoint.loads.count, endpoint.key);
            // I24: a paused lane is not looked at, but for the first look of whoever takes it over.
            if count > LOADS_PARKED_MAX {
                self.object("I24", 0, key, || format!("a paused lane was read {count} times"));
            }
        }
    }

    /// I30: with nothing due, a dispatcher hardly wakes.
    pub fn rested(&mut self, node: usize, turns: u64, millis: i64) {
        let allowed = (millis as u64 / 1_000) * WAKES_PER_SECOND + WAKES_AT_ALL;
        if turns > allowed {
            self.object("I30", 0, 0, || format!("node {node} turned {turns} times in {millis} ms with nothing to do"));
        }
    }
}

/// One by each process that takes the lane over while it is paused, and some for what was under way.
const LOADS_PARKED_MAX: u32 = 16;

const WAKES_PER_SECOND: u64 = 5;
const WAKES_AT_ALL: u64 = 20;
