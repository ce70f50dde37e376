//! Everything that waits for one endpoint.
//!
//! A lane keeps only a window in memory: what is ready to go and what is under way. The rest waits in the
//! store, and the lane knows no more of it than when the earliest falls due. So a lane that is parked costs
//! nothing however much waits in it, and a lane can be dropped and loaded again at any moment.

use super::{
    dispatcher::{Cancel, Limits},
    gate::{Gate, Watch},
    late::{Elsewhere, Span, Spans},
    order::Line,
    pace::Pace,
    parcel::Parcel,
    stored::{FixedHash, Stored},
};
use crate::{
    keys::{AppKey, DeliveryId, OrderKey},
    planted::{Bug, planted},
    policy::{
        BreakerRules, Bucket, DisableRules, Health, Ordering, Verdict,
        health::{self, BreakerMove, Notice, Step},
    },
    time::Timestamp,
};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSettings {
    pub app: AppKey,
    /// Requests per second over all lanes of the application.
    pub app_rate: Option<u32>,
    /// Requests at a time.
    pub in_flight_max: usize,
    /// Requests per second.
    pub rate: Option<u32>,
    /// Nothing is sent; everything waits.
    pub parked: bool,
    pub ordering: Ordering,
    pub breaker: Option<BreakerRules>,
    pub disable: DisableRules,
    /// Its endpoint was deleted: nothing is learned of it any more, and no settings will come that could free the lane.
    pub gone: bool,
    /// It is parked only until its settings have been read, and does not come back from anywhere then.
    pub unknown: bool,
}

/// A lane that has more ready than it sends in such a part of a second is behind.
pub(super) const LAG_PARTS: usize = 8;

/// A bucket holds a second's worth of requests, so that it is full again after a second without any.
const BUCKET_REFILL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Lane<C> {
    pub settings: LaneSettings,
    pub watch: Watch,
    pub line: Line<C>,
    pub stored: Stored,
    /// It stands in the queue for a turn.
    pub queued: bool,
    pub timer: Option<Timer>,
    pub spans: Spans,
    bucket: Option<Bucket>,
    /// Whoever had the lane before may have used up its rate then.
    gained_at: Option<Timestamp>,
    spent_at: Option<Timestamp>,
    /// Requests on the network.
    in_flight: usize,
    /// On their way to the dead letters without a request.
    burying: HashSet<DeliveryId, FixedHash>,
    /// Outcomes that are not yet durable.
    settling: usize,
    /// All that this lane has in memory: a load must not bring it a second time.
    held: HashMap<DeliveryId, Holding, FixedHash>,
    /// The weight of all that is held.
    bytes: usize,
    /// What was answered.
    pub pace: Pace,
    /// How much of what is ready in the ledger is this lane's.
    pub ready: usize,
}

#[derive(Clone, Copy, Debug)]
struct Holding {
    weight: usize,
    /// When it was started, and took its part of the rates.
    started_at: Option<Timestamp>,
    order: Option<OrderKey>,
    cycle: u32,
    /// The store has a later cycle of it already, which can be loaded when this one is settled.
    replayed: bool,
    /// Someone else ended it while it was under way: its row is gone, and others need not wait for its next try.
    ended: bool,
}

/// When a lane is to be looked at, and whether before or after others of the same moment: who has waited longer is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub at: Timestamp,
    pub ticket: u64,
}

/// What all lanes keep together.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The weight of all that is in memory.
    pub bytes: usize,
    /// What has no row of its own and has not been sent.
    pub handed: usize,
    /// What stands ready in lanes, but in each no more than it sends in an eighth of a second.
    pub ready: usize,
    /// Waits to be given rows.
    pub spills: Vec<(DeliveryId, Option<OrderKey>)>,
}

/// When that which leaves memory for the store is wanted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    AtOnce,
    /// When the one before it has ended.
    InItsTurn,
}

impl<C> Lane<C> {
    pub fn new(settings: LaneSettings, gained_at: Option<Timestamp>) -> Self {
        let mut spans = Spans::default();
        if settings.parked {
            // Nobody knows since when.
            spans.pause = Span::began_at(Timestamp::from_millis(i64::MIN));
        }
        Self {
            settings,
            watch: Watch::default(),
            line: Line::new(settings.ordering),
            stored: Stored::default(),
            queued: false,
            timer: None,
            spans,
            bucket: bucket_of(settings.rate, gained_at),
            gained_at,
            spent_at: None,
            in_flight: 0,
            burying: HashSet::default(),
            settling: 0,
            held: HashMap::default(),
            bytes: 0,
            pace: Pace::default(),
            ready: 0,
        }
    }

