//! Three nodes on one database under load: whatever happens to one of them, or to the database, nothing accepted is lost,
//! nothing arrives twice but what was under way, and what is limited or ordered over all nodes stays so.
//!
//! `CLUSTER_ROUNDS=20` makes the long run of it. A failure prints the seed; `CLUSTER_SEED` draws the same load and the
//! same moments again, though not what the machine makes of them. `CLUSTER_HARM=Pause` does only that kind of harm.

#[path = "cluster/drill.rs"]
mod drill;
#[path = "cluster/judge.rs"]
mod judge;
mod support;

use drill::Drill;
use judge::{Kind, Logs, Summary, judge};
use postrider_store::marks::{ALL, Mark, Stores, When};
use postrider_testbed::Mode;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};
use support::{
    api::Client,
    chance::{draw, seed, variable},
    cluster::Cluster,
    eventually,
    receiver::Receiver,
};

#[test]
fn three_nodes_keep_their_promises_whatever_happens_to_one_of_them_or_to_the_database() {
    let rounds: usize = variable("CLUSTER_ROUNDS").unwrap_or(1);
    let only: String = variable("CLUSTER_HARM").unwrap_or_default();
    let seed = seed("CLUSTER_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut drill = Drill::start(Cluster::start(NODES, &[]), seed);
    drill.wait_for_flow();
    for round in 1..=rounds {
        let mut harms: Vec<Harm> = HARMS.into_iter().filter(|harm| format!("{harm:?}").contains(&only)).collect();
        shuffle(&mut harms, &mut rng);
        for harm in harms {
            drill.run_for(draw(200..1_000, &mut rng));
            let node = rng.random_range(0..NODES);
            match harm {
                Harm::Kill { away } => {
                    let away = draw(away, &mut rng);
                    drill.suffer(|cluster| {
                        let alive = Instant::now();
                        cluster.nodes[node].server.kill();
                        let dead = Instant::now();
                        thread::sleep(away);
                        cluster.nodes[node].server.start_again();
                        Kind::Killed { node, alive, dead }
                    });
                }
                Harm::Pause => {
                    let pause = draw(6_000..8_000, &mut rng);
                    drill.suffer(|cluster| {
                        cluster.nodes[node].server.signal("STOP");
                        thread::sleep(pause);
                        let woken = Instant::now();
                        cluster.nodes[node].server.signal("CONT");
                        Kind::Paused { node, woken }
                    });
                }
                Harm::Cut { millis } => {
                    let time = draw(millis, &mut rng);
                    drill.suffer(|cluster| {
                        cluster.nodes[node].line.cut();
                        thread::sleep(time);
                        cluster.nodes[node].line.mend();
                        Kind::CutOff { node }
                    });
                }
                Harm::Silence { of, millis } => {
                    let time = draw(millis, &mut rng);
                    println!("{of:?} for {time:?}");
                    drill.suffer(|cluster| {
                        let line = &cluster.nodes[node].line;
                        match of {
                            Direction::Both => line.silence(),
                            Direction::Answers => line.deafen(),
                        }
                        thread::sleep(time);
                        line.mend();
                        Kind::CutOff { node }
                    });
                }
                Harm::Faulty { how, millis } => {
                    let time = draw(millis, &mut rng);
                    println!("{how:?} for {time:?}");
                    let drawn = rng.random_range(1..20_000);
                    drill.suffer(|cluster| {
                        let line = &cluster.nodes[node].line;
                        match how {
                            Fault::Slow => line.slow_down(Duration::from_millis(20 + drawn as u64 % 200)),
                            Fault::HalfClosed => line.half_close(),
                            Fault::Reset => line.reset_after(drawn),
                            Fault::CommitUnanswered => line.lose_answers_to_commits(),
                        }
                        thread::sleep(time);
                        line.mend();
                        Kind::CutOff { node }
                    });
                }
                Harm::CutAll { millis } => {
                    let time = draw(millis, &mut rng);
                    drill.suffer(|cluster| {
                        cluster.nodes.iter().for_each(|node| node.line.cut());
                        thread::sleep(time);
                        cluster.nodes.iter().for_each(|node| node.line.mend());
                        Kind::DatabaseAway
                    });
                }
                Harm::RestartDatabase { mode, away } => {
                    let away = draw(away, &mut rng);
                    drill.suffer(|cluster| {
                        cluster.database.stop(mode);
                        thread::sleep(away);
                        cluster.database.resume();
                        Kind::DatabaseAway
                    });
                }
                Harm::RollingRestart => {
                    for node in 0..NODES {
                        drill.suffer(|cluster| {
                            let status = cluster.nodes[node].server.stop();
                            assert_eq!(status.code(), Some(0));
                            cluster.nodes[node].server.start_again();
                            Kind::Stopped { node }
                        });
                    }
                }
            }
        }
        println!("round {round} of {rounds}: {} events accepted", drill.accepted());
    }
    let logs = drill.finish();
    let summary = verdict(&logs, seed);
    println!("torture: harms store=postgresql cycles={} {}", logs.faults.len(), line(&summary, seed));
    assert!(summary.messages > 100 * rounds, "there was hardly any load: {summary:?}");
    // The judge allows more for a moment after a node was paused.
    assert!(summary.in_flight_max >= 4, "the cap was never reached, so nothing was shown");
}

/// `CLUSTER_KILLS=500` makes the long run of it: in rounds, each with a database of its own, so that no round's logs grow
/// beyond what can be held.
#[test]
fn three_nodes_that_are_killed_again_and_again_lose_nothing_and_repeat_only_what_was_under_way() {
    let mut left: usize = variable("CLUSTER_KILLS").unwrap_or(4);
    let mut seed = seed("CLUSTER_SEED");
    while left > 0 {
        let kills = left.min(KILLS_PER_ROUND);
        left -= kills;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut drill = Drill::start(Cluster::start(NODES, &["--lease", "3s"]), seed);
        drill.wait_for_flow();
        for kill in 1..=kills {
            drill.run_for(draw(100..1_100, &mut rng));
            drill.kill_and_go_on(rng.random_range(0..NODES));
            if kill % QUIET_EVERY == 0 {
                drill.run_for(QUIET);
            }
        }
        let summary = verdict(&drill.finish(), seed);
        println!(
            "torture: kill store=postgresql cycles={kills} repeated-lane-max={} unexcused={} {}",
            summary.repeats_max,
            summary.unexcused,
            line(&summary, seed)
        );
        assert!(summary.unexcused > 10 * kills, "any repeat would have been excused: {summary:?}");
        seed = seed.wrapping_add(1);
    }
}

/// With another node beside it, from which it takes lanes when it comes and which takes over when it is gone.
#[test]
fn a_node_can_be_killed_at_every_mark_while_it_works_and_while_it_stops() {
    let seed = seed("CLUSTER_SEED");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let lease = Duration::from_secs(2);
    let mut drill = Drill::start(Cluster::start(2, &["--lease", "2s"]), seed);
    drill.wait_for_flow();
    drill.kill(0);
    let of_nodes = |mark: &&Mark| mark.stores != Stores::Sqlite && matches!(mark.when, When::Load | When::Stop);
    for _ in 0..variable("KILL_WALKS").unwrap_or(1) {
        for mark in ALL.iter().filter(of_nodes) {
            let often =
                ["request", "store.w", "store.c", "answer", "send"].iter().any(|part| mark.name.starts_with(part));
            let times = if often { rng.random_range(1..6) } else { 1 };
            drill.end_at(0, &format!("{}:{times}", mark.name), lease, |server| match mark.when {
                When::Stop => {
                    thread::sleep(Duration::from_millis(300));
                    server.signal("TERM");
                }
                When::First | When::Load | When::Alone | When::Spill => {}
            });
        }
    }
    drill.start_again(0);
    let logs = drill.finish();
    let summary = verdict(&logs, seed);
    let kills = logs.faults.iter().filter(|fault| matches!(fault.kind, Kind::Killed { .. })).count();
    println!("torture: marks store=postgresql cycles={kills} {}", line(&summary, seed));
}

/// Within the time of its lease in the one case and at once in the other. How long that took is told and not judged: it is
/// up to whoever else uses the machine.
#[tokio::test]
async fn lanes_of_a_dead_node_are_taken_over_and_those_of_one_that_stops_are_handed_over() {
    let receiver = Receiver::start();
    let mut cluster = tokio::task::spawn_blocking(|| Cluster::start(NODES, &[])).await.expect("they start");
    let mut client = Client::new(cluster.nodes[0].server.address(), cluster.token());
    let apps: Vec<String> = (0..24).map(|number| format!("app-{number}")).collect();
    for app in &apps {
        client.create("/api/v1/app", &json!({"name": app, "uid": app})).await;
        let endpoint = json!({"url": receiver.url(&format!("/{app}")), "uid": "hook"});
        client.create(&format!("/api/v1/app/{app}/endpoint"), &endpoint).await;
    }
    are_shared_evenly(&cluster, 3).await;
    let mut sent = 0;
    all_arrive(&mut client, &receiver, &apps, &mut sent).await;
    all_are_settled(&mut client, &apps, sent).await;

    let killed = Instant::now();
    cluster.nodes[2].server.kill();
    all_arrive(&mut client, &receiver, &apps, &mut sent).await;
    println!("killed: all lanes served after {:?}", killed.elapsed());
    are_shared_evenly(&cluster, 2).await;
    let declared_dead = |cluster: &Cluster| {
        let logs = cluster.nodes[..2].iter().map(|node| node.server.log());
        logs.map(|log| log.matches("a node was not heard of any more").count()).sum::<usize>()
    };
    assert_eq!(declared_dead(&cluster), 1);

    let asked = Instant::now();
    cluster.nodes[1].server.signal("TERM");
    all_arrive(&mut client, &receiver, &apps, &mut sent).await;
    println!("asked to stop: all lanes served after {:?}", asked.elapsed());
    assert_eq!(cluster.nodes[1].server.wait_for_end(STOP_WITHIN).code(), Some(0));
    assert_eq!(declared_dead(&cluster), 1, "whoever goes in good order is not waited for");
    assert_eq!(receiver.count(), apps.len() * sent, "nothing was under way, so nothing is sent twice");
    tokio::task::spawn_blocking(|| drop(cluster)).await.expect("they end");
}

/// One more message to every application, until it is there.
async fn all_arrive(client: &mut Client, receiver: &Receiver, apps: &[String], sent: &mut usize) {
    *sent += 1;
    for app in apps {
        client.create(&format!("/api/v1/app/{app}/msg"), &json!({"eventType": "a.b", "payload": {"n": sent}})).await;
    }
    for app in apps {
        receiver.wait_for(&format!("/{app}"), *sent).await;
    }
}

/// What has arrived is also written down: it is nobody's any more.
async fn all_are_settled(client: &mut Client, apps: &[String], sent: usize) {
    for app in apps {
        let path = format!("/api/v1/app/{app}/endpoint/hook/stats");
        eventually("deliveries that are written down", async || {
            let stats: Value = client.get(&path).await.expect("the node answers");
            (stats["success"] == sent).then_some(())
        })
        .await;
    }
}

async fn are_shared_evenly(cluster: &Cluster, count: usize) {
    for node in &cluster.nodes[..count] {
        let mut client = Client::new(node.server.address(), cluster.token());
        eventually("an even share of all shards", async || {
            let metrics = client.metrics().await;
            let owned = metrics.lines().find_map(|line| line.strip_prefix("postrider_shards_owned "))?;
            owned.parse().is_ok_and(|owned: f64| (owned as usize).abs_diff(256 / count) <= 1).then_some(())
        })
        .await;
    }
}

/// What can be done to them.
#[derive(Clone, Debug)]
enum Harm {
    /// For so many milliseconds: started again before its lease has ended, or long after.
    Kill {
        away: Range<u64>,
    },
    /// Past its lease; the others have taken over when it wakes.
    Pause,
    Cut {
        millis: Range<u64>,
    },
    /// Nothing says that the connections are dead.
    Silence {
        of: Direction,
        millis: Range<u64>,
    },
    Faulty {
        how: Fault,
        millis: Range<u64>,
    },
    /// For longer than a lease: nobody could renew one, so nobody loses one.
    CutAll {
        millis: Range<u64>,
    },
    RestartDatabase {
        mode: Mode,
        away: Range<u64>,
    },
    RollingRestart,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Both,
    Answers,
}

/// What a connection can do besides being there or not.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Slow,
    HalfClosed,
    Reset,
    CommitUnanswered,
}

