//! Forgetting: not before its time, and then all that belongs to it.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    MessageKey, Timestamp,
    policy::{DeathReason, Ordering},
};
use std::time::Duration;

const KEEP: Retention = Retention {
    payloads: Duration::from_hours(48),
    attempts: Duration::from_hours(48),
    dead_letters: Duration::from_hours(48),
    idempotency: Duration::from_hours(24),
};

const LONG: Duration = Duration::from_hours(2_400);

async fn payload_gone<H: Harness>(stage: &Stage<H>, message: MessageKey) -> bool {
    let found = stage.store().message(stage.app, By::Key(message)).await.unwrap().expect("the record stays");
    assert_eq!(found.payload_gone, found.content.payload.is_empty());
    found.payload_gone
}

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
    let loaded = load_in(stage.store(), stage.endpoints[0], Ordering::None, at(DAY)).await;
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
                2 => stage.settle(delivered(id, when)).await,
                _ => stage.settle(refused(id, when)).await,
            }
        }
    }
    let now = at(9 * DAY + 4 * HOUR);
    tidy_up(stage.store(), now, KEEP).await;
    let stage = stage.crash(now).await;
    let left = all_messages(stage.store(), stage.app).await;
    let oldest_kept = now.minus(KEEP.payloads);
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
    assert_eq!(
        stats.success + stats.pending + stats.sending + stats.fail + stats.canceled,
        left.len() as u64,
        "all in one go"
    );
    assert!(all_waiting(stage.store()).await.iter().all(|id| left.contains(&id.message)));
    let of = AttemptsOf::Endpoint(stage.app, stage.endpoints[0]);
    let attempts = stage.store().attempts(of, AttemptFilter::default(), whole()).await.unwrap();
    assert!(attempts.iter().all(|attempt| left.contains(&attempt.id.message)));
    assert!(!stage.store().tidy(now, KEEP).await.unwrap(), "it ends");
}

pub async fn what_still_waits_is_kept_however_old<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut held = Vec::new();
    for day in 0..10 {
        let messages = stage.accept_many(6, at(day * DAY)).await;
        for (index, message) in messages.iter().enumerate() {
            let id = stage.first(*message);
            if day == 3 && index == 0 {
                stage.settle(failed(id, at(day * DAY), at(50 * DAY))).await;
                held.push(*message);
            } else {
                stage.settle(delivered(id, at(day * DAY))).await;
            }
        }
    }
    let now = at(40 * DAY);
    tidy_up(stage.store(), now, KEEP).await;
    let stage = stage.reopen(now).await;
    let left = all_messages(stage.store(), stage.app).await;
    assert!(held.iter().all(|message| left.contains(message)), "it is there");
    assert!(left.len() < 15, "and little else: {} left", left.len());
    let loaded = load_in(stage.store(), stage.endpoints[0], Ordering::None, at(50 * DAY)).await;
    assert_eq!(loaded.deliveries.len(), 1);
    assert!(loaded.deliveries[0].letter.payload.is_some(), "with its payload");
}

pub async fn forgetting_goes_on_after_a_crash<H: Harness>() {
    let mut stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let now = at(20 * DAY);
    let (mut all, mut newest) = (Vec::new(), Vec::new());
    for day in 0..6 {
        newest = stage.accept_many(4, at(day * DAY)).await;
        all.extend(newest.iter().map(|message| refused(stage.first(*message), now)));
    }
    settle(stage.store(), all).await;
    let mut steps = 0;
    while stage.store().tidy(now, KEEP).await.unwrap() {
        steps += 1;
        assert!(steps < STEPS_MAX, "tidying ends");
        let known = all_messages(stage.store(), stage.app).await;
        stage = stage.crash(now).await;
        assert_eq!(all_messages(stage.store(), stage.app).await, known, "what is forgotten does not come back");
        assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: known.len() as u64 });
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
    stage.settle(delivered(stage.first(first), START)).await;
    for day in 0..10 {
        for message in stage.accept_many(4, at(day * DAY)).await {
            stage.settle(delivered(stage.first(message), at(day * DAY))).await;
        }
    }
    tidy_up(stage.store(), at(10 * DAY), KEEP).await;
    let second = accept(stage.store(), named(at(10 * DAY))).await;
    assert!(second > first);
    let found = stage.store().message(stage.app, By::Uid("one".to_owned())).await.unwrap();
    assert_eq!(found.map(|found| found.key), Some(second));
}

