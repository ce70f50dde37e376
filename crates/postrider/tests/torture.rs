//! A server whose machine fails it: no room on the disk, errors from the disk, no file handles, a clock that jumps, kills
//! without end. Nothing accepted is lost, nothing is accepted that is not safe, and it heals without help or ends with an
//! error, and then heals with the next start.
//!
//! `TORTURE_ROUNDS=20` makes the long run of it. A failure prints the seed; `KILL_SEED` draws the same load and the same
//! moments again, though not what the machine makes of them.

// The drill knows of more than is done here.
#[allow(dead_code)]
#[path = "crash/checker.rs"]
mod checker;
#[allow(dead_code)]
#[path = "crash/drill.rs"]
mod drill;
#[path = "torture/machine.rs"]
mod machine;
#[path = "torture/overload.rs"]
mod overload;
mod support;

use checker::{End, Logs, Summary, check};
use drill::Drill;
use machine::{Disk, Injection, faults_can_be_injected, interposed_clock};
use overload::{Crowd, Rates, Sink, Tally, peak_memory};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::{
    fs,
    net::TcpStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use support::{
    POLL,
    api::Client,
    chance::{draw, seed, variable},
    receiver::Receiver,
    server::Server,
    skip::skip,
    stores::{StoreKind, on_both_stores},
};

on_both_stores! {
    what_is_too_much_is_turned_away_and_the_rest_is_served_as_well_as_ever,
}

#[test]
fn a_full_disk_is_answered_with_not_now_and_all_is_well_when_there_is_room_again() {
    let first = seed("KILL_SEED");
    // In the long form the disk gets full in the middle of whatever is written: a row, a log, a checkpoint.
    let sizes: Vec<u64> = match (variable("TORTURE_SIZE"), rounds()) {
        (Some(size), _) => vec![size],
        (None, 1) => vec![1_200, 2_000, 3_500],
        (None, _) => (0..50).map(|step| 1_000 + 64 * step).collect(),
    };
    for (number, kibibytes) in (0..).zip(sizes) {
        let seed = first.wrapping_add(number);
        println!("KILL_SEED={seed} TORTURE_SIZE={kibibytes}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let Some((mut drill, disk)) = on_a_small_disk(kibibytes + rng.random_range(0..64), seed) else { return };
        // From then on nothing can be written down, and so may be repeated.
        let since = wait_for_refusals(&mut drill);
        drill.run_for(draw(100..600, &mut rng));
        // Whoever finds it full at its start may say so and end.
        for _ in 0..rng.random_range(0..3) {
            if drill.server.is_running() {
                drill.server.kill();
                drill.note_end(End::Killed { at: since });
            }
            drill.begin_again();
            drill.run_for(draw(0..400, &mut rng));
            if let Some(status) = drill.server.has_ended() {
                assert!(!status.success(), "it could not start, and says that all went well");
                drill.note_end(End::Killed { at: since });
            }
        }
        disk.grow();
        // It may be about to end.
        wait_until("it is ready or has ended", &mut drill, |drill| {
            if let Some(status) = drill.server.has_ended() {
                assert!(!status.success(), "it could not start, and says that all went well");
                drill.note_end(End::Killed { at: since });
            }
            !drill.server.is_running() || drill.server.is_ready()
        });
        if !drill.server.is_running() {
            drill.start_again();
        }
        let refusals = drill.refusals();
        let summary = verdict(drill, seed);
        println!("torture: disk-full cycles=1 on={kibibytes}KiB refusals={refusals} {}", line(&summary, seed));
    }
}

/// Without any start in between.
#[test]
fn deliveries_go_on_by_themselves_when_a_full_disk_has_room_again() {
    let seed = seed("KILL_SEED");
    let Some((mut drill, disk)) = on_a_small_disk(2_500, seed) else { return };
    for _ in 0..3 {
        wait_for_refusals(&mut drill);
        disk.grow();
        let before = drill.accepted();
        wait_until("events are accepted again", &mut drill, |drill| drill.accepted() >= before + 50);
        disk.fill();
    }
    disk.grow();
    let summary = verdict(drill, seed);
    println!("torture: disk-full-again cycles=3 {}", line(&summary, seed));
}

/// EIO, or ENOSPC, or a kill, at the n-th call of one that writes, or at every one from there on: while it starts, or under
/// load.
#[test]
fn an_error_from_the_disk_is_never_taken_for_a_success() {
    if let Err(why) = faults_can_be_injected() {
        return skip(&why);
    }
    let first = seed("KILL_SEED");
    for round in 0..rounds() {
        // Each round draws from a seed of its own, so that it can be repeated without those before it.
        let seed = first.wrapping_add(round);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut drill = Drill::start(StoreKind::Sqlite, seed, &[]);
        drill.run_for(draw(100..300, &mut rng));
        drill.kill();
        let (mut ended, mut healed, mut fired) = (0, 0, 0);
        for (since, calls, what, forever) in INJECTIONS {
            let nths: &[u32] = match since {
                Since::Start => &[1, 2, 3, 5],
                Since::Ready => &[1, 2, 3, 5, 8, 13, 21, 34],
            };
            let nth = nths[rng.random_range(0..nths.len())];
            let when = format!("{nth}{}", if forever { "+" } else { "" });
            let mut injection = Injection::new(calls, what, &when);
            match since {
                Since::Start => {
                    drill.server.wrap(&injection.wrapper());
                    drill.begin_again();
                }
                Since::Ready => {
                    drill.server.wrap(&[]);
                    drill.start_again();
                    injection.attach(drill.server.pid());
                }
            }
            let (began, life) = (Instant::now(), draw(200..1_000, &mut rng));
            let mut fired_at = None;
            let status = loop {
                if let Some(status) = drill.server.has_ended() {
                    break Some(status);
                }
                if fired_at.is_none() && injection.fired() > 0 {
                    fired_at = Some(Instant::now());
                }
                let is_over = |at: Instant| at.elapsed() > life;
                if fired_at.is_some_and(is_over) || began.elapsed() > FIRES_WITHIN {
                    break None;
                }
                drill.run_for(POLL);
            };
            let has_fired = match status {
                Some(status) => {
                    assert!(!status.success(), "{since:?} {calls} {what} {when}: it ended as if all went well");
                    drill.note_end(End::Killed { at: Instant::now() });
                    ended += 1;
                    // Nothing else ends it.
                    true
                }
                None => {
                    drill.kill();
                    healed += 1;
                    fired_at.is_some()
                }
            };
            fired += usize::from(has_fired);
            let (word, accepted) = (if has_fired { "fired" } else { "NOT FIRED" }, drill.accepted());
            println!("{since:?} {calls} {what} {when}: {word}, {status:?}, {accepted} events accepted");
        }
        drill.server.wrap(&[]);
        drill.start_again();
        let summary = verdict(drill, seed);
        let all = INJECTIONS.len();
        println!(
            "torture: io-errors cycles={all} fired={fired} ended={ended} went-on={healed} {}",
            line(&summary, seed)
        );
        assert!(fired * 4 >= all * 3, "of {all} errors only {fired} ever happened; KILL_SEED={seed}");
    }
}

/// A single error does not end it, and does not stop it for good either.
#[test]
fn a_single_error_from_the_disk_heals_without_a_restart() {
    if let Err(why) = faults_can_be_injected() {
        return skip(&why);
    }
    // Past what a start needs.
    for (calls, what, nth) in [(SYNC, "error=EIO", 60), ("pwrite64", "error=ENOSPC", 800)] {
        let seed = seed("KILL_SEED");
        let mut server = Server::not_started(&[]);
        let injection = Injection::new(calls, what, &nth.to_string());
        server.wrap(&injection.wrapper());
        let (receiver, began) = (Receiver::start(), Instant::now());
        server.start_again();
        server.take_token();
        let mut drill = Drill::start_with(server, receiver, began, seed);
        let what_for = format!("{calls} {what} has happened, and 400 events are accepted");
        wait_until(&what_for, &mut drill, |drill| injection.fired() > 0 && drill.accepted() >= 400);
        assert!(drill.server.log().contains("a batch could not be written"), "{calls} {what} was not noticed");
        let summary = verdict(drill, seed);
        println!("torture: io-error-once cycles=1 fired={} {}", injection.fired(), line(&summary, seed));
    }
}

/// It does not go on for ever without what it needs.
#[test]
fn a_disk_that_goes_on_failing_ends_the_server_with_an_error() {
    if let Err(why) = faults_can_be_injected() {
        return skip(&why);
    }
    let seed = seed("KILL_SEED");
    let (receiver, began) = (Receiver::start(), Instant::now());
    let mut server = Server::not_started(&[]);
    let injection = Injection::new(SYNC, "error=EIO", "60+");
    server.wrap(&injection.wrapper());
    server.start_again();
    server.take_token();
    let mut drill = Drill::start_with(server, receiver, began, seed);
    let mut failed_at = began;
    let status = loop {
        if let Some(status) = drill.server.has_ended() {
            break status;
        }
        assert!(began.elapsed() < Duration::from_secs(90), "it goes on without a disk");
        drill.run_for(POLL);
        if drill.refusals() == 0 {
            failed_at = Instant::now();
        }
    };
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    assert!(injection.fired() > 0, "it ended for some other reason:\n{}", drill.server.log());
    // Since then nothing was written down.
    drill.note_end(End::Killed { at: failed_at });
    drill.server.wrap(&[]);
    drill.start_again();
    let summary = verdict(drill, seed);
    println!("torture: io-errors-for-good cycles=1 fired={} {}", injection.fired(), line(&summary, seed));
}

/// Whichever the store was built to use.
const SYNC: &str = "fsync,fdatasync";

/// Since when calls are counted.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// What a start does not need so often comes under load.
    Start,
    /// Under load, whatever the start needed.
    Ready,
}

/// With whether all that follow fail, too.
const INJECTIONS: [(Since, &str, &str, bool); 16] = [
    (Since::Start, SYNC, "error=EIO", false),
    (Since::Ready, SYNC, "error=EIO", false),
    (Since::Start, SYNC, "error=EIO", true),
    (Since::Ready, SYNC, "error=EIO", true),
    (Since::Start, SYNC, "signal=KILL", false),
    (Since::Ready, SYNC, "signal=KILL", false),
    (Since::Start, "pwrite64", "error=EIO", false),
    (Since::Ready, "pwrite64", "error=EIO", false),
    (Since::Ready, "pwrite64", "error=EIO", true),
    (Since::Ready, "pwrite64", "error=ENOSPC", true),
    (Since::Start, "pwrite64", "signal=KILL", false),
    (Since::Ready, "pwrite64", "signal=KILL", false),
    (Since::Start, "pread64", "error=EIO", false),
    (Since::Start, "ftruncate", "error=EIO", false),
    (Since::Start, "openat", "error=EIO", false),
    (Since::Ready, "fsync,fdatasync,pwrite64,ftruncate", "error=EIO", true),
];

/// So long a life waits for its error. Some calls are rare, and a machine may be busy.
const FIRES_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn a_server_out_of_file_handles_waits_and_loses_nothing() {
    let seed = seed("KILL_SEED");
    let (receiver, began) = (Receiver::start(), Instant::now());
    let mut server = Server::not_started(&[]);
    server.wrap(&["prlimit", "--nofile=64:64"]);
    server.start_again();
    server.take_token();
    let mut drill = Drill::start_with(server, receiver, began, seed);
    for _ in 0..3 * rounds() {
        // They are in nobody's way but by being there: the system takes them on before the server does, while it has room.
        let address = drill.server.address();
        let connect = |_| TcpStream::connect_timeout(&address, 10 * POLL).ok();
        let crowd: Vec<TcpStream> = (0..100).map_while(connect).collect();
        drill.run_for(Duration::from_millis(700));
        drop(crowd);
        let before = drill.accepted();
        wait_until("it goes on", &mut drill, |drill| drill.accepted() >= before + 20);
    }
    let summary = verdict(drill, seed);
    println!("torture: no-handles cycles={} {}", 3 * rounds(), line(&summary, seed));
}

/// F4: each life is too short for much, and no start undoes what the one before did.
#[test]
fn a_server_that_is_killed_all_the_time_still_gets_on() {
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(StoreKind::Sqlite, seed, &[]);
    drill.run_for(Duration::from_millis(300));
    drill.kill();
    let (accepted, received) = (drill.accepted(), drill.receiver.count());
    let (mut kills, mut ready) = (0, 0);
    // By the clock and not by readiness. A debug build takes longer to get there, and so does any on a busy machine: only
    // lives that got so far count, and others make the next one longer.
    let mut longer = Duration::ZERO;
    while ready < 10 * rounds() {
        drill.begin_again();
        drill.run_for(longer + draw(190..210, &mut rng));
        if drill.server.is_ready() {
            ready += 1;
        } else {
            longer += Duration::from_millis(20);
        }
        drill.kill();
        kills += 1;
        assert!(longer < support::PATIENCE, "it does not get ready:\n{}", drill.server.log());
    }
    assert!(drill.accepted() > accepted, "nothing was accepted in {ready} lives that got ready");
    assert!(drill.receiver.count() > received, "nothing was sent in {ready} lives that got ready");
    drill.start_again();
    let summary = verdict(drill, seed);
    println!("torture: crash-loop cycles={kills} ready={ready} longer-by={longer:?} {}", line(&summary, seed));
}

/// Like a machine that is suspended. Nobody else is there to take over, so that nothing comes twice.
#[test]
fn a_server_that_is_paused_goes_on_where_it_was() {
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(StoreKind::Sqlite, seed, &[]);
    let (pauses, millis) = if rounds() > 1 { (5 * rounds(), 500..8_000) } else { (1, 1_500..2_500) };
    for _ in 0..pauses {
        drill.run_for(draw(100..600, &mut rng));
        drill.server.signal("STOP");
        drill.run_for(draw(millis.clone(), &mut rng));
        drill.server.signal("CONT");
        let before = drill.accepted();
        wait_until("it goes on", &mut drill, |drill| drill.accepted() >= before + 20);
    }
    let summary = verdict(drill, seed);
    println!("torture: pauses cycles={pauses} {}", line(&summary, seed));
}

/// F28, F29 and the pair with a kill. The time that it is told jumps; the receiver's does not.
#[test]
fn a_clock_that_jumps_loses_nothing_and_repeats_nothing() {
    let interposed = interposed_clock();
    if !Path::new(&interposed).exists() {
        return skip(&format!("{interposed} is not there (apt-get install libfaketime)"));
    }
    let seed = seed("KILL_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let told = tempfile::tempdir().expect("a folder");
    let told = told.path().join("time");
    let tell = |offset: &str| {
        // Never half written: whoever reads it reads all of it.
        let draft = told.with_extension("draft");
        fs::write(&draft, offset).and_then(|()| fs::rename(&draft, &told)).expect("a file of ours");
    };
    tell("+0");
    let (receiver, began) = (Receiver::start(), Instant::now());
    let mut server = Server::not_started(&[]);
    server.set_variables(&[
        ("LD_PRELOAD", &interposed),
        ("FAKETIME_TIMESTAMP_FILE", &told.display().to_string()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]);
    server.start_again();
    server.take_token();
    let mut drill = Drill::start_with(server, receiver, began, seed);
    let mut jumps = 0;
    for _ in 0..rounds() {
        // Whoever is started with a clock that is ahead believes it, and what he puts off waits for as long as the clock is
        // ahead when it is put right. What lasts for less than a second is not believed.
        for (offset, then_killed) in
            [("+1m", false), ("+6h", false), ("+0", false), ("+12s", true), ("+0", true), ("+2s", false), ("+0", false)]
        {
            tell(offset);
            drill.run_for(draw(400..900, &mut rng));
            if then_killed {
                drill.kill();
                drill.start_again();
            }
            jumps += 1;
        }
    }
    // A jump is believed when it has lasted for a while.
    drill.run_for(Duration::from_secs(if rounds() > 1 { 15 } else { 2 }));
    drill.clock_was_set = true;
    let summary = verdict(drill, seed);
    println!("torture: clock-jumps cycles={jumps} {}", line(&summary, seed));
}

/// Ten times of what it takes at best is offered, of messages that are owed to many, and every offer is answered.
/// `OVERLOAD_SECONDS=120` makes the long run of it, which prints the figures and judges them; the short one judges only what
/// does not depend on who else uses the machine.
fn what_is_too_much_is_turned_away_and_the_rest_is_served_as_well_as_ever(store: StoreKind) {
    let seconds: Option<u64> = variable("OVERLOAD_SECONDS");
    // The short one is also for machines that are slow, or busy, and waits until everything has arrived.
    let fan_out = seconds.map_or(2, |_| variable("FAN_OUT").unwrap_or(FAN_OUT));
    let (measuring, flood) =
        (Duration::from_secs(seconds.map_or(1, |_| 10)), Duration::from_secs(seconds.unwrap_or(3)));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (sink, bell) = (Sink::start(&runtime), Sink::start(&runtime));
    let mut server = Server::not_started_on(store);
    let crowd_max = seconds.map_or(4_000, |_| CROWD_MAX);
    let connections_max = (CROWD_MAX + 100).to_string();
    server.set_variables(&[("POSTRIDER_CONNECTIONS_MAX", &connections_max)]);
    server.start_again();
    server.take_token();
    let mut client = Client::new(server.address(), server.token());
    runtime.block_on(async {
        for (app, sink, count) in [("shop", &sink, fan_out), ("other", &bell, 1)] {
            client.create("/api/v1/app", &json!({ "name": app, "uid": app })).await;
            for number in 0..count {
                let endpoint =
                    json!({ "url": format!("http://{}/hook", sink.address), "uid": format!("hook-{number}") });
                client.create(&format!("/api/v1/app/{app}/endpoint"), &endpoint).await;
            }
        }
    });
    let body = json!({ "eventType": "it.happened", "payload": { "padding": "x".repeat(500) } }).to_string();
    let request = format!(
        "POST /api/v1/app/shop/msg?with_content=false HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.address(),
        server.token(),
        body.len()
    );
    let mut tallies = Vec::new();
    // Each as soon as it has its answer.
    let mut at_full_speed = |count: usize| {
        let crowd = Crowd::gather(&runtime, server.address(), &request, count);
        // What comes in at first is a rush, and not what can be kept up.
        crowd.offer(1_000_000, measuring / 2, &sink);
        let rates = crowd.offer(1_000_000, measuring, &sink);
        tallies.push(crowd.disperse(&runtime));
        println!("{count} connections, each as soon as it has its answer: {rates}");
        rates
    };

    let alone = runtime.block_on(time_of_one(&mut client, &bell, &body));
    // So that there is a backlog while the best is measured, as there is during the flood.
    at_full_speed(1_024);
    let best = [64, 256, 1_024, 2_048].map(&mut at_full_speed);
    let best = best.into_iter().max_by_key(|rates| rates.accepted).expect("there are some");
    let before = peak_memory(server.pid());
    // Whoever is refused waits until it is his turn, at 2,000 in a second, and as many as the gate lets in wait to be written.
    let count = (6 * best.accepted + 2_000).min(crowd_max);
    let crowd = Crowd::gather(&runtime, server.address(), &request, count);
    let neighbour = Client::new(server.address(), server.token());
    let neighbour = runtime.spawn(fare_beside(neighbour, body.clone(), flood));
    let slices = flood.as_secs().div_ceil(10).max(1);
    let slices: Vec<Rates> = (0..slices)
        .map(|_| {
            let rates = crowd.offer(10 * best.accepted, flood / slices as u32, &sink);
            println!("ten times too much from {count}: {rates}, {} MiB", peak_memory(server.pid()));
            rates
        })
        .collect();
    let ended = Instant::now();
    let beside = runtime.block_on(neighbour).expect("it does not panic");
    let tally = crowd.disperse(&runtime);
    let (recovered, afterwards) = runtime.block_on(async {
        loop {
            let began = ended.elapsed();
            let one = time_of_one(&mut client, &bell, &body).await;
            if one.accepted < alone.accepted + Duration::from_millis(100) {
                return (began, one);
            }
            assert!(ended.elapsed() < support::PATIENCE, "it does not recover: {one:?}, and alone {alone:?}");
        }
    });
    let peak = peak_memory(server.pid());
    // The more waits, the longer it takes to find what is next. So the deliveries are compared with those of as much backlog,
    // when nobody is turned away.
    let calm = at_full_speed(256);
    let mean = |of: fn(&Rates) -> usize| slices.iter().map(of).sum::<usize>() / slices.len();
    let share = |part: usize, whole: usize| part * 100 / whole.max(1);
    let (sent, accepted, arrived) =
        (mean(|rates| rates.sent), mean(|rates| rates.accepted), mean(|rates| rates.arrived));
    println!(
        "torture: overload store={store:?} best={}/s,{}deliveries/s offered={}/s sent={sent}/s goodput={accepted}/s({}%),{arrived}deliveries/s({}%) \
         afterwards={}/s,{}deliveries/s {tally:?} memory={before}MiB->{peak}MiB recovered={recovered:?} another's={alone:?}->{beside:?}->{afterwards:?}",
        best.accepted,
        best.arrived,
        10 * best.accepted,
        share(accepted, best.accepted),
        share(arrived, calm.arrived),
        calm.accepted,
        calm.arrived,
    );
    let flooded = Arc::clone(&tally);
    tallies.push(tally);
    let sum = |of: fn(&Tally) -> &AtomicUsize| -> usize { tallies.iter().map(|tally| of(tally).load(Relaxed)).sum() };
    let (taken, unanswered) = (sum(|tally| &tally.accepted), sum(|tally| &tally.unanswered));
    assert_eq!(sum(|tally| &tally.strange), 0, "every answer is yes or not now");
    assert!(peak < MEMORY_MAX, "{peak} MiB");
    // Everything that was accepted arrives, and nothing else but what got no answer.
    if seconds.is_none() {
        let (mut arrived, mut last) = (0, Instant::now());
        while arrived < taken * fan_out {
            assert!(last.elapsed() < support::PATIENCE, "{arrived} of {taken} x {fan_out} arrived");
            std::thread::sleep(POLL);
            let now = sink.arrived.load(Relaxed);
            if now > arrived {
                (arrived, last) = (now, Instant::now());
            }
        }
    }
    runtime.block_on(async {
        for number in 0..fan_out {
            let path = format!("/api/v1/app/shop/endpoint/hook-{number}/stats");
            let stats: serde_json::Value = client.get(&path).await.expect("an answer");
            let known: u64 = ["success", "pending", "sending"].iter().filter_map(|state| stats[state].as_u64()).sum();
            let known = usize::try_from(known).expect("so many were not sent");
            assert!(known >= taken, "{taken} were accepted, and of {known} is known: {stats}");
            assert!(known <= taken + unanswered, "{taken} were accepted, and {known} are known: {stats}");
        }
    });
    if seconds.is_some() {
        assert!(sent * 100 >= 95 * 10 * best.accepted, "only {sent}/s were sent");
        assert!(flooded.refused.load(Relaxed) > 0, "nothing was too much");
        assert!(accepted * 10 >= best.accepted * 9, "goodput fell from {}/s to {accepted}/s", best.accepted);
        assert!(arrived * 10 >= calm.arrived * 9, "{arrived}/s were delivered, and afterwards {}/s", calm.arrived);
        assert!(recovered < Duration::from_secs(10), "it took {recovered:?} to recover");
        assert!(beside.refused * 10 <= beside.sent, "what is sent to others was refused: {beside:?}");
        assert!(beside.accepted < Duration::from_secs(1), "what is sent to others is accepted late: {beside:?}");
        let late = afterwards.arrived.saturating_sub(alone.arrived);
        assert!(late < Duration::from_secs(1), "what is sent to others comes {late:?} late while the backlog is sent");
        let unanswered = flooded.unanswered.load(Relaxed);
        assert!(unanswered * 1_000 <= flooded.sent.load(Relaxed), "{unanswered} got no answer");
    }
}

/// How a message to another application fares.
#[derive(Clone, Copy, Debug)]
struct One {
    accepted: Duration,
    arrived: Duration,
}

/// How messages to another application fare while too many come to the first.
#[derive(Debug)]
struct Beside {
    sent: usize,
    refused: usize,
    /// In the middle of those that were.
    accepted: Duration,
}

async fn fare_beside(mut client: Client, body: String, time: Duration) -> Beside {
    let (began, mut sent, mut accepted) = (Instant::now(), 0, Vec::new());
    while began.elapsed() < time {
        let at = Instant::now();
        let answer = client.send(http::Method::POST, "/api/v1/app/other/msg", &[], &body).await;
        sent += 1;
        if answer.is_ok_and(|(status, _)| status == 202) {
            accepted.push(at.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    accepted.sort();
    let middle = accepted.get(accepted.len() / 2).copied();
    Beside { sent, refused: sent - accepted.len(), accepted: middle.unwrap_or(support::PATIENCE) }
}

/// The middle of some.
async fn time_of_one(client: &mut Client, bell: &Sink, body: &str) -> One {
    let (mut accepted, mut arrived) = (Vec::new(), Vec::new());
    while accepted.len() < 5 {
        let (before, began) = (bell.arrived.load(Relaxed), Instant::now());
        let sent = client.send(http::Method::POST, "/api/v1/app/other/msg", &[], body).await;
        if !sent.is_ok_and(|(status, _)| status == 202) {
            // As if it had taken for ever.
            accepted.push(support::PATIENCE);
            arrived.push(support::PATIENCE);
            continue;
        }
        accepted.push(began.elapsed());
        while bell.arrived.load(Relaxed) == before && began.elapsed() < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        arrived.push(began.elapsed());
    }
    accepted.sort();
    arrived.sort();
    One { accepted: accepted[2], arrived: arrived[2] }
}

/// So that one message is much work, and ten times of what can be taken is no more requests than this machine can make beside
/// it.
const FAN_OUT: usize = 200;
/// A connection is an open file at either end.
const CROWD_MAX: usize = 18_000;
/// In MiB: what is on its way in and out is bounded by bytes (64 MiB at the gate, as much in lanes, and twice as much without
/// rows), the caches of the store by pages, and a connection that is used holds about 24 KiB. The rest is room for the
/// allocator.
const MEMORY_MAX: usize = 512;

/// `None` where nothing may be mounted and that may be.
fn on_a_small_disk(kibibytes: u64, seed: u64) -> Option<(Drill, Disk)> {
    let (receiver, began) = (Receiver::start(), Instant::now());
    let mut server = Server::not_started(&[]);
    fs::create_dir(server.data()).expect("a folder that is not there yet");
    let disk = match Disk::mount(&server.data(), kibibytes) {
        Ok(disk) => disk,
        Err(why) => {
            skip(&format!("no file system can be mounted here: {why}"));
            return None;
        }
    };
    server.start_again();
    server.take_token();
    Some((Drill::start_with(server, receiver, began, seed), disk))
}

/// Says when the last look was that saw no new one.
fn wait_for_refusals(drill: &mut Drill) -> Instant {
    let before = drill.refusals();
    let mut had_room = Instant::now();
    wait_until("the disk gets full", drill, |drill| {
        let now = Instant::now();
        if drill.refusals() == before {
            had_room = now;
        }
        drill.refusals() >= before + 20
    });
    had_room
}

/// Whoever waits has a server that runs, unless `is_so` sees to its end.
fn wait_until(what: &str, drill: &mut Drill, mut is_so: impl FnMut(&mut Drill) -> bool) {
    let began = Instant::now();
    while !is_so(drill) {
        let status = drill.server.has_ended();
        let log = || drill.server.log();
        assert!(status.is_none(), "waited until {what}, and it ended with {status:?}; its log says:\n{}", log());
        assert!(began.elapsed() < WAIT_MAX, "waited {WAIT_MAX:?} in vain until {what}; its log says:\n{}", log());
        drill.run_for(POLL);
    }
}

/// Far more than anything here takes.
const WAIT_MAX: Duration = Duration::from_secs(90);

fn verdict(drill: Drill, seed: u64) -> Summary {
    let logs: Logs = drill.finish();
    match check(&logs) {
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

fn rounds() -> u64 {
    variable("TORTURE_ROUNDS").unwrap_or(1)
}
