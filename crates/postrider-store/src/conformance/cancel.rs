//! Ending deliveries before they end by themselves: on request, or because they have waited too long.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{DeathReason, Next, Ordering, Progress},
};

const CANCELLED: DeliveryState =
    DeliveryState::Dead { at: Timestamp::from_millis(START.as_millis() + DAY), reason: DeathReason::Cancelled };

async fn cancel<H: Harness>(stage: &Stage<H>, message: MessageKey, endpoint: Option<EndpointKey>) -> u64 {
    stage.store().cancel_message(stage.app, message, endpoint, at(DAY)).await.expect("a message is cancelled")
}

pub async fn cancelling_a_message_ends_what_is_not_finished<H: Harness>() {
    let stage = Stage::<H>::set(5).await;
    let mut committed = stage.store().committed();
    let message = stage.accept(START).await;
    let ids: Vec<_> = stage.endpoints.iter().map(|endpoint| scheduled(*endpoint, message)).collect();
    let [handed, spilled, retried, arrived, refused_once] = ids[..] else { unreachable!("five were asked for") };
    stage.store().spill(stage.store().tenure(), unordered(vec![spilled]), at(1)).await.unwrap();
    settle(stage.store(), vec![failed(retried, at(1), at(9)), delivered(arrived, at(1)), refused(refused_once, at(1))])
        .await;
    let resent = manual(spilled.endpoint, message);
    stage.store().resend(message, spilled.endpoint, at(2), None).await.unwrap();
    while committed.try_recv().is_ok() {}

    assert_eq!(cancel(&stage, message, None).await, 3);
    for id in [handed, spilled, retried] {
        assert_eq!(stage.state(id).await, CANCELLED);
    }
    assert_eq!(stage.state(arrived).await, DeliveryState::Delivered);
    assert_eq!(stage.state(refused_once).await, DeliveryState::Dead { at: at(1), reason: DeathReason::Permanent });
    assert_eq!(all_waiting(stage.store()).await, [resent], "a resend is something else");
    let news = committed.try_recv().expect("those who hold them are told");
    let told: Vec<_> = news
        .iter()
        .map(|news| match news {
            Committed::Cancelled { endpoint, which: Cancelled::One(message) } => scheduled(*endpoint, *message),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [handed, spilled, retried]);

    assert_eq!(cancel(&stage, message, None).await, 0, "once is enough");
    let stage = stage.crash(at(2 * DAY)).await;
    assert_eq!(all_waiting(stage.store()).await, [resent], "and it does not come back");
}

pub async fn cancelling_spares_what_was_not_meant<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let messages = stage.accept_many(2, START).await;
    let other = add_application(stage.store(), None).await.key;
    let nobody = stage.store().cancel_message(other, messages[0], None, at(DAY)).await.unwrap();
    assert_eq!(nobody, 0, "it is another's");
    assert_eq!(cancel(&stage, messages[0], Some(stage.endpoints[1])).await, 1);
    assert_eq!(cancel(&stage, messages[0], Some(EndpointKey::new(1))).await, 0);
    assert_eq!(cancel(&stage, MessageKey::new(1), None).await, 0);
    assert_eq!(stage.state(scheduled(stage.endpoints[1], messages[0])).await, CANCELLED);
    for id in [stage.first(messages[0]), stage.first(messages[1]), scheduled(stage.endpoints[1], messages[1])] {
        assert_eq!(stage.state(id).await, DeliveryState::Pending { due: None });
    }
}

/// A try that is on the wire when its delivery is cancelled cannot be called back.
pub async fn a_cancelled_delivery_is_brought_back_by_its_arrival_only<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let messages = stage.accept_many(8, START).await;
    let ids: Vec<_> = messages.iter().map(|message| stage.first(*message)).collect();
    let (handed, spilled) = ids.split_at(4);
    stage.store().spill(stage.store().tenure(), unordered(spilled.to_vec()), at(1)).await.unwrap();
    for message in &messages {
        assert_eq!(cancel(&stage, *message, None).await, 1);
    }
    let now = at(DAY + 1);
    for (ids, from) in [(handed, (|settlement| settlement) as fn(Settlement) -> Settlement), (spilled, stored)] {
        let expired = Settlement { attempt: None, next: Next::Dead(DeathReason::Expired), ..refused(ids[2], now) };
        let postponed = Settlement { attempt: None, next: Next::Postponed { due: now }, ..refused(ids[3], now) };
        let outcomes = [delivered(ids[0], now), failed(ids[1], now, now), expired, postponed];
        settle(stage.store(), outcomes.into_iter().map(from).collect()).await;
        let mut states = Vec::new();
        for id in ids {
            states.push(stage.state(*id).await);
        }
        assert_eq!(states, [DeliveryState::Delivered, CANCELLED, CANCELLED, CANCELLED]);
    }
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 6 });
    let stage = stage.crash(at(2 * DAY)).await;
    assert_eq!(all_waiting(stage.store()).await, []);
}

