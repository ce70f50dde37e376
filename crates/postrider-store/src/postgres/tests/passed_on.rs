//! Messages that one node accepts and another one delivers.

use super::{
    nodes::{Node, eventually, lane_of, share},
    *,
};
use crate::conformance::fixtures::*;
use postrider_engine::policy::Ordering;

/// A node that owns all shards and does not serve them yet: what it accepts is passed on to itself, and stays unread.
async fn idle_owner(url: &DatabaseUrl) -> (PostgresStore, AppKey, EndpointKey) {
    let store = open(url, START, &PostgresOptions::default()).await;
    let app = add_application(&store, None).await.key;
    let endpoint = add_endpoint(&store, app, None).await.key;
    (store, app, endpoint)
}

async fn passed_on(url: &DatabaseUrl) -> usize {
    let db = connect(url).await;
    rows(&db, "SELECT 1 FROM news WHERE kind = $1", &[&news::MESSAGE]).await.unwrap().len()
}

async fn bury(url: &DatabaseUrl, node: Tenure) -> u64 {
    let db = connect(url).await;
    db.batch_execute("BEGIN").await.unwrap();
    let given = recover::bury_node(&db, node.0, START).await.unwrap();
    db.batch_execute("COMMIT").await.unwrap();
    given
}

fn is_of(message: MessageKey) -> impl Fn(&Committed) -> bool {
    move |heard| matches!(heard, Committed::Message { letter, .. } if letter.message == message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_node_accepts_is_handed_to_the_owner() {
    let url = fresh_url().await;
    let (mut one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
    share(&[&one, &two]).await;
    let (app, endpoint) = lane_of(&one).await;
    let new = NewMessage { owed: vec![endpoint], ..message(app, START) };
    let message = accept(&*two.store, new.clone()).await;
    let Committed::Message { letter, owed } = one.hears(is_of(message)).await else { unreachable!("it was asked for") };
    assert_eq!((letter.payload.as_ref(), owed), (Some(&new.content.payload), vec![endpoint]));
    assert_eq!(load(&*one.store, endpoint, at(1)).await, [], "it has no row");

    settle(&*one.store, vec![delivered(scheduled(endpoint, message), at(1))]).await;
    assert_eq!(state(&*two.store, scheduled(endpoint, message)).await, DeliveryState::Delivered);
    assert_eq!(passed_on(&url).await, 0);
    let heard = one.heard.borrow().iter().filter(|heard| is_of(message)(heard)).count();
    assert_eq!(heard, 1, "it is handed over once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_bound_by_an_order_reaches_the_owner_by_a_row() {
    let url = fresh_url().await;
    let (mut one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
    share(&[&one, &two]).await;
    let (app, fifo) = lane_of(&one).await;
    let loose = add_endpoint(&*one.store, app, None).await.key;
    let new = NewMessage { owed: vec![fifo, loose], fifo: vec![fifo], ..message(app, START) };
    let message = accept(&*two.store, new).await;
    one.hears(|heard| matches!(heard, Committed::Waiting { endpoint, .. } if *endpoint == fifo)).await;
    let Committed::Message { owed, .. } = one.hears(is_of(message)).await else { unreachable!("it was asked for") };
    assert_eq!(owed, [loose]);
    assert_eq!(ids(&load_in(&*one.store, fifo, Ordering::Fifo, at(1)).await), [scheduled(fifo, message)]);
    assert_eq!(load(&*one.store, loose, at(1)).await, []);
}

/// What a node accepted before it served the lanes it hears of some time after it does. What it accepts in between stands
/// behind that, and is not handed over beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_accepted_before_the_lanes_were_served_is_not_overtaken() {
    let url = fresh_url().await;
    let (owner, app, endpoint) = idle_owner(&url).await;
    let keyed = |fifo: bool| {
        let mut new = NewMessage { owed: vec![endpoint], ..message(app, START) };
        match fifo {
            true => new.fifo = vec![endpoint],
            false => new.content.ordering_key = Some("a".to_owned()),
        }
        new
    };
    for (ordering, fifo) in [(Ordering::Keyed, false), (Ordering::Fifo, true)] {
        let first = accept(&owner, keyed(fifo)).await;
        owner.own(owner.tenure(), Shards::ALL).unwrap();
        let second = accept(&owner, keyed(fifo)).await;
        let expected = [scheduled(endpoint, first), scheduled(endpoint, second)];
        assert_eq!(ids(&load_in(&owner, endpoint, ordering, at(1)).await), expected, "both have rows");
        let gone = |id| Settlement { order: (!fifo).then(|| OrderKey::of("a")), ..stored(delivered(id, at(1))) };
        settle(&owner, expected.map(gone).to_vec()).await;
        owner.disown(owner.tenure(), Shards::ALL).await.unwrap();
        owner.writer.shared().tell(vec![Committed::Offered { tenure: owner.tenure(), shards: Shards::ALL }]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_owner_did_not_read_before_it_died_gets_a_row() {
    let url = fresh_url().await;
    let (owner, app, endpoint) = idle_owner(&url).await;
    let message = accept(&owner, NewMessage { owed: vec![endpoint], ..message(app, START) }).await;
    assert_eq!(passed_on(&url).await, 1);
    assert_eq!(bury(&url, owner.tenure()).await, 1);
    assert_eq!(load(&owner, endpoint, at(1)).await, [scheduled(endpoint, message)]);
    assert_eq!(passed_on(&url).await, 0);
}

/// Whether or not it had taken the news away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_owner_read_and_did_not_settle_before_it_died_gets_a_row() {
    for writes_since in [false, true] {
        let url = fresh_url().await;
        let (mut one, two) = (Node::join(&url, "one").await, Node::join(&url, "two").await);
        share(&[&one, &two]).await;
        let (app, endpoint) = lane_of(&one).await;
        let message = accept(&*two.store, NewMessage { owed: vec![endpoint], ..message(app, START) }).await;
        one.hears(is_of(message)).await;
        if writes_since {
            accept(&*one.store, crate::conformance::fixtures::message(app, START)).await;
        }
        assert_eq!(passed_on(&url).await, usize::from(!writes_since));
        let node = one.store.tenure();
        one.die();
        assert_eq!(bury(&url, node).await, 1, "written since: {writes_since}");
        assert_eq!(load(&*two.store, endpoint, at(1)).await, [scheduled(endpoint, message)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_is_given_up_with_rows_for_all_that_is_handed_over_of_it() {
    let url = fresh_url().await;
    let (owner, app, endpoint) = idle_owner(&url).await;
    let new = NewMessage { owed: vec![endpoint], ..message(app, START) };
    let unread = accept(&owner, new.clone()).await;
    let mut committed = owner.committed();
    owner.own(owner.tenure(), Shards::ALL).unwrap();
    eventually("it is read", || {
        let news = committed.try_recv().unwrap_or_default();
        async move { news.iter().any(is_of(unread)) }
    })
    .await;
    let held = accept(&owner, new).await;
    owner.disown(owner.tenure(), Shards::ALL).await.unwrap();
    assert_eq!(load(&owner, endpoint, at(1)).await, [unread, held].map(|message| scheduled(endpoint, message)));
    assert_eq!(passed_on(&url).await, 0);
    // Whoever had them in memory lets go of them now.
    let both = [unread, held].map(|message| scheduled(endpoint, message)).to_vec();
    owner.spill(owner.tenure(), unordered(both.clone()), at(2)).await.unwrap();
    assert_eq!(load(&owner, endpoint, at(1)).await, both, "as they were");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cancelled_before_the_owner_read_it_is_not_handed_over() {
    let url = fresh_url().await;
    let (owner, app, endpoint) = idle_owner(&url).await;
    let new = NewMessage { owed: vec![endpoint], ..message(app, START) };
    let cancelled = accept(&owner, new.clone()).await;
    let kept = accept(&owner, new).await;
    owner.cancel_message(app, cancelled, None, at(1)).await.unwrap();
    let mut committed = owner.committed();
    owner.own(owner.tenure(), Shards::ALL).unwrap();
    let mut handed = Vec::new();
    while !handed.contains(&kept) {
        let news = committed.recv().await.expect("it goes on");
        handed.extend(news.iter().filter_map(|heard| match heard {
            Committed::Message { letter, .. } => Some(letter.message),
            _ => None,
        }));
    }
    assert_eq!(handed, [kept]);
}
