//! Long work in the background: in steps that survive a restart, can be called off, and let live traffic go first.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{DeathReason, DisableReason, Next, Ordering},
};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

async fn task<H: Harness>(stage: &Stage<H>, kind: TaskKind) -> Task {
    Task {
        key: TaskKey(stage.store().mint(START).await.unwrap()),
        app: stage.app,
        kind,
        total: None,
        done: 0,
        changed: 0,
        status: TaskStatus::Running,
        created_at: at(1),
        updated_at: at(1),
    }
}

async fn recovery<H: Harness>(stage: &Stage<H>, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Task {
    let (since, until) = (since.as_millis(), until.as_millis());
    task(stage, TaskKind::Recover { endpoint: endpoint.raw(), since, until }).await
}

async fn run<H: Harness>(stage: &Stage<H>, task: &Task, now: Timestamp) -> Task {
    stage.store().start_task(task.clone(), None).await.expect("a task is started");
    finish_task(stage.store(), task.key, now).await
}

async fn step<H: Harness>(stage: &Stage<H>, task: &Task, now: Timestamp) -> Task {
    stage.store().advance_task(task.key, now).await.expect("a task advances").expect("it exists")
}

async fn dead_letters<H: Harness>(stage: &Stage<H>, count: usize, accepted: Timestamp) -> Vec<DeliveryId> {
    let ids: Vec<_> =
        stage.accept_many(count, accepted).await.into_iter().map(|message| stage.first(message)).collect();
    settle(stage.store(), ids.iter().map(|id| refused(*id, at(HOUR))).collect()).await;
    ids
}

/// Delivers everything that is due in a lane.
async fn drain<H: Harness>(stage: &Stage<H>, endpoint: EndpointKey, now: Timestamp) {
    let loaded = load_in(stage.store(), endpoint, Ordering::None, now).await;
    let arrived = |waiting: &Waiting| Settlement { cycle: waiting.cycle, ..stored(delivered(waiting.id, now)) };
    settle(stage.store(), loaded.deliveries.iter().map(arrived).collect()).await;
}

async fn disable<H: Harness>(stage: &Stage<H>, endpoint: EndpointKey) {
    let found = stage.store().endpoint_of_lane(endpoint).await.unwrap().expect("it exists");
    let (version, disabled) = (found.version, Some(Disabled { why: DisableReason::Manual, at: at(1) }));
    stage.store().put_endpoint(Endpoint { disabled, ..found }, Expect::Version(version), None).await.unwrap();
}

fn heard(committed: &mut UnboundedReceiver<Vec<Committed>>) -> Vec<Committed> {
    std::iter::from_fn(|| committed.try_recv().ok()).flatten().collect()
}

pub async fn a_recovery_takes_dead_letters_of_its_endpoint_and_time_only<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let mut ids = Vec::new();
    for millis in [10, 20, 30, 40, 40] {
        ids.push(stage.first(stage.accept(at(millis)).await));
    }
    let (arrived, dead) = (ids.pop().expect("five were accepted"), ids);
    let other = scheduled(stage.endpoints[1], dead[1].message);
    settle(stage.store(), dead.iter().chain([&other]).map(|id| refused(*id, at(HOUR))).collect()).await;
    stage.settle(delivered(arrived, at(HOUR))).await;

    let task = run(&stage, &recovery(&stage, stage.endpoints[0], at(20), at(40)).await, at(DAY)).await;
    assert_eq!((task.total, task.done, task.changed, task.updated_at), (Some(2), 2, 2, at(DAY)));
    assert_eq!(all_waiting(stage.store()).await, [dead[1], dead[2]], "from the first time up to, not with, the second");
    assert!(matches!(stage.state(dead[0]).await, DeliveryState::Dead { .. }));
    assert!(matches!(stage.state(dead[3]).await, DeliveryState::Dead { .. }));
    assert!(matches!(stage.state(other).await, DeliveryState::Dead { .. }));
    assert_eq!(stage.state(dead[1]).await, DeliveryState::Sending { due: at(DAY) });
    let expected = Stats { success: 1, sending: 2, fail: 2, ..Stats::default() };
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, expected);
}

pub async fn a_recovery_goes_on_after_a_restart<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let dead = dead_letters(&stage, 450, START).await;
    let task = recovery(&stage, stage.endpoints[0], START, at(1)).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    assert_eq!(stage.store().task(task.key).await.unwrap(), Some(task.clone()));
    let begun = step(&stage, &task, at(DAY)).await;
    assert_eq!((begun.status, begun.total), (TaskStatus::Running, Some(450)), "so many are not done in one step");
    assert!(begun.changed > 0);
    assert_eq!((begun.done, begun.updated_at), (begun.changed, at(DAY)));

    let stage = stage.crash(at(DAY)).await;
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), [task.key]);
    assert_eq!(stage.store().task(task.key).await.unwrap(), Some(begun.clone()));
    drain(&stage, stage.endpoints[0], at(DAY)).await;
    step(&stage, &task, at(DAY)).await;
    let stage = stage.reopen(at(DAY)).await;
    drain(&stage, stage.endpoints[0], at(DAY)).await;
    let done = finish_task(stage.store(), task.key, at(2 * DAY)).await;
    assert_eq!((done.total, done.done, done.changed), (Some(450), 450, 450), "each once");
    drain(&stage, stage.endpoints[0], at(2 * DAY)).await;
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, Stats { success: 450, ..Stats::default() });
    for id in [dead[0], dead[199], dead[200], dead[449]] {
        let cycles: Vec<_> = attempts_of(stage.store(), id.message).await.iter().map(|attempt| attempt.cycle).collect();
        assert_eq!(cycles, [0, 1]);
    }
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), []);
    assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 0 });
    assert_eq!(stage.store().advance_task(task.key, at(3 * DAY)).await.unwrap(), Some(done), "finished is finished");
}

