//! Killed while it accepts and delivers, started again, and again: nothing accepted is lost, and nothing arrives
//! twice but what was under way at a kill.
//!
//! `KILL_CYCLES=200` makes the long run of it. A failure prints the seed; `KILL_SEED` draws the same load and the same
//! moments again, though not what the machine makes of them.

#[path = "crash/checker.rs"]
mod checker;
#[path = "crash/drill.rs"]
mod drill;
mod support;

use checker::{End, Logs, Summary, check};
use drill::Drill;
use http::{Method, StatusCode};
use postrider_store::marks::{ALL, Mark, Stores, When};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::{
    thread,
    time::{Duration, Instant},
};
use support::{
    api::Client,
    chance::{draw, seed, variable},
    receiver::Answer,
    server::Server,
    stores::{StoreKind, on_both_stores},
};

on_both_stores! {
    a_server_that_is_killed_again_and_again_loses_nothing_and_repeats_only_what_was_under_way,
    a_server_that_is_asked_to_stop_settles_what_is_under_way_and_repeats_nothing,
    a_second_signal_ends_it_at_once_and_loses_nothing,
    requests_that_outlast_the_time_of_grace_are_left_for_the_next_start,
    a_first_start_can_be_killed_at_any_moment,
    a_first_start_can_be_killed_at_every_mark,
    a_server_on_its_own_can_be_killed_at_every_mark_of_what_only_one_does,
}

/// On PostgreSQL the marks of load and stop belong to several nodes: see the cluster's test.
#[test]
fn a_server_can_be_killed_at_every_mark_while_it_works_and_while_it_stops() {
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(StoreKind::Sqlite, seed, &[]);
    drill.run_for(draw(200..400, &mut rng));
    drill.kill();
    let mut marks = 0;
    for _ in 0..variable("KILL_WALKS").unwrap_or(1) {
        for mark in marks_of(StoreKind::Sqlite, &[When::Load, When::Stop]) {
            marks += 1;
            drill.end_at(mark.name, times(mark, &mut rng), |server, _| match mark.when {
                When::Stop => {
                    thread::sleep(Duration::from_millis(200));
                    server.signal("TERM");
                }
                When::First | When::Load | When::Alone | When::Spill => {}
            });
        }
    }
    drill.start_again();
    let summary = verdict(&drill.finish(), seed);
    println!("torture: marks store=sqlite cycles={marks} {}", line(&summary, seed));
}

fn a_server_on_its_own_can_be_killed_at_every_mark_of_what_only_one_does(store: StoreKind) {
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(store, seed, &[]);
    drill.make_dead_letters();
    drill.run_for(draw(200..400, &mut rng));
    drill.kill();
    for mark in marks_of(store, &[When::Alone]) {
        drill.end_at(mark.name, times(mark, &mut rng), |_, _| {});
    }
    let hung = "/orders-mail";
    drill.receiver.always(hung, Answer::Hang);
    for mark in marks_of(store, &[When::Spill]) {
        // All that hangs may have come before anybody looks, and nothing more comes then.
        let began = Instant::now();
        drill.end_at(mark.name, 1, |server, receiver| {
            // Or it has ended there already.
            let has_come = || receiver.arrivals_at(hung).iter().any(|arrival| arrival.opened > began);
            while !has_come() && began.elapsed() < Duration::from_secs(5) {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(Duration::from_millis(500));
            server.signal("TERM");
        });
    }
    drill.release(hung);
    drill.start_again();
    let summary = verdict(&drill.finish(), seed);
    let marks = marks_of(store, &[When::Alone, When::Spill]).count();
    println!("torture: marks-alone store={store:?} cycles={marks} {}", line(&summary, seed));
}

fn a_first_start_can_be_killed_at_every_mark(store: StoreKind) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let message = json!({ "eventType": "a.b", "payload": {} });
    let mut kept = 0;
    for mark in marks_of(store, &[When::First]) {
        let mut server = Server::not_started_on(store);
        server.set_variables(&[("CRASH_AT", mark.name)]);
        server.begin_again();
        let mut accepted: Vec<String> = Vec::new();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = server.has_ended() {
                break status;
            }
            // Some are come by only with the first message.
            if server.is_ready() {
                let mut client = Client::new(server.address(), &server.make_token(&[]));
                let answer = runtime.block_on(async {
                    client.send(Method::POST, "/api/v1/app", &[], r#"{"name": "first", "uid": "first"}"#).await?;
                    client.send(Method::POST, "/api/v1/app/first/msg", &[], &message.to_string()).await
                });
                if let Ok((StatusCode::ACCEPTED, answer)) = answer {
                    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
                    accepted.push(format!("first/msg/{}", answer["id"].as_str().expect("an id")));
                }
            }
            assert!(began.elapsed() < support::PATIENCE, "it did not come by {}", mark.name);
            thread::sleep(Duration::from_millis(2));
        };
        assert_eq!(status.code(), None, "it ended otherwise than at {}: {status}\n{}", mark.name, server.log());
        server.set_variables(&[]);
        server.start_again();
        let mut client = Client::new(server.address(), &server.make_token(&[]));
        let second = runtime.block_on(async {
            client.create("/api/v1/app", &json!({ "name": "second", "uid": "second" })).await;
            client.create("/api/v1/app/second/msg", &message).await
        });
        accepted.push(format!("second/msg/{}", second["id"].as_str().expect("an id")));
        // Most marks come before anything is accepted: what follows must be kept as well.
        server.kill();
        server.start_again();
        let mut client = Client::new(server.address(), &server.make_token(&[]));
        for path in &accepted {
            // It panics at anything but 200.
            let kept: Value = runtime.block_on(client.get(&format!("/api/v1/app/{path}"))).expect("the server answers");
            assert!(path.ends_with(kept["id"].as_str().expect("an id")), "{}: {path}", mark.name);
        }
        kept += accepted.len();
    }
    println!("torture: marks-first store={store:?} cycles={} accepted={kept}", marks_of(store, &[When::First]).count());
}