    pub fn gate(&self, now: Timestamp) -> Gate {
        match self.watch.gate(&self.settings, now) {
            // Whoever asked for it wants to see it tried.
            Gate::Bury if self.line.is_next_asked_for() => Gate::Open,
            gate @ (Gate::Shut { .. } | Gate::Bury | Gate::Probe | Gate::Open) => gate,
        }
    }

    pub fn change(&mut self, settings: LaneSettings, ledger: &mut Ledger, now: Timestamp) {
        let (was_paused, was_tripped) =
            (self.watch.is_paused(&self.settings), self.watch.is_tripped(&self.settings, now));
        self.bucket = match self.bucket {
            Some(bucket) => bucket.with_rate(settings.rate),
            // Its settings may not have been known until now.
            None => bucket_of(settings.rate, self.gained_at),
        };
        let was_paused = was_paused && !self.settings.unknown;
        self.settings = settings;
        if settings.gone {
            self.watch.forget_health();
        }
        self.watch.reprieve(settings.parked);
        let is_paused = self.watch.is_paused(&self.settings);
        self.spans.pause.set(is_paused, now);
        if (was_paused && !is_paused) || (was_tripped && !self.watch.is_tripped(&self.settings, now)) {
            self.come_back(now);
        }
        if settings.ordering != self.line.ordering() {
            self.reorder(settings.ordering, ledger, now);
        }
        self.shut_if_told(ledger, now);
    }

    /// Nothing is started or kept any more. What is on the network goes on.
    pub fn leave(&mut self, ledger: &mut Ledger, now: Timestamp) {
        self.watch.leaving = true;
        self.shut_if_told(ledger, now);
    }

    /// Nothing of it is in memory, on the network or being written or read.
    pub fn is_quiet(&self) -> bool {
        self.held.is_empty() && self.stored.spilling.is_empty() && self.stored.loading.is_none()
    }

    pub fn set_health(&mut self, health: Health, ledger: &mut Ledger, now: Timestamp) {
        let was_tripped = self.watch.is_tripped(&self.settings, now);
        self.watch.health = health;
        self.watch.doubtful |= self.settling > 0;
        let is_tripped = self.watch.is_tripped(&self.settings, now);
        if is_tripped {
            self.spans.breaker = Span::began_at(health.failing_since.unwrap_or(now));
        } else {
            self.watch.probe = None;
            self.spans.breaker.end(now);
        }
        if health.failing_since.is_some() || (was_tripped && !is_tripped) {
            self.come_back(now);
        }
        self.shut_if_told(ledger, now);
    }

    /// Draws the conclusions from one outcome. `None`: the endpoint fares as before, and that is written down.
    fn learn(&mut self, id: DeliveryId, verdict: &Verdict, ledger: &mut Ledger, now: Timestamp) -> Option<Step> {
        let probe = self.watch.take_probe(id);
        let before = self.watch.health;
        let rules = (self.settings.breaker.as_ref(), &self.settings.disable);
        let step = health::after(before, rules, id.trigger, verdict, probe, now);
        self.watch.health = step.health;
        self.watch.climb(&self.settings, verdict);
        match step.breaker {
            Some(BreakerMove::Opened { .. }) => self.spans.breaker.begin(now),
            Some(BreakerMove::Closed) => {
                self.spans.breaker.end(now);
                self.come_back(now);
            }
            None => {}
        }
        match step.notice {
            // Its settings will say so as soon as it is written; until then nothing more is sent either.
            Some(Notice::Disable(_)) => {
                self.watch.condemn(id);
                self.spans.pause.begin(now);
            }
            Some(Notice::Warning(_)) | None => {}
        }
        self.shut_if_told(ledger, now);
        let was_doubtful = std::mem::take(&mut self.watch.doubtful);
        (step.health != before || step.notice.is_some() || was_doubtful).then_some(step)
    }

    fn come_back(&mut self, now: Timestamp) {
        self.watch.slow_start(&self.settings);
        self.stored.unblock(now);
    }

    /// While nothing is sent, nothing is kept: what has a row is let go, what has none is given one.
    fn shut_if_told(&mut self, ledger: &mut Ledger, now: Timestamp) {
        match self.gate(now) {
            Gate::Shut { .. } => {
                let leaving = self.line.clear();
                self.let_go(leaving, Wanted::AtOnce, ledger, now);
            }
            Gate::Bury | Gate::Probe | Gate::Open => {}
        }
    }

    fn reorder(&mut self, ordering: Ordering, ledger: &mut Ledger, now: Timestamp) {
        let leaving = self.line.clear();
        self.let_go(leaving, Wanted::AtOnce, ledger, now);
        self.line.reorder(ordering, self.held.iter().map(|(id, holding)| (*id, holding.order)));
        self.stored.spilling.reorder(ordering);
        // What has been read was read by the old order: a later one may be among it and an earlier one not.
        if let Some(loading) = &mut self.stored.loading {
            loading.void = true;
        }
        if !self.stored.is_empty() {
            self.stored.blocked = true;
            self.stored.expect(now);
        }
    }

