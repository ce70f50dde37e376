//! Load, settle, spill, resend: a delivery is in exactly one place at any time.

use super::{Harness, fixtures::*};
use crate::*;
use bytes::Bytes;
use postrider_engine::{
    DeliveryId, EndpointKey, OrderKey, Timestamp,
    policy::{DeathReason, DisableReason, Next, Ordering, Progress},
};
use std::time::Duration;

pub async fn a_first_try_that_arrives_leaves_nothing_waiting<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let message = stage.accept(START).await;
    stage.settle(delivered(stage.first(message), at(1))).await;
    assert_eq!(stage.state(stage.first(message)).await, DeliveryState::Delivered);
    let other = scheduled(stage.endpoints[1], message);
    assert_eq!(stage.state(other).await, DeliveryState::Pending { due: None }, "still on its way");
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 0 });
}

pub async fn a_retry_is_loaded_when_due_and_not_before<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let message = stage.accept(START).await;
    stage.settle(failed(stage.first(message), at(1), at(1_000))).await;
    assert_eq!(stage.state(stage.first(message)).await, DeliveryState::Sending { due: at(1_000) });

    let early = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(999), 10).await.unwrap();
    assert_eq!((early.deliveries.len(), early.more, early.next_due), (0, false, Some(at(1_000))));
    let due = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(1_000), 10).await.unwrap();
    assert_eq!((due.deliveries.len(), due.more, due.next_due), (1, false, None));
    assert_eq!(due.deliveries[0].id, stage.first(message));

    stage.settle(stored(failed(stage.first(message), at(1_001), at(3_000)))).await;
    assert_eq!(load(stage.store(), stage.endpoints[0], at(2_999)).await, [], "the wait is a new one");
    assert_eq!(load(stage.store(), stage.endpoints[0], at(3_000)).await, [stage.first(message)]);
}

pub async fn what_is_due_is_loaded_in_order_and_up_to_the_limit<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let messages = stage.accept_many(6, START).await;
    let dues = [500, 100, 400, 300, 200, 9_000];
    for (message, due) in messages.iter().zip(dues) {
        stage.settle(failed(stage.first(*message), at(1), at(due))).await;
        stage.settle(failed(scheduled(stage.endpoints[1], *message), at(1), at(50))).await;
    }
    let by_due = [1, 4, 3, 2, 0, 5].map(|index| stage.first(messages[index]));
    for (now, limit, expected, more, next_due) in [
        (at(99), 10, &by_due[..0], false, Some(at(100))),
        (at(300), 10, &by_due[..3], false, Some(at(400))),
        (at(300), 3, &by_due[..3], false, Some(at(400))),
        (at(300), 2, &by_due[..2], true, Some(at(400))),
        (at(500), 1, &by_due[..1], true, Some(at(9_000))),
        (at(9_000), 6, &by_due[..6], false, None),
        (at(9_000), 5, &by_due[..5], true, None),
        (at(300), 0, &by_due[..0], true, Some(at(400))),
    ] {
        let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, now, limit).await.unwrap();
        let ids: Vec<_> = loaded.deliveries.iter().map(|delivery| delivery.id).collect();
        assert_eq!((&ids[..], loaded.more, loaded.next_due), (expected, more, next_due), "{limit} at {now:?}");
    }
    let unknown = stage.store().load(EndpointKey::new(5), Ordering::Keyed, at(DAY), 10).await.unwrap();
    assert_eq!((unknown.deliveries.len(), unknown.more, unknown.next_due), (0, false, None));
}

/// However much a load brings at once, asking again brings the rest, and nothing is left out.
pub async fn a_heavy_lane_is_loaded_in_parts<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let payload = Bytes::from(vec![b'x'; 1024 * 1024]);
    for millis in 0..12 {
        let content = Content { payload: payload.clone(), ..content(b"") };
        let key = accept(stage.store(), NewMessage { content, ..stage.message(START) }).await;
        stage.store().spill(stage.store().tenure(), unordered(vec![stage.first(key)]), at(millis)).await.unwrap();
    }
    let mut loaded = 0;
    loop {
        let found = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(DAY), 100).await.unwrap();
        assert!(!found.deliveries.is_empty(), "a load brings something");
        for delivery in found.deliveries {
            loaded += 1;
            stage.settle(stored(delivered(delivery.id, at(DAY)))).await;
        }
        if !found.more {
            break;
        }
    }
    assert_eq!(loaded, 12);
}