pub async fn what_is_on_its_way_is_not_forgotten<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let ids: Vec<_> = stage.accept_many(3, START).await.into_iter().map(|message| stage.first(message)).collect();
    for day in 1..10 {
        for message in stage.accept_many(4, at(day * DAY)).await {
            stage.settle(delivered(stage.first(message), at(day * DAY))).await;
        }
    }
    let now = at(10 * DAY);
    tidy_up(stage.store(), now, KEEP).await;
    settle(stage.store(), vec![delivered(ids[0], now), failed(ids[1], now, now), refused(ids[2], now)]).await;
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 1, dead: 1 });
    for (id, attempts) in ids.iter().zip([1, 1, 1]) {
        assert_eq!(attempts_of(stage.store(), id.message).await.len(), attempts);
    }
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

pub async fn payloads_go_before_the_rest_if_asked<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let keep = Retention { attempts: LONG, ..KEEP };
    let mut messages = Vec::new();
    for hour in 0..10 {
        let message = stage.accept(at(hour * HOUR)).await;
        for endpoint in &stage.endpoints {
            stage.settle(delivered(scheduled(*endpoint, message), at(hour * HOUR))).await;
        }
        messages.push(message);
    }
    for (now, gone) in [(0, 0), (48 * HOUR, 0), (48 * HOUR + 1, 1), (52 * HOUR, 4), (51 * HOUR, 4), (100 * HOUR, 10)] {
        tidy_up(stage.store(), at(now), keep).await;
        for (index, message) in messages.iter().enumerate() {
            assert_eq!(payload_gone(&stage, *message).await, index < gone, "number {index} at {now}");
        }
    }
    let stage = stage.crash(at(100 * HOUR)).await;
    assert_eq!(attempts_of(stage.store(), messages[0]).await[0].record, record(START, Some(200)), "attempts stay");
}

pub async fn a_payload_that_is_needed_outlives_its_time<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let keep = Retention { attempts: LONG, ..KEEP };
    let messages = stage.accept_many(5, START).await;
    let [retried, resent, handed, arrived, spilled] = messages[..] else { unreachable!("five were accepted") };
    for message in &messages {
        stage.settle(delivered(scheduled(stage.endpoints[1], *message), at(1))).await;
    }
    let id = stage.first(retried);
    stage.settle(failed(id, at(1), at(90 * DAY))).await;
    for message in [resent, arrived] {
        stage.settle(delivered(stage.first(message), at(1))).await;
    }
    stage.store().resend(resent, stage.endpoints[0], at(90 * DAY), None).await.unwrap();
    stage.store().spill(stage.store().tenure(), unordered(vec![stage.first(spilled)]), at(90 * DAY)).await.unwrap();
    tidy_up(stage.store(), at(10 * DAY), keep).await;
    let gone = async |stage: &Stage<H>| {
        let mut gone = Vec::new();
        for message in &messages {
            gone.push(payload_gone(stage, *message).await);
        }
        gone
    };
    let kept = gone(&stage).await;
    assert_eq!(kept[..3], [false, false, false], "what is still to be sent is kept");
    stage.store().expunge_message(stage.app, spilled).await.unwrap();
    assert!(payload_gone(&stage, spilled).await, "unless someone asks for it");

    settle(
        stage.store(),
        vec![
            stored(delivered(id, at(10 * DAY))),
            stored(delivered(manual(stage.endpoints[0], resent), at(10 * DAY))),
            delivered(stage.first(handed), at(10 * DAY)),
        ],
    )
    .await;
    let stage = stage.reopen(at(10 * DAY)).await;
    tidy_up(stage.store(), at(10 * DAY), keep).await;
    tidy_up(stage.store(), at(10 * DAY), keep).await;
    assert_eq!(gone(&stage).await, [true; 5], "and goes when it is not needed any more");
}

