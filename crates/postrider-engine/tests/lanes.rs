//! The dispatcher in a world in which everything may happen at any time: what holds whatever comes.

mod world;

use postrider_engine::{
    Answer, AppKey, Control, DeliveryId, EndpointKey, Fault, MessageKey, Outcome, Timestamp, Trigger,
    lanes::{Cancel, Command, Dispatcher, HeldBy, LaneSettings, Limits, Parcel, Rest},
    policy::{
        Breaker, BreakerRules, DisableReason, DisableRules, Health, Ordering, Policy, Progress, WhileOpen,
        health::Notice, judge,
    },
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{collections::BTreeSet, time::Duration};
use world::{Receiver, Reply, SMALL, Schedule, World, lane_settings, scheduled, status};

/// More than the store takes for what it has to do after an answer.
const STORE_SLACK: Duration = Duration::from_millis(20);

/// How receivers behave, in percent.
#[derive(Clone, Copy, Debug)]
struct Manners {
    fails: u32,
    refuses: u32,
    panics: u32,
    disables: u32,
}

impl Manners {
    fn receiver(self) -> Receiver {
        Box::new(move |_, _, rng| {
            let drawn = rng.random_range(0..100);
            if drawn < self.disables {
                let answer = Answer { status: 200, control: Some(Control::Disable), ..Answer::default() };
                return Reply { outcome: Some(Outcome::Answered(answer)), ..status(200) };
            }
            if drawn < self.disables + self.panics {
                return Reply { outcome: None, ..status(500) };
            }
            if drawn < self.disables + self.panics + self.refuses {
                return status(400);
            }
            if drawn < self.disables + self.panics + self.refuses + self.fails {
                return match drawn % 5 {
                    0 => Reply { outcome: Some(Outcome::Failed(Fault::LocalResource)), ..status(500) },
                    1 => status(429),
                    _ => status(503),
                };
            }
            status(200)
        })
    }
}

fn manners() -> impl Strategy<Value = Manners> {
    (0..90u32, 0..8u32, 0..8u32, 0..3u32).prop_map(|(fails, refuses, panics, disables)| {
        let fails = fails.min(100 - refuses - panics - disables);
        Manners { fails, refuses, panics, disables }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Accept { lane: i64, count: u8, keys: i64 },
    Resend { lane: i64, message: i64 },
    Finish(u8),
    Advance(u16),
    Park(i64),
    Free(i64),
    Reorder { lane: i64, ordering: Ordering },
    Cancel { lane: i64, back: i64 },
    CancelBefore { lane: i64, back: i64 },
    Replay(usize),
    ResetHealth(i64),
    Restart,
    Release(i64),
    Depose(usize),
}

fn steps(lanes: i64, fate: impl Strategy<Value = Step> + 'static) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1..=lanes, 1..12u8, 1..4i64).prop_map(|(lane, count, keys)| Step::Accept { lane, count, keys }),
        12 => (1..20u8).prop_map(Step::Finish),
        6 => (0..120u16).prop_map(Step::Advance),
        2 => (1..=lanes).prop_map(Step::Park),
        4 => (1..=lanes).prop_map(Step::Free),
        1 => (1..=lanes, 0..40i64).prop_map(|(lane, message)| Step::Resend { lane, message }),
        1 => (1..=lanes, prop_oneof![Just(Ordering::None), Just(Ordering::Keyed), Just(Ordering::Fifo)])
            .prop_map(|(lane, ordering)| Step::Reorder { lane, ordering }),
        2 => (1..=lanes, 0..20i64).prop_map(|(lane, back)| Step::Cancel { lane, back }),
        1 => (1..=lanes, 0..40i64).prop_map(|(lane, back)| Step::CancelBefore { lane, back }),
        2 => any::<usize>().prop_map(Step::Replay),
        1 => (1..=lanes).prop_map(Step::ResetHealth),
        2 => fate,
    ];
    prop::collection::vec(step, 1..120)
}

/// Five lanes of two applications, each with other rules.
fn all_kinds() -> Vec<(i64, LaneSettings)> {
    let breaker = |while_open| {
        Some(BreakerRules {
            failures: 3,
            cool_down: Duration::from_millis(40),
            cool_down_max: Duration::from_millis(300),
            while_open,
        })
    };
    let one = LaneSettings { app_rate: Some(60), ..lane_settings(1) };
    let two = lane_settings(2);
    let disable = DisableRules { failing_for: Some(Duration::from_secs(3)), permanent_streak: Some(4) };
    vec![
        (1, LaneSettings { ordering: Ordering::Keyed, breaker: breaker(WhileOpen::Hold), ..one }),
        (2, LaneSettings { ordering: Ordering::Fifo, disable, ..one }),
        (3, LaneSettings { rate: Some(50), ordering: Ordering::Keyed, in_flight_max: 5, ..one }),
        (4, LaneSettings { breaker: breaker(WhileOpen::DeadLetter), in_flight_max: 6, ..two }),
        (5, LaneSettings { breaker: breaker(WhileOpen::Hold), ordering: Ordering::Fifo, disable, ..two }),
    ]
}

fn live(world: &mut World, steps: Vec<Step>) {
    let mut message = 0;
    for step in steps {
        match step {
            Step::Accept { lane, count, keys } => {
                for _ in 0..count {
                    message += 1;
                    let key = world.rng.random_range(0..=keys);
                    world.accept(message, lane, (key > 0).then_some(key));
                }
            }
            Step::Resend { lane, message } => world.resend(message, lane),
            Step::Finish(count) => (0..count).for_each(|_| world.finish_one()),
            Step::Advance(millis) => world.advance(u64::from(millis)),
            Step::Park(lane) => world.park(lane, true),
            Step::Free(lane) => world.park(lane, false),
            Step::Reorder { lane, ordering } => world.change(lane, |settings| settings.ordering = ordering),
            Step::Cancel { lane, back } => world.cancel(lane, Cancel::One(MessageKey::new(message - back))),
            Step::CancelBefore { lane, back } => world.cancel(lane, Cancel::Before(MessageKey::new(message - back))),
            Step::Replay(which) => world.replay(which),
            Step::ResetHealth(lane) => world.reset_health(lane),
            Step::Restart => world.restart(),
            Step::Release(app) => world.release(app),
            Step::Depose(node) => world.depose(node),
        }
    }
}

fn check_the_end(world: &World) {
    let accepted: BTreeSet<_> = world.accepted.keys().copied().collect();
    assert_eq!(world.ended, accepted, "each of them came to its end");
    assert_eq!(world.rows(), 0);
    for dispatcher in [&world.dispatcher, &world.second] {
        assert_eq!(dispatcher.held(), 0);
        assert_eq!(dispatcher.in_flight(), 0);
        assert_eq!(dispatcher.busy_apps().next(), None);
    }
    world.check_rates();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // The world itself checks at every start: order, slots, ramp, breaker, probe, pause, no second start.
    #[test]
    fn whatever_happens_everything_comes_to_its_end_within_its_limits(
        seed: u64, manners in manners(), run_max in 1..5usize, steps in steps(5, Just(Step::Finish(1)))
    ) {
        let mut world = World::new(seed, SMALL, all_kinds());
        world.receiver = manners.receiver();
        world.run_max = run_max;
        world.load_failures = 5;
        live(&mut world, steps);
        world.settle_down();
        check_the_end(&world);
    }

    #[test]
    fn a_process_that_dies_again_and_again_loses_nothing_and_keeps_the_order(
        seed: u64, manners in manners(), steps in steps(5, Just(Step::Restart))
    ) {
        let mut world = World::new(seed, SMALL, all_kinds());
        world.receiver = manners.receiver();
        live(&mut world, steps);
        world.settle_down();
        check_the_end(&world);
    }

    // At every start the world also checks who owns the lane, and when lanes are given up that nothing of them is left.
    #[test]
    fn lanes_that_move_between_two_nodes_lose_nothing_and_keep_their_order_and_limits(
        seed: u64, manners in manners(), run_max in 1..5usize,
        steps in steps(5, (1..=2i64).prop_map(Step::Release))
    ) {
        let mut world = World::new(seed, SMALL, all_kinds());
        world.receiver = manners.receiver();
        world.run_max = run_max;
        world.load_failures = 5;
        live(&mut world, steps);
        world.settle_down();
        check_the_end(&world);
    }

    #[test]
    fn nodes_that_are_deposed_lose_nothing_and_what_comes_late_does_no_harm(
        seed: u64, manners in manners(),
        steps in steps(5, prop_oneof![(1..=2i64).prop_map(Step::Release), (0..2usize).prop_map(Step::Depose)])
    ) {
        let mut world = World::new(seed, SMALL, all_kinds());
        world.receiver = manners.receiver();
        world.load_failures = 5;
        live(&mut world, steps);
        world.settle_down();
        check_the_end(&world);
    }

    #[test]
    fn without_failures_and_limits_each_is_sent_exactly_once(seed: u64, counts in prop::collection::vec(1..30u8, 1..20)) {
        let mut world = World::new(seed, SMALL, (1..=3).map(|lane| (lane, lane_settings(lane))));
        let mut message = 0;
        for (lane, count) in counts.into_iter().enumerate() {
            for _ in 0..count {
                message += 1;
                world.accept(message, 1 + lane as i64 % 3, None);
            }
            (0..count).for_each(|_| world.finish_one());
        }
        world.settle_down();
        check_the_end(&world);
        prop_assert_eq!(world.starts.len(), world.accepted.len());
    }
}

#[test]
fn a_flooded_lane_does_not_delay_another() {
    let mut world = World::new(1, SMALL, [(1, lane_settings(1)), (2, lane_settings(1))]);
    for message in 0..100 {
        world.accept(message, 1, None);
    }
    world.accept(1_000, 2, None);
    let last = world.starts.last().expect("something was sent");
    assert_eq!(last.id.endpoint, EndpointKey::new(2), "the quiet lane's turn came at once");
}

#[test]
fn lanes_take_turns() {
    let limits = Limits { in_flight: 4, ..SMALL };
    let mut world = World::new(1, limits, (1..=3).map(|lane| (lane, lane_settings(1))));
    for message in 0..4 {
        world.accept(message, 3, None);
    }
    // Now all of our own slots are taken, or soon will be.
    for message in 4..16 {
        world.accept(message, 1 + message % 2, None);
    }
    world.finish_all();
    let firsts: Vec<i64> =
        world.starts.iter().map(|start| start.id.endpoint.raw()).filter(|lane| *lane < 3).take(6).collect();
    assert!(firsts.windows(2).all(|pair| pair[0] != pair[1]), "one request each, in turn: {firsts:?}");
    world.settle_down();
    assert_eq!(world.delivered.len(), 16);
}

#[test]
fn one_application_with_a_thousand_lanes_does_not_starve_another_with_one() {
    let lanes = (1..=1_000).map(|lane| (lane, lane_settings(1))).chain([(2_000, lane_settings(2))]);
    let limits = Limits { in_flight: 8, bytes: 100_000_000, patience: Duration::from_secs(3_600), ..SMALL };
    let mut world = World::new(1, limits, lanes);
    let mut message = 0;
    for _ in 0..3 {
        for lane in 1..=1_000 {
            message += 1;
            world.accept(message, lane, None);
        }
    }
    let before = world.starts.len();
    for _ in 0..3 {
        message += 1;
        world.accept(message, 2_000, None);
    }
    world.run_until(world.now.plus(Duration::from_millis(200)));
    let places: Vec<usize> = (world.starts.iter().skip(before).enumerate())
        .filter(|(_, start)| start.id.endpoint == EndpointKey::new(2_000))
        .map(|(place, _)| place)
        .collect();
    assert_eq!(places.len(), 3);
    assert!(places.iter().all(|place| *place < 8), "every second request is its own: {places:?}");
}

#[test]
fn lanes_that_hang_leave_slots_for_the_others() {
    // A sixteenth of the server's own numbers: more lanes hang than there is room for, if each took what it may.
    let limits = Limits { in_flight: 512, unsettled: 4, bytes: 100_000_000, ..SMALL };
    let settings = |app| LaneSettings { in_flight_max: 10, ..lane_settings(app) };
    for hanging in [60, 120, 250] {
        let mut world = World::new(1, limits, (1..=hanging + 1).map(|lane| (lane, settings(lane))));
        for message in 0..10 * hanging {
            world.accept(message, 1 + message % hanging, None);
        }
        world.accept(10_000, hanging + 1, None);
        assert_eq!(world.in_flight(EndpointKey::new(hanging + 1)), 1, "beside {hanging}");
        assert!((1..=hanging).all(|lane| world.in_flight(EndpointKey::new(lane)) > 0), "every lane has a slot");
        assert!(world.dispatcher.in_flight() > 200, "and most slots are used");
    }
}

#[test]
fn who_only_fails_has_one_request_at_a_time_until_it_succeeds() {
    let limits = Limits { window: 1_024, bytes: 100_000_000, lane_bytes: 10_000_000, unsettled: 64, ..SMALL };
    let lane = EndpointKey::new(1);
    let mut world = World::new(1, limits, [(1, LaneSettings { in_flight_max: 4, ..lane_settings(1) })]);
    world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_secs(10), ..status(503) });
    for message in 0..40 {
        world.accept(message, 1, None);
    }
    assert_eq!(world.in_flight(lane), 4, "nothing is known of it yet");
    for _ in 0..3 {
        world.run_until(world.now.plus(Duration::from_secs(10) + STORE_SLACK));
        assert_eq!(world.in_flight(lane), 1, "all of them have failed");
    }
    world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_secs(10), ..status(200) });
    let mut allowed = Vec::new();
    for _ in 0..6 {
        world.run_until(world.now.plus(Duration::from_secs(10) + STORE_SLACK));
        allowed.push(world.in_flight(lane));
    }
    // The first of them still fails.
    assert_eq!(allowed, [1, 2, 4, 4, 4, 4]);
    world.settle_down();
    assert_eq!(world.delivered.len(), 40);
}

