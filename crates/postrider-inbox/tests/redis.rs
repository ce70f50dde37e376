//! What is Redis's own: what is done expires, and how durable it is can be asked.

mod common;

use std::time::Duration;

use common::{redis_server::RedisServer, *};
use postrider_inbox::{
    Arrival, Limits, Recorded, RedisStore, Replayed, Retention, Settled, Settlement, Standing, Store, redis::Durability,
};
use redis::AsyncCommands;

const NEW: Recorded = Recorded::New { arrival: None };

async fn command(url: &str, words: &[&str]) -> redis::Value {
    let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(word);
    });
    command.query_async(&mut connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_done_expires() {
    let url = RedisServer::shared().url();
    let store = RedisStore::connect_with_prefix(&url, "expiry", Retention::days(7).unwrap()).await.unwrap();
    for id in ["a", "b", "c"] {
        assert_eq!(store.record(&event(id), Limits::default()).await.unwrap(), NEW);
    }
    let claims = store.claim(2, LEASE, at(0)).await.unwrap();
    let _ = store.settle(&claims[0].ticket, &Settlement::Done, at(0)).await.unwrap();
    let _ = store.settle(&claims[1].ticket, &Settlement::Dead { reason: String::new() }, at(0)).await.unwrap();
    let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mut left = Vec::new();
    for id in ["a", "b", "c"] {
        left.push(connection.pttl::<_, i64>(format!("{{expiry}}event:shop {id}")).await.unwrap());
    }
    let week = 7 * DAY.as_millis() as i64;
    assert!((week - 60_000..=week).contains(&left[0]), "{left:?}");
    assert_eq!(left[1..], [-1, -1], "what is dead or waits stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_comes_after_the_record_expired_is_not_cleaned_away() {
    let url = RedisServer::shared().url();
    let brief = Retention::unusual(Duration::from_millis(1));
    let store = RedisStore::connect_with_prefix(&url, "again", brief).await.unwrap();
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    let claim = store.claim(1, LEASE, at(0)).await.unwrap().remove(0);
    assert_eq!(store.settle(&claim.ticket, &Settlement::Done, at(0)).await.unwrap(), Settled::Written);
    // Until Redis's own clock has seen the millisecond pass.
    while store.record(&event("a"), Limits::default()).await.unwrap() == Recorded::Duplicate {}
    assert_eq!(store.clean(at(1_000), 10).await.unwrap(), 0, "the new one is no old one");
    assert_eq!(store.claim(1, LEASE, at(1_000)).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_redis_threw_away_is_passed_over() {
    let url = RedisServer::shared().url();
    let store = RedisStore::connect_with_prefix(&url, "evicted", Retention::default()).await.unwrap();
    for id in ["a", "b"] {
        let _ = store.record(&event(id), Limits::default()).await.unwrap();
    }
    command(&url, &["DEL", "{evicted}event:shop a"]).await;
    let claims = store.claim(10, LEASE, at(0)).await.unwrap();
    assert_eq!((claims.len(), claims[0].event.key.clone()), (1, key("b")));
    assert_eq!(store.standing().await.unwrap().queued, 1);
    assert_eq!(store.settle(&claims[0].ticket, &Settlement::Done, at(0)).await.unwrap(), Settled::Written);
    assert_eq!(store.standing().await.unwrap(), Standing::default(), "its bytes do not count for ever");
    let _ = store.record(&event("c"), Limits::default()).await.unwrap();
    command(&url, &["DEL", "{evicted}event:shop c"]).await;
    assert_eq!(store.claim(10, LEASE, at(0)).await.unwrap(), []);
    assert_eq!(store.standing().await.unwrap(), Standing::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_comes_after_a_dead_one_was_thrown_away_is_not_forgotten_with_it() {
    let url = RedisServer::shared().url();
    let store = RedisStore::connect_with_prefix(&url, "revived", Retention::default()).await.unwrap();
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    let claim = store.claim(1, LEASE, at(0)).await.unwrap().remove(0);
    let dead = Settlement::Dead { reason: String::new() };
    assert_eq!(store.settle(&claim.ticket, &dead, at(0)).await.unwrap(), Settled::Written);
    command(&url, &["DEL", "{revived}event:shop a"]).await;
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    assert_eq!(store.standing().await.unwrap().dead, 0);
    // As a version before this one left it.
    command(&url, &["ZADD", "{revived}dead", "1", "shop a"]).await;
    store.forget_dead(at(1_000), 10).await.unwrap();
    assert_eq!(store.claim(1, LEASE, at(1_000)).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retention_of_any_length_can_be_kept() {
    let url = RedisServer::shared().url();
    for (prefix, time) in [("moment", Duration::ZERO), ("ever", Duration::MAX)] {
        let store = RedisStore::connect_with_prefix(&url, prefix, Retention::unusual(time)).await.unwrap();
        let arrival = Some(Arrival::InOrder);
        assert_eq!(store.record(&ordered("a", "kim", 1), Limits::default()).await.unwrap(), Recorded::New { arrival });
        let claim = store.claim(1, LEASE, at(0)).await.unwrap().remove(0);
        assert_eq!(store.settle(&claim.ticket, &Settlement::Done, at(0)).await.unwrap(), Settled::Written);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_memory_nothing_is_taken_in_and_what_is_there_is_worked_off() {
    let server = tokio::task::spawn_blocking(RedisServer::start).await.unwrap();
    let store = RedisStore::connect(&server.url(), Retention::default()).await.unwrap();
    for id in ["a", "b", "c"] {
        assert_eq!(store.record(&event(id), Limits::default()).await.unwrap(), NEW);
    }
    command(&server.url(), &["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(store.record(&event("d"), Limits::default()).await.is_err());
    assert!(store.record(&ordered("e", "kim", 1), Limits::default()).await.is_err());
    let dead = Settlement::Dead { reason: "x".to_owned() };
    for settlement in [Settlement::Again { due: at(0), reason: "x".to_owned() }, dead.clone(), Settlement::Done] {
        let claims = store.claim(3, LEASE, at(0)).await.unwrap();
        assert_eq!(claims.len(), 3, "before {settlement:?}");
        for claim in claims {
            assert_eq!(store.settle(&claim.ticket, &settlement, at(0)).await.unwrap(), Settled::Written);
        }
        if settlement == dead {
            assert_eq!(store.replay(&key("a"), at(0)).await.unwrap(), Replayed::Queued);
            assert_eq!(store.replay_dead(at(0), 10, at(0)).await.unwrap(), 2);
        }
    }
    assert_eq!(store.standing().await.unwrap(), Standing::default());
    assert_eq!(store.clean(at(1), 10).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_of_an_inbox_are_in_one_slot() {
    let server = tokio::task::spawn_blocking(RedisServer::start_as_cluster).await.unwrap();
    let store = RedisStore::connect(&server.url(), Retention::default()).await.unwrap();
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), NEW);
    let arrival = Some(Arrival::InOrder);
    assert_eq!(store.record(&ordered("b", "kim", 1), Limits::default()).await.unwrap(), Recorded::New { arrival });
    let dead = Settlement::Dead { reason: "x".to_owned() };
    for settlement in [dead.clone(), dead.clone(), Settlement::Done] {
        for claim in store.claim(2, LEASE, at(0)).await.unwrap() {
            assert_eq!(store.settle(&claim.ticket, &settlement, at(0)).await.unwrap(), Settled::Written);
        }
        if settlement == dead {
            assert_eq!(store.dead(None, 10).await.unwrap().len(), 2);
            assert_eq!(store.replay(&key("a"), at(0)).await.unwrap(), Replayed::Queued);
            assert_eq!(store.replay_dead(at(0), 10, at(0)).await.unwrap(), 1);
        }
    }
    assert_eq!(store.standing().await.unwrap(), Standing::default());
    assert_eq!(store.clean(at(1), 10).await.unwrap(), 2);
    for prefix in ["", "}"] {
        assert!(RedisStore::connect_with_prefix(&server.url(), prefix, Retention::default()).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn how_durable_the_server_is_can_be_asked() {
    let server = tokio::task::spawn_blocking(RedisServer::start).await.unwrap();
    let store = RedisStore::connect(&server.url(), Retention::default()).await.unwrap();
    for (setting, value, expected) in [
        ("appendfsync", "always", Durability::Always),
        ("appendfsync", "everysec", Durability::EverySecond),
        ("appendfsync", "no", Durability::Chance),
        ("appendonly", "no", Durability::Chance),
    ] {
        command(&server.url(), &["CONFIG", "SET", setting, value]).await;
        assert_eq!(store.durability().await, expected, "{setting} {value}");
    }
}
