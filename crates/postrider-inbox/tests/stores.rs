//! What every store must do: in memory, on files, on a real PostgreSQL and a real Redis.

mod common;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use common::*;
use postrider_inbox::{
    Arrival, Claim, Event, EventKey, Inbox, InboxSettings, Limits, Outcome, Place, Recorded, Replayed, Retention,
    Settled, Settlement, Standing, Store,
};
use tokio::{sync::Barrier, task::JoinSet};

on_every_store![
    an_event_is_recorded_once,
    two_at_the_same_instant_are_one,
    fifty_at_the_same_instant_are_one,
    fifty_requests_at_the_same_instant_are_accepted_once,
    all_of_an_event_survives,
    what_is_due_for_longest_is_claimed_first,
    a_claim_holds_until_its_lease_ends,
    a_worker_whose_event_was_taken_can_settle_nothing,
    an_event_goes_to_one_of_many_claimers,
    what_is_done_is_not_claimed_again,
    what_failed_is_claimed_when_it_is_due,
    dead_events_are_listed_in_pages,
    one_dead_event_is_replayed,
    all_dead_events_are_replayed_in_pieces,
    a_full_inbox_takes_nothing_new_in,
    a_full_inbox_answers_429,
    the_bound_on_bytes_holds,
    the_bound_holds_for_many_at_the_same_instant,
    a_redelivery_after_six_days_is_recognised,
    after_its_retention_an_event_is_forgotten,
    cleaning_goes_in_pieces_and_leaves_the_rest,
    dead_events_are_forgotten_only_if_asked,
    gaps_and_late_ones_are_told,
    numbers_at_the_same_instant_are_counted_once_each,
    the_standing_adds_up,
    tables_can_be_made_again_and_by_many,
];

const NEW: Recorded = Recorded::New { arrival: None };

async fn record(store: &Arc<dyn Store>, id: &str) {
    assert_eq!(store.record(&event(id), Limits::default()).await.unwrap(), NEW, "{id}");
}

async fn claim_one(store: &Arc<dyn Store>, now: i64) -> Option<Claim> {
    store.claim(1, LEASE, at(now)).await.unwrap().pop()
}

async fn finish(store: &Arc<dyn Store>, id: &str, now: i64, settlement: Settlement) {
    let claims = store.claim(100, LEASE, at(now)).await.unwrap();
    let claim = claims.iter().find(|claim| claim.event.key == key(id)).unwrap_or_else(|| panic!("{id} is not due"));
    assert_eq!(store.settle(&claim.ticket, &settlement, at(now)).await.unwrap(), Settled::Written);
}

fn dead(reason: &str) -> Settlement {
    Settlement::Dead { reason: reason.to_owned() }
}

fn ids(claims: &[Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.event.key.id.as_str()).collect()
}

/// How often each of the answers came to `count` records of the same event, made as close together as can be.
async fn at_once(site: &Site, id: &str, count: usize) -> (usize, usize) {
    let barrier = Arc::new(Barrier::new(count));
    // Connections of their own, as processes have.
    let stores = [site.open().await, site.open().await];
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let (barrier, store, event) = (Arc::clone(&barrier), Arc::clone(&stores[number % 2]), event(id));
        tasks.spawn(async move {
            barrier.wait().await;
            store.record(&event, Limits::default()).await.unwrap()
        });
    }
    let told = tasks.join_all().await;
    let count_of = |wanted| told.iter().filter(|told| **told == wanted).count();
    (count_of(NEW), count_of(Recorded::Duplicate))
}

async fn an_event_is_recorded_once(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), Recorded::Duplicate);
    let other = Event { key: EventKey::parse("other-shop", "a").unwrap(), ..event("a") };
    assert_eq!(store.record(&other, Limits::default()).await.unwrap(), NEW, "another source has its own ids");
    assert_eq!(store.claim(10, LEASE, at(0)).await.unwrap().len(), 2);
}

async fn two_at_the_same_instant_are_one(site: Site) {
    for round in 0..25 {
        assert_eq!(at_once(&site, &format!("event {round}"), 2).await, (1, 1), "round {round}");
    }
    assert_eq!(site.open().await.claim(100, LEASE, at(0)).await.unwrap().len(), 25);
}

