//! How many at a time, and how many per second: I20, I21.

use super::{Judge, wire::PostId};
use crate::sometimes::Sometimes;

/// Counts what was begun, in true time: so many per second, and as many at once after a rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    /// Microseconds at which it is full again.
    full_at: i64,
}

impl Bucket {
    /// Takes one; says by how many microseconds it was too early. `slack`: by how many its turn may have been before.
    fn take(&mut self, now: i64, rate: u32, read_anew: bool, slack: i64) -> i64 {
        let now = now * 1_000;
        let turn = if read_anew { now.saturating_sub(slack) } else { now };
        self.full_at = self.full_at.max(turn) + 1_000_000 / i64::from(rate.max(1));
        let early = self.full_at - now - 1_000_000;
        // What came out later than its turn was is not held against those that follow.
        if read_anew {
            self.full_at = self.full_at.min(now + 1_000_000);
        }
        early
    }

    /// A clock was set: what it was filled by is not what it is emptied by.
    pub fn forget(&mut self) {
        self.full_at = 0;
    }
}

impl Judge {
    /// I20: no more requests at a time than the endpoint's settings say, over all nodes. What was begun before the cap was
    /// lowered goes on, and nothing is begun beside too many. Those of a process that died or lost its
    /// lanes are not counted: the receiver may see them for as long as a request may take.
    pub(super) fn check_cap(&mut self, post: PostId) {
        let place = self.posts[post].delivery;
        let endpoint = &self.endpoints[self.deliveries[place].endpoint as usize];
        let cap = endpoint
            .settings_since(self.now, self.news_slack)
            .iter()
            .map(|(_, settings)| settings.in_flight_max)
            .max()
            .unwrap_or(usize::MAX);
        let least = endpoint.latest().in_flight_max;
        let live = endpoint.live.iter().filter(|other| !self.posts[**other].abandoned).count();
        if live >= cap {
            self.object_to("I20", place, || format!("begun beside {live} others, and at most {cap} may be under way"));
        }
        if live + 1 == least && least > 1 {
            self.met.met(Sometimes::AtItsCap);
        }
    }

    /// I21: the rates of the endpoint and of the application hold in every window.
    pub(super) fn check_rates(&mut self, post: PostId) {
        let place = self.posts[post].delivery;
        let at = self.deliveries[place].endpoint as usize;
        let app = self.endpoints[at].app;
        let read_anew = self.reads_anew(self.posts[post].node, app);
        // Settings take some reads, one after the other, and each of those takes its time there and back.
        let slack = match (read_anew, self.now <= self.slow_until) {
            (true, true) => i64::MAX,
            (true, false) => 1_000 * (READS_OF_SETTINGS * self.config.read.1 + READS_OF_SETTINGS) + ROUNDING,
            (false, _) => 1_000 + ROUNDING + 1_000 * READS_AT_ANY_TIME * self.config.read.1,
        };
        let since = self.now - self.news_slack;
        let rate = self.endpoints[at]
            .settings_since(self.now, self.news_slack)
            .iter()
            .map(|(_, settings)| settings.rate.unwrap_or(UNLIMITED))
            .max()
            .unwrap_or(UNLIMITED);
        let now = self.now;
        if rate < UNLIMITED {
            let early = self.endpoints[at].bucket.take(now, rate, read_anew, slack);
            if early > -1_000_000 / i64::from(rate) {
                self.met.met(Sometimes::AtItsRate);
            }
            if early > slack {
                self.object_to("I21", place, || {
                    format!("more than {rate} per second to one endpoint, {early} us too early")
                });
            }
        }
        let rates = &self.apps[app as usize].rates;
        let from = rates.iter().rposition(|(at, _)| *at < since).unwrap_or(0);
        let rate = rates[from..].iter().map(|(_, rate)| rate.unwrap_or(UNLIMITED)).max().unwrap_or(UNLIMITED);
        if rate < UNLIMITED {
            let early = self.apps[app as usize].bucket.take(now, rate, read_anew, slack);
            if early > slack {
                self.object_to("I21", place, || {
                    format!("more than {rate} per second of one application, {early} us too early")
                });
            }
        }
    }

    /// A request is begun as soon as its turn has come, unless its endpoint's settings have to be read first: then those of a
    /// moment may come out together. That is so only after a change or when lanes have changed hands.
    pub(super) fn reads_anew(&self, node: usize, app: u32) -> bool {
        let lately = self.now - self.news_slack.max(READS_LATELY);
        self.apps[app as usize].changed >= lately
            || self.changed_hands_at(app) >= lately
            || self.started[node].is_some_and(|at| at >= lately)
    }
}

/// More than any rate that is drawn.
const UNLIMITED: u32 = 50_000;

/// There and back, for an endpoint, its application, the count of its changes and the others of it; twice, if it was being
/// read already.
const READS_OF_SETTINGS: i64 = 20;

/// Settings are read again also when a store found them outdated, which nobody else hears of: the application, its endpoints
/// and the count of its changes.
const READS_AT_ANY_TIME: i64 = 4;

/// The engine counts in whole microseconds.
const ROUNDING: i64 = 500;

/// For so long after a change settings may still be read for the first time.
const READS_LATELY: i64 = 3_000;