const HARMS: [Harm; 16] = [
    Harm::Kill { away: 0..1_500 },
    Harm::Kill { away: 6_000..8_000 },
    Harm::Pause,
    Harm::Cut { millis: 100..2_000 },
    Harm::Cut { millis: 6_000..8_000 },
    Harm::Silence { of: Direction::Answers, millis: 100..2_000 },
    Harm::Silence { of: Direction::Answers, millis: 6_000..8_000 },
    Harm::Silence { of: Direction::Both, millis: 4_000..8_000 },
    Harm::Faulty { how: Fault::Slow, millis: 500..2_000 },
    Harm::Faulty { how: Fault::HalfClosed, millis: 100..1_000 },
    Harm::Faulty { how: Fault::Reset, millis: 100..2_000 },
    Harm::Faulty { how: Fault::CommitUnanswered, millis: 100..2_000 },
    Harm::CutAll { millis: 6_000..8_000 },
    Harm::RestartDatabase { mode: Mode::Fast, away: 0..1 },
    Harm::RestartDatabase { mode: Mode::Immediate, away: 0..6_000 },
    Harm::RollingRestart,
];

fn verdict(logs: &Logs, seed: u64) -> Summary {
    match judge(logs) {
        Ok(summary) => {
            println!("{summary:?}");
            summary
        }
        Err(violations) => {
            for violation in violations.iter().take(40) {
                println!("{violation}");
            }
            panic!("{} violations, the first of them above; CLUSTER_SEED={seed}", violations.len());
        }
    }
}

/// For whoever adds them up.
fn line(summary: &Summary, seed: u64) -> String {
    let Summary { messages, lost, repeats, .. } = summary;
    format!("accepted={messages} lost={lost} repeated={repeats} seed={seed}")
}

fn shuffle<T>(items: &mut [T], rng: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.random_range(0..=last));
    }
}

const NODES: usize = 3;
const KILLS_PER_ROUND: usize = 50;
/// Now and then nobody is killed for so long that nothing excuses what comes twice.
const QUIET_EVERY: usize = 10;
const QUIET: Duration = support::DURABLE_WITHIN.saturating_mul(2);
/// Above a node's own time of grace.
const STOP_WITHIN: Duration = Duration::from_secs(45);
