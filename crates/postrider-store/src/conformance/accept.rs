//! Accepting: nothing is lost, nothing is taken twice.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use bytes::Bytes;
use postrider_engine::{EndpointKey, MessageKey, OrderKey, policy::Ordering};

pub async fn what_was_accepted_comes_back_the_same<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let payloads = [
        Bytes::from_static(b"{}"),
        Bytes::from_static(b""),
        Bytes::from_static(b"\x00\xff\xfe'; DROP TABLE message; --\xc3\x28\r\n"),
        (0..=255u8).collect(),
        (0..1024 * 1024u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect(),
    ];
    let mut accepted = Vec::new();
    for (payload, hour) in payloads.into_iter().zip(0..) {
        let content = Content {
            event_type: "user.signup".to_owned(),
            event_id: Some(format!("evt \u{1f4ec} {hour}")),
            channels: vec!["project:1".to_owned(), "Ünïcode \"quoted\"".to_owned()],
            tags: vec!["a".to_owned(), String::new()],
            content_type: Some("text/plain; charset=utf-8".to_owned()),
            ordering_key: (hour % 2 == 0).then(|| "customer \u{1f4ec}".to_owned()),
            deliver_at: None,
            received: None,
            payload,
        };
        let message = NewMessage { content: content.clone(), ..stage.message(at(hour * HOUR)) };
        accepted.push((accept(stage.store(), message).await, at(hour * HOUR), content));
    }
    let plain = stage.accept(at(9 * HOUR)).await;
    accepted.push((plain, at(9 * HOUR), content(b"{}")));

    let stage = stage.reopen(at(DAY)).await;
    for (key, accepted_at, content) in accepted {
        let expected =
            Message { key, app: stage.app, accepted_at, content, payload_gone: false, owed: stage.endpoints.clone() };
        let found = stage.store().message(stage.app, By::Key(key)).await.unwrap().expect("it was accepted");
        assert_eq!(found, expected);
        let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(DAY), 100).await.unwrap();
        let letter = loaded.deliveries.into_iter().map(|delivery| delivery.letter).find(|letter| letter.message == key);
        let letter = letter.expect("it is owed");
        assert_eq!(letter.payload.as_ref(), Some(&expected.content.payload));
        assert_eq!(letter.content_type, expected.content.content_type);
        assert_eq!((&letter.event_type, letter.app), (&expected.content.event_type, stage.app));
        assert_eq!(letter.accepted_at, expected.accepted_at);
        assert_eq!(letter.order, expected.content.ordering_key.as_deref().map(OrderKey::of));
    }
}

pub async fn a_message_is_owed_to_exactly_the_endpoints_it_was_accepted_for<H: Harness>() {
    let stage = Stage::<H>::set(3).await;
    let [first, second, third] = stage.endpoints[..] else { unreachable!("three were asked for") };
    for owed in [vec![], vec![second], vec![third, first], vec![first, second, third]] {
        let key = accept(stage.store(), NewMessage { owed: owed.clone(), ..stage.message(START) }).await;
        let message = stage.store().message(stage.app, By::Key(key)).await.unwrap().expect("it was accepted");
        assert_eq!(message.owed, owed);
        let deliveries = stage.store().deliveries(key).await.unwrap();
        let mut in_order = owed;
        in_order.sort_unstable();
        let expected: Vec<_> =
            in_order.into_iter().map(|endpoint| (endpoint, DeliveryState::Pending { due: None })).collect();
        assert_eq!(deliveries, expected);
    }
    assert_eq!(stage.store().deliveries(MessageKey::new(1)).await.unwrap(), [], "never accepted");
}

pub async fn every_commit_is_announced_in_order<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let mut committed = stage.store().committed();
    while committed.try_recv().is_ok() {}

    let accept = || stage.store().accept(stage.message(at(5)));
    let (a, b, c, d) = tokio::join!(accept(), accept(), accept(), accept());
    let mut keys = [a, b, c, d].map(|accepted| match accepted.unwrap() {
        Accepted::Now(key) => key,
        Accepted::Before(key) => panic!("taken for a repetition of {key:?}"),
    });
    keys.sort_unstable();
    let repeated = NewMessage { idempotency: Some(chosen(1, 1)), owed: vec![], ..stage.message(at(6)) };
    stage.store().accept(repeated.clone()).await.unwrap();
    stage.store().accept(repeated).await.unwrap();
    let last = stage.accept(at(7)).await;

    let mut announced = Vec::new();
    while let Ok(news) = committed.try_recv() {
        for committed in news {
            let Committed::Message { letter, owed } = committed else { panic!("only messages: {committed:?}") };
            assert_eq!(owed, stage.endpoints);
            assert_eq!(letter.payload.as_deref(), Some(b"{}".as_slice()));
            announced.push(letter.message);
        }
    }
    assert_eq!(announced, [&keys[..], &[last]].concat(), "each once; what is owed to nobody interests nobody");
}