#[test]
fn a_lane_that_hangs_does_not_load_again_for_each_message() {
    let limits = Limits { window: 1_024, bytes: 100_000_000, lane_bytes: 10_000_000, ..SMALL };
    let mut world = World::new(1, limits, [(1, lane_settings(1))]);
    world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_secs(15), ..status(200) });
    for message in 0..100 {
        world.accept(message, 1, None);
        world.run_until(world.now.plus(Duration::from_millis(100)));
    }
    assert!(world.starts.len() <= 3, "nothing was answered");
    assert!(world.loads <= 3, "{} loads", world.loads);
    world.settle_down();
    assert_eq!(world.delivered.len(), 100);
}

#[test]
fn a_parked_lane_asks_for_nothing() {
    let mut world = World::new(1, SMALL, [(1, lane_settings(1))]);
    world.park(1, true);
    for message in 0..50 {
        world.accept(message, 1, None);
    }
    world.finish_all();
    assert_eq!(world.rows(), 50);
    assert_eq!(world.dispatcher.held(), 0, "nothing of it is in memory");
    assert_eq!(world.dispatcher.sleep_until(), None, "and nothing will wake it");
}

#[test]
fn what_stands_too_long_is_given_a_row() {
    let mut world = World::new(1, SMALL, [(1, lane_settings(1))]);
    for message in 0..5 {
        world.accept(message, 1, None);
    }
    assert_eq!(world.in_flight(EndpointKey::new(1)), 3);
    world.advance(200);
    assert_eq!(world.spills_under_way(), 2, "the two that wait behind hanging requests");
}