pub async fn a_load_tells_how_far_a_delivery_has_come<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let received = Received {
        passed_on: vec![("x-github-event".to_owned(), "push".to_owned())],
        kept: vec![("x-hub-signature-256".to_owned(), "sha256=\u{e9}".to_owned())],
    };
    let headers = received.passed_on.clone();
    let content =
        Content { content_type: Some("text/plain".to_owned()), received: Some(received), ..content(b"hello") };
    let trace = TraceContext {
        parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
        state: Some("congo=t61rcWkgMzE".to_owned()),
    };
    let new = NewMessage { content, trace: Some(trace.clone()), ..stage.message(START) };
    let message = accept(stage.store(), new).await;
    let progress = Progress {
        attempts: 3,
        give_up_at: Some(at(7)),
        last_delay: Some(Duration::from_millis(4_321)),
        ambiguous: 2,
        ambiguous_since: Some(at(5)),
    };
    stage.settle(Settlement { cycle: 2, progress, ..failed(stage.first(message), at(90), at(100)) }).await;

    let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(100), 10).await.unwrap();
    let [delivery] = &loaded.deliveries[..] else { panic!("one delivery: {loaded:?}") };
    assert_eq!((delivery.id, delivery.cycle, delivery.progress), (stage.first(message), 2, progress));
    assert_eq!((delivery.due, delivery.queued_at, delivery.order), (at(100), START, None));
    let expected = Letter {
        message,
        app: stage.app,
        event_type: "invoice.paid".to_owned(),
        content_type: Some("text/plain".to_owned()),
        payload: Some(Bytes::from_static(b"hello")),
        accepted_at: START,
        order: None,
        sequences: Vec::new(),
        trace: Some(trace),
        headers,
    };
    assert_eq!(*delivery.letter, expected);
}

pub async fn lanes_are_found_with_their_earliest_due_time<H: Harness>() {
    let stage = Stage::<H>::set(3).await;
    let [first, second, third] = stage.endpoints[..] else { unreachable!("three were asked for") };
    let (one, two) = (stage.accept(START).await, stage.accept(START).await);
    for (id, due) in [(scheduled(first, one), 90), (scheduled(first, two), 40), (scheduled(third, one), 70)] {
        stage.settle(failed(id, at(1), at(due))).await;
    }
    stage.settle(delivered(scheduled(second, one), at(1))).await;
    let expected = [(first, at(40)), (third, at(70))].map(|(endpoint, next_due)| LaneFound { endpoint, next_due });
    let mut lanes = stage.store().lanes(Shards::ALL).await.unwrap();
    lanes.sort_by_key(|lane| lane.endpoint);
    assert_eq!(lanes, expected);
}

pub async fn a_dead_letter_says_why<H: Harness>() {
    use DeathReason::{EndpointGone, Exhausted, Expired, Permanent};
    let stage = Stage::<H>::set(1).await;
    for (reason, millis) in [Permanent, Exhausted, Expired, EndpointGone].into_iter().zip(1..) {
        let id = stage.first(stage.accept(START).await);
        stage.settle(Settlement { next: Next::Dead(reason), ..refused(id, at(millis)) }).await;
        assert_eq!(stage.state(id).await, DeliveryState::Dead { at: at(millis), reason });
        assert_eq!(attempts_of(stage.store(), id.message).await[0].death, Some(reason));

        let untried = stage.first(stage.accept(START).await);
        stage.settle(Settlement { attempt: None, next: Next::Dead(reason), ..refused(untried, at(millis)) }).await;
        assert_eq!(stage.state(untried).await, DeliveryState::Dead { at: at(millis), reason });
        assert_eq!(attempts_of(stage.store(), untried.message).await, []);
    }
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 8 });
}

