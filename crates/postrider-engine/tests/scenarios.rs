//! Days and weeks of one lane or two, under a virtual clock and with the policy that ships.

mod world;

use postrider_engine::{
    AppKey, DeliveryId, EndpointKey, MessageKey, Timestamp, Trigger,
    lanes::{Command, Dispatcher, HeldBy, LaneSettings, Limits, Parcel, Rest},
    policy::{Breaker, BreakerRules, DisableRules, Health, Ordering, Progress, WhileOpen},
};
use rand::RngExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use world::{Reply, Schedule, World, lane_settings, refused, status};

/// As endpoints are set when nobody says anything.
fn usual() -> LaneSettings {
    LaneSettings {
        in_flight_max: 10,
        breaker: Some(BreakerRules::default()),
        disable: DisableRules::default(),
        ..lane_settings(1)
    }
}

fn world(lanes: impl IntoIterator<Item = (i64, LaneSettings)>) -> World {
    let mut world = World::new(1, Limits::default(), lanes);
    world.schedule = Schedule::Real;
    world
}

fn tripped(world: &World, cool_down: Duration) -> Health {
    let breaker = Breaker::Open { until: world.now.plus(cool_down), trips: 1 };
    Health { breaker, failing_since: Some(world.now.minus(Duration::from_hours(2))), ..Health::default() }
}

#[test]
fn a_herd_of_100_000_drains_within_rate_and_cap_and_starts_with_one() {
    let mut world = world([(1, LaneSettings { rate: Some(400), ..usual() })]);
    world.fill(1, 0..100_000);
    world.set_health(1, tripped(&world, Duration::from_secs(30)));
    let reopens = world.now.plus(Duration::from_secs(30));
    world.restart();
    world.run_until(world.now.plus(Duration::from_mins(10)));
    assert_eq!(world.delivered.len(), 100_000);
    assert_eq!(world.rows(), 0);

    let probe = world.starts[0];
    assert!(probe.at >= reopens, "not before the breaker's time is up");
    assert!(probe.at <= reopens.plus(Duration::from_millis(4)), "and then as soon as it has been read");
    assert!(probe.is_probe);
    assert_eq!(probe.held.map(|held| held.by), Some(HeldBy::Breaker));
    let first_with = |in_flight| world.starts.iter().position(|start| start.in_flight >= in_flight);
    assert_eq!(first_with(2), Some(3), "after the probe one by one, then two, then four");
    assert!(first_with(3) >= Some(5));
    assert!(first_with(5) >= Some(10));
    assert!(world.starts.iter().any(|start| start.in_flight >= 8), "and in the end as many as it may");
    let took = world.starts.last().expect("the last one").at.since(reopens);
    assert!(took <= Duration::from_secs(253), "no slower than its rate allows: {took:?}");
    world.check_rates();
}

#[test]
fn an_endpoint_that_returns_at_half_its_strength_does_not_collapse_again() {
    let mut world = world([(1, usual())]);
    world.fill(1, 0..5_000);
    world.set_health(1, tripped(&world, Duration::from_secs(30)));
    let mut busy_until: Vec<Timestamp> = Vec::new();
    world.receiver = Box::new(move |_, now, _| {
        busy_until.retain(|until| *until > now);
        let reply = if busy_until.len() < 4 { status(200) } else { status(503) };
        busy_until.push(now.plus(reply.takes));
        reply
    });
    world.restart();
    world.run_until(world.now.plus(Duration::from_hours(24)));
    assert_eq!(world.delivered.len(), 5_000);
    assert_eq!(world.starts.iter().filter(|start| start.is_probe).count(), 1, "the breaker does not open again");
    let in_vain = world.starts.len() - 5_000;
    assert!(in_vain < 2_500, "{in_vain} requests more than it could take");
}

#[test]
fn after_a_weekend_without_an_answer_everything_is_delivered() {
    let mut world = world([(1, usual())]);
    let friday = world.now;
    let monday = friday.plus(Duration::from_hours(62));
    world.receiver = Box::new(move |_, now, _| if now < monday { refused() } else { status(200) });
    let mut message = 0;
    for _ in 0..62 * 20 {
        for _ in 0..5 {
            message += 1;
            world.accept(message, 1, None);
        }
        world.run_until(world.now.plus(Duration::from_mins(3)));
        assert!(world.dispatcher.held() <= 100, "it waits in the store");
    }
    let in_vain = world.starts.len();
    assert!(in_vain < 600, "{in_vain} requests in 62 hours: the breaker spares a dead endpoint");
    world.run_until(monday.plus(Duration::from_hours(48)));
    assert_eq!(world.delivered.len() as i64, message);
    assert_eq!(world.rows(), 0);
    let by_noon = monday.plus(Duration::from_mins(20));
    let late = world.starts.iter().filter(|start| start.at > by_noon).count();
    assert!(late < 600, "only those that were tried in vain come by their schedule: {late}");
}