#[test]
fn a_rate_spreads_requests_over_time() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { rate: Some(50), ..lane_settings(1) })]);
    for message in 0..120 {
        world.accept(message, 1, None);
        world.finish_all();
    }
    assert_eq!(world.starts.len(), 50, "a second's worth at once");
    world.advance(1_000);
    world.finish_all();
    assert!(world.starts.len() <= 101, "{} within the next second", world.starts.len());
    world.settle_down();
    assert_eq!(world.delivered.len(), 120);
    world.check_rates();
}

#[test]
fn lanes_share_the_rate_of_their_application() {
    let settings = LaneSettings { app_rate: Some(10), ..lane_settings(1) };
    let mut world = World::new(1, SMALL, [(1, settings), (2, settings)]);
    for message in 0..40 {
        world.accept(message, 1 + message % 2, None);
        world.finish_all();
    }
    assert_eq!(world.starts.len(), 10, "a second's worth at once");
    for _ in 0..20 {
        world.advance(100);
        world.finish_all();
    }
    let (one, two) = (world.messages_sent(1).len(), world.messages_sent(2).len());
    assert!(world.starts.len() <= 31, "{} in two seconds more", world.starts.len());
    assert!(one.abs_diff(two) <= 2, "{one} and {two}");
    world.settle_down();
    assert_eq!(world.delivered.len(), 40);
    world.check_rates();
}

#[test]
fn a_lane_whose_settings_are_not_known_yet_does_not_lift_the_limit_of_its_application() {
    let limited = LaneSettings { app_rate: Some(1), ..lane_settings(1) };
    let unknown = LaneSettings { parked: true, ..lane_settings(1) };
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    let mut sent = 0;
    for message in 1..=3 {
        dispatcher.hand_over(new_parcel(message, now), limited, now);
        let other = Parcel { id: scheduled(2, message), ..new_parcel(message, now) };
        dispatcher.hand_over(other, unknown, now);
        while let Some(command) = dispatcher.next(now) {
            sent += usize::from(matches!(command, Command::Send(_)));
        }
    }
    assert_eq!(sent, 1);
}

#[test]
fn deleting_an_endpoint_does_not_lift_the_limit_of_its_application() {
    let limited = LaneSettings { app_rate: Some(1), in_flight_max: 100, ..lane_settings(1) };
    let limits = Limits { window: 100, ..Limits::default() };
    let (deleted, now) = (EndpointKey::new(2), Timestamp::from_millis(1_000_000));
    for app_rate in [Some(1), None] {
        for opened_before in [true, false] {
            let mut dispatcher = Dispatcher::new(limits);
            if opened_before {
                dispatcher.set_lane(deleted, LaneSettings { parked: true, ..limited }, now);
            }
            for message in 1..=20 {
                dispatcher.hand_over(new_parcel(message, now), limited, now);
            }
            assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
            let gone = LaneSettings { app_rate, gone: true, ..limited };
            dispatcher.set_health(deleted, gone, Health::default(), now);
            dispatcher.set_lane(deleted, gone, now);
            assert!(dispatcher.next(now).is_none(), "one a second");
        }
    }
}

