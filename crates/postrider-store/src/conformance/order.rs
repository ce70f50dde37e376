//! What is ordered comes out in its order, and holds up nobody else.

use super::{Grain, Harness, fixtures::*};
use crate::*;
use postrider_engine::{
    DeliveryId, EndpointKey, MessageKey, OrderKey, Timestamp,
    policy::{DeathReason, DisableReason, Next, Ordering},
};

impl<H: Harness> Stage<H> {
    async fn accept_keyed(&self, key: &str) -> MessageKey {
        accept(self.store(), self.keyed(Some(key))).await
    }

    fn keyed(&self, key: Option<&str>) -> NewMessage {
        let content = Content { ordering_key: key.map(str::to_owned), ..content(b"{}") };
        NewMessage { content, ..self.message(START) }
    }

    /// Deliveries to the first endpoint of new messages with these keys, spilled at the times given.
    async fn waiting(&self, rows: &[(Option<&str>, i64)]) -> Vec<DeliveryId> {
        let mut ids = Vec::new();
        for (key, due) in rows {
            let id = self.first(accept(self.store(), self.keyed(*key)).await);
            self.store().spill(self.store().tenure(), vec![(id, key.map(OrderKey::of))], at(*due)).await.unwrap();
            ids.push(id);
        }
        ids
    }

    async fn look(&self, ordering: Ordering, now: Timestamp) -> Look {
        let Loaded { deliveries, more, next_due, blocked } =
            load_in(self.store(), self.endpoints[0], ordering, now).await;
        Look { ids: deliveries.iter().map(|delivery| delivery.id).collect(), more, next_due, blocked }
    }
}

#[derive(Debug, PartialEq)]
struct Look {
    ids: Vec<DeliveryId>,
    more: bool,
    next_due: Option<Timestamp>,
    blocked: bool,
}

/// What was loaded, with nothing left for later.
fn all_of(ids: &[DeliveryId]) -> Look {
    Look { ids: ids.to_vec(), more: false, next_due: None, blocked: false }
}

pub async fn each_key_is_a_run_from_its_first_message<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage
        .waiting(&[
            (Some("a"), 50),
            (Some("b"), 900),
            (Some("a"), 40),
            (Some("b"), 10),
            (None, 45),
            (Some("a"), 800),
            (Some("a"), 20),
        ])
        .await;
    let look = stage.look(Ordering::Keyed, at(100)).await;
    // The third has its turn with the first, though it was due before. The last waits for one that is not due.
    let expected = [ids[4], ids[0], ids[2]];
    assert_eq!(look, Look { next_due: Some(at(900)), blocked: true, ..all_of(&expected) });
    assert_eq!(stage.look(Ordering::Keyed, at(49)).await.ids, [ids[4]]);
    let look = stage.look(Ordering::Keyed, at(899)).await;
    assert_eq!(
        look,
        Look { next_due: Some(at(900)), blocked: true, ..all_of(&[&expected[..], &[ids[5], ids[6]]].concat()) }
    );
    let look = stage.look(Ordering::Keyed, at(900)).await;
    assert_eq!(look, all_of(&[ids[4], ids[0], ids[2], ids[5], ids[6], ids[1], ids[3]]));
}

pub async fn a_fifo_lane_is_one_run<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.waiting(&[(Some("a"), 50), (None, 10), (Some("b"), 900), (Some("a"), 5)]).await;
    stage.store().resend(ids[3].message, ids[3].endpoint, at(30), None).await.unwrap();
    let by_hand = manual(ids[3].endpoint, ids[3].message);
    let look = stage.look(Ordering::Fifo, at(49)).await;
    assert_eq!(look, Look { next_due: Some(at(50)), blocked: true, ..all_of(&[by_hand]) }, "no order binds a resend");
    let look = stage.look(Ordering::Fifo, at(899)).await;
    assert_eq!(look, Look { blocked: true, ..all_of(&[by_hand, ids[0], ids[1]]) });
    assert_eq!(stage.look(Ordering::Fifo, at(900)).await, all_of(&[by_hand, ids[0], ids[1], ids[2], ids[3]]));
}

