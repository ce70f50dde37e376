//! What a lane may do with what it has: health and pauses decide it.

use super::{
    lane::LaneSettings,
    ramp::{Ramp, Sign},
};
use crate::{
    keys::DeliveryId,
    planted::{Bug, planted},
    policy::{Health, Verdict, WhileOpen, breaker::Standing, health::Probe},
    time::Timestamp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Nothing is sent and nothing is kept in memory; until then, or until someone says otherwise.
    Shut {
        until: Option<Timestamp>,
    },
    /// Whose turn comes is dead-lettered.
    Bury,
    /// One request, whose answer decides.
    Probe,
    Open,
}

/// What decides about the gate, besides the settings.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub health: Health,
    /// Someone else set the health while an outcome was being written down. What that outcome made of it may be written
    /// last, and is put right along with the next one.
    pub doubtful: bool,
    pub ramp: Option<Ramp>,
    /// In a row, while there is no ramp.
    failures: usize,
    pub probe: Option<DeliveryId>,
    /// The lane is wanted elsewhere: it is brought to rest, and never comes back.
    pub leaving: bool,
    condemned: Option<Condemned>,
}

/// The endpoint is to be disabled, and its settings do not say so yet.
#[derive(Clone, Copy, Debug)]
struct Condemned {
    by: DeliveryId,
    /// Settings read before it was written know nothing of it.
    written: bool,
    /// Settings came that may have been read before or after it was written.
    overruled: bool,
}

impl Watch {
    pub fn gate(&self, settings: &LaneSettings, now: Timestamp) -> Gate {
        if self.is_paused(settings) {
            return Gate::Shut { until: None };
        }
        let Some(rules) = &settings.breaker else { return Gate::Open };
        match (self.health.breaker.standing(now), rules.while_open) {
            (Standing::Closed, _) => Gate::Open,
            (Standing::HalfOpen, _) => Gate::Probe,
            (Standing::Open { until }, WhileOpen::Hold) => Gate::Shut { until: Some(until) },
            (Standing::Open { .. }, WhileOpen::DeadLetter) => Gate::Bury,
        }
    }

    /// The endpoint is gone, and nothing that was known of it matters any more.
    pub fn forget_health(&mut self) {
        *self = Self { leaving: self.leaving, ..Self::default() };
    }

    pub fn is_paused(&self, settings: &LaneSettings) -> bool {
        (settings.parked && !planted(Bug::PauseIgnored)) || self.leaving || self.condemned.is_some()
    }

    /// Neither closed by its rules nor without any.
    pub fn is_tripped(&self, settings: &LaneSettings, now: Timestamp) -> bool {
        settings.breaker.is_some() && self.health.breaker.standing(now) != Standing::Closed
    }

    pub fn slots(&self, settings: &LaneSettings) -> usize {
        match self.ramp {
            Some(ramp) => ramp.allowance().min(settings.in_flight_max),
            None => settings.in_flight_max.saturating_sub(self.failures).max(1),
        }
    }

    pub fn slow_start(&mut self, settings: &LaneSettings) {
        // No answer of an endpoint that is gone would end the ramp.
        self.ramp = if settings.gone { None } else { Ramp::new(settings.in_flight_max) };
        self.failures = 0;
    }

    /// Goes on with the ramp, or comes closer to one: each failure in a row takes a slot away, and with the last but one a
    /// ramp begins. What would go through more of them would only hang or fail side by side.
    pub fn climb(&mut self, settings: &LaneSettings, verdict: &Verdict) {
        if let Some(ramp) = self.ramp {
            self.ramp = ramp.after(verdict, settings.in_flight_max);
            return;
        }
        match Sign::of(verdict) {
            Sign::Copes => self.failures = 0,
            Sign::Fails => self.failures += 1,
            Sign::Neither => {}
        }
        if self.slots(settings) == 1 {
            self.slow_start(settings);
        }
    }

    /// This one is no longer under way. Was it the probe?
    pub fn take_probe(&mut self, id: DeliveryId) -> Probe {
        if self.probe == Some(id) {
            self.probe = None;
            Probe::Yes
        } else {
            Probe::No
        }
    }

    pub fn condemn(&mut self, by: DeliveryId) {
        self.condemned = Some(Condemned { by, written: false, overruled: false });
    }

    pub fn settled(&mut self, id: DeliveryId) {
        self.condemned = match self.condemned {
            // Whoever wrote those settings has the last word; if they were read too early, others follow at once.
            Some(condemned) if condemned.by == id && condemned.overruled => None,
            Some(condemned) if condemned.by == id => Some(Condemned { written: true, ..condemned }),
            other => other,
        };
    }

    /// Settings came.
    pub fn reprieve(&mut self, parked: bool) {
        self.condemned = self
            .condemned
            .filter(|condemned| !parked && !condemned.written)
            .map(|condemned| Condemned { overruled: true, ..condemned });
    }

    /// There is nothing that would be lost if the lane were forgotten.
    pub fn is_unremarkable(&self) -> bool {
        self.health == Health::default() && !self.doubtful && self.ramp.is_none() && self.condemned.is_none()
    }
}