pub async fn messages_accepted_in_order_keep_it_and_are_answered_each_by_itself<H: Harness>() {
    // One that is owed to many waits for its turn behind those that are owed to few, unless it came with them.
    let stage = Stage::<H>::set(12).await;
    let mut committed = stage.store().committed();
    while committed.try_recv().is_ok() {}
    let (one, all) = (vec![stage.endpoints[0]], stage.endpoints.clone());
    let keyed = |owed: &[EndpointKey], more: Content| NewMessage {
        owed: owed.to_vec(),
        content: Content { ordering_key: Some("k".to_owned()), ..more },
        ..stage.message(at(1))
    };
    let plain = || content(b"{}");
    let named = || Content { event_id: Some("once".to_owned()), ..plain() };
    let repeated = || NewMessage { idempotency: Some(chosen(1, 1)), ..keyed(&one, plain()) };
    let other_body = NewMessage { idempotency: Some(chosen(1, 2)), ..keyed(&one, plain()) };

    let first = accept(stage.store(), repeated()).await;
    let mut messages = vec![keyed(&all, plain()), keyed(&one, plain()), repeated(), keyed(&one, named())];
    messages.extend([keyed(&all, named()), other_body, keyed(&all, plain())]);
    messages.extend((0..100).map(|_| keyed(&one, plain())));
    let mut answers = stage.store().accept_in_order(messages).await;
    assert_eq!(answers.len(), 107);
    assert!(matches!(answers.remove(5), Err(AcceptError::KeyReused)));
    assert!(matches!(answers.remove(4), Err(AcceptError::EventIdTaken)));
    assert_eq!(answers.remove(2).unwrap(), Accepted::Before(first));
    let keys: Vec<MessageKey> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Accepted::Now(key) => key,
            Accepted::Before(key) => panic!("taken for a repetition of {key:?}"),
        })
        .collect();
    assert!(keys.is_sorted_by(|one, other| one < other), "{keys:?}");

    let mut announced = Vec::new();
    while let Ok(news) = committed.try_recv() {
        for committed in news {
            let Committed::Message { letter, .. } = committed else { panic!("only messages: {committed:?}") };
            let number = letter.sequences.iter().find(|(endpoint, _)| *endpoint == stage.endpoints[0]);
            announced.push((letter.message, number.expect("it is counted").1));
        }
    }
    let expected: Vec<_> = std::iter::once(first).chain(keys.iter().copied()).zip(1..).collect();
    assert_eq!(announced, expected);

    let stage = stage.crash(at(HOUR)).await;
    assert_eq!(all_messages(stage.store(), stage.app).await, expected.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    assert!(stage.store().accept_in_order(Vec::new()).await.is_empty());
}

pub async fn a_repeated_request_gets_the_first_answer<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    for (key, idempotency) in [chosen(1, 1), derived(2, 1)].into_iter().enumerate() {
        let message = NewMessage { idempotency: Some(idempotency), ..stage.message(at(key as i64)) };
        let first = accept(stage.store(), message.clone()).await;
        for _ in 0..2 {
            let again = stage.store().accept(message.clone()).await.unwrap();
            assert_eq!(again, Accepted::Before(first), "{idempotency:?}");
        }
    }
    assert_eq!(all_messages(stage.store(), stage.app).await.len(), 2);
}

pub async fn a_chosen_key_with_another_body_is_refused_and_changes_nothing<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let with = |idempotency| NewMessage { idempotency: Some(idempotency), ..stage.message(START) };
    let first = accept(stage.store(), with(chosen(1, 1))).await;
    let refused = stage.store().accept(with(chosen(1, 2))).await;
    assert!(matches!(refused, Err(AcceptError::KeyReused)), "{refused:?}");
    assert_eq!(all_messages(stage.store(), stage.app).await, [first]);
    assert_eq!(stage.store().accept(with(chosen(1, 1))).await.unwrap(), Accepted::Before(first), "still known");
}

