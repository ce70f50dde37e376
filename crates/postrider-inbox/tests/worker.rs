//! The loop behind the inbox, under a clock of the test's making.

mod common;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use common::*;
use metrics_util::debugging::DebuggingRecorder;
use postrider_inbox::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::sync::{Notify, Semaphore, oneshot};

fn worker<S: Store>(inbox: &Inbox<S>, settings: WorkerSettings) -> Worker<S> {
    Worker::new(inbox.clone(), settings, ChaCha8Rng::seed_from_u64(1)).unwrap()
}

fn inbox() -> (Inbox<MemoryStore>, TestClock) {
    let clock = TestClock::new();
    (Inbox::new(MemoryStore::new(), clock.clone()), clock)
}

async fn queue<S: Store>(inbox: &Inbox<S>, count: usize) {
    for number in 0..count {
        let _ = inbox.store().record(&event(&format!("{number}")), Limits::default()).await.unwrap();
    }
}

fn retry(attempts_max: u32) -> WorkerSettings {
    let retry = Retry { attempts_max, delay_first: Duration::from_secs(10), delay_max: Duration::from_secs(60) };
    WorkerSettings { retry, ..WorkerSettings::default() }
}

async fn fail(_: Event) -> Result<(), Failure> {
    Err(Failure::again("the database is away"))
}

async fn succeed(_: Event) -> Result<(), Failure> {
    Ok(())
}

#[tokio::test]
async fn what_fails_is_tried_again_and_is_dead_in_the_end() {
    let (inbox, clock) = inbox();
    queue(&inbox, 1).await;
    let worker = worker(&inbox, retry(3));
    let mut waits = Vec::new();
    for _ in 0..3 {
        assert_eq!(worker.turn(fail).await.unwrap(), 1);
        assert_eq!(worker.turn(fail).await.unwrap(), 0, "not at once");
        if let Some(due) = inbox.standing().await.unwrap().due_first {
            waits.push(due.since(clock.now()));
            clock.advance(due.since(clock.now()));
        }
    }
    for (wait, seconds) in waits.iter().zip([10, 20]) {
        let full = Duration::from_secs(seconds);
        assert!(full / 2 <= *wait && *wait <= full, "{wait:?} of {full:?}");
    }
    let dead = inbox.dead(None, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].attempts, dead[0].reason.as_str()), (1, 3, "the database is away"));
}

#[tokio::test]
async fn what_is_permanent_is_dead_at_once_and_can_be_replayed() {
    let (inbox, _) = inbox();
    queue(&inbox, 2).await;
    let worker = worker(&inbox, retry(5));
    worker.turn(async |_: Event| Err(Failure::never("no such order"))).await.unwrap();
    assert_eq!(inbox.dead(None, 10).await.unwrap().len(), 2);
    assert_eq!(inbox.replay(&key("0")).await.unwrap(), Replayed::Queued);
    assert_eq!(worker.turn(succeed).await.unwrap(), 1);
    assert_eq!(inbox.replay_all_dead().await.unwrap(), 1);
    assert_eq!(worker.turn(succeed).await.unwrap(), 1);
    assert_eq!(inbox.standing().await.unwrap(), Standing::default());
}

#[tokio::test]
async fn an_error_of_any_kind_is_tried_again() {
    async fn parse(event: Event) -> Result<(), Failure> {
        std::str::from_utf8(&event.body)?.parse::<u64>()?;
        Ok(())
    }
    let (inbox, _) = inbox();
    queue(&inbox, 1).await;
    worker(&inbox, retry(3)).turn(parse).await.unwrap();
    let standing = inbox.standing().await.unwrap();
    assert_eq!((standing.queued, standing.dead), (1, 0));
}