pub async fn without_an_order_keys_are_not_looked_at<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.waiting(&[(Some("a"), 900), (Some("a"), 20), (None, 30), (Some("a"), 10)]).await;
    let look = stage.look(Ordering::None, at(100)).await;
    assert_eq!(look, Look { next_due: Some(at(900)), ..all_of(&[ids[3], ids[1], ids[2]]) });
    let lanes = stage.store().lanes(Shards::ALL).await.unwrap();
    assert_eq!(lanes, [LaneFound { endpoint: stage.endpoints[0], next_due: at(10) }]);
}

/// However long a run is, what waits for nobody comes first.
pub async fn a_limit_cuts_runs_before_it_keeps_others_out<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let mut rows = vec![(Some("a"), 10); 50];
    rows.extend([(Some("b"), 20), (Some("b"), 20), (None, 30), (Some("a"), 10)]);
    let rows = stage.waiting(&rows).await;
    for (limit, expected) in [
        (1, vec![rows[0]]),
        (3, vec![rows[0], rows[50], rows[52]]),
        (4, vec![rows[0], rows[1], rows[50], rows[52]]),
        (6, vec![rows[0], rows[1], rows[2], rows[50], rows[51], rows[52]]),
    ] {
        let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(100), limit).await.unwrap();
        let found = (ids(&loaded), loaded.more, loaded.blocked);
        assert_eq!(found, (expected, true, true), "{limit}");
    }
    let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(100), 54).await.unwrap();
    assert_eq!((loaded.deliveries.len(), loaded.more, loaded.blocked), (54, false, false));
    let loaded = stage.store().load(stage.endpoints[0], Ordering::Fifo, at(100), 5).await.unwrap();
    assert_eq!((ids(&loaded), loaded.more, loaded.blocked), (rows[..5].to_vec(), true, true));
}

pub async fn many_rows_behind_one_do_not_hide_others<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let key = Some(OrderKey::of("a"));
    let first = stage.first(stage.accept_keyed("a").await);
    stage.settle(Settlement { order: key, ..failed(first, at(1), at(HOUR)) }).await;
    let mut behind = Vec::new();
    for _ in 0..10_000 {
        behind.push((stage.first(stage.accept_keyed("a").await), key));
    }
    for some in behind.chunks(1_000) {
        stage.store().spill(stage.store().tenure(), some.to_vec(), at(2)).await.unwrap();
    }
    let others = stage.waiting(&[(None, 3), (Some("b"), 4), (Some("b"), 5)]).await;
    let loaded = stage.store().load(stage.endpoints[0], Ordering::Keyed, at(100), 3).await.unwrap();
    assert_eq!((ids(&loaded), loaded.more), (others, false));
    assert_eq!((loaded.next_due, loaded.blocked), (Some(at(HOUR)), true));

    let loaded = stage.store().load(stage.endpoints[0], Ordering::Fifo, at(100), 3).await.unwrap();
    assert_eq!((ids(&loaded), loaded.more), (vec![], false));
    assert_eq!((loaded.next_due, loaded.blocked), (Some(at(HOUR)), true));
}

