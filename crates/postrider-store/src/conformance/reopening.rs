//! Stopping, dying and starting again.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    MessageKey, Timestamp,
    policy::{Next, Ordering},
};
use std::time::Duration;

/// Where a store is shared; one that never is names none.
pub async fn a_node_sees_itself_among_the_others<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let nodes = stage.store().nodes().await.unwrap();
    let own: Vec<&Node> = nodes.iter().filter(|node| node.is_self).collect();
    match own[..] {
        [] => assert_eq!(nodes, []),
        [own] => {
            assert_eq!((own.id, own.alive, own.retiring), (stage.store().tenure().0, true, false));
            assert_eq!(nodes.iter().map(|node| node.shards).sum::<usize>(), Shards::ALL.len());
        }
        _ => panic!("there are two of it: {nodes:?}"),
    }
}

pub async fn a_crash_after_accept_loses_no_delivery<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let messages = stage.accept_many(3, START).await;
    let stage = stage.crash(at(10)).await;
    let mut owed: Vec<_> =
        stage.endpoints.iter().flat_map(|lane| messages.iter().map(|message| scheduled(*lane, *message))).collect();
    owed.sort_unstable();
    assert_eq!(all_waiting(stage.store()).await, owed, "each once");
    let lanes = stage.store().lanes(Shards::ALL).await.unwrap();
    assert!(lanes.iter().all(|lane| lane.next_due <= at(10)), "due at once: {lanes:?}");
    assert_eq!(stage.state(owed[0]).await, DeliveryState::Pending { due: Some(lanes[0].next_due) });
    for lane in &stage.endpoints {
        assert_eq!(stats(stage.store(), *lane).await, Stats { pending: 3, ..Stats::default() });
    }
}

pub async fn a_clean_stop_loses_no_delivery<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let before = stage.accept(START).await;
    stage.settle(delivered(stage.first(before), at(1))).await;
    let messages = stage.accept_many(2, at(2)).await;
    let stage = stage.reopen(at(10)).await;
    assert_eq!(all_waiting(stage.store()).await, [stage.first(messages[0]), stage.first(messages[1])]);
}

pub async fn after_a_crash_only_the_unsettled_come_back<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let messages = stage.accept_many(4, START).await;
    let ids: Vec<_> = messages.iter().map(|message| stage.first(*message)).collect();
    let untried = Settlement { attempt: None, ..refused(ids[2], at(1)) };
    settle(stage.store(), vec![delivered(ids[0], at(1)), failed(ids[1], at(1), at(5_000)), untried]).await;
    let stage = stage.crash(at(10)).await;
    let other: Vec<_> = messages.iter().map(|message| scheduled(stage.endpoints[1], *message)).collect();
    let mut expected = [&[ids[1], ids[3]], &other[..]].concat();
    expected.sort_unstable();
    assert_eq!(all_waiting(stage.store()).await, expected);
    assert_eq!(stage.state(ids[0]).await, DeliveryState::Delivered);
    assert!(matches!(stage.state(ids[2]).await, DeliveryState::Dead { .. }));
    assert_eq!(load(stage.store(), stage.endpoints[0], at(10)).await, [ids[3]], "a retry keeps its time");
}

pub async fn what_a_resend_delivered_does_not_come_back_after_a_crash<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let oldest = stage.first(stage.accept(START).await);
    let (handed, spilled) = (stage.first(stage.accept(START).await), stage.first(stage.accept(START).await));
    stage.store().spill(stage.store().tenure(), unordered(vec![spilled]), at(1)).await.unwrap();
    for id in [handed, spilled] {
        stage.store().resend(id.message, id.endpoint, at(2), None).await.unwrap();
        stage.settle(stored(delivered(manual(id.endpoint, id.message), at(3)))).await;
    }
    let stage = stage.crash(at(10)).await;
    assert_eq!(all_waiting(stage.store()).await, [oldest]);
    assert_eq!(stats(stage.store(), oldest.endpoint).await, Stats { success: 2, pending: 1, ..Stats::default() });
}