    pub fn hold(&mut self, parcel: Parcel<C>, ledger: &mut Ledger) {
        let holding = Holding {
            weight: parcel.weight,
            started_at: None,
            order: parcel.order,
            cycle: parcel.cycle,
            replayed: false,
            ended: false,
        };
        self.held.insert(parcel.id, holding);
        self.bytes += parcel.weight;
        ledger.bytes += parcel.weight;
        ledger.handed += usize::from(parcel.handed);
        self.line.push(parcel);
    }

    /// Whether it is in memory already. A load may show a later cycle of what is about to be settled.
    pub fn recognizes(&mut self, parcel: &Parcel<C>) -> bool {
        let Some(holding) = self.held.get_mut(&parcel.id).filter(|_| !planted(Bug::LoadedTwice)) else { return false };
        holding.replayed |= parcel.cycle > holding.cycle;
        true
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// To be told whenever the line may have become longer or shorter.
    pub fn count_ready(&mut self, gate: Gate, max: usize, ledger: &mut Ledger, now: Timestamp) {
        let ready = match gate {
            // How much else is due in the store is not known.
            Gate::Open if self.stored.has_backlog(now) => usize::MAX,
            Gate::Open => self.line.len(),
            Gate::Shut { .. } | Gate::Bury | Gate::Probe => 0,
        };
        let ready = ready.min(self.pace.per_second(now) / LAG_PARTS).min(max);
        ledger.ready = ledger.ready + ready - std::mem::replace(&mut self.ready, ready);
    }

    fn release(&mut self, id: DeliveryId, ledger: &mut Ledger) -> Option<Holding> {
        let holding = self.held.remove(&id)?;
        self.bytes -= holding.weight;
        ledger.bytes -= holding.weight;
        Some(holding)
    }

    /// Takes the next one out of the line, to be sent or buried.
    pub fn start(
        &mut self,
        gate: Gate,
        elsewhere: Elsewhere,
        ledger: &mut Ledger,
        now: Timestamp,
    ) -> Option<Parcel<C>> {
        let (mut parcel, turn) = self.line.pop()?;
        ledger.handed -= usize::from(parcel.handed);
        match gate {
            Gate::Bury => {
                self.burying.insert(parcel.id);
                return Some(parcel);
            }
            Gate::Probe => self.watch.probe = Some(parcel.id),
            Gate::Shut { .. } | Gate::Open => {}
        }
        parcel.held = self.spans.held(parcel.due, now, turn, elsewhere);
        parcel.theirs = self.spans.theirs(parcel.due, now, turn, elsewhere);
        self.in_flight += 1;
        if let Some(holding) = self.held.get_mut(&parcel.id) {
            holding.started_at = Some(now);
        }
        if let Some(bucket) = self.bucket.as_mut().filter(|_| !planted(Bug::RateNotSpent)) {
            bucket.take(now);
            self.spent_at = Some(now);
        }
        Some(parcel)
    }

    /// It was started, and nothing was sent. Tells when that was.
    pub fn give_back(&mut self, id: DeliveryId) -> Option<Timestamp> {
        let started_at = self.held.get_mut(&id)?.started_at.take()?;
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(started_at);
        }
        Some(started_at)
    }

    pub fn answered(
        &mut self,
        id: DeliveryId,
        verdict: Option<&Verdict>,
        ledger: &mut Ledger,
        now: Timestamp,
    ) -> Option<Step> {
        self.settling += 1;
        if self.burying.remove(&id) {
            return None;
        }
        self.in_flight -= 1;
        if verdict.is_some() {
            self.pace.step(now);
        }
        match verdict {
            Some(verdict) if !self.settings.gone => self.learn(id, verdict, ledger, now),
            Some(_) | None => {
                self.watch.take_probe(id);
                None
            }
        }
    }

