//! Recovering dead letters, in steps that survive a restart.

use super::{Harness, fixtures::*};
use crate::*;
use postrider_engine::{DeliveryId, EndpointKey, Timestamp};

fn recovery<H: Harness>(stage: &Stage<H>, endpoint: EndpointKey, since: Timestamp, until: Timestamp) -> Task {
    Task {
        key: TaskKey(stage.store().mint(START)),
        endpoint,
        since,
        until,
        recovered: 0,
        status: TaskStatus::Running,
        updated_at: at(1),
    }
}

async fn run<H: Harness>(stage: &Stage<H>, task: &Task, now: Timestamp) -> Task {
    stage.store().start_task(task.clone(), None).await.expect("a task is started");
    finish_task(stage.store(), task.key, now).await
}

async fn dead_letters<H: Harness>(stage: &Stage<H>, count: usize, accepted: Timestamp) -> Vec<DeliveryId> {
    let ids: Vec<_> =
        stage.accept_many(count, accepted).await.into_iter().map(|message| stage.first(message)).collect();
    settle(stage.store(), ids.iter().map(|id| refused(*id, at(HOUR))).collect()).await;
    ids
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

    let task = run(&stage, &recovery(&stage, stage.endpoints[0], at(20), at(40)), at(DAY)).await;
    assert_eq!((task.recovered, task.updated_at), (2, at(DAY)));
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
    let dead = dead_letters(&stage, 900, START).await;
    let task = recovery(&stage, stage.endpoints[0], START, at(1));
    stage.store().start_task(task.clone(), None).await.unwrap();
    assert_eq!(stage.store().task(task.key).await.unwrap(), Some(task.clone()));
    let half = stage.store().advance_task(task.key, at(DAY)).await.unwrap().expect("it exists");
    assert_eq!(half.status, TaskStatus::Running, "so many are not done in one step");
    assert!(half.recovered > 0);

    let stage = stage.crash(at(DAY)).await;
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), [task.key]);
    assert_eq!(stage.store().task(task.key).await.unwrap(), Some(half.clone()));
    stage.store().advance_task(task.key, at(DAY)).await.unwrap();
    let stage = stage.reopen(at(DAY)).await;
    let done = finish_task(stage.store(), task.key, at(DAY)).await;
    assert_eq!(done.recovered, 900, "each once");
    assert_eq!(all_waiting(stage.store()).await, dead);
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), []);
    assert_eq!(stage.store().counts().await.unwrap(), Counts { waiting: 900, dead: 0 });
    assert_eq!(stage.store().advance_task(task.key, at(2 * DAY)).await.unwrap(), Some(done), "finished is finished");
}

pub async fn a_recovered_delivery_starts_a_new_cycle<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut committed = stage.store().committed();
    let id = dead_letters(&stage, 1, START).await[0];
    for cycle in 1..4 {
        while committed.try_recv().is_ok() {}
        run(&stage, &recovery(&stage, id.endpoint, START, at(DAY)), at(cycle * DAY)).await;
        let mut news = Vec::new();
        while let Ok(more) = committed.try_recv() {
            news.extend(more);
        }
        let expected = (id.endpoint, at(cycle * DAY));
        assert!(
            matches!(news[..], [Committed::Waiting { endpoint, due }] if (endpoint, due) == expected),
            "the lane is woken: {news:?}"
        );
        let loaded = stage.store().load(id.endpoint, at(cycle * DAY), 10).await.unwrap();
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
    assert_eq!(run(&stage, &recovery(&stage, stage.endpoints[0], START, at(1)), at(DAY)).await.recovered, 3);
    stage.settle(stored(delivered(dead[0], at(DAY)))).await;
    assert_eq!(run(&stage, &recovery(&stage, stage.endpoints[0], START, at(1)), at(2 * DAY)).await.recovered, 0);
    let loaded = stage.store().load(stage.endpoints[0], at(3 * DAY), 10).await.unwrap();
    let found: Vec<_> = loaded.deliveries.iter().map(|waiting| (waiting.id, waiting.cycle, waiting.due)).collect();
    assert_eq!(found, [(dead[1], 1, at(DAY)), (dead[2], 1, at(DAY))], "one cycle, as the first left it");
}

pub async fn a_recovery_asked_for_twice_is_one<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let kept = || Some(remember(chosen(1, 1), 202, b"started"));
    let first = recovery(&stage, stage.endpoints[0], START, at(1));
    stage.store().start_task(first.clone(), kept()).await.unwrap();
    let second = recovery(&stage, stage.endpoints[0], START, at(1));
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
    assert_eq!(stage.store().unfinished_tasks().await.unwrap(), []);
}