pub async fn deliveries_come_back_from_every_piece<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let messages = stage.accept_many(20, START).await;
    for message in messages.iter().filter(|message| message.raw() % 2 == 0) {
        stage.settle(delivered(stage.first(*message), at(1))).await;
    }
    let left: Vec<_> = messages.iter().filter(|key| key.raw() % 2 != 0).map(|key| stage.first(*key)).collect();
    let stage = stage.crash(at(10)).await;
    assert_eq!(all_waiting(stage.store()).await, left);
    let more = stage.accept_many(10, at(11)).await;
    let stage = stage.reopen(at(12)).await;
    let more = more.into_iter().map(|message| stage.first(message)).collect::<Vec<_>>();
    assert_eq!(all_waiting(stage.store()).await, [left, more].concat());
}

pub async fn retries_keep_their_time_across_a_crash<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(failed(id, at(1), at(1_000))).await;
    stage.store().resend(id.message, id.endpoint, at(2_000), None).await.unwrap();
    let stage = stage.crash(at(10)).await;
    let loaded = stage.store().load(id.endpoint, Ordering::Keyed, at(5_000), 10).await.unwrap();
    let found: Vec<_> = loaded.deliveries.iter().map(|found| (found.id, found.due, found.progress.attempts)).collect();
    assert_eq!(found, [(id, at(1_000), 1), (manual(id.endpoint, id.message), at(2_000), 0)]);
}

pub async fn a_second_crash_finds_the_same_deliveries<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let first = stage.first(stage.accept(START).await);
    let stage = stage.crash(at(10)).await;
    let second = stage.first(stage.accept(at(11)).await);
    let stage = stage.crash(at(20)).await.crash(at(30)).await;
    assert_eq!(all_waiting(stage.store()).await, [first, second]);
    stage.settle(stored(delivered(first, at(31)))).await;
    let stage = stage.crash(at(40)).await;
    assert_eq!(all_waiting(stage.store()).await, [second]);
}

/// Whoever waits together is written together; each gets its own answer all the same.
pub async fn many_callers_at_once_lose_nothing<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let work = async |arrives: bool| {
        let mut settled = 0;
        for round in 0..12 {
            let id = stage.first(stage.accept(at(round)).await);
            if round % 3 == 0 {
                let now = at(round);
                stage.settle(if arrives { delivered(id, now) } else { failed(id, now, at(DAY)) }).await;
                settled += 1;
            }
        }
        settled
    };
    let mut committed = stage.store().committed();
    let (a, b, c, d, e, f) = tokio::join!(work(true), work(true), work(false), work(true), work(false), work(true));
    let delivered = a + b + d + f;
    assert_eq!((delivered, c + e), (16, 8));

    let mut announced = Vec::new();
    while let Ok(news) = committed.try_recv() {
        announced.extend(news.into_iter().filter_map(|committed| match committed {
            Committed::Message { letter, .. } => Some(letter.message),
            Committed::Waiting { .. }
            | Committed::Settings { .. }
            | Committed::EventTypes
            | Committed::Health { .. }
            | Committed::Cancelled { .. }
            | Committed::Work
            | Committed::Offered { .. }
            | Committed::Wanted { .. }
            | Committed::Deposed => None,
        }));
    }
    assert_eq!(announced, all_messages(stage.store(), stage.app).await, "all of them, in the order of commit");
    let stage = stage.crash(at(HOUR)).await;
    let [first, second] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let expected = Stats { success: 16, sending: 8, pending: 48, ..Stats::default() };
    assert_eq!(stats(stage.store(), first).await, expected);
    assert_eq!(stats(stage.store(), second).await, Stats { pending: 72, ..Stats::default() });
}