pub async fn a_derived_key_with_another_body_gets_the_first_answer<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let with = |idempotency| NewMessage { idempotency: Some(idempotency), ..stage.message(START) };
    let first = accept(stage.store(), with(derived(1, 1))).await;
    assert_eq!(stage.store().accept(with(derived(1, 2))).await.unwrap(), Accepted::Before(first));
    assert_eq!(all_messages(stage.store(), stage.app).await, [first]);
}

pub async fn one_request_sent_many_times_at_once_makes_one_message<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let send = || {
        let message = NewMessage { idempotency: Some(chosen(1, 1)), ..stage.message(START) };
        stage.store().accept(message)
    };
    let answers = tokio::join!(send(), send(), send(), send(), send(), send(), send(), send());
    let answers = [answers.0, answers.1, answers.2, answers.3, answers.4, answers.5, answers.6, answers.7];
    let stored = all_messages(stage.store(), stage.app).await;
    let [only] = stored[..] else { panic!("one message, not {stored:?}") };
    let mut now = 0;
    for answer in answers {
        match answer.unwrap() {
            Accepted::Now(key) => {
                now += 1;
                assert_eq!(key, only);
            }
            Accepted::Before(key) => assert_eq!(key, only),
        }
    }
    assert_eq!(now, 1);
}

pub async fn idempotency_outlives_restarts_and_pieces<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let message = NewMessage { idempotency: Some(chosen(1, 1)), ..stage.message(START) };
    let first = accept(stage.store(), message.clone()).await;
    stage.accept_many(10, at(1)).await;
    assert_eq!(stage.store().accept(message.clone()).await.unwrap(), Accepted::Before(first), "over pieces");
    let stage = stage.reopen(at(2)).await;
    assert_eq!(stage.store().accept(message.clone()).await.unwrap(), Accepted::Before(first), "after a restart");
    let stage = stage.crash(at(3)).await;
    assert_eq!(stage.store().accept(message).await.unwrap(), Accepted::Before(first), "after a crash");
    assert_eq!(all_messages(stage.store(), stage.app).await.len(), 11);
}

pub async fn an_event_id_is_taken_once_per_application<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let with_id = |event_id: &str| {
        let content = Content { event_id: Some(event_id.to_owned()), ..content(b"{}") };
        NewMessage { content, ..stage.message(START) }
    };
    let first = accept(stage.store(), with_id("one")).await;
    let second = stage.store().accept(with_id("one")).await;
    assert!(matches!(second, Err(AcceptError::EventIdTaken)), "{second:?}");
    let remembered = NewMessage { idempotency: Some(chosen(1, 1)), ..with_id("one") };
    for _ in 0..2 {
        let again = stage.store().accept(remembered.clone()).await;
        assert!(matches!(again, Err(AcceptError::EventIdTaken)), "a refusal is not remembered as a success: {again:?}");
    }
    let other = accept(stage.store(), with_id("One")).await;
    let elsewhere = add_application(stage.store(), None).await.key;
    let there = accept(stage.store(), NewMessage { app: elsewhere, ..with_id("one") }).await;

    let find = async |app, event_id: &str| {
        let found = stage.store().message(app, By::Uid(event_id.to_owned())).await.unwrap();
        found.map(|message| message.key)
    };
    assert_eq!(find(stage.app, "one").await, Some(first));
    assert_eq!(find(stage.app, "One").await, Some(other));
    assert_eq!(find(elsewhere, "one").await, Some(there));
    assert_eq!(find(elsewhere, "One").await, None);
}

pub async fn an_event_id_stays_taken_across_restarts_and_pieces<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let content = Content { event_id: Some("one".to_owned()), ..content(b"{}") };
    let message = NewMessage { content, ..stage.message(START) };
    let first = accept(stage.store(), message.clone()).await;
    stage.accept_many(10, at(1)).await;
    let stage = stage.reopen(at(2)).await.crash(at(3)).await;
    let again = stage.store().accept(message).await;
    assert!(matches!(again, Err(AcceptError::EventIdTaken)), "{again:?}");
    let found = stage.store().message(stage.app, By::Uid("one".to_owned())).await.unwrap().expect("409 means stored");
    assert_eq!(found.key, first);
    let owed: Vec<EndpointKey> = all_waiting(stage.store()).await.iter().map(|id| id.endpoint).collect();
    assert_eq!(owed, vec![stage.endpoints[0]; 11], "and scheduled");
}
