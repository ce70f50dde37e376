//! What operators are to be told of is entered with the change, once, and stays until they have been.

use super::{Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    DeliveryId, EndpointKey, MessageKey, Trigger,
    policy::{DeathReason, DisableReason, Health, Next, Progress},
};

/// An application with endpoints, and one operational endpoint.
async fn heard<H: Harness>(endpoints: usize) -> Stage<H> {
    let stage = Stage::<H>::set(endpoints).await;
    listen(stage.store()).await;
    stage
}

async fn listen(store: &dyn Store) -> Endpoint {
    store.put_application(application(OPERATIONAL, None), Expect::Absent, None).await.expect("it is put");
    add_endpoint(store, OPERATIONAL, None).await
}

async fn names(store: &dyn Store) -> Vec<String> {
    store.untold(1_000).await.unwrap().iter().map(|entry| entry.what.name()).collect()
}

fn after(attempts: u32, settlement: Settlement) -> Settlement {
    Settlement { progress: Progress { attempts, ..settlement.progress }, ..settlement }
}

pub async fn where_nobody_listens_nothing_is_entered<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let store = stage.store();
    let id = stage.first(stage.accept(START).await);
    settle(store, vec![Settlement { disable: Some(DisableReason::Gone), ..refused(id, at(1)) }]).await;
    store.enter_alert(Some(stage.app), alert("a"), at(1)).await.unwrap();
    store.delete_endpoint(stage.app, stage.endpoints[0], at(2)).await.unwrap();
    assert_eq!(names(store).await, Vec::<String>::new());
    let listener = listen(store).await;
    store.delete_endpoint(OPERATIONAL, listener.key, at(3)).await.unwrap();
    add_endpoint(store, stage.app, None).await;
    assert_eq!(names(store).await, Vec::<String>::new(), "who listened is gone");
}

pub async fn every_change_of_an_endpoint_is_entered_once<H: Harness>() {
    let stage = heard::<H>(0).await;
    let store = stage.store();
    let made = add_endpoint(store, stage.app, Some("mine")).await;
    let disabled = Some(Disabled { why: DisableReason::Manual, at: at(2) });
    let changes = [
        Endpoint { url: "https://example.org/".to_owned(), updated_at: at(1), ..made.clone() },
        Endpoint { disabled, updated_at: at(2), ..made.clone() },
        Endpoint { updated_at: at(3), ..made.clone() },
    ];
    for (version, endpoint) in (1..).zip(changes.clone()) {
        let changed = Endpoint { version: version + 1, ..endpoint };
        store.put_endpoint(changed.clone(), Expect::Version(version), None).await.unwrap();
        let refused = store.put_endpoint(changed, Expect::Version(version), None).await;
        assert!(matches!(refused, Err(PutError::Changed)), "what is refused has not happened");
    }
    assert!(store.delete_endpoint(stage.app, made.key, at(4)).await.unwrap());
    assert!(!store.delete_endpoint(stage.app, made.key, at(5)).await.unwrap());
    let key = made.key.raw();
    let expected = ["1:created", "2:updated", "3:updated", "3:disabled", "4:updated", "4:enabled", "4:deleted"];
    assert_eq!(names(store).await, expected.map(|change| format!("endpoint:{key}:{change}")));
    let entries = store.untold(1_000).await.unwrap();
    for entry in &entries {
        let Happened::Endpoint(what) = &entry.what else { panic!("{entry:?}") };
        assert_eq!((entry.app, what.uid.as_deref()), (Some(stage.app), Some("mine")), "also of what is deleted");
    }
    let times: Vec<_> = entries.iter().map(|entry| entry.at).collect();
    assert_eq!(times, [0, 1, 2, 2, 3, 3, 4].map(at));
    store.strike_out(entries.iter().map(|entry| entry.key).collect()).await.unwrap();

    let (one, two) = (add_endpoint(store, stage.app, Some("one")).await, add_endpoint(store, stage.app, None).await);
    store.delete_application(stage.app, at(6)).await.unwrap();
    let mut ended = names(store).await.split_off(2);
    ended.sort();
    let mut expected = [one.key, two.key].map(|key| format!("endpoint:{}:1:deleted", key.raw()));
    expected.sort();
    assert_eq!(ended, expected, "with the application go its endpoints");
}

