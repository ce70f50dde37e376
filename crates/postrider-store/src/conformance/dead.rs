//! Dead letters: found by what is known about them, and put on their way again.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    DeliveryId, EndpointKey,
    policy::{DeathReason, Next, Ordering},
};

fn key(id: DeliveryId) -> DeadKey {
    DeadKey { message: id.message, endpoint: id.endpoint }
}

fn key_of(letter: &DeadLetter) -> DeadKey {
    DeadKey { message: letter.message.key, endpoint: letter.endpoint }
}

async fn list<H: Harness>(stage: &Stage<H>, filter: DeadFilter) -> Vec<DeadKey> {
    let letters = stage.store().dead_letters(stage.app, filter, whole()).await.expect("dead letters are listed");
    letters.iter().map(key_of).collect()
}

pub async fn a_dead_letter_tells_all_that_is_known<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(failed(id, at(1), at(5))).await;
    assert_eq!(list(&stage, DeadFilter::default()).await, [], "it is to be tried again");
    stage.settle(stored(refused(id, at(6)))).await;
    let found = stage.store().dead_letters(stage.app, DeadFilter::default(), whole()).await.unwrap();
    let [letter] = &found[..] else { panic!("one: {found:?}") };
    assert_eq!((letter.endpoint, letter.reason, letter.at), (id.endpoint, DeathReason::Permanent, at(6)));
    assert_eq!((letter.cycle, letter.replayed_at, letter.attempts), (0, None, 2));
    assert_eq!(Some(&letter.message), stage.store().message(stage.app, By::Key(id.message)).await.unwrap().as_ref());
    assert_eq!(letter.last_attempt.as_ref(), attempts_of(stage.store(), id.message).await.last());
    assert_eq!(stage.store().dead_letter(stage.app, key(id)).await.unwrap().as_ref(), Some(letter));
}

pub async fn a_message_can_be_dead_at_two_endpoints<H: Harness>() {
    let stage = Stage::<H>::set(3).await;
    let message = stage.accept(START).await;
    let [first, second, arrived] = stage.endpoints[..] else { unreachable!("three were asked for") };
    let (first, second) = (scheduled(first, message), scheduled(second, message));
    settle(
        stage.store(),
        vec![refused(first, at(1)), refused(second, at(2)), delivered(scheduled(arrived, message), at(3))],
    )
    .await;
    assert_eq!(list(&stage, DeadFilter::default()).await, [key(first), key(second)]);
    assert!(stage.store().replay(stage.app, key(first), at(DAY), None).await.unwrap());
    assert_eq!(list(&stage, DeadFilter::default()).await, [key(second)]);
    assert_eq!(all_waiting(stage.store()).await, [first]);
    let of_second = stage.store().dead_letter(stage.app, key(second)).await.unwrap().expect("it is one");
    assert_eq!((of_second.attempts, of_second.last_attempt.map(|attempt| attempt.id)), (1, Some(second)));
    assert_eq!(stage.store().dead_letter(stage.app, key(scheduled(arrived, message))).await.unwrap(), None);
}