/// However much a load brings at once, a run is cut at its end and never in between.
pub async fn a_heavy_run_is_loaded_in_parts_and_in_order<H: Harness>() {
    for ordering in [Ordering::Keyed, Ordering::Fifo] {
        let stage = Stage::<H>::set(1).await;
        let mut expected = Vec::new();
        for millis in (0..12).rev() {
            let content = Content { payload: vec![b'x'; 1024 * 1024].into(), ..stage.keyed(Some("a")).content };
            let id = stage.first(accept(stage.store(), NewMessage { content, ..stage.message(START) }).await);
            stage.store().spill(stage.store().tenure(), vec![(id, Some(OrderKey::of("a")))], at(millis)).await.unwrap();
            expected.push(id);
        }
        let mut loads = Vec::new();
        while expected.len() > loads.len() {
            let found = stage.look(ordering, at(DAY)).await;
            let rest = expected.len() - loads.len() - found.ids.len();
            assert!(!found.ids.is_empty(), "a load brings something");
            assert_eq!((found.more, found.blocked), (rest > 0, rest > 0), "{rest} are left");
            for id in found.ids {
                stage.settle(stored(delivered(id, at(DAY)))).await;
                loads.push(id);
            }
        }
        assert_eq!(loads, expected, "{ordering:?}");
    }
}

pub async fn whatever_ends_the_first_the_next_one_follows<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let dead = |id| Settlement { next: Next::Dead(DeathReason::Expired), attempt: None, ..refused(id, at(60)) };
    let ids =
        stage.waiting(&[(Some("a"), 50), (Some("a"), 51), (Some("a"), 52), (Some("a"), 53), (Some("a"), 54)]).await;
    let front = async |now| stage.look(Ordering::Keyed, at(now)).await.ids;
    assert_eq!(front(50).await, [ids[0]]);

    stage.settle(stored(failed(ids[0], at(60), at(500)))).await;
    let held = stage.look(Ordering::Keyed, at(499)).await;
    assert_eq!(held, Look { next_due: Some(at(500)), blocked: true, ..all_of(&[]) }, "a retry holds its key back");
    assert_eq!(front(500).await, ids);

    stage.settle(stored(delivered(ids[0], at(501)))).await;
    assert_eq!(front(501).await, ids[1..], "arrived");
    stage.settle(stored(dead(ids[1]))).await;
    assert_eq!(front(501).await, ids[2..], "died");
    stage.store().resend(ids[2].message, ids[2].endpoint, at(60), None).await.unwrap();
    stage.settle(stored(delivered(manual(ids[2].endpoint, ids[2].message), at(502)))).await;
    assert_eq!(front(502).await, ids[3..], "a resend arrived");
    stage.settle(stored(delivered(ids[4], at(503)))).await;
    assert_eq!(stage.look(Ordering::Keyed, at(503)).await, all_of(&[ids[3]]), "one from behind went");
}

/// A delivery may get its row after later ones of its key have theirs: they step back.
pub async fn an_earlier_message_goes_before_those_that_wait<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let key = Some(OrderKey::of("a"));
    let early = stage.first(stage.accept_keyed("a").await);
    let earlier = stage.first(stage.accept_keyed("a").await);
    let ids = stage.waiting(&[(Some("a"), 10), (Some("a"), 11)]).await;
    assert_eq!(stage.look(Ordering::Keyed, at(50)).await, all_of(&ids));
    stage.settle(Settlement { order: key, ..failed(earlier, at(20), at(600)) }).await;
    let held = Look { next_due: Some(at(600)), blocked: true, ..all_of(&[]) };
    assert_eq!(stage.look(Ordering::Keyed, at(599)).await, held);
    stage.store().spill(stage.store().tenure(), vec![(early, key)], at(30)).await.unwrap();
    assert_eq!(stage.look(Ordering::Keyed, at(599)).await, Look { blocked: true, ..all_of(&[early]) });
    stage.settle(stored(delivered(early, at(40)))).await;
    assert_eq!(stage.look(Ordering::Keyed, at(599)).await, held);
    assert_eq!(stage.look(Ordering::Keyed, at(600)).await, all_of(&[earlier, ids[0], ids[1]]));
}