    pub fn settled(&mut self, id: DeliveryId, due: Option<Timestamp>, ledger: &mut Ledger, now: Timestamp) {
        self.settling -= 1;
        let was_paused = self.watch.is_paused(&self.settings);
        self.watch.settled(id);
        if was_paused && !self.watch.is_paused(&self.settings) {
            self.spans.pause.end(now);
            self.come_back(now);
        }
        let Some(holding) = self.release(id, ledger) else { return };
        if let Some(loading) = &mut self.stored.loading {
            loading.settle(id, holding.cycle);
        }
        if holding.replayed || (holding.ended && due.is_some()) {
            self.stored.expect(now);
        }
        if let Some(due) = due {
            self.stored.expect(due);
        }
        let Some(chain) = self.line.chain_of(id, holding.order) else { return };
        match due {
            Some(_) => {
                self.stored.returned(chain, id.message);
                let leaving = if planted(Bug::OvertakenByRetry) {
                    self.line.end(chain, now);
                    Vec::new()
                } else {
                    self.line.put_off(chain, id.message, now)
                };
                if !leaving.is_empty() {
                    self.spans.order.begin(now);
                }
                self.let_go(leaving, Wanted::InItsTurn, ledger, now);
            }
            None if planted(Bug::KeyNeverFreed) => {}
            None => {
                self.line.end(chain, now);
                if self.line.behind(chain) == 0 {
                    self.spans.order.end(now);
                    self.stored.unblock(now);
                }
            }
        }
    }

    /// These leave memory and wait in the store.
    pub fn let_go(&mut self, parcels: Vec<Parcel<C>>, wanted: Wanted, ledger: &mut Ledger, now: Timestamp) {
        for parcel in parcels {
            self.release(parcel.id, ledger);
            if self.line.chain_of(parcel.id, parcel.order).is_some() {
                self.stored.blocked = true;
            }
            if parcel.handed {
                ledger.handed -= 1;
                self.spill(parcel.id, parcel.order, ledger);
            } else if wanted == Wanted::AtOnce {
                self.stored.expect(now);
            }
        }
    }

    pub fn spill(&mut self, id: DeliveryId, order: Option<OrderKey>, ledger: &mut Ledger) {
        self.stored.spilling.insert(id, order, self.line.ordering());
        ledger.spills.push((id, order));
    }

    /// These were ended by someone else.
    pub fn drop_ended(&mut self, parcels: Vec<Parcel<C>>, ledger: &mut Ledger) {
        for parcel in parcels {
            self.release(parcel.id, ledger);
            ledger.handed -= usize::from(parcel.handed);
        }
    }

    /// Of these, what is under way goes on.
    pub fn note_ended_under_way(&mut self, which: Cancel) {
        for (_, holding) in self.held.iter_mut().filter(|(id, _)| which.means(**id)) {
            holding.ended = true;
        }
    }

    /// Whether one more may be started, as far as slots decide it.
    pub fn has_free_slot(&self, gate: Gate, limits: &Limits, share: usize) -> bool {
        let in_flight_max = match gate {
            Gate::Shut { .. } => return false,
            Gate::Bury => usize::MAX,
            Gate::Probe if self.watch.probe.is_some() && !planted(Bug::TwoProbes) => return false,
            Gate::Probe => self.settings.in_flight_max.min(share),
            Gate::Open => self.watch.slots(&self.settings).min(share) + usize::from(planted(Bug::OneInFlightTooMany)),
        };
        self.in_flight < in_flight_max && self.in_flight + self.burying.len() + self.settling < limits.unsettled
    }

    /// It has as many requests on the network as its endpoint is to have.
    pub fn is_busy(&self) -> bool {
        self.in_flight >= self.watch.slots(&self.settings)
    }

    /// Until when the rate holds the lane back, if it does.
    pub fn rate_bound(&self, gate: Gate, now: Timestamp) -> Option<Timestamp> {
        match gate {
            Gate::Bury => None,
            Gate::Shut { .. } | Gate::Probe | Gate::Open => self.bucket.and_then(|bucket| bucket.ready(now).err()),
        }
    }

    /// When something falls due was perhaps counted from a time that has not come yet: the store knows.
    pub fn set_back(&mut self, now: Timestamp) {
        self.gained_at = self.gained_at.map(|at| at.min(now));
        self.bucket = self.bucket.map(|bucket| bucket.set_back(now));
        self.spent_at = self.spent_at.map(|at| at.min(now));
        self.pace.set_back(now);
        if self.stored.next_due.is_some() {
            self.stored.expect(now);
        }
    }

    /// When the lane can be forgotten; `None` as long as something would be lost with it.
    pub fn forgettable_at(&self, now: Timestamp) -> Option<Timestamp> {
        let is_idle = self.held.is_empty()
            && self.stored.is_empty()
            && !self.queued
            && !self.watch.is_paused(&self.settings)
            && self.watch.is_unremarkable();
        let refilled = self.spent_at.filter(|_| self.bucket.is_some()).map(|at| at.plus(BUCKET_REFILL));
        is_idle.then(|| refilled.unwrap_or(now).max(now))
    }
}

fn bucket_of(rate: Option<u32>, gained_at: Option<Timestamp>) -> Option<Bucket> {
    let bucket = Bucket::new(rate)?;
    Some(gained_at.map_or(bucket, |at| bucket.emptied(at)))
}
