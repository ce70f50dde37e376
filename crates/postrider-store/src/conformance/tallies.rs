//! What was counted over time.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{AppKey, EndpointKey, Timestamp};
use std::time::Duration;

const APP: TallyOf = TallyOf::Application(AppKey::new(7));
/// With the number of the application: only together with what it is does a number say whose counts they are.
const ENDPOINT: TallyOf = TallyOf::Endpoint(EndpointKey::new(7));
const KEEP: Retention = Retention {
    payloads: Duration::from_hours(48),
    attempts: Duration::from_hours(48),
    dead_letters: Duration::from_hours(48),
    idempotency: Duration::from_hours(24),
};

fn tally(span: TallySpan, at: Timestamp, of: TallyOf, what: TallyCode, count: u64) -> Tally {
    Tally { span, start: span.start_of(at), of, what, count: TallyCount::More(count) }
}

fn found_to_be(span: TallySpan, at: Timestamp, what: TallyCode, count: u64) -> Tally {
    Tally { count: TallyCount::Found(count), ..tally(span, at, TallyOf::All, what, 0) }
}

fn wanted(span: TallySpan, of: TallyOf, since: Timestamp, until: Timestamp) -> TalliesOf {
    TalliesOf { of, span, since, until }
}

async fn found(store: &dyn Store, wanted: TalliesOf) -> Vec<(i64, TallyCode, u64)> {
    let found = store.tallies(wanted).await.unwrap();
    found.into_iter().map(|counted| (counted.start.as_millis(), counted.what, counted.count)).collect()
}

pub async fn counts_add_up_by_span_subject_and_event<H: Harness>() {
    use TallySpan::{Hour, Minute};
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let (first, next) = (START, START.plus(Duration::from_mins(1)));
    let minute = |at: Timestamp| Minute.start_of(at).as_millis();
    let some = vec![
        tally(Minute, next, TallyOf::All, 1, 4),
        tally(Minute, first, TallyOf::All, 1, 2),
        tally(Minute, first, TallyOf::All, 300, 1),
        tally(Hour, first, TallyOf::All, 1, 6),
        tally(Hour, first, APP, 1, 5),
        tally(Hour, first, ENDPOINT, 1, 1),
        // The same twice in one go.
        tally(Minute, first, TallyOf::All, 1, 3),
    ];
    store.add_to_tallies(some).await.unwrap();
    store.add_to_tallies(vec![tally(Minute, first, TallyOf::All, 1, 10)]).await.unwrap();
    store.add_to_tallies(Vec::new()).await.unwrap();

    let until = next.plus(Duration::from_mins(1));
    let all = found(store, wanted(Minute, TallyOf::All, first, until)).await;
    assert_eq!(all, [(minute(first), 1, 15), (minute(first), 300, 1), (minute(next), 1, 4)]);
    assert_eq!(found(store, wanted(Minute, TallyOf::All, next, next.plus(Duration::from_millis(1)))).await, all[2..]);
    assert_eq!(found(store, wanted(Minute, TallyOf::All, until.plus(Duration::from_mins(1)), until)).await, []);
    assert_eq!(found(store, wanted(Minute, APP, first, until)).await, []);
    for (of, count) in [(TallyOf::All, 6), (APP, 5), (ENDPOINT, 1)] {
        let hour = Hour.start_of(first).as_millis();
        assert_eq!(found(store, wanted(Hour, of, first, until)).await, [(hour, 1, count)], "{of:?}");
    }
}

pub async fn what_was_found_takes_the_place_of_what_was_there<H: Harness>() {
    use TallySpan::Minute;
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let next = START.plus(Duration::from_mins(1));
    let some = vec![
        found_to_be(Minute, START, 13, 7),
        tally(Minute, START, TallyOf::All, 1, 4),
        // The same twice in one go.
        found_to_be(Minute, START, 13, 5),
        found_to_be(Minute, next, 13, 9),
    ];
    store.add_to_tallies(some).await.unwrap();
    store.add_to_tallies(vec![found_to_be(Minute, next, 13, 0)]).await.unwrap();
    let all = found(store, wanted(Minute, TallyOf::All, START, next.plus(Duration::from_millis(1)))).await;
    let minute = |at: Timestamp| Minute.start_of(at).as_millis();
    assert_eq!(all, [(minute(START), 1, 4), (minute(START), 13, 5), (minute(next), 13, 0)]);
}

pub async fn counts_add_up_by_application<H: Harness>() {
    use TallySpan::{Hour, Minute};
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let (later, other) = (START.plus(Duration::from_hours(1)), TallyOf::Application(AppKey::new(8)));
    let some = vec![
        tally(Hour, START, APP, 1, 2),
        tally(Hour, START, APP, 4, 3),
        tally(Hour, START, APP, 5, 100),
        tally(Hour, later, APP, 2, 4),
        tally(Hour, later, other, 1, 9),
        tally(Hour, START, ENDPOINT, 1, 100),
        tally(Minute, START, APP, 1, 100),
        tally(Hour, START.plus(Duration::from_hours(2)), APP, 1, 100),
    ];
    store.add_to_tallies(some).await.unwrap();
    let until = later.plus(Duration::from_millis(1));
    let mut found = store.tallies_by_application((1, 4), Hour, START, until).await.unwrap();
    found.sort_unstable();
    assert_eq!(found, [(AppKey::new(7), 9), (AppKey::new(8), 9)]);
    assert_eq!(store.tallies_by_application((0, 0), Hour, START, until).await.unwrap(), []);
}

pub async fn counts_outlive_a_crash<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    harness.store().add_to_tallies(vec![tally(TallySpan::Hour, START, APP, 2, 9)]).await.unwrap();
    let harness = harness.crash(START).await;
    let kept = found(harness.store(), wanted(TallySpan::Hour, APP, START, START.plus(Duration::from_millis(1)))).await;
    assert_eq!(kept, [(TallySpan::Hour.start_of(START).as_millis(), 2, 9)]);
}

pub async fn counts_are_forgotten_span_by_span<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let both = TallySpan::ALL.map(|span| tally(span, START, TallyOf::All, 0, 1));
    store.add_to_tallies(both.to_vec()).await.unwrap();
    let mut left = Vec::new();
    for hours in [25, 28, 24 * 61, 24 * 63] {
        while store.tidy(START.plus(Duration::from_hours(hours)), KEEP).await.unwrap() {}
        let until = START.plus(Duration::from_millis(1));
        let minutes = found(store, wanted(TallySpan::Minute, TallyOf::All, START, until)).await.len();
        let of_hours = found(store, wanted(TallySpan::Hour, TallyOf::All, START, until)).await.len();
        left.push((minutes, of_hours));
    }
    assert_eq!(left, [(1, 1), (0, 1), (0, 1), (0, 0)]);
}
