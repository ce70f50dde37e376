//! Applications, endpoints, event types, and the answers kept for whoever asks twice.

use super::{Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    AppKey, EndpointKey,
    policy::{DeathReason, DisableReason},
};

pub async fn an_application_comes_back_as_it_was_put<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let mut application = application(AppKey::new(store.mint(START).await.unwrap()), Some("acme"));
    store.put_application(application.clone(), Expect::Absent, None).await.unwrap();
    assert_eq!(store.application(By::Key(application.key)).await.unwrap().as_ref(), Some(&application));
    assert_eq!(store.application(By::Uid("acme".to_owned())).await.unwrap().as_ref(), Some(&application));

    application = Application {
        version: 2,
        uid: None,
        name: String::new(),
        rate_limit: None,
        rules: None,
        source: None,
        pollers: None,
        metadata: Metadata::new(),
        updated_at: at(5),
        ..application
    };
    store.put_application(application.clone(), Expect::Version(1), None).await.unwrap();
    assert_eq!(store.application(By::Key(application.key)).await.unwrap(), Some(application));
    assert_eq!(store.application(By::Uid("acme".to_owned())).await.unwrap(), None);
    assert_eq!(store.application(By::Key(AppKey::new(1))).await.unwrap(), None);
}

pub async fn an_endpoint_comes_back_as_it_was_put<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let plain = endpoint(EndpointKey::new(store.mint(START).await.unwrap()), stage.app, None);
    store.put_endpoint(plain.clone(), Expect::Absent, None).await.unwrap();
    assert_eq!(store.endpoint(stage.app, By::Key(plain.key)).await.unwrap().as_ref(), Some(&plain));

    let full = Endpoint {
        version: 2,
        uid: Some("hook-1".to_owned()),
        url: "https://other.example/".to_owned(),
        description: String::new(),
        disabled: Some(Disabled { why: DisableReason::Quarantined, at: at(3) }),
        event_types: Some(vec!["a.b".to_owned(), "c,\"d".to_owned()]),
        channels: Some(vec![]),
        metadata: [("k".to_owned(), "v".to_owned()), ("".to_owned(), "'".to_owned())].into(),
        rate_limit: Some(u32::MAX),
        rules: None,
        sealed: (0..=255).collect(),
        updated_at: at(9),
        ..plain
    };
    store.put_endpoint(full.clone(), Expect::Version(1), None).await.unwrap();
    assert_eq!(store.endpoint(stage.app, By::Key(full.key)).await.unwrap().as_ref(), Some(&full));
    assert_eq!(store.endpoint(stage.app, By::Uid("hook-1".to_owned())).await.unwrap().as_ref(), Some(&full));
    assert_eq!(store.endpoint_of_lane(full.key).await.unwrap().as_ref(), Some(&full));
    assert_eq!(store.endpoint_of_lane(EndpointKey::new(1)).await.unwrap(), None);
}

pub async fn an_event_type_comes_back_as_it_was_put<H: Harness>() {
    let harness = H::fresh(super::Grain::Usual).await;
    let store = harness.store();
    let plain = event_type("user.signup");
    store.put_event_type(plain.clone(), Expect::Absent, None).await.unwrap();
    assert_eq!(store.event_type("user.signup").await.unwrap().as_ref(), Some(&plain));
    let full = EventType {
        version: 2,
        description: "ä".to_owned(),
        archived: true,
        deprecated: true,
        feature_flags: Some(vec!["beta".to_owned()]),
        group_name: Some("user".to_owned()),
        schemas: Some(r#"{"1":{}}"#.to_owned()),
        rules: None,
        updated_at: at(3),
        ..plain
    };
    store.put_event_type(full.clone(), Expect::Version(1), None).await.unwrap();
    assert_eq!(store.event_type("user.signup").await.unwrap(), Some(full));
    assert_eq!(store.event_type("User.signup").await.unwrap(), None);
    assert!(store.delete_event_type("user.signup").await.unwrap());
    assert!(!store.delete_event_type("user.signup").await.unwrap());
    assert_eq!(store.event_type("user.signup").await.unwrap(), None);
    store.put_event_type(event_type("user.signup"), Expect::Absent, None).await.expect("the name is free again");
}

pub async fn whoever_puts_second_is_told_so<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let application = add_application(store, None).await;
    let endpoint = add_endpoint(store, stage.app, None).await;
    let event_type = event_type("a.b");
    store.put_event_type(event_type.clone(), Expect::Absent, None).await.unwrap();
    for (expect, fits) in [(Expect::Version(1), true), (Expect::Version(1), false), (Expect::Version(3), false)] {
        let answers = [
            store.put_application(application.clone(), expect, None).await,
            store.put_endpoint(endpoint.clone(), expect, None).await,
            store.put_event_type(event_type.clone(), expect, None).await,
        ];
        for answer in answers {
            assert!(if fits { answer.is_ok() } else { matches!(answer, Err(PutError::Changed)) }, "{answer:?}");
        }
    }
    assert_eq!(store.application(By::Key(application.key)).await.unwrap().unwrap().version, 2);

    store.delete_endpoint(stage.app, endpoint.key, at(1)).await.unwrap();
    store.delete_application(application.key, at(1)).await.unwrap();
    store.delete_event_type("a.b").await.unwrap();
    let answers = [
        store.put_application(application, Expect::Version(2), None).await,
        store.put_endpoint(endpoint, Expect::Version(2), None).await,
        store.put_event_type(event_type, Expect::Version(2), None).await,
    ];
    for answer in answers {
        assert!(matches!(answer, Err(PutError::Changed)), "deleted meanwhile: {answer:?}");
    }
}