#[test]
fn a_dead_endpoint_with_100_000_waiting_does_not_delay_its_neighbour() {
    let times_of_neighbour = |has_dead_neighbour: bool| {
        let neighbour = LaneSettings { rate: Some(100), ..usual() };
        let mut world = world([(1, usual()), (2, neighbour)]);
        world.receiver = Box::new(|id, _, _| match id.endpoint.raw() {
            1 => Reply { takes: Duration::from_secs(15), ..refused() },
            _ => status(200),
        });
        if has_dead_neighbour {
            world.fill(1, 0..100_000);
        }
        world.restart();
        for message in 1_000_000..1_002_000 {
            world.accept(message, 2, None);
            world.run_until(world.now.plus(Duration::from_millis(45)));
        }
        world.run_until(world.now.plus(Duration::from_mins(1)));
        let neighbours = world.starts.iter().filter(|start| start.id.endpoint == EndpointKey::new(2));
        neighbours.map(|start| (start.id.message, start.at)).collect::<Vec<_>>()
    };
    let alone = times_of_neighbour(false);
    assert_eq!(alone.len(), 2_000);
    assert_eq!(times_of_neighbour(true), alone, "to the millisecond");
}

#[test]
fn a_rate_holds_over_every_take_over_and_none_costs_more_than_a_second() {
    let of_lane = (1, LaneSettings { rate: Some(20), ..usual() });
    let of_app = (2, LaneSettings { app: AppKey::new(2), app_rate: Some(20), ..usual() });
    let mut world = world([of_lane, of_app]);
    for lane in 1..=2 {
        world.fill(lane, 0..2_000);
    }
    world.restart();
    for _ in 0..10 {
        world.run_until(world.now.plus(Duration::from_secs(5)));
        for app in 1..=2 {
            world.release(app);
        }
    }
    for node in [0, 1, 1, 0] {
        world.run_until(world.now.plus(Duration::from_secs(5)));
        world.depose(node);
    }
    world.run_until(world.now.plus(Duration::from_secs(5)));
    world.check_rates();
    for lane in 1..=2 {
        let sent = world.messages_sent(lane).len();
        assert!(sent >= 75 * 20 - 15 * 20, "lane {lane}: {sent} in 75 seconds with 15 take-overs");
    }
}

#[test]
fn half_open_lets_exactly_one_through_however_many_wait() {
    let mut world = world([(1, usual())]);
    world.fill(1, 0..1_000);
    let rules = BreakerRules { cool_down_max: Duration::from_mins(4), ..BreakerRules::default() };
    world.change(1, |settings| settings.breaker = Some(rules));
    world.set_health(1, tripped(&world, Duration::from_secs(30)));
    world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_secs(14), ..refused() });
    world.restart();
    world.run_until(world.now.plus(Duration::from_mins(30)));
    assert!(world.starts.iter().all(|start| start.is_probe && start.in_flight == 1));
    let gaps: Vec<u64> = world.starts.windows(2).map(|pair| pair[1].at.since(pair[0].at).as_secs()).collect();
    assert_eq!(gaps[..5], [74, 134, 254, 254, 254], "fourteen seconds and a cool-down that grows to its limit");
    assert!(world.dispatcher.held() <= 2, "for one probe one is loaded, not a window");

    world.receiver = Box::new(|_, _, _| status(200));
    world.run_until(world.now.plus(Duration::from_hours(2)));
    assert!(world.delivered.len() >= 990);
    assert_eq!(world.books_of(1), Health::default());
}

