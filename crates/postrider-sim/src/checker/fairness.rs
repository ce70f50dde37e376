//! Whoever can be sent to is sent to: I19, I22, and the upper end of I12.
//!
//! It is judged only where nothing excuses a delay: in worlds without faults on our side, for endpoints without a rate that have
//! never been paused or tripped, and from the moment on at which a delivery was due, first of its key, and had a free slot.

use super::{
    Judge,
    envelope::{self, Class},
    wire::{Answered, PostId},
};
use crate::settings::Order;

/// Since when a lane could have sent more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ease {
    /// It was paused, tripped or limited at some time.
    pub hindered: bool,
    /// When it last had as many requests under way as it may, or as many that are not on record.
    pub saturated_at: i64,
    /// Failures in a row.
    failures: usize,
    /// Each failure in a row takes a slot away. Once one is left, there are more only as it succeeds.
    narrowed: Option<Narrowed>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Narrowed {
    /// Since the last failure.
    successes: usize,
}

impl Ease {
    pub fn slots(&self, in_flight_max: usize) -> usize {
        match self.narrowed {
            Some(_) => 1,
            None => in_flight_max.saturating_sub(self.failures).max(1),
        }
    }

    fn note(&mut self, succeeded: bool, in_flight_max: usize) {
        self.failures = if succeeded { 0 } else { self.failures + 1 };
        if self.failures + 1 >= in_flight_max {
            self.narrowed = Some(Narrowed::default());
        }
        self.narrowed = self
            .narrowed
            .map(|Narrowed { successes }| Narrowed { successes: if succeeded { successes + 1 } else { 0 } });
        // Twice as many as there are slots are more than doubling takes from one to all of them.
        if self.narrowed.is_some_and(|narrowed| narrowed.successes > 2 * in_flight_max) {
            self.narrowed = None;
        }
    }
}

impl Judge {
    pub(super) fn note_saturation(&mut self, endpoint: usize) {
        let now = self.now;
        let endpoint = &mut self.endpoints[endpoint];
        let unsettled = endpoint.live.len() + endpoint.answered.len();
        if endpoint.live.len() >= endpoint.ease.slots(endpoint.latest().in_flight_max) || unsettled >= UNSETTLED_MAX {
            endpoint.ease.saturated_at = now;
        }
    }

    pub(super) fn note_answer(&mut self, endpoint: usize, answered: &Answered) {
        let endpoint = &mut self.endpoints[endpoint];
        let settings = endpoint.latest();
        let in_flight_max = settings.in_flight_max;
        match envelope::class_of(answered, settings) {
            Class::Delivered => endpoint.ease.note(true, in_flight_max),
            Class::Transient | Class::Ambiguous => endpoint.ease.note(false, in_flight_max),
            Class::Permanent | Class::Gone | Class::Ours => {}
        }
    }

    pub(super) fn check_in_time(&mut self, post: PostId) {
        if self.troubled {
            return;
        }
        let (place, node) = (self.posts[post].delivery, self.posts[post].node);
        let delivery = &self.deliveries[place];
        let endpoint = &self.endpoints[delivery.endpoint as usize];
        let settings = endpoint.latest();
        let limited =
            settings.rate.is_some() || self.apps[endpoint.app as usize].rates.iter().any(|(_, rate)| rate.is_some());
        if limited || endpoint.ease.hindered || endpoint.breaker.is_open() || endpoint.versions.len() > 1 {
            return;
        }
        let due = delivery.due.saturating_sub(super::EPOCH + self.clocks[node].now);
        let from = [
            self.first_since(place),
            due,
            endpoint.ease.saturated_at,
            endpoint.changed,
            self.changed_hands_at(endpoint.app),
            self.started.iter().copied().flatten().max().unwrap_or(0),
            delivery.requeued.unwrap_or(0),
        ]
        .into_iter()
        .max()
        .unwrap_or(0);
        let late = self.now - from;
        if late > LATE_MAX {
            let keyed = settings.ordering == Order::Keyed;
            let invariant = if keyed { "I19" } else { "I22" };
            self.object_to(invariant, place, || format!("begun {late} ms after nothing was in its way any more"));
        }
    }
}

/// However many requests at a time an endpoint may get, a lane has no more than so many under way and answered but not on record:
/// as many as a crash may repeat.
const UNSETTLED_MAX: usize = 64;

/// Blocked lanes are looked at again every five seconds, and hand-offs are given rows after as long.
const LATE_MAX: i64 = 15_000;
