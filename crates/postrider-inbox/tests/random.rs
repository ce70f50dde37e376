//! Random sequences of verbs: every store does what maps in memory do.

mod common;

use std::{sync::Arc, time::Duration};

use common::*;
use postrider_inbox::{
    Claim, Event, EventKey, Limits, MemoryStore, Place, Recorded, Replayed, Settled, Settlement, Store, Ticket,
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

#[derive(Clone, Debug)]
enum Op {
    Record {
        source: bool,
        id: u8,
        size: u8,
        number: Option<u8>,
    },
    Claim {
        max: usize,
    },
    /// One of the tickets that were ever given, also of those that are long out of date.
    Settle {
        ticket: prop::sample::Index,
        how: How,
    },
    Replay {
        source: bool,
        id: u8,
    },
    ReplayDead {
        max: usize,
        ago: i64,
    },
    Clean {
        max: usize,
        ago: i64,
    },
    ForgetDead {
        max: usize,
        ago: i64,
    },
    Wait {
        millis: i64,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Done,
    Again,
    Dead,
}

fn op() -> impl Strategy<Value = Op> {
    let (max, ago) = (0..4usize, 0..200i64);
    prop_oneof![
        5 => (any::<bool>(), 0..6u8, 0..40u8, prop::option::of(1..9u8))
            .prop_map(|(source, id, size, number)| Op::Record { source, id, size, number }),
        4 => max.clone().prop_map(|max| Op::Claim { max }),
        6 => (any::<prop::sample::Index>(), prop_oneof![Just(How::Done), Just(How::Again), Just(How::Dead)])
            .prop_map(|(ticket, how)| Op::Settle { ticket, how }),
        1 => (any::<bool>(), 0..6u8).prop_map(|(source, id)| Op::Replay { source, id }),
        1 => (max.clone(), ago.clone()).prop_map(|(max, ago)| Op::ReplayDead { max, ago }),
        1 => (max.clone(), ago.clone()).prop_map(|(max, ago)| Op::Clean { max, ago }),
        1 => (max, ago).prop_map(|(max, ago)| Op::ForgetDead { max, ago }),
        4 => (0..60i64).prop_map(|millis| Op::Wait { millis }),
    ]
}

#[derive(Debug, PartialEq)]
enum Told {
    Recorded(Recorded),
    Claims(Vec<Claim>),
    Settled(Settled),
    Replayed(Replayed),
    Count(usize),
    Nothing,
}

/// What one store is asked in the course of a sequence.
struct Run {
    store: Arc<dyn Store>,
    now: i64,
    tickets: Vec<Ticket>,
    with_places: bool,
}

impl Run {
    async fn play(&mut self, op: &Op) -> Told {
        let (now, store) = (at(self.now), &self.store);
        let key = |source: bool, id: u8| {
            EventKey::parse(if source { "shop" } else { "shop-2" }, &format!("event {id}")).unwrap()
        };
        match op {
            Op::Record { source, id, size, number } => {
                let place = number
                    .filter(|_| self.with_places)
                    .map(|number| Place { ordering_key: format!("key {}", number % 2), number: u64::from(number) });
                let event = Event {
                    key: key(*source, *id),
                    body: vec![*id; usize::from(*size)].into(),
                    received_at: now,
                    place,
                    ..event("x")
                };
                Told::Recorded(store.record(&event, LIMITS).await.unwrap())
            }
            Op::Claim { max } => {
                let claims = store.claim(*max, Duration::from_millis(50), now).await.unwrap();
                self.tickets.extend(claims.iter().map(|claim| claim.ticket.clone()));
                Told::Claims(claims)
            }
            Op::Settle { ticket, how } if !self.tickets.is_empty() => {
                let settlement = match how {
                    How::Done => Settlement::Done,
                    How::Again => Settlement::Again { due: at(self.now + 30), reason: "again".to_owned() },
                    How::Dead => Settlement::Dead { reason: format!("dead at {}", self.now) },
                };
                Told::Settled(store.settle(ticket.get(&self.tickets), &settlement, now).await.unwrap())
            }
            Op::Settle { .. } => Told::Nothing,
            Op::Replay { source, id } => Told::Replayed(store.replay(&key(*source, *id), now).await.unwrap()),
            Op::ReplayDead { max, ago } => Told::Count(store.replay_dead(at(self.now - ago), *max, now).await.unwrap()),
            Op::Clean { max, ago } => Told::Count(store.clean(at(self.now - ago), *max).await.unwrap()),
            Op::ForgetDead { max, ago } => Told::Count(store.forget_dead(at(self.now - ago), *max).await.unwrap()),
            Op::Wait { millis } => {
                self.now += millis;
                Told::Nothing
            }
        }
    }
}

/// Small enough that both are met.
const LIMITS: Limits = Limits { events_max: 5, bytes_max: 150 };

fn agrees_with_the_model(kind: Kind, cases: u32) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let sequences = prop::collection::vec(op(), 1..60);
    let played = TestRunner::new(config).run(&sequences, |ops| {
        runtime.block_on(async {
            let site = Site::fresh(kind).await;
            // Redis forgets ordering keys by its own clock, which is not the test's.
            let with_places = kind != Kind::Redis;
            let run = |store| Run { store, now: 0, tickets: Vec::new(), with_places };
            let (mut tested, mut model) = (run(site.open().await), run(Arc::new(MemoryStore::new())));
            for (index, op) in ops.iter().enumerate() {
                prop_assert_eq!(tested.play(op).await, model.play(op).await, "operation {}: {:?}", index, op);
                let standing = tested.store.standing().await.unwrap();
                prop_assert_eq!(standing, model.store.standing().await.unwrap(), "after {}: {:?}", index, op);
            }
            let dead = tested.store.dead(None, 100).await.unwrap();
            prop_assert_eq!(dead, model.store.dead(None, 100).await.unwrap());
            Ok::<(), TestCaseError>(())
        })
    });
    played.unwrap();
}

#[test]
fn sqlite_agrees_with_the_model() {
    agrees_with_the_model(Kind::Sqlite, 100);
}

#[test]
fn postgresql_agrees_with_the_model() {
    agrees_with_the_model(Kind::Postgres, 30);
}

#[test]
fn redis_agrees_with_the_model() {
    agrees_with_the_model(Kind::Redis, 100);
}
