//! What was written down about attempts, against what happened: I2, I3, I9, I10, I11, I12, I13, I14.

use super::{
    Judge, Offset,
    envelope::{self, Class, Standing},
    ledger::{Delivery, State},
    wire::{Answer, Answered, Post, PostId},
};
use crate::{settings::Settings, sometimes::Sometimes, trace::Kind};
use postrider_engine::{
    Trigger,
    policy::{self, DeathReason, Next, Progress},
};
use postrider_store::{AttemptRecord, Settlement};
use std::sync::Arc;

impl Judge {
    /// A settlement was committed.
    pub fn settled(&mut self, node: usize, tenure: i64, settlement: &Settlement) {
        let (message, endpoint) = (settlement.id.message.raw(), settlement.id.endpoint.raw());
        let Some(place) = self.delivery(message, endpoint) else {
            self.object("I5", message, endpoint, || "a settlement of what nobody owes".to_owned());
            return;
        };
        let resend = settlement.id.trigger == Trigger::Manual;
        let delivery = &self.deliveries[place];
        let is_void = !resend && (delivery.state != State::Open || delivery.cycle != settlement.cycle);
        let kind = if is_void { Kind::Void } else { Kind::Settled };
        let args = [message, endpoint, settlement.progress.attempts.into(), next_code(settlement.next)];
        self.note(node as i8, kind, args);
        // The lanes of a deleted endpoint are nobody's, and whoever has one only ends what is in it.
        let gone = self.endpoints[self.deliveries[place].endpoint as usize].gone.is_some();
        if settlement.attempt.is_some() || !gone {
            self.check_fence(place, node, tenure);
        }
        let post = settlement.attempt.as_ref().and_then(|attempt| self.match_attempt(place, node, resend, attempt));
        match (settlement.health, post) {
            (Some(step), _) => self.check_health(place, settlement, step, post),
            (None, Some(post)) if !gone && !is_void => self.check_health_kept(place, settlement, post),
            (None, _) => {}
        }
        if settlement.disable.is_some() {
            let now = self.now;
            let endpoint = self.deliveries[place].endpoint as usize;
            self.endpoints[endpoint].set_parked(true, now);
            self.endpoints[endpoint].changed = now;
            self.met.met(Sometimes::DisabledByRule);
        }
        match (resend, is_void) {
            (true, _) => self.settle_resend(place, settlement, post),
            (false, true) => self.settle_void(place, settlement, post),
            (false, false) => self.settle_own(place, node, settlement, post),
        }
    }

    /// I3, I9, I14: what is on record took place, once, and is what the receiver saw.
    fn match_attempt(&mut self, place: usize, node: usize, resend: bool, attempt: &AttemptRecord) -> Option<PostId> {
        let life = self.current_life(node);
        let took = attempt.duration.as_millis() as i64;
        let fits = |post: &Post| {
            post.delivery == place
                && post.life == life
                && !post.recorded
                && post
                    .ended
                    .is_some_and(|(_, answered)| answered.took == took && status_of(&answered) == attempt.status)
        };
        let started = attempt.started_at.as_millis();
        // The clock is read right before the request is begun. Which of two at a time is the resend cannot always be told then.
        let distance = |post: &Post| {
            let ahead = post.engine_begun - started;
            (ahead < 0, ahead.abs(), post.resend != resend)
        };
        // What was answered names the request, except where it is said instead where a redirect leads.
        let named = std::str::from_utf8(&attempt.response).ok().and_then(|name| name.parse().ok());
        let found = match named {
            Some(post) => Some(post).filter(|post| self.posts.get(*post).is_some_and(fits)),
            None => {
                let from = self.posts.len().saturating_sub(LOOK_BACK);
                (from..self.posts.len())
                    .filter(|post| fits(&self.posts[*post]))
                    .min_by_key(|post| distance(&self.posts[*post]))
            }
        };
        let Some(post) = found else {
            let status = attempt.status;
            self.object_to("I14", place, || {
                format!(
                    "an attempt is on record (status {status:?}, {took} ms) that no receiver and no request bears out"
                )
            });
            return None;
        };
        self.posts[post].recorded = true;
        self.note_saturation(self.deliveries[place].endpoint as usize);
        self.endpoints[self.deliveries[place].endpoint as usize].answered.retain(|answered| *answered != post);
        if let Some(complaint) = self.posts[post].only_as_resend.take().filter(|_| !resend) {
            self.object_to("I23", place, || complaint);
        }
        // Which of two requests was the resend shows only now.
        if self.posts[post].resend != resend {
            self.posts[post].resend = resend;
            let live = &self.endpoints[self.deliveries[place].endpoint as usize].live;
            let other = live.iter().copied().find(|other| {
                let other = &self.posts[*other];
                other.delivery == place && other.life == life && other.resend == resend
            });
            if let Some(other) = other {
                self.posts[other].resend = !resend;
                self.deliveries[place].last_post = Some(if resend { other } else { post });
            }
        }
        self.deliveries[place].unrecorded -= 1;
        let engine_begun = self.posts[post].engine_begun;
        if started != engine_begun && !self.was_set_since(node, self.posts[post].begun - JUST_BEFORE) {
            self.object_to("I12", place, || format!("recorded as begun at {started}, and it was at {engine_begun}"));
        }
        Some(post)
    }