pub async fn a_replay_waits_while_many_are_due<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    dead_letters(&stage, 700, START).await;
    let task = recovery(&stage, stage.endpoints[0], START, at(1)).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    let mut last = step(&stage, &task, at(DAY)).await;
    for _ in 0..10 {
        last = step(&stage, &task, at(DAY)).await;
    }
    assert_eq!(last.status, TaskStatus::Running);
    assert!(last.changed < 700, "the lane is not flooded: {}", last.changed);
    let held_up = step(&stage, &task, at(DAY + 1)).await;
    assert_eq!(held_up, last, "nothing was done");
    drain(&stage, stage.endpoints[0], at(DAY + 1)).await;
    let next = step(&stage, &task, at(DAY + 2)).await;
    assert!(next.changed > last.changed, "it goes on when there is room");

    // What is due in the lane of a disabled endpoint is held: waiting for it to drain would be for ever.
    disable(&stage, stage.endpoints[0]).await;
    assert_eq!(finish_task(stage.store(), task.key, at(DAY + 3)).await.changed, 700);
}

/// Whoever drives a task sees by its time whether it moved.
pub async fn a_replay_that_cannot_begin_has_not_moved<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    dead_letters(&stage, 10, START).await;
    let waiting: Vec<_> = stage.accept_many(300, at(2)).await.into_iter().map(|message| stage.first(message)).collect();
    stage.store().spill(stage.store().tenure(), unordered(waiting), at(3)).await.unwrap();
    let task = recovery(&stage, stage.endpoints[0], START, at(1)).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    let expected = Task { total: Some(10), ..task.clone() };
    for hour in 1..4 {
        assert_eq!(step(&stage, &task, at(hour * HOUR)).await, expected);
    }
    drain(&stage, stage.endpoints[0], at(DAY)).await;
    assert_eq!(finish_task(stage.store(), task.key, at(DAY)).await.changed, 10);
}

pub async fn a_recovered_delivery_starts_a_new_cycle<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let id = dead_letters(&stage, 1, START).await[0];
    for cycle in 1..4 {
        heard(&mut committed);
        run(&stage, &recovery(&stage, id.endpoint, START, at(DAY)).await, at(cycle * DAY)).await;
        let news = heard(&mut committed);
        let expected = (id.endpoint, at(cycle * DAY));
        assert!(
            matches!(news[..], [Committed::Waiting { endpoint, due }] if (endpoint, due) == expected),
            "the lane is woken: {news:?}"
        );
        let loaded = load_in(stage.store(), id.endpoint, Ordering::None, at(cycle * DAY)).await;
        let [waiting] = &loaded.deliveries[..] else { panic!("one waits: {loaded:?}") };
        assert_eq!((waiting.id, i64::from(waiting.cycle), waiting.progress.attempts), (id, cycle, 0));
        let settlement = Settlement { cycle: waiting.cycle, ..stored(refused(id, at(cycle * DAY))) };
        stage.settle(settlement).await;
    }
    let cycles: Vec<_> = attempts_of(stage.store(), id.message).await.iter().map(|attempt| attempt.cycle).collect();
    assert_eq!(cycles, [0, 1, 2, 3]);
}

pub async fn a_second_recovery_finds_nothing_to_do<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let dead = dead_letters(&stage, 3, START).await;
    assert_eq!(run(&stage, &recovery(&stage, stage.endpoints[0], START, at(1)).await, at(DAY)).await.changed, 3);
    stage.settle(stored(delivered(dead[0], at(DAY)))).await;
    assert_eq!(run(&stage, &recovery(&stage, stage.endpoints[0], START, at(1)).await, at(2 * DAY)).await.changed, 0);
    let loaded = load_in(stage.store(), stage.endpoints[0], Ordering::None, at(3 * DAY)).await;
    let found: Vec<_> = loaded.deliveries.iter().map(|waiting| (waiting.id, waiting.cycle, waiting.due)).collect();
    assert_eq!(found, [(dead[1], 1, at(DAY)), (dead[2], 1, at(DAY))], "one cycle, as the first left it");
}

pub async fn a_recovery_asked_for_twice_is_one<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let kept = || Some(remember(chosen(1, 1), 202, b"started"));
    let first = recovery(&stage, stage.endpoints[0], START, at(1)).await;
    stage.store().start_task(first.clone(), kept()).await.unwrap();
    let second = recovery(&stage, stage.endpoints[0], START, at(1)).await;
    let repeated = stage.store().start_task(second.clone(), kept()).await;
    assert!(matches!(repeated, Err(PutError::Repeated(_))), "{repeated:?}");
    assert_eq!(stage.store().task(second.key).await.unwrap(), None);
    let again = stage.store().start_task(first.clone(), None).await;
    assert!(matches!(again, Err(PutError::Taken)), "the same key again is refused, not an error: {again:?}");
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), [first.key]);
}