#[tokio::test]
async fn a_dead_event_says_all_that_its_error_came_from() {
    async fn ask(_: Event) -> Result<(), Failure> {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "nobody listens");
        Err(StoreError::unavailable(refused))?
    }
    let (inbox, _) = inbox();
    queue(&inbox, 1).await;
    worker(&inbox, retry(1)).turn(ask).await.unwrap();
    let dead = inbox.dead(None, 1).await.unwrap();
    assert_eq!(dead[0].reason, "the inbox's store cannot be reached, or refused: nobody listens");
}

#[tokio::test]
async fn a_reason_without_end_is_cut() {
    let (inbox, _) = inbox();
    queue(&inbox, 1).await;
    worker(&inbox, retry(5)).turn(async |_: Event| Err(Failure::never("x".repeat(1 << 20)))).await.unwrap();
    let dead = inbox.dead(None, 1).await.unwrap();
    assert!(dead[0].reason.len() <= 2_048, "{} bytes", dead[0].reason.len());
}

#[tokio::test]
async fn a_panic_is_a_failure_and_nobody_elses() {
    async fn panic_once(event: Event) -> Result<(), Failure> {
        assert_ne!(event.key, key("1"), "this panic belongs to the test");
        Ok(())
    }
    let (inbox, _) = inbox();
    queue(&inbox, 3).await;
    worker(&inbox, retry(1)).turn(panic_once).await.unwrap();
    let dead = inbox.dead(None, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].reason.as_str()), (1, "the handler panicked"));
    assert_eq!(inbox.standing().await.unwrap().queued, 0);
}

#[tokio::test]
async fn a_panic_before_the_handlers_future_is_a_failure_too() {
    let (inbox, _) = inbox();
    queue(&inbox, 1).await;
    let handler = |event: Event| {
        assert_ne!(event.key, key("0"), "this panic belongs to the test");
        succeed(event)
    };
    worker(&inbox, retry(1)).turn(handler).await.unwrap();
    let dead = inbox.dead(None, 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].reason.as_str()), (1, "the handler panicked"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_cut_off() {
    let (inbox, _) = inbox();
    queue(&inbox, 1).await;
    let ended = Arc::new(AtomicBool::new(false));
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let guard = Arc::clone(&ended);
    let hang = move |_: Event| {
        let guard = OnDrop(Arc::clone(&guard));
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Ok(())
        }
    };
    let begun = tokio::time::Instant::now();
    worker(&inbox, retry(1)).turn(hang).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert!(inbox.dead(None, 1).await.unwrap()[0].reason.contains("longer than 30s"));
    tokio::task::yield_now().await;
    assert!(ended.load(Ordering::SeqCst), "it does not run on behind");
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_no_longer_than_its_lease_though_the_claim_took_long() {
    for (claim_takes, called_for) in [(10, Some(30)), (40, Some(20)), (60, None), (90, None)] {
        // It is looked at before the claim and after it, and so on.
        let looks = AtomicUsize::new(0);
        let clock = move || at(looks.fetch_add(1, Ordering::SeqCst) as i64 * claim_takes * 1_000);
        let inbox = Inbox::new(MemoryStore::new(), clock);
        queue(&inbox, 1).await;
        let called = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&called);
        let hang = move |_: Event| {
            flag.store(true, Ordering::SeqCst);
            std::future::pending()
        };
        let begun = tokio::time::Instant::now();
        worker(&inbox, retry(1)).turn(hang).await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), called_for.unwrap_or(0), "{claim_takes}");
        assert_eq!(called.load(Ordering::SeqCst), called_for.is_some(), "{claim_takes}");
        let standing = inbox.standing().await.unwrap();
        assert_eq!(standing.dead == 1, called_for.is_some(), "what was not called has not failed: {standing:?}");
    }
}

#[tokio::test]
async fn an_event_that_ends_its_process_each_time_is_dead_one_day() {
    let (inbox, clock) = inbox();
    queue(&inbox, 1).await;
    for _ in 0..3 {
        // Claimed, and never heard of again.
        assert_eq!(inbox.store().claim(1, LEASE, clock.now()).await.unwrap().len(), 1);
        clock.advance(LEASE);
    }
    let called = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&called);
    let handler = move |_: Event| {
        flag.store(true, Ordering::SeqCst);
        async { Ok(()) }
    };
    worker(&inbox, retry(3)).turn(handler).await.unwrap();
    assert!(!called.load(Ordering::SeqCst), "its three attempts are over");
    assert!(inbox.dead(None, 1).await.unwrap()[0].reason.contains("worker was lost"));
}