pub async fn settling_a_stored_delivery_ends_its_wait<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.accept_many(3, START).await.into_iter().map(|message| stage.first(message)).collect::<Vec<_>>();
    for id in &ids {
        stage.settle(failed(*id, at(1), at(2))).await;
    }
    stage.settle(stored(delivered(ids[0], at(3)))).await;
    stage.settle(stored(refused(ids[1], at(3)))).await;
    assert_eq!(all_waiting(stage.store()).await, [ids[2]]);
    assert_eq!(stage.state(ids[0]).await, DeliveryState::Delivered);
    assert_eq!(stage.state(ids[1]).await, DeliveryState::Dead { at: at(3), reason: DeathReason::Permanent });
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 1, dead: 1 });
}

pub async fn a_postponed_delivery_waits_and_is_charged_nothing<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let postponed = Settlement {
        attempt: None,
        progress: Progress::default(),
        next: Next::Postponed { due: at(50) },
        ..delivered(id, at(1))
    };
    stage.settle(postponed.clone()).await;
    assert_eq!(stage.state(id).await, DeliveryState::Pending { due: Some(at(50)) });
    assert_eq!(attempts_of(stage.store(), id.message).await, []);
    stage.settle(stored(Settlement { next: Next::Postponed { due: at(90) }, ..postponed })).await;
    let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(90), 10).await.unwrap();
    assert_eq!((loaded.deliveries[0].due, loaded.deliveries[0].progress), (at(90), Progress::default()));
}

pub async fn what_is_spilled_can_be_loaded<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let messages = stage.accept_many(3, START).await;
    let ids: Vec<_> = messages.iter().map(|message| stage.first(*message)).collect();
    stage.store().spill(stage.store().tenure(), unordered(ids.clone()), at(10)).await.unwrap();
    assert_eq!(load(stage.store(), stage.endpoints[0], at(9)).await, []);
    let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(10), 10).await.unwrap();
    for (delivery, id) in loaded.deliveries.iter().zip(&ids) {
        assert_eq!((delivery.id, delivery.due, delivery.cycle), (*id, at(10), 0));
        assert_eq!(delivery.progress, Progress::default());
        assert_eq!(delivery.letter.payload.as_deref(), Some(b"{}".as_slice()));
        assert_eq!(stage.state(*id).await, DeliveryState::Pending { due: Some(at(10)) });
    }
    assert_eq!(loaded.deliveries.len(), 3);
    stage.settle(stored(delivered(ids[1], at(11)))).await;
    assert_eq!(all_waiting(stage.store()).await, [ids[0], ids[2]]);
}

pub async fn several_settlements_are_one_commit<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let message = stage.accept(START).await;
    let other = scheduled(stage.endpoints[1], message);
    settle(stage.store(), vec![delivered(stage.first(message), at(1)), failed(other, at(1), at(9))]).await;
    let states = stage.store().deliveries(message).await.unwrap();
    let expected =
        [(stage.endpoints[0], DeliveryState::Delivered), (stage.endpoints[1], DeliveryState::Sending { due: at(9) })];
    assert_eq!(states, expected);
    settle(stage.store(), vec![]).await;
}

pub async fn an_endpoint_that_is_gone_is_disabled<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let mut committed = stage.store().committed();
    let id = stage.first(stage.accept(START).await);
    while committed.try_recv().is_ok() {}
    stage.settle(Settlement { disable: Some(DisableReason::Gone), ..refused(id, at(5)) }).await;
    let [gone, other] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let endpoint = stage.store().endpoint_of_lane(gone).await.unwrap().expect("it is not deleted");
    let disabled = Some(Disabled { why: DisableReason::Gone, at: at(5) });
    assert_eq!((endpoint.disabled, endpoint.version, endpoint.updated_at), (disabled, 2, at(5)));
    assert_eq!(stage.store().endpoint_of_lane(other).await.unwrap().expect("it is there").disabled, None);
    let news = committed.try_recv().expect("the change is announced");
    assert!(matches!(news[..], [Committed::Settings { app }] if app == stage.app), "{news:?}");
    let stale = stage.store().put_endpoint(endpoint, Expect::Version(1), None).await;
    assert!(matches!(stale, Err(PutError::Changed)), "{stale:?}");
}

