//! What must not cost anything: I24, I30.

use super::Judge;
use crate::trace::Kind;

/// Looks into the store for a lane that is paused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loads {
    /// Since when it has been paused.
    parked: Option<i64>,
    count: u32,
    /// The last one, and how many there were in the same millisecond.
    at: i64,
    at_once: u32,
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
            endpoint.loads = Loads { parked, count: 0, ..endpoint.loads };
        }
        let loads = &mut endpoint.loads;
        loads.at_once = if loads.at == now { loads.at_once + 1 } else { 0 };
        loads.at = now;
        // I30: no step goes round in circles.
        if loads.at_once > LOADS_AT_ONCE_MAX {
            let key = endpoint.key;
            self.object("I30", 0, key, || {
                "a lane was read again and again without anything having happened".to_owned()
            });
            return;
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

/// In one millisecond, of one lane.
const LOADS_AT_ONCE_MAX: u32 = 500;

const WAKES_PER_SECOND: u64 = 5;
const WAKES_AT_ALL: u64 = 20;