pub async fn order_outlives_a_restart_and_a_crash<H: Harness>() {
    let mut stage = Stage::<H>::set_with(Grain::Fine, 1).await;
    let mut expected = Vec::new();
    let retried = stage.first(stage.accept_keyed("a").await);
    stage.settle(Settlement { order: Some(OrderKey::of("a")), ..failed(retried, at(1), at(700)) }).await;
    expected.push(retried);
    for crash in [true, false, true] {
        // On their way when it ends.
        for _ in 0..4 {
            expected.push(stage.first(stage.accept_keyed("a").await));
        }
        stage = if crash { stage.crash(at(100)).await } else { stage.reopen(at(100)).await };
        let held = Look { next_due: Some(at(700)), blocked: true, ..all_of(&[]) };
        assert_eq!(stage.look(Ordering::Keyed, at(699)).await, held);
        assert_eq!(stage.look(Ordering::Fifo, at(699)).await, held);
        let look = stage.look(Ordering::Keyed, at(700)).await;
        assert_eq!(look, all_of(&expected));
        let loaded = load_in(stage.store(), stage.endpoints[0], Ordering::Keyed, at(700)).await;
        assert!(loaded.deliveries.iter().all(|delivery| delivery.order == Some(OrderKey::of("a"))));
    }
}

pub async fn a_held_key_holds_only_its_own_lane<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let [one, other] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let key = Some(OrderKey::of("a"));
    let (first, second) = (stage.accept_keyed("a").await, stage.accept_keyed("a").await);
    stage.settle(Settlement { order: key, ..failed(scheduled(one, first), at(1), at(900)) }).await;
    let rest = [(one, second), (other, first), (other, second)].map(|(lane, message)| (scheduled(lane, message), key));
    stage.store().spill(stage.store().tenure(), rest.to_vec(), at(2)).await.unwrap();
    assert_eq!(load(stage.store(), one, at(100)).await, []);
    assert_eq!(load(stage.store(), other, at(100)).await, [scheduled(other, first), scheduled(other, second)]);
}

pub async fn burying_leaves_no_row_of_a_key<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.waiting(&[(Some("a"), 900), (Some("a"), 10), (Some("b"), 10), (None, 10)]).await;
    stage.store().delete_endpoint(stage.app, stage.endpoints[0], at(20)).await.unwrap();
    bury_all(stage.store(), at(30)).await;
    assert_eq!(all_waiting(stage.store()).await, []);
    for id in ids {
        assert_eq!(stage.state(id).await, DeliveryState::Dead { at: at(30), reason: DeathReason::EndpointGone });
    }
}

pub async fn what_is_to_be_delivered_later_waits_for_its_time<H: Harness>() {
    let stage = Stage::<H>::set(2).await;
    let mut committed = stage.store().committed();
    while committed.try_recv().is_ok() {}
    let delayed = later(stage.keyed(Some("a")), Some(at(DAY)));
    let message = accept(stage.store(), delayed.clone()).await;
    let news = committed.try_recv().expect("it is announced");
    let announced: Vec<_> = news
        .iter()
        .map(|committed| match committed {
            Committed::Waiting { endpoint, due } => (*endpoint, *due),
            other => panic!("it is not handed over: {other:?}"),
        })
        .collect();
    assert_eq!(announced, stage.endpoints.iter().map(|endpoint| (*endpoint, at(DAY))).collect::<Vec<_>>());
    let id = stage.first(message);
    assert_eq!(stage.state(id).await, DeliveryState::Pending { due: Some(at(DAY)) });
    let kept = stage.store().message(stage.app, By::Key(message)).await.unwrap().expect("it was accepted");
    assert_eq!(kept.content.deliver_at, Some(at(DAY)));

    let stage = stage.crash(at(10)).await;
    assert_eq!(load(stage.store(), id.endpoint, at(DAY - 1)).await, [], "nor does a restart hurry it");
    let loaded = load_in(stage.store(), id.endpoint, Ordering::Keyed, at(DAY)).await;
    let [waiting] = &loaded.deliveries[..] else { panic!("one: {loaded:?}") };
    assert_eq!((waiting.id, waiting.cycle, waiting.order), (id, 0, Some(OrderKey::of("a"))));
    assert_eq!(waiting.queued_at, at(DAY), "its time counts from when it was wanted");
    assert_eq!(waiting.letter.accepted_at, START);

    let mut committed = stage.store().committed();
    while committed.try_recv().is_ok() {}
    let now = accept(stage.store(), later(delayed, Some(START))).await;
    let news = committed.try_recv().expect("it is announced");
    // Handed over, or waiting behind what another node put there.
    let is_at_once = |committed: &Committed| match committed {
        Committed::Message { letter, .. } => letter.message == now,
        Committed::Waiting { due, .. } => *due == START,
        _ => false,
    };
    assert!(news.iter().all(is_at_once), "{news:?}");
}