async fn fifty_at_the_same_instant_are_one(site: Site) {
    assert_eq!(at_once(&site, "a", 50).await, (1, 49));
    let store = site.open().await;
    assert_eq!(ids(&store.claim(100, LEASE, at(0)).await.unwrap()), ["a"]);
}

async fn fifty_requests_at_the_same_instant_are_accepted_once(site: Site) {
    let inbox = Inbox::new(site.open().await, TestClock::new());
    let door = inbox.door("shop", source()).unwrap();
    let barrier = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let (barrier, door) = (Arc::clone(&barrier), door.clone());
        tasks.spawn(async move {
            let (headers, body) = signed("msg_1", "{}", at(0));
            barrier.wait().await;
            door.take(&headers, body).await
        });
    }
    let told = tasks.join_all().await;
    assert_eq!(told.iter().filter(|told| **told == Outcome::Accepted { arrival: None }).count(), 1);
    assert_eq!(told.iter().filter(|told| **told == Outcome::Duplicate).count(), 49);
    assert!(told.iter().all(|told| told.answer().status.is_success()), "a sender must not send a duplicate again");
    assert_eq!(inbox.standing().await.unwrap().queued, 1);
}

async fn all_of_an_event_survives(site: Site) {
    let store = site.open().await;
    let sent = Event {
        key: EventKey::parse("a.b-c_1", "id with spaces, 'quotes' and é").unwrap(),
        body: Bytes::from_iter(0..=255u8),
        headers: vec![("x-one".to_owned(), "a: b; c".to_owned()), ("x-empty".to_owned(), String::new())],
        received_at: at(-5),
        place: Some(Place { ordering_key: "kündë 1".to_owned(), number: 1 }),
        arrival: None,
    };
    let _ = store.record(&sent, Limits::default()).await.unwrap();
    let claim = site.open().await.claim(1, LEASE, at(0)).await.unwrap().remove(0);
    assert_eq!(claim.event, Event { arrival: Some(Arrival::InOrder), ..sent });
    assert_eq!((claim.attempt, claim.ticket.until), (1, at(60_000)));
}

async fn what_is_due_for_longest_is_claimed_first(site: Site) {
    let store = site.open().await;
    for (id, due) in [("late", 30), ("early", 10), ("middle", 20), ("later", 40)] {
        let event = Event { received_at: at(due), ..event(id) };
        assert_eq!(store.record(&event, Limits::default()).await.unwrap(), NEW);
    }
    assert_eq!(ids(&store.claim(2, LEASE, at(30)).await.unwrap()), ["early", "middle"]);
    assert_eq!(ids(&store.claim(9, LEASE, at(30)).await.unwrap()), ["late"], "the last one is not due");
}

async fn a_claim_holds_until_its_lease_ends(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    let first = claim_one(&store, 0).await.unwrap();
    assert!(claim_one(&store, 59_999).await.is_none());
    let second = claim_one(&store, 60_000).await.unwrap();
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert!(second.ticket.fence > first.ticket.fence);
}

async fn a_worker_whose_event_was_taken_can_settle_nothing(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    let slow = claim_one(&store, 0).await.unwrap();
    let other = claim_one(&store, 60_000).await.unwrap();
    for settlement in [Settlement::Done, Settlement::Again { due: at(0), reason: String::new() }, dead("x")] {
        let settled = store.settle(&slow.ticket, &settlement, at(60_001)).await.unwrap();
        assert_eq!(settled, Settled::LeaseLost, "{settlement:?}");
    }
    assert!(claim_one(&store, 60_002).await.is_none(), "the other one still has it");
    assert_eq!(store.settle(&other.ticket, &Settlement::Done, at(60_003)).await.unwrap(), Settled::Written);
    let again = store.settle(&other.ticket, &Settlement::Done, at(60_004)).await.unwrap();
    assert_eq!(again, Settled::LeaseLost, "nothing is settled twice");
}