/// Lanes in which so many messages were sent in the last second while one request hangs, and then many come at once.
fn rushed(sent: i64, lanes: i64) -> World {
    let limits = Limits { window: 4, beyond: 8, bytes: 100_000_000, patience: Duration::from_secs(3_600), ..SMALL };
    let limits = Limits { in_flight: 1_000, lane_bytes: 1_000_000, ..limits };
    let all = (1..=lanes).map(|lane| (lane, lane_settings(1))).chain([(ANOTHER, lane_settings(2))]);
    let mut world = World::new(1, limits, all);
    let mut rush = |messages: std::ops::Range<i64>, takes| {
        world.receiver = Box::new(move |_, _, _| Reply { takes, ..status(200) });
        for message in messages {
            (1..=lanes).for_each(|lane| world.accept(message, lane, None));
            world.run_until(world.now.plus(STORE_SLACK));
        }
    };
    rush(0..1, Duration::from_secs(10));
    rush(1..1 + sent, Duration::from_millis(1));
    rush(1_000..1_002, Duration::from_secs(10));
    for message in 1_002..1_050 {
        (1..=lanes).for_each(|lane| world.accept(message, lane, None));
    }
    world
}

/// Of another application, with nothing to do.
const ANOTHER: i64 = 1_000;
const UNDER_WAY: usize = 3;
const WINDOW: usize = 4;

#[test]
fn beyond_its_window_a_lane_keeps_as_much_as_it_has_sent_in_a_second() {
    for (sent, kept) in [(0, 0), (6, 6), (20, 8)] {
        let mut world = rushed(sent, 1);
        assert_eq!(world.dispatcher.held(), UNDER_WAY + WINDOW + kept, "after {sent}");
        world.settle_down();
        assert_eq!(world.delivered.len() as i64, 51 + sent);
    }
}

fn lags(world: &World) -> bool {
    world.dispatcher.lags(world.now)
}

#[test]
fn lanes_lag_when_they_send_much_and_more_stands_ready() {
    assert!(!lags(&rushed(40, 1)), "an endpoint that is flooded holds up nobody else");
    assert!(!lags(&rushed(0, 10)), "endpoints that hang hold up nobody else");
    assert!(lags(&rushed(40, 3)));
}

#[test]
fn what_is_no_longer_ready_is_not_what_lanes_lag_by() {
    let ways: [fn(&mut World); 4] =
        [|_| {}, World::settle_down, |world| (1..=3).for_each(|lane| world.park(lane, true)), |world| world.release(1)];
    for (number, way) in ways.into_iter().enumerate() {
        let mut world = rushed(40, 3);
        way(&mut world);
        // What hangs was sent too long ago by then.
        world.run_until(world.now.plus(Duration::from_secs(3)));
        assert!(!lags(&world), "way {number}");
        if number > 0 {
            world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_millis(1), ..status(200) });
            for message in 2_000..2_040 {
                world.accept(message, ANOTHER, None);
                world.run_until(world.now.plus(STORE_SLACK));
            }
            assert!(!lags(&world), "much is sent, and nothing waits: way {number}");
        }
    }
}

#[test]
fn rows_are_asked_for_in_pieces_and_in_their_order() {
    let now = Timestamp::from_millis(1_000_000);
    let mut dispatcher = Dispatcher::new(Limits::default());
    let parked = LaneSettings { parked: true, ..lane_settings(1) };
    for message in 1..=5_000 {
        dispatcher.hand_over(new_parcel(message, now), parked, now);
    }
    let mut spilled: Vec<DeliveryId> = Vec::new();
    while let Some(command) = dispatcher.next(now) {
        let Command::Spill(spills) = command else { panic!("nothing is sent or loaded: {command:?}") };
        assert!(spills.len() <= 2_048);
        assert!(dispatcher.next(now).is_none(), "one at a time");
        let ids: Vec<DeliveryId> = spills.into_iter().map(|(id, _)| id).collect();
        dispatcher.spilled(&ids, now);
        spilled.extend(ids);
    }
    let messages: Vec<i64> = spilled.iter().map(|id| id.message.raw()).collect();
    assert_eq!(messages, (1..=5_000).collect::<Vec<_>>());
}

#[test]
fn a_lane_that_is_parked_lets_go_of_what_has_a_row() {
    let mut world = World::new(1, SMALL, [(1, lane_settings(1))]);
    world.receiver = Box::new(|_, _, _| status(503));
    for message in 0..20 {
        world.accept(message, 1, None);
    }
    world.finish_all();
    world.advance(1_000);
    while !world.only_requests_are_under_way() {
        world.finish_one();
    }
    world.park(1, true);
    world.finish_all();
    assert_eq!(world.dispatcher.held(), 0);
    world.settle_down();
    assert_eq!(world.delivered.len(), 20);
}

#[test]
fn a_retry_holds_its_own_key_back_and_no_other() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) })]);
    world.receiver = Box::new(|id, _, _| status(if id.message.raw() == 1 { 503 } else { 200 }));
    for (message, key) in [(1, 7), (2, 7), (3, 8), (4, 8)] {
        world.accept(message, 1, Some(key));
    }
    world.finish_all();
    assert_eq!(world.messages_sent(1), [1, 3, 4]);
    world.settle_down();
    assert_eq!(world.messages_sent(1), [1, 3, 4, 1, 2]);
}

#[test]
fn what_waits_behind_one_key_leaves_room_for_the_others() {
    let limits = Limits { window: 16, bytes: 100_000_000, lane_bytes: 10_000_000, ..SMALL };
    let mut world = World::new(1, limits, [(1, LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) })]);
    world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_secs(1), ..status(200) });
    for message in 0..40 {
        world.accept(message, 1, Some(7));
    }
    world.run_until(world.now.plus(Duration::from_millis(3_500)));
    world.accept(100, 1, None);
    world.accept(101, 1, Some(8));
    let loads = world.loads;
    world.run_until(world.now.plus(Duration::from_millis(300)));
    assert_eq!(world.messages_sent(1), [0, 1, 2, 3, 100, 101]);
    assert!(world.loads <= loads + 2, "{} loads for two messages", world.loads - loads);
    world.settle_down();
    assert_eq!(world.delivered.len(), 42);
}

