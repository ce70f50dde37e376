//! Reading on from a place, and the places that consumers have come to.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{AppKey, MessageKey, Timestamp};

/// Later than everything that is sent, so that all of it is within the horizon.
const LATE: i64 = 60_000;

fn from_the_start(until: MessageKey) -> ReadOn {
    let sieve = Sieve::default();
    ReadOn { past: MessageKey::new(0), until, sieve, limit: 100, look_max: 1_000, bytes_max: 1 << 20 }
}

fn keys(read: &WasRead) -> Vec<MessageKey> {
    read.messages.iter().map(|message| message.key).collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn send(store: &dyn Store, app: AppKey, event_type: &str, channels: &[&str], at: Timestamp) -> MessageKey {
    let mut new = message(app, at);
    new.content.event_type = event_type.to_owned();
    new.content.channels = names(channels);
    accept(store, new).await
}

pub async fn messages_are_read_on_in_their_order<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let other = add_application(stage.store(), None).await.key;
    let mut all = Vec::new();
    for second in 0..12 {
        all.push(stage.accept(at(second * 1_000)).await);
        accept(stage.store(), message(other, at(second * 1_000))).await;
    }
    let store = stage.store();
    let until = store.horizon(at(LATE)).await.unwrap();
    let whole = store.read_on(stage.app, from_the_start(until)).await.unwrap();
    assert_eq!(keys(&whole), all);
    assert_eq!((whole.to, whole.more), (all[11], false));
    assert_eq!(whole.messages[3], store.message(stage.app, By::Key(all[3])).await.unwrap().unwrap());

    let (mut found, mut past, mut steps) = (Vec::new(), MessageKey::new(0), 0);
    loop {
        let wanted = ReadOn { past, limit: 5, ..from_the_start(until) };
        let read = store.read_on(stage.app, wanted).await.unwrap();
        found.extend(keys(&read));
        (past, steps) = (read.to, steps + 1);
        if !read.more {
            break;
        }
        assert_eq!(read.messages.len(), 5);
    }
    assert_eq!((found, past, steps), (all.clone(), all[11], 3));

    let none = ReadOn { past: until, ..from_the_start(until) };
    let read = store.read_on(stage.app, none).await.unwrap();
    assert_eq!((keys(&read), read.to, read.more), (vec![], until, false));
    let half = ReadOn { until: all[6], ..from_the_start(until) };
    assert_eq!(keys(&store.read_on(stage.app, half).await.unwrap()), all[..=6]);
}

pub async fn a_sieve_lets_types_and_channels_through<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let app = add_application(store, None).await.key;
    let sent = [("a", &["x"][..]), ("b", &["x", "y"]), ("a", &["y"]), ("c", &[]), ("a", &["x", "y"])];
    let mut all = Vec::new();
    for (event_type, channels) in sent {
        all.push(send(store, app, event_type, channels, START).await);
    }
    let until = store.horizon(at(LATE)).await.unwrap();
    let read = async |sieve: Sieve, look_max: usize| {
        let read = store.read_on(app, ReadOn { sieve, look_max, ..from_the_start(until) }).await.unwrap();
        let found = keys(&read).into_iter().map(|key| all.iter().position(|other| *other == key).unwrap());
        (found.collect::<Vec<_>>(), all.iter().position(|key| *key == read.to), read.more)
    };
    let whole = |(found, to, more): (Vec<usize>, Option<usize>, bool)| {
        assert_eq!((to, more), (Some(4), false), "also past what does not fit");
        found
    };
    let event_types = Some(names(&["a", "c"]));
    let any_channel = Some(names(&["y", "z"]));
    assert_eq!(whole(read(Sieve { event_types: event_types.clone(), ..Sieve::default() }, 100).await), [0, 2, 3, 4]);
    let both = Sieve { event_types, any_channel: any_channel.clone(), channel: None };
    assert_eq!(whole(read(both, 100).await), [2, 4]);
    let sieve = Sieve { any_channel, channel: Some("x".to_owned()), ..Sieve::default() };
    assert_eq!(whole(read(sieve.clone(), 100).await), [1, 4]);
    assert_eq!(read(sieve, 3).await, (vec![1], Some(2), true), "it stops looking and says how far it came");
    let nothing = Sieve { event_types: Some(names(&["d"])), ..Sieve::default() };
    assert_eq!(read(nothing, 4).await, (vec![], Some(3), true));
}

pub async fn long_payloads_come_a_few_at_a_time<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let app = add_application(store, None).await.key;
    let mut all = Vec::new();
    for size in [40, 40, 200, 1] {
        let mut new = message(app, START);
        new.content.payload = vec![b'1'; size].into();
        all.push(accept(store, new).await);
    }
    let until = store.horizon(at(LATE)).await.unwrap();
    let mut past = MessageKey::new(0);
    for expected in [&all[..2], &all[2..3], &all[3..]] {
        let wanted = ReadOn { past, bytes_max: 100, ..from_the_start(until) };
        let read = store.read_on(app, wanted).await.unwrap();
        assert_eq!(keys(&read), expected);
        past = read.to;
    }
    store.expunge_message(app, all[2]).await.unwrap();
    let read = store.read_on(app, ReadOn { bytes_max: 100, ..from_the_start(until) }).await.unwrap();
    assert_eq!(keys(&read), all, "what is gone has no length");
    assert!(read.messages[2].payload_gone);
}

