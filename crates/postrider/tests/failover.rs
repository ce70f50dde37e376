//! The database's machine is lost, and its standby takes its place: nothing that was accepted is missing there, and the
//! nodes find it by themselves. The load and the judge are those of the cluster's test.
//!
//! `FAILOVER_SILENT=1` loses it without a word, as when a machine loses its power: connections break only when the nodes give
//! them up.

#[allow(dead_code)]
#[path = "cluster/drill.rs"]
mod drill;
// It knows of more kinds of harm than this one.
#[allow(dead_code)]
#[path = "cluster/judge.rs"]
mod judge;
mod support;

use drill::Drill;
use judge::{Kind, judge};
use postrider_testbed::Mode;
use std::env;
use support::{POLL, cluster::Cluster};

#[test]
fn a_failover_to_a_synchronous_standby_loses_nothing_that_was_accepted() {
    let mut drill = Drill::start(Cluster::start_with_standby(2), SEED);
    drill.wait_for_flow();
    let before = wait_for_load(&drill, LOAD);
    drill.suffer(|cluster| {
        if env::var_os("FAILOVER_SILENT").is_some() {
            cluster.nodes.iter().for_each(|node| node.line.silence());
        }
        cluster.database.stop(Mode::Immediate);
        cluster.standby.as_ref().expect("it was started with one").promote();
        Kind::DatabaseAway
    });
    let all = wait_for_load(&drill, before + LOAD);
    let summary = judge(&drill.finish()).unwrap_or_else(|violations| panic!("{violations:#?}"));
    println!("{before} of {all} events were accepted before the failover: {summary:?}");
}

/// Until so many events are accepted.
fn wait_for_load(drill: &Drill, count: usize) -> usize {
    while drill.accepted() < count {
        drill.run_for(POLL);
    }
    drill.accepted()
}

const SEED: u64 = 1;
const LOAD: usize = 300;