async fn an_event_goes_to_one_of_many_claimers(site: Site) {
    let store = site.open().await;
    for number in 0..100 {
        record(&store, &format!("{number}")).await;
    }
    let stores = [site.open().await, site.open().await];
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let store = Arc::clone(&stores[number % 2]);
        tasks.spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..20 {
                taken.extend(store.claim(3, LEASE, at(0)).await.unwrap());
            }
            taken
        });
    }
    let taken: Vec<Claim> = tasks.join_all().await.into_iter().flatten().collect();
    let different: BTreeSet<&EventKey> = taken.iter().map(|claim| &claim.event.key).collect();
    assert_eq!((taken.len(), different.len()), (100, 100));
}

async fn what_is_done_is_not_claimed_again(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    finish(&store, "a", 0, Settlement::Done).await;
    assert!(claim_one(&store, 1_000_000).await.is_none());
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), Recorded::Duplicate);
    assert_eq!(store.replay(&key("a"), at(1)).await.unwrap(), Replayed::NotDead);
}

async fn what_failed_is_claimed_when_it_is_due(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    finish(&store, "a", 0, Settlement::Again { due: at(5_000), reason: "a NUL \0 in it".to_owned() }).await;
    assert!(claim_one(&store, 4_999).await.is_none());
    let claim = claim_one(&store, 5_000).await.unwrap();
    assert_eq!(claim.attempt, 2);
    assert_eq!(claim.event.body, "body of a");
}

async fn dead_events_are_listed_in_pages(site: Site) {
    let store = site.open().await;
    for id in ["a", "b", "c", "d", "e"] {
        record(&store, id).await;
    }
    let claims = store.claim(9, LEASE, at(0)).await.unwrap();
    // Three of them in the same millisecond, which a page must be able to end in.
    for (id, now) in [("e", 1), ("a", 2), ("c", 2), ("b", 2), ("d", 3)] {
        let ticket = &claims.iter().find(|claim| claim.event.key == key(id)).unwrap().ticket;
        assert_eq!(store.settle(ticket, &dead("broken"), at(now)).await.unwrap(), Settled::Written);
    }
    for page in [1, 2, 3, 10] {
        let mut listed = Vec::new();
        loop {
            let after = listed.last().map(postrider_inbox::DeadEvent::cursor);
            let more = store.dead(after.as_ref(), page).await.unwrap();
            if more.is_empty() {
                break;
            }
            assert!(more.len() <= page);
            listed.extend(more);
            assert!(listed.len() <= 5, "a page begins where the one before ended");
        }
        let found: Vec<_> = listed.iter().map(|dead| dead.event.key.id.as_str()).collect();
        assert_eq!(found, ["e", "a", "b", "c", "d"], "pages of {page}");
        assert!(listed.iter().all(|dead| dead.reason == "broken" && dead.event.body.starts_with(b"body of")));
    }
}

async fn one_dead_event_is_replayed(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    assert_eq!(store.replay(&key("a"), at(0)).await.unwrap(), Replayed::NotDead, "it waits");
    assert_eq!(store.replay(&key("never seen"), at(0)).await.unwrap(), Replayed::NotDead);
    let late = claim_one(&store, 0).await.unwrap();
    finish(&store, "a", 60_000, dead("x")).await;
    assert!(claim_one(&store, 1_000_000).await.is_none(), "dead events stay dead");
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), Recorded::Duplicate);
    assert_eq!(store.replay(&key("a"), at(70_000)).await.unwrap(), Replayed::Queued);
    assert_eq!(store.replay(&key("a"), at(70_000)).await.unwrap(), Replayed::NotDead);
    assert_eq!(store.settle(&late.ticket, &Settlement::Done, at(70_000)).await.unwrap(), Settled::LeaseLost);
    let claim = claim_one(&store, 70_000).await.unwrap();
    assert_eq!((claim.attempt, &claim.event.body[..]), (1, &b"body of a"[..]));
    assert_eq!(store.dead(None, 10).await.unwrap(), []);
}