pub async fn attempts_go_before_the_rest_if_asked<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let keep = Retention { payloads: LONG, dead_letters: LONG, ..KEEP };
    let ids: Vec<_> = stage.accept_many(4, START).await.into_iter().map(|message| stage.first(message)).collect();
    let waits = failed(ids[3], at(1), at(90 * DAY));
    settle(stage.store(), vec![delivered(ids[0], at(1)), refused(ids[1], at(1)), waits]).await;
    stage.settle(failed(ids[2], at(1), at(DAY))).await;
    stage.settle(stored(delivered(ids[2], at(DAY)))).await;
    let blank = async |stage: &Stage<H>| {
        let mut blank = Vec::new();
        for id in &ids {
            for attempt in attempts_of(stage.store(), id.message).await {
                assert_eq!(attempt.expunged, attempt.record.response.is_empty());
                assert_eq!(attempt.expunged, attempt.record.url.is_empty());
                blank.push(attempt.expunged);
            }
        }
        blank
    };
    tidy_up(stage.store(), at(2 * DAY), keep).await;
    assert_eq!(blank(&stage).await, [false, false, false, false, false], "not before their time");
    tidy_up(stage.store(), at(2 * DAY + HOUR), keep).await;
    assert_eq!(blank(&stage).await, [true, true, true, false, true], "each by its own time");
    tidy_up(stage.store(), at(4 * DAY), keep).await;
    assert_eq!(blank(&stage).await, [true; 5]);

    // What is sent once more afterwards makes new attempts, which have a time of their own.
    let key = DeadKey { message: ids[1].message, endpoint: ids[1].endpoint };
    assert!(stage.store().replay(stage.app, key, at(4 * DAY), None).await.unwrap());
    stage.settle(Settlement { cycle: 1, ..stored(delivered(ids[1], at(4 * DAY))) }).await;
    stage.store().resend(ids[0].message, ids[0].endpoint, at(4 * DAY), None).await.unwrap();
    stage.settle(stored(delivered(manual(ids[0].endpoint, ids[0].message), at(4 * DAY)))).await;
    stage.settle(stored(delivered(ids[3], at(4 * DAY)))).await;
    let stage = stage.crash(at(5 * DAY)).await;
    tidy_up(stage.store(), at(5 * DAY), keep).await;
    assert_eq!(blank(&stage).await, [true, false, true, false, true, true, true, false]);
    tidy_up(stage.store(), at(7 * DAY), keep).await;
    assert_eq!(blank(&stage).await, [true; 8]);

    assert_eq!(stage.state(ids[2]).await, DeliveryState::Delivered, "how it went stays known");
    assert_eq!(stage.state(ids[1]).await, DeliveryState::Delivered);
    let found = attempts_of(stage.store(), ids[1].message).await;
    let statuses: Vec<_> = found.iter().map(|attempt| attempt.record.status).collect();
    assert_eq!(statuses, [Some(400), Some(200)]);
    assert!(!payload_gone(&stage, ids[0].message).await);
}

pub async fn a_great_history_is_forgotten_in_parts<H: Harness>() {
    let mut stage = Stage::<H>::set(1).await;
    let keep = Retention { attempts: LONG, ..KEEP };
    let messages = stage.accept_many(1_300, START).await;
    settle(stage.store(), messages.iter().map(|message| delivered(stage.first(*message), at(1))).collect()).await;
    let mut steps = 0;
    while stage.store().tidy(at(10 * DAY), keep).await.unwrap() {
        stage = stage.crash(at(10 * DAY)).await;
        steps += 1;
        assert!(steps < STEPS_MAX, "it ends");
    }
    assert!(steps > 1, "in several steps");
    for message in messages.iter().step_by(97) {
        assert!(payload_gone(&stage, *message).await);
    }
    assert!(payload_gone(&stage, messages[1_299]).await);
}

/// More of them than one step takes, and more than one piece at a time.
pub async fn dead_letters_go_with_their_messages<H: Harness>() {
    let mut stage = Stage::<H>::set(3).await;
    let mut messages = Vec::new();
    for day in 0..2 {
        messages.extend(stage.accept_many(900, at(day * DAY)).await);
        tidy_up(stage.store(), at((day + 1) * DAY), KEEP).await;
    }
    // They die just before they go, so that it is not their own time that takes them away.
    for message in messages {
        let all = stage.endpoints.iter().map(|endpoint| refused(scheduled(*endpoint, message), at(10 * DAY)));
        settle(stage.store(), all.collect()).await;
    }
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 5_400 });
    let mut steps = 0;
    while stage.store().tidy(at(10 * DAY), KEEP).await.unwrap() {
        stage = stage.crash(at(10 * DAY)).await;
        steps += 1;
        assert!(steps < STEPS_MAX, "it ends");
        let known = all_messages(stage.store(), stage.app).await;
        let listed = stage.store().dead_letters(stage.app, DeadFilter::default(), whole()).await.unwrap();
        assert!(listed.iter().all(|letter| known.contains(&letter.message.key)), "none is listed without its message");
    }
    assert_eq!(all_messages(stage.store(), stage.app).await, []);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 0 });
}

/// Payloads and what was answered go when it is asked; that there was such a message, and why it is dead, stays.
pub async fn a_dead_letter_keeps_its_message_to_the_end<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let keep = Retention { dead_letters: Duration::from_hours(240), ..KEEP };
    let mut ids = Vec::new();
    for day in 0..4 {
        for message in stage.accept_many(3, at(day * DAY)).await {
            stage.settle(refused(stage.first(message), at(day * DAY))).await;
            ids.push(stage.first(message));
        }
    }
    tidy_up(stage.store(), at(9 * DAY), keep).await;
    let stage = stage.reopen(at(9 * DAY)).await;
    let listed = stage.store().dead_letters(stage.app, DeadFilter::default(), whole()).await.unwrap();
    assert_eq!(listed.len(), ids.len(), "none before its time");
    for id in &ids {
        assert!(payload_gone(&stage, id.message).await);
        assert!(attempts_of(stage.store(), id.message).await.iter().all(|attempt| attempt.expunged));
    }
    tidy_up(stage.store(), at(30 * DAY), keep).await;
    let left = all_messages(stage.store(), stage.app).await;
    assert!(left.len() < 4, "then they go with the rest: {left:?}");
}

