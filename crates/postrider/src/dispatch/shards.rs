//! Shards come and go, and with them the lanes that are served.

use super::{
    Dispatch, Event, NOBODY, QUIET_RECHECK, Reading, Reign,
    found::{Found, some_at_once},
    insist_as_owner,
    settings::announce_lane,
};
use postrider_engine::{
    AppKey, Timestamp,
    planted::{Bug, planted},
};
use postrider_store::{Committed, Shard, Shards, Tenure, step};
use std::sync::Arc;
use tokio::{task::AbortHandle, time::Instant};

impl Dispatch {
    /// What has come to rest is to be someone else's, and not to be offered again.
    pub(super) fn retire(&self) {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            if let Err(error) = store.retire().await {
                tracing::warn!(%error, "the other nodes could not be told that this one stops");
            }
        });
    }

    pub(super) fn take_over(&mut self, tenure: Tenure, shards: Shards) {
        if tenure != self.tenure {
            self.depose();
            self.tenure = tenure;
            // What others changed before the store joined them again was not told to it.
            self.directory.forget_all();
            self.reading.values_mut().for_each(|reading| *reading = Reading::Outdated);
        }
        self.offered = self.offered.with(shards);
        if self.stopping {
            // It may have joined the others as a new one, of which they do not know that it stops.
            self.retire();
            self.turn_down(shards);
        }
    }

    /// Reads how the lanes stand that were offered, beside all else. What is offered meanwhile is read after that, together.
    pub(super) fn enter_offered(&mut self) {
        // A lane that lingers cannot be served before it is gone.
        let shards = self.offered.without(self.lingering);
        if self.entering.is_some() || shards.is_empty() {
            return;
        }
        self.offered = self.offered.without(shards);
        let (store, directory) = (Arc::clone(&self.store), Arc::clone(&self.directory));
        let (events, reign) = (self.events.clone(), self.reign);
        let reading = tokio::spawn(async move {
            let found = Found::read(&store, &directory, shards).await;
            let _ = events.send(Event::Found(reign, found));
        });
        self.entering = Some(Entering { shards, reading: reading.abort_handle() });
    }

    /// Before anything is sent the breakers must be as they were, and it must be known which lanes have something waiting:
    /// what is new belongs behind it.
    pub(super) fn enter(&mut self, found: Found, now: Timestamp) {
        let Some(shards) = self.entering.take().map(|entering| entering.shards) else { return };
        self.owned = self.owned.with(shards);
        self.engine.gain(now);
        for (endpoint, settings, health) in found.healths {
            if self.serves(settings.app) && !planted(Bug::BreakerForgotten) {
                self.engine.set_health(endpoint, self.newest(endpoint, settings), health, now);
            }
        }
        self.unopened.extend(found.lanes.iter().map(|lane| (lane.endpoint, lane.next_due)));
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            some_at_once(found.lanes, |lane| {
                let (directory, events) = (Arc::clone(&directory), events.clone());
                async move { announce_lane(&directory, &events, lane.endpoint, lane.next_due).await }
            })
            .await;
        });
        // From here on the store tells of these lanes, and hands their messages over.
        if self.store.own(self.tenure, shards).is_err() {
            return self.depose();
        }
        step!("shards.entered");
        self.hear_early();
    }

    /// Gives back shards that are not served yet.
    pub(super) fn turn_down(&mut self, shards: Shards) {
        let turned_down = self.arriving().and(shards);
        self.offered = self.offered.without(shards);
        if let Some(entering) = &mut self.entering {
            entering.shards = entering.shards.without(shards);
        }
        self.disown(turned_down);
        self.hear_early();
    }

    /// Shards that will be served, and are not yet.
    pub(super) fn arriving(&self) -> Shards {
        self.offered.with(self.entering.as_ref().map_or(Shards::NONE, |entering| entering.shards))
    }

    /// Whether it concerns lanes that are not served yet. Some stores tell of a lane only when it is owned, and some at once.
    pub(super) fn is_early(&self, committed: &Committed) -> bool {
        let arriving = self.arriving();
        match committed {
            Committed::Message { letter, .. } => arriving.has_lanes_of(letter.app),
            Committed::Waiting { endpoint, .. }
            | Committed::Health { endpoint }
            | Committed::Cancelled { endpoint, .. } => {
                !arriving.is_empty() && self.lane_at_hand(*endpoint).is_none_or(|lane| arriving.has_lanes_of(lane.app))
            }
            Committed::Settings { .. }
            | Committed::EventTypes
            | Committed::Work
            | Committed::Offered { .. }
            | Committed::Wanted { .. }
            | Committed::Deposed => false,
        }
    }

    pub(super) fn hear_early(&mut self) {
        let early = std::mem::take(&mut self.early);
        self.hear(early);
    }

    /// The lanes of these shards are to come to rest.
    pub(super) fn leave(&mut self, shards: Shards, now: Timestamp) {
        self.owned = self.owned.without(shards);
        self.leaving = self.leaving.with(shards);
        self.sought_quiet_at = None;
        self.engine.release(|app| lies_in(shards, app), now);
    }

    /// A message has come of lanes that are not served any more: it was on its way when they were asked to leave. It is given
    /// a row, and then they go.
    pub(super) fn send_off(&mut self, app: AppKey, now: Timestamp) {
        let shard = [Shard::of(app)].into_iter().collect();
        // Those that have been given up are not given up once more: they may be offered again by then, and served.
        if self.leaving.and(shard).is_empty() {
            self.lingering = self.lingering.with(shard);
        }
        self.sought_quiet_at = None;
        self.engine.release(|app| lies_in(shard, app), now);
    }

    pub(super) fn ending(&self) -> Shards {
        self.leaving.with(self.lingering)
    }

    /// Gives up shards whose lanes have come to rest.
    pub(super) fn give_up_quiet(&mut self) {
        let sought_lately = self.sought_quiet_at.is_some_and(|at| at.elapsed() < QUIET_RECHECK);
        if self.ending().is_empty() || sought_lately {
            return;
        }
        self.sought_quiet_at = Some(Instant::now());
        let busy: Shards = self.engine.busy_apps().filter(|app| *app != NOBODY).map(Shard::of).collect();
        let quiet = if planted(Bug::GivenUpWhileBusy) { self.ending() } else { self.ending().without(busy) };
        if quiet.is_empty() {
            return;
        }
        self.engine.forget(|app| lies_in(quiet, app));
        self.disown(self.leaving.and(quiet));
        self.leaving = self.leaving.without(quiet);
        self.lingering = self.lingering.without(quiet);
    }

    pub(super) fn disown(&mut self, shards: Shards) {
        if shards.is_empty() {
            return;
        }
        self.disowning += 1;
        let (store, events, tenure, reign) = (Arc::clone(&self.store), self.events.clone(), self.tenure, self.reign);
        tokio::spawn(async move {
            let written = insist_as_owner(|| store.disown(tenure, shards)).await;
            step!("shards.given_up");
            let _ = events.send(Event::Disowned(reign, written));
        });
    }

    /// All lanes are lost. What is on the network goes on, and what becomes of it is not written down.
    pub(super) fn depose(&mut self) {
        self.reign += 1;
        self.engine.depose();
        self.entering = None;
        self.early.clear();
        self.offered = Shards::NONE;
        (self.owned, self.leaving, self.lingering) = (Shards::NONE, Shards::NONE, Shards::NONE);
        self.unsettled.clear();
        self.unopened.clear();
    }

    /// A write of this reign was refused. The store says so in its news as well, but nothing may happen before.
    pub(super) fn refused(&mut self, reign: Reign) {
        if reign == self.reign {
            self.depose();
        }
    }

    pub(super) fn serves(&self, app: AppKey) -> bool {
        self.owned.has_lanes_of(app) || (app == NOBODY && !self.owned.is_empty())
    }
}

/// Shards of which it is being read how their lanes stand.
pub struct Entering {
    /// Without those that are wanted elsewhere by now.
    shards: Shards,
    reading: AbortHandle,
}

impl Drop for Entering {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

fn lies_in(shards: Shards, app: AppKey) -> bool {
    app != NOBODY && shards.has_lanes_of(app)
}