pub async fn dead_letters_are_filtered<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let [one, two] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let send = async |event_type: &str, endpoint: EndpointKey| {
        let content = Content { event_type: event_type.to_owned(), ..content(b"{}") };
        let new = NewMessage { content, owed: vec![endpoint], ..message(stage.app, START) };
        scheduled(endpoint, accept(stage.store(), new).await)
    };
    let ended = |id, millis, status: Option<Option<u16>>, reason| Settlement {
        attempt: status.map(|status| record(at(millis), status)),
        next: Next::Dead(reason),
        ..refused(id, at(millis))
    };
    let ids = [send("a.b", one).await, send("a.b", two).await, send("c.d", one).await, send("e.f", two).await];
    settle(
        stage.store(),
        vec![
            ended(ids[0], 10, Some(Some(400)), DeathReason::Permanent),
            ended(ids[1], 20, Some(Some(503)), DeathReason::Exhausted),
            ended(ids[2], 30, Some(None), DeathReason::Exhausted),
            ended(ids[3], 40, None, DeathReason::Breaker),
        ],
    )
    .await;
    let other = add_application(stage.store(), None).await.key;
    assert_eq!(stage.store().dead_letters(other, DeadFilter::default(), whole()).await.unwrap(), []);
    let none = DeadFilter::default;
    for (name, filter, expected) in [
        ("all", none(), vec![0, 1, 2, 3]),
        ("an endpoint", DeadFilter { endpoint: Some(two.raw()), ..none() }, vec![1, 3]),
        ("no such endpoint", DeadFilter { endpoint: Some(1), ..none() }, vec![]),
        (
            "messages",
            DeadFilter { messages: vec![ids[3].message.raw(), ids[0].message.raw(), 1], ..none() },
            vec![0, 3],
        ),
        ("types", DeadFilter { event_types: vec!["c.d".to_owned(), "e.f".to_owned()], ..none() }, vec![2, 3]),
        ("a reason", DeadFilter { reason: Some(DeadReason::Exhausted), ..none() }, vec![1, 2]),
        ("a status", DeadFilter { status: Some(503), ..none() }, vec![1]),
        ("no answer", DeadFilter { status: Some(0), ..none() }, vec![2, 3]),
        ("since", DeadFilter { since: Some(at(20).as_millis()), ..none() }, vec![1, 2, 3]),
        ("until", DeadFilter { until: Some(at(20).as_millis()), ..none() }, vec![0]),
        (
            "several things",
            DeadFilter {
                endpoint: Some(one.raw()),
                messages: vec![ids[1].message.raw(), ids[2].message.raw()],
                but_cancelled: true,
                reason: Some(DeadReason::Exhausted),
                event_types: vec!["c.d".to_owned()],
                status: Some(0),
                since: Some(at(30).as_millis()),
                until: Some(at(31).as_millis()),
            },
            vec![2],
        ),
    ] {
        let expected: Vec<_> = expected.into_iter().map(|index: usize| key(ids[index])).collect();
        assert_eq!(list(&stage, filter.clone()).await, expected, "{name}");
        let count = async |limit| stage.store().count_dead_letters(stage.app, filter.clone(), limit).await.unwrap();
        assert_eq!(count(100).await, expected.len() as u64, "{name}");
        assert_eq!(count(1).await, expected.len().min(1) as u64, "{name}, up to a limit");
        assert_eq!(count(0).await, 0);
    }
}

pub async fn dead_letters_are_paged_both_ways<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let mut all = Vec::new();
    for message in stage.accept_many(5, START).await {
        all.extend(stage.endpoints.iter().map(|endpoint| scheduled(*endpoint, message)));
    }
    settle(stage.store(), all.iter().map(|id| refused(*id, at(1))).collect()).await;
    let keys: Vec<_> = all.iter().map(|id| key(*id)).collect();
    let fetch = async |page| stage.store().dead_letters(stage.app, DeadFilter::default(), page).await.unwrap();
    check_paging(&keys, fetch, key_of).await;
    for endpoint in &stage.endpoints {
        let keys: Vec<_> = keys.iter().filter(|key| key.endpoint == *endpoint).copied().collect();
        let filter = DeadFilter { endpoint: Some(endpoint.raw()), ..DeadFilter::default() };
        let fetch = async |page| stage.store().dead_letters(stage.app, filter.clone(), page).await.unwrap();
        check_paging(&keys, fetch, key_of).await;
    }
    let nothing = Page { from: None, order: Order::Descending, limit: 0 };
    assert_eq!(stage.store().dead_letters(stage.app, DeadFilter::default(), nothing).await.unwrap(), []);
}

/// A page shorter than asked for is the last one, so that nobody may stop looking before the end.
pub async fn a_rare_letter_is_found_behind_many<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids: Vec<_> = stage.accept_many(1_010, START).await.into_iter().map(|message| stage.first(message)).collect();
    let other = |id: &DeliveryId| Settlement { attempt: Some(record(at(1), Some(410))), ..refused(*id, at(1)) };
    let rare = [ids[0], ids[1_009]];
    settle(stage.store(), ids[1..1_009].iter().map(|id| refused(*id, at(1))).chain(rare.iter().map(other)).collect())
        .await;
    let filter = DeadFilter { status: Some(410), ..DeadFilter::default() };
    assert_eq!(list(&stage, filter.clone()).await, rare.map(key));
    let fetch = async |page| stage.store().dead_letters(stage.app, filter.clone(), page).await.unwrap();
    check_paging(&rare.map(key), fetch, key_of).await;
    let count = async |filter, limit| stage.store().count_dead_letters(stage.app, filter, limit).await.unwrap();
    assert_eq!(count(filter.clone(), 10).await, 2);
    assert_eq!(count(DeadFilter::default(), 2_000).await, 1_010);
    assert_eq!(count(DeadFilter::default(), 1_001).await, 1_001, "up to a limit");
}

