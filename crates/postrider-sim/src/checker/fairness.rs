//! Whoever can be sent to is sent to: I19, I22, and the upper end of I12.
//!
//! It is judged only where nothing excuses a delay: in worlds without faults on our side, for endpoints without a rate that have
//! never been paused or tripped, and from the moment on at which a delivery was due, first of its key, and had a free slot.

use super::{Judge, wire::PostId};
use crate::settings::Order;

/// Since when a lane could have sent more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ease {
    /// It was paused, tripped or limited at some time.
    pub hindered: bool,
    /// When it last had as many requests under way as it may, or as many that are not on record.
    pub saturated_at: i64,
}

impl Judge {
    pub(super) fn note_saturation(&mut self, endpoint: usize) {
        let now = self.now;
        let endpoint = &mut self.endpoints[endpoint];
        let unsettled = endpoint.live.len() + endpoint.answered.len();
        if endpoint.live.len() >= endpoint.latest().in_flight_max || unsettled >= UNSETTLED_MAX {
            endpoint.ease.saturated_at = now;
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