#[test]
fn an_earlier_message_that_is_replayed_goes_before_what_waits() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { ordering: Ordering::Fifo, ..lane_settings(1) })]);
    world.accept(1, 1, None);
    world.finish_all();
    world.accept(2, 1, None);
    world.accept(3, 1, None);
    world.accept(4, 1, None);
    // Message 2 is under way; 3 and 4 stand behind it in memory.
    world.replay(0);
    while !world.only_requests_are_under_way() {
        world.run_until(world.now.plus(Duration::from_millis(1)));
    }
    world.finish_all();
    assert_eq!(world.messages_sent(1), [1, 2, 1, 3, 4]);
}

#[test]
fn an_endpoint_that_asks_to_be_disabled_is_left_alone_at_once() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { in_flight_max: 1, ..lane_settings(1) })]);
    let answer = Answer { status: 200, control: Some(Control::Disable), ..Answer::default() };
    world.receiver = Box::new(move |_, _, _| Reply { outcome: Some(Outcome::Answered(answer.clone())), ..status(200) });
    for message in 0..5 {
        world.accept(message, 1, None);
    }
    world.finish_all();
    assert_eq!(world.starts.len(), 1);
    assert_eq!(world.dispatcher.held(), 0, "the others have rows");
    world.settle_down();
    assert_eq!(world.delivered.len(), 5);
}

#[test]
fn what_comes_late_says_why() {
    let first = LaneSettings { in_flight_max: 1, ..lane_settings(1) };
    let cases: [(LaneSettings, HeldBy); 5] = [
        (first, HeldBy::Slots),
        (LaneSettings { in_flight_max: 100, rate: Some(1), ..first }, HeldBy::Rate),
        (LaneSettings { in_flight_max: 100, app_rate: Some(1), ..first }, HeldBy::AppRate),
        (LaneSettings { in_flight_max: 100, ordering: Ordering::Fifo, ..first }, HeldBy::Order),
        (LaneSettings { parked: true, ..first }, HeldBy::Pause),
    ];
    for (settings, expected) in cases {
        let mut world = World::new(1, Limits { window: 64, ..Limits::default() }, [(1, settings)]);
        world.receiver = Box::new(|_, _, _| Reply { takes: Duration::from_secs(2), ..status(200) });
        if settings.parked {
            world.park(1, true);
        }
        for message in 0..6 {
            world.accept(message, 1, None);
        }
        world.run_until(world.now.plus(Duration::from_secs(10)));
        world.park(1, false);
        world.run_until(world.now.plus(Duration::from_secs(30)));
        let held: Vec<_> = world.starts.iter().filter_map(|start| start.held).map(|held| held.by).collect();
        assert!(held.len() >= 3, "{expected:?}: {held:?}");
        assert!(held.iter().take(2).all(|by| *by == expected), "{expected:?}: {held:?}");
    }
}

#[test]
fn a_lane_with_a_rate_is_forgotten_once_its_bucket_is_full_again() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { rate: Some(10), ..lane_settings(7) })]);
    world.accept(1, 1, None);
    world.finish_all();
    assert_eq!(world.dispatcher.lanes_of(AppKey::new(7)).len(), 1, "what was used up is remembered");
    world.advance(1_000);
    assert_eq!(world.dispatcher.lanes_of(AppKey::new(7)).len(), 0);
    assert_eq!(world.dispatcher.sleep_until(), None);
}

#[test]
fn what_is_cancelled_is_never_sent_and_never_spilled() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { in_flight_max: 1, ..lane_settings(1) })]);
    for message in 0..5 {
        world.accept(message, 1, None);
    }
    world.cancel(1, Cancel::One(MessageKey::new(3)));
    world.cancel(1, Cancel::Before(MessageKey::new(3)));
    assert!(world.cancelled.contains(&scheduled(1, 1)));
    world.settle_down();
    assert_eq!(world.messages_sent(1), [0, 4], "the first was on the network already");
    assert_eq!(world.rows(), 0);
}

#[test]
fn what_waits_behind_a_cancelled_one_goes_at_once() {
    for have_rows in [false, true] {
        let mut world = World::new(1, SMALL, [(1, LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) })]);
        world.schedule = Schedule::Real;
        world.receiver = Box::new(|_, _, _| Reply { outcome: Some(Outcome::Failed(Fault::Dns)), ..status(500) });
        for message in 1..=3 {
            world.accept(message, 1, Some(7));
        }
        if have_rows {
            world.restart();
        }
        world.finish_all();
        world.starts.clear();
        world.receiver = Box::new(|_, _, _| status(200));
        world.cancel(1, Cancel::One(MessageKey::new(1)));
        world.finish_all();
        assert_eq!(world.messages_sent(1), [2, 3], "they waited for the first one's retry");
    }
}

#[test]
fn what_fails_after_it_was_cancelled_holds_nobody_back() {
    for have_rows in [false, true] {
        let mut world = World::new(1, SMALL, [(1, LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) })]);
        world.schedule = Schedule::Real;
        world.receiver = Box::new(|id, _, _| status(if id.message.raw() == 1 { 503 } else { 200 }));
        for message in 1..=3 {
            world.accept(message, 1, Some(7));
        }
        if have_rows {
            world.restart();
            world.starts.clear();
            world.run_until(world.now.plus(Duration::from_millis(10)));
        }
        assert_eq!(world.messages_sent(1), [1]);
        world.cancel(1, Cancel::One(MessageKey::new(1)));
        world.finish_all();
        assert_eq!(world.messages_sent(1), [1, 2, 3], "there is no retry to wait for");
    }
}

#[test]
fn a_resend_that_arrives_ends_what_waits_in_memory() {
    let mut world = World::new(1, SMALL, [(1, LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) })]);
    world.receiver = Box::new(|id, _, _| match id.message.raw() {
        1 => Reply { takes: Duration::from_millis(40), ..status(200) },
        _ => status(200),
    });
    for message in 1..=3 {
        world.accept(message, 1, Some(7));
    }
    world.resend(2, 1);
    world.run_until(world.now.plus(Duration::from_secs(1)));
    assert_eq!(world.messages_sent(1), [1, 2, 3], "the second beside the first, and not again after it");
    assert_eq!(world.rows(), 0);
    assert!(world.delivered.contains(&scheduled(1, 2)));
}

