//! Places at which a test may end the process: `CRASH_AT=store.written:3` ends it when it comes by there for the third time.
//!
//! As `kill -9` would: nothing is unwound, nothing is flushed, nobody is told. All marks stand in one list, so that a test
//! can walk every one of them; `step!` with a name that is not in it does not compile. A release has none of this, unless it
//! was built with the feature `steps`.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub name: &'static str,
    pub stores: Stores,
    pub when: When,
}

/// Where it is come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    Both,
    Sqlite,
    Postgresql,
}

/// What must go on for it to be come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The first start on an empty folder, or the first message there.
    First,
    /// Messages come in and go out, some of which are refused by their receivers.
    Load,
    /// Replays, and what only happens for sure where there is no other node that may do it.
    Alone,
    /// It was asked to stop.
    Stop,
    /// The same, while more is in memory than can be sent.
    Spill,
}

const fn mark(name: &'static str, stores: Stores, when: When) -> Mark {
    Mark { name, stores, when }
}

pub const ALL: &[Mark] = &[
    mark("keys.drawn", Stores::Both, When::First),
    mark("keys.drafted", Stores::Both, When::First),
    mark("keys.in_place", Stores::Both, When::First),
    mark("migration.step", Stores::Both, When::First),
    mark("migration.done", Stores::Both, When::First),
    mark("piece.made", Stores::Both, When::First),
    mark("start.opened", Stores::Both, When::Load),
    mark("start.recovered", Stores::Both, When::Load),
    mark("start.serving", Stores::Both, When::Load),
    mark("request.read", Stores::Both, When::Load),
    mark("store.begun", Stores::Both, When::Load),
    mark("store.accepted", Stores::Both, When::Load),
    mark("store.settled", Stores::Both, When::Load),
    mark("store.health", Stores::Both, When::Load),
    mark("store.written", Stores::Both, When::Load),
    mark("store.committed", Stores::Both, When::Load),
    mark("store.told", Stores::Both, When::Load),
    mark("answer.ready", Stores::Both, When::Load),
    mark("answer.half_written", Stores::Both, When::Load),
    mark("answer.written", Stores::Both, When::Load),
    mark("lane.loaded", Stores::Both, When::Load),
    mark("send.begun", Stores::Both, When::Load),
    mark("send.connecting", Stores::Both, When::Load),
    mark("send.half_written", Stores::Both, When::Load),
    mark("send.written", Stores::Both, When::Load),
    mark("send.head_read", Stores::Both, When::Load),
    mark("send.decided", Stores::Both, When::Load),
    mark("settle.begun", Stores::Both, When::Load),
    mark("settle.done", Stores::Both, When::Load),
    mark("dead.written", Stores::Both, When::Alone),
    mark("task.stepping", Stores::Both, When::Alone),
    mark("task.stepped", Stores::Both, When::Alone),
    mark("spill.done", Stores::Both, When::Spill),
    mark("node.joined", Stores::Postgresql, When::Load),
    mark("node.renewed", Stores::Postgresql, When::Load),
    mark("node.burying", Stores::Postgresql, When::Alone),
    mark("shards.claimed", Stores::Postgresql, When::Load),
    mark("shards.entered", Stores::Both, When::Load),
    mark("news.published", Stores::Postgresql, When::Load),
    mark("news.heard", Stores::Postgresql, When::Load),
    mark("turn.written", Stores::Postgresql, When::Load),
    mark("turn.committed", Stores::Postgresql, When::Load),
    mark("stop.begun", Stores::Both, When::Stop),
    mark("shards.given_up", Stores::Both, When::Stop),
    mark("stop.at_rest", Stores::Both, When::Stop),
    mark("stop.drained", Stores::Both, When::Stop),
    mark("node.leaving", Stores::Postgresql, When::Stop),
    mark("stop.closed", Stores::Both, When::Stop),
];

/// Where in the list it is. An unknown one stops the compiler.
pub const fn place(name: &str) -> usize {
    let mut at = 0;
    while at < ALL.len() {
        if same(ALL[at].name.as_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("this mark is not in the list")
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

static ARMED: AtomicUsize = AtomicUsize::new(usize::MAX);
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Whether marks do anything in this build.
pub const COMPILED_IN: bool = cfg!(any(debug_assertions, feature = "steps"));

/// Takes what `CRASH_AT` says, if marks are compiled in.
pub fn arm(crash_at: &str) -> Result<(), String> {
    let (name, times) = crash_at.split_once(':').unwrap_or((crash_at, "1"));
    let at = ALL.iter().position(|mark| mark.name == name);
    let at = at.ok_or_else(|| format!("CRASH_AT: there is no mark `{name}`"))?;
    let times: u64 = times.parse().ok().filter(|times| *times > 0).ok_or("CRASH_AT: how many times is not a number")?;
    LEFT.store(times, Relaxed);
    ARMED.store(at, Relaxed);
    Ok(())
}

/// Whether this time is the one.
pub fn is_the_end(place: usize) -> bool {
    ARMED.load(Relaxed) == place && LEFT.fetch_sub(1, Relaxed) == 1
}

/// `step!("name")`, and `step!("name", first)` with what is done just before the end, and at no other time.
#[cfg(any(debug_assertions, feature = "steps"))]
#[macro_export]
macro_rules! step {
    ($name:literal) => {
        $crate::step!($name, ())
    };
    ($name:literal, $first:expr) => {{
        const PLACE: usize = $crate::marks::place($name);
        if $crate::marks::is_the_end(PLACE) {
            let _ = $first;
            ::std::process::abort();
        }
    }};
}

#[cfg(not(any(debug_assertions, feature = "steps")))]
#[macro_export]
macro_rules! step {
    ($name:literal) => {{
        const _: usize = $crate::marks::place($name);
    }};
    ($name:literal, $first:expr) => {{
        const _: usize = $crate::marks::place($name);
        if false {
            let _ = $first;
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_has_a_name_of_its_own() {
        for (at, mark) in ALL.iter().enumerate() {
            assert_eq!(place(mark.name), at, "{}", mark.name);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for nonsense in ["", "nowhere", "store.written:", "store.written:0", "store.written:-1", "store.written:many"] {
            assert!(arm(nonsense).is_err(), "{nonsense:?}");
        }
    }
}