pub async fn a_failed_resend_leaves_the_schedule_as_it_was<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let by_hand = manual(id.endpoint, id.message);
    stage.settle(failed(id, at(1), at(1_000))).await;
    stage.store().resend(id.message, id.endpoint, at(10), None).await.unwrap();
    assert_eq!(load(stage.store(), id.endpoint, at(10)).await, [by_hand]);
    assert_eq!(stage.state(id).await, DeliveryState::Sending { due: at(1_000) });

    let record = Some(record(at(11), Some(503)));
    let failure = stored(Settlement { attempt: record, next: Next::Nothing, ..delivered(by_hand, at(11)) });
    stage.settle(failure).await;
    let loaded = stage.store().load(id.endpoint, Ordering::Keyed, at(1_000), 10).await.unwrap();
    let [waiting] = &loaded.deliveries[..] else { panic!("one waits: {loaded:?}") };
    assert_eq!((waiting.id, waiting.due, waiting.progress.attempts), (id, at(1_000), 1));
    let attempts = attempts_of(stage.store(), id.message).await;
    assert_eq!(attempts.iter().map(|attempt| attempt.id).collect::<Vec<_>>(), [id, by_hand]);
}

pub async fn a_resend_that_arrives_ends_the_schedule<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(failed(id, at(1), at(1_000))).await;
    stage.store().resend(id.message, id.endpoint, at(10), None).await.unwrap();
    stage.settle(stored(delivered(manual(id.endpoint, id.message), at(11)))).await;
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stage.state(id).await, DeliveryState::Delivered);
    assert_eq!(stats(stage.store(), id.endpoint).await, Stats { success: 1, ..Stats::default() });
}

/// One that waits for its retry, and one that has not been tried and is in its lane's memory only.
pub async fn a_resend_that_arrives_tells_the_lane_what_it_ended<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let order = Some(OrderKey::of("k"));
    let ids: Vec<_> = stage.accept_many(3, START).await.into_iter().map(|message| stage.first(message)).collect();
    stage.settle(Settlement { order, ..failed(ids[0], at(1), at(DAY)) }).await;
    stage.store().spill(stage.store().tenure(), vec![(ids[1], order)], at(2)).await.unwrap();
    let mut committed = stage.store().committed();
    for id in [ids[0], ids[2]] {
        stage.store().resend(id.message, id.endpoint, at(3), None).await.unwrap();
        while committed.try_recv().is_ok() {}
        stage.settle(stored(delivered(manual(id.endpoint, id.message), at(4)))).await;
        let news = committed.try_recv().expect("the lane is told");
        assert!(
            matches!(news[..], [Committed::Cancelled { endpoint, which: Cancelled::One(message) }]
                if scheduled(endpoint, message) == id),
            "{news:?}"
        );
    }
    assert_eq!(ids_of_keyed(&stage).await, [ids[1]], "which was held back by the first");
    let backlog = stage.store().backlog(ids[0].endpoint, None).await.unwrap();
    assert_eq!(backlog.waiting, 1, "nothing else is on its way");
    stage.settle(failed(ids[2], at(5), at(6))).await;
    assert_eq!(
        stage.store().counts(Shards::ALL).await.unwrap(),
        Counts { waiting: 1, dead: 0 },
        "a try that was on the wire"
    );

    stage.store().resend(ids[0].message, ids[0].endpoint, at(7), None).await.unwrap();
    while committed.try_recv().is_ok() {}
    stage.settle(stored(delivered(manual(ids[0].endpoint, ids[0].message), at(8)))).await;
    assert!(committed.try_recv().is_err(), "there was nothing left to end");
    let stage = stage.crash(at(9)).await;
    assert_eq!(ids_of_keyed(&stage).await, [ids[1]]);
}

async fn ids_of_keyed<H: Harness>(stage: &Stage<H>) -> Vec<DeliveryId> {
    ids(&load_in(stage.store(), stage.endpoints[0], Ordering::Keyed, at(HOUR)).await)
}

pub async fn a_resend_that_arrives_takes_the_dead_letter_away<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let by_hand = manual(id.endpoint, id.message);
    stage.settle(refused(id, at(1))).await;
    stage.store().resend(id.message, id.endpoint, at(10), None).await.unwrap();
    let dead = DeliveryState::Dead { at: at(1), reason: DeathReason::Permanent };
    assert_eq!(stage.state(id).await, dead, "until it arrives");
    stage.settle(stored(Settlement { next: Next::Nothing, ..refused(by_hand, at(11)) })).await;
    assert_eq!(stage.state(id).await, dead, "the failure of a resend changes nothing");

    stage.store().resend(id.message, id.endpoint, at(20), None).await.unwrap();
    stage.settle(stored(delivered(by_hand, at(21)))).await;
    assert_eq!(stage.state(id).await, DeliveryState::Delivered);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 0 });
}