pub async fn a_uid_is_taken_once<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let (first, second) = (add_application(store, Some("a")).await, add_application(store, Some("b")).await);
    let new = application(AppKey::new(store.mint(START).await.unwrap()), Some("a"));
    let taken = store.put_application(new.clone(), Expect::Absent, None).await;
    assert!(matches!(taken, Err(PutError::Taken)), "{taken:?}");
    assert_eq!(store.application(By::Key(new.key)).await.unwrap(), None);
    let renamed = Application { uid: Some("a".to_owned()), ..second };
    let taken = store.put_application(renamed, Expect::Version(1), None).await;
    assert!(matches!(taken, Err(PutError::Taken)), "{taken:?}");
    store.put_application(first, Expect::Version(1), None).await.expect("its own uid is no conflict");
    add_application(store, None).await;
    add_application(store, None).await;

    add_endpoint(store, stage.app, Some("x")).await;
    let (new, other) = (endpoint(EndpointKey::new(store.mint(START).await.unwrap()), stage.app, Some("x")), stage.app);
    let taken = store.put_endpoint(new, Expect::Absent, None).await;
    assert!(matches!(taken, Err(PutError::Taken)), "{taken:?}");
    let other = add_endpoint(store, other, Some("y")).await;
    let renamed = Endpoint { uid: Some("x".to_owned()), ..other.clone() };
    let taken = store.put_endpoint(renamed, Expect::Version(1), None).await;
    assert!(matches!(taken, Err(PutError::Taken)), "{taken:?}");
    store.put_endpoint(other, Expect::Version(1), None).await.expect("its own uid is no conflict");
}

/// A refusal, and not an error: an error would take everything down that is written in the same commit.
pub async fn what_exists_is_not_put_as_new<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let application = add_application(store, Some("a")).await;
    let endpoint = add_endpoint(store, stage.app, None).await;
    let event_type = event_type("a.b");
    store.put_event_type(event_type.clone(), Expect::Absent, None).await.unwrap();
    let again = Application { name: "other".to_owned(), ..application.clone() };
    let (app, hook, kind, accepted) = tokio::join!(
        store.put_application(again, Expect::Absent, None),
        store.put_endpoint(endpoint, Expect::Absent, None),
        store.put_event_type(event_type, Expect::Absent, None),
        store.accept(stage.message(START)),
    );
    for answer in [app, hook, kind] {
        assert!(matches!(answer, Err(PutError::Taken)), "{answer:?}");
    }
    accepted.expect("a neighbour's mistake is not ours");
    assert_eq!(store.application(By::Key(application.key)).await.unwrap(), Some(application));
}

pub async fn a_uid_is_free_again_after_its_owner_is_deleted<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    for _ in 0..2 {
        let application = add_application(store, Some("a")).await;
        for _ in 0..2 {
            let endpoint = add_endpoint(store, application.key, Some("x")).await;
            assert!(store.delete_endpoint(application.key, endpoint.key, at(1)).await.unwrap());
            assert!(!store.delete_endpoint(application.key, endpoint.key, at(1)).await.unwrap());
            assert_eq!(store.endpoint(application.key, By::Key(endpoint.key)).await.unwrap(), None);
            assert_eq!(store.endpoint(application.key, By::Uid("x".to_owned())).await.unwrap(), None);
        }
        assert!(store.delete_application(application.key, at(1)).await.unwrap());
        assert!(!store.delete_application(application.key, at(1)).await.unwrap());
        assert_eq!(store.application(By::Uid("a".to_owned())).await.unwrap(), None);
    }
}