async fn all_dead_events_are_replayed_in_pieces(site: Site) {
    let store = site.open().await;
    for number in 0..7 {
        record(&store, &format!("{number}")).await;
    }
    for claim in store.claim(6, LEASE, at(0)).await.unwrap() {
        let _ = store.settle(&claim.ticket, &dead("x"), at(10)).await.unwrap();
    }
    assert_eq!(store.replay_dead(at(9), 4, at(20)).await.unwrap(), 0, "they died later");
    for piece in [4, 2, 0] {
        assert_eq!(store.replay_dead(at(10), 4, at(20)).await.unwrap(), piece);
    }
    let standing = store.standing().await.unwrap();
    assert_eq!((standing.queued, standing.dead), (7, 0));
    assert_eq!(store.claim(10, LEASE, at(20)).await.unwrap().len(), 7);
}

async fn a_full_inbox_takes_nothing_new_in(site: Site) {
    let store = site.open().await;
    let limits = Limits { events_max: 2, bytes_max: 1_000 };
    for (id, expected) in [("a", NEW), ("b", NEW), ("c", Recorded::Full), ("a", Recorded::Duplicate)] {
        assert_eq!(store.record(&event(id), limits).await.unwrap(), expected, "{id}");
    }
    assert_eq!(store.claim(10, LEASE, at(0)).await.unwrap().len(), 2, "what was turned away is not there");
    assert_eq!(store.record(&event("c"), limits).await.unwrap(), Recorded::Full, "what is worked on counts, too");
    finish(&store, "a", 60_000, Settlement::Done).await;
    assert_eq!(store.record(&event("c"), limits).await.unwrap(), NEW);
    assert_eq!(store.record(&event("d"), limits).await.unwrap(), Recorded::Full);
    // What is dead makes room as well, and takes it again when it is replayed.
    finish(&store, "b", 120_000, dead("x")).await;
    assert_eq!(store.record(&event("d"), limits).await.unwrap(), NEW);
    store.replay(&key("b"), at(0)).await.unwrap();
    assert_eq!(store.standing().await.unwrap().queued, 3);
}

async fn a_full_inbox_answers_429(site: Site) {
    let clock = TestClock::new();
    let settings = InboxSettings {
        limits: Limits { events_max: 1, ..Limits::default() },
        retry_after: Duration::from_secs(17),
        ..InboxSettings::default()
    };
    let door = Inbox::with_settings(site.open().await, clock, settings).door("shop", source()).unwrap();
    let mut told = Vec::new();
    for id in ["msg_1", "msg_2", "msg_1"] {
        let (headers, body) = signed(id, "{}", at(0));
        let response: http::Response<String> = door.take(&headers, body).await.answer().into_response();
        let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        told.push((response.status().as_u16(), retry_after));
    }
    assert_eq!(told, [(202, None), (429, Some("17".to_owned())), (200, None)]);
}

async fn the_bound_on_bytes_holds(site: Site) {
    let store = site.open().await;
    let limits = Limits { events_max: 100, bytes_max: 100 };
    let sized = |id: &str, size: usize| Event { body: vec![b'x'; size].into(), headers: Vec::new(), ..event(id) };
    for (id, size, expected) in [("huge", 500, NEW), ("a", 1, Recorded::Full)] {
        assert_eq!(store.record(&sized(id, size), limits).await.unwrap(), expected, "{id}");
    }
    finish(&store, "huge", 0, Settlement::Done).await;
    for (id, size, expected) in
        [("b", 60, NEW), ("c", 41, Recorded::Full), ("c", 40, NEW), ("d", 1, Recorded::Full), ("e", 0, NEW)]
    {
        assert_eq!(store.record(&sized(id, size), limits).await.unwrap(), expected, "{id} of {size} bytes");
    }
    assert_eq!(store.standing().await.unwrap().queued_bytes, 100);
}