pub async fn an_unknown_task_is_none<H: Harness>() {
    let stage = Stage::<H>::set(0).await;
    assert_eq!(stage.store().task(TaskKey(1)).await.unwrap(), None);
    assert_eq!(stage.store().advance_task(TaskKey(1), at(1)).await.unwrap(), None);
    assert_eq!(stage.store().cancel_task(TaskKey(1), at(1)).await.unwrap(), None);
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), []);
}

pub async fn a_task_that_is_called_off_stops_where_it_is<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    dead_letters(&stage, 300, START).await;
    let task = recovery(&stage, stage.endpoints[0], START, at(1)).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    let begun = step(&stage, &task, at(DAY)).await;
    let called_off = stage.store().cancel_task(task.key, at(DAY + 1)).await.unwrap().expect("it exists");
    let expected = Task { status: TaskStatus::Cancelled, updated_at: at(DAY + 1), ..begun.clone() };
    assert_eq!(called_off, expected);
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), []);
    drain(&stage, stage.endpoints[0], at(DAY + 2)).await;
    assert_eq!(step(&stage, &task, at(DAY + 2)).await, expected, "it does no more");
    assert_eq!(stage.store().cancel_task(task.key, at(DAY + 3)).await.unwrap(), Some(expected), "nor ends twice");
    let left = 300 - begun.changed;
    let found = Stats { success: begun.changed, fail: left, ..Stats::default() };
    assert_eq!(stats(stage.store(), stage.endpoints[0]).await, found, "what is done stays done");

    let finished = run(&stage, &recovery(&stage, stage.endpoints[0], START, at(1)).await, at(2 * DAY)).await;
    assert_eq!(finished.changed, left, "and another one takes the rest");
    let again = stage.store().cancel_task(finished.key, at(3 * DAY)).await.unwrap();
    assert_eq!(again, Some(finished), "what is finished is not called off");
}

pub async fn tasks_are_listed_filtered_and_paged<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let other = add_application(stage.store(), None).await.key;
    let endpoint = stage.endpoints[0].raw();
    let kinds = [
        TaskKind::Recover { endpoint, since: 1, until: 2 },
        TaskKind::ReplayMissing {
            endpoint,
            since: 1,
            until: 2,
            event_types: Some(vec!["a".to_owned()]),
            channels: None,
        },
        TaskKind::BulkReplay { endpoint, filter: ReplayFilter { since: 1, until: 2, ..ReplayFilter::default() } },
        TaskKind::ReplayDead { filter: DeadFilter { reason: Some(DeadReason::Breaker), ..DeadFilter::default() } },
        TaskKind::Cancel { endpoint, before: 2 },
        TaskKind::Resume { endpoint, keep: Keep::Since(3) },
        TaskKind::Purge,
    ];
    let mut all = Vec::new();
    for (index, kind) in kinds.into_iter().enumerate() {
        let app = if index == 6 { other } else { stage.app };
        let one = Task { app, ..task(&stage, kind).await };
        stage.store().start_task(one.clone(), None).await.unwrap();
        all.push(one);
    }
    let list = async |filter: TaskFilter| stage.store().tasks(filter, whole()).await.unwrap();
    assert_eq!(list(TaskFilter::default()).await, all);
    assert_eq!(list(TaskFilter { app: Some(other), ..TaskFilter::default() }).await, all[6..]);
    let kinds = vec!["cancel", "recover"];
    assert_eq!(list(TaskFilter { kinds, ..TaskFilter::default() }).await, [all[0].clone(), all[4].clone()]);
    finish_task(stage.store(), all[0].key, at(5)).await;
    stage.store().cancel_task(all[1].key, at(5)).await.unwrap();
    for (status, keys) in [
        (TaskStatus::Finished, all[..1].iter().map(|task| task.key).collect::<Vec<_>>()),
        (TaskStatus::Cancelled, vec![all[1].key]),
        (TaskStatus::Running, all[2..].iter().map(|task| task.key).collect()),
    ] {
        let found = list(TaskFilter { status: Some(status), ..TaskFilter::default() }).await;
        assert_eq!(found.iter().map(|task| task.key).collect::<Vec<_>>(), keys, "{status:?}");
    }
    let keys: Vec<_> = all.iter().map(|task| task.key).collect();
    let fetch = async |page| stage.store().tasks(TaskFilter::default(), page).await.unwrap();
    check_paging(&keys, fetch, |task: &Task| task.key).await;
}

