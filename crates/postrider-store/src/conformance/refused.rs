//! What sources did not take.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use bytes::Bytes;
use postrider_engine::{AppKey, Timestamp};
use std::time::Duration;

const KEEP: Retention = Retention {
    payloads: Duration::from_hours(480),
    attempts: Duration::from_hours(480),
    dead_letters: Duration::from_hours(480),
    idempotency: Duration::from_hours(24),
};

async fn refused(store: &dyn Store, app: AppKey, at: Timestamp) -> Refused {
    Refused {
        key: RefusedKey(store.mint(at).await.unwrap()),
        app,
        at,
        status: 401,
        reason: "no signature matches \"it\"".to_owned(),
        headers: vec![("x-a".to_owned(), "\u{e9}".to_owned()), ("x-a".to_owned(), "2".to_owned())],
        body: Bytes::from_static(&[0, 255, b'{']),
    }
}

async fn keys(store: &dyn Store, app: AppKey) -> Vec<RefusedKey> {
    store.refused(app, whole()).await.unwrap().iter().map(|found| found.key).collect()
}

pub async fn what_was_refused_comes_back_and_is_paged<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let (ours, theirs) = (AppKey::new(7), AppKey::new(8));
    let mut all = Vec::new();
    for _ in 0..5 {
        let ours = refused(store, ours, START).await;
        store.add_to_refused(vec![ours.clone(), refused(store, theirs, START).await]).await.unwrap();
        all.push(ours);
    }
    assert_eq!(store.refused(ours, whole()).await.unwrap(), all);
    let expected: Vec<RefusedKey> = all.iter().map(|one| one.key).collect();
    check_paging(&expected, async |page| store.refused(ours, page).await.unwrap(), |found| found.key).await;
    assert_eq!(keys(store, theirs).await.len(), 5);
    let harness = harness.crash(at(1)).await;
    assert_eq!(harness.store().refused(ours, whole()).await.unwrap(), all);
}

pub async fn of_each_source_the_newest_are_kept<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let (loud, quiet) = (AppKey::new(7), AppKey::new(8));
    store.add_to_refused(vec![refused(store, quiet, START).await]).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..REFUSED_MAX + 3 {
        all.push(refused(store, loud, START).await);
    }
    let expected: Vec<RefusedKey> = all.iter().skip(3).map(|one| one.key).collect();
    for some in all.chunks(400) {
        store.add_to_refused(some.to_vec()).await.unwrap();
    }
    let page = Page { limit: REFUSED_MAX * 2, ..whole() };
    let found: Vec<RefusedKey> = store.refused(loud, page).await.unwrap().iter().map(|found| found.key).collect();
    assert_eq!(found, expected);
    assert_eq!(keys(store, quiet).await.len(), 1);
}

pub async fn what_was_refused_is_forgotten_after_its_time_and_with_its_source<H: Harness>() {
    let harness = H::fresh(Grain::Usual).await;
    let store = harness.store();
    let (ours, theirs) = (add_application(store, None).await.key, add_application(store, None).await.key);
    let (old, new) = (refused(store, ours, START).await, refused(store, ours, at(60_000)).await);
    let other = refused(store, theirs, at(60_000)).await;
    store.add_to_refused(vec![old, new.clone(), other.clone()]).await.unwrap();
    let now = at(30_000).plus(REFUSED_MEMORY);
    while store.tidy(now, KEEP).await.unwrap() {}
    assert_eq!(keys(store, ours).await, [new.key]);
    store.delete_application(ours, now).await.unwrap();
    assert_eq!(keys(store, ours).await, []);
    assert_eq!(keys(store, theirs).await, [other.key]);
}