async fn the_bound_holds_for_many_at_the_same_instant(site: Site) {
    let store = site.open().await;
    let limits = Limits { events_max: 10, ..Limits::default() };
    let barrier = Arc::new(Barrier::new(50));
    let mut tasks = JoinSet::new();
    for number in 0..50 {
        let (barrier, store) = (Arc::clone(&barrier), Arc::clone(&store));
        tasks.spawn(async move {
            barrier.wait().await;
            store.record(&event(&format!("{number}")), limits).await.unwrap()
        });
    }
    let taken = tasks.join_all().await.into_iter().filter(|told| *told == NEW).count();
    // Transactions that run at the same time do not see what the others are about to add.
    let over = if site.kind == Kind::Postgres { POOL_SIZE } else { 0 };
    assert!((10..=10 + over).contains(&taken), "{taken} were taken in");
    assert_eq!(store.standing().await.unwrap().queued, taken as u64);
}

async fn a_redelivery_after_six_days_is_recognised(site: Site) {
    let clock = TestClock::new();
    let settings = InboxSettings { retention: Retention::days(7).unwrap(), ..InboxSettings::default() };
    let inbox = Inbox::with_settings(site.open().await, clock.clone(), settings);
    let door = inbox.door("shop", source()).unwrap();
    let (headers, body) = signed("msg_1", "{}", at(0));
    assert_eq!(door.take(&headers, body).await, Outcome::Accepted { arrival: None });
    finish(&site.open().await, "msg_1", 0, Settlement::Done).await;

    clock.advance(6 * DAY);
    inbox.clean().await.unwrap();
    // The sender signs every attempt anew.
    let (headers, body) = signed("msg_1", "{}", postrider_inbox::Clock::now(&clock));
    assert_eq!(door.take(&headers, body).await, Outcome::Duplicate);
    assert_eq!(inbox.standing().await.unwrap().queued, 0);
}

async fn after_its_retention_an_event_is_forgotten(site: Site) {
    let clock = TestClock::new();
    let settings = InboxSettings { retention: Retention::days(7).unwrap(), ..InboxSettings::default() };
    let inbox = Inbox::with_settings(site.open().await, clock.clone(), settings);
    let store = site.open().await;
    for id in ["done", "dead", "waits"] {
        record(&store, id).await;
    }
    finish(&store, "done", 0, Settlement::Done).await;
    finish(&store, "dead", 60_000, dead("x")).await;

    clock.advance(7 * DAY);
    assert_eq!(inbox.clean().await.unwrap(), 0, "to the millisecond it is still known");
    clock.advance(Duration::from_millis(1));
    assert_eq!(inbox.clean().await.unwrap(), 1);
    for (id, expected) in [("done", NEW), ("dead", Recorded::Duplicate), ("waits", Recorded::Duplicate)] {
        assert_eq!(store.record(&event(id), Limits::default()).await.unwrap(), expected, "{id}");
    }
}

async fn cleaning_goes_in_pieces_and_leaves_the_rest(site: Site) {
    let store = site.open().await;
    for number in 0..27 {
        record(&store, &format!("{number:02}")).await;
    }
    for (index, claim) in store.claim(26, LEASE, at(0)).await.unwrap().iter().enumerate() {
        let settlement = if index == 25 { dead("x") } else { Settlement::Done };
        let _ = store.settle(&claim.ticket, &settlement, at(index as i64)).await.unwrap();
    }
    let mut pieces = Vec::new();
    while pieces.last() != Some(&0) {
        pieces.push(store.clean(at(20), 8).await.unwrap());
    }
    assert_eq!(pieces, [8, 8, 4, 0], "five were done later");
    let standing = store.standing().await.unwrap();
    assert_eq!((standing.queued, standing.dead), (1, 1));
    assert_eq!(store.record(&event("19"), Limits::default()).await.unwrap(), NEW);
    assert_eq!(store.record(&event("20"), Limits::default()).await.unwrap(), Recorded::Duplicate);
}

async fn dead_events_are_forgotten_only_if_asked(site: Site) {
    let clock = TestClock::new();
    let inbox = Inbox::new(site.open().await, clock.clone());
    let store = site.open().await;
    for id in ["a", "b"] {
        record(&store, id).await;
    }
    for (claim, now) in store.claim(2, LEASE, at(0)).await.unwrap().iter().zip([0, 1_000]) {
        let _ = store.settle(&claim.ticket, &dead("x"), at(now)).await.unwrap();
    }
    clock.advance(400 * DAY);
    assert_eq!(inbox.clean().await.unwrap(), 0);
    assert_eq!(inbox.dead(None, 10).await.unwrap().len(), 2);
    let almost = 400 * DAY - Duration::from_millis(500);
    assert_eq!(inbox.forget_dead_for(almost).await.unwrap(), 1, "the other one died later");
    assert_eq!(inbox.dead(None, 10).await.unwrap()[0].event.key, key("b"));
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), NEW);
}