pub async fn a_replay_of_dead_letters_takes_what_matches<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let mut messages = Vec::new();
    for kind in ["a.b", "a.b", "c.d"] {
        let content = Content { event_type: kind.to_owned(), ..content(b"{}") };
        messages.push(accept(stage.store(), NewMessage { content, ..stage.message(START) }).await);
    }
    let both = |message| [scheduled(stage.endpoints[0], message), scheduled(stage.endpoints[1], message)];
    let all: Vec<_> = messages.iter().flat_map(|message| both(*message)).collect();
    settle(stage.store(), all.iter().map(|id| refused(*id, at(HOUR))).collect()).await;

    let filter = DeadFilter { event_types: vec!["a.b".to_owned()], ..DeadFilter::default() };
    let done = run(&stage, &task(&stage, TaskKind::ReplayDead { filter }).await, at(DAY)).await;
    assert_eq!((done.total, done.done, done.changed), (Some(6), 6, 4), "both letters of a message");
    let mut expected = [both(messages[0]), both(messages[1])].concat();
    expected.sort_unstable();
    assert_eq!(all_waiting(stage.store()).await, expected);

    let filter = DeadFilter { endpoint: Some(stage.endpoints[1].raw()), ..DeadFilter::default() };
    let done = run(&stage, &task(&stage, TaskKind::ReplayDead { filter }).await, at(2 * DAY)).await;
    assert_eq!((done.total, done.done, done.changed), (Some(1), 1, 1), "what is replayed is no dead letter");
    assert!(matches!(stage.state(scheduled(stage.endpoints[0], messages[2])).await, DeliveryState::Dead { .. }));
}

pub async fn a_great_replay_of_dead_letters_takes_each_once<H: Harness>() {
    let mut stage = Stage::<H>::set(3).await;
    for endpoint in &stage.endpoints {
        disable(&stage, *endpoint).await;
    }
    let messages = stage.accept_many(150, START).await;
    let all: Vec<_> =
        messages.iter().flat_map(|message| stage.endpoints.iter().map(|lane| scheduled(*lane, *message))).collect();
    settle(stage.store(), all.iter().map(|id| refused(*id, at(HOUR))).collect()).await;
    let task = task(&stage, TaskKind::ReplayDead { filter: DeadFilter::default() }).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    let mut steps = 0;
    while step(&stage, &task, at(DAY)).await.status == TaskStatus::Running {
        stage = stage.crash(at(DAY)).await;
        steps += 1;
        assert!(steps < STEPS_MAX, "it ends");
    }
    assert!(steps > 0, "in several steps");
    let done = stage.store().task(task.key).await.unwrap().expect("it exists");
    assert_eq!((done.total, done.done, done.changed), (Some(450), 450, 450));
    assert_eq!(all_waiting(stage.store()).await.len(), 450);
}

pub async fn what_cannot_be_sent_is_not_replayed<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let dead = dead_letters(&stage, 2, START).await;
    stage.store().expunge_message(stage.app, dead[0].message).await.unwrap();
    let done = run(&stage, &recovery(&stage, stage.endpoints[0], START, at(1)).await, at(DAY)).await;
    assert_eq!((done.done, done.changed), (2, 1));
    assert_eq!(all_waiting(stage.store()).await, [dead[1]]);
    assert!(matches!(stage.state(dead[0]).await, DeliveryState::Dead { reason: DeathReason::Permanent, .. }));
}

pub async fn a_bulk_replay_takes_what_matches_and_does_not_wait<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let ids: Vec<_> = stage.accept_many(6, START).await.into_iter().map(|message| stage.first(message)).collect();
    let [arrived, refused_once, cancelled, retried, handed, expunged] = ids[..] else { unreachable!("six") };
    settle(
        stage.store(),
        vec![
            delivered(arrived, at(1)),
            refused(refused_once, at(1)),
            failed(retried, at(1), at(9 * DAY)),
            delivered(expunged, at(1)),
        ],
    )
    .await;
    stage.store().cancel_message(stage.app, cancelled.message, Some(cancelled.endpoint), at(1)).await.unwrap();
    stage.store().expunge_message(stage.app, expunged.message).await.unwrap();
    let later =
        accept(stage.store(), NewMessage { owed: vec![stage.endpoints[0]], ..message(stage.app, at(HOUR)) }).await;
    let later = stage.first(later);
    let content = Content { channels: vec!["blue".to_owned()], tags: vec!["vip".to_owned()], ..content(b"{}") };
    let coloured = NewMessage { content, owed: vec![stage.endpoints[0]], ..message(stage.app, at(HOUR)) };
    let coloured = stage.first(accept(stage.store(), coloured).await);
    stage.settle(delivered(later, at(HOUR))).await;
    stage.settle(delivered(coloured, at(HOUR))).await;

    let waiting_before = all_waiting(stage.store()).await;
    assert_eq!(waiting_before, [retried]);
    let ever = ReplayFilter { since: START.as_millis(), until: at(DAY).as_millis(), ..ReplayFilter::default() };
    for (name, filter, expected) in [
        ("a time", ReplayFilter { until: at(1).as_millis(), ..ever.clone() }, vec![arrived, refused_once, cancelled]),
        ("a state", ReplayFilter { state: Some(StateKind::Delivered), ..ever.clone() }, vec![arrived, later, coloured]),
        ("cancelled", ReplayFilter { state: Some(StateKind::Cancelled), ..ever.clone() }, vec![cancelled]),
        ("dead", ReplayFilter { state: Some(StateKind::Dead), ..ever.clone() }, vec![refused_once]),
        ("a status", ReplayFilter { status_class: Some(4), ..ever.clone() }, vec![refused_once]),
        ("no answer", ReplayFilter { status_class: Some(0), ..ever.clone() }, vec![cancelled]),
        ("a channel", ReplayFilter { channel: Some("blue".to_owned()), ..ever.clone() }, vec![coloured]),
        ("a tag", ReplayFilter { tag: Some("vip".to_owned()), ..ever.clone() }, vec![coloured]),
        ("a type", ReplayFilter { event_types: vec!["other".to_owned()], ..ever.clone() }, vec![]),
        ("all", ever, vec![arrived, refused_once, cancelled, later, coloured]),
    ] {
        let endpoint = stage.endpoints[0].raw();
        let done = run(&stage, &task(&stage, TaskKind::BulkReplay { endpoint, filter }).await, at(DAY)).await;
        let loaded = load_in(stage.store(), stage.endpoints[0], Ordering::None, at(DAY)).await;
        assert_eq!(ids_sorted(&loaded), expected, "{name}");
        assert_eq!(done.changed, expected.len() as u64, "{name}");
        // As they were: delivered, dead or cancelled in the cycle that was begun.
        for waiting in &loaded.deliveries {
            let settlement =
                Settlement { cycle: waiting.cycle, attempt: None, ..stored(delivered(waiting.id, at(DAY))) };
            match waiting.id {
                id if id == refused_once => {
                    stage.settle(Settlement { next: Next::Dead(DeathReason::Permanent), ..settlement }).await;
                }
                id if id == cancelled => {
                    let lane = Some(id.endpoint);
                    stage.store().cancel_message(stage.app, id.message, lane, at(DAY)).await.unwrap();
                }
                _ => stage.settle(settlement).await,
            }
        }
    }
    assert_eq!(stage.state(handed).await, DeliveryState::Pending { due: None }, "what is on its way is left alone");
    assert_eq!(stage.state(arrived).await, DeliveryState::Delivered);
    assert_eq!(all_waiting(stage.store()).await, waiting_before);
}