    fn settle_resend(&mut self, place: usize, settlement: &Settlement, post: Option<PostId>) {
        match settlement.next {
            Next::Postponed { .. } => return,
            Next::Delivered => {
                self.check_success(place, post);
                self.check_taken(place, post, true);
                self.deliveries[place].arrived = true;
                if self.deliveries[place].state == State::Open {
                    self.met.met(Sometimes::ResendEndsSchedule);
                    self.finish(place, State::Delivered);
                    self.deliveries[place].recalled = true;
                } else {
                    self.deliveries[place].state = State::Delivered;
                }
            }
            Next::Nothing => self.check_taken(place, post, false),
            Next::Retry { .. } | Next::Dead(_) => {
                self.object_to("I17", place, || "a resend touched the delivery's own schedule".to_owned());
            }
        }
        self.deliveries[place].resend = false;
        self.deliveries[place].changed = self.now;
    }

    /// It had ended while the request was under way. A success counts all the same; nothing else changes anything.
    fn settle_void(&mut self, place: usize, settlement: &Settlement, post: Option<PostId>) {
        self.met.met(Sometimes::SettledAfterItsEnd);
        if settlement.next == Next::Delivered {
            self.check_success(place, post);
            self.check_taken(place, post, true);
            self.deliveries[place].arrived = true;
            match self.deliveries[place].state {
                State::Open => self.finish(place, State::Delivered),
                State::Delivered | State::Dead(_) => self.deliveries[place].state = State::Delivered,
            }
            self.deliveries[place].recalled = true;
            self.deliveries[place].changed = self.now;
        }
    }

    fn settle_own(&mut self, place: usize, node: usize, settlement: &Settlement, post: Option<PostId>) {
        let before = self.deliveries[place].attempts;
        let counted = settlement.attempt.is_some();
        // I14: only an attempt counts as one.
        let expected = before + u32::from(counted);
        let said = settlement.progress.attempts;
        if said != expected {
            self.object_to("I14", place, || format!("{said} attempts are on record, and {expected} were made"));
        }
        if let (Some(attempt), Some(post)) = (&settlement.attempt, post) {
            self.check_verdict(place, settlement, attempt, post);
        } else if !counted {
            self.check_untried(place, node, settlement);
        }
        let now = self.now;
        let delivery = &mut self.deliveries[place];
        delivery.attempts = said;
        delivery.changed = now;
        delivery.give_up = settlement.progress.give_up_at.map(|at| at.as_millis());
        delivery.last_wait = settlement.progress.last_delay.map(|wait| wait.as_millis() as i64);
        delivery.ambiguous = settlement.progress.ambiguous;
        delivery.ambiguous_since = settlement.progress.ambiguous_since.map(|at| at.as_millis());
        if let Some(attempt) = &settlement.attempt {
            delivery.evidence = attempt.status;
        }
        match settlement.next {
            Next::Delivered => {
                self.check_success(place, post);
                self.deliveries[place].arrived = true;
                self.finish(place, State::Delivered);
                self.counts.delivered += 1;
            }
            Next::Dead(reason) => {
                self.finish(place, State::Dead(reason));
                self.counts.dead += 1;
            }
            Next::Retry { due, .. } | Next::Postponed { due } => self.deliveries[place].due = due.as_millis(),
            Next::Nothing => {
                self.object_to("I2", place, || "a delivery on its schedule was dropped without a reason".to_owned());
            }
        }
    }