async fn gaps_and_late_ones_are_told(site: Site) {
    let store = site.open().await;
    for (id, ordering_key, number, expected) in [
        ("a", "kim", 1, Arrival::InOrder),
        ("b", "kim", 4, Arrival::Gap { first: 2, last: 3 }),
        ("c", "ada", 1, Arrival::InOrder),
        ("d", "kim", 3, Arrival::Late),
        ("e", "ada", 2, Arrival::InOrder),
        ("f", "kim", 5, Arrival::InOrder),
        ("g", "kim", 1, Arrival::Restarted),
    ] {
        // Every time by another connection: what was seen is in the store.
        let recorded = site.open().await.record(&ordered(id, ordering_key, number), Limits::default()).await.unwrap();
        assert_eq!(recorded, Recorded::New { arrival: Some(expected) }, "{id}");
        let again = store.record(&ordered(id, ordering_key, number), Limits::default()).await.unwrap();
        assert_eq!(again, Recorded::Duplicate, "a repetition is no arrival");
    }
    let claims = store.claim(100, LEASE, at(0)).await.unwrap();
    assert_eq!(claims[1].event.arrival, Some(Arrival::Gap { first: 2, last: 3 }), "the handler hears of it");
}

async fn numbers_at_the_same_instant_are_counted_once_each(site: Site) {
    let store = site.open().await;
    let mut tasks = JoinSet::new();
    for number in 1..=20 {
        let store = Arc::clone(&store);
        tasks
            .spawn(async move { store.record(&ordered(&format!("{number}"), "kim", number), Limits::default()).await });
    }
    assert!(tasks.join_all().await.into_iter().all(|told| matches!(told, Ok(Recorded::New { .. }))));
    // If one had overwritten what another wrote, a number would be missing.
    let next = store.record(&ordered("next", "kim", 21), Limits::default()).await.unwrap();
    assert_eq!(next, Recorded::New { arrival: Some(Arrival::InOrder) });
    for number in 2..=20 {
        let repeated =
            store.record(&ordered(&format!("other {number}"), "kim", number), Limits::default()).await.unwrap();
        assert_eq!(repeated, Recorded::New { arrival: Some(Arrival::Repeated) }, "number {number}");
    }
}

async fn the_standing_adds_up(site: Site) {
    let store = site.open().await;
    assert_eq!(store.standing().await.unwrap(), Standing::default());
    for (id, received) in [("a", 10), ("b", 5), ("c", 20)] {
        let event = Event { received_at: at(received), ..event(id) };
        assert_eq!(store.record(&event, Limits::default()).await.unwrap(), NEW);
    }
    let size = event("a").size();
    let standing = store.standing().await.unwrap();
    let expected = Standing { queued: 3, queued_bytes: 3 * size, dead: 0, due_first: Some(at(5)) };
    assert_eq!(standing, expected);
    assert_eq!(standing.lag(at(1_005)), Duration::from_secs(1));
    let claims = store.claim(2, LEASE, at(10)).await.unwrap();
    let _ = store.settle(&claims[0].ticket, &dead("x"), at(11)).await.unwrap();
    let expected = Standing { queued: 2, queued_bytes: 2 * size, dead: 1, due_first: Some(at(20)) };
    assert_eq!(store.standing().await.unwrap(), expected);
}

async fn tables_can_be_made_again_and_by_many(site: Site) {
    let store = site.open().await;
    record(&store, "a").await;
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let store = site.open().await;
        tasks.spawn(async move { store.migrate().await });
    }
    assert!(tasks.join_all().await.into_iter().all(|made| made.is_ok()));
    assert_eq!(store.record(&event("a"), Limits::default()).await.unwrap(), Recorded::Duplicate);
}