fn ids_sorted(loaded: &Loaded) -> Vec<DeliveryId> {
    let mut found = ids(loaded);
    found.sort_unstable();
    found
}

pub async fn a_bulk_replay_begins_the_cycle_after_the_last_one<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let content = Content { ordering_key: Some("one".to_owned()), ..content(b"{}") };
    let id = stage.first(accept(stage.store(), NewMessage { content, ..stage.message(START) }).await);
    stage.settle(delivered(id, at(1))).await;
    for cycle in 1..4 {
        let filter = ReplayFilter { since: START.as_millis(), until: at(1).as_millis(), ..ReplayFilter::default() };
        run(&stage, &task(&stage, TaskKind::BulkReplay { endpoint: id.endpoint.raw(), filter }).await, at(cycle)).await;
        let loaded = load_in(stage.store(), id.endpoint, Ordering::Keyed, at(cycle)).await;
        let [waiting] = &loaded.deliveries[..] else { panic!("one waits: {loaded:?}") };
        assert_eq!((i64::from(waiting.cycle), waiting.queued_at), (cycle, at(cycle)));
        assert_eq!(waiting.order, Some(OrderKey::of("one")), "it keeps its place in the order");
        assert_eq!(stage.state(id).await, DeliveryState::Delivered, "what was delivered stays delivered");
        let once = Stats { success: 1, ..Stats::default() };
        assert_eq!(stats(stage.store(), id.endpoint).await, once);
        let settlement = if cycle == 2 { refused(id, at(cycle)) } else { delivered(id, at(cycle)) };
        stage.settle(Settlement { cycle: waiting.cycle, ..stored(settlement) }).await;
        assert_eq!(stage.state(id).await, DeliveryState::Delivered, "however it fares this time");
        assert_eq!(stats(stage.store(), id.endpoint).await, once);
        assert_eq!(stage.store().counts(Shards::ALL).await.unwrap(), Counts { waiting: 0, dead: 0 });
    }
}

pub async fn a_replay_of_what_was_missed_takes_what_is_not_owed<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let [owed, new] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let send = async |event_type: &str, channel: Option<&str>, millis| {
        let channels = channel.map(str::to_owned).into_iter().collect();
        let content = Content { event_type: event_type.to_owned(), channels, ..content(b"{}") };
        accept(stage.store(), NewMessage { content, owed: vec![owed], ..message(stage.app, at(millis)) }).await
    };
    let early = send("a.b", Some("blue"), 0).await;
    let fits = [send("a.b", Some("blue"), 10).await, send("a.b", Some("blue"), 11).await];
    send("c.d", Some("blue"), 12).await;
    send("a.b", None, 13).await;
    let gone = send("a.b", Some("blue"), 14).await;
    stage.store().expunge_message(stage.app, gone).await.unwrap();
    let owed_already = accept(stage.store(), NewMessage { owed: vec![new], ..message(stage.app, at(15)) }).await;
    stage.settle(delivered(scheduled(new, owed_already), at(15))).await;

    let kind = TaskKind::ReplayMissing {
        endpoint: new.raw(),
        since: at(10).as_millis(),
        until: at(HOUR).as_millis(),
        event_types: Some(vec!["a.b".to_owned(), "invoice.paid".to_owned()]),
        channels: Some(vec!["blue".to_owned(), "red".to_owned()]),
    };
    let done = run(&stage, &task(&stage, kind.clone()).await, at(DAY)).await;
    assert_eq!((done.total, done.done, done.changed), (Some(6), 6, 2));
    let loaded = load_in(stage.store(), new, Ordering::None, at(DAY)).await;
    let found: Vec<_> =
        loaded.deliveries.iter().map(|waiting| (waiting.id.message, waiting.cycle, waiting.queued_at)).collect();
    assert_eq!(found, [(fits[0], 0, at(DAY)), (fits[1], 0, at(DAY))]);
    let message = stage.store().message(stage.app, By::Key(fits[0])).await.unwrap().expect("it is known");
    assert_eq!(message.owed, [owed, new]);
    assert_eq!(stage.state(scheduled(new, fits[0])).await, DeliveryState::Pending { due: Some(at(DAY)) });
    assert_eq!(stage.store().deliveries(early).await.unwrap().len(), 1);

    let stage = stage.crash(at(DAY)).await;
    assert_eq!(run(&stage, &task(&stage, kind).await, at(2 * DAY)).await.changed, 0, "it is owed now");
    assert_eq!(stats(stage.store(), new).await, Stats { success: 1, pending: 2, ..Stats::default() });
}