pub async fn a_resend_is_announced_and_asked_twice_waits_once<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(delivered(id, at(1))).await;
    let mut committed = stage.store().committed();
    while committed.try_recv().is_ok() {}
    for _ in 0..2 {
        stage.store().resend(id.message, id.endpoint, at(10), None).await.unwrap();
        let news = committed.try_recv().expect("a resend is announced");
        let expected = (id.endpoint, at(10));
        assert!(matches!(news[..], [Committed::Waiting { endpoint, due }] if (endpoint, due) == expected), "{news:?}");
    }
    assert_eq!(all_waiting(stage.store()).await, [manual(id.endpoint, id.message)]);
    assert_eq!(stage.state(id).await, DeliveryState::Delivered, "what arrived stays delivered");
}

/// A resend may arrive while a try of the schedule is on the wire. Whatever becomes of that try, it must not bring
/// back what has been delivered.
pub async fn what_arrived_stays_delivered_whatever_fails_later<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let postponed = |id, when| Settlement { attempt: None, next: Next::Postponed { due: at(99) }, ..refused(id, when) };
    type Failure = fn(DeliveryId, Timestamp) -> Settlement;
    let failures: [(&str, Failure); 3] =
        [("retry", |id, when| failed(id, when, at(99))), ("dead", refused), ("postponed", postponed)];
    for (index, (name, failure)) in failures.into_iter().enumerate() {
        for has_row in [false, true] {
            let id = stage.first(stage.accept(START).await);
            if has_row {
                stage.settle(failed(id, at(1), at(2))).await;
            }
            stage.store().resend(id.message, id.endpoint, at(3), None).await.unwrap();
            stage.settle(stored(delivered(manual(id.endpoint, id.message), at(4)))).await;
            stage.settle(Settlement { handed: !has_row, ..failure(id, at(5)) }).await;
            assert_eq!(stage.state(id).await, DeliveryState::Delivered, "{name}");
            assert_eq!(all_waiting(stage.store()).await, [], "{name}");
            let delivered_so_far = 2 * index as u64 + 1 + u64::from(has_row);
            let expected = Stats { success: delivered_so_far, ..Stats::default() };
            assert_eq!(stats(stage.store(), id.endpoint).await, expected, "{name}");
        }
    }
}

pub async fn every_delivery_is_counted_exactly_once<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids: Vec<_> = stage.accept_many(8, START).await.into_iter().map(|message| stage.first(message)).collect();
    stage.store().spill(stage.store().tenure(), unordered(vec![ids[0], ids[1]]), at(1)).await.unwrap();
    settle(
        stage.store(),
        vec![
            failed(ids[2], at(2), at(50)),
            failed(ids[3], at(2), at(50)),
            delivered(ids[4], at(2)),
            delivered(ids[5], at(2)),
            delivered(ids[6], at(2)),
            refused(ids[7], at(2)),
        ],
    )
    .await;
    let lane = ids[0].endpoint;
    let expected = Stats { success: 3, pending: 2, sending: 2, fail: 1, canceled: 0 };
    assert_eq!(stats(stage.store(), lane).await, expected);

    for message in [ids[0], ids[4], ids[7]].map(|id| id.message) {
        stage.store().resend(message, lane, at(3), None).await.unwrap();
    }
    assert_eq!(stats(stage.store(), lane).await, expected, "a resend under way is no delivery of its own");
    for id in [ids[0], ids[4], ids[7]] {
        stage.settle(stored(delivered(manual(lane, id.message), at(4)))).await;
    }
    stage.settle(stored(delivered(ids[2], at(51)))).await;
    stage.settle(stored(refused(ids[3], at(51)))).await;
    let expected = Stats { success: 6, pending: 1, sending: 0, fail: 1, canceled: 0 };
    assert_eq!(stats(stage.store(), lane).await, expected);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 1, dead: 1 });
}