#[test]
fn what_comes_while_the_breaker_is_open_is_buried_where_the_rules_say_so() {
    let rules = BreakerRules { failures: 3, while_open: WhileOpen::DeadLetter, ..BreakerRules::default() };
    let mut world = world([(1, LaneSettings { breaker: Some(rules), ..usual() })]);
    let up_again = world.now.plus(Duration::from_secs(60));
    world.receiver = Box::new(move |_, now, _| if now < up_again { refused() } else { status(200) });
    for message in 0..400 {
        world.accept(message, 1, None);
        world.run_until(world.now.plus(Duration::from_millis(250)));
    }
    world.run_until(world.now.plus(Duration::from_hours(1)));
    assert!(world.buried.len() > 200, "{}", world.buried.len());
    assert_eq!(world.buried.len() + world.delivered.len(), 400);
    assert!(world.starts.len() < 200 + 20, "those that were buried cost no request");
    assert_eq!(world.rows(), 0);
}

#[test]
fn order_is_kept_through_failures_and_restarts() {
    for (ordering, keys) in [(Ordering::Fifo, 1), (Ordering::Keyed, 7)] {
        let breaker = BreakerRules { failures: 5, ..BreakerRules::default() };
        let mut world = world([(1, LaneSettings { ordering, breaker: Some(breaker), ..usual() })]);
        world.receiver = Box::new(|_, _, rng| if rng.random_bool(0.2) { status(503) } else { status(200) });
        for message in 0..300 {
            world.accept(message, 1, Some(message % keys));
            world.run_until(world.now.plus(Duration::from_millis(700)));
            if message % 40 == 39 {
                world.restart();
            }
        }
        world.run_until(world.now.plus(Duration::from_hours(24 * 30)));
        assert_eq!(world.ended.len(), 300, "{ordering:?}");
        assert!(world.delivered.len() >= 299, "{ordering:?}");
        // A message that was started stays at the head of its key until it has ended: no other comes between.
        let mut last: BTreeMap<i64, i64> = BTreeMap::new();
        for message in world.messages_sent(1) {
            let before = last.insert(message % keys, message);
            assert!(before <= Some(message), "{ordering:?}: {message} after {before:?}");
        }
    }
}

#[test]
fn a_key_that_fails_for_hours_holds_only_itself_back() {
    let mut world = world([(1, LaneSettings { ordering: Ordering::Keyed, ..usual() })]);
    let healed = world.now.plus(Duration::from_hours(3));
    world.receiver =
        Box::new(move |id, now, _| if id.message.raw() % 10 == 0 && now < healed { status(503) } else { status(200) });
    let mut accepted = BTreeMap::new();
    for message in 0..5_000 {
        accepted.insert(message, world.now);
        world.accept(message, 1, Some(message % 10));
        world.run_until(world.now.plus(Duration::from_secs(2)));
    }
    world.run_until(world.now.plus(Duration::from_hours(12)));
    assert_eq!(world.delivered.len(), 5_000);
    for start in world.starts.iter().filter(|start| start.id.message.raw() % 10 != 0) {
        let waited = start.at.since(accepted[&start.id.message.raw()]);
        assert!(waited <= Duration::from_millis(20), "{:?} waited {waited:?}", start.id.message);
    }
    let followers = world.starts.iter().filter(|start| start.id.message.raw() == 10);
    assert!(followers.into_iter().all(|start| start.held.is_some_and(|held| held.by == HeldBy::Order)));
}

#[test]
fn a_flood_in_an_ordered_lane_is_read_in_large_pieces() {
    for (run_max, loads_max) in [(usize::MAX, 60), (16, 1_000)] {
        let mut world = world([(1, LaneSettings { ordering: Ordering::Fifo, ..usual() })]);
        world.run_max = run_max;
        for message in 0..5_000 {
            world.accept(message, 1, None);
        }
        world.run_until(world.now.plus(Duration::from_mins(10)));
        assert_eq!(world.messages_sent(1), (0..5_000).collect::<Vec<_>>());
        assert!(world.loads <= loads_max, "{} loads of at most {run_max}", world.loads);
    }
}

#[test]
fn a_lane_that_is_freed_says_that_the_pause_made_it_late_and_starts_slowly() {
    let mut world = world([(1, usual())]);
    world.park(1, true);
    for message in 0..500 {
        world.accept(message, 1, None);
    }
    world.run_until(world.now.plus(Duration::from_hours(3)));
    world.park(1, false);
    world.run_until(world.now.plus(Duration::from_mins(5)));
    assert_eq!(world.delivered.len(), 500);
    assert!(world.starts.iter().all(|start| start.held.is_some_and(|held| held.by == HeldBy::Pause)));
    assert_eq!(world.starts.iter().take_while(|start| start.in_flight == 1).count(), 2);
}

