//! The settings that lanes go by: read when they are needed, and again when they change.

use super::{Dispatch, Event, NOBODY, Reading, insist};
use crate::directory::{AppEntry, Directory};
use postrider_engine::{
    AppKey, EndpointKey, Timestamp,
    lanes::LaneSettings,
    policy::{DisableRules, Health, Ordering},
};
use postrider_store::By;
use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::mpsc;

impl Dispatch {
    /// A lane whose settings are not at hand starts parked, and is freed when they have been read.
    pub(super) fn settings_of(&mut self, endpoint: EndpointKey, app: AppKey) -> LaneSettings {
        match self.directory.endpoint_at_hand(endpoint) {
            Some(entry) => entry.lane,
            None => {
                if !self.reading.contains_key(&app) {
                    self.read(app);
                }
                LaneSettings { parked: true, gone: false, unknown: true, ..gone_lane(app, None) }
            }
        }
    }

    /// What a lane goes by that is open, or could be opened without reading anything first.
    pub(super) fn lane_at_hand(&self, endpoint: EndpointKey) -> Option<LaneSettings> {
        let known = self.directory.endpoint_at_hand(endpoint).map(|entry| entry.lane);
        known.or_else(|| self.engine.settings_of(endpoint))
    }

    /// What is known by now, for settings that were read some time ago.
    pub(super) fn newest(&self, endpoint: EndpointKey, read: LaneSettings) -> LaneSettings {
        self.directory.endpoint_at_hand(endpoint).map_or(read, |entry| entry.lane)
    }

    /// Settings of this application changed. Of changes that come close together the last one counts: what a read
    /// brings that began before it is thrown away.
    pub(super) fn reread(&mut self, app: AppKey) {
        self.directory.changed(app);
        let is_served = self.serves(app);
        match self.reading.get_mut(&app) {
            Some(reading) => *reading = Reading::Outdated,
            None if is_served => self.read(app),
            // It is enough that they are read anew when a message comes.
            None => {}
        }
    }

    pub(super) fn read(&mut self, app: AppKey) {
        self.reading.insert(app, Reading::Current);
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            let by = By::Key(app);
            let entry = insist(|| directory.application(&by)).await;
            let _ = events.send(Event::AppRead(app, entry));
        });
    }

    pub(super) fn reread_endpoint(&self, endpoint: EndpointKey) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            let event = match insist(|| directory.endpoint(endpoint)).await {
                Some(entry) => Event::Disabled(entry.lane.app),
                None => Event::EndpointGone(endpoint),
            };
            let _ = events.send(event);
        });
    }

    /// Gives every lane of an application its settings. Lanes whose endpoint is gone are freed, so that what they
    /// hold comes to its end.
    pub(super) fn adopt(&mut self, app: AppKey, entry: Option<Arc<AppEntry>>, now: Timestamp) {
        self.tasks.wake();
        if !self.serves(app) {
            return;
        }
        let mut left: BTreeSet<EndpointKey> = self.engine.lanes_of(app).into_iter().collect();
        for endpoint in entry.iter().flat_map(|entry| &entry.endpoints) {
            left.remove(&endpoint.key);
            self.engine.set_lane(endpoint.key, endpoint.lane, now);
        }
        // They still share the application's rate.
        let gone = gone_lane(app, entry.as_ref().and_then(|entry| entry.application.rate_limit));
        for endpoint in left {
            self.engine.set_health(endpoint, gone, Health::default(), now);
            self.engine.set_lane(endpoint, gone, now);
        }
    }

    pub(super) fn find_healed(&self, endpoint: EndpointKey) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move {
            if let Some(entry) = insist(|| directory.endpoint(endpoint)).await {
                let _ = events.send(Event::Healed { endpoint, settings: entry.lane });
            }
        });
    }

    pub(super) fn find_lane(&self, endpoint: EndpointKey, due: Timestamp) {
        let (directory, events) = (Arc::clone(&self.directory), self.events.clone());
        tokio::spawn(async move { announce_lane(&directory, &events, endpoint, due).await });
    }
}

pub async fn announce_lane(
    directory: &Directory,
    events: &mpsc::UnboundedSender<Event>,
    endpoint: EndpointKey,
    due: Timestamp,
) {
    let settings = match insist(|| directory.endpoint(endpoint)).await {
        Some(entry) => entry.lane,
        None => gone_lane(NOBODY, None),
    };
    let _ = events.send(Event::LaneFound { endpoint, settings, due });
}

/// The lane of an endpoint that was deleted: whatever is in it is sent on its way to the dead letters.
pub fn gone_lane(app: AppKey, app_rate: Option<u32>) -> LaneSettings {
    LaneSettings {
        app,
        app_rate,
        in_flight_max: 100,
        rate: None,
        parked: false,
        ordering: Ordering::None,
        breaker: None,
        disable: DisableRules { failing_for: None, permanent_streak: None },
        gone: true,
        unknown: false,
    }
}