/// The try of the first cycle is on the wire while the delivery is cancelled and replayed.
pub async fn what_arrives_late_ends_the_cycle_that_was_begun_since<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids: Vec<_> = stage.accept_many(2, START).await.into_iter().map(|message| stage.first(message)).collect();
    stage.store().spill(stage.store().tenure(), unordered(vec![ids[1]]), at(1)).await.unwrap();
    for id in &ids {
        cancel(&stage, id.message, None).await;
        let key = DeadKey { message: id.message, endpoint: id.endpoint };
        assert!(stage.store().replay(stage.app, key, at(2 * DAY), None).await.unwrap());
    }
    settle(stage.store(), vec![delivered(ids[0], at(2 * DAY)), stored(delivered(ids[1], at(2 * DAY)))]).await;
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, Stats { success: 2, ..Stats::default() });
}

pub async fn a_cancelled_delivery_can_be_replayed<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    cancel(&stage, id.message, None).await;
    let filter = DeadFilter { reason: Some(DeadReason::Cancelled), ..DeadFilter::default() };
    let found = stage.store().dead_letters(stage.app, filter, whole()).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].attempts, &found[0].last_attempt), (0, &None));
    let key = DeadKey { message: id.message, endpoint: id.endpoint };
    assert!(stage.store().replay(stage.app, key, at(2 * DAY), None).await.unwrap());
    assert_eq!(cancel(&stage, id.message, None).await, 1, "and cancelled again");
    assert_eq!(stage.state(id).await, CANCELLED);
}

pub async fn cancelling_the_first_of_a_key_lets_the_next_one_go<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let content = Content { ordering_key: Some("one".to_owned()), ..content(b"{}") };
        let id = stage.first(accept(stage.store(), NewMessage { content, ..stage.message(START) }).await);
        let settlement = failed(id, at(1), if ids.is_empty() { at(9 * DAY) } else { at(2) });
        stage.settle(Settlement { order: Some(OrderKey::of("one")), ..settlement }).await;
        ids.push(id);
    }
    assert_eq!(load(stage.store(), stage.endpoints[0], at(DAY)).await, []);
    cancel(&stage, ids[0].message, None).await;
    assert_eq!(load(stage.store(), stage.endpoints[0], at(DAY)).await, ids[1..]);
}

pub async fn a_backlog_is_what_would_be_delivered<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let lane = stage.endpoints[0];
    let backlog = async |since: Option<i64>| stage.store().backlog(lane, since.map(at)).await.unwrap();
    assert_eq!(backlog(None).await, Backlog::default());
    let mut ids = Vec::new();
    for (millis, key) in [(10, Some("a")), (20, None), (30, Some("a")), (40, Some("b")), (50, None), (60, None)] {
        let content = Content { ordering_key: key.map(str::to_owned), ..content(b"{}") };
        ids.push(stage.first(accept(stage.store(), NewMessage { content, ..stage.message(at(millis)) }).await));
    }
    let expected = Backlog { waiting: 6, oldest: Some(at(10)), since: None, newest_per_key: 5 };
    assert_eq!(backlog(None).await, expected, "on its way");
    let spilled = [(ids[0], Some(OrderKey::of("a"))), (ids[1], None), (ids[3], Some(OrderKey::of("b")))];
    stage.store().spill(stage.store().tenure(), spilled.to_vec(), at(70)).await.unwrap();
    assert_eq!(backlog(None).await, expected, "in rows as well");
    assert_eq!(backlog(Some(30)).await, Backlog { since: Some(4), ..expected });
    stage.store().resend(ids[1].message, lane, at(70), None).await.unwrap();
    assert_eq!(backlog(None).await, expected, "resends are no part of it");
    stage.settle(stored(delivered(ids[0], at(80)))).await;
    stage.settle(refused(ids[4], at(80))).await;
    stage.settle(delivered(ids[5], at(80))).await;
    let left = Backlog { waiting: 3, oldest: Some(at(20)), since: Some(2), newest_per_key: 3 };
    assert_eq!(backlog(Some(30)).await, left);
    let stage = stage.crash(at(90)).await;
    assert_eq!(stage.store().backlog(lane, Some(at(30))).await.unwrap(), left);
}