pub async fn dead_letters_leave_the_list_after_their_time<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let keep = Retention { payloads: LONG, attempts: LONG, dead_letters: Duration::from_hours(24), ..KEEP };
    let ids: Vec<_> = stage.accept_many(2, START).await.into_iter().map(|message| stage.first(message)).collect();
    settle(stage.store(), vec![refused(ids[0], at(0)), refused(ids[1], at(HOUR))]).await;
    let listed = async || {
        let found = stage.store().dead_letters(stage.app, DeadFilter::default(), whole()).await.unwrap();
        found.iter().map(|letter| letter.message.key).collect::<Vec<_>>()
    };
    tidy_up(stage.store(), at(DAY), keep).await;
    assert_eq!(listed().await, [ids[0].message, ids[1].message], "not before their time");
    tidy_up(stage.store(), at(DAY + 1), keep).await;
    assert_eq!(listed().await, [ids[1].message]);
    let key = |index: usize| DeadKey { message: ids[index].message, endpoint: ids[index].endpoint };
    assert_eq!(stage.store().dead_letter(stage.app, key(0)).await.unwrap(), None);
    assert!(!stage.store().replay(stage.app, key(0), at(2 * DAY), None).await.unwrap());
    assert_eq!(stage.store().count_dead_letters(stage.app, DeadFilter::default(), 10).await.unwrap(), 1);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 1 });
    let over = DeliveryState::Dead { at: START, reason: DeathReason::Permanent };
    assert_eq!(stage.state(ids[0]).await, over, "it is dead all the same");
}

pub async fn ended_tasks_are_forgotten<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let task = |key: i64, status| Task {
        key: TaskKey(key),
        app: stage.app,
        kind: TaskKind::Purge,
        total: None,
        done: 0,
        changed: 0,
        status,
        created_at: START,
        updated_at: START,
    };
    let mut keys = Vec::new();
    for status in [TaskStatus::Finished, TaskStatus::Running, TaskStatus::Cancelled] {
        let key = stage.store().mint(START).await.unwrap();
        stage.store().start_task(task(key, status), None).await.unwrap();
        keys.push(TaskKey(key));
    }
    let listed = async || {
        let found = stage.store().tasks(TaskFilter::default(), whole()).await.unwrap();
        found.iter().map(|task| task.key).collect::<Vec<_>>()
    };
    tidy_up(stage.store(), at(2 * DAY), KEEP).await;
    assert_eq!(listed().await, keys, "not before their time");
    tidy_up(stage.store(), at(2 * DAY + 1), KEEP).await;
    assert_eq!(listed().await, [keys[1]], "what still runs is kept");
}

pub async fn counters_that_nothing_uses_are_forgotten<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let mut number = async |key: &str, when: Timestamp| {
        let content = Content { ordering_key: Some(key.to_owned()), ..content(b"{}") };
        let message = accept(stage.store(), NewMessage { content, ..stage.message(when) }).await;
        stage.settle(delivered(stage.first(message), when)).await;
        let mut found = None;
        while let Ok(news) = committed.try_recv() {
            for news in news {
                if let Committed::Message { letter, .. } = news {
                    found = letter.sequences.first().map(|(_, number)| *number);
                }
            }
        }
        found
    };
    assert_eq!((number("a", START).await, number("b", START).await), (Some(1), Some(1)));
    assert_eq!(number("a", at(DAY)).await, Some(2));
    tidy_up(stage.store(), at(2 * DAY + HOUR), KEEP).await;
    assert_eq!((number("a", at(2 * DAY + HOUR)).await, number("b", at(2 * DAY + HOUR)).await), (Some(3), Some(1)));
}

pub async fn many_messages_are_expunged_at_once<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let messages = stage.accept_many(7, START).await;
    let other = add_application(stage.store(), None).await.key;
    let foreign = accept(stage.store(), message(other, START)).await;
    let asked = vec![messages[6], foreign, messages[0], MessageKey::new(1), messages[6]];
    let found = stage.store().expunge_messages(stage.app, asked).await.unwrap();
    assert_eq!(found, [true, false, true, false, true]);
    for (index, message) in messages.iter().enumerate() {
        assert_eq!(payload_gone(&stage, *message).await, index == 0 || index == 6, "number {index}");
    }
    let spared = stage.store().message(other, By::Key(foreign)).await.unwrap().expect("it is known");
    assert!(!spared.payload_gone);
    assert!(stage.store().expunge_messages(stage.app, Vec::new()).await.unwrap().is_empty());
}