pub async fn a_replay_begins_a_new_cycle<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let id = stage.first(stage.accept(START).await);
    stage.settle(refused(id, at(1))).await;
    while committed.try_recv().is_ok() {}
    assert!(stage.store().replay(stage.app, key(id), at(DAY), None).await.unwrap());
    let news = committed.try_recv().expect("someone is told");
    assert!(
        matches!(news[..], [Committed::Waiting { endpoint, due }] if (endpoint, due) == (id.endpoint, at(DAY))),
        "{news:?}"
    );
    let loaded = load_in(stage.store(), id.endpoint, Ordering::None, at(DAY)).await;
    let [waiting] = &loaded.deliveries[..] else { panic!("one waits: {loaded:?}") };
    assert_eq!((waiting.id, waiting.cycle, waiting.progress.attempts), (id, 1, 0));
    assert_eq!((waiting.queued_at, waiting.progress.give_up_at), (at(DAY), None), "its time begins anew");
    let letter = stage.store().dead_letter(stage.app, key(id)).await.unwrap().expect("it was one");
    assert_eq!((letter.replayed_at, letter.at), (Some(at(DAY)), at(1)));
    assert_eq!(list(&stage, DeadFilter::default()).await, [], "but is no more");

    stage.settle(Settlement { cycle: 1, ..stored(refused(id, at(DAY + 1))) }).await;
    let letter = stage.store().dead_letter(stage.app, key(id)).await.unwrap().expect("it is one again");
    assert_eq!((letter.cycle, letter.at, letter.attempts), (1, at(DAY + 1), 2));
    assert_eq!(letter.replayed_at, Some(at(DAY)), "that it was replayed stays known");
    assert_eq!(list(&stage, DeadFilter::default()).await, [key(id)]);
    let stage = stage.crash(at(2 * DAY)).await;
    assert!(stage.store().replay(stage.app, key(id), at(2 * DAY), None).await.unwrap());
    assert_eq!(all_waiting(stage.store()).await, [id]);
}

pub async fn a_letter_replayed_twice_at_once_begins_one_cycle<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(refused(id, at(1))).await;
    let replay = async || stage.store().replay(stage.app, key(id), at(DAY), None).await.unwrap();
    let (a, b, c) = tokio::join!(replay(), replay(), replay());
    assert_eq!([a, b, c].into_iter().filter(|replayed| *replayed).count(), 1);
    assert!(!replay().await, "nor later");
    let loaded = load_in(stage.store(), id.endpoint, Ordering::None, at(DAY)).await;
    let found: Vec<_> = loaded.deliveries.iter().map(|waiting| (waiting.id, waiting.cycle)).collect();
    assert_eq!(found, [(id, 1)]);
}

pub async fn a_repeated_replay_gets_the_first_answer<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let replay =
        async || stage.store().replay(stage.app, key(id), at(DAY), Some(remember(chosen(1, 1), 202, b"done"))).await;
    assert!(!replay().await.unwrap(), "it is on its way, and no dead letter");
    stage.settle(refused(id, at(1))).await;
    assert!(replay().await.unwrap(), "what was refused is not remembered");
    let repeated = replay().await;
    assert!(matches!(&repeated, Err(PutError::Repeated(answer)) if answer.status == 202), "{repeated:?}");
    let reused = stage.store().replay(stage.app, key(id), at(DAY), Some(remember(chosen(1, 2), 202, b""))).await;
    assert!(matches!(reused, Err(PutError::KeyReused)), "{reused:?}");
}

pub async fn what_cannot_be_sent_is_not_replayed<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let message = stage.accept(START).await;
    let [deleted, kept] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let (deleted, kept) = (scheduled(deleted, message), scheduled(kept, message));
    settle(stage.store(), vec![refused(deleted, at(1)), refused(kept, at(1))]).await;
    let other = add_application(stage.store(), None).await.key;
    let replay = async |app, id| stage.store().replay(app, key(id), at(DAY), None).await.unwrap();
    assert!(!replay(other, kept).await, "it is another's");
    assert_eq!(stage.store().dead_letter(other, key(kept)).await.unwrap(), None);
    stage.store().delete_endpoint(stage.app, deleted.endpoint, at(2)).await.unwrap();
    bury_all(stage.store(), at(2)).await;
    assert!(!replay(stage.app, deleted).await, "its endpoint is gone");
    stage.store().expunge_message(stage.app, message).await.unwrap();
    assert!(!replay(stage.app, kept).await, "its content is gone");
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(list(&stage, DeadFilter::default()).await.len(), 2, "they are still to be seen");
}

pub async fn what_arrived_after_all_is_no_dead_letter<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(refused(id, at(1))).await;
    stage.store().resend(id.message, id.endpoint, at(2), None).await.unwrap();
    stage.settle(stored(delivered(manual(id.endpoint, id.message), at(3)))).await;
    assert_eq!(list(&stage, DeadFilter::default()).await, []);
    assert!(!stage.store().replay(stage.app, key(id), at(4), None).await.unwrap());
    let letter = stage.store().dead_letter(stage.app, key(id)).await.unwrap().expect("that it was one is known");
    assert_eq!((letter.replayed_at, letter.attempts), (None, 2));
}