/// Message 1 of a key waits ten hours for its retry and others behind it, in the store.
#[test]
fn a_resend_that_arrives_frees_its_key_at_once() {
    let settings = LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) };
    let (lane, now) = (EndpointKey::new(1), Timestamp::from_millis(1_000));
    let retry = now.plus(Duration::from_hours(10));
    let resend = DeliveryId { trigger: Trigger::Manual, ..scheduled(1, 1) };
    let mut dispatcher = Dispatcher::new(SMALL);
    dispatcher.expect(lane, settings, now, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    let found = Parcel { id: resend, handed: false, ..new_parcel(1, now) };
    dispatcher.loaded(lane, vec![found], Rest { more: false, next_due: Some(retry), blocked: true }, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    dispatcher.answered(resend, None, now);
    dispatcher.settled(resend, None, now);
    assert!(dispatcher.next(now).is_none());
    dispatcher.cancel(lane, Cancel::One(MessageKey::new(1)), now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
}

#[test]
fn what_was_not_sent_after_all_uses_up_no_rate() {
    let settings = LaneSettings { rate: Some(1), app_rate: Some(1), ..lane_settings(1) };
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    for message in 1..=3 {
        dispatcher.hand_over(new_parcel(message, now), settings, now);
    }
    assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.id == scheduled(1, 1)));
    assert!(dispatcher.next(now).is_none());
    dispatcher.unsent(scheduled(1, 1), now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.id == scheduled(1, 2)));
    dispatcher.answered(scheduled(1, 2), None, now);
    assert!(dispatcher.next(now).is_none(), "the second one was sent");
}

#[test]
fn a_lane_that_is_taken_over_before_its_settings_are_known_has_no_rate_left_over() {
    let known = LaneSettings { rate: Some(2), ..lane_settings(1) };
    let unknown = LaneSettings { rate: None, parked: true, unknown: true, ..known };
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    dispatcher.expect(EndpointKey::new(2), lane_settings(1), now.plus(Duration::from_hours(1)), now);
    dispatcher.gain(now);
    dispatcher.hand_over(new_parcel(1, now), unknown, now);
    while dispatcher.next(now).is_some() {}
    dispatcher.set_lane(EndpointKey::new(1), known, now);
    let sends = |dispatcher: &mut Dispatcher<()>, at| {
        std::iter::from_fn(|| dispatcher.next(at)).filter(|command| matches!(command, Command::Send(_))).count()
    };
    dispatcher.spilled(&[scheduled(1, 1)], now);
    dispatcher.hand_over(new_parcel(2, now), known, now);
    assert_eq!(sends(&mut dispatcher, now), 0, "whoever had it may have used it up");
}

/// Whatever else comes is sent to the dead letters while the breaker is open.
#[test]
fn what_a_person_asks_for_is_tried_behind_an_open_breaker_and_keeps_to_the_limits() {
    let breaker = BreakerRules { while_open: WhileOpen::DeadLetter, ..BreakerRules::default() };
    let settings = LaneSettings { breaker: Some(breaker), in_flight_max: 1, ..lane_settings(1) };
    let (lane, now) = (EndpointKey::new(1), Timestamp::from_millis(1_000));
    let open = Breaker::Open { until: now.plus(Duration::from_hours(1)), trips: 1 };
    let mut dispatcher = Dispatcher::new(SMALL);
    dispatcher.set_health(lane, settings, Health { breaker: open, ..Health::default() }, now);
    dispatcher.expect(lane, settings, now, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    let asked_for = |message| DeliveryId { trigger: Trigger::Manual, ..scheduled(1, message) };
    let found = [asked_for(1), asked_for(2), scheduled(1, 3)].map(|id| Parcel {
        id,
        handed: false,
        ..new_parcel(id.message.raw(), now)
    });
    dispatcher.loaded(lane, found.into(), Rest::default(), now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.id == asked_for(1)));
    assert!(dispatcher.next(now).is_none(), "one at a time");
    dispatcher.answered(asked_for(1), None, now);
    dispatcher.settled(asked_for(1), None, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.id == asked_for(2)));
    let buried = dispatcher.next(now);
    assert!(matches!(buried, Some(Command::Bury(parcel)) if parcel.id == scheduled(1, 3)), "which needs no slot");
}

#[test]
fn a_lane_that_was_never_read_looks_for_what_a_cancelled_one_held_back() {
    for (ordering, looks) in [(Ordering::Keyed, true), (Ordering::Fifo, true), (Ordering::None, false)] {
        let settings = LaneSettings { ordering, ..lane_settings(1) };
        let (mut dispatcher, now) = (Dispatcher::<()>::new(SMALL), Timestamp::from_millis(1_000));
        dispatcher.expect(EndpointKey::new(1), settings, now.plus(Duration::from_hours(10)), now);
        assert!(dispatcher.next(now).is_none());
        dispatcher.cancel(EndpointKey::new(1), Cancel::One(MessageKey::new(1)), now);
        assert_eq!(dispatcher.next(now).is_some(), looks, "{ordering:?}");
    }
}

