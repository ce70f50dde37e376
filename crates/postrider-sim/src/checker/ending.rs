//! What must hold when one looks at the tables, and when all is over: I1, I2, I4, I8, I29.

use super::{Judge, ledger::State};
use crate::{
    config::Mode,
    settings::Order,
    sometimes::Sometimes,
    trace::{Kind, NOBODY},
};
use postrider_store::DeliveryState;

/// How a delivery stands by the tables.
pub struct Found {
    pub message: i64,
    pub endpoint: i64,
    pub state: DeliveryState,
}

impl Judge {
    /// I4, I8: the tables hold each delivery once, as what was committed made it.
    pub fn looked_through(&mut self, found: &[Found]) {
        let mut open = 0;
        for Found { message, endpoint, state } in found {
            let Some(place) = self.delivery(*message, *endpoint) else {
                self.object("I8", *message, *endpoint, || "a delivery without its message".to_owned());
                continue;
            };
            let mine = self.deliveries[place].state;
            let agrees = match (mine, state) {
                (State::Open, DeliveryState::Pending { .. } | DeliveryState::Sending { .. }) => {
                    open += 1;
                    true
                }
                (State::Delivered, DeliveryState::Delivered) => true,
                (State::Dead(mine), DeliveryState::Dead { reason, .. }) => mine == *reason,
                (State::Open | State::Delivered | State::Dead(_), _) => false,
            };
            if !agrees {
                self.object_to("I4", place, || format!("the tables say {state:?}, and it is {mine:?}"));
            }
        }
        if found.len() != self.deliveries.len() {
            let (found, owed) = (found.len(), self.deliveries.len());
            self.object("I4", 0, 0, || format!("the tables hold {found} deliveries, and {owed} are owed"));
        }
        self.note(NOBODY, Kind::Checked, [0, 0, found.len() as i64, open]);
    }

    /// I1: whatever was answered 2xx is there. `stored`: the keys of all messages in the tables, with the number in the payload.
    pub fn all_kept(&mut self, mut stored: impl FnMut(i64) -> Option<u64>) {
        for at in 0..self.promised().len() {
            let (number, message) = self.promised()[at];
            match stored(message) {
                Some(found) if found == number => {}
                Some(found) => self.object("I1", message, 0, || format!("its bytes are those of offer {found}")),
                None => self.object("I1", message, 0, || format!("offer {number} was answered 2xx and is gone")),
            }
        }
    }

    /// Deliveries that have not ended.
    pub fn open(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.open).sum()
    }

    /// By when all that is open must have ended, if nothing goes wrong from now on: I29. Each lane has its schedule, the time of
    /// its breaker, its rate and its order; and whoever died must be found out.
    pub fn deadline(&self, lease: i64) -> i64 {
        let skew = self.clocks.iter().map(|clock| clock.now.abs()).max().unwrap_or(0);
        let begin = self.now + lease * 2 + skew + 5_000;
        let mut latest = begin;
        for (place, endpoint) in self.endpoints.iter().enumerate() {
            if endpoint.open == 0 {
                continue;
            }
            let settings = endpoint.latest();
            let due = self
                .deliveries
                .iter()
                .filter(|delivery| delivery.endpoint as usize == place && delivery.state == State::Open)
                .map(|delivery| delivery.due - super::EPOCH)
                .max()
                .unwrap_or(begin);
            let until = endpoint.breaker.until.map_or(0, |until| until - super::EPOCH);
            let per_second = i64::from(settings.rate.unwrap_or(50_000).min(self.app_rate(endpoint.app)));
            let slots = match settings.ordering {
                Order::Free => endpoint.ease.slots(settings.in_flight_max) as i64,
                // At worst all are of one key.
                Order::Keyed | Order::Fifo => 1,
            };
            let app_open: u64 =
                self.endpoints.iter().filter(|other| other.app == endpoint.app).map(|other| other.open).sum();
            let by_rate = app_open as i64 * 1_000 / per_second.max(1) + 1_000;
            let by_slots = endpoint.open as i64 * ANSWER_MAX / slots.max(1) + 10_000;
            let cool = settings.breaker.map_or(0, |plan| plan.cool_down_max);
            latest =
                latest.max(begin.max(due + skew).max(until + skew) + by_rate + by_slots + cool + settings.timeout * 2);
        }
        latest
    }

    fn app_rate(&self, app: u32) -> u32 {
        self.apps[app as usize].rates.last().and_then(|(_, rate)| *rate).unwrap_or(50_000)
    }

    /// I2, I29: all has come to an end.
    pub fn all_ended(&mut self) {
        if self.open() == 0 {
            self.met.met(Sometimes::AllEndedAfterHealing);
            return;
        }
        let open: Vec<usize> =
            (0..self.deliveries.len()).filter(|place| self.deliveries[*place].state == State::Open).take(3).collect();
        for place in open {
            let delivery = &self.deliveries[place];
            let endpoint = &self.endpoints[delivery.endpoint as usize];
            let text = format!(
                "it has not come to its end: {} attempts, due at {} ms, give up {:?}, breaker {:?}, parked {:?}, {} open in its lane",
                delivery.attempts,
                delivery.due - super::EPOCH,
                delivery.give_up.map(|at| at - super::EPOCH),
                endpoint.breaker.until.map(|at| at - super::EPOCH),
                endpoint.parked,
                endpoint.open,
            );
            self.object_to("I29", place, || text);
        }
    }

    /// At the very end, when nothing is under way.
    pub fn close(&mut self, quiet: bool) {
        self.counts.open = self.open();
        self.counts.simulated = self.now;
        let posts = self.posts.iter().filter(|post| !post.recorded).count();
        self.counts.repeated = posts as u64;
        if quiet && self.config.mode == Mode::Liveness {
            self.check_all_recorded();
        }
    }

    /// Endpoints that are paused, for a person to set going when all is mended.
    pub fn parked(&self) -> Vec<i64> {
        self.endpoints
            .iter()
            .filter(|endpoint| endpoint.parked.is_some() && endpoint.gone.is_none())
            .map(|endpoint| endpoint.key)
            .collect()
    }

    /// Whether nothing is due for so long that a dispatcher may be expected to sleep.
    pub fn is_idle(&self) -> bool {
        self.open() == 0 && self.endpoints.iter().all(|endpoint| endpoint.live.is_empty())
    }

    /// A dead letter to put on its way again, or some delivery to touch: drawn by the caller.
    pub fn some_delivery(&self, at: u64, dead: bool) -> Option<(i64, i64, i64)> {
        let count = self.deliveries.len();
        if count == 0 {
            return None;
        }
        let from = at as usize % count;
        let place = (from..count).chain(0..from).take(SEARCH_MAX).find(|place| {
            let delivery = &self.deliveries[*place];
            let there = self.endpoints[delivery.endpoint as usize].gone.is_none();
            there && dead == matches!(delivery.state, State::Dead(_))
        })?;
        let (message, endpoint) = self.keys_of(place);
        let app = self.messages[self.deliveries[place].message as usize].app;
        Some((message, endpoint, i64::from(app)))
    }
}

/// What a healthy receiver takes at most for an answer, and the commit after it.
const ANSWER_MAX: i64 = 250;

const SEARCH_MAX: usize = 2_000;