pub async fn a_cancel_ends_what_waits_and_what_is_on_its_way<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let lane = stage.endpoints[0];
    let ids: Vec<_> = stage.accept_many(450, START).await.into_iter().map(|message| stage.first(message)).collect();
    let (handed, rows) = ids.split_at(220);
    let (spilled, arrived) = rows.split_at(220);
    stage.store().spill(stage.store().tenure(), unordered(spilled.to_vec()), at(1)).await.unwrap();
    settle(stage.store(), arrived.iter().map(|id| delivered(*id, at(1))).collect()).await;
    stage.store().resend(arrived[0].message, lane, at(2), None).await.unwrap();
    let late = stage.first(stage.accept(at(HOUR)).await);

    let mut committed = stage.store().committed();
    let task = task(&stage, TaskKind::Cancel { endpoint: lane.raw(), before: at(HOUR).as_millis() }).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    heard(&mut committed);
    let begun = step(&stage, &task, at(DAY)).await;
    assert_eq!((begun.status, begun.total), (TaskStatus::Running, Some(440)));
    let first_spared = MessageKey::new(postrider_engine::keys::first_key_at(at(HOUR)));
    let news = heard(&mut committed);
    assert!(
        matches!(news[..], [Committed::Cancelled { endpoint, which: Cancelled::Before(end) }]
            if endpoint == lane && end == first_spared),
        "all who hold something are told at once: {news:?}"
    );
    for id in handed {
        assert_eq!(stage.state(*id).await, DeliveryState::Dead { at: at(DAY), reason: DeathReason::Cancelled });
    }

    let stage = stage.reopen(at(DAY)).await;
    let done = finish_task(stage.store(), task.key, at(DAY)).await;
    assert_eq!((done.done, done.changed), (440, 440));
    let mut expected = [late, manual(lane, arrived[0].message)];
    expected.sort_unstable();
    let left = ids_sorted(&load_in(stage.store(), lane, Ordering::None, at(DAY)).await);
    assert_eq!(left, expected, "a resend is no part of it");
    let (cancelled, pending) = (440, 1);
    let found = stats(stage.store(), lane).await;
    assert_eq!((found.success, found.pending, found.fail + found.canceled), (10, pending, cancelled));
    assert_eq!(stats(stage.store(), stage.endpoints[1]).await.pending, 451, "other lanes are spared");
}

/// A lane that hears of a cancel lets go of all that is meant, and so also of what was replayed between two steps.
pub async fn a_cancel_reminds_the_lane_of_what_was_replayed_meanwhile<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let ids: Vec<_> = stage.accept_many(450, START).await.into_iter().map(|message| stage.first(message)).collect();
    stage.store().spill(stage.store().tenure(), unordered(ids.clone()), at(1)).await.unwrap();
    let lane = stage.endpoints[0];
    let task = task(&stage, TaskKind::Cancel { endpoint: lane.raw(), before: at(HOUR).as_millis() }).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    step(&stage, &task, at(DAY)).await;
    let key = DeadKey { message: ids[0].message, endpoint: lane };
    assert!(stage.store().replay(stage.app, key, at(DAY), None).await.unwrap());
    heard(&mut committed);
    finish_task(stage.store(), task.key, at(DAY + 1)).await;
    assert_eq!(all_waiting(stage.store()).await, [ids[0]]);
    let news = heard(&mut committed);
    assert!(
        matches!(news.last(), Some(Committed::Waiting { endpoint, due }) if (*endpoint, *due) == (lane, at(DAY + 1))),
        "{news:?}"
    );
}

pub async fn a_cancel_spares_what_comes_after_it_was_asked_for<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let old = stage.first(stage.accept(START).await);
    let task = task(&stage, TaskKind::Cancel { endpoint: old.endpoint.raw(), before: at(DAY).as_millis() }).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    let new = stage.first(stage.accept(at(HOUR)).await);
    stage.store().spill(stage.store().tenure(), unordered(vec![old, new]), at(HOUR)).await.unwrap();
    assert_eq!(finish_task(stage.store(), task.key, at(HOUR)).await.changed, 1);
    assert_eq!(all_waiting(stage.store()).await, [new]);
}

