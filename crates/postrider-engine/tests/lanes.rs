//! The dispatcher against a small model of the world: a store whose answers come late, receivers that fail at
//! random, lanes that are parked and freed, and a clock that the test turns by hand.

use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
    lanes::{Command, Dispatcher, LaneSettings, Limits, Parcel},
    policy::Progress,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

const LIMITS: Limits = Limits {
    window: 6,
    bytes: 20_000,
    lane_bytes: 8_000,
    loads: 2,
    unsettled: 8,
    in_flight: 12,
    patience: Duration::from_millis(50),
};
const CAP: usize = 3;

/// Work that was begun and whose end the dispatcher has not heard of.
enum Pending {
    Request(Parcel<()>),
    Settlement {
        parcel: Parcel<()>,
        due: Option<Timestamp>,
    },
    Load {
        endpoint: EndpointKey,
        rows: Vec<(Timestamp, DeliveryId)>,
        more: bool,
        next_due: Option<Timestamp>,
    },
    /// The rows are there from the moment it ends.
    Spill(Vec<DeliveryId>),
}

struct World {
    now: Timestamp,
    rng: ChaCha8Rng,
    dispatcher: Dispatcher<()>,
    settings: HashMap<EndpointKey, LaneSettings>,
    rows: BTreeMap<DeliveryId, Timestamp>,
    pending: Vec<Pending>,
    on_the_wire: BTreeSet<DeliveryId>,
    accepted: BTreeSet<DeliveryId>,
    delivered: BTreeSet<DeliveryId>,
    fail_share: f64,
    /// The order in which each lane's deliveries were first sent.
    sent: Vec<DeliveryId>,
}

impl World {
    fn new(seed: u64, lanes: i64, fail_share: f64) -> Self {
        Self::with_app_rate(seed, lanes, fail_share, None)
    }

    fn with_app_rate(seed: u64, lanes: i64, fail_share: f64, app_rate: Option<u32>) -> Self {
        let settings = (1..=lanes)
            .map(|lane| {
                let rate = (lane % 3 == 0).then_some(50);
                (
                    EndpointKey::new(lane),
                    LaneSettings { app: AppKey::new(1), app_rate, in_flight_max: CAP, rate, parked: false },
                )
            })
            .collect();
        Self {
            now: Timestamp::from_millis(1_000_000),
            rng: ChaCha8Rng::seed_from_u64(seed),
            dispatcher: Dispatcher::new(LIMITS),
            settings,
            rows: BTreeMap::new(),
            pending: Vec::new(),
            on_the_wire: BTreeSet::new(),
            accepted: BTreeSet::new(),
            delivered: BTreeSet::new(),
            fail_share,
            sent: Vec::new(),
        }
    }

    fn accept(&mut self, message: i64, lane: i64) {
        let endpoint = EndpointKey::new(lane);
        let id = DeliveryId { endpoint, message: MessageKey::new(message), trigger: Trigger::Scheduled };
        self.accepted.insert(id);
        let parcel = parcel(id, true, self.now);
        self.dispatcher.hand_over(parcel, self.settings[&endpoint], self.now);
        self.obey();
    }

    fn park(&mut self, lane: i64, parked: bool) {
        let endpoint = EndpointKey::new(lane);
        let settings = self.settings.get_mut(&endpoint).expect("a lane of this world");
        settings.parked = parked;
        self.dispatcher.set_lane(endpoint, *settings, self.now);
        self.obey();
    }

    fn obey(&mut self) {
        let mut steps = 0;
        while let Some(command) = self.dispatcher.next(self.now) {
            steps += 1;
            assert!(steps < 10_000, "the dispatcher goes round in circles");
            match command {
                Command::Send(parcel) => self.send(parcel),
                Command::Spill(ids) => self.pending.push(Pending::Spill(ids)),
                Command::Load { endpoint, limit } => {
                    let mut due: Vec<_> =
                        self.rows.iter().filter(|(id, _)| id.endpoint == endpoint).map(|(id, at)| (*at, *id)).collect();
                    due.sort();
                    let later = due.iter().map(|(at, _)| *at).find(|at| *at > self.now);
                    due.retain(|(at, _)| *at <= self.now);
                    let more = due.len() > limit;
                    due.truncate(limit);
                    self.pending.push(Pending::Load { endpoint, rows: due, more, next_due: later });
                }
            }
        }
    }