pub async fn uids_of_endpoints_are_apart_between_applications<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let other = add_application(stage.store(), None).await.key;
    let here = add_endpoint(stage.store(), stage.app, Some("x")).await;
    let there = add_endpoint(stage.store(), other, Some("x")).await;
    let by_uid = || By::Uid("x".to_owned());
    assert_eq!(stage.store().endpoint(stage.app, by_uid()).await.unwrap(), Some(here));
    assert_eq!(stage.store().endpoint(other, by_uid()).await.unwrap(), Some(there));
}

pub async fn an_endpoint_belongs_to_its_application<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let store = stage.store();
    let (key, other) = (stage.endpoints[0], add_application(store, None).await.key);
    assert_eq!(store.endpoint(other, By::Key(key)).await.unwrap(), None);
    assert_eq!(store.endpoints(other, whole()).await.unwrap(), []);
    assert!(!store.delete_endpoint(other, key, at(1)).await.unwrap());
    let moved = Endpoint { app: other, ..store.endpoint_of_lane(key).await.unwrap().expect("it is there") };
    let answer = store.put_endpoint(moved, Expect::Version(1), None).await;
    assert!(matches!(answer, Err(PutError::Changed)), "{answer:?}");
    let orphan = endpoint(EndpointKey::new(store.mint(START).await.unwrap()), AppKey::new(1), None);
    let answer = store.put_endpoint(orphan, Expect::Absent, None).await;
    assert!(matches!(answer, Err(PutError::Changed)), "its application is gone: {answer:?}");
}

pub async fn a_repeated_put_gets_the_first_answer<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let put = async |stage: &Stage<H>, idempotency, body| {
        let new = application(AppKey::new(stage.store().mint(START).await.unwrap()), None);
        stage.store().put_application(new, Expect::Absent, Some(remember(idempotency, 201, body))).await
    };
    put(&stage, chosen(1, 1), b"first").await.expect("a new application is put");
    put(&stage, derived(2, 1), b"second").await.expect("a new application is put");
    let stage = stage.crash(at(1)).await;
    for (idempotency, expected) in [
        (chosen(1, 1), Some(b"first".as_slice())),
        (chosen(1, 2), None),
        (derived(2, 1), Some(b"second")),
        (derived(2, 2), Some(b"second")),
    ] {
        match (put(&stage, idempotency, b"later").await, expected) {
            (Err(PutError::Repeated(answer)), Some(body)) => {
                assert_eq!((answer.status, answer.body.as_ref()), (201, body), "{idempotency:?}");
            }
            (Err(PutError::KeyReused), None) => {}
            (answer, _) => panic!("{idempotency:?}: {answer:?}"),
        }
    }
    assert_eq!(stage.store().applications(whole()).await.unwrap().len(), 3);

    let id = scheduled(add_endpoint(stage.store(), stage.app, None).await.key, stage.accept(at(2)).await);
    let kept = || Some(remember(chosen(3, 1), 202, b"resent"));
    stage.store().resend(id.message, id.endpoint, at(5), kept()).await.unwrap();
    stage.settle(stored(delivered(manual(id.endpoint, id.message), at(6)))).await;
    let again = stage.store().resend(id.message, id.endpoint, at(7), kept()).await;
    assert!(matches!(again, Err(PutError::Repeated(_))), "{again:?}");
    assert_eq!(all_waiting(stage.store()).await, [], "not sent once more");
}

pub async fn a_refused_put_is_not_remembered<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let owner = add_application(store, Some("a")).await;
    let new = application(AppKey::new(store.mint(START).await.unwrap()), Some("a"));
    let kept = || Some(remember(chosen(1, 1), 201, b"made"));
    for _ in 0..2 {
        let refused = store.put_application(new.clone(), Expect::Absent, kept()).await;
        assert!(matches!(refused, Err(PutError::Taken)), "{refused:?}");
    }
    store.delete_application(owner.key, at(1)).await.unwrap();
    store.put_application(new.clone(), Expect::Absent, kept()).await.expect("the uid is free now");
    let repeated = store.put_application(new, Expect::Absent, kept()).await;
    assert!(matches!(repeated, Err(PutError::Repeated(_))), "{repeated:?}");
}