async fn expire_all<H: Harness>(stage: &Stage<H>, untried_before: Timestamp, now: Timestamp) -> usize {
    let (mut from, mut steps) = (None, 0);
    while steps < STEPS_MAX {
        steps += 1;
        from = stage.store().expire(stage.endpoints[0], from, untried_before, now).await.expect("it expires");
        if from.is_none() {
            return steps;
        }
    }
    panic!("expiring does not end");
}

pub async fn what_has_waited_too_long_expires<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let mut ids: Vec<DeliveryId> = Vec::new();
    for millis in [0, 1, 2, 1_000] {
        ids.push(stage.first(stage.accept(at(millis)).await));
    }
    let [tried, patient, untried, young] = ids[..] else { unreachable!("four were accepted") };
    let waiting = |id, give_up_at: i64| Settlement {
        progress: Progress { attempts: 1, give_up_at: Some(at(give_up_at)), ..Progress::default() },
        ..failed(id, at(10), at(DAY))
    };
    settle(stage.store(), vec![waiting(tried, HOUR), waiting(patient, HOUR + 1)]).await;
    stage.store().spill(stage.store().tenure(), unordered(vec![untried, young]), at(1_000)).await.unwrap();
    stage
        .store()
        .spill(stage.store().tenure(), unordered(vec![scheduled(stage.endpoints[1], untried.message)]), at(1_000))
        .await
        .unwrap();
    stage.store().resend(untried.message, stage.endpoints[0], at(1_000), None).await.unwrap();
    let delayed = NewMessage { owed: vec![stage.endpoints[0]], ..message(stage.app, at(1_000)) };
    let later = stage.first(accept(stage.store(), later(delayed, Some(at(2 * DAY)))).await);

    expire_all(&stage, at(2), at(HOUR - 1)).await;
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap().dead, 0, "not before its time");
    expire_all(&stage, at(1_000), at(HOUR)).await;
    let over = DeliveryState::Dead { at: at(HOUR), reason: DeathReason::Expired };
    assert_eq!((stage.state(tried).await, stage.state(untried).await), (over, over));
    let left = load_in(stage.store(), stage.endpoints[0], Ordering::None, Timestamp::from_millis(i64::MAX)).await;
    let mut left: Vec<_> = left.deliveries.iter().map(|waiting| waiting.id).collect();
    left.sort_unstable();
    let mut expected = vec![patient, young, later, manual(stage.endpoints[0], untried.message)];
    expected.sort_unstable();
    assert_eq!(left, expected, "of this lane, and only what is over");
    expire_all(&stage, at(HOUR), at(HOUR)).await;
    assert_eq!(stage.state(later).await, DeliveryState::Pending { due: Some(at(2 * DAY)) }, "its time has not begun");
    assert_eq!(
        stage.state(scheduled(stage.endpoints[1], untried.message)).await,
        DeliveryState::Pending { due: Some(at(1_000)) }
    );
}

pub async fn a_long_lane_expires_in_parts<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids: Vec<_> = stage.accept_many(1_100, START).await.into_iter().map(|message| stage.first(message)).collect();
    let (over, young) = ids.split_at(1_000);
    let settlement = |id: &DeliveryId, give_up_at: i64| Settlement {
        progress: Progress { attempts: 1, give_up_at: Some(at(give_up_at)), ..Progress::default() },
        ..failed(*id, at(1), at(9 * DAY))
    };
    settle(stage.store(), over.iter().map(|id| settlement(id, HOUR)).collect()).await;
    settle(stage.store(), young.iter().map(|id| settlement(id, 2 * DAY)).collect()).await;
    assert!(expire_all(&stage, START, at(DAY)).await > 1);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 100, dead: 1_000 });
}

/// The last of many is the only one whose time is over.
pub async fn one_that_is_over_is_found_behind_many_that_are_not<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids: Vec<_> = stage.accept_many(5_001, START).await.into_iter().map(|message| stage.first(message)).collect();
    let settlement = |id: &DeliveryId, give_up_at: i64| Settlement {
        attempt: None,
        progress: Progress { attempts: 1, give_up_at: Some(at(give_up_at)), ..Progress::default() },
        ..failed(*id, at(1), at(9 * DAY))
    };
    let (last, young) = ids.split_last().expect("some were accepted");
    settle(stage.store(), young.iter().map(|id| settlement(id, 2 * DAY)).collect()).await;
    stage.settle(settlement(last, HOUR)).await;
    assert!(expire_all(&stage, START, at(DAY)).await > 1, "in parts");
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 5_000, dead: 1 });
    assert_eq!(stage.state(*last).await, DeliveryState::Dead { at: at(DAY), reason: DeathReason::Expired });
}