pub async fn a_called_off_cancel_wakes_the_lane<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let task = task(&stage, TaskKind::Cancel { endpoint: stage.endpoints[0].raw(), before: at(1).as_millis() }).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    heard(&mut committed);
    stage.store().cancel_task(task.key, at(5)).await.unwrap();
    let news = heard(&mut committed);
    assert!(
        matches!(news[..], [Committed::Waiting { endpoint, due }] if (endpoint, due) == (stage.endpoints[0], at(5))),
        "{news:?}"
    );
}

/// What is kept of a backlog of two ordering keys and two messages without, one of each twice: in a row and on its way.
pub async fn resuming_keeps_what_was_chosen<H: Harness>() {
    for (keep, kept) in [
        (Keep::All, vec![0, 1, 2, 3, 4, 5]),
        (Keep::Since(at(3).as_millis()), vec![3, 4, 5]),
        (Keep::NewestPerKey, vec![1, 3, 4, 5]),
        (Keep::None, vec![]),
    ] {
        let stage = Stage::<H>::set(1).await;
        let lane = stage.endpoints[0];
        disable(&stage, lane).await;
        let mut backlog = Vec::new();
        for (millis, key) in [(0, Some("a")), (1, None), (2, Some("b")), (3, Some("a")), (4, Some("b")), (5, None)] {
            let content = Content { ordering_key: key.map(str::to_owned), ..content(b"{}") };
            let key = content.ordering_key.as_deref().map(OrderKey::of);
            let id = stage.first(accept(stage.store(), NewMessage { content, ..stage.message(at(millis)) }).await);
            if millis < 4 {
                stage.store().spill(stage.store().tenure(), vec![(id, key)], at(10)).await.unwrap();
            }
            backlog.push(id);
        }
        let counted = stage.store().backlog(lane, Some(at(3))).await.unwrap();
        let expected = Backlog { waiting: 6, oldest: Some(START), since: Some(3), newest_per_key: 4 };
        assert_eq!(counted, expected, "as shown before");

        let mut committed = stage.store().committed();
        let one = task(&stage, TaskKind::Resume { endpoint: lane.raw(), keep }).await;
        stage.store().start_task(one.clone(), None).await.unwrap();
        let later = stage.first(stage.accept(at(20)).await);
        stage.store().spill(stage.store().tenure(), unordered(vec![later]), at(20)).await.unwrap();
        heard(&mut committed);
        let done = finish_task(stage.store(), one.key, at(DAY)).await;
        assert_eq!(done.changed, 6 - kept.len() as u64, "{keep:?}");
        for (index, id) in backlog.iter().enumerate() {
            let state = stage.state(*id).await;
            let is_cancelled = state == DeliveryState::Dead { at: at(DAY), reason: DeathReason::Cancelled };
            assert_eq!(is_cancelled, !kept.contains(&index), "{keep:?}: number {index} is {state:?}");
        }
        assert_eq!(stage.state(later).await, DeliveryState::Pending { due: Some(at(20)) }, "what came since is kept");

        let endpoint = stage.store().endpoint_of_lane(lane).await.unwrap().expect("it exists");
        assert_eq!((endpoint.disabled, endpoint.version, endpoint.updated_at), (None, 3, at(DAY)));
        let news = heard(&mut committed);
        let told = |which: fn(&Committed) -> bool| news.iter().any(which);
        assert!(told(|news| matches!(news, Committed::Settings { .. })), "{news:?}");
        assert!(told(|news| matches!(news, Committed::Health { .. })), "{news:?}");
        assert_eq!(told(|news| matches!(news, Committed::Cancelled { .. })), keep != Keep::All, "{news:?}");
    }
}

pub async fn resuming_forgets_how_the_endpoint_fared<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let id = stage.first(stage.accept(START).await);
    let health = postrider_engine::policy::Health { permanent_streak: 3, ..Default::default() };
    stage
        .settle(Settlement { health: Some(health), disable: Some(DisableReason::Failing), ..refused(id, at(1)) })
        .await;
    let one = task(&stage, TaskKind::Resume { endpoint: id.endpoint.raw(), keep: Keep::All }).await;
    let done = run(&stage, &one, at(DAY)).await;
    assert_eq!((done.total, done.done, done.changed), (Some(0), 0, 0));
    assert_eq!(stage.store().health(id.endpoint).await.unwrap(), Default::default());
    let again = run(&stage, &task(&stage, one.kind).await, at(2 * DAY)).await;
    assert_eq!(again.status, TaskStatus::Finished);
    let endpoint = stage.store().endpoint_of_lane(id.endpoint).await.unwrap().expect("it exists");
    assert_eq!(endpoint.updated_at, at(DAY), "what is enabled is left alone");
}