    /// I3: `delivered` is true.
    fn check_success(&mut self, place: usize, post: Option<PostId>) {
        let arrived = post.is_some_and(|post| self.posts[post].arrived);
        if !arrived {
            self.object_to("I3", place, || "recorded as delivered, and it never arrived".to_owned());
        }
    }

    /// I3, where no schedule is looked at: it was taken, or not, by some settings that it may have gone by.
    fn check_taken(&mut self, place: usize, post: Option<PostId>, said: bool) {
        let Some((post, (_, answered))) = post.and_then(|post| Some((post, self.posts[post].ended?))) else { return };
        let endpoint = &self.endpoints[self.deliveries[place].endpoint as usize];
        let agrees = endpoint
            .settings_since(self.posts[post].begun, self.news_slack)
            .iter()
            .any(|(_, settings)| (envelope::class_of(&answered, settings) == Class::Delivered) == said);
        if !agrees {
            let words = if said { "taken" } else { "not taken" };
            self.object_to("I3", place, || format!("recorded as {words} after {:?}", answered.kind));
        }
    }

    /// I10, I11, I12, I13: what was made of an attempt is what the settings say, whichever of them it may have gone by.
    fn check_verdict(&mut self, place: usize, settlement: &Settlement, attempt: &AttemptRecord, post: PostId) {
        let Post { begun, node, .. } = self.posts[post];
        let Some((_, answered)) = self.posts[post].ended else { return };
        let endpoint = self.deliveries[place].endpoint as usize;
        let versions: Vec<Arc<Settings>> = self.endpoints[endpoint]
            .settings_since(begun, self.news_slack)
            .iter()
            .map(|(_, settings)| Arc::clone(settings))
            .collect();
        let started = attempt.started_at.as_millis();
        self.check_started(place, started, node, begun, &versions);
        let delivery = &self.deliveries[place];
        let complaints: Vec<(&'static str, String)> = versions
            .iter()
            .map_while(|settings| disagreement(delivery, settings, settlement, attempt, &answered))
            .collect();
        if complaints.len() == versions.len()
            && let Some((invariant, text)) = complaints.into_iter().next_back()
        {
            self.object_to(invariant, place, || text);
        }
        self.note_verdict(settlement, &answered);
    }

    /// I10, I11, I12: begun neither before its time nor after the end of it, by the engine's own clock.
    fn check_started(&mut self, place: usize, started: i64, node: usize, begun: i64, versions: &[Arc<Settings>]) {
        let delivery = &self.deliveries[place];
        let hold = versions.iter().map(|settings| settings.hold).max().unwrap_or(i64::MAX);
        let end = delivery.give_up.unwrap_or_else(|| delivery.queued_at.saturating_add(hold));
        if started >= end {
            self.object_to("I10", place, || format!("begun {} ms after the end of its time", started - end));
        }
        let due = self.deliveries[place].due;
        if started < due && due > self.clocks[node].latest && !self.was_set_since(node, begun - JUST_BEFORE) {
            self.object_to("I12", place, || format!("begun {} ms before it was due", due - started));
        }
    }

    /// At the start of a request: the same, so that also those are looked at that are never recorded.
    pub(super) fn check_due(&mut self, post: PostId) {
        let Post { delivery: place, engine_begun, node, .. } = self.posts[post];
        let due = self.deliveries[place].due;
        let early = engine_begun < due && due > self.clocks[node].latest;
        if early && self.deliveries[place].state == State::Open && !self.was_just_set(node) {
            let invariant = if self.deliveries[place].attempts > 0 { "I11" } else { "I12" };
            self.object_to(invariant, place, || format!("begun {} ms before it was due", due - engine_begun));
        }
        let late = self.deliveries[place].give_up.is_some_and(|end| engine_begun >= end);
        // The clock may have been set between the look at it and the request.
        if late && !self.was_set_since(node, self.now - JUST_BEFORE) {
            self.object_to("I10", place, || "begun after the end of its time".to_owned());
        }
    }

    pub(super) fn was_set_since(&self, node: usize, since: i64) -> bool {
        self.clocks[node].set_at.is_some_and(|at| at >= since)
    }

    /// When a node's clock said this, as far as can be told: at the latest now.
    fn true_time(&self, node: usize, engine: i64) -> i64 {
        let clock = &self.clocks[node];
        let by_now = engine - super::EPOCH - clock.now;
        let before = if self.was_set_since(node, by_now) { engine - super::EPOCH - clock.before } else { by_now };
        by_now.min(before).min(self.now)
    }

    /// A delivery moved without an attempt: it was put off for trouble of our own, or it ended for a reason that needs none.
    fn check_untried(&mut self, place: usize, node: usize, settlement: &Settlement) {
        let (delivery, at) = (&self.deliveries[place], settlement.at.as_millis());
        let endpoint = &self.endpoints[delivery.endpoint as usize];
        // It may have been decided long before it could be written down.
        let settings = endpoint.settings_since(self.true_time(node, at), self.news_slack);
        match settlement.next {
            Next::Postponed { due } => {
                let Progress { give_up_at, last_delay, .. } = settlement.progress;
                let kept = give_up_at.map(|at| at.as_millis()) == delivery.give_up
                    && last_delay.map(|wait| wait.as_millis() as i64) == delivery.last_wait;
                if !kept || due.as_millis() < at {
                    self.object_to("I14", place, || "what was only put off is not as it was".to_owned());
                }
            }
            Next::Nothing => {}
            Next::Dead(DeathReason::Expired) => {
                let least = settings.iter().map(|(_, settings)| settings.hold).min();
                let end = delivery.give_up.unwrap_or(delivery.queued_at + least.unwrap_or(0));
                if at < end {
                    self.object_to("I10", place, || format!("given up as expired {} ms before its time", end - at));
                }
                self.met.met(Sometimes::ExpiredAtItsTurn);
            }
            Next::Dead(DeathReason::EndpointGone) => {
                if endpoint.gone.is_none() {
                    self.object_to("I2", place, || "given up for an endpoint that is there".to_owned());
                }
                self.met.met(Sometimes::EndpointDeletedUnderIt);
            }
            Next::Dead(DeathReason::Breaker) => {
                let buries = settings.iter().any(|(_, settings)| settings.breaker.is_some_and(|plan| plan.buries));
                if !buries {
                    self.object_to("I23", place, || "buried by a breaker that is to hold".to_owned());
                }
                self.met.met(Sometimes::BuriedByBreaker);
            }
            Next::Dead(reason @ (DeathReason::Permanent | DeathReason::Exhausted | DeathReason::Cancelled)) => {
                self.object_to("I2", place, || format!("ended as {reason:?} without an attempt that says so"));
            }
            Next::Delivered | Next::Retry { .. } => {
                self.object_to("I3", place, || "an outcome without an attempt".to_owned());
            }
        }
    }

    /// I10, for what waited where nothing is sent: its time was over when that was decided, by the settings of that moment.
    pub(super) fn check_expired_parked(&mut self, place: usize, node: usize, at: i64) {
        let delivery = &self.deliveries[place];
        let endpoint = &self.endpoints[delivery.endpoint as usize];
        // It may have been decided long before it could be written down, as in `check_untried`.
        let settings = endpoint.settings_since(self.true_time(node, at), self.news_slack);
        let hold = settings.iter().map(|(_, settings)| settings.hold).min();
        let end = delivery.give_up.unwrap_or(delivery.queued_at + hold.unwrap_or(0));
        // No later than the node's clock can have said.
        let Offset { now, before, .. } = self.clocks[node];
        let at = at.min(super::EPOCH + self.now + now.max(before));
        if at < end {
            self.object_to("I10", place, || format!("given up as expired {} ms before its time", end - at));
        }
    }

    fn note_verdict(&mut self, settlement: &Settlement, answered: &Answered) {
        let wished = matches!(answered.kind, Answer::Status { wish: Some(_), .. });
        match settlement.next {
            Next::Retry { delay, .. } => {
                if delay.capped {
                    self.met.met(Sometimes::RetryAfterCapped);
                }
                if delay.retry_after.is_some() {
                    self.met.met(Sometimes::RetryAfterFollowed);
                } else if wished {
                    self.met.met(Sometimes::RetryAfterIgnored);
                }
            }
            Next::Dead(DeathReason::Expired) if wished => self.met.met(Sometimes::RetryAfterBeyondGiveUp),
            Next::Dead(DeathReason::Exhausted) => self.met.met(Sometimes::Exhausted),
            Next::Dead(DeathReason::Expired) => self.met.met(Sometimes::ExpiredAfterAttempts),
            Next::Dead(DeathReason::Permanent) => self.met.met(Sometimes::RefusedForGood),
            Next::Delivered if settlement.progress.attempts > 1 => self.met.met(Sometimes::DeliveredAfterRetries),
            Next::Delivered | Next::Dead(_) | Next::Nothing | Next::Postponed { .. } => {}
        }
    }
}

/// What is wrong with a settlement by these settings; nothing, if it is right.
fn disagreement(
    delivery: &Delivery,
    settings: &Settings,
    settlement: &Settlement,
    attempt: &AttemptRecord,
    answered: &Answered,
) -> Option<(&'static str, String)> {
    let class = envelope::class_of(answered, settings);
    let said = match attempt.class {
        policy::Class::Delivered => Class::Delivered,
        policy::Class::Transient => Class::Transient,
        policy::Class::Ambiguous => Class::Ambiguous,
        policy::Class::Permanent => Class::Permanent,
        policy::Class::Gone => Class::Gone,
    };
    if said != class {
        return Some(("I13", format!("an answer {answered:?} was taken for {said:?}, and is {class:?}")));
    }
    let started = attempt.started_at.as_millis();
    let give_up = delivery.give_up.unwrap_or(started + settings.give_up);
    if settlement.progress.give_up_at.map(|at| at.as_millis()) != Some(give_up) {
        let said = settlement.progress.give_up_at;
        return Some(("I10", format!("its time ends at {said:?}, and should at {give_up}")));
    }
    match (class, settlement.next) {
        (Class::Delivered, Next::Delivered) => return None,
        (Class::Permanent | Class::Gone, Next::Dead(DeathReason::Permanent)) => return None,
        (Class::Transient | Class::Ambiguous, Next::Retry { .. } | Next::Dead(_)) => {}
        (class, next) => return Some(("I13", format!("{class:?} led to {next:?}"))),
    }
    let ambiguous = if class == Class::Ambiguous { delivery.ambiguous + 1 } else { 0 };
    let standing = Standing {
        attempts: delivery.attempts + 1,
        give_up,
        ambiguous,
        ambiguous_since: delivery.ambiguous_since.unwrap_or(started),
        last_wait: delivery.last_wait,
        ended: started + answered.took,
    };
    let allowed = envelope::allowed(settings, class, &standing, answered);
    match settlement.next {
        Next::Dead(DeathReason::Exhausted) if allowed.exhausted => None,
        Next::Dead(DeathReason::Expired) if allowed.expired => None,
        Next::Retry { due, delay } => {
            let due = due.as_millis();
            let Some((from, until)) = allowed.retry else {
                let invariant = if standing.attempts >= settings.attempts_max { "I9" } else { "I10" };
                return Some((invariant, format!("another try at {due} where there may be none ({allowed:?})")));
            };
            if due < from || due > until {
                let invariant = if allowed.wish.is_some() && due < from { "I11" } else { "I12" };
                return Some((invariant, format!("next try at {due}, and it should be from {from} to {until}")));
            }
            let wish = delay.retry_after.map(|wait| wait.as_millis() as i64);
            if wish != allowed.wish {
                return Some(("I11", format!("a wish of {wish:?} is on record, and it was {:?}", allowed.wish)));
            }
            let own = settlement.progress.last_delay.map_or(0, |wait| wait.as_millis() as i64);
            if own < allowed.own.0 || own > allowed.own.1 {
                return Some(("I12", format!("a wait of {own} is on record, and it should be in {:?}", allowed.own)));
            }
            None
        }
        next => Some(("I2", format!("ended with {next:?}, and {allowed:?} was allowed"))),
    }
}

fn status_of(answered: &Answered) -> Option<u16> {
    match answered.kind {
        Answer::Status { status, .. } => Some(status),
        Answer::Failed(_) | Answer::Reset | Answer::TimedOut => None,
    }
}

fn next_code(next: Next) -> i64 {
    match next {
        Next::Delivered => 0,
        Next::Retry { due, .. } => due.as_millis(),
        Next::Postponed { due } => -due.as_millis(),
        Next::Nothing => 1,
        Next::Dead(reason) => 10 + reason as i64,
    }
}

/// More requests than can have been begun since one that is settled now.
const LOOK_BACK: usize = 50_000;

/// The clock is read, then the request is begun.
const JUST_BEFORE: i64 = 2_000;
