//! Order per key, and order of all for FIFO endpoints: I18.

use super::{Judge, ledger::State, wire::PostId};
use crate::{quick::QuickMap, settings::Order, sometimes::Sometimes};
use std::collections::BTreeSet;

/// What has not ended of each ordering key of each endpoint, by message.
#[derive(Default)]
pub struct Lines {
    of: QuickMap<(u32, i64), BTreeSet<(i64, u32)>>,
}

/// The line of an endpoint that gets everything in order.
const ALL: i64 = i64::MIN;

impl Judge {
    /// A new delivery takes its place: behind all of its key that were committed before.
    pub(super) fn line_up(&mut self, delivery: usize, order: Option<i64>, key: i64) {
        let endpoint = self.deliveries[delivery].endpoint;
        let line = match (self.endpoints[endpoint as usize].latest().ordering, order) {
            (Order::Free, _) | (Order::Keyed, None) => return,
            (Order::Keyed, Some(order)) => order,
            (Order::Fifo, _) => ALL,
        };
        let waiting = self.lines.of.entry((endpoint, line)).or_default();
        // The order of keys must be the order of commits: rows are read by it.
        let is_behind = waiting.last().is_some_and(|(last, _)| *last > key);
        waiting.insert((key, delivery as u32));
        if is_behind && self.deliveries[delivery].requeued.is_none() {
            let endpoint = self.endpoints[endpoint as usize].key;
            self.object("I18", key, endpoint, || {
                "committed behind one of the same key that has a greater number".to_owned()
            });
        }
    }

    /// What is put on its way again goes back to its old place.
    pub(super) fn line_up_again(&mut self, delivery: usize) {
        let message = &self.messages[self.deliveries[delivery].message as usize];
        let (order, key) = (message.order, message.key);
        self.deliveries[delivery].requeued = Some(self.now);
        self.line_up(delivery, order, key);
    }

    pub(super) fn leave_line(&mut self, delivery: usize) {
        let record = &self.deliveries[delivery];
        let message = &self.messages[record.message as usize];
        let line = match (self.endpoints[record.endpoint as usize].latest().ordering, message.order) {
            (Order::Free, _) | (Order::Keyed, None) => return,
            (Order::Keyed, Some(order)) => order,
            (Order::Fifo, _) => ALL,
        };
        let Some(waiting) = self.lines.of.get_mut(&(record.endpoint, line)) else { return };
        waiting.remove(&(message.key, delivery as u32));
        // Whoever comes next waited for it. So did the first, if it was put on its way again and this one, which was sent, had
        // passed it.
        let next = waiting.range((message.key, 0)..).next();
        let first = waiting.first().filter(|_| record.last_post.is_some());
        for (_, waited) in first.into_iter().chain(next) {
            self.deliveries[*waited as usize].first_at = self.now;
        }
    }

    /// Since when nothing that a delivery has to wait for has been before it. What was put on its way again may stand before
    /// it and be passed; who went from before that one was in the way of both.
    pub(super) fn first_since(&self, delivery: usize) -> i64 {
        let record = &self.deliveries[delivery];
        let message = &self.messages[record.message as usize];
        let line = match (self.endpoints[record.endpoint as usize].latest().ordering, message.order) {
            (Order::Free, _) | (Order::Keyed, None) => return record.first_at,
            (Order::Keyed, Some(order)) => order,
            (Order::Fifo, _) => ALL,
        };
        let passed = self.lines.of.get(&(record.endpoint, line)).into_iter().flat_map(|waiting| {
            waiting.range(..(message.key, 0)).map(|(_, passed)| self.deliveries[*passed as usize].first_at)
        });
        passed.fold(record.first_at, i64::max)
    }

    /// I18: no attempt of a later message is begun before the earlier one has ended. What a person puts on its way again comes
    /// before all that follows it from then on; only what was in its lane's memory already may pass it.
    pub(super) fn check_order(&mut self, post: PostId) {
        let place = self.posts[post].delivery;
        let delivery = &self.deliveries[place];
        let message = &self.messages[delivery.message as usize];
        let endpoint = &self.endpoints[delivery.endpoint as usize];
        let line = match (endpoint.latest().ordering, message.order) {
            (Order::Free, _) | (Order::Keyed, None) => return,
            (Order::Keyed, Some(order)) => order,
            (Order::Fifo, _) => ALL,
        };
        if delivery.state != State::Open {
            return;
        }
        let Some(waiting) = self.lines.of.get(&(delivery.endpoint, line)) else { return };
        let mine = delivery.changed.max(message.at);
        let earlier = waiting.range(..(message.key, 0)).map(|(_, earlier)| *earlier as usize).find(|earlier| {
            let before = self.messages[self.deliveries[*earlier].message as usize].key;
            let requeued = self.deliveries[*earlier].requeued;
            // What is called back goes a piece at a time; none of it is sent any more, and nothing waits for it.
            let is_called_back =
                before < endpoint.called_back && requeued.is_none_or(|at| at <= endpoint.called_back_at);
            !is_called_back && requeued.is_none_or(|at| mine > at + self.news_slack)
        });
        let (behind, accepted_at, app) = (waiting.len() > 1, message.at, endpoint.app);
        if let Some(earlier) = earlier {
            let before = self.messages[self.deliveries[earlier].message as usize].key;
            self.object_to("I18", place, || format!("begun before message {before} of the same key had ended"));
        }
        let taken_over = self.changed_hands_at(app) > accepted_at;
        if behind && taken_over {
            self.met.met(Sometimes::KeyHeldAcrossTakeOver);
        }
        if behind && self.deliveries[place].attempts > 0 {
            self.met.met(Sometimes::KeyHeldByRetry);
        }
    }
}