#[test]
fn an_idle_lane_in_poor_health_is_remembered_and_wakes_nobody() {
    let mut world = world([(1, usual())]);
    world.set_health(1, tripped(&world, Duration::from_secs(30)));
    world.run_until(world.now.plus(Duration::from_hours(1)));
    assert_eq!(world.dispatcher.lanes_of(AppKey::new(1)), [EndpointKey::new(1)]);
    assert_eq!(world.dispatcher.sleep_until(), None);
    world.accept(1, 1, None);
    assert!(world.starts.last().is_some_and(|start| start.is_probe));
    world.run_until(world.now.plus(Duration::from_mins(1)));
    assert_eq!(world.dispatcher.health(EndpointKey::new(1)), Health::default());
}

/// A store in which a million wait, of which only those exist that are asked for.
struct Million {
    dispatcher: Dispatcher<()>,
    settings: LaneSettings,
    now: Timestamp,
    ended: i64,
    in_memory: BTreeSet<DeliveryId>,
    commands: usize,
}

impl Million {
    const ENDPOINT: EndpointKey = EndpointKey::new(1);
    const ALL: i64 = 1_000_000;

    fn new() -> Self {
        let now = Timestamp::from_millis(1_000_000);
        let settings = LaneSettings { ordering: Ordering::None, ..usual() };
        let mut dispatcher = Dispatcher::new(Limits::default());
        dispatcher.expect(Self::ENDPOINT, settings, now, now);
        Self { dispatcher, settings, now, ended: 0, in_memory: BTreeSet::new(), commands: 0 }
    }

    /// Carries out what is said, and counts it. Requests hang.
    fn obey(&mut self) -> usize {
        let before = self.commands;
        while let Some(command) = self.dispatcher.next(self.now) {
            self.commands += 1;
            match command {
                Command::Send(parcel) => {
                    self.in_memory.insert(parcel.id);
                }
                Command::Load { limit, .. } => {
                    let last = self.ended + (limit as i64).min(Self::ALL - self.ended);
                    let parcels = (self.ended..last).map(|message| self.parcel(message)).collect();
                    let rest = Rest { more: last < Self::ALL, ..Rest::default() };
                    self.dispatcher.loaded(Self::ENDPOINT, parcels, rest, self.now);
                }
                Command::Spill(_) | Command::Bury(_) => panic!("all of them have rows, and none is to be buried"),
            }
            assert!(self.dispatcher.held() <= Limits::default().window + 16);
        }
        self.commands - before
    }

    fn parcel(&self, message: i64) -> Parcel<()> {
        Parcel {
            id: DeliveryId { endpoint: Self::ENDPOINT, message: MessageKey::new(message), trigger: Trigger::Scheduled },
            cycle: 0,
            progress: Progress::default(),
            queued_at: self.now,
            due: self.now,
            order: None,
            held: None,
            theirs: Duration::ZERO,
            handed: false,
            since: self.now,
            weight: 1_000,
            cargo: (),
        }
    }
}

#[test]
fn opening_closing_and_pausing_a_lane_costs_the_same_with_a_million_waiting() {
    let mut million = Million::new();
    let (endpoint, free) = (Million::ENDPOINT, million.settings);
    assert!(million.obey() < 20, "a load and ten requests");

    for _ in 0..100 {
        million.dispatcher.set_lane(endpoint, LaneSettings { parked: true, ..free }, million.now);
        assert_eq!(million.obey(), 0, "nothing is said of any delivery");
        assert!(million.dispatcher.held() <= 10, "only what is on the network is kept");
        assert_eq!(million.dispatcher.sleep_until(), None);
        million.dispatcher.set_lane(endpoint, free, million.now);
        assert!(million.obey() <= 1, "one load");
    }

    let until = million.now.plus(Duration::from_mins(5));
    let open = Health { breaker: Breaker::Open { until, trips: 1 }, ..Health::default() };
    million.dispatcher.set_health(endpoint, free, open, million.now);
    assert_eq!(million.obey(), 0);
    assert!(million.dispatcher.held() <= 10);
    assert_eq!(million.dispatcher.sleep_until(), Some(until), "one timer for all of them");
    million.now = until;
    assert!(million.obey() <= 2, "its slots are all taken still: a load at most");
    million.dispatcher.set_health(endpoint, free, Health::default(), million.now);
    assert!(million.obey() <= 1);
    assert!(million.dispatcher.held() <= Limits::default().window + 16);
    assert_eq!(million.in_memory.len(), 10);
}