    fn send(&mut self, parcel: Parcel<()>) {
        let id = parcel.id;
        assert!(!self.settings[&id.endpoint].parked, "{id:?} sent in a parked lane");
        assert!(!self.delivered.contains(&id), "{id:?} sent again after it was delivered");
        assert!(self.on_the_wire.insert(id), "{id:?} sent while it is under way");
        let in_lane = self.on_the_wire.iter().filter(|other| other.endpoint == id.endpoint).count();
        assert!(in_lane <= CAP, "{in_lane} requests in one lane");
        assert!(self.on_the_wire.len() <= LIMITS.in_flight);
        self.sent.push(id);
        self.pending.push(Pending::Request(parcel));
    }

    /// Lets one piece of pending work, chosen at random, come to its end.
    fn finish_one(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..self.pending.len());
        match self.pending.swap_remove(index) {
            Pending::Request(parcel) => {
                self.on_the_wire.remove(&parcel.id);
                self.dispatcher.answered(parcel.id, self.now);
                let due = if self.rng.random_bool(self.fail_share) {
                    Some(self.now.plus(Duration::from_millis(self.rng.random_range(1..200))))
                } else {
                    self.delivered.insert(parcel.id);
                    None
                };
                self.pending.push(Pending::Settlement { parcel, due });
            }
            Pending::Settlement { parcel, due } => {
                match due {
                    Some(due) => self.rows.insert(parcel.id, due),
                    None => self.rows.remove(&parcel.id),
                };
                self.dispatcher.settled(parcel.id, due, self.now);
            }
            Pending::Load { endpoint, rows, more, next_due } => {
                let parcels = rows.into_iter().map(|(_, id)| parcel(id, false, self.now)).collect();
                self.dispatcher.loaded(endpoint, parcels, more, next_due, self.now);
            }
            Pending::Spill(ids) => {
                for id in &ids {
                    self.rows.insert(*id, self.now);
                }
                self.dispatcher.spilled(&ids, self.now);
            }
        }
        self.obey();
    }

    fn advance(&mut self, millis: u64) {
        self.now = self.now.plus(Duration::from_millis(millis));
        self.obey();
    }

    /// Everyone is healthy again: runs until nothing is left to do.
    fn settle_down(&mut self) {
        self.fail_share = 0.0;
        for lane in self.settings.keys().copied().collect::<BTreeSet<_>>() {
            self.park(lane.raw(), false);
        }
        for _ in 0..200_000 {
            if !self.pending.is_empty() {
                self.finish_one();
            } else if let Some(at) = self.dispatcher.sleep_until() {
                assert!(at > self.now, "asked to sleep until the past");
                self.advance(at.since(self.now).as_millis() as u64);
            } else {
                return;
            }
        }
        panic!("it does not come to rest");
    }
}

fn parcel(id: DeliveryId, handed: bool, since: Timestamp) -> Parcel<()> {
    Parcel { id, cycle: 0, progress: Progress::default(), handed, since, weight: 1_000, cargo: () }
}

#[derive(Clone, Debug)]
enum Step {
    Accept { lane: i64, count: u8 },
    Finish(u8),
    Advance(u16),
    Park(i64),
    Free(i64),
}

fn steps(lanes: i64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..=lanes, 1..12u8).prop_map(|(lane, count)| Step::Accept { lane, count }),
        6 => (1..20u8).prop_map(Step::Finish),
        3 => (0..120u16).prop_map(Step::Advance),
        1 => (1..=lanes).prop_map(Step::Park),
        2 => (1..=lanes).prop_map(Step::Free),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_everything_arrives_once_within_its_limits(
        seed: u64, fail_share in 0.0..0.9f64, steps in steps(5)
    ) {
        let mut world = World::new(seed, 5, fail_share);
        let mut message = 0;
        for step in steps {
            match step {
                Step::Accept { lane, count } => for _ in 0..count {
                    message += 1;
                    world.accept(message, lane);
                },
                Step::Finish(count) => for _ in 0..count {
                    world.finish_one();
                },
                Step::Advance(millis) => world.advance(u64::from(millis)),
                Step::Park(lane) => world.park(lane, true),
                Step::Free(lane) => world.park(lane, false),
            }
        }
        world.settle_down();
        prop_assert_eq!(&world.delivered, &world.accepted);
        prop_assert!(world.rows.is_empty());
        prop_assert_eq!(world.dispatcher.held(), 0);
        prop_assert_eq!(world.dispatcher.in_flight(), 0);
    }
}