pub async fn nothing_is_added_behind_a_horizon<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let first = stage.accept(at(1_000)).await;
    let horizon = stage.store().horizon(at(LATE)).await.unwrap();
    assert!(horizon >= first);
    // Whoever's clock is behind.
    let late = stage.accept(at(2_000)).await;
    assert!(late > horizon);
    // However far the clock is behind what was seen, what is there comes into sight.
    let next = stage.store().horizon(at(2_000)).await.unwrap();
    assert!(next >= late, "{next:?} {late:?}");
    let latest = stage.accept(at(2_000)).await;
    assert!(latest > next);
    let stage = stage.crash(at(3_000)).await;
    let after = stage.store().horizon(at(3_000)).await.unwrap();
    assert!(after >= latest);
    assert!(stage.accept(at(3_000)).await > after);
}

fn stride(app: AppKey, poller: i64, consumer: &str, to: i64, how: Way, second: i64) -> Stride {
    let (poller, consumer) = (PollerKey(poller), consumer.to_owned());
    Stride { app, poller, consumer, to: MessageKey::new(to), how, at: at(second * 1_000) }
}

pub async fn a_consumers_place_is_kept_and_goes_forward_unless_he_seeks<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let (app, other) = (add_application(store, None).await.key, add_application(store, None).await.key);
    assert_eq!(store.consumer(PollerKey(1), "Ä b").await.unwrap(), None);
    let forward = |seeks| Way::Forward { seeks };
    let steps = [
        ("Ä b", 20, forward(Some(0)), (20, 0)),
        ("Ä b", 10, forward(Some(0)), (20, 0)),
        ("Ä b", 10, Way::Anywhere, (10, 1)),
        ("Ä b", 30, forward(Some(0)), (10, 1)),
        ("Ä b", 15, forward(Some(1)), (15, 1)),
        ("a", 0, Way::Anywhere, (0, 1)),
        ("a", 7, forward(None), (7, 1)),
    ];
    for (second, (name, to, how, expected)) in (0..).zip(steps) {
        let moved = store.move_consumer(stride(app, 1, name, to, how, second), None).await.unwrap();
        assert_eq!((moved.place.raw(), moved.seeks), expected, "{name} {to} {how:?}");
    }
    store.move_consumer(stride(other, 2, "a", 5, forward(None), 9), None).await.unwrap();
    let place = |name: &str, place, seeks, second: i64| {
        let (name, place, moved_at) = (name.to_owned(), MessageKey::new(place), at(second * 1_000));
        Consumer { name, place, seeks, moved_at }
    };
    let expected = [place("a", 7, 1, 6), place("Ä b", 15, 1, 4)];
    assert_eq!(store.consumers(PollerKey(1)).await.unwrap(), expected);
    let harness = harness.crash(at(20_000)).await;
    let store = harness.store();
    assert_eq!(store.consumers(PollerKey(1)).await.unwrap(), expected);
    assert_eq!(store.consumer(PollerKey(1), "Ä b").await.unwrap(), Some(place("Ä b", 15, 1, 4)));
    assert_eq!(store.consumers(PollerKey(2)).await.unwrap(), [place("a", 5, 0, 9)]);
    assert!(store.forget_consumers(PollerKey(2), None).await.unwrap());
    assert!(!store.forget_consumers(PollerKey(2), None).await.unwrap());
    assert_eq!(store.consumers(PollerKey(2)).await.unwrap(), []);
    assert!(!store.forget_consumers(PollerKey(1), Some("b")).await.unwrap());
    assert!(store.forget_consumers(PollerKey(1), Some("a")).await.unwrap());
    assert_eq!(store.consumers(PollerKey(1)).await.unwrap(), expected[1..]);
    store.delete_application(app, at(30_000)).await.unwrap();
    assert_eq!(store.consumers(PollerKey(1)).await.unwrap(), []);
}

pub async fn a_poller_has_so_many_consumers<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let app = add_application(store, None).await.key;
    for number in 0..CONSUMERS_MAX {
        let stride = stride(app, 1, &format!("c{number}"), 1, Way::Forward { seeks: None }, 0);
        store.move_consumer(stride, None).await.unwrap();
    }
    let kept = Some(remember(chosen(1, 1), 200, b"moved"));
    let refused = store.move_consumer(stride(app, 1, "one more", 1, Way::Anywhere, 0), kept.clone()).await;
    assert!(matches!(refused, Err(PutError::Full)), "{refused:?}");
    store.move_consumer(stride(app, 1, "c3", 2, Way::Forward { seeks: None }, 0), None).await.unwrap();
    store.move_consumer(stride(app, 2, "one more", 1, Way::Forward { seeks: None }, 0), kept.clone()).await.unwrap();
    let repeated = store.move_consumer(stride(app, 2, "one more", 9, Way::Forward { seeks: None }, 0), kept).await;
    assert!(matches!(&repeated, Err(PutError::Repeated(answer)) if answer.body == "moved"), "{repeated:?}");
    assert_eq!(store.consumer(PollerKey(2), "one more").await.unwrap().unwrap().place, MessageKey::new(1));
    assert_eq!(store.consumers(PollerKey(1)).await.unwrap().len(), CONSUMERS_MAX);
}