pub async fn what_is_sealed_again_is_no_change<H: Harness>() {
    let stage = heard::<H>(0).await;
    let store = stage.store();
    let made = add_endpoint(store, stage.app, None).await;
    let resealed = Endpoint { sealed: vec![9], version: 2, ..made.clone() };
    store.put_endpoint(resealed, Expect::Version(1), None).await.unwrap();
    assert_eq!(names(store).await, [format!("endpoint:{}:1:created", made.key.raw())]);
}

pub async fn an_endpoint_that_is_disabled_by_its_outcomes_is_entered<H: Harness>() {
    let stage = heard::<H>(1).await;
    let store = stage.store();
    let (first, second) = (stage.accept(START).await, stage.accept(START).await);
    let health = Some(Health { failing_since: Some(at(5)), ..Health::default() });
    let disable = Some(DisableReason::Failing);
    settle(store, vec![Settlement { health, disable, ..failed(stage.first(first), at(9), at(99)) }]).await;
    settle(store, vec![Settlement { disable, ..failed(stage.first(second), at(10), at(99)) }]).await;
    let entries = store.untold(10).await.unwrap();
    assert_eq!(entries.len(), 1, "it was disabled already");
    let Happened::Endpoint(what) = &entries[0].what else { panic!("{entries:?}") };
    assert_eq!(what.endpoint, stage.endpoints[0].raw());
    assert_eq!(what.change, EndpointChange::Disabled { failing_since: Some(at(5).as_millis()) });
}

pub async fn a_delivery_that_fails_recovers_or_ends_is_entered_once<H: Harness>() {
    let stage = heard::<H>(1).await;
    let store = stage.store();
    let endpoint = stage.endpoints[0];
    let [recovers, exhausts, is_refused, arrives] =
        [stage.accept(START).await, stage.accept(START).await, stage.accept(START).await, stage.accept(START).await]
            .map(|message| scheduled(endpoint, message));
    settle(store, vec![delivered(arrives, at(1)), refused(is_refused, at(1))]).await;
    settle(store, vec![failed(recovers, at(1), at(2)), failed(exhausts, at(1), at(2))]).await;
    for attempt in 2..6 {
        let fail = |id| after(attempt, stored(failed(id, at(i64::from(attempt)), at(100))));
        settle(store, vec![fail(recovers), fail(exhausts)]).await;
    }
    let dead = Settlement { next: Next::Dead(DeathReason::Exhausted), ..stored(failed(exhausts, at(6), at(7))) };
    settle(store, vec![after(6, stored(delivered(recovers, at(6)))), after(6, dead)]).await;
    let told = |id: DeliveryId, word| format!("delivery:{}:{}:0:{word}", endpoint.raw(), id.message.raw());
    assert_eq!(
        names(store).await,
        [
            told(is_refused, "exhausted"),
            told(recovers, "failing"),
            told(exhausts, "failing"),
            told(recovers, "recovered"),
            told(exhausts, "exhausted"),
        ]
    );
    let entries = store.untold(10).await.unwrap();
    let Happened::Attempt(what) = entries[1].what.clone() else { panic!("{entries:?}") };
    assert_eq!((entries[1].app, what.started_at), (Some(stage.app), Some(at(4).as_millis())), "the fourth");
}

pub async fn what_was_tried_and_ends_while_it_waits_is_entered_and_what_was_not_is_not<H: Harness>() {
    let stage = heard::<H>(1).await;
    let store = stage.store();
    let endpoint = stage.endpoints[0];
    let [tried, untried, found_late, kept] =
        [stage.accept(START).await, stage.accept(START).await, stage.accept(START).await, stage.accept(START).await]
            .map(|message| scheduled(endpoint, message));
    let until = |settlement: Settlement, give_up_at| {
        let progress = Progress { attempts: 1, give_up_at: Some(give_up_at), ..settlement.progress };
        Settlement { progress, ..settlement }
    };
    store.spill(store.tenure(), vec![(untried, None)], at(1)).await.unwrap();
    settle(
        store,
        vec![
            until(failed(tried, at(1), at(2)), at(10)),
            until(failed(found_late, at(1), at(2)), at(10)),
            until(failed(kept, at(1), at(2)), at(HOUR)),
        ],
    )
    .await;
    // The dispatcher finds that one's time is over, and does not send it any more.
    let over = Settlement {
        attempt: None,
        next: Next::Dead(DeathReason::Expired),
        ..stored(failed(found_late, at(11), at(12)))
    };
    settle(store, vec![after(1, over)]).await;
    // The others wait in a lane that is parked.
    let mut from = None;
    loop {
        from = store.expire(endpoint, from, at(5), at(20)).await.expect("it expires");
        if from.is_none() {
            break;
        }
    }
    let told = |id: DeliveryId| format!("delivery:{}:{}:0:exhausted", endpoint.raw(), id.message.raw());
    assert_eq!(names(store).await, [told(found_late), told(tried)]);
    for entry in store.untold(10).await.unwrap() {
        let Happened::Attempt(what) = entry.what else { panic!("{entry:?}") };
        assert_eq!((entry.app, what.started_at), (Some(stage.app), None), "the last one is what there is to tell of");
    }
}