#[test]
fn a_flooded_lane_does_not_delay_another() {
    let mut world = World::new(1, 2, 0.0);
    for message in 0..100 {
        world.accept(message, 1);
    }
    world.accept(1_000, 2);
    let last = world.sent.last().expect("something was sent");
    assert_eq!(last.endpoint, EndpointKey::new(2), "the quiet lane's turn came at once");
}

#[test]
fn lanes_take_turns() {
    let mut world = World::new(1, 2, 0.0);
    // All slots of lane 1 are taken and more waits, while lane 2 fills up behind it.
    for message in 0..12 {
        world.accept(message, 1 + message % 2);
    }
    while !world.pending.is_empty() {
        world.finish_one();
    }
    let firsts: Vec<i64> = world.sent[..2 * CAP].iter().map(|id| id.endpoint.raw()).collect();
    assert_eq!(firsts, [1, 2, 1, 2, 1, 2], "one request each, in turn");
    assert_eq!(world.delivered.len(), 12);
}

#[test]
fn a_parked_lane_asks_for_nothing() {
    let mut world = World::new(1, 1, 0.0);
    world.park(1, true);
    for message in 0..50 {
        world.accept(message, 1);
    }
    while !world.pending.is_empty() {
        world.finish_one();
    }
    assert_eq!(world.rows.len(), 50);
    assert_eq!(world.dispatcher.held(), 0, "nothing of it is in memory");
    assert_eq!(world.dispatcher.sleep_until(), None, "and nothing will wake it");
}

#[test]
fn what_stands_too_long_is_given_a_row() {
    let mut world = World::new(1, 1, 0.0);
    for message in 0..(CAP as i64 + 2) {
        world.accept(message, 1);
    }
    assert_eq!(world.on_the_wire.len(), CAP);
    world.advance(200);
    assert!(
        world.pending.iter().any(|pending| matches!(pending, Pending::Spill(ids) if ids.len() == 2)),
        "the two that wait behind hanging requests are spilled"
    );
}

#[test]
fn a_rate_spreads_requests_over_time() {
    let mut world = World::new(1, 3, 0.0);
    for message in 0..120 {
        world.accept(message, 3);
        while !world.pending.is_empty() {
            world.finish_one();
        }
    }
    assert_eq!(world.sent.len(), 50, "a second's worth at once");
    world.advance(1_000);
    while !world.pending.is_empty() {
        world.finish_one();
    }
    assert!(world.sent.len() <= 101, "{} within the next second", world.sent.len());
    world.settle_down();
    assert_eq!(world.delivered.len(), 120);
}

#[test]
fn lanes_share_the_rate_of_their_application() {
    let mut world = World::with_app_rate(1, 2, 0.0, Some(10));
    for message in 0..40 {
        world.accept(message, 1 + message % 2);
        while !world.pending.is_empty() {
            world.finish_one();
        }
    }
    assert_eq!(world.sent.len(), 10, "a second's worth at once");
    for _ in 0..20 {
        world.advance(100);
        while !world.pending.is_empty() {
            world.finish_one();
        }
    }
    let sent_in = |lane| world.sent.iter().filter(|id| id.endpoint == EndpointKey::new(lane)).count();
    assert!(world.sent.len() <= 31, "{} in two seconds more", world.sent.len());
    assert!(sent_in(1).abs_diff(sent_in(2)) <= 2, "{} and {}", sent_in(1), sent_in(2));
    world.settle_down();
    assert_eq!(world.delivered.len(), 40);
}

#[test]
fn a_lane_that_is_parked_lets_go_of_what_has_a_row() {
    let mut world = World::new(1, 1, 1.0);
    for message in 0..20 {
        world.accept(message, 1);
    }
    while !world.pending.is_empty() {
        world.finish_one();
    }
    world.advance(1_000);
    while !matches!(world.pending.last(), None | Some(Pending::Request(_))) {
        world.finish_one();
    }
    world.park(1, true);
    while !world.pending.is_empty() {
        world.finish_one();
    }
    assert_eq!(world.dispatcher.held(), 0);
    world.settle_down();
    assert_eq!(world.delivered.len(), 20);
}
