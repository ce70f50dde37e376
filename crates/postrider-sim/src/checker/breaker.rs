//! The breaker of an endpoint, from what was written down of it: I23. And pauses.

use super::{
    Judge,
    envelope::{self, Class},
    ledger::Endpoint,
    wire::{Post, PostId},
};
use crate::{settings::BreakerPlan, sometimes::Sometimes, trace::Kind};
use postrider_engine::{
    Trigger,
    policy::{Breaker, Health},
};
use postrider_store::Settlement;

/// As it was last written down.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded {
    pub failures: u32,
    pub trips: u32,
    /// By the engine's clock.
    pub until: Option<i64>,
    /// In true time.
    pub written: i64,
    pub streak: u32,
}

impl Recorded {
    pub fn is_open(&self) -> bool {
        self.until.is_some()
    }
}

impl Judge {
    /// I23: only legal steps, and only by outcomes of real attempts.
    pub(super) fn check_health(&mut self, place: usize, settlement: &Settlement, health: Health, post: Option<PostId>) {
        let endpoint = self.deliveries[place].endpoint as usize;
        let before = self.endpoints[endpoint].breaker;
        let key = self.endpoints[endpoint].key;
        let after = match health.breaker {
            Breaker::Closed { failures } => Recorded { failures, trips: 0, until: None, ..before },
            Breaker::Open { until, trips } => Recorded { failures: 0, trips, until: Some(until.as_millis()), ..before },
        };
        let after = Recorded { written: self.now, streak: health.permanent_streak, ..after };
        let moved = (before.failures, before.trips, before.until) != (after.failures, after.trips, after.until);
        self.endpoints[endpoint].breaker = after;
        self.endpoints[endpoint].ease.hindered |= before.is_open() || after.is_open();
        if (before.trips, before.until) != (after.trips, after.until) {
            self.endpoints[endpoint].probe = None;
            self.endpoints[endpoint].unjudged = false;
        }
        if moved {
            let shown = i64::from(after.failures.max(after.trips));
            self.note(super::NOBODY, Kind::Breaker, [0, key, shown, after.until.unwrap_or(0)]);
        }
        let Some(post) = post else {
            self.object_to("I23", place, || "an endpoint's health changed without an attempt".to_owned());
            return;
        };
        let Some((_, answered)) = self.posts[post].ended else { return };
        let mut origins = vec![before];
        match self.heard_set_back(endpoint, post) {
            None => {}
            Some(true) => origins.push(Recorded::default()),
            Some(false) => {
                origins.push(Recorded::default());
                origins.extend(&self.endpoints[endpoint].set_back);
            }
        }
        match origins.into_iter().find(|origin| self.is_step(settlement, post, *origin, after)) {
            Some(origin) => self.note_step(origin, after),
            None => self.object_to("I23", place, || format!("{before:?} became {after:?} after {:?}", answered.kind)),
        }
        self.forget_set_back(endpoint, post);
    }

    /// I23: an outcome that is written without a step must not be one that makes one.
    pub(super) fn check_health_kept(&mut self, place: usize, settlement: &Settlement, post: PostId) {
        let endpoint = self.deliveries[place].endpoint as usize;
        let Some((_, answered)) = self.posts[post].ended else { return };
        let before = self.endpoints[endpoint].breaker;
        let mut origins = vec![before];
        // Whoever has heard puts right what was written after it, and that is a step on record.
        if self.heard_set_back(endpoint, post) == Some(false) {
            origins.push(Recorded::default());
            origins.extend(&self.endpoints[endpoint].set_back);
        }
        self.endpoints[endpoint].ease.hindered |= before.is_open();
        if !origins.into_iter().any(|origin| self.is_step(settlement, post, origin, origin)) {
            self.object_to("I23", place, || format!("{before:?} was kept after {:?}", answered.kind));
        }
        self.forget_set_back(endpoint, post);
    }

    /// A person's word is on record at once and heard of a little later. What was reckoned without it is written after it, and
    /// what is reckoned then begins with a closed breaker, whatever is on record: for as long as the store is slow.
    fn is_set_back(&self, endpoint: usize, node: usize) -> bool {
        let Endpoint { app, reset_at, .. } = self.endpoints[endpoint];
        let Some(heard_by) = reset_at.map(|at| at + self.news_slack) else { return false };
        // Whoever took the lane over since then goes by what is on record.
        let goes_by_record =
            self.changed_hands_at(app) > heard_by || self.started[node].is_some_and(|at| at > heard_by);
        !self.endpoints[endpoint].set_back.is_empty() && !goes_by_record
    }