/// The numbers that a message has, as they are handed over.
async fn numbers(store: &dyn Store, message: NewMessage) -> Vec<(EndpointKey, u64)> {
    let id = accept(store, later(message.clone(), None)).await;
    let lane = message.owed[0];
    store.spill(store.tenure(), vec![(scheduled(lane, id), None)], START).await.unwrap();
    let loaded = load_in(store, lane, Ordering::None, START).await;
    let found = loaded.deliveries.into_iter().find(|delivery| delivery.id.message == id).expect("it was spilled");
    found.letter.sequences.clone()
}

pub async fn what_is_ordered_is_counted_without_gaps<H: Harness>() {
    let stage = Stage::<H>::set_with(Grain::Fine, 2).await;
    let [one, fifo] = stage.endpoints[..] else { unreachable!("two were asked for") };
    let message = |key| NewMessage { fifo: vec![fifo], ..stage.keyed(key) };
    let store = stage.store();
    assert_eq!(numbers(store, message(Some("a"))).await, [(one, 1), (fifo, 1)]);
    assert_eq!(numbers(store, message(Some("b"))).await, [(one, 1), (fifo, 2)]);
    assert_eq!(numbers(store, message(None)).await, [(fifo, 3)], "without a key only a FIFO endpoint counts");
    assert_eq!(numbers(store, stage.keyed(None)).await, []);

    let named = |key: u8| {
        let content = Content { event_id: Some("once".to_owned()), ..message(Some("a")).content };
        NewMessage { content, idempotency: Some(chosen(key, 1)), ..message(Some("a")) }
    };
    assert_eq!(numbers(store, named(1)).await, [(one, 2), (fifo, 4)]);
    let again = store.accept(named(1)).await;
    assert!(matches!(again, Ok(Accepted::Before(_))), "{again:?}");
    let taken = store.accept(named(2)).await;
    assert!(matches!(taken, Err(AcceptError::EventIdTaken)), "{taken:?}");

    let stage = stage.crash(at(10)).await;
    let mut committed = stage.store().committed();
    while committed.try_recv().is_ok() {}
    let message = NewMessage { fifo: vec![fifo], ..stage.keyed(Some("a")) };
    accept(stage.store(), message).await;
    let news = committed.try_recv().expect("it is announced");
    let letter = news.iter().find_map(|committed| match committed {
        Committed::Message { letter, .. } => Some(letter),
        _ => None,
    });
    let letter = letter.unwrap_or_else(|| panic!("it is handed over where nothing waits: {news:?}"));
    assert_eq!(letter.sequences, [(one, 3), (fifo, 5)], "what was refused took no number");
    assert_eq!(letter.order, Some(OrderKey::of("a")));
}

pub async fn a_disabled_endpoint_keeps_its_order<H: Harness>() {
    let stage = Stage::<H>::set(1).await;
    let ids = stage.waiting(&[(Some("a"), 10), (Some("a"), 10), (Some("a"), 10)]).await;
    let gone = Settlement { disable: Some(DisableReason::Gone), ..stored(refused(ids[0], at(20))) };
    stage.settle(gone).await;
    assert_eq!(stage.look(Ordering::Keyed, at(30)).await, all_of(&ids[1..]));
}