pub async fn an_answer_alone_is_remembered<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    stage.store().remember(remember(chosen(1, 1), 204, b""), at(1)).await.unwrap();
    let stage = stage.reopen(at(2)).await;
    let again = stage.store().remember(remember(chosen(1, 1), 500, b"x"), at(3)).await;
    let Err(PutError::Repeated(answer)) = again else { panic!("{again:?}") };
    assert_eq!((answer.status, answer.body.as_ref()), (204, b"".as_slice()));
    let reused = stage.store().remember(remember(chosen(1, 2), 204, b""), at(3)).await;
    assert!(matches!(reused, Err(PutError::KeyReused)), "{reused:?}");
}

pub async fn a_change_of_settings_is_announced<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    let store = stage.store();
    let mut committed = store.committed();
    while committed.try_recv().is_ok() {}
    let mut heard = |what: &str, expected: AppKey| {
        let news = committed.try_recv().unwrap_or_else(|_| panic!("{what} is announced"));
        assert!(matches!(news[..], [Committed::Settings { app }] if app == expected), "{what}: {news:?}");
    };
    let application = add_application(store, None).await;
    heard("a new application", application.key);
    let endpoint = add_endpoint(store, application.key, None).await;
    heard("a new endpoint", application.key);
    store.put_endpoint(endpoint.clone(), Expect::Version(1), None).await.unwrap();
    heard("a changed endpoint", application.key);
    store.delete_endpoint(application.key, endpoint.key, at(1)).await.unwrap();
    heard("a deleted endpoint", application.key);
    store.put_application(application.clone(), Expect::Version(1), None).await.unwrap();
    heard("a changed application", application.key);
    store.delete_application(application.key, at(1)).await.unwrap();
    heard("a deleted application", application.key);

    let mut heard = |what: &str| {
        let news = committed.try_recv().unwrap_or_else(|_| panic!("{what} is announced"));
        assert!(matches!(news[..], [Committed::EventTypes]), "{what}: {news:?}");
    };
    store.put_event_type(event_type("a.b"), Expect::Absent, None).await.unwrap();
    heard("a new event type");
    store.delete_event_type("a.b").await.unwrap();
    heard("a deleted event type");
    store.delete_event_type("a.b").await.unwrap();
    assert!(committed.try_recv().is_err(), "there was nothing to delete");
}

pub async fn why_an_endpoint_is_disabled_is_kept<H: Harness>() {
    use DisableReason::{Asked, Failing, Gone, Manual, Quarantined};
    let stage = Stage::<H>::set(5).await;
    for (key, why) in stage.endpoints.iter().zip([Manual, Gone, Failing, Quarantined, Asked]) {
        let disabled = Some(Disabled { why, at: at(7) });
        let endpoint = stage.store().endpoint_of_lane(*key).await.unwrap().expect("it is there");
        stage.store().put_endpoint(Endpoint { disabled, ..endpoint }, Expect::Version(1), None).await.unwrap();
        let found = stage.store().endpoint_of_lane(*key).await.unwrap().expect("it is there");
        assert_eq!(found.disabled, disabled);

        let id = scheduled(*key, stage.accept(START).await);
        stage.settle(Settlement { disable: Some(Gone), ..refused(id, at(9)) }).await;
        let found = stage.store().endpoint_of_lane(*key).await.unwrap().expect("it is there");
        assert_eq!((found.disabled, found.version), (disabled, 2), "the first reason stays");
    }
}

pub async fn lists_of_settings_are_paged_both_ways<H: Harness>() {
    let stage = Stage::<H>::set(7).await;
    let store = stage.store();
    let mut apps = vec![stage.app];
    for _ in 0..5 {
        let app = add_application(store, None).await.key;
        add_endpoint(store, app, None).await;
        apps.push(app);
    }
    let deleted = apps.remove(3);
    store.delete_application(deleted, at(1)).await.unwrap();
    check_paging(&apps, async |page| store.applications(page).await.unwrap(), |found| found.key).await;

    let mut endpoints = stage.endpoints.clone();
    let deleted = endpoints.remove(2);
    store.delete_endpoint(stage.app, deleted, at(1)).await.unwrap();
    check_paging(&endpoints, async |page| store.endpoints(stage.app, page).await.unwrap(), |found| found.key).await;

    let names = ["a.b", "a.b.c", "a_b", "b", "z.ä"].map(str::to_owned);
    for name in names.iter().rev() {
        store.put_event_type(event_type(name), Expect::Absent, None).await.unwrap();
    }
    let fetch = async |page| store.event_types(page, Archived::Hide).await.unwrap();
    check_paging(&names, fetch, |found| found.name.clone()).await;
}