    /// If a person's word may matter for this outcome: whether it had surely been heard when the outcome was reckoned.
    fn heard_set_back(&self, endpoint: usize, post: PostId) -> Option<bool> {
        let Post { node, ended, .. } = self.posts[post];
        let (reset_at, (ended, _)) = (self.endpoints[endpoint].reset_at?, ended?);
        self.is_set_back(endpoint, node).then_some(ended > reset_at + self.news_slack)
    }

    /// From the first outcome on that was reckoned with a person's word, what is on record is what the lane goes by.
    fn forget_set_back(&mut self, endpoint: usize, post: PostId) {
        if self.heard_set_back(endpoint, post) != Some(false) {
            self.endpoints[endpoint].set_back.clear();
        }
    }

    /// Whether an outcome makes this of that, by any settings that it may have gone by.
    fn is_step(&self, settlement: &Settlement, post: PostId, before: Recorded, after: Recorded) -> bool {
        let Post { delivery, begun, engine_begun, node, ended, .. } = self.posts[post];
        let Some((_, answered)) = ended else { return true };
        let endpoint = &self.endpoints[self.deliveries[delivery].endpoint as usize];
        let versions = endpoint.settings_since(begun, self.news_slack);
        let resend = settlement.id.trigger == Trigger::Manual;
        // It is reckoned when the answer is heard: at its end, or as much later as it took to read the settings before it.
        let was_set = self.was_set_since(node, begun - self.news_slack);
        let began = if was_set { i64::MAX } else { engine_begun };
        let heard_max = if was_set { i64::MAX } else { HEARD_MAX + self.news_slack };
        // The answer is judged by the settings that were read before the request, and reckoned by those of the lane.
        versions.iter().any(|(_, rules)| {
            let class = envelope::class_of(&answered, rules);
            let failed = envelope::is_failure(&answered, class);
            let step = Step { before, after, class, failed, resend, began };
            versions.iter().any(|(_, lane)| is_legal(lane.breaker, &step, settlement.at.as_millis(), heard_max))
        })
    }

    fn note_step(&mut self, before: Recorded, after: Recorded) {
        match (before.is_open(), after.is_open()) {
            (false, true) => self.met.met(Sometimes::BreakerOpened),
            (true, true) if after.trips > before.trips => self.met.met(Sometimes::ProbeFailed),
            (true, false) => self.met.met(Sometimes::ProbeClosedBreaker),
            (true, true) | (false, false) => {}
        }
    }

    /// I23: nothing is begun before the breaker's time is up, and one request after that.
    pub(super) fn check_breaker(&mut self, post: PostId) {
        let (place, engine_begun, node) =
            (self.posts[post].delivery, self.posts[post].engine_begun, self.posts[post].node);
        let endpoint = &self.endpoints[self.deliveries[place].endpoint as usize];
        let Some(until) = endpoint.breaker.until else { return };
        // Changed settings may have no breaker any more.
        let excused = self.now - endpoint.changed <= self.news_slack
            || endpoint
                .settings_since(self.now, self.news_slack)
                .iter()
                .any(|(_, settings)| settings.breaker.is_none())
            || self.is_set_back(self.deliveries[place].endpoint as usize, node)
            || self.was_just_set(node)
            // Its settings had to be read first, and meanwhile the breaker opened.
            || self.reads_anew(node, endpoint.app);
        if excused {
            // By the clock as it is now it may be the probe all the same.
            if self.was_just_set(node) && engine_begun >= until && endpoint.probe.is_none() {
                self.set_probe(place, post);
            }
            let at = self.deliveries[place].endpoint as usize;
            self.endpoints[at].unjudged = true;
            return;
        }
        let is_resend = self.posts[post].resend && endpoint.latest().breaker.is_some_and(|plan| plan.buries);
        // What is on record lags behind: one that was answered, and is not written down yet, may have been the probe.
        let settings = endpoint.latest();
        let failed = |answered| envelope::is_failure(&answered, envelope::class_of(&answered, settings));
        let closed_by = |other: &Post| !other.abandoned && other.ended.is_some_and(|(_, answered)| !failed(answered));
        let closers = || endpoint.answered.iter().map(|other| &self.posts[*other]).filter(|other| closed_by(other));
        if engine_begun < until {
            // Its time was up by the clock as it was then. What a probe closed stays so when the clock is set back.
            if !closers().any(|other| other.engine_begun >= until) {
                let early = until - engine_begun;
                self.allow_as_resend(post, format!("begun {early} ms before the breaker's time was up"));
            }
            return;
        }
        let closed = closers()
            .any(|other| other.engine_begun >= until || self.was_set_since(node, other.begun - self.news_slack));
        if closed {
            return;
        }
        // Half open: one request, whose answer decides. What it decided shows in what is sent before it is written down.
        let probe = endpoint.probe.filter(|probe| !self.posts[*probe].abandoned);
        let decided = probe.map(|probe| self.posts[probe].ended.map(|(_, answered)| (probe, answered)));
        match decided {
            Some(None) if is_resend => {}
            Some(None) => self.object_to("I23", place, || "begun beside the probe of a half-open breaker".to_owned()),
            Some(Some((probe, answered))) => {
                let endpoint = &self.endpoints[self.deliveries[place].endpoint as usize];
                let settings = endpoint.latest();
                let trips = if endpoint.unjudged { 0 } else { endpoint.breaker.trips };
                let class = envelope::class_of(&answered, settings);
                let again = self.posts[probe].engine_begun + answered.took;
                let shut = settings.breaker.map_or(0, |plan| cool_down(plan, trips + 1));
                let was_set = self.was_set_since(node, self.posts[probe].begun);
                if envelope::is_failure(&answered, class) && engine_begun < again + shut && !was_set && !closed {
                    self.allow_as_resend(post, "begun right after a probe that failed".to_owned());
                }
                if class == Class::Ours && !is_resend {
                    self.set_probe(place, post);
                }
            }
            None if is_resend => {}
            None => self.set_probe(place, post),
        }
    }