pub async fn keys_grow_even_when_the_clock_goes_back<H: Harness>() {
    let mut stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut last = MessageKey::new(0);
    let mut grow = |key: MessageKey, what: &str| {
        assert!(key > last, "{what}: {key:?} after {last:?}");
        last = key;
    };
    for millis in [DAY, 0, HOUR, -DAY] {
        grow(stage.accept(at(millis)).await, "while it runs");
    }
    stage = stage.crash(at(-DAY)).await;
    grow(stage.accept(at(-DAY)).await, "after a crash");
    grow(MessageKey::new(stage.store().mint(at(2 * DAY)).await.unwrap()), "on its own");
    let settings = add_application(stage.store(), None).await.key;
    grow(MessageKey::new(settings.raw()), "of settings");
    stage = stage.crash(at(-DAY)).await;
    grow(stage.accept(at(-DAY)).await, "after settings and a crash");
    grow(MessageKey::new(stage.store().mint(at(3 * DAY)).await.unwrap()), "on its own");
    stage = stage.reopen(at(-DAY)).await;
    grow(MessageKey::new(stage.store().mint(at(-DAY)).await.unwrap()), "after a restart");
    let listed = all_messages(stage.store(), stage.app).await;
    assert!(listed.is_sorted(), "{listed:?}");
    assert_eq!(listed.len(), 6);
}

pub async fn keys_of_attempts_grow_across_a_crash_with_the_clock_set_back<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(failed(id, at(HOUR), at(HOUR))).await;
    let stage = stage.crash(at(1)).await;
    stage.settle(stored(failed(id, at(HOUR), at(HOUR)))).await;
    let stage = stage.crash(at(1)).await;
    stage.settle(stored(Settlement { next: Next::Delivered, ..delivered(id, at(2)) })).await;
    let keys: Vec<_> =
        attempts_of(stage.store(), id.message).await.iter().map(|attempt| attempt.record.status).collect();
    assert_eq!(keys, [Some(503), Some(503), Some(200)], "in the order in which they were made");
}

pub async fn notes_are_kept_and_replaced<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    assert_eq!(harness.store().note("keys").await.unwrap(), None);
    for value in [b"\x00\xff".to_vec(), Vec::new(), b"third".to_vec()] {
        harness.store().put_note("keys", value.clone()).await.unwrap();
        assert_eq!(harness.store().note("keys").await.unwrap(), Some(value));
    }
    let harness = harness.crash(at(1)).await.reopen(at(2)).await;
    assert_eq!(harness.store().note("keys").await.unwrap().as_deref(), Some(b"third".as_slice()));
    assert_eq!(harness.store().note("other").await.unwrap(), None);
}

pub async fn a_closed_store_says_so<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let store = stage.store();
    store.close().await;
    store.close().await;
    let accepted = store.accept(stage.message(START)).await;
    assert!(matches!(accepted, Err(AcceptError::Store(StoreError::Closed))), "{accepted:?}");
    let settled = store.settle(store.tenure(), std::sync::Arc::new(vec![delivered(id, at(1))])).await;
    assert!(matches!(settled, Err(StoreError::Closed)), "{settled:?}");
    let loaded = store.load(stage.endpoints[0], Ordering::Keyed, START, 1).await;
    assert!(matches!(loaded, Err(StoreError::Closed)), "{loaded:?}");
    let put = store.put_event_type(event_type("a.b"), Expect::Absent, None).await;
    assert!(matches!(put, Err(PutError::Store(StoreError::Closed))), "{put:?}");
    let retention = Retention {
        payloads: Duration::MAX,
        attempts: Duration::MAX,
        dead_letters: Duration::MAX,
        idempotency: Duration::MAX,
    };
    let tidied = store.tidy(Timestamp::from_millis(0), retention).await;
    assert!(matches!(tidied, Err(StoreError::Closed)), "{tidied:?}");
    let stage = stage.reopen(at(2)).await;
    assert_eq!(all_waiting(stage.store()).await, [id], "nothing of it was carried out");
}