#[tokio::test]
async fn a_worker_that_comes_late_does_not_undo_what_another_did() {
    let (inbox, clock) = inbox();
    queue(&inbox, 1).await;
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = {
        let (worker, started, go_on) = (worker(&inbox, retry(5)), Arc::clone(&started), Arc::clone(&go_on));
        tokio::spawn(async move {
            let handler = move |_: Event| {
                let (started, go_on) = (Arc::clone(&started), Arc::clone(&go_on));
                async move {
                    started.notify_one();
                    go_on.notified().await;
                    Err(Failure::never("too late"))
                }
            };
            worker.turn(handler).await.unwrap()
        })
    };
    started.notified().await;
    clock.advance(LEASE);
    assert_eq!(worker(&inbox, retry(5)).turn(succeed).await.unwrap(), 1);
    go_on.notify_one();
    assert_eq!(slow.await.unwrap(), 1);
    assert_eq!(inbox.standing().await.unwrap(), Standing::default(), "done, and not dead");
}

#[tokio::test]
async fn no_more_handlers_run_at_once_than_allowed_and_all_events_are_worked_off() {
    let (inbox, _) = inbox();
    queue(&inbox, 40).await;
    let (running, most, done) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let done = Arc::clone(&done);
        let most = Arc::clone(&most);
        move |_: Event| {
            let (running, most, done) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&done));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                done.add_permits(1);
                Ok(())
            }
        }
    };
    let settings = WorkerSettings { concurrency: 4, ..WorkerSettings::default() };
    let all = async move { drop(done.acquire_many(40).await.unwrap()) };
    worker(&inbox, settings).run(handler, all).await;
    assert_eq!(most.load(Ordering::SeqCst), 4);
    assert_eq!(inbox.standing().await.unwrap().queued, 0, "handlers that ran were waited for");
}

#[tokio::test(start_paused = true)]
async fn what_comes_in_is_worked_off_at_once_and_not_at_the_next_look() {
    let (inbox, _) = inbox();
    let settings = WorkerSettings { look_every: Duration::from_hours(1), ..WorkerSettings::default() };
    let begun = tokio::time::Instant::now();
    let (told, hears) = oneshot::channel();
    let told = Arc::new(Mutex::new(Some(told)));
    let handler = move |_: Event| {
        let told = told.lock().unwrap().take();
        async move {
            told.unwrap().send(()).unwrap();
            Ok(())
        }
    };
    let door = inbox.door("shop", source()).unwrap();
    let worker = worker(&inbox, settings);
    let run = worker.run(handler, async { hears.await.unwrap() });
    let sender = async {
        // The worker has looked once and found nothing.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (headers, body) = signed("msg_1", "{}", at(0));
        assert_eq!(door.take(&headers, body).await, Outcome::Accepted { arrival: None });
    };
    tokio::join!(run, sender);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_handlers_and_claims_nothing_more() {
    let (inbox, _) = inbox();
    queue(&inbox, 2).await;
    let (started, stop) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let started = Arc::clone(&started);
        move |_: Event| {
            let started = Arc::clone(&started);
            async move {
                started.notify_one();
                tokio::time::sleep(Duration::from_secs(20)).await;
                Ok(())
            }
        }
    };
    let settings = WorkerSettings { concurrency: 1, ..WorkerSettings::default() };
    let stopper = async {
        started.notified().await;
        stop.notify_one();
    };
    let worker = worker(&inbox, settings);
    tokio::join!(worker.run(handler, stop.notified()), stopper);
    assert_eq!(
        inbox.standing().await.unwrap().queued,
        1,
        "one was finished, and the other one waits for the next start"
    );
}