    /// A breaker that does not hold what comes buries it, and lets through only what a person asked for. If it may be that, it
    /// is; what it was shows when it is on record.
    fn allow_as_resend(&mut self, post: PostId, complaint: String) {
        let Post { delivery: place, number, resend, .. } = self.posts[post];
        let buries =
            self.endpoints[self.deliveries[place].endpoint as usize].latest().breaker.is_some_and(|plan| plan.buries);
        if buries && (resend || self.may_be_resend(place, number)) {
            self.posts[post].resend = true;
            self.posts[post].only_as_resend = Some(complaint);
        } else {
            self.object_to("I23", place, || complaint);
        }
    }

    fn set_probe(&mut self, place: usize, post: PostId) {
        let endpoint = self.deliveries[place].endpoint as usize;
        self.endpoints[endpoint].probe = Some(post);
    }

    /// Nothing is sent to a paused endpoint, once the pause is known.
    pub(super) fn check_not_parked(&mut self, post: PostId) {
        let place = self.posts[post].delivery;
        let endpoint = &self.endpoints[self.deliveries[place].endpoint as usize];
        let slack = self.news_slack;
        let too_late = |since: Option<i64>| since.is_some_and(|at| self.now - at > slack);
        if too_late(endpoint.parked) {
            self.object_to("I24", place, || "begun while its endpoint was paused".to_owned());
        } else if too_late(endpoint.gone) {
            self.object_to("I5", place, || "begun after its endpoint was deleted".to_owned());
        }
    }
}

struct Step {
    before: Recorded,
    after: Recorded,
    class: Class,
    failed: bool,
    resend: bool,
    /// By the node's clock; later than anything if that was set.
    began: i64,
}

fn cool_down(plan: BreakerPlan, trips: u32) -> i64 {
    plan.cool_down.saturating_mul(1 << trips.saturating_sub(1).min(40)).min(plan.cool_down_max)
}

fn is_legal(plan: Option<BreakerPlan>, step: &Step, ended: i64, heard_max: i64) -> bool {
    let Step { before, after, class, failed, resend, began } = *step;
    let Some(plan) = plan else { return !after.is_open() && after.failures == 0 };
    let opened_by = |until: i64, trips: u32| {
        let began = until - cool_down(plan, trips);
        heard_max == i64::MAX || (began >= ended && began <= ended + heard_max)
    };
    match (before.until, after.until) {
        (None, None) => {
            let expected = match (failed, resend) {
                (true, false) => before.failures + 1,
                (true, true) => before.failures,
                (false, _) => 0,
            };
            after.failures == expected && (after.failures < plan.failures || resend)
        }
        (None, Some(until)) => {
            failed && !resend && after.trips == 1 && before.failures + 1 >= plan.failures && opened_by(until, 1)
        }
        // Only what was sent after its time decides.
        (Some(until), None) => began >= until && !failed && class != Class::Ours && after.failures == 0,
        (Some(until), Some(again)) if until == again => after.trips == before.trips,
        (Some(until), Some(again)) => {
            began >= until && failed && after.trips == before.trips + 1 && opened_by(again, after.trips)
        }
    }
}

/// An answer is heard by the lane in the turn after it came.
const HEARD_MAX: i64 = 2_000;