pub async fn a_resend_or_a_replay_that_arrives_is_entered<H: Harness>() {
    let stage = heard::<H>(1).await;
    let store = stage.store();
    let endpoint = stage.endpoints[0];
    let (resent, replayed) = (stage.accept(START).await, stage.accept(START).await);
    settle(store, vec![refused(scheduled(endpoint, resent), at(1)), refused(scheduled(endpoint, replayed), at(1))])
        .await;
    let told =
        |message: MessageKey, cycle: u32, word| format!("delivery:{}:{}:{cycle}:{word}", endpoint.raw(), message.raw());
    let mut expected = vec![told(resent, 0, "exhausted"), told(replayed, 0, "exhausted")];
    assert_eq!(names(store).await, expected);

    let by_hand = DeliveryId { trigger: Trigger::Manual, ..scheduled(endpoint, resent) };
    let nothing = Settlement { next: Next::Nothing, ..stored(failed(by_hand, at(2), at(3))) };
    settle(store, vec![nothing]).await;
    assert_eq!(names(store).await, expected, "a resend that fails changes nothing");
    settle(store, vec![stored(delivered(by_hand, at(4)))]).await;
    expected.push(told(resent, 0, "recovered"));
    assert_eq!(names(store).await, expected);

    let dead = DeadKey { endpoint, message: replayed };
    assert!(store.replay(stage.app, dead, at(5), None).await.unwrap());
    let again = Settlement { cycle: 1, ..stored(delivered(scheduled(endpoint, replayed), at(6))) };
    settle(store, vec![again]).await;
    expected.push(told(replayed, 1, "recovered"));
    assert_eq!(names(store).await, expected);
}

pub async fn a_late_outcome_of_what_was_cancelled_is_not_entered<H: Harness>() {
    let stage = heard::<H>(1).await;
    let store = stage.store();
    let (one, other) = (stage.accept(START).await, stage.accept(START).await);
    let (one, other) = (stage.first(one), stage.first(other));
    settle(store, vec![failed(one, at(1), at(2)), failed(other, at(1), at(2))]).await;
    for id in [one, other] {
        assert_eq!(store.cancel_message(stage.app, id.message, None, at(3)).await.unwrap(), 1);
    }
    let fourth = after(FAILING_AFTER, stored(failed(one, at(4), at(5))));
    settle(store, vec![fourth]).await;
    assert_eq!(names(store).await, Vec::<String>::new());
    settle(store, vec![after(5, stored(delivered(other, at(4))))]).await;
    let told = format!("delivery:{}:{}:0:recovered", other.endpoint.raw(), other.message.raw());
    assert_eq!(names(store).await, [told], "it arrived all the same");
}

pub async fn tasks_are_entered_when_they_end<H: Harness>() {
    let stage = heard::<H>(1).await;
    let store = stage.store();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let key = TaskKey(store.mint(START).await.unwrap());
        let kind = TaskKind::Recover {
            endpoint: stage.endpoints[0].raw(),
            since: START.as_millis(),
            until: at(HOUR).as_millis(),
        };
        let task = Task {
            key,
            app: stage.app,
            kind,
            total: None,
            done: 0,
            changed: 0,
            status: TaskStatus::Running,
            created_at: at(1),
            updated_at: at(1),
        };
        store.start_task(task, None).await.unwrap();
        keys.push(key);
    }
    assert_eq!(names(store).await, Vec::<String>::new());
    store.cancel_task(keys[1], at(2)).await.unwrap();
    store.cancel_task(keys[1], at(3)).await.unwrap();
    finish_task(store, keys[0], at(HOUR)).await;
    store.advance_task(keys[0], at(2 * HOUR)).await.unwrap();
    assert_eq!(names(store).await, [format!("task:{}", keys[1].0), format!("task:{}", keys[0].0)]);
    let ends: Vec<_> = store.untold(10).await.unwrap().into_iter().map(|entry| (entry.app, entry.what)).collect();
    for ((app, what), was_cancelled) in ends.into_iter().zip([true, false]) {
        let Happened::Task(task) = what else { panic!("{what:?}") };
        assert_eq!((app, task.cancelled), (Some(stage.app), was_cancelled));
    }
}

