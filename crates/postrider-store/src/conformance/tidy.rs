//! Forgetting: not before its time, and then all that belongs to it.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use std::time::Duration;

const KEEP: Retention = Retention { history: Duration::from_hours(48), idempotency: Duration::from_hours(24) };

pub async fn a_payload_expires_at_its_time<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut keys = Vec::new();
    for millis in [Some(100), Some(200), None] {
        let message = NewMessage { payload_expires_at: millis.map(at), ..stage.message(START) };
        keys.push(accept(stage.store(), message).await);
        stage.accept_many(3, START).await;
    }
    for (now, expected) in [(99, [false, false, false]), (100, [true, false, false]), (DAY, [true, true, false])] {
        tidy_up(stage.store(), at(now), KEEP).await;
        for (key, gone) in keys.iter().zip(expected) {
            let found = stage.store().message(stage.app, By::Key(*key)).await.unwrap().expect("the record stays");
            assert_eq!((found.payload_gone, found.content.payload.is_empty()), (gone, gone), "at {now}");
        }
    }
    let stage = stage.reopen(at(DAY)).await;
    let loaded = stage.store().load(stage.endpoints[0], at(DAY), 100).await.unwrap();
    let without = loaded.deliveries.iter().filter(|delivery| delivery.letter.payload.is_none()).count();
    assert_eq!((loaded.deliveries.len(), without), (12, 2), "the deliveries stay, to be ended with a reason");
}

pub async fn history_is_forgotten_when_it_is_old_enough<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut accepted = Vec::new();
    for day in 0..10 {
        for hour in [0, 1, 2, 3] {
            let when = at(day * DAY + hour * HOUR);
            let key = stage.accept(when).await;
            accepted.push((when, key));
            let id = stage.first(key);
            match hour {
                0 => stage.settle(delivered(id, when)).await,
                1 => stage.settle(refused(id, when)).await,
                2 => stage.settle(failed(id, when, at(20 * DAY))).await,
                _ => stage.store().spill(vec![id], when).await.unwrap(),
            }
        }
    }
    let now = at(9 * DAY + 4 * HOUR);
    tidy_up(stage.store(), now, KEEP).await;
    let stage = stage.crash(now).await;
    let left = all_messages(stage.store(), stage.app).await;
    let oldest_kept = now.minus(KEEP.history);
    let young: Vec<_> = accepted.iter().filter(|(when, _)| *when >= oldest_kept).map(|(_, key)| *key).collect();
    assert!(left.ends_with(&young), "nothing goes before its time");
    assert!(left.len() < accepted.len() - 20, "most of what is old has gone: {} left", left.len());

    for (_, key) in &accepted {
        let known = left.contains(key);
        assert_eq!(stage.store().message(stage.app, By::Key(*key)).await.unwrap().is_some(), known);
        assert_eq!(stage.store().deliveries(*key).await.unwrap().len(), usize::from(known));
        assert_eq!(stage.store().expunge_message(stage.app, *key).await.unwrap(), known);
        if !known {
            assert_eq!(attempts_of(stage.store(), *key).await, []);
        }
    }
    let stats = stats(stage.store(), stage.endpoints[0]).await;
    assert_eq!(stats.success + stats.pending + stats.sending + stats.fail, left.len() as u64, "all in one go");
    assert!(all_waiting(stage.store()).await.iter().all(|id| left.contains(&id.message)));
    let of = AttemptsOf::Endpoint(stage.app, stage.endpoints[0]);
    let attempts = stage.store().attempts(of, AttemptFilter::default(), whole()).await.unwrap();
    assert!(attempts.iter().all(|attempt| left.contains(&attempt.id.message)));
    assert!(!stage.store().tidy(now, KEEP).await.unwrap(), "it ends");
}

pub async fn forgetting_goes_on_after_a_crash<H: Harness>() {
    let mut stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut newest = Vec::new();
    for day in 0..6 {
        newest = stage.accept_many(4, at(day * DAY)).await;
        for message in &newest {
            stage.settle(refused(stage.first(*message), at(day * DAY))).await;
        }
    }
    let now = at(20 * DAY);
    let mut steps = 0;
    while stage.store().tidy(now, KEEP).await.unwrap() {
        steps += 1;
        assert!(steps < STEPS_MAX, "tidying ends");
        let known = all_messages(stage.store(), stage.app).await;
        stage = stage.crash(now).await;
        assert_eq!(all_messages(stage.store(), stage.app).await, known, "what is forgotten does not come back");
        assert_eq!(stage.store().counts().await.unwrap(), Counts { waiting: 0, dead: known.len() as u64 });
    }
    let left = all_messages(stage.store(), stage.app).await;
    assert!(newest.ends_with(&left), "all that is old, but for the last piece: {left:?}");
    let new = stage.accept(now).await;
    assert_eq!(all_messages(stage.store(), stage.app).await.last(), Some(&new));
}

pub async fn an_idle_store_forgets_too<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let messages = stage.accept_many(3, START).await;
    for message in messages {
        stage.settle(delivered(stage.first(message), at(1))).await;
    }
    for day in 1..10 {
        tidy_up(stage.store(), at(day * DAY), KEEP).await;
    }
    assert_eq!(all_messages(stage.store(), stage.app).await, [], "although nothing came since");
    let new = stage.accept(at(10 * DAY)).await;
    let stage = stage.reopen(at(10 * DAY)).await;
    assert_eq!(all_messages(stage.store(), stage.app).await, [new]);
}

pub async fn what_is_forgotten_frees_its_names<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let content = Content { event_id: Some("one".to_owned()), ..content(b"{}") };
    let named = |when| NewMessage { content: content.clone(), idempotency: Some(chosen(1, 1)), ..stage.message(when) };
    let first = accept(stage.store(), named(START)).await;
    for day in 0..10 {
        stage.accept_many(4, at(day * DAY)).await;
    }
    tidy_up(stage.store(), at(10 * DAY), KEEP).await;
    let second = accept(stage.store(), named(at(10 * DAY))).await;
    assert!(second > first);
    let found = stage.store().message(stage.app, By::Uid("one".to_owned())).await.unwrap();
    assert_eq!(found.map(|found| found.key), Some(second));
}

pub async fn a_late_settlement_of_a_forgotten_message_leaves_no_trace<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let ids: Vec<_> = stage.accept_many(4, START).await.into_iter().map(|message| stage.first(message)).collect();
    for day in 1..10 {
        for message in stage.accept_many(4, at(day * DAY)).await {
            stage.settle(delivered(stage.first(message), at(day * DAY))).await;
        }
    }
    tidy_up(stage.store(), at(10 * DAY), KEEP).await;
    assert_eq!(stage.store().deliveries(ids[0].message).await.unwrap(), [], "forgotten on its way");
    let now = at(10 * DAY);
    let late = vec![delivered(ids[0], now), failed(ids[1], now, now), refused(ids[2], now)];
    settle(stage.store(), late).await;
    stage.store().spill(vec![ids[3]], now).await.unwrap();
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stage.store().counts().await.unwrap(), Counts { waiting: 0, dead: 0 });
}

pub async fn answers_are_forgotten_after_their_time<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let ask = async || stage.store().remember(remember(chosen(1, 1), 200, b"first"), START).await;
    ask().await.unwrap();
    tidy_up(stage.store(), at(DAY - 1), KEEP).await;
    assert!(matches!(ask().await, Err(PutError::Repeated(_))), "not before its time");
    tidy_up(stage.store(), at(DAY + 1), KEEP).await;
    ask().await.expect("forgotten, and taken as new");
}