pub async fn applications_of_sources_are_listed_apart<H: Harness>() {
    let harness = H::fresh(super::Grain::Usual).await;
    let store = harness.store();
    let (mut plain, mut of_sources) = (Vec::new(), Vec::new());
    for number in 0..8 {
        let key = AppKey::new(store.mint(START).await.unwrap());
        let source = (number % 3 == 1).then(|| vec![number]);
        if source.is_some() {
            of_sources.push(key)
        } else {
            plain.push(key)
        };
        let application = Application { source, ..application(key, None) };
        store.put_application(application, Expect::Absent, None).await.unwrap();
    }
    let deleted = plain.remove(0);
    store.delete_application(deleted, at(1)).await.unwrap();
    for (kind, expected) in [(AppKind::Plain, plain), (AppKind::Source, of_sources)] {
        let fetch = async |page| store.applications_of(kind, page).await.unwrap();
        check_paging(&expected, fetch, |found| found.key).await;
    }
}

pub async fn archived_event_types_are_hidden_unless_asked_for<H: Harness>() {
    let harness = H::fresh(super::Grain::Usual).await;
    let store = harness.store();
    for (name, archived) in [("a", false), ("b", true), ("c", false)] {
        store.put_event_type(EventType { archived, ..event_type(name) }, Expect::Absent, None).await.unwrap();
    }
    for (archived, expected) in [(Archived::Hide, vec!["a", "c"]), (Archived::Show, vec!["a", "b", "c"])] {
        let found = store.event_types(whole(), archived).await.unwrap();
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), expected);
    }
    assert!(store.event_type("b").await.unwrap().expect("archived is not deleted").archived);
}

pub async fn settings_outlive_a_restart_and_a_crash<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let deleted = stage.endpoints[0];
    stage.store().put_event_type(event_type("a.b"), Expect::Absent, None).await.unwrap();
    stage.store().delete_endpoint(stage.app, deleted, at(1)).await.unwrap();
    let everything = async |stage: &Stage<H>| {
        (
            stage.store().applications(whole()).await.unwrap(),
            stage.store().endpoints(stage.app, whole()).await.unwrap(),
            stage.store().event_types(whole(), Archived::Show).await.unwrap(),
        )
    };
    let before = everything(&stage).await;
    assert_eq!(before.1.len(), 1);
    let stage = stage.crash(at(2)).await;
    assert_eq!(everything(&stage).await, before);
    let stage = stage.reopen(at(3)).await;
    assert_eq!(everything(&stage).await, before);
}

pub async fn what_waits_for_a_deleted_endpoint_becomes_dead_letters<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let messages = stage.accept_many(1_100, START).await;
    let ids: Vec<_> = messages.iter().map(|message| stage.first(*message)).collect();
    let other = scheduled(stage.endpoints[1], messages[0]);
    stage.store().spill(stage.store().tenure(), unordered([&ids[..], &[other]].concat()), at(1)).await.unwrap();
    assert!(!stage.store().bury(at(2)).await.unwrap(), "nothing is deleted yet");
    stage.store().delete_endpoint(stage.app, stage.endpoints[0], at(2)).await.unwrap();
    assert_eq!(stage.store().endpoint_of_lane(stage.endpoints[0]).await.unwrap(), None);

    assert!(stage.store().bury(at(3)).await.unwrap());
    let counts = stage.store().counts(Shards::ALL).await.unwrap();
    assert_eq!(counts.waiting + counts.dead, 1_101, "each is in one place, also half way");
    let stage = stage.crash(at(4)).await;
    bury_all(stage.store(), at(5)).await;
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, Stats { fail: 1_100, ..Stats::default() });
    let buried = stage.state(ids[1_099]).await;
    assert_eq!(buried, DeliveryState::Dead { at: at(5), reason: DeathReason::EndpointGone });
    assert!(all_waiting(stage.store()).await.contains(&other), "another lane is left alone");
    assert!(!stage.store().bury(at(6)).await.unwrap(), "it ends");
}

