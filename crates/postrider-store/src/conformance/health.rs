//! How endpoints fare is kept with what was learned, and set back by a person.

use super::{Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    EndpointKey,
    policy::{Breaker, DisableReason, Health},
};
use tokio::sync::mpsc;

fn healths() -> [Health; 3] {
    [
        Health { breaker: Breaker::Closed { failures: 4 }, ..Health::default() },
        Health {
            breaker: Breaker::Open { until: at(9_000), trips: 3 },
            failing_since: Some(at(5)),
            permanent_streak: 2,
            warned: false,
        },
        Health { failing_since: Some(at(7)), permanent_streak: 99, warned: true, ..Health::default() },
    ]
}

pub async fn how_an_endpoint_fares_is_kept_with_the_outcome<H: Harness>() {
    let mut stage = Stage::<H>::set(4).await;
    for (endpoint, health) in stage.endpoints.iter().zip(healths()) {
        let id = scheduled(*endpoint, stage.accept(START).await);
        stage.settle(Settlement { health: Some(health), ..failed(id, at(9), at(99)) }).await;
        stage.settle(Settlement { health: None, ..stored(failed(id, at(99), at(999))) }).await;
    }
    let expected: Vec<_> = stage.endpoints.iter().copied().zip(healths()).collect();
    for crash in [false, true, false] {
        assert_eq!(
            stage.store().healths(Shards::ALL).await.unwrap(),
            expected,
            "only those that are not in perfect health"
        );
        for (endpoint, health) in &expected {
            assert_eq!(stage.store().health(*endpoint).await.unwrap(), *health);
        }
        assert_eq!(stage.store().health(stage.endpoints[3]).await.unwrap(), Health::default());
        stage = if crash { stage.crash(at(1_000)).await } else { stage.reopen(at(1_000)).await };
    }
    assert_eq!(stage.store().health(EndpointKey::new(1)).await.unwrap(), Health::default(), "nobody");
}

pub async fn an_endpoint_that_recovers_is_not_kept<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(Settlement { health: Some(healths()[1]), ..failed(id, at(9), at(99)) }).await;
    stage.settle(Settlement { health: Some(Health::default()), ..stored(delivered(id, at(100))) }).await;
    assert_eq!(stage.store().healths(Shards::ALL).await.unwrap(), []);
}

/// Sets the stage with one endpoint that fares badly.
async fn failing<H: Harness>() -> (Stage<H>, mpsc::UnboundedReceiver<Vec<Committed>>) {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let id = stage.first(stage.accept(START).await);
    let disable = Some(DisableReason::Failing);
    stage.settle(Settlement { health: Some(healths()[1]), disable, ..failed(id, at(9), at(99)) }).await;
    while committed.try_recv().is_ok() {}
    (stage, committed)
}

pub async fn a_person_sets_the_health_back<H: Harness>() {
    let (stage, mut committed) = failing::<H>().await;
    let lane = stage.endpoints[0];
    stage.store().reset_health(lane).await.unwrap();
    assert_eq!(stage.store().healths(Shards::ALL).await.unwrap(), []);
    let news = committed.try_recv().expect("it is announced");
    assert!(matches!(news[..], [Committed::Health { endpoint }] if endpoint == lane), "{news:?}");
}

pub async fn enabling_an_endpoint_sets_its_health_back<H: Harness>() {
    let (stage, mut committed) = failing::<H>().await;
    let (store, lane) = (stage.store(), stage.endpoints[0]);
    let disabled = store.endpoint_of_lane(lane).await.unwrap().expect("it is there");
    assert_eq!(disabled.disabled, Some(Disabled { why: DisableReason::Failing, at: at(9) }));

    let described = Endpoint { description: "still off".to_owned(), ..disabled.clone() };
    store.put_endpoint(described, Expect::Version(2), None).await.unwrap();
    assert_eq!(store.healths(Shards::ALL).await.unwrap(), [(lane, healths()[1])], "other changes leave it");
    let news = committed.try_recv().expect("the change is announced");
    assert!(matches!(news[..], [Committed::Settings { .. }]), "{news:?}");

    let enabled = Endpoint { disabled: None, ..disabled };
    let stale = store.put_endpoint(enabled.clone(), Expect::Version(2), None).await;
    assert!(matches!(stale, Err(PutError::Changed)), "{stale:?}");
    assert_eq!(store.healths(Shards::ALL).await.unwrap(), [(lane, healths()[1])], "a refused change leaves it");

    store.put_endpoint(enabled.clone(), Expect::Version(3), None).await.unwrap();
    assert_eq!(store.healths(Shards::ALL).await.unwrap(), []);
    let news = committed.try_recv().expect("both are announced");
    let [first, second] = &news[..] else { panic!("two: {news:?}") };
    assert!(matches!(first, Committed::Health { endpoint } if *endpoint == lane), "{news:?}");
    assert!(matches!(second, Committed::Settings { app } if *app == stage.app), "{news:?}");

    store.put_endpoint(enabled, Expect::Version(4), None).await.unwrap();
    let news = committed.try_recv().expect("the change is announced");
    assert!(matches!(news[..], [Committed::Settings { .. }]), "enabled as it was: {news:?}");
}

pub async fn a_deleted_endpoint_has_no_health<H: Harness>() {
    let stage = Stage::<H>::set(3).await;
    let ids = stage.endpoints.clone();
    let message = stage.accept(START).await;
    let settlement =
        |endpoint| Settlement { health: Some(healths()[0]), ..failed(scheduled(endpoint, message), at(9), at(99)) };
    stage.settle(settlement(ids[0])).await;
    stage.settle(settlement(ids[1])).await;
    stage.store().delete_endpoint(stage.app, ids[0], at(10)).await.unwrap();
    assert_eq!(stage.store().healths(Shards::ALL).await.unwrap(), [(ids[1], healths()[0])]);
    stage.settle(stored(settlement(ids[0]))).await;
    assert_eq!(
        stage.store().healths(Shards::ALL).await.unwrap(),
        [(ids[1], healths()[0])],
        "whatever is learned later"
    );
    stage.store().delete_application(stage.app, at(11)).await.unwrap();
    stage.settle(settlement(ids[2])).await;
    assert_eq!(stage.store().healths(Shards::ALL).await.unwrap(), []);
}