#[test]
fn a_mark_that_is_not_there_is_an_error_at_start() {
    let mut server = Server::not_started(&[]);
    server.set_variables(&[("CRASH_AT", "nowhere:1")]);
    server.begin_again();
    assert!(!server.wait_for_end(AT_ONCE).success());
    assert!(server.log().contains("there is no mark `nowhere`"), "{}", server.log());
}

fn marks_of(store: StoreKind, when: &'static [When]) -> impl Iterator<Item = &'static Mark> {
    let here = move |stores| match stores {
        Stores::Both => true,
        Stores::Sqlite => store == StoreKind::Sqlite,
        Stores::Postgresql => store == StoreKind::Postgresql,
    };
    ALL.iter().filter(move |mark| here(mark.stores) && when.contains(&mark.when))
}

/// What is come by often is come by in many states.
fn times(mark: &Mark, rng: &mut impl Rng) -> u32 {
    let often = ["request", "store", "answer", "send", "settle"].iter().any(|part| mark.name.starts_with(part));
    if often && mark.name != "store.health" { rng.random_range(1..12) } else { 1 }
}

/// In rounds, each on a store of its own, so that no round's logs grow beyond what can be held.
fn a_server_that_is_killed_again_and_again_loses_nothing_and_repeats_only_what_was_under_way(store: StoreKind) {
    let mut left: usize = variable("KILL_CYCLES").unwrap_or(fewer_if_shared(store, 20));
    let mut seed = seed("KILL_SEED");
    while left > 0 {
        let cycles = left.min(CYCLES_PER_ROUND);
        left -= cycles;
        kill_again_and_again(store, cycles, seed);
        seed = seed.wrapping_add(1);
    }
}

fn kill_again_and_again(store: StoreKind, cycles: usize, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(store, seed, &[]);
    let (mut late, mut kills) = (0, 0);
    for cycle in 1..=cycles {
        // A short life is killed amid what the last one left over; a long one has much that must stay settled. On
        // PostgreSQL a short one only accepts: it sends nothing before the lease of the last one has ended.
        let long_every = match store {
            StoreKind::Sqlite if cycles > 20 => 20,
            StoreKind::Sqlite => 5,
            StoreKind::Postgresql => 2,
        };
        let life = draw(if cycle % long_every == 0 { 2_200..2_800 } else { 50..400 }, &mut rng);
        drill.run_for(life);
        drill.kill();
        let starts = if cycle % 4 == 0 { 3 } else { 0 };
        for _ in 0..starts {
            drill.begin_again();
            drill.run_for(draw(0..80, &mut rng));
            drill.kill();
        }
        kills += 1 + starts;
        let ready = drill.start_again();
        println!(
            "cycle {cycle}: killed after {life:?}, then {starts} times while starting; ready in {ready:?}; \
             {} events accepted, {} requests received",
            drill.accepted(),
            drill.receiver.count()
        );
        late += usize::from(ready > READY_WITHIN);
    }
    // Told, not judged: how long a start takes is up to whoever else uses the machine.
    println!("{late} of {cycles} starts took longer than {READY_WITHIN:?}");
    let summary = verdict(&drill.finish(), seed);
    println!(
        "torture: kill store={store:?} cycles={cycles} kills={kills} repeated-lane-max={} {}",
        summary.repeats_of_a_lane_max,
        line(&summary, seed)
    );
    // Even on a machine that others use up something is accepted in most lives.
    assert!(summary.messages > cycles, "there was hardly any load: {summary:?}");
}

fn a_server_that_is_asked_to_stop_settles_what_is_under_way_and_repeats_nothing(store: StoreKind) {
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(store, seed, &[]);
    for _ in 0..5 {
        drill.run_for(draw(100..500, &mut rng));
        let asked = Instant::now();
        let status = drill.stop();
        println!("stopped in {:?}, {} events accepted", asked.elapsed(), drill.accepted());
        assert_eq!(status.code(), Some(0));
        assert!(asked.elapsed() < GRACE, "no request of this load takes long, and it took {:?}", asked.elapsed());
        // While it starts, too. Before it can hear a signal the system ends it, and there is nothing to lose.
        drill.begin_again();
        drill.run_for(draw(0..80, &mut rng));
        let status = drill.stop();
        assert!(matches!(status.code(), Some(0) | None), "{status}");
        drill.start_again();
    }
    let summary = verdict(&drill.finish(), seed);
    assert_eq!(summary.repeats, 0, "{summary:?}");
}

fn a_second_signal_ends_it_at_once_and_loses_nothing(store: StoreKind) {
    let seed = seed("KILL_SEED");
    let mut drill = Drill::start(store, seed, &[]);
    drill.hold("/orders-mail");
    drill.server.signal("TERM");
    drill.wait_for_word("a second signal ends it at once");
    let at = Instant::now();
    drill.server.signal("TERM");
    let status = drill.server.wait_for_end(AT_ONCE);
    drill.note_end(End::Killed { at });
    assert_eq!(status.code(), Some(0));
    drill.release("/orders-mail");
    drill.start_again();
    let summary = verdict(&drill.finish(), seed);
    assert!(summary.repeats > 0, "the requests that hung are made again: {summary:?}");
}

fn requests_that_outlast_the_time_of_grace_are_left_for_the_next_start(store: StoreKind) {
    let seed = seed("KILL_SEED");
    let mut drill = Drill::start(store, seed, &["--shutdown-grace", "500ms"]);
    drill.hold("/orders-books");
    let at = Instant::now();
    drill.server.signal("TERM");
    let status = drill.server.wait_for_end(AT_ONCE);
    drill.note_end(End::Killed { at });
    assert_eq!(status.code(), Some(0));
    assert!(at.elapsed() >= Duration::from_millis(500), "they had no chance to end: {:?}", at.elapsed());
    drill.release("/orders-books");
    drill.start_again();
    verdict(&drill.finish(), seed);
}

fn a_first_start_can_be_killed_at_any_moment(store: StoreKind) {
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for _ in 0..fewer_if_shared(store, 15) {
        let mut server = Server::not_started_on(store);
        for _ in 0..3 {
            server.begin_again();
            thread::sleep(draw(0..60, &mut rng));
            server.kill();
        }
        server.start_again();
        let mut client = Client::new(server.address(), &server.make_token(&[]));
        runtime.block_on(async {
            client.create("/api/v1/app", &json!({ "name": "first", "uid": "first" })).await;
            client.create("/api/v1/app/first/msg", &json!({ "eventType": "a.b", "payload": {} })).await;
        });
    }
}

/// Where nodes share a database, whoever starts after a kill waits for a lease to end.
fn fewer_if_shared(store: StoreKind, times: usize) -> usize {
    match store {
        StoreKind::Sqlite => times,
        StoreKind::Postgresql => times * 2 / 5,
    }
}

fn verdict(logs: &Logs, seed: u64) -> Summary {
    match check(logs) {
        Ok(summary) => {
            println!("{summary:?}");
            summary
        }
        Err(violations) => {
            for violation in violations.iter().take(20) {
                println!("{violation}");
            }
            panic!("{} violations, the first of them above; KILL_SEED={seed}", violations.len());
        }
    }
}

/// For whoever adds them up.
fn line(summary: &Summary, seed: u64) -> String {
    let Summary { messages, lost, repeats, .. } = summary;
    format!("accepted={messages} lost={lost} repeated={repeats} seed={seed}")
}

const CYCLES_PER_ROUND: usize = 100;
const READY_WITHIN: Duration = Duration::from_secs(2);
/// The default of `shutdown_grace`.
const GRACE: Duration = Duration::from_secs(30);
/// With room for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);