pub async fn what_concerns_the_operational_endpoints_is_not_entered<H: Harness>() {
    let stage = heard::<H>(0).await;
    let store = stage.store();
    let other = add_endpoint(store, OPERATIONAL, None).await;
    let own = |endpoint: EndpointKey| NewMessage { owed: vec![endpoint], ..message(OPERATIONAL, START) };
    let message = accept(store, own(other.key)).await;
    let disable = Some(DisableReason::Gone);
    settle(store, vec![Settlement { disable, ..refused(scheduled(other.key, message), at(1)) }]).await;
    store.enter_alert(Some(OPERATIONAL), alert("a"), at(1)).await.unwrap();
    store.delete_endpoint(OPERATIONAL, other.key, at(2)).await.unwrap();
    assert_eq!(names(store).await, Vec::<String>::new(), "one would follow from the other");
}

pub async fn the_same_alert_is_entered_once<H: Harness>() {
    let stage = heard::<H>(0).await;
    let store = stage.store();
    store.enter_alert(None, alert("raised:1"), at(1)).await.unwrap();
    store.enter_alert(None, alert("raised:1"), at(2)).await.unwrap();
    store.enter_alert(Some(stage.app), alert("raised:2"), at(3)).await.unwrap();
    let entries = store.untold(10).await.unwrap();
    let found: Vec<_> = entries.iter().map(|entry| (entry.app, entry.at, entry.what.clone())).collect();
    let told = |name| Happened::Alert(alert(name));
    assert_eq!(found, [(None, at(1), told("raised:1")), (Some(stage.app), at(3), told("raised:2"))]);
}

pub async fn an_alarm_is_entered_when_it_turns_and_kept_while_it_is_raised<H: Harness>() {
    let stage = heard::<H>(0).await;
    let turn = |subject: &str, is_raised, second| AlarmTurn {
        subject: subject.to_owned(),
        is_raised,
        app: None,
        alert: Some(alert(&format!("{subject}:{is_raised}:{second}"))),
        at: at(second),
    };
    for (subject, is_raised, second, has_turned) in [
        ("b", false, 1, false),
        ("b", true, 2, true),
        ("b", true, 3, false),
        ("a", true, 4, true),
        ("a", false, 5, true),
        ("a", false, 6, false),
        ("a", true, 7, true),
    ] {
        let found = stage.store().turn_alarm(turn(subject, is_raised, second)).await.unwrap();
        assert_eq!(found, has_turned, "{subject} at {second}");
    }
    let entered = ["alert:b:true:2", "alert:a:true:4", "alert:a:false:5", "alert:a:true:7"];
    assert_eq!(names(stage.store()).await, entered);
    let stage = stage.reopen(at(10)).await.crash(at(20)).await;
    assert_eq!(stage.store().raised_alarms().await.unwrap(), ["a", "b"]);
    assert!(!stage.store().turn_alarm(turn("a", true, 30)).await.unwrap(), "the one before has told of it");
    assert_eq!(names(stage.store()).await, entered);
}

pub async fn entries_stay_until_they_are_struck_out<H: Harness>() {
    let stage = heard::<H>(0).await;
    for number in 0..5 {
        stage.store().enter_alert(None, alert(&number.to_string()), at(number)).await.unwrap();
    }
    let stage = stage.reopen(at(10)).await.crash(at(20)).await;
    let store = stage.store();
    let first: Vec<_> = store.untold(3).await.unwrap();
    assert_eq!(first.iter().map(|entry| entry.what.name()).collect::<Vec<_>>(), ["alert:0", "alert:1", "alert:2"]);
    store.strike_out(vec![first[0].key, first[2].key]).await.unwrap();
    store.strike_out(vec![first[0].key]).await.unwrap();
    assert_eq!(names(store).await, ["alert:1", "alert:3", "alert:4"]);
    store.enter_alert(None, alert("new"), at(30)).await.unwrap();
    let stage = stage.crash(at(40)).await;
    assert_eq!(names(stage.store()).await, ["alert:1", "alert:3", "alert:4", "alert:new"]);
}

fn alert(name: &str) -> AlertHappened {
    AlertHappened {
        name: name.to_owned(),
        event_type: "postrider.test".to_owned(),
        data: r#"{"näme":"ä'\""}"#.to_owned(),
    }
}