pub async fn burying_spares_what_was_delivered_or_already_dead<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.accept_many(3, START).await.into_iter().map(|message| stage.first(message)).collect::<Vec<_>>();
    settle(stage.store(), vec![delivered(ids[0], at(1)), refused(ids[1], at(1)), failed(ids[2], at(1), at(9))]).await;
    for id in &ids {
        stage.store().resend(id.message, id.endpoint, at(2), None).await.unwrap();
    }
    stage.store().delete_endpoint(stage.app, stage.endpoints[0], at(3)).await.unwrap();
    bury_all(stage.store(), at(4)).await;
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stage.state(ids[0]).await, DeliveryState::Delivered);
    assert_eq!(stage.state(ids[1]).await, DeliveryState::Dead { at: at(1), reason: DeathReason::Permanent });
    assert_eq!(stage.state(ids[2]).await, DeliveryState::Dead { at: at(4), reason: DeathReason::EndpointGone });
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, Stats { success: 1, fail: 2, ..Stats::default() });
}

/// What arrived once may be on its way a second time, because someone replays all that an endpoint got.
pub async fn burying_spares_what_arrived_and_was_replayed<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    stage.settle(delivered(id, at(1))).await;
    let filter = ReplayFilter { since: 0, until: at(DAY).as_millis(), ..ReplayFilter::default() };
    let task = Task {
        key: TaskKey(stage.store().mint(at(2)).await.unwrap()),
        app: stage.app,
        kind: TaskKind::BulkReplay { endpoint: id.endpoint.raw(), filter },
        total: None,
        done: 0,
        changed: 0,
        status: TaskStatus::Running,
        created_at: at(2),
        updated_at: at(2),
    };
    stage.store().start_task(task.clone(), None).await.unwrap();
    finish_task(stage.store(), task.key, at(2)).await;
    assert_eq!(all_waiting(stage.store()).await, [id]);
    stage.store().delete_endpoint(stage.app, id.endpoint, at(3)).await.unwrap();
    bury_all(stage.store(), at(4)).await;
    assert_eq!(stage.state(id).await, DeliveryState::Delivered);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 0 });
}

/// A try may be on the wire while its row is buried.
pub async fn what_arrives_while_it_is_buried_counts_as_delivered<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.accept_many(2, START).await.into_iter().map(|message| stage.first(message)).collect::<Vec<_>>();
    stage.store().spill(stage.store().tenure(), unordered(ids.clone()), at(1)).await.unwrap();
    stage.store().delete_endpoint(stage.app, stage.endpoints[0], at(2)).await.unwrap();
    bury_all(stage.store(), at(3)).await;
    stage.settle(stored(delivered(ids[0], at(4)))).await;
    stage.settle(stored(failed(ids[1], at(4), at(99)))).await;
    assert_eq!(stage.state(ids[0]).await, DeliveryState::Delivered);
    assert_eq!(stage.state(ids[1]).await, DeliveryState::Dead { at: at(3), reason: DeathReason::EndpointGone });
    assert_eq!(all_waiting(stage.store()).await, []);
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, Stats { success: 1, fail: 1, ..Stats::default() });
    assert_eq!(attempts_of(stage.store(), ids[1].message).await.len(), 1, "the try is on record");
}

pub async fn deleting_an_application_deletes_its_endpoints<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let other = add_application(stage.store(), None).await;
    let kept = add_endpoint(stage.store(), other.key, None).await;
    let message = stage.accept(START).await;
    let id = stage.first(message);
    stage.store().spill(stage.store().tenure(), unordered(vec![id]), at(1)).await.unwrap();
    assert!(stage.store().delete_application(stage.app, at(2)).await.unwrap());
    assert_eq!(stage.store().application(By::Key(stage.app)).await.unwrap(), None);
    assert_eq!(stage.store().endpoints(stage.app, whole()).await.unwrap(), []);
    for endpoint in &stage.endpoints {
        assert_eq!(stage.store().endpoint_of_lane(*endpoint).await.unwrap(), None);
    }
    assert_eq!(stage.store().endpoint_of_lane(kept.key).await.unwrap(), Some(kept));
    bury_all(stage.store(), at(3)).await;
    assert_eq!(stage.state(id).await, DeliveryState::Dead { at: at(3), reason: DeathReason::EndpointGone });
    assert!(!stage.store().delete_application(AppKey::new(1), at(4)).await.unwrap());
}