#[test]
fn what_came_before_a_cut_load_does_not_overtake_what_the_cut_left_out() {
    let settings = LaneSettings { ordering: Ordering::Fifo, ..lane_settings(1) };
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    for message in [9, 10] {
        dispatcher.hand_over(new_parcel(message, now), settings, now);
    }
    assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    // Messages 3 to 8 are replayed, and two of them are read.
    dispatcher.expect(EndpointKey::new(1), settings, now, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    let found = [3, 4].map(|message| Parcel { handed: false, ..new_parcel(message, now) });
    dispatcher.loaded(EndpointKey::new(1), found.to_vec(), Rest { more: true, ..Rest::default() }, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    match dispatcher.next(now) {
        Some(Command::Spill(spills)) => assert_eq!(spills, [(scheduled(1, 10), None)]),
        other => panic!("message 10 must wait in the store behind messages 5 to 8, not {other:?}"),
    }
}

#[test]
fn what_waits_for_one_that_someone_else_took_away_is_looked_for() {
    let settings = LaneSettings { ordering: Ordering::Keyed, ..lane_settings(1) };
    let (mut dispatcher, now) = (Dispatcher::<()>::new(SMALL), Timestamp::from_millis(1_000));
    dispatcher.expect(EndpointKey::new(1), settings, now, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    dispatcher.loaded(EndpointKey::new(1), Vec::new(), Rest { blocked: true, ..Rest::default() }, now);
    assert!(dispatcher.next(now).is_none());
    let later = dispatcher.sleep_until().expect("it is not left at that");
    assert!(matches!(dispatcher.next(later), Some(Command::Load { .. })));
}

#[test]
fn settings_that_may_not_know_of_a_disabling_count_only_once_it_is_written() {
    let settings = LaneSettings { in_flight_max: 1, ..lane_settings(1) };
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    let gone = Outcome::Answered(Answer { status: 410, ..Answer::default() });
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let verdict = judge(&Policy::default(), Trigger::Scheduled, Progress::default(), &gone, (now, now), &mut rng);
    for message in [1, 2] {
        dispatcher.hand_over(new_parcel(message, now), settings, now);
    }
    assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    let step = dispatcher.answered(scheduled(1, 1), Some(&verdict), now).expect("it is to be disabled");
    assert_eq!(step.notice, Some(Notice::Disable(DisableReason::Gone)));
    assert!(matches!(dispatcher.next(now), Some(Command::Spill(_))), "message 2 is to wait");
    dispatcher.spilled(&[scheduled(1, 2)], now);
    dispatcher.set_lane(EndpointKey::new(1), settings, now);
    assert!(dispatcher.next(now).is_none(), "these may have been read too early");
    dispatcher.settled(scheduled(1, 1), None, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
}

/// The outcome from before the reset may be written after it, and would come back with the next start.
#[test]
fn a_health_that_was_set_back_while_an_outcome_was_written_is_written_again() {
    let settings = LaneSettings { in_flight_max: 1, ..lane_settings(1) };
    let (lane, now) = (EndpointKey::new(1), Timestamp::from_millis(1_000));
    let mut dispatcher = Dispatcher::new(SMALL);
    for message in 1..=4 {
        dispatcher.hand_over(new_parcel(message, now), settings, now);
    }
    let answer = |dispatcher: &mut Dispatcher<()>, message, status| {
        assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
        let outcome = Outcome::Answered(Answer { status, ..Answer::default() });
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (policy, progress) = (Policy::default(), Progress::default());
        let verdict = judge(&policy, Trigger::Scheduled, progress, &outcome, (now, now), &mut rng);
        dispatcher.answered(scheduled(1, message), Some(&verdict), now).map(|step| step.health)
    };
    assert!(answer(&mut dispatcher, 1, 503).is_some());
    dispatcher.set_health(lane, settings, Health::default(), now);
    dispatcher.settled(scheduled(1, 1), None, now);
    assert_eq!(answer(&mut dispatcher, 2, 200), Some(Health::default()));
    dispatcher.settled(scheduled(1, 2), None, now);
    assert_eq!(answer(&mut dispatcher, 3, 200), None, "once is enough");
    dispatcher.settled(scheduled(1, 3), None, now);
    dispatcher.set_health(lane, settings, Health::default(), now);
    assert_eq!(answer(&mut dispatcher, 4, 200), None, "nothing was being written");
}

/// A request is under way when the endpoint is deleted, and its answer is that the endpoint is gone.
#[test]
fn the_lane_of_a_deleted_endpoint_comes_to_its_end_whatever_it_hears() {
    let settings = LaneSettings { in_flight_max: 1, ..lane_settings(1) };
    let (lane, now) = (EndpointKey::new(1), Timestamp::from_millis(1_000));
    let heard = [
        Answer { status: 410, ..Answer::default() },
        Answer { status: 200, control: Some(Control::Disable), ..Answer::default() },
        Answer { status: 503, ..Answer::default() },
    ];
    for answer in heard {
        let mut dispatcher = Dispatcher::new(SMALL);
        for message in [1, 2] {
            dispatcher.hand_over(new_parcel(message, now), settings, now);
        }
        assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
        dispatcher.set_lane(lane, LaneSettings { gone: true, ..settings }, now);
        let (outcome, mut rng) = (Outcome::Answered(answer), ChaCha8Rng::seed_from_u64(1));
        let first = scheduled(1, 1);
        let verdict = judge(&Policy::default(), first.trigger, Progress::default(), &outcome, (now, now), &mut rng);
        assert_eq!(dispatcher.answered(first, Some(&verdict), now), None, "nothing is to be written of it");
        dispatcher.settled(first, None, now);
        assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.id == scheduled(1, 2)));
        dispatcher.answered(scheduled(1, 2), None, now);
        dispatcher.settled(scheduled(1, 2), None, now);
        assert!(dispatcher.lanes_of(settings.app).is_empty(), "and it is forgotten");
    }
}

#[test]
fn what_was_held_for_an_endpoint_ends_at_full_speed_once_it_is_deleted() {
    let settings = lane_settings(1);
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    dispatcher.expect(EndpointKey::new(1), LaneSettings { parked: true, ..settings }, now, now);
    assert!(dispatcher.next(now).is_none());
    dispatcher.set_lane(EndpointKey::new(1), LaneSettings { gone: true, ..settings }, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    let found = [1, 2].map(|message| Parcel { handed: false, ..new_parcel(message, now) });
    dispatcher.loaded(EndpointKey::new(1), found.to_vec(), Rest::default(), now);
    for _ in 0..2 {
        assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    }
    for parcel in found {
        dispatcher.answered(parcel.id, None, now);
        dispatcher.settled(parcel.id, None, now);
    }
    assert!(dispatcher.lanes_of(settings.app).is_empty());
}

fn new_parcel(message: i64, now: Timestamp) -> Parcel<()> {
    Parcel {
        id: scheduled(1, message),
        cycle: 0,
        progress: Progress::default(),
        queued_at: now,
        due: now,
        order: None,
        held: None,
        theirs: Duration::ZERO,
        handed: true,
        since: now,
        weight: 1,
        cargo: (),
    }
}

/// One delivery is sent and answered, and replayed before the dispatcher has heard that its end is written.
fn answered_and_replayed() -> (Dispatcher<()>, Parcel<()>, Timestamp) {
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    let parcel = new_parcel(1, now);
    dispatcher.hand_over(parcel.clone(), lane_settings(1), now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    dispatcher.answered(parcel.id, None, now);
    dispatcher.expect(parcel.id.endpoint, lane_settings(1), now, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    (dispatcher, Parcel { cycle: 1, handed: false, ..parcel }, now)
}

#[test]
fn a_replay_that_is_read_before_the_end_is_heard_of_is_read_again() {
    let (mut dispatcher, replayed, now) = answered_and_replayed();
    dispatcher.loaded(replayed.id.endpoint, vec![replayed.clone()], Rest::default(), now);
    assert!(dispatcher.next(now).is_none(), "the first cycle is not over yet");
    dispatcher.settled(replayed.id, None, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
}

#[test]
fn a_replay_that_is_read_after_the_end_was_heard_of_is_no_echo_of_the_first_cycle() {
    let (mut dispatcher, replayed, now) = answered_and_replayed();
    dispatcher.settled(replayed.id, None, now);
    dispatcher.loaded(replayed.id.endpoint, vec![replayed], Rest::default(), now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.cycle == 1));
}

#[test]
fn a_lane_that_is_wanted_elsewhere_is_quiet_when_its_last_answer_is_written() {
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    let settings = LaneSettings { in_flight_max: 1, ..lane_settings(1) };
    for message in 1..=3 {
        dispatcher.hand_over(new_parcel(message, now), settings, now);
    }
    assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    dispatcher.release(|app| app == AppKey::new(2), now);
    assert!(dispatcher.next(now).is_none(), "others are meant");
    dispatcher.release(|app| app == AppKey::new(1), now);
    match dispatcher.next(now) {
        Some(Command::Spill(spills)) => assert_eq!(spills.len(), 2, "what has not been sent is given rows"),
        other => panic!("{other:?}"),
    }
    dispatcher.spilled(&[scheduled(1, 2), scheduled(1, 3)], now);
    dispatcher.expect(EndpointKey::new(1), settings, now, now);
    dispatcher.set_lane(EndpointKey::new(1), settings, now);
    assert!(dispatcher.next(now).is_none(), "and not loaded again");
    assert_eq!(dispatcher.answered(scheduled(1, 1), None, now), None);
    assert_eq!(dispatcher.busy_apps().collect::<Vec<_>>(), [AppKey::new(1)]);
    dispatcher.settled(scheduled(1, 1), None, now);
    assert_eq!(dispatcher.busy_apps().next(), None);
    dispatcher.forget(|app| app == AppKey::new(1));
    assert!(dispatcher.lanes_of(AppKey::new(1)).is_empty());
    assert_eq!(dispatcher.sleep_until(), None);
}

#[test]
fn while_nothing_may_start_rows_are_read_and_written() {
    let (mut dispatcher, now) = (Dispatcher::new(SMALL), Timestamp::from_millis(1_000));
    dispatcher.let_start(false);
    dispatcher.hand_over(new_parcel(1, now), lane_settings(1), now);
    let other = EndpointKey::new(2);
    dispatcher.expect(other, lane_settings(1), now, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Load { .. })));
    dispatcher.loaded(other, Vec::new(), Rest::default(), now);
    assert!(dispatcher.next(now).is_none());
    let later = now.plus(SMALL.patience);
    assert!(matches!(dispatcher.next(later), Some(Command::Spill(_))), "it has stood too long");
    dispatcher.spilled(&[scheduled(1, 1)], later);
    assert!(matches!(dispatcher.next(later), Some(Command::Load { .. })));
    let found = Parcel { handed: false, ..new_parcel(1, later) };
    dispatcher.loaded(found.id.endpoint, vec![found], Rest::default(), later);
    assert!(dispatcher.next(later).is_none());
    dispatcher.let_start(true);
    assert!(matches!(dispatcher.next(later), Some(Command::Send(_))));
}

#[test]
fn a_request_of_a_lost_lane_keeps_its_slot_of_ours_and_none_of_the_lane_that_came_back() {
    let limits = Limits { in_flight: 2, ..SMALL };
    let (mut dispatcher, now) = (Dispatcher::new(limits), Timestamp::from_millis(1_000));
    let settings = LaneSettings { in_flight_max: 1, ..lane_settings(1) };
    dispatcher.hand_over(new_parcel(1, now), settings, now);
    assert!(matches!(dispatcher.next(now), Some(Command::Send(_))));
    dispatcher.depose();
    assert_eq!((dispatcher.in_flight(), dispatcher.held()), (1, 0));
    for message in 2..=3 {
        dispatcher.hand_over(new_parcel(message, now), settings, now);
    }
    assert!(matches!(dispatcher.next(now), Some(Command::Send(parcel)) if parcel.id == scheduled(1, 2)));
    dispatcher.lost();
    assert_eq!(dispatcher.in_flight(), 1);
    assert!(dispatcher.next(now).is_none(), "the lane's only slot is taken");
}

#[test]
fn nothing_of_the_dispatchers_own_waits_for_a_clock_that_was_set_back() {
    let (late, early) = (Timestamp::from_millis(900_000_000), Timestamp::from_millis(1_000));
    let second = Duration::from_secs(1);
    for settings in [
        LaneSettings { rate: Some(1), ..lane_settings(1) },
        LaneSettings { app_rate: Some(1), in_flight_max: 10, ..lane_settings(1) },
    ] {
        let mut dispatcher = Dispatcher::new(SMALL);
        for message in 1..=2 {
            dispatcher.hand_over(new_parcel(message, late), settings, late);
        }
        assert!(matches!(dispatcher.next(late), Some(Command::Send(_))));
        assert!(dispatcher.next(late).is_none(), "its rate is used up");
        dispatcher.set_back(early);
        assert!(dispatcher.next(early).is_none(), "and stays so");
        assert!(dispatcher.sleep_until().is_some_and(|at| at <= early.plus(second)));
        assert!(matches!(dispatcher.next(early.plus(second)), Some(Command::Send(_))), "{settings:?}");
    }
    let (mut dispatcher, lane) = (Dispatcher::<()>::new(SMALL), EndpointKey::new(1));
    dispatcher.expect(lane, lane_settings(1), late, late);
    assert!(matches!(dispatcher.next(late), Some(Command::Load { .. })));
    dispatcher.load_failed(lane, late, second);
    dispatcher.set_back(early);
    assert!(matches!(dispatcher.next(early), Some(Command::Load { .. })), "the store is asked what is due");
}