/// Whichever way a payload goes, what a service sent along with it goes too, and nothing else does.
pub async fn the_headers_that_a_message_came_with_go_with_its_payload<H: Harness>() {
    let mut stage = Stage::<H>::set(1).await;
    let received = Received {
        passed_on: vec![("x-github-event".to_owned(), "push".to_owned())],
        kept: vec![("x-seen".to_owned(), "canary \u{e9} \"received\"".to_owned())],
    };
    let came = |event_id: &str| {
        let (event_id, tags) = (Some(event_id.to_owned()), vec!["received".to_owned()]);
        NewMessage {
            content: Content { event_id, tags, received: Some(received.clone()), ..content(b"{}") },
            ..stage.message(START)
        }
    };
    let expiring = NewMessage { payload_expires_at: Some(at(5)), ..came("expired") };
    let mut keys = Vec::new();
    for new in [came("one"), came("many"), expiring, came("purged")] {
        keys.push(accept(stage.store(), new).await);
    }
    let [one, many, expired, purged] = keys[..] else { unreachable!("four") };
    let before = stage.store().message(stage.app, By::Key(purged)).await.unwrap().expect("it is known").content;
    assert_eq!(before.received, Some(received.clone()));
    let gone = async |stage: &Stage<H>, message: MessageKey, event_id: &str| {
        let found = stage.store().message(stage.app, By::Key(message)).await.unwrap().expect("the record stays");
        let expected = Content {
            event_id: Some(event_id.to_owned()),
            received: None,
            payload: bytes::Bytes::new(),
            ..before.clone()
        };
        assert_eq!((found.content, found.payload_gone), (expected, true), "{event_id}");
    };
    assert!(stage.store().expunge_message(stage.app, one).await.unwrap());
    assert_eq!(stage.store().expunge_messages(stage.app, vec![many]).await.unwrap(), [true]);
    let day = Duration::from_hours(24);
    let keep = Retention { payloads: day, attempts: day, dead_letters: day, idempotency: day };
    tidy_up(stage.store(), at(10), keep).await;
    let spared = stage.store().message(stage.app, By::Key(purged)).await.unwrap().expect("it is known");
    assert_eq!(spared.content.received, Some(received.clone()), "it was not asked for");
    run(&stage, &task(&stage, TaskKind::Purge).await, at(20)).await;
    stage = stage.crash(at(30)).await;
    for (message, event_id) in [(one, "one"), (many, "many"), (expired, "expired"), (purged, "purged")] {
        gone(&stage, message, event_id).await;
    }
}

pub async fn a_purge_removes_all_contents_of_the_application<H: Harness>() {
    let mut stage = Stage::<H>::set(1).await;
    let other = add_application(stage.store(), None).await.key;
    let spared = accept(stage.store(), message(other, START)).await;
    let ids: Vec<_> = stage.accept_many(450, START).await.into_iter().map(|message| stage.first(message)).collect();
    settle(stage.store(), ids.iter().map(|id| delivered(*id, at(1))).collect()).await;
    let task = task(&stage, TaskKind::Purge).await;
    let later = stage.accept(at(1)).await;
    stage.store().start_task(task.clone(), None).await.unwrap();
    let begun = step(&stage, &task, at(2)).await;
    assert_eq!((begun.status, begun.total), (TaskStatus::Running, Some(450)));
    stage = stage.crash(at(3)).await;
    let done = finish_task(stage.store(), task.key, at(4)).await;
    assert_eq!((done.done, done.changed), (450, 450));
    for id in [ids[0], ids[200], ids[449]] {
        let found = stage.store().message(stage.app, By::Key(id.message)).await.unwrap().expect("the record stays");
        assert!(found.payload_gone && found.content.payload.is_empty());
        assert!(attempts_of(stage.store(), id.message).await.iter().all(|attempt| attempt.expunged));
        assert_eq!(stage.state(id).await, DeliveryState::Delivered);
    }
    let found = stage.store().message(stage.app, By::Key(later)).await.unwrap().expect("it is known");
    assert!(!found.payload_gone, "what came after it was asked for stays");
    let found = stage.store().message(other, By::Key(spared)).await.unwrap().expect("it is known");
    assert!(!found.payload_gone, "and so does what is another's");
}

pub async fn a_task_whose_endpoint_is_deleted_ends<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let [deleted, kept] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let dead = dead_letters(&stage, 3, START).await;
    settle(stage.store(), dead.iter().map(|id| refused(scheduled(kept, id.message), at(HOUR))).collect()).await;
    stage.store().delete_endpoint(stage.app, deleted, at(2)).await.unwrap();
    let (endpoint, since, until) = (deleted.raw(), START.as_millis(), at(DAY).as_millis());
    let filter = ReplayFilter { since, until, ..ReplayFilter::default() };
    for kind in [
        TaskKind::Recover { endpoint, since, until },
        TaskKind::ReplayMissing { endpoint, since, until, event_types: None, channels: None },
        TaskKind::BulkReplay { endpoint, filter },
        TaskKind::ReplayDead { filter: DeadFilter { endpoint: Some(endpoint), ..DeadFilter::default() } },
        TaskKind::Cancel { endpoint, before: until },
        TaskKind::Resume { endpoint, keep: Keep::None },
    ] {
        let done = run(&stage, &task(&stage, kind.clone()).await, at(DAY)).await;
        assert_eq!(done.changed, 0, "{kind:?}");
    }
    let all = TaskKind::ReplayDead { filter: DeadFilter::default() };
    let done = run(&stage, &task(&stage, all).await, at(DAY)).await;
    assert_eq!((done.done, done.changed), (6, 3), "only what still has somewhere to go");
    assert_eq!(load(stage.store(), kept, at(DAY)).await.len(), 3);
    assert_eq!(load(stage.store(), deleted, at(DAY)).await, []);
}