/// As a kill does where a process can be killed; the memory of this one must stay.
#[tokio::test]
async fn what_a_lost_worker_had_is_taken_by_another() {
    for is_effect_there in [false, true] {
        let (inbox, clock) = inbox();
        queue(&inbox, 1).await;
        let (effects, reached) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let lost = {
            let (worker, effects, reached) = (worker(&inbox, retry(5)), Arc::clone(&effects), Arc::clone(&reached));
            tokio::spawn(async move {
                let handler = move |_: Event| {
                    let (effects, reached) = (Arc::clone(&effects), Arc::clone(&reached));
                    async move {
                        effects.fetch_add(usize::from(is_effect_there), Ordering::SeqCst);
                        reached.notify_one();
                        std::future::pending().await
                    }
                };
                worker.turn(handler).await.unwrap()
            })
        };
        reached.notified().await;
        lost.abort();
        let handler = |effects: Arc<AtomicUsize>| {
            move |_: Event| {
                effects.fetch_add(1, Ordering::SeqCst);
                async { Ok(()) }
            }
        };
        let another = worker(&inbox, retry(5));
        assert_eq!(another.turn(handler(Arc::clone(&effects))).await.unwrap(), 0, "the lease still holds");
        clock.advance(LEASE);
        assert_eq!(another.turn(handler(Arc::clone(&effects))).await.unwrap(), 1);
        clock.advance(LEASE);
        assert_eq!(another.turn(handler(Arc::clone(&effects))).await.unwrap(), 0, "it is done");
        assert_eq!(effects.load(Ordering::SeqCst), 1 + usize::from(is_effect_there));
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_stops_though_its_store_does_not_answer() {
    let flaky = Flaky { is_hung: true, ..Flaky::default() };
    let inbox = Inbox::new(flaky, TestClock::new());
    let worker = worker(&inbox, retry(5));
    let stop = tokio::time::sleep(Duration::from_secs(1));
    tokio::time::timeout(Duration::from_secs(2), worker.run(succeed, stop)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_stops_though_nobody_says_that_its_settlement_is_written() {
    let inbox = Inbox::new(Flaky { is_settling_hung: true, ..Flaky::default() }, TestClock::new());
    queue(&inbox, 1).await;
    let worker = worker(&inbox, retry(5));
    let stop = tokio::time::sleep(Duration::from_secs(1));
    tokio::time::timeout(Duration::from_mins(2), worker.run(succeed, stop)).await.unwrap();
    assert_eq!(inbox.standing().await.unwrap().queued, 1, "it is due again with its lease");
}

/// A store that is away now and then.
#[derive(Default)]
struct Flaky {
    inside: MemoryStore,
    settlements_refused: AtomicUsize,
    is_hung: bool,
    is_settling_hung: bool,
    /// Settlements that are written, and nobody hears of it.
    answers_lost: AtomicUsize,
}

#[tokio::test(start_paused = true)]
async fn a_settlement_is_insisted_on_while_the_store_is_away() {
    let flaky = Flaky { settlements_refused: AtomicUsize::new(3), ..Flaky::default() };
    let inbox = Inbox::new(flaky, TestClock::new());
    queue(&inbox, 1).await;
    worker(&inbox, retry(5)).turn(succeed).await.unwrap();
    assert_eq!(inbox.standing().await.unwrap().queued, 0, "else it would be done twice");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_whose_answer_was_lost_is_no_lost_lease() {
    async fn refuse(_: Event) -> Result<(), Failure> {
        Err(Failure::never("no such order"))
    }
    async fn turn(seconds: i64, is_refused: bool) -> Vec<String> {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        // Tasks of the worker run on this thread, too.
        let _guard = metrics::set_default_local_recorder(&recorder);
        // It goes on with every look: at the claim, before the handler, twice at the settlement, and when its answer comes.
        let looks = AtomicUsize::new(0);
        let clock = move || at(looks.fetch_add(1, Ordering::SeqCst) as i64 * seconds * 1_000);
        let inbox = Inbox::new(Flaky { answers_lost: 1.into(), ..Flaky::default() }, clock);
        queue(&inbox, 1).await;
        let worker = worker(&inbox, retry(5));
        match is_refused {
            true => worker.turn(refuse).await.unwrap(),
            false => worker.turn(succeed).await.unwrap(),
        };
        counted(&snapshotter).into_keys().collect()
    }
    assert_eq!(turn(10, false).await, ["processed_total source=shop"]);
    assert_eq!(turn(10, true).await, ["dead_total source=shop", "failed_total source=shop"]);
    let nothing: [&str; 0] = [];
    assert_eq!(turn(15, false).await, nothing, "the lease is over: another worker may have taken it");
}

#[tokio::test]
async fn a_lease_that_was_lost_is_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (inbox, clock) = inbox();
    queue(&inbox, 1).await;
    let worker = worker(&inbox, retry(5));
    let handler = move |_: Event| {
        clock.advance(LEASE);
        let (inbox, now) = (inbox.clone(), clock.now());
        async move {
            assert_eq!(inbox.store().claim(1, LEASE, now).await.unwrap().len(), 1, "another worker takes it");
            Ok(())
        }
    };
    worker.turn(handler).await.unwrap();
    assert_eq!(counted(&snapshotter).into_keys().collect::<Vec<_>>(), ["leases_lost_total source=shop"]);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let (inbox, _) = inbox();
    let fine = WorkerSettings::default();
    for (settings, expected) in [
        (WorkerSettings { concurrency: 0, ..fine }, "concurrency"),
        (WorkerSettings { lease: fine.handler_timeout, ..fine }, "lease"),
        (WorkerSettings { look_every: Duration::ZERO, ..fine }, "look_every"),
        (WorkerSettings { clean_every: Duration::ZERO, ..fine }, "clean_every"),
        (retry(0), "attempt"),
    ] {
        let refused = Worker::new(inbox.clone(), settings, ChaCha8Rng::seed_from_u64(1)).err().unwrap();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}

#[async_trait]
impl Store for Flaky {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.inside.migrate().await
    }

    async fn record(&self, event: &Event, limits: Limits) -> Result<Recorded, StoreError> {
        self.inside.record(event, limits).await
    }

    async fn claim(&self, max: usize, lease: Duration, now: Timestamp) -> Result<Vec<Claim>, StoreError> {
        if self.is_hung {
            std::future::pending::<()>().await;
        }
        self.inside.claim(max, lease, now).await
    }

    async fn settle(&self, ticket: &Ticket, settlement: &Settlement, now: Timestamp) -> Result<Settled, StoreError> {
        if self.is_settling_hung {
            std::future::pending::<()>().await;
        }
        let left = self.settlements_refused.load(Ordering::SeqCst);
        if left > 0 {
            self.settlements_refused.store(left - 1, Ordering::SeqCst);
            return Err(StoreError::unavailable("away"));
        }
        let settled = self.inside.settle(ticket, settlement, now).await;
        match self.answers_lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(StoreError::unavailable("the answer was lost")),
            Err(_) => settled,
        }
    }

    async fn dead(&self, after: Option<&DeadCursor>, max: usize) -> Result<Vec<DeadEvent>, StoreError> {
        self.inside.dead(after, max).await
    }

    async fn replay(&self, key: &EventKey, now: Timestamp) -> Result<Replayed, StoreError> {
        self.inside.replay(key, now).await
    }

    async fn replay_dead(&self, until: Timestamp, max: usize, now: Timestamp) -> Result<usize, StoreError> {
        self.inside.replay_dead(until, max, now).await
    }

    async fn clean(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.inside.clean(before, max).await
    }

    async fn forget_dead(&self, before: Timestamp, max: usize) -> Result<usize, StoreError> {
        self.inside.forget_dead(before, max).await
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        self.inside.standing().await
    }
}
